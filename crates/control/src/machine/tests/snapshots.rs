//! Snapshots: all PGs have one before any goes on, whatever dies; and names, protection and deletion.

use super::world::{World, opened, refused};
use super::*;
use crate::admin::{CutAsk, SnapshotChange, SnapshotView, VolumeText};
use crate::records::SnapshotRecord;
use types::GenerationId;
use types::cut::{CutEnd, SnapshotOrder};

pub(super) fn create(names: &[&str]) -> AdminAsk {
    AdminAsk::SnapshotCreate(CutAsk { names: names.iter().map(|n| (*n).to_owned()).collect(), ..CutAsk::default() })
}

pub(super) fn remove(name: &str) -> AdminAsk {
    AdminAsk::SnapshotRemove { name: name.into(), detach: false }
}

pub(super) fn list(world: &mut World, of: &str) -> Vec<SnapshotView> {
    match world.admin(AdminAsk::SnapshotList { of: of.into() }) {
        Ok(AdminAnswer::Snapshots(views)) => views,
        other => panic!("no list: {other:?}"),
    }
}

pub(super) fn made(answer: Result<AdminAnswer, Refusal>) -> Vec<SnapshotView> {
    match answer {
        Ok(AdminAnswer::SnapshotsChanged(views)) => views,
        other => panic!("no snapshot: {other:?}"),
    }
}

pub(super) fn code(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

/// Returns a pool with two volumes of three segments each, which clients hold.
pub(super) fn held() -> (World, [Opened; 2]) {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    let held = ["p/a", "p/b"].map(|name| {
        world.make_volume(name, 8 * SEGMENT);
        let held = opened(world.ask(1, open(name, true, false)));
        world.ask(1, segments(&held, 0..3, true));
        held
    });
    (world, held)
}

/// Checks that each PG has the snapshots of the records that are ready.
pub(super) fn check_ready(world: &World) {
    let records = world.control.records();
    let ready = |s: &&SnapshotRecord| s.state == crate::SnapshotState::Ready;
    for snapshot in records.snapshots.values().filter(ready) {
        for pg in world.cut_pgs.pgs() {
            assert!(world.cut_pgs.has(pg, snapshot.volume, snapshot.snapshot), "{pg} lacks {snapshot:?}");
        }
    }
}

/// Checks that PGs have the snapshots of the records and no other ones, and that nothing is under way.
pub(super) fn check_rest(world: &World) {
    check_ready(world);
    let records = world.control.records();
    assert!(records.cuts.is_empty(), "{:?}", records.cuts);
    let (all, open) = world.cut_pgs.all();
    assert!(!open, "a cut is open");
    for (volume, snapshot) in all {
        assert!(records.snapshots.contains_key(&(volume, snapshot)), "{snapshot} of {volume} was left behind");
    }
}

#[test]
fn group_snapshot_is_ready_when_each_pg_has_gone_on() {
    let (mut world, [a, b]) = held();
    let token = world.fresh_token();
    let text = VolumeText { description: Some("before the upgrade".into()), ..VolumeText::default() };
    let names = vec!["p/b@s".to_owned(), "p/a@s".to_owned()];
    let ask = CutAsk { names, text, by: String::new() };
    world.control.handle_admin_of(token, "alice at home".into(), AdminAsk::SnapshotCreate(ask));
    world.settle();
    let views = made(world.admin_answers.remove(&token).expect("nothing delays it"));
    assert_eq!(views.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["p/a@s", "p/b@s"]);
    assert!(views[0].cut == views[1].cut && views[0].cut.0 == views[0].snapshot.0, "{views:?}");
    let first = &views[0];
    assert_eq!((first.state.as_str(), first.by.as_str(), first.len_bytes), ("ready", "alice at home", 8 * SEGMENT));
    assert_eq!((first.description.as_str(), first.protected), ("before the upgrade", false));
    check_rest(&world);
    assert!(world.cut_pgs.cuts >= 3, "its PGs have taken it");
    assert_eq!(list(&mut world, "p/a"), views[..1]);
    assert_eq!(list(&mut world, "p"), views);
    assert_eq!(list(&mut world, "p/b@s"), views[1..]);
    // A volume comes to a PG with a head that no order has named before it, and none of its snapshots is above.
    world.ask(1, segments(&a, 3..8, true));
    world.ask(1, segments(&b, 3..8, true));
    let heads = |of: VolumeId| world.attached.values().filter(move |at| at.volume == of).map(|at| at.head);
    assert_eq!(heads(a.volume).max(), Some(GenerationId(first.snapshot.0)));
    let told: Vec<&Event> = world.events.iter().filter(|e| e.kind.starts_with("snapshot.")).collect();
    assert_eq!((told.len(), told[0].by.as_str(), told[0].subject.as_str()), (1, "alice at home", "volume p/b"));
    assert_eq!(told[0].text, "snapshot p/b@s, p/a@s is made");
}

#[test]
fn volume_without_segments_has_snapshots_too() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/v", SEGMENT);
    assert_eq!(made(world.admin(create(&["p/v@s"])))[0].state, "ready");
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..1, true));
    check_rest(&world);
    let snapshot = list(&mut world, "p/v")[0].snapshot;
    assert!(world.attached.values().all(|attach| attach.head.0 == snapshot.0), "the volume came after it");
}

