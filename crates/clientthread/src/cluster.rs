//! The handles of a program: a cluster with its I/O thread, and a volume of it.

use crate::failure::Failure;
use crate::io_thread;
use crate::mailbox::{Command, Counted, Mailbox};
use crate::pending::Pending;
use crate::queue::{Queue, Ticket};
use crate::settings::Settings;
use api::AdminClient;
use client::VolumeKey;
use clientloop::{DRAIN_MAX, PART_MAX};
use control::admin::{AdminAnswer, AdminAsk};
use device::{Answer, DeviceInfo, Request};
use env::real::embed::{self, SignalsBlocked};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use types::{Errno, IoBuf, SessionId, SnapshotId, codes};

/// Longest time of [`Cluster::begin_stop`]: that of a close, and some for the thread itself.
pub const STOP_MAX: Duration = DRAIN_MAX.saturating_add(PART_MAX).saturating_add(Duration::from_millis(500));

/// Requests of an administrator without an answer. Threads that wait are fewer; those that were given up end by the time of the
/// settings.
const ASKS_MAX: usize = 256;

/// Right of a client to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only; any number of clients may, beside one writer. A snapshot is opened in this way alone.
    Read,
    /// Read and write, as the only writer.
    Write,
    /// The same, and take the volume over from its present writer, whose writes then fail with `Fenced`.
    Steal,
}

/// A cluster that the program is connected to. `T` is the tag of a request, which comes back with its completion.
///
/// The I/O thread ends when the handle and all volumes of it are dropped and closed; [`Cluster::stop`] and [`Cluster::join`] wait
/// for that.
pub struct Cluster<T = u64> {
    mailbox: Arc<Mailbox<T>>,
    admin: Arc<AdminClient>,
    /// Places of requests without an answer. One that the program does not wait for any more keeps its place.
    asks: Arc<Semaphore>,
    control: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A connect in progress.
pub struct Connecting<T = u64> {
    pending: Pending<Cluster<T>>,
    thread: Option<JoinHandle<()>>,
}

/// A volume that the program has open. Dropping it closes it, without waiting for the end.
#[derive(Debug)]
pub struct Volume<T = u64> {
    mailbox: Arc<Mailbox<T>>,
    key: VolumeKey,
    session: SessionId,
    info: DeviceInfo,
    /// `None` when it was closed.
    counted: Mutex<Option<Counted<T>>>,
}

impl<T: Send + 'static> Connecting<T> {
    /// Waits for `max` at most. `None` when there is no answer yet.
    pub fn wait_for(&mut self, max: Duration) -> Option<Result<Cluster<T>, Failure>> {
        let answer = self.pending.wait_for(max)?;
        Some(self.adopt(answer))
    }

    /// Waits until the leading metadata server has answered.
    ///
    /// # Errors
    /// When none answers in the time of the settings, or the system gives no ring or thread.
    pub fn wait(mut self) -> Result<Cluster<T>, Failure> {
        loop {
            if let Some(answer) = self.wait_for(Duration::MAX) {
                return answer;
            }
        }
    }

    /// Gives the handle its thread, or waits for the end of that.
    fn adopt(&mut self, answer: Result<Cluster<T>, Failure>) -> Result<Cluster<T>, Failure> {
        let thread = self.thread.take();
        match answer {
            Ok(mut cluster) => {
                cluster.thread = Mutex::new(thread);
                Ok(cluster)
            }
            Err(failure) => {
                thread.map(JoinHandle::join);
                Err(failure)
            }
        }
    }
}

