//! Bad blocks of home, and the bytes that may replace them (R15).

use super::laws::{run_rounds, write};
use super::rig::Rig;
use crate::testing::chunks;
use crate::{EngineConfig, MendAsk};
use std::time::Duration;
use types::store::Effect;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, crc32c};

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

/// Returns the block as a peer would send it now.
fn now_at(rig: &Rig) -> (IoBuf, u32) {
    let bytes = IoBuf::copy_of(&rig.models[&R1].expected(chunk(), BLOCK));
    let crc = crc32c(&bytes);
    (bytes, crc)
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
    let (block, _) = now_at(&rig);
    let home = rig.superblock.home_start as usize;
    let places = rig.disk.bytes()[home..].chunks(4096);
    let at = places.into_iter().position(|page| page == &block[..]).expect("home holds the block") * 4096;
    rig.disk.flip(home + at + 5);
    rig
}

#[test]
fn a_bad_block_takes_the_bytes_that_its_checksum_names_and_no_others() {
    let mut rig = rotten(1);
    rig.read(R1, chunk(), SectorRange::new(0, 24));
    rig.settle();
    assert_eq!(rig.bad_blocks(), [(R1, chunk(), BLOCK)], "the one bad block is named");
    assert!(rig.seen.damaged.is_empty(), "its replica goes on");
    let good = now_at(&rig);
    let ask = rig.engine.mend_ask(R1, chunk(), 1).expect("it is bad");
    assert_eq!(ask, MendAsk { applied: Index(1), expected: Some(good.1) });
    // Another block is written meanwhile.
    put(&mut rig, R1, write(40, 8));
    let other = IoBuf::copy_of(&[7; 4096]);
    let mut torn = good.0.to_vec();
    torn[9] ^= 1;
    let refused = [
        (Index(1), Some((other.clone(), crc32c(&other)))),
        (Index(1), Some((IoBuf::copy_of(&torn), good.1))),
        (Index(1), None),
        (Index(0), Some(good.clone())),
        (Index(9), Some(good.clone())),
    ];
    for (at, data) in refused {
        assert!(!rig.engine.mend(R1, chunk(), 1, at, data.clone()), "{at}: {data:?}");
    }
    assert!(rig.engine.mend(R1, chunk(), 1, Index(1), Some(good)));
    rig.read(R1, chunk(), SectorRange::new(0, 24));
    run_rounds(&mut rig);
    rig.seen.bad.clear();
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(rig.seen.bad.is_empty(), "a round has written it home");
    assert_eq!(rig.engine.mend_ask(R1, chunk(), 1).map(|ask| ask.applied), Some(Index(2)));
}

#[test]
fn partly_written_bad_block_stalls_its_replica_and_takes_no_older_bytes() {
    let mut rig = rotten(2);
    let (old, old_crc) = now_at(&rig);
    put(&mut rig, R1, write(10, 3));
    put(&mut rig, R2, write(10, 3));
    run_rounds(&mut rig);
    assert_eq!(rig.bad_blocks()[0], (R1, chunk(), BLOCK), "the round met it");
    assert!(
        rig.seen.damaged.is_empty() && rig.engine.stats().overlay_bytes > 0,
        "what is not home stays in the overlay"
    );
    let ask = rig.engine.mend_ask(R1, chunk(), 1).expect("it is bad");
    assert_eq!(ask, MendAsk { applied: Index(2), expected: None });
    let before = rig.engine.stats().overlay_bytes;
    assert_eq!(before, 3 * 512, "the other replica is home");
    assert!(!rig.engine.is_exact(R1, chunk(), 1, Index(1)), "the block was touched by entry 2");
    assert!(!rig.engine.mend(R1, chunk(), 1, Index(1), Some((old, old_crc))), "bytes from before entry 2");
    let good = now_at(&rig);
    assert!(rig.engine.mend(R1, chunk(), 1, Index(2), Some(good)));
    // The repaired block is in the log before any round.
    rig.turn(16);
    rig.seen.bad.clear();
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(rig.seen.bad.is_empty(), "home's copy was not needed");
    run_rounds(&mut rig);
    assert_eq!(rig.engine.stats().overlay_bytes, 0, "the round takes the replica again");
    rig.check_all_sectors();
    assert!(rig.seen.bad.is_empty() && rig.seen.damaged.is_empty());
}

#[test]
fn observers_see_replica_contents_and_blocks_that_fail_their_checksum() {
    let mut rig = rotten(3);
    let look = |rig: &Rig| {
        let bytes = rig.disk.bytes();
        let read = |at: u64, page: &mut [u8]| page.copy_from_slice(&bytes[at as usize..at as usize + page.len()]);
        rig.engine.contents_for_tools(R1, read).expect("no round runs")
    };
    assert_eq!(look(&rig), Err(crate::Foreign { chunk: chunk(), block: 1 }));
    // The block is overwritten, and its neighbour in part; neither is at home yet.
    put(&mut rig, R1, write(8, 8));
    put(&mut rig, R1, write(3, 2));
    let whole = rig.models[&R1].expected(chunk(), SectorRange::new(0, 24));
    let blocks = whole.chunks(4096).zip(0..).filter(|(bytes, _)| bytes.iter().any(|b| *b != 0));
    let expected = blocks.map(|(bytes, block)| ((chunk(), block), crc32c(bytes))).collect();
    assert_eq!(look(&rig), Ok(expected));
}
