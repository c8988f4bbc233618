//! Rules of meta, tested against simple models of OSDs and of a store.

mod asked;
mod chaos;
mod classes;
mod clones;
mod cuts;
mod events;
mod faults;
mod flatten;
mod force;
mod health;
mod leaders;
mod limits;
mod members;
mod older_snapshots;
mod osds;
mod pairs;
mod past;
mod pg_cuts;
mod quota;
mod reach;
mod rebalance;
mod resize;
mod rollback;
mod sharing;
mod shrink;
mod snapshots;
mod stripes;
mod tails;
mod trash;
mod world;

use super::*;
use crate::admin::{OsdRegister, OsdSet, PoolCreate, VolumeRemove};
use crate::batch::TXN_WRITES_MAX;
use types::control::{Opened, SEGMENTS_PER_ASK_MAX};
use types::{Epoch, OsdUuid, SEGMENT, SegmentIndex, SessionId, Stripe};
use world::{World, alive, opened, refused};

fn open(name: &str, write: bool, steal: bool) -> ClientAsk {
    ClientAsk::Open { name: name.into(), write, steal, holder: "test".into() }
}

fn segments(of: &Opened, segments: std::ops::Range<u32>, allocate: bool) -> ClientAsk {
    let (volume, session, epoch) = (of.volume, of.session, of.epoch);
    ClientAsk::Segments { volume, session, epoch, segments: segments.map(SegmentIndex).collect(), allocate }
}

fn with_volume(gib: u64) -> World {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    world.make_volume("p/v", gib * SEGMENT);
    world
}

#[test]
fn silent_osd_is_down_after_six_seconds_but_not_in_a_new_leaders_grace() {
    let mut world = World::new(1, 3);
    let live = |world: &mut World| -> Vec<String> { world.osds().into_iter().map(|o| o.live).collect() };
    assert_eq!(live(&mut world), ["up", "up", "up"]);
    world.pass(Duration::from_millis(5900));
    assert_eq!(live(&mut world), ["up", "up", "up"]);
    world.beat(OsdId(1));
    world.pass(Duration::from_millis(200));
    assert_eq!(live(&mut world), ["up", "down", "down"]);
    world.crash();
    assert_eq!(live(&mut world), ["unknown", "unknown", "unknown"]);
    world.connect(OsdId(2));
    world.pass(Duration::from_millis(10_100));
    world.beat(OsdId(2));
    assert_eq!(live(&mut world), ["down", "up", "down"]);
}

