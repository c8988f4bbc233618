//! Memory of the program: any object with the buffer protocol whose bytes are contiguous.
//!
//! Bytes are copied with the GIL held, by functions of Python that check the object's layout, so no reference into memory of the
//! program exists. Another thread that changes a buffer without the GIL (numpy does) makes bytes torn, and nothing worse.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use types::{IoBuf, IoBufMut};

/// Returns a view of the bytes of an object, whatever its elements are.
fn bytes_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    PyMemoryView::from(object)?.call_method1("cast", ("B",))
}

/// Bytes that a write takes.
pub struct Source(PyBuffer<u8>);

impl Source {
    /// # Errors
    /// TypeError for an object without buffer, or one whose bytes are not contiguous.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        match PyBuffer::get(object) {
            Ok(buffer) if buffer.is_c_contiguous() => Ok(Source(buffer)),
            _ => PyBuffer::get(&bytes_of(object)?).map(Source),
        }
    }

    pub fn len(&self) -> u64 {
        self.0.len_bytes() as u64
    }

    /// Copies the bytes.
    ///
    /// # Errors
    /// When the object breaks the protocol.
    pub fn copy(&self, py: Python<'_>) -> PyResult<IoBuf> {
        let mut buf = IoBufMut::new(self.0.len_bytes());
        self.0.copy_to_slice(py, &mut buf)?;
        Ok(buf.freeze())
    }
}

/// Memory that a read fills.
pub struct Target<'py>(Bound<'py, PyAny>);

impl<'py> Target<'py> {
    /// # Errors
    /// TypeError for an object without buffer, one whose bytes are not contiguous, or one that may only be read.
    pub fn new(object: &Bound<'py, PyAny>) -> PyResult<Target<'py>> {
        let view = bytes_of(object)?;
        if view.getattr("readonly")?.is_truthy()? {
            return Err(PyTypeError::new_err("the buffer may only be read"));
        }
        Ok(Target(view))
    }

    /// # Errors
    /// When the object breaks the protocol.
    pub fn len(&self) -> PyResult<u64> {
        self.0.len().map(|len| len as u64)
    }

    /// Copies pieces of data, one after another. Returns their length.
    ///
    /// # Errors
    /// ValueError when the buffer is shorter: it was changed meanwhile.
    pub fn fill(&self, py: Python<'py>, pieces: &[IoBuf]) -> PyResult<u64> {
        let mut at = 0;
        for piece in pieces {
            let end = at + piece.len();
            let part = self.0.get_item(PySlice::new(py, at as isize, end as isize, 1))?;
            let part = PyBuffer::<u8>::get(&part)?;
            if part.len_bytes() != piece.len() {
                return Err(PyValueError::new_err("the buffer is shorter than the read"));
            }
            part.copy_from_slice(py, piece)?;
            at = end;
        }
        Ok(at as u64)
    }
}

/// Returns pieces of data as one object.
///
/// # Errors
/// MemoryError.
pub fn joined<'py>(py: Python<'py>, pieces: &[IoBuf]) -> PyResult<Bound<'py, PyBytes>> {
    let len = pieces.iter().map(|piece| piece.len()).sum();
    PyBytes::new_with(py, len, |mut rest| {
        for piece in pieces {
            let (here, after) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = after;
        }
        Ok(())
    })
}
