//! Plans: pure functions from the records and one request to the writes and the answer that is then
//! true.
//!
//! A plan writes at most what one transaction holds. Long work (a pool of thousands of PGs, a volume of
//! thousands of segments) is a state in a record and a plan per step.

mod changes;
mod clones;
mod faults;
mod flatten;
mod force;
mod labels;
mod limits;
mod members;
mod osds;
mod pools;
mod quota;
mod rollback;
mod shrink;
mod snapshots;
mod space;
mod trash;
mod volumes;
mod writers;

pub use changes::{volume_rename, volume_resize, volume_set};
pub use clones::{CLONE_DEPTH_MAX, clone_step, clones_of, knows_parent, volume_clone};
pub(crate) use faults::ordered_words;
pub use faults::{fault_add, fault_expire, fault_remove, fault_words, faults_told};
pub use flatten::{flatten_cancel, flatten_end, volume_flatten};
pub use force::{ForceOrder, fence_volume, give_up_force, note_fenced, note_floor, pg_force, refill, unfenced};
pub use labels::{label_changes, text_changes};
pub use limits::{limit_changes, limit_words};
pub use members::{begin_change, begin_move, give_up, pg_move, pg_move_cancel, planned, replace_failed, take_members};
pub use osds::{
    HelloPlan, osd_auto_out, osd_away, osd_hello, osd_poisoned, osd_position, osd_register, osd_remove, osd_reserve,
    osd_set, replaceable,
};
pub(crate) use osds::{MOUNT_LEAP, log_is_behind};
pub(crate) use pools::placed;
pub use pools::{PGS_PER_STEP, make_pgs, pool_create, pool_remove, pool_rename, pool_set, unmake_pgs};
pub use quota::{Provisioned, provisioned, quota_words};
pub use rollback::snapshot_rollback;
pub use shrink::{length_above, shrink_end, shrink_order, tail_of, wiped_end};
pub use snapshots::{
    CutAsk, SnapshotChange, VOLUMES_PER_CUT_MAX, cut_begin, cut_end, cut_give_up, cut_volumes, pgs_of_cut, snapshot,
    snapshot_remove, snapshot_set, snapshots_of_cut,
};
pub use space::{Promises, available_bytes};
pub use trash::{in_trash, trash_expire, trash_purge, trash_restore, volume_trash};
pub(crate) use volumes::shown;
pub use volumes::{
    PgHint, allocate, attach_for, choices, choose, draw_order, erase, pgs_of_volume, settle, unpend, volume_create,
    volume_remove,
};
pub use writers::{InUse, OpenPlan, Opener, close, fence, open, volume_fence};

use crate::records::Write;
use types::control::Refusal;

/// The writes that must be committed, and the answer that is true afterwards.
pub type Plan<T> = Result<(Vec<Write>, T), Refusal>;

pub(crate) fn checked_size<T>(plan: (Vec<Write>, T)) -> (Vec<Write>, T) {
    assert!(plan.0.len() <= crate::batch::PLAN_WRITES_MAX, "a plan of {} writes", plan.0.len());
    plan
}
