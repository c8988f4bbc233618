//! The life of an OSD in the records: reserved, registered, started, copied, restored, removed.

use super::*;
use types::control::DevicePosition;
use world::CLUSTER;

fn register(n: u8, osd: Option<OsdId>) -> AdminAsk {
    let (host, rack, zone) = ("h".into(), "r".into(), "z".into());
    AdminAsk::OsdRegister(OsdRegister {
        osd,
        uuid: OsdUuid([n; 16]),
        host,
        rack,
        zone,
        capacity_bytes: 1,
        device_class: None,
        replaces: None,
    })
}

fn reserve(world: &mut World) -> OsdId {
    match world.admin(AdminAsk::OsdReserve).expect("an id") {
        AdminAnswer::OsdRegistered { osd, cluster: CLUSTER } => osd,
        other => panic!("{other:?}"),
    }
}

fn at(mount: u64, log_seq: u64) -> DevicePosition {
    DevicePosition { mount, log_seq, durable_seq: log_seq, restored: false, let_in: false, behind: false }
}

fn code_of(said: &[OsdDown]) -> Option<u32> {
    said.iter().find_map(|down| if let OsdDown::Refused { code, .. } = down { Some(*code) } else { None })
}

fn welcomed(said: &[OsdDown]) -> bool {
    said.iter().any(|down| matches!(down, OsdDown::Welcome { .. }))
}

/// Whether the OSD got the order to fail its replicas, and nothing else.
fn is_to_fail(said: &[OsdDown]) -> bool {
    matches!(said, [OsdDown::FailReplicas { .. }])
}

#[test]
fn a_reserved_id_is_no_osd_until_its_device_is_registered() {
    let mut world = World::new(1, 3);
    let id = reserve(&mut world);
    assert_eq!((id, world.osds().len()), (OsdId(4), 3), "a format that is cut short leaves nothing");
    assert_eq!(world.admin(register(9, Some(OsdId(9)))).expect_err("never drawn").code, codes::OSD_UNKNOWN);
    assert_eq!(world.admin(register(9, Some(OsdId(1)))).expect_err("taken").code, codes::OSD_EXISTS);
    for _ in 0..2 {
        let answer = world.admin(register(9, Some(id))).expect("registered");
        assert!(matches!(answer, AdminAnswer::OsdRegistered { osd, .. } if osd == id), "{answer:?}");
    }
    assert_eq!(world.osds().into_iter().map(|o| o.live).collect::<Vec<_>>(), ["up", "up", "up", "new"]);
    assert_eq!(reserve(&mut world), OsdId(5));
}

#[test]
fn an_osd_is_removed_only_when_it_is_down_and_holds_no_pg() {
    let mut world = World::new(1, 4);
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(4), Some(false), None))).expect("out");
    world.make_pool("p", 3, 4);
    let remove = |world: &mut World, n| world.admin(AdminAsk::OsdRemove { osd: OsdId(n) });
    assert_eq!(remove(&mut world, 9).expect_err("unknown").code, codes::OSD_UNKNOWN);
    let refused = remove(&mut world, 1).expect_err("it holds PGs");
    assert!(refused.code == codes::OSD_IN_USE && refused.message.starts_with("osd.1 holds 4 PGs; "), "{refused:?}");
    assert_eq!(remove(&mut world, 4).expect_err("it is up").code, codes::OSD_IN_USE);
    world.pass(Duration::from_secs(60));
    let epoch = world.control.records().counters.map_epoch;
    remove(&mut world, 4).expect("it is down and empty");
    assert_eq!((world.osds().len(), world.control.records().counters.map_epoch.0), (3, epoch.0 + 1));
    assert_eq!(code_of(&world.hello_at(OsdId(4), 2, at(2, 2))), Some(codes::OSD_UNKNOWN));
    world.admin(register(9, None)).expect("registered");
    assert_eq!(world.osds().last().expect("the new one").osd, OsdId(5), "ids are never used twice");
    remove(&mut world, 5).expect("it never started");
    assert_eq!(world.osds().len(), 3);
}

