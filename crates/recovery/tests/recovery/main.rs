//! Scripts of recovery, on a host without an engine.

mod flattens;
mod host;
mod limits;
mod repairs;
mod streams;
