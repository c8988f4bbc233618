//! Encodes a map as a list of pairs, because keys of JSON objects are strings.

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
