//! The trash: a removed volume loses its name and its session, keeps its data, and is deleted when its time is over.

use super::past::{finish, move_watermarks};
use super::world::{World, opened, refused};
use super::*;
use crate::admin::{TrashView, VolumeView};
use crate::records::VolumeState;

fn rm(name: &str, force: bool, now: bool) -> AdminAsk {
    AdminAsk::VolumeRemove(VolumeRemove { name: name.into(), force, now, snapshots: false, detach: false })
}

fn restore(which: &str, name: Option<&str>) -> AdminAsk {
    AdminAsk::TrashRestore { which: which.into(), name: name.map(str::to_owned) }
}

fn purge(which: &str) -> AdminAsk {
    AdminAsk::TrashPurge { which: which.into() }
}

fn volume(answer: Result<AdminAnswer, Refusal>) -> VolumeView {
    match answer {
        Ok(AdminAnswer::Volume(view)) => view,
        other => panic!("no volume: {other:?}"),
    }
}

fn trash(world: &mut World) -> Vec<TrashView> {
    match world.admin(AdminAsk::TrashList { pool: String::new() }) {
        Ok(AdminAnswer::Trash(all)) => all,
        other => panic!("{other:?}"),
    }
}

fn code(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

fn kinds(world: &World) -> Vec<&str> {
    world.events.iter().map(|e| e.kind.as_str()).filter(|kind| kind.starts_with("volume.")).collect()
}

/// Returns a volume with two segments that a client holds.
fn held() -> (World, Opened) {
    let mut world = with_volume(4);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..2, true));
    (world, held)
}

const WEEK: Duration = Duration::from_secs(7 * 86_400);

#[test]
fn volume_in_the_trash_frees_its_name_and_comes_back_with_its_segments() {
    let (mut world, held) = held();
    assert_eq!(code(world.admin(rm("p/v", false, false))), codes::VOLUME_HELD, "its holder is alive");
    let Ok(AdminAnswer::Trashed(view)) = world.admin(rm("p/v", true, false)) else { panic!("not in the trash") };
    assert_eq!((view.name.as_str(), view.allocated_bytes, view.expired), ("p/v", 2 * SEGMENT, false));
    assert_eq!(view.until_ms - view.since_ms, WEEK.as_millis() as u64);
    // The session is fenced in each PG before the answer, and the chunks stay.
    let attached = world.attached.iter().filter(|((_, volume), _)| *volume == held.volume);
    for (_, attach) in attached {
        assert!(
            attach.only_session().expect("it is not shared") == SessionId(0)
                && attach.epoch > held.epoch
                && attach.chunk_count == 4 * 64,
            "{attach:?}"
        );
    }
    let alive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    assert_eq!(refused(world.ask(1, alive)).code, codes::VOLUME_UNKNOWN, "no other client has it");
    let why = refused(world.ask(2, open("p/v", true, false)));
    assert!(why.code == codes::VOLUME_UNKNOWN && why.message.contains("basalt trash ls"), "{why:?}");
    assert_eq!(refused(world.ask(2, segments(&held, 0..1, false))).code, codes::VOLUME_UNKNOWN);

    world.make_volume("p/v", SEGMENT);
    world.crash();
    world.connect_all();
    assert_eq!(code(world.admin(restore("p/v", None))), codes::VOLUME_EXISTS, "the name is taken");
    assert_eq!(code(world.admin(restore("p/v", Some("No")))), codes::BAD_NAME);
    assert_eq!(code(world.admin(restore("p/v", Some("q/old")))), codes::BAD_NAME, "it stays in its pool");
    assert_eq!(volume(world.admin(restore("p/v", Some("p/old")))).name, "p/old");
    let again = opened(world.ask(2, open("p/old", true, false)));
    assert_eq!((again.volume, again.segments.len(), again.len_bytes), (held.volume, 2, 4 * SEGMENT));
    assert!(again.epoch > held.epoch && trash(&mut world).is_empty());
    assert_ne!(opened(world.ask(3, open("p/v", false, false))).volume, held.volume);
    let told: Vec<&str> =
        world.events.iter().filter(|e| e.kind == "volume.restored").map(|e| e.text.as_str()).collect();
    assert_eq!(told, ["volume p/old is back from the trash; it was p/v"]);
}

