//! The engine against a model in memory, on the simulated disk: typed operations out of bytes.
//!
//! Operations: append (perhaps over an uncommitted tail), commit and apply, read, destages, streams staged and
//! installed, replicas created and destroyed. The process is killed, the power is cut, bits flip, and reads, writes and
//! flushes fail. After a restart the peers act: payloads and blocks are repaired, and failed replicas
//! are revived.
//!
//! Properties:
//! - No acknowledged entry is lost.
//! - A read gives the model's bytes or an error, and an error only when the disk was damaged or failed.
//! - Decision state is exact at the checkpoint index.
//! - On a sound disk no replica fails.
//! - One flipped bit under a sealed log is never silent.
//! - After more damage than one flip a tail may be missing, as if the disk had lost durable data. The rest is genuine.

mod peers;
mod rig;

use crate::Verdict;
use crate::source::Source;
use engine::testing::{SECTORS, chunks};
use rig::Rig;
use std::time::Duration;
use types::store::Effect;
use types::{ReplicaId, SectorRange};

pub use rig::{Pages, device_image};

const REPLICAS: u32 = 3;

/// Runs the target. First byte: seed of the disk's own choices. Second: settings.
pub fn run(data: &[u8]) -> Verdict {
    if live(data).harness.checked_reads > 0 { Verdict::Taken } else { Verdict::Refused }
}

/// Runs the whole history of an engine.
fn live(data: &[u8]) -> Rig {
    let mut source = Source::new(data);
    let (seed, settings) = (source.byte(), source.byte());
    let mut rig = Rig::new(seed, settings);
    for id in 1..=u64::from(REPLICAS) {
        rig.create(ReplicaId(id));
    }
    rig.settle();
    while !source.is_empty() && rig.lives() {
        step(&mut rig, &mut source);
    }
    rig.calm_down();
    if rig.lives() {
        rig.restart();
    }
    rig
}

fn range(source: &mut Source<'_>) -> SectorRange {
    let start = source.below(SECTORS);
    match source.below(3) {
        0 => SectorRange::new(start / 8 * 8, 8),
        1 => SectorRange::new(start, 1 + source.below(40).min(SECTORS - start - 1)),
        _ => SectorRange::new(start / 8 * 8, SECTORS - start / 8 * 8),
    }
}

fn effect(source: &mut Source<'_>) -> Effect {
    let chunk = chunks()[source.below(4) as usize];
    let range = range(source);
    match source.byte() {
        0..=7 => Effect::None,
        8..=40 => Effect::Zero { chunk, range },
        41..=50 => Effect::Unmap { generation: chunk.generation, from_chunk: source.below(3) },
        _ => Effect::Write { chunk, range },
    }
}

fn step(rig: &mut Rig, source: &mut Source<'_>) {
    let replica = ReplicaId(u64::from(1 + source.below(REPLICAS)));
    match source.below(32) {
        0..=7 => {
            let back = if source.byte() > 220 { u64::from(source.below(8)) } else { 0 };
            let effects = (0..1 + source.below(4)).map(|_| effect(source)).collect();
            rig.append(replica, back, effects);
        }
        8..=11 => rig.commit(replica),
        12..=14 => {
            let chunk = chunks()[source.below(4) as usize];
            let range = range(source);
            rig.read(replica, chunk, range);
        }
        15..=19 => rig.turn(source.below(8)),
        20 => rig.round(),
        21 => rig.settle(),
        22 => rig.pass(Duration::from_millis(u64::from(source.byte()))),
        23 => rig.crash(source.flag()),
        24 => rig.flip(source.u32(), source.byte()),
        25 => {
            let (what, n) = (source.below(4), source.below(24));
            rig.fail(what, n);
        }
        26 => rig.destroy_and_create(replica, source.byte()),
        27 => {
            let effects = (0..1 + source.below(6)).map(|_| effect(source)).collect();
            rig.stream(replica, effects, source.byte());
        }
        28 => rig.set_map(source.byte()),
        // The common case: entries are written, committed and applied.
        29 | 30 => {
            let effects = (0..1 + source.below(3)).map(|_| effect(source)).collect();
            rig.append(replica, 0, effects);
            rig.turn(12);
            rig.commit(replica);
        }
        _ => rig.check_all(),
    }
}