impl<T: Send + 'static> Cluster<T> {
    pub(crate) fn new(mailbox: Arc<Mailbox<T>>, admin: AdminClient, control: Handle) -> Cluster<T> {
        let asks = Arc::new(Semaphore::new(ASKS_MAX));
        Cluster { mailbox, admin: Arc::new(admin), asks, control, thread: Mutex::new(None) }
    }

    /// Connects: starts the I/O thread, which finds the leading metadata server, and waits for it.
    ///
    /// # Errors
    /// When none answers in the time of `settings`, or the system gives no ring or thread.
    pub fn connect(settings: Settings) -> Result<Cluster<T>, Failure> {
        Cluster::begin_connect(settings)?.wait()
    }

    /// Starts to connect. When the result is dropped, the thread ends.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn begin_connect(settings: Settings) -> Result<Connecting<T>, Failure> {
        embed::watch_forks();
        let (reply, pending) = Pending::new(io_thread::ended());
        let _blocked = SignalsBlocked::new();
        let builder = std::thread::Builder::new().name("basalt-io".to_owned());
        let spawned = builder.spawn(move || io_thread::run(settings, reply));
        let thread = spawned.map_err(|error| Failure::of_system("no thread", &error))?;
        Ok(Connecting { pending, thread: Some(thread) })
    }

    /// Asks the I/O thread to end. No volume can be opened from here on.
    ///
    /// # Errors
    /// EBUSY while volumes are open, being opened or being closed: then nothing has changed. [`Cluster::begin_stop`] closes them.
    pub fn stop(&self) -> Result<(), Failure> {
        self.mailbox.stop()
    }

    /// Asks the I/O thread to end, whatever is open. From here on nothing is accepted but closes. The volumes that are left are
    /// closed, in the time of [`Volume::close`]. Opens without an answer of meta fail with ESHUTDOWN; they delay the end by 2 s at
    /// most, in which a volume that meta grants is closed. The answer comes when all has ended, in [`STOP_MAX`].
    pub fn begin_stop(&self) -> Pending<()> {
        self.mailbox.begin_stop()
    }

    /// Waits for the end of the I/O thread, which [`Cluster::stop`] or [`Cluster::begin_stop`] has asked for.
    pub fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its panic, if there was one, has been reported to every later call.
        thread.map(JoinHandle::join);
    }

    /// Opens `pool/volume`, or `pool/volume@snapshot` for reading. Blocks until a metadata server has granted it.
    ///
    /// # Errors
    /// The refusal of meta; ETIMEDOUT.
    pub fn open(&self, name: &str, access: Access) -> Result<Volume<T>, Failure> {
        self.begin_open(name, access)?.wait()
    }

    /// Starts to open a volume.
    ///
    /// # Errors
    /// When the I/O thread has ended. EAGAIN when too many opens have no answer of meta.
    pub fn begin_open(&self, name: &str, access: Access) -> Result<Pending<Volume<T>>, Failure> {
        let (counted, asked) = (Mailbox::add_volume(&self.mailbox)?, Mailbox::add_open(&self.mailbox)?);
        let (reply, pending) = Pending::new(io_thread::ended());
        let flags = (access != Access::Read, access == Access::Steal);
        self.mailbox.send(Command::Open { name: name.to_owned(), flags, reply, counted, asked })?;
        Ok(pending)
    }

    /// Sends a request of an administrator to the leading metadata server. The settings bound the time of its answer.
    ///
    /// # Errors
    /// When the cluster was disconnected. EAGAIN when too many requests have no answer. The pending answer has the refusal of meta.
    pub fn ask(&self, ask: AdminAsk) -> Result<Pending<AdminAnswer>, Failure> {
        self.mailbox.check_open()?;
        let place = Arc::clone(&self.asks).try_acquire_owned().map_err(|_| {
            let what = format!("{ASKS_MAX} requests of this program have no answer of the metadata server yet");
            Failure::new(codes::META_BUSY, what)
        })?;
        let lost = "the cluster was disconnected before the metadata server answered; the command may have been done";
        let (reply, pending) = Pending::new(Failure::misuse(libc::ESHUTDOWN, lost));
        let admin = Arc::clone(&self.admin);
        self.control.spawn(async move {
            let answer = admin.ask(ask).await;
            drop(place);
            let _ = reply.try_send(answer.map_err(Failure::from));
        });
        Ok(pending)
    }
}

