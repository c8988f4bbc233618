//! Many cuts at once: storms in which orders and their answers are lost, late and refused, and bounds of transactions.

use super::snapshots::{check_ready, check_rest, code, create, deliver_up_to, held, is_cut, made, remove};
use super::world::{Death, World, opened};
use super::*;
use types::cut::CutRefusal;

/// Delivers one random message of those on the way. Orders about snapshots are lost, sent twice or late, and refused; their answers
/// are lost or `late`.
fn deliver_some(world: &mut World, late: &mut Vec<(StreamId, OsdUp)>) {
    if !late.is_empty() && world.rng.chance(1, 4) {
        let at = world.rng.below(late.len() as u64) as usize;
        let (stream, up) = late.swap_remove(at);
        world.control.handle_osd(world.now, stream, up);
    }
    if world.queue.is_empty() {
        return;
    }
    let at = world.rng.below(world.queue.len() as u64) as usize;
    let (stream, down) = world.queue.remove(at).expect("it is in range");
    let OsdDown::Snapshots { pg, order } = &down else { return world.arrive(stream, down) };
    let pg = *pg;
    match world.rng.below(24) {
        0 => {}
        1 => {
            world.queue.push_back((stream, down.clone()));
            world.arrive(stream, down);
        }
        2 | 3 => world.queue.push_back((stream, down)),
        4 | 5 => {
            let hint = Some(OsdId(1 + world.rng.below(3) as u32));
            let refusals = [CutRefusal::Busy, CutRefusal::NotLeader { hint }, CutRefusal::NotLeader { hint: None }];
            let answer = order.refuse(refusals[world.rng.below(3) as usize]);
            world.control.handle_osd(world.now, stream, OsdUp::Snapshots { pg, answer });
        }
        6 | 7 => {
            let answer = world.take_order(pg, order);
            if world.rng.chance(1, 2) {
                late.push((stream, OsdUp::Snapshots { pg, answer }));
            }
        }
        _ => world.arrive(stream, down),
    }
}

/// A command of the storm.
fn command(world: &mut World, held: &[Opened; 2]) {
    let n = world.rng.below(6);
    let name = format!("p/{}@s{n}", if world.rng.chance(1, 2) { "a" } else { "b" });
    match world.rng.below(8) {
        0..=2 => {
            let token = world.fresh_token();
            world.control.handle_admin(token, create(&[&name]));
        }
        3 => {
            let token = world.fresh_token();
            world.control.handle_admin(token, create(&[&format!("p/a@g{n}"), &format!("p/b@g{n}")]));
        }
        4 | 5 => {
            let token = world.fresh_token();
            let name = if world.rng.chance(1, 2) { name } else { format!("p/a@g{n}") };
            world.control.handle_admin(token, remove(&name));
        }
        6 => {
            let at = world.rng.below(8) as u32;
            let of = &held[world.rng.below(2) as usize];
            let end = world.rng.between(u64::from(at) + 1, 8) as u32;
            let req = world.req(1, segments(of, at..end, true));
            world.control.handle_client(req);
        }
        _ => {
            let (name, client) = (if n.is_multiple_of(2) { "p/a" } else { "p/b" }, world.rng.below(3));
            let req = world.req(client, open(name, true, true));
            world.control.handle_client(req);
        }
    }
}

