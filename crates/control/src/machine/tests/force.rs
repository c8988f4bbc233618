//! Forced recovery of PGs that have lost their majority (ADR 0020).

use super::*;
use crate::admin::{ForceView, PgForce};
use types::control::LeadReport;
use types::map::Member;
use types::{Index, Term};

/// A pool of `replicas` over so many OSDs, and one of its PGs.
pub fn with_pg(osds: u32, replicas: u32) -> (World, PgId) {
    let mut world = World::new(1, osds);
    world.set("norebalance", Some("on"));
    world.make_pool("p", replicas, 4);
    world.seconds(3, &[]);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    for n in 0.. {
        if world.control.records().segments_in(pg) > 0 {
            break;
        }
        allocate(&mut world, 1000 + n);
    }
    (world, pg)
}

/// Opens a new volume and gives it a segment. Returns the volume and its session.
fn allocate(world: &mut World, n: u64) -> (VolumeId, SessionId) {
    let name = format!("p/v{n}");
    world.make_volume(&name, 1 << 30);
    let opened = opened(world.ask(n, ClientAsk::Open { name, write: true, steal: false, holder: "me".into() }));
    let (volume, session, epoch) = (opened.volume, opened.session, opened.epoch);
    let segments = vec![types::SegmentIndex(0)];
    world.ask(n, ClientAsk::Segments { volume, session, epoch, segments, allocate: true });
    (volume, session)
}

pub fn members(world: &World, pg: PgId) -> Vec<Member> {
    world.control.records().pgs[&pg].members.clone()
}

/// Lets all OSDs of the PG but the last one go silent until the PG is down; returns these and the one that is left.
fn lose_majority(world: &mut World, pg: PgId) -> (Vec<u32>, Member) {
    let members = members(world, pg);
    let (kept, lost) = members.split_last().expect("members");
    let lost: Vec<u32> = lost.iter().map(|m| m.osd.0).collect();
    for osd in &lost {
        world.osd(OsdId(*osd)).deaf = true;
    }
    world.leaders.insert(pg, (OsdId(99), 5));
    world.seconds(60, &lost);
    (lost, *kept)
}

fn ask(pg: PgId) -> PgForce {
    PgForce { pg, osd: None, dry_run: false, accept_loss: false }
}

pub fn force(world: &mut World, ask: PgForce) -> Result<ForceView, Refusal> {
    world.admin(AdminAsk::PgForce(ask)).map(|answer| match answer {
        AdminAnswer::Forced(view) => view,
        other => panic!("{other:?}"),
    })
}

pub fn event(world: &World, code: &str) -> usize {
    world.events.iter().filter(|event| event.kind == code).count()
}

#[test]
fn pg_of_three_that_lost_two_goes_on_from_the_third_and_gets_new_replicas() {
    let (mut world, pg) = with_pg(5, 3);
    let (lost, kept) = lose_majority(&mut world, pg);
    let dry = force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
    assert_eq!((dry.keep, dry.lossless, dry.ordered, dry.members.len()), (kept.osd, false, false, 3));
    assert!(dry.members.iter().all(|m| (m.state == "whole") == (m.osd == kept.osd)), "{dry:?}");
    let refused = force(&mut world, ask(pg)).expect_err("writes may be lost");
    assert_eq!(refused.code, codes::BAD_FORCE, "{refused}");
    assert!(world.forces.is_empty(), "a dry run and a refusal order nothing");
    let view = force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    assert!(view.ordered && !view.lossless);
    world.seconds(3, &lost);
    let record = world.control.records().pgs[&pg].clone();
    assert_eq!((record.members.clone(), record.forced.clone()), (vec![kept], None), "{record:?}");
    assert!(world.forces.iter().all(|f| f.keep == kept && f.fence && f.floor > kept.replica), "{:?}", world.forces);
    assert_eq!((event(&world, "pg.force_recover"), event(&world, "pg.forced")), (1, 1));
    assert_eq!(record.vacant.iter().map(|osd| osd.0).collect::<Vec<_>>(), lost, "their places wait for them");
    // One of the lost OSDs is back: a new replica comes there. The other one goes out: its place moves.
    let (back, gone) = (lost[0], lost[1]);
    world.osd(OsdId(back)).deaf = false;
    world.restart(OsdId(back));
    world.seconds(40, &[gone]);
    let now = members(&world, pg);
    assert!(now.iter().any(|m| m.osd.0 == back && m.replica > kept.replica), "{now:?}");
    world.admin(AdminAsk::OsdSet(OsdSet::one(OsdId(gone), Some(false), None))).expect("out");
    world.seconds(40, &[gone]);
    let record = &world.control.records().pgs[&pg];
    assert!(record.members.len() == 3 && record.vacant.is_empty(), "{record:?}");
    assert!(record.members.iter().all(|m| m.osd.0 != gone) && record.change.is_none(), "{record:?}");
    let floor = world.members[&pg].floor;
    assert!(record.members.iter().all(|m| m.replica >= floor || *m == kept), "{record:?}");
}

