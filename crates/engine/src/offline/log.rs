//! The batches of a stopped device's log, in the order of their numbers, without a mount.
//!
//! An env, a disk and its superblock come in. The first page of each segment tells the order of the segments; then one
//! segment at a time is read and its batches go out. Memory: at most two segments.
//!
//! Invariant: nothing is judged here. A batch goes out with the state of its checksums; the caller says what that means.

use super::read;
use crate::format::FormatError;
use env::{DiskInfo, Env};
use layout::log::{BATCH_ALIGN, BatchHeader, LogIdentity, Record, SeenBatch, walk};
use layout::superblock::Superblock;
use types::IoBuf;

/// The bounds of a log, according to its newest batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// First batch of the oldest live segment.
    pub tail_seq: u64,
    /// The newest batch; 0: there is none.
    pub last_seq: u64,
    /// Every batch up to this one was durable, according to the batches of the newest segment.
    pub durable_seq: u64,
    /// Number of the mount that wrote the newest batch.
    pub mount: u64,
}

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub slot: u32,
    pub offset: u64,
    /// Number of the first batch of its present use. `None`: it holds no batch.
    pub life: Option<u64>,
    /// Whether the header of its first batch verifies.
    pub opens: bool,
}

/// A batch of the log, with the batch before it where that one is known by its copy alone.
#[derive(Clone, Debug)]
pub struct Found {
    pub slot: u32,
    pub batch: SeenBatch,
    /// Header and records of the batch before, as this batch copies them.
    pub copied: Option<(BatchHeader, Vec<Record<'static>>)>,
}

/// The log of a stopped device.
#[derive(Debug)]
pub struct Survey {
    identity: LogIdentity,
    segment_bytes: u64,
    pub bounds: Bounds,
    /// In the order of the ring.
    pub segments: Vec<Segment>,
    /// Slots whose bytes the device does not give back.
    pub unreadable: Vec<u32>,
}

impl Survey {
    /// Reads the first page of every segment, and the two newest segments. `thorough`: segments that begin with a page of zeros
    /// are searched, too; formatting leaves such segments. A stale opening, which a mount does not count either, is dropped.
    ///
    /// # Errors
    /// A page cannot be read for another reason than the medium.
    pub fn new(env: &mut dyn Env, disk: &DiskInfo, of: &Superblock, thorough: bool) -> Result<Survey, FormatError> {
        let (identity, segment_bytes) = (of.log_identity(), of.segment_bytes);
        let mut survey =
            Survey { identity, segment_bytes, bounds: Bounds::default(), segments: Vec::new(), unreadable: Vec::new() };
        for slot in 0..of.segment_count {
            let offset = of.log_start + u64::from(slot) * segment_bytes;
            let segment = survey.look(env, disk, (slot, offset), thorough)?;
            survey.segments.push(segment);
        }
        // Without bounds, every segment that holds a batch counts as live.
        let in_order = survey.live();
        let (batches, stale) =
            newest_of(in_order, |segment| survey.batches_of(env, disk, segment).map(|(_, batches)| batches))?;
        for segment in survey.segments.iter_mut().filter(|segment| stale.contains(&segment.slot)) {
            segment.life = None;
        }
        survey.bounds = bounds_of(&batches);
        Ok(survey)
    }

    fn look(
        &mut self,
        env: &mut dyn Env,
        disk: &DiskInfo,
        (slot, offset): (u32, u64),
        thorough: bool,
    ) -> Result<Segment, FormatError> {
        let mut segment = Segment { slot, offset, life: None, opens: false };
        let page = readable(read(env, disk, offset, BATCH_ALIGN))?;
        if let Some(header) = page.as_deref().and_then(|page| BatchHeader::decode(page, &self.identity, offset)) {
            (segment.life, segment.opens) = (Some(header.segment_seq), true);
            return Ok(segment);
        }
        let is_blank = page.is_some_and(|page| page.iter().all(|byte| *byte == 0));
        if is_blank && !thorough {
            return Ok(segment);
        }
        match readable(read(env, disk, offset, self.segment_bytes as usize))? {
            Some(bytes) => {
                let batches = walk(&bytes, &self.identity, offset);
                segment.life = batches.iter().map(|batch| batch.header.segment_seq).max();
            }
            None => self.unreadable.push(slot),
        }
        Ok(segment)
    }

    /// Returns the live segments, oldest first.
    pub fn live(&self) -> Vec<Segment> {
        let tail = self.bounds.tail_seq;
        let mut live: Vec<Segment> =
            self.segments.iter().filter(|s| s.life.is_some_and(|life| life >= tail)).copied().collect();
        live.sort_unstable_by_key(|segment| segment.life);
        live
    }

    /// Returns the bytes of a segment, and the batches of its present use.
    fn batches_of(
        &mut self,
        env: &mut dyn Env,
        disk: &DiskInfo,
        segment: Segment,
    ) -> Result<(IoBuf, Vec<SeenBatch>), FormatError> {
        let Some(bytes) = readable(read(env, disk, segment.offset, self.segment_bytes as usize))? else {
            if !self.unreadable.contains(&segment.slot) {
                self.unreadable.push(segment.slot);
            }
            return Ok((IoBuf::EMPTY, Vec::new()));
        };
        let mut batches = walk(&bytes, &self.identity, segment.offset);
        // Behind the head, batches of a torn tail may be left, which an earlier mount wrote.
        let mut last = (0, 0);
        batches.retain(|batch| {
            let BatchHeader { seq, mount, segment_seq, .. } = batch.header;
            let follows = Some(segment_seq) == segment.life && seq > last.0 && mount >= last.1;
            last = if follows { (seq, mount) } else { last };
            follows
        });
        Ok((bytes, batches))
    }

