//! Fill level of the device: near full or full, and the PGs that cannot accept writes because of it.
//!
//! The loop calls once a turn with the store's levels, and a leader with each write that found no space at a member.
//! Entering a level is one WARN line, leaving it one INFO line, with figures and the ways to free space.
//!
//! Invariant: levels have hysteresis, so that a device at a border does not fill the log.

use crate::node::Osd;
use crate::tuning::OsdTuning;
use std::collections::BTreeMap;
use types::{OsdId, PgId, Time};

/// Fill level of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    #[default]
    Fine,
    NearFull,
    Full,
}

/// The level of this device, and the PGs led here that could not accept a write.
#[derive(Debug, Default)]
pub(crate) struct Fullness {
    level: Level,
    /// (full, blocked) as the groups were last told.
    pub told: (bool, bool),
    /// PG → (full member, last refusal).
    stopped: BTreeMap<PgId, (OsdId, Time)>,
}

impl Fullness {
    pub fn level(&self) -> Level {
        self.level
    }
}

/// Returns the level that follows `before`.
fn next(before: Level, used: u64, capacity: u64, full: bool, tuning: &OsdTuning) -> Level {
    let border = if before == Level::Fine { tuning.near_full_pct } else { tuning.near_full_ends_pct };
    let near = capacity > 0 && u128::from(used) * 100 >= u128::from(capacity) * u128::from(border);
    match (full, near) {
        (true, _) => Level::Full,
        (false, true) => Level::NearFull,
        (false, false) => Level::Fine,
    }
}

impl Osd {
    /// Updates the level, once a turn, when the free space is known.
    pub(crate) fn look_at_fullness(&mut self) {
        let home = self.engine.home_stats();
        let used = home.capacity_bytes.saturating_sub(home.free_bytes);
        let full = home.full || self.space.is_full();
        let before = self.space.fullness.level;
        let level = next(before, used, home.capacity_bytes, full, &self.config.tuning);
        self.space.fullness.level = level;
        if level != Level::Fine {
            self.engine.drop_relics();
        }
        let (osd, capacity_bytes, free_bytes) = (self.config.osd, home.capacity_bytes, home.free_bytes);
        let used_pct = (used * 100).checked_div(capacity_bytes).unwrap_or(0);
        match level {
            _ if level == before => {}
            Level::Full => tracing::warn!(%osd, used_pct, free_bytes, capacity_bytes,
                "this OSD is full: its PGs accept no write that needs new space; overwrites, trims and deletes go on, and \
                 deletes and trims free space"),
            Level::NearFull if before == Level::Fine => tracing::warn!(%osd, used_pct, free_bytes, capacity_bytes,
                "this OSD is nearly full: delete or trim data, or add OSDs, which get their share of the replicas"),
            Level::NearFull => tracing::info!(%osd, used_pct, free_bytes, capacity_bytes,
                "this OSD is not full any more, and still nearly full"),
            Level::Fine => {
                tracing::info!(%osd, used_pct, free_bytes, capacity_bytes, "this OSD is not nearly full any more");
            }
        }
        let (now, quiet) = (self.now, self.config.tuning.full_quiet);
        self.space.fullness.stopped.retain(|pg, (full, at)| {
            let stays = now < *at + quiet;
            if !stays {
                let quiet_s = quiet.as_secs_f64();
                tracing::info!(%pg, %full, quiet_s, "no write of this PG was refused for lack of space lately");
            }
            stays
        });
    }

    /// Notes that a write of a PG led here found no space at `full`.
    pub(crate) fn write_found_full(&mut self, pg: PgId, full: OsdId) {
        if self.space.fullness.stopped.insert(pg, (full, self.now)).is_none() {
            tracing::warn!(%pg, "this PG cannot accept writes that need new space: {full} is full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_hysteresis_and_full_wins() {
        use Level::{Fine, Full, NearFull};
        let tuning = OsdTuning::default();
        for (before, used, full, want) in [
            (Fine, 84, false, Fine),
            (Fine, 85, false, NearFull),
            (NearFull, 80, false, NearFull),
            (NearFull, 79, false, Fine),
            (Fine, 10, true, Full),
            (Full, 82, false, NearFull),
            (Full, 50, false, Fine),
        ] {
            assert_eq!(next(before, used, 100, full, &tuning), want, "{before:?} at {used}");
        }
        assert_eq!(next(Fine, 0, 0, false, &tuning), Fine, "nothing is known before the mount");
    }
}