#[test]
fn second_process_of_an_osd_is_refused_until_the_first_is_gone() {
    let mut world = World::new(1, 3);
    let said = world.hello_at(OsdId(2), 7, at(2, 9));
    assert_eq!(code_of(&said), Some(codes::OSD_OTHER_LIFE), "{said:?}");
    let Some(OsdDown::Refused { reason, .. }) = said.first() else { panic!("{said:?}") };
    assert!(reason.starts_with("another process serves osd.2 from 127.0.0.1:7402; is this device a copy?"), "{reason}");
    assert!(!reason.contains("basalt osd format"), "{reason}");
    world.beat(OsdId(2));
    assert_eq!(world.osds()[1].addr, Some("127.0.0.1:7402".parse().expect("an address")), "the first goes on");
    // Its host lost power: the stream stays half open.
    world.pass(Duration::from_secs(5));
    assert_eq!(code_of(&world.hello_at(OsdId(2), 7, at(2, 9))), Some(codes::OSD_OTHER_LIFE));
    world.pass(Duration::from_millis(1100));
    assert!(welcomed(&world.hello_at(OsdId(2), 7, at(2, 9))));
}

#[test]
fn device_behind_its_position_is_let_in_with_its_replicas_failed() {
    let mut world = World::new(1, 3);
    world.restart(OsdId(2));
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 90);
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    for (incarnation, device) in [(9, at(1, 100)), (9, at(2, 100)), (9, at(3, 89))] {
        let said = world.hello_at(OsdId(2), incarnation, device);
        assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{device:?}: {said:?}");
    }
    world.pass(Duration::from_secs(6));
    assert!(is_to_fail(&world.hello_at(OsdId(2), 9, at(1, 100))), "it holds no PG");
    assert!(is_to_fail(&world.hello_at(OsdId(2), 9, DevicePosition { restored: true, ..at(2, 50) })), "no new number");
    assert!(welcomed(&world.hello_at(OsdId(2), 9, DevicePosition { restored: true, ..at(8, 50) })));
    assert!(welcomed(&world.hello_at(OsdId(2), 9, at(8, 50))), "the same process comes back");
    assert_eq!(
        (world.control.records().osds[&OsdId(2)].mount, world.control.records().osds[&OsdId(2)].log_seq),
        (8, 50)
    );
}

#[test]
fn older_device_waits_until_its_pgs_are_served_without_it() {
    for (replicas, osds) in [(3, 3), (2, 2), (1, 1)] {
        let mut world = World::new(1, osds);
        world.make_pool("p", replicas, 1);
        let record = world.control.records().pgs.values().next().expect("one PG");
        let older = record.members[0];
        world.seconds(1, &[]);
        world.heartbeat(older.osd, |beat| beat.log_seq = 90);
        let stream = world.osd(older.osd).stream;
        world.control.handle_osd_gone(stream);
        let hello = |world: &mut World| {
            let behind = DevicePosition { behind: true, ..at(9, 999) };
            world.hello_at(older.osd, 9, behind)
        };
        assert_eq!(code_of(&hello(&mut world)), Some(codes::DEVICE_BEHIND), "no other one leads");
        world.elects = true;
        for _ in 0..if replicas == 3 { 3 } else { 2 } {
            // Another leader may have died a moment ago.
            world.seconds(2, &[older.osd.0]);
            assert_eq!(code_of(&hello(&mut world)), Some(codes::DEVICE_BEHIND));
        }
        world.seconds(2, &[older.osd.0]);
        let said = hello(&mut world);
        match replicas {
            1 => assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "the only copy"),
            _ => assert!(is_to_fail(&said), "{replicas}: {said:?}"),
        }
        // The next mount is far above all of the device that went back: it cannot pass for the current one any more.
        let restored = |mount| DevicePosition { restored: true, ..at(mount, 1000) };
        if let [OsdDown::FailReplicas { mount, .. }] = said[..] {
            assert!(mount > 1 << 32, "{mount}");
            assert!(welcomed(&world.hello_at(older.osd, 10, restored(mount + 1))));
        }
    }
}

/// Makes a world in which OSD 1 asks as an older copy, for a PG of three that OSD 2 leads. Returns the PG.
fn older_beside_a_leader() -> (World, PgId) {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1);
    let pg = world.control.records().pgs.values().next().expect("one PG").pg;
    world.leaders.insert(pg, (OsdId(2), 2));
    let stream = world.osd(OsdId(1)).stream;
    world.control.handle_osd_gone(stream);
    world.seconds(1, &[1]);
    (world, pg)
}

/// Asks as the older copy of OSD 1.
fn ask_as_older(world: &mut World) -> Vec<OsdDown> {
    world.hello_at(OsdId(1), 9, DevicePosition { behind: true, ..at(9, 999) })
}

