//! Waiting: without the GIL, and with an ear for signals.

use crate::errors::OrRaise;
use clientthread::{Failure, Pending};
use pyo3::prelude::*;
use std::time::Duration;

/// Pieces of a wait. After each the handlers of signals run, if this is the main thread. A completion ends a wait at once.
pub const SLICE: Duration = Duration::from_millis(50);

/// Waits until `step` has an answer; it waits for [`SLICE`] at most.
///
/// # Errors
/// The failure of the answer, or the exception of a signal's handler. What was waited for goes on.
pub fn until<A: Send>(py: Python<'_>, mut step: impl FnMut() -> Option<Result<A, Failure>> + Send) -> PyResult<A> {
    loop {
        if let Some(answer) = py.detach(&mut step) {
            return answer.or_raise(py);
        }
        py.check_signals()?;
    }
}

/// Waits for a pending answer.
///
/// # Errors
/// The same as of [`until`].
pub fn answer<A: Send>(py: Python<'_>, pending: Result<Pending<A>, Failure>) -> PyResult<A> {
    let pending = pending.or_raise(py)?;
    until(py, move || pending.wait_for(SLICE))
}
