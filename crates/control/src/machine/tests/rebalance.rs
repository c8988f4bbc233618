//! OSDs that go out, come in, are drained and replaced, and the moves that follow.

use super::*;
use crate::admin::{Moves, PgMove, PlannedMove};
use crate::records::ChangeReason;
use world::Death;

/// A pool of 16 PGs on so many OSDs, each on its own host.
fn cluster(osds: u32) -> World {
    let mut world = World::new(1, osds);
    world.make_pool("p", 3, 16);
    world.elects = true;
    world.seconds(2, &[]);
    world
}

fn set(world: &mut World, osds: &[u32], is_in: bool) -> Vec<PlannedMove> {
    let osds = osds.iter().map(|n| OsdId(*n)).collect();
    let ask = OsdSet { osds, is_in: Some(is_in), drain: Some(false), dry_run: false, device_class: None };
    moves(world.admin(AdminAsk::OsdSet(ask)))
}

fn moves(answer: Result<AdminAnswer, Refusal>) -> Vec<PlannedMove> {
    match answer.expect("it is done") {
        AdminAnswer::Moves(moves) => moves,
        other => panic!("{other:?}"),
    }
}

fn held(world: &World) -> Vec<usize> {
    let on = |n: u32| move |pg: &&crate::records::PgRecord| pg.members.iter().any(|m| m.osd.0 == n);
    let pgs = || world.control.records().pgs.values();
    (1..=world.osds.len() as u32).map(|n| pgs().filter(on(n)).count()).collect()
}

fn moves_of(world: &World) -> Moves {
    world.control.status(world.now).moves
}

/// Whether nothing moves, nor will.
fn is_settled(world: &World) -> bool {
    let moves = moves_of(world);
    (moves.running, moves.waiting) == (0, 0)
}

/// Runs until nothing moves, and checks at every second that no OSD receives more than it may.
fn until_settled(world: &mut World, silent: &[u32]) {
    for _ in 0..400 {
        world.seconds(1, silent);
        let mut coming = BTreeMap::new();
        for change in world.control.records().pgs.values().filter_map(|pg| pg.change.as_ref()) {
            *coming.entry(change.to).or_insert(0) += 1;
        }
        assert!(coming.values().all(|count| *count <= 2), "{coming:?}");
        if is_settled(world) {
            world.seconds(2, silent);
            return;
        }
    }
    panic!("the moves do not end: {:?}", moves_of(world));
}

fn has_event(world: &World, kind: &str, subject: &str) -> bool {
    world.events.iter().any(|e| e.kind == kind && e.subject == subject)
}

#[test]
fn an_osd_that_is_out_is_emptied_and_gets_its_share_when_it_is_in_again() {
    let mut world = cluster(5);
    let before = held(&world);
    let planned = set(&mut world, &[2], false);
    assert!(planned.len() == before[1] && planned.iter().all(|m| m.from == OsdId(2) && m.to.is_some()), "{planned:?}");
    until_settled(&mut world, &[]);
    assert_eq!((held(&world)[1], held(&world).iter().sum::<usize>()), (0, 48));
    assert!(has_event(&world, "osd.emptied", "osd.2") && !world.events.iter().any(|e| e.kind == "pg.moved"));
    assert!(world.osds.iter().find(|o| o.id == OsdId(2)).is_some_and(|o| o.replicas.is_empty()), "all are dropped");
    set(&mut world, &[2], true);
    until_settled(&mut world, &[]);
    let after = held(&world);
    assert!(after.iter().all(|count| (7..=12).contains(count)), "{after:?}");
}

/// An OSD that is out may come back, and keeps its contents. One that is drained, or whose pool is removed, does not.
#[test]
fn an_osd_that_is_in_again_gets_the_pgs_whose_contents_it_kept() {
    let mut world = cluster(5);
    let of = |world: &World, n: u32| -> BTreeSet<PgId> {
        let pgs = world.control.records().pgs.values();
        pgs.filter(|pg| pg.members.iter().any(|m| m.osd.0 == n)).map(|pg| pg.pg).collect()
    };
    let had = of(&world, 2);
    set(&mut world, &[2], false);
    until_settled(&mut world, &[]);
    assert_eq!(world.osd(OsdId(2)).kept, had);
    set(&mut world, &[2], true);
    until_settled(&mut world, &[]);
    let has = of(&world, 2);
    assert!(has.len() >= 7 && has.is_subset(&had), "{has:?} of {had:?}");
    let ask = OsdSet { osds: vec![OsdId(3)], is_in: None, drain: Some(true), dry_run: false, device_class: None };
    moves(world.admin(AdminAsk::OsdSet(ask)));
    until_settled(&mut world, &[]);
    assert!(of(&world, 3).is_empty() && world.osd(OsdId(3)).kept.is_empty(), "a drained OSD keeps nothing");
}

