//! Settings of a group at its creation: its OSD, the times of R3, and the limits of its queues.
//!
//! Invariant: [`Timing::validate`] accepts no times under which a lease outlasts a promise, or under which a healthy
//! leader is deposed.

use std::time::Duration;
use types::OsdId;
use types::config::{Check, ConfigFaults};
use types::limits::PART_MAX;

/// Settings of one group. Times are the pool's; every member of a PG must hold the same ones.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The OSD that holds this replica.
    pub osd: OsdId,
    /// Serve reads under a lease; off means read-index for every read (for hosts whose clocks stop).
    pub lease_reads: bool,
    pub timing: Timing,
    pub limits: GroupLimits,
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
            limits: GroupLimits::default(),
            uncommitted_payload_max: types::limits::INFLIGHT_PAYLOAD_MAX as u64,
        }
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("a group");
        check.part("timing", self.timing.validate());
        check.part("limits", self.limits.validate());
        check.within("uncommitted_payload_max", self.uncommitted_payload_max, PART_MAX..=u64::MAX);
        check.end()
    }
}

/// The times of R3. All members of a PG hold the same ones.
///
/// The defaults are those of a network within one site. Every time is above zero. The relations between the fields are
/// in [`Timing::validate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A follower votes for no other candidate within this time of its leader's last accepted renewal. Default 150 ms;
    /// at most 10 s.
    pub promise: Duration,
    /// Interval of the lease renewals of an OSD pair. Default 25 ms; at least 1 ms.
    pub renewal: Duration,
    /// One lease renewal in this many is full. Default 12; 1: each is.
    pub full_every: u32,
    /// An acknowledgement that renews nothing is sent once in this many renewals: often enough to be no sign of
    /// silence. Default 4; 1: each time.
    pub empty_ack_every: u32,
    /// Number of acknowledgements without progress of a streaming follower after which a message must have been lost.
    /// Default 4; at least 1.
    pub idle_acks_max: u32,
    /// Silence after which a follower campaigns: drawn from `election_min..=election_max`. Default 700 ms to 1,300 ms;
    /// at most 60 s.
    pub election_min: Duration,
    pub election_max: Duration,
    /// Pause before a failed or unanswered election attempt is repeated: drawn from `round_min..=round_max`. Default
    /// 30 ms to 90 ms.
    pub round_min: Duration,
    pub round_max: Duration,
    /// Number of attempts in a row with that pause. A group without quorum then campaigns at the pace of
    /// `election_min..=election_max`. Default 20; 0: it always does.
    pub fast_rounds_max: u32,
    /// After a closed connection the n-th voter waits n−1 of these beyond its promise. Default 25 ms; zero: all
    /// campaign at once.
    pub stagger: Duration,
    /// A leader that no majority has acknowledged for this long steps down. Default 1 s; at most 60 s.
    pub ack_max: Duration,
    /// Client I/O within this time keeps a PG in every lease renewal. Default 5 s; zero: only a follower that is behind
    /// does.
    pub active: Duration,
    /// A read-index query that is not answered is repeated after this time. Default 40 ms; at least 1 ms.
    pub read_retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        let ms = Duration::from_millis;
        Timing {
            promise: ms(150),
            renewal: ms(25),
            full_every: 12,
            empty_ack_every: 4,
            idle_acks_max: 4,
            election_min: ms(700),
            election_max: ms(1300),
            round_min: ms(30),
            round_max: ms(90),
            fast_rounds_max: 20,
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
    /// Checks the ranges of all times, and the relations that leases, promises and elections rest on (R3).
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the timing");
        check.within("promise", self.promise, ms(1)..=s(10));
        check.within("renewal", self.renewal, ms(1)..=s(10));
        check.within("full_every", self.full_every, 1..=1000);
        check.within("empty_ack_every", self.empty_ack_every, 1..=1000);
        check.within("idle_acks_max", self.idle_acks_max, 1..=1000);
        check.within("election_max", self.election_max, ms(1)..=s(60));
        check.within("round_min", self.round_min, ms(1)..=s(10));
        check.within("stagger", self.stagger, Duration::ZERO..=s(1));
        check.within("ack_max", self.ack_max, ms(1)..=s(60));
        check.within("active", self.active, Duration::ZERO..=s(3600));
        check.within("read_retry", self.read_retry, ms(1)..=s(10));
        let full = self.renewal.saturating_mul(self.full_every);
        check.ensure(self.lease() < self.promise, "the lease is not shorter than the promise");
        check.ensure(self.renewal < self.lease(), "renewal is not shorter than the lease: no lease would last");
        check.ensure(self.election_min <= self.election_max, "election_min is above election_max");
        check.ensure(self.election_min > self.promise, "election_min is not above promise");
        check.ensure(self.election_min > full, "election_min is not above renewal × full_every: idle PGs would elect");
        check.ensure(self.round_min <= self.round_max, "round_min is above round_max");
        check.ensure(self.round_max <= self.election_min, "round_max is above election_min");
        check.ensure(self.ack_max > self.promise, "ack_max is not above promise");
        check.ensure(self.ack_max > full, "ack_max is not above renewal × full_every: idle leaders would step down");
        check.end()
    }
}

