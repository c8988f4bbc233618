//! PGs of two of which one replica fails: they go on from the other one by themselves (ADR 0020).

use super::force::{event, force, members, with_pg};
use super::*;
use crate::admin::{PgForce, PgMove};
use types::control::OsdDown;
use types::map::{Member, MembersStep};
use types::{Index, Term};
use world::{Death, session_of};

/// A PG of two over `osds` OSDs without a leader: the one that is to be kept, and the other one.
fn pair(osds: u32) -> (World, PgId, Member, Member) {
    let (mut world, pg) = with_pg(osds, 2);
    let (kept, other) = (members(&world, pg)[0], members(&world, pg)[1]);
    world.leaders.insert(pg, (OsdId(99), 5));
    world.seconds(20, &[]);
    assert!(world.forces.is_empty(), "both are whole");
    (world, pg, kept, other)
}

/// Ends the stream of an OSD.
fn go(world: &mut World, osd: OsdId) {
    world.osd(osd).deaf = true;
    let stream = world.osd(osd).stream;
    world.control.handle_osd_gone(stream);
}

#[test]
fn pair_with_a_failed_replica_goes_on_from_the_other_and_gets_a_new_one() {
    for seed in 1..12 {
        let (mut world, pg, kept, other) = pair(3);
        world.rng = types::rng::Rng::new(seed);
        world.death = if seed == 1 { Death::Never } else { Death::OneIn(3) };
        let held: Vec<_> = world.control.records().volumes.values().map(|v| (v.id, session_of(v))).collect();
        world.failed.insert(other.replica);
        world.seconds(20, &[]);
        world.death = Death::Never;
        world.connect_all();
        world.seconds(60, &[]);
        assert!(
            world.forces.iter().all(|f| f.keep == kept && !f.fence && f.floor > other.replica),
            "{:?}",
            world.forces
        );
        let record = &world.control.records().pgs[&pg];
        assert!(record.members.contains(&kept) && record.members.len() == 2, "seed {seed}: {record:?}");
        let new = record.members.iter().find(|m| **m != kept).expect("a second one");
        assert!(new.osd == other.osd && new.replica > other.replica, "seed {seed}: under a new id");
        assert!(record.vacant.is_empty() && record.change.is_none() && record.forced.is_none(), "{record:?}");
        assert!(world.osd(other.osd).kept.contains(&pg), "seed {seed}: the new one is compared with the old contents");
        let now: Vec<_> = world.control.records().volumes.values().map(|v| (v.id, session_of(v))).collect();
        assert_eq!(now, held, "seed {seed}: sessions go on");
        let told = |e: &&Event| e.kind == "pg.force_recover" && e.text.contains("no acknowledged write is lost");
        assert!(seed > 1 || world.events.iter().filter(told).count() == 1 && event(&world, "pg.forced") == 1);
    }
}

#[test]
fn pair_whose_leader_is_not_called_down_yet_begins_no_replacement() {
    let (mut world, pg) = with_pg(3, 2);
    let follower = members(&world, pg)[1];
    world.failed.insert(follower.replica);
    world.seconds(10, &[]);
    let record = &world.control.records().pgs[&pg];
    assert!(record.change.is_none() && record.queue.is_empty() && world.changes.is_empty(), "{record:?}");
    assert!(world.forces.is_empty(), "its leader reports that it serves");
}

