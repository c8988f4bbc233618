//! The bytes of the log.
/// Most bytes of one part of a checkpoint record.
pub const CHECKPOINT_PART_MAX: usize = 64 << 10;
