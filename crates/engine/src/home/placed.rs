//! Logged AUs: space of home that holds payloads of the log (ADR 0030).
//!
//! The log side takes AUs for the payload of a large entry when it builds the entry's batch, and claims them again at a mount. A round
//! adopts an AU: it becomes the chunk's, with the bytes that are there. Or the round releases it: nothing that counts names it
//! once the checkpoint is durable. The log side knows AUs as *units*, offsets on the device divided by the length of an AU.
//!
//! Invariant: a logged AU belongs to one replica and is in no map. No round writes to it, and only the flip of a round frees it.

use super::chunk::Chunk;
use super::{Home, State};
use crate::home_api::{BlockData, ChunkDirty, Round};
use layout::home::MapSlot;
use layout::log::PlacedRun;
use std::collections::{BTreeMap, BTreeSet};
use types::units::BLOCKS_PER_AU;
use types::{AU, ReplicaId};

/// The logged AUs of every replica.
#[derive(Default)]
pub(super) struct Placed {
    aus: BTreeMap<ReplicaId, BTreeSet<u32>>,
    /// The AU behind the last one that was taken: payloads that follow each other touch.
    near: Option<u32>,
}

impl Placed {
    pub(super) fn iter(&self) -> impl Iterator<Item = (ReplicaId, &BTreeSet<u32>)> {
        self.aus.iter().map(|(replica, aus)| (*replica, aus))
    }

    fn add(&mut self, replica: ReplicaId, au: u32) {
        let is_new = self.aus.entry(replica).or_default().insert(au);
        assert!(is_new, "AU {au} of {replica} is logged twice");
    }

    /// False: the AU is not the replica's.
    fn remove(&mut self, replica: ReplicaId, au: u32) -> bool {
        let Some(aus) = self.aus.get_mut(&replica) else { return false };
        let was_there = aus.remove(&au);
        if aus.is_empty() {
            self.aus.remove(&replica);
        }
        was_there
    }
}

impl Home {
    /// Offset of the first AU on the device.
    fn aus_start(&self) -> u64 {
        self.region.start + self.geometry.block_offset(0, 0)
    }

    fn unit_of(&self, au: u32) -> u32 {
        u32::try_from(self.aus_start() / AU + u64::from(au)).expect("a device has fewer AUs")
    }

    fn au_of(&self, unit: u32) -> Option<u32> {
        let au = u64::from(unit).checked_sub(self.aus_start() / AU)?;
        (au < u64::from(self.geometry.au_count)).then_some(au as u32)
    }

    /// Returns the number of AUs that payloads of the log may take. They take none that a running round or the overlay counts on, and
    /// leave a twentieth of the device, or as much as the log may hold of them, to everything else: what they take is free again
    /// only after the next round, and a placed payload must never be the reason why a write finds no space.
    pub fn aus_for_placing(&self, needed: u64, log_bytes: u64) -> u64 {
        // Slots take whole AUs in every geometry that this build makes.
        if self.poisoned || !self.aus_start().is_multiple_of(AU) {
            return 0;
        }
        let promised = self.round.as_ref().map_or(0, |round| round.aus_promised);
        let kept = u64::from(self.geometry.au_count / 20).max(log_bytes / AU);
        u64::from(self.aus.free_count()).saturating_sub(promised + needed + kept)
    }

    /// Takes AUs for a payload of the replica.
    ///
    /// # Panics
    /// When there are fewer free ones: [`Home::aus_for_placing`] tells.
    pub fn place(&mut self, replica: ReplicaId, mut count: u32) -> Vec<PlacedRun> {
        assert!(matches!(self.state, State::Open), "a payload is placed before the mount is over");
        let mut runs: Vec<PlacedRun> = Vec::new();
        while count > 0 {
            let (first, taken) = self.aus.take_run(count, self.placed.near).expect("the caller has seen the room");
            (first..first + taken).for_each(|au| self.placed.add(replica, au));
            runs.push(PlacedRun { unit: self.unit_of(first), count: taken });
            self.placed.near = Some(first + taken);
            count -= taken;
        }
        runs
    }

