//! An open volume: requests that block, and requests whose completions a queue gets.

use crate::buffers::{Source, Target, joined};
use crate::errors::{OrRaise, check_fork, raised};
use crate::queue::Queue;
use crate::wait::{self, SLICE};
use clientthread::{Failure, Pending};
use device::{Answer, REQUEST_LEN_MAX, Request};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Errno, SnapshotId};

/// A volume. When it is dropped it is closed, in the background.
#[pyclass(frozen, module = "basalt._native")]
pub struct Volume {
    handle: clientthread::Volume,
    /// Set by the first call that closes it; or the failure to begin that.
    closing: OnceLock<Result<Pending<()>, Failure>>,
    /// A call of `close` has told how that ended.
    is_told: AtomicBool,
}

/// An unsigned number of the program; Python's integers have any sign and size.
fn number(py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(py) {
        true => raised(py, &Failure::invalid(format!("{name} is {value}: it is not in 0..2^64"))),
        false => error,
    })
}

/// Returns the request for extents.
fn extents(
    py: Python<'_>,
    offset: &Bound<'_, PyAny>,
    length: &Bound<'_, PyAny>,
    since: Option<&Bound<'_, PyAny>>,
) -> PyResult<Request> {
    let (offset, len) = (number(py, "offset", offset)?, number(py, "length", length)?);
    let since = since.map(|since| number(py, "since", since)).transpose()?;
    Ok(Request::Extents { offset, len, since: since.map(SnapshotId) })
}

impl Volume {
    pub fn new(handle: clientthread::Volume) -> Volume {
        Volume { handle, closing: OnceLock::new(), is_told: AtomicBool::new(false) }
    }

    fn closing(&self) -> &Result<Pending<()>, Failure> {
        self.closing.get_or_init(|| self.handle.begin_close())
    }

    /// Checks a range, and names its fault.
    fn check(&self, py: Python<'_>, request: &Request) -> PyResult<()> {
        self.handle.check(request).map_err(|failure| {
            let why = request.span().and_then(|(offset, len)| self.fault(offset, len, request));
            let named =
                why.map(|why| Failure { what: format!("{}: {why}", self.handle.info().name), ..failure.clone() });
            raised(py, &named.filter(|_| failure.errno == libc::EINVAL).unwrap_or(failure))
        })
    }

    /// Returns the rule that a range breaks.
    fn fault(&self, offset: u64, len: u64, request: &Request) -> Option<String> {
        let info = self.handle.info();
        let block = u64::from(info.block_min);
        let holds_bytes = matches!(request, Request::Read { .. } | Request::Write { .. });
        if len == 0 {
            return Some("the request is empty".to_owned());
        }
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Some(format!("offset {offset} and length {len} are not multiples of {block}"));
        }
        if holds_bytes && len > REQUEST_LEN_MAX {
            return Some(format!("the request has {len} bytes, more than {REQUEST_LEN_MAX}"));
        }
        let is_outside = offset.checked_add(len).is_none_or(|end| end > info.len_bytes);
        is_outside.then(|| format!("offset {offset} and length {len} lie outside its {} bytes", info.len_bytes))
    }

    /// Performs a request and waits for it. When a signal ends the wait, the request goes on.
    fn perform(&self, py: Python<'_>, request: Request) -> PyResult<Answer> {
        let queue = clientthread::Queue::new(1).or_raise(py)?;
        self.handle.submit(&queue, 0, request).or_raise(py)?;
        let finished = wait::until(py, || match queue.take(1, 1, Some(SLICE)) {
            Ok(mut taken) => taken.pop().map(Ok),
            Err(failure) => Some(Err(failure)),
        })?;
        finished.result.map_err(|errno| raised(py, &self.handle.failure(errno)))
    }

    /// Returns the bytes of a write after all checks, which come before any copy.
    fn source(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<Source> {
        let source = Source::new(data)?;
        // Only a range decides, so a read stands for a write.
        self.check(py, &Request::Read { offset, len: source.len() })?;
        if self.handle.info().read_only {
            return Err(raised(py, &self.handle.failure(Errno::ReadOnly)));
        }
        Ok(source)
    }

    fn submit(&self, py: Python<'_>, queue: &Queue, token: u64, request: Request) -> PyResult<()> {
        self.check(py, &request)?;
        self.handle.submit(queue.shared(), token, request).or_raise(py)
    }
}

#[pymethods]
impl Volume {
    /// `pool/volume`, or `pool/volume@snapshot`.
    #[getter]
    fn name(&self) -> &str {
        &self.handle.info().name
    }

    /// Length in bytes when it was opened.
    #[getter]
    fn size(&self) -> u64 {
        self.handle.info().len_bytes
    }

    /// Offsets and lengths are multiples of this.
    #[getter]
    fn block_size(&self) -> u32 {
        self.handle.info().block_min
    }

    /// Requests that are aligned to this are cheaper.
    #[getter]
    fn preferred_block_size(&self) -> u32 {
        self.handle.info().block_preferred
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.handle.info().read_only
    }

