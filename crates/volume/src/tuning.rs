//! Tunables of the client side: sizes that bound memory, and the times of its search for a leader (R3).
//!
//! Each client chooses its own values; none of them decides which bytes are correct.

use crate::limits::PARTS_MAX;
use std::time::Duration;
use types::config::{Check, ConfigFaults};
use types::limits::SESSION_WINDOW;

/// Tunables of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeTuning {
    /// Most requests in flight. Default 1,024; at least 1.
    pub requests_max: usize,
    /// Most bytes of writes and of answers to reads in flight. Default 128 MiB; at least one request.
    pub bytes_max: u64,
    /// Most parts of one PG that do not wait for space: a PG without quorum leaves parts for the others. Default 320;
    /// above the window of a session, and at most [`PARTS_MAX`].
    pub pg_parts_max: u32,
    /// Number of repetitions of a read that returns bytes with a wrong checksum. Default 4; at least 1.
    pub bad_reads_max: u8,
    /// A leader that sends nothing for this long is searched for elsewhere (R3). Default 400 ms.
    pub silent: Duration,
    /// Interval of the questions of a search (R3). Default 100 ms.
    pub probe: Duration,
    /// Pause between two reports of an unreached leader in one search, and the number of times that it is doubled at
    /// most. Default 100 ms and 5.
    pub report_pause: Duration,
    pub report_pause_doublings: u32,
    /// Longest wait of a search for the connection to the presumed leader before it asks others. Default 50 ms; zero:
    /// no wait.
    pub link_wait: Duration,
    /// First and last pause after "not here" and "not now"; doubled in between, and jittered. Default 10 ms and 100 ms.
    pub backoff_first: Duration,
    pub backoff_last: Duration,
    /// Below this many refusals in a row the pause is at most `backoff_short`, because an election takes no longer.
    /// Default 16 and 40 ms; 0: the pause grows at once.
    pub backoff_short_count: u32,
    pub backoff_short: Duration,
    /// Longest pause that a leader can ask for: a lying one stops a volume no longer than this. Default 1 s.
    pub throttle_max: Duration,
    /// Whether the I/O limits of the volume are held here, before leaders refuse what exceeds them. Default true; false: as a client of a
    /// version without limits.
    pub holds_limits: bool,
    /// Hints are followed at once, but at least this long after the one before. Default 20 ms; zero: always at once.
    pub hint_pause: Duration,
    /// A copy without an answer keeps a search from asking its OSD again for this long. Default 1 s.
    pub copy_stale: Duration,
    /// A part without an answer from a leader that answers others is sent again after this, doubled up to 8 times.
    /// Default 2 s.
    pub resend: Duration,
    /// Interval of the scans for such parts. Default 1 s.
    pub scan: Duration,
    /// A fence check goes to another PG after this, doubled up to 16 times. Default 500 ms; above `silent`, so that a PG
    /// whose leader died is no longer preferred.
    pub fence_check_patience: Duration,
    /// A PG that refused no write for lack of space for this long is not full any more. Default 10 s, as on the OSD's
    /// side.
    pub full_forget: Duration,
    /// Number of waiting writes that are tried when a write that waited for space has found some. Default 2; at least 1.
    pub full_wakes: usize,
    /// A PG whose requests no OSD executes for this long is unavailable. Default 5 s: an election takes 2 s at most.
    pub unavailable: Duration,
    /// A search this long asks meta whether members have changed; then again at this interval. Default 1 s.
    pub refresh: Duration,
    /// A question to meta without an answer is repeated after this. Default 5 s.
    pub ask_timeout: Duration,
    /// First and last pause after a refusal of meta. Default 50 ms and 2 s.
    pub ask_backoff_first: Duration,
    pub ask_backoff_last: Duration,
    /// First and last pause before meta is asked again for a segment whose PG has not committed the attach record. Default
    /// 10 ms and 250 ms.
    pub attach_pause_first: Duration,
    pub attach_pause_last: Duration,
}

