//! The group's part in a stream to a follower behind the log (R12): the leader's step when the stream has ended, and
//! the follower's questions before it accepts one.
//!
//! The contents travel outside: the OSD carries them from engine to engine. No snapshot message is stepped. The log of a
//! follower that receives a stream begins at an applied index of the leader; its group is made from the decision state there, and
//! tells the leader so. For raft that is the acknowledgement of an append up to that index. From then on the follower gets and
//! acknowledges entries as any other, while its contents arrive (R16).
//!
//! Invariants: only committed entries are acknowledged in this way. The leader of any later term holds them too, so the two logs match
//! up to there (raft's leader completeness), whatever was lost in between. For every committed entry, the voters that have all
//! contents and the entry, with those whose log has it, are a majority.

use crate::decision::Decision;
use crate::{Action, Group};
use types::planted::{Bug, on};
use types::store::DecisionState;
use types::{Index, OsdId, ReplicaId, Term, Time};
use wire::Contents;

impl Group {
    /// Notes that the replica on `from`, in `term`, holds everything up to its `commit` durably: sending goes on there.
    /// Nothing happens unless this replica leads in that term or a later one.
    pub fn handle_follower_stands(
        &mut self,
        _now: Time,
        from: OsdId,
        term: Term,
        commit: Index,
        actions: &mut Vec<Action>,
    ) {
        let Some(replica) = self.replica_on(from).filter(|id| *id != self.identity.replica) else { return };
        let current = self.current().is_some_and(|leading| leading.term >= term);
        // A deposed leader that does not know it yet may hold less than a follower.
        if !current || commit > self.node.last_index() || commit.0 == 0 {
            return;
        }
        let response = self.node.append_response(replica, commit);
        let result = self.node.step(&response);
        self.stepped(result, actions);
    }

    /// Whether this leader has no majority of voters that keep up, unless `follower` comes back.
    pub fn stands_still_without(&self, now: Time, follower: ReplicaId) -> bool {
        let Some(leading) = self.current() else { return false };
        let silent = self.config.timing.promise * 2;
        let keeps_up = |id: ReplicaId| {
            let heard = leading.acks.iter().find(|e| e.replica == id).is_some_and(|e| now < e.sent_at + silent);
            let near = self.node.follower(id).is_some_and(|f| f.streaming);
            id == self.identity.replica || (id != follower && heard && near)
        };
        !self.decision.members.majority(keeps_up)
    }

    /// Whether `replica` is the member on `osd`, or may be one that this replica does not know yet.
    pub fn is_member_on(&self, osd: OsdId, replica: ReplicaId) -> bool {
        self.replica_on(osd) == Some(replica) || self.osd_of(replica).is_none() && self.may_be_from(osd, replica)
    }

    /// Returns the member on `osd`, if there is one besides this replica.
    pub fn peer_on(&self, osd: OsdId) -> Option<ReplicaId> {
        self.replica_on(osd).filter(|id| *id != self.identity.replica)
    }

    /// Returns the lowest index that can be sent from the log, as far as descriptors go.
    pub fn first_index(&self) -> Index {
        self.node.first_index()
    }

    /// Whether this replica, or the follower `id`, is known to have all its contents: a follower has said so lately.
    pub fn has_contents(&self, now: Time, id: ReplicaId) -> bool {
        let silence_max = self.config.timing.ack_max;
        match id == self.identity.replica {
            true => self.whole,
            false => self.current().is_some_and(|leading| leading.is_whole(id, now, silence_max)),
        }
    }

    /// Whether the replica is known to have all contents, and everything that is applied here.
    pub(crate) fn has_everything(&self, now: Time, id: ReplicaId) -> bool {
        let applied = self.node.applied();
        let matched = id == self.identity.replica || self.node.follower(id).is_some_and(|f| f.matched >= applied);
        matched && self.has_contents(now, id)
    }

    /// Whether `id` led in the term before this one, is silent since, and is known to have all contents and everything that is
    /// committed: up to `end` by its own word. Above `end`, which the log of `follower` does not pass, every majority needs it.
    fn former_has_everything(&self, id: ReplicaId, (follower, end): (ReplicaId, Option<Index>)) -> bool {
        let former = self.current().and_then(|leading| leading.former).filter(|former| former.leader == id);
        let covers = former.zip(end).is_some_and(|(former, end)| former.complete >= end);
        let is_member = self.osd_of(id).is_some_and(|osd| self.replica_on(osd) == Some(id));
        covers && is_member && !self.decision.members.majority(|other| other != id && other != follower)
    }

