//! Measuring: a load for any block device, the floor beside it, and the CPU of the processes involved.
//!
//! Ring: testing. `cli` composes [`load`] with a client and prints the reports; [`floor`] is a probe of its
//! own, in child processes of the same binary; [`cpu`] reads what processes have used.
//!
//! Invariant: [`load`] is sans-IO and takes its time from the caller; only [`floor`] and [`cpu`] touch the
//! machine, and only [`floor`] and `cpu`'s one question to the system hold `unsafe`.

pub mod cpu;
pub mod floor;
pub mod load;