#[test]
fn cut_survives_a_leader_that_dies_at_any_step() {
    let (mut cuts, mut ready) = (0, 0);
    loop {
        let (mut world, _) = held();
        let token = world.fresh_token();
        world.control.handle_admin(token, create(&["p/a@s", "p/b@s"]));
        let ended = (0..cuts).any(|_| {
            let moved = world.step();
            check_ready(&world);
            !moved
        });
        let answered = world.admin_answers.remove(&token).is_some();
        world.crash();
        world.connect_all();
        for _ in 0..40 {
            world.pass(Duration::from_millis(50));
            check_ready(&world);
        }
        check_rest(&world);
        // The next leader knows both as ready, or nothing of either.
        let count = list(&mut world, "p").iter().filter(|s| s.state == "ready").count();
        assert!(count == 2 || count == 0 && !answered, "{count} snapshots, answered: {answered}");
        ready += count;
        if count == 0 {
            made(world.admin(create(&["p/a@s", "p/b@s"])));
            check_rest(&world);
        }
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 8 && ready > 0, "only {cuts} steps were cut");
}

#[test]
fn pg_without_a_leader_refuses_a_snapshot_before_anything_is_held() {
    let (mut world, [a, _]) = held();
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    let (leader, replica) = {
        let member = world.control.records().pgs[&pg].members[0];
        (member.osd, member.replica)
    };
    // Its leader says that it does not serve.
    world.heartbeat(leader, |beat| {
        let report = beat.pgs.iter_mut().find(|report| report.replica == replica).expect("it leads");
        report.leading.as_mut().expect("it leads").active = false;
    });
    let refusal = world.admin(create(&["p/a@s"])).expect_err("it waits in vain");
    assert!(refusal.code == codes::VOLUME_BUSY && refusal.message.contains(&pg.to_string()), "{refusal}");
    assert_eq!((world.cut_pgs.cuts, list(&mut world, "").len()), (0, 0));
    let plans = world.store.keys().filter(|k| k.starts_with("cut/") || k.starts_with("snapshot/")).count();
    assert_eq!(plans, 0, "no intent was recorded");
    world.beat(leader);
    made(world.admin(create(&["p/a@s"])));
}

#[test]
fn pg_that_does_not_answer_ends_the_cut_in_all() {
    let (mut world, [a, _]) = held();
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "bob".into(), create(&["p/a@s", "p/b@s"]));
    world.settle();
    assert!(world.cut_pgs.all().1, "the other PGs hold");
    world.pass(Duration::from_millis(100));
    assert!(!world.cut_pgs.all().1, "no PG holds for more than 100 ms");
    // It is tried again when each PG has given it up, and the one without a leader has not.
    (0..60).for_each(|_| world.pass(Duration::from_millis(50)));
    let refusal = world.admin_answers.remove(&token).expect("an answer").expect_err("it was given up");
    assert!(refusal.code == codes::CUT_FAILED && refusal.message.contains(&pg.to_string()), "{refusal}");
    assert_eq!(list(&mut world, "p").len(), 0);
    let told: Vec<&Event> = world.events.iter().filter(|e| e.kind == "snapshot.failed").collect();
    assert_eq!((told.len(), told[0].by.as_str()), (1, "bob"), "{told:?}");
    assert_eq!(code(world.admin(create(&["p/a@s"]))), codes::VOLUME_BUSY, "the PG may still take the late order");
    world.leaderless.clear();
    world.pass(Duration::from_secs(1));
    made(world.admin(create(&["p/a@s"])));
    check_rest(&world);
}

