//! The client against model OSDs over the simulated network, and its dealings with meta by hand.

mod meta;
mod network;
