//! The superblock: which cluster and OSD a device belongs to, and how it is divided.
//!
//! Two copies lie at the first and in the last 4 KiB of the device; either is enough. The device is
//! `| 1 MiB header | log: segments | home | 1 MiB trailer |`. The first and last MiB hold nothing else but the marks
//! and the intent page, so a foreign device differs from an empty one.
//!
//! An OSD whose log has a device of its own has two such devices, without log and without home. Each carries superblocks that say
//! which part it is. A build that does not know of that refuses them by [`SEPARATE_LOG`].
//!
//! Invariant: a superblock that decodes has a matching CRC, a version and features that this build understands, and a
//! geometry without overlap.

use crate::home::Geometry;
use crate::log::{LogIdentity, SALT_KEY_LEN, SaltKey};
use std::fmt;
use types::{AU, ClusterId, OsdId, OsdUuid, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"BSLTSUPR";
/// Version of the whole device that this build writes, and the only one that it reads. 1: log batches of version 1. 2: log
/// batches of version 2, which know the tombstone floor. 3: decision states of version 2. 4: log batches and decision states
/// of version 3, and home checks blocks by xxh3. 5: a key in the superblock gives the salts of the log segments.
/// 6: log batches of version 4, and a replica's log may begin before its contents are here: its record says where.
/// 7: log batches of version 5: the payload of an entry may lie at home. 8: decision states of version 4, and home pages and
/// checkpoints of version 2.
pub const FORMAT_VERSION: u32 = 8;
/// Incompatible feature: log and home of the OSD are on two devices.
pub const SEPARATE_LOG: u64 = 1;
/// Incompatible features that this build understands.
pub const INCOMPAT_KNOWN: u64 = SEPARATE_LOG;
/// Bytes of one copy on the device.
pub const SUPERBLOCK_LEN: usize = 4096;
/// Bytes at each end of the device that log and home leave free.
pub const MARGIN: u64 = 1 << 20;
/// Fewest segments of a log.
pub const SEGMENTS_MIN: u32 = 16;
/// Most segments of a log.
pub const SEGMENTS_MAX: u32 = 1024;
/// Smallest log segment (production uses 16 MiB and more).
pub const SEGMENT_LEN_MIN: u64 = 1 << 20;
/// Largest log segment: a mount reads one at once.
pub const SEGMENT_LEN_MAX: u64 = 64 << 20;

/// The part of an OSD that a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Log and home.
    Whole,
    /// The home alone.
    Home,
    /// The log alone.
    Log,
}

impl Part {
    /// Returns its name in labels and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Whole => "whole",
            Part::Home => "home",
            Part::Log => "log",
        }
    }

    fn of(byte: u8) -> Option<Part> {
        [Part::Whole, Part::Home, Part::Log].into_iter().find(|part| *part as u8 == byte)
    }

    fn feature(self) -> u64 {
        if self == Part::Whole { 0 } else { SEPARATE_LOG }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Whole => "a whole OSD",
            Part::Home => "the home of an OSD, whose log is on another device",
            Part::Log => "the log of an OSD, whose home is on another device",
        })
    }
}

/// Shape of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    pub segment_bytes: u64,
    pub segment_count: u32,
}

/// Content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub format_version: u32,
    /// Features that an older build may ignore.
    pub compat: u64,
    /// Features that a build must understand to open the device.
    pub incompat: u64,
    pub cluster: ClusterId,
    pub osd: OsdId,
    pub uuid: OsdUuid,
    pub part: Part,
    pub device_bytes: u64,
    /// A home has no log: these three are 0.
    pub log_start: u64,
    pub segment_bytes: u64,
    pub segment_count: u32,
    /// A log has no home: both are 0.
    pub home_start: u64,
    pub home_bytes: u64,
    /// Seconds since 1970, for administrators.
    pub formatted_unix_s: u64,
    /// Key of the salts of the log segments.
    pub salt_key: SaltKey,
}

