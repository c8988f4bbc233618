//! The contents that every block of the span may have, and the check of each read.
//!
//! A read may return the last write that was acknowledged before the read *began*. It may also return any later write
//! that was begun before the read ended (in flight, or failed with an unknown effect). It never returns an older one,
//! another volume's, or a block that belongs elsewhere.
//!
//! Invariant: at most one write of a block is in flight, so sequence order is the order of writes.

use super::stamp::{self, BLOCK_LEN, Found};
use serde::{Deserialize, Serialize};
use std::fmt;
use types::IoBuf;

/// A block with wrong contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Byte offset on the device.
    pub offset: u64,
    pub found: Found,
    /// Least sequence that was allowed; 0: never acknowledged.
    pub floor: u64,
    /// Greatest sequence that was begun.
    pub latest: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { offset, floor, latest, .. } = self;
        write!(f, "block at {offset}: writes {floor} to {latest} were allowed, found ")?;
        match self.found {
            Found::Stamp(s) => {
                write!(f, "write {} of volume {}, run {}, for offset {}", s.sequence, s.volume, s.run, s.offset)
            }
            Found::Zeros => f.write_str("zeros"),
            Found::Torn => f.write_str("a stamp with a wrong checksum"),
            Found::Unstamped => f.write_str("bytes without a stamp"),
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Block {
    /// Last acknowledged write; 0: none.
    acked: u64,
    /// Last write begun.
    latest: u64,
}

/// The known writes of one series of runs over one span of one volume. It can be stored between runs: a block whose
/// last write never ended may hold either value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ledger {
    volume: u64,
    run: u64,
    blocks: Vec<Block>,
    /// Writes in flight of this run, by block; not stored: after a restart nothing is in flight.
    #[serde(skip)]
    writing: Vec<u64>,
    #[serde(skip)]
    verified: u64,
}

impl Ledger {
    /// Makes a ledger without known writes: blocks may hold anything but torn or misplaced stamps, until they are
    /// written.
    pub fn new(volume: u64, run: u64, span_bytes: u64) -> Ledger {
        let blocks = vec![Block::default(); (span_bytes / BLOCK_LEN as u64) as usize];
        Ledger { volume, run, blocks, writing: Vec::new(), verified: 0 }
    }

    /// Whether the ledger is of this volume and span.
    pub fn fits(&self, volume: u64, span_bytes: u64) -> bool {
        self.volume == volume && self.blocks.len() as u64 == span_bytes / BLOCK_LEN as u64
    }

    /// Returns the number of blocks checked so far.
    pub fn verified_blocks(&self) -> u64 {
        self.verified
    }

    /// Returns the number of blocks of which a write was acknowledged.
    pub fn acked_blocks(&self) -> u64 {
        self.blocks.iter().filter(|block| block.acked > 0).count() as u64
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.blocks.iter().map(|block| block.latest).max().unwrap_or(0) + 1
    }

    fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
        (offset / BLOCK_LEN as u64) as usize..((offset + len) / BLOCK_LEN as u64) as usize
    }

    pub(super) fn is_writing(&self, offset: u64, len: u64) -> bool {
        self.writing.iter().any(|at| (offset..offset + len).contains(at))
    }

    /// Begins a write. Requests have one length and are aligned to it, so a write in flight is known by its offset.
    pub(super) fn begin(&mut self, offset: u64, len: u64, sequence: u64) {
        assert!(!self.is_writing(offset, len), "one write of a block at a time");
        self.writing.push(offset);
        for block in &mut self.blocks[Ledger::range(offset, len)] {
            assert!(block.latest < sequence, "sequences only grow");
            block.latest = sequence;
        }
    }

    pub(super) fn end(&mut self, offset: u64, len: u64, sequence: u64, acked: bool) {
        let at = self.writing.iter().position(|at| *at == offset).expect("it was begun");
        self.writing.swap_remove(at);
        if acked {
            for block in &mut self.blocks[Ledger::range(offset, len)] {
                assert_eq!(block.latest, sequence, "nothing was begun in between");
                block.acked = sequence;
            }
        }
    }

    /// Returns the least sequence that each block may hold for a read that begins now.
    pub(super) fn floors(&self, offset: u64, len: u64) -> Vec<u64> {
        self.blocks[Ledger::range(offset, len)].iter().map(|block| block.acked).collect()
    }

    /// Checks a read of whole blocks: `base` is where the span begins on the device, `offset` is in the span.
    pub(super) fn check(&mut self, base: u64, offset: u64, floors: &[u64], pieces: &[IoBuf]) -> Vec<Violation> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert_eq!(len, floors.len() * BLOCK_LEN, "the device answered with another length");
        let mut bytes = pieces.iter().flat_map(|piece| piece.chunks(512));
        let first = Ledger::range(offset, 0).start;
        let mut block = [0u8; BLOCK_LEN];
        let mut violations = Vec::new();
        for (index, floor) in floors.iter().enumerate() {
            for sector in block.chunks_exact_mut(512) {
                sector.copy_from_slice(bytes.next().expect("counted"));
            }
            let latest = self.blocks[first + index].latest;
            let at = base + offset + (index * BLOCK_LEN) as u64;
            let found = stamp::look(&block);
            self.verified += 1;
            if !self.allows(at, found, *floor, latest) {
                violations.push(Violation { offset: at, found, floor: *floor, latest });
            }
        }
        violations
    }

    fn allows(&self, at: u64, found: Found, floor: u64, latest: u64) -> bool {
        match found {
            Found::Stamp(s) if s.volume != self.volume || s.offset != at => false,
            Found::Stamp(s) if s.run != self.run => floor == 0,
            Found::Stamp(s) => (floor..=latest).contains(&s.sequence),
            Found::Zeros | Found::Unstamped => floor == 0,
            Found::Torn => false,
        }
    }
}
