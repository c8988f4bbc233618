//! Laws of space (R13): the counts are exact, granted space fits, trimmed space comes back.

use super::crash::{config, step};
use super::laws::put_wide;
use super::rig::Rig;
use crate::EngineConfig;
use crate::round::RoundStep;
use crate::space::AuSet;
use crate::testing::chunks;
use std::time::Duration;
use types::rng::Rng;
use types::store::Effect;
use types::units::{AUS_PER_CHUNK, SECTORS_PER_AU};
use types::{ChunkKey, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);

fn check(rig: &Rig) {
    // Home's map is ahead of the frozen layers from the first staged chunk to the flip.
    if !matches!(rig.engine.destage.round, RoundStep::Home { .. } | RoundStep::Recording { .. }) {
        assert_eq!(rig.engine.counted_space(), rig.engine.recount_space());
    }
}

#[test]
fn set_of_aus_is_the_same_from_flags_and_one_by_one() {
    let mut rng = Rng::new(1);
    for pct in [0, 1, 50, 99, 100] {
        let flags = std::array::from_fn(|_| rng.chance(pct, 100));
        let ones = (0..AUS_PER_CHUNK).filter(|au| flags[*au as usize]);
        assert_eq!(AuSet::from_flags(flags), AuSet::of(ones), "{pct} %");
    }
}

#[test]
fn space_need_of_the_overlay_equals_a_recount_in_every_life() {
    for seed in 0..6 {
        let mut rig = Rig::new(seed, true, config(seed));
        (1..=3).for_each(|id| rig.create(id));
        for _ in 0..4 {
            for _ in 0..400 {
                step(&mut rig);
                check(&rig);
            }
            rig.disk.power_cut();
            rig.restart_and_check();
            check(&rig);
        }
        // No data is dirty, so no space is needed.
        for id in 1..=3 {
            rig.commit(ReplicaId(id), u64::MAX);
        }
        for _ in 0..20 {
            rig.now = rig.now + Duration::from_millis(60);
            rig.turn(16);
        }
        rig.settle();
        assert_eq!(rig.engine.space().dirty_new_aus, 0);
    }
}

fn au_of(chunk: ChunkKey, au: u32) -> Effect {
    Effect::Write { chunk, range: SectorRange::new(au * SECTORS_PER_AU, 8) }
}

#[test]
fn write_needs_only_aus_that_are_not_held_yet() {
    let mut rig = Rig::new(31, true, EngineConfig::default());
    rig.create(1);
    let key = chunks()[0];
    let two = SectorRange::new(SECTORS_PER_AU - 8, 16);
    assert_eq!(rig.engine.new_aus(R1, key, two), 2);
    put_wide(&mut rig, vec![au_of(key, 0)]);
    assert_eq!((rig.engine.new_aus(R1, key, two), rig.engine.space().dirty_new_aus), (1, 1), "the overlay counts");
    let before = rig.engine.space();
    rig.round();
    rig.settle();
    assert_eq!((rig.engine.new_aus(R1, key, two), rig.engine.space().dirty_new_aus), (1, 0), "home counts");
    assert_eq!(rig.engine.space().free_aus, before.free_aus - 1);
    let all = SectorRange::new(0, SECTORS_PER_AU);
    put_wide(&mut rig, vec![Effect::Zero { chunk: key, range: all }]);
    assert_eq!(rig.engine.new_aus(R1, key, two), 2, "what is trimmed is as good as gone");
    put_wide(&mut rig, vec![au_of(key, 0)]);
    assert_eq!(rig.engine.space().dirty_new_aus, 0, "and home keeps the AU when it is written again");
    put_wide(&mut rig, vec![Effect::Unmap { generation: key.generation, from_chunk: 0 }, au_of(key, 0)]);
    assert_eq!(rig.engine.space().dirty_new_aus, 1, "below a cut there is nothing");
}

/// Writes AU after AU at random while the space left allows it; returns the number of AUs written.
fn fill(rig: &mut Rig, rng: &mut Rng, chunk_count: u32) -> u32 {
    let generation = chunks()[0].generation;
    let mut admitted = 0;
    let mut misses = 0;
    while misses < 400 {
        let key = ChunkKey { generation, index: rng.below(u64::from(chunk_count)) as u32 };
        let count = rng.between(1, 4) as u32;
        let first = rng.below(u64::from(AUS_PER_CHUNK - count)) as u32;
        let range = SectorRange::new(first * SECTORS_PER_AU + 64, (count - 1) * SECTORS_PER_AU + 8);
        let need = rig.engine.new_aus(R1, key, range);
        if u64::from(need) > rig.engine.space().available_aus {
            misses += 1;
            rig.now = rig.now + Duration::from_millis(1);
            rig.turn(4);
        } else {
            put_wide(rig, vec![Effect::Write { chunk: key, range }]);
            admitted += need;
        }
        assert!(!rig.engine.destage.refused, "what was promised fits: {:?}", rig.engine.space());
        check(rig);
    }
    admitted
}

#[test]
fn home_filled_to_the_last_grant_refuses_no_round_and_trims_free_space() {
    for seed in 0..3 {
        let config = EngineConfig { round_idle: Duration::from_millis(20), ..EngineConfig::default() };
        let mut rig = Rig::new(40 + seed, true, config);
        rig.create(1);
        let mut rng = Rng::new(seed);
        let chunk_count = 3;
        let free = rig.engine.space().free_aus;
        let admitted = fill(&mut rig, &mut rng, chunk_count);
        rig.settle();
        let space = rig.engine.space();
        assert_eq!(space.dirty_new_aus, 0);
        assert!(space.available_aus < 4 && u64::from(admitted) > free / 2, "{admitted} of {free}: {space:?}");
        // Overwrites of whole chunks need no space. The idle timer must not start the round.
        rig.engine.config.round_idle = Duration::from_secs(1000);
        rig.engine.want_space(true);
        let generation = chunks()[0].generation;
        for au in 0..AUS_PER_CHUNK {
            let range = SectorRange::new(au * SECTORS_PER_AU, SECTORS_PER_AU);
            put_wide(&mut rig, vec![Effect::Zero { chunk: ChunkKey { generation, index: 0 }, range }]);
        }
        let rounds = rig.engine.stats().rounds;
        for _ in 0..30 {
            rig.now = rig.now + Duration::from_millis(20);
            rig.turn(64);
        }
        rig.settle();
        assert!(rig.engine.stats().rounds > rounds, "a trim is destaged while space is wanted");
        assert!(rig.engine.space().available_aus > 16, "{:?}", rig.engine.space());
        rig.engine.want_space(false);
        rig.engine.config.round_idle = Duration::from_millis(20);
        assert!(fill(&mut rig, &mut rng, chunk_count) > 16, "writes work again");
    }
}
