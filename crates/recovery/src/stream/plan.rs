//! The data that a stream has still to send: chunks of this round, and blocks that have changed since.
//!
//! The sender passes in the chunks of live generations that the replica holds, every applied effect and every change of the tree, and
//! asks for the next read. Sans-IO. `heirs` follows generations that end meanwhile.
//!
//! Invariant: a block that changes after its read was issued is sent again in the next round, if there is one. So at the end of a
//! round every sent block is as of the index at which the round began, or as of a later one. The blocks of a generation that is merged
//! meanwhile are sent as those of its heir, in another round.

mod heirs;

use heirs::Heirs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use types::limits::PART_MAX;
use types::planted::{Bug, on};
use types::store::{ChunkDelta, Effect, Own};
use types::tree::{Change, Tree};
use types::units::{BLOCK, CHUNK, SECTORS_PER_BLOCK};
use types::{ChunkKey, GenerationId, SectorRange};

const BLOCKS: usize = (CHUNK / BLOCK) as usize;
const PART_BLOCKS: usize = (PART_MAX / BLOCK) as usize;

/// A set of blocks of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks([u64; BLOCKS / 64]);

impl Blocks {
    pub const NONE: Blocks = Blocks([0; BLOCKS / 64]);

    pub fn contains(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }

    /// Returns the blocks of a chunk that hold data.
    pub fn held(delta: &ChunkDelta) -> Blocks {
        Blocks::of(delta, |own| own == Own::Data)
    }

    /// Returns the blocks of a chunk that are its own: data, or zeros that hide older generations.
    pub fn own(delta: &ChunkDelta) -> Blocks {
        Blocks::of(delta, |own| own != Own::Open)
    }

    fn of(delta: &ChunkDelta, is_one: impl Fn(Own) -> bool) -> Blocks {
        let (mut blocks, mut at) = (Blocks::NONE, 0);
        for (sectors, own) in &delta.runs {
            if is_one(*own) && *sectors > 0 {
                blocks.insert(SectorRange::new(at, *sectors));
            }
            at += sectors;
        }
        blocks
    }

    fn join(&mut self, other: &Blocks) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// Returns the blocks of a window of 128 from `first` on; bit 0 is the first.
    pub fn window(&self, first: usize) -> u128 {
        let bit = |n: usize| u128::from(self.contains(first + n)) << n;
        (0..u128::BITS as usize).map(bit).fold(0, |bits, bit| bits | bit)
    }

    /// Adds every block that the range touches.
    pub fn insert(&mut self, range: SectorRange) {
        for block in range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK) {
            self.0[block as usize / 64] |= 1 << (block % 64);
        }
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// A run of blocks to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The chunk that is read, and the one as whose it is sent: the follower's tree may have only the older one of the two.
    pub chunk: ChunkKey,
    pub to: ChunkKey,
    pub range: SectorRange,
    pub content: Content,
    /// The chunk's own blocks in a range whose digests are sent, where another generation may show; bit 0 is the first.
    pub own: Option<u128>,
}

/// Content of a run, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    /// No data: nothing is read. They hide older generations.
    Zeros,
    /// Data, of which the digests are sent.
    Digests,
}

#[derive(Debug)]
enum Todo {
    /// All its data; the receiver has no block of it.
    Whole,
    Some(Box<Blocks>),
}

/// Blocks of a chunk that were to be sent in this round, and in the next one.
struct Left {
    due: Blocks,
    changed: Blocks,
}

impl Default for Left {
    fn default() -> Left {
        Left { due: Blocks::NONE, changed: Blocks::NONE }
    }
}

/// Data that is left to send.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Chunks of which the receiver may have blocks, now or after this round.
    known: BTreeSet<ChunkKey>,
    queue: BTreeMap<ChunkKey, Todo>,
    parts: VecDeque<Part>,
    dirty: BTreeMap<ChunkKey, Box<Blocks>>,
    /// The receiver has older contents: whole chunks are compared.
    compare: bool,
    /// Marked blocks are more than changes that the receiver's log may have.
    owes: bool,
    heirs: Heirs,
    /// Number of finished rounds.
    pub rounds: u32,
    /// Number of whole chunks that were cut into parts, and their bytes of data: an estimate for the other chunks.
    whole: (u64, u64),
}

