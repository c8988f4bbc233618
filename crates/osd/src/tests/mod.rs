//! The whole OSD under test: a few of them with simulated disks and network, told what to hold as meta would.
//!
//! `rig` is the stage; each file beside it holds the laws of one part. Nothing here decides what an OSD should.

mod answers;
mod digests;
mod doubt;
mod let_in;
mod mends;
mod reads;
mod rig;
mod stops;
mod streams;
