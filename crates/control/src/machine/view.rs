//! What people see.

use super::osds::Liveness;
use super::{Control, Now};
use crate::admin::{HolderView, OsdView, PgMemberView, PgView, PoolView, Status, VolumeView};
use crate::records::{PgRecord, PoolRecord, PoolState, VolumeRecord, VolumeState};
use std::collections::BTreeSet;
use types::control::{LostExtent, PgReport, Refusal};
use types::map::Member;
use types::{OsdId, SEGMENT, Time};

/// Problem lines in a status.
const PROBLEMS_MAX: usize = 50;

impl Control {
    pub(super) fn pool_view(&self, pool: &PoolRecord) -> PoolView {
        let state = match pool.state {
            PoolState::Creating => "creating",
            PoolState::Ready => "ready",
            PoolState::Deleting => "deleting",
        };
        PoolView {
            pool: pool.id,
            name: pool.name.clone(),
            replicas: pool.replicas,
            domain: pool.domain.clone(),
            pg_count: pool.pg_count,
            state: state.to_string(),
            volumes: u32::try_from(self.records.volumes_of(pool.id).count()).unwrap_or(u32::MAX),
            segments: self.records.pgs_of(pool.id).map(|pg| u64::from(self.records.segments_in(pg.pg))).sum(),
        }
    }

    pub(super) fn volume_view(&self, now: Time, volume: &VolumeRecord) -> VolumeView {
        let state = match volume.state {
            VolumeState::Ready => "ready",
            VolumeState::Deleting => "deleting",
        };
        let holder = volume.holder.as_ref().map(|h| HolderView {
            name: h.name.clone(),
            address: h.address.clone(),
            since_ms: h.since_ms,
            alive: self.holder_alive(now, volume.id),
        });
        VolumeView {
            volume: volume.id,
            name: self.records.full_name(volume),
            len_bytes: volume.len_bytes,
            allocated_bytes: self.records.segments_of(volume.id).count() as u64 * SEGMENT,
            state: state.to_string(),
            epoch: volume.epoch,
            session: volume.session,
            holder,
            created_ms: volume.created_ms,
        }
    }

    /// Volumes of one pool, or of all when `pool` is empty.
    pub(super) fn volume_views(&self, now: Time, pool: &str) -> Result<Vec<VolumeView>, Refusal> {
        let only = if pool.is_empty() { None } else { Some(self.records.pool(pool)?.id) };
        let volumes = self.records.volumes.values().filter(|v| only.is_none_or(|pool| v.pool == pool));
        Ok(volumes.map(|v| self.volume_view(now, v)).collect())
    }

    /// Every OSD as it is seen now; for the metrics.
    pub fn osds_seen(&self, now: Now) -> Vec<OsdView> {
        self.osd_views(now.mono)
    }

    pub(super) fn osd_views(&self, now: Time) -> Vec<OsdView> {
        self.records.osds.values().map(|osd| self.osd_view(now, osd)).collect()
    }

    fn osd_view(&self, now: Time, osd: &crate::records::OsdRecord) -> OsdView {
        let live = self.osds.get(&osd.id);
        let liveness = match self.liveness(now, osd.id) {
            Liveness::Up => "up",
            Liveness::Down => "down",
            Liveness::Unknown => "unknown",
        };
        let holds = |pg: &&PgRecord| pg.members.iter().any(|m| m.osd == osd.id);
        let poisoned = osd.poisoned.as_ref().filter(|p| p.incarnation == osd.incarnation);
        // What a dead OSD last said of itself is no longer so.
        let leads = if liveness == "up" { self.leads.values().filter(|l| l.osd == osd.id).count() } else { 0 };
        let heard = live.and_then(|l| l.heard).map(|heard| now.since(heard).as_millis());
        OsdView {
            osd: osd.id,
            uuid: osd.uuid,
            live: liveness.to_string(),
            is_in: osd.is_in,
            drain: osd.drain,
            full: live.is_some_and(|l| l.full),
            poisoned: poisoned.map(|p| p.reason.clone()),
            addr: osd.addr,
            http: osd.http,
            host: osd.host.clone(),
            rack: osd.rack.clone(),
            zone: osd.zone.clone(),
            weight: osd.weight,
            capacity_bytes: osd.capacity_bytes,
            used_bytes: live.map_or(0, |l| l.used_bytes),
            free_bytes: live.map_or(0, |l| l.free_bytes),
            pgs: u32::try_from(self.records.pgs.values().filter(holds).count()).unwrap_or(u32::MAX),
            leads: u32::try_from(leads).unwrap_or(u32::MAX),
            heard_ms_ago: heard.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
        }
    }

