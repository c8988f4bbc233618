//! Laws of one store and of two of them.
//!
//! - After a mount, the device holds what the map names (R8).
//! - A stream installs what its leader held as of the snapshot index (R12).
//! - Log and home free space as long as nothing but themselves stands in the way (R8, R9).
//!
//! Input: the contents of the engines, after the turns of OSDs. Output: the first violation.

use engine::{Contents, LogRoom};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Index, OsdId, ReplicaId, Time};

/// A log that is at its reserve frees a segment within this time. That holds while its process runs, its disk has no
/// fault, and the bytes that it must hold are a fraction ([`HELD_SHARE`]) of its length.
pub const AT_RESERVE_MAX: Duration = Duration::from_secs(3);
/// A log that must hold more than one part in so many of its length may be full for good reason.
const HELD_SHARE: u64 = 4;
/// A destage or an installation may drop everything that a device holds. More than half of home is pending free for at
/// most this time, while the process runs and its disk has no fault: the checkpoint and the earlier reads take less
/// (R8).
pub const PENDING_FREE_MAX: Duration = Duration::from_secs(3);
/// An installation begins within this time, while the process runs and its disk has no fault: it waits only for the
/// destage that runs (R12).
pub const INSTALL_WAITS_MAX: Duration = Duration::from_secs(5);
/// Number of stream snapshots that are remembered.
const CUTS_MAX: usize = 16;

/// Time since when a log is at its reserve, and its tail then.
#[derive(Clone, Copy, Debug)]
struct Full {
    since: Time,
    tail: u64,
}

/// State of the checks; see the head of the file.
#[derive(Default)]
pub struct Stores {
    full: BTreeMap<OsdId, Full>,
    /// Time since when more than half of a home is pending free.
    pending_free: BTreeMap<OsdId, Time>,
    /// Installations that have not begun, and the time since when each waits.
    waiting: BTreeMap<OsdId, (ReplicaId, Time)>,
    /// For each follower of a stream: the snapshot index, and the contents of its leader at that index.
    cuts: BTreeMap<ReplicaId, (Index, Contents)>,
    installed: u64,
}

impl Stores {
    /// Looks at a log; `None`: it does not run, or something else stands in its way. Returns how long it has been full.
    ///
    /// # Errors
    /// The log has been full for too long.
    pub fn look_at_log(&mut self, now: Time, osd: OsdId, room: Option<LogRoom>) -> Result<Duration, String> {
        let full = room.filter(|r| r.at_reserve && r.held_bytes <= r.len_bytes / HELD_SHARE);
        let Some(room) = full else {
            self.full.remove(&osd);
            return Ok(Duration::ZERO);
        };
        let known = self.full.entry(osd).or_insert(Full { since: now, tail: room.tail });
        if known.tail != room.tail {
            *known = Full { since: now, tail: room.tail };
        }
        let long = now.since(known.since);
        if long <= AT_RESERVE_MAX {
            return Ok(long);
        }
        Err(format!("the log of {osd} has been full for {long:?}, of which {} bytes are needed", room.held_bytes))
    }

    /// Looks at a home: the bytes that are pending free, and its capacity; `None`: it does not run, or something else
    /// stands in its way. Returns how long more than half of it has been pending free.
    ///
    /// # Errors
    /// More than half of the home has been pending free for too long.
    pub fn look_at_pending_free(
        &mut self,
        now: Time,
        osd: OsdId,
        home: Option<(u64, u64)>,
    ) -> Result<Duration, String> {
        let Some((pending_free, capacity)) = home.filter(|(pending_free, capacity)| *pending_free > capacity / 2)
        else {
            self.pending_free.remove(&osd);
            return Ok(Duration::ZERO);
        };
        let long = now.since(*self.pending_free.entry(osd).or_insert(now));
        if long <= PENDING_FREE_MAX {
            return Ok(long);
        }
        Err(format!(
            "{osd} has had more than half of its home pending free for {long:?}: {pending_free} of {capacity} bytes"
        ))
    }

    /// Looks at the replica whose installation has not begun; `None`: there is none, or something else stands in its
    /// way. Returns how long the replica has waited.
    ///
    /// # Errors
    /// The replica has waited for too long.
    pub fn look_at_wait(&mut self, now: Time, osd: OsdId, replica: Option<ReplicaId>) -> Result<Duration, String> {
        let Some(replica) = replica else {
            self.waiting.remove(&osd);
            return Ok(Duration::ZERO);
        };
        let known = self.waiting.entry(osd).or_insert((replica, now));
        if known.0 != replica {
            *known = (replica, now);
        }
        let long = now.since(known.1);
        if long <= INSTALL_WAITS_MAX {
            return Ok(long);
        }
        Err(format!("the installation of {replica} on {osd} has not begun for {long:?}"))
    }

    /// Notes the contents of a leader as of `s`, when it read the snapshot of a stream to `follower`.
    pub fn note_cut(&mut self, follower: ReplicaId, s: Index, contents: Contents) {
        if self.cuts.len() == CUTS_MAX {
            self.cuts.pop_first();
        }
        self.cuts.insert(follower, (s, contents));
    }

