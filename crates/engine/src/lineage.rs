//! The lineage of a replica: the tree of its PG, and the dissolved generations whose blocks this store still keeps.
//!
//! Input: trees and changes as their entries are applied. Output: the generations that a lookup goes through. A running replica has the
//! lineage as of its applied index, and a round the one as of its checkpoint index. The contents at home alone have that of their
//! checkpoint.
//!
//! Invariant: no other file walks generations. A dissolved generation is in one list, that of a generation of the tree.

mod paths;

use crate::home_api::RoundState;
use bytes::Bytes;
use layout::dissolved::{self, Dissolved, DissolvedError, DissolvedLists};
use paths::{Path, Paths, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::tree::{Change, Node, Tree, TreeError};
use types::{BlockPlace, ChunkKey, GenerationId, ReplicaId};

/// Part of the contents of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// A read of the generation shows it: its blocks over those of its parents.
    Full,
    /// Its own blocks, and those of its dissolved generations.
    Delta,
}

/// Reason why the lineage of a checkpoint cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LineageError {
    #[error("its decision state cannot be read: {0}")]
    Tree(#[from] TreeError),
    #[error("{0}")]
    Dissolved(#[from] DissolvedError),
}

/// The generations of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    tree: Arc<Tree>,
    dissolved: DissolvedLists,
    /// Some generation has an older one, or a dissolved one.
    deep: bool,
    /// Each generation is the first one of its family: nothing was ever merged into any of them.
    first: bool,
    paths: Paths,
}

fn is_deep(tree: &Tree, dissolved: &DissolvedLists) -> bool {
    !dissolved.is_empty() || tree.iter().any(|(_, node)| node.parent.is_some())
}

/// Whether each generation is the first of its family. A family stays when parents go.
fn are_first(tree: &Tree) -> bool {
    tree.iter().all(|(id, node)| node.family == id)
}

impl Default for Lineage {
    fn default() -> Lineage {
        Lineage {
            tree: Arc::default(),
            dissolved: DissolvedLists::new(),
            deep: false,
            first: true,
            paths: Paths::default(),
        }
    }
}

impl Lineage {
    /// Returns the lineage of a checkpoint: that of its decision state and its dissolved pages.
    ///
    /// # Errors
    /// The bytes are no such state.
    pub fn decode(decision: &[u8], dissolved: &[u8]) -> Result<Lineage, LineageError> {
        let tree = Arc::new(Tree::of_decision(decision)?);
        let dissolved = dissolved::decode(dissolved)?;
        let is_live = |id: GenerationId| tree.get(id).is_some();
        let all = || dissolved.values().flatten().map(|d| d.generation);
        // A dissolved generation was between its heir and the heir's parent.
        let is_between = |(heir, list): (&GenerationId, &Vec<Dissolved>)| {
            let parent = tree.get(*heir).and_then(|node| node.parent).unwrap_or(GenerationId(0));
            let ids = std::iter::once(*heir).chain(list.iter().map(|d| d.generation)).chain([parent]);
            ids.is_sorted_by(|newer, older| newer > older)
        };
        if !dissolved.keys().all(|heir| is_live(*heir)) || all().any(is_live) || !dissolved.iter().all(is_between) {
            return Err(DissolvedError.into());
        }
        let (deep, first) = (is_deep(&tree, &dissolved), are_first(&tree));
        Ok(Lineage { tree, dissolved, deep, first, paths: Paths::default() })
    }

    /// Returns the bytes of the dissolved pages; none without dissolved generations.
    pub fn dissolved_bytes(&self) -> Bytes {
        dissolved::encode(&self.dissolved)
    }

    /// Length of [`Lineage::dissolved_bytes`].
    pub fn dissolved_len(&self) -> usize {
        let len = |list: &Vec<Dissolved>| dissolved::HEIR_LEN + list.len() * dissolved::DISSOLVED_LEN;
        self.dissolved.values().map(len).sum()
    }

