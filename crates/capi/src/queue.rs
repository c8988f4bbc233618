//! A completion queue: requests are counted in when they are accepted and counted out when the program has taken their events.
//!
//! Invariant: a [`Ticket`] leaves exactly one event, whatever becomes of it; `depth` and [`QUEUE_BYTES_MAX`] bound what one queue
//! holds, in flight and finished. Data of reads reaches the program's buffers in [`Finished::deliver`], on the program's thread.

use crate::abi::{QUEUE_BYTES_MAX, QUEUE_DEPTH_MAX};
use crate::failure::Failure;
use crate::memory::Buffers;
use crate::os::EventFd;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{Errno, IoBuf};

/// A queue.
pub struct Queue {
    depth: usize,
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests in flight, and those whose event is not taken; with the bytes that they hold.
    held: usize,
    held_bytes: u64,
    done: VecDeque<Finished>,
    waiters: usize,
    /// The queue was destroyed. A call that had its handle before finds out here.
    is_closed: bool,
    /// Events were added since the last signal.
    is_signal_due: bool,
    /// Made when the program asks for it.
    fd: Option<EventFd>,
}

/// The end of a request, until the program takes it.
pub struct Finished {
    user: usize,
    bytes: u64,
    target: Option<Buffers>,
    result: Result<Vec<IoBuf>, Errno>,
}

/// A request in flight. It holds its place in the queue.
pub struct Ticket {
    queue: Arc<Queue>,
    user: usize,
    bytes: u64,
    target: Option<Buffers>,
    is_over: bool,
}

