//! OSDs that meta does not hear, and broken paths that only a client can see.

use super::world::{World, alive, opened};
use super::{open, segments, with_volume};
use std::time::Duration;
use types::control::ClientAsk;
use types::{OsdId, SEGMENT};

/// Sends the reports of OSDs 2 and 3; as followers they hear osd.1, or no leader.
fn others_report(world: &mut World, hear: bool) {
    for osd in [2, 3] {
        world.heartbeat(OsdId(osd), |beat| {
            for report in beat.pgs.iter_mut().filter(|report| report.leading.is_none()) {
                report.hears = hear.then_some(OsdId(1));
            }
        });
    }
}

#[test]
fn pgs_serve_whose_leader_reaches_all_but_meta() {
    let mut world = with_volume(4);
    let led = world.osds()[0].leads;
    assert!(led > 0, "osd.1 leads something");
    // The time exceeds what a new meta and a new PG are given to report.
    for _ in 0..4 {
        world.pass(Duration::from_secs(4));
        others_report(&mut world, true);
    }
    let status = world.control.status(world.now);
    assert_eq!((status.pgs_active, status.pgs_down), (status.pgs, 0), "{:?}", status.problems);
    let line = "osd.1 cannot reach the metadata server (its PGs serve)".to_owned();
    assert!(status.problems.contains(&line), "{:?}", status.problems);
    // When the followers do not hear it either, it is dead.
    others_report(&mut world, false);
    world.pass(Duration::from_secs(4));
    others_report(&mut world, false);
    let status = world.control.status(world.now);
    assert_eq!(status.pgs_down, led, "{:?}", status.problems);
    assert!(!status.problems.contains(&line), "{:?}", status.problems);
}

#[test]
fn a_path_that_a_holder_names_is_shown_while_it_holds() {
    let mut world = with_volume(4);
    world.pass(Duration::from_secs(5));
    (1..=3).for_each(|n| world.beat(OsdId(n)));
    let held = opened(world.ask(1, open("p/v", true, false)));
    let unreached = vec![OsdId(2), OsdId(77)];
    let keepalive = |unreached| ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached,
        len_epoch: 0,
        len_bytes: 0,
    };
    assert_eq!(world.ask(1, keepalive(unreached.clone())), alive(4 * SEGMENT));
    let shown = |world: &World| -> Vec<String> {
        let problems = world.control.status(world.now).problems;
        problems.into_iter().filter(|line| line.starts_with("client ")).collect()
    };
    let lines = shown(&world);
    assert!(lines.len() == 1 && lines[0].ends_with(" cannot reach osd.2"), "{lines:?}");
    assert_eq!(world.ask(1, keepalive(Vec::new())), alive(4 * SEGMENT));
    assert_eq!(shown(&world), Vec::<String>::new());
    assert_eq!(world.ask(1, keepalive(unreached)), alive(4 * SEGMENT));
    assert_eq!(shown(&world).len(), 1);
    // After an OSD has just connected, the client has not tried again yet.
    world.connect(OsdId(2));
    assert_eq!(shown(&world), Vec::<String>::new());
    world.pass(Duration::from_secs(5));
    (1..=3).for_each(|n| world.beat(OsdId(n)));
    assert_eq!(shown(&world).len(), 1, "it still cannot");
    // A client that is gone reports nothing any more.
    world.pass(Duration::from_secs(11));
    others_report(&mut world, true);
    assert_eq!(shown(&world), Vec::<String>::new());
}

#[test]
fn a_pg_of_a_volume_is_not_moved_to_an_osd_that_its_holder_cannot_reach() {
    let mut world = with_volume(4);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..4, true));
    let used: Vec<_> = world.control.records().segments_of(held.volume).map(|s| s.pg).collect();
    let pgs: Vec<_> = world.control.records().pgs.keys().copied().collect();
    world.leaders = pgs.iter().map(|pg| (*pg, (OsdId(1), 2))).collect();
    let keepalive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: vec![OsdId(2), OsdId(3)],
        len_epoch: 0,
        len_bytes: 0,
    };
    for _ in 0..60 {
        world.pass(Duration::from_secs(1));
        assert_eq!(world.ask(1, keepalive.clone()), alive(4 * SEGMENT));
        (1..=3).for_each(|n| world.beat(OsdId(n)));
    }
    assert!(used.iter().all(|pg| world.leaders[pg].0 == OsdId(1)), "{:?}", world.leaders);
    assert!(world.transfers > 5, "the other PGs are moved: {}", world.transfers);
}
