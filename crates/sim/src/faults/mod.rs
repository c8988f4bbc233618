//! Decides which faults strike, and when. Each run enables some classes (swarm testing), with weights of its own.
//!
//! Every class lives in the module of its group, as a function that strikes now. It schedules later steps in the
//! [`Plan`]: the end of the fault, or the next step of an aimed schedule. A class is counted only when it struck.
//!
//! Each drawn fault has a number and dice of its own, so that leaving some out (see `shrink`) leaves the others as they
//! were.
//!
//! Invariant: all dice are the run's own. When [`Faults::is_over`] returns `true`, nothing is left broken but what
//! lying disks have lost ([`budget`]).

mod aimed;
mod aimed_back;
mod aimed_cuts;
mod aimed_emptied;
mod aimed_forced;
mod aimed_joined;
mod aimed_late;
mod aimed_limits;
mod aimed_logs;
mod aimed_loss;
mod aimed_members;
mod aimed_metas;
mod aimed_older;
mod aimed_opening;
mod aimed_pairs;
mod aimed_store;
mod aimed_streams;
mod aimed_stuck;
mod aimed_votes;
pub mod budget;
mod client;
mod damage;
mod disk;
mod meta;
mod net;
mod operator;
mod process;
mod time;

pub use aimed_back::Given;
pub use time::draw_rate;

use crate::aim::Aim;
use crate::cluster::Cluster;
use crate::overrides::Overrides;
use crate::states::{self, PgState};
use simenv::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;
use types::rng::Rng;

