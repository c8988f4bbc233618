//! Decides which OSDs are out, and which replicas move to other OSDs (ADR 0018).
//!
//! The intent is a record: an OSD is out, drained, or replaced by another one. The plan follows from it and is made again every
//! second; nothing of it is stored. A move becomes a record when it begins, and is then a change of members as any other. So a
//! second OSD that goes out during a remap only makes the next plan longer, and a new leader of meta goes on where the last one
//! stopped.

use super::osds::Liveness;
use super::{Control, Now};
use crate::admin::{Moves, OsdSet, PlannedMove, Recovery};
use crate::events::Note;
use crate::health::NEARFULL_PERCENT;
use crate::plan;
use crate::records::{ChangeReason, OsdRecord, PoolState, Records};
use crate::settings::{NOOUT, NOREBALANCE};
use placement::{Domain, Place, PlacedPg, ReplicaMove};
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::Refusal;
use types::planted::{Bug, on};
use types::{OsdId, PgId, Time};

/// Most moves of a plan that only balance.
const BALANCE_MAX: usize = 1024;
/// One in so many OSDs may be out because it was down: when more are gone, it is not for their disks.
const AUTO_OUT_SHARE: usize = 4;

impl Control {
    /// Takes OSDs out that were down for too long, and begins moves.
    pub(super) fn rebalance(&mut self, now: Now) {
        if self.moves_at > now.mono || self.batch.is_full() {
            return;
        }
        self.moves_at = now.mono + self.config.moves_every;
        self.watch_away(now);
        self.put_out(now);
        self.remove_replaced(now);
        self.moves = self.plan_moves(now.mono, &self.records);
        self.watch_emptied(now);
        self.begin_moves(now);
    }

    /// Returns for how long an OSD has neither reported nor served.
    pub(super) fn away_for(&self, now: Time, osd: OsdId) -> Option<Duration> {
        let (seen, before_ms) = self.away.get(&osd)?;
        Some(now.since(*seen) + Duration::from_millis(*before_ms))
    }

    /// Records since when OSDs are away, for the leaders that follow: the time goes on with them.
    fn watch_away(&mut self, now: Now) {
        self.away.retain(|osd, _| self.records.osds.contains_key(osd));
        let started: Vec<OsdId> = self.records.osds.values().filter(|o| !o.is_new()).map(|o| o.id).collect();
        for osd in started {
            if self.batch.is_full() {
                return;
            }
            let is_away = match self.liveness(now.mono, osd) {
                Liveness::Unknown => continue,
                Liveness::Up => !self.is_up(now.mono, osd),
                Liveness::Down => !self.serves_unheard(now.mono, osd),
            };
            let since_ms = self.records.osds.get(&osd).and_then(|o| o.down_since_ms);
            if is_away {
                let before_ms = since_ms.map_or(0, |since| now.wall_ms.saturating_sub(since));
                self.away.entry(osd).or_insert((now.mono, before_ms));
            } else {
                self.away.remove(&osd);
            }
            let (writes, comes_in) = plan::osd_away(&self.records, osd, is_away.then_some(now.wall_ms));
            match comes_in {
                true => {
                    self.write(writes);
                    self.note(now, Note::info("osd.in", osd, format!("{osd} is back, and in")));
                }
                false => self.record(writes),
            }
        }
    }

    /// Takes OSDs out that were down for too long. When many are gone, their network or power is: their replicas stay.
    fn put_out(&mut self, now: Now) {
        if self.records.config.is_on(NOOUT) {
            return;
        }
        let limit = self.records.config.osd_out_after(&self.config);
        let mut room = self.auto_out_room();
        let is_late = |osd: &OsdId| self.away_for(now.mono, *osd).is_some_and(|time| time >= limit);
        let late: Vec<OsdId> = self.away.keys().copied().filter(is_late).collect();
        for osd in late {
            let writes = plan::osd_auto_out(&self.records, osd);
            if writes.is_empty() || room == 0 || self.batch.is_full() {
                continue;
            }
            room -= 1;
            self.write(writes);
            let text = format!("{osd} was down for {} s: it is out, and its replicas move", limit.as_secs());
            self.note(now, Note::warning("osd.out", osd, text));
        }
    }

