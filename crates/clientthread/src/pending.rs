//! An answer that is still to come, for callers that wait in pieces.

use crate::failure::Failure;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Where the answer to a command goes; it has room for one.
pub(crate) type Reply<A> = SyncSender<Result<A, Failure>>;

/// The answer to a command. When it is dropped, the command goes on, and its answer is dropped with what belongs to it: a volume
/// that was opened is closed.
#[derive(Debug)]
pub struct Pending<A> {
    receiver: Receiver<Result<A, Failure>>,
    /// Failure when the thread ends without an answer.
    lost: Failure,
}

impl<A> Pending<A> {
    /// Returns the place of the answer, and what waits for it. `lost` is the failure when there will be none.
    pub(crate) fn new(lost: Failure) -> (Reply<A>, Pending<A>) {
        let (reply, receiver) = sync_channel(1);
        (reply, Pending { receiver, lost })
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The failure of the command.
    pub fn wait(self) -> Result<A, Failure> {
        self.receiver.recv().unwrap_or(Err(self.lost))
    }

    /// Waits for `max` at most. `None` when there is no answer yet; after an answer there is no second one.
    pub fn wait_for(&self, max: Duration) -> Option<Result<A, Failure>> {
        match self.receiver.recv_timeout(max) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(self.lost.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pending;
    use crate::failure::Failure;
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
}
