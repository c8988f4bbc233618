//! Pools: what counts for a quota, what is refused, that nothing that exists is touched; and new names.

use super::world::{World, opened};
use super::*;
use crate::admin::{PoolSet, PoolView, QuotaChange};
use types::Compression;

const TWO_GIB: u64 = 2 * SEGMENT;

fn set(world: &mut World, bytes: Option<u64>, volumes: Option<u64>) -> PoolView {
    let quota = QuotaChange { bytes, volumes, ..QuotaChange::default() };
    match world.admin(AdminAsk::PoolSet(PoolSet { name: "p".into(), quota, ..PoolSet::default() })) {
        Ok(AdminAnswer::Pool(view)) => view,
        other => panic!("no pool: {other:?}"),
    }
}

fn create(world: &mut World, name: &str, len_bytes: u64) -> Result<AdminAnswer, Refusal> {
    let (stripe, text) = (Stripe::NONE, Default::default());
    world.admin(AdminAsk::VolumeCreate { name: name.into(), len_bytes, stripe, text })
}

fn resize(world: &mut World, name: &str, len_bytes: u64) -> Result<AdminAnswer, Refusal> {
    world.admin(AdminAsk::VolumeResize { name: name.into(), to: crate::admin::Resizing::to(len_bytes) })
}

fn refused(result: Result<AdminAnswer, Refusal>) -> String {
    let refusal = result.expect_err("it is above the quota");
    assert_eq!(refusal.code, codes::POOL_QUOTA, "{refusal}");
    refusal.to_string()
}

#[test]
fn volumes_and_growth_above_a_quota_are_refused() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_pool("other", 3, 4);
    world.make_volume("p/a", SEGMENT);
    let view = set(&mut world, Some(3 * SEGMENT), Some(2));
    assert_eq!((view.provisioned_bytes, view.quota_bytes, view.quota_volumes), (SEGMENT, Some(3 * SEGMENT), Some(2)));
    let text = refused(create(&mut world, "p/b", TWO_GIB + 4096));
    assert!(text.contains("1GiB of 3GiB"), "{text}");
    create(&mut world, "p/b", SEGMENT).expect("it fits");
    let text = refused(create(&mut world, "p/c", 4096 * 256));
    assert!(text.contains("2 volumes of its quota of 2"), "{text}");
    refused(resize(&mut world, "p/a", TWO_GIB + 4096));
    resize(&mut world, "p/a", TWO_GIB).expect("both have 3 GiB then");
    world.make_volume("other/x", 100 * SEGMENT);
    // Other records of the same names are not in the way, and the numbers are of the records: a crash changes none.
    world.crash();
    world.connect_all();
    refused(resize(&mut world, "p/b", SEGMENT + 4096));
    let view = set(&mut world, Some(SEGMENT), None);
    assert_eq!((view.provisioned_bytes, view.volumes), (3 * SEGMENT, 2), "what exists stays");
    resize(&mut world, "p/a", TWO_GIB).expect("no growth");
    refused(resize(&mut world, "p/a", TWO_GIB + 4096));
    let view = set(&mut world, Some(0), Some(3));
    assert_eq!((view.quota_bytes, view.quota_volumes), (None, Some(3)), "0 removes one of two");
    create(&mut world, "p/c", 1000 * SEGMENT).expect("no quota of bytes");
    refused(create(&mut world, "p/d", SEGMENT));
    assert_eq!(set(&mut world, None, Some(0)).quota_volumes, None);
    create(&mut world, "p/d", SEGMENT).expect("no quota");
}

#[test]
fn volume_in_the_trash_counts_until_it_is_erased() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    set(&mut world, Some(TWO_GIB), Some(1));
    world.make_volume("p/a", SEGMENT);
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove {
            name: "p/a".into(),
            force: false,
            now: false,
            snapshots: false,
            detach: false,
        }))
        .expect("to the trash");
    let text = refused(create(&mut world, "p/b", SEGMENT));
    assert!(text.contains("in the trash"), "{text}");
    world.admin(AdminAsk::TrashRestore { which: "p/a".into(), name: None }).expect("it counted all the time");
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove {
            name: "p/a".into(),
            force: false,
            now: true,
            snapshots: false,
            detach: false,
        }))
        .expect("removed");
    create(&mut world, "p/b", TWO_GIB).expect("erased volumes count no more");
}

#[test]
fn events_name_what_changed_of_a_pool() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    set(&mut world, Some(10 << 40), Some(500));
    set(&mut world, Some(10 << 40), None);
    set(&mut world, Some(0), Some(0));
    (0..6).for_each(|_| world.pass(Duration::from_secs(1)));
    let told: Vec<&str> =
        world.events.iter().filter(|event| event.kind == "pool.changed").map(|event| event.text.as_str()).collect();
    assert_eq!(told, ["pool p: a quota of 10TiB and 500 volumes", "pool p: no quota"]);
}

