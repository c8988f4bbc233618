//! R17: a store that is an older copy of itself is detected before it gives anything away.

use super::*;
use crate::admin::{FoundAttach, FoundSegment, RecoverAsk, StoreRecovery};
use std::time::Duration;
use types::control::{ClientAnswer, DevicePosition, Watermarks};
use types::{PgId, ReplicaId, VolumeId};

fn create(name: &str) -> AdminAsk {
    AdminAsk::VolumeCreate { name: name.into(), len_bytes: 4 * SEGMENT, stripe: Stripe::NONE, text: Default::default() }
}

fn code(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

pub fn recover(world: &mut World, dry_run: bool) -> StoreRecovery {
    recover_without(world, dry_run, &[]).expect("a report")
}

/// Returns a recovery request with the standing that is shown now.
fn seen(world: &World) -> RecoverAsk {
    let standing = match world.control.standing() {
        Standing::Waiting => "waiting",
        Standing::Sound => "sound",
        Standing::Behind => "behind",
    };
    RecoverAsk { standing: standing.to_owned(), ..RecoverAsk::default() }
}

/// All steps of a recovery, to the end unless `dry_run`.
fn recover_without(world: &mut World, dry_run: bool, without: &[u32]) -> Result<StoreRecovery, Refusal> {
    let report = move_watermarks(world, dry_run, without)?;
    if report.moved {
        for _ in 0..100 {
            world.settle();
            if finish(world)?.recovering == 0 {
                break;
            }
        }
    }
    Ok(report)
}

/// The steps of a recovery until changes are taken again.
pub fn move_watermarks(world: &mut World, dry_run: bool, without: &[u32]) -> Result<StoreRecovery, Refusal> {
    let without: Vec<OsdId> = without.iter().map(|osd| OsdId(*osd)).collect();
    loop {
        let ask = RecoverAsk { dry_run, without: without.clone(), ..seen(world) };
        let report = step(world, ask)?;
        if dry_run || world.control.standing() != Standing::Behind {
            return Ok(report);
        }
    }
}

fn step(world: &mut World, ask: RecoverAsk) -> Result<StoreRecovery, Refusal> {
    match world.admin(AdminAsk::MetaRecover(ask))? {
        AdminAnswer::Recovery(recovery) => Ok(recovery),
        other => panic!("{other:?}"),
    }
}

pub fn finish(world: &mut World) -> Result<StoreRecovery, Refusal> {
    let ask = RecoverAsk { finish: true, ..seen(world) };
    step(world, ask)
}

/// Returns a world on a copy of the store from before volume `p/new`, its segments and a pool were made.
fn went_back(seed: u64) -> (World, Opened) {
    let mut world = World::new(seed, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/old", 4 * SEGMENT);
    let copy = world.store.clone();
    world.make_volume("p/new", 4 * SEGMENT);
    let held = opened(world.ask(1, open("p/new", true, false)));
    world.ask(1, segments(&held, 0..2, true));
    world.make_pool("q", 3, 2);
    world.lead_on(copy);
    (world, held)
}

#[test]
fn a_store_that_went_back_changes_nothing_and_says_so_everywhere() {
    let (mut world, held) = went_back(1);
    let before = world.store.clone();
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    assert_eq!(code(world.admin(create("p/other"))), codes::STORE_BEHIND);
    assert_eq!(refused(world.ask(2, open("p/old", true, false))).code, codes::STORE_BEHIND);
    assert_eq!(refused(world.ask(1, segments(&held, 2..3, true))).code, codes::STORE_BEHIND);
    // A holder is not told that its hold has ended: it goes on.
    let alive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    assert_eq!(refused(world.ask(1, alive)).code, codes::STORE_BEHIND);
    let Ok(AdminAnswer::Status(status)) = world.admin(AdminAsk::Status) else { panic!("no status") };
    assert!(status.problems[0].starts_with("BSLT-2030: the metadata store went back in time (osd.1 has recorded"));
    assert!(status.problems[0].contains("basalt meta recover --dry-run"), "{:?}", status.problems);
    // Hellos of OSDs and the events about them are recorded, and nothing else is.
    let changed: Vec<&String> = world.store.keys().filter(|k| world.store.get(*k) != before.get(*k)).collect();
    let of_osds = |k: &&&String| ["osd/", "event/", "watch"].iter().any(|kind| k.starts_with(kind));
    assert!(changed.iter().all(|k| of_osds(&k)), "{changed:?}");
    // Replicas of the pool that the records do not know are left alone.
    assert!(world.osds.iter().all(|o| o.replicas.iter().any(|(pg, _)| pg.pool.0 == 2)));
}

#[test]
fn a_store_that_went_back_is_found_out_by_any_majority_of_its_osds() {
    for away in 1..=3 {
        let (mut world, _) = went_back(1);
        let here: Vec<u32> = (1..=3).filter(|n| *n != away).collect();
        world.connect(OsdId(here[0]));
        // One OSD of three is no majority, whatever it remembers: no id is drawn before the second one.
        let first = world.control.standing();
        assert_ne!(first, Standing::Sound);
        world.connect(OsdId(here[1]));
        assert_eq!(world.control.standing(), Standing::Behind, "osd.{away} is away");
    }
}

#[test]
fn a_change_that_a_minority_remembers_is_never_answered() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    let copy = world.store.clone();
    world.osd(OsdId(2)).deaf = true;
    world.osd(OsdId(3)).deaf = true;
    // The change is committed, but only osd.1 remembers it: the asker is refused instead of getting an id.
    assert_eq!(code(world.admin(create("p/v"))), codes::NO_MAJORITY);
    let out = AdminAsk::OsdSet(OsdSet::one(OsdId(3), Some(false), None));
    assert_eq!(code(world.admin(out)), codes::NO_MAJORITY);
    let flag = AdminAsk::ConfigSet { name: "noout".into(), value: Some("on".into()) };
    assert_eq!(code(world.admin(flag)), codes::NO_MAJORITY);
    world.admin(AdminAsk::VolumeInfo { name: "p/v".into() }).expect("a read gives nothing away");
    world.admin(AdminAsk::ConfigList).expect("a read gives nothing away");
    world.lead_on(copy);
    world.osd(OsdId(2)).deaf = false;
    world.osd(OsdId(3)).deaf = false;
    // osd.1 is away: no other OSD can know of the change, and nothing was given away.
    world.connect(OsdId(2));
    world.connect(OsdId(3));
    assert_eq!(world.control.standing(), Standing::Sound);
    world.admin(create("p/v")).expect("the first that is given out");
}

#[test]
fn a_new_leader_waits_for_a_majority_and_refuses_when_it_does_not_come() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.crash();
    world.connect(OsdId(1));
    assert_eq!(code(world.admin(create("p/v"))), codes::NO_MAJORITY);
    let token = world.fresh_token();
    world.control.handle_admin(token, create("p/v"));
    world.settle();
    assert!(world.admin_answers.is_empty(), "it waits for the second OSD");
    world.connect(OsdId(3));
    world.settle();
    world.admin_answers.remove(&token).expect("answered").expect("a volume");
}