#[test]
fn a_dead_leader_serves_no_pg_for_an_older_device() {
    for is_set_back in [false, true] {
        let (mut world, _) = older_beside_a_leader();
        for _ in 0..3 {
            assert_eq!(code_of(&ask_as_older(&mut world)), Some(codes::DEVICE_BEHIND));
            world.seconds(2, &[1]);
        }
        match is_set_back {
            // Its first stream stays half open.
            true => {
                let now = DevicePosition { durable_seq: 0, ..at(1, 1) };
                assert_eq!(code_of(&world.hello_at(OsdId(2), 1, now)), Some(codes::DEVICE_BEHIND));
            }
            false => {
                let stream = world.osd(OsdId(2)).stream;
                world.control.handle_osd_gone(stream);
            }
        }
        let said = ask_as_older(&mut world);
        assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{is_set_back}: {said:?}");
    }
}

#[test]
fn a_change_of_leader_does_not_begin_the_wait_of_an_older_device_again() {
    for (without_leader, fails) in [(0, true), (4, false)] {
        let (mut world, pg) = older_beside_a_leader();
        for _ in 0..2 {
            assert_eq!(code_of(&ask_as_older(&mut world)), Some(codes::DEVICE_BEHIND));
            world.seconds(2, &[1]);
        }
        // OSD 2 gives the leadership up, and OSD 3 has not reported it yet.
        world.leaders.insert(pg, (OsdId(1), 3));
        world.beat(OsdId(2));
        world.seconds(without_leader, &[1]);
        assert_eq!(code_of(&ask_as_older(&mut world)), Some(codes::DEVICE_BEHIND), "no OSD serves the PG");
        world.leaders.insert(pg, (OsdId(3), 4));
        world.seconds(2, &[1]);
        assert_eq!(is_to_fail(&ask_as_older(&mut world)), fails, "{without_leader} s without a leader");
    }
}

#[test]
fn a_run_that_was_let_in_with_its_replicas_failed_and_goes_back_waits() {
    let mut world = World::new(1, 1);
    world.make_pool("p", 1, 1);
    let stream = world.osd(OsdId(1)).stream;
    world.control.handle_osd_gone(stream);
    let restored = DevicePosition { restored: true, ..at(9, 100) };
    assert!(welcomed(&world.hello_at(OsdId(1), 9, restored)));
    // Its machine is set back with its memory. New replicas may be the only copies of their PGs.
    for crash in [false, true] {
        if crash {
            world.crash();
        }
        for let_in in [true, false] {
            let back = DevicePosition { let_in, durable_seq: 99, ..restored };
            let said = world.hello_at(OsdId(1), 9, back);
            assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{crash}, {let_in}: {said:?}");
        }
    }
}

#[test]
fn an_older_device_is_told_when_it_waits_for_trusted_records() {
    let mut world = World::new(1, 2);
    (0..3).for_each(|_| world.restart(OsdId(2)));
    world.crash();
    world.connect(OsdId(1));
    assert_eq!(world.control.standing(), Standing::Waiting);
    for restored in [false, true] {
        let said = world.hello_at(OsdId(2), 9, DevicePosition { restored, ..at(3, 1) });
        assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{restored}: {said:?}");
        let Some(OsdDown::Refused { reason, .. }) = said.first() else { panic!("{said:?}") };
        assert!(reason.contains("basalt meta recover --without 2"), "{reason}");
    }
}

#[test]
fn device_that_was_restored_after_a_copy_of_the_records_is_no_older_one() {
    let mut world = World::new(1, 3);
    world.restart(OsdId(2));
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 90);
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    let mount = world.control.records().osds[&OsdId(2)].mount + crate::plan::MOUNT_LEAP;
    assert_eq!(code_of(&world.hello_at(OsdId(2), 9, at(mount, 50))), Some(codes::DEVICE_BEHIND));
    assert!(welcomed(&world.hello_at(OsdId(2), 9, at(mount + 1, 50))), "its log began again");
}

#[test]
fn a_restored_device_gets_a_mount_number_above_all_earlier_ones() {
    let mut world = World::new(1, 3);
    (0..3).for_each(|_| world.restart(OsdId(2)));
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    let restored = |mount| DevicePosition { restored: true, ..at(mount, 1) };
    let said = world.hello_at(OsdId(2), 9, restored(3));
    let [OsdDown::FailReplicas { mount, .. }] = said[..] else { panic!("{said:?}") };
    assert!(welcomed(&world.hello_at(OsdId(2), 10, restored(mount + 1))));
    world.pass(Duration::from_secs(7));
    // The device that was set aside comes back.
    let said = world.hello_at(OsdId(2), 11, at(1000, 1 << 40));
    assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{said:?}");
}

