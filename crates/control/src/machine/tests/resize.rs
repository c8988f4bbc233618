//! Longer volumes: the chunks reach each PG before the length is valid, whatever dies; and names, descriptions and labels.

use super::past::{finish, move_watermarks};
use super::world::{World, alive, opened, refused, session_of};
use super::*;
use crate::admin::{FoundLength, RecoverAsk, VolumeText, VolumeView};
use crate::found::{Found, Table};
use types::control::{AttachedVolume, CHUNKS_KEPT};
use types::{CHUNK, VolumeChunk};

fn resize(name: &str, gib: u64) -> AdminAsk {
    AdminAsk::VolumeResize { name: name.into(), to: crate::admin::Resizing::to(gib * SEGMENT) }
}

pub(super) fn volume(answer: Result<AdminAnswer, Refusal>) -> VolumeView {
    match answer {
        Ok(AdminAnswer::Volume(view)) => view,
        other => panic!("no volume: {other:?}"),
    }
}

fn code(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

/// Returns a volume of 4 GiB with three segments that a client holds.
fn held(stripe: Stripe) -> (World, Opened) {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    world.make_striped("p/v", 4 * SEGMENT, stripe);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..3, true));
    (world, held)
}

fn keepalive(held: &Opened) -> ClientAsk {
    ClientAsk::Keepalive {
        volume: held.volume,
        session: held.session,
        unreached: Vec::new(),
        len_epoch: 0,
        len_bytes: 0,
    }
}

/// Checks that each PG that may be written has taken all chunks of the length in the records.
fn check_pgs(world: &World) {
    let records = world.control.records();
    for segment in records.segments.values().filter(|segment| !segment.pending) {
        let volume = &records.volumes[&segment.volume];
        for pg in segment.pgs() {
            let attach = world.attached[&(pg, segment.volume)];
            assert!(attach.chunk_count >= volume.chunk_count(), "{attach:?} is short of {volume:?}");
        }
    }
}

fn striped() -> Stripe {
    Stripe::new(1 << 18, 4).expect("a layout")
}

#[test]
fn length_is_valid_only_after_each_pg_took_the_chunks() {
    for stripe in [Stripe::NONE, striped()] {
        let (mut world, held) = held(stripe);
        let pg = world.control.records().segments[&(held.volume, SegmentIndex(1))].pg;
        world.leaderless = BTreeSet::from([pg]);
        let token = world.fresh_token();
        world.control.handle_admin_of(token, "alice at home".into(), resize("p/v", 9));
        (0..20).for_each(|_| world.pass(Duration::from_millis(100)));
        let record = &world.control.records().volumes[&held.volume];
        assert_eq!((record.len_bytes, record.resize.as_ref().map(|r| r.len_bytes)), (4 * SEGMENT, Some(9 * SEGMENT)));
        assert_eq!(world.ask(1, keepalive(&held)), alive(4 * SEGMENT));
        assert_eq!(refused(world.ask(1, segments(&held, 4..5, true))).code, codes::OUT_OF_RANGE);
        assert!(world.attached.values().filter(|a| a.chunk_count == 9 * 64).count() > 1, "the other PGs have them");
        // Another length is refused meanwhile, and the answer names the PG that is missing.
        assert_eq!(code(world.admin(resize("p/v", 10))), codes::VOLUME_BUSY);
        (0..50).for_each(|_| world.pass(Duration::from_millis(100)));
        let waited = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
        assert!(waited.code == codes::VOLUME_BUSY && waited.message.contains(&pg.to_string()), "{waited:?}");

        world.leaderless.clear();
        let view = volume(world.admin(resize("p/v", 9)));
        assert_eq!((view.len_bytes, view.resize_bytes), (9 * SEGMENT, None));
        check_pgs(&world);
        assert_eq!(world.ask(1, keepalive(&held)), alive(9 * SEGMENT));
        let ClientAnswer::Segments { segments: places, .. } = world.ask(1, segments(&held, 8..9, true)) else {
            panic!("no place behind the old end")
        };
        assert_eq!(places[0].pgs.len(), stripe.count() as usize);
        let events: Vec<&Event> = world.events.iter().filter(|e| e.kind == "volume.resized").collect();
        assert_eq!((events.len(), events[0].by.as_str()), (1, "alice at home"), "{events:?}");
        assert_eq!(events[0].text, "volume p/v has 9 GiB (had 4 GiB)");
    }
}

