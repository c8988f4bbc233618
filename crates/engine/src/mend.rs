//! Block repair: blocks of home that cannot be read are repaired with a peer's copy (R15, ADR 0022).
//!
//! Reads and rounds report blocks that fail their checksum or cannot be read. The OSD's loop is told, and returns with a
//! copy that a peer has read. The sectors that no layer above home covers are filled from the copy. The whole block goes
//! where a completed block goes: into the overlay and, as a record, into the log, below the entries that are redone. The
//! next round writes it to home.
//!
//! Invariant: a sector is filled only when it has not changed between the checkpoint index and the applied index, and
//! the copy is as of an index between the two, or is the block that home's checksum names. Home is never written with bytes that
//! neither the log nor a checkpoint covers.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home_api::HomeReadError;
use crate::lineage::View;
use crate::log::Work;
use crate::overlay::{Found, Source, block_range};
use crate::payload::Payload;
use crate::read::{Asker, Part, join};
use crate::replica::Replica;
use crate::round::RoundStep;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::planted::{Bug, on};
use types::store::{BlockCopy, Crcs, MendRefusal, ReadData};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, CrcList, Index, IoBuf, ReplicaId, SectorRange, block_hash, crc32c};

impl Engine {
    fn sound(&self, replica: ReplicaId) -> Option<&Replica> {
        let running = matches!(self.state, State::Running);
        // A failed replica has no overlay: home alone is older than the applied index.
        let whole = |r: &&Replica| !r.has_failed() && !r.is_filling();
        self.replicas.get(&replica).filter(|r| running && whole(r))
    }

