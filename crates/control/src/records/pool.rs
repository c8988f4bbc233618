//! The record of a pool.

use serde::{Deserialize, Serialize};
use types::{Compression, PoolId, QosLimits};

/// Life cycle of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolState {
    Creating,
    Ready,
    Deleting,
}

/// A pool. `pgs_made` counts up to `pg_count` while it is being created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub id: PoolId,
    pub name: String,
    pub replicas: u32,
    pub domain: String,
    pub pg_count: u32,
    pub pgs_made: u32,
    pub state: PoolState,
    pub created_ms: u64,
    /// Limits of its volumes that have none of their own.
    #[serde(default, skip_serializing_if = "QosLimits::is_none")]
    pub limits: QosLimits,
    #[serde(default, skip_serializing_if = "PoolQuota::is_none")]
    pub quota: PoolQuota,
    /// Device class of the OSDs that its replicas lie on; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// Compression of its volumes' backups that ask for none.
    #[serde(default, skip_serializing_if = "Compression::is_default")]
    pub backup_compression: Compression,
}

/// Most that the volumes of a pool may be together; those in the trash count. `None`: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolQuota {
    /// Sum of the sizes, as a user sees them: without replicas, and whether data was written or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<u64>,
    /// Sum of the sizes on each OSD, with those of other pools, in percent of what the OSD has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit_percent: Option<u64>,
}

impl PoolQuota {
    pub fn is_none(&self) -> bool {
        *self == PoolQuota::default()
    }
}
