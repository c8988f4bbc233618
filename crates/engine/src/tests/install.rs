//! The end of a stream: at every crash the replica has its old contents whole, or its new ones whole.

use super::crash::{config, step};
use super::rig::Rig;
use crate::log::Work;
use crate::replica::ReplicaState;
use crate::testing::{Model, SECTORS, chunks, decision_bytes, identity};
use types::store::{DecisionState, Effect, Failure};
use types::units::SECTORS_PER_AU;
use types::{ChunkKey, Index, ReplicaId, SectorRange, Term};

const TARGET: ReplicaId = ReplicaId(2);
const SUCCESSOR: ReplicaId = ReplicaId(7);

/// Returns the target as if it had applied entries that its log never had.
fn ahead(rig: &mut Rig, old: &Model) -> Model {
    let count = [3, 12, 90][rig.rng().below(3) as usize];
    old.ahead((0..count).map(|_| rig.effect()).collect())
}

/// Keeps AUs that are equal in both, as far as the engine allows; some of them are released again.
fn keep(rig: &mut Rig, old: &Model, new: &Model) -> Vec<(ChunkKey, u32)> {
    let mut kept = Vec::new();
    for (chunk, au) in chunks().into_iter().flat_map(|chunk| [(chunk, 0), (chunk, 1)]) {
        let start = au * SECTORS_PER_AU;
        let range = SectorRange::new(start, (SECTORS - start).min(SECTORS_PER_AU));
        if old.expected(chunk, range) == new.expected(chunk, range)
            && rig.engine.keep(new.replica, old.replica, chunk, au)
        {
            match rig.rng().chance(1, 4) {
                true => rig.engine.unkeep(new.replica, chunk, au),
                false => kept.push((chunk, au)),
            }
        }
    }
    kept
}

/// Stages everything that `new` holds outside of kept AUs, some of it after other bytes in the same place.
fn stage(rig: &mut Rig, new: &Model, kept: &[(ChunkKey, u32)], token: &mut u64) {
    for chunk in chunks() {
        for again in [rig.rng().chance(1, 2), false] {
            let mut at = 0;
            while at < SECTORS {
                let (au, left) = (at / SECTORS_PER_AU, SECTORS_PER_AU - at % SECTORS_PER_AU);
                if kept.contains(&(chunk, au)) {
                    at += left;
                    continue;
                }
                let count = (8 * rig.rng().between(1, 8) as u32).min(SECTORS - at).min(left);
                let range = SectorRange::new(at, count);
                let mut bytes = new.expected(chunk, range);
                if again {
                    bytes.fill(0xee);
                }
                *token += 1;
                assert!(rig.stage(new.replica, chunk, range, &bytes), "there is room");
                at += count;
            }
            while rig.seen.staged < *token {
                let completions = rig.rng().below(4);
                step_others(rig, completions);
            }
        }
    }
}

fn step_others(rig: &mut Rig, completions: u64) {
    if rig.rng().chance(1, 3) {
        step(rig);
    }
    rig.turn(completions);
}

/// Runs one history with one stream, killed after `turns` turns of the installation. Returns whether the new contents
/// came, and how many AUs they kept.
fn life(seed: u64, volatile: bool, turns: u64) -> (bool, usize) {
    let mut rig = Rig::new(seed, volatile, config(seed));
    for id in 1..=3 {
        rig.create(id);
    }
    for _ in 0..rig.rng().between(1, 150) {
        step(&mut rig);
    }
    rig.settle();
    // The tail was never committed, and the stream contradicts it.
    let from = rig.models[&TARGET].last() + 1;
    let effects = (0..8).map(|_| rig.effect()).collect();
    rig.append(TARGET, from, effects);
    rig.settle();
    if rig.rng().chance(1, 2) {
        rig.round();
        rig.settle();
    }
    let old = rig.models.remove(&TARGET).expect("created");
    let new = ahead(&mut rig, &old);
    let mut token = 0;
    let kept = keep(&mut rig, &old, &new);
    stage(&mut rig, &new, &kept, &mut token);
    rig.engine.home.as_ref().expect("mounted").audit().expect("the books balance with staged chunks");
    rig.engine.install(new.decision());
    for _ in 0..turns {
        let completions = rig.rng().below(3);
        step_others(&mut rig, completions);
        if let Some(recovered) = rig.seen.installed.pop() {
            rig.models.insert(TARGET, new.clone());
            rig.check_recovered(recovered, false);
            rig.check_all_sectors();
        }
    }
    if rig.rng().chance(1, 2) {
        rig.disk.kill()
    } else {
        rig.disk.power_cut()
    }
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    rig.engine.home.as_ref().expect("mounted").audit().expect("the books balance");
    let found = rig.seen.recovered.iter().find(|r| r.identity.replica == TARGET).expect("the target comes back");
    let came = found.checkpoint.index.0 >= new.applied;
    if !came {
        assert!(!rig.models.contains_key(&TARGET), "what was reported installed stays installed");
        rig.models.insert(TARGET, old);
    } else {
        rig.models.entry(TARGET).or_insert(new);
    }
    for found in std::mem::take(&mut rig.seen.recovered) {
        assert_eq!(found.failure, None);
        rig.check_recovered(found, false);
    }
    rig.check_all_sectors();
    for _ in 0..200 {
        step(&mut rig);
    }
    rig.settle();
    rig.check_all_sectors();
    rig.disk.kill();
    rig.restart_and_check();
    (came, if came { kept.len() } else { 0 })
}

