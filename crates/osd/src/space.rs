//! Space grants between OSDs (R13): AUs that this device has granted to others, and AUs that others have granted to it.
//!
//! The loop passes in links, the engine's free space, the sums in lease renewals and their acknowledgements,
//! and the need of each write before its group sees it. It gets leave, or a refusal. Both sums are
//! cumulative and belong to one connection: a new one begins at zero on both sides.
//!
//! Invariant: the free space here = available − granted and not spent − admitted here and not yet applied. A leader
//! spends at a member only AUs that this member granted. A write that needs no space is never refused.
//!
//! Spending ends with the reply, when the entry is applied here. The member then counts it in its own overlay
//! as soon as the same renewal's commit reaches it. A member without a connection, or
//! silent on it because its process is stopped or its host is gone, delays no write.

use crate::fullness::Fullness;
use crate::node::Osd;
use crate::tuning::SpaceTuning;
use std::collections::BTreeMap;
use types::limits::{PART_MAX, REPLICAS_MAX};
use types::planted::{Bug, on};
use types::{AU, Errno, OsdId, SectorRange, Time};
use wire::{Reject, Request, RequestBody};

/// Most AUs that one write part needs.
pub(crate) const PART_AUS: u64 = PART_MAX / AU;

/// Reason why a write gets no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// More may come with the next acknowledgement.
    Wait,
    /// This member reports that its device is full; `None`: the leader's own is.
    Full(Option<OsdId>),
}

/// Space that an admitted write holds until its reply.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is held must be settled"]
pub struct Held {
    aus: u64,
    /// Members at which it holds space, each with the number of the connection.
    at: [Option<(OsdId, u64)>; REPLICAS_MAX],
}

/// One connected OSD.
#[derive(Debug)]
struct Peer {
    life: u64,
    /// AUs of the peer's device that this OSD may spend, in all.
    granted: u64,
    spent: u64,
    held: u64,
    full: bool,
    used_at: Time,
    heard_at: Time,
    /// AUs of this device that the peer may spend, in all.
    given: u64,
    taken: u64,
}

impl Peer {
    fn left(&self) -> u64 {
        self.granted - self.spent - self.held
    }

    fn outstanding(&self) -> u64 {
        self.given - self.taken
    }
}

/// The space accounts of one OSD, and the fill level of its device.
#[derive(Debug, Default)]
pub struct Book {
    tuning: SpaceTuning,
    peers: BTreeMap<OsdId, Peer>,
    lives: u64,
    /// Available AUs, as the engine reported them in this turn.
    available: u64,
    /// AUs of writes that were answered since; the engine's next report includes them.
    settled: u64,
    /// AUs of writes that are admitted here and not answered yet.
    held: u64,
    /// Time since when there is too little left to grant.
    short_since: Option<Time>,
    full: bool,
    pub(crate) fullness: Fullness,
}

impl Book {
    pub fn new(tuning: SpaceTuning) -> Book {
        Book { tuning, ..Book::default() }
    }

    /// Notes that a connection came up or went down.
    pub fn handle_link(&mut self, now: Time, osd: OsdId, up: bool) {
        self.peers.remove(&osd);
        if up {
            self.lives += 1;
            let (life, used_at, heard_at) = (self.lives, now, now);
            let peer = Peer { life, granted: 0, spent: 0, held: 0, full: false, used_at, heard_at, given: 0, taken: 0 };
            self.peers.insert(osd, peer);
        }
    }

    /// Returns the AUs of this device that are neither granted nor held.
    fn left(&self) -> u64 {
        let given: u64 = self.peers.values().map(Peer::outstanding).sum();
        self.available.saturating_sub(given + self.held + self.settled)
    }

    /// Returns the limit below which a device is short of space: it could not grant every leader one write part's worth.
    fn low(&self) -> u64 {
        2 * PART_AUS * (self.peers.len() as u64).max(1)
    }

