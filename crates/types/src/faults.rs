//! Rehearsed faults: trouble of the storage that an administrator orders for one volume and a limited time (ADR 0037).
//!
//! Meta records them and tells them to the clients of the volume, and each client applies them to the requests of its user before
//! anything is sent. A fault ends by the clock of the client, counted from the time that is left when meta tells it.

use crate::limits::{FAULT_LATENCY_MS_MAX, FAULT_MS_MAX};
use serde::{Deserialize, Serialize};

/// Effect of a fault on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultEffect {
    /// The request begins so many milliseconds later.
    Latency(u32),
    /// The request fails, and nothing is sent.
    Error,
    /// The request begins when the fault ends.
    Pause,
}

impl FaultEffect {
    /// Returns the word of JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            FaultEffect::Latency(_) => "latency",
            FaultEffect::Error => "error",
            FaultEffect::Pause => "pause",
        }
    }
}

/// A fault: an effect, and the requests that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub effect: FaultEffect,
    /// Share of the requests, 1 to 100, drawn for each one.
    pub percent: u8,
    pub reads: bool,
    pub writes: bool,
}

impl Fault {
    /// Whether meta gives such a fault out.
    pub fn is_possible(&self) -> bool {
        let possible = match self.effect {
            FaultEffect::Latency(ms) => (1..=FAULT_LATENCY_MS_MAX).contains(&ms),
            FaultEffect::Error => true,
            // A pause of some requests would hold up those that wait for them, and so all.
            FaultEffect::Pause => self.percent == 100,
        };
        possible && (1..=100).contains(&self.percent) && (self.reads || self.writes)
    }
}

/// A fault as a client is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldFault {
    /// Its number in the volume, never reused.
    pub id: u32,
    pub fault: Fault,
    /// Milliseconds until it ends.
    pub left_ms: u64,
}

impl ToldFault {
    /// Whether meta tells such a fault.
    pub fn is_possible(&self) -> bool {
        self.fault.is_possible() && self.id > 0 && (1..=FAULT_MS_MAX).contains(&self.left_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_faults_are_bounded_and_a_pause_is_for_all() {
        let all = Fault { effect: FaultEffect::Pause, percent: 100, reads: true, writes: true };
        let told = ToldFault { id: 1, fault: all, left_ms: FAULT_MS_MAX };
        let late = |ms| Fault { effect: FaultEffect::Latency(ms), percent: 1, ..all };
        assert!(told.is_possible() && late(1).is_possible() && late(60_000).is_possible());
        assert!(Fault { effect: FaultEffect::Error, percent: 7, reads: false, ..all }.is_possible());
        for wrong in [
            Fault { percent: 99, ..all },
            Fault { percent: 0, ..late(5) },
            Fault { percent: 101, ..late(5) },
            Fault { reads: false, writes: false, ..all },
            late(0),
            late(60_001),
        ] {
            assert!(!wrong.is_possible(), "{wrong:?}");
        }
        assert!(!ToldFault { id: 0, ..told }.is_possible() && !ToldFault { left_ms: 0, ..told }.is_possible());
        assert!(!ToldFault { left_ms: FAULT_MS_MAX + 1, ..told }.is_possible(), "it would never end");
    }
}