#[test]
fn an_installation_is_whole_or_never_was_at_every_crash() {
    let (mut came, mut stayed, mut kept) = (0, 0, 0);
    for seed in 0..10 {
        for turns in [0, 1, 3, 6, 10, 16, 30, 60] {
            match life(seed * 100 + turns, seed % 3 != 0, turns) {
                (true, aus) => (came, kept) = (came + 1, kept + aus),
                (false, _) => stayed += 1,
            }
        }
    }
    assert!(came > 10 && stayed > 10 && kept > 20, "{came} came with {kept} kept AUs, {stayed} stayed");
}

/// A successor on the same device takes over parts of a failed replica's home; killed after `turns` turns of the
/// installation. Returns whether the new contents came, and how many AUs they kept.
fn succession(seed: u64, turns: u64) -> (bool, usize) {
    let mut rig = Rig::new(seed, true, config(seed));
    (1..=3).for_each(|id| rig.create(id));
    (0..150).for_each(|_| step(&mut rig));
    rig.settle();
    rig.round();
    rig.settle();
    let old = rig.models.remove(&TARGET).expect("created");
    drop(rig.engine.take_overlay(TARGET));
    let r = rig.engine.replicas.get_mut(&TARGET).expect("created");
    let last = Some(r.log.last());
    r.turn(ReplicaState::Failed(Failure { reason: "for this test".to_owned(), is_past: true }));
    rig.engine.queue(Work::Failed { replica: TARGET, last, replaces: false });
    rig.settle();
    assert!(rig.engine.past_end(TARGET).is_some());
    let mut identity = identity(SUCCESSOR, 0);
    identity.pg = old.identity.pg;
    let bytes = decision_bytes(SUCCESSOR, Index(0));
    let decision = DecisionState { replica: SUCCESSOR, index: Index(0), term: Term(0), bytes };
    rig.engine.create_replica(identity.clone(), decision);
    let fresh = Model::new(identity.clone());
    rig.models.insert(SUCCESSOR, fresh.clone());
    rig.settle();
    rig.models.remove(&SUCCESSOR);
    assert_eq!(rig.engine.base_for(SUCCESSOR), Some(TARGET));
    let new = Model { replica: SUCCESSOR, identity, ..ahead(&mut rig, &old) };
    let kept = keep(&mut rig, &old, &new);
    stage(&mut rig, &new, &kept, &mut 0);
    rig.engine.install(new.decision());
    for _ in 0..turns {
        let completions = rig.rng().below(3);
        step_others(&mut rig, completions);
        rig.engine.audit().expect("the books balance at every step");
    }
    rig.disk.power_cut();
    rig.restart();
    rig.engine.audit().expect("the books balance");
    let mut came = false;
    for found in std::mem::take(&mut rig.seen.recovered) {
        let replica = found.identity.replica;
        assert_eq!(found.failure.is_some(), replica == TARGET, "{replica} is {:?}", found.failure);
        if replica == SUCCESSOR {
            came = found.checkpoint.index.0 >= new.applied;
            rig.models.insert(SUCCESSOR, if came { new.clone() } else { fresh.clone() });
        }
        if replica != TARGET {
            rig.check_recovered(found, false);
        }
    }
    assert!(!came || kept.is_empty() || rig.engine.past_end(TARGET).is_none(), "parts of its home have gone over");
    rig.check_all_sectors();
    assert_eq!(rig.engine.base_for(SUCCESSOR), Some(if came { SUCCESSOR } else { TARGET }));
    rig.engine.destroy_replica(TARGET);
    (0..100).for_each(|_| step(&mut rig));
    rig.settle();
    rig.restart_and_check();
    (came, if came { kept.len() } else { 0 })
}

