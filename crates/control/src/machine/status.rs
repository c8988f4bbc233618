//! The state of PGs, the health checks, and the page about the cluster.

use super::osds::{Lead, Liveness, OsdLive};
use super::{Control, Now};
use crate::admin::{IoRates, OsdView, Recovery, Status};
use crate::health::{self, Check, Facts, Finding, POOL_NEARFULL_PERCENT, PgFacts, PoolFacts, PoolFill, Severity};
use crate::plan;
use crate::records::{PgRecord, PoolRecord, PoolState};
use crate::settings::{NOOUT, NOREBALANCE};
use std::collections::{BTreeMap, BTreeSet};
use types::control::PgReport;
use types::map::Member;
use types::{OsdId, PgId, Time};

/// Problem lines in a status.
const PROBLEMS_MAX: usize = 50;

impl Control {
    /// Returns the state words of a PG, by its leader's report, or by its followers' while meta does not hear the leader.
    pub(super) fn pg_state(&self, now: Time, pg: &PgRecord) -> Vec<&'static str> {
        let mut state = Vec::new();
        let lead = self.leads.get(&pg.pg).filter(|l| self.is_up(now, l.osd));
        match lead {
            Some(lead) if lead.report.active => {
                state.push("active");
                let lacks = usize::from(lead.report.followers_in_sync) + 1 < pg.places().count();
                let takes_over = lacks && self.takes_over(now, pg, lead);
                if lacks && !takes_over {
                    state.push(if self.may_still_gather(now, pg) { "waiting" } else { "degraded" });
                }
                if lead.report.recovering && !takes_over {
                    state.push("recovering");
                }
            }
            _ if self.pg_serves(now, pg).is_some() => {
                state.push("active");
                if self.pg_serves(now, pg).is_some_and(|(_, followers)| followers + 1 < pg.places().count()) {
                    state.push(if self.may_still_gather(now, pg) { "waiting" } else { "degraded" });
                }
            }
            _ if self.may_still_report(now, pg) => state.push("waiting"),
            _ if pg.members.iter().any(|m| self.is_up(now, m.osd) && !self.reports.contains_key(&m.replica)) => {
                state.push("creating");
            }
            _ => state.push("down"),
        }
        let any = |is: fn(&PgReport) -> bool| pg.everyone().any(|m| self.reports.get(&m.replica).is_some_and(is));
        if pg.forced.is_some() {
            state.push("forcing");
        }
        if any(|r| r.repairing) {
            state.push("repairing");
        }
        if any(|r| r.quarantined || !r.lost.is_empty()) {
            state.push("inconsistent");
        }
        state
    }

    /// Whether the leader of a PG that was whole has led too briefly to have matched its followers, and hears them all.
    fn takes_over(&self, now: Time, pg: &PgRecord, lead: &Lead) -> bool {
        let hears_all = lead.report.followers_silent == 0
            && pg.vacant.is_empty()
            && pg.members.iter().all(|m| self.liveness(now, m.osd) != Liveness::Down);
        hears_all && now.since(lead.since) < self.config.election && !self.told_of(pg.pg).contains("degraded")
    }

    /// Whether the PG is too new, or was created too recently, to expect its first leader.
    pub(super) fn is_young(&self, now: Time, pg: &PgRecord) -> bool {
        let creating = || self.records.pools.get(&pg.pg.pool).is_some_and(|p| p.state == PoolState::Creating);
        self.born.get(&pg.pg).is_some_and(|at| now.since(*at) < self.config.grace) || creating()
    }

    /// Whether the leader of the PG is not known yet. The reason is a new meta, a new PG, a due election, or a member that has
    /// just connected and not reported.
    fn may_still_report(&self, now: Time, pg: &PgRecord) -> bool {
        let connects = |m: &Member| {
            let live = self.osds.get(&m.osd);
            live.is_some_and(|live| live.stream.is_some() && !live.reported) && self.is_up(now, m.osd)
        };
        let is_new = now.since(self.started.mono) < self.config.grace || self.is_young(now, pg);
        let idles = self.idle.get(&pg.pg).is_some_and(|since| now.since(*since) >= self.config.grace);
        is_new || !idles && (self.elects(now, pg.pg) || pg.members.iter().any(connects))
    }

    /// Whether the PG changed its leader a moment ago, so that its members may still elect one.
    pub(super) fn elects(&self, now: Time, pg: PgId) -> bool {
        let lead = self.leads.get(&pg).map(|lead| lead.since);
        [lead, self.unled.get(&pg).copied()].into_iter().flatten().any(|at| now.since(at) < self.config.election)
    }

    /// Remembers since when each PG is not active.
    pub(super) fn watch_idle(&mut self, now: Time) {
        let is_idle = |pg: &PgRecord| !self.pg_state(now, pg).contains(&"active");
        let idle: Vec<PgId> = self.records.pgs.values().filter(|pg| is_idle(pg)).map(|pg| pg.pg).collect();
        let since = |pg: PgId| (pg, self.idle.get(&pg).copied().unwrap_or(now));
        self.idle = idle.into_iter().map(since).collect();
    }

    /// Whether followers of a PG that serves may still have to report: the PG is new, or a new meta has not heard its OSDs. A
    /// member that is down is no reason.
    fn may_still_gather(&self, now: Time, pg: &PgRecord) -> bool {
        let is = |liveness| pg.members.iter().any(|m| self.liveness(now, m.osd) == liveness);
        !is(Liveness::Down) && (self.is_young(now, pg) || is(Liveness::Unknown))
    }

    fn pg_facts(&self, now: Time, pg: &PgRecord) -> PgFacts {
        let reports = || pg.members.iter().filter_map(|m| self.reports.get(&m.replica));
        let is_lost = reports().any(|r| !r.lost.is_empty());
        let is_unread = reports().any(|r| !r.unread.is_empty());
        let extents = if is_lost || is_unread { self.bad_extents(now, pg) } else { Vec::new() };
        let is_unread = is_unread && !extents.is_empty();
        PgFacts { pg: pg.pg, state: self.pg_state(now, pg), is_lost, is_unread, extents }
    }

    /// Returns the checks that hold at this moment.
    pub(super) fn findings(&self, now: Now) -> Vec<Finding> {
        self.findings_of(now, &self.osd_views(now.mono), &self.all_pg_facts(now.mono))
    }

    fn all_pg_facts(&self, now: Time) -> Vec<PgFacts> {
        self.records.pgs.values().map(|pg| self.pg_facts(now, pg)).collect()
    }

    fn findings_of(&self, now: Now, osds: &[OsdView], pgs: &[PgFacts]) -> Vec<Finding> {
        let unfinished = self.records.pools.values().filter(|p| p.state != PoolState::Ready);
        let pool = |p: &crate::records::PoolRecord| PoolFacts {
            name: p.name.clone(),
            is_creating: p.state == PoolState::Creating,
            created_ms: p.created_ms,
        };
        let pools: Vec<PoolFacts> = unfinished.map(pool).collect();
        let filling = self.filling_pools(now.mono, osds);
        let unheard: Vec<OsdId> = osds.iter().filter(|o| o.live == "down").map(|o| o.osd).collect();
        let serving = if unheard.is_empty() { Default::default() } else { self.unheard_leaders(now.mono) };
        let unheard: Vec<OsdId> = unheard.into_iter().filter(|osd| serving.contains(osd)).collect();
        let unreachable = self.cut_links(now.mono, &unheard);
        let paths = self.broken_paths(now.mono);
        let told = |of: fn(&OsdLive) -> &Option<String>| -> Vec<(OsdId, String)> {
            let up = self.osds.iter().filter(|(osd, _)| self.is_up(now.mono, **osd));
            up.filter_map(|(osd, live)| Some((*osd, of(live).clone()?))).collect()
        };
        let (stuck, slow) = (told(|live| &live.destage_stuck), told(|live| &live.slow_device));
        let (unreachable, unheard, paths) = (&unreachable[..], &unheard[..], &paths);
        let unplaced: Vec<(PgId, OsdId)> = self.unplaced().collect();
        let flags = [NOOUT, NOREBALANCE].into_iter().filter(|flag| self.records.config.is_on(flag)).collect::<Vec<_>>();
        let (stuck, slow, pools) = (&stuck[..], &slow[..], &pools[..]);
        let (now_ms, unplaced, flags) = (now.wall_ms, &unplaced[..], &flags[..]);
        let (filling, faults) = (&filling[..], &self.rehearsals()[..]);
        let facts = Facts {
            osds,
            pgs,
            unreachable,
            unheard,
            paths,
            stuck,
            slow,
            pools,
            filling,
            unplaced,
            flags,
            faults,
            now_ms,
        };
        // Findings about the records themselves come first: all others rest on them.
        let mut found = self.past_findings(now.mono);
        found.extend(health::find(&facts));
        found
    }

    /// Returns the pools that are nearly full, and whose volumes can fill them.
    fn filling_pools(&self, now: Time, osds: &[OsdView]) -> Vec<PoolFill> {
        let full = |view: &OsdView| if view.full { 100 } else { health::fill_percent(view) };
        let fills: BTreeMap<OsdId, u64> =
            osds.iter().filter(|view| view.live == "up").map(|view| (view.osd, full(view))).collect();
        if fills.values().all(|fill| *fill < POOL_NEARFULL_PERCENT) {
            return Vec::new();
        }
        let promises = plan::Promises::new(&self.records, None);
        let fill = |osd: OsdId| Some((*fills.get(&osd)?, osd));
        let near = |pool: &PoolRecord| {
            let members = self.records.pgs_of(pool.id).flat_map(|pg| &pg.members).map(|m| m.osd);
            let (fill_percent, osd) = members.collect::<BTreeSet<_>>().into_iter().filter_map(fill).max()?;
            if fill_percent < POOL_NEARFULL_PERCENT {
                return None;
            }
            let overcommit_percent = promises.percent(&self.records, pool)?;
            let available_bytes = self.available_bytes(now, pool)?;
            let (name, is_promised) = (pool.name.clone(), overcommit_percent > 100);
            is_promised.then_some(PoolFill { name, osd, fill_percent, overcommit_percent, available_bytes })
        };
        self.records.pools.values().filter_map(near).collect()
    }

    /// Returns the findings, with since when they hold and whether they are muted.
    pub(super) fn checks_of(&self, now: Now, found: Vec<Finding>) -> Vec<Check> {
        let check = |finding: Finding| {
            let code = finding.rule.code;
            let mute = self.records.mutes.get(code).filter(|m| m.until_ms.is_none_or(|at| now.wall_ms < at));
            Check {
                code: code.to_owned(),
                severity: finding.rule.severity,
                count: finding.count,
                summary: finding.summary,
                entities: finding.entities,
                details: finding.details,
                since_ms: self.records.watch.checks.get(code).copied().unwrap_or(now.wall_ms),
                muted: mute.is_some(),
                muted_until_ms: mute.and_then(|m| m.until_ms),
                next: finding.rule.next.to_owned(),
            }
        };
        found.into_iter().map(check).collect()
    }

    /// Returns one page about the cluster.
    pub fn status(&self, now: Now) -> Status {
        let osds = self.osd_views(now.mono);
        let pgs = self.all_pg_facts(now.mono);
        let checks = self.checks_of(now, self.findings_of(now, &osds, &pgs));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let with = |word: &str| count(pgs.iter().filter(|pg| pg.state.contains(&word)).count());
        let waits = |pg: &&PgFacts| !pg.state.contains(&"active") && pg.state.contains(&"waiting");
        let (pgs_active, not_yet) = (with("active"), count(pgs.iter().filter(waits).count()));
        let started: Vec<&OsdView> = osds.iter().filter(|o| o.live != "new").collect();
        let recovery = self.recovery(now.mono, with("recovering"));
        Status {
            cluster: self.records.cluster_id(),
            health: health::word(checks.iter()).to_owned(),
            problems: problems(&checks),
            map_epoch: self.records.counters.map_epoch,
            osds: count(started.len()),
            osds_up: count(started.iter().filter(|o| o.live == "up").count()),
            osds_in: count(started.iter().filter(|o| o.is_in).count()),
            osds_new: count(osds.len() - started.len()),
            pools: count(self.records.pools.len()),
            volumes: count(self.records.volumes.values().filter(|v| v.trash.is_none()).count()),
            segments: self.records.segments.len() as u64,
            pgs: count(pgs.len()),
            pgs_active,
            pgs_degraded: with("degraded"),
            pgs_down: count(pgs.len()) - pgs_active - not_yet,
            pgs_waiting: not_yet,
            capacity_bytes: total(&started, |o| o.capacity_bytes),
            used_bytes: total(&started, |o| o.used_bytes),
            free_bytes: total(&started, |o| o.free_bytes),
            leading_since_ms: self.started.wall_ms,
            version: self.version.clone(),
            moves: self.moves_view(now.mono, &recovery),
            recovery,
            io: self.io_rates(now.mono),
            checks,
        }
    }

    fn recovery(&self, now: Time, pgs: u32) -> Recovery {
        let mut all = Recovery { pgs, ..Recovery::default() };
        for live in self.osds.iter().filter(|(osd, _)| self.is_up(now, **osd)).map(|(_, live)| live) {
            all.streams = all.streams.saturating_add(live.flow.streams);
            all.left_bytes = all.left_bytes.saturating_add(live.flow.left_bytes);
            all.bytes_per_s = all.bytes_per_s.saturating_add(live.flow.rates().recovered_bytes);
        }
        let eta = u128::from(all.left_bytes) * 1000 / u128::from(all.bytes_per_s.max(1));
        all.eta_ms = (all.left_bytes > 0 && all.bytes_per_s > 0).then(|| u64::try_from(eta).unwrap_or(u64::MAX));
        all
    }

    fn io_rates(&self, now: Time) -> IoRates {
        let mut all = IoRates::default();
        for live in self.osds.iter().filter(|(osd, _)| self.is_up(now, **osd)).map(|(_, live)| live) {
            let io = live.flow.rates().io;
            all.reads_per_s = all.reads_per_s.saturating_add(io.reads);
            all.read_bytes_per_s = all.read_bytes_per_s.saturating_add(io.read_bytes);
            all.writes_per_s = all.writes_per_s.saturating_add(io.writes);
            all.write_bytes_per_s = all.write_bytes_per_s.saturating_add(io.write_bytes);
        }
        all
    }
}

/// Returns a line for each problem, at most [`PROBLEMS_MAX`].
fn problems(checks: &[Check]) -> Vec<String> {
    let bad = || checks.iter().filter(|c| c.severity > Severity::Ok && !c.muted);
    let count = bad().fold(0usize, |n, c| n.saturating_add(usize::try_from(c.count).unwrap_or(usize::MAX)));
    let mut lines: Vec<String> = bad().flat_map(|c| c.details.iter().cloned()).take(PROBLEMS_MAX).collect();
    if count > lines.len() {
        lines.push(format!("… and {} more", count - lines.len()));
    }
    lines
}

/// Sums up what OSDs report of themselves. Each may report any number, so the sum saturates.
fn total(osds: &[&OsdView], bytes: impl Fn(&OsdView) -> u64) -> u64 {
    osds.iter().fold(0, |sum, osd| sum.saturating_add(bytes(osd)))
}