impl Plan {
    pub fn new(chunks: impl IntoIterator<Item = ChunkKey>, compare: bool) -> Plan {
        let known: BTreeSet<ChunkKey> = chunks.into_iter().collect();
        let queue = known.iter().map(|chunk| (*chunk, Todo::Whole)).collect();
        Plan { known, queue, compare, ..Plan::default() }
    }

    /// Notes an applied entry.
    pub fn note(&mut self, effect: &Effect) {
        match *effect {
            Effect::None => {}
            Effect::Write { .. } if on(Bug::StreamForgetsChanges) => {}
            Effect::Write { chunk, range } | Effect::Zero { chunk, range } => self.note_range(chunk, range),
            Effect::Unmap { generation, from_chunk } => self.note_unmap(generation, from_chunk),
        }
    }

    fn note_unmap(&mut self, generation: GenerationId, from_chunk: u32) {
        let cut = ChunkKey { generation, index: from_chunk }..=ChunkKey { generation, index: u32::MAX };
        let keys: Vec<ChunkKey> = self.known.range(cut).copied().collect();
        keys.into_iter().for_each(|chunk| self.note_range(chunk, SectorRange::CHUNK));
    }

    /// Sets the tree behind which the follower's log begins, or that of this round, if the contents come before the log.
    pub fn begin_at(&mut self, tree: Option<Arc<Tree>>, come_first: bool, delta: impl FnMut(ChunkKey) -> ChunkDelta) {
        let moved = self.heirs.begin_at(tree, come_first);
        let is_moved = |chunk: &&ChunkKey| moved.contains(&chunk.generation);
        let chunks: Vec<ChunkKey> = self.known.iter().filter(is_moved).copied().collect();
        // They were sent as blocks of generations that this tree lacks.
        self.owe_own(chunks, delta);
    }

    /// Notes a change of the tree: `delta` is of the state behind it.
    pub fn note_changes(&mut self, changes: &[Change], mut delta: impl FnMut(ChunkKey) -> ChunkDelta) {
        for change in changes {
            match *change {
                Change::Discard(gone) => {
                    self.heirs.end(gone, None);
                    drop(self.take_known(gone));
                }
                Change::Shorten { generation, from_chunk } => self.note_unmap(generation, from_chunk),
                Change::Merge { .. } if on(Bug::StreamMissesMerge) => {}
                Change::Merge { from, into, .. } => {
                    self.heirs.end(from, Some(into));
                    let mut sent = Vec::new();
                    for (older, left) in self.take_known(from) {
                        let chunk = ChunkKey { generation: into, ..older };
                        let is_fresh = !self.known.contains(&chunk) || self.is_whole(chunk);
                        self.known.insert(chunk);
                        match left {
                            // The receiver has no block of either.
                            None if is_fresh => _ = self.queue.insert(chunk, Todo::Whole),
                            left => {
                                let Left { due, changed } = left.unwrap_or_default();
                                // This round was to send them, and the follower's log may not have what changed them.
                                self.owes |= due != Blocks::NONE && self.heirs.sent_as(chunk).is_some();
                                self.mark(chunk, &due);
                                self.mark(chunk, &changed);
                                sent.push(chunk);
                            }
                        }
                    }
                    self.owe_own(sent, &mut delta);
                }
            }
        }
    }

    fn mark(&mut self, chunk: ChunkKey, blocks: &Blocks) {
        if *blocks != Blocks::NONE {
            self.dirty.entry(chunk).or_insert_with(|| Box::new(Blocks::NONE)).join(blocks);
        }
    }

    /// Marks all own blocks of these chunks. What is zeros now is sent as zeros, also when the store drops marks that hide nothing any
    /// more: the follower may have what they hid.
    fn owe_own(&mut self, chunks: Vec<ChunkKey>, mut delta: impl FnMut(ChunkKey) -> ChunkDelta) {
        for chunk in chunks {
            let own = Blocks::own(&delta(chunk));
            self.owes |= own != Blocks::NONE && self.heirs.sent_as(chunk).is_some();
            self.mark(chunk, &own);
        }
    }

    fn is_whole(&self, chunk: ChunkKey) -> bool {
        matches!(self.queue.get(&chunk), Some(Todo::Whole))
    }

