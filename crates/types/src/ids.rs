//! Identities. Each is a newtype with `Display`, so that an index is never passed for a term.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(/// A storage daemon. From 1, given by meta, never reused.
    OsdId(u32), "osd.");
id!(/// A pool. From 1, never reused.
    PoolId(u32), "");
id!(/// One life of one member of one PG on one OSD; the raft id. From 1, given by meta, never reused.
    ReplicaId(u64), "r");
id!(/// A volume. From 1, never reused.
    VolumeId(u64), "v");
id!(/// Contents that a volume received between two snapshots. The numbers are those of volumes: from 1, given by meta, never reused.
    GenerationId(u64), "g");
id!(/// A snapshot of a volume, in all its PGs. It has the number of the heads that its cut began; never reused.
    SnapshotId(u64), "snap");
id!(/// A cut: one snapshot of one volume, or of several at one point. It has the number of its first snapshot.
    CutId(u64), "cut");
id!(/// One open of one volume. From 1, given by meta, never reused; 0 in an attach record: no session.
    SessionId(u64), "s");
id!(/// A version that only grows: attach epoch of a volume, map epoch of a cluster.
    Epoch(u64), "e");
id!(/// A raft term.
    Term(u64), "t");
id!(/// A raft log index of one PG.
    Index(u64), "i");
id!(/// Which 1 GiB of a volume.
    SegmentIndex(u32), "seg");
id!(/// One run of one process: a new value at every start.
    Incarnation(u64), "inc");

/// A placement group: one raft group. It is printed as `pool.hex`, for example `3.1f`.
/// Records and JSON hold the same text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PgId {
    pub pool: PoolId,
    pub n: u32,
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool.0, self.n)
    }
}

impl fmt::Debug for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<PgId> for String {
    fn from(pg: PgId) -> String {
        pg.to_string()
    }
}

impl TryFrom<String> for PgId {
    type Error = BadPgId;

    fn try_from(s: String) -> Result<PgId, BadPgId> {
        s.parse()
    }
}

impl std::str::FromStr for PgId {
    type Err = BadPgId;

    fn from_str(s: &str) -> Result<PgId, BadPgId> {
        let (pool, n) = s.split_once('.').ok_or(BadPgId)?;
        let pool = pool.parse().map_err(|_| BadPgId)?;
        let n = u32::from_str_radix(n, 16).map_err(|_| BadPgId)?;
        Ok(PgId { pool: PoolId(pool), n })
    }
}

/// The text is not `pool.hex`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PG is written POOL.HEX, for example 3.1f")]
pub struct BadPgId;

impl GenerationId {
    /// The generation with which a volume begins: it has the number of the volume.
    pub const fn first_of(volume: VolumeId) -> GenerationId {
        GenerationId(volume.0)
    }
}

/// 16 MiB of one volume: the address of clients, of requests and of commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeChunk {
    pub volume: VolumeId,
    pub index: u32,
}

impl VolumeChunk {
    /// The chunk in the first generation of its volume, which is not the head any more once a snapshot was made.
    pub const fn in_first(self) -> ChunkKey {
        ChunkKey { generation: GenerationId::first_of(self.volume), index: self.index }
    }
}

/// 16 MiB of one generation: the address of stores, streams, repairs and digests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    pub generation: GenerationId,
    pub index: u32,
}

impl ChunkKey {
    /// The chunk of the volume that began with this generation. It is right for a first generation alone: where the tree is known, the role
    /// of the node names the volume.
    pub const fn of_first(self) -> VolumeChunk {
        VolumeChunk { volume: VolumeId(self.generation.0), index: self.index }
    }
}

macro_rules! chunk_address {
    ($name:ident, $owner:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.$owner, self.index)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

chunk_address!(VolumeChunk, volume);
chunk_address!(ChunkKey, generation);

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(pub [u8; 16]);
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
        impl TryFrom<String> for $name {
            type Error = uuid::Error;
            fn try_from(s: String) -> Result<$name, uuid::Error> {
                s.parse()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&uuid::Uuid::from_bytes(self.0), f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<$name, uuid::Error> {
                Ok($name(uuid::Uuid::parse_str(s)?.into_bytes()))
            }
        }
    };
}

uuid_id!(/// A cluster, made when its first meta starts.
    ClusterId);
uuid_id!(/// One format of one device.
    OsdUuid);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_of_a_volume_and_of_its_first_generation_are_one_number() {
        let of_volume = VolumeChunk { volume: VolumeId(7), index: 3 };
        let of_store = ChunkKey { generation: GenerationId(7), index: 3 };
        assert_eq!((of_volume.in_first(), of_store.of_first()), (of_store, of_volume));
        assert_eq!((of_volume.to_string(), of_store.to_string()), ("v7/3".to_owned(), "g7/3".to_owned()));
    }
}
