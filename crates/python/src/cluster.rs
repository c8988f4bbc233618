//! A cluster that a program is connected to.

use crate::admin;
use crate::errors::{OrRaise, check_fork};
use crate::views;
use crate::volume::Volume;
use crate::wait::{self, SLICE};
use clientthread::{Access, Failure, OnUnavailable, Pending, STOP_MAX, Settings};
use control::admin::{AdminAnswer, AdminAsk, SnapshotView};
use osdpages::{Directory, Space, SpaceError};
use pyo3::prelude::*;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::codes;

/// A cluster. Its threads end when it and its volumes are dropped.
#[pyclass(frozen, module = "basalt._native")]
pub struct Cluster {
    handle: Arc<clientthread::Cluster>,
    /// Set by the first call of `stop`.
    stopping: OnceLock<Pending<()>>,
}

/// An open without an answer. When it is dropped, a volume that is opened nevertheless is closed.
#[pyclass(frozen, module = "basalt._native")]
pub struct Opening(Pending<clientthread::Volume>);

#[pymethods]
impl Opening {
    /// Waits for the volume. A wait that ends by a signal gives the open up, too.
    fn wait(&self, py: Python<'_>) -> PyResult<Volume> {
        let waited = wait::until(py, || self.0.wait_for(SLICE));
        if waited.is_err() {
            self.0.abandon();
        }
        waited.map(Volume::new)
    }

    /// Gives the open up: a thread that waits for it gets an exception.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        self.0.abandon();
        Ok(())
    }
}

/// Returns a time of a program, in seconds.
fn seconds(name: &str, value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value).map_err(|_| Failure::invalid(format!("{name} is {value} s: it is no time")))
}

/// Returns the policy that a program chose: a word, or the seconds of a wait.
fn policy(value: &Bound<'_, PyAny>) -> Result<OnUnavailable, Failure> {
    if let Ok(bound) = value.extract::<f64>() {
        let (min, max) = (OnUnavailable::WAIT_MIN.as_secs(), OnUnavailable::WAIT_MAX.as_secs());
        let wrong = || Failure::invalid(format!("on_unavailable is {bound} s: it is not within {min} to {max}"));
        return OnUnavailable::wait(seconds("on_unavailable", bound)?).ok_or_else(wrong);
    }
    match value.extract::<String>().as_deref() {
        Ok("freeze") => Ok(OnUnavailable::Freeze),
        Ok("wait") => Ok(OnUnavailable::Wait(OnUnavailable::WAIT)),
        Ok("error") => Ok(OnUnavailable::Error),
        _ => Err(Failure::invalid("on_unavailable is none of \"freeze\", \"wait\", \"error\" and a number of seconds")),
    }
}

/// A way to the metadata server for a thread without Python.
struct Asking(Arc<clientthread::Cluster>);

impl Directory for Asking {
    type Error = Failure;

    fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer, Failure> {
        self.0.ask(ask)?.wait()
    }
}

impl Asking {
    /// Returns the space of a volume, and its snapshots.
    fn space(&self, name: &str) -> Result<(Space, Vec<SnapshotView>), Failure> {
        let strange = || Failure::bug("the metadata server answered another question");
        let AdminAnswer::Volume(volume) = self.ask(AdminAsk::VolumeInfo { name: name.to_owned() })? else {
            return Err(strange());
        };
        let space = osdpages::measure(self, &volume).map_err(|error| match error {
            SpaceError::Directory(failure) => failure,
            SpaceError::Strange(_) => strange(),
            silent @ SpaceError::Silent { .. } => Failure {
                errno: libc::EIO,
                hint: "basalt status shows which PGs do not serve".to_owned(),
                ..Failure::new(codes::REQUESTS_NOT_ANSWERED, silent)
            },
        })?;
        let AdminAnswer::Snapshots(snapshots) = self.ask(AdminAsk::SnapshotList { of: volume.name.clone() })? else {
            return Err(strange());
        };
        Ok((space, snapshots))
    }
}

