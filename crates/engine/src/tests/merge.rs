//! Merges in the whole engine: over power cuts, beside writes, reads, repairs and other entries.

use super::lineage::{R1, apply_all, branch, check_space, destage, finish_merges, key, order, quiet, write, zero};
use super::rig::Rig;
use crate::testing::{Order, SECTORS};
use env::Op;
use std::time::Duration;
use types::store::{BlockCopy, Effect};
use types::{GenerationId, Index, IoBuf, SectorRange, VolumeId, crc32c};

fn remove(rig: &mut Rig, generation: u64) {
    order(rig, Order::Remove(GenerationId(generation)));
}

/// Makes a plan, and reads what it needs. The rounds of these stores begin on demand.
fn prepare(rig: &mut Rig) {
    rig.engine.hold_merges(false);
    for _ in 0..40 {
        rig.turn(16);
        if rig.engine.destage.merges.is_ready() {
            return;
        }
    }
    panic!("nothing is merged: {:?}", rig.engine.destage.merges);
}

/// Begins a store that merges nothing until [`prepare`].
fn held(seed: u64) -> Rig {
    let mut rig = quiet(seed);
    rig.engine.hold_merges(true);
    rig
}

/// Begins a store with a removed snapshot of three AUs: one to move with a mark, one to copy, one that is hidden in part.
fn removed(seed: u64) -> Rig {
    let mut rig = held(seed);
    write(&mut rig, 0, SECTORS);
    zero(&mut rig, 16, 16);
    destage(&mut rig);
    branch(&mut rig, 2);
    zero(&mut rig, 8, 8);
    write(&mut rig, 128, 40);
    write(&mut rig, 256, 128);
    zero(&mut rig, 264, 8);
    destage(&mut rig);
    remove(&mut rig, 1);
    rig.check_all_sectors();
    rig
}

fn dissolved_is_left(rig: &Rig) -> bool {
    rig.engine.replicas[&R1].lineage.has_dissolved()
}

#[test]
fn merge_cut_at_every_completion_loses_no_block() {
    let mut cuts = 0;
    for seed in 0..12 {
        for turns in 0.. {
            let mut rig = removed(seed);
            prepare(&mut rig);
            // The merge shares its round with writes of the heir, to a position that would move and to one that is copied.
            if seed % 2 == 1 {
                write(&mut rig, 0, 8);
                write(&mut rig, 200, 8);
            }
            rig.round();
            let before = rig.seen.checkpoints;
            (0..turns).for_each(|_| rig.turn(1));
            let done = rig.seen.checkpoints > before;
            match seed % 3 {
                0 => rig.disk.kill(),
                _ => rig.disk.power_cut(),
            }
            rig.restart_and_check();
            check_space(&rig);
            finish_merges(&mut rig);
            rig.check_all_sectors();
            rig.disk.power_cut();
            rig.restart_and_check();
            check_space(&rig);
            assert!(!dissolved_is_left(&rig));
            cuts += 1;
            if done {
                break;
            }
        }
    }
    assert!(cuts > 60, "{cuts} cuts: the test lost its teeth");
}

#[test]
fn merge_needs_no_log_write() {
    let mut rig = removed(1);
    prepare(&mut rig);
    let (before, used) = (rig.engine.stats(), rig.engine.stats().home.used_bytes);
    rig.round();
    rig.settle();
    let after = rig.engine.stats();
    assert_eq!(after.home.merged_aus - before.home.merged_aus, 3, "all of the snapshot in one round");
    assert_eq!((after.payload_bytes, after.completed_blocks), (before.payload_bytes, before.completed_blocks));
    assert_eq!(rig.engine.replicas[&R1].checkpoint.0, rig.engine.replicas[&R1].applied, "no entry was made");
    assert_eq!(used - after.home.used_bytes, 2 * types::AU, "one of three AUs has moved");
    rig.check_all_sectors();
    finish_merges(&mut rig);
}

