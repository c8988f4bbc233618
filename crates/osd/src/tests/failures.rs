//! Replicas that may lack a part of what they acknowledged: they fail, and are replaced (ADR 0023).

use super::answers::spoil_last_payload;
use super::rig::{EPOCH, LONG, Rig, ms, pg};
use crate::Phase;
use crate::pgs::State;
use types::control::{OsdDown, PgReport, Watermarks};
use types::map::{Member, MemberChange, PgMap};
use types::{Epoch, OsdId, ReplicaId};

#[test]
fn replica_made_on_a_store_with_lost_records_fails_unless_its_id_is_new() {
    let mut rig = Rig::new(12, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..20).for_each(|n| rig.write(pg(0), 0, n, 8));
    rig.run(ms(200));
    rig.kill(2);
    // Headers and payloads of some batches in the middle.
    let log = 1 << 20;
    rig.spoil(2, log + (64 << 10)..log + (128 << 10));
    rig.start(2);
    rig.until(ms(5000), "it serves what it can", |rig| *rig.osd(2).phase() == Phase::Running);
    let make = |rig: &mut Rig, n: u32, first: u64| {
        let member = |i: u64| Member { replica: ReplicaId(first + i), osd: OsdId(i as u32 + 1) };
        let map = PgMap { pg: pg(n), conf_epoch: Epoch(1), members: (0..3).map(member).collect() };
        (0..3).for_each(|i| rig.ensure(i, &map));
        rig.run(ms(2000));
    };
    let state = |rig: &mut Rig, n: u32| {
        let all = rig.osd(2).quarantined();
        all.into_iter().find(|(id, _)| *id == pg(n)).map(|(_, reason)| reason)
    };
    make(&mut rig, 7, 100);
    assert_eq!(state(&mut rig, 7).as_deref(), Some(engine::CREATE_LOST), "it may have been here, and have voted");
    let told = Watermarks { next_replica: 200, ..Watermarks::default() };
    rig.tell(2, OsdDown::Remember(told));
    make(&mut rig, 8, 110);
    make(&mut rig, 9, 200);
    assert!(state(&mut rig, 8).is_some() && state(&mut rig, 9).is_none(), "ids from 200 on were never here");
    rig.kill(0);
    rig.run(ms(3000));
    let leads = |rig: &mut Rig, n: u32| (1..3).any(|i| rig.osd(i).leading().contains_key(&pg(n)));
    assert!(leads(&mut rig, 9), "the new replica votes");
    assert!(!leads(&mut rig, 7) && !leads(&mut rig, 8), "a failed one does not");
}

/// A page of the log begins a batch.
pub(super) fn is_header(page: &[u8]) -> bool {
    page.starts_with(b"BSLTBTCH")
}

/// Damages what `which` chooses (by its first bytes) of the pages in a part of OSD `i`'s log.
pub(super) fn spoil_log(rig: &Rig, i: usize, part: std::ops::Range<u64>, which: impl Fn(&[u8]) -> bool) {
    let image = rig.world.disk_image(rig.node(i), "device");
    let log = 1 << 20;
    for page in (log + part.start..log + part.end).step_by(4096) {
        let mut bytes = vec![0; 4096];
        image.read(page, &mut bytes);
        if bytes.iter().any(|b| *b != 0) && which(&bytes) {
            image.flip_bit(page + 100, 3);
        }
    }
}

/// Damages most batch headers of OSD `i`'s log.
pub(super) fn lose_records(rig: &Rig, i: usize) {
    spoil_log(rig, i, 64 << 10..1 << 20, is_header);
}

/// Three OSDs with two PGs, which the first one leads.
fn loaded(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(2);
    rig.lead_all(0, 2);
    for n in 0..20 {
        rig.write(pg(0), 0, n, 8);
        rig.write(pg(1), 0, n, 8);
    }
    rig.run(ms(200));
    rig
}

fn restart(rig: &mut Rig, i: usize) {
    rig.kill(i);
    rig.start(i);
    rig.until(LONG, "it serves what it can", |rig| *rig.osd(i).phase() == Phase::Running);
}

/// Returns the reports of the failed replicas of OSD `i`, as meta gets them.
fn failed(rig: &mut Rig, i: usize) -> Vec<PgReport> {
    let osd = rig.osd(i);
    for key in osd.pgs.keys() {
        osd.pgs.get_mut(key).reported = None;
    }
    osd.changed_reports().into_iter().filter(|report| report.quarantined).collect()
}

