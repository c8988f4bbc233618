//! Messages of a data connection: in memory, and as bytes.
//!
//! Ring 0. `bus` passes messages to encode and bytes to decode; other crates see only [`Message`].
//! A frame is a fixed header, a head block with the records of all its messages, and a payload block
//! that the receiver can take straight to its log.
//!
//! ```text
//! | header 64 B | head block: records, one after the other | payload block: payloads, one after the other |
//! ```
//!
//! Every payload is a multiple of 512 B long, so each begins on a 512 B border of the payload block
//! without padding. Payloads are neither copied nor checked here: their CRCs travel in the head.
//!
//! Invariant: decoding never panics, never allocates more than a small multiple of the frame's own
//! limit, and rejects all bytes that encoding does not produce (so a frame has one spelling only).

mod decode;
mod encode;
mod frame;
mod mend;
pub mod message;
mod record;
mod repair;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod stream;
#[cfg(test)]
mod tests;

pub use decode::{decode_batch, decode_hello, decode_refuse};
pub use encode::{encode_batch, encode_hello, encode_refuse};
pub use frame::{
    FrameKind, GREETING_HEAD_MAX, HEAD_LEN_MAX, HEADER_LEN, Header, VERSION_GREETING, VERSION_MAX, VERSION_MIN,
    WireError,
};
pub use message::{
    CONTEXT_MAX, Contents, DIGEST_LEN, Extent, Hello, Lack, LeaseAck, LeaseRenewal, MEND_BLOCKS_MAX, MendBody, MendMsg,
    Message, PassedOn, Peer, REASON_MAX, RaftKind, RaftMsg, Refuse, Reject, RenewalItem, RepairBody, RepairMsg, Reply,
    ReplyBody, Request, RequestBody, STREAM_PIECE_MAX, StreamAbort, StreamBody, StreamMsg, USED_MAX, Used,
    extents_cost,
};
