//! Backups of volumes in a directory or an S3 bucket: full ones, and ones that save only what has changed since the last.
//!
//! Ring 3. Input: a snapshot ([`Source`]) and the backups that are there. Output: objects of a [`Repository`], or a volume with the
//! contents of one ([`Target`]).
//!
//! Each backup names all that it needs by itself, so any other may be deleted. Blocks that have not changed are stored once:
//! its index of a segment takes the places of the older one over.
//!
//! A stream ([`export`], [`Import`]) has the same contents for a file or a pipe, without a repository.
//!
//! Invariants:
//! - A backup is there when its record is, and the record comes last. An interrupted one goes on where it was.
//! - Bytes from a repository are checked against the hash that names them before they are used.
#![warn(missing_docs)]

mod create;
mod error;
mod format;
mod index;
mod line;
mod prune;
mod record;
mod repository;
mod restore;
mod steps;
mod stream;
#[cfg(test)]
mod tests;
mod verify;
mod volume;

pub use create::{Create, DRAFT_BYTES, Progress};
pub use error::Error;
pub use format::{ObjectId, decode_index, decode_piece, encode_index, encode_piece};
pub use index::{Index, Place};
pub use prune::{Retention, Swept, sweep};
pub use record::{Record, Subject};
pub use repository::Repository;
pub use restore::Restore;
pub use steps::Steps;
pub use stream::{Base, Decoder, Encoder, Frame, Head, Import, StreamPlace, Totals, export};
pub use verify::{Fault, Verified, verify};
pub use volume::{Source, Target, VolumeFailure};
