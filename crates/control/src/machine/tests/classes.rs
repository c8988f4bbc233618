//! Device classes of OSDs and pools: where replicas come to, which ones leave, and what is refused.

use super::*;
use crate::admin::{PgMove, PlannedMove, PoolSet};

/// Six OSDs, each on its own host, of which the first three are of the class `hdd` and the others of `ssd`.
fn cluster() -> World {
    let mut world = World::new(1, 6);
    classify(&mut world, "hdd", &[1, 2, 3]);
    classify(&mut world, "ssd", &[4, 5, 6]);
    world.elects = true;
    world
}

fn classify(world: &mut World, class: &str, osds: &[u32]) -> Vec<PlannedMove> {
    let osds = osds.iter().map(|n| OsdId(*n)).collect();
    let ask = OsdSet { osds, device_class: Some(class.to_owned()), ..OsdSet::default() };
    match world.admin(AdminAsk::OsdSet(ask)).expect("they are known") {
        AdminAnswer::Moves(moves) => moves,
        other => panic!("{other:?}"),
    }
}

fn create(world: &mut World, name: &str, class: Option<&str>) -> Result<(), Refusal> {
    let (name, domain, device_class) = (name.to_owned(), "host".to_owned(), class.map(str::to_owned));
    let ask = PoolCreate { name, replicas: 3, domain, pg_count: 8, force: false, device_class };
    world.admin(AdminAsk::PoolCreate(ask)).map(drop)
}

fn set(world: &mut World, name: &str, class: &str) -> Result<(), Refusal> {
    let ask = PoolSet { name: name.to_owned(), device_class: Some(class.to_owned()), ..PoolSet::default() };
    world.admin(AdminAsk::PoolSet(ask)).map(drop)
}

/// Returns the OSDs with replicas of a pool.
fn held(world: &World, name: &str) -> BTreeSet<u32> {
    let records = world.control.records();
    let pool = records.pool(name).expect("it exists").id;
    records.pgs_of(pool).flat_map(|pg| &pg.members).map(|m| m.osd.0).collect()
}

/// Runs until nothing moves.
fn settle(world: &mut World) {
    for _ in 0..200 {
        world.seconds(1, &[]);
        let moves = world.control.status(world.now).moves;
        if (moves.running, moves.waiting, moves.unplaced) == (0, 0, 0) {
            return world.seconds(2, &[]);
        }
    }
    panic!("the moves do not end: {:?}", world.control.status(world.now).moves);
}

#[test]
fn pool_lies_on_osds_of_its_class_alone_and_follows_it() {
    let mut world = cluster();
    create(&mut world, "fast", Some("ssd")).expect("three OSDs have it");
    create(&mut world, "all", None).expect("six OSDs");
    world.seconds(2, &[]);
    assert_eq!((held(&world, "fast"), held(&world, "all")), ([4, 5, 6].into(), (1..=6).collect()));
    set(&mut world, "fast", "hdd").expect("three OSDs have it");
    settle(&mut world);
    assert_eq!(held(&world, "fast"), [1, 2, 3].into());
    assert_eq!(
        world.pools().iter().find(|p| p.name == "fast").and_then(|p| p.device_class.clone()),
        Some("hdd".into())
    );
    // A pool that asks for no class any more is spread over all OSDs.
    set(&mut world, "fast", "any").expect("no class");
    settle(&mut world);
    assert_eq!(held(&world, "fast").len(), 6);
    let kinds = world.events.iter().filter(|e| e.kind == "pool.changed").map(|e| e.text.clone()).collect::<Vec<_>>();
    assert_eq!(kinds, ["pool fast: on OSDs of device class hdd", "pool fast: on OSDs of any device class"]);
}

#[test]
fn osd_of_another_class_is_left_and_one_without_a_class_is_not() {
    let mut world = cluster();
    classify(&mut world, "ssd", &[3]);
    create(&mut world, "fast", Some("ssd")).expect("four OSDs have it");
    world.seconds(2, &[]);
    assert_eq!(held(&world, "fast"), [3, 4, 5, 6].into());
    let moves = classify(&mut world, "hdd", &[3]);
    assert!(!moves.is_empty() && moves.iter().all(|m| m.from == OsdId(3) && m.to.is_some()), "{moves:?}");
    settle(&mut world);
    assert_eq!(held(&world, "fast"), [4, 5, 6].into());
    // With three OSDs left, the replicas of one that changes its class have no place to go to: they stay and serve.
    let moves = classify(&mut world, "hdd", &[4]);
    assert!(moves.iter().all(|m| m.to.is_none()) && !moves.is_empty(), "{moves:?}");
    world.seconds(5, &[]);
    assert_eq!(held(&world, "fast"), [4, 5, 6].into());
    classify(&mut world, "ssd", &[4]);
    // Records that lost the class of an OSD do not know it.
    let mut store = world.store.clone();
    let (record, _) = store.get_mut("osd/00000005").expect("it is registered");
    let text = String::from_utf8(record.clone()).expect("JSON").replace(",\"device_class\":\"ssd\"", "");
    *record = text.into_bytes();
    world.lead_on(store);
    world.connect_all();
    assert_eq!(world.osds()[4].device_class, None);
    world.seconds(10, &[]);
    assert_eq!((held(&world, "fast"), world.control.status(world.now).moves.unplaced), ([4, 5, 6].into(), 0));
}

#[test]
fn class_of_too_few_osds_and_move_to_another_class_are_refused() {
    let mut world = cluster();
    let refusal = create(&mut world, "p", Some("nvme")).expect_err("no OSD has it");
    assert_eq!(refusal.code, codes::CANNOT_PLACE);
    assert!(refusal.message.starts_with("on OSDs of device class \"nvme\", 3 replicas need"), "{}", refusal.message);
    for bad in ["any", "", "NVMe"] {
        assert_eq!(create(&mut world, "p", Some(bad)).expect_err("no name").code, codes::BAD_NAME, "{bad:?}");
        let ask = OsdSet { osds: vec![OsdId(1)], device_class: Some(bad.to_owned()), ..OsdSet::default() };
        assert_eq!(world.admin(AdminAsk::OsdSet(ask)).expect_err("no name").code, codes::BAD_NAME, "{bad:?}");
    }
    create(&mut world, "p", Some("ssd")).expect("three OSDs have it");
    world.seconds(2, &[]);
    assert_eq!(set(&mut world, "p", "nvme").expect_err("no OSD has it").code, codes::CANNOT_PLACE);
    let pool = world.control.records().pool("p").expect("it exists").id;
    let ask = PgMove { pg: PgId { pool, n: 0 }, from: OsdId(4), to: OsdId(1), dry_run: false };
    let refusal = world.admin(AdminAsk::PgMove(ask)).expect_err("another class");
    assert!(refusal.message.contains("device class ssd"), "{}", refusal.message);
}

/// A successor of another class does not take over what the pool would move away again.
#[test]
fn successor_of_another_class_takes_no_replica_of_the_pool() {
    let mut world = cluster();
    classify(&mut world, "ssd", &[3]);
    create(&mut world, "fast", Some("ssd")).expect("four OSDs have it");
    world.seconds(2, &[]);
    let new = world.replace(OsdId(4));
    world.connect(new);
    classify(&mut world, "hdd", &[new.0]);
    for _ in 0..60 {
        world.seconds(1, &[]);
        assert!(!held(&world, "fast").contains(&new.0), "it is of another class");
    }
    assert_eq!(held(&world, "fast"), [3, 5, 6].into());
}
