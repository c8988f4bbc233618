//! Shorter volumes: no PG takes the length before the holder has stopped, whatever dies, and data behind the end is found first.

use super::resize::volume;
use super::world::{World, opened, refused, session_of};
use super::*;
use crate::admin::{RecoverAsk, Resizing};
use crate::found::{Found, Table};
use crate::records::VolumeRecord;
use types::control::AttachedVolume;
use types::{CHUNK, SECTOR, SectorRange};

const HALF: u64 = SEGMENT / 2;

fn shrink_with(len_bytes: u64, discard: bool, force: bool) -> AdminAsk {
    let to = Resizing { len_bytes, shrink: true, discard, force };
    AdminAsk::VolumeResize { name: "p/v".into(), to }
}

pub fn shrink(len_bytes: u64) -> AdminAsk {
    shrink_with(len_bytes, false, false)
}

fn grow(len_bytes: u64) -> AdminAsk {
    AdminAsk::VolumeResize { name: "p/v".into(), to: Resizing::to(len_bytes) }
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

fn striped() -> Stripe {
    Stripe::new(1 << 18, 4).expect("a layout")
}

/// A keepalive of a client that uses nothing behind this length.
pub fn uses(held: &Opened, len_epoch: u32, len_bytes: u64) -> ClientAsk {
    ClientAsk::Keepalive { volume: held.volume, session: held.session, unreached: Vec::new(), len_epoch, len_bytes }
}

pub fn told(answer: ClientAnswer) -> (u32, u64) {
    match answer {
        ClientAnswer::Alive { len_epoch, len_bytes, .. } => (len_epoch, len_bytes),
        other => panic!("{other:?}"),
    }
}

/// Sends a keepalive as a client does, which has no request in flight: it takes the length that it is told.
pub fn renew(world: &mut World, held: &mut Opened) {
    let length = told(world.ask(1, uses(held, held.len_epoch, held.len_bytes)));
    if length > (held.len_epoch, held.len_bytes) {
        (held.len_epoch, held.len_bytes) = length;
    }
}

fn record(world: &World, id: VolumeId) -> VolumeRecord {
    world.control.records().volumes[&id].clone()
}

/// Begins a command and lets some time pass.
fn begin(world: &mut World, ask: AdminAsk) -> Token {
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "alice at home".into(), ask);
    (0..10).for_each(|_| world.pass(Duration::from_millis(50)));
    token
}

/// Checks that no PG has a shorter length while the holder uses the longer one.
fn check(world: &World, held: &Opened) {
    let record = record(world, held.volume);
    let needs = record.chunks_of(if session_of(&record) == held.session { held.len_bytes } else { 0 });
    for ((pg, volume), (len_epoch, count)) in &world.chunks {
        assert!(*volume != held.volume || *count >= needs, "{pg} has {count} chunks under {len_epoch}, of {held:?}");
    }
}