#[test]
fn resize_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, held) = held(if cuts % 2 == 0 { Stripe::NONE } else { striped() });
        let token = world.fresh_token();
        world.control.handle_admin(token, resize("p/v", 9));
        let ended = (0..cuts).any(|_| {
            let moved = world.step();
            check_pgs(&world);
            !moved
        });
        world.crash();
        world.connect_all();
        for _ in 0..40 {
            world.pass(Duration::from_millis(50));
            check_pgs(&world);
        }
        // The next leader has finished what was recorded, or knows nothing of it.
        let record = &world.control.records().volumes[&held.volume];
        assert!(record.resize.is_none() && record.settled, "{record:?}");
        assert!([4 * SEGMENT, 9 * SEGMENT].contains(&record.len_bytes));
        assert_eq!(volume(world.admin(resize("p/v", 9))).len_bytes, 9 * SEGMENT);
        check_pgs(&world);
        assert_eq!(session_of(&world.control.records().volumes[&held.volume]), held.session, "the holder goes on");
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 5, "only {cuts} steps were cut");
}

#[test]
fn open_and_close_during_a_resize_keep_its_end() {
    let (mut world, first) = held(Stripe::NONE);
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, resize("p/v", 9));
    world.settle();
    world.hold = false;
    world.ask(1, ClientAsk::Close { volume: first.volume, session: first.session });
    let second = opened(world.ask(2, open("p/v", true, false)));
    assert_eq!(second.len_bytes, 9 * SEGMENT, "an open returns when each PG has its attach record");
    check_pgs(&world);
}

#[test]
fn sizes_that_a_volume_cannot_have_are_refused_with_their_codes() {
    let (mut world, _) = held(Stripe::NONE);
    let to = |len_bytes| AdminAsk::VolumeResize { name: "p/v".into(), to: crate::admin::Resizing::to(len_bytes) };
    assert_eq!(code(world.admin(to(SEGMENT))), codes::SHRINK_UNSAFE);
    assert_eq!(code(world.admin(to(4 * SEGMENT + 1))), codes::BAD_SIZE);
    assert_eq!(code(world.admin(to(65 << 40))), codes::BAD_SIZE);
    assert_eq!(code(world.admin(resize("p/none", 9))), codes::VOLUME_UNKNOWN);
    let commits = world.commits;
    assert_eq!(volume(world.admin(to(4 * SEGMENT))).len_bytes, 4 * SEGMENT);
    assert_eq!(world.commits, commits, "the same length changes nothing");
    // A volume without segments has no PG that must know.
    world.make_volume("p/empty", SEGMENT);
    world.leaderless = world.control.records().pgs.keys().copied().collect();
    assert_eq!(volume(world.admin(resize("p/empty", 2))).len_bytes, 2 * SEGMENT);
}

#[test]
fn length_is_told_to_the_holder_only_when_a_majority_remembers_it() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    world.make_volume("p/v", 4 * SEGMENT);
    world.seconds(10, &[]);
    assert_eq!(world.control.records().osds.values().filter(|o| o.elector).count(), 3);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.hold = true;
    let token = world.fresh_token();
    world.control.handle_admin(token, resize("p/v", 9));
    world.settle();
    assert_eq!(world.control.records().volumes[&held.volume].len_bytes, 9 * SEGMENT);
    let req = world.req(1, keepalive(&held));
    assert_eq!(world.answer_to(req), alive(0));
    world.hold = false;
    world.settle();
    assert_eq!(world.ask(1, keepalive(&held)), alive(9 * SEGMENT));
}

