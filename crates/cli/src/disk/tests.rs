//! Devices that are hostile: truncated, random, of another version, in use, with flipped bytes.

mod snapshots;

use super::check::examine;
use super::device::Device;
use crate::disk_args::DiskDevice;
use crate::errors::UserError;
use engine::FormatParams;
use engine::offline::Access;
use env::DiskSpec;
use env::Env;
use env::real::{RealConfig, RealEnv};
use indicatif::ProgressBar;
use layout::superblock::{FORMAT_VERSION, MARGIN, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use types::{ClusterId, OsdId, OsdUuid, codes};

const LEN: u64 = 40 << 20;

/// A device file that is removed with its owner. It is not on tmpfs: devices are opened O_DIRECT.
struct TempDevice(PathBuf);

impl Drop for TempDevice {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl TempDevice {
    fn new(what: &str, len: u64) -> TempDevice {
        let base = std::env::var("SMOKE_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
        let path = PathBuf::from(base).join(format!("basalt-disk.{what}.{}", std::process::id()));
        File::create(&path).and_then(|file| file.set_len(len)).expect("a file");
        TempDevice(path)
    }

    fn formatted(what: &str) -> TempDevice {
        let made = TempDevice::new(what, LEN);
        let mut env = RealEnv::new(RealConfig::default()).expect("io_uring");
        let disk =
            env.open_disk(&DiskSpec { path: made.0.clone(), assume_plp: false, read_only: false }).expect("opens");
        let params = FormatParams {
            cluster: ClusterId([7; 16]),
            osd: OsdId(3),
            uuid: OsdUuid([9; 16]),
            log_bytes: 16 << 20,
            segment_bytes: 1 << 20,
            force: false,
            prezero: false,
            unix_s: 0,
            part: engine::DevicePart::Whole,
        };
        engine::format_device(&mut env, &disk, &params, &mut |_, _| {}).expect("it formats");
        made
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(&self.0).expect("it is there")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("it is there")
    }

    fn open(&self, access: Access) -> Result<Device, anyhow::Error> {
        Device::open(&DiskDevice { device: self.0.clone(), log_device: None }, access)
    }

    /// Checks the device; `Err`: the code with which it is refused.
    fn check(&self) -> Result<u64, u32> {
        let checked = || {
            let mut device = self.open(Access::Read)?;
            let of = device.superblocks()?;
            examine(&mut device, &of, true, &ProgressBar::hidden())
        };
        let code = |error: anyhow::Error| error.downcast_ref::<UserError>().map_or(0, |error| error.code);
        checked().map(|report| report.damaged()).map_err(code)
    }
}

#[test]
fn device_without_a_usable_superblock_is_refused_with_its_code() {
    let blank = TempDevice::new("blank", LEN);
    assert_eq!(blank.check(), Err(codes::DEVICE_NOT_FORMATTED));
    let short = TempDevice::new("short", 4096);
    assert_eq!(short.check(), Err(codes::DEVICE_NOT_FORMATTED));
    let random = TempDevice::new("random", LEN);
    let mut rng = types::rng::Rng::new(3);
    let bytes: Vec<u8> = (0..4 << 20).map(|_| rng.next_u64() as u8).collect();
    random.file().write_all_at(&bytes, 0).expect("written");
    assert_eq!(random.check(), Err(codes::DEVICE_NOT_FORMATTED));
    let missing =
        TempDevice(PathBuf::from("/var/tmp/no/such/device")).open(Access::Read).err().expect("it is not there");
    assert_eq!(missing.downcast_ref::<UserError>().map(|error| error.code), Some(codes::FILE_UNUSABLE));
}

#[test]
fn truncated_device_and_other_versions_have_their_codes() {
    let device = TempDevice::formatted("versions");
    assert_eq!(device.check(), Ok(0), "a new device is clean");
    let sound = Superblock::decode(&device.bytes()).expect("it was formatted");
    for (version, code) in
        [(FORMAT_VERSION + 1, codes::DEVICE_FORMAT_NEWER), (FORMAT_VERSION - 1, codes::DEVICE_FORMAT_OLDER)]
    {
        let other = Superblock { format_version: version, ..sound };
        for offset in Superblock::offsets(LEN) {
            device.file().write_all_at(&other.encode(), offset).expect("written");
        }
        assert_eq!(device.check(), Err(code));
    }
    for offset in Superblock::offsets(LEN) {
        device.file().write_all_at(&sound.encode(), offset).expect("written");
    }
    let moved = Superblock { home_start: sound.home_start + 4096, home_bytes: sound.home_bytes - types::AU, ..sound };
    device.file().write_all_at(&moved.encode(), 0).expect("written");
    assert!(matches!(device.check(), Ok(1..)), "a forged division is no panic: {:?}", device.check());
    device.file().write_all_at(&sound.encode(), 0).expect("written");
    for len in [LEN - 4096, LEN / 2, 3 * MARGIN] {
        device.file().set_len(len).expect("truncated");
        assert!(matches!(device.check(), Ok(1..)), "{len} bytes: {:?}", device.check());
        let mut opened = device.open(Access::Read).expect("it opens");
        let refused = opened.mount(Access::Read).err().expect("a part of it is missing");
        assert_eq!(refused.downcast_ref::<UserError>().map(|error| error.code), Some(codes::MOUNT_FAILED));
    }
}

#[test]
fn flipped_byte_of_a_new_device_is_found_or_means_nothing() {
    let device = TempDevice::formatted("flips");
    let (file, clean) = (device.file(), device.bytes());
    let pages: Vec<usize> =
        (0..clean.len() / 4096).filter(|n| clean[n * 4096..][..4096].iter().any(|b| *b != 0)).collect();
    assert_eq!(pages.len(), 3, "two superblocks and the first batch");
    for page in pages {
        for at in [0, 9, 40, 64, 100, 129, 140, 200] {
            let at = page * 4096 + at;
            file.write_all_at(&[clean[at] ^ 0x11], at as u64).expect("written");
            // The records of the first batch end before its byte 200.
            let found = device.check();
            assert!(matches!(found, Ok(1..)) || at % 4096 == 200 && found == Ok(0), "byte {at}: {found:?}");
            file.write_all_at(&[clean[at]], at as u64).expect("written");
        }
    }
    assert!(device.check() == Ok(0) && device.bytes() == clean, "a check writes nothing");
}

#[test]
fn device_is_open_read_only_and_one_in_use_is_refused() {
    let device = TempDevice::formatted("lock");
    let held = device.open(Access::Read).expect("it opens");
    let fds = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let ours = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path == device.0));
    let flags: Vec<String> = ours
        .map(|fd| std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.file_name().to_string_lossy())))
        .map(|info| info.expect("it is open").lines().nth(1).unwrap_or("").to_owned())
        .collect();
    assert!(!flags.is_empty() && flags.iter().all(|line| line.ends_with('0')), "O_RDONLY ends with 0: {flags:?}");
    assert!(device.open(Access::Read).is_ok(), "readers share a device");
    drop(held);
    let _osd = device.open(Access::Write).expect("it opens");
    let refused = device.open(Access::Read).err().expect("it is in use");
    let refused = refused.downcast::<UserError>().expect("it has a code");
    assert!(refused.code == codes::DEVICE_IN_USE && refused.next.starts_with("stop its OSD first"), "{refused}");
}
