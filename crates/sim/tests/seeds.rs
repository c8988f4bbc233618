//! A few whole runs, and a check that a seed decides everything.

mod cuts;
mod rot;

use sim::faults::Class;
use sim::overrides::Overrides;
use sim::run::{run, run_with};
use sim::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_seed_decides_everything() {
    for seed in [1, 16, 79] {
        let (first, again) = (run(seed), run(seed));
        assert_eq!(first.failure, None, "seed {seed}");
        assert_eq!((first.trace_hash, first.turns), (again.trace_hash, again.turns), "seed {seed}");
        assert!(first.requests > 0 && first.compared > 0, "seed {seed} did nothing");
    }
    assert_ne!(run(2).trace_hash, run(3).trace_hash);
}

/// Another process has other addresses, other hash seeds, other contents of unwritten memory, and here also another
/// environment.
#[test]
fn another_process_does_the_same() {
    for seed in [1, 79] {
        let args = ["--once".to_owned(), "--seed".to_owned(), seed.to_string()];
        let mut other = std::process::Command::new(env!("CARGO_BIN_EXE_sim"));
        other.args(args).env_clear().env("MALLOC_PERTURB_", "173").env("PADDING", "x".repeat(40_000));
        let out = other.current_dir("/").output().expect("the simulator starts");
        let text = String::from_utf8_lossy(&out.stdout);
        let hash = format!("trace hash {:016x}", run(seed).trace_hash);
        assert!(text.contains(&hash), "seed {seed}: {hash} here, and there: {text}");
    }
}

/// The effect of damage that stays until it is written.
const UNREADABLE: &str = "reads of unreadable sectors";

/// Returns the classes that the first seeds may draw.
fn early() -> impl Iterator<Item = Class> {
    let late = |class: &Class| Class::LATE_AIMS.contains(class) || Class::LATER_AIMS.contains(class);
    Class::every().filter(move |class| !late(class) && !Class::LATE.contains(class) && !Class::DAMAGE.contains(class))
}

#[test]
fn every_late_class_strikes_and_nothing_is_lost() {
    let late = |seed: &u64| sim::options::Options::late_dice(*seed).is_some();
    let mut unseen: BTreeSet<Class> = Class::LATE.into_iter().collect();
    for seed in (sim::aim::LATE_FROM..).filter(late).take(12) {
        let report = run(seed);
        assert_eq!(report.failure, None, "seed {seed}");
        report.schedule.iter().for_each(|s| _ = unseen.remove(&s.class));
        if unseen.is_empty() {
            return;
        }
    }
    panic!("{unseen:?} never struck");
}

#[test]
fn every_late_aim_strikes_and_nothing_is_lost() {
    for class in Class::LATE_AIMS.into_iter().chain(Class::LATER_AIMS) {
        let from = sim::aim::first_seed(class);
        let aimed = |seed: &u64| sim::aim::Aim::draw(*seed).is_some_and(|aim| aim.class == class);
        let mut struck = 0;
        for seed in (from..).filter(aimed).take(2) {
            let report = run(seed);
            assert_eq!(report.failure, None, "seed {seed}, aimed at {class:?}");
            struck += report.schedule.iter().filter(|s| s.class == class).count();
        }
        assert!(struck > 0, "{class:?} never struck");
    }
}

#[test]
fn metadata_servers_elect_leaders_again_and_again_and_lose_nothing() {
    let (mut elections, mut commits, mut seeds) = (0, 0, 0);
    for seed in sim::aim::aimed_seeds(Class::ManyMetas, None).take(8) {
        let report = run(seed);
        assert_eq!(report.failure, None, "seed {seed}");
        (elections, commits, seeds) = (elections + report.elections.0, commits + report.elections.1, seeds + 1);
    }
    assert!(elections > 3 * seeds && commits > 20 * seeds, "{elections} elections, {commits} commits");
}

#[test]
fn runs_with_an_election_draw_one_to_three_metadata_servers() {
    let drawn = |seed: u64| {
        let mut options = sim::options::Options::draw(&mut types::rng::Rng::new(seed));
        options.draw_metas(seed);
        options.metas
    };
    let metas: BTreeSet<Option<usize>> = (sim::aim::METAS_FROM..).take(100).map(drawn).collect();
    assert_eq!(metas, [None, Some(1), Some(2), Some(3)].into());
    assert!(
        (0..sim::aim::METAS_FROM).step_by(1009).all(|seed| drawn(seed).is_none()),
        "earlier seeds keep their meaning"
    );
}

