//! The mark of the poison (R15, ADR 0006): left by the life that fails, honoured by the next ones.
//!
//! [`Engine::poison`] comes in when it has stopped everything; a mount comes in with the page that it read.
//!
//! Invariant: a store whose mark can be read is not mounted without a person's word. What is acknowledged does not
//! depend on the mark: the device that should keep it has just failed.

use crate::api::MountError;
use crate::engine::{Engine, key};
use env::Op;
use layout::poison::{BEHIND_AT, POISON_AT, POISON_LEN};
use types::IoBuf;
use types::planted::{Bug, on};

impl Engine {
    /// Best effort, once; nobody waits for it.
    pub(crate) fn leave_mark(&mut self, reason: &str) {
        let (_, _, uuid) = self.identity;
        let page = IoBuf::copy_of(&layout::poison::encode(uuid, reason));
        self.push_mark(page, true);
    }

    /// The person's word is kept by the flush that the mount ends its rewrites with.
    pub(crate) fn erase_mark(&mut self) {
        self.push_mark(IoBuf::zeros(POISON_LEN), false);
    }

    /// The replicas of a restored device are in doubt, durably, and meta knows (ADR 0012): its mark goes. A mark that stays
    /// only costs another start with the same word.
    pub fn erase_behind_mark(&mut self) {
        let token = self.token(key::BEHIND, u32::MAX);
        self.stats.device_written_bytes += POISON_LEN as u64;
        let bufs = vec![IoBuf::zeros(POISON_LEN)];
        self.ops.push(Op::DiskWrite { token, disk: self.disk.id, offset: BEHIND_AT, bufs, flush: true });
    }

    fn push_mark(&mut self, page: IoBuf, flush: bool) {
        let key = if flush { key::POISON } else { key::MOUNT_REWRITE };
        let token = self.token(key, u32::MAX);
        self.stats.device_written_bytes += POISON_LEN as u64;
        self.ops.push(Op::DiskWrite { token, disk: self.disk.id, offset: POISON_AT, bufs: vec![page], flush });
    }

    /// Whether this mount may go on, given the page where a mark would be; `None`: it could not be read.
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
