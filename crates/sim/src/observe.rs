//! Calls the observers of `check`: after each turn of an OSD, now and then, and at rest.
//!
//! Invariant: they only look; a run without them has the same trace hash.

use crate::check::bounds::{self, Fullest};
use crate::check::claims::Believed;
use crate::check::decisions::Decisions;
use crate::check::isolation::Isolation;
use crate::check::limits::Limits;
use crate::check::promotions::{Look, Promotions};
use crate::check::raft::{Laws, View};
use crate::check::silence::{self, Member};
use crate::check::stores::{AT_RESERVE_MAX, INSTALL_WAITS_MAX, PENDING_FREE_MAX, Stores};
use crate::cluster::{Cluster, DEVICE};
use control::Standing;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use types::units::{SECTOR, SEGMENT};
use types::{OsdId, PgId, ReplicaId, SegmentIndex, Term, Time, VolumeId};

/// State of all observers.
#[derive(Default)]
pub struct Observers {
    pub laws: Laws,
    pub decisions: Decisions,
    pub promotions: Promotions,
    /// Highest fill of every queue.
    pub fullest: RefCell<Fullest>,
    pub stores: RefCell<Stores>,
    pub isolation: RefCell<Isolation>,
    pub limits: RefCell<Limits>,
    /// The first violation.
    seen: Option<String>,
}

impl Cluster {
    /// Looks at the changes of an OSD's turn.
    pub(crate) fn observe(&mut self, i: usize) {
        self.note_lies(i);
        let node = &mut self.osds[i];
        let Some((osd, _)) = &node.running else { return };
        let runs = *osd.phase() == osd::Phase::Running;
        let must_refuse = if runs { node.must_refuse.take() } else { None };
        if must_refuse.is_some_and(|faults| faults == self.read_faults()) {
            let what = format!("{} serves a poisoned store without --after-poison", self.osds[i].id);
            self.observers.seen.get_or_insert(what);
        }
        if self.observers.seen.is_some() || self.budget.is_blind() {
            return;
        }
        if let Err(what) = self.look_at_tail(i) {
            self.observers.seen = Some(what);
            return;
        }
        let node = &mut self.osds[i];
        let Some((osd, _)) = &node.running else { return };
        let mut look = || {
            for group in osd.groups_for_tools() {
                let (last, durable) = (group.last_index(), group.durable_end());
                let view = View {
                    pg: group.identity().pg,
                    osd: node.id,
                    replica: group.identity().replica,
                    term: group.term(),
                    elected: group.is_elected(),
                    commit: group.commit(),
                    first: group.first_index(),
                    last,
                    last_term: group.term_at(last).unwrap_or_default(),
                    durable,
                    durable_term: group.term_at(durable),
                };
                let freed = osd.log_first_for_tools(view.replica);
                if view.first < freed {
                    let View { pg, replica, first, .. } = view;
                    return Err(format!(
                        "{replica} of pg {pg} would send entries from {first}; the log begins at {freed}"
                    ));
                }
                self.observers.laws.look(view, group.members(), |index| group.term_at(index))?;
                let (View { pg, replica, .. }, applied) = (view, group.applied());
                let look = Look { pg, replica, applied, durable, is_whole: group.is_whole() };
                self.observers.promotions.look(look, group.members())?;
                let who = (pg, replica, node.life);
                self.observers.decisions.look(who, applied, group.decides())?;
            }
            if !node.audited && *osd.phase() == osd::Phase::Running {
                node.audited = true;
                osd.audit_for_tools().map_err(|wrong| format!("{} after its mount: {wrong}", node.id))?;
            }
            Ok(())
        };
        self.observers.seen = look().err();
        if self.observers.seen.is_none() {
            self.observers.seen = self.look_at_store(i).err();
        }
    }

    /// Compares the contents of replicas. After a mount, the device holds what the map names, or the log redoes it.
    /// A replica that a stream has filled holds what the others hold.
    fn look_at_store(&mut self, i: usize) -> Result<(), String> {
        let id = self.osds[i].id;
        if !self.keeps_its_word(id) || self.is_rotten(id) {
            return Ok(());
        }
        let mut scanned = std::mem::take(&mut self.osds[i].scanned);
        let verdict = self.look_at_replicas(i, &mut scanned);
        self.osds[i].scanned = scanned;
        verdict
    }

