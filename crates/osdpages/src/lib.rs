//! Pages of the OSDs of a cluster, over HTTP.
//!
//! Ring 3. Input: addresses of OSDs, and a [`Directory`] that asks the metadata server for them. Output: pages, and the space of a volume as a
//! sum of them.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use control::admin::{AdminAnswer, AdminAsk, OsdView, PgView};
//!
//! /// Asks the metadata server by whatever the program has for that.
//! struct Asking<F>(F);
//!
//! impl<F: Fn(AdminAsk) -> Result<AdminAnswer, String>> osdpages::Directory for Asking<F> {
//!     type Error = String;
//!
//!     fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer, String> {
//!         (self.0)(ask)
//!     }
//! }
//! # let ask = |_: AdminAsk| -> Result<AdminAnswer, String> { Err("no cluster".to_owned()) };
//! # let AdminAnswer::Volume(volume) = ask(AdminAsk::VolumeInfo { name: "main/vm1".to_owned() })? else { return Ok(()) };
//! let space = osdpages::measure(&Asking(ask), &volume)?;
//! println!("{} bytes, {} of them shared with nothing", space.allocated_bytes(), space.exclusive_bytes());
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

pub mod http;
mod space;

pub use space::{Directory, Space, SpaceError, measure};
