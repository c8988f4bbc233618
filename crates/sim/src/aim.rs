//! Aimed runs: one fault schedule, directed at one rule of the protocol, strikes again and again under a load that lets
//! a mistake show. Random faults would produce such a schedule about once in ten thousand runs.
//!
//! An aim is drawn from the seed with a random stream of its own, so every other part of a run keeps its meaning.
//!
//! Invariant: an aim changes the workload and the faults, and no check.

use crate::cluster::Cluster;
use crate::faults::Class;
use crate::forge::Forger;
use crate::options::{ELECTED_CALM, Options};
use crate::workload::{Kind, Pattern};
use std::time::Duration;
use types::rng::Rng;
use types::units::SEGMENT;
use types::{Index, PgId, ReplicaId, Stripe, Term};

/// Percentage of aimed runs among the runs that do not wear the devices.
const AIMED_PCT: u64 = 40;

/// Percentage of the runs aimed at stores, among the runs that are neither aimed otherwise nor wear the devices.
const STORE_AIMED_PCT: u64 = 8;

/// Classes that need a run to themselves: the schedule takes seconds, or damages answers so often that a client gives
/// up.
const ALONE: [Class; 2] = [Class::OldTail, Class::DamagedPayload];

/// From this seed on, [`Class::LATE_AIMS`] are drawn as well. Earlier seeds keep their meaning.
pub const LATE_FROM: u64 = 100_000;
/// Percentage of late aims among the runs that do not wear the devices.
const LATE_PCT: u64 = 20;
/// From this seed on, the first of [`Class::LATER_AIMS`] is drawn as well, before the aims above.
pub const LATER_FROM: u64 = 200_000;
const LATER_PCT: u64 = 4;
/// From this seed on, the first two of [`Class::LATER_AIMS`] are drawn.
pub const NEWEST_FROM: u64 = 300_000;
const NEWEST_PCT: u64 = 10;
/// From this seed on, [`Class::FilledBehind`] is drawn as well, before all other aims.
pub const FILLED_FROM: u64 = 400_000;
const FILLED_PCT: u64 = 4;
/// From this seed on, [`Class::CutStateBlock`] is drawn as well, before all other aims.
pub const OPENING_FROM: u64 = 600_000;
const OPENING_PCT: u64 = 4;

/// From this seed on, [`Class::MovedReplicas`] is drawn as well, before all other aims.
pub const MOVED_FROM: u64 = 800_000;
const MOVED_PCT: u64 = 8;
/// From this seed on, [`Class::FailedReplicas`] is drawn as well, before all other aims.
pub const FAILED_FROM: u64 = 900_000;
const FAILED_PCT: u64 = 8;
/// From this seed on, [`Class::EmptiedOsds`] is drawn as well, before all other aims.
pub const EMPTIED_FROM: u64 = 1_000_000;
const EMPTIED_PCT: u64 = 8;
/// From this seed on, [`Class::ForcedPgs`] is drawn as well, before all other aims.
pub const FORCED_FROM: u64 = 1_100_000;
const FORCED_PCT: u64 = 6;
/// From this seed on, [`Class::DisjointBlocks`], [`Class::DisjointEntries`] and [`Class::ReplacedOsds`] are drawn as well, and
/// [`Class::DAMAGE`] strikes in some runs.
pub const DAMAGE_FROM: u64 = 1_200_000;
const DISJOINT_PCT: u64 = 10;
const REPLACED_PCT: u64 = 6;
/// From this seed on, [`Class::PairsOfReplicas`] is drawn as well, before all other aims.
pub const PAIRS_FROM: u64 = 1_400_000;
const PAIRS_PCT: u64 = 8;

/// From this seed on, [`Class::StuckPg`] is drawn as well, before all other aims.
pub const STUCK_FROM: u64 = 1_500_000;
const STUCK_PCT: u64 = 6;

