//! Errors for users: what failed, on which thing, why, and the next command.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use types::Errno;
use types::codes;

/// Exit code of a command. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Degraded = 3,
    /// `status` and `health`: some data is not served.
    Down = 4,
    /// A client of a multi-writer volume was fenced: nothing may start it again by itself.
    Fenced = 5,
    /// SIGINT ended the command, with a partial result.
    Interrupted = 130,
}

/// An error with a stable code. `basalt explain CODE` tells more.
#[derive(Debug)]
pub struct UserError {
    pub code: u32,
    /// One sentence: the failure, the thing that it concerns, and the reason.
    pub what: String,
    /// The next command or action.
    pub next: String,
}

impl UserError {
    pub fn new(code: u32, what: impl Into<String>, next: impl Into<String>) -> UserError {
        assert!(codes::lookup(code).is_some(), "{} is not in the registry", codes::label(code));
        UserError { code, what: what.into(), next: next.into() }
    }

    /// Returns the exit code of a command with this error: a wrong command line has a code of its own.
    pub fn exit(&self) -> Exit {
        match self.code {
            codes::BAD_USAGE | codes::NOT_POSSIBLE_YET => Exit::Usage,
            codes::WRITER_FENCED => Exit::Fenced,
            _ => Exit::Failed,
        }
    }
}

/// Replaces the advice of an error with this code by the command's own, where the registry's does not
/// fit.
pub fn advise(error: anyhow::Error, code: u32, next: impl FnOnce() -> String) -> anyhow::Error {
    match error.downcast::<UserError>() {
        Ok(error) if error.code == code => UserError { next: next(), ..error }.into(),
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

/// Replaces the advice when no metadata server answered, where `next` has a better one.
pub fn advise_down(error: anyhow::Error, next: impl FnOnce() -> Option<String>) -> anyhow::Error {
    match error.downcast::<UserError>() {
        Ok(error) if error.code == codes::META_UNAVAILABLE => {
            let next = next().unwrap_or_else(|| error.next.clone());
            UserError { next, ..error }.into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

/// Whether an error has this code.
pub fn has_code(error: &anyhow::Error, code: u32) -> bool {
    error.downcast_ref::<UserError>().is_some_and(|error| error.code == code)
}

/// Returns a refusal of meta in the user's terms: the failure first, the advice after it.
pub fn refused(code: u32, text: &str) -> UserError {
    let text = text.trim_start_matches(&format!("{}: ", codes::label(code)));
    let next = codes::lookup(code).map_or("", |row| row.fix);
    let what = text.strip_suffix(next).unwrap_or(text).trim_end_matches("; ");
    UserError::new(code, what, next)
}

/// Returns the error of a command whose volume ended with `errno`. Only [`Errno::Damaged`] is called
/// damage.
pub fn ended(volume: &str, errno: Errno) -> UserError {
    let next = match errno {
        Errno::Fenced => "basalt volume ls   # shows which client holds it now, if one does; basalt explain 5002",
        Errno::NoSpace => {
            "basalt osd ls   # shows which OSD is full; basalt trash purge --all and volume rm --now give space back"
        }
        Errno::Damaged => "basalt pg verify --deep",
        Errno::Gone | Errno::ReadOnly => "basalt volume ls",
        Errno::Invalid => "add --help to the command: it shows examples",
        Errno::TimedOut | Errno::Shutdown => "basalt status",
        Errno::Rehearsed => "basalt volume fault ls",
    };
    UserError::new(errno.code(), format!("{volume}: {errno}"), next)
}

/// Returns the error of a client that was fenced from a multi-writer volume.
pub fn fenced(volume: &str) -> UserError {
    let next = format!("basalt volume info {volume}   # shows which clients have it now; basalt explain 5010");
    UserError::new(codes::WRITER_FENCED, format!("{volume}: {}", Errno::Fenced), next)
}

/// Returns the error of a file or folder that cannot be used, with a command that repairs it or shows
/// the cause.
pub fn unusable(path: &Path, error: &std::io::Error) -> UserError {
    let next = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => make_room(path),
        _ => format!("ls -ld {}   # shows the owner and the permissions", existing(path).display()),
    };
    UserError::new(codes::FILE_UNUSABLE, format!("{}: {error}", path.display()), next)
}

/// Returns the advice for a full file system.
pub fn make_room(path: &Path) -> String {
    format!("make room on its file system (df -h {}), then the same command again", existing(path).display())
}

/// Returns the path itself, or the nearest existing folder above it.
fn existing(path: &Path) -> &Path {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    if there.as_os_str().is_empty() { Path::new(".") } else { there }
}

/// Returns an error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", codes::label(self.code), self.what)?;
        if !self.next.is_empty() {
            write!(f, "\n  next: {}", self.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for UserError {}

#[cfg(test)]
mod tests {
    use super::{ended, refused, unusable};
    use std::io::{Error, ErrorKind};
    use std::path::Path;
    use types::{Errno, codes};

    #[test]
    fn each_end_of_a_volume_has_its_code_and_only_damage_is_called_damage() {
        let codes = [
            (Errno::Invalid, 1001),
            (Errno::Fenced, 5002),
            (Errno::NoSpace, 5003),
            (Errno::Damaged, 5004),
            (Errno::ReadOnly, 2023),
            (Errno::Gone, 2011),
            (Errno::TimedOut, 5007),
            (Errno::Shutdown, 5007),
            (Errno::Rehearsed, 5009),
        ];
        for (errno, code) in codes {
            let error = ended("main/vm1", errno);
            assert_eq!((error.code, error.what), (code, format!("main/vm1: {errno}")));
            assert!(!error.next.is_empty());
        }
    }

    #[test]
    fn a_path_that_cannot_be_used_has_a_command_that_shows_why() {
        let said = |path: &str, kind: ErrorKind| unusable(Path::new(path), &Error::from(kind)).next;
        assert!(said("/", ErrorKind::StorageFull).starts_with("make room on its file system (df -h /)"));
        assert!(said("/proc/nonexistent/x", ErrorKind::NotFound).starts_with("ls -ld /proc   #"), "what is there");
        assert!(said("nonexistent", ErrorKind::PermissionDenied).starts_with("ls -ld .   #"));
    }

    #[test]
    fn a_refusal_says_what_failed_once_and_what_to_do_once() {
        let refusal = control::refuse(codes::VOLUME_UNKNOWN, "volume \"a/b\" does not exist");
        let error = refused(codes::VOLUME_UNKNOWN, &format!("BSLT-2011: {}", refusal.message)).to_string();
        assert_eq!(error, "BSLT-2011: volume \"a/b\" does not exist\n  next: list volumes with `basalt volume ls`");
        assert_eq!(refused(codes::META_UNAVAILABLE, "nobody").what, "nobody", "a text without its advice stays whole");
    }
}
