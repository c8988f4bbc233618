//! What members say of their logs while a replica asks them: an answer is of the moment at which it was given.

use super::doubt::{is_header, spoil_log};
use super::rig::{LONG, Rig, ms, pg};
use bus::LinkId;
use types::{Index, OsdId, ReplicaId, Term};
use wire::{Lack, RepairBody, RepairMsg};

/// Damages every page of OSD `i`'s log that belongs to the last write; its record stays.
fn spoil_last_payload(rig: &Rig, i: usize) {
    let image = rig.world.disk_image(rig.node(i), "device");
    let uniform = |page: u64| {
        let mut bytes = vec![0; 4096];
        image.read(page, &mut bytes);
        bytes.iter().all(|b| *b == bytes[0]).then_some(bytes[0])
    };
    let pages = || (1 << 20..17 << 20).step_by(4096);
    let last = pages().filter_map(uniform).max().expect("something was written");
    let spoiled = pages().filter(|page| uniform(*page) == Some(last)).map(|page| image.flip_bit(page + 100, 3)).count();
    assert_eq!(spoiled, 8, "one write of eight blocks");
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
    (1..5).for_each(|i| rig.cut(0, i, false));
    rig.start(0);
    rig
}

/// Whoever leads without OSD 2 leads without what was acknowledged.
fn nobody_leads_until_it_is_back(mut rig: Rig) {
    for _ in 0..100 {
        rig.run(ms(100));
        let leader = [0, 1, 3, 4].into_iter().find(|i| !rig.osd(*i).leading().is_empty());
        assert_eq!(leader, None, "an acknowledged write is lost");
    }
    rig.start(2);
    rig.until(LONG, "all is well", |rig| rig.is_whole(pg(0)));
}

#[test]
fn a_damaged_entry_that_a_member_got_after_it_was_asked_is_not_cut() {
    nobody_leads_until_it_is_back(an_entry_that_one_got_after_it_was_asked(41, spoil_last_payload));
}

#[test]
fn how_far_a_member_is_counts_from_when_those_that_cannot_tell_have_said_so() {
    let headers = |rig: &Rig, i: usize| spoil_log(rig, i, 64 << 10..1 << 20, is_header);
    nobody_leads_until_it_is_back(an_entry_that_one_got_after_it_was_asked(42, headers));
}

#[test]
fn how_far_a_member_is_counts_from_when_no_leader_of_old_is_left_that_counts_what_was_lost() {
    let mut rig = Rig::new(46, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    // The leader's own disk does not take the entry; OSD 1 does, loses it, and asks OSD 2, which has not got it.
    rig.cut(0, 2, true);
    rig.stick_disk(0, true);
    rig.submit(pg(0), 0, 400, 8);
    rig.run(ms(60));
    rig.kill(1);
    rig.cut(0, 1, true);
    spoil_log(&rig, 1, 64 << 10..1 << 20, is_header);
    rig.start(1);
    rig.run(ms(300));
    // Now it gets it: those two have committed it, and OSD 2 applies it.
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
    rig.until(LONG, "all is well", |rig| rig.is_whole(pg(0)));
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
    (0..2).for_each(|i| rig.kill(i));
    spoil_last_payload(&rig, 0);
    spoil_log(&rig, 1, 64 << 10..1 << 20, is_header);
    (0..2).for_each(|i| rig.cut(i, 2, false));
    (0..2).for_each(|i| rig.start(i));
    let says = |rig: &mut Rig| rig.osd(0).complaints_for_tools().first().map(|(_, what)| what.clone());
    rig.until(ms(20_000), "it says so", |rig| says(rig).is_some_and(|what| what.starts_with("inconsistent")));
    assert!((0..3).all(|i| rig.osd(i).leading().is_empty()));
}

#[test]
fn what_a_member_says_of_one_entry_is_no_answer_to_the_question_how_far_it_is() {
    let mut rig = Rig::new(44, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..40).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(200));
    (0..3).for_each(|i| rig.kill(i));
    spoil_log(&rig, 2, 64 << 10..1 << 20, is_header);
    rig.start(2);
    rig.until(ms(5000), "it waits", |rig| !rig.osd(2).repairing().is_empty());
    let (from, to) = (ReplicaId(1), ReplicaId(3));
    let body = RepairBody::Lack { index: Index(5), term: Term(1), why: Lack::Other };
    let late = RepairMsg { pg: pg(0), from, to, lineage: 1, round: 0, body };
    rig.osd(2).handle_repair(LinkId(u64::MAX), OsdId(1), late);
    assert_eq!(rig.osd(2).complaints_for_tools()[0].1, "repairing", "the first OSD has a group, and can tell");
}
