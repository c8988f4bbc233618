//! Moves of replicas: their durable record, their queue, and what only a leader's report may do.

use super::*;
use crate::admin::PgMove;
use types::map::{Member, Membership};
use world::Death;

fn pg_move(pg: PgId, from: u32, to: u32) -> AdminAsk {
    AdminAsk::PgMove(PgMove { pg, from: OsdId(from), to: OsdId(to), dry_run: false })
}

/// Makes a pool over the first three of `osds` OSDs, and returns one of its PGs that the first one prefers.
fn with_pgs(osds: u32) -> (World, PgId) {
    let mut world = World::new(1, osds);
    world.set("norebalance", Some("on"));
    for n in 4..=osds {
        world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(n), Some(false), None))).expect("out");
    }
    world.make_pool("p", 3, 4);
    for n in 4..=osds {
        world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(n), Some(true), None))).expect("in");
    }
    beat_all(&mut world);
    let pgs = &world.control.records().pgs;
    let pg = pgs.values().find(|pg| pg.members[0].osd == OsdId(1)).expect("each OSD leads some").pg;
    (world, pg)
}

fn beat_all(world: &mut World) {
    (1..=world.osds.len() as u32).for_each(|n| world.beat(OsdId(n)));
}

fn seconds(world: &mut World, count: u32) {
    world.seconds(count, &[]);
}

fn members(world: &World, pg: PgId) -> Vec<u32> {
    world.control.records().pgs[&pg].members.iter().map(|m| m.osd.0).collect()
}

/// Returns the OSDs that hold a replica of the PG, with the replicas.
fn holders(world: &World, pg: PgId) -> Vec<(u32, ReplicaId)> {
    let of = |osd: &world::Osd| osd.replicas.iter().filter(|(p, _)| *p == pg).map(|(_, r)| (osd.id.0, *r)).collect();
    world.osds.iter().flat_map(|osd| -> Vec<(u32, ReplicaId)> { of(osd) }).collect()
}

#[test]
fn old_replica_is_dropped_only_when_the_leader_reports_the_end() {
    let (mut world, pg) = with_pgs(4);
    let old = world.control.records().pgs[&pg].clone();
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    world.changes_stand_still = true;
    seconds(&mut world, 5);
    let record = world.control.records().pgs[&pg].clone();
    let change = record.change.expect("it stands");
    assert_eq!((change.id, change.expected, change.add.osd), (1, Epoch(1), OsdId(4)));
    assert_eq!(record.members, old.members, "only a report changes the members");
    assert!(world.changes.len() >= 2, "the order is repeated");
    assert!(world.changes.iter().all(|c| (c.add, c.cancel) == (Some(change.add), false)), "{:?}", world.changes);
    assert_eq!(holders(&world, pg).len(), 4, "the new replica exists, and the old one stays");
    assert_eq!(world.osd(OsdId(4)).peers, [1, 2, 3].map(OsdId).into(), "it is connected with the members");
    assert!(world.osd(OsdId(1)).peers.contains(&OsdId(4)));
    world.osd(OsdId(4)).peers.clear();
    world.restart(OsdId(4));
    world.settle();
    assert_eq!(world.osd(OsdId(4)).peers, [1, 2, 3].map(OsdId).into(), "and so is its next process");
    world.changes_stand_still = false;
    seconds(&mut world, 8);
    let place = old.members.iter().position(|m| m.osd == OsdId(2)).expect("it was a member");
    let mut want = old.members.clone();
    want[place] = change.add;
    let record = &world.control.records().pgs[&pg];
    assert_eq!(
        (&record.members, record.conf_epoch),
        (&want, Epoch(5)),
        "the new replica takes the place of the old one"
    );
    assert!(record.change.is_none() && record.created == old.members);
    let mut held: Vec<Member> =
        holders(&world, pg).iter().map(|(osd, r)| Member { replica: *r, osd: OsdId(*osd) }).collect();
    held.sort_unstable();
    want.sort_unstable();
    assert_eq!(held, want);
    assert!(world.events.iter().any(|e| e.kind == "pg.moved" && e.text.contains("osd.2 was replaced by osd.4")));
}