/// A class of faults; the order is that of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Crash,
    /// A process dies between the operations that one turn submits, or before it takes an event.
    CrashInTurn,
    /// A process dies at some operation on its disk.
    CrashInTask,
    PowerCut,
    PowerCutAll,
    RestartAll,
    /// Two OSDs are down at once.
    TwoDown,
    /// A process gets no turns (SIGSTOP).
    Pause,
    LongPause,
    /// A machine comes back with an empty disk.
    Wipe,
    Partition,
    OneWay,
    /// One node joins two halves that are cut from each other.
    Bridge,
    /// One OSD is cut from all others, and not from clients.
    Isolate,
    /// A client is cut from an OSD.
    CutClient,
    /// The links of a node stop one by one, and heal in another order.
    Swizzle,
    Reset,
    /// One end forgets a connection.
    HalfOpen,
    /// A bit of a frame flips on the way.
    CorruptFrame,
    /// A process outside the cluster sends nonsense, or nothing.
    Stranger,
    SlowNode,
    SlowDisk,
    StuckDisk,
    FullDisk,
    ReadError,
    WriteError,
    FlushError,
    BitRotLog,
    BitRotTables,
    BitRotData,
    BitRotSuper,
    /// A disk acknowledges a write, and never stores it.
    PhantomWrite,
    MisdirectedWrite,
    MisdirectedRead,
    ClockRate,
    ClockJump,
    MetaCrash,
    MetaGone,
    SlowMeta,
    /// Meta's messages to an OSD or to clients are late by seconds.
    StaleWatch,
    /// The administrator transfers the leadership of a PG.
    Transfer,
    /// Volumes are created and removed.
    Volumes,
    /// Pools are created and removed.
    Pools,
    ClientCrash,
    Steal,
    /// A writer sleeps while it is preempted, and wakes up.
    PausedWriter,
    /// Replies are lost, and the leader changes.
    LostReplies,
    /// A follower restarts while the lease that it has renewed is valid.
    RestartInLease,
    /// A leader transfers its leadership and hears nothing of it.
    SlowRelease,
    /// Copies of requests arrive when a leader leads for the second time.
    ReplayedCopies,
    /// The power goes everywhere right after checkpoints.
    CutAfterCheckpoint,
    /// A member that has just voted loses its power.
    LostVote,
    /// A leader whose disk is behind loses its power, and meets the followers that were cut off.
    UnevenMajority,
    /// A new leader loses its followers one after the other.
    YoungLeadership,
    /// A leader gets a successor while all disks are slow.
    SlowLeadership,
    /// Lease acknowledgements arrive when the promises in them are over.
    LateAcks,
    /// A process dies in the middle of a destage.
    CrashInRound,
    /// A flush of home fails, and then the power.
    FlushFailsInRound,
    /// A follower is cut from its leader while other PGs fill its log.
    LoneFollower,
    /// Entries of an old term reach half of the others before an entry of the leader's own term does.
    OldTail,
    /// A bit flips in a payload between a leader and its receiver.
    DamagedPayload,
    /// Many blocks of a leader's home rot, while writes cover parts of blocks.
    RottenBlocks,
    /// A replica that has lost part of its log is asked for a vote by a replica that has less than it had.
    VoteAfterLoss,
    /// A log's flush fails, and the store is mounted again at once.
    FailedTail,
    /// One member of five loses entries that it has acknowledged and that are not committed. Another acknowledges them.
    MatchAfterLoss,
    /// A follower that has lost part of its log restarts, and then its leader is gone.
    RestartAfterLoss,
    /// A follower whose device hangs accepts a stream, and dies.
    HungFollower,
    /// An opener asks for a segment, and meta hears of it when another has opened.
    LateAsk,
    /// Stores are mounted whose logs are full of payloads that look like batches.
    ForgedHeaders,
    /// A follower does not hear a leader while others fill its log.
    FullLog,
    /// A process dies during an installation, while other streams write.
    CrashInInstall,
    /// The disks that streams read from are slow.
    SlowStream,
    /// A follower that a stream fills counts, and the sender, another member or the follower dies.
    FillingCounts,
    /// One direction between a writer and a leader is broken, and every other path is whole.
    BrokenPath,
    /// A small OSD is full, misses writes that need space, and falls behind; then space is freed, and a stream brings
    /// it back.
    FilledBehind,
    /// The metadata store is replaced by an older copy of itself.
    MetaWentBack,
    /// The power goes while a log writes the state block of a segment, and again when the log may begin with that segment.
    CutStateBlock,
    /// Replicas move to other OSDs, while members, leaders and metadata servers die.
    MovedReplicas,
    /// Replicas fail and are replaced on their OSDs, while members, leaders and metadata servers die.
    FailedReplicas,
    /// Most replicas of a PG fail, and the PG is recovered by force.
    ForcedPgs,
    /// Most replicas of a PG fail, and it has no quorum for seconds beside PGs that are whole.
    StuckPg,
    /// OSDs go out, are drained, come in and are down for too long, and the cluster moves their replicas.
    EmptiedOsds,
    /// An OSD is taken out, or drained, while a pool is made, and let in again.
    OsdFlags,
    /// OSDs join, each in the place of one whose device is lost, or which still runs.
    ReplacedOsds,
    /// Sectors fail every read until they are written again: one, a run of pages, or a stripe of the device.
    UnreadableSectors,
    /// The last batches of a log cannot be read at the next mount.
    UnreadableTail,
    /// The bytes of neighbouring pages change, or those of a stripe of the device.
    RottenRun,
    /// All members of a PG lose blocks of home at once, each other ones.
    DisjointBlocks,
    /// All members of a PG lose their power, and payloads of their logs rot, in each those of other entries.
    DisjointEntries,
    /// Replicas of PGs of two fail, one of a PG at a time, and the PGs go on from the other ones by themselves.
    PairsOfReplicas,
    /// A device gets an earlier state back, while another OSD or the metadata server is away.
    OlderDevices,
    /// The I/O of a volume is limited, the limit changes, and so do the leaders that hold it.
    LimitedVolumes,
    /// Metadata servers that elect a leader die, stand still, are cut off, and lose requests to etcd and its replies.
    ManyMetas,
    /// At each step of a cut of snapshots, the metadata server or the leader of a PG dies, is late, or changes.
    CutPoints,
}

