//! The roles: server, client.
//!
//! A server prints two lines, its address and `ready`, and the client one when it starts and a line of JSON at its end. A
//! server ends when one of its connections closes.

use super::journal::{Journal, Logged, TAG_DONE};
use super::ring::{Pipe, Ring};
use super::{ACK, DEPTH_MAX, FRAME_LEN, FloorError, FloorMode, HEAD_LEN, SERVERS, WRITE, head, io, parse};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Tags of a connection's receives and sends: this, and twice its number, and one more for sends.
const TAG_PIPE: u64 = 1;
/// Number of the client's connection to a server. The other servers come before it.
const CLIENT: usize = SERVERS - 1;

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
        ["server", log, mode, leads, ref earlier @ ..] if earlier.len() < SERVERS => {
            let mode = FloorMode::from_word(mode).ok_or_else(|| usage(&args))?;
            let leads = leads.parse().map_err(|_| usage(&args))?;
            Server::start(Path::new(log), mode, earlier, leads)?.run()
        }
        ["client", depth, secs, ref leaders @ ..] if !leaders.is_empty() => {
            let depth = depth.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
            let secs = secs.parse().ok().filter(|secs: &f64| secs.is_finite() && *secs > 0.0);
            let (Some(depth), Some(secs)) = (depth, secs) else { return Err(usage(&args)) };
            client(leaders, depth, secs)
        }
        _ => Err(usage(&args)),
    }
}

fn usage(args: &[&str]) -> FloorError {
    FloorError::Config(format!("node does not know {args:?}; nodes are started by `bench floor` itself"))
}

fn say(line: &str) -> Result<(), FloorError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(io("standard output"))
}

fn failed(what: &str, result: i32) -> FloorError {
    FloorError::Io { what: what.into(), source: std::io::Error::from_raw_os_error(-result) }
}

/// Returns the connection of a tag of [`Pipe`], and whether it is that of a send.
fn pipe_of(tag: u64) -> (usize, bool) {
    let number = tag - TAG_PIPE;
    ((number / 2) as usize, !number.is_multiple_of(2))
}

fn pipe(stream: TcpStream, number: usize) -> Result<Pipe, FloorError> {
    Pipe::new(stream, TAG_PIPE + 2 * number as u64)
}

/// Whether the other end has closed, with or without bytes under way.
fn is_closed(result: i32) -> bool {
    matches!(-result, 0 | libc::ECONNRESET | libc::EPIPE)
}

/// Writes that wait for a majority, in order: the number of logs that have each.
#[derive(Default)]
struct Window {
    base: u64,
    counts: VecDeque<usize>,
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
        if *self.counts.front()? <= SERVERS / 2 {
            return None;
        }
        self.counts.pop_front();
        self.base += 1;
        Some(self.base - 1)
    }
}

/// A server with its connections: those to the other servers, then, if it leads, the client's.
struct Server {
    journal: Journal,
    ring: Ring,
    pipes: Vec<Pipe>,
    window: Window,
}

