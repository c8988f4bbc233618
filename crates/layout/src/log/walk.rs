//! Batches of a log segment, as its bytes show them, for tools that read a device without a mount.
//!
//! The bytes of one segment come in; the batches whose headers verify go out, in the order of their offsets. Batches of an
//! earlier use of the segment are among them: the caller tells them apart by `segment_seq`.
//!
//! Invariant: pure, and no bytes cause a panic. A header is returned only when it verifies at its offset.

use super::{BATCH_ALIGN, BatchHeader, LogIdentity, Record, decode_records, verified_area};
use types::IoBuf;

/// A batch whose header verifies.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenBatch {
    pub header: BatchHeader,
    /// `None`: the records fail their CRC, or are cut off by the end of the segment.
    pub records: Option<Vec<Record<'static>>>,
    /// The payload area, as far as it counts ([`verified_area`]); empty when the records are lost.
    pub payload: IoBuf,
    /// Whether the records are there and every payload of the area is good. Payloads at home do not count here.
    pub whole: bool,
}

impl SeenBatch {
    /// Returns the header and records of the batch before this one, if this batch copies them.
    pub fn copied(&self, segment: &[u8], base: u64, log: &LogIdentity) -> Option<(BatchHeader, Vec<Record<'static>>)> {
        let at = usize::try_from(self.header.offset.checked_sub(base)?).ok()?;
        let batch = segment.get(at..)?;
        let (before, place) = self.header.copied(batch, log)?;
        let records = before.records(batch.get(place)?)?;
        Some((before, decode_records(records, before.record_count).ok()?))
    }
}

/// Returns the batches of a segment. `base` is the offset of the segment on the device.
pub fn walk(segment: &IoBuf, log: &LogIdentity, base: u64) -> Vec<SeenBatch> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + BATCH_ALIGN <= segment.len() {
        let Some(header) = BatchHeader::decode(&segment[at..], log, base + at as u64) else {
            at += BATCH_ALIGN;
            continue;
        };
        let batch = read_batch(segment, log, header, at);
        // A later batch may lie where the payload of a damaged one was, and where no records are, a batch of another use.
        at += match &batch.records {
            Some(_) if batch.whole => header.len_bytes() as usize,
            Some(_) => header.header_len as usize,
            None => BATCH_ALIGN,
        };
        found.push(batch);
    }
    found
}

fn read_batch(segment: &IoBuf, log: &LogIdentity, header: BatchHeader, at: usize) -> SeenBatch {
    let end = at.checked_add(header.len_bytes() as usize).filter(|end| *end <= segment.len());
    let records = header.records(&segment[at..]).filter(|_| end.is_some());
    let records = records.and_then(|records| decode_records(records, header.record_count).ok());
    let (Some(records), Some(end)) = (records, end) else {
        return SeenBatch { header, records: None, payload: IoBuf::EMPTY, whole: false };
    };
    let area = segment.slice(at + header.header_len as usize..end);
    let (payload, whole) = verified_area(log, &header, &records, area);
    SeenBatch { header, records: Some(records), payload, whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{FIXED_LEN, SALT_KEY_LEN, SaltKey};
    use types::OsdUuid;

    const LOG: LogIdentity = LogIdentity { uuid: OsdUuid([7; 16]), salt_key: SaltKey::new([3; SALT_KEY_LEN]) };
    const BASE: u64 = 1 << 20;

    fn put(segment: &mut [u8], at: usize, seq: u64) {
        let mut records = Vec::new();
        Record::Mount.encode(&mut records);
        let header = BatchHeader {
            mount: 1,
            seq,
            offset: BASE + at as u64,
            durable_seq: seq - 1,
            tail_seq: 1,
            segment_seq: 1,
            ..BatchHeader::of_records(&records, 1)
        };
        segment[at..at + FIXED_LEN].copy_from_slice(&header.encode(&LOG));
        segment[at + FIXED_LEN..at + FIXED_LEN + records.len()].copy_from_slice(&records);
    }

    #[test]
    fn every_flipped_byte_costs_at_most_the_batch_that_it_lies_in() {
        let mut segment = vec![0; 4 * BATCH_ALIGN];
        for n in 0..3 {
            put(&mut segment, n * BATCH_ALIGN, n as u64 + 1);
        }
        let seqs = |bytes: &[u8]| -> Vec<(u64, bool)> {
            walk(&IoBuf::copy_of(bytes), &LOG, BASE).iter().map(|b| (b.header.seq, b.whole)).collect()
        };
        assert_eq!(seqs(&segment), [(1, true), (2, true), (3, true)]);
        for at in (0..2 * BATCH_ALIGN).step_by(13).chain(0..FIXED_LEN + 16) {
            let mut bad = segment.clone();
            bad[at] ^= 0x20;
            let found = seqs(&bad);
            assert!(found.contains(&(3, true)), "byte {at}: {found:?}");
            assert!(found.iter().filter(|(_, whole)| *whole).count() >= 2, "byte {at}: {found:?}");
        }
    }

    #[test]
    fn random_bytes_hold_no_batch() {
        let mut rng = types::rng::Rng::new(5);
        let bytes: Vec<u8> = (0..16 * BATCH_ALIGN).map(|_| rng.next_u64() as u8).collect();
        assert_eq!(walk(&IoBuf::copy_of(&bytes), &LOG, BASE), []);
    }
}