/// From this seed on, [`Class::FillingCounts`] is drawn as well, before all other aims.
pub const FILLING_FROM: u64 = 1_800_000;
const FILLING_PCT: u64 = 8;
/// From this seed on, [`Class::ManyMetas`] is drawn as well, before all other aims, and metadata servers elect a leader in
/// some runs.
pub const METAS_FROM: u64 = 1_700_000;
const METAS_PCT: u64 = 8;

/// From this seed on, [`Class::OlderDevices`] is drawn as well, before all other aims but [`Class::FillingCounts`].
pub const OLDER_FROM: u64 = 1_900_000;
const OLDER_PCT: u64 = 6;

/// From this seed on, volumes are striped in some runs that are not aimed.
pub const STRIPED_FROM: u64 = 2_100_000;

/// From this seed on, the stores of some runs write large payloads once.
pub const REDIRECT_FROM: u64 = 2_100_000;

/// From this seed on, some of them have segments with room for batches that place as much as they may.
pub const LONG_SEGMENTS_FROM: u64 = 2_120_000;

/// From this seed on, tenants lengthen their volumes, and remove them by way of the trash.
pub const LENGTHENED_FROM: u64 = 2_130_000;

/// From this seed on, [`Class::LimitedVolumes`] is drawn as well, before all other aims but [`Class::FillingCounts`].
pub const LIMITED_FROM: u64 = 2_140_000;
/// From this seed on some runs without an aim make snapshots.
pub const SNAPSHOTS_FROM: u64 = 2_190_000;
pub const SNAPSHOTS_PCT: u64 = 40;
/// From this seed on some runs without an aim have volumes with rollbacks and clones.
pub const FAMILIES_FROM: u64 = 2_200_000;
pub const FAMILIES_PCT: u64 = 40;
/// From this seed on, their clones are flattened.
pub const FLATTEN_FROM: u64 = 2_210_000;
/// From this seed on, their volumes get shorter and longer again.
pub const SHRINK_FROM: u64 = 2_230_000;
const LIMITED_PCT: u64 = 4;
/// From this seed on, [`Class::CutPoints`] is drawn as well, before all other aims but [`Class::FillingCounts`].
pub const CUTS_FROM: u64 = 2_300_000;
const CUTS_PCT: u64 = 6;
/// From this seed on, runs with snapshots have large devices: those of volumes with many chunks take more slots than a small one has.
pub const ROOMY_FROM: u64 = 2_320_000;
/// From this seed on, runs in which replicas move have families, too.
pub const MOVED_FAMILIES_FROM: u64 = 2_450_000;
/// From this seed on, some runs have a volume with several writers.
pub const SHARING_FROM: u64 = 2_330_000;
pub const SHARING_PCT: u64 = 12;

