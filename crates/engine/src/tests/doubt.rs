//! Logs that have lost whole batches (R11, ADR 0007): certain entries come back, fully stated replicas are whole, and a
//! suspect state outlives the log that showed the gap.

use super::damage::{batches_from, config, hide, wrap_log};
use super::rig::Rig;
use crate::testing::{Model, SECTORS, chunks};
use layout::home::Geometry;
use layout::log::{Record, decode_records};
use types::store::{Effect, HardState};
use types::{Index, ReplicaId, SectorRange, Term};

/// Both replicas have a peer elsewhere.
pub(super) const R: ReplicaId = ReplicaId(100);
pub(super) const OTHER: ReplicaId = ReplicaId(101);

pub(super) fn new(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, true, config());
    rig.create(R.0);
    rig.create(OTHER.0);
    rig
}

/// Writes one batch with one entry; returns its offset.
pub(super) fn one(rig: &mut Rig, replica: ReplicaId) -> usize {
    let from = rig.models[&replica].last() + 1;
    rig.append(replica, from, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
    rig.turn(16);
    assert_eq!(rig.models[&replica].durable, from);
    let newest = (0..8).map(|slot| batches_from(rig, slot)).filter(|found| !found.is_empty());
    newest.max_by_key(|found| found[0].1.seq).expect("a batch was written").last().expect("not empty").0
}

fn lose(rig: &mut Rig, at: usize) {
    hide(rig, at);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
}

/// Returns the last index that came back, and whether the replica is suspect.
pub(super) fn found(rig: &Rig, replica: ReplicaId) -> (u64, bool) {
    let found = rig.seen.recovered.iter().find(|r| r.identity.replica == replica).expect("it comes back");
    assert_eq!(found.damage, None);
    (found.before.0.0 + found.entries.len() as u64, found.in_doubt)
}

/// Drops the model's entries above `last`.
pub(super) fn forget(rig: &mut Rig, replica: ReplicaId, last: u64) {
    let g = rig.models.get_mut(&replica).expect("created");
    g.made.truncate(last as usize);
    g.durable = last;
    g.tickets.clear();
    g.term = Term(g.term.0 + 5);
}

fn follow(rig: &mut Rig, replica: ReplicaId, commit: u64) {
    let term = rig.models[&replica].term;
    rig.engine.follow_in_doubt(replica, HardState { term, vote: Some(replica), commit: Index(commit) });
    let g = rig.models.get_mut(&replica).expect("created");
    g.hard_state.vote = Some(replica);
}

#[test]
fn log_with_a_gap_keeps_entries_before_it_and_after_the_suspect_record() {
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
    // The replica follows: other entries replace those in the gap and behind it.
    forget(&mut rig, R, 2);
    follow(&mut rig, R, 0);
    one(&mut rig, R);
    one(&mut rig, R);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (4, true), "the doubt is not over");
    let terms: Vec<u64> = rig.seen.recovered[0].entries.iter().map(|entry| entry.term.0).collect();
    assert!(terms[2] > terms[1] + 4, "the entries of the later leader: {terms:?}");
    assert_eq!(rig.seen.recovered[0].hard_state.vote, Some(R), "and its vote is given away");
    follow(&mut rig, R, 0);
    rig.engine.doubt_over(R);
    rig.settle();
    rig.disk.power_cut();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(4, false), (0, true)]);
    assert!(
        rig.engine.lost_records().is_some() && rig.engine.may_have_been_here(ReplicaId(1000)),
        "create records may be in the gap"
    );
}

#[test]
fn suspect_state_and_kept_entries_outlive_the_segments_of_the_gap() {
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
    // The replica that is not suspect writes alone until the log has wrapped.
    let waits = rig.models.remove(&R).expect("created");
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (1, false)]);
    wrap_log(&mut rig, OTHER);
    rig.models.insert(R, waits);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.engine.lost_records(), None, "the gap is gone");
    assert_eq!(found(&rig, R), (1, true), "the doubt is not, and what was certain was carried along");
    assert!(!found(&rig, OTHER).1);
    assert!(rig.engine.may_have_been_here(ReplicaId(1000)), "nor is that of births");
}

