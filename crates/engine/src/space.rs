//! Counts the device space that the overlay will need, and the space that is left (R13).
//!
//! Each chunk of a layer knows which of its AUs hold data, and which of those home will newly have to provide. The
//! OSD's loop asks what a write would need and what is left; it grants and refuses, the engine only counts.
//!
//! Invariant: the counts of the layers equal a recount over their intervals and home's map. An AU is needed when home
//! does not hold it below what the layer sees: an AU that a cut hides is a new one again.

use crate::engine::Engine;
use crate::home::Home;
use crate::lineage::View;
use crate::overlay::Source;
use crate::replica::Replica;
use crate::resolve::Sources;
use std::ops::RangeInclusive;
use std::time::Duration;
use types::tree::Change;
use types::units::{AUS_PER_CHUNK, SECTORS_PER_AU};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange, Time};

/// AUs that share one CRC page.
const QUARTER: u32 = AUS_PER_CHUNK / 4;
/// Most slots that an AU costs: a map page, a CRC page, a directory page.
const SLOTS_PER_AU_MAX: u64 = 3;
/// Interval between two rounds that only free space.
const FREEING_GAP: Duration = Duration::from_millis(200);

const _: () = assert!(QUARTER == u64::BITS, "a word of a set is a CRC page's quarter");

/// A set of AUs of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuSet([u64; 4]);

impl AuSet {
    pub fn of(aus: impl Iterator<Item = u32>) -> AuSet {
        let mut set = AuSet::default();
        aus.for_each(|au| set.insert(au));
        set
    }

    /// Returns the AUs whose flag is set.
    pub fn from_flags(flags: [bool; AUS_PER_CHUNK as usize]) -> AuSet {
        let (words, _) = flags.as_chunks::<{ QUARTER as usize }>();
        let mut set = AuSet::default();
        for (word, flags) in set.0.iter_mut().zip(words) {
            *word = flags.iter().rev().fold(0, |word, flag| word << 1 | u64::from(*flag));
        }
        set
    }

    pub fn insert(&mut self, au: u32) {
        self.0[(au / QUARTER) as usize] |= 1 << (au % QUARTER);
    }

    pub fn remove(&mut self, au: u32) {
        self.0[(au / QUARTER) as usize] &= !(1 << (au % QUARTER));
    }

    pub fn contains(&self, au: u32) -> bool {
        self.0[(au / QUARTER) as usize] >> (au % QUARTER) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Counts the AUs below this one.
    pub fn rank(&self, au: u32) -> usize {
        let word = (au / QUARTER) as usize;
        let below: u32 = self.0[..word].iter().map(|word| word.count_ones()).sum();
        (below + (self.0[word] & ((1 << (au % QUARTER)) - 1)).count_ones()) as usize
    }

    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the union of both sets.
    pub fn or(mut self, other: AuSet) -> AuSet {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
        self
    }

    /// Returns the AUs that only this set has.
    pub fn without(mut self, other: AuSet) -> AuSet {
        self.0.iter_mut().zip(other.0).for_each(|(word, less)| *word &= !less);
        self
    }

    /// Whether some AU is in both sets.
    pub fn meets(&self, other: AuSet) -> bool {
        self.0.iter().zip(other.0).any(|(word, more)| word & more != 0)
    }

    /// Number of CRC pages that this set needs and `other` does not.
    fn quarters_beyond(&self, other: &AuSet) -> u64 {
        self.0.iter().zip(other.0).filter(|(word, has)| **word != 0 && *has == 0).count() as u64
    }
}

/// Space held below a chunk's layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub aus: AuSet,
    /// AUs that the chunk has not, and that it takes from dissolved generations with its first data there.
    pub inherits: AuSet,
    /// The chunk has its map page and its place in a directory.
    pub listed: bool,
    /// Older generations show where the chunk is open: zeros of it take a place in its map page.
    pub shows_older: bool,
}

impl Held {
    /// Returns the space that is held where a cut hides the chunk.
    pub fn cut(self) -> Held {
        Held { shows_older: self.shows_older, ..Held::default() }
    }
}

