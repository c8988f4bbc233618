//! Moves leaders so that every OSD leads its share ([`placement::leader_moves`]), slowly.
//!
//! A PG is moved to a member that is up and in sync, and only when its leader has led for a while. While any PG recovers,
//! nothing is moved unless one OSD leads more than twice its share: the streams come first. A transfer costs its PG a moment
//! without service. So each pass moves a few PGs, and a PG that did not follow is left alone for a while.

use super::osds::Lead;
use super::{Control, Now};
use crate::ControlConfig;
use crate::records::PgRecord;
use placement::LedPg;
use std::collections::{BTreeMap, BTreeSet};
use types::control::OsdDown;
use types::{OsdId, PgId, Time};

impl Control {
    /// Balances leaders, if it is time.
    pub(super) fn move_leaders(&mut self, now: Now) {
        let now = now.mono;
        if self.leaders_at > now {
            return;
        }
        let ControlConfig { leaders_every, transfer_again, transfers_min, transfers_share, .. } = self.config;
        self.leaders_at = now + leaders_every;
        self.moved.retain(|_, (at, _)| now.since(*at) < transfer_again);
        let out_of_reach = self.out_of_reach(now);
        let led = self.records.pgs.values().filter_map(|pg| self.led(now, pg, &out_of_reach));
        let led: Vec<LedPg> = led.collect();
        if self.leads.values().any(|l| l.report.recovering) && !self.is_gross(now, &led) {
            return;
        }
        for (pg, from, to) in placement::leader_moves(&led, transfers_min.max(led.len() / transfers_share)) {
            if self.is_cutting(pg) {
                // A transfer would end the cut.
                continue;
            }
            if let Some(stream) = self.osds.get(&from).and_then(|live| live.stream) {
                self.moved.insert(pg, (now, to));
                self.say(stream, OsdDown::TransferLeader { pg, to });
            }
        }
    }

    fn led(&self, now: Time, pg: &PgRecord, out_of_reach: &BTreeSet<(PgId, OsdId)>) -> Option<LedPg> {
        let lead = self.leads.get(&pg.pg).filter(|lead| self.is_up(now, lead.osd))?;
        let preferred = pg.members.first()?.osd;
        let counts = |leader| LedPg { pg: pg.pg, leader, preferred, targets: Vec::new() };
        match self.moved.get(&pg.pg) {
            Some((at, to)) if now.since(*at) < self.config.transfer_comes && *to != lead.osd => {
                return Some(counts(*to));
            }
            Some((_, to)) if *to != lead.osd => return Some(counts(lead.osd)),
            _ => {}
        }
        let targets =
            if pg.change.is_none() && self.may_move(now, pg, lead) { self.members_up(now, pg) } else { Vec::new() };
        let steady = self.config.leader_steady;
        let is_steady = |osd: &OsdId| self.osds.get(osd).is_some_and(|live| now.since(live.connected) >= steady);
        let in_reach = |osd: &OsdId| !out_of_reach.contains(&(pg.pg, *osd));
        let targets = targets.into_iter().filter(is_steady).filter(in_reach).collect();
        Some(LedPg { targets, ..counts(lead.osd) })
    }

    /// Whether every member that is up is in sync, and the leader has led for a while.
    fn may_move(&self, now: Time, pg: &PgRecord, lead: &Lead) -> bool {
        let up = self.members_up(now, pg).len();
        let in_sync = usize::from(lead.report.followers_in_sync) + 1;
        let steady = now.since(lead.since) >= self.config.leader_steady;
        let calm = lead.report.active && !lead.report.recovering && steady;
        calm && lead.report.followers_behind == 0 && in_sync == up
    }

    fn members_up(&self, now: Time, pg: &PgRecord) -> Vec<OsdId> {
        pg.members.iter().map(|m| m.osd).filter(|osd| self.is_up(now, *osd)).collect()
    }

    /// Whether one OSD leads more than twice its share.
    fn is_gross(&self, now: Time, led: &[LedPg]) -> bool {
        let mut counts: BTreeMap<OsdId, usize> = BTreeMap::new();
        led.iter().for_each(|pg| *counts.entry(pg.leader).or_default() += 1);
        let up = self.records.osds.keys().filter(|osd| self.is_up(now, **osd)).count().max(1);
        counts.values().any(|count| count * up > 2 * led.len() + up)
    }
}
