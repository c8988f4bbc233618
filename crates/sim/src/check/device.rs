//! The log of a device, read by a parser of its own (`docs/formats.md`): for each replica its highest term and vote, the
//! entries that its log holds, its checkpoint index, and whether a record marks it as failed.
//!
//! Input: the bytes of an image, or one batch as it is written. Output: [`Contents`]. The parser shares no code with
//! `layout` and `engine`, so a mistake in their encoding or replay is no mistake here.
//!
//! Invariant: no bytes cause a panic. A batch counts only when its header and its records have their checksums, and a batch
//! above every `durable_seq` only when its payloads have theirs. The device is one that keeps what it has flushed: the reader
//! looks for no batch behind one that is missing, and needs no copies of records.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: usize = 4096;
const SECTOR: usize = 512;
const SECTORS_PER_BLOCK: usize = 8;
/// Unit of the places of payloads at home.
const AU: usize = 64 << 10;
const MAGIC: &[u8] = b"BSLTBTCH";
/// Bytes of the fixed header of a batch, and of a record.
const HEAD: usize = 128;
const RECORD: usize = 40;
/// Longest header area.
const HEADER_MAX: usize = 512 << 10;

/// Kinds of records that concern a replica's log, and their flags.
mod kind {
    pub const APPEND: u8 = 1;
    pub const HARD_STATE: u8 = 2;
    pub const CREATE: u8 = 3;
    pub const DESTROY: u8 = 4;
    pub const CHECKPOINT: u8 = 5;
    pub const REPLICA_STATE: u8 = 8;
    pub const TOMBSTONES: u8 = 9;
    pub const RESET: u8 = 11;
    pub const LOST_ENTRY: u8 = 16;
    /// The replica has failed.
    pub const PAST: u8 = 18;
    /// The replica takes part again.
    pub const REVIVED: u8 = 20;
    pub const FLOOR: u8 = 24;
    /// An entry whose payload lies at home.
    pub const PLACED: u8 = 25;

    pub const COPIED: u8 = 1;
    pub const VOTED: u8 = 2;
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Place of the log on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub uuid: [u8; 16],
    pub start: u64,
    pub segment_bytes: u64,
    pub segments: u64,
}

impl Place {
    /// Reads the place from a copy of the superblock.
    fn find(size_bytes: u64, read: &mut dyn FnMut(u64, &mut [u8])) -> Option<Place> {
        [0, (size_bytes / PAGE as u64 - 1) * PAGE as u64].into_iter().find_map(|at| {
            let mut page = [0; PAGE];
            read(at, &mut page);
            let crc = u32_at(&page, 248)?;
            page[248..252].fill(0);
            let good = page.starts_with(b"BSLTSUPR") && types::crc32c(&page) as usize == crc;
            let place = Place {
                uuid: page[48..64].try_into().ok()?,
                start: u64_at(&page, 72)?,
                segment_bytes: u64_at(&page, 80)?,
                segments: u32_at(&page, 88)? as u64,
            };
            good.then_some(place)
        })
    }

    /// Whether the log takes this byte of the device.
    pub fn has(&self, at: u64) -> bool {
        (self.start..self.start + self.segments * self.segment_bytes).contains(&at)
    }
}

/// One record, as far as it concerns the log of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fact {
    Entry {
        replica: u64,
        index: u64,
        term: u64,
        copied: bool,
        payload: Payload,
    },
    Hard {
        replica: u64,
        term: u64,
        vote: Option<u64>,
    },
    State {
        replica: u64,
        term: u64,
        vote: Option<u64>,
        failed: bool,
        begins: u64,
    },
    Gone(Vec<u64>),
    Checkpoint {
        id: u64,
        part: usize,
        parts: usize,
        bytes: Vec<u8>,
    },
    /// The log begins behind this index: what was committed up to there is not acknowledged by it any more.
    Reset {
        replica: u64,
        index: u64,
    },
    Past {
        replica: u64,
    },
    Revived {
        replica: u64,
    },
    Floor(u64),
}

/// Place of a payload in its batch or at home, and the CRC of each fragment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Payload {
    at: usize,
    len: usize,
    /// Offset and length of each part at home.
    placed: Vec<(u64, usize)>,
    start: usize,
    crcs: Vec<u32>,
}

