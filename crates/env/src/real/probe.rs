//! The probe of a disk's capabilities: sysfs, statx and the mount table.
//!
//! A file has the block device of its file system. Where that has none of its own (btrfs, overlay), the device is unknown.

use super::sys;
use crate::capabilities::{AtomicWrites, Capabilities, FileSystem, WriteCache};
use crate::op::DiskKind;
use std::fs::File;
use std::path::Path;

const SYSFS: &str = "/sys/dev/block";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Returns what the kernel tells of an open disk. `device`: the number of its block device, or of the one under its file.
pub(super) fn capabilities(file: &File, kind: DiskKind, device: u64) -> Capabilities {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut found = device_at(&Path::new(SYSFS).join(&number));
    let told = sys::atomic_write_units(file);
    let told = told.map(|(min, max)| AtomicWrites { min_bytes: min.into(), max_bytes: max.into() });
    match kind {
        DiskKind::Block => found.atomic_writes = told.or(found.atomic_writes),
        DiskKind::File => {
            let mounts = std::fs::read_to_string(MOUNTS).unwrap_or_default();
            found.file_system = Some(FileSystem { name: file_system_of(&mounts, &number), atomic_writes: told });
        }
    }
    found
}

/// Reads the directory of a block device. The queue of a partition is that of its disk, one step up behind the symlink.
fn device_at(dir: &Path) -> Capabilities {
    let word = |name: &str| {
        let read = |queue: &str| std::fs::read_to_string(dir.join(queue).join(name)).ok();
        read("queue").or_else(|| read("../queue")).map(|text| text.trim().to_owned())
    };
    let number = |name: &str| word(name)?.parse::<u64>().ok();
    let atomic = || {
        let [min_bytes, max_bytes] = ["atomic_write_unit_min_bytes", "atomic_write_unit_max_bytes"].map(number);
        Some(AtomicWrites { min_bytes: min_bytes?, max_bytes: max_bytes? })
    };
    let name = std::fs::canonicalize(dir).ok().filter(|target| target.is_dir());
    Capabilities {
        block_device: name.and_then(|target| Some(target.file_name()?.to_str()?.to_owned())),
        file_system: None,
        is_rotational: number("rotational").and_then(|is| [Some(false), Some(true)].get(is as usize).copied()?),
        write_cache: word("write_cache").and_then(|text| match text.as_str() {
            "write back" => Some(WriteCache::Back),
            "write through" => Some(WriteCache::Through),
            _ => None,
        }),
        logical_block_bytes: number("logical_block_size"),
        physical_block_bytes: number("physical_block_size"),
        discard_granularity_bytes: number("discard_granularity"),
        discard_max_bytes: number("discard_max_bytes"),
        write_zeroes_max_bytes: number("write_zeroes_max_bytes"),
        atomic_writes: atomic(),
    }
}

/// Returns the type of the file system on this device, by the mount table: `ID PARENT MAJOR:MINOR … - TYPE SOURCE …`.
fn file_system_of(mounts: &str, number: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let (_, tail) = line.split_once(" - ")?;
    tail.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory that looks like one of sysfs.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("basalt-sysfs-{}-{name}", std::process::id()));
            let tree = Tree(root);
            for (path, text) in files {
                let path = tree.0.join(path);
                std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                std::fs::write(path, format!("{text}\n")).expect("a file");
            }
            tree
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const DISK: [(&str, &str); 9] = [
        ("sdb/queue/rotational", "1"),
        ("sdb/queue/write_cache", "write back"),
        ("sdb/queue/logical_block_size", "512"),
        ("sdb/queue/physical_block_size", "4096"),
        ("sdb/queue/discard_granularity", "0"),
        ("sdb/queue/discard_max_bytes", "0"),
        ("sdb/queue/write_zeroes_max_bytes", "33554432"),
        ("sdb/queue/atomic_write_unit_min_bytes", "4096"),
        ("sdb/queue/atomic_write_unit_max_bytes", "65536"),
    ];

    #[test]
    fn device_has_what_sysfs_says_of_it() {
        let tree = Tree::new("disk", &DISK);
        let expected = Capabilities {
            block_device: Some("sdb".to_owned()),
            file_system: None,
            is_rotational: Some(true),
            write_cache: Some(WriteCache::Back),
            logical_block_bytes: Some(512),
            physical_block_bytes: Some(4096),
            discard_granularity_bytes: Some(0),
            discard_max_bytes: Some(0),
            write_zeroes_max_bytes: Some(32 << 20),
            atomic_writes: Some(AtomicWrites { min_bytes: 4096, max_bytes: 65536 }),
        };
        assert_eq!(device_at(&tree.0.join("sdb")), expected);
    }

    #[test]
    fn partition_has_the_queue_of_its_disk() {
        let tree = Tree::new("part", &[&DISK[..], &[("sdb/sdb1/size", "2048")]].concat());
        let found = device_at(&tree.0.join("sdb/sdb1"));
        assert_eq!((found.block_device.as_deref(), found.is_rotational), (Some("sdb1"), Some(true)));
    }

    #[test]
    fn what_sysfs_does_not_say_is_unknown() {
        assert_eq!(device_at(Path::new("/nowhere/8:16")), Capabilities::default());
        let odd =
            [("sdb/queue/rotational", "2"), ("sdb/queue/write_cache", "odd"), ("sdb/queue/discard_max_bytes", "")];
        let tree = Tree::new("odd", &odd);
        let found = device_at(&tree.0.join("sdb"));
        assert_eq!(found, Capabilities { block_device: Some("sdb".to_owned()), ..Capabilities::default() });
    }

    #[test]
    fn file_system_is_found_by_the_number_of_its_device() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n23 22 0:21 / /sys rw - sysfs sysfs rw\n";
        assert_eq!(file_system_of(mounts, "254:0").as_deref(), Some("ext4"));
        assert_eq!(file_system_of(mounts, "0:30"), None, "btrfs has a number for each subvolume");
    }
}
