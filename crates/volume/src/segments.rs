//! Places of the volume's segments, and the question to meta for those that are needed; one is out at a time.
//!
//! Meta answers at once. It names a segment as pending while one of its PGs has not committed the attach record. Each pending segment is
//! asked for again after a pause of its own, so a PG without a quorum delays no segment of another PG.
//!
//! A reader may share the volume with a writer that allocates at any time. It asks meta before it answers zeros, and waits
//! for the answer. A writer that still holds the volume is alone and knows its allocations. It asks a PG whether it
//! still holds the volume (`fence_check`); it asks meta only while no segment exists.
//!
//! Invariant: a segment is a hole until meta names its place, and never becomes one again while the
//! volume is open.

use crate::tuning::VolumeTuning;
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::SEGMENTS_PER_ASK_MAX;
use types::rng::Rng;
use types::{SEGMENT, SegmentIndex, Stripe, Time};

const HOLE: u32 = u32::MAX;

pub(crate) enum Found {
    Pg(u32),
    Hole,
}

/// A pending question, or the pause before the next.
#[derive(Debug)]
enum Asked {
    No,
    Since(Time),
}

#[derive(Debug)]
pub(crate) struct Segments {
    tuning: VolumeTuning,
    stripe: Stripe,
    /// One for each column of each segment. Those behind the end of a volume that got shorter stay: their segments do, too.
    slots: Vec<u32>,
    /// Number of segments of the volume.
    count: u32,
    /// Holes to be filled, and the requests that wait for each.
    wanted: BTreeMap<u32, Vec<u32>>,
    /// The segment that was requested ahead of a sequential writer: its first write requests the next.
    ahead: Option<u32>,
    asked: Asked,
    refusals: u32,
    /// The last question was about holes.
    looked_last: bool,
    resume_at: Time,
    /// Holes that a writer may have filled, and the requests that wait to learn whether each still is one.
    looked: BTreeMap<u32, Vec<u32>>,
    /// Holes and requests of the pending question.
    looking: BTreeMap<u32, Vec<u32>>,
    /// Segments of whose PGs one has not committed the attach record, as meta said last.
    pending: BTreeMap<u32, Pending>,
}

/// The pause before a pending segment is asked for again.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    answers: u32,
    until: Time,
}

/// Draws a pause that doubles with `count` from `first` to `last`, with jitter.
fn pause(first: Duration, last: Duration, count: u32, rng: &mut Rng) -> Duration {
    let full = (first * (1 << count.min(6))).min(last).as_nanos() as u64;
    Duration::from_nanos(rng.between(full / 2, full))
}

