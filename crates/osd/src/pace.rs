//! The pace of the writes that PGs led here may propose, where members have slow homes (ADR 0035).
//!
//! Input: the rate at which the log of each OSD may grow: the own one from the engine, those of others from their lease acknowledgements. Output: what a group may propose now. A
//! write goes into the logs of all members, so the slowest of them counts. Each OSD has a bucket here, and a PG may propose while those of its members are not empty.
//!
//! Several leaders fill the log of one follower, and each of them takes its whole rate. The rate falls as that log fills, so together they settle at what its home takes.
//!
//! Invariant: without a slow home nothing is held back, and no group waits longer than until the buckets of its members have filled.

use crate::node::Osd;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{OsdId, Time};

/// Unit of rates in lease acknowledgements, in bytes a second.
const UNIT: u64 = 4096;
/// A rate that an OSD has not told again for this long does not count.
const TOLD_MAX: Duration = Duration::from_secs(2);
/// Time for which a bucket keeps what was not proposed.
const KEPT_MAX: Duration = Duration::from_millis(20);

/// Bytes that an OSD's log may take.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bytes a second.
    rate: f64,
    level: f64,
    at: Time,
    told: Time,
}

impl Bucket {
    fn fill(&mut self, now: Time) {
        let max = (self.rate * KEPT_MAX.as_secs_f64()).max(1.0);
        self.level = (self.level + self.rate * now.since(self.at).as_secs_f64()).min(max);
        self.at = now;
    }

    /// Returns when it is no longer empty.
    fn ready_at(&self) -> Time {
        // A nanosecond more: rounding must not end before the bucket has anything.
        let left = (-self.level / self.rate).clamp(0.0, 3600.0);
        self.at + Duration::from_secs_f64(left) + Duration::from_micros(1)
    }
}

/// The rates of this OSD and its peers.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    buckets: BTreeMap<OsdId, Bucket>,
    /// Since the last turn a group had no room, or a bucket was empty: groups may wait.
    held: bool,
    /// The slot of the group that was the last to propose under a pace: others come before it.
    last: usize,
}

impl Paces {
    /// Notes the rate of an OSD; `None`: any.
    fn set(&mut self, now: Time, osd: OsdId, rate: Option<u64>) {
        let Some(rate) = rate else {
            self.buckets.remove(&osd);
            return;
        };
        let fresh = || Bucket { rate: 0.0, level: 0.0, at: now, told: now };
        let bucket = self.buckets.entry(osd).or_insert_with(fresh);
        bucket.fill(now);
        (bucket.rate, bucket.told) = (rate.max(1) as f64, now);
    }

    /// Fills all buckets, and forgets OSDs that have told nothing for long.
    fn fill(&mut self, now: Time) {
        self.buckets.retain(|_, bucket| now.since(bucket.told) <= TOLD_MAX);
        self.buckets.values_mut().for_each(|bucket| bucket.fill(now));
    }

    /// Begins a turn. True: groups that had no room may have some now.
    fn turn(&mut self, now: Time) -> bool {
        self.fill(now);
        let is_empty = self.buckets.values().any(|bucket| bucket.level <= 0.0);
        std::mem::replace(&mut self.held, is_empty)
    }

    /// Returns how many bytes may go to the logs of these OSDs now. `None`: none of them has a pace.
    fn room(&self, osds: impl Iterator<Item = OsdId>) -> Option<u64> {
        let paced = osds.filter_map(|osd| self.buckets.get(&osd));
        paced.map(|bucket| if bucket.level > 0.0 { (bucket.level as u64).max(1) } else { 0 }).min()
    }

    /// Takes proposed bytes out of the buckets of these OSDs, which may owe some then.
    fn charge(&mut self, osds: impl Iterator<Item = OsdId>, bytes: u64) {
        for osd in osds {
            if let Some(bucket) = self.buckets.get_mut(&osd) {
                bucket.level -= bytes as f64;
                self.held |= bucket.level <= 0.0;
            }
        }
    }

    /// Returns when the next empty bucket has something.
    pub fn next_deadline(&self) -> Time {
        let empty = self.buckets.values().filter(|bucket| bucket.level <= 0.0);
        empty.map(Bucket::ready_at).min().unwrap_or(Time::NEVER)
    }
}

/// Returns a rate as a lease acknowledgement carries it; zero: any.
fn told(rate: Option<u64>) -> u16 {
    rate.map_or(0, |rate| u16::try_from((rate / UNIT).max(1)).unwrap_or(0))
}

/// Returns the rate in a lease acknowledgement.
fn heard(units: u16) -> Option<u64> {
    (units != 0).then(|| u64::from(units) * UNIT)
}

impl Osd {
    /// Returns the own rate as a lease acknowledgement carries it.
    pub(crate) fn told_pace(&self) -> u16 {
        told(self.own_pace())
    }

    /// Returns the rate at which the own log may grow, in bytes a second; `None`: any.
    pub(crate) fn own_pace(&self) -> Option<u64> {
        self.paces.buckets.get(&self.config.osd).map(|bucket| bucket.rate as u64)
    }

    pub(crate) fn hear_pace(&mut self, osd: OsdId, units: u16) {
        self.paces.set(self.now, osd, heard(units));
    }

