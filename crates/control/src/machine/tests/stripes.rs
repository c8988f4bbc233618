//! Striped volumes: a segment has a PG for each column, is pending until all are attached, and comes back whole.

use super::past::{finish, move_watermarks};
use super::*;
use crate::Record;
use crate::admin::{FoundSegment, RecoverAsk};
use crate::found::{Found, Table, segment_batches};
use types::control::SegmentPlace;
use types::{VolumeChunk, VolumeId};

const STRIPE: Stripe = match Stripe::new(64 << 10, 4) {
    Ok(stripe) => stripe,
    Err(_) => panic!("a layout"),
};

/// Makes a striped volume in a pool of `pgs` PGs, and opens it.
fn with_striped(pgs: u32) -> (World, Opened) {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, pgs);
    world.make_striped("p/s", 4 * SEGMENT, STRIPE);
    let held = opened(world.ask(1, open("p/s", true, false)));
    (world, held)
}

fn places(answer: ClientAnswer) -> Vec<SegmentPlace> {
    let ClientAnswer::Segments { segments, .. } = answer else { panic!("{answer:?}") };
    segments
}

fn code(answer: Result<AdminAnswer, Refusal>) -> u32 {
    answer.expect_err("it is refused").code
}

#[test]
fn volume_with_more_columns_than_the_pool_has_pgs_is_refused() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 3);
    let create = |name: &str, count| {
        let stripe = Stripe::with_count(count).expect("a layout");
        AdminAsk::VolumeCreate { name: name.into(), len_bytes: SEGMENT, stripe, text: Default::default() }
    };
    let refusal = world.admin(create("p/four", 4)).expect_err("three PGs");
    assert_eq!(refusal.code, codes::BAD_STRIPE);
    assert!(refusal.message.contains("has 3 PGs"), "{refusal}");
    let AdminAnswer::Volume(two) = world.admin(create("p/two", 2)).expect("three PGs") else { panic!("no volume") };
    assert_eq!(two.stripe, Stripe::new(512 << 10, 2).ok());
    let AdminAnswer::Volume(one) = world.admin(create("p/one", 1)).expect("any pool") else { panic!("no volume") };
    assert_eq!(one.stripe, None);
}

#[test]
fn columns_of_a_segment_lie_in_distinct_pgs_and_are_counted_once() {
    let (mut world, held) = with_striped(12);
    let placed = places(world.ask(1, segments(&held, 0..3, true)));
    let records = world.control.records();
    for place in &placed {
        let distinct: BTreeSet<PgId> = place.pgs.iter().copied().collect();
        assert_eq!((distinct.len(), place.pgs.len()), (4, 4), "{place:?}");
        let leaders: BTreeSet<OsdId> = distinct.iter().map(|pg| records.pgs[pg].members[0].osd).collect();
        assert_eq!(leaders.len(), 3, "as many as there are");
    }
    assert!(records.pgs.keys().all(|pg| (records.load_of(*pg).segments, records.load_of(*pg).chunks) == (1, 16)));
    assert_eq!(records.volumes[&held.volume].chunk_count(), 4 * 64);
    let AdminAnswer::Pools(pools) = world.admin(AdminAsk::PoolList).expect("a list") else { panic!("no list") };
    assert_eq!(pools[0].segments, 3, "columns are no segments");
    let again = opened(world.ask(2, open("p/s", true, true)));
    assert_eq!((again.stripe, again.segments), (STRIPE, placed));
    world
        .admin(AdminAsk::VolumeRemove(VolumeRemove {
            name: "p/s".into(),
            force: true,
            now: true,
            snapshots: false,
            detach: false,
        }))
        .expect("removed");
    assert!(world.control.records().pgs.keys().all(|pg| world.control.records().segments_in(*pg) == 0));
    assert!(world.attached.values().all(|attach| attach.chunk_count == 0), "every PG dropped what it held");
}

#[test]
fn segment_is_pending_until_each_of_its_pgs_is_attached() {
    let (mut world, held) = with_striped(4);
    let down = *world.control.records().pgs.keys().last().expect("four PGs");
    world.leaderless = BTreeSet::from([down]);
    let mut attaches = 0;
    for round in 0..5 {
        let req = world.req(1, segments(&held, 0..1, true));
        let ClientAnswer::Segments { segments: placed, pending, .. } = world.answer_to(req) else { panic!() };
        assert_eq!((placed.len(), &pending[..]), (0, &[SegmentIndex(0)][..]));
        world.pass(Duration::from_millis(500));
        let before = std::mem::replace(&mut attaches, world.attaches);
        assert!(round < 2 || attaches == before, "PGs that are attached are not asked again");
    }
    world.crash();
    world.connect_all();
    assert!(world.control.records().segments.values().all(|segment| segment.pending));
    world.leaderless.clear();
    let placed = places(world.ask(1, segments(&held, 0..1, true)));
    assert_eq!(placed[0].pgs.len(), 4);
    assert!(placed[0].pgs.iter().all(|pg| world.attached.contains_key(&(*pg, held.volume))));
}

/// Returns tables of all PGs, in which the columns of `places` that `holds` names hold one chunk each.
fn tables(world: &World, volume: VolumeId, places: &[SegmentPlace], holds: &[(u32, u32)]) -> Vec<Table> {
    let chunk_in = |pg: PgId| {
        let mine = holds.iter().filter(|(segment, column)| places[*segment as usize].pgs[*column as usize] == pg);
        mine.map(|(segment, column)| VolumeChunk { volume, index: segment * 64 + column * 16 + 5 }).collect()
    };
    let table = |pg: &PgId| Table {
        pg: *pg,
        leading: true,
        chunks: chunk_in(*pg),
        attached: Vec::new(),
        snapshots: Vec::new(),
    };
    world.control.records().pgs.keys().map(table).collect()
}