    /// PGs of one pool, or of all when `pool` is empty.
    pub(super) fn pg_views(&self, now: Time, pool: &str) -> Result<Vec<PgView>, Refusal> {
        let only = if pool.is_empty() { None } else { Some(self.records.pool(pool)?.id) };
        let pgs = self.records.pgs.values().filter(|pg| only.is_none_or(|pool| pg.pg.pool == pool));
        Ok(pgs.map(|pg| self.pg_view(now, pg)).collect())
    }

    fn pg_view(&self, now: Time, pg: &PgRecord) -> PgView {
        let member = |m: &types::map::Member| {
            let report = self.reports.get(&m.replica);
            PgMemberView {
                osd: m.osd,
                replica: m.replica,
                up: self.is_up(now, m.osd),
                quarantined: report.is_some_and(|r| r.quarantined),
                repairing: report.is_some_and(|r| r.repairing),
                term: report.map_or(0, |r| r.term.0),
                applied: report.map_or(0, |r| r.applied.0),
            }
        };
        PgView {
            pg: pg.pg,
            state: self.pg_state(now, pg).into_iter().map(str::to_string).collect(),
            leader: self.live_lead(now, pg),
            members: pg.members.iter().map(member).collect(),
            conf_epoch: pg.conf_epoch,
            segments: self.records.segments_in(pg.pg),
            lost: self.lost_words(now, pg),
        }
    }

    /// What the members say that nobody has any more.
    fn lost_in(&self, pg: &PgRecord) -> BTreeSet<LostExtent> {
        let reports = pg.members.iter().filter_map(|m| self.reports.get(&m.replica));
        reports.flat_map(|r| r.lost.iter().copied()).collect()
    }

    /// The same in words, and what those say who are here while others are away.
    fn bad_extents(&self, now: Time, pg: &PgRecord) -> Vec<String> {
        let has_part = |m: &&Member| {
            let idle = |r: &PgReport| r.quarantined || r.repairing;
            self.is_up(now, m.osd) && !self.reports.get(&m.replica).is_some_and(idle)
        };
        let (here, away): (Vec<&Member>, Vec<&Member>) = pg.members.iter().partition(has_part);
        let reports = here.iter().filter_map(|m| self.reports.get(&m.replica));
        let lost = self.lost_in(pg);
        let unread: BTreeSet<LostExtent> = reports.flat_map(|r| r.unread.iter().copied()).collect();
        let away = if away.is_empty() {
            "a replica that was away".to_string()
        } else {
            away.iter().map(|m| m.osd.to_string()).collect::<Vec<_>>().join(" or ")
        };
        let unread =
            unread.difference(&lost).map(|e| format!("{e} on the replicas that are here; {away} may have one"));
        lost.iter().map(LostExtent::to_string).chain(unread).collect()
    }

    /// The same, and what nobody knows the extents of.
    fn lost_words(&self, now: Time, pg: &PgRecord) -> Vec<String> {
        let reports = pg.members.iter().filter_map(|m| self.reports.get(&m.replica));
        let unknown = reports.filter_map(|r| r.lost_from).min();
        let unknown =
            unknown.map(|from| format!("any volume of this PG: log entries from {} on may be in no replica", from.0));
        self.bad_extents(now, pg).into_iter().chain(unknown).collect()
    }

    fn live_lead(&self, now: Time, pg: &PgRecord) -> Option<OsdId> {
        self.leads.get(&pg.pg).map(|l| l.osd).filter(|osd| self.is_up(now, *osd))
    }

