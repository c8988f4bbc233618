//! Commands of an administrator while other faults strike.

use super::{Class, Strike};
use control::admin::{AdminAsk, OsdSet, PoolCreate, VolumeRemove};
use std::collections::BTreeSet;
use std::time::Duration;
use types::{OsdId, PoolId};

/// Number of names that an administrator uses again and again.
const NAMES: u64 = 4;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::Transfer => s.cluster.transfer(s.rng),
        Class::Volumes => {
            let name = format!("main/spare{}", s.rng.below(NAMES));
            let len_bytes = s.rng.between(1, 4096) << 20;
            s.cluster.admin(AdminAsk::VolumeCreate {
                name: name.clone(),
                len_bytes,
                stripe: types::Stripe::NONE,
                text: Default::default(),
            });
            let force = s.rng.chance(1, 2);
            let delay = Duration::from_millis(s.rng.between(0, 3000));
            s.after(delay, move |s| {
                s.cluster.admin(AdminAsk::VolumeRemove(VolumeRemove {
                    name,
                    force,
                    now: true,
                    snapshots: true,
                    detach: false,
                }))
            });
        }
        Class::Pools => {
            let name = format!("spare{}", s.rng.below(NAMES));
            let replicas = s.cluster.options.replicas;
            let pool = PoolCreate {
                name: name.clone(),
                replicas,
                domain: "osd".to_owned(),
                pg_count: 1,
                force: false,
                device_class: None,
            };
            s.cluster.admin(AdminAsk::PoolCreate(pool));
            let delay = Duration::from_millis(s.rng.between(0, 3000));
            s.after(delay, move |s| s.cluster.admin(AdminAsk::PoolRemove { name }));
        }
        Class::OsdFlags => return osd_flags(s),
        other => unreachable!("{other:?} is no command"),
    }
    true
}

/// Keeps new PGs from an OSD for a while, and creates a pool meanwhile: none of its PGs may be there.
fn osd_flags(s: &mut Strike<'_>) -> bool {
    let Some(records) = s.cluster.meta.records() else { return false };
    // Only one OSD at a time is flagged, so that only this strike ends what it began.
    if records.osds.values().any(|osd| osd.drain || !osd.is_in) {
        return false;
    }
    let osd = records.osds.keys().nth(s.rng.below(records.osds.len() as u64) as usize).copied();
    let Some(osd) = osd else { return false };
    let (is_in, drain) = [(Some(false), None), (None, Some(true))][s.rng.below(2) as usize];
    s.cluster.admin(AdminAsk::OsdSet(OsdSet::one(osd, is_in, drain)));
    let name = format!("beside{}", s.rng.below(NAMES));
    let delay = Duration::from_millis(s.rng.between(20, 300));
    s.after(delay, move |s| make_beside(s, osd, name));
    true
}

/// Whether meta has recorded the flag of the OSD.
fn is_flagged(s: &Strike<'_>, osd: OsdId) -> bool {
    let records = s.cluster.meta.records();
    records.and_then(|r| r.osds.get(&osd)).is_some_and(|osd| osd.drain || !osd.is_in)
}

fn make_beside(s: &mut Strike<'_>, osd: OsdId, name: String) {
    let flagged = is_flagged(s, osd);
    let pools = |s: &Strike<'_>| s.cluster.meta.records().map(|r| r.pools.keys().copied().collect());
    let before: BTreeSet<PoolId> = pools(s).unwrap_or_default();
    // The pool has as many replicas as all pools, or the budget for lies would not fit it. Without an OSD to spare it
    // is refused.
    let replicas = s.cluster.options.replicas;
    let pool = PoolCreate {
        name: name.clone(),
        replicas,
        domain: "osd".to_owned(),
        pg_count: 4,
        force: false,
        device_class: None,
    };
    s.cluster.admin(AdminAsk::PoolCreate(pool));
    let delay = Duration::from_millis(s.rng.between(200, 3000));
    s.after(delay, move |s| {
        if flagged && is_flagged(s, osd) {
            let pgs = s.cluster.meta.records().into_iter().flat_map(|r| r.pgs.values());
            let mut new = pgs.filter(|pg| !before.contains(&pg.pg.pool));
            let wrong = new.find(|pg| pg.members.iter().any(|m| m.osd == osd)).map(|pg| pg.pg);
            if let Some(pg) = wrong {
                s.cluster.note_wrong(format!("pg {pg} was placed on {osd}, which was out or drained"));
            }
        }
        s.cluster.admin(AdminAsk::PoolRemove { name });
        s.cluster.admin(AdminAsk::OsdSet(OsdSet::one(osd, Some(true), Some(false))));
    });
}
