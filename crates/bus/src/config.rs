//! Values of the bus's interface: the configuration of a [`crate::Bus`], its events, and its counters.

use std::fmt;
use std::time::Duration;
use types::limits::{CREDIT_BYTES_MAX, CREDIT_OPS_MAX};
use types::{ClusterId, Incarnation, OsdId};
use wire::{Message, Peer};

/// One established, greeted connection. Ids grow with every connection of this bus and are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link{}", self.0)
    }
}

impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identity of this process in its hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub peer: Peer,
    pub incarnation: Incarnation,
}

/// Settings of a bus. [`BusConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct BusConfig {
    pub identity: Identity,
    /// `Token::owner` of all operations of this bus.
    pub owner: u8,
    /// Most accepted connections, greeted or not. Dialled ones are bounded by the number of wanted OSDs.
    pub max_links: usize,
    /// Versions of the protocol that this process speaks.
    pub version_min: u16,
    pub version_max: u16,
    /// Operations and payload bytes that each client may have in flight towards this process.
    pub credit_ops: u32,
    pub credit_bytes: u64,
    /// Most bytes (heads and payloads) and messages that wait for one link; one more closes it.
    pub queue_bytes_max: usize,
    pub queue_messages_max: usize,
    /// Longest time from the connection to the other side's hello.
    pub hello_timeout: Duration,
    /// Longest time from the dial to the connection.
    pub dial_timeout: Duration,
    /// A link between OSDs is ended when no frame came for this long: each OSD sends one every renewal. A frame counts when
    /// it is complete.
    pub osd_silence: Duration,
    /// Client side: when requests wait for their replies and no frame came for this long, the client pings the OSD, and again at
    /// this interval.
    pub ping_after: Duration,
    /// Client side: such a link is ended after `client_silence`. The limit doubles with every end of this kind, up to
    /// `client_silence_max`, because on a slow path one frame may take longer. It falls back after two minutes without a silence
    /// beyond `client_silence`.
    pub client_silence: Duration,
    pub client_silence_max: Duration,
    /// Time that a refused peer has to read the refusal and to close.
    pub linger: Duration,
    /// Wait before a dial is repeated: doubles from `min` to `max`, shortened by up to half by the seed.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

/// Most bytes that may wait for one link: every reply that a client's credit can ask for, with their heads.
pub const QUEUE_BYTES_MAX: usize = CREDIT_BYTES_MAX as usize + (16 << 20);
/// Most messages that may wait for one link.
const QUEUE_MESSAGES_MAX: usize = 64 << 10;

const _: () = assert!(QUEUE_MESSAGES_MAX >= CREDIT_OPS_MAX as usize);

impl BusConfig {
    pub fn new(identity: Identity, owner: u8) -> BusConfig {
        BusConfig {
            identity,
            owner,
            max_links: 4096,
            version_min: wire::VERSION_MIN,
            version_max: wire::VERSION_MAX,
            credit_ops: CREDIT_OPS_MAX,
            credit_bytes: CREDIT_BYTES_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            queue_messages_max: QUEUE_MESSAGES_MAX,
            hello_timeout: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(1),
            osd_silence: Duration::from_secs(3),
            ping_after: Duration::from_millis(200),
            client_silence: Duration::from_secs(1),
            client_silence_max: Duration::from_secs(10),
            linger: Duration::from_millis(500),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
        }
    }
}

/// Event of a bus for its loop.
#[derive(Clone, Debug, PartialEq)]
pub enum BusEvent {
    Up {
        link: LinkId,
        peer: Peer,
        incarnation: Incarnation,
    },
    /// The link is gone; messages that were queued or in flight on it are lost.
    Down {
        link: LinkId,
        peer: Peer,
        reason: String,
    },
    Message {
        link: LinkId,
        message: Message,
    },
    /// A dial failed, was not answered in time, or was refused. The bus repeats it while the OSD is wanted.
    Unreachable {
        osd: OsdId,
        reason: String,
    },
}

/// Counts since the bus was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusStats {
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub frames_in: u64,
    pub frames_out: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    pub dials: u64,
    pub links_up: u64,
    pub links_down: u64,
    /// Peers that were refused, by a frame or because all connections were taken.
    pub refused: u64,
    /// Connections closed because of what the peer sent.
    pub bad_peers: u64,
}
