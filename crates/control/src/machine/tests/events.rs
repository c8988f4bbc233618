//! Rules of the events.

use super::*;
use crate::admin::VolumeText;
use crate::events::{EVENTS_MAX, Level, Note};
use world::Death;

/// Returns the stored events, oldest first.
fn stored(world: &World) -> Vec<Event> {
    let mut world = world.control.records().clone();
    std::mem::take(&mut world.events).into_values().collect()
}

fn of(events: &[Event], kind: &str) -> Vec<String> {
    events.iter().filter(|e| e.kind == kind).map(|e| e.text.clone()).collect()
}

fn seconds(world: &mut World, count: u32, alive: &[u32]) {
    for _ in 0..count {
        world.pass(Duration::from_secs(1));
        alive.iter().for_each(|n| world.beat(OsdId(*n)));
    }
}

/// Reports the states of these PGs as their leaders do: served by all replicas, or with one less.
fn whole(world: &mut World, pgs: std::ops::Range<u32>, whole: bool) {
    for n in 1..=3 {
        world.heartbeat(OsdId(n), |beat| {
            let some = beat.pgs.iter_mut().filter(|pg| pgs.contains(&pg.pg.n));
            let leads = some.filter_map(|pg| pg.leading.as_mut());
            leads.for_each(|l| (l.followers_in_sync, l.followers_behind) = if whole { (2, 0) } else { (1, 1) });
        });
    }
}

#[test]
fn events_of_open_steal_and_close_name_the_client_and_its_address() {
    let mut world = with_volume(4);
    opened(world.ask(1, open("p/v", true, false)));
    let held = opened(world.ask(2, open("p/v", true, true)));
    opened(world.ask(3, open("p/v", false, false)));
    world.ask(2, ClientAsk::Close { volume: held.volume, session: held.session });
    (0..4).for_each(|_| world.pass(Duration::from_secs(1)));
    let events = stored(&world);
    assert_eq!(of(&events, "volume.attached"), ["test at 10.0.0.1:999 opened volume p/v"], "a reader is no event");
    assert_eq!(
        of(&events, "volume.stolen"),
        ["test at 10.0.0.1:999 force-attached volume p/v and fenced test at 10.0.0.1:999"]
    );
    assert_eq!(of(&events, "volume.detached"), ["test at 10.0.0.1:999 closed volume p/v"]);
    let stolen = events.iter().find(|e| e.kind == "volume.stolen").expect("just seen");
    assert_eq!((stolen.level, stolen.by.as_str()), (Level::Warning, "test at 10.0.0.1:999"));
    assert_eq!(of(&events, "volume.created"), ["volume p/v is created: 4 GiB"]);
    assert_eq!(of(&events, "pool.created"), ["pool p is created: 3 replicas, failure domain host"]);
    assert_eq!(world.events, events, "what is told to the log is what is stored");
}

#[test]
fn osd_goes_down_and_comes_back_once_across_meta_leaders() {
    let mut world = World::new(1, 3);
    seconds(&mut world, 3, &[1, 2, 3]);
    assert_eq!(of(&stored(&world), "osd.up").len(), 3, "the first start of each");
    seconds(&mut world, 8, &[1, 2]);
    world.crash();
    world.control.lead_as("10.0.0.2:7300");
    (1..=2).for_each(|n| world.connect(OsdId(n)));
    seconds(&mut world, 12, &[1, 2]);
    assert_eq!(of(&stored(&world), "osd.down"), ["osd.3 on h3 (127.0.0.1:7403) is down"]);
    assert_eq!(of(&stored(&world), "meta.leads"), ["the meta at 10.0.0.2:7300 leads"]);
    world.connect(OsdId(3));
    seconds(&mut world, 2, &[1, 2, 3]);
    assert_eq!(of(&stored(&world), "osd.up")[3..], ["osd.3 on h3 (127.0.0.1:7403) is up"]);
    world.restart(OsdId(2));
    assert_eq!(of(&stored(&world), "osd.restarted").len(), 1, "a restart that is too quick to be a death");
}

#[test]
fn many_pgs_that_change_together_are_one_event_and_few_have_one_each() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 200);
    seconds(&mut world, 12, &[1, 2, 3]);
    assert_eq!(of(&stored(&world), "pg.state"), Vec::<String>::new(), "that PGs begin is no event");
    whole(&mut world, 0..200, false);
    world.pass(Duration::from_secs(1));
    let lines = of(&stored(&world), "pg.state");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("200 PGs of pool p are active+degraded (were active): 1.0 1.1 1.2"), "{lines:?}");
    whole(&mut world, 0..200, true);
    whole(&mut world, 7..9, false);
    seconds(&mut world, 1, &[]);
    whole(&mut world, 7..9, false);
    world.pass(Duration::from_secs(2));
    whole(&mut world, 0..200, true);
    seconds(&mut world, 5, &[1, 2, 3]);
    let lines = of(&stored(&world), "pg.state");
    let last = ["pg 1.7 is active (was active+degraded)", "pg 1.8 is active (was active+degraded)"];
    assert_eq!(lines[lines.len() - 2..], last);
}

