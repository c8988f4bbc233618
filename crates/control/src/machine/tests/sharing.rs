//! Multi-writer volumes: writers come, go and are fenced one by one, and each PG names exactly those that may write (ADR 0039).

use super::shrink::{renew, shrink, told, uses};
use super::*;
use crate::admin::{VolumeText, WriterName};
use types::writers::{WRITERS_MAX, Writer, Writers};

fn set(multi_writer: bool) -> AdminAsk {
    let text = VolumeText { multi_writer: Some(multi_writer), ..VolumeText::default() };
    AdminAsk::VolumeSet { name: "p/v".into(), text }
}

fn fence(client: &str) -> AdminAsk {
    AdminAsk::VolumeFence { name: "p/v".into(), which: WriterName::Client(client.into()) }
}

fn fence_session(session: SessionId) -> AdminAsk {
    AdminAsk::VolumeFence { name: "p/v".into(), which: WriterName::Session(session) }
}

fn view(world: &mut World) -> crate::admin::VolumeView {
    resize::volume(world.admin(AdminAsk::VolumeInfo { name: "p/v".into() }))
}

fn name(host: u64) -> String {
    format!("nbd on h{host} pid {}", 100 + host)
}

/// Opens the volume as a program of the host with this number.
fn join(world: &mut World, host: u64, steal: bool) -> ClientAnswer {
    let req = joining(world, host, steal);
    world.answer_to(req)
}

fn joining(world: &mut World, host: u64, steal: bool) -> ClientReq {
    let ask = ClientAsk::Open { name: "p/v".into(), write: true, steal, holder: name(host) };
    ClientReq { address: format!("10.0.0.{host}:4000"), ..world.req(host, ask) }
}

/// Asks as an administrator with a name, whose commands all have an event.
fn command(world: &mut World, ask: AdminAsk) -> Result<crate::admin::AdminAnswer, Refusal> {
    let token = world.fresh_token();
    world.control.handle_admin_of(token, "alice at home".into(), ask);
    world.seconds(2, &[]);
    world.admin_answers.remove(&token).expect("an answer")
}

fn keepalive(world: &mut World, of: &Opened) -> ClientAnswer {
    world.ask(1, uses(of, of.len_epoch, of.len_bytes))
}

fn is_fenced(world: &mut World, of: &Opened) -> bool {
    match keepalive(world, of) {
        ClientAnswer::Alive { .. } => false,
        other => refused(other).code == codes::SESSION_FENCED,
    }
}

/// A multi-writer volume with a segment in each PG, and its first writer.
fn shared() -> (World, Opened) {
    let mut world = with_volume(16);
    resize::volume(world.admin(set(true)));
    let first = opened(join(&mut world, 1, false));
    world.ask(1, segments(&first, 0..16, true));
    (world, first)
}

/// Checks that each PG names exactly these writers.
fn check(world: &World, writers: &[&Opened]) {
    let named = |list: Writers, of: &&Opened| list.with(Writer { epoch: of.epoch, session: of.session });
    let named = writers.iter().try_fold(Writers::NONE, named).expect("they come in the order of their opens");
    assert!(world.attached.len() > 8, "the volume lies in many PGs");
    for ((pg, _), attach) in &world.attached {
        assert_eq!(attach.writers, named, "{pg}");
    }
}

#[test]
fn writers_of_one_volume_come_and_go_without_the_others() {
    let (mut world, first) = shared();
    let second = opened(join(&mut world, 2, false));
    let third = opened(join(&mut world, 3, false));
    assert!(first.multi_writer && first.epoch < second.epoch && second.epoch < third.epoch);
    check(&world, &[&first, &second, &third]);
    // Each of them places segments and renews its lease; a repeated request to open joins.
    for of in [&first, &second, &third] {
        assert!(matches!(world.ask(1, segments(of, 0..3, true)), ClientAnswer::Segments { .. }), "{of:?}");
        assert!(!is_fenced(&mut world, of), "{of:?}");
    }
    let shown = view(&mut world);
    let names: Vec<&str> = shown.writers.iter().map(|writer| writer.name.as_str()).collect();
    assert_eq!(names, ["nbd on h1 pid 101", "nbd on h2 pid 102", "nbd on h3 pid 103"]);
    assert!(shown.multi_writer && shown.writers.iter().all(|writer| writer.alive));
    assert_eq!((shown.session, shown.holder.as_ref()), (third.session, shown.writers.last()));

    // The leader of meta dies: each lease begins again, and nothing is opened twice.
    world.crash();
    world.connect_all();
    assert_eq!(world.ask(2, ClientAsk::Close { volume: second.volume, session: second.session }), ClientAnswer::Closed);
    check(&world, &[&first, &third]);
    assert!(is_fenced(&mut world, &second) && !is_fenced(&mut world, &first) && !is_fenced(&mut world, &third));
    assert_eq!(refused(world.ask(2, segments(&second, 0..1, true))).code, codes::SESSION_FENCED);
    let fourth = opened(join(&mut world, 4, false));
    check(&world, &[&first, &third, &fourth]);

    // The one that takes the volume over is alone.
    let alone = opened(join(&mut world, 5, true));
    check(&world, &[&alone]);
    world.seconds(60, &[]);
    let stolen = world.events.iter().find(|event| event.kind == "volume.stolen").expect("an event");
    assert!([1, 3, 4].iter().all(|n| stolen.text.contains(&format!("10.0.0.{n}:4000"))), "{}", stolen.text);
    for of in [&first, &third, &fourth] {
        assert!(is_fenced(&mut world, of), "{of:?}");
    }
}