    /// Returns the number of OSDs that may still be taken out because they are down.
    fn auto_out_room(&self) -> usize {
        let started = self.records.osds.values().filter(|o| !o.is_new()).count();
        let out = self.records.osds.values().filter(|o| o.auto_out).count();
        (started / AUTO_OUT_SHARE).max(1).saturating_sub(out)
    }

    /// Removes OSDs of which another one has taken over all replicas, once they are down.
    fn remove_replaced(&mut self, now: Now) {
        let replaced = self.records.osds.values().filter_map(|o| o.replaces);
        let replaced: Vec<OsdId> =
            replaced.filter(|old| self.records.osds.get(old).is_some_and(OsdRecord::leaves)).collect();
        for old in replaced {
            let is_gone = self.liveness(now.mono, old) == Liveness::Down && !self.batch.is_full();
            if is_gone && !self.records.pgs.values().any(|pg| pg.everyone().any(|m| m.osd == old)) {
                // It is tried again when too few OSDs have confirmed the last one that came or went.
                let _ = self.remove_osd(now, old);
            }
        }
    }

    /// Returns the OSD that a new one takes over, unless it has not come for too long.
    fn successor_of(&self, now: Time, records: &Records, new: &OsdRecord) -> Option<OsdId> {
        let limit = records.config.osd_out_after(&self.config);
        let is_late = match new.is_new() {
            true => u128::from(self.wall_ms(now).saturating_sub(new.created_ms)) >= limit.as_millis(),
            false => new.leaves() || self.away_for(now, new.id).is_some_and(|time| time >= limit),
        };
        // An OSD that is in again keeps its replicas.
        let leaves = |old: &OsdId| records.osds.get(old).is_some_and(OsdRecord::leaves);
        new.replaces.filter(leaves).filter(|_| !is_late)
    }

    fn wall_ms(&self, now: Time) -> u64 {
        let led = now.since(self.started.mono).as_millis();
        self.started.wall_ms.saturating_add(u64::try_from(led).unwrap_or(u64::MAX))
    }

    fn places(&self, now: Time, records: &Records) -> Vec<Place> {
        let is_filled = |osd: OsdId| {
            let live = self.osds.get(&osd);
            let (used, free) = live.map_or((0, 0), |live| (u128::from(live.used_bytes), u128::from(live.free_bytes)));
            used * 100 >= (used + free) * u128::from(NEARFULL_PERCENT) && used > 0
        };
        let place = |o: &OsdRecord| {
            let usable = (!o.leaves() || on(Bug::MovesToLeaving)) && self.takes_replicas(now, o.id) && !is_filled(o.id);
            Place { osd: plan::placed(o, usable), leaves: o.leaves(), takes_over: self.successor_of(now, records, o) }
        };
        records.osds.values().map(place).collect()
    }

    /// Returns the PGs of a pool as they will be when all changes have ended, those with the fewest live members first.
    fn placed_pgs(&self, now: Time, records: &Records, pool: types::PoolId, is_ready: bool) -> Vec<PlacedPg> {
        let mut pgs: Vec<(usize, PlacedPg)> = records
            .pgs_of(pool)
            .map(|record| {
                let live = record.members.iter().filter(|m| self.is_up(now, m.osd)).count();
                let changes = record.change.is_some() || !record.queue.is_empty();
                let fixed = !is_ready || changes || !self.is_led(now, record.pg);
                (live, PlacedPg { pg: record.pg, members: plan::planned(record), fixed })
            })
            .collect();
        pgs.sort_by_key(|(live, placed)| (*live, placed.pg));
        pgs.into_iter().map(|(_, placed)| placed).collect()
    }

