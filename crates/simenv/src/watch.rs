//! Observation of the disks of a world: the writes submitted to each, and the bytes that would survive a power cut. And
//! of its network: the bytes that each node sends, with its disk as of that moment.
//!
//! It takes no operations, and calls its watchers at the moment of each event. Invariant: watching changes nothing, and
//! a watcher never calls the world.

use crate::disk::Disk;
use crate::world::{NodeId, World};
use env::DiskId;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use types::IoBuf;

/// Watcher of all disks.
pub trait DiskWatch {
    /// A write was submitted to a disk.
    fn submitted(&mut self, disk: (NodeId, DiskId), offset: u64, bufs: &[IoBuf]);

    /// The durable image may have grown: a flush has succeeded, or a write that needs none. Or the disk is about to be
    /// replaced.
    fn flushed(&mut self, disk: (NodeId, DiskId), durable: Durable<'_>);
}

/// Watcher of all connections.
pub trait NetWatch {
    /// A process submitted bytes to a connection. `durable` is the first disk of its node, if it has one.
    fn sent(&mut self, from: NodeId, to: NodeId, bufs: &[IoBuf], durable: Option<Durable<'_>>);
}

/// Image that a power cut would leave of a disk at least.
#[derive(Clone, Copy)]
pub struct Durable<'a>(pub(crate) &'a Disk);

impl<'a> Durable<'a> {
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.durable().read(offset, into);
    }

    /// Returns bytes that lie in one page of 4 KiB.
    ///
    /// # Panics
    /// When the range leaves its page.
    pub fn bytes(&self, offset: u64, len: usize) -> &'a [u8] {
        self.0.durable().bytes(offset, len)
    }

    /// Whether it has these bytes at `offset`.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        self.0.durable().holds(offset, bytes)
    }

    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    /// Whether the disk has silently lost, moved or changed acknowledged bytes around `offset`, and no write has
    /// covered the place since. The stored bytes then do not show what the disk's user could know.
    pub fn has_lied_at(&self, offset: u64) -> bool {
        self.0.has_lied_at(offset)
    }
}

impl World {
    /// Reports events of all disks to `watch`, too, from now on.
    pub fn watch_disks(&self, watch: Rc<RefCell<dyn DiskWatch>>) {
        self.state().watches.push(watch);
    }

    /// Reports all bytes that are sent to `watch`, too, from now on.
    pub fn watch_net(&self, watch: Rc<RefCell<dyn NetWatch>>) {
        self.state().net_watches.push(watch);
    }

    /// Passes the durable image of a disk to `look`.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn durable<R>(&self, node: NodeId, path: impl AsRef<Path>, look: impl FnOnce(Durable<'_>) -> R) -> R {
        let disk = self.disk_id(node, path.as_ref());
        let mut state = self.state();
        look(Durable(state.disk_mut(node, disk)))
    }
}
