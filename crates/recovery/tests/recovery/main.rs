//! Scripts of recovery, on a host without an engine.

mod host;
mod limits;
mod repairs;
mod streams;
