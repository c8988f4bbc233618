//! A device in memory: for tests of frontends and for measuring a frontend without a cluster behind it.
//!
//! Invariant: requests complete in the order of submission, at once. The device is sparse: 64 KiB
//! pieces that were never written, or were trimmed as a whole, take no memory and are holes.

use crate::{Answer, BlockDevice, Busy, Completion, DeviceInfo, Request};
use std::collections::BTreeMap;
use types::{Errno, IoBuf, IoBufMut, Time};

const PIECE: u64 = types::AU;

/// A sparse device in memory.
pub struct Ram {
    info: DeviceInfo,
    pieces: BTreeMap<u64, IoBufMut>,
    done: Vec<Completion>,
}

impl Ram {
    /// Returns a device of `len_bytes` zeros.
    ///
    /// # Panics
    /// When the length is no multiple of 512.
    pub fn new(name: &str, len_bytes: u64) -> Ram {
        assert!(len_bytes.is_multiple_of(types::SECTOR), "{len_bytes} B are no whole sectors");
        let info = DeviceInfo {
            name: name.into(),
            len_bytes,
            block_min: 512,
            block_preferred: 4096,
            read_only: false,
            shared: false,
        };
        Ram { info, pieces: BTreeMap::new(), done: Vec::new() }
    }

    fn execute(&mut self, request: Request) -> Result<Answer, Errno> {
        crate::check(&self.info, &request)?;
        match request {
            Request::Read { offset, len } => Ok(Answer::Data(vec![self.read(offset, len)])),
            Request::Write { offset, buf, .. } => {
                for (piece, at, from, len) in cut(offset, buf.len() as u64) {
                    let target = self.pieces.entry(piece).or_insert_with(|| IoBufMut::zeroed(PIECE as usize));
                    target[at..at + len].copy_from_slice(&buf[from..from + len]);
                }
                Ok(Answer::Done)
            }
            Request::Flush => Ok(Answer::Done),
            Request::WriteZeroes { offset, len, no_hole: true } => {
                self.zero(offset, offset + len);
                for (piece, ..) in cut(offset, len) {
                    self.pieces.entry(piece).or_insert_with(|| IoBufMut::zeroed(PIECE as usize));
                }
                Ok(Answer::Done)
            }
            Request::Trim { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                self.zero(offset, offset + len);
                Ok(Answer::Done)
            }
            Request::Extents { since: Some(_), .. } => Err(Errno::Invalid),
            Request::Extents { offset, len, since: None } => Ok(Answer::Extents(self.extents(offset, len))),
        }
    }

    fn read(&self, offset: u64, len: u64) -> IoBuf {
        let mut out = IoBufMut::zeroed(len as usize);
        for (piece, at, from, len) in cut(offset, len) {
            if let Some(source) = self.pieces.get(&piece) {
                out[from..from + len].copy_from_slice(&source[at..at + len]);
            }
        }
        out.freeze()
    }

    fn zero(&mut self, from: u64, to: u64) {
        let whole = from.div_ceil(PIECE)..to / PIECE;
        if whole.start < whole.end {
            self.pieces.retain(|piece, _| !whole.contains(piece));
        }
        for (piece, at, _, len) in [from / PIECE, (to - 1) / PIECE].into_iter().flat_map(|p| {
            let start = from.max(p * PIECE);
            cut(start, to.min((p + 1) * PIECE).saturating_sub(start))
        }) {
            if let Some(target) = self.pieces.get_mut(&piece) {
                target[at..at + len].fill(0);
            }
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<(u64, bool)> {
        let mut out = Vec::new();
        for (piece, _, _, len) in cut(offset, len) {
            crate::push_extent(&mut out, len as u64, self.pieces.contains_key(&piece));
        }
        out
    }
}

/// Splits a range of the device at piece borders: (piece, offset in it, offset in the range, length).
fn cut(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let stop = ((at / PIECE + 1) * PIECE).min(end);
        let item = (at / PIECE, (at % PIECE) as usize, (at - offset) as usize, (stop - at) as usize);
        at = stop;
        Some(item)
    })
}

impl BlockDevice for Ram {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, _now: Time, request: Request, token: u64) -> Result<(), Busy> {
        let result = self.execute(request);
        self.done.push(Completion { token, result });
        Ok(())
    }

    fn completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
    }

    fn next_deadline(&self) -> Time {
        if self.done.is_empty() { Time::NEVER } else { Time::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ram: &mut Ram, request: Request) -> Result<Answer, Errno> {
        ram.submit(Time::ZERO, request, 7).expect("memory is never busy");
        let mut out = Vec::new();
        ram.completions(&mut out);
        assert_eq!((out.len(), out[0].token), (1, 7));
        out.remove(0).result
    }

    #[test]
    fn a_device_in_memory_gives_back_what_it_took() {
        let mut ram = Ram::new("ram", 1 << 20);
        let buf = IoBuf::copy_of(&[7; 8192]);
        assert_eq!(run(&mut ram, Request::Write { offset: 65536 - 512, buf, fua: true }), Ok(Answer::Done));
        let Ok(Answer::Data(data)) = run(&mut ram, Request::Read { offset: 65536 - 1024, len: 9216 }) else { panic!() };
        let mut want = vec![0; 512];
        want.extend([7; 8192]);
        want.extend([0; 512]);
        assert_eq!(*data[0], want[..]);
        let extents = run(&mut ram, Request::Extents { offset: 0, len: 1 << 20, since: None });
        assert_eq!(extents, Ok(Answer::Extents(vec![(131072, true), ((1 << 20) - 131072, false)])));
    }

    #[test]
    fn zeroes_leave_a_hole_unless_they_must_not() {
        let mut ram = Ram::new("ram", 1 << 20);
        for no_hole in [true, false] {
            run(&mut ram, Request::WriteZeroes { offset: 65536, len: 131_072, no_hole }).expect("zeroes");
            let extents = run(&mut ram, Request::Extents { offset: 65536, len: 131_072, since: None });
            assert_eq!(extents, Ok(Answer::Extents(vec![(131_072, no_hole)])));
        }
    }

    #[test]
    fn a_trim_zeroes_exactly_its_range() {
        let mut ram = Ram::new("ram", 1 << 20);
        let ones = IoBuf::copy_of(&vec![1; 1 << 20]);
        run(&mut ram, Request::Write { offset: 0, buf: ones, fua: false }).expect("write");
        for (offset, len) in [(512, 512), (65536 - 512, 1024), (200_704, 262_144), (524_288, 131_072)] {
            run(&mut ram, Request::Trim { offset, len }).expect("trim");
            let Ok(Answer::Data(data)) = run(&mut ram, Request::Read { offset: offset - 512, len: len + 1024 }) else {
                panic!()
            };
            let zeros = data[0].iter().filter(|b| **b == 0).count();
            assert_eq!((data[0][511], data[0][512 + len as usize], zeros as u64), (1, 1, len));
        }
    }

    #[test]
    fn wrong_requests_are_answered_as_invalid() {
        let mut ram = Ram::new("ram", 1 << 20);
        for (offset, len) in
            [(0, 0), (1 << 20, 512), ((1 << 20) - 512, 1024), (1, 512), (0, 513), (u64::MAX - 511, 512)]
        {
            assert_eq!(run(&mut ram, Request::Read { offset, len }), Err(Errno::Invalid), "{offset}+{len}");
        }
    }
}