    fn look_at_replicas(&self, i: usize, scanned: &mut BTreeSet<ReplicaId>) -> Result<(), String> {
        let id = self.osds[i].id;
        let Some((osd, _)) = &self.osds[i].running else { return Ok(()) };
        let mut stores = self.observers.stores.borrow_mut();
        for group in osd.groups_for_tools() {
            let (replica, applied) = (group.identity().replica, group.applied());
            stores.note_whole(replica, group.is_whole());
            let honest = |osd: OsdId| self.keeps_its_word(osd) && !self.is_rotten(osd);
            if group.is_leader()
                && let Err(what) = stores.majority_is_whole(group.identity().pg, group.members())
                && group.members().iter().all(|m| honest(m.osd))
            {
                return Err(what);
            }
            // Before that, the log has not redone all that it may have to.
            let redone = applied >= group.commit();
            let fresh = !scanned.contains(&replica) && redone;
            let wanted = group.is_whole() && redone && stores.wants(replica, applied, group.members());
            if !fresh && !wanted {
                continue;
            }
            let image = self.image(i);
            let Some(held) = osd.contents_for_tools(replica, |at| image.page_at(at)) else { continue };
            let held = held.map_err(|at| {
                let pg = group.identity().pg;
                format!(
                    "{id} has lost block {} of {} of pg {pg} on an honest disk, and its map names it",
                    at.block, at.chunk
                )
            })?;
            scanned.insert(replica);
            if wanted {
                stores.look_at_contents(replica, applied, group.members(), &held)?;
            }
        }
        Ok(())
    }

    /// Checks that every log frees segments, and every home units, as long as nothing but themselves stands in the way.
    fn stores_move(&self) -> Result<(), String> {
        let (now, mut stores) = (self.world.now(), self.observers.stores.borrow_mut());
        for node in &self.osds {
            let osd = node.running.as_ref().map(|(osd, _)| osd);
            let room = osd.and_then(|osd| osd.log_room_for_tools()).filter(|room| room.at_reserve);
            let home =
                osd.map(|osd| osd.fill_for_tools().0.home).map(|home| (home.pending_free_bytes, home.capacity_bytes));
            let home = home.filter(|(pending_free, capacity)| *pending_free > capacity / 2);
            let install = osd.and_then(|osd| osd.awaits_install_for_tools());
            if room.is_none() && home.is_none() && install.is_none() {
                stores.look_at_log(now, node.id, None)?;
                stores.look_at_pending_free(now, node.id, None)?;
                stores.look_at_wait(now, node.id, None)?;
                continue;
            }
            let faults = self.world.look_at_disk_faults(node.node, DEVICE);
            let hindered =
                faults.stuck || faults.full || faults.slow > 1 || faults.slow_reads > 1 || faults.read_error_ppm > 0;
            let lied = !self.is_honest(node.id) || self.is_rotten(node.id);
            let free = !hindered && !lied && !self.world.is_paused(node.node);
            let long = stores.look_at_log(now, node.id, room.filter(|_| free))?;
            let log = ("ms that a log was full", long.as_millis() as u64, AT_RESERVE_MAX.as_millis() as u64);
            let long = stores.look_at_pending_free(now, node.id, home.filter(|_| free))?;
            let home = (
                "ms that half of a home was pending free",
                long.as_millis() as u64,
                PENDING_FREE_MAX.as_millis() as u64,
            );
            let long = stores.look_at_wait(now, node.id, install.filter(|_| free))?;
            let wait =
                ("ms that an installation waited", long.as_millis() as u64, INSTALL_WAITS_MAX.as_millis() as u64);
            self.observers.fullest.borrow_mut().look([log, home, wait])?;
        }
        Ok(())
    }

