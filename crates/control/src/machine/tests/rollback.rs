//! Rollback: all PGs turn back to the snapshot before any opener goes on, whatever dies, and no session survives it.

use super::resize::volume;
use super::snapshots::{check_rest, code, create, held, made, remove};
use super::world::{World, opened, refused};
use super::*;
use types::control::Base;
use types::{GenerationId, SnapshotId};

fn roll_back(name: &str) -> AdminAsk {
    AdminAsk::SnapshotRollback { name: name.into(), force: false }
}

fn close(held: &Opened) -> ClientAsk {
    ClientAsk::Close { volume: held.volume, session: held.session }
}

/// Returns the PGs of the volume whose last turn back was to this snapshot, and their number.
fn turned(world: &World, base: Base) -> (usize, usize) {
    let pgs: BTreeSet<PgId> = world.control.records().segments_of(base.volume).flat_map(|s| s.pgs()).collect();
    let count = pgs
        .iter()
        .filter(|pg| world.cut_pgs.bases(**pg, base.volume).last().is_some_and(|last| last.snapshot == base.snapshot))
        .count();
    (count, pgs.len())
}

/// Returns a world with a snapshot of p/a, which is closed, and its number.
fn closed() -> (World, Opened, Base) {
    let (mut world, [a, _]) = held();
    let snapshot = made(world.admin(create(&["p/a@s"])))[0].snapshot;
    assert_eq!(world.ask(1, close(&a)), ClientAnswer::Closed);
    let base = Base { volume: a.volume, snapshot, to: GenerationId::default() };
    (world, a, base)
}

#[test]
fn volume_has_its_snapshot_again_in_all_pgs_before_it_is_opened() {
    let (mut world, a, base) = closed();
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "alice".into(), roll_back("p/a@s"));
    world.seconds(2, &[]);
    assert_eq!(turned(&world, base).0 + 1, turned(&world, base).1, "all but one have turned back");
    let (writer, reader) = (world.req(1, open("p/a", true, false)), world.req(2, open("p/a", false, false)));
    for req in [&writer, &reader] {
        world.control.handle_client(req.clone());
    }
    world.seconds(1, &[]);
    assert!(world.answers.is_empty(), "openers wait: {:?}", world.answers);
    assert!(world.ask(3, open("p/a@s", false, false)) != ClientAnswer::Closed, "readers of the snapshot do not");
    assert_eq!(code(world.admin(remove("p/a@s"))), codes::VOLUME_BUSY);
    assert_eq!(code(world.admin(create(&["p/a@t"]))), codes::VOLUME_BUSY);
    world.seconds(6, &[]);
    let waited = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
    assert!(waited.code == codes::VOLUME_BUSY && waited.message.contains(&pg.to_string()), "{waited:?}");
    let view = world.admin(AdminAsk::VolumeInfo { name: "p/a".into() });
    assert_eq!(volume(view).rollback_to.as_deref(), Some("s"));
    world.leaderless.clear();
    world.seconds(2, &[]);
    assert_eq!(turned(&world, base).0, turned(&world, base).1);
    assert_eq!(world.answers.len(), 2, "both openers go on");
    let told: Vec<&Event> = world.events.iter().filter(|e| e.kind == "volume.rolled_back").collect();
    assert_eq!(told.iter().map(|e| (e.by.as_str(), e.subject.as_str())).collect::<Vec<_>>(), [("alice", "volume p/a")]);
    assert_eq!(told[0].text, "the volume has the contents of snapshot p/a@s");
    check_rest(&world);
    // A rollback that is done is not repeated by a later session.
    let times = world.cut_pgs.bases(pg, a.volume).len();
    opened(world.ask(4, open("p/a", true, true)));
    made(world.admin(create(&["p/a@u"])));
    assert_eq!(world.cut_pgs.bases(pg, a.volume).len(), times);
}

#[test]
fn rollback_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, a, base) = closed();
        let token = world.fresh_token();
        world.control.handle_admin(token, roll_back("p/a@s"));
        let ended = (0..cuts).any(|_| !world.step());
        world.crash();
        world.connect_all();
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        let (count, all) = turned(&world, base);
        assert!(count == all || count == 0, "{count} of {all} PGs have turned back");
        if count == 0 {
            volume(world.admin(roll_back("p/a@s")));
            assert_eq!(turned(&world, base).0, all);
        }
        assert!(world.control.records().volumes[&a.volume].rollback.is_none());
        opened(world.ask(2, open("p/a", true, false)));
        check_rest(&world);
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 4, "only {cuts} steps were cut");
}

#[test]
fn rollback_of_a_volume_in_use_is_refused() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    assert_eq!(code(world.admin(roll_back("p/a@s"))), codes::VOLUME_HELD);
    assert_eq!(code(world.admin(roll_back("p/a@t"))), codes::SNAPSHOT_UNKNOWN);
    assert_eq!(code(world.admin(roll_back("p/a"))), codes::BAD_NAME);
    let commits = world.commits;
    assert_eq!(code(world.admin(roll_back("p/c@s"))), codes::VOLUME_UNKNOWN);
    assert_eq!(world.commits, commits);
    // The lease of a holder that died ends.
    world.seconds(60, &[]);
    assert_eq!(volume(world.admin(roll_back("p/a@s"))).session, SessionId(0));
    assert_eq!(refused(world.ask(1, segments(&a, 3..4, true))).code, codes::SESSION_FENCED);
    // An administrator may take the volume from a living one.
    let b = opened(world.ask(2, open("p/a", true, false)));
    assert_eq!(code(world.admin(roll_back("p/a@s"))), codes::VOLUME_HELD);
    world.admin(AdminAsk::SnapshotRollback { name: "p/a@s".into(), force: true }).expect("it is taken");
    assert_eq!(refused(world.ask(2, segments(&b, 3..4, true))).code, codes::SESSION_FENCED);
}

#[test]
fn second_rollback_replaces_one_that_waits() {
    let (mut world, a, base) = closed();
    made(world.admin(create(&["p/a@t"])));
    let young = Base { snapshot: SnapshotId(base.snapshot.0 + 1), ..base };
    assert!(world.control.records().snapshots.contains_key(&(a.volume, young.snapshot)));
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let first = world.fresh_token();
    world.control.handle_admin(first, roll_back("p/a@s"));
    world.seconds(1, &[]);
    let second = world.fresh_token();
    world.control.handle_admin(second, roll_back("p/a@t"));
    world.seconds(1, &[]);
    assert_eq!(code(world.admin_answers.remove(&first).expect("the first one ends")), codes::VOLUME_BUSY);
    world.leaderless.clear();
    world.seconds(2, &[]);
    volume(world.admin_answers.remove(&second).expect("it is done"));
    assert_eq!(turned(&world, young).0, turned(&world, young).1);
    check_rest(&world);
}

#[test]
fn volume_without_segments_turns_back_at_once() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    world.make_volume("p/a", SEGMENT);
    made(world.admin(create(&["p/a@s"])));
    assert_eq!(volume(world.admin(roll_back("p/a@s"))).rollback_to, None);
    opened(world.ask(1, open("p/a", true, false)));
}
