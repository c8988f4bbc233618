//! Metrics of every meta, and those of the cluster, which the leading one exports.
//!
//! Invariant: the figures of the cluster have a registry of their own, which only the leading meta renders. A
//! standby knows nothing of OSDs and PGs, and zeros would raise alarms. Series by OSD, by pool and by volume are bounded.

use control::{Control, Now};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use telemetry::{Labels, Registry};

/// Most OSDs, most pools and most volumes that have series of their own.
const SERIES_MAX: usize = 1000;

telemetry::metrics! {
    /// Metrics of every meta.
    pub struct MetaMetrics("basalt_meta") {
        counter commits: "transactions committed";
        counter commit_failures: "transactions that failed and ended a leadership";
        latency commit_seconds: "from sending a transaction to its commit";
        counter requests: "requests of clients and administrators received while leading";
        gauge leading: "1 while this meta leads, else 0";
        gauge osd_streams: "OSDs that are connected to this meta";
    }
}

telemetry::metrics! {
    /// Metrics of the cluster, exported by the leading meta.
    pub struct ClusterGauges("basalt_cluster") {
        gauge health: "0 ok or waiting for reports, 1 degraded, 2 down";
        gauge problems: "lines of problems that status shows";
        gauge osds: "registered OSDs";
        gauge osds_up: "OSDs that report";
        gauge osds_in: "OSDs that may hold data";
        gauge osds_full: "OSDs that report that they are full";
        gauge pools: "pools";
        gauge pools_nearfull: "pools that were promised more than their OSDs have, one of which is filled to 70 % or more";
        gauge volumes: "volumes";
        gauge segments: "allocated segments";
        gauge pgs: "PGs";
        gauge pgs_active: "PGs whose leader serves";
        gauge pgs_degraded: "PGs that serve with fewer replicas than they should have";
        gauge pgs_down: "PGs that do not serve";
        gauge moves_running: "replicas that are moving to other OSDs";
        gauge moves_waiting: "replicas that are to move and wait";
        gauge moves_blocked: "replicas that are to move, of PGs that do not serve";
        gauge moves_unplaced: "replicas that have to leave their OSD, and that no OSD can take";
        gauge capacity_bytes: "bytes for data on all OSDs";
        gauge used_bytes: "bytes used on all OSDs";
        gauge free_bytes: "bytes free on all OSDs";
    }
}

telemetry::families! {
    /// One OSD as meta sees it. Labels: `osd`, `host`, `rack`, `zone`.
    pub struct OsdFamilies => OsdGauges("basalt_cluster_osd") {
        gauge up: "1 while this OSD reports to meta, else 0; labels: osd, host, rack, zone";
    }
}

telemetry::families! {
    /// One volume. Labels: `volume` and `pool` (ids, as in the metrics of OSDs), `name`.
    pub struct VolumeFamilies => VolumeGauges("basalt_cluster_volume") {
        gauge size_bytes: "size of the volume; labels: volume and pool (ids), name (POOL/VOLUME)";
    }
}

telemetry::families! {
    /// One pool whose OSDs have reported. Labels: `pool` (id), `name`.
    pub struct PoolFamilies => PoolGauges("basalt_cluster_pool") {
        gauge provisioned_bytes: "sum of the sizes of its volumes, with those in the trash; labels: pool (id), name";
        gauge available_bytes: "bytes that can be written before the first of its OSDs is full; labels: pool (id), name";
        gauge overcommit_percent: "the most that all volumes could take on one of its OSDs, in percent of what that OSD has; labels: pool (id), name";
    }
}

/// Returns every metric of a meta, for the manual.
pub fn rows() -> impl Iterator<Item = &'static telemetry::Row> {
    let cluster =
        ClusterGauges::ROWS.iter().chain(OsdFamilies::ROWS).chain(VolumeFamilies::ROWS).chain(PoolFamilies::ROWS);
    MetaMetrics::ROWS.iter().chain(cluster)
}

/// The figures of the cluster.
#[derive(Clone)]
pub(crate) struct ClusterMetrics {
    gauges: ClusterGauges,
    osds: OsdFamilies,
    volumes: VolumeFamilies,
    pools: PoolFamilies,
    shown: Arc<Mutex<Shown>>,
}

