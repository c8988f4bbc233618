//! Scripts of recovery, on a host without an engine.

mod host;
mod repairs;
mod streams;