/// Why bytes are not a usable superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    #[error("the device carries no Basalt superblock")]
    Absent,
    #[error("both superblocks are damaged")]
    Damaged,
    #[error("the device has format version {found}, this build reads up to {FORMAT_VERSION}")]
    Newer { found: u32 },
    /// BSLT-3008
    #[error("the device has format version {found} of an older build, this build reads {FORMAT_VERSION} only")]
    Older { found: u32 },
    #[error("the device uses features {unknown:#x} that this build does not know")]
    Features { unknown: u64 },
    #[error("the superblock describes an impossible division of the device")]
    Geometry,
    /// BSLT-3015
    #[error("the device holds {found}; {expected} was expected")]
    OtherPart { found: Part, expected: Part },
    #[error("the device belongs to cluster {found}, not to {expected}")]
    ForeignCluster { found: ClusterId, expected: ClusterId },
    #[error("the device belongs to {found}, not to {expected}")]
    OtherOsd { found: OsdId, expected: OsdId },
    #[error("the device was formatted as {found}, not as {expected}")]
    OtherFormat { found: OsdUuid, expected: OsdUuid },
}

/// Identity of a device: its cluster, OSD and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIds {
    pub cluster: ClusterId,
    pub osd: OsdId,
    pub uuid: OsdUuid,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Disk {
    magic: [u8; 8],
    format_version: U32,
    osd: U32,
    compat: U64,
    incompat: U64,
    cluster: [u8; 16],
    uuid: [u8; 16],
    device_bytes: U64,
    log_start: U64,
    segment_bytes: U64,
    segment_count: U32,
    reserved0: U32,
    home_start: U64,
    home_bytes: U64,
    formatted_unix_s: U64,
    salt_key: [u8; SALT_KEY_LEN],
    part: u8,
    /// Reserved for later fields.
    reserved1: [u8; 111],
    /// CRC32C of the whole 4 KiB with this field zero.
    crc: U32,
    reserved2: U32,
}

const _: () = assert!(size_of::<Disk>() == 256);
pub(crate) const CRC_AT: usize = 248;

impl Superblock {
    /// Divides a device of `device_bytes`, which holds this part of an OSD.
    ///
    /// # Errors
    /// [`SuperblockError::Geometry`] when log and home do not fit, or the log's shape is not allowed.
    pub fn divide(
        ids: DeviceIds,
        part: Part,
        device_bytes: u64,
        log: Segments,
        formatted_unix_s: u64,
        salt_key: SaltKey,
    ) -> Result<Superblock, SuperblockError> {
        let Segments { segment_bytes, segment_count } = match part {
            Part::Home => Segments { segment_bytes: 0, segment_count: 0 },
            _ => log,
        };
        let log_bytes = segment_bytes.checked_mul(u64::from(segment_count)).ok_or(SuperblockError::Geometry)?;
        let log_start = if part == Part::Home { 0 } else { MARGIN };
        let log_end = MARGIN.checked_add(log_bytes).ok_or(SuperblockError::Geometry)?;
        let home_start = log_end.checked_next_multiple_of(AU).ok_or(SuperblockError::Geometry)?;
        let home_bytes = device_bytes.saturating_sub(MARGIN).saturating_sub(home_start) / AU * AU;
        let (home_start, home_bytes) = if part == Part::Log { (0, 0) } else { (home_start, home_bytes) };
        let superblock = Superblock {
            format_version: FORMAT_VERSION,
            compat: 0,
            incompat: part.feature(),
            cluster: ids.cluster,
            osd: ids.osd,
            uuid: ids.uuid,
            part,
            device_bytes,
            log_start,
            segment_bytes,
            segment_count,
            home_start,
            home_bytes,
            formatted_unix_s,
            salt_key,
        };
        superblock.check_geometry()?;
        Ok(superblock)
    }

