//! Forced recovery of a PG: one OSD goes on alone, and the test plays meta (ADR 0020).

use super::doubt::{is_header, spoil_log};
use super::rig::{EPOCH, LONG, Rig, ms, pg};
use types::control::OsdDown;
use types::map::{ForceMembers, Member, MemberChange, PgMap};
use types::{Epoch, OsdId, ReplicaId};

const KEPT: usize = 2;
const FLOOR: ReplicaId = ReplicaId(100);

fn member(n: u32) -> Member {
    Member { replica: ReplicaId(n.into()), osd: OsdId(n) }
}

fn order(fence: bool) -> OsdDown {
    let force = ForceMembers { keep: member(3), floor: FLOOR, fence, epoch: Epoch(1 << 20) };
    OsdDown::ForceMembers { pg: pg(0), force }
}

fn is_alone(rig: &mut Rig) -> bool {
    let reports = rig.osd(KEPT).reports_for_tools();
    let lead = reports.into_iter().find(|r| r.pg == pg(0)).and_then(|r| r.leading);
    lead.is_some_and(|lead| lead.active && lead.members.voters == [member(3)] && lead.members.floor == FLOOR)
}

fn forced(rig: &mut Rig, fence: bool) {
    for _ in 0..200 {
        rig.tell(KEPT, order(fence));
        rig.run(ms(100));
        if is_alone(rig) {
            return;
        }
    }
    panic!("the recovery does not end: {:?}", rig.osd(KEPT).complaints_for_tools());
}

fn created() -> PgMap {
    PgMap { pg: pg(0), lineage: 1, conf_epoch: EPOCH, members: (1..=3).map(member).collect() }
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
    forced(&mut rig, false);
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

#[test]
fn replica_that_lacks_log_records_or_payloads_goes_on_from_what_it_has() {
    // Headers make it suspect; payloads, one that waits for its peers.
    for (seed, headers) in [(60, true), (61, false), (62, true), (63, false)] {
        let mut rig = lost_majority(seed);
        spoil_log(&rig, KEPT, 64 << 10..1 << 20, |page| is_header(page) == headers);
        rig.start(KEPT);
        rig.run(ms(3000));
        assert_eq!(rig.osd(KEPT).repairing().len(), 1, "it waits for members that are gone");
        let report = rig.osd(KEPT).changed_reports().into_iter().find(|r| r.pg == pg(0));
        forced(&mut rig, true);
        let restarted = |rig: &mut Rig| {
            rig.kill(KEPT);
            rig.start(KEPT);
            rig.until(LONG, "it serves again", is_alone);
        };
        restarted(&mut rig);
        let end = report.and_then(|r| r.end).expect("it can be kept").1;
        assert!(rig.osd(KEPT).reports_for_tools()[0].applied > end, "all of its log up to the gap is committed");
        assert!(rig.osd(KEPT).repairing().is_empty() && rig.osd(KEPT).quarantined().is_empty());
        restarted(&mut rig);
    }
}
