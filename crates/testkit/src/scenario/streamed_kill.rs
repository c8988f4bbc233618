//! An OSD is being streamed to, and another one that leads is killed: the PGs go on with the third one and the log of the
//! streamed follower (R16, ADR 0025). Beside it stands the same kill with all replicas whole.
//!
//! A stall is the longest time of one request. The limit means a release build on a quiet machine, so the scenario runs by
//! name only.

use super::Settings;
use super::back::stop_osd;
use crate::clock;
use crate::cluster::{Cluster, Shape, wait_listening};
use crate::report::{Outcome, spread};
use crate::session::{Open, Session};
use crate::stamped::{AREAS, SPAN, StampedLoad};
use anyhow::{Context, Result, anyhow};
use bench::load::stamp;
use device::Request;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::limits::PART_MAX;
use types::rng::Rng;
use types::{BLOCK, IoBufMut, SEGMENT};

/// Requests in flight on each segment; together 8.
const DEPTH: u32 = 8 / AREAS as u32;
/// Bytes in each segment that the load does not change, so that a stream takes seconds.
const FILLED: u64 = 512 << 20;
const FILLED_SHORT: u64 = 256 << 20;
const LOG: u64 = 64 << 20;
/// The OSD that is away; the others are killed in turn.
const AWAY: u32 = 3;
const OTHERS: [u32; 2] = [1, 2];
/// Time for which a killed OSD stays down.
const DOWN: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(1);
const STALL_MAX: Duration = Duration::from_millis(300);
/// Longest time until everything is whole again.
const WHOLE_MAX: Duration = Duration::from_secs(120);
/// Attempts of a round: a stream may end before the kill.
const ATTEMPTS: u32 = 3;

/// In one round of so many the kill does not wait for the streams that have not begun.
const HURRIED_EVERY: u32 = 4;

/// Numbers of backfills, by verb and PG.
type Backfills = BTreeMap<(String, String), u64>;

/// Time of the slowest request around a kill, and when it was answered after the kill.
type Stall = (Duration, Duration);

/// Numbers of PGs with data.
#[derive(Clone, Copy, Default)]
struct Streams {
    running: usize,
    waiting: usize,
    done: usize,
}

struct Rounds {
    cluster: Cluster,
    load: StampedLoad,
    rng: Rng,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    if cfg!(debug_assertions) {
        outcome.figure("a build for development: the limit of 300 ms means a release build (--release)");
    }
    let shape = Shape { log_bytes: LOG, ..Shape::default() };
    let cluster = Cluster::up(&settings.base, "streamed-kill", shape)?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    (load.config.depth, load.config.read_percent) = (DEPTH, 0);
    let mut this = Rounds { cluster, load, rng: Rng::new(settings.seed) };
    let ended = this.fill(if settings.short { FILLED_SHORT } else { FILLED }).and_then(|()| {
        this.load.start()?;
        this.all(settings.rounds(10, 2), outcome)?;
        this.load.kill()?;
        this.load.check()
    });
    if let Err(error) = ended {
        outcome.faults.push(format!("{error:#}"));
    }
    outcome.figure(this.load.summary());
    super::close(&mut this.cluster, settings, outcome);
    Ok(())
}

impl Rounds {
    /// Writes the bytes behind those of the load, in each segment.
    fn fill(&mut self, bytes: u64) -> Result<()> {
        let mut session = Session::open(self.cluster.basalt.metas(), &self.load.config.volume, Open::default())?;
        for segment in 0..AREAS {
            let from = segment * SEGMENT + SPAN;
            for offset in (from..from + bytes).step_by(PART_MAX as usize) {
                let mut buf = IoBufMut::new(PART_MAX as usize);
                stamp::fill(&mut buf, 1, 1, offset, 1);
                let request = Request::Write { offset, buf: buf.freeze(), fua: false };
                session.call(request)?.map_err(|e| anyhow!("writing at {offset}: {e}"))?;
            }
        }
        session.close()
    }

    fn all(&mut self, rounds: u32, outcome: &mut Outcome) -> Result<()> {
        let (mut streamed, mut whole, mut victims) = (Vec::new(), Vec::new(), BTreeSet::new());
        for round in 0..rounds {
            let victim = OTHERS[round as usize % 2];
            let (osd, (stall, answered), streams) =
                self.streamed(victim, round % HURRIED_EVERY == HURRIED_EVERY - 1)?;
            let Streams { running, waiting, done } = streams;
            let line = format!(
                "round {}: osd.{osd} killed, PGs with data: {running} streamed to, {done} done, {waiting} wait: {} ms; answered {} ms after the kill",
                round + 1,
                stall.as_millis(),
                answered.as_millis()
            );
            streamed.push(stall);
            victims.insert(osd);
            outcome.need(stall <= STALL_MAX, || line.clone());
            outcome.figure(line);
            let (osd, (stall, _)) = self.killed(victim)?;
            outcome.figure(format!("round {}: osd.{osd} killed, all whole: {} ms", round + 1, stall.as_millis()));
            whole.push(stall);
        }
        outcome.figure(format!("stalls beside a stream, least/median/most: {}", spread(&streamed)));
        outcome.figure(format!("stalls with all replicas whole: {}", spread(&whole)));
        outcome.need(rounds < 2 || victims.len() == OTHERS.len(), || format!("only {victims:?} were killed"));
        Ok(())
    }

