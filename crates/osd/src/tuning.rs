//! Tunables of an OSD's background work: heartbeats, space grants, streams, repairs, digests, the planned stop.
//!
//! Each process chooses its own values; none of them decides which bytes are correct. Formats, bounds against hostile
//! peers, and windows that two processes share are constants beside their code.

use crate::space::PART_AUS;
use bus::BusTuning;
use group::{GroupLimits, Timing};
use recovery::{FlattenTuning, RecoveryTuning, RepairTuning, StreamTuning};
use std::time::Duration;
use types::config::{Check, ConfigFaults};

/// Tunables of one OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsdTuning {
    /// Longest wait after the mount for a confirmation of meta that the device is the current one (R17, ADR 0012). With
    /// no meta in reach the OSD then goes on by itself. Default 10 s; zero: no wait.
    pub let_in_wait: Duration,
    /// Wait of a new process for the one that meta believes alive: longer than meta takes to declare that one down, and
    /// than the carrier's pause between two streams. Default 12 s.
    pub rival_wait: Duration,
    /// Interval of the heartbeats to meta. Default 1 s; 1 ms to 5 s, because meta takes a silent OSD for down.
    pub heartbeat: Duration,
    /// Pause after a report of a PG whose followers are behind: most have caught up a moment later, as after an election.
    /// Default 150 ms; at most `heartbeat`.
    pub heartbeat_recovering: Duration,
    /// Longest wait of a planned stop for the successors. Default 500 ms; zero: no wait.
    pub stop_max: Duration,
    /// Least payload that a PG may hold uncommitted (R9), however many share the log. Default and least 1 MiB, because
    /// OSDs tell each other their shares in MiB; at most the payload in flight to one follower.
    pub uncommitted_min: u64,
    /// Most polls of touched groups in one turn: a group with more to do waits for the next turn. Default 16; at
    /// least 1.
    pub settle_rounds_max: usize,
    /// Percentage of used space at which a device becomes near full, and below which it no longer is. Default 85 and 80;
    /// at most 100.
    pub near_full_pct: u64,
    pub near_full_ends_pct: u64,
    /// Time without a write that found a member full, after which the PG is no longer reported as one that accepts no
    /// writes. Default 10 s.
    pub full_quiet: Duration,
    /// For so long the contents of a replica that has moved away stay, unless the device is nearly full: a replica of the
    /// PG that comes back is sent only what has changed. Default 1 h; 0 to 7 days.
    pub removed_kept: Duration,
    /// Chunks whose digests are read at once: 16 MiB of memory each. Default 2; at least 1.
    pub digests_max: usize,
    /// Most questions for a digest that wait for their index, and the longest wait. Default 16 and 5 s.
    pub digests_waiting_max: usize,
    pub digest_wait_max: Duration,
    /// Limits of each group, and of the connections.
    pub group: GroupLimits,
    pub bus: BusTuning,
    pub space: SpaceTuning,
    pub streams: StreamTuning,
    pub repair: RepairTuning,
    pub flatten: FlattenTuning,
}

impl Default for OsdTuning {
    fn default() -> OsdTuning {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        OsdTuning {
            let_in_wait: s(10),
            rival_wait: s(12),
            heartbeat: s(1),
            heartbeat_recovering: ms(150),
            stop_max: ms(500),
            uncommitted_min: 1 << 20,
            settle_rounds_max: 16,
            near_full_pct: 85,
            near_full_ends_pct: 80,
            full_quiet: s(10),
            removed_kept: s(3600),
            digests_max: 2,
            digests_waiting_max: 16,
            digest_wait_max: s(5),
            group: GroupLimits::default(),
            bus: BusTuning::default(),
            space: SpaceTuning::default(),
            streams: StreamTuning::default(),
            repair: RepairTuning::default(),
            flatten: FlattenTuning::default(),
        }
    }
}

impl OsdTuning {
    /// Returns how many digests run at once at most, and how many wait.
    pub(crate) fn digests(&self) -> (usize, usize) {
        (self.digests_max, self.digests_waiting_max)
    }

    pub(crate) fn recovery(&self) -> RecoveryTuning {
        RecoveryTuning { streams: self.streams, repair: self.repair, flatten: self.flatten }
    }