    /// Returns the applied index of a replica of which this range can be read. A read that starts now is answered as of this
    /// index, or as of a later one.
    pub fn reads_as_of(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Option<Index> {
        let running = matches!(self.state, State::Running);
        let r = self.replicas.get(&replica).filter(|r| running && !r.has_failed())?;
        (!r.is_filling() || self.sources_of(r).covers(chunk, range)).then_some(r.applied)
    }

    /// Returns the sources of a block of which some sectors are at home alone. The bad block of a dissolved generation is one of its
    /// heir, which may hide it.
    fn found_at_home(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> Option<Vec<Found>> {
        self.home.as_ref()?.hash_of(replica, chunk, block)?;
        let r = self.sound(replica)?;
        let found = self.sources_of(r).resolve(View::Full, r.lineage.owner_of(chunk), block_range(block)).parts;
        found.iter().any(|f| is_home(f, chunk)).then_some(found)
    }

    /// Returns the checksum that home keeps of a block.
    pub fn home_hash(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> Option<u32> {
        self.home.as_ref()?.hash_of(replica, chunk, block)
    }

    /// Returns the block that the entries of a replica that is being filled make of an older copy. `None`: they do not touch it.
    pub fn over_older(&self, replica: ReplicaId, chunk: ChunkKey, block: u16, older: &IoBuf) -> Option<IoBuf> {
        let range = block_range(block);
        let filling = self.replicas.get(&replica).filter(|r| r.is_filling() && older.len() == range.len_bytes())?;
        // Contents at home do not count: the older copy is what all generations show below the overlay.
        let found = self.sources_of(filling).resolve(View::Full, chunk, range).parts;
        if found.iter().all(|f| matches!(f.source, Source::Open)) {
            return None;
        }
        let copy = BlockCopy { low: Index(0), high: Index(0), data: Some((older.clone(), crc32c(older))) };
        fill(range, found, &copy).ok().map(|made| made.map_or(IoBuf::zeros(range.len_bytes()), |made| made.buf.clone()))
    }

    /// Whether a block reported bad still has to be repaired.
    pub fn needs_mend(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> bool {
        self.found_at_home(replica, chunk, block).is_some()
    }

    /// Whether blocks of the replica are known to be bad, and not repaired yet.
    pub fn has_bad_blocks(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|r| !r.bad.is_empty())
    }

    /// Notes that a block reported bad was read well since, is not needed any more, or is to be found again by the next read of it.
    pub fn forget_bad(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) {
        self.zero_hidden(replica, chunk, block);
        if let Some(mut r) = self.replicas.get_mut(&replica) {
            r.bad.remove(&(chunk, block));
            self.destage.changed(false);
        }
    }

    /// Zeroes what no generation shows of a bad block and rounds would read all the same: a dissolved generation covers the block in part, and
    /// its heir all of it. The bytes do not matter: a restart redoes the entry of the heir (R2).
    fn zero_hidden(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) {
        let (Some(r), Some(home)) = (self.sound(replica), &self.home) else { return };
        let is_gone = home.hash_of(replica, chunk, block).is_none();
        if r.lineage.is_flat() || is_gone || self.needs_mend(replica, chunk, block) {
            return;
        }
        let active = r.overlay.active();
        let here = r.overlay.generations_at(chunk.index).collect::<BTreeSet<_>>().into_iter();
        let keys = here.map(|generation| ChunkKey { generation, index: chunk.index });
        let partial = keys.filter(|key| active.chunks.get(key).is_some_and(|c| c.is_partial(block)));
        let of = |key: ChunkKey| {
            let found = r.sources(home).resolve(View::Full, key, block_range(block)).parts;
            let shows = found.into_iter().filter(|f| is_home(f, chunk)).map(|f| (key, f.range));
            shows.collect::<Vec<_>>()
        };
        let hidden: Vec<(ChunkKey, SectorRange)> = partial.flat_map(of).collect();
        for (key, range) in hidden {
            self.put_mended(replica, key, range, None);
        }
    }

    /// Repairs the block with a peer's copy. The copy of a dissolved generation's block goes to its heir: the merge needs the block no
    /// more.
    ///
    /// Every entry above the checkpoint index K has covered the sectors that it touched. So a sector that is at home
    /// alone has the same contents at every index from K to the applied index, and a copy as of one of these has them. So has
    /// a copy as of any other index that home's checksum names.
    ///
    /// # Errors
    /// The reason why the copy is not taken.
    pub fn mend(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        block: u16,
        copy: &BlockCopy,
    ) -> Result<(), MendRefusal> {
        if !self.needs_mend(replica, chunk, block) {
            return Err(MendRefusal::NotNeeded);
        }
        let r = &self.replicas[&replica];
        let range = block_range(block);
        let found = self.found_at_home(replica, chunk, block).expect("it is needed");
        let (place, owner) = (r.lineage.place(chunk, block), r.lineage.owner_of(chunk));
        let hash = match &copy.data {
            Some((buf, crc)) if buf.len() == range.len_bytes() && crc32c(buf) == *crc => block_hash(place, buf),
            Some(_) => return Err(MendRefusal::Bytes),
            None => block_hash(place, &IoBuf::zeros(range.len_bytes())),
        };
        let untouched = found.iter().all(|f| is_home(f, chunk));
        let home = self.home.as_ref().expect("a running engine has a home");
        if home.hash_of(replica, chunk, block) != Some(hash) {
            if copy.low < r.checkpoint.0 && !on(Bug::RepairFromBehind) {
                return Err(MendRefusal::Behind);
            }
            if copy.high > r.applied {
                return Err(MendRefusal::Ahead);
            }
            if untouched {
                return Err(MendRefusal::Differs);
            }
        }
        match fill(range, found, copy) {
            Ok(payload) => {
                self.put_mended(replica, owner, range, payload);
                self.forget_bad(replica, chunk, block);
            }
            Err(at) => {
                self.fail(replica, format!("sectors {at} were damaged in memory"));
                return Err(MendRefusal::NotNeeded);
            }
        }
        Ok(())
    }

    /// Puts a block, or zeros, into the overlay.
    fn put_mended(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, payload: Option<Arc<Payload>>) {
        let mut r = self.replicas.get_mut(&replica).expect("the caller has looked");
        let judge = r.overlay.write(chunk, range, payload.clone());
        let index = r.applied;
        let commits = r.written_hard_state.commit < index;
        drop(r);
        if judge {
            self.judge_space(replica, chunk);
        }
        if commits {
            // R2: a restart must not go back below the index that the block includes.
            self.queue(Work::Commit { replica, commit: index });
        }
        // Zeros need no record: a crash before the round finds the block bad again.
        if let Some(payload) = payload {
            let block = (range.start / SECTORS_PER_BLOCK) as u16;
            self.queue(Work::Block { replica, chunk, block, index, payload });
        }
        self.destage.applied(self.now, false);
        self.stats.mended_blocks += 1;
    }

    /// Notes that home could not return the blocks of a read.
    pub(crate) fn blocks_are_bad(&mut self, asker: Asker, replica: ReplicaId, error: &HomeReadError) {
        let blocks: Vec<(ChunkKey, u16)> = match error {
            HomeReadError::Damaged { blocks } => blocks.clone(),
            HomeReadError::Disk { chunk, range, .. } => {
                let last = ((range.end() - 1) / SECTORS_PER_BLOCK) as u16;
                ((range.start / SECTORS_PER_BLOCK) as u16..=last).map(|block| (*chunk, block)).collect()
            }
        };
        let Some(mut r) = self.replicas.get_mut(&replica).filter(|r| !r.has_failed()) else { return };
        r.bad.extend(blocks.iter().copied());
        drop(r);
        let completing = matches!(asker, Asker::Completion);
        if completing {
            self.leave_round(replica);
        }
        let needed = completing || matches!(error, HomeReadError::Damaged { .. });
        for run in blocks.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
            let (chunk, first) = run[0];
            let (start, count) = (u32::from(first) * SECTORS_PER_BLOCK, run.len() as u32 * SECTORS_PER_BLOCK);
            let (range, reason) = (SectorRange::new(start, count), error.to_string());
            self.events.push(EngineEvent::BadBlocks { replica, chunk, range, reason, needed });
        }
    }

    /// Whether a round of this replica would have to read this block: the overlay covers it in part, or a block that shows it.
    pub fn delays_destage(&self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> bool {
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else { return false };
        let active = r.overlay.active();
        let own = !active.hides(chunk) && active.chunks.get(&chunk).is_some_and(|c| c.is_partial(block));
        if home.hash_of(replica, chunk, block).is_none() {
            // The block has gone since, to an heir or for good.
            return false;
        }
        if own || r.lineage.is_flat() {
            return own;
        }
        let mut others = active
            .chunks
            .iter()
            .filter(|(key, c)| key.index == chunk.index && key.generation != chunk.generation && c.is_partial(block));
        let shows = |key: ChunkKey| {
            let found = r.sources(home).resolve(View::Full, key, block_range(block)).parts;
            found.iter().any(|f| is_home(f, chunk))
        };
        others.any(|(key, _)| shows(*key))
    }

    /// Whether a round would have to read a block that is known to be bad.
    pub(crate) fn needs_bad_block(&self, replica: ReplicaId) -> bool {
        let Some(r) = self.replicas.get(&replica) else { return false };
        r.bad.iter().any(|(chunk, block)| self.delays_destage(replica, *chunk, *block))
    }

    /// Takes the replica out of the running round; it keeps its checkpoint index.
    fn leave_round(&mut self, replica: ReplicaId) {
        let RoundStep::Completing { run, left, .. } = &mut self.destage.round else { return };
        if !run.leave(replica) {
            return;
        }
        left.retain(|(id, ..)| *id != replica);
        let Some(mut r) = self.replicas.get_mut(&replica) else { return };
        r.overlay.thaw();
        drop(r);
        self.judge_all_space(replica);
        self.destage.changed(self.destage.round_releases);
    }
}

/// Whether these sectors come from this chunk at home.
fn is_home(found: &Found, chunk: ChunkKey) -> bool {
    matches!(found.source, Source::Home(key) if key == chunk)
}

/// Joins the sectors that layers above home cover with the copy's sectors of the rest; `None`: all zeros. On failure returns
/// the sectors whose bytes in memory fail their CRC.
fn fill(range: SectorRange, found: Vec<Found>, copy: &BlockCopy) -> Result<Option<Arc<Payload>>, SectorRange> {
    let of_copy = || match &copy.data {
        Some((buf, crc)) => Part::Data(Arc::new(Payload::new(
            buf.clone(),
            Crcs { start: range.start, values: CrcList::from_elem(*crc, 1) },
        ))),
        None => Part::Zeros,
    };
    let parts = found.into_iter().map(|f| match f.source {
        Source::Data(_) | Source::Zeros if on(Bug::RepairOverNewer) => (f.range, of_copy()),
        Source::Data(payload) => (f.range, Part::Data(payload)),
        Source::Zeros => (f.range, Part::Zeros),
        Source::Home(_) | Source::Open | Source::Hidden => (f.range, of_copy()),
    });
    Ok(match join(range, parts.collect())? {
        ReadData::Zeros => None,
        ReadData::Bytes { crcs, payload } => {
            Some(Arc::new(Payload::new(payload, Crcs { start: range.start, values: crcs })))
        }
    })
}
