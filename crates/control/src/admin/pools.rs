//! Requests about pools, and how a pool is shown.

use serde::{Deserialize, Serialize};
use types::qos::QosChange;
use types::{Compression, PoolId, QosLimits};

/// A new pool. `pg_count` 0 lets meta choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCreate {
    pub name: String,
    pub replicas: u32,
    /// `osd`, `host`, `rack`, `zone`.
    pub domain: String,
    pub pg_count: u32,
    /// Makes the pool even when an OSD gets more PGs than the limit.
    pub force: bool,
    /// Its replicas lie on OSDs of this device class alone.
    pub device_class: Option<String>,
}

/// Change of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSet {
    pub name: String,
    /// The limits of its volumes that have none of their own.
    pub limits: QosChange,
    pub quota: QuotaChange,
    /// Its replicas move to OSDs of this class; `any`: the class of an OSD does not matter.
    pub device_class: Option<String>,
    /// Compression of its volumes' backups that ask for none.
    pub backup_compression: Option<Compression>,
}

/// Change of the quota of a pool. `None`: it stays; 0: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    pub bytes: Option<u64>,
    pub volumes: Option<u64>,
    pub overcommit_percent: Option<u64>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolView {
    pub pool: PoolId,
    pub name: String,
    pub replicas: u32,
    pub domain: String,
    pub pg_count: u32,
    /// `creating`, `ready`, `deleting`.
    pub state: String,
    pub volumes: u32,
    pub segments: u64,
    /// Volumes in the trash, which `volumes` does not count.
    #[serde(default)]
    pub trashed: u32,
    /// Limits of its volumes that have none of their own.
    #[serde(default)]
    pub limits: QosLimits,
    /// Sum of the sizes of its volumes, with those in the trash.
    #[serde(default)]
    pub provisioned_bytes: u64,
    /// Most that this sum may be; absent: no bound.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Most volumes, with those in the trash; absent: no bound.
    #[serde(default)]
    pub quota_volumes: Option<u64>,
    /// Device class of the OSDs that its replicas lie on; absent: any.
    #[serde(default)]
    pub device_class: Option<String>,
    /// Most that `overcommit_percent` may be; absent: no bound.
    #[serde(default)]
    pub quota_overcommit_percent: Option<u64>,
    /// The most that all volumes could take on one of its OSDs, in percent of what that OSD has. Above 100 the pool can become full.
    #[serde(default)]
    pub overcommit_percent: Option<u64>,
    /// Bytes that can be written before the first of its OSDs is full; absent: none has reported.
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// Compression of its volumes' backups that ask for none.
    #[serde(default)]
    pub backup_compression: Compression,
}
