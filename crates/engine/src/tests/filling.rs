//! Replicas that are being filled: refusals, failures, and a log that holds their entries (R16).

use super::crash::{config, step};
use super::damage::{batches_from, hide, wrap_log};
use super::install::{TARGET, filling};
use super::rig::Rig;
use super::stream::{Stream, effects};
use crate::testing::{SECTORS, chunks};
use bytes::Bytes;
use layout::log::RECORD_DECISION_MAX;
use types::store::{DecisionState, Effect};
use types::{Index, SectorRange, Term};

fn is_full(rig: &Rig) -> bool {
    rig.engine.fill_room(TARGET).is_some_and(|room| room.left == 0)
}

fn refusals(rig: &mut Rig) -> usize {
    rig.settle();
    std::mem::take(&mut rig.seen.fill_refused).len()
}

#[test]
fn log_that_would_lose_entries_or_cannot_be_recorded_does_not_begin() {
    let (mut rig, mut stream) = filling(3);
    stream.spoil_tail(&mut rig);
    rig.settle();
    let at = |rig: &Rig, index: u64| {
        let model = &rig.models[&TARGET];
        // No entry of its log has this term.
        DecisionState { index: Index(index), term: Term(model.term.0 + 1), ..model.decision() }
    };
    let (applied, last) = (rig.models[&TARGET].applied, rig.models[&TARGET].last());
    for index in [applied - 1, applied, last - 1] {
        rig.engine.fill(at(&rig, index));
        assert_eq!(refusals(&mut rig), 1, "{index} of {applied}..={last}");
    }
    let bytes = Bytes::from(vec![1; RECORD_DECISION_MAX + 1]);
    rig.engine.fill(DecisionState { bytes, ..at(&rig, last + 9) });
    assert_eq!(refusals(&mut rig), 1, "no record holds its decision state");
    // A replica with its contents keeps what is committed.
    let whole = rig.models.values().find(|m| !m.fills && m.applied > 0).expect("of three").decision();
    rig.engine.fill(whole);
    assert_eq!(refusals(&mut rig), 1);
    rig.restart_and_check();
    stream = Stream::again(&rig, TARGET);
    stream.finish(&mut rig).expect("no crash");
    rig.restart_and_check();
}

#[test]
fn second_beginning_refuses_an_installation_and_a_third() {
    let (mut rig, mut stream) = filling(4);
    stream.stage(&mut rig).expect("no crash");
    stream.catch_up(&mut rig).expect("no crash");
    rig.settle();
    let model = rig.models[&TARGET].clone();
    let effects = effects(&mut rig, model.last() - model.applied + 4);
    let new = model.ahead(effects);
    rig.engine.install(TARGET);
    rig.engine.fill(new.decision());
    rig.engine.fill(new.decision());
    rig.turn(0);
    rig.engine.install(TARGET);
    rig.settle();
    assert_eq!((rig.seen.refused.as_slice(), rig.seen.installed.len()), ([TARGET; 2].as_slice(), 0));
    assert_eq!((rig.seen.fill_refused.as_slice(), rig.seen.filling.len()), ([TARGET].as_slice(), 1));
    let found = rig.seen.filling.pop().expect("seen above");
    rig.models.insert(TARGET, new);
    rig.check_recovered(found, false);
    rig.restart_and_check();
    assert!(rig.models[&TARGET].fills);
}

#[test]
fn failure_of_a_replica_that_is_being_filled_has_no_past() {
    let (mut rig, mut stream) = filling(6);
    stream.stage(&mut rig).expect("no crash");
    stream.catch_up(&mut rig).expect("no crash");
    rig.engine.install(TARGET);
    rig.engine.fail(TARGET, "for this test".to_owned());
    rig.settle();
    assert_eq!(rig.seen.installed, []);
    rig.models.remove(&TARGET);
    for _ in 0..3 {
        assert!(rig.engine.failure(TARGET).is_some_and(|failure| !failure.is_past));
        assert!(rig.engine.past_end(TARGET).is_none() && rig.engine.revive(TARGET).is_none());
        rig.engine.audit().expect("the books balance");
        rig.disk.power_cut();
        rig.restart();
    }
}

#[test]
fn log_gap_leaves_a_replica_that_is_being_filled_no_past() {
    let (mut rig, mut stream) = filling(8);
    stream.spoil_tail(&mut rig);
    (0..20).for_each(|_| step(&mut rig));
    rig.settle();
    let all = (0..16).flat_map(|slot| batches_from(&rig, slot));
    let mut all: Vec<(usize, u64)> = all.map(|(at, header)| (at, header.seq)).collect();
    all.sort_by_key(|(_, seq)| *seq);
    // The copy of a batch is in the next one.
    let n = all.len() - 4;
    hide(&mut rig, all[n].0);
    hide(&mut rig, all[n + 1].0);
    for _ in 0..3 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(rig.seen.mount_failed, None);
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == TARGET).expect("it comes back");
        assert!(found.failure.as_ref().is_some_and(|failure| !failure.is_past), "{:?}", found.failure);
        assert!(!found.fills && rig.engine.past_end(TARGET).is_none());
        let others = rig.seen.recovered.iter().filter(|r| r.identity.replica != TARGET);
        assert!(others.into_iter().all(|r| r.failure.as_ref().is_some_and(|failure| failure.is_past)));
    }
}

