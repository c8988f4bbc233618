//! Counts the client requests that a turn answered: for the OSD, by pool and by volume.
//!
//! Replies of a turn are noted as they are made; the clock is read once, at the end of the turn, when they leave with it.
//! A request that is served within one turn took the time of that turn: `Osd::now` stands still in between.
//!
//! Invariant: there are at most [`VOLUMES_MAX`] series of volumes and [`POOLS_MAX`] of pools; further ones count
//! under `other`. A series without a count for [`IDLE`] is dropped.

use crate::metrics::{OsdMetrics, PoolFamilies, PoolMetrics, VolumeFamilies, VolumeMetrics};
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::{Labels, Registry};
use types::{PoolId, Time, VolumeId};

pub(crate) const VOLUMES_MAX: usize = 1000;
const POOLS_MAX: usize = 100;
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// Kind under which a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A request that moves no data.
    Query,
}

/// Values that are counted of a request once it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub kind: Kind,
    pub pool: PoolId,
    pub volume: VolumeId,
    /// Bytes that the request asked for, holes included.
    pub bytes: u64,
    /// The start of the turn in which it arrived.
    pub since: Time,
}

/// The labels of a series of volumes: `None` stands for all volumes beyond the limit.
type VolumeLabels = (PoolId, Option<VolumeId>);

struct Series<M> {
    metrics: M,
    last: Time,
}

/// Replies of this turn, and the series by pool and volume.
pub(crate) struct Counting {
    replied: Vec<Counted>,
    pool_families: PoolFamilies,
    volume_families: VolumeFamilies,
    pools: BTreeMap<Option<PoolId>, Series<PoolMetrics>>,
    volumes: BTreeMap<VolumeLabels, Series<VolumeMetrics>>,
}

fn pool_labels(pool: Option<PoolId>) -> Labels {
    vec![("pool", pool.map_or("other".to_owned(), |pool| pool.0.to_string()))]
}

fn volume_labels((pool, volume): VolumeLabels) -> Labels {
    let volume = volume.map_or("other".to_owned(), |volume| volume.0.to_string());
    vec![("pool", pool.0.to_string()), ("volume", volume)]
}

impl Counting {
    pub fn new(registry: &Registry) -> Counting {
        Counting {
            replied: Vec::new(),
            pool_families: PoolFamilies::new(registry),
            volume_families: VolumeFamilies::new(registry),
            pools: BTreeMap::new(),
            volumes: BTreeMap::new(),
        }
    }

    /// Notes a successful answer; the reply leaves with this turn.
    pub fn answered(&mut self, counted: Counted) {
        self.replied.push(counted);
    }

    pub fn has_replies(&self) -> bool {
        !self.replied.is_empty()
    }

    /// Counts the replies of the turn that ends at `now`.
    pub fn end_turn(&mut self, now: Time, metrics: &OsdMetrics) {
        let mut replied = std::mem::take(&mut self.replied);
        for counted in replied.drain(..) {
            let took = now.since(counted.since);
            match counted.kind {
                Kind::Read => {
                    metrics.reads.inc();
                    metrics.read_bytes.inc_by(counted.bytes);
                    telemetry::observe(&metrics.read_seconds, took);
                }
                Kind::Write => {
                    metrics.writes.inc();
                    metrics.write_bytes.inc_by(counted.bytes);
                    telemetry::observe(&metrics.write_seconds, took);
                }
                Kind::Query => {
                    metrics.queries.inc();
                    continue;
                }
            }
            self.count_pool(now, &counted);
            self.count_volume(now, &counted, took);
        }
        self.replied = replied;
    }

    fn count_pool(&mut self, now: Time, counted: &Counted) {
        let known = self.pools.contains_key(&Some(counted.pool)) || self.pools.len() < POOLS_MAX;
        let key = known.then_some(counted.pool);
        let families = &self.pool_families;
        let fresh = || Series { metrics: families.add(&pool_labels(key)), last: now };
        let series = self.pools.entry(key).or_insert_with(fresh);
        series.last = now;
        let (count, bytes) = match counted.kind {
            Kind::Read => (&series.metrics.reads, &series.metrics.read_bytes),
            Kind::Write => (&series.metrics.writes, &series.metrics.write_bytes),
            Kind::Query => unreachable!("queries belong to the OSD"),
        };
        count.inc();
        bytes.inc_by(counted.bytes);
    }

