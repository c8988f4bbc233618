//! Power cuts of a store that writes large payloads once (ADR 0030): at every completion of a short history, and in random lives.

use super::placed::{aus, config};
use super::rig::Rig;
use super::{crash, crash::Counts, laws::write};
use crate::EngineConfig;
use crate::testing::chunks;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::store::Effect;
use types::{AU, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);

/// A disk of the matrix.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Volatile,
    Plain,
    /// A file whose home has holes.
    File,
}

const KINDS: [Kind; 3] = [Kind::Volatile, Kind::Plain, Kind::File];

fn rig(seed: u64, kind: Kind, config: EngineConfig) -> Rig {
    let mut rig = match kind {
        Kind::Volatile => Rig::new(seed, true, config),
        Kind::Plain => Rig::new(seed, false, config),
        Kind::File => Rig::on_file(seed, config),
    };
    rig.disk.in_parts = true;
    rig
}

/// A history that stops after so many completions of the disk.
struct History {
    rig: Rig,
    left: u64,
}

impl History {
    /// Runs turns; `None`: the history is over.
    fn turns(&mut self, count: u32) -> Option<()> {
        for _ in 0..count {
            let before = self.rig.disk.completed;
            self.rig.turn(1);
            let done = self.rig.disk.completed - before;
            self.left = self.left.checked_sub(done).filter(|left| *left > 0)?;
        }
        Some(())
    }

    fn put(&mut self, replica: ReplicaId, effects: Vec<Effect>) -> Option<()> {
        self.rig.extend(replica, effects);
        self.turns(8)?;
        self.rig.commit(replica, u64::MAX);
        Some(())
    }

    fn round(&mut self) -> Option<()> {
        let rounds = self.rig.engine.stats().rounds;
        self.rig.round();
        while self.rig.engine.stats().rounds == rounds {
            self.turns(1)?;
        }
        self.rig.engine.audit().expect("the books balance");
        Some(())
    }

    /// Places, adopts, overwrites before and after a round, truncates, cuts, destroys.
    fn run(&mut self) -> Option<()> {
        let [a, b, ..] = chunks();
        self.put(R1, vec![aus(a, 0, 3), aus(b, 1, 2)])?;
        self.put(R2, vec![aus(a, 1, 1), write(100, 60)])?;
        // Two of three AUs are adopted, and an uncommitted tail stays above the checkpoint.
        self.put(R1, vec![write(140, 1)])?;
        self.rig.extend(R3, vec![aus(a, 0, 2), write(9, 3)]);
        self.round()?;
        // An overwrite in exchange, and one in place.
        self.put(R1, vec![aus(a, 0, 1), write(300, 8), aus(b, 0, 2)])?;
        self.rig.append(R3, 1, vec![aus(b, 0, 2)]);
        self.turns(3)?;
        self.put(R1, vec![Effect::Zero { chunk: b, range: SectorRange::new(0, 100) }])?;
        self.round()?;
        self.put(R3, vec![aus(a, 2, 1), Effect::Unmap { generation: b.generation, from_chunk: b.index }])?;
        self.rig.destroy(R2);
        self.put(R3, vec![aus(b, 0, 3)])?;
        self.round()?;
        self.put(R1, vec![aus(a, 0, 3)])?;
        self.round()
    }
}

/// Cuts the power at every completion of the history; returns the number of cuts.
fn cut_everywhere(seed: u64, kind: Kind) -> u64 {
    for at in 1.. {
        // Space that is freed too early is reused at once.
        let mut rig = rig(seed, kind, EngineConfig { reuse_at_once: true, ..config() });
        (1..=3).for_each(|id| rig.create(id));
        let mut history = History { rig, left: at };
        let is_over = history.run().is_some();
        let mut rig = history.rig;
        rig.disk.power_cut();
        restart(&mut rig);
        // All entries that came back count: they go home, and stay.
        for replica in rig.models.keys().copied().collect::<Vec<_>>() {
            rig.commit(replica, u64::MAX);
        }
        for _ in 0..2 {
            rig.round();
            rig.settle();
        }
        assert_eq!(rig.engine.stats().home.logged_bytes, 0, "{kind:?}, cut {at}");
        rig.disk.power_cut();
        restart(&mut rig);
        if is_over {
            return at;
        }
    }
    unreachable!("the history ends")
}

/// Restarts, and checks the replicas; one whose destruction was not durable is destroyed again.
fn restart(rig: &mut Rig) {
    rig.restart();
    let came = |rig: &Rig, id| rig.seen.recovered.iter().any(|found| found.identity.replica == id);
    if !rig.models.contains_key(&R2) && came(rig, R2) {
        rig.seen.recovered.retain(|found| found.identity.replica != R2);
        rig.engine.destroy_replica(R2);
        rig.settle();
    }
    rig.restart_and_check();
}

#[test]
fn power_cut_at_every_completion_loses_no_placed_payload() {
    for kind in KINDS {
        let cuts = cut_everywhere(0, kind);
        assert!(cuts > 40, "{cuts} cuts: the test lost its teeth");
    }
}