/// An aim whose class has its run to itself: name of its dice, first seed, percentage, class.
type Alone = (&'static [u8; 8], u64, u64, Class);
/// Such aims that are drawn before [`Class::DisjointBlocks`] and [`Class::DisjointEntries`], in this order.
const FIRST_ALONE: [Alone; 7] = [
    (b"cutStep!", CUTS_FROM, CUTS_PCT, Class::CutPoints),
    (b"limited!", LIMITED_FROM, LIMITED_PCT, Class::LimitedVolumes),
    (b"anOlder!", OLDER_FROM, OLDER_PCT, Class::OlderDevices),
    (b"manyMeta", METAS_FROM, METAS_PCT, Class::ManyMetas),
    (b"isolated", STUCK_FROM, STUCK_PCT, Class::StuckPg),
    (b"pairs of", PAIRS_FROM, PAIRS_PCT, Class::PairsOfReplicas),
    (b"byForce!", FORCED_FROM, FORCED_PCT, Class::ForcedPgs),
];
/// Such aims that are drawn after them, in this order.
const NEXT_ALONE: [Alone; 6] = [
    (b"replaced", DAMAGE_FROM, REPLACED_PCT, Class::ReplacedOsds),
    (b"emptied!", EMPTIED_FROM, EMPTIED_PCT, Class::EmptiedOsds),
    (b"failures", FAILED_FROM, FAILED_PCT, Class::FailedReplicas),
    (b"replicas", MOVED_FROM, MOVED_PCT, Class::MovedReplicas),
    (b"opening!", OPENING_FROM, OPENING_PCT, Class::CutStateBlock),
    (b"filledAt", FILLED_FROM, FILLED_PCT, Class::FilledBehind),
];

/// Returns the first seed whose run may be aimed at this class.
pub fn first_seed(class: Class) -> u64 {
    match class {
        late if Class::LATE_AIMS.contains(&late) => LATE_FROM,
        Class::BrokenPath => LATER_FROM,
        Class::FilledBehind => FILLED_FROM,
        Class::CutStateBlock => OPENING_FROM,
        Class::MovedReplicas => MOVED_FROM,
        Class::FailedReplicas => FAILED_FROM,
        Class::EmptiedOsds => EMPTIED_FROM,
        Class::ForcedPgs => FORCED_FROM,
        Class::StuckPg => STUCK_FROM,
        Class::LimitedVolumes => LIMITED_FROM,
        Class::CutPoints => CUTS_FROM,
        Class::FillingCounts => FILLING_FROM,
        Class::ManyMetas => METAS_FROM,
        Class::OlderDevices => OLDER_FROM,
        Class::DisjointBlocks | Class::DisjointEntries | Class::ReplacedOsds => DAMAGE_FROM,
        Class::PairsOfReplicas => PAIRS_FROM,
        later if Class::LATER_AIMS.contains(&later) => NEWEST_FROM,
        _ => 1,
    }
}

/// Most seeds that are looked at for one that is aimed at a class.
const DRAWS_MAX: u64 = 10_000;

/// Parses the name of a class that runs are aimed at.
///
/// # Errors
/// No run is aimed at it; the text names those that runs are aimed at.
pub fn class_named(name: &str) -> Result<Class, String> {
    let is_aimed = |class: &Class| {
        let begin = first_seed(*class);
        (begin..begin + DRAWS_MAX).any(|seed| Aim::draw(seed).is_some_and(|aim| aim.class == *class))
    };
    let aims = || Class::every().filter(is_aimed);
    let names = || aims().map(|class| format!("{class:?}")).collect::<Vec<_>>().join(", ");
    aims()
        .find(|class| format!("{class:?}") == name)
        .ok_or_else(|| format!("no run is aimed at it; at these: {}", names()))
}

/// Returns the seeds from `start` on whose runs are aimed at the class.
pub fn aimed_seeds(class: Class, start: Option<u64>) -> impl Iterator<Item = u64> {
    let aimed = move |seed: &u64| Aim::draw(*seed).is_some_and(|aim| aim.class == class);
    (start.unwrap_or(first_seed(class))..).filter(aimed)
}

/// The class of faults that a run is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    pub class: Class,
    /// No other class strikes in the run.
    pub alone: bool,
}

