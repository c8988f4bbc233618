//! Disks: the data that survives the end of a process and a power cut.

use super::*;
use env::{DiskError, DiskKind, EnvError};
use std::collections::BTreeSet;

fn spec() -> DiskSpec {
    DiskSpec { path: "/disk".into(), assume_plp: false, read_only: false }
}

fn host_with_disk(seed: u64, volatile_cache: bool) -> (Host, DiskId) {
    let world = World::new(seed);
    let node = world.add_node("a");
    world.create_disk(node, "/disk", 1 << 30, volatile_cache);
    let mut host = Host::boot(&world, node);
    let info = host.env.open_disk(&spec()).unwrap();
    assert_eq!((info.size_bytes, info.volatile_cache), (1 << 30, volatile_cache));
    (host, info.id)
}

fn write(disk: DiskId, offset: u64, buf: IoBuf, flush: bool) -> Op {
    Op::DiskWrite { token: TOKEN, disk, offset, bufs: vec![buf], flush }
}

fn written(host: &mut Host, op: Op) {
    let event = host.one(op);
    assert!(matches!(event, Event::DiskWrite { token: TOKEN, result: Ok(()) }), "{event:?}");
}

fn flushed(host: &mut Host, disk: DiskId) -> Result<(), DiskError> {
    match host.one(Op::DiskFlush { token: TOKEN, disk }) {
        Event::DiskFlush { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

fn read(host: &mut Host, disk: DiskId, offset: u64, len: usize) -> IoBufMut {
    match host.one(Op::DiskRead { token: TOKEN, disk, offset, buf: IoBufMut::new(len) }) {
        Event::DiskRead { buf, result: Ok(()), .. } => buf,
        other => panic!("{other:?}"),
    }
}

fn stored(host: &Host, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    host.world.disk_image(host.node, "/disk").read(offset, &mut bytes);
    bytes
}

/// Returns how a write of ones over zeros looks afterwards; panics when a sector is mixed.
fn outcome(bytes: &[u8]) -> &'static str {
    let sectors = bytes.chunks(512).map(|sector| {
        assert!(sector.iter().all(|b| *b == sector[0]), "a sector is torn");
        sector[0]
    });
    let values: BTreeSet<u8> = sectors.collect();
    match (values.contains(&0), values.contains(&1)) {
        (true, false) => "lost",
        (false, true) => "kept",
        _ => "torn",
    }
}

#[test]
fn what_a_flush_covered_survives_every_power_cut() {
    for seed in 0..100 {
        let (mut host, disk) = host_with_disk(seed, true);
        written(&mut host, write(disk, 4096, filled(1, 8192), seed % 2 == 0));
        if seed % 2 == 1 {
            flushed(&mut host, disk).unwrap();
        }
        // Unflushed neighbours, one of them on the same page, must not take the flushed write with them.
        written(&mut host, write(disk, 12288, filled(2, 4096), false));
        written(&mut host, write(disk, 512, filled(2, 512), false));
        host.turn([write(disk, 16384, filled(2, 4096), true)]);
        host.world.power_cut(host.node);
        assert_eq!(stored(&host, 4096, 8192), vec![1; 8192], "seed {seed}");
    }
}

#[test]
fn an_unflushed_write_is_kept_lost_or_torn_at_sectors_each_on_its_own() {
    let mut alone = BTreeSet::new();
    let mut pairs = BTreeSet::new();
    for seed in 0..300 {
        let (mut host, disk) = host_with_disk(seed, true);
        written(&mut host, write(disk, 0, filled(1, 16384), false));
        written(&mut host, write(disk, 65536, filled(1, 16384), false));
        assert_eq!(read(&mut host, disk, 0, 16384)[..], [1; 16384], "reads see the cache");
        host.world.power_cut(host.node);
        let fates = (outcome(&stored(&host, 0, 16384)), outcome(&stored(&host, 65536, 16384)));
        alone.insert(fates.0);
        pairs.insert(fates);
        let mut next = Host::boot(&host.world, host.node);
        let disk = next.env.open_disk(&spec()).unwrap().id;
        let image = stored(&next, 0, 16384);
        assert_eq!(read(&mut next, disk, 0, 16384)[..], image[..]);
    }
    assert_eq!(alone, BTreeSet::from(["kept", "lost", "torn"]));
    assert!(pairs.contains(&("lost", "kept")), "the later may survive the earlier: {pairs:?}");
    assert!(pairs.contains(&("kept", "lost")), "{pairs:?}");
}

#[test]
fn a_write_in_flight_meets_every_fate_even_without_a_volatile_cache() {
    let mut fates = BTreeSet::new();
    for seed in 0..200 {
        let (mut host, disk) = host_with_disk(seed, false);
        written(&mut host, write(disk, 65536, filled(1, 4096), false));
        host.turn([write(disk, 0, filled(1, 16384), false)]);
        host.world.power_cut(host.node);
        assert_eq!(outcome(&stored(&host, 65536, 4096)), "kept", "completed is durable here");
        fates.insert(outcome(&stored(&host, 0, 16384)));
    }
    assert_eq!(fates, BTreeSet::from(["kept", "lost", "torn"]));
}

#[test]
fn a_crash_of_the_process_keeps_every_completed_write() {
    let mut later_loss = false;
    for seed in 0..100 {
        let (mut host, disk) = host_with_disk(seed, true);
        written(&mut host, write(disk, 0, filled(1, 4096), false));
        host.world.crash(host.node);
        assert_eq!(outcome(&stored(&host, 0, 4096)), "kept");
        let mut next = Host::boot(&host.world, host.node);
        let disk = next.env.open_disk(&spec()).unwrap().id;
        assert_eq!(read(&mut next, disk, 0, 4096)[..], [1; 4096]);
        if seed % 2 == 0 {
            flushed(&mut next, disk).unwrap();
        }
        next.world.power_cut(next.node);
        let fate = outcome(&stored(&next, 0, 4096));
        assert!(seed % 2 == 1 || fate == "kept", "a flush of the next life covers it");
        later_loss |= fate == "lost";
    }
    assert!(later_loss, "without that flush the power may still take it");
}

#[test]
fn a_flush_covers_only_what_completed_before_it() {
    let mut lost = false;
    for seed in 0..100 {
        let (mut host, disk) = host_with_disk(seed, true);
        host.world.disk_faults(host.node, "/disk", |f| f.flush_latency = (SECOND, SECOND));
        written(&mut host, write(disk, 0, filled(1, 512), false));
        host.turn([Op::DiskFlush { token: TOKEN, disk }]);
        // The write is on the same page, so that the flush of its neighbour might cover it by mistake.
        written(&mut host, write(disk, 512, filled(1, 512), false));
        let event = host.wait();
        assert!(matches!(event, Event::DiskFlush { result: Ok(()), .. }), "{event:?}");
        host.world.power_cut(host.node);
        assert_eq!(outcome(&stored(&host, 0, 512)), "kept");
        lost |= outcome(&stored(&host, 512, 512)) == "lost";
    }
    assert!(lost);
}

#[test]
fn a_failed_flush_is_not_made_good_by_the_next_one() {
    let mut lost = false;
    for seed in 0..100 {
        let (mut host, disk) = host_with_disk(seed, true);
        host.world.disk_faults(host.node, "/disk", |f| f.fail_flush = Some(0));
        written(&mut host, write(disk, 0, filled(1, 512), false));
        assert_eq!(flushed(&mut host, disk), Err(DiskError::Io(5)));
        assert_eq!(read(&mut host, disk, 0, 512)[0], 1, "the cache still shows it");
        written(&mut host, write(disk, 512, filled(1, 512), false));
        assert_eq!(flushed(&mut host, disk), Ok(()));
        host.world.power_cut(host.node);
        assert_eq!(outcome(&stored(&host, 512, 512)), "kept");
        lost |= outcome(&stored(&host, 0, 512)) == "lost";
    }
    assert!(lost);
}

#[test]
fn a_read_that_races_a_write_sees_it_whole_sector_by_sector() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let (mut host, disk) = host_with_disk(seed, true);
        host.turn([
            write(disk, 0, filled(1, 4096), false),
            Op::DiskRead { token: TOKEN, disk, offset: 0, buf: IoBufMut::new(4096) },
        ]);
        for _ in 0..2 {
            if let Event::DiskRead { buf, result: Ok(()), .. } = host.wait() {
                seen.insert(outcome(&buf));
            }
        }
    }
    assert_eq!(seen, BTreeSet::from(["kept", "lost"]));
}

