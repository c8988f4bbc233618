//! The pace of writes while a PG cannot commit without a follower that is being filled.
//!
//! Nothing frees the log of that follower before the stream has ended. Writes that took all its room at once would then stand still
//! until the end. So they get the room in the measure in which the stream gets on: with a tenth of the rest of the stream goes a
//! tenth of the rest of the room. Sans-IO.
//!
//! Invariant: what may be proposed never exceeds the room.

use types::limits::PART_MAX;

/// Part of the room, as a divisor, that writes get at once.
const AT_ONCE: u64 = 8;

/// The pace of one stream's PG.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Work that the stream had done at the last call.
    done: u64,
}

impl Pace {
    /// Returns what may be proposed before the stream has done anything.
    pub fn at_once(room: u64) -> u64 {
        (room / AT_ONCE).max(PART_MAX).min(room)
    }

    /// Returns the payload that may be proposed from now on, in bytes. `unused`: what is left of the last answer. `room`: bytes that the
    /// follower's log still takes. `done` and `left`: work of the stream so far, and an estimate of the rest, in one unit; the estimate
    /// is made only when it is used.
    pub fn next(&mut self, unused: Option<u64>, room: u64, done: u64, left: impl FnOnce() -> u64) -> u64 {
        let before = std::mem::replace(&mut self.done, done);
        let granted = match unused {
            None => Pace::at_once(room),
            Some(unused) if done <= before => unused,
            Some(unused) => {
                let gain = u128::from(done - before);
                let rest = u128::from(room.saturating_sub(unused));
                unused + (rest * gain / (gain + u128::from(left()))) as u64
            }
        };
        granted.min(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_room_lasts_as_long_as_the_stream() {
        let (mut pace, mut room, mut unused, mut longest, mut waited) = (Pace::default(), 32 * MIB, None, 0, 0);
        for left in (0..=1024).rev() {
            let may = pace.next(unused, room, (1024 - left) * MIB, || left * MIB);
            assert!(may <= room, "{may} of {room}");
            // Each write has 64 KiB, and there are always more.
            let written = may / (64 << 10) * (64 << 10);
            (room, unused) = (room - written, Some(may - written));
            waited = if written == 0 { waited + 1 } else { 0 };
            longest = longest.max(waited);
        }
        assert!(longest <= 4, "nothing was written while the stream brought {longest} MiB");
        assert!(room < MIB, "{room} bytes of room were never used");
    }

    #[test]
    fn only_work_of_the_stream_grants_something() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(None, 32 * MIB, 7, || 100), 4 * MIB);
        assert_eq!(pace.next(Some(0), 28 * MIB, 7, || 100), 0);
        assert_eq!(pace.next(Some(0), 28 * MIB, 7, || 10), 0, "the estimate was too high");
        assert_eq!(pace.next(Some(0), 28 * MIB, 107, || 100), 14 * MIB);
        assert_eq!(pace.next(Some(14 * MIB), 3 * MIB, 107, || 100), 3 * MIB, "the room has shrunk");
        assert_eq!(pace.next(Some(MIB), 3 * MIB, 108, || 0), 3 * MIB, "the stream is at its end");
        assert_eq!(pace.next(None, 100, 0, || 100), 100, "less room than one write");
    }
}
