//! Clones: each PG begins one on the snapshot before it is opened, whatever dies, and its parent can be deleted.

use super::resize::volume;
use super::snapshots::{check_rest, code, create, held, made, remove};
use super::world::{World, opened, refused};
use super::*;
use crate::admin::{VolumeClone, VolumeView};
use crate::plan::CLONE_DEPTH_MAX;
use types::control::Base;
use types::cut::SnapshotOrder;

fn clone(snapshot: &str, name: &str) -> AdminAsk {
    AdminAsk::VolumeClone(VolumeClone { snapshot: snapshot.into(), name: name.into(), ..VolumeClone::default() })
}

fn rm(name: &str, detach: bool) -> AdminAsk {
    AdminAsk::VolumeRemove(VolumeRemove { name: name.into(), force: true, now: true, snapshots: true, detach })
}

/// Checks that a clone lies where its parent does, and that each of these PGs has begun it once, on the snapshot.
fn check_begun(world: &World, clone: VolumeId) {
    let records = world.control.records();
    let base = records.volumes[&clone].clone_of.expect("it is a clone");
    let segments = records.segments_of(clone);
    for segment in segments {
        let parent = &records.segments[&(base.volume, segment.index)];
        assert!(segment.pgs().eq(parent.pgs()) && !segment.pending, "{segment:?} of {parent:?}");
        for pg in segment.pgs() {
            assert_eq!(world.cut_pgs.bases(pg, clone), [base], "{pg}");
        }
    }
}

#[test]
fn clone_is_opened_when_each_pg_of_its_parent_has_begun_it() {
    let (mut world, [a, _]) = held();
    let snapshot = made(world.admin(create(&["p/a@s"])))[0].snapshot;
    // The parent goes on: what it gets now is no part of the clone's length.
    world.ask(1, segments(&a, 6..7, true));
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin(token, clone("p/a@s", "p/c"));
    world.seconds(2, &[]);
    for req in [world.req(2, open("p/c", true, false)), world.req(3, open("p/c", false, false))] {
        world.control.handle_client(req);
    }
    world.seconds(1, &[]);
    assert!(world.answers.is_empty(), "openers wait: {:?}", world.answers);
    let view = volume(world.admin(AdminAsk::VolumeInfo { name: "p/c".into() }));
    assert_eq!((view.state.as_str(), view.parent.as_deref(), view.depth), ("cloning", Some("p/a@s"), 1));
    assert_eq!(code(world.admin(AdminAsk::SnapshotRemove { name: "p/a@s".into(), detach: true })), codes::VOLUME_BUSY);
    assert_eq!(code(world.admin(rm("p/a", true))), codes::VOLUME_BUSY);
    world.seconds(6, &[]);
    let waited = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
    assert!(waited.code == codes::VOLUME_BUSY && waited.message.contains(&pg.to_string()), "{waited:?}");
    world.leaderless.clear();
    world.seconds(2, &[]);
    assert_eq!(world.answers.len(), 2);
    let view = volume(world.admin(AdminAsk::VolumeInfo { name: "p/c".into() }));
    assert_eq!((view.state.as_str(), view.len_bytes), ("ready", 8 * SEGMENT));
    let base = world.control.records().volumes[&view.volume].clone_of.expect("it is a clone");
    assert_eq!((base.volume, base.snapshot), (a.volume, snapshot));
    assert_eq!(world.control.records().segments_of(view.volume).count(), 4, "with the one that reads as zeros");
    check_begun(&world, view.volume);
    check_rest(&world);
}

#[test]
fn clone_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, _) = held();
        made(world.admin(create(&["p/a@s"])));
        let token = world.fresh_token();
        world.control.handle_admin(token, clone("p/a@s", "p/c"));
        let ended = (0..cuts).any(|_| !world.step());
        world.crash();
        world.connect_all();
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        if world.control.records().volume("p/c").is_err() {
            volume(world.admin(clone("p/a@s", "p/c")));
        }
        let view = volume(world.admin(AdminAsk::VolumeInfo { name: "p/c".into() }));
        assert_eq!((view.state.as_str(), view.allocated_bytes), ("ready", 3 * SEGMENT));
        check_begun(&world, view.volume);
        opened(world.ask(2, open("p/c", true, false)));
        check_rest(&world);
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 4, "only {cuts} steps were cut");
}

