//! Sectors of the log that the device cannot read (R11): damage, never a torn tail, never the end of a start.

use super::damage::{header_at, hide, spoil_copy};
use super::failed::{OTHER, R, create_new, found, new, one};
use super::placed;
use super::rig::Rig;
use crate::testing::chunks;
use layout::log::{BATCH_ALIGN, BatchHeader};
use types::ReplicaId;

/// Restarts with one page unreadable for good. Returns for `R`: its last index, whether it is suspect, and the number of
/// its lost payloads.
fn restart(rig: &mut Rig, page: usize) -> (u64, bool, usize) {
    rig.disk.unreadable = Some(page + 512);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    let lost = rig.seen.recovered.iter().find(|r| r.identity.replica == R).expect("it comes back").lost.len();
    let (last, suspect) = found(rig, R);
    (last, suspect, lost)
}

#[test]
fn unreadable_header_page_without_its_copy_is_a_log_gap() {
    let mut rig = new(1);
    one(&mut rig, R);
    let second = one(&mut rig, R);
    one(&mut rig, OTHER);
    assert_eq!(restart(&mut rig, second), (2, false, 0), "the next batch copies its records");
    rig.disk.unreadable = None;
    spoil_copy(&mut rig, second);
    for _ in 0..2 {
        assert_eq!(restart(&mut rig, second), (1, true, 0));
    }
}

#[test]
fn unreadable_payload_page_loses_the_payload_of_a_known_entry() {
    let mut rig = new(2);
    let first = one(&mut rig, R);
    one(&mut rig, OTHER);
    for _ in 0..2 {
        assert_eq!(restart(&mut rig, first + BATCH_ALIGN), (1, false, 1));
    }
}

#[test]
fn unreadable_page_of_the_last_batch_is_no_torn_tail() {
    // No later batch says that the last one was durable; it may have been acknowledged nevertheless.
    for (page, want) in [(0, (1, true, 0)), (BATCH_ALIGN, (2, false, 1))] {
        let mut rig = new(3);
        one(&mut rig, R);
        let last = one(&mut rig, R);
        assert_eq!(restart(&mut rig, last + page), want);
    }
}

#[test]
fn unreadable_page_behind_the_last_batch_may_hide_one() {
    let mut rig = new(4);
    let last = one(&mut rig, R);
    assert_eq!(restart(&mut rig, last + 2 * BATCH_ALIGN), (1, true, 0));
}

#[test]
fn unreadable_page_where_no_batch_can_begin_costs_nothing() {
    let mut rig = new(5);
    let last = one(&mut rig, R);
    assert_eq!(restart(&mut rig, last + 7 * BATCH_ALIGN), (1, false, 0));
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn unreadable_opening_behind_a_nearly_full_segment_may_hide_a_batch() {
    let mut rig = new(7);
    let last = one(&mut rig, R);
    let segment = rig.superblock.segment_bytes as usize;
    let start = rig.superblock.log_start as usize;
    let next = start + (last - start).next_multiple_of(segment);
    // Segments of this log are shorter than the longest batch, so the next batch may always open the next one.
    let (index, suspect, lost) = restart(&mut rig, next);
    assert_eq!((index, lost), (1, 0));
    assert!(suspect, "a batch that did not fit may be there");
}

#[test]
fn unreadable_opening_keeps_the_batches_behind_it() {
    let mut rig = new(6);
    one(&mut rig, R);
    let start = rig.superblock.log_start as usize;
    spoil_copy(&mut rig, start);
    let (last, suspect, lost) = restart(&mut rig, start);
    assert_eq!((last, lost), (1, 0), "created and written behind the opening");
    assert!(suspect || rig.engine.may_have_been_here(ReplicaId(1000)), "others may have been created in it");
}

#[test]
fn unreadable_opening_behind_payloads_at_home_may_hide_a_batch() {
    let mut rig = Rig::with_long_segments(8, true, 2 << 20, placed::config());
    rig.create(R.0);
    let part = || vec![placed::aus(chunks()[0], 0, 2)];
    let mut last = 0;
    while rig.engine.stats().segments_in_use < 2 {
        placed::put(&mut rig, R, part());
        last += 1;
    }
    let second = (rig.superblock.log_start + rig.superblock.segment_bytes) as usize;
    assert!((10..20).contains(&last), "the payloads fill the segment, not the records: {last}");
    let (index, suspect, lost) = restart(&mut rig, second);
    assert_eq!((index, lost), (last - 1, 0));
    assert!(suspect, "the entry that opened the segment was acknowledged");
}

/// Writes to a replica created behind a log gap, and returns it.
fn go_on(rig: &mut Rig) -> ReplicaId {
    let id = create_new(rig);
    one(rig, id);
    id
}

#[test]
fn lost_batch_that_can_be_read_again_hides_none_of_those_behind_it() {
    let mut rig = new(9);
    one(&mut rig, R);
    let last = one(&mut rig, R);
    assert_eq!(restart(&mut rig, last), (1, true, 0));
    let id = go_on(&mut rig);
    rig.disk.unreadable = None;
    for _ in 0..2 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!([found(&rig, R), found(&rig, id)], [(1, true), (1, false)]);
    }
}

#[test]
fn gap_stays_when_the_lost_batch_can_be_read_before_a_mount_has_told_it() {
    let mut rig = new(11);
    one(&mut rig, R);
    let (start, segment) = (rig.superblock.log_start as usize, rig.superblock.segment_bytes as usize);
    let lost = one(&mut rig, R);
    let gone = one(&mut rig, R);
    assert!(gone < start + segment && header_at(&rig, gone).seq == header_at(&rig, lost).seq + 1);
    // The last batch is gone for good, and the one before it cannot be read for now.
    rig.disk.fill(gone, start + segment - gone, 0);
    rig.disk.unreadable = Some(lost + 512);
    rig.disk.power_cut();
    let info = rig.disk.info.clone();
    rig.boot(info);
    let ended = rig.disk.ended;
    let wrote = |rig: &Rig| {
        BatchHeader::decode(
            &rig.disk.bytes()[lost + BATCH_ALIGN..],
            &rig.superblock.log_identity(),
            (lost + BATCH_ALIGN) as u64,
        )
    };
    while wrote(&rig).is_none() {
        rig.turn(1);
        assert!(rig.disk.ended < ended + 200, "the mount writes behind the page");
    }
    rig.disk.unreadable = None;
    rig.disk.kill();
    rig.restart();
    assert!(found(&rig, R).1, "entry 3 was acknowledged, and is lost");
}

#[test]
fn torn_batch_behind_a_gap_at_the_end_is_kept_and_hides_no_later_one() {
    let mut rig = new(10);
    one(&mut rig, R);
    let lost = one(&mut rig, R);
    let torn = one(&mut rig, OTHER);
    hide(&mut rig, lost);
    rig.disk.flip(torn + BATCH_ALIGN + 60);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (0, true)]);
    let id = go_on(&mut rig);
    for _ in 0..2 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!([found(&rig, R), found(&rig, OTHER), found(&rig, id)], [(1, true), (0, true), (1, false)]);
    }
    assert_eq!(rig.engine.stats().segments_in_use, 1, "the log went on behind the signs of the gap");
}
