//! Home, its disk, and a model of what home holds: one stamp for each block.
//!
//! The rig acts as the log side: it keeps the checkpoint records, and its `frozen` blocks are the overlay.

use crate::home::{Home, HomeLimits};
use crate::home_api::{
    At, BlockData, ChunkDirty, ChunkMerge, HOME_KEY_BIT, HomeEvent, HomeReadError, HomeRegion, HomeTokens, Piece,
    Round, RoundState, Unmap,
};
use crate::tests::disk::Disk;
use bytes::Bytes;
use env::{DiskInfo, DiskKind, Op};
use std::collections::{BTreeMap, BTreeSet};
use types::rng::Rng;
use types::store::DecisionState;
use types::{AU, ChunkKey, GenerationId, Index, IoBuf, IoBufMut, ReplicaId, SectorRange, Term, Time};

pub(super) type Key = (ReplicaId, ChunkKey, u16);
pub(super) const START: u64 = 2 * AU;
/// Family of all chunks: it is the generation of none.
pub(super) const FAMILY: GenerationId = GenerationId(77);

/// A round in terms of the model: stamp 0 is a zero block.
#[derive(Clone, Default)]
pub(super) struct Plan {
    pub(super) blocks: BTreeMap<Key, u64>,
    pub(super) unmaps: Vec<Unmap>,
    pub(super) destroyed: Vec<ReplicaId>,
    /// AUs of chunks that the round adopts, and the units that hold their bytes.
    pub(super) adopts: BTreeMap<(ReplicaId, ChunkKey, u16), u32>,
    pub(super) released: Vec<(ReplicaId, Vec<u32>)>,
    pub(super) merges: Vec<ChunkMerge>,
    pub(super) states: Vec<(ReplicaId, u64)>,
    /// Generations with a parent: a zero block of theirs is a zero mark, which the model keeps as stamp 0.
    pub(super) marks: BTreeSet<GenerationId>,
    /// Generations above dissolved ones, the newest of these first.
    pub(super) older: BTreeMap<GenerationId, Vec<GenerationId>>,
}

pub(super) struct Rig {
    pub(super) home: Home,
    pub(super) disk: Disk,
    pub(super) limits: HomeLimits,
    pub(super) region: HomeRegion,
    /// Records of the last durable checkpoint.
    pub(super) records: Option<Vec<Bytes>>,
    /// Blocks as of that checkpoint.
    pub(super) base: BTreeMap<Key, u64>,
    /// The overlay: the plan of the running round.
    pub(super) frozen: Plan,
    pub(super) events: Vec<HomeEvent>,
    pub(super) ops: Vec<Op>,
    pub(super) rng: Rng,
    pub(super) stamp: u64,
}

pub(super) fn chunk(generation: u64, index: u32) -> ChunkKey {
    ChunkKey { generation: GenerationId(generation), index }
}