#[test]
fn merge_of_a_hot_chunk_ends() {
    for seed in 0..6 {
        let mut rig = removed(seed);
        rig.engine.hold_merges(false);
        let mut rounds = 0;
        while dissolved_is_left(&rig) {
            rounds += 1;
            assert!(rounds < 12, "round {rounds} of a chunk that each round writes");
            // Each round writes every position, and the next one makes some of them zeros again.
            let all = |start| Effect::Write { chunk: key(1, 0), range: SectorRange::new(start, 3) };
            let none = |start| Effect::Zero { chunk: key(1, 0), range: SectorRange::new(start, 8) };
            let starts = [rounds * 8, 128 + rounds * 8, 256 + rounds * 8].map(|start| start % SECTORS);
            rig.extend(R1, starts.map(all).into());
            if seed % 2 == 1 {
                rig.extend(R1, starts.map(|start| none((start + 376) % SECTORS / 8 * 8)).into());
            }
            apply_all(&mut rig);
            rig.now = rig.now + Duration::from_millis(20);
            rig.turn(16);
            rig.settle();
            destage(&mut rig);
        }
        rig.check_all_sectors();
        finish_merges(&mut rig);
    }
}

#[test]
fn chain_of_dissolved_generations_is_merged_from_the_heir_on() {
    let mut rig = held(3);
    for (head, start) in [(2, 0), (3, 64), (4, 128), (5, 192), (6, 200)] {
        write(&mut rig, start, 100);
        destage(&mut rig);
        branch(&mut rig, head);
    }
    (1..6).for_each(|id| remove(&mut rig, id));
    rig.check_all_sectors();
    // The heir goes as well while its list is merged: what it was given goes on with it.
    branch(&mut rig, 7);
    prepare(&mut rig);
    rig.round();
    remove(&mut rig, 6);
    rig.settle();
    rig.check_all_sectors();
    finish_merges(&mut rig);
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
    order(&mut rig, Order::Remove(GenerationId(7)));
    destage(&mut rig);
    destage(&mut rig);
    assert_eq!(rig.engine.stats().home.used_bytes, 0, "no AU is lost");
}

#[test]
fn plan_for_an_heir_that_is_discarded_or_cut_merges_nothing() {
    for cut in [false, true] {
        let mut rig = removed(4);
        prepare(&mut rig);
        match cut {
            true => {
                rig.extend(R1, vec![Effect::Unmap { generation: GenerationId(1), from_chunk: 0 }]);
                apply_all(&mut rig);
            }
            false => remove(&mut rig, 2),
        }
        destage(&mut rig);
        destage(&mut rig);
        rig.check_all_sectors();
        assert_eq!(rig.engine.stats().home.used_bytes, 0);
        finish_merges(&mut rig);
    }
}

