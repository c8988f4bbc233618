//! Logs that have lost whole batches (R11, ADR 0007): what is certain comes back, what is proved is whole, and a doubt
//! outlives the log that showed it.

use super::damage::{batches_from, config};
use super::rig::{Rig, chunks};
use types::store::{Effect, HardState};
use types::{Index, ReplicaId, SectorRange, Term};

const R: ReplicaId = ReplicaId(100);
const OTHER: ReplicaId = ReplicaId(101);

fn new(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, true, config());
    rig.create(R.0);
    rig.create(OTHER.0);
    rig
}

/// One batch with one entry; gives where it is.
fn one(rig: &mut Rig, replica: ReplicaId) -> usize {
    let from = rig.groups[&replica].last() + 1;
    rig.append(replica, from, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
    rig.turn(16);
    assert_eq!(rig.groups[&replica].durable, from);
    let newest = (0..8).map(|slot| batches_from(rig, slot)).filter(|found| !found.is_empty());
    newest.max_by_key(|found| found[0].1.seq).expect("a batch was written").last().expect("not empty").0
}

fn lose(rig: &mut Rig, at: usize) {
    rig.disk.flip(at + 60);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.mount_failed, None);
}

/// Last index that came back, and whether the replica is in doubt.
fn found(rig: &Rig, replica: ReplicaId) -> (u64, bool) {
    let found = rig.recovered.iter().find(|r| r.identity.replica == replica).expect("it comes back");
    assert_eq!(found.damage, None);
    (found.before.0.0 + found.entries.len() as u64, found.in_doubt)
}

/// The model forgets what is above `last`.
fn forget(rig: &mut Rig, replica: ReplicaId, last: u64) {
    let g = rig.groups.get_mut(&replica).expect("created");
    g.made.truncate(last as usize);
    g.durable = last;
    g.tickets.clear();
    g.term = Term(g.term.0 + 5);
}

fn follow(rig: &mut Rig, replica: ReplicaId, commit: u64) {
    let term = rig.groups[&replica].term;
    rig.engine.follow_in_doubt(replica, HardState { term, vote: Some(replica), commit: Index(commit) });
    let g = rig.groups.get_mut(&replica).expect("created");
    g.hard_state.vote = Some(replica);
}

#[test]
fn of_a_log_with_a_hole_stands_what_came_before_and_what_comes_after_the_doubt_was_told() {
    let mut rig = new(1);
    one(&mut rig, R);
    one(&mut rig, R);
    let third = one(&mut rig, R);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, third);
    for _ in 0..3 {
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(2, true), (0, true)], "entry 4 may have replaced anything");
        rig.disk.power_cut();
        rig.restart();
    }
    // It follows: other entries take the place of what was lost and of what lay behind it.
    forget(&mut rig, R, 2);
    follow(&mut rig, R, 0);
    one(&mut rig, R);
    one(&mut rig, R);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (4, true), "the doubt is not over");
    let terms: Vec<u64> = rig.recovered[0].entries.iter().map(|entry| entry.term.0).collect();
    assert!(terms[2] > terms[1] + 4, "the entries of the later leader: {terms:?}");
    assert_eq!(rig.recovered[0].hard_state.vote, Some(R), "and its vote is given away");
    follow(&mut rig, R, 0);
    rig.engine.doubt_over(R);
    rig.settle();
    rig.disk.power_cut();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(4, false), (0, true)]);
    assert!(rig.engine.lost_records().is_some() && rig.engine.is_in_doubt(), "births may have been in the hole");
}

#[test]
fn a_doubt_and_what_is_certain_outlive_the_segments_that_showed_the_hole() {
    let mut rig = new(2);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    let lost = one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, lost);
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (1, true)]);
    forget(&mut rig, OTHER, 1);
    follow(&mut rig, OTHER, 0);
    rig.engine.doubt_over(OTHER);
    rig.settle();
    // The one that is sure goes on alone until the log has wrapped.
    let waits = rig.groups.remove(&R).expect("created");
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (1, false)]);
    let effect = Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 160) };
    for _ in 0..400 {
        let from = rig.groups[&OTHER].last() + 1;
        rig.append(OTHER, from, vec![effect]);
        rig.turn(8);
        let durable = rig.groups[&OTHER].durable;
        rig.commit(OTHER, durable);
    }
    rig.settle();
    assert!(rig.engine.first_index(OTHER).0 > 100, "the log has wrapped");
    rig.groups.insert(R, waits);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.engine.lost_records(), None, "the hole is gone");
    assert_eq!(found(&rig, R), (1, true), "the doubt is not, and what was certain was carried along");
    assert!(!found(&rig, OTHER).1);
    assert!(rig.engine.is_in_doubt(), "nor is that of births");
}

#[test]
fn what_the_log_tells_anew_behind_a_hole_is_whole_and_nothing_is_in_doubt() {
    for proved in [true, false] {
        let mut rig = new(3);
        one(&mut rig, R);
        one(&mut rig, OTHER);
        let lost = one(&mut rig, R);
        // A segment opens and names all replicas; a checkpoint covers everything; an append follows it, or not.
        let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
        for replica in [R, OTHER] {
            for _ in 0..10 {
                let from = rig.groups[&replica].last() + 1;
                rig.append(replica, from, vec![big]);
                rig.settle();
            }
            let durable = rig.groups[&replica].durable;
            rig.commit(replica, durable);
        }
        rig.round();
        rig.settle();
        assert!(rig.checkpoints == 1 && rig.engine.stats().segments_in_use > 1);
        if proved {
            one(&mut rig, R);
            one(&mut rig, OTHER);
        }
        rig.disk.flip(lost + 60);
        rig.disk.power_cut();
        if proved {
            rig.restart_and_check();
        } else {
            rig.restart();
        }
        assert!(rig.engine.lost_records().is_some());
        assert!(!rig.engine.is_in_doubt(), "a segment was opened behind the hole: it names everybody");
        if !proved {
            let doubts: Vec<bool> = [R, OTHER].map(|replica| found(&rig, replica).1).to_vec();
            assert_eq!(doubts, [false, false], "appends at or below K + 1 stand behind the hole");
        }
    }
}

#[test]
fn a_replica_whose_hole_may_have_replaced_what_is_above_k_is_in_doubt() {
    let mut rig = new(4);
    one(&mut rig, R);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    rig.commit(R, 1);
    let lost = one(&mut rig, R);
    rig.round();
    rig.settle();
    assert_eq!(rig.checkpoints, 1);
    one(&mut rig, R);
    lose(&mut rig, lost);
    // K is 1 and the first append behind the hole is entry 4: entry 2 may be another by then.
    assert_eq!(found(&rig, R), (2, true));
    assert_eq!(rig.recovered[0].hard_state.commit, Index(1));
}
