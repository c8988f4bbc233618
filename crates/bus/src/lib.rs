//! Connections between OSDs, and from clients to OSDs: dialling, hellos, frames, credit, reconnecting.
//!
//! Ring 2. The loop of a room comes in with completions of its env and with messages to send; operations
//! go out to the env, and messages with the link that they came by go out to the loop. A *link* is one
//! connection whose ends have greeted each other; its id is never used again, so whoever holds the id of
//! a dead link holds nothing.
//!
//! Between two OSDs the one with the higher id dials, so that there is one connection a pair; clients
//! dial, OSDs accept. A peer that comes anew replaces its older link: the old one may be a corpse that
//! the network has not reported yet.
//!
//! What one peer can cost: a frame that is being received (its header was verified first), a send queue
//! up to [`BusConfig::queue_bytes_max`], the credit that it was given, and before its hello a kilobyte for
//! two seconds. Whoever goes beyond that is disconnected.
//!
//! Invariant: a peer's bytes end in messages or in the end of that one link, never in a panic; payload
//! bytes are not copied between the socket and the room.

mod bus;
mod config;
mod conn;
mod credit;
mod dial;
mod events;
mod greet;
mod part;
mod rx;
mod silence;
#[cfg(test)]
mod tests;
mod tx;

pub use bus::Bus;
pub use config::{BusConfig, BusEvent, BusStats, Identity, LinkId, QUEUE_BYTES_MAX};
pub use credit::request_cost;
