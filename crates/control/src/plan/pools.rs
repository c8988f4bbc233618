//! Pools: made and unmade a few PGs at a time, so that each step fits one transaction.

use super::limits::changed_pool_limits;
use super::quota::changed_quota;
use super::{Plan, checked_size};
use crate::admin::{PoolCreate, PoolSet};
use crate::names;
use crate::records::{Key, OsdRecord, PgRecord, PoolQuota, PoolRecord, PoolState, Record, Records, Write};
use crate::refusal::refuse;
use placement::{Domain, Osd, Policy};
use std::collections::BTreeMap;
use types::codes;
use types::control::Refusal;
use types::map::Member;
use types::planted::{Bug, on};
use types::{Compression, OsdId, PgId, PoolId, QosLimits, ReplicaId};

/// PGs that are made or removed in one step.
pub const PGS_PER_STEP: usize = 32;
/// Most PGs of a pool.
const PG_COUNT_MAX: u32 = 4096;
/// Least number of PGs of a pool whose creator names none.
const PG_COUNT_DEFAULT_MIN: u32 = 32;
/// Replicas of one OSD beyond which a pool is made only when the administrator insists. Each replica costs memory, a
/// line in every state block of the log, and elections after a failure.
const PGS_PER_OSD_MAX: u32 = 400;
/// The word for no device class in a change of a pool; no class has this name.
const ANY_CLASS: &str = "any";
/// PGs that an OSD should carry by default.
const PGS_PER_OSD: u32 = 32;

/// Begins a pool. [`make_pgs`] makes its PGs; `up` says which OSDs are alive.
///
/// # Errors
/// BSLT-2012, BSLT-2014, BSLT-2016, and BSLT-2017 when the replicas cannot be kept apart.
pub fn pool_create(records: &Records, ask: &PoolCreate, up: Up<'_>, wall_ms: u64) -> Plan<(PoolId, Option<String>)> {
    names::checked("pool", &ask.name)?;
    if records.has_pool(&ask.name) {
        return Err(refuse(codes::POOL_EXISTS, format!("pool {:?} exists", ask.name)));
    }
    let Some(domain) = Domain::from_name(&ask.domain) else {
        let shown: String = ask.domain.chars().take(40).collect();
        return Err(refuse(codes::BAD_POOL, format!("{shown:?} is not a failure domain")));
    };
    checked_class(ask.device_class.as_deref())?;
    let class = ask.device_class.as_deref();
    let policy = Policy { replicas: ask.replicas as usize, domain };
    let first = PgId { pool: PoolId(records.counters.next_pool), n: 0 };
    placement::place_pgs(&osds(records, up, class), policy, &[], &[first]).map_err(|e| cannot_place(e, class))?;
    let pg_count = pg_count(records, ask, up, policy)?;
    let mut counters = records.counters.clone();
    let id = PoolId(counters.next_pool);
    counters.next_pool += 1;
    let pool = PoolRecord {
        id,
        name: ask.name.clone(),
        replicas: ask.replicas,
        domain: domain.name().to_string(),
        pg_count,
        pgs_made: 0,
        state: PoolState::Creating,
        created_ms: wall_ms,
        limits: QosLimits::NONE,
        quota: PoolQuota::default(),
        device_class: ask.device_class.clone(),
        backup_compression: Compression::default(),
    };
    let warning = match ask.replicas {
        1 => Some("one replica: a lost device is lost data".to_string()),
        2 => Some(
            "with two replicas writes wait while one OSD is down, and no majority tells a damaged copy from a good one; use three"
                .to_string(),
        ),
        _ => None,
    };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Pool(pool))], (id, warning)))
}