#[test]
fn a_dry_run_changes_nothing_and_names_the_moves_that_follow() {
    let mut world = cluster(4);
    let (store, before) = (world.store.clone(), held(&world));
    let ask = OsdSet { osds: vec![OsdId(3)], is_in: None, drain: Some(true), dry_run: true, device_class: None };
    let dry = moves(world.admin(AdminAsk::OsdSet(ask.clone())));
    world.seconds(3, &[]);
    assert_eq!((&world.store.get("osd/00000003"), held(&world)), (&store.get("osd/00000003"), before.clone()));
    let real = moves(world.admin(AdminAsk::OsdSet(OsdSet { dry_run: false, ..ask })));
    assert!(dry == real && real.len() == before[2], "{dry:?} {real:?}");
    until_settled(&mut world, &[]);
    for m in real {
        let now: Vec<OsdId> = world.control.records().pgs[&m.pg].members.iter().map(|m| m.osd).collect();
        assert!(!now.contains(&m.from), "{m:?}: {now:?}");
    }
    for (osds, code) in [(vec![], codes::BAD_REQUEST), (vec![OsdId(9)], codes::OSD_UNKNOWN)] {
        let ask = OsdSet { osds, is_in: Some(false), drain: None, dry_run: true, device_class: None };
        assert_eq!(world.admin(AdminAsk::OsdSet(ask)).expect_err("it cannot be").code, code);
    }
}

#[test]
fn an_osd_that_is_down_for_too_long_is_out_until_it_comes_back() {
    let mut world = cluster(4);
    world.set("osd_out_after", Some("5m"));
    world.seconds(280, &[2]);
    assert!(world.osds()[1].is_in && world.osds()[1].live == "down");
    // The time goes on under another leader of meta.
    world.crash();
    [1, 3, 4].into_iter().for_each(|n| world.connect(OsdId(n)));
    world.seconds(35, &[2]);
    assert!(world.osds()[1].is_in, "a leader judges no OSD by the clock of another one alone");
    world.seconds(45, &[2]);
    let osds = world.osds();
    assert!(!osds[1].is_in && osds[1].auto_out, "{:?}", osds[1]);
    assert!(has_event(&world, "osd.out", "osd.2"));
    until_settled(&mut world, &[2]);
    assert_eq!(held(&world), [16, 0, 16, 16]);
    world.set("norebalance", Some("on"));
    world.connect(OsdId(2));
    world.seconds(2, &[]);
    let osds = world.osds();
    assert!(osds[1].is_in && !osds[1].auto_out && has_event(&world, "osd.in", "osd.2"), "{:?}", osds[1]);
    assert!(world.osd(OsdId(2)).replicas.is_empty(), "replicas that were replaced are dropped");
    world.set("norebalance", None);
    until_settled(&mut world, &[]);
    assert!(held(&world).iter().all(|count| (10..=14).contains(count)), "{:?}", held(&world));
}

#[test]
fn noout_and_a_command_keep_an_osd_as_it_is() {
    let mut world = cluster(4);
    world.set("osd_out_after", Some("10s"));
    world.set("noout", Some("on"));
    world.seconds(60, &[2]);
    assert!(world.osds()[1].is_in);
    let status = world.control.status(world.now);
    assert!(status.checks.iter().any(|c| c.code == "FLAGS_SET" && c.summary == "noout set"), "{:?}", status.checks);
    set(&mut world, &[2], false);
    world.set("noout", None);
    world.seconds(20, &[2]);
    until_settled(&mut world, &[2]);
    world.connect(OsdId(2));
    world.seconds(5, &[]);
    assert!(!world.osds()[1].is_in, "it was out by command");
}

#[test]
fn no_osd_goes_out_by_itself_while_more_than_a_quarter_is_down() {
    let mut world = cluster(8);
    let out = |world: &mut World| world.osds().iter().filter(|o| o.auto_out).map(|o| o.osd.0).collect::<Vec<u32>>();
    world.seconds(900, &[2, 3, 4]);
    assert_eq!(out(&mut world), [0; 0], "a network is gone, and not three disks");
    // One returns; the two others get their full time.
    world.connect(OsdId(4));
    world.seconds(590, &[2, 3]);
    assert_eq!(out(&mut world), [0; 0]);
    world.seconds(20, &[2, 3]);
    assert_eq!(out(&mut world), [2, 3]);
    // OSDs that are out and empty do not count as lost again.
    until_settled(&mut world, &[2, 3]);
    world.seconds(650, &[2, 3, 5]);
    assert_eq!(out(&mut world), [2, 3, 5]);
}

