//! The overlay against a plain array of sectors.

use super::*;
use types::rng::Rng;
use types::store::Crcs;
use types::{IoBuf, SECTOR};

const CHUNK: ChunkKey = ChunkKey { volume: VolumeId(1), index: 3 };

fn payload(range: SectorRange, stamp: u8) -> Arc<Payload> {
    let bytes = vec![stamp; range.len_bytes()];
    let values = range.fragment_crcs(&bytes);
    Arc::new(Payload { buf: IoBuf::copy_of(&bytes), crcs: Crcs { start: range.start, values } })
}

/// Returns 0 for home, 1 for zeros, else the stamp, for each sector.
fn read(overlay: &Overlay, sectors: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for f in overlay.lookup(CHUNK, SectorRange::new(0, sectors)) {
        assert_eq!(f.range.start as usize, out.len(), "no holes");
        let value = match &f.source {
            Source::Home => 0,
            Source::Zeros => 1,
            Source::Data(p) => {
                let mut crcs = Vec::new();
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
    const SECTORS: u32 = 96;
    let mut rng = Rng::new(7);
    for _ in 0..200 {
        let mut overlay = Overlay::default();
        let mut model = vec![0u8; SECTORS as usize];
        let mut last = SectorRange::new(0, 8);
        for step in 0..60u8 {
            let start = rng.below(u64::from(SECTORS)) as u32;
            let count = rng.between(1, u64::from(SECTORS - start).min(24)) as u32;
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
                    overlay.unmap(VolumeId(1), from);
                    if from <= CHUNK.index {
                        model.fill(1);
                    }
                    assert_eq!(read(&overlay, SECTORS), model);
                    continue;
                }
                _ => step + 2,
            };
            overlay.write(CHUNK, range, (value != 1).then(|| payload(range, value)));
            model[range.start as usize..range.end() as usize].fill(value);
            assert_eq!(read(&overlay, SECTORS), model);
            assert_eq!(overlay.has_data(CHUNK, 0), model.iter().any(|value| *value > 1));
            check_partial(&overlay.active);
        }
    }
}

/// Checks that `partial` and `bytes` equal a recount.
fn check_partial(layer: &Layer) {
    let Some(chunk) = layer.chunks.get(&CHUNK) else { return };
    let want: Vec<u16> = chunk
        .blocks_from(0)
        .map(|(block, _)| block)
        .filter(|b| chunk.lookup(chunk::block_range(*b)).iter().any(|f| matches!(f.source, Source::Home)))
        .collect();
    assert_eq!(chunk.partial().collect::<Vec<_>>(), want);
    let bytes: u64 = chunk
        .lookup(SectorRange::CHUNK)
        .iter()
        .filter(|f| matches!(f.source, Source::Data(_)))
        .map(|f| u64::from(f.range.count) * SECTOR)
        .sum();
    assert_eq!(layer.bytes(), bytes);
    let from = chunk.blocks_from(5).map(|(block, _)| block).collect::<Vec<_>>();
    let all = chunk.blocks_from(0).map(|(block, _)| block).filter(|b| *b >= 5).collect::<Vec<_>>();
    assert_eq!(from, all);
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