#[test]
fn volumes_of_one_name_in_the_trash_are_told_apart_by_their_ids() {
    let mut world = with_volume(1);
    for _ in 0..2 {
        world.admin(rm("p/v", false, false)).expect("removed");
        world.make_volume("p/v", SEGMENT);
    }
    let ids: Vec<String> = trash(&mut world).iter().map(|view| view.volume.0.to_string()).collect();
    let why = world.admin(restore("p/v", Some("a"))).expect_err("which?");
    assert!(why.code == codes::TRASH_NAME_AMBIGUOUS && why.message.contains(&ids.join(", ")), "{why:?}");
    for wrong in ["p/none", "99", "v99", "what", "", "99999999999999999999999"] {
        assert_eq!(code(world.admin(purge(wrong))), codes::NOT_IN_TRASH, "{wrong:?}");
    }
    // A purge by name that is repeated must not meet the other volume.
    let mut records = world.control.records().clone();
    let first = records.volumes.values_mut().find(|v| v.id.0.to_string() == ids[0]).expect("it is in the trash");
    first.state = VolumeState::Deleting;
    assert_eq!(crate::plan::trash_purge(&records, "p/v").expect_err("which?").code, codes::TRASH_NAME_AMBIGUOUS);
    crate::plan::trash_purge(&records, &ids[1]).expect("the id says which");
    let live = volume(world.admin(AdminAsk::VolumeInfo { name: "p/v".into() })).volume;
    assert_eq!(code(world.admin(purge(&live.0.to_string()))), codes::NOT_IN_TRASH, "it is in use");
    assert_eq!(world.admin(purge(&ids[0])), Ok(AdminAnswer::Done));
    assert_eq!(volume(world.admin(restore(&format!("v{}", ids[1]), Some("a")))).name, "p/a");
}

#[test]
fn pool_with_volumes_in_the_trash_is_not_removed_and_says_so() {
    let mut world = with_volume(1);
    world.admin(rm("p/v", false, false)).expect("removed");
    let why = world.admin(AdminAsk::PoolRemove { name: "p".into() }).expect_err("it holds data");
    assert_eq!(why.code, codes::POOL_NOT_EMPTY);
    assert!(why.message.contains("0 volume(s) and 1 volume(s) in the trash"), "{}", why.message);
    assert!(why.message.contains("basalt trash purge --all"), "{}", why.message);
    let Ok(AdminAnswer::Pools(pools)) = world.admin(AdminAsk::PoolList) else { panic!("no list") };
    assert_eq!((pools[0].volumes, pools[0].trashed), (0, 1));
    world.admin(purge("p/v")).expect("purged");
    world.admin(AdminAsk::PoolRemove { name: "p".into() }).expect("it is empty");
}

#[test]
fn volume_is_deleted_once_when_its_time_in_the_trash_is_over() {
    let (mut world, held) = held();
    world.admin(rm("p/v", true, false)).expect("removed");
    world.pass(WEEK - Duration::from_secs(5));
    world.connect_all();
    world.seconds(2, &[]);
    assert_eq!(trash(&mut world).len(), 1);
    world.crash();
    world.connect_all();
    world.seconds(8, &[]);
    assert_eq!(trash(&mut world).len(), 1, "the clock of a new leader may be wrong");
    world.pass(Duration::from_secs(3600));
    world.connect_all();
    world.seconds(4, &[]);
    assert!(world.control.records().volumes.is_empty() && world.control.records().segments.is_empty());
    let last = world.attached.iter().filter(|((_, volume), _)| *volume == held.volume);
    assert!(last.map(|(_, attach)| attach.chunk_count).all(|count| count == 0), "each PG has dropped it");
    let purged: Vec<&Event> = world.events.iter().filter(|e| e.kind == "volume.purged").collect();
    assert!(purged.len() == 1 && purged[0].text.ends_with("its time is over"), "{purged:?}");
}

#[test]
fn retention_is_a_setting_and_zero_deletes_at_once() {
    let mut world = with_volume(1);
    world.set("trash_retention", Some("1h"));
    let Ok(AdminAnswer::Trashed(view)) = world.admin(rm("p/v", false, false)) else { panic!("not in the trash") };
    assert_eq!(view.until_ms - view.since_ms, 3_600_000);
    // The time of a volume that is in the trash stays.
    world.set("trash_retention", Some("0s"));
    world.seconds(3, &[]);
    assert_eq!(trash(&mut world).len(), 1);
    for (name, now) in [("p/a", false), ("p/b", true)] {
        world.set("trash_retention", if now { None } else { Some("0s") });
        world.make_volume(name, SEGMENT);
        assert_eq!(world.admin(rm(name, false, now)), Ok(AdminAnswer::Done));
        assert_eq!((trash(&mut world).len(), world.control.records().volumes.len()), (1, 1));
    }
    assert_eq!(kinds(&world).iter().filter(|kind| **kind == "volume.removed").count(), 2);
}

