//! The records of what events have reported, and of muted health checks.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::{OsdId, PgId};

/// The state that the events so far report: the next ones are differences from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRecord {
    /// The health as last reported; empty before the first time.
    pub health: String,
    /// Code → since when the check holds, in milliseconds of the Unix clock.
    pub checks: BTreeMap<String, u64>,
    /// State words of OSDs; an OSD without words is up.
    #[serde(with = "pairs")]
    pub osds: BTreeMap<OsdId, String>,
    /// States of PGs; those that are missing are active.
    #[serde(with = "pairs")]
    pub pgs: BTreeMap<PgId, String>,
}

/// A health check that an administrator muted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MuteRecord {
    pub code: String,
    pub since_ms: u64,
    /// `None`: until it is unmuted.
    pub until_ms: Option<u64>,
}

/// Encodes a map as a list of pairs, because keys of JSON objects are strings.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<K: Serialize, S: Serializer>(map: &BTreeMap<K, String>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'de, K: Deserialize<'de> + Ord, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<K, String>, D::Error> {
        Ok(Vec::<(K, String)>::deserialize(from)?.into_iter().collect())
    }
}
