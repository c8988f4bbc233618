//! One seed from the first format to the last comparison.
//!
//! ```text
//! draw options → format, start → pool, PGs lead → volume → work under faults → mend everything
//!   → calm: all is answered, all PGs lead, all replicas have applied the same → read all → compare
//! ```

use crate::aim::{Aim, LENGTHENED_FROM};
use crate::check::replicas;
use crate::cluster::Cluster;
use crate::families::Counts;
use crate::faults::{Class, Faults, Struck};
use crate::livelock::Livelock;
use crate::options::Options;
use crate::overrides::Overrides;
use crate::sharing::SharingCounts;
use crate::states::PgState;
use crate::trace;
use crate::tuned;
use crate::workload::Kind;
use control::admin::{AdminAsk, PoolCreate};
use control::{PgRecord, PoolState};
use simenv::FaultCounts;
use std::collections::BTreeMap;
use std::time::Duration;
use types::map::Member;
use types::rng::Rng;
use types::{Index, OsdId, PgId, ReplicaId, Time, VolumeId};

/// Number of comparisons until a lying device must be whole. A read names one bad block, so each brings one back.
const MENDS_MAX: u32 = 1000;
const MEND_PAUSE: Duration = Duration::from_millis(200);
/// The cluster must serve within this time after its creation.
const SETUP: Duration = Duration::from_secs(30);
/// Bytes of spare buffers that all nodes together keep, for each size: fresh memory costs more than its use.
const SPARE_CLASS_BYTES: usize = 64 << 20;
/// Within this time of the end of all faults, or of its submission, every request is answered.
const ANSWER: Duration = Duration::from_secs(15);
/// The same while only one path between a client and an OSD is broken: the client gives up the leader, and the
/// leadership moves.
const ANSWER_AROUND: Duration = Duration::from_secs(3);
/// Name of the dice of [`Kind::Many`].
const MANY_VOLUMES: u64 = u64::from_be_bytes(*b"many vol");
/// Number of steps between two looks at what every node says of itself.
const STEPS_PER_LOOK: u64 = 64;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub trace_hash: u64,
    pub simulated: Duration,
    /// Faults that struck, and the number of PGs in each state at that moment.
    pub schedule: Vec<Struck>,
    pub states: BTreeMap<(Class, PgState), u64>,
    pub struck: FaultCounts,
    /// Number of requests that each client meant to submit, and its queue depth.
    pub asked_per_client: u64,
    pub depth: usize,
    /// Tunables of the product that are not at their defaults, one a line.
    pub tunables: Vec<String>,
    pub striped: bool,
    /// Requests answered, and sector operations checked.
    pub requests: u64,
    pub sectors: u64,
    /// Bytes of replicas compared.
    pub compared: u64,
    /// Followers that a stream brought back, as far as the last lives of their leaders know.
    pub streams: u64,
    pub turns: u64,
    /// Volumes that came and went with I/O of their own.
    pub tenancies: u64,
    /// Snapshots that were made, and sectors read of them.
    pub snapshots: (u64, u64),
    pub families: Counts,
    /// Writers of a volume that has several.
    pub sharing: SharingCounts,
    /// Time for which each condition was waited for.
    pub waits: Vec<(&'static str, Duration)>,
    /// Highest fill of each queue, in thousandths of its limit.
    pub fullest: BTreeMap<&'static str, u64>,
    /// Number of sectors whose reply was compared with the disks, of looks at a replica's raft log, and of claims on the
    /// network that were compared with the log on the device.
    pub majorities: u64,
    pub looks: u64,
    pub claims: u64,
    /// Number of elections of metadata servers, and of transactions whose election was checked.
    pub elections: (u64, u64),
    /// The failure, if the run has failed.
    pub failure: Option<String>,
}

/// Runs one seed.
pub fn run(seed: u64) -> Report {
    run_with(seed, &Overrides::default())
}

