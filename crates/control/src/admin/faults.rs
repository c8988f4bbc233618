//! Rehearsed faults, as administrators ask for them and see them.

use serde::{Deserialize, Serialize};
use types::faults::Fault;

/// A fault to rehearse, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAdd {
    pub fault: Fault,
    pub for_ms: u64,
}

/// A rehearsed fault of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultView {
    /// Its number in the volume.
    pub id: u32,
    /// `latency`, `error`, `pause`.
    pub kind: String,
    pub latency_ms: Option<u32>,
    /// Share of the requests.
    pub percent: u32,
    pub reads: bool,
    pub writes: bool,
    /// Its begin and its end, in milliseconds of the Unix clock.
    pub since_ms: u64,
    pub until_ms: u64,
    /// The administrator that asked for it.
    pub by: String,
}