#[test]
fn moves_of_one_pg_wait_for_each_other() {
    let (mut world, pg) = with_pgs(5);
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    world.admin(pg_move(pg, 3, 5)).expect("queued");
    world.admin(pg_move(pg, 3, 5)).expect("asked for twice, queued once");
    world.admin(pg_move(pg, 4, 2)).expect("back to where the first move began");
    assert_eq!(world.control.records().pgs[&pg].queue.len(), 2);
    seconds(&mut world, 30);
    let mut now = members(&world, pg);
    now.sort_unstable();
    assert_eq!(now, [1, 2, 5]);
    let record = &world.control.records().pgs[&pg];
    assert_eq!((record.changes, record.conf_epoch, record.queue.len()), (3, Epoch(13), 0));
    assert_eq!(holders(&world, pg).len(), 3);
}

#[test]
fn move_that_cannot_be_is_refused_with_the_reason() {
    let (mut world, pg) = with_pgs(5);
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(5), Some(false), None))).expect("out");
    let none = PgId { pool: pg.pool, n: 99 };
    let cases = [
        (pg_move(none, 1, 4), codes::PG_UNKNOWN, "there is no PG"),
        (pg_move(pg, 1, 9), codes::OSD_UNKNOWN, "osd.9 is not registered"),
        (pg_move(pg, 4, 4), codes::BAD_MOVE, "osd.4 holds no replica of PG"),
        (pg_move(pg, 1, 2), codes::BAD_MOVE, "osd.2 holds a replica of PG"),
        (pg_move(pg, 1, 5), codes::BAD_MOVE, "osd.5 is out"),
        (AdminAsk::PgMoveCancel { pg: none }, codes::PG_UNKNOWN, "there is no PG"),
    ];
    for (ask, code, text) in cases {
        let refused = world.admin(ask.clone()).expect_err("it cannot be");
        assert!(refused.code == code && refused.message.starts_with(text), "{ask:?}: {refused:?}");
    }
    world.heartbeat(OsdId(4), |beat| beat.full = true);
    let full = world.admin(pg_move(pg, 1, 4)).expect_err("it is full");
    assert!(full.message.starts_with("osd.4 does not serve, or is full"), "{full:?}");
    world.beat(OsdId(4));
    world.changes_stand_still = true;
    let plan = AdminAsk::PgMove(PgMove { pg, from: OsdId(1), to: OsdId(4), dry_run: true });
    let planned = world.admin(plan.clone()).expect("a plan");
    assert!(matches!(&planned, AdminAnswer::Moves(moves) if moves[0].to == Some(OsdId(4))), "{planned:?}");
    assert!(world.control.records().pgs[&pg].queue.is_empty(), "nothing was changed");
    world.admin(pg_move(pg, 1, 4)).expect("queued");
    assert_eq!(world.admin(plan).expect("a plan"), AdminAnswer::Moves(Vec::new()), "it is queued already");
    let refused = world.admin(pg_move(pg, 2, 4)).expect_err("it gets one");
    assert!(refused.message.contains("or gets one"), "{refused:?}");
    world.pass(Duration::from_secs(60));
    let down = world.admin(pg_move(pg, 2, 4)).expect_err("silent");
    assert_eq!(down.code, codes::BAD_MOVE);
}

