//! The load of a scenario, in a process of its own that may be killed: `testkit loader …`.
//!
//! The loader opens the volume and checks everything that its witness knows. Then it writes and reads at random until
//! it is killed or its time is over. It reports each write before it submits it, and each acknowledgement and each
//! value read, one line each on standard output; `witness` reads them.
//!
//! Invariant: a line about a write has left this process before the write has.

use crate::session::{Open, Session};
use anyhow::{Context, Result, bail};
use bench::load::{Ledger, Load, LoadConfig, Pattern, stamp};
use device::{Answer, Request};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use types::{Errno, Time};

/// Time between two looks for errors and violations while the load runs.
const LOOK: Duration = Duration::from_millis(100);
/// Length of the reads that check everything.
const CHECK_BYTES: u32 = 128 << 10;
/// Requests that take so long are reported with their time.
const SLOW_MIN: Duration = Duration::from_millis(10);
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// Configuration of a loader, passed as arguments.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    pub metas: Vec<SocketAddr>,
    pub volume: String,
    /// Path of the known writes: one ledger for each area.
    pub ledger: PathBuf,
    pub areas: u64,
    pub span_bytes: u64,
    /// Distance of two areas' starts on the volume.
    pub stride_bytes: u64,
    pub block_bytes: u32,
    /// Queue depth of each area.
    pub depth: u32,
    pub read_percent: u8,
    /// Rate of each area; 0: no limit.
    pub rate_per_s: u64,
    /// Duration of the load; 0: the loader only checks.
    pub seconds: u64,
    pub seed: u64,
    pub run: u64,
}

impl LoaderConfig {
    /// Returns the arguments that [`LoaderConfig::parse`] reads.
    pub fn args(&self) -> Vec<String> {
        let metas: Vec<String> = self.metas.iter().map(SocketAddr::to_string).collect();
        vec![
            "loader".into(),
            metas.join(","),
            self.volume.clone(),
            self.ledger.display().to_string(),
            self.areas.to_string(),
            self.span_bytes.to_string(),
            self.stride_bytes.to_string(),
            self.block_bytes.to_string(),
            self.depth.to_string(),
            self.read_percent.to_string(),
            self.rate_per_s.to_string(),
            self.seconds.to_string(),
            self.seed.to_string(),
            self.run.to_string(),
        ]
    }

    /// Reads the arguments behind `loader`.
    pub fn parse(args: &[String]) -> Result<LoaderConfig> {
        let [metas, volume, ledger, numbers @ ..] = args else { bail!("too few arguments") };
        let numbers: Vec<u64> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
        let [areas, span_bytes, stride_bytes, block, depth, read, rate_per_s, seconds, seed, run] = numbers[..] else {
            bail!("{} numbers instead of 10", numbers.len())
        };
        Ok(LoaderConfig {
            metas: metas.split(',').map(str::parse).collect::<Result<_, _>>()?,
            volume: volume.clone(),
            ledger: PathBuf::from(ledger),
            areas,
            span_bytes,
            stride_bytes,
            block_bytes: u32::try_from(block)?,
            depth: u32::try_from(depth)?,
            read_percent: u8::try_from(read)?,
            rate_per_s,
            seconds,
            seed,
            run,
        })
    }

    fn load(&self, area: u64) -> LoadConfig {
        LoadConfig {
            pattern: Pattern::Random,
            read_percent: self.read_percent,
            block_bytes: self.block_bytes,
            depth: self.depth,
            rate_per_s: self.rate_per_s,
            duration: Duration::from_secs(self.seconds),
            ops_max: 0,
            offset_bytes: area * self.stride_bytes,
            span_bytes: self.span_bytes,
            pieces: Vec::new(),
            seed: self.seed.wrapping_add(area),
            verify: true,
            volume: 1,
            run: self.run,
        }
    }

    /// Returns a load that reads everything once, in order.
    fn check(&self, area: u64) -> LoadConfig {
        let block_bytes = CHECK_BYTES.min(self.span_bytes as u32);
        LoadConfig {
            pattern: Pattern::Sequential,
            read_percent: 100,
            block_bytes,
            depth: 4,
            rate_per_s: 0,
            duration: FOR_EVER,
            ops_max: self.span_bytes / u64::from(block_bytes),
            ..self.load(area)
        }
    }
}

/// A request that was submitted and is not answered.
struct Pending {
    area: usize,
    token: u64,
    offset: u64,
    at: Time,
    /// A write's length and sequence.
    write: Option<(u64, u64)>,
}

struct Loader {
    session: Session,
    loads: Vec<Load>,
    stride_bytes: u64,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    text: String,
    first_told: bool,
    looked: Time,
}

/// Runs `testkit loader`.
pub fn main(args: &[String]) -> Result<()> {
    let config = LoaderConfig::parse(args)?;
    let text = std::fs::read(&config.ledger).with_context(|| config.ledger.display().to_string())?;
    let ledgers: Vec<Ledger> = serde_json::from_slice(&text)?;
    // A snapshot is only checked.
    let how = Open { write: !config.volume.contains('@'), ..Open::default() };
    let session = Session::open(&config.metas, &config.volume, how)?;
    let mut loader = Loader {
        session,
        loads: Vec::new(),
        stride_bytes: config.stride_bytes,
        pending: BTreeMap::new(),
        next: 0,
        text: "opened\n".to_owned(),
        first_told: false,
        looked: Time::ZERO,
    };
    let ledgers = loader.run(ledgers, |area| config.check(area))?;
    loader.text.push_str("verified\n");
    if config.seconds > 0 {
        loader.run(ledgers, |area| config.load(area))?;
    }
    loader.text.push_str("ended\n");
    loader.tell()?;
    loader.session.close()
}

