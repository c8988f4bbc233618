//! Limits of the client side that are no choice: the ids of messages bound them.

/// Most parts in flight or waiting on one volume.
pub const PARTS_MAX: usize = 4094;
/// Further parts for fence checks, so that a volume at its limit can send one, too.
pub const FENCE_CHECK_PARTS: usize = 1;
/// The key of messages that belong to no part: reports of an unreached leader.
pub const REPORT_KEY: u32 = (1 << crate::ids::KEY_BITS) - 1;

const _: () = assert!(PARTS_MAX + FENCE_CHECK_PARTS <= REPORT_KEY as usize);
