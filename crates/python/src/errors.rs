//! Failures as exceptions. The classes are in Python (`basalt/_errors.py`), which chooses one by the errno and the code.

use clientthread::Failure;
use pyo3::prelude::*;
use types::codes;

/// Returns the exception of a failure.
pub fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let made = py.import("basalt._errors").and_then(|errors| {
        let arguments = (failure.errno, codes::label(failure.code), failure.what.as_str(), failure.hint.as_str());
        errors.getattr("_raised")?.call1(arguments)
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A result of the library as one of Python.
pub trait OrRaise<T> {
    /// Turns the failure into an exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Failure> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|failure| raised(py, &failure))
    }
}

/// Refuses a call in a child of a `fork`: threads are missing there, and locks may be held for ever.
pub fn check_fork(py: Python<'_>) -> PyResult<()> {
    if clientthread::is_forked() {
        let what = "this process was forked from one that uses the library; connect in the child alone, or start it with \"spawn\"";
        return Err(raised(py, &Failure::misuse(libc::ENOTSUP, what)));
    }
    Ok(())
}
