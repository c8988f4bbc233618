//! The poison mark (R15, ADR 0006): a process leaves it when its store fails, and later mounts honour it.
//!
//! [`Engine::poison`] calls this file when it has stopped everything; a mount passes in the page that it read.
//!
//! Both devices of a store with a log of its own get the mark: the one that has failed may not take it. The mark of an older copy is
//! on the device of the log, whose position tells it.
//!
//! Invariant: a store with a readable mark is not mounted unless an administrator allows it. Acknowledged writes do not
//! depend on the mark: the device that should store it has just failed.

use crate::api::MountError;
use crate::engine::{Engine, key};
use env::Op;
use layout::poison::{BEHIND_AT, POISON_AT, POISON_LEN};
use types::IoBuf;
use types::planted::{Bug, on};

impl Engine {
    /// Writes the mark, once and as best effort: its completion is ignored.
    pub(crate) fn leave_mark(&mut self, reason: &str) {
        let (_, _, uuid) = self.identity;
        let page = IoBuf::copy_of(&layout::poison::encode(uuid, reason));
        self.push_mark(page, true);
    }

    /// Erases the mark, as the administrator allowed; the flush after the mount's rewrites makes that durable.
    pub(crate) fn erase_mark(&mut self) {
        self.push_mark(IoBuf::zeros(POISON_LEN), false);
    }

    /// Erases the mark of an older copy: the replicas of the device have failed, durably, and meta knows
    /// (ADR 0012). With a mark that stays the next start would fail the new replicas, too. So a failed write of it poisons the
    /// store, as any other does.
    pub fn erase_behind_mark(&mut self) {
        let token = self.token(key::BEHIND, u32::MAX);
        self.stats.device_written_bytes += POISON_LEN as u64;
        let bufs = vec![IoBuf::zeros(POISON_LEN)];
        self.ops.push(Op::DiskWrite { token, disk: self.disks.log.id, offset: BEHIND_AT, bufs, flush: true });
    }

    fn push_mark(&mut self, page: IoBuf, flush: bool) {
        let key = if flush { key::POISON } else { key::MOUNT_REWRITE };
        let token = self.token(key, u32::MAX);
        for (disk, _) in self.disks.each() {
            self.stats.device_written_bytes += POISON_LEN as u64;
            let bufs = vec![page.clone()];
            self.ops.push(Op::DiskWrite { token, disk: disk.id, offset: POISON_AT, bufs, flush });
        }
    }

    /// Whether this mount may go on, given the page of the mark; `None`: the page could not be read.
    pub(crate) fn check_mark(&self, page: Option<&[u8]>) -> Result<(), MountError> {
        let (_, _, uuid) = self.identity;
        match page.and_then(|page| layout::poison::decode(page, uuid)) {
            Some(reason) if !self.config.after_poison && !on(Bug::PoisonForgotten) => {
                Err(MountError::Poisoned { reason })
            }
            _ => Ok(()),
        }
    }
}
