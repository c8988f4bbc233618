//! Copies of a flatten: the leader writes into a head what the head shows of older generations.
//!
//! Input: places that `recovery` wants to copy, the bytes that were read there, and every change that the leader proposes. Output: entries that
//! write these bytes. A copy is an entry as a write is, so log, engine and streams know nothing of it.
//!
//! Invariant: no entry between the one as of which the bytes were read and the copy changes the same sectors. A leader that serves has applied
//! all entries of earlier terms and proposes all later ones, so it knows.

use crate::admit::Waiter;
use crate::descriptor::Command;
use crate::{Action, Group};
use std::collections::BTreeMap;
use types::cut::CutRefusal;
use types::planted::{Bug, on};
use types::store::Crcs;
use types::{ChunkKey, CrcList, GenerationId, Index, IoBuf, SectorRange, VolumeChunk, VolumeId};

/// Most places of one PG that are being copied at once.
const FILLS_MAX: usize = 16;

/// A place that is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillPoint {
    pub fill: u64,
    pub chunk: ChunkKey,
    /// Bytes that are read when this entry is applied may be copied.
    pub after: Index,
}

/// Bytes of a place, in whole blocks.
#[derive(Clone, Debug)]
pub struct FillPart {
    pub range: SectorRange,
    pub payload: IoBuf,
    pub crcs: CrcList,
}

#[derive(Debug)]
struct Fill {
    chunk: VolumeChunk,
    head: GenerationId,
    range: SectorRange,
    /// An entry that changes some of its sectors was proposed since.
    changed: bool,
    /// Parts that wait for their proposal; 0: the bytes are not known yet.
    parts: usize,
}

/// The places that a leader copies.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    fills: BTreeMap<u64, Fill>,
    next: u64,
}

impl Fills {
    pub fn len(&self) -> usize {
        self.fills.len()
    }

    /// Forgets all places: nothing of them waits for its proposal any more.
    pub fn clear(&mut self) {
        self.fills.clear();
    }

    /// Forgets the places of a volume.
    pub fn forget(&mut self, is_its: impl Fn(VolumeId) -> bool) {
        self.fills.retain(|_, fill| !is_its(fill.chunk.volume));
    }

    /// Notes a command that is about to be proposed. False: it is a copy of bytes that are older than another entry, and must not be.
    pub fn pass(&mut self, command: &Command, waiter: &Waiter) -> bool {
        if self.fills.is_empty() {
            return !matches!(command, Command::Fill { .. });
        }
        if let Waiter::Fill { fill: id } = waiter {
            let Some(fill) = self.fills.get_mut(id) else { return false };
            let passes = !fill.changed || on(Bug::FillOverNewer);
            fill.parts -= 1;
            if fill.parts == 0 {
                self.fills.remove(id);
            }
            return passes;
        }
        if let Command::Attach(attach) = command {
            // It may shorten the volume: what was read behind the end must not come back with a longer one.
            let its = self.fills.values_mut().filter(|fill| fill.chunk.volume == attach.volume);
            its.for_each(|fill| fill.changed = true);
        }
        if let Some((chunk, range)) = command.changes() {
            let overlaps = |fill: &Fill| fill.range.start < range.end() && range.start < fill.range.end();
            let its = self.fills.values_mut().filter(|fill| fill.chunk == chunk && overlaps(fill));
            its.for_each(|fill| fill.changed = true);
        }
        true
    }
}

impl Group {
    /// Returns the head of a volume for a flatten, its number of chunks, and whether it stands on nothing.
    ///
    /// # Errors
    /// This replica does not lead, or is busy; the PG does not have the volume; the head stands on a snapshot of the volume itself.
    pub fn head_to_flatten(&self, volume: VolumeId) -> Result<(GenerationId, u32, bool), CutRefusal> {
        if !self.is_leader() || self.transfer.is_some() {
            return Err(CutRefusal::NotLeader { hint: self.hint() });
        }
        if !self.serves() || self.is_held(volume) {
            return Err(CutRefusal::Busy);
        }
        let attached = self.decision.volumes.get(&volume).ok_or(CutRefusal::Absent)?;
        let is_flat = self.decision.is_flat(volume);
        if !is_flat && !self.decision.stands_on_other(volume) {
            return Err(CutRefusal::Open);
        }
        Ok((attached.head, attached.chunk_count, is_flat))
    }

    /// Begins to copy a place of the head of a volume. `None`: not now, and nothing is to be ended.
    pub fn begin_fill(&mut self, chunk: VolumeChunk, range: SectorRange) -> Option<FillPoint> {
        let held = self.is_held(chunk.volume) || self.fills.len() >= FILLS_MAX;
        if held || !self.serves() {
            return None;
        }
        let head = self.decision.fillable(chunk.volume)?;
        if chunk.index >= self.decision.volumes.get(&chunk.volume)?.chunk_count {
            return None;
        }
        let fill = self.fills.next;
        self.fills.next += 1;
        self.fills.fills.insert(fill, Fill { chunk, head, range, changed: false, parts: 0 });
        let chunk = ChunkKey { generation: head, index: chunk.index };
        Some(FillPoint { fill, chunk, after: self.node.last_index() })
    }

    /// Ends a place of which nothing is to be copied.
    pub fn end_fill(&mut self, fill: u64) {
        self.fills.fills.remove(&fill);
    }

    /// Proposes the bytes of a place, each part with an entry of its own: [`Action::Filled`] answers each. False: the place is not known any more
    /// or the queue has no room, and nothing is proposed.
    pub fn propose_fill(&mut self, fill: u64, parts: Vec<FillPart>) -> bool {
        let bytes: u64 = parts.iter().map(|part| part.payload.len() as u64).sum();
        let is_free = !self.full && self.queue.has_room_beside(parts.len(), bytes, &self.config.limits);
        let known = self.fills.fills.get_mut(&fill).filter(|fill| is_free && fill.parts == 0 && !parts.is_empty());
        let Some(place) = known else {
            self.end_fill(fill);
            return false;
        };
        place.parts = parts.len();
        let (chunk, head) = (place.chunk, place.head);
        for FillPart { range, payload, crcs } in parts {
            let crcs = Crcs { start: range.start, values: crcs };
            self.queue.push_fill(Command::Fill { chunk, head, range }, (payload, crcs), fill);
        }
        true
    }

    /// Proposes the end of the kinship of a head: all that it shows is its own. Decision state tells when that is done.
    pub fn detach(&mut self, volume: VolumeId, head: GenerationId) {
        let command = Command::Detach { volume, head };
        if self.serves() && !self.orders_are_full() && !self.queue.has_order(&command) {
            self.queue.push_order(command, Waiter::Detach);
        }
    }
}

/// Says how a part of a copy has ended.
pub(crate) fn filled(fill: u64, ok: bool, actions: &mut Vec<Action>) {
    actions.push(Action::Filled { fill, ok });
}
