//! Snapshots of records that are older than their PGs: a found cut ends, and a recovery finds what the records lack.

use super::flatten::{cancel, cloned, flatten};
use super::past::{finish, move_watermarks};
use super::snapshots::{check_ready, check_rest, create, deliver_up_to, held, is_cut, is_release, list, made, remove};
use super::world::{World, opened};
use super::*;
use crate::admin::{FoundSnapshot, RecoverAsk, VolumeClone};
use crate::found::{Found, Table};
use types::GenerationId;
use types::control::{AttachedVolume, HeldSnapshot};

/// The model of the PGs panics when the volume comes to a PG with a head below a number that an order has named.
#[test]
fn older_records_give_a_volume_a_head_above_its_lost_snapshots() {
    let (mut world, [a, _]) = held();
    let copy = world.store.clone();
    made(world.admin(create(&["p/a@s"])));
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    let before = world.control.records().counters.next_volume;
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    world.settle();
    finish(&mut world).expect("finished");
    let held = opened(world.ask(2, open("p/a", true, false)));
    world.ask(2, segments(&held, 3..8, true));
    let records = world.control.records();
    let heads: BTreeSet<GenerationId> = records.volumes.values().map(|v| v.head()).collect();
    assert!(heads.len() == 2 && heads.iter().all(|head| head.0 > before), "each its own: {heads:?}");
    assert!(heads.iter().all(|head| head.0 < records.counters.next_volume));
    assert_eq!(held.volume, a.volume);
    // The next cut is above them.
    made(world.admin(create(&["p/a@s"])));
    check_ready(&world);
}

/// A backup that was made during a cut holds its intent; the cut has ended since.
#[test]
fn older_records_of_a_cut_that_ended_keep_its_snapshot() {
    for ends in [true, false] {
        let (mut world, _) = held();
        let token = world.fresh_token();
        world.control.handle_admin(token, create(&["p/a@s", "p/b@s"]));
        deliver_up_to(&mut world, |down| if ends { is_release(down) } else { is_cut(down) });
        let copy = world.store.clone();
        assert!(copy.keys().any(|key| key.starts_with("cut/")));
        if !ends {
            world.queue.clear();
        }
        world.hold = false;
        world.settle();
        if ends {
            made(world.admin_answers.remove(&token).expect("it is made"));
        } else {
            (0..60).for_each(|_| world.pass(Duration::from_millis(50)));
            list(&mut world, "p").iter().for_each(|s| drop(world.admin(remove(&s.name))));
        }
        world.lead_on(copy);
        world.connect_all();
        assert_eq!(world.control.standing(), Standing::Behind);
        assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
        world.seconds(12, &[]);
        finish(&mut world).expect("finished");
        world.seconds(2, &[]);
        check_rest(&world);
        assert_eq!(list(&mut world, "p").len(), if ends { 2 } else { 0 });
    }
}

/// Returns the tables that leaders show of snapshots.
fn tables(world: &World) -> Vec<Table> {
    let table = |pg: PgId| {
        let (volumes, snapshots) = world.cut_pgs.contents(pg);
        let attached = volumes.into_iter().map(|(volume, (first, last))| {
            let epoch = world.attached[&(pg, volume)].epoch;
            AttachedVolume { volume, epoch, chunk_count: 8 * 64, len_epoch: 0, first, last }
        });
        let held = |(volume, snapshot)| HeldSnapshot { volume, snapshot, created_ms: 77, chunk_count: 8 * 64 };
        let snapshots = snapshots.into_iter().map(held).collect();
        Table { pg, leading: true, chunks: Vec::new(), attached: attached.collect(), snapshots }
    };
    world.cut_pgs.pgs().map(table).collect()
}

/// Recovers records that went back in time to this copy. Returns the snapshots that differed.
fn recover(world: &mut World, copy: BTreeMap<String, (Vec<u8>, u64)>) -> Vec<FoundSnapshot> {
    world.lead_on(copy);
    world.connect_all();
    assert!(move_watermarks(world, false, &[]).expect("moved").moved);
    world.seconds(12, &[]);
    let found = Found::compare(world.control.records(), &tables(world), &BTreeSet::new()).snapshots;
    for some in found.chunks(SEGMENTS_PER_ASK_MAX) {
        let ask = RecoverAsk { standing: "sound".into(), snapshots: some.to_vec(), ..RecoverAsk::default() };
        world.admin(AdminAsk::MetaRecover(ask)).expect("put back");
    }
    finish(world).expect("finished");
    world.seconds(2, &[]);
    found
}