/// The series that are exported.
#[derive(Default)]
struct Shown {
    osds: BTreeSet<Labels>,
    volumes: BTreeSet<Labels>,
    pools: BTreeSet<Labels>,
}

impl ClusterMetrics {
    pub fn new(registry: &Registry) -> ClusterMetrics {
        ClusterMetrics {
            gauges: ClusterGauges::new(registry),
            osds: OsdFamilies::new(registry),
            volumes: VolumeFamilies::new(registry),
            pools: PoolFamilies::new(registry),
            shown: Arc::default(),
        }
    }

    /// Updates every figure.
    pub fn show(&self, control: &Control, now: Now) {
        let status = control.status(now);
        let health = match status.health.as_str() {
            // A cluster whose reports are still missing is no alert.
            "ok" | "waiting" => 0,
            "degraded" => 1,
            _ => 2,
        };
        let osds = control.osds_seen(now);
        let full = osds.iter().filter(|osd| osd.full).count() as u64;
        let nearfull: u64 = status.checks.iter().filter(|check| check.code == "POOL_NEARFULL").map(|c| c.count).sum();
        let g = &self.gauges;
        for (gauge, value) in [
            (&g.health, health),
            (&g.problems, status.problems.len() as u64),
            (&g.osds, status.osds.into()),
            (&g.osds_up, status.osds_up.into()),
            (&g.osds_in, status.osds_in.into()),
            (&g.osds_full, full),
            (&g.pools, status.pools.into()),
            (&g.pools_nearfull, nearfull),
            (&g.volumes, status.volumes.into()),
            (&g.segments, status.segments),
            (&g.pgs, status.pgs.into()),
            (&g.pgs_active, status.pgs_active.into()),
            (&g.pgs_degraded, status.pgs_degraded.into()),
            (&g.pgs_down, status.pgs_down.into()),
            (&g.moves_running, status.moves.running.into()),
            (&g.moves_waiting, status.moves.waiting.into()),
            (&g.moves_blocked, status.moves.blocked.into()),
            (&g.moves_unplaced, status.moves.unplaced.into()),
            (&g.capacity_bytes, status.capacity_bytes),
            (&g.used_bytes, status.used_bytes),
            (&g.free_bytes, status.free_bytes),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now_osds = BTreeSet::new();
        for osd in osds.into_iter().filter(|osd| osd.live != "new").take(SERIES_MAX) {
            let labels: Labels =
                vec![("osd", osd.osd.0.to_string()), ("host", osd.host), ("rack", osd.rack), ("zone", osd.zone)];
            self.osds.add(&labels).up.set(i64::from(osd.live == "up"));
            now_osds.insert(labels);
        }
        let mut now_volumes = BTreeSet::new();
        let records = control.records();
        for volume in records.volumes.values().take(SERIES_MAX) {
            let ids = [("volume", volume.id.0.to_string()), ("pool", volume.pool.0.to_string())];
            let labels: Labels = ids.into_iter().chain([("name", records.full_name(volume))]).collect();
            self.volumes.add(&labels).size_bytes.set(i64::try_from(volume.len_bytes).unwrap_or(i64::MAX));
            now_volumes.insert(labels);
        }
        let now_pools = self.show_pools(control, now);
        shown.pools.difference(&now_pools).for_each(|labels| self.pools.remove(labels));
        shown.osds.difference(&now_osds).for_each(|labels| self.osds.remove(labels));
        shown.volumes.difference(&now_volumes).for_each(|labels| self.volumes.remove(labels));
        *shown = Shown { osds: now_osds, volumes: now_volumes, pools: now_pools };
    }

    /// Updates the series of the pools, and returns their labels.
    fn show_pools(&self, control: &Control, now: Now) -> BTreeSet<Labels> {
        let mut shown = BTreeSet::new();
        for pool in control.pools_seen(now).into_iter().take(SERIES_MAX) {
            let Some((available, overcommit)) = pool.available_bytes.zip(pool.overcommit_percent) else { continue };
            let labels: Labels = vec![("pool", pool.pool.0.to_string()), ("name", pool.name)];
            let gauges = self.pools.add(&labels);
            for (gauge, value) in [
                (&gauges.provisioned_bytes, pool.provisioned_bytes),
                (&gauges.available_bytes, available),
                (&gauges.overcommit_percent, overcommit),
            ] {
                gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            }
            shown.insert(labels);
        }
        shown
    }
}
