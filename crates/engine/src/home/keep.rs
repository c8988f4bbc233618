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
use crate::space::AuSet;
use layout::home::{AUS_PER_CRC_PAGE, CRC_PAGES};
use std::collections::BTreeMap;
use types::units::{AUS_PER_CHUNK, BLOCKS_PER_AU};
use types::{ChunkKey, GenerationId, ReplicaId};

/// Space that the staged contents of one replica keep.
pub(super) struct Kept {
    pub(super) base: ReplicaId,
    chunks: BTreeMap<ChunkKey, AuSet>,
    spoiled: bool,
}

impl Kept {
    pub(super) fn retain(&mut self, stays: impl Fn(GenerationId) -> bool) {
        self.chunks.retain(|key, _| stays(key.generation));
    }
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
    /// has no data there, rewrites the chunk or is being taken over; or blocks of the AU are staged; or the staged contents
    /// are being given up.
    pub fn keep(&mut self, replica: ReplicaId, base: ReplicaId, key: ChunkKey, au: u32) -> bool {
        let has = self.can_be_base(base) && self.chunk(base, key).is_some_and(|c| c.map[au as usize].valid != 0);
        let other = self.staging.get(&replica).is_some_and(|s| {
            let staged = s.chunks.get(&key).is_some_and(|chunk| chunk.map[au as usize].valid != 0);
            staged || s.dying || s.kept.as_ref().is_some_and(|kept| kept.base != base)
        });
        let installs = self.round.iter().flat_map(|round| &round.installs);
        let is_lent = installs.copied().any(|id| id == base || id == replica || self.base_of(id) == Some(base));
        let is_merged = self.round.as_ref().is_some_and(|round| round.merges(base, key));
        if !has || other || is_lent || is_merged || self.poisoned || self.is_rewriting(base, key) {
            return false;
        }
        let staging = self.staging.entry(replica).or_default();
        let kept = staging.kept.get_or_insert_with(|| Kept { base, chunks: BTreeMap::new(), spoiled: false });
        kept.chunks.entry(key).or_default().insert(au);
        true
    }

    /// Whether the staged contents of `replica` keep this AU of the base.
    pub fn keeps(&self, replica: ReplicaId, key: ChunkKey, au: u32) -> bool {
        self.kept_aus(replica, key).contains(au)
    }

    /// Keeps the AU no longer: other contents will be staged in its place.
    pub fn unkeep(&mut self, replica: ReplicaId, key: ChunkKey, au: u32) {
        let Some(kept) = self.staging.get_mut(&replica).and_then(|s| s.kept.as_mut()) else { return };
        if let Some(aus) = kept.chunks.get_mut(&key) {
            aus.remove(au);
            if aus.is_empty() {
                kept.chunks.remove(&key);
            }
        }
    }

    /// Whether a kept AU has changed since it was compared.
    pub fn is_spoiled(&self, replica: ReplicaId) -> bool {
        self.kept_of(replica).is_some_and(|kept| kept.spoiled)
    }

    /// Whether contents of the replica are being staged, or are lent to contents that are: a merge would take them away.
    pub fn is_streamed(&self, replica: ReplicaId) -> bool {
        self.staging.iter().any(|(id, s)| *id == replica || s.kept.as_ref().is_some_and(|kept| kept.base == replica))
    }

    fn kept_of(&self, replica: ReplicaId) -> Option<&Kept> {
        self.staging.get(&replica).filter(|s| !s.dying)?.kept.as_ref()
    }

    fn kept_aus(&self, replica: ReplicaId, key: ChunkKey) -> AuSet {
        self.kept_of(replica).and_then(|kept| kept.chunks.get(&key)).copied().unwrap_or_default()
    }

    /// Notes that AUs of this chunk at home are written or dropped.
    pub(super) fn spoil(&mut self, base: ReplicaId, key: ChunkKey, aus: impl Fn(u32) -> bool) {
        for kept in self.staging.values_mut().filter_map(|s| s.kept.as_mut()).filter(|kept| kept.base == base) {
            let set = kept.chunks.get(&key);
            kept.spoiled |= set.is_some_and(|set| (0..AUS_PER_CHUNK).any(|au| set.contains(au) && aus(au)));
        }
    }

    /// Returns the base of the staged contents, if they keep anything of it.
    pub fn base_of(&self, replica: ReplicaId) -> Option<ReplicaId> {
        self.kept_of(replica).filter(|kept| !kept.chunks.is_empty()).map(|kept| kept.base)
    }

    pub(super) fn kept_keys(&self, replica: ReplicaId) -> impl Iterator<Item = ChunkKey> {
        self.kept_of(replica).into_iter().flat_map(|kept| kept.chunks.keys().copied())
    }

    /// Says of each quarter of the chunk whether it has a kept AU.
    pub(super) fn kept_quarters(&self, replica: ReplicaId, key: ChunkKey) -> [bool; CRC_PAGES] {
        let aus = self.kept_aus(replica, key);
        std::array::from_fn(|n| (0..AUS_PER_CRC_PAGE).any(|au| aus.contains((n * AUS_PER_CRC_PAGE + au) as u32)))
    }

    /// Moves the kept AUs of one chunk into the staged chunk, and drops what the base has besides.
    pub(super) fn take_over(&mut self, base: ReplicaId, replica: ReplicaId, key: ChunkKey) {
        self.clock += 1;
        let staging = self.staging.get_mut(&replica).expect("it is being installed");
        let kept = staging.kept.as_mut().and_then(|kept| kept.chunks.remove(&key)).expect("it was listed");
        self.spoil(base, key, |_| true);
        let staging = self.staging.get_mut(&replica).expect("it is being installed");
        let mut old = self.replicas.get_mut(&base).and_then(|r| r.chunks.remove(&key)).expect("it was not spoiled");
        let chunk = staging.chunks.entry(key).or_insert_with(|| Chunk::new(NOWHERE));
        for page in 0..CRC_PAGES {
            let aus = page * AUS_PER_CRC_PAGE..(page + 1) * AUS_PER_CRC_PAGE;
            let kept = aus.filter(|au| kept.contains(*au as u32));
            // Without staged blocks the table moves as a whole: entries of blocks without data mean nothing.
            let table = if chunk.crcs[page].is_none() { None } else { old.crcs[page].as_ref() };
            for au in kept {
                let slot = std::mem::take(&mut old.map[au]);
                assert!(slot.valid != 0 && chunk.map[au].valid == 0, "AU {au} of {key} has one source");
                chunk.map[au] = slot;
                if let (Some(from), Some(to)) = (table, &mut chunk.crcs[page]) {
                    let first = au % AUS_PER_CRC_PAGE * BLOCKS_PER_AU as usize;
                    let blocks = first..first + BLOCKS_PER_AU as usize;
                    to[blocks.clone()].copy_from_slice(&from[blocks]);
                }
            }
            if chunk.crcs[page].is_none() && chunk.has_quarter(page) {
                chunk.crcs[page] = old.crcs[page].take();
            }
        }
        old.aus().for_each(|au| self.drop_au(au));
        self.retire(base, key, &old);
    }
}
