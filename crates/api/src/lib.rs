//! The control plane on the wire: protobuf and gRPC for the values of `types::control` and `control::admin`.
//!
//! Ring 2. `meta` serves the services in [`pb`]. OSD and client processes use [`osd_link`] and
//! [`client_link`], tools use [`AdminClient`]. The simulator needs none of these: it passes the same values
//! directly.
//!
//! Invariant: messages of a peer are checked here, once; no malformed value reaches the services of ring 3.
//! Every queue between the planes has a limit.

pub mod admin_client;
pub mod client_link;
pub mod convert;
mod convert_admin;
mod convert_faults;
mod convert_health;
mod convert_members;
mod convert_moves;
mod convert_qos;
mod convert_recovery;
mod convert_snapshots;
mod follow;
mod meta_info;
pub mod osd_link;
mod probe;
pub mod status;

pub use admin_client::{AdminClient, AdminError};
pub use convert::stripe_in;
pub use convert_admin::{text_in, writer_name_in};
pub use convert_faults::fault_add_in;
pub use convert_qos::change_in;
pub use convert_recovery::{backup_parts, recover_in};
pub use convert_snapshots::snapshots_out;
pub use meta_info::{MetaInfo, meta_info};

/// Generated from `proto/control.proto`.
#[allow(clippy::all, missing_docs)]
pub mod pb {
    tonic::include_proto!("basalt.v1");
}

/// The metadata key under which an administrator names itself, for the events.
pub const BY_KEY: &str = "basalt-by";

/// Largest control message: an open volume of 64 TiB names 65 536 segments, each with up to 64 columns.
pub const MESSAGE_LEN_MAX: usize = 16 << 20;
