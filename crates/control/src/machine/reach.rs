//! Reachability that a single report does not show. An OSD may not reach meta while its PGs serve, and a path between a client
//! and an OSD may be broken while both reach meta.
//!
//! Invariant: a PG may count as served by a leader that meta does not hear. It does so only while a majority of its members,
//! the leader among them, agrees on that leader in one term.

use super::Control;
use crate::records::{Holder, PgRecord, SegmentRecord};
use std::collections::BTreeSet;
use types::control::UNREACHED_MAX;
use types::{OsdId, PgId, Time, VolumeId};

impl Control {
    /// Returns the leader that meta does not hear and enough followers do, with the number of those followers.
    pub(super) fn pg_serves(&self, now: Time, pg: &PgRecord) -> Option<(OsdId, usize)> {
        let heard = |m: types::map::Member| self.is_up(now, m.osd).then(|| self.reports.get(&m.replica)).flatten();
        let reports = || pg.everyone().filter_map(heard);
        let term = reports().map(|r| r.term).max()?;
        let leader = reports().filter(|r| r.term == term).find_map(|r| r.hears)?;
        let member = pg.everyone().any(|m| m.osd == leader);
        if !member || self.is_up(now, leader) {
            return None;
        }
        let followers = reports().filter(|r| r.term == term && r.hears == Some(leader)).count();
        (followers + 1 > pg.members.len() / 2).then_some((leader, followers))
    }

    /// Returns the OSDs that meta does not hear and that lead PGs that serve.
    pub(super) fn unheard_leaders(&self, now: Time) -> BTreeSet<OsdId> {
        self.records.pgs.values().filter_map(|pg| self.pg_serves(now, pg)).map(|(leader, _)| leader).collect()
    }

    /// Returns those OSDs of a client's list that there are.
    pub(super) fn known_osds(&self, named: &[OsdId]) -> Vec<OsdId> {
        named.iter().copied().filter(|osd| self.records.osds.contains_key(osd)).take(UNREACHED_MAX).collect()
    }

    /// Returns the living writers that cannot reach some OSDs.
    fn cut_off(&self, now: Time) -> impl Iterator<Item = (VolumeId, &Holder, &[OsdId])> {
        self.leases.unreached().filter_map(move |(volume, session, osds)| {
            let holder = self.records.volumes.get(&volume)?.holder_of(session)?;
            self.leases.left(now, volume, session).map(|_| (volume, holder, osds))
        })
    }

    /// Returns PGs, each with an OSD that a client of the PG cannot reach: a leader moved there would only move away again.
    pub(super) fn out_of_reach(&self, now: Time) -> BTreeSet<(PgId, OsdId)> {
        let pairs = self.cut_off(now).flat_map(|(volume, _, osds)| {
            let pgs = self.records.segments_of(volume).flat_map(SegmentRecord::pgs);
            pgs.flat_map(|pg| osds.iter().map(move |osd| (pg, *osd)))
        });
        pairs.collect()
    }

    /// Whether an OSD has been connected for so long that others have tried to reach it since.
    fn is_settled(&self, now: Time, osd: OsdId) -> bool {
        let live = self.osds.get(&osd).filter(|live| live.stream.is_some());
        live.is_some_and(|live| now.since(live.connected) >= self.config.reach_settle)
    }

    /// Returns broken paths between live OSDs: meta hears both, or the second is in `unheard`, whose PGs serve. A dead OSD is
    /// no fault of the network. An OSD that has just connected is left out: its peers have not reported yet that they reach it.
    pub(super) fn cut_links(&self, now: Time, unheard: &[OsdId]) -> Vec<(OsdId, OsdId)> {
        let settled = |osd: OsdId| self.is_up(now, osd) && self.is_settled(now, osd);
        let lives = |osd: OsdId| settled(osd) || unheard.contains(&osd);
        let up = self.osds.iter().filter(|(osd, _)| settled(**osd));
        let links = up.flat_map(|(osd, live)| live.unreachable.iter().map(|to| (*osd, *to)));
        links.filter(|(_, to)| lives(*to)).collect()
    }

    /// Returns broken paths between clients and OSDs that meta hears, each once however many volumes a client holds. An OSD
    /// that has just connected is left out: clients have not reported yet that they reach it again.
    pub(super) fn broken_paths(&self, now: Time) -> Vec<(String, OsdId)> {
        let mut paths = Vec::new();
        for (_, holder, osds) in self.cut_off(now) {
            for osd in osds.iter().filter(|osd| self.is_settled(now, **osd) && self.is_up(now, **osd)) {
                paths.push((holder.name.clone(), *osd));
            }
        }
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}
