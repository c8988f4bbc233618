//! Rehearsed faults: their way to clients, their end, and what an operator sees.

use super::world::{World, opened};
use super::*;
use crate::admin::{FaultAdd, VolumeView};
use types::faults::{Fault, FaultEffect, ToldFault};

fn ask(effect: FaultEffect, for_ms: u64) -> FaultAdd {
    FaultAdd { fault: Fault { effect, percent: 100, reads: true, writes: true }, for_ms }
}

fn add(name: &str, effect: FaultEffect, for_ms: u64) -> AdminAsk {
    AdminAsk::VolumeFaultAdd { name: name.into(), fault: ask(effect, for_ms) }
}

fn remove(name: &str, id: Option<u32>) -> AdminAsk {
    AdminAsk::VolumeFaultRemove { name: name.into(), id }
}

fn view(answer: Result<AdminAnswer, Refusal>) -> VolumeView {
    match answer {
        Ok(AdminAnswer::Volume(view)) => view,
        other => panic!("no volume: {other:?}"),
    }
}

fn refused(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

fn events(world: &World) -> Vec<(String, String)> {
    let of_faults = world.events.iter().filter(|event| event.kind.starts_with("volume.fault"));
    of_faults.map(|event| (event.kind.clone(), event.by.clone())).collect()
}

/// Returns the numbers of the faults that the holder is told, each with the time that is left.
fn told(world: &mut World, held: &Opened) -> Vec<(u32, u64)> {
    let keepalive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    };
    let ClientAnswer::Alive { faults, .. } = world.ask(1, keepalive) else { panic!("it holds the volume") };
    faults.iter().map(|fault| (fault.id, fault.left_ms)).collect()
}

#[test]
fn clients_are_told_faults_with_the_time_that_is_left() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    let held = opened(world.ask(1, open("p/a", true, false)));
    assert!(held.faults.is_empty() && told(&mut world, &held).is_empty());
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "alice at home".into(), add("p/a", FaultEffect::Pause, 60_000));
    world.settle();
    let added = view(world.admin_answers.remove(&token).expect("it does not wait"));
    let [fault] = &added.faults[..] else { panic!("{added:?}") };
    assert_eq!((fault.id, fault.kind.as_str(), fault.by.as_str()), (1, "pause", "alice at home"));
    assert_eq!(fault.until_ms - fault.since_ms, 60_000);
    let before = told(&mut world, &held);
    assert!(before.len() == 1 && before[0].1 <= 60_000, "{before:?}");
    world.seconds(10, &[]);
    let after = told(&mut world, &held);
    assert!(after[0].0 == 1 && (45_000..=50_000).contains(&after[0].1), "{after:?}");
    // A reader is told at its open, and another leader knows the same.
    world.crash();
    world.connect_all();
    let reader = opened(world.ask(2, open("p/a", false, false)));
    let want = ToldFault { id: 1, fault: ask(FaultEffect::Pause, 0).fault, left_ms: reader.faults[0].left_ms };
    assert!(reader.faults == [want] && want.left_ms <= 50_000, "{reader:?}");
    view(world.admin(add("p/a", FaultEffect::Error, 5_000)));
    assert_eq!(told(&mut world, &held).iter().map(|fault| fault.0).collect::<Vec<_>>(), [1, 2]);
    view(world.admin(remove("p/a", Some(1))));
    assert_eq!(told(&mut world, &held).len(), 1);
    // A number is never used again, also under another leader.
    view(world.admin(remove("p/a", None)));
    world.crash();
    world.connect_all();
    assert_eq!(view(world.admin(add("p/a", FaultEffect::Latency(5), 5_000))).faults[0].id, 3);
}

#[test]
fn fault_ends_by_itself_with_an_event_that_names_its_asker() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "bob".into(), add("p/a", FaultEffect::Error, 20_000));
    world.settle();
    let check = |world: &mut World| match world.admin(AdminAsk::Status) {
        Ok(AdminAnswer::Status(status)) => {
            let found = status.checks.iter().find(|check| check.code == "VOLUME_FAULTS").cloned();
            (status.health.clone(), found)
        }
        other => panic!("{other:?}"),
    };
    let (health, found) = check(&mut world);
    let found = found.expect("nobody is left to wonder");
    assert_eq!((health.as_str(), found.entities), ("degraded", vec!["p/a".to_owned()]));
    assert!(found.details[0].contains("an error for all requests"), "{:?}", found.details);
    world.seconds(30, &[]);
    assert!(view(world.admin(AdminAsk::VolumeInfo { name: "p/a".into() })).faults.is_empty());
    assert!(check(&mut world).1.is_none());
    view(world.admin(add("p/a", FaultEffect::Error, 20_000)));
    view(world.admin(remove("p/a", Some(2))));
    let kinds: Vec<String> = events(&world).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["volume.fault_added", "volume.fault_ended", "volume.fault_added", "volume.fault_removed"]);
    assert_eq!(events(&world)[0].1, "bob");
    let ended = world.events.iter().find(|event| event.kind == "volume.fault_ended").expect("it has ended");
    assert!(ended.text.contains("bob asked for it"), "{ended:?}");
}

#[test]
fn faults_are_bounded_and_those_that_are_not_there_are_refused() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    assert_eq!(refused(world.admin(add("p/none", FaultEffect::Error, 5_000))), codes::VOLUME_UNKNOWN);
    assert_eq!(refused(world.admin(add("p/a", FaultEffect::Error, 0))), codes::BAD_FAULT, "an end is required");
    assert_eq!(refused(world.admin(add("p/a", FaultEffect::Error, 86_400_001))), codes::BAD_FAULT);
    assert_eq!(refused(world.admin(remove("p/a", Some(1)))), codes::FAULT_UNKNOWN);
    assert!(view(world.admin(remove("p/a", None))).faults.is_empty(), "all of none");
    for _ in 0..types::limits::FAULTS_MAX {
        view(world.admin(add("p/a", FaultEffect::Error, 86_400_000)));
    }
    assert_eq!(refused(world.admin(add("p/a", FaultEffect::Error, 5_000))), codes::BAD_FAULT, "too many");
    assert!(events(&world).len() == types::limits::FAULTS_MAX);
}
