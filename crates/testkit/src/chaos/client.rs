//! A client under fire, in a process of its own: `testkit chaos-client …`.
//!
//! The client opens its volume, preempts any holder, and reads, writes and trims at random in a few hot places. At the
//! end it waits for every answer, reads everything once, and closes the volume. Its requests and their answers go to
//! standard output, one line each, with the times of this machine's boot clock; `history` reads and judges them.
//!
//! Invariant: a line about a write has left this process before the write has. A read is reported with the time before
//! its submission and the time after its answer.

use crate::session::{Open, Session};
use anyhow::{Context, Result, bail};
use device::{Answer, Request};
use env::Env;
use env::real::{RealConfig, RealEnv};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;
use types::codes;
use types::rng::Rng;
use types::units::{SECTOR, SEGMENT};
use types::{IoBufMut, Time};

/// Number of sectors of each hot place: few, so that requests overlap.
pub const PLACE: u64 = 2048;
/// Number of hot places, each in a segment of its own, so that they lie in several PGs. They begin in the middle of a
/// chunk.
pub const PLACES: u64 = 3;
/// Length of a volume that has them all.
pub const VOLUME: u64 = PLACES * SEGMENT;
const DEPTH: usize = 12;
/// Number of sectors of the longest request.
const LONG: u64 = 1100;

/// Configuration of a client, passed as arguments.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub metas: Vec<SocketAddr>,
    pub volume: String,
    /// Counts the lives of one volume's clients, from 1: no two lives use the same stamps.
    pub life: u32,
    pub seed: u64,
    pub millis: u64,
    pub rate_per_s: u64,
}

impl ClientConfig {
    /// Returns the arguments that [`ClientConfig::parse`] reads.
    pub fn args(&self) -> Vec<String> {
        let metas: Vec<String> = self.metas.iter().map(SocketAddr::to_string).collect();
        let numbers = [u64::from(self.life), self.seed, self.millis, self.rate_per_s];
        let head = ["chaos-client".to_owned(), metas.join(","), self.volume.clone()];
        head.into_iter().chain(numbers.iter().map(u64::to_string)).collect()
    }

    /// Reads the arguments behind `chaos-client`.
    pub fn parse(args: &[String]) -> Result<ClientConfig> {
        let [metas, volume, numbers @ ..] = args else { bail!("too few arguments") };
        let numbers: Vec<u64> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
        let [life, seed, millis, rate_per_s] = numbers[..] else { bail!("{} numbers instead of 4", numbers.len()) };
        let metas = metas.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(ClientConfig { metas, volume: volume.clone(), life: u32::try_from(life)?, seed, millis, rate_per_s })
    }
}

/// A request that has no answer yet.
#[derive(Clone, Copy)]
struct Asked {
    read: bool,
    sector: u64,
    start: Time,
}

struct Client {
    session: Session,
    config: ClientConfig,
    rng: Rng,
    asked: BTreeMap<u64, Asked>,
    /// Number of the last request; together with the life it is a write's stamp.
    last: u64,
    text: String,
}

/// Runs `testkit chaos-client`.
pub fn main(args: &[String]) -> Result<()> {
    let config = ClientConfig::parse(args)?;
    // The line precedes the request: another open at the same time may come before or after.
    println!("asked {}", RealEnv::new(RealConfig::default())?.now().0);
    let session = Session::open(&config.metas, &config.volume, Open::default()).inspect_err(|error| {
        let is = |code: u32| error.to_string().starts_with(&format!("BSLT-{code}:"));
        if is(codes::SESSION_FENCED) {
            // Another open came behind this one before it was answered: as if the volume had failed right after it.
            println!("failed");
        } else if is(codes::NO_MAJORITY) {
            println!("early");
        }
    })?;
    let opened = session.now();
    let rng = Rng::new(config.seed);
    let mut client = Client { session, config, rng, asked: BTreeMap::new(), last: 0, text: String::new() };
    writeln!(client.text, "opened {}", opened.0)?;
    client.tell()?;
    client.play(opened)?;
    client.drain()?;
    client.say("drained")?;
    for place in 0..PLACES {
        for from in (0..PLACE).step_by(512) {
            client.ask_read(first_sector(place) + from, 512)?;
            client.drain()?;
        }
    }
    client.say("ended")?;
    client.session.close()
}

/// Places begin 300 sectors before a chunk's border, which long requests then cross.
pub fn first_sector(place: u64) -> u64 {
    place * SEGMENT / SECTOR + types::units::CHUNK / SECTOR - 300
}

/// Kind of the next request.
enum Draw {
    Read,
    Write,
    Trim,
    Zeros,
    Flush,
}

impl Client {
    /// Submits requests at the given rate until the time is over.
    fn play(&mut self, opened: Time) -> Result<()> {
        let end = opened + Duration::from_millis(self.config.millis);
        let gap = Duration::from_nanos(1_000_000_000 / self.config.rate_per_s.max(1));
        let mut due = opened;
        loop {
            let now = self.turn()?;
            if now >= end {
                return Ok(());
            }
            while due <= now && self.asked.len() < DEPTH {
                self.draw()?;
                due = due + gap;
            }
            // A long stall is not made up for by a burst.
            due = due.max(now - Duration::from_millis(100));
            self.session.finish(end.min(if self.asked.len() < DEPTH { due } else { end }))?;
        }
    }