#[test]
fn an_osd_that_the_records_do_not_know_shows_that_they_went_back() {
    let mut world = World::new(1, 1);
    let copy = world.store.clone();
    let register = OsdRegister {
        osd: None,
        uuid: OsdUuid([2; 16]),
        host: "h2".into(),
        rack: "r".into(),
        zone: "z".into(),
        capacity_bytes: 1 << 40,
        device_class: None,
        replaces: None,
    };
    world.admin(AdminAsk::OsdRegister(register)).expect("registered");
    let first = &world.osds[0];
    let second = world::Osd {
        id: OsdId(2),
        replicas: first.replicas.clone(),
        peers: first.peers.clone(),
        limits: first.limits.clone(),
        listed: BTreeSet::new(),
        kept: BTreeSet::new(),
        ..*first
    };
    world.osds.push(second);
    world.lead_on(copy);
    let older = world.control.records().counters.watermarks();
    world.osds[0].seen = older;
    world.osds[1].seen = older;
    world.connect(OsdId(1));
    assert_eq!(world.control.standing(), Standing::Sound, "osd.1 missed the change");
    // A refusal would end the OSD (the world panics on one), so it is left alone.
    world.connect(OsdId(2));
    assert_eq!(world.control.standing(), Standing::Behind);
}

#[test]
fn recovery_repeats_no_id_or_epoch_and_drops_no_replica() {
    let (mut world, held) = went_back(1);
    let copy = world.store.clone();
    world.connect_all();
    let shown = recover(&mut world, true);
    assert!(!shown.moved && shown.standing == "behind", "{shown:?}");
    assert_eq!(shown.replicas.len(), 6, "both PGs of q, on three OSDs: {:?}", shown.replicas);
    assert!(shown.records.next_volume < shown.highest.next_volume, "{shown:?}");
    let used: BTreeSet<ReplicaId> = world.osds.iter().flat_map(|o| o.replicas.iter().map(|(_, r)| *r)).collect();

    let done = recover(&mut world, false);
    assert!(done.moved && done.after.next_volume > done.highest.next_volume, "{done:?}");
    assert_eq!(world.control.standing(), Standing::Sound);
    let Ok(AdminAnswer::Volume(volume)) = world.admin(create("p/other")) else { panic!("no volume") };
    assert!(volume.volume > held.volume);
    let other = opened(world.ask(2, open("p/other", true, false)));
    assert!(other.session > held.session && other.epoch > held.epoch, "{other:?} after {held:?}");
    let older = opened(world.ask(4, open("p/old", true, false)));
    world.make_pool("r", 3, 2);
    let now: BTreeSet<(PgId, ReplicaId)> = world.osds.iter().flat_map(|o| o.replicas.clone()).collect();
    assert!(used.iter().all(|r| now.iter().any(|(_, n)| n == r)), "what the records lost is still there");
    assert!(now.iter().all(|(pg, r)| pg.pool.0 < 3 || !used.contains(r)), "new replicas have new ids");
    // The next leader finds nothing amiss, and it orders no replica away either.
    world.crash();
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Sound);
    assert_eq!(world.osds.iter().flat_map(|o| o.replicas.clone()).collect::<BTreeSet<_>>(), now);
    assert!(!recover(&mut world, false).moved, "there is nothing to recover");
    // The copy from before the recovery is behind again, and a second recovery gives higher epochs than the first one.
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    recover(&mut world, false);
    let again = opened(world.ask(3, open("p/old", true, false)));
    assert!(again.epoch > older.epoch && again.session > older.session, "{again:?} after {older:?}");
}

