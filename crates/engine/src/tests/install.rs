//! A stream from the beginning of the log to the installation: at every crash the replica is the old one, one that is being filled,
//! or whole with the new contents.

use super::crash::{config, step};
use super::rig::Rig;
use super::stream::{Came, Stream, effects};
use crate::log::Work;
use crate::replica::ReplicaState;
use crate::testing::{Model, chunks, decision_bytes, identity};
use types::store::{DecisionState, Effect, Failure};
use types::{Index, ReplicaId, SectorRange, Term};

pub(super) const TARGET: ReplicaId = ReplicaId(2);
const SUCCESSOR: ReplicaId = ReplicaId(7);

/// Returns the target as if it had applied entries that its log never had.
pub(super) fn ahead(rig: &mut Rig, old: &Model) -> Model {
    let count = [3, 12, 90][rig.rng().below(3) as usize];
    old.ahead(effects(rig, count))
}

/// Returns a replica with a history, and its tail, which was never committed. Some of the tail may not be durable yet.
pub(super) fn with_history(seed: u64, volatile: bool) -> (Rig, Model) {
    let mut rig = Rig::new(seed, volatile, config(seed));
    (1..=3).for_each(|id| rig.create(id));
    for _ in 0..rig.rng().between(1, 150) {
        step(&mut rig);
    }
    rig.settle();
    if rig.rng().chance(1, 2) {
        rig.round();
        rig.settle();
    }
    for _ in 0..rig.rng().below(3) {
        let last = rig.models[&TARGET].last();
        let commit = rig.models[&TARGET].hard_state.commit.0;
        let from = rig.rng().between(commit + 1, last + 1);
        let effects = effects(&mut rig, 8);
        rig.append(TARGET, from, effects);
        rig.turn(1);
    }
    let old = rig.models.remove(&TARGET).expect("created");
    (rig, old)
}

/// Runs one stream; in some histories the log begins a second time, at a later index.
fn run(rig: &mut Rig, stream: &mut Stream, old: &Model, new: Model) -> Option<()> {
    stream.begin(rig, new)?;
    stream.lead(rig);
    if rig.engine.base_for(TARGET).is_some() {
        stream.keep(rig, TARGET, Some(old))?;
    }
    stream.stage(rig)?;
    if rig.rng().chance(1, 3) {
        let model = rig.models[&TARGET].clone();
        let count = model.last() - model.applied + rig.rng().between(1, 30);
        let effects = effects(rig, count);
        let next = model.ahead(effects);
        stream.begin(rig, next)?;
        stream.lead(rig);
        stream.stage(rig)?;
    }
    if rig.rng().chance(1, 2) {
        stream.begin_later(rig)?;
        stream.stage(rig)?;
    }
    stream.catch_up(rig)?;
    if rig.rng().chance(1, 4) {
        stream.spoil_tail(rig);
    }
    stream.install(rig)?;
    for _ in 0..20 {
        step(rig);
    }
    Some(())
}

/// Runs one history with one stream, killed after `turns` turns. Returns what came back, and how many AUs it kept.
fn life(seed: u64, volatile: bool, turns: u64) -> (Came, usize) {
    let (mut rig, old) = with_history(seed, volatile);
    let new = ahead(&mut rig, &old);
    let mut stream = Stream::new(TARGET, turns);
    let _ = run(&mut rig, &mut stream, &old, new);
    match rig.rng().chance(1, 2) {
        true => rig.disk.kill(),
        false => rig.disk.power_cut(),
    }
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    rig.engine.audit().expect("the books balance");
    let came = stream.judge(&mut rig, old);
    for found in std::mem::take(&mut rig.seen.recovered) {
        assert_eq!(found.failure, None);
        rig.check_recovered(found, false);
    }
    rig.check_all_sectors();
    if came == Came::Filling {
        end_filling(&mut rig);
    }
    (0..200).for_each(|_| step(&mut rig));
    rig.settle();
    rig.check_all_sectors();
    rig.disk.kill();
    rig.restart_and_check();
    (came, if came == Came::Whole { stream.kept.len() } else { 0 })
}

/// Completes a replica that came back half filled: perhaps after another crash, at the same index or a later one.
fn end_filling(rig: &mut Rig) {
    if rig.rng().chance(1, 3) {
        rig.settle();
        rig.disk.power_cut();
        rig.restart_and_check();
    }
    let mut again = Stream::again(rig, TARGET);
    if rig.rng().chance(1, 2) {
        let model = rig.models[&TARGET].clone();
        let count = model.last() - model.applied + 5;
        let effects = effects(rig, count);
        again.begin(rig, model.ahead(effects)).expect("no crash");
    }
    again.lead(rig);
    if rig.engine.base_for(TARGET).is_some() {
        again.keep(rig, TARGET, None).expect("no crash");
    }
    again.stage(rig).expect("no crash");
    again.catch_up(rig).expect("no crash");
    again.install(rig).expect("no crash");
}

