//! Tests of the volume: scripts against single messages, and seeds against a model of PGs.

mod cluster;
mod credit;
mod full;
mod history;
mod holes;
mod limits;
mod model;
mod policy;
mod rehearsal;
mod sampled;
mod script;
mod stripes;
mod unreached;