#[test]
fn state_blocks_carry_the_beginning_of_a_log_while_it_is_filled() {
    for seed in [2, 5, 9] {
        let (mut rig, _) = filling(seed);
        rig.config.state_batch_max = 200;
        rig.config.round_pressure = 0.2;
        rig.disk.kill();
        rig.restart_and_check();
        let begins = rig.engine.fills_from(TARGET);
        let writer = *rig.models.keys().next_back().expect("three");
        for _ in 0..2 {
            wrap_log(&mut rig, writer);
            rig.disk.power_cut();
            rig.restart_and_check();
            assert_eq!(rig.engine.fills_from(TARGET), begins);
        }
        Stream::again(&rig, TARGET).finish(&mut rig).expect("no crash");
        wrap_log(&mut rig, writer);
        rig.restart_and_check();
        assert_eq!(rig.engine.fills_from(TARGET), Index(0));
    }
}

/// Rounds do not free the log of a replica that is being filled. It says when it has its share, others go on, and the contents or a
/// later beginning end that.
#[test]
fn entries_of_a_filling_replica_take_their_share_of_the_log() {
    for begins_again in [false, true] {
        let (mut rig, mut stream) = filling(10);
        stream.stage(&mut rig).expect("no crash");
        stream.catch_up(&mut rig).expect("no crash");
        let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, SECTORS.min(160)) };
        while !is_full(&rig) {
            assert!(rig.models[&TARGET].last() < 1000, "it never has its share");
            rig.extend(TARGET, vec![effect; 2]);
            rig.turn(16);
            rig.commit(TARGET, u64::MAX);
        }
        rig.settle();
        rig.commit(TARGET, u64::MAX);
        let writer = *rig.models.keys().next_back().expect("three");
        wrap_log(&mut rig, writer);
        rig.disk.power_cut();
        rig.restart_and_check();
        assert!(is_full(&rig), "a restart counts the same");
        let mut stream = Stream::again(&rig, TARGET);
        if begins_again {
            let model = rig.models[&TARGET].clone();
            let effects = effects(&mut rig, 5);
            stream.begin(&mut rig, model.ahead(effects)).expect("no crash");
            assert!(!is_full(&rig));
        }
        stream.finish(&mut rig).expect("no crash");
        assert!(!is_full(&rig));
        rig.settle();
        rig.round();
        rig.settle();
        rig.restart_and_check();
    }
}

#[test]
fn log_begins_although_a_full_log_cannot_take_queued_entries() {
    let mut rig = Rig::new(11, true, config(1));
    (1..=3).for_each(|id| rig.create(id));
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, SECTORS) };
    while rig.models[&TARGET].tickets.is_empty() {
        assert!(rig.models[&TARGET].last() < 1000, "the log never fills up");
        rig.extend(TARGET, vec![effect; 4]);
        (0..40).for_each(|_| rig.turn(16));
    }
    let old = rig.models.remove(&TARGET).expect("created");
    let new = super::install::ahead(&mut rig, &old);
    let mut stream = Stream::new(TARGET, 20_000);
    stream.begin(&mut rig, new).expect("it does not wait");
    stream.finish(&mut rig).expect("the log has room again");
    rig.settle();
    rig.restart_and_check();
}

/// Blocks at home may show entries above the checkpoint index of an installation. Without these entries the contents are a mixture.
#[test]
fn installed_contents_without_the_entries_that_they_show_are_no_past() {
    let mut lost = 0;
    for seed in 0..6 {
        let (mut rig, mut stream) = filling(seed);
        rig.engine.hold_rounds(true);
        let begun = rig.engine.batches_for_tools().1;
        stream.stage(&mut rig).expect("no crash");
        stream.catch_up(&mut rig).expect("no crash");
        stream.install(&mut rig).expect("no crash");
        (0..3).for_each(|_| step(&mut rig));
        rig.settle();
        let k = rig.engine.replicas[&TARGET].checkpoint.0;
        let shows = Index(stream.installs.expect("asked above"));
        // Batches behind the beginning of the log are lost.
        let all = (0..16).flat_map(|slot| batches_from(&rig, slot));
        let all: Vec<(usize, u64)> = all.map(|(at, header)| (at, header.seq)).collect();
        let gap = all.iter().filter(|(_, seq)| (begun + 1..begun + 3).contains(seq));
        gap.for_each(|(at, _)| hide(&mut rig, *at));
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(rig.seen.mount_failed, None);
        let found = rig.seen.recovered.iter().find(|r| r.identity.replica == TARGET).expect("it comes back");
        assert!(found.failure.is_some());
        let end = found.entries.last().map_or(k, |entry| entry.index);
        let is_mixed = found.checkpoint.index == k && end < shows;
        lost += u64::from(is_mixed);
        assert!(!is_mixed || rig.engine.past_end(TARGET).is_none(), "seed {seed}: {k} to {end} of {shows}");
    }
    assert!(lost > 1, "{lost}: the test lost its teeth");
}

#[test]
fn a_log_that_begins_later_counts_the_entries_that_follow() {
    let room = |rig: &Rig| rig.engine.fill_room(TARGET).expect("it is filled");
    for seed in 0..6 {
        let (mut rig, mut stream) = filling(seed);
        stream.catch_up(&mut rig).expect("no crash");
        let effects = effects(&mut rig, 6);
        rig.extend(TARGET, effects);
        rig.settle();
        let (begins, full) = (stream.begins, room(&rig));
        stream.begin_later(&mut rig).expect("no crash");
        if stream.begins == begins {
            continue;
        }
        let later = room(&rig);
        assert!(later.left > full.left, "{later:?} after {full:?}");
        rig.disk.kill();
        rig.restart_and_check();
        assert_eq!(room(&rig), later, "a restart counts the same");
        assert_eq!(Some(rig.engine.fills_from(TARGET).0), stream.begins);
        Stream::again(&rig, TARGET).finish(&mut rig).expect("no crash");
    }
}
