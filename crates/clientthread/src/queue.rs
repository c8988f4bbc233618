//! A completion queue: requests are counted in when they are accepted and counted out when the program has taken their
//! completions.
//!
//! Invariant: a [`Ticket`] leaves exactly one completion, whatever becomes of it; `depth` and [`QUEUE_BYTES_MAX`] bound what one
//! queue holds, in flight and finished.

use crate::failure::Failure;
use device::Answer;
use env::real::embed::EventFd;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::Errno;

/// Largest depth of a queue.
pub const QUEUE_DEPTH_MAX: u32 = 65_536;
/// Bytes of reads and writes that a queue holds: in flight, and not taken. A larger request passes alone.
pub const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// A queue. It serves any number of volumes, and any number of threads may take from it.
pub struct Queue<T = u64> {
    depth: usize,
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    /// Requests in flight, and those whose completion is not taken; with the bytes that they hold.
    held: usize,
    held_bytes: u64,
    done: VecDeque<Finished<T>>,
    waiters: usize,
    /// The queue was destroyed. A call that had its handle before finds out here.
    is_closed: bool,
    /// Events were added since the last signal.
    is_signal_due: bool,
    /// Made when the program asks for it.
    fd: Option<EventFd>,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Finished<T = u64> {
    /// The tag that the program gave.
    pub tag: T,
    /// The answer: the bytes of a read, extents, or nothing for the other requests. Or why the request failed.
    pub result: Result<Answer, Errno>,
    bytes: u64,
}

/// A request in flight. It holds its place in the queue.
pub struct Ticket<T = u64> {
    queue: Arc<Queue<T>>,
    /// `None` when the request has ended.
    tag: Option<T>,
    bytes: u64,
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    /// Makes a queue for at most `depth` requests: in flight, or finished and not taken.
    ///
    /// # Errors
    /// EINVAL for a depth that is 0 or above [`QUEUE_DEPTH_MAX`].
    pub fn new(depth: u32) -> Result<Arc<Queue<T>>, Failure> {
        if !(1..=QUEUE_DEPTH_MAX).contains(&depth) {
            return Err(Failure::invalid(format!("depth is {depth}, not in 1..={QUEUE_DEPTH_MAX}")));
        }
        let state = State {
            held: 0,
            held_bytes: 0,
            done: VecDeque::new(),
            waiters: 0,
            is_closed: false,
            is_signal_due: false,
            fd: None,
        };
        Ok(Arc::new(Queue { depth: depth as usize, state: Mutex::new(state), ready: Condvar::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_open(&self) -> Result<MutexGuard<'_, State<T>>, Failure> {
        let state = self.lock();
        match state.is_closed {
            true => Err(Failure::misuse(libc::EBADF, "the queue was destroyed")),
            false => Ok(state),
        }
    }

    /// Counts a request in. `bytes` is the memory that it holds: the length of a read or a write.
    ///
    /// # Errors
    /// EAGAIN when the queue is full, EBADF when it was closed. A request above the limit of bytes passes alone.
    pub fn admit(self: &Arc<Self>, tag: T, bytes: u64) -> Result<Ticket<T>, Failure> {
        let mut state = self.lock_open()?;
        let has_bytes = state.held_bytes == 0 || state.held_bytes + bytes <= QUEUE_BYTES_MAX;
        if state.held >= self.depth || !has_bytes {
            let (held, depth, bytes) = (state.held, self.depth, state.held_bytes);
            let what = format!("the queue is full: {held} of {depth} requests with {bytes} bytes; take events first");
            return Err(Failure::misuse(libc::EAGAIN, what));
        }
        state.held += 1;
        state.held_bytes += bytes;
        Ok(Ticket { queue: Arc::clone(self), tag: Some(tag), bytes })
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

    /// Takes up to `max` completions, the oldest first. Waits until `min` are there, for `patience` at most; `None`: for ever. It
    /// waits also when nothing is in flight, because another thread may submit.
    ///
    /// # Errors
    /// EINVAL for numbers that cannot be met, EBADF when the queue was closed.
    pub fn take(&self, min: usize, max: usize, patience: Option<Duration>) -> Result<Vec<Finished<T>>, Failure> {
        if max == 0 || min > max || min > self.depth {
            return Err(Failure::invalid(format!("min is {min} and max {max} for a queue of {}", self.depth)));
        }
        let mut state = self.lock_open()?;
        if state.done.len() < min {
            state.waiters += 1;
            let short = |state: &mut State<T>| state.done.len() < min;
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
        let taken: Vec<Finished<T>> = state.done.drain(..count).collect();
        state.held -= count;
        state.held_bytes -= taken.iter().map(|finished| finished.bytes).sum::<u64>();
        if state.done.is_empty() {
            state.fd.iter().for_each(EventFd::clear);
        }
        Ok(taken)
    }

    /// Returns the descriptor, an eventfd, that is readable while completions wait. The queue owns it.
    ///
    /// # Errors
    /// When the system gives none, and EBADF when the queue was closed.
    pub fn descriptor(&self) -> Result<RawFd, Failure> {
        let mut state = self.lock_open()?;
        if state.fd.is_none() {
            let fd = EventFd::new().map_err(|error| Failure::of_system("no eventfd", &error))?;
            if !state.done.is_empty() {
                fd.set();
            }
            state.fd = Some(fd);
        }
        Ok(state.fd.as_ref().map_or(-1, EventFd::raw))
    }

    /// Closes the queue: nothing enters it any more.
    ///
    /// # Errors
    /// EBUSY while a request is in flight or a thread waits, EBADF when it was closed. Completions that were not taken do not
    /// matter.
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

impl<T> Ticket<T> {
    /// Ends the request: its completion is in the queue. The caller signals the queue when it gets it back.
    pub fn finish(mut self, result: Result<Answer, Errno>) -> Option<Arc<Queue<T>>> {
        self.end(result).then(|| Arc::clone(&self.queue))
    }

    /// Gives the place in the queue back; there will be no completion.
    pub fn cancel(mut self) {
        self.tag = None;
        let mut state = self.queue.lock();
        state.held -= 1;
        state.held_bytes -= self.bytes;
    }

    /// Adds the completion. Returns whether the queue has to be signalled, and no earlier completion asked for that.
    fn end(&mut self, result: Result<Answer, Errno>) -> bool {
        let Some(tag) = self.tag.take() else { return false };
        let finished = Finished { tag, bytes: self.bytes, result };
        let mut state = self.queue.lock();
        state.done.push_back(finished);
        !std::mem::replace(&mut state.is_signal_due, true)
    }
}

impl<T> Drop for Ticket<T> {
    /// A request that is dropped was given up: with its volume, or with the I/O thread.
    fn drop(&mut self) {
        if self.tag.is_some() {
            self.end(Err(Errno::Shutdown));
            self.queue.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Finished, QUEUE_BYTES_MAX, Queue};
    use std::sync::Arc;
    use std::time::Duration;
    use types::Errno;

    fn users(taken: Vec<Finished>) -> Vec<(u64, bool)> {
        taken.into_iter().map(|finished| (finished.tag, finished.result.is_ok())).collect()
    }

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn every_ticket_leaves_one_event_and_frees_its_place_when_that_is_taken() {
        let queue = Queue::new(3).expect("a queue");
        let admit = |user| queue.admit(user, 4096);
        let (first, second, third) = (admit(1).expect("room"), admit(2).expect("room"), admit(3).expect("room"));
        assert_eq!(admit(4).err().map(|full| full.errno), Some(libc::EAGAIN));
        assert_eq!(queue.close().expect_err("in flight").errno, libc::EBUSY);
        assert!(second.finish(Ok(device::Answer::Done)).is_some(), "the first event asks for a signal");
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
        drop(queue.admit(1, 0).expect("room"));
        queue.close().expect("an event that was not taken does not matter");
        let refused = [queue.admit(2, 0).err(), queue.take(1, 1, None).err(), queue.descriptor().err()];
        assert!(refused.iter().flatten().filter(|why| why.errno == libc::EBADF).count() == 3, "{refused:?}");
        assert_eq!(queue.close().expect_err("twice").errno, libc::EBADF);
    }

    #[test]
    fn bytes_bound_a_queue_and_a_large_request_passes_alone() {
        let queue = Queue::new(64).expect("a queue");
        let large = queue.admit(1, 2 * QUEUE_BYTES_MAX).expect("alone");
        assert!(queue.admit(2, 1).is_err());
        drop(large);
        queue.take(1, 1, None).expect("taken");
        let half = queue.admit(3, QUEUE_BYTES_MAX / 2).expect("room");
        let rest = queue.admit(4, QUEUE_BYTES_MAX / 2).expect("room");
        assert!(queue.admit(5, 1).is_err());
        drop((half, rest));
    }

    #[test]
    fn a_waiting_thread_wakes_when_enough_events_are_there() {
        let queue = Queue::new(2).expect("a queue");
        let tickets = [1, 2].map(|user| queue.admit(user, 0).expect("room"));
        let waiter = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.take(2, 2, None).expect("two").len()
        });
        for ticket in tickets {
            if let Some(queue) = ticket.finish(Ok(device::Answer::Done)) {
                queue.signal();
            }
        }
        assert_eq!(waiter.join().expect("it ends"), 2);
        assert!(queue.take(1, 1, Some(Duration::from_millis(1))).expect("late").is_empty());
    }

    #[test]
    fn a_depth_out_of_range_is_refused() {
        assert!([0, 65_537].into_iter().all(|depth| Queue::<u64>::new(depth).is_err()));
    }
}