#[test]
fn pair_goes_on_alone_only_when_that_loses_nothing_and_is_needed() {
    type Spoil = fn(&mut World, PgId, Member, Member);
    let cases: [(&str, Spoil); 7] = [
        ("the other one is away, and has not failed", |world, _, _, other| {
            world.failed.clear();
            world.restart(other.osd);
            go(world, other.osd);
        }),
        ("the other one has reported, and is away", |world, _, _, other| go(world, other.osd)),
        ("the other one has failed in an earlier life", |world, pg, _, other| {
            world.osd(other.osd).replicas.remove(&(pg, other.replica));
            world.osd(other.osd).deaf = true;
            world.restart(other.osd);
        }),
        ("this one is under repair", |world, _, kept, _| {
            world.repairing.insert(kept.replica);
        }),
        ("this one has failed, too", |world, _, kept, _| {
            world.failed.insert(kept.replica);
            world.ends.insert(kept.replica, (Term(4), Index(9)));
        }),
        ("the PG is led", |world, pg, kept, _| {
            world.leaders.insert(pg, (kept.osd, 8));
        }),
        ("the leader of meta is new", |world, _, _, _| {
            world.crash();
            world.connect_all();
        }),
    ];
    for (name, spoil) in cases {
        let (mut world, pg, kept, other) = pair(3);
        world.leaders.insert(pg, (kept.osd, 6));
        world.seconds(2, &[]);
        world.failed.insert(other.replica);
        world.beat(other.osd);
        world.leaders.insert(pg, (OsdId(99), 7));
        spoil(&mut world, pg, kept, other);
        let is_new = name.contains("meta");
        for _ in 0..if is_new { 8 } else { 40 } {
            world.pass(Duration::from_secs(1));
            let heard: Vec<OsdId> = world.osds.iter().filter(|osd| !osd.deaf).map(|osd| osd.id).collect();
            heard.into_iter().for_each(|osd| world.beat(osd));
        }
        let record = &world.control.records().pgs[&pg];
        assert!(world.forces.is_empty() && record.forced.is_none(), "{name}: {record:?}");
        assert!(record.members == [kept, other] && record.change.is_none(), "{name}: {record:?}");
    }
}

#[test]
fn pair_that_may_have_gone_on_from_the_other_replica_waits_for_a_command() {
    let (mut world, pg, kept, other) = pair(3);
    world.osd(kept.osd).deaf = true;
    world.seconds(20, &[kept.osd.0]);
    world.changes_stand_still = true;
    let ask = crate::admin::PgForce { pg, osd: None, dry_run: false, accept_loss: false };
    world.admin(AdminAsk::PgForce(ask)).expect("ordered");
    world.seconds(3, &[kept.osd.0]);
    assert!(world.forces.iter().all(|f| f.keep == other) && !world.forces.is_empty());
    world.admin(AdminAsk::PgMoveCancel { pg }).expect("given up");
    let orders = world.forces.len();
    world.changes_stand_still = false;
    world.osd(kept.osd).deaf = false;
    world.restart(kept.osd);
    world.failed.insert(other.replica);
    world.seconds(60, &[]);
    assert_eq!(world.forces.len(), orders, "it may have served alone before it failed");
}

#[test]
fn pair_that_changes_goes_on_alone_when_each_step_needs_the_replica() {
    // (the replica that moves is the one that fails, whether the other one goes on alone)
    for (moves_failed, goes_on) in [(true, true), (false, false)] {
        let (mut world, pg) = with_pg(4, 2);
        let (kept, other) = (members(&world, pg)[0], members(&world, pg)[1]);
        let free = (1..=4).map(OsdId).find(|osd| *osd != kept.osd && *osd != other.osd).expect("a third OSD");
        let from = if moves_failed { other.osd } else { kept.osd };
        world.changes_stand_still = true;
        world.admin(AdminAsk::PgMove(PgMove { pg, from, to: free, dry_run: false })).expect("queued");
        world.seconds(3, &[]);
        let change = world.control.records().pgs[&pg].change.clone().expect("it stands");
        world.failed.insert(other.replica);
        world.leaders.insert(pg, (OsdId(99), 5));
        world.seconds(30, &[]);
        world.changes_stand_still = false;
        world.seconds(60, &[]);
        let record = &world.control.records().pgs[&pg];
        assert_eq!(!world.forces.is_empty(), goes_on, "{record:?}");
        assert!(record.change.is_none() == goes_on, "{record:?}");
        if goes_on {
            assert!(world.forces.iter().all(|f| f.keep == kept && f.floor > change.add.replica));
            assert!(record.members.contains(&kept) && record.members.len() == 2, "{record:?}");
            assert!(!world.osd(free).replicas.contains(&(pg, change.add.replica)), "the newcomer is dropped");
        }
    }
}