#[test]
fn trash_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, held) = held();
        // A removal, a restore and a purge, each cut short; an administrator looks and goes on.
        let mut ended = true;
        for ask in [rm("p/v", true, false), restore("p/v", None), rm("p/v", true, false), purge("p/v")] {
            let token = world.fresh_token();
            world.control.handle_admin_of(token, "bob".into(), ask.clone());
            ended &= (0..cuts).any(|_| !world.step());
            world.crash();
            world.connect_all();
            (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
            let record = world.control.records().volumes.get(&held.volume);
            let state = record.map(|record| record.state);
            let segments = world.control.records().segments_of(held.volume).count();
            assert_eq!(segments, if state.is_some() { 2 } else { 0 }, "a volume goes with its segments");
            assert!(record.is_none_or(|record| record.settled && record.state != VolumeState::Deleting), "{record:?}");
            // A command that was lost with the leader is given again.
            let is_done = match &ask {
                AdminAsk::VolumeRemove(_) => state == Some(VolumeState::Trashed),
                AdminAsk::TrashRestore { .. } => state == Some(VolumeState::Ready),
                _ => state.is_none(),
            };
            if !is_done {
                world.admin(ask).expect("it is possible");
            }
        }
        assert!(world.control.records().volumes.is_empty());
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 4, "only {cuts} steps were cut");
}

/// A store from the time when a volume was in the trash: it may have been restored and used since.
#[test]
fn recovery_gives_a_volume_in_the_trash_its_whole_time_again() {
    let (mut world, held) = held();
    world.admin(rm("p/v", true, false)).expect("removed");
    let copy = world.store.clone();
    volume(world.admin(restore("p/v", None)));
    let second = opened(world.ask(2, open("p/v", true, false)));
    world.ask(2, segments(&second, 2..3, true));
    world.pass(WEEK + WEEK);
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    world.settle();
    let record = world.control.records().volumes[&held.volume].clone();
    assert!(record.recovering && record.state == VolumeState::Trashed && record.epoch > second.epoch, "{record:?}");
    assert_eq!(code(world.admin(purge("p/v"))), codes::VOLUME_RECOVERING);
    let fenced = world.attached.iter().filter(|((_, volume), a)| *volume == held.volume && a.epoch == record.epoch);
    assert!(fenced.count() > 0, "the session of the lost time is fenced");
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    world.seconds(5, &[]);
    let left = trash(&mut world);
    assert!(left.len() == 1 && !left[0].expired, "{left:?}");
    assert_eq!(volume(world.admin(restore("p/v", None))).allocated_bytes, 2 * SEGMENT);
}

#[test]
fn a_clock_that_jumps_or_was_wrong_deletes_nothing_of_the_trash() {
    let (mut world, _) = held();
    world.admin(rm("p/v", true, false)).expect("removed");
    let forward = 8 * 86_400_000;
    world.now.wall_ms += forward;
    world.pass(Duration::from_secs(7200));
    world.connect_all();
    world.seconds(3, &[]);
    assert_eq!(trash(&mut world).len(), 1, "it has led for two hours only");
    // The clock was wrong when this leader started, and is right again.
    world.crash();
    world.now.wall_ms -= forward;
    world.connect_all();
    world.pass(Duration::from_secs(7200));
    world.connect_all();
    world.seconds(3, &[]);
    assert_eq!(trash(&mut world).len(), 1, "by the clock of now most of its time is left");
    // It was removed under a clock that was years behind: nothing says for how long it has been there.
    world.now.wall_ms += 100 * forward;
    world.crash();
    world.connect_all();
    world.pass(Duration::from_secs(7200));
    world.connect_all();
    world.seconds(3, &[]);
    assert_eq!((trash(&mut world).len(), trash(&mut world)[0].expired), (1, true));
    world.admin(purge("p/v")).expect("purged");
}
