//! Streams to an OSD that has older contents: only what differs is sent (ADR 0019).

use super::digests::ask;
use super::rig::{EPOCH, LONG, Rig, ms, pg};
use crate::{Phase, ToolAnswer, ToolAsk};
use types::control::OsdDown;
use types::map::{Member, MemberChange, PgMap};
use types::rng::Rng;
use types::{ChunkKey, GenerationId, Index, OsdId, ReplicaId};

const MIB: u32 = 48;

/// Three OSDs whose homes hold the contents of PG 0, led by the first one.
fn filled(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.fill(pg(0), MIB);
    rig.run(ms(12_000));
    rig
}

fn write_some(rig: &mut Rig, rng: &mut Rng, count: u32) {
    for _ in 0..count {
        rig.write(pg(0), rng.below(u64::from(MIB / 16)) as u32, rng.below(4096) as u32, 1);
    }
}

/// Changes one block in a hundred, and lets the logs pass all that came before.
fn change(rig: &mut Rig, rng: &mut Rng) {
    write_some(rig, rng, MIB * 256 / 100);
    (0..70).for_each(|_| rig.write(pg(0), 0, 0, 128));
}

/// Compares all chunks of the replica on OSD `i` with the leader's.
fn check_equal(rig: &mut Rig, i: usize) {
    let leader = rig.leader(pg(0));
    let report = rig.osd(leader).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
    for index in 0..=MIB / 16 {
        let chunk = ChunkKey { generation: GenerationId(1), index };
        let digest = |rig: &mut Rig, i| ask(rig, i, ToolAsk::Digest { pg: pg(0), chunk, at: report.applied });
        let ours = digest(rig, i);
        assert!(matches!(ours, ToolAnswer::Digest { .. }), "{ours:?}");
        assert_eq!(ours, digest(rig, leader), "{chunk}");
    }
    rig.osd(i).audit_for_tools().expect("the books balance");
}

/// Returns the checksums of the replica's blocks on OSD `i`, once they are certain.
fn contents(rig: &mut Rig, i: usize) -> Option<engine::Contents> {
    let image = rig.world.disk_image(rig.node(i), "device");
    let replica = ReplicaId(i as u64 + 1);
    let found = rig.osd(i).engine.contents_for_tools(replica, |at| image.page_at(at))?;
    Some(found.expect("home holds what its map says"))
}

/// Bytes that the leader has sent and found at followers, in per cent of the contents.
fn per_cent(rig: &mut Rig) -> (u64, u64) {
    let streams = &rig.osd(0).recovery.streams;
    let all = u64::from(MIB) << 20;
    (streams.sent_bytes * 100 / all, streams.equal_bytes * 100 / all)
}

#[test]
fn osd_that_returns_is_sent_only_what_has_changed() {
    for seed in 1..4 {
        let mut rig = filled(seed);
        let used = rig.osd(2).engine.stats().home.used_bytes;
        rig.kill(2);
        change(&mut rig, &mut Rng::new(seed));
        rig.start(2);
        let mut peak = 0;
        rig.until(LONG, "it is whole", |rig| {
            peak = peak.max(rig.osd(2).engine.stats().home.used_bytes);
            rig.is_whole(pg(0))
        });
        assert_eq!(rig.osd(0).streams_sent(), (1, 0));
        assert!(
            peak < used + used / 4,
            "{peak} bytes of {used}: one AU in seven has changed, the others are not copied"
        );
        let (sent, equal) = per_cent(&mut rig);
        assert!(sent < 5 && equal > 90, "seed {seed}: {sent} % sent, {equal} % found");
        check_equal(&mut rig, 2);
        let stats = rig.osd(2).engine.stats().home;
        assert!(stats.used_bytes <= used + (1 << 20), "{} bytes of {used} after the stream", stats.used_bytes);
        // Space that was taken over outlives a restart.
        rig.kill(2);
        rig.start(2);
        rig.until(LONG, "it is whole again", |rig| rig.is_whole(pg(0)));
        check_equal(&mut rig, 2);
    }
}

#[test]
fn blocks_written_during_a_comparison_are_sent() {
    for seed in 1..6 {
        let mut rig = filled(seed);
        let mut rng = Rng::new(seed);
        rig.kill(2);
        change(&mut rig, &mut rng);
        rig.osd(0).set_stream_rate(4 << 20);
        rig.start(2);
        rig.until(LONG, "a stream runs", |rig| rig.osd(0).streams_running() > 0);
        let mut written = 0;
        while rig.osd(0).streams_running() > 0 && written < 400 {
            write_some(&mut rig, &mut rng, 4);
            written += 4;
            rig.run(ms(10));
        }
        rig.osd(0).set_stream_rate(64 << 20);
        rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
        assert!(written > 20, "{written} writes during the stream");
        check_equal(&mut rig, 2);
    }
}

#[test]
fn stream_that_breaks_off_goes_on_with_the_log_that_has_begun() {
    let mut rig = filled(7);
    let mut rng = Rng::new(7);
    rig.kill(2);
    change(&mut rig, &mut rng);
    rig.osd(0).set_stream_rate(8 << 20);
    let mut begun = Index(0);
    for n in 0..4 {
        rig.start(2);
        rig.until(LONG, "a stream runs", |rig| rig.osd(0).streams_running() > 0);
        rig.run(ms(300));
        let from = rig.osd(2).engine.fills_from(ReplicaId(3));
        assert!(from > Index(0) && contents(&mut rig, 2).is_none(), "it is being filled");
        assert!(n == 0 || from == begun, "the log goes on where it began");
        begun = from;
        rig.kill(2);
        write_some(&mut rig, &mut rng, 20);
    }
    rig.start(2);
    rig.osd(0).set_stream_rate(64 << 20);
    rig.until(LONG, "it is whole", |rig| rig.is_whole(pg(0)));
    check_equal(&mut rig, 2);
}