impl Payload {
    /// Reads the checksums of an entry that begin at `at` of the body of its record.
    fn of_entry(body: &[u8], at: usize) -> Option<Payload> {
        let crcs = (0..u32_at(body, at + 4)?).map(|n| Some(u32_at(body, at + 12 + 4 * n)? as u32));
        Some(Payload { start: u32_at(body, at + 8)?, crcs: crcs.collect::<Option<_>>()?, ..Payload::default() })
    }

    /// Reads a payload at home: its hash, its runs, its checksums.
    fn of_placed(body: &[u8]) -> Option<Payload> {
        let run_count = u32_at(body, 8)?;
        let run = |n: usize| Some((u32_at(body, 16 + 8 * n)? as u64 * AU as u64, u32_at(body, 20 + 8 * n)? * AU));
        let placed = (0..run_count).map(run).collect::<Option<_>>()?;
        Some(Payload { placed, ..Payload::of_entry(body, 16 + 8 * run_count)? })
    }

    /// Whether the bytes have their checksums.
    fn is_good(&self, area: &[u8], read: &mut dyn FnMut(u64, &mut [u8])) -> bool {
        if self.placed.is_empty() {
            return area.get(self.at..self.at + self.len).is_some_and(|bytes| self.verifies(bytes));
        }
        let mut bytes = vec![0; self.placed.iter().map(|(_, len)| len).sum()];
        let mut rest = &mut bytes[..];
        for (offset, len) in &self.placed {
            let (part, behind) = rest.split_at_mut(*len);
            read(*offset, part);
            rest = behind;
        }
        self.verifies(&bytes)
    }

    fn verifies(&self, mut rest: &[u8]) -> bool {
        let mut start = self.start % SECTORS_PER_BLOCK;
        for crc in &self.crcs {
            let (fragment, behind) = rest.split_at(rest.len().min((SECTORS_PER_BLOCK - start) * SECTOR));
            if types::crc32c(fragment) != *crc {
                return false;
            }
            (rest, start) = (behind, 0);
        }
        true
    }
}

/// One batch with its records.
#[derive(Clone, Debug)]
pub struct Batch {
    pub seq: u64,
    pub mount: u64,
    /// Bytes of the header area, and of the whole batch.
    header_len: usize,
    pub len: usize,
    durable_seq: u64,
    tail_seq: u64,
    segment_seq: u64,
    salt: u64,
    facts: Vec<Fact>,
}

impl Batch {
    /// Reads the batch whose header area begins `bytes`, and which lies at `at` of the device.
    pub fn parse(bytes: &[u8], at: u64, uuid: &[u8; 16]) -> Option<Batch> {
        let mut head: [u8; HEAD] = bytes.get(..HEAD)?.try_into().ok()?;
        let crc = u32_at(&head, 12)?;
        head[12..16].fill(0);
        let good = head.starts_with(MAGIC) && types::crc::append(types::crc32c(uuid), &head) as usize == crc;
        let (header_len, records_len) = (u32_at(&head, 16)?, u32_at(&head, 20)?);
        if !good || u64_at(&head, 64)? != at || bytes.len() < header_len {
            return None;
        }
        let records = bytes.get(HEAD..HEAD + records_len)?;
        if types::crc32c(records) as usize != u32_at(&head, 28)? {
            return None;
        }
        Some(Batch {
            seq: u64_at(&head, 56)?,
            mount: u64_at(&head, 48)?,
            header_len,
            len: header_len + u32_at(&head, 32)?,
            durable_seq: u64_at(&head, 72)?,
            tail_seq: u64_at(&head, 80)?,
            segment_seq: u64_at(&head, 88)?,
            salt: u64_at(&head, 40)?,
            facts: facts(records)?,
        })
    }

    /// Returns the replicas that a record marks as failed, or clears.
    pub fn marks(&self) -> impl Iterator<Item = u64> {
        self.facts.iter().filter_map(|fact| match fact {
            Fact::Past { replica } | Fact::Revived { replica } => Some(*replica),
            Fact::State { replica, failed: true, .. } => Some(*replica),
            _ => None,
        })
    }

    /// Returns the parts of the device that hold the payloads that this batch has placed at home.
    pub fn placed(&self) -> impl Iterator<Item = u64> {
        self.own_placed().flat_map(|payload| payload.placed.iter().map(|(offset, _)| *offset))
    }

    fn own_placed(&self) -> impl Iterator<Item = &Payload> {
        self.facts.iter().filter_map(|fact| match fact {
            Fact::Entry { payload, copied: false, .. } if !payload.placed.is_empty() => Some(payload),
            _ => None,
        })
    }

