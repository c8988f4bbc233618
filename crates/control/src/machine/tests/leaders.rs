//! Rules of the balance of leaders.

use super::*;

fn led(world: &mut World) -> Vec<u32> {
    world.osds().into_iter().map(|o| o.leads).collect()
}

/// Returns a world in which osd.1 leads all PGs, as after a start in which it came first.
fn gathered() -> World {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 32);
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.leaders = pgs.into_iter().map(|pg| (pg, (OsdId(1), 2))).collect();
    (1..=3).for_each(|n| world.beat(OsdId(n)));
    assert_eq!(led(&mut world), [32, 0, 0]);
    world
}

fn seconds(world: &mut World, count: u32) {
    for _ in 0..count {
        world.pass(Duration::from_secs(1));
        (1..=3).for_each(|n| world.beat(OsdId(n)));
    }
}

#[test]
fn leaders_are_spread_within_30_s_and_then_stay() {
    let mut world = gathered();
    seconds(&mut world, 30);
    let counts = led(&mut world);
    assert!(counts.iter().all(|led| (9..=12).contains(led)), "{counts:?}");
    seconds(&mut world, 60);
    let (transfers, counts) = (world.transfers, led(&mut world));
    seconds(&mut world, 600);
    assert_eq!((world.transfers, led(&mut world)), (transfers, counts), "balanced leaders stay where they are");
}

#[test]
fn a_dead_osd_leads_nothing_and_is_given_nothing() {
    let mut world = gathered();
    for _ in 0..40 {
        world.pass(Duration::from_secs(1));
        for n in [1, 2] {
            world.heartbeat(OsdId(n), |beat| {
                let leads = beat.pgs.iter_mut().filter_map(|pg| pg.leading.as_mut());
                leads.for_each(|lead| (lead.followers_in_sync, lead.followers_silent) = (1, 1));
            });
        }
    }
    assert_eq!(led(&mut world), [16, 16, 0], "the two that live share what there is");
    assert!(world.leaders.values().all(|(osd, _)| *osd != OsdId(3)));
}

#[test]
fn a_pg_whose_leader_gives_up_is_down_only_when_no_other_takes_over() {
    let mut world = gathered();
    seconds(&mut world, 12);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    let leader = world.leaders[&pg].0;
    let give_up = |world: &mut World| {
        world.heartbeat(leader, |beat| {
            let it = beat.pgs.iter_mut().find(|report| report.pg == pg).expect("it is a member");
            it.leading = None;
        });
        world.control.status(world.now)
    };
    let page = give_up(&mut world);
    assert_eq!((page.health.as_str(), page.pgs_down, page.pgs_waiting), ("waiting", 0, 1));
    world.pass(Duration::from_millis(3100));
    let page = world.control.status(world.now);
    assert_eq!((page.health.as_str(), page.pgs_down), ("down", 1));
    assert!(world.events.iter().any(|e| e.text == format!("pg {pg} is down (was active)")), "{:?}", world.events);
}

#[test]
fn a_leader_that_hands_over_gives_the_election_its_time() {
    let mut world = gathered();
    seconds(&mut world, 12);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    let leader = world.leaders[&pg].0;
    let hand_over = |world: &mut World| {
        world.heartbeat(leader, |beat| {
            let it = beat.pgs.iter_mut().find(|report| report.pg == pg).expect("it is a member");
            it.leading.as_mut().expect("it leads").active = false;
        });
        world.control.status(world.now)
    };
    let page = hand_over(&mut world);
    assert_eq!((page.health.as_str(), page.pgs_down), ("waiting", 0), "{:?}", page.problems);
    world.pass(Duration::from_millis(3100));
    let page = hand_over(&mut world);
    assert_eq!((page.health.as_str(), page.pgs_down), ("down", 1), "no other leader took over");
}

#[test]
fn new_leader_that_hears_all_followers_is_not_degraded_before_matching() {
    let mut world = gathered();
    seconds(&mut world, 40);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    let (leader, term) = world.leaders[&pg];
    let other = OsdId(leader.0 % 3 + 1);
    world.leaders.insert(pg, (other, term + 1));
    let take_over = |world: &mut World| {
        world.heartbeat(leader, |_| {});
        world.heartbeat(other, |beat| {
            let it = beat.pgs.iter_mut().find(|report| report.pg == pg).expect("it is a member");
            let lead = it.leading.as_mut().expect("it leads");
            (lead.followers_in_sync, lead.followers_behind, lead.recovering) = (1, 1, true);
        });
        world.control.status(world.now)
    };
    let page = take_over(&mut world);
    assert_eq!((page.health.as_str(), page.pgs_degraded), ("ok", 0), "{:?}", page.problems);
    world.pass(Duration::from_millis(3100));
    let page = take_over(&mut world);
    assert_eq!((page.health.as_str(), page.pgs_degraded), ("degraded", 1), "it lasts");
}

#[test]
fn nothing_is_moved_to_a_member_that_is_behind() {
    let mut world = gathered();
    for _ in 0..40 {
        world.pass(Duration::from_secs(1));
        for n in [1, 2, 3] {
            world.heartbeat(OsdId(n), |beat| {
                let leads = beat.pgs.iter_mut().filter_map(|pg| pg.leading.as_mut());
                leads.for_each(|l| (l.followers_in_sync, l.followers_behind, l.recovering) = (1, 1, true));
            });
        }
    }
    assert_eq!((world.transfers, led(&mut world)), (0, vec![32, 0, 0]));
}