/// Returns the image of a device with a fixed history in which most operations occur.
pub fn told() -> Pages {
    let mut rig = Rig::new(7, 8);
    (1..=3).for_each(|id| rig.create(ReplicaId(id)));
    rig.settle();
    let bytes: Vec<u8> = (0..400u32).map(|n| (n * n + n / 7) as u8).collect();
    let mut source = Source::new(&bytes);
    for n in 0..24 {
        let replica = ReplicaId(1 + n % 3);
        let effects = (0..1 + n % 3).map(|_| effect(&mut source)).collect();
        rig.append(replica, 0, effects);
        rig.turn(12);
        if n % 5 != 4 {
            rig.commit(replica);
        }
        match n {
            8 => rig.round(),
            12 => rig.set_map(40),
            14 => rig.destroy_and_create(ReplicaId(3), 255),
            16 => rig.crash(true),
            18 => rig.append(ReplicaId(1), 1, vec![Effect::None]),
            20 => rig.stream(ReplicaId(2), vec![effect(&mut source)], 255),
            _ => {}
        }
    }
    rig.settle();
    rig.image()
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ChunkKey;

    /// Returns a store with durable entries, and the numbers of its non-zero pages in the log or in home.
    fn written(in_home: bool) -> (Rig, Vec<u32>) {
        let mut rig = Rig::new(7, 14);
        (1..=3).for_each(|id| rig.create(ReplicaId(id)));
        rig.settle();
        for n in 0..12 {
            let replica = ReplicaId(1 + n % 3);
            let chunk: ChunkKey = chunks()[n as usize % 4];
            rig.append(replica, 0, vec![Effect::Write { chunk, range: SectorRange::new(8 * n as u32, 12) }]);
            rig.turn(12);
            // The last entry of each replica is durable, and not committed.
            if n < 9 {
                rig.commit(replica);
            }
        }
        rig.settle();
        if in_home {
            rig.round();
            rig.settle();
        }
        let superblock = device_image().0;
        let start = if in_home { superblock.home_start } else { superblock.log_start };
        let pages = rig.image().into_iter().filter(|(at, _)| (start..start + (4 << 20)).contains(at));
        let pages = pages.map(|(at, _)| ((at - start) / 4096) as u32).collect();
        (rig, pages)
    }

    /// Flips one bit of each of these pages, restarts the process, and reads everything.
    fn after_flips(in_home: bool, pages: &[u32]) -> Rig {
        let (mut rig, _) = written(in_home);
        for page in pages {
            // `Rig::flip` takes the area from the remainder modulo 6, and the byte from the quotient by 8.
            let byte = (page * 4096 + 100) * 8;
            let area = if in_home { 4 } else { 2 };
            let place = (byte..byte + 8).find(|place| place % 6 == area).expect("one of eight");
            rig.flip(place, 3);
        }
        rig.crash(false);
        rig.calm_down();
        rig
    }

    /// Checks that the peers' operations are reached; otherwise the target would prove nothing about them.
    #[test]
    fn payloads_and_blocks_come_back_and_failed_replicas_are_revived() {
        let (mut mended, mut refilled, mut cut, mut ended) = (0, 0, 0, 0);
        let pages = [false, true].map(|in_home| written(in_home).1.into_iter().map(move |page| (in_home, page)));
        for (in_home, page) in pages.into_iter().flatten() {
            // A log gap takes the headers of two neighbours: here a batch has three pages.
            let flips = if in_home { vec![vec![page]] } else { vec![vec![page], vec![page, page + 3]] };
            for help in flips.into_iter().map(|pages| after_flips(in_home, &pages).help) {
                (mended, refilled) = (mended + help.blocks_mended, refilled + help.replicas_refilled);
                (cut, ended) = (cut + help.tails_cut, ended + help.replicas_revived);
            }
        }
        assert!(mended > 0 && refilled > 0 && cut > 0 && ended > 0, "{mended} {refilled} {cut} {ended}");
    }
}
