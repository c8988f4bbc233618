//! A model of shrinks in PGs: searches behind a new end, and places that are wiped there, as `group` and the OSD answer them.

use super::*;
use types::SectorRange;
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder, TailStep};

#[derive(Default)]
pub struct Tails {
    /// A chunk of a volume that has data in a PG.
    pub data: BTreeMap<(PgId, VolumeId), u32>,
    /// First searches, which are told to go on.
    searched: BTreeSet<(PgId, VolumeId, u32)>,
    /// Places that were zeroed.
    pub wiped: BTreeSet<(PgId, VolumeId, u32, SectorRange)>,
}

impl Tails {
    /// Answers an order of a shrink in a PG that has volumes at these epochs of their lengths; `None`: it is another order.
    pub fn take(
        &mut self,
        pg: PgId,
        here: impl Fn(VolumeId) -> Option<(u32, u32)>,
        order: &SnapshotOrder,
    ) -> Option<SnapshotAnswer> {
        match order {
            SnapshotOrder::Find { volume, len_epoch, tail } => {
                let is_behind = |chunk: &u32| *chunk >= tail.from_chunk || tail.parts.iter().any(|(of, _)| of == chunk);
                let data = self.data.get(&(pg, *volume)).copied().filter(is_behind);
                let result = match (here(*volume), data) {
                    (None, _) => Err(CutRefusal::Absent),
                    (Some((here, chunk_count)), _) if here > *len_epoch => {
                        Err(CutRefusal::LaterLength { len_epoch: here, chunk_count })
                    }
                    (_, None) if self.searched.insert((pg, *volume, *len_epoch)) => {
                        Ok(TailStep::Searched { next: tail.from_chunk + 1 })
                    }
                    (_, data) => Ok(data.map_or(TailStep::Empty, |chunk| TailStep::Data { chunk })),
                };
                Some(SnapshotAnswer::Found { volume: *volume, len_epoch: *len_epoch, result })
            }
            SnapshotOrder::Wipe { volume, len_epoch, chunk, range } => {
                let result = match here(*volume) {
                    Some((here, _)) if here == *len_epoch => {
                        self.wiped.insert((pg, *volume, *chunk, *range));
                        Ok(())
                    }
                    Some((here, chunk_count)) if here > *len_epoch => {
                        Err(CutRefusal::LaterLength { len_epoch: here, chunk_count })
                    }
                    _ => Err(CutRefusal::Absent),
                };
                Some(SnapshotAnswer::Wiped { volume: *volume, len_epoch: *len_epoch, chunk: *chunk, result })
            }
            _ => None,
        }
    }
}