#[test]
fn recovery_finds_snapshots_that_the_records_lack() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@old"])));
    let copy = world.store.clone();
    let names: Vec<String> = (0..40).map(|n| format!("p/a@s{n}")).collect();
    for name in &names {
        made(world.admin(create(&[name])));
    }
    assert!(matches!(world.admin(remove("p/a@old")), Ok(AdminAnswer::Done)));
    let found = recover(&mut world, copy);
    assert_eq!(found.iter().filter(|found| found.ended).count(), 1, "the copy has one that was deleted since");
    assert_eq!(found.len(), 41);
    let views = list(&mut world, "p/a");
    let first = &views[0];
    assert_eq!((views.len(), first.name.clone()), (40, format!("p/a@recovered-{}", first.snapshot.0)));
    assert_eq!((first.state.as_str(), first.len_bytes, first.created_ms), ("ready", 8 * SEGMENT, 77));
    check_rest(&world);
    assert_eq!(opened(world.ask(2, open(&first.name, false, false))).volume, a.volume);
    assert!(matches!(world.admin(remove(&first.name)), Ok(AdminAnswer::Done)));
    check_rest(&world);
}

#[test]
fn recovery_deletes_what_is_left_of_a_cut_that_was_given_up() {
    let (mut world, [a, b]) = held();
    let copy = world.store.clone();
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    deliver_up_to(&mut world, is_release);
    // One PG goes on, and the others take the cut back.
    let (stream, down) = world.queue.pop_front().expect("a release");
    world.arrive(stream, down);
    world.queue.clear();
    world.cut_pgs.lapse(world.now.mono + Duration::from_millis(100));
    world.hold = false;
    let found = recover(&mut world, copy);
    assert!(found.len() == 1 && found[0].ended && found[0].volume == a.volume, "{found:?}");
    assert!(list(&mut world, "p").is_empty());
    check_rest(&world);
    assert!(a.volume != b.volume);
}

/// Returns a world whose records are of the middle of a cut of p/a, which has ended since. One of its PGs has no leader.
fn in_a_cut_that_ended() -> (World, Opened) {
    let (mut world, [a, _]) = held();
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    deliver_up_to(&mut world, is_release);
    let copy = world.store.clone();
    world.hold = false;
    world.settle();
    made(world.admin_answers.remove(&token).expect("it is made"));
    world.leaderless = BTreeSet::from([world.control.records().segments[&(a.volume, SegmentIndex(1))].pg]);
    world.lead_on(copy);
    world.connect_all();
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    (world, a)
}

/// After a disaster the PGs of a cut may come late: what they say counts, however long it takes.
#[test]
fn cut_of_older_records_waits_for_its_pgs_in_a_recovery() {
    let (mut world, _) = in_a_cut_that_ended();
    world.seconds(60, &[]);
    assert_eq!(list(&mut world, "p/a")[0].state, "cutting", "it is not given up");
    world.leaderless.clear();
    world.seconds(2, &[]);
    assert_eq!(list(&mut world, "p/a")[0].state, "ready");
    finish(&mut world).expect("finished");
    check_rest(&world);
}

#[test]
fn cut_of_older_records_ends_without_a_pg_that_is_gone() {
    let (mut world, a) = in_a_cut_that_ended();
    finish(&mut world).expect("finished");
    assert!(world.control.holds(a.volume));
    world.seconds(60, &[]);
    assert!(!world.control.holds(a.volume), "the cut keeps the volume from its other PGs");
    assert!(list(&mut world, "p/a").is_empty());
    let told: Vec<&Event> = world.events.iter().filter(|e| e.kind == "snapshot.failed").collect();
    assert_eq!(told.iter().map(|e| e.subject.as_str()).collect::<Vec<_>>(), ["volume p/a"]);
    assert!(told[0].text.starts_with("snapshot p/a@s was given up: PG "), "{}", told[0].text);
    world.leaderless.clear();
    world.seconds(2, &[]);
    check_rest(&world);
}

/// Returns a world in which all PGs of p/a but one have turned back to a snapshot.
fn half_turned() -> (World, Opened, Vec<PgId>, Token) {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let pgs: Vec<PgId> = world.control.records().segments_of(a.volume).flat_map(|s| s.pgs()).collect();
    world.leaderless = BTreeSet::from([pgs[1]]);
    let token = world.fresh_token();
    let force = true;
    world.control.handle_admin(token, AdminAsk::SnapshotRollback { name: "p/a@s".into(), force });
    world.seconds(1, &[]);
    (world, a, pgs, token)
}

/// Returns how often each of these PGs has turned the volume back.
fn turned(world: &World, pgs: &[PgId], volume: VolumeId) -> Vec<usize> {
    pgs.iter().map(|pg| world.cut_pgs.bases(*pg, volume).len()).collect()
}