    /// Plans all moves that the cluster makes by itself with these records.
    fn plan_moves(&self, now: Time, records: &Records) -> Vec<(ReplicaMove, ChangeReason)> {
        let places = self.places(now, records);
        let mut moves = Vec::new();
        let mut pools = Vec::new();
        for pool in records.pools.values().filter(|pool| pool.state != PoolState::Deleting) {
            let Some(domain) = Domain::from_name(&pool.domain) else { continue };
            let mut pgs = self.placed_pgs(now, records, pool.id, pool.state == PoolState::Ready);
            let leaving = placement::leaving_moves(&places, domain, &mut pgs);
            moves.extend(leaving.into_iter().map(|m| (m, ChangeReason::Leaving)));
            pools.push((domain, pgs));
        }
        // Balance can wait until every replica is where it may stay.
        let all_up = records.osds.values().all(|o| o.is_new() || o.leaves() || self.is_up(now, o.id));
        if !moves.is_empty() || !all_up || records.config.is_on(NOREBALANCE) {
            return moves;
        }
        for (domain, mut pgs) in pools {
            let room = BALANCE_MAX - moves.len();
            let balancing = placement::balancing_moves(&places, domain, &mut pgs, room);
            moves.extend(balancing.into_iter().map(|m| (m, ChangeReason::Balance)));
        }
        moves
    }

    /// Whether a plan that is made now moves nothing, for tests.
    pub fn plans_no_move(&self, now: Now) -> bool {
        self.plan_moves(now.mono, &self.records).iter().all(|(m, _)| m.to.is_none())
    }

    /// Records that an OSD is empty, when it was not at the last plan.
    fn watch_emptied(&mut self, now: Now) {
        let leaving = |osd: &OsdId| self.records.osds.get(osd).is_some_and(OsdRecord::leaves);
        let held = self.records.pgs.values().flat_map(|pg| pg.everyone()).map(|m| m.osd).filter(leaving).collect();
        let before = std::mem::replace(&mut self.emptying, held);
        let emptied: Vec<OsdId> = before.difference(&self.emptying).copied().filter(leaving).collect();
        for osd in emptied {
            self.note(now, Note::info("osd.emptied", osd, format!("{osd} holds no replica any more")));
        }
    }

    /// Begins moves of the plan, as many as their targets may receive at once.
    fn begin_moves(&mut self, now: Now) {
        let backfills = self.records.config.osd_backfills(&self.config);
        let mut coming: BTreeMap<OsdId, usize> = BTreeMap::new();
        for change in self.records.pgs.values().filter_map(|pg| pg.change.as_ref()) {
            *coming.entry(change.to).or_default() += 1;
        }
        for (planned, reason) in std::mem::take(&mut self.moves) {
            let ReplicaMove { pg, from, to } = planned;
            let takes = to.is_some_and(|to| coming.get(&to).copied().unwrap_or(0) < backfills) && !self.batch.is_full();
            let is_led = self.is_led(now.mono, pg);
            let record = self.records.pgs.get(&pg).filter(|r| r.change.is_none() && r.queue.is_empty() && is_led);
            let begun = to.zip(record).filter(|_| takes).and_then(|(to, record)| {
                let writes = plan::begin_move(&self.records, record, (from, to), reason, now.wall_ms)?;
                Some((to, writes))
            });
            let Some((to, writes)) = begun else {
                self.moves.push((planned, reason));
                continue;
            };
            *coming.entry(to).or_default() += 1;
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            self.expect_newcomer(pg);
            if on(Bug::ReplacedTooEarly) {
                let leaving = self.records.pgs.get(&pg).and_then(|r| r.members.iter().find(|m| m.osd == from)).copied();
                self.drop_members(&leaving.map(|member| (pg, member)).into_iter().collect::<Vec<_>>());
            }
        }
    }

