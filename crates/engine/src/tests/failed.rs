//! Failed replicas (R4, R11, ADR 0023): a log gap, a lost page of home and a restored device fail a replica for good, and its past
//! can be read until the log needs the room.

use super::damage::{batches_from, config, hide, wrap_log};
use super::rig::Rig;
use crate::testing::chunks;
use layout::home::Geometry;
use layout::log::{Record, decode_records};
use types::store::{Crcs, Effect, Failure, HardState, Persist};
use types::{Entry, EntryKind, Index, IoBuf, ReplicaId, SectorRange, Term};

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

/// Returns the last index that came back, and whether the replica has failed.
pub(super) fn found(rig: &Rig, replica: ReplicaId) -> (u64, bool) {
    let found = rig.seen.recovered.iter().find(|r| r.identity.replica == replica).expect("it comes back");
    (found.before.0.0 + found.entries.len() as u64, found.failure.is_some())
}

fn failure(rig: &Rig, replica: ReplicaId) -> Option<Failure> {
    let found = rig.seen.recovered.iter().find(|r| r.identity.replica == replica).expect("it comes back");
    assert_eq!(found.failure, rig.engine.failure(replica));
    found.failure.clone()
}

fn is_past(rig: &Rig, replica: ReplicaId) -> bool {
    failure(rig, replica).expect("it has failed").is_past
}

fn again(rig: &mut Rig) {
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
}

/// Drops the model's entries above `last`.
pub(super) fn forget(rig: &mut Rig, replica: ReplicaId, last: u64) {
    let g = rig.models.get_mut(&replica).expect("created");
    g.made.truncate(last as usize);
    g.durable = last;
    g.durable_commit = g.durable_commit.min(last);
    g.tickets.clear();
    g.term = Term(g.term.0 + 5);
}

/// Creates a replica whose id was drawn after the mount that found the gap.
pub(super) fn create_new(rig: &mut Rig) -> ReplicaId {
    rig.engine.set_next_replica(ReplicaId(200));
    rig.create(200);
    rig.settle();
    ReplicaId(200)
}

#[test]
fn log_gap_fails_every_replica_from_before_it_and_keeps_their_entries() {
    let mut rig = new(1);
    one(&mut rig, R);
    one(&mut rig, R);
    let third = one(&mut rig, R);
    one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, third);
    for _ in 0..3 {
        assert_eq!([found(&rig, R), found(&rig, OTHER)], [(2, true), (0, true)], "entry 4 may have replaced anything");
        assert!(is_past(&rig, R) && is_past(&rig, OTHER));
        assert_eq!(rig.engine.past_end(R).map(|(_, index)| index), Some(Index(2)));
        again(&mut rig);
    }
    let id = create_new(&mut rig);
    one(&mut rig, id);
    again(&mut rig);
    assert_eq!([found(&rig, R), found(&rig, OTHER), found(&rig, id)], [(2, true), (0, true), (1, false)]);
    assert!(rig.engine.lost_records().is_some() && rig.engine.past_end(id).is_none());
}

#[test]
fn failure_and_past_outlive_the_segments_of_the_gap() {
    let mut rig = new(2);
    one(&mut rig, R);
    let lost = one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, lost);
    assert_eq!([found(&rig, R), found(&rig, OTHER)], [(1, true), (0, true)]);
    let failure_before = failure(&rig, R);
    let id = create_new(&mut rig);
    // The new replica writes alone until the log has wrapped.
    let old = [R, OTHER].map(|id| rig.models.remove(&id).expect("created"));
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    wrap_log(&mut rig, id);
    rig.models.extend([(R, old[0].clone()), (OTHER, old[1].clone())]);
    again(&mut rig);
    assert_eq!(rig.engine.lost_records(), None, "the gap is gone");
    assert_eq!(found(&rig, R), (1, true), "its past was carried along");
    assert_eq!(failure(&rig, R), failure_before);
    assert!(!found(&rig, id).1);
    assert!(rig.engine.may_have_been_here(ReplicaId(199)), "create records are lost still");
}

/// Revives `R` and appends the forced step with two older entries of the model's; returns the last index.
fn revive(rig: &mut Rig) -> u64 {
    let revived = rig.engine.revive(R).expect("it has a past");
    let last = revived.before.0.0 + revived.entries.len() as u64;
    assert_eq!((revived.failure, revived.lost.len(), revived.identity.replica), (None, 0, R));
    forget(rig, R, last);
    let g = rig.models.get_mut(&R).expect("created");
    (g.hard_state, g.damaged) = (revived.hard_state, false);
    let index = Index(last + 1);
    let entry = Entry {
        term: g.term,
        index,
        kind: EntryKind::Normal,
        descriptor: bytes::Bytes::new(),
        payload: IoBuf::EMPTY,
        crcs: Crcs::default(),
    };
    let hard_state = Some(HardState { term: g.term, vote: Some(R), commit: index });
    rig.engine.append_and_revive(Persist { replica: R, ticket: 0, hard_state, entries: vec![entry] });
    last + 1
}

