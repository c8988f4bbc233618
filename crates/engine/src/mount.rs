//! The mount, in R11's order: superblock, scan, truncation, rewrite, flush, mount record, checkpoint, hand-over.
//!
//! Invariant: no new record is written before the scan is judged and the batches that it keeps are durable. They are
//! durable when a flush is known to have succeeded after they were written (ADR 0006). No group is created before the
//! mount record is durable.

use crate::api::{EngineEvent, MountError};
use crate::engine::{ANY_REPLICA, Engine, State, key};
use crate::home::{Home, HomeLimits};
use crate::home_api::{HomeRegion, HomeTokens, LostHome, RoundState};
use crate::log::replay::{Replay, Untold};
use crate::log::scan::{Candidate, Found, Verdict, all_candidates, candidates};
use crate::log::segment_read::{SegmentBytes, SegmentRead};
use crate::log::{Log, Work};
use crate::mount_places::Placing;
use crate::replicas::Replicas;
use env::{DiskError, DiskId, Op, Token};
use layout::log::{BATCH_ALIGN, BatchHeader, PlacedRun};
use layout::poison::{POISON_AT, POISON_LEN};
use layout::superblock::{SUPERBLOCK_LEN, Superblock, SuperblockError};
use std::collections::BTreeSet;
use types::failpoint::{Point, pass};
use types::planted::{Bug, on};
use types::{IoBuf, IoBufMut, ReplicaId};

/// Requests of background work in flight on a rotating disk: one that it does, and one that it may begin at once.
pub(crate) const HDD_OPS_MAX: u32 = 2;

/// Most reads of the log that one mount repeats because of errors that are none of the medium.
const RETRIES_MAX: u32 = 64;

/// Phase of a mount.
#[derive(Debug)]
pub(crate) enum Mount {
    /// Both copies of each device, that of the log first.
    Superblocks {
        copies: Vec<[Option<IoBufMut>; 2]>,
        again: bool,
    },
    Openings {
        left: usize,
        openings: Vec<Option<BatchHeader>>,
        again: bool,
    },
    /// `first`: bytes of the first read, while the segment is read a second time.
    Segments {
        candidates: Vec<Candidate>,
        next: usize,
        found: Box<Found>,
        first: Option<SegmentBytes>,
        reading: SegmentRead,
    },
    /// Payloads of the log are read at home.
    Places(Placing),
    Rewrite {
        replay: Box<Replay>,
        left: usize,
    },
    Flush {
        replay: Box<Replay>,
        left: usize,
    },
    Record {
        replay: Box<Replay>,
    },
    Home {
        replay: Box<Replay>,
    },
}

/// Facts that the phases of a mount share.
#[derive(Debug, Default)]
pub(crate) struct MountNotes {
    /// Number of log reads that were repeated after an error that is none of the medium.
    retries: u32,
    /// The copies of superblocks that are to be rewritten: disk, offset, bytes.
    bad_superblocks: Vec<(DiskId, u64, IoBuf)>,
}

impl Engine {
    pub(crate) fn start_mount(&mut self) {
        if self.disks.each().iter().any(|(disk, _)| disk.size_bytes < 2 * layout::superblock::MARGIN) {
            return self.fail_mount(SuperblockError::Absent.into());
        }
        self.read_superblocks(false);
    }

    fn read_superblocks(&mut self, again: bool) {
        let disks: Vec<(DiskId, u64)> =
            self.disks.each().into_iter().map(|(disk, _)| (disk.id, disk.size_bytes)).collect();
        for (nth, (disk, size_bytes)) in disks.iter().enumerate() {
            for (copy, offset) in Superblock::offsets(*size_bytes).into_iter().enumerate() {
                self.mount_submit(*disk, key::SUPERBLOCK, (2 * nth + copy) as u32, offset, SUPERBLOCK_LEN);
            }
        }
        let copies = disks.iter().map(|_| [None, None]).collect();
        self.state = State::Mounting(Box::new(Mount::Superblocks { copies, again }));
    }

    fn mount_submit(&mut self, disk: DiskId, key: u32, generation: u32, offset: u64, len: usize) {
        let token = self.token(key, generation);
        self.stats.device_read_bytes += len as u64;
        self.ops.push(Op::DiskRead { token, disk, offset, buf: IoBufMut::new(len) });
    }