#[test]
fn disk_faults_strike_as_ordered() {
    let (mut host, disk) = host_with_disk(9, true);
    let (world, node) = (host.world.clone(), host.node);
    let result = |event: Event| match event {
        Event::DiskWrite { result, .. } | Event::DiskRead { result, .. } => result,
        other => panic!("{other:?}"),
    };
    world.disk_faults(node, "/disk", |f| f.fail_write = Some(1));
    let one = || write(disk, 0, filled(1, 512), false);
    let results: Vec<_> = (0..3).map(|_| result(host.one(one()))).collect();
    assert_eq!(results, [Ok(()), Err(DiskError::Io(5)), Ok(())]);
    world.disk_faults(node, "/disk", |f| f.full = true);
    assert_eq!(result(host.one(one())), Err(DiskError::NoSpace));
    world.disk_faults(node, "/disk", |f| (f.full, f.fail_read) = (false, Some(0)));
    let look = |offset| Op::DiskRead { token: TOKEN, disk, offset, buf: IoBufMut::new(4096) };
    assert_eq!(result(host.one(look(0))), Err(DiskError::Io(5)));
    let beyond = DiskError::OutOfRange { offset: 1 << 30, len: 4096 };
    assert_eq!(result(host.one(look(1 << 30))), Err(beyond));
    world.disk_faults(node, "/disk", |f| f.stuck = true);
    host.turn([one()]);
    host.pass(60 * SECOND);
    assert!(host.events.is_empty(), "{:?}", host.events);
    world.disk_faults(node, "/disk", |f| f.stuck = false);
    assert_eq!(result(host.wait()), Ok(()));
    world.disk_image(node, "/disk").flip_bit(3, 4);
    assert_eq!(read(&mut host, disk, 0, 512)[3], 1 ^ 16);
    assert_eq!((world.fault_counts().disk_errors, world.fault_counts().corruptions), (3, 1));
}

