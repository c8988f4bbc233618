//! A client process: its connections to OSDs, its open volumes, its requests to meta.
//!
//! Ring 3. This is the API of a Rust program with a loop of its own. A program without one uses the crate `clientthread`, whose
//! handles serve any thread. In both, an open volume is a [`device::BlockDevice`]: requests go in, completions come out.
//!
//! A [`Client`] does no I/O. In the real world the crate `clientloop` gives it a ring and a link to meta:
//!
//! ```no_run
//! use client::{ClientEvent, OnUnavailable, VolumeKey};
//! use clientloop::{ClientLoop, LoopConfig};
//! use device::{Answer, Request};
//! use env::Env;
//! use env::real::{RealConfig, RealEnv};
//! use std::time::Duration;
//! use types::{Errno, IoBuf, Time};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let mut turns = ClientLoop::new(
//!     RealEnv::new(RealConfig::default())?,
//!     runtime,
//!     LoopConfig {
//!         metas: vec!["meta1:7300".into()],
//!         holder: clientloop::holder("my program"),
//!         timeout: None,
//!         full_wait: Duration::from_secs(20),
//!         on_unavailable: OnUnavailable::Freeze,
//!     },
//! );
//! let _ask = turns.client.open("main/vm1", true, false);
//! let mut volume: Option<VolumeKey> = None;
//! let mut done = Vec::new();
//! loop {
//!     let now = turns.begin();
//!     for event in std::mem::take(&mut turns.told) {
//!         match event {
//!             ClientEvent::Opened { volume: key, .. } => {
//!                 volume = Some(key);
//!                 let buf = IoBuf::copy_of(&[7; 4096]);
//!                 let device = turns.client.device(key).ok_or("it is open")?;
//!                 device.submit(now, Request::Write { offset: 0, buf, fua: false }, 1).map_err(|_| "busy")?;
//!             }
//!             ClientEvent::OpenRefused { why, .. } => return Err(why.message.into()),
//!             ClientEvent::Closed { .. } => return Ok(()),
//!             ClientEvent::Failed { errno, .. } => return Err(errno.into()),
//!             ClientEvent::Resized { .. } => {}
//!         }
//!     }
//!     if let Some(device) = volume.and_then(|key| turns.client.device(key)) {
//!         device.completions(&mut done);
//!     }
//!     for completion in done.drain(..) {
//!         assert_eq!((completion.token, completion.result), (1, Ok(Answer::Done)));
//!         turns.client.close(volume.ok_or("it is open")?);
//!     }
//!     turns.finish(Time::NEVER)?;
//! }
//! # }
//! ```
//!
//! `examples/own_loop.rs` keeps many requests in flight. Without `clientloop`, the owner of the loop (the simulator, a test) makes
//! these calls, on the thread of its own connections, so that no request hops between threads:
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

#![warn(missing_docs)]

mod client;
mod links;
mod meta;
mod open;
mod outage;
mod tuning;

#[cfg(test)]
mod tests;

pub use ::volume::{OnUnavailable, Stall};
pub use bus::BusStats;
pub use client::{Client, ClientConfig, ClientEvent, ClientStats};
pub use meta::AskId;
pub use open::{VolumeKey, VolumeReport};
pub use tuning::ClientTuning;