#[test]
fn osds_that_are_lost_for_good_no_longer_stop_changes() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.crash();
    world.connect(OsdId(1));
    assert_eq!(code(world.admin(create("p/v"))), codes::NO_MAJORITY);
    let pg = PgId { pool: types::PoolId(1), n: 0 };
    let moved = AdminAsk::PgMove(crate::admin::PgMove { pg, from: OsdId(1), to: OsdId(2), dry_run: false });
    assert_eq!(code(world.admin(moved)), codes::NO_MAJORITY, "untrusted records are not changed");
    let refused = recover_without(&mut world, false, &[3]).expect_err("one of two is no majority");
    assert_eq!(refused.code, codes::NO_MAJORITY);
    assert!(refused.message.contains("start osd.2, or name"), "{}", refused.message);
    assert_eq!(recover_without(&mut world, false, &[9]).expect_err("unknown").code, codes::OSD_UNKNOWN);
    let shown = recover_without(&mut world, true, &[2, 3]).expect("a report");
    assert!(!shown.moved && shown.after.next_volume > shown.records.next_volume, "{shown:?}");
    assert!(recover_without(&mut world, false, &[2, 3]).expect("moved").moved);
    world.admin(create("p/v")).expect("a volume");
    // The next leader needs osd.1 alone.
    world.crash();
    world.connect(OsdId(1));
    world.admin(create("p/w")).expect("a volume");
}

#[test]
fn a_cluster_whose_only_osd_was_lost_goes_on_with_the_next_one() {
    let mut world = World::new(1, 1);
    world.crash();
    assert_eq!(code(world.admin(AdminAsk::OsdReserve)), codes::NO_MAJORITY);
    assert!(recover_without(&mut world, false, &[1]).expect("moved").moved);
    world.admin(AdminAsk::OsdReserve).expect("an id");
}

#[test]
fn watermarks_that_no_cluster_reaches_are_refused_and_change_nothing() {
    let mut world = World::new(1, 3);
    let seen = world.osd(OsdId(1)).seen;
    let far = [
        Watermarks { revision: u64::MAX, ..seen },
        Watermarks { next_osd: u32::MAX, ..seen },
        Watermarks { next_volume: u64::MAX, ..seen },
        Watermarks { map_epoch: u64::MAX, ..seen },
    ];
    for seen in far {
        world.osd(OsdId(1)).seen = seen;
        let device = types::control::DevicePosition {
            mount: 9,
            log_seq: 9,
            durable_seq: 9,
            restored: false,
            let_in: false,
            behind: false,
        };
        let said = world.hello_at(OsdId(1), 1, device);
        let refused = |d: &OsdDown| matches!(d, OsdDown::Refused { code: codes::BAD_REQUEST, .. });
        assert!(said.iter().any(refused), "{seen:?}: {said:?}");
        assert_eq!(world.control.standing(), Standing::Sound, "{seen:?}");
    }
    world.osd(OsdId(1)).seen = seen;
    world.make_pool("p", 3, 4);
}

