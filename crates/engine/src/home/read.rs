//! Reads of ranges that the overlay does not cover.
//!
//! `Home::read` takes ranges of one chunk, or of that chunk in several generations of a family. It returns pieces that tile them, each
//! block verified against its CRC. Blocks that are adjacent on the device are read in one operation.
//!
//! Invariant (R8): bytes are judged only by the map and CRCs that were current when the read looked them up. When a
//! round stages the chunk meanwhile, the read is looked up again, overlay first, whether or not its bytes verify. One
//! of its blocks may have been rewritten in place. The half that the overlay gave would then be of another version
//! (design §7, 2). So it is when a chunk changes in which the read found nothing: an older generation answered in its place. A mismatch on an untouched chunk is corruption: a second lookup would give the same place and the
//! same CRC.

use super::chunk::Chunk;
use super::{Home, InFlight};
use crate::home_api::{HomeEvent, HomeReadError, Piece};
use env::{DiskError, Op};
use std::collections::BTreeMap;
use types::planted::{Bug, on};
use types::units::{SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{BLOCK, BlockPlace, ChunkKey, CrcList, GenerationId, IoBuf, IoBufMut, ReplicaId, SectorRange, block_hash};

/// A read in flight.
pub(super) struct Read {
    ticket: u64,
    replica: ReplicaId,
    family: GenerationId,
    /// Chunks whose map was open in some part of the read, and whether home held them then.
    looked: Vec<(ChunkKey, bool)>,
    /// Lookup clock at the time of the lookup.
    clock: u64,
    pieces: Vec<(SectorRange, Piece)>,
    waiting: u32,
    outcome: Outcome,
}

/// Place of a piece.
enum Place {
    /// Home holds no data there.
    Nowhere,
    /// Offset on the device.
    Device(u64),
    /// The running round copies the block: its write may be in flight.
    Memory(IoBuf),
}

impl Place {
    /// Returns the piece as far as it is known before a read of the device.
    fn piece(&self, range: SectorRange) -> Piece {
        let Place::Memory(buf) = self else { return Piece::Zeros };
        let first = range.start / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
        let payload = buf.slice(types::range::fragment_bytes(first, range));
        Piece::Bytes { crcs: CrcList::from_elem(types::crc32c(&payload), 1), payload }
    }
}

enum Outcome {
    Good,
    Retry,
    Bad(HomeReadError),
}

impl Outcome {
    /// Adds the outcome of a bad piece. A retry overrides every error, and an error of the device one of a checksum.
    fn add(&mut self, bad: Outcome) {
        use HomeReadError::{Damaged, Disk};
        match (&mut *self, bad) {
            (Outcome::Retry | Outcome::Bad(Disk { .. }), Outcome::Bad(_)) => {}
            (Outcome::Bad(Damaged { blocks }), Outcome::Bad(Damaged { blocks: more })) => {
                blocks.extend(more);
                blocks.sort_unstable();
            }
            (_, bad) => *self = bad,
        }
    }
}

impl Home {
    pub(super) fn start_read(
        &mut self,
        ticket: u64,
        replica: ReplicaId,
        (family, looked): (GenerationId, &[ChunkKey]),
        ranges: &[(ChunkKey, SectorRange)],
        ops: &mut Vec<Op>,
        out: &mut Vec<HomeEvent>,
    ) {
        ranges.iter().for_each(|(chunk, range)| self.assert_not_rewritten(replica, *chunk, *range));
        if self.replicas.get(&replica).is_some_and(|r| r.damage.is_some()) {
            let first = ranges.first().map(|(chunk, range)| (*chunk, (range.start / SECTORS_PER_BLOCK) as u16));
            let blocks = first.into_iter().collect();
            out.push(HomeEvent::ReadDone { ticket, result: Err(HomeReadError::Damaged { blocks }) });
            return;
        }
        let pieces = self.look_up(replica, ranges);
        let clock = self.clock;
        let waiting = pieces.iter().filter(|(.., place)| matches!(place, Place::Device(_))).count() as u32;
        let read = Read {
            ticket,
            replica,
            family,
            looked: looked.iter().map(|key| (*key, self.chunk(replica, *key).is_some())).collect(),
            clock,
            pieces: pieces.iter().map(|(_, range, place)| (*range, place.piece(*range))).collect(),
            waiting,
            outcome: Outcome::Good,
        };
        if waiting == 0 {
            out.push(HomeEvent::ReadDone { ticket, result: Ok(read.pieces) });
            return;
        }
        self.readers.enter(clock);
        let (_, key) = self.reads.insert(read);
        for (piece, (chunk, range, place)) in pieces.into_iter().enumerate() {
            let Place::Device(offset) = place else { continue };
            let buf = IoBufMut::new(range.fragment_count() * BLOCK as usize);
            self.stats.read_bytes += buf.len() as u64;
            let token = self.token(InFlight::Read { read: key, piece: piece as u32, chunk });
            ops.push(Op::DiskRead { token, disk: self.disk.id, offset, buf });
        }
    }

    /// Splits `ranges` into pieces: each is all zeros, or adjacent on the device from the given offset.
    fn look_up(&self, replica: ReplicaId, ranges: &[(ChunkKey, SectorRange)]) -> Vec<(ChunkKey, SectorRange, Place)> {
        let mut pieces: Vec<(ChunkKey, SectorRange, Place)> = Vec::with_capacity(ranges.len());
        let mut held: Option<(ChunkKey, Option<&Chunk>)> = None;
        let mut last_end = 0;
        for (key, range) in ranges {
            assert!(range.start >= last_end && range.end() <= SECTORS_PER_CHUNK, "ranges {ranges:?}");
            last_end = range.end();
            if held.is_none_or(|(of, _)| of != *key) {
                held = Some((*key, self.chunk(replica, *key)));
            }
            let Some((_, Some(chunk))) = held else {
                pieces.push((*key, *range, Place::Nowhere));
                continue;
            };
            let first = pieces.len();
            let copied = self.round.as_ref().and_then(|round| round.copied.get(&(replica, *key)));
            for fragment in range.fragments() {
                let place = self.place_of(chunk, fragment, copied);
                match pieces[first..].last_mut() {
                    Some((_, run, at)) if self.adjoins(*run, at, &place) => run.count += fragment.count,
                    _ => pieces.push((*key, fragment, place)),
                }
            }
        }
        pieces
    }

    /// Returns the place of the block of `fragment`. `copied`: blocks that the running round copies into the chunk.
    fn place_of(&self, chunk: &Chunk, fragment: SectorRange, copied: Option<&BTreeMap<u16, IoBuf>>) -> Place {
        let block = (fragment.start / SECTORS_PER_BLOCK) as usize;
        if !chunk.is_valid(block) {
            return Place::Nowhere;
        }
        if let Some(buf) = copied.and_then(|copied| copied.get(&(block as u16))) {
            return Place::Memory(buf.clone());
        }
        let (au, n) = chunk.place_of(block);
        Place::Device(self.region.start + self.geometry.block_offset(au, n))
    }

    fn adjoins(&self, run: SectorRange, run_at: &Place, next_at: &Place) -> bool {
        match (run_at, next_at) {
            (Place::Nowhere, Place::Nowhere) => true,
            (Place::Device(at), Place::Device(next)) => {
                let len = run.fragment_count() as u64 * BLOCK;
                at + len == *next && len < self.limits.io_bytes_max
            }
            _ => false,
        }
    }

    /// Asserts that the range does not touch a block of the running round: the overlay covers every such block.
    fn assert_not_rewritten(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let Some(blocks) = self.round.as_ref().and_then(|round| round.rewritten(replica, chunk)) else { return };
        for fragment in range.fragments() {
            let block = (fragment.start / SECTORS_PER_BLOCK) as usize;
            assert!(!blocks.contains(block), "block {block} of {chunk} is under rewrite: the overlay holds it");
        }
    }

    pub(super) fn read_done(
        &mut self,
        key: u32,
        (chunk, piece): (ChunkKey, u32),
        buf: IoBuf,
        result: Result<(), DiskError>,
        out: &mut Vec<HomeEvent>,
    ) {
        let read = self.reads.get_mut(key);
        let (replica, family, clock) = (read.replica, read.family, read.clock);
        let range = read.pieces[piece as usize].0;
        let untouched = self.chunk(replica, chunk).filter(|chunk| chunk.touched <= clock || on(Bug::ReadStampLate));
        let verdict = match (untouched, result) {
            (None, _) => Err(Outcome::Retry),
            (Some(_), Err(source)) => Err(Outcome::Bad(HomeReadError::Disk { chunk, range, source })),
            (Some(held), Ok(())) => verify(held, (family, chunk), range, buf)
                .map_err(|blocks| Outcome::Bad(HomeReadError::Damaged { blocks })),
        };
        let read = self.reads.get_mut(key);
        match verdict {
            Ok(verified) => read.pieces[piece as usize].1 = verified,
            Err(bad) => read.outcome.add(bad),
        }
        read.waiting -= 1;
        if read.waiting == 0 {
            self.finish_read(key, out);
        }
    }

    fn finish_read(&mut self, key: u32, out: &mut Vec<HomeEvent>) {
        let read = self.reads.remove(key);
        let ticket = read.ticket;
        let changed = |(key, was_held): &(ChunkKey, bool)| match self.chunk(read.replica, *key) {
            Some(chunk) => chunk.touched > read.clock,
            None => *was_held,
        };
        out.push(match read.outcome {
            _ if read.looked.iter().any(changed) => HomeEvent::ReadRetry { ticket },
            Outcome::Good => HomeEvent::ReadDone { ticket, result: Ok(read.pieces) },
            Outcome::Bad(error) => HomeEvent::ReadDone { ticket, result: Err(error) },
            Outcome::Retry => HomeEvent::ReadRetry { ticket },
        });
        self.readers.leave(read.clock);
        self.release_pending_free();
    }
}

/// Verifies the whole blocks in `buf` and cuts out `range`, with the CRC32C of each fragment for its transfer; on failure
/// returns all bad blocks.
fn verify(
    chunk: &Chunk,
    (family, key): (GenerationId, ChunkKey),
    range: SectorRange,
    buf: IoBuf,
) -> Result<Piece, Vec<(ChunkKey, u16)>> {
    let first_block = range.start / SECTORS_PER_BLOCK;
    let mut crcs = CrcList::with_capacity(range.fragment_count());
    let mut bad = Vec::new();
    for (fragment, bytes) in range.fragments().zip(buf.chunks_exact(BLOCK as usize)) {
        let block = (fragment.start / SECTORS_PER_BLOCK) as usize;
        if block_hash(BlockPlace::of(family, key, block as u16), bytes) != chunk.hash_of(block)
            && !on(Bug::HomeReadUnchecked)
        {
            bad.push((key, block as u16));
            continue;
        }
        crcs.push(types::crc32c(&bytes[types::range::fragment_bytes(block as u32 * SECTORS_PER_BLOCK, fragment)]));
    }
    if !bad.is_empty() {
        return Err(bad);
    }
    let inside = types::range::fragment_bytes(first_block * SECTORS_PER_BLOCK, range);
    Ok(Piece::Bytes { crcs, payload: buf.slice(inside) })
}
