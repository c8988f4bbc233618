//! Detects that destaging makes no progress: a log under pressure, with replicas whose checkpoint index stays.
//!
//! [`Engine::look_at_progress`] is called every turn and looks once a second. While the log is above the level at which
//! rounds begin, each replica with entries above its checkpoint index must advance it. A replica that does not
//! for [`STUCK_AFTER`] is reported with the reason. Freed segments prove nothing: the log may copy the same entries
//! forward again and again.
//!
//! The checkpoint index moves only with the flip that ends a round, and on a slow device a round of all replicas takes
//! minutes. So the time counts from the last step of a running round that takes the replica, or that began before the
//! replica had data to destage. A replica that whole rounds leave out is reported although rounds run.
//!
//! Invariant: it changes no state of the store. It reports once when a stall begins and once when it ends.

use crate::engine::{Engine, State};
use crate::home::Home;
use crate::replica::Replica;
use crate::round::RoundStep;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Index, ReplicaId, Time};

/// Time after which an unmoved checkpoint index under pressure counts as a stall.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);
/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Last observation of a replica that has data to destage.
#[derive(Clone, Copy, Debug)]
struct Seen {
    k: Index,
    /// Time since which no round has moved the replica.
    since: Time,
    /// Rounds that had ended when this checkpoint index was first seen, or when the replica was last in a round.
    rounds: u64,
}

/// Progress of the running round: equal values at two moments mean that nothing moved. `None`: no round runs.
pub type RoundLeft = Option<[u64; 4]>;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    looked: Time,
    seen: BTreeMap<ReplicaId, Seen>,
    /// Number of rounds that have ended, and progress of the running one; `moved` is the time of their last change.
    round: (u64, RoundLeft),
    moved: Time,
    stuck: Option<String>,
}

impl Engine {
    /// Returns why destaging makes no progress; `None`: it does, or nothing waits for it.
    pub fn destage_stuck(&self) -> Option<&str> {
        // A poisoned store destages nothing, and reports that itself.
        self.destage.progress.stuck.as_deref().filter(|_| matches!(self.state, State::Running))
    }

    /// Returns what is left of the running round.
    pub fn round_left(&self) -> RoundLeft {
        let durable = self.log.as_ref().map_or(0, |log| log.durable_seq);
        Some(match &self.destage.round {
            RoundStep::Idle => return None,
            RoundStep::Completing { left, reading, .. } => [1, left.len() as u64, *reading as u64, 0],
            RoundStep::Marking { .. } => [2, durable, 0, 0],
            RoundStep::HandingOver { left, .. } => {
                [3, left.len() as u64, left.front().map_or(0, |(.., from)| u64::from(*from)), 0]
            }
            RoundStep::Home { .. } => {
                let [work, ready, ops] = self.home.as_ref().map_or([0; 3], Home::round_left);
                [4, work, ready, ops]
            }
            RoundStep::Recording { .. } => [5, durable, 0, 0],
        })
    }

    pub(crate) fn look_at_progress(&mut self) {
        if self.now < self.destage.progress.looked + LOOK_EVERY {
            return;
        }
        self.destage.progress.looked = self.now;
        let is_pressed = self.pressure().log >= self.config.round_pressure.max(0.5);
        let waits = |r: &Replica| is_pressed && r.destages() && r.applied > r.checkpoint.0;
        let (now, rounds) = (self.now, self.stats.rounds);
        let round = (rounds, self.round_left());
        if self.destage.progress.round != round {
            (self.destage.progress.round, self.destage.progress.moved) = (round, now);
        }
        let moved = self.destage.progress.moved;
        // A round that home has refused is tried again, and moves no checkpoint index.
        let moves = round.1.is_some() && now < moved + STUCK_AFTER && !self.destage.refused;
        let mut seen = BTreeMap::new();
        for (id, r) in self.replicas.iter().filter(|(_, r)| waits(r)) {
            let k = r.checkpoint.0;
            let before = self.destage.progress.seen.get(id).filter(|seen| seen.k == k);
            let mut this = before.copied().unwrap_or(Seen { k, since: now, rounds });
            let is_taken = self.destage.round.takes(*id);
            if moves && is_taken {
                this.rounds = rounds;
            }
            // Two rounds ended since: the later one began when the replica waited already, and left it out.
            if moves && rounds < this.rounds + 2 {
                this.since = this.since.max(moved);
            }
            seen.insert(*id, this);
        }
        let late = seen.iter().filter(|(_, seen)| now >= seen.since + STUCK_AFTER);
        let worst = late.max_by_key(|(id, _)| self.replicas[id].overlay.bytes());
        let stuck = worst.map(|(id, seen)| self.why_stuck(*id, seen.k));
        self.destage.progress.seen = seen;
        match (&self.destage.progress.stuck, &stuck) {
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
        self.destage.progress.stuck = stuck;
    }

    fn why_stuck(&self, id: ReplicaId, k: Index) -> String {
        let r = &self.replicas[&id];
        let (pg, mib) = (r.identity.pg, r.overlay.bytes() >> 20);
        let why = if self.needs_bad_block(id) {
            "a block that it needs cannot be read"
        } else if self.destage.refused {
            "the device has too little space for a destage round"
        } else if self.destage.round.takes(id) {
            "its destage round makes no progress"
        } else if self.destage.held {
            "backfills delay destage rounds"
        } else {
            "destage rounds do not include it"
        };
        format!("pg {pg} ({id}) stays at checkpoint {k} with {mib} MiB to destage: {why}")
    }
}
