//! Rules of the health checks.

use super::*;
use crate::admin::Status;
use crate::health::Check;

fn status(world: &World) -> Status {
    world.control.status(world.now)
}

fn codes(world: &World) -> Vec<String> {
    status(world).checks.into_iter().map(|c| c.code).collect()
}

fn check(world: &World, code: &str) -> Check {
    let found = status(world).checks.into_iter().find(|c| c.code == code);
    found.unwrap_or_else(|| panic!("no {code}: {:?}", codes(world)))
}

/// Passes seconds in which these OSDs are alive and the leaders report so.
fn seconds(world: &mut World, count: u32, alive: &[u32]) {
    for _ in 0..count {
        world.pass(Duration::from_secs(1));
        for n in alive {
            let silent = 3 - alive.len() as u8;
            world.heartbeat(OsdId(*n), |beat| {
                let leads = beat.pgs.iter_mut().filter_map(|pg| pg.leading.as_mut());
                leads.for_each(|l| (l.followers_in_sync, l.followers_silent) = (2 - silent, silent));
            });
        }
    }
}

fn healthy(pgs: u32) -> World {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, pgs);
    seconds(&mut world, 12, &[1, 2, 3]);
    assert_eq!((status(&world).health.as_str(), codes(&world)), ("ok", vec![]));
    world
}

#[test]
fn a_new_leader_waits_for_reports_and_calls_nothing_down() {
    let mut world = healthy(16);
    world.crash();
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.pgs_down, page.pgs_degraded, page.pgs_waiting), ("waiting", 0, 0, 16));
    assert_eq!(check(&world, "WAITING").count, 3 + 16);
    assert!(page.problems.is_empty(), "{:?}", page.problems);
    world.connect_all();
    assert_eq!(status(&world).health, "ok", "all have reported");
    world.crash();
    world.pass(Duration::from_millis(10_100));
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.pgs_down), ("down", 16), "who has not come by then is away");
}

#[test]
fn a_new_pool_waits_for_its_leaders_and_is_judged_after_a_while() {
    let mut world = healthy(4);
    world.hold = true;
    let pool = PoolCreate {
        name: "q".into(),
        replicas: 3,
        domain: "host".into(),
        pg_count: 8,
        force: false,
        device_class: None,
    };
    world.control.handle_admin(Token(900), AdminAsk::PoolCreate(pool));
    world.settle();
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.pgs_down, page.pgs_waiting), ("waiting", 0, 8));
    seconds(&mut world, 11, &[1, 2, 3]);
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.pgs_down, page.pgs_waiting), ("down", 8, 0), "its replicas never came");
}

#[test]
fn an_osd_that_dies_is_one_check_for_it_and_one_for_its_pgs() {
    let mut world = healthy(16);
    let died = world.now.wall_ms;
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.leaders = pgs.into_iter().map(|pg| (pg, (OsdId(1 + pg.n % 2), 2))).collect();
    seconds(&mut world, 8, &[1, 2]);
    assert_eq!(status(&world).health, "degraded");
    assert_eq!(check(&world, "OSD_DOWN").entities, ["osd.3"]);
    let degraded = check(&world, "PG_DEGRADED");
    assert_eq!((degraded.count, degraded.summary.as_str()), (16, "16 of 16 PGs are degraded"));
    assert_eq!((degraded.entities[0].as_str(), degraded.entities.len()), ("1.0", 16));
    assert_eq!(degraded.details[0], "pg 1.0 is active+degraded");
    let since = check(&world, "OSD_DOWN").since_ms;
    assert!((died + 5000..died + 8000).contains(&since), "{since} {died}");
    world.crash();
    (1..=2).for_each(|n| world.connect(OsdId(n)));
    seconds(&mut world, 12, &[1, 2]);
    assert_eq!(check(&world, "OSD_DOWN").since_ms, since, "another leader does not make it younger");
    world.connect(OsdId(3));
    seconds(&mut world, 2, &[1, 2, 3]);
    assert_eq!(codes(&world), Vec::<String>::new());
}

