//! A client that hears nothing from the leader, while a follower does: the follower passes it on, and the leader hands
//! over to that follower (ADR 0014).
//!
//! A client's word moves nothing by itself. The follower passes it on only for a session that is attached, about the
//! leader that it follows, at most once in [`PASS_ON_PAUSE`]. The leader hands over only to a voter that echoes its
//! listings and is nearly in step, only in its own term, and only after it has led for a time that doubles with every
//! hand-over of this kind. Two clients with opposite cuts thus move a PG ever more rarely. An attempt that fails counts as
//! a hand-over, and that time begins again with it: the lease of the term is gone already, so the next attempt is as safe.
//!
//! Invariant: what is done is a transfer like any other (R3): the leader stops serving before it says goodbye.

use crate::{Action, Group};
use std::time::Duration;
use types::{Epoch, OsdId, SessionId, Time, VolumeId};
use wire::{Message, PassedOn};

/// One message to the leader in this time, whatever clients say.
const PASS_ON_PAUSE: Duration = Duration::from_millis(50);
/// How long a leader leads before a client's word moves the PG; doubled with every move, so many times at most.
const HOLD: Duration = Duration::from_secs(1);
const HOLD_DOUBLINGS: u32 = 6;
/// Moves are forgotten after so long without one.
const FORGET: Duration = Duration::from_secs(300);
/// Entries that the follower may lack: the transfer sends them before the follower may campaign.
const LACK_MAX: u64 = 1024;

/// What one replica remembers of clients' words.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    passed_on_at: Option<Time>,
    /// When this replica last handed over at a client's word, or tried to, and how often it did.
    moved_at: Option<Time>,
    moves: u32,
}

impl Reports {
    /// How long this replica must have led.
    fn hold(&mut self, now: Time) -> Duration {
        if self.moved_at.is_some_and(|at| now >= at + FORGET) {
            self.moves = 0;
        }
        if self.moves == 0 { Duration::ZERO } else { HOLD * (1 << (self.moves - 1).min(HOLD_DOUBLINGS)) }
    }
}

impl Group {
    fn is_attached(&self, (volume, session, epoch): (VolumeId, SessionId, Epoch)) -> bool {
        let attached = self.decision.volumes.get(&volume);
        attached.is_some_and(|a| a.session == session && a.epoch == epoch && session != SessionId::default())
    }

    /// A client with this session of a volume hears nothing from `leader`. Whether the leader was told.
    pub(crate) fn pass_on(
        &mut self,
        now: Time,
        leader: OsdId,
        who: (VolumeId, SessionId, Epoch),
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(to) = self.node.leader().filter(|id| self.osd_of(*id) == Some(leader)) else { return false };
        let me = self.identity.replica;
        let early = self.reports.passed_on_at.is_some_and(|at| now < at + PASS_ON_PAUSE);
        let fit = self.quarantine.is_none() && self.doubt.is_none() && self.node.promotable();
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

    /// A follower on `from` says that a client reaches it and hears nothing from here.
    pub fn handle_passed_on(&mut self, now: Time, from: OsdId, msg: &PassedOn, actions: &mut Vec<Action>) {
        let ours = msg.pg == self.identity.pg && msg.to == self.identity.replica;
        let theirs = self.replica_on(from) == Some(msg.from) && self.decision.conf.voters.contains(&msg.from);
        let who = (msg.volume, msg.session, msg.epoch);
        if !ours || !theirs || !self.is_attached(who) || !self.serves() {
            return;
        }
        let hold = self.reports.hold(now);
        // An attempt that failed left the term as it was, and cost the PG up to an election deadline.
        let tried_at = self.reports.moved_at.unwrap_or(Time::ZERO);
        let last = self.node.last_index().0;
        let Some(leading) = self.current().filter(|leading| leading.term == msg.term) else { return };
        let echo = leading.echoes.iter().find(|echo| echo.replica == msg.from);
        let heard = echo.is_some_and(|echo| now < echo.sent_at + self.config.timing.echo_max);
        let follower = self.node.follower(msg.from);
        let near = follower.is_some_and(|f| f.streaming && last.saturating_sub(f.matched.0) <= LACK_MAX);
        if !heard || !near || now < leading.since.max(tried_at) + hold {
            return;
        }
        self.reports.moves = self.reports.moves.saturating_add(1);
        self.reports.moved_at = Some(now);
        actions.push(Action::Yielded { to: from, volume: msg.volume });
        self.handle_transfer(now, from, actions);
    }
}