/// Space that a layer of a chunk will newly take at home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub aus: u64,
    pub slots: u64,
}

impl Need {
    /// Computes the need of a layer of a chunk that takes the AUs in `data`, over `held`.
    pub fn of(data: AuSet, held: Held) -> Need {
        let new = data.without(held.aus);
        if new.is_empty() && (held.listed || !held.shows_older) {
            return Need::default();
        }
        let slots = if held.listed { 0 } else { 2 } + new.quarters_beyond(&held.aus);
        Need { aus: new.without(held.inherits).len(), slots }
    }

    pub fn add(&mut self, other: Need) {
        self.aus += other.aus;
        self.slots += other.slots;
    }

    pub fn take(&mut self, other: Need) {
        assert!(self.aus >= other.aus && self.slots >= other.slots, "{self:?} less {other:?}");
        self.aus -= other.aus;
        self.slots -= other.slots;
    }
}

/// Free AUs and slots of home, without the pending-free ones and the reserve. AUs and slots that a running round has
/// taken count as free. So the value less the overlay's needs is the same before, in and after a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    pub aus: u64,
    pub slots: u64,
}

/// Space that a device has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Free AUs, without those pending free and the reserve.
    pub free_aus: u64,
    /// AUs of these that the overlay will take.
    pub dirty_new_aus: u64,
    /// AUs that may still be granted, as far as AUs and slots go.
    pub available_aus: u64,
    /// A round that is running or due may free space.
    pub releasing: bool,
    /// Even the smallest round does not fit: no write that needs space in the log can be taken any more.
    pub refused: bool,
}

impl Engine {
    /// Returns the space that is left, exact as of the applied index.
    pub fn space(&self) -> Space {
        let room = self.home.as_ref().map(Home::room).unwrap_or_default();
        let need = self.replicas.need();
        let slots = room.slots.saturating_sub(need.slots);
        Space {
            free_aus: room.aus,
            dirty_new_aus: need.aus,
            available_aus: room.aus.saturating_sub(need.aus).min(slots / SLOTS_PER_AU_MAX),
            releasing: self.destage.releasing || self.destage.round_releases || self.destage.merges.may_free(),
            refused: self.destage.refused && self.destage.replicas_max == 1,
        }
    }

    /// Returns how many AUs a write of `range` would newly need now. Trimmed AUs count as freed already, so that all
    /// replicas of a PG agree.
    pub fn new_aus(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> u32 {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return 0 };
        let aus = range.start / SECTORS_PER_AU..=(range.end() - 1) / SECTORS_PER_AU;
        // Dissolved generations count: members merge them at different times.
        let delta = || r.lineage.steps(chunk.generation, chunk.index, View::Delta);
        let sources = Sources { home: Some(home), ..r.sources(home) };
        let shown = |au: &u32| {
            let has_au = |generation| {
                let key = ChunkKey { generation, ..chunk };
                home.holds(replica, key, *au) || r.overlay.has_data(key, *au)
            };
            r.overlay.has_data(chunk, *au) || delta().any(has_au) && shows_au(&sources, chunk, *au)
        };
        aus.filter(|au| !shown(au)).count() as u32
    }

    /// Reports whether the OSD's loop lacks space to grant. Rounds that free space are then wanted soon, until none
    /// would free any.
    pub fn want_space(&mut self, wanted: bool) {
        self.destage.space_wanted = wanted || (self.destage.space_wanted && self.destage.releasing);
    }

    /// Whether space is wanted and a round would free some.
    pub(crate) fn frees_space(&self) -> bool {
        self.destage.space_wanted && self.destage.maybe_dirty && (self.destage.releasing || self.are_slots_short())
    }

    fn are_slots_short(&self) -> bool {
        let space = self.space();
        space.available_aus < space.free_aus.saturating_sub(space.dirty_new_aus)
    }

    pub(crate) fn freeing_at(&self) -> Time {
        self.destage.last_round + FREEING_GAP
    }