    /// Reads bytes of the log.
    pub(crate) fn read_log(&mut self, key: u32, generation: u32, offset: u64, len: usize) {
        self.mount_submit(self.disks.log.id, key, generation, offset, len);
    }

    /// Reads bytes of home.
    pub(crate) fn read_home(&mut self, key: u32, generation: u32, offset: u64, len: usize) {
        self.mount_submit(self.disks.home.id, key, generation, offset, len);
    }

    pub(crate) fn mount_read(&mut self, token: Token, buf: IoBufMut, result: Result<(), DiskError>) {
        let State::Mounting(_) = &self.state else { panic!("a read of the log outside a mount") };
        let readable = result.is_ok();
        // Bytes that the medium does not give back count as damaged: the other copy of a superblock may be good, and peers
        // have the log. Another error tells nothing about the bytes.
        if let Err(source) = result
            && matches!(token.key, key::OPENING | key::SEGMENT | key::MOUNT_PLACE)
            && !source.is_of_medium()
        {
            return self.read_again(token, buf.len(), source);
        }
        let State::Mounting(mount) = &mut self.state else { unreachable!("see above") };
        match (&mut **mount, token.key) {
            (Mount::Superblocks { copies, again }, key::SUPERBLOCK) => {
                let nth = token.generation as usize;
                copies[nth / 2][nth % 2] = Some(buf);
                if let Some(pairs) = whole_pairs(copies) {
                    let chosen: Vec<_> = pairs.iter().map(|(first, last)| Superblock::choose(first, last)).collect();
                    if chosen.iter().any(Result::is_err) && !*again {
                        return self.read_superblocks(true);
                    }
                    // The bad copy of a superblock is rewritten from the other one.
                    let bad = pairs.iter().map(|(first, last)| one_is_bad(first, last));
                    let bad: Vec<(DiskId, u64, IoBuf)> = (self.disks.each().iter().zip(bad))
                        .filter_map(|((disk, _), bad)| {
                            let (nth, bytes) = bad?;
                            Some((disk.id, Superblock::offsets(disk.size_bytes)[nth], bytes))
                        })
                        .collect();
                    self.mount.bad_superblocks = bad;
                    self.superblocks_read(chosen);
                }
            }
            (Mount::Openings { left, openings, again }, key::OPENING) => {
                let log = self.log.as_ref().expect("made with the superblock");
                let offset = log.ring.offset_of(token.generation);
                let opening = &mut openings[token.generation as usize];
                *opening = BatchHeader::decode(&buf, &log.identity, offset).filter(|_| readable);
                if *again && opening.is_some() {
                    tracing::warn!(
                        offset,
                        "transient read error in the log: the second read found the opening of a segment"
                    );
                }
                *left -= 1;
                if *left == 0 {
                    self.openings_read();
                }
            }
            (Mount::Openings { left, .. }, key::POISON) => {
                *left -= 1;
                let last = *left == 0;
                match self.check_mark(readable.then_some(&*buf)) {
                    Err(refusal) => self.fail_mount(refusal),
                    Ok(()) if last => self.openings_read(),
                    Ok(()) => {}
                }
            }
            (Mount::Segments { .. }, key::SEGMENT) => self.segment_piece_read(buf, readable),
            (Mount::Places(_), key::MOUNT_PLACE) => self.place_read(token.generation, readable.then_some(buf)),
            (mount, key) => panic!("read {key} in {mount:?}"),
        }
    }

