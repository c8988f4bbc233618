//! The values at the door of the room: how a [`crate::Bus`] is set up, what it says, what it counts.

use std::fmt;
use std::time::Duration;
use types::limits::{CREDIT_BYTES_MAX, CREDIT_OPS_MAX};
use types::{ClusterId, Incarnation, OsdId};
use wire::{Message, Peer};

/// One established, greeted connection. Grows with every connection of this bus; never reused.
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

/// Who this process is, as its hellos say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub peer: Peer,
    pub incarnation: Incarnation,
}

/// How a bus behaves. [`BusConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct BusConfig {
    pub identity: Identity,
    /// `Token::room` of all operations of this bus.
    pub room: u8,
    /// Most accepted connections, greeted or not. Dialled ones are bounded by the OSDs that are wanted.
    pub max_links: usize,
    /// Versions of the protocol that this process speaks.
    pub version_min: u16,
    pub version_max: u16,
    /// What each client may have in flight towards us.
    pub credit_ops: u32,
    pub credit_bytes: u64,
    /// Most bytes (heads and payloads) and messages that wait for one link; one more closes it.
    pub queue_bytes_max: usize,
    pub queue_messages_max: usize,
    /// From the connection to the other side's hello.
    pub hello_timeout: Duration,
    /// From the dial to the connection.
    pub dial_timeout: Duration,
    /// A link between OSDs on which no frame came for so long is ended: each sends one every renewal. Frames that
    /// take longer to arrive count as none.
    pub osd_silence: Duration,
    /// Client side: a link on which requests wait for their replies and no frame came for so long is asked for a sign of
    /// life, and again at this interval.
    pub ping_after: Duration,
    /// Client side: such a link is ended after `client_silence`. The limit doubles with every end of this kind, up to
    /// `client_silence_max`: on a slow path one frame may take longer. It falls back after two minutes without a silence
    /// beyond `client_silence`.
    pub client_silence: Duration,
    pub client_silence_max: Duration,
    /// How long a refused peer has to read why and to close.
    pub linger: Duration,
    /// Wait before a dial is repeated: doubles from `min` to `max`, shortened by up to half by the seed.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

/// Bytes that may wait for one link: every reply that a client's credit can ask for, with their heads.
pub const QUEUE_BYTES_MAX: usize = CREDIT_BYTES_MAX as usize + (16 << 20);
/// Messages that may wait for one link.
const QUEUE_MESSAGES_MAX: usize = 64 << 10;

const _: () = assert!(QUEUE_MESSAGES_MAX >= CREDIT_OPS_MAX as usize);

impl BusConfig {
    pub fn new(identity: Identity, room: u8) -> BusConfig {
        BusConfig {
            identity,
            room,
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

/// What a bus tells its loop.
#[derive(Clone, Debug, PartialEq)]
pub enum BusEvent {
    Up {
        link: LinkId,
        peer: Peer,
        incarnation: Incarnation,
    },
    /// The link is gone; what was queued or in flight on it is lost.
    Down {
        link: LinkId,
        peer: Peer,
        reason: String,
    },
    Message {
        link: LinkId,
        message: Message,
    },
    /// A dial failed, was not answered in time, or was refused. It is repeated while the OSD is wanted.
    Unreachable {
        osd: OsdId,
        reason: String,
    },
}

/// Counted since the bus was made.
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
    /// Peers that were refused, by a frame or for want of room.
    pub refused: u64,
    /// Connections closed because of what the peer sent.
    pub bad_peers: u64,
}
