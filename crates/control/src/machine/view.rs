//! Views of pools, volumes, OSDs and PGs, for display.

use super::osds::Liveness;
use super::{Control, Now};
use crate::admin::{HolderView, OsdView, PgMemberView, PgView, PoolView, VolumeView};
use crate::plan;
use crate::records::{Holder, Holding, PgRecord, PoolRecord, PoolState, SnapshotState, VolumeRecord, VolumeState};
use std::collections::BTreeSet;
use types::control::{Base, LostExtent, PgReport, Refusal};
use types::map::Member;
use types::units::{AU, CHUNKS_PER_SEGMENT, reserved_aus};
use types::writers::Writer;
use types::{CHUNK, OsdId, SEGMENT, SessionId, Stripe, Time};

/// Ranges of a striped volume that one extent names.
const RANGES_SHOWN: usize = 4;

impl Control {
    /// Returns how many bytes can be written into volumes of a pool before the first of its OSDs is full.
    pub(super) fn available_bytes(&self, now: Time, pool: &PoolRecord) -> Option<u64> {
        let told = |osd: OsdId| {
            let live = self
                .osds
                .get(&osd)
                .filter(|live| self.is_up(now, osd) && (live.used_bytes > 0 || live.free_bytes > 0))?;
            let aus = u32::try_from((live.used_bytes + live.free_bytes) / AU).unwrap_or(u32::MAX);
            let reserved = u64::from(reserved_aus(aus)) * AU;
            Some(if live.full { 0 } else { live.free_bytes.saturating_sub(reserved) })
        };
        plan::available_bytes(&self.records, pool, &told)
    }

    pub(super) fn pool_views(&self, now: Time) -> Vec<PoolView> {
        let promises = plan::Promises::new(&self.records, None);
        self.records.pools.values().map(|pool| self.view_of_pool(now, pool, &promises)).collect()
    }

    pub(super) fn pool_view(&self, now: Time, pool: &PoolRecord) -> PoolView {
        self.view_of_pool(now, pool, &plan::Promises::new(&self.records, None))
    }

    fn view_of_pool(&self, now: Time, pool: &PoolRecord, promises: &plan::Promises) -> PoolView {
        let state = match pool.state {
            PoolState::Creating => "creating",
            PoolState::Ready => "ready",
            PoolState::Deleting => "deleting",
        };
        // The columns of a striped segment lie in several PGs.
        let chunks: u64 = self.records.pgs_of(pool.id).map(|pg| u64::from(self.records.load_of(pg.pg).chunks)).sum();
        let trashed = self.records.trash_of(pool.id).count();
        PoolView {
            pool: pool.id,
            name: pool.name.clone(),
            replicas: pool.replicas,
            domain: pool.domain.clone(),
            pg_count: pool.pg_count,
            state: state.to_string(),
            volumes: u32::try_from(self.records.volumes_of(pool.id).count() - trashed).unwrap_or(u32::MAX),
            segments: chunks / u64::from(CHUNKS_PER_SEGMENT),
            trashed: u32::try_from(trashed).unwrap_or(u32::MAX),
            limits: pool.limits,
            provisioned_bytes: plan::provisioned(&self.records, pool).bytes,
            quota_bytes: pool.quota.bytes,
            quota_volumes: pool.quota.volumes,
            device_class: pool.device_class.clone(),
            quota_overcommit_percent: pool.quota.overcommit_percent,
            overcommit_percent: promises.percent(&self.records, pool),
            available_bytes: self.available_bytes(now, pool),
            backup_compression: pool.backup_compression,
        }
    }