#[test]
fn every_class_of_faults_strikes_and_has_its_effect() {
    let few = Overrides { operations: Some(600), never_away: true, ..Overrides::default() };
    let mut classes: BTreeMap<Class, u64> = early().map(|class| (class, 0)).collect();
    let mut effects: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 1..=150 {
        let report = run_with(seed, &few);
        assert_eq!(report.failure, None, "seed {seed}");
        report.schedule.iter().for_each(|s| *classes.entry(s.class).or_default() += 1);
        report.struck.named().into_iter().for_each(|(what, n)| *effects.entry(what).or_default() += n);
        // Reordering wants several unflushed writes at once: long runs meet it, and `env` shows it by itself.
        effects.remove("writes reordered");
        // Later seeds alone draw it: the next test.
        effects.remove(UNREADABLE);
        if classes.values().chain(effects.values()).all(|n| *n > 0) {
            return;
        }
    }
    panic!("some class never struck: {classes:?}, or had no effect: {effects:?}");
}

#[test]
fn damage_that_stays_strikes_and_has_its_effect() {
    let mut unseen: BTreeSet<Class> = Class::DAMAGE.into_iter().collect();
    let mut reads = 0;
    for seed in (sim::aim::DAMAGE_FROM..).take(60) {
        let report = run(seed);
        assert_eq!(report.failure, None, "seed {seed}");
        report.schedule.iter().for_each(|s| _ = unseen.remove(&s.class));
        reads += report.struck.named().into_iter().filter(|(what, _)| *what == UNREADABLE).map(|(_, n)| n).sum::<u64>();
        if unseen.is_empty() && reads > 0 {
            return;
        }
    }
    panic!("{unseen:?} never struck, or had no effect: {reads} reads");
}

#[test]
fn hostile_tunables_lose_nothing_and_are_named() {
    let hostile = |seed: &u64| !sim::tuned::draw(*seed, &Overrides::default()).1.is_empty();
    for seed in (sim::tuned::TUNED_FROM..).filter(hostile).take(4) {
        let report = run(seed);
        assert_eq!(report.failure, None, "seed {seed}: {:?}", report.tunables);
        assert!(!report.tunables.is_empty());
        let usual = run_with(seed, &Overrides { default_tunables: true, until: Some(0.1), ..Overrides::default() });
        assert_eq!(usual.tunables, Vec::<String>::new());
    }
}

#[test]
fn many_volumes_come_and_go_with_their_own_work_and_leave_nothing_behind() {
    let many = Overrides { workload: Some(Kind::Many), operations: Some(200), ..Overrides::default() };
    let mut tenancies = 0;
    for seed in 1..=6 {
        let report = run_with(seed, &many);
        assert_eq!(report.failure, None, "seed {seed}");
        tenancies += report.tenancies;
    }
    assert!(tenancies > 20, "{tenancies} volumes");
}

#[test]
fn logs_do_not_change_a_run() {
    let quiet = run(5).trace_hash;
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::sink).finish();
    let loud = tracing::subscriber::with_default(subscriber, || run(5).trace_hash);
    assert_eq!(quiet, loud);
}

#[test]
fn payloads_that_rot_in_one_log_come_back_from_the_others() {
    let (mut back, mut replicas) = (0, 0);
    for seed in 0..4 {
        let rotten = sim::rot::run(seed, 1).unwrap_or_else(|what| panic!("{what}"));
        assert!(rotten.compared > 0);
        (back, replicas) = (back + rotten.back, replicas + rotten.replicas);
    }
    assert!(back > 20 && replicas >= 3, "{back} entries of {replicas} replicas came back");
}

#[test]
fn payloads_that_rot_at_different_places_of_two_logs_of_three_come_back() {
    let (mut back, mut replicas) = (0, 0);
    for seed in 10..14 {
        let rotten = sim::rot::run(seed, 2).unwrap_or_else(|what| panic!("{what}"));
        (back, replicas) = (back + rotten.back, replicas + rotten.replicas);
    }
    assert!(back > 40 && replicas >= 6, "{back} entries of {replicas} replicas came back");
}

#[test]
fn log_that_lost_batches_costs_its_replicas_and_no_acknowledged_write() {
    let (mut hit, mut replaced) = (0, 0);
    for seed in 20..32 {
        let rotten = sim::rot::run_headers(seed).unwrap_or_else(|what| panic!("{what}"));
        assert!(rotten.compared > 0);
        (hit, replaced) = (hit + rotten.hit, replaced + rotten.replaced);
    }
    assert!(hit > 20 && replaced >= 6, "{hit} batches lost, {replaced} replicas replaced");
}

#[test]
fn home_that_lost_pages_costs_its_replica_and_no_acknowledged_write() {
    let (mut hit, mut replaced) = (0, 0);
    for seed in 40..56 {
        let rotten = sim::rot::run_home(seed).unwrap_or_else(|what| panic!("{what}"));
        assert!(rotten.compared > 0);
        (hit, replaced) = (hit + rotten.hit, replaced + rotten.replaced);
    }
    assert!(hit > 10 && replaced >= 4, "{hit} pages of tables lost, {replaced} replicas replaced");
}
