//! A part: the piece of a request that goes to one PG as one message, and the state of its copies.
//!
//! Invariant: a write's checksums are computed once, when the part is made from the user's buffer, and
//! go out unchanged with every copy.

use std::ops::Range;
use types::limits::REPLICAS_MAX;
use types::{CHUNK, CrcList, Errno, IoBuf, OsdId, SECTOR, SectorRange, SnapshotId, Time, VolumeChunk, VolumeId};
use wire::RequestBody;

/// Work that the part asks for.
#[derive(Debug)]
pub(crate) enum Work {
    Read,
    Extents {
        since: Option<SnapshotId>,
    },
    /// A fence check, which is no piece of a request.
    FenceCheck,
    Write {
        buf: IoBuf,
        crcs: CrcList,
    },
    Zero,
    /// A write that was given up, of which copies may still be on their way (R7).
    Skip {
        why: Errno,
    },
}

/// Place of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind an overlapping write.
    Held,
    /// In one of its PG's queues.
    Queued,
    /// At least one copy is out without an answer.
    Out,
    /// In no queue until its PG has space for it, or its wait is over.
    Waiting,
}

/// A copy that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartCopy {
    pub osd: OsdId,
    pub sent_at: Time,
}

#[derive(Debug)]
pub(crate) struct Part {
    /// Request that waits for it; `None` when the request was answered already.
    pub request: Option<u32>,
    /// Place of its extents in those of the request.
    pub answer_at: u32,
    pub pg: u32,
    /// Grows with every part: orders parts by age.
    pub life: u64,
    /// The volume's last message when the part was made: later messages with this key are this part's.
    pub born: u64,
    pub chunk: u32,
    pub range: SectorRange,
    pub work: Work,
    pub place: Place,
    /// Sequence number, drawn when the part first leaves; 0 before that.
    pub seq: u64,
    pub sends: u32,
    pub resends: u32,
    pub bad: u8,
    /// True when its PG had no space for it.
    pub refused: bool,
    /// The write that waits for space once its number is skipped.
    pub shelved: Option<Work>,
    pub copies: [Option<PartCopy>; REPLICAS_MAX],
}

impl Part {
    /// Returns the chunk addresses of its bytes.
    pub fn run(&self) -> Range<u64> {
        let start = u64::from(self.chunk) * CHUNK + u64::from(self.range.start) * SECTOR;
        start..start + self.range.len_bytes() as u64
    }

    pub fn is_write(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero | Work::Skip { .. })
    }

    /// Returns the credit that it takes of a connection: the bytes that it brings, or the most that its answer brings.
    pub fn cost(&self) -> usize {
        match self.work {
            Work::Write { .. } | Work::Read => self.range.len_bytes(),
            Work::Extents { .. } => wire::extents_cost(self.range),
            Work::Zero | Work::Skip { .. } | Work::FenceCheck => 0,
        }
    }

    pub fn copy_at(&self, osd: OsdId) -> Option<PartCopy> {
        self.copies.iter().flatten().copied().find(|c| c.osd == osd)
    }

    pub fn has_copies(&self) -> bool {
        self.copies.iter().any(Option::is_some)
    }

    /// Notes a copy. An existing copy at the same OSD is renewed; the oldest copy is replaced when all places are taken.
    pub fn add_copy(&mut self, osd: OsdId, sent_at: Time) {
        let copies = &mut self.copies;
        let at = (copies.iter().position(|c| c.is_some_and(|c| c.osd == osd)))
            .or_else(|| copies.iter().position(Option::is_none))
            .or_else(|| (0..copies.len()).min_by_key(|i| copies[*i].map(|c| c.sent_at)))
            .expect("there is room for a copy");
        copies[at] = Some(PartCopy { osd, sent_at });
    }

    /// Removes the copy at `osd`, and returns it.
    pub fn take_copy(&mut self, osd: OsdId) -> Option<PartCopy> {
        self.copies.iter_mut().find(|c| c.is_some_and(|c| c.osd == osd))?.take()
    }

    /// Makes the message's body.
    pub fn body(&self, volume: VolumeId, snapshot: Option<SnapshotId>, watermark: u64) -> RequestBody {
        let (seq, range) = (self.seq, self.range);
        let chunk = VolumeChunk { volume, index: self.chunk };
        assert_eq!(self.is_write(), seq != 0, "writes have a number, and only they");
        match &self.work {
            Work::Read => RequestBody::Read { chunk, range, snapshot },
            Work::Extents { since } => RequestBody::Extents { chunk, range, snapshot, since: *since },
            Work::FenceCheck => RequestBody::FenceCheck { volume },
            Work::Zero => RequestBody::Zero { chunk, range, seq, watermark },
            Work::Skip { .. } => RequestBody::Skip { volume, seq, watermark },
            Work::Write { buf, crcs } => {
                RequestBody::Write { chunk, range, seq, watermark, crcs: crcs.clone(), payload: buf.clone() }
            }
        }
    }
}
