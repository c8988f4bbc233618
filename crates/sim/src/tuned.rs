//! Tunables of the product that a seed draws: a hostile value stands beside each default.
//!
//! The dice are a random stream of their own, so everything else of a seed stays as it was. Seeds below [`TUNED_FROM`]
//! and aimed runs keep all defaults: a recorded seed means what it meant, and an aim needs the times that it counts on.
//! From [`REPAIR_FROM`] on, the tunables of recovery have dice of their own, and aimed runs draw them too: most damage is
//! done there, and no aim counts on them.
//!
//! Invariant: every drawn value passes the checks of the product, and lets a healthy cluster serve within the times of
//! [`crate::run`].

use crate::aim::{Aim, FLATTEN_FROM};
use crate::faults::Class;
use crate::overrides::Overrides;
use client::ClientTuning;
use control::ControlConfig;
use group::Timing;
use osd::OsdTuning;
use std::fmt::Debug;
use std::time::Duration;
use types::config::{Check, ConfigFaults};
use types::limits::PART_MAX;
use types::rng::Rng;

/// From this seed on, tunables are drawn. Earlier seeds keep their meaning.
pub const TUNED_FROM: u64 = 700_000;
/// Percentage of runs with drawn tunables, among the runs that may draw them.
const TUNED_PCT: u64 = 60;
/// Percentage of fields that get another value than their default in such a run.
const FIELD_PCT: u64 = 12;
/// From this seed on, tunables of recovery are drawn.
pub const REPAIR_FROM: u64 = 2_000_000;
/// The same percentages for the tunables of recovery.
const REPAIR_PCT: u64 = 50;
const REPAIR_FIELD_PCT: u64 = 30;
/// From this seed on, contents of streams come before the log in some runs; below, the percentage of them, and of runs that are aimed
/// at an installation.
pub const CONTENTS_FIRST_FROM: u64 = 2_180_000;
const CONTENTS_FIRST_PCT: u64 = 12;
const CONTENTS_FIRST_AIMED_PCT: u64 = 50;

/// Tunables of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuned {
    pub timing: Timing,
    pub osd: OsdTuning,
    pub client: ClientTuning,
    pub control: ControlConfig,
}

impl Tuned {
    /// Checks every part, and what one process relies on in another.
    ///
    /// # Errors
    /// Every fault.
    fn validate(&self) -> Result<(), ConfigFaults> {
        let mut check = Check::new("the simulated cluster");
        check.part("timing", self.timing.validate());
        check.part("osd", self.osd.validate(&self.timing));
        check.part("client", self.client.validate());
        check.part("control", self.control.validate());
        // Clocks run at rates within a third of true time.
        check.ensure(self.control.down_after > self.osd.heartbeat * 2, "a heartbeat may come too late for meta");
        check
            .ensure(self.osd.rival_wait > self.control.down_after * 4 / 3, "a process waits too briefly for its rival");
        check.end()
    }
}

/// A draw under way.
struct Draw {
    rng: Rng,
    /// Percentage of fields that are drawn.
    field_pct: u64,
    tuned: Tuned,
    /// Fields that were drawn, with their values.
    lines: Vec<String>,
}

impl Draw {
    /// Gives some fields one of these values. A value that contradicts the others is not taken.
    fn field<T: Copy + Debug + PartialEq>(&mut self, name: &str, at: impl Fn(&mut Tuned) -> &mut T, values: &[T]) {
        let value = values[self.rng.below(values.len() as u64) as usize];
        if !self.rng.chance(self.field_pct, 100) {
            return;
        }
        let mut changed = self.tuned;
        *at(&mut changed) = value;
        if changed.validate().is_ok() {
            self.tuned = changed;
            self.lines.retain(|line| !line.starts_with(&format!("{name} = ")));
            self.lines.push(format!("{name} = {value:?}"));
        }
    }
}

/// Draws fields: `fields!(draw, path.to.field: [value, value], …)`.
macro_rules! fields {
    ($draw:ident, $($($part:ident).+: $values:expr),+ $(,)?) => {
        $($draw.field(stringify!($($part).+), |tuned| &mut tuned.$($part).+, &$values);)+
    };
}

