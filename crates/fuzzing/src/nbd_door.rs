//! Bytes that an NBD client can send: the negotiation alone, and a whole connection on a device in memory.
//!
//! Properties: answers do not depend on how the bytes are split into receives; answers and memory are bounded by the
//! bytes received; requests to the device lie inside it; nothing panics.

use crate::source::Source;
use crate::{Verdict, meter};
use device::{BlockDevice, Ram};
use env::{ConnId, Event, ListenerId, NetAddr, Op, Token};
use nbd::proto::{Export, Handshake, Progress};
use nbd::{NbdConfig, NbdServer};
use std::collections::VecDeque;
use types::rng::Rng;
use types::{IoBufMut, Time};

/// Most bytes of answers for each byte of an option.
const ANSWER_FACTOR: usize = 16;

fn export() -> Export {
    Export { name: "p/v".into(), description: "a volume".into(), len_bytes: 1 << 20, read_only: false }
}

/// Feeds pieces whose lengths `cut` gives. Returns the answers, the progress and the number of bytes consumed.
fn feed(client: &[u8], mut cut: impl FnMut() -> usize) -> (Vec<u8>, Option<Progress>, usize) {
    let export = export();
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let (mut at, mut end) = (0, 0);
    while end < client.len() {
        end = (end + cut().max(1)).min(client.len());
        match handshake.feed(&client[at..end], &export, &mut out) {
            Ok((taken, progress)) => {
                assert!(taken <= end - at, "it took more than it was given");
                at += taken;
                if progress != Progress::More {
                    return (out, Some(progress), at);
                }
            }
            Err(_) => return (out, None, at),
        }
    }
    (out, Some(Progress::More), at)
}

