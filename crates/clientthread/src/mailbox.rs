//! Commands from the program's threads to the I/O thread.
//!
//! Invariant: a command that was accepted is answered: by the I/O thread, or by its drop. The list needs no limit of its own: a
//! request has its place in a [`crate::Queue`], and of every other kind a volume or a waiting thread has one at most.

use crate::cluster::Volume;
use crate::failure::Failure;
use crate::pending::Reply;
use crate::queue::Ticket;
use client::VolumeKey;
use device::Request;
use env::Waker;
use env::real::embed;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One command.
pub(crate) enum Command<T> {
    Request {
        volume: VolumeKey,
        request: Request,
        ticket: Ticket<T>,
    },
    Open {
        name: String,
        /// Whether it is for writing, and whether it takes the volume over.
        flags: (bool, bool),
        reply: Reply<Volume<T>>,
        counted: Counted<T>,
    },
    Close {
        volume: VolumeKey,
        /// `None` when the program has dropped the volume.
        reply: Option<Reply<()>>,
        counted: Counted<T>,
    },
    /// The last command. No volume is open.
    Stop,
}

/// The commands of one cluster handle.
pub(crate) struct Mailbox<T> {
    inbox: Mutex<Inbox<T>>,
    waker: Waker,
}

struct Inbox<T> {
    commands: Vec<Command<T>>,
    /// Volumes that are open, being opened or being closed.
    volumes: usize,
    /// The program has dropped the cluster handle.
    is_left: bool,
    /// Why no command is accepted any more.
    closed: Option<Failure>,
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

/// A volume's place in the count of its mailbox.
#[derive(Debug)]
pub(crate) struct Counted<T>(Arc<Mailbox<T>>);

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        if embed::is_forked() {
            return;
        }
        let mut inbox = self.0.lock();
        inbox.volumes -= 1;
        let is_last = inbox.is_left && inbox.volumes == 0;
        drop(inbox);
        if is_last {
            self.0.waker.wake();
        }
    }
}

