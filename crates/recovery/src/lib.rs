//! Recovery of a replica from its peers: lost payloads of its log, bad blocks of home, and all contents of one that is behind.
//!
//! Ring 1. Input: replicas that lack data, messages of peers, results of the engine, the facts of a [`View`] and the steps of a
//! [`Store`]. Output: [`Action`]s, which the OSD's loop carries out in their order.
//!
//! Invariant: `recovery` reads no clock and does no I/O. Data of a peer is taken by its checksum alone, and data that no member
//! gives is named, never made up.

mod action;
mod block;
mod payload;
mod query;
mod stream;
mod tuning;

pub use action::{Action, Follow, Lead, Part, Read, Store, View};
pub use block::{BlockKey, BlockRepairs, HeldRead, Named};
pub use payload::{ANY_REPLICA, PayloadRepairs, answer_fetch};
pub use stream::{BaseRead, PartRead, Streams};
pub use tuning::StreamTuning;

use types::Time;
use types::store::{ReadData, ReadError};

/// All recovery of one OSD.
pub struct Recovery {
    pub payloads: PayloadRepairs,
    pub blocks: BlockRepairs,
    pub streams: Streams,
}

impl Recovery {
    pub fn new(tuning: StreamTuning, seed: u64) -> Recovery {
        let (payloads, blocks) = (PayloadRepairs::default(), BlockRepairs::default());
        Recovery { payloads, blocks, streams: Streams::new(tuning, seed) }
    }

    /// Handles the result of a read.
    pub fn handle_read(
        &mut self,
        store: &mut impl Store,
        read: Read,
        result: Result<ReadData, ReadError>,
        actions: &mut Vec<Action>,
    ) {
        match read {
            Read::Block(key) => self.blocks.handle_read(store, key, result, actions),
            Read::Part(read) => self.streams.handle_part(store.now(), &read, result, actions),
            Read::Base(read) => self.streams.handle_base(store, &read, result, actions),
        }
    }

    /// Returns the time of the next step, if no event comes before.
    pub fn next_deadline(&self) -> Time {
        self.payloads.next_deadline().min(self.blocks.next_deadline()).min(self.streams.next_deadline())
    }

    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.payloads.clear();
        self.blocks.clear();
        self.streams.clear();
    }
}
