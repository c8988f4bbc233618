//! Flattens and shrinks: the adapter between the loop and `recovery::Flattens`, the space that copies hold, and the search for data behind
//! the new end of a volume.
//!
//! Input: orders of meta, and the ends of copies. Output: answers to meta, and copies for the groups. A copy takes grants as a client's write
//! does (R13).

use crate::node::Osd;
use crate::recover::Here;
use crate::space::Held;
use group::FillPart;
use recovery::{Action, Copied, FillRead, Head, Heads, Read};
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::OsdUp;
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder, Tail, TailStep};
use types::store::Inherited;
use types::{ChunkKey, GenerationId, Index, PgId, ReplicaId, SectorRange, Time, VolumeChunk, VolumeId};

/// Space of the copies that are under way, with the number of those that have not ended, by place.
pub(crate) type CopySpace = BTreeMap<(ReplicaId, u64), (usize, Option<Held>)>;

impl Heads for Here<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn is_pressed(&self) -> bool {
        recovery::Host::is_pressed(self)
    }

    fn log_wait(&self) -> Duration {
        self.engine.log_wait()
    }

    fn head(&self, pg: PgId, volume: VolumeId) -> Result<Head, CutRefusal> {
        let group = self.pgs.by_pg(pg).and_then(|key| self.pgs.get(key).group());
        let group = group.ok_or(CutRefusal::NotLeader { hint: None })?;
        let (head, chunks, is_flat) = group.head_to_flatten(volume)?;
        let (replica, term, applied) = (group.identity().replica, group.term(), group.applied());
        Ok(Head { replica, term, applied, head, chunks, is_flat })
    }

    fn next_inherited(&self, replica: ReplicaId, head: GenerationId, from: u32) -> Inherited {
        self.engine.next_inherited(replica, head, from)
    }

    fn inherited(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        self.engine.inherited(replica, chunk, range)
    }

    fn begin_fill(
        &mut self,
        replica: ReplicaId,
        chunk: VolumeChunk,
        range: SectorRange,
    ) -> Option<(u64, ChunkKey, Index)> {
        let group = self.pgs.group(self.pgs.by_replica(replica)?)?;
        group.begin_fill(chunk, range).map(|point| (point.fill, point.chunk, point.after))
    }

    fn end_fill(&mut self, replica: ReplicaId, fill: u64) {
        if let Some(group) = self.pgs.by_replica(replica).and_then(|key| self.pgs.group(key)) {
            group.end_fill(fill);
        }
    }

    fn read_fill(&mut self, read: FillRead, chunk: ChunkKey, range: SectorRange) {
        self.actions.push(Action::Read { read: Read::Fill(read), replica: read.replica, chunk, range });
    }

    fn propose_fill(&mut self, (replica, fill): (ReplicaId, u64), chunk: ChunkKey, parts: Vec<Copied>) {
        self.actions.push(Action::ProposeFill { replica, fill, chunk, parts });
    }

    fn detach(&mut self, replica: ReplicaId, volume: VolumeId, head: GenerationId) {
        self.actions.push(Action::Detach { replica, volume, head });
    }
}

impl Osd {
    /// Handles an order to flatten a volume in one PG.
    pub(crate) fn order_flatten(&mut self, pg: PgId, volume: VolumeId) {
        let mut result = Err(CutRefusal::Busy);
        self.recover(|r, here| result = r.flattens.handle_order(here, pg, volume));
        let answer = SnapshotAnswer::Flatten { volume, result };
        self.meta.outbox.push(OsdUp::Snapshots { pg, answer });
    }

    /// Looks for data behind the end that a volume is to have, in one PG.
    pub(crate) fn order_find(&mut self, pg: PgId, (volume, len_epoch): (VolumeId, u32), tail: &Tail) {
        let order = SnapshotOrder::Find { volume, len_epoch, tail: tail.clone() };
        let mut head = Err(CutRefusal::NotLeader { hint: None });
        self.with_pg(pg, |group, now, _| {
            let replica = group.identity().replica;
            head = group.head_with_tail(now, &order).map(|head| (replica, head));
        });
        let result = head.map(|(replica, head)| self.find_data(replica, head, tail));
        self.meta.outbox.push(OsdUp::Snapshots { pg, answer: SnapshotAnswer::Found { volume, len_epoch, result } });
    }

    fn find_data(&self, replica: ReplicaId, generation: GenerationId, tail: &Tail) -> TailStep {
        let shows_data = |index: u32, range: SectorRange| {
            self.engine.extents(replica, ChunkKey { generation, index }, range).iter().any(|(_, data)| *data)
        };
        let in_part = tail.parts.iter().find(|(chunk, range)| shows_data(*chunk, *range));
        match in_part {
            Some((chunk, _)) => TailStep::Data { chunk: *chunk },
            None => match self.engine.first_data(replica, generation, tail.from_chunk) {
                (Some(chunk), _) => TailStep::Data { chunk },
                (None, Some(next)) => TailStep::Searched { next },
                (None, None) => TailStep::Empty,
            },
        }
    }

    /// Gives copies to the group of a replica, once they have space.
    pub(crate) fn propose_fill(&mut self, (replica, fill): (ReplicaId, u64), chunk: ChunkKey, parts: Vec<Copied>) {
        let (left, bytes) = (parts.len(), parts.iter().map(|(range, ..)| range.len_bytes() as u64).sum());
        let taken = self.hold_for_copies(replica, chunk, &parts).and_then(|held| {
            let part = |(range, payload, crcs)| FillPart { range, payload, crcs };
            let (parts, mut taken) = (parts.into_iter().map(part).collect(), false);
            self.with_replica(replica, |group, _, _| taken = group.propose_fill(fill, parts));
            if !taken {
                self.settle_space(held);
                return None;
            }
            Some(held)
        });
        match taken {
            Some(held) => {
                self.stats.metrics.flatten_bytes.inc_by(bytes);
                self.copies.insert((replica, fill), (left, held));
            }
            None => {
                self.with_replica(replica, |group, _, _| group.end_fill(fill));
                self.recovery.flattens.handle_refused(self.now, replica, fill);
            }
        }
    }

    /// Takes the space that copies need; `None`: there is none.
    fn hold_for_copies(&mut self, replica: ReplicaId, chunk: ChunkKey, parts: &[Copied]) -> Option<Option<Held>> {
        let slot = self.pgs.by_replica(replica)?;
        let (first, last) = (parts.first()?.0, parts.last()?.0);
        let whole = SectorRange::new(first.start, last.end() - first.start);
        self.hold_space(slot, self.engine.new_aus(replica, chunk, whole)).ok()
    }

    /// Handles the end of one copy.
    pub(crate) fn filled(&mut self, replica: ReplicaId, fill: u64, ok: bool) {
        if let Some((left, held)) = self.copies.get_mut(&(replica, fill)) {
            *left -= 1;
            let held = if *left == 0 { held.take() } else { None };
            if *left == 0 {
                self.copies.remove(&(replica, fill));
            }
            self.settle_space(held);
        }
        self.recovery.flattens.handle_filled(self.now, replica, fill, ok);
    }
}
