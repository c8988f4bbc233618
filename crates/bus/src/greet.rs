//! Check of a hello: pure, the same for both ends.

use crate::config::{BusConfig, Identity};
use types::codes;
use types::limits::PART_MAX;
use types::{ClusterId, Incarnation, OsdId};
use wire::{Hello, Peer, Refuse};

/// Parameters on which the two ends have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub peer: Peer,
    pub incarnation: Incarnation,
    /// The highest version that both ends support.
    pub version: u16,
    pub credit_ops: u32,
    pub credit_bytes: u64,
}

/// Reason why a hello is refused. The text reaches the other side, and its user: "here" is the end that refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GreetError {
    #[error("cluster {ours} is here, not {theirs}")]
    Cluster { ours: ClusterId, theirs: ClusterId },
    #[error(
        "no common protocol version: {}..={} are spoken here, {}..={} there; upgrade the older of the two", ours.0, ours.1, theirs.0, theirs.1
    )]
    Version { ours: (u16, u16), theirs: (u16, u16) },
    #[error("{expected} was expected, {found} is at this address")]
    WrongPeer { expected: OsdId, found: Who },
    #[error("{0} has connected to a process of its own id")]
    Own(OsdId),
    #[error("between two OSDs the one with the higher id dials; {theirs} has dialled {ours}")]
    Direction { ours: OsdId, theirs: OsdId },
    #[error("a client does not serve {0}")]
    NoService(Who),
    #[error("a credit of {ops} operations and {bytes} B lets no request through")]
    Credit { ops: u32, bytes: u64 },
}

/// Display form of a peer, for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who(pub Peer);

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Peer::Osd(osd) => write!(f, "{osd}"),
            Peer::Client(incarnation) => write!(f, "client {:x}", incarnation.0),
        }
    }
}

impl GreetError {
    /// Makes the refusal for the other side.
    pub fn refuse(&self) -> Refuse {
        let code = match self {
            GreetError::Cluster { .. } => codes::PEER_OF_OTHER_CLUSTER,
            GreetError::Version { .. } => codes::NO_COMMON_VERSION,
            GreetError::WrongPeer { .. }
            | GreetError::Own(_)
            | GreetError::Direction { .. }
            | GreetError::NoService(_) => codes::WRONG_PEER,
            GreetError::Credit { .. } => codes::BAD_FRAME,
        };
        Refuse { code, reason: self.to_string() }
    }
}

/// Makes this process's hello. `expects`: the OSD that it dialled.
pub fn hello(config: &BusConfig, expects: Option<OsdId>) -> Hello {
    Hello {
        version_min: config.version_min,
        version_max: config.version_max,
        cluster: config.identity.cluster,
        peer: config.identity.peer,
        incarnation: config.identity.incarnation,
        expects,
        features: 0,
        credit_ops: config.tuning.credit_ops,
        credit_bytes: config.tuning.credit_bytes,
    }
}

/// Checks the other side's hello. `dialled`: the OSD that this process dialled; `None` when the other side dialled.
///
/// # Errors
/// When the two ends cannot work together; [`GreetError::refuse`] makes the refusal for the other side.
pub fn judge(config: &BusConfig, hello: &Hello, dialled: Option<OsdId>) -> Result<Agreed, GreetError> {
    let Identity { cluster, peer: me, .. } = config.identity;
    if hello.cluster != cluster {
        return Err(GreetError::Cluster { ours: cluster, theirs: hello.cluster });
    }
    let version = hello.version_max.min(config.version_max);
    if version < hello.version_min.max(config.version_min) {
        let theirs = (hello.version_min, hello.version_max);
        return Err(GreetError::Version { ours: (config.version_min, config.version_max), theirs });
    }
    if let Some(expected) = hello.expects
        && me != Peer::Osd(expected)
    {
        return Err(GreetError::WrongPeer { expected, found: Who(me) });
    }
    match (dialled, me, hello.peer) {
        (Some(osd), _, there) if there != Peer::Osd(osd) => {
            return Err(GreetError::WrongPeer { expected: osd, found: Who(there) });
        }
        (None, Peer::Client(_), there) => return Err(GreetError::NoService(Who(there))),
        (_, Peer::Osd(ours), Peer::Osd(theirs)) if ours == theirs => return Err(GreetError::Own(ours)),
        (None, Peer::Osd(ours), Peer::Osd(theirs)) if theirs < ours => {
            return Err(GreetError::Direction { ours, theirs });
        }
        _ => {}
    }
    let (credit_ops, credit_bytes) = (hello.credit_ops, hello.credit_bytes);
    if credit_ops == 0 || credit_bytes < PART_MAX {
        return Err(GreetError::Credit { ops: credit_ops, bytes: credit_bytes });
    }
    Ok(Agreed { peer: hello.peer, incarnation: hello.incarnation, version, credit_ops, credit_bytes })
}