impl Server {
    /// Connects to the servers that started earlier, and waits for the later ones.
    fn start(log: &Path, mode: FloorMode, earlier: &[&str], leads: bool) -> Result<Server, FloorError> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(io("listen on 127.0.0.1"))?;
        say(&listener.local_addr().map_err(io("local address"))?.to_string())?;
        let accept = || listener.accept().map(|(stream, _)| stream).map_err(io("accept"));
        let connect = |addr: &&str| TcpStream::connect(addr).map_err(io(format!("connect to {addr}")));
        let mut streams = earlier.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        while streams.len() < CLIENT {
            streams.push(accept()?);
        }
        say("ready")?;
        if leads {
            streams.push(accept()?);
        }
        let pipes = streams.into_iter().enumerate().map(|(number, stream)| pipe(stream, number));
        Ok(Server {
            journal: Journal::open(log, mode)?,
            ring: Ring::new()?,
            pipes: pipes.collect::<Result<_, _>>()?,
            window: Window::default(),
        })
    }

    fn run(mut self) -> Result<(), FloorError> {
        let (mut events, mut done) = (Vec::new(), Vec::new());
        loop {
            self.receive()?;
            self.ring.turn(&mut events)?;
            for (tag, result) in events.drain(..) {
                if tag < TAG_DONE && is_closed(result) {
                    return Ok(());
                }
                if result < 0 {
                    return Err(failed("server", result));
                }
                match tag {
                    TAG_DONE => self.journal.done(&mut done),
                    tag if tag > TAG_DONE => {}
                    tag => match pipe_of(tag) {
                        (number, true) => self.pipes[number].sent(result),
                        (number, false) => self.received(number, result),
                    },
                }
            }
            for Logged { from, sequence } in done.drain(..) {
                match from {
                    CLIENT => self.window.count(sequence),
                    peer => self.pipes[peer].queue(&head(sequence, ACK)),
                }
            }
            while let Some(sequence) = self.window.pop() {
                self.pipes[CLIENT].queue(&head(sequence, ACK));
            }
            self.journal.kick(&mut self.ring)?;
            for pipe in &mut self.pipes {
                pipe.flush(&mut self.ring)?;
            }
        }
    }

    fn received(&mut self, from: usize, count: i32) {
        let Server { journal, pipes, window, .. } = self;
        let (peers, client) = pipes.split_at_mut(CLIENT);
        let Some(peer) = peers.get_mut(from) else {
            client[0].received(count, |frame| {
                let (sequence, _) = parse(frame);
                journal.append(Logged { from, sequence }, &frame[HEAD_LEN..]);
                peers.iter_mut().for_each(|peer| peer.queue(frame));
                window.add(sequence);
            });
            return;
        };
        peer.received(count, |frame| match parse(frame) {
            (sequence, WRITE) => journal.append(Logged { from, sequence }, &frame[HEAD_LEN..]),
            (sequence, _) => window.count(sequence),
        });
    }

    /// Receives from every connection while there is room: a log or a server that lags behind holds the others back before
    /// anything overflows.
    fn receive(&mut self) -> Result<(), FloorError> {
        if !self.journal.has_room() {
            return Ok(());
        }
        let peers_have_room = self.pipes[..CLIENT].iter().all(Pipe::has_room);
        for (number, pipe) in self.pipes.iter_mut().enumerate() {
            if number < CLIENT || peers_have_room {
                pipe.receive(&mut self.ring)?;
            }
        }
        Ok(())
    }
}

/// A leader as the client sees it: the writes in flight to it, in order, by the time at which they began.
struct Target {
    pipe: Pipe,
    next: u64,
    begun: VecDeque<Instant>,
}

impl Target {
    fn put(&mut self, frame: &mut [u8; FRAME_LEN]) {
        frame[..HEAD_LEN].copy_from_slice(&head(self.next, WRITE));
        self.next += 1;
        self.pipe.queue(frame);
        self.begun.push_back(Instant::now());
    }
}

/// Returns numbers below `limit` that look random (xorshift64).
fn draws(limit: usize) -> impl FnMut() -> usize {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    }
}

fn client(leaders: &[&str], depth: u32, secs: f64) -> Result<(), FloorError> {
    let mut ring = Ring::new()?;
    let mut targets = Vec::new();
    for (number, addr) in leaders.iter().enumerate() {
        let stream = TcpStream::connect(addr).map_err(io(format!("connect to {addr}")))?;
        targets.push(Target { pipe: pipe(stream, number)?, next: 0, begun: VecDeque::new() });
    }
    let mut frame = [7u8; FRAME_LEN];
    let mut draw = draws(targets.len());
    let mut latencies_ns: Vec<u32> = Vec::with_capacity((secs * 200_000.0) as usize);
    say("started")?;
    let start = Instant::now();
    (0..depth).for_each(|_| targets[draw()].put(&mut frame));
    let mut events = Vec::new();
    while start.elapsed() < Duration::from_secs_f64(secs) {
        for target in &mut targets {
            target.pipe.receive(&mut ring)?;
            target.pipe.flush(&mut ring)?;
        }
        ring.turn(&mut events)?;
        for (tag, result) in events.drain(..) {
            let (number, is_send) = pipe_of(tag);
            if result < 0 || (result == 0 && !is_send) {
                return Err(failed("client", result.min(-libc::ECONNRESET)));
            }
            let Target { pipe, begun, .. } = &mut targets[number];
            if is_send {
                pipe.sent(result);
                continue;
            }
            let mut acks = 0;
            pipe.received(result, |_| {
                let since = begun.pop_front().expect("an acknowledgement of a write in flight").elapsed();
                latencies_ns.push(u32::try_from(since.as_nanos()).unwrap_or(u32::MAX));
                acks += 1;
            });
            (0..acks).for_each(|_| targets[draw()].put(&mut frame));
        }
    }
    let secs = start.elapsed().as_secs_f64();
    latencies_ns.sort_unstable();
    let at =
        |percent: usize| latencies_ns.get(latencies_ns.len() * percent / 100).map_or(0.0, |ns| f64::from(*ns) / 1e3);
    let result = ClientResult { writes: latencies_ns.len() as u64, secs, p50_us: at(50), p99_us: at(99) };
    say(&serde_json::to_string(&result).expect("plain figures"))
}
