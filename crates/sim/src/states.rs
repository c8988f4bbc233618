//! State of each PG when a fault struck: the other half of what a run has covered.

use crate::cluster::Cluster;
use std::collections::BTreeMap;
use types::PgId;

/// State of a PG as its replicas report it, the worst that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PgState {
    /// No replica leads.
    Leaderless,
    /// A leader exists and does not serve yet.
    Opening,
    /// A replica never serves again: damage.
    Quarantined,
    /// A follower is brought up to date by a stream.
    Recovering,
    /// A follower is not heard.
    Silent,
    /// A follower lags.
    Behind,
    /// All replicas have all entries.
    Whole,
}

impl PgState {
    pub const ALL: [PgState; 7] = [
        PgState::Whole,
        PgState::Behind,
        PgState::Silent,
        PgState::Recovering,
        PgState::Opening,
        PgState::Leaderless,
        PgState::Quarantined,
    ];
}

/// Returns the state of every PG that a running OSD reports.
pub fn all(cluster: &Cluster) -> BTreeMap<PgId, PgState> {
    let mut states: BTreeMap<PgId, PgState> = BTreeMap::new();
    for (_, osd) in cluster.running() {
        for (pg, _) in osd.quarantined() {
            states.insert(pg, PgState::Quarantined);
        }
        for report in osd.reports_for_tools() {
            let state = match report.leading {
                None => PgState::Leaderless,
                Some(l) if !l.active => PgState::Opening,
                Some(l) if l.recovering => PgState::Recovering,
                Some(l) if l.followers_silent > 0 => PgState::Silent,
                Some(l) if l.followers_behind > 0 => PgState::Behind,
                Some(_) => PgState::Whole,
            };
            let held = states.entry(report.pg).or_insert(state);
            // A leader knows more than a follower; a quarantine is never overwritten.
            if *held == PgState::Leaderless {
                *held = state;
            }
        }
    }
    states
}
