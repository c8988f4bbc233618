//! The C library: `libbasalt` with the header `include/basalt.h`, which is its manual.
//!
//! Ring 4. A cluster handle owns one thread with the loop of [`clientloop`] ([`io_thread`]). A call checks its arguments,
//! sends a command through the [`mailbox`], and returns. The completion of a request waits in a [`queue`] of its caller.
//!
//! Invariants:
//! - The library reads and writes memory of its caller inside calls of that caller only, never on its own threads.
//! - Each accepted request leaves exactly one event in its queue, also when its volume is closed or the I/O thread ends.
//! - No panic crosses the ABI, and a handle that is closed or of another kind is refused without a memory access.
//!
//! Memory of the caller is touched in [`memory`], and the operating system is called in [`os`]. The other `unsafe` of this
//! crate hands the promises of a C caller to these two.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod abi;
pub mod calls;
mod cluster;
mod failure;
mod guard;
mod io_thread;
mod mailbox;
mod memory;
mod os;
mod queue;
mod registry;
mod served;