/// Changes the limits of the volumes of a pool that have none of their own, its quota, its device class and the compression of backups.
/// Replicas follow to OSDs of the new class; there have to be enough of them.
///
/// # Errors
/// BSLT-2010, BSLT-2014, BSLT-2017, BSLT-2070.
pub fn pool_set(records: &Records, ask: &PoolSet, up: Up<'_>) -> Plan<PoolId> {
    let pool = records.pool(&ask.name)?;
    let device_class = match ask.device_class.as_deref() {
        None => pool.device_class.clone(),
        Some(ANY_CLASS) => None,
        class => checked_class(class)?.map(str::to_owned),
    };
    let (limits, quota) = (changed_pool_limits(pool, &ask.limits)?, changed_quota(pool.quota, &ask.quota));
    let backup_compression = ask.backup_compression.unwrap_or(pool.backup_compression);
    let record = PoolRecord { limits, quota, device_class, backup_compression, ..pool.clone() };
    if record == *pool {
        return Ok((Vec::new(), pool.id));
    }
    if let Some(class) = record.device_class.as_deref().filter(|_| record.device_class != pool.device_class) {
        let domain = Domain::from_name(&pool.domain).unwrap_or(Domain::Osd);
        let policy = Policy { replicas: pool.replicas as usize, domain };
        let one = PgId { pool: pool.id, n: 0 };
        placement::place_pgs(&osds(records, up, Some(class)), policy, &[], &[one])
            .map_err(|e| cannot_place(e, Some(class)))?;
    }
    Ok((vec![Write::Put(Record::Pool(record))], pool.id))
}

/// Gives a pool another name. Clients that have its volumes open go on: they know them by their ids.
///
/// # Errors
/// BSLT-2010, BSLT-2012, BSLT-2014; BSLT-2015 while it is being removed.
pub fn pool_rename(records: &Records, name: &str, new: &str) -> Plan<PoolId> {
    let pool = records.pool(name)?;
    let new = names::checked("pool", new)?;
    if pool.state == PoolState::Deleting {
        return Err(refuse(codes::POOL_NOT_READY, format!("pool {name:?} is being removed")));
    }
    if new == pool.name {
        return Ok((Vec::new(), pool.id));
    }
    if records.has_pool(new) {
        return Err(refuse(codes::POOL_EXISTS, format!("pool {new:?} exists")));
    }
    let record = PoolRecord { name: new.to_owned(), ..pool.clone() };
    Ok((vec![Write::Put(Record::Pool(record))], pool.id))
}

/// Returns the name of a device class if it is legal.
///
/// # Errors
/// BSLT-2014.
pub(super) fn checked_class(class: Option<&str>) -> Result<Option<&str>, Refusal> {
    if class == Some(ANY_CLASS) {
        return Err(refuse(
            codes::BAD_NAME,
            "a device class cannot have the name \"any\", which stands for all of them",
        ));
    }
    class.map(|class| names::checked("device class", class)).transpose()
}

/// Returns how many PGs the pool gets. A default that would overload an OSD is halved: only a number that an
/// administrator chose is a reason to refuse.
///
/// # Errors
/// BSLT-2016.
fn pg_count(records: &Records, ask: &PoolCreate, up: Up<'_>, policy: Policy) -> Result<u32, Refusal> {
    let mut count = if ask.pg_count == 0 { default_pg_count(records, ask) } else { ask.pg_count };
    if count > PG_COUNT_MAX {
        return Err(refuse(codes::BAD_POOL, format!("{count} PGs are too many")));
    }
    if ask.force {
        return Ok(count);
    }
    let held = loads_expected(records, up);
    let osds = osds(records, up, ask.device_class.as_deref());
    loop {
        match check_load(records, &osds, policy, &held, count) {
            Err(_) if ask.pg_count == 0 && count > PG_COUNT_DEFAULT_MIN => count /= 2,
            checked => return checked.map(|()| count),
        }
    }
}

/// Returns the replicas on each OSD, with those of pools that are being made.
fn loads_expected(records: &Records, up: Up<'_>) -> BTreeMap<OsdId, u32> {
    let mut held: BTreeMap<OsdId, u32> = BTreeMap::new();
    for pool in records.pools.values() {
        let mut sets = sets_of(records, pool.id);
        if let Some(domain) = Domain::from_name(&pool.domain).filter(|_| pool.state == PoolState::Creating) {
            let policy = Policy { replicas: pool.replicas as usize, domain };
            let unmade: Vec<PgId> = (pool.pgs_made..pool.pg_count).map(|n| PgId { pool: pool.id, n }).collect();
            // A pool that cannot be completed now counts with the PGs that it has.
            let osds = osds(records, up, pool.device_class.as_deref());
            sets.extend(placement::place_pgs(&osds, policy, &sets, &unmade).unwrap_or_default());
        }
        for (osd, load) in placement::loads_of(sets.iter().map(Vec::as_slice)) {
            *held.entry(osd).or_default() += load.replicas;
        }
    }
    held
}

