//! A store that has lost records of its log.

use super::rig::{LONG, Rig, ms, pg};
use crate::Phase;
use types::control::{OsdDown, Watermarks};
use types::map::{Member, PgMap};
use types::{Epoch, OsdId, ReplicaId};

#[test]
fn replica_made_on_a_store_that_has_lost_records_fails_unless_its_id_is_new() {
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
        let map = PgMap { pg: pg(n), lineage: 1, conf_epoch: Epoch(1), members: (0..3).map(member).collect() };
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

#[test]
fn a_store_that_lost_most_of_its_log_is_whole_again_from_its_peers() {
    for seed in 20..26 {
        let mut rig = loaded(seed);
        rig.kill(2);
        spoil_log(&rig, 2, 64 << 10..1 << 20, is_header);
        rig.start(2);
        rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)) && rig.is_whole(pg(1)));
        assert_eq!(rig.osd(2).quarantined(), []);
        assert!(rig.osd(2).lost_records().is_some() && rig.osd(2).repaired().1 == 2, "both were in doubt");
        assert_eq!(rig.osd(2).repairing(), []);
        // It votes again: with the leader gone it helps the other one, or leads.
        rig.kill(0);
        let leader = rig.leader(pg(0));
        assert_ne!(leader, 0);
        rig.write(pg(0), 0, 50, 8);
    }
}

#[test]
fn with_two_of_three_in_doubt_nobody_leads_and_nobody_is_given_up() {
    let mut rig = loaded(30);
    (0..3).for_each(|i| rig.kill(i));
    (1..3).for_each(|i| spoil_log(&rig, i, 64 << 10..1 << 20, is_header));
    (0..3).for_each(|i| rig.start(i));
    rig.run(ms(10_000));
    for i in 0..3 {
        assert!(rig.osd(i).leading().is_empty(), "an acknowledged write may be lost by any election");
        assert_eq!(rig.osd(i).quarantined(), []);
    }
    assert_eq!([1, 2].map(|i| rig.osd(i).repairing().len()), [2, 2]);
    // Entries that those two alone had may be in no log: both say so, of both PGs, and from where on.
    for i in [1, 2] {
        let complaints = rig.osd(i).complaints_for_tools();
        assert_eq!(complaints.len(), 2);
        for (_, what) in &complaints {
            assert!(what.starts_with("inconsistent: entries from "), "{what}");
        }
    }
    assert_eq!(rig.osd(0).complaints_for_tools(), []);
    let reported = |r: &types::control::PgReport| r.repairing && r.lost_from.is_some();
    let counts = [1, 2].map(|i| rig.osd(i).changed_reports().iter().filter(|r| reported(r)).count());
    assert_eq!(counts, [2, 2], "meta hears the same");
}

#[test]
fn a_replica_whose_damaged_entries_nobody_keeps_any_more_is_cut_back_and_streamed_to() {
    let mut rig = loaded(31);
    rig.kill(2);
    spoil_log(&rig, 2, 64 << 10..16 << 20, |page| !is_header(page));
    rig.fill(pg(0), 40);
    rig.start(2);
    rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)) && rig.is_whole(pg(1)));
    assert_eq!(rig.osd(2).quarantined(), []);
    assert_eq!(rig.osd(2).lost_records(), None);
    assert!(rig.osd(2).repaired().1 > 0, "its doubt is over");
    assert_eq!(rig.osd(2).repairing(), []);
}

#[test]
fn what_a_leader_has_not_made_durable_need_not_be_reached() {
    let mut rig = Rig::new(45, [16; 2]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "both have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    rig.kill(1);
    spoil_log(&rig, 1, 64 << 10..1 << 20, is_header);
    // An entry that dies with the leader's process: it stands in no log, and nobody was told that it does.
    rig.stick_disk(0, true);
    rig.submit(pg(0), 0, 400, 8);
    rig.start(1);
    rig.until(ms(800), "the leader has answered", |rig| {
        rig.osd(1)
            .complaints_for_tools()
            .iter()
            .any(|(_, what)| what == "repairing: suspect, catching up without a vote")
    });
    rig.kill(0);
    rig.stick_disk(0, false);
    rig.start(0);
    rig.leader(pg(0));
    rig.until(LONG, "both are whole", |rig| rig.is_whole(pg(0)) && rig.osd(1).repairing().is_empty());
}