#[test]
fn second_replica_that_fails_in_its_joint_phase_is_given_up() {
    let (mut world, pg, kept, other) = pair(3);
    world.failed.insert(other.replica);
    world.changes_stand_still = false;
    while world.control.records().pgs[&pg].change.is_none() {
        world.seconds(1, &[]);
    }
    let new = world.control.records().pgs[&pg].change.clone().expect("its place is filled").add;
    let step = |world: &mut World, step| {
        let members = &world.members[&pg];
        let after = members.after(members.epoch, step).expect("a step that fits");
        world.members.insert(pg, after);
    };
    world.members.entry(pg).and_modify(|members| members.learners.clear());
    step(&mut world, MembersStep::AddLearner(new));
    step(&mut world, MembersStep::Enter { add: Some(new.replica), remove: None });
    // The joint phase needs both.
    world.leaders.insert(pg, (OsdId(99), 7));
    world.failed.insert(new.replica);
    let orders = world.forces.len();
    world.seconds(60, &[]);
    assert!(world.forces.len() > orders && world.forces.iter().all(|f| f.keep == kept), "{:?}", world.forces);
    let now = members(&world, pg);
    assert!(now.contains(&kept) && now.len() == 2 && now.iter().all(|m| m.replica != new.replica), "{now:?}");
}

/// A pair whose order is recorded and not carried out.
fn ordered() -> (World, PgId, Member, Member) {
    let (mut world, pg, kept, other) = pair(3);
    world.changes_stand_still = true;
    world.failed.insert(other.replica);
    world.seconds(10, &[]);
    assert!(!world.forces.is_empty() && world.control.records().pgs[&pg].forced.is_some());
    (world, pg, kept, other)
}

#[test]
fn order_is_withdrawn_when_the_failed_replica_runs_again_and_comes_again() {
    let (mut world, pg, kept, other) = ordered();
    let before = members(&world, pg);
    // Its process died before its device had recorded the failure.
    world.failed.clear();
    world.restart(other.osd);
    let orders = world.forces.len();
    world.seconds(5, &[]);
    assert_eq!(world.forces.len(), orders, "the PG may serve by itself");
    world.leaders.insert(pg, (other.osd, 6));
    world.seconds(3, &[]);
    let record = &world.control.records().pgs[&pg];
    assert!(record.forced.is_none() && record.members == before, "{record:?}");
    assert!(record.voided.iter().all(|void| void.automatic && void.keep == kept), "{record:?}");
    assert_eq!(event(&world, "pg.force_cancelled"), 1);
    world.changes_stand_still = false;
    world.failed.insert(other.replica);
    world.leaders.insert(pg, (OsdId(99), 7));
    world.seconds(60, &[]);
    let now = members(&world, pg);
    assert!(now.contains(&kept) && now.len() == 2 && !now.contains(&other), "{now:?}");
}

#[test]
fn replica_that_may_have_gone_on_alone_is_not_given_up_without_consent() {
    let (mut world, pg, kept, other) = ordered();
    world.failed.clear();
    world.restart(other.osd);
    world.leaders.insert(pg, (other.osd, 6));
    world.seconds(5, &[]);
    assert_eq!(world.control.records().pgs[&pg].voided[0].keep, kept);
    // The order may have come late, and the kept replica may have acknowledged writes alone before it failed.
    let orders = world.forces.len();
    world.failed.insert(kept.replica);
    world.leaders.insert(pg, (OsdId(99), 7));
    world.seconds(60, &[]);
    assert_eq!(world.forces.len(), orders, "writes may be lost: no automatic order");
    let ask = PgForce { pg, osd: None, accept_loss: false, dry_run: true };
    let view = force(&mut world, ask).expect("a view");
    assert_eq!((view.keep, view.lossless), (other.osd, false));
}