#[test]
fn repeated_open_joins_its_own_hold_among_others() {
    let (mut world, first) = shared();
    let req = world.req(2, open("p/v", true, false));
    let second = opened(world.answer_to(req.clone()));
    let third = opened(join(&mut world, 3, false));
    let token = world.fresh_token();
    let again = opened(world.answer_to(ClientReq { token, ..req }));
    assert_eq!((again.session, again.epoch), (second.session, second.epoch));
    check(&world, &[&first, &second, &third]);
}

#[test]
fn command_fences_the_writers_that_it_names() {
    let (mut world, first) = shared();
    let second = opened(join(&mut world, 2, false));
    let again = opened(join(&mut world, 2, false));
    let third = opened(join(&mut world, 3, false));
    assert_eq!(world.admin(fence_session(SessionId(999))).expect_err("no such writer").code, codes::WRITER_UNKNOWN);
    for unknown in ["h9", "nbd", "", "10.0.0.9", &third.session.to_string(), &third.session.0.to_string()] {
        let why = world.admin(fence(unknown)).expect_err("no such writer");
        assert_eq!(why.code, codes::WRITER_UNKNOWN, "{unknown}");
        let line = format!("nbd on h3 pid 103 at 10.0.0.3:4000 (session {})", third.session.0);
        assert!(why.message.contains(&line), "{}", why.message);
    }
    check(&world, &[&first, &second, &again, &third]);
    // A host has two programs that write.
    let left = resize::volume(command(&mut world, fence("h2")));
    assert_eq!(left.writers.len(), 2);
    check(&world, &[&first, &third]);
    assert!(is_fenced(&mut world, &second) && is_fenced(&mut world, &again) && !is_fenced(&mut world, &first));
    let event = world.events.iter().find(|event| event.kind == "volume.fenced").expect("an event");
    assert!(event.text.matches("nbd on h2 pid 102 at 10.0.0.2:4000").count() == 2, "{}", event.text);

    let left = resize::volume(world.admin(fence_session(third.session)));
    assert_eq!(left.writers.len(), 1);
    resize::volume(world.admin(fence("10.0.0.1")));
    check(&world, &[]);
    assert!(is_fenced(&mut world, &first) && is_fenced(&mut world, &third));
    // A repeated command finds those that are fenced.
    resize::volume(world.admin(fence("10.0.0.1")));
    let back = opened(join(&mut world, 1, false));
    check(&world, &[&back]);
}

