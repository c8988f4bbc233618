//! Resolution of a range: which part of it comes from the overlay, which from home, and of which generation.
//!
//! For each step of the lineage the overlay of that generation comes first, then home's map of it, then the next generation for what is
//! open. A generation without older ones has one step: the lookup is that of its overlay.
//!
//! A head may show hundreds of generations, of which few have something in a range: home and the overlay name these, and the others are
//! passed over. The result is that of the moment of the lookup: a generation that gets something later changes none of its pieces, or a
//! chunk of one of them changes, too, and the read is looked up again.
//!
//! Invariant: the overlay of an older generation is never looked at before home of a younger one.

use crate::home::Home;
use crate::home_api::At;
use crate::lineage::{Lineage, View};
use crate::overlay::{Found, Overlay, Source};
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

/// Longest path that is walked as it is.
const WALKED_MAX: usize = if cfg!(test) { 1 } else { 4 };
/// Generations of other volumes that may be passed over for each one on the path, before the path is walked instead.
const STRANGERS_MAX: usize = 4;

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
        // Without home, a cut in the overlay of an older generation still tells zeros from what is not known.
        let indexed = self.home.filter(|_| view == View::Full && self.lineage.is_deep(chunk, WALKED_MAX));
        let found = indexed.and_then(|home| self.over_filled(home, chunk, range));
        found.unwrap_or_else(|| self.over_all(view, chunk, range))
    }

    /// Goes through all generations of the path.
    fn over_all(&self, view: View, chunk: ChunkKey, range: SectorRange) -> Resolved {
        let mut parts = vec![Found { range, source: Source::Open }];
        let mut looked = Vec::new();
        let mut steps = self.lineage.steps(chunk.generation, chunk.index, view).peekable();
        while let Some(generation) = steps.next() {
            let key = ChunkKey { generation, ..chunk };
            parts = self.in_overlay(key, parts);
            if steps.peek().is_none() {
                parts.iter_mut().for_each(|f| self.end(key, view, f));
                break;
            }
            parts = parts.into_iter().flat_map(|f| self.at_home(key, f)).collect();
            looked.extend(self.home.map(|_| key));
            if !has_open(&parts) {
                break;
            }
        }
        Resolved { parts, looked }
    }

    /// Goes through the chunk's own generation and those that have something in the range; `None`: so many do that are not on the path that
    /// a walk costs less.
    fn over_filled(&self, home: &Home, chunk: ChunkKey, range: SectorRange) -> Option<Resolved> {
        let open = vec![Found { range, source: Source::Open }];
        let mut parts = self.step(chunk, open);
        let mut looked = vec![chunk];
        if has_open(&parts) {
            for generation in self.filled(home, chunk, range)? {
                let key = ChunkKey { generation, ..chunk };
                parts = self.step(key, parts);
                looked.push(key);
                if !has_open(&parts) {
                    break;
                }
            }
        }
        Some(Resolved { parts, looked })
    }

    /// Returns the older generations on the path of a chunk that have something in `range` at home, or in the chunk in the overlay, from
    /// the newest to the oldest.
    fn filled(&self, home: &Home, chunk: ChunkKey, range: SectorRange) -> Option<Vec<GenerationId>> {
        let ChunkKey { generation: first, index } = chunk;
        let path = self.lineage.path(first);
        let most = STRANGERS_MAX * path.len();
        if home.generation_count(self.replica, index) > most {
            return None;
        }
        let overlay = self.overlay.into_iter().flat_map(|overlay| overlay.generations_at(index));
        let mut found: Vec<GenerationId> = overlay.take(most + 1).collect();
        if found.len() > most {
            return None;
        }
        found.extend(home.generations_at(self.replica, index, range));
        found.retain(|id| *id != first && path.shows(*id, index));
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        Some(found)
    }

    fn in_overlay(&self, key: ChunkKey, parts: Vec<Found>) -> Vec<Found> {
        match self.overlay {
            Some(overlay) if self.frozen => overlay.fill_frozen(key, parts),
            Some(overlay) => overlay.fill(key, parts),
            None => parts,
        }
    }

    /// Covers what is open with what overlay and home have of this generation.
    fn step(&self, key: ChunkKey, parts: Vec<Found>) -> Vec<Found> {
        self.in_overlay(key, parts).into_iter().flat_map(|f| self.at_home(key, f)).collect()
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
        !has_open(&found.parts)
    }
}

fn has_open(parts: &[Found]) -> bool {
    parts.iter().any(|f| matches!(f.source, Source::Open))
}