#[test]
fn replica_stated_in_full_behind_a_gap_is_whole_and_not_suspect() {
    for proved in [true, false] {
        let mut rig = new(3);
        one(&mut rig, R);
        one(&mut rig, OTHER);
        let lost = one(&mut rig, R);
        // A segment opens and names all replicas; a checkpoint covers everything; an append follows it, or not.
        let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
        for replica in [R, OTHER] {
            for _ in 0..10 {
                rig.extend(replica, vec![big]);
                rig.settle();
            }
            rig.commit(replica, u64::MAX);
        }
        rig.round();
        rig.settle();
        assert!(rig.seen.checkpoints == 1 && rig.engine.stats().segments_in_use > 1);
        if proved {
            one(&mut rig, R);
            one(&mut rig, OTHER);
        }
        hide(&mut rig, lost);
        rig.disk.power_cut();
        if proved {
            rig.restart_and_check();
        } else {
            rig.restart();
        }
        assert!(rig.engine.lost_records().is_some());
        assert!(!rig.engine.may_have_been_here(ReplicaId(1000)), "a segment was opened behind the gap: it names all");
        if !proved {
            let doubts: Vec<bool> = [R, OTHER].map(|replica| found(&rig, replica).1).to_vec();
            assert_eq!(doubts, [false, false], "appends at or below K + 1 are behind the gap");
        }
    }
}

#[test]
fn replica_is_suspect_when_a_gap_may_have_replaced_entries_above_k() {
    let mut rig = new(4);
    one(&mut rig, R);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    rig.commit(R, 1);
    let lost = one(&mut rig, R);
    rig.round();
    rig.settle();
    assert_eq!(rig.seen.checkpoints, 1);
    one(&mut rig, R);
    lose(&mut rig, lost);
    // The checkpoint index is 1 and the first append behind the gap is entry 4: entry 2 may have been replaced.
    assert_eq!(found(&rig, R), (2, true));
    assert_eq!(rig.seen.recovered[0].hard_state.commit, Index(1));
}

/// Flips a bit in every page of home's tables. All of them belong to `R`: the other replica was in no round.
fn lose_tables(rig: &mut Rig) -> Vec<usize> {
    let home = rig.superblock.home_start as usize;
    let slots = Geometry::of(rig.superblock.home_bytes).expect("it was formatted").slot_count as usize;
    let pages = (home..home + slots * 4096).step_by(4096);
    let stored: Vec<usize> = pages.filter(|at| rig.disk.bytes()[*at..at + 4096].iter().any(|b| *b != 0)).collect();
    assert!(!stored.is_empty(), "a round has written pages");
    stored.iter().for_each(|at| rig.disk.flip(at + 100));
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    stored
}

fn write_and_commit(rig: &mut Rig, count: u64, sectors: u32) {
    for _ in 0..count {
        rig.extend(R, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, sectors) }]);
        rig.turn(8);
        rig.commit(R, u64::MAX);
    }
    rig.settle();
}

/// Streams everything that `new` holds to the replica.
fn stream(rig: &mut Rig, new: &Model) {
    for chunk in chunks() {
        let range = SectorRange::new(0, SECTORS / 8 * 8);
        assert!(rig.stage(R, chunk, range, &new.expected(chunk, range)), "there is room");
        rig.settle();
    }
    rig.engine.install(new.decision());
    rig.settle();
    let installed = rig.seen.installed.pop().expect("it is installed");
    assert!(installed.in_doubt, "until it reaches as far as the others");
    rig.models.insert(R, new.clone());
    rig.check_recovered(installed, false);
    rig.check_all_sectors();
}

