//! Audit of home's space accounting, for tests and for the simulator's checkers.
//!
//! It has no input and returns the first contradiction. It may be called at any moment between two calls of home.
//!
//! Invariant: none of its own; it checks those of `space` and `chunk`.

use super::chunk::{BLOCKS, Replica};
use super::{Home, State};
use layout::home::CRC_PAGES;
use types::{ChunkKey, ReplicaId};

/// Owner of an AU or slot number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Free,
    Replica(ReplicaId),
    /// Staged for the replica by a stream.
    Staged(ReplicaId),
    PendingFree,
    /// It holds a payload of the replica's log.
    Logged(ReplicaId),
    /// Double-owned: two owners claimed the number at mount.
    DoubleOwned,
}

/// Owners of all AUs or of all slots; each number has one.
struct Ledger {
    what: &'static str,
    owners: Vec<Option<Owner>>,
}

impl Ledger {
    fn enter(&mut self, n: u32, owner: Owner) -> Result<(), String> {
        match self.owners.get_mut(n as usize) {
            None => Err(format!("{} {n} does not exist, but {owner:?} holds it", self.what)),
            Some(Some(Owner::DoubleOwned)) => Ok(()),
            Some(Some(other)) => Err(format!("{} {n} is held by {other:?} and {owner:?}", self.what)),
            Some(cell) => {
                *cell = Some(owner);
                Ok(())
            }
        }
    }

    fn check_complete(&self) -> Result<(), String> {
        match self.owners.iter().position(Option::is_none) {
            Some(n) => Err(format!("{} {n} has leaked", self.what)),
            None => Ok(()),
        }
    }
}

impl Home {
    /// Returns every block that the replica's map names: chunk and number, offset on the device, and checksum.
    pub fn named_blocks(&self, replica: ReplicaId) -> impl Iterator<Item = (ChunkKey, u16, u64, u32)> {
        let chunks = self.replicas.get(&replica).into_iter().flat_map(|r| r.chunks.iter());
        chunks.flat_map(|(key, chunk)| {
            (0..BLOCKS).filter(|block| chunk.is_valid(*block)).map(|block| {
                let (au, n) = chunk.place_of(block);
                let offset = self.region.start + self.geometry.block_offset(au, n);
                (*key, block as u16, offset, chunk.hash_of(block))
            })
        })
    }

    /// Checks that every AU and every slot is free, owned once, or pending free; that each chunk has its place in the
    /// directory; that resident tables match the map. Checks nothing before the mount is over: until then the numbers
    /// that the checkpoint names are being claimed.
    ///
    /// # Errors
    /// Describes the first contradiction.
    pub fn audit(&self) -> Result<(), String> {
        if !matches!(self.state, State::Open) {
            return Ok(());
        }
        let mut aus = Ledger { what: "AU", owners: vec![None; self.geometry.au_count as usize] };
        let mut slots = Ledger { what: "slot", owners: vec![None; self.geometry.slot_count as usize] };
        self.double_owned.aus.iter().try_for_each(|au| aus.enter(*au, Owner::DoubleOwned))?;
        self.double_owned.slots.iter().try_for_each(|slot| slots.enter(*slot, Owner::DoubleOwned))?;
        for n in 0..self.geometry.au_count {
            if self.aus.is_free(n) {
                aus.enter(n, Owner::Free)?;
            }
        }
        for n in 0..self.geometry.slot_count {
            if self.slots.is_free(n) {
                slots.enter(n, Owner::Free)?;
            }
        }
        let (mut pending_free_aus, mut pending_free_slots) = (0, 0);
        for dropped in self.pending_free.all() {
            dropped.aus.iter().try_for_each(|au| aus.enter(*au, Owner::PendingFree))?;
            dropped.slots.iter().try_for_each(|slot| slots.enter(*slot, Owner::PendingFree))?;
            pending_free_aus += dropped.aus.len();
            pending_free_slots += dropped.slots.len();
        }
        if (pending_free_aus, pending_free_slots)
            != (self.pending_free.au_count() as usize, self.pending_free.slot_count() as usize)
        {
            return Err("pending-free space is counted wrong".to_owned());
        }
        for (id, placed) in self.placed.iter() {
            placed.iter().try_for_each(|au| aus.enter(*au, Owner::Logged(id)))?;
        }
        for (id, replica) in &self.replicas {
            replica.slots().try_for_each(|slot| slots.enter(slot, Owner::Replica(*id)))?;
            replica.chunks.values().flat_map(|c| c.aus()).try_for_each(|au| aus.enter(au, Owner::Replica(*id)))?;
            if replica.damage.is_none() {
                audit_replica(replica).map_err(|wrong| format!("{id}: {wrong}"))?;
            }
        }
        for (id, staging) in &self.staging {
            let held = staging.chunks.values().flat_map(|c| c.aus());
            held.into_iter().try_for_each(|au| aus.enter(au, Owner::Staged(*id)))?;
        }
        aus.check_complete()?;
        slots.check_complete()
    }
}

fn audit_replica(replica: &Replica) -> Result<(), String> {
    let mut placed = 0;
    for (n, page) in replica.directory.iter().enumerate() {
        let used = page.chunks.iter().flatten().count();
        placed += used;
        let open = replica.open_pages.contains(&(n as u32));
        if open != (used < page.chunks.len()) {
            return Err(format!("directory page {n} with {used} chunks is listed wrongly as open: {open}"));
        }
    }
    if placed != replica.chunks.len() {
        return Err(format!("{placed} directory places for {} chunks", replica.chunks.len()));
    }
    replica.chunks.audit()?;
    for (key, chunk) in replica.chunks.iter() {
        let place = replica.directory.get(chunk.place.page as usize);
        if place.and_then(|page| page.chunks[chunk.place.position as usize]) != Some(*key) {
            return Err(format!("{key} is not where its directory place says"));
        }
        if chunk.is_empty() || chunk.pages[0].is_none() {
            return Err(format!("{key} holds nothing or has no map page"));
        }
        if let Some(at) = chunk.map.iter().position(|slot| slot.valid & slot.zeros != 0) {
            return Err(format!("AU {at} of {key} has a block with data and a zero mark"));
        }
        if let Some(at) = chunk.map.iter().position(|slot| slot.valid == 0 && slot.au != 0) {
            return Err(format!("AU {at} of {key} holds no data"));
        }
        for n in 0..CRC_PAGES {
            let facts = [chunk.has_quarter(n), chunk.crcs[n].is_some(), chunk.pages[1 + n].is_some()];
            if facts != [facts[0]; 3] {
                return Err(format!("quarter {n} of {key}: data, CRCs, CRC page: {facts:?}"));
            }
        }
    }
    Ok(())
}
