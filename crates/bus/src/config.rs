//! Values of the bus's interface: the configuration of a [`crate::Bus`], its events, and its counters.

use std::fmt;
use std::time::Duration;
use types::config::{Check, ConfigFaults};
use types::limits::{CREDIT_BYTES_MAX, CREDIT_OPS_MAX, PART_MAX};
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
    /// Versions of the protocol that this process speaks.
    pub version_min: u16,
    pub version_max: u16,
    pub tuning: BusTuning,
}

/// Limits and times of a bus. Each process chooses its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusTuning {
    /// Most accepted connections, greeted or not. Dialled ones are bounded by the number of wanted OSDs. Default 4,096;
    /// 1 to 256 Ki.
    pub max_links: usize,
    /// Operations and payload bytes that each client may have in flight towards this process. Default and most
    /// [`CREDIT_OPS_MAX`] and [`CREDIT_BYTES_MAX`]; at least one operation and one part.
    pub credit_ops: u32,
    pub credit_bytes: u64,
    /// Most bytes (heads and payloads) and messages that wait for one link; one more closes it. Default
    /// [`QUEUE_BYTES_MAX`] and 64 Ki; at least the credit, so that every reply fits.
    pub queue_bytes_max: usize,
    pub queue_messages_max: usize,
    /// Longest time from the connection to the other side's hello. Default 2 s.
    pub hello_timeout: Duration,
    /// Longest time from the dial to the connection. Default 1 s.
    pub dial_timeout: Duration,
    /// Most dials to one OSD that the env has not answered yet, including those that were given up. Default 8; at
    /// least 1.
    pub dials_outstanding_max: u32,
    /// A link between OSDs is ended when no frame came for this long: each OSD sends one every renewal. A frame counts when
    /// it is complete. Default 3 s.
    pub osd_silence: Duration,
    /// Client side: when requests wait for their replies and no frame came for this long, the client pings the OSD, and again at
    /// this interval. Default 200 ms; below `client_silence`.
    pub ping_after: Duration,
    /// Client side: such a link is ended after `client_silence`. The limit doubles with every end of this kind, up to
    /// `client_silence_max`, because on a slow path one frame may take longer. Default 1 s and 10 s.
    pub client_silence: Duration,
    pub client_silence_max: Duration,
    /// The limit falls back after this long without a silence beyond `client_silence`. An OSD that stalls for two
    /// seconds every twenty would otherwise lose its link, and all requests in flight, each time. Default 120 s; zero:
    /// at once.
    pub client_silence_calm: Duration,
    /// Time that a refused peer has to read the refusal and to close. Default 500 ms.
    pub linger: Duration,
    /// Wait before a dial is repeated: doubles from `min` to `max`, shortened by up to half by the seed. Default 20 ms
    /// and 1 s; at least 1 ms.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

/// Most bytes that may wait for one link: every reply that a client's credit can ask for, with their heads.
pub const QUEUE_BYTES_MAX: usize = CREDIT_BYTES_MAX as usize + (16 << 20);

impl Default for BusTuning {
    fn default() -> BusTuning {
        BusTuning {
            max_links: 4096,
            credit_ops: CREDIT_OPS_MAX,
            credit_bytes: CREDIT_BYTES_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            queue_messages_max: 64 << 10,
            hello_timeout: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(1),
            dials_outstanding_max: 8,
            osd_silence: Duration::from_secs(3),
            ping_after: Duration::from_millis(200),
            client_silence: Duration::from_secs(1),
            client_silence_max: Duration::from_secs(10),
            client_silence_calm: Duration::from_secs(120),
            linger: Duration::from_millis(500),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
        }
    }
}

impl BusTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the bus");
        check.within("max_links", self.max_links, 1..=1 << 18);
        check.within("credit_ops", self.credit_ops, 1..=CREDIT_OPS_MAX);
        check.within("credit_bytes", self.credit_bytes, PART_MAX..=CREDIT_BYTES_MAX);
        check.within("dials_outstanding_max", self.dials_outstanding_max, 1..=1 << 10);
        for (field, time) in [
            ("hello_timeout", self.hello_timeout),
            ("dial_timeout", self.dial_timeout),
            ("osd_silence", self.osd_silence),
            ("ping_after", self.ping_after),
            ("client_silence", self.client_silence),
            ("backoff_min", self.backoff_min),
        ] {
            check.within(field, time, ms(1)..=s(600));
        }
        check.within("client_silence_calm", self.client_silence_calm, Duration::ZERO..=s(86_400));
        check.within("linger", self.linger, Duration::ZERO..=s(60));
        check.ensure(self.queue_bytes_max as u64 >= self.credit_bytes, "queue_bytes_max is below credit_bytes");
        check.ensure(
            self.queue_messages_max >= self.credit_ops as usize,
            "queue_messages_max is below credit_ops: a reply would close its link",
        );
        check.ensure(
            self.ping_after < self.client_silence,
            "ping_after is not below client_silence: no ping would help",
        );
        check.ensure(self.client_silence <= self.client_silence_max, "client_silence is above client_silence_max");
        check.ensure(self.backoff_min <= self.backoff_max, "backoff_min is above backoff_max");
        check.end()
    }
}

impl BusConfig {
    pub fn new(identity: Identity, owner: u8) -> BusConfig {
        let (version_min, version_max) = (wire::VERSION_MIN, wire::VERSION_MAX);
        BusConfig { identity, owner, version_min, version_max, tuning: BusTuning::default() }
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("the bus");
        check.ensure(self.version_min <= self.version_max, "version_min is above version_max");
        check.part("tuning", self.tuning.validate());
        check.end()
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
    /// Bytes of received blocks that were copied, because they came behind a header.
    pub copied_bytes: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_names_every_fault() {
        let tuning = BusTuning::default();
        tuning.validate().expect("the defaults agree");
        let zero = Duration::ZERO;
        let cases: [(BusTuning, &[&str]); 8] = [
            (BusTuning { max_links: 0, ..tuning }, &["max_links is 0"]),
            (BusTuning { credit_ops: 0, credit_bytes: 0, ..tuning }, &["credit_ops is 0", "credit_bytes is 0"]),
            (BusTuning { queue_bytes_max: 1, ..tuning }, &["queue_bytes_max is below"]),
            (BusTuning { queue_messages_max: 1, ..tuning }, &["queue_messages_max is below"]),
            (BusTuning { ping_after: zero, backoff_min: zero, ..tuning }, &["ping_after is 0ns", "backoff_min is 0ns"]),
            (BusTuning { ping_after: Duration::from_secs(1), ..tuning }, &["ping_after is not below"]),
            (BusTuning { client_silence_max: zero, ..tuning }, &["client_silence is above"]),
            (
                BusTuning { backoff_max: zero, dials_outstanding_max: 0, ..tuning },
                &["backoff_min is above", "dials_out"],
            ),
        ];
        for (wrong, wants) in cases {
            let faults = wrong.validate().expect_err(wants[0]);
            assert_eq!(faults.faults().len(), wants.len(), "{faults}");
            assert!(wants.iter().all(|want| faults.to_string().contains(want)), "{wants:?} in {faults}");
        }
        let identity = Identity { cluster: ClusterId([0; 16]), peer: Peer::Osd(OsdId(1)), incarnation: Incarnation(1) };
        let mut config = BusConfig::new(identity, 1);
        config.validate().expect("the defaults agree");
        (config.version_min, config.version_max, config.tuning.max_links) = (2, 1, 0);
        assert_eq!(config.validate().expect_err("two faults").faults().len(), 2);
    }
}