    /// Takes the very AUs of a payload that a mount has found in the log; false, without any effect: one of them does not exist, or has
    /// an owner. It must come before anything else takes space.
    pub fn claim_placed(&mut self, replica: ReplicaId, runs: &[PlacedRun]) -> bool {
        assert!(matches!(self.state, State::Open) && self.round.is_none(), "a claim outside the mount");
        let units = runs.iter().flat_map(|run| run.unit..run.unit + run.count);
        let Some(aus) = units.map(|unit| self.au_of(unit)).collect::<Option<Vec<u32>>>() else { return false };
        let distinct: BTreeSet<u32> = aus.iter().copied().collect();
        if distinct.len() < aus.len() || !aus.iter().all(|au| self.aus.is_free(*au)) {
            return false;
        }
        for au in aus {
            assert!(self.aus.claim(au), "AU {au} was free a moment ago");
            self.placed.add(replica, au);
        }
        true
    }

    /// Returns the replicas with logged AUs, and the units of these.
    pub fn placed(&self) -> impl Iterator<Item = (ReplicaId, impl Iterator<Item = u32>)> {
        self.placed.iter().map(|(replica, aus)| (replica, aus.iter().map(|au| self.unit_of(*au))))
    }

    pub fn placed_count(&self) -> u64 {
        self.placed.iter().map(|(_, aus)| aus.len() as u64).sum()
    }

    /// Checks the caller's contract: whole AUs are adopted, and each is the replica's.
    pub(super) fn check_placed(&self, round: &Round) {
        for ChunkDirty { replica, chunk, blocks, adopts, .. } in &round.chunks {
            assert!(adopts.is_sorted_by(|a, b| a.0 < b.0), "AUs of {chunk} are not ascending");
            for (at, unit) in adopts {
                let first = *at * BLOCKS_PER_AU as u16;
                let from = blocks.partition_point(|(block, _)| *block < first);
                let all = blocks[from..].iter().take(BLOCKS_PER_AU as usize);
                let whole = all.filter(|(block, data)| {
                    *block < first + BLOCKS_PER_AU as u16 && matches!(data, BlockData::Bytes { .. })
                });
                assert_eq!(whole.count(), BLOCKS_PER_AU as usize, "AU {at} of {chunk} is adopted in part");
                let held = self.placed.aus.get(replica);
                let is_held = self.au_of(*unit).is_some_and(|au| held.is_some_and(|aus| aus.contains(&au)));
                assert!(is_held, "unit {unit} is not logged for {replica}");
            }
        }
    }

    /// Puts logged AUs into the chunk, and drops the ones that they replace.
    pub(super) fn adopt_placed(&mut self, replica: ReplicaId, chunk: &mut Chunk, adopts: &[(u16, u32)]) {
        for (at, unit) in adopts {
            let au = self.au_of(*unit).expect("the round was checked");
            assert!(self.placed.remove(replica, au), "AU {au} is adopted once");
            let whole = MapSlot { au, valid: u16::MAX, zeros: 0 };
            let old = std::mem::replace(&mut chunk.map[usize::from(*at)], whole);
            if old.valid != 0 {
                self.drop_exchanged(old.au);
            }
        }
    }

    /// Drops the logged AUs that the round does not adopt.
    pub(super) fn release_placed(&mut self, replica: ReplicaId, units: &[u32]) {
        for au in units.iter().filter_map(|unit| self.au_of(*unit)).collect::<Vec<_>>() {
            if self.placed.remove(replica, au) {
                self.drop_exchanged(au);
            }
        }
    }

    /// Drops an AU in exchange for one that the log has taken before.
    fn drop_exchanged(&mut self, au: u32) {
        self.drop_au(au);
        self.running().exchanged += 1;
    }
}
