//! Writing the contents of a backup to a volume that reads as zeros, segment by segment.
//!
//! Invariant: bytes are written only when their piece has passed its check. A segment counts as done when all of it is written; written again,
//! it gets the same bytes.

use crate::create::{PIECES_AT_ONCE, Progress};
use crate::error::Error;
use crate::format::ObjectId;
use crate::index::{Index, Place};
use crate::record::Record;
use crate::repository::Repository;
use crate::steps::Steps;
use crate::volume::Target;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::units::{BLOCK, SEGMENT};

/// A restore of a backup.
pub struct Restore<'a> {
    repository: &'a Repository,
    record: &'a Record,
    target: Arc<dyn Target>,
    /// Number of segments that are done.
    done: u64,
    progress: Progress,
}

impl<'a> Restore<'a> {
    /// Prepares a restore to a volume that has the first `done` segments of it already. The others read as zeros, or have what an interrupted
    /// restore of the same backup wrote.
    pub fn new(repository: &'a Repository, record: &'a Record, target: Arc<dyn Target>, done: u64) -> Restore<'a> {
        let done_bytes = done.saturating_mul(SEGMENT).min(record.subject.len_bytes);
        let progress = Progress { done_bytes, ..Progress::default() };
        Restore { repository, record, target, done, progress }
    }
}

impl Steps for Restore<'_> {
    type End = ();

    /// Number of segments that the volume has.
    fn done(&self) -> u64 {
        self.done
    }

    /// Writes one segment. After a failure the volume has a part of it.
    async fn step(&mut self, tell: &(dyn Fn(Progress) + Sync)) -> Result<Option<()>, Error> {
        let Some(id) = self.record.segments.get(self.done as usize) else { return Ok(Some(())) };
        let index = self.repository.index(*id).await?;
        let (start, len_bytes) = (self.done * SEGMENT, self.record.subject.len_bytes);
        let mut moved = stream::iter(by_piece(&index))
            .map(|(piece, runs)| put(self.repository, (piece, runs), (start, len_bytes), Arc::clone(&self.target)))
            .buffer_unordered(PIECES_AT_ONCE);
        while let Some(bytes) = moved.try_next().await? {
            self.progress.moved_bytes += bytes;
            tell(self.progress);
        }
        self.done += 1;
        self.progress.done_bytes = (start + SEGMENT).min(len_bytes);
        tell(self.progress);
        Ok(None)
    }
}

/// Runs of each piece of a segment.
fn by_piece(index: &Index) -> BTreeMap<ObjectId, Vec<(u32, Place)>> {
    let mut all: BTreeMap<ObjectId, Vec<(u32, Place)>> = BTreeMap::new();
    for (start, place) in index.iter() {
        all.entry(place.piece).or_default().push((start, place));
    }
    all
}

/// Writes the runs of a piece to the segment that begins at `start`. Returns the number of bytes.
async fn put(
    repository: &Repository,
    (id, runs): (ObjectId, Vec<(u32, Place)>),
    (start, len_bytes): (u64, u64),
    target: Arc<dyn Target>,
) -> Result<u64, Error> {
    let blocks = repository.piece(id).await?;
    let written = tokio::task::spawn_blocking(move || {
        let mut pieces = Vec::with_capacity(runs.len());
        for (first, place) in runs {
            let offset = start + u64::from(first) * BLOCK;
            // The last block of a volume may be cut.
            let len = (u64::from(place.count) * BLOCK).min(len_bytes.saturating_sub(offset)) as usize;
            let from = place.at as usize * BLOCK as usize;
            let bytes = blocks.get(from..from + len);
            let damaged =
                || Error::Damaged { object: id.to_string(), reason: "it is shorter than its index says".to_owned() };
            pieces.push((offset, bytes.ok_or_else(damaged)?));
        }
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        target.write(pieces).map_err(Error::Volume)?;
        Ok(bytes)
    });
    written.await.map_err(|_| Error::Lost)?
}