/// Runs random lives on each kind of disk.
fn lives(seeds: std::ops::Range<u64>) -> Counts {
    let mut all = Counts::default();
    for (seed, kind) in seeds.flat_map(|seed| KINDS.map(|kind| (seed, kind))) {
        let config = EngineConfig {
            redirect_min: Some([1, 2][seed as usize % 2] * AU),
            reuse_at_once: seed % 3 > 0,
            round_idle: Duration::from_millis(20),
            ..crash::config(seed)
        };
        // Long segments have room behind a last batch that payloads at home leave none.
        let rig = match (kind, seed % 3) {
            (Kind::File, _) | (_, 0 | 1) => rig(seed, kind, config),
            (_, _) => Rig::with_long_segments(seed, matches!(kind, Kind::Volatile), 2 << 20, config),
        };
        all.add(crash::run(rig, 6, 300));
    }
    all
}

#[test]
fn random_lives_lose_no_placed_payload_on_any_disk() {
    let Counts { rounds, .. } = lives(0..6);
    assert!(rounds > 15, "{rounds} rounds: the test lost its teeth");
}

/// Runs lives in which many large payloads wait at a time; returns the most bytes that one batch has placed, too.
fn bursts(seed: u64, volatile: bool, lives: u64) -> (Counts, u64) {
    let config = EngineConfig {
        redirect_min: Some(AU),
        reuse_at_once: seed.is_multiple_of(2),
        round_idle: Duration::from_millis(20),
        ..crash::config(seed)
    };
    let mut rig = Rig::with_long_segments(seed, volatile, 8 << 20, config);
    rig.disk.in_parts = true;
    (1..=3).for_each(|id| rig.create(id));
    let (mut most, mut steps) = (0, 0);
    for _ in 0..lives {
        for _ in 0..rig.rng().between(1, 400) {
            let before = rig.engine.stats();
            if rig.rng().chance(1, 16) && rig.engine.pressure().max() < 1.0 {
                burst(&mut rig);
            }
            crash::step(&mut rig);
            let after = rig.engine.stats();
            if after.batches == before.batches + 1 {
                most = most.max(after.placed_bytes - before.placed_bytes);
            }
            steps += 1;
        }
        crash::end_life(&mut rig);
    }
    let (rounds, completed) = (rig.seen.checkpoints, rig.seen.completed_blocks);
    (Counts { rounds, completed, steps, crashes: lives }, most)
}

/// Appends up to 40 payloads of whole AUs to a replica.
fn burst(rig: &mut Rig) {
    let replica = ReplicaId(rig.rng().between(1, 3));
    let effect = |rig: &mut Rig| {
        let (chunk, au) = (chunks()[rig.rng().below(4) as usize], rig.rng().below(3) as u32);
        aus(chunk, au, rig.rng().between(1, 3 - u64::from(au)) as u32)
    };
    let effects = (0..rig.rng().between(8, 40)).map(|_| effect(rig)).collect();
    rig.extend(replica, effects);
}

#[test]
fn bursts_of_large_payloads_survive_power_cuts() {
    let (mut most, mut rounds) = (0, 0);
    for (seed, volatile) in [(0, true), (1, false)] {
        let (counts, placed) = bursts(seed, volatile, 5);
        (most, rounds) = (most.max(placed), rounds + counts.rounds);
    }
    assert!(most > 2 << 20 && rounds > 4, "{most} bytes, {rounds} rounds: the test lost its teeth");
}

/// Histories with and without payloads at home over many seeds, on every kind of disk: `make engine-crashes SEEDS=FIRST..LAST`.
#[test]
fn histories_of_many_seeds_lose_nothing_and_leak_no_au() {
    let seeds = std::env::var("ENGINE_SEEDS").unwrap_or_else(|_| "1000..1001".to_owned());
    let (first, last) = seeds.split_once("..").expect("ENGINE_SEEDS=FIRST..LAST");
    let (first, last): (u64, u64) = (first.parse().expect("a number"), last.parse().expect("a number"));
    let next = AtomicU64::new(first);
    let total = Mutex::new((Counts::default(), 0));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= last {
            return;
        }
        let mut counts = lives(seed..seed + 1);
        for volatile in [false, true] {
            counts.add(crash::life(seed, volatile, 8, 500));
        }
        for volatile in [false, true] {
            counts.add(bursts(seed, volatile, 5).0);
        }
        let cuts: u64 = KINDS.map(|kind| cut_everywhere(seed, kind)).iter().sum();
        let mut total = total.lock().expect("no other seed has failed");
        total.0.add(counts);
        total.1 += cuts;
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (counts, cuts) = total.into_inner().expect("no seed has failed");
    println!("seeds {seeds}: {counts:?}; {cuts} histories cut at each of their completions");
    assert!(counts.rounds > last - first && cuts > 40 * (last - first), "the histories lost their teeth");
}
