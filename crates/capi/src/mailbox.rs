//! Commands from the program's threads to the I/O thread.
//!
//! Invariant: a command that was accepted is answered: by the I/O thread, or by its drop. The list needs no limit of its own: a
//! request has its place in a [`crate::queue::Queue`], and every other command has a thread that waits for the answer.

use crate::failure::Failure;
use crate::queue::Ticket;
use client::VolumeKey;
use device::{DeviceInfo, Request};
use env::Waker;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the answer to a command goes; it has room for one.
pub type Reply<T> = SyncSender<Result<T, Failure>>;

/// One command.
pub enum Command {
    Request {
        volume: VolumeKey,
        request: Request,
        ticket: Ticket,
    },
    Open {
        name: String,
        write: bool,
        steal: bool,
        reply: Reply<(VolumeKey, DeviceInfo)>,
    },
    Close {
        volume: VolumeKey,
        reply: Reply<()>,
    },
    /// The last command. No volume is open.
    Stop,
}

/// The commands of one cluster handle.
pub struct Mailbox {
    inbox: Mutex<Inbox>,
    waker: Waker,
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    /// Volumes that are open, or being opened.
    volumes: usize,
    /// Why no command is accepted any more.
    closed: Option<Failure>,
}

impl Mailbox {
    pub fn new(waker: Waker) -> Mailbox {
        Mailbox { inbox: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command. The I/O thread takes all commands of a turn at once, so only the first of them wakes it.
    ///
    /// # Errors
    /// When the I/O thread has ended. Then a request leaves no event.
    pub fn send(&self, command: Command) -> Result<(), Failure> {
        let mut inbox = self.lock();
        if let Some(failure) = &inbox.closed {
            if let Command::Request { ticket, .. } = command {
                ticket.cancel();
            }
            return Err(failure.clone());
        }
        inbox.commands.push(command);
        let is_first = inbox.commands.len() == 1;
        drop(inbox);
        if is_first {
            self.waker.wake();
        }
        Ok(())
    }

    /// Takes all commands; `taken` is empty before, and its memory is used again.
    pub fn receive(&self, taken: &mut Vec<Command>) {
        std::mem::swap(&mut self.lock().commands, taken);
    }

    /// Counts a volume in, before it is opened.
    ///
    /// # Errors
    /// When the cluster handle is closed, or its I/O thread has ended.
    pub fn add_volume(&self) -> Result<(), Failure> {
        let mut inbox = self.lock();
        if let Some(failure) = &inbox.closed {
            return Err(failure.clone());
        }
        inbox.volumes += 1;
        Ok(())
    }

    pub fn remove_volume(&self) {
        self.lock().volumes -= 1;
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
    use crate::queue::Queue;
    use env::Waker;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn the_first_command_wakes_and_the_end_answers_those_that_wait() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let mailbox = Mailbox::new(Waker::new({
            let wakes = Arc::clone(&wakes);
            move || {
                wakes.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let open = || Command::Open { name: "a/b".into(), write: true, steal: false, reply: reply.clone() };
        assert!(mailbox.send(open()).is_ok() && mailbox.send(open()).is_ok());
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        let mut taken = Vec::new();
        mailbox.receive(&mut taken);
        assert_eq!(taken.len(), 2);
        taken.clear();
        assert!(mailbox.send(open()).is_ok());
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        mailbox.close(Failure::bug("the thread has ended"));
        assert!(mailbox.send(open()).is_err_and(|why| why.errno == libc::EIO));
        assert!(mailbox.add_volume().is_err());
        drop(reply);
        assert!(answer.recv().is_err(), "the command was dropped");
    }

    #[test]
    fn a_cluster_with_volumes_does_not_stop() {
        let mailbox = Mailbox::new(Waker::new(|| {}));
        mailbox.add_volume().expect("open");
        assert_eq!(mailbox.stop().expect_err("busy").errno, libc::EBUSY);
        mailbox.remove_volume();
        mailbox.stop().expect("idle");
        assert_eq!(mailbox.add_volume().expect_err("stopped").errno, libc::ESHUTDOWN);
    }

    #[test]
    fn a_request_that_is_given_up_completes() {
        let queue = Queue::new(1).expect("a queue");
        drop(queue.admit(7, 0, None).expect("room"));
        assert_eq!(queue.take(1, 1, Some(Duration::ZERO)).expect("an event").len(), 1);
    }
}
