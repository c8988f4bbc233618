//! Failures of backups.

use crate::volume::VolumeFailure;

/// Why a backup, a restore or a check ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory or the bucket cannot be read or written.
    #[error("{what}: {source}")]
    Store {
        /// The object, and the attempt.
        what: String,
        /// The failure of the file system or the server.
        source: object_store::Error,
    },
    /// The address names no place where backups can be.
    #[error("{address}: {reason}")]
    Address {
        /// The address as it was given.
        address: String,
        /// The reason.
        reason: String,
    },
    /// No backup was ever made there.
    #[error("{0} holds no backups")]
    NoRepository(String),
    /// The file that makes a place a repository is damaged, or missing although backups are there.
    #[error("{file} {reason}")]
    Marker {
        /// The file.
        file: String,
        /// The fault, as the rest of a sentence.
        reason: String,
    },
    /// A newer version wrote it.
    #[error("format {0} of backups is newer than this program")]
    Newer(u32),
    /// No backup has this name.
    #[error("there is no backup {0}")]
    Unknown(String),
    /// The bytes of an object are not those that were written.
    #[error("object {object} is damaged: {reason}")]
    Damaged {
        /// Its name.
        object: String,
        /// The check that failed.
        reason: String,
    },
    /// The record of a backup has another owner.
    #[error("backup {0} exists, of another volume or cluster")]
    Taken(String),
    /// The draft of this attempt is gone: another attempt went on with it, or a command gave it up. Its objects may be deleted.
    #[error("backup {0} was given up by another command, or ended by another attempt")]
    GivenUp(String),
    /// The bytes of a stream are not those that were written, or not all of them.
    #[error("the stream is damaged at byte {at}: {reason}")]
    Stream {
        /// Bytes before the fault; of contents that cannot be unpacked, their place in the volume.
        at: u64,
        /// The check that failed.
        reason: String,
    },
    /// The file or the pipe of a stream cannot be read or written.
    #[error("{what}: {source}")]
    File {
        /// The attempt.
        what: &'static str,
        /// The failure of the system.
        source: std::io::Error,
    },
    /// The snapshot does not descend from the older one, or that was deleted.
    #[error("what has changed since the older snapshot cannot be told")]
    Incomparable,
    /// The volume failed a request.
    #[error("{0}")]
    Volume(VolumeFailure),
    /// Data cannot be compressed.
    #[error("the index of a segment cannot be compressed: {0}")]
    Compress(std::io::Error),
    /// A task of the program panicked.
    #[error("a part of the work ended without a result")]
    Lost,
}

impl Error {
    /// Whether an object is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Store { source: object_store::Error::NotFound { .. }, .. })
    }

    /// Whether the store cannot do this at all.
    pub(crate) fn is_unsupported(&self) -> bool {
        use object_store::Error::{NotImplemented, NotSupported};
        matches!(self, Error::Store { source: NotImplemented { .. } | NotSupported { .. }, .. })
    }
}
