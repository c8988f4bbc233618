//! Number of allocations of lookups. Other tests of the process allocate, too, so this one runs in a process of its own. The least of
//! many runs counts.

use super::rig::Rig;
use crate::EngineConfig;
use crate::lineage::View;
use crate::testing::Order;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::hint::black_box;
use types::store::Effect;
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange, VolumeId};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const R1: ReplicaId = ReplicaId(1);
const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 0 };
const RUNS: u32 = 2000;

/// Returns the number of allocations of this work.
fn allocations<T>(mut work: impl FnMut() -> T) -> usize {
    let run = |_| {
        let region = Region::new(ALLOCATOR);
        black_box(work());
        region.change().allocations
    };
    (0..RUNS).map(run).min().expect("it ran")
}

fn apply_all(rig: &mut Rig) {
    rig.settle();
    rig.commit(R1, u64::MAX);
}

/// Counts a lookup in overlay and home, a read of both, its extents, and the units that a write takes.
fn counts(rig: &mut Rig) -> [usize; 4] {
    let range = SectorRange::new(0, 64);
    let engine = &mut rig.engine;
    let (r, home) = (&engine.replicas[&R1], engine.home.as_ref().expect("mounted"));
    let resolved = allocations(|| r.sources(home).resolve(View::Full, CHUNK, range));
    assert_eq!(resolved, allocations(|| r.overlay.lookup(CHUNK, range)), "one step is a lookup in the overlay");
    let mut out = Vec::with_capacity(4);
    let read = allocations(|| {
        engine.read(u64::MAX, R1, CHUNK, range, &mut out);
        assert_eq!(out.len(), 1, "home has no block of it");
        out.clear();
    });
    [resolved, read, allocations(|| engine.extents(R1, CHUNK, range)), allocations(|| engine.new_aus(R1, CHUNK, range))]
}

const TEST: &str = "tests::allocations::volume_without_snapshots_allocates_nothing_more";
const ALONE: &str = "BASALT_COUNTS_ALONE";

#[test]
fn volume_without_snapshots_allocates_nothing_more() {
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().expect("the test has a program");
        let mut alone = std::process::Command::new(this);
        let status = alone.args(["--exact", TEST, "--test-threads", "1"]).env(ALONE, "1").status();
        assert!(status.expect("it starts").success(), "see above");
        return;
    }
    let mut rig = Rig::new(1, true, EngineConfig { round_pressure: 100.0, ..EngineConfig::default() });
    rig.engine.hold_rounds(true);
    rig.create(1);
    rig.extend(R1, vec![Effect::Write { chunk: CHUNK, range: SectorRange::new(8, 16) }]);
    apply_all(&mut rig);
    let alone = counts(&mut rig);
    // Another volume has snapshots, of which some are dissolved.
    rig.order(
        R1,
        vec![Order::Begin { volume: VolumeId(1), parent: None }, Order::Begin { volume: VolumeId(2), parent: None }],
    );
    let branch = |n| Order::Branch { volume: VolumeId(2), to: GenerationId(n) };
    rig.order(R1, (3..100).map(branch).collect());
    rig.order(R1, (3..20).map(|n| Order::Remove(GenerationId(n))).collect());
    apply_all(&mut rig);
    assert!(rig.models[&R1].tree.len() > 50);
    assert_eq!(counts(&mut rig), alone);
    // Nor does a head pay for each of 80 generations that have nothing in the chunk: home and the list of those that have something cost three.
    let (r, home) = (&rig.engine.replicas[&R1], rig.engine.home.as_ref().expect("mounted"));
    let head = ChunkKey { generation: GenerationId(99), index: 0 };
    let of_head = allocations(|| r.sources(home).resolve(View::Full, head, SectorRange::new(0, 64)));
    assert!((1..=alone[0] + 3).contains(&of_head), "{of_head} allocations, {} without snapshots", alone[0]);
}
