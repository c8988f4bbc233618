//! Fingerprint of a run, and counts of the faults in it.

use env::{Event, NetError, Op};
use types::{Time, crc32c};

/// A hash folded over all events: equal runs have equal values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trace(u64);

impl Trace {
    pub fn hash(self) -> u64 {
        self.0
    }

    pub fn fold(&mut self, value: u64) {
        let mut z = self.0.rotate_left(5) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }

    fn fold_all(&mut self, node: u32, at: Time, kind: u64, what: u64, ok: bool) {
        self.fold(u64::from(node) << 32 | kind << 1 | u64::from(ok));
        self.fold(at.0);
        self.fold(what);
    }

    /// Folds in an operation that a service submits.
    pub fn op(&mut self, node: u32, at: Time, op: &Op) {
        let (kind, what) = match op {
            Op::DiskRead { offset, buf, .. } => (1, *offset ^ (buf.len() as u64) << 44),
            Op::DiskWrite { offset, bufs, flush, .. } => {
                (2 + u64::from(*flush), *offset ^ u64::from(content(bufs)) << 32)
            }
            Op::DiskFlush { .. } => (4, 0),
            Op::DiskDiscard { offset, len_bytes, .. } => (5, *offset ^ *len_bytes << 32),
            Op::Connect { addr, .. } => (6, u64::from(crc32c(addr.to_string().as_bytes()))),
            Op::Recv { conn, min, .. } => (7, u64::from(conn.slot) << 32 | *min as u64),
            Op::Send { conn, bufs, .. } => (8, u64::from(conn.slot) << 32 | u64::from(content(bufs))),
            Op::Close { conn } => (9, u64::from(conn.slot)),
        };
        self.fold_all(node, at, kind, what, true);
    }

    /// Folds in an event that a service receives.
    pub fn event(&mut self, node: u32, at: Time, event: &Event) {
        let (kind, what, ok) = match event {
            // Bytes that come in were sent out before, or come from the world's random numbers: they are in the trace
            // already.
            Event::DiskRead { buf, result, .. } => (20, buf.len() as u64, result.is_ok()),
            Event::DiskWrite { token, result } => (21, u64::from(token.key), result.is_ok()),
            Event::DiskFlush { token, result } => (22, u64::from(token.key), result.is_ok()),
            Event::DiskDiscard { token, result } => (23, u64::from(token.key), result.is_ok()),
            Event::Connected { token, result } => (24, u64::from(token.key), result.is_ok()),
            Event::Accepted { conn, .. } => (25, u64::from(conn.slot), true),
            Event::Received { bufs, result, .. } => {
                let n = result.as_ref().copied().unwrap_or(0);
                (26, (n as u64) << 32 | bufs.len() as u64, *result != Err(NetError::Lost))
            }
            Event::Sent { conn, result, .. } => (27, u64::from(conn.slot), result.is_ok()),
            Event::Woken => (28, 0, true),
        };
        self.fold_all(node, at, kind, what, ok);
    }
}

/// Returns one checksum over several buffers.
fn content<B: std::ops::Deref<Target = [u8]>>(bufs: &[B]) -> u32 {
    bufs.iter().fold(0, |crc, b| types::crc::append(crc, b))
}

/// Counts of the faults that occurred, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub crashes: u64,
    pub power_cuts: u64,
    /// Writes that a power cut or crash dropped whole, kept in part, and kept whole though unflushed.
    pub writes_lost: u64,
    pub writes_torn: u64,
    pub writes_kept: u64,
    /// Writes that survived although an earlier one of the same disk did not.
    pub reordered: u64,
    /// Operations that failed with an error of the disk.
    pub disk_errors: u64,
    /// Bits and bytes changed through [`crate::DiskImage`].
    pub corruptions: u64,
    /// Reads that touched an unreadable sector.
    pub unreadable: u64,
    pub partitions: u64,
    pub heals: u64,
    /// Connections that were reset by chance or by order.
    pub resets: u64,
    /// Segments that were lost and sent again, and so delayed far beyond the usual.
    pub losses: u64,
    /// Connections given up because their peer was silent.
    pub timeouts: u64,
    pub clock_changes: u64,
    /// Writes that were acknowledged and stored nowhere, or elsewhere; reads that returned another place's bytes.
    pub phantoms: u64,
    pub misdirected: u64,
    pub misread: u64,
    /// Segments of a connection with a flipped bit.
    pub garbled: u64,
    /// Connections that only one end forgot.
    pub half_open: u64,
    pub pauses: u64,
    /// Processes that died between two operations of one turn, or before they took an event.
    pub mid_turn: u64,
}

impl FaultCounts {
    /// Returns each count with its name, for reports.
    pub fn named(&self) -> [(&'static str, u64); 22] {
        [
            ("crashes", self.crashes),
            ("power cuts", self.power_cuts),
            ("writes lost", self.writes_lost),
            ("writes torn", self.writes_torn),
            ("writes kept", self.writes_kept),
            ("disk errors", self.disk_errors),
            ("bytes rotted", self.corruptions),
            ("partitions", self.partitions),
            ("heals", self.heals),
            ("resets", self.resets),
            ("segments late", self.losses),
            ("timeouts", self.timeouts),
            ("clock changes", self.clock_changes),
            ("phantom writes", self.phantoms),
            ("misdirected writes", self.misdirected),
            ("misdirected reads", self.misread),
            ("segments garbled", self.garbled),
            ("half-open connections", self.half_open),
            ("pauses", self.pauses),
            ("deaths inside a turn", self.mid_turn),
            ("writes reordered", self.reordered),
            ("reads of unreadable sectors", self.unreadable),
        ]
    }
}