    /// Takes the engine's report, once a turn: AUs that may be granted, and whether a destage round may soon free more.
    /// Returns true when the device is short of space; it is full when it is short without the writes that
    /// are admitted, and none is being freed.
    pub fn observe(&mut self, now: Time, available: u64, releasing: bool) -> bool {
        self.available = available;
        self.settled = 0;
        // Unspent grants are not gone: they are spent or come back. A shortage ends at twice the level at which it begins.
        let (left, low) = (available.saturating_sub(self.held), self.low());
        self.short_since = match self.short_since {
            Some(since) => (left < 2 * low).then_some(since),
            None => (left < low).then_some(now),
        };
        // Writes that are admitted hold more than they take, and return it: while only they keep the device short, others wait.
        let is_spent = available < if self.full { 2 * low } else { low };
        let ended = |since| !releasing || now >= since + self.tuning.release_max;
        self.full = is_spent && self.short_since.is_some_and(ended);
        self.short_since.is_some()
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Admits a write of a PG with these members that needs `aus` new AUs at each. The result must be returned
    /// by [`Book::settle`].
    ///
    /// # Errors
    /// When this OSD or a connected member has no space for it.
    pub fn admit(&mut self, now: Time, aus: u64, members: impl Iterator<Item = OsdId>) -> Result<Held, NoRoom> {
        let mut held = Held { aus, at: [None; REPLICAS_MAX] };
        if aus == 0 {
            return Ok(held);
        }
        let refused = |full: bool, osd| if full { NoRoom::Full(osd) } else { NoRoom::Wait };
        let mut wait = (self.left() < aus).then(|| refused(self.full, None));
        for (place, osd) in held.at.iter_mut().zip(members) {
            let Some(peer) = self.peers.get(&osd).filter(|peer| now < peer.heard_at + self.tuning.silent) else {
                continue;
            };
            *place = Some((osd, peer.life));
            if peer.left() < aus && !matches!(wait, Some(NoRoom::Full(_))) {
                wait = Some(refused(peer.full, Some(osd)));
            }
        }
        if let Some(why) = wait {
            return Err(why);
        }
        self.held += aus;
        for (osd, _) in held.at.iter().flatten() {
            let peer = self.peers.get_mut(osd).expect("it was just seen");
            peer.held += aus;
            peer.used_at = now;
        }
        Ok(held)
    }

    /// Settles an answered write, successful or not. An entry that needed less than it held returns the rest with the
    /// next count of each device.
    pub fn settle(&mut self, held: &Held) {
        assert!(self.held >= held.aus, "what was held is settled once");
        self.held -= held.aus;
        self.settled += held.aus;
        for (osd, life) in held.at.iter().flatten() {
            if let Some(peer) = self.peers.get_mut(osd).filter(|peer| peer.life == *life) {
                peer.held -= held.aus;
                peer.spent += if on(Bug::GrantCountedTwice) { 2 * held.aus } else { held.aus };
            }
        }
    }

    /// Returns the AUs spent at `osd`, for a lease renewal to it. Grants without a use for `SpaceTuning::idle` count as
    /// spent: so they return.
    pub fn spent(&mut self, now: Time, osd: OsdId) -> u64 {
        let Some(peer) = self.peers.get_mut(&osd) else { return 0 };
        if now >= peer.used_at + self.tuning.idle {
            peer.spent += peer.left();
            peer.used_at = now;
        }
        peer.spent
    }

    /// Notes the AUs that `osd` has spent here, by its renewal; returns the AUs granted to it by now, for the acknowledgement.
    pub fn handle_spent(&mut self, osd: OsdId, spent: u64) -> u64 {
        let Some(peer) = self.peers.get_mut(&osd) else { return 0 };
        // A peer cannot spend more than it was granted.
        peer.taken = peer.taken.max(spent.min(peer.given));
        let outstanding = peer.outstanding();
        let left = self.left();
        // The share is one of all available space, including that granted to others. So a device that is not short grants every
        // leader a part's worth, and keeps as much for itself.
        let share = self.available.saturating_sub(self.held + self.settled) / (2 * self.peers.len() as u64);
        let target = share.min(self.tuning.grant_aus_max);
        let peer = self.peers.get_mut(&osd).expect("it was just seen");
        if !self.full && outstanding < target && outstanding < (target / 2).max(PART_AUS) {
            peer.given += (target - outstanding).min(left);
        }
        peer.given
    }

    /// Notes an acknowledgement of `osd`: the AUs that this OSD may spend there, in all, and whether more will come.
    pub fn handle_granted(&mut self, now: Time, osd: OsdId, granted: u64, full: bool) {
        if let Some(peer) = self.peers.get_mut(&osd) {
            peer.heard_at = now;
            peer.granted = peer.granted.max(granted);
            peer.full = full;
        }
    }
}

impl Osd {
    /// Takes the space that a client's write needs at every member of its PG. Only a leader that serves takes any; a malformed
    /// request goes on to the group, which refuses it.
    pub(crate) fn take_space(&mut self, key: usize, request: &Request) -> Result<Option<Held>, Reject> {
        let RequestBody::Write { chunk, range, .. } = &request.body else { return Ok(None) };
        let Some(range) = SectorRange::checked(range.start, range.count) else { return Ok(None) };
        let Some(leader) = self.pgs.group(key).filter(|group| group.serves()) else { return Ok(None) };
        // The attach record of an unknown volume may be applied before this write is. Its head is not known yet, nor is the one that a held
        // write goes to: each of their AUs may be new there.
        let head = leader.decides().in_head(*chunk).filter(|_| !leader.is_held(chunk.volume));
        let slot = self.pgs.get(key);
        let need = match head {
            Some(chunk) => self.engine.new_aus(slot.identity.replica, chunk, range),
            None => range.au_count(),
        };
        let pg = slot.identity.pg;
        self.hold_space(key, need).map_err(|refused| match refused {
            NoRoom::Wait => Reject::Busy,
            NoRoom::Full(member) => {
                self.write_found_full(pg, member.unwrap_or(self.config.osd));
                Reject::Failed(Errno::NoSpace)
            }
        })
    }

