//! Finds the batches of a log that was cut off at any moment (R11).
//!
//! Mount passes in the first page of every segment, then the bytes of the segments that may live. The scan returns
//! whole and damaged batches in order of number, and the log gaps between them. [`Found::judge`] classifies the gaps:
//! at or below the highest `durable_seq` they are corruption, above it the torn tail. A single missing batch is taken
//! from the copy in the batch behind it (see `copied`).
//!
//! A client's payload may look like a batch, in a place where one could begin, on this very device. It lacks the salt, which a
//! header verifies with and which a client does not know (ADR 0024). So any header that verifies was written by this
//! OSD, and its numbers place it: behind the batches before it, in the segment that they belong to.
//!
//! A page that the device cannot read is damage and never a tear: where a batch may have lain, one counts as durable.
//!
//! Invariant: pure. Every batch returned has verified header and records.

use super::copied::{Place, copied};
use super::places::Placed;
use super::segment_read::SegmentBytes;
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, LogIdentity, Record, decode_records, verified_area};
use layout::log::{HEADER_AREA_MAX, PAYLOAD_AREA_MAX};
use std::ops::Range;
use types::planted::{Bug, on};
use types::{AU, IoBuf};

/// One batch with verified header and records.
#[derive(Debug)]
pub(crate) struct FoundBatch {
    pub slot: u32,
    pub header: BatchHeader,
    pub records: Vec<Record<'static>>,
    /// The payload area, which shares the segment's buffer; empty when no payload counts ([`verified_area`]).
    pub payload: IoBuf,
    /// Whether every payload matches the CRCs of its record, and the area its checksum. [`Found::judge`] adds those at home.
    pub whole: bool,
    /// Bytes that the mount writes if it writes the batch again: as they lie on the device, sharing the segment's buffer; or
    /// the header area alone of a batch known by its copy.
    pub bytes: IoBuf,
    /// The fixed header and the records, as the next batch copies them.
    pub identity: IoBuf,
    /// The header of the batch is lost: its records are those of the copy in the batch behind it.
    pub copied: bool,
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
    /// Verified first header of the segment, if it has one.
    pub opening: Option<BatchHeader>,
    /// Every batch of the segment has a lower number than this one.
    pub end_seq: u64,
}

/// Returns the slots to read, oldest first, given the first header of every slot. `None`: every opening is damaged.
pub(crate) fn candidates(openings: &[Option<BatchHeader>]) -> Option<Vec<Candidate>> {
    let first_batch = |h: &BatchHeader| h.segment_seq == h.seq;
    let newest = openings.iter().flatten().filter(|h| first_batch(h)).max_by_key(|h| h.seq)?;
    let count = openings.len();
    let live = |slot: usize| openings[slot].filter(|h| first_batch(h) && h.seq >= newest.tail_seq);
    let oldest = (0..count).filter_map(live).min_by_key(|h| h.seq)?;
    let slot_of = |seq: u64| openings.iter().position(|h| h.is_some_and(|h| first_batch(&h) && h.seq == seq));
    let (first, last) = (slot_of(oldest.seq)?, slot_of(newest.seq)?);
    // The openings of the tail may be damaged: their segments lie before the oldest one that was found. The slot behind the
    // newest may be among them, and may as well hold a newer segment: the numbers tell. The newest opening may be that of
    // a torn batch, and bounds nothing: the segment before it may have gone on since.
    let alone = first == last;
    let earlier = (1..count).map(|n| (first + count - n) % count).take_while(|slot| {
        oldest.seq > newest.tail_seq && openings[*slot].is_none() && !(alone && *slot == (last + 1) % count)
    });
    let end_seq = if alone { u64::MAX } else { oldest.seq };
    let mut found: Vec<Candidate> =
        earlier.map(|slot| Candidate { end_seq, ..Candidate::without_opening(slot as u32) }).collect();
    found.reverse();
    // One slot more is read: its opening may be torn or damaged.
    let read = ((last + count - first) % count + 2).min(count);
    let slots = (0..read).map(|n| (first + n) % count);
    let slots = slots.filter(|slot| openings[*slot].is_none_or(|h| h.seq >= newest.tail_seq));
    found.extend(slots.map(|slot| Candidate { opening: live(slot), ..Candidate::without_opening(slot as u32) }));
    Some(found)
}

