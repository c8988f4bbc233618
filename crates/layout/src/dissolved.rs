//! The list of dissolved generations of a replica, as its dissolved pages hold it.
//!
//! ```text
//! heir u64 | count u32 | reserved u32 | count × { generation u64 | through u32 }   for each heir, ascending
//! ```
//! Invariant: each list has one encoding. No bytes cause a panic, or an allocation beyond their own length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use types::GenerationId;

/// Bytes before the generations of an heir.
pub const HEIR_LEN: usize = 16;
/// Bytes of one dissolved generation.
pub const DISSOLVED_LEN: usize = 12;

/// A generation that has left the tree. The store still keeps its blocks under its id, and they belong to its heir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dissolved {
    pub generation: GenerationId,
    /// Its chunks show only below this index.
    pub through: u32,
}

/// The dissolved generations of each heir, from the newest to the oldest. No list is empty.
pub type DissolvedLists = BTreeMap<GenerationId, Vec<Dissolved>>;

/// Reason why bytes are no list of dissolved generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of dissolved generations ends early or breaks its rules")]
pub struct DissolvedError;

/// Returns the bytes of the lists; none for an empty one.
pub fn encode(lists: &DissolvedLists) -> Bytes {
    let mut out = BytesMut::new();
    for (heir, list) in lists {
        assert!(!list.is_empty(), "the list of {heir} is empty");
        out.put_u64_le(heir.0);
        out.put_u32_le(list.len() as u32);
        out.put_u32_le(0);
        for dissolved in list {
            out.put_u64_le(dissolved.generation.0);
            out.put_u32_le(dissolved.through);
        }
    }
    out.freeze()
}

/// Reads the bytes of the lists.
///
/// # Errors
/// For anything that [`encode`] does not produce.
pub fn decode(mut bytes: &[u8]) -> Result<DissolvedLists, DissolvedError> {
    let (mut lists, mut seen) = (DissolvedLists::new(), BTreeSet::new());
    while !bytes.is_empty() {
        let heir = GenerationId(bytes.try_get_u64_le().map_err(|_| DissolvedError)?);
        let count = bytes.try_get_u32_le().map_err(|_| DissolvedError)? as usize;
        let reserved = bytes.try_get_u32_le().map_err(|_| DissolvedError)?;
        let ascends = lists.last_key_value().is_none_or(|(last, _)| *last < heir);
        if !ascends || reserved != 0 || count == 0 || count > bytes.len() / DISSOLVED_LEN {
            return Err(DissolvedError);
        }
        let mut list: Vec<Dissolved> = Vec::with_capacity(count);
        for _ in 0..count {
            let (generation, through) = (GenerationId(bytes.get_u64_le()), bytes.get_u32_le());
            // An older generation has a lower id, and shows at most as far as the younger one above it.
            let above = list.last().copied().unwrap_or(Dissolved { generation: heir, through: u32::MAX });
            if generation.0 == 0
                || generation >= above.generation
                || through > above.through
                || !seen.insert(generation)
            {
                return Err(DissolvedError);
            }
            list.push(Dissolved { generation, through });
        }
        lists.insert(heir, list);
    }
    // The heir of a generation is in the tree.
    if lists.keys().any(|heir| seen.contains(heir)) { Err(DissolvedError) } else { Ok(lists) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dissolved(generation: u64, through: u32) -> Dissolved {
        Dissolved { generation: GenerationId(generation), through }
    }

    fn lists() -> DissolvedLists {
        DissolvedLists::from([
            (GenerationId(9), vec![dissolved(7, u32::MAX), dissolved(3, 5)]),
            (GenerationId(12), vec![dissolved(4, 2)]),
        ])
    }

    #[test]
    fn lists_read_back_and_have_one_encoding() {
        assert_eq!(decode(&[]), Ok(DissolvedLists::new()));
        assert_eq!(encode(&DissolvedLists::new()).len(), 0, "no page");
        let bytes = encode(&lists());
        assert_eq!(bytes.len(), 2 * HEIR_LEN + 3 * DISSOLVED_LEN);
        assert_eq!(decode(&bytes), Ok(lists()));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.to_vec();
                other[at] ^= 1 << bit;
                if let Ok(read) = decode(&other) {
                    assert_eq!(encode(&read), other, "byte {at}");
                }
            }
            assert_eq!(decode(&bytes[..at]).is_ok(), at == 0 || at == HEIR_LEN + 2 * DISSOLVED_LEN, "{at} bytes");
        }
    }

    #[test]
    fn lists_that_contradict_themselves_are_refused() {
        let refused = |lists: DissolvedLists| assert_eq!(decode(&encode(&lists)), Err(DissolvedError), "{lists:?}");
        let one = |list| DissolvedLists::from([(GenerationId(9), list)]);
        refused(one(vec![dissolved(9, 1)]));
        refused(one(vec![dissolved(0, 1)]));
        refused(one(vec![dissolved(3, 1), dissolved(7, 1)]));
        refused(one(vec![dissolved(7, 1), dissolved(3, 2)]));
        let two = |id, generation| {
            DissolvedLists::from([
                (GenerationId(9), vec![dissolved(7, 1)]),
                (GenerationId(id), vec![dissolved(generation, 1)]),
            ])
        };
        refused(two(12, 7));
        refused(two(12, 9));
    }
}
