//! The query of one item that a replica lacks, a payload or a block: its peers are asked in turn, one at a time.
//!
//! Invariant: only the answer of the peer that was asked last counts, once.

use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;
use types::map::Member;

/// A peer that has not answered within this time is passed over.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(500);

/// The peers that were asked for one item, and the answers of those that do not give it.
#[derive(Debug)]
pub(crate) struct Query<A> {
    pub answers: BTreeMap<Member, A>,
    /// The peer that was asked last: the next one follows it.
    last: Option<Member>,
    /// End of the wait for its answer; `None`: it has answered, or its answer does not count any more.
    until: Option<Time>,
}

impl<A> Default for Query<A> {
    fn default() -> Query<A> {
        Query { answers: BTreeMap::new(), last: None, until: None }
    }
}

impl<A> Query<A> {
    pub fn ask(&mut self, now: Time, peer: Member) {
        (self.last, self.until) = (Some(peer), Some(now + ANSWER_MAX));
    }

    /// Whether the answer of the peer that was asked last may still come.
    pub fn waits(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Ends the wait for an answer. True when this peer was asked last, and has not answered yet.
    pub fn close(&mut self, peer: Member) -> bool {
        self.last == Some(peer) && self.until.take().is_some()
    }

    /// Whether this peer was asked last, and has not answered yet.
    pub fn is_asked(&self, peer: Member) -> bool {
        self.last == Some(peer) && self.until.is_some()
    }

    /// Begins with the first peer again.
    pub fn rewind(&mut self) {
        (self.last, self.until) = (None, None);
    }

    /// Returns the first of these peers behind the one that was asked last.
    pub fn next(&self, peers: impl Iterator<Item = Member>) -> Option<Member> {
        peers.filter(|peer| self.last.is_none_or(|last| *peer > last)).min()
    }
}
