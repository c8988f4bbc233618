//! A volume or a snapshot of the cluster as the source or the target of a backup.
//!
//! Invariant: a call has all its requests in flight at once, and takes their completions before it returns.

use backup::{Source, Target, VolumeFailure};
use clientthread::{Failure, Queue, Volume};
use device::{EXTENTS_LEN_MAX, REQUEST_LEN_MAX, Request};
use std::ops::Range;
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

/// A new volume that gets the contents of a backup.
pub struct New(pub Volume);

/// Cuts ranges into requests.
fn requests(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let cut = |range: Range<u64>| {
        let starts = range.clone().step_by(LEN_MAX as usize);
        starts.map(move |start| start..(start + LEN_MAX).min(range.end))
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

impl Saved {
    /// Returns the extents of a range, in calls of at most [`EXTENTS_LEN_MAX`].
    fn extents(&self, range: Range<u64>, since: Option<SnapshotId>) -> Result<Vec<(u64, bool)>, Failure> {
        let (mut runs, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let some = self.volume.extents(at, (range.end - at).min(EXTENTS_LEN_MAX), since)?;
            at += some.iter().map(|(len, _)| len).sum::<u64>();
            runs.extend(some);
        }
        Ok(runs)
    }
}

impl Source for Saved {
    fn len_bytes(&self) -> u64 {
        self.volume.info().len_bytes
    }

    fn data(&self, range: Range<u64>) -> Result<Vec<(u64, bool)>, VolumeFailure> {
        Ok(self.extents(range, None)?)
    }

    fn changed(&self, range: Range<u64>) -> Result<Option<Vec<(u64, bool)>>, VolumeFailure> {
        match self.extents(range, Some(self.since.unwrap_or(SnapshotId(0)))) {
            Ok(runs) => Ok(Some(runs)),
            // The volume was turned back meanwhile, or the snapshot of the older backup was deleted.
            Err(failure) if [libc::EINVAL, libc::ENOENT].contains(&failure.errno) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<u8>, VolumeFailure> {
        let ranges = requests(ranges.iter().cloned());
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
}