impl Default for VolumeTuning {
    fn default() -> VolumeTuning {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        VolumeTuning {
            requests_max: 1024,
            bytes_max: 128 << 20,
            pg_parts_max: 320,
            bad_reads_max: 4,
            silent: ms(400),
            probe: ms(100),
            report_pause: ms(100),
            report_pause_doublings: 5,
            link_wait: ms(50),
            backoff_first: ms(10),
            backoff_last: ms(100),
            backoff_short_count: 16,
            backoff_short: ms(40),
            throttle_max: s(1),
            holds_limits: true,
            hint_pause: ms(20),
            copy_stale: s(1),
            resend: s(2),
            scan: s(1),
            fence_check_patience: ms(500),
            full_forget: s(10),
            full_wakes: 2,
            unavailable: s(5),
            refresh: s(1),
            ask_timeout: s(5),
            ask_backoff_first: ms(50),
            ask_backoff_last: s(2),
            attach_pause_first: ms(10),
            attach_pause_last: ms(250),
        }
    }
}

impl VolumeTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("a volume");
        check.within("requests_max", self.requests_max, 1..=1 << 16);
        check.within("bytes_max", self.bytes_max, device::REQUEST_LEN_MAX..=1 << 40);
        check.within("pg_parts_max", self.pg_parts_max, SESSION_WINDOW as u32 + 1..=PARTS_MAX as u32);
        check.within("bad_reads_max", self.bad_reads_max, 1..=100);
        check.within("report_pause_doublings", self.report_pause_doublings, 0..=20);
        check.within("full_wakes", self.full_wakes, 1..=PARTS_MAX);
        check.within("link_wait", self.link_wait, Duration::ZERO..=s(60));
        check.within("throttle_max", self.throttle_max, ms(10)..=s(60));
        check.within("hint_pause", self.hint_pause, Duration::ZERO..=s(60));
        for (field, time) in [
            ("silent", self.silent),
            ("probe", self.probe),
            ("report_pause", self.report_pause),
            ("backoff_first", self.backoff_first),
            ("copy_stale", self.copy_stale),
            ("resend", self.resend),
            ("scan", self.scan),
            ("fence_check_patience", self.fence_check_patience),
            ("full_forget", self.full_forget),
            ("unavailable", self.unavailable),
            ("refresh", self.refresh),
            ("ask_timeout", self.ask_timeout),
            ("ask_backoff_first", self.ask_backoff_first),
            ("attach_pause_first", self.attach_pause_first),
        ] {
            check.within(field, time, ms(1)..=s(600));
        }
        check.ensure(self.backoff_first <= self.backoff_short, "backoff_first is above backoff_short");
        check.ensure(self.backoff_short <= self.backoff_last, "backoff_short is above backoff_last");
        check.ensure(self.ask_backoff_first <= self.ask_backoff_last, "ask_backoff_first is above ask_backoff_last");
        check
            .ensure(self.attach_pause_first <= self.attach_pause_last, "attach_pause_first is above attach_pause_last");
        check.ensure(self.fence_check_patience > self.silent, "fence_check_patience is not above silent");
        check.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_names_every_fault() {
        let tuning = VolumeTuning::default();
        tuning.validate().expect("the defaults agree");
        let (ms, zero) = (Duration::from_millis, Duration::ZERO);
        let cases: [(VolumeTuning, &[&str]); 8] = [
            (VolumeTuning { requests_max: 0, bytes_max: 0, ..tuning }, &["requests_max is 0", "bytes_max is 0"]),
            (VolumeTuning { pg_parts_max: 256, ..tuning }, &["pg_parts_max is 256"]),
            (
                VolumeTuning { pg_parts_max: 4095, full_wakes: 0, ..tuning },
                &["pg_parts_max is 4095", "full_wakes is 0"],
            ),
            (
                VolumeTuning { probe: zero, resend: zero, scan: zero, ..tuning },
                &["probe is 0", "resend is 0", "scan is 0"],
            ),
            (VolumeTuning { backoff_first: ms(41), ..tuning }, &["backoff_first is above"]),
            (VolumeTuning { backoff_last: ms(39), ..tuning }, &["backoff_short is above"]),
            (VolumeTuning { attach_pause_last: ms(9), ..tuning }, &["attach_pause_first is above"]),
            (
                VolumeTuning { silent: ms(500), ask_backoff_last: ms(1), ..tuning },
                &["ask_backoff_first is above", "fence_check_patience is not above"],
            ),
        ];
        for (wrong, wants) in cases {
            let faults = wrong.validate().expect_err(wants[0]);
            assert_eq!(faults.faults().len(), wants.len(), "{faults}");
            assert!(wants.iter().all(|want| faults.to_string().contains(want)), "{wants:?} in {faults}");
        }
    }
}