    /// Whether the contents of this snapshot are known already.
    pub fn knows_cut(&self, follower: ReplicaId, s: Index) -> bool {
        self.cuts.get(&follower).is_some_and(|(known, _)| *known == s)
    }

    /// Whether the contents of the replica as of `applied` are to be compared.
    pub fn awaits(&mut self, replica: ReplicaId, applied: Index) -> bool {
        let Some((s, _)) = self.cuts.get(&replica) else { return false };
        if applied > *s {
            self.cuts.remove(&replica);
            return false;
        }
        applied == *s
    }

    /// Compares the contents of a replica with those of the last snapshot for it.
    ///
    /// # Errors
    /// A block that differs.
    pub fn look_at_installed(&mut self, replica: ReplicaId, held: &Contents) -> Result<(), String> {
        let Some((s, cut)) = self.cuts.remove(&replica) else { return Ok(()) };
        self.installed += 1;
        let differs = cut.keys().chain(held.keys()).find(|at| cut.get(at) != held.get(at));
        match differs {
            None => Ok(()),
            Some((chunk, block)) => Err(format!(
                "{replica} was installed as of {s} and differs from its leader then: block {block} of {chunk}"
            )),
        }
    }

    /// Returns the number of installations that were compared.
    pub fn installed(&self) -> u64 {
        self.installed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ChunkKey, VolumeId};

    const OSD: OsdId = OsdId(1);

    fn room(tail: u64, held_bytes: u64) -> Option<LogRoom> {
        Some(LogRoom { at_reserve: true, tail, held_bytes, len_bytes: 1 << 24 })
    }

    #[test]
    fn log_that_stays_full_is_found_unless_it_moves_or_must_hold_much() {
        let (mut stores, late) = (Stores::default(), Time::ZERO + AT_RESERVE_MAX + Duration::from_millis(1));
        assert_eq!(stores.look_at_log(Time::ZERO, OSD, room(1, 9)), Ok(Duration::ZERO));
        assert!(stores.look_at_log(late, OSD, room(1, 9)).is_err());
        assert_eq!(stores.look_at_log(late, OSD, room(2, 9)), Ok(Duration::ZERO), "a segment was given back");
        let later = late + AT_RESERVE_MAX + AT_RESERVE_MAX;
        assert_eq!(stores.look_at_log(later, OSD, room(2, 1 << 23)), Ok(Duration::ZERO), "half of it is needed");
        assert_eq!(stores.look_at_log(later, OSD, room(2, 9)), Ok(Duration::ZERO), "not for long");
        assert_eq!(stores.look_at_log(later, OSD, None), Ok(Duration::ZERO), "a disk that hangs");
    }

    #[test]
    fn home_that_stays_pending_free_is_found_and_a_released_one_is_not() {
        let (mut stores, late) = (Stores::default(), Time::ZERO + PENDING_FREE_MAX + Duration::from_millis(1));
        assert_eq!(stores.look_at_pending_free(Time::ZERO, OSD, Some((51, 100))), Ok(Duration::ZERO));
        assert!(stores.look_at_pending_free(late, OSD, Some((60, 100))).is_err());
        for released in [Some((50, 100)), None] {
            assert_eq!(stores.look_at_pending_free(late, OSD, released), Ok(Duration::ZERO));
            assert_eq!(stores.look_at_pending_free(late, OSD, Some((51, 100))), Ok(Duration::ZERO), "not for long");
        }
    }

    #[test]
    fn installation_that_does_not_begin_is_found_and_a_later_one_is_not() {
        let (mut stores, late) = (Stores::default(), Time::ZERO + INSTALL_WAITS_MAX + Duration::from_millis(1));
        assert_eq!(stores.look_at_wait(Time::ZERO, OSD, Some(ReplicaId(4))), Ok(Duration::ZERO));
        assert!(stores.look_at_wait(late, OSD, Some(ReplicaId(4))).is_err());
        assert_eq!(stores.look_at_wait(late, OSD, Some(ReplicaId(5))), Ok(Duration::ZERO), "the next one");
        assert_eq!(stores.look_at_wait(late, OSD, None), Ok(Duration::ZERO), "it has begun");
        assert_eq!(stores.look_at_wait(late + INSTALL_WAITS_MAX, OSD, Some(ReplicaId(5))), Ok(Duration::ZERO));
    }

    #[test]
    fn an_installation_that_is_not_what_the_leader_held_is_found() {
        let (replica, chunk) = (ReplicaId(4), ChunkKey { volume: VolumeId(1), index: 0 });
        let contents = |crc| Contents::from([((chunk, 7), crc)]);
        let mut stores = Stores::default();
        for (held, same) in [(contents(1), true), (contents(2), false), (Contents::new(), false)] {
            stores.note_cut(replica, Index(9), contents(1));
            assert!(stores.knows_cut(replica, Index(9)) && !stores.awaits(replica, Index(8)));
            assert!(stores.awaits(replica, Index(9)));
            assert_eq!(stores.look_at_installed(replica, &held).is_ok(), same);
        }
        stores.note_cut(replica, Index(9), contents(1));
        assert!(!stores.awaits(replica, Index(10)) && !stores.knows_cut(replica, Index(9)), "it came to nothing");
        assert_eq!(stores.installed(), 3);
    }
}
