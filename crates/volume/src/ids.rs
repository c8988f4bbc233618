//! Request ids on the wire: they name the volume of the client, the message and the part.
//!
//! Invariant: no id is used twice on a connection, not even for the repetition of a part, because both
//! ends count what is in flight by id.

pub(crate) const KEY_BITS: u32 = 12;
const SERIAL_BITS: u32 = 40;
/// Most volumes that one client can hold open at a time.
pub const SPACES: u16 = 1 << (64 - KEY_BITS - SERIAL_BITS);

/// Fields of a request id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartId {
    pub space: u16,
    /// Grows with every message of the volume.
    pub serial: u64,
    pub key: u32,
}

impl PartId {
    pub fn pack(self) -> u64 {
        assert!(self.key < 1 << KEY_BITS && self.space < SPACES && self.serial < 1 << SERIAL_BITS, "{self:?}");
        (((u64::from(self.space) << SERIAL_BITS) | self.serial) << KEY_BITS) | u64::from(self.key)
    }

    pub fn unpack(id: u64) -> PartId {
        PartId {
            space: space_of(id),
            serial: (id >> KEY_BITS) & ((1 << SERIAL_BITS) - 1),
            key: (id & ((1 << KEY_BITS) - 1)) as u32,
        }
    }
}

/// Returns the volume (by [`crate::VolumeConfig::space`]) to which a reply with this id belongs.
pub fn space_of(id: u64) -> u16 {
    (id >> (KEY_BITS + SERIAL_BITS)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_what_was_packed() {
        for part in [
            PartId { space: 0, serial: 1, key: 0 },
            PartId { space: SPACES - 1, serial: (1 << SERIAL_BITS) - 1, key: (1 << KEY_BITS) - 1 },
            PartId { space: 5, serial: 77, key: 1000 },
        ] {
            assert_eq!(PartId::unpack(part.pack()), part);
        }
    }
}
