//! Rates, computed from totals that OSDs report.

use std::collections::VecDeque;
use types::Time;
use types::control::{IoTotals, RecoveryTotals};

/// Most reports that are kept: about six seconds.
const SAMPLES: usize = 6;

/// The last reports of one OSD.
#[derive(Default)]
pub(super) struct Flow {
    samples: VecDeque<(Time, IoTotals, u64)>,
    pub left_bytes: u64,
    pub streams: u32,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub io: IoTotals,
    pub recovered_bytes: u64,
}

impl Flow {
    pub fn take(&mut self, now: Time, io: IoTotals, recovery: RecoveryTotals) {
        self.left_bytes = recovery.left_bytes;
        self.streams = recovery.streams;
        let newest = self.samples.back();
        let began_again = newest.is_some_and(|(_, last, done)| io.reads < last.reads || recovery.done_bytes < *done);
        if began_again {
            self.samples.clear();
        }
        // Reports that follow each other at once would make an empty window.
        if self.samples.back().is_none_or(|(at, ..)| now.since(*at).as_millis() >= 500) {
            self.samples.push_back((now, io, recovery.done_bytes));
        }
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    pub fn rates(&self) -> Rates {
        let (Some((from, old, _)), Some((to, new, _))) = (self.samples.front(), self.samples.back()) else {
            return Rates::default();
        };
        let millis = to.since(*from).as_millis();
        let rate = |before: u64, after: u64| {
            let grown = u128::from(after.saturating_sub(before)) * 1000;
            u64::try_from(grown.checked_div(millis).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let io = IoTotals {
            reads: rate(old.reads, new.reads),
            read_bytes: rate(old.read_bytes, new.read_bytes),
            writes: rate(old.writes, new.writes),
            write_bytes: rate(old.write_bytes, new.write_bytes),
        };
        Rates { io, recovered_bytes: self.recovery_rate() }
    }

    /// Returns the rate over the last samples in which bytes were sent: samples before a stream began say nothing
    /// about its rate.
    fn recovery_rate(&self) -> u64 {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1)).rev();
        let grows = pairs.take_while(|((_, _, before), (_, _, after))| after > before);
        let (bytes, millis) = grows.fold((0u128, 0u128), |(bytes, millis), ((from, _, before), (to, _, after))| {
            (bytes + u128::from(after - before), millis + to.since(*from).as_millis())
        });
        u64::try_from((bytes * 1000).checked_div(millis).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}