/// The model of the PGs panics when one goes on before all have a snapshot, and when a volume comes to a PG during its cut.
#[test]
fn ready_snapshots_are_in_all_pgs_in_any_storm() {
    let (mut ready, mut lapsed, mut deaths) = (0, 0, 0);
    for seed in 0..60 {
        let ((mut world, held), mut late) = (held(), Vec::new());
        world.rng = types::rng::Rng::new(seed);
        world.hold = true;
        world.death = Death::OneIn(25);
        for _ in 0..400 {
            let before = world.deaths;
            if world.rng.chance(1, 8) {
                command(&mut world, &held);
            }
            world.step();
            for _ in 0..world.rng.below(8) {
                deliver_some(&mut world, &mut late);
            }
            if world.deaths != before {
                world.connect_all();
            }
            let millis = world.rng.below(20);
            world.now.mono = world.now.mono + Duration::from_millis(millis);
            world.cut_pgs.lapse(world.now.mono);
            check_ready(&world);
        }
        world.death = Death::Never;
        world.hold = false;
        world.connect_all();
        (0..80).for_each(|_| world.pass(Duration::from_millis(100)));
        check_rest(&world);
        let records = world.control.records();
        assert!(records.snapshots.values().all(|s| s.state == crate::SnapshotState::Ready), "seed {seed}");
        ready += records.snapshots.len();
        (lapsed, deaths) = (lapsed + world.cut_pgs.lapsed, deaths + world.deaths);
    }
    assert!(ready > 60 && lapsed > 60 && deaths > 100, "{ready} ready, {lapsed} lapsed, {deaths} deaths");
}

#[test]
fn many_allocations_behind_a_cut_fit_their_transactions() {
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 16);
    let names: Vec<String> = (0..6).map(|n| format!("p/v{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        world.make_volume(name, 64 * SEGMENT);
        held.push(opened(world.ask(1, open(name, true, false))));
        world.ask(1, segments(held.last().expect("just opened"), 0..3, true));
    }
    let snapshots: Vec<String> = names.iter().map(|name| format!("{name}@s")).collect();
    let token = world.fresh_token();
    world.control.handle_admin(token, create(&snapshots.iter().map(String::as_str).collect::<Vec<_>>()));
    deliver_up_to(&mut world, is_cut);
    let mut asked = Vec::new();
    for of in &held {
        let req = world.req(1, segments(of, 3..35, true));
        asked.push(req.token);
        world.control.handle_client(req);
    }
    world.settle();
    assert!(asked.iter().all(|token| !world.answers.contains_key(token)), "they wait");
    world.hold = false;
    (0..20).for_each(|_| world.pass(Duration::from_millis(50)));
    made(world.admin_answers.remove(&token).expect("an answer"));
    assert!(asked.iter().all(|token| world.answers.contains_key(token)), "each allocation is answered");
    assert_eq!(world.control.records().segments.len(), 6 * 35);
    assert!(world.largest_txn <= TXN_WRITES_MAX);
    check_rest(&world);
}

#[test]
fn many_snapshots_that_fail_at_once_are_all_refused() {
    const COUNT: usize = 256;
    let mut world = World::new(1, 3);
    world.make_pool("p", 3, 1);
    for n in 0..COUNT {
        let name = format!("p/v{n}");
        world.make_volume(&name, SEGMENT);
        let held = opened(world.ask(1, open(&name, true, false)));
        world.ask(1, segments(&held, 0..1, true));
    }
    world.leaderless = world.control.records().pgs.keys().copied().collect();
    let ask = |world: &mut World, name: String| {
        let token = world.fresh_token();
        world.control.handle_admin(token, create(&[&name]));
        token
    };
    let tokens: Vec<Token> = (0..COUNT).map(|n| ask(&mut world, format!("p/v{n}@s"))).collect();
    let more = ask(&mut world, "p/v1@more".to_owned());
    (0..80).for_each(|_| world.pass(Duration::from_millis(50)));
    assert_eq!(code(world.admin_answers.remove(&more).expect("an answer")), codes::META_BUSY);
    let refused: Vec<u32> =
        tokens.iter().map(|token| code(world.admin_answers.remove(token).expect("an answer"))).collect();
    assert!(refused.iter().all(|code| [codes::CUT_FAILED, codes::VOLUME_BUSY].contains(code)), "{refused:?}");
    let failed = refused.iter().filter(|code| **code == codes::CUT_FAILED).count();
    assert!(failed > TXN_WRITES_MAX, "only {failed} events were due at once");
    assert!(world.largest_txn <= TXN_WRITES_MAX);
    world.leaderless.clear();
    world.seconds(3, &[]);
    check_rest(&world);
}