impl<T> Mailbox<T> {
    pub fn new(waker: Waker) -> Mailbox<T> {
        let inbox = Inbox { commands: Vec::new(), volumes: 0, is_left: false, closed: None };
        Mailbox { inbox: Mutex::new(inbox), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox<T>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command. The I/O thread takes all commands of a turn at once, so only the first of them wakes it.
    ///
    /// # Errors
    /// When the I/O thread has ended. Then a request leaves no completion.
    pub fn send(&self, command: Command<T>) -> Result<(), Failure> {
        let mut inbox = self.lock();
        if let Some(failure) = inbox.closed.clone() {
            // The drop of a command may need the lock.
            drop(inbox);
            if let Command::Request { ticket, .. } = command {
                ticket.cancel();
            }
            return Err(failure);
        }
        inbox.commands.push(command);
        let is_first = inbox.commands.len() == 1;
        drop(inbox);
        if is_first {
            self.waker.wake();
        }
        Ok(())
    }

    /// Takes all commands; `taken` is empty before, and its memory is used again. Returns whether more may come: false when the
    /// program has no handle any more.
    pub fn receive(&self, taken: &mut Vec<Command<T>>) -> bool {
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.commands, taken);
        !(inbox.is_left && inbox.volumes == 0)
    }

    /// Counts a volume in, before it is opened.
    ///
    /// # Errors
    /// When the cluster handle is closed, or its I/O thread has ended.
    pub fn add_volume(this: &Arc<Self>) -> Result<Counted<T>, Failure> {
        let mut inbox = this.lock();
        if let Some(failure) = &inbox.closed {
            return Err(failure.clone());
        }
        inbox.volumes += 1;
        Ok(Counted(Arc::clone(this)))
    }

    /// # Errors
    /// When no command is accepted any more.
    pub fn check_open(&self) -> Result<(), Failure> {
        self.lock().closed.clone().map_or(Ok(()), Err)
    }

    /// Sends [`Command::Stop`], after which nothing is accepted.
    ///
    /// # Errors
    /// EBUSY while volumes are open.
    pub fn stop(&self) -> Result<(), Failure> {
        let mut inbox = self.lock();
        if inbox.volumes > 0 {
            let what = format!("{} volumes of the cluster are open; close them first", inbox.volumes);
            return Err(Failure::misuse(libc::EBUSY, what));
        }
        inbox.closed.get_or_insert_with(|| Failure::misuse(libc::ESHUTDOWN, "the cluster was disconnected"));
        inbox.commands.push(Command::Stop);
        drop(inbox);
        self.waker.wake();
        Ok(())
    }

    /// Lets the I/O thread end after the last volume.
    pub fn leave(&self) {
        self.lock().is_left = true;
        self.waker.wake();
    }

    /// Accepts nothing any more, and drops the commands that wait: each drop answers its sender.
    pub fn close(&self, why: Failure) {
        let mut inbox = self.lock();
        inbox.closed.get_or_insert(why);
        let commands = std::mem::take(&mut inbox.commands);
        drop(inbox);
        drop(commands);
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Mailbox};
    use crate::failure::Failure;
    use crate::pending::Pending;
    use crate::queue::Queue;
    use env::Waker;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn counting() -> (Arc<Mailbox<u64>>, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let waker = Waker::new({
            let wakes = Arc::clone(&wakes);
            move || {
                wakes.fetch_add(1, Ordering::Relaxed);
            }
        });
        (Arc::new(Mailbox::new(waker)), wakes)
    }

    #[test]
    fn the_first_command_wakes_and_the_end_answers_those_that_wait() {
        let (mailbox, wakes) = counting();
        let (reply, answer) = Pending::new(Failure::bug("no answer"));
        let open = || {
            let counted = Mailbox::add_volume(&mailbox).expect("open");
            Command::Open { name: "a/b".into(), flags: (true, false), reply: reply.clone(), counted }
        };
        let late = open();
        assert!(mailbox.send(open()).is_ok() && mailbox.send(open()).is_ok());
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        let mut taken = Vec::new();
        assert!(mailbox.receive(&mut taken));
        assert_eq!(taken.len(), 2);
        taken.clear();
        assert!(mailbox.send(open()).is_ok());
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        mailbox.close(Failure::bug("the thread has ended"));
        assert!(mailbox.send(late).is_err_and(|why| why.errno == libc::EIO));
        assert!(Mailbox::add_volume(&mailbox).is_err() && mailbox.check_open().is_err());
        drop(reply);
        assert!(answer.wait().is_err_and(|why| why.what == "no answer"), "the command was dropped");
    }

    #[test]
    fn a_cluster_with_volumes_does_not_stop() {
        let (mailbox, _) = counting();
        let counted = Mailbox::add_volume(&mailbox).expect("open");
        assert_eq!(mailbox.stop().expect_err("busy").errno, libc::EBUSY);
        drop(counted);
        mailbox.stop().expect("idle");
        assert_eq!(Mailbox::add_volume(&mailbox).expect_err("stopped").errno, libc::ESHUTDOWN);
    }

    #[test]
    fn a_handle_that_is_dropped_lets_the_thread_end_after_its_volumes() {
        let (mailbox, wakes) = counting();
        let counted = Mailbox::add_volume(&mailbox).expect("open");
        mailbox.leave();
        assert!(mailbox.receive(&mut Vec::new()), "a volume is open");
        let before = wakes.load(Ordering::Relaxed);
        drop(counted);
        assert_eq!(wakes.load(Ordering::Relaxed), before + 1);
        assert!(!mailbox.receive(&mut Vec::new()));
    }

    #[test]
    fn a_request_that_is_given_up_completes() {
        let queue = Queue::new(1).expect("a queue");
        drop(queue.admit(7_u64, 0).expect("room"));
        assert_eq!(queue.take(1, 1, Some(Duration::ZERO)).expect("an event").len(), 1);
    }
}
