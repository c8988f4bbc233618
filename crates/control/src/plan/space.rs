//! Thin provisioning: what the volumes of pools were promised, beside what their OSDs have.
//!
//! Sizes of volumes are promises. PGs of a pool carry equal shares of it, so a replica takes the part of its pool that its PG has. Pools that
//! share OSDs promise the same space, so the promises of all of them count on each OSD.

use super::quota::{Provisioned, check_quota, provisioned};
use super::volumes::shown;
use crate::records::{PoolRecord, Records};
use crate::refusal::refuse;
use std::collections::BTreeMap;
use types::codes;
use types::control::Refusal;
use types::{OsdId, PoolId};

/// Counts the replicas of a pool on each OSD.
fn replicas_of(records: &Records, pool: &PoolRecord) -> BTreeMap<OsdId, u64> {
    let mut counts = BTreeMap::new();
    let members = records.pgs_of(pool.id).flat_map(|pg| &pg.members);
    members.for_each(|member| *counts.entry(member.osd).or_default() += 1);
    counts
}

/// Space that the volumes of all pools could take on each OSD.
pub struct Promises(BTreeMap<OsdId, u128>);

impl Promises {
    /// Adds up all pools; `more` bytes are promised in a pool in addition.
    pub fn new(records: &Records, more: Option<(PoolId, u64)>) -> Promises {
        let mut promised: BTreeMap<OsdId, u128> = BTreeMap::new();
        for pool in records.pools.values() {
            let more = more.filter(|(id, _)| *id == pool.id).map_or(0, |(_, bytes)| bytes);
            let bytes = u128::from(provisioned(records, pool).bytes) + u128::from(more);
            for (osd, replicas) in replicas_of(records, pool) {
                *promised.entry(osd).or_default() += bytes * u128::from(replicas) / u128::from(pool.pg_count.max(1));
            }
        }
        Promises(promised)
    }

    /// Returns what was promised on the OSDs of a pool, in percent of what they have: that of the OSD with the most. `None`: the pool has no
    /// replica, or its OSDs have not told their sizes.
    pub fn percent(&self, records: &Records, pool: &PoolRecord) -> Option<u64> {
        let percent = |osd: OsdId| {
            let capacity = u128::from(records.osds.get(&osd)?.capacity_bytes);
            let promised = self.0.get(&osd).copied().unwrap_or(0);
            promised.saturating_mul(100).checked_div(capacity).map(|it| u64::try_from(it).unwrap_or(u64::MAX))
        };
        replicas_of(records, pool).into_keys().filter_map(percent).max()
    }
}

/// Returns how many bytes can be written into volumes of a pool before the first of its OSDs is full. `free` tells the free bytes of an
/// OSD; an OSD that does not serve has none, and does not count. `None`: none of them has told.
pub fn available_bytes(records: &Records, pool: &PoolRecord, free: &dyn Fn(OsdId) -> Option<u64>) -> Option<u64> {
    let room = |(osd, replicas): (OsdId, u64)| {
        let bytes = u128::from(free(osd)?) * u128::from(pool.pg_count) / u128::from(replicas);
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    };
    replicas_of(records, pool).into_iter().filter_map(room).min()
}

/// Checks that the pool may promise this many bytes and volumes more.
///
/// # Errors
/// BSLT-2072.
pub(super) fn check_promise(records: &Records, pool: &PoolRecord, more: Provisioned) -> Result<(), Refusal> {
    check_quota(records, pool, more)?;
    let Some(most) = pool.quota.overcommit_percent.filter(|_| more.bytes > 0) else { return Ok(()) };
    match Promises::new(records, Some((pool.id, more.bytes))).percent(records, pool) {
        Some(percent) if percent > most => {
            let text = format!(
                "with {} more, the volumes of pool {:?} could take {percent} % of what its OSDs have; it allows {most} %",
                shown(more.bytes),
                pool.name
            );
            Err(refuse(codes::POOL_QUOTA, text))
        }
        _ => Ok(()),
    }
}