    fn check_geometry(&self) -> Result<(), SuperblockError> {
        let log_end = u64::from(self.segment_count)
            .checked_mul(self.segment_bytes)
            .and_then(|len| len.checked_add(self.log_start));
        let home_end = self.home_start.checked_add(self.home_bytes);
        let fits =
            |end: Option<u64>| end.and_then(|end| end.checked_add(MARGIN)).is_some_and(|end| end <= self.device_bytes);
        let no_log = (self.log_start, self.segment_bytes, self.segment_count) == (0, 0, 0);
        let no_home = (self.home_start, self.home_bytes) == (0, 0);
        let log = self.log_start == MARGIN
            && (SEGMENTS_MIN..=SEGMENTS_MAX).contains(&self.segment_count)
            && (SEGMENT_LEN_MIN..=SEGMENT_LEN_MAX).contains(&self.segment_bytes)
            && self.segment_bytes.is_multiple_of(SUPERBLOCK_LEN as u64);
        let home = self.home_start >= MARGIN
            && self.home_start.is_multiple_of(AU)
            && Geometry::of(self.home_bytes).is_some()
            && self.home_bytes.is_multiple_of(AU)
            && fits(home_end);
        let sound = match self.part {
            Part::Whole => log && home && log_end.is_some_and(|end| end <= self.home_start),
            Part::Home => no_log && home,
            Part::Log => log && no_home && fits(log_end),
        };
        if sound && self.incompat & SEPARATE_LOG == self.part.feature() {
            Ok(())
        } else {
            Err(SuperblockError::Geometry)
        }
    }

    /// Returns the offsets of the two copies.
    pub fn offsets(device_bytes: u64) -> [u64; 2] {
        let last = device_bytes / SUPERBLOCK_LEN as u64 * SUPERBLOCK_LEN as u64 - SUPERBLOCK_LEN as u64;
        [0, last]
    }