#[test]
fn an_osd_that_is_put_in_while_it_is_down_has_its_full_time_again() {
    let mut world = cluster(4);
    world.set("osd_out_after", Some("2m"));
    world.seconds(140, &[2]);
    assert!(world.osds()[1].auto_out);
    set(&mut world, &[2], true);
    world.seconds(60, &[2]);
    assert!(world.osds()[1].is_in);
    world.crash();
    [1, 3, 4].into_iter().for_each(|n| world.connect(OsdId(n)));
    world.seconds(30, &[2]);
    assert!(world.osds()[1].is_in, "under the next leader, too");
    world.set("noout", Some("on"));
    world.seconds(200, &[2]);
    world.set("noout", None);
    world.seconds(60, &[2]);
    assert!(world.osds()[1].is_in, "the end of noout is no reason to put it out at once");
    world.seconds(70, &[2]);
    assert!(!world.osds()[1].is_in);
}

#[test]
fn one_command_for_many_osds_fits_one_transaction() {
    let mut world = World::new(1, 40);
    let most: Vec<u32> = (1..=32).collect();
    set(&mut world, &most, false);
    set(&mut world, &most, true);
    let many = OsdSet { osds: (1..=33).map(OsdId).collect(), is_in: Some(false), ..OsdSet::default() };
    assert_eq!(world.admin(AdminAsk::OsdSet(many)).expect_err("too many").code, codes::BAD_REQUEST);
    let told = world.events.iter().filter(|e| e.kind == "osd.set").count();
    assert_eq!(told, 2, "one event for each command");
}

#[test]
fn a_second_out_during_a_remap_survives_metas_that_die_at_any_commit() {
    for seed in 1..12 {
        let mut world = cluster(6);
        world.rng = types::rng::Rng::new(seed);
        set(&mut world, &[2], false);
        world.death = Death::OneIn(6);
        world.seconds(3, &[]);
        world.death = Death::Never;
        world.connect_all();
        world.seconds(2, &[]);
        set(&mut world, &[5], false);
        world.death = Death::OneIn(6);
        world.seconds(20, &[]);
        world.death = Death::Never;
        world.connect_all();
        world.seconds(2, &[]);
        until_settled(&mut world, &[]);
        let held = held(&world);
        assert_eq!((held[1], held[4], held.iter().sum::<usize>()), (0, 0, 48), "seed {seed}: {held:?}");
    }
}

#[test]
fn moves_that_are_not_needed_any_more_are_given_up() {
    let mut world = cluster(5);
    world.set("norebalance", Some("on"));
    let before = held(&world);
    world.changes_stand_still = true;
    set(&mut world, &[2], false);
    world.seconds(5, &[]);
    assert!(moves_of(&world).running > 0);
    set(&mut world, &[2], true);
    world.changes_stand_still = false;
    until_settled(&mut world, &[]);
    assert_eq!(held(&world), before);
}

#[test]
fn a_move_to_an_osd_that_dies_or_goes_out_begins_again_elsewhere() {
    for goes_out in [false, true] {
        let mut world = cluster(5);
        world.changes_stand_still = true;
        set(&mut world, &[2], false);
        world.seconds(3, &[]);
        let change = world.control.records().pgs.values().find_map(|pg| Some((pg.pg, pg.change.clone()?)));
        let (pg, change) = change.expect("one has begun");
        assert_eq!(change.reason, ChangeReason::Leaving);
        let to = change.to.0;
        let silent: &[u32] = if goes_out { &[] } else { &[to] };
        if goes_out {
            set(&mut world, &[to], false);
        }
        world.changes_stand_still = false;
        // A leader adds no learner that is down.
        if !goes_out {
            world.changes_stand_still = true;
            world.seconds(80, silent);
            world.changes_stand_still = false;
        }
        until_settled(&mut world, silent);
        let now: Vec<u32> = world.control.records().pgs[&pg].members.iter().map(|m| m.osd.0).collect();
        assert!(!now.contains(&to) && !now.contains(&2), "{now:?}");
    }
}

