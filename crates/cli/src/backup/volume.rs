//! A volume or a snapshot of the cluster as the source or the target of a backup.
//!
//! Invariant: a call has all its requests in flight at once, and takes their completions before it returns.

use backup::{Source, Target, VolumeFailure};
use clientthread::{Failure, Queue, Volume};
use device::{EXTENTS_LEN_MAX, REQUEST_LEN_MAX, Request};
use std::ops::Range;
use types::units::SEGMENT;
use types::{IoBuf, SnapshotId};

/// Requests of one call that are in flight at the same time.
const DEPTH: u32 = 32;
/// Longest request: the largest part of a volume that goes to its PG as one.
const LEN_MAX: u64 = types::limits::PART_MAX;
const _: () = assert!(LEN_MAX <= REQUEST_LEN_MAX);

/// A snapshot that is saved.
pub struct Saved {
    pub volume: Volume,
    /// The snapshot of the older backup.
    pub since: Option<SnapshotId>,
}

/// A volume that gets the contents of a backup or a stream.
pub struct New(pub Volume);

/// Cuts ranges into parts of at most `len_max` bytes.
fn cut(ranges: impl IntoIterator<Item = Range<u64>>, len_max: u64) -> Vec<Range<u64>> {
    let cut = |range: Range<u64>| {
        let starts = range.clone().step_by(len_max as usize);
        starts.map(move |start| start..(start + len_max).min(range.end))
    };
    ranges.into_iter().flat_map(cut).collect()
}

/// Performs requests, and calls `done` with the number and the bytes of each.
fn perform(volume: &Volume, requests: Vec<Request>, mut done: impl FnMut(u64, Vec<IoBuf>)) -> Result<(), Failure> {
    let queue = Queue::new(DEPTH)?;
    let mut failure = None;
    let mut open = 0;
    let mut requests = (0..).zip(requests).peekable();
    loop {
        while failure.is_none()
            && open < DEPTH
            && let Some((n, request)) = requests.next()
        {
            volume.submit(&queue, n, request)?;
            open += 1;
        }
        if open == 0 {
            return failure.map_or(Ok(()), Err);
        }
        for finished in queue.take(1, DEPTH as usize, None)? {
            open -= 1;
            match finished.result {
                Ok(answer) => done(finished.tag, answer.into_pieces()),
                Err(errno) => failure = Some(volume.failure(errno)),
            }
        }
    }
}

/// Returns the extents of a range, in calls of at most [`EXTENTS_LEN_MAX`].
pub fn extents(volume: &Volume, range: Range<u64>, since: Option<SnapshotId>) -> Result<Vec<(u64, bool)>, Failure> {
    let (mut runs, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let some = volume.extents(at, (range.end - at).min(EXTENTS_LEN_MAX), since)?;
        at += some.iter().map(|(len, _)| len).sum::<u64>();
        runs.extend(some);
    }
    Ok(runs)
}

/// Whether a failure says that contents cannot be compared: the volume was turned back meanwhile, or the snapshot was deleted.
pub fn is_incomparable(failure: &Failure) -> bool {
    [libc::EINVAL, libc::ENOENT].contains(&failure.errno)
}

/// Whether a volume has data in a range.
fn has_data(volume: &Volume, range: Range<u64>) -> Result<bool, Failure> {
    let end = range.end.min(volume.info().len_bytes);
    Ok(range.start < end && extents(volume, range.start..end, None)?.iter().any(|(_, is_data)| *is_data))
}

impl New {
    /// Whether the volume has the contents of its snapshot, which `base` opens.
    pub fn is_unchanged_since(
        &self,
        snapshot: SnapshotId,
        base: impl Fn() -> Result<Volume, Failure>,
    ) -> Result<bool, Failure> {
        let len = self.0.info().len_bytes;
        for start in (0..len).step_by(EXTENTS_LEN_MAX as usize) {
            let runs = match extents(&self.0, start..(start + EXTENTS_LEN_MAX).min(len), Some(snapshot)) {
                Err(failure) if is_incomparable(&failure) => return Ok(false),
                runs => runs?,
            };
            let mut at = start;
            for (len, may_differ) in runs {
                let range = at..at + len;
                at = range.end;
                // A PG to which the volume came after the snapshot says this of all of a segment, also when both read as zeros there.
                if may_differ && (has_data(&self.0, range.clone())? || has_data(&base()?, range)?) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Source for Saved {
    fn len_bytes(&self) -> u64 {
        self.volume.info().len_bytes
    }

    fn data(&self, range: Range<u64>) -> Result<Vec<(u64, bool)>, VolumeFailure> {
        Ok(extents(&self.volume, range, None)?)
    }

    fn changed(&self, range: Range<u64>) -> Result<Option<Vec<(u64, bool)>>, VolumeFailure> {
        match extents(&self.volume, range, Some(self.since.unwrap_or(SnapshotId(0)))) {
            Ok(runs) => Ok(Some(runs)),
            Err(failure) if is_incomparable(&failure) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<u8>, VolumeFailure> {
        let ranges = cut(ranges.iter().cloned(), LEN_MAX);
        let mut at = 0;
        let mut places = Vec::with_capacity(ranges.len());
        for range in &ranges {
            places.push(at);
            at += (range.end - range.start) as usize;
        }
        let mut bytes = vec![0; at];
        let read = |range: &Range<u64>| Request::Read { offset: range.start, len: range.end - range.start };
        perform(&self.volume, ranges.iter().map(read).collect(), |n, pieces| {
            let mut at = places[n as usize];
            for piece in pieces {
                bytes[at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
            }
        })?;
        Ok(bytes)
    }
}

impl Target for New {
    fn write(&self, pieces: Vec<(u64, &[u8])>) -> Result<(), VolumeFailure> {
        let mut requests = Vec::new();
        for (offset, bytes) in pieces {
            for (n, part) in (0..).zip(bytes.chunks(LEN_MAX as usize)) {
                requests.push(Request::Write { offset: offset + n * LEN_MAX, buf: IoBuf::copy_of(part), fua: false });
            }
        }
        Ok(perform(&self.0, requests, |_, _| {})?)
    }

    fn clear(&self, ranges: Vec<Range<u64>>) -> Result<(), VolumeFailure> {
        // A trim carries no data: one may be as long as a segment.
        let trim = |range: Range<u64>| Request::Trim { offset: range.start, len: range.end - range.start };
        Ok(perform(&self.0, cut(ranges, SEGMENT).into_iter().map(trim).collect(), |_, _| {})?)
    }
}
