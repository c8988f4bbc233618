//! Records of backups: one for each, with the index of each segment, and a draft while one is being made.
//!
//! Invariant: a record is written when all that it names is there. Its first line is the BLAKE3 hash of the rest.

use crate::error::Error;
use crate::format::ObjectId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::{QosLimits, Stripe, WhenFull};

/// Version of the layout of a repository.
pub const FORMAT: u32 = 1;

const PREFIX: &str = "blake3 ";

/// The contents that are saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Id of the cluster. A volume of a cluster that was made again is another one.
    pub cluster: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the volume, without the pool.
    pub volume: String,
    /// Id of the volume.
    pub volume_id: u64,
    /// Name of the snapshot, without the volume.
    pub snapshot: String,
    /// Number of the snapshot.
    pub snapshot_id: u64,
    /// Moment of the snapshot: milliseconds of the Unix clock.
    pub created_ms: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Stripe layout of the volume; `None`: it is not striped.
    #[serde(default)]
    pub stripe: Option<Stripe>,
    /// Description of the volume.
    #[serde(default)]
    pub description: String,
    /// Labels of the volume.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Limits of the volume's own; `None`: it has those of its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<QosLimits>,
    /// Policy of its writes while the pool is full.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_full: WhenFull,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Subject {
    /// Name of the backup: the moment and the number of its snapshot, so that names sort by time.
    pub fn id(&self) -> String {
        let moment = chrono::DateTime::from_timestamp_millis(i64::try_from(self.created_ms).unwrap_or(i64::MAX));
        let moment = moment.unwrap_or_default();
        format!("{}-{}", moment.format("%Y%m%dT%H%M%SZ"), self.snapshot_id)
    }

    /// Names the snapshot for good, whatever is renamed: cluster, volume, number and moment.
    pub fn key(&self) -> String {
        self.key_of(self.snapshot_id, self.created_ms)
    }

    /// Names another snapshot of the volume so.
    pub(crate) fn key_of(&self, snapshot_id: u64, created_ms: u64) -> String {
        format!("{}.{}.{snapshot_id}.{created_ms}", self.cluster, self.volume_id)
    }

    /// Whether both are one snapshot, whatever was renamed since.
    pub fn is_same_snapshot(&self, other: &Subject) -> bool {
        self.key() == other.key()
    }
}

/// One backup, or the part of it that is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the layout.
    pub format: u32,
    /// Its name.
    pub id: String,
    /// The contents.
    #[serde(flatten)]
    pub subject: Subject,
    /// The backup that it began with; `None`: everything was read.
    pub parent: Option<String>,
    /// The index of each segment (1 GiB); `None`: the segment reads as zeros. In a draft the rest is still to be saved.
    pub segments: Vec<Option<ObjectId>>,
    /// Bytes that hold data.
    pub data_bytes: u64,
    /// Bytes that were read from the volume for this backup.
    pub read_bytes: u64,
    /// Bytes of the objects that were written for it.
    pub written_bytes: u64,
    /// The attempt that made it, or makes it: random.
    #[serde(default)]
    pub owner: String,
    /// When the first attempt began: milliseconds of its machine's clock.
    #[serde(default)]
    pub begun_ms: u64,
    /// Number of a draft in its attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub draft: u32,
}

/// The part of a record that is read before all else.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Record {
    /// Begins a backup.
    pub fn begin(subject: Subject, parent: Option<String>, (owner, begun_ms): (String, u64)) -> Record {
        let (id, segments) = (subject.id(), Vec::new());
        let (data_bytes, read_bytes, written_bytes, draft) = (0, 0, 0, 0);
        Record {
            format: FORMAT,
            id,
            subject,
            parent,
            segments,
            data_bytes,
            read_bytes,
            written_bytes,
            owner,
            begun_ms,
            draft,
        }
    }

    /// Returns the draft of the attempt before this one.
    pub(crate) fn before(&self) -> Option<Record> {
        self.draft.checked_sub(1).map(|draft| Record { draft, ..self.clone() })
    }

    /// Returns `pool/volume`.
    pub fn volume(&self) -> String {
        format!("{}/{}", self.subject.pool, self.subject.volume)
    }

    /// Encodes the record with its hash.
    pub fn encode(&self) -> Vec<u8> {
        // A record has only strings as keys, which is all that JSON asks for.
        let body = serde_json::to_vec_pretty(self).unwrap_or_default();
        let mut out = format!("{PREFIX}{}\n", ObjectId::of(&body)).into_bytes();
        out.extend_from_slice(&body);
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `Damaged`: the bytes are others than those that were written. `Newer`: another layout.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Record, Error> {
        let damaged = |reason: &str| Error::Damaged { object: name.to_owned(), reason: reason.to_owned() };
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it is no record"))?;
        let (line, body) = (&bytes[..end], &bytes[end + 1..]);
        if line != format!("{PREFIX}{}", ObjectId::of(body)).as_bytes() {
            return Err(damaged("its bytes do not have the checksum of its first line"));
        }
        let version: Version = serde_json::from_slice(body).map_err(|error| damaged(&error.to_string()))?;
        if version.format > FORMAT {
            return Err(Error::Newer(version.format));
        }
        serde_json::from_slice(body).map_err(|error| damaged(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_a_changed_byte_is_found() {
        let record = Record::begin(crate::tests::subject(7, 3 << 30), Some("older".to_owned()), ("a1".to_owned(), 5));
        assert_eq!(record.id, "20231114T221320Z-7");
        let bytes = record.encode();
        assert_eq!(Record::decode("r", &bytes).expect("it is whole"), record);
        for at in [3, 20, 80, bytes.len() - 2] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(matches!(Record::decode("r", &bad), Err(Error::Damaged { .. })), "byte {at}");
        }
        let newer = Record { format: 2, ..record }.encode();
        assert!(matches!(Record::decode("r", &newer), Err(Error::Newer(2))));
        assert!(Record::decode("r", b"").is_err());
    }
}