    /// Counts again what the active layer of one chunk needs.
    pub(crate) fn judge_space(&mut self, replica: ReplicaId, chunk: ChunkKey) {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return };
        let held = held(home, &r, chunk);
        r.overlay.judge(chunk, held);
    }

    /// Counts again what a replica's active layer needs.
    pub(crate) fn judge_all_space(&mut self, replica: ReplicaId) {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return };
        let keys: Vec<ChunkKey> = r.overlay.active().chunks.keys().copied().collect();
        for chunk in keys {
            let held = held(home, &r, chunk);
            r.overlay.judge(chunk, held);
        }
    }

    /// Counts again what those chunks of a replica's active layer need that show more older generations than before, or fewer. A tree
    /// changes few of them: a new head has no chunk, and its parent shows what it did.
    pub(crate) fn judge_reached(&mut self, replica: ReplicaId, before: &[(GenerationId, u32)]) {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return };
        for (generation, reach) in before {
            let now = r.lineage.reach(*generation);
            if now == *reach {
                continue;
            }
            judge_range(&mut r, home, *generation, now.min(*reach)..=now.max(*reach));
        }
    }

    /// Counts again what chunks of merged generations and of their heirs in a replica's active layer need: they inherit from others than
    /// before.
    pub(crate) fn judge_heirs(&mut self, replica: ReplicaId, changes: &[Change]) {
        let (Some(mut r), Some(home)) = (self.replicas.get_mut(&replica), &self.home) else { return };
        for change in changes {
            if let Change::Merge { from, into, .. } = change {
                [*from, *into].into_iter().for_each(|id| judge_range(&mut r, home, id, 0..=u32::MAX));
            }
        }
    }

    /// Recounts the needs from intervals and map. While home is in a round, its map is ahead of the frozen layers'
    /// counts.
    #[cfg(test)]
    pub(crate) fn recount_space(&self) -> Need {
        let home = self.home.as_ref().expect("mounted");
        let mut need = Need::default();
        for r in self.replicas.values() {
            need.add(r.overlay.recount(|chunk| held(home, r, chunk)));
        }
        need
    }

    /// Returns the needs as counted.
    #[cfg(test)]
    pub(crate) fn counted_space(&self) -> Need {
        self.replicas.footprint().need
    }
}

fn judge_range(r: &mut Replica, home: &Home, generation: GenerationId, indexes: RangeInclusive<u32>) {
    let key = |index| ChunkKey { generation, index };
    let range = key(*indexes.start())..=key(*indexes.end());
    let keys: Vec<ChunkKey> = r.overlay.active().chunks.range(range).map(|(key, _)| *key).collect();
    for chunk in keys {
        let held = held(home, r, chunk);
        r.overlay.judge(chunk, held);
    }
}

/// Returns the space of the chunk at home that the overlay's data can use. Contents that a stream will replace do not count.
fn held(home: &Home, r: &Replica, chunk: ChunkKey) -> Held {
    let shows_older = r.lineage.shows_older(chunk);
    if r.is_filling() {
        return Held { shows_older, ..Held::default() };
    }
    let id = r.identity.replica;
    let older: Vec<GenerationId> = r.lineage.older_of(chunk).collect();
    let mut inherits = home.inheritable(id, chunk, &older);
    for generation in older {
        // Blocks of it in the overlay may empty the AU, or keep a round from giving it away.
        inherits = r.overlay.untouched(ChunkKey { generation, ..chunk }, inherits);
    }
    Held { shows_older, inherits, ..home.held(id, chunk) }
}

/// Whether data of this AU shows in the delta of the chunk's generation.
fn shows_au(sources: &Sources<'_>, chunk: ChunkKey, au: u32) -> bool {
    sources.resolve(View::Delta, chunk, SectorRange::of_au(au)).parts.iter().any(|f| match f.source {
        Source::Data(_) => true,
        Source::Home(key) => sources.home.is_some_and(|home| home.has_data(sources.replica, key, f.range)),
        Source::Zeros | Source::Open | Source::Hidden => false,
    })
}
