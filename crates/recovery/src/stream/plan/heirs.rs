//! Generations that end during a stream, and the generation as whose blocks each chunk is sent.
//!
//! The follower's contents are those at which its log begins, with their tree. Its log has every later entry, also those that begin and
//! merge generations. So a generation that this tree lacks is not sent: all of its blocks are in that log. But when an older one was
//! merged into it before its blocks were sent, they are sent as blocks of that older one, where the follower's log finds them.
//!
//! Where the contents come before the log, the follower has the tree of the round, and the end has a later one. A generation that the tree of
//! the round lacks is sent in the next round, under its own key.
//!
//! Invariant: at most one generation is sent under each key, and the key is in the follower's tree.

use std::collections::BTreeMap;
use std::sync::Arc;
use types::tree::Tree;
use types::{ChunkKey, GenerationId};

#[derive(Debug, Default)]
pub(super) struct Heirs {
    /// The tree behind which the follower's log begins, or that of the round; `None`: neither is known yet.
    tree: Option<Arc<Tree>>,
    /// The contents come before the log.
    come_first: bool,
    /// Generations that have ended, each with its heir.
    ended: BTreeMap<GenerationId, Option<GenerationId>>,
    /// Generations that the tree lacks, each with the newest one that was merged into it and that the tree has.
    under: BTreeMap<GenerationId, GenerationId>,
}

impl Heirs {
    /// Sets the tree. Returns the generations of which blocks were sent under the keys of others.
    pub fn begin_at(&mut self, tree: Option<Arc<Tree>>, come_first: bool) -> Vec<GenerationId> {
        (self.tree, self.come_first) = (tree, come_first);
        let tree = self.tree.as_ref();
        let is_known = |id: &GenerationId| tree.is_none_or(|tree| tree.get(*id).is_some());
        let moved: Vec<GenerationId> = self.under.keys().copied().filter(is_known).collect();
        moved.iter().for_each(|id| _ = self.under.remove(id));
        moved
    }

    /// Notes the end of a generation.
    pub fn end(&mut self, id: GenerationId, heir: Option<GenerationId>) {
        self.ended.insert(id, heir);
        let under = self.under.remove(&id).unwrap_or(id);
        let Some((tree, heir)) = self.tree.as_ref().zip(heir).filter(|_| !self.come_first) else { return };
        if tree.get(heir).is_none() && tree.get(under).is_some() {
            self.under.entry(heir).or_insert(under);
        }
    }

    pub fn has_ended(&self, id: GenerationId) -> bool {
        self.ended.contains_key(&id)
    }

    /// Returns the chunk that has the blocks of this one now; `None`: no generation shows them.
    pub fn live(&self, mut chunk: ChunkKey) -> Option<ChunkKey> {
        while let Some(heir) = self.ended.get(&chunk.generation) {
            chunk.generation = (*heir)?;
        }
        Some(chunk)
    }

    /// Returns the chunk as whose the blocks of this one are sent; `None`: the follower's log has all of them, or another round sends them.
    pub fn sent_as(&self, chunk: ChunkKey) -> Option<ChunkKey> {
        let Some(tree) = &self.tree else { return Some(chunk) };
        if tree.get(chunk.generation).is_some() {
            return Some(chunk);
        }
        self.under.get(&chunk.generation).map(|id| ChunkKey { generation: *id, ..chunk })
    }
}