    pub(super) fn volume_view(&self, now: Time, volume: &VolumeRecord) -> VolumeView {
        let state = match volume.state {
            VolumeState::Ready if volume.cloning => "cloning",
            VolumeState::Ready => "ready",
            VolumeState::Trashed => "trashed",
            VolumeState::Deleting => "deleting",
        };
        let writer = |(of, h): (Writer, &Holder)| HolderView {
            session: of.session,
            name: h.name.clone(),
            address: h.address.clone(),
            since_ms: h.since_ms,
            alive: self.leases.left(now, volume.id, of.session).is_some(),
        };
        let writers: Vec<HolderView> = volume.holders().map(writer).collect();
        let one = |of: &Holding| writer((Writer { epoch: of.epoch, session: of.session }, &of.holder));
        let being_fenced = volume.leaving.iter().map(one).collect();
        let limits = self.records.limits_of(volume);
        let limits_of = match volume.limits {
            Some(_) => "volume",
            None if limits.is_none() => "none",
            None => "pool",
        };
        VolumeView {
            volume: volume.id,
            name: self.records.full_name(volume),
            len_bytes: volume.len_bytes,
            allocated_bytes: self.allocated(volume),
            state: state.to_string(),
            epoch: volume.epoch,
            session: writers.last().map_or(SessionId(0), |writer| writer.session),
            holder: writers.last().cloned(),
            writers,
            being_fenced,
            multi_writer: volume.is_multi_writer(),
            created_ms: volume.created_ms,
            stripe: volume.stripe.is_striped().then_some(volume.stripe),
            description: volume.description.clone(),
            labels: volume.labels.clone(),
            resize_bytes: volume.resize.as_ref().map(|resize| resize.len_bytes),
            shrink_step: self.shrink_step(now, volume).map(|(step, _)| step.to_owned()),
            limits,
            limits_of: limits_of.to_owned(),
            when_full: volume.when_full,
            snapshots: self.records.snapshots_of(volume.id).filter(|s| s.state != SnapshotState::Deleting).count()
                as u32,
            rollback_to: volume.rollback.as_ref().map(|rollback| {
                let snapshot = self.records.snapshots.get(&(volume.id, rollback.snapshot));
                snapshot.map_or_else(|| rollback.snapshot.to_string(), |s| s.name.clone())
            }),
            flatten: self.flatten_view(volume),
            faults: super::faults::fault_views(volume),
            parent: volume.clone_of.map(|base| self.base_name(base)),
            depth: volume.depth,
            clones: plan::clones_of(&self.records, volume.id, None).count() as u32,
        }
    }

    /// Returns the bytes of the segments of a volume. One that was longer keeps those behind its end.
    fn allocated(&self, volume: &VolumeRecord) -> u64 {
        let end = volume.len_bytes.div_ceil(SEGMENT);
        self.records.segments_of(volume.id).filter(|segment| u64::from(segment.index.0) < end).count() as u64 * SEGMENT
    }

    /// Returns the name of a snapshot that a clone began with; its ids when it is gone.
    fn base_name(&self, base: Base) -> String {
        let volume = self.records.volumes.get(&base.volume);
        let volume = volume.map_or_else(|| base.volume.to_string(), |volume| self.records.full_name(volume));
        let snapshot = self.records.snapshots.get(&(base.volume, base.snapshot));
        let snapshot = snapshot.filter(|s| s.state != SnapshotState::Deleting);
        format!("{volume}@{}", snapshot.map_or_else(|| base.snapshot.to_string(), |s| s.name.clone()))
    }

    /// Returns every OSD as it is seen now, for the metrics.
    pub fn osds_seen(&self, now: Now) -> Vec<OsdView> {
        self.osd_views(now.mono)
    }

    /// Returns every pool as it is seen now, for the metrics.
    pub fn pools_seen(&self, now: Now) -> Vec<PoolView> {
        self.pool_views(now.mono)
    }

    pub(super) fn osd_views(&self, now: Time) -> Vec<OsdView> {
        self.records.osds.values().map(|osd| self.osd_view(now, osd)).collect()
    }

