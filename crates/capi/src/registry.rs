//! Handles of a C program: numbers in the shape of pointers.
//!
//! A number is given once in the life of a process and names a thing of one kind. So a handle that is closed, of another kind or
//! invented is found out by a look-up, without any access through it.

use crate::abi::{BasaltCluster, BasaltQueue, BasaltVolume};
use crate::mark::{Cluster, Queue, Volume};
use clientthread::Failure;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub static CLUSTERS: Registry<BasaltCluster, Cluster> = Registry::new("cluster");
pub static VOLUMES: Registry<BasaltVolume, Volume> = Registry::new("volume");
pub static QUEUES: Registry<BasaltQueue, Queue> = Registry::new("queue");

/// The next number. One counter serves all kinds.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// The handles of one kind: `H` is the type behind the pointer in C, `T` the thing.
pub struct Registry<H, T> {
    kind: &'static str,
    things: RwLock<BTreeMap<usize, Arc<T>>>,
    /// A handle is only a number here, so the registry is shared between threads whatever `H` is.
    _handle: std::marker::PhantomData<fn(*mut H)>,
}

impl<H, T> Registry<H, T> {
    const fn new(kind: &'static str) -> Registry<H, T> {
        Registry { kind, things: RwLock::new(BTreeMap::new()), _handle: std::marker::PhantomData }
    }

    /// Gives a thing its handle.
    pub fn insert(&self, thing: Arc<T>) -> *mut H {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.things.write().unwrap_or_else(PoisonError::into_inner).insert(number, thing);
        std::ptr::without_provenance_mut(number)
    }

    /// # Errors
    /// EINVAL for a null pointer, EBADF for a handle that is not open.
    pub fn get(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// Takes a handle away from the program.
    ///
    /// # Errors
    /// The same as of [`Registry::get`].
    pub fn remove(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        things.remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: *mut H) -> Failure {
        let kind = self.kind;
        if handle.is_null() {
            return Failure::invalid(format!("the {kind} is a null pointer"));
        }
        Failure::misuse(libc::EBADF, format!("the handle is no open {kind}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Registry;
    use std::sync::Arc;

    #[test]
    fn a_handle_is_refused_before_it_is_given_and_after_it_is_closed() {
        let (first, second) = (Registry::<u8, &str>::new("first"), Registry::<u8, &str>::new("second"));
        let handle = first.insert(Arc::new("thing"));
        assert_eq!(first.get(handle).as_deref(), Ok(&"thing"));
        assert_eq!(second.get(handle).expect_err("of another kind").errno, libc::EBADF);
        assert!(first.remove(handle).is_ok());
        assert_eq!(first.remove(handle).expect_err("closed").errno, libc::EBADF);
        assert_eq!(first.get(std::ptr::null_mut()).expect_err("null").errno, libc::EINVAL);
        assert_ne!(first.insert(Arc::new("other")), handle, "a number is never given again");
    }
}