    /// Judges the superblocks, that of the log first.
    fn superblocks_read(&mut self, chosen: Vec<Result<Superblock, SuperblockError>>) {
        let (cluster, osd, uuid) = self.identity;
        let disks = self.disks.each();
        let judged = chosen.into_iter().zip(disks).map(|(chosen, (disk, part))| {
            let superblock = chosen?;
            superblock.belongs_to(cluster, osd, uuid)?;
            superblock.is_part(part)?;
            let fits = superblock.device_bytes <= disk.size_bytes;
            if fits { Ok(superblock) } else { Err(SuperblockError::Geometry) }
        });
        let superblocks: Vec<Superblock> = match judged.collect() {
            Ok(superblocks) => superblocks,
            Err(reason) => return self.fail_mount(SuperblockError::into(reason)),
        };
        let (of_log, of_home) = (superblocks[0], superblocks[superblocks.len() - 1]);
        let log = Log::new(&of_log, self.disks.log.align_bytes);
        let region = HomeRegion { start: of_home.home_start, len_bytes: of_home.home_bytes };
        let ops_max = if self.config.hdd_home { HDD_OPS_MAX } else { self.config.steps.home_ops_max };
        let limits = HomeLimits {
            reuse_at_once: self.config.reuse_at_once,
            background_ops_max: ops_max.min(self.config.steps.home_ops_max),
            elevator: self.config.hdd_home,
            io_bytes_max: self.config.steps.home_io_bytes_max,
            step_blocks: self.config.steps.round_blocks as u32,
            ..HomeLimits::default()
        };
        self.home = Some(Home::new(self.disks.home.clone(), region, HomeTokens { owner: self.config.owner }, limits));
        let count = log.ring.count();
        for slot in 0..count as u32 {
            self.read_log(key::OPENING, slot, log.ring.offset_of(slot), BATCH_ALIGN);
        }
        self.read_log(key::POISON, 0, POISON_AT, POISON_LEN);
        let mut left = count + 1;
        if self.disks.are_apart() {
            self.read_home(key::POISON, 1, POISON_AT, POISON_LEN);
            left += 1;
        }
        self.log = Some(log);
        let openings = vec![None; count];
        self.state = State::Mounting(Box::new(Mount::Openings { left, openings, again: false }));
    }