#[test]
fn successor_has_its_own_contents_or_the_failed_ones_stay() {
    let (mut came, mut stayed, mut kept) = (0, 0, 0);
    for seed in 0..8 {
        for turns in [0, 2, 5, 9, 16, 30, 60] {
            match succession(seed * 100 + turns, turns) {
                (true, aus) => (came, kept) = (came + 1, kept + aus),
                (false, _) => stayed += 1,
            }
        }
    }
    assert!(came > 8 && stayed > 8 && kept > 20, "{came} came with {kept} kept AUs, {stayed} stayed");
}

#[test]
fn aborted_stream_leaves_no_staged_data_behind() {
    let mut rig = Rig::new(5, true, config(1));
    (1..=3).for_each(|id| rig.create(id));
    (0..100).for_each(|_| step(&mut rig));
    rig.settle();
    let free = |rig: &Rig| rig.engine.stats().home.free_bytes + rig.engine.stats().home.pending_free_bytes;
    let before = free(&rig);
    let old = rig.models[&TARGET].clone();
    let new = ahead(&mut rig, &old);
    let bytes = [0xabu8; 32 << 10];
    let range = SectorRange::new(0, 64);
    for chunk in chunks() {
        assert!(rig.stage(TARGET, chunk, range, &bytes));
    }
    rig.engine.unstage(TARGET);
    assert!(!rig.stage(TARGET, chunks()[0], range, &bytes), "writes of the old stream are in flight");
    rig.settle();
    assert_eq!(free(&rig), before);
    rig.engine.home.as_ref().expect("mounted").audit().expect("the books balance");
    rig.check_all_sectors();
    // A new stream begins with nothing staged.
    let mut token = 0;
    rig.seen.staged = 0;
    let old = rig.models.remove(&TARGET).expect("created");
    stage(&mut rig, &new, &[], &mut token);
    rig.engine.install(new.decision());
    rig.settle();
    let recovered = rig.seen.installed.pop().expect("installed");
    drop(old);
    rig.models.insert(TARGET, new);
    rig.check_recovered(recovered, false);
    rig.check_all_sectors();
    rig.restart_and_check();
}

#[test]
fn installation_does_not_wait_for_entries_that_a_full_log_cannot_take() {
    let mut rig = Rig::new(11, true, config(1));
    (1..=3).for_each(|id| rig.create(id));
    let range = SectorRange::new(0, SECTORS);
    while rig.models[&TARGET].tickets.is_empty() {
        let from = rig.models[&TARGET].last() + 1;
        assert!(from < 1000, "the log never fills up");
        rig.append(TARGET, from, vec![Effect::Write { chunk: chunks()[0], range }; 4]);
        (0..40).for_each(|_| rig.turn(16));
    }
    let old = rig.models.remove(&TARGET).expect("created");
    let new = ahead(&mut rig, &old);
    let mut token = 0;
    stage(&mut rig, &new, &[], &mut token);
    rig.engine.install(new.decision());
    for _ in 0..2000 {
        rig.turn(16);
    }
    let recovered = rig.seen.installed.pop().expect("installed");
    rig.models.insert(TARGET, new);
    rig.check_recovered(recovered, false);
    rig.settle();
    rig.restart_and_check();
}

/// Seed 411145 of the simulator: a round needed the space between the end of the stream and the begin of its
/// installation.
#[test]
fn installation_with_evicted_blocks_is_refused_and_the_old_replica_stays() {
    let mut rig = Rig::new(7, true, config(1));
    (1..=3).for_each(|id| rig.create(id));
    (0..100).for_each(|_| step(&mut rig));
    rig.settle();
    let old = rig.models[&TARGET].clone();
    let new = ahead(&mut rig, &old);
    let mut token = 0;
    stage(&mut rig, &new, &[], &mut token);
    rig.engine.install(new.decision());
    assert!(rig.engine.evict_staged(), "there is something");
    rig.settle();
    assert_eq!((rig.seen.refused.as_slice(), rig.seen.installed.len()), ([TARGET].as_slice(), 0));
    rig.check_all_sectors();
    // The same holds when its staged blocks are given up.
    let again = ahead(&mut rig, &old);
    rig.seen.staged = 0;
    let mut token = 0;
    stage(&mut rig, &again, &[], &mut token);
    rig.engine.install(again.decision());
    rig.engine.unstage(TARGET);
    rig.settle();
    assert_eq!((rig.seen.refused.as_slice(), rig.seen.installed.len()), ([TARGET; 2].as_slice(), 0));
    rig.check_all_sectors();
    rig.restart_and_check();
}

