//! The salts of log segments.
//!
//! Every batch header carries the salt of its segment. The salt is a keyed hash of the number of the segment's first batch, so a
//! reader that has the key verifies any header by itself. A writer of payloads does not have the key. It can place bytes
//! that look like a header into the log, and cannot give them the salt (ADR 0024).
//!
//! Invariant: the key is in the superblock and in memory only. No message carries it, and its `Debug` form omits it.

use super::SALT_KEY_LEN;
use siphasher::sip::SipHasher24;
use std::fmt;
use types::OsdUuid;

/// Key of the salts of one format of a device, drawn at random.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaltKey([u8; SALT_KEY_LEN]);

impl SaltKey {
    /// Takes the bytes of a key: random ones, drawn for this format.
    pub const fn new(bytes: [u8; SALT_KEY_LEN]) -> SaltKey {
        SaltKey(bytes)
    }

    /// Returns the bytes, for the superblock alone.
    pub(crate) fn bytes(self) -> [u8; SALT_KEY_LEN] {
        self.0
    }

    /// Returns the salt of the segment whose first batch has this number: SipHash-2-4 of the number's 8 bytes, little-endian.
    pub fn salt(self, segment_seq: u64) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(&segment_seq.to_le_bytes())
    }
}

impl fmt::Debug for SaltKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaltKey(secret)")
    }
}

/// The identity of a log: a batch header verifies under the identity that it was written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    pub uuid: OsdUuid,
    pub salt_key: SaltKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_are_siphash_2_4_of_the_segment_number() {
        // The vector for 8 bytes of the reference implementation: key 00 to 0f, input 00 to 07.
        let key = SaltKey::new(std::array::from_fn(|n| n as u8));
        assert_eq!(key.salt(0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn debug_form_of_a_salt_key_omits_its_bytes() {
        let key = SaltKey::new([0xab; SALT_KEY_LEN]);
        let identity = LogIdentity { uuid: OsdUuid([1; 16]), salt_key: key };
        let text = format!("{key:?} {identity:?} {identity:#?}").to_lowercase();
        assert!(text.contains("secret") && !text.contains("ab") && !text.contains("171"), "{text}");
    }
}
