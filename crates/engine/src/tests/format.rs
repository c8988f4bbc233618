//! Formatting a device, and the contents that a format finds on it.

use super::disk::Disk;
use crate::testing::{DISK_LEN, IDS, params};
use crate::{
    DeviceContents, FormatError, FormatParams, Superblock, begin_format, behind_mark, check_format, finish_format,
    format_device, inspect, mark_behind, read_superblock,
};
use layout::intent::INTENT_AT;
use layout::poison::{BEHIND_AT, POISON_AT, POISON_LEN};
use layout::superblock::SuperblockError;
use types::{ClusterId, OsdId, OsdUuid};

const CLUSTER: ClusterId = IDS.0;
const OSD: OsdId = IDS.1;
const UUID: OsdUuid = IDS.2;

fn formatted() -> (Disk, Superblock) {
    let mut disk = Disk::new(DISK_LEN, 1, true);
    let info = disk.info.clone();
    let made = format_device(&mut disk, &info, &params(), &mut |_, _| {}).expect("an empty disk");
    (disk, made)
}

#[test]
fn a_foreign_device_is_refused_unless_forced() {
    let mut disk = Disk::new(DISK_LEN, 1, true);
    let info = disk.info.clone();
    let mut done = (0, 0);
    let zeroing = FormatParams { prezero: true, ..params() };
    begin_format(&mut disk, &info, &zeroing).expect("an empty disk");
    let made = format_device(&mut disk, &info, &zeroing, &mut |d, n| done = (d, n)).expect("an empty disk");
    assert_eq!(done, (16 << 20, 16 << 20), "progress reaches its end");
    assert_eq!(read_superblock(&mut disk, &info).expect("it was just written"), made);
    assert_eq!((made.cluster, made.osd, made.uuid), (CLUSTER, OSD, UUID));
    // From here on the device is an OSD: only its registration may be missing.
    let found = inspect(&mut disk, &info).expect("it reads");
    assert_eq!(found, DeviceContents::Osd { superblock: made, unfinished: true });
    let refused = format_device(&mut disk, &info, &params(), &mut |_, _| {});
    assert!(matches!(refused, Err(FormatError::Ours { osd: OSD, uuid: UUID })), "its log is whole: {refused:?}");
    for _ in 0..2 {
        finish_format(&mut disk, &info).expect("registered");
        let found = inspect(&mut disk, &info).expect("it reads");
        assert_eq!(found, DeviceContents::Osd { superblock: made, unfinished: false });
    }
    let other = FormatParams { cluster: ClusterId([1; 16]), ..params() };
    let refused = format_device(&mut disk, &info, &other, &mut |_, _| {});
    assert!(matches!(refused, Err(FormatError::OtherCluster { found: CLUSTER })), "{refused:?}");
    assert_eq!(read_superblock(&mut disk, &info).expect("untouched"), made);
    for (at, place) in [(700_000, "first"), (DISK_LEN as usize - 4096, "last")] {
        let mut disk = Disk::new(DISK_LEN, 1, true);
        disk.fill(at, 1, 1);
        let refused = format_device(&mut disk, &info, &params(), &mut |_, _| {});
        assert!(matches!(refused, Err(FormatError::Foreign { place: p }) if p == place), "{refused:?}");
        assert_eq!(disk.writes, 0, "a refused device is not touched");
        format_device(&mut disk, &info, &FormatParams { force: true, ..params() }, &mut |_, _| {}).expect("forced");
    }
    for cut in 1..6 {
        let mut disk = Disk::new(DISK_LEN, 1, true);
        disk.fill(700_000, 1, 1);
        let forced = FormatParams { force: true, ..params() };
        begin_format(&mut disk, &info, &forced).expect("forced");
        disk.fail_after(cut);
        assert!(format_device(&mut disk, &info, &forced, &mut |_, _| {}).is_err(), "write {cut} failed");
        disk.fails = 0..0;
        format_device(&mut disk, &info, &params(), &mut |_, _| {}).expect("it was begun, so no force is needed");
    }
    let huge = FormatParams { log_bytes: 47 << 20, ..params() };
    let refused = format_device(&mut disk, &info, &huge, &mut |_, _| {});
    assert!(matches!(refused, Err(FormatError::TooSmall { .. })), "{refused:?}");
}

#[test]
fn a_format_writes_the_pages_of_the_marks() {
    let mut disk = Disk::new(DISK_LEN, 1, true);
    let info = disk.info.clone();
    let marks = POISON_AT as usize..BEHIND_AT as usize + POISON_LEN;
    disk.fill(marks.start, marks.len(), 7);
    format_device(&mut disk, &info, &FormatParams { force: true, ..params() }, &mut |_, _| {}).expect("forced");
    assert!(
        disk.bytes()[marks].iter().all(|byte| *byte == 0),
        "a full file system must not keep a mark from being left"
    );
}

#[test]
fn damaged_superblocks_are_an_osd_and_no_foreign_data() {
    let (mut disk, made) = formatted();
    let info = disk.info.clone();
    Superblock::offsets(made.device_bytes).into_iter().for_each(|at| disk.flip(at as usize + 100));
    let found = inspect(&mut disk, &info).expect("it reads");
    assert_eq!(found, DeviceContents::Damaged(made.ids()));
    let refused = check_format(&mut disk, &info, &params());
    assert!(matches!(refused, Err(FormatError::Superblock(SuperblockError::Damaged))), "{refused:?}");
}

#[test]
fn a_device_of_a_newer_version_is_never_taken_for_foreign_data() {
    let (mut disk, made) = formatted();
    let info = disk.info.clone();
    let newer = Superblock { incompat: 1 << 9, ..made }.encode();
    Superblock::offsets(made.device_bytes).into_iter().for_each(|at| disk.put(at as usize, &newer));
    let refused = inspect(&mut disk, &info);
    assert!(matches!(refused, Err(FormatError::Superblock(SuperblockError::Features { .. }))), "{refused:?}");
}

#[test]
fn a_page_that_cannot_be_read_ends_no_start() {
    let (mut disk, made) = formatted();
    let info = disk.info.clone();
    mark_behind(&mut disk, &info, UUID, "older").expect("marked");
    assert_eq!(behind_mark(&mut disk, &info, UUID).as_deref(), Some("older"));
    disk.unreadable = Some(BEHIND_AT as usize);
    assert_eq!(behind_mark(&mut disk, &info, UUID), None);
    disk.unreadable = Some(INTENT_AT as usize);
    finish_format(&mut disk, &info).expect("the page counts as empty");
    let offsets = Superblock::offsets(made.device_bytes).map(|at| at as usize);
    for at in offsets {
        disk.unreadable = Some(at);
        assert_eq!(read_superblock(&mut disk, &info).expect("the other copy is good"), made);
    }
    disk.fill(offsets[1], 4096, 0);
    disk.unreadable = Some(offsets[0]);
    let failed = read_superblock(&mut disk, &info);
    assert!(matches!(failed, Err(FormatError::Disk { .. })), "it may hold an OSD: {failed:?}");
}
