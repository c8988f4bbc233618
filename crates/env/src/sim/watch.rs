//! An observer's eye on the disks of a world: what is handed to each, and what would survive a power cut.
//!
//! Comes in: nothing from rooms. Goes out: calls at the moment when it happens. Invariant: watching changes
//! nothing, and a watcher never calls the world.

use super::disk::Disk;
use super::world::{NodeId, World};
use crate::op::DiskId;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use types::IoBuf;

/// Hears of all disks.
pub trait DiskWatch {
    /// A write was handed to a disk.
    fn submitted(&mut self, disk: (NodeId, DiskId), offset: u64, bufs: &[IoBuf]);

    /// What is durable may have grown: a flush has succeeded, or a write that needs none; or the disk is about
    /// to be replaced.
    fn flushed(&mut self, disk: (NodeId, DiskId), durable: Durable<'_>);
}

/// What a power cut would leave of a disk at least.
#[derive(Clone, Copy)]
pub struct Durable<'a>(pub(super) &'a Disk);

impl Durable<'_> {
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.peek_durable(offset, into);
    }

    /// Whether the disk has taken back, moved or changed what it acknowledged around there, and was written there no more:
    /// what it holds says nothing of what its user could know.
    pub fn has_lied_at(&self, offset: u64) -> bool {
        self.0.has_lied_at(offset)
    }
}

impl World {
    /// From now on `watch` hears of all disks.
    pub fn watch_disks(&self, watch: Rc<RefCell<dyn DiskWatch>>) {
        self.state().watch = Some(watch);
    }

    /// What is durable on a disk now.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn durable<R>(&self, node: NodeId, path: impl AsRef<Path>, look: impl FnOnce(Durable<'_>) -> R) -> R {
        let disk = self.disk_id(node, path.as_ref());
        let mut state = self.state();
        look(Durable(state.disk_mut(node, disk)))
    }
}
