//! One placement group on one OSD.

use crate::{Action, GroupConfig, Origin};
use bytes::Bytes;
use types::control::{Attach, PgReport};
use types::store::{DecisionState, Recovered, ReplicaIdentity};
use types::{Errno, Index, OsdId, PgId, Term, Time};
use wire::{Listed, RaftMsg, ReplyBody, Request};

/// Why a replica cannot take part (R5, R11).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("{pg}: damaged: {reason}")]
    Damaged { pg: PgId, reason: String },
}

/// One replica of one PG.
pub struct Group {
    identity: ReplicaIdentity,
}

#[allow(unused_variables)]
impl Group {
    pub fn new(config: GroupConfig, recovered: Recovered, now: Time, seed: u64) -> Result<Group, GroupError> {
        Ok(Group { identity: recovered.identity })
    }
    /// Decision state of a new replica: index 0, all members voters.
    pub fn fresh_decision(identity: &ReplicaIdentity) -> Bytes {
        Bytes::new()
    }
    pub fn handle_request(&mut self, now: Time, origin: Origin, request: Request, actions: &mut Vec<Action>) {}
    pub fn handle_raft(&mut self, now: Time, from: OsdId, msg: RaftMsg, actions: &mut Vec<Action>) {}
    /// Whether the promise was renewed: then the echo names this PG with the item's term.
    pub fn handle_listed(&mut self, now: Time, from: OsdId, item: Listed, full: bool, actions: &mut Vec<Action>) -> bool {
        false
    }
    pub fn handle_echo(&mut self, now: Time, from: OsdId, sent_at: Time, term: Term, actions: &mut Vec<Action>) {}
    pub fn handle_goodbye(&mut self, now: Time, from: OsdId, actions: &mut Vec<Action>) {}
    pub fn handle_link(&mut self, now: Time, osd: OsdId, up: bool, actions: &mut Vec<Action>) {}
    /// An append to `to` could not be sent because its payload is not readable.
    pub fn handle_unreadable(&mut self, now: Time, to: OsdId) {}
    pub fn handle_persisted(&mut self, now: Time, ticket: u64, actions: &mut Vec<Action>) {}
    pub fn handle_read_done(&mut self, now: Time, read: u64, result: Result<ReplyBody, Errno>, actions: &mut Vec<Action>) {}
    pub fn handle_attach(&mut self, now: Time, attach: Attach, actions: &mut Vec<Action>) {}
    pub fn handle_transfer(&mut self, now: Time, to: OsdId, actions: &mut Vec<Action>) {}
    /// `vouched`: the OSD of this PG's leader was heard within one promise, and its last full list names it
    /// leader here (`Pairs::vouches`). To be called before a pre-vote is handed in; false at first.
    pub fn set_vouched(&mut self, vouched: bool) {}
    pub fn set_pressure(&mut self, full: bool, blocked: bool) {}
    pub fn set_first_index(&mut self, first: Index) {}
    /// End of turn: proposes what was admitted, once, and drains raft.
    pub fn poll(&mut self, now: Time, actions: &mut Vec<Action>) {}
    pub fn next_deadline(&self) -> Time {
        Time::NEVER
    }
    /// Exact as of `applied` (R1).
    pub fn decision(&self) -> DecisionState {
        unreachable!()
    }
    /// When leading: the item for the replica on `osd`, and whether it belongs in every listing.
    pub fn listing_for(&self, now: Time, osd: OsdId) -> Option<(Listed, bool)> {
        None
    }
    pub fn report(&self, now: Time) -> PgReport {
        unreachable!()
    }
    pub fn leader(&self) -> Option<OsdId> {
        None
    }
    pub fn is_leader(&self) -> bool {
        false
    }
    pub fn identity(&self) -> &ReplicaIdentity {
        &self.identity
    }
    pub fn applied(&self) -> Index {
        Index(0)
    }
}