#[test]
fn older_records_of_a_rollback_that_ended_do_not_repeat_it() {
    let (mut world, a, pgs, token) = half_turned();
    let copy = world.store.clone();
    world.leaderless.clear();
    world.seconds(2, &[]);
    world.admin_answers.remove(&token).expect("an answer").expect("it is done");
    opened(world.ask(2, open("p/a", true, false)));
    let before = turned(&world, &pgs, a.volume);
    assert_eq!(before, vec![1; pgs.len()]);
    recover(&mut world, copy);
    finish(&mut world).expect("finished");
    world.seconds(5, &[]);
    assert!(world.control.records().volumes[&a.volume].rollback.is_none());
    assert_eq!(turned(&world, &pgs, a.volume), before, "what was written since would be lost");
    opened(world.ask(3, open("p/a", true, true)));
    check_rest(&world);
}

#[test]
fn recovery_carries_a_rollback_out_that_had_not_ended() {
    let (mut world, a, pgs, _) = half_turned();
    let copy = world.store.clone();
    world.make_volume("p/later", SEGMENT);
    world.leaderless.clear();
    assert_eq!(turned(&world, &pgs, a.volume).iter().sum::<usize>(), pgs.len() - 1);
    recover(&mut world, copy);
    finish(&mut world).expect("finished");
    world.seconds(5, &[]);
    assert_eq!(turned(&world, &pgs, a.volume), vec![1; pgs.len()], "no PG is left with other contents");
    assert_eq!(world.events.iter().filter(|e| e.kind == "volume.rolled_back").count(), 1);
    opened(world.ask(3, open("p/a", true, false)));
    check_rest(&world);
}

#[test]
fn recovery_carries_a_clone_out_that_had_no_segments_yet() {
    let (mut world, _) = held();
    made(world.admin(create(&["p/a@s"])));
    let token = world.fresh_token();
    let of = VolumeClone { snapshot: "p/a@s".into(), name: "p/c".into(), ..VolumeClone::default() };
    world.control.handle_admin(token, AdminAsk::VolumeClone(of));
    while world.control.records().volume("p/c").is_err() {
        assert!(world.step());
    }
    let c = world.control.records().volume("p/c").expect("it is there").id;
    while !world.store.keys().any(|key| key.starts_with("volume/") && key.ends_with(&format!("{:x}", c.0))) {
        assert!(world.step());
    }
    // A larger clone gets its segments in further transactions.
    let (mut copy, of_clone) = (world.store.clone(), format!("segment/{:016x}", c.0));
    copy.retain(|key, _| !key.starts_with(&of_clone));
    world.settle();
    recover(&mut world, copy);
    finish(&mut world).expect("finished");
    world.crash();
    world.connect_all();
    world.seconds(5, &[]);
    assert!(!world.control.records().volumes[&c].cloning);
    assert_eq!(world.control.records().segments_of(c).count(), 3);
    opened(world.ask(3, open("p/c", false, false)));
    check_rest(&world);
}

/// A forced recovery takes a PG back to a moment when it may not have had the snapshot.
#[test]
fn pg_that_was_forced_proves_no_deletion_of_a_snapshot() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let mut tables = tables(&world);
    let lacking = tables.iter_mut().find(|table| !table.snapshots.is_empty()).expect("PGs have it");
    lacking.snapshots.clear();
    let pg = lacking.pg;
    let mut records = world.control.records().clone();
    records.volumes.get_mut(&a.volume).expect("it is there").recovering = true;
    let found = Found::compare(&records, &tables, &BTreeSet::new()).snapshots;
    assert!(found.len() == 1 && found[0].ended, "one PG has deleted it: {found:?}");
    records.pgs.get_mut(&pg).expect("it is there").floor = ReplicaId(100);
    assert_eq!(Found::compare(&records, &tables, &BTreeSet::new()).snapshots, []);
}

#[test]
fn older_records_do_not_go_on_with_a_flatten_that_was_stopped() {
    let (mut world, clone, pg) = cloned();
    world.leaderless = BTreeSet::from([pg]);
    world.admin(flatten("p/c")).expect("it goes on");
    world.seconds(1, &[]);
    let copy = world.store.clone();
    world.admin(cancel("p/c")).expect("it is stopped");
    world.leaderless.clear();
    made(world.admin(create(&["p/c@t"])));
    assert_eq!(recover(&mut world, copy).len(), 1);
    world.seconds(5, &[]);
    let record = &world.control.records().volumes[&clone];
    assert!(record.flatten.is_none() && record.clone_of.is_some(), "{record:?}");
    let name = list(&mut world, "p/c")[0].name.clone();
    world.admin(remove(&name)).expect("nothing needs it");
    world.admin(flatten("p/c")).expect("it begins again");
    world.seconds(5, &[]);
    assert!(world.control.records().volumes[&clone].clone_of.is_none());
    check_rest(&world);
}