/// Runs the negotiation. First byte: seed of the lengths of the pieces.
pub fn handshake(data: &[u8]) -> Verdict {
    let Some((seed, client)) = data.split_first() else { return Verdict::Refused };
    let whole = meter::bounded(client.len(), 64, 4096, || feed(client, || usize::MAX / 2));
    let mut rng = Rng::new((*seed).into());
    let pieces = feed(client, || rng.between(1, 9) as usize);
    assert!((&whole.0, whole.1) == (&pieces.0, pieces.1), "the answer depends on how the bytes arrive");
    if whole.1.is_some_and(|p| p != Progress::More) {
        assert_eq!(whole.2, pieces.2, "the step into transmission is elsewhere");
    }
    assert!(whole.0.len() <= 64 + ANSWER_FACTOR * client.len(), "{} answered to {}", whole.0.len(), client.len());
    if matches!(whole.1, Some(Progress::Enter(_))) { Verdict::Taken } else { Verdict::Refused }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns a negotiation that mostly succeeds, with options before it that may not.
fn negotiation(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![0, 0, 0, rng.below(4) as u8];
    for _ in 0..rng.below(5) {
        out.extend(match rng.below(7) {
            0 => option(3, &[]),
            1 => option(5, &[]),
            2 => option(8, &[]),
            3 => option(9, b"\0\0\0\x03p/v\0\0\0\x01\0\0\0\x05base:"),
            4 => option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"),
            5 => option(6, b"\0\0\0\x03p/v\0\x02\0\x01\0\x03"),
            _ => option(rng.next_u64() as u32, &[7; 40]),
        });
    }
    out.extend(if rng.chance(3, 4) { option(7, &[0; 6]) } else { option(1, b"p/v") });
    out
}

pub fn handshake_seed(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![rng.next_u64() as u8];
    out.extend(negotiation(rng));
    out
}

fn request(rng: &mut Rng) -> Vec<u8> {
    let kind = [0, 0, 1, 1, 2, 3, 4, 6, 7, 5][rng.below(10) as usize] as u16;
    let len = rng.below(9) as u32 * 512;
    let offset = rng.below(2048) * 512;
    let flags = if rng.chance(1, 3) { rng.below(32) as u16 } else { 0 };
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(rng.next_u64().to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    if kind == 1 {
        out.extend(std::iter::repeat_n(rng.next_u64() as u8, len as usize));
    }
    out
}

pub fn door_seed(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![rng.next_u64() as u8, rng.next_u64() as u8];
    out.extend(negotiation(rng));
    for _ in 0..rng.between(1, 8) {
        out.extend(request(rng));
    }
    out
}

const OWNER: u8 = 9;
const LISTENER: ListenerId = ListenerId(3);
const CONN: ConnId = ConnId { slot: 1, generation: 7 };

/// The simulated peer's end of one connection.
struct Line {
    server: NbdServer,
    device: Ram,
    now: Time,
    incoming: VecDeque<u8>,
    receive: Option<(Token, Vec<IoBufMut>, usize)>,
    send: Option<Token>,
    sent: usize,
    closed: bool,
    piece_max: usize,
}

impl Line {
    fn event(&mut self, event: Event) {
        let mut ops = Vec::new();
        self.server.handle_event(self.now, event, &mut self.device, &mut ops);
        self.turn(ops);
    }

    fn turn(&mut self, mut ops: Vec<Op>) {
        let mut completions = Vec::new();
        self.device.completions(&mut completions);
        self.server.handle_completions(&mut completions);
        self.server.end_turn(self.now, &mut self.device, &mut ops);
        for op in ops {
            match op {
                Op::Recv { token, bufs, min, .. } => {
                    let room: usize = bufs.iter().map(|b| b.len()).sum();
                    assert!(self.receive.is_none() && min > 0 && min <= room);
                    self.receive = Some((token, bufs, min));
                }
                Op::Send { token, bufs, .. } => {
                    assert!(self.send.is_none() && !bufs.is_empty());
                    self.sent += bufs.iter().map(|b| b.len()).sum::<usize>();
                    self.send = Some(token);
                }
                Op::Close { .. } => self.closed = true,
                other => panic!("an NBD server does not ask for {other:?}"),
            }
        }
    }

    /// Gives the bytes that have arrived to the pending receive.
    fn deliver(&mut self) {
        let (token, mut bufs, min) = self.receive.take().expect("the caller has looked");
        let mut left = self.incoming.len().min(self.piece_max.max(min));
        let mut count = 0;
        for buf in &mut bufs {
            let now = left.min(buf.len());
            buf[..now].iter_mut().for_each(|byte| *byte = self.incoming.pop_front().expect("it was counted"));
            (left, count) = (left - now, count + now);
        }
        self.event(Event::Received { token, conn: CONN, bufs, result: Ok(count) });
    }

    fn settle(&mut self) {
        while !self.closed {
            if let Some(token) = self.send.take() {
                self.event(Event::Sent { token, conn: CONN, result: Ok(()) });
            } else if self.receive.as_ref().is_some_and(|(_, _, min)| self.incoming.len() >= *min) {
                self.deliver();
            } else if self.device.next_deadline() == Time::ZERO {
                self.turn(Vec::new());
            } else {
                return;
            }
        }
    }
}

/// Runs a whole connection. First two bytes: limits and piece length; the rest is sent by the client.
pub fn door(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let (limits, piece) = (source.byte(), source.byte());
    let config =
        NbdConfig { requests_max: 1 + u32::from(limits % 8), bytes_max: 4096 << (limits / 32), ..NbdConfig::default() };
    let mut server = NbdServer::new(OWNER, config);
    server.listen(LISTENER);
    let mut line = Line {
        server,
        device: Ram::new("p/v", 1 << 20),
        now: Time(1),
        incoming: source.rest().iter().copied().collect(),
        receive: None,
        send: None,
        sent: 0,
        closed: false,
        piece_max: 1 + usize::from(piece) * 7,
    };
    let given = line.incoming.len();
    line.event(Event::Accepted { listener: LISTENER, conn: CONN, peer: NetAddr::Unnamed });
    line.settle();
    // A request has at least 28 bytes, and its answer is at most a read of the whole device.
    let answers = 64 + ANSWER_FACTOR * given + given / 28 * (1 << 21);
    assert!(line.sent <= answers, "{} sent for {given}", line.sent);
    if line.server.stats().requests > 0 { Verdict::Taken } else { Verdict::Refused }
}