#[test]
fn a_muted_check_is_shown_and_does_not_count_until_its_time_is_over() {
    let mut world = healthy(4);
    seconds(&mut world, 8, &[1, 2]);
    let mute = |code: &str, for_ms| AdminAsk::HealthMute { code: code.into(), for_ms };
    for code in ["OSD_DOWN", "PG_DEGRADED", "PG_DOWN"] {
        world.admin(mute(code, Some(60_000))).expect("it is a check");
    }
    assert_eq!(world.admin(mute("OSD_DWON", None)).map_err(|r| r.code), Err(codes::CHECK_UNKNOWN));
    assert_eq!(status(&world).health, "ok");
    assert!(check(&world, "OSD_DOWN").muted && check(&world, "OSD_DOWN").muted_until_ms.is_some());
    world.crash();
    (1..=2).for_each(|n| world.connect(OsdId(n)));
    seconds(&mut world, 11, &[1, 2]);
    assert_eq!(status(&world).health, "ok", "mutes are durable");
    world.admin(AdminAsk::HealthUnmute { code: "PG_DEGRADED".into() }).expect("it is a check");
    assert_eq!(status(&world).health, "degraded");
    seconds(&mut world, 60, &[1, 2]);
    assert!(!check(&world, "OSD_DOWN").muted, "its time is over");
    assert!(!world.store.keys().any(|key| key.starts_with("mute/")));
    let ends = world.events.iter().filter(|e| e.kind == "health.unmuted").count();
    assert_eq!(ends, 3, "one by command, two by time");
}

#[test]
fn an_osd_that_never_ran_is_named_and_counts_nowhere() {
    let mut world = healthy(4);
    let capacity = status(&world).capacity_bytes;
    let register = OsdRegister {
        osd: None,
        uuid: OsdUuid([99; 16]),
        host: "h9".into(),
        rack: String::new(),
        zone: String::new(),
        capacity_bytes: 1 << 40,
        device_class: None,
        replaces: None,
    };
    world.admin(AdminAsk::OsdRegister(register)).expect("registered");
    seconds(&mut world, 20, &[1, 2, 3]);
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.osds, page.osds_new, page.capacity_bytes), ("ok", 3, 1, capacity));
    assert_eq!(check(&world, "OSD_NEVER_STARTED").entities, ["osd.4"]);
    assert_eq!(world.osds()[3].live, "new");
}

#[test]
fn an_osd_is_nearly_full_at_85_percent_and_full_when_it_says_so() {
    let mut world = healthy(4);
    let fill = |world: &mut World, used: u64, full: bool| {
        world.pass(Duration::from_secs(1));
        world.heartbeat(OsdId(2), |beat| (beat.used_bytes, beat.free_bytes, beat.full) = (used, 100 - used, full));
        [1, 3].into_iter().for_each(|n| world.beat(OsdId(n)));
        world.pass(Duration::from_secs(1));
        codes(world)
    };
    assert_eq!(fill(&mut world, 84, false), ["OSD_UNBALANCED"]);
    assert_eq!(fill(&mut world, 85, false), ["OSD_NEARFULL", "OSD_UNBALANCED"]);
    assert_eq!(status(&world).health, "degraded");
    assert_eq!(fill(&mut world, 97, true), ["OSD_FULL", "OSD_UNBALANCED"]);
    assert_eq!(status(&world).health, "down", "writes are refused");
    assert_eq!(fill(&mut world, 10, false), Vec::<String>::new());
    let kinds: Vec<&str> =
        world.events.iter().map(|e| e.kind.as_str()).filter(|k| k.starts_with("osd.") && k.contains("full")).collect();
    assert_eq!(kinds, ["osd.nearfull", "osd.full", "osd.full_over", "osd.nearfull_over"]);
}

#[test]
fn slow_device_is_a_check_and_an_event_at_its_begin_and_at_its_end() {
    let mut world = healthy(4);
    let beat = |world: &mut World, why: Option<&str>| {
        world.pass(Duration::from_secs(1));
        world.heartbeat(OsdId(2), |beat| beat.slow_device = why.map(str::to_owned));
        [1, 3].into_iter().for_each(|n| world.beat(OsdId(n)));
        world.pass(Duration::from_secs(1));
        codes(world)
    };
    let why = "home device /dev/sdb: reads take 50.0 ms, normally at most 4.0 ms";
    assert_eq!(beat(&mut world, Some(why)), ["OSD_SLOW_DEVICE"]);
    let found = check(&world, "OSD_SLOW_DEVICE");
    assert_eq!((found.entities, found.details), (vec!["osd.2".to_owned()], vec![format!("osd.2: {why}")]));
    assert_eq!(status(&world).health, "degraded");
    assert_eq!(beat(&mut world, Some(why)), ["OSD_SLOW_DEVICE"]);
    assert_eq!(beat(&mut world, None), Vec::<String>::new());
    let told: Vec<(&str, &str)> = world
        .events
        .iter()
        .filter(|e| e.kind.starts_with("osd.slow"))
        .map(|e| (e.kind.as_str(), e.text.as_str()))
        .collect();
    let expected = [
        ("osd.slow_device", format!("osd.2: {why}")),
        ("osd.slow_device_over", "no device of osd.2 is slow any more".to_owned()),
    ];
    assert_eq!(told, expected.each_ref().map(|(kind, text)| (*kind, text.as_str())), "once each");
}

