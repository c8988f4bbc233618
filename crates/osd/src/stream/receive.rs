//! The follower's OSD: accepts a stream, stages its pieces, pauses the group and has the engine install the contents.

use super::receiver::{Receiver, Wrong};
use crate::node::Osd;
use crate::pgs::State;
use bus::LinkId;
use types::failpoint::{Point, pass};
use types::store::{DecisionState, Recovered};
use types::{OsdId, PgId, ReplicaId};
use wire::{StreamAbort, StreamBody, StreamMsg};

impl Osd {
    /// Handles the opening of a stream. The sender's claim is enough: its applied state is committed, whether or
    /// not it still leads. A stream that is not newer than the state here is dropped at the end.
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
        let receiver = Receiver::new(msg.stream, msg.pg, (msg.to, slot), (from, msg.from, link), self.now);
        self.streams.receivers.insert(msg.pg, receiver);
        let body = StreamBody::Accept { term, commit };
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

    /// Handles `Blocks`, `Decision` or `End`.
    pub(crate) fn stream_brings(&mut self, link: LinkId, from: OsdId, msg: StreamMsg) {
        let now = self.now;
        let Some(receiver) = self.streams.receivers.get_mut(&msg.pg) else { return };
        if (receiver.id, receiver.link, receiver.from) != (msg.stream, link, from) || receiver.installing {
            return; // The stream was given up.
        }
        match receiver.take(now, msg.body) {
            Ok(()) => self.stage_pieces(msg.pg),
            Err(wrong) => {
                self.drop_receiver(msg.pg, StreamAbort::Failed, true);
                if let Wrong::Nonsense(_) = wrong {
                    tracing::warn!(%from, %wrong, "closing the connection of a peer that sent bad bytes");
                    self.bus.disconnect(link, &wrong.to_string());
                }
            }
        }
    }

    fn stage_pieces(&mut self, pg: PgId) {
        while let Some(receiver) = self.streams.receivers.get_mut(&pg) {
            let Some(piece) = receiver.next_to_stage() else { return };
            let (replica, id) = (receiver.replica, receiver.id);
            let token = self.streams.next_token;
            self.streams.next_token += 1;
            self.streams.staging.insert(token, (pg, id, piece.seq));
            if !self.engine.stage(token, replica, piece.chunk, piece.range, piece.data) {
                self.streams.staging.remove(&token);
                self.drop_receiver(pg, StreamAbort::Full, true);
                return;
            }
        }
    }

    /// Notes that the engine has written a piece.
    pub(crate) fn piece_staged(&mut self, token: u64) {
        let Some((pg, id, seq)) = self.streams.staging.remove(&token) else { return };
        if let Some(receiver) = self.streams.receivers.get_mut(&pg).filter(|r| r.id == id) {
            pass(Point::PieceStaged);
            receiver.staged(seq);
            self.stage_pieces(pg);
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
            let whole = receiver.complete().filter(|_| !installing);
            let here = self.pgs.by_replica(replica) == Some(slot);
            let alive = match here.then(|| &self.pgs.get(slot).state) {
                Some(State::Running(_)) => !installing,
                Some(State::Installing(_)) => installing,
                _ => false,
            };
            if !alive {
                // The replica was destroyed or quarantined: the engine has freed the staged pieces.
                self.streams.receivers.remove(&pg);
                self.engine.unstage(replica);
                continue;
            }
            if late && !installing {
                self.drop_receiver(pg, StreamAbort::Failed, true);
                continue;
            }
            if let Some(seq) = ack {
                self.send_stream(link, pg, ids, id, StreamBody::Ack { seq });
            }
            if let Some((index, term, bytes)) = whole {
                self.stream_ends(pg, DecisionState { replica, index, term, bytes });
            }
        }
    }

    /// Installs a completely staged stream, unless the replica has come as far by its log.
    fn stream_ends(&mut self, pg: PgId, decision: DecisionState) {
        let receiver = &self.streams.receivers[&pg];
        let (slot, link) = (receiver.slot, receiver.link);
        let (replica, leader, id) = (receiver.replica, receiver.leader, receiver.id);
        let group = self.pgs.group(slot).expect("seen in this turn");
        if group.covers(decision.index, decision.term) {
            // Up to that index the log holds entries that the leader has applied; so they are committed.
            let (term, durable) = (group.term(), group.durable_end());
            let commit = group.commit().max(decision.index).min(durable);
            if durable < decision.index {
                // The log will be durable soon, or the leader tries again.
                return self.drop_receiver(pg, StreamAbort::Busy, true);
            }
            self.drop_receiver(pg, StreamAbort::Needless, false);
            return self.send_stream(link, pg, (replica, leader), id, StreamBody::Done { term, commit });
        }
        if !group.can_start_from(&decision.bytes) || decision.term.0 == 0 || group.is_leader() {
            self.drop_receiver(pg, StreamAbort::Failed, true);
            return self.bus.disconnect(link, "a stream ended with an invalid decision state");
        }
        tracing::info!(%pg, replica = replica.0, index = decision.index.0, "backfill received: installing it");
        self.streams.receivers.get_mut(&pg).expect("it is there").installing = true;
        self.pgs.pause(slot);
        self.engine.install(decision);
    }

    /// Starts a new group for the replica: the stream's contents are durable in its place.
    pub(crate) fn stream_installed(&mut self, recovered: Recovered) {
        let (pg, replica) = (recovered.identity.pg, recovered.identity.replica);
        let commit = recovered.checkpoint.index;
        let receiver = self.streams.receivers.remove(&pg);
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        if !matches!(self.pgs.get(slot).state, State::Installing(_)) {
            return;
        }
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        self.pgs.touch(slot);
        tracing::info!(%pg, replica = replica.0, commit = commit.0, "backfill of this replica completed");
        let Some(term) = self.pgs.group(slot).map(|group| group.term()) else { return };
        if let Some(r) = receiver {
            self.send_stream(r.link, pg, (replica, r.leader), r.id, StreamBody::Done { term, commit });
        }
    }

    /// Resumes the old group: there is no space, or the replica cannot take the contents.
    pub(crate) fn install_refused(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        self.pgs.resume(slot);
        let pg = self.pgs.get(slot).identity.pg;
        if let Some(receiver) = self.streams.receivers.get_mut(&pg).filter(|r| r.replica == replica) {
            receiver.installing = false;
            self.drop_receiver(pg, StreamAbort::Full, true);
        }
    }
}
