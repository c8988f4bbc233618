//! The thought of meta: liveness, pools, volumes, segments, attach records.
//!
//! Ring 1. Comes in: what OSDs report, clients and administrators ask, and the time. Goes out: one
//! transaction at a time, and what may be said once it is committed. The planning functions in [`plan`]
//! are pure: `(&Records, ask, …) → Result<(Vec<Write>, Reply), Refusal>`; [`Control`] puts them in order,
//! joins what waits into one transaction, and keeps what is volatile (who lives, who leads, who waits).
//!
//! Invariant: nothing is answered, and nothing is sent to an OSD, before the transaction that it rests on
//! is committed. A failed commit ends the `Control`: its owner loads the records again and makes a new
//! one, which finds every unfinished thing in the records (`creating`, `deleting`, `pending`, not
//! `settled`). So a crash between any two steps is the ordinary case.

pub mod admin;
mod batch;
pub mod codes;
pub mod events;
pub mod health;
mod machine;
pub mod names;
pub mod plan;
mod records;

pub use batch::{Check, TXN_WRITES_MAX, Txn};
pub use machine::{ClientReq, Control, ControlAction, INBOX_MAX, Now, Standing, StreamId, Token};
pub use records::{
    ClusterRecord, CountersRecord, Holder, Key, LoadError, MuteRecord, OsdRecord, PgRecord, Poisoned, PoolRecord,
    PoolState, Record, Records, SegmentRecord, StoredItem, VolumeRecord, VolumeState, WatchRecord, Write, new_cluster,
    restored,
};