/// Refuses a pool with which an OSD would carry too many replicas, by a trial placement. Where hosts differ in size, the
/// average says nothing of the OSD that carries most. An OSD that the pool does not use is not judged.
fn check_load(
    records: &Records,
    osds: &[Osd],
    policy: Policy,
    held: &BTreeMap<OsdId, u32>,
    pg_count: u32,
) -> Result<(), Refusal> {
    let pool = PoolId(records.counters.next_pool);
    let pgs: Vec<PgId> = (0..pg_count).map(|n| PgId { pool, n }).collect();
    let sets = placement::place_pgs(osds, policy, &[], &pgs).map_err(|e| cannot_place(e, None))?;
    let loads = placement::loads_of(sets.iter().map(Vec::as_slice));
    let all = loads.iter().map(|(osd, load)| (load.replicas + held.get(osd).copied().unwrap_or(0), *osd));
    match all.max_by_key(|(count, osd)| (*count, std::cmp::Reverse(*osd))) {
        Some((count, osd)) if count > PGS_PER_OSD_MAX => {
            let text = format!(
                "{pg_count} PGs of {} replicas give {osd} {count} PGs with those that exist; more than \
                 {PGS_PER_OSD_MAX} PGs an OSD need --force",
                policy.replicas
            );
            Err(refuse(codes::BAD_POOL, text))
        }
        _ => Ok(()),
    }
}

fn default_pg_count(records: &Records, ask: &PoolCreate) -> u32 {
    let serves = |o: &&OsdRecord| o.is_in && o.is_of(ask.device_class.as_deref());
    let osds = u32::try_from(records.osds.values().filter(serves).count()).unwrap_or(u32::MAX);
    let wanted = osds.saturating_mul(PGS_PER_OSD) / ask.replicas.max(1);
    wanted.next_power_of_two().clamp(PG_COUNT_DEFAULT_MIN, 1024)
}

fn cannot_place(refusal: placement::Refusal, class: Option<&str>) -> Refusal {
    match (&refusal, class) {
        (placement::Refusal::Replicas { .. }, _) => refuse(codes::BAD_POOL, refusal),
        (placement::Refusal::Domains { .. }, None) => refuse(codes::CANNOT_PLACE, refusal),
        (placement::Refusal::Domains { .. }, Some(class)) => {
            refuse(codes::CANNOT_PLACE, format!("on OSDs of device class {class:?}, {refusal}"))
        }
    }
}

/// Returns the members of each PG of a pool.
fn sets_of(records: &Records, pool: PoolId) -> Vec<Vec<OsdId>> {
    records.pgs_of(pool).map(|pg| pg.everyone().map(|m| m.osd).collect()).collect()
}

/// Whether an OSD is up.
type Up<'a> = &'a dyn Fn(OsdId) -> bool;

/// Returns the OSDs, of which those that serve and are of the device class are usable.
fn osds(records: &Records, up: Up<'_>, class: Option<&str>) -> Vec<Osd> {
    let stays = |o: &OsdRecord| o.is_in && !o.drain || on(Bug::FlagsIgnored);
    let usable = |o: &OsdRecord| up(o.id) && o.poisoned.is_none() && stays(o) && o.is_of(class);
    records.osds.values().map(|o| placed(o, usable(o))).collect()
}

/// Returns an OSD as placement sees it.
pub(crate) fn placed(o: &OsdRecord, usable: bool) -> Osd {
    let (host, rack, zone) = (o.host.clone(), o.rack.clone(), o.zone.clone());
    Osd { id: o.id, host, rack, zone, weight: o.weight, usable }
}

