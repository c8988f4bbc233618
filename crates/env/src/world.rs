//! The trait through which a loop runs its turns.

use crate::op::{DiskInfo, DiskSpec, EnvError, Event, ListenerId, NetAddr, Op};
use std::sync::Arc;
use types::Time;

/// The outside world of one data-plane thread.
pub trait Env {
    /// CLOCK_BOOTTIME of this node; read again at every call.
    fn now(&self) -> Time;

    /// 64 random bits.
    fn random(&mut self) -> u64;

    /// 128 random bits for a key. The real form takes all of them from the kernel; [`Env::random`] has only a seed of 64 bits.
    ///
    /// # Errors
    /// When the kernel gives none.
    fn secret(&mut self) -> Result<[u8; 16], EnvError>;

    /// Submits all of `ops` (leaving it empty), waits until an event is there or `deadline` has come (`Time::NEVER`: no
    /// deadline; a past one: do not wait), and appends *all* events that have arrived. The simulated form never waits:
    /// the simulator decides when a node has its next turn.
    ///
    /// # Errors
    /// When the ring itself fails; the process cannot go on.
    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, deadline: Time) -> Result<(), EnvError>;

    /// Opens and locks a disk.
    ///
    /// # Errors
    /// An [`EnvError`] with the path.
    fn open_disk(&mut self, spec: &DiskSpec) -> Result<DiskInfo, EnvError>;

    /// Listens; accepted connections come as [`Event::Accepted`] until the env is dropped. Returns the bound address (a
    /// TCP port 0 is replaced by the chosen one).
    ///
    /// # Errors
    /// When the address is in use or not of this node.
    fn listen(&mut self, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError>;

    /// Returns the number of kernel entries so far: the cost of all turns. The simulated form has none.
    fn kernel_entries(&self) -> u64 {
        0
    }

    /// Returns a handle by which other threads make `turn` return with [`Event::Woken`].
    fn waker(&self) -> Waker;
}

/// Wakes the loop from another thread (the control plane's queues). It is cheap to clone; wakes coalesce.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}
