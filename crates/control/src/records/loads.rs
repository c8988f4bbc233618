//! Shares of the allocated segments by PG, and by volume and PG, counted as segments come and go: an allocation does not add up
//! all columns of a volume.
//!
//! Invariant: the counts are those that an addition over all segment records gives. An entry without a segment is not kept.

use super::SegmentRecord;
use std::collections::BTreeMap;
use types::{PgId, VolumeId};

/// The share of the allocated segments that lies in one PG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PgLoad {
    /// Segments that lie in it wholly or with a column.
    pub segments: u32,
    pub chunks: u32,
}

/// The share of a volume's segments that lies in one PG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeLoad {
    /// Segments that lie in it wholly or with a column.
    pub segments: u32,
    /// Those of them for which an attach record may be missing.
    pub pending: u32,
    pub chunks: u32,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Loads {
    pgs: BTreeMap<PgId, PgLoad>,
    volumes: BTreeMap<(VolumeId, PgId), VolumeLoad>,
}

impl Loads {
    /// Counts a segment.
    pub fn add(&mut self, segment: &SegmentRecord) {
        let chunks = segment.chunks_per_column();
        for pg in segment.pgs() {
            let load = self.pgs.entry(pg).or_default();
            (load.segments, load.chunks) = (load.segments + 1, load.chunks + chunks);
            let load = self.volumes.entry((segment.volume, pg)).or_default();
            (load.segments, load.chunks) = (load.segments + 1, load.chunks + chunks);
            load.pending += u32::from(segment.pending);
        }
    }

    /// Takes back what was counted of a segment.
    ///
    /// # Panics
    /// When it was not counted.
    pub fn remove(&mut self, segment: &SegmentRecord) {
        let chunks = segment.chunks_per_column();
        for pg in segment.pgs() {
            let load = self.pgs.get_mut(&pg).expect("every segment was counted");
            (load.segments, load.chunks) = (load.segments - 1, load.chunks - chunks);
            if load.segments == 0 {
                self.pgs.remove(&pg);
            }
            let key = (segment.volume, pg);
            let load = self.volumes.get_mut(&key).expect("every segment was counted");
            (load.segments, load.chunks) = (load.segments - 1, load.chunks - chunks);
            load.pending -= u32::from(segment.pending);
            if load.segments == 0 {
                self.volumes.remove(&key);
            }
        }
    }

    pub fn of_pg(&self, pg: PgId) -> PgLoad {
        self.pgs.get(&pg).copied().unwrap_or_default()
    }

    /// Returns the PGs of a volume with its share in each, ascending.
    pub fn of_volume(&self, volume: VolumeId) -> impl Iterator<Item = (PgId, VolumeLoad)> + '_ {
        let all = PgId { pool: types::PoolId(0), n: 0 }..=PgId { pool: types::PoolId(u32::MAX), n: u32::MAX };
        self.volumes.range((volume, *all.start())..=(volume, *all.end())).map(|((_, pg), load)| (*pg, *load))
    }

    pub fn of_volume_in(&self, volume: VolumeId, pg: PgId) -> VolumeLoad {
        self.volumes.get(&(volume, pg)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::rng::Rng;
    use types::{PoolId, SegmentIndex};

    fn pg(n: u32) -> PgId {
        PgId { pool: PoolId(1), n }
    }

    #[test]
    fn counts_equal_an_addition_over_all_segments_after_any_changes() {
        let mut rng = Rng::new(11);
        let (mut loads, mut segments): (Loads, BTreeMap<(VolumeId, SegmentIndex), SegmentRecord>) = Default::default();
        for _ in 0..3_000 {
            let key = (VolumeId(1 + rng.below(3)), SegmentIndex(rng.below(20) as u32));
            let columns = [1, 2, 4][rng.below(3) as usize];
            match segments.remove(&key) {
                Some(old) => {
                    loads.remove(&old);
                    // Half of them lose `pending`, the others go.
                    if rng.chance(1, 2) {
                        let settled = SegmentRecord { pending: false, ..old };
                        loads.add(&settled);
                        segments.insert(key, settled);
                    }
                }
                None => {
                    let first = rng.below(4) as u32;
                    let pgs: Vec<PgId> = (first..first + columns).map(pg).collect();
                    let new = SegmentRecord::new(key.0, key.1, &pgs, rng.chance(1, 2));
                    loads.add(&new);
                    segments.insert(key, new);
                }
            }
            let mut fresh = Loads::default();
            segments.values().for_each(|segment| fresh.add(segment));
            assert_eq!((&loads.pgs, &loads.volumes), (&fresh.pgs, &fresh.volumes));
        }
        let of_one: u32 = loads.of_volume(VolumeId(1)).map(|(_, load)| load.chunks).sum();
        let counted = segments
            .values()
            .filter(|s| s.volume == VolumeId(1))
            .map(|s| s.pgs().count() as u32 * s.chunks_per_column());
        assert_eq!(of_one, counted.sum::<u32>());
        assert_eq!(loads.of_volume_in(VolumeId(9), pg(0)), VolumeLoad::default());
    }
}
