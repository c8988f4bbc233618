//! A replica moves to another OSD: the test plays meta, and the OSDs do the rest.

use super::digests::ask;
use super::failures::{is_header, spoil_log};
use super::rig::{EPOCH, LONG, Rig, ms, pg};
use crate::pgs::State;
use crate::{Phase, ToolAnswer, ToolAsk};
use types::control::OsdDown;
use types::map::{Member, MemberChange, Membership, PgMap};
use types::{ChunkKey, GenerationId, OsdId, ReplicaId};

const NEW: Member = Member { replica: ReplicaId(100), osd: OsdId(4) };

fn created() -> PgMap {
    let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
    PgMap { pg: pg(0), conf_epoch: EPOCH, members: (1..=3).map(member).collect() }
}

/// Four OSDs, of which the first three hold PG 0.
fn three_of_four(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 4]);
    rig.until(LONG, "all serve", |rig| rig.all().all(|i| *rig.osd(i).phase() == Phase::Running));
    (0..3).for_each(|i| rig.ensure(i, &created()));
    rig.attach(pg(0));
    rig.run(ms(500));
    rig
}

fn ensure_new(rig: &mut Rig) {
    rig.tell(3, OsdDown::EnsureReplica { created: created(), replica: NEW.replica });
}

/// Returns the members as the leader reports them to meta.
fn members(rig: &mut Rig) -> Membership {
    let leader = rig.leader(pg(0));
    let report = rig.osd(leader).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
    report.leading.expect("it leads").members
}

/// Repeats the order to the leader until its report shows the end of the change.
fn change(rig: &mut Rig, change: MemberChange) -> Membership {
    for _ in 0..600 {
        let now = members(rig);
        if now.is_settled() && now.epoch > change.expected {
            return now;
        }
        let leader = rig.leader(pg(0));
        rig.tell(leader, OsdDown::ChangeMembers { pg: pg(0), change });
        rig.run(ms(100));
    }
    panic!("the change does not end: {:?}", members(rig));
}

fn replace(remove: u64) -> MemberChange {
    MemberChange { expected: EPOCH, add: Some(NEW), remove: Some(ReplicaId(remove)), cancel: false }
}

fn drop_old(rig: &mut Rig, replica: u64) {
    rig.tell(replica as usize - 1, OsdDown::DropReplica { pg: pg(0), replica: ReplicaId(replica), keep: false });
}

/// Returns the checksums of the first chunk as the leader has applied it.
fn digest(rig: &mut Rig, i: usize) -> ToolAnswer {
    let leader = rig.leader(pg(0));
    let report = rig.osd(leader).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
    let chunk = ChunkKey { generation: GenerationId(1), index: 0 };
    let answer = ask(rig, i, ToolAsk::Digest { pg: pg(0), chunk, at: report.applied });
    assert!(matches!(answer, ToolAnswer::Digest { .. }), "{answer:?}");
    answer
}

fn osds(members: &Membership) -> Vec<u32> {
    members.voters.iter().map(|m| m.osd.0).collect()
}

#[test]
fn replica_moves_by_log_or_by_stream_and_counts_from_then_on() {
    for (seed, mib) in [(1, 1), (2, 30), (3, 1), (4, 30)] {
        let mut rig = three_of_four(seed);
        rig.fill(pg(0), mib);
        let leader = rig.leader(pg(0));
        let first = rig.osd(leader).groups_for_tools().next().expect("it leads it").first_index();
        assert_eq!(first.0 > 1, mib > 16, "only a stream brings what the log has freed");
        ensure_new(&mut rig);
        let now = change(&mut rig, replace(1 + seed % 3));
        assert!(!now.voters.iter().any(|m| m.replica.0 == 1 + seed % 3) && osds(&now).contains(&4), "{now:?}");
        drop_old(&mut rig, 1 + seed % 3);
        rig.write(pg(0), 0, 9, 4);
        // The new replica makes a majority with any other one.
        let others: Vec<usize> = osds(&now).into_iter().filter(|osd| *osd != 4).map(|osd| osd as usize - 1).collect();
        rig.kill(others[0]);
        rig.write(pg(0), 0, 10, 4);
        rig.start(others[0]);
        rig.kill(others[1]);
        rig.write(pg(0), 0, 11, 4);
        assert_eq!(digest(&mut rig, 3), digest(&mut rig, others[0]), "seed {seed}");
    }
}

#[test]
fn learner_counts_for_no_majority() {
    let mut rig = three_of_four(5);
    ensure_new(&mut rig);
    let leader = rig.leader(pg(0));
    // The learner never becomes whole: its OSD answers nothing.
    rig.kill(3);
    rig.tell(leader, OsdDown::ChangeMembers { pg: pg(0), change: replace(1 + (leader as u64 + 1) % 3) });
    rig.until(LONG, "it is a learner", |rig| members(rig).learners == [NEW]);
    rig.write(pg(0), 0, 1, 1);
    rig.kill((leader + 1) % 3);
    rig.write(pg(0), 0, 2, 1);
    let cancel = MemberChange { cancel: true, ..replace(1) };
    let now = change(&mut rig, cancel);
    assert_eq!(osds(&now), [1, 2, 3]);
}