impl Queue {
    /// # Errors
    /// EINVAL for a depth out of range.
    pub fn new(depth: u32) -> Result<Arc<Queue>, Failure> {
        if !(1..=QUEUE_DEPTH_MAX).contains(&depth) {
            return Err(Failure::invalid(format!("depth is {depth}, not in 1..={QUEUE_DEPTH_MAX}")));
        }
        Ok(Arc::new(Queue { depth: depth as usize, state: Mutex::default(), ready: Condvar::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_open(&self) -> Result<MutexGuard<'_, State>, Failure> {
        let state = self.lock();
        match state.is_closed {
            true => Err(Failure::misuse(libc::EBADF, "the queue was destroyed")),
            false => Ok(state),
        }
    }

    /// Counts a request in. `bytes` is the memory that it holds; `target` gets the data of a read.
    ///
    /// # Errors
    /// EAGAIN when the queue is full, EBADF when it was destroyed. A request above the limit of bytes passes alone.
    pub fn admit(self: &Arc<Self>, user: usize, bytes: u64, target: Option<Buffers>) -> Result<Ticket, Failure> {
        let mut state = self.lock_open()?;
        let has_bytes = state.held_bytes == 0 || state.held_bytes + bytes <= QUEUE_BYTES_MAX;
        if state.held >= self.depth || !has_bytes {
            let (held, depth, bytes) = (state.held, self.depth, state.held_bytes);
            let what = format!("the queue is full: {held} of {depth} requests with {bytes} bytes; take events first");
            return Err(Failure::misuse(libc::EAGAIN, what));
        }
        state.held += 1;
        state.held_bytes += bytes;
        Ok(Ticket { queue: Arc::clone(self), user, bytes, target, is_over: false })
    }

    /// Wakes the threads that wait, and makes the descriptor readable, when events were added since the last signal.
    pub fn signal(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_signal_due) && !state.done.is_empty() {
            state.fd.iter().for_each(EventFd::set);
            if state.waiters > 0 {
                self.ready.notify_all();
            }
        }
    }

    /// Takes up to `max` events, the oldest first. Waits until `min` are there, for `patience` at most; `None`: for ever.
    ///
    /// # Errors
    /// EINVAL for numbers that cannot be met, EBADF when the queue was destroyed.
    pub fn take(&self, min: usize, max: usize, patience: Option<Duration>) -> Result<Vec<Finished>, Failure> {
        if max == 0 || min > max || min > self.depth {
            return Err(Failure::invalid(format!("min is {min} and max {max} for a queue of {}", self.depth)));
        }
        let mut state = self.lock_open()?;
        if state.done.len() < min {
            state.waiters += 1;
            let short = |state: &mut State| state.done.len() < min;
            state = match patience {
                None => self.ready.wait_while(state, short).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let waited = self.ready.wait_timeout_while(state, patience, short);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiters -= 1;
        }
        let count = state.done.len().min(max);
        let taken: Vec<Finished> = state.done.drain(..count).collect();
        state.held -= count;
        state.held_bytes -= taken.iter().map(|finished| finished.bytes).sum::<u64>();
        if state.done.is_empty() {
            state.fd.iter().for_each(EventFd::clear);
        }
        Ok(taken)
    }

    /// Returns the descriptor that is readable while events wait.
    ///
    /// # Errors
    /// When the system gives none, and EBADF when the queue was destroyed.
    pub fn descriptor(&self) -> Result<RawFd, Failure> {
        let mut state = self.lock_open()?;
        if state.fd.is_none() {
            let fd = EventFd::new()?;
            if !state.done.is_empty() {
                fd.set();
            }
            state.fd = Some(fd);
        }
        Ok(state.fd.as_ref().map_or(-1, EventFd::raw))
    }

    /// Destroys the queue: nothing enters it any more.
    ///
    /// # Errors
    /// EBUSY while a request is in flight or a thread waits, EBADF when it was destroyed. Events that were not taken do not matter.
    pub fn close(&self) -> Result<(), Failure> {
        let mut state = self.lock_open()?;
        let (flying, waiters) = (state.held - state.done.len(), state.waiters);
        if flying > 0 || waiters > 0 {
            let what = format!("{flying} requests are in flight on the queue, and {waiters} threads wait for it");
            return Err(Failure::misuse(libc::EBUSY, what));
        }
        state.is_closed = true;
        Ok(())
    }
}

impl Ticket {
    /// Ends the request: its event is in the queue. The caller signals the queue when it gets it back.
    pub fn finish(mut self, result: Result<Vec<IoBuf>, Errno>) -> Option<Arc<Queue>> {
        self.end(result).then(|| Arc::clone(&self.queue))
    }

    /// Gives the place in the queue back; there will be no event.
    pub fn cancel(mut self) {
        self.is_over = true;
        let mut state = self.queue.lock();
        state.held -= 1;
        state.held_bytes -= self.bytes;
    }

    /// Adds the event. Returns whether the queue has to be signalled, and no earlier event asked for that.
    fn end(&mut self, result: Result<Vec<IoBuf>, Errno>) -> bool {
        self.is_over = true;
        let finished = Finished { user: self.user, bytes: self.bytes, target: self.target.take(), result };
        let mut state = self.queue.lock();
        state.done.push_back(finished);
        !std::mem::replace(&mut state.is_signal_due, true)
    }
}

impl Drop for Ticket {
    /// A request that is dropped was given up: with its volume, or with the I/O thread.
    fn drop(&mut self) {
        if !self.is_over {
            self.end(Err(Errno::Shutdown));
            self.queue.signal();
        }
    }
}

impl Finished {
    /// Copies the data of a read into the program's buffers. Returns the pointer that the program gave, and the outcome.
    ///
    /// # Safety
    /// The buffers of the request are writable, and no other thread uses them.
    #[allow(unsafe_code)]
    pub unsafe fn deliver(self) -> (usize, Result<(), Errno>) {
        if let (Ok(pieces), Some(target)) = (&self.result, &self.target) {
            // SAFETY: the caller's promise.
            unsafe { target.scatter(pieces) };
        }
        (self.user, self.result.map(drop))
    }
}

/// Returns the result of an event.
pub fn result_of(outcome: Result<(), Errno>) -> c_int {
    outcome.map_or_else(|errno| -errno.os(), |()| 0)
}

#[cfg(test)]
mod tests {
    use super::{Finished, QUEUE_BYTES_MAX, Queue};
    use std::sync::Arc;
    use std::time::Duration;
    use types::Errno;

    fn users(taken: Vec<Finished>) -> Vec<(usize, bool)> {
        taken.into_iter().map(|finished| (finished.user, finished.result.is_ok())).collect()
    }

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn every_ticket_leaves_one_event_and_frees_its_place_when_that_is_taken() {
        let queue = Queue::new(3).expect("a queue");
        let admit = |user| queue.admit(user, 4096, None);
        let (first, second, third) = (admit(1).expect("room"), admit(2).expect("room"), admit(3).expect("room"));
        assert_eq!(admit(4).err().map(|full| full.errno), Some(libc::EAGAIN));
        assert_eq!(queue.close().expect_err("in flight").errno, libc::EBUSY);
        assert!(second.finish(Ok(Vec::new())).is_some(), "the first event asks for a signal");
        drop(first);
        assert!(admit(4).is_err(), "events that are not taken count");
        third.cancel();
        assert_eq!(users(queue.take(2, 9, NOW).expect("two")), [(2, true), (1, false)]);
        assert!(queue.take(1, 9, NOW).expect("none").is_empty());
        assert!(admit(4).is_ok_and(|ticket| ticket.finish(Err(Errno::NoSpace)).is_some()));
        for (min, max) in [(0, 0), (2, 1), (4, 9)] {
            assert!(queue.take(min, max, NOW).is_err(), "{min} {max}");
        }
    }

    #[test]
    fn destroyed_queue_takes_no_request_and_keeps_no_thread_waiting() {
        let queue = Queue::new(1).expect("a queue");
        drop(queue.admit(1, 0, None).expect("room"));
        queue.close().expect("an event that was not taken does not matter");
        let refused = [queue.admit(2, 0, None).err(), queue.take(1, 1, None).err(), queue.descriptor().err()];
        assert!(refused.iter().flatten().filter(|why| why.errno == libc::EBADF).count() == 3, "{refused:?}");
        assert_eq!(queue.close().expect_err("twice").errno, libc::EBADF);
    }

    #[test]
    fn bytes_bound_a_queue_and_a_large_request_passes_alone() {
        let queue = Queue::new(64).expect("a queue");
        let large = queue.admit(1, 2 * QUEUE_BYTES_MAX, None).expect("alone");
        assert!(queue.admit(2, 1, None).is_err());
        drop(large);
        queue.take(1, 1, None).expect("taken");
        let half = queue.admit(3, QUEUE_BYTES_MAX / 2, None).expect("room");
        let rest = queue.admit(4, QUEUE_BYTES_MAX / 2, None).expect("room");
        assert!(queue.admit(5, 1, None).is_err());
        drop((half, rest));
    }

    #[test]
    fn a_waiting_thread_wakes_when_enough_events_are_there() {
        let queue = Queue::new(2).expect("a queue");
        let tickets = [1, 2].map(|user| queue.admit(user, 0, None).expect("room"));
        let waiter = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.take(2, 2, None).expect("two").len()
        });
        for ticket in tickets {
            if let Some(queue) = ticket.finish(Ok(Vec::new())) {
                queue.signal();
            }
        }
        assert_eq!(waiter.join().expect("it ends"), 2);
        assert!(queue.take(1, 1, Some(Duration::from_millis(1))).expect("late").is_empty());
    }

    #[test]
    fn a_depth_out_of_range_is_refused() {
        assert!([0, 65_537].into_iter().all(|depth| Queue::new(depth).is_err()));
    }
}