    /// Checks that a mount finds every batch that was durable. A disk that has lost the last one without a trace counts
    /// as lost, and its process is stopped (R4).
    fn look_at_tail(&mut self, i: usize) -> Result<(), String> {
        let node = &mut self.osds[i];
        let Some((osd, _)) = &node.running else { return Ok(()) };
        let (found, durable) = osd.batches_for_tools();
        let before = node.durable_batch;
        // A life may write over the place of a lost batch and end before it serves, so its mount counts as well.
        if found > 0 && !node.audited {
            node.tail_found = node.tail_found.min(found);
        }
        if *osd.phase() != osd::Phase::Running {
            return Ok(());
        }
        let found = std::mem::replace(&mut node.tail_found, u64::MAX);
        // The replicas of a device that meta has found to be older have failed, and its log goes on from there.
        node.durable_batch = if node.restored { durable } else { before.max(durable) };
        if node.audited || found >= before || node.restored {
            return Ok(());
        }
        let id = node.id;
        if !self.budget.may_lose_tail(i) && self.budget.may_hide_tail(i) {
            return Ok(());
        }
        if !self.budget.may_lose_tail(i) {
            return Err(format!(
                "{id} has lost the end of its log: batch {before} was durable, and {found} is the last"
            ));
        }
        tracing::info!(osd = %id, before, found, "its disk has lost the end of the log: it counts as lost");
        self.budget.lose(i);
        self.stop_osd(i, false);
        Ok(())
    }

    /// Notes a violation that another part of the simulator saw.
    pub(crate) fn note_wrong(&mut self, what: String) {
        self.observers.seen.get_or_insert(what);
    }

    /// Checks that the observers have seen no violation so far, and that every queue is within its limit now.
    ///
    /// # Errors
    /// The first violation.
    pub fn observed(&self) -> Result<(), String> {
        let early = self.linear.durable.as_ref().and_then(|d| d.failure.clone());
        let claimed = self.claims.borrow().failure.clone();
        if let Some(what) = self.observers.seen.clone().or(early).or(claimed) {
            return Err(what);
        }
        self.leases_exclude()?;
        self.stores_move()?;
        self.queues_are_bounded()
    }

    /// Checks that leaders hold the volume to its I/O limit.
    pub(crate) fn limits_hold(&self) -> Result<(), String> {
        let mut limits = self.observers.limits.borrow_mut();
        if limits.set_at().is_none() {
            return Ok(());
        }
        let served = self.running().map(|(_, osd)| osd.served_for_tools()).sum();
        limits.look(self.world.now(), served, self.osds.len() as u64)
    }

    /// Checks that requests which touch other PGs alone are answered while one PG has no quorum (§7.6).
    pub(crate) fn others_are_answered(&self) -> Result<(), String> {
        let (now, mut isolation) = (self.world.now(), self.observers.isolation.borrow_mut());
        let (Some(stuck), Some(records)) = (isolation.stuck(now), self.meta.records()) else { return Ok(()) };
        let beside = |volume: u64, first: u64, count: u64| {
            let segment = |sector: u64| sector * SECTOR / SEGMENT;
            (segment(first)..=segment(first + count - 1)).all(|index| {
                let found = records.segments.get(&(VolumeId(volume), SegmentIndex(index as u32)));
                found.is_some_and(|segment| !segment.pending && segment.pgs().all(|pg| pg != stuck))
            })
        };
        let open = self.clients().iter().filter(|client| client.is_open());
        let asked = open.filter_map(|client| client.workload.as_ref()?.oldest_of(&beside)).min();
        asked.map_or(Ok(()), |asked| isolation.look(now, Time(asked)))
    }

    fn queues_are_bounded(&self) -> Result<(), String> {
        let mut fullest = self.observers.fullest.borrow_mut();
        for (id, osd) in self.running() {
            let (stats, queued) = osd.fill_for_tools();
            let log_bytes = self.options.log_bytes_of(id.0 as usize - 1);
            let device = bounds::engine(&stats, log_bytes).into_iter().chain(queued.map(bounds::queued));
            let groups = osd.groups_for_tools().flat_map(|group| group.fill().limits(&self.options.tuned.osd.group));
            fullest.look(device.chain(groups)).map_err(|what| format!("{id}: {what}"))?;
        }
        for client in self.clients() {
            fullest.look(client.limits()).map_err(|what| format!("{}: {what}", self.world.node_name(client.node)))?;
        }
        Ok(())
    }

