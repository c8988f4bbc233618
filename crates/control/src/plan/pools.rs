//! Pools: made and unmade a few PGs at a time, so that each step fits one transaction.

use super::{Plan, checked_size};
use crate::admin::PoolCreate;
use crate::codes::{self, refuse};
use crate::names;
use crate::records::{Key, PgRecord, PoolRecord, PoolState, Record, Records, Write};
use placement::{Domain, Osd, Policy};
use types::control::Refusal;
use types::map::Member;
use types::planted::{Bug, on};
use types::{Epoch, OsdId, PgId, PoolId, ReplicaId};

/// PGs that are made or removed in one step.
pub const PGS_PER_STEP: usize = 32;
/// Most PGs of a pool.
const PG_COUNT_MAX: u32 = 4096;
/// Replicas of one OSD beyond which a pool is made only when the administrator insists: each costs memory, a line in
/// every state block of the log, and elections after a failure.
const PGS_PER_OSD_MAX: u64 = 400;
/// PGs that an OSD should carry when nobody says otherwise.
const PGS_PER_OSD: u32 = 32;

/// Begins a pool. Its PGs are made by [`make_pgs`]; `up` says which OSDs live.
///
/// # Errors
/// BSLT-2012, BSLT-2014, BSLT-2016, and BSLT-2017 when the replicas cannot be kept apart.
pub fn pool_create(
    records: &Records,
    ask: &PoolCreate,
    up: &dyn Fn(OsdId) -> bool,
    wall_ms: u64,
) -> Plan<(PoolId, Option<String>)> {
    names::checked("pool", &ask.name)?;
    if records.has_pool(&ask.name) {
        return Err(refuse(codes::POOL_EXISTS, format!("pool {:?} exists", ask.name)));
    }
    let Some(domain) = Domain::from_name(&ask.domain) else {
        let shown: String = ask.domain.chars().take(40).collect();
        return Err(refuse(codes::BAD_POOL, format!("{shown:?} is not a failure domain")));
    };
    let pg_count = match ask.pg_count {
        0 => default_pg_count(records, ask.replicas),
        n => n,
    };
    if pg_count > PG_COUNT_MAX {
        return Err(refuse(codes::BAD_POOL, format!("{pg_count} PGs are too many")));
    }
    check_load(records, ask, pg_count, up)?;
    let mut counters = records.counters.clone();
    let id = PoolId(counters.next_pool);
    counters.next_pool += 1;
    let policy = Policy { replicas: ask.replicas as usize, domain };
    placement::place_pgs(&osds(records, up), policy, &[], &[PgId { pool: id, n: 0 }]).map_err(cannot_place)?;
    let pool = PoolRecord {
        id,
        name: ask.name.clone(),
        replicas: ask.replicas,
        domain: domain.name().to_string(),
        pg_count,
        pgs_made: 0,
        state: PoolState::Creating,
        created_ms: wall_ms,
    };
    let warning = match ask.replicas {
        1 => Some("one replica: a lost device is lost data".to_string()),
        2 => Some(
            "two replicas: writes stop while either is away, and a damaged copy has one judge only; use three"
                .to_string(),
        ),
        _ => None,
    };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Pool(pool))], (id, warning)))
}

/// Whether the OSDs would carry too many replicas, on average over those that take any.
fn check_load(records: &Records, ask: &PoolCreate, pg_count: u32, up: &dyn Fn(OsdId) -> bool) -> Result<(), Refusal> {
    let usable = osds(records, up).iter().filter(|o| o.usable).count() as u64;
    let held: usize = records.pgs.values().map(|pg| pg.members.len()).sum();
    let unmade = records.pools.values().map(|p| u64::from(p.pg_count - p.pgs_made) * u64::from(p.replicas));
    let all = held as u64 + unmade.sum::<u64>() + u64::from(pg_count) * u64::from(ask.replicas);
    let each = all.div_ceil(usable.max(1));
    if each > PGS_PER_OSD_MAX && !ask.force && usable > 0 {
        let text = format!(
            "{pg_count} PGs of {} replicas on {usable} OSDs are {each} PGs an OSD with those that exist; \
             more than {PGS_PER_OSD_MAX} need --force",
            ask.replicas
        );
        return Err(refuse(codes::BAD_POOL, text));
    }
    Ok(())
}

