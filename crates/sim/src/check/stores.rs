//! Laws of one store and of two of them.
//!
//! - After a mount, the device holds what the map names (R8).
//! - A replica that a stream has filled holds what another whole replica of its PG holds at the same applied index (R12, R16).
//! - A majority of the voters of a PG is not being filled (R16).
//! - Log and home free space as long as nothing but themselves stands in the way (R8, R9).
//!
//! Input: the contents of the engines, after the turns of OSDs. Output: the first violation.

use engine::{Contents, LogRoom};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::map::Membership;
use types::{Index, OsdId, PgId, ReplicaId, Time};

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
/// Number of applied indexes of which the contents of a filled replica are remembered.
const LOOKS_MAX: usize = 24;

/// Time since when a log is at its reserve, and its tail then.
#[derive(Clone, Copy, Debug)]
struct Full {
    since: Time,
    tail: u64,
}

#[derive(Default)]
struct Filled {
    held: BTreeMap<Index, Contents>,
    compared: bool,
}

/// State of the checks; see the head of the file.
#[derive(Default)]
pub struct Stores {
    full: BTreeMap<OsdId, Full>,
    /// Time since when more than half of a home is pending free.
    pending_free: BTreeMap<OsdId, Time>,
    /// Installations that have not begun, and the time since when each waits.
    waiting: BTreeMap<OsdId, (ReplicaId, Time)>,
    /// Replicas that streams fill.
    filling: BTreeSet<ReplicaId>,
    /// Replicas that streams have filled, and what they held at applied indexes since.
    filled: BTreeMap<ReplicaId, Filled>,
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

    /// Notes whether the replica has all its contents.
    pub fn note_whole(&mut self, replica: ReplicaId, whole: bool) {
        if !whole {
            self.filling.insert(replica);
            self.filled.remove(&replica);
        } else if self.filling.remove(&replica) {
            self.filled.insert(replica, Filled::default());
        }
    }

    /// Checks that a majority of each set of voters is not being filled, as of the last look at each of them (R16).
    ///
    /// # Errors
    /// Too many are.
    pub fn majority_is_whole(&self, pg: PgId, members: &Membership) -> Result<(), String> {
        match members.majority(|id| !self.filling.contains(&id)) {
            true => Ok(()),
            false => {
                Err(format!("of the voters of pg {pg}, {members:?}, no majority has all contents: {:?}", self.filling))
            }
        }
    }

    /// Whether the contents of the replica at `applied` are wanted: it was filled, or they are comparable with those of one that was.
    /// `members`: those of the PG.
    pub fn wants(&self, replica: ReplicaId, applied: Index, members: &Membership) -> bool {
        let notes =
            self.filled.get(&replica).is_some_and(|f| f.held.len() < LOOKS_MAX && !f.held.contains_key(&applied));
        notes || self.comparable(replica, applied, members).is_some()
    }

    fn comparable(&self, replica: ReplicaId, applied: Index, members: &Membership) -> Option<ReplicaId> {
        if self.filled.is_empty() {
            return None;
        }
        let fits = |id: &ReplicaId| self.filled.get(id).is_some_and(|f| !f.compared && f.held.contains_key(&applied));
        members.iter().map(|m| m.replica).find(|id| *id != replica && fits(id))
    }

    /// Looks at the contents of a whole replica at `applied`.
    ///
    /// # Errors
    /// A replica that was filled held something else at that index.
    pub fn look_at_contents(
        &mut self,
        replica: ReplicaId,
        applied: Index,
        members: &Membership,
        held: &Contents,
    ) -> Result<(), String> {
        if let Some(filled) = self.filled.get_mut(&replica).filter(|f| f.held.len() < LOOKS_MAX) {
            filled.held.insert(applied, held.clone());
        }
        let Some(other) = self.comparable(replica, applied, members) else { return Ok(()) };
        let filled = self.filled.get_mut(&other).expect("it is comparable");
        filled.compared = true;
        self.installed += 1;
        let theirs = &filled.held[&applied];
        let differs = theirs.keys().chain(held.keys()).find(|at| theirs.get(at) != held.get(at));
        match differs {
            None => Ok(()),
            Some((chunk, block)) => {
                Err(format!("{other} was filled and differs from {replica} at {applied}: block {block} of {chunk}"))
            }
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
    use types::map::Member;
    use types::{ChunkKey, Epoch, GenerationId};

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
    fn a_filled_replica_that_differs_from_another_one_is_found() {
        let (a, b, chunk) = (ReplicaId(4), ReplicaId(5), ChunkKey { generation: GenerationId(1), index: 0 });
        let members = Membership::fresh(Epoch(1), &[a, b].map(|replica| Member { replica, osd: OSD }));
        let contents = |crc| Contents::from([((chunk, 7), crc)]);
        for (theirs, same) in [(contents(1), true), (contents(2), false), (Contents::new(), false)] {
            let mut stores = Stores::default();
            assert!(!stores.wants(a, Index(9), &members), "it was never filled");
            stores.note_whole(a, false);
            stores.note_whole(a, true);
            assert!(stores.wants(a, Index(9), &members) && !stores.wants(b, Index(9), &members));
            assert_eq!(stores.look_at_contents(a, Index(9), &members, &contents(1)), Ok(()));
            assert!(stores.wants(b, Index(9), &members) && !stores.wants(b, Index(8), &members));
            assert_eq!(stores.look_at_contents(b, Index(9), &members, &theirs).is_ok(), same);
            assert_eq!(stores.installed(), 1);
        }
    }
}
