//! Properties of a placement group, under one seed at a time.

mod client;
mod cuts;
mod engine;
mod fate;
mod filling;
mod fills;
mod force;
mod laws;
mod members;
mod rig;
mod script;
mod shrinks;
mod unreached;
mod watch;
mod words;
mod world;

use rig::MS;
use world::{Event, World};

/// Names the seed of a storm that ends in a panic.
struct Story(u64);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the storm of seed {} broke a law", self.0);
        }
    }
}

/// Acknowledged writes, sectors read, sectors of snapshots read, elections, cuts that were released and given up, and snapshots removed.
type Counts = [u64; 11];

/// Runs a storm of `seconds`, then calm.
fn storm(seed: u64, size: u32, datagrams: bool, seconds: u64) -> Counts {
    let _story = Story(seed);
    let mut world = World::new(seed, size, datagrams);
    world.run_to(2000 * MS);
    while world.session_count() == 0 {
        world.open();
        let next = world.now + 100 * MS;
        world.run_to(next);
        assert!(world.now < 20_000 * MS, "seed {seed}: no leader");
    }
    world.at(world.now, Event::Misfortune);
    let end = world.now + seconds * 1000 * MS;
    world.run_to(end);
    world.settle();
    let (watch, [released, given_up, removed]) = (&world.watch, world.cuts.counts);
    let [_, copied, passed_over] = world.fills;
    let (writes, reads, of_snapshots) = (watch.acknowledged, watch.reads, watch.snapshot_reads);
    let [wiped, unwiped] = world.shrinks;
    [writes, reads, of_snapshots, watch.elections, released, given_up, removed, copied, passed_over, wiped, unwiped]
}

fn storms(seeds: std::ops::Range<u64>, size: u32, datagrams: bool) {
    let mut all: Counts = [0; 11];
    for seed in seeds.clone() {
        all.iter_mut().zip(storm(seed, size, datagrams, 12)).for_each(|(sum, of)| *sum += of);
    }
    let count = seeds.end - seeds.start;
    println!(
        "{count} seeds: writes, reads, of snapshots, elections, cuts, given up, removed, copies, passed over: {all:?}"
    );
    let [acknowledged, reads, of_snapshots, _, released, given_up, removed, copied, passed_over, wiped, unwiped] = all;
    assert!(wiped > 0 && unwiped > 0, "{wiped} places were wiped, and {unwiped} orders refused");
    assert!(copied > 10 * count && passed_over > 10 * count, "{all:?}");
    assert!(acknowledged > 50 * count && reads > 50 * count, "the storms let almost nothing through");
    assert!(of_snapshots > 20 * count && released > count && given_up > count && removed > count, "{all:?}");
}

#[test]
fn three_replicas_keep_every_law_over_streams() {
    storms(0..60, 3, false);
}

#[test]
fn three_replicas_keep_every_law_over_datagrams() {
    storms(1000..1040, 3, true);
}

#[test]
fn five_replicas_keep_every_law() {
    storms(2000..2010, 5, false);
}

#[test]
fn two_replicas_keep_every_law() {
    storms(3000..3010, 2, false);
}

#[test]
fn a_single_replica_keeps_every_law() {
    storms(4000..4010, 1, false);
}

#[test]
fn equal_seeds_give_equal_histories() {
    assert_eq!(storm(7, 3, true, 5), storm(7, 3, true, 5));
}