#[test]
fn pg_of_two_is_recovered_without_loss_when_one_is_gone() {
    let (mut world, pg) = with_pg(3, 2);
    let (lost, kept) = lose_majority(&mut world, pg);
    let view = force(&mut world, ask(pg)).expect("nothing is lost: no further consent is needed");
    assert!(view.lossless && view.keep == kept.osd, "{view:?}");
    world.seconds(3, &lost);
    assert_eq!(members(&world, pg), [kept]);
    assert!(world.forces.iter().all(|f| !f.fence), "sessions go on");
}

#[test]
fn furthest_log_is_kept_and_another_one_only_by_name() {
    let (mut world, pg) = with_pg(5, 5);
    let all = members(&world, pg);
    let lost: Vec<u32> = all[..3].iter().map(|m| m.osd.0).collect();
    lost.iter().for_each(|osd| world.osd(OsdId(*osd)).deaf = true);
    world.leaders.insert(pg, (OsdId(99), 5));
    world.ends.insert(all[3].replica, (Term(4), Index(10)));
    world.ends.insert(all[4].replica, (Term(3), Index(90)));
    world.seconds(60, &lost);
    let dry = PgForce { dry_run: true, ..ask(pg) };
    let view = force(&mut world, dry).expect("a view");
    assert_eq!(
        (view.keep, view.lossless),
        (all[3].osd, false),
        "a later term is further; three may have committed alone"
    );
    let view = force(&mut world, PgForce { osd: Some(all[4].osd), ..dry }).expect("a view");
    assert_eq!(view.keep, all[4].osd);
    let refused = force(&mut world, PgForce { osd: Some(all[0].osd), ..dry }).expect_err("it is down");
    assert_eq!(refused.code, codes::BAD_FORCE);
}

#[test]
fn pg_that_serves_or_may_serve_is_not_forced() {
    let (mut world, pg) = with_pg(4, 3);
    let refused = force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect_err("it serves");
    assert!(refused.message.contains("serves"), "{refused}");
    world.crash();
    let leader = members(&world, pg)[0].osd;
    (1..=4).map(OsdId).filter(|osd| *osd != leader).for_each(|osd| world.connect(osd));
    let refused =
        force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect_err("a new leader has not heard all");
    assert!(refused.message.contains("may serve by itself"), "{refused}");
    let none = PgId { n: 77, ..pg };
    assert_eq!(force(&mut world, ask(none)).expect_err("unknown").code, codes::PG_UNKNOWN);
}

#[test]
fn members_that_are_failed_count_as_lost_and_are_not_kept() {
    let (mut world, pg) = with_pg(4, 3);
    let all = members(&world, pg);
    world.failed.extend([all[1].replica, all[2].replica]);
    world.leaders.insert(pg, (OsdId(99), 5));
    world.seconds(60, &[]);
    let view = force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
    assert_eq!((view.keep, view.lossless), (all[0].osd, false));
    world.failed.insert(all[0].replica);
    world.seconds(5, &[]);
    let refused = force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect_err("no replica is left");
    assert!(refused.message.contains("cannot go on"), "{refused}");
}

