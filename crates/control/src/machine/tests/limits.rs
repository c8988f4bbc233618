//! Limits of volumes and pools: which ones are in force, and what a new leader knows of them.

use super::world::{World, opened};
use super::*;
use crate::admin::{PoolSet, PoolView, VolumeText, VolumeView};
use types::qos::{QosBase, QosChange, RateChange};
use types::{LimitKind, QosLimits, RateLimit, Stripe, VolumeId, WhenFull};

fn iops(rate: u64) -> QosChange {
    let change = RateChange { rate: Some(rate), ..RateChange::default() };
    QosChange { base: QosBase::Kept, rates: vec![(LimitKind::Iops, change)] }
}

fn base(base: QosBase) -> QosChange {
    QosChange { base, rates: Vec::new() }
}

fn only_iops(rate: u64) -> QosLimits {
    QosLimits { iops: Some(RateLimit { rate, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE }
}

fn set(world: &mut World, name: &str, limits: QosChange) -> VolumeView {
    let text = VolumeText { limits, ..VolumeText::default() };
    match world.admin(AdminAsk::VolumeSet { name: name.into(), text }) {
        Ok(AdminAnswer::Volume(view)) => view,
        other => panic!("no volume: {other:?}"),
    }
}

fn set_pool(world: &mut World, limits: QosChange) -> PoolView {
    match world.admin(AdminAsk::PoolSet(PoolSet { name: "p".into(), limits, ..Default::default() })) {
        Ok(AdminAnswer::Pool(view)) => view,
        other => panic!("no pool: {other:?}"),
    }
}

fn in_force(world: &mut World, name: &str) -> (QosLimits, String) {
    match world.admin(AdminAsk::VolumeInfo { name: name.into() }) {
        Ok(AdminAnswer::Volume(view)) => (view.limits, view.limits_of),
        other => panic!("no volume: {other:?}"),
    }
}

#[test]
fn volume_without_limits_has_those_of_its_pool_whoever_leads() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    world.make_volume("p/b", SEGMENT);
    assert_eq!(in_force(&mut world, "p/a"), (QosLimits::NONE, "none".to_owned()));
    assert_eq!(set_pool(&mut world, iops(500)).limits, only_iops(500));
    assert_eq!(set(&mut world, "p/b", iops(70)).limits_of, "volume");
    world.crash();
    world.connect_all();
    assert_eq!(in_force(&mut world, "p/a"), (only_iops(500), "pool".to_owned()));
    assert_eq!(in_force(&mut world, "p/b"), (only_iops(70), "volume".to_owned()));
    set(&mut world, "p/b", base(QosBase::Unlimited));
    assert_eq!(in_force(&mut world, "p/b"), (QosLimits::NONE, "volume".to_owned()), "its pool does not limit it");
    set(&mut world, "p/b", base(QosBase::Pool));
    assert_eq!(in_force(&mut world, "p/b"), (only_iops(500), "pool".to_owned()));
    let commits = world.commits;
    set(&mut world, "p/b", base(QosBase::Pool));
    set_pool(&mut world, iops(500));
    assert_eq!(world.commits, commits, "a repeated command changes nothing");
    (0..6).for_each(|_| world.pass(Duration::from_secs(1)));
    let told = |kind: &str| -> Vec<String> {
        world.events.iter().filter(|e| e.kind == kind).map(|e| e.text.clone()).collect()
    };
    assert_eq!(told("pool.changed"), ["pool p: iops 500/s for volumes without limits of their own"]);
    assert_eq!(told("volume.changed").first().map(String::as_str), Some("volume p/b: iops 70/s"));
}

#[test]
fn policy_for_a_full_pool_is_told_to_the_holder_and_in_an_event() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    let text = VolumeText { when_full: Some(WhenFull::Wait), ..VolumeText::default() };
    let create = AdminAsk::VolumeCreate { name: "p/a".into(), len_bytes: SEGMENT, stripe: Stripe::NONE, text };
    assert!(matches!(world.admin(create), Ok(AdminAnswer::Volume(view)) if view.when_full == WhenFull::Wait));
    let held =
        opened(world.ask(1, ClientAsk::Open { name: "p/a".into(), write: true, steal: false, holder: "me".into() }));
    assert_eq!(held.when_full, WhenFull::Wait);
    let text = VolumeText { when_full: Some(WhenFull::Error), ..VolumeText::default() };
    let set = AdminAsk::VolumeSet { name: "p/a".into(), text };
    assert!(matches!(world.admin(set), Ok(AdminAnswer::Volume(view)) if view.when_full == WhenFull::Error));
    (0..6).for_each(|_| world.pass(Duration::from_secs(1)));
    world.crash();
    world.connect_all();
    // A change of something else leaves it.
    set_text(&mut world, "p/a");
    let keepalive = ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: SEGMENT,
    };
    let told = world.ask(1, keepalive);
    assert!(matches!(told, ClientAnswer::Alive { when_full: WhenFull::Error, .. }), "{told:?}");
    (0..6).for_each(|_| world.pass(Duration::from_secs(1)));
    let texts: Vec<&str> =
        world.events.iter().filter(|e| e.kind == "volume.changed").map(|e| e.text.as_str()).collect();
    assert_eq!(texts, ["volume p/a: when full error", "volume p/a: description \"a disk\""]);
}

