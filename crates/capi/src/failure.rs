//! Errors as a C program sees them: an errno, and one line with the BSLT code, the cause and the next step.

use api::AdminError;
use env::EnvError;
use std::ffi::{CStr, CString, c_int};
use std::fmt::Display;
use std::sync::LazyLock;
use types::Errno;
use types::codes;
use types::control::Refusal;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Positive; the call returns it negated.
    pub errno: c_int,
    pub text: String,
}

impl Failure {
    /// Returns the failure of an error code, with the advice of the registry.
    pub fn new(code: u32, what: impl Display) -> Failure {
        control::refuse(code, what).into()
    }

    /// Returns the failure of a call that breaks a rule of the header.
    pub fn misuse(errno: c_int, what: impl Display) -> Failure {
        Failure { errno, ..Failure::new(codes::BAD_CALL, what) }
    }

    /// Returns the failure of the system: no thread, descriptor or ring.
    pub fn of_system(what: &str, error: &std::io::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Failure { errno, ..Failure::new(codes::NO_RESOURCES, format!("{what}: {error}")) }
    }

    /// Returns the failure of a wrong argument.
    pub fn invalid(what: impl Display) -> Failure {
        Failure::misuse(libc::EINVAL, what)
    }

    /// Returns the failure of a request to a volume.
    pub fn of_request(volume: &str, errno: Errno) -> Failure {
        Failure { errno: errno.os(), ..Failure::new(code_of(errno), format!("{volume}: {errno}")) }
    }

    /// Returns the failure after a panic of this library.
    pub fn bug(what: impl Display) -> Failure {
        Failure::new(codes::BUG, what)
    }
}

impl From<Refusal> for Failure {
    fn from(why: Refusal) -> Failure {
        Failure { errno: errno_of(why.code), text: format!("{}: {}", codes::label(why.code), why.message) }
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        match error {
            AdminError::Refused(why) => why.into(),
            // The text begins with the code and ends with the advice.
            other => Failure { errno: errno_of(other.code()), text: other.to_string() },
        }
    }
}

impl From<EnvError> for Failure {
    fn from(error: EnvError) -> Failure {
        match error {
            EnvError::NoIoUring { .. } => Failure::new(codes::NO_IO_URING, error),
            other => Failure::new(codes::NO_RESOURCES, other),
        }
    }
}

/// Returns the errno of an error code. The header lists the pairs.
fn errno_of(code: u32) -> c_int {
    match code {
        codes::BAD_CALL | codes::BAD_NAME | codes::BAD_REQUEST | codes::VOLUME_OF_OTHER_CLUSTER => libc::EINVAL,
        codes::POOL_UNKNOWN | codes::VOLUME_UNKNOWN => libc::ENOENT,
        codes::VOLUME_HELD => libc::EBUSY,
        codes::META_UNAVAILABLE | codes::NOT_LEADER | codes::HOST_NAME_UNRESOLVED => libc::EHOSTUNREACH,
        codes::REQUESTS_NOT_ANSWERED => libc::ETIMEDOUT,
        codes::META_BUSY | codes::POOL_NOT_READY | codes::VOLUME_RECOVERING => libc::EAGAIN,
        codes::SESSION_FENCED | codes::VOLUME_TAKEN_OVER => libc::ESTALE,
        codes::READ_ONLY => libc::EROFS,
        codes::NO_SPACE_LEFT => libc::ENOSPC,
        codes::TOO_MANY_VOLUMES => libc::EMFILE,
        codes::NO_IO_URING => libc::EPERM,
        _ => libc::EIO,
    }
}

/// Returns the error code of the outcome of a request. A wrong request is one that breaks the rules of the header.
fn code_of(errno: Errno) -> u32 {
    if errno == Errno::Invalid { codes::BAD_CALL } else { errno.code() }
}

/// Lines of `basalt_strerror`: they live as long as the process.
static LINES: LazyLock<Vec<(c_int, CString)>> = LazyLock::new(|| {
    let line = |errno: Errno| (errno.os(), CString::new(Failure::new(code_of(errno), errno).text).unwrap_or_default());
    Errno::ALL.into_iter().map(line).collect()
});

/// Returns one line about the result of an event.
pub fn line_of(result: c_int) -> &'static CStr {
    if result >= 0 {
        return c"done";
    }
    let known = LINES.iter().find(|(errno, _)| *errno == result.saturating_neg());
    known.map_or(c"no result of a request; basalt_last_error() describes the errors of calls", |(_, line)| {
        line.as_c_str()
    })
}

#[cfg(test)]
mod tests {
    use super::{Failure, line_of};
    use types::{Errno, codes};

    #[test]
    fn a_failure_has_an_errno_a_code_and_a_next_step() {
        let failure = Failure::new(codes::VOLUME_UNKNOWN, "volume \"a/b\" does not exist");
        assert_eq!(failure.errno, libc::ENOENT);
        assert_eq!(failure.text, "BSLT-2011: volume \"a/b\" does not exist; list volumes with `basalt volume ls`");
        assert_eq!(Failure::bug("x").errno, libc::EIO);
    }

    #[test]
    fn each_outcome_of_a_request_has_one_line_with_its_code() {
        for errno in Errno::ALL {
            let line = line_of(-errno.os()).to_str().expect("text");
            assert!(
                line.starts_with("BSLT-") && line.contains(&format!(": {errno}; ")) && !line.contains('\n'),
                "{line}"
            );
        }
        assert_eq!(line_of(0), c"done");
        assert!(line_of(i32::MIN).to_bytes().starts_with(b"no result"));
    }
}