impl Class {
    pub const ALL: [Class; 56] = [
        Class::Crash,
        Class::CrashInTurn,
        Class::CrashInTask,
        Class::PowerCut,
        Class::PowerCutAll,
        Class::RestartAll,
        Class::TwoDown,
        Class::Pause,
        Class::LongPause,
        Class::Wipe,
        Class::Partition,
        Class::OneWay,
        Class::Bridge,
        Class::Isolate,
        Class::CutClient,
        Class::Swizzle,
        Class::Reset,
        Class::HalfOpen,
        Class::CorruptFrame,
        Class::Stranger,
        Class::SlowNode,
        Class::SlowDisk,
        Class::StuckDisk,
        Class::FullDisk,
        Class::ReadError,
        Class::WriteError,
        Class::FlushError,
        Class::BitRotLog,
        Class::BitRotTables,
        Class::BitRotData,
        Class::BitRotSuper,
        Class::PhantomWrite,
        Class::MisdirectedWrite,
        Class::MisdirectedRead,
        Class::ClockRate,
        Class::ClockJump,
        Class::MetaCrash,
        Class::MetaGone,
        Class::SlowMeta,
        Class::StaleWatch,
        Class::Transfer,
        Class::Volumes,
        Class::Pools,
        Class::ClientCrash,
        Class::Steal,
        Class::PausedWriter,
        Class::LostReplies,
        Class::RestartInLease,
        Class::SlowRelease,
        Class::ReplayedCopies,
        Class::CutAfterCheckpoint,
        Class::LostVote,
        Class::UnevenMajority,
        Class::YoungLeadership,
        Class::SlowLeadership,
        Class::LateAcks,
    ];

    /// Classes of runs that wear the devices, drawn beside the others.
    pub const STORE: [Class; 3] = [Class::CrashInRound, Class::FlushFailsInRound, Class::LoneFollower];

    /// Classes that whole runs are aimed at (see `aim`).
    pub const AIMS: [Class; 8] = [
        Class::ReplayedCopies,
        Class::RestartInLease,
        Class::OldTail,
        Class::DamagedPayload,
        Class::RottenBlocks,
        Class::VoteAfterLoss,
        Class::FailedTail,
        Class::PausedWriter,
    ];

    /// Aims that were added later. Only seeds that had not been run by then draw them, so that every earlier one kept
    /// its meaning.
    pub const LATE_AIMS: [Class; 5] =
        [Class::MatchAfterLoss, Class::RestartAfterLoss, Class::HungFollower, Class::LateAsk, Class::ForgedHeaders];

    /// Aims that were added later still, each for seeds that had not been run by then (see `aim::first_seed`).
    pub const LATER_AIMS: [Class; 18] = [
        Class::BrokenPath,
        Class::MetaWentBack,
        Class::FilledBehind,
        Class::CutStateBlock,
        Class::MovedReplicas,
        Class::FailedReplicas,
        Class::EmptiedOsds,
        Class::ForcedPgs,
        Class::DisjointBlocks,
        Class::DisjointEntries,
        Class::ReplacedOsds,
        Class::PairsOfReplicas,
        Class::StuckPg,
        Class::FillingCounts,
        Class::ManyMetas,
        Class::OlderDevices,
        Class::LimitedVolumes,
        Class::CutPoints,
    ];

    /// Classes of the swarm that were added later, for seeds that had not been run by then.
    pub const LATE: [Class; 1] = [Class::OsdFlags];

    /// Damage that stays until it is written over, for seeds from `aim::DAMAGE_FROM` on.
    pub const DAMAGE: [Class; 3] = [Class::UnreadableSectors, Class::UnreadableTail, Class::RottenRun];

    /// Further aims of whole runs: stores that free space and take data in.
    pub const STORE_AIMS: [Class; 3] = [Class::FullLog, Class::CrashInInstall, Class::SlowStream];

    /// Returns all classes: those of the swarm, of runs that wear the devices, and of aimed runs; then those that were
    /// added later.
    pub fn every() -> impl Iterator<Item = Class> {
        let aimed = Class::AIMS.into_iter().chain(Class::STORE_AIMS).filter(|class| !Class::ALL.contains(class));
        Class::ALL
            .into_iter()
            .chain(Class::STORE)
            .chain(aimed)
            .chain(Class::LATE_AIMS)
            .chain(Class::LATE)
            .chain(Class::DAMAGE)
            .chain(Class::LATER_AIMS)
    }

