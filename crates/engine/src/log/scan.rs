//! Finding the batches of a log that was cut off at any moment (R11).
//!
//! Mount comes in with the first page of every segment, then with the bytes of the segments that may live;
//! out go whole and damaged batches in order of number, and the holes between them. Judging holes is for
//! [`Found::judge`]: at or below the highest `durable_seq` they are corruption, above it the torn tail.
//!
//! Invariant: pure; a batch that is given out has verified headers and records.

use layout::log::{BATCH_ALIGN, BatchHeader, Record, decode_records};
use types::planted::{Bug, on};
use types::{IoBuf, OsdUuid};

/// One batch with verified header and records.
#[derive(Debug)]
pub(crate) struct FoundBatch {
    pub slot: u32,
    pub header: BatchHeader,
    pub records: Vec<Record>,
    /// The payload area; shares the segment's buffer.
    pub payload: IoBuf,
    /// Whether every payload matches the CRCs of its record.
    pub whole: bool,
}

#[derive(Debug)]
pub(crate) enum Item {
    Batch(FoundBatch),
    /// Batches from this number on are missing, but later ones are there.
    Hole {
        from: u64,
        to: u64,
    },
}

/// A segment that may live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub slot: u32,
    /// Its verified first header, if it has one.
    pub opening: Option<BatchHeader>,
}

/// Which slots to read, oldest first, given the first header of every slot. `None`: no segment was ever
/// opened, or every opening is damaged.
pub(crate) fn candidates(openings: &[Option<BatchHeader>]) -> Option<Vec<Candidate>> {
    let first_batch = |h: &BatchHeader| h.segment_seq == h.seq;
    let newest = openings.iter().flatten().filter(|h| first_batch(h)).max_by_key(|h| h.seq)?;
    let count = openings.len();
    let slot_of = |seq: u64| openings.iter().position(|h| h.is_some_and(|h| first_batch(&h) && h.seq == seq));
    let newest_slot = slot_of(newest.seq)?;
    // The tail's own opening may be damaged: then begin at the oldest that is at or above it.
    let tail_slot = slot_of(newest.tail_seq).or_else(|| {
        let above = openings.iter().flatten().filter(|h| first_batch(h) && h.seq >= newest.tail_seq);
        above.min_by_key(|h| h.seq).and_then(|h| slot_of(h.seq))
    })?;
    let live = (newest_slot + count - tail_slot) % count + 1;
    // One more: its opening may be what was torn, or what was damaged.
    let read = (live + 1).min(count);
    let slots = (0..read).map(|n| (tail_slot + n) % count);
    let candidate = |slot: usize| {
        let opening = openings[slot].filter(|h| first_batch(h) && h.seq >= newest.tail_seq);
        Candidate { slot: slot as u32, opening }
    };
    let stale = |slot: usize| openings[slot].is_some_and(|h| h.seq < newest.tail_seq);
    Some(slots.filter(|slot| !stale(*slot)).map(candidate).collect())
}

/// Everything that the scan found so far.
#[derive(Debug)]
pub(crate) struct Found {
    uuid: OsdUuid,
    segment_bytes: u64,
    pub items: Vec<Item>,
    /// Number of the next batch that is looked for; `None` before the first.
    expect: Option<u64>,
    tail_seq: u64,
    last_mount: u64,
    /// Highest `durable_seq` of all verified headers.
    durable: u64,
}

impl Found {
    pub fn new(uuid: OsdUuid, segment_bytes: u64, tail_seq: u64) -> Found {
        Found { uuid, segment_bytes, items: Vec::new(), expect: None, tail_seq, last_mount: 0, durable: 0 }
    }