#[test]
fn plans_of_the_turn_that_finds_the_store_behind_are_refused() {
    let (mut world, _) = went_back(1);
    // Two OSDs missed the change: the records are sound until the next Hello.
    let remembered: Vec<Watermarks> = world.osds.iter().map(|o| o.seen).collect();
    let older = world.control.records().counters.watermarks();
    (1..=2).for_each(|n| world.osd(OsdId(n)).seen = older);
    world.connect(OsdId(1));
    world.connect(OsdId(2));
    assert_eq!(world.control.standing(), Standing::Sound);
    // One turn has both: a new volume, and the Hello of an OSD that remembers more.
    let token = world.fresh_token();
    world.control.handle_admin(token, create("p/other"));
    let hello = types::control::OsdHello { seen: remembered[2], ..world::hello(OsdId(3)) };
    world.control.handle_osd(world.now, StreamId(99), OsdUp::Hello(hello));
    world.settle();
    assert_eq!(world.control.standing(), Standing::Behind);
    let answer = world.admin_answers.remove(&token).expect("it is answered");
    assert_eq!(code(answer), codes::STORE_BEHIND);
}

#[test]
fn order_to_fail_replicas_is_dropped_when_its_turn_finds_the_store_behind() {
    for sound in [true, false] {
        let (mut world, _) = went_back(1);
        let remembered = world.osds[2].seen;
        let older = world.control.records().counters.watermarks();
        (1..=2).for_each(|n| world.osd(OsdId(n)).seen = older);
        world.connect(OsdId(1));
        world.connect(OsdId(2));
        let stream = world.osd(OsdId(2)).stream;
        world.control.handle_osd_gone(stream);
        // One turn has both: the Hello of a device that needs the order, and that of an OSD that remembers more.
        let device = DevicePosition { restored: true, mount: 1, log_seq: 1, durable_seq: 1, ..Default::default() };
        let again = types::control::OsdHello { incarnation: types::Incarnation(9), device, ..world::hello(OsdId(2)) };
        let seen = if sound { older } else { remembered };
        world.hold = true;
        world.control.handle_osd(world.now, StreamId(98), OsdUp::Hello(again));
        world.control.handle_osd(
            world.now,
            StreamId(99),
            OsdUp::Hello(types::control::OsdHello { seen, ..world::hello(OsdId(3)) }),
        );
        world.settle();
        let ordered =
            |(to, down): &(StreamId, OsdDown)| *to == StreamId(98) && matches!(down, OsdDown::FailReplicas { .. });
        assert_eq!(world.queue.iter().any(ordered), sound);
    }
}

#[test]
fn the_memory_of_a_restored_device_does_not_count() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    let copy = world.store.clone();
    world.make_volume("p/new", 4 * SEGMENT);
    world.lead_on(copy);
    // osd.2 was restored with the store, and osd.3 missed the last change: only osd.1 knows it, and it is away.
    let older = world.control.records().counters.watermarks();
    world.osd(OsdId(3)).seen = older;
    world.connect(OsdId(3));
    world.osd(OsdId(2)).seen = older;
    let device = DevicePosition { mount: 9, log_seq: 9, durable_seq: 9, restored: true, let_in: false, behind: false };
    // Its memory counts neither after its stream broke before meta let it in, nor in a later run that does not report
    // the restore.
    for _ in 0..2 {
        world.hello_at(OsdId(2), 2, device);
        assert_eq!(world.control.standing(), Standing::Waiting);
    }
    world.osd(OsdId(2)).seen = Watermarks::default();
    world.hello_at(OsdId(2), 3, DevicePosition { mount: 10, restored: false, ..device });
    assert_eq!(world.control.standing(), Standing::Waiting);
    world.connect(OsdId(1));
    assert_eq!(world.control.standing(), Standing::Behind);
}

#[test]
fn commands_wait_for_a_majority_as_long_as_it_takes() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.osd(OsdId(2)).deaf = true;
    world.osd(OsdId(3)).deaf = true;
    assert!(world.osds[0].replicas.iter().any(|(pg, _)| pg.pool.0 == 1));
    assert_eq!(code(world.admin(AdminAsk::PoolRemove { name: "p".into() })), codes::NO_MAJORITY);
    world.pass(Duration::from_secs(5));
    assert!(world.osds[0].replicas.iter().any(|(pg, _)| pg.pool.0 == 1), "nothing is dropped yet");
    world.osd(OsdId(2)).deaf = false;
    world.osd(OsdId(3)).deaf = false;
    // All OSDs remember a later change: the earlier commands go out.
    world.admin(AdminAsk::OsdReserve).expect("an id");
    world.settle();
    assert!(world.osds.iter().all(|o| o.replicas.is_empty()), "{:?}", world.osds[0].replicas);
}