#[test]
fn space_report_of_a_down_osd_raises_no_check() {
    let mut world = healthy(4);
    world.heartbeat(OsdId(3), |beat| (beat.used_bytes, beat.free_bytes, beat.full) = (100, 0, true));
    assert_eq!(
        (status(&world).health.as_str(), codes(&world)),
        ("down", vec!["OSD_FULL".into(), "OSD_UNBALANCED".into()])
    );
    let pgs: Vec<PgId> = world.control.records().pgs.keys().copied().collect();
    world.leaders = pgs.into_iter().map(|pg| (pg, (OsdId(1 + pg.n % 2), 2))).collect();
    seconds(&mut world, 8, &[1, 2]);
    assert_eq!(
        (status(&world).health.as_str(), codes(&world)),
        ("degraded", vec!["OSD_DOWN".into(), "PG_DEGRADED".into()])
    );
    assert!(!world.osds()[2].full);
}

#[test]
fn an_osd_that_has_not_reported_its_space_does_not_count_as_empty() {
    let mut world = healthy(4);
    let fill = |world: &mut World, osd| world.heartbeat(OsdId(osd), |b| (b.used_bytes, b.free_bytes) = (60, 40));
    world.crash();
    world.connect(OsdId(1));
    fill(&mut world, 1);
    assert_eq!(codes(&world), ["WAITING"], "two of three are not heard");
    world.pass(Duration::from_secs(11));
    fill(&mut world, 1);
    assert!(!codes(&world).contains(&"OSD_UNBALANCED".to_owned()), "two of three are down: {:?}", codes(&world));
}

/// osd.1 cannot reach osd.3.
fn cut(world: &mut World, alive: &[u32], hears: Option<OsdId>) -> Vec<String> {
    for n in alive {
        world.heartbeat(OsdId(*n), |beat| {
            beat.unreachable = if *n == 1 { vec![OsdId(3)] } else { Vec::new() };
            beat.pgs.iter_mut().filter(|pg| pg.leading.is_none()).for_each(|pg| pg.hears = hears);
        });
    }
    codes(world)
}

#[test]
fn a_link_is_cut_only_between_two_osds_that_live() {
    let unreachable = "OSD_UNREACHABLE".to_owned();
    let mut world = healthy(4);
    assert_eq!(cut(&mut world, &[1, 2, 3], None), [unreachable.as_str()]);
    assert_eq!(check(&world, "OSD_UNREACHABLE").details, ["osd.1 cannot reach osd.3"]);
    let stream = world.osd(OsdId(3)).stream;
    world.control.handle_osd_gone(stream);
    world.settle();
    assert!(!cut(&mut world, &[1, 2], None).contains(&unreachable), "its process has ended");
    world.pass(Duration::from_secs(7));
    let found = cut(&mut world, &[1, 2], None);
    assert!(found.contains(&"OSD_DOWN".to_owned()) && !found.contains(&unreachable), "{found:?}");
    // Meta does not hear the OSD, and its PGs serve: it is alive.
    let found = cut(&mut world, &[1, 2], Some(OsdId(3)));
    assert!(found.contains(&"OSD_UNHEARD".to_owned()) && found.contains(&unreachable), "{found:?}");
}

