//! Paths through a lineage, each computed once: a lookup asks at which indexes a generation shows, and not for all of them in turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use types::GenerationId;

/// A generation on a path, which shows in chunks below an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub generation: GenerationId,
    pub below: u32,
}

/// The generations that a lookup goes through, from the newest to the oldest. Their ids descend: a parent has a lower id than its
/// children, and a dissolved generation one between those of its heir and the heir's parent.
#[derive(Clone, Debug)]
pub(crate) struct Path(Arc<[Step]>);

impl Path {
    pub(super) fn of(steps: impl Iterator<Item = Step>) -> Path {
        let steps: Arc<[Step]> = steps.collect();
        assert!(steps.is_sorted_by(|a, b| a.generation > b.generation), "a path is out of order: {steps:?}");
        Path(steps)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a lookup in a chunk of this index goes through a generation.
    pub fn shows(&self, generation: GenerationId, index: u32) -> bool {
        let at = self.0.binary_search_by(|step| generation.cmp(&step.generation));
        at.is_ok_and(|at| index < self.0[at].below)
    }
}

/// Paths of the generations that were looked up last, of one tree. At most 1 MiB.
#[derive(Debug, Default)]
pub(super) struct Paths(Mutex<BTreeMap<GenerationId, Path>>);

impl Paths {
    /// Most generations of the paths that are kept.
    const KEPT_MAX: usize = 64 << 10;

    /// Returns the path of a generation, which `compute` finds if it is not known.
    pub fn get(&self, from: GenerationId, compute: impl FnOnce() -> Path) -> Path {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = known.get(&from) {
            return path.clone();
        }
        let path = compute();
        if known.values().map(Path::len).sum::<usize>() + path.len() > Paths::KEPT_MAX {
            known.clear();
        }
        known.insert(from, path.clone());
        path
    }

    /// Forgets all: the tree is another one.
    pub fn clear(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Clone for Paths {
    fn clone(&self) -> Paths {
        Paths::default()
    }
}

/// They follow from the tree.
impl PartialEq for Paths {
    fn eq(&self, _: &Paths) -> bool {
        true
    }
}

impl Eq for Paths {}