#[test]
fn parent_is_kept_by_its_clones_unless_they_are_detached() {
    let (mut world, _) = held();
    let (a, b) = (made(world.admin(create(&["p/a@s"]))), made(world.admin(create(&["p/b@s"]))));
    assert_eq!((a[0].clones, b[0].clones), (0, 0));
    let c = volume(world.admin(clone("p/a@s", "p/c")));
    let d = volume(world.admin(clone("p/b@s", "p/d")));
    let refusal = world.admin(remove("p/a@s")).expect_err("it has a clone");
    assert!(refusal.code == codes::HAS_CLONES && refusal.message.contains("1 clones (p/c)"), "{refusal}");
    assert_eq!(code(world.admin(rm("p/b", false))), codes::HAS_CLONES);
    let of = AdminAsk::SnapshotList { of: "p/a".into() };
    let Ok(AdminAnswer::Snapshots(list)) = world.admin(of) else { panic!("no list") };
    assert_eq!(list[0].clones, 1);
    // A clone in the trash may come back.
    world.admin(AdminAsk::VolumeRemove(VolumeRemove { name: "p/c".into(), ..VolumeRemove::default() })).expect("trash");
    assert_eq!(code(world.admin(remove("p/a@s"))), codes::HAS_CLONES);
    world.admin(AdminAsk::TrashRestore { which: "p/c".into(), name: None }).expect("it is back");
    world.admin(AdminAsk::SnapshotRemove { name: "p/a@s".into(), detach: true }).expect("it goes");
    world.admin(rm("p/b", true)).expect("it goes");
    let info = |world: &mut World, name: &str| volume(world.admin(AdminAsk::VolumeInfo { name: name.into() }));
    let gone = |of: &VolumeView, parent: &str| assert_eq!(of.parent.as_deref(), Some(parent));
    gone(&info(&mut world, "p/c"), &format!("p/a@{}", a[0].snapshot));
    gone(&info(&mut world, "p/d"), &format!("{}@{}", b[0].volume, b[0].snapshot));
    assert_eq!((info(&mut world, "p/c").depth, info(&mut world, "p/d").depth), (1, 1));
    for view in [c, d] {
        opened(world.ask(2, open(&view.name, true, false)));
        world.admin(rm(&view.name, false)).expect("a clone goes like any volume");
    }
    // A clone that is gone keeps nothing, and one that was detached neither.
    made(world.admin(create(&["p/a@t"])));
    volume(world.admin(clone("p/a@t", "p/e")));
    world.admin(rm("p/e", false)).expect("it goes");
    world.admin(remove("p/a@t")).expect("it goes");
    made(world.admin(create(&["p/a@u"])));
    volume(world.admin(clone("p/a@u", "p/f")));
    world.admin(AdminAsk::SnapshotRemove { name: "p/a@u".into(), detach: true }).expect("it goes");
    assert_eq!(info(&mut world, "p/a").clones, 0);
    world.admin(rm("p/a", false)).expect("it goes");
    check_rest(&world);
}

#[test]
fn clones_have_at_most_16_ancestors_and_stay_in_their_pool() {
    let (mut world, _) = held();
    world.make_pool("q", 3, 4);
    made(world.admin(create(&["p/a@s"])));
    assert_eq!(code(world.admin(clone("p/a@s", "q/c"))), codes::BAD_NAME);
    assert_eq!(code(world.admin(clone("p/a@s", "p/b"))), codes::VOLUME_EXISTS);
    assert_eq!(code(world.admin(clone("p/a@x", "p/c"))), codes::SNAPSHOT_UNKNOWN);
    assert_eq!(code(world.admin(clone("p/a", "p/c"))), codes::BAD_NAME);
    let mut parent = "p/a".to_owned();
    for n in 1..=CLONE_DEPTH_MAX {
        let child = format!("p/c{n}");
        let view = volume(world.admin(clone(&format!("{parent}@s"), &child)));
        assert_eq!(view.depth, n);
        made(world.admin(create(&[&format!("{child}@s")])));
        parent = child;
    }
    assert_eq!(code(world.admin(clone(&format!("{parent}@s"), "p/last"))), codes::CLONE_DEPTH);
    let root = volume(world.admin(AdminAsk::VolumeInfo { name: "p/a".into() }));
    assert_eq!(root.clones, 1, "those of its clones are not its own");
    check_rest(&world);
}

#[test]
fn clone_of_a_tebibyte_takes_few_transactions() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 256);
    world.make_volume("p/big", 1024 * SEGMENT);
    let big = opened(world.ask(1, open("p/big", true, false)));
    for n in 0..32 {
        world.ask(1, segments(&big, n * 32..(n + 1) * 32, true));
    }
    made(world.admin(create(&["p/big@s"])));
    let commits = world.commits;
    let view = volume(world.admin(clone("p/big@s", "p/copy")));
    assert_eq!(view.allocated_bytes, 1024 * SEGMENT);
    assert!(world.commits - commits < 40, "{} transactions", world.commits - commits);
    check_begun(&world, view.volume);
}

#[test]
fn clone_that_is_removed_while_it_is_made_leaves_nothing() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin(token, clone("p/a@s", "p/c"));
    world.seconds(1, &[]);
    let gone = world.fresh_token();
    world.control.handle_admin(gone, rm("p/c", false));
    world.seconds(1, &[]);
    let refusal = world.admin_answers.remove(&token).expect("an answer").expect_err("it is gone");
    assert_eq!(refusal.code, codes::VOLUME_UNKNOWN);
    world.leaderless.clear();
    world.seconds(2, &[]);
    assert!(matches!(world.admin_answers.remove(&gone), Some(Ok(AdminAnswer::Done))));
    assert!(world.control.records().volume("p/c").is_err());
    assert_eq!(refused(world.ask(2, open("p/c", true, false))).code, codes::VOLUME_UNKNOWN);
    world.admin(remove("p/a@s")).expect("nothing needs it");
    check_rest(&world);
}

#[test]
fn pg_that_lost_a_clone_begins_it_on_its_snapshot_again() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let c = volume(world.admin(clone("p/a@s", "p/c"))).volume;
    let base = world.control.records().volumes[&c].clone_of;
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    // A forced recovery goes on from a replica that does not know the clone, or neither that nor the snapshot.
    for has_snapshot in [true, false] {
        world.cut_pgs.forget(pg, c);
        world.attached.remove(&(pg, c));
        if !has_snapshot {
            world.cut_pgs.take(
                world.now.mono,
                pg,
                &SnapshotOrder::Remove { volume: a.volume, snapshot: base.unwrap().snapshot },
            );
        }
        opened(world.ask(2, open("p/c", true, true)));
        let begun: Vec<Base> = base.filter(|_| has_snapshot).into_iter().collect();
        assert_eq!(world.cut_pgs.bases(pg, c), begun);
    }
}
