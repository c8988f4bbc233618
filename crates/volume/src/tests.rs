//! Tests of the volume: scripts against single messages, and seeds against a model of PGs.

mod cluster;
mod history;
mod holes;
mod model;
mod script;
mod unreached;