#[test]
fn fence_is_answered_when_each_pg_has_it() {
    let (mut world, first) = shared();
    let second = opened(join(&mut world, 2, false));
    let pg = world.attached.keys().next().expect("it has PGs").0;
    world.leaderless.insert(pg);
    let token = world.fresh_token();
    world.control.handle_admin(token, fence("h1"));
    (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
    assert!(!world.admin_answers.contains_key(&token), "{pg} has not taken it");
    assert!(is_fenced(&mut world, &first), "it gets no segments meanwhile");
    (0..200).for_each(|_| world.pass(Duration::from_millis(50)));
    let late = world.admin_answers.remove(&token).expect("an answer").expect_err("it is not certain");
    assert!(late.code == codes::VOLUME_BUSY && late.message.contains(&pg.to_string()), "{late:?}");
    let shown = view(&mut world);
    let names: Vec<&str> = shown.being_fenced.iter().map(|client| client.name.as_str()).collect();
    assert_eq!((names, shown.writers.len()), (vec!["nbd on h1 pid 101"], 1));
    // A recovery that finds the volume in no PG has nothing to wait for.
    let record = world.control.records().volumes[&shown.volume].clone();
    let next = Epoch(record.epoch.0 + 1);
    let ended = |settled| record.with_writers(record.held.clone(), next, settled);
    assert_eq!((ended(false).leaving.len(), ended(true).leaving.len(), ended(true).fenced.len()), (1, 0, 1));
    // A repeated command joins it, and another leader of meta knows of it.
    world.crash();
    world.connect_all();
    let token = world.fresh_token();
    world.control.handle_admin(token, fence("h1"));
    (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
    assert!(!world.admin_answers.contains_key(&token), "{pg} has not taken it");
    world.leaderless.remove(&pg);
    (0..100).for_each(|_| world.pass(Duration::from_millis(50)));
    resize::volume(world.admin_answers.remove(&token).expect("an answer"));
    check(&world, &[&second]);
    assert!(view(&mut world).being_fenced.is_empty());
    // A script repeats the command until it ends with success.
    resize::volume(world.admin(fence("h1")));
    check(&world, &[&second]);
}

#[test]
fn writer_that_an_open_let_out_is_fenced_only_when_each_pg_has_that() {
    for exclusive in [false, true] {
        let (mut world, first) = shared();
        if exclusive {
            world.admin(fence("h1")).expect("it is alone");
            resize::volume(world.admin(fence("h1")));
            resize::volume(world.admin(set(false)));
        }
        let first = if exclusive { opened(join(&mut world, 1, false)) } else { first };
        let pg = world.attached.keys().next().expect("it has PGs").0;
        world.leaderless.insert(pg);
        let req = joining(&mut world, 2, true);
        world.control.handle_client(req);
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        let names = |views: &[crate::admin::HolderView]| views.iter().map(|of| of.name.clone()).collect::<Vec<_>>();
        let shown = view(&mut world);
        assert_eq!((names(&shown.writers), names(&shown.being_fenced)), (vec![name(2)], vec![name(1)]), "{exclusive}");
        let why = world.admin(fence("h7")).expect_err("a PG may take writes of any client that had it open");
        assert_eq!(why.code, codes::VOLUME_BUSY, "{why:?}");
        let token = world.fresh_token();
        world.control.handle_admin(token, fence("h1"));
        (0..40).for_each(|_| world.pass(Duration::from_millis(50)));
        assert!(!world.admin_answers.contains_key(&token), "{pg} has not taken it");
        world.leaderless.remove(&pg);
        (0..100).for_each(|_| world.pass(Duration::from_millis(50)));
        resize::volume(world.admin_answers.remove(&token).expect("an answer"));
        assert!(is_fenced(&mut world, &first));
        assert_eq!(world.admin(fence("h7")).expect_err("no such client").code, codes::WRITER_UNKNOWN);
    }
}

#[test]
fn records_remember_the_last_writers_that_were_let_out() {
    let (mut world, _) = shared();
    for n in 2..60 {
        let how = opened(join(&mut world, n, true));
        check(&world, &[&how]);
    }
    let record = world.control.records().volumes.values().next().expect("a volume").clone();
    let names: Vec<&str> = record.fenced.iter().map(|of| of.holder.name.as_str()).collect();
    assert_eq!((record.leaving.len(), names.len(), names[7]), (0, 8, name(58).as_str()));
    resize::volume(world.admin(fence("h58")));
    assert_eq!(world.admin(fence("h3")).expect_err("long ago").code, codes::WRITER_UNKNOWN);
}

#[test]
fn ninth_writer_waits_for_the_place_of_one_that_is_silent() {
    let (mut world, first) = shared();
    let mut others: Vec<Opened> = (2..=WRITERS_MAX as u64).map(|n| opened(join(&mut world, n, false))).collect();
    let why = refused(join(&mut world, 9, false));
    assert!(why.code == codes::TOO_MANY_WRITERS && why.message.contains("by 8 clients"), "{why:?}");
    world.pass(Duration::from_secs(8));
    for of in &mut others {
        renew(&mut world, of);
    }
    // The end of a lease fences no writer.
    world.pass(Duration::from_secs(3));
    check(&world, &[&first].into_iter().chain(&others).collect::<Vec<_>>());
    assert!(view(&mut world).writers.iter().filter(|writer| writer.alive).count() == WRITERS_MAX - 1);
    let ninth = opened(join(&mut world, 9, false));
    check(&world, &others.iter().chain([&ninth]).collect::<Vec<_>>());
    assert!(is_fenced(&mut world, &first) && !is_fenced(&mut world, &others[0]));
}

#[test]
fn volume_becomes_multi_writer_only_while_nobody_writes() {
    let mut world = with_volume(4);
    let held = opened(world.ask(1, open("p/v", true, false)));
    world.ask(1, segments(&held, 0..1, true));
    assert!(!held.multi_writer);
    assert_eq!(world.admin(set(true)).expect_err("it is open").code, codes::VOLUME_HELD);
    assert!(!resize::volume(world.admin(set(false))).multi_writer, "nothing changes");
    assert_eq!(refused(world.ask(2, open("p/v", true, false))).code, codes::VOLUME_HELD);
    // The client is silent: whatever it still sends is fenced with the change.
    world.pass(Duration::from_secs(11));
    let shown = resize::volume(world.admin(set(true)));
    assert!(shown.multi_writer && shown.writers.is_empty() && shown.epoch > held.epoch);
    world.seconds(1, &[]);
    assert!(world.attached.values().all(|attach| attach.writers.is_empty() && attach.epoch > held.epoch));
    let writers = [1, 2].map(|n| opened(join(&mut world, n, false)));
    let why = world.admin(set(false)).expect_err("it is open");
    assert!(why.code == codes::VOLUME_HELD && why.message.contains("h1") && why.message.contains("h2"), "{why:?}");
    for of in &writers {
        world.ask(1, ClientAsk::Close { volume: of.volume, session: of.session });
    }
    assert!(!resize::volume(command(&mut world, set(false))).multi_writer);
    let kinds = world.events.iter().filter(|event| event.kind == "volume.changed");
    let texts: Vec<&str> = kinds.map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["volume p/v: several writers at a time", "volume p/v: one writer at a time"]);
    opened(world.ask(1, open("p/v", true, false)));
    assert_eq!(refused(world.ask(2, open("p/v", true, false))).code, codes::VOLUME_HELD);
}

#[test]
fn shrink_waits_for_each_writer_and_fences_those_that_are_silent() {
    let (mut world, mut first) = shared();
    let [mut second, third] = [2, 3].map(|n| opened(join(&mut world, n, false)));
    let token = world.fresh_token();
    world.control.handle_admin(token, shrink(8 * SEGMENT));
    world.seconds(1, &[]);
    // One confirms, and uses nothing behind the end any more; the others are waited for.
    for of in [&mut first, &mut second] {
        assert_eq!(told(keepalive(&mut world, of)), (1, 8 * SEGMENT));
        assert!(world.chunks.values().all(|(_, count)| *count == 16 * 64), "no PG is shorter yet");
        (of.len_epoch, of.len_bytes) = (1, 8 * SEGMENT);
        keepalive(&mut world, of);
        world.seconds(1, &[]);
    }
    assert!(world.chunks.values().all(|(_, count)| *count == 16 * 64), "the third one has not confirmed");
    let (_, words) =
        world.control.shrink_step(world.now.mono, &world.control.records().volumes[&first.volume]).expect("it waits");
    assert!(words.contains("h3") && !words.contains("h1"), "{words}");
    world.pass(Duration::from_secs(6));
    [&first, &second].into_iter().for_each(|of| drop(keepalive(&mut world, of)));
    world.pass(Duration::from_secs(3));
    // The segments behind the end hold nothing in this world, so the length follows.
    world.seconds(3, &[]);
    let record = &world.control.records().volumes[&first.volume];
    assert_eq!((record.len_bytes, record.writers().len()), (8 * SEGMENT, 2));
    check(&world, &[&first, &second]);
    assert!(is_fenced(&mut world, &third) && !is_fenced(&mut world, &first));
}

#[test]
fn volume_with_writers_is_kept_until_all_are_silent_or_it_is_forced() {
    let (mut world, first) = shared();
    let second = opened(join(&mut world, 2, false));
    let rm = |force| {
        let name = "p/v".into();
        AdminAsk::VolumeRemove(VolumeRemove { name, force, now: false, snapshots: false, detach: false })
    };
    world.pass(Duration::from_secs(8));
    keepalive(&mut world, &second);
    world.pass(Duration::from_secs(4));
    let why = world.admin(rm(false)).expect_err("one is alive");
    assert!(why.code == codes::VOLUME_HELD && why.message.contains("h2"), "{why:?}");
    world.admin(rm(true)).expect("removed");
    check(&world, &[]);
    for of in [&first, &second] {
        assert_eq!(refused(keepalive(&mut world, of)).code, codes::VOLUME_UNKNOWN);
    }
    // It comes back as it was.
    world.admin(AdminAsk::TrashRestore { which: "p/v".into(), name: None }).expect("restored");
    assert!(view(&mut world).multi_writer);
}