    /// Checks all fields, and their relations to the times of the PGs.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self, timing: &Timing) -> Result<(), ConfigFaults> {
        let (ms, s, zero) = (Duration::from_millis, Duration::from_secs, Duration::ZERO);
        let in_flight = types::limits::INFLIGHT_PAYLOAD_MAX as u64;
        let mut check = Check::new("an OSD's background work");
        check.within("let_in_wait", self.let_in_wait, zero..=s(3600));
        check.within("rival_wait", self.rival_wait, zero..=s(3600));
        check.within("heartbeat", self.heartbeat, ms(1)..=s(5));
        check.within("heartbeat_recovering", self.heartbeat_recovering, ms(1)..=s(5));
        check.within("stop_max", self.stop_max, zero..=s(60));
        check.within("uncommitted_min", self.uncommitted_min, 1 << 20..=in_flight);
        check.within("settle_rounds_max", self.settle_rounds_max, 1..=1 << 10);
        check.within("near_full_pct", self.near_full_pct, 1..=100);
        check.within("full_quiet", self.full_quiet, zero..=s(3600));
        check.within("removed_kept", self.removed_kept, zero..=s(7 * 24 * 3600));
        check.within("digests_max", self.digests_max, 1..=64);
        check.within("digests_waiting_max", self.digests_waiting_max, 1..=1 << 10);
        check.within("digest_wait_max", self.digest_wait_max, zero..=s(60));
        check.ensure(self.heartbeat_recovering <= self.heartbeat, "heartbeat_recovering is above heartbeat");
        check.ensure(self.near_full_ends_pct <= self.near_full_pct, "near_full_ends_pct is above near_full_pct");
        check.part("group", self.group.validate());
        check.part("bus", self.bus.validate());
        check.part("space", self.space.validate());
        check.part("streams", self.streams.validate());
        check.part("repair", self.repair.validate());
        check.part("flatten", self.flatten.validate());
        let (renewal, empty_ack) = (timing.renewal, timing.renewal.saturating_mul(timing.empty_ack_every));
        check.ensure(
            self.space.silent > empty_ack,
            "space.silent is not above renewal × empty_ack_every: every idle member would count as silent",
        );
        check.ensure(self.streams.asked_max > renewal, "streams.asked_max is not above renewal: no stream would begin");
        check.ensure(self.bus.osd_silence > renewal, "bus.osd_silence is not above renewal: every link would end");
        check.end()
    }
}

/// Tunables of the space grants (R13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceTuning {
    /// Most AUs of a member's grants that one leader holds unspent: bounds the writes of one renewal period. Default
    /// 1,024; at least one write part's worth.
    pub grant_aus_max: u64,
    /// A member that has acknowledged no renewal for this long is treated as one without a connection. Default 400 ms.
    pub silent: Duration,
    /// Time without a use after which a leader returns its grants. Default 1 s; at least 500 ms.
    pub idle: Duration,
    /// Longest wait of a device that is short of space for space that is being freed, before it reports that it is full.
    /// Default 2 s; zero: no wait.
    pub release_max: Duration,
}

impl Default for SpaceTuning {
    fn default() -> SpaceTuning {
        SpaceTuning {
            grant_aus_max: 1024,
            silent: Duration::from_millis(400),
            idle: Duration::from_secs(1),
            release_max: Duration::from_secs(2),
        }
    }
}

impl SpaceTuning {
    fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the space grants");
        check.within("grant_aus_max", self.grant_aus_max, PART_AUS..=1 << 24);
        check.within("silent", self.silent, ms(1)..=s(60));
        // A refused write comes again after its client's pause, and must find what was granted for it meanwhile.
        check.within("idle", self.idle, ms(500)..=s(3600));
        check.within("release_max", self.release_max, Duration::ZERO..=s(600));
        check.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_names_every_fault_of_its_parts() {
        let tuning = OsdTuning::default();
        let timing = Timing::default();
        tuning.validate(&timing).expect("the defaults agree");
        let (ms, zero) = (Duration::from_millis, Duration::ZERO);
        let (space, streams, repair) = (tuning.space, tuning.streams, tuning.repair);
        let cases: [(OsdTuning, &[&str]); 9] = [
            (OsdTuning { heartbeat: Duration::from_secs(6), ..tuning }, &["heartbeat is 6s"]),
            (OsdTuning { heartbeat: ms(100), ..tuning }, &["heartbeat_recovering is above"]),
            (
                OsdTuning { uncommitted_min: 1, settle_rounds_max: 0, ..tuning },
                &["uncommitted_min is 1", "settle_rounds_max"],
            ),
            (OsdTuning { near_full_pct: 101, ..tuning }, &["near_full_pct is 101"]),
            (OsdTuning { near_full_pct: 79, ..tuning }, &["near_full_ends_pct is above"]),
            (
                OsdTuning { digests_max: 0, digests_waiting_max: 0, ..tuning },
                &["digests_max is 0", "digests_waiting_max"],
            ),
            (
                OsdTuning { space: SpaceTuning { grant_aus_max: PART_AUS - 1, silent: zero, ..space }, ..tuning },
                &["space.grant_aus_max is 7", "space.silent is 0ns", "every idle member"],
            ),
            (
                OsdTuning {
                    streams: StreamTuning {
                        senders_max: 0,
                        catch_up_max: zero,
                        rest_max: zero,
                        install_max: ms(1),
                        ..streams
                    },
                    ..tuning
                },
                &["streams.senders_max is 0", "streams.catch_up_max is 0", "rest_min is above", "answer_max is above"],
            ),
            (
                OsdTuning {
                    repair: RepairTuning { bad_blocks_max: 0, full_turn: ms(1500), freed_wait: zero, ..repair },
                    ..tuning
                },
                &["repair.bad_blocks_max is 0", "repair.freed_wait is 0", "full_turn is not above"],
            ),
        ];
        for (wrong, wants) in cases {
            let faults = wrong.validate(&timing).expect_err(wants[0]);
            assert_eq!(faults.faults().len(), wants.len(), "{faults}");
            assert!(wants.iter().all(|want| faults.to_string().contains(want)), "{wants:?} in {faults}");
        }
        let slow = Timing { renewal: ms(101), ..timing };
        let faults = tuning.validate(&slow).expect_err("no stream would begin, and idle members would seem silent");
        assert_eq!(faults.faults().len(), 2, "{faults}");
    }
}
