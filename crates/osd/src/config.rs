//! Settings of one OSD at its start. Values that its device fixes (ids, geometry) are in the superblock.

use crate::tuning::OsdTuning;
use engine::EngineConfig;
use env::NetAddr;
use std::net::SocketAddr;
use types::config::{Check, ConfigFaults};
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
    /// Version of the program; meta shows it to operators.
    pub version: String,
    pub engine: EngineConfig,
    /// The device carries the mark of an older copy: it serves only when meta says so (R17).
    pub behind: bool,
    /// The times of R3 are those of the pool: every OSD holds the same ones.
    pub timing: group::Timing,
    pub tuning: OsdTuning,
    /// Serves reads under the leader's lease; off: every read asks a majority (R3).
    pub lease_reads: bool,
}

impl OsdConfig {
    /// Checks all tunables, and the relations between those of different layers.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("an OSD");
        check.part("timing", self.timing.validate());
        check.part("tuning", self.tuning.validate(&self.timing));
        check.ensure(self.engine.owner != crate::node::OWNER_BUS, "engine.owner is the bus's: two share a token space");
        check.end()
    }
}