/// Returns every slot, for a log without any opening: batches behind the openings may be intact.
pub(crate) fn all_candidates(slots: usize) -> Vec<Candidate> {
    (0..slots as u32).map(Candidate::without_opening).collect()
}

impl Candidate {
    pub fn without_opening(slot: u32) -> Candidate {
        Candidate { slot, opening: None, end_seq: u64::MAX }
    }
}

/// Returns the bytes of the payloads at home that a batch names.
fn air_of(batch: &FoundBatch) -> u64 {
    let runs = batch.records.iter().flat_map(|record| match record {
        Record::Placed { runs, .. } => runs.as_slice(),
        _ => &[],
    });
    runs.map(|run| u64::from(run.count) * AU).sum()
}

/// The last sign of a batch: a whole one, or pages that show that there was one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signs {
    pub slot: u32,
    /// Where in the segment it ends.
    pub end: usize,
    /// Number in the last header that verified.
    pub seq: u64,
}

/// Result of scanning one segment.
#[derive(Debug)]
pub(crate) struct Look {
    here: Place,
    items: Vec<Item>,
    /// Number of the next batch, if any batch was found so far.
    expect: Option<u64>,
    last_mount: u64,
    durable: u64,
    /// A page that cannot be read lies where the batch of this number would begin.
    hidden: Option<u64>,
    /// The last sign of a batch in this segment.
    signs: Signs,
    /// Bytes of the payloads at home that the records of this segment name: they count as if they lay in it.
    air: u64,
    /// Bytes of the segment behind its last batch, as its writer counts them.
    left: u64,
}

impl Look {
    /// Whether no batch can be missing: every batch up to the next segment's first one is here and whole.
    pub fn is_complete(&self, next: Option<&Candidate>) -> bool {
        let whole = |item: &Item| matches!(item, Item::Batch(batch) if batch.whole && !batch.copied);
        let meets = next.and_then(|next| next.opening).is_some_and(|opening| self.expect == Some(opening.seq));
        meets && self.items.iter().all(whole)
    }

    fn batches(&self) -> usize {
        self.items.iter().filter(|item| matches!(item, Item::Batch(batch) if batch.whole && !batch.copied)).count()
    }
}

/// Everything that the scan has found so far.
#[derive(Debug)]
pub(crate) struct Found {
    log: LogIdentity,
    segments: usize,
    segment_bytes: u64,
    /// The segment that was read last.
    before: Option<Place>,
    pub items: Vec<Item>,
    /// Number of the next batch to look for; `None` before the first.
    expect: Option<u64>,
    tail_seq: u64,
    last_mount: u64,
    /// Highest `durable_seq` of all verified headers.
    durable: u64,
    /// The last sign of a batch in the log.
    signs: Signs,
    /// Bytes of the last segment behind its last batch.
    left: u64,
    /// The last segment has a batch, or may have one.
    goes_on: bool,
}

impl Found {
    /// Creates an empty result. `tail_seq`: first batch of the log according to the newest opening; 0 when there is
    /// none.
    pub fn new(log: LogIdentity, (segments, segment_bytes): (usize, u64), tail_seq: u64) -> Found {
        let (items, expect, last_mount, durable) = (Vec::new(), None, 0, 0);
        let (signs, left, goes_on, before) = (Signs::default(), 0, false, None);
        Found {
            log,
            segments,
            segment_bytes,
            before,
            items,
            expect,
            tail_seq,
            last_mount,
            durable,
            signs,
            left,
            goes_on,
        }
    }

    /// Drops what was freed. Every batch names the beginning of the log, and segments may have been freed behind the newest
    /// opening: counted again after each crash, they would fill a log that no mount could free. Without any opening, batches of an
    /// earlier pass of the ring were scanned, too.
    fn forget_what_was_freed(&mut self) {
        let batches = self.items.iter().filter_map(|item| if let Item::Batch(b) = item { Some(b) } else { None });
        let Some(tail_seq) = batches.map(|b| b.header.tail_seq).max() else { return };
        let lies_in = |item: &Item| match item {
            Item::Batch(batch) => batch.header.seq >= tail_seq,
            Item::Hole { to, .. } => *to > tail_seq,
        };
        self.items.retain(lies_in);
        if let Some(Item::Hole { from, .. }) = self.items.first_mut() {
            *from = tail_seq.max(*from);
        }
    }