    /// Strikes; returns whether it did.
    fn strike(self, s: &mut Strike<'_>) -> bool {
        use Class::*;
        match self {
            Crash | CrashInTurn | CrashInTask | PowerCut | PowerCutAll | RestartAll | TwoDown | Pause | LongPause
            | Wipe => process::strike(self, s),
            Partition | OneWay | Bridge | Isolate | CutClient | Swizzle | Reset | HalfOpen | CorruptFrame
            | Stranger | SlowNode => net::strike(self, s),
            SlowDisk | StuckDisk | FullDisk | ReadError | WriteError | FlushError | BitRotLog | BitRotTables
            | BitRotData | BitRotSuper | PhantomWrite | MisdirectedWrite | MisdirectedRead => disk::strike(self, s),
            ClockRate | ClockJump => time::strike(self, s),
            MetaCrash | MetaGone | SlowMeta | StaleWatch => meta::strike(self, s),
            Transfer | Volumes | Pools | OsdFlags => operator::strike(self, s),
            ClientCrash | Steal | PausedWriter | LostReplies => client::strike(self, s),
            RestartInLease | SlowRelease | ReplayedCopies | CutAfterCheckpoint => aimed::strike(self, s),
            LostVote | UnevenMajority | YoungLeadership | SlowLeadership | LateAcks => aimed_votes::strike(self, s),
            CrashInRound | FlushFailsInRound | LoneFollower => aimed_store::strike(self, s),
            MatchAfterLoss | RestartAfterLoss => aimed_loss::strike(self, s),
            HungFollower | LateAsk | ForgedHeaders | BrokenPath => aimed_late::strike(self, s),
            MetaWentBack => aimed_back::strike(self, s),
            CutStateBlock => aimed_opening::strike(s),
            MovedReplicas => aimed_members::strike(s),
            FailedReplicas => aimed_members::strike_failed(s),
            EmptiedOsds => aimed_emptied::strike(s),
            ForcedPgs => aimed_forced::strike(s),
            StuckPg => aimed_stuck::strike(s),
            LimitedVolumes => aimed_limits::strike(s),
            CutPoints => aimed_cuts::strike(s),
            ReplacedOsds => aimed_joined::strike(s),
            PairsOfReplicas => aimed_pairs::strike(s),
            ManyMetas => aimed_metas::strike(s),
            OlderDevices => aimed_older::strike(s),
            UnreadableSectors | UnreadableTail | RottenRun | DisjointBlocks | DisjointEntries => {
                damage::strike(self, s)
            }
            FullLog | CrashInInstall | SlowStream | FillingCounts | FilledBehind => aimed_streams::strike(self, s),
            OldTail | DamagedPayload | RottenBlocks | VoteAfterLoss | FailedTail => aimed_logs::strike(self, s),
        }
    }
}

/// A step that a fault has scheduled for later.
type Step = Box<dyn FnOnce(&mut Strike<'_>)>;

/// The scheduled steps, by time.
#[derive(Default)]
pub struct Plan {
    steps: BTreeMap<(Time, u64), (Step, Rng)>,
    seq: u64,
}

/// One step of a fault: its time and dice, and the cluster that it changes.
pub struct Strike<'a> {
    pub now: Time,
    pub rng: &'a mut Rng,
    pub cluster: &'a mut Cluster,
    plan: &'a mut Plan,
}

impl Strike<'_> {
    /// Schedules `step` after `delay`.
    fn after(&mut self, delay: Duration, step: impl FnOnce(&mut Strike<'_>) + 'static) {
        self.plan.seq += 1;
        let dice = self.rng.fork();
        self.plan.steps.insert((self.now + delay, self.plan.seq), (Box::new(step), dice));
    }

    /// Schedules the end of a fault at a drawn time, often soon: a restart within a promise, a cut within an election.
    fn mend(&mut self, min_ms: u64, max_ms: u64, step: impl FnOnce(&mut Strike<'_>) + 'static) {
        let max_ms = [max_ms, max_ms, max_ms / 10, min_ms + 20][self.rng.below(4) as usize].max(min_ms);
        let delay = Duration::from_millis(self.rng.between(min_ms, max_ms));
        self.after(delay, step);
    }

    /// Draws an OSD.
    fn osd(&mut self) -> usize {
        self.rng.below(self.cluster.osd_count() as u64) as usize
    }

    /// Returns the nodes of all OSDs but the i-th.
    fn others(&self, i: usize) -> Vec<NodeId> {
        (0..self.cluster.osd_count()).filter(|k| *k != i).map(|k| self.cluster.osd_node(k)).collect()
    }
}

/// A fault that struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struck {
    /// Its number among the drawn faults, from 1.
    pub number: u64,
    pub at: Time,
    pub class: Class,
}

