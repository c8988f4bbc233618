//! Checking backups: every record, every index and every piece is read, and each byte counts.

use crate::create::PIECES_AT_ONCE;
use crate::error::Error;
use crate::format::ObjectId;
use crate::record::Record;
use crate::repository::Repository;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use types::units::BLOCK;

/// An object that is missing or damaged.
#[derive(Debug)]
pub struct Fault {
    /// Its name.
    pub object: String,
    /// The reason.
    pub reason: String,
    /// The backups that it breaks, as `POOL/VOLUME ID`.
    pub backups: BTreeSet<String>,
}

/// Result of a check.
#[derive(Debug, Default)]
pub struct Verified {
    /// Backups that were checked.
    pub backups: u64,
    /// Objects that were read.
    pub objects: u64,
    /// Bytes of blocks in them.
    pub bytes: u64,
    /// Objects that are missing or damaged.
    pub faults: Vec<Fault>,
}

/// Checks these backups.
///
/// # Errors
/// `Store`: the repository cannot be read at all. A missing or damaged object is a fault, not an error.
pub async fn verify(repository: &Repository, records: &[Record]) -> Result<Verified, Error> {
    let mut found = Verified { backups: records.len() as u64, ..Verified::default() };
    // Each piece, with the number of blocks that it has at least.
    let mut pieces: BTreeMap<ObjectId, u32> = BTreeMap::new();
    let mut bad: BTreeMap<ObjectId, String> = BTreeMap::new();
    let indexes: BTreeSet<ObjectId> =
        records.iter().flat_map(|record| record.segments.iter().flatten().copied()).collect();
    for id in &indexes {
        found.objects += 1;
        match repository.index(Some(*id)).await {
            Ok(index) => index.iter().for_each(|(_, place)| {
                let blocks = pieces.entry(place.piece).or_default();
                *blocks = (place.at + place.count).max(*blocks);
            }),
            Err(error) => drop(bad.insert(*id, reason(error)?)),
        }
    }
    let mut read = stream::iter(pieces)
        .map(|(id, blocks)| async move { (id, blocks, repository.piece(id).await) })
        .buffer_unordered(PIECES_AT_ONCE);
    while let Some((id, blocks, piece)) = read.next().await {
        found.objects += 1;
        match piece {
            Ok(bytes) if bytes.len() as u64 >= u64::from(blocks) * BLOCK => found.bytes += bytes.len() as u64,
            Ok(_) => drop(bad.insert(id, "it is shorter than its index says".to_owned())),
            Err(error) => drop(bad.insert(id, reason(error)?)),
        }
    }
    found.faults = faults(repository, records, bad).await?;
    Ok(found)
}

/// Finds the backups that bad objects break. Their users are not kept for all objects, because faults are rare and objects many.
async fn faults(
    repository: &Repository,
    records: &[Record],
    bad: BTreeMap<ObjectId, String>,
) -> Result<Vec<Fault>, Error> {
    let mut broken: BTreeMap<ObjectId, BTreeSet<String>> = BTreeMap::new();
    for record in records.iter().filter(|_| !bad.is_empty()) {
        for id in record.segments.iter().flatten() {
            let pieces = match bad.contains_key(id) {
                true => vec![*id],
                false => repository.index(Some(*id)).await?.pieces(),
            };
            for piece in pieces.into_iter().filter(|piece| bad.contains_key(piece)) {
                broken.entry(piece).or_default().insert(format!("{} {}", record.volume(), record.id));
            }
        }
    }
    let fault = |(id, reason): (ObjectId, String)| {
        let backups = broken.remove(&id).unwrap_or_default();
        Fault { object: id.to_string(), reason, backups }
    };
    Ok(bad.into_iter().map(fault).collect())
}

/// Returns the fault that a failed read shows.
fn reason(error: Error) -> Result<String, Error> {
    match error {
        error if error.is_missing() => Ok("it is missing".to_owned()),
        Error::Damaged { reason, .. } => Ok(reason),
        // A server that does not answer.
        other => Err(other),
    }
}