/// Returns a world whose store is a copy from before a resize to 9 GiB and a write behind the old end.
fn before_the_resize() -> (World, Opened, Vec<Table>) {
    let (mut world, held) = held(Stripe::NONE);
    let copy = world.store.clone();
    volume(world.admin(resize("p/v", 9)));
    world.ask(1, segments(&held, 7..8, true));
    let chunk = |pg: PgId| {
        let segments = world.control.records().segments_of(held.volume).filter(move |s| s.pg == pg);
        segments.map(|s| VolumeChunk { volume: held.volume, index: s.index.0 * 64 + 5 }).collect()
    };
    let table = |pg: &PgId| {
        let attach = world.attached.get(&(*pg, held.volume));
        let attached = attach.map(|a| AttachedVolume {
            volume: a.volume,
            epoch: a.epoch,
            chunk_count: a.chunk_count,
            len_epoch: a.len_epoch,
            first: a.head,
            last: a.head,
        });
        Table {
            pg: *pg,
            leading: true,
            chunks: chunk(*pg),
            attached: attached.into_iter().collect(),
            snapshots: Vec::new(),
        }
    };
    let tables = world.control.records().pgs.keys().map(table).collect();
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    (world, held, tables)
}

/// The model of PGs panics at an attach record that unmaps chunks.
#[test]
fn older_records_do_not_shorten_a_volume_that_was_resized_since() {
    let (mut world, held, tables) = before_the_resize();
    let found = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    let longer = &found.longer_volumes;
    assert_eq!((longer.len(), longer[0].len_bytes, longer[0].found_bytes), (1, 4 * SEGMENT, 9 * SEGMENT));
    let lengths = found.lengths();
    assert_eq!(lengths, [FoundLength { volume: held.volume, chunk_count: 9 * 64, len_epoch: 0 }]);
    let recover = |world: &mut World, ask: RecoverAsk| match world.admin(AdminAsk::MetaRecover(ask)) {
        Ok(AdminAnswer::Recovery(recovery)) => recovery,
        other => panic!("{other:?}"),
    };
    while world.control.standing() == Standing::Behind {
        let ask = RecoverAsk { standing: "behind".into(), lengths: lengths.clone(), ..RecoverAsk::default() };
        recover(&mut world, ask);
    }
    world.settle();
    assert_eq!(world.control.records().volumes[&held.volume].len_bytes, 9 * SEGMENT);
    assert!(found.segments.iter().any(|s| s.segment == SegmentIndex(7)), "{found:?}");
    let ask = RecoverAsk { standing: "sound".into(), segments: found.segments, ..RecoverAsk::default() };
    recover(&mut world, ask);
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    let again = opened(world.ask(2, open("p/v", true, false)));
    assert_eq!((again.len_bytes, again.segments.len()), (9 * SEGMENT, 4));
    check_pgs(&world);
}

/// A recovery that was told no lengths first, for example because it was interrupted, learns them from the data.
#[test]
fn recovery_without_lengths_keeps_all_chunks_until_it_knows_them() {
    let (mut world, held, mut tables) = before_the_resize();
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    world.settle();
    let kept = world.attached.values().filter(|a| a.volume == held.volume && a.chunk_count == CHUNKS_KEPT);
    assert!(kept.count() > 1, "the attach records of the recovery name no length");
    tables.iter_mut().flat_map(|table| &mut table.attached).for_each(|attached| attached.chunk_count = CHUNKS_KEPT);
    let found = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    let lengths = found.lengths();
    assert_eq!(lengths, [FoundLength { volume: held.volume, chunk_count: 7 * 64 + 6, len_epoch: 0 }]);
    let ask = RecoverAsk { standing: "sound".into(), lengths, segments: found.segments, ..RecoverAsk::default() };
    for round in 0..2 {
        // The first request lengthens, and a request that finishes at the same time does not finish.
        let asks = RecoverAsk { finish: round == 0, ..ask.clone() };
        world.admin(AdminAsk::MetaRecover(asks)).expect("repaired");
        assert!(world.control.records().volumes[&held.volume].recovering);
    }
    assert_eq!(world.control.records().volumes[&held.volume].len_bytes, 7 * SEGMENT + 6 * CHUNK);
    assert!(world.control.records().segments.contains_key(&(held.volume, SegmentIndex(7))));
}