fn set_text(world: &mut World, name: &str) {
    let text = VolumeText { description: Some("a disk".to_owned()), ..VolumeText::default() };
    assert!(world.admin(AdminAsk::VolumeSet { name: name.into(), text }).is_ok());
}

#[test]
fn refused_limit_changes_nothing_of_the_request() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    let text = VolumeText { description: Some("new".into()), limits: iops(9), ..VolumeText::default() };
    let refused = world.admin(AdminAsk::VolumeSet { name: "p/a".into(), text: text.clone() }).expect_err("9 IOPS");
    assert_eq!(refused.code, codes::BAD_LIMIT);
    let create = AdminAsk::VolumeCreate { name: "p/c".into(), len_bytes: SEGMENT, stripe: Stripe::NONE, text };
    assert_eq!(world.admin(create).expect_err("9 IOPS").code, codes::BAD_LIMIT);
    for (name, limits, code) in [
        ("p", iops(9), codes::BAD_LIMIT),
        ("p", base(QosBase::Pool), codes::BAD_LIMIT),
        ("q", iops(500), codes::POOL_UNKNOWN),
    ] {
        let refused = world
            .admin(AdminAsk::PoolSet(PoolSet { name: name.into(), limits, ..Default::default() }))
            .expect_err("refused");
        assert_eq!(refused.code, code, "{refused}");
    }
    match world.admin(AdminAsk::VolumeInfo { name: "p/a".into() }) {
        Ok(AdminAnswer::Volume(view)) => assert_eq!((view.description.as_str(), view.limits_of.as_str()), ("", "none")),
        other => panic!("no volume: {other:?}"),
    }
}

#[test]
fn every_osd_knows_the_limits_of_all_volumes_whoever_restarts() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/a", SEGMENT);
    world.make_volume("p/b", SEGMENT);
    let id = |name: &str| world.control.records().volume(name).expect("it is there").id;
    let (a, b) = (id("p/a"), id("p/b"));
    let known = World::limits_known;
    assert_eq!(known(&world), vec![BTreeMap::new(); 3]);
    set(&mut world, "p/b", iops(70));
    assert_eq!(known(&world), vec![BTreeMap::from([(b, only_iops(70))]); 3]);
    set_pool(&mut world, iops(500));
    let both = BTreeMap::from([(a, only_iops(500)), (b, only_iops(70))]);
    assert_eq!(known(&world), vec![both.clone(); 3], "the pool changes those without their own");
    // An OSD that missed changes gets the list of all with its next stream, and so does each from another leader.
    world.crash();
    world.osds.iter_mut().for_each(|osd| osd.limits = BTreeMap::from([(VolumeId(99), only_iops(5))]));
    world.connect_all();
    assert_eq!(known(&world), vec![both; 3]);
    set(&mut world, "p/b", base(QosBase::Unlimited));
    assert_eq!(known(&world), vec![BTreeMap::from([(a, only_iops(500))]); 3]);
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove {
            name: "p/a".into(),
            force: true,
            now: true,
            snapshots: false,
            detach: false,
        }))
        .expect("removed");
    assert_eq!(known(&world), vec![BTreeMap::new(); 3], "no limit outlives its volume");
    // The holder hears of them with its keepalives.
    let held = opened(world.ask(1, open("p/b", true, false)));
    assert_eq!(held.limits, QosLimits::NONE);
    set(&mut world, "p/b", base(QosBase::Pool));
    let keepalive =
        ClientAsk::Keepalive { volume: b, session: held.session, unreached: Vec::new(), len_epoch: 0, len_bytes: 0 };
    let ClientAnswer::Alive { limits, .. } = world.ask(1, keepalive) else { panic!("it holds the volume") };
    assert_eq!(limits, only_iops(500));
}
