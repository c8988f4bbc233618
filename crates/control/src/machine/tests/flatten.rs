//! Flatten: it ends when no PG needs the parent, whatever dies meanwhile, and nothing else needs it then.

use super::resize::volume;
use super::snapshots::{check_rest, code, create, held, made, remove};
use super::world::World;
use super::*;
use crate::admin::{FlattenView, VolumeClone, VolumeView};

pub(super) fn flatten(name: &str) -> AdminAsk {
    AdminAsk::VolumeFlatten { name: name.into(), cancel: false }
}

pub(super) fn cancel(name: &str) -> AdminAsk {
    AdminAsk::VolumeFlatten { name: name.into(), cancel: true }
}

fn info(world: &mut World, name: &str) -> VolumeView {
    volume(world.admin(AdminAsk::VolumeInfo { name: name.into() }))
}

/// Makes `p/c`, a clone of `p/a@s` in three PGs, one of which is returned.
pub(super) fn cloned() -> (World, VolumeId, PgId) {
    let (mut world, [a, _]) = held();
    made(world.admin(create(&["p/a@s"])));
    let ask = VolumeClone { snapshot: "p/a@s".into(), name: "p/c".into(), ..VolumeClone::default() };
    let clone = volume(world.admin(AdminAsk::VolumeClone(ask))).volume;
    let pg = world.control.records().segments[&(a.volume, SegmentIndex(1))].pg;
    (world, clone, pg)
}

#[test]
fn flatten_ends_when_no_pg_needs_the_parent() {
    let (mut world, clone, pg) = cloned();
    world.leaderless = BTreeSet::from([pg]);
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "alice at home".into(), flatten("p/c"));
    world.settle();
    let view = volume(world.admin_answers.remove(&token).expect("it does not wait"));
    assert!(view.flatten.is_some_and(|f| f.by == "alice at home") && view.parent.is_some());
    world.seconds(10, &[]);
    let FlattenView { percent, pgs, flat_pgs, .. } = info(&mut world, "p/c").flatten.expect("one PG has no leader");
    assert_eq!((percent, pgs, flat_pgs), (66, 3, 2));
    assert_eq!(code(world.admin(create(&["p/c@t"]))), codes::FLATTEN_SNAPSHOTS);
    assert_eq!(code(world.admin(create(&["p/b@t", "p/c@t"]))), codes::FLATTEN_SNAPSHOTS, "none of a group");
    assert_eq!(code(world.admin(remove("p/a@s"))), codes::HAS_CLONES);
    volume(world.admin(flatten("p/c")));
    world.leaderless.clear();
    world.seconds(10, &[]);
    let view = info(&mut world, "p/c");
    assert_eq!((view.parent, view.depth, view.flatten), (None, 0, None));
    assert!(world.cut_pgs.is_flat(pg, clone));
    let events: Vec<_> = world.events.iter().filter(|e| e.kind.starts_with("volume.flat")).collect();
    let told: Vec<_> = events.iter().map(|e| (e.kind.as_str(), e.by.as_str())).collect();
    assert_eq!(told, [("volume.flatten_began", "alice at home"), ("volume.flattened", "alice at home")]);
    made(world.admin(create(&["p/c@t"])));
    world.admin(remove("p/a@s")).expect("nothing needs it");
    check_rest(&world);
}

#[test]
fn flatten_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, clone, pg) = cloned();
        let token = world.fresh_token();
        world.control.handle_admin(token, flatten("p/c"));
        let ended = (0..cuts).any(|_| !world.step());
        world.crash();
        world.connect_all();
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        let view = info(&mut world, "p/c");
        if view.flatten.is_none() && view.parent.is_some() {
            volume(world.admin(flatten("p/c")));
        }
        (0..200).for_each(|_| world.pass(Duration::from_millis(50)));
        assert_eq!(info(&mut world, "p/c").parent, None, "after {cuts} steps");
        assert!(world.cut_pgs.is_flat(pg, clone));
        check_rest(&world);
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 2, "only {cuts} steps were cut");
}

#[test]
fn cancelled_flatten_keeps_the_parent_and_goes_on_where_it_was() {
    let (mut world, clone, pg) = cloned();
    world.leaderless = BTreeSet::from([pg]);
    volume(world.admin(flatten("p/c")));
    world.seconds(8, &[]);
    let view = volume(world.admin(cancel("p/c")));
    assert!(view.flatten.is_none() && view.parent.is_some());
    volume(world.admin(cancel("p/c")));
    world.leaderless.clear();
    world.seconds(8, &[]);
    assert!(!world.cut_pgs.is_flat(pg, clone), "nothing is ordered any more");
    assert_eq!(code(world.admin(remove("p/a@s"))), codes::HAS_CLONES);
    // In the trash it waits.
    volume(world.admin(flatten("p/c")));
    let rm = VolumeRemove { name: "p/c".into(), ..VolumeRemove::default() };
    world.admin(AdminAsk::VolumeRemove(rm)).expect("it goes to the trash");
    let orders = world.cut_pgs.flatten_orders;
    world.seconds(8, &[]);
    assert_eq!(world.cut_pgs.flatten_orders, orders);
    let (wakes, now) = (world.control.next_deadline(world.now), world.now.mono);
    assert!(wakes > now + Duration::from_millis(100), "nothing is to be done: {wakes:?} at {now:?}");
    world.admin(AdminAsk::TrashRestore { which: "p/c".into(), name: None }).expect("it is back");
    world.seconds(12, &[]);
    assert_eq!(info(&mut world, "p/c").parent, None);
    check_rest(&world);
}

#[test]
fn volume_that_cannot_be_flattened_is_told_why() {
    let (mut world, clone, pg) = cloned();
    assert_eq!(code(world.admin(flatten("p/b"))), codes::NOT_A_CLONE);
    assert_eq!(code(world.admin(flatten("p/x"))), codes::VOLUME_UNKNOWN);
    made(world.admin(create(&["p/c@t"])));
    assert_eq!(code(world.admin(flatten("p/c"))), codes::FLATTEN_SNAPSHOTS);
    world.admin(remove("p/c@t")).expect("it goes");
    // A forced recovery went back to a time before the clone: it begins on its parent again first.
    world.cut_pgs.forget(pg, clone);
    world.attached.remove(&(pg, clone));
    volume(world.admin(flatten("p/c")));
    world.seconds(12, &[]);
    assert_eq!(info(&mut world, "p/c").parent, None);
    assert!(world.cut_pgs.is_flat(pg, clone));
    assert_eq!(code(world.admin(flatten("p/c"))), codes::NOT_A_CLONE);
    check_rest(&world);
}