#[test]
fn second_osd_removal_waits_for_the_first() {
    let mut world = World::new(1, 5);
    world.pass(Duration::from_secs(60));
    for n in [4, 5] {
        let stream = world.osd(OsdId(n)).stream;
        world.control.handle_osd_gone(stream);
    }
    world.pass(Duration::from_secs(60));
    (1..=3).for_each(|n| world.beat(OsdId(n)));
    let (one, two) = (world.fresh_token(), world.fresh_token());
    world.control.handle_admin(one, AdminAsk::OsdRemove { osd: OsdId(4) });
    world.control.handle_admin(two, AdminAsk::OsdRemove { osd: OsdId(5) });
    world.settle();
    assert_eq!(world.admin_answers.remove(&one).expect("answered"), Ok(AdminAnswer::Done));
    assert_eq!(code(world.admin_answers.remove(&two).expect("answered")), codes::NO_MAJORITY);
    world.admin(AdminAsk::OsdRemove { osd: OsdId(5) }).expect("now");
}

#[test]
fn records_of_a_backup_change_nothing_before_a_recovery() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    let Ok(AdminAnswer::Backup(items)) = world.admin(AdminAsk::MetaBackup) else { panic!("no backup") };
    let stored: Vec<String> = items.iter().map(|i| i.key.clone()).collect();
    assert!(world.store.keys().all(|k| stored.contains(k)), "{stored:?}");
    let restored = crate::records::restored(items).expect("it is a backup");
    let store = restored.into_iter().map(|i| (i.key, (i.value, i.version))).collect();
    world.lead_on(store);
    world.connect_all();
    assert_eq!(code(world.admin(create("p/v"))), codes::STORE_BEHIND);
    assert!(recover(&mut world, false).moved);
    world.admin(create("p/v")).expect("a volume");
}

#[test]
fn osds_of_another_cluster_are_named_in_the_status_of_a_new_one() {
    let mut world = World::new(1, 0);
    // The refusal is not delivered: the world's OSDs panic on one.
    world.hold = true;
    let cluster = types::ClusterId([9; 16]);
    let hello = types::control::OsdHello { cluster, ..world::hello(OsdId(3)) };
    world.control.handle_osd(world.now, StreamId(9), OsdUp::Hello(hello));
    world.settle();
    let Ok(AdminAnswer::Status(status)) = world.admin(AdminAsk::Status) else { panic!("no status") };
    let words = status.problems.join("\n");
    assert!(words.contains("1 OSDs of another cluster connect (osd.3 at"), "{words}");
    assert!(words.contains("this metadata store is new and empty"), "{words}");
}

#[test]
fn an_attach_of_old_orders_is_drawn_again_after_a_recovery() {
    let (mut world, _) = went_back(1);
    let before = world.orders.clone();
    world.connect_all();
    recover(&mut world, false);
    let held = opened(world.ask(3, open("p/old", true, false)));
    let ClientAnswer::Segments { segments: places, .. } = world.ask(3, segments(&held, 0..4, true)) else {
        panic!("not placed")
    };
    assert!(places.iter().all(|p| !p.pgs.is_empty()));
    // The PGs have seen higher orders than the records hold: they refused the lower ones, and then took higher ones.
    assert!(before.iter().all(|(pg, order)| world.orders[pg] >= *order));
    assert!(before.iter().any(|(pg, order)| world.orders[pg] > *order));
}

