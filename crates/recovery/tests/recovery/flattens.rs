//! Flattens: what a head shows of older generations is copied, and it is detached when nothing of that is left.

use crate::host::PG;
use recovery::{Copied, FillRead, FlattenTuning, Flattens, Head, Heads};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::cut::{CutRefusal, FlattenStep};
use types::rng::Rng;
use types::store::{Inherited, ReadData, ReadError};
use types::units::{BLOCK, SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{
    ChunkKey, GenerationId, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time, VolumeChunk, VolumeId,
};

const VOLUME: VolumeId = VolumeId(9);
const ME: ReplicaId = ReplicaId(1);
const HEAD: GenerationId = GenerationId(9);
const CHUNKS: u32 = 40;

/// The PG of one head. `open`: blocks in which the parent has data; `left`: those of them that no entry has made the head's own.
struct Fake {
    now: Time,
    head: Result<Head, CutRefusal>,
    pressed: bool,
    open: BTreeSet<(u32, u32)>,
    left: BTreeSet<(u32, u32)>,
    fills: BTreeMap<u64, VolumeChunk>,
    next: u64,
    reads: Vec<(FillRead, ChunkKey, SectorRange)>,
    proposed: Vec<(u64, ChunkKey, Copied)>,
    detached: u32,
}

impl Fake {
    fn new() -> Fake {
        let (term, applied) = (Term(3), Index(10));
        Fake {
            now: Time(1_000_000_000),
            head: Ok(Head { replica: ME, term, applied, head: HEAD, chunks: CHUNKS, is_flat: false }),
            pressed: false,
            open: BTreeSet::new(),
            left: BTreeSet::new(),
            fills: BTreeMap::new(),
            next: 0,
            reads: Vec::new(),
            proposed: Vec::new(),
            detached: 0,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// A copy has taken effect.
    fn take(&mut self, index: u32, range: SectorRange) {
        let blocks = range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK);
        self.left.retain(|(of, block)| *of != index || !blocks.contains(block));
    }

    /// A client discards a range.
    fn discard(&mut self, index: u32, range: SectorRange) {
        self.take(index, range);
        let blocks = range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK);
        self.open.retain(|(of, block)| *of != index || !blocks.contains(block));
    }

    fn runs(&self, index: u32, range: SectorRange) -> Vec<(u32, bool)> {
        let blocks = range.start / SECTORS_PER_BLOCK..range.end() / SECTORS_PER_BLOCK;
        blocks.map(|block| (SECTORS_PER_BLOCK, self.open.contains(&(index, block)))).collect()
    }

    fn led(&mut self) -> &mut Head {
        self.head.as_mut().expect("it is led here")
    }
}

impl Heads for Fake {
    fn now(&self) -> Time {
        self.now
    }
    fn is_pressed(&self) -> bool {
        self.pressed
    }
    fn log_wait(&self) -> Duration {
        Duration::ZERO
    }
    fn head(&self, pg: PgId, volume: VolumeId) -> Result<Head, CutRefusal> {
        assert_eq!((pg, volume), (PG, VOLUME));
        self.head
    }
    fn next_inherited(&self, replica: ReplicaId, head: GenerationId, from: u32) -> Inherited {
        assert_eq!((replica, head), (ME, HEAD));
        match self.open.range((from, 0)..).next() {
            None => Inherited::End,
            Some((index, _)) if *index > from + 3 => Inherited::Further(from + 3),
            Some((index, _)) => Inherited::Chunk { index: *index, runs: self.runs(*index, SectorRange::CHUNK) },
        }
    }
    fn inherited(&self, _: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        self.runs(chunk.index, range)
    }
    fn begin_fill(&mut self, _: ReplicaId, chunk: VolumeChunk, _: SectorRange) -> Option<(u64, ChunkKey, Index)> {
        if self.fills.len() >= 6 {
            return None;
        }
        self.next += 1;
        self.fills.insert(self.next, chunk);
        let after = Index(self.led().applied.0 + self.next % 3);
        Some((self.next, ChunkKey { generation: HEAD, index: chunk.index }, after))
    }
    fn end_fill(&mut self, _: ReplicaId, fill: u64) {
        self.fills.remove(&fill);
    }
    fn read_fill(&mut self, read: FillRead, chunk: ChunkKey, range: SectorRange) {
        self.reads.push((read, chunk, range));
    }
    fn propose_fill(&mut self, (_, fill): (ReplicaId, u64), chunk: ChunkKey, parts: Vec<Copied>) {
        assert!(self.fills.remove(&fill).is_some(), "it was begun");
        self.proposed.extend(parts.into_iter().map(|part| (fill, chunk, part)));
    }
    fn detach(&mut self, replica: ReplicaId, volume: VolumeId, head: GenerationId) {
        assert_eq!((replica, volume, head), (ME, VOLUME, HEAD));
        assert!(self.left.is_empty(), "{} blocks are not copied", self.left.len());
        self.detached += 1;
    }
}

/// Returns the bytes of a place: each block has its number.
fn bytes(chunk: ChunkKey, range: SectorRange) -> Vec<u8> {
    let blocks = range.start / SECTORS_PER_BLOCK..range.end() / SECTORS_PER_BLOCK;
    blocks.flat_map(|block| vec![(block + chunk.index) as u8 | 1; BLOCK as usize]).collect()
}

fn answer(rng: &mut Rng, fake: &mut Fake, flattens: &mut Flattens) {
    while !fake.reads.is_empty() && rng.chance(2, 3) {
        let (read, chunk, range) = fake.reads.swap_remove(rng.below(fake.reads.len() as u64) as usize);
        let result = match rng.below(12) {
            1 => Err(ReadError::BadBlocks { replica: ME, chunk, range, reason: "rot".to_owned() }),
            _ => {
                let bytes = bytes(chunk, range);
                Ok(ReadData::Bytes { crcs: range.fragment_crcs(&bytes), payload: IoBuf::copy_of(&bytes) })
            }
        };
        flattens.handle_read(fake, read, result);
    }
    while !fake.proposed.is_empty() && rng.chance(2, 3) {
        let (fill, chunk, (range, payload, crcs)) =
            fake.proposed.swap_remove(rng.below(fake.proposed.len() as u64) as usize);
        assert!(range.verify(&payload, &crcs) && payload[..] == bytes(chunk, range)[..], "bytes of another place");
        let ok = !rng.chance(1, 5);
        if ok {
            fake.take(chunk.index, range);
        }
        flattens.handle_filled(fake.now, ME, fill, ok);
    }
}

/// Places are copied whatever fails on the way, and a head is detached when none is left: `detach` of the fake asserts that.
#[test]
fn head_is_detached_when_all_that_it_shows_is_copied() {
    for seed in 0..30 {
        let (mut rng, mut fake) = (Rng::new(seed), Fake::new());
        let mut flattens = Flattens::new(FlattenTuning::default());
        for _ in 0..rng.below(20) {
            let (index, first) = (rng.below(u64::from(CHUNKS)) as u32, rng.below(4000) as u32);
            fake.open.extend((0..rng.between(1, 90) as u32).map(|n| (index, first + n)));
        }
        fake.left = fake.open.clone();
        assert!(matches!(
            flattens.handle_order(&mut fake, PG, VOLUME),
            Ok(FlattenStep::Copying { chunks: CHUNKS, .. })
        ));
        let mut steps = 0;
        while fake.detached == 0 {
            steps += 1;
            assert!(steps < 20_000, "seed {seed}: {} blocks are left", fake.left.len());
            let ms = rng.between(1, 20);
            fake.pass(ms);
            fake.pressed = rng.chance(1, 10);
            fake.led().applied.0 += rng.below(2);
            if steps < 300 && rng.chance(1, 50) {
                // Another leader was in between: what was under way is void.
                fake.led().term.0 += 1;
                (fake.fills, fake.reads, fake.proposed) = Default::default();
            }
            if rng.chance(1, 5) {
                let start = rng.below(u64::from(SECTORS_PER_CHUNK - 8)) as u32;
                let index = rng.below(u64::from(CHUNKS)) as u32;
                fake.discard(index, SectorRange::new(start / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK, 8));
            }
            let order = flattens.handle_order(&mut fake, PG, VOLUME).expect("it is led here");
            let FlattenStep::Copying { done, .. } = order else { panic!("{order:?}") };
            assert!(done <= CHUNKS);
            flattens.step(&mut fake);
            answer(&mut rng, &mut fake, &mut flattens);
        }
        fake.led().is_flat = true;
        assert_eq!(flattens.handle_order(&mut fake, PG, VOLUME), Ok(FlattenStep::Flat));
        assert!(flattens.is_idle());
    }
}

#[test]
fn flatten_that_is_not_ordered_again_stops() {
    let mut fake = Fake::new();
    fake.open.extend((0..400).map(|block| (2, block)));
    let mut flattens = Flattens::new(FlattenTuning::default());
    flattens.handle_order(&mut fake, PG, VOLUME).expect("it is led here");
    flattens.step(&mut fake);
    fake.led().applied = Index(20);
    flattens.step(&mut fake);
    assert!(!fake.fills.is_empty() && flattens.next_deadline() <= fake.now + Duration::from_secs(15));
    fake.pass(15_001);
    flattens.step(&mut fake);
    assert!(flattens.is_idle() && fake.fills.is_empty(), "nothing is left in the group");
    assert_eq!(flattens.next_deadline(), Time::NEVER);
    // A result that comes late has no effect.
    let (read, ..) = fake.reads[0];
    flattens.handle_read(&mut fake, read, Ok(ReadData::Zeros));
    assert!(fake.proposed.is_empty() && fake.detached == 0);
}

#[test]
fn order_is_refused_where_it_cannot_be_carried_out() {
    let mut fake = Fake::new();
    let mut flattens = Flattens::new(FlattenTuning::default());
    for refusal in [CutRefusal::NotLeader { hint: Some(OsdId(2)) }, CutRefusal::Absent, CutRefusal::Busy] {
        let led = std::mem::replace(&mut fake.head, Err(refusal));
        assert_eq!(flattens.handle_order(&mut fake, PG, VOLUME), Err(refusal));
        assert!(flattens.is_idle());
        fake.head = led;
    }
    fake.open.insert((0, 0));
    flattens.handle_order(&mut fake, PG, VOLUME).expect("it is led here");
    flattens.step(&mut fake);
    // A cut holds the volume for a moment; then the leadership goes.
    fake.head = Err(CutRefusal::Busy);
    flattens.step(&mut fake);
    assert!(!flattens.is_idle());
    fake.head = Err(CutRefusal::NotLeader { hint: None });
    flattens.step(&mut fake);
    assert!(flattens.is_idle() && fake.fills.is_empty());
}
