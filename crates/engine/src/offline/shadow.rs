//! Writes that must not reach a device: they stay in memory, over the bytes of the device.
//!
//! Operations come in; a write is kept and completed at once, and a read goes on to the env. Its bytes come back to be
//! patched with the writes that were kept before.
//!
//! Invariant: a read returns what it would return if the writes had reached the device. Memory: the writes of one mount, which
//! are at most the batches of the torn end of the log and its new records.

use env::{DiskId, Event, Op, Token};
use std::collections::BTreeMap;
use types::{IoBuf, IoBufMut};

/// Writes that were kept.
#[derive(Default)]
pub(super) struct Shadow {
    /// Disk, offset and bytes, in the order of the writes.
    writes: Vec<(DiskId, u64, IoBuf)>,
    /// Disks and offsets of the reads in flight.
    reads: BTreeMap<Token, (DiskId, u64)>,
}

impl Shadow {
    /// Takes an operation. Returns the completion of one that the env must not get, or the operation itself.
    pub(super) fn take(&mut self, op: Op) -> Result<Event, Op> {
        match op {
            Op::DiskWrite { token, disk, offset, bufs, .. } => {
                let mut at = offset;
                for buf in bufs {
                    let len = buf.len() as u64;
                    self.writes.push((disk, at, buf));
                    at += len;
                }
                Ok(Event::DiskWrite { token, result: Ok(()) })
            }
            Op::DiskFlush { token, .. } => Ok(Event::DiskFlush { token, result: Ok(()) }),
            Op::DiskDiscard { token, .. } => Ok(Event::DiskDiscard { token, result: Ok(()) }),
            Op::DiskRead { token, disk, offset, .. } => {
                self.reads.insert(token, (disk, offset));
                Err(op)
            }
            other => Err(other),
        }
    }

    /// Lays the kept writes over the bytes that a read returned.
    pub(super) fn patch(&mut self, token: Token, buf: &mut IoBufMut) {
        let Some((disk, start)) = self.reads.remove(&token) else { return };
        let end = start + buf.len() as u64;
        for (_, offset, bytes) in self.writes.iter().filter(|(of, ..)| *of == disk) {
            let (from, to) = (start.max(*offset), end.min(offset + bytes.len() as u64));
            if from < to {
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                buf[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DiskId = DiskId(0);

    #[test]
    fn a_read_returns_the_last_write_of_each_byte() {
        let mut shadow = Shadow::default();
        let write = |offset, byte: u8, len: usize| {
            let bufs = vec![IoBuf::copy_of(&vec![byte; len / 2]), IoBuf::copy_of(&vec![byte; len / 2])];
            Op::DiskWrite { token: Token::new(1, 0, 0), disk: DISK, offset, bufs, flush: true }
        };
        for op in [write(4096, 1, 8192), write(8192, 2, 1024)] {
            assert!(matches!(shadow.take(op), Ok(Event::DiskWrite { result: Ok(()), .. })));
        }
        let token = Token::new(1, 1, 9);
        let read = Op::DiskRead { token, disk: DISK, offset: 0, buf: IoBufMut::zeroed(16_384) };
        let Err(Op::DiskRead { mut buf, .. }) = shadow.take(read) else { panic!("a read goes on") };
        shadow.patch(token, &mut buf);
        let found: Vec<u8> =
            [0, 4095, 4096, 8191, 8192, 9215, 9216, 12_287, 12_288].iter().map(|at| buf[*at]).collect();
        assert_eq!(found, [0, 0, 1, 1, 2, 2, 1, 1, 0]);
        let elsewhere = Op::DiskRead { token, disk: DiskId(1), offset: 4096, buf: IoBufMut::zeroed(4096) };
        let Err(Op::DiskRead { mut buf, .. }) = shadow.take(elsewhere) else { panic!("a read goes on") };
        shadow.patch(token, &mut buf);
        assert!(buf.iter().all(|byte| *byte == 0), "the writes were to another disk");
    }
}