#[test]
fn segments_that_the_records_lack_are_put_back_and_attached_before_use() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/old", 4 * SEGMENT);
    let first = opened(world.ask(1, open("p/old", true, false)));
    let copy = world.store.clone();
    let ClientAnswer::Segments { segments: placed, .. } = world.ask(1, segments(&first, 0..3, true)) else {
        panic!("not placed")
    };
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    let found = |n: u32, volume, pg| FoundSegment { volume, segment: SegmentIndex(n), column: 0, pg };
    let pg = |n: usize| placed[n].pgs[0];
    let put_back = |world: &mut World, segments: Vec<FoundSegment>| {
        let ask = RecoverAsk { segments, ..seen(world) };
        world.admin(AdminAsk::MetaRecover(ask))
    };
    let volume = first.volume;
    let all: Vec<FoundSegment> = (0..3).map(|n| found(n as u32, volume, pg(n))).collect();
    // The session of before may still write: while it can, no list of segments is complete.
    assert_eq!(code(put_back(&mut world, all.clone())), codes::STORE_BEHIND);
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    // Segments that the records cannot hold are refused, and a dry run puts none back.
    let elsewhere = PgId { pool: types::PoolId(9), n: 0 };
    assert_eq!(code(put_back(&mut world, vec![found(9, volume, pg(0))])), codes::OUT_OF_RANGE);
    assert_eq!(code(put_back(&mut world, vec![found(0, volume, elsewhere)])), codes::OUT_OF_RANGE);
    assert_eq!(code(put_back(&mut world, vec![found(0, VolumeId(99), pg(0))])), codes::VOLUME_UNKNOWN);
    let dry = RecoverAsk { dry_run: true, segments: all.clone(), ..seen(&world) };
    world.admin(AdminAsk::MetaRecover(dry)).expect("shown");
    assert!(world.control.records().segments.is_empty());

    put_back(&mut world, all.clone()).expect("put back");
    put_back(&mut world, all.clone()).expect("again: nothing changes");
    world.settle();
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    let before = world.control.records().segments.clone();
    put_back(&mut world, vec![found(3, volume, pg(0))]).expect("the recovery is over");
    assert_eq!(world.control.records().segments, before);
    let second = opened(world.ask(2, open("p/old", true, true)));
    let places: Vec<_> = second.segments.iter().map(|s| (s.segment, s.pgs.clone())).collect();
    assert_eq!(places, placed.iter().map(|s| (s.segment, s.pgs.clone())).collect::<Vec<_>>());
    assert!(world.control.records().segments.values().all(|s| !s.pending), "attached in every PG");
}

fn said(downs: &[OsdDown]) -> Option<u32> {
    downs.iter().find_map(|down| if let OsdDown::Refused { code, .. } = down { Some(*code) } else { None })
}

fn is_held(downs: &[OsdDown]) -> bool {
    downs
        .iter()
        .any(|down| matches!(down, OsdDown::Behind { reason, hold: true } if reason.contains("may be an older copy")))
}

/// Mount 2 of a device whose recorded mount is 1, so its position is no reason to refuse it.
const SECOND_MOUNT: DevicePosition =
    DevicePosition { mount: 2, log_seq: 2, durable_seq: 2, restored: false, let_in: false, behind: false };

#[test]
fn a_device_that_went_back_with_the_records_is_held_and_then_refused() {
    let (mut world, _) = went_back(1);
    let older = world.control.records().counters.watermarks();
    world.osd(OsdId(3)).seen = older;
    // Before any OSD remembers more, the device looks like the others; once one does, the device is held.
    assert_eq!(said(&world.hello_at(OsdId(3), 2, SECOND_MOUNT)), None);
    world.hold = true;
    world.connect(OsdId(1));
    let first: Vec<OsdDown> = world.queue.drain(..).map(|(_, down)| down).collect();
    assert!(is_held(&first), "{first:?}");
    world.hold = false;
    for _ in 0..2 {
        assert!(is_held(&world.hello_at(OsdId(3), 2, SECOND_MOUNT)));
    }
    // Its memory does not count, and osd.1 alone is no majority.
    assert_eq!(recover_without(&mut world, false, &[]).expect_err("refused").code, codes::NO_MAJORITY);
    world.connect(OsdId(2));
    assert!(recover(&mut world, false).moved);
    let refused = world.hello_at(OsdId(3), 2, SECOND_MOUNT);
    assert_eq!(said(&refused), Some(codes::DEVICE_BEHIND), "{refused:?}");
    // It is let in as a restored device, whose replicas have failed.
    let restored = DevicePosition { restored: true, ..SECOND_MOUNT };
    let welcomed = world.hello_at(OsdId(3), 2, restored);
    assert!(welcomed.iter().any(|down| matches!(down, OsdDown::Welcome { .. })), "{welcomed:?}");
    // From here on its position is judged as usual.
    world.pass(Duration::from_secs(7));
    (world.osd(OsdId(3)).incarnation, world.osd(OsdId(3)).log_seq) = (2, 2);
    world.restart(OsdId(3));
    world.restart(OsdId(2));
    assert!(world.osds()[1..].iter().all(|osd| osd.live == "up"));
}

