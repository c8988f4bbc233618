//! Hundreds of seeds: random overlapping I/O against PGs that change leaders, fall silent, forget,
//! apply late, answer twice and flip bits.

use super::cluster::{Cluster, Event};
use super::history::History;
use super::script::opened;
use crate::{OnUnavailable, Volume, VolumeConfig, VolumeOut, VolumeTuning};
use device::{Answer, Completion, Request};
use std::time::Duration;
use types::control::Opened;
use types::faults::{Fault, FaultEffect, ToldFault};
use types::rng::Rng;
use types::{Errno, SEGMENT, SegmentIndex, Stripe, Time};

const MS: u64 = 1_000_000;
/// I/O falls here: start and length of ranges that have borders of parts, chunks and segments in them.
const HOT: [(u64, u64); 3] = [(15 << 20, 2 << 20), (SEGMENT - (1 << 20), 2 << 20), (2 * SEGMENT - (1 << 20), 2 << 20)];

struct Run {
    rng: Rng,
    now: Time,
    volume: Volume,
    cluster: Cluster,
    out: VolumeOut,
    history: History,
    left: u32,
    open: u32,
    fenced: bool,
    /// Whether faults come and go.
    rehearses: bool,
    /// Requests that failed because of the policy.
    failed: u64,
}

impl Run {
    fn new(seed: u64, on_unavailable: OnUnavailable) -> Run {
        let mut rng = Rng::new(seed);
        // A third of all runs are striped.
        let stripe = match seed % 3 {
            2 => Stripe::new(16384 << (seed / 3 % 6), 2 << (seed / 3 % 3)).expect("powers of two"),
            _ => Stripe::NONE,
        };
        let cluster = Cluster::new(rng.fork(), stripe);
        let allocated = 1 + rng.below(2) as u32;
        let places = (0..allocated).map(|n| Cluster::place(stripe, SegmentIndex(n))).collect();
        let opened = Opened { stripe, segments: places, ..opened(3 * SEGMENT, allocated * stripe.count(), true) };
        // Half of all runs wait for space, some longer than the cluster is full.
        let full_wait = Duration::from_millis(seed % 2 * (seed / 2 % 5) * 700);
        let mut tuning = VolumeTuning::default();
        if on_unavailable != OnUnavailable::Freeze {
            // So short that many requests fail while their messages are on their way.
            tuning.unavailable = Duration::from_millis(20 + seed % 7 * 60);
        }
        let config = VolumeConfig { space: 1, serial: 0, timeout: None, full_wait, on_unavailable, tuning, seed };
        let volume = Volume::new(&opened, config);
        let left = rng.between(40, 120) as u32;
        let now = Time(1_000 * MS);
        Run {
            rng,
            now,
            volume,
            cluster,
            out: VolumeOut::default(),
            history: History::default(),
            left,
            open: 0,
            fenced: false,
            rehearses: false,
            failed: 0,
        }
    }

    fn span(&mut self) -> (u64, u64) {
        let (start, room) = HOT[self.rng.below(3) as usize];
        let sectors_max = match self.rng.below(60) {
            0 => 16384,
            1..8 => 2048,
            _ => 24,
        };
        let offset = start + self.rng.below(room / 512) * 512;
        (offset, self.rng.between(1, sectors_max) * 512)
    }

    fn submit_one(&mut self) {
        let (offset, len) = self.span();
        let token = u64::from(self.left);
        let request = match self.rng.below(20) {
            0..9 => Request::Write { offset, buf: self.history.payload(token, offset, len), fua: false },
            9..16 => Request::Read { offset, len },
            16 => Request::Trim { offset, len },
            17 => Request::WriteZeroes { offset, len, no_hole: true },
            18 => Request::Extents { offset, len, since: None },
            _ => Request::Flush,
        };
        self.history.begin(self.now, token, &request);
        self.volume.submit(self.now, request, token).expect("not busy at this depth");
        self.left -= 1;
        self.open += 1;
    }

    fn turn(&mut self) {
        self.volume.poll(self.now, &mut self.cluster.carrier(self.now), &mut self.out);
        self.volume.check_books();
        for ask in self.out.meta.drain(..) {
            self.cluster.ask(self.now, ask);
        }
        for Completion { token, result } in std::mem::take(&mut self.out.done) {
            self.open -= 1;
            match &result {
                Err(Errno::Fenced) if self.fenced => {}
                Err(Errno::NoSpace) if self.cluster.was_full => {}
                Err(Errno::TimedOut) if self.volume.on_unavailable() != OnUnavailable::Freeze => self.failed += 1,
                Err(Errno::Rehearsed) if self.rehearses => {}
                Err(Errno::Damaged) => panic!("flips are rarer than repetitions"),
                Err(errno) => panic!("request {token} failed: {errno}"),
                Ok(Answer::Done | Answer::Data(_) | Answer::Extents(_)) => {}
            }
            self.history.end(self.now, token, &result);
        }
    }

    fn step(&mut self) {
        let next = self.cluster.next_event_time().min(self.volume.next_deadline());
        assert!(next < Time::NEVER, "nothing will ever happen again; {} requests are open", self.open);
        self.now = self.now.max(next);
        while let Some(event) = self.cluster.take(self.now) {
            match event {
                Event::Reply(osd, reply) => self.volume.handle_reply(self.now, osd, reply),
                Event::Meta(ask, answer) => self.volume.handle_meta(self.now, &ask, answer),
                Event::Link(osd, up) => self.volume.handle_link(self.now, osd, up),
            }
        }
    }