/// Returns the tunables of this seed's run, with a line for each that is not a default.
pub fn draw(seed: u64, overrides: &Overrides) -> (Tuned, Vec<String>) {
    let (mut tuned, mut lines) = draw_usual(seed, overrides);
    if !overrides.default_tunables && come_first(seed) {
        tuned.osd.streams.fill_decision_max = 0;
        lines.push("osd.streams.fill_decision_max = 0".to_owned());
    }
    let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"flattens"));
    if !overrides.default_tunables && seed >= FLATTEN_FROM && rng.chance(2, 3) {
        // Copies then go on while the machine writes.
        tuned.osd.flatten.bytes_per_s = 64 << 10;
        lines.push("osd.flatten.bytes_per_s = 65536".to_owned());
    }
    let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"recovery"));
    if overrides.default_tunables || seed < REPAIR_FROM || !rng.chance(REPAIR_PCT, 100) {
        return (tuned, lines);
    }
    let mut draw = Draw { rng, field_pct: REPAIR_FIELD_PCT, tuned, lines };
    draw_repair(&mut draw);
    (draw.tuned, draw.lines)
}

/// Whether no log begins in this seed's run before its contents are whole.
fn come_first(seed: u64) -> bool {
    let percentage = match Aim::draw(seed).map(|aim| aim.class) {
        // Its checks are of logs that have begun.
        Some(Class::FillingCounts) => 0,
        Some(Class::CrashInInstall | Class::FilledBehind) => CONTENTS_FIRST_AIMED_PCT,
        _ => CONTENTS_FIRST_PCT,
    };
    let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"contents"));
    seed >= CONTENTS_FIRST_FROM && rng.chance(percentage, 100)
}

/// Draws all tunables but those of recovery.
fn draw_usual(seed: u64, overrides: &Overrides) -> (Tuned, Vec<String>) {
    let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"tunables"));
    let mut tuned = Tuned::default();
    let moves = |aim: Aim| matches!(aim.class, Class::EmptiedOsds | Class::ReplacedOsds);
    let is_emptied = Aim::draw(seed).is_some_and(moves);
    if is_emptied && !overrides.default_tunables {
        // An OSD goes out within the run.
        tuned.control.osd_out_after = ms([1, 500, 3000][rng.below(3) as usize]);
        tuned.control.moves_every = ms(200);
        tuned.control.avoid_for = ms(1000);
        tuned.control.move_patience = ms([1, 1000, 60_000][rng.below(3) as usize]);
        let ControlConfig { osd_out_after, moves_every, move_patience, .. } = tuned.control;
        let line = format!("control: {osd_out_after:?} {moves_every:?} {move_patience:?} until out, a plan, patience");
        return (tuned, vec![line]);
    }
    let keeps = overrides.default_tunables || seed < TUNED_FROM || Aim::draw(seed).is_some();
    if keeps || !rng.chance(TUNED_PCT, 100) {
        return (tuned, Vec::new());
    }
    let mut draw = Draw { rng, field_pct: FIELD_PCT, tuned, lines: Vec::new() };
    draw_timing(&mut draw);
    draw_osd(&mut draw);
    draw_links(&mut draw);
    draw_volume(&mut draw);
    draw_control(&mut draw);
    (draw.tuned, draw.lines)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn draw_timing(draw: &mut Draw) {
    let usual = Timing::default();
    let quick = Timing {
        promise: ms(60),
        renewal: ms(10),
        election_min: ms(300),
        election_max: ms(500),
        ack_max: ms(400),
        ..usual
    };
    let slow = Timing {
        promise: ms(400),
        renewal: ms(60),
        election_min: ms(1500),
        election_max: ms(2500),
        ack_max: ms(2000),
        ..usual
    };
    fields!(draw,
        timing: [quick, slow],
        timing.full_every: [1, 20],
        timing.empty_ack_every: [1, 5],
        timing.idle_acks_max: [1, 16],
        timing.fast_rounds_max: [0, 3],
        timing.stagger: [ms(0), ms(100)],
        timing.ack_max: [ms(350), ms(3000)],
        timing.active: [ms(0), ms(200)],
        timing.read_retry: [ms(5), ms(200)],
    );
}