    /// Waits until every request is answered.
    fn drain(&mut self) -> Result<()> {
        loop {
            self.turn()?;
            if self.asked.is_empty() {
                return Ok(());
            }
            self.session.finish(Time::NEVER)?;
        }
    }

    /// Takes the completions that have come.
    fn turn(&mut self) -> Result<Time> {
        let now = self.session.begin();
        if let Some(errno) = self.session.failure() {
            self.text.push_str("failed\n");
            self.tell()?;
            bail!("the volume failed: {errno}");
        }
        let mut done = Vec::new();
        self.session.device().completions(&mut done);
        for completion in done {
            let asked = self.asked.remove(&completion.token).context("a completion of nothing")?;
            self.note(completion.token, asked, completion.result, now)?;
        }
        self.tell()?;
        Ok(now)
    }

    fn note(&mut self, id: u64, asked: Asked, result: Result<Answer, types::Errno>, now: Time) -> Result<()> {
        match result {
            Ok(Answer::Data(pieces)) if asked.read => {
                write!(self.text, "r {} {} {}", asked.sector, asked.start.0, now.0)?;
                let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
                let mut runs: Vec<(u64, u64)> = Vec::new();
                let mut bad = String::new();
                for (sector, read) in (asked.sector..).zip(sim::stamp::read(&bytes, &[1], asked.sector)) {
                    match read {
                        Ok(stamp) => match runs.last_mut() {
                            Some((last, count)) if *last == stamp.unwrap_or(0) => *count += 1,
                            _ => runs.push((stamp.unwrap_or(0), 1)),
                        },
                        Err(wrong) => writeln!(bad, "bad sector {sector} {wrong}")?,
                    }
                }
                for (stamp, count) in runs {
                    write!(self.text, " {stamp}x{count}")?;
                }
                self.text.push('\n');
                self.text.push_str(&bad);
            }
            Ok(_) => writeln!(self.text, "a {id} {}", now.0)?,
            Err(errno) => writeln!(self.text, "e {id} {} {errno}", now.0)?,
        }
        Ok(())
    }

    fn draw(&mut self) -> Result<()> {
        let place = self.rng.below(PLACES);
        let most = if self.rng.chance(1, 12) { LONG } else { 16 };
        let count = self.rng.between(1, most);
        // Half of all requests begin at 4 KiB borders, as those of file systems do.
        let from = self.rng.below(PLACE - count + 1);
        let from = if self.rng.chance(1, 2) { from / 8 * 8 } else { from };
        let sector = first_sector(place) + from;
        let draw = match self.rng.below(100) {
            0..50 => Draw::Write,
            50..92 => Draw::Read,
            92..95 => Draw::Trim,
            95..98 => Draw::Zeros,
            _ => Draw::Flush,
        };
        let (offset, len) = (sector * SECTOR, count * SECTOR);
        match draw {
            Draw::Read => self.ask_read(sector, count),
            Draw::Write => {
                let stamp = self.stamp();
                let mut buf = IoBufMut::new(len as usize);
                for (at, bytes) in (sector..).zip(buf.chunks_exact_mut(SECTOR as usize)) {
                    sim::stamp::write(bytes, 1, at, stamp);
                }
                sim::stamp::seal(&mut buf);
                let fua = self.rng.chance(1, 8);
                self.ask("w", sector, count, Request::Write { offset, buf: buf.freeze(), fua })
            }
            Draw::Trim => self.ask("z", sector, count, Request::Trim { offset, len }),
            Draw::Zeros => {
                let no_hole = self.rng.chance(1, 2);
                self.ask("z", sector, count, Request::WriteZeroes { offset, len, no_hole })
            }
            Draw::Flush => self.ask("f", sector, 0, Request::Flush),
        }
    }

    /// Returns the stamp of the next request.
    fn stamp(&self) -> u64 {
        u64::from(self.config.life) << 40 | (self.last + 1)
    }

    fn ask_read(&mut self, sector: u64, count: u64) -> Result<()> {
        self.ask("", sector, count, Request::Read { offset: sector * SECTOR, len: count * SECTOR })
    }

    /// Reports the request, unless it is a read, and submits it.
    fn ask(&mut self, verb: &str, sector: u64, count: u64, request: Request) -> Result<()> {
        let id = self.stamp();
        self.last += 1;
        let start = self.session.now();
        if !verb.is_empty() {
            writeln!(self.text, "{verb} {id} {sector} {count} {}", start.0)?;
            self.tell()?;
        }
        self.asked.insert(id, Asked { read: verb.is_empty(), sector, start });
        if self.session.device().submit(start, request, id).is_err() {
            bail!("the device takes fewer requests at once than {DEPTH}");
        }
        Ok(())
    }

    fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.text, "{word} {}", self.session.now().0)?;
        self.tell()
    }

    fn tell(&mut self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        out.flush()?;
        self.text.clear();
        Ok(())
    }
}