#[test]
fn a_disk_is_locked_while_its_holder_lives_and_a_missing_one_is_named() {
    let (mut host, _) = host_with_disk(10, true);
    assert!(matches!(host.env.open_disk(&spec()), Err(EnvError::Locked { .. })));
    let other = DiskSpec { path: "/other".into(), ..spec() };
    assert!(matches!(host.env.open_disk(&other), Err(EnvError::Open { .. })));
}

#[test]
fn a_discarded_range_holds_zeros_or_what_it_held() {
    let mut seen = BTreeSet::new();
    for seed in 0..30 {
        let (mut host, disk) = host_with_disk(seed, true);
        written(&mut host, write(disk, 0, filled(1, 131_072), true));
        let event = host.one(Op::DiskDiscard { token: TOKEN, disk, offset: 65536, len_bytes: 65536 });
        assert!(matches!(event, Event::DiskDiscard { result: Ok(()), .. }), "{event:?}");
        assert_eq!(outcome(&read(&mut host, disk, 0, 65536)), "kept");
        seen.insert(outcome(&read(&mut host, disk, 65536, 65536)));
    }
    assert_eq!(seen, BTreeSet::from(["kept", "lost"]));
}

#[test]
fn a_cache_that_is_never_flushed_writes_back_by_itself_and_stays_bounded() {
    let (mut host, disk) = host_with_disk(11, true);
    for i in 0..3000u64 {
        written(&mut host, write(disk, i * 4096, filled(1, 4096), false));
    }
    host.world.power_cut(host.node);
    let kept = stored(&host, 0, 4096 * 1900);
    assert_eq!(outcome(&kept), "kept", "the oldest writes are durable");
}

#[test]
fn never_flushed_file_page_may_vanish_without_a_volatile_cache() {
    let mut fates = BTreeSet::new();
    for seed in 0..100 {
        let (mut host, disk) = host_with_disk(seed, false);
        host.world.disk_kind(host.node, "/disk", DiskKind::File);
        written(&mut host, write(disk, 0, filled(9, 16384), false));
        flushed(&mut host, disk).unwrap();
        // One write covers settled and fresh pages.
        written(&mut host, write(disk, 12288, filled(1, 8192), false));
        written(&mut host, write(disk, 65536, filled(1, 4096), false));
        host.world.power_cut(host.node);
        assert_eq!(stored(&host, 12288, 4096), vec![1; 4096], "settled pages need no flush");
        assert_eq!(stored(&host, 0, 12288), vec![9; 12288]);
        fates.insert(outcome(&stored(&host, 65536, 4096)));
        fates.insert(outcome(&stored(&host, 16384, 4096)));
    }
    assert_eq!(fates, BTreeSet::from(["kept", "lost", "torn"]));
}