#[test]
fn cut_that_was_late_once_is_tried_again() {
    let (mut world, [a, _]) = held();
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    world.settle();
    world.pass(Duration::from_millis(110));
    world.leaderless.clear();
    (0..10).for_each(|_| world.pass(Duration::from_millis(50)));
    assert_eq!(made(world.admin_answers.remove(&token).expect("an answer"))[0].state, "ready");
    check_rest(&world);
}

/// Delivers all messages but those of a kind, which stay on the way.
pub(super) fn deliver_up_to(world: &mut World, stays: impl Fn(&OsdDown) -> bool) {
    world.hold = true;
    world.settle();
    while let Some(at) = world.queue.iter().position(|(_, down)| !stays(down)) {
        let (stream, down) = world.queue.remove(at).expect("it was just found");
        world.arrive(stream, down);
        world.settle();
    }
}

#[test]
fn hold_that_lapsed_is_no_snapshot() {
    let (mut world, _) = held();
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    world.settle();
    // The PGs have their snapshots, and their leaders wait for 100 ms in vain.
    deliver_up_to(&mut world, is_release);
    assert!(world.queue.len() > 1, "all have said that they have it");
    world.cut_pgs.lapse(world.now.mono + Duration::from_millis(100));
    assert!(world.cut_pgs.lapsed > 1);
    world.hold = false;
    world.settle();
    check_ready(&world);
    (0..10).for_each(|_| world.pass(Duration::from_millis(50)));
    made(world.admin_answers.remove(&token).expect("the next try has made it"));
    check_rest(&world);
    assert_eq!(list(&mut world, "p").len(), 1);
}

pub(super) fn is_release(down: &OsdDown) -> bool {
    matches!(down, OsdDown::Snapshots { order: SnapshotOrder::Release { end: CutEnd::Release, .. }, .. })
}

pub(super) fn is_cut(down: &OsdDown) -> bool {
    matches!(down, OsdDown::Snapshots { .. })
}

#[test]
fn allocation_waits_for_the_cut() {
    let (mut world, [a, _]) = held();
    let cut = world.fresh_token();
    world.control.handle_admin(cut, create(&["p/a@s"]));
    deliver_up_to(&mut world, is_cut);
    assert!(world.queue.iter().any(|(_, down)| is_cut(down)));
    let (fresh, known) = (world.req(1, segments(&a, 2..6, true)), world.req(1, segments(&a, 0..3, true)));
    let (token, at_once) = (fresh.token, known.token);
    world.control.handle_client(fresh);
    world.control.handle_client(known);
    let gone = world.req(1, segments(&a, 6..8, true));
    world.control.handle_client(gone.clone());
    world.settle();
    world.control.handle_cancel(gone.token);
    world.settle();
    assert!(world.answers.contains_key(&at_once), "segments that are there are named");
    assert!(!world.answers.contains_key(&token) && world.control.records().segments_of(a.volume).count() == 3);
    world.hold = false;
    world.settle();
    made(world.admin_answers.remove(&cut).expect("it is made"));
    let ClientAnswer::Segments { .. } = world.answers.remove(&token).expect("an answer") else { panic!("no places") };
    assert_eq!(world.control.records().segments_of(a.volume).count(), 6, "the one whose asker is gone is not made");
    check_rest(&world);
}

