//! Kept space: AUs of older contents that a stream's contents take over as they are (R12, ADR 0019).
//!
//! The log side has compared an AU of the base, an older replica of the PG on this device or the receiving replica
//! itself, with digests of the leader's blocks. The round that installs the stream moves the AU; its bytes stay.
//!
//! Invariant: a kept AU is not written between its comparison and the installation. A round that writes or drops one
//! spoils the staged contents, and spoiled contents are never installed.

use super::Home;
use super::chunk::Chunk;
use super::install::NOWHERE;
use layout::home::CRC_PAGES;
use std::collections::BTreeMap;
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{ChunkKey, ReplicaId};

/// A set of the AUs of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AuSet([u64; AUS_PER_CHUNK as usize / 64]);

impl AuSet {
    fn contains(&self, au: usize) -> bool {
        self.0[au / 64] >> (au % 64) & 1 == 1
    }

    fn insert(&mut self, au: usize) {
        self.0[au / 64] |= 1 << (au % 64);
    }

    fn remove(&mut self, au: usize) {
        self.0[au / 64] &= !(1 << (au % 64));
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..AUS_PER_CHUNK as usize).filter(move |au| self.contains(*au))
    }
}

/// Space that the staged contents of one replica keep.
pub(super) struct Kept {
    pub(super) base: ReplicaId,
    chunks: BTreeMap<ChunkKey, AuSet>,
    spoiled: bool,
}

impl Home {
    /// Whether the replica's contents at home are whole, and not empty: a stream may keep parts of them.
    pub fn can_be_base(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|r| r.damage.is_none() && !r.chunks.is_empty())
    }

    /// Whether the running round rewrites blocks of this chunk.
    pub fn is_rewriting(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.round.as_ref().is_some_and(|round| round.rewritten(replica, chunk).is_some())
    }

    /// Keeps an AU of the base for the contents that are being staged for `replica`. False, without any effect: the base
    /// has no data there, other blocks of the AU are staged, or the staged contents are being given up.
    pub fn keep(&mut self, replica: ReplicaId, base: ReplicaId, key: ChunkKey, au: usize) -> bool {
        let has = self.can_be_base(base) && self.chunk(base, key).is_some_and(|chunk| chunk.map[au].valid != 0);
        if !has || self.poisoned || self.is_installing(replica) {
            return false;
        }
        let staging = self.staging.entry(replica).or_default();
        let staged = staging.chunks.get(&key).is_some_and(|chunk| chunk.map[au].valid != 0);
        let kept = staging.kept.get_or_insert_with(|| Kept { base, chunks: BTreeMap::new(), spoiled: false });
        if staged || staging.dying || kept.base != base {
            return false;
        }
        kept.chunks.entry(key).or_default().insert(au);
        true
    }

    /// Whether the staged contents of `replica` keep this AU of the base.
    pub fn keeps(&self, replica: ReplicaId, key: ChunkKey, au: usize) -> bool {
        self.kept_of(replica).is_some_and(|kept| kept.chunks.get(&key).is_some_and(|aus| aus.contains(au)))
    }

    /// Keeps the AU no longer: other contents will be staged in its place.
    pub fn unkeep(&mut self, replica: ReplicaId, key: ChunkKey, au: usize) {
        let Some(kept) = self.staging.get_mut(&replica).and_then(|s| s.kept.as_mut()) else { return };
        if let Some(aus) = kept.chunks.get_mut(&key) {
            aus.remove(au);
            if *aus == AuSet::default() {
                kept.chunks.remove(&key);
            }
        }
    }

    /// Whether a kept AU has changed since it was compared.
    pub fn is_spoiled(&self, replica: ReplicaId) -> bool {
        self.kept_of(replica).is_some_and(|kept| kept.spoiled)
    }

    fn kept_of(&self, replica: ReplicaId) -> Option<&Kept> {
        self.staging.get(&replica)?.kept.as_ref()
    }

    /// Notes that AUs of this chunk at home are written or dropped.
    pub(super) fn spoil(&mut self, base: ReplicaId, key: ChunkKey, mut aus: impl FnMut(usize) -> bool) {
        for kept in self.staging.values_mut().filter_map(|s| s.kept.as_mut()).filter(|kept| kept.base == base) {
            let hit = kept.chunks.get(&key).is_some_and(|set| set.iter().any(&mut aus));
            kept.spoiled |= hit;
        }
    }

    /// Returns the base of the staged contents, if they keep anything of it.
    pub(super) fn base_of(&self, replica: ReplicaId) -> Option<ReplicaId> {
        self.kept_of(replica).filter(|kept| !kept.chunks.is_empty()).map(|kept| kept.base)
    }

    pub(super) fn kept_keys(&self, replica: ReplicaId) -> impl Iterator<Item = ChunkKey> {
        self.kept_of(replica).into_iter().flat_map(|kept| kept.chunks.keys().copied())
    }

    /// Whether quarter `n` of the chunk has a kept AU.
    pub(super) fn keeps_quarter(&self, replica: ReplicaId, key: ChunkKey, n: usize) -> bool {
        let aus = AUS_PER_CHUNK as usize / CRC_PAGES;
        (n * aus..(n + 1) * aus).any(|au| self.keeps(replica, key, au))
    }

    /// Moves the kept AUs of one chunk into the staged chunk, and drops what the base has besides.
    pub(super) fn take_over(&mut self, base: ReplicaId, replica: ReplicaId, key: ChunkKey) {
        self.clock += 1;
        let staging = self.staging.get_mut(&replica).expect("it is being installed");
        let kept = staging.kept.as_mut().and_then(|kept| kept.chunks.remove(&key)).expect("it was listed");
        let mut old = self.replicas.get_mut(&base).and_then(|r| r.chunks.remove(&key)).expect("it was not spoiled");
        let mut chunk = staging.chunks.remove(&key).unwrap_or_else(|| Chunk::new(NOWHERE));
        for au in kept.iter() {
            let slot = std::mem::take(&mut old.map[au]);
            assert!(slot.valid != 0 && chunk.map[au].valid == 0, "AU {au} of {key} has one source");
            let first = au * BLOCKS_PER_AU as usize;
            for block in (0..BLOCKS_PER_AU as usize).filter(|n| slot.valid >> n & 1 == 1).map(|n| first + n) {
                let page = block / layout::home::CRCS_PER_PAGE;
                let table = old.crcs[page].as_ref().expect("a quarter with data has CRCs");
                chunk.set_crc(block, table[block % layout::home::CRCS_PER_PAGE]);
            }
            chunk.map[au] = slot;
        }
        staging.chunks.insert(key, chunk);
        old.aus().for_each(|au| self.drop_au(au));
        self.retire(base, key, &old);
    }
}
