//! A layer that refuses changes.

use crate::{BlockDevice, Busy, Completion, DeviceInfo, Request};
use types::{Errno, Time};

/// `inner`, read-only. Writes complete with `ReadOnly` and never reach it.
pub struct ReadOnly<D> {
    inner: D,
    info: DeviceInfo,
    refused: Vec<Completion>,
}

impl<D: BlockDevice> ReadOnly<D> {
    /// Wraps a device.
    pub fn new(inner: D) -> ReadOnly<D> {
        let info = DeviceInfo { read_only: true, ..inner.info().clone() };
        ReadOnly { inner, info, refused: Vec::new() }
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy> {
        if request.is_write() {
            self.refused.push(Completion { token, result: Err(Errno::ReadOnly) });
            return Ok(());
        }
        self.inner.submit(now, request, token)
    }

    fn completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        self.inner.completions(out);
    }

    fn next_deadline(&self) -> Time {
        if self.refused.is_empty() { self.inner.next_deadline() } else { Time::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Ram};
    use types::IoBuf;

    #[test]
    fn a_read_only_device_refuses_changes_and_still_reads() {
        let mut device = ReadOnly::new(Ram::new("ram", 1 << 20));
        assert!(device.info().read_only);
        let write = Request::Write { offset: 0, buf: IoBuf::copy_of(&[1; 512]), fua: false };
        for (token, request) in [write, Request::Trim { offset: 0, len: 512 }, Request::Read { offset: 0, len: 512 }]
            .into_iter()
            .enumerate()
        {
            device.submit(Time::ZERO, request, token as u64).expect("never busy");
        }
        let mut out = Vec::new();
        device.completions(&mut out);
        assert_eq!(out[0].result, Err(Errno::ReadOnly));
        assert_eq!(out[1].result, Err(Errno::ReadOnly));
        assert_eq!(out[2].result, Ok(Answer::Data(vec![IoBuf::zeros(512)])));
    }
}
