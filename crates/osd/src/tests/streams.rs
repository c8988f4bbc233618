//! Streams that bring back followers behind the log, and their order.

use super::rig::{LONG, Rig, ms, pg};
use types::{Index, ReplicaId};

/// Makes OSD 3 miss more of PG 0 than the logs keep, and come back.
fn left_behind(seed: u64, mib: u32) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(2);
    rig.lead_all(0, 2);
    rig.kill(2);
    rig.fill(pg(0), mib);
    rig
}

#[test]
fn a_follower_behind_the_log_of_an_idle_pg_is_streamed_to_at_once() {
    for seed in 1..8 {
        let mut rig = left_behind(seed, 30 + seed as u32);
        rig.start(2);
        rig.until(LONG, "it is back", |rig| rig.osd(2).phase() == &crate::Phase::Running);
        let took = rig.until(LONG, "a stream begins", |rig| rig.osd(0).streams_running() > 0);
        assert!(took < ms(500), "seed {seed}: the stream began after {took:?}");
        let took = rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
        assert!(took < ms(3000), "seed {seed}: whole after {took:?}");
    }
}

#[test]
fn follower_gets_a_stream_if_the_log_was_freed_between_checkpoints() {
    let mut rig = Rig::new(5, [16; 3]);
    rig.make_pgs(2);
    rig.lead_all(0, 2);
    rig.kill(2);
    // PG 0 is destaged everywhere, and its entries are still in the log.
    rig.fill(pg(0), 6);
    rig.run(ms(12_000));
    // The other PG takes the log's space, less than starts a destage round.
    let first = |rig: &mut Rig| {
        let osd = rig.osd(0);
        let key = osd.pgs.by_pg(pg(0)).expect("it leads it");
        let first = osd.engine.first_index(osd.pgs.get(key).identity.replica);
        assert_eq!(osd.pgs.group(key).expect("it runs").first_index(), first, "the group knows what the log has");
        (first, osd.engine.stats().rounds)
    };
    let (before, rounds) = first(&mut rig);
    let freed = (0..20).find_map(|part| {
        rig.write(pg(1), 0, part * 128, 128);
        Some(first(&mut rig)).filter(|now| now.0 > before)
    });
    assert_eq!(freed.map(|freed| freed.1), Some(rounds), "the log lets go of segments between checkpoints");
    rig.start(2);
    rig.until(LONG, "it is back", |rig| rig.osd(2).phase() == &crate::Phase::Running);
    let took = rig.until(LONG, "both are whole", |rig| rig.is_whole(pg(0)) && rig.is_whole(pg(1)));
    assert!(took < ms(2000), "whole after {took:?}");
}

#[test]
fn the_pg_with_the_least_to_send_is_whole_first() {
    let mut rig = Rig::new(3, [16; 3]);
    rig.make_pgs(4);
    rig.lead_all(0, 4);
    rig.kill(2);
    for (n, mib) in [(0, 70), (1, 80), (2, 60), (3, 12)] {
        rig.fill(pg(n), mib);
    }
    rig.fill(pg(2), 40);
    rig.start(2);
    rig.until(LONG, "streams run", |rig| rig.osd(0).streams_running() == 2);
    rig.until(LONG, "the smallest is whole", |rig| rig.is_whole(pg(3)));
    for n in 0..3 {
        assert!(!rig.is_whole(pg(n)), "{} was sent before the smallest", pg(n));
    }
    rig.until(LONG, "all are whole", |rig| (0..4).all(|n| rig.is_whole(pg(n))));
}

#[test]
fn a_stream_that_a_pg_waits_for_is_not_held_to_the_rate() {
    let mut rig = Rig::new(4, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.kill(2);
    rig.fill(pg(0), 60);
    rig.kill(1);
    rig.osd(0).set_stream_rate(1 << 20);
    rig.start(2);
    rig.until(LONG, "it is back", |rig| rig.osd(2).phase() == &crate::Phase::Running);
    let before = rig.answered(0).0;
    rig.submit(pg(0), 0, 0, 1);
    let took = rig.until(LONG, "the write commits", |rig| rig.answered(0).0 > before);
    assert!(took < ms(5000), "60 MiB at 1 MiB/s would take a minute; it took {took:?}");
}

#[test]
fn stream_waits_once_for_the_repair_of_all_bad_blocks() {
    let mut rig = left_behind(9, 40);
    rig.run(ms(12_000));
    // Some of the written blocks, at home.
    let image = rig.world.disk_image(rig.node(0), "device");
    let home = (17 << 20)..(1 << 30);
    let mut spoiled = 0;
    for page in home.step_by(4096) {
        let mut bytes = vec![0; 4096];
        image.read(page, &mut bytes);
        if bytes[0] != 0 && bytes.iter().all(|b| *b == bytes[0]) && page / 4096 % 251 == 0 {
            image.flip_bit(page + 100, 3);
            spoiled += 1;
        }
    }
    assert!(spoiled > 20, "{spoiled} blocks");
    rig.start(2);
    let took = rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
    assert!(took < ms(4000), "whole after {took:?}, with {spoiled} bad blocks");
    assert!(rig.osd(0).bad_blocks().is_empty() && rig.osd(0).quarantined().is_empty());
}

#[test]
fn follower_with_a_hanging_device_acknowledges_nothing_in_an_accept() {
    let mut rig = Rig::new(15, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.stick_disk(2, true);
    // The follower receives these entries and their commit index, and has none of them durably.
    (0..20).for_each(|n| rig.write(pg(0), 0, n * 8, 8));
    let streamed = (0..80).any(|n| {
        rig.write(pg(0), n % 16, 0, 128);
        rig.osd(0).streams_running() > 0
    });
    assert!(streamed, "the leader's log has passed it");
    rig.run(ms(300));
    rig.kill(2);
    rig.stick_disk(2, false);
    rig.start(2);
    rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)) || !rig.osd(2).quarantined().is_empty());
    assert_eq!(rig.osd(2).quarantined(), []);
}