    /// Whether the payloads that this batch has placed at home have their checksums.
    pub fn has_placed(&self, read: &mut dyn FnMut(u64, &mut [u8])) -> bool {
        self.own_placed().all(|payload| payload.is_good(&[], read))
    }

    /// Whether the payloads in this area, and those at home, have their checksums.
    fn is_whole(&self, area: &[u8], read: &mut dyn FnMut(u64, &mut [u8])) -> bool {
        self.facts.iter().all(|fact| match fact {
            // An earlier batch has written the payload of a copied entry at home.
            Fact::Entry { payload, copied: true, .. } if !payload.placed.is_empty() => true,
            Fact::Entry { payload, .. } => payload.is_good(area, read),
            _ => true,
        })
    }
}

/// Reads all records; `None`: they are malformed.
fn facts(mut rest: &[u8]) -> Option<Vec<Fact>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let body_len = u32_at(rest, 4)?;
        let body = rest.get(RECORD..RECORD + body_len)?;
        all.extend(fact(rest, body)?);
        rest = rest.get(RECORD + body_len.next_multiple_of(8)..)?;
    }
    Some(all)
}

/// Reads one record. The outer `None`: it is malformed; the inner one: it concerns no replica's log.
fn fact(head: &[u8], body: &[u8]) -> Option<Option<Fact>> {
    let (flags, replica) = (head[1], u64_at(head, 8)?);
    let (index, term) = (u64_at(head, 16)?, u64_at(head, 24)?);
    let vote = |at| if flags & kind::VOTED == 0 { Some(None) } else { u64_at(body, at).map(Some) };
    Some(Some(match head[0] {
        kind::APPEND => {
            let (at, len) = (u32_at(head, 32)?, u32_at(head, 36)?);
            let payload = Payload { at, len, ..Payload::of_entry(body, 0)? };
            Fact::Entry { replica, index, term, copied: flags & kind::COPIED != 0, payload }
        }
        kind::PLACED => {
            let payload = Payload::of_placed(body)?;
            Fact::Entry { replica, index, term, copied: flags & kind::COPIED != 0, payload }
        }
        kind::LOST_ENTRY => Fact::Entry { replica, index, term, copied: true, payload: Payload::default() },
        kind::HARD_STATE => Fact::Hard { replica, term, vote: vote(0)? },
        kind::CREATE | kind::REPLICA_STATE => {
            Fact::State { replica, term, vote: vote(0)?, failed: u32_at(body, 32)? > 0, begins: u64_at(body, 40)? }
        }
        kind::DESTROY => Fact::Gone(vec![replica]),
        kind::TOMBSTONES => Fact::Gone(body.chunks_exact(8).filter_map(|id| u64_at(id, 0)).collect()),
        kind::CHECKPOINT => {
            let (part, parts) = (u32_at(body, 0)?, u32_at(body, 4)?);
            Fact::Checkpoint { id: index, part, parts, bytes: body.get(8..)?.to_vec() }
        }
        kind::RESET => Fact::Reset { replica, index },
        kind::PAST => Fact::Past { replica },
        kind::REVIVED => Fact::Revived { replica },
        kind::FLOOR => Fact::Floor(replica),
        _ => return Some(None),
    }))
}

/// A replica as its device records it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    pub term: u64,
    pub vote: Option<u64>,
    /// Checkpoint index: the entries up to it are at home.
    pub checkpoint: u64,
    /// Term of each entry of the log above the checkpoint index.
    pub log: BTreeMap<u64, u64>,
    /// The same with the entries that later ones have replaced, as (index, term).
    pub ever: BTreeSet<(u64, u64)>,
    /// A record marks the replica as failed, and no later one clears it.
    pub is_marked: bool,
}

impl Replica {
    /// Whether the device holds the entry, or held it before another one replaced it there.
    pub fn has_had(&self, index: u64, term: Option<u64>) -> bool {
        let any = || self.ever.range((index, 0)..=(index, u64::MAX)).next().is_some();
        index <= self.checkpoint || term.map_or_else(any, |term| self.ever.contains(&(index, term)))
    }

    fn raise(&mut self, checkpoint: u64) {
        // A replica whose log begins behind an entry has older contents at home until a stream has ended.
        self.checkpoint = self.checkpoint.max(checkpoint);
        self.log = self.log.split_off(&(self.checkpoint + 1));
        self.ever = self.ever.split_off(&(self.checkpoint + 1, 0));
    }
}