impl Aim {
    /// Draws the aim of this seed's run. A run that wears the devices has none.
    pub fn draw(seed: u64) -> Option<Aim> {
        if Options::wears(seed).is_some() {
            return None;
        }
        let mut filling = Rng::new(seed ^ u64::from_be_bytes(*b"filling!"));
        if seed >= FILLING_FROM && filling.chance(FILLING_PCT, 100) {
            return Some(Aim { class: Class::FillingCounts, alone: filling.chance(1, 2) });
        }
        if let Some(aim) = Aim::draw_alone(seed, &FIRST_ALONE) {
            return Some(aim);
        }
        let mut disjoint = Rng::new(seed ^ u64::from_be_bytes(*b"disjoint"));
        if seed >= DAMAGE_FROM && disjoint.chance(DISJOINT_PCT, 100) {
            let class = [Class::DisjointBlocks, Class::DisjointEntries][disjoint.below(2) as usize];
            return Some(Aim { class, alone: true });
        }
        if let Some(aim) = Aim::draw_alone(seed, &NEXT_ALONE) {
            return Some(aim);
        }
        let mut later = Rng::new(seed ^ u64::from_be_bytes(*b"laterAim"));
        let (all, pct) = match seed {
            NEWEST_FROM.. => (&Class::LATER_AIMS[..2], NEWEST_PCT),
            LATER_FROM.. => (&Class::LATER_AIMS[..1], LATER_PCT),
            _ => (&[][..], 0),
        };
        if later.chance(pct, 100) {
            let class = all[later.below(all.len() as u64) as usize];
            return Some(Aim { class, alone: true });
        }
        let mut late = Rng::new(seed ^ u64::from_be_bytes(*b"late aim"));
        if seed >= LATE_FROM && late.chance(LATE_PCT, 100) {
            let class = Class::LATE_AIMS[late.below(Class::LATE_AIMS.len() as u64) as usize];
            return Some(Aim { class, alone: true });
        }
        let mut rng = Rng::new(seed ^ 0x6169_6d5f_6174_3039);
        let aimed = rng.chance(AIMED_PCT, 100);
        let class = Class::AIMS[rng.below(Class::AIMS.len() as u64) as usize];
        if !aimed {
            return Aim::draw_store(seed);
        }
        Some(Aim { class, alone: ALONE.contains(&class) || rng.chance(2, 3) })
    }

    /// Draws the first of these aims whose dice fall so.
    fn draw_alone(seed: u64, aims: &[Alone]) -> Option<Aim> {
        let falls = |aim: &&Alone| {
            let (dice, from, pct, _) = **aim;
            seed >= from && Rng::new(seed ^ u64::from_be_bytes(*dice)).chance(pct, 100)
        };
        aims.iter().find(falls).map(|(.., class)| Aim { class: *class, alone: true })
    }

    /// Draws an aim at a store, from another random stream. Such an aim needs its run to itself.
    fn draw_store(seed: u64) -> Option<Aim> {
        let mut rng = Rng::new(seed ^ 0x746f_7265_5f61_3335);
        let aimed = rng.chance(STORE_AIMED_PCT, 100);
        let class = Class::STORE_AIMS[rng.below(Class::STORE_AIMS.len() as u64) as usize];
        aimed.then_some(Aim { class, alone: true })
    }