/// Returns the bytes of a block with this stamp.
pub(super) fn bytes_of(stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for (word, cell) in (0..).zip(bytes.chunks_exact_mut(8)) {
        cell.copy_from_slice(&(stamp << 16 | word).to_le_bytes());
    }
    // All blocks end in their own CRC32C, and so have one CRC32C.
    let crc = types::crc32c(&bytes[..4092]);
    bytes[4092..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn state(replica: ReplicaId, index: u64) -> RoundState {
    let bytes = |n: u64, len: u64| Bytes::from(bytes_of(replica.0 << 32 | n).repeat(2)[..len as usize].to_vec());
    RoundState {
        decision: DecisionState {
            replica,
            index: Index(index),
            term: Term(1),
            bytes: bytes(index, 5000 * (index % 2)),
        },
        commit: Index(index + 1),
        dissolved: bytes(index / 3, 4100 * u64::from(index > 20 && index / 3 % 2 == 1)),
    }
}

impl Plan {
    pub(super) fn states(replicas: &[u64], index: u64) -> Plan {
        Plan { states: replicas.iter().map(|r| (ReplicaId(*r), index)).collect(), ..Plan::default() }
    }

    pub(super) fn put(
        mut self,
        replica: u64,
        chunk: ChunkKey,
        blocks: impl IntoIterator<Item = u16>,
        stamp: u64,
    ) -> Plan {
        self.blocks.extend(blocks.into_iter().map(|b| ((ReplicaId(replica), chunk, b), stamp)));
        self
    }

    fn round(&self) -> Round {
        let mut chunks: BTreeMap<(ReplicaId, ChunkKey), Vec<(u16, BlockData)>> = BTreeMap::new();
        for ((replica, chunk, block), stamp) in &self.blocks {
            chunks.entry((*replica, *chunk)).or_default().push((*block, data(*stamp)));
        }
        Round {
            states: self.states.iter().map(|(r, i)| state(*r, *i)).collect(),
            unmaps: self.unmaps.clone(),
            chunks: chunks
                .into_iter()
                .map(|((replica, chunk), blocks)| {
                    let of = self.adopts.range((replica, chunk, 0)..=(replica, chunk, u16::MAX));
                    let adopts = of.map(|((.., at), unit)| (*at, *unit)).collect();
                    let marks = self.marks.contains(&chunk.generation);
                    let older = self.older.get(&chunk.generation).cloned().unwrap_or_default();
                    ChunkDirty { replica, chunk, family: FAMILY, marks, older, blocks, adopts }
                })
                .collect(),
            destroyed: self.destroyed.clone(),
            installs: Vec::new(),
            released: self.released.clone(),
            merges: self.merges.clone(),
        }
    }

    pub(super) fn drops(&self, (replica, chunk, _): &Key) -> bool {
        let cut = |c: &Unmap| c.replica == *replica && c.generation == chunk.generation && c.from_chunk <= chunk.index;
        self.destroyed.contains(replica) || self.unmaps.iter().any(cut)
    }

    /// Applies the plan to the model.
    pub(super) fn apply(&self, base: &mut BTreeMap<Key, u64>) {
        base.retain(|key, _| !self.drops(key));
        self.merges.iter().for_each(|merge| self.merge(merge, base));
        let mut place = None;
        for (key, stamp) in &self.blocks {
            if place.replace((key.0, key.1, key.2 / 16)) != Some((key.0, key.1, key.2 / 16)) {
                self.inherit((key.0, key.1, key.2 / 16), base);
            }
            if *stamp == 0 && !self.marks.contains(&key.1.generation) {
                base.remove(key);
            } else {
                base.insert(*key, *stamp);
            }
        }
    }
}

impl Plan {
    /// Returns the blocks of a place of the round, with their stamps.
    pub(super) fn written(&self, (replica, chunk, place): Key) -> impl Iterator<Item = (u16, u64)> {
        let blocks = self.blocks.range((replica, chunk, place * 16)..(replica, chunk, place * 16 + 16));
        blocks.map(|((.., block), stamp)| (*block, *stamp))
    }

    /// Moves the blocks of an older generation, whose AU the round takes for its data in a place.
    fn inherit(&self, (replica, chunk, place): Key, base: &mut BTreeMap<Key, u64>) {
        let blocks_of = |base: &BTreeMap<Key, u64>, chunk| {
            let all = base.range((replica, chunk, place * 16)..(replica, chunk, place * 16 + 16));
            all.map(|((.., block), stamp)| (*block, *stamp)).collect::<Vec<_>>()
        };
        let has_data = |blocks: &[(u16, u64)]| blocks.iter().any(|(_, stamp)| *stamp > 0);
        let written: Vec<(u16, u64)> = self.written((replica, chunk, place)).collect();
        let own = blocks_of(base, chunk);
        if has_data(&own) || !has_data(&written) {
            return;
        }
        let mut hidden: BTreeSet<u16> = own.iter().map(|(block, _)| *block).collect();
        for older in self.older.get(&chunk.generation).into_iter().flatten() {
            let older = ChunkKey { generation: *older, ..chunk };
            let blocks = blocks_of(base, older);
            if has_data(&blocks) {
                if has_data(&self.written((replica, older, place)).collect::<Vec<_>>()) {
                    return;
                }
                hidden.extend(written.iter().filter(|(_, stamp)| *stamp > 0).map(|(block, _)| *block));
                for (block, stamp) in blocks.into_iter().filter(|(_, stamp)| *stamp > 0) {
                    base.remove(&(replica, older, block));
                    if !hidden.contains(&block) {
                        base.insert((replica, chunk, block), stamp);
                    }
                }
                return;
            }
            hidden.extend(blocks.iter().map(|(block, _)| *block));
        }
    }

    /// Applies a merge to the model, as far as rules M1 to M4 let the round carry it out.
    fn merge(&self, merge: &ChunkMerge, base: &mut BTreeMap<Key, u64>) {
        let ChunkMerge { replica, from, into, hidden, marks, ref copies, .. } = *merge;
        let older: Vec<(u16, u64)> = of_chunk(base, replica, from).collect();
        for all in older.chunk_by(|a, b| a.0 / 16 == b.0 / 16) {
            let of_heir = |block: u16| base.get(&(replica, into, block)).copied();
            let is_written = |block: &u16| self.blocks.contains_key(&(replica, into, *block));
            let place = all[0].0 / 16 * 16..all[0].0 / 16 * 16 + 16;
            let has_au = place.clone().any(|block| of_heir(block).is_some_and(|stamp| stamp > 0));
            let open: Vec<(u16, u64)> = all.iter().copied().filter(|(block, _)| of_heir(*block).is_none()).collect();
            let shows = open.iter().any(|(_, stamp)| *stamp > 0);
            let mut copied = open.iter().filter(|(block, stamp)| *stamp > 0 && !is_written(block));
            let is_copied = copied.all(|(block, _)| copies.iter().any(|(of, _)| of == block));
            let stays = shows && if has_au { !is_copied } else { place.clone().any(|block| is_written(&block)) };
            if stays && !hidden {
                continue;
            }
            for (block, _) in all {
                base.remove(&(replica, from, *block));
            }
            let given = open.into_iter().filter(|(block, stamp)| if *stamp > 0 { !is_written(block) } else { marks });
            base.extend(given.filter(|_| !hidden).map(|(block, stamp)| ((replica, into, block), stamp)));
        }
        if !marks && !hidden && of_chunk(base, replica, from).next().is_none() && !older.is_empty() {
            base.retain(|key, stamp| (key.0, key.1) != (replica, into) || *stamp > 0);
        }
    }
}

/// Returns the blocks of a chunk in the model.
pub(super) fn of_chunk(
    base: &BTreeMap<Key, u64>,
    replica: ReplicaId,
    chunk: ChunkKey,
) -> impl Iterator<Item = (u16, u64)> {
    base.range((replica, chunk, 0)..=(replica, chunk, u16::MAX)).map(|((.., block), stamp)| (*block, *stamp))
}

/// Returns a block that lies in memory as in a receive buffer: 512-aligned.
fn data(stamp: u64) -> BlockData {
    if stamp == 0 {
        return BlockData::Zero;
    }
    let mut buf = IoBufMut::new(8192);
    let at = (stamp % 8) as usize * 512;
    buf[at..at + 4096].copy_from_slice(&bytes_of(stamp));
    let buf: IoBuf = buf.freeze().slice(at..at + 4096);
    BlockData::Bytes { crc: types::crc32c(&buf), buf }
}

impl Rig {
    /// Creates a home of `len_bytes` on a file with a volatile cache.
    pub(super) fn new(seed: u64, len_bytes: u64, limits: HomeLimits) -> Rig {
        Rig::on(seed, (DiskKind::File, 512, true), len_bytes, limits)
    }

    /// Does the same on a disk of this kind and alignment, with or without a volatile cache.
    pub(super) fn on(
        seed: u64,
        (kind, align_bytes, volatile): (DiskKind, u32, bool),
        len_bytes: u64,
        limits: HomeLimits,
    ) -> Rig {
        let mut disk = Disk::new(START + len_bytes, seed, volatile);
        disk.info = DiskInfo { kind, align_bytes, ..disk.info };
        disk.in_parts = true;
        disk.fill(0, disk.bytes().len(), 0xa5);
        let region = HomeRegion { start: START, len_bytes };
        let home = Home::new(disk.info.clone(), region, HomeTokens { owner: 9 }, limits);
        let mut rig = Rig {
            home,
            disk,
            limits,
            region,
            records: None,
            base: BTreeMap::new(),
            frozen: Plan::default(),
            events: Vec::new(),
            ops: Vec::new(),
            rng: Rng::new(99),
            stamp: 1,
        };
        assert_eq!(rig.mount(), (vec![], vec![]));
        rig
    }

    /// Starts a new process. The caller has dropped the operations in flight (`power_cut`).
    pub(super) fn mount(&mut self) -> (Vec<RoundState>, Vec<(ReplicaId, String)>) {
        assert!(self.disk.is_idle());
        self.events.clear();
        self.frozen = Plan::default();
        self.home = Home::new(self.disk.info.clone(), self.region, HomeTokens { owner: 9 }, self.limits);
        self.home.start_mount(Time::ZERO, self.records.clone(), &mut self.ops, &mut self.events);
        self.settle();
        match self.events.pop() {
            Some(HomeEvent::Mounted { states, damaged }) => {
                (states, damaged.into_iter().map(|lost| (lost.replica, lost.reason)).collect())
            }
            other => panic!("mount ended with {other:?}"),
        }
    }

    /// Runs one completion, or a part of a write that lands.
    pub(super) fn step(&mut self) {
        self.disk.submit(&mut self.ops);
        if let Some(event) = self.disk.step() {
            let (env::Event::DiskRead { token, .. }
            | env::Event::DiskWrite { token, .. }
            | env::Event::DiskFlush { token, .. }) = &event
            else {
                panic!("{event:?}")
            };
            assert!(token.owner == 9 && token.key & HOME_KEY_BIT != 0);
            self.home.handle_event(Time::ZERO, event, &mut self.ops, &mut self.events);
        }
        self.home.step_round(&mut self.ops, &mut self.events);
        self.disk.submit(&mut self.ops);
    }

    pub(super) fn settle(&mut self) {
        self.disk.submit(&mut self.ops);
        while !self.is_idle() {
            self.step();
        }
    }

    /// Whether neither the disk nor the round has anything to do.
    pub(super) fn is_idle(&self) -> bool {
        self.disk.is_idle() && !self.home.wants_step()
    }

    /// Acts as a durable batch with a payload: one AU of the chunk whose blocks have this stamp.
    pub(super) fn place(&mut self, replica: u64, stamp: u64) -> u32 {
        let [run] = self.home.place(ReplicaId(replica), 1)[..] else { panic!("one AU is one run") };
        self.disk.put(run.unit as usize * AU as usize, &bytes_of(stamp).repeat(16));
        run.unit
    }

    /// Whether the unit holds 16 blocks with this stamp.
    pub(super) fn has_placed(&self, unit: u32, stamp: u64) -> bool {
        self.disk.bytes()[unit as usize * AU as usize..][..AU as usize] == bytes_of(stamp).repeat(16)
    }

    /// Begins a round; its blocks are frozen overlay until `commit`.
    pub(super) fn begin(&mut self, plan: Plan) {
        self.frozen = plan.clone();
        self.home.begin_round(Time::ZERO, plan.round(), &mut self.events);
        self.home.step_round(&mut self.ops, &mut self.events);
        self.disk.submit(&mut self.ops);
    }

    /// Takes the records of a round that is ready.
    pub(super) fn take_ready(&mut self) -> Option<Vec<Bytes>> {
        let at = self.events.iter().position(|e| matches!(e, HomeEvent::RoundReady { .. }))?;
        let HomeEvent::RoundReady { records } = self.events.remove(at) else { unreachable!() };
        Some(records)
    }

    /// Flips: the checkpoint is durable in the log.
    pub(super) fn commit(&mut self, records: Vec<Bytes>) {
        self.records = Some(records);
        let plan = std::mem::take(&mut self.frozen);
        plan.apply(&mut self.base);
        self.home.round_committed(Time::ZERO);
    }

    /// Runs a whole round.
    pub(super) fn round(&mut self, plan: Plan) {
        self.begin(plan);
        self.settle();
        let records = self.take_ready().expect("the round is ready");
        self.commit(records);
    }

    /// Whether home takes the round; a refused round has no effect.
    pub(super) fn try_round(&mut self, plan: Plan) -> bool {
        self.begin(plan);
        self.settle();
        match self.take_ready() {
            Some(records) => {
                self.commit(records);
                true
            }
            None => {
                assert_eq!(self.events.pop(), Some(HomeEvent::RoundFull));
                self.frozen = Plan::default();
                false
            }
        }
    }

    pub(super) fn submit_read(&mut self, ticket: u64, replica: ReplicaId, chunk: ChunkKey, ranges: &[SectorRange]) {
        let ranges: Vec<(ChunkKey, SectorRange)> = ranges.iter().map(|range| (chunk, *range)).collect();
        self.home.read(ticket, replica, (FAMILY, &[]), &ranges, &mut self.ops, &mut self.events);
        self.disk.submit(&mut self.ops);
    }

    /// Reads to the end.
    pub(super) fn read(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<Vec<(SectorRange, Piece)>, HomeReadError> {
        self.submit_read(1, replica, chunk, &[range]);
        self.settle();
        match self.events.pop() {
            Some(HomeEvent::ReadDone { ticket: 1, result }) => result,
            other => panic!("the read ended with {other:?}"),
        }
    }

    /// Checks that home holds every block of the model, and no other in the chunks that the model names.
    pub(super) fn check_base(&mut self, skip: impl Fn(&Key) -> bool) {
        let mut chunks: Vec<(ReplicaId, ChunkKey)> = self.base.keys().map(|(r, c, _)| (*r, *c)).collect();
        chunks.dedup();
        for (replica, chunk) in chunks {
            let ranges: Vec<SectorRange> = (0..4096u16)
                .filter(|b| !skip(&(replica, chunk, *b)))
                .map(|b| SectorRange::new(u32::from(b) * 8, 8))
                .collect();
            for range in &ranges {
                let want = match self.base.get(&(replica, chunk, (range.start / 8) as u16)) {
                    None => At::Open,
                    Some(0) => At::Zeros,
                    Some(_) => At::Data,
                };
                assert_eq!(self.home.at(replica, chunk, *range), [(*range, want)], "{chunk} of {replica}");
            }
            self.submit_read(5, replica, chunk, &ranges);
            self.settle();
            let Some(HomeEvent::ReadDone { ticket: 5, result }) = self.events.pop() else { panic!("no answer") };
            for (range, piece) in result.unwrap_or_else(|e| panic!("{replica} {chunk}: {e}")) {
                let key = (replica, chunk, (range.start / 8) as u16);
                check_piece(range, &piece, |block| self.base.get(&(key.0, key.1, block)).copied().unwrap_or(0));
            }
        }
    }
}

/// Checks that a piece has the bytes of the stamps, with the right fragment CRCs.
pub(super) fn check_piece(range: SectorRange, piece: &Piece, stamp_of: impl Fn(u16) -> u64) {
    match piece {
        Piece::Zeros => assert!(range.fragments().all(|f| stamp_of((f.start / 8) as u16) == 0), "zeros at {range}"),
        Piece::Bytes { crcs, payload } => {
            assert!(range.verify(payload, crcs), "fragment CRCs of {range}");
            for f in range.fragments() {
                let stamp = stamp_of((f.start / 8) as u16);
                assert_ne!(stamp, 0, "bytes at {f}, where there are none");
                let want = &bytes_of(stamp)[(f.start % 8) as usize * 512..][..f.len_bytes()];
                let at = types::range::fragment_bytes(range.start, f);
                assert!(payload[at] == *want, "{f} is not stamp {stamp}");
            }
        }
    }
}

/// Cuts the power after each number of steps of a round, and checks what home has at the next mount. `keeps`: whether the checkpoint of a
/// round that was ready is durable. `is_written`: whether the round may have written in place of a block. Returns the number of cuts.
pub(super) fn cut_at_steps(
    stride: usize,
    keeps: bool,
    prepared: impl Fn() -> (Rig, Plan),
    is_written: impl Fn(&Plan, &Key) -> bool,
) -> u32 {
    let mut cuts = 0;
    for steps in (0..).step_by(stride) {
        let (mut rig, round) = prepared();
        rig.begin(round.clone());
        (0..steps).for_each(|_| rig.step());
        let ready = rig.take_ready();
        rig.disk.power_cut();
        if let Some(records) = ready.clone().filter(|_| keeps) {
            round.apply(&mut rig.base);
            rig.records = Some(records);
        }
        assert_eq!(rig.mount().1, vec![], "{steps} steps");
        rig.home.audit().unwrap();
        rig.check_base(|key: &Key| is_written(&round, key));
        cuts += 1;
        if ready.is_some() {
            break;
        }
    }
    cuts
}
