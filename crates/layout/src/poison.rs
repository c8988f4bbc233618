//! The mark of a poisoned store: the reason of its stop. The store starts only when an administrator allows it
//! (ADR 0006).
//!
//! The engine passes in a reason and writes the page as best effort, on a device that has just failed; a mount passes
//! in the page that it read. The page lies in the first MiB, behind the superblock, away from all other writes.
//!
//! Invariant: a mark belongs to one format of the device: a device that was formatted again has none.

use types::{OsdUuid, crc32c};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offset of the mark on the device.
pub const POISON_AT: u64 = 8192;
/// Offset of the mark on a device that meta has refused as an older copy (ADR 0012): the same page, at another place.
pub const BEHIND_AT: u64 = POISON_AT + POISON_LEN as u64;
/// Bytes of the mark.
pub const POISON_LEN: usize = 4096;
/// Most bytes of the reason that are stored.
pub const REASON_MAX: usize = types::limits::POISON_REASON_LEN_MAX;

pub(crate) const MAGIC: [u8; 8] = *b"BSLTPOIS";
pub(crate) const HEAD_LEN: usize = size_of::<Disk>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Disk {
    magic: [u8; 8],
    uuid: [u8; 16],
    reason_len: U16,
    reserved: U16,
    /// CRC32C of all bytes before it, and of the reason behind it.
    crc: U32,
}

const _: () = assert!(HEAD_LEN == 32);
const _: () = assert!(HEAD_LEN + REASON_MAX <= POISON_LEN);
const _: () = assert!(POISON_AT + POISON_LEN as u64 <= crate::superblock::MARGIN);

fn crc_of(head: &[u8], reason: &[u8]) -> u32 {
    types::crc::append(crc32c(&head[..HEAD_LEN - 4]), reason)
}

/// Encodes the page with the reason for which the store `uuid` is poisoned; a long reason is truncated.
pub fn encode(uuid: OsdUuid, reason: &str) -> [u8; POISON_LEN] {
    let reason = types::limits::clip(reason, REASON_MAX).as_bytes();
    let reason_len = U16::new(reason.len() as u16);
    let mut disk = Disk { magic: MAGIC, uuid: uuid.0, reason_len, reserved: 0.into(), crc: 0.into() };
    disk.crc = crc_of(disk.as_bytes(), reason).into();
    let mut page = [0; POISON_LEN];
    page[..HEAD_LEN].copy_from_slice(disk.as_bytes());
    page[HEAD_LEN..HEAD_LEN + reason.len()].copy_from_slice(reason);
    page
}

/// Returns the reason for which the store `uuid` is poisoned; `None` when the page is no mark of it, or damaged.
pub fn decode(page: &[u8], uuid: OsdUuid) -> Option<String> {
    let (disk, rest) = Disk::read_from_prefix(page).ok()?;
    let reason = rest.get(..disk.reason_len.get() as usize).filter(|r| r.len() <= REASON_MAX)?;
    let sound = disk.magic == MAGIC && disk.uuid == uuid.0 && disk.reserved.get() == 0;
    if !sound || crc_of(&page[..HEAD_LEN], reason) != disk.crc.get() {
        return None;
    }
    String::from_utf8(reason.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: OsdUuid = OsdUuid([3; 16]);

    #[test]
    fn poison_mark_is_read_only_under_the_uuid_that_wrote_it() {
        let page = encode(UUID, "flushing home: input/output error (errno 5)");
        assert_eq!(decode(&page, UUID).as_deref(), Some("flushing home: input/output error (errno 5)"));
        assert_eq!(decode(&page, OsdUuid([4; 16])), None);
        assert_eq!(decode(&[0; POISON_LEN], UUID), None);
        assert_eq!(decode(&page[..40], UUID), None, "cut off");
        assert_eq!(crc32c(&page), 533_364_905, "golden");
        for at in 0..HEAD_LEN + 43 {
            let mut bad = page;
            bad[at] ^= 1;
            assert_eq!(decode(&bad, UUID), None, "byte {at}");
        }
    }

    #[test]
    fn long_poison_reason_is_truncated_at_a_character() {
        let reason = decode(&encode(UUID, &"ü".repeat(400)), UUID).expect("a mark");
        assert_eq!(reason, "ü".repeat(REASON_MAX / 2));
        let odd = format!("x{}", "ü".repeat(400));
        assert_eq!(decode(&encode(UUID, &odd), UUID).expect("a mark").len(), REASON_MAX - 1);
    }
}