/// The stream to OSD 3 takes long, and another OSD dies: the PG goes on with the follower that is being filled.
#[test]
fn a_pg_commits_with_a_follower_that_is_being_filled() {
    for dies in [0, 1] {
        let mut rig = left_behind(21 + dies as u64, 40);
        rig.osd(0).set_stream_rate(1 << 20);
        rig.start(2);
        rig.until(LONG, "its log has begun", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0));
        rig.write(pg(0), 0, 0, 8);
        rig.run(ms(1000));
        rig.kill(dies);
        let before = rig.world.now();
        rig.leader(pg(0));
        rig.write(pg(0), 0, 8, 8);
        let took = std::time::Duration::from_nanos(rig.world.now().since(before).as_nanos() as u64);
        assert!(took < ms(300), "osd.{} died: {took:?} until a write", dies + 1);
        assert!(rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0), "it is not whole yet");
        let leader = rig.leader(pg(0));
        rig.osd(leader).set_stream_rate(64 << 20);
        rig.until(LONG, "it is filled", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) == Index(0));
        rig.start(dies);
        rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
    }
}

/// Under load the log of a filling follower begins again before its share is used up, so it has room when the PG comes to need it; and that
/// room lasts until the stream has ended, also under another leader.
#[test]
fn writes_go_on_until_a_needed_follower_is_filled() {
    for dies in [1, 0] {
        let (mut rig, goes_on) = (left_behind(31, 60), 1 - dies);
        rig.osd(0).set_stream_rate(1 << 20);
        rig.start(2);
        rig.until(LONG, "its log has begun", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0));
        let first = rig.osd(2).engine.fills_from(ReplicaId(3));
        // More than the whole share of the follower.
        for n in 0..100 {
            rig.write(pg(0), n / 32, n % 32 * 128, 16);
            rig.run(ms(10));
        }
        let room = rig.osd(2).engine.fill_room(ReplicaId(3)).expect("it is filled");
        assert!(room.left > room.share / 4, "{room:?}");
        assert!(rig.osd(2).engine.fills_from(ReplicaId(3)) > first, "its log has begun again");
        rig.slow_reads(goes_on, 240);
        rig.osd(goes_on).set_stream_rate(64 << 20);
        rig.kill(dies);
        rig.leader(pg(0));
        let (begin, mut longest, mut written) = (rig.world.now(), ms(0), 0);
        while rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0) {
            let before = rig.world.now();
            rig.write(pg(0), written / 32 % 8, written % 32 * 128, 16);
            written += 1;
            longest = longest.max(rig.world.now().since(before));
        }
        let took = rig.world.now().since(begin);
        assert!(took > ms(1500), "osd.{} died: the stream took only {took:?}", dies + 1);
        assert!(longest < ms(300), "osd.{} died: a write took {longest:?} of {took:?}", dies + 1);
        assert!(u64::from(written) * (64 << 10) > room.left / 2, "{written} writes in {took:?}, of {room:?}");
        rig.start(dies);
        rig.until(LONG, "all are whole", |rig| rig.is_whole(pg(0)));
    }
}

