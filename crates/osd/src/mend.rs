//! Block repair (R15, ADR 0022): blocks of home that cannot be read are repaired with copies of the PG's other replicas.
//!
//! The loop passes in bad blocks that the engine has found, messages, and one step a turn. The replica queries one member
//! after the other. The engine judges the copy by the indexes that it bears; a copy that is ahead of the applied index
//! waits until that index has come. Reads of clients that met a bad block wait for it, then the PG is handed over.
//!
//! Invariant: all that waits has limits and deadlines. A block that is bad on every member, or on every member that is
//! up, is named, never guessed. A replica fails (ADR 0023) only when its bad block keeps a full log from being freed.

use crate::node::{GroupRead, Osd, ReadOwner};
use crate::pgs::State;
use bus::LinkId;
use engine::{BlockCopy, MendRefusal, ReadData, ReadError};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::{LOST_REPORTED_MAX, LostExtent};
use types::limits::PART_MAX;
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, Errno, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Time, crc32c};
use wire::{MendBody, MendMsg, Message};

/// Bad blocks of one OSD that are under repair. More are forgotten, and found again by the next read of them.
const BLOCKS_MAX: usize = 4096;
/// Queries on their way at once, with the copies that wait.
const ASKED_MAX: usize = 32;
/// Reads at once, for peers and once more here.
const READINGS_MAX: usize = 64;
/// Blocks that are read together when the first bad one of them is found: an aligned part of a chunk.
const WINDOW_BLOCKS: u16 = (PART_MAX / BLOCK) as u16;
/// Pause after an answer that brings nothing: doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A query without an answer, or with a copy that cannot be taken yet, goes to the next member after this long.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How long a client's read waits for its block before the PG is handed over.
const READ_WAIT: Duration = Duration::from_millis(500);
/// How long a client's read waits for its block in all.
const READ_MAX: Duration = Duration::from_secs(30);
/// After this long with a full log, the replica whose bad block keeps it full fails.
const FULL_MAX: Duration = Duration::from_secs(5);
/// Members behind the first one of the PG wait so much longer, each: of several with a full log the first fails
/// alone, and the others hear that it has no part.
const TURN: Duration = Duration::from_secs(2);

type BlockKey = (ReplicaId, ChunkKey, u16);

/// A bad block of a local replica.
struct Bad {
    reason: String,
    /// Time since when all members are up and take part, or have reported their copies as bad.
    since: Time,
    next_at: Time,
    tries: u32,
    asked: Option<Asked>,
    /// Members whose copy is bad, too.
    lost_on: BTreeSet<OsdId>,
    /// Members that have no part in the PG, by their last answers.
    idle: BTreeSet<OsdId>,
    named: Named,
}

/// What is said of a bad block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// A member may have a good copy.
    No,
    /// It is bad on every member that is up and has a part in the PG; another may have it.
    Here,
    /// It is bad on every member.
    Everywhere,
}

impl Bad {
    /// Whether no member has a good copy.
    fn is_lost(&self) -> bool {
        self.named == Named::Everywhere
    }
}

struct Asked {
    id: u64,
    osd: OsdId,
    /// The member's copy, which holds entries that are not applied here yet.
    copy: Option<BlockCopy>,
}

/// A client's read that met a bad block.
struct Held {
    read: GroupRead,
    chunk: ChunkKey,
    range: SectorRange,
    since: Time,
    until: Time,
}

/// A read of a bad block once more here, or a read for a peer.
enum Reading {
    Again(BlockKey),
    For(Answer),
    /// A read of which the result is not wanted any more.
    Ended,
}

/// A block that is read for a peer.
struct Answer {
    link: LinkId,
    question: MendMsg,
    /// Index that was applied when the read began.
    low: Index,
}

/// All mends of one OSD.
#[derive(Default)]
pub(crate) struct Mends {
    bad: BTreeMap<BlockKey, Bad>,
    held: Vec<Held>,
    readings: Slab<Reading>,
    next_id: u64,
    /// Time since when the log holds proposals back.
    full_since: Option<Time>,
}

