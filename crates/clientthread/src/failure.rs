//! Errors as a program sees them: an errno for its logic, and for its user the BSLT code, the cause and the next step.

use api::AdminError;
use env::EnvError;
use std::ffi::c_int;
use std::fmt::{self, Display};
use types::Errno;
use types::codes;
use types::control::Refusal;

/// Why a call failed. It is shown as `BSLT-NNNN: what; hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// An errno of Linux, positive: few values, for decisions of the program.
    pub errno: c_int,
    /// Number of the error code in `types::codes`.
    pub code: u32,
    /// The failure, the thing that it concerns, and the reason.
    pub what: String,
    /// The next command or action.
    pub hint: String,
}

impl Failure {
    /// Returns the failure of an error code, with the advice of the registry.
    pub fn new(code: u32, what: impl Display) -> Failure {
        let hint = codes::lookup(code).map_or("", |row| row.fix);
        Failure { errno: errno_of(code), code, what: what.to_string(), hint: hint.to_owned() }
    }

    /// Returns the failure of a call that breaks a rule.
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
        let of_outcome = Failure::of_outcome(errno);
        Failure { what: format!("{volume}: {errno}"), ..of_outcome }
    }

    /// Returns the failure of a request to a volume that is not named.
    pub fn of_outcome(errno: Errno) -> Failure {
        Failure { errno: errno.os(), ..Failure::new(code_of(errno), errno) }
    }

    /// Returns the failure after a panic, or another broken invariant.
    pub fn bug(what: impl Display) -> Failure {
        Failure::new(codes::BUG, what)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", codes::label(self.code), self.what)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "; {}", self.hint) }
    }
}

impl std::error::Error for Failure {}

impl From<Refusal> for Failure {
    fn from(why: Refusal) -> Failure {
        // The message ends with the advice of its code, unless a server of another version has other words.
        let known = Failure::new(why.code, "");
        match why.message.strip_suffix(&known.hint).filter(|_| !known.hint.is_empty()) {
            Some(what) => Failure { what: what.trim_end_matches("; ").to_owned(), ..known },
            None => Failure { what: why.message, hint: String::new(), ..known },
        }
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let code = error.code();
        let own = error.next();
        match error {
            AdminError::Refused(why) => why.into(),
            // The text begins with the code, and ends with the advice of the error or of its code.
            other => {
                let text = other.to_string();
                let text = text.trim_start_matches(&format!("{}: ", codes::label(code)));
                let known = Failure::new(code, "");
                let hint = own.unwrap_or(known.hint);
                match text.strip_suffix(&hint) {
                    Some(what) => {
                        Failure { errno: known.errno, code, what: what.trim_end_matches("; ").to_owned(), hint }
                    }
                    None => Failure { errno: known.errno, code, what: text.to_owned(), hint: String::new() },
                }
            }
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

/// Returns the errno of an error code. `basalt.h` lists the pairs.
fn errno_of(code: u32) -> c_int {
    match code {
        codes::BAD_CALL | codes::BAD_NAME | codes::BAD_REQUEST | codes::VOLUME_OF_OTHER_CLUSTER => libc::EINVAL,
        codes::BAD_SIZE | codes::BAD_STRIPE | codes::BAD_LABEL | codes::SHRINK_UNSAFE | codes::TRASH_NAME_AMBIGUOUS => {
            libc::EINVAL
        }
        codes::POOL_UNKNOWN | codes::VOLUME_UNKNOWN | codes::SNAPSHOT_UNKNOWN | codes::NOT_IN_TRASH => libc::ENOENT,
        codes::POOL_EXISTS | codes::VOLUME_EXISTS | codes::SNAPSHOT_EXISTS => libc::EEXIST,
        codes::BAD_FAULT => libc::EINVAL,
        codes::FAULT_UNKNOWN | codes::WRITER_UNKNOWN => libc::ENOENT,
        codes::VOLUME_HELD | codes::VOLUME_BUSY | codes::SHRINK_DATA | codes::TOO_MANY_WRITERS => libc::EBUSY,
        codes::SNAPSHOT_PROTECTED | codes::HAS_SNAPSHOTS | codes::HAS_CLONES => libc::EBUSY,
        codes::POOL_QUOTA => libc::EDQUOT,
        codes::META_UNAVAILABLE | codes::NOT_LEADER | codes::HOST_NAME_UNRESOLVED => libc::EHOSTUNREACH,
        codes::REQUESTS_NOT_ANSWERED => libc::ETIMEDOUT,
        codes::META_BUSY | codes::POOL_NOT_READY | codes::VOLUME_RECOVERING | codes::CUT_FAILED => libc::EAGAIN,
        codes::SESSION_FENCED | codes::VOLUME_TAKEN_OVER => libc::ESTALE,
        codes::READ_ONLY | codes::SNAPSHOT_READ_ONLY => libc::EROFS,
        codes::NO_SPACE_LEFT => libc::ENOSPC,
        codes::TOO_MANY_VOLUMES => libc::EMFILE,
        codes::NO_IO_URING => libc::EPERM,
        _ => libc::EIO,
    }
}

/// Returns the error code of the outcome of a request. A wrong request is one that breaks a rule of its call.
fn code_of(errno: Errno) -> u32 {
    if errno == Errno::Invalid { codes::BAD_CALL } else { errno.code() }
}

#[cfg(test)]
mod tests {
    use super::Failure;
    use api::AdminError;
    use std::time::Duration;
    use types::{Errno, codes};

    #[test]
    fn a_failure_has_an_errno_a_code_and_a_next_step() {
        let failure = Failure::new(codes::VOLUME_UNKNOWN, "volume \"a/b\" does not exist");
        assert_eq!(failure.errno, libc::ENOENT);
        assert_eq!(
            failure.to_string(),
            "BSLT-2011: volume \"a/b\" does not exist; list volumes with `basalt volume ls`"
        );
        assert_eq!(Failure::bug("x").errno, libc::EIO);
        let request = Failure::of_request("main/a", Errno::Invalid);
        assert_eq!((request.code, request.what.as_str()), (codes::BAD_CALL, "main/a: invalid request"));
    }

    #[test]
    fn a_refusal_is_parted_into_cause_and_advice() {
        let refusal = control::refuse(codes::POOL_UNKNOWN, "pool \"x\" does not exist");
        let failure = Failure::from(refusal.clone());
        assert_eq!(failure, Failure::new(codes::POOL_UNKNOWN, "pool \"x\" does not exist"));
        assert_eq!(Failure::from(AdminError::Refused(refusal)), failure);
        let other = types::control::Refusal { code: codes::POOL_UNKNOWN, message: "other words".into() };
        assert_eq!(Failure::from(other).to_string(), "BSLT-2010: other words");
    }

    #[test]
    fn an_unreached_metadata_server_keeps_its_text() {
        let error = AdminError::Unreachable { after: Duration::from_secs(1), last: "refused".into() };
        let (text, failure) = (error.to_string(), Failure::from(error));
        assert_eq!((failure.errno, failure.to_string()), (libc::EHOSTUNREACH, text));
        assert!(failure.what.ends_with("last: refused") && failure.hint.starts_with("check that a meta runs"));
    }
}
