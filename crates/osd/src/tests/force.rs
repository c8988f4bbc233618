//! Forced recovery of a PG: one OSD goes on alone, and the test plays meta (ADR 0020).

use super::failures::{is_header, lose_records, spoil_log};
use super::rig::{EPOCH, LONG, Rig, ms, pg};
use types::control::{OsdDown, PgReport};
use types::map::{ForceMembers, Member, MemberChange, PgMap};
use types::{Epoch, Index, OsdId, ReplicaId, Term};

const KEPT: usize = 2;
const FLOOR: ReplicaId = ReplicaId(100);
const ANY_END: (Term, Index) = (Term(0), Index(0));

fn member(n: u32) -> Member {
    Member { replica: ReplicaId(n.into()), osd: OsdId(n) }
}

/// An order for a log that ends there, or further on.
fn order(fence: bool, end: (Term, Index)) -> OsdDown {
    let force = ForceMembers { keep: member(3), floor: FLOOR, fence, epoch: Epoch(1 << 20), end };
    OsdDown::ForceMembers { pg: pg(0), force }
}

fn is_alone(rig: &mut Rig) -> bool {
    let reports = rig.osd(KEPT).reports_for_tools();
    let lead = reports.into_iter().find(|r| r.pg == pg(0)).and_then(|r| r.leading);
    lead.is_some_and(|lead| lead.active && lead.members.voters == [member(3)] && lead.members.floor == FLOOR)
}

fn forced(rig: &mut Rig, end: (Term, Index)) {
    for _ in 0..200 {
        rig.tell(KEPT, order(true, end));
        rig.run(ms(100));
        if is_alone(rig) {
            return;
        }
    }
    panic!("the recovery does not end: {:?}", rig.osd(KEPT).complaints_for_tools());
}

fn created() -> PgMap {
    PgMap { pg: pg(0), conf_epoch: EPOCH, members: (1..=3).map(member).collect() }
}

/// Three OSDs with some writes; the first two are down.
fn lost_majority(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    (0..3).for_each(|i| rig.kill(i));
    rig
}

#[test]
fn kept_replica_serves_alone_and_new_ones_join_with_what_their_osds_had() {
    let mut rig = lost_majority(50);
    rig.start(KEPT);
    rig.run(ms(3000));
    assert!(!is_alone(&mut rig));
    forced(&mut rig, ANY_END);
    // The sessions have ended; the client opens the volume again.
    rig.attach_again(pg(0), 2);
    rig.run(ms(200));
    (0..4).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    let applied = |rig: &mut Rig| rig.osd(KEPT).reports_for_tools()[0].applied;
    let before = applied(&mut rig);
    // The two others form a majority of the timeline that has ended, until meta drops them.
    (0..2).for_each(|i| rig.start(i));
    rig.run(ms(5000));
    assert!(is_alone(&mut rig) && applied(&mut rig) == before, "they have no part in its PG");
    for (i, replica) in [(0, 101), (1, 102)] {
        rig.tell(i, OsdDown::DropReplica { pg: pg(0), replica: member(i as u32 + 1).replica, keep: true });
        rig.run(ms(200));
        rig.tell(i, OsdDown::EnsureReplica { created: created(), replica: ReplicaId(replica) });
        let add = Member { replica: ReplicaId(replica), osd: OsdId(i as u32 + 1) };
        let lead = rig.osd(KEPT).reports_for_tools()[0].leading.clone().expect("it leads");
        let change = MemberChange { expected: lead.members.change_base(), add: Some(add), remove: None, cancel: false };
        for _ in 0..300 {
            let leader = rig.leader(pg(0));
            rig.tell(leader, OsdDown::ChangeMembers { pg: pg(0), change });
            rig.run(ms(100));
        }
    }
    rig.until(LONG, "three are whole", |rig| rig.is_whole(pg(0)));
    rig.kill(KEPT);
    rig.write(pg(0), 0, 400, 8);
    assert_eq!([0, 1].map(|i| rig.osd(i).quarantined()), [[], []]);
}

