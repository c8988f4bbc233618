//! Tests of the whole OSD: a few of them with simulated disks and network, commanded by the test as by meta.
//!
//! `rig` runs the OSDs; each file beside it tests one part. No code here decides what an OSD should do.

mod answers;
mod deltas;
mod digests;
mod failures;
mod flattens;
mod force;
mod let_in;
mod limits;
mod members;
mod mends;
mod reads;
mod rig;
mod shrinks;
mod snapshots;
mod stops;
mod streams;
mod traced;