/// A new leader hears only after some milliseconds what room the follower's log has: large writes that are there at once do not take
/// all of it.
#[test]
fn large_writes_at_a_new_leader_leave_a_filling_follower_room() {
    let mut rig = left_behind(41, 60);
    (0..2).for_each(|i| rig.osd(i).set_stream_rate(4 << 20));
    rig.start(2);
    rig.until(LONG, "its log has begun", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0));
    rig.kill(0);
    assert_eq!(rig.leader(pg(0)), 1);
    let before = rig.answered(1);
    for part in 0..8 {
        rig.submit(pg(0), 20, part * 128, 128);
    }
    let answered = |rig: &mut Rig| {
        rig.run(ms(5000));
        assert!(rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0), "it is still being filled");
        rig.answered(1).0 - before.0
    };
    let (soon, later) = (answered(&mut rig), answered(&mut rig));
    let room = rig.osd(2).engine.fill_room(ReplicaId(3)).expect("it is filled");
    assert!(soon < 5 && later > soon, "{soon} and {later} of 8 writes, {room:?}");
    assert!(room.left > room.share / 4, "{room:?}");
}

/// Two streams run at a time. PGs that cannot commit do not wait for those of others (R16), nor for contents when their leader has died.
#[test]
fn a_pg_that_needs_its_follower_waits_for_no_other_stream() {
    for dies in [1, 0] {
        needed_streams_begin_at_once(dies);
    }
}

fn needed_streams_begin_at_once(dies: usize) {
    const PGS: u32 = 6;
    let (mut rig, goes_on) = (Rig::new(37, [24; 3]), 1 - dies);
    rig.make_pgs(PGS);
    rig.lead_all(0, PGS);
    rig.kill(2);
    (0..PGS).for_each(|n| rig.fill(pg(n), 24));
    (0..2).for_each(|osd| rig.osd(osd).set_stream_rate(1 << 20));
    rig.start(2);
    rig.until(LONG, "streams run", |rig| rig.osd(0).streams_running() == 2);
    rig.run(ms(300));
    rig.kill(dies);
    let begin = rig.world.now();
    (0..PGS).for_each(|n| assert_eq!(rig.leader(pg(n)), goes_on));
    let before = rig.answered(goes_on).0;
    (0..PGS).for_each(|n| rig.submit(pg(n), 0, 0, 1));
    rig.until(LONG, "all writes commit", |rig| rig.answered(goes_on).0 >= before + u64::from(PGS));
    let took = rig.world.now().since(begin);
    assert!(took < ms(500), "osd.{} died: the PGs stood still for {took:?}", dies + 1);
    // Two logs had begun before: their streams to another leader may rest.
    let begun = if dies == 0 { 2 } else { 0 };
    assert!(rig.osd(goes_on).streams_running() >= PGS as usize - begun);
    rig.osd(goes_on).set_stream_rate(64 << 20);
    rig.start(dies);
    rig.until(LONG, "all are whole", |rig| (0..PGS).all(|n| rig.is_whole(pg(n))));
}

/// The decision state of a PG with very many volumes is too long for a record of the log. Its contents are sent exactly as of one index:
/// a round ends between two commits.
#[test]
fn a_stream_to_a_pg_with_many_volumes_ends_under_load() {
    let mut rig = Rig::new(33, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.attach_others(pg(0), 1100);
    rig.kill(2);
    rig.fill(pg(0), 24);
    rig.start(2);
    rig.until(LONG, "a stream begins", |rig| rig.osd(0).streams_running() > 0);
    let before = rig.world.now();
    let mut writes = 0;
    // Each turn of the leader applies some.
    while !rig.is_streamed(pg(0)) {
        assert!(rig.world.now().since(before) < ms(10_000), "the stream does not end");
        assert_eq!(rig.osd(2).engine.fills_from(ReplicaId(3)), Index(0), "no log begins with a state of this length");
        rig.submit(pg(0), 0, writes % 512, 1);
        rig.run(std::time::Duration::from_micros(40));
        writes += 1;
    }
    assert_eq!(rig.osd(0).streams_sent(), (1, 0));
    assert!(writes > 1000, "{writes} writes");
}

/// A stream breaks off that a PG needs. Until the next one gets on, writes do not take the room that is left.
#[test]
fn room_of_a_needed_follower_outlasts_a_broken_stream() {
    let mut rig = left_behind(37, 60);
    rig.start(2);
    rig.until(LONG, "its log has begun", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) > Index(0));
    rig.slow_reads(0, 240);
    rig.run(ms(100));
    rig.kill(1);
    rig.write(pg(0), 0, 0, 8);
    rig.run(ms(50));
    let end = (wire::StreamAbort::Full, true);
    rig.osd(2).recover(|r, here| r.streams.drop_receiver(here, pg(0), end));
    rig.turn(2);
    for n in 0..100 {
        rig.submit(pg(0), 1, n % 32 * 128, 128);
        rig.run(ms(1));
    }
    assert_eq!(rig.osd(0).streams_running(), 0, "the leader rests");
    let room = rig.osd(2).engine.fill_room(ReplicaId(3)).expect("it is not whole");
    assert!(room.left > room.share / 4, "{room:?}");
    rig.until(LONG, "it is filled", |rig| rig.osd(2).engine.fills_from(ReplicaId(3)) == Index(0));
    rig.write(pg(0), 0, 0, 8);
}
