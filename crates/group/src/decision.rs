//! Decision state (R1): all state that decides whether a committed entry takes effect.
//!
//! Input: each committed command, in order, from `apply`. Output: its outcome. The same bytes are stored
//! with every checkpoint. Invariant: a pure function of the entries applied so far. It depends on no clock and no local
//! fact, so every replica decides alike.

mod cuts;
mod fills;
mod length;
mod sharing;

use crate::descriptor::{Command, Stamp};
use crate::window::{Seen, Window};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::control::{Attach, Base};
use types::cut::{CutRefusal, CutStep};
use types::map::{Member, MembersStep, Membership, StepRefusal};
use types::planted::{Bug, on};
use types::store::Effect;
use types::tree::{Change, DECISION_VERSION, GENERATIONS_MAX, NODE_LEN_MAX, Tree, TreeError};
use types::writers::Writer;
use types::{ChunkKey, Epoch, Errno, GenerationId, OsdId, ReplicaId, SessionId, VolumeChunk, VolumeId};

pub use cuts::{OPEN_CUTS_MAX, OpenCuts, OpenItem};
pub use sharing::{SHARED_WRITERS_MAX, Writing};

/// Version of the encoding.
pub const VERSION: u16 = DECISION_VERSION;
/// Most volumes with an attach record in one PG.
pub const VOLUMES_MAX: usize = 16 << 10;
/// Most replicas in any list of the configuration.
const MEMBERS_MAX: usize = 16;
const VOLUME_LEN: usize = 8 + 8 + 8 + 4 + 4 + 3 * 8 + 8 + 32;

const _: () = assert!(
    VOLUMES_MAX * VOLUME_LEN
        + GENERATIONS_MAX * NODE_LEN_MAX
        + cuts::CUTS_LEN_MAX
        + (16 << 10)
        + sharing::SHARED_LEN_MAX
        <= types::limits::DECISION_LEN_MAX
);

/// The attach record of one volume (R6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// By their epochs.
    pub writers: Vec<Writing>,
    /// The epoch of the newest open or close.
    pub epoch: Epoch,
    pub chunk_count: u32,
    /// Orders the lengths: it rises with each step of a shrink.
    pub len_epoch: u32,
    /// The generation that writes go to.
    pub head: GenerationId,
    /// The head with which the volume came to this PG. An older snapshot of the volume shows zeros here.
    pub first: GenerationId,
    /// The highest generation that an order of the volume has named here.
    pub last: GenerationId,
}

/// Decision state, exactly at the applied index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Decision {
    /// Highest order applied in this PG.
    pub order: u64,
    pub volumes: BTreeMap<VolumeId, Attached>,
    pub members: Membership,
    /// The generations of the volumes. The head of each volume is a node, and each head is that of a volume.
    pub tree: Arc<Tree>,
    /// Cuts whose end is not decided: the leader holds the changes of their volumes (R14).
    pub cuts: OpenCuts,
}

/// Outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command took effect, or is a duplicate of one that did.
    Done(Effect),
    Refused(Errno),
    /// An attach whose order is not above the last.
    StaleOrder {
        last: u64,
    },
    /// An attach beyond `VOLUMES_MAX` or `GENERATIONS_MAX`.
    TooMany,
    /// A membership step took effect.
    Members,
    /// A membership step has no effect.
    NoStep(StepRefusal),
    /// The present state of the cut that an order names.
    Cut(CutStep),
    /// An order of a cut or a snapshot has no effect.
    NoCut(CutRefusal),
    /// The PG does not have the snapshot any more.
    Removed,
}

/// Result of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub outcome: Outcome,
    /// The steps that the store carries out, when the tree is another one now.
    pub changes: Option<Vec<Change>>,
}

impl From<Outcome> for Decided {
    fn from(outcome: Outcome) -> Decided {
        Decided { outcome, changes: None }
    }
}

impl Outcome {
    /// Returns the effect that the engine performs.
    pub fn effect(self) -> Effect {
        match self {
            Outcome::Done(effect) => effect,
            _ => Effect::None,
        }
    }
}

/// Stored decision state that cannot be read: damage of this replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    #[error("decision state of version {0} is not known, only {VERSION}")]
    Version(u16),
    #[error("decision state ends early, goes on too long, or exceeds its limits")]
    Shape,
}

