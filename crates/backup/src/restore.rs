//! Writing the contents of a backup to a volume that reads as zeros.
//!
//! Invariant: bytes are written only when their piece has passed its check.

use crate::create::{PIECES_AT_ONCE, Progress};
use crate::error::Error;
use crate::format::ObjectId;
use crate::index::{Index, Place};
use crate::record::Record;
use crate::repository::Repository;
use crate::volume::Target;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::units::{BLOCK, SEGMENT};

/// Restores a backup. `tell` learns the progress.
///
/// # Errors
/// The failure of the repository or of the volume; the volume has a part of the contents then.
pub async fn restore(
    repository: &Repository,
    record: &Record,
    target: Arc<dyn Target>,
    tell: &(dyn Fn(Progress) + Sync),
) -> Result<(), Error> {
    let mut progress = Progress::default();
    for (n, id) in (0..).zip(&record.segments) {
        let index = repository.index(*id).await?;
        let start = n * SEGMENT;
        let mut moved = stream::iter(by_piece(&index))
            .map(|(piece, runs)| put(repository, (piece, runs), (start, record.subject.len_bytes), Arc::clone(&target)))
            .buffer_unordered(PIECES_AT_ONCE);
        while let Some(bytes) = moved.try_next().await? {
            progress.moved_bytes += bytes;
            tell(progress);
        }
        progress.done_bytes = (start + SEGMENT).min(record.subject.len_bytes);
        tell(progress);
    }
    Ok(())
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
