//! Random histories with kills and power cuts, by seed.

use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::{SECTORS, chunks};
use std::time::Duration;
use types::{ReplicaId, SectorRange};

pub(super) fn config(seed: u64) -> EngineConfig {
    EngineConfig {
        round_pressure: [0.0, 0.1, 0.5][seed as usize % 3],
        round_idle: Duration::from_millis(50),
        // A state block takes one batch, or three.
        state_batch_max: [layout::log::STATE_BATCH_MAX, 200][(seed / 2) as usize % 2],
        redirect_min: (seed % 4 >= 2).then_some(types::AU),
        ..EngineConfig::default()
    }
}

/// Takes one step with any replica whose group is not a stream's to drive.
pub(super) fn step(rig: &mut Rig) {
    let ids: Vec<ReplicaId> = rig.models.values().filter(|model| !model.fills).map(|model| model.replica).collect();
    let replica = ids[rig.rng().below(ids.len() as u64) as usize];
    step_of(rig, replica);
}

pub(super) fn step_of(rig: &mut Rig, replica: ReplicaId) {
    match rig.rng().below(10) {
        0..=3 => {
            if rig.engine.pressure().max() >= 1.0 {
                return;
            }
            let g = &rig.models[&replica];
            let (commit, last) = (g.hard_state.commit.0, g.last());
            let from = if rig.rng().chance(1, 10) { rig.rng().between(commit + 1, last + 1) } else { last + 1 };
            let effects = (0..rig.rng().between(1, 4)).map(|_| rig.effect()).collect();
            rig.append(replica, from, effects);
        }
        4..=5 => {
            let to = rig.models[&replica].durable;
            rig.commit(replica, to);
        }
        6 => {
            let start = rig.rng().below(u64::from(SECTORS)) as u32;
            let count = rig.rng().between(1, u64::from(SECTORS - start)) as u32;
            let chunk = chunks()[rig.rng().below(4) as usize];
            rig.read(replica, chunk, SectorRange::new(start, count));
        }
        _ => {
            let completions = rig.rng().below(6);
            rig.turn(completions);
        }
    }
}

/// Counts of histories.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Rounds that ended.
    pub rounds: u64,
    /// Blocks that rounds have completed.
    pub completed: u64,
    pub steps: u64,
    /// Crashes, each with a mount and a comparison of all bytes behind it.
    pub crashes: u64,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.rounds += other.rounds;
        self.completed += other.completed;
        self.steps += other.steps;
        self.crashes += other.crashes;
    }
}

/// Runs one history.
pub(super) fn life(seed: u64, volatile: bool, lives: u64, steps: u64) -> Counts {
    run(Rig::new(seed, volatile, config(seed)), lives, steps)
}

/// Kills the process or cuts the power, restarts, and compares all bytes.
pub(super) fn end_life(rig: &mut Rig) {
    if rig.rng().chance(1, 4) {
        rig.disk.kill();
    } else {
        rig.disk.power_cut();
    }
    rig.restart_and_check();
}

/// Does the same with this rig.
pub(super) fn run(mut rig: Rig, lives: u64, steps_max: u64) -> Counts {
    let (mut steps, mut crashes) = (0, lives);
    for id in 1..=3 {
        rig.create(id);
    }
    for _ in 0..lives {
        for _ in 0..rig.rng().between(1, steps_max) {
            step(&mut rig);
            steps += 1;
        }
        end_life(&mut rig);
        // A second power cut follows at once: all bytes that were read are durable by now.
        if rig.rng().chance(1, 3) {
            rig.disk.power_cut();
            rig.restart_and_check();
            crashes += 1;
        }
    }
    Counts { rounds: rig.seen.checkpoints, completed: rig.seen.completed_blocks, steps, crashes }
}

fn check(seeds: std::ops::Range<u64>, volatile: bool) {
    let mut all = Counts::default();
    seeds.for_each(|seed| all.add(life(seed, volatile, 8, 500)));
    let Counts { rounds, completed, .. } = all;
    assert!(rounds > 15 && completed > 100, "{rounds} rounds, {completed} blocks: the test lost its teeth");
}

#[test]
fn acknowledged_and_applied_data_survive_power_cuts_on_a_volatile_cache() {
    check(0..10, true);
}

#[test]
fn acknowledged_and_applied_data_survive_power_cuts_without_a_cache() {
    check(100..105, false);
}

#[test]
fn bytes_of_a_failed_flush_are_durable_before_a_mount_relies_on_them() {
    let mut lost = 0;
    for seed in 0..40 {
        let mut rig = Rig::new(seed, true, config(seed));
        for id in 1..=3 {
            rig.create(id);
        }
        for _ in 0..rig.rng().between(1, 120) {
            step(&mut rig);
        }
        rig.disk.fail_flush = true;
        for _ in 0..2000 {
            if rig.poisoned {
                break;
            }
            step(&mut rig);
        }
        assert!(rig.poisoned, "a flush came");
        rig.turn(1);
        let before = rig.disk.copy();
        rig.disk.kill();
        rig.config.after_poison = true;
        // The store mounts with the bytes that can be read, and acknowledges them: they must stay.
        rig.restart_and_check();
        let came: u64 = rig.models.values().map(|g| g.durable).sum();
        rig.disk.power_cut();
        rig.restart_and_check();
        // With a power cut before the restart, fewer entries come back in some histories.
        let mut other = before;
        other.power_cut();
        rig.disk = other;
        rig.restart();
        let stayed: u64 = rig.seen.recovered.iter().map(|r| r.before.0.0 + r.entries.len() as u64).sum();
        lost += u64::from(stayed < came);
    }
    assert!(lost > 3, "{lost}: the test lost its teeth");
}

/// Writes to the store until a flush fails, and lets it leave its mark.
pub(super) fn poison(rig: &mut Rig) {
    rig.create(1);
    (0..50).for_each(|_| step(rig));
    rig.settle();
    rig.disk.fail_flush = true;
    while !rig.poisoned {
        step(rig);
    }
    while !rig.disk.is_idle() {
        rig.turn(1);
    }
}

#[test]
fn poisoned_store_is_refused_until_an_administrator_allows_it() {
    let mut rig = Rig::new(3, true, config(1));
    poison(&mut rig);
    rig.disk.power_cut();
    for _ in 0..2 {
        let groups = std::mem::take(&mut rig.models);
        rig.restart();
        let refused = rig.seen.mount_failed.take();
        let why =
            |e: &crate::MountError| matches!(e, crate::MountError::Poisoned { reason } if reason.contains("errno 5"));
        assert!(refused.as_ref().is_some_and(why), "{refused:?}");
        rig.models = groups;
    }
    rig.config.after_poison = true;
    rig.restart_and_check();
    rig.config.after_poison = false;
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn store_without_a_poison_mark_starts_and_loses_nothing() {
    let mut rig = Rig::new(4, true, config(1));
    rig.create(1);
    (0..50).for_each(|_| step(&mut rig));
    rig.settle();
    rig.disk.fail_after(0);
    while !rig.poisoned {
        step(&mut rig);
    }
    while !rig.disk.is_idle() {
        rig.turn(1);
    }
    rig.disk.fails = 0..0;
    rig.restart_and_check();
}