    fn openings_read(&mut self) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Openings { openings, left, again } = &mut **mount else { unreachable!("the caller saw it") };
        // Batches that are absent decide where a log ends: one read is not enough to call them absent.
        if !std::mem::replace(again, true) {
            let absent: Vec<u32> = (0..).zip(&*openings).filter(|(_, o)| o.is_none()).map(|(slot, _)| slot).collect();
            *left = absent.len();
            let log = self.log.as_ref().expect("made with the superblock");
            let offsets: Vec<u64> = absent.iter().map(|slot| log.ring.offset_of(*slot)).collect();
            for (slot, offset) in absent.iter().zip(offsets) {
                self.read_log(key::OPENING, *slot, offset, BATCH_ALIGN);
            }
            if !absent.is_empty() {
                return;
            }
        }
        let State::Mounting(mount) = &self.state else { unreachable!("the caller saw it") };
        let Mount::Openings { openings, .. } = &**mount else { unreachable!("the caller saw it") };
        // Formatting wrote the first batch, so a log without any opening is a damaged one.
        let candidates = match candidates(openings) {
            None if on(Bug::OldLifeReborn) => Vec::new(),
            None => all_candidates(openings.len()),
            Some(candidates) => candidates,
        };
        let log = self.log.as_ref().expect("made with the superblock");
        let tail_seq = openings.iter().flatten().max_by_key(|h| h.seq).map_or(0, |h| h.tail_seq);
        let found = Box::new(Found::new(log.identity, (openings.len(), log.ring.segment_bytes()), tail_seq));
        let reading = SegmentRead::new(log.ring.segment_bytes() as usize);
        self.state = State::Mounting(Box::new(Mount::Segments { candidates, next: 0, found, first: None, reading }));
        self.read_next_segment();
    }

    /// Repeats a read of the log, or gives up the mount: nothing was written, so the next start loses nothing.
    fn read_again(&mut self, token: Token, len: usize, source: DiskError) {
        self.mount.retries += 1;
        if self.mount.retries > RETRIES_MAX {
            return self.fail_mount(MountError::Disk { during: "reading the log", source });
        }
        let log = self.log.as_ref().expect("made with the superblock");
        let offset = match &self.state {
            State::Mounting(mount) => match &**mount {
                Mount::Segments { candidates, next, reading, .. } => {
                    let piece = reading.next().expect("a piece is being read");
                    log.ring.offset_of(candidates[*next].slot) + piece.start as u64
                }
                Mount::Places(placing) => placing.reads.place(token.generation).0,
                _ => log.ring.offset_of(token.generation),
            },
            _ => unreachable!("the caller saw a mount"),
        };
        match token.key {
            key::MOUNT_PLACE => self.read_home(token.key, token.generation, offset, len),
            _ => self.read_log(token.key, token.generation, offset, len),
        }
    }

    fn segment_piece_read(&mut self, buf: IoBufMut, readable: bool) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Segments { candidates, next, reading, .. } = &mut **mount else { unreachable!("see above") };
        let log = self.log.as_ref().expect("made with the superblock");
        let base = log.ring.offset_of(candidates[*next].slot);
        reading.take(buf, readable);
        if reading.has_failed() {
            let source = DiskError::Io(5);
            return self.fail_mount(MountError::Disk { during: "reading the log", source });
        }
        if let Some(piece) = reading.next() {
            return self.read_log(key::SEGMENT, 0, base + piece.start as u64, piece.len());
        }
        let done = std::mem::replace(reading, SegmentRead::new(log.ring.segment_bytes() as usize));
        self.segment_read(base, done.finish());
    }

    /// Scans a segment. An incomplete one is read a second time, before mount drops its tail or calls it damaged.
    fn segment_read(&mut self, base: u64, bytes: SegmentBytes) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Segments { candidates, next, found, first, .. } = &mut **mount else { unreachable!("see above") };
        let candidate = candidates[*next];
        let look = match first.take() {
            None => {
                let look = found.look(candidate, base, std::slice::from_ref(&bytes));
                if !look.is_complete(candidates.get(*next + 1)) {
                    *first = Some(bytes);
                    return self.read_next_segment();
                }
                look
            }
            Some(before) => {
                let bad = bytes.unreadable.intersection(&before.unreadable).count();
                if bad > 0 {
                    tracing::warn!(
                        offset = base,
                        pages = bad,
                        "pages of a log segment cannot be read: they count as damaged"
                    );
                }
                let once = found.look(candidate, base, std::slice::from_ref(&before));
                let both = found.look(candidate, base, &[before, bytes]);
                if Found::differ(&once, &both) {
                    tracing::warn!(
                        offset = base,
                        "transient read error in the log: the second read found batches of a segment"
                    );
                }
                both
            }
        };
        *next += 1;
        found.take(look, candidates.get(*next));
        self.read_next_segment();
    }

    fn read_next_segment(&mut self) {
        let State::Mounting(mount) = &mut self.state else { unreachable!("the caller saw it") };
        let Mount::Segments { candidates, next, found, .. } = &mut **mount else { unreachable!("see above") };
        let log = self.log.as_ref().expect("made with the superblock");
        if let Some(last) = candidates.last().copied().filter(|_| *next == candidates.len()) {
            let slot = (last.slot + 1) % log.ring.count() as u32;
            // A slot that was read as part of the tail may hold the end: both look alike without their openings.
            let was_read = candidates.iter().any(|known| known.slot == slot && known.end_seq == u64::MAX);
            if found.may_go_on(last) && !was_read {
                candidates.push(Candidate::without_opening(slot));
            }
        }
        if let Some(candidate) = candidates.get(*next).copied() {
            let (offset, len) = (log.ring.offset_of(candidate.slot), log.ring.segment_bytes() as usize);
            return self.read_log(key::SEGMENT, 0, offset, len);
        }
        let State::Mounting(mount) = std::mem::replace(&mut self.state, State::New) else { unreachable!("see above") };
        let Mount::Segments { found, .. } = *mount else { unreachable!("see above") };
        self.read_places(found);
    }

    /// Goes on with the log as it was judged.
    pub(crate) fn log_found(&mut self, verdict: Verdict) {
        if verdict.batches.is_empty() && !on(Bug::OldLifeReborn) {
            return self.fail_mount(MountError::LogLost);
        }
        if let Some(torn) = verdict.torn {
            tracing::info!(batch = torn, "a torn batch at the end of the log is dropped");
        }
        for batch in verdict.batches.iter().filter(|batch| batch.copied) {
            let (seq, offset) = (batch.header.seq, batch.header.offset);
            tracing::warn!(
                seq,
                offset,
                "the header of a log batch is damaged: its records are those of the next one's copy"
            );
        }
        // The bytes read may be in a volatile cache only, and their flush may have failed in an earlier life. They must
        // not vanish after this mount relied on them, so they are rewritten in place: the next flush covers them.
        let mut unsure = verdict.unsure();
        if !unsure.is_empty() && on(Bug::TailNotRewritten) {
            unsure.clear();
        }
        let log = self.log.as_ref().expect("made with the superblock");
        let mut replay = Box::new(Replay::new(verdict, log.ring.count() as u32, |slot| log.ring.offset_of(slot)));
        if self.config.after_restore {
            replay.restored();
        }
        let mut left = unsure.len();
        for (nth, (offset, bytes)) in unsure.into_iter().enumerate() {
            let token = self.token(key::MOUNT_REWRITE, nth as u32);
            self.stats.device_written_bytes += bytes.len() as u64;
            self.ops.push(Op::DiskWrite { token, disk: self.disks.log.id, offset, bufs: vec![bytes], flush: false });
        }
        if self.config.after_poison {
            self.erase_mark();
            left += self.disks.each().len();
        }
        for (disk, offset, bytes) in std::mem::take(&mut self.mount.bad_superblocks) {
            tracing::warn!(offset, "a copy of the superblock is damaged: it is rewritten from the other one");
            let token = self.token(key::MOUNT_REWRITE, u32::MAX - 1);
            self.ops.push(Op::DiskWrite { token, disk, offset, bufs: vec![bytes], flush: false });
            left += 1;
        }
        if left == 0 {
            return self.flush_mount(replay);
        }
        self.state = State::Mounting(Box::new(Mount::Rewrite { replay, left }));
    }

    pub(crate) fn mount_rewritten(&mut self, result: Result<(), DiskError>) {
        if let Err(source) = result {
            return self.fail_mount(MountError::Disk { during: "writing the end of the log again", source });
        }
        let State::Mounting(mount) = &mut self.state else { panic!("a write of the mount outside a mount") };
        let Mount::Rewrite { left, .. } = &mut **mount else { panic!("a rewritten batch in {mount:?}") };
        *left -= 1;
        if *left == 0 {
            let replay = self.take_replay();
            self.flush_mount(replay);
        }
    }

    fn flush_mount(&mut self, replay: Box<Replay>) {
        let token = self.token(key::MOUNT_FLUSH, 0);
        let disks: Vec<DiskId> = self.disks.each().into_iter().map(|(disk, _)| disk.id).collect();
        let left = disks.len();
        self.stats.flushes += left as u64;
        self.ops.extend(disks.into_iter().map(|disk| Op::DiskFlush { token, disk }));
        self.state = State::Mounting(Box::new(Mount::Flush { replay, left }));
    }

    fn take_replay(&mut self) -> Box<Replay> {
        match std::mem::replace(&mut self.state, State::New) {
            State::Mounting(mount) => match *mount {
                Mount::Rewrite { replay, .. }
                | Mount::Flush { replay, .. }
                | Mount::Record { replay }
                | Mount::Home { replay } => replay,
                other => panic!("no replay yet in {other:?}"),
            },
            other => panic!("no mount in {other:?}"),
        }
    }

    pub(crate) fn mount_flushed(&mut self, result: Result<(), DiskError>) {
        if let Err(source) = result {
            return self.fail_mount(MountError::Disk { during: "flushing before the mount", source });
        }
        let State::Mounting(mount) = &mut self.state else { panic!("a flush of the mount outside a mount") };
        let Mount::Flush { left, .. } = &mut **mount else { panic!("a flush in {mount:?}") };
        *left -= 1;
        if *left > 0 {
            return;
        }
        let mut replay = self.take_replay();
        let log = self.log.as_mut().expect("made with the superblock");
        log.ring.restore(std::mem::take(&mut replay.segments), replay.head, replay.air);
        log.mount = replay.last_mount.max(self.config.mount_above) + 1;
        log.next_seq = replay.last_seq + 1;
        log.previous = replay.previous.take();
        (log.durable_seq, log.found) = (replay.last_seq, replay.last_seq);
        log.checkpoint_id = replay.checkpoint.id;
        log.checkpoint_segment = replay.checkpoint.segment;
        self.ids.creates_lost = replay.creates_lost();
        if let Some(reason) = replay.store_damage() {
            tracing::error!(%reason, "every replica of this store has failed");
        }
        self.ids.lost_records.clone_from(&replay.hole);
        if let Some(reason) = &replay.hole {
            tracing::error!(%reason, creates = self.ids.creates_lost > ReplicaId(0), "records of the log are lost");
        }
        if replay.closed {
            log.ring.close_newest();
        }
        self.ids.tombstones = std::mem::take(&mut replay.tombstones);
        self.removed.destroyed = self.ids.tombstones.clone();
        self.ids.floor = replay.floor;
        self.map = std::mem::take(&mut replay.map);
        // The mount record may open a segment, whose state block names these replicas.
        self.replicas = replay.provisional().into();
        self.state = State::Mounting(Box::new(Mount::Record { replay }));
        self.queue(Work::Mount);
        self.start_batch();
        if self.log.as_ref().is_none_or(|log| log.in_flight.is_none()) {
            self.fail_mount(MountError::LogFull);
        }
    }

    pub(crate) fn mount_recorded(&mut self) {
        pass(Point::MountRecorded);
        self.replicas = Replicas::default();
        let mut replay = self.take_replay();
        let checkpoint = replay.checkpoint.parts.take();
        self.state = State::Mounting(Box::new(Mount::Home { replay }));
        let home = self.home.as_mut().expect("made with the superblock");
        let mut events = Vec::new();
        home.start_mount(self.now, checkpoint, &mut self.ops, &mut events);
        self.home_events(events);
    }

    pub(crate) fn home_mounted(&mut self, states: Vec<RoundState>, damaged: Vec<LostHome>) {
        let mut replay = self.take_replay();
        let mut at_home: BTreeSet<ReplicaId> = states.iter().map(|state| state.decision.replica).collect();
        at_home.extend(damaged.iter().map(|lost| lost.replica));
        let lost: Vec<ReplicaId> = damaged.iter().map(|lost| lost.replica).collect();
        self.stats.lost_homes += lost.len() as u64;
        damaged.into_iter().for_each(|lost| replay.home_lost(lost));
        let home = self.home.as_mut().expect("made with the superblock");
        let mut claim = |replica, runs: &[PlacedRun]| on(Bug::PlaceNotClaimed) || home.claim_placed(replica, runs);
        let (replicas, recovered, untold) = replay.finish(states, &mut claim);
        let known = |id: &ReplicaId| replicas.contains_key(id) || self.ids.tombstones.contains(id);
        // Below the floor the log names every live replica, unless it has lost create records.
        let is_gone = |id: &ReplicaId| *id < self.ids.floor && !self.may_have_been_here(*id);
        let unnamed = at_home.into_iter().filter(|id| !known(id));
        let (gone, nameless): (BTreeSet<_>, BTreeSet<_>) = unnamed.partition(is_gone);
        self.removed.destroyed.extend(gone);
        self.ids.nameless = nameless;
        self.replicas = replicas.into();
        let whole = recovered.iter().filter(|found| found.failure.is_none());
        self.stats.lost_payloads = whole.map(|found| found.lost.len() as u64).sum();
        self.tell(untold);
        // No later checkpoint names what is left of these at home. The records of their failures precede each of them.
        let home = self.home.as_mut().expect("a running engine has a home");
        lost.into_iter().for_each(|replica| home.empty(replica));
        self.destage.mounted(self.now, self.find_dirty());
        let ids: Vec<ReplicaId> = self.replicas.keys().copied().collect();
        ids.iter().for_each(|id| self.judge_all_space(*id));
        ids.into_iter().for_each(|id| self.note_heirs(id));
        self.state = State::Running;
        self.find_freeable();
        self.events.push(EngineEvent::Mounted(recovered));
    }

    /// Queues the records of the losses that this mount has found. They precede all other new records of the replicas,
    /// and the log segments that show the losses stay until they are durable.
    fn tell(&mut self, untold: Vec<Untold>) {
        for Untold { replica, last } in untold.into_iter().filter(|_| !on(Bug::FailureNotLogged)) {
            let reason = self.failure(replica).map(|failure| failure.reason);
            tracing::error!(
                replica = replica.0,
                reason,
                "a replica has failed: it may lack acknowledged entries or data"
            );
            self.queue(Work::Failed { replica, last, replaces: false });
        }
        if self.ids.creates_lost == ANY_REPLICA {
            self.queue(Work::CreatesLost);
        }
    }
}

/// Returns the copies of all superblocks, when all are read.
fn whole_pairs(copies: &[[Option<IoBufMut>; 2]]) -> Option<Vec<(&IoBufMut, &IoBufMut)>> {
    copies.iter().map(|[first, last]| Some((first.as_ref()?, last.as_ref()?))).collect()
}

/// Returns the number of the bad copy of a superblock, if one of two is bad, and the bytes of the other.
fn one_is_bad(first: &[u8], last: &[u8]) -> Option<(usize, IoBuf)> {
    let is_bad = |copy| matches!(Superblock::decode(copy), Err(SuperblockError::Damaged | SuperblockError::Absent));
    match (Superblock::decode(first).is_ok(), Superblock::decode(last).is_ok()) {
        (true, false) if is_bad(last) => Some((1, IoBuf::copy_of(&first[..SUPERBLOCK_LEN]))),
        (false, true) if is_bad(first) => Some((0, IoBuf::copy_of(&last[..SUPERBLOCK_LEN]))),
        _ => None,
    }
}