/// The limits of one group's queues and memory, and the pace of moves for clients that do not reach the leader (ADR 0014).
///
/// They belong to one process: members of a PG may hold different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Most writes that wait for their proposal. Default 2,048; at least 1.
    pub queue_ops_max: usize,
    /// Most payload bytes of those writes. Default 32 MiB; at least one part.
    pub queue_bytes_max: u64,
    /// Most attach records and other orders of meta that wait for their proposal. Default 256; at least 1.
    pub queue_attaches_max: usize,
    /// Most entries of one proposal. Default and most [`consensus::MSG_ENTRIES_MAX`]; at least 1.
    pub propose_entries_max: usize,
    /// Most entries between the commit index and the end of the log. Default 16 Ki; at least 1.
    pub uncommitted_entries_max: u64,
    /// Most descriptors kept in memory, whatever the engine could still produce. Those that are not applied stay
    /// beyond it. Default 128 Ki; zero: none stays after its apply.
    pub resident_entries_max: usize,
    /// Most reads that wait or run. Default 4,096; at least 1.
    pub reads_max: usize,
    /// Most read-index queries without an answer. Default 16; at least 1.
    pub read_queries_max: usize,
    /// Interval of forwarded reports of an unreached leader, whatever the number of clients' reports. Default 50 ms;
    /// zero: each is forwarded.
    pub report_pause: Duration,
    /// Least time of leadership before a report moves the PG again. It is doubled with every move, so many times at
    /// most. Default 1 s and 6; a zero time: each report may move it.
    pub move_hold: Duration,
    pub move_hold_doublings: u32,
    /// Most time without a move after which earlier moves are forgotten. Default 300 s; at least `move_hold`.
    pub move_forget: Duration,
    /// Most entries that the new leader may lack: the transfer sends them before it may campaign. Default 1,024.
    pub move_lack_max: u64,
    /// Longest time for which a leader holds the changes of volumes for a cut. Default 100 ms; at least 1 ms.
    pub hold_max: Duration,
}

impl Default for GroupLimits {
    fn default() -> GroupLimits {
        GroupLimits {
            queue_ops_max: 2048,
            queue_bytes_max: 32 << 20,
            queue_attaches_max: 256,
            propose_entries_max: consensus::MSG_ENTRIES_MAX,
            uncommitted_entries_max: 16 << 10,
            resident_entries_max: 128 << 10,
            reads_max: 4096,
            read_queries_max: 16,
            report_pause: Duration::from_millis(50),
            move_hold: Duration::from_secs(1),
            move_hold_doublings: 6,
            move_forget: Duration::from_secs(300),
            move_lack_max: 1024,
            hold_max: Duration::from_millis(100),
        }
    }
}