#[test]
fn a_process_whose_device_goes_back_under_it_is_refused() {
    // A virtual machine is set back to a snapshot with its memory: the incarnation is the same, and its stream
    // may even live on.
    let mut world = World::new(1, 3);
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 70);
    let stream = world.osd(OsdId(2)).stream;
    world.hold = true;
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 69);
    world.hold = false;
    let said: Vec<OsdDown> =
        std::mem::take(&mut world.queue).into_iter().filter(|(to, _)| *to == stream).map(|(_, d)| d).collect();
    assert_eq!(code_of(&said), Some(codes::DEVICE_BEHIND), "{said:?}");
    let now = DevicePosition { durable_seq: 69, ..at(1, 1) };
    assert_eq!(code_of(&world.hello_at(OsdId(2), 1, now)), Some(codes::DEVICE_BEHIND));
    world.crash();
    [1, 3].into_iter().for_each(|n| world.connect(OsdId(n)));
    assert_eq!(
        code_of(&world.hello_at(OsdId(2), 1, now)),
        Some(codes::DEVICE_BEHIND),
        "the record tells the next leader"
    );
    assert!(welcomed(&world.hello_at(OsdId(2), 1, DevicePosition { durable_seq: 70, ..at(1, 1) })));
}

#[test]
fn runs_are_ordered_by_mount_number_whatever_the_clock_of_the_host_says() {
    let mut world = World::new(1, 3);
    world.restart(OsdId(2));
    world.heartbeat(OsdId(2), |beat| beat.poisoned = Some("a write failed".into()));
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    // A copy whose host has a late clock gets the mark, and so does one with an early clock.
    for incarnation in [1, 9] {
        assert_eq!(code_of(&world.hello_at(OsdId(2), incarnation, at(1, 9))), Some(codes::DEVICE_BEHIND));
        assert_eq!(code_of(&world.hello_at(OsdId(2), incarnation, at(2, 9))), Some(codes::DEVICE_BEHIND));
        // A run that a metadata server has let in ends: another one has taken its place since.
        let let_in = DevicePosition { let_in: true, ..at(2, 9) };
        assert_eq!(code_of(&world.hello_at(OsdId(2), incarnation, let_in)), Some(codes::OSD_OTHER_LIFE));
    }
    assert_eq!(world.control.records().osds[&OsdId(2)].mount, 2);
    assert!(welcomed(&world.hello_at(OsdId(2), 1, at(3, 9))), "a later run, with an earlier clock");
    assert_eq!(world.control.records().osds[&OsdId(2)].poisoned, None);
}

#[test]
fn log_position_survives_a_change_of_the_meta_leader() {
    let mut world = World::new(1, 3);
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 70);
    assert_eq!(world.control.records().osds[&OsdId(2)].log_seq, 1, "not every heartbeat is a transaction");
    world.pass(Duration::from_secs(61));
    world.heartbeat(OsdId(2), |beat| beat.log_seq = 90);
    world.crash();
    [1, 3].into_iter().for_each(|n| world.connect(OsdId(n)));
    assert_eq!(code_of(&world.hello_at(OsdId(2), 9, at(7, 89))), Some(codes::DEVICE_BEHIND));
    assert!(welcomed(&world.hello_at(OsdId(2), 9, at(7, 90))));
}

#[test]
fn omitted_location_stays_and_a_changed_one_is_a_warning() {
    let mut world = World::new(1, 3);
    world.restart(OsdId(2));
    let moves = |world: &World| -> Vec<String> {
        world.events.iter().filter(|e| e.kind == "osd.moved").map(|e| e.text.clone()).collect()
    };
    assert!(moves(&world).is_empty());
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    world.osd(OsdId(2)).incarnation = 9;
    world.osd(OsdId(2)).log_seq = 8;
    assert!(welcomed(&world.hello_at(OsdId(2), 8, at(8, 8))), "host, rack and zone are not given");
    let view = &world.osds()[1];
    assert_eq!((view.host.as_str(), view.rack.as_str(), view.zone.as_str()), ("h2", "r", "z"));
    let mut record = world.control.records().osds[&OsdId(2)].clone();
    record.host = "elsewhere".into();
    world.control.write(vec![Write::Put(crate::records::Record::Osd(record))]);
    world.settle();
    world.pass(Duration::from_secs(10));
    world.connect(OsdId(2));
    assert_eq!(moves(&world), ["osd.2 moved: it was registered at z/r/elsewhere and reports from z/r/h2"]);
}