/// Runs one seed with some changes to its settings.
pub fn run_with(seed: u64, overrides: &Overrides) -> Report {
    types::iobuf::keep_spare(SPARE_CLASS_BYTES);
    let mut rng = Rng::new(seed ^ 0xba5a_17ba_5a17);
    let mut options = Options::draw(&mut rng);
    let mut away = options.replicas >= 3 && rng.chance(1, 6);
    if away {
        options.outlast_logs(&mut rng);
    }
    options.draw_wear(seed);
    options.late = Options::late_dice(seed);
    options.damage = Options::damage_dice(seed);
    options.draw_newest(seed);
    let aim = Aim::draw(seed);
    match aim {
        Some(aim) => {
            aim.shape(&mut options);
            options.draw_aimed(seed);
        }
        None => options.draw_unaimed(seed),
    }
    options.draw_redirect(seed, aim.is_some());
    let mut many = Rng::new(seed ^ MANY_VOLUMES);
    let tunables;
    (options.tuned, tunables) = tuned::draw(seed, overrides);
    if aim.is_none() {
        options.workload = options.workload.draw_many(&mut many);
    }
    overrides.apply(&mut options);
    away &= !overrides.never_away && options.replicas >= 3 && !aim.is_some_and(|aim| aim.alone);
    tracing::info!(?options, "seed {seed}");
    let (asked_per_client, depth, striped) =
        (options.shape.operations, options.shape.depth, options.stripe.is_striped());
    let mut run = Run::new(seed, options, rng, away, overrides);
    (run.many, run.lengthens) = (many, seed >= LENGTHENED_FROM);
    (run.snapshots, run.families) = run.cluster.options.dice_of_snapshots(seed);
    run.sharing = run.cluster.options.dice_of_sharing(seed);
    let failure = match run.whole() {
        Err(End::Failed(what)) => Some(what),
        Err(End::Stopped) => run.histories().err(),
        Ok(()) => None,
    };
    let answered = run.cluster.clients().iter().filter_map(|c| c.workload.as_ref()).map(|w| w.answered()).sum();
    Report {
        trace_hash: run.cluster.world.trace_hash(),
        simulated: run.cluster.world.now().since(Time::ZERO),
        struck: run.cluster.world.fault_counts(),
        requests: answered,
        sectors: run.cluster.linear.operations(),
        schedule: run.schedule,
        states: run.states,
        asked_per_client,
        depth,
        tunables,
        striped,
        compared: run.compared,
        streams: run.cluster.running().map(|(_, osd)| osd.streams_sent().0).sum(),
        turns: run.cluster.turns,
        tenancies: run.cluster.tenants().map_or(0, |t| t.removed()),
        snapshots: run.cluster.snapshots().map_or((0, 0), |s| s.counts()),
        families: run.cluster.families().map_or_else(Default::default, |f| f.counts()),
        sharing: run.cluster.sharing().map_or_else(Default::default, |s| s.counts()),
        waits: run.waits,
        fullest: run.cluster.observers.fullest.take().0,
        majorities: run.cluster.linear.durable.as_ref().map_or(0, |d| d.shared.borrow().checked()),
        looks: run.cluster.observers.laws.looks(),
        claims: run.cluster.claims.borrow().checked(),
        elections: run.cluster.meta.counts(),
        failure,
    }
}

/// Reason why a run ends early.
#[derive(Debug)]
pub(crate) enum End {
    Failed(String),
    /// The run was told to stop here.
    Stopped,
}

impl From<String> for End {
    fn from(what: String) -> End {
        End::Failed(what)
    }
}

pub(crate) struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) volumes: Vec<VolumeId>,
    pub(crate) rng: Rng,
    schedule: Vec<Struck>,
    states: BTreeMap<(Class, PgState), u64>,
    pub(crate) compared: u64,
    /// Dice of the tenants, and whether they lengthen volumes.
    many: Rng,
    lengthens: bool,
    /// Dice of snapshots, and of families.
    snapshots: Option<Rng>,
    families: Option<(Rng, crate::families::Changes)>,
    /// Dice of a volume with several writers.
    sharing: Option<Rng>,
    /// Dice of the faults of metadata servers that elect a leader, in a run that is not aimed at them.
    electing: Option<Rng>,
    /// Time since when nothing is broken any more, and the longest that a request has waited since.
    calm_since: Option<Time>,
    longest: Duration,
    waits: Vec<(&'static str, Duration)>,
    livelock: Livelock,
    steps: u64,
    /// One OSD is away until the logs have dropped the entries that it needs.
    away: bool,
    stop_at: Time,
    overrides: Overrides,
}