#[test]
fn lost_home_page_costs_data_at_home_and_a_log_from_entry_1_restores_it() {
    let mut rig = new(5);
    write_and_commit(&mut rig, 3, 8);
    rig.round();
    rig.settle();
    assert_eq!(rig.seen.checkpoints, 1);
    one(&mut rig, R);
    lose_tables(&mut rig);
    for _ in 0..2 {
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(4, true), (0, false)], "its log is whole");
        assert_eq!(rig.seen.recovered[0].checkpoint.index, Index(0), "and nothing counts that is at home");
        rig.disk.power_cut();
        rig.restart();
    }
    assert_eq!(rig.seen.damaged, []);
    let commit = rig.seen.recovered[0].hard_state.commit.0;
    follow(&mut rig, R, commit);
    rig.engine.doubt_over(R);
    let recovered = std::mem::take(&mut rig.seen.recovered);
    rig.models.get_mut(&R).expect("created").hard_state.vote = Some(R);
    recovered.into_iter().for_each(|r| rig.check_recovered(r, false));
    rig.check_all_sectors();
    rig.round();
    rig.settle();
    rig.engine.audit().expect("what home held of it is free");
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn lost_home_page_leaves_the_log_whole_until_the_replica_follows() {
    let mut rig = new(15);
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    write_and_commit(&mut rig, 400, 160);
    one(&mut rig, R);
    let (last, term) = (rig.models[&R].last(), rig.models[&R].term);
    let pages = lose_tables(&mut rig);
    for _ in 0..3 {
        assert_eq!((found(&rig, R), rig.engine.kept_log_end(R)), ((0, true), Some((term, Index(last)))));
        let waits = rig.models.remove(&R).expect("created");
        one(&mut rig, OTHER);
        rig.round();
        rig.settle();
        rig.models.insert(R, waits);
        rig.disk.power_cut();
        rig.restart();
    }
    // The pages can be read again: nothing was given up.
    pages.into_iter().for_each(|at| rig.disk.flip(at + 100));
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!((rig.models[&R].last(), rig.engine.kept_log_end(R)), (last, None));
}

#[test]
fn suspect_replica_with_a_lost_home_page_is_rebuilt_by_a_stream() {
    for forgotten in [false, true] {
        let mut rig = new(6);
        rig.config.round_pressure = 0.2;
        rig.disk.kill();
        rig.restart();
        write_and_commit(&mut rig, 400, 160);
        assert!(rig.engine.first_index(R).0 > 100 && rig.seen.checkpoints > 0, "the log has wrapped");
        let mut whole = rig.models[&R].clone();
        lose_tables(&mut rig);
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(0, true), (0, false)]);
        assert_eq!(
            (rig.seen.recovered[0].hard_state.commit, rig.seen.recovered[0].checkpoint.index),
            (Index(0), Index(0))
        );
        rig.engine.audit().expect("home keeps what it has until the peers are known");
        forget(&mut rig, R, 0);
        let g = rig.models.get_mut(&R).expect("created");
        g.sectors.clear();
        (g.applied, g.hard_state.commit, g.durable_commit) = (0, Index(0), 0);
        follow(&mut rig, R, 0);
        if forgotten {
            rig.round();
            rig.settle();
            rig.disk.power_cut();
            rig.restart();
            assert_eq!(found(&rig, R), (0, true), "no checkpoint names what it was, and the doubt stays");
            follow(&mut rig, R, 0);
        }
        rig.engine.audit().expect("the books balance");
        let term = rig.models[&R].term;
        whole.term = term;
        whole.hard_state.term = term;
        whole.hard_state.vote = Some(R);
        stream(&mut rig, &whole);
        rig.disk.power_cut();
        rig.restart();
        let last = whole.applied;
        assert_eq!((found(&rig, R), rig.seen.recovered[0].checkpoint.index), ((last, true), Index(last)));
        follow(&mut rig, R, last);
        rig.engine.doubt_over(R);
        rig.settle();
        rig.disk.power_cut();
        rig.restart_and_check();
        rig.engine.audit().expect("the books balance");
        assert_eq!((rig.seen.recovered.len(), &rig.seen.damaged[..]), (0, &[][..]));
    }
}

#[test]
fn log_without_its_only_opening_keeps_the_batches_behind_it() {
    let mut rig = new(5);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    let start = rig.superblock.log_start as usize;
    hide(&mut rig, start);
    for _ in 0..2 {
        rig.disk.power_cut();
        rig.restart();
        assert_eq!(rig.seen.mount_failed, None);
        let all = [found(&rig, R), found(&rig, OTHER)];
        assert_eq!(all.map(|(last, _)| last), [1, 1], "born and written behind the opening");
        assert!(rig.engine.may_have_been_here(ReplicaId(1000)), "others may have been born in it");
    }
}

