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
id!(/// One open of one volume. From 1, given by meta, never reused; 0 in an attach record means "nobody".
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

/// 16 MiB of one volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    pub volume: VolumeId,
    pub index: u32,
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.index)
    }
}

impl fmt::Debug for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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
