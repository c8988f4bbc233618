//! Splitting of requests into parts.
//!
//! Reads and writes are cut at aligned 512 KiB borders (which chunk borders are, too): one part is one
//! message, one sequence number, one entry. Zeroes that may leave a hole and questions for extents carry
//! no payload and are cut at chunk borders only. Parts are made only as far as the limits allow, so a trim of the
//! whole volume costs no more memory than one of a chunk.

use crate::part::{FragmentCrcs, Part, Place, Work};
use crate::segments::Found;
use crate::volume::{Kind, Volume};
use types::limits::PART_MAX;
use types::{CHUNK, IoBuf, SECTOR, SEGMENT, SectorRange, Time};

/// Counts the pieces of a read.
pub(crate) fn read_pieces(offset: u64, end: u64) -> usize {
    ((end - 1) / PART_MAX - offset / PART_MAX + 1) as usize
}

/// Returns the end of the piece that begins at `at`.
fn piece_end(kind: &Kind, at: u64, end: u64) -> u64 {
    let border = match kind {
        Kind::Read(_) | Kind::Write { .. } | Kind::Fill => PART_MAX,
        Kind::Zero | Kind::Extents(_) => CHUNK,
    };
    ((at / border + 1) * border).min(end)
}

/// Reason why a request is not split any further now.
enum Stop {
    Whole,
    /// The request waits in the list of a PG or a segment.
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
            if pending.cursor >= pending.end {
                if pending.open == 0 {
                    self.end_request(request);
                }
                return Stop::Whole;
            }
            let start = pending.cursor;
            let end = piece_end(&pending.kind, start, pending.end);
            let segment = (start / SEGMENT) as usize;
            let must_exist = matches!(pending.kind, Kind::Write { .. } | Kind::Fill);
            match self.segments.find(segment) {
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
                    if must_exist {
                        self.segments.written(segment);
                    }
                    self.make_part(now, request, slot, start, end);
                }
                Found::Hole if must_exist => {
                    self.segments.want(segment, request);
                    return Stop::Parked;
                }
                Found::Hole if !pending.sure.of(segment) => {
                    self.doubt(segment, request);
                    return Stop::Parked;
                }
                Found::Hole => self.fill_hole(request, start, end),
            }
        }
    }

    /// Answers a piece of a segment that does not exist: zeros, nothing to zero, or no data.
    fn fill_hole(&mut self, request: u32, start: u64, end: u64) {
        let pending = &mut self.requests[request as usize];
        match &mut pending.kind {
            Kind::Read(pieces) => pieces.push(IoBuf::zeros((end - start) as usize)),
            Kind::Extents(pieces) => pieces.push(vec![(end - start, false)]),
            Kind::Zero => {}
            Kind::Write { .. } | Kind::Fill => unreachable!("only what changes nothing finds a hole"),
        }
        pending.pieces += 1;
        pending.cursor = end;
    }

    fn make_part(&mut self, now: Time, request: u32, slot: u32, start: u64, end: u64) {
        let pending = &mut self.requests[request as usize];
        let chunk = (start / CHUNK) as u32;
        let range = SectorRange::new(((start % CHUNK) / SECTOR) as u32, ((end - start) / SECTOR) as u32);
        let work = match &mut pending.kind {
            Kind::Read(pieces) => {
                pieces.push(IoBuf::EMPTY);
                Work::Read
            }
            Kind::Extents(pieces) => {
                pieces.push(Vec::new());
                Work::Extents
            }
            Kind::Zero => Work::Zero,
            Kind::Fill => {
                let buf = IoBuf::zeros((end - start) as usize);
                let crcs = FragmentCrcs::of(range, &buf);
                Work::Write { buf, crcs }
            }
            Kind::Write { offset, buf } => {
                let buf = buf.slice((start - *offset) as usize..(end - *offset) as usize);
                let crcs = FragmentCrcs::of(range, &buf);
                Work::Write { buf, crcs }
            }
        };
        let piece = pending.pieces;
        pending.pieces += 1;
        pending.open += 1;
        pending.cursor = end;
        self.lives += 1;
        let part = Part {
            request: Some(request),
            piece,
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
        if is_write && !self.overlaps.enter(key, start / SECTOR, end / SECTOR) {
            self.stats.held += 1;
            return;
        }
        self.enqueue(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(kind: &Kind, offset: u64, end: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let stop = piece_end(kind, at, end);
            out.push((at, stop));
            at = stop;
        }
        out
    }

    #[test]
    fn payload_is_cut_at_aligned_half_mebibytes_and_zeroes_at_chunks() {
        let write = Kind::Write { offset: 0, buf: IoBuf::EMPTY };
        let k = 1 << 10;
        assert_eq!(pieces(&write, 0, 4 * k), [(0, 4 * k)]);
        assert_eq!(pieces(&write, 511 * k, 1025 * k), [(511 * k, 512 * k), (512 * k, 1024 * k), (1024 * k, 1025 * k)]);
        assert_eq!(pieces(&Kind::Zero, CHUNK - 512, 2 * CHUNK), [(CHUNK - 512, CHUNK), (CHUNK, 2 * CHUNK)]);
        for (offset, end) in [(0, 512), (512 * k - 512, 512 * k + 512), (k, 33 * 1024 * k)] {
            let read = Kind::Read(Vec::new());
            assert_eq!(pieces(&read, offset, end).len(), read_pieces(offset, end));
        }
    }
}
