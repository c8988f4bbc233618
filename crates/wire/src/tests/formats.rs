//! `docs/formats.md` against this crate: every constant, and the byte map of every record.
//!
//! Invariant: a number of the wire that changes, or a new one, changes the page in the same commit.

#[path = "../../../layout/src/testing/page.rs"]
mod page;

use crate::frame::{FrameKind, MAGIC};
use crate::message::{Lack, RaftKind, StreamAbort};
use page::File;
use types::{Errno, limits};

macro_rules! rows {
    ($prefix:literal, $($module:ident)::+ { $($name:ident),+ $(,)? }) => {{
        use crate::$($module)::+ as module;
        [$((concat!($prefix, stringify!($name)), module::$name.to_string())),+]
    }};
}

/// Variants of an enum whose numbers are the wire's.
macro_rules! variants {
    ($kind:ident { $($name:ident),+ $(,)? }) => {
        [$((concat!(stringify!($kind), "::", stringify!($name)), ($kind::$name as u8).to_string())),+]
    };
}

fn frame() -> File {
    let mut constants = vec![("MAGIC", format!("{:?}", String::from_utf8_lossy(&MAGIC)))];
    constants.extend(rows!(
        "",
        frame { HEADER_LEN, HEAD_LEN_MAX, GREETING_HEAD_MAX, VERSION_GREETING, VERSION_MIN, VERSION_MAX }
    ));
    constants.extend(variants!(FrameKind { Hello, Refuse, Batch }));
    File { module: "frame", text: include_str!("../frame.rs"), constants }
}

fn record() -> File {
    let mut constants = Vec::new();
    constants.extend(rows!(
        "kind::",
        record::kind {
            WRITE,
            ZERO,
            SKIP,
            READ,
            EXTENTS,
            FENCE_CHECK,
            UNREACHED,
            PING,
            REPLY_DONE,
            REPLY_DATA,
            REPLY_EXTENTS,
            REPLY_REJECT,
            RAFT,
            LEASE_RENEWAL,
            LEASE_ACK,
            LEASE_RELEASE,
            PASSED_ON,
            USED,
            STREAM,
            REPAIR,
            MEND
        }
    ));
    constants.extend(rows!("role::", record::role { OSD, CLIENT }));
    constants.extend(rows!(
        "stream_body::",
        record::stream_body { OPEN, ACCEPT, BLOCKS, DECISION, END, ACK, DONE, ABORT, DIGESTS, WANTS, FILL, FILLING }
    ));
    constants.extend(rows!("repair_body::", record::repair_body { FETCH, PAYLOAD, LACK }));
    constants.extend(rows!("mend_body::", record::mend_body { ASK, BLOCKS, NOT_NOW, DAMAGED, NO_PART }));
    constants.extend(rows!("status::", record::status { NOT_LEADER, NOT_READY, NO_SUCH_PG, FAILED, BUSY, THROTTLED }));
    constants.extend(rows!("raft_flag::", record::raft_flag { REJECT }));
    File { module: "record", text: include_str!("../record.rs"), constants }
}

fn message() -> File {
    let mut constants = Vec::new();
    constants.extend(rows!(
        "",
        message { MEND_BLOCKS_MAX, DIGEST_LEN, STREAM_PIECE_MAX, CONTEXT_MAX, REASON_MAX, USED_MAX }
    ));
    constants.extend(variants!(RaftKind {
        Append,
        AppendResponse,
        Vote,
        VoteResponse,
        PreVote,
        PreVoteResponse,
        Heartbeat,
        HeartbeatResponse,
        TimeoutNow,
    }));
    constants.extend(variants!(StreamAbort { Needless, Busy, Full, NotLeader, Failed }));
    constants.extend(variants!(Lack { Other, Lost, Freed, Unsure, Gone }));
    constants.extend(variants!(Errno {
        Invalid,
        Fenced,
        NoSpace,
        Damaged,
        ReadOnly,
        Gone,
        TimedOut,
        Shutdown,
        Rehearsed
    }));
    File { module: "message", text: include_str!("../message.rs"), constants }
}

#[test]
fn formats_page_has_the_constants_and_byte_maps_of_the_wire() {
    let others = [
        ("types::limits::FRAME_LEN_MAX", limits::FRAME_LEN_MAX.to_string()),
        ("types::limits::FRAME_PAYLOAD_MAX", limits::FRAME_PAYLOAD_MAX.to_string()),
        ("types::limits::FRAME_RECORDS_MAX", limits::FRAME_RECORDS_MAX.to_string()),
        ("types::limits::CREDIT_OPS_MAX", limits::CREDIT_OPS_MAX.to_string()),
        ("types::limits::CREDIT_BYTES_MAX", limits::CREDIT_BYTES_MAX.to_string()),
    ];
    page::check("wire", &[frame(), record(), message()], &others, &[]);
}