#[test]
fn silent_holder_is_replaceable_only_after_its_lease() {
    let mut world = with_volume(4);
    let first = opened(world.ask(1, open("p/v", true, false)));
    world.pass(Duration::from_secs(9));
    let keepalive = ClientAsk::Keepalive {
        volume: first.volume,
        session: first.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    assert_eq!(world.ask(1, keepalive.clone()), alive(4 * SEGMENT));
    world.pass(Duration::from_secs(9));
    assert_eq!(refused(world.ask(2, open("p/v", true, false))).code, codes::VOLUME_HELD);
    world.pass(Duration::from_secs(2));
    let second = opened(world.ask(2, open("p/v", true, false)));
    assert!(second.epoch > first.epoch && second.session > first.session);
    assert_eq!(refused(world.ask(1, keepalive)).code, codes::SESSION_FENCED);
    assert_eq!(refused(world.ask(1, segments(&first, 0..1, true))).code, codes::SESSION_FENCED);
}

#[test]
fn a_holder_whose_connection_ended_has_three_seconds_to_come_back() {
    let mut world = with_volume(4);
    let from = |world: &mut World, address: &str, ask: ClientAsk| {
        let req = ClientReq { address: address.to_owned(), ..world.req(1, ask) };
        world.answer_to(req)
    };
    let first = opened(from(&mut world, "10.0.0.7:1", open("p/v", true, false)));
    let keepalive = ClientAsk::Keepalive {
        volume: first.volume,
        session: first.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    world.control.handle_client_gone("10.0.0.8:1".to_owned());
    world.pass(Duration::from_secs(4));
    let why = refused(world.ask(2, open("p/v", true, false)));
    assert_eq!(why.code, codes::VOLUME_HELD, "another's connection means nothing");
    assert!(why.message.contains("its lease ends in 6 s unless it is renewed"), "{}", why.message);

    world.control.handle_client_gone("10.0.0.7:1".to_owned());
    world.pass(Duration::from_secs(2));
    assert_eq!(from(&mut world, "10.0.0.7:2", keepalive), alive(4 * SEGMENT));
    world.control.handle_client_gone("10.0.0.7:1".to_owned());
    world.pass(Duration::from_secs(9));
    assert_eq!(refused(world.ask(2, open("p/v", true, false))).code, codes::VOLUME_HELD, "it came back elsewhere");

    world.control.handle_client_gone("10.0.0.7:2".to_owned());
    world.pass(Duration::from_millis(1100));
    let second = opened(world.ask(2, open("p/v", true, false)));
    assert!(second.session > first.session);
}

#[test]
fn asking_to_open_again_after_a_lost_answer_is_not_a_second_open() {
    let mut world = with_volume(4);
    let req = world.req(7, open("p/v", true, false));
    let first = opened(world.answer_to(req.clone()));
    world.crash();
    world.connect_all();
    let token = world.fresh_token();
    let again = opened(world.answer_to(ClientReq { token, ..req }));
    assert_eq!((again.session, again.epoch), (first.session, first.epoch));
    assert_eq!(refused(world.ask(7, open("p/v", true, false))).code, codes::VOLUME_HELD);
}

#[test]
fn read_only_open_gets_no_session_and_allocates_nothing() {
    let mut world = with_volume(4);
    let writer = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&writer, 0..2, true));
    let reader = opened(world.ask(2, open("p/v", false, false)));
    assert_eq!((reader.session, reader.segments.len(), reader.write), (SessionId(0), 2, false));
    assert_eq!(refused(world.ask(2, segments(&reader, 2..3, true))).code, codes::READ_ONLY);
    let ClientAnswer::Segments { segments: places, .. } = world.ask(2, segments(&reader, 1..4, false)) else {
        panic!()
    };
    assert_eq!(places.iter().map(|p| !p.pgs.is_empty()).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(
        world.ask(
            1,
            ClientAsk::Keepalive {
                volume: writer.volume,
                session: writer.session,
                unreached: Vec::new(),
                len_epoch: 0,
                len_bytes: 0
            }
        ),
        alive(4 * SEGMENT)
    );
}

#[test]
fn segment_on_a_pg_without_a_leader_delays_no_other() {
    let mut world = with_volume(16);
    let held = opened(world.ask(1, open("p/v", true, false)));
    // The PG loses its leader after the segment was allocated there, and before it is attached.
    world.leaderless = world.control.records().pgs.keys().copied().collect();
    let req = world.req(1, segments(&held, 0..1, true));
    let ClientAnswer::Segments { segments: places, pending, .. } = world.answer_to(req) else { panic!() };
    assert_eq!((places.len(), &pending[..]), (0, &[SegmentIndex(0)][..]));
    let down = world.control.records().segments[&(held.volume, SegmentIndex(0))].pg;
    world.leaderless = BTreeSet::from([down]);
    for _ in 0..10 {
        let req = world.req(1, segments(&held, 0..16, true));
        world.answer_to(req);
        world.pass(Duration::from_millis(50));
    }
    let req = world.req(1, segments(&held, 0..16, true));
    let ClientAnswer::Segments { segments: places, pending: waits, view } = world.answer_to(req) else { panic!() };
    let on_it = world.control.records().segments_of(held.volume).filter(|s| s.pg == down).map(|s| s.index);
    assert_eq!(on_it.collect::<Vec<_>>(), waits);
    assert!(
        places.len() + waits.len() == 16
            && places.iter().all(|place| !place.pgs.is_empty() && !place.pgs.contains(&down))
    );
    assert!(view.pgs.len() > 10 && view.pgs.iter().all(|map| map.pg != down), "{view:?}");
    let reader = Opened { session: SessionId(0), ..held.clone() };
    let req = world.req(2, segments(&reader, 0..16, false));
    let ClientAnswer::Segments { pending, .. } = world.answer_to(req) else { panic!() };
    assert_eq!(waits, pending, "a reader is not told that it is a hole");
    world.leaderless.clear();
    let ClientAnswer::Segments { segments: places, .. } = world.ask(1, segments(&held, 0..16, true)) else { panic!() };
    assert!(places.iter().any(|place| place.segment == pending[0] && place.pgs == [down]));
}

#[test]
fn long_work_is_cut_into_transactions_that_fit() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 500);
    world.make_volume("p/v", 400 * SEGMENT);
    let held = opened(world.ask(1, open("p/v", true, false)));
    for at in (0..400).step_by(SEGMENTS_PER_ASK_MAX) {
        let answer = world.ask(1, segments(&held, at..400.min(at + SEGMENTS_PER_ASK_MAX as u32), true));
        assert!(matches!(answer, ClientAnswer::Segments { .. }), "{answer:?}");
    }
    let stolen = opened(world.ask(2, open("p/v", true, true)));
    assert_eq!(stolen.segments.len(), 400);
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove {
            name: "p/v".into(),
            force: true,
            now: true,
            snapshots: false,
            detach: false,
        }))
        .expect("removed");
    world.admin(AdminAsk::PoolRemove { name: "p".into() }).expect("removed");
    assert!(world.largest_txn <= TXN_WRITES_MAX && world.largest_txn > 30, "{}", world.largest_txn);
    let kept = |k: &&String| !["osd/", "event/", "watch"].iter().any(|kind| k.starts_with(kind));
    let left: Vec<&String> = world.store.keys().filter(kept).collect();
    assert_eq!(left, ["cluster", "counters"], "nothing is left behind");
}

