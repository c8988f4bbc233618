//! The floor: the least work that a three-replica, log-replicated 4 KiB write can do on this machine.
//!
//! Four processes of this binary run, each with one thread and one io_uring: a client and three servers. The client keeps
//! `depth` writes in flight, each to one of the servers that lead: to the only one, or, as a volume over many PGs does, to a
//! random one of three. That one sends it to the other two, all three append it to their logs in group commit, and the
//! leader answers when a majority has. There is no Raft, no index, no checksum and no destage: nothing that replicates a
//! log can be cheaper.
//!
//! Input: [`run`] (the parent) and [`node_main`] (a child, by a command line that `run` builds). Output: one
//! [`FloorRow`] for each case.
//!
//! Invariant: the floor shares no code with the data plane that it is compared with, but for aligned memory.
#![allow(unsafe_code, clippy::disallowed_methods, reason = "a probe: bare io_uring, the real clock, real processes")]

mod journal;
mod node;
mod ring;
mod run;
#[cfg(test)]
mod tests;

pub use node::node_main;
pub use run::run;

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// Whether the log flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FloorMode {
    /// No flush, as on a device with power-loss protection.
    #[serde(rename = "noflush")]
    Plp,
    /// fdatasync after each batch.
    #[serde(rename = "flush")]
    Sync,
}

impl FloorMode {
    /// Returns the word for flags, output and JSON.
    pub fn word(self) -> &'static str {
        match self {
            FloorMode::Plp => "noflush",
            FloorMode::Sync => "flush",
        }
    }

    /// Returns the mode of a word.
    pub fn from_word(word: &str) -> Option<FloorMode> {
        [FloorMode::Plp, FloorMode::Sync].into_iter().find(|mode| mode.word() == word)
    }
}

/// Configuration of a measurement.
#[derive(Clone, Debug)]
pub struct FloorConfig {
    /// Folder of the three log files. They are made, and left there for the next run. It must allow O_DIRECT.
    pub dir: PathBuf,
    /// Length of one case, in seconds; at least 0.5.
    pub secs: f64,
    pub modes: Vec<FloorMode>,
    /// Writes in flight, to all leaders together; 1 to [`DEPTH_MAX`].
    pub depths: Vec<u32>,
    /// Servers that lead, 1 to [`SERVERS`].
    pub leaders: Vec<u32>,
    /// Length of each log file, which is written round and round. A multiple of 1 MiB, from 16 MiB.
    pub log_bytes: u64,
    /// Command that starts a node: program and first arguments, for example `basalt bench floor-node`. The role is
    /// appended. The child must pass the following arguments to [`node_main`].
    pub node_command: Vec<OsString>,
}

/// Limit of the writes in flight.
pub const DEPTH_MAX: u32 = 1024;
/// Servers of a case, with a log each.
pub const SERVERS: usize = 3;

/// Result of one case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FloorRow {
    pub mode: FloorMode,
    pub leaders: u32,
    pub depth: u32,
    pub writes: u64,
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU for each write: all four processes together, then the client and each server. Those that lead come first.
    pub cpu_us_per_write: f64,
    pub cpu_us_by_role: [f64; 1 + SERVERS],
}

/// Why the floor could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("the floor's {0}")]
    Config(String),
    #[error("a {role} of the floor ended without a result")]
    Node { role: &'static str },
    #[error(transparent)]
    Cpu(#[from] crate::cpu::CpuError),
}

/// Puts the failed action in front of an I/O error.
fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> FloorError {
    move |source| FloorError::Io { what: what.into(), source }
}

/// Payload of a write.
const PAYLOAD_LEN: usize = 4096;
/// Length of a frame's head: the sequence number, the kind, and as much space as a real one would need.
const HEAD_LEN: usize = 64;
const FRAME_LEN: usize = HEAD_LEN + PAYLOAD_LEN;
/// Kinds of frames. An acknowledgement is a bare head.
const ACK: u8 = 0;
const WRITE: u8 = 1;

/// Returns a frame's head.
fn head(sequence: u64, kind: u8) -> [u8; HEAD_LEN] {
    let mut head = [0u8; HEAD_LEN];
    head[..8].copy_from_slice(&sequence.to_le_bytes());
    head[8] = kind;
    head
}

/// Returns the sequence number and the kind of a frame.
fn parse(frame: &[u8]) -> (u64, u8) {
    (u64::from_le_bytes(*frame.first_chunk().expect("a whole frame")), frame[8])
}

/// Returns the length of the frame that the bytes begin with; `None` if they are too few to tell.
fn frame_len(bytes: &[u8]) -> Option<usize> {
    (bytes.len() >= HEAD_LEN).then(|| if parse(bytes).1 == WRITE { FRAME_LEN } else { HEAD_LEN })
}
