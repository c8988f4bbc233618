//! One replica of the store: its identity, its part of the log, its overlay.
//!
//! Invariant: `checkpoint.index` ≤ `applied` ≤ last entry; a damaged replica stays damaged until it is
//! destroyed.

use crate::log::ReplicaLog;
use crate::overlay::Overlay;
use bytes::Bytes;
use layout::log::ReplicaRecord;
use types::store::{HardState, ReplicaIdentity};
use types::{Index, Term};

#[derive(Debug)]
pub(crate) struct Replica {
    pub identity: ReplicaIdentity,
    pub log: ReplicaLog,
    /// The latest that its group gave.
    pub hard_state: HardState,
    /// The latest that is in a batch.
    pub written_hard_state: HardState,
    /// Decision state of index 0, until a checkpoint has a later one.
    pub first_decision: Bytes,
    /// K and its term.
    pub checkpoint: (Index, Term),
    pub applied: Index,
    pub overlay: Overlay,
    pub damage: Option<String>,
    /// Its birth record is in the log.
    pub born: bool,
    /// A round replaces its contents: nothing of it is read.
    pub installing: bool,
}

impl Replica {
    pub fn new(identity: ReplicaIdentity, first_decision: Bytes) -> Replica {
        Replica {
            identity,
            log: ReplicaLog::new(Index(1)),
            hard_state: HardState::default(),
            written_hard_state: HardState::default(),
            first_decision,
            checkpoint: (Index(0), Term(0)),
            applied: Index(0),
            overlay: Overlay::default(),
            damage: None,
            born: false,
            installing: false,
        }
    }

    /// What a birth record or a state block says of it.
    pub fn record(&self) -> ReplicaRecord {
        ReplicaRecord {
            identity: self.identity.clone(),
            hard_state: self.written_hard_state,
            decision: self.first_decision.clone(),
            damage: self.damage.clone().unwrap_or_default(),
        }
    }
}
