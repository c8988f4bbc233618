//! The overlay against a plain array of sectors.

use super::*;
use types::rng::Rng;
use types::store::Crcs;
use types::units::{SECTORS_PER_AU, SECTORS_PER_CHUNK};
use types::{IoBuf, SECTOR};

const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 3 };

fn payload(range: SectorRange, stamp: u8) -> Arc<Payload> {
    let bytes = vec![stamp; range.len_bytes()];
    let values = range.fragment_crcs(&bytes);
    Arc::new(Payload::new(IoBuf::copy_of(&bytes), Crcs { start: range.start, values }))
}

fn is_open(found: &Found) -> bool {
    matches!(found.source, Source::Open)
}

/// Returns 0 for home, 1 for zeros, else the stamp, for each sector.
fn read(overlay: &Overlay, range: SectorRange) -> Vec<u8> {
    let mut out = Vec::new();
    for f in overlay.lookup(CHUNK, range) {
        assert_eq!((f.range.start - range.start) as usize, out.len(), "no holes");
        let value = match &f.source {
            Source::Open => 0,
            Source::Zeros | Source::Hidden => 1,
            Source::Home(_) => unreachable!("the overlay does not look at home"),
            Source::Data(p) => {
                let mut crcs = types::CrcList::new();
                assert!(p.crcs_of(f.range, &mut crcs));
                assert!(f.range.verify(&p.slice(f.range), &crcs), "a cut fragment keeps a true CRC");
                p.slice(f.range)[0]
            }
        };
        out.extend(std::iter::repeat_n(value, f.range.count as usize));
    }
    out
}

#[test]
fn overlay_reads_like_an_array_through_freezing_cuts_and_thawing() {
    // A part of an AU, and some AUs at the end of the chunk.
    behave_like_an_array(200, SectorRange::new(0, 96), 24);
    behave_like_an_array(50, SectorRange::new(SECTORS_PER_CHUNK - 640, 640), 300);
}

fn behave_like_an_array(lives: u32, all: SectorRange, most: u64) {
    let mut rng = Rng::new(7);
    for _ in 0..lives {
        let mut overlay = Overlay::default();
        let mut model = vec![0u8; all.count as usize];
        let mut last = SectorRange::new(all.start, 8);
        for step in 0..60u8 {
            let start = all.start + rng.below(u64::from(all.count)) as u32;
            let count = rng.between(1, u64::from(all.end() - start).min(most)) as u32;
            let range = if rng.chance(1, 4) { last } else { SectorRange::new(start, count) };
            last = range;
            let value = match rng.below(10) {
                0 => 1,
                1 if overlay.frozen.is_none() => {
                    overlay.freeze();
                    continue;
                }
                1 => {
                    overlay.thaw();
                    continue;
                }
                2 if rng.chance(1, 4) => {
                    let from = rng.between(2, 4) as u32;
                    overlay.unmap(GenerationId(1), from);
                    if from <= CHUNK.index {
                        model.fill(1);
                    }
                    assert_eq!(read(&overlay, all), model);
                    continue;
                }
                _ => step + 2,
            };
            overlay.write(CHUNK, range, (value != 1).then(|| payload(range, value)));
            let at = (range.start - all.start) as usize;
            model[at..at + range.count as usize].fill(value);
            assert_eq!(read(&overlay, all), model);
            for (au, sectors) in (all.start / SECTORS_PER_AU..).zip(model.chunks(SECTORS_PER_AU as usize)) {
                assert_eq!(overlay.has_data(CHUNK, au), sectors.iter().any(|value| *value > 1), "AU {au}");
            }
            check_partial(&overlay.active, rng.below(4097) as u16);
        }
    }
}

/// Checks that `partial` and `bytes` equal a recount.
fn check_partial(layer: &Layer, from: u16) {
    let Some(chunk) = layer.chunks.get(&CHUNK) else { return };
    let want: Vec<u16> = chunk
        .blocks_from(0)
        .map(|(block, _)| block)
        .filter(|b| chunk.lookup(chunk::block_range(*b)).iter().any(|f| matches!(f.source, Source::Open)))
        .collect();
    assert_eq!(chunk.partial().collect::<Vec<_>>(), want);
    let bytes: u64 = chunk
        .lookup(SectorRange::CHUNK)
        .iter()
        .filter(|f| matches!(f.source, Source::Data(_)))
        .map(|f| u64::from(f.range.count) * SECTOR)
        .sum();
    assert_eq!(layer.bytes(), bytes);
    for from in [5, from] {
        let found = chunk.blocks_from(from).map(|(block, _)| block).collect::<Vec<_>>();
        let all = chunk.blocks_from(0).map(|(block, _)| block).filter(|b| *b >= from).collect::<Vec<_>>();
        assert_eq!(found, all);
    }
    assert_eq!(chunk.interval_count(), chunk.lookup(SectorRange::CHUNK).iter().filter(|f| !is_open(f)).count());
    for (block, cover) in chunk.blocks_from(0) {
        let found = chunk.lookup(chunk::block_range(block));
        let is_true = match (cover, &found[..]) {
            (Cover::Data(payload), [Found { source: Source::Data(at), .. }]) => Arc::ptr_eq(payload, at),
            (Cover::Zeros, [Found { source: Source::Zeros, .. }]) => true,
            (Cover::Parts, found) => found.len() > 1,
            _ => false,
        };
        assert!(is_true, "block {block}: {cover:?}, found {found:?}");
    }
}

#[test]
fn zeros_that_cut_a_block_of_another_au_are_judged() {
    let mut overlay = Overlay::default();
    let held =
        Held { aus: crate::space::AuSet::of([0].into_iter()), listed: true, shows_older: true, ..Held::default() };
    // Sectors 120 to 127 are the last block of the first AU: the second write completes it, and cuts the next one.
    for (range, aus) in [(SectorRange::new(120, 4), 0), (SectorRange::new(124, 8), 1)] {
        if overlay.write(CHUNK, range, None) {
            overlay.judge(CHUNK, held);
        }
        assert_eq!(overlay.need(), overlay.recount(|_| held), "{range}");
        assert_eq!(overlay.need().aus, aus, "{range}");
    }
}