    /// Encodes one copy.
    pub fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let disk = Disk {
            magic: MAGIC,
            format_version: self.format_version.into(),
            osd: self.osd.0.into(),
            compat: self.compat.into(),
            incompat: self.incompat.into(),
            cluster: self.cluster.0,
            uuid: self.uuid.0,
            device_bytes: self.device_bytes.into(),
            log_start: self.log_start.into(),
            segment_bytes: self.segment_bytes.into(),
            segment_count: self.segment_count.into(),
            reserved0: 0.into(),
            home_start: self.home_start.into(),
            home_bytes: self.home_bytes.into(),
            formatted_unix_s: self.formatted_unix_s.into(),
            salt_key: self.salt_key.bytes(),
            part: self.part as u8,
            reserved1: [0; 111],
            crc: 0.into(),
            reserved2: 0.into(),
        };
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[..size_of::<Disk>()].copy_from_slice(disk.as_bytes());
        let crc = crc32c(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// A [`SuperblockError`]; `Damaged` for a copy with the magic and a wrong CRC.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let (disk, _) = Disk::read_from_prefix(bytes).map_err(|_| SuperblockError::Absent)?;
        if disk.magic != MAGIC {
            return Err(SuperblockError::Absent);
        }
        let page = bytes.get(..SUPERBLOCK_LEN).ok_or(SuperblockError::Damaged)?;
        let crc = types::crc::append(crc32c(&page[..CRC_AT]), &[0; 4]);
        if types::crc::append(crc, &page[CRC_AT + 4..]) != disk.crc.get() {
            return Err(SuperblockError::Damaged);
        }
        let found = disk.format_version.get();
        if found > FORMAT_VERSION {
            return Err(SuperblockError::Newer { found });
        }
        if found < FORMAT_VERSION {
            return Err(SuperblockError::Older { found });
        }
        let unknown = disk.incompat.get() & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::Features { unknown });
        }
        let part = Part::of(disk.part).ok_or(SuperblockError::Geometry)?;
        let superblock = Superblock {
            format_version: found,
            compat: disk.compat.get(),
            incompat: disk.incompat.get(),
            cluster: ClusterId(disk.cluster),
            osd: OsdId(disk.osd.get()),
            uuid: OsdUuid(disk.uuid),
            part,
            device_bytes: disk.device_bytes.get(),
            log_start: disk.log_start.get(),
            segment_bytes: disk.segment_bytes.get(),
            segment_count: disk.segment_count.get(),
            home_start: disk.home_start.get(),
            home_bytes: disk.home_bytes.get(),
            formatted_unix_s: disk.formatted_unix_s.get(),
            salt_key: SaltKey::new(disk.salt_key),
        };
        superblock.check_geometry()?;
        Ok(superblock)
    }

    /// Returns the better of two copies.
    ///
    /// # Errors
    /// The error of a copy that passes its CRC, else of a copy that is present.
    pub fn choose(first: &[u8], second: &[u8]) -> Result<Superblock, SuperblockError> {
        use SuperblockError::{Absent, Damaged};
        match (Superblock::decode(first), Superblock::decode(second)) {
            (Ok(superblock), _) | (Err(_), Ok(superblock)) => Ok(superblock),
            (Err(Absent | Damaged), Err(reason)) if reason != Absent => Err(reason),
            (Err(reason), Err(_)) => Err(reason),
        }
    }

    /// Returns the identity under which the batches of the log verify.
    pub fn log_identity(&self) -> LogIdentity {
        LogIdentity { uuid: self.uuid, salt_key: self.salt_key }
    }

    /// Returns cluster, OSD and uuid.
    pub fn ids(&self) -> DeviceIds {
        DeviceIds { cluster: self.cluster, osd: self.osd, uuid: self.uuid }
    }

    /// Returns the ids in a copy whose CRC or contents are wrong. They are not verified: use them only in messages.
    pub fn claimed_ids(bytes: &[u8]) -> Option<DeviceIds> {
        let (disk, _) = Disk::read_from_prefix(bytes).ok().filter(|(disk, _)| disk.magic == MAGIC)?;
        Some(DeviceIds { cluster: ClusterId(disk.cluster), osd: OsdId(disk.osd.get()), uuid: OsdUuid(disk.uuid) })
    }

    /// Checks that the device holds this part of an OSD.
    ///
    /// # Errors
    /// [`SuperblockError::OtherPart`].
    pub fn is_part(&self, expected: Part) -> Result<(), SuperblockError> {
        match self.part == expected {
            true => Ok(()),
            false => Err(SuperblockError::OtherPart { found: self.part, expected }),
        }
    }

    /// Checks that this is the device that the caller means.
    ///
    /// # Errors
    /// Names the first of cluster, OSD and format that differs.
    pub fn belongs_to(&self, cluster: ClusterId, osd: OsdId, uuid: OsdUuid) -> Result<(), SuperblockError> {
        if self.cluster != cluster {
            return Err(SuperblockError::ForeignCluster { found: self.cluster, expected: cluster });
        }
        if self.osd != osd {
            return Err(SuperblockError::OtherOsd { found: self.osd, expected: osd });
        }
        if self.uuid != uuid {
            return Err(SuperblockError::OtherFormat { found: self.uuid, expected: uuid });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SaltKey = SaltKey::new([0x3c; SALT_KEY_LEN]);
    const IDS: DeviceIds = DeviceIds { cluster: ClusterId([1; 16]), osd: OsdId(3), uuid: OsdUuid([2; 16]) };

    fn segments(segment_bytes: u64, segment_count: u32) -> Segments {
        Segments { segment_bytes, segment_count }
    }

    fn sample() -> Superblock {
        Superblock::divide(IDS, Part::Whole, 4 << 30, segments(16 << 20, 16), 1_700_000_000, KEY)
            .expect("4 GiB hold a log and a home")
    }

    #[test]
    fn superblock_bytes_never_change() {
        let bytes = sample().encode();
        assert_eq!(&bytes[..8], b"BSLTSUPR");
        assert_eq!(&bytes[8..16], &[8, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(&bytes[64..72], &(4u64 << 30).to_le_bytes());
        assert_eq!(&bytes[96..104], &(257u64 << 20).to_le_bytes());
        assert_eq!(&bytes[120..136], &[0x3c; SALT_KEY_LEN]);
        assert_eq!(crc32c(&bytes), 859_934_211, "golden");
        assert_eq!(Superblock::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let bytes = sample().encode();
        for at in (0..bytes.len()).step_by(7) {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn one_good_copy_is_enough_and_a_newer_feature_is_refused() {
        let good = sample().encode();
        let mut bad = good;
        bad[100] ^= 1;
        assert_eq!(Superblock::choose(&bad, &good), Ok(sample()));
        assert_eq!(Superblock::choose(&good, &bad), Ok(sample()));
        assert_eq!(Superblock::choose(&bad, &bad), Err(SuperblockError::Damaged));
        assert_eq!(Superblock::choose(&[0; 4096], &[0; 4096]), Err(SuperblockError::Absent));
        let newer = Superblock { incompat: 1 << 9, ..sample() }.encode();
        let refused = Err(SuperblockError::Features { unknown: 1 << 9 });
        assert_eq!(Superblock::decode(&newer), refused);
        for other in [bad, [0; 4096]] {
            assert_eq!(
                (Superblock::choose(&other, &newer), Superblock::choose(&newer, &other)),
                (refused.clone(), refused.clone())
            );
        }
        assert_eq!(Superblock::claimed_ids(&bad), Some(sample().ids()));
        assert_eq!(Superblock::claimed_ids(&[0; 4096]), None);
    }

    #[test]
    fn another_version_is_called_older_or_newer_and_never_damaged() {
        let image = |format_version| Superblock { format_version, ..sample() }.encode();
        let (older, newer) = (image(FORMAT_VERSION - 1), image(FORMAT_VERSION + 1));
        assert_eq!(Superblock::choose(&older, &older), Err(SuperblockError::Older { found: FORMAT_VERSION - 1 }));
        assert_eq!(Superblock::choose(&newer, &newer), Err(SuperblockError::Newer { found: FORMAT_VERSION + 1 }));
        assert_eq!(Superblock::choose(&[0; 4096], &older), Err(SuperblockError::Older { found: FORMAT_VERSION - 1 }));
    }

    #[test]
    fn home_begins_at_an_au_whatever_the_length_of_the_log() {
        let log = segments((1 << 20) + 4096, 17);
        let divided = Superblock::divide(IDS, Part::Whole, 1 << 30, log, 0, KEY).expect("it fits");
        assert_eq!((divided.home_start % AU, divided.home_bytes % AU), (0, 0));
        let forged = Superblock { home_start: divided.home_start + 4096, ..divided };
        assert_eq!(Superblock::decode(&forged.encode()), Err(SuperblockError::Geometry));
    }

    #[test]
    fn a_division_that_does_not_fit_is_refused() {
        // Fuzzing found the second one: it leaves a home of 15 MiB, which was formatted and then could not be mounted.
        for (device, segment, count) in
            [(16 << 20, 1 << 20, 16), (33 << 20, 1 << 20, 16), (1 << 30, 1 << 20, 15), (1 << 30, 4097, 16), (0, 0, 0)]
        {
            let divided = Superblock::divide(IDS, Part::Whole, device, segments(segment, count), 0, KEY);
            assert_eq!(divided, Err(SuperblockError::Geometry));
        }
    }

    #[test]
    fn device_of_a_part_has_no_room_for_the_other() {
        let divide = |part, device| Superblock::divide(IDS, part, device, segments(1 << 20, 16), 0, KEY);
        let (home, log) =
            (divide(Part::Home, 64 << 20).expect("it fits"), divide(Part::Log, 18 << 20).expect("it fits"));
        assert_eq!((home.segment_count, home.home_start, home.home_bytes), (0, MARGIN, 62 << 20));
        assert_eq!((log.segment_count, log.home_bytes), (16, 0));
        assert_eq!(divide(Part::Log, (18 << 20) - 1), Err(SuperblockError::Geometry));
        for sound in [home, log] {
            assert_eq!(Superblock::decode(&sound.encode()), Ok(sound));
            let other = if sound.part == Part::Log { Part::Home } else { Part::Log };
            for part in [Part::Whole, other] {
                let forged = Superblock { part, ..sound };
                assert_eq!(Superblock::decode(&forged.encode()), Err(SuperblockError::Geometry), "{part}");
            }
            // A build without this feature must refuse both.
            assert_eq!(sound.incompat, SEPARATE_LOG);
            let forged = Superblock { incompat: 0, ..sound };
            assert_eq!(Superblock::decode(&forged.encode()), Err(SuperblockError::Geometry));
        }
        let refused = SuperblockError::OtherPart { found: Part::Log, expected: Part::Whole };
        assert_eq!(log.is_part(Part::Whole), Err(refused));
    }
}