#[test]
fn pgs_take_a_shorter_length_only_when_the_holder_has_stopped() {
    for stripe in [Stripe::NONE, striped()] {
        let (mut world, mut held) = held(stripe);
        let end = SEGMENT + HALF + 3 * SECTOR;
        let token = begin(&mut world, shrink(end));
        check(&world, &held);
        assert_eq!(record(&world, held.volume).len_bytes, 4 * SEGMENT);
        // The keepalive of a client that has requests behind the end says no length.
        assert_eq!(told(world.ask(1, uses(&held, 1, 0))), (1, end));
        // One from before the shrink is no answer, however short.
        world.ask(1, uses(&held, 0, SEGMENT));
        (0..10).for_each(|_| world.pass(Duration::from_millis(50)));
        check(&world, &held);
        assert!(!world.admin_answers.contains_key(&token));
        // Meanwhile its requests may need segments behind the end.
        assert!(matches!(world.ask(1, segments(&held, 3..4, true)), ClientAnswer::Segments { .. }));

        (held.len_epoch, held.len_bytes) = (1, end);
        world.ask(1, uses(&held, 1, end));
        (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
        let view = volume(world.admin_answers.remove(&token).expect("an answer"));
        assert_eq!((view.len_bytes, view.resize_bytes, view.shrink_step), (end, None, None));
        assert_eq!(view.allocated_bytes, 2 * SEGMENT, "segments behind the end do not count");
        let record = record(&world, held.volume);
        assert_eq!((session_of(&record), record.settled), (held.session, true), "its holder goes on");
        for (_, (_, count)) in world.chunks.iter().filter(|((_, volume), _)| *volume == held.volume) {
            assert_eq!(*count, record.chunk_count());
        }
        check_wiped(&world, &record, end);
        assert_eq!(refused(world.ask(1, segments(&held, 3..4, true))).code, codes::OUT_OF_RANGE);
        let kinds: Vec<&str> = world
            .events
            .iter()
            .map(|e| e.kind.as_str())
            .filter(|k| k.contains("resize") || k.contains("shrink"))
            .collect();
        assert_eq!(kinds, ["volume.shrink_began", "volume.resized"]);
        assert!(world.events.iter().any(|e| e.kind == "volume.resized" && e.by == "alice at home"));
        // It grows again, and the holder hears of it.
        assert_eq!(volume(world.admin(grow(4 * SEGMENT))).len_bytes, 4 * SEGMENT);
        renew(&mut world, &mut held);
        assert_eq!(held.len_bytes, 4 * SEGMENT);
    }
}

/// Checks that each byte behind the end in the chunks that stay was zeroed, and none before it.
fn check_wiped(world: &World, record: &VolumeRecord, end: u64) {
    let mut bytes = 0;
    for (pg, _, chunk, range) in world.tails.wiped.iter().filter(|(_, volume, ..)| *volume == record.id) {
        let start = u64::from(*chunk) * CHUNK + u64::from(range.start) * SECTOR;
        for run in record.stripe.volume_ranges(start..start + range.len_bytes() as u64) {
            assert!(run.start >= end, "{run:?} lies before {end}");
            bytes += run.end - run.start;
        }
        let segment = &world.control.records().segments[&(record.id, SegmentIndex(chunk / 64))];
        let column = record.stripe.column_of(*chunk) as usize;
        assert_eq!(segment.pgs().nth(column), Some(*pg), "the PG has chunk {chunk}");
    }
    let whole = if record.stripe.is_striped() { SEGMENT } else { CHUNK };
    assert_eq!(bytes, end.next_multiple_of(whole) - end);
}

#[test]
fn data_behind_the_new_end_ends_a_shrink_unless_it_is_to_go() {
    let (mut world, mut held) = held(Stripe::NONE);
    let pg = world.control.records().segments[&(held.volume, SegmentIndex(2))].pg;
    world.tails.data.insert((pg, held.volume), 2 * 64 + 9);
    let token = begin(&mut world, shrink(SEGMENT));
    renew(&mut world, &mut held);
    renew(&mut world, &mut held);
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    let refused = world.admin_answers.remove(&token).expect("an answer").expect_err("there is data");
    assert!(refused.code == codes::SHRINK_DATA && refused.message.contains("chunk 137"), "{refused:?}");
    renew(&mut world, &mut held);
    assert_eq!(held.len_bytes, 4 * SEGMENT, "the holder may use all again");
    check(&world, &held);
    assert_eq!(record(&world, held.volume).attached_chunks(), 4 * 64);
    assert!(world.events.iter().any(|e| e.kind == "volume.shrink_refused"));

    let token = begin(&mut world, shrink_with(SEGMENT, true, false));
    renew(&mut world, &mut held);
    renew(&mut world, &mut held);
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    assert_eq!(volume(world.admin_answers.remove(&token).expect("an answer")).len_bytes, SEGMENT);
    assert!(world.tails.wiped.is_empty(), "the end is that of a chunk");
}

/// Begins a shrink to 1.5 GiB after the records went back to a time before a length of one PG, with this number of chunks. With `discard`
/// nothing is searched: the PG is asked when what is behind the end is wiped.
fn shrink_below_a_later_length(discard: bool, count: u32) -> (World, Opened, PgId, Result<AdminAnswer, Refusal>) {
    let (mut world, mut held) = held(Stripe::NONE);
    let pg = world.control.records().segments[&(held.volume, SegmentIndex(1))].pg;
    *world.chunks.get_mut(&(pg, held.volume)).expect("it is there") = (40, count);
    world.went_back = true;
    let token = begin(&mut world, shrink_with(SEGMENT + HALF + 3 * SECTOR, discard, false));
    for _ in 0..40 {
        renew(&mut world, &mut held);
        world.pass(Duration::from_millis(50));
    }
    let answer = world.admin_answers.remove(&token).expect("an answer");
    let after = record(&world, held.volume);
    assert_eq!((session_of(&after), after.settled, &after.resize), (held.session, true, &None));
    assert_eq!((held.len_epoch, held.len_bytes), after.usable());
    assert!(after.len_epoch > 40);
    (world, held, pg, answer)
}

#[test]
fn greater_length_that_only_a_pg_knows_ends_a_shrink_and_counts() {
    for discard in [false, true] {
        let (mut world, held, pg, answer) = shrink_below_a_later_length(discard, 6 * 64);
        assert_eq!(answer.expect_err("it has no effect").code, codes::VOLUME_BUSY);
        assert_eq!(record(&world, held.volume).len_bytes, 6 * SEGMENT);
        assert!(world.events.iter().any(|e| e.kind == "volume.shrink_refused" && e.text.contains("later length")));
        // The next opener attaches that length.
        opened(world.ask(2, open("p/v", true, true)));
        assert_eq!(world.chunks[&(pg, held.volume)].1, 6 * 64);
    }
}

#[test]
fn ordered_shrink_goes_on_above_a_smaller_length_of_a_pg() {
    let (world, held, ..) = shrink_below_a_later_length(true, 64);
    let after = record(&world, held.volume);
    let end = SEGMENT + HALF + 3 * SECTOR;
    assert_eq!(after.len_bytes, end);
    check_wiped(&world, &after, end);
    // A search ends the shrink: the client was told more than the PG has.
    let (world, held, pg, answer) = shrink_below_a_later_length(false, 64);
    assert_eq!(answer.expect_err("it has no effect").code, codes::VOLUME_BUSY);
    assert_eq!(record(&world, held.volume).len_bytes, 4 * SEGMENT);
    assert_eq!(world.chunks[&(pg, held.volume)].1, 4 * 64);
}

#[test]
fn holder_that_is_silent_loses_the_volume_and_the_shrink_goes_on() {
    let (mut world, held) = held(Stripe::NONE);
    let token = begin(&mut world, shrink(SEGMENT));
    (0..120).for_each(|_| {
        world.pass(Duration::from_millis(50));
    });
    let waits = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
    assert!(waits.code == codes::VOLUME_BUSY && waits.message.contains("has not confirmed"), "{waits:?}");
    check(&world, &held);
    (0..120).for_each(|_| world.pass(Duration::from_millis(50)));
    let record = record(&world, held.volume);
    assert_eq!((record.len_bytes, record.is_held(), record.resize), (SEGMENT, false, None));
    assert!(record.epoch > held.epoch && world.attached.values().all(|a| a.writers.is_empty()));
    assert_eq!(volume(world.admin(shrink(SEGMENT))).len_bytes, SEGMENT);
    assert_eq!(refused(world.ask(1, uses(&held, 0, 0))).code, codes::SESSION_FENCED);
}

#[test]
fn force_takes_the_volume_at_once_and_the_present_size_ends_a_shrink() {
    let (mut world, mut held) = held(Stripe::NONE);
    let token = begin(&mut world, shrink(SEGMENT));
    assert_eq!(volume(world.admin(grow(4 * SEGMENT))).len_bytes, 4 * SEGMENT);
    let taken_back = world.admin_answers.remove(&token).expect("an answer").expect_err("it was taken back");
    assert_eq!(taken_back.code, codes::VOLUME_BUSY);
    renew(&mut world, &mut held);
    assert_eq!((held.len_epoch, held.len_bytes), (2, 4 * SEGMENT));
    check(&world, &held);
    assert_eq!(world.admin(shrink(5 * SEGMENT)).expect_err("it is longer").code, codes::BAD_SIZE);
    begin(&mut world, shrink(SEGMENT));
    assert_eq!(
        volume(world.admin(shrink_with(SEGMENT, false, true))).len_bytes,
        SEGMENT,
        "a joined request adds the force"
    );
    assert!(!record(&world, held.volume).is_held());
}

/// The answer to a repeated request is no confirmation: the session was told the longer length before.
#[test]
fn repeated_open_of_a_holder_confirms_no_shorter_length() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    world.make_volume("p/v", 4 * SEGMENT);
    let first = world.req(1, open("p/v", true, false));
    let again = ClientReq { token: world.fresh_token(), ..first.clone() };
    let held = opened(world.answer_to(first));
    world.ask(1, segments(&held, 0..3, true));
    let token = begin(&mut world, shrink_with(SEGMENT, true, false));
    let again = opened(world.answer_to(again));
    assert_eq!((again.session, again.len_bytes), (held.session, SEGMENT));
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    assert!(!world.admin_answers.contains_key(&token), "it may have requests behind the end");
    check(&world, &held);
}

