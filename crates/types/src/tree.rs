//! The tree of a PG: its generations with their parents, as decision state (R1).
//!
//! Input: changes that `group` decides. Output: the path of generations that a read looks at, and what a change asks of the store.
//! A parent has a lower id than its children, so no cycle is possible, and bytes are read in one pass.
//!
//! Invariant: a head has no child, so a discarded head takes no block away that another generation shows. A hidden generation has two
//! children or more.

mod encoding;

use crate::{GenerationId, SnapshotId, VolumeId};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

pub use encoding::{DECISION_VERSION, NODE_LEN_MAX, TreeError};

/// Most generations in one PG.
pub const GENERATIONS_MAX: usize = 32 << 10;

/// State of a generation in its tree, with the volume that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The writes of the volume go here.
    Head(VolumeId),
    /// It takes no more writes, and can be read. A snapshot has the same name in each PG; the generations may be different ones.
    Snapshot(VolumeId, SnapshotId),
    /// A removed snapshot that two children or more still need. It cannot be read by itself.
    Hidden(VolumeId),
}

impl Role {
    pub fn volume(self) -> VolumeId {
        let (Role::Head(volume) | Role::Snapshot(volume, _) | Role::Hidden(volume)) = self;
        volume
    }

    fn is_head(self) -> bool {
        matches!(self, Role::Head(_))
    }
}

/// `head`, the name of the snapshot, or `hidden`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Head(_) => f.write_str("head"),
            Role::Snapshot(_, id) => write!(f, "{id}"),
            Role::Hidden(_) => f.write_str("hidden"),
        }
    }
}

/// One generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Shows what is open in this generation.
    pub parent: Option<GenerationId>,
    /// The first generation above it. It stays when parents go, because it seeds the checksums of the blocks.
    pub family: GenerationId,
    /// Chunks of the parent show only below this index; `u32::MAX` without a parent.
    pub through: u32,
    pub role: Role,
    /// Chunks of the volume when the generation became a snapshot; 0 in any other role.
    pub chunk_count: u32,
    /// Wall clock of meta in the order that made it a snapshot; 0 in any other role.
    pub created_ms: u64,
}

/// All generations of a PG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<GenerationId, Node>,
    /// The generation of each snapshot.
    snapshots: BTreeMap<SnapshotId, GenerationId>,
}

/// Step of a removal that the store carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No generation shows the blocks of this one any more.
    Discard(GenerationId),
    /// Blocks of chunks below `through` that are open in `into` belong to it from now on; all others of `from` go.
    Merge { from: GenerationId, into: GenerationId, through: u32 },
    /// The own blocks of a head in chunks from this index on are gone: its volume got shorter.
    Shorten { generation: GenerationId, from_chunk: u32 },
}

/// Reason why a change has no effect. The tree is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeRefusal {
    #[error("{0} is not in the tree")]
    Unknown(GenerationId),
    #[error("{0} is in the tree already")]
    Known(GenerationId),
    #[error("{0} is not the head of its volume")]
    NotHead(GenerationId),
    #[error("{0} is not a snapshot that fits the request")]
    NotSnapshot(GenerationId),
    #[error("{0} is not above the generation that it comes from")]
    NotAbove(GenerationId),
    #[error("the PG has {GENERATIONS_MAX} generations")]
    Full,
}

impl Tree {
    pub fn get(&self, id: GenerationId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Returns the generation that is this snapshot.
    pub fn snapshot(&self, id: SnapshotId) -> Option<GenerationId> {
        self.snapshots.get(&id).copied()
    }

    /// Returns the snapshots of a volume with their generations, ascending.
    pub fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = (SnapshotId, GenerationId)> + '_ {
        let is_its = move |id: &GenerationId| self.nodes[id].role.volume() == volume;
        self.snapshots
            .iter()
            .filter(move |(_, generation)| is_its(generation))
            .map(|(id, generation)| (*id, *generation))
    }