    /// Takes the bytes of one segment, in the order of the candidates. `base` is its offset on the device.
    pub fn segment(&mut self, candidate: Candidate, base: u64, bytes: &IoBuf) {
        assert_eq!(bytes.len() as u64, self.segment_bytes, "a segment is read whole");
        let mut at = 0;
        while at + BATCH_ALIGN <= bytes.len() {
            let Some(batch) = self.batch_at(candidate, base, bytes, at) else {
                self.torn_header(candidate, base, bytes, at);
                at += BATCH_ALIGN;
                continue;
            };
            let header = batch.header;
            let expect = self.expect.unwrap_or(self.tail_seq);
            if header.seq > expect {
                self.items.push(Item::Hole { from: expect, to: header.seq });
            }
            self.expect = Some(header.seq + 1);
            self.last_mount = header.mount;
            self.durable = self.durable.max(header.durable_seq);
            at += header.len_bytes() as usize;
            self.items.push(Item::Batch(batch));
        }
    }

    /// A batch whose records are torn has a header that may be whole: what that says of earlier batches is true.
    fn torn_header(&mut self, candidate: Candidate, base: u64, bytes: &IoBuf, at: usize) {
        let Some(header) = BatchHeader::decode(&bytes[at..], self.uuid, base + at as u64) else { return };
        let opening = candidate.opening;
        let same_life = opening.is_some_and(|o| (o.seq, o.salt) == (header.segment_seq, header.salt));
        if same_life && header.mount >= self.last_mount && header.seq >= self.expect.unwrap_or(self.tail_seq) {
            self.durable = self.durable.max(header.durable_seq);
        }
    }

    /// The batch at `at`, if it belongs to this life of the segment and to what comes next.
    fn batch_at(&self, candidate: Candidate, base: u64, bytes: &IoBuf, at: usize) -> Option<FoundBatch> {
        let header = BatchHeader::decode(&bytes[at..], self.uuid, base + at as u64)?;
        let same_life = match candidate.opening {
            Some(opening) => header.segment_seq == opening.seq && header.salt == opening.salt,
            None => header.segment_seq >= self.expect.unwrap_or(self.tail_seq),
        };
        let next = header.seq >= self.expect.unwrap_or(self.tail_seq) && header.mount >= self.last_mount;
        let end = at.checked_add(header.len_bytes() as usize)?;
        if !same_life || !next || end > bytes.len() {
            return None;
        }
        let records = header.records(&bytes[at..])?;
        let records = decode_records(records, header.record_count).ok()?;
        let payload = bytes.slice(at + header.header_len as usize..end);
        let whole = records.iter().all(|r| payload_of(r, &payload).is_ok());
        Some(FoundBatch { slot: candidate.slot, header, records, payload, whole })
    }

    /// Cuts off the torn tail. Gives what lies in between and the highest number that is known durable.
    pub fn judge(mut self) -> Verdict {
        let mut holes = Vec::new();
        let mut keep = 0;
        let mut torn = None;
        for item in &self.items {
            let (number, good) = match item {
                Item::Batch(batch) => (batch.header.seq, batch.whole),
                Item::Hole { from, .. } => (*from, false),
            };
            if !good && (number > self.durable || on(Bug::DamageTakenForTear)) {
                torn = Some(number);
                break;
            }
            if let Item::Hole { from, to } = item {
                holes.push((*from, *to));
            }
            keep += 1;
        }
        self.items.truncate(keep);
        let batches = self.items.into_iter().filter_map(|item| match item {
            Item::Batch(batch) => Some(batch),
            Item::Hole { .. } => None,
        });
        let batches: Vec<FoundBatch> = batches.collect();
        // The end itself may be what is damaged: something durable was there, and nothing is behind it.
        let last = batches.last().map_or(0, |b| b.header.seq);
        if last < self.durable && !on(Bug::DamageTakenForTear) {
            holes.push((last + 1, self.durable + 1));
        }
        Verdict { batches, holes, durable: self.durable, torn }
    }
}

/// What a mount goes on with.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub batches: Vec<FoundBatch>,
    /// Numbers (from, to) of batches that were durable and are gone: the whole store is in doubt.
    pub holes: Vec<(u64, u64)>,
    pub durable: u64,
    /// Number of the torn batch that was dropped, if there was one.
    pub torn: Option<u64>,
}

/// Bytes of a record that do not match their CRCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadPayload;

/// The verified payload of a record; empty for a record without one.
pub(crate) fn payload_of(record: &Record, area: &IoBuf) -> Result<IoBuf, BadPayload> {
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