#[test]
fn failed_replica_with_a_log_of_an_earlier_moment_is_kept_by_command() {
    let (mut world, pg) = with_pg(4, 3);
    let all = members(&world, pg);
    world.failed.extend(all.iter().map(|m| m.replica));
    world.ends.insert(all[1].replica, (Term(3), Index(70)));
    world.ends.insert(all[2].replica, (Term(3), Index(60)));
    world.leaders.insert(pg, (OsdId(99), 5));
    world.seconds(60, &[]);
    assert!(world.forces.is_empty(), "a majority has failed: only a command may give up what that lost");
    let dry = force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
    assert_eq!((dry.keep, dry.lossless), (all[1].osd, false));
    assert!(dry.members.iter().all(|m| m.state == "failed" && m.end.is_none() == (m.replica == all[0].replica)));
    let refused = force(&mut world, PgForce { osd: Some(all[0].osd), accept_loss: true, ..ask(pg) });
    assert!(refused.expect_err("its log is no state of the PG").message.contains("cannot go on"));
    assert_eq!(force(&mut world, ask(pg)).expect_err("without consent").code, codes::BAD_FORCE);
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.failed.remove(&all[1].replica);
    world.seconds(3, &[]);
    assert!(world.forces.iter().all(|f| f.keep == all[1] && f.fence), "{:?}", world.forces);
    world.seconds(60, &[]);
    let now = members(&world, pg);
    assert!(now.len() == 3 && now.contains(&all[1]) && !now.contains(&all[0]) && !now.contains(&all[2]), "{now:?}");
}

#[test]
fn order_is_given_up_when_the_pg_has_a_leader_again() {
    let (mut world, pg) = with_pg(4, 3);
    let before = members(&world, pg);
    let (lost, _) = lose_majority(&mut world, pg);
    world.changes_stand_still = true;
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.seconds(3, &lost);
    assert!(!world.forces.is_empty() && world.control.records().pgs[&pg].forced.is_some());
    for osd in &lost {
        world.osd(OsdId(*osd)).deaf = false;
        world.restart(OsdId(*osd));
    }
    world.leaders.insert(pg, (OsdId(lost[0]), 6));
    world.seconds(10, &[]);
    let orders = world.forces.len();
    world.changes_stand_still = false;
    world.seconds(10, &[]);
    let record = &world.control.records().pgs[&pg];
    assert!(record.forced.is_none() && record.members == before, "{record:?}");
    assert_eq!((world.forces.len(), event(&world, "pg.force_cancelled")), (orders, 1));
}

#[test]
fn sessions_that_may_lose_writes_end_before_the_order_goes_out() {
    let (mut world, pg) = with_pg(5, 3);
    let ends: Vec<_> = (0..30).map(|n| allocate(&mut world, n)).collect();
    let in_pg = |world: &World, volume| world.control.records().segments_of(volume).any(|s| s.pg == pg);
    let held: Vec<_> = ends.iter().filter(|(volume, _)| in_pg(&world, *volume)).copied().collect();
    let all = world.control.records().segments_in(pg) as usize;
    assert!(held.len() > 3 && held.len() < all, "{} volumes", held.len());
    let (lost, _) = lose_majority(&mut world, pg);
    world.leaderless.insert(pg);
    world.changes_stand_still = true;
    let view = force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    assert_eq!((view.sessions, view.volume_count), (all as u64, all as u64));
    // Metadata leaders die in the middle.
    world.seconds(1, &lost);
    world.crash();
    (1..=5).filter(|n| !lost.contains(n)).for_each(|n| world.connect(OsdId(n)));
    world.seconds(3, &lost);
    assert!(!world.forces.is_empty());
    for (volume, session) in &ends {
        let now = world::session_of(&world.control.records().volumes[volume]);
        let ended = held.contains(&(*volume, *session));
        assert_eq!(now == *session, !ended, "{volume}: {now}");
    }
    world.changes_stand_still = false;
    // A new metadata leader waits for reports before it orders anything.
    world.seconds(60, &lost);
    assert!(world.control.records().pgs[&pg].forced.is_none());
    for (volume, session) in &held {
        let attach = &world.attached[&(pg, *volume)];
        assert!(attach.only_session().expect("it is not shared") != *session, "{attach:?} of {volume}");
    }
}

#[test]
fn pg_without_data_is_recovered_without_consent() {
    let mut world = World::new(1, 5);
    world.make_pool("p", 3, 1);
    world.seconds(3, &[]);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    let (lost, kept) = lose_majority(&mut world, pg);
    let view = force(&mut world, ask(pg)).expect("nothing can be lost");
    assert!(view.lossless && view.volume_count == 0, "{view:?}");
    world.seconds(3, &lost);
    assert_eq!(members(&world, pg), [kept]);
    assert!(world.forces.iter().all(|f| f.fence), "only one of two is kept without a fence: its log proves it");
    assert_eq!(world.control.records().pgs[&pg].places().count(), 3, "it lacks two members");
}

