//! The fixed part of every record in a head block, as it lies on the wire: little-endian, unaligned, no
//! hidden padding. `encode` writes these structs and `decode` reads them; they are private to this crate.
//!
//! A record is a [`RecordHeader`], a fixed part of its kind, and a variable tail whose counts are in
//! the fixed part. Fields called `reserved` are zero; later versions may use them.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kinds of record. Numbers are the wire's, never reused; the gaps are left for related kinds.
pub mod kind {
    pub const WRITE: u8 = 1;
    pub const ZERO: u8 = 2;
    pub const SKIP: u8 = 3;
    pub const READ: u8 = 4;
    pub const EXTENTS: u8 = 5;
    pub const FENCE_CHECK: u8 = 6;
    pub const UNREACHED: u8 = 7;
    pub const PING: u8 = 8;
    pub const REPLY_DONE: u8 = 16;
    pub const REPLY_DATA: u8 = 17;
    pub const REPLY_EXTENTS: u8 = 18;
    pub const REPLY_REJECT: u8 = 19;
    pub const RAFT: u8 = 32;
    pub const LEASE_RENEWAL: u8 = 48;
    pub const LEASE_ACK: u8 = 49;
    pub const LEASE_RELEASE: u8 = 50;
    pub const PASSED_ON: u8 = 51;
    pub const USED: u8 = 52;
    pub const STREAM: u8 = 64;
    pub const REPAIR: u8 = 72;
    pub const MEND: u8 = 80;
}

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident $len:literal { $($field:ident: $ty:ty),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Default)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $len);)*
    };
}

records! {
    /// Precedes every record. `len_bytes` counts all bytes after this header.
    RecordHeader 8 { kind: u8, flags: u8, reserved: U16, len_bytes: U32 }

    PgRecord 8 { pool: U32, n: U32 }

    /// All seven requests. A write has its fragments' CRCs as tail; its payload is `count` sectors long.
    /// In reads and extents `seq` is the snapshot, 0 without one; `watermark` is 0, in extents the older snapshot, 0 without one; a skip has no chunk and no range;
    /// a fence check (holder) has none of the four. In an unreached-leader request `chunk` is the OSD's id, and the rest is zero.
    RequestRecord 72 {
        id: U64, pg: PgRecord, session: U64, epoch: U64, volume: U64, seq: U64, watermark: U64,
        chunk: U32, start: U32, count: U32, reserved: U32,
    }

    /// `count`: CRCs or extents in the tail. `status`, `errno` and `value` are used by rejects only;
    /// `value` is the OSD of "not leader" and the microseconds of "throttled".
    ReplyRecord 32 {
        id: U64, payload_len: U32, count: U32, value: U32, status: u8, errno: u8, reserved: [u8; 10],
    }

    ExtentRecord 8 { sectors: U32, data: u8, reserved: [u8; 3] }

    /// Tail: context, then `entry_count` entries.
    RaftRecord 80 {
        pg: PgRecord, from: U64, to: U64, term: U64, log_term: U64, index: U64, commit: U64,
        commit_term: U64, reject_hint: U64, kind: u8, flags: u8, context_len: u8, reserved: u8,
        entry_count: U32,
    }

    /// Tail: descriptor, then one CRC for each fragment of the payload, which begins at sector `start`.
    EntryRecord 32 {
        term: U64, index: U64, payload_len: U32, start: U32, descriptor_len: U16, kind: u8,
        reserved: [u8; 5],
    }

    /// Tail: `count` items.
    LeaseRenewalRecord 24 { sent_at: U64, spent_aus: U64, count: U32, full: u8, reserved: [u8; 3] }

    RenewalItemRecord 48 { pg: PgRecord, from: U64, to: U64, term: U64, commit: U64, complete: U64 }

    /// Tail: `count` items.
    LeaseAckRecord 24 { sent_at: U64, granted_aus: U64, count: U32, device_full: u8, log_share_mib: u8, pace: U16 }

    RenewedRecord 24 { pg: PgRecord, term: U64, contents: u8, reserved: [u8; 3], room_kib: U32 }

    /// Tail: `count` PGs.
    LeaseReleaseRecord 8 { count: U32, reserved: U32 }

    /// `answer` is 1 in the answer.
    PingRecord 8 { answer: u8, reserved: [u8; 7] }

    /// Tail: `count` volumes.
    UsedRecord 8 { count: U32, reserved: U32 }

    UsedVolumeRecord 32 { volume: U64, read_bytes: U64, write_bytes: U64, read_ops: U32, write_ops: U32 }

    PassedOnRecord 56 { pg: PgRecord, from: U64, to: U64, term: U64, volume: U64, session: U64, epoch: U64 }

    /// All bodies of a stream. `volume` belongs to bodies that name a chunk. Tail: a piece of decision state of
    /// `count` bytes, or one CRC for each fragment of the payload. A field that a body does not use is zero.
    StreamRecord 80 {
        pg: PgRecord, from: U64, to: U64, stream: U64, seq: U64, volume: U64, term: U64,
        chunk: U32, start: U32, count: U32, payload_len: U32, body: u8, reason: u8, flag: u8, reserved: [u8; 5],
    }

    /// All bodies of a payload repair. Tail: one CRC for each fragment of the payload. A field that a body does not use is zero.
    RepairRecord 56 {
        pg: PgRecord, from: U64, to: U64, index: U64, term: U64,
        payload_len: U32, start: U32, body: u8, why: u8, reserved: [u8; 6],
    }

    /// All bodies of a block repair. `low` and `high` belong to an answer with blocks, `hash` to a query. Tail: one CRC for each
    /// block of the payload. A field that a body does not use is zero.
    MendRecord 80 {
        pg: PgRecord, from: U64, to: U64, id: U64, volume: U64, low: U64, high: U64,
        chunk: U32, block: U32, count: U32, payload_len: U32, body: u8, reserved: [u8; 3], hash: U32,
    }

    /// Hello frame. Later versions may append fields; the offsets of these never change.
    HelloRecord 72 {
        version_min: U16, version_max: U16, role: u8, has_expects: u8, reserved: U16,
        cluster: [u8; 16], peer: U64, incarnation: U64, expects: U32, credit_ops: U32,
        credit_bytes: U64, features: U64, later: U64,
    }

    /// Refuse frame: then the reason as UTF-8.
    RefuseRecord 8 { code: U32, reason_len: U32 }
}

