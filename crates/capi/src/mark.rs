//! The tag of a request of a C program: its pointer, and the buffers of a read.

use crate::memory::Buffers;
use clientthread::Finished;
use std::ffi::c_int;
use types::Errno;

/// A cluster, a volume and a queue of this library.
pub type Cluster = clientthread::Cluster<Mark>;
pub type Volume = clientthread::Volume<Mark>;
pub type Queue = clientthread::Queue<Mark>;

/// The tag.
#[derive(Debug)]
pub struct Mark {
    /// `user_data` of the program.
    pub user: usize,
    /// Where the data of a read goes.
    pub target: Option<Buffers>,
}

/// Copies the data of a read into the program's buffers. Returns the pointer that the program gave, and the outcome.
///
/// # Safety
/// The buffers of the request are writable, and no other thread uses them.
#[allow(unsafe_code)]
pub unsafe fn deliver(finished: Finished<Mark>) -> (usize, Result<(), Errno>) {
    if let (Ok(answer), Some(target)) = (&finished.result, &finished.tag.target) {
        // SAFETY: the caller's promise.
        unsafe { target.scatter(answer.pieces()) };
    }
    (finished.tag.user, finished.result.map(drop))
}

/// Returns the result of an event.
pub fn result_of(outcome: Result<(), Errno>) -> c_int {
    outcome.map_or_else(|errno| -errno.os(), |()| 0)
}
