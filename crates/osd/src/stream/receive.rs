//! The follower's OSD: accepts a stream, compares older contents, stages the pieces, pauses the group and has the engine
//! install the contents.

use super::BaseRead;
use super::compare;
use super::receiver::{Contents, Receiver, Step, Wrong, aus};
use crate::node::{Osd, ReadOwner};
use crate::pgs::State;
use bus::LinkId;
use engine::{ReadData, ReadError};
use types::failpoint::{Point, pass};
use types::store::{DecisionState, Recovered};
use types::units::{BLOCKS_PER_AU, SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{AU, BLOCK, ChunkKey, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange};
use wire::{StreamAbort, StreamBody, StreamMsg};

impl Osd {
    /// Handles the opening of a stream. The sender's claim is enough: its applied state is committed, whether or
    /// not it still leads.
    pub(crate) fn stream_opens(&mut self, link: LinkId, from: OsdId, msg: &StreamMsg) {
        let refuse = |osd: &mut Osd, reason| {
            osd.send_stream(link, msg.pg, (msg.to, msg.from), msg.stream, StreamBody::Abort(reason));
        };
        let Some(slot) = self.pgs.by_pg(msg.pg) else { return refuse(self, StreamAbort::Busy) };
        let ours = self.pgs.get(slot).identity.replica == msg.to;
        let Some(group) = self.pgs.group(slot).filter(|g| ours && g.is_member_on(from, msg.from)) else {
            return refuse(self, StreamAbort::Busy);
        };
        // The leader takes this commit index for an acknowledgement.
        let (term, commit, leads) = (group.term(), group.durable_commit(), group.is_leader());
        if self.streams.receivers.get(&msg.pg).is_some_and(|r| r.installing) || leads {
            return refuse(self, StreamAbort::Busy);
        }
        self.drop_receiver(msg.pg, StreamAbort::Failed, true);
        if self.streams.receivers.len() >= self.streams.tuning.receivers_max {
            return refuse(self, StreamAbort::Busy);
        }
        let mut receiver = Receiver::new(msg.stream, msg.pg, (msg.to, slot), (from, msg.from, link), self.now);
        (receiver.serial, receiver.term) = (self.streams.next_token, term);
        self.streams.next_token += 1;
        receiver.base = self.engine.base_for(msg.to);
        let (compare, fills_from) = (receiver.base.is_some(), self.engine.fills_from(msg.to));
        self.streams.receivers.insert(msg.pg, receiver);
        let body = StreamBody::Accept { term, commit, compare, fills_from };
        self.send_stream(link, msg.pg, (msg.to, msg.from), msg.stream, body);
    }

    /// Ends a stream at the follower. `tell`: the leader does not know yet.
    pub(crate) fn drop_receiver(&mut self, pg: PgId, reason: StreamAbort, tell: bool) {
        let Some(gone) = self.streams.receivers.remove(&pg) else { return };
        if gone.installing {
            // Too late: the installation is one write away from being durable.
            self.streams.receivers.insert(pg, gone);
            return;
        }
        self.engine.unstage(gone.replica);
        if tell {
            let ids = (gone.replica, gone.leader);
            self.send_stream(gone.link, pg, ids, gone.id, StreamBody::Abort(reason));
        }
    }

    /// Handles a numbered message.
    pub(crate) fn stream_brings(&mut self, link: LinkId, from: OsdId, msg: StreamMsg) {
        let now = self.now;
        let Some(receiver) = self.streams.receivers.get_mut(&msg.pg) else { return };
        if (receiver.id, receiver.link, receiver.from) != (msg.stream, link, from) || receiver.installing {
            return; // The stream was given up.
        }
        match receiver.take(now, msg.body) {
            Ok(()) => self.step_pieces(msg.pg),
            Err(wrong) => {
                self.drop_receiver(msg.pg, StreamAbort::Failed, true);
                if let Wrong::Nonsense(_) = wrong {
                    tracing::warn!(%from, %wrong, "closing the connection of a peer that sent bad bytes");
                    self.bus.disconnect(link, &wrong.to_string());
                }
            }
        }
    }

    fn step_pieces(&mut self, pg: PgId) {
        while let Some(receiver) = self.streams.receivers.get_mut(&pg) {
            let (replica, serial) = (receiver.replica, receiver.serial);
            let engine = &mut self.engine;
            let Some(step) = receiver.next_step(|chunk, au| engine.keeps(replica, chunk, au)) else { return };
            match step {
                Step::Stage(piece) => {
                    aus(piece.range).for_each(|au| engine.unkeep(replica, piece.chunk, au));
                    let data = match piece.contents {
                        Contents::Bytes(payload, crcs) => Some((payload, crcs)),
                        _ => None,
                    };
                    self.stage_run((pg, serial, piece.seq), piece.chunk, piece.range, data);
                }
                Step::Compare { seq, chunk, range, digests } => {
                    self.read_base(BaseRead { pg, serial, seq, chunk, range, digests: Some(digests) });
                }
                Step::Release { seq, chunk, au } => {
                    self.read_base(BaseRead { pg, serial, seq, chunk, range: SectorRange::of_au(au), digests: None });
                }
            }
        }
    }

    fn receiver(&mut self, pg: PgId, serial: u64) -> Option<&mut Receiver> {
        self.streams.receivers.get_mut(&pg).filter(|r| r.serial == serial)
    }

    fn stage_run(
        &mut self,
        (pg, serial, seq): (PgId, u64, u64),
        chunk: ChunkKey,
        range: SectorRange,
        data: Option<(IoBuf, Vec<u32>)>,
    ) {
        let Some(replica) = self.receiver(pg, serial).map(|r| r.replica) else { return };
        let token = self.streams.next_token;
        self.streams.next_token += 1;
        self.streams.staging.insert(token, (pg, serial, seq));
        if !self.engine.stage(token, replica, chunk, range, data) {
            self.streams.staging.remove(&token);
            self.drop_receiver(pg, StreamAbort::Full, true);
        }
    }

    fn read_base(&mut self, read: BaseRead) {
        let Some(base) = self.receiver(read.pg, read.serial).and_then(|r| r.base) else {
            return self.drop_receiver(read.pg, StreamAbort::Failed, true);
        };
        let (chunk, range) = (read.chunk, read.range);
        let key = self.streams.base_reads.insert(read);
        let token = self.reads.insert(ReadOwner::Base(key)) as u64;
        self.engine.read_base(token, base, chunk, range, &mut self.engine_events);
    }

    /// Takes the older contents of a window that is compared, or of an AU that is kept no longer.
    pub(crate) fn base_read_done(&mut self, key: usize, result: Result<ReadData, ReadError>) {
        let Some(read) = self.streams.base_reads.try_remove(key) else { return };
        let Some(receiver) = self.receiver(read.pg, read.serial) else { return };
        let (replica, Some(base)) = (receiver.replica, receiver.base) else { return };
        let ours = match result {
            Ok(ReadData::Zeros) => None,
            Ok(ReadData::Bytes { crcs, payload }) => Some((payload, crcs)),
            Err(error) => {
                tracing::info!(pg = %read.pg, %error, "older contents cannot be read: the leader sends them");
                None
            }
        };
        let bytes = ours.as_ref().map(|(payload, _)| &**payload);
        let copy = match &read.digests {
            Some(theirs) => self.judge_window(&read, (replica, base), theirs, bytes),
            None => self.release_au(&read, (replica, base), bytes),
        };
        let Some(copy) = copy else { return self.drop_receiver(read.pg, StreamAbort::Failed, true) };
        let at = (read.pg, read.serial, read.seq);
        if let Some(receiver) = self.receiver(read.pg, read.serial) {
            receiver.takes(read.seq, copy.len());
        }
        let (payload, crcs) = ours.unwrap_or_default();
        for run in copy {
            let first = ((run.start - read.range.start) / SECTORS_PER_BLOCK) as usize;
            let blocks = first..first + (run.count / SECTORS_PER_BLOCK) as usize;
            let bytes = payload.slice(blocks.start * BLOCK as usize..blocks.end * BLOCK as usize);
            self.stage_run(at, read.chunk, run, Some((bytes, crcs[blocks].to_vec())));
        }
        self.piece_done(at);
    }

    /// Keeps an AU no longer, and returns its blocks, which are staged instead. `None`: they are not known to be those that
    /// were compared. The next stream compares again.
    fn release_au(
        &mut self,
        read: &BaseRead,
        (replica, base): (ReplicaId, ReplicaId),
        ours: Option<&[u8]>,
    ) -> Option<Vec<SectorRange>> {
        let au = read.range.start / SECTORS_PER_AU;
        let ours = ours.filter(|_| self.engine.release(replica, base, read.chunk, au))?;
        let mut copy = Vec::new();
        let blocks = ours.chunks(BLOCK as usize).zip((read.range.start..).step_by(SECTORS_PER_BLOCK as usize));
        blocks.filter(|(block, _)| compare::is_data(block)).for_each(|(_, at)| compare::push_block(&mut copy, at));
        Some(copy)
    }

    /// Compares a window: keeps equal AUs, reports to the leader which blocks it must send, and returns those to copy.
    /// `None`: the leader has sent digests of this window before.
    fn judge_window(
        &mut self,
        read: &BaseRead,
        (replica, base): (ReplicaId, ReplicaId),
        theirs: &[u8],
        ours: Option<&[u8]>,
    ) -> Option<Vec<SectorRange>> {
        let (stream, link, leader) = self.receiver(read.pg, read.serial).map(|r| (r.id, r.link, r.leader))?;
        if aus(read.range).any(|au| self.engine.keeps(replica, read.chunk, au)) {
            return None;
        }
        let ours = ours.map(|payload| compare::digests(stream, payload));
        let mut judged = compare::judge(read.range.start, theirs, ours.as_deref());
        let mut kept = 0;
        for au in std::mem::take(&mut judged.equal) {
            if self.engine.keep(replica, base, read.chunk, au) {
                kept += AU;
                continue;
            }
            let first = ((SectorRange::of_au(au).start - read.range.start) / SECTORS_PER_BLOCK) as usize;
            let blocks = (first..first + BLOCKS_PER_AU as usize).filter(|n| compare::has_data(theirs, *n));
            let at = |n: usize| read.range.start + n as u32 * SECTORS_PER_BLOCK;
            blocks.for_each(|n| compare::push_block(&mut judged.copy, at(n)));
        }
        self.receiver(read.pg, read.serial)?.kept_bytes += kept;
        let body = StreamBody::Wants { seq: read.seq, blocks: judged.wants };
        self.send_stream(link, read.pg, (replica, leader), stream, body);
        Some(judged.copy)
    }

    /// Notes that the engine has written a piece.
    pub(crate) fn piece_staged(&mut self, token: u64) {
        let Some(at) = self.streams.staging.remove(&token) else { return };
        pass(Point::PieceStaged);
        self.piece_done(at);
    }

    fn piece_done(&mut self, (pg, serial, seq): (PgId, u64, u64)) {
        let now = self.now;
        if let Some(receiver) = self.receiver(pg, serial) {
            receiver.done(now, seq);
            self.step_pieces(pg);
        }
    }

    /// Drops a stream whose staged space the engine needed for a destage round.
    pub(crate) fn stream_evicted(&mut self, replica: ReplicaId) {
        let pg = self.streams.receivers.values().find(|r| r.replica == replica).map(|r| r.pg);
        if let Some(pg) = pg {
            self.drop_receiver(pg, StreamAbort::Full, true);
        }
    }

    pub(super) fn step_receivers(&mut self) {
        for pg in self.streams.receivers.keys().copied().collect::<Vec<_>>() {
            let (now, install_max) = (self.now, self.streams.tuning.install_max);
            let receiver = self.streams.receivers.get_mut(&pg).expect("listed above");
            let (replica, slot, link) = (receiver.replica, receiver.slot, receiver.link);
            let ack = receiver.ack_due();
            let (ids, id) = ((replica, receiver.leader), receiver.id);
            let (late, installing) = (now >= receiver.heard_at + install_max, receiver.installing);
            let beginning = receiver.take_beginning();
            let whole = receiver.complete().filter(|_| !installing);
            let here = self.pgs.by_replica(replica) == Some(slot);
            let applied = match here.then(|| &self.pgs.get(slot).state) {
                Some(State::Running(group)) => Some(group.applied()),
                Some(State::Paused(_)) => Some(Index(0)),
                _ => None,
            };
            let Some(applied) = applied else {
                // The replica was destroyed or has failed: the engine has freed the staged pieces.
                self.streams.receivers.remove(&pg);
                self.engine.unstage(replica);
                continue;
            };
            if late && !installing {
                self.drop_receiver(pg, StreamAbort::Failed, true);
                continue;
            }
            if let Some(seq) = ack {
                self.send_stream(link, pg, ids, id, StreamBody::Ack { seq });
            }
            if let Some((index, term, bytes)) = beginning {
                self.begin_log(pg, DecisionState { replica, index, term, bytes });
            } else if let Some((index, term, bytes)) = whole {
                match bytes.is_empty() {
                    true if index <= applied => {
                        self.installs(pg);
                        self.engine.install(replica);
                    }
                    true => {}
                    false => self.install_at_once(pg, DecisionState { replica, index, term, bytes }),
                }
            }
        }
    }

    fn installs(&mut self, pg: PgId) {
        let receiver = self.streams.receivers.get_mut(&pg).expect("the caller saw it");
        receiver.installing = true;
        let (replica, kept_mib) = (receiver.replica.0, receiver.kept_bytes >> 20);
        tracing::info!(%pg, replica, kept_mib, "backfill received: installing it");
    }

    /// Returns whether a log here may begin at this state. If not, the stream ends.
    fn may_begin(&mut self, pg: PgId, decision: &DecisionState) -> bool {
        let receiver = &self.streams.receivers[&pg];
        let (slot, link, term) = (receiver.slot, receiver.link, receiver.term);
        // In a later term another leader may count on the log.
        let Some(group) = self.pgs.group(slot).filter(|group| !group.is_elected() && group.term() == term) else {
            self.drop_receiver(pg, StreamAbort::Busy, true);
            return false;
        };
        if !group.can_start_from(&decision.bytes) || decision.term.0 == 0 || decision.index.0 == 0 {
            self.drop_receiver(pg, StreamAbort::Failed, true);
            self.bus.disconnect(link, "a stream brought an invalid decision state");
            return false;
        }
        true
    }

    /// Installs contents that are exactly those at the index of this state, at which the log begins then.
    fn install_at_once(&mut self, pg: PgId, decision: DecisionState) {
        let slot = self.streams.receivers[&pg].slot;
        if !self.may_begin(pg, &decision) {
            return;
        }
        self.installs(pg);
        self.pgs.pause(slot);
        self.engine.install_as_of(decision);
    }

    /// Has the replica's log begin behind the index of this state. The group waits until that is durable.
    fn begin_log(&mut self, pg: PgId, decision: DecisionState) {
        let slot = self.streams.receivers[&pg].slot;
        if !self.may_begin(pg, &decision) {
            return;
        }
        self.pgs.pause(slot);
        self.engine.fill(decision);
    }

    /// Starts a new group for the replica: its log begins at another index, durably, and it counts from there on.
    pub(crate) fn log_begun(&mut self, recovered: Recovered) {
        let (pg, replica) = (recovered.identity.pg, recovered.identity.replica);
        let commit = recovered.checkpoint.index;
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        if !matches!(self.pgs.get(slot).state, State::Paused(_)) {
            return;
        }
        let fills = recovered.fills;
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        self.pgs.touch(slot);
        if !fills {
            return self.stream_installed(replica);
        }
        let Some(term) = self.pgs.group(slot).map(|group| group.term()) else { return };
        let now = self.now;
        if let Some(r) = self.streams.receivers.get_mut(&pg).filter(|r| r.replica == replica) {
            (r.term, _) = (term, r.has_begun(now));
            let (link, leader, id) = (r.link, r.leader, r.id);
            self.send_stream(link, pg, (replica, leader), id, StreamBody::Filling { term, commit });
            self.step_pieces(pg);
        }
    }

    /// Resumes the old group: its log cannot begin there.
    pub(crate) fn fill_refused(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        self.pgs.resume(slot);
        let pg = self.pgs.get(slot).identity.pg;
        if self.streams.receivers.get(&pg).is_some_and(|r| r.replica == replica) {
            self.drop_receiver(pg, StreamAbort::Busy, true);
        }
    }

    /// Notes that the replica has all contents, durably.
    pub(crate) fn stream_installed(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let pg = self.pgs.get(slot).identity.pg;
        let receiver = self.streams.receivers.get(&pg).filter(|r| r.replica == replica);
        let receiver = receiver.map(|r| (r.link, r.leader, r.id));
        let Some(group) = self.pgs.group(slot) else { return };
        group.contents_installed();
        let (term, commit) = (group.term(), group.durable_commit());
        self.pgs.touch(slot);
        tracing::info!(%pg, replica = replica.0, commit = commit.0, "backfill of this replica completed");
        if let Some((link, leader, id)) = receiver {
            self.streams.receivers.remove(&pg);
            self.send_stream(link, pg, (replica, leader), id, StreamBody::Done { term, commit });
        }
    }

    /// Gives up a stream that cannot be installed: there is no space, or kept contents have changed.
    pub(crate) fn install_refused(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let pg = self.pgs.get(slot).identity.pg;
        self.pgs.resume(slot);
        if let Some(receiver) = self.streams.receivers.get_mut(&pg).filter(|r| r.replica == replica) {
            receiver.installing = false;
            self.drop_receiver(pg, StreamAbort::Full, true);
        }
    }
}