#[test]
fn cancelled_move_leaves_the_members_and_drops_the_new_replica() {
    let (mut world, pg) = with_pgs(4);
    let old = members(&world, pg);
    world.changes_stand_still = true;
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    seconds(&mut world, 3);
    assert_eq!(holders(&world, pg).len(), 4);
    world.admin(AdminAsk::PgMoveCancel { pg }).expect("cancelled");
    world.changes_stand_still = false;
    seconds(&mut world, 5);
    assert_eq!((members(&world, pg), holders(&world, pg).len()), (old, 3));
    assert!(world.events.iter().any(|e| e.kind == "pg.not_moved"));
    world.admin(pg_move(pg, 2, 4)).expect("queued again, under a new epoch");
    seconds(&mut world, 10);
    assert!(members(&world, pg).contains(&4), "{:?}", members(&world, pg));
}

#[test]
fn moves_survive_metas_that_die_at_any_commit() {
    let mut deaths = 0;
    for seed in 1..40 {
        let (mut world, pg) = with_pgs(5);
        world.rng = types::rng::Rng::new(seed);
        world.admin(pg_move(pg, 2, 4)).expect("queued");
        world.admin(pg_move(pg, 3, 5)).expect("queued");
        world.death = Death::OneIn(3);
        seconds(&mut world, 12);
        world.death = Death::Never;
        (1..=5).for_each(|n| world.connect(OsdId(n)));
        seconds(&mut world, 40);
        deaths += world.deaths;
        let mut now = members(&world, pg);
        now.sort_unstable();
        assert_eq!(now, [1, 4, 5], "seed {seed}, {} deaths", world.deaths);
        assert_eq!(holders(&world, pg).len(), 3, "seed {seed}");
        assert_eq!(world.control.records().pgs[&pg].changes, 2, "seed {seed}: no move was begun twice");
    }
    assert!(deaths > 30, "{deaths} metas died");
}

#[test]
fn queued_move_to_an_osd_that_was_removed_is_given_up() {
    let (mut world, pg) = with_pgs(5);
    world.changes_stand_still = true;
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    world.admin(pg_move(pg, 3, 5)).expect("queued");
    for _ in 0..60 {
        world.pass(Duration::from_secs(1));
        (1..=4).for_each(|n| world.beat(OsdId(n)));
    }
    world.admin(AdminAsk::OsdRemove { osd: OsdId(5) }).expect("it is down and holds nothing");
    world.changes_stand_still = false;
    for _ in 0..30 {
        world.pass(Duration::from_secs(1));
        (1..=4).for_each(|n| world.beat(OsdId(n)));
    }
    let mut now = members(&world, pg);
    now.sort_unstable();
    assert_eq!((now, world.control.records().pgs[&pg].queue.len()), (vec![1, 3, 4], 0));
    assert!(world.events.iter().any(|e| e.kind == "pg.not_moved" && e.text.contains("from osd.3 to osd.5")));
}

#[test]
fn members_of_many_pgs_that_the_records_do_not_know_are_taken_over() {
    // The records were restored, and are older than many moves. The new replicas lead, and all report at once.
    let mut world = World::new(1, 4);
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(4), Some(false), None))).expect("out");
    world.make_pool("p", 3, 256);
    beat_all(&mut world);
    let old: Vec<crate::records::PgRecord> = world.control.records().pgs.values().cloned().collect();
    for (n, record) in old.iter().enumerate() {
        let newcomer = Member { replica: ReplicaId(10_000 + n as u64), osd: OsdId(4) };
        let mut members = Membership::fresh(Epoch(5), &[&record.members[1..], &[newcomer]].concat());
        members.base = Epoch(1);
        world.members.insert(record.pg, members);
        world.leaders.insert(record.pg, (OsdId(4), 9));
        world.osd(OsdId(4)).replicas.insert((record.pg, newcomer.replica));
    }
    world.beat(OsdId(4));
    seconds(&mut world, 3);
    for record in &old {
        let now = &world.control.records().pgs[&record.pg];
        assert_eq!((now.conf_epoch, &now.created), (Epoch(5), &record.members), "{now:?}");
        assert_eq!(now.members[0].osd, OsdId(4), "it takes the place of the one that left");
    }
    let held = world.osd(OsdId(4)).replicas.len();
    assert_eq!(held, 256, "nothing of it was dropped");
}