#[test]
fn replica_created_after_lost_create_records_fails_unless_its_id_is_new() {
    let mut rig = new(6);
    let lost = one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, lost);
    let damage = |rig: &Rig, id: u64| {
        let all = &rig.seen.recovered;
        all.iter().find(|r| r.identity.replica == ReplicaId(id)).expect("it is there").damage.clone()
    };
    rig.create(102);
    rig.engine.set_next_replica(ReplicaId(200));
    rig.engine.set_next_replica(ReplicaId(100));
    rig.create(199);
    rig.create(200);
    rig.settle();
    for _ in 0..2 {
        rig.disk.power_cut();
        rig.restart();
        for id in [102, 199] {
            assert_eq!(damage(&rig, id).as_deref(), Some(crate::engine::CREATE_LOST), "it may have been here before");
        }
        assert_eq!(damage(&rig, 200), None, "its id was drawn after the mount that found the gap");
        assert!(rig.engine.may_have_been_here(ReplicaId(199)) && !rig.engine.may_have_been_here(ReplicaId(200)));
        rig.engine.set_next_replica(ReplicaId(300));
    }
}

/// Returns the offset of the batch that makes `R` suspect.
fn told(rig: &Rig) -> usize {
    let tells = |(at, header): &(usize, layout::log::BatchHeader)| {
        let bytes = &rig.disk.bytes()[*at..*at + header.header_len as usize];
        let records = header.records(bytes).and_then(|r| decode_records(r, header.record_count).ok());
        let is_told = |r: &Record<'_>| matches!(r, Record::Doubt { replica: R, .. } | Record::InDoubt { replica: R });
        records.expect("it is whole").iter().any(is_told)
    };
    let all = (0..8).flat_map(|slot| batches_from(rig, slot));
    all.filter(tells).map(|(at, _)| at).last().expect("it was told")
}

#[test]
fn second_gap_that_may_hide_the_suspect_record_keeps_the_replica_suspect() {
    let mut rig = new(7);
    one(&mut rig, R);
    let lost = one(&mut rig, R);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, lost);
    assert_eq!(found(&rig, R), (1, true));
    let told = told(&rig);
    forget(&mut rig, R, 1);
    follow(&mut rig, R, 0);
    one(&mut rig, R);
    rig.commit(R, 2);
    rig.round();
    rig.settle();
    assert_eq!(rig.seen.checkpoints, 1);
    one(&mut rig, R);
    // Hard state, a checkpoint and an append follow: all that a proof takes, but from a process with a suspect replica.
    lose(&mut rig, told);
    assert!(found(&rig, R).1, "it may lack entries acknowledged before the first gap");
}

#[test]
fn suspect_state_of_a_running_replica_outlives_the_page_that_recorded_it() {
    let mut rig = new(14);
    for _ in 0..3 {
        one(&mut rig, R);
    }
    rig.commit(R, 3);
    for _ in 0..2 {
        one(&mut rig, R);
    }
    one(&mut rig, OTHER);
    // A payload is lost, and no peer has the entry in its log any more.
    rig.engine.cut_back(R, Index(4));
    rig.settle();
    forget(&mut rig, R, 3);
    let told = told(&rig);
    let (_, hard_state, _) = rig.seen.cut_back.pop().expect("it was cut back");
    follow(&mut rig, R, hard_state.commit.0);
    rig.settle();
    rig.round();
    rig.settle();
    assert_eq!(rig.seen.checkpoints, 1);
    one(&mut rig, R);
    // Hard state, a checkpoint and an append at K + 1 follow in the same life, but the replica still lacks entries.
    lose(&mut rig, told);
    assert!(found(&rig, R).1, "it acknowledged entries that it has lost");
}

#[test]
fn rot_before_a_cleared_suspect_state_makes_the_replica_suspect_again() {
    let mut rig = new(12);
    let first = one(&mut rig, R);
    one(&mut rig, R);
    let third = one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, third);
    assert_eq!(found(&rig, R), (2, true));
    forget(&mut rig, R, 2);
    follow(&mut rig, R, 0);
    one(&mut rig, R);
    rig.engine.doubt_over(R);
    rig.settle();
    lose(&mut rig, first);
    assert_eq!(found(&rig, R), (0, true), "what is at home stands, and its peers have the rest");
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (0, true), "it was said");
}

