//! Request ids on the wire: which volume of the client, which part, which life of its slot, which attempt.
//!
//! Invariant: ids of attempts that may still be answered differ on every connection of the client, so a
//! late reply never lands in another part.

pub(crate) const KEY_BITS: u32 = 12;
const ATTEMPT_BITS: u32 = 8;
const LIFE_BITS: u32 = 32;
/// Volumes that one client can hold open.
pub(crate) const SPACES: u16 = 1 << (64 - KEY_BITS - ATTEMPT_BITS - LIFE_BITS);

/// What an id says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartId {
    pub space: u16,
    pub life: u32,
    pub attempt: u8,
    pub key: u32,
}

impl PartId {
    pub fn pack(self) -> u64 {
        assert!(self.key < 1 << KEY_BITS && self.space < SPACES, "{self:?} does not fit an id");
        let high = (u64::from(self.space) << LIFE_BITS) | u64::from(self.life);
        (((high << ATTEMPT_BITS) | u64::from(self.attempt)) << KEY_BITS) | u64::from(self.key)
    }

    pub fn unpack(id: u64) -> PartId {
        PartId {
            space: (id >> (KEY_BITS + ATTEMPT_BITS + LIFE_BITS)) as u16,
            life: (id >> (KEY_BITS + ATTEMPT_BITS)) as u32,
            attempt: (id >> KEY_BITS) as u8,
            key: (id & ((1 << KEY_BITS) - 1)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_what_was_packed() {
        for part in [
            PartId { space: 0, life: 1, attempt: 0, key: 0 },
            PartId { space: SPACES - 1, life: u32::MAX, attempt: 255, key: (1 << KEY_BITS) - 1 },
            PartId { space: 5, life: 77, attempt: 3, key: 1000 },
        ] {
            assert_eq!(PartId::unpack(part.pack()), part);
        }
    }
}
