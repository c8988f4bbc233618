//! Block repair: blocks of home that cannot be read are repaired from a peer (R15, ADR 0005).
//!
//! Reads and rounds report blocks that fail their checksum or cannot be read. The OSD's loop is told, asks a peer, and
//! returns with the block's bytes as of an applied index. These go where a completed block goes: into the overlay and,
//! as a record, into the log, below the entries that are redone. The next round writes them to home.
//!
//! Invariant: a block is repaired only with bytes that are exact as of the index that is applied here at that moment.
//! Home is never written with bytes that neither the log nor a checkpoint covers.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home_api::HomeReadError;
use crate::log::Work;
use crate::overlay::{Source, block_range};
use crate::payload::Payload;
use crate::read::Asker;
use crate::replica::{Doubt, Replica};
use crate::round::RoundStep;
use std::sync::Arc;
use types::store::Crcs;
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, crc32c};

/// Request to a peer for the repair of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MendAsk {
    /// Index applied here: the block's bytes are wanted as of it.
    pub applied: Index,
    /// CRC32C of the block, when no layer above home has touched it.
    pub expected: Option<u32>,
}

impl Replica {
    /// Whether no entry above the checkpoint index has touched the block.
    fn is_as_of_k(&self, chunk: ChunkKey, block: u16) -> bool {
        self.overlay.lookup(chunk, block_range(block)).iter().all(|f| matches!(f.source, Source::Home))
    }
}

impl Engine {
    fn sound(&self, replica: ReplicaId) -> Option<&Replica> {
        let running = matches!(self.state, State::Running);
        // A replica that is being rebuilt has dropped its overlay: home alone is older than the applied index.
        let whole = |r: &&Replica| r.damage.is_none() && !r.installing && r.doubt != Doubt::Waiting;
        self.replicas.get(&replica).filter(|r| running && whole(r))
    }

    /// Whether a read of the block now gives the block exactly as of `at`. That holds when `at` is the applied index.
    /// It also holds when no entry above the checkpoint index has touched the block and `at` is not below that index.
    pub fn is_exact(&self, replica: ReplicaId, chunk: ChunkKey, block: u16, at: Index) -> bool {
        self.sound(replica)
            .is_some_and(|r| r.applied == at || (r.applied > at && r.checkpoint.0 <= at && r.is_as_of_k(chunk, block)))
    }

    /// Returns the request that repairs a block reported bad. `None`: home's copy of the block is not needed any more.
    pub fn mend_ask(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> Option<MendAsk> {
        let home = self.home.as_ref()?;
        let ask = self.sound(replica).and_then(|r| {
            let held = home.crc_of(replica, chunk, block)?;
            let found = r.overlay.lookup(chunk, block_range(block));
            let below = found.iter().filter(|f| matches!(f.source, Source::Home)).count();
            let expected = (below == found.len()).then_some(held);
            (below > 0).then_some(MendAsk { applied: r.applied, expected })
        });
        if ask.is_none()
            && let Some(r) = self.replicas.get_mut(&replica)
        {
            r.bad.remove(&(chunk, block));
        }
        ask
    }

    /// Whether blocks of the replica are known to be bad, and not repaired yet.
    pub fn has_bad_blocks(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|r| !r.bad.is_empty())
    }

    /// Notes that a block reported bad was read well since: its device failed once, or the read went astray.
    pub fn note_readable(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) {
        if let Some(r) = self.replicas.get_mut(&replica) {
            r.bad.remove(&(chunk, block));
            self.maybe_dirty = true;
        }
    }

    /// Repairs the block with these bytes (and their CRC32C; `None`: zeros), exact as of `at` at a peer that had
    /// applied at least that. False: they are not the bytes that home must hold, or the block was written since and
    /// must be requested again.
    ///
    /// # Panics
    /// When the bytes are not one block.
    pub fn mend(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        block: u16,
        at: Index,
        data: Option<(IoBuf, u32)>,
    ) -> bool {
        let range = block_range(block);
        let Some(ask) = self.mend_ask(replica, chunk, block) else { return false };
        let crc = match &data {
            Some((buf, crc)) => {
                assert_eq!(buf.len(), range.len_bytes(), "a block");
                if crc32c(buf) != *crc {
                    return false;
                }
                *crc
            }
            None => crc32c(&IoBuf::zeros(range.len_bytes())),
        };
        if ask.expected.is_some_and(|expected| expected != crc) || !self.is_exact(replica, chunk, block, at) {
            return false;
        }
        let payload = data.map(|(buf, crc)| Payload { buf, crcs: Crcs { start: range.start, values: vec![crc] } });
        self.put_mended(replica, chunk, block, payload.map(Arc::new));
        true
    }

