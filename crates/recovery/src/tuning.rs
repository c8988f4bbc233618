//! Tunables of the streams and of repairs. None of them decides which bytes are correct.

use crate::query::ANSWER_MAX;
use std::time::Duration;
use types::BLOCK;
use types::config::{Check, ConfigFaults};
use types::limits::{FILL_DECISION_MAX, PART_MAX};

/// Tunables of all recovery.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoveryTuning {
    pub streams: StreamTuning,
    pub repair: RepairTuning,
    pub flatten: FlattenTuning,
}

/// Tunables of the streams (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTuning {
    /// Most streams that one OSD sends at once. Default 2; at least 1.
    pub senders_max: usize,
    /// Most streams that one OSD receives at once. Default 4, those of two leaders that send their most; at least 1.
    pub receivers_max: usize,
    /// The same limits for streams to followers without which their PGs commit nothing, and which count as soon as their logs have
    /// begun. A stream has up to 2 MiB in memory at its sender, and up to 14 MiB at its receiver. All to one OSD stay far below the
    /// queue of a connection. Default 16; at least 1.
    pub needed_max: usize,
    /// A follower about which raft has not asked for this long needs no stream. While it does, every lease acknowledgement
    /// asks. Default 100 ms; above the renewal interval.
    pub asked_max: Duration,
    /// Most bytes a second that one OSD sends in streams, but for those that a PG waits for. Bytes that are compared count a
    /// quarter. Streams begin at an eighth of it, and are slower while I/O waits for the device. Default 64 MiB; at least 64 KiB.
    pub bytes_per_s: u64,
    /// An answer that does not come within this time ends the stream. Default 10 s.
    pub answer_max: Duration,
    /// The same limit while the follower installs. Default 60 s.
    pub install_max: Duration,
    /// First pause after a stream that failed; doubled each time, up to `rest_max`. Default 200 ms and 30 s.
    pub rest_min: Duration,
    pub rest_max: Duration,
    /// Longest wait, at the end of a round, for the follower to have the entries that the round shows. Default 1 s.
    pub catch_up_max: Duration,
    /// Longest wait of a stream for blocks that are bad at the leader. Default 5 s.
    pub mend_max: Duration,
    /// Longest decision state, in bytes, at which a follower's log begins before its contents are whole (R16). Default and most 64 KiB.
    /// With 0 the contents always come first.
    pub fill_decision_max: usize,
}

impl Default for StreamTuning {
    fn default() -> StreamTuning {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        StreamTuning {
            senders_max: 2,
            receivers_max: 4,
            needed_max: 16,
            asked_max: ms(100),
            bytes_per_s: 64 << 20,
            answer_max: s(10),
            install_max: s(60),
            rest_min: ms(200),
            rest_max: s(30),
            catch_up_max: s(1),
            mend_max: s(5),
            fill_decision_max: FILL_DECISION_MAX,
        }
    }
}

impl StreamTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the streams");
        check.within("senders_max", self.senders_max, 1..=256);
        check.within("receivers_max", self.receivers_max, 1..=256);
        check.within("needed_max", self.needed_max, 1..=1024);
        check.within("fill_decision_max", self.fill_decision_max, 0..=FILL_DECISION_MAX);
        check.within("bytes_per_s", self.bytes_per_s, 64 << 10..=1 << 40);
        for (field, time) in [
            ("asked_max", self.asked_max),
            ("answer_max", self.answer_max),
            ("install_max", self.install_max),
            ("rest_min", self.rest_min),
            ("catch_up_max", self.catch_up_max),
            ("mend_max", self.mend_max),
        ] {
            check.within(field, time, ms(1)..=s(600));
        }
        check.ensure(self.rest_min <= self.rest_max, "rest_min is above rest_max");
        check.ensure(self.answer_max <= self.install_max, "answer_max is above install_max");
        check.end()
    }
}