impl Run {
    /// Prepares a run in which nothing has happened yet.
    pub(crate) fn new(seed: u64, options: Options, rng: Rng, away: bool, overrides: &Overrides) -> Run {
        let electing = options.meta_dice(seed).filter(|_| options.aim.is_none());
        Run {
            cluster: Cluster::new(seed, options),
            volumes: Vec::new(),
            rng,
            schedule: Vec::new(),
            states: BTreeMap::new(),
            compared: 0,
            many: Rng::new(seed),
            lengthens: false,
            snapshots: None,
            families: None,
            sharing: None,
            electing,
            calm_since: None,
            longest: Duration::ZERO,
            waits: Vec::new(),
            livelock: Livelock::default(),
            steps: 0,
            away,
            stop_at: overrides.until.map_or(Time::NEVER, |s| Time((s.max(0.0) * 1e9) as u64)),
            overrides: overrides.clone(),
        }
    }

    fn whole(&mut self) -> Result<(), End> {
        self.set_up()?;
        self.work_under_faults()?;
        match self.calm() {
            // More disks lied than the budget allows: data may be out of reach, and is still never wrong.
            Err(End::Failed(what)) if self.cluster.budget.is_spent() => {
                tracing::info!(what, "not served");
                self.cluster.failure()?;
                self.cluster.speaks_up(&what)?;
            }
            calm => {
                calm?;
                self.cluster.failure()?;
                self.cluster.lies_are_mended()?;
                self.cluster.audit()?;
                self.compare()?;
            }
        }
        self.cluster.claims_stand()?;
        Ok(self.histories()?)
    }

    /// Checks the histories of all users together.
    fn histories(&mut self) -> Result<(), String> {
        self.cluster.failure()?;
        self.cluster.meta.laws_hold()?;
        if let Some(snapshots) = self.cluster.snapshots() {
            snapshots.hold(&self.cluster.linear)?;
        }
        if let Some(sharing) = self.cluster.sharing() {
            sharing.hold(&self.cluster.linear)?;
        }
        if let Some(what) = self.cluster.families().and_then(|families| families.failure()) {
            return Err(what.to_owned());
        }
        match self.cluster.linear.violations().first() {
            Some(violation) => Err(violation.to_string()),
            None => Ok(()),
        }
    }

