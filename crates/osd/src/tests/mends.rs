//! Blocks of home that cannot be read, and their repair.

use super::rig::{LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use std::time::Duration;
use types::{ChunkKey, GenerationId, Index, IoBuf, OsdId, SectorRange};
use wire::{MendBody, MendMsg, Message};

const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 0 };

fn digest(rig: &mut Rig, i: usize) -> ToolAnswer {
    let report = rig.osd(i).reports_for_tools().remove(0);
    rig.osd(i).ask_tool(7, ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at: report.applied });
    rig.turn(i);
    let mut answers = Vec::new();
    rig.until(LONG, "an answer", |rig| {
        answers.append(&mut rig.osd(i).take_tool_answers());
        !answers.is_empty()
    });
    answers.remove(0).1
}

#[test]
fn block_of_a_device_that_fails_one_read_is_repaired_without_a_peer() {
    let mut rig = Rig::new(11, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    // The write is destaged, so that a digest reads the device.
    rig.run(Duration::from_secs(15));
    let before = digest(&mut rig, 2);
    assert!(matches!(before, ToolAnswer::Digest { .. }), "{before:?}");
    (0..2).for_each(|i| rig.kill(i));
    rig.fail_reads(2, true);
    assert_ne!(digest(&mut rig, 2), before, "it cannot be read");
    assert!(!rig.osd(2).bad_blocks().is_empty());
    rig.fail_reads(2, false);
    rig.until(ms(1000), "it is read again", |rig| rig.osd(2).bad_blocks().is_empty());
    assert_eq!(digest(&mut rig, 2), before);
}

/// Flips a bit in every written page at home of OSD `i`.
fn rot(rig: &Rig, i: usize) {
    assert_eq!(rot_pages(rig, i, usize::MAX), 8, "what was written is at home");
}

/// Flips a bit in up to `max` written pages at home of OSD `i`. Returns their number.
fn rot_pages(rig: &Rig, i: usize, max: usize) -> usize {
    let image = rig.world.disk_image(rig.node(i), "device");
    let mut spoiled = 0;
    for page in (17 << 20..1 << 30).step_by(4096) {
        let mut bytes = vec![0; 4096];
        image.read(page, &mut bytes);
        if spoiled < max && bytes[0] != 0 && bytes.iter().all(|b| *b == bytes[0]) {
            image.flip_bit(page + 100, 3);
            spoiled += 1;
        }
    }
    spoiled
}

#[test]
fn block_bad_on_all_present_members_waits_for_the_absent_one() {
    let mut rig = Rig::new(14, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(Duration::from_secs(15));
    rig.kill(2);
    (0..2).for_each(|i| rot(&rig, i));
    for _ in 0..20 {
        rig.ask_read(pg(0), 0, 8);
        rig.run(ms(500));
    }
    let says = |rig: &mut Rig| rig.osd(0).complaints_for_tools().iter().any(|(_, what)| what.starts_with("unread"));
    rig.until(ms(1000), "the block is reported as unread", says);
    let report = rig.osd(0).reports_for_tools().remove(0);
    assert!(report.lost.is_empty(), "it is not known to be lost: {report:?}");
    assert!(report.unread.iter().all(|lost| lost.chunk == CHUNK.of_first()), "{report:?}");
    let term = |rig: &mut Rig| rig.osd(1).reports_for_tools().remove(0).term.0;
    let before = term(&mut rig);
    rig.run(Duration::from_secs(50));
    let moves = term(&mut rig) - before;
    assert!(moves <= 1, "the PG went from one to the other {moves} times");
    assert!((0..2).all(|i| rig.osd(i).quarantined().is_empty()), "they are the last that serve");
    rig.write(pg(0), 0, 20, 8);
    rig.start(2);
    let mended = |rig: &mut Rig| (0..2).all(|i| rig.osd(i).bad_blocks().is_empty());
    rig.until(ms(10_000), "it has a good copy", mended);
    assert!(!says(&mut rig), "and the word is taken back");
    rig.until(ms(5000), "it is whole", |rig| rig.is_whole(pg(0)));
}

/// Three OSDs led by the first, with eight blocks at home.
fn at_home(seed: u64) -> Rig {
    blocks_at_home(seed, 8)
}

fn blocks_at_home(seed: u64, blocks: u32) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, blocks);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(Duration::from_secs(15));
    rig
}

fn assert_equal(rig: &mut Rig) {
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    let digests: Vec<ToolAnswer> = (0..3).map(|i| digest(rig, i)).collect();
    assert!(matches!(digests[0], ToolAnswer::Digest { .. }), "{digests:?}");
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
}