/// Orders a forced recovery that the kept replica carries out unseen, and gives it up; then the others lead again.
fn carried_out_unseen() -> (World, PgId, Member) {
    let (mut world, pg) = with_pg(5, 3);
    let (lost, kept) = lose_majority(&mut world, pg);
    world.changes_stand_still = true;
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.seconds(3, &lost);
    let order = *world.forces.last().expect("it goes out");
    world.admin(AdminAsk::PgMoveCancel { pg }).expect("given up");
    let voided = &world.control.records().pgs[&pg].voided;
    assert!(voided.len() == 1 && (voided[0].keep, voided[0].floor) == (kept, order.floor), "{voided:?}");
    // The replica carries it out: its next report says so.
    let all = types::map::Membership::fresh(Epoch(1), &members(&world, pg));
    let step = types::map::MembersStep::Force { keep: order.keep, floor: order.floor, fence: order.fence };
    world.members.insert(pg, all.after(order.epoch, step).expect("a forced step"));
    world.leaders.insert(pg, (kept.osd, 9));
    world.changes_stand_still = false;
    (world, pg, kept)
}

#[test]
fn replica_that_was_forced_unseen_is_heard_only_when_a_command_names_it() {
    let (mut world, pg, kept) = carried_out_unseen();
    let before = members(&world, pg);
    let silent: Vec<u32> = before.iter().map(|m| m.osd.0).filter(|osd| *osd != kept.osd.0).collect();
    world.seconds(20, &silent);
    assert_eq!(members(&world, pg), before, "the others may have gone on without it");
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered again");
    world.seconds(10, &silent);
    let record = &world.control.records().pgs[&pg];
    assert!(record.members == [kept] && record.voided.is_empty() && record.forced.is_none(), "{record:?}");
    assert_eq!(record.vacant.len(), 2);
}

#[test]
fn replica_that_was_forced_unseen_is_replaced_when_others_lead() {
    let (mut world, pg, kept) = carried_out_unseen();
    let forced = world.members.remove(&pg).expect("its members");
    let other = members(&world, pg)[0];
    world.osd(other.osd).deaf = false;
    world.restart(other.osd);
    world.leaders.insert(pg, (other.osd, 6));
    world.seconds(3, &[kept.osd.0]);
    // Both report: the leader of the others, and the replica that is alone in its own timeline.
    let lead = LeadReport { active: true, members: forced, ..LeadReport::default() };
    world.heartbeat(kept.osd, |beat| {
        for report in beat.pgs.iter_mut().filter(|report| report.pg == pg) {
            report.leading = Some(lead.clone());
        }
    });
    assert!(!world.osd(kept.osd).replicas.contains(&(pg, kept.replica)), "it is dropped");
    world.seconds(20, &[]);
    let now = members(&world, pg);
    assert!(now.contains(&other) && !now.contains(&kept) && now.len() == 3, "{now:?}");
}

/// Orders a forced recovery that stands: the kept replica of three, whose log ends at entry 90, does not carry it out yet.
fn ordered_at_90() -> (World, PgId, Vec<u32>, Member) {
    let (mut world, pg) = with_pg(5, 3);
    let kept = *members(&world, pg).last().expect("members");
    world.ends.insert(kept.replica, (Term(3), Index(90)));
    let (lost, _) = lose_majority(&mut world, pg);
    world.changes_stand_still = true;
    force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.seconds(3, &lost);
    assert!(world.forces.iter().all(|f| f.end == (Term(3), Index(90))) && !world.forces.is_empty());
    (world, pg, lost, kept)
}

