//! Connections between OSDs, and from clients to OSDs: dialling, hellos, frames, credit, reconnecting.
//!
//! Ring 2. Input: completions of the loop's env, and messages to send. Output: operations for the env, and received
//! messages with their links. A *link* is one connection whose ends have greeted each other. Its id is never used again,
//! so the id of a dead link refers to no connection.
//!
//! Between two OSDs the one with the higher id dials, so that there is one connection a pair; clients
//! dial, OSDs accept. A new connection of a peer replaces its older link: the old one may be dead without
//! a report from the network.
//!
//! One peer can cost: a frame that is being received (its header was verified first), 32 KiB of what may follow a
//! header, a send queue up to [`BusConfig::queue_bytes_max`], and its granted credit. Before its hello it can cost the kilobyte of a
//! greeting for [`BusConfig::hello_timeout`]. A peer that goes beyond that is disconnected.
//!
//! Invariant: a peer's bytes lead to messages or to the end of that one link, never to a panic; payload
//! bytes are copied between the socket and the user of the bus only where they came behind a header.

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
pub use config::{BusConfig, BusEvent, BusStats, BusTuning, Identity, LinkId, QUEUE_BYTES_MAX};