impl Decision {
    /// Makes the state of a new replica: no volume attached, all members voters.
    pub fn fresh(epoch: Epoch, members: &[Member]) -> Decision {
        Decision { members: Membership::fresh(epoch, members), ..Decision::default() }
    }

    /// The chunk in the head of its volume; `None`: the volume has no attach record.
    pub fn in_head(&self, chunk: VolumeChunk) -> Option<ChunkKey> {
        let attached = self.volumes.get(&chunk.volume)?;
        Some(ChunkKey { generation: attached.head, index: chunk.index })
    }

    /// Decides one committed command.
    pub fn decide(&mut self, command: &Command) -> Decided {
        match command {
            Command::Attach(attach) => self.attach(attach),
            Command::Snap(cut) => self.snap(cut),
            Command::Release { cut, end, items } => self.release(*cut, *end, items),
            Command::Remove { volume, snapshot } => self.remove_snapshot(*volume, *snapshot),
            Command::Detach { volume, head } => self.detach(*volume, *head),
            _ => self.decide_flat(command).into(),
        }
    }

    /// Decides a command that changes no generation.
    fn decide_flat(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Empty => Outcome::Done(Effect::None),
            Command::Write { chunk, range, stamp } => {
                self.stamped(chunk.volume, Some(chunk.index), stamp, |chunk| Effect::Write { chunk, range: *range })
            }
            Command::Zero { chunk, range, stamp } => {
                self.stamped(chunk.volume, Some(chunk.index), stamp, |chunk| Effect::Zero { chunk, range: *range })
            }
            Command::Skip { volume, stamp } => self.stamped(*volume, None, stamp, |_| Effect::None),
            Command::Fill { chunk, head, range } => self.fill(*chunk, *head, *range),
            Command::Wipe { chunk, range, len_epoch } => self.wipe(*chunk, *range, *len_epoch),
            Command::Attach(_)
            | Command::Snap(_)
            | Command::Release { .. }
            | Command::Remove { .. }
            | Command::Detach { .. } => unreachable!("it was decided above"),
            Command::Members { expected, step } => match self.members.after(*expected, *step) {
                Ok(members) => {
                    self.members = members;
                    if let MembersStep::Force { fence: true, .. } = step {
                        self.volumes.values_mut().for_each(|attached| attached.writers.clear());
                    }
                    Outcome::Members
                }
                Err(refusal) => Outcome::NoStep(refusal),
            },
        }
    }

    /// Decides a request of a session. `effect` makes the effect of the chunk that it names, in the head of the volume.
    fn stamped(
        &mut self,
        volume: VolumeId,
        chunk: Option<u32>,
        stamp: &Stamp,
        effect: impl FnOnce(ChunkKey) -> Effect,
    ) -> Outcome {
        let Some(attached) = self.volumes.get_mut(&volume) else { return Outcome::Refused(Errno::Gone) };
        let writer = Writer { epoch: stamp.epoch, session: stamp.session };
        let ignored = |writing: &Writing| on(Bug::FenceIgnored) && writing.writer.epoch > writer.epoch;
        let its = attached.writers.iter_mut().find(|writing| writing.writer == writer || ignored(writing));
        let Some(writing) = its else { return Outcome::Refused(Errno::Fenced) };
        if chunk.is_some_and(|index| index >= attached.chunk_count) {
            return Outcome::Refused(Errno::Invalid);
        }
        match writing.window.take(stamp.seq, stamp.watermark) {
            Seen::Fresh => {
                if chunk.is_some() && !self.cuts.is_empty() {
                    Decision::note_written(&mut self.cuts, volume);
                }
                Outcome::Done(effect(ChunkKey { generation: attached.head, index: chunk.unwrap_or(0) }))
            }
            Seen::Duplicate => Outcome::Done(Effect::None),
            Seen::Beyond => Outcome::Refused(Errno::Invalid),
        }
    }

    /// Applies an attach record. Fence, resize, rollback and delete are the same record (R6).
    fn attach(&mut self, attach: &Attach) -> Decided {
        if attach.order <= self.order {
            return Outcome::StaleOrder { last: self.order }.into();
        }
        if attach.chunk_count == 0 {
            self.order = attach.order;
            return Decided { outcome: Outcome::Done(Effect::None), changes: self.end(attach.volume) };
        }
        let old = self.volumes.get(&attach.volume).cloned();
        let (len_epoch, chunk_count) = length::after(attach, old.as_ref());
        if length::is_shorter(old.as_ref(), chunk_count) && self.holds(attach.volume) {
            return Outcome::Refused(Errno::Invalid).into();
        }
        if !self.has_room_for_writers(attach) {
            return Outcome::TooMany.into();
        }
        let placed = match &old {
            Some(old) => self.turn_back(attach, old),
            None => self.begin(attach),
        };
        let (head, mut changes) = match placed {
            Ok(placed) => placed,
            Err(outcome) => return outcome.into(),
        };
        self.order = attach.order;
        self.shorten(old.as_ref(), (head, chunk_count), &mut changes);
        let (first, last) = old.as_ref().map_or((head, head), |old| (old.first, old.last.max(head)));
        let writers = sharing::after(attach, old.as_ref());
        let record = Attached { writers, epoch: attach.epoch, chunk_count, len_epoch, head, first, last };
        self.volumes.insert(attach.volume, record);
        Decided { outcome: Outcome::Done(Effect::None), changes }
    }

    /// Adds the first head of a volume that comes to this PG.
    ///
    /// # Errors
    /// The PG has no room for it, or not the snapshot that it stands on.
    fn begin(&mut self, attach: &Attach) -> Result<(GenerationId, Option<Vec<Change>>), Outcome> {
        // Only bytes of a peer name one below that of the volume.
        let head = GenerationId::first_of(attach.volume).max(attach.head);
        let parent = attach.base.map_or(Ok(None), |base| self.on_base(base))?;
        if self.volumes.len() >= VOLUMES_MAX || self.tree.len() >= GENERATIONS_MAX {
            return Err(Outcome::TooMany);
        }
        // Only in bytes of a peer another volume has this generation.
        let begun = Arc::make_mut(&mut self.tree).begin(attach.volume, head, parent);
        begun.map(|()| (head, Some(Vec::new()))).map_err(|_| Outcome::TooMany)
    }

    /// Puts a new head on a snapshot of the volume, unless that was done before.
    ///
    /// # Errors
    /// The PG does not have the snapshot, has no room for the head, or a cut of the volume is open.
    fn turn_back(&mut self, attach: &Attach, old: &Attached) -> Result<(GenerationId, Option<Vec<Change>>), Outcome> {
        let Some(base) = attach.base.filter(|base| base.volume == attach.volume && base.to > old.last) else {
            return Ok((old.head, None));
        };
        if self.holds(attach.volume) {
            return Err(Outcome::Refused(Errno::Invalid));
        }
        let snapshot = self.on_base(base)?;
        let turned = Arc::make_mut(&mut self.tree).turn_back(old.head, snapshot, attach.head);
        turned.map(|changes| (attach.head, Some(changes))).map_err(|_| Outcome::TooMany)
    }

    /// The generation of a snapshot that a head is to stand on. `None`: it shows zeros here.
    ///
    /// # Errors
    /// The snapshot is gone.
    fn on_base(&self, base: Base) -> Result<Option<GenerationId>, Outcome> {
        if !self.volumes.contains_key(&base.volume) || on(Bug::BaseIgnored) {
            return Ok(None);
        }
        let chunk = VolumeChunk { volume: base.volume, index: 0 };
        let found = self.in_snapshot(chunk, base.snapshot).map_err(Outcome::Refused)?;
        Ok(found.map(|key| key.generation))
    }

    /// Encodes the state for a checkpoint.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(128 + self.volumes.len() * VOLUME_LEN + self.tree.len() * 16);
        self.tree.encode_decision(&mut out);
        out.put_u64_le(self.order);
        out.put_u64_le(self.members.epoch.0);
        out.put_u64_le(self.members.base.0);
        out.put_u8(u8::from(self.members.left && !on(Bug::LeftNotCheckpointed)));
        out.put_u64_le(self.members.floor.0);
        for members in [&self.members.voters, &self.members.outgoing, &self.members.learners] {
            out.put_u16_le(members.len() as u16);
            for member in members {
                out.put_u64_le(member.replica.0);
                out.put_u32_le(member.osd.0);
            }
        }
        out.put_u32_le(self.volumes.len() as u32);
        for (volume, attached) in &self.volumes {
            out.put_u64_le(volume.0);
            let only = attached.only_writer();
            out.put_u64_le(only.map_or(0, |writing| writing.writer.session.0));
            out.put_u64_le(attached.epoch.0);
            out.put_u32_le(attached.chunk_count);
            out.put_u32_le(attached.len_epoch);
            [attached.head, attached.first, attached.last].iter().for_each(|id| out.put_u64_le(id.0));
            sharing::put_window(&mut out, &only.map(|writing| writing.window).unwrap_or_default());
        }
        self.encode_cuts(&mut out);
        self.encode_shared(&mut out);
        out.freeze()
    }

    /// Reads the bytes of a checkpoint.
    ///
    /// # Errors
    /// For anything that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Result<Decision, DecisionError> {
        let (tree, mut bytes) = Tree::split_decision(bytes)?.ok_or(DecisionError::Shape)?;
        let tree = Tree::decode(tree)?;
        let order = bytes.try_get_u64_le().map_err(short)?;
        let epoch = Epoch(bytes.try_get_u64_le().map_err(short)?);
        let base = Epoch(bytes.try_get_u64_le().map_err(short)?);
        let left = match bytes.try_get_u8().map_err(short)? {
            0 => false,
            1 => true,
            _ => return Err(DecisionError::Shape),
        };
        let floor = ReplicaId(bytes.try_get_u64_le().map_err(short)?);
        let members = Membership {
            epoch,
            base,
            left,
            floor,
            voters: get_members(&mut bytes)?,
            outgoing: get_members(&mut bytes)?,
            learners: get_members(&mut bytes)?,
        };
        let count = bytes.try_get_u32_le().map_err(short)? as usize;
        if count > VOLUMES_MAX || bytes.remaining() < count * VOLUME_LEN {
            return Err(DecisionError::Shape);
        }
        let mut volumes = BTreeMap::new();
        for _ in 0..count {
            let volume = VolumeId(bytes.get_u64_le());
            let (session, epoch) = (SessionId(bytes.get_u64_le()), Epoch(bytes.get_u64_le()));
            let (chunk_count, len_epoch) = (bytes.get_u32_le(), bytes.get_u32_le());
            let [head, first, last] = std::array::from_fn(|_| GenerationId(bytes.get_u64_le()));
            let writers = sharing::only(Writer { epoch, session }, sharing::get_window(&mut bytes));
            let writers = writers.ok_or(DecisionError::Shape)?;
            let ascending = volumes.last_key_value().is_none_or(|(last, _)| *last < volume);
            let in_order = first <= head && head <= last;
            let in_tree = tree.is_head_of(volume, head);
            if !ascending || chunk_count == 0 || !in_order || !in_tree {
                return Err(DecisionError::Shape);
            }
            volumes.insert(volume, Attached { writers, epoch, chunk_count, len_epoch, head, first, last });
        }
        let mut decision = Decision { order, volumes, members, tree: Arc::new(tree), cuts: OpenCuts::new() };
        decision.decode_cuts(&mut bytes)?;
        decision.decode_shared(&mut bytes)?;
        if !decision.fits_tree() || bytes.has_remaining() {
            return Err(DecisionError::Shape);
        }
        Ok(decision)
    }
}

impl From<TreeError> for DecisionError {
    fn from(error: TreeError) -> DecisionError {
        match error {
            TreeError::Version(version) => DecisionError::Version(version),
            TreeError::Shape => DecisionError::Shape,
        }
    }
}

fn short<E>(_: E) -> DecisionError {
    DecisionError::Shape
}

fn get_count(bytes: &mut &[u8]) -> Result<usize, DecisionError> {
    let count = bytes.try_get_u16_le().map_err(short)? as usize;
    if count > MEMBERS_MAX { Err(DecisionError::Shape) } else { Ok(count) }
}

fn get_members(bytes: &mut &[u8]) -> Result<Vec<Member>, DecisionError> {
    let count = get_count(bytes)?;
    let member = |bytes: &mut &[u8]| {
        let replica = ReplicaId(bytes.try_get_u64_le().map_err(short)?);
        Ok(Member { replica, osd: OsdId(bytes.try_get_u32_le().map_err(short)?) })
    };
    (0..count).map(|_| member(bytes)).collect()
}

#[cfg(test)]
mod tests;
