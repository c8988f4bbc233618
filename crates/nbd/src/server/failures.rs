//! Requests that failed, as log lines: the first one at once, later ones with their number, one line in [`PAUSE`].
//!
//! A client often shows its users no more than an I/O error. Requests that end with the process are no failures.

use crate::proto::Header;
use std::time::Duration;
use types::Time;

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failed {
    what: &'static str,
    offset: u64,
    bytes: u32,
    why: String,
}

/// Requests that failed since the last line.
#[derive(Default)]
pub(super) struct Failures {
    first: Option<Failed>,
    count: u64,
    next: Time,
}

impl Failures {
    pub fn note(&mut self, header: &Header, why: &dyn std::fmt::Display) {
        let failed = || Failed { what: header.what(), offset: header.offset, bytes: header.len, why: why.to_string() };
        self.first.get_or_insert_with(failed);
        self.count += 1;
    }

    /// Returns the time of the next line.
    pub fn deadline(&self) -> Time {
        if self.count == 0 { Time::NEVER } else { self.next }
    }

    /// Writes a line when one is due.
    pub fn tell(&mut self, now: Time, export: &str) {
        if let Some((Failed { what, offset, bytes, why }, requests)) = self.take(now) {
            tracing::warn!(export, what, offset, bytes, error = %why, requests, "requests failed");
        }
    }

    /// Returns the first failure that no line has told, and the number of all.
    fn take(&mut self, now: Time) -> Option<(Failed, u64)> {
        if self.count == 0 || now < self.next {
            return None;
        }
        self.next = now + PAUSE;
        self.first.take().zip(Some(std::mem::take(&mut self.count)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Failed, Failures, PAUSE};
    use crate::proto::Header;
    use std::time::Duration;
    use types::{Errno, Time};

    #[test]
    fn a_storm_of_failures_is_one_line_in_ten_seconds() {
        let (mut failures, mut now) = (Failures::default(), Time(5_000_000_000));
        let header = |offset| Header { flags: 0, kind: 0, cookie: 0, offset, len: 4096 };
        let failed = |offset| Failed { what: "read", offset, bytes: 4096, why: Errno::Gone.to_string() };
        assert_eq!((failures.deadline(), failures.take(now)), (Time::NEVER, None));
        failures.note(&header(0), &Errno::Gone);
        assert_eq!(failures.take(now), Some((failed(0), 1)));
        for n in 1..=1000 {
            failures.note(&header(n << 12), &Errno::Gone);
            now = now + Duration::from_millis(9);
            assert_eq!(failures.take(now), None);
        }
        now = failures.deadline();
        assert_eq!(failures.take(now), Some((failed(4096), 1000)));
        assert_eq!((failures.deadline(), failures.take(now + PAUSE)), (Time::NEVER, None));
    }
}
