//! A cluster that a program is connected to.

use crate::admin;
use crate::errors::{OrRaise, check_fork};
use crate::volume::Volume;
use crate::wait::{self, SLICE};
use clientthread::{Access, Failure, Settings};
use control::admin::{AdminAnswer, AdminAsk};
use pyo3::prelude::*;
use std::time::Duration;

/// A cluster. Its threads end when it and its volumes are dropped.
#[pyclass(frozen, module = "basalt._native")]
pub struct Cluster(clientthread::Cluster);

/// Returns a time of a program, in seconds.
fn seconds(name: &str, value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value).map_err(|_| Failure::invalid(format!("{name} is {value} s: it is no time")))
}

impl Cluster {
    /// Asks the leading metadata server, and waits for its answer.
    pub fn ask(&self, py: Python<'_>, ask: AdminAsk) -> PyResult<AdminAnswer> {
        check_fork(py)?;
        wait::answer(py, self.0.ask(ask))
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
    ) -> PyResult<Cluster> {
        check_fork(py)?;
        let settings = Settings {
            kind: "python".to_owned(),
            connect_timeout: seconds("connect_timeout", connect_timeout).or_raise(py)?,
            io_timeout: io_timeout.map(|value| seconds("io_timeout", value)).transpose().or_raise(py)?,
            full_wait: seconds("full_wait", full_wait).or_raise(py)?,
            ..Settings::new(clientthread::metas(meta).or_raise(py)?)
        };
        let mut connecting = clientthread::Cluster::begin_connect(settings).or_raise(py)?;
        wait::until(py, move || connecting.wait_for(SLICE)).map(Cluster)
    }

    /// Ends the threads. All volumes are closed before.
    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        self.0.stop().or_raise(py)?;
        py.detach(|| self.0.join());
        Ok(())
    }

    /// Opens `pool/volume` or `pool/volume@snapshot`.
    fn open(&self, py: Python<'_>, name: &str, read_only: bool, steal: bool) -> PyResult<Volume> {
        check_fork(py)?;
        let access = match (read_only, steal) {
            (false, false) => Access::Write,
            (false, true) => Access::Steal,
            (true, false) => Access::Read,
            (true, true) => {
                return Err(Failure::invalid("a volume that is opened for reading is not stolen")).or_raise(py);
            }
        };
        wait::answer(py, self.0.begin_open(name, access)).map(Volume::new)
    }

    /// Performs one request of an administrator: its name, and its arguments by name. Returns the answer in plain values.
    fn admin(&self, py: Python<'_>, request: &str, arguments: &Bound<'_, pyo3::types::PyDict>) -> PyResult<Py<PyAny>> {
        admin::perform(self, py, request, &admin::Arguments(arguments))
    }
}