#[test]
fn a_replaced_osd_is_taken_over_by_its_successor_and_removed() {
    let mut world = cluster(4);
    let before = held(&world);
    world.seconds(20, &[3]);
    let new = world.replace(OsdId(3));
    world.seconds(10, &[3, 5]);
    let osds = world.osds();
    assert!(!osds[2].is_in && osds[4].replaces == Some(OsdId(3)) && held(&world)[2] == before[2], "it waits: {osds:?}");
    let again = AdminAsk::OsdRegister(OsdRegister {
        osd: None,
        uuid: OsdUuid([9; 16]),
        host: "h".into(),
        rack: "r".into(),
        zone: "z".into(),
        capacity_bytes: 1,
        device_class: None,
        replaces: Some(OsdId(3)),
    });
    assert_eq!(world.admin(again).expect_err("one is enough").code, codes::BAD_REPLACEMENT);
    world.connect(new);
    until_settled(&mut world, &[3]);
    world.seconds(5, &[3]);
    assert_eq!(held(&world)[4], before[2], "all of its replicas, and no other");
    assert!(has_event(&world, "osd.removed", "osd.3"));
    let osds = world.osds();
    assert!(osds.iter().all(|o| o.osd != OsdId(3) && o.replaces.is_none()), "{osds:?}");
}

#[test]
fn a_successor_that_does_not_come_is_not_waited_for_any_longer() {
    let mut world = cluster(5);
    world.seconds(20, &[3]);
    world.replace(OsdId(3));
    world.seconds(500, &[3, 6]);
    assert_ne!(held(&world)[2], 0);
    world.seconds(110, &[3, 6]);
    until_settled(&mut world, &[3, 6]);
    assert_eq!(held(&world)[2], 0);
}

#[test]
fn a_replica_that_no_osd_can_take_is_named_until_one_can() {
    let mut world = cluster(4);
    set(&mut world, &[2], false);
    until_settled(&mut world, &[]);
    set(&mut world, &[3], false);
    world.seconds(5, &[]);
    let status = world.control.status(world.now);
    assert_eq!((status.moves.unplaced, status.moves.waiting, status.health.as_str()), (16, 0, "degraded"));
    let check = status.checks.iter().find(|c| c.code == "PG_UNPLACED").expect("it is found");
    assert!(check.count == 16 && check.summary == "16 replicas have no place to go to", "{check:?}");
    set(&mut world, &[2], true);
    until_settled(&mut world, &[]);
    assert_eq!(held(&world), [16, 16, 0, 16]);
}

#[test]
fn a_nearly_full_osd_takes_no_replicas() {
    let mut world = cluster(5);
    let before = held(&world);
    for second in 0..120 {
        world.pass(Duration::from_secs(1));
        for n in 1..=5 {
            let used = if n == 4 { 86 } else { 10 };
            world.heartbeat(OsdId(n), |beat| (beat.used_bytes, beat.free_bytes) = (used << 30, (100 - used) << 30));
        }
        if second == 1 {
            set(&mut world, &[2], false);
        }
        world.elect(&[]);
    }
    let now = held(&world);
    assert!(now[3] <= before[3] && now[1] == 0, "{before:?} {now:?}");
    assert!(
        world
            .control
            .records()
            .pgs
            .values()
            .all(|pg| pg.change.is_none() || pg.change.as_ref().is_some_and(|c| c.to != OsdId(4)))
    );
}

#[test]
fn a_command_to_move_to_an_osd_that_goes_out_is_given_up() {
    let mut world = cluster(4);
    world.set("norebalance", Some("on"));
    let (pg, to) = world
        .control
        .records()
        .pgs
        .values()
        .find_map(|pg| {
            let free = (1..=4).find(|n| pg.members.iter().all(|m| m.osd.0 != *n))?;
            Some((pg.pg, free))
        })
        .expect("one of four is free");
    world.changes_stand_still = true;
    let from = world.control.records().pgs[&pg].members[1].osd;
    world.admin(AdminAsk::PgMove(PgMove { pg, from, to: OsdId(to), dry_run: false })).expect("queued");
    world.seconds(2, &[]);
    set(&mut world, &[to], false);
    world.changes_stand_still = false;
    until_settled(&mut world, &[]);
    assert!(world.control.records().pgs[&pg].members.iter().any(|m| m.osd == from));
    assert!(world.events.iter().any(|e| e.kind == "pg.not_moved"));
}

