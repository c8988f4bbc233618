//! Quotas of pools: how many volumes a pool may have, and of which size together.
//!
//! Sizes count as they were promised to users. A volume in the trash counts, because it may be restored; one that is being erased does
//! not; one that is being resized has the longer one of its lengths. A quota below what the pool has already stops new volumes and growth, and nothing else.

use super::volumes::shown;
use crate::admin::QuotaChange;
use crate::records::{PoolQuota, PoolRecord, Records, VolumeRecord, VolumeState};
use crate::refusal::refuse;
use types::codes;
use types::control::Refusal;

/// Number and size of the volumes of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioned {
    pub bytes: u64,
    pub volumes: u64,
}

/// Adds up the volumes of a pool.
pub fn provisioned(records: &Records, pool: &PoolRecord) -> Provisioned {
    let len = |volume: &VolumeRecord| volume.resize.as_ref().map_or(0, |resize| resize.len_bytes).max(volume.len_bytes);
    let counted = records.volumes_of(pool.id).filter(|volume| volume.state != VolumeState::Deleting);
    counted.fold(Provisioned::default(), |sum, volume| Provisioned {
        bytes: sum.bytes.saturating_add(len(volume)),
        volumes: sum.volumes + 1,
    })
}

/// Checks that the pool may have this many volumes and bytes more.
///
/// # Errors
/// BSLT-2072.
pub(super) fn check_quota(records: &Records, pool: &PoolRecord, more: Provisioned) -> Result<(), Refusal> {
    if pool.quota.is_none() {
        return Ok(());
    }
    let has = provisioned(records, pool);
    let (volumes, bytes) = (has.volumes + more.volumes, has.bytes.saturating_add(more.bytes));
    let name = &pool.name;
    match pool.quota {
        PoolQuota { volumes: Some(most), .. } if more.volumes > 0 && volumes > most => {
            let text =
                format!("pool {name:?} has {} volumes of its quota of {most}, with those in the trash", has.volumes);
            Err(refuse(codes::POOL_QUOTA, text))
        }
        PoolQuota { bytes: Some(most), .. } if bytes > most => {
            let text = format!(
                "{} more would be above the quota of pool {name:?}: its volumes have {} of {}, with those in the trash",
                shown(more.bytes),
                shown(has.bytes),
                shown(most)
            );
            Err(refuse(codes::POOL_QUOTA, text))
        }
        _ => Ok(()),
    }
}

/// Returns a quota after a change: 0 removes a bound.
pub(super) fn changed_quota(before: PoolQuota, change: &QuotaChange) -> PoolQuota {
    let changed = |before, change: Option<u64>| change.map_or(before, |most| Some(most).filter(|most| *most > 0));
    PoolQuota {
        bytes: changed(before.bytes, change.bytes),
        volumes: changed(before.volumes, change.volumes),
        overcommit_percent: changed(before.overcommit_percent, change.overcommit_percent),
    }
}

/// Returns a quota in words.
pub fn quota_words(quota: &PoolQuota) -> String {
    let bytes = quota.bytes.map(shown);
    let volumes = quota.volumes.map(|volumes| format!("{volumes} volumes"));
    let overcommit = quota.overcommit_percent.map(|percent| format!("an over-commit of {percent} %"));
    let words: Vec<String> = bytes.into_iter().chain(volumes).chain(overcommit).collect();
    if words.is_empty() { "no quota".to_owned() } else { format!("a quota of {}", words.join(" and ")) }
}