/// Tunables of flattens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlattenTuning {
    /// Most bytes a second that one OSD copies. A flatten begins at an eighth of it, and is slower while I/O waits for the device. Default
    /// 32 MiB; at least 64 KiB.
    pub bytes_per_s: u64,
    /// A flatten that was not ordered again for this long stops. Default 15 s.
    pub patience: Duration,
}

impl Default for FlattenTuning {
    fn default() -> FlattenTuning {
        FlattenTuning { bytes_per_s: 32 << 20, patience: Duration::from_secs(15) }
    }
}

impl FlattenTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("flattens");
        check.within("bytes_per_s", self.bytes_per_s, 64 << 10..=1 << 40);
        check.within("patience", self.patience, Duration::from_millis(1)..=Duration::from_secs(600));
        check.end()
    }
}

/// Tunables of the repair of blocks (R15) and of payloads (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairTuning {
    /// Bad blocks of one OSD that are under repair. More are forgotten, and found again by the next read of them. Default 4,096; at
    /// least the blocks of one read, which would otherwise forget its own blocks without end.
    pub bad_blocks_max: usize,
    /// Queries for blocks on their way at once, with the copies that wait. Default 32; at least 1.
    pub block_queries_max: usize,
    /// Pause after an answer that brings no block: doubled each time, up to `block_pause_max`. Default 20 ms and 1 s.
    pub block_pause_min: Duration,
    pub block_pause_max: Duration,
    /// After this long with a full log, the replica whose bad block keeps it full fails. Default 5 s.
    pub full_max: Duration,
    /// Members behind the first one of the PG wait so much longer, each: of several with a full log the first fails alone, and
    /// the others hear that it has no part. Default 2 s; above a pause and the wait for an answer.
    pub full_turn: Duration,
    /// Payloads of one replica whose queries are on their way. Default 4; at least 1.
    pub payload_queries_max: usize,
    /// Interval of the reviews of all payloads that a replica lacks. Default 2 s.
    pub payload_review: Duration,
    /// Pause between two passes of queries about a payload that no member has, and that one may have later. Default 2 s.
    pub payload_again_min: Duration,
    /// The same for each payload that the replica lacks: endless queries must not cost more, the more payloads there are. Default
    /// 20 ms; zero: all passes pause alike.
    pub payload_again_each: Duration,
    /// How long an entry that a member has freed waits for the members that have not answered, while the PG has a leader: it goes
    /// on without this replica, and its records may know that those members are gone. Default 30 s.
    pub freed_wait: Duration,
}

impl Default for RepairTuning {
    fn default() -> RepairTuning {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        RepairTuning {
            bad_blocks_max: 4096,
            block_queries_max: 32,
            block_pause_min: ms(20),
            block_pause_max: s(1),
            full_max: s(5),
            full_turn: s(2),
            payload_queries_max: 4,
            payload_review: s(2),
            payload_again_min: s(2),
            payload_again_each: ms(20),
            freed_wait: s(30),
        }
    }
}

impl RepairTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the repairs");
        check.within("bad_blocks_max", self.bad_blocks_max, (PART_MAX / BLOCK) as usize..=1 << 20);
        check.within("block_queries_max", self.block_queries_max, 1..=1 << 10);
        check.within("payload_queries_max", self.payload_queries_max, 1..=1 << 10);
        for (field, time) in [
            ("block_pause_min", self.block_pause_min),
            ("block_pause_max", self.block_pause_max),
            ("full_max", self.full_max),
            ("full_turn", self.full_turn),
            ("payload_review", self.payload_review),
            ("payload_again_min", self.payload_again_min),
            ("freed_wait", self.freed_wait),
        ] {
            check.within(field, time, ms(1)..=s(600));
        }
        check.within("payload_again_each", self.payload_again_each, Duration::ZERO..=s(1));
        check.ensure(self.block_pause_min <= self.block_pause_max, "block_pause_min is above block_pause_max");
        check.ensure(
            self.full_turn > self.block_pause_max.saturating_add(ANSWER_MAX),
            "full_turn is not above block_pause_max and the wait for an answer: two members would fail for one block",
        );
        check.end()
    }
}