/// The log is more than half full of entries above the target's checkpoint index, and another replica writes: the log
/// copies the target's entries forward all the time. The installation voids these entries, so it must not wait for
/// their copies.
#[test]
fn an_installation_begins_although_the_log_copies_entries_of_its_replica() {
    for seed in 0..6 {
        let mut rig = Rig::new(seed, true, config(1));
        rig.config.round_pressure = 0.2;
        rig.engine.config.round_pressure = 0.2;
        (1..=3).for_each(|id| rig.create(id));
        let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, SECTORS.min(160)) };
        rig.engine.hold_rounds(true);
        while rig.engine.stats().segments_in_use < 11 {
            rig.extend(TARGET, vec![effect; 2]);
            rig.turn(16);
            rig.commit(TARGET, u64::MAX);
        }
        rig.settle();
        let old = rig.models.remove(&TARGET).expect("created");
        let new = ahead(&mut rig, &old);
        let mut token = 0;
        stage(&mut rig, &new, &[], &mut token);
        rig.engine.hold_rounds(false);
        let other = ReplicaId(3);
        let write = |rig: &mut Rig| {
            rig.extend(other, vec![effect]);
            rig.turn(1);
            rig.commit(other, u64::MAX);
        };
        // While the installation waits, nothing moves the checkpoint index of its replica, and the engine reports that.
        rig.engine.hold_rounds(true);
        for _ in 0..12 {
            rig.now = rig.now + std::time::Duration::from_secs(1);
            rig.turn(1);
        }
        let reason = rig.engine.destage_stuck().expect("K stays under pressure").to_owned();
        assert!(reason.contains("backfills delay destage rounds"), "{reason}");
        rig.engine.hold_rounds(false);
        let copied = rig.engine.stats().copied_entries;
        for n in 0.. {
            assert!(n < 2000, "seed {seed}: nothing is copied");
            if rig.engine.stats().copied_entries > copied {
                break;
            }
            write(&mut rig);
        }
        rig.engine.install(new.decision());
        for n in 0.. {
            assert!(n < 600, "seed {seed}: not installed, {:?}", rig.engine.stats());
            if !rig.seen.installed.is_empty() {
                break;
            }
            write(&mut rig);
        }
        let recovered = rig.seen.installed.pop().expect("installed");
        rig.models.insert(TARGET, new);
        rig.check_recovered(recovered, false);
        rig.settle();
        for _ in 0..3 {
            rig.now = rig.now + std::time::Duration::from_secs(1);
            rig.turn(1);
        }
        assert_eq!(rig.engine.destage_stuck(), None);
        rig.settle();
        rig.restart_and_check();
    }
}

/// A round writes a block of a kept AU between its comparison and the installation: the engine refuses, and the old
/// replica stays. Before the round, the block is in the overlay: the AU cannot be released into the staged contents.
#[test]
fn kept_space_that_a_round_has_written_is_not_installed() {
    let mut rig = Rig::new(11, true, config(2));
    rig.create(TARGET.0);
    let write = |start| Effect::Write { chunk: chunks()[0], range: SectorRange::new(start, 8) };
    let fill = |rig: &mut Rig, effects: Vec<Effect>| {
        rig.extend(TARGET, effects);
        rig.settle();
        let durable = rig.models[&TARGET].durable;
        rig.commit(TARGET, durable);
        rig.settle();
    };
    fill(&mut rig, vec![write(0), write(8)]);
    assert!(!rig.engine.keep(TARGET, TARGET, chunks()[0], 0), "the overlay holds it");
    rig.round();
    rig.settle();
    assert!(rig.engine.keep(TARGET, TARGET, chunks()[0], 0));
    assert!(rig.engine.release(TARGET, TARGET, chunks()[0], 0), "nothing has changed");
    assert!(rig.engine.keep(TARGET, TARGET, chunks()[0], 0));
    fill(&mut rig, vec![write(8)]);
    assert!(!rig.engine.release(TARGET, TARGET, chunks()[0], 0), "a read of it returns a later state");
    rig.engine.unstage(TARGET);
    rig.round();
    rig.settle();
    assert!(rig.engine.keep(TARGET, TARGET, chunks()[0], 0));
    fill(&mut rig, vec![write(8)]);
    rig.round();
    rig.settle();
    let old = rig.models.remove(&TARGET).expect("created");
    let new = old.ahead(vec![Effect::None]);
    rig.engine.install(new.decision());
    rig.models.insert(TARGET, old);
    rig.settle();
    assert_eq!((rig.seen.refused.pop(), rig.seen.installed.len()), (Some(TARGET), 0));
    rig.check_all_sectors();
    assert!(!rig.engine.keeps(TARGET, chunks()[0], 0), "a new stream begins with nothing");
    rig.restart_and_check();
}
