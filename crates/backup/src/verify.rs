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
    /// What is wrong.
    pub faults: Vec<Fault>,
}

/// Uses of objects: the backups, and how many blocks a piece has at least.
type Uses = BTreeMap<ObjectId, (BTreeSet<String>, u32)>;

/// Checks these backups.
///
/// # Errors
/// `Store`: the repository cannot be read at all. A missing or damaged object is a fault, not an error.
pub async fn verify(repository: &Repository, records: &[Record]) -> Result<Verified, Error> {
    let mut found = Verified { backups: records.len() as u64, ..Verified::default() };
    let mut indexes = Uses::new();
    for record in records {
        let name = format!("{} {}", record.volume(), record.id);
        record.segments.iter().flatten().for_each(|id| {
            indexes.entry(*id).or_default().0.insert(name.clone());
        });
    }
    let mut pieces = Uses::new();
    for (id, (backups, _)) in indexes {
        found.objects += 1;
        match repository.index(Some(id)).await {
            Ok(index) => {
                for (_, place) in index.iter() {
                    let (users, blocks) = pieces.entry(place.piece).or_default();
                    users.extend(backups.iter().cloned());
                    *blocks = (place.at + place.count).max(*blocks);
                }
            }
            Err(error) => found.faults.push(fault(id, &error, backups)?),
        }
    }
    let mut read = stream::iter(pieces)
        .map(|(id, uses)| async move { (id, uses, repository.piece(id).await) })
        .buffer_unordered(PIECES_AT_ONCE);
    while let Some((id, (backups, blocks), piece)) = read.next().await {
        found.objects += 1;
        match piece {
            Ok(bytes) if bytes.len() as u64 >= u64::from(blocks) * BLOCK => found.bytes += bytes.len() as u64,
            Ok(_) => {
                let reason = "it is shorter than its index says".to_owned();
                found.faults.push(Fault { object: id.to_string(), reason, backups });
            }
            Err(error) => found.faults.push(fault(id, &error, backups)?),
        }
    }
    Ok(found)
}

/// Returns the fault that a failed read shows; a server that does not answer is an error.
fn fault(id: ObjectId, error: &Error, backups: BTreeSet<String>) -> Result<Fault, Error> {
    let reason = match error {
        error if error.is_missing() => "it is missing".to_owned(),
        Error::Damaged { reason, .. } => reason.clone(),
        other => return Err(Error::Address { address: id.to_string(), reason: other.to_string() }),
    };
    Ok(Fault { object: id.to_string(), reason, backups })
}
