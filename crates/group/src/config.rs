//! Settings of a group at its creation: its OSD, and the times of R3.

use std::time::Duration;
use types::OsdId;

/// Settings of one group. Times are the pool's; every member of a PG must hold the same ones.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The OSD that holds this replica.
    pub osd: OsdId,
    /// Serve reads under a lease; off means read-index for every read (for hosts whose clocks stop).
    pub lease_reads: bool,
    pub timing: Timing,
    /// R9: payload of proposed and not yet committed entries that this PG may hold in the log.
    pub uncommitted_payload_max: u64,
}

impl GroupConfig {
    /// Makes the defaults for a replica on `osd`.
    pub fn new(osd: OsdId) -> GroupConfig {
        GroupConfig {
            osd,
            lease_reads: true,
            timing: Timing::default(),
            uncommitted_payload_max: types::limits::INFLIGHT_PAYLOAD_MAX as u64,
        }
    }
}

/// The times of R3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A follower votes for no other candidate within this time of its leader's last accepted renewal.
    pub promise: Duration,
    /// Interval of the lease renewals of an OSD pair.
    pub renewal: Duration,
    /// One lease renewal in this many is full.
    pub full_every: u32,
    /// Silence after which a follower campaigns: drawn from `election_min..=election_max`.
    pub election_min: Duration,
    pub election_max: Duration,
    /// Pause before a failed or unanswered election attempt is repeated: drawn from `round_min..=round_max`.
    pub round_min: Duration,
    pub round_max: Duration,
    /// After a closed connection the n-th voter waits n−1 of these beyond its promise.
    pub stagger: Duration,
    /// A leader that no majority has acknowledged for this long steps down.
    pub ack_max: Duration,
    /// Client I/O within this time keeps a PG in every lease renewal.
    pub active: Duration,
    /// A read-index query that is not answered is repeated after this time.
    pub read_retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        let ms = Duration::from_millis;
        Timing {
            promise: ms(150),
            renewal: ms(25),
            full_every: 12,
            election_min: ms(700),
            election_max: ms(1300),
            round_min: ms(30),
            round_max: ms(90),
            stagger: ms(25),
            ack_max: ms(1000),
            active: ms(5000),
            read_retry: ms(40),
        }
    }
}

impl Timing {
    /// Returns the time for which a promise holds for its leader, counted from the send time that the follower acknowledges, when
    /// clocks run at rates within ±33 % of true time: `promise × (1 − ρ) / (1 + ρ)`.
    pub fn lease(&self) -> Duration {
        self.promise * 67 / 133
    }
}