    /// Sets a load under which a mistake shows.
    pub fn shape(self, options: &mut Options) {
        options.aim = Some(self);
        let (replicas, pgs) = (options.replicas, options.pgs);
        (options.osds, options.replicas, options.pgs) = (3, 3, 1);
        options.workload = Kind::Random;
        options.device_bytes = 1 << 30;
        options.faults = options.faults.max(Duration::from_secs(6));
        let shape = &mut options.shape;
        shape.pattern = Pattern::Random;
        (shape.read_pct, shape.trim_pct) = (30, 5);
        match self.class {
            // Entries fill more than one message, and few of the requests in flight overlap.
            Class::OldTail => {
                (shape.window, shape.sectors_max, shape.depth) = (16 << 20, 512, 24);
                (shape.read_pct, shape.operations) = (10, 500);
            }
            // A copied write has been overwritten since, and is not overwritten again before a read.
            Class::ReplayedCopies => {
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 32, 12);
                shape.operations = 2500;
                options.engine.round_idle = Duration::from_millis(60);
            }
            // Writes cover parts of blocks; the rest of each block is at home.
            Class::RottenBlocks => {
                (shape.window, shape.sectors_max, shape.depth) = (32 << 10, 3, 16);
                (shape.read_pct, shape.operations) = (40, 4000);
                options.engine.round_idle = Duration::from_millis(80);
            }
            // Much of the log is not at home yet.
            Class::VoteAfterLoss => {
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 16, 8);
                shape.operations = 3000;
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_secs(5), 0.5);
            }
            Class::FailedTail => {
                options.volatile_cache = true;
                (shape.window, shape.sectors_max, shape.operations) = (128 << 10, 16, 3000);
            }
            // The paused writer takes for holes what the preempting writer fills.
            Class::PausedWriter => {
                options.workload = Kind::Frontier;
                (shape.len_bytes, shape.window) = (24 * SEGMENT, 32 << 10);
                (shape.sectors_max, shape.depth, shape.read_pct) = (16, 8, 60);
                shape.operations = 3000;
            }
            Class::FullLog | Class::CrashInInstall | Class::SlowStream | Class::FillingCounts => {
                self.shape_store(options)
            }
            late if Class::LATE_AIMS.contains(&late) => self.shape_late(options),
            Class::DisjointBlocks | Class::DisjointEntries => self.shape_damage(options),
            Class::PairsOfReplicas => Aim::shape_pairs(options),
            Class::ManyMetas => Aim::shape_metas(options),
            Class::LimitedVolumes => Aim::shape_limited(options),
            Class::CutPoints => Aim::shape_cuts(options),
            later if Class::LATER_AIMS.contains(&later) => self.shape_later(options),
            _ => {
                (options.replicas, options.pgs) = (replicas.max(3), pgs);
                options.osds = options.replicas;
                shape.operations = shape.operations.max(1000);
            }
        }
    }

    /// Sets the load for [`Class::LATE_AIMS`].
    fn shape_late(self, options: &mut Options) {
        let shape = &mut options.shape;
        match self.class {
            // Each message brings a follower only part of the way, and destages run meanwhile.
            Class::RestartAfterLoss => {
                (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 512, 16);
                (shape.read_pct, shape.operations) = (10, 700);
                options.faults = Duration::from_millis(2500);
                // A log segment repeats the failures of its replicas when it is opened.
                (options.log_bytes, options.segment_bytes) = (128 << 20, 8 << 20);
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_millis(250), 0.5);
            }
            Class::MatchAfterLoss => {
                (options.osds, options.replicas) = (5, 5);
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 16, 8);
                (shape.read_pct, shape.operations) = (20, 3000);
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_secs(5), 0.5);
            }
            // The log wraps.
            Class::HungFollower => {
                (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 128, 16);
                (shape.read_pct, shape.operations) = (10, 2500);
                options.engine.round_idle = Duration::from_millis(300);
            }
            // Some PGs do not know the volume yet.
            Class::LateAsk => {
                options.workload = Kind::Frontier;
                options.pgs = 12;
                (shape.len_bytes, shape.window) = (24 * SEGMENT, 32 << 10);
                (shape.sectors_max, shape.depth, shape.read_pct) = (16, 8, 30);
                shape.operations = 3000;
            }
            // Few requests are in flight, so a guess of the next place is good. The writes fill the log more than once.
            Class::ForgedHeaders => {
                (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 128, 3);
                (shape.read_pct, shape.operations) = (10, 2000);
                shape.forger = Some(Forger::default());
                options.volatile_cache = true;
                options.engine.round_idle = Duration::from_millis(300);
            }
            other => unreachable!("{other:?} came first"),
        }
    }

    /// Sets the load for [`Class::LATER_AIMS`].
    fn shape_later(self, options: &mut Options) {
        let shape = &mut options.shape;
        match self.class {
            // Requests run all the time, in one PG.
            Class::BrokenPath => {
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 16, 8);
                shape.operations = 20_000;
                options.faults = Duration::from_secs(25);
            }
            // All segments exist from the start, and requests run all the time.
            Class::MetaWentBack => {
                options.pgs = 4;
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 16, 8);
                shape.operations = 3000;
                options.faults = Duration::from_secs(20);
            }
            // State blocks take several batches, and the log wraps.
            Class::CutStateBlock => {
                options.pgs = 8;
                (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 512, 16);
                (shape.read_pct, shape.trim_pct, shape.operations) = (5, 0, 1500);
                options.engine.state_batch_max = 64;
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_millis(300), 0.2);
                options.faults = Duration::from_secs(14);
            }
            // Two OSDs hold nothing of a PG, and logs are freed, so that a new replica gets a stream or the log.
            Class::MovedReplicas | Class::FailedReplicas | Class::ForcedPgs | Class::OlderDevices => {
                (options.osds, options.replicas, options.pgs) = (5, 3, 2);
                (shape.window, shape.sectors_max, shape.depth) = (1 << 20, 64, 8);
                shape.operations = 3000;
                options.engine.round_idle = Duration::from_millis(300);
                options.disk = Default::default();
                options.faults = Duration::from_secs(20);
            }
            // Requests spread evenly over the PGs. The queue is so deep that those of one PG do not fill it.
            Class::StuckPg => {
                options.pgs = 4;
                (shape.len_bytes, shape.window, shape.spread) = (4 * SEGMENT, 64 << 10, 12);
                (shape.sectors_max, shape.depth, shape.operations) = (16, 256, 1500);
                options.engine.round_idle = Duration::from_millis(300);
                options.disk = Default::default();
                options.faults = Duration::from_secs(10);
            }
            // Enough OSDs that one can be empty, and enough PGs that their moves take a while.
            Class::EmptiedOsds | Class::ReplacedOsds => {
                (options.osds, options.replicas, options.pgs) = (5, 3, 6);
                (shape.window, shape.sectors_max, shape.depth) = (1 << 20, 64, 8);
                shape.operations = 3000;
                options.engine.round_idle = Duration::from_millis(300);
                options.disk = Default::default();
                options.faults = Duration::from_secs(20);
            }
            // The first OSD has room for half of the windows, and the others for all of them.
            Class::FilledBehind => {
                (options.pgs, options.device_bytes, options.volatile_cache) = (2, 67 << 20, false);
                options.first_log_extra_bytes = 32 << 20;
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_millis(500), 0.5);
                options.disk = Default::default();
                options.faults = Duration::from_secs(14);
                (shape.window, shape.sectors_max, shape.depth) = (7 << 20, 64, 16);
                (shape.read_pct, shape.trim_pct, shape.operations) = (5, 0, 12_000);
                (shape.whole_blocks, shape.may_be_full) = (true, true);
                // A request that waits for space would write nothing else meanwhile.
                options.full_wait = Duration::ZERO;
            }
            other => unreachable!("{other:?} came first"),
        }
    }

    /// Sets the load for [`Class::LimitedVolumes`]: the leaders of all OSDs share the limit, and the load is always above it. The dice
    /// of the clocks choose whether clients hold to the limit, too.
    fn shape_limited(options: &mut Options) {
        options.pgs = 8;
        options.stripe = Stripe::new(64 << 10, 8).expect("a layout");
        let shape = &mut options.shape;
        (shape.len_bytes, shape.window, shape.sectors_max) = (2 * SEGMENT, 1 << 20, 16);
        (shape.depth, shape.read_pct, shape.trim_pct, shape.operations) = (24, 40, 0, 8000);
        options.clients_hold_limits = options.drift;
        (options.drift, options.disk) = (false, Default::default());
        options.faults = Duration::from_secs(20);
    }

    /// Sets the load for [`Class::CutPoints`]: two volumes over several PGs, with requests in flight in each. The dice of the clocks choose
    /// whether money moves between the volumes.
    fn shape_cuts(options: &mut Options) {
        options.pgs = 6;
        options.workload = if options.drift { Kind::Bank } else { Kind::Random };
        let shape = &mut options.shape;
        (shape.len_bytes, shape.window, shape.sectors_max) = (4 * SEGMENT, 64 << 10, 16);
        (shape.depth, shape.spread, shape.operations) = (12, 6, 4000);
        options.disk = Default::default();
        options.faults = Duration::from_secs(20);
    }

    /// Sets the load for [`Class::PairsOfReplicas`]: every PG has two members, so each failure takes a majority.
    fn shape_pairs(options: &mut Options) {
        (options.osds, options.replicas, options.pgs) = (4, 2, 3);
        let shape = &mut options.shape;
        (shape.window, shape.sectors_max, shape.depth) = (1 << 20, 64, 8);
        shape.operations = 3000;
        options.engine.round_idle = Duration::from_millis(300);
        options.disk = Default::default();
        options.faults = Duration::from_secs(30);
    }

    /// Sets the load for [`Class::ManyMetas`]: replicas have other OSDs to move to, and clients need metadata all the time.
    fn shape_metas(options: &mut Options) {
        (options.osds, options.replicas, options.pgs) = (5, 3, 2);
        options.metas = Some(3);
        options.workload = Kind::Frontier;
        let shape = &mut options.shape;
        (shape.len_bytes, shape.window) = (24 * SEGMENT, 32 << 10);
        (shape.sectors_max, shape.depth, shape.operations) = (16, 8, 2000);
        options.engine.round_idle = Duration::from_millis(300);
        options.disk = Default::default();
        options.faults = Duration::from_secs(25);
        options.calm = options.calm.max(ELECTED_CALM);
    }

    /// Sets the load for damage of every member of a PG.
    fn shape_damage(self, options: &mut Options) {
        (options.pgs, options.disk) = (2, Default::default());
        let shape = &mut options.shape;
        match self.class {
            // Much is at home, and blocks are written in part.
            Class::DisjointBlocks => {
                (shape.window, shape.sectors_max, shape.depth) = (256 << 10, 16, 8);
                (shape.read_pct, shape.operations) = (40, 3000);
                options.engine.round_idle = Duration::from_millis(150);
                options.faults = Duration::from_secs(10);
            }
            // Much of the log is not at home yet, and no log has dropped it.
            Class::DisjointEntries => {
                (shape.window, shape.sectors_max, shape.depth) = (128 << 10, 16, 8);
                (shape.read_pct, shape.operations) = (30, 1500);
                (options.engine.round_idle, options.engine.round_pressure) = (Duration::from_secs(60), 0.95);
                options.faults = Duration::from_secs(6);
            }
            other => unreachable!("{other:?} damages no member"),
        }
    }

    /// Sets the load for aims at stores: large writes, so that logs soon drop entries.
    fn shape_store(self, options: &mut Options) {
        let shape = &mut options.shape;
        (shape.window, shape.sectors_max, shape.depth) = (2 << 20, 512, 12);
        (shape.read_pct, shape.operations) = (5, 800);
        options.faults = Duration::from_secs(14);
        match self.class {
            // Every OSD leads some PGs, and the log is filled more than once.
            Class::FullLog => {
                (options.pgs, shape.depth, shape.operations) = (4, 24, 600);
                options.faults = Duration::from_secs(10);
            }
            // Several PGs are behind at once, and freed space is reused at once.
            Class::CrashInInstall => {
                (options.pgs, options.engine.reuse_at_once, options.volatile_cache) = (4, true, true);
                options.disk.latency = (Duration::from_micros(50), Duration::from_millis(3));
                options.disk.flush_latency = (Duration::from_millis(1), Duration::from_millis(20));
            }
            // Streams take a while, and requests come meanwhile.
            Class::FillingCounts => {
                (options.pgs, shape.operations) = (2, 4000);
                (options.engine.round_idle, options.faults) = (Duration::from_millis(300), Duration::from_secs(15));
                options.disk.latency = (Duration::from_micros(50), Duration::from_millis(2));
            }
            // Destages begin at once, and often.
            Class::SlowStream => {
                (options.engine.round_pressure, options.volatile_cache) = (0.0, false);
                options.engine.round_idle = Duration::from_millis(50);
                options.disk = Default::default();
            }
            other => unreachable!("{other:?} is aimed at no store"),
        }
    }
}

