//! Properties of a placement group, under one seed at a time.

mod client;
mod engine;
mod fate;
mod filling;
mod force;
mod laws;
mod members;
mod rig;
mod script;
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

/// Runs a storm of `seconds`, then calm; returns (acknowledged writes, sectors read, elections).
fn storm(seed: u64, size: u32, datagrams: bool, seconds: u64) -> (u64, u64, u64) {
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
    (world.watch.acknowledged, world.watch.reads, world.watch.elections)
}

fn storms(seeds: std::ops::Range<u64>, size: u32, datagrams: bool) {
    let (mut acknowledged, mut reads, mut elections) = (0, 0, 0);
    for seed in seeds.clone() {
        let (a, r, e) = storm(seed, size, datagrams, 12);
        (acknowledged, reads, elections) = (acknowledged + a, reads + r, elections + e);
    }
    let count = seeds.end - seeds.start;
    println!("{count} seeds: {acknowledged} writes, {reads} sectors read, {elections} elections");
    assert!(acknowledged > 50 * count && reads > 50 * count, "the storms let almost nothing through");
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