    /// Takes one step, at most to `until`.
    pub(crate) fn step(&mut self, until: Time) -> Result<(), End> {
        let before = self.cluster.world.now();
        if before >= self.stop_at {
            return Err(End::Stopped);
        }
        self.cluster.step(until.min(self.stop_at));
        let stands = self.cluster.world.now() == before;
        let rounds = || self.cluster.running().map(|(_, osd)| osd.round_for_tools()).collect();
        self.livelock
            .stepped(stands, rounds)
            .map_err(|what| format!("{what}, at {before:?}; due: {}", self.cluster.due()))?;
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_LOOK) {
            self.cluster.failure()?;
            self.cluster.meta.laws_hold()?;
            self.cluster.limits_hold()?;
            if self.calm_since.is_some() {
                self.cluster.see_to_poisoned();
            }
            self.everybody_is_answered()?;
        }
        Ok(())
    }

    /// Time of one election more: a lossy network may take the leader away besides the broken path, and the next one may be the
    /// replica that the client cannot reach.
    fn election_by_chance(&self) -> Duration {
        let options = &self.cluster.options;
        let is_lossy = options.net.loss_ppm > 0 || options.net.reset_ppm > 0 || options.net.corrupt_ppm > 0;
        if is_lossy { options.tuned.timing.election_max } else { Duration::ZERO }
    }

    /// Checks the liveness of each request: once nothing is broken, no request of any client waits longer than
    /// [`ANSWER`].
    fn everybody_is_answered(&mut self) -> Result<(), String> {
        self.cluster.others_are_answered().map_err(|what| format!("{what}; {}", self.cluster.describe()))?;
        let around = self.cluster.options.aim.is_some_and(|aim| aim.class == Class::BrokenPath);
        let (since, max) = match self.calm_since {
            Some(since) => (since, ANSWER + self.cluster.options.trickle()),
            None if around => (Time::ZERO, ANSWER_AROUND + self.election_by_chance()),
            None => return Ok(()),
        };
        let now = self.cluster.world.now();
        for client in self.cluster.clients() {
            let Some(asked) = client.oldest() else { continue };
            let waits = now.since(since.max(Time(asked)));
            self.longest = self.longest.max(waits);
            if waits > max {
                return Err(format!("a request has waited for {waits:?} without a fault; {}", self.cluster.describe()));
            }
        }
        Ok(())
    }

    /// Steps until `done`, at most for `limit`.
    fn until(&mut self, limit: Duration, what: &'static str, done: impl Fn(&Cluster) -> bool) -> Result<(), End> {
        self.until_at_rest(limit, what, |_| 0, done)
    }

    /// Steps until `done`, at most for `limit` after the last change of `progress`.
    fn until_at_rest(
        &mut self,
        limit: Duration,
        what: &'static str,
        progress: impl Fn(&Cluster) -> u64,
        done: impl Fn(&Cluster) -> bool,
    ) -> Result<(), End> {
        let began = self.cluster.world.now();
        let (mut deadline, mut seen) = (began + limit, progress(&self.cluster));
        while !done(&self.cluster) {
            if self.cluster.world.now() >= deadline {
                return Err(format!("not within {limit:?}: {what}; {}", self.cluster.describe()).into());
            }
            self.step(deadline)?;
            let progress = progress(&self.cluster);
            if progress != seen {
                (deadline, seen) = (self.cluster.world.now() + limit, progress);
            }
        }
        self.waits.push((what, self.cluster.world.now().since(began)));
        Ok(())
    }

    pub(crate) fn set_up(&mut self) -> Result<(), End> {
        let osds = self.cluster.osd_count();
        self.until(SETUP, "all OSDs reach meta", |c| c.osds_in_touch() == osds)?;
        let options = &self.cluster.options;
        let (name, domain) = ("main".to_owned(), "osd".to_owned());
        let pool = PoolCreate {
            name,
            replicas: options.replicas,
            domain,
            pg_count: options.pgs,
            force: false,
            device_class: None,
        };
        self.cluster.admin(AdminAsk::PoolCreate(pool));
        self.until(SETUP, "the pool is made", |c| {
            c.meta.records().is_some_and(|r| r.pools.values().any(|p| p.state == PoolState::Ready))
        })?;
        self.until(SETUP, "all PGs are active", all_active)?;
        let options = &self.cluster.options;
        let (wanted, stripe) = (options.workload.volumes(&options.shape), options.stripe);
        for (name, len_bytes) in &wanted {
            self.cluster.admin(AdminAsk::VolumeCreate {
                name: (*name).to_owned(),
                len_bytes: *len_bytes,
                stripe,
                text: Default::default(),
            });
        }
        let made = |c: &Cluster| c.meta.records().map_or_else(Vec::new, |r| r.volumes.keys().copied().collect());
        self.until(SETUP, "the volumes are made", |c| made(c).len() == wanted.len())?;
        self.volumes = made(&self.cluster);
        Ok(())
    }

    fn work_under_faults(&mut self) -> Result<(), End> {
        let options = self.cluster.options.clone();
        self.cluster.begin(&self.volumes, options.faults, &mut self.rng);
        if options.workload == Kind::Many {
            self.cluster.let_in_tenants(self.many.clone(), self.lengthens);
        }
        if let Some(dice) = self.snapshots.clone() {
            let named = |id: &VolumeId| {
                let records = self.cluster.meta.records();
                (records.map_or_else(String::new, |records| records.full_name(&records.volumes[id])), *id)
            };
            let volumes = self.volumes.iter().map(named).collect();
            self.cluster.let_in_snapshots(dice, volumes);
        }
        if let Some(dice) = self.families.clone() {
            self.cluster.let_in_families(dice);
        }
        if let Some(dice) = self.sharing.clone() {
            self.cluster.let_in_sharing(dice, options.faults);
        }
        if self.away {
            self.miss_a_log()?;
        }
        let now = self.cluster.world.now();
        let mut faults = Faults::new(self.rng.fork(), now, now + options.faults, &Class::ALL, &self.overrides);
        if let Some(dice) = options.wear {
            faults.enable(&Class::STORE, &mut Rng::new(dice));
        }
        if let Some(dice) = options.late {
            faults.enable(&Class::LATE, &mut Rng::new(dice));
        }
        if let Some(dice) = options.damage {
            faults.enable(&Class::DAMAGE, &mut Rng::new(dice));
        }
        if let Some(dice) = &mut self.electing {
            faults.enable(&[Class::ManyMetas], dice);
        }
        if let Some(aim) = options.aim {
            faults.aim(aim);
        }
        let end = now + options.faults;
        loop {
            let now = self.cluster.world.now();
            trace::at(now, trace::Speaker::Sim);
            faults.act(now, &mut self.cluster);
            self.schedule.clone_from(&faults.struck);
            if faults.is_over(now) {
                break;
            }
            self.step(faults.next().unwrap_or(end).max(now))?;
        }
        self.states = faults.states;
        Ok(())
    }

    /// Stops an OSD for half of the work. When it comes back, only streams help, and all faults strike while they run.
    fn miss_a_log(&mut self) -> Result<(), End> {
        let i = self.rng.below(self.cluster.osd_count() as u64) as usize;
        let until = self.cluster.world.now() + self.cluster.options.faults / 2;
        let settled = self.cluster.world.now() + Duration::from_millis(self.rng.between(0, 500));
        while self.cluster.world.now() < settled {
            self.step(settled)?;
        }
        self.cluster.stop_osd(i, self.rng.chance(1, 2));
        while self.cluster.world.now() < until {
            self.step(until)?;
        }
        self.cluster.start_osd(i);
        Ok(())
    }

    /// Ends all faults. Everything must work again within its time.
    pub(crate) fn calm(&mut self) -> Result<(), End> {
        trace::at(self.cluster.world.now(), trace::Speaker::Sim);
        tracing::info!("calm");
        self.cluster.mend();
        self.calm_since = Some(self.cluster.world.now());
        let limit = self.cluster.options.calm;
        self.until(limit, "all PGs are active again", all_active)?;
        self.cluster.hurry();
        let trickle = self.cluster.options.trickle();
        // The number of requests that are left is drawn, and where each may take so long, each answer renews the limit.
        match trickle.is_zero() {
            true => self.until(limit, "everything is answered", Cluster::work_done)?,
            false => {
                let limit = limit + trickle;
                self.until_at_rest(limit, "everything is answered", Cluster::owners_answers, Cluster::work_done)?;
            }
        }
        let workload = self.cluster.owner().workload.as_mut().expect("it was begun");
        workload.finish();
        // The length of the volumes and the speed of the network are drawn, so each answer renews the limit. How long one
        // request may wait is a law of its own.
        self.until_at_rest(limit, "everything is read back", Cluster::owners_answers, Cluster::work_done)?;
        self.cluster.owner().workload.as_ref().map_or(Ok(()), |w| w.check())?;
        let vacant = |c: &Cluster| c.tenants().is_none_or(|t| t.are_gone(c));
        self.until(limit, "the tenants are gone", vacant)?;
        let done = |c: &Cluster| c.snapshots().is_none_or(|s| s.are_done(c));
        self.until_at_rest(limit, "the snapshots are read", Cluster::snapshots_read, done)?;
        let gone = |c: &Cluster| c.families().is_none_or(|f| f.are_gone(c));
        self.until_at_rest(limit, "the families are gone", Cluster::families_closed, gone)?;
        let unshared = |c: &Cluster| c.sharing().is_none_or(|s| s.is_gone(c));
        let progress = |c: &Cluster| c.sharing().map_or(0, |s| s.progress(c));
        self.until_at_rest(limit, "the volume with several writers is gone", progress, unshared)?;
        self.waits.push(("a request is answered", self.longest));
        let isolation = self.cluster.observers.isolation.borrow();
        if isolation.has_struck() {
            self.waits.push(("a request is answered beside a PG without quorum", isolation.longest()));
        }
        drop(isolation);
        let same = "all replicas have applied the same";
        let limit = limit + self.cluster.replacement_pause();
        let left = |c: &Cluster| c.tenants().is_none_or(|t| t.are_gone(c)) && gone(c) && unshared(c);
        let equal = |c: &Cluster| all_equal(c) && no_change(c) && left(c);
        let rested = self.until(limit, same, equal);
        if !matches!(rested, Err(End::Failed(_))) {
            rested?;
            return self.until(limit, "the moves have ended", moves_ended);
        }
        // R13: an OSD that was away while the others took more than its device holds stays behind. No other OSD is
        // excused.
        self.cluster.overfull = self.cluster.stays_full();
        if self.cluster.overfull.is_some() { self.until(limit, same, equal) } else { rested }
    }

    pub(crate) fn compare(&mut self) -> Result<(), End> {
        let mut unread = self.compare_at_rest()?;
        // An OSD asks its peers for a block that it could not read.
        for _ in 0..MENDS_MAX {
            if unread.is_empty() {
                break;
            }
            let until = self.cluster.world.now() + MEND_PAUSE;
            while self.cluster.world.now() < until {
                self.step(until)?;
            }
            unread = self.compare_at_rest()?;
        }
        match unread.first() {
            Some(what) => Err(format!("{what}, and no peer repairs it ({})", self.cluster.budget.describe()).into()),
            None => Ok(()),
        }
    }

    /// A repair may end with a replica that is replaced, so the members may change once more.
    fn compare_at_rest(&mut self) -> Result<Vec<String>, End> {
        if self.cluster.budget.has_stayed() {
            let limit = self.cluster.options.calm;
            self.until(limit, "all replicas have applied the same while blocks are repaired", |c| {
                all_equal(c) && no_change(c) && moves_ended(c)
            })?;
        }
        Ok(self.compare_once()?)
    }

    fn compare_once(&mut self) -> Result<Vec<String>, String> {
        let mut unread = Vec::new();
        let members = members(&self.cluster).expect("meta was up just now");
        let osds = |members: Vec<(OsdId, Option<Index>)>| members.into_iter().map(|(osd, _)| osd).collect();
        let pgs: Vec<(PgId, Vec<OsdId>)> = members.into_iter().map(|(pg, members)| (pg, osds(members))).collect();
        let options = &self.cluster.options;
        let chunks = options.stripe.chunk_count(options.shape.len_bytes) as u32;
        for volume in &self.volumes {
            self.compared += replicas::check(&mut self.cluster, *volume, chunks, &pgs, &mut unread)?;
        }
        Ok(unread)
    }
}

