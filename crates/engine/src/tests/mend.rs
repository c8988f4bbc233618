//! Bad blocks of home, and the bytes that may replace them (R15).

use super::laws::{run_rounds, write};
use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::chunks;
use std::time::Duration;
use types::store::{BlockCopy, Effect, MendRefusal};
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, block_hash, crc32c};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const BLOCK: SectorRange = SectorRange { start: 8, count: 8 };

fn chunk() -> ChunkKey {
    chunks()[0]
}

fn put(rig: &mut Rig, replica: ReplicaId, effect: Effect) {
    let from = rig.models[&replica].last() + 1;
    rig.append(replica, from, vec![effect]);
    rig.turn(16);
    rig.commit(replica, from);
}

/// Returns the contents of the block now.
fn contents(rig: &Rig) -> Vec<u8> {
    rig.models[&R1].expected(chunk(), BLOCK)
}

/// Returns a copy as a peer would send it.
fn copy(bytes: &[u8], low: u64, high: u64) -> BlockCopy {
    BlockCopy { low: Index(low), high: Index(high), data: Some((IoBuf::copy_of(bytes), crc32c(bytes))) }
}

/// Creates R1 with block 1 at home, and rotten there.
fn rotten(seed: u64) -> Rig {
    let config = EngineConfig { round_idle: Duration::from_millis(5), ..EngineConfig::default() };
    let mut rig = Rig::new(seed, true, config);
    rig.create(1);
    rig.create(2);
    put(&mut rig, R1, write(0, 24));
    run_rounds(&mut rig);
    assert_eq!(rig.engine.stats().overlay_bytes, 0, "it is at home");
    let block = contents(&rig);
    let home = rig.superblock.home_start as usize;
    let places = rig.disk.bytes()[home..].chunks(4096);
    let at = places.into_iter().position(|page| *page == block).expect("home holds the block") * 4096;
    rig.disk.flip(home + at + 5);
    rig
}

#[test]
fn a_bad_block_takes_the_bytes_that_its_checksum_names_and_no_others() {
    let mut rig = rotten(1);
    rig.read(R1, chunk(), SectorRange::new(0, 24));
    rig.settle();
    assert_eq!(rig.bad_blocks(), [(R1, chunk(), BLOCK)], "the one bad block is named");
    assert!(rig.seen.failed.is_empty(), "its replica goes on");
    let good = contents(&rig);
    assert!(rig.engine.needs_mend(R1, chunk(), 1));
    // Another block is written meanwhile.
    put(&mut rig, R1, write(40, 8));
    let mut torn = copy(&good, 1, 2);
    torn.data.as_mut().expect("it has bytes").1 ^= 1;
    let zeros = BlockCopy { data: None, ..copy(&good, 1, 2) };
    let refused = [
        (copy(&[7; 4096], 1, 2), MendRefusal::Differs),
        (zeros, MendRefusal::Differs),
        (torn, MendRefusal::Bytes),
        (copy(&good[..512], 1, 2), MendRefusal::Bytes),
        (copy(&[7; 4096], 0, 2), MendRefusal::Behind),
        (copy(&[7; 4096], 1, 3), MendRefusal::Ahead),
    ];
    for (copy, why) in refused {
        assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy), Err(why), "{copy:?}");
    }
    // A replica that is being filled does not know the index of what it has.
    assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&good, 0, 0)), Ok(()));
    assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&good, 1, 2)), Err(MendRefusal::NotNeeded));
    rig.read(R1, chunk(), SectorRange::new(0, 24));
    run_rounds(&mut rig);
    rig.seen.bad.clear();
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(rig.seen.bad.is_empty(), "a round has written it home");
}

/// Block 1 is bad, entry 2 has covered three of its sectors, and the round that met it goes on without R1.
fn partly_covered(seed: u64) -> (Rig, Vec<u8>) {
    let mut rig = rotten(seed);
    let before = contents(&rig);
    put(&mut rig, R1, write(10, 3));
    put(&mut rig, R2, write(10, 3));
    run_rounds(&mut rig);
    assert_eq!(rig.bad_blocks()[0], (R1, chunk(), BLOCK), "the round met it");
    assert!(rig.seen.failed.is_empty(), "its replica goes on");
    assert_eq!(rig.engine.stats().overlay_bytes, 3 * 512, "the other replica is home");
    assert!(rig.engine.delays_destage(R1, chunk(), 1));
    (rig, before)
}