    fn put_mended(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16, payload: Option<Arc<Payload>>) {
        let r = self.replicas.get_mut(&replica).expect("the caller has looked");
        let (bytes, partial) = (r.overlay.bytes(), r.overlay.partial_blocks());
        let judge = r.overlay.write(chunk, block_range(block), payload.clone());
        self.overlay_bytes = self.overlay_bytes + r.overlay.bytes() - bytes;
        self.partial_blocks = self.partial_blocks + r.overlay.partial_blocks() - partial;
        r.bad.remove(&(chunk, block));
        let index = r.applied;
        let commits = r.written_hard_state.commit < index;
        if judge {
            self.judge_space(replica, chunk);
        }
        if commits {
            // R2: a restart must not go back below the index that the block includes.
            self.queue(Work::Commit { replica, commit: index });
        }
        // Zeros need no record: a crash before the round finds the block bad again.
        if let Some(payload) = payload {
            self.queue(Work::Block { replica, chunk, block, index, payload });
        }
        (self.maybe_dirty, self.last_apply) = (true, self.now);
        self.stats.mended_blocks += 1;
    }

    /// Notes that home could not return the blocks of a read.
    pub(crate) fn blocks_are_bad(&mut self, asker: Asker, replica: ReplicaId, chunk: ChunkKey, error: &HomeReadError) {
        let blocks = match error {
            HomeReadError::Damaged { block, .. } => *block..*block + 1,
            HomeReadError::Disk { range, .. } => {
                let last = ((range.end() - 1) / SECTORS_PER_BLOCK) as u16;
                (range.start / SECTORS_PER_BLOCK) as u16..last + 1
            }
        };
        let waits = |r: &Replica| r.damage.is_some() || r.doubt == Doubt::Waiting;
        let Some(r) = self.replicas.get_mut(&replica).filter(|r| !waits(r)) else { return };
        r.bad.extend(blocks.clone().map(|block| (chunk, block)));
        let completing = matches!(asker, Asker::Completion);
        if completing {
            self.leave_round(replica);
        }
        let needed = completing || matches!(error, HomeReadError::Damaged { .. });
        let reason = error.to_string();
        let range = SectorRange::new(
            u32::from(blocks.start) * SECTORS_PER_BLOCK,
            u32::from(blocks.end - blocks.start) * SECTORS_PER_BLOCK,
        );
        self.events.push(EngineEvent::BadBlocks { replica, chunk, range, reason, needed });
    }

    /// Whether a round would have to read a block that is known to be bad.
    pub(crate) fn needs_bad_block(&self, replica: ReplicaId) -> bool {
        let Some(r) = self.replicas.get(&replica) else { return false };
        let active = r.overlay.active();
        let partial = |chunk: &ChunkKey, block| active.chunks.get(chunk).is_some_and(|c| c.is_partial(block));
        r.bad.iter().any(|(chunk, block)| !active.hides(*chunk) && partial(chunk, *block))
    }

    /// Takes the replica out of the running round; it keeps its checkpoint index.
    fn leave_round(&mut self, replica: ReplicaId) {
        let RoundStep::Completing { run, left, .. } = &mut self.round else { return };
        if !run.leave(replica) {
            return;
        }
        left.retain(|(id, ..)| *id != replica);
        let Some(r) = self.replicas.get_mut(&replica) else { return };
        let (bytes, partial) = (r.overlay.bytes(), r.overlay.partial_blocks());
        r.overlay.thaw();
        self.overlay_bytes = self.overlay_bytes + r.overlay.bytes() - bytes;
        self.partial_blocks = self.partial_blocks + r.overlay.partial_blocks() - partial;
        self.judge_all_space(replica);
        self.maybe_dirty = true;
        self.releasing |= self.round_releases;
    }
}