/// Whether every PG that meta knows has a leader that serves.
fn all_active(cluster: &Cluster) -> bool {
    let Some(records) = cluster.meta.records() else { return false };
    let mut active: BTreeMap<PgId, usize> = BTreeMap::new();
    for (_, osd) in cluster.running() {
        for report in osd.reports_for_tools() {
            if report.leading.is_some_and(|l| l.active) {
                *active.entry(report.pg).or_default() += 1;
            }
        }
    }
    records.pgs.keys().all(|pg| active.get(pg) == Some(&1))
}

/// A member, and the index that it has applied.
type Applied = (OsdId, Option<Index>);

/// Returns the members of every PG with what each has applied; `None`: it does not serve.
fn members(cluster: &Cluster) -> Option<BTreeMap<PgId, Vec<Applied>>> {
    let mut applied: BTreeMap<(PgId, OsdId), Index> = BTreeMap::new();
    for (id, osd) in cluster.running() {
        // A replica that is being filled or repaired does not serve.
        let whole = osd.reports_for_tools().into_iter().filter(|report| !report.repairing);
        applied.extend(whole.map(|r| ((r.pg, id), r.applied)));
    }
    // A replica that does not serve because its disk lied is excused.
    let excused = |pg: PgId, (osd, applied): &Applied| {
        let lacks = cluster.budget.may_lack(osd.0 as usize - 1) || cluster.asks_in_vain(pg, *osd);
        applied.is_none() && lacks || cluster.overfull == Some(*osd)
    };
    let of = |pg: &PgRecord| {
        let all = pg.members.iter().map(|m| (m.osd, applied.get(&(pg.pg, m.osd)).copied()));
        all.filter(|member| !excused(pg.pg, member)).collect()
    };
    Some(cluster.meta.records()?.pgs.values().map(|pg| (pg.pg, of(pg))).collect())
}

