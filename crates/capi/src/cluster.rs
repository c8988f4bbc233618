//! The things behind the handles of a program: a cluster with its I/O thread, and a volume of it.

use crate::failure::Failure;
use crate::io_thread::{self, Settings};
use crate::mailbox::{Command, Mailbox};
use crate::os::{self, SignalsBlocked};
use crate::queue::Ticket;
use client::VolumeKey;
use device::{DeviceInfo, Request};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use types::Errno;

/// A cluster that the program is connected to.
pub struct Cluster {
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A volume that the program has open.
pub struct Volume {
    cluster: Arc<Cluster>,
    key: VolumeKey,
    pub info: DeviceInfo,
}

impl Cluster {
    /// Starts the I/O thread, which finds the leading metadata server.
    ///
    /// # Errors
    /// When none answers in the time of `settings`, or the system gives no ring or thread.
    pub fn connect(settings: Settings) -> Result<Arc<Cluster>, Failure> {
        os::watch_forks();
        let (reply, started) = sync_channel(1);
        let spawned = {
            let _blocked = SignalsBlocked::new();
            let builder = std::thread::Builder::new().name("basalt-io".to_owned());
            builder.spawn(move || io_thread::run(settings, reply))
        };
        let thread = spawned.map_err(|error| Failure::of_system("no thread", &error))?;
        let mailbox = match answer(started) {
            Ok(mailbox) => mailbox,
            Err(failure) => {
                let _ = thread.join();
                return Err(failure);
            }
        };
        Ok(Arc::new(Cluster { mailbox, thread: Mutex::new(Some(thread)) }))
    }

    /// Asks the I/O thread to end. No volume can be opened from here on.
    ///
    /// # Errors
    /// EBUSY while volumes are open: then nothing has changed.
    pub fn stop(&self) -> Result<(), Failure> {
        self.mailbox.stop()
    }

    /// Waits for the end of the I/O thread.
    pub fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its panic, if there was one, has been reported to every later call.
        thread.map(JoinHandle::join);
    }

    /// Opens `pool/volume`.
    ///
    /// # Errors
    /// The refusal of meta; ETIMEDOUT.
    pub fn open(self: &Arc<Self>, name: &str, write: bool, steal: bool) -> Result<Arc<Volume>, Failure> {
        self.mailbox.add_volume()?;
        let (reply, opened) = sync_channel(1);
        let sent = self.mailbox.send(Command::Open { name: name.to_owned(), write, steal, reply });
        let opened = sent.and_then(|()| answer(opened));
        match opened {
            Ok((key, info)) => Ok(Arc::new(Volume { cluster: Arc::clone(self), key, info })),
            Err(failure) => {
                self.mailbox.remove_volume();
                Err(failure)
            }
        }
    }
}

impl Volume {
    /// Lets requests in flight end or gives them up, and tells meta. Every request has its event afterwards.
    ///
    /// # Errors
    /// When the I/O thread has ended: the lease of the volume then ends by itself.
    pub fn close(&self) -> Result<(), Failure> {
        let (reply, closed) = sync_channel(1);
        let sent = self.cluster.mailbox.send(Command::Close { volume: self.key, reply });
        let result = sent.and_then(|()| answer(closed));
        self.cluster.mailbox.remove_volume();
        result
    }

    /// Hands a request to the I/O thread.
    ///
    /// # Errors
    /// When that has ended; then there will be no event.
    pub fn send(&self, request: Request, ticket: Ticket) -> Result<(), Failure> {
        self.cluster.mailbox.send(Command::Request { volume: self.key, request, ticket })
    }

    /// Returns a failure of a request to this volume.
    pub fn failure(&self, errno: Errno) -> Failure {
        Failure::of_request(&self.info.name, errno)
    }
}

/// Waits for the answer to a command.
fn answer<T>(receiver: Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    let ended = |_| Err(Failure::bug("the I/O thread of the cluster has ended; standard error has its message"));
    receiver.recv().unwrap_or_else(ended)
}
