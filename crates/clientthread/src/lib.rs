//! Volumes of a cluster for a program with threads: handles that any thread may use.
//!
//! Ring 3. This is the API of a Rust program that has no loop of its own; the libraries for C and Python are built on it. A program
//! that owns a loop, and needs the least cost of a request, uses [`client`] by [`clientloop`] instead.
//!
//! A [`Cluster`] owns one thread with that loop. A [`Volume`] of it takes requests from any thread. The completion of a request
//! waits in a [`Queue`] until the program takes it; [`Volume::call`] does both and blocks.
//!
//! ```no_run
//! use clientthread::{Access, Cluster, Failure, Queue, Settings};
//! use device::Request;
//! use types::IoBuf;
//!
//! fn main() -> Result<(), Failure> {
//!     // `u64` is the tag of a request: it comes back with the completion.
//!     let cluster = Cluster::<u64>::connect(Settings::new(vec!["meta1:7300".into()]))?;
//!     let volume = cluster.open("main/vm1", Access::Write)?;
//!     volume.call(Request::Write { offset: 4096, buf: IoBuf::copy_of(&[7; 4096]), fua: false })?;
//!     // Many requests at a time, from one thread.
//!     let queue = Queue::new(16)?;
//!     for block in 0..16 {
//!         volume.submit(&queue, block, Request::Read { offset: block * 4096, len: 4096 })?;
//!     }
//!     let mut taken = 0;
//!     while taken < 16 {
//!         for finished in queue.take(1, 16, None)? {
//!             let answer = finished.result.map_err(|errno| volume.failure(errno))?;
//!             println!("block {} begins with {}", finished.tag, answer.pieces()[0][0]);
//!             taken += 1;
//!         }
//!     }
//!     volume.close()
//! }
//! ```
//!
//! Administration (volumes, snapshots, the trash) goes through [`Cluster::ask`], with the requests of `control::admin`.
//!
//! Invariants:
//! - Each accepted request leaves exactly one completion in its queue, also when its volume is closed or the I/O thread ends.
//! - The I/O thread runs no code of the program, and only moves tags: it neither reads nor drops memory that a tag refers to,
//!   unless the queue itself is dropped with completions in it.
//! - A volume that the program drops is closed, and the last handle of a cluster ends its threads.
//!
//! After a `fork` the child has no I/O thread: [`is_forked`] tells a binding to refuse its calls.
#![warn(missing_docs)]

mod cluster;
mod failure;
mod io_thread;
mod mailbox;
mod pending;
mod queue;
mod served;
mod settings;

pub use client::OnUnavailable;
pub use cluster::{Access, Cluster, Connecting, STOP_MAX, Volume};
pub use env::real::embed::is_forked;
pub use failure::Failure;
pub use pending::Pending;
pub use queue::{Finished, QUEUE_BYTES_MAX, QUEUE_DEPTH_MAX, Queue, Ticket};
pub use settings::{Settings, metas};