#[test]
fn removed_replica_that_comes_back_disturbs_nobody() {
    let mut rig = three_of_four(6);
    rig.fill(pg(0), 1);
    rig.lead_all(0, 1);
    ensure_new(&mut rig);
    rig.run(ms(500));
    rig.kill(1);
    let now = change(&mut rig, replace(2));
    assert_eq!(osds(&now), [1, 3, 4]);
    let leader = rig.leader(pg(0));
    let term = |rig: &mut Rig| rig.osd(leader).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).map(|r| r.term);
    let before = term(&mut rig);
    rig.start(1);
    rig.run(ms(5_000));
    assert_eq!((rig.leader(pg(0)), term(&mut rig)), (leader, before), "the old replica campaigns in vain");
    drop_old(&mut rig, 2);
    rig.write(pg(0), 0, 1, 1);
    assert!(rig.osd(1).pgs.by_pg(pg(0)).is_none());
}

#[test]
fn replica_that_lacks_records_is_replaced_once_the_members_have_changed() {
    // The gap hides the change from the replica, or does not.
    for (before, from) in [(20, 256 << 10), (0, 192 << 10)] {
        let mut rig = three_of_four(7);
        rig.lead_all(0, 1);
        ensure_new(&mut rig);
        (0..before).for_each(|n| rig.write(pg(0), 0, n, 8));
        let now = change(&mut rig, replace(2));
        assert_eq!(osds(&now), [1, 3, 4]);
        (20..60).for_each(|n| rig.write(pg(0), 0, n, 8));
        rig.run(ms(200));
        rig.kill(2);
        spoil_log(&rig, 2, from..1 << 20, is_header);
        rig.start(2);
        rig.run(ms(5_000));
        assert!(rig.osd(2).lost_records().is_some() && rig.osd(2).quarantined().len() == 1);
        rig.write(pg(0), 0, 1, 1);
        let new = Member { replica: ReplicaId(101), osd: OsdId(3) };
        rig.tell(2, OsdDown::EnsureReplica { created: created(), replica: new.replica });
        rig.run(ms(200));
        let order = MemberChange { expected: now.epoch, add: Some(new), remove: Some(ReplicaId(3)), cancel: false };
        assert_eq!(osds(&change(&mut rig, order)), [1, 4, 3], "it is replaced");
    }
}

#[test]
fn failed_replica_is_replaced_on_its_own_osd() {
    for (seed, mib, failed) in [(1, 1, 0), (2, 30, 0), (3, 1, 1), (4, 30, 1)] {
        let mut rig = three_of_four(seed);
        rig.lead_all(0, 1);
        rig.fill(pg(0), mib);
        let old = ReplicaId(failed as u64 + 1);
        rig.osd(failed).fail_replica(old, "for this test".to_owned());
        rig.run(ms(100));
        rig.until(LONG, "another leads", |rig| rig.leader(pg(0)) != failed);
        let new = Member { replica: ReplicaId(100), osd: OsdId(failed as u32 + 1) };
        rig.tell(failed, OsdDown::EnsureReplica { created: created(), replica: new.replica });
        rig.run(ms(300));
        let order = MemberChange { add: Some(new), ..replace(old.0) };
        let leader = rig.leader(pg(0));
        rig.tell(leader, OsdDown::ChangeMembers { pg: pg(0), change: order });
        rig.run(ms(100));
        rig.kill(failed);
        rig.run(ms(300));
        rig.start(failed);
        rig.until(LONG, "it serves", |rig| *rig.osd(failed).phase() == Phase::Running);
        let state = |rig: &mut Rig, replica| {
            let key = rig.osd(failed).pgs.by_replica(replica)?;
            Some(matches!(rig.osd(failed).pgs.get(key).state, State::Failed(_)))
        };
        assert_eq!((state(&mut rig, old), state(&mut rig, new.replica)), (Some(true), Some(false)), "both are there");
        rig.write(pg(0), 0, 1, 1);
        let now = change(&mut rig, order);
        assert_eq!(osds(&now).iter().collect::<std::collections::BTreeSet<_>>(), [1, 2, 3].iter().collect());
        assert!(now.voters.contains(&new), "{now:?}");
        rig.tell(failed, OsdDown::DropReplica { pg: pg(0), replica: old, keep: false });
        rig.run(ms(300));
        assert_eq!((state(&mut rig, old), state(&mut rig, new.replica)), (None, Some(false)));
        rig.kill(2);
        rig.write(pg(0), 0, 10, 4);
        assert_eq!(digest(&mut rig, failed), digest(&mut rig, 1 - failed), "seed {seed}");
    }
}

