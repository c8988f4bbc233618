//! Values of the cluster map that both planes use.

use crate::ids::{Epoch, OsdId, PgId, ReplicaId};
use std::net::SocketAddr;

/// Address of an OSD, and the run of its process that listens there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdAddr {
    pub osd: OsdId,
    pub addr: SocketAddr,
}

/// One member of a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Member {
    pub replica: ReplicaId,
    pub osd: OsdId,
}

/// A PG and its members, as meta recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgMap {
    pub pg: PgId,
    /// Forced recovery alone changes it; delta and repair need equal lineage.
    pub lineage: u64,
    /// Version of the member list.
    pub conf_epoch: Epoch,
    /// Members in the order of placement; the first is the preferred leader.
    pub members: Vec<Member>,
}

impl PgMap {
    /// Returns the member on `osd`.
    pub fn member_on(&self, osd: OsdId) -> Option<Member> {
        self.members.iter().copied().find(|m| m.osd == osd)
    }

    /// Returns the member with this replica id.
    pub fn member(&self, replica: ReplicaId) -> Option<Member> {
        self.members.iter().copied().find(|m| m.replica == replica)
    }
}