#[test]
fn replica_is_old_or_filling_or_whole_at_every_crash() {
    let (mut old, mut filling, mut whole, mut kept) = (0, 0, 0, 0);
    for seed in 0..10 {
        for turns in [0, 1, 2, 4, 8, 30, 60, 90, 120, 140, 160, 180, 200, 240, 300] {
            match life(seed * 1000 + turns, seed % 3 != 0, turns) {
                (Came::Old, _) => old += 1,
                (Came::Filling, _) => filling += 1,
                (Came::Whole, aus) => (whole, kept) = (whole + 1, kept + aus),
            }
        }
    }
    assert!(old > 10 && filling > 30 && whole > 20 && kept > 20, "{old} {filling} {whole} with {kept} kept AUs");
}

/// Fails the target, whose home is whole, and creates its successor on the same device. Returns both models.
fn succeed(rig: &mut Rig) -> (Model, Model) {
    rig.settle();
    rig.round();
    rig.settle();
    let old = rig.models.remove(&TARGET).expect("created");
    drop(rig.engine.take_overlay(TARGET));
    let mut r = rig.engine.replicas.get_mut(&TARGET).expect("created");
    let last = Some(r.log.last());
    r.turn(ReplicaState::Failed(Failure { reason: "for this test".to_owned(), is_past: true }));
    drop(r);
    rig.engine.queue(Work::Failed { replica: TARGET, last, replaces: false });
    rig.settle();
    assert!(rig.engine.past_end(TARGET).is_some());
    let mut identity = identity(SUCCESSOR, 0);
    identity.pg = old.identity.pg;
    let bytes = decision_bytes(SUCCESSOR, Index(0));
    let decision = DecisionState { replica: SUCCESSOR, index: Index(0), term: Term(0), bytes };
    rig.engine.create_replica(identity.clone(), decision);
    let fresh = Model::new(identity);
    rig.models.insert(SUCCESSOR, fresh.clone());
    rig.settle();
    rig.models.remove(&SUCCESSOR);
    assert_eq!(rig.engine.base_for(SUCCESSOR), Some(TARGET));
    (old, fresh)
}

/// A successor on the same device takes over parts of a failed replica's home; killed after `turns` turns. Returns what came
/// back, and how many AUs it kept.
fn succession(seed: u64, turns: u64) -> (Came, usize) {
    let mut rig = Rig::new(seed, true, config(seed));
    (1..=3).for_each(|id| rig.create(id));
    (0..150).for_each(|_| step(&mut rig));
    let (old, fresh) = succeed(&mut rig);
    let new = Model { replica: SUCCESSOR, identity: fresh.identity.clone(), ..ahead(&mut rig, &old) };
    let mut stream = Stream::new(SUCCESSOR, turns);
    let life = || {
        stream.begin(&mut rig, new)?;
        stream.lead(&mut rig);
        stream.keep(&mut rig, TARGET, Some(&old))?;
        stream.stage(&mut rig)?;
        stream.catch_up(&mut rig)?;
        stream.install(&mut rig)
    };
    let _ = life();
    rig.disk.power_cut();
    rig.restart();
    rig.engine.audit().expect("the books balance");
    let came = stream.judge(&mut rig, fresh);
    for found in std::mem::take(&mut rig.seen.recovered) {
        let replica = found.identity.replica;
        assert_eq!(found.failure.is_some(), replica == TARGET, "{replica} is {:?}", found.failure);
        if replica != TARGET {
            rig.check_recovered(found, false);
        }
    }
    let whole = came == Came::Whole;
    assert!(!whole || stream.kept.is_empty() || rig.engine.past_end(TARGET).is_none(), "parts of its home are gone");
    rig.check_all_sectors();
    assert_eq!(rig.engine.base_for(SUCCESSOR), Some(if whole { SUCCESSOR } else { TARGET }));
    if came == Came::Filling {
        Stream::again(&rig, SUCCESSOR).finish(&mut rig).expect("no crash");
    }
    rig.engine.destroy_replica(TARGET);
    (0..100).for_each(|_| step(&mut rig));
    rig.settle();
    rig.restart_and_check();
    (came, if whole { stream.kept.len() } else { 0 })
}

#[test]
fn successor_has_its_own_contents_or_the_failed_ones_stay() {
    let (mut old, mut filling, mut whole, mut kept) = (0, 0, 0, 0);
    for seed in 0..8 {
        for turns in [0, 1, 2, 4, 40, 80, 100, 120, 140, 160, 200, 300] {
            match succession(seed * 1000 + turns, turns) {
                (Came::Old, _) => old += 1,
                (Came::Filling, _) => filling += 1,
                (Came::Whole, aus) => (whole, kept) = (whole + 1, kept + aus),
            }
        }
    }
    assert!(old > 5 && filling > 15 && whole > 15 && kept > 20, "{old} {filling} {whole} with {kept} kept AUs");
}