    /// Takes the tree of an entry that is applied now. Returns the generations whose blocks no generation shows any more.
    pub fn apply(&mut self, tree: Arc<Tree>, changes: &[Change]) -> Vec<GenerationId> {
        let mut gone = Vec::new();
        for change in changes {
            match *change {
                Change::Discard(id) => {
                    gone.push(id);
                    gone.extend(self.dissolved.remove(&id).into_iter().flatten().map(|d| d.generation));
                }
                Change::Merge { from, into, through } => {
                    let older = self.dissolved.remove(&from).unwrap_or_default();
                    let list = self.dissolved.entry(into).or_default();
                    list.push(Dissolved { generation: from, through });
                    list.extend(older.into_iter().map(|d| Dissolved { through: d.through.min(through), ..d }));
                }
                // Its chunks go, and the generation stays.
                Change::Shorten { .. } => {}
            }
        }
        self.tree = tree;
        (self.deep, self.first) = (is_deep(&self.tree, &self.dissolved), are_first(&self.tree));
        self.paths.clear();
        let stays = |heir: &GenerationId| self.tree.get(*heir).is_some();
        assert!(self.dissolved.keys().all(stays), "an heir of {:?} has left the tree", self.dissolved);
        gone
    }

    /// Returns the generations that a lookup of a block in chunk `index` goes through, from the newest to the oldest. The first one is
    /// `from`. From a dissolved one it goes on in the list of its heir, because the overlay may still have blocks of it (R2).
    ///
    /// A generation that the tree does not have is alone: its volume came to the PG with an entry that changed no other generation.
    pub fn steps(&self, from: GenerationId, index: u32, view: View) -> impl Iterator<Item = GenerationId> + '_ {
        self.all_steps(from, view).filter(move |step| index < step.below).map(|step| step.generation)
    }

    /// Whether a lookup in this chunk may go through more generations than so many.
    pub fn is_deep(&self, chunk: ChunkKey, generations: usize) -> bool {
        self.deep && self.shows_older(chunk) && self.all_steps(chunk.generation, View::Full).nth(generations).is_some()
    }

    /// Returns the generations that a lookup of blocks from this one on goes through, each with the index below which it shows.
    pub fn path(&self, from: GenerationId) -> Path {
        self.paths.get(from, || Path::of(self.all_steps(from, View::Full)))
    }

    fn all_steps(&self, from: GenerationId, view: View) -> impl Iterator<Item = Step> + '_ {
        let (owner, listed) = self.place_of(from);
        let known = view == View::Full && self.tree.get(owner).is_some();
        let path = known.then(|| self.tree.path(owner).skip(1)).into_iter().flatten();
        let older = path.flat_map(|(generation, below)| {
            std::iter::once(Step { generation, below }).chain(self.list(generation, 0, below))
        });
        let first = Step { generation: from, below: u32::MAX };
        std::iter::once(first).chain(self.list(owner, listed, u32::MAX)).chain(older)
    }

    /// Returns the dissolved generations of `heir`, which shows below an index itself, without the first `skip` of its list.
    fn list(&self, heir: GenerationId, skip: usize, below: u32) -> impl Iterator<Item = Step> + '_ {
        let list = self.dissolved.get(&heir).map_or(&[][..], |list| &list[skip..]);
        list.iter().map(move |d| Step { generation: d.generation, below: d.through.min(below) })
    }

    /// Returns the dissolved generations that show below a chunk and belong to the same generation of the tree, the newest first.
    pub fn older_of(&self, chunk: ChunkKey) -> impl Iterator<Item = GenerationId> + '_ {
        self.steps(chunk.generation, chunk.index, View::Delta).skip(1)
    }

    /// Returns the dissolved generations whose blocks belong to this one.
    pub fn dissolved_of(&self, heir: GenerationId) -> impl Iterator<Item = GenerationId> + '_ {
        self.dissolved.get(&heir).into_iter().flatten().map(|d| d.generation)
    }

    /// Returns the dissolved generations, each with its heir.
    pub fn heirs(&self) -> BTreeMap<GenerationId, GenerationId> {
        let of = |(heir, list): (&GenerationId, &Vec<Dissolved>)| {
            let heir = *heir;
            list.iter().map(|d| (d.generation, heir)).collect::<Vec<_>>()
        };
        self.dissolved.iter().flat_map(of).collect()
    }

    pub fn has_dissolved(&self) -> bool {
        !self.dissolved.is_empty()
    }

    /// Returns the dissolved generation that is nearest to each heir: others are merged behind it.
    pub fn nearest(&self) -> impl Iterator<Item = (GenerationId, Dissolved)> + '_ {
        self.dissolved.iter().map(|(heir, list)| (*heir, list[0]))
    }

    /// Returns the one that is nearest to this heir.
    pub fn nearest_to(&self, heir: GenerationId) -> Option<Dissolved> {
        self.dissolved.get(&heir).map(|list| list[0])
    }

    /// Whether generations other than these two show in the chunk of the first one.
    pub fn shows_others(&self, heir: ChunkKey, merged: GenerationId) -> bool {
        let mut steps = self.steps(heir.generation, heir.index, View::Full);
        steps.any(|id| id != heir.generation && id != merged)
    }

    /// Forgets dissolved generations of which the store keeps nothing.
    pub fn forget(&mut self, is_empty: impl Fn(GenerationId) -> bool) {
        for list in self.dissolved.values_mut() {
            list.retain(|d| !is_empty(d.generation));
        }
        self.dissolved.retain(|_, list| !list.is_empty());
        self.paths.clear();
        self.deep = is_deep(&self.tree, &self.dissolved);
    }

    /// Returns the index below which the chunks of a generation show older ones.
    pub fn reach(&self, id: GenerationId) -> u32 {
        let (owner, listed) = self.place_of(id);
        let own = self.dissolved.get(&owner).and_then(|list| list.get(listed)).map_or(0, |d| d.through);
        let parent = self.tree.get(owner).filter(|node| node.parent.is_some()).map_or(0, |node| node.through);
        own.max(parent)
    }

    /// Returns the owner of a generation's blocks, and how many of the owner's list lie above and at that generation.
    fn place_of(&self, id: GenerationId) -> (GenerationId, usize) {
        if self.dissolved.is_empty() || self.tree.get(id).is_some() {
            return (id, 0);
        }
        let place = |list: &[Dissolved]| list.iter().position(|d| d.generation == id);
        let found = self.dissolved.iter().find_map(|(heir, list)| Some((*heir, place(list)? + 1)));
        found.unwrap_or((id, 0))
    }

    /// Whether no generation shows blocks of another one.
    pub fn is_flat(&self) -> bool {
        !self.deep
    }

    /// Whether blocks of older generations show where the chunk has none of its own.
    pub fn shows_older(&self, chunk: ChunkKey) -> bool {
        chunk.index < self.reach(chunk.generation)
    }

    pub fn tree(&self) -> Arc<Tree> {
        self.tree.clone()
    }

    /// Whether each generation is the first one of its family.
    pub fn has_only_first(&self) -> bool {
        self.first
    }

    /// Returns the node of a generation; `None`: it is dissolved, has ended, or came with an entry that changed no other one.
    pub fn node(&self, id: GenerationId) -> Option<&Node> {
        self.tree.get(id)
    }

    /// Returns the chunk under whose key the blocks of this one count.
    pub fn owner_of(&self, chunk: ChunkKey) -> ChunkKey {
        ChunkKey { generation: self.owner(chunk.generation), ..chunk }
    }

    /// Returns the live generation whose delta has the blocks of this one.
    pub fn owner(&self, id: GenerationId) -> GenerationId {
        self.place_of(id).0
    }

    /// Returns the family of a generation. It seeds the checksums of its blocks.
    pub fn family(&self, id: GenerationId) -> GenerationId {
        let owner = self.owner(id);
        self.tree.get(owner).map_or(owner, |node| node.family)
    }

    /// Returns the place that seeds the checksum of a block.
    pub fn place(&self, chunk: ChunkKey, block: u16) -> BlockPlace {
        BlockPlace::of(self.family(chunk.generation), chunk, block)
    }
}