    /// Returns the generations, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (GenerationId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the generations whose parent is this one, ascending.
    pub fn children(&self, id: GenerationId) -> impl Iterator<Item = GenerationId> + '_ {
        // A head has no child, and a child a higher id.
        let is_head = self.nodes.get(&id).is_some_and(|node| node.role.is_head());
        let younger = (!is_head).then(|| self.nodes.range((Bound::Excluded(id), Bound::Unbounded)));
        let children = younger.into_iter().flatten().filter(move |(_, node)| node.parent == Some(id));
        children.map(|(child, _)| *child)
    }

    /// Whether this generation is the head of the volume.
    pub fn is_head_of(&self, volume: VolumeId, id: GenerationId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.role == Role::Head(volume))
    }

    /// Returns the generations that show blocks of this one, from itself to the oldest. Each comes with the index below which its chunks
    /// show: the least one of the edges above.
    ///
    /// # Panics
    /// When the tree does not have the generation: its blocks must never read as zeros.
    pub fn path(&self, id: GenerationId) -> impl Iterator<Item = (GenerationId, u32)> + '_ {
        assert!(self.nodes.contains_key(&id), "{id} is not in the tree");
        std::iter::successors(Some((id, u32::MAX)), |(at, through)| {
            let node = self.nodes[at];
            node.parent.map(|parent| (parent, node.through.min(*through)))
        })
    }

    /// Returns, for each volume, the generations of which its head or one of its snapshots shows blocks. Each comes with the index below
    /// which some of these show its chunks.
    pub fn shown(&self) -> BTreeMap<VolumeId, BTreeMap<GenerationId, u32>> {
        let mut shown: BTreeMap<VolumeId, BTreeMap<GenerationId, u32>> = BTreeMap::new();
        // The youngest first: the path of the head has most of those of the snapshots.
        for (id, node) in self.nodes.iter().rev() {
            let (Role::Head(volume) | Role::Snapshot(volume, _)) = node.role else { continue };
            let of_volume = shown.entry(volume).or_default();
            for (generation, through) in self.path(*id) {
                // From here on a longer part of each generation was noted.
                if of_volume.get(&generation).is_some_and(|known| *known >= through) {
                    break;
                }
                of_volume.insert(generation, through);
            }
        }
        shown
    }

    /// Adds the first head of a volume in this PG. With a parent, a snapshot, it is the head of a clone.
    ///
    /// # Errors
    /// `head` is known, the parent is no snapshot or has no lower id, or the tree is full.
    pub fn begin(
        &mut self,
        volume: VolumeId,
        head: GenerationId,
        parent: Option<GenerationId>,
    ) -> Result<(), TreeRefusal> {
        let family = match parent {
            Some(parent) => self.frozen(parent)?.family,
            None => head,
        };
        self.insert(head, Node::head(volume, parent, family))
    }

    /// Turns the head of a volume into a snapshot with the number of `to`, and puts the new head `to` above it.
    ///
    /// # Errors
    /// `from` is not the head of the volume, `to` is known or has no higher id, or the tree is full.
    pub fn branch(
        &mut self,
        volume: VolumeId,
        from: GenerationId,
        to: GenerationId,
        chunk_count: u32,
        created_ms: u64,
    ) -> Result<(), TreeRefusal> {
        let old = *self.nodes.get(&from).ok_or(TreeRefusal::Unknown(from))?;
        if old.role != Role::Head(volume) {
            return Err(TreeRefusal::NotHead(from));
        }
        let name = SnapshotId(to.0);
        if self.snapshots.contains_key(&name) {
            return Err(TreeRefusal::Known(to));
        }
        self.insert(to, Node::head(volume, Some(from), old.family))?;
        self.nodes.insert(from, Node { role: Role::Snapshot(volume, name), chunk_count, created_ms, ..old });
        self.snapshots.insert(name, from);
        self.check_node(to);
        Ok(())
    }

    /// Takes a branch back: the snapshot is the head again, as before. Nothing was written to `to`.
    ///
    /// # Errors
    /// `to` is no head, its parent is not the snapshot of that branch, has another child, or shows in part.
    pub fn undo_branch(&mut self, to: GenerationId) -> Result<Vec<Change>, TreeRefusal> {
        let node = *self.head(to)?;
        let (volume, name) = (node.role.volume(), SnapshotId(to.0));
        let from = node.parent.filter(|from| self.nodes[from].role == Role::Snapshot(volume, name));
        let from = from.filter(|from| self.children(*from).nth(1).is_none() && node.through == u32::MAX);
        let from = from.ok_or(TreeRefusal::NotSnapshot(node.parent.unwrap_or(to)))?;
        self.nodes.remove(&to);
        self.snapshots.remove(&name);
        let old = self.nodes[&from];
        self.nodes.insert(from, Node { role: Role::Head(volume), chunk_count: 0, created_ms: 0, ..old });
        self.check_node(from);
        Ok(vec![Change::Discard(to)])
    }

    /// Takes a snapshot out of the tree, or the head of a volume that ends. A snapshot with two children or more stays, hidden.
    ///
    /// # Errors
    /// It is unknown, or hidden already.
    pub fn remove(&mut self, id: GenerationId) -> Result<Vec<Change>, TreeRefusal> {
        let node = *self.nodes.get(&id).ok_or(TreeRefusal::Unknown(id))?;
        if let Role::Hidden(_) = node.role {
            return Err(TreeRefusal::NotSnapshot(id));
        }
        let mut children = self.children(id);
        let (first, second) = (children.next(), children.next());
        drop(children);
        if let Role::Snapshot(_, name) = node.role {
            self.snapshots.remove(&name);
        }
        let mut changes = Vec::new();
        match (first, second) {
            (None, _) => {
                self.nodes.remove(&id);
                changes.push(Change::Discard(id));
                self.left_by_a_child(node.parent, &mut changes);
            }
            (Some(child), None) => changes.push(self.merge(id, child)),
            (Some(_), Some(_)) => {
                let hidden = Node { role: Role::Hidden(node.role.volume()), chunk_count: 0, created_ms: 0, ..node };
                self.nodes.insert(id, hidden);
            }
        }
        Ok(changes)
    }

    /// Gives the volume of `head` a new head that shows a snapshot of that volume. Without a snapshot it shows nothing: the volume came
    /// to this PG after the snapshot.
    ///
    /// # Errors
    /// `head` is no head, the snapshot is none of its volume, `to` is known or has no higher id, or the tree is full.
    pub fn turn_back(
        &mut self,
        head: GenerationId,
        snapshot: Option<GenerationId>,
        to: GenerationId,
    ) -> Result<Vec<Change>, TreeRefusal> {
        let old = *self.head(head)?;
        let volume = old.role.volume();
        let family = match snapshot {
            Some(id) if self.frozen(id)?.role.volume() != volume => return Err(TreeRefusal::NotSnapshot(id)),
            Some(id) => self.nodes[&id].family,
            None => to,
        };
        if to <= head {
            return Err(TreeRefusal::NotAbove(to));
        }
        self.insert(to, Node::head(volume, snapshot, family))?;
        self.remove(head)
    }

    /// Takes a volume out of the tree: its head, and its snapshots. Those that clones need stay, hidden.
    ///
    /// # Errors
    /// `head` is no head.
    pub fn end(&mut self, head: GenerationId) -> Result<Vec<Change>, TreeRefusal> {
        let volume = self.head(head)?.role.volume();
        let mut changes = self.remove(head)?;
        let snapshots: Vec<GenerationId> = self.snapshots_of(volume).map(|(_, id)| id).collect();
        // The youngest first: an older one then has no child of the volume, and nothing is merged to be discarded next.
        for id in snapshots.into_iter().rev() {
            changes.extend(self.remove(id)?);
        }
        Ok(changes)
    }

    /// Takes the parent from a head that shows nothing of it any more.
    ///
    /// # Errors
    /// It is no head.
    pub fn detach(&mut self, head: GenerationId) -> Result<Vec<Change>, TreeRefusal> {
        let old = *self.head(head)?;
        self.nodes.insert(head, Node { parent: None, through: u32::MAX, ..old });
        let mut changes = Vec::new();
        self.left_by_a_child(old.parent, &mut changes);
        self.check_node(head);
        Ok(changes)
    }

    /// Hides the chunks of the parent from this index on: the volume got shorter.
    ///
    /// # Errors
    /// It is no head.
    pub fn shorten(&mut self, head: GenerationId, chunk_count: u32) -> Result<(), TreeRefusal> {
        let old = *self.head(head)?;
        if old.parent.is_some() {
            self.nodes.insert(head, Node { through: old.through.min(chunk_count), ..old });
        }
        Ok(())
    }

    fn head(&self, id: GenerationId) -> Result<&Node, TreeRefusal> {
        let node = self.nodes.get(&id).ok_or(TreeRefusal::Unknown(id))?;
        if node.role.is_head() { Ok(node) } else { Err(TreeRefusal::NotHead(id)) }
    }

    fn frozen(&self, id: GenerationId) -> Result<&Node, TreeRefusal> {
        let node = self.nodes.get(&id).ok_or(TreeRefusal::Unknown(id))?;
        if matches!(node.role, Role::Snapshot(..)) { Ok(node) } else { Err(TreeRefusal::NotSnapshot(id)) }
    }

    fn insert(&mut self, id: GenerationId, node: Node) -> Result<(), TreeRefusal> {
        if self.nodes.contains_key(&id) {
            return Err(TreeRefusal::Known(id));
        }
        if id.0 == 0 || node.parent.is_some_and(|parent| parent >= id) {
            return Err(TreeRefusal::NotAbove(id));
        }
        if self.nodes.len() >= GENERATIONS_MAX {
            return Err(TreeRefusal::Full);
        }
        self.nodes.insert(id, node);
        Ok(())
    }

    /// Merges a hidden generation that has one child left. Its parent keeps its number of children, so the cascade ends there.
    fn left_by_a_child(&mut self, parent: Option<GenerationId>, changes: &mut Vec<Change>) {
        let Some(id) = parent.filter(|id| matches!(self.nodes[id].role, Role::Hidden(_))) else { return };
        let mut children = self.children(id);
        let (first, second) = (children.next(), children.next());
        drop(children);
        let child = first.expect("a hidden generation had two children");
        if second.is_none() {
            changes.push(self.merge(id, child));
        }
    }

    /// Takes a generation with one child out of the tree: its blocks belong to the child.
    fn merge(&mut self, from: GenerationId, into: GenerationId) -> Change {
        let gone = self.nodes.remove(&from).expect("it is in the tree");
        let heir = self.nodes.get_mut(&into).expect("it is in the tree");
        assert_eq!(heir.parent, Some(from), "{into} inherits from its parent alone");
        let through = heir.through;
        heir.parent = gone.parent;
        heir.through = if gone.parent.is_some() { through.min(gone.through) } else { u32::MAX };
        self.check_node(into);
        Change::Merge { from, into, through }
    }

    /// Asserts what holds of every node and its parent.
    fn check_node(&self, id: GenerationId) {
        let node = self.nodes[&id];
        assert!(node.parent.is_some() || node.through == u32::MAX, "{id} has no parent to hide");
        let Some(parent) = node.parent else { return };
        let above =
            self.nodes.get(&parent).unwrap_or_else(|| panic!("{parent}, the parent of {id}, is not in the tree"));
        assert!(parent < id && !above.role.is_head(), "{id} cannot hang on {parent}");
        assert_eq!(above.family, node.family, "{id} is of the family of its parent");
    }
}

impl Node {
    fn head(volume: VolumeId, parent: Option<GenerationId>, family: GenerationId) -> Node {
        Node { parent, family, through: u32::MAX, role: Role::Head(volume), chunk_count: 0, created_ms: 0 }
    }
}

#[cfg(test)]
mod tests;
