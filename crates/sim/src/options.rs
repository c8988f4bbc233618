//! Settings that one seed draws for a run: sizes, speeds, shapes. Each hostile value stands beside its usual one.

use crate::aim::{
    Aim, CUTS_FROM, DAMAGE_FROM, FAMILIES_FROM, FAMILIES_PCT, FLATTEN_FROM, LATE_FROM, LONG_SEGMENTS_FROM, METAS_FROM,
    MOVED_FAMILIES_FROM, NEWEST_FROM, REDIRECT_FROM, ROOMY_FROM, SHARING_FROM, SHARING_PCT, SHRINK_FROM,
    SNAPSHOTS_FROM, SNAPSHOTS_PCT, STRIPED_FROM,
};
use crate::families::Changes;
use crate::faults::Class;
use crate::tuned::Tuned;
use crate::workload::{AU_SECTORS, AUS_MAX, Kind, Pattern, Shape};
use engine::EngineConfig;
use env::DiskKind;
use simenv::{DiskFaults, NetConfig};
use std::time::Duration;
use types::Stripe;
use types::rng::Rng;
use types::units::SECTOR;

/// Settings of one run.
#[derive(Clone, Debug)]
pub struct Options {
    pub osds: u32,
    pub replicas: u32,
    pub pgs: u32,
    pub device_bytes: u64,
    pub log_bytes: u64,
    /// The log of the first OSD is longer by so much, and its home is smaller.
    pub first_log_extra_bytes: u64,
    pub segment_bytes: u64,
    pub engine: EngineConfig,
    pub net: NetConfig,
    pub disk: DiskFaults,
    pub disk_kind: DiskKind,
    pub volatile_cache: bool,
    pub drift: bool,
    pub lease_reads: bool,
    pub workload: Kind,
    pub shape: Shape,
    /// Time for which faults strike.
    pub faults: Duration,
    /// After the faults, everything must be answered within this time.
    pub calm: Duration,
    /// Dice of the faults at stores, in a run that wears the devices.
    pub wear: Option<u64>,
    /// Dice of the classes that were added later, in a run in which they strike.
    pub late: Option<u64>,
    /// Dice of the damage that stays, in a run in which it strikes.
    pub damage: Option<u64>,
    /// Time for which clients try a write again that finds a store full.
    pub full_wait: Duration,
    /// Aim of the run, if it has one.
    pub aim: Option<Aim>,
    /// Number of metadata servers over an etcd; `None`: one, on a store of its own.
    pub metas: Option<usize>,
    /// Stripe layout of the volumes, other than those of tenants.
    pub stripe: Stripe,
    /// Whether clients hold to the I/O limits of their volumes; otherwise only leaders do.
    pub clients_hold_limits: bool,
    /// Tunables of the product.
    pub tuned: Tuned,
}

impl Options {
    /// Draws all settings.
    pub fn draw(rng: &mut Rng) -> Options {
        let replicas = [3, 3, 3, 3, 5, 2, 1][rng.below(7) as usize];
        let engine = EngineConfig {
            round_idle: Duration::from_millis(rng.between(50, 3000)),
            round_pressure: [0.5, 0.1, 0.0][rng.below(3) as usize],
            ..EngineConfig::default()
        };
        Options {
            osds: replicas.max(3),
            replicas,
            pgs: rng.between(1, 4) as u32,
            device_bytes: [192 << 20, 1 << 30][rng.below(2) as usize],
            log_bytes: 16 << 20,
            first_log_extra_bytes: 0,
            segment_bytes: 1 << 20,
            engine,
            net: draw_net(rng),
            disk: draw_disk(rng),
            disk_kind: if rng.chance(1, 4) { DiskKind::File } else { DiskKind::Block },
            volatile_cache: rng.chance(2, 3),
            drift: rng.chance(1, 2),
            lease_reads: rng.chance(4, 5),
            workload: Kind::draw(rng),
            shape: Shape {
                pattern: Pattern::Random,
                len_bytes: (1 << 30) + (64 << 20),
                window: [4 << 10, 32 << 10, 128 << 10, 2 << 20][rng.below(4) as usize],
                depth: rng.between(1, 24) as usize,
                sectors_max: [1, 16, 64, 512, 2048][rng.below(5) as usize].min(64),
                read_pct: rng.between(10, 60),
                trim_pct: rng.between(0, 15),
                operations: rng.between(200, 2000),
                forger: None,
                whole_blocks: false,
                may_be_full: false,
                spread: 0,
                whole_aus_pct: 0,
            },
            faults: Duration::from_millis(rng.between(1000, 12_000)),
            calm: Duration::from_secs(20),
            wear: None,
            late: None,
            damage: None,
            full_wait: Duration::ZERO,
            aim: None,
            metas: None,
            stripe: Stripe::NONE,
            clients_hold_limits: true,
            tuned: Tuned::default(),
        }
    }
}

