//! Resolution of a range: which part of it comes from the overlay, which from home, and of which generation.
//!
//! For each step of the lineage the overlay of that generation comes first, then home's map of it, then the next generation for what is
//! open. A generation without older ones has one step: the lookup is that of its overlay.
//!
//! A head may show hundreds of generations, of which few have something in a range: home and the overlay name these, and the others are
//! passed over. One that has nothing now gets nothing while a read is under way but from a chunk of one that has: a merge changes that
//! chunk, too, and the read is looked up again.
//!
//! Invariant: the overlay of an older generation is never looked at before home of a younger one.

use crate::home::Home;
use crate::home_api::At;
use crate::lineage::{Lineage, Path, View};
use crate::overlay::{Found, Overlay, Source};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

/// Longest path that is walked as it is.
const WALKED_MAX: usize = if cfg!(test) { 1 } else { 4 };

/// The contents that a lookup goes through.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub replica: ReplicaId,
    /// `None`: the contents at home are older ones, which do not count.
    pub home: Option<&'a Home>,
    /// `None`: the contents at home are all.
    pub overlay: Option<&'a Overlay>,
    /// Whether the frozen layer alone counts of the overlay.
    pub frozen: bool,
    /// The lineage as of the same index as the overlay.
    pub lineage: &'a Lineage,
}

/// The sources of a range.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// They tile the range. Only data, zeros, [`Source::Home`] and [`Source::Open`] are among them.
    pub parts: Vec<Found>,
    /// Chunks whose map at home was looked at and is open in some part: when one of them changes, so may the sources.
    pub looked: Vec<ChunkKey>,
}

impl Sources<'_> {
    /// Returns the sources of `range`. What stays open shows nothing: in [`View::Full`] it reads as zeros, unless home does not count.
    pub fn resolve(&self, view: View, chunk: ChunkKey, range: SectorRange) -> Resolved {
        let ChunkKey { generation: first, index } = chunk;
        if view == View::Full && !self.lineage.is_flat() {
            let path = self.lineage.path(first);
            if path.len() > WALKED_MAX {
                return self.through(self.filled(&path, chunk, range).into_iter(), view, chunk, range);
            }
        }
        self.through(self.lineage.steps(first, index, view), view, chunk, range)
    }

    /// Looks at generations, from the newest to the oldest.
    fn through(
        &self,
        steps: impl Iterator<Item = GenerationId>,
        view: View,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Resolved {
        let mut parts = vec![Found { range, source: Source::Open }];
        let mut looked = Vec::new();
        let mut steps = steps.peekable();
        while let Some(generation) = steps.next() {
            let key = ChunkKey { generation, ..chunk };
            if let Some(overlay) = self.overlay {
                parts = if self.frozen { overlay.fill_frozen(key, parts) } else { overlay.fill(key, parts) };
            }
            if steps.peek().is_none() {
                parts.iter_mut().for_each(|f| self.end(key, view, f));
                break;
            }
            parts = parts.into_iter().flat_map(|f| self.at_home(key, f)).collect();
            looked.extend(self.home.map(|_| key));
            if !parts.iter().any(|f| matches!(f.source, Source::Open)) {
                break;
            }
        }
        Resolved { parts, looked }
    }

    /// Returns the generation of the chunk, and those on its path that have something in `range` at home, or in the chunk in the overlay.
    fn filled(&self, path: &Path, chunk: ChunkKey, range: SectorRange) -> Vec<GenerationId> {
        let ChunkKey { generation: first, index } = chunk;
        let home = self.home.into_iter().flat_map(|home| home.generations_at(self.replica, index, range));
        let overlay = self.overlay.into_iter().flat_map(|overlay| overlay.generations_at(index));
        let shown = home.chain(overlay).filter(|id| *id != first && path.shows(*id, index));
        let mut filled: Vec<GenerationId> = std::iter::once(first).chain(shown).collect();
        filled[1..].sort_unstable_by(|a, b| b.cmp(a));
        filled.dedup();
        filled
    }

    /// Ends the lookup of a part that is open in the overlay of the last step: home holds data there, or nothing shows.
    fn end(&self, key: ChunkKey, view: View, found: &mut Found) {
        match found.source {
            Source::Open if self.home.is_some() => found.source = Source::Home(key),
            Source::Hidden => found.source = if view == View::Full { Source::Zeros } else { Source::Open },
            _ => {}
        }
    }

    /// Looks a part that is open in the overlay up in the map of its generation.
    fn at_home(&self, key: ChunkKey, found: Found) -> Vec<Found> {
        match (found.source, self.home) {
            (Source::Open, Some(home)) => {
                let source = |at| match at {
                    At::Data => Source::Home(key),
                    At::Zeros => Source::Zeros,
                    At::Open => Source::Open,
                };
                let runs = home.at(self.replica, key, found.range);
                runs.into_iter().map(|(range, at)| Found { range, source: source(at) }).collect()
            }
            (Source::Hidden, _) => vec![Found { range: found.range, source: Source::Open }],
            (source, _) => vec![Found { range: found.range, source }],
        }
    }

    /// Whether the contents of the whole range are in the overlay.
    pub fn covers(&self, chunk: ChunkKey, range: SectorRange) -> bool {
        let found = Sources { home: None, ..*self }.resolve(View::Full, chunk, range);
        !found.parts.iter().any(|f| matches!(f.source, Source::Open))
    }
}