#[test]
fn segments_in_an_attached_pg_cost_one_transaction_and_no_attach() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1);
    world.make_volume("p/v", 64 * SEGMENT);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..1, true));
    let (attaches, commits) = (world.attaches, world.commits);
    world.ask(1, segments(&held, 1..9, true));
    assert_eq!((world.attaches - attaches, world.commits - commits), (0, 1));
    world.ask(1, segments(&held, 0..9, true));
    assert_eq!(world.commits - commits, 1, "asking again writes nothing");
}

#[test]
fn replica_with_an_id_never_assigned_is_not_removed() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.admin(AdminAsk::PoolRemove { name: "p".into() }).expect("removed");
    let stray = (PgId { pool: types::PoolId(1), n: 0 }, ReplicaId(1));
    let unheard = (PgId { pool: types::PoolId(1), n: 0 }, ReplicaId(9999));
    world.osd(OsdId(1)).replicas = [stray, unheard].into_iter().collect();
    world.hold = true;
    world.connect(OsdId(1));
    let dropped = |(_, down): &(StreamId, OsdDown)| match down {
        OsdDown::DropReplica { replica, .. } => Some(*replica),
        _ => None,
    };
    let drops: BTreeSet<ReplicaId> = world.queue.iter().filter_map(dropped).collect();
    assert_eq!(drops, [ReplicaId(1)].into_iter().collect(), "only an id that was given away here is ordered away");
}