#[test]
fn failed_replica_gives_its_payloads_beside_its_successor() {
    let mut rig = three_of_four(9);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n, 8));
    rig.run(ms(200));
    // The payloads of replica 3 are lost, and only the failed replica 2 has them besides the leader, which is away.
    rig.osd(1).fail_replica(ReplicaId(2), "for this test".to_owned());
    rig.run(ms(100));
    rig.tell(1, OsdDown::EnsureReplica { created: created(), replica: ReplicaId(100) });
    rig.run(ms(300));
    rig.kill(0);
    rig.kill(2);
    spoil_log(&rig, 2, 256 << 10..1 << 20, |header| !is_header(header));
    rig.start(2);
    rig.until(LONG, "all payloads are fetched", |rig| {
        let key = rig.osd(2).pgs.by_replica(ReplicaId(3));
        key.is_some_and(|key| matches!(rig.osd(2).pgs.get(key).state, State::Running(_)))
    });
    assert!(rig.osd(2).engine.stats().refilled_entries > 0);
}

#[test]
fn order_for_a_newer_replica_ends_one_under_repair_and_no_voter_that_runs() {
    let mut rig = three_of_four(11);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n, 8));
    rig.run(ms(200));
    let newer = OsdDown::EnsureReplica { created: created(), replica: ReplicaId(100) };
    rig.tell(1, newer.clone());
    rig.run(ms(300));
    assert!(rig.osd(1).pgs.by_replica(ReplicaId(100)).is_none(), "a voter takes part here");
    assert_eq!(rig.osd(1).quarantined(), []);
    // Its log lacks payloads, and its peers do not answer.
    rig.kill(1);
    spoil_log(&rig, 1, 64 << 10..1 << 20, |page| !is_header(page));
    [0, 2].into_iter().for_each(|i| rig.cut(1, i, true));
    rig.start(1);
    rig.run(ms(500));
    assert_eq!(rig.osd(1).repairing().len(), 1);
    rig.tell(1, newer);
    rig.run(ms(300));
    assert_eq!(rig.osd(1).quarantined(), [(pg(0), "r100 takes its place".to_owned())]);
    let key = rig.osd(1).pgs.by_pg(pg(0)).expect("the new one is there");
    assert_eq!(rig.osd(1).pgs.get(key).identity.replica, ReplicaId(100));
}

#[test]
fn failed_replica_and_its_successor_count_as_one_osd() {
    let mut rig = three_of_four(12);
    rig.lead_all(0, 1);
    rig.osd(1).fail_replica(ReplicaId(2), "for this test".to_owned());
    rig.run(ms(100));
    let new = Member { replica: ReplicaId(100), osd: OsdId(2) };
    rig.tell(1, OsdDown::EnsureReplica { created: created(), replica: new.replica });
    rig.run(ms(300));
    rig.tell(0, OsdDown::ChangeMembers { pg: pg(0), change: MemberChange { add: Some(new), ..replace(2) } });
    rig.until(LONG, "it is a learner", |rig| members(rig).learners == [new]);
    let key = rig.osd(0).pgs.by_pg(pg(0)).expect("it is a member");
    let others: Vec<Member> = rig.osd(0).pgs.get(key).others().collect();
    assert_eq!(others.iter().map(|m| m.osd.0).collect::<Vec<_>>(), [3, 2], "{others:?}");
    assert!(others.contains(&new));
}

/// OSD 2 is down, and its log has lost payloads. Replica 1 leads.
fn lost_payloads(seed: u64) -> Rig {
    let mut rig = three_of_four(seed);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n, 8));
    rig.run(ms(200));
    rig.kill(1);
    spoil_log(&rig, 1, 256 << 10..1 << 20, |page| !is_header(page));
    rig
}

#[test]
fn payloads_come_from_a_member_that_only_meta_names() {
    let mut rig = lost_payloads(13);
    // The log of replica 2 names replicas 1 and 3, which are down; replica 3 has moved to OSD 4.
    ensure_new(&mut rig);
    assert_eq!(osds(&change(&mut rig, replace(3))), [1, 2, 4]);
    [0, 2].into_iter().for_each(|i| rig.kill(i));
    rig.start(1);
    rig.run(ms(10_000));
    assert_eq!(rig.osd(1).repairing().len(), 1, "no member that it knows is up");
    rig.tell(1, OsdDown::Peers(vec![NEW.osd]));
    rig.until(LONG, "all payloads are fetched", |rig| rig.osd(1).repaired().1 == 1);
    assert!(rig.osd(1).engine.stats().refilled_entries > 0);
    rig.write(pg(0), 0, 400, 8);
}

#[test]
fn payload_is_not_given_up_when_all_others_are_gone() {
    let mut rig = lost_payloads(14);
    [1, 3].into_iter().for_each(|replica| drop_old(&mut rig, replica));
    rig.run(ms(500));
    rig.start(1);
    // OSD 4 has no replica of the PG.
    rig.tell(1, OsdDown::Peers(vec![NEW.osd]));
    let complaint = |rig: &mut Rig| rig.osd(1).complaints_for_tools().first().map(|(_, what)| what.clone());
    let is_inconsistent = |rig: &mut Rig| complaint(rig).is_some_and(|what| what.starts_with("inconsistent"));
    rig.until(LONG, "all have answered", is_inconsistent);
    rig.run(ms(60_000));
    assert_eq!((rig.osd(1).repairing().len(), rig.osd(1).quarantined()), (1, Vec::new()), "each may have held it");
}