impl Mends {
    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.bad.clear();
        self.held.clear();
        self.readings.clear();
    }

    /// The members of this replica's PG have changed: what was asked of the earlier ones does not count.
    pub fn ask_again(&mut self, replica: ReplicaId) {
        let first = (replica, ChunkKey { volume: types::VolumeId(0), index: 0 }, 0);
        for (_, bad) in self.bad.range_mut(first..).take_while(|((id, ..), _)| *id == replica) {
            (bad.asked, bad.next_at) = (None, Time::ZERO);
        }
    }

    /// The earlier group of this replica has ended. The reads that it held are dropped. Reads for peers get no answer: they
    /// began at an index of the earlier contents.
    pub fn detach(&mut self, replica: ReplicaId) {
        self.held.retain(|held| held.read.replica != replica);
        for (_, reading) in &mut self.readings {
            if matches!(reading, Reading::For(answer) if answer.question.to == replica) {
                *reading = Reading::Ended;
            }
        }
    }

    /// Makes this OSD too busy to read blocks for peers.
    #[cfg(test)]
    pub fn busy(&mut self) {
        (0..READINGS_MAX).for_each(|_| _ = self.readings.insert(Reading::Ended));
    }

    /// Returns the blocks of this replica that are named so, as far as a report lists them.
    pub fn named(&self, replica: ReplicaId, named: Named) -> Vec<LostExtent> {
        let all = self.bad.iter().filter(|((id, ..), bad)| *id == replica && bad.named == named);
        all.take(LOST_REPORTED_MAX).map(|((_, chunk, block), _)| extent(*chunk, *block)).collect()
    }

    pub fn bad_count(&self) -> u64 {
        self.bad.len() as u64
    }

    pub fn next_deadline(&self) -> Time {
        let bad = self.bad.values().map(|b| b.next_at);
        bad.chain(self.held.iter().map(|h| h.until)).min().unwrap_or(Time::NEVER)
    }
}

/// Whether a PG of which `idle` members have no part goes on when one more fails: the others are a majority. A PG of two goes
/// on from the other one, by a forced recovery without loss.
fn can_lack_one_more(members: usize, idle: usize) -> bool {
    idle == 0 || members - 1 - idle > members / 2
}

fn extent(chunk: ChunkKey, block: u16) -> LostExtent {
    let len_bytes = BLOCK as u32;
    LostExtent { chunk, offset_bytes: u32::from(block) * len_bytes, len_bytes }
}

fn blocks_of(range: SectorRange) -> std::ops::Range<u16> {
    (range.start / SECTORS_PER_BLOCK) as u16..range.end().div_ceil(SECTORS_PER_BLOCK) as u16
}

impl Osd {
    /// Blocks of local replicas that cannot be read now: the PG, the chunk, the block's number in it, and whether
    /// no member of the PG can read it.
    pub fn bad_blocks(&self) -> Vec<(PgId, ChunkKey, u16, bool)> {
        let pg_of = |replica| self.pgs.by_replica(replica).map(|key| self.pgs.get(key).identity.pg);
        let bad = self.mends.bad.iter();
        bad.filter_map(|((replica, chunk, block), b)| Some((pg_of(*replica)?, *chunk, *block, b.is_lost()))).collect()
    }