    /// Gives every batch of the live segments to `visit`, ascending by number. `visit` returns whether to go on.
    ///
    /// # Errors
    /// Those of [`Survey::new`].
    pub fn visit(
        &mut self,
        env: &mut dyn Env,
        disk: &DiskInfo,
        visit: &mut dyn FnMut(Found) -> bool,
    ) -> Result<(), FormatError> {
        let mut expect = self.bounds.tail_seq;
        for segment in self.live() {
            let (bytes, batches) = self.batches_of(env, disk, segment)?;
            for batch in batches.into_iter().filter(|batch| batch.header.seq >= self.bounds.tail_seq) {
                let is_missing = batch.header.seq > expect;
                let copied = is_missing.then(|| batch.copied(&bytes, segment.offset, &self.identity)).flatten();
                expect = batch.header.seq + 1;
                if !visit(Found { slot: segment.slot, batch, copied }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Returns the batches of the newest segment, and the slots of stale ones. `in_order`: the segments with batches, oldest first.
///
/// The highest opening may be that of a torn batch, which a mount dropped. Later batches then went on in the segment before it,
/// and the opening stays on the device until its slot is reused.
fn newest_of(
    mut in_order: Vec<Segment>,
    mut read: impl FnMut(Segment) -> Result<Vec<SeenBatch>, FormatError>,
) -> Result<(Vec<SeenBatch>, Vec<u32>), FormatError> {
    let mut stale = Vec::new();
    let Some(mut newest) = in_order.pop() else { return Ok((Vec::new(), stale)) };
    let mut batches = read(newest)?;
    while let Some(before) = in_order.pop() {
        let earlier = read(before)?;
        if follows(&batches, &earlier) {
            break;
        }
        stale.push(newest.slot);
        (newest, batches) = (before, earlier);
    }
    Ok((batches, stale))
}

/// Whether the first batch of a segment may follow the last one of the segment before it, as the scan of a mount decides:
/// neither its number nor its mount falls.
fn follows(batches: &[SeenBatch], earlier: &[SeenBatch]) -> bool {
    let last = earlier.iter().rev().find(|batch| batch.records.is_some());
    let (Some(first), Some(last)) = (batches.first(), last) else { return true };
    first.header.seq > last.header.seq && first.header.mount >= last.header.mount
}

/// Returns the bounds according to the batches of the newest segment.
fn bounds_of(batches: &[SeenBatch]) -> Bounds {
    let durable_seq = batches.iter().map(|batch| batch.header.durable_seq).max().unwrap_or(0);
    batches.last().map_or(Bounds::default(), |last| {
        let BatchHeader { seq: last_seq, mount, .. } = last.header;
        let good = batches.iter().filter(|batch| batch.records.is_some());
        let tail_seq = good.map(|batch| batch.header.tail_seq).max().unwrap_or(last.header.tail_seq);
        Bounds { tail_seq, last_seq, durable_seq, mount }
    })
}

/// Returns `None` for bytes that the medium does not give back.
fn readable(read: Result<IoBuf, FormatError>) -> Result<Option<IoBuf>, FormatError> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(FormatError::Disk { source, .. }) if source.is_of_medium() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of the segment that batch `life` opened.
    fn batch(life: u64, seq: u64, mount: u64) -> SeenBatch {
        let header = BatchHeader {
            mount,
            seq,
            offset: 0,
            durable_seq: seq - 1,
            tail_seq: life - 10,
            segment_seq: life,
            ..BatchHeader::of_records(&[], 0)
        };
        SeenBatch { header, records: Some(Vec::new()), payload: IoBuf::EMPTY, whole: true }
    }

    /// Returns the bounds of a log with these segments, oldest first, and the stale slots.
    fn found(segments: &[Vec<SeenBatch>]) -> (Bounds, Vec<u32>) {
        let in_order = segments.iter().zip(0..).map(|(batches, slot)| {
            let life = batches.first().map(|first| first.header.segment_seq);
            Segment { slot, offset: 0, life, opens: true }
        });
        let read = |segment: Segment| Ok(segments[segment.slot as usize].clone());
        let (batches, stale) = newest_of(in_order.collect(), read).expect("nothing fails");
        (bounds_of(&batches), stale)
    }

    #[test]
    fn bounds_come_from_the_newest_segment_that_follows_the_one_before() {
        let first = vec![batch(20, 20, 5), batch(20, 29, 5)];
        let second = vec![batch(30, 30, 5), batch(30, 31, 6)];
        let bounds = Bounds { tail_seq: 20, last_seq: 31, durable_seq: 30, mount: 6 };
        assert_eq!(found(&[first, second]), (bounds, vec![]));
        assert_eq!(found(&[]), (Bounds::default(), vec![]));
    }

    #[test]
    fn stale_opening_of_a_torn_batch_gives_no_bounds() {
        // Batch 30 of mount 5 was torn; mount 6 dropped it and went on in the first segment.
        let torn = vec![batch(30, 30, 5)];
        for gone_on in [30, 31, 40] {
            let first = vec![batch(20, 20, 5), batch(20, 29, 5), batch(20, gone_on, 6)];
            let bounds = Bounds { tail_seq: 10, last_seq: gone_on, durable_seq: gone_on - 1, mount: 6 };
            assert_eq!(found(&[first, torn.clone()]), (bounds, vec![1]), "{gone_on}");
        }
    }

    #[test]
    fn torn_batch_of_a_segment_makes_no_later_opening_stale() {
        let unread = SeenBatch { records: None, whole: false, ..batch(20, 30, 6) };
        let first = vec![batch(20, 29, 5), unread];
        assert_eq!(found(&[first, vec![batch(30, 30, 5)]]).1, Vec::<u32>::new());
    }
}
