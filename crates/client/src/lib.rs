//! A client process: its connections to OSDs, its open volumes, its requests to meta.
//!
//! Ring 3. The owner of the loop (the NBD frontend, a bench, a test, the simulator) has one [`Client`] beside
//! its own connections, on the same thread, so that no request hops between threads:
//!
//! ```text
//! env.turn(&mut ops, &mut events, deadline)
//! for event: client.owns(&event) → client.handle_event(now, event, &mut ops), else the frontend's
//! answers from meta (queue of the control thread, which wakes the env) → client.handle_meta(now, id, answer)
//! client.take_events(…)                          volumes opened, refused, failed, closed
//! for each volume: device.completions(…)         → the frontend answers its users, takes their next requests
//!                  device.submit(…)
//! client.end_turn(now, &mut ops)                 everything leaves: one frame a connection
//! client.take_asks(…)                            → to meta; each is answered once, with its id
//! deadline = client.next_deadline() and the frontend's
//! ```
//!
//! Requests to meta and answers are plain values: a control thread carries them over gRPC, the simulator passes them directly.
//!
//! Invariant: trouble of one volume does not affect another; the client fails a volume only when its session is over.

mod client;
mod links;
mod meta;
mod open;
mod tuning;

#[cfg(test)]
mod tests;

pub use ::volume::Stall;
pub use bus::BusStats;
pub use client::{Client, ClientConfig, ClientEvent, ClientStats};
pub use meta::AskId;
pub use open::{VolumeKey, VolumeReport};
pub use tuning::ClientTuning;
