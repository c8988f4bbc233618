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
use crate::records::{ChangeReason, OsdRecord, PgRecord, PoolRecord, PoolState, Record, Write};
use crate::settings::{NOOUT, NOREBALANCE};
use placement::{Domain, Osd, Place, PlacedPg, ReplicaMove};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::Refusal;
use types::map::Member;
use types::planted::{Bug, on};
use types::{OsdId, PgId, Time};

/// Most moves of a plan that only balance.
const BALANCE_MAX: usize = 1024;
/// When more than one in so many OSDs is down, a network or a rack is, and not their disks: none goes out by itself.
const AWAY_SHARE: usize = 4;
/// Longest wait for an OSD that is to take over another one.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(600);
/// A cluster in which nothing is to move is planned at this multiple of the interval.
const SETTLED_FACTOR: u32 = 5;

/// Returns the OSDs as a pool sees them that asks for a device class.
fn of_class<'a>(places: &'a [Place], osds: &BTreeMap<OsdId, OsdRecord>, class: Option<&str>) -> Cow<'a, [Place]> {
    if class.is_none() {
        return Cow::Borrowed(places);
    }
    let of = |place: &Place| {
        let is = |of: &dyn Fn(&OsdRecord) -> bool| osds.get(&place.osd.id).is_some_and(of);
        if is(&|o| o.is_of(class)) {
            return place.clone();
        }
        let leaves = place.leaves || is(&|o| o.is_wrong_for(class));
        Place { osd: Osd { usable: false, ..place.osd.clone() }, leaves, live: place.live, takes_over: None }
    };
    Cow::Owned(places.iter().map(of).collect())
}

/// A move of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub of: ReplicaMove,
    pub reason: ChangeReason,
    /// Members of the PG that are up and have not failed.
    live: usize,
}

impl Control {
    /// Takes OSDs out that were down for too long, and begins moves.
    pub(super) fn rebalance(&mut self, now: Now) {
        if self.moves_at > now.mono || self.batch.is_full() {
            return;
        }
        self.watch_away(now);
        self.put_out(now);
        self.remove_replaced(now);
        self.moves = self.plan_moves(now.mono, &self.records.osds);
        let pause = if self.moves.is_empty() { SETTLED_FACTOR } else { 1 };
        self.moves_at = now.mono + self.config.moves_every * pause;
        self.watch_emptied(now);
        self.begin_moves(now);
    }

    /// Returns for how long an OSD has neither reported nor led a PG that serves.
    pub(super) fn away_for(&self, now: Time, osd: OsdId) -> Option<Duration> {
        let (seen, before_ms) = self.away.get(&osd)?;
        Some(now.since(*seen) + Duration::from_millis(*before_ms))
    }