#[test]
fn opener_during_a_shrink_sees_the_shorter_length_alone() {
    for force in [false, true] {
        opener_during_a_shrink(force);
    }
}

/// It was told the shorter length alone, so it need not confirm it, and keeps the volume.
fn opener_during_a_shrink(force: bool) {
    let (mut world, first) = held(Stripe::NONE);
    // A PG without a leader holds the shrink up.
    let pg = world.control.records().segments[&(first.volume, SegmentIndex(1))].pg;
    if force {
        world.leaderless.insert(pg);
    }
    let token = begin(&mut world, shrink_with(SEGMENT + HALF, false, force));
    world.leaderless.clear();
    let second = opened(world.ask(2, open("p/v", true, true)));
    assert_eq!((second.len_bytes, second.segments.len()), (SEGMENT + HALF, 2));
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    assert_eq!(volume(world.admin_answers.remove(&token).expect("an answer")).len_bytes, SEGMENT + HALF);
    assert_eq!(session_of(&record(&world, first.volume)), second.session);
    let reader = opened(world.ask(3, open("p/v", false, false)));
    assert_eq!(reader.len_bytes, SEGMENT + HALF);
}

/// Its open takes longer than the pause between two looks at the shrink.
#[test]
fn forced_shrink_does_not_fence_an_opener_that_was_told_nothing() {
    let (mut world, first) = held(Stripe::NONE);
    let pg = world.control.records().segments[&(first.volume, SegmentIndex(1))].pg;
    world.leaderless.insert(pg);
    let token = begin(&mut world, shrink_with(SEGMENT + HALF, false, true));
    let second = world.req(2, open("p/v", true, true));
    let answered = second.token;
    world.control.handle_client(second);
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    let session = session_of(&record(&world, first.volume));
    assert!(session.0 != 0 && session != first.session);
    world.leaderless.clear();
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    let second = opened(world.answers.remove(&answered).expect("an answer"));
    assert_eq!((second.session, second.len_bytes), (session, SEGMENT + HALF));
    assert_eq!(volume(world.admin_answers.remove(&token).expect("an answer")).len_bytes, SEGMENT + HALF);
    assert_eq!(session_of(&record(&world, first.volume)), session);
}

