//! The roles: follower, leader, client.
//!
//! A node prints one line when it is ready (servers: their address), and the client a line of JSON at its
//! end. A server ends when its peer closes.

use super::journal::{Journal, TAG_DONE};
use super::ring::{Pipe, Ring};
use super::{ACK_LEN, DEPTH_MAX, FRAME_LEN, FloorError, FloorMode, HEAD_LEN, io};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const TAG_PEER: u64 = 1;
const TAG_FOLLOWER: u64 = 10;

/// Measurement of a client.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ClientResult {
    pub writes: u64,
    pub secs: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Runs one node to its end. `args` are those that [`super::run`] appended to the node command.
///
/// # Errors
/// The arguments are not from `run` of this version, or the machine refuses something.
pub fn node_main(args: &[String]) -> Result<(), FloorError> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["follower", log, mode] => follower(&open(log, mode)?),
        ["leader", log, mode, ref followers @ ..] => leader(&open(log, mode)?, followers),
        ["client", leader, depth, secs] => {
            let depth = depth.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
            let secs = secs.parse().ok().filter(|secs: &f64| secs.is_finite() && *secs > 0.0);
            let (Some(depth), Some(secs)) = (depth, secs) else { return Err(usage(&args)) };
            client(leader, depth, secs)
        }
        _ => Err(usage(&args)),
    }
}

fn usage(args: &[&str]) -> FloorError {
    FloorError::Config(format!("node does not know {args:?}; nodes are started by `bench floor` itself"))
}

/// A log path and its mode; the log is opened only after the announcement.
struct LogArgs<'a> {
    path: &'a Path,
    mode: FloorMode,
}

fn open<'a>(log: &'a str, mode: &str) -> Result<LogArgs<'a>, FloorError> {
    let mode = FloorMode::from_word(mode).ok_or_else(|| usage(&[log, mode]))?;
    Ok(LogArgs { path: Path::new(log), mode })
}

/// Listens, prints the address, and waits for the one peer.
fn one_peer() -> Result<TcpStream, FloorError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io("listen on 127.0.0.1"))?;
    say(&listener.local_addr().map_err(io("local address"))?.to_string())?;
    Ok(listener.accept().map_err(io("accept"))?.0)
}

fn say(line: &str) -> Result<(), FloorError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(io("standard output"))
}

fn failed(what: &str, result: i32) -> FloorError {
    FloorError::Io { what: what.into(), source: std::io::Error::from_raw_os_error(-result) }
}

fn sequence_of(frame: &[u8]) -> u64 {
    u64::from_le_bytes(*frame.first_chunk().expect("a frame begins with its sequence number"))
}

fn acknowledge(pipe: &mut Pipe, sequence: u64) {
    let mut ack = [0u8; ACK_LEN];
    ack[..8].copy_from_slice(&sequence.to_le_bytes());
    pipe.queue(&ack);
}

fn follower(log: &LogArgs<'_>) -> Result<(), FloorError> {
    let mut journal = Journal::open(log.path, log.mode)?;
    let mut ring = Ring::new()?;
    let mut peer = Pipe::new(one_peer()?, TAG_PEER)?;
    let (mut events, mut done) = (Vec::new(), Vec::new());
    peer.receive(&mut ring)?;
    loop {
        ring.turn(&mut events)?;
        for (tag, result) in events.drain(..) {
            if result < 0 {
                return Err(failed("follower", result));
            }
            match tag {
                TAG_PEER if result == 0 => return Ok(()),
                TAG_PEER => {
                    peer.received(result, FRAME_LEN, |frame| journal.append(sequence_of(frame), &frame[HEAD_LEN..]));
                }
                TAG_DONE => journal.done(&mut done),
                tag if tag == TAG_PEER + 1 => peer.sent(result),
                _ => {}
            }
        }
        done.drain(..).for_each(|sequence| acknowledge(&mut peer, sequence));
        journal.kick(&mut ring)?;
        if journal.has_room() {
            peer.receive(&mut ring)?;
        }
        peer.flush(&mut ring)?;
    }
}

/// Writes that wait for a majority, in order: the number of logs that have each.
struct Window {
    base: u64,
    counts: VecDeque<usize>,
    majority: usize,
}

impl Window {
    fn add(&mut self, sequence: u64) {
        assert_eq!(sequence, self.base + self.counts.len() as u64, "the client numbers its writes");
        self.counts.push_back(0);
    }

    /// Counts one more log for a write. Slower logs report writes late that have left the window.
    fn count(&mut self, sequence: u64) {
        if let Some(at) = sequence.checked_sub(self.base) {
            self.counts[at as usize] += 1;
        }
    }

    fn pop(&mut self) -> Option<u64> {
        if *self.counts.front()? < self.majority {
            return None;
        }
        self.counts.pop_front();
        self.base += 1;
        Some(self.base - 1)
    }
}