#[test]
fn steal_during_a_cut_reaches_the_pgs_behind_it() {
    let (mut world, [a, _]) = held();
    let cut = world.fresh_token();
    world.control.handle_admin(cut, create(&["p/a@s"]));
    deliver_up_to(&mut world, is_cut);
    let steal = world.req(2, open("p/a", true, true));
    let token = steal.token;
    world.control.handle_client(steal);
    world.settle();
    assert!(!world.queue.iter().any(|(_, down)| matches!(down, OsdDown::Attach { .. })), "no attach record leaves");
    world.hold = false;
    world.settle();
    made(world.admin_answers.remove(&cut).expect("it is made"));
    let second = opened(world.answers.remove(&token).expect("an answer"));
    assert!(second.epoch > a.epoch);
    check_rest(&world);
    // A snapshot waits until the PGs have the attach records of an open.
    let (steal, cut) = (world.req(1, open("p/a", true, true)), world.fresh_token());
    world.control.handle_client(steal);
    world.control.handle_admin(cut, create(&["p/a@t"]));
    deliver_up_to(&mut world, |down| is_cut(down) || matches!(down, OsdDown::Attach { .. }));
    assert!(!world.queue.is_empty() && !world.queue.iter().any(|(_, down)| is_cut(down)), "attach records alone");
    world.hold = false;
    world.settle();
    made(world.admin_answers.remove(&cut).expect("it is made"));
}

#[test]
fn no_pg_is_asked_before_a_majority_remembers_the_intent() {
    let (mut world, _) = held();
    world.seconds(10, &[]);
    assert_eq!(world.control.records().osds.values().filter(|o| o.elector).count(), 3);
    for osd in [OsdId(2), OsdId(3)] {
        world.osd(osd).deaf = true;
    }
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    world.settle();
    (0..4).for_each(|_| {
        while let Some((stream, down)) = world.queue.pop_front() {
            assert!(!is_cut(&down), "{down:?} without a majority");
            world.arrive(stream, down);
        }
        world.settle();
    });
    // Nothing was sent, so nothing is held; the cut is given up.
    world.hold = false;
    (0..80).for_each(|_| world.pass(Duration::from_millis(50)));
    let refusal = world.admin_answers.remove(&token).expect("an answer").expect_err("given up");
    assert!([codes::CUT_FAILED, codes::NO_MAJORITY].contains(&refusal.code), "{refusal}");
    assert_eq!(world.cut_pgs.cuts, 0);
}

#[test]
fn cut_of_32_volumes_in_256_pgs_fits_its_transactions() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 256);
    let mut names = Vec::new();
    for n in 0..33 {
        let name = format!("p/v{n}");
        world.make_volume(&name, 64 * SEGMENT);
        let held = opened(world.ask(1, open(&name, true, false)));
        world.ask(1, segments(&held, 0..16, true));
        names.push(format!("{name}@s"));
    }
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(code(world.admin(create(&all))), codes::TOO_MANY);
    world.largest_txn = 0;
    assert_eq!(made(world.admin(create(&all[..32]))).len(), 32);
    assert!(world.largest_txn > 64 && world.largest_txn <= TXN_WRITES_MAX, "{}", world.largest_txn);
    assert!(world.cut_pgs.cuts > 200, "{} PGs", world.cut_pgs.cuts);
    check_rest(&world);
}

#[test]
fn asker_that_went_away_leaves_a_whole_cut() {
    let (mut world, _) = held();
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s"]));
    world.settle();
    world.control.handle_cancel(token);
    world.hold = false;
    world.settle();
    assert!(!world.admin_answers.contains_key(&token));
    assert_eq!(list(&mut world, "p/a")[0].state, "ready");
    check_rest(&world);
}

