//! Choices out of bytes: the way in which a structured target reads its input.
//!
//! Invariant: reading never fails. After the last byte every choice is zero, so a shorter input is a simpler run.

/// The unread part of an input.
pub struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Source<'a> {
        Source(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// Returns a number in `0..bound`, from one byte, or from two when `bound` needs them.
    pub fn below(&mut self, bound: u32) -> u32 {
        let drawn = if bound <= 256 { u32::from(self.byte()) } else { u32::from(self.u16()) };
        drawn % bound.max(1)
    }

    /// Returns a number that is mostly near `near`, and sometimes arbitrary.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.byte() {
            0..=99 => near,
            100..=139 => near.saturating_add(1),
            140..=169 => near.saturating_sub(1),
            170..=199 => near.saturating_add(u64::from(self.byte())),
            200..=219 => u64::from(self.byte()),
            220..=229 => u64::MAX,
            230..=239 => u64::MAX / 4,
            _ => self.u64(),
        }
    }

    /// Returns up to `len` bytes.
    /// State of a replica's contents.
    pub fn contents(&mut self) -> wire::Contents {
        match self.flag() {
            true => wire::Contents::Whole,
            false => wire::Contents::Filling { room_kib: self.u32(), is_short: self.flag() },
        }
    }

    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
