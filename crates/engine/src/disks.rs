//! The devices of an OSD: one that holds log and home, or one for each.
//!
//! Invariant: a flush of one device makes nothing durable on the other. So every place that needs both durable flushes both.

use env::DiskInfo;
use layout::superblock::Part;

/// Opened devices of one OSD.
#[derive(Clone, Debug)]
pub struct Disks {
    pub home: DiskInfo,
    /// The same as `home`, unless the log has a device of its own.
    pub log: DiskInfo,
}

impl From<DiskInfo> for Disks {
    fn from(disk: DiskInfo) -> Disks {
        Disks { home: disk.clone(), log: disk }
    }
}

impl From<&DiskInfo> for Disks {
    fn from(disk: &DiskInfo) -> Disks {
        Disks::from(disk.clone())
    }
}

impl Disks {
    /// Whether log and home are on two devices.
    pub fn are_apart(&self) -> bool {
        self.home.id != self.log.id
    }

    /// Returns the devices with what each of them holds; that of the log is first.
    pub fn each(&self) -> Vec<(&DiskInfo, Part)> {
        match self.are_apart() {
            true => vec![(&self.log, Part::Log), (&self.home, Part::Home)],
            false => vec![(&self.log, Part::Whole)],
        }
    }
}
