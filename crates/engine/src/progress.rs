//! Whether destaging gets anywhere: a log under pressure whose replicas stay where they are at home.
//!
//! [`Engine::look_at_progress`] comes in with every turn and looks once a second. While log or overlay are above the
//! level at which rounds begin, each replica with something above K has to advance it; one that does not for
//! [`STUCK_AFTER`] is named, with what stands in its way. Rounds and freed segments prove nothing: the log may copy the
//! same entries forward again and again.
//!
//! Invariant: it changes nothing. It is said once when it begins and once when it ends.

use crate::engine::Engine;
use crate::replica::Replica;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Index, ReplicaId, Time};

/// K of a replica that has something to destage stays for so long under pressure: that is no delay.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen of each replica that has something to destage.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    looked: Time,
    /// K, and since when it is that.
    seen: BTreeMap<ReplicaId, (Index, Time)>,
    stuck: Option<String>,
}

impl Engine {
    /// Why destaging makes no progress; `None`: it does, or nothing waits for it.
    pub fn destage_stuck(&self) -> Option<&str> {
        self.progress.stuck.as_deref()
    }

    pub(crate) fn look_at_progress(&mut self) {
        if self.now < self.progress.looked + LOOK_EVERY {
            return;
        }
        self.progress.looked = self.now;
        let pressure = self.pressure();
        let is_pressed = pressure.log.max(pressure.overlay) >= self.config.round_pressure.max(0.5);
        let waits = |r: &Replica| is_pressed && r.damage.is_none() && r.applied > r.checkpoint.0;
        let now = self.now;
        let mut seen = BTreeMap::new();
        for (id, r) in self.replicas.iter().filter(|(_, r)| waits(r)) {
            let before = self.progress.seen.get(id).filter(|(k, _)| *k == r.checkpoint.0);
            seen.insert(*id, before.copied().unwrap_or((r.checkpoint.0, now)));
        }
        let late = seen.iter().filter(|(_, (_, since))| now >= *since + STUCK_AFTER);
        let worst = late.max_by_key(|(id, _)| self.replicas[id].overlay.bytes());
        let stuck = worst.map(|(id, (k, _))| self.why_stuck(*id, *k));
        self.progress.seen = seen;
        match (&self.progress.stuck, &stuck) {
            (None, Some(reason)) => {
                let stats = self.stats();
                tracing::warn!(
                    reason,
                    rounds = stats.rounds,
                    copied_entries = stats.copied_entries,
                    log_segments_used = stats.segments_in_use,
                    log_segments = stats.segments,
                    "destaging makes no progress"
                );
            }
            (Some(_), None) => tracing::info!("destaging makes progress again"),
            _ => {}
        }
        self.progress.stuck = stuck;
    }

    fn why_stuck(&self, id: ReplicaId, k: Index) -> String {
        let r = &self.replicas[&id];
        let (pg, mib) = (r.identity.pg, r.overlay.bytes() >> 20);
        let why = if r.installing || self.installs.iter().any(|d| d.replica == id) {
            "the installation of a stream does not end"
        } else if self.needs_bad_block(id) {
            "a block that it needs cannot be read"
        } else if self.round_refused {
            "the device has no room for a destage round"
        } else if self.rounds_held {
            "streams hold destage rounds back"
        } else {
            "destage rounds leave it out"
        };
        format!("pg {pg} ({id}) stays at checkpoint {k} with {mib} MiB to destage: {why}")
    }
}