#[test]
fn names_of_snapshots_are_checked_and_can_change() {
    let (mut world, _) = held();
    made(world.admin(create(&["p/a@s"])));
    for (names, expected) in [
        (vec!["p/a@s"], codes::SNAPSHOT_EXISTS),
        (vec!["p/a"], codes::BAD_NAME),
        (vec!["p/a@S"], codes::BAD_NAME),
        (vec!["p/none@s"], codes::VOLUME_UNKNOWN),
        (vec!["q/a@s"], codes::POOL_UNKNOWN),
        (vec!["p/a@t", "p/a@u"], codes::BAD_REQUEST),
        (vec![], codes::BAD_REQUEST),
    ] {
        assert_eq!(code(world.admin(create(&names))), expected, "{names:?}");
    }
    made(world.admin(create(&["p/b@s"])));
    let set = |name: &str, change| AdminAsk::SnapshotSet { name: name.into(), change };
    let to = |name: &str| SnapshotChange { name: Some(name.into()), ..SnapshotChange::default() };
    made(world.admin(create(&["p/a@t"])));
    assert_eq!(code(world.admin(set("p/a@s", to("t")))), codes::SNAPSHOT_EXISTS);
    assert_eq!(code(world.admin(set("p/a@s", to("p/b@x")))), codes::BAD_NAME);
    assert_eq!(code(world.admin(set("p/a@s", to("X")))), codes::BAD_NAME);
    assert_eq!(code(world.admin(set("p/a@none", to("x")))), codes::SNAPSHOT_UNKNOWN);
    assert_eq!(made(world.admin(set("p/a@s", to("p/a@x"))))[0].name, "p/a@x");
    let labels = VolumeText { labels: [("keep".to_owned(), "7d".to_owned())].into(), ..VolumeText::default() };
    let change = SnapshotChange { text: labels, protect: Some(true), name: None };
    let view = made(world.admin(set("p/a@x", change.clone()))).remove(0);
    assert!(view.protected && view.labels["keep"] == "7d");
    let commits = world.commits;
    made(world.admin(set("p/a@x", change)));
    assert_eq!(world.commits, commits, "a repeated command changes nothing");
    world.crash();
    world.connect_all();
    assert_eq!(list(&mut world, "p/a").iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["p/a@x", "p/a@t"]);
    let told: Vec<&str> =
        world.events.iter().filter(|e| e.kind == "snapshot.changed").map(|e| e.text.as_str()).collect();
    assert_eq!(told, ["snapshot p/a@s: it is now @x", "snapshot p/a@x: label keep=7d, protected"]);
}

#[test]
fn snapshot_goes_from_all_pgs_whatever_dies() {
    let mut cuts = 0;
    loop {
        let (mut world, _) = held();
        made(world.admin(create(&["p/a@s", "p/b@s"])));
        let token = world.fresh_token();
        world.control.handle_admin(token, remove("p/a@s"));
        let ended = (0..cuts).any(|_| !world.step());
        world.crash();
        world.connect_all();
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        let names: Vec<String> = list(&mut world, "p").into_iter().map(|s| s.name).collect();
        assert!(names == ["p/b@s"] || names == ["p/a@s", "p/b@s"], "{names:?}");
        check_rest(&world);
        if names.len() == 2 {
            assert!(matches!(world.admin(remove("p/a@s")), Ok(AdminAnswer::Done)));
            check_rest(&world);
        }
        // The name is free.
        made(world.admin(create(&["p/a@s"])));
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 4, "only {cuts} steps were cut");
}

#[test]
fn protected_snapshot_keeps_itself_and_its_volume() {
    let (mut world, _) = held();
    made(world.admin(create(&["p/a@s"])));
    let protect = |on| AdminAsk::SnapshotSet {
        name: "p/a@s".into(),
        change: SnapshotChange { protect: Some(on), ..SnapshotChange::default() },
    };
    made(world.admin(protect(true)));
    let rm = |now, snapshots| {
        AdminAsk::VolumeRemove(VolumeRemove { name: "p/a".into(), force: true, now, snapshots, detach: false })
    };
    assert_eq!(code(world.admin(remove("p/a@s"))), codes::SNAPSHOT_PROTECTED);
    assert_eq!(code(world.admin(rm(true, true))), codes::SNAPSHOT_PROTECTED);
    assert_eq!(code(world.admin(rm(false, false))), codes::SNAPSHOT_PROTECTED);
    made(world.admin(protect(false)));
    assert_eq!(code(world.admin(rm(true, false))), codes::HAS_SNAPSHOTS);
    // The trash keeps the volume with its snapshots.
    let Ok(AdminAnswer::Trashed(trash)) = world.admin(rm(false, false)) else { panic!("not trashed") };
    assert!(list(&mut world, "p").is_empty() && world.control.records().snapshots.len() == 1);
    let restore = AdminAsk::TrashRestore { which: trash.volume.0.to_string(), name: None };
    world.admin(restore).expect("restored");
    assert_eq!(list(&mut world, "p/a").len(), 1);
    check_rest(&world);
    assert!(matches!(world.admin(rm(true, true)), Ok(AdminAnswer::Done)));
    assert!(world.control.records().snapshots.is_empty());
    check_rest(&world);
}

