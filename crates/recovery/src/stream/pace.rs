//! The pace of writes while a PG cannot commit without a follower that is being filled.
//!
//! Nothing frees the log of that follower before the stream has ended. Writes that took all its room at once would then stand still
//! until the end. So they get the room evenly over the time that the stream is expected to take. Sans-IO.
//!
//! Invariant: what may be proposed never exceeds the room.

use std::time::Duration;
use types::Time;
use types::limits::PART_MAX;

/// Interval between two grants.
const EVERY: Duration = Duration::from_millis(5);
/// Part of the room, as a divisor, that writes get at once, and that they may leave unused.
const AT_ONCE: u64 = 8;
/// The first parts come before the stream is up to speed: this is added to the time that it has taken.
const SETTLES_IN: Duration = Duration::from_millis(500);
/// The stream is not expected to take more than this multiple of the time so far, and a second: an early estimate is rough. A stream without
/// progress leaves 40 % of the room after 100 s.
const AHEAD_MAX: u32 = 4;
const LEFT_MIN: Duration = Duration::from_millis(250);

/// The pace of one stream's PG.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When it began, and the work that the stream had done then. The stream may have had another rate before.
    began: Option<(Time, u64)>,
    granted_at: Time,
}

impl Pace {
    /// Returns what may be proposed before the stream has done anything.
    pub fn at_once(room: u64) -> u64 {
        (room / AT_ONCE).max(PART_MAX).min(room)
    }

    /// Returns the payload that may be proposed from now on, in bytes. `unused`: what is left of the last answer. `room`: bytes that the
    /// follower's log still takes. `done` and `left`: work of the stream so far, and an estimate of the rest, in one unit; the estimate
    /// is made only when it is used.
    pub fn next(&mut self, now: Time, unused: Option<u64>, room: u64, done: u64, left: impl FnOnce() -> u64) -> u64 {
        let Some((began, before)) = self.began else {
            (self.began, self.granted_at) = (Some((now, done)), now);
            return unused.unwrap_or(Pace::at_once(room)).min(room);
        };
        let unused = unused.unwrap_or_default().min(room);
        let passed = now.since(self.granted_at);
        if passed < EVERY {
            return unused;
        }
        self.granted_at = now;
        // A reserve for a stream that becomes slower.
        let time_left = time_left(now.since(began), done.saturating_sub(before), left()).as_nanos() * 3 / 2;
        let grant = u128::from(room - unused) * passed.as_nanos() / (time_left + passed.as_nanos());
        (unused + grant as u64).min(Pace::at_once(room).max(unused))
    }

    /// Returns the time of the next grant.
    pub fn next_at(&self) -> Time {
        if self.began.is_some() { self.granted_at + EVERY } else { Time::NEVER }
    }
}

/// Returns the time that the stream is expected to take, when it has done so much in the time so far.
fn time_left(so_far: Duration, done: u64, left: u64) -> Duration {
    let most = (so_far + Duration::from_secs(1)) * AHEAD_MAX;
    let nanos = (so_far + SETTLES_IN).as_nanos() * u128::from(left) / u128::from(done.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(most).max(LEFT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BEGIN: Time = Time(1_000_000_000);

    /// Runs a stream of 20 s with writes of 64 KiB that always wait; `speed` returns its part of the full speed at a time. Returns
    /// the longest time without a write after the first second, and the room at the end.
    fn stream(speed: impl Fn(u64) -> u64) -> (u64, u64) {
        let (mut pace, mut room, mut unused) = (Pace::default(), 32 * MIB, None);
        let (total, mut done, mut wrote_at, mut longest) = (2_000_000, 0, 0, 0);
        let mut ms = 0;
        while done < total {
            ms += 1;
            done += speed(ms);
            let may = pace.next(BEGIN + Duration::from_millis(ms), unused, room, done, || total.saturating_sub(done));
            assert!(may <= room, "{may} of {room}");
            let written = may / (64 << 10) * (64 << 10);
            (room, unused) = (room - written, Some(may - written));
            if written > 0 || ms < 1000 {
                wrote_at = ms;
            }
            longest = longest.max(ms - wrote_at);
        }
        (longest, room)
    }

    #[test]
    fn the_room_lasts_as_long_as_the_stream() {
        // Writes of 64 KiB: on average one in 45 ms.
        let (longest, room) = stream(|_| 100);
        assert!(longest < 120 && room < 8 * MIB, "{longest} ms, {room} bytes");
        let (longest, room) = stream(|ms| if ms / 1000 % 2 == 0 { 180 } else { 20 });
        assert!(longest < 250 && room < 8 * MIB, "it is uneven: {longest} ms, {room} bytes");
        let (longest, room) = stream(|ms| if ms < 10_000 { 150 } else { 50 });
        assert!(longest < 300 && room < 8 * MIB, "it becomes slow: {longest} ms, {room} bytes");
        let (longest, room) = stream(|ms| if ms < 10_000 { 50 } else { 150 });
        assert!(longest < 200 && room < 16 * MIB, "it becomes fast: {longest} ms, {room} bytes");
    }

    #[test]
    fn a_stream_without_progress_leaves_room() {
        let (mut pace, mut room, mut unused) = (Pace::default(), 32 * MIB, None);
        for ms in 0..100_000 {
            let may = pace.next(BEGIN + Duration::from_millis(ms), unused, room, 0, || 1 << 30);
            (room, unused) = (room - may, Some(0));
        }
        assert!(room > 32 * MIB * 2 / 5, "{room} bytes after 100 s");
    }

    #[test]
    fn only_time_grants_something() {
        let (mut pace, ms) = (Pace::default(), |ms| BEGIN + Duration::from_millis(ms));
        assert_eq!(pace.next(ms(0), None, 32 * MIB, 50, || 100), 4 * MIB);
        assert_eq!(pace.next(ms(1), Some(7), 28 * MIB, 150, || 0), 7, "it is too early");
        // The rest takes 600 ms.
        pace.granted_at = ms(400);
        assert_eq!(pace.next(ms(500), Some(0), 20 * MIB, 150, || 60), 2 * MIB);
        assert_eq!(pace.next(ms(600), Some(2 * MIB), MIB, 150, || 90), MIB, "the room has shrunk");
        assert_eq!(pace.next(ms(9000), Some(0), 20 * MIB, 150, || 0), 20 * MIB / 8, "unused for long");
        let mut pace = Pace::default();
        assert_eq!(pace.next(ms(0), None, 100, 0, || 100), 100, "less room than one write");
        let early = pace.next(ms(100), Some(0), 20 * MIB, 0, || 100);
        assert!((MIB / 4..MIB / 3).contains(&early), "{early}: the stream has done nothing, 4.4 s are expected");
    }
}
