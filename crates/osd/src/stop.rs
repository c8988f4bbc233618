//! Planned stop: every PG that is led here is transferred to another replica, then the process may end.
//!
//! The loop's owner calls [`Osd::stop`] and runs turns until [`Osd::has_stopped`]. Each transfer stops
//! serving, releases the lease to all members and tells the successor (R3), so no member waits for a promise to end.
//!
//! Invariant: the stop never waits longer than `OsdTuning::stop_max`; a PG that could not be transferred then sees a crash.

use crate::node::{Osd, Touch};
use crate::pgs::State;
use types::{OsdId, Time};

impl Osd {
    /// Begins a planned stop. Later calls have no effect.
    pub fn stop(&mut self) {
        if self.service.stop_by.is_some() {
            return;
        }
        self.service.stop_by = Some(self.now + self.config.tuning.stop_max);
        let handed: Vec<_> = self.pgs.keys().into_iter().filter_map(|key| Some((key, self.successor(key)?))).collect();
        tracing::info!(pgs = handed.len(), "shutting down: transferring the leadership of PGs");
        for (key, to) in handed {
            self.with_slot(key, Touch::Always, |group, now, actions| group.handle_transfer(now, to, actions));
        }
    }

    /// Whether the process may end.
    pub fn has_stopped(&self) -> bool {
        let Some(by) = self.service.stop_by else { return false };
        self.now >= by || self.pgs.keys().into_iter().all(|key| self.successor(key).is_none())
    }

    /// Returns the latest end of a planned stop.
    pub(crate) fn stop_deadline(&self) -> Time {
        self.service.stop_by.unwrap_or(Time::NEVER)
    }

    /// Returns the successor for a PG that is led here: a connected member, not the same one for every PG.
    pub(crate) fn successor(&self, key: usize) -> Option<OsdId> {
        self.successor_among(key, |_| true)
    }

    /// Returns the successor among the members that `will_do` accepts.
    pub(crate) fn successor_among(&self, key: usize, will_do: impl Fn(OsdId) -> bool) -> Option<OsdId> {
        let slot = self.pgs.get(key);
        match &slot.state {
            State::Running(group) if group.leader() == Some(self.config.osd) => {}
            _ => return None,
        }
        let members = slot.members.voters.iter().map(|m| m.osd);
        let reached: Vec<OsdId> = members
            .filter(|osd| *osd != self.config.osd && self.bus.link_to(*osd).is_some() && will_do(*osd))
            .collect();
        let n = slot.identity.pg.n as usize;
        (!reached.is_empty()).then(|| reached[n % reached.len()])
    }
}
