//! Services for a library inside a foreign program: `fork` is noticed, signals stay with the program's threads, an eventfd
//! tells of completions.
//!
//! The client libraries for C and Python use them. Invariant: the process of the program keeps its signal masks and handlers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process is a child of one that had a cluster handle.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Notices every later `fork` of this process.
pub fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler stores one flag, which is allowed between fork and exec. The libraries are never unloaded (their build.rs).
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(result, 0, "ENOMEM is its only error");
    });
}

/// Whether this process was forked from one with a cluster handle: threads are missing, and locks may be held for ever.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Blocks all signals of this thread while it lives. Threads that start meanwhile inherit that, so the program's handlers never
/// run on a thread of the library.
#[derive(Debug)]
pub struct SignalsBlocked(libc::sigset_t);

#[allow(clippy::new_without_default, reason = "the value is an effect, and no default of anything")]
impl SignalsBlocked {
    /// Blocks them until the value is dropped.
    pub fn new() -> SignalsBlocked {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are large enough and live through the calls. `sigfillset` and `pthread_sigmask` with a known `how`
        // fail for bad pointers only, so both sets are initialised afterwards.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            SignalsBlocked(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the earlier mask of this thread: the guard is neither `Send` by use nor kept beyond a call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// An eventfd that is readable or not; it never blocks.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// # Errors
    /// EMFILE and its like.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to this value alone.
        Ok(EventFd(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Returns the descriptor, which this value owns.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable. A full counter is readable already.
    pub fn set(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes it unreadable. Without a count it is unreadable already.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::{EventFd, SignalsBlocked};

    fn is_readable(fd: &EventFd) -> bool {
        let mut poll = libc::pollfd { fd: fd.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives through the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn an_eventfd_is_readable_from_set_until_clear() {
        let fd = EventFd::new().expect("a descriptor");
        assert!(!is_readable(&fd));
        fd.set();
        fd.set();
        assert!(is_readable(&fd));
        fd.clear();
        assert!(!is_readable(&fd));
    }

    #[test]
    fn a_thread_inherits_blocked_signals_and_its_parent_gets_its_own_back() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
            status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).expect("SigBlk").to_owned()
        };
        let before = blocked();
        let guard = SignalsBlocked::new();
        let inside = std::thread::spawn(blocked).join().expect("it ends");
        drop(guard);
        assert_eq!(blocked(), before);
        // SIGKILL and SIGSTOP cannot be blocked, and the C library keeps 32 and 33 for itself.
        let mask = u64::from_str_radix(&inside, 16).expect("hexadecimal");
        let term = 1 << (libc::SIGTERM - 1) | 1 << (libc::SIGINT - 1) | 1 << (libc::SIGUSR1 - 1);
        assert_eq!(mask & term, term, "{inside}");
    }
}