    fn count_volume(&mut self, now: Time, counted: &Counted, took: Duration) {
        let own = (counted.pool, Some(counted.volume));
        let known = self.volumes.contains_key(&own) || self.volumes.len() < VOLUMES_MAX;
        let key = if known { own } else { (counted.pool, None) };
        let families = &self.volume_families;
        let fresh = || Series { metrics: families.add(&volume_labels(key)), last: now };
        let series = self.volumes.entry(key).or_insert_with(fresh);
        series.last = now;
        let m = &series.metrics;
        let (count, bytes, seconds) = match counted.kind {
            Kind::Read => (&m.reads, &m.read_bytes, &m.read_seconds),
            Kind::Write => (&m.writes, &m.write_bytes, &m.write_seconds),
            Kind::Query => unreachable!("queries belong to the OSD"),
        };
        count.inc();
        bytes.inc_by(counted.bytes);
        seconds.inc_by(took.as_secs_f64());
    }

    /// Drops the series without a count for [`IDLE`].
    pub fn drop_idle(&mut self, now: Time) {
        let idle = |last: Time| now.since(last) >= IDLE;
        let (pools, volumes) = (&self.pool_families, &self.volume_families);
        self.pools.retain(|key, series| {
            let gone = idle(series.last);
            gone.then(|| pools.remove(&pool_labels(*key)));
            !gone
        });
        self.volumes.retain(|key, series| {
            let gone = idle(series.last);
            gone.then(|| volumes.remove(&volume_labels(*key)));
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::{Format, render};

    fn read(volume: u64, since: Time) -> Counted {
        Counted { kind: Kind::Read, pool: PoolId(1), volume: VolumeId(volume), bytes: 4096, since }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn volumes_beyond_the_limit_count_as_others_and_idle_ones_make_room() {
        let registry = Registry::default();
        let metrics = OsdMetrics::new(&registry);
        let mut counting = Counting::new(&registry);
        for volume in 0..VOLUMES_MAX as u64 + 2 {
            counting.answered(read(volume, at(1)));
        }
        counting.end_turn(at(2), &metrics);
        let text = render(&[&registry], Format::Prometheus);
        let series = |text: &str| text.lines().filter(|l| l.starts_with("basalt_osd_volume_reads_total{")).count();
        assert_eq!(series(&text), VOLUMES_MAX + 1, "and one of the others");
        assert!(text.contains("basalt_osd_volume_reads_total{pool=\"1\",volume=\"other\"} 2\n"), "{text}");
        assert!(text.contains("basalt_osd_volume_read_seconds_total{pool=\"1\",volume=\"other\"} 2"), "{text}");
        assert!(text.contains("basalt_osd_pool_reads_total{pool=\"1\"} 1002\n"), "{text}");
        counting.answered(read(7, at(500)));
        counting.end_turn(at(500), &metrics);
        counting.drop_idle(at(602));
        let text = render(&[&registry], Format::Prometheus);
        assert_eq!(series(&text), 1, "all but one were idle");
        counting.answered(read(5000, at(602)));
        counting.end_turn(at(602), &metrics);
        assert_eq!(series(&render(&[&registry], Format::Prometheus)), 2);
        assert_eq!(metrics.reads.get(), VOLUMES_MAX as u64 + 4, "the OSD's own counters lose nothing");
    }

    #[test]
    fn a_reply_takes_until_the_end_of_its_turn() {
        let registry = Registry::default();
        let metrics = OsdMetrics::new(&registry);
        let mut counting = Counting::new(&registry);
        counting.answered(read(1, Time::ZERO + Duration::from_micros(10)));
        counting.end_turn(Time::ZERO + Duration::from_micros(75), &metrics);
        assert!(!counting.has_replies());
        let text = render(&[&registry], Format::Prometheus);
        assert!(text.contains("basalt_osd_read_seconds_sum 0.000065"), "{text}");
    }
}
