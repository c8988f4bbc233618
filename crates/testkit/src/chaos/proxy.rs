//! A TCP proxy before every daemon: its bytes are delayed, held, trickled, cut, torn, or damaged.
//!
//! Processes dial the address that a daemon advertises, which is a proxy; the proxy dials the daemon. The proxy reads
//! the identity of the dialling process from the greeting. The [`Sky`] holds the effects on bytes: rules with two ends.
//!
//! A byte stream cannot lose, repeat or reorder bytes and go on. Where the proxy does so on purpose, frames must be
//! refused. Bytes to and from meta are never damaged: gRPC without TLS has no checksum that could tell.
//!
//! Invariant: once no rule is left, bytes pass unchanged, on every connection that still stands and that was not
//! silenced. Bytes that were held by a cut pass then.

use crate::clock;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::rng::Rng;
use wire::{HEADER_LEN, Header, Peer};

/// Number of bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Time between two looks whether a held direction may go on.
const LOOK: Duration = Duration::from_millis(5);
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Osd(u32),
    Client,
    Meta,
    /// A process that dials meta, or whose greeting could not be read.
    Someone,
}

/// An effect on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Each piece waits so long, and at most so much longer.
    Delay { ms: u64, jitter_ms: u64 },
    /// A few bytes pass at a time.
    Trickle,
    /// Nothing passes until the rule is removed; then everything does.
    Hold,
    /// Nothing passes on this connection any more, in this direction, and neither end is told.
    Silence,
    /// The connection ends in the middle of a piece.
    Reset,
    /// This direction ends; the other goes on.
    HalfClose,
    /// One bit of a piece is flipped.
    Flip,
    /// The first bytes of a piece come twice.
    Duplicate,
    /// Random bytes come before a piece.
    Garbage,
    /// Two parts of a piece change places.
    Reorder,
}

impl Effect {
    /// Whether the bytes that arrive differ from those that were sent.
    pub fn is_wrong(self) -> bool {
        matches!(self, Effect::Flip | Effect::Duplicate | Effect::Garbage | Effect::Reorder)
    }
}

/// An effect between two ends; `None` is any end.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub from: Option<End>,
    pub to: Option<End>,
    pub effect: Effect,
    /// Number of pieces that the rule strikes; `u32::MAX`: all until it is removed.
    pub times: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(u64);

struct State {
    rules: Vec<(RuleId, Rule)>,
    next: u64,
    rng: Rng,
    struck: u64,
    wrong: u64,
}

/// The rules of all proxies of a cluster; cheap to clone.
#[derive(Clone)]
pub struct Sky(Arc<Mutex<State>>);