    /// Removes the chunks of a generation. Each comes with its blocks that were still to be sent, because they have changed; `None`: nothing
    /// of it was sent.
    fn take_known(&mut self, generation: GenerationId) -> Vec<(ChunkKey, Option<Left>)> {
        let all = ChunkKey { generation, index: 0 }..=ChunkKey { generation, index: u32::MAX };
        let chunks: Vec<ChunkKey> = self.known.range(all).copied().collect();
        let of_it = |part: &Part| part.chunk.generation == generation;
        let (parts, others) = std::mem::take(&mut self.parts).into_iter().partition::<VecDeque<Part>, _>(of_it);
        self.parts = others;
        let taken = |chunk: ChunkKey| {
            self.known.remove(&chunk);
            let changed = self.dirty.remove(&chunk).map_or(Blocks::NONE, |blocks| *blocks);
            let mut due = match self.queue.remove(&chunk) {
                Some(Todo::Whole) => return (chunk, None),
                Some(Todo::Some(blocks)) => *blocks,
                None => Blocks::NONE,
            };
            let cut = parts.iter().filter(|part| part.chunk == chunk && part.content != Content::Digests);
            cut.for_each(|part| due.insert(part.range));
            (chunk, Some(Left { due, changed }))
        };
        chunks.into_iter().map(taken).collect()
    }

    /// Whether a generation has ended since the stream began: what was read of it is not sent.
    pub fn has_ended(&self, generation: GenerationId) -> bool {
        self.heirs.has_ended(generation)
    }

    /// Marks a range that must be sent in a later round: the receiver needs it, or it could not be read.
    pub fn owe(&mut self, chunk: ChunkKey, range: SectorRange) {
        self.owes = true;
        self.note_range(chunk, range);
    }

    /// Whether the contents are incomplete without another round, whatever the receiver's log has.
    pub fn owes(&self) -> bool {
        self.owes
    }

    fn note_range(&mut self, chunk: ChunkKey, range: SectorRange) {
        // An answer to digests may name a generation that has ended.
        let Some(chunk) = self.heirs.live(chunk) else { return };
        self.known.insert(chunk);
        match self.queue.get_mut(&chunk) {
            Some(Todo::Whole) => {}
            Some(Todo::Some(blocks)) => blocks.insert(range),
            None => self.dirty.entry(chunk).or_insert_with(|| Box::new(Blocks::NONE)).insert(range),
        }
    }

    /// Returns the next run to send, `None` when this round is over. `delta` returns the present delta of a chunk.
    pub fn next(&mut self, mut delta: impl FnMut(ChunkKey) -> ChunkDelta) -> Option<Part> {
        while self.parts.is_empty() {
            let (chunk, todo) = self.queue.pop_first()?;
            let delta = delta(chunk);
            let held = Blocks::held(&delta);
            let Some(to) = self.heirs.sent_as(chunk) else {
                self.keep_back(chunk, todo, &delta);
                continue;
            };
            self.parts = match todo {
                // The receiver has no block of this chunk, so what is open need not be sent.
                Todo::Whole => {
                    self.whole = (self.whole.0 + 1, self.whole.1 + held.count() * BLOCK);
                    let own = Blocks::own(&delta);
                    match self.compare {
                        true => windows((chunk, to), &own, delta.is_deep),
                        false => cut_up((chunk, to), &own, &held),
                    }
                }
                Todo::Some(blocks) => cut_up((chunk, to), &blocks, &held),
            };
        }
        self.parts.pop_front()
    }

    /// Keeps blocks for a round in which the follower's tree has their generation: its log has every entry that changed them.
    fn keep_back(&mut self, chunk: ChunkKey, todo: Todo, delta: &ChunkDelta) {
        let blocks = match todo {
            Todo::Whole => Box::new(Blocks::own(delta)),
            Todo::Some(blocks) => blocks,
        };
        self.mark(chunk, &blocks);
    }

    pub fn is_round_over(&self) -> bool {
        self.queue.is_empty() && self.parts.is_empty()
    }

    /// Returns the bytes of the blocks that the next round would send.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.values().map(|blocks| blocks.count()).sum::<u64>() * BLOCK
    }

    /// Estimates the rest of this round, in the measure of `weigh`, such as [`bytes`] or [`cost`]: unread chunks count as much as the
    /// others, on average.
    pub fn rest_of_round(&self, weigh: impl Fn(Content, u64) -> u64) -> u64 {
        let whole = if self.compare { Content::Digests } else { Content::Data };
        let guess = weigh(whole, self.whole.1.checked_div(self.whole.0).unwrap_or(CHUNK));
        let queued = self.queue.values().map(|todo| match todo {
            Todo::Whole => guess,
            Todo::Some(blocks) => weigh(Content::Data, blocks.count() * BLOCK),
        });
        let parts = self.parts.iter().map(|part| weigh(part.content, part.range.len_bytes() as u64));
        queued.chain(parts).fold(0, u64::saturating_add)
    }

    /// Begins the next round with the changed blocks.
    ///
    /// # Panics
    /// When this one is not over.
    pub fn next_round(&mut self) {
        assert!(self.is_round_over(), "one round at a time");
        self.owes = false;
        self.rounds += 1;
        self.queue = std::mem::take(&mut self.dirty).into_iter().map(|(key, set)| (key, Todo::Some(set))).collect();
    }
}