impl<T> Drop for Cluster<T> {
    fn drop(&mut self) {
        if !embed::is_forked() {
            return self.mailbox.leave();
        }
        // A child of a fork has no thread, and its locks may be held for ever: nothing is freed that has one. The drop of a thread's
        // handle detaches it, in memory that the child may have for other things.
        let shared = (Arc::clone(&self.mailbox), Arc::clone(&self.admin), Arc::clone(&self.asks), self.control.clone());
        std::mem::forget((shared, self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

impl<T> Drop for Connecting<T> {
    fn drop(&mut self) {
        if embed::is_forked() {
            std::mem::forget(self.thread.take());
        }
    }
}

impl<T: Send + 'static> Volume<T> {
    pub(crate) fn new(
        mailbox: Arc<Mailbox<T>>,
        (key, session): (VolumeKey, SessionId),
        info: DeviceInfo,
        counted: Counted<T>,
    ) -> Volume<T> {
        Volume { mailbox, key, session, info, counted: Mutex::new(Some(counted)) }
    }

    /// Returns the session under which the volume is open for writing; 0 when it is open for reading. While the metadata server names it, no
    /// other client has had the volume.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the properties of the volume as of its open.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Lets requests in flight end or gives them up, and tells meta. Every request has its completion afterwards. Blocks for 5 s at
    /// most.
    ///
    /// # Errors
    /// When the I/O thread has ended: the lease of the volume then ends by itself. EBADF when the volume was closed before.
    pub fn close(&self) -> Result<(), Failure> {
        self.begin_close()?.wait()
    }

    /// Starts a close.
    ///
    /// # Errors
    /// The same as of [`Volume::close`].
    pub fn begin_close(&self) -> Result<Pending<()>, Failure> {
        let counted = self.take_counted();
        let counted = counted.ok_or_else(|| Failure::misuse(libc::EBADF, "the volume was closed"))?;
        let (reply, pending) = Pending::new(io_thread::ended());
        self.mailbox.send(Command::Close { volume: self.key, reply: Some(reply), counted })?;
        Ok(pending)
    }

    /// Checks a request before memory is taken for it.
    ///
    /// # Errors
    /// EINVAL for an empty, misaligned or too long request, or one that lies outside the volume; EROFS.
    pub fn check(&self, request: &Request) -> Result<(), Failure> {
        device::check(&self.info, request).map_err(|errno| self.failure(errno))
    }

    /// Hands a request to the I/O thread. `queue` gets its completion.
    ///
    /// # Errors
    /// Those of [`Volume::check`] and [`Queue::admit`], and when the I/O thread has ended; then there will be no completion.
    pub fn submit(&self, queue: &Arc<Queue<T>>, tag: T, request: Request) -> Result<(), Failure> {
        self.check(&request)?;
        let ticket = queue.admit(tag, request.held_bytes())?;
        self.send(request, ticket)
    }

    /// Hands a request that was checked and counted in to the I/O thread.
    ///
    /// # Errors
    /// When that has ended; then there will be no completion.
    pub fn send(&self, request: Request, ticket: Ticket<T>) -> Result<(), Failure> {
        self.mailbox.send(Command::Request { volume: self.key, request, ticket })
    }

    /// Returns the failure that an outcome of a request to this volume is.
    pub fn failure(&self, errno: Errno) -> Failure {
        Failure::of_request(&self.info.name, errno)
    }
}

impl<T: Default + Send + 'static> Volume<T> {
    /// Performs one request and waits for its end. Returns the bytes of a read, in pieces.
    ///
    /// # Errors
    /// Those of [`Volume::submit`], and the failure of the request.
    pub fn call(&self, request: Request) -> Result<Vec<IoBuf>, Failure> {
        self.perform(request).map(Answer::into_pieces)
    }

    /// Returns the runs of bytes from `offset` on, `true` where data is stored; or, with `since`, where it may differ from that older
    /// snapshot of the volume. They cover `len` bytes, or the first [`device::EXTENTS_LEN_MAX`] of them.
    ///
    /// # Errors
    /// Those of [`Volume::call`]. With `since`: EINVAL when the volume does not descend from that snapshot, as after a rollback to an
    /// older one; ENOENT when it was deleted.
    pub fn extents(&self, offset: u64, len: u64, since: Option<SnapshotId>) -> Result<Vec<(u64, bool)>, Failure> {
        match self.perform(Request::Extents { offset, len, since })? {
            Answer::Extents(runs) => Ok(runs),
            Answer::Done | Answer::Data(_) => Err(Failure::bug("an answer of another kind")),
        }
    }

    fn perform(&self, request: Request) -> Result<Answer, Failure> {
        let queue = Queue::new(1)?;
        self.submit(&queue, T::default(), request)?;
        let finished = queue.take(1, 1, None)?.pop().ok_or_else(io_thread::ended)?;
        finished.result.map_err(|errno| self.failure(errno))
    }
}

impl<T> Volume<T> {
    fn take_counted(&self) -> Option<Counted<T>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Drop for Volume<T> {
    fn drop(&mut self) {
        let counted = self.take_counted();
        if embed::is_forked() {
            // The lock of the mailbox may be held for ever.
            return std::mem::forget(counted);
        }
        if let Some(counted) = counted {
            let _ = self.mailbox.send(Command::Close { volume: self.key, reply: None, counted });
        }
    }
}