#[test]
fn lost_extents_make_their_pg_inconsistent_until_no_report_has_them() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1);
    let view = |world: &World| world.control.pg_views(world.now.mono, "p").expect("the pool exists").remove(0);
    let says = |world: &World| view(world).state.iter().any(|s| s == "inconsistent");
    assert!(!says(&world) && view(&world).lost.is_empty());
    let chunk = types::VolumeChunk { volume: types::VolumeId(1), index: 2 };
    let lost = types::control::LostExtent { chunk, offset_bytes: 4096, len_bytes: 4096 };
    (2..=3).for_each(|n| world.heartbeat(OsdId(n), |beat| beat.pgs[0].lost = vec![lost]));
    assert!(says(&world));
    assert_eq!(view(&world).lost, ["volume 1 bytes 33558528..33562624"]);
    (2..=3).for_each(|n| world.beat(OsdId(n)));
    assert!(!says(&world) && view(&world).lost.is_empty());
}

#[test]
fn unreadable_extent_is_named_with_the_osds_that_are_away() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1);
    let extent = |chunk| {
        let chunk = types::VolumeChunk { volume: types::VolumeId(1), index: chunk };
        types::control::LostExtent { chunk, offset_bytes: 4096, len_bytes: 4096 }
    };
    world.pass(Duration::from_secs(60));
    world.heartbeat(OsdId(1), |beat| {
        (beat.pgs[0].unread, beat.pgs[0].lost) = (vec![extent(0), extent(1)], vec![extent(1)])
    });
    world.beat(OsdId(2));
    let pg = world.control.pg_views(world.now.mono, "p").expect("the pool exists").remove(0);
    let lost = [
        "volume 1 bytes 16781312..16785408",
        "volume 1 bytes 4096..8192 on the replicas that are up; osd.3 may have one",
    ];
    assert_eq!(pg.lost, lost);
    world.beat(OsdId(1));
    let pg = world.control.pg_views(world.now.mono, "p").expect("the pool exists").remove(0);
    assert!(pg.lost.is_empty(), "{:?}", pg.lost);
}

#[test]
fn a_poisoned_osd_is_recorded_against_its_run_and_forgiven_the_next() {
    let mut world = World::new(1, 3);
    world.heartbeat(OsdId(2), |beat| beat.poisoned = Some("write failed".into()));
    assert_eq!(world.osds()[1].poisoned.as_deref(), Some("write failed"));
    world.crash();
    world.connect_all();
    assert_eq!(world.osds()[1].poisoned.as_deref(), Some("write failed"), "the same run is still poisoned");
    world.restart(OsdId(2));
    assert_eq!(world.osds()[1].poisoned, None);
}

#[test]
fn a_restart_undoes_no_drain_and_drained_or_outed_osds_get_no_new_pgs() {
    let mut world = World::new(1, 5);
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(1), None, Some(true)))).expect("drained");
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(2), Some(false), None))).expect("out");
    world.crash();
    world.osd(OsdId(1)).incarnation += 1;
    world.connect_all();
    let osds = world.osds();
    assert!(osds[0].drain && osds[0].is_in && !osds[1].is_in);
    world.make_pool("p", 3, 16);
    assert_eq!(world.osds().iter().map(|o| o.pgs).collect::<Vec<_>>(), [0, 0, 16, 16, 16]);
}

#[test]
fn ids_are_never_used_twice() {
    let mut world = World::new(1, 3);
    for round in 1..=3u64 {
        world.make_pool("p", 3, 4);
        world.make_volume("p/v", SEGMENT);
        let held = opened(world.ask(1, open("p/v", true, false)));
        assert_eq!((held.volume.0, held.session.0, held.epoch), (round, round, Epoch(1)));
        world
            .admin(AdminAsk::VolumeRemove(VolumeRemove {
                name: "p/v".into(),
                force: true,
                now: true,
                snapshots: false,
                detach: false,
            }))
            .expect("removed");
        world.admin(AdminAsk::PoolRemove { name: "p".into() }).expect("removed");
        world.crash();
        world.connect_all();
    }
    let counters = &world.control.records().counters;
    assert_eq!((counters.next_pool, counters.next_replica), (4, 37));
}