    /// Scans the bytes of one segment, read once or twice. A read may return the bytes of another place, so a batch
    /// that verifies in one of the reads exists. `base` is the segment's offset on the device.
    pub fn look(&self, candidate: Candidate, base: u64, reads: &[SegmentBytes]) -> Look {
        assert!(reads.iter().all(|read| read.bytes.len() as u64 == self.segment_bytes), "a segment is read whole");
        let lacks = |range: Range<usize>| reads.iter().all(|read| read.lacks(range.clone()));
        let (expect, last_mount, durable) = (self.expect, self.last_mount, self.durable);
        let here = Place::new(candidate, base, reads);
        let (items, hidden, air, left) = (Vec::new(), None, 0, self.left);
        let signs = Signs { slot: candidate.slot, end: 0, seq: 0 };
        let mut look = Look { here, items, expect, last_mount, durable, hidden, signs, air, left };
        let mut at = 0;
        while at + BATCH_ALIGN <= self.segment_bytes as usize {
            let life = look.here.life;
            let Candidate { slot, end_seq, .. } = candidate;
            let scan = Scan { log: &self.log, slot, base, at, life, end_seq };
            let mut read = reads.iter().filter_map(|read| scan.batch(&read.bytes, look.floor(self.tail_seq)));
            let batch =
                read.next().map(|first| if first.whole { first } else { read.find(|b| b.whole).unwrap_or(first) });
            let Some(batch) = batch else {
                let (expect, mount) = look.floor(self.tail_seq);
                // A header of torn records says the truth of earlier batches.
                let torn = reads.iter().filter_map(|read| scan.header(&read.bytes, (expect, mount)));
                let torn = torn.max_by_key(|header| header.durable_seq);
                look.durable = torn.map_or(look.durable, |header| look.durable.max(header.durable_seq));
                let header_len = torn.map_or(BATCH_ALIGN, |header| header.header_len as usize);
                let is_hidden = at == look.here.end && lacks(at..at + header_len);
                let is_hidden = is_hidden && (at > 0 || self.next_segment_may_be_open());
                if is_hidden {
                    look.hidden = Some(expect);
                }
                if is_hidden || torn.is_some() {
                    look.signs.end = (at + header_len).min(self.segment_bytes as usize);
                    look.signs.seq = torn.map_or(look.signs.seq, |header| header.seq);
                }
                at += BATCH_ALIGN;
                continue;
            };
            let end = at + batch.header.len_bytes() as usize;
            // A log that went on behind signs of lost batches may lie where the payload of one of those was.
            let next = if batch.whole { end } else { at + batch.header.header_len as usize };
            if !batch.whole && lacks(at..end) {
                look.durable = look.durable.max(batch.header.seq);
            }
            look.signs = Signs { slot, end: next, seq: batch.header.seq };
            self.take_batch(&mut look, batch, end);
            at = next;
        }
        look
    }

    /// Takes the next batch of a segment, which ends at `end`, and the batch before it, if that is missing and copied.
    fn take_batch(&self, look: &mut Look, batch: FoundBatch, end: usize) {
        let header = batch.header;
        let (expect, mount) = look.floor(self.tail_seq);
        if header.seq > expect {
            let adjacent = |place: &&Place| (place.slot as usize + 1) % self.segments == look.here.slot as usize;
            let before = self.before.as_ref().filter(adjacent);
            let copied = copied(&batch, &self.log, (expect, mount), &look.here, before);
            let from = copied.as_ref().map_or(header.seq, |copied| copied.header.seq);
            if from > expect {
                look.items.push(Item::Hole { from: expect, to: from });
            }
            look.air += copied.iter().filter(|c| c.header.segment_seq == header.segment_seq).map(air_of).sum::<u64>();
            look.items.extend(copied.map(Item::Batch));
        }
        // The first batch found gives the number of a segment whose opening is missing.
        (look.here.life, look.here.end) = (Some(header.segment_seq), end);
        (look.expect, look.last_mount) = (Some(header.seq + 1), header.mount);
        look.durable = look.durable.max(header.durable_seq);
        look.air += air_of(&batch);
        (look.hidden, look.left) = (None, (self.segment_bytes - end as u64).saturating_sub(look.air));
        look.items.push(Item::Batch(batch));
    }

