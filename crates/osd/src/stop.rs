//! A planned end: every PG that is led here is handed to another replica, then the process may go.
//!
//! The loop's owner comes in with [`Osd::stop`] and turns on until [`Osd::has_stopped`]. Each transfer stops
//! serving, says goodbye to all members and tells the successor (R3), so nobody waits for a promise to end.
//!
//! Invariant: it never waits longer than [`STOP_MAX`]; what could not be handed over is then a crash like any.

use crate::node::Osd;
use crate::pgs::State;
use std::time::Duration;
use types::{OsdId, Time};

/// How long successors may take.
pub const STOP_MAX: Duration = Duration::from_millis(500);

impl Osd {
    /// Begins a planned end. Later calls change nothing.
    pub fn stop(&mut self) {
        if self.stop_by.is_some() {
            return;
        }
        self.stop_by = Some(self.now + STOP_MAX);
        let handed: Vec<_> = self.pgs.keys().into_iter().filter_map(|key| Some((key, self.successor(key)?))).collect();
        tracing::info!(pgs = handed.len(), "asked to end: handing leadership over");
        for (key, to) in handed {
            self.with_slot(key, true, |group, now, actions| group.handle_transfer(now, to, actions));
        }
    }

    /// Whether the process may go.
    pub fn has_stopped(&self) -> bool {
        let Some(by) = self.stop_by else { return false };
        self.now >= by || self.pgs.keys().into_iter().all(|key| self.successor(key).is_none())
    }

    /// When a planned end is over at the latest.
    pub(crate) fn stop_deadline(&self) -> Time {
        self.stop_by.unwrap_or(Time::NEVER)
    }

    /// Who takes over a PG that is led here: a member in reach, not always the same one.
    pub(crate) fn successor(&self, key: usize) -> Option<OsdId> {
        self.successor_among(key, |_| true)
    }

    /// The same, among those that will do.
    pub(crate) fn successor_among(&self, key: usize, will_do: impl Fn(OsdId) -> bool) -> Option<OsdId> {
        let slot = self.pgs.get(key);
        match &slot.state {
            State::Running(group) if group.leader() == Some(self.config.osd) => {}
            _ => return None,
        }
        let members = slot.identity.members.iter().map(|m| m.osd);
        let reached: Vec<OsdId> = members
            .filter(|osd| *osd != self.config.osd && self.bus.link_to(*osd).is_some() && will_do(*osd))
            .collect();
        let n = slot.identity.pg.n as usize;
        (!reached.is_empty()).then(|| reached[n % reached.len()])
    }
}