fn replica_on(world: &World, pg: PgId, osd: u32) -> ReplicaId {
    let members = &world.control.records().pgs[&pg].members;
    members.iter().find(|m| m.osd == OsdId(osd)).expect("it is a member").replica
}

#[test]
fn failed_replica_is_replaced_on_its_own_osd() {
    for seed in 1..12 {
        let (mut world, pg) = with_pgs(4);
        world.rng = types::rng::Rng::new(seed);
        let (old, failed) = (members(&world, pg), replica_on(&world, pg, 2));
        world.failed.insert(failed);
        world.death = if seed == 1 { Death::Never } else { Death::OneIn(3) };
        seconds(&mut world, 12);
        world.death = Death::Never;
        (1..=4).for_each(|n| world.connect(OsdId(n)));
        seconds(&mut world, 30);
        let record = &world.control.records().pgs[&pg];
        assert_eq!((members(&world, pg), record.changes, record.queue.len()), (old, 1, 0), "seed {seed}");
        let new = replica_on(&world, pg, 2);
        assert!(new > failed, "under a new id");
        let held = holders(&world, pg);
        assert!(held.len() == 3 && held.contains(&(2, new)), "the failed one is dropped: {held:?}");
        let said = |kind: &str, text: &str| world.events.iter().any(|e| e.kind == kind && e.text.contains(text));
        if seed == 1 {
            assert!(
                said("pg.replica_failed", "on osd.2 has failed") && said("pg.moved", "replaced by a new one there")
            );
        }
    }
}

#[test]
fn failed_replica_waits_while_its_pg_cannot_change() {
    let (mut world, pg) = with_pgs(4);
    let failed = replica_on(&world, pg, 2);
    world.leaders.insert(pg, (OsdId(9), 5));
    seconds(&mut world, 2);
    world.failed.insert(failed);
    seconds(&mut world, 20);
    assert_eq!(world.control.records().pgs[&pg].changes, 0, "the PG has no leader");
    world.leaders.remove(&pg);
    world.heartbeat(OsdId(2), |beat| beat.full = true);
    for _ in 0..20 {
        world.pass(Duration::from_secs(1));
        [1, 3, 4].into_iter().for_each(|n| world.beat(OsdId(n)));
        world.heartbeat(OsdId(2), |beat| beat.full = true);
    }
    assert_eq!(world.control.records().pgs[&pg].changes, 0, "the OSD has no space for a copy");
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    seconds(&mut world, 20);
    assert!(members(&world, pg).contains(&4), "a move replaces it, too");
    assert_eq!(world.control.records().pgs[&pg].changes, 1);
}

#[test]
fn newcomer_that_fails_is_given_up_and_replaced() {
    let (mut world, pg) = with_pgs(4);
    world.changes_stand_still = true;
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    seconds(&mut world, 3);
    let newcomer = world.control.records().pgs[&pg].change.clone().expect("it stands").add.replica;
    world.failed.insert(newcomer);
    world.changes_stand_still = false;
    seconds(&mut world, 40);
    let record = &world.control.records().pgs[&pg];
    assert!(members(&world, pg).contains(&4) && replica_on(&world, pg, 4) > newcomer, "{record:?}");
    assert_eq!((record.changes, record.queue.len(), holders(&world, pg).len()), (2, 0, 3));
}

/// Fails the replica of a PG on osd.2. Its replacement has begun, and stands still.
fn standing_replacement() -> (World, PgId, ReplicaId) {
    let (mut world, pg) = with_pgs(4);
    let failed = replica_on(&world, pg, 2);
    world.changes_stand_still = true;
    world.failed.insert(failed);
    seconds(&mut world, 5);
    assert!(world.control.records().pgs[&pg].change.is_some());
    (world, pg, failed)
}