impl Options {
    /// Returns the length of the i-th OSD's log.
    pub fn log_bytes_of(&self, i: usize) -> u64 {
        self.log_bytes + if i == 0 { self.first_log_extra_bytes } else { 0 }
    }

    /// Sets more work than the logs hold, so that an OSD that misses half of it is behind them.
    pub fn outlast_logs(&mut self, rng: &mut Rng) {
        self.faults = Duration::from_millis(rng.between(4000, 12_000));
        let shape = &mut self.shape;
        (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 64, shape.depth.max(8));
        (shape.read_pct, shape.operations) = (10, rng.between(3000, 6000));
    }
}

/// Percentage of runs in which classes strike that were added later, among the runs that may draw them.
const LATE_CLASSES_PCT: u64 = 25;
/// Percentage of runs with damage that stays, among the runs that may draw it.
const DAMAGE_PCT: u64 = 30;
/// Percentage of runs with the settings that were added last, among the runs that may draw them.
const NEWEST_PCT: u64 = 60;
/// Percentage of runs with small limits, and with windows that are spread, among the runs that may draw them.
const SMALL_PCT: u64 = 25;
const SPREAD_PCT: u64 = 6;
/// Percentage of runs with striped volumes, among the runs that may draw them.
const STRIPED_PCT: u64 = 25;
/// Percentage of runs in which metadata servers elect a leader, among the runs that may draw it.
const METAS_PCT: u64 = 30;
/// A leader is elected when the lease of the former one is over, and judges no OSD for ten seconds.
pub const ELECTED_CALM: Duration = Duration::from_secs(40);
/// Percentage of runs whose stores write large payloads once, among the runs that may draw it.
const REDIRECT_PCT: u64 = 60;
const LONG_SEGMENTS_PCT: u64 = 30;
/// Percentage of runs that wear their devices.
const WEAR_PCT: u64 = 30;