    fn osd_view(&self, now: Time, osd: &crate::records::OsdRecord) -> OsdView {
        let live = self.osds.get(&osd.id);
        let liveness = match self.liveness(now, osd.id) {
            _ if osd.is_new() => "new",
            Liveness::Up => "up",
            Liveness::Down => "down",
            Liveness::Unknown => "unknown",
        };
        let holds = |pg: &&PgRecord| pg.holders().any(|holder| holder == osd.id);
        let poisoned = osd.poisoned.as_ref().filter(|p| p.incarnation == osd.incarnation);
        // The last report of a dead OSD no longer holds.
        let is_up = liveness == "up";
        let leads = if is_up { self.leads.values().filter(|l| l.osd == osd.id).count() } else { 0 };
        let heard = live.and_then(|l| l.heard).map(|heard| now.since(heard).as_millis());
        OsdView {
            osd: osd.id,
            uuid: osd.uuid,
            live: liveness.to_string(),
            is_in: osd.is_in,
            drain: osd.drain,
            full: is_up && live.is_some_and(|l| l.full),
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
            version: live.map_or_else(String::new, |l| l.version.clone()),
            auto_out: osd.auto_out,
            replaces: osd.replaces,
            device_class: osd.device_class.clone(),
            heard_ms_ago: heard.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
        }
    }

    /// Returns the PGs of one pool, or of all when `pool` is empty.
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
            change: self.change_view(pg),
            segments: self.records.segments_in(pg.pg),
            lost: self.bad_extents(now, pg),
        }
    }

    /// Returns the extents that are in no replica, by the reports of the members.
    fn lost_in(&self, pg: &PgRecord) -> BTreeSet<LostExtent> {
        let reports = pg.members.iter().filter_map(|m| self.reports.get(&m.replica));
        reports.flat_map(|r| r.lost.iter().copied()).collect()
    }

    /// Returns the lost extents in words, and those that no available replica can read while another
    /// one may have a copy.
    pub(super) fn bad_extents(&self, now: Time, pg: &PgRecord) -> Vec<String> {
        let has_part = |m: &&Member| {
            let idle = |r: &PgReport| r.quarantined || r.repairing;
            self.is_up(now, m.osd) && !self.reports.get(&m.replica).is_some_and(idle)
        };
        let (here, away): (Vec<&Member>, Vec<&Member>) = pg.members.iter().partition(has_part);
        let reports = here.iter().filter_map(|m| self.reports.get(&m.replica));
        let lost = self.lost_in(pg);
        let unread: BTreeSet<LostExtent> = reports.flat_map(|r| r.unread.iter().copied()).collect();
        let away = if away.is_empty() {
            "a replica on an OSD that is down".to_string()
        } else {
            away.iter().map(|m| m.osd.to_string()).collect::<Vec<_>>().join(" or ")
        };
        let words = |extent: &LostExtent| self.extent_words(extent);
        let unread =
            unread.difference(&lost).map(|e| format!("{} on the replicas that are up; {away} may have one", words(e)));
        lost.iter().map(words).chain(unread).collect()
    }

    /// Returns an extent in words, by volume address.
    fn extent_words(&self, extent: &LostExtent) -> String {
        let stripe = self.records.volumes.get(&extent.chunk.volume).map_or(Stripe::NONE, |volume| volume.stripe);
        let start = u64::from(extent.chunk.index) * CHUNK + u64::from(extent.offset_bytes);
        let ranges = stripe.volume_ranges(start..start + u64::from(extent.len_bytes));
        let shown: Vec<String> = ranges.iter().take(RANGES_SHOWN).map(|r| format!("{}..{}", r.start, r.end)).collect();
        let more = ranges.len() - shown.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} ranges more") };
        format!("volume {} bytes {}{more}", extent.chunk.volume.0, shown.join(", "))
    }

    fn live_lead(&self, now: Time, pg: &PgRecord) -> Option<OsdId> {
        self.leads.get(&pg.pg).map(|l| l.osd).filter(|osd| self.is_up(now, *osd))
    }
}