/// Makes the next PGs of a pool that is being created; the last step makes it ready.
///
/// # Errors
/// BSLT-2017 when OSDs went away meanwhile: nothing is written, and a later try continues.
pub fn make_pgs(records: &Records, pool: &PoolRecord, up: Up<'_>) -> Plan<Vec<PgId>> {
    assert_eq!(pool.state, PoolState::Creating, "pool {} is not being created", pool.name);
    let count = (pool.pg_count - pool.pgs_made).min(PGS_PER_STEP as u32);
    let pgs: Vec<PgId> = (pool.pgs_made..pool.pgs_made + count).map(|n| PgId { pool: pool.id, n }).collect();
    let existing = sets_of(records, pool.id);
    let domain = Domain::from_name(&pool.domain);
    let domain =
        domain.ok_or_else(|| refuse(codes::BAD_POOL, format!("pool {} has an invalid failure domain", pool.name)))?;
    let policy = Policy { replicas: pool.replicas as usize, domain };
    let class = pool.device_class.as_deref();
    let osds = osds(records, up, class);
    let sets = placement::place_pgs(&osds, policy, &existing, &pgs).map_err(|e| cannot_place(e, class))?;
    let mut counters = records.counters.clone();
    let mut writes = Vec::with_capacity(pgs.len() + 2);
    for (pg, set) in pgs.iter().zip(sets) {
        let members = set.into_iter().map(|osd| {
            let replica = ReplicaId(counters.next_replica);
            counters.next_replica += 1;
            Member { replica, osd }
        });
        let members = members.collect();
        writes.push(Write::Put(Record::Pg(PgRecord::new(*pg, members))));
    }
    writes.push(Write::Put(Record::Counters(counters)));
    let pgs_made = pool.pgs_made + count;
    let state = if pgs_made == pool.pg_count { PoolState::Ready } else { PoolState::Creating };
    writes.push(Write::Put(Record::Pool(PoolRecord { pgs_made, state, ..pool.clone() })));
    Ok(checked_size((writes, pgs)))
}

/// Begins the removal of an empty pool.
///
/// # Errors
/// BSLT-2010, BSLT-2018.
pub fn pool_remove(records: &Records, name: &str) -> Plan<PoolId> {
    let pool = records.pool(name)?;
    let (volumes, trashed) = (records.volumes_of(pool.id).count(), records.trash_of(pool.id).count());
    if volumes > 0 {
        let named = volumes - trashed;
        let trashed = if trashed > 0 { format!(" and {trashed} volume(s) in the trash") } else { String::new() };
        return Err(refuse(codes::POOL_NOT_EMPTY, format!("pool {name:?} holds {named} volume(s){trashed}")));
    }
    let writes = match pool.state {
        PoolState::Deleting => Vec::new(),
        PoolState::Creating | PoolState::Ready => {
            vec![Write::Put(Record::Pool(PoolRecord { state: PoolState::Deleting, ..pool.clone() }))]
        }
    };
    Ok((writes, pool.id))
}

