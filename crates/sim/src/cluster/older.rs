//! Devices that get an earlier state back.

use crate::cluster::{Cluster, DEVICE};
use std::collections::BTreeSet;

/// Bytes of the pages in which a device is copied.
const PAGE: usize = 4096;

/// The state of a device at one moment.
pub struct Older {
    /// Number of the mount that was the last one.
    mount: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Cluster {
    /// Copies the device of the i-th OSD, whose process does not run. `None` when meta does not know the OSD.
    pub fn copy_device(&self, i: usize) -> Option<Older> {
        let mount = self.known_mount(i)?;
        let image = self.image(i);
        let page = |at: u64| {
            let mut bytes = vec![0; PAGE];
            image.read(at, &mut bytes);
            (at, bytes)
        };
        Some(Older { mount, pages: image.stored_pages(0, image.size_bytes()).into_iter().map(page).collect() })
    }

    /// Whether meta knows of a mount behind the copy.
    pub fn is_known_newer(&self, i: usize, older: &Older) -> bool {
        self.known_mount(i).is_some_and(|mount| mount > older.mount)
    }

    /// Puts the copy in the place of the i-th OSD's device.
    pub fn put_device_back(&mut self, i: usize, older: &Older) {
        let image = self.world.disk_image(self.osd_node(i), DEVICE);
        let kept: BTreeSet<u64> = older.pages.iter().map(|(at, _)| *at).collect();
        let now = image.stored_pages(0, image.size_bytes());
        now.into_iter().filter(|at| !kept.contains(at)).for_each(|at| image.write(at, &[0; PAGE]));
        older.pages.iter().for_each(|(at, bytes)| image.write(*at, bytes));
    }

    fn known_mount(&self, i: usize) -> Option<u64> {
        Some(self.meta.records()?.osds.get(&self.osds[i].id)?.mount)
    }
}