impl Segments {
    pub fn new(len_bytes: u64, stripe: Stripe, tuning: VolumeTuning) -> Segments {
        Segments {
            tuning,
            stripe,
            slots: vec![HOLE; len_bytes.div_ceil(SEGMENT) as usize * stripe.count() as usize],
            count: len_bytes.div_ceil(SEGMENT) as u32,
            wanted: BTreeMap::new(),
            ahead: None,
            asked: Asked::No,
            refusals: 0,
            looked_last: true,
            resume_at: Time::ZERO,
            looked: BTreeMap::new(),
            looking: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Takes another length of the volume: segments behind the last end are holes. Behind a nearer end those are asked for that requests in
    /// flight wait for, and no other.
    pub fn resize(&mut self, len_bytes: u64) {
        self.count = len_bytes.div_ceil(SEGMENT) as u32;
        let slots = self.count as usize * self.stripe.count() as usize;
        self.slots.resize(slots.max(self.slots.len()), HOLE);
        let count = self.count;
        self.wanted.retain(|segment, waiters| *segment < count || !waiters.is_empty());
        self.ahead = self.ahead.filter(|ahead| *ahead < count);
    }

    /// Finds the place of a chunk, by its index in the volume.
    pub fn find(&self, chunk: u32) -> Found {
        match self.slots[(chunk / self.stripe.chunks_per_column()) as usize] {
            HOLE => Found::Hole,
            slot => Found::Pg(slot),
        }
    }

    /// Returns the place of the segment's first column among the slots.
    fn at(&self, segment: u32) -> usize {
        segment as usize * self.stripe.count() as usize
    }

    /// Whether no column of the segment has a place; all get theirs together.
    pub fn is_hole(&self, segment: u32) -> bool {
        self.slots.get(self.at(segment)) == Some(&HOLE)
    }

    /// Lets `request` wait for the segment.
    pub fn want(&mut self, segment: usize, request: u32) {
        self.wanted.entry(segment as u32).or_default().push(request);
    }

    /// Removes a request that no longer waits.
    pub fn unpark(&mut self, request: u32) {
        for waiters in self.wanted.values_mut().chain(self.looked.values_mut()).chain(self.looking.values_mut()) {
            waiters.retain(|r| *r != request);
        }
    }

    /// Notes a write to the segment: if that was requested ahead, the writer is still sequential.
    pub fn written(&mut self, segment: usize) {
        if self.ahead == Some(segment as u32) {
            self.ahead = None;
            self.want_ahead(segment as u32 + 1);
        }
    }

    fn want_ahead(&mut self, segment: u32) {
        if segment < self.count && self.is_hole(segment) {
            self.wanted.entry(segment).or_default();
            self.ahead = Some(segment);
        }
    }

    /// Lets `request` wait to learn whether the segment is still a hole.
    pub fn look(&mut self, segment: usize, request: u32) {
        self.looked.entry(segment as u32).or_default().push(request);
    }

    /// Notes the places of the columns of a segment from meta; returns the requests that waited for it. `None` when the place was
    /// known (or the segment lies outside the volume, as only a wrong answer says).
    pub fn place(&mut self, segment: SegmentIndex, slots: &[u32]) -> Option<Vec<u32>> {
        assert!(slots.len() == self.stripe.count() as usize && !slots.contains(&HOLE), "a slot for each column");
        if !self.is_hole(segment.0) {
            return None;
        }
        let at = self.at(segment.0);
        self.slots[at..at + slots.len()].copy_from_slice(slots);
        self.pending.remove(&segment.0);
        let lists = [&mut self.wanted, &mut self.looked, &mut self.looking];
        Some(lists.into_iter().filter_map(|list| list.remove(&segment.0)).flatten().collect())
    }

    /// Notes that meta named a segment as pending: it is no hole, and has no place yet. Returns whether it was asked for.
    pub fn is_pending(&mut self, now: Time, segment: SegmentIndex, rng: &mut Rng) -> bool {
        let looked = self.looking.remove(&segment.0);
        if looked.is_none() && !self.wanted.contains_key(&segment.0) {
            return false;
        }
        if let Some(mut waiters) = looked {
            self.looked.entry(segment.0).or_default().append(&mut waiters);
        }
        let (first, last) = (self.tuning.attach_pause_first, self.tuning.attach_pause_last);
        let pending = self.pending.entry(segment.0).or_default();
        pending.until = now + pause(first, last, pending.answers, rng);
        pending.answers = pending.answers.saturating_add(1);
        true
    }

    /// Returns the time from which a segment may be asked for.
    fn due(&self, segment: u32) -> Time {
        self.pending.get(&segment).map_or(Time::ZERO, |pending| pending.until)
    }

    /// Returns the segments of the next question, when one is due, and whether meta is to allocate those that do not exist.
    pub fn ask(&mut self, now: Time) -> Option<(Vec<SegmentIndex>, bool)> {
        if let Asked::Since(at) = self.asked
            && now < at + self.tuning.ask_timeout
        {
            return None;
        }
        if now < self.resume_at {
            return None;
        }
        self.look_again();
        // The two questions take turns, so that neither keeps the other from being asked.
        let is_wanted = self.wanted.keys().any(|segment| self.due(*segment) <= now);
        let is_looked = self.looked.keys().any(|segment| self.due(*segment) <= now);
        if !is_wanted || (is_looked && !self.looked_last) {
            self.looked_last = true;
            return self.ask_of_looked(now).map(|segments| (segments, false));
        }
        self.looked_last = false;
        let last = *self.wanted.keys().next_back().expect("not empty");
        let sequential = last > 0 && (!self.is_hole(last - 1) || self.wanted.contains_key(&(last - 1)));
        if sequential && self.ahead.is_none() {
            self.want_ahead(last + 1);
        }
        self.asked = Asked::Since(now);
        // Segments with waiters come first: one requested ahead must not displace a needed one.
        let due = self.wanted.iter().filter(|(segment, _)| self.due(**segment) <= now);
        let (needed, ahead): (Vec<_>, Vec<_>) = due.partition(|(_, waiters)| !waiters.is_empty());
        let all = needed.into_iter().chain(ahead).take(SEGMENTS_PER_ASK_MAX);
        Some((all.map(|(segment, _)| SegmentIndex(*segment)).collect(), true))
    }

    /// Asks whether holes are still holes. Holes of an earlier question without an answer are asked for again.
    fn ask_of_looked(&mut self, now: Time) -> Option<Vec<SegmentIndex>> {
        assert!(self.looking.is_empty(), "what was asked before is asked again");
        let due = self.looked.keys().copied().filter(|segment| self.due(*segment) <= now);
        for segment in due.take(SEGMENTS_PER_ASK_MAX).collect::<Vec<u32>>() {
            let waiters = self.looked.remove(&segment).expect("its key was just listed");
            self.looking.insert(segment, waiters);
        }
        if self.looking.is_empty() {
            return None;
        }
        self.asked = Asked::Since(now);
        Some(self.looking.keys().copied().map(SegmentIndex).collect())
    }

    fn look_again(&mut self) {
        for (segment, mut waiters) in std::mem::take(&mut self.looking) {
            self.looked.entry(segment).or_default().append(&mut waiters);
        }
    }

    /// Takes the holes that meta still does not know, after [`Segments::place`] and [`Segments::is_pending`] of the others in its
    /// answer. Each comes with the requests that waited for it. Meta was asked after those
    /// requests came, so zeros are correct at a moment within each.
    pub fn still_holes(&mut self) -> BTreeMap<u32, Vec<u32>> {
        std::mem::take(&mut self.looking)
    }

    /// Ends the pending question. Segments that are still wanted are asked for again, at once when the answer
    /// named any of them.
    pub fn answered(&mut self, now: Time, named: bool, rng: &mut Rng) {
        self.asked = Asked::No;
        self.look_again();
        if named || (self.wanted.is_empty() && self.looked.is_empty()) {
            self.refusals = 0;
            self.resume_at = now;
            return;
        }
        let (first, last) = (self.tuning.ask_backoff_first, self.tuning.ask_backoff_last);
        self.resume_at = now + pause(first, last, self.refusals, rng);
        self.refusals += 1;
    }

    pub fn deadline(&self) -> Time {
        let due = match self.asked {
            Asked::Since(at) => at + self.tuning.ask_timeout,
            Asked::No => self.resume_at,
        };
        let waiting = [&self.wanted, &self.looked, &self.looking].into_iter().flat_map(|list| list.keys());
        waiting.map(|segment| self.due(*segment)).min().map_or(Time::NEVER, |first| first.max(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(segments: &mut Segments, now: u64) -> Option<Vec<u32>> {
        segments.ask(Time(now)).map(|(s, _)| s.into_iter().map(|s| s.0).collect())
    }

    #[test]
    fn one_query_covers_all_awaited_segments() {
        let mut segments = Segments::new(10 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.want(7, 1);
        segments.want(3, 2);
        segments.want(3, 3);
        assert_eq!(ask(&mut segments, 0), Some(vec![3, 7]));
        segments.want(5, 4);
        assert_eq!(ask(&mut segments, 1), None, "one question at a time");
        assert_eq!(segments.place(SegmentIndex(3), &[0]), Some(vec![2, 3]));
        assert_eq!(segments.place(SegmentIndex(7), &[0]), Some(vec![1]));
        assert_eq!(segments.place(SegmentIndex(7), &[1]), None, "a segment never moves");
        segments.answered(Time(2), true, &mut Rng::new(1));
        assert_eq!(ask(&mut segments, 2), Some(vec![5]));
    }

    #[test]
    fn a_sequential_writer_finds_the_next_segment_already_there() {
        let mut segments = Segments::new(4 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.place(SegmentIndex(0), &[0]);
        segments.want(1, 1);
        assert_eq!(ask(&mut segments, 0), Some(vec![1, 2]), "one ahead");
        segments.place(SegmentIndex(1), &[0]);
        segments.place(SegmentIndex(2), &[0]);
        segments.answered(Time(1), true, &mut Rng::new(1));
        assert_eq!(ask(&mut segments, 1), None);
        segments.written(2);
        assert_eq!(ask(&mut segments, 2), Some(vec![3]), "asked for when the one ahead is reached");
        segments.place(SegmentIndex(3), &[0]);
        segments.answered(Time(3), true, &mut Rng::new(1));
        segments.written(3);
        assert_eq!(ask(&mut segments, 4), None, "there is no segment after the last");
    }

    #[test]
    fn segments_behind_the_old_end_are_holes_once_the_volume_is_longer() {
        let striped = Stripe::new(65536, 4).expect("a layout");
        let mut segments = Segments::new(SEGMENT + 1, striped, VolumeTuning::default());
        segments.place(SegmentIndex(1), &[0, 1, 2, 3]);
        assert!(!segments.is_hole(2), "it does not exist");
        segments.resize(2 * SEGMENT);
        assert!(!segments.is_hole(2), "the last segment is whole");
        segments.resize(3 * SEGMENT);
        assert!(segments.is_hole(2) && !segments.is_hole(1) && !segments.is_hole(3));
        segments.want(2, 7);
        assert_eq!(ask(&mut segments, 0), Some(vec![2]));
        assert_eq!(segments.place(SegmentIndex(2), &[4, 5, 6, 7]), Some(vec![7]));
        assert!(matches!(segments.find(2 * 64 + 63), Found::Pg(7)) && matches!(segments.find(64), Found::Pg(0)));
    }

    #[test]
    fn segments_behind_a_nearer_end_are_asked_for_by_requests_alone() {
        let mut segments = Segments::new(9 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.place(SegmentIndex(3), &[0]);
        segments.place(SegmentIndex(7), &[1]);
        segments.want(4, 1);
        segments.want(6, 2);
        assert_eq!(ask(&mut segments, 0), Some(vec![4, 6]));
        segments.resize(4 * SEGMENT + 512);
        segments.unpark(2);
        segments.resize(4 * SEGMENT + 512);
        assert_eq!(segments.place(SegmentIndex(4), &[0]), Some(vec![1]));
        segments.answered(Time(1), true, &mut Rng::new(1));
        segments.written(4);
        assert_eq!(ask(&mut segments, 2), None, "nothing behind the end is wanted");
        segments.resize(9 * SEGMENT);
        assert!(segments.is_hole(5) && matches!(segments.find(7 * 64), Found::Pg(1)), "its place is known");
    }

    #[test]
    fn a_refused_question_is_asked_again_after_a_pause() {
        let mut segments = Segments::new(4 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.want(1, 1);
        assert!(ask(&mut segments, 0).is_some());
        segments.answered(Time(1), false, &mut Rng::new(1));
        assert_eq!(ask(&mut segments, 2), None);
        let due = segments.deadline();
        assert!(due > Time(2) && due <= Time(1) + VolumeTuning::default().ask_backoff_first);
        assert_eq!(ask(&mut segments, due.0), Some(vec![1]));
        let lost = segments.deadline();
        assert_eq!(
            lost,
            due + VolumeTuning::default().ask_timeout,
            "an answer that never comes is not waited for for ever"
        );
        assert_eq!(ask(&mut segments, lost.0), Some(vec![1]));
    }

    #[test]
    fn refusals_to_make_a_segment_do_not_keep_others_from_hearing_of_holes() {
        let mut segments = Segments::new(4 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.want(1, 1);
        assert_eq!(segments.ask(Time(0)), Some((vec![SegmentIndex(1)], true)));
        segments.look(2, 2);
        segments.answered(Time(1), false, &mut Rng::new(1));
        let now = segments.deadline();
        assert_eq!(segments.ask(now), Some((vec![SegmentIndex(2)], false)));
        assert_eq!(segments.still_holes().into_iter().collect::<Vec<_>>(), [(2, vec![2])]);
        segments.answered(now, true, &mut Rng::new(1));
        assert_eq!(segments.ask(now), Some((vec![SegmentIndex(1)], true)));
        assert!(segments.still_holes().is_empty(), "no request asked whether that is a hole");
    }

    #[test]
    fn pending_segment_pauses_alone() {
        let mut segments = Segments::new(9 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.want(3, 1);
        segments.want(7, 2);
        assert_eq!(ask(&mut segments, 0), Some(vec![3, 7]));
        let rng = &mut Rng::new(1);
        assert!(segments.is_pending(Time(1), SegmentIndex(3), rng));
        assert!(!segments.is_pending(Time(1), SegmentIndex(5), rng), "it was not asked for");
        segments.place(SegmentIndex(7), &[0]);
        segments.answered(Time(1), true, rng);
        assert_eq!(ask(&mut segments, 2), None);
        let due = segments.deadline();
        assert!(due > Time(2) && due <= Time(1) + VolumeTuning::default().attach_pause_first);
        segments.want(5, 3);
        assert_eq!(ask(&mut segments, 2), Some(vec![5]), "a new one is asked for at once");
        segments.place(SegmentIndex(5), &[1]);
        segments.answered(Time(3), true, rng);
        let mut now = due;
        for _ in 0..100 {
            assert_eq!(ask(&mut segments, now.0), Some(vec![3]));
            assert!(segments.is_pending(now, SegmentIndex(3), rng));
            segments.answered(now, true, rng);
            let next = segments.deadline();
            assert!(next > now && next <= now + VolumeTuning::default().attach_pause_last);
            now = next;
        }
        assert_eq!(segments.place(SegmentIndex(3), &[2]), Some(vec![1]));
        assert_eq!(segments.deadline(), Time::NEVER);
    }

    #[test]
    fn pending_segment_is_no_hole_and_does_not_hide_holes() {
        let mut segments = Segments::new(4 * SEGMENT, Stripe::NONE, VolumeTuning::default());
        segments.look(1, 1);
        segments.look(2, 2);
        assert_eq!(segments.ask(Time(0)), Some((vec![SegmentIndex(1), SegmentIndex(2)], false)));
        let rng = &mut Rng::new(1);
        assert!(segments.is_pending(Time(1), SegmentIndex(1), rng));
        assert_eq!(segments.still_holes().into_iter().collect::<Vec<_>>(), [(2, vec![2])]);
        segments.answered(Time(1), true, rng);
        segments.look(3, 3);
        assert_eq!(segments.ask(Time(2)), Some((vec![SegmentIndex(3)], false)));
    }
}