#[test]
fn merge_waits_while_the_overlay_cuts_the_chunk_of_its_heir() {
    let mut rig = held(13);
    write(&mut rig, 0, SECTORS);
    destage(&mut rig);
    branch(&mut rig, 2);
    write(&mut rig, 8, 16);
    destage(&mut rig);
    // The parent shows where its child is cut.
    rig.extend(R1, vec![Effect::Unmap { generation: GenerationId(1), from_chunk: 0 }]);
    apply_all(&mut rig);
    remove(&mut rig, 1);
    rig.engine.hold_merges(false);
    for _ in 0..40 {
        rig.turn(16);
    }
    rig.round();
    while !rig.engine.is_round_idle() {
        rig.read_all(R1);
        rig.turn(1);
    }
    rig.check_all_sectors();
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn generations_without_blocks_leave_the_list_with_the_next_round() {
    let mut rig = held(5);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    for id in 2..40 {
        branch(&mut rig, id);
    }
    (2..39).for_each(|id| remove(&mut rig, id));
    assert_eq!(rig.engine.replicas[&R1].lineage.heirs().len(), 37);
    assert!(rig.engine.pressure().dissolved > 0.0);
    destage(&mut rig);
    assert_eq!((rig.engine.replicas[&R1].lineage.heirs().len(), rig.engine.pressure().dissolved), (0, 0.0));
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(!dissolved_is_left(&rig));
}

#[test]
fn list_keeps_a_generation_of_which_the_log_alone_has_blocks() {
    let mut rig = quiet(6);
    write(&mut rig, 0, 24);
    branch(&mut rig, 2);
    write(&mut rig, 3, 2);
    remove(&mut rig, 1);
    destage(&mut rig);
    assert!(dissolved_is_left(&rig));
    rig.check_all_sectors();
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn read_is_looked_up_again_when_its_block_is_merged() {
    // The block is moved, or copied.
    for at in [0, 176] {
        let mut rig = removed(7);
        prepare(&mut rig);
        rig.read(R1, key(2, 0), SectorRange::new(at, 8));
        rig.end_turn();
        let (mut reads, rest): (Vec<Op>, _) =
            std::mem::take(&mut rig.ops).into_iter().partition(|op| matches!(op, Op::DiskRead { .. }));
        rig.ops = rest;
        assert_eq!(reads.len(), 1, "the block is the snapshot's");
        rig.models.get_mut(&R1).expect("created").reading = 0;
        rig.round();
        rig.settle();
        // The AU is free again only when no read of it is in flight.
        write(&mut rig, 256, 128);
        destage(&mut rig);
        rig.models.get_mut(&R1).expect("created").reading = 1;
        let before = rig.checked_reads;
        rig.disk.submit(&mut reads);
        rig.settle();
        assert_eq!((rig.engine.reads_looked_up_again(), rig.checked_reads), (1, before + 1));
    }
}

/// Reads a block of the head that is bad at home.
fn read_bad(rig: &mut Rig, bad: SectorRange) {
    rig.seen.bad.clear();
    rig.read(R1, key(2, 0), bad);
    while rig.seen.bad.is_empty() {
        rig.end_turn();
        rig.disk.submit(&mut rig.ops);
        if let Some(event) = rig.disk.step() {
            rig.handle_event(event);
        }
    }
    assert_eq!(rig.seen.failed_reads.len(), 1);
    rig.seen.failed_reads.clear();
}

/// Damages the only copy of these bytes at home.
fn spoil(rig: &mut Rig, bytes: &[u8]) {
    let home = rig.superblock.home_start as usize;
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| page == bytes).expect("it is at home") * 4096;
    rig.disk.flip(home + at + 5);
}

#[test]
fn bad_block_waits_for_its_repair_while_others_are_merged() {
    let mut rig = removed(8);
    let bad = SectorRange::new(176, 8);
    let bytes = rig.models[&R1].expected(key(2, 0), bad);
    spoil(&mut rig, &bytes);
    prepare(&mut rig);
    assert_eq!(rig.bad_blocks(), [(R1, key(1, 0), bad)], "the block is named as reads name it");
    rig.round();
    rig.settle();
    assert_eq!(rig.engine.stats().home.merged_aus, 2, "the other AUs are merged");
    for _ in 0..20 {
        rig.now = rig.now + Duration::from_secs(1);
        rig.turn(16);
    }
    let rounds = rig.engine.stats().rounds;
    for _ in 0..20 {
        rig.now = rig.now + Duration::from_secs(1);
        rig.turn(16);
    }
    assert_eq!((rig.engine.stats().rounds, rig.seen.bad.len()), (rounds, 1), "nothing runs in vain");
    let copy = BlockCopy { low: Index(1), high: Index(1), data: Some((IoBuf::copy_of(&bytes), crc32c(&bytes))) };
    assert_eq!(rig.engine.mend(R1, key(1, 0), 22, &copy), Ok(()));
    destage(&mut rig);
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn bad_block_that_moves_is_the_heirs_and_keeps_no_round_waiting() {
    let mut rig = removed(9);
    let bad = SectorRange::new(32, 8);
    let bytes = rig.models[&R1].expected(key(2, 0), bad);
    spoil(&mut rig, &bytes);
    read_bad(&mut rig, bad);
    assert!(rig.engine.has_bad_blocks(R1));
    prepare(&mut rig);
    rig.round();
    rig.settle();
    assert!(!rig.engine.has_bad_blocks(R1), "its chunk is gone");
    read_bad(&mut rig, bad);
    assert_eq!(rig.bad_blocks(), [(R1, key(2, 0), bad)]);
    write(&mut rig, 32, 8);
    destage(&mut rig);
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn repair_in_the_round_that_merges_its_block_is_not_needed() {
    let mut rig = removed(10);
    let bad = SectorRange::new(32, 8);
    let bytes = rig.models[&R1].expected(key(2, 0), bad);
    spoil(&mut rig, &bytes);
    read_bad(&mut rig, bad);
    prepare(&mut rig);
    assert!(rig.engine.needs_mend(R1, key(1, 0), 4));
    rig.round();
    while rig.engine.home.as_ref().expect("mounted").stats().merged_aus == 0 {
        assert!(rig.engine.is_round_running());
        rig.turn(1);
        let merges = rig.engine.home.as_ref().expect("mounted").round_running();
        assert!(!merges || !rig.engine.needs_mend(R1, key(1, 0), 4), "the copy would be destaged into no generation");
    }
    rig.settle();
    write(&mut rig, 32, 8);
    destage(&mut rig);
    finish_merges(&mut rig);
    assert!(rig.engine.chunks(R1).iter().all(|chunk| chunk.generation == GenerationId(2)));
}

#[test]
fn whole_units_of_the_log_are_adopted_where_a_unit_would_move() {
    let mut rig = held(11);
    rig.engine.config.redirect_min = Some(types::AU);
    write(&mut rig, 0, SECTORS);
    destage(&mut rig);
    branch(&mut rig, 2);
    remove(&mut rig, 1);
    prepare(&mut rig);
    write(&mut rig, 128, 128);
    rig.round();
    rig.settle();
    assert_eq!(rig.engine.stats().home.merged_aus, 2, "the unit that was adopted hides the third");
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn held_merges_wait_and_flat_lineages_have_none() {
    let mut rig = removed(12);
    for _ in 0..20 {
        rig.now = rig.now + Duration::from_secs(1);
        rig.turn(16);
    }
    assert_eq!(rig.engine.stats().home.merged_aus, 0);
    rig.engine.hold_merges(false);
    finish_merges(&mut rig);
    order(&mut rig, Order::Begin { volume: VolumeId(9), parent: None });
    branch(&mut rig, 10);
    assert!(!rig.engine.destage.merges.may_free(), "a snapshot alone has nothing to merge");
    check_space(&rig);
}

#[test]
fn round_that_only_merges_leaves_other_data_in_the_log() {
    let mut rig = removed(31);
    // The checkpoint has the removal: what is merged is dissolved as of it.
    destage(&mut rig);
    write(&mut rig, 300, 8);
    let before = (rig.engine.replicas[&R1].checkpoint, rig.engine.stats().rounds);
    prepare(&mut rig);
    rig.now = rig.now + Duration::from_millis(210);
    assert!(rig.engine.wants_round(rig.now));
    destage(&mut rig);
    let r = &rig.engine.replicas[&R1];
    assert_eq!((r.checkpoint, rig.engine.stats().rounds), (before.0, before.1 + 1), "no index moves");
    assert!(r.overlay.active().has_blocks_of(GenerationId(2)) && rig.engine.destage.maybe_dirty);
    assert!(rig.engine.stats().home.merged_aus > 0);
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
    finish_merges(&mut rig);
    rig.check_all_sectors();
}

/// Seed 2250993 of the simulator: a dissolved generation covers a block in part, its heir all of it, and the rest of it is bad at home. No
/// replica has that rest any more, and rounds waited for it.
#[test]
fn bad_rest_of_a_block_that_the_heir_covers_keeps_no_round_waiting() {
    for cut in [false, true] {
        let mut rig = held(10);
        let block = SectorRange::new(32, 8);
        write(&mut rig, 32, 8);
        destage(&mut rig);
        let bytes = rig.models[&R1].expected(key(1, 0), block);
        branch(&mut rig, 2);
        write(&mut rig, 32, 3);
        branch(&mut rig, 3);
        write(&mut rig, 32, 8);
        remove(&mut rig, 1);
        remove(&mut rig, 2);
        spoil(&mut rig, &bytes);
        for life in 0..1 + u32::from(cut) {
            if life > 0 {
                rig.disk.power_cut();
                rig.restart_and_check();
                rig.engine.hold_merges(true);
            }
            rig.seen.bad.clear();
            rig.round();
            rig.settle();
            assert_eq!(rig.bad_blocks(), [(R1, key(1, 0), block)], "the round has read it");
            assert!(!rig.engine.needs_mend(R1, key(1, 0), 4), "no generation shows it");
            rig.engine.forget_bad(R1, key(1, 0), 4);
            rig.check_all_sectors();
        }
        destage(&mut rig);
        rig.check_all_sectors();
        rig.engine.hold_merges(false);
        finish_merges(&mut rig);
        assert!(!rig.engine.has_bad_blocks(R1));
        rig.check_all_sectors();
    }
}
