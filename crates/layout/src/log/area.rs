//! Payloads of a batch, judged by the CRCs of their records and by the checksum of their area.
//!
//! A mount passes in batches that it has found, and so does a tool that reads a device without a mount.
//!
//! Invariant: every payload returned matches the CRCs of its record.

use super::{BatchHeader, LogIdentity, Record};
use types::IoBuf;
use types::planted::{Bug, on};

/// Returns the payload area of a batch, and whether all of it is good. When every payload matches the CRCs of its record and the
/// area does not match its own checksum, some of the bytes are older ones with equal CRCs: then no payload counts, and the area
/// is empty. Otherwise the records tell which payloads are bad.
pub fn verified_area(log: &LogIdentity, header: &BatchHeader, records: &[Record<'_>], area: IoBuf) -> (IoBuf, bool) {
    let each = records.iter().all(|record| payload_of(record, &area).is_ok());
    let matches = |area: &IoBuf| header.hash_of(log, std::slice::from_ref(area)) == header.payload_hash;
    // Bytes between the payloads belong to no record: damage of theirs costs nothing.
    let all = matches(&area)
        || on(Bug::TornBatchBelieved)
        || each && payloads_alone(records, &area).is_some_and(|area| matches(&area));
    (if each && !all { IoBuf::EMPTY } else { area }, each && all)
}

/// Returns the area with zeros wherever no payload lies.
fn payloads_alone(records: &[Record<'_>], area: &IoBuf) -> Option<IoBuf> {
    let mut bytes = vec![0; area.len()];
    for record in records {
        let at = match record {
            Record::Append { payload, .. } => *payload,
            Record::Block(block) => block.payload,
            _ => continue,
        };
        let range = at.offset as usize..(at.offset as usize).checked_add(at.len as usize)?;
        bytes.get_mut(range.clone())?.copy_from_slice(area.get(range)?);
    }
    Some(IoBuf::copy_of(&bytes))
}

/// Error: bytes of a record do not match their CRCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPayload;

/// Returns the verified payload of a record; empty for a record without one.
///
/// # Errors
/// The bytes lie outside `area`, or do not match the CRCs.
pub fn payload_of(record: &Record<'_>, area: &IoBuf) -> Result<IoBuf, BadPayload> {
    let (at, start, crcs) = match record {
        Record::Append { payload, crcs, .. } => (payload, crcs.start, crcs.values.as_slice()),
        Record::Block(block) => {
            let start = u32::from(block.block) * types::units::SECTORS_PER_BLOCK;
            (&block.payload, start, std::slice::from_ref(&block.crc))
        }
        _ => return Ok(IoBuf::EMPTY),
    };
    if at.len == 0 {
        return Ok(IoBuf::EMPTY);
    }
    let begin = at.offset as usize;
    let end = begin.checked_add(at.len as usize).filter(|end| *end <= area.len()).ok_or(BadPayload)?;
    let bytes = area.slice(begin..end);
    let range = types::SectorRange::checked(start, at.len / types::SECTOR as u32).ok_or(BadPayload)?;
    if range.verify(&bytes, crcs) || on(Bug::TornBatchBelieved) { Ok(bytes) } else { Err(BadPayload) }
}
