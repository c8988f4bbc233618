//! A device of the kernel (`/dev/nbdN`) that an export serves.
//!
//! The loop answers requests; a thread asks the kernel, because the kernel may wait for an answer meanwhile. States: connecting, served,
//! leaving. The loop looks at what the thread tells once a turn, and is woken for it.
//!
//! Invariants: no request is lost while the volume gets another length, and a mounted device is disconnected only when its volume has failed.
//! Otherwise it keeps its requests for the next process. That process takes it over only when no other client has written to the volume
//! since: the kernel would repeat requests over later ones, and its caches would be older than the volume. The epoch says so: it rises with each
//! open for writing. A process that serves a device notes its epoch in [`NOTES`], and the next epoch alone takes over.

use crate::device_arg::Wanted;
use crate::errors::UserError;
use anyhow::Result;
use client::OnUnavailable;
use env::{ConnId, Waker};
use nbd::NbdServer;
use nbd::kernel::{Kernel, KernelDevice, KernelError, device_len, devices};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use types::{Epoch, Time, codes};

/// Time for requests of a dead process under `freeze`: as long as it takes.
pub const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The same under `error`: enough to start a process again.
const ERROR_WAIT: Duration = Duration::from_secs(5);
/// Time for the kernel to give a device up at the end.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Directory with a note for each device that is served. It lasts as long as the devices: until the next boot.
const NOTES: &str = "/run/basalt";
/// First word of the backend of each device.
pub const BACKEND: &str = "basalt ";
/// Pause before a length that the kernel refused is told again.
const RESIZE_AGAIN: Duration = Duration::from_secs(5);
/// Time in which requests are answered before the kernel is told a length: it then waits for all of them, and can do nothing else meanwhile.
const PROMPT: Duration = Duration::from_secs(1);
/// Time in which the kernel repeats the requests of a dead process.
const REPEATED: Duration = Duration::from_secs(35);
/// Time for a process that was just killed to let its connection go, and how often that is looked at.
const GONE_MAX: Duration = Duration::from_secs(3);
const GONE_LOOK: Duration = Duration::from_millis(100);

/// Devices of dead processes that a process may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakesOver {
    /// It only reads: a device shows the same to each of its processes.
    Always,
    /// A writer: those that were served under the epoch before this one.
    After(Epoch),
    /// One of several writers. Others have written meanwhile, and no open fences what the dead process has sent.
    Never,
}

/// Whether a device on this host may wait for a process.
pub fn some_wait() -> bool {
    devices().iter().any(|(_, backend)| backend.starts_with(BACKEND))
}

/// A task for the thread.
enum Ask {
    Resize(u64),
    /// Disconnect it, if it is not in use or `force`.
    Leave {
        force: bool,
    },
}

/// Result of a task.
enum Told {
    Attached { index: u32, ours: UnixStream, again: bool },
    Failed(KernelError),
    Resized(Result<(), KernelError>),
    Left(Result<bool, KernelError>),
}

/// State of the device.
enum Stage {
    Connecting,
    Served { conn: ConnId },
    Leaving { until: Time, force: bool },
}

/// The device, as the loop sees it.
pub struct Device {
    ask: Sender<Ask>,
    told: Receiver<Told>,
    stage: Stage,
    path: String,
    /// Length that the kernel knows, or is being told.
    len_bytes: u64,
    is_resizing: bool,
    resize_at: Time,
    is_kept: bool,
}

/// Result of a turn.
#[derive(Debug)]
pub enum Turn {
    /// Nothing.
    Quiet,
    /// The kernel has the device. This is our end of its connection, for [`Device::serve`].
    Attached(UnixStream),
    /// It was disconnected, or waits for the next process.
    Over,
}

/// Opens the link to the kernel, before the volume is opened.
///
/// # Errors
/// The kernel has no NBD client.
pub fn link(wanted: Wanted) -> Result<Kernel> {
    if let Err(error) = env::real::become_io_flusher() {
        tracing::warn!(%error, "this process may wait for its own device when memory is short: it lacks CAP_SYS_RESOURCE");
    }
    Ok(Kernel::open().map_err(|error| unusable(&wanted.path(), &error))?)
}

/// Returns the time that requests wait for the next process when this one has died.
pub fn dead_wait(policy: OnUnavailable) -> Duration {
    match policy {
        OnUnavailable::Freeze => FOREVER,
        OnUnavailable::Wait(time) => time,
        OnUnavailable::Error => ERROR_WAIT,
    }
}

fn unusable(path: &str, error: &KernelError) -> UserError {
    let next = match error {
        KernelError::NoModule => "modprobe nbd".to_owned(),
        KernelError::Refused(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "run it as root, or with CAP_SYS_ADMIN".to_owned()
        }
        KernelError::Refused(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            format!("--device auto   # takes a free one; `nbd-client -d {path}` disconnects this one")
        }
        _ => "dmesg   # the kernel may have said more".to_owned(),
    };
    UserError::new(codes::KERNEL_DEVICE_FAILED, format!("{path} cannot be served: {error}"), next)
}