    /// Checks that a lease ends before another leader can be elected (R3). Otherwise a read may be answered with bytes
    /// that another leader has overwritten, whether or not some client happens to see it.
    fn leases_exclude(&self) -> Result<(), String> {
        let mut elected: BTreeMap<PgId, (Term, OsdId)> = BTreeMap::new();
        for (id, osd) in self.running() {
            for group in osd.groups_for_tools().filter(|g| g.is_leader()) {
                let newest = elected.entry(group.identity().pg).or_default();
                *newest = (*newest).max((group.term(), id));
            }
        }
        for node in &self.osds {
            let Some((osd, _)) = &node.running else { continue };
            let now = self.world.local_now(node.node);
            for group in osd.groups_for_tools().filter(|g| g.reads_under_lease(now)) {
                let (pg, term) = (group.identity().pg, group.term());
                let (newest, other) = elected[&pg];
                if newest > term {
                    return Err(format!(
                        "pg {pg}: {} reads under the lease of {term}, {other} leads in {newest}",
                        node.id
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that some member has given a reason when, beyond the budget, `what` was not served within its time.
    ///
    /// # Errors
    /// No member has given one.
    pub fn speaks_up(&self, what: &str) -> Result<(), String> {
        let Some(records) = self.meta.records() else { return Ok(()) };
        let mut all = Vec::new();
        for pg in records.pgs.values() {
            let members: Vec<Member> = pg.members.iter().map(|m| self.member(pg.pg, m.osd)).collect();
            let serves = |r: &types::control::PgReport| r.pg == pg.pg && r.leading.as_ref().is_some_and(|l| l.active);
            let active = self.running().filter(|(_, osd)| osd.reports_for_tools().iter().any(serves)).count() == 1;
            silence::check(pg.pg, &members, active).map_err(|why| format!("{why} ({what})"))?;
            all.extend(members);
        }
        silence::check_unanswered(what, all.iter())
    }

    fn member(&self, pg: PgId, id: OsdId) -> Member {
        let node = &self.osds[id.0 as usize - 1];
        let Some((osd, _)) = &node.running else {
            return match &node.ended {
                Some(why) => Member::Down(why.clone()),
                None if self.budget.is_lost(id.0 as usize - 1) => Member::Down("its disk is lost".to_owned()),
                None => Member::Silent,
            };
        };
        let refused = || osd.refusal().map(|(_, reason)| reason);
        if let Some(reason) = osd.stopped().or_else(refused).or_else(|| osd.waits_because()) {
            return Member::Down(reason.to_owned());
        }
        if let Some((_, why)) = osd.complaints_for_tools().into_iter().find(|(of, _)| *of == pg) {
            return Member::Complains(why);
        }
        let report = osd.reports_for_tools().into_iter().find(|r| r.pg == pg);
        match (report, self.meta.standing()) {
            (Some(report), _) => Member::Sound(report.applied.0),
            // The metadata server creates no replica before a majority of the OSDs is there, and its status says so.
            (None, Some(Standing::Waiting)) => Member::Complains("the metadata server waits for a majority".to_owned()),
            (None, _) => Member::Silent,
        }
    }

    /// Checks that the device of OSD `i` holds every claim of its replicas, and the entries that its process takes for durable. The
    /// process has ended, or everything rests.
    pub(crate) fn examine_claims(&self, i: usize) {
        self.note_lies(i);
        let node = &self.osds[i];
        let groups = node.running.iter().flat_map(|(osd, _)| osd.groups_for_tools());
        let believed = groups.map(|group| Believed {
            replica: group.identity().replica.0,
            index: group.durable_end().0,
            term: group.term_at(group.durable_end()).map(|term| term.0),
        });
        let believed: Vec<Believed> = believed.collect();
        let mut claims = self.claims.borrow_mut();
        self.world.durable(node.node, DEVICE, |durable| claims.examine(node.node, &believed, durable));
    }

    /// Excuses the device of OSD `i` from now on if it has lied.
    fn note_lies(&self, i: usize) {
        let id = self.osds[i].id;
        let lied = self.budget.has_lied(i) && !self.budget.has_failed_openly_only(i);
        self.claims.borrow_mut().lied(self.osds[i].node, lied || self.is_rotten(id));
    }

    /// Checks that the device of every OSD holds every claim of its replicas.
    ///
    /// # Errors
    /// The first claim that is not on its device.
    pub fn claims_stand(&self) -> Result<(), String> {
        (0..self.osd_count()).for_each(|i| self.examine_claims(i));
        self.claims.borrow().failure.clone().map_or(Ok(()), Err)
    }

    /// Audits the accounting of every device.
    ///
    /// # Errors
    /// The OSD whose accounting is wrong, and where.
    pub fn audit(&self) -> Result<(), String> {
        self.running().try_for_each(|(id, osd)| osd.audit_for_tools().map_err(|wrong| format!("{id} at rest: {wrong}")))
    }
}