#[test]
fn order_that_is_carried_out_late_is_taken_over() {
    let (mut world, pg, kept, other) = ordered();
    let late = *world.forces.last().expect("an order");
    world.failed.clear();
    world.restart(other.osd);
    world.leaders.insert(pg, (other.osd, 6));
    world.seconds(5, &[]);
    assert!(world.control.records().pgs[&pg].forced.is_none());
    // Its own log shows the replica that nothing commits without it.
    world.changes_stand_still = false;
    let stream = world.osd(kept.osd).stream;
    world.arrive(stream, OsdDown::ForceMembers { pg, force: late });
    world.seconds(60, &[]);
    let now = members(&world, pg);
    assert!(now.contains(&kept) && now.len() == 2 && !now.contains(&other), "{now:?}");
    assert!(world.control.records().pgs[&pg].voided.is_empty(), "all members descend from it");
}

#[test]
fn command_takes_the_place_of_an_automatic_order() {
    let (mut world, pg, kept, other) = ordered();
    // The failed replica is away now: by itself the order does not go on.
    world.changes_stand_still = false;
    go(&mut world, other.osd);
    let orders = world.forces.len();
    world.seconds(20, &[other.osd.0]);
    assert_eq!((world.forces.len(), members(&world, pg).len()), (orders, 2));
    let ask = crate::admin::PgForce { pg, osd: None, dry_run: false, accept_loss: false };
    world.admin(AdminAsk::PgForce(ask)).expect("ordered");
    world.seconds(3, &[other.osd.0]);
    assert_eq!(members(&world, pg), [kept]);
}

#[test]
fn order_that_the_replica_does_not_carry_out_gets_a_fence_by_consent() {
    let (mut world, pg, kept, _) = ordered();
    let ask = crate::admin::PgForce { pg, osd: None, dry_run: false, accept_loss: true };
    let orders = world.forces.len();
    world.admin(AdminAsk::PgForce(ask)).expect("ordered");
    world.changes_stand_still = false;
    world.seconds(3, &[]);
    let fenced: Vec<_> = world.forces[orders..].iter().filter(|force| force.fence).collect();
    assert!(fenced.iter().all(|force| force.keep == kept) && !fenced.is_empty(), "{:?}", world.forces);
    assert_eq!(members(&world, pg), [kept]);
}

#[test]
fn replica_of_a_pair_that_fails_again_and_again_comes_back_rarely() {
    let (mut world, pg, kept, other) = pair(3);
    let fails = |world: &mut World, seconds: u32| {
        let before = world.control.records().pgs[&pg].changes;
        for _ in 0..seconds {
            let bad = members(world, pg).into_iter().find(|m| m.osd == other.osd && !world.failed.contains(&m.replica));
            if let Some(bad) = bad {
                world.failed.insert(bad.replica);
                world.leaders.insert(pg, (OsdId(99), 9));
            }
            world.seconds(1, &[]);
        }
        world.control.records().pgs[&pg].changes - before
    };
    let (first, later) = (fails(&mut world, 200), fails(&mut world, 600));
    assert!((2..=6).contains(&first) && later <= 3, "{first} in 200 s, and {later} in 600 s");
    assert!(members(&world, pg).contains(&kept));
}

