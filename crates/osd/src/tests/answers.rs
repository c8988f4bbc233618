//! Answers of members to a replica that lacks payloads: each is true of its moment only. And entries whose last copies are on
//! failed replicas.

use super::failures::lose_records;
use super::rig::{LONG, Rig, ms, pg};

/// Damages every page of OSD `i`'s log that belongs to the last write; its record stays. Returns the offsets of the pages.
pub(super) fn spoil_last_payload(rig: &Rig, i: usize) -> Vec<u64> {
    let image = rig.world.disk_image(rig.node(i), "device");
    let uniform = |page: u64| {
        let mut bytes = vec![0; 4096];
        image.read(page, &mut bytes);
        bytes.iter().all(|b| *b == bytes[0]).then_some(bytes[0])
    };
    let pages = || (1 << 20..17 << 20).step_by(4096);
    let last = pages().filter_map(uniform).max().expect("something was written");
    let spoiled: Vec<u64> = pages().filter(|page| uniform(*page) == Some(last)).collect();
    spoiled.iter().for_each(|page| image.flip_bit(page + 100, 3));
    assert_eq!(spoiled.len(), 8, "one write of eight blocks");
    spoiled
}

/// OSD 0 leads a PG of five and OSD 1 alone acknowledges its last entry, while the others are cut off. OSD 1 starts
/// again with what `damage` leaves of its log, asks the others, and reaches all but its leader. Then OSD 2 gets the
/// entry, too, and the write is acknowledged; it dies at once, as its leader does, which loses what `damage` takes and
/// comes back.
fn an_entry_that_one_got_after_it_was_asked(seed: u64, damage: impl Fn(&Rig, usize)) -> Rig {
    let mut rig = Rig::new(seed, [16; 5]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    (2..5).for_each(|i| rig.cut(0, i, true));
    let before = rig.answered(0).0;
    rig.submit(pg(0), 0, 400, 8);
    rig.run(ms(60));
    rig.kill(1);
    rig.cut(0, 1, true);
    damage(&rig, 1);
    rig.start(1);
    rig.run(ms(300));
    assert_eq!(rig.answered(0).0, before, "two of five have it");
    rig.cut(0, 2, false);
    rig.until(ms(300), "it is acknowledged", |rig| rig.answered(0).0 > before);
    rig.kill(0);
    rig.kill(2);
    damage(&rig, 0);
    // A restart ends their connections to OSD 0, and the bytes that are under way on them are lost.
    (3..5).for_each(|i| rig.kill(i));
    (3..5).for_each(|i| rig.start(i));
    (1..5).for_each(|i| rig.cut(0, i, false));
    rig.start(0);
    rig
}

/// A leader without OSD 2 leads without what was acknowledged. Returns the number of failed replicas, which are no loss: with
/// OSD 2 the others are a majority.
fn no_leader_until_it_is_back(mut rig: Rig) -> usize {
    for _ in 0..100 {
        rig.run(ms(100));
        let leader = [0, 1, 3, 4].into_iter().find(|i| !rig.osd(*i).leading().is_empty());
        assert_eq!(leader, None, "an acknowledged write is lost");
    }
    rig.start(2);
    rig.write(pg(0), 0, 500, 8);
    let failed: Vec<usize> = rig.all().filter(|i| !rig.osd(*i).quarantined().is_empty()).collect();
    let applied = |rig: &mut Rig, i: usize| rig.osd(i).reports_for_tools()[0].applied;
    let sound: Vec<usize> = rig.all().filter(|i| !failed.contains(i)).collect();
    rig.until(LONG, "all is well", |rig| {
        let repaired = sound.iter().all(|i| rig.osd(*i).repairing().is_empty());
        repaired && sound.iter().all(|i| applied(rig, *i) == applied(rig, 2))
    });
    failed.len()
}

#[test]
fn damaged_entry_that_a_member_got_after_it_was_asked_is_not_lost() {
    // The replica on OSD 1 believes the first answer of OSD 2. It fails, so that it cannot vote for a log without the entry.
    let failed = no_leader_until_it_is_back(an_entry_that_one_got_after_it_was_asked(41, |rig, i| {
        spoil_last_payload(rig, i);
    }));
    assert_eq!(failed, 1);
}

#[test]
fn failed_replicas_that_held_a_committed_entry_vote_for_no_log_without_it() {
    let failed = no_leader_until_it_is_back(an_entry_that_one_got_after_it_was_asked(42, lose_records));
    assert_eq!(failed, 2);
}

#[test]
fn acknowledgement_of_an_earlier_life_counts_and_the_failed_replica_does_not_vote() {
    let mut rig = Rig::new(46, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    // The leader's own disk does not take the entry; OSD 1 does, and loses it.
    rig.cut(0, 2, true);
    rig.stick_disk(0, true);
    rig.submit(pg(0), 0, 400, 8);
    rig.run(ms(60));
    rig.kill(1);
    rig.cut(0, 1, true);
    lose_records(&rig, 1);
    rig.start(1);
    rig.run(ms(300));
    // Now OSD 2 gets it: it counts as committed, and OSD 2 applies it.
    let applied = |rig: &mut Rig| rig.osd(2).reports_for_tools().remove(0).applied;
    let before = applied(&mut rig);
    rig.cut(0, 2, false);
    rig.until(ms(400), "it is applied", |rig| applied(rig) > before);
    rig.kill(0);
    rig.kill(2);
    rig.stick_disk(0, false);
    rig.cut(0, 1, false);
    rig.start(0);
    for _ in 0..50 {
        rig.run(ms(100));
        assert!((0..2).all(|i| rig.osd(i).leading().is_empty()), "they put another entry where one is applied");
    }
    rig.start(2);
    rig.write(pg(0), 0, 408, 8);
    assert_eq!((0..3).map(|i| rig.osd(i).quarantined().len()).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn an_entry_whose_last_copies_are_a_bad_payload_and_a_lost_record_is_inconsistent() {
    let mut rig = Rig::new(43, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    (0..2).for_each(|i| rig.cut(i, 2, true));
    rig.write(pg(0), 0, 400, 8);
    rig.run(ms(60));
    (0..3).for_each(|i| rig.kill(i));
    spoil_last_payload(&rig, 0);
    lose_records(&rig, 1);
    (0..2).for_each(|i| rig.cut(i, 2, false));
    (0..3).for_each(|i| rig.start(i));
    let says = |rig: &mut Rig| rig.osd(0).complaints_for_tools().first().map(|(_, what)| what.clone());
    rig.until(ms(20_000), "it says so", |rig| says(rig).is_some_and(|what| what.starts_with("inconsistent")));
    rig.run(ms(20_000));
    assert!(says(&mut rig).is_some_and(|what| what.starts_with("inconsistent")), "it is held");
    assert!((0..3).all(|i| rig.osd(i).leading().is_empty()));
}