/// Takes the next step of a removal: some PGs go, and with the last of them the pool. Returns the members that go.
pub fn unmake_pgs(records: &Records, pool: &PoolRecord) -> (Vec<Write>, Vec<(PgId, Member)>) {
    assert_eq!(pool.state, PoolState::Deleting, "pool {} is not being removed", pool.name);
    let mut gone = Vec::new();
    let mut writes = Vec::new();
    for pg in records.pgs_of(pool.id).take(PGS_PER_STEP) {
        gone.extend(pg.everyone().map(|m| (pg.pg, m)));
        writes.push(Write::Delete(Key::Pg(pg.pg)));
    }
    if records.pgs_of(pool.id).count() == writes.len() {
        writes.push(Write::Delete(Key::Pool(pool.id)));
    }
    checked_size((writes, gone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::OsdRegister;
    use types::OsdUuid;

    /// Returns records with so many OSDs on each host.
    fn hosts(osds: &[usize]) -> Records {
        let mut records = Records::default();
        let on = osds.iter().enumerate().flat_map(|(host, count)| std::iter::repeat_n(host, *count));
        for (n, host) in on.enumerate() {
            let (host, rack, zone) = (format!("h{host}"), String::new(), String::new());
            let uuid = OsdUuid([n as u8 + 1; 16]);
            let ask = OsdRegister {
                osd: None,
                uuid,
                host,
                rack,
                zone,
                capacity_bytes: 1 << 40,
                device_class: None,
                replaces: None,
            };
            let (writes, _) = super::super::osd_register(&records, &ask, 1).expect("it is new");
            writes.iter().for_each(|write| records.apply(write));
        }
        records
    }

    fn ask(name: &str, pg_count: u32, force: bool) -> PoolCreate {
        PoolCreate { name: name.into(), replicas: 3, domain: "host".into(), pg_count, force, device_class: None }
    }

    fn make(records: &mut Records, ask: &PoolCreate) -> Result<PoolRecord, Refusal> {
        let up = |_: OsdId| true;
        let (writes, (id, _)) = pool_create(records, ask, &up, 1)?;
        writes.iter().for_each(|write| records.apply(write));
        while records.pools[&id].state == PoolState::Creating {
            let pool = records.pools[&id].clone();
            let (writes, _) = make_pgs(records, &pool, &up).expect("it is placed");
            writes.iter().for_each(|write| records.apply(write));
        }
        Ok(records.pools[&id].clone())
    }

    #[test]
    fn the_osd_that_would_carry_most_is_judged_and_named_not_the_average() {
        let mut records = hosts(&[10, 10, 1]);
        let refusal = make(&mut records, &ask("p", 2048, false)).expect_err("osd.21 is alone on its host");
        assert_eq!(refusal.code, codes::BAD_POOL);
        let text = "2048 PGs of 3 replicas give osd.21 2048 PGs with those that exist; more than 400 PGs an OSD need \
                    --force";
        assert!(refusal.message.starts_with(text), "{}", refusal.message);
        assert_eq!(make(&mut records, &ask("p", 256, false)).map(|p| p.pg_count), Ok(256));
        let refusal = make(&mut records, &ask("q", 256, false)).expect_err("256 and 256");
        assert!(refusal.message.starts_with("256 PGs of 3 replicas give osd.21 512 PGs"), "{}", refusal.message);
        assert_eq!(make(&mut records, &ask("q", 256, true)).map(|p| p.pg_count), Ok(256));
    }

    #[test]
    fn an_osd_that_the_new_pool_does_not_use_is_not_judged() {
        let mut records = hosts(&[1, 1, 1]);
        make(&mut records, &ask("p", 512, true)).expect("by force");
        for osd in records.osds.clone().into_values() {
            records.apply(&Write::Put(Record::Osd(crate::records::OsdRecord { is_in: false, ..osd })));
        }
        for n in 4..=6u8 {
            let (host, rack, zone) = (format!("n{n}"), String::new(), String::new());
            let ask = OsdRegister {
                osd: None,
                uuid: OsdUuid([n; 16]),
                host,
                rack,
                zone,
                capacity_bytes: 1 << 40,
                device_class: None,
                replaces: None,
            };
            let (writes, _) = super::super::osd_register(&records, &ask, 1).expect("it is new");
            writes.iter().for_each(|write| records.apply(write));
        }
        assert_eq!(make(&mut records, &ask("q", 256, false)).map(|p| p.pg_count), Ok(256));
    }

    /// A default number of PGs is no reason for a refusal.
    #[test]
    fn a_pool_of_the_default_size_fits_the_osds() {
        let mut records = hosts(&[50, 50, 1]);
        assert_eq!(make(&mut records, &ask("p", 0, false)).map(|p| p.pg_count), Ok(256));
        assert_eq!(make(&mut records, &ask("q", 0, false)).map(|p| p.pg_count), Ok(128));
        let even = make(&mut hosts(&[8, 8, 8]), &ask("p", 0, false));
        assert_eq!(even.map(|p| p.pg_count), Ok(256));
    }
}