fn leader(log: &LogArgs<'_>, addrs: &[&str]) -> Result<(), FloorError> {
    let mut journal = Journal::open(log.path, log.mode)?;
    let mut ring = Ring::new()?;
    let mut followers = Vec::new();
    for (index, addr) in addrs.iter().enumerate() {
        let stream = TcpStream::connect(addr).map_err(io(format!("connect to {addr}")))?;
        followers.push(Pipe::new(stream, TAG_FOLLOWER + 2 * index as u64)?);
    }
    let mut client = Pipe::new(one_peer()?, TAG_PEER)?;
    let mut window = Window { base: 0, counts: VecDeque::new(), majority: followers.len().div_ceil(2) + 1 };
    client.receive(&mut ring)?;
    for follower in &mut followers {
        follower.receive(&mut ring)?;
    }
    let (mut events, mut done) = (Vec::new(), Vec::new());
    loop {
        ring.turn(&mut events)?;
        for (tag, result) in events.drain(..) {
            if result < 0 {
                return Err(failed("leader", result));
            }
            match tag {
                TAG_PEER if result == 0 => return Ok(()),
                TAG_PEER => {
                    client.received(result, FRAME_LEN, |frame| {
                        journal.append(sequence_of(frame), &frame[HEAD_LEN..]);
                        followers.iter_mut().for_each(|follower| follower.queue(frame));
                        window.add(sequence_of(frame));
                    });
                }
                TAG_DONE => journal.done(&mut done),
                tag if tag == TAG_PEER + 1 => client.sent(result),
                tag if (TAG_FOLLOWER..TAG_DONE).contains(&tag) => {
                    let follower = &mut followers[((tag - TAG_FOLLOWER) / 2) as usize];
                    if (tag - TAG_FOLLOWER).is_multiple_of(2) {
                        if result == 0 {
                            return Err(FloorError::Node { role: "follower" });
                        }
                        follower.received(result, ACK_LEN, |ack| done.push(sequence_of(ack)));
                        follower.receive(&mut ring)?;
                    } else {
                        follower.sent(result);
                    }
                }
                _ => {}
            }
        }
        done.drain(..).for_each(|sequence| window.count(sequence));
        while let Some(sequence) = window.pop() {
            acknowledge(&mut client, sequence);
        }
        journal.kick(&mut ring)?;
        client.flush(&mut ring)?;
        // A log that lags behind the majority holds the client back before anything overflows.
        if journal.has_room() && followers.iter().all(Pipe::has_room) {
            client.receive(&mut ring)?;
        }
        for follower in &mut followers {
            follower.flush(&mut ring)?;
        }
    }
}

fn client(leader: &str, depth: u32, secs: f64) -> Result<(), FloorError> {
    let mut ring = Ring::new()?;
    let stream = TcpStream::connect(leader).map_err(io(format!("connect to {leader}")))?;
    let mut pipe = Pipe::new(stream, TAG_PEER)?;
    let mut frame = [7u8; FRAME_LEN];
    let mut next = 0u64;
    let mut begun: VecDeque<Instant> = VecDeque::new();
    let mut latencies_ns: Vec<u32> = Vec::with_capacity((secs * 200_000.0) as usize);
    say("started")?;
    let start = Instant::now();
    pipe.receive(&mut ring)?;
    let mut put = |pipe: &mut Pipe, begun: &mut VecDeque<Instant>| {
        frame[..8].copy_from_slice(&next.to_le_bytes());
        next += 1;
        pipe.queue(&frame);
        begun.push_back(Instant::now());
    };
    (0..depth).for_each(|_| put(&mut pipe, &mut begun));
    pipe.flush(&mut ring)?;
    let mut events = Vec::new();
    while start.elapsed() < Duration::from_secs_f64(secs) {
        ring.turn(&mut events)?;
        for (tag, result) in events.drain(..) {
            if result < 0 || (tag == TAG_PEER && result == 0) {
                return Err(failed("client", result.min(-libc::ECONNRESET)));
            }
            if tag != TAG_PEER {
                pipe.sent(result);
                continue;
            }
            let mut acks = 0;
            pipe.received(result, ACK_LEN, |_| acks += 1);
            for _ in 0..acks {
                let since = begun.pop_front().expect("an acknowledgement of a write in flight").elapsed();
                latencies_ns.push(u32::try_from(since.as_nanos()).unwrap_or(u32::MAX));
                put(&mut pipe, &mut begun);
            }
            pipe.receive(&mut ring)?;
        }
        pipe.flush(&mut ring)?;
    }
    let secs = start.elapsed().as_secs_f64();
    latencies_ns.sort_unstable();
    let at =
        |percent: usize| latencies_ns.get(latencies_ns.len() * percent / 100).map_or(0.0, |ns| f64::from(*ns) / 1e3);
    let result = ClientResult { writes: latencies_ns.len() as u64, secs, p50_us: at(50), p99_us: at(99) };
    say(&serde_json::to_string(&result).expect("plain figures"))
}
