//! Measurements: a load for any block device, the floor beside it, and the CPU of the processes involved.
//!
//! This crate belongs to the testing ring. `cli` composes [`load`] with a client and prints the reports; [`floor`] is a
//! probe of its own, in child processes of the same binary; [`replica`] drives one engine; [`cpu`] reads the CPU time of
//! processes, and [`allocations`] counts the allocations of this one.
//!
//! Invariant: [`load`] is sans-IO and takes its time from the caller. Only [`floor`], [`replica`] and [`cpu`] touch the machine, and
//! only [`floor`], [`allocations`] and one system call of `cpu` are `unsafe`.

pub mod allocations;
pub mod cpu;
pub mod floor;
pub mod load;
pub mod replica;
