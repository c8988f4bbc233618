//! Payloads of found batches that lie at home (ADR 0030): a mount reads them before it judges the log.
//!
//! The scan passes in its batches. Reads of runs go out, and their bytes come back; the result is the payloads whose bytes have the hash
//! of their entry. Bytes that do not are read a second time. The AUs of an entry that a checkpoint covers may have another owner by now:
//! its payload then counts as lost, and the log begins behind it.
//!
//! Invariant: pure. Every payload returned has the hash and the CRCs of its record.

use super::scan::{FoundBatch, Item};
use layout::log::{PlacedRun, RUNS_MAX, Record};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use types::planted::{Bug, on};
use types::store::Crcs;
use types::{AU, Index, IoBuf, IoBufMut, ReplicaId, SECTOR, SectorRange, Term, entry_hash};

/// An entry and the place of its payload: after a reset, a log may have an entry once more, in another place.
pub(crate) type PlaceKey = (ReplicaId, Index, Term, Vec<PlacedRun>);

/// Returns the key of a record whose payload lies at home.
pub(super) fn key_of(record: &Record<'_>) -> Option<PlaceKey> {
    match record {
        Record::Placed { replica, index, term, runs, .. } => Some((*replica, *index, *term, runs.clone())),
        _ => None,
    }
}

/// One payload that is being read.
#[derive(Debug)]
struct Wanted {
    key: PlaceKey,
    hash: u64,
    crcs: Crcs,
    runs: Vec<Option<IoBufMut>>,
    /// Reads of runs that have not ended.
    left: usize,
    again: bool,
    unreadable: bool,
}

impl Wanted {
    fn payload(&mut self) -> Option<IoBuf> {
        let runs: Option<Vec<IoBufMut>> = self.runs.iter_mut().map(Option::take).collect();
        let mut runs: Vec<IoBuf> = runs?.into_iter().map(IoBufMut::freeze).collect();
        let bytes = match runs.len() {
            1 => runs.pop().expect("there is one"),
            _ => IoBuf::copy_of(&runs.iter().map(|run| &run[..]).collect::<Vec<_>>().concat()),
        };
        let (replica, index, term, _) = self.key;
        let range = SectorRange::checked(self.crcs.start, (bytes.len() as u64 / SECTOR) as u32)?;
        let good = entry_hash(replica, index, term, &bytes) == self.hash && range.verify(&bytes, &self.crcs.values);
        (good || on(Bug::TornBatchBelieved) || on(Bug::PlaceUnverified)).then_some(bytes)
    }
}

/// The payloads at home.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    pub payloads: BTreeMap<PlaceKey, IoBuf>,
    /// Payloads of which the medium did not give back a part.
    pub unreadable: BTreeSet<PlaceKey>,
}

impl Placed {
    pub fn get(&self, record: &Record<'_>) -> Option<IoBuf> {
        self.payloads.get(&key_of(record)?).cloned()
    }

    /// Judges the payloads that this batch has placed itself: whether all are good, and whether one is unreadable. A record that was copied
    /// forward tells nothing about its batch: a checkpoint may have covered the entry meanwhile.
    pub fn judge(&self, batch: &FoundBatch) -> (bool, bool) {
        let own = batch.records.iter().filter(|record| matches!(record, Record::Placed { copied: false, .. }));
        let keys: Vec<PlaceKey> = own.filter_map(key_of).collect();
        (keys.iter().all(|k| self.payloads.contains_key(k)), keys.iter().any(|k| self.unreadable.contains(k)))
    }

    /// Returns (offset, bytes) of the payloads that this batch has placed itself.
    pub fn written_by(&self, batch: &FoundBatch) -> Vec<(u64, IoBuf)> {
        let own = batch.records.iter().filter(|record| matches!(record, Record::Placed { copied: false, .. }));
        let mut writes = Vec::new();
        for (key, bytes) in own.filter_map(|record| Some((key_of(record)?, self.get(record)?))) {
            let mut at = 0;
            for run in &key.3 {
                let len = run.count as usize * AU as usize;
                writes.push((u64::from(run.unit) * AU, bytes.slice(at..at + len)));
                at += len;
            }
        }
        writes
    }
}

/// Reads of the payloads at home, as the head of the file describes.
#[derive(Debug)]
pub(crate) struct PlaceReads {
    wanted: Vec<Wanted>,
    queue: VecDeque<u32>,
    placed: Placed,
}

impl PlaceReads {
    /// Plans the reads for all batches of a scan. A place outside `home`, the bytes of the device that home owns, is none.
    pub fn new(items: &[Item], home: Range<u64>) -> PlaceReads {
        let (mut known, mut reads) = (BTreeSet::new(), PlaceReads::empty());
        let batches = items.iter().filter_map(|item| if let Item::Batch(batch) = item { Some(batch) } else { None });
        for record in batches.flat_map(|batch| &batch.records) {
            let (Some(key), Record::Placed { crcs, hash, .. }) = (key_of(record), record) else { continue };
            let is_inside = |run: &PlacedRun| {
                let offset = u64::from(run.unit) * AU;
                home.start <= offset && offset + u64::from(run.count) * AU <= home.end
            };
            if !key.3.iter().all(is_inside) || !known.insert(key.clone()) {
                continue;
            }
            let (crcs, runs) = (crcs.clone().into_owned(), key.3.iter().map(|_| None).collect());
            let wanted = Wanted { key, hash: *hash, crcs, runs, left: 0, again: false, unreadable: false };
            reads.wanted.push(wanted);
            reads.want(reads.wanted.len() - 1);
        }
        reads
    }

    fn empty() -> PlaceReads {
        PlaceReads { wanted: Vec::new(), queue: VecDeque::new(), placed: Placed::default() }
    }

    fn want(&mut self, nth: usize) {
        let wanted = &mut self.wanted[nth];
        (wanted.left, wanted.unreadable) = (wanted.runs.len(), false);
        self.queue.extend((0..wanted.left).map(|run| (nth * RUNS_MAX + run) as u32));
    }

    /// Returns the next read.
    pub fn next(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// Returns offset and length of a read.
    pub fn place(&self, read: u32) -> (u64, usize) {
        let run = self.wanted[read as usize / RUNS_MAX].key.3[read as usize % RUNS_MAX];
        (u64::from(run.unit) * AU, run.count as usize * AU as usize)
    }

    /// Takes the result of a read; `None`: the medium does not give the bytes back.
    pub fn take(&mut self, read: u32, buf: Option<IoBufMut>) {
        let nth = read as usize / RUNS_MAX;
        let wanted = &mut self.wanted[nth];
        wanted.unreadable |= buf.is_none();
        wanted.runs[read as usize % RUNS_MAX] = buf;
        wanted.left -= 1;
        if wanted.left > 0 {
            return;
        }
        match wanted.payload() {
            Some(payload) => {
                if wanted.again {
                    tracing::warn!(entry = ?wanted.key, "transient read error at home: the second read found a payload of the log");
                }
                self.placed.payloads.insert(wanted.key.clone(), payload);
            }
            None if !std::mem::replace(&mut wanted.again, true) => self.want(nth),
            None if wanted.unreadable => drop(self.placed.unreadable.insert(wanted.key.clone())),
            None => {}
        }
    }

    /// Returns the payloads, after the last read has ended.
    pub fn finish(self) -> Placed {
        assert!(self.queue.is_empty() && self.wanted.iter().all(|wanted| wanted.left == 0), "reads are left");
        self.placed
    }
}