    /// Whether a close has begun.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.get().is_some()
    }

    /// Begins to close the volume. A repetition changes nothing.
    fn begin_close(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        self.closing();
        Ok(())
    }

    /// Closes the volume: requests in flight end or are given up, and meta is told. It waits also when another call has begun that.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        let closing = self.closing();
        wait::until(py, || {
            let has_ended = closing.as_ref().map_or(true, |pending| pending.has_ended_in(SLICE));
            // The first call that comes here tells the outcome.
            has_ended.then(|| match closing {
                _ if self.is_told.swap(true, Ordering::Relaxed) => Ok(()),
                Ok(pending) => pending.wait_for(Duration::ZERO).unwrap_or(Ok(())),
                Err(failure) => Err(failure.clone()),
            })
        })
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        check_fork(py)?;
        let request = Request::Read { offset: number(py, "offset", offset)?, len: number(py, "length", length)? };
        self.check(py, &request)?;
        joined(py, self.perform(py, request)?.pieces())
    }

    fn readinto(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        check_fork(py)?;
        let (offset, target) = (number(py, "offset", offset)?, Target::new(buffer)?);
        let request = Request::Read { offset, len: target.len()? };
        self.check(py, &request)?;
        let answer = self.perform(py, request)?;
        target.fill(py, answer.pieces())
    }

    fn write(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        check_fork(py)?;
        let offset = number(py, "offset", offset)?;
        let source = self.source(py, offset, data)?;
        let (buf, len) = (source.copy(py)?, source.len());
        // A buffer of the program cannot be resized while it is held, and the wait may be long.
        drop(source);
        self.perform(py, Request::Write { offset, buf, fua: false })?;
        Ok(len)
    }

    /// Returns the lengths of the extents from `offset` on, and whether each has data, or may differ from the snapshot `since`. They
    /// cover the length, or its first `EXTENTS_BYTES_MAX` bytes.
    fn extents(
        &self,
        py: Python<'_>,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        since: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<(u64, bool)>> {
        check_fork(py)?;
        let request = extents(py, offset, length, since)?;
        self.check(py, &request)?;
        match self.perform(py, request)? {
            Answer::Extents(extents) => Ok(extents),
            Answer::Done | Answer::Data(_) => Err(raised(py, &Failure::bug("an answer of another kind"))),
        }
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(py)?;
        self.perform(py, Request::Flush).map(drop)
    }

    fn discard(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, length: &Bound<'_, PyAny>) -> PyResult<()> {
        check_fork(py)?;
        let request = Request::Trim { offset: number(py, "offset", offset)?, len: number(py, "length", length)? };
        self.check(py, &request)?;
        self.perform(py, request).map(drop)
    }

    fn write_zeroes(
        &self,
        py: Python<'_>,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        allocate: bool,
    ) -> PyResult<()> {
        check_fork(py)?;
        let (offset, len) = (number(py, "offset", offset)?, number(py, "length", length)?);
        let request = Request::WriteZeroes { offset, len, no_hole: allocate };
        self.check(py, &request)?;
        self.perform(py, request).map(drop)
    }

    fn submit_read(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        check_fork(py)?;
        let request = Request::Read { offset: number(py, "offset", offset)?, len: number(py, "length", length)? };
        self.submit(py, queue, token, request)
    }

    fn submit_readinto(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        check_fork(py)?;
        let (offset, len) = (number(py, "offset", offset)?, Target::new(buffer)?.len()?);
        self.submit(py, queue, token, Request::Read { offset, len })
    }

    /// Returns the number of bytes.
    fn submit_write(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        check_fork(py)?;
        let offset = number(py, "offset", offset)?;
        let source = self.source(py, offset, data)?;
        let ticket = queue.shared().admit(token, source.len()).or_raise(py)?;
        match source.copy(py) {
            Ok(buf) => self.handle.send(Request::Write { offset, buf, fua: false }, ticket).or_raise(py)?,
            Err(error) => {
                ticket.cancel();
                return Err(error);
            }
        }
        Ok(source.len())
    }

    fn submit_extents(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        since: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        check_fork(py)?;
        let request = extents(py, offset, length, since)?;
        self.submit(py, queue, token, request)
    }

    fn submit_flush(&self, py: Python<'_>, queue: &Queue, token: u64) -> PyResult<()> {
        check_fork(py)?;
        self.submit(py, queue, token, Request::Flush)
    }

    fn submit_discard(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        check_fork(py)?;
        let request = Request::Trim { offset: number(py, "offset", offset)?, len: number(py, "length", length)? };
        self.submit(py, queue, token, request)
    }

    fn submit_write_zeroes(
        &self,
        py: Python<'_>,
        queue: &Queue,
        token: u64,
        offset: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        allocate: bool,
    ) -> PyResult<()> {
        check_fork(py)?;
        let (offset, len) = (number(py, "offset", offset)?, number(py, "length", length)?);
        self.submit(py, queue, token, Request::WriteZeroes { offset, len, no_hole: allocate })
    }
}
