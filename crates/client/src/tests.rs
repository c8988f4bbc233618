//! The client against model OSDs over the simulated network, and against answers of meta that a test writes.

mod meta;
mod network;