/// Successive leaders that never serve are an outage, whether an election is under way or not.
#[test]
fn pg_that_never_becomes_active_is_down_across_leader_changes() {
    let mut world = healthy(1);
    let pg = *world.control.records().pgs.keys().next().expect("a PG");
    let mut down = Vec::new();
    for turn in 0..20u32 {
        world.leaders.insert(pg, (OsdId(1 + turn % 3), u64::from(turn) + 2));
        for n in 1..=3 {
            world.heartbeat(OsdId(n), |beat| {
                beat.pgs.iter_mut().filter_map(|pg| pg.leading.as_mut()).for_each(|lead| lead.active = false);
            });
        }
        down.push(status(&world).pgs_down);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((down[1], down[5], down[12], down[19]), (0, 0, 1, 1), "{down:?}");
    assert_eq!((status(&world).health.as_str(), check(&world, "PG_DOWN").count), ("down", 1));
    let said = format!("pg {pg} is down (was active)");
    assert_eq!(world.events.iter().filter(|e| e.text == said).count(), 1, "{:?}", world.events);
    world.leaders.insert(pg, (OsdId(1), 99));
    seconds(&mut world, 1, &[1, 2, 3]);
    assert_eq!(status(&world).health, "ok");
}

#[test]
fn a_pg_whose_osds_restart_all_the_time_is_down() {
    let mut world = healthy(1);
    world.hold = true;
    for n in 1..=3 {
        let stream = world.osd(OsdId(n)).stream;
        world.control.handle_osd_gone(stream);
    }
    let mut down = Vec::new();
    for turn in 0..20u64 {
        for n in 1..=3 {
            world.osd(OsdId(n)).incarnation += 1;
            let (incarnation, stream) = (types::Incarnation(2 + turn), StreamId(world.fresh()));
            let device = types::control::DevicePosition { mount: 2 + turn, log_seq: 2 + turn, ..Default::default() };
            let replicas = world.osd(OsdId(n)).replicas.iter().copied().collect();
            let hello = types::control::OsdHello { incarnation, device, replicas, ..world::hello(OsdId(n)) };
            world.control.handle_osd(world.now, stream, OsdUp::Hello(hello));
            world.settle();
            world.control.handle_osd_gone(stream);
        }
        down.push(status(&world).pgs_down);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((down[1], down[5], down[12], down[19]), (0, 0, 1, 1), "{down:?}");
}

#[test]
fn recovery_and_client_io_are_told_as_rates() {
    let mut world = healthy(4);
    for n in 1..=6u64 {
        world.pass(Duration::from_secs(1));
        world.heartbeat(OsdId(1), |beat| {
            beat.io.writes = 1000 * n;
            beat.io.write_bytes = 4096 * 1000 * n;
            beat.recovery = types::control::RecoveryTotals { streams: 1, done_bytes: n << 20, left_bytes: 10 << 20 };
        });
    }
    let page = status(&world);
    assert_eq!((page.io.writes_per_s, page.io.write_bytes_per_s, page.io.reads_per_s), (1000, 4_096_000, 0));
    assert_eq!((page.recovery.left_bytes, page.recovery.bytes_per_s), (10 << 20, 1 << 20));
    assert_eq!((page.recovery.streams, page.recovery.eta_ms), (1, Some(10_000)));
}

#[test]
fn a_stream_that_opens_again_makes_no_pg_down() {
    let mut world = healthy(8);
    let stream = StreamId(world.fresh());
    let hello = types::control::OsdHello {
        cluster: world.control.records().cluster_id(),
        osd: OsdId(1),
        uuid: OsdUuid([1; 16]),
        incarnation: types::Incarnation(1),
        addr: ([127, 0, 0, 1], 7401).into(),
        http: None,
        capacity_bytes: 1 << 40,
        host: Some("h1".into()),
        rack: Some("r".into()),
        zone: Some("z".into()),
        device: types::control::DevicePosition {
            mount: 1,
            log_seq: 1,
            durable_seq: 1,
            restored: false,
            let_in: false,
            behind: false,
        },
        version: String::new(),
        replicas: world.osd(OsdId(1)).replicas.iter().copied().collect(),
        seen: types::control::Watermarks::default(),
    };
    world.hold = true;
    world.control.handle_osd(world.now, stream, OsdUp::Hello(hello));
    world.settle();
    let page = status(&world);
    assert_eq!((page.health.as_str(), page.pgs_down), ("waiting", 0), "its first report is on the way");
}

#[test]
fn every_rule_has_a_code_of_its_own_and_says_what_to_do() {
    for rule in crate::health::RULES {
        assert_eq!(crate::health::RULES.iter().filter(|r| r.code == rule.code).count(), 1, "{}", rule.code);
        assert!(rule.code.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{}", rule.code);
        assert!(!rule.what.is_empty() && !rule.next.is_empty(), "{}", rule.code);
    }
}

#[test]
fn a_pg_whose_only_store_stopped_is_down_and_never_called_active() {
    let mut world = World::new(1, 1);
    world.make_pool("p", 1, 2);
    world.pass(Duration::from_secs(20));
    world.beat(OsdId(1));
    let states = |world: &mut World| match world.admin(AdminAsk::PgList { pool: "p".into() }) {
        Ok(AdminAnswer::Pgs(pgs)) => pgs.into_iter().map(|pg| pg.state.join("+")).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(states(&mut world), ["active", "active"]);
    for _ in 0..20 {
        world.heartbeat(OsdId(1), |beat| beat.poisoned = Some("a write failed".into()));
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(states(&mut world), ["down", "down"]);
    let Ok(AdminAnswer::Status(status)) = world.admin(AdminAsk::Status) else { panic!("no status") };
    assert!(status.checks.iter().any(|check| check.code == "PG_DOWN"), "{:?}", status.checks);
}
