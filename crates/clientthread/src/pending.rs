//! An answer that is still to come, for callers that wait in pieces, from several threads.
//!
//! Invariant: an answer is taken once. It is dropped when the [`Pending`] was dropped or abandoned, and never while a lock is held:
//! the drop of a volume sends a command.

use crate::failure::Failure;
use env::real::embed;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

enum State<A> {
    Waiting,
    Answered(Result<A, Failure>),
    /// The answer was taken, or there will be none.
    Ended,
    /// The program does not wait any more.
    Abandoned,
}

struct Slot<A> {
    state: Mutex<State<A>>,
    changed: Condvar,
}

impl<A> Slot<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a slot that waits, or has an answer, to its end. Returns the answer.
    fn end(&self, as_state: State<A>) -> Option<Result<A, Failure>> {
        let mut state = self.lock();
        if matches!(*state, State::Ended | State::Abandoned) {
            return None;
        }
        let before = std::mem::replace(&mut *state, as_state);
        drop(state);
        self.changed.notify_all();
        if let State::Answered(answer) = before { Some(answer) } else { None }
    }
}

/// The last sender of a slot: its drop tells that there will be no answer.
struct Sender<A>(Arc<Slot<A>>);

impl<A> Drop for Sender<A> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if matches!(*state, State::Waiting) {
            *state = State::Ended;
            self.0.changed.notify_all();
        }
    }
}

/// Where the answer to a command goes; it has room for one.
pub(crate) struct Reply<A>(Arc<Sender<A>>);

impl<A> Clone for Reply<A> {
    fn clone(&self) -> Reply<A> {
        Reply(Arc::clone(&self.0))
    }
}

impl<A> Reply<A> {
    /// Whether the program still waits for the answer.
    pub fn is_awaited(&self) -> bool {
        matches!(*self.0.0.lock(), State::Waiting)
    }

    /// Gives the answer.
    ///
    /// # Errors
    /// The answer, when the program does not wait for it.
    pub fn try_send(&self, answer: Result<A, Failure>) -> Result<(), Result<A, Failure>> {
        let mut state = self.0.0.lock();
        if !matches!(*state, State::Waiting) {
            return Err(answer);
        }
        *state = State::Answered(answer);
        self.0.0.changed.notify_all();
        Ok(())
    }
}

/// The answer to a command. When it is dropped, the command goes on, and its answer is dropped with what belongs to it: a volume
/// that was opened is closed.
pub struct Pending<A> {
    slot: Arc<Slot<A>>,
    /// Failure when the thread ends without an answer.
    lost: Failure,
}

impl<A> fmt::Debug for Pending<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl<A> Pending<A> {
    /// Returns the place of the answer, and what waits for it. `lost` is the failure when there will be none.
    pub(crate) fn new(lost: Failure) -> (Reply<A>, Pending<A>) {
        let slot = Arc::new(Slot { state: Mutex::new(State::Waiting), changed: Condvar::new() });
        (Reply(Arc::new(Sender(Arc::clone(&slot)))), Pending { slot, lost })
    }

    /// Returns an answer that is there already.
    pub(crate) fn answered(answer: Result<A, Failure>) -> Pending<A> {
        let (reply, pending) = Pending::new(Failure::bug("there is an answer"));
        let _ = reply.try_send(answer);
        pending
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The failure of the command.
    pub fn wait(self) -> Result<A, Failure> {
        self.wait_for(Duration::MAX).unwrap_or_else(|| Err(self.lost.clone()))
    }

    /// Waits for `max` at most. `None` when there is no answer yet; after an answer there is no second one.
    pub fn wait_for(&self, max: Duration) -> Option<Result<A, Failure>> {
        self.has_ended_in(max).then(|| self.slot.end(State::Ended).unwrap_or_else(|| Err(self.lost.clone())))
    }

    /// Waits for `max` at most. Returns whether the command has ended; the answer stays for [`Pending::wait_for`]. So several
    /// threads may wait for one command.
    pub fn has_ended_in(&self, max: Duration) -> bool {
        let is_waiting = |state: &mut State<A>| matches!(state, State::Waiting);
        let state = self.slot.lock();
        let state = match max {
            // A deadline beyond the clock panics.
            Duration::MAX => self.slot.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner),
            max => {
                self.slot.changed.wait_timeout_while(state, max, is_waiting).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        !matches!(*state, State::Waiting)
    }

    /// Stops waiting, as the drop does: other threads that wait get the failure of an answer that is lost.
    pub fn abandon(&self) {
        drop(self.slot.end(State::Abandoned));
    }
}

impl<A> Drop for Pending<A> {
    fn drop(&mut self) {
        // In the child of a fork the lock may be held for ever.
        if !embed::is_forked() {
            self.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pending;
    use crate::failure::Failure;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn an_answer_comes_once_and_its_loss_is_an_error() {
        let (reply, pending) = Pending::new(Failure::bug("it has ended"));
        assert!(pending.wait_for(Duration::ZERO).is_none());
        reply.try_send(Ok(7)).expect("room for one");
        assert_eq!(pending.wait_for(Duration::ZERO), Some(Ok(7)));
        drop(reply);
        assert_eq!(pending.wait(), Err(Failure::bug("it has ended")));
    }

    #[test]
    fn a_command_whose_program_has_gone_knows_it_and_keeps_its_answer() {
        let (reply, pending) = Pending::new(Failure::bug("it has ended"));
        assert!(reply.is_awaited());
        pending.abandon();
        assert!(!reply.is_awaited());
        assert_eq!(pending.wait_for(Duration::ZERO), Some(Err(Failure::bug("it has ended"))));
        drop(pending);
        let answer = Arc::new(());
        assert!(reply.try_send(Ok(Arc::clone(&answer))).is_err());
        assert_eq!(Arc::strong_count(&answer), 1, "the answer was dropped");
        let (reply, pending) = Pending::new(Failure::bug("it has ended"));
        reply.try_send(Ok(Arc::clone(&answer))).expect("room for one");
        drop(pending);
        assert_eq!(Arc::strong_count(&answer), 1, "an answer that came before is dropped with what waited for it");
    }

    #[test]
    fn several_threads_wait_for_one_command() {
        let (reply, pending) = Pending::new(Failure::bug("it has ended"));
        assert!(!pending.has_ended_in(Duration::ZERO));
        std::thread::scope(|threads| {
            let waiters = [(); 2].map(|()| threads.spawn(|| pending.has_ended_in(Duration::MAX)));
            reply.try_send(Ok(())).expect("room for one");
            assert!(waiters.into_iter().all(|waiter| waiter.join().expect("it ends")));
        });
        assert_eq!(pending.wait_for(Duration::ZERO), Some(Ok(())));
        assert!(pending.has_ended_in(Duration::ZERO), "after the answer was taken, too");
    }
}