/// Draws faults until its time is over; the scheduled steps then end them.
pub struct Faults {
    rng: Rng,
    overrides: Overrides,
    /// Number of faults drawn.
    drawn: u64,
    enabled: Vec<Class>,
    next: Time,
    until: Time,
    /// Mean pause between two faults.
    pause_ms: u64,
    /// Each schedule ends before the next one begins.
    one_by_one: bool,
    plan: Plan,
    pub struck: Vec<Struck>,
    /// Number of PGs in each state when a class struck.
    pub states: BTreeMap<(Class, PgState), u64>,
}

/// Draws a set of classes: in turn few, some or many of them. A class that is in it several times strikes often.
fn swarm(rng: &mut Rng, allowed: &[Class]) -> Vec<Class> {
    let share = [3, 10, 25, 50][rng.below(4) as usize];
    let mut enabled = Vec::new();
    for class in allowed {
        if rng.chance(share, 100) {
            let weight = [1, 1, 2, 6][rng.below(4) as usize];
            enabled.extend((0..weight).map(|_| *class));
        }
    }
    enabled
}

impl Faults {
    /// Prepares faults between `from` and `until`.
    pub fn new(mut rng: Rng, from: Time, until: Time, allowed: &[Class], overrides: &Overrides) -> Faults {
        let enabled = swarm(&mut rng, allowed);
        let pause_ms = rng.between(50, 1500);
        Faults {
            rng,
            overrides: overrides.clone(),
            drawn: 0,
            enabled,
            next: from,
            until,
            pause_ms,
            one_by_one: false,
            plan: Plan::default(),
            struck: Vec::new(),
            states: BTreeMap::new(),
        }
    }

    /// Enables more classes, each with a drawn weight, by dice of their own.
    pub fn enable(&mut self, classes: &[Class], rng: &mut Rng) {
        for class in classes {
            let weight = [0, 1, 2, 4][rng.below(4) as usize] * (1 + self.enabled.len() / 8);
            self.enabled.extend((0..weight).map(|_| *class));
        }
    }

    /// Aims the run: its class strikes as often as all others together, or alone.
    pub fn aim(&mut self, aim: Aim) {
        if aim.alone {
            self.enabled.clear();
            self.one_by_one = true;
        }
        let weight = self.enabled.len().max(1);
        self.enabled.extend((0..weight).map(|_| aim.class));
        self.pause_ms = self.pause_ms.min(600);
    }

    /// Returns when the next step or fault is due.
    pub fn next(&self) -> Option<Time> {
        let draw = (!self.enabled.is_empty() && self.next < self.until).then_some(self.next);
        let step = self.plan.steps.keys().next().map(|(at, _)| *at);
        draw.into_iter().chain(step).min()
    }

    fn waits(&self) -> bool {
        self.one_by_one && !self.plan.steps.is_empty()
    }

    /// Whether nothing is broken any more and nothing will be.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.until && self.plan.steps.is_empty()
    }

    /// Runs the steps that are due, and strikes with a drawn fault when its time has come.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        let plan = &mut self.plan;
        while let Some(key) = plan.steps.keys().next().copied().filter(|(at, _)| *at <= now) {
            let (step, mut dice) = plan.steps.remove(&key).expect("it was there");
            step(&mut Strike { now, rng: &mut dice, cluster, plan });
        }
        if self.enabled.is_empty() || now < self.next || now >= self.until {
            return;
        }
        if self.waits() {
            self.next = now + Duration::from_millis(self.pause_ms);
            return;
        }
        let Faults { rng, plan, .. } = self;
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
