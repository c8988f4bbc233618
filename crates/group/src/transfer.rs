//! Leadership transfer: stop serving, release the lease to all members, tell the successor (R3).
//!
//! Meta or a planned stop asks for it through the loop. Invariant: after the first lease release this
//! replica serves no read under a lease in this term, also when the transfer fails.

use crate::{Action, Group};
use types::map::Member;
use types::planted::{Bug, on};
use types::{OsdId, ReplicaId, Time};
use wire::{Message, Reject};

#[derive(Debug)]
pub(crate) struct Transfer {
    pub to: OsdId,
    /// Time at which the transfer is given up; the leader then serves again, by read-index.
    pub until: Time,
}

impl Group {
    /// Whether leadership can be transferred now, and no attempt of this term has failed.
    pub fn may_hand_over(&self) -> bool {
        self.serves() && self.current().is_some_and(|leading| !leading.forfeited)
    }

    /// Transfers leadership to the replica on `to`. Nothing happens unless this replica serves and `to` holds
    /// another voter.
    pub fn handle_transfer(&mut self, now: Time, to: OsdId, actions: &mut Vec<Action>) {
        let successor = self.replica_on(to).filter(|id| self.decision.members.voters.iter().any(|m| m.replica == *id));
        let Some(successor) = successor.filter(|id| self.serves() && *id != self.identity.replica) else { return };
        self.hand_over(now, to, successor, actions);
    }

    fn hand_over(&mut self, now: Time, to: OsdId, successor: ReplicaId, actions: &mut Vec<Action>) {
        let until = now + self.election.draw_deadline();
        self.leading.as_mut().expect("only a leader hands over").forfeited = true;
        self.transfer = Some(Transfer { to, until });
        let hint = Some(to);
        self.refuse_queue(hint, actions);
        self.reads.refuse_all(Reject::NotLeader { hint }, actions);
        self.release_lease(actions);
        self.node.transfer(successor);
    }

    /// Hands leadership of a replica that lacks contents to a voter that has them, as soon as that one has every entry. This
    /// leader had the newest log of a majority, so one of that majority has what was committed before this log begins (R16).
    pub(crate) fn poll_whole(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.whole || self.current().is_none() || self.transfer.is_some() || on(Bug::FillingServes) {
            return;
        }
        let (me, last) = (self.identity.replica, self.node.last_index());
        let follows = |id: ReplicaId| self.node.follower(id).is_some_and(|f| f.matched == last);
        let fits = |m: &&Member| m.replica != me && self.has_contents(now, m.replica) && follows(m.replica);
        if let Some(Member { osd, replica }) = self.decision.members.voters.iter().find(fits).copied() {
            self.hand_over(now, osd, replica, actions);
        }
    }

    /// Releases the lease: ends the promises that were made to this replica. It has stopped serving.
    pub(crate) fn release_lease(&self, actions: &mut Vec<Action>) {
        let others = self.decision.members.iter().filter(|m| m.replica != self.identity.replica);
        for member in others {
            actions.push(Action::Send { to: member.osd, message: Message::LeaseRelease(vec![self.identity.pg]) });
        }
    }

    pub(crate) fn poll_transfer(&mut self, now: Time) {
        if self.transfer.as_ref().is_some_and(|transfer| transfer.until <= now) {
            self.node.abort_transfer();
            self.transfer = None;
        }
    }
}