    /// Records since when OSDs are away, for the leaders that follow: the time goes on with them.
    fn watch_away(&mut self, now: Now) {
        self.away.retain(|osd, _| self.records.osds.contains_key(osd));
        let unheard = self.unheard_leaders(now.mono);
        let started: Vec<OsdId> = self.records.osds.values().filter(|o| !o.is_new()).map(|o| o.id).collect();
        for osd in started {
            if self.batch.is_full() {
                return;
            }
            let is_away = match self.liveness(now.mono, osd) {
                Liveness::Unknown => continue,
                Liveness::Up => !self.is_up(now.mono, osd),
                Liveness::Down => !unheard.contains(&osd),
            };
            let since_ms = self.records.osds.get(&osd).and_then(|o| o.down_since_ms);
            if is_away {
                let since_ms = since_ms.map(|since| since.max(self.records.config.away_from_ms));
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

    /// Lets the time after which OSDs go out begin now.
    pub(super) fn restart_away(&mut self, now: Now) {
        self.away.values_mut().for_each(|away| *away = (now.mono, 0));
    }

    /// Takes OSDs out that were down for too long. This leader has seen it for a while itself: the clocks of two leaders may
    /// differ.
    fn put_out(&mut self, now: Now) {
        if self.too_many_are_away() {
            self.guarded_at = Some(now.mono);
        }
        let limit = self.records.config.osd_out_after(&self.config);
        // After a rack has returned its last OSDs get their full time.
        let guarded = self.guarded_at.is_some_and(|at| now.mono.since(at) < limit);
        if self.records.config.is_on(NOOUT) || guarded {
            return;
        }
        let seen_min = limit.min(self.config.move_patience);
        let is_late = |osd: &OsdId| {
            let seen = self.away.get(osd).is_some_and(|(seen, _)| now.mono.since(*seen) >= seen_min);
            seen && self.away_for(now.mono, *osd).is_some_and(|time| time >= limit)
        };
        let late: Vec<OsdId> = self.away.keys().copied().filter(is_late).collect();
        for osd in late {
            let writes = plan::osd_auto_out(&self.records, osd);
            if writes.is_empty() || self.batch.is_full() {
                continue;
            }
            self.write(writes);
            let text = format!("{osd} was down for {} s: it is out, and its replicas move", limit.as_secs());
            self.note(now, Note::warning("osd.out", osd, text));
        }
    }

    /// Returns the OSDs that hold replicas.
    fn holders(&self) -> BTreeSet<OsdId> {
        self.records.pgs.values().flat_map(PgRecord::holders).collect()
    }

    /// Whether so many OSDs are away that no disk is the reason. Those that an administrator took out do not count, nor those
    /// that went out and are empty.
    fn too_many_are_away(&self) -> bool {
        let holders = self.holders();
        let counts = |o: &&OsdRecord| !o.is_new() && (o.auto_out && holders.contains(&o.id) || !o.leaves());
        let counted = || self.records.osds.values().filter(counts);
        let away = counted().filter(|o| o.auto_out || self.away.contains_key(&o.id)).count();
        away > (counted().count() / AWAY_SHARE).max(1)
    }

    /// Removes OSDs of which another one has taken over all replicas, once they are down. Every PG has a leader that this
    /// metadata leader has heard: records that went back in time may lack members.
    fn remove_replaced(&mut self, now: Now) {
        let is_replaced = |old: &OsdId| self.records.osds.get(old).is_some_and(|o| o.leaves() && !o.auto_out);
        let replaced = self.records.osds.values().filter_map(|o| o.replaces).filter(is_replaced);
        let replaced: Vec<OsdId> = replaced.collect();
        if replaced.is_empty() || !self.records.pgs.keys().all(|pg| self.leads.contains_key(pg)) {
            return;
        }
        for old in replaced {
            let is_gone = self.liveness(now.mono, old) == Liveness::Down && !self.batch.is_full();
            if is_gone && !self.records.pgs.values().any(|pg| pg.holders().any(|osd| osd == old)) {
                // It is tried again when too few OSDs have confirmed the last one that came or went.
                let _ = self.remove_osd(now, old);
            }
        }
    }

    /// Returns the OSD that a new one takes over, unless it has not come for too long, or has no room.
    fn predecessor(
        &self,
        now: Time,
        osds: &BTreeMap<OsdId, OsdRecord>,
        new: &OsdRecord,
        usable: bool,
    ) -> Option<OsdId> {
        let limit = self.records.config.osd_out_after(&self.config).min(SUCCESSOR_WAIT);
        let is_late = match new.is_new() {
            true => u128::from(self.wall_ms(now).saturating_sub(new.created_ms)) >= limit.as_millis(),
            false => new.leaves() || self.away_for(now, new.id).is_some_and(|time| time >= limit),
        };
        let has_no_room = !new.is_new() && self.is_up(now, new.id) && !usable;
        // An OSD that is in again keeps its replicas.
        let leaves = |old: &OsdId| osds.get(old).is_some_and(OsdRecord::leaves);
        new.replaces.filter(leaves).filter(|_| !is_late && !has_no_room)
    }

    pub(super) fn wall_ms(&self, now: Time) -> u64 {
        let led = now.since(self.started.mono).as_millis();
        self.started.wall_ms.saturating_add(u64::try_from(led).unwrap_or(u64::MAX))
    }

    fn places(&self, now: Time, osds: &BTreeMap<OsdId, OsdRecord>) -> Vec<Place> {
        let (sizes, coming) = (self.replica_sizes(), self.coming(now));
        let mean = sizes.values().fold(0u64, |sum, size| sum.saturating_add(*size)) / (sizes.len() as u64).max(1);
        let is_filled = |osd: OsdId| {
            let live = self.osds.get(&osd);
            let (used, free) = live.map_or((0, 0), |live| (u128::from(live.used_bytes), u128::from(live.free_bytes)));
            let on_the_way = u128::from(mean) * (coming.get(&osd).copied().unwrap_or(0) + 1) as u128;
            used > 0 && (used + on_the_way) * 100 >= (used + free) * u128::from(NEARFULL_PERCENT)
        };
        let is_avoided =
            |osd: &OsdId| self.avoided.get(osd).is_some_and(|since| now.since(*since) < self.config.avoid_for);
        let holders = self.holders();
        let place = |o: &OsdRecord| {
            let may_stay = !o.leaves() || on(Bug::MovesToLeaving);
            let usable = may_stay && self.takes_replicas(now, o.id) && !is_filled(o.id) && !is_avoided(&o.id);
            let takes_over = self.predecessor(now, osds, o, usable).filter(|old| holders.contains(old));
            Place { osd: plan::placed(o, usable), leaves: o.leaves(), live: self.is_up(now, o.id), takes_over }
        };
        osds.values().map(place).collect()
    }

    /// Returns the PGs of a pool as they will be when all changes have ended, those with the fewest live members first.
    fn placed_pgs(&self, now: Time, pool: &PoolRecord) -> Vec<PlacedPg> {
        let mut kept: BTreeMap<PgId, Vec<OsdId>> = BTreeMap::new();
        for (osd, live) in &self.osds {
            live.kept.iter().for_each(|pg| kept.entry(*pg).or_default().push(*osd));
        }
        let placed = |record: &PgRecord| {
            let kept_on = kept.get(&record.pg).cloned().unwrap_or_default();
            let changes = record.change.is_some() || !record.queue.is_empty();
            let fixed = pool.state != PoolState::Ready || changes || !self.is_led(now, record.pg);
            (
                self.live_members(now, record.pg),
                PlacedPg { pg: record.pg, members: plan::planned(record), kept_on, fixed },
            )
        };
        let mut pgs: Vec<(usize, PlacedPg)> = self.records.pgs_of(pool.id).map(placed).collect();
        pgs.sort_by_key(|(live, placed)| (*live, placed.pg));
        pgs.into_iter().map(|(_, placed)| placed).collect()
    }

    /// Counts the members of a PG that are up and have not failed.
    fn live_members(&self, now: Time, pg: PgId) -> usize {
        let has_failed = |m: &Member| self.reports.get(&m.replica).is_some_and(|report| report.quarantined);
        let live = |m: &&Member| self.is_up(now, m.osd) && !has_failed(m);
        self.records.pgs.get(&pg).map_or(0, |r| r.members.iter().filter(live).count())
    }

    /// Plans all moves that the cluster makes by itself when its OSDs are these: first those of PGs with the fewest live members.
    fn plan_moves(&self, now: Time, osds: &BTreeMap<OsdId, OsdRecord>) -> Vec<Planned> {
        let places = self.places(now, osds);
        let mut moves = Vec::new();
        let mut pools = Vec::new();
        for pool in self.records.pools.values().filter(|pool| pool.state != PoolState::Deleting) {
            let Some(domain) = Domain::from_name(&pool.domain) else { continue };
            let mut pgs = self.placed_pgs(now, pool);
            let places = of_class(&places, osds, pool.device_class.as_deref());
            let leaving = placement::leaving_moves(&places, domain, &mut pgs);
            let planned =
                |of: ReplicaMove| Planned { of, reason: ChangeReason::Leaving, live: self.live_members(now, of.pg) };
            let is_stuck = leaving.iter().any(|of| of.to.is_none());
            moves.extend(leaving.into_iter().map(planned));
            if !is_stuck {
                pools.push((domain, places, pgs));
            }
        }
        moves.sort_by_key(|planned| planned.live);
        // Balance can wait until every replica is where it may stay. One that has no place to go to holds up its own pool alone.
        let all_up = osds.values().all(|o| o.is_new() || o.leaves() || self.is_up(now, o.id));
        if moves.iter().any(|planned| planned.of.to.is_some()) || !all_up || self.records.config.is_on(NOREBALANCE) {
            return moves;
        }
        for (domain, places, mut pgs) in pools {
            let room = BALANCE_MAX - moves.len();
            let balancing = placement::balancing_moves(&places, domain, &mut pgs, room);
            moves.extend(balancing.into_iter().map(|of| Planned { of, reason: ChangeReason::Balance, live: 0 }));
        }
        moves
    }

    /// Whether a plan that is made now moves nothing, for tests.
    pub fn plans_no_move(&self, now: Now) -> bool {
        self.plan_moves(now.mono, &self.records.osds).iter().all(|planned| planned.of.to.is_none())
    }

    /// Records that an OSD is empty, when it was not at the last plan.
    fn watch_emptied(&mut self, now: Now) {
        let leaving = |osd: &OsdId| self.records.osds.get(osd).is_some_and(OsdRecord::leaves);
        let held = self.records.pgs.values().flat_map(PgRecord::holders).filter(leaving).collect();
        let before = std::mem::replace(&mut self.emptying, held);
        let emptied: Vec<OsdId> = before.difference(&self.emptying).copied().filter(leaving).collect();
        for osd in emptied {
            if self.batch.is_full() {
                self.emptying.insert(osd);
                continue;
            }
            self.note(now, Note::info("osd.emptied", osd, format!("{osd} holds no replica any more")));
        }
    }

    /// Gives up a change that cannot end. A target that is full, or that the leader cannot reach, is no target for a while.
    pub(super) fn give_up(&mut self, now: Time, record: &PgRecord) {
        let change = record.change.as_ref().filter(|change| change.from != change.to);
        let is_full = |osd: OsdId| self.osds.get(&osd).is_some_and(|live| live.full);
        let avoided = change.map(|c| c.to).filter(|to| is_full(*to) || self.cut_off.contains_key(&record.pg));
        let avoid_for = self.config.avoid_for;
        self.avoided.retain(|_, since| now.since(*since) < avoid_for);
        self.avoided.extend(avoided.map(|osd| (osd, now)));
        self.cut_off.remove(&record.pg);
        self.write(plan::give_up(record));
    }

    /// Whether the leader of a PG has not reached the target of its change for too long.
    pub(super) fn is_cut_off(&mut self, now: Time, record: &PgRecord) -> bool {
        let target = record.change.as_ref().filter(|change| !change.cancel && change.from != change.to).map(|c| c.to);
        let leader = self.leads.get(&record.pg).and_then(|lead| self.osds.get(&lead.osd));
        if !leader.is_some_and(|live| target.is_some_and(|to| live.unreachable.contains(&to))) {
            self.cut_off.remove(&record.pg);
            return false;
        }
        let since = *self.cut_off.entry(record.pg).or_insert(now);
        now.since(since) >= self.config.move_patience
    }

    /// Counts the replicas that move to each OSD. A change of a PG without a leader stands still, and needs nothing of its target.
    fn coming(&self, now: Time) -> BTreeMap<OsdId, usize> {
        let mut coming: BTreeMap<OsdId, usize> = BTreeMap::new();
        for record in self.records.pgs.values() {
            let moves = record.change.as_ref().filter(|change| change.from != change.to && self.is_led(now, record.pg));
            if let Some(change) = moves {
                *coming.entry(change.to).or_default() += 1;
            }
        }
        coming
    }

    /// Begins moves of the plan, as many as their targets may receive at once.
    fn begin_moves(&mut self, now: Now) {
        let backfills = self.records.config.osd_backfills(&self.config);
        let mut coming = self.coming(now.mono);
        for planned in std::mem::take(&mut self.moves) {
            let ReplicaMove { pg, from, to } = planned.of;
            let has_room = |to: &OsdId| coming.get(to).copied().unwrap_or(0) < backfills;
            let to = to.filter(|to| has_room(to) && self.takes_replicas(now.mono, *to) && !self.batch.is_full());
            let is_led = self.is_led(now.mono, pg);
            let is_ready = self.records.pools.get(&pg.pool).is_some_and(|pool| pool.state == PoolState::Ready);
            let may_begin = |r: &&PgRecord| r.change.is_none() && r.queue.is_empty() && is_led && is_ready;
            let record = self.records.pgs.get(&pg).filter(may_begin);
            let begun = to.zip(record).and_then(|(to, record)| {
                let writes = plan::begin_move(&self.records, record, (from, to), planned.reason, now.wall_ms)?;
                Some((to, writes))
            });
            let Some((to, writes)) = begun else {
                self.moves.push(planned);
                continue;
            };
            *coming.entry(to).or_default() += 1;
            self.write(writes);
            self.changing.insert(pg, Time::ZERO);
            self.expect_newcomer(pg);
            if on(Bug::ReplacedTooEarly) {
                let leaving = self.records.pgs.get(&pg).and_then(|r| r.members.iter().find(|m| m.osd == from)).copied();
                self.drop_members(&leaving.map(|member| (pg, member)).into_iter().collect::<Vec<_>>(), false);
            }
        }
    }

    /// Sets membership, device class and intent of OSDs. Returns the moves that follow.
    pub(super) fn set_osds(&mut self, now: Now, ask: &OsdSet) -> Result<Vec<PlannedMove>, Refusal> {
        let (writes, changed) = plan::osd_set(&self.records, ask, now.wall_ms)?;
        if ask.dry_run {
            let mut osds = self.records.osds.clone();
            for write in &writes {
                if let Write::Put(Record::Osd(osd)) = write {
                    osds.insert(osd.id, osd.clone());
                }
            }
            return Ok(self.planned_moves(&self.plan_moves(now.mono, &osds)));
        }
        if ask.is_in == Some(true) {
            // The time after which an OSD that is down goes out begins again.
            let named = self.away.iter_mut().filter(|(osd, _)| ask.osds.contains(osd));
            named.for_each(|(_, away)| *away = (now.mono, 0));
        }
        if !writes.is_empty() {
            self.write(writes);
            self.moves_at = Time::ZERO;
        }
        if let Some(record) = changed.first().and_then(|osd| self.records.osds.get(osd)) {
            let (place, drain) =
                (if record.is_in { "in" } else { "out" }, if record.drain { ", and drained" } else { "" });
            let names = changed.iter().map(OsdId::to_string).collect::<Vec<_>>().join(", ");
            let are = if changed.len() == 1 { "is" } else { "are" };
            let subject = if changed.len() == 1 { names.clone() } else { "cluster".to_owned() };
            let class = ask.device_class.as_ref().map(|class| format!(", of device class {class}")).unwrap_or_default();
            self.note(now, Note::info("osd.set", subject, format!("{names} {are} {place} by command{drain}{class}")));
        }
        Ok(self.planned_moves(&self.plan_moves(now.mono, &self.records.osds)))
    }

    fn planned_moves(&self, moves: &[Planned]) -> Vec<PlannedMove> {
        let sizes = self.replica_sizes();
        let size = |osd: OsdId| sizes.get(&osd).copied().unwrap_or(0);
        let planned = |m: &ReplicaMove| PlannedMove { pg: m.pg, from: m.from, to: m.to, bytes: size(m.from) };
        moves.iter().map(|planned_move| planned(&planned_move.of)).collect()
    }

    /// Estimates the bytes of a replica on each OSD. One that has not told its use counts as the mean of the others.
    pub(super) fn replica_sizes(&self) -> BTreeMap<OsdId, u64> {
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
        self.moves.iter().filter(|planned| planned.of.to.is_none()).map(|planned| (planned.of.pg, planned.of.from))
    }

    /// Returns the progress of all moves.
    pub(super) fn moves_view(&self, now: Time, recovery: &Recovery) -> Moves {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut view = Moves::default();
        for record in self.records.pgs.values() {
            let begun = usize::from(record.change.as_ref().is_some_and(|c| c.from != c.to && !c.cancel));
            let (led, queued) = (self.is_led(now, record.pg), count(record.queue.len()));
            match led {
                true => (view.running, view.waiting) = (view.running + count(begun), view.waiting + queued),
                false => view.blocked = view.blocked.saturating_add(count(begun)).saturating_add(queued),
            }
        }
        for planned in self.planned_moves(&self.moves) {
            match planned.to {
                None => view.unplaced += 1,
                Some(_) if !self.is_led(now, planned.pg) => view.blocked += 1,
                Some(_) => {
                    view.waiting += 1;
                    view.left_bytes = view.left_bytes.saturating_add(planned.bytes);
                }
            }
        }
        let running_bytes = if view.running > 0 { recovery.left_bytes } else { 0 };
        view.left_bytes = view.left_bytes.saturating_add(running_bytes);
        let eta = u128::from(view.left_bytes) * 1000 / u128::from(recovery.bytes_per_s.max(1));
        let is_known = view.left_bytes > 0 && recovery.bytes_per_s > 0;
        view.eta_ms = is_known.then(|| u64::try_from(eta).unwrap_or(u64::MAX));
        view
    }
}