fn draw_osd(draw: &mut Draw) {
    fields!(draw,
        osd.heartbeat: [ms(200), ms(2500)],
        osd.heartbeat_recovering: [ms(5), ms(900)],
        osd.settle_rounds_max: [1, 2],
        osd.full_quiet: [ms(0), ms(100)],
        osd.group.queue_ops_max: [2, 8],
        osd.group.queue_bytes_max: [PART_MAX, 2 << 20],
        osd.group.queue_attaches_max: [1],
        osd.group.propose_entries_max: [1, 3],
        osd.group.uncommitted_entries_max: [4, 64],
        osd.group.resident_entries_max: [64, 1000],
        osd.group.reads_max: [2, 8],
        osd.group.read_queries_max: [1, 2],
        osd.group.report_pause: [ms(0), ms(500)],
        osd.group.move_hold: [ms(0), ms(5000)],
        osd.group.move_lack_max: [0, 1 << 20],
        osd.space.grant_aus_max: [8, 64],
        osd.space.silent: [ms(200), ms(2000)],
        osd.space.idle: [ms(500), ms(5000)],
        osd.streams.senders_max: [1, 8],
        osd.streams.receivers_max: [1],
        osd.streams.needed_max: [1, 4],
        osd.streams.asked_max: [ms(70), ms(1000)],
        osd.streams.bytes_per_s: [8 << 20, 1 << 30],
        osd.streams.answer_max: [ms(2000)],
        osd.streams.install_max: [ms(10_000)],
        osd.streams.rest_min: [ms(10), ms(1000)],
        osd.streams.rest_max: [ms(1000)],
        osd.streams.catch_up_max: [ms(50), ms(3000)],
    );
}

fn draw_repair(draw: &mut Draw) {
    fields!(draw,
        osd.repair.bad_blocks_max: [128, 512],
        osd.repair.block_queries_max: [1, 4],
        osd.repair.block_pause_min: [ms(1), ms(100)],
        osd.repair.block_pause_max: [ms(100), ms(1400)],
        osd.repair.full_max: [ms(100), ms(10_000)],
        osd.repair.full_turn: [ms(1600), ms(5000)],
        osd.repair.payload_queries_max: [1, 64],
        osd.repair.payload_review: [ms(50), ms(5000)],
        osd.repair.payload_again_min: [ms(50), ms(4000)],
        osd.repair.payload_again_each: [ms(0), ms(100)],
        osd.repair.freed_wait: [ms(100), ms(60_000)],
        osd.streams.needed_max: [1, 2, 4, 16],
    );
}

fn draw_links(draw: &mut Draw) {
    fields!(draw,
        osd.bus.credit_ops: [1, 4],
        osd.bus.credit_bytes: [PART_MAX, 2 << 20],
        osd.bus.hello_timeout: [ms(300)],
        osd.bus.dial_timeout: [ms(200), ms(3000)],
        osd.bus.dials_outstanding_max: [1],
        osd.bus.osd_silence: [ms(500), ms(5000)],
        osd.bus.backoff_min: [ms(1), ms(200)],
        osd.bus.backoff_max: [ms(250), ms(3000)],
        osd.bus.linger: [ms(0)],
        client.bus.hello_timeout: [ms(300)],
        client.bus.dial_timeout: [ms(200), ms(3000)],
        client.bus.dials_outstanding_max: [1],
        client.bus.ping_after: [ms(20), ms(700)],
        client.bus.client_silence: [ms(300), ms(3000)],
        client.bus.client_silence_max: [ms(3000)],
        client.bus.client_silence_calm: [ms(0), ms(1000)],
        client.bus.backoff_min: [ms(1), ms(200)],
        client.bus.backoff_max: [ms(250), ms(3000)],
    );
}

fn draw_volume(draw: &mut Draw) {
    fields!(draw,
        client.keepalive_patience: [ms(2000)],
        client.where_pause: [ms(200), ms(5000)],
        client.volume.requests_max: [1, 4],
        client.volume.bytes_max: [device::REQUEST_LEN_MAX],
        client.volume.pg_parts_max: [257],
        client.volume.silent: [ms(100), ms(450)],
        client.volume.probe: [ms(20), ms(500)],
        client.volume.report_pause: [ms(10), ms(1000)],
        client.volume.link_wait: [ms(0), ms(300)],
        client.volume.backoff_first: [ms(1), ms(40)],
        client.volume.backoff_last: [ms(40), ms(500)],
        client.volume.backoff_short_count: [0, 100],
        client.volume.hint_pause: [ms(0), ms(200)],
        client.volume.copy_stale: [ms(100), ms(3000)],
        client.volume.resend: [ms(100), ms(4000)],
        client.volume.scan: [ms(50), ms(3000)],
        client.volume.fence_check_patience: [ms(410), ms(2000)],
        client.volume.full_forget: [ms(500)],
        client.volume.full_wakes: [1, 100],
        client.volume.refresh: [ms(100), ms(3000)],
        client.volume.ask_timeout: [ms(500)],
        client.volume.ask_backoff_first: [ms(5), ms(500)],
        client.volume.ask_backoff_last: [ms(100), ms(4000)],
        client.volume.attach_pause_first: [ms(1), ms(200)],
        client.volume.attach_pause_last: [ms(200), ms(500)],
    );
}