#[test]
fn an_osd_that_is_in_again_is_not_replaced_any_more() {
    let mut world = cluster(4);
    let new = world.replace(OsdId(3));
    let register = |n: u32, replaces| {
        let (host, rack, zone) = (format!("h{n}"), "r".into(), "z".into());
        let uuid = OsdUuid([n as u8; 16]);
        AdminAsk::OsdRegister(OsdRegister {
            osd: None,
            uuid,
            host,
            rack,
            zone,
            capacity_bytes: 1 << 40,
            device_class: None,
            replaces,
        })
    };
    let of = |world: &mut World| world.osds()[4].replaces;
    // A repeated format of the same device is the same OSD; one that never ran may take another one over.
    world.admin(register(5, Some(OsdId(3)))).expect("the same again");
    assert_eq!(of(&mut world), Some(OsdId(3)));
    world.admin(register(5, Some(OsdId(2)))).expect("it never ran");
    assert_eq!((of(&mut world), world.osds()[1].is_in), (Some(OsdId(2)), false));
    let itself = world.admin(register(5, Some(OsdId(5)))).expect_err("itself");
    assert_eq!(itself.code, codes::BAD_REPLACEMENT);
    set(&mut world, &[2, 3], true);
    assert_eq!(of(&mut world), None);
    world.connect(new);
    assert_eq!(world.admin(register(5, Some(OsdId(2)))).expect_err("it has run").code, codes::BAD_REPLACEMENT);
    until_settled(&mut world, &[]);
    assert!(held(&world).iter().all(|count| *count > 0) && world.osds().len() == 5, "{:?}", held(&world));
}

#[test]
fn moves_of_pgs_without_a_leader_hold_no_place_and_are_told_apart() {
    let mut world = cluster(6);
    world.elects = false;
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.changes_stand_still = true;
    set(&mut world, &[2], false);
    world.seconds(3, &[]);
    // Every PG with a change that has begun loses its leader.
    let begun: Vec<PgId> = pgs.iter().copied().filter(|pg| world.control.records().pgs[pg].change.is_some()).collect();
    let far = u64::from(u32::MAX);
    world.leaders.extend(begun.iter().map(|pg| (*pg, (OsdId(99), far))));
    world.seconds(2, &[]);
    world.changes_stand_still = false;
    for _ in 0..60 {
        world.seconds(1, &[]);
    }
    let left = world.control.records().pgs.values().filter(|pg| pg.members.iter().any(|m| m.osd == OsdId(2))).count();
    let moves = moves_of(&world);
    assert_eq!((left, moves.blocked as usize, moves.waiting), (begun.len(), begun.len(), 0), "{moves:?}");
    assert!(!begun.is_empty());
}

#[test]
fn a_target_that_gets_full_or_is_cut_off_is_avoided_for_a_while() {
    for is_full in [true, false] {
        let mut world = cluster(5);
        world.changes_stand_still = true;
        set(&mut world, &[2], false);
        world.seconds(3, &[]);
        let change = world.control.records().pgs.values().find_map(|pg| pg.change.clone()).expect("one has begun");
        let to = change.to;
        for _ in 0..70 {
            world.pass(Duration::from_secs(1));
            for n in 1..=5 {
                world.heartbeat(OsdId(n), |beat| match is_full {
                    true => beat.full = OsdId(n) == to,
                    false if OsdId(n) != to => beat.unreachable = vec![to],
                    false => {}
                });
            }
        }
        world.changes_stand_still = false;
        world.seconds(5, &[]);
        let coming = |world: &World| {
            world
                .control
                .records()
                .pgs
                .values()
                .filter_map(|pg| pg.change.as_ref())
                .filter(|c| c.to == to && !c.cancel)
                .count()
        };
        assert_eq!(coming(&world), 0, "full: {is_full}");
        let before = world.control.records().pgs.values().filter(|pg| pg.members.iter().any(|m| m.osd == to)).count();
        until_settled(&mut world, &[]);
        let after = world.control.records().pgs.values().filter(|pg| pg.members.iter().any(|m| m.osd == to)).count();
        assert!(held(&world)[1] == 0 && after <= before, "full: {is_full}: {before} {after}");
    }
}

#[test]
fn a_successor_is_open_to_others_when_it_has_taken_over_all() {
    let mut world = cluster(4);
    let new = world.replace(OsdId(4));
    world.connect(new);
    until_settled(&mut world, &[]);
    assert!(world.osds().iter().any(|o| o.osd == OsdId(4)), "the old one still runs");
    set(&mut world, &[3], false);
    until_settled(&mut world, &[]);
    assert_eq!((held(&world)[2], moves_of(&world).unplaced), (0, 0), "{:?}", held(&world));
    // In the same command the successor changes, too.
    world.seconds(20, &[5]);
    set(&mut world, &[4, 5], true);
    assert!(world.osds().iter().all(|o| o.replaces.is_none()));
}
