//! Measurements of an OSD: its counters, its requests by pool and volume, and the sampled writes.
//!
//! Invariant: no measurement changes what the OSD does.

use crate::counting::Counting;
use crate::metrics::OsdMetrics;
use crate::traced::Traced;
use env::Env;
use telemetry::Registry;

/// All measurements of one OSD.
pub(crate) struct Stats {
    pub metrics: OsdMetrics,
    pub counting: Counting,
    pub traced: Traced,
}

impl Stats {
    pub fn new(registry: &Registry) -> Stats {
        Stats { metrics: OsdMetrics::new(registry), counting: Counting::new(registry), traced: Traced::default() }
    }

    /// Counts the replies that leave with this turn. The clock is read only when there are any.
    pub fn end_turn(&mut self, env: &mut dyn Env) {
        if self.counting.has_replies() {
            self.counting.end_turn(env.now(), &self.metrics);
        }
    }
}
