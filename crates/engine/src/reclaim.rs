//! Reclamation of log segments (R8, R9): strictly oldest first, and only what a durable checkpoint covers.
//!
//! A segment may be freed under four conditions. The last checkpoint record lies behind it; the state block of a later
//! segment is whole; no completed block in it is above its replica's checkpoint index; no live entry above a checkpoint
//! index is in it alone. Entries that a round could not take (not yet committed when it began) are copied forward. A
//! segment that may be freed is still kept while the log is less than half full: followers catch up from its entries.
//!
//! Nothing is freed while a record waits that tells of a loss or of the end of a replica ([`Work::delays_reclaim`]). Each
//! batch names the beginning of the log, and one that opens a segment may lose its state block in a crash: the next mount would
//! find neither the record nor what it is about.
//!
//! Invariants: an entry above the checkpoint index is in a live segment at every moment. The oldest live segment has a
//! whole state block: segments before one that lacks it are freed together with it.

use crate::api::EngineEvent;
use crate::engine::Engine;
use crate::log::{RESERVED, Ring, Segment, Work};
use crate::replica::Replica;
use std::collections::{BTreeMap, BTreeSet};
use types::planted::{Bug, on};
use types::{Index, ReplicaId, Term};

/// Returns entries above the checkpoint index that are only in `segment`: the latest ones, and those whose replacement
/// is not durable.
fn pinned<'a>(
    replicas: &'a BTreeMap<ReplicaId, Replica>,
    segment: &'a Segment,
) -> impl Iterator<Item = (ReplicaId, Index, Term)> + 'a {
    segment.entries.iter().flat_map(move |(id, highest)| {
        let r = replicas.get(id).filter(|r| r.keeps_log());
        let above = r.map_or(1..1, |r| r.checkpoint.0.0 + 1..r.log.last().0.min(*highest) + 1);
        let latest = above.filter_map(move |index| r?.log.get(Index(index)));
        let replaced = r.into_iter().flat_map(|r| r.replaced.iter().flat_map(|replaced| &replaced.entries));
        let here = latest.chain(replaced).filter(|kept| kept.segment == segment.opened);
        here.map(|kept| (*id, kept.index, kept.term))
    })
}

/// Returns the replicas that need a completed block of this segment.
fn blocks_pin<'a>(
    replicas: &'a BTreeMap<ReplicaId, Replica>,
    segment: &'a Segment,
) -> impl Iterator<Item = ReplicaId> + 'a {
    // Blocks of a failed replica count up to its logged commit index, as at a mount.
    let counts = |r: &Replica, index: u64| !r.has_failed() || index <= r.hard_state.commit.0;
    let pins = move |r: &Replica, index: u64| r.keeps_log() && index > r.checkpoint.0.0 && counts(r, index);
    let all = segment.blocks.iter();
    all.filter(move |(id, index)| replicas.get(id).is_some_and(|r| pins(r, **index))).map(|(id, _)| *id)
}

/// The oldest segments of the log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Number of the oldest live segments that nothing keeps: the next one is what stands in the way.
    pub passed: usize,
    /// Number of the oldest live segments that may be freed at once; at most `passed`.
    pub freeable: usize,
    /// The log is full, and replicas that take no part hold its tail.
    pub no_room: bool,
}

impl Engine {
    /// Counts the oldest segments that nothing keeps, and those of them that may be freed.
    pub(crate) fn find_freeable(&mut self) {
        let log = self.log.as_ref().expect("a running engine has a log");
        let live = log.ring.live();
        let passed = live.iter().take(log.ring.known_later()).take_while(|segment| {
            let behind = log.checkpoint_segment == 0 || segment.opened < log.checkpoint_segment;
            behind
                && blocks_pin(&self.replicas, segment).next().is_none()
                && pinned(&self.replicas, segment).next().is_none()
        });
        self.tail.passed = passed.count();
        // A crash may leave a segment without a whole state block. The log never begins there: a mount would not know the
        // replicas of its records.
        let begins = |n: &usize| live.get(*n).is_some_and(|s| s.stated || on(Bug::LogBeginsAnywhere));
        self.tail.freeable = (1..=self.tail.passed).rev().find(begins).unwrap_or(0);
    }

    /// Returns how many segments are free, or may be freed at once.
    pub(crate) fn free_segments(&self) -> usize {
        self.tail.freeable + self.log.as_ref().map_or(0, |log| log.ring.free())
    }