impl Device {
    /// Begins to connect it. `waker` wakes the loop.
    pub fn connect(
        kernel: Kernel,
        wanted: Wanted,
        device: KernelDevice,
        takes_over: TakesOver,
        waker: Waker,
    ) -> io::Result<Device> {
        let (ask, asked) = channel();
        let (tell, told) = channel();
        let len_bytes = device.len_bytes;
        let worker = Worker { kernel, wanted, device, takes_over, tell, waker };
        std::thread::Builder::new().name("nbd-device".to_owned()).spawn(move || worker.run(&asked))?;
        let (stage, path) = (Stage::Connecting, wanted.path());
        Ok(Device { ask, told, stage, path, len_bytes, is_resizing: false, resize_at: Time::ZERO, is_kept: false })
    }

    /// Whether it was left to the next process.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Returns the path of the device, once it is known.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes the results of the thread, and tells the kernel another length of the volume.
    ///
    /// # Errors
    /// The device cannot be connected.
    pub fn turn(&mut self, now: Time, server: &mut NbdServer, len_bytes: u64) -> Result<Turn> {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::Attached { index, ours, again } => {
                    self.attached(now, index, again);
                    return Ok(Turn::Attached(ours));
                }
                Told::Failed(error) => return Err(unusable(&self.path, &error).into()),
                Told::Resized(result) => self.resized(now, result),
                Told::Left(result) => {
                    self.left(result);
                    return Ok(Turn::Over);
                }
            }
        }
        match self.stage {
            Stage::Served { conn } if !server.is_connected(conn) => {
                tracing::warn!(device = self.path, "another command disconnected the device");
                return Ok(Turn::Over);
            }
            Stage::Served { conn } => self.follow(now, conn, server, len_bytes),
            Stage::Leaving { until, force } if now >= until && !self.is_resizing => {
                tracing::warn!(device = self.path, "the kernel does not give the device up");
                self.is_kept = !force;
                return Ok(Turn::Over);
            }
            _ => {}
        }
        Ok(Turn::Quiet)
    }

    /// The server answers on this connection from now on.
    pub fn serve(&mut self, conn: ConnId) {
        if matches!(self.stage, Stage::Connecting) {
            self.stage = Stage::Served { conn };
        }
    }

    /// Returns when [`Device::turn`] is due at the latest.
    pub fn deadline(&self) -> Time {
        match self.stage {
            // The kernel waits for answers of this process.
            _ if self.is_resizing => Time::NEVER,
            Stage::Leaving { until, .. } => until,
            _ if self.resize_at > Time::ZERO => self.resize_at,
            _ => Time::NEVER,
        }
    }

    /// Ends it, with the next turns that are not [`Turn::Over`]. One that is in use keeps its requests for the next process, unless `force`.
    pub fn leave(&mut self, now: Time, force: bool) {
        if !matches!(self.stage, Stage::Leaving { .. }) {
            self.stage = Stage::Leaving { until: now + LEAVE_MAX, force };
            // The thread lives as long as this end of its channel.
            let _ = self.ask.send(Ask::Leave { force });
        }
    }

    fn attached(&mut self, now: Time, index: u32, again: bool) {
        self.path = format!("/dev/nbd{index}");
        if again {
            self.len_bytes = device_len(index).unwrap_or(self.len_bytes);
            self.resize_at = now + REPEATED;
        }
        tracing::info!(device = self.path, again, "the kernel's device is connected");
    }

    /// Tells the kernel another length, when the requests of all clients are answered promptly.
    fn follow(&mut self, now: Time, conn: ConnId, server: &mut NbdServer, len_bytes: u64) {
        if self.is_resizing || now < self.resize_at {
            return;
        }
        self.resize_at = Time::ZERO;
        if len_bytes == self.len_bytes {
            return;
        }
        if server.oldest_request().is_some_and(|since| now.since(since) > PROMPT) {
            self.resize_at = now + PROMPT;
            return;
        }
        server.resize(conn, len_bytes);
        (self.len_bytes, self.is_resizing) = (len_bytes, true);
        let _ = self.ask.send(Ask::Resize(len_bytes));
    }

    fn resized(&mut self, now: Time, result: Result<(), KernelError>) {
        self.is_resizing = false;
        if let Stage::Leaving { until, .. } = &mut self.stage {
            *until = now + LEAVE_MAX;
        }
        let (device, len_bytes) = (&self.path, self.len_bytes);
        match result {
            Ok(()) => tracing::info!(device, len_bytes, "the device has another length"),
            Err(error) => {
                tracing::warn!(device, len_bytes, %error, "the device keeps its old length for now");
                (self.len_bytes, self.resize_at) = (0, now + RESIZE_AGAIN);
            }
        }
    }

    fn left(&mut self, result: Result<bool, KernelError>) {
        let device = &self.path;
        self.is_kept = matches!(result, Ok(false));
        match result {
            Ok(true) => tracing::info!(device, "the device is disconnected"),
            Ok(false) => {
                tracing::warn!(
                    device,
                    "the device is in use: its requests wait for the next `basalt nbd` of the volume"
                );
            }
            Err(error) => tracing::warn!(device, %error, "the device was not disconnected"),
        }
    }
}