impl Sky {
    pub fn new(seed: u64) -> Sky {
        let rng = Rng::new(seed);
        Sky(Arc::new(Mutex::new(State { rules: Vec::new(), next: 0, rng, struck: 0, wrong: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.state();
        state.next += 1;
        let id = RuleId(state.next);
        state.rules.push((id, rule));
        id
    }

    pub fn remove(&self, id: RuleId) {
        self.state().rules.retain(|(of, _)| *of != id);
    }

    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Returns the number of pieces that rules have struck, and of those that were damaged.
    pub fn struck(&self) -> (u64, u64) {
        let state = self.state();
        (state.struck, state.wrong)
    }

    /// Returns the effects on a piece from one end to the other now, and removes rules that are used up.
    fn effects(&self, from: End, to: End) -> Vec<Effect> {
        let mut guard = self.state();
        let state = &mut *guard;
        let to_meta = from == End::Meta || to == End::Meta;
        let mut found = Vec::new();
        for (_, rule) in &mut state.rules {
            let meant = rule.from.is_none_or(|end| end == from) && rule.to.is_none_or(|end| end == to);
            if !meant || (rule.effect.is_wrong() && to_meta) {
                continue;
            }
            found.push(rule.effect);
            if rule.times != u32::MAX {
                rule.times -= 1;
            }
        }
        state.rules.retain(|(_, rule)| rule.times > 0);
        state.struck += u64::from(!found.is_empty());
        state.wrong += u64::from(found.iter().any(|effect| effect.is_wrong()));
        found
    }

    /// Whether bytes between these ends are held now.
    fn holds(&self, from: End, to: End) -> bool {
        let state = self.state();
        let meant = |rule: &Rule| rule.from.is_none_or(|end| end == from) && rule.to.is_none_or(|end| end == to);
        state.rules.iter().any(|(_, rule)| rule.effect == Effect::Hold && meant(rule))
    }

    fn below(&self, bound: u64) -> u64 {
        self.state().rng.below(bound)
    }
}

/// One proxy, which listens until it is dropped.
pub struct Proxy {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy at `addr` before `target`, which is `end`.
    pub fn start(addr: SocketAddr, target: SocketAddr, end: End, sky: Sky) -> Result<Proxy> {
        let listener = TcpListener::bind(addr).with_context(|| format!("a proxy at {addr}"))?;
        let (stop, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&accepted));
        std::thread::spawn(move || {
            for dialled in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let sky = sky.clone();
                std::thread::spawn(move || carry(dialled, target, end, &sky));
            }
        });
        Ok(Proxy { addr, stop, accepted })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of connections so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The connection wakes the listener up.
        let _ = TcpStream::connect_timeout(&self.addr, CONNECT_MAX);
    }
}

/// Carries both directions of one connection, until both have ended.
fn carry(dialled: TcpStream, target: SocketAddr, end: End, sky: &Sky) {
    // A daemon that is down refuses, and so does its proxy: by closing.
    let Ok(served) = TcpStream::connect_timeout(&target, CONNECT_MAX) else { return };
    let (Ok(back), Ok(forth)) = (dialled.try_clone(), served.try_clone()) else { return };
    let _ = (dialled.set_nodelay(true), served.set_nodelay(true));
    let dialler = match end {
        End::Meta => End::Someone,
        _ => who_dials(&dialled),
    };
    let answers = sky.clone();
    let other = std::thread::spawn(move || pump(served, back, end, dialler, &answers));
    pump(dialled, forth, dialler, end, sky);
    let _ = other.join();
}

/// Looks at the greeting without taking it, and returns the end that dials.
fn who_dials(stream: &TcpStream) -> End {
    let mut bytes = [0u8; 1024];
    let _ = stream.set_read_timeout(Some(CONNECT_MAX));
    let seen = clock::wait_until("a greeting", CONNECT_MAX, || Ok(stream.peek(&mut bytes)? > HEADER_LEN));
    let _ = stream.set_read_timeout(None);
    let hello = bytes.first_chunk().and_then(|head| Header::decode(head).ok()).and_then(|header| {
        let head = bytes.get(HEADER_LEN..HEADER_LEN + header.head_len())?;
        wire::decode_hello(&header, head).ok()
    });
    match hello.map(|hello| hello.peer) {
        Some(Peer::Osd(osd)) if seen.is_ok() => End::Osd(osd.0),
        Some(Peer::Client(_)) if seen.is_ok() => End::Client,
        _ => End::Someone,
    }
}

/// Carries one direction of a connection.
fn pump(mut from: TcpStream, mut to: TcpStream, source: End, sink: End, sky: &Sky) {
    let mut piece = vec![0u8; PIECE];
    let mut silenced = false;
    while let Ok(len @ 1..) = from.read(&mut piece) {
        if silenced {
            continue;
        }
        let mut bytes = piece[..len].to_vec();
        for effect in sky.effects(source, sink) {
            match effect {
                Effect::Delay { ms, jitter_ms } => clock::pause(Duration::from_millis(ms + sky.below(jitter_ms + 1))),
                Effect::Hold => {}
                Effect::Silence => silenced = true,
                Effect::Trickle => {
                    if trickle(&mut to, &mut bytes, sky).is_err() {
                        break;
                    }
                }
                Effect::Reset => {
                    let _ = to.write_all(&bytes[..len / 2]);
                    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                    return;
                }
                Effect::HalfClose => {
                    let _ = to.shutdown(Shutdown::Write);
                    silenced = true;
                }
                Effect::Flip | Effect::Duplicate | Effect::Garbage | Effect::Reorder => spoil(&mut bytes, effect, sky),
            }
        }
        while sky.holds(source, sink) {
            clock::pause(LOOK);
        }
        if !silenced && to.write_all(&bytes).is_err() {
            break;
        }
    }
    if !silenced {
        let _ = to.shutdown(Shutdown::Write);
    }
    // When one end is gone, the proxy takes no more bytes from the other.
    let _ = from.shutdown(Shutdown::Read);
}

/// Sends the first bytes in small pieces, a few milliseconds apart; leaves the rest.
fn trickle(to: &mut TcpStream, bytes: &mut Vec<u8>, sky: &Sky) -> std::io::Result<()> {
    for _ in 0..8 {
        let len = (1 + sky.below(32) as usize).min(bytes.len());
        to.write_all(&bytes[..len])?;
        bytes.drain(..len);
        clock::pause(Duration::from_millis(1 + sky.below(5)));
    }
    Ok(())
}

fn spoil(bytes: &mut Vec<u8>, effect: Effect, sky: &Sky) {
    let at = sky.below(bytes.len().max(1) as u64) as usize;
    match effect {
        Effect::Flip => bytes[at] ^= 1 << sky.below(8),
        Effect::Duplicate => bytes.extend_from_within(..=at),
        Effect::Garbage => {
            let noise: Vec<u8> = (0..1 + at % 200).map(|_| sky.below(256) as u8).collect();
            bytes.splice(..0, noise);
        }
        _ => bytes.rotate_left(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1:0";

    /// Starts a daemon that sends everything back, a proxy before it, and a connection through it.
    fn through(sky: &Sky) -> (Proxy, TcpStream) {
        let echo = TcpListener::bind(LOCAL).unwrap();
        let target = echo.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in echo.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut buf = [0u8; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut buf) {
                        let _ = stream.write_all(&buf[..n]);
                    }
                });
            }
        });
        let free = TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
        let proxy = Proxy::start(free, target, End::Meta, sky.clone()).unwrap();
        let stream = TcpStream::connect(free).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (proxy, stream)
    }

    fn rule(from: End, effect: Effect, times: u32) -> Rule {
        Rule { from: Some(from), to: None, effect, times }
    }

    #[test]
    fn bytes_pass_as_they_came_and_a_cut_gives_them_back_when_it_heals() {
        let sky = Sky::new(1);
        let (proxy, mut stream) = through(&sky);
        let cut = sky.add(rule(End::Someone, Effect::Hold, u32::MAX));
        stream.write_all(b"hello").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut got = [0u8; 5];
        assert!(stream.read_exact(&mut got).is_err(), "nothing passes a cut");
        sky.remove(cut);
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert_eq!((&got, proxy.accepted()), (b"hello", 1));
    }

    #[test]
    fn silenced_direction_loses_bytes_without_an_error() {
        let sky = Sky::new(1);
        let (_proxy, mut stream) = through(&sky);
        sky.add(rule(End::Meta, Effect::Silence, 1));
        stream.write_all(b"hello").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut got = [0u8; 5];
        let error = stream.read_exact(&mut got).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "no end, no error, no bytes");
        assert_eq!(sky.struck(), (1, 0));
    }

    #[test]
    fn reset_cuts_a_piece_and_bytes_to_meta_are_never_damaged() {
        let sky = Sky::new(1);
        let (_proxy, mut stream) = through(&sky);
        sky.add(rule(End::Someone, Effect::Flip, 1));
        stream.write_all(b"hello").unwrap();
        let mut got = [0u8; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        sky.clear();
        sky.add(rule(End::Meta, Effect::Reset, 1));
        stream.write_all(b"world").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"wo");
    }

    #[test]
    fn what_is_spoiled_is_not_what_was_sent() {
        let sky = Sky::new(7);
        for effect in [Effect::Flip, Effect::Duplicate, Effect::Garbage] {
            let sent: Vec<u8> = (0..100).collect();
            let mut got = sent.clone();
            spoil(&mut got, effect, &sky);
            assert_ne!(got, sent, "{effect:?}");
        }
    }
}