/// Does what meta does for a failed replica of PG 0.
fn replace(rig: &mut Rig, i: usize, old: ReplicaId) {
    let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
    let created = PgMap { pg: pg(0), conf_epoch: EPOCH, members: (1..=3).map(member).collect() };
    let new = Member { replica: ReplicaId(100), osd: OsdId(i as u32 + 1) };
    rig.tell(i, OsdDown::EnsureReplica { created, replica: new.replica });
    rig.run(ms(300));
    let change = MemberChange { expected: EPOCH, add: Some(new), remove: Some(old), cancel: false };
    for _ in 0..300 {
        let leader = rig.leader(pg(0));
        rig.tell(leader, OsdDown::ChangeMembers { pg: pg(0), change });
        rig.run(ms(100));
        let leader = rig.leader(pg(0));
        let report = rig.osd(leader).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
        let members = report.leading.expect("it leads").members;
        if members.is_settled() && members.voters.contains(&new) {
            rig.tell(i, OsdDown::DropReplica { pg: pg(0), replica: old, keep: false });
            return;
        }
    }
    panic!("the change does not end");
}

#[test]
fn replica_with_a_log_gap_has_failed_for_good_and_is_replaced() {
    for seed in 20..26 {
        let mut rig = loaded(seed);
        rig.kill(2);
        lose_records(&rig, 2);
        rig.start(2);
        rig.until(LONG, "it serves what it can", |rig| *rig.osd(2).phase() == Phase::Running);
        let before = failed(&mut rig, 2);
        assert_eq!(before.len(), 2, "{:?}", rig.osd(2).complaints_for_tools());
        assert!(before.iter().all(|report| report.end.is_some()), "a part of the log is left: {before:?}");
        for _ in 0..2 {
            rig.write(pg(0), 0, 50, 8);
            rig.run(ms(2000));
            assert!(rig.osd(2).reports_for_tools().is_empty(), "no failed replica has a group");
            assert_eq!(failed(&mut rig, 2), before);
            restart(&mut rig, 2);
        }
        replace(&mut rig, 2, ReplicaId(3));
        rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
        // The new replica votes: with the leader gone it helps the other one, or leads.
        rig.kill(0);
        assert_ne!(rig.leader(pg(0)), 0);
        rig.write(pg(0), 0, 50, 8);
        assert!(rig.osd(1).leading().keys().chain(rig.osd(2).leading().keys()).all(|id| *id == pg(0)));
    }
}

#[test]
fn pg_with_two_failed_members_of_three_is_down_and_gives_nothing_up() {
    let mut rig = loaded(30);
    (0..3).for_each(|i| rig.kill(i));
    (1..3).for_each(|i| lose_records(&rig, i));
    (0..3).for_each(|i| rig.start(i));
    rig.run(ms(1000));
    let before = [1, 2].map(|i| failed(&mut rig, i));
    assert!(before.iter().all(|reports| reports.len() == 2 && reports.iter().all(|r| r.end.is_some())), "{before:?}");
    for _ in 0..2 {
        rig.run(ms(10_000));
        assert!((0..3).all(|i| rig.osd(i).leading().is_empty()), "any election may lose an acknowledged write");
        assert_eq!([1, 2].map(|i| failed(&mut rig, i)), before);
        assert!(rig.osd(0).quarantined().is_empty() && rig.osd(0).complaints_for_tools().is_empty());
        (1..3).for_each(|i| restart(&mut rig, i));
    }
}

#[test]
fn replica_whose_lost_payload_is_freed_elsewhere_keeps_its_log_before_it() {
    let mut rig = loaded(31);
    rig.kill(2);
    spoil_log(&rig, 2, 64 << 10..16 << 20, |page| !is_header(page));
    rig.fill(pg(0), 40);
    rig.start(2);
    rig.until(LONG, "both have failed", |rig| rig.osd(2).quarantined().len() == 2);
    let reports = failed(&mut rig, 2);
    assert!(reports.iter().all(|report| report.end.is_some_and(|(_, end)| end.0 > 0)), "{reports:?}");
    assert_eq!(rig.osd(2).lost_records(), None);
    assert_eq!(rig.osd(2).repairing(), []);
    let reason = rig.osd(2).quarantined().remove(0).1;
    assert!(reason.starts_with("the payload of log entry"), "{reason}");
    restart(&mut rig, 2);
    assert_eq!(failed(&mut rig, 2), reports);
    replace(&mut rig, 2, ReplicaId(3));
    rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
    assert_eq!(rig.osd(2).quarantined().len(), 1, "the other PG is not concerned");
}