/// Log position and vote of one replica.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub replica: ReplicaId,
    pub term: Term,
    pub vote: Option<ReplicaId>,
    pub last: Index,
    pub last_term: Term,
}

impl Standing {
    /// Whether the replica has voted for itself in its term.
    pub fn stands(&self) -> bool {
        self.vote == Some(self.replica)
    }
}

impl Cluster {
    /// Returns the position of the replica on the i-th OSD; `None` when none runs there.
    pub fn standing(&self, i: usize, pg: PgId) -> Option<Standing> {
        let (_, osd) = self.running().find(|(id, _)| id.0 as usize == i + 1)?;
        let group = osd.groups_for_tools().find(|g| g.identity().pg == pg)?;
        let last = group.last_index();
        Some(Standing {
            replica: group.identity().replica,
            term: group.term(),
            vote: group.voted_for(),
            last,
            last_term: group.term_at(last).unwrap_or_default(),
        })
    }

    /// Whether the replica of the PG on the i-th OSD has failed; `None` while it neither runs nor has failed.
    pub fn has_failed(&self, i: usize, pg: PgId) -> Option<bool> {
        let (_, osd) = self.running().find(|(id, _)| id.0 as usize == i + 1)?;
        let runs = osd.groups_for_tools().any(|group| group.identity().pg == pg);
        let failed = osd.quarantined().iter().any(|(of, _)| *of == pg);
        (runs || failed).then_some(failed)
    }