    /// Adds the result of one segment. `next`: the segment behind it.
    pub fn take(&mut self, look: Look, next: Option<&Candidate>) {
        let Look { here, items, expect, last_mount, durable, hidden, signs, left, .. } = look;
        if signs.end > 0 {
            self.signs = signs;
        }
        self.before = Some(here);
        self.goes_on = hidden.is_some() || items.iter().any(|item| matches!(item, Item::Batch(_)));
        self.items.extend(items);
        (self.expect, self.last_mount, self.durable, self.left) = (expect, last_mount, durable, left);
        let opens = next.and_then(|next| next.opening).map(|opening| opening.seq);
        if let Some(hidden) = hidden.filter(|hidden| opens != Some(*hidden)) {
            self.durable = self.durable.max(hidden);
        }
    }

    /// Whether the log may go on behind this segment, the last one read: the first page of the next one may be damaged, too.
    pub fn may_go_on(&self, last: Candidate) -> bool {
        last.opening.is_none() && self.goes_on
    }

    /// Whether the next batch may have opened a segment of its own: it did not fit behind the last one, or the last one is
    /// followed by a gap.
    fn next_segment_may_be_open(&self) -> bool {
        self.left < (HEADER_AREA_MAX + PAYLOAD_AREA_MAX) as u64
            || self.expect.is_none_or(|expect| self.durable >= expect)
    }

    /// Whether a second read of a segment gave more than the first.
    pub fn differ(first: &Look, both: &Look) -> bool {
        first.batches() != both.batches() || first.durable != both.durable
    }

    /// Drops the torn tail. Returns the rest, its log gaps, and the highest batch number known durable.
    pub fn judge(mut self, placed: Placed) -> Verdict {
        self.forget_what_was_freed();
        for item in &mut self.items {
            let Item::Batch(batch) = item else { continue };
            let (good, unreadable) = placed.judge(batch);
            batch.whole &= good;
            if unreadable {
                self.durable = self.durable.max(batch.header.seq);
            }
        }
        let mut holes = Vec::new();
        let mut keep = 0;
        let (mut torn, mut behind_gap) = (None, false);
        for item in &self.items {
            let (number, good) = match item {
                Item::Batch(batch) => (batch.header.seq, batch.whole),
                Item::Hole { from, .. } => (*from, false),
            };
            if !good && (number > self.durable || on(Bug::DamageTakenForTear)) {
                // Behind a gap it is the only sign of that, so it stays, without its bad payloads.
                let stays = behind_gap && matches!(item, Item::Batch(_));
                keep += usize::from(stays);
                torn = (!stays).then_some(number);
                break;
            }
            behind_gap = matches!(item, Item::Hole { .. });
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
        // The end of the log may be damaged: durable batches were there, and no batch follows them.
        let last = batches.last().map_or(0, |b| b.header.seq);
        if last < self.durable && !on(Bug::DamageTakenForTear) {
            holes.push((last + 1, self.durable + 1));
        }
        let (durable, signs) = (self.durable, self.signs);
        Verdict { batches, holes, durable, torn, signs, placed }
    }
}

impl Look {
    /// Returns the lowest number and mount that the next batch may have.
    fn floor(&self, tail_seq: u64) -> (u64, u64) {
        (self.expect.unwrap_or(tail_seq), self.last_mount)
    }
}

/// One place where a batch may begin.
#[derive(Clone, Copy)]
struct Scan<'a> {
    log: &'a LogIdentity,
    slot: u32,
    base: u64,
    at: usize,
    /// Number of the segment's first batch, once known.
    life: Option<u64>,
    end_seq: u64,
}

impl Scan<'_> {
    fn header(&self, bytes: &IoBuf, (seq, mount): (u64, u64)) -> Option<BatchHeader> {
        let header = BatchHeader::decode(&bytes[self.at..], self.log, self.base + self.at as u64)?;
        let same_life = match self.life {
            Some(life) => header.segment_seq == life,
            None => header.segment_seq >= seq,
        };
        let follows = header.seq >= seq && header.seq < self.end_seq && header.mount >= mount;
        (same_life && follows).then_some(header)
    }

    /// Returns the batch, if it belongs to this use of the segment and to the expected numbers.
    fn batch(&self, bytes: &IoBuf, floor: (u64, u64)) -> Option<FoundBatch> {
        let header = self.header(bytes, floor)?;
        let end = self.at.checked_add(header.len_bytes() as usize).filter(|end| *end <= bytes.len())?;
        let records = header.records(&bytes[self.at..])?;
        let records = decode_records(records, header.record_count).ok()?;
        let (payload, whole) =
            verified_area(self.log, &header, &records, bytes.slice(self.at + header.header_len as usize..end));
        let identity = bytes.slice(self.at..self.at + FIXED_LEN + header.records_len as usize);
        let bytes = bytes.slice(self.at..end);
        Some(FoundBatch { slot: self.slot, header, records, payload, whole, bytes, identity, copied: false })
    }
}

