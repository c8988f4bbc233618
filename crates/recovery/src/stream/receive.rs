//! The follower's side: accepts a stream, compares older contents, stages the pieces, pauses the group and has the engine
//! install the contents.

use super::compare;
use super::receiver::{Contents, Receiver, Step, Wrong, aus};
use super::send::LOG_WAIT_MAX;
use super::{BaseRead, Streams, message};
use crate::host::{Action, Follow, Host, Read, ReadResult, Staged};
use crate::tuning::StreamTuning;
use bytes::Bytes;
use types::failpoint::{Point, pass};
use types::map::Member;
use types::store::{DecisionState, ReadData};
use types::units::{BLOCKS_PER_AU, SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{AU, BLOCK, ChunkKey, CrcList, Index, OsdId, PgId, ReplicaId, SectorRange, Term};
use wire::{StreamAbort, StreamBody, StreamMsg};

/// A message of a receiver: the PG, the receiver's serial number, the message's number.
pub(super) type At = (PgId, u64, u64);

impl Streams {
    /// Handles the opening of a stream. The sender's claim is enough: its applied state is committed, whether or
    /// not it still leads.
    pub(super) fn handle_open(&mut self, host: &mut impl Host, from: OsdId, msg: &StreamMsg, needed: bool) {
        let StreamMsg { pg, from: leader, to: replica, stream, .. } = *msg;
        let answer = |body| message(from, (pg, replica, leader, stream), body);
        let peer = Member { replica: leader, osd: from };
        let group = host.follow(replica).filter(|group| group.pg == pg && !group.is_paused && !group.leads);
        let group = group.filter(|_| host.is_member(replica, peer));
        let installs = self.receivers.get(&pg).is_some_and(|r| r.installing);
        let Some(Follow { term, commit, end, fills_from, .. }) = group.filter(|_| !installs) else {
            return host.act(answer(StreamBody::Abort(StreamAbort::Busy)));
        };
        self.drop_receiver(host, pg, (StreamAbort::Failed, true));
        let StreamTuning { receivers_max, needed_max, .. } = self.tuning;
        let like_it = self.receivers.values().filter(|r| r.needed == needed).count();
        if like_it >= if needed { needed_max } else { receivers_max } {
            return host.act(answer(StreamBody::Abort(StreamAbort::Busy)));
        }
        let mut receiver = Receiver::new(stream, pg, replica, (from, leader), host.now());
        let base = host.base_for(replica);
        (receiver.serial, receiver.term) = (self.next_token, term);
        self.next_token += 1;
        (receiver.base, receiver.needed) = (base, needed);
        self.receivers.insert(pg, receiver);
        // The leader takes this commit index for an acknowledgement.
        host.act(answer(StreamBody::Accept { term, commit, end, compare: base.is_some(), fills_from }));
    }

    /// Ends a stream at the follower, unless its installation is one write away from being durable. `tell`: the leader does not
    /// know yet.
    pub fn drop_receiver(&mut self, host: &mut impl Host, pg: PgId, (reason, tell): (StreamAbort, bool)) {
        if self.receivers.get(&pg).is_none_or(|r| r.installing) {
            return;
        }
        let gone = self.receivers.remove(&pg).expect("it was just there");
        host.unstage(gone.replica);
        if tell {
            host.act(gone.message(StreamBody::Abort(reason)));
        }
    }

    /// Handles a numbered message.
    pub(super) fn handle_contents(&mut self, host: &mut impl Host, from: OsdId, msg: StreamMsg) {
        let Some(receiver) = self.receivers.get_mut(&msg.pg) else { return };
        if (receiver.id, receiver.from) != (msg.stream, from) || receiver.installing {
            return; // The stream was given up.
        }
        let replica = receiver.replica;
        let taken = receiver.take(host.now(), msg.body).and_then(|tree| match tree {
            Some(tree) if !host.stage_as_of(replica, &tree) => Err(Wrong::Nonsense("an invalid decision state")),
            _ => Ok(()),
        });
        if let Err(wrong) = taken {
            self.drop_receiver(host, msg.pg, (StreamAbort::Failed, true));
            if let Wrong::Nonsense(_) = wrong {
                host.act(Action::BadPeer { osd: from, reason: wrong.to_string() });
            }
            return;
        }
        self.step_pieces(host, msg.pg);
    }

    fn step_pieces(&mut self, host: &mut impl Host, pg: PgId) {
        while let Some(receiver) = self.receivers.get_mut(&pg) {
            let (replica, serial) = (receiver.replica, receiver.serial);
            let Some(step) = receiver.next_step(|chunk, au| host.keeps(replica, chunk, au)) else { return };
            match step {
                Step::Stage(piece) => {
                    aus(piece.range).for_each(|au| host.unkeep(replica, piece.chunk, au));
                    let data = match piece.contents {
                        Contents::Bytes(payload, crcs) => Some((payload, crcs)),
                        _ => None,
                    };
                    self.stage(host, (pg, serial, piece.seq), (piece.chunk, piece.range, data));
                }
                Step::Read { seq, chunk, range, digests } => {
                    let Some(base) = receiver.base else {
                        return self.drop_receiver(host, pg, (StreamAbort::Failed, true));
                    };
                    let read = Read::Base(BaseRead { at: (pg, serial, seq), chunk, range, digests });
                    host.act(Action::Read { read, replica: base, chunk, range });
                }
            }
        }
    }

    fn receiver(&mut self, (pg, serial, _): At) -> Option<&mut Receiver> {
        self.receivers.get_mut(&pg).filter(|r| r.serial == serial)
    }

    fn stage(&mut self, host: &mut impl Host, at: At, (chunk, range, data): (ChunkKey, SectorRange, Staged)) {
        let Some(replica) = self.receiver(at).map(|r| r.replica) else { return };
        let token = self.next_token;
        self.next_token += 1;
        match host.stage(token, replica, chunk, range, data) {
            true => _ = self.staging.insert(token, at),
            false => self.drop_receiver(host, at.0, (StreamAbort::Full, true)),
        }
    }

    /// Takes the older contents of a window that is compared, or of an AU that is kept no longer.
    pub fn handle_base(&mut self, host: &mut impl Host, read: &BaseRead, result: ReadResult) {
        let at = read.at;
        let Some(receiver) = self.receiver(at) else { return };
        let ours = match result {
            Ok(ReadData::Zeros) => None,
            Ok(ReadData::Bytes { crcs, payload }) => Some((payload, crcs)),
            Err(error) => {
                tracing::info!(pg = %receiver.pg, %error, "older contents cannot be read: the leader sends them");
                None
            }
        };
        let bytes = ours.as_ref().map(|(payload, _)| &**payload);
        let marks = host.stages_marks(receiver.replica, read.chunk);
        let taken = match &read.digests {
            Some(theirs) => receiver.judge_window(host, read, (theirs, marks), bytes),
            None => receiver.release_au(host, (read, marks), bytes),
        };
        let Some((copy, zeros)) = taken else {
            return self.drop_receiver(host, at.0, (StreamAbort::Failed, true));
        };
        receiver.takes(at.2, copy.len() + zeros.len());
        zeros.into_iter().for_each(|run| self.stage(host, at, (read.chunk, run, None)));
        let (payload, crcs) = ours.unwrap_or_default();
        for run in copy {
            let first = ((run.start - read.range.start) / SECTORS_PER_BLOCK) as usize;
            let blocks = first..first + (run.count / SECTORS_PER_BLOCK) as usize;
            let bytes = payload.slice(blocks.start * BLOCK as usize..blocks.end * BLOCK as usize);
            self.stage(host, at, (read.chunk, run, Some((bytes, CrcList::from_slice(&crcs[blocks])))));
        }
        self.piece_done(host, at);
    }

    /// Notes that the engine has written a piece.
    pub fn handle_staged(&mut self, host: &mut impl Host, token: u64) {
        let Some(at) = self.staging.remove(&token) else { return };
        pass(Point::PieceStaged);
        self.piece_done(host, at);
    }

    fn piece_done(&mut self, host: &mut impl Host, at: At) {
        let now = host.now();
        if let Some(receiver) = self.receiver(at) {
            receiver.done(now, at.2);
            self.step_pieces(host, at.0);
        }
    }

    /// Drops a stream whose staged space the engine needed for a destage round.
    pub fn handle_evicted(&mut self, host: &mut impl Host, replica: ReplicaId) {
        let pg = self.receivers.values().find(|r| r.replica == replica).map(|r| r.pg);
        pg.into_iter().for_each(|pg| self.drop_receiver(host, pg, (StreamAbort::Full, true)));
    }

    pub(super) fn step_receivers(&mut self, host: &mut impl Host) {
        for pg in self.receivers.keys().copied().collect::<Vec<_>>() {
            let receiver = self.receivers.get_mut(&pg).expect("listed above");
            let replica = receiver.replica;
            // A late acknowledgement slows the stream down, so that the log gets the device.
            let ack = if host.log_wait() >= LOG_WAIT_MAX { None } else { receiver.ack_due() };
            let (is_late, beginning) =
                (host.now() >= receiver.heard_at + self.tuning.install_max, receiver.take_beginning());
            let Some(group) = host.follow(replica) else {
                // The replica was destroyed or has failed: the engine has freed the staged pieces.
                self.receivers.remove(&pg);
                host.unstage(replica);
                continue;
            };
            if is_late && !receiver.installing {
                self.drop_receiver(host, pg, (StreamAbort::Failed, true));
                continue;
            }
            ack.into_iter().for_each(|seq| host.act(receiver.message(StreamBody::Ack { seq })));
            let whole = receiver.complete().filter(|_| !receiver.installing);
            let applied = if group.is_paused { Index(0) } else { group.applied };
            match (beginning, whole) {
                (Some(state), _) => {
                    if let Some(state) = self.may_begin(host, (pg, &group), state) {
                        host.act(Action::Fill(state));
                    }
                }
                (None, Some((index, _, bytes))) if bytes.is_empty() => {
                    if index <= applied {
                        receiver.installs();
                        host.act(Action::Install { replica });
                    }
                }
                (None, Some(state)) => {
                    if let Some(state) = self.may_begin(host, (pg, &group), state) {
                        self.receivers.get_mut(&pg).expect("listed above").installs();
                        host.act(Action::InstallAsOf(state));
                    }
                }
                (None, None) => {}
            }
        }
    }

    /// Returns the state at which a log here may begin. If none may, the stream ends.
    fn may_begin(
        &mut self,
        host: &mut impl Host,
        (pg, group): (PgId, &Follow),
        (index, term, bytes): (Index, Term, Bytes),
    ) -> Option<DecisionState> {
        let receiver = &self.receivers[&pg];
        let (replica, osd) = (receiver.replica, receiver.from);
        // In a later term another leader may count on the log.
        if group.is_paused || group.is_elected || group.term != receiver.term {
            self.drop_receiver(host, pg, (StreamAbort::Busy, true));
            return None;
        }
        if !host.can_start_from(replica, &bytes) || term.0 == 0 || index.0 == 0 {
            self.drop_receiver(host, pg, (StreamAbort::Failed, true));
            let reason = "a stream brought an invalid decision state".to_owned();
            host.act(Action::BadPeer { osd, reason });
            return None;
        }
        Some(DecisionState { replica, index, term, bytes })
    }

    /// Handles the begin of a replica's log at another index, durably: the replica counts from there on.
    pub fn handle_begun(&mut self, host: &mut impl Host, replica: ReplicaId, (term, commit): (Term, Index)) {
        let now = host.now();
        let Some(receiver) = self.receivers.values_mut().find(|r| r.replica == replica) else { return };
        receiver.term = term;
        receiver.has_begun(now);
        host.act(receiver.message(StreamBody::Filling { term, commit }));
        let pg = receiver.pg;
        self.step_pieces(host, pg);
    }

    /// Notes that the replica has all contents, durably.
    pub fn handle_installed(&mut self, host: &mut impl Host, replica: ReplicaId, stands: (Term, Index)) {
        let Some(pg) = self.receivers.values().find(|r| r.replica == replica).map(|r| r.pg) else { return };
        let done = self.receivers.remove(&pg).expect("it was just there");
        host.act(done.message(StreamBody::Done { term: stands.0, commit: stands.1 }));
    }

    /// Gives up a stream whose log cannot begin, or whose contents cannot be installed.
    pub fn handle_refused(&mut self, host: &mut impl Host, replica: ReplicaId, reason: StreamAbort) {
        let Some(receiver) = self.receivers.values_mut().find(|r| r.replica == replica) else { return };
        receiver.installing = false;
        let pg = receiver.pg;
        self.drop_receiver(host, pg, (reason, true));
    }
}

impl Receiver {
    /// Returns a message to the leader.
    fn message(&self, body: StreamBody) -> Action {
        message(self.from, (self.pg, self.replica, self.leader, self.id), body)
    }

    fn installs(&mut self) {
        self.installing = true;
        let (pg, replica, kept_mib) = (self.pg, self.replica.0, self.kept_bytes >> 20);
        tracing::info!(%pg, replica, kept_mib, "backfill received: installing it");
    }

    /// Keeps an AU no longer, and returns its blocks, which are staged instead: those with bytes, and zero marks. `None`: they are not known
    /// to be those that were compared. The next stream compares again.
    fn release_au(
        &mut self,
        host: &mut impl Host,
        (read, marks): (&BaseRead, bool),
        ours: Option<&[u8]>,
    ) -> Option<(Vec<SectorRange>, Vec<SectorRange>)> {
        let (base, au) = (self.base?, read.range.start / SECTORS_PER_AU);
        let ours = ours.filter(|_| host.release(self.replica, base, read.chunk, au))?;
        let (mut copy, mut zeros) = (Vec::new(), Vec::new());
        let blocks = ours.chunks(BLOCK as usize).zip((read.range.start..).step_by(SECTORS_PER_BLOCK as usize));
        for (block, at) in blocks {
            match compare::is_data(block) {
                true => compare::push_block(&mut copy, at),
                false if marks => compare::push_block(&mut zeros, at),
                false => {}
            }
        }
        Some((copy, zeros))
    }

    /// Compares a window: keeps equal AUs, reports to the leader which blocks it must send, and returns those to copy, and
    /// those that become zero marks. `None`: the leader has sent digests of this window before.
    fn judge_window(
        &mut self,
        host: &mut impl Host,
        read: &BaseRead,
        (theirs, marks): (&[u8], bool),
        ours: Option<&[u8]>,
    ) -> Option<(Vec<SectorRange>, Vec<SectorRange>)> {
        let (replica, base) = (self.replica, self.base?);
        if aus(read.range).any(|au| host.keeps(replica, read.chunk, au)) {
            return None;
        }
        let ours = ours.map(|payload| compare::digests(self.id, payload));
        let mut judged = compare::judge(read.range.start, theirs, ours.as_deref(), marks);
        for au in std::mem::take(&mut judged.equal) {
            if host.keep(replica, base, read.chunk, au) {
                self.kept_bytes += AU;
                continue;
            }
            let first = ((SectorRange::of_au(au).start - read.range.start) / SECTORS_PER_BLOCK) as usize;
            let blocks = (first..first + BLOCKS_PER_AU as usize).filter(|n| compare::has_data(theirs, *n));
            let at = |n: usize| read.range.start + n as u32 * SECTORS_PER_BLOCK;
            blocks.for_each(|n| compare::push_block(&mut judged.copy, at(n)));
        }
        host.act(self.message(StreamBody::Wants { seq: read.at.2, blocks: judged.wants }));
        Some((judged.copy, judged.zeros))
    }
}
