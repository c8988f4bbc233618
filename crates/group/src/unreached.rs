//! Reports of a client that hears nothing from the leader while a follower does: the follower forwards the report, and the
//! leader transfers leadership to that follower (ADR 0014).
//!
//! A client's report moves nothing by itself. The follower forwards it only for a session that is attached, about the
//! leader that it follows, at most once in `GroupLimits::report_pause`. The leader hands over only to a voter that acknowledges its
//! lease renewals and is nearly in sync, only in its own term, and only after it has led for a time that doubles with every
//! such transfer. Two clients with opposite broken paths thus move a PG ever more rarely. A failed attempt counts as
//! a transfer and restarts that time. The lease of the term is gone already, so the next attempt is as safe.
//!
//! Invariant: the result is a transfer like any other (R3): the leader stops serving before it releases its lease.

use crate::{Action, Group, GroupLimits};
use std::time::Duration;
use types::{Epoch, OsdId, SessionId, Time, VolumeId};
use wire::{Message, PassedOn};

const HOLDS_KEPT: u32 = 8;

/// One replica's memory of clients' reports.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    passed_on_at: Option<Time>,
    /// Time of this replica's last transfer, or attempt, for a report, and their number.
    moved_at: Option<Time>,
    moves: u32,
}

impl Reports {
    /// Returns the least time for which this replica must have led. Clients with opposite broken paths bring a PG back after
    /// about twice that time, so after [`HOLDS_KEPT`] times it the earlier moves had another cause, and are forgotten.
    fn hold(&mut self, now: Time, limits: &GroupLimits) -> Duration {
        let doublings = self.moves.saturating_sub(1).min(limits.move_hold_doublings);
        let hold = limits.move_hold * (1 << doublings);
        if self.moved_at.is_none_or(|at| now >= at + limits.move_forget.min(hold * HOLDS_KEPT)) {
            self.moves = 0;
        }
        if self.moves == 0 { Duration::ZERO } else { hold }
    }
}

impl Group {
    fn is_attached(&self, (volume, session, epoch): (VolumeId, SessionId, Epoch)) -> bool {
        let attached = self.decision.volumes.get(&volume);
        attached.is_some_and(|attached| attached.has(session, epoch))
    }

    /// Forwards the report of a client with this session of a volume that hears nothing from `leader`; false when it was dropped.
    pub(crate) fn pass_on(
        &mut self,
        now: Time,
        leader: OsdId,
        who: (VolumeId, SessionId, Epoch),
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(to) = self.node.leader().filter(|id| self.osd_of(*id) == Some(leader)) else { return false };
        let me = self.identity.replica;
        let early = self.reports.passed_on_at.is_some_and(|at| now < at + self.config.limits.report_pause);
        let fit = self.quarantine.is_none() && self.node.promotable();
        if to == me || early || !fit || !self.is_attached(who) {
            return false;
        }
        self.reports.passed_on_at = Some(now);
        let (volume, session, epoch) = who;
        let (pg, term) = (self.identity.pg, self.node.term());
        let message = Message::PassedOn(PassedOn { pg, from: me, to, term, volume, session, epoch });
        actions.push(Action::Send { to: leader, message });
        true
    }

    /// Handles a report of the follower on `from`: a client reaches it and hears nothing from this leader.
    pub fn handle_passed_on(&mut self, now: Time, from: OsdId, msg: &PassedOn, actions: &mut Vec<Action>) {
        let ours = msg.pg == self.identity.pg && msg.to == self.identity.replica;
        let theirs = self.replica_on(from) == Some(msg.from)
            && self.decision.members.voters.iter().any(|m| m.replica == msg.from);
        let who = (msg.volume, msg.session, msg.epoch);
        if !ours || !theirs || !self.is_attached(who) || !self.serves() {
            return;
        }
        let hold = self.reports.hold(now, &self.config.limits);
        // An attempt that failed left the term as it was, and cost the PG up to an election deadline.
        let tried_at = self.reports.moved_at.unwrap_or(Time::ZERO);
        let last = self.node.last_index().0;
        let Some(leading) = self.current().filter(|leading| leading.term == msg.term) else { return };
        let ack = leading.acks.iter().find(|ack| ack.replica == msg.from);
        let heard = ack.is_some_and(|ack| now < ack.sent_at + self.config.timing.ack_max);
        let follower = self.node.follower(msg.from);
        let near = follower
            .is_some_and(|f| f.streaming && last.saturating_sub(f.matched.0) <= self.config.limits.move_lack_max);
        if !heard || !near || !self.has_contents(now, msg.from) || now < leading.since.max(tried_at) + hold {
            return;
        }
        self.reports.moves = self.reports.moves.saturating_add(1);
        self.reports.moved_at = Some(now);
        actions.push(Action::Yielded { to: from, volume: msg.volume });
        self.handle_transfer(now, from, actions);
    }
}