/// Returns the report of the kept replica, as meta gets it.
fn kept(rig: &mut Rig) -> PgReport {
    let osd = rig.osd(KEPT);
    let key = osd.pgs.by_replica(member(3).replica).expect("it is here");
    osd.pgs.get_mut(key).reported = None;
    osd.changed_reports().into_iter().find(|r| r.replica == member(3).replica).expect("it is reported")
}

fn restart(rig: &mut Rig) {
    rig.kill(KEPT);
    rig.start(KEPT);
}

#[test]
fn replica_that_lacks_log_records_or_payloads_goes_on_from_what_it_has() {
    // Without headers it has failed; without payloads it waits for its peers.
    for (seed, headers) in [(60, true), (61, false), (62, true), (63, false)] {
        let mut rig = lost_majority(seed);
        spoil_log(&rig, KEPT, 64 << 10..1 << 20, |page| is_header(page) == headers);
        rig.start(KEPT);
        rig.run(ms(3000));
        let report = kept(&mut rig);
        assert_eq!((report.quarantined, report.repairing), (headers, !headers), "it waits for members that are gone");
        let end = report.end.expect("it can be kept");
        let further = (end.0, Index(end.1.0 + 1));
        for (order, why) in [
            (order(false, end), "an order that ends no session keeps no such replica"),
            (order(true, further), "the order was made for a log that ended further on"),
        ] {
            for _ in 0..30 {
                rig.tell(KEPT, order.clone());
                rig.run(ms(100));
            }
            assert_eq!(kept(&mut rig), report, "{why}");
        }
        forced(&mut rig, end);
        let end = end.1;
        for _ in 0..2 {
            restart(&mut rig);
            rig.until(LONG, "it serves again", is_alone);
            assert!(rig.osd(KEPT).reports_for_tools()[0].applied > end, "all of its log up to the gap is committed");
            assert!(rig.osd(KEPT).repairing().is_empty() && rig.osd(KEPT).quarantined().is_empty());
        }
    }
}