#[test]
fn partly_covered_bad_block_takes_any_copy_from_its_checkpoint_on() {
    // The copy of the checkpoint index is the one that the checksum names, whatever index it bears.
    for (seed, low, high) in [(2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (6, 3, 3), (7, 0, 0), (8, 4, 4)] {
        let (mut rig, before) = partly_covered(seed);
        let as_of_2 = contents(&rig);
        assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&as_of_2, 0, 1)), Err(MendRefusal::Behind));
        assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&as_of_2, 2, 3)), Err(MendRefusal::Ahead));
        // The block is hot: it is written in part again before the copy comes.
        put(&mut rig, R1, write(11, 4));
        let bytes = match high {
            0 | 1 | 4 => before,
            2 => as_of_2,
            _ => contents(&rig),
        };
        assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&bytes, low, high)), Ok(()), "{low} to {high}");
        rig.read(R1, chunk(), BLOCK);
        // The repaired block is in the log before any round.
        rig.turn(16);
        rig.seen.bad.clear();
        rig.disk.power_cut();
        rig.restart_and_check();
        assert!(rig.seen.bad.is_empty(), "home's copy was not needed");
        run_rounds(&mut rig);
        assert_eq!(rig.engine.stats().overlay_bytes, 0, "the round takes the replica again");
        rig.check_all_sectors();
        assert!(rig.seen.bad.is_empty() && rig.seen.failed.is_empty());
    }
}

#[test]
fn checkpoint_that_passes_a_waiting_copy_makes_it_too_old() {
    let mut rig = rotten(7);
    rig.read(R1, chunk(), BLOCK);
    rig.settle();
    let as_of_1 = contents(&rig);
    // The block is overwritten, destaged and rots again: the copy of index 1 is of another version.
    put(&mut rig, R1, write(8, 8));
    run_rounds(&mut rig);
    let home = rig.superblock.home_start as usize;
    let now = contents(&rig);
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| *page == now).expect("home holds the block") * 4096;
    rig.disk.flip(home + at + 5);
    put(&mut rig, R1, write(10, 3));
    run_rounds(&mut rig);
    assert!(rig.engine.delays_destage(R1, chunk(), 1));
    assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&as_of_1, 1, 1)), Err(MendRefusal::Behind));
    assert_eq!(rig.engine.mend(R1, chunk(), 1, &copy(&now, 2, 2)), Ok(()));
    run_rounds(&mut rig);
    rig.check_all_sectors();
}

#[test]
fn one_read_names_all_bad_blocks_of_its_range() {
    let mut rig = rotten(8);
    let home = rig.superblock.home_start as usize;
    let third = rig.models[&R1].expected(chunk(), SectorRange::new(16, 8));
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| *page == third).expect("it is at home") * 4096;
    rig.disk.flip(home + at + 5);
    rig.read(R1, chunk(), SectorRange::new(0, 24));
    rig.settle();
    assert_eq!(rig.bad_blocks(), [(R1, chunk(), SectorRange::new(8, 16))]);
}

#[test]
fn observers_see_replica_contents_and_blocks_that_fail_their_checksum() {
    let mut rig = rotten(3);
    let look = |rig: &Rig| {
        let bytes = rig.disk.bytes();
        let read = |at: u64| IoBuf::copy_of(&bytes[at as usize..at as usize + 4096]);
        rig.engine.contents_for_tools(R1, read).expect("no round runs")
    };
    assert_eq!(look(&rig), Err(crate::Foreign { chunk: chunk(), block: 1 }));
    // The block is overwritten, and its neighbour in part; neither is at home yet.
    put(&mut rig, R1, write(8, 8));
    put(&mut rig, R1, write(3, 2));
    let whole = rig.models[&R1].expected(chunk(), SectorRange::new(0, 24));
    let blocks = whole.chunks(4096).zip(0..).filter(|(bytes, _)| bytes.iter().any(|b| *b != 0));
    let expected =
        blocks.map(|(bytes, block)| ((chunk(), block), block_hash(chunk().in_own_family(block), bytes))).collect();
    assert_eq!(look(&rig), Ok(expected));
}