/// Returns how many of so many bytes are data.
pub(crate) fn bytes(content: Content, len: u64) -> u64 {
    if content == Content::Zeros { 0 } else { len }
}

/// Returns what it costs to read and send so many bytes, in bytes.
pub(crate) fn cost(content: Content, len: u64) -> u64 {
    match content {
        Content::Zeros => 0,
        Content::Data => len,
        // It takes the device's time and not the network's.
        Content::Digests => len / 4,
    }
}

/// Splits `blocks` into runs: those with data inside aligned parts, those without at any length.
fn cut_up((chunk, to): (ChunkKey, ChunkKey), blocks: &Blocks, held: &Blocks) -> VecDeque<Part> {
    let mut parts = VecDeque::new();
    let mut at = 0;
    while at < BLOCKS {
        if !blocks.contains(at) {
            at += 1;
            continue;
        }
        let data = held.contains(at);
        let limit = if data { (at / PART_BLOCKS + 1) * PART_BLOCKS } else { BLOCKS };
        let end = (at..limit).find(|n| !blocks.contains(*n) || held.contains(*n) != data).unwrap_or(limit);
        let sectors = |blocks: usize| blocks as u32 * SECTORS_PER_BLOCK;
        let content = if data { Content::Data } else { Content::Zeros };
        let range = SectorRange::new(sectors(at), sectors(end - at));
        parts.push_back(Part { chunk, to, range, content, own: None });
        at = end;
    }
    parts
}

