//! Writers of volumes: how commands name them, and how they are shown.

use serde::{Deserialize, Serialize};
use types::SessionId;

/// The writers of a volume that a command concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterName {
    Session(SessionId),
    /// The whole name of a client, its host, or its address with or without the port.
    Client(String),
}

/// A client that has a volume open for writing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HolderView {
    #[serde(default)]
    pub session: SessionId,
    pub name: String,
    pub address: String,
    pub since_ms: u64,
    /// Whether its lease lives: only then is a second opener refused.
    pub alive: bool,
}