impl Loader {
    fn run(&mut self, ledgers: Vec<Ledger>, config: impl Fn(u64) -> LoadConfig) -> Result<Vec<Ledger>> {
        let now = self.session.now();
        let start = |(area, ledger)| Load::resume(config(area as u64), ledger, now);
        self.loads = ledgers.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        while !self.turn()? {}
        let now = self.session.now();
        self.look(now, true)?;
        Ok(self.loads.drain(..).filter_map(Load::into_ledger).collect())
    }

    /// Runs one turn; returns whether all loads are done.
    fn turn(&mut self) -> Result<bool> {
        let now = self.session.begin();
        if let Some(errno) = self.session.failure() {
            bail!("the volume failed: {errno}");
        }
        let mut done = Vec::new();
        self.session.device().completions(&mut done);
        for completion in &done {
            let pending = self.pending.remove(&completion.token).context("a completion of nothing")?;
            self.note(&pending, &completion.result);
            let took = now.since(pending.at);
            if took >= SLOW_MIN {
                writeln!(self.text, "s {}", took.as_millis())?;
            }
            self.loads[pending.area].completed(now, pending.token, &completion.result);
        }
        if !done.is_empty() {
            self.text.push_str("c\n");
        }
        let mut requests = Vec::new();
        for (area, load) in self.loads.iter_mut().enumerate() {
            let from = requests.len();
            let mut mine = Vec::new();
            load.next_requests(now, &mut mine);
            requests.extend(mine.into_iter().map(|(request, token)| (area, request, token)));
            for (area, request, _) in &requests[from..] {
                if let Some((offset, len, sequence)) = written(request) {
                    let at = offset - *area as u64 * self.stride_bytes;
                    writeln!(self.text, "b {area} {at} {len} {sequence}")?;
                }
            }
        }
        self.look(now, false)?;
        // The witness learns of each write before it is submitted.
        self.tell()?;
        for (area, request, token) in requests {
            let (offset, _) = request.span().context("loads read and write")?;
            let write = written(&request).map(|(_, len, sequence)| (len, sequence));
            self.next += 1;
            self.pending.insert(self.next, Pending { area, token, offset, at: now, write });
            if self.session.device().submit(now, request, self.next).is_err() {
                bail!("the device takes fewer requests at once than the loads' depths");
            }
        }
        let deadline = self.loads.iter().map(|load| load.next_deadline(now)).fold(Time::NEVER, Time::min);
        if self.loads.iter().all(|load| load.is_done(now)) {
            return Ok(true);
        }
        self.session.finish(deadline)?;
        Ok(false)
    }

    fn note(&mut self, pending: &Pending, result: &Result<Answer, Errno>) {
        let Pending { area, offset, write, .. } = pending;
        let at = offset - *area as u64 * self.stride_bytes;
        match (write, result) {
            (Some((len, sequence)), Ok(_)) => {
                let _ = writeln!(self.text, "a {area} {at} {len} {sequence}");
            }
            (None, Ok(Answer::Data(pieces))) => {
                if !std::mem::replace(&mut self.first_told, true) {
                    self.text.push_str("first\n");
                }
                let mut bytes = pieces.iter().flat_map(|piece| piece.chunks(512));
                let blocks = pieces.iter().map(|piece| piece.len()).sum::<usize>() / stamp::BLOCK_LEN;
                let mut block = [0u8; stamp::BLOCK_LEN];
                for index in 0..blocks as u64 {
                    for sector in block.chunks_exact_mut(512) {
                        sector.copy_from_slice(bytes.next().expect("counted"));
                    }
                    if let stamp::Found::Stamp(found) = stamp::look(&block) {
                        let at = at + index * types::BLOCK;
                        let _ = writeln!(self.text, "r {area} {at} {} {}", types::BLOCK, found.sequence);
                    }
                }
            }
            (_, Err(errno)) => {
                let what = if write.is_some() { "write" } else { "read" };
                let _ = writeln!(self.text, "error {what} at {offset}: {errno}");
            }
            (None, Ok(_)) => {}
        }
    }

    /// Reports violations, and at the end of a run the number of checked blocks.
    fn look(&mut self, now: Time, ends: bool) -> Result<()> {
        if !ends && now < self.looked + LOOK {
            return Ok(());
        }
        self.looked = now;
        for load in &self.loads {
            let report = load.report(now);
            for violation in &report.violations {
                writeln!(self.text, "violation {violation}")?;
            }
            if ends {
                writeln!(self.text, "checked {}", report.verified_blocks)?;
            }
        }
        if ends { self.tell() } else { Ok(()) }
    }

    fn tell(&mut self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        out.flush()?;
        self.text.clear();
        Ok(())
    }
}

/// Returns offset, length and sequence of a write.
fn written(request: &Request) -> Option<(u64, u64, u64)> {
    let Request::Write { offset, buf, .. } = request else { return None };
    match stamp::look(&buf[..stamp::BLOCK_LEN]) {
        stamp::Found::Stamp(stamp) => Some((*offset, buf.len() as u64, stamp.sequence)),
        other => unreachable!("a verified load stamps what it writes, not {other:?}"),
    }
}