#[test]
fn snapshots_of_a_purged_volume_go_with_it() {
    let (mut world, [a, _]) = held();
    for n in 0..80 {
        made(world.admin(create(&[&format!("p/a@s{n}")])));
    }
    let rm = VolumeRemove { name: "p/a".into(), force: true, ..VolumeRemove::default() };
    world.admin(AdminAsk::VolumeRemove(rm)).expect("trashed");
    world.admin(AdminAsk::TrashPurge { which: a.volume.0.to_string() }).expect("purged");
    assert!(!world.store.keys().any(|k| k.starts_with("snapshot/")));
    assert!(world.largest_txn <= TXN_WRITES_MAX);
    check_rest(&world);
}

#[test]
fn removal_goes_on_when_a_pg_has_no_leader() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin(token, remove("p/a@s"));
    world.seconds(8, &[]);
    let refusal = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
    assert!(refusal.code == codes::VOLUME_BUSY && refusal.message.contains("1 of its PGs"), "{refusal}");
    assert_eq!(list(&mut world, "p/a")[0].state, "deleting");
    made(world.admin(create(&["p/b@s"])));
    world.leaderless.clear();
    world.seconds(3, &[]);
    assert!(list(&mut world, "p/a").is_empty());
    check_rest(&world);
}

#[test]
fn snapshot_is_opened_for_reading_with_its_length() {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    world
        .admin(AdminAsk::VolumeResize { name: "p/a".into(), to: crate::admin::Resizing::to(9 * SEGMENT) })
        .expect("longer");
    let snapshot = list(&mut world, "p/a")[0].snapshot;
    let seen = opened(world.ask(2, open("p/a@s", false, false)));
    assert_eq!((seen.volume, seen.snapshot, seen.len_bytes), (a.volume, Some(snapshot), 8 * SEGMENT));
    assert_eq!((seen.write, seen.session, seen.segments.len()), (false, SessionId(0), 3));
    let now = opened(world.ask(2, open("p/a", false, false)));
    assert_eq!((now.snapshot, now.len_bytes), (None, 9 * SEGMENT));
    assert_eq!(refused(world.ask(2, open("p/a@s", true, false))).code, codes::SNAPSHOT_READ_ONLY);
    assert_eq!(refused(world.ask(2, open("p/a@t", false, false))).code, codes::SNAPSHOT_UNKNOWN);
    assert_eq!(refused(world.ask(2, open("p/a@", false, false))).code, codes::BAD_NAME);
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/b@s"]));
    world.settle();
    let req = world.req(2, open("p/b@s", false, false));
    assert_eq!(refused(world.answer_to(req)).code, codes::VOLUME_BUSY, "it is not ready");
}

#[test]
fn removals_without_a_leader_do_not_keep_others() {
    let (mut world, [a, b]) = held();
    for n in 0..12 {
        made(world.admin(create(&[&format!("p/a@s{n}")])));
    }
    made(world.admin(create(&["p/b@s"])));
    let records = world.control.records();
    let of_b: BTreeSet<PgId> = records.segments_of(b.volume).flat_map(|s| s.pgs()).collect();
    let pg = records.segments_of(a.volume).flat_map(|s| s.pgs()).find(|pg| !of_b.contains(pg)).expect("one of its own");
    let leader = records.pgs[&pg].members[0];
    world.leaderless = BTreeSet::from([pg]);
    world.heartbeat(leader.osd, |beat| {
        beat.pgs.iter_mut().filter(|report| report.replica == leader.replica).for_each(|r| r.leading = None);
    });
    for n in 0..12 {
        let token = world.fresh_token();
        world.control.handle_admin(token, remove(&format!("p/a@s{n}")));
        world.settle();
    }
    assert!(matches!(world.admin(remove("p/b@s")), Ok(AdminAnswer::Done)), "it has its PGs");
    assert_eq!(list(&mut world, "p/a").len(), 12);
    // The same command waits for the deletion that is under way.
    let token = world.fresh_token();
    world.control.handle_admin(token, remove("p/a@s3"));
    world.leaderless.clear();
    world.beat(leader.osd);
    world.seconds(2, &[]);
    assert!(matches!(world.admin_answers.remove(&token), Some(Ok(AdminAnswer::Done))));
    assert!(list(&mut world, "p/a").is_empty());
    check_rest(&world);
}