#[test]
fn revived_replica_is_whole_once_the_forced_step_is_durable() {
    let (mut whole, mut failed) = (0, 0);
    for seed in 0..16 {
        let mut rig = new(seed);
        one(&mut rig, R);
        one(&mut rig, R);
        let lost = one(&mut rig, R);
        one(&mut rig, R);
        one(&mut rig, OTHER);
        lose(&mut rig, lost);
        assert!(rig.engine.revive(R).is_some() && rig.engine.revive(R).is_none());
        rig.engine.fail_again(R);
        assert_eq!(rig.engine.past_end(R).map(|(_, index)| index), Some(Index(2)));
        let last = revive(&mut rig);
        rig.turn(seed % 2);
        for _ in 0..2 {
            again(&mut rig);
            let now = found(&rig, R);
            assert!(now == (last, false) || now == (2, true), "{now:?}");
            assert_eq!(rig.seen.recovered[0].hard_state.commit == Index(last), !now.1, "one batch has both");
            assert_eq!(found(&rig, OTHER), (0, true));
        }
        *(if found(&rig, R).1 { &mut failed } else { &mut whole }) += 1;
    }
    assert!(whole > 3 && failed > 1, "{whole} whole, {failed} failed");
}

#[test]
fn past_stays_the_same_when_the_gap_is_freed_before_appends_behind_it() {
    let mut rig = new(17);
    (0..3).for_each(|_| _ = one(&mut rig, R));
    // A later leader replaces the last two entries: the first of its appends is lost, and the second is some segments behind it.
    rig.models.get_mut(&R).expect("created").term.0 += 1;
    rig.append(R, 2, vec![Effect::Write { chunk: chunks()[0], range: SectorRange::new(0, 8) }]);
    rig.turn(16);
    let newest = (0..8).map(|slot| batches_from(&rig, slot)).filter(|found| !found.is_empty());
    let lost = newest.max_by_key(|found| found[0].1.seq).expect("written").last().expect("not empty").0;
    let big = Effect::Write { chunk: chunks()[1], range: SectorRange::new(0, 160) };
    while rig.engine.stats().segments_in_use < 5 {
        rig.extend(OTHER, vec![big]);
        rig.turn(8);
    }
    one(&mut rig, R);
    one(&mut rig, OTHER);
    lose(&mut rig, lost);
    let past = rig.engine.past_end(R);
    assert!(past.is_some_and(|(_, index)| index == Index(3)), "{past:?}");
    let (failed, id) = (failure(&rig, R), create_new(&mut rig));
    let mut probe = Rig::new(5, true, config());
    let mut without = 0;
    for _ in 0..80 {
        for _ in 0..4 {
            rig.extend(id, vec![big]);
            rig.turn(8);
            rig.commit(id, u64::MAX);
        }
        probe.disk = rig.disk.copy();
        again(&mut probe);
        assert_eq!((probe.engine.past_end(R), &failure(&probe, R)), (past, &failed));
        without += u32::from(probe.engine.lost_records().is_none());
    }
    assert!(without > 10, "the gap was freed, and then the appends behind it");
}