impl Options {
    /// Returns the dice of a run in which [`crate::faults::Class::LATE`] strike.
    pub fn late_dice(seed: u64) -> Option<u64> {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"late all"));
        (seed >= LATE_FROM && rng.chance(LATE_CLASSES_PCT, 100)).then(|| rng.next_u64())
    }

    /// Returns the dice of a run in which [`crate::faults::Class::DAMAGE`] strikes.
    pub fn damage_dice(seed: u64) -> Option<u64> {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"damages!"));
        (seed >= DAMAGE_FROM && rng.chance(DAMAGE_PCT, 100)).then(|| rng.next_u64())
    }

    /// Returns the dice of a run with the settings that were added last.
    pub fn newest_dice(seed: u64) -> Option<Rng> {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"newest 3"));
        (seed >= NEWEST_FROM && rng.chance(NEWEST_PCT, 100)).then_some(rng)
    }

    /// Sets, in some runs, state blocks of log segments that take several batches, and clients that wait for space.
    pub fn draw_newest(&mut self, seed: u64) {
        let Some(mut rng) = Options::newest_dice(seed) else { return };
        let whole = self.engine.state_batch_max;
        self.engine.state_batch_max = [whole, 4096, 512, 64][rng.below(4) as usize];
        self.full_wait = [0, 300, 1200].map(Duration::from_millis)[rng.below(3) as usize];
    }

    /// Sets small limits in some runs, so that each step meets its border: FoundationDB calls it buggify.
    pub fn draw_small(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"smallest"));
        if seed < DAMAGE_FROM || !rng.chance(SMALL_PCT, 100) {
            return;
        }
        let mut some = |usual: u64, small: [u64; 2]| [usual, small[0], small[1]][rng.below(3) as usize];
        let engine = &mut self.engine;
        engine.steps.drops_max = some(engine.steps.drops_max as u64, [1, 7]) as usize;
        engine.seal_after = Duration::from_millis(some(10, [1, 200]));
        let steps = &mut engine.steps;
        steps.completing_max = some(steps.completing_max as u64, [1, 3]) as usize;
        steps.completed_queue_max = some(steps.completed_queue_max as u64, [1, 5]) as usize;
        steps.round_blocks = some(steps.round_blocks as u64, [1, 40]) as usize;
        steps.copy_entries = some(steps.copy_entries as u64, [1, 10]) as usize;
        steps.home_ops_max = some(steps.home_ops_max.into(), [1, 4]) as u32;
        steps.home_io_bytes_max = some(steps.home_io_bytes_max, [4 << 10, 64 << 10]);
    }

    /// Time that the requests of a full queue may take when an OSD admits few of their parts at once: a drawn credit or queue of a PG,
    /// units of a few KiB, and a far network multiply. Without stripes a request has too few parts to matter.
    pub fn trickle(&self) -> Duration {
        if !self.stripe.is_striped() {
            return Duration::ZERO;
        }
        let longest = self.shape.sectors_max.max(AUS_MAX * AU_SECTORS) * SECTOR;
        let parts = self.shape.depth as u32 * longest.div_ceil(self.stripe.unit_bytes()) as u32;
        let (queue, volume) = (self.tuned.osd.group.queue_ops_max as u32, &self.tuned.client.volume);
        // A part that finds the queue full comes again after a pause.
        let pause = if parts > queue { volume.backoff_short.max(volume.backoff_first) } else { Duration::ZERO };
        // To the leader, to its followers, and back.
        (4 * self.net.delay.1 + pause) * parts / self.tuned.osd.bus.credit_ops.min(queue)
    }

    /// Lets several metadata servers elect a leader in some runs that are not aimed.
    pub fn draw_metas(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"metadata"));
        if seed >= METAS_FROM && rng.chance(METAS_PCT, 100) {
            self.metas = Some(rng.between(1, 3) as usize);
            self.calm = self.calm.max(ELECTED_CALM);
        }
    }

    /// Returns the dice of the faults of metadata servers, in a run in which they elect a leader.
    pub fn meta_dice(&self, seed: u64) -> Option<Rng> {
        self.metas.map(|_| Rng::new(seed ^ u64::from_be_bytes(*b"electing")))
    }

    /// Returns the dice of snapshots in a run that makes some, and those of families of volumes in a run that has such, with what is done to them.
    pub fn dice_of_snapshots(&self, seed: u64) -> (Option<Rng>, Option<(Rng, Changes)>) {
        let of = |name: &[u8; 8]| Rng::new(seed ^ u64::from_be_bytes(*name));
        let dice = |name: &[u8; 8], from: u64, percentage: u64| {
            let mut rng = of(name);
            (seed >= from && rng.chance(percentage, 100)).then_some(rng)
        };
        if self.aim.is_some_and(|aim| aim.class == Class::CutPoints) {
            return (Some(of(b"snapshot")), None);
        }
        let changes = Changes { flattens: seed >= FLATTEN_FROM, shrinks: seed >= SHRINK_FROM };
        let moves = |aim: Aim| matches!(aim.class, Class::MovedReplicas | Class::EmptiedOsds | Class::ReplacedOsds);
        let has_families = self.aim.is_none_or(|aim| seed >= MOVED_FAMILIES_FROM && moves(aim));
        let families = dice(b"families", FAMILIES_FROM, FAMILIES_PCT).filter(|_| has_families);
        let snapshots = dice(b"snapshot", SNAPSHOTS_FROM, SNAPSHOTS_PCT).filter(|_| self.aim.is_none());
        (snapshots, families.map(|rng| (rng, changes)))
    }

    /// Returns the dice of a volume with several writers, in a run that has one.
    pub fn dice_of_sharing(&self, seed: u64) -> Option<Rng> {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"sharing!"));
        let fits = seed >= SHARING_FROM && self.aim.is_none();
        (fits && rng.chance(SHARING_PCT, 100)).then_some(rng)
    }

    /// Draws the settings of runs that are not aimed.
    pub fn draw_unaimed(&mut self, seed: u64) {
        self.draw_metas(seed);
        self.draw_small(seed);
        self.draw_spread(seed);
        self.draw_stripe(seed);
        self.make_room_for_marks(seed);
    }

    /// Draws the settings of aimed runs that no aim sets.
    pub fn draw_aimed(&mut self, seed: u64) {
        if self.dice_of_snapshots(seed).1.is_some() {
            self.device_bytes = self.device_bytes.max(1 << 30);
        }
    }

    /// Gives families and runs with snapshots large devices in later runs: the marks behind a nearer end, and chunks of many
    /// generations, take more slots than a small device has.
    fn make_room_for_marks(&mut self, seed: u64) {
        let (snapshots, families) = self.dice_of_snapshots(seed);
        if seed >= CUTS_FROM && families.is_some() || seed >= ROOMY_FROM && snapshots.is_some() {
            self.device_bytes = self.device_bytes.max(1 << 30);
        }
    }

    /// Spreads the windows of some runs over more chunks than one directory page of home names.
    pub fn draw_spread(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"spread!!"));
        if seed < DAMAGE_FROM || !rng.chance(SPREAD_PCT, 100) {
            return;
        }
        let shape = &mut self.shape;
        (shape.len_bytes, shape.spread) = (3 << 30, rng.between(80, 180));
        shape.window = shape.window.min(32 << 10);
        self.pgs = rng.between(1, 2) as u32;
        self.device_bytes = 1 << 30;
    }

    /// Stripes the volumes of some runs that are not aimed.
    pub fn draw_stripe(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"striped!"));
        if seed >= STRIPED_FROM && rng.chance(STRIPED_PCT, 100) {
            let (unit, count) = (4096 << rng.below(8), 2 << rng.below(2));
            self.stripe = Stripe::new(unit, count).expect("powers of two");
            self.pgs = self.pgs.max(count);
        }
    }

    /// Lets the stores of some runs write large payloads once. Unless the run is aimed, some requests begin and end with AUs.
    /// The dice are drawn last and are their own.
    pub fn draw_redirect(&mut self, seed: u64, is_aimed: bool) {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"redirect"));
        if seed < REDIRECT_FROM || !rng.chance(REDIRECT_PCT, 100) {
            return;
        }
        self.engine.redirect_min = Some([64 << 10, 128 << 10, 512 << 10][rng.below(3) as usize]);
        if is_aimed {
            return;
        }
        let shape = &mut self.shape;
        (shape.whole_aus_pct, shape.window) = (rng.between(20, 80), shape.window.max(2 << 20));
        // Each sector is a line of the history.
        shape.operations = shape.operations.min(500);
        if seed >= LONG_SEGMENTS_FROM && rng.chance(LONG_SEGMENTS_PCT, 100) {
            // Many requests wait for a batch at a time.
            (shape.depth, shape.whole_aus_pct) = (24, 80);
            (self.log_bytes, self.segment_bytes) = (128 << 20, 8 << 20);
            self.device_bytes = 1 << 30;
        }
    }

    /// Returns the dice of a run that wears its devices.
    pub fn wears(seed: u64) -> Option<Rng> {
        let mut rng = Rng::new(seed ^ 0x7765_6172_5f64_6576);
        rng.chance(WEAR_PCT, 100).then_some(rng)
    }

    /// Wears the devices in some runs. Freed space is reused at once, and the log wraps several times. Destages come
    /// early or as late as they may, and more than one PG fills the log. The dice are its own, so that all else of the
    /// seed stays as it was.
    pub fn draw_wear(&mut self, seed: u64) {
        let Some(mut rng) = Options::wears(seed) else { return };
        self.wear = Some(rng.next_u64());
        self.engine.reuse_at_once = rng.chance(3, 4);
        if rng.chance(1, 2) {
            return;
        }
        self.engine.round_pressure = [0.5, 0.9, 0.95][rng.below(3) as usize];
        self.pgs = self.pgs.max(2);
        let shape = &mut self.shape;
        // Requests are few and large, because each sector is a line of the history.
        (shape.window, shape.sectors_max, shape.depth) = (2 << 20, [128, 512][rng.below(2) as usize], 12);
        (shape.read_pct, shape.operations) = (rng.between(5, 30), 120_000 / shape.sectors_max);
        shape.trim_pct = rng.between(0, 30);
        self.faults = Duration::from_millis(rng.between(3000, 9000));
    }
}

fn draw_net(rng: &mut Rng) -> NetConfig {
    let us = Duration::from_micros;
    let mut net = NetConfig { delay: (us(20), us(800)), ..NetConfig::default() };
    if rng.chance(1, 4) {
        net.delay = (us(100), us(20_000));
    }
    if rng.chance(1, 4) {
        net.loss_ppm = rng.between(100, 20_000) as u32;
    }
    if rng.chance(1, 4) {
        net.reset_ppm = rng.between(10, 1000) as u32;
    }
    if rng.chance(1, 10) {
        net.corrupt_ppm = rng.between(1, 200) as u32;
    }
    if rng.chance(1, 2) {
        net.user_timeout = Duration::from_millis(rng.between(200, 3000));
    }
    net
}

fn draw_disk(rng: &mut Rng) -> DiskFaults {
    let us = Duration::from_micros;
    let mut disk = DiskFaults::default();
    if rng.chance(1, 3) {
        disk.latency = (us(50), us(5000));
        disk.flush_latency = (us(500), us(20_000));
    }
    disk
}