#[test]
fn rot_that_leaves_only_the_commit_index_makes_the_replica_suspect_again() {
    let mut rig = new(13);
    let [first, second] = [one(&mut rig, R), one(&mut rig, R)];
    rig.commit(R, 2);
    rig.append(R, 3, Vec::new());
    rig.settle();
    let third = one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, third);
    assert_eq!(found(&rig, R), (2, true));
    forget(&mut rig, R, 2);
    follow(&mut rig, R, 2);
    rig.engine.doubt_over(R);
    rig.settle();
    hide(&mut rig, first);
    lose(&mut rig, second);
    assert_eq!(found(&rig, R), (0, true), "what is at home stands, and its peers have the rest");
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (0, true), "it was said");
}

#[test]
fn rot_below_a_cleared_suspect_state_hides_no_acknowledged_entry() {
    let mut rig = new(14);
    one(&mut rig, R);
    let [second, third] = [one(&mut rig, R), one(&mut rig, R)];
    one(&mut rig, OTHER);
    lose(&mut rig, third);
    assert_eq!(found(&rig, R), (2, true));
    forget(&mut rig, R, 2);
    follow(&mut rig, R, 0);
    rig.engine.doubt_over(R);
    rig.settle();
    lose(&mut rig, second);
    assert_eq!(found(&rig, R), (1, true), "it acknowledged the second entry");
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(found(&rig, R), (1, true), "it was said");
}

#[test]
fn orphaned_replica_is_created_again_as_failed_and_its_home_goes_with_it() {
    let mut rig = Rig::new(21, true, config());
    rig.create(R.0);
    let birth = batches_from(&rig, 0).last().expect("it was born").0;
    rig.create(OTHER.0);
    write_and_commit(&mut rig, 3, 8);
    rig.round();
    rig.settle();
    let used = rig.engine.stats().home.used_bytes;
    lose(&mut rig, birth);
    assert!(rig.seen.recovered.iter().all(|r| r.identity.replica != R), "the log does not identify it");
    rig.models.remove(&R);
    rig.create(R.0);
    for _ in 0..2 {
        rig.engine.audit().expect("home's books balance");
        assert!(rig.engine.damage(R).is_some(), "it may have voted");
        assert_eq!(rig.engine.stats().home.used_bytes, used, "its contents stay");
        rig.settle();
        rig.disk.power_cut();
        rig.restart();
    }
    rig.engine.destroy_replica(R);
    rig.settle();
    rig.round();
    rig.settle();
    rig.engine.audit().expect("home's books balance");
    assert!(rig.engine.stats().home.used_bytes < used, "until it is destroyed");
}

#[test]
fn restored_device_makes_replicas_suspect_and_damages_a_lone_one() {
    let mut rig = new(9);
    rig.create(1);
    one(&mut rig, R);
    rig.settle();
    let older = rig.disk.copy();
    let at_copy = rig.engine.position();
    one(&mut rig, R);
    one(&mut rig, OTHER);
    rig.settle();
    assert!(rig.engine.position().2 > at_copy.2, "the log goes on");
    rig.disk = older;
    rig.config.after_restore = true;
    forget(&mut rig, R, 1);
    forget(&mut rig, OTHER, 0);
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    assert_eq!(rig.engine.position().0, at_copy.0 + 1);
    rig.config.after_restore = false;
    for _ in 0..3 {
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (0, true)]);
        let lone = rig.seen.recovered.iter().find(|r| r.identity.replica == ReplicaId(1)).expect("it is there");
        assert!(lone.damage.as_deref().is_some_and(|why| why.contains("older copy")), "{:?}", lone.damage);
        assert!(rig.engine.may_have_been_here(ReplicaId(1000)), "births may be missing, too");
        rig.settle();
        assert!(rig.engine.is_log_quiet());
        rig.disk.power_cut();
        rig.restart();
    }
    follow(&mut rig, R, 0);
    rig.engine.doubt_over(R);
    rig.settle();
    rig.disk.power_cut();
    rig.restart();
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, false), (0, true)]);
}