/// The log of a device.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub replicas: BTreeMap<u64, Replica>,
    /// Replicas that were destroyed, and the id below which unknown ones were, too.
    pub gone: BTreeSet<u64>,
    pub floor: u64,
    /// Number of the last batch, and of the mount that wrote it.
    pub seq: u64,
    pub mount: u64,
    /// Parts of a checkpoint that is not complete.
    parts: (u64, Vec<u8>),
}

impl Contents {
    /// Reads the log of a device of this size.
    pub fn read(size_bytes: u64, read: &mut dyn FnMut(u64, &mut [u8])) -> Contents {
        let mut contents = Contents::default();
        let Some(place) = Place::find(size_bytes, read) else { return contents };
        let (batches, durable) = live_batches(&place, read);
        for (at, batch) in batches {
            if batch.seq > durable {
                let is_next = contents.seq == 0 || batch.seq == contents.seq + 1;
                let mut area = vec![0; batch.len - batch.header_len];
                read(at + batch.header_len as u64, &mut area);
                if !is_next || !batch.is_whole(&area, read) {
                    break; // the torn tail
                }
            }
            contents.take(&batch);
        }
        contents
    }

    /// Takes the next batch.
    pub fn take(&mut self, batch: &Batch) {
        (self.seq, self.mount) = (batch.seq, batch.mount);
        batch.facts.iter().for_each(|fact| self.learn(fact));
    }

    fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::State { replica, term, vote, failed, begins } => {
                if !self.gone.contains(replica) {
                    let r = self.replicas.entry(*replica).or_default();
                    r.raise(*begins);
                    (r.term, r.vote) = (*term, *vote);
                    r.is_marked |= failed;
                }
            }
            Fact::Gone(all) => {
                self.replicas.retain(|replica, _| !all.contains(replica));
                self.gone.extend(all);
            }
            Fact::Checkpoint { id, part, parts, bytes } => {
                if *part == 0 {
                    self.parts = (*id, Vec::new());
                }
                if self.parts.0 == *id && bytes.len() >= 48 {
                    self.parts.1.extend(&bytes[48..]);
                }
                if *part + 1 == *parts {
                    let (_, body) = std::mem::take(&mut self.parts);
                    let _ = self.checkpoint(&body);
                }
            }
            Fact::Floor(floor) => self.floor = self.floor.max(*floor),
            Fact::Entry { replica, .. }
            | Fact::Hard { replica, .. }
            | Fact::Reset { replica, .. }
            | Fact::Past { replica }
            | Fact::Revived { replica } => {
                let _ = self.replicas.get_mut(replica).map(|r| r.learn(fact));
            }
        }
    }

    /// Takes the checkpoint index of each replica from the body of a complete checkpoint.
    fn checkpoint(&mut self, body: &[u8]) -> Option<()> {
        let mut rest = body.get(48..)?;
        for _ in 0..u32_at(body, 8)? {
            let (replica, index) = (u64_at(rest, 0)?, u64_at(rest, 8)?);
            let _ = self.replicas.get_mut(&replica).map(|r| r.raise(index));
            let of_list = |at| u32_at(rest, at).map(|len| len.div_ceil(PAGE));
            let pages = of_list(32)? + of_list(40)? + u32_at(rest, 36)?;
            rest = rest.get(64 + 8 * pages..)?;
        }
        Some(())
    }
}

impl Replica {
    fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::Entry { index, term, copied, .. } => {
                if !copied {
                    self.log.split_off(index);
                }
                if *index > self.checkpoint {
                    self.log.insert(*index, *term);
                    self.ever.insert((*index, *term));
                }
            }
            Fact::Hard { term, vote, .. } => (self.term, self.vote) = (*term, *vote),
            Fact::Reset { index, .. } => {
                self.log.clear();
                self.raise(*index);
            }
            Fact::Past { .. } => self.is_marked = true,
            Fact::Revived { .. } => self.is_marked = false,
            other => unreachable!("{other:?} concerns the device"),
        }
    }
}