#[test]
fn hot_partly_covered_bad_blocks_are_repaired_under_constant_writes() {
    for (seed, rotten) in [(21, [0, 1]), (22, [1, 2]), (23, [2, 0])] {
        let mut rig = at_home(seed);
        rotten.iter().for_each(|i| rot(&rig, *i));
        let mended = |rig: &mut Rig| rotten.iter().map(|i| rig.osd(*i).stats.metrics.blocks_mended.get()).sum::<u64>();
        // Every write covers three sectors of a bad block, never the last three; no two replicas stand still.
        for n in 0..12_000 {
            rig.submit_sectors(pg(0), 0, SectorRange::new(n % 8 * 8 + n / 8 % 3, 3));
            rig.run(Duration::from_micros(400));
            if n % 1000 == 500 {
                rig.ask_read(pg(0), 0, 8);
            }
            if n == 4000 {
                // A follower meets its blocks when it leads.
                rig.lead_all(rotten[1], 1);
            }
            if n == 7000 {
                rig.lead_all(rotten[0], 1);
            }
            let serves =
                |rig: &mut Rig, i: usize| rig.osd(i).repairing().is_empty() && rig.osd(i).quarantined().is_empty();
            assert!((0..3).all(|i| serves(&mut rig, i)), "seed {seed}, write {n}: no replica fails");
        }
        assert_eq!(mended(&mut rig), 16, "seed {seed}");
        assert!((0..3).all(|i| rig.osd(i).bad_blocks().is_empty()), "seed {seed}");
        rig.run(Duration::from_secs(15));
        assert_equal(&mut rig);
    }
}

#[test]
fn first_bad_block_that_is_found_has_its_neighbours_repaired_too() {
    let mut rig = at_home(24);
    rot(&rig, 0);
    rig.ask_read(pg(0), 3, 1);
    rig.until(ms(1000), "all are repaired", |rig| rig.osd(0).stats.metrics.blocks_mended.get() == 8);
    rig.run(ms(1));
    assert_eq!(rig.osd(0).bad_blocks(), []);
    assert_equal(&mut rig);
}

#[test]
fn destroyed_window_is_repaired_with_one_query() {
    let mut rig = blocks_at_home(28, 128);
    assert_eq!(rot_pages(&rig, 0, usize::MAX), 128, "512 KiB are at home");
    rig.ask_read(pg(0), 60, 1);
    rig.until(ms(100), "all are repaired", |rig| rig.osd(0).stats.metrics.blocks_mended.get() == 128);
    rig.run(ms(1));
    assert_eq!(rig.osd(0).bad_blocks(), []);
    assert_eq!(rig.osd(0).recovery.blocks.queries_for_tools(), 1);
    assert_equal(&mut rig);
}

#[test]
fn bad_block_of_a_member_hides_no_good_ones_of_the_run() {
    let mut rig = blocks_at_home(29, 128);
    assert_eq!(rot_pages(&rig, 0, usize::MAX), 128, "512 KiB are at home");
    assert_eq!(rot_pages(&rig, 1, 1), 1);
    rig.kill(2);
    rig.ask_read(pg(0), 60, 1);
    rig.until(ms(2000), "one is left", |rig| rig.osd(0).stats.metrics.blocks_mended.get() == 127);
    rig.run(ms(1));
    let bad = rig.osd(0).bad_blocks();
    assert!(matches!(bad[..], [(_, CHUNK, 0, false)]), "{bad:?}");
    rig.start(2);
    let is_whole = |rig: &mut Rig| (0..3).all(|i| rig.osd(i).bad_blocks().is_empty());
    rig.until(ms(5000), "the last member has it", is_whole);
    assert_equal(&mut rig);
}

#[test]
fn queries_of_a_peer_that_takes_no_answers_are_dropped() {
    let mut rig = at_home(30);
    let [peer, me] = [0, 1].map(|i| rig.osd(i).reports_for_tools()[0].replica);
    let link = rig.osd(1).bus.link_to(OsdId(1)).expect("both are up");
    let mend = |(from, to), body| MendMsg { pg: pg(0), from, to, id: 1, chunk: CHUNK, block: 0, count: 128, body };
    let reads_after_query = |rig: &mut Rig| {
        rig.osd(1).handle_mend(link, OsdId(1), mend((peer, me), MendBody::Ask { hash: 0, older: IoBuf::EMPTY }));
        rig.osd(1).reads.len()
    };
    assert_eq!(reads_after_query(&mut rig), 1);
    let (crcs, payload) = (vec![0; 128], IoBuf::zeros(512 << 10));
    let answer = mend((me, peer), MendBody::Blocks { low: Index(1), high: Index(1), crcs: crcs.into(), payload });
    for _ in 0..9 {
        rig.osd(1).bus.send(link, Message::Mend(answer.clone()));
    }
    assert_eq!(reads_after_query(&mut rig), 1, "more than 4 MiB wait for the peer");
}