/// Values of [`HelloRecord::role`].
pub mod role {
    pub const OSD: u8 = 1;
    pub const CLIENT: u8 = 2;
}

/// Values of [`StreamRecord::body`].
pub mod stream_body {
    pub const OPEN: u8 = 1;
    pub const ACCEPT: u8 = 2;
    pub const BLOCKS: u8 = 3;
    pub const DECISION: u8 = 4;
    pub const END: u8 = 5;
    pub const ACK: u8 = 6;
    pub const DONE: u8 = 7;
    pub const ABORT: u8 = 8;
    pub const DIGESTS: u8 = 9;
    pub const WANTS: u8 = 10;
    pub const FILL: u8 = 11;
    pub const FILLING: u8 = 12;
}

/// Values of [`RepairRecord::body`].
pub mod repair_body {
    pub const FETCH: u8 = 1;
    pub const PAYLOAD: u8 = 2;
    pub const LACK: u8 = 3;
}

/// Values of [`MendRecord::body`].
pub mod mend_body {
    pub const ASK: u8 = 1;
    pub const BLOCKS: u8 = 2;
    pub const NOT_NOW: u8 = 3;
    pub const DAMAGED: u8 = 4;
    pub const NO_PART: u8 = 5;
}

/// Values of [`ReplyRecord::status`] in a reject; zero in every other reply.
pub mod status {
    pub const NOT_LEADER: u8 = 1;
    pub const NOT_READY: u8 = 2;
    pub const NO_SUCH_PG: u8 = 3;
    pub const FAILED: u8 = 4;
    pub const BUSY: u8 = 5;
    pub const THROTTLED: u8 = 6;
}

/// Bits of [`RaftRecord::flags`].
pub mod raft_flag {
    pub const REJECT: u8 = 1;
}