/// Returns the aligned parts of the chunk that have blocks of its own, each as a whole.
fn windows((chunk, to): (ChunkKey, ChunkKey), own: &Blocks, is_deep: bool) -> VecDeque<Part> {
    let firsts = (0..BLOCKS).step_by(PART_BLOCKS).filter(|first| own.window(*first) != 0);
    let sectors = PART_BLOCKS as u32 * SECTORS_PER_BLOCK;
    let range = |first: usize| SectorRange::new(first as u32 * SECTORS_PER_BLOCK, sectors);
    let part = |first| {
        let own = is_deep.then(|| own.window(first));
        Part { chunk, to, range: range(first), content: Content::Digests, own }
    };
    firsts.map(part).collect()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod flat_tests {
    use super::*;
    use types::GenerationId;
    use types::rng::Rng;
    use types::units::SECTORS_PER_CHUNK;

    fn key(index: u32) -> ChunkKey {
        ChunkKey { generation: GenerationId(1), index }
    }

    /// A chunk over which nothing shows, by its extents as (sectors, data).
    fn flat(runs: &[(u32, bool)]) -> ChunkDelta {
        let own = |(sectors, data): &(u32, bool)| (*sectors, if *data { Own::Data } else { Own::Open });
        ChunkDelta { runs: runs.iter().map(own).collect(), is_deep: false }
    }

    fn all(plan: &mut Plan, extents: impl Fn(ChunkKey) -> ChunkDelta) -> Vec<(u32, u32, u32, bool)> {
        std::iter::from_fn(|| plan.next(&extents))
            .map(|p| (p.chunk.index, p.range.start, p.range.count, p.content == Content::Data))
            .collect()
    }

    #[test]
    fn the_first_round_sends_data_in_whole_blocks_and_no_holes() {
        let extents =
            |_| flat(&[(4, false), (8, true), (2036, false), (1024, true), (SECTORS_PER_CHUNK - 3072, false)]);
        let mut plan = Plan::new([key(3)], false);
        assert_eq!(all(&mut plan, extents), [(3, 0, 16, true), (3, 2048, 1024, true)]);
        assert!(plan.is_round_over() && plan.dirty_bytes() == 0);
        let mut plan = Plan::new([key(1), key(2)], false);
        let whole = |_| flat(&[(SECTORS_PER_CHUNK, true)]);
        assert_eq!(all(&mut plan, whole).len(), 64, "parts of 512 KiB");
        let mut plan = Plan::new([key(3)], true);
        let first = plan.next(extents).expect("it holds data");
        assert_eq!((first.content, first.range), (Content::Digests, SectorRange::new(0, 1024)));
        let rest: Vec<u32> = std::iter::from_fn(|| plan.next(extents)).map(|p| p.range.start).collect();
        assert_eq!(rest, [2048], "windows without data are not compared");
    }

    #[test]
    fn blocks_changed_behind_the_reader_are_sent_again_others_are_not() {
        let extents = |_: ChunkKey| flat(&[(SECTORS_PER_CHUNK, true)]);
        let mut plan = Plan::new([key(1), key(2)], false);
        assert_eq!(plan.next(extents).map(|p| p.chunk), Some(key(1)));
        let range = SectorRange::new(7, 2);
        plan.note(&Effect::Write { chunk: key(1), range });
        plan.note(&Effect::Write { chunk: key(2), range });
        plan.note(&Effect::Zero { chunk: key(9), range: SectorRange::new(0, 8) });
        while plan.next(extents).is_some() {}
        assert_eq!(plan.dirty_bytes(), 3 * BLOCK);
        plan.next_round();
        assert_eq!(plan.rounds, 1);
        let holes = |chunk: ChunkKey| flat(&[(SECTORS_PER_CHUNK, chunk == key(1))]);
        assert_eq!(all(&mut plan, holes), [(1, 0, 16, true), (9, 0, 8, false)]);
    }

    #[test]
    fn a_cut_erases_everything_that_was_sent_of_its_chunks() {
        let extents = |_: ChunkKey| flat(&[(SECTORS_PER_CHUNK, true)]);
        let mut plan = Plan::new([key(1), key(2), key(3)], false);
        while plan.next(extents).is_some() {}
        plan.note(&Effect::Unmap { generation: GenerationId(1), from_chunk: 2 });
        plan.next_round();
        let none = |_: ChunkKey| flat(&[(SECTORS_PER_CHUNK, false)]);
        assert_eq!(all(&mut plan, none), [(2, 0, SECTORS_PER_CHUNK, false), (3, 0, SECTORS_PER_CHUNK, false)]);
    }

    /// A chunk as a list of block values; writes come while a slow reader copies.
    #[test]
    fn a_copy_under_writes_ends_up_equal() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let chunks = 3usize;
            let mut here = vec![vec![0u64; BLOCKS]; chunks];
            let mut there = vec![vec![0u64; BLOCKS]; chunks];
            (0..400).for_each(|n| here[n % chunks][rng.below(300) as usize] = n as u64 + 1);
            let extents = |here: &Vec<Vec<u64>>, chunk: ChunkKey| -> ChunkDelta {
                let runs = here[chunk.index as usize].iter().map(|v| (SECTORS_PER_BLOCK, *v != 0));
                flat(&runs.collect::<Vec<_>>())
            };
            let mut plan = Plan::new((0..chunks as u32).map(key), false);
            loop {
                while let Some(part) = plan.next(|chunk| extents(&here, chunk)) {
                    for block in part.range.start / 8..part.range.end() / 8 {
                        let (c, b) = (part.chunk.index as usize, block as usize);
                        there[c][b] = if part.content == Content::Data { here[c][b] } else { 0 };
                    }
                    // Writes go on, at first faster than the copy.
                    if plan.rounds < 4 && rng.chance(1, 2) {
                        let (c, b) = (rng.below(3) as usize, rng.below(300) as usize);
                        let (chunk, range) = (key(c as u32), SectorRange::new(b as u32 * 8 + 3, 2));
                        match rng.below(10) {
                            0 => {
                                here[2].fill(0);
                                plan.note(&Effect::Unmap { generation: GenerationId(1), from_chunk: 2 });
                            }
                            1 => {
                                here[c][b] = 0;
                                plan.note(&Effect::Zero { chunk, range: SectorRange::new(b as u32 * 8, 8) });
                            }
                            _ => {
                                here[c][b] = rng.next_u64();
                                plan.note(&Effect::Write { chunk, range });
                            }
                        }
                    }
                }
                if plan.dirty_bytes() == 0 {
                    break;
                }
                plan.next_round();
            }
            assert!(here == there, "seed {seed}");
        }
    }
}
