//! The intent page: a format of this device has begun, with this uuid and this reserved OSD id.
//!
//! `osd format` writes the page before it destroys anything, and erases it when the OSD is registered. A format that
//! was interrupted is continued with the same ids, without force. The page lies in the first MiB, behind the poison
//! mark.
//!
//! Invariant: a page that decodes was written whole by a format for the cluster that it names.

use types::{ClusterId, OsdId, OsdUuid, crc32c};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offset of the page on the device.
pub const INTENT_AT: u64 = 16_384;
/// Bytes of the page.
pub const INTENT_LEN: usize = 4096;

pub(crate) const MAGIC: [u8; 8] = *b"BSLTFRMT";

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Disk {
    magic: [u8; 8],
    cluster: [u8; 16],
    uuid: [u8; 16],
    osd: U32,
    /// CRC32C of all bytes before it.
    crc: U32,
}

pub(crate) const HEAD_LEN: usize = size_of::<Disk>();
const _: () = assert!(HEAD_LEN == 48);
const _: () = assert!(INTENT_AT >= crate::poison::BEHIND_AT + crate::poison::POISON_LEN as u64);
const _: () = assert!(INTENT_AT + INTENT_LEN as u64 <= crate::superblock::MARGIN);

/// The ids of a format that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    pub cluster: ClusterId,
    pub osd: OsdId,
    pub uuid: OsdUuid,
}

impl Intent {
    /// Encodes the page.
    pub fn encode(&self) -> [u8; INTENT_LEN] {
        let mut disk =
            Disk { magic: MAGIC, cluster: self.cluster.0, uuid: self.uuid.0, osd: self.osd.0.into(), crc: 0.into() };
        disk.crc = crc32c(&disk.as_bytes()[..HEAD_LEN - 4]).into();
        let mut page = [0; INTENT_LEN];
        page[..HEAD_LEN].copy_from_slice(disk.as_bytes());
        page
    }

    /// Decodes the page; `None` when it has other content, or is damaged.
    pub fn decode(page: &[u8]) -> Option<Intent> {
        let (disk, rest) = Disk::read_from_prefix(page).ok()?;
        let sound = disk.magic == MAGIC
            && crc32c(&page[..HEAD_LEN - 4]) == disk.crc.get()
            && rest.len() == INTENT_LEN - HEAD_LEN
            && rest.iter().all(|b| *b == 0);
        sound.then(|| Intent { cluster: ClusterId(disk.cluster), osd: OsdId(disk.osd.get()), uuid: OsdUuid(disk.uuid) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_reads_back_and_any_flipped_bit_is_noticed() {
        let intent = Intent { cluster: ClusterId([1; 16]), osd: OsdId(7), uuid: OsdUuid([2; 16]) };
        let page = intent.encode();
        assert_eq!(Intent::decode(&page), Some(intent));
        assert_eq!(&page[..8], b"BSLTFRMT");
        assert_eq!(&page[40..44], &[7, 0, 0, 0]);
        assert_eq!(Intent::decode(&[0; INTENT_LEN]), None);
        assert_eq!(Intent::decode(&page[..HEAD_LEN]), None, "cut off");
        for at in 0..INTENT_LEN {
            let mut bad = page;
            bad[at] ^= 4;
            assert_eq!(Intent::decode(&bad), None, "byte {at}");
        }
    }
}