/// Whether the members of no PG are to change, by any plan, and every replica is on an OSD where it may stay.
fn no_change(cluster: &Cluster) -> bool {
    let idle = |pg: &PgRecord| pg.change.is_none() && pg.queue.is_empty();
    let records = cluster.meta.records();
    records.is_some_and(|records| records.pgs.values().all(idle) && no_place_is_wrong(cluster, records))
        && cluster.replaced_are_empty()
        && cluster.meta.plans_no_move(cluster.world.now())
}

/// Whether no replica is on an OSD that is to be empty, where enough others could take it.
fn no_place_is_wrong(cluster: &Cluster, records: &control::Records) -> bool {
    let leaves = |osd: OsdId| records.osds.get(&osd).is_none_or(control::OsdRecord::leaves);
    let usable = |osd: &&control::OsdRecord| !osd.leaves() && cluster.running().any(|(id, _)| id == osd.id);
    let enough = records.osds.values().filter(usable).count() >= cluster.options.replicas as usize;
    let is_aimed = cluster.options.aim.is_some_and(|aim| aim.class == Class::EmptiedOsds);
    !is_aimed || !enough || records.pgs.values().all(|pg| !pg.members.iter().any(|m| leaves(m.osd)))
}

/// Whether each OSD that runs holds the replicas of the records, and no other.
fn moves_ended(cluster: &Cluster) -> bool {
    let Some(records) = cluster.meta.records() else { return false };
    if records.pgs.values().any(|pg| pg.forced.is_some() || !pg.vacant.is_empty()) {
        return false;
    }
    let is_member = |osd: OsdId, pg: PgId, replica: ReplicaId| {
        // Replicas of a PG that the records do not know may be left: they may have gone back in time (R17).
        records.pgs.get(&pg).is_none_or(|pg| pg.members.contains(&Member { replica, osd }))
    };
    cluster.running().all(|(id, osd)| osd.replicas_for_tools().iter().all(|(pg, replica)| is_member(id, *pg, *replica)))
}

