//! The ring itself: it is built here, takes entries, enters the kernel once a turn, and returns completions.
//!
//! It takes entries whose memory the caller keeps until their completion, and returns [`Cqe`]s. Invariant: a linked
//! pair is always passed to the kernel in one submission, because a chain ends where a submission ends. Should the
//! kernel (out of memory) take only part of a submission that has pairs, a flush may run apart from its write: then the
//! ring is broken, and every later entry reports that.

use crate::op::EnvError;
use io_uring::{EnterFlags, IoUring, squeue, types as uring};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

/// Longest duration of one entry into the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// Collect the completions that are there.
    No,
    /// Wait until a completion is there, at most this long.
    AtMost(Duration),
    /// Wait until a completion is there.
    Forever,
}

pub(super) struct Ring {
    uring: IoUring,
    /// Completions taken out early, because the kernel needed space for new ones.
    stash: VecDeque<Cqe>,
    /// Linked pairs that the kernel has not taken yet.
    pairs_queued: usize,
    broken: bool,
    /// A linked write that succeeds brings no completion of its own (Linux 5.17).
    quiet_links: bool,
    /// Number of kernel entries.
    pub entries: u64,
}

impl Ring {
    pub fn new(entries: u32) -> Result<Ring, EnvError> {
        let mut refusal = None;
        for level in 0..3 {
            match build(entries, level) {
                Ok(uring) if uring.params().is_feature_ext_arg() && uring.params().is_feature_nodrop() => {
                    let quiet_links = uring.params().is_feature_skip_cqe_on_success();
                    let (stash, pairs_queued) = (VecDeque::new(), 0);
                    return Ok(Ring { uring, stash, pairs_queued, broken: false, quiet_links, entries: 0 });
                }
                Ok(_) => refusal = Some(io::Error::from_raw_os_error(libc::ENOSYS)),
                Err(e) => refusal = Some(e),
            }
            if refusal.as_ref().and_then(io::Error::raw_os_error) != Some(libc::EINVAL) {
                break;
            }
        }
        let source = refusal.expect("a ring that was not built has a reason");
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL) => Err(EnvError::NoIoUring { source }),
            _ => Err(EnvError::Ring(source)),
        }
    }

    /// Queues an entry; it leaves with the next [`Ring::enter`].
    ///
    /// The caller keeps every byte that the entry points to until its completion.
    pub fn push(&mut self, entry: &squeue::Entry) -> Result<(), EnvError> {
        self.make_room(1)?;
        // SAFETY: callers keep the memory and the descriptor of the entry alive until its completion came
        // (the slab of flights owns them; `RealEnv::drop` waits for all).
        let pushed = unsafe { self.uring.submission().push(entry) };
        assert!(pushed.is_ok(), "room was made for one entry");
        Ok(())
    }

    /// Queues two entries side by side; the first one carries the link flag.
    pub fn push_pair(&mut self, pair: &[squeue::Entry; 2]) -> Result<(), EnvError> {
        self.make_room(2)?;
        // SAFETY: as in `push`.
        let pushed = unsafe { self.uring.submission().push_multiple(pair) };
        assert!(pushed.is_ok(), "room was made for two entries");
        self.pairs_queued += 1;
        Ok(())
    }

    /// Whether the first of a pair may skip its completion.
    pub fn quiet_links(&self) -> bool {
        self.quiet_links
    }

    /// Submits the queue and waits as `wait` says; a signal or a passed timeout returns without completions.
    pub fn enter(&mut self, wait: Wait) -> Result<(), EnvError> {
        if self.broken {
            return Err(EnvError::Ring(io::ErrorKind::BrokenPipe.into()));
        }
        let wait = if self.stash.is_empty() { wait } else { Wait::No };
        let timespec = match wait {
            Wait::AtMost(d) => uring::Timespec::new().sec(d.as_secs()).nsec(d.subsec_nanos()),
            Wait::No | Wait::Forever => uring::Timespec::new(),
        };
        let mut args = uring::SubmitArgs::new();
        if matches!(wait, Wait::AtMost(_)) {
            args = args.timespec(&timespec);
        }
        let want = u32::from(!matches!(wait, Wait::No));
        let queued = self.uring.submission().len();
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        self.entries += 1;
        // SAFETY: `args` is the structure that EXT_ARG announces, and outlives the call with what it points to.
        let entered = unsafe { self.uring.submitter().enter(queued as u32, want, flags.bits(), Some(&args)) };
        match entered {
            Ok(taken) if taken < queued && self.pairs_queued > 0 => {
                self.broken = true;
                Err(EnvError::Ring(io::ErrorKind::OutOfMemory.into()))
            }
            Ok(_) => {
                self.pairs_queued = 0;
                Ok(())
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // Request memory is exhausted, or completions overflow: no entry was taken. The caller takes
                // completions and enters again.
                Some(libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(EnvError::Ring(e)),
            },
        }
    }

    /// Whether completions can be taken.
    pub fn has_completions(&mut self) -> bool {
        !self.stash.is_empty() || !self.uring.completion().is_empty()
    }

    /// Moves all completions that are there to `out`.
    pub fn drain(&mut self, out: &mut Vec<Cqe>) {
        out.extend(self.stash.drain(..));
        out.extend(self.uring.completion().map(|c| Cqe {
            user_data: c.user_data(),
            result: c.result(),
            flags: c.flags(),
        }));
    }

    /// Submits without waiting until `entries` fit.
    fn make_room(&mut self, entries: usize) -> Result<(), EnvError> {
        loop {
            let queue = self.uring.submission();
            if queue.capacity() - queue.len() >= entries {
                return Ok(());
            }
            drop(queue);
            self.enter(Wait::No)?;
            let arrived =
                self.uring.completion().map(|c| Cqe { user_data: c.user_data(), result: c.result(), flags: c.flags() });
            self.stash.extend(arrived);
        }
    }
}

/// Builds a ring. Level 0 has all wanted features; higher levels drop those that older kernels lack.
fn build(entries: u32, level: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_cqsize(entries.saturating_mul(4));
    if level == 0 {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    if level <= 1 {
        builder.setup_coop_taskrun().setup_submit_all();
    }
    builder.build(entries)
}
