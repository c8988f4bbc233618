//! What travels on a data connection: messages in memory, and their bytes.
//!
//! Ring 0. `bus` comes in with messages to encode and bytes to decode; rooms see only [`Message`].
//! A frame is a fixed header, a head block with the records of all its messages, and a payload block
//! that the receiver can take straight to its log.
//!
//! Invariant: decoding never panics, never allocates more than the frame's own limit, and accepts
//! nothing that encoding does not produce.

pub mod message;

pub use message::{
    Extent, Hello, Listed, Listing, ListingEcho, Message, Peer, RaftKind, RaftMsg, Refuse, Reject, Reply, ReplyBody,
    Request, RequestBody, SnapshotMeta,
};