    /// Notes that the log of the follower may begin, or has begun: what it has said of its contents before does not count.
    pub fn note_filling(&mut self, now: Time, follower: ReplicaId) {
        if let Some(leading) = &mut self.leading {
            leading.fills(now, follower);
        }
    }

    /// Whether the log of `follower`, whose last entry is `end` at most, may begin at the applied index of this leader. What is
    /// committed up to there must be on a majority without the follower, and with all contents; under other members, too.
    pub fn may_fill(&self, now: Time, follower: ReplicaId, end: Option<Index>) -> bool {
        let applied = self.node.applied();
        let complete = |id| self.has_everything(now, id) || self.former_has_everything(id, (follower, end));
        let has = |id: ReplicaId| id != follower && complete(id);
        let members = &self.decision.members;
        self.leads_whole()
            && applied > Index(0)
            && self.has_applied_steps()
            && (!members.is_voter(follower) || members.majority(has))
    }

    /// Returns the state at which the log of `follower` may begin, now that it is behind this leader's: the applied one. From here on
    /// the follower does not count as one with all its contents. `None`: its log may not begin ([`Group::may_fill`]).
    pub fn fill_state(&mut self, now: Time, follower: ReplicaId, end: Option<Index>) -> Option<DecisionState> {
        if !self.may_fill(now, follower, end) {
            return None;
        }
        self.note_filling(now, follower);
        Some(self.decision())
    }

    /// Returns the payload that may be proposed before the log of this follower, which is being filled, is full, in bytes; and whether
    /// less than half of its share is left. `None`: unknown.
    pub fn fill_room(&self, follower: ReplicaId) -> Option<(u64, bool)> {
        let ack = self.current()?.acks.iter().find(|ack| ack.replica == follower)?;
        let Contents::Filling { room_kib, is_short } = ack.contents else { return None };
        // Which entries it has is unknown without its position.
        let known = room_kib != u32::MAX && ack.matched > Index(0);
        // The follower has the rest in its log, or will have it.
        known.then(|| ((u64::from(room_kib) << 10).saturating_sub(self.node.payload_after(ack.matched)), is_short))
    }

    /// Sets the payload that may be proposed from now on, in bytes, while this PG cannot commit without a follower that is being
    /// filled. `None`: any.
    pub fn set_pace(&mut self, pace: Option<u64>) {
        if let Some(leading) = self.leading.as_mut().filter(|leading| pace.is_some() || !leading.is_blind) {
            (leading.is_blind, leading.pace) = (false, pace);
        }
    }

    /// Returns what is left of the pace that was set.
    pub fn pace(&self) -> Option<u64> {
        self.leading.as_ref().filter(|leading| !leading.is_blind)?.pace
    }

    /// Notes that the contents of this replica are installed.
    pub fn contents_installed(&mut self) {
        self.whole = true;
    }

    /// Returns the last entry up to which the follower has everything; `None`: it cannot go on from this leader's log, or is unknown.
    pub fn matched(&self, follower: ReplicaId) -> Option<Index> {
        self.node.follower(follower).map(|f| f.matched)
    }

    /// Whether raft cannot send the entry behind the follower's last one from the log.
    pub fn is_behind_log(&self, follower: ReplicaId, first: Index) -> bool {
        let first = first.max(self.node.first_index());
        self.node.follower(follower).is_none_or(|f| f.matched.0 + 1 < first.0)
    }

    /// Returns the last entry that is known to be durable here.
    pub fn durable_end(&self) -> Index {
        self.node.durable_end().1
    }

    /// Returns the last entry that is both durable here and known to be committed.
    pub fn durable_commit(&self) -> Index {
        let commit = self.node.commit_index();
        if on(Bug::StreamLetInUndurable) { commit } else { commit.min(self.durable_end()) }
    }

    /// Whether these bytes are a decision state that this replica can start from.
    pub fn can_start_from(&self, bytes: &[u8]) -> bool {
        Decision::decode(bytes).is_ok_and(|decision| decision.members.is_sound())
    }
}