#[test]
fn renamed_pool_keeps_its_volumes_and_gives_its_name_free() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_pool("q", 3, 4);
    world.make_volume("p/a", SEGMENT);
    let rename = |name: &str, new: &str| AdminAsk::PoolRename { name: name.into(), new: new.into() };
    for (name, new, code) in
        [("p", "q", codes::POOL_EXISTS), ("p", "no/name", codes::BAD_NAME), ("missing", "r", codes::POOL_UNKNOWN)]
    {
        assert_eq!(world.admin(rename(name, new)).expect_err("refused").code, code, "{name} to {new}");
    }
    let held = opened(world.ask(1, open("p/a", true, false)));
    let Ok(AdminAnswer::Pool(view)) = world.admin(rename("p", "fast")) else { panic!("no pool") };
    assert_eq!((view.name.as_str(), view.volumes), ("fast", 1));
    // The holder knows its volume by the id, and another leader of meta has the new name.
    world.crash();
    world.connect_all();
    let keepalive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    assert!(matches!(world.ask(1, keepalive), ClientAnswer::Alive { .. }));
    assert!(world.admin(AdminAsk::VolumeInfo { name: "fast/a".into() }).is_ok());
    assert_eq!(
        world.admin(AdminAsk::VolumeInfo { name: "p/a".into() }).expect_err("renamed").code,
        codes::POOL_UNKNOWN
    );
    world.admin(rename("fast", "fast")).expect("nothing to do");
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    assert_eq!(world.control.records().volumes.len(), 2);
}

/// Makes each OSD report its use, and passes a second.
fn fill(world: &mut World, used: u64, free: u64) {
    world.pass(Duration::from_secs(1));
    (1..=3).for_each(|n| world.heartbeat(OsdId(n), |beat| (beat.used_bytes, beat.free_bytes) = (used, free)));
    world.pass(Duration::from_secs(1));
}

#[test]
fn over_commit_is_shown_and_bounded_over_all_pools_of_an_osd() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_pool("other", 3, 4);
    let tib = 1 << 40;
    // Each OSD has 1 TiB, and a replica of every PG.
    world.make_volume("p/a", tib / 2);
    world.make_volume("other/b", tib);
    let view = set(&mut world, None, None);
    assert_eq!((view.overcommit_percent, view.quota_overcommit_percent), (Some(150), None));
    let quota = QuotaChange { overcommit_percent: Some(200), ..QuotaChange::default() };
    world.admin(AdminAsk::PoolSet(PoolSet { name: "p".into(), quota, ..PoolSet::default() })).expect("a bound");
    let text = refused(create(&mut world, "p/c", tib * 5 / 8));
    assert!(text.contains("212 % of what its OSDs have; it allows 200 %"), "{text}");
    refused(resize(&mut world, "p/a", tib * 5 / 4));
    create(&mut world, "other/c", 10 * tib).expect("this pool has no bound");
    refused(create(&mut world, "p/d", SEGMENT));
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove { name: "other/c".into(), now: true, ..Default::default() }))
        .expect("erased");
    create(&mut world, "p/c", tib / 2).expect("200 %");
}

#[test]
fn pool_that_is_promised_more_than_it_has_is_nearly_full_at_70_percent() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", 1 << 40);
    let gib = 1 << 30;
    let nearly = |world: &World| {
        let checks = world.control.status(world.now).checks;
        checks.into_iter().find(|check| check.code == "POOL_NEARFULL").map(|check| check.details)
    };
    fill(&mut world, 80 * gib, 20 * gib);
    assert_eq!(nearly(&world), None, "the volume fits");
    world.make_volume("p/b", 1 << 40);
    let text = "pool p: 18GiB can be written before an OSD is full; osd.3 is filled to 80 %, and the volumes could take \
                200 % of what there is";
    assert_eq!(nearly(&world), Some(vec![text.to_owned()]));
    assert_eq!(world.pools()[0].available_bytes, Some(18 * gib), "each OSD has a replica of every PG, and keeps 2 %");
    fill(&mut world, 69 * gib, 31 * gib);
    assert_eq!(nearly(&world), None);
}

#[test]
fn compression_of_backups_is_told_and_outlives_a_leader() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    assert_eq!(world.pools()[0].backup_compression, Compression::Zstd);
    for _ in 0..2 {
        let compress = Some(Compression::None);
        let ask = PoolSet { name: "p".into(), backup_compression: compress, ..PoolSet::default() };
        world.admin(AdminAsk::PoolSet(ask)).expect("a known pool");
    }
    // A change of something else leaves it.
    set(&mut world, Some(3 * SEGMENT), None);
    let store = world.store.clone();
    world.lead_on(store);
    assert_eq!(world.pools()[0].backup_compression, Compression::None);
    let told = world.events.iter().filter(|e| e.kind == "pool.changed").map(|e| e.text.clone()).collect::<Vec<_>>();
    assert_eq!(told[0], "pool p: compression none for backups");
    assert_eq!(told.len(), 2, "{told:?}");
}