#[test]
fn an_osd_that_meta_let_in_before_goes_on_whatever_it_remembers() {
    let (mut world, _) = went_back(1);
    world.osd(OsdId(3)).seen = Default::default();
    world.connect(OsdId(1));
    world.connect(OsdId(2));
    assert_eq!(world.control.standing(), Standing::Behind);
    let same = DevicePosition { let_in: true, ..SECOND_MOUNT };
    assert_eq!(said(&world.hello_at(OsdId(3), 1, same)), None);
    assert!(recover(&mut world, false).moved);
    assert_eq!(said(&world.hello_at(OsdId(3), 1, same)), None);
}

#[test]
fn recovery_ends_every_hold_and_fences_it_before_the_next_open() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/v", 4 * SEGMENT);
    let preempted = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&preempted, 0..1, true));
    let copy = world.store.clone();
    let ClientAnswer::Segments { segments: ahead, .. } = world.ask(1, segments(&preempted, 1..2, true)) else {
        panic!("not placed")
    };
    let taker = opened(world.ask(2, open("p/v", true, true)));
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    assert_eq!(recover(&mut world, true).held, 1);
    assert_eq!(
        world::session_of(&world.control.records().volumes[&preempted.volume]),
        preempted.session,
        "a dry run ends nothing"
    );
    let moved = move_watermarks(&mut world, false, &[]).expect("moved");
    assert!(moved.moved && moved.recovering == 1, "{moved:?}");
    assert_eq!(refused(world.ask(3, open("p/v", true, true))).code, codes::VOLUME_RECOVERING);
    // A reader that has it open must not take the lost segment for zeros.
    let reader = Opened { session: SessionId(0), ..preempted.clone() };
    assert_eq!(refused(world.ask(4, segments(&reader, 1..2, false))).code, codes::VOLUME_RECOVERING);
    let remove = AdminAsk::VolumeRemove(VolumeRemove {
        name: "p/v".into(),
        force: true,
        now: true,
        snapshots: false,
        detach: false,
    });
    assert_eq!(code(world.admin(remove)), codes::VOLUME_RECOVERING);
    // A PG that the records do not name for the volume, and one that is another pool's.
    let unknown = FoundAttach { volume: taker.volume, pg: ahead[0].pgs[0] };
    let strange = FoundAttach { pg: PgId { pool: types::PoolId(9), n: 0 }, ..unknown };
    let ask = RecoverAsk { attached: vec![unknown, strange], ..seen(&world) };
    step(&mut world, ask).expect("fenced");
    world.settle();
    let epoch = world.control.records().volumes[&taker.volume].epoch;
    assert!(epoch > taker.epoch, "{epoch:?}");
    let fenced = world.attached[&(unknown.pg, taker.volume)];
    assert!(fenced.writers.is_empty() && fenced.epoch == epoch, "{fenced:?}");
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    for (client, held) in [(1, &preempted), (2, &taker)] {
        let alive = ClientAsk::Keepalive {
            volume: held.volume,
            session: held.session,
            unreached: Vec::new(),
            len_epoch: 0,
            len_bytes: 0,
        };
        assert_eq!(refused(world.ask(client, alive)).code, codes::SESSION_FENCED);
        assert_eq!(refused(world.ask(client, segments(held, 2..3, true))).code, codes::SESSION_FENCED);
    }
    let again = opened(world.ask(3, open("p/v", true, false)));
    assert!(again.epoch > epoch);
}

#[test]
fn pg_that_never_attaches_keeps_no_recovery_from_its_end() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/v", 4 * SEGMENT);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..1, true));
    let copy = world.store.clone();
    world.make_volume("p/w", 4 * SEGMENT);
    world.lead_on(copy);
    world.connect_all();
    world.leaderless = world.control.records().pgs.keys().copied().collect();
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    assert!(!world.control.records().volumes[&held.volume].settled, "its PG has no leader");
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    let now = &world.control.records().volumes[&held.volume];
    assert!(!now.recovering && !now.settled, "an open waits for the attach record");
}

#[test]
fn copy_from_the_middle_of_a_recovery_ends_later_holds_too() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/v", 4 * SEGMENT);
    let copy = world.store.clone();
    world.make_volume("p/w", 4 * SEGMENT);
    world.lead_on(copy);
    world.connect_all();
    let ask = seen(&world);
    step(&mut world, ask).expect("the holds ended");
    assert_eq!(world.control.standing(), Standing::Behind);
    let middle = world.store.clone();
    assert!(recover(&mut world, false).moved);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.lead_on(middle);
    world.connect_all();
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    assert!(world.control.records().volumes[&held.volume].epoch > held.epoch);
}