/// The thread that asks the kernel.
struct Worker {
    kernel: Kernel,
    wanted: Wanted,
    device: KernelDevice,
    takes_over: TakesOver,
    tell: Sender<Told>,
    waker: Waker,
}

impl Worker {
    fn run(mut self, asked: &Receiver<Ask>) {
        let index = match self.attach() {
            Ok((index, ours, again)) => {
                self.told(Told::Attached { index, ours, again });
                index
            }
            Err(error) => return self.told(Told::Failed(error)),
        };
        while let Ok(ask) = asked.recv() {
            let told = match ask {
                Ask::Resize(len_bytes) => Told::Resized(self.kernel.resize(index, &self.device.backend, len_bytes)),
                Ask::Leave { force } if !force && is_in_use(index) => Told::Left(Ok(false)),
                Ask::Leave { .. } => Told::Left(self.kernel.disconnect(index).map(|()| true)),
            };
            self.told(told);
        }
    }

    fn told(&self, told: Told) {
        // A loop that has ended wants to know nothing.
        let _ = self.tell.send(told);
        self.waker.wake();
    }

    /// Connects the device that a dead process of the same volume has left behind, or another one. Returns its number, our end of the
    /// connection, and whether it was there already.
    fn attach(&mut self) -> Result<(u32, UnixStream, bool), KernelError> {
        let index = match self.wanted {
            Wanted::Auto => None,
            Wanted::Index(index) => Some(index),
        };
        for (left, backend) in devices() {
            if backend == self.device.backend
                && index.is_none_or(|index| index == left)
                && let Some(ours) = self.take_over(left)?
            {
                return Ok((left, ours, true));
            }
        }
        let (ours, end) = UnixStream::pair().map_err(KernelError::Socket)?;
        let index = self.kernel.connect(index, &self.device, &end)?;
        self.note(index);
        Ok((index, ours, false))
    }

    /// Takes over the device of a dead process, or ends it when others have written since. Returns our end of the new connection.
    fn take_over(&mut self, left: u32) -> Result<Option<UnixStream>, KernelError> {
        let looks = match self.takes_over {
            TakesOver::Never => return Ok(None),
            TakesOver::Always => 1,
            TakesOver::After(epoch) if !follows(noted(left, &self.device.backend), epoch) => {
                let device = format!("/dev/nbd{left}");
                tracing::warn!(device, "the volume was opened since by others: what waits at the device fails");
                self.kernel.disconnect(left)?;
                return Ok(None);
            }
            TakesOver::After(_) => GONE_MAX.as_millis() / GONE_LOOK.as_millis(),
        };
        for _ in 0..looks {
            let (ours, end) = UnixStream::pair().map_err(KernelError::Socket)?;
            match self.kernel.reconnect(left, &self.device, end, &ours) {
                // The note comes behind it: this session may go on to write without the device.
                Ok(true) => {
                    self.note(left);
                    return Ok(Some(ours));
                }
                // Another process serves it, or it is not gone yet.
                Ok(false) => std::thread::park_timeout(GONE_LOOK),
                Err(KernelError::Refused(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Notes under which epoch the device is served.
    fn note(&self, index: u32) {
        let TakesOver::After(epoch) = self.takes_over else { return };
        let text = format!("{}\n{}\n", self.device.backend, epoch.0);
        let written = std::fs::create_dir_all(NOTES).and_then(|()| std::fs::write(note_of(index), text));
        if let Err(error) = written {
            tracing::warn!(%error, file = %note_of(index).display(), "a later process cannot take the device over");
        }
    }
}

fn note_of(index: u32) -> PathBuf {
    PathBuf::from(format!("{NOTES}/nbd{index}.device"))
}

/// Returns the epoch under which a device of this backend was served last, as far as it is known.
fn noted(index: u32, backend: &str) -> Option<Epoch> {
    let text = std::fs::read_to_string(note_of(index)).ok()?;
    let (of, epoch) = text.trim_end().split_once('\n')?;
    epoch.parse().ok().filter(|_| of == backend).map(Epoch)
}

/// Whether a session comes right behind the one of `noted`: no other client has opened or changed the volume between the two.
fn follows(noted: Option<Epoch>, epoch: Epoch) -> bool {
    noted.is_some_and(|noted| noted.0.checked_add(1) == Some(epoch.0))
}

/// Whether a file system or another device may have it: then it cannot be opened alone.
fn is_in_use(index: u32) -> bool {
    let mut alone = std::fs::OpenOptions::new();
    alone.read(true).custom_flags(libc::O_EXCL).open(format!("/dev/nbd{index}")).is_err()
}

#[cfg(test)]
mod tests {
    use super::follows;
    use types::Epoch;

    #[test]
    fn device_is_taken_over_only_by_the_next_session() {
        assert!(follows(Some(Epoch(7)), Epoch(8)));
        for (noted, epoch) in [(None, 8), (Some(7), 7), (Some(7), 9), (Some(8), 7), (Some(u64::MAX), 0)] {
            assert!(!follows(noted.map(Epoch), Epoch(epoch)), "{noted:?}, {epoch}");
        }
    }
}