#[test]
fn a_lying_disk_lies_once_for_each_order_and_remembers_it() {
    let (mut host, disk) = host_with_disk(7, true);
    host.world.disk_faults(host.node, "/disk", |f| {
        (f.phantom_write, f.misdirect_write, f.misdirect_read) = (Some(0), Some(1), Some(0));
        f.watch = (0, 1 << 20);
    });
    written(&mut host, write(disk, 0, filled(1, 4096), true));
    assert_eq!(stored(&host, 0, 4096), vec![0; 4096], "acknowledged, and never there");
    written(&mut host, write(disk, 8192, filled(2, 4096), true));
    assert_eq!(stored(&host, 8192, 4096), vec![0; 4096], "it went elsewhere");
    let elsewhere = host.world.disk_image(host.node, "/disk").stored_pages(0, 1 << 30);
    assert_eq!(elsewhere.len(), 1);
    written(&mut host, write(disk, 16384, filled(3, 4096), true));
    assert_ne!(read(&mut host, disk, 16384, 4096)[..], [3; 4096], "a read of another place");
    assert_eq!(read(&mut host, disk, 16384, 4096)[..], [3; 4096]);
    let lies = host.world.disk_lies(host.node, "/disk");
    let told: Vec<_> = lies.iter().map(|lie| (lie.kind, lie.offset, lie.durable_after)).collect();
    assert_eq!(told, [(LieKind::Phantom, 0, 1), (LieKind::Misdirected, 8192, 1)]);
    let counts = host.world.fault_counts();
    assert_eq!((counts.phantoms, counts.misdirected, counts.misread), (1, 1, 1));
}

#[test]
fn a_doomed_process_dies_between_the_operations_of_one_turn() {
    let mut behind = BTreeSet::new();
    for seed in 0..40 {
        let (mut host, disk) = host_with_disk(seed, true);
        let doom = Doom { after: 1, by: DoomBy::DiskOps, scatter: seed % 2 == 0, power: false };
        host.world.doom(host.node, Some(doom));
        host.turn((0..3).map(|n| write(disk, n << 20, filled(1, 4096), false)));
        assert!(!host.env.is_alive() && host.events.is_empty());
        assert_eq!(outcome(&stored(&host, 1 << 20, 4096)), "lost", "the fatal one never left");
        let third = outcome(&stored(&host, 2 << 20, 4096));
        assert!(seed % 2 == 0 || third == "lost");
        behind.insert(third);
    }
    assert_eq!(behind, BTreeSet::from(["kept", "lost"]));
    let (mut host, disk) = host_with_disk(1, true);
    host.world.doom(host.node, Some(Doom { after: 0, by: DoomBy::Events, scatter: false, power: true }));
    host.turn([write(disk, 0, filled(1, 4096), true)]);
    pass(&host.world, SECOND);
    host.turn([]);
    assert!(!host.env.is_alive() && host.events.is_empty(), "it dies before it takes the event");
    assert_eq!(outcome(&stored(&host, 0, 4096)), "kept", "what was done is done");
}

#[test]
fn unreadable_sector_fails_every_read_until_a_write_of_it_is_durable() {
    for volatile_cache in [true, false] {
        let (mut host, disk) = host_with_disk(12, volatile_cache);
        let image = host.world.disk_image(host.node, "/disk");
        written(&mut host, write(disk, 0, filled(1, 8192), true));
        image.make_unreadable(1024, 512);
        let look = |host: &mut Host, offset, len| match host.one(Op::DiskRead {
            token: TOKEN,
            disk,
            offset,
            buf: IoBufMut::new(len),
        }) {
            Event::DiskRead { result, .. } => result,
            other => panic!("{other:?}"),
        };
        for _ in 0..3 {
            assert_eq!(look(&mut host, 0, 4096), Err(DiskError::Io(5)));
        }
        assert_eq!(look(&mut host, 1536, 2560), Ok(()), "the sectors beside it are whole");
        written(&mut host, write(disk, 0, filled(2, 1024), true));
        assert_eq!(look(&mut host, 0, 4096), Err(DiskError::Io(5)), "the write did not cover it");
        written(&mut host, write(disk, 1024, filled(2, 512), false));
        assert_eq!(read(&mut host, disk, 0, 4096)[1024], 2);
        assert!(!image.is_unreadable(1024, 512), "the cache answers");
        flushed(&mut host, disk).unwrap();
        host.world.power_cut(host.node);
        assert!(!image.is_unreadable(0, 8192));
        assert_eq!(host.world.fault_counts().unreadable, 4);
    }
}

#[test]
fn unflushed_write_over_an_unreadable_sector_heals_it_only_if_it_survives() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let (mut host, disk) = host_with_disk(seed, true);
        let image = host.world.disk_image(host.node, "/disk");
        image.make_unreadable(4096, 512);
        written(&mut host, write(disk, 4096, filled(1, 512), false));
        assert!(!image.is_unreadable(4096, 512));
        host.world.power_cut(host.node);
        let fate = outcome(&stored(&host, 4096, 512));
        // A torn write of one sector has stored it or not.
        assert!(fate == "kept" || image.is_unreadable(4096, 512), "a lost write heals nothing");
        seen.insert(image.is_unreadable(4096, 512));
    }
    assert_eq!(seen, BTreeSet::from([false, true]));
}