/// The part of the log that a mount continues with.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub batches: Vec<FoundBatch>,
    /// Numbers (from, to) of batches that were durable and are gone: every replica may be suspect.
    pub holes: Vec<(u64, u64)>,
    pub durable: u64,
    /// Number of the torn batch that was dropped, if there was one.
    pub torn: Option<u64>,
    pub signs: Signs,
    pub placed: Placed,
}

impl Verdict {
    /// Returns (offset, bytes) of the batches kept without proof that a flush has covered them. That they can be read
    /// proves nothing: a failed flush leaves its bytes readable, and a later flush need not write them. A batch that is known
    /// by its copy counts when its holder is such a batch, or is dropped as a torn one.
    pub fn unsure(&self) -> Vec<(u64, IoBuf)> {
        let durable = |batch: &FoundBatch| if batch.copied { self.durable } else { self.durable + 1 };
        let unsure = self.batches.iter().filter(|batch| batch.header.seq >= durable(batch));
        let mut writes: Vec<(u64, IoBuf)> = unsure.map(|batch| (batch.header.offset, batch.bytes.clone())).collect();
        // The header that copies another one shows that the payloads of that one are durable.
        let own = self.batches.iter().filter(|batch| !batch.copied && batch.header.seq > self.durable);
        writes.extend(own.flat_map(|batch| self.placed.written_by(batch)));
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LOG: LogIdentity =
        LogIdentity { uuid: types::OsdUuid([5; 16]), salt_key: layout::log::SaltKey::new([6; 16]) };
    const SEGMENT: u64 = 16 * BATCH_ALIGN as u64;

    fn batch(at: u64, seq: u64, segment_seq: u64) -> Vec<u8> {
        batch_under(&LOG, at, seq, segment_seq)
    }

    fn batch_under(log: &LogIdentity, at: u64, seq: u64, segment_seq: u64) -> Vec<u8> {
        let mut records = Vec::new();
        Record::Mount.encode(&mut records);
        let header = BatchHeader {
            mount: 1,
            seq,
            offset: at,
            durable_seq: seq - 1,
            tail_seq: segment_seq.min(10),
            segment_seq,
            ..BatchHeader::of_records(&records, 1)
        };
        let mut bytes = header.encode(log).to_vec();
        bytes.extend_from_slice(&records);
        bytes.resize(BATCH_ALIGN, 0);
        bytes
    }

    #[test]
    fn older_payload_with_an_equal_crc_does_not_count() {
        let block = |fill: u8| {
            let mut block = vec![fill; 4096];
            let crc = types::crc32c(&block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
            IoBuf::copy_of(&block)
        };
        let (old, new) = (block(1), block(2));
        let crc = types::crc32c(&new);
        assert_eq!(crc, types::crc32c(&old), "CRC32C cannot tell them apart");
        let chunk = types::ChunkKey { generation: types::GenerationId(1), index: 0 };
        let (index, payload) = (types::Index(1), layout::log::PayloadAt { offset: 0, len: 4096 });
        let record = layout::log::BlockRecord { replica: types::ReplicaId(1), chunk, block: 0, index, crc, payload };
        let records = [Record::Block(record)];
        let header = BatchHeader::decode(&batch(0, 20, 20), &LOG, 0).expect("a header");
        let mut header = BatchHeader { payload_len: 4096, ..header };
        header.payload_hash = header.hash_of(&LOG, std::slice::from_ref(&new));
        assert_eq!(verified_area(&LOG, &header, &records, new.clone()), (new.clone(), true));
        assert_eq!(verified_area(&LOG, &header, &records, old), (IoBuf::EMPTY, false));
        let mut flipped = new.to_vec();
        flipped[7] ^= 1;
        let flipped = IoBuf::copy_of(&flipped);
        assert_eq!(
            verified_area(&LOG, &header, &records, flipped.clone()),
            (flipped, false),
            "its record tells that it is bad"
        );
        let elsewhere = BatchHeader { seq: 21, ..header };
        assert_eq!(verified_area(&LOG, &elsewhere, &records, new), (IoBuf::EMPTY, false), "bytes of another batch");
    }

    #[test]
    fn damage_between_the_payloads_of_a_batch_costs_none_of_them() {
        let sector = IoBuf::copy_of(&[9; 512]);
        let crcs = types::store::Crcs { start: 0, values: types::CrcList::from_elem(types::crc32c(&sector), 1) };
        let record = Record::Append {
            replica: types::ReplicaId(1),
            index: types::Index(1),
            term: types::Term(1),
            kind: types::EntryKind::Normal,
            copied: false,
            descriptor: std::borrow::Cow::Borrowed(&[]),
            crcs: std::borrow::Cow::Borrowed(&crcs),
            payload: layout::log::PayloadAt { offset: 0, len: 512 },
        };
        let records = [record];
        let mut area = vec![0; 4096];
        area[..512].copy_from_slice(&sector);
        let header = BatchHeader::decode(&batch(0, 20, 20), &LOG, 0).expect("a header");
        let mut header = BatchHeader { payload_len: 4096, ..header };
        header.payload_hash = header.hash_of(&LOG, &[IoBuf::copy_of(&area)]);
        for (at, whole) in [(600, true), (100, false)] {
            let mut damaged = area.clone();
            damaged[at] ^= 1;
            assert_eq!(verified_area(&LOG, &header, &records, IoBuf::copy_of(&damaged)).1, whole, "byte {at}");
        }
    }

    #[test]
    fn segments_whose_openings_are_lost_are_read_in_their_order() {
        let opening = |seq: u64, tail: u64| {
            let header = BatchHeader::decode(&batch(0, seq.max(1), seq.max(1)), &LOG, 0).expect("a header");
            (seq > 0).then_some(BatchHeader { tail_seq: tail, ..header })
        };
        let read = |seqs: &[u64], tail| {
            let openings: Vec<_> = seqs.iter().map(|seq| opening(*seq, tail)).collect();
            let found = candidates(&openings).expect("one is there").into_iter();
            found.map(|c| (c.slot, c.opening.map_or(0, |h| h.seq), c.end_seq)).collect::<Vec<_>>()
        };
        let max = u64::MAX;
        assert_eq!(read(&[10, 20, 30, 0, 0], 10), [(0, 10, max), (1, 20, max), (2, 30, max), (3, 0, max)]);
        assert_eq!(read(&[10, 0, 30, 0, 5], 10), [(0, 10, max), (1, 0, max), (2, 30, max), (3, 0, max)]);
        // The tail's opening is lost: slots without an opening lie before the oldest one that is left.
        assert_eq!(read(&[0, 20, 30, 5, 6], 10), [(0, 0, 20), (1, 20, max), (2, 30, max)]);
        assert_eq!(read(&[0, 20, 30, 0], 10), [(3, 0, 20), (0, 0, 20), (1, 20, max), (2, 30, max), (3, 0, max)]);
        // In a full ring, the lost opening may be the oldest one or the newest one.
        assert_eq!(read(&[30, 40, 0, 20], 10), [(2, 0, 20), (3, 20, max), (0, 30, max), (1, 40, max), (2, 0, max)]);
        assert_eq!(read(&[0, 20, 0, 0], 10), [(3, 0, max), (0, 0, max), (1, 20, max), (2, 0, max)]);
        assert!(candidates(&[None, None]).is_none());
    }

    fn readable(bytes: &[u8]) -> SegmentBytes {
        SegmentBytes { bytes: IoBuf::copy_of(bytes), unreadable: BTreeSet::new() }
    }

    /// Judges a log of batches 10 to 12 in the first segment, and `page` in the next one, whose opening is torn.
    fn judged(page: Vec<u8>) -> Verdict {
        let mut found = Found::new(LOG, (4, SEGMENT), 10);
        let mut first: Vec<u8> = (0..3).flat_map(|n| batch(n * BATCH_ALIGN as u64, 10 + n, 10)).collect();
        first.resize(SEGMENT as usize, 0);
        let opening = BatchHeader::decode(&first, &LOG, 0);
        let look = found.look(Candidate { slot: 0, opening, end_seq: u64::MAX }, 0, &[readable(&first)]);
        found.take(look, None);
        let mut second = vec![0; 5 * BATCH_ALIGN];
        second.extend(page);
        second.resize(SEGMENT as usize, 0);
        let look = found.look(Candidate::without_opening(1), SEGMENT, &[readable(&second)]);
        found.take(look, None);
        found.judge(Placed::default())
    }

    #[test]
    fn forged_batch_is_ignored_without_an_opening_whatever_its_numbers() {
        let at = SEGMENT + 5 * BATCH_ALIGN as u64;
        let forger = LogIdentity { salt_key: layout::log::SaltKey::new([7; 16]), ..LOG };
        for (seq, segment_seq) in [(13, 13), (14, 13), (20, 13), (20, 20), (1 << 40, 13), (1 << 40, 1 << 40)] {
            let verdict = judged(batch_under(&forger, at, seq, segment_seq));
            assert_eq!(
                (verdict.batches.len(), verdict.durable, verdict.holes),
                (3, 11, vec![]),
                "{seq}, {segment_seq}"
            );
            // The same bytes with the salt are the only batch that is left of its segment.
            let verdict = judged(batch(at, seq, segment_seq));
            let hole = if seq == 13 { vec![] } else { vec![(13, seq)] };
            assert_eq!((verdict.batches.len(), verdict.durable, verdict.holes), (4, seq - 1, hole));
        }
    }

    #[test]
    fn header_of_a_torn_batch_counts_in_a_segment_without_an_opening() {
        let mut page = batch(SEGMENT + 5 * BATCH_ALIGN as u64, 20, 13);
        page[FIXED_LEN] ^= 1;
        let verdict = judged(page);
        assert_eq!((verdict.batches.len(), verdict.durable, verdict.holes), (3, 19, vec![(13, 20)]));
    }

    #[test]
    fn unreadable_opening_counts_where_a_batch_may_have_opened_the_segment() {
        const LONG: u64 = 4 << 20;
        for (batches, durable) in [(1, 9), (1022, 1032)] {
            let mut found = Found::new(LOG, (4, LONG), 10);
            let mut first: Vec<u8> = (0..batches).flat_map(|n| batch(n * BATCH_ALIGN as u64, 10 + n, 10)).collect();
            first.resize(LONG as usize, 0);
            let opening = BatchHeader::decode(&first, &LOG, 0);
            let first = found.look(Candidate { slot: 0, opening, end_seq: u64::MAX }, 0, &[readable(&first)]);
            found.take(first, None);
            let unreadable = SegmentBytes { bytes: IoBuf::zeros(LONG as usize), unreadable: BTreeSet::from([0]) };
            let second = found.look(Candidate::without_opening(1), LONG, &[unreadable]);
            found.take(second, None);
            assert_eq!(found.judge(Placed::default()).durable, durable, "{batches} batches before");
        }
    }

    #[test]
    fn unreadable_page_before_the_next_segments_opening_is_slack() {
        let mut found = Found::new(LOG, (4, SEGMENT), 10);
        let mut first: Vec<u8> = (0..3).flat_map(|n| batch(n * BATCH_ALIGN as u64, 10 + n, 10)).collect();
        first.resize(SEGMENT as usize, 0);
        let opening = BatchHeader::decode(&first, &LOG, 0);
        let bytes = SegmentBytes { unreadable: BTreeSet::from([3 * BATCH_ALIGN]), ..readable(&first) };
        for (opens, durable) in [(13, 11), (14, 13)] {
            let next = BatchHeader::decode(&batch(SEGMENT, opens, opens), &LOG, SEGMENT);
            assert!(next.is_some());
            let mut found = Found::new(LOG, (4, SEGMENT), 10);
            let look = found.look(Candidate { slot: 0, opening, end_seq: u64::MAX }, 0, std::slice::from_ref(&bytes));
            found.take(look, Some(&Candidate { slot: 1, opening: next, end_seq: u64::MAX }));
            assert_eq!(found.durable, durable);
        }
        let look = found.look(Candidate { slot: 0, opening, end_seq: u64::MAX }, 0, &[bytes]);
        found.take(look, None);
        assert_eq!(found.durable, 13, "nothing says that no batch was there");
    }
}
