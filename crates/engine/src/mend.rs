//! Blocks of home that cannot be read, and how they are mended from a peer (R15, ADR 0005).
//!
//! Reads and rounds come in with blocks that fail their checksum or cannot be read; the loop is told, asks a
//! peer, and comes back with the block's bytes as of an applied index. They go where a completed block goes: into
//! the overlay and, as a record of the log, under what will be redone. The next round writes them home.
//!
//! Invariant: a block is mended only with bytes that are exact as of what is applied here at that moment. Home
//! is never written from bytes that the log or a checkpoint does not answer for.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::log::Work;
use crate::overlay::{Source, block_range};
use crate::payload::Payload;
use crate::read::Asker;
use crate::replica::{Doubt, Replica};
use crate::round::RoundStep;
use crate::seam::HomeReadError;
use std::sync::Arc;
use types::store::Crcs;
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, crc32c};

/// What a peer must be asked to mend a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MendAsk {
    /// What is applied here: the block's bytes are wanted as of this index.
    pub applied: Index,
    /// Their CRC32C, when nothing above home has touched the block.
    pub expected: Option<u32>,
}

impl Replica {
    /// Whether no entry above K has touched the block.
    fn is_as_of_k(&self, chunk: ChunkKey, block: u16) -> bool {
        self.overlay.lookup(chunk, block_range(block)).iter().all(|f| matches!(f.source, Source::Home))
    }
}

impl Engine {
    fn sound(&self, replica: ReplicaId) -> Option<&Replica> {
        let running = matches!(self.state, State::Running);
        // Who begins anew has let go of the overlay: home alone is older than what was applied.
        let whole = |r: &&Replica| r.damage.is_none() && !r.installing && r.doubt != Doubt::Waiting;
        self.replicas.get(&replica).filter(|r| running && whole(r))
    }

    /// Whether what a read of the block gives now is the block exactly as of `at`: `at` is what is applied, or
    /// no entry above K has touched the block and `at` does not lie below K.
    pub fn is_exact(&self, replica: ReplicaId, chunk: ChunkKey, block: u16, at: Index) -> bool {
        self.sound(replica)
            .is_some_and(|r| r.applied == at || (r.applied > at && r.checkpoint.0 <= at && r.is_as_of_k(chunk, block)))
    }

    /// How to mend a block that was reported bad. `None`: home's copy of it is not needed any more.
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

    /// Whether blocks of the replica are known to be bad, and not mended yet.
    pub fn has_bad_blocks(&self, replica: ReplicaId) -> bool {
        self.replicas.get(&replica).is_some_and(|r| !r.bad.is_empty())
    }

    /// A block that was reported bad has been read well since: its device failed once, or the read went astray.
    pub fn note_readable(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) {
        if let Some(r) = self.replicas.get_mut(&replica) {
            r.bad.remove(&(chunk, block));
            self.maybe_dirty = true;
        }
    }

    /// Takes the block's bytes (with their CRC32C; `None`: zeros), exact as of `at` at a peer that had applied at
    /// least that. False: they are not what home must hold, or the block was touched since and is to be asked for
    /// again.
    ///
    /// # Panics
    /// When the bytes are not a block.
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
            // R2: a restart must not come back to less than what the block is made of.
            self.queue(Work::Commit { replica, commit: index });
        }
        // Zeros need no record: a crash before the round finds the block bad again.
        if let Some(payload) = payload {
            self.queue(Work::Block { replica, chunk, block, index, payload });
        }
        (self.maybe_dirty, self.last_apply) = (true, self.now);
        self.stats.mended_blocks += 1;
    }

    /// Home could not give the blocks of a read.
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

    /// The running round goes on without this replica, which keeps its K.
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
