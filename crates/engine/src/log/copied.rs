//! Batches whose own header is lost, found by the copy in the batch behind them (ADR 0021).
//!
//! Input: a batch that the scan has accepted, and the bytes of the segments around it. Output: the batch before it, with
//! the records of the copy and the payloads that still verify.
//!
//! Invariant: pure. A copy stands for the batch right before its holder and for no other one.

use super::scan::{Candidate, FoundBatch};
use super::segment_read::SegmentBytes;
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, LogIdentity, decode_records, verified_area};
use types::{IoBuf, IoBufMut};

/// A segment whose bytes the scan has, and how far it has come there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub slot: u32,
    /// Offset of the segment on the device.
    pub base: u64,
    /// The bytes that one or two reads of the segment returned.
    pub reads: Vec<SegmentBytes>,
    /// Number of the segment's first batch, once known.
    pub life: Option<u64>,
    /// End of the last batch that was found in the segment.
    pub end: usize,
}

impl Place {
    pub fn new(candidate: Candidate, base: u64, reads: &[SegmentBytes]) -> Place {
        let life = candidate.opening.map(|opening| opening.seq);
        Place { slot: candidate.slot, base, reads: reads.to_vec(), life, end: 0 }
    }

    /// Returns the place of a batch in this segment; `None` when the batch cannot lie there.
    fn of(&self, header: &BatchHeader) -> Option<usize> {
        let at = usize::try_from(header.offset.checked_sub(self.base)?).ok()?;
        let len = self.reads.first()?.bytes.len();
        let fits = at.is_multiple_of(BATCH_ALIGN) && at.checked_add(header.len_bytes() as usize)? <= len;
        let opens = (at == 0) == (header.seq == header.segment_seq);
        let same_life = self.life.is_none_or(|life| life == header.segment_seq);
        (fits && opens && same_life && at >= self.end).then_some(at)
    }
}

/// Returns the batch that `holder` copies. `floor`: lowest number and mount that it may have. `here`: the segment of the
/// holder, and `before`: the segment before it, both as of the batch found before the holder.
pub(super) fn copied(
    holder: &FoundBatch,
    log: &LogIdentity,
    floor: (u64, u64),
    here: &Place,
    before: Option<&Place>,
) -> Option<FoundBatch> {
    let (header, copy) = holder.header.copied(&holder.bytes, log)?;
    if header.seq < floor.0 || header.mount < floor.1 {
        return None;
    }
    let place = if header.segment_seq == holder.header.segment_seq { here } else { before? };
    let at = place.of(&header)?;
    let identity = IoBuf::copy_of(&holder.bytes[copy]);
    let records = decode_records(&identity[FIXED_LEN..], header.record_count).ok()?;
    let payload_of = |read: &SegmentBytes| {
        let area = at + header.header_len as usize..at + header.len_bytes() as usize;
        verified_area(log, &header, &records, read.bytes.slice(area))
    };
    let mut payloads = place.reads.iter().map(payload_of);
    let first = payloads.next()?;
    let (payload, whole) = if first.1 { first } else { payloads.find(|(_, whole)| *whole).unwrap_or(first) };
    let bytes = restored(&header, &identity, log);
    Some(FoundBatch { slot: place.slot, header, records, payload, whole, bytes, identity, copied: true })
}

/// Returns the header area of a batch that copies no other one, to be written in the place of a lost one.
fn restored(header: &BatchHeader, identity: &[u8], log: &LogIdentity) -> IoBuf {
    let mut area = IoBufMut::zeroed(header.header_len as usize);
    area[..identity.len()].copy_from_slice(identity);
    area[..FIXED_LEN].copy_from_slice(&BatchHeader { copy_len: 0, copy_crc: 0, ..*header }.encode(log));
    area.freeze()
}