#[test]
fn flapping_pg_has_rare_events_and_a_last_one_with_its_final_state() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 8);
    seconds(&mut world, 12, &[1, 2, 3]);
    for turn in 0..1800 {
        whole(&mut world, 3..4, turn % 2 == 0);
        world.pass(Duration::from_secs(1));
    }
    let lines = of(&stored(&world), "pg.state");
    assert!((4..25).contains(&lines.len()), "{} events in half an hour", lines.len());
    whole(&mut world, 3..4, true);
    seconds(&mut world, 400, &[1, 2, 3]);
    assert!(of(&stored(&world), "pg.state").last().expect("events").starts_with("pg 1.3 is active (was"));
}

#[test]
fn an_event_that_had_to_wait_has_the_time_of_its_change() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 8);
    seconds(&mut world, 12, &[1, 2, 3]);
    // Changes in a row make the events of the PG rare.
    for turn in 0..9 {
        whole(&mut world, 3..4, turn % 2 == 1);
        seconds(&mut world, 4, &[]);
    }
    whole(&mut world, 3..4, true);
    world.pass(Duration::from_secs(1));
    let changed = world.now.wall_ms;
    let before = of(&stored(&world), "pg.state").len();
    for _ in 0..300 {
        whole(&mut world, 3..4, true);
        world.pass(Duration::from_secs(1));
    }
    let events: Vec<Event> = stored(&world).into_iter().filter(|e| e.kind == "pg.state").collect();
    assert!(events.len() > before, "the last change waited");
    let last = events.last().expect("events");
    assert!(last.text.starts_with("pg 1.3 is active (was"), "{}", last.text);
    assert!(last.at_ms.abs_diff(changed) <= 2000, "{} ms late", last.at_ms.abs_diff(changed));
}

#[test]
fn osd_without_an_up_event_is_up_for_the_first_time_in_any_process() {
    let mut world = World::new(1, 3);
    world.restart(OsdId(3));
    seconds(&mut world, 4, &[1, 2, 3]);
    let events = stored(&world);
    assert_eq!((of(&events, "osd.up").len(), of(&events, "osd.restarted").len()), (3, 0), "{events:?}");
}

/// The case has more PGs than the stored record remembers: the leading meta remembers the others itself.
#[test]
fn change_of_thousands_of_pgs_is_one_event_and_so_is_their_recovery() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1200);
    seconds(&mut world, 12, &[1, 2, 3]);
    whole(&mut world, 0..1200, false);
    for _ in 0..10 {
        (0..4).for_each(|_| world.pass(Duration::from_millis(1100)));
        whole(&mut world, 0..1200, false);
    }
    let lines = of(&stored(&world), "pg.state");
    assert_eq!(lines.len(), 1, "a state that lasts is told once: {lines:?}");
    assert!(lines[0].starts_with("1200 PGs of pool p are active+degraded (were active): "), "{lines:?}");
    whole(&mut world, 0..1200, true);
    (0..4).for_each(|_| world.pass(Duration::from_secs(1)));
    let lines = of(&stored(&world), "pg.state");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].starts_with("1200 PGs of pool p are active (were active+degraded): "), "{lines:?}");
}

#[test]
fn each_command_of_an_administrator_for_a_volume_has_its_event() {
    let mut world = with_volume(4);
    for n in 0..5 {
        let text = VolumeText { description: Some(format!("change {n}")), ..VolumeText::default() };
        let token = world.fresh_token();
        world.control.handle_admin_of(token, "ops".into(), AdminAsk::VolumeSet { name: "p/v".into(), text });
        world.settle();
    }
    let told = stored(&world).into_iter().filter(|e| e.kind == "volume.changed").count();
    assert_eq!(told, 5);
}