/// Returns the offset of the last batch with a record of this kind.
fn told(rig: &Rig, is: impl Fn(&Record<'_>) -> bool) -> usize {
    let tells = |(at, header): &(usize, layout::log::BatchHeader)| {
        let bytes = &rig.disk.bytes()[*at..*at + header.header_len as usize];
        let records = header.records(bytes).and_then(|r| decode_records(r, header.record_count).ok());
        records.expect("it is whole").iter().any(&is)
    };
    let all = (0..8).flat_map(|slot| batches_from(rig, slot));
    all.filter(tells).map(|(at, _)| at).last().expect("it was told")
}

#[test]
fn second_gap_that_hides_the_failure_or_its_end_leaves_the_replica_failed() {
    for revived in [false, true] {
        let mut rig = new(8);
        one(&mut rig, R);
        let lost = one(&mut rig, R);
        one(&mut rig, R);
        one(&mut rig, OTHER);
        lose(&mut rig, lost);
        let hidden = match revived {
            false => told(&rig, |r| matches!(r, Record::Past { replica: R, .. })),
            true => {
                revive(&mut rig);
                rig.settle();
                again(&mut rig);
                assert_eq!(found(&rig, R), (2, false), "the forced step ended the failure");
                told(&rig, |r| matches!(r, Record::Revived { replica: R }))
            }
        };
        let id = create_new(&mut rig);
        one(&mut rig, id);
        lose(&mut rig, hidden);
        assert_eq!(found(&rig, R), (1, true), "revived: {revived}");
        assert!(is_past(&rig, R));
    }
}

/// Flips a bit in every page of home's tables. All of them belong to `R`: the other replica was in no round.
fn lose_tables(rig: &mut Rig) -> Vec<usize> {
    let home = rig.superblock.home_start as usize;
    let slots = Geometry::of(rig.superblock.home_bytes).expect("it was formatted").slot_count as usize;
    let pages = (home..home + slots * 4096).step_by(4096);
    let stored: Vec<usize> = pages.filter(|at| rig.disk.bytes()[*at..at + 4096].iter().any(|b| *b != 0)).collect();
    assert!(!stored.is_empty(), "a round has written pages");
    stored.iter().for_each(|at| rig.disk.flip(at + 100));
    again(rig);
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

#[test]
fn lost_home_page_fails_a_replica_even_if_it_can_be_read_again() {
    let mut rig = new(15);
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    write_and_commit(&mut rig, 400, 160);
    one(&mut rig, R);
    let entry = rig.models[&R].entry(rig.models[&R].last());
    let pages = lose_tables(&mut rig);
    assert!(
        matches!(rig.engine.holding(R, entry.index, entry.term), types::store::Holding::Payload(..)),
        "for its peers"
    );
    for _ in 0..3 {
        assert_eq!([found(&rig, R), found(&rig, OTHER)].map(|(_, failed)| failed), [true, false]);
        assert!(!is_past(&rig, R) && rig.engine.revive(R).is_none() && rig.engine.past_end(R).is_none());
        let waits = rig.models.remove(&R).expect("created");
        one(&mut rig, OTHER);
        rig.round();
        rig.settle();
        rig.models.insert(R, waits);
        again(&mut rig);
    }
    pages.into_iter().for_each(|at| rig.disk.flip(at + 100));
    again(&mut rig);
    assert!(found(&rig, R).1 && !is_past(&rig, R), "it may be read, and is not trusted");
    rig.engine.audit().expect("the books balance");
}

#[test]
fn home_page_that_can_be_read_again_takes_no_slot_from_another_replica() {
    let mut rig = new(16);
    rig.config.round_pressure = 0.2;
    rig.disk.kill();
    rig.restart();
    write_and_commit(&mut rig, 400, 160);
    one(&mut rig, R);
    let pages = lose_tables(&mut rig);
    // The pages can be read again from here on.
    pages.into_iter().for_each(|at| rig.disk.flip(at + 100));
    rig.models.remove(&R).expect("created");
    wrap_log(&mut rig, OTHER);
    wrap_log(&mut rig, OTHER);
    again(&mut rig);
    assert_eq!((found(&rig, R).1, failure(&rig, OTHER)), (true, None), "its pages have new owners");
    assert!(!is_past(&rig, R));
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
    let failure = |rig: &Rig, id: u64| {
        let all = &rig.seen.recovered;
        all.iter().find(|r| r.identity.replica == ReplicaId(id)).expect("it is there").failure.clone()
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
            let reason = failure(&rig, id).map(|failure| failure.reason);
            assert_eq!(reason.as_deref(), Some(crate::engine::CREATE_LOST), "it may have been here before");
        }
        assert_eq!(failure(&rig, 200), None, "its id was drawn after the mount that found the gap");
        assert!(rig.engine.may_have_been_here(ReplicaId(199)) && !rig.engine.may_have_been_here(ReplicaId(200)));
        rig.engine.set_next_replica(ReplicaId(300));
    }
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
        assert!(rig.engine.failure(R).is_some(), "it may have voted");
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
fn restored_device_fails_all_replicas_and_each_keeps_its_past() {
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
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    assert_eq!(rig.engine.position().0, at_copy.0 + 1);
    rig.config.after_restore = false;
    for _ in 0..3 {
        assert_eq!([found(&rig, R), found(&rig, OTHER), found(&rig, ReplicaId(1))], [(1, true), (0, true), (0, true)]);
        let reason = failure(&rig, ReplicaId(1)).expect("it has failed").reason;
        assert!(reason.contains("older copy") && is_past(&rig, ReplicaId(1)), "{reason}");
        assert!(rig.engine.may_have_been_here(ReplicaId(1000)), "create records may be missing, too");
        rig.settle();
        assert!(rig.engine.is_log_quiet());
        again(&mut rig);
    }
}