impl Cluster {
    fn stopping(&self) -> &Pending<()> {
        self.stopping.get_or_init(|| self.handle.begin_stop())
    }

    /// Asks the leading metadata server, and waits for its answer.
    pub fn ask(&self, py: Python<'_>, ask: AdminAsk) -> PyResult<AdminAnswer> {
        check_fork(py)?;
        wait::answer(py, self.handle.ask(ask))
    }
}

#[pymethods]
impl Cluster {
    #[new]
    fn new(
        py: Python<'_>,
        meta: Option<&str>,
        connect_timeout: f64,
        io_timeout: Option<f64>,
        full_wait: f64,
        on_unavailable: &Bound<'_, PyAny>,
    ) -> PyResult<Cluster> {
        check_fork(py)?;
        let settings = Settings {
            kind: "python".to_owned(),
            connect_timeout: seconds("connect_timeout", connect_timeout).or_raise(py)?,
            io_timeout: io_timeout.map(|value| seconds("io_timeout", value)).transpose().or_raise(py)?,
            full_wait: seconds("full_wait", full_wait).or_raise(py)?,
            on_unavailable: policy(on_unavailable).or_raise(py)?,
            ..Settings::new(clientthread::metas(meta).or_raise(py)?)
        };
        let mut connecting = clientthread::Cluster::begin_connect(settings).or_raise(py)?;
        let handle = wait::until(py, move || connecting.wait_for(SLICE))?;
        Ok(Cluster { handle: Arc::new(handle), stopping: OnceLock::new() })
    }

    /// Begins to end the threads, and to close the volumes that are left. A repetition changes nothing.
    fn begin_stop(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        self.stopping();
        Ok(())
    }

    /// Ends the threads, and waits for that; a thread that takes longer than it should ends by itself.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        let stopping = self.stopping();
        let mut slices_left = STOP_MAX.as_millis().div_ceil(SLICE.as_millis());
        wait::until(py, || {
            slices_left = slices_left.saturating_sub(1);
            let has_ended = stopping.has_ended_in(SLICE);
            if has_ended {
                self.handle.join();
            }
            (has_ended || slices_left == 0).then_some(Ok(()))
        })
    }

    /// Begins to open `pool/volume` or `pool/volume@snapshot`.
    fn begin_open(&self, py: Python<'_>, name: &str, read_only: bool, steal: bool) -> PyResult<Opening> {
        check_fork(py)?;
        let access = match (read_only, steal) {
            (false, false) => Access::Write,
            (false, true) => Access::Steal,
            (true, false) => Access::Read,
            (true, true) => {
                return Err(Failure::invalid("a volume that is opened for reading is not stolen")).or_raise(py);
            }
        };
        self.handle.begin_open(name, access).map(Opening).or_raise(py)
    }

    /// Returns the space of a volume: a dict with that of its snapshots by number.
    fn space<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        check_fork(py)?;
        let asking = Asking(Arc::clone(&self.handle));
        let (answer, answered) = std::sync::mpsc::channel();
        // It asks many servers, one after another: a signal is not to wait for that.
        std::thread::spawn(move || drop(answer.send(asking.space(&name))));
        let answered = std::sync::Mutex::new(answered);
        let (space, snapshots) = wait::until(py, || {
            let answered = answered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match answered.recv_timeout(SLICE) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err(Failure::bug("the thread that measured has ended"))),
            }
        })?;
        views::space(py, &space, &snapshots)
    }

    /// Performs one request of an administrator: its name, and its arguments by name. Returns the answer in plain values.
    fn admin(&self, py: Python<'_>, request: &str, arguments: &Bound<'_, pyo3::types::PyDict>) -> PyResult<Py<PyAny>> {
        admin::perform(self, py, request, &admin::Arguments(arguments))
    }
}