    /// Takes this many AUs at every member of a PG.
    ///
    /// # Errors
    /// A member does not have them.
    pub(crate) fn hold_space(&mut self, key: usize, need: u32) -> Result<Option<Held>, NoRoom> {
        if need == 0 {
            return Ok(None);
        }
        let (me, slot) = (self.config.osd, self.pgs.get(key));
        // A learner that has no space is not promoted, and stops no write.
        let voters = slot.others().filter(|member| slot.members.is_voter(member.replica));
        let others = voters.map(|member| member.osd).filter(|osd| *osd != me);
        self.space.admit(self.now, u64::from(need), others).map(Some)
    }

    /// Returns the space of an answered write.
    pub(crate) fn settle_space(&mut self, held: Option<Held>) {
        if let Some(held) = held {
            self.space.settle(&held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use types::rng::Rng;

    /// Default of [`SpaceTuning::grant_aus_max`].
    const GRANT_MAX: u64 = 1024;
    const ONE: OsdId = OsdId(1);
    const TWO: OsdId = OsdId(2);

    fn at_ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Passes a lease renewal of `leader` (OSD 1) to `member` (OSD 2), and its acknowledgement back.
    fn exchange(now: Time, leader: &mut Book, member: &mut Book) {
        let given = member.handle_spent(ONE, leader.spent(now, TWO));
        leader.handle_granted(now, TWO, given, member.is_full());
    }

    fn pair(leader_has: u64, member_has: u64) -> (Book, Book) {
        let (mut leader, mut member) = (Book::default(), Book::default());
        leader.handle_link(at_ms(0), TWO, true);
        member.handle_link(at_ms(0), ONE, true);
        leader.observe(at_ms(0), leader_has, false);
        member.observe(at_ms(0), member_has, false);
        (leader, member)
    }

    #[test]
    fn a_write_waits_for_a_grant_and_passes_with_one() {
        let (mut leader, mut member) = pair(4000, 4000);
        assert_eq!(leader.admit(at_ms(0), 1, [TWO].into_iter()), Err(NoRoom::Wait));
        exchange(at_ms(0), &mut leader, &mut member);
        assert_eq!(member.left(), 4000 - GRANT_MAX, "a grant is deducted when it is given");
        let held = leader.admit(at_ms(1), 8, [TWO].into_iter()).expect("there is room");
        assert_eq!((leader.left(), leader.peers[&TWO].left()), (3992, GRANT_MAX - 8));
        leader.settle(&held);
        assert_eq!(leader.left(), 3992, "until the engine's next word, that is what it will say");
        leader.observe(at_ms(2), 3992, false);
        assert_eq!(leader.left(), 3992);
        exchange(at_ms(25), &mut leader, &mut member);
        member.observe(at_ms(26), 3992, false);
        assert_eq!(member.left() + member.peers[&ONE].outstanding(), 3992, "what was spent is counted by the device");
    }

    #[test]
    fn write_without_new_space_always_passes() {
        let (mut leader, _) = pair(0, 0);
        leader.handle_granted(at_ms(0), TWO, 0, true);
        assert!(leader.is_full());
        let held = leader.admit(at_ms(0), 0, [TWO].into_iter()).expect("an overwrite");
        leader.settle(&held);
    }

    #[test]
    fn full_osd_refuses_a_write_and_reports_which_osd_is_full() {
        let (mut leader, mut member) = pair(4000, 3);
        exchange(at_ms(0), &mut leader, &mut member);
        assert_eq!(leader.admit(at_ms(0), 1, [TWO].into_iter()), Err(NoRoom::Full(Some(TWO))), "the member says so");
        let (mut leader, mut member) = pair(3, 4000);
        exchange(at_ms(0), &mut leader, &mut member);
        assert_eq!(leader.admit(at_ms(0), 4, [TWO].into_iter()), Err(NoRoom::Full(None)), "the leader itself is");
        let held = leader.admit(at_ms(0), 3, [TWO].into_iter()).expect("to the last AU");
        leader.settle(&held);
    }

    #[test]
    fn device_that_only_admitted_writes_keep_short_is_not_full() {
        let (mut leader, _) = pair(100, 4000);
        let held: Vec<Held> = (0..100).map(|_| leader.admit(at_ms(0), 1, [].into_iter()).expect("room")).collect();
        assert!(leader.observe(at_ms(1), 100, false), "short");
        assert_eq!((leader.is_full(), leader.admit(at_ms(1), 1, [].into_iter())), (false, Err(NoRoom::Wait)));
        // All of them wrote to one AU.
        held.iter().for_each(|held| leader.settle(held));
        assert!(!leader.observe(at_ms(2), 99, false));
        let held = leader.admit(at_ms(2), 1, [].into_iter()).expect("there is room");
        leader.settle(&held);
        leader.observe(at_ms(3), 3, false);
        assert_eq!(leader.admit(at_ms(3), 4, [].into_iter()), Err(NoRoom::Full(None)), "the AUs are gone");
    }

    #[test]
    fn unconnected_member_delays_no_write_and_a_new_link_begins_at_zero() {
        let (mut leader, mut member) = pair(4000, 4000);
        exchange(at_ms(0), &mut leader, &mut member);
        let held = leader.admit(at_ms(0), 8, [TWO, OsdId(3)].into_iter()).expect("3 is not connected");
        leader.handle_link(at_ms(1), TWO, false);
        member.handle_link(at_ms(1), ONE, false);
        assert_eq!(member.left(), 4000, "what was given goes with the connection");
        let more = leader.admit(at_ms(1), 8, [TWO].into_iter()).expect("2 is not connected either");
        leader.handle_link(at_ms(2), TWO, true);
        member.handle_link(at_ms(2), ONE, true);
        assert_eq!(leader.admit(at_ms(2), 8, [TWO].into_iter()), Err(NoRoom::Wait));
        leader.settle(&held);
        leader.settle(&more);
        exchange(at_ms(2), &mut leader, &mut member);
        assert_eq!(leader.peers[&TWO].left(), GRANT_MAX, "nothing of the old life was spent in the new one");
    }

    #[test]
    fn silent_member_delays_no_write_until_it_is_heard_again() {
        let (mut leader, mut member) = pair(4000, 4000);
        assert_eq!(leader.admit(at_ms(399), 8, [TWO].into_iter()), Err(NoRoom::Wait));
        let held = leader.admit(at_ms(400), 8, [TWO].into_iter()).expect("nothing was heard of 2");
        exchange(at_ms(500), &mut leader, &mut member);
        leader.settle(&held);
        assert_eq!(leader.peers[&TWO].left(), GRANT_MAX, "what was written meanwhile was not of its grant");
        let held = leader.admit(at_ms(899), GRANT_MAX, [TWO].into_iter()).expect("all of it");
        assert_eq!(leader.admit(at_ms(899), 1, [TWO].into_iter()), Err(NoRoom::Wait));
        leader.settle(&held);
    }

    #[test]
    fn full_is_left_at_twice_where_it_was_entered() {
        let mut book = Book::default();
        book.handle_link(at_ms(0), ONE, true);
        let low = book.low();
        let mut observe = |left| book.observe(at_ms(0), left, false);
        assert!(!observe(low) && observe(low - 1) && observe(2 * low - 1));
        assert!(book.is_full());
        assert_eq!(book.handle_spent(ONE, 0), 0, "a full device grants nothing");
        assert!(!book.observe(at_ms(1), 2 * low, false) && !book.is_full());
        assert!(book.handle_spent(ONE, 0) >= PART_AUS, "another grants enough for a part");
    }

    #[test]
    fn while_space_comes_back_a_write_waits_but_not_for_ever() {
        let (mut leader, mut member) = pair(4000, 4000);
        assert!(member.observe(at_ms(10), 3, true) && !member.is_full(), "short, but a trim is on its way");
        exchange(at_ms(10), &mut leader, &mut member);
        assert_eq!(leader.admit(at_ms(10), 8, [TWO].into_iter()), Err(NoRoom::Wait));
        assert!(member.observe(at_ms(2009), 3, true) && !member.is_full());
        assert!(member.observe(at_ms(2010), 3, true) && member.is_full(), "it brought nothing");
        exchange(at_ms(2010), &mut leader, &mut member);
        assert_eq!(leader.admit(at_ms(2010), 8, [TWO].into_iter()), Err(NoRoom::Full(Some(TWO))));
        assert!(!member.observe(at_ms(2100), 500, false) && !member.is_full());
    }

    #[test]
    fn a_small_device_is_not_full_because_it_has_given_grants() {
        let mut book = Book::default();
        let peers: Vec<OsdId> = (2..=5).map(OsdId).collect();
        peers.iter().for_each(|osd| book.handle_link(at_ms(0), *osd, true));
        assert!(!book.observe(at_ms(0), 176, false));
        let given: u64 = peers.iter().map(|osd| book.handle_spent(*osd, 0)).sum();
        assert!(given > 4 * PART_AUS);
        assert!(!book.observe(at_ms(1), 100, false) && !book.is_full(), "{given} are out, not gone");
        assert!(book.observe(at_ms(2), 63, false) && book.is_full());
    }

    #[test]
    fn a_device_that_is_not_full_has_a_part_for_every_leader() {
        for peers in 1..=4 {
            let low = 2 * PART_AUS * peers;
            for available in low..4 * low {
                let mut book = Book::default();
                let osds: Vec<OsdId> = (2..).map(OsdId).take(peers as usize).collect();
                osds.iter().for_each(|osd| book.handle_link(at_ms(0), *osd, true));
                assert!(!book.observe(at_ms(0), available, false));
                let least = osds.iter().map(|osd| book.handle_spent(*osd, 0)).min().expect("there are peers");
                assert!(least >= PART_AUS && book.left() >= PART_AUS, "{available} of {peers}: {least}");
            }
        }
    }

    #[test]
    fn what_lies_idle_goes_back_to_its_device() {
        let (mut leader, mut member) = pair(4000, 4000);
        exchange(at_ms(0), &mut leader, &mut member);
        // Other writes have filled the device meanwhile: all that is left is granted.
        member.observe(at_ms(20), GRANT_MAX, false);
        assert!(!member.is_full() && member.left() == 0, "what is out may come back");
        exchange(at_ms(900), &mut leader, &mut member);
        assert_eq!(leader.peers[&TWO].left(), GRANT_MAX, "still in hand");
        exchange(at_ms(1000), &mut leader, &mut member);
        assert_eq!((leader.peers[&TWO].left(), member.left()), (GRANT_MAX / 2, GRANT_MAX / 2), "a new share");
    }

    #[test]
    fn sums_of_a_lying_peer_change_nothing_but_its_own_grant() {
        let mut book = Book::default();
        book.handle_link(at_ms(0), ONE, true);
        book.observe(at_ms(0), 100_000, false);
        for spent in [u64::MAX, 0, 7, u64::MAX] {
            book.handle_spent(ONE, spent);
            assert!(book.left() >= 100_000 - GRANT_MAX);
        }
        book.handle_granted(at_ms(0), ONE, u64::MAX, false);
        book.handle_granted(at_ms(0), ONE, 0, false);
        let held = book.admit(at_ms(0), 8, [ONE].into_iter()).expect("it said so");
        book.settle(&held);
        assert_eq!(book.spent(at_ms(1), ONE), 8);
        assert_eq!(book.spent(at_ms(2000), OsdId(9)), 0, "an unknown OSD");
    }

    /// Three OSDs that lead and follow each other: devices are never overspent, whatever the order.
    #[test]
    fn no_device_is_ever_spent_beyond_what_it_has() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let ids = [OsdId(1), OsdId(2), OsdId(3)];
            let mut free = [rng.between(0, 3000), rng.between(0, 9000), rng.between(500, 9000)];
            let mut books = [Book::default(), Book::default(), Book::default()];
            let mut waiting: Vec<(usize, Held)> = Vec::new();
            let mut now = at_ms(0);
            for (n, book) in books.iter_mut().enumerate() {
                ids.iter().filter(|id| **id != ids[n]).for_each(|id| book.handle_link(now, *id, true));
                book.observe(now, free[n], false);
            }
            let mut admitted = 0;
            for _ in 0..3000 {
                now = now + Duration::from_millis(rng.between(0, 30));
                let leader = rng.below(3) as usize;
                // No OSD falls silent in this test.
                books.iter_mut().flat_map(|book| book.peers.values_mut()).for_each(|peer| peer.heard_at = now);
                match rng.below(4) {
                    0 => {
                        let member = (leader + rng.between(1, 2) as usize) % 3;
                        let spent = books[leader].spent(now, ids[member]);
                        let given = books[member].handle_spent(ids[leader], spent);
                        let full = books[member].is_full();
                        books[leader].handle_granted(now, ids[member], given, full);
                    }
                    1 if !waiting.is_empty() => {
                        let nth = rng.below(waiting.len() as u64) as usize;
                        let (leader, held) = waiting.swap_remove(nth);
                        for (n, free) in free.iter_mut().enumerate() {
                            *free = free.checked_sub(held.aus).unwrap_or_else(|| panic!("{} is overspent", ids[n]));
                        }
                        books[leader].settle(&held);
                        // Every device has applied it, and its engine reports so.
                        (0..3).for_each(|n| _ = books[n].observe(now, free[n], false));
                    }
                    _ => {
                        let members = ids.iter().copied().filter(|id| *id != ids[leader]);
                        if let Ok(held) = books[leader].admit(now, rng.between(1, PART_AUS), members) {
                            admitted += held.aus;
                            waiting.push((leader, held));
                        }
                    }
                }
            }
            assert!(admitted > 0 || free.iter().any(|f| *f < 100), "seed {seed}: nothing was ever admitted");
        }
    }
}
