//! Recovery of a replica from its peers: lost payloads of its log, bad blocks of home, and all contents of one that is behind.
//!
//! Ring 1. Input: replicas that lack data, messages of peers, results of the engine, and the facts of a [`Host`].
//! Output: [`Action`]s, which the OSD's loop carries out in their order.
//!
//! Invariant: `recovery` reads no clock and does no I/O. Data of a peer is taken by its checksum alone, and data that no member
//! gives is named, never made up.

mod block;
mod digest;
mod flatten;
mod host;
mod payload;
mod query;
mod stream;
mod tuning;

pub use block::{BlockKey, BlockRepairs, HeldRead, Named};
pub use digest::{DigestAnswer, DigestQuery, Digests, PARTS};
pub use flatten::{Copied, FillRead, Flattens, Head, Heads};
pub use host::{Action, Follow, Host, Lead, Part, Read, ReadResult, Staged};
pub use payload::{ANY_REPLICA, PayloadRepairs, answer_fetch};
pub use stream::{BaseRead, PartRead, Streams};
pub use tuning::{FlattenTuning, RecoveryTuning, RepairTuning, StreamTuning};

use types::Time;

/// All recovery of one OSD.
pub struct Recovery {
    pub payloads: PayloadRepairs,
    pub blocks: BlockRepairs,
    pub streams: Streams,
    pub digests: Digests,
    pub flattens: Flattens,
}

impl Recovery {
    /// `digests`: most that run at once, and most that wait.
    pub fn new(tuning: RecoveryTuning, digests: (usize, usize), seed: u64) -> Recovery {
        let RecoveryTuning { streams, repair, flatten } = tuning;
        let (payloads, blocks) = (PayloadRepairs::new(repair), BlockRepairs::new(repair));
        let (streams, flattens) = (Streams::new(streams, seed), Flattens::new(flatten));
        Recovery { payloads, blocks, streams, digests: Digests::new(digests.0, digests.1), flattens }
    }

    /// Handles the result of a read.
    pub fn handle_read(&mut self, host: &mut (impl Host + Heads), read: Read, result: ReadResult) {
        match read {
            Read::Block(key) | Read::BaseBlock(key) => self.blocks.handle_read(host, key, result),
            Read::Part(read) => self.streams.handle_part(host, &read, result),
            Read::Digest { key, part } => self.digests.handle_read(host, (key, part), result),
            Read::Fill(read) => self.flattens.handle_read(host, read, result),
            Read::Base(read) => self.streams.handle_base(host, &read, result),
        }
    }

    /// Returns the time of the next step, if no event comes before.
    pub fn next_deadline(&self) -> Time {
        let repairs = self.payloads.next_deadline().min(self.blocks.next_deadline());
        repairs.min(self.streams.next_deadline()).min(self.digests.next_deadline()).min(self.flattens.next_deadline())
    }

    /// The store is poisoned.
    pub fn clear(&mut self, host: &mut impl Host, reason: &str) {
        self.digests.fail(host, reason);
        self.payloads.clear();
        self.blocks.clear();
        self.streams.clear();
        self.flattens.clear();
    }
}