#[test]
fn crash_before_the_step_is_durable_finds_a_replica_failed_with_its_past() {
    // The writes in flight at a crash are lost or not.
    let mut found = [0, 0];
    for seed in 64..76 {
        let mut rig = lost_majority(seed);
        lose_records(&rig, KEPT);
        rig.start(KEPT);
        rig.run(ms(3000));
        let report = kept(&mut rig);
        assert!(report.quarantined && report.end.is_some(), "{report:?}");
        let end = report.end.expect("it can be kept");
        rig.stick_disk(KEPT, true);
        rig.tell(KEPT, order(true, end));
        let groups: Vec<bool> = rig.osd(KEPT).groups_for_tools().map(|group| group.is_elected()).collect();
        assert_eq!(groups, [false], "its group has the step, which is not durable");
        // A member of before gets no answer of this group.
        rig.start(0);
        rig.run(ms(3000));
        assert!(rig.osd(0).leading().is_empty() && !is_alone(&mut rig));
        rig.kill(0);
        rig.kill(KEPT);
        rig.stick_disk(KEPT, false);
        rig.start(KEPT);
        rig.run(ms(3000));
        let is_forced = is_alone(&mut rig);
        assert!(is_forced || kept(&mut rig) == report, "nothing has happened, or the step is durable");
        found[usize::from(is_forced)] += 1;
        forced(&mut rig, end);
        restart(&mut rig);
        rig.until(LONG, "it serves again", is_alone);
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

#[test]
fn order_for_a_failed_replica_waits_while_a_leader_is_heard() {
    let mut rig = lost_majority(65);
    lose_records(&rig, KEPT);
    (0..3).for_each(|i| rig.start(i));
    rig.leader(pg(0));
    rig.run(ms(3000));
    let report = kept(&mut rig);
    for _ in 0..30 {
        rig.tell(KEPT, order(true, ANY_END));
        rig.run(ms(100));
    }
    assert_eq!(kept(&mut rig), report);
    rig.write(pg(0), 0, 400, 8);
    (0..2).for_each(|i| rig.kill(i));
    forced(&mut rig, ANY_END);
}

#[test]
fn replica_that_failed_without_a_past_or_has_a_successor_is_not_kept() {
    let mut rig = lost_majority(66);
    lose_records(&rig, KEPT);
    rig.start(KEPT);
    rig.run(ms(3000));
    let report = kept(&mut rig);
    rig.tell(KEPT, OsdDown::EnsureReplica { created: created(), replica: ReplicaId(90) });
    rig.run(ms(300));
    let tried = |rig: &mut Rig| {
        for _ in 0..30 {
            rig.tell(KEPT, order(true, ANY_END));
            rig.run(ms(100));
        }
        is_alone(rig)
    };
    assert!(!tried(&mut rig) && kept(&mut rig).end.is_none(), "another replica of the PG is beside it");
    rig.tell(KEPT, OsdDown::DropReplica { pg: pg(0), replica: ReplicaId(90), keep: false });
    rig.run(ms(300));
    assert_eq!(kept(&mut rig), report);
    forced(&mut rig, ANY_END);
    rig.osd(KEPT).fail_replica(member(3).replica, "for this test".to_owned());
    assert!(kept(&mut rig).end.is_none());
    let later =
        ForceMembers { keep: member(3), floor: ReplicaId(200), fence: true, epoch: Epoch(1 << 21), end: ANY_END };
    for _ in 0..30 {
        rig.tell(KEPT, OsdDown::ForceMembers { pg: pg(0), force: later });
        rig.run(ms(100));
    }
    assert!(rig.osd(KEPT).reports_for_tools().is_empty());
}

#[test]
fn failed_replica_of_a_pg_that_has_changed_its_members_is_kept() {
    let mut rig = Rig::new(67, [16; 4]);
    rig.until(LONG, "all serve", |rig| rig.all().all(|i| *rig.osd(i).phase() == crate::Phase::Running));
    (0..3).for_each(|i| rig.ensure(i, &created()));
    rig.attach(pg(0));
    rig.run(ms(500));
    rig.lead_all(0, 1);
    let new = Member { replica: ReplicaId(90), osd: OsdId(4) };
    rig.tell(3, OsdDown::EnsureReplica { created: created(), replica: new.replica });
    let change = MemberChange { expected: EPOCH, add: Some(new), remove: Some(member(2).replica), cancel: false };
    for _ in 0..100 {
        rig.tell(0, OsdDown::ChangeMembers { pg: pg(0), change });
        rig.run(ms(100));
    }
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.run(ms(200));
    rig.all().for_each(|i| rig.kill(i));
    spoil_log(&rig, KEPT, 320 << 10..1 << 20, is_header);
    rig.start(KEPT);
    rig.run(ms(3000));
    let report = kept(&mut rig);
    assert!(report.quarantined && report.end.is_some_and(|(_, end)| end.0 > 10), "{report:?}");
    forced(&mut rig, ANY_END);
    restart(&mut rig);
    rig.until(LONG, "it serves again", is_alone);
}

#[test]
fn whole_one_of_two_goes_on_without_loss_when_the_other_has_failed() {
    let mut rig = Rig::new(68, [16; 2]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.osd(0).fail_replica(ReplicaId(1), "for this test".to_owned());
    rig.turn(0);
    rig.run(ms(2000));
    assert!(rig.osd(1).leading().is_empty(), "one of two elects no leader");
    let keep = member(2);
    let force = ForceMembers { keep, floor: FLOOR, fence: false, epoch: Epoch(1 << 20), end: ANY_END };
    rig.tell(1, OsdDown::ForceMembers { pg: pg(0), force });
    rig.until(ms(2000), "it serves", |rig| rig.osd(1).leading().contains_key(&pg(0)));
    // The session goes on.
    let before = rig.answered(1);
    rig.submit(pg(0), 0, 400, 8);
    rig.run(ms(100));
    assert_eq!(rig.answered(1).0, before.0 + 1);
}