/// The ring of events keeps the record of an outage, whatever a client does.
#[test]
fn client_that_reopens_all_the_time_has_rare_events_and_a_last_one() {
    let mut world = with_volume(4);
    let turn = |world: &mut World| {
        let held = opened(world.ask(1, open("p/v", true, false)));
        world.ask(1, ClientAsk::Close { volume: held.volume, session: held.session });
    };
    let of_volume = |world: &World| -> Vec<Event> {
        let told = |e: &Event| ["volume.attached", "volume.detached"].contains(&e.kind.as_str());
        stored(world).into_iter().filter(told).collect()
    };
    for _ in 0..1800 {
        turn(&mut world);
        world.pass(Duration::from_secs(1));
    }
    let events = of_volume(&world);
    assert!((8..50).contains(&events.len()), "{} events in half an hour", events.len());
    let last = opened(world.ask(1, open("p/v", true, false)));
    let opened_ms = world.now.wall_ms;
    (0..400).for_each(|_| world.pass(Duration::from_secs(1)));
    let events = of_volume(&world);
    let end = events.last().expect("events");
    assert_eq!((end.kind.as_str(), end.at_ms), ("volume.attached", opened_ms), "what is true in the end is told");
    assert!(end.text.starts_with("test at 10.0.0.1:999 opened volume p/v; "), "{}", end.text);
    assert!(end.text.ends_with(" more since the last event of this kind"), "{}", end.text);
    (0..400).for_each(|_| world.pass(Duration::from_secs(1)));
    assert_eq!(of_volume(&world).len(), events.len(), "it is told once");
    world.ask(1, ClientAsk::Close { volume: last.volume, session: last.session });
    let events = of_volume(&world);
    assert_eq!(events.last().map(|e| e.text.as_str()), Some("test at 10.0.0.1:999 closed volume p/v"), "at once");
}

#[test]
fn leaders_that_change_together_are_one_event() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 30);
    seconds(&mut world, 12, &[1, 2, 3]);
    assert_eq!(of(&stored(&world), "pg.leader"), Vec::<String>::new(), "the first leader is no change");
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.leaders = pgs.into_iter().map(|pg| (pg, (OsdId(1), 2))).collect();
    seconds(&mut world, 2, &[1, 2, 3]);
    let lines = of(&stored(&world), "pg.leader");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("20 PGs of pool p have another leader: "), "{lines:?}");
}

#[test]
fn the_store_keeps_a_bounded_number_of_events_in_order() {
    let mut records = Records::default();
    let mut keys = std::collections::BTreeSet::new();
    for n in 0..EVENTS_MAX + 500 {
        let event = Note::info("osd.up", OsdId(1), format!("{n}")).record(&records, n);
        let write = event.write();
        let Write::Put(record) = &write else { panic!("an event is put") };
        keys.insert(record.key().to_string());
        records.apply(&write);
    }
    assert_eq!((keys.len() as u64, records.events.len() as u64), (EVENTS_MAX, EVENTS_MAX));
    let seqs: Vec<u64> = records.events.keys().copied().collect();
    assert_eq!((seqs[0], records.last_event()), (501, EVENTS_MAX + 500));
}

/// Metas die at any commit: for each OSD `down` and `up` alternate in the stored events, and no number is missing.
#[test]
fn a_change_of_the_leading_meta_neither_loses_nor_repeats_an_event() {
    let (mut deaths, mut changes) = (0, 0);
    for seed in 1..=30 {
        let mut world = World::new(seed, 3);
        world.make_pool("p", 3, 4);
        world.death = Death::OneIn(15);
        let mut alive = [true; 3];
        for _ in 0..60 {
            let at = world.rng.below(3) as usize;
            alive[at] = !alive[at];
            for _ in 0..world.rng.between(3, 14) {
                let before = world.deaths;
                world.pass(Duration::from_secs(1));
                for n in (1..=3).filter(|n| alive[*n as usize - 1]) {
                    match world.deaths == before {
                        true => world.beat(OsdId(n)),
                        false => world.connect(OsdId(n)),
                    }
                }
            }
        }
        deaths += world.deaths;
        world.death = Death::Never;
        seconds(&mut world, 400, &[1, 2, 3]);
        world.connect_all();
        seconds(&mut world, 20, &[1, 2, 3]);
        let events = stored(&world);
        assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq), "seed {seed}: numbers without gaps");
        for n in 1..=3 {
            let osd = OsdId(n).to_string();
            let turns: Vec<&str> = events
                .iter()
                .filter(|e| e.subject == osd && ["osd.up", "osd.down"].contains(&e.kind.as_str()))
                .map(|e| e.kind.as_str())
                .collect();
            changes += turns.len();
            assert!(turns.windows(2).all(|two| two[0] != two[1]), "seed {seed}: {osd}: {turns:?}");
            assert_eq!(turns.last(), Some(&"osd.up"), "seed {seed}: what is true in the end is told");
        }
    }
    assert!(deaths > 50 && changes > 300, "only {deaths} deaths and {changes} changes");
}
