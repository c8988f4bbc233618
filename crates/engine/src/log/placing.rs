//! Places large payloads at home while a batch is built (ADR 0030): they are written once.
//!
//! A payload goes to AUs of home of its own, as part of the batch, and the record of its entry names them. Each replica decides alone and
//! late: work that never reaches a batch never owns space.
//!
//! Invariant: a payload is placed once, by the batch that holds its entry. Near a full device, payloads go inline.

use super::Kept;
use crate::home::Home;
use crate::payload::Place;
use crate::replicas::Replicas;
use types::units::SECTORS_PER_AU;
use types::{AU, IoBuf, ReplicaId, entry_hash};

/// Most bytes of one write.
const WRITE_MAX: usize = 1 << 20;

/// One write of a batch to home.
#[derive(Debug)]
pub(crate) struct PlacedWrite {
    pub offset: u64,
    pub bufs: Vec<IoBuf>,
    pub len_bytes: usize,
}

/// Decides which payloads of a batch are placed, and takes their space.
pub(crate) struct Placer<'a> {
    pub home: &'a mut Home,
    /// Smallest payload that is placed.
    pub min_bytes: u64,
    pub log_bytes: u64,
    /// Alignment that the device requires of every buffer.
    pub align: usize,
    /// AUs that may be taken, once known.
    room: Option<u64>,
}

impl Placer<'_> {
    pub fn new(home: &mut Home, min_bytes: u64, log_bytes: u64, align: usize) -> Placer<'_> {
        Placer { home, min_bytes, log_bytes, align, room: None }
    }

    /// Returns the number of AUs that the entry's payload takes at home; `None`: it goes inline.
    pub fn aus_of(&mut self, kept: &Kept, replicas: &Replicas) -> Option<u32> {
        let payload = kept.payload.as_ref().filter(|payload| payload.place().is_none())?;
        let range = payload.range();
        let is_of_aus = range.start.is_multiple_of(SECTORS_PER_AU) && range.count.is_multiple_of(SECTORS_PER_AU);
        if !is_of_aus || (range.len_bytes() as u64) < self.min_bytes {
            return None;
        }
        let (home, log_bytes) = (&*self.home, self.log_bytes);
        let needed = || replicas.footprint().need.aus;
        let room = *self.room.get_or_insert_with(|| home.aus_for_placing(needed(), log_bytes));
        let aus = range.count / SECTORS_PER_AU;
        (room >= u64::from(aus)).then_some(aus)
    }

    /// Gives the entry's payload its place, and adds the writes.
    pub fn place(&mut self, replica: ReplicaId, kept: &Kept, aus: u32, writes: &mut Vec<PlacedWrite>) {
        let payload = kept.payload.as_ref().expect("an entry without a payload takes no space");
        let runs = self.home.place(replica, aus);
        let room = self.room.as_mut().expect("it was asked for");
        *room -= u64::from(aus);
        let mut at = 0;
        for run in &runs {
            let (offset, len_bytes) = (u64::from(run.unit) * AU, run.count as usize * AU as usize);
            let part = payload.buf.slice(at..at + len_bytes);
            // A device may require more than the alignment of a receive buffer.
            let part = if part.is_aligned(self.align) { part } else { IoBuf::copy_of(&part) };
            at += len_bytes;
            match writes.last_mut().filter(|last| last.offset + last.len_bytes as u64 == offset) {
                Some(last) if last.len_bytes + len_bytes <= WRITE_MAX => {
                    last.len_bytes += len_bytes;
                    last.bufs.push(part);
                }
                _ => writes.push(PlacedWrite { offset, bufs: vec![part], len_bytes }),
            }
        }
        assert_eq!(at, payload.buf.len(), "the runs hold the payload");
        let hash = entry_hash(replica, kept.index, kept.term, &payload.buf);
        payload.put_at(Place { hash, runs });
    }
}
