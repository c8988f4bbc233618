//! Decisions of the metadata server: liveness, pools, volumes, segments, attach records.
//!
//! Ring 1. Input: reports of OSDs, requests of clients and administrators, and the time. Output: one
//! transaction at a time, and the messages that may be sent once it is committed. The planning functions
//! in [`plan`] are pure: `(&Records, ask, …) → Result<(Vec<Write>, Reply), Refusal>`. [`Control`] orders
//! them, joins the writes of a turn into one transaction, and keeps the volatile state (live OSDs,
//! leaders of PGs, waiting requests).
//!
//! Invariant: no answer and no message to an OSD leaves before the transaction that it rests on is
//! committed. A failed commit ends the `Control`: its owner loads the records again and makes a new one.
//! The new one finds all unfinished work in the records (`creating`, `deleting`, `pending`, not
//! `settled`). So a crash between any two steps is the ordinary case.

pub mod admin;
mod batch;
mod config;
pub mod etcd;
pub mod events;
pub mod find;
pub mod found;
pub mod health;
pub mod lead;
mod machine;
pub mod names;
pub mod plan;
mod records;
mod refusal;
pub mod settings;

pub use batch::{Check, TXN_WRITES_MAX, Txn};
pub use config::ControlConfig;
pub use machine::{ClientReq, Control, ControlAction, Now, Standing, StreamId, Token};
pub use records::{
    ChangeReason, ChangeRecord, ClusterRecord, CountersRecord, CutRecord, CutState, FaultRecord, Faults, Flatten, Held,
    Holder, Holding, Key, LoadError, MuteRecord, OsdRecord, PgRecord, Poisoned, PoolQuota, PoolRecord, PoolState,
    Record, Records, Resize, Rollback, SegmentRecord, SnapshotRecord, SnapshotState, StoredItem, Trash, VolumeRecord,
    VolumeState, WatchRecord, Write, new_cluster, restored,
};
pub use refusal::refuse;