#[test]
fn renamed_volume_keeps_its_holder_and_frees_the_old_name() {
    let (mut world, held) = held(Stripe::NONE);
    world.make_volume("p/other", SEGMENT);
    let rename = |name: &str, new: &str| AdminAsk::VolumeRename { name: name.into(), new: new.into() };
    assert_eq!(code(world.admin(rename("p/v", "other"))), codes::VOLUME_EXISTS);
    assert_eq!(code(world.admin(rename("p/v", "Other"))), codes::BAD_NAME);
    assert_eq!(code(world.admin(rename("p/v", "q/w"))), codes::BAD_NAME);
    assert_eq!(code(world.admin(rename("p/none", "w"))), codes::VOLUME_UNKNOWN);
    assert_eq!(volume(world.admin(rename("p/v", "w"))).name, "p/w");
    assert_eq!(volume(world.admin(rename("p/w", "p/w"))).name, "p/w");
    assert_eq!(world.ask(1, keepalive(&held)), alive(4 * SEGMENT));
    assert_eq!(refused(world.ask(2, open("p/v", true, false))).code, codes::VOLUME_UNKNOWN);
    assert_eq!(refused(world.ask(2, open("p/w", true, false))).code, codes::VOLUME_HELD);
    // The old name is free, also for the next leader, and the two names do not mix.
    world.make_volume("p/v", SEGMENT);
    world.crash();
    world.connect_all();
    volume(world.admin(rename("p/v", "x")));
    assert_eq!(volume(world.admin(AdminAsk::VolumeInfo { name: "p/w".into() })).volume, held.volume);
    assert_eq!(code(world.admin(AdminAsk::VolumeInfo { name: "p/v".into() })), codes::VOLUME_UNKNOWN);
    let told: Vec<&str> = world.events.iter().filter(|e| e.kind == "volume.renamed").map(|e| e.text.as_str()).collect();
    assert_eq!(told, ["volume p/v is now p/w", "volume p/v is now p/x"]);
}

#[test]
fn description_and_labels_are_kept_changed_and_shown() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 4);
    let text = |description: Option<&str>, labels: &[(&str, &str)], removed: &[&str]| VolumeText {
        description: description.map(str::to_owned),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        removed_labels: removed.iter().map(|k| (*k).to_owned()).collect(),
        ..VolumeText::default()
    };
    let create =
        |name: &str, text| AdminAsk::VolumeCreate { name: name.into(), len_bytes: SEGMENT, stripe: Stripe::NONE, text };
    assert_eq!(code(world.admin(create("p/bad", text(None, &[("a b", "")], &[])))), codes::BAD_LABEL);
    assert_eq!(code(world.admin(AdminAsk::VolumeInfo { name: "p/bad".into() })), codes::VOLUME_UNKNOWN);
    volume(world.admin(create("p/v", text(Some("a disk"), &[("tier", "front"), ("old", "1")], &[]))));
    world.crash();
    world.connect_all();
    let set = |text| AdminAsk::VolumeSet { name: "p/v".into(), text };
    let view = volume(world.admin(set(text(None, &[("tier", "back")], &["old"]))));
    assert_eq!((view.description.as_str(), view.labels), ("a disk", text(None, &[("tier", "back")], &[]).labels));
    let commits = world.commits;
    volume(world.admin(set(text(Some("a disk"), &[("tier", "back")], &["old"]))));
    assert_eq!(world.commits, commits, "a repeated command changes nothing");
    (0..3).for_each(|_| world.pass(Duration::from_secs(1)));
    let told: Vec<&str> = world.events.iter().filter(|e| e.kind == "volume.changed").map(|e| e.text.as_str()).collect();
    assert_eq!(told, ["volume p/v: label tier=back, no label old"]);
}