    /// From the leader's report, not from who is up.
    fn pg_state(&self, now: Time, pg: &PgRecord) -> Vec<&'static str> {
        let mut state = Vec::new();
        let known = |m: &types::map::Member| self.reports.contains_key(&m.replica);
        let lead = self.leads.get(&pg.pg).filter(|l| self.is_up(now, l.osd));
        match lead {
            Some(lead) if lead.report.active => {
                state.push("active");
                if usize::from(lead.report.followers_in_sync) + 1 < pg.members.len() {
                    state.push("degraded");
                }
                if lead.report.recovering {
                    state.push("recovering");
                }
            }
            _ if !pg.members.iter().all(known) => state.push("creating"),
            _ => state.push("down"),
        }
        let any = |is: fn(&PgReport) -> bool| pg.members.iter().any(|m| self.reports.get(&m.replica).is_some_and(is));
        if any(|r| r.repairing) {
            state.push("repairing");
        }
        if any(|r| r.quarantined || !r.lost.is_empty() || r.lost_from.is_some()) {
            state.push("inconsistent");
        }
        state
    }

    /// One page about the cluster.
    pub fn status(&self, now: Now) -> Status {
        let osds = self.osd_views(now.mono);
        let mut counts = [0u32; 3];
        let mut problems = Vec::new();
        for pg in self.records.pgs.values() {
            let state = self.pg_state(now.mono, pg);
            counts[0] += u32::from(state.contains(&"active"));
            counts[1] += u32::from(state.contains(&"degraded"));
            counts[2] += u32::from(!state.contains(&"active"));
            if state != ["active"] {
                problems.push(format!("pg {} is {}", pg.pg, state.join("+")));
                problems.extend(
                    self.bad_extents(now.mono, pg).iter().map(|e| format!("pg {}: no good copy of {e}", pg.pg)),
                );
            }
        }
        for osd in &osds {
            if osd.live != "up" {
                problems.push(format!("{} on {} is {}", osd.osd, osd.host, osd.live));
            }
            if osd.full {
                problems.push(format!("{} is full", osd.osd));
            }
            if let Some(reason) = &osd.poisoned {
                problems.push(format!("the store of {} stopped: {reason}", osd.osd));
            }
        }
        for (osd, live) in &self.osds {
            problems.extend(live.unreachable.iter().map(|to| format!("{osd} cannot reach {to}")));
        }
        let unfinished = self.records.pools.values().filter(|p| p.state != PoolState::Ready);
        problems.extend(unfinished.map(|p| format!("pool {} is {}", p.name, self.pool_view(p).state)));
        let health = match (counts[2], problems.is_empty()) {
            (0, true) => "ok",
            (0, false) => "degraded",
            _ => "down",
        };
        if problems.len() > PROBLEMS_MAX {
            let more = problems.len() - PROBLEMS_MAX;
            problems.truncate(PROBLEMS_MAX);
            problems.push(format!("… and {more} more"));
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Status {
            cluster: self.records.cluster_id(),
            health: health.to_string(),
            problems,
            map_epoch: self.records.counters.map_epoch,
            osds: count(osds.len()),
            osds_up: count(osds.iter().filter(|o| o.live == "up").count()),
            osds_in: count(osds.iter().filter(|o| o.is_in).count()),
            pools: count(self.records.pools.len()),
            volumes: count(self.records.volumes.len()),
            segments: self.records.segments.len() as u64,
            pgs: count(self.records.pgs.len()),
            pgs_active: counts[0],
            pgs_degraded: counts[1],
            pgs_down: counts[2],
            capacity_bytes: total(&osds, |o| o.capacity_bytes),
            used_bytes: total(&osds, |o| o.used_bytes),
            free_bytes: total(&osds, |o| o.free_bytes),
            leading_since_ms: self.started.wall_ms,
        }
    }
}

/// A sum of what OSDs say of themselves: they may say anything.
fn total(osds: &[OsdView], bytes: impl Fn(&OsdView) -> u64) -> u64 {
    osds.iter().fold(0, |sum, osd| sum.saturating_add(bytes(osd)))
}