#[test]
fn more_bad_blocks_than_are_tracked_cost_no_replica() {
    let mut rig = Rig::new(25, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.fill(pg(0), 20);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(Duration::from_secs(15));
    rig.fail_reads(0, true);
    // The blocks are found faster than they are repaired.
    (1..3).for_each(|i| rig.slow_reads(i, 10_000));
    for part in 0..40 {
        rig.give_read_of(pg(0), part / 32, part % 32 * 128, 128);
        rig.run(ms(1));
    }
    rig.until(ms(150), "more blocks are bad than are tracked", |rig| rig.osd(0).bad_blocks().len() == 4096);
    rig.fail_reads(0, false);
    (1..3).for_each(|i| rig.slow_reads(i, 1));
    rig.until(LONG, "all are repaired", |rig| (0..3).all(|i| rig.osd(i).bad_blocks().is_empty()));
    assert!((0..3).all(|i| rig.osd(i).quarantined().is_empty() && rig.osd(i).repairing().is_empty()));
    rig.run(Duration::from_secs(15));
    assert_equal(&mut rig);
}

#[test]
fn lost_partly_covered_block_costs_no_replica_and_an_overwrite_ends_it() {
    let mut rig = at_home(26);
    (0..3).for_each(|i| rot(&rig, i));
    for n in 0..8 {
        rig.submit_sectors(pg(0), 0, SectorRange::new(n * 8 + 2, 3));
    }
    // A round meets the blocks.
    rig.run(Duration::from_secs(60));
    for i in 0..3 {
        assert!(rig.osd(i).quarantined().is_empty() && rig.osd(i).repairing().is_empty(), "osd {i}");
        let complaint = rig.osd(i).complaints_for_tools();
        assert!(complaint.iter().any(|(_, what)| what.starts_with("inconsistent")), "osd {i}: {complaint:?}");
    }
    rig.write(pg(0), 0, 0, 8);
    rig.until(ms(10_000), "a write repairs it", |rig| (0..3).all(|i| rig.osd(i).bad_blocks().is_empty()));
    assert_equal(&mut rig);
}

#[test]
fn replica_whose_bad_block_keeps_the_log_full_fails() {
    let mut rig = at_home(27);
    rot(&rig, 2);
    (0..2).for_each(|i| rig.osd(i).recovery.blocks.busy_for_tools());
    rig.submit_sectors(pg(0), 0, SectorRange::new(2, 3));
    rig.run(Duration::from_secs(60));
    let failed = |rig: &mut Rig| !rig.osd(2).quarantined().is_empty();
    assert!(!failed(&mut rig) && !rig.osd(2).bad_blocks().is_empty(), "the log has room: the replica waits");
    for n in 0..400 {
        rig.submit(pg(0), 1 + n / 32 % 8, n % 32 * 128, 128);
        rig.run(ms(50));
        if failed(&mut rig) {
            break;
        }
    }
    assert!(failed(&mut rig), "{:?}", rig.osd(2).engine.pressure());
    rig.until(ms(5000), "its log has room", |rig| rig.osd(2).engine.pressure().max() < 1.0);
    assert!(rig.osd(2).bad_blocks().is_empty() && rig.osd(2).reports_for_tools().is_empty());
    let report = rig.osd(2).changed_reports().remove(0);
    assert!(report.quarantined && report.end.is_none(), "its home lacks a block: {report:?}");
    rig.write(pg(0), 0, 0, 8);
}

#[test]
fn no_replica_fails_for_a_bad_block_while_another_member_has_failed() {
    let mut rig = Rig::new(16, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(Duration::from_secs(15));
    (0..2).for_each(|i| rot(&rig, i));
    let replica = rig.osd(2).reports_for_tools()[0].replica;
    rig.osd(2).fail_replica(replica, "for this test".into());
    for _ in 0..80 {
        rig.ask_read(pg(0), 0, 8);
        rig.run(ms(500));
    }
    let serves = |rig: &mut Rig, i: usize| !rig.osd(i).reports_for_tools().is_empty();
    assert!((0..2).all(|i| serves(&mut rig, i)), "they are the last that serve: the PG would be down");
    let says =
        |rig: &mut Rig, i: usize| rig.osd(i).complaints_for_tools().iter().any(|(_, what)| what.starts_with("unread"));
    assert!((0..2).any(|i| says(&mut rig, i)), "and it is said");
    rig.write(pg(0), 0, 0, 8);
    let mended = |rig: &mut Rig| (0..2).all(|i| rig.osd(i).bad_blocks().is_empty());
    rig.until(ms(10_000), "a write mends it", mended);
}

#[test]
fn only_member_of_a_pg_goes_on_with_a_bad_block_until_a_write_mends_it() {
    let mut rig = Rig::new(17, [16; 1]);
    rig.make_pgs(1);
    rig.write(pg(0), 0, 0, 8);
    rig.run(Duration::from_secs(15));
    rot(&rig, 0);
    rig.ask_read(pg(0), 0, 8);
    rig.run(ms(2000));
    assert!(!rig.osd(0).reports_for_tools().is_empty(), "the PG keeps its last replica");
    let bad = rig.osd(0).bad_blocks();
    assert!(bad.len() == 8 && bad.iter().all(|(.., is_lost)| *is_lost), "{bad:?}");
    let report = rig.osd(0).changed_reports().remove(0);
    assert!(!report.quarantined && !report.lost.is_empty(), "{report:?}");
    rig.write(pg(0), 0, 0, 8);
    rig.until(ms(10_000), "a write mends it", |rig| rig.osd(0).bad_blocks().is_empty());
}