#[test]
fn striped_segment_is_put_back_with_each_column_in_its_pg() {
    let (mut world, held) = with_striped(8);
    let copy = world.store.clone();
    let placed = places(world.ask(1, segments(&held, 0..3, true)));
    world.lead_on(copy);
    world.connect_all();
    // The last segment was never written, and of the first one two columns only.
    let holds = [(0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)];
    let tables = tables(&world, held.volume, &placed, &holds);
    let found = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    let named: Vec<(u32, u32)> = found.segments.iter().map(|f| (f.segment.0, f.column)).collect();
    assert_eq!((named, found.doubtful.len()), (holds.to_vec(), 0));
    assert_eq!(code(put_back(&mut world, found.segments.clone())), codes::STORE_BEHIND);
    assert!(move_watermarks(&mut world, false, &[]).expect("moved").moved);
    for segments in segment_batches(&found.segments) {
        put_back(&mut world, segments).expect("put back");
    }
    world.settle();
    assert_eq!(finish(&mut world).expect("finished").recovering, 0);
    let second = opened(world.ask(2, open("p/s", true, true)));
    assert_eq!(second.segments.len(), 2);
    for (segment, column) in holds {
        let (now, before) = (&second.segments[segment as usize], &placed[segment as usize]);
        assert_eq!(now.pgs[column as usize], before.pgs[column as usize], "segment {segment} column {column}");
    }
    let distinct: BTreeSet<&PgId> = second.segments[0].pgs.iter().collect();
    assert_eq!(distinct.len(), 4, "columns without data get PGs of their own");
    assert!(world.control.records().segments.values().all(|s| !s.pending), "attached in every PG");
}

#[test]
fn segment_with_a_column_in_two_pgs_is_left_as_it_is() {
    let (mut world, held) = with_striped(8);
    let copy = world.store.clone();
    let placed = places(world.ask(1, segments(&held, 0..1, true)));
    let mut tables = tables(&world, held.volume, &placed, &[(0, 0), (0, 2)]);
    let known = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    assert_eq!((known.segments.len(), known.doubtful.len()), (0, 0), "the records know it");
    let elsewhere = tables.iter_mut().find(|table| !placed[0].pgs.contains(&table.pg)).expect("eight PGs");
    elsewhere.chunks.push(VolumeChunk { volume: held.volume, index: 33 });
    let contradicted = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    assert_eq!(contradicted.doubtful.iter().map(|f| f.column).collect::<Vec<_>>(), [2]);
    world.lead_on(copy);
    let found = Found::compare(world.control.records(), &tables, &BTreeSet::new());
    assert_eq!(found.segments, []);
    assert_eq!(found.doubtful.iter().map(|f| f.column).collect::<Vec<_>>(), [0, 2, 2]);
}

#[test]
fn columns_of_a_segment_are_never_cut_into_two_requests() {
    let pg = PgId { pool: types::PoolId(1), n: 0 };
    let row = |n: u32| FoundSegment { volume: VolumeId(1), segment: SegmentIndex(n / 3), column: n % 3, pg };
    let rows: Vec<FoundSegment> = (0..120).map(row).collect();
    let batches = segment_batches(&rows);
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [96, 24]);
    assert_eq!(batches.concat(), rows);
}

#[test]
fn lost_extent_of_a_striped_volume_is_named_by_volume_address() {
    let (mut world, held) = with_striped(4);
    let chunk = VolumeChunk { volume: held.volume, index: 16 };
    let lost = types::control::LostExtent { chunk, offset_bytes: 60 << 10, len_bytes: 8 << 10 };
    (1..=3).for_each(|n| world.heartbeat(OsdId(n), |beat| beat.pgs[0].lost = vec![lost]));
    let view = world.control.pg_views(world.now.mono, "p").expect("the pool exists").remove(0);
    assert_eq!(view.lost, [format!("volume {} bytes 126976..131072, 327680..331776", held.volume.0)]);
}

#[test]
fn record_without_a_stripe_layout_is_of_a_volume_without_stripes() {
    let (world, held) = with_striped(4);
    let record = world.control.records().volumes[&held.volume].clone();
    let key = format!("volume/{:016x}", held.volume.0);
    let json = String::from_utf8(Record::Volume(record).encode()).expect("JSON");
    let layout = r#","stripe":{"unit_bytes":65536,"count":4}"#;
    assert!(json.contains(layout), "{json}");
    let load = |json: String| {
        let mut items = world.control.records().items();
        items.iter_mut().filter(|item| item.key == key).for_each(|item| item.value = json.clone().into_bytes());
        Records::load(items)
    };
    let plain = load(json.replace(layout, "")).expect("an older record");
    assert_eq!(plain.volumes[&held.volume].stripe, Stripe::NONE);
    assert!(load(json.replace("65536", "65535")).is_err(), "no volume has such a layout");
}

fn put_back(world: &mut World, segments: Vec<FoundSegment>) -> Result<AdminAnswer, Refusal> {
    let standing = if world.control.standing() == Standing::Behind { "behind" } else { "sound" };
    let ask = RecoverAsk { segments, standing: standing.into(), ..RecoverAsk::default() };
    world.admin(AdminAsk::MetaRecover(ask))
}