#[test]
fn shrink_survives_a_leader_that_dies_at_any_step() {
    let mut cuts = 0;
    loop {
        let (mut world, mut held) = held(if cuts % 2 == 0 { Stripe::NONE } else { striped() });
        let end = SEGMENT + HALF;
        let token = world.fresh_token();
        world.control.handle_admin(token, shrink(end));
        let mut ended = false;
        for step in 0..cuts {
            if step % 5 == 4 {
                renew(&mut world, &mut held);
            }
            ended = !world.step();
            check(&world, &held);
        }
        world.crash();
        world.connect_all();
        for _ in 0..40 {
            world.pass(Duration::from_millis(50));
            renew(&mut world, &mut held);
            check(&world, &held);
        }
        // The next leader has finished what was recorded, or knows nothing of it.
        let after = record(&world, held.volume);
        assert!(after.resize.is_none() && after.settled, "{after:?}");
        assert!([4 * SEGMENT, end].contains(&after.len_bytes));
        begin(&mut world, shrink(end));
        for _ in 0..20 {
            renew(&mut world, &mut held);
            world.pass(Duration::from_millis(50));
        }
        let after = record(&world, held.volume);
        assert_eq!((after.len_bytes, session_of(&after)), (end, held.session));
        check_wiped(&world, &after, end);
        if ended && cuts > 60 {
            break;
        }
        cuts += 1;
        assert!(cuts < 400, "it never ends");
    }
}

