//! The border of the ABI: every call runs inside [`call`].
//!
//! A panic becomes an error, an error becomes a negative errno, and its text stays with the thread. A process that was forked
//! while the library had threads is refused here, before any lock.

use clientthread::Failure;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a call.
pub fn call(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    if clientthread::is_forked() {
        return fail(Failure::misuse(libc::ENOTSUP, "this process was forked from one that uses the library"));
    }
    // State that outlives a panic is behind locks that ignore poison: maps and lists that are whole after each step.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => fail(failure),
        Err(_) => fail(Failure::bug("the library panicked in this call; standard error has the message")),
    }
}

fn fail(failure: Failure) -> c_int {
    let text = CString::new(failure.to_string().replace('\0', " ")).unwrap_or_default();
    // A thread that ends may call after its variables are gone.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    -failure.errno
}

/// Returns the text of the last failed call of this thread. It is valid until the next failure of this thread.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::{call, last_error};
    use clientthread::Failure;
    use std::ffi::CStr;

    #[allow(unsafe_code)]
    fn told() -> String {
        // SAFETY: the text is one of this thread, and no call fails between.
        unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_error_and_a_success_keeps_the_last_text() {
        assert_eq!(call(|| Err(Failure::invalid("a\0b"))), -libc::EINVAL);
        assert!(told().starts_with("BSLT-6003: a b;"), "{}", told());
        assert_eq!(call(|| panic!("on purpose")), -libc::EIO);
        assert!(told().starts_with("BSLT-9001: the library panicked"), "{}", told());
        assert_eq!(call(|| Ok(7)), 7);
        assert!(told().starts_with("BSLT-9001"));
    }
}