    /// Kills an OSD that leads while another one is being streamed to. `hurried`: some streams may not have begun.
    fn streamed(&mut self, victim: u32, hurried: bool) -> Result<(u32, Stall, Streams)> {
        for _ in 0..ATTEMPTS {
            self.make_lead(victim)?;
            self.cluster.osd(AWAY).kill();
            let enough = self.load.witness.known().acked + 2 * LOG / BLOCK;
            clock::wait_until("writes that no log keeps", WHOLE_MAX, || {
                self.load.must_be_clean()?;
                Ok(self.load.witness.known().acked >= enough)
            })?;
            let before = self.backfills()?;
            let addr = self.cluster.osd_addr(AWAY);
            self.cluster.osd(AWAY).start()?;
            wait_listening(self.cluster.osd(AWAY), addr)?;
            clock::wait_until("streams", WHOLE_MAX, || {
                let streams = self.streams(&before)?;
                Ok(if hurried { streams.running > 0 } else { streams.waiting == 0 })
            })?;
            clock::pause(Duration::from_millis(self.rng.between(50, 800)));
            let streams = self.streams(&before)?;
            if streams.running > 0 {
                let (osd, stall) = self.killed(victim)?;
                return Ok((osd, stall, streams));
            }
            self.cluster.basalt.wait_healthy(WHOLE_MAX)?;
        }
        Err(anyhow!("every stream had ended before the kill"))
    }

    /// Makes an OSD lead a PG with data: the other one transfers its leadership.
    fn make_lead(&mut self, victim: u32) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if self.cluster.basalt.data_leaders()?.contains(&u64::from(victim)) {
                break;
            }
            let other = OTHERS[usize::from(victim == OTHERS[0])];
            stop_osd(&mut self.cluster, other)?;
            self.cluster.osd(other).start()?;
            self.cluster.basalt.wait_healthy(WHOLE_MAX)?;
        }
        Ok(())
    }

    /// Counts the PGs with data by the state of their streams to the OSD that was away.
    fn streams(&self, before: &Backfills) -> Result<Streams> {
        let now = self.backfills()?;
        let since = |what: &str, pg: &String| {
            let key = (what.to_owned(), pg.clone());
            now.get(&key).unwrap_or(&0) - before.get(&key).unwrap_or(&0)
        };
        let mut streams = Streams::default();
        for pg in self.data_pgs()? {
            if since("completed", &pg) > 0 {
                streams.done += 1;
            } else if since("started:", &pg) > since("ended", &pg) {
                streams.running += 1;
            } else {
                streams.waiting += 1;
            }
        }
        Ok(streams)
    }

    fn data_pgs(&self) -> Result<Vec<String>> {
        let pgs = self.cluster.basalt.pgs()?;
        let used = pgs.iter().filter(|pg| pg["segments"].as_u64() > Some(0));
        Ok(used.filter_map(|pg| Some(pg["pg"].as_str()?.to_owned())).collect())
    }

    /// Returns how many backfills of each PG have started, completed and ended early, by the logs of their leaders.
    fn backfills(&self) -> Result<Backfills> {
        let mut counts = Backfills::new();
        for proc in self.cluster.osds.values() {
            let text = std::fs::read_to_string(&proc.spec.log)?;
            for line in text.lines().filter(|line| line.contains("\"backfill ")) {
                // The last line may still be on its way.
                let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
                let fields = &line["fields"];
                let what = fields["message"].as_str().and_then(|message| message.split(' ').nth(1));
                if let (Some(what), Some(pg)) = (what, fields["pg"].as_str()) {
                    *counts.entry((what.to_owned(), pg.to_owned())).or_default() += 1;
                }
            }
        }
        Ok(counts)
    }

    /// Kills this one of the two others, or the other one if only that one leads, and waits until all is whole. Returns the stall.
    fn killed(&mut self, victim: u32) -> Result<(u32, Stall)> {
        let leaders = self.cluster.basalt.data_leaders()?;
        let osd = [victim].into_iter().chain(OTHERS).find(|osd| leaders.contains(&u64::from(*osd)));
        let osd = osd.with_context(|| format!("neither of osd.1 and osd.2 leads: {leaders:?}"))?;
        let from = clock::now();
        self.cluster.osd(osd).kill();
        clock::pause(DOWN);
        let to = clock::now();
        self.cluster.osd(osd).start()?;
        self.cluster.basalt.wait_healthy(WHOLE_MAX)?;
        clock::pause(CALM);
        self.load.must_be_clean()?;
        Ok((osd, self.load.witness.longest_request(from, to)))
    }
}
