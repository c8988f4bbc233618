//! Settings of one OSD at its start. Values that its device fixes (ids, geometry) are in the superblock.

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
    /// Chosen at every start.
    pub incarnation: Incarnation,
    /// Address on which peers and clients connect.
    pub listen: NetAddr,
    /// Address that peers and clients are told; the bound address when `None`.
    pub advertise: Option<SocketAddr>,
    /// HTTP endpoint; only reported to meta, for the map.
    pub http: Option<SocketAddr>,
    /// Failure domains; `None` keeps what is registered.
    pub host: Option<String>,
    pub rack: Option<String>,
    pub zone: Option<String>,
    /// Longest wait after the mount for a confirmation of meta that the device is the current one (R17, ADR 0012). With
    /// no meta in reach the OSD then goes on by itself. Zero: no wait.
    pub let_in_wait: std::time::Duration,
    /// Version of the program; meta shows it to operators.
    pub version: String,
    pub engine: EngineConfig,
    pub timing: group::Timing,
    /// Serves reads under the leader's lease; off: every read asks a majority (R3).
    pub lease_reads: bool,
}