fn draw_control(draw: &mut Draw) {
    fields!(draw,
        control.down_after: [ms(3000), ms(8000)],
        control.grace: [ms(3000), ms(15_000)],
        control.ensure_every: [ms(200), ms(4000)],
        control.ensure_burst: [1],
        control.position_every: [ms(1000)],
        control.pools_every: [ms(100), ms(3000)],
        control.attach_resend: [ms(200), ms(3000)],
        control.attach_retry: [ms(20), ms(800)],
        control.leaders_every: [ms(200), ms(10_000)],
        control.leader_steady: [ms(0), ms(1000)],
        control.transfer_comes: [ms(500)],
        control.transfer_again: [ms(4000)],
        control.transfers_min: [1, 64],
        control.reach_settle: [ms(500)],
        control.majority_patience: [ms(1000), ms(10_000)],
        control.watch_every: [ms(100), ms(5000)],
        control.waits_max: [8],
        control.osd_out_after: [ms(1), ms(2000)],
        control.osd_backfills: [1, 16],
        control.orders_every: [ms(50), ms(4000)],
        control.moves_every: [ms(50), ms(4000)],
        control.move_patience: [ms(1), ms(2000)],
        control.avoid_for: [ms(1), ms(5000)],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_seeds_keep_the_defaults_and_later_ones_draw_valid_values() {
        let plain = Overrides::default();
        assert!((0..500).all(|seed| draw(seed, &plain) == (Tuned::default(), Vec::new())));
        let mut seen = std::collections::BTreeSet::new();
        for seed in TUNED_FROM..TUNED_FROM + 400 {
            let (tuned, lines) = draw(seed, &plain);
            assert_eq!(tuned.validate(), Ok(()), "seed {seed}");
            assert_eq!(tuned == Tuned::default(), lines.is_empty(), "seed {seed}: {lines:?}");
            seen.extend(lines);
        }
        // Both hostile values of a field come up, and those that contradict a default come up beside others.
        for want in ["timing.full_every = 1", "osd.bus.credit_ops = 1", "client.volume.silent = 450ms"] {
            assert!(seen.contains(want), "{want} was never drawn");
        }
    }

    #[test]
    fn tunables_of_recovery_are_drawn_from_their_seed_on_in_aimed_runs_too() {
        let (plain, default) = (Overrides::default(), Tuned::default());
        let differs = |seed: &u64| draw(*seed, &plain).0.osd.repair != default.osd.repair;
        assert_eq!((REPAIR_FROM - 400..REPAIR_FROM).find(differs), None, "these seeds mean what they meant");
        let mut seen = std::collections::BTreeSet::new();
        let mut is_aimed = false;
        for seed in REPAIR_FROM..REPAIR_FROM + 400 {
            let (tuned, lines) = draw(seed, &plain);
            assert_eq!(tuned.validate(), Ok(()), "seed {seed}");
            let mut names: Vec<&str> = lines.iter().filter_map(|line| line.split(" = ").next()).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|two| two[0] != two[1]), "seed {seed} names a field twice: {lines:?}");
            is_aimed |= Aim::draw(seed).is_some() && differs(&seed);
            seen.extend(lines);
        }
        let defaults = Overrides { default_tunables: true, ..Overrides::default() };
        assert!(is_aimed && draw(REPAIR_FROM, &defaults) == (default, Vec::new()));
        for want in ["osd.repair.bad_blocks_max = 128", "osd.repair.full_turn = 1.6s", "osd.streams.needed_max = 16"] {
            assert!(seen.contains(want), "{want} was never drawn");
        }
    }
}