    /// Runs to the end; returns the time that the last requests took after the faults had ended.
    fn run(&mut self) {
        let depth = self.rng.between(1, 24) as u32;
        let fence_at = self.rng.chance(1, 10).then(|| self.rng.below(40) as u32);
        let mut steps = 0;
        while self.left > 0 || self.open > 0 {
            while self.left > 0 && self.open < depth && self.rng.chance(2, 3) {
                self.submit_one();
            }
            if fence_at.is_some_and(|at| self.left <= at) && !self.fenced {
                self.fenced = true;
                self.cluster.fence();
            }
            if self.left == 0 {
                self.cluster.calm(self.now);
            }
            if self.rehearses && self.rng.chance(1, 8) {
                self.change_faults();
            }
            self.turn();
            if self.open > 0 {
                self.step();
            }
            steps += 1;
            assert!(steps < 100_000 && self.now < Time(600_000 * MS), "no end in sight: {} open", self.open);
        }
        if self.failed == 0 {
            self.cluster.check_waste(&self.volume);
        }
    }

    /// Tells the volume other faults, as an answer of meta does.
    fn change_faults(&mut self) {
        let mut told = Vec::new();
        for _ in 0..self.rng.below(4) {
            let effect = match self.rng.below(4) {
                0 => FaultEffect::Error,
                1 => FaultEffect::Pause,
                _ => FaultEffect::Latency(self.rng.between(1, 200) as u32),
            };
            let percent = if effect == FaultEffect::Pause { 100 } else { self.rng.between(1, 100) as u8 };
            let (reads, writes) = [(true, true), (true, false), (false, true)][self.rng.below(3) as usize];
            let id = self.rng.between(1, 1_000) as u32;
            told.push(ToldFault {
                id,
                fault: Fault { effect, percent, reads, writes },
                left_ms: self.rng.between(1, 500),
            });
        }
        self.volume.set_faults(self.now, &told);
    }

    /// Checks that every acknowledged write can be read when the faults have ended.
    fn read_back(&mut self) {
        self.now = self.now + Duration::from_secs(5);
        self.rehearses = false;
        self.volume.set_faults(self.now, &[]);
        let failed = self.failed;
        self.volume.config.tuning.unavailable = Duration::from_secs(5);
        for (n, (offset, len)) in HOT.into_iter().enumerate() {
            let request = Request::Read { offset, len: len + (1 << 20) };
            let token = 1_000 + n as u64;
            self.history.begin(self.now, token, &request);
            self.volume.submit(self.now, request, token).expect("idle");
            self.open += 1;
        }
        while self.open > 0 {
            self.turn();
            if self.open > 0 {
                self.step();
            }
        }
        assert!(self.volume.is_idle() && self.failed == failed, "the storage is back");
    }
}

#[test]
fn reads_return_the_last_acknowledged_write_whatever_leaders_and_links_do() {
    let only: Option<u64> = std::env::var("BASALT_SEED").ok().and_then(|s| s.parse().ok());
    let mut faults = [0; super::cluster::FAULTS.len()];
    for seed in only.map_or(0..250, |seed| seed..seed + 1) {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, OnUnavailable::Freeze);
            run.run();
            if !run.fenced {
                run.read_back();
            }
            run.cluster.faults
        });
        let seen = outcome.unwrap_or_else(|_| panic!("seed {seed}: run again with BASALT_SEED={seed}"));
        faults.iter_mut().zip(seen).for_each(|(sum, n)| *sum += n);
    }
    if only.is_none() {
        eprintln!("{faults:?}");
        for (name, count) in super::cluster::FAULTS.iter().zip(faults) {
            assert!(count > 0, "the seeds never met: {name}");
        }
    }
}

#[test]
fn write_that_failed_never_lands_after_a_later_one_was_acknowledged() {
    let mut failed = 0;
    for seed in 0..120 {
        let policy = match seed % 2 {
            0 => OnUnavailable::Error,
            _ => OnUnavailable::Wait(Duration::from_millis(30 + seed % 5 * 100)),
        };
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, policy);
            run.run();
            if !run.fenced {
                run.read_back();
            }
            assert_eq!(run.failed, run.volume.stats().unavailable);
            run.failed
        });
        failed += outcome.unwrap_or_else(|_| panic!("seed {seed} under {policy}"));
    }
    assert!(failed > 100, "the policy failed {failed} requests only");
}

#[test]
fn rehearsed_faults_reorder_no_writes_and_lose_no_request() {
    let mut met = 0;
    for seed in 0..120 {
        let policy = if seed % 3 == 0 { OnUnavailable::Error } else { OnUnavailable::Freeze };
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, policy);
            run.rehearses = true;
            run.run();
            if !run.fenced {
                run.read_back();
            }
            run.volume.stats().rehearsed
        });
        met += outcome.unwrap_or_else(|_| panic!("seed {seed} under {policy}"));
    }
    assert!(met > 1_000, "faults met {met} requests only");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let end = |seed| {
        let mut run = Run::new(seed, OnUnavailable::Freeze);
        run.run();
        (run.now, run.volume.stats(), run.cluster.faults)
    };
    assert_eq!(end(11), end(11));
    assert_ne!(end(11), end(12));
}