#[test]
fn move_that_is_asked_for_when_a_pair_is_down_waits_until_it_goes_on() {
    let (mut world, pg, kept, other) = pair(4);
    let free = (1..=4).map(OsdId).find(|osd| *osd != kept.osd && *osd != other.osd).expect("a third OSD");
    world.failed.insert(other.replica);
    world.seconds(1, &[]);
    world.admin(AdminAsk::PgMove(PgMove { pg, from: other.osd, to: free, dry_run: false })).expect("queued");
    let record = &world.control.records().pgs[&pg];
    assert!(record.change.is_none() && record.queue == [(other.osd, free)], "{record:?}");
    world.seconds(60, &[]);
    let record = &world.control.records().pgs[&pg];
    assert!(record.members.contains(&kept) && record.members.iter().any(|m| m.osd == free), "{record:?}");
    assert!(record.queue.is_empty() && record.vacant.is_empty() && record.members.len() == 2, "{record:?}");
}

/// A pair that the whole second replica was to go on from by command; the order was given up, and its first replica is back.
fn given_up() -> (World, PgId, Member, Member) {
    let (mut world, pg, other, kept) = pair(4);
    go(&mut world, other.osd);
    world.seconds(20, &[other.osd.0]);
    world.changes_stand_still = true;
    force(&mut world, PgForce { pg, osd: None, dry_run: false, accept_loss: false }).expect("ordered");
    world.seconds(3, &[other.osd.0]);
    assert!(world.forces.iter().all(|f| f.keep == kept && !f.fence) && !world.forces.is_empty());
    world.admin(AdminAsk::PgMoveCancel { pg }).expect("given up");
    world.changes_stand_still = false;
    world.osd(other.osd).deaf = false;
    world.restart(other.osd);
    (world, pg, kept, other)
}

#[test]
fn pair_goes_on_from_the_replica_that_an_order_named_which_was_given_up() {
    for unseen in [false, true] {
        let (mut world, pg, kept, other) = given_up();
        let orders = world.forces.len();
        if unseen {
            // It has carried the order out, and does not lead at the moment.
            let force = world.forces[0];
            let step = MembersStep::Force { keep: kept, floor: force.floor, fence: force.fence };
            let before = types::map::Membership::fresh(Epoch(1), &[kept, other]);
            world.members.insert(pg, before.after(force.epoch, step).expect("a forced step"));
        }
        world.failed.insert(other.replica);
        world.seconds(60, &[]);
        let now = members(&world, pg);
        assert_eq!(world.forces.len() == orders, unseen, "its floor tells whether it has gone on alone");
        let given_up = world.forces[0].epoch;
        assert!(world.forces[orders..].iter().all(|f| f.epoch > given_up), "the last order counts");
        assert_eq!(now.contains(&other), unseen, "{now:?}");
        assert!(now.contains(&kept) && now.len() == 2, "{now:?}");
    }
}

#[test]
fn pair_goes_on_alone_when_the_replica_that_an_order_named_is_no_member() {
    let (mut world, pg, named, kept) = given_up();
    let free = (1..=4).map(OsdId).find(|osd| *osd != kept.osd && *osd != named.osd).expect("a third OSD");
    world.leaders.insert(pg, (kept.osd, 6));
    world.seconds(5, &[]);
    world.admin(AdminAsk::PgMove(PgMove { pg, from: named.osd, to: free, dry_run: false })).expect("queued");
    world.seconds(30, &[]);
    let record = &world.control.records().pgs[&pg];
    assert!(!record.members.contains(&named) && record.members.len() == 2 && record.change.is_none(), "{record:?}");
    let voided = record.voided.clone();
    assert_eq!(voided.iter().map(|void| void.keep).collect::<Vec<_>>(), [named], "a late report of it is still void");
    let new = *record.members.iter().find(|m| **m != kept).expect("a second one");
    let orders = world.forces.len();
    world.leaders.insert(pg, (OsdId(99), 7));
    world.failed.insert(new.replica);
    world.seconds(60, &[]);
    assert!(world.forces[orders..].iter().all(|f| f.keep == kept && f.epoch > voided[0].epoch));
    let record = &world.control.records().pgs[&pg];
    assert!(
        record.members.contains(&kept) && !record.members.contains(&new) && record.members.len() == 2,
        "{record:?}"
    );
    assert_eq!(record.voided, voided);
}