/// Returns a rig whose target is being filled, and its stream.
pub(super) fn filling(seed: u64) -> (Rig, Stream) {
    let mut rig = Rig::new(seed, true, config(1));
    (1..=3).for_each(|id| rig.create(id));
    (0..100).for_each(|_| step(&mut rig));
    rig.settle();
    let old = rig.models.remove(&TARGET).expect("created");
    let new = ahead(&mut rig, &old);
    let mut stream = Stream::new(TARGET, u64::MAX);
    stream.begin(&mut rig, new).expect("no crash");
    stream.lead(&mut rig);
    (rig, stream)
}

#[test]
fn aborted_stream_leaves_no_staged_data_behind() {
    let (mut rig, stream) = filling(5);
    let free = |rig: &Rig| rig.engine.stats().home.free_bytes + rig.engine.stats().home.pending_free_bytes;
    rig.settle();
    let before = free(&rig);
    let bytes = [0xabu8; 32 << 10];
    let range = SectorRange::new(0, 64);
    for chunk in chunks() {
        assert!(rig.stage(TARGET, chunk, range, &bytes));
    }
    rig.engine.unstage(TARGET);
    assert!(!rig.stage(TARGET, chunks()[0], range, &bytes), "writes of the old stream are in flight");
    rig.settle();
    assert_eq!(free(&rig), before);
    rig.engine.audit().expect("the books balance");
    rig.check_all_sectors();
    // A new stream begins with nothing staged.
    drop(stream);
    Stream::again(&rig, TARGET).finish(&mut rig).expect("no crash");
    rig.settle();
    rig.check_all_sectors();
    rig.restart_and_check();
}

/// Seed 411145 of the simulator: a round needed the space between the end of the stream and the begin of its
/// installation.
#[test]
fn installation_with_evicted_blocks_is_refused_and_the_fill_goes_on() {
    let (mut rig, mut stream) = filling(7);
    for unstages in [false, true] {
        stream.stage(&mut rig).expect("no crash");
        stream.catch_up(&mut rig).expect("no crash");
        rig.engine.install(TARGET);
        match unstages {
            // The same holds when its staged blocks are given up.
            true => rig.engine.unstage(TARGET),
            false => assert!(rig.engine.evict_staged(), "there is something"),
        }
        rig.settle();
        assert_eq!((std::mem::take(&mut rig.seen.refused), rig.seen.installed.len()), (vec![TARGET], 0));
        rig.check_all_sectors();
        stream = Stream::again(&rig, TARGET);
        stream.lead(&mut rig);
    }
    rig.settle();
    rig.restart_and_check();
    assert!(rig.models[&TARGET].fills);
    Stream::again(&rig, TARGET).finish(&mut rig).expect("no crash");
    rig.restart_and_check();
}

/// The base of a replica that is being filled is its contents at home, which no round writes any more, below the overlay of its
/// last state, which is in memory alone.
#[test]
fn kept_space_is_at_home_alone_and_no_round_writes_it() {
    let mut rig = Rig::new(11, true, config(2));
    (1..=2).for_each(|id| rig.create(id));
    let write = |start| Effect::Write { chunk: chunks()[0], range: SectorRange::new(start, 8) };
    let put = |rig: &mut Rig, effects: Vec<Effect>| {
        rig.extend(TARGET, effects);
        rig.settle();
        let durable = rig.models[&TARGET].durable;
        rig.commit(TARGET, durable);
        rig.settle();
    };
    put(&mut rig, vec![write(0), write(8), write(136)]);
    rig.round();
    rig.settle();
    rig.engine.hold_rounds(true);
    put(&mut rig, vec![write(136)]);
    let old = rig.models.remove(&TARGET).expect("created");
    let new = old.ahead(vec![Effect::None]);
    let mut stream = Stream::new(TARGET, u64::MAX);
    stream.begin(&mut rig, new).expect("no crash");
    assert!(rig.engine.keep(TARGET, TARGET, chunks()[0], 0), "it is at home alone");
    assert!(!rig.engine.keep(TARGET, TARGET, chunks()[0], 1), "the older overlay covers a part");
    // Entries above the beginning of the log do not change the base.
    put(&mut rig, vec![write(8)]);
    rig.engine.hold_rounds(false);
    rig.round();
    rig.settle();
    assert!(rig.engine.release(TARGET, TARGET, chunks()[0], 0), "nothing has changed");
    let mut stream = Stream::again(&rig, TARGET);
    stream.lead(&mut rig);
    stream.keep(&mut rig, TARGET, None).expect("no crash");
    stream.stage(&mut rig).expect("no crash");
    stream.catch_up(&mut rig).expect("no crash");
    stream.install(&mut rig).expect("no crash");
    assert!(!rig.engine.keeps(TARGET, chunks()[0], 0), "a new stream begins with nothing");
    rig.restart_and_check();
}