#[test]
fn order_that_the_pg_has_seen_is_drawn_again_above_it() {
    let mut world = with_volume(4);
    let held = opened(world.ask(1, open("p/v", true, false)));
    // The PGs have seen more than the records: for example, a store was restored from an older backup.
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.orders.extend(pgs.iter().map(|pg| (*pg, 40)));
    let answer = world.ask(1, segments(&held, 0..1, true));
    let ClientAnswer::Segments { segments: places, .. } = answer else { panic!("{answer:?}") };
    let pg = places[0].pgs[0];
    assert_eq!(world.control.records().pgs[&pg].order, 41);
}

#[test]
fn invalid_admin_request_is_refused_with_its_code() {
    let mut world = with_volume(2);
    let pool = |replicas, domain: &str, pg_count| {
        AdminAsk::PoolCreate(PoolCreate {
            name: "q".into(),
            replicas,
            domain: domain.into(),
            pg_count,
            force: false,
            device_class: None,
        })
    };
    let create = |name: &str, len_bytes| AdminAsk::VolumeCreate {
        name: name.into(),
        len_bytes,
        stripe: Stripe::NONE,
        text: Default::default(),
    };
    for (ask, code) in [
        (pool(4, "osd", 8), codes::BAD_POOL),
        (pool(0, "osd", 8), codes::BAD_POOL),
        (pool(3, "disk", 8), codes::BAD_POOL),
        (pool(3, "host", 5000), codes::BAD_POOL),
        (pool(3, "host", 1200), codes::BAD_POOL),
        (pool(5, "osd", 8), codes::CANNOT_PLACE),
        (pool(3, "rack", 8), codes::CANNOT_PLACE),
        (AdminAsk::PoolRemove { name: "p".into() }, codes::POOL_NOT_EMPTY),
        (create("p/v", SEGMENT), codes::VOLUME_EXISTS),
        (create("p/w", 4096), codes::BAD_SIZE),
        (create("p/w", SEGMENT + 1), codes::BAD_SIZE),
        (create("p/w", u64::MAX), codes::BAD_SIZE),
        (AdminAsk::OsdSet(OsdSet::one(OsdId(77), None, None)), codes::OSD_UNKNOWN),
    ] {
        assert_eq!(world.admin(ask.clone()).map_err(|r| r.code), Err(code), "{ask:?}");
    }
    let held = opened(world.ask(1, open("p/v", true, false)));
    assert_eq!(refused(world.ask(1, segments(&held, 0..3, true))).code, codes::OUT_OF_RANGE);
    assert_eq!(refused(world.ask(1, segments(&held, 0..40, true))).code, codes::TOO_MANY);
    let register = |n: u8| {
        AdminAsk::OsdRegister(OsdRegister {
            osd: None,
            uuid: OsdUuid([n; 16]),
            host: "h".into(),
            rack: String::new(),
            zone: String::new(),
            capacity_bytes: 1,
            device_class: None,
            replaces: None,
        })
    };
    let again = world.admin(register(1)).expect("the same uuid");
    assert!(matches!(again, AdminAnswer::OsdRegistered { osd: OsdId(1), .. }), "{again:?}");
}

#[test]
fn pool_that_overloads_its_osds_needs_force() {
    let mut world = with_volume(2);
    let ask = |force| {
        AdminAsk::PoolCreate(PoolCreate {
            name: "q".into(),
            replicas: 3,
            domain: "host".into(),
            pg_count: 1200,
            force,
            device_class: None,
        })
    };
    let refusal = world.admin(ask(false)).expect_err("too many");
    assert_eq!(refusal.code, codes::BAD_POOL);
    assert!(refusal.message.contains("PGs an OSD") && refusal.message.contains("--force"), "{}", refusal.message);
    world.admin(ask(true)).expect("by force");
}