#[test]
fn pg_without_a_leader_holds_a_shrink_up_and_nothing_else() {
    let (mut world, mut held) = held(Stripe::NONE);
    let pg = world.control.records().segments[&(held.volume, SegmentIndex(1))].pg;
    world.leaderless = BTreeSet::from([pg]);
    let token = begin(&mut world, shrink(SEGMENT + HALF));
    (0..140).for_each(|_| {
        renew(&mut world, &mut held);
        world.pass(Duration::from_millis(50));
    });
    let waits = world.admin_answers.remove(&token).expect("an answer").expect_err("it goes on");
    assert!(waits.message.contains("1 of its PGs are searched"), "{waits:?}");
    world.leaderless.clear();
    (0..20).for_each(|_| {
        renew(&mut world, &mut held);
        world.pass(Duration::from_millis(50));
    });
    assert_eq!(record(&world, held.volume).len_bytes, SEGMENT + HALF);
    check_wiped(&world, &record(&world, held.volume), SEGMENT + HALF);
}

#[test]
fn other_changes_of_the_volume_wait_for_a_shrink() {
    let (mut world, held) = held(Stripe::NONE);
    begin(&mut world, shrink(SEGMENT));
    for other in [shrink(2 * SEGMENT), grow(5 * SEGMENT)] {
        assert_eq!(world.admin(other).expect_err("one goes on").code, codes::VOLUME_BUSY);
    }
    let view = volume(world.admin(AdminAsk::VolumeInfo { name: "p/v".into() }));
    assert_eq!((view.resize_bytes, view.shrink_step.as_deref()), (Some(SEGMENT), Some("client")));
    check(&world, &held);
}

/// Puts older records in the place of the present ones, and recovers them from what the PGs know. Returns the lengths that were found.
fn recover(world: &mut World, held: &Opened, copy: BTreeMap<String, (Vec<u8>, u64)>) -> Vec<(u64, u64)> {
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
        let (chunks, snapshots) = (Vec::new(), Vec::new());
        Table { pg: *pg, leading: true, chunks, attached: attached.into_iter().collect(), snapshots }
    };
    let tables: Vec<Table> = world.control.records().pgs.keys().map(table).collect();
    world.lead_on(copy);
    world.connect_all();
    assert_eq!(world.control.standing(), Standing::Behind);
    let found = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    while world.control.standing() == Standing::Behind {
        let ask = RecoverAsk { standing: "behind".into(), lengths: found.lengths(), ..RecoverAsk::default() };
        world.admin(AdminAsk::MetaRecover(ask)).expect("a step");
    }
    world.settle();
    super::past::finish(world).expect("finished");
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    assert!(Found::compare(world.control.records(), &tables, &BTreeSet::new()).longer_volumes.is_empty());
    found.longer_volumes.iter().map(|v| (v.len_bytes, v.found_bytes)).collect()
}

/// Makes the volume shorter, with a holder that stops at once.
fn shorten(world: &mut World, held: &mut Opened, len_bytes: u64) {
    begin(world, shrink(len_bytes));
    renew(world, held);
    renew(world, held);
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    renew(world, held);
    assert_eq!((record(world, held.volume).len_bytes, held.len_bytes), (len_bytes, len_bytes));
}

/// Records from before a shrink: the PGs know it, and it is done again.
#[test]
fn older_records_do_not_undo_a_shrink_that_was_made_since() {
    let (mut world, mut held) = held(Stripe::NONE);
    let copy = world.store.clone();
    shorten(&mut world, &mut held, SEGMENT + HALF);
    assert_eq!(recover(&mut world, &held, copy), [(4 * SEGMENT, SEGMENT + HALF)]);
    let after = record(&world, held.volume);
    assert_eq!((after.len_bytes, after.resize, after.recovering), (SEGMENT + HALF, None, false));
    assert!(world.chunks.values().all(|(len_epoch, count)| *len_epoch >= 3 && *count == 64 + 32), "{:?}", world.chunks);
    let again = opened(world.ask(2, open("p/v", true, false)));
    assert_eq!(again.len_bytes, SEGMENT + HALF);
}

/// The PGs know a number of chunks. Where in the last one the volume ends is lost with the records, so nothing there may be zeroed.
#[test]
fn recovery_wipes_nothing_behind_an_end_that_it_can_only_guess() {
    let (mut world, mut held) = held(Stripe::NONE);
    shorten(&mut world, &mut held, SEGMENT + SECTOR);
    let copy = world.store.clone();
    volume(world.admin(grow(SEGMENT + CHUNK / 2)));
    shorten(&mut world, &mut held, SEGMENT + CHUNK / 4);
    volume(world.admin(grow(SEGMENT + CHUNK - SECTOR)));
    let wiped = world.tails.wiped.len();
    assert_eq!(recover(&mut world, &held, copy), [(SEGMENT + SECTOR, SEGMENT + CHUNK)]);
    assert_eq!((record(&world, held.volume).len_bytes, world.tails.wiped.len()), (SEGMENT + CHUNK, wiped));
}

