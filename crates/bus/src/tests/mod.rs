//! Tests of the bus on loopback streams.

mod credit;
mod greeting;
mod hostile;
mod links;
mod make;
mod net;
mod order;
mod receive;
mod silence;
mod worlds;
