//! The C library: `libbasalt` with the header `include/basalt.h`, which is its manual.
//!
//! Ring 4. The machinery is that of [`clientthread`]: a cluster handle owns one thread. A call checks its arguments, hands the
//! request to that thread, and returns. The completion of a request waits in a queue of its caller.
//!
//! Invariants:
//! - The library reads and writes memory of its caller inside calls of that caller only, never on its own threads.
//! - Each accepted request leaves exactly one event in its queue, also when its volume is closed or the I/O thread ends.
//! - No panic crosses the ABI, and a handle that is closed or of another kind is refused without a memory access.
//!
//! Memory of the caller is touched in [`memory`]. The other `unsafe` of this crate hands the promises of a C caller to it.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod abi;
pub mod calls;
mod errors;
mod guard;
mod mark;
mod memory;
mod registry;