/// A shrink that an administrator took back leaves no trace in the PGs, and must not come back with older records.
#[test]
fn recovery_drops_a_shrink_that_was_not_ordered() {
    let (mut world, held) = held(Stripe::NONE);
    begin(&mut world, shrink_with(SEGMENT, true, false));
    assert!(record(&world, held.volume).shrink().is_some_and(|shrink| !shrink.ordered));
    let copy = world.store.clone();
    volume(world.admin(shrink(4 * SEGMENT)));
    // Something that OSDs remember.
    world.make_volume("p/w", SEGMENT);
    assert_eq!(recover(&mut world, &held, copy), []);
    let after = record(&world, held.volume);
    assert_eq!((after.len_bytes, after.resize), (4 * SEGMENT, None));
    assert!(world.chunks.iter().all(|((_, volume), (_, count))| *volume != held.volume || *count == 4 * 64));
}

/// A PG that goes back to before a shrink has the data behind the end again. A resize that waits does not keep it.
#[test]
fn forced_recovery_wipes_behind_the_end_whatever_resize_waits() {
    for ask in [shrink_with(SEGMENT, true, false), grow(2 * SEGMENT)] {
        let (mut world, mut held) = held(Stripe::NONE);
        shorten(&mut world, &mut held, SEGMENT + HALF);
        world.leaderless = crate::plan::pgs_of_volume(world.control.records(), held.volume).into_iter().collect();
        let token = begin(&mut world, ask);
        let before = record(&world, held.volume);
        assert!(before.resize.is_some() && crate::plan::wiped_end(&before).is_none(), "{before:?}");
        let writes = crate::plan::fence_volume(world.control.records(), &before, SessionId(u64::MAX));
        world.control.write(writes);
        world.control.attach_everywhere(held.volume);
        let after = record(&world, held.volume);
        assert_eq!(crate::plan::wiped_end(&after), Some(SEGMENT + HALF), "{after:?}");
        assert!(after.len_epoch > before.len_epoch);
        world.leaderless.clear();
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        let after = record(&world, held.volume);
        assert_eq!((after.len_bytes, after.resize.clone(), after.settled), (SEGMENT + HALF, None, true), "{after:?}");
        let refusal = world.admin_answers.remove(&token).expect("an answer").expect_err("it is given up");
        assert_eq!(refusal.code, codes::VOLUME_BUSY, "{refusal}");
    }
}

/// Zeros behind the end for one rollback lie below its head. Another rollback begins again.
#[test]
fn each_rollback_of_a_shortened_volume_has_its_own_epoch() {
    let (mut world, mut held) = held(Stripe::NONE);
    super::snapshots::made(world.admin(super::snapshots::create(&["p/v@s"])));
    shorten(&mut world, &mut held, SEGMENT + SECTOR);
    let close = ClientAsk::Close { volume: held.volume, session: held.session };
    assert_eq!(world.ask(1, close), ClientAnswer::Closed);
    let before = record(&world, held.volume).len_epoch;
    volume(world.admin(AdminAsk::SnapshotRollback { name: "p/v@s".into(), force: false }));
    let after = record(&world, held.volume);
    assert_eq!((after.len_bytes, after.rollback, after.len_epoch), (SEGMENT + SECTOR, None, before + 2));
}

#[test]
fn tail_of_a_striped_volume_has_each_byte_behind_its_end_once() {
    let (world, held) = held(striped());
    let record = record(&world, held.volume);
    for end in [SEGMENT, SEGMENT + 512, SEGMENT + 5 * (1 << 18) + 4096, 2 * SEGMENT - 512] {
        let mut bytes = 0;
        for pg in crate::plan::pgs_of_volume(world.control.records(), record.id) {
            let tail = crate::plan::tail_of(world.control.records(), &record, pg, end);
            assert_eq!(tail.from_chunk, record.chunks_of(end));
            bytes += tail.parts.iter().map(|(_, range): &(u32, SectorRange)| range.len_bytes() as u64).sum::<u64>();
        }
        assert_eq!(bytes, end.next_multiple_of(SEGMENT) - end, "behind {end}");
    }
}
