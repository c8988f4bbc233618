//! When and what to break. Each run enables some classes (swarm), with intensities of its own.

use crate::cluster::Cluster;
use env::sim::{Cut, DRIFT_PPM_MAX};
use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;
use types::rng::Rng;

/// A class of faults; the order is that of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Crash,
    PowerCut,
    PowerCutAll,
    Partition,
    OneWay,
    /// One OSD is cut from all others, and not from clients.
    Isolate,
    /// A client is cut from an OSD.
    CutClient,
    /// The administrator moves a leader.
    Transfer,
    Reset,
    SlowNode,
    SlowDisk,
    ClockRate,
    MetaCrash,
    ClientCrash,
    Steal,
}

impl Class {
    pub const ALL: [Class; 15] = [
        Class::Crash,
        Class::PowerCut,
        Class::PowerCutAll,
        Class::Partition,
        Class::OneWay,
        Class::Isolate,
        Class::CutClient,
        Class::Transfer,
        Class::Reset,
        Class::SlowNode,
        Class::SlowDisk,
        Class::ClockRate,
        Class::MetaCrash,
        Class::ClientCrash,
        Class::Steal,
    ];
}

/// How much a clock gains, in parts per million; often the most that is promised to work.
pub fn draw_rate(rng: &mut Rng) -> i64 {
    match rng.below(4) {
        0 => DRIFT_PPM_MAX,
        1 => -DRIFT_PPM_MAX,
        _ => rng.between(0, 2 * DRIFT_PPM_MAX as u64) as i64 - DRIFT_PPM_MAX,
    }
}

/// Draws faults until its time is over, then mends everything.
pub struct Faults {
    rng: Rng,
    enabled: Vec<Class>,
    next: Time,
    until: Time,
    /// Mean pause between two faults.
    pause_ms: u64,
    /// What must be undone, and when.
    mends: BTreeMap<(Time, u64), Mend>,
    seq: u64,
    pub counts: BTreeMap<Class, u64>,
}

enum Mend {
    StartOsd(usize),
    HealAll,
    FastNode(usize),
    FastDisk(usize),
    StartMeta,
}

impl Faults {
    /// Faults between `from` and `until`.
    pub fn new(mut rng: Rng, from: Time, until: Time, allowed: &[Class]) -> Faults {
        let enabled = allowed.iter().copied().filter(|_| rng.chance(1, 2)).collect();
        let pause_ms = rng.between(50, 1500);
        Faults { rng, enabled, next: from, until, pause_ms, mends: BTreeMap::new(), seq: 0, counts: BTreeMap::new() }
    }

    /// When it wants to act next.
    pub fn next(&self) -> Option<Time> {
        let draw = (!self.enabled.is_empty() && self.next < self.until).then_some(self.next);
        let mend = self.mends.keys().next().map(|(at, _)| *at);
        draw.into_iter().chain(mend).min()
    }

    /// Whether nothing is broken any more and nothing will be.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until && self.mends.is_empty()
    }

    /// Breaks and mends what is due.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        while let Some(key) = self.mends.keys().next().copied().filter(|(at, _)| *at <= now) {
            match self.mends.remove(&key).expect("it was there") {
                Mend::StartOsd(i) => cluster.start_osd(i),
                Mend::HealAll => cluster.world.heal_all(),
                Mend::FastNode(i) => cluster.world.slow_node(cluster.osd_node(i), 1),
                Mend::FastDisk(i) => cluster.slow_disk(i, 1),
                Mend::StartMeta => cluster.start_meta(),
            }
        }
        if self.enabled.is_empty() || now < self.next || now >= self.until {
            return;
        }
        let class = self.enabled[self.rng.below(self.enabled.len() as u64) as usize];
        *self.counts.entry(class).or_default() += 1;
        tracing::info!(?class, "fault");
        self.inflict(class, now, cluster);
        self.next = now + Duration::from_millis(self.rng.between(1, 2 * self.pause_ms));
    }

    fn inflict(&mut self, class: Class, now: Time, cluster: &mut Cluster) {
        let osds = cluster.osd_count() as u64;
        let i = self.rng.below(osds) as usize;
        let j = self.rng.below(osds) as usize;
        let a = cluster.osd_node(i);
        let b = cluster.other_node(i, &mut self.rng);
        match class {
            Class::Crash | Class::PowerCut => {
                cluster.stop_osd(i, class == Class::PowerCut);
                self.mend_later(now, 1, 3000, Mend::StartOsd(i));
            }
            Class::PowerCutAll => {
                for i in 0..cluster.osd_count() {
                    cluster.stop_osd(i, true);
                    self.mend_later(now, 1, 2000, Mend::StartOsd(i));
                }
            }
            Class::Partition | Class::OneWay => {
                let cut = if class == Class::Partition { Cut::Both } else { Cut::OneWay };
                cluster.world.partition(a, b, cut);
                self.mend_later(now, 10, 4000, Mend::HealAll);
            }
            Class::Isolate => {
                let cut = if self.rng.chance(2, 3) { Cut::Both } else { Cut::OneWay };
                (0..cluster.osd_count()).filter(|k| *k != i).for_each(|k| {
                    cluster.world.partition(a, cluster.osd_node(k), cut);
                });
                self.mend_later(now, 10, 4000, Mend::HealAll);
            }
            Class::CutClient => {
                let client = cluster.any_client(&mut self.rng);
                let cut = if self.rng.chance(1, 2) { Cut::Both } else { Cut::OneWay };
                let (from, to) = if self.rng.chance(1, 2) { (a, client) } else { (client, a) };
                cluster.world.partition(from, to, cut);
                self.mend_later(now, 10, 3000, Mend::HealAll);
            }
            Class::Transfer => cluster.transfer(&mut self.rng),
            Class::Reset => cluster.world.reset_conns(a, b),
            Class::SlowNode => {
                cluster.world.slow_node(a, self.rng.between(5, 200) as u32);
                self.mend_later(now, 10, 2000, Mend::FastNode(i));
            }
            Class::SlowDisk => {
                cluster.slow_disk(j, self.rng.between(5, 200) as u32);
                self.mend_later(now, 10, 2000, Mend::FastDisk(j));
            }
            Class::ClockRate => {
                cluster.world.set_clock_rate(a, draw_rate(&mut self.rng));
            }
            Class::MetaCrash => {
                cluster.stop_meta();
                self.mend_later(now, 10, 3000, Mend::StartMeta);
            }
            Class::ClientCrash => {
                let reader = self.rng.chance(1, 3) && cluster.has_reader();
                cluster.restart_client(reader);
            }
            Class::Steal => cluster.steal(),
        }
    }

    fn mend_later(&mut self, now: Time, min_ms: u64, max_ms: u64, mend: Mend) {
        self.seq += 1;
        // Often soon: a restart within a promise, a cut within an election.
        let max_ms = [max_ms, max_ms, max_ms / 10, min_ms + 20][self.rng.below(4) as usize].max(min_ms);
        let at = now + Duration::from_millis(self.rng.between(min_ms, max_ms));
        self.mends.insert((at, self.seq), mend);
    }
}