    /// Sets membership and intent of OSDs. Returns the moves that follow.
    pub(super) fn set_osds(&mut self, now: Now, ask: &OsdSet) -> Result<Vec<PlannedMove>, Refusal> {
        let (writes, changed) = plan::osd_set(&self.records, ask)?;
        if ask.dry_run {
            let mut records = self.records.clone();
            writes.iter().for_each(|write| records.apply(write));
            return Ok(self.planned_moves(&self.plan_moves(now.mono, &records)));
        }
        if !writes.is_empty() {
            self.write(writes);
            self.moves_at = Time::ZERO;
        }
        for osd in changed {
            let Some(record) = self.records.osds.get(&osd) else { continue };
            let (place, drain) =
                (if record.is_in { "in" } else { "out" }, if record.drain { ", and drained" } else { "" });
            self.note(now, Note::info("osd.set", osd, format!("{osd} is {place} by command{drain}")));
        }
        Ok(self.planned_moves(&self.plan_moves(now.mono, &self.records)))
    }

    fn planned_moves(&self, moves: &[(ReplicaMove, ChangeReason)]) -> Vec<PlannedMove> {
        let sizes = self.replica_sizes();
        let size = |osd: OsdId| sizes.get(&osd).copied().unwrap_or(0);
        moves.iter().map(|(m, _)| PlannedMove { pg: m.pg, from: m.from, to: m.to, bytes: size(m.from) }).collect()
    }

    /// Estimates the bytes of a replica on each OSD. One that has not told its use counts as the mean of the others.
    fn replica_sizes(&self) -> BTreeMap<OsdId, u64> {
        let mut counts: BTreeMap<OsdId, u64> = self.records.osds.keys().map(|osd| (*osd, 0)).collect();
        let members = self.records.pgs.values().flat_map(|pg| &pg.members);
        members.for_each(|m| *counts.entry(m.osd).or_default() += 1);
        let used = |osd: &OsdId| self.osds.get(osd).map_or(0, |live| live.used_bytes);
        let told = || counts.iter().filter(|(osd, count)| used(osd) > 0 && **count > 0);
        let (sum, all) = told().fold((0u64, 0u64), |(sum, all), (osd, n)| (sum.saturating_add(used(osd)), all + n));
        let mean = sum / all.max(1);
        let size = |osd: &OsdId, count: u64| match used(osd) {
            0 => mean,
            used => used / count.max(1),
        };
        counts.iter().map(|(osd, count)| (*osd, size(osd, *count))).collect()
    }

    /// Returns the replicas that have to leave their OSD and that no OSD can take.
    pub(super) fn unplaced(&self) -> impl Iterator<Item = (PgId, OsdId)> + '_ {
        self.moves.iter().filter(|(m, _)| m.to.is_none()).map(|(m, _)| (m.pg, m.from))
    }

    /// Returns the progress of all moves.
    pub(super) fn moves_view(&self, recovery: &Recovery) -> Moves {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let changes = self.records.pgs.values().filter_map(|pg| pg.change.as_ref());
        let running = changes.filter(|change| change.from != change.to && !change.cancel).count();
        let queued: usize = self.records.pgs.values().map(|pg| pg.queue.len()).sum();
        let planned = self.planned_moves(&self.moves);
        let (placed, unplaced): (Vec<&PlannedMove>, Vec<&PlannedMove>) = planned.iter().partition(|m| m.to.is_some());
        let waiting = placed.iter().fold(0u64, |sum, m| sum.saturating_add(m.bytes));
        let left_bytes = waiting.saturating_add(recovery.left_bytes);
        let eta = u128::from(left_bytes) * 1000 / u128::from(recovery.bytes_per_s.max(1));
        let eta_ms = (left_bytes > 0 && recovery.bytes_per_s > 0).then(|| u64::try_from(eta).unwrap_or(u64::MAX));
        let waits = count(placed.len()).saturating_add(count(queued));
        Moves { running: count(running), waiting: waits, unplaced: count(unplaced.len()), left_bytes, eta_ms }
    }
}