    /// Updates the rates, and polls groups that may go on, those first that went on longest ago. It comes before the groups are polled.
    pub(crate) fn pace_writes(&mut self) {
        let own = self.engine.pace(self.now);
        self.paces.set(self.now, self.config.osd, own);
        if !self.paces.turn(self.now) {
            return;
        }
        let keys = self.pgs.keys();
        let first = keys.iter().position(|key| *key == self.paces.last).map_or(0, |at| at + 1);
        for key in keys[first..].iter().chain(&keys[..first]).copied() {
            let waits = self.pgs.group(key).is_some_and(|group| group.has_queued());
            if waits && self.room_of(key) != Some(0) {
                self.pgs.touch(key);
            }
        }
    }

    /// Returns what may go to the logs of the members of a PG.
    fn room_of(&self, key: usize) -> Option<u64> {
        let others = self.pgs.get(key).others().map(|member| member.osd);
        self.paces.room(others.chain([self.config.osd]))
    }

    /// Tells a group what it may propose, before it is polled. The last write may exceed that: the buckets owe the rest then, so
    /// large writes get through.
    pub(crate) fn open_pace(&mut self, key: usize) {
        let room = if self.paces.buckets.is_empty() { None } else { self.room_of(key) };
        self.paces.held |= room == Some(0);
        if let Some(group) = self.pgs.group(key) {
            group.set_write_room(room);
        }
    }

    /// Charges what the group has proposed.
    pub(crate) fn charge_pace(&mut self, key: usize) {
        let proposed = self.pgs.group(key).map_or(0, |group| group.take_proposed());
        if !self.paces.buckets.is_empty() && proposed > 0 {
            let others = self.pgs.get(key).others().map(|member| member.osd);
            self.paces.charge(others.chain([self.config.osd]), proposed);
            self.paces.last = key;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::BLOCK;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_secs(10) + Duration::from_millis(ms)
    }

    fn osds(ids: &[u32]) -> impl Iterator<Item = OsdId> {
        ids.iter().map(|id| OsdId(*id)).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn slowest_member_sets_the_pace_and_others_have_none() {
        let mut paces = Paces::default();
        assert_eq!((paces.room(osds(&[1, 2])), paces.next_deadline()), (None, Time::NEVER));
        paces.set(at(0), OsdId(2), Some(1 << 20));
        paces.set(at(0), OsdId(3), Some(4 << 20));
        paces.fill(at(10));
        assert_eq!((paces.room(osds(&[1])), paces.room(osds(&[1, 2, 3]))), (None, paces.room(osds(&[2]))));
        assert!(paces.room(osds(&[2])) > Some(10_000) && paces.room(osds(&[3])) > Some(40_000));
        let mut sent = 0;
        for ms in 10..1010 {
            paces.set(at(ms), OsdId(2), Some(1 << 20));
            paces.set(at(ms), OsdId(3), Some(4 << 20));
            paces.fill(at(ms));
            while paces.room(osds(&[1, 2, 3])) > Some(0) {
                paces.charge(osds(&[1, 2, 3]), BLOCK);
                sent += BLOCK;
            }
        }
        assert!((sent as i64 - (1 << 20)).abs() < 64 << 10, "{sent} B in a second");
        assert!(paces.room(osds(&[3])) > Some(0), "the faster one has room for other PGs");
    }

    /// The end of an empty bucket is told once, also when a message of its OSD, or the end of its rate, came before the turn.
    #[test]
    fn groups_are_told_when_a_bucket_is_no_longer_empty() {
        for gone in [false, true] {
            let mut paces = Paces::default();
            paces.set(at(0), OsdId(2), Some(1 << 20));
            paces.fill(at(5));
            assert!(!paces.turn(at(5)), "no group has waited");
            paces.charge(osds(&[2]), 64 << 10);
            assert!(paces.turn(at(10)) && paces.room(osds(&[2])) == Some(0), "it is still empty");
            paces.set(at(200), OsdId(2), (!gone).then_some(1 << 20));
            assert!(paces.room(osds(&[2])) != Some(0));
            assert!(paces.turn(at(200)), "gone: {gone}");
            assert!(!paces.turn(at(201)));
        }
    }

    #[test]
    fn large_write_gets_through_and_is_owed() {
        let mut paces = Paces::default();
        paces.set(at(0), OsdId(1), Some(1 << 20));
        paces.fill(at(5));
        assert!(paces.room(osds(&[1])) > Some(0));
        paces.charge(osds(&[1]), 512 << 10);
        let ready = paces.next_deadline();
        assert!(ready > at(480) && ready < at(520), "{ready:?}");
        paces.set(at(490), OsdId(1), Some(1 << 20));
        paces.fill(ready);
        assert!(paces.room(osds(&[1])) > Some(0), "at the deadline it has something");
    }

    #[test]
    fn rate_that_is_not_told_again_does_not_count() {
        let mut paces = Paces::default();
        paces.set(at(0), OsdId(1), Some(1));
        paces.charge(osds(&[1]), 1 << 20);
        paces.fill(at(1999));
        assert_eq!(paces.room(osds(&[1])), Some(0));
        paces.fill(at(2001));
        assert_eq!((paces.room(osds(&[1])), paces.next_deadline()), (None, Time::NEVER));
        paces.set(at(2002), OsdId(1), Some(1));
        paces.set(at(2002), OsdId(1), None);
        assert_eq!(paces.room(osds(&[1])), None);
    }

    #[test]
    fn acknowledgement_carries_rates_from_a_block_a_second_on() {
        for (rate, units, back) in [
            (None, 0, None),
            (Some(0), 1, Some(UNIT)),
            (Some(800_000), 195, Some(195 * UNIT)),
            (Some(65535 * UNIT), 65535, Some(65535 * UNIT)),
            (Some(1 << 40), 0, None),
        ] {
            assert_eq!((told(rate), heard(told(rate))), (units, back), "{rate:?}");
        }
    }
}