#[test]
fn order_is_void_once_its_replica_has_lost_a_part_of_its_log() {
    for (end, reason) in [(Some((Term(3), Index(60))), "entry 60 of term 3 now"), (None, "no contents any more")] {
        let (mut world, pg, lost, kept) = ordered_at_90();
        world.ends.remove(&kept.replica);
        world.ends.extend(end.map(|end| (kept.replica, end)));
        world.failed.insert(kept.replica);
        world.restart(kept.osd);
        let orders = world.forces.len();
        world.seconds(10, &lost);
        let record = &world.control.records().pgs[&pg];
        assert!(record.forced.is_none() && record.voided[0].keep == kept, "{record:?}");
        let told = |e: &&Event| e.kind == "pg.force_cancelled" && e.text.contains(reason);
        assert_eq!((world.forces.len(), world.events.iter().filter(told).count()), (orders, 1), "{:?}", world.events);
        // A later command orders no more than a dry run has shown.
        let refused = force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect_err("no dry run showed it");
        assert!(
            refused.message.contains(if end.is_some() { "repeat the dry run" } else { "cannot go on" }),
            "{refused}"
        );
        if let Some(end) = end {
            force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
            force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
            world.seconds(3, &lost);
            assert!(world.forces[orders..].iter().all(|f| f.end == end) && world.forces.len() > orders);
        }
    }
}

#[test]
fn order_stands_while_the_log_of_its_replica_grows() {
    let (mut world, pg, lost, kept) = ordered_at_90();
    world.ends.insert(kept.replica, (Term(4), Index(91)));
    world.restart(kept.osd);
    world.seconds(10, &lost);
    // A repeated command gives the order the end that it finds.
    let (floor, orders) = (world.forces[0].floor, world.forces.len());
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.changes_stand_still = false;
    world.seconds(3, &lost);
    assert!(world.forces[orders..].iter().all(|f| (f.end, f.floor) == ((Term(4), Index(91)), floor)));
    assert_eq!((members(&world, pg), event(&world, "pg.force_cancelled")), (vec![kept], 0));
}

#[test]
fn members_of_an_ended_timeline_stay_out_of_records_that_went_back() {
    let (mut world, pg) = with_pg(5, 3);
    let (copy, before) = (world.store.clone(), members(&world, pg));
    let (lost, kept) = lose_majority(&mut world, pg);
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.seconds(3, &lost);
    assert_eq!(members(&world, pg), [kept]);
    // The records are from before that. The kept replica has failed since, so it does not lead.
    world.failed.insert(kept.replica);
    world.ends.insert(kept.replica, (Term(9), Index(50)));
    world.leaders.insert(pg, (OsdId(99), 9));
    world.lead_on(copy);
    // The others are back, as a majority of the members of before.
    let ended = types::map::Membership::fresh(Epoch(1), &before);
    for member in before.iter().filter(|m| **m != kept) {
        world.own_members.insert(member.replica, ended.clone());
        world.ends.insert(member.replica, (Term(20), Index(900)));
        // Its process has run all the time, cut off from the cluster.
        let osd = world.osd(member.osd);
        (osd.deaf, osd.let_in) = (false, true);
    }
    world.connect_all();
    super::past::recover(&mut world, false);
    world.seconds(60, &[]);
    assert_eq!(members(&world, pg), before);
    world.leaders.insert(pg, (before[0].osd, 20));
    world.seconds(60, &[]);
    let stays_out = |world: &mut World| {
        let Ok(AdminAnswer::Pgs(views)) = world.admin(AdminAsk::PgList { pool: "p".into() }) else { panic!("no list") };
        let record = &world.control.records().pgs[&pg];
        assert!(record.change.is_none() && record.queue.is_empty() && world.changes.is_empty(), "{record:?}");
        let view = views.iter().find(|view| view.pg == pg).expect("it is listed");
        assert!(!view.state.contains(&"active".to_owned()), "{view:?}");
    };
    stays_out(&mut world);
    // Neither does a metadata leader take them in that does not hear the kept replica.
    world.crash();
    (1..=5).filter(|n| *n != kept.osd.0).for_each(|n| world.connect(OsdId(n)));
    world.seconds(60, &[kept.osd.0]);
    stays_out(&mut world);
    // A command keeps the replica of the timeline that goes on, although its log is not the furthest.
    world.connect(kept.osd);
    world.leaders.insert(pg, (OsdId(99), 21));
    world.seconds(60, &[]);
    let view = force(&mut world, PgForce { dry_run: true, ..ask(pg) }).expect("a view");
    assert_eq!((view.keep, view.lossless), (kept.osd, false));
    assert!(view.members.iter().all(|m| (m.state == "ended") == (m.osd != kept.osd)), "{view:?}");
    world.failed.remove(&kept.replica);
    force(&mut world, PgForce { accept_loss: true, ..ask(pg) }).expect("ordered");
    world.seconds(3, &lost);
    assert_eq!(members(&world, pg), [kept]);
}