/// Lineages of contents at home alone, each decoded once for a checkpoint: a comparison asks for them with every AU.
#[derive(Debug, Default)]
pub(crate) struct Decoded(BTreeMap<ReplicaId, (Bytes, Bytes, Arc<Lineage>)>);

impl Decoded {
    /// Most lineages that are kept.
    const KEPT_MAX: usize = 64;

    /// Returns the lineage of what home holds of a replica.
    ///
    /// # Errors
    /// The bytes are no lineage.
    pub fn of(&mut self, state: &RoundState) -> Result<Arc<Lineage>, LineageError> {
        let (replica, decision, dissolved) = (state.decision.replica, &state.decision.bytes, &state.dissolved);
        // The same buffers: those that are kept here are given to nothing else meanwhile.
        let same = |a: &Bytes, b: &Bytes| (a.as_ptr(), a.len()) == (b.as_ptr(), b.len());
        if let Some((of, lists, lineage)) = self.0.get(&replica)
            && same(of, decision)
            && same(lists, dissolved)
        {
            return Ok(lineage.clone());
        }
        let lineage = Arc::new(Lineage::decode(decision, dissolved)?);
        if self.0.len() >= Decoded::KEPT_MAX {
            self.0.clear();
        }
        self.0.insert(replica, (decision.clone(), dissolved.clone(), lineage.clone()));
        Ok(lineage)
    }
}

#[cfg(test)]
mod tests;
