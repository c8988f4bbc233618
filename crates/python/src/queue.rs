//! The completions of requests that an event loop has started.

use crate::buffers::{Target, joined};
use crate::errors::{OrRaise, check_fork, raised};
use clientthread::{Failure, Finished};
use device::Answer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use types::{Errno, IoBuf};

/// A queue. Its descriptor is readable while completions wait in it.
#[pyclass(frozen, module = "basalt._native")]
pub struct Queue(Arc<clientthread::Queue>);

/// The end of one request.
#[pyclass(frozen, module = "basalt._native")]
pub struct Completion {
    token: u64,
    result: Result<Answer, Errno>,
}

impl Queue {
    pub fn shared(&self) -> &Arc<clientthread::Queue> {
        &self.0
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>, depth: u32) -> PyResult<Queue> {
        check_fork(py)?;
        clientthread::Queue::new(depth).map(Queue).or_raise(py)
    }

    /// Returns the descriptor, which the queue owns.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        check_fork(py)?;
        self.0.descriptor().or_raise(py)
    }

    /// Takes the completions that wait, the oldest first, without blocking.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Completion>> {
        check_fork(py)?;
        let taken = self.0.take(0, clientthread::QUEUE_DEPTH_MAX as usize, None).or_raise(py)?;
        Ok(taken.into_iter().map(Completion::of).collect())
    }
}

impl Completion {
    fn of(Finished { tag, result, .. }: Finished) -> Completion {
        Completion { token: tag, result }
    }

    fn pieces(&self, py: Python<'_>, volume: &str) -> PyResult<&[IoBuf]> {
        let failed = |errno: &Errno| raised(py, &Failure::of_request(volume, *errno));
        self.result.as_ref().map(Answer::pieces).map_err(failed)
    }
}

#[pymethods]
impl Completion {
    /// The number that the program gave.
    #[getter]
    fn token(&self) -> u64 {
        self.token
    }

    /// Returns the bytes of a read; raises the failure of the request. `volume` is for the message.
    fn result<'py>(&self, py: Python<'py>, volume: &str) -> PyResult<Bound<'py, PyBytes>> {
        joined(py, self.pieces(py, volume)?)
    }

    /// Returns the lengths of extents, and whether each has data; raises the failure of the request.
    fn extents(&self, py: Python<'_>, volume: &str) -> PyResult<Vec<(u64, bool)>> {
        match &self.result {
            Ok(Answer::Extents(extents)) => Ok(extents.clone()),
            Ok(Answer::Done | Answer::Data(_)) => Err(raised(py, &Failure::bug("an answer of another kind"))),
            Err(errno) => Err(raised(py, &Failure::of_request(volume, *errno))),
        }
    }

    /// Copies the bytes of a read into a buffer, and returns their length; raises the failure of the request.
    fn into(&self, py: Python<'_>, volume: &str, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        let pieces = self.pieces(py, volume)?;
        Target::new(buffer)?.fill(py, pieces)
    }
}
