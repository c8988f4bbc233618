//! Destaging between rounds: the running round, what has changed since the last one began, and how that one ended.
//!
//! `round` has the steps of a round, `merge` plans merges, `pacing`, `yielding` and `progress` watch. Here are the facts from which they decide when the
//! next round begins, and how much it takes.

use crate::merge::Merges;
use crate::pacing::Pacing;
use crate::progress::Progress;
use crate::round::RoundStep;
use crate::yielding::Yielding;
use std::time::Duration;
use types::{ReplicaId, Time};

/// Pause between two rounds: a level that no round lowers must not keep the device busy.
const GAP: Duration = Duration::from_millis(20);
/// Pause after a round that did not fit into home: only a cut, a destroyed replica or a smaller share helps.
const REFUSED_GAP: Duration = Duration::from_millis(100);

/// State of the destage controller.
pub(crate) struct Destage {
    pub round: RoundStep,
    pub merges: Merges,
    pub pacing: Pacing,
    pub yielding: Yielding,
    pub progress: Progress,
    /// Number of replicas that the next round takes: fewer than all after a round that did not fit.
    pub replicas_max: usize,
    /// The replica that the next round begins with.
    pub from: ReplicaId,
    /// The last round did not fit into home.
    pub refused: bool,
    /// The OSD's loop holds rounds back now, so none is due.
    pub held: bool,
    /// The OSD's loop has no space left to grant.
    pub space_wanted: bool,
    /// Something was applied since the last round began.
    pub k_lags: bool,
    /// Applied data or destroyed replicas may wait for a round.
    pub maybe_dirty: bool,
    /// A round of the dirty data may free space: it holds zeros, unmaps or destroyed replicas.
    pub releasing: bool,
    /// The same, of the data in the running round.
    pub round_releases: bool,
    /// Segments opened before this batch were filled before the last round began.
    pub horizon: u64,
    /// The newest segment when the last round began, and the number of rounds of no replica that have begun in it
    /// since.
    pub empty_rounds: (u64, u32),
    pub last_apply: Time,
    pub last_round: Time,
    /// End of the last round that was not one of merges alone.
    pub last_destage: Time,
}

impl Default for Destage {
    fn default() -> Destage {
        Destage {
            round: RoundStep::Idle,
            merges: Merges::default(),
            pacing: Pacing::default(),
            yielding: Yielding::default(),
            progress: Progress::default(),
            replicas_max: usize::MAX,
            from: ReplicaId(0),
            refused: false,
            held: false,
            space_wanted: false,
            k_lags: false,
            maybe_dirty: false,
            releasing: false,
            round_releases: false,
            horizon: 0,
            empty_rounds: (0, 0),
            last_apply: Time::ZERO,
            last_round: Time::ZERO,
            last_destage: Time::ZERO,
        }
    }
}

impl Destage {
    /// Starts with what a mount has found.
    pub fn mounted(&mut self, now: Time, dirty: bool) {
        (self.maybe_dirty, self.releasing) = (dirty, dirty);
        (self.last_round, self.last_destage) = (now, now);
    }

    /// Notes that an entry was applied, or a block repaired. `frees`: a round of it may free space.
    pub fn applied(&mut self, now: Time, frees: bool) {
        self.changed(frees);
        self.last_apply = now;
    }

    /// Notes that the next round has work. `frees`: it may free space.
    pub fn changed(&mut self, frees: bool) {
        self.maybe_dirty = true;
        self.releasing |= frees;
    }

    /// Notes that a round takes all that has changed by now.
    pub fn takes_all(&mut self) {
        (self.maybe_dirty, self.k_lags) = (false, false);
        self.round_releases = self.releasing;
        self.releasing &= self.replicas_max != usize::MAX;
    }

    /// Notes that home had no room for a round of `taken` replicas, `first` the lowest of them. `stuck`: nothing else can be dropped to make
    /// room.
    pub fn did_not_fit(&mut self, now: Time, taken: usize, first: Option<ReplicaId>, stuck: bool) {
        if taken <= 1 {
            self.from = first.map_or(ReplicaId(0), |id| ReplicaId(id.0 + 1));
        }
        (self.maybe_dirty, self.releasing, self.round_releases) = (true, true, false);
        self.replicas_max = (taken / 2).max(1);
        self.refused = stuck;
        (self.last_round, self.last_destage) = (now, now);
    }

    pub fn gap(&self) -> Duration {
        if self.refused { REFUSED_GAP } else { GAP }
    }

    /// Time since which nothing was applied and no round has destaged.
    pub fn idle_since(&self) -> Time {
        self.last_apply.max(self.last_destage)
    }
}
