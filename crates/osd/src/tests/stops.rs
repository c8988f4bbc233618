//! Ends of an OSD: planned, refused by meta, or with one damaged replica.

use super::rig::{LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use types::control::{OsdDown, OsdUp, Watermarks};
use types::map::{Member, PgMap};
use types::{Epoch, OsdId, ReplicaId};

#[test]
fn a_planned_end_hands_every_pg_over_before_a_promise_could_end() {
    let mut rig = Rig::new(1, [16; 3]);
    rig.make_pgs(4);
    rig.lead_all(0, 4);
    rig.osd(0).stop();
    let took = rig.until(LONG, "it may go", |rig| rig.osd(0).has_stopped());
    assert!(took < ms(100), "handed over after {took:?}");
    let heirs: Vec<usize> = (0..4).map(|n| rig.leader(pg(n))).collect();
    assert_eq!(heirs, [1, 2, 1, 2], "not all to the same one");
}

#[test]
fn planned_stop_does_not_wait_for_a_pg_without_a_successor() {
    let mut rig = Rig::new(2, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    // No member is in reach, so there is no successor.
    (1..3).for_each(|i| rig.kill(i));
    rig.run(ms(50));
    rig.osd(0).stop();
    assert!(rig.osd(0).has_stopped());
    // The successors are connected, but their processes are stopped: the wait is bounded.
    let mut rig = Rig::new(3, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.world.heal_all();
    let (one, two) = (rig.node(1), rig.node(2));
    let me = rig.node(0);
    rig.world.partition(me, one, simenv::Cut::Both);
    rig.world.partition(me, two, simenv::Cut::Both);
    rig.osd(0).stop();
    assert!(!rig.osd(0).has_stopped(), "a successor was told");
    let took = rig.until(LONG, "it may go", |rig| rig.osd(0).has_stopped());
    assert!(took >= ms(400) && took <= ms(600), "it waited {took:?}");
}

#[test]
fn an_osd_that_meta_refuses_neither_serves_nor_votes() {
    let mut rig = Rig::new(4, [16; 3]);
    rig.make_pgs(2);
    rig.lead_all(0, 2);
    rig.tell(0, OsdDown::Refused { code: 2025, reason: "another life of it is known".to_owned() });
    assert!(rig.osd(0).stopped().is_some_and(|reason| reason.contains("BSLT-2025")));
    assert_eq!(rig.osd(0).reports_for_tools(), [], "it holds no group any more");
    // Its connections are closed: the others need not wait for the deadline of silence.
    let begun = rig.world.now();
    for n in 0..2 {
        assert_ne!(rig.leader(pg(n)), 0);
        rig.write(pg(n), 0, 0, 8);
    }
    assert!(rig.world.now() < begun + ms(600), "served again after {:?}", rig.world.now().since(begun));
}

#[test]
fn leader_with_a_damaged_replica_releases_its_lease() {
    let mut rig = Rig::new(5, [16; 3]);
    rig.make_pgs(2);
    rig.lead_all(0, 2);
    let key = rig.osd(0).pgs.by_pg(pg(1)).expect("it holds one");
    let replica = rig.osd(0).pgs.get(key).identity.replica;
    rig.osd(0).fail_replica(replica, "damaged by the test".to_owned());
    rig.turn(0);
    let begun = rig.world.now();
    assert_ne!(rig.leader(pg(1)), 0);
    assert!(rig.world.now() < begun + ms(300), "led again after {:?}", rig.world.now().since(begun));
    assert_eq!(rig.leader(pg(0)), 0, "the other PG is not concerned");
}

/// Returns the most that the leader leaves uncommitted while 12 MiB are written at once; one follower has a small log.
fn most_uncommitted(told: bool) -> u64 {
    let mut rig = Rig::new(6, [128, 128, 16]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    let key = rig.osd(0).pgs.by_pg(pg(0)).expect("it leads it");
    if !told {
        rig.osd(0).pgs.group(key).expect("it runs").set_uncommitted_max(16 << 20, 16 << 20);
    }
    (1..3).for_each(|i| rig.slow_disk(i, 50));
    let all = rig.answered(0).0 + 24;
    for part in 0..24 {
        rig.submit(pg(0), 0, part * 128, 128);
    }
    let mut most = 0;
    rig.until(LONG, "all are written", |rig| {
        most = most.max(rig.osd(0).pgs.group(key).map_or(0, |group| group.uncommitted_payload()));
        rig.answered(0).0 == all
    });
    most
}

#[test]
fn a_leader_goes_by_the_smallest_log_among_its_members() {
    // A quarter of 16 MiB for the one PG there; the leader's own share is four times that.
    assert!(most_uncommitted(true) <= 4 << 20);
    assert!(most_uncommitted(false) > 4 << 20, "it is the word of the acks that holds it back");
}

#[test]
fn a_replica_id_that_is_in_use_is_not_taken_for_another_pg() {
    let mut rig = Rig::new(5, [16; 3]);
    rig.make_pgs(1);
    let wrong = PgMap {
        pg: pg(9),
        conf_epoch: Epoch(1),
        members: (1..=3).map(|n| Member { replica: ReplicaId(n), osd: OsdId(n as u32) }).collect(),
    };
    rig.ensure(0, &wrong);
    rig.run(ms(100));
    assert!(rig.osd(0).reports_for_tools().iter().all(|report| report.pg == pg(0)), "it has one PG");
    rig.write(pg(0), 0, 0, 8);
}

/// Returns the watermarks of the OSD's next Hello.
fn remembers(rig: &mut Rig, i: usize) -> Watermarks {
    rig.osd(i).take_reports();
    rig.tell(i, OsdDown::Connected);
    let hello = rig.osd(i).take_reports().into_iter().find_map(|up| match up {
        OsdUp::Hello(hello) => Some(hello.seen),
        _ => None,
    });
    hello.expect("it says Hello")
}

#[test]
fn watermarks_are_durable_before_they_are_confirmed() {
    let mut rig = Rig::new(5, [16; 3]);
    rig.run(ms(500));
    assert_eq!(remembers(&mut rig, 0), Watermarks::default());
    let told = |revision| Watermarks { revision, next_osd: 4, next_volume: 70 + revision, ..Watermarks::default() };
    for revision in 1..=3 {
        rig.tell(0, OsdDown::Remember(told(revision)));
    }
    let mut confirmed = Watermarks::default();
    rig.until(LONG, "the last is confirmed", |rig| {
        for up in rig.osd(0).take_reports() {
            if let OsdUp::Remembers(seen) = up {
                confirmed = seen;
            }
        }
        confirmed == told(3)
    });
    // The message may get lost on its way: the OSD repeats it.
    rig.tell(0, OsdDown::Welcome { map_epoch: Epoch(9), osds: Vec::new() });
    rig.until(LONG, "the word is repeated", |rig| rig.osd(0).take_reports().contains(&OsdUp::Remembers(told(3))));
    // An older message takes nothing back, and neither does a later address map.
    rig.tell(0, OsdDown::Remember(told(2)));
    rig.tell(0, OsdDown::Welcome { map_epoch: Epoch(9), osds: Vec::new() });
    rig.run(ms(50));
    rig.kill(0);
    rig.start(0);
    rig.run(ms(500));
    assert_eq!(remembers(&mut rig, 0), told(3));
}

#[test]
fn an_osd_that_served_its_cluster_goes_on_when_meta_serves_another() {
    let mut rig = Rig::new(6, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    let other = || OsdDown::Refused { code: 2026, reason: "this is another cluster".to_owned() };
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::Remember(Watermarks { revision: 1, ..Watermarks::default() }));
    rig.run(ms(50));
    rig.tell(0, other());
    assert!(rig.osd(0).stopped().is_none() && rig.osd(0).refusal().is_none());
    rig.write(pg(0), 0, 0, 8);
    // An OSD that never served is refused and ends: it was given a wrong address.
    rig.tell(1, other());
    assert!(rig.osd(1).stopped().is_some_and(|reason| reason.contains("BSLT-2026")));
}

#[test]
fn a_store_that_stopped_is_told_to_health_checks() {
    let mut rig = Rig::new(11, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    let health = |rig: &mut Rig| {
        rig.osd(0).ask_tool(1, ToolAsk::Health);
        rig.osd(0).take_tool_answers()
    };
    assert_eq!(health(&mut rig), [(1, ToolAnswer::Healthy)]);
    rig.fail_write(0);
    rig.submit(pg(0), 0, 0, 8);
    rig.until(LONG, "the store stopped", |rig| health(rig) != [(1, ToolAnswer::Healthy)]);
    let told = health(&mut rig);
    assert!(
        matches!(&told[..], [(1, ToolAnswer::Stopped { reason })] if reason.contains("writing the log")),
        "{told:?}"
    );
}