#[test]
fn aborted_cut_forgets_pgs_that_go_with_their_pool() {
    let (mut world, [a, _]) = held();
    world.make_pool("q", 3, 4);
    world.make_volume("q/v", 2 * SEGMENT);
    let other = opened(world.ask(1, open("q/v", true, false)));
    world.ask(1, segments(&other, 0..2, true));
    world.leaderless = BTreeSet::from([world.control.records().segments[&(a.volume, SegmentIndex(1))].pg]);
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&["p/a@s", "q/v@s"]));
    world.settle();
    world.hold = true;
    (0..20).for_each(|_| {
        world.pass(Duration::from_millis(50));
        deliver_up_to(&mut world, is_cut);
    });
    assert_eq!(world.control.records().cuts.len(), 1);
    world.leaderless.clear();
    let rm = VolumeRemove { name: "q/v".into(), force: true, now: true, snapshots: true, detach: false };
    world.control.handle_admin(Token(1 << 40), AdminAsk::VolumeRemove(rm));
    deliver_up_to(&mut world, is_cut);
    world.control.handle_admin(Token(1 << 41), AdminAsk::PoolRemove { name: "q".into() });
    deliver_up_to(&mut world, is_cut);
    assert!(world.control.records().pool("q").is_err(), "the pool is gone");
    world.queue.clear();
    world.hold = false;
    world.seconds(3, &[]);
    check_rest(&world);
    made(world.admin(create(&["p/a@s"])));
}

/// The conditions of a cut hold for the volumes that have its names when it begins.
#[test]
fn name_that_moves_to_another_volume_is_checked_again() {
    let (mut world, [a, b]) = held();
    // Both wait: the first one for its resize, the second one for the attach records of another open.
    let resize = AdminAsk::VolumeResize { name: "p/a".into(), to: crate::admin::Resizing::to(9 * SEGMENT) };
    let (token, cut) = (world.fresh_token(), world.fresh_token());
    world.control.handle_admin(token, resize);
    let is_attach = |down: &OsdDown| matches!(down, OsdDown::Attach { .. });
    deliver_up_to(&mut world, is_attach);
    world.control.handle_admin(cut, create(&["p/a@s"]));
    deliver_up_to(&mut world, is_attach);
    let rename = |world: &mut World, name: &str, new: &str| {
        let token = world.fresh_token();
        world.control.handle_admin(token, AdminAsk::VolumeRename { name: name.into(), new: new.into() });
        deliver_up_to(world, is_attach);
    };
    rename(&mut world, "p/a", "old");
    rename(&mut world, "p/b", "a");
    let steal = world.req(2, open("p/a", true, true));
    world.control.handle_client(steal);
    deliver_up_to(&mut world, is_attach);
    // The attach records of the first volume come, and those of the second one do not.
    while let Some(at) = world
        .queue
        .iter()
        .position(|(_, down)| matches!(down, OsdDown::Attach { attach, .. } if attach.volume == a.volume))
    {
        let (stream, down) = world.queue.remove(at).expect("just found");
        world.arrive(stream, down);
        world.settle();
    }
    deliver_up_to(&mut world, |down| is_attach(down) || is_cut(down));
    assert!(!world.queue.iter().any(|(_, down)| is_cut(down)), "the second volume takes an attach record");
    world.hold = false;
    world.settle();
    let views = made(world.admin_answers.remove(&cut).expect("an answer"));
    assert_eq!((views[0].volume, views[0].name.as_str()), (b.volume, "p/a@s"));
    check_rest(&world);
}
