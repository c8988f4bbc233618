//! Measurements of an OSD: its counters, its requests by pool and volume, and the sampled operations.
//!
//! Invariant: no measurement changes what the OSD does.

use crate::counting::Counting;
use crate::metrics::OsdMetrics;
use crate::traced::Traced;
use telemetry::Registry;
use types::Time;

/// All measurements of one OSD.
pub(crate) struct Stats {
    pub metrics: OsdMetrics,
    pub counting: Counting,
    pub traced: Traced,
    /// Sum of all turns so far.
    pub kernel_entries: u64,
}

impl Stats {
    pub fn new(registry: &Registry) -> Stats {
        let (metrics, counting, traced) = (OsdMetrics::new(registry), Counting::new(registry), Traced::new(registry));
        Stats { metrics, counting, traced, kernel_entries: 0 }
    }

    /// Counts the turn that began at `began`, and the replies that leave with it.
    pub fn end_turn(&mut self, began: Time, now: Time) {
        telemetry::observe(&self.metrics.turn_seconds, now.since(began));
        self.traced.end_turn(now);
        if self.counting.has_replies() {
            self.counting.end_turn(now, &self.metrics);
        }
    }
}