#[test]
fn many_electors_are_left_out_and_many_holds_end_in_steps() {
    let count = 90;
    let (mut world, _) = older_copy(count);
    world.connect_all();
    assert!(recover(&mut world, false).moved);
    for n in 0..100 {
        world.make_volume(&format!("p/v{n}"), SEGMENT);
    }
    let copy = world.store.clone();
    world.make_volume("p/later", SEGMENT);
    world.lead_on(copy);
    world.connect(OsdId(1));
    let lost: Vec<u32> = (2..=count).collect();
    assert!(recover_without(&mut world, false, &lost).expect("moved").moved);
    assert_eq!(world.control.records().osds.values().filter(|o| o.elector).count(), 1);
    assert!(world.control.records().volumes.values().all(|v| !v.recovering));
}

#[test]
fn a_recovery_that_was_shown_another_standing_changes_nothing() {
    let (mut world, _) = went_back(1);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    let ask = RecoverAsk { standing: "waiting".to_owned(), ..RecoverAsk::default() };
    assert_eq!(code(world.admin(AdminAsk::MetaRecover(ask))), codes::NO_MAJORITY);
    assert_eq!(world.control.standing(), Standing::Behind);
}

/// Returns a store and watermarks from before the last change, with `count` OSDs whose memory counts.
fn older_copy(count: u32) -> (World, Watermarks) {
    let mut world = World::new(1, count);
    world.make_pool("p", 3, 4);
    for _ in 0..10 {
        world.pass(Duration::from_secs(1));
        (1..=count).for_each(|n| world.beat(OsdId(n)));
    }
    let electors = world.control.records().osds.values().filter(|o| o.elector).count();
    assert_eq!(electors, count as usize, "the memory of each counts");
    let (copy, older) = (world.store.clone(), world.control.records().counters.watermarks());
    world.make_volume("p/new", 4 * SEGMENT);
    world.lead_on(copy);
    (world, older)
}

#[test]
fn devices_that_went_back_on_half_of_the_osds_are_held() {
    let (mut world, older) = older_copy(4);
    for n in [3, 4] {
        world.osd(OsdId(n)).seen = older;
        world.hello_at(OsdId(n), 2, SECOND_MOUNT);
    }
    world.connect(OsdId(1));
    world.connect(OsdId(2));
    assert_eq!(world.control.standing(), Standing::Behind);
    for n in [3, 4] {
        assert!(is_held(&world.hello_at(OsdId(n), 2, SECOND_MOUNT)), "osd.{n}");
    }
}

#[test]
fn a_restored_device_proves_nothing_for_another_one() {
    let (mut world, older) = older_copy(3);
    world.osd(OsdId(2)).seen = older;
    world.osd(OsdId(3)).seen = older;
    world.hello_at(OsdId(2), 2, DevicePosition { restored: true, ..SECOND_MOUNT });
    world.connect(OsdId(1));
    assert_eq!(world.control.standing(), Standing::Behind);
    assert!(is_held(&world.hello_at(OsdId(3), 2, SECOND_MOUNT)), "that it was restored was not said");
}

#[test]
fn an_osd_on_hold_goes_on_when_others_show_that_it_is_current() {
    let (mut world, older) = older_copy(4);
    // The last change reached osd.1 only.
    (2..=4).for_each(|n| world.osd(OsdId(n)).seen = older);
    world.connect(OsdId(1));
    assert!(is_held(&world.hello_at(OsdId(2), 2, SECOND_MOUNT)), "who has not come may know more");
    for n in [3, 4] {
        world.hello_at(OsdId(n), 2, SECOND_MOUNT);
    }
    let said = world.hello_at(OsdId(2), 2, SECOND_MOUNT);
    assert!(said.iter().any(|down| matches!(down, OsdDown::Behind { hold: false, .. })), "{said:?}");
}

#[test]
fn fewer_than_a_majority_decide_only_without_all_that_are_silent() {
    let (mut world, _) = older_copy(5);
    let older = world.control.records().counters.watermarks();
    for n in [1, 2] {
        world.osd(OsdId(n)).seen = older;
        world.connect(OsdId(n));
    }
    assert_eq!(world.control.standing(), Standing::Waiting);
    let refusal = recover_without(&mut world, false, &[3, 4]).expect_err("osd.5 may know more");
    assert!(refusal.code == codes::NO_MAJORITY && refusal.message.contains("start osd.5"), "{refusal:?}");
    assert!(recover_without(&mut world, false, &[3, 4, 5]).expect("all are named").moved);
}
