//! When and what to break. Each run enables some classes (swarm), with weights of its own.
//!
//! Every class lives in the module of its group, as a function that strikes now and orders what follows
//! (mends, the next step of an aimed schedule) in the [`Plan`]. A class is counted when it really struck.
//!
//! Each drawn fault has a number and dice of its own, so that leaving some out (see `shrink`) leaves the others as
//! they were.
//!
//! Invariant: all dice are the run's own; when [`Faults::is_over`] says so, nothing is left broken but what
//! lying disks have lost ([`budget`]).

pub mod budget;
mod client;
mod disk;
mod meta;
mod net;
mod operator;
mod process;
mod time;

pub use time::draw_rate;

use crate::cluster::Cluster;
use crate::overrides::Overrides;
use crate::states::{self, PgState};
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

    /// Strikes; whether it did.
    fn strike(self, s: &mut Strike<'_>) -> bool {
        match self {
            Class::Crash | Class::PowerCut | Class::PowerCutAll => process::strike(self, s),
            Class::Partition | Class::OneWay | Class::Isolate | Class::CutClient | Class::Reset | Class::SlowNode => {
                net::strike(self, s)
            }
            Class::SlowDisk => disk::strike(self, s),
            Class::ClockRate => time::strike(self, s),
            Class::MetaCrash => meta::strike(self, s),
            Class::Transfer => operator::strike(self, s),
            Class::ClientCrash | Class::Steal => client::strike(self, s),
        }
    }
}

/// Something that a fault has ordered for later.
type Step = Box<dyn FnOnce(&mut Strike<'_>)>;

/// What is ordered, by time.
#[derive(Default)]
pub struct Plan {
    steps: BTreeMap<(Time, u64), (Step, Rng)>,
    seq: u64,
}

/// One moment of breaking and mending.
pub struct Strike<'a> {
    pub now: Time,
    pub rng: &'a mut Rng,
    pub cluster: &'a mut Cluster,
    plan: &'a mut Plan,
}

impl Strike<'_> {
    /// Orders `step` after `delay`.
    fn after(&mut self, delay: Duration, step: impl FnOnce(&mut Strike<'_>) + 'static) {
        self.plan.seq += 1;
        let dice = self.rng.fork();
        self.plan.steps.insert((self.now + delay, self.plan.seq), (Box::new(step), dice));
    }

    /// Orders a mend at a drawn time, often soon: a restart within a promise, a cut within an election.
    fn mend(&mut self, min_ms: u64, max_ms: u64, step: impl FnOnce(&mut Strike<'_>) + 'static) {
        let max_ms = [max_ms, max_ms, max_ms / 10, min_ms + 20][self.rng.below(4) as usize].max(min_ms);
        let delay = Duration::from_millis(self.rng.between(min_ms, max_ms));
        self.after(delay, step);
    }

    /// Any OSD.
    fn osd(&mut self) -> usize {
        self.rng.below(self.cluster.osd_count() as u64) as usize
    }
}

/// A fault that struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struck {
    /// The how manieth drawn one it is, from 1.
    pub number: u64,
    pub at: Time,
    pub class: Class,
}

/// Draws faults until its time is over, then mends everything.
pub struct Faults {
    rng: Rng,
    overrides: Overrides,
    /// Faults drawn.
    drawn: u64,
    enabled: Vec<Class>,
    next: Time,
    until: Time,
    /// Mean pause between two faults.
    pause_ms: u64,
    plan: Plan,
    pub struck: Vec<Struck>,
    /// How many PGs stood how when a class struck.
    pub states: BTreeMap<(Class, PgState), u64>,
}

impl Faults {
    /// Faults between `from` and `until`.
    pub fn new(mut rng: Rng, from: Time, until: Time, allowed: &[Class], overrides: &Overrides) -> Faults {
        let enabled = allowed.iter().copied().filter(|_| rng.chance(1, 2)).collect();
        let pause_ms = rng.between(50, 1500);
        Faults {
            rng,
            overrides: overrides.clone(),
            drawn: 0,
            enabled,
            next: from,
            until,
            pause_ms,
            plan: Plan::default(),
            struck: Vec::new(),
            states: BTreeMap::new(),
        }
    }

    /// When it wants to act next.
    pub fn next(&self) -> Option<Time> {
        let draw = (!self.enabled.is_empty() && self.next < self.until).then_some(self.next);
        let step = self.plan.steps.keys().next().map(|(at, _)| *at);
        draw.into_iter().chain(step).min()
    }

    /// Whether nothing is broken any more and nothing will be.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until && self.plan.steps.is_empty()
    }

    /// Breaks and mends what is due.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        let Faults { rng, plan, .. } = self;
        while let Some(key) = plan.steps.keys().next().copied().filter(|(at, _)| *at <= now) {
            let (step, mut dice) = plan.steps.remove(&key).expect("it was there");
            step(&mut Strike { now, rng: &mut dice, cluster, plan });
        }
        if self.enabled.is_empty() || now < self.next || now >= self.until {
            return;
        }
        let class = self.enabled[rng.below(self.enabled.len() as u64) as usize];
        let mut dice = rng.fork();
        self.next = now + Duration::from_millis(rng.between(1, 2 * self.pause_ms));
        self.drawn += 1;
        let number = self.drawn;
        if !self.overrides.strikes(number, class) {
            return;
        }
        tracing::info!(number, ?class, "fault");
        let stood = states::all(cluster);
        if class.strike(&mut Strike { now, rng: &mut dice, cluster, plan }) {
            self.struck.push(Struck { number, at: now, class });
            for state in stood.into_values() {
                *self.states.entry((class, state)).or_default() += 1;
            }
        }
    }
}
