//! Splitting of requests into parts.
//!
//! Reads and writes are cut at aligned 512 KiB borders (which chunk borders are, too): one part is one
//! message, one sequence number, one entry. Zeroes that may leave a hole and questions for extents carry
//! no payload and are cut at chunk borders only. A striped write is cut at units, too (`walk`). Parts are made only as far as the
//! limits allow, so a trim of the whole volume costs no more memory than one of a chunk.

use crate::part::{Part, Place, Work};
use crate::segments::Found;
use crate::volume::{Kind, Volume};
use crate::walk::{Piece, scatter};
use types::{CHUNK, IoBuf, SECTOR, SEGMENT, SectorRange, Time};

/// Reason why a request is not split any further now.
enum Stop {
    Whole,
    /// The request waits in the list of a PG or a segment, or for the I/O limit.
    Parked,
    NoRoom,
}

impl Volume {
    /// Splits waiting requests, oldest first, as far as the limits allow.
    pub(crate) fn split(&mut self, now: Time) {
        while let Some(request) = self.unsplit.front().copied() {
            match self.split_one(now, request) {
                Stop::NoRoom => return,
                Stop::Whole | Stop::Parked => {
                    self.unsplit.pop_front();
                }
            }
        }
    }

    fn split_one(&mut self, now: Time, request: u32) -> Stop {
        loop {
            let pending = &mut self.requests[request as usize];
            let Some(piece) = pending.next else {
                if pending.open == 0 {
                    self.end_request(request);
                }
                return Stop::Whole;
            };
            let segment = (piece.start / SEGMENT) as usize;
            let must_exist = matches!(pending.kind, Kind::Write { .. } | Kind::Fill);
            match self.segments.find((piece.start / CHUNK) as u32) {
                Found::Pg(slot) => {
                    let pg = &mut self.pgs[slot as usize];
                    if matches!(pending.kind, Kind::Fill) && pg.full.has_backlog(self.config.tuning.pg_parts_max) {
                        pg.full.fills.push_back(request);
                        return Stop::Parked;
                    }
                    if !pg.has_part_room(self.config.tuning.pg_parts_max) {
                        pg.paused.push_back(request);
                        return Stop::Parked;
                    }
                    if !self.has_part_room() {
                        return Stop::NoRoom;
                    }
                    if !self.admit(now, request, piece.len()) {
                        return Stop::Parked;
                    }
                    if must_exist {
                        self.segments.written(segment);
                    }
                    self.make_part(now, request, slot, piece);
                }
                Found::Hole if must_exist => {
                    pending.asks_since.get_or_insert(now);
                    self.segments.want(segment, request);
                    return Stop::Parked;
                }
                Found::Hole if !pending.sure.of(segment) => {
                    pending.asks_since.get_or_insert(now);
                    self.doubt(segment, request);
                    return Stop::Parked;
                }
                Found::Hole => self.fill_hole(request, piece),
            }
        }
    }

    /// Answers a piece of a segment that does not exist: zeros, nothing to zero, or no data.
    fn fill_hole(&mut self, request: u32, piece: Piece) {
        let stripe = self.stripe;
        let pending = &mut self.requests[request as usize];
        let start = pending.range.start;
        match &mut pending.kind {
            Kind::Read(buffers) => {
                scatter(stripe, start, piece.start..piece.end, &IoBuf::zeros(piece.len() as usize), buffers);
            }
            Kind::Extents { pieces, .. } => pieces.push((piece.start, vec![(piece.len(), false)])),
            Kind::Zero => {}
            Kind::Write { .. } | Kind::Fill => unreachable!("only what changes nothing finds a hole"),
        }
        pending.advance(stripe);
    }

    fn make_part(&mut self, now: Time, request: u32, slot: u32, piece: Piece) {
        let stripe = self.stripe;
        let pending = &mut self.requests[request as usize];
        let (chunk, len) = ((piece.start / CHUNK) as u32, piece.len() as usize);
        let range = SectorRange::new(((piece.start % CHUNK) / SECTOR) as u32, (piece.len() / SECTOR) as u32);
        let mut answer_at = 0;
        let work = match &mut pending.kind {
            Kind::Read(_) => Work::Read,
            Kind::Extents { pieces, since } => {
                answer_at = pieces.len() as u32;
                pieces.push((piece.start, Vec::new()));
                Work::Extents { since: *since }
            }
            Kind::Zero => Work::Zero,
            Kind::Fill => {
                let buf = IoBuf::zeros(len);
                let crcs = range.fragment_crcs(&buf);
                Work::Write { buf, crcs }
            }
            Kind::Write { offset, buf } => {
                let at = (piece.from - *offset) as usize;
                let buf = buf.slice(at..at + len);
                let crcs = range.fragment_crcs(&buf);
                Work::Write { buf, crcs }
            }
        };
        pending.open += 1;
        pending.asks_since = None;
        pending.advance(stripe);
        self.lives += 1;
        let part = Part {
            request: Some(request),
            answer_at,
            pg: slot,
            life: self.lives,
            born: self.serial,
            chunk,
            range,
            work,
            place: Place::Held,
            seq: 0,
            sends: 0,
            resends: 0,
            bad: 0,
            refused: false,
            shelved: None,
            copies: Default::default(),
        };
        let is_write = part.is_write();
        let key = self.parts.insert(part) as u32;
        self.pgs[slot as usize].parts += 1;
        self.arm_scan(now);
        if is_write && !self.overlaps.enter(key, piece.start / SECTOR, piece.end / SECTOR) {
            self.stats.held += 1;
            return;
        }
        self.enqueue(key);
    }
}