/// Whether every member of every PG serves and has applied the same, including those that only a stream could bring
/// back.
fn all_equal(cluster: &Cluster) -> bool {
    let Some(pgs) = members(cluster) else { return false };
    pgs.values().all(|members| {
        let mut rest = members.iter().map(|(_, applied)| *applied);
        let first = rest.next().flatten();
        first.is_some() && rest.all(|applied| applied == first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without meta's word an OSD begins to serve after ten seconds.
    #[test]
    fn osds_serve_as_soon_as_meta_lets_them_in() {
        let mut rng = Rng::new(2);
        let options = Options::draw(&mut rng);
        let mut run = Run::new(2, options, rng, false, &Overrides::default());
        assert!(run.set_up().is_ok(), "nothing is broken");
        assert!(run.cluster.world.now() < Time::ZERO + Duration::from_secs(5), "at {:?}", run.cluster.world.now());
    }

    #[test]
    fn unanswered_request_is_found_when_its_time_is_over() {
        let mut rng = Rng::new(2);
        let options = Options::draw(&mut rng);
        let mut run = Run::new(2, options, rng, false, &Overrides::default());
        assert!(run.set_up().is_ok(), "nothing is broken");
        run.cluster.begin(&run.volumes, Duration::from_secs(1), &mut run.rng);
        let waits = |run: &Run| run.cluster.clients().iter().any(|c| c.oldest().is_some());
        while !waits(&run) {
            assert!(run.step(Time::NEVER).is_ok(), "nothing is broken");
        }
        (0..run.cluster.osd_count()).for_each(|i| run.cluster.stop_osd(i, true));
        let now = run.cluster.world.now();
        run.calm_since = Some(now);
        while run.cluster.world.now() < now + 2 * ANSWER {
            if let Err(End::Failed(what)) = run.step(now + 2 * ANSWER) {
                assert!(what.contains("a request has waited"), "{what}");
                assert!(run.cluster.world.now() > now + ANSWER);
                return;
            }
        }
        panic!("it waits for ever, and no failure is reported");
    }
}