#[test]
fn replacement_on_an_osd_that_dies_is_given_up_until_it_is_back() {
    let (mut world, pg, failed) = standing_replacement();
    world.changes_stand_still = false;
    let without = |world: &mut World, count: u32| {
        for _ in 0..count {
            world.pass(Duration::from_secs(1));
            [1, 3, 4].into_iter().for_each(|n| world.beat(OsdId(n)));
        }
    };
    world.changes_stand_still = true;
    world.osd(OsdId(2)).deaf = true;
    without(&mut world, 20);
    world.changes_stand_still = false;
    without(&mut world, 10);
    let record = &world.control.records().pgs[&pg];
    assert!(record.change.is_none() && replica_on(&world, pg, 2) == failed, "{record:?}");
    world.admin(pg_move(pg, 3, 4)).expect("queued");
    without(&mut world, 20);
    assert!(members(&world, pg).contains(&4), "other changes go on");
    world.osd(OsdId(2)).deaf = false;
    world.restart(OsdId(2));
    seconds(&mut world, 30);
    assert!(replica_on(&world, pg, 2) > failed, "it is back");
    assert_eq!(holders(&world, pg).len(), 3);
}

/// An order that its OSD cannot hear would be given up, and would double the pause (seed 2302564).
#[test]
fn replacement_begins_only_on_an_osd_that_is_connected() {
    let (mut world, pg) = with_pgs(4);
    let failed = replica_on(&world, pg, 2);
    world.leaders.insert(pg, (OsdId(9), 5));
    world.failed.insert(failed);
    seconds(&mut world, 2);
    world.leaders.remove(&pg);
    let stream = world.osd(OsdId(2)).stream;
    world.control.handle_osd_gone(stream);
    world.seconds(3, &[2]);
    assert!(world.control.records().pgs[&pg].change.is_none(), "osd.2 was heard 3 s ago, and has no connection");
    world.connect(OsdId(2));
    seconds(&mut world, 9);
    assert!(replica_on(&world, pg, 2) > failed, "it is connected again");
}

#[test]
fn move_of_a_failed_replica_takes_the_place_of_its_replacement() {
    let (mut world, pg, _) = standing_replacement();
    world.admin(pg_move(pg, 2, 4)).expect("queued");
    world.changes_stand_still = false;
    seconds(&mut world, 20);
    let record = &world.control.records().pgs[&pg];
    assert!(members(&world, pg).contains(&4) && !members(&world, pg).contains(&2), "{record:?}");
    assert_eq!((record.changes, holders(&world, pg).len()), (2, 3));
}

#[test]
fn replacement_of_a_replica_that_runs_again_is_given_up() {
    let (mut world, pg, failed) = standing_replacement();
    let old = members(&world, pg);
    // Its process died before the device had recorded the failure.
    world.failed.clear();
    world.changes_stand_still = false;
    seconds(&mut world, 10);
    let record = &world.control.records().pgs[&pg];
    assert_eq!((members(&world, pg), record.change.is_none(), replica_on(&world, pg, 2)), (old, true, failed));
}

#[test]
fn replica_that_fails_again_and_again_is_replaced_ever_more_rarely() {
    let (mut world, pg) = with_pgs(4);
    let replacements = |world: &mut World, count: u32| {
        let before = world.control.records().pgs[&pg].changes;
        for _ in 0..count {
            let replica = replica_on(world, pg, 2);
            world.failed.insert(replica);
            seconds(world, 1);
        }
        world.control.records().pgs[&pg].changes - before
    };
    let (first, later) = (replacements(&mut world, 150), replacements(&mut world, 600));
    assert!((3..=5).contains(&first) && later <= 3, "{first} in 150 s, and {later} in 600 s");
    seconds(&mut world, 1500);
    let again = replacements(&mut world, 15);
    assert!(again >= 1, "a failure long after the last one is replaced at once");
}