impl GroupLimits {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("the limits of a group");
        check.within("queue_ops_max", self.queue_ops_max, 1..=1 << 20);
        check.within("queue_bytes_max", self.queue_bytes_max, PART_MAX..=1 << 40);
        check.within("queue_attaches_max", self.queue_attaches_max, 1..=1 << 20);
        check.within("propose_entries_max", self.propose_entries_max, 1..=consensus::MSG_ENTRIES_MAX);
        check.within("uncommitted_entries_max", self.uncommitted_entries_max, 1..=1 << 20);
        check.within("resident_entries_max", self.resident_entries_max, 0..=1 << 30);
        check.within("reads_max", self.reads_max, 1..=1 << 20);
        check.within("read_queries_max", self.read_queries_max, 1..=1 << 10);
        check.within("report_pause", self.report_pause, Duration::ZERO..=Duration::from_secs(60));
        check.within("move_hold", self.move_hold, Duration::ZERO..=Duration::from_secs(60));
        check.within("move_hold_doublings", self.move_hold_doublings, 0..=20);
        check.within("hold_max", self.hold_max, Duration::from_millis(1)..=Duration::from_secs(10));
        check.ensure(self.move_forget >= self.move_hold, "move_forget is below move_hold");
        check.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn timing_names_every_relation_that_is_broken() {
        let timing = Timing::default();
        timing.validate().expect("the defaults agree");
        let cases: [(Timing, &[&str]); 12] = [
            (Timing { promise: ms(0), ..timing }, &["promise is 0ns", "lease is not", "renewal is not"]),
            (Timing { promise: s(11), ..timing }, &["promise is 11s", "election_min is not above p", "ack_max is not"]),
            (Timing { renewal: ms(0), ..timing }, &["renewal is 0ns"]),
            (Timing { renewal: ms(76), ..timing }, &["renewal is not shorter", "above renewal ×"]),
            (Timing { full_every: 0, ..timing }, &["full_every is 0"]),
            (Timing { full_every: 28, ..timing }, &["election_min is not above renewal ×"]),
            (Timing { full_every: 40, ..timing }, &["election_min is not above renewal ×", "ack_max is not above ren"]),
            (Timing { election_min: ms(1301), ..timing }, &["election_min is above election_max"]),
            (Timing { election_min: ms(150), full_every: 1, ..timing }, &["election_min is not above promise"]),
            (Timing { round_min: ms(91), ..timing }, &["round_min is above round_max"]),
            (Timing { round_max: ms(701), ..timing }, &["round_max is above election_min"]),
            (Timing { ack_max: ms(150), full_every: 1, ..timing }, &["ack_max is not above promise"]),
        ];
        for (wrong, wants) in cases {
            let text = wrong.validate().expect_err(wants[0]).to_string();
            assert!(wants.iter().all(|want| text.contains(want)), "{wants:?} in {text}");
        }
    }

    #[test]
    fn limits_that_let_nothing_through_are_faults() {
        let limits = GroupLimits::default();
        limits.validate().expect("the defaults are in range");
        let config = GroupConfig::new(OsdId(1));
        config.validate().expect("the defaults are in range");
        let none = GroupLimits {
            queue_ops_max: 0,
            queue_bytes_max: PART_MAX - 1,
            queue_attaches_max: 0,
            propose_entries_max: consensus::MSG_ENTRIES_MAX + 1,
            uncommitted_entries_max: 0,
            reads_max: 0,
            read_queries_max: 0,
            move_forget: Duration::ZERO,
            ..limits
        };
        assert_eq!(none.validate().expect_err("eight faults").faults().len(), 8);
        let all = GroupConfig { limits: none, uncommitted_payload_max: 0, ..config };
        let faults = all.validate().expect_err("nine faults");
        assert_eq!(faults.faults().len(), 9);
        assert!(faults.faults()[0].starts_with("limits.queue_ops_max is 0"), "{faults}");
    }

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }
}
