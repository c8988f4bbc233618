//! What one OSD is told at start. What its device fixes (ids, geometry) is in the superblock.

use engine::EngineConfig;
use env::NetAddr;
use std::net::SocketAddr;
use types::{ClusterId, Incarnation, OsdId, OsdUuid};

/// Settings of one OSD process.
#[derive(Clone, Debug)]
pub struct OsdConfig {
    pub cluster: ClusterId,
    pub osd: OsdId,
    pub uuid: OsdUuid,
    /// New at every start.
    pub incarnation: Incarnation,
    /// Where peers and clients connect.
    pub listen: NetAddr,
    /// What others are told to connect to; the bound address when `None`.
    pub advertise: Option<SocketAddr>,
    /// HTTP endpoint, for the map only.
    pub http: Option<SocketAddr>,
    /// Failure domains; `None` keeps what is registered.
    pub host: Option<String>,
    pub rack: Option<String>,
    pub zone: Option<String>,
    /// How long the OSD waits after its mount for the word of meta that its device is the current one (R17, ADR 0012). With
    /// no meta in reach it then goes on by itself. Zero: no wait.
    pub let_in_wait: std::time::Duration,
    /// Of the program, for people: meta shows it.
    pub version: String,
    pub engine: EngineConfig,
    pub timing: group::Timing,
    /// Reads are served under the leader's lease; off: every read asks a majority (R3).
    pub lease_reads: bool,
}