fn default_pg_count(records: &Records, replicas: u32) -> u32 {
    let osds = u32::try_from(records.osds.values().filter(|o| o.is_in).count()).unwrap_or(u32::MAX);
    let wanted = osds.saturating_mul(PGS_PER_OSD) / replicas.max(1);
    wanted.next_power_of_two().clamp(32, 1024)
}

fn cannot_place(refusal: placement::Refusal) -> Refusal {
    match refusal {
        placement::Refusal::Replicas { .. } => refuse(codes::BAD_POOL, refusal),
        placement::Refusal::Domains { .. } => refuse(codes::CANNOT_PLACE, refusal),
    }
}

fn osds(records: &Records, up: &dyn Fn(OsdId) -> bool) -> Vec<Osd> {
    let osd = |o: &crate::records::OsdRecord| Osd {
        id: o.id,
        host: o.host.clone(),
        rack: o.rack.clone(),
        zone: o.zone.clone(),
        weight: o.weight,
        usable: up(o.id) && o.poisoned.is_none() && (o.is_in && !o.drain || on(Bug::FlagsIgnored)),
    };
    records.osds.values().map(osd).collect()
}

/// The next PGs of a pool that is being created; the last step makes it ready.
///
/// # Errors
/// BSLT-2017 when OSDs went away meanwhile: nothing is written, a later try goes on.
pub fn make_pgs(records: &Records, pool: &PoolRecord, up: &dyn Fn(OsdId) -> bool) -> Plan<Vec<PgId>> {
    assert_eq!(pool.state, PoolState::Creating, "pool {} is not being made", pool.name);
    let count = (pool.pg_count - pool.pgs_made).min(PGS_PER_STEP as u32);
    let pgs: Vec<PgId> = (pool.pgs_made..pool.pgs_made + count).map(|n| PgId { pool: pool.id, n }).collect();
    let existing: Vec<Vec<OsdId>> =
        records.pgs_of(pool.id).map(|pg| pg.members.iter().map(|m| m.osd).collect()).collect();
    let domain = Domain::from_name(&pool.domain);
    let domain = domain.ok_or_else(|| refuse(codes::BAD_POOL, format!("pool {} has a strange domain", pool.name)))?;
    let policy = Policy { replicas: pool.replicas as usize, domain };
    let sets = placement::place_pgs(&osds(records, up), policy, &existing, &pgs).map_err(cannot_place)?;
    let mut counters = records.counters.clone();
    let mut writes = Vec::with_capacity(pgs.len() + 2);
    for (pg, set) in pgs.iter().zip(sets) {
        let members = set.into_iter().map(|osd| {
            let replica = ReplicaId(counters.next_replica);
            counters.next_replica += 1;
            Member { replica, osd }
        });
        let members = members.collect();
        writes.push(Write::Put(Record::Pg(PgRecord { pg: *pg, lineage: 1, conf_epoch: Epoch(1), members, order: 0 })));
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
    let volumes = records.volumes_of(pool.id).count();
    if volumes > 0 {
        return Err(refuse(codes::POOL_NOT_EMPTY, format!("pool {name:?} holds {volumes} volume(s)")));
    }
    let writes = match pool.state {
        PoolState::Deleting => Vec::new(),
        PoolState::Creating | PoolState::Ready => {
            vec![Write::Put(Record::Pool(PoolRecord { state: PoolState::Deleting, ..pool.clone() }))]
        }
    };
    Ok((writes, pool.id))
}

/// The next step of a removal: some PGs go, and with the last of them the pool. Gives the members that go.
pub fn unmake_pgs(records: &Records, pool: &PoolRecord) -> (Vec<Write>, Vec<(PgId, Member)>) {
    assert_eq!(pool.state, PoolState::Deleting, "pool {} is not being removed", pool.name);
    let mut gone = Vec::new();
    let mut writes = Vec::new();
    for pg in records.pgs_of(pool.id).take(PGS_PER_STEP) {
        gone.extend(pg.members.iter().map(|m| (pg.pg, *m)));
        writes.push(Write::Delete(Key::Pg(pg.pg)));
    }
    if records.pgs_of(pool.id).count() == writes.len() {
        writes.push(Write::Delete(Key::Pool(pool.id)));
    }
    checked_size((writes, gone))
}
