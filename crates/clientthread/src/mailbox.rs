//! Commands from the program's threads to the I/O thread.
//!
//! Invariant: a command that was accepted is answered: by the I/O thread, or by its drop. The list needs no limit of its own: a
//! request has its place in a [`crate::Queue`], a volume has one close at most, and a stop is for the threads that end a cluster. A
//! program that drops the [`Pending`] of an open sends the next one: [`OPENS_MAX`] bounds those.

use crate::cluster::Volume;
use crate::failure::Failure;
use crate::pending::{Pending, Reply};
use crate::queue::Ticket;
use client::VolumeKey;
use device::Request;
use env::Waker;
use env::real::embed;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use types::codes;

/// Opens without an answer of meta, for the program and given up by it: the link to meta holds all of them. A request that
/// it loses would never be answered.
pub(crate) const OPENS_MAX: usize = 256;

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
        asked: Asked<T>,
    },
    Close {
        volume: VolumeKey,
        /// `None` when the program has dropped the volume.
        reply: Option<Reply<()>>,
        counted: Counted<T>,
    },
    /// The last command that opens or does anything: the volumes that are left are closed, and then the thread ends. The reply is
    /// for a program that waits.
    Stop(Option<Reply<()>>),
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
    /// Opens that were accepted and that meta has not answered.
    opens: usize,
    /// The program has dropped the cluster handle.
    is_left: bool,
    /// Why nothing but a close is accepted any more.
    closed: Option<Failure>,
    /// The I/O thread takes no command any more.
    has_ended: bool,
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

/// An open's place in the count of its mailbox, until meta has answered.
#[derive(Debug)]
pub(crate) struct Asked<T>(Arc<Mailbox<T>>);

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        if !embed::is_forked() {
            self.0.lock().opens -= 1;
        }
    }
}

impl<T> Mailbox<T> {
    pub fn new(waker: Waker) -> Mailbox<T> {
        let inbox =
            Inbox { commands: Vec::new(), volumes: 0, opens: 0, is_left: false, closed: None, has_ended: false };
        Mailbox { inbox: Mutex::new(inbox), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox<T>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command. The I/O thread takes all commands of a turn at once, so only the first of them wakes it.
    ///
    /// # Errors
    /// When the I/O thread has ended, or does so. Then a request leaves no completion. A thread that ends takes closes.
    pub fn send(&self, command: Command<T>) -> Result<(), Failure> {
        let mut inbox = self.lock();
        let is_late = inbox.has_ended || !matches!(command, Command::Close { .. });
        if let Some(failure) = inbox.closed.clone().filter(|_| is_late) {
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

    /// Counts an open in.
    ///
    /// # Errors
    /// EAGAIN when too many have no answer.
    pub fn add_open(this: &Arc<Self>) -> Result<Asked<T>, Failure> {
        let mut inbox = this.lock();
        if inbox.opens >= OPENS_MAX {
            let what = format!("{OPENS_MAX} opens of this program have no answer of the metadata server yet");
            return Err(Failure::new(codes::META_BUSY, what));
        }
        inbox.opens += 1;
        Ok(Asked(Arc::clone(this)))
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
        let inbox = self.lock();
        if inbox.volumes > 0 {
            let what = format!("{} volumes of the cluster are open; close them first", inbox.volumes);
            return Err(Failure::misuse(libc::EBUSY, what));
        }
        self.send_stop(inbox, None);
        Ok(())
    }

    /// Sends [`Command::Stop`], whatever is open. The answer comes when the volumes are closed.
    pub fn begin_stop(&self) -> Pending<()> {
        let inbox = self.lock();
        if inbox.has_ended {
            return Pending::answered(Ok(()));
        }
        let (reply, pending) = Pending::new(crate::io_thread::ended());
        self.send_stop(inbox, Some(reply));
        pending
    }

    fn send_stop(&self, mut inbox: MutexGuard<'_, Inbox<T>>, reply: Option<Reply<()>>) {
        inbox.closed.get_or_insert_with(|| Failure::misuse(libc::ESHUTDOWN, "the cluster was disconnected"));
        inbox.commands.push(Command::Stop(reply));
        drop(inbox);
        self.waker.wake();
    }

    /// Lets the I/O thread end after the last volume.
    pub fn leave(&self) {
        self.lock().is_left = true;
        self.waker.wake();
    }

    /// Accepts nothing any more, and drops the commands that wait: each drop answers its sender. A stop has its end.
    pub fn close(&self, why: Failure) {
        let mut inbox = self.lock();
        inbox.closed.get_or_insert(why);
        inbox.has_ended = true;
        let commands = std::mem::take(&mut inbox.commands);
        drop(inbox);
        for command in commands {
            if let Command::Stop(Some(reply)) = command {
                let _ = reply.try_send(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Mailbox, OPENS_MAX};
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
            let asked = Mailbox::add_open(&mailbox).expect("room");
            Command::Open { name: "a/b".into(), flags: (true, false), reply: reply.clone(), counted, asked }
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
    fn a_stop_that_waits_begins_although_volumes_are_open() {
        let (mailbox, wakes) = counting();
        let _counted = Mailbox::add_volume(&mailbox).expect("open");
        let before = wakes.load(Ordering::Relaxed);
        let stop = mailbox.begin_stop();
        assert_eq!(wakes.load(Ordering::Relaxed), before + 1);
        assert_eq!(Mailbox::add_volume(&mailbox).expect_err("stopped").errno, libc::ESHUTDOWN);
        let mut taken = Vec::new();
        assert!(mailbox.receive(&mut taken) && stop.wait_for(Duration::ZERO).is_none());
        let Some(Command::Stop(Some(reply))) = taken.pop() else { panic!("no stop") };
        reply.try_send(Ok(())).expect("it waits");
        assert_eq!(stop.wait(), Ok(()));
    }

    #[test]
    fn a_stop_of_a_thread_that_has_ended_has_its_answer() {
        let (mailbox, _) = counting();
        let early = mailbox.begin_stop();
        mailbox.close(Failure::bug("the thread has ended"));
        let late = mailbox.begin_stop();
        assert!([early, late].iter().all(|stop| stop.wait_for(Duration::ZERO) == Some(Ok(()))));
    }

    #[test]
    fn opens_that_meta_does_not_answer_are_bounded() {
        let (mailbox, _) = counting();
        let mut asked: Vec<_> = (0..OPENS_MAX).map(|_| Mailbox::add_open(&mailbox).expect("room")).collect();
        assert_eq!(Mailbox::add_open(&mailbox).expect_err("full").errno, libc::EAGAIN);
        asked.pop();
        assert!(Mailbox::add_open(&mailbox).is_ok());
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
