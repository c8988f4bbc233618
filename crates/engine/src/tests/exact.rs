//! A stream to a replica whose log has not begun: its contents are exactly those at an index, and its log begins with their
//! checkpoint. At every crash the replica has its old contents whole, or its new ones whole.

use super::crash::{config, step};
use super::install::{TARGET, ahead, filling};
use super::rig::Rig;
use crate::testing::{Model, SECTORS, chunks};
use types::store::Effect;
use types::units::SECTORS_PER_AU;
use types::{ChunkKey, SectorRange};

/// Keeps AUs that are equal in both, as far as the engine allows; some of them are released again.
fn keep(rig: &mut Rig, old: &Model, new: &Model) -> Vec<(ChunkKey, u32)> {
    let mut kept = Vec::new();
    for (chunk, au) in chunks().into_iter().flat_map(|chunk| [0, 1, 2].map(|au| (chunk, au))) {
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
    rig.engine.install_as_of(new.decision());
    for _ in 0..turns {
        let completions = rig.rng().below(3);
        step_others(&mut rig, completions);
        if let Some(recovered) = rig.seen.filling.pop() {
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
fn exact_installation_is_whole_or_never_was_at_every_crash() {
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

#[test]
fn exact_installation_does_not_wait_for_entries_of_a_full_log() {
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
    rig.engine.install_as_of(new.decision());
    for _ in 0..2000 {
        rig.turn(16);
    }
    let recovered = rig.seen.filling.pop().expect("installed");
    rig.models.insert(TARGET, new);
    rig.check_recovered(recovered, false);
    rig.settle();
    rig.restart_and_check();
}

/// A replica that is being filled, and that its leader's log has passed, keeps its log until contents as of a later index are here.
#[test]
fn exact_installation_of_a_filling_replica_keeps_its_log_until_then() {
    for (seed, turns) in (0..8).flat_map(|seed| [0, 2, 8, 40].map(|turns| (seed, turns))) {
        let (mut rig, mut stream) = filling(seed);
        stream.catch_up(&mut rig).expect("no crash");
        rig.settle();
        let old = rig.models.remove(&TARGET).expect("it fills");
        let new = old.ahead(vec![Effect::None; 40]);
        stage(&mut rig, &new, &[], &mut 0);
        rig.engine.install_as_of(new.decision());
        for _ in 0..turns {
            let completions = rig.rng().below(3);
            step_others(&mut rig, completions);
        }
        let was_told = rig.seen.filling.last().is_some_and(|begun| !begun.fills);
        rig.disk.power_cut();
        rig.restart();
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == TARGET).expect("it comes back");
        assert!(
            found.fills != (found.checkpoint.index.0 == new.applied),
            "seed {seed}: filling, or whole as of that index"
        );
        assert!(!(was_told && found.fills), "what was reported installed stays installed");
        rig.models.insert(TARGET, if found.fills { old } else { new });
        for found in std::mem::take(&mut rig.seen.recovered) {
            rig.check_recovered(found, false);
        }
        rig.check_all_sectors();
    }
}

/// Its log goes on behind the index of the contents: the leader's tree has changed since it began, and no majority is known to have all
/// contents without this replica.
#[test]
fn exact_installation_keeps_the_entries_that_follow_in_its_log() {
    let (mut came, mut kept) = (0, 0);
    for (seed, turns) in (0..8).flat_map(|seed| [0, 2, 8, 40, 200].map(|turns| (seed, turns))) {
        let (mut rig, mut stream) = filling(seed);
        stream.catch_up(&mut rig).expect("no crash");
        let effects = (0..6).map(|_| rig.effect()).collect();
        rig.extend(TARGET, effects);
        rig.settle();
        let (began, last) = (stream.begins.expect("it has"), rig.models[&TARGET].last());
        rig.commit(TARGET, last - 2);
        // Some entries are queued, and not durable, perhaps even that at the index.
        let index = rig.rng().between(began + 1, last + 2);
        let more = (0..2).map(|_| rig.effect()).collect();
        rig.extend(TARGET, more);
        let model = rig.models.remove(&TARGET).expect("it fills");
        let mut exact = model.unapplied();
        while exact.applied < index {
            exact.apply();
        }
        stage(&mut rig, &exact, &[], &mut 0);
        rig.engine.install_as_of(exact.decision());
        let mut is_whole = false;
        for _ in 0..turns {
            let completions = rig.rng().below(3);
            step_others(&mut rig, completions);
            assert_eq!(rig.seen.refused, [], "seed {seed}: {index} of {began} to {last}");
            if let Some(begun) = rig.seen.filling.pop() {
                assert!(!begun.fills && begun.checkpoint == exact.decision());
                is_whole = true;
                rig.models.insert(TARGET, model.clone());
                rig.check_recovered(begun, false);
                rig.check_all_sectors();
            }
        }
        rig.disk.power_cut();
        rig.restart();
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == TARGET).expect("it comes back");
        assert!(found.fills != (found.checkpoint.index.0 >= index), "seed {seed}: filling, or whole as of that index");
        assert!(!(is_whole && found.fills), "what was reported installed stays installed");
        (came, kept) = (came + u64::from(!found.fills), kept + u64::from(!found.fills && !found.entries.is_empty()));
        rig.models.entry(TARGET).or_insert(model);
        for found in std::mem::take(&mut rig.seen.recovered) {
            assert_eq!(found.failure, None);
            rig.check_recovered(found, false);
        }
        rig.check_all_sectors();
    }
    assert!(came > 8 && kept > 4, "{came} came, {kept} with entries: the test lost its teeth");
}