#[test]
fn successor_of_a_failed_replica_takes_over_its_space() {
    let mut rig = filled(9);
    let used = rig.osd(1).engine.stats().home.used_bytes;
    rig.osd(1).fail_replica(ReplicaId(2), "for this test".to_owned());
    rig.run(ms(200));
    change(&mut rig, &mut Rng::new(9));
    let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
    let created = PgMap { pg: pg(0), conf_epoch: EPOCH, members: (1..=3).map(member).collect() };
    let new = Member { replica: ReplicaId(100), osd: OsdId(2) };
    rig.tell(1, OsdDown::EnsureReplica { created, replica: new.replica });
    rig.run(ms(200));
    let order = MemberChange { expected: EPOCH, add: Some(new), remove: Some(ReplicaId(2)), cancel: false };
    for _ in 0..100 {
        rig.tell(0, OsdDown::ChangeMembers { pg: pg(0), change: order });
        rig.run(ms(100));
    }
    let report = rig.osd(0).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
    let members = report.leading.expect("it leads").members;
    assert!(members.is_settled() && members.voters.contains(&new), "{members:?}");
    let (sent, equal) = per_cent(&mut rig);
    assert!(sent < 5 && equal > 90, "{sent} % sent, {equal} % found");
    check_equal(&mut rig, 1);
    assert!(rig.osd(1).engine.stats().home.used_bytes <= used + (1 << 20), "the space was taken over, not copied");
    // The failed one has given its home away; it stays failed over a restart, and can be removed.
    rig.kill(1);
    rig.start(1);
    rig.until(LONG, "it is back", |rig| *rig.osd(1).phase() == Phase::Running);
    assert_eq!(rig.osd(1).quarantined().len(), 1);
    rig.tell(1, OsdDown::DropReplica { pg: pg(0), replica: ReplicaId(2), keep: false });
    rig.run(ms(500));
    assert_eq!(rig.osd(1).quarantined(), []);
    rig.kill(2);
    rig.write(pg(0), 1, 10, 4);
    check_equal(&mut rig, 1);
}

/// A replica moves away and comes back under a new id: the contents of the removed one are there, as long as they are kept.
#[test]
fn replica_that_comes_back_finds_what_was_kept() {
    for kept in [true, false] {
        let mut rig = Rig::new(11, [16; 4]);
        rig.until(LONG, "all serve", |rig| rig.all().all(|i| *rig.osd(i).phase() == Phase::Running));
        let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
        let created = PgMap { pg: pg(0), conf_epoch: EPOCH, members: (1..=3).map(member).collect() };
        (0..3).for_each(|i| rig.ensure(i, &created));
        rig.attach(pg(0));
        rig.run(ms(500));
        rig.lead_all(0, 1);
        rig.fill(pg(0), MIB);
        rig.run(ms(12_000));
        let mut epoch = EPOCH;
        for (remove, add) in [
            (3, Member { replica: ReplicaId(100), osd: OsdId(4) }),
            (100, Member { replica: ReplicaId(101), osd: OsdId(3) }),
        ] {
            rig.tell(add.osd.0 as usize - 1, OsdDown::EnsureReplica { created: created.clone(), replica: add.replica });
            let order =
                MemberChange { expected: epoch, add: Some(add), remove: Some(ReplicaId(remove)), cancel: false };
            for _ in 0..60 {
                rig.tell(0, OsdDown::ChangeMembers { pg: pg(0), change: order });
                rig.run(ms(100));
            }
            let report = rig.osd(0).reports_for_tools().into_iter().find(|r| r.pg == pg(0)).expect("it leads it");
            let members = report.leading.expect("it leads").members;
            assert!(members.is_settled() && members.voters.contains(&add), "{members:?}");
            epoch = members.epoch;
            if remove == 3 {
                let used = rig.osd(2).engine.stats().home.used_bytes;
                rig.tell(2, OsdDown::DropReplica { pg: pg(0), replica: ReplicaId(3), keep: true });
                change(&mut rig, &mut Rng::new(1));
                rig.run(ms(2000));
                assert_eq!(rig.osd(2).engine.stats().home.used_bytes, used, "the contents stay");
                assert!(rig.osd(2).reports_for_tools().is_empty(), "the replica is gone");
                if !kept {
                    rig.osd(2).engine.drop_relics();
                    rig.run(ms(12_000));
                    assert!(rig.osd(2).engine.stats().home.used_bytes < 1 << 20, "the space is free");
                }
                let streams = &mut rig.osd(0).recovery.streams;
                (streams.sent_bytes, streams.equal_bytes) = (0, 0);
            }
        }
        let (sent, equal) = per_cent(&mut rig);
        match kept {
            true => assert!(sent < 5 && equal > 90, "{sent} % sent, {equal} % found"),
            false => assert!(sent > 90 && equal == 0, "{sent} % sent, {equal} % found"),
        }
        check_equal(&mut rig, 2);
        rig.kill(2);
        rig.start(2);
        rig.until(LONG, "it is back", |rig| *rig.osd(2).phase() == Phase::Running);
        rig.run(ms(1000));
        check_equal(&mut rig, 2);
    }
}