    /// Frees segments that may be freed, until half of the ring is free: one after the other, as their entries are dropped,
    /// unless the log needs the room.
    pub(crate) fn reclaim(&mut self) {
        let log = self.log.as_mut().expect("a running engine has a log");
        // A mount may have found a loss in these segments.
        if log.untold > 0 {
            return;
        }
        let begins = |ring: &Ring| ring.live().front().is_some_and(|s| s.stated || on(Bug::LogBeginsAnywhere));
        while self.tail.freeable > 0 && (log.ring.free() < log.ring.count() / 2 || !begins(&log.ring)) {
            if !self.drops.is_empty() && log.ring.free() > RESERVED && begins(&log.ring) {
                return;
            }
            self.tail.freeable -= 1;
            self.tail.passed -= 1;
            let segment = log.ring.free_oldest();
            let mut freed = Vec::new();
            for (id, highest) in segment.entries {
                let Some(mut r) = self.replicas.get_mut(&id) else { continue };
                let covered = if r.keeps_log() { highest.min(r.checkpoint.0.0) } else { highest };
                self.drops.add_entries(r.log.take_below(Index(covered + 1)));
                freed.push(id);
            }
            if !freed.is_empty() {
                self.events.push(EngineEvent::Freed(freed));
            }
        }
    }

    /// Returns the replicas that take no part, and whose entries above the checkpoint index or completed blocks are in
    /// this segment.
    fn held<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = ReplicaId> + 'a {
        // A replica whose log is truncated already is not listed: only its record is waited for.
        let waits = |r: &Replica| !r.may_take_part() && r.keeps_log() && r.log.last() > r.checkpoint.0;
        let is_held = move |id: &ReplicaId| self.replicas.get(id).is_some_and(waits);
        let entries = segment.entries.keys().copied().filter(is_held);
        let entries = entries.filter(move |id| pinned(&self.replicas, segment).any(|(replica, ..)| replica == *id));
        let blocks = blocks_pin(&self.replicas, segment).filter(is_held);
        entries.chain(blocks).collect::<BTreeSet<_>>().into_iter()
    }

    /// Truncates the logs of replicas that take no part and hold the tail of a full log: they keep what is at home, and one whose
    /// payloads were to be repaired fails. It runs at the end of a turn, so that the OSD's loop is told before it changes them
    /// again.
    pub(crate) fn make_room(&mut self) {
        if !std::mem::take(&mut self.tail.no_room) || self.free_segments() > RESERVED {
            return;
        }
        let log = self.log.as_ref().expect("a running engine has a log");
        let Some(tail) = log.ring.live().get(self.tail.passed) else { return };
        for replica in self.held(tail).collect::<Vec<_>>() {
            let r = &self.replicas[&replica];
            let from = Index(r.checkpoint.0.0 + 1);
            tracing::warn!(replica = replica.0, %from,
                "the log is full: truncating the log of a replica that has failed or is under repair");
            match r.has_failed() {
                true => self.shorten_past(replica),
                false => {
                    self.fail_before(replica, from, "the log was full before its payloads were repaired".to_owned())
                }
            }
        }
        self.find_freeable();
    }

    /// Copies the entries forward that keep the tail from being freed although the last round has passed it.
    pub(crate) fn copy_forward(&mut self) {
        let log = self.log.as_ref().expect("a running engine has a log");
        if self.free_segments() >= log.ring.count() / 2 {
            return;
        }
        let Some(tail) = log.ring.live().get(self.tail.passed) else { return };
        if tail.opened >= self.destage.horizon || on(Bug::NoCopyForward) {
            return;
        }
        // A replica that takes no part holds its entries above the checkpoint index, and no round moves them. Such replicas
        // are truncated before anything is copied.
        self.tail.no_room = self.free_segments() <= RESERVED && self.held(tail).next().is_some();
        if self.tail.no_room {
            return;
        }
        let copies: Vec<Work> = pinned(&self.replicas, tail)
            .filter(|(replica, index, _)| !log.has_copy_of(*replica, index.0))
            .take(self.config.steps.copy_entries)
            .map(|(replica, index, term)| Work::Copy { replica, index, term })
            .collect();
        copies.into_iter().for_each(|copy| self.queue(copy));
    }
}