    /// Whether the i-th OSD sends a stream.
    pub fn streams(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && osd.streams_running() > 0)
    }

    /// Whether the i-th OSD has mounted its store.
    pub fn is_mounted(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && *osd.phase() == osd::Phase::Running)
    }

    /// Whether the process of the i-th OSD is gone, or its store has stopped.
    pub fn is_poisoned(&self, i: usize) -> bool {
        self.running().find(|(id, _)| id.0 as usize == i + 1).is_none_or(|(_, osd)| osd.stopped().is_some())
    }

    /// Flips a bit in the header of one batch out of `one_in` in the i-th OSD's log, as a lying disk would. The process
    /// does not run. Returns the number of damaged headers.
    pub fn rot_headers_of_liar(&mut self, i: usize, one_in: u64, rng: &mut Rng) -> u64 {
        self.budget.note(i, Class::BitRotLog);
        crate::rot::headers(&self.image(i), one_in, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn regression_seeds_are_not_aimed_and_other_seeds_draw_every_aim() {
        for seed in [1, 2, 3, 16, 79, 4880, 7059, 4370, 400_028, 22_289, 34_075, 39_346, 500_100] {
            assert_eq!(Aim::draw(seed), None, "seed {seed} would mean something else");
            assert_eq!(Options::late_dice(seed), None, "seed {seed} would mean something else");
            assert!(Options::newest_dice(seed).is_none(), "seed {seed} would mean something else");
        }
        let drawn: BTreeSet<Class> = (0..1000).filter_map(Aim::draw).map(|aim| aim.class).collect();
        assert_eq!(drawn, Class::AIMS.into_iter().chain(Class::STORE_AIMS).collect());
        let late: BTreeSet<Class> = (LATE_FROM..LATE_FROM + 1000).filter_map(Aim::draw).map(|aim| aim.class).collect();
        let all = Class::AIMS.into_iter().chain(Class::STORE_AIMS).chain(Class::LATE_AIMS);
        assert_eq!(late, all.collect());
        let newest: BTreeSet<Class> =
            (CUTS_FROM..CUTS_FROM + 1000).filter_map(Aim::draw).map(|aim| aim.class).collect();
        assert!(Class::LATER_AIMS.iter().all(|class| newest.contains(class)), "{newest:?}");
    }
}
