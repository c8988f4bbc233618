//! The writers of a volume in decision state: each with its own window (R6, R7, ADR 0039).
//!
//! An attach record names all writers. One that the record does not name writes nothing any more, and its window goes with it.
//!
//! Invariant: a session that stays keeps its window: a number that is forgotten would take effect twice.

use super::{Attached, Decision, DecisionError, Window, short};
use bytes::{Buf, BufMut, BytesMut};
use types::control::Attach;
use types::planted::{Bug, on};
use types::writers::{POOL_WRITERS_MAX, WRITERS_MAX, Writer, Writers};
use types::{Epoch, SessionId, VolumeId};

/// Most writers of the shared volumes of one PG. A PG that has missed records may know some that are gone.
pub const SHARED_WRITERS_MAX: usize = 2 * POOL_WRITERS_MAX;
const WINDOW_LEN: usize = 8 + 32;
const WRITER_LEN: usize = 8 + 8 + WINDOW_LEN;
/// Volume and number of writers.
const SHARED_LEN: usize = 8 + 4;
/// Most bytes of the shared volumes in a checkpoint.
pub(super) const SHARED_LEN_MAX: usize = SHARED_WRITERS_MAX * (SHARED_LEN + WRITER_LEN);

/// A session that may write, with its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writing {
    pub writer: Writer,
    pub window: Window,
}

impl Attached {
    /// Whether a session may write under this epoch.
    pub fn has(&self, session: SessionId, epoch: Epoch) -> bool {
        self.writers.iter().any(|writing| writing.writer == Writer { epoch, session })
    }

    /// Whether the open with this epoch was ended by a later record. Before its own record is here it was not.
    pub fn is_fenced(&self, epoch: Epoch) -> bool {
        self.epoch > epoch && !self.writers.iter().any(|writing| writing.writer.epoch == epoch)
    }

    /// Returns the only writer, if its open is the newest one. A checkpoint has others in a list of their own.
    pub(super) fn only_writer(&self) -> Option<&Writing> {
        match &self.writers[..] {
            [only] if only.writer.epoch == self.epoch => Some(only),
            _ => None,
        }
    }

    /// Number of writers in the list of their own.
    fn shared(&self) -> usize {
        if self.only_writer().is_some() { 0 } else { self.writers.len() }
    }
}

/// Returns the writers behind an attach record.
pub(super) fn after(attach: &Attach, old: Option<&Attached>) -> Vec<Writing> {
    let before = old.map_or(&[][..], |old| &old.writers);
    let known = |writer: &Writer| before.iter().find(|writing| writing.writer.session == writer.session);
    let fresh = || match before.last() {
        Some(other) if attach.writers.len() > 1 && on(Bug::WindowOfAnotherWriter) => other.window,
        _ => Window::default(),
    };
    let window = |writer: &Writer| known(writer).map_or_else(fresh, |writing| writing.window);
    let named = |writer: &Writer| Writing { writer: *writer, window: window(writer) };
    let mut writers: Vec<Writing> = attach.writers.as_slice().iter().map(named).collect();
    let mut left_out =
        before.iter().filter(|writing| !attach.writers.has(writing.writer.session, writing.writer.epoch));
    if let Some(kept) = left_out.next_back()
        && before.len() > 1
        && writers.len() < WRITERS_MAX
        && on(Bug::FenceKeepsWriter)
    {
        writers.push(kept.clone());
        writers.sort_by_key(|writing| writing.writer.epoch);
    }
    writers
}

/// Returns the list of an only writer; session zero is none, and has no window.
pub(super) fn only(writer: Writer, window: Window) -> Option<Vec<Writing>> {
    match writer.session {
        SessionId(0) => (window == Window::default()).then(Vec::new),
        _ => Some(vec![Writing { writer, window }]),
    }
}

pub(super) fn put_window(out: &mut BytesMut, window: &Window) {
    out.put_u64_le(window.watermark);
    let bits = if on(Bug::WindowNotCheckpointed) { Default::default() } else { window.bits };
    bits.iter().for_each(|word| out.put_u64_le(*word));
}

/// Reads a window.
///
/// # Panics
/// With fewer than [`WINDOW_LEN`] bytes.
pub(super) fn get_window(bytes: &mut &[u8]) -> Window {
    Window { watermark: bytes.get_u64_le(), bits: std::array::from_fn(|_| bytes.get_u64_le()) }
}

impl Decision {
    /// Whether the writers of an attach record fit beside those of the other volumes.
    pub(super) fn has_room_for_writers(&self, attach: &Attach) -> bool {
        if attach.only_session().is_some() {
            return true;
        }
        let others = self.volumes.iter().filter(|(volume, _)| **volume != attach.volume);
        others.map(|(_, attached)| attached.shared()).sum::<usize>() + attach.writers.len() <= SHARED_WRITERS_MAX
    }

    /// Writes the volumes whose writers are not the only and newest ones: a length, and for each its id, a number, and the writers.
    pub(super) fn encode_shared(&self, out: &mut BytesMut) {
        let shared = || self.volumes.iter().filter(|(_, attached)| attached.shared() > 0);
        let len: usize = shared().map(|(_, attached)| SHARED_LEN + attached.shared() * WRITER_LEN).sum();
        assert!(len <= SHARED_LEN_MAX, "`has_room_for_writers` bounds the writers");
        out.put_u32_le(len as u32);
        for (volume, attached) in shared() {
            out.put_u64_le(volume.0);
            out.put_u32_le(attached.writers.len() as u32);
            for Writing { writer, window } in &attached.writers {
                out.put_u64_le(writer.epoch.0);
                out.put_u64_le(writer.session.0);
                put_window(out, window);
            }
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// For anything that `encode_shared` does not produce.
    pub(super) fn decode_shared(&mut self, bytes: &mut &[u8]) -> Result<(), DecisionError> {
        let len = bytes.try_get_u32_le().map_err(short)? as usize;
        if len > SHARED_LEN_MAX || bytes.len() < len {
            return Err(DecisionError::Shape);
        }
        let (mut own, rest) = bytes.split_at(len);
        *bytes = rest;
        let mut last = None;
        while own.has_remaining() {
            let volume = VolumeId(own.try_get_u64_le().map_err(short)?);
            let count = own.try_get_u32_le().map_err(short)? as usize;
            let attached = self.volumes.get_mut(&volume).filter(|attached| attached.writers.is_empty());
            let attached = attached.ok_or(DecisionError::Shape)?;
            if count > WRITERS_MAX || own.len() < count * WRITER_LEN || last.is_some_and(|last| last >= volume) {
                return Err(DecisionError::Shape);
            }
            for _ in 0..count {
                let (epoch, session) = (Epoch(own.get_u64_le()), SessionId(own.get_u64_le()));
                attached.writers.push(Writing { writer: Writer { epoch, session }, window: get_window(&mut own) });
            }
            let list = Writers::of(attached.writers.iter().map(|writing| writing.writer), attached.epoch);
            if list.is_none() || attached.shared() == 0 {
                return Err(DecisionError::Shape);
            }
            last = Some(volume);
        }
        Ok(())
    }
}