#[test]
fn payload_that_no_member_has_is_waited_for_until_a_copy_comes_back() {
    let mut rig = Rig::new(32, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    (0..2).for_each(|i| rig.cut(i, 2, true));
    rig.write(pg(0), 0, 400, 8);
    rig.run(ms(60));
    (0..3).for_each(|i| rig.kill(i));
    let spoiled = [0, 1].map(|i| spoil_last_payload(&rig, i));
    (0..2).for_each(|i| rig.cut(i, 2, false));
    (0..3).for_each(|i| rig.start(i));
    let says = |rig: &mut Rig, i: usize| rig.osd(i).complaints_for_tools().first().map(|(_, what)| what.clone());
    let is_inconsistent =
        |rig: &mut Rig| (0..2).all(|i| says(rig, i).is_some_and(|what| what.starts_with("inconsistent")));
    rig.until(ms(5000), "both say so", is_inconsistent);
    rig.run(ms(20_000));
    assert!(is_inconsistent(&mut rig) && (0..3).all(|i| rig.osd(i).leading().is_empty()));
    assert!((0..3).all(|i| rig.osd(i).quarantined().is_empty()), "the write was acknowledged: nothing is given up");
    // The bytes of one of them can be read again.
    rig.kill(1);
    let image = rig.world.disk_image(rig.node(1), "device");
    spoiled[1].iter().for_each(|page| image.flip_bit(page + 100, 3));
    rig.start(1);
    rig.until(ms(10_000), "the other one has asked again", |rig| rig.osd(0).repairing().is_empty());
    rig.until(LONG, "all is well", |rig| rig.is_whole(pg(0)));
    assert!((0..3).all(|i| rig.osd(i).complaints_for_tools().is_empty()));
}

#[test]
fn group_whose_replica_fails_in_a_turn_is_not_polled_any_more() {
    for leads in [true, false] {
        let mut rig = Rig::new(33, [16; 3]);
        rig.make_pgs(1);
        rig.lead_all(0, 1);
        rig.write(pg(0), 0, 0, 8);
        let i = if leads { 0 } else { 1 };
        // The engine finds the damage, and the group has work in the same turn.
        rig.osd(i).engine.fail(ReplicaId(i as u64 + 1), "for this test".to_owned());
        let before = rig.answered(0);
        rig.submit(pg(0), 0, 8, 8);
        rig.run(ms(500));
        let after = rig.answered(0);
        let (done, refused) = (after.0 - before.0, after.1 - before.1);
        assert_eq!((done, refused), if leads { (0, 1) } else { (1, 0) }, "the request is answered");
        assert_eq!(rig.osd(i).quarantined().len(), 1);
        assert!(rig.osd(i).reports_for_tools().is_empty());
        let leader = rig.leader(pg(0));
        assert_ne!(leader, i);
        rig.write(pg(0), 0, 16, 8);
    }
}

#[test]
fn replica_that_fails_in_a_turn_acknowledges_no_batch_of_that_turn() {
    for fails in [false, true] {
        let mut rig = Rig::new(35, [16; 3]);
        rig.make_pgs(1);
        rig.lead_all(0, 1);
        rig.write(pg(0), 0, 0, 8);
        rig.stick_disk(1, true);
        rig.submit(pg(0), 0, 8, 8);
        rig.run(ms(5));
        let osd = rig.osd(1);
        let key = osd.pgs.by_replica(ReplicaId(2)).expect("it is here");
        let ticket = osd.pgs.group(key).expect("it runs").newest_ticket();
        let waiting = |osd: &crate::node::Osd| osd.bus.queued().sum::<usize>();
        assert_eq!(waiting(osd), 0);
        // The batch is durable, and then a repair finds the damage; the engine's word of that comes later.
        if fails {
            osd.engine.fail(ReplicaId(2), "for this test".to_owned());
        }
        osd.persisted(ReplicaId(2), ticket, osd.now);
        assert_eq!(waiting(osd) == 0, fails, "{} B wait", waiting(osd));
    }
}

#[test]
fn replica_that_fails_while_it_is_created_or_installed_gets_no_group() {
    let mut rig = Rig::new(34, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    let member = |n: u64| Member { replica: ReplicaId(70 + n), osd: OsdId(n as u32) };
    let map = PgMap { pg: pg(7), conf_epoch: EPOCH, members: (1..=3).map(member).collect() };
    let state = |rig: &mut Rig, replica| {
        let key = rig.osd(2).pgs.by_replica(replica).expect("it is here");
        std::mem::discriminant(&rig.osd(2).pgs.get(key).state)
    };
    rig.stick_disk(2, true);
    rig.ensure(2, &map);
    assert_eq!(state(&mut rig, ReplicaId(73)), std::mem::discriminant(&State::Creating));
    rig.osd(2).fail_replica(ReplicaId(73), "for this test".to_owned());
    rig.stick_disk(2, false);
    rig.run(ms(500));
    assert_eq!(rig.osd(2).quarantined(), [(pg(7), "for this test".to_owned())]);
    rig.kill(2);
    rig.fill(pg(0), 40);
    rig.start(2);
    rig.until(LONG, "it is installed", |rig| rig.osd(2).is_installing_for_tools());
    rig.osd(2).engine.fail(ReplicaId(3), "for this test".to_owned());
    rig.run(ms(5000));
    assert_eq!(rig.osd(2).quarantined().len(), 2);
    assert!(rig.osd(2).reports_for_tools().is_empty());
    restart(&mut rig, 2);
    assert_eq!(rig.osd(2).quarantined().len(), 2);
}