/// Returns the batches of the live segments with their places, in order of number, and the highest number that is known to be
/// durable.
fn live_batches(place: &Place, read: &mut dyn FnMut(u64, &mut [u8])) -> (Vec<(u64, Batch)>, u64) {
    let mut look = |at: u64| look(at, &place.uuid, read);
    let slots = (0..place.segments).map(|n| place.start + n * place.segment_bytes);
    let openings: Vec<(u64, Batch)> =
        slots.filter_map(|at| Some((at, look(at)?))).filter(|(_, batch)| batch.seq == batch.segment_seq).collect();
    let newest = openings.iter().max_by_key(|(_, batch)| batch.seq);
    let tail_seq = newest.map_or(0, |(_, batch)| batch.tail_seq);
    let mut found = BTreeMap::new();
    for (start, opening) in openings.into_iter().filter(|(_, batch)| batch.seq >= tail_seq) {
        let (life, end) = ((opening.segment_seq, opening.salt), start + place.segment_bytes);
        let (mut at, mut next) = (start, Some(opening));
        while let Some(batch) = next {
            let here = at;
            at += batch.len as u64;
            found.insert(batch.seq, (here, batch));
            next = Some(at).filter(|at| *at < end).and_then(&mut look);
            next = next.filter(|batch| (batch.segment_seq, batch.salt) == life);
        }
    }
    let durable = found.values().map(|(_, batch)| batch.durable_seq).max().unwrap_or(0);
    (found.into_values().collect(), durable)
}

/// Reads the batch that begins at this place of the device.
fn look(at: u64, uuid: &[u8; 16], read: &mut dyn FnMut(u64, &mut [u8])) -> Option<Batch> {
    let mut bytes = vec![0; PAGE];
    read(at, &mut bytes);
    let header_len = u32_at(&bytes, 16).filter(|_| bytes.starts_with(MAGIC))?;
    if header_len > PAGE && header_len <= HEADER_MAX {
        bytes.resize(header_len, 0);
        read(at, &mut bytes);
    }
    Batch::parse(&bytes, at, uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record of replica 7 with this index and body.
    fn record(kind: u8, flags: u8, (index, term): (u64, u64), body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD + body.len().next_multiple_of(8)];
        (bytes[0], bytes[1]) = (kind, flags);
        bytes[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        for (at, value) in [(8, 7), (16, index), (24, term)] {
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        bytes[RECORD..RECORD + body.len()].copy_from_slice(body);
        bytes
    }

    fn replay(records: &[Vec<u8>]) -> Replica {
        let mut contents = Contents::default();
        facts(&records.concat()).expect("well formed").iter().for_each(|fact| contents.learn(fact));
        contents.replicas.remove(&7).unwrap_or_default()
    }

    #[test]
    fn records_are_replayed_as_the_page_says() {
        let create = || record(kind::CREATE, 0, (0, 0), &[0; 56]);
        let entry = |flags, index, term| record(kind::APPEND, flags, (index, term), &[0; 12]);
        let three = || vec![create(), entry(0, 1, 1), entry(0, 2, 1), entry(0, 3, 1)];
        let log = |more: Vec<u8>| Vec::from_iter(replay(&[three(), vec![more]].concat()).log);
        assert_eq!(log(entry(0, 2, 4)), [(1, 1), (2, 4)]);
        assert_eq!(log(entry(kind::COPIED, 2, 1)), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(log(record(kind::RESET, 0, (9, 2), &[])), []);
        assert_eq!(log(record(kind::DESTROY, 0, (0, 0), &[])), []);
        let vote = record(kind::HARD_STATE, kind::VOTED, (3, 5), &9_u64.to_le_bytes());
        let r = replay(&[three(), vec![entry(0, 3, 2), vote]].concat());
        assert_eq!((r.term, r.vote, r.is_marked), (5, Some(9), false));
        assert!(r.has_had(3, Some(1)) && r.has_had(3, Some(2)) && r.has_had(3, None));
        assert!(!r.has_had(3, Some(3)) && !r.has_had(4, None));
    }

    #[test]
    fn marks_of_a_failure_are_found_and_cleared() {
        let create = || record(kind::CREATE, 0, (0, 0), &[0; 56]);
        let mut damaged = [0; 56];
        damaged[32] = 1;
        for mark in [record(kind::PAST, 0, (4, 0), &[]), record(kind::REPLICA_STATE, 0, (0, 1), &damaged)] {
            assert!(replay(&[create(), mark.clone()]).is_marked);
            assert!(!replay(&[create(), mark, record(kind::REVIVED, 0, (0, 0), &[])]).is_marked);
        }
    }
}