    /// The engine cannot read these blocks of home.
    pub(crate) fn blocks_are_bad(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        reason: String,
        needed: bool,
    ) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        // The only member keeps its other blocks: this one is lost until a write covers it.
        let is_alone = self.peers_of(slot).is_empty();
        if is_alone && !needed {
            return;
        }
        for block in blocks_of(range) {
            let key = (replica, chunk, block);
            if self.mends.bad.contains_key(&key) {
                continue;
            }
            if !self.has_room_for_bad() {
                self.engine.forget_bad(replica, chunk, block);
                continue;
            }
            tracing::warn!(replica = replica.0, %chunk, block, reason, is_alone,
                "a block is damaged: fetching it from the other replicas, if there are any");
            let (lost_on, idle) = (BTreeSet::new(), BTreeSet::new());
            let named = if is_alone { Named::Everywhere } else { Named::No };
            let (since, reason) = (self.now, reason.clone());
            let bad = Bad { reason, since, next_at: since, tries: 0, asked: None, lost_on, idle, named };
            self.mends.bad.insert(key, bad);
        }
    }

    /// Makes room for one more bad block. A block that delays no destage round is forgotten first: the next read finds it.
    fn has_room_for_bad(&mut self) -> bool {
        if self.mends.bad.len() < BLOCKS_MAX {
            return true;
        }
        let idle = |(replica, chunk, block): &&BlockKey| !self.engine.delays_destage(*replica, *chunk, *block);
        let Some(key) = self.mends.bad.keys().find(idle).copied() else { return false };
        self.forget_bad(key);
        true
    }

    fn forget_bad(&mut self, key: BlockKey) {
        self.engine.forget_bad(key.0, key.1, key.2);
        self.mends.bad.remove(&key);
    }

    fn peers_of(&self, slot: usize) -> Vec<OsdId> {
        self.pgs.get(slot).others().map(|m| m.osd).filter(|osd| *osd != self.config.osd).collect()
    }

    /// A client's read met a bad block: it waits for it, or fails when no member has a good copy.
    pub(crate) fn hold_read(&mut self, read: GroupRead, chunk: ChunkKey, range: SectorRange) {
        let lost = |key: &BlockKey| self.mends.bad.get(key).map(Bad::is_lost);
        let states: Vec<Option<bool>> = blocks_of(range).map(|b| lost(&(read.replica, chunk, b))).collect();
        // None is under repair: there is no member to query.
        let lost = states.contains(&Some(true));
        if lost || states.iter().all(Option::is_none) {
            return self.fail_read((read, chunk, range), lost);
        }
        let (since, until) = (self.now, self.now + READ_WAIT);
        self.mends.held.push(Held { read, chunk, range, since, until });
    }

    /// The PG goes to a member whose copy of these blocks may be good, if there is one.
    fn hand_over_unread(&mut self, read: &GroupRead, chunk: ChunkKey, range: SectorRange) {
        let bad = |b: u16| self.mends.bad.get(&(read.replica, chunk, b));
        let may_have_it = |osd: OsdId| !blocks_of(range).filter_map(bad).any(|bad| bad.lost_on.contains(&osd));
        let Some(to) = self.successor_among(read.slot, may_have_it) else { return };
        self.with_slot(read.slot, true, |group, now, actions| {
            if group.may_hand_over() {
                group.handle_transfer(now, to, actions);
            }
        });
    }

    /// `lost`: no other member can answer it either.
    fn fail_read(&mut self, (read, chunk, range): (GroupRead, ChunkKey, SectorRange), lost: bool) {
        if self.pgs.by_replica(read.replica) == Some(read.slot) {
            if !lost {
                self.hand_over_unread(&read, chunk, range);
            }
            self.with_slot(read.slot, true, |group, now, actions| {
                group.handle_read_done(now, read.read, Err(Errno::Damaged), actions);
            });
        }
    }

    /// One step of every repair that is due.
    pub(crate) fn step_mends(&mut self) {
        if self.mends.bad.is_empty() && self.mends.held.is_empty() {
            return;
        }
        let now = self.now;
        let pressure = self.engine.pressure();
        let full = pressure.log.max(pressure.overlay) >= 1.0;
        self.mends.full_since = full.then(|| self.mends.full_since.unwrap_or(now));
        let waits = |b: &Bad| b.asked.as_ref().is_some_and(|asked| asked.copy.is_some());
        let waiting: Vec<BlockKey> = self.mends.bad.iter().filter(|(_, b)| waits(b)).map(|(k, _)| *k).collect();
        waiting.into_iter().for_each(|key| self.take_copy(key));
        let mut asked = self.mends.bad.values().filter(|b| b.asked.is_some()).count();
        let due: Vec<BlockKey> = self.mends.bad.iter().filter(|(_, b)| b.next_at <= now).map(|(k, _)| *k).collect();
        for key in due {
            let bad = self.mends.bad.get_mut(&key).expect("it was just listed");
            asked -= usize::from(bad.asked.take().is_some());
            if asked >= ASKED_MAX {
                bad.next_at = now + PAUSE_MIN;
                continue;
            }
            self.step_mend(key);
            asked += usize::from(self.mends.bad.get(&key).is_some_and(|b| b.asked.is_some()));
        }
        self.release_held();
    }

    /// Queries the next member, unless the block is needed no more or keeps a full log from being freed.
    fn step_mend(&mut self, key: BlockKey) {
        let (replica, chunk, block) = key;
        let slot = self.pgs.by_replica(replica);
        let running = slot.filter(|slot| matches!(self.pgs.get(*slot).state, State::Running(_)));
        let Some(slot) = running.filter(|_| self.engine.needs_mend(replica, chunk, block)) else {
            // Overwritten, truncated, streamed, or the replica takes no part any more.
            return self.forget_bad(key);
        };
        let identity = self.pgs.get(slot).identity.clone();
        if self.gives_up(key, slot) {
            return;
        }
        let peers = self.peers_of(slot);
        let is_alone = self.is_alone_in_window(key);
        let bad = self.mends.bad.get_mut(&key).expect("the caller found it");
        let turn = bad.tries as usize % (peers.len() + 1);
        bad.tries += 1;
        // A device may fail a read once, and a read may have gone astray: every round begins at home. The first bad block
        // has its neighbours read with it, since damage is rarely alone.
        let Some(osd) = turn.checked_sub(1).map(|nth| peers[nth]) else {
            bad.next_at = self.now + PAUSE_MIN;
            let blocks = if bad.tries == 1 && is_alone { WINDOW_BLOCKS } else { 1 };
            if self.mends.readings.len() < READINGS_MAX {
                self.read_blocks(replica, chunk, block / blocks * blocks, blocks, Reading::Again(key));
            }
            return;
        };
        bad.next_at = self.now + ANSWER_MAX;
        let to = self.pgs.get(slot).others().find(|m| m.osd == osd).expect("it is a member").replica;
        let Some(link) = self.bus.link_to(osd) else {
            bad.next_at = self.now + PAUSE_MIN;
            return;
        };
        self.mends.next_id += 1;
        let id = self.mends.next_id;
        bad.asked = Some(Asked { id, osd, copy: None });
        let (pg, body) = (identity.pg, MendBody::Ask);
        self.bus.send(link, Message::Mend(MendMsg { pg, from: replica, to, id, chunk, block, body }));
    }

    /// Whether no other block is known to be bad among those that are read with this one.
    fn is_alone_in_window(&self, (replica, chunk, block): BlockKey) -> bool {
        let first = block / WINDOW_BLOCKS * WINDOW_BLOCKS;
        let window = (replica, chunk, first)..=(replica, chunk, first + (WINDOW_BLOCKS - 1));
        self.mends.bad.range(window).count() == 1
    }

    /// Fails a replica whose bad block has kept the log full for too long, although no voter is missing: a full log stops
    /// every PG of the OSD. A block that is bad on all members fails none of them, since that would bring no copy. True when the
    /// replica has failed.
    fn gives_up(&mut self, key: BlockKey, slot: usize) -> bool {
        let (replica, chunk, block) = key;
        let voters = &self.pgs.get(slot).members.voters;
        let voters: Vec<OsdId> = voters.iter().filter(|m| m.replica != replica).map(|m| m.osd).collect();
        let all_here = voters.iter().all(|osd| self.bus.link_to(*osd).is_some());
        let bad = self.mends.bad.get_mut(&key).expect("the caller found it");
        let idle = voters.iter().filter(|osd| bad.idle.contains(osd)).count();
        if all_here && idle == 0 && bad.named == Named::Here {
            bad.named = Named::No;
        }
        let is_last = voters.is_empty() || !can_lack_one_more(voters.len() + 1, idle);
        if !all_here || bad.named != Named::No || is_last {
            // An absent member may have it: the others may be the last that serve, and none of them is given up.
            bad.since = self.now;
            return false;
        }
        let turn = self.pgs.get(slot).others().filter(|m| m.replica < replica).count() as u32;
        let full_since = self.mends.full_since.map(|since| since.max(bad.since));
        let too_long = full_since.is_some_and(|since| self.now >= since + FULL_MAX + TURN * turn);
        if !too_long || !self.engine.delays_destage(replica, chunk, block) {
            return false;
        }
        let reason = format!("the log was full because of a block that could not be repaired: {}", bad.reason);
        self.forget_bad(key);
        self.fail_replica(replica, reason);
        true
    }

    /// Reads whose blocks are whole again, and those that have waited enough.
    fn release_held(&mut self) {
        for held in std::mem::take(&mut self.mends.held) {
            let Held { read, chunk, range, since, until } = held;
            let replica = read.replica;
            let bad = || blocks_of(range).filter_map(|b| self.mends.bad.get(&(replica, chunk, b)));
            let (waits, lost) = (bad().next().is_some(), bad().any(Bad::is_lost));
            let ours = self.pgs.by_replica(replica) == Some(read.slot);
            // The read was refused when that leadership ended.
            if ours && !self.pgs.group(read.slot).is_some_and(|group| group.is_reading(read.read)) {
                continue;
            }
            if lost || !ours || self.now >= since + READ_MAX {
                self.fail_read((read, chunk, range), lost);
            } else if !waits {
                self.start_read(read.slot, read.read, chunk, range);
            } else if self.now >= until {
                // The next leader answers it. While no member can lead, it waits on.
                self.hand_over_unread(&read, chunk, range);
                let until = self.now + READ_WAIT;
                self.mends.held.push(Held { read, chunk, range, since, until });
            } else {
                self.mends.held.push(Held { read, chunk, range, since, until });
            }
        }
    }

    pub(crate) fn handle_mend(&mut self, link: LinkId, from: OsdId, msg: MendMsg) {
        match msg.body {
            MendBody::Ask => self.peer_asks(link, from, msg),
            MendBody::Block { .. } | MendBody::NotNow | MendBody::Damaged | MendBody::NoPart => {
                self.peer_answers(from, msg)
            }
        }
    }

    fn peer_asks(&mut self, link: LinkId, from: OsdId, question: MendMsg) {
        let slot = self.pgs.by_pg(question.pg).filter(|slot| {
            let slot = self.pgs.get(*slot);
            let id = &slot.identity;
            // A replica of an ended timeline may name indexes of other entries (ADR 0020).
            let of_now = slot.members.admits(question.from);
            let asks = of_now && slot.members.osd_of(question.from).is_none_or(|osd| osd == from);
            let ours = id.replica == question.to;
            asks && ours && matches!(slot.state, State::Running(_))
        });
        let low = slot.and_then(|_| self.engine.reads_as_of(question.to));
        let Some(low) = low.filter(|_| self.mends.readings.len() < READINGS_MAX) else {
            let has_part = slot.is_some_and(|slot| self.pgs.group(slot).is_some());
            let body = if has_part { MendBody::NotNow } else { MendBody::NoPart };
            return self.answer_mend(link, &question, body);
        };
        let (replica, chunk, block) = (question.to, question.chunk, question.block);
        self.read_blocks(replica, chunk, block, 1, Reading::For(Answer { link, question, low }));
    }

    fn read_blocks(&mut self, replica: ReplicaId, chunk: ChunkKey, first: u16, count: u16, reading: Reading) {
        let key = self.mends.readings.insert(reading);
        let range = SectorRange::new(u32::from(first) * SECTORS_PER_BLOCK, u32::from(count) * SECTORS_PER_BLOCK);
        self.read_for(ReadOwner::Block(key), replica, chunk, range);
    }

    pub(crate) fn mend_read_done(&mut self, key: usize, result: Result<ReadData, ReadError>) {
        match self.mends.readings.try_remove(key) {
            None | Some(Reading::Ended) => {}
            Some(Reading::For(answer)) => self.answer_read_done(answer, result),
            Some(Reading::Again(key)) if result.is_ok() => {
                let (replica, chunk, block) = key;
                tracing::info!(replica = replica.0, %chunk, block, "a bad block can be read again");
                self.forget_bad(key);
                self.release_held();
            }
            // A query of the next member is due anyway.
            Some(Reading::Again(_)) => {}
        }
    }

    /// A block was read for a peer. The read began at one applied index and may have been looked up at a later one.
    fn answer_read_done(&mut self, answer: Answer, result: Result<ReadData, ReadError>) {
        let Answer { link, question, low } = answer;
        let slot = self.pgs.by_replica(question.to).map(|slot| self.pgs.get(slot));
        let admitted = slot.is_some_and(|slot| slot.members.admits(question.from));
        let high = self.engine.reads_as_of(question.to).filter(|high| *high >= low && admitted);
        let body = match (result, high) {
            (Err(ReadError::BadBlocks { .. } | ReadError::Damaged { .. }), _) => MendBody::Damaged,
            (Err(_), _) | (Ok(_), None) => MendBody::NotNow,
            (Ok(ReadData::Zeros), Some(high)) => {
                let (crc, payload) = (crc32c(&IoBuf::zeros(BLOCK as usize)), IoBuf::EMPTY);
                MendBody::Block { low, high, crc, payload }
            }
            (Ok(ReadData::Bytes { crcs, payload }), Some(high)) => MendBody::Block { low, high, crc: crcs[0], payload },
        };
        self.answer_mend(link, &question, body);
    }

    fn answer_mend(&mut self, link: LinkId, q: &MendMsg, body: MendBody) {
        let (from, to) = (q.to, q.from);
        let answer = MendMsg { pg: q.pg, from, to, id: q.id, chunk: q.chunk, block: q.block, body };
        self.bus.send(link, Message::Mend(answer));
    }

    fn peer_answers(&mut self, from: OsdId, msg: MendMsg) {
        let key = (msg.to, msg.chunk, msg.block);
        let Some(bad) = self.mends.bad.get_mut(&key) else { return };
        let answers = |asked: &Asked| asked.id == msg.id && asked.osd == from && asked.copy.is_none();
        let Some(asked) = bad.asked.as_mut().filter(|asked| answers(asked)) else { return };
        match msg.body {
            MendBody::NoPart => _ = bad.idle.insert(from),
            _ => _ = bad.idle.remove(&from),
        }
        match msg.body {
            MendBody::Ask => unreachable!("the caller saw an answer"),
            MendBody::Block { low, high, crc, payload } => {
                let data = (!payload.is_empty()).then_some((payload, crc));
                // Its device failed once, or its copy was repaired since.
                if bad.lost_on.remove(&from) {
                    bad.named = Named::No;
                }
                asked.copy = Some(BlockCopy { low, high, data });
                self.take_copy(key);
            }
            MendBody::NotNow => self.pause(key),
            MendBody::NoPart => {
                self.pause(key);
                self.name_if_lost(key);
            }
            MendBody::Damaged => self.is_lost_on(key, from),
        }
        self.release_held();
    }

    /// Repairs the block with the copy that a member sent, if the engine takes it.
    fn take_copy(&mut self, key: BlockKey) {
        let (replica, chunk, block) = key;
        let Some(Asked { osd, copy: Some(copy), .. }) = self.mends.bad.get(&key).and_then(|bad| bad.asked.as_ref())
        else {
            return;
        };
        let osd = *osd;
        match self.engine.mend(replica, chunk, block, copy) {
            Ok(()) => {
                tracing::info!(replica = replica.0, %chunk, block, by = %osd, "a damaged block is repaired");
                self.metrics.blocks_mended.inc();
                self.mends.bad.remove(&key);
            }
            // It is taken when its entries are applied here, unless it is dropped before.
            Err(MendRefusal::Ahead) => {}
            Err(MendRefusal::NotNeeded) => self.forget_bad(key),
            Err(MendRefusal::Behind | MendRefusal::Bytes) => self.pause(key),
            Err(MendRefusal::Differs) => {
                tracing::error!(replica = replica.0, %chunk, block, by = %osd,
                    "the block differs from the copy of another replica at the same log index");
                self.is_lost_on(key, osd);
            }
        }
    }

    fn is_lost_on(&mut self, key: BlockKey, osd: OsdId) {
        if let Some(bad) = self.mends.bad.get_mut(&key) {
            bad.lost_on.insert(osd);
        }
        self.pause(key);
        self.name_if_lost(key);
    }

    /// The query of this block has ended, and the next one waits.
    fn pause(&mut self, key: BlockKey) {
        let now = self.now;
        if let Some(bad) = self.mends.bad.get_mut(&key) {
            bad.asked = None;
            bad.next_at = now + (PAUSE_MIN * (1 << bad.tries.min(6))).min(PAUSE_MAX);
        }
    }

    /// Names a block of which no member has a good copy, or none that is up. The queries go on, since a write of the whole
    /// block repairs it, too.
    fn name_if_lost(&mut self, key: BlockKey) {
        let Some(slot) = self.pgs.by_replica(key.0) else { return };
        let pg = self.pgs.get(slot).identity.pg;
        let peers = self.peers_of(slot);
        let Some(bad) = self.mends.bad.get_mut(&key) else { return };
        let others: Vec<OsdId> = peers.into_iter().filter(|osd| !bad.lost_on.contains(osd)).collect();
        let named = match &others[..] {
            [] => Named::Everywhere,
            others if others.iter().all(|osd| self.bus.link_to(*osd).is_none() || bad.idle.contains(osd)) => {
                Named::Here
            }
            _ => return,
        };
        if bad.named == named {
            return;
        }
        bad.named = named;
        let lost = extent(key.1, key.2);
        match named {
            Named::Here => {
                tracing::error!(%pg, %lost, away = ?others, "no replica that is up has a good copy of this block")
            }
            _ => tracing::error!(%pg, %lost, "inconsistent: no replica has a good copy of this block"),
        }
        self.meta.report_soon(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::can_lack_one_more;

    #[test]
    fn a_member_fails_beside_one_that_has_no_part_only_while_a_majority_is_left() {
        for (members, idle, can) in
            [(2, 0, true), (2, 1, false), (3, 0, true), (3, 1, false), (4, 1, false), (5, 1, true), (5, 2, false)]
        {
            assert_eq!(can_lack_one_more(members, idle), can, "{idle} of {members} have no part");
        }
    }
}
