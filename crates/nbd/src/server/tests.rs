//! The server over a scripted connection: split bytes, pipelines, limits, every opcode, garbage.

use super::*;
use crate::proto::request::*;
use device::{DeviceInfo, Ram, ReadOnly};
use std::collections::VecDeque;
use types::rng::Rng;
use types::{IoBuf, IoBufMut};

const OWNER: u8 = 9;
const LISTENER: ListenerId = ListenerId(3);
const CONN: ConnId = ConnId { slot: 1, generation: 7 };

/// A device whose requests the test completes itself.
struct Scripted {
    info: DeviceInfo,
    requests: VecDeque<(Request, u64)>,
    room: usize,
    done: Vec<Completion>,
}

impl Scripted {
    fn new(room: usize) -> Scripted {
        let info = DeviceInfo {
            name: "p/v".into(),
            len_bytes: 1 << 30,
            block_min: 512,
            block_preferred: 4096,
            read_only: false,
            shared: false,
        };
        Scripted { info, requests: VecDeque::new(), room, done: Vec::new() }
    }
}

impl BlockDevice for Scripted {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&mut self, _now: Time, request: Request, token: u64) -> Result<(), Busy> {
        if self.requests.len() == self.room {
            return Err(Busy(request));
        }
        self.requests.push_back((request, token));
        Ok(())
    }
    fn completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
    }
    fn next_deadline(&self) -> Time {
        Time::NEVER
    }
}

/// A server, its device, and the client's end of one connection.
struct Rig<D> {
    server: NbdServer,
    device: D,
    now: Time,
    /// Bytes that the client sent and the server has not received.
    wire: VecDeque<u8>,
    receive: Option<(Token, Vec<IoBufMut>, usize)>,
    send: Option<Token>,
    /// Whether sends complete by themselves.
    sends_complete: bool,
    out: Vec<u8>,
    closed: bool,
    receive_bytes_max: usize,
}

impl<D: BlockDevice> Rig<D> {
    fn new(device: D, config: NbdConfig) -> Rig<D> {
        let mut rig = Rig::unconnected(device, config);
        rig.event(Event::Accepted { listener: LISTENER, conn: CONN, peer: NetAddr::Unnamed });
        rig
    }

    fn unconnected(device: D, config: NbdConfig) -> Rig<D> {
        let mut server = NbdServer::new(OWNER, config);
        server.listen(LISTENER);
        Rig {
            server,
            device,
            now: Time(1),
            wire: VecDeque::new(),
            receive: None,
            send: None,
            sends_complete: true,
            out: Vec::new(),
            closed: false,
            receive_bytes_max: usize::MAX,
        }
    }

    /// Runs one turn with one event.
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
                Op::Recv { token, conn, bufs, min } => {
                    assert!(self.receive.is_none() && conn == CONN && token.owner == OWNER);
                    let room: usize = bufs.iter().map(|b| b.len()).sum();
                    assert!(min > 0 && min <= room);
                    self.receive = Some((token, bufs, min));
                }
                Op::Send { token, conn, bufs, .. } => {
                    assert!(self.send.is_none() && conn == CONN && !bufs.is_empty());
                    bufs.iter().for_each(|buf| self.out.extend_from_slice(buf));
                    self.send = Some(token);
                }
                Op::Close { conn } => {
                    assert_eq!(conn, CONN);
                    self.closed = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Runs until nothing moves.
    fn settle(&mut self) {
        while !self.closed {
            if self.sends_complete
                && let Some(token) = self.send.take()
            {
                self.event(Event::Sent { token, conn: CONN, result: Ok(()) });
            } else if self.receive.as_ref().is_some_and(|(_, _, min)| self.wire.len() >= *min) {
                let (token, mut bufs, min) = self.receive.take().expect("just seen");
                let mut left = self.wire.len().min(self.receive_bytes_max.max(min));
                let mut count = 0;
                for buf in &mut bufs {
                    let now = left.min(buf.len());
                    for byte in &mut buf[..now] {
                        *byte = self.wire.pop_front().expect("counted");
                    }
                    (left, count) = (left - now, count + now);
                }
                self.event(Event::Received { token, conn: CONN, bufs, result: Ok(count) });
            } else if self.device.next_deadline() == Time::ZERO {
                self.turn(Vec::new());
            } else {
                return;
            }
        }
    }

    fn client(&mut self, bytes: &[u8]) {
        self.wire.extend(bytes);
        self.settle();
    }

    fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Passes the handshake, with all options negotiated or with none.
    fn enter(mut self, structured: bool) -> Rig<D> {
        self.client(&handshake(structured));
        assert!(!self.closed);
        self.take_out();
        self
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn handshake(structured: bool) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 3];
    if structured {
        out.extend(option(8, &[]));
        out.extend(option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"));
        out.extend(option(7, &[0; 6]));
    } else {
        out.extend(option(1, b"p/v"));
    }
    out
}

fn request(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(payload);
    out
}

#[derive(Debug, PartialEq, Eq)]
enum Got {
    Simple { cookie: u64, error: u32 },
    Data { cookie: u64, done: bool, offset: u64, bytes: Vec<u8> },
    Hole { cookie: u64, done: bool, offset: u64, len: u32 },
    Status { cookie: u64, extents: Vec<(u32, u32)> },
    Error { cookie: u64, error: u32 },
}

fn be<const N: usize>(bytes: &mut &[u8]) -> u64 {
    let (head, tail) = bytes.split_at(N);
    *bytes = tail;
    head.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Splits replies; simple ones must carry no data.
fn got(mut bytes: &[u8]) -> Vec<Got> {
    let mut out = Vec::new();
    let b = &mut bytes;
    while !b.is_empty() {
        if be::<4>(b) == 0x6744_6698 {
            let error = be::<4>(b) as u32;
            out.push(Got::Simple { cookie: be::<8>(b), error });
            continue;
        }
        let done = be::<2>(b) == 1;
        let kind = be::<2>(b);
        let cookie = be::<8>(b);
        let (mut body, rest) = b.split_at(be::<4>(&mut { *b }) as usize + 4);
        *b = rest;
        be::<4>(&mut body);
        let body = &mut body;
        out.push(match kind {
            1 => Got::Data { cookie, done, offset: be::<8>(body), bytes: body.to_vec() },
            2 => Got::Hole { cookie, done, offset: be::<8>(body), len: be::<4>(body) as u32 },
            5 => {
                assert!(done && be::<4>(body) == 1);
                let mut extents = Vec::new();
                while !body.is_empty() {
                    extents.push((be::<4>(body) as u32, be::<4>(body) as u32));
                }
                Got::Status { cookie, extents }
            }
            0x8001 => {
                let error = be::<4>(body) as u32;
                assert!(done && be::<2>(body) as usize == body.len());
                Got::Error { cookie, error }
            }
            other => panic!("chunk type {other}"),
        });
    }
    out
}

fn ok(cookie: u64) -> Got {
    Got::Simple { cookie, error: 0 }
}

fn ram() -> Ram {
    Ram::new("p/v", 64 << 20)
}

#[test]
fn every_opcode_is_answered() {
    let mut rig = Rig::new(ram(), NbdConfig::default()).enter(true);
    let block = [7u8; 4096];
    rig.client(&request(FLAG_FUA, CMD_WRITE, 1, 65536, 4096, &block));
    rig.client(&request(0, CMD_FLUSH, 2, 0, 0, &[]));
    assert_eq!(got(&rig.take_out()), [ok(1), ok(2)]);
    rig.client(&request(FLAG_DF, CMD_READ, 3, 65536, 4096, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Data { cookie: 3, done: true, offset: 65536, bytes: block.to_vec() }]);
    rig.client(&request(0, CMD_BLOCK_STATUS, 4, 0, 262_144, &[]));
    rig.client(&request(FLAG_REQ_ONE, CMD_BLOCK_STATUS, 5, 0, 32768, &[]));
    let all = vec![(65536, 3), (65536, 0), (131_072, 3)];
    assert_eq!(
        got(&rig.take_out()),
        [Got::Status { cookie: 4, extents: all }, Got::Status { cookie: 5, extents: vec![(32768, 3)] }]
    );
    rig.client(&request(0, CMD_TRIM, 6, 65536, 65536, &[]));
    rig.client(&request(FLAG_NO_HOLE, CMD_WRITE_ZEROES, 7, 0, 64 << 20, &[]));
    rig.client(&request(0, CMD_READ, 8, 65536, 512, &[]));
    let zeros = Got::Data { cookie: 8, done: true, offset: 65536, bytes: vec![0; 512] };
    assert_eq!(got(&rig.take_out()), [ok(6), ok(7), zeros]);
    rig.client(&request(0, 77, 9, 0, 0, &[]));
    rig.client(&request(0, CMD_READ, 10, 1, 512, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Simple { cookie: 9, error: 22 }, Got::Error { cookie: 10, error: 22 }]);
    rig.client(&request(0, CMD_DISC, 0, 0, 0, &[]));
    assert!(rig.closed);
    assert_eq!(rig.server.stats().requests, 10);
    assert_eq!(rig.server.connection_count(), 0);
}

#[test]
fn without_structured_replies_reads_are_simple() {
    let mut rig = Rig::new(ram(), NbdConfig::default()).enter(false);
    rig.client(&request(0, CMD_WRITE, 1, 0, 512, &[5; 512]));
    rig.take_out();
    rig.client(&request(0, CMD_READ, 2, 0, 1024, &[]));
    let out = rig.take_out();
    assert_eq!(got(&out[..16]), [ok(2)]);
    assert_eq!(out[16..], [[5u8; 512], [0u8; 512]].concat());
    rig.client(&request(0, CMD_READ, 3, 64 << 20, 512, &[]));
    rig.client(&request(0, CMD_BLOCK_STATUS, 4, 0, 512, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Simple { cookie: 3, error: 22 }, Got::Simple { cookie: 4, error: 22 }]);
}

/// The kernel knows the export without a handshake, and hears of another length in another way.
#[test]
fn attached_connection_begins_with_requests_and_takes_a_later_length() {
    let mut rig = Rig::unconnected(Scripted::new(8), NbdConfig::default());
    rig.server.attach(CONN, &rig.device);
    rig.turn(Vec::new());
    assert!(rig.out.is_empty() && rig.server.is_connected(CONN) && rig.server.next_deadline() == Time::NEVER);
    rig.client(&request(0, CMD_READ, 1, (1 << 30) - 512, 512, &[]));
    assert_eq!(rig.device.requests.len(), 1);
    rig.client(&request(0, CMD_READ, 2, 1 << 30, 512, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Simple { cookie: 2, error: 22 }]);
    rig.device.info.len_bytes += 512;
    rig.server.resize(CONN, rig.device.info.len_bytes);
    rig.client(&request(0, CMD_READ, 3, 1 << 30, 512, &[]));
    assert_eq!(rig.device.requests.len(), 2);
    rig.server.resize(CONN, 1 << 29);
    rig.client(&request(0, CMD_READ, 4, 1 << 29, 512, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Simple { cookie: 4, error: 22 }]);
    let (token, bufs, _) = rig.receive.take().expect("it receives");
    rig.event(Event::Received { token, conn: CONN, bufs, result: Err(NetError::Closed) });
    assert!(rig.closed && !rig.server.is_connected(CONN));
}

/// Returns a session with writes of all kinds, refused ones among them, and a read of their result.
fn session() -> Vec<u8> {
    let mut all = handshake(true);
    all.extend(request(0, CMD_WRITE, 1, 0, 1024, &[1; 1024]));
    all.extend(request(0, CMD_WRITE, 2, 7, 600, &[2; 600]));
    all.extend(request(0, CMD_FLUSH, 3, 0, 0, &[]));
    all.extend(request(0, CMD_WRITE, 4, 512, 1536, &[3; 1536]));
    all.extend(request(0, CMD_READ, 5, 0, 4096, &[]));
    all.extend(request(0, CMD_WRITE, 6, 64 << 20, 512, &[4; 512]));
    all.extend(request(0, CMD_DISC, 0, 0, 0, &[]));
    all
}

#[test]
fn the_replies_do_not_depend_on_how_the_bytes_are_cut() {
    let all = session();
    // Replies of one turn may change places: a refusal needs no device.
    let run = |rig: &mut Rig<Ram>, cut: usize| {
        rig.client(&all[..cut]);
        rig.client(&all[cut..]);
        assert!(rig.closed && rig.wire.is_empty(), "cut at {cut}");
        let transmission = rig.out.windows(4).position(|four| four == 0x6744_6698u32.to_be_bytes()).unwrap();
        let mut replies = got(&rig.out[transmission..]);
        replies.sort_by_key(|reply| match reply {
            Got::Simple { cookie, .. } | Got::Data { cookie, .. } => *cookie,
            other => panic!("{other:?}"),
        });
        (rig.out[..transmission].to_vec(), replies)
    };
    let whole = run(&mut Rig::new(ram(), NbdConfig::default()), all.len());
    let bytes = [vec![1; 512], vec![3; 1536], vec![0; 2048]].concat();
    let refused = |cookie, error| Got::Simple { cookie, error };
    let read = Got::Data { cookie: 5, done: true, offset: 0, bytes };
    assert_eq!(whole.1, [ok(1), refused(2, 22), ok(3), ok(4), read, refused(6, 28)]);
    for cut in 0..all.len() {
        assert_eq!(run(&mut Rig::new(ram(), NbdConfig::default()), cut), whole, "cut at {cut}");
    }
    for max in 1..200 {
        let mut rig = Rig::new(ram(), NbdConfig::default());
        rig.receive_bytes_max = max;
        assert_eq!(run(&mut rig, 0), whole, "receives of {max}");
    }
}

#[test]
fn a_pipeline_of_large_and_small_writes_lands_whole() {
    let mut rig = Rig::new(ram(), NbdConfig::default()).enter(true);
    let mut rng = Rng::new(5);
    let mut image = vec![0u8; 8 << 20];
    let mut bytes = Vec::new();
    for cookie in 0..120 {
        let len = [512, 4096, 65536, 100 << 10, 1 << 20][rng.below(5) as usize];
        let offset = rng.below((8 << 20) / 512 - len as u64 / 512) * 512;
        let payload: Vec<u8> = (0..len).map(|i| (i as u64 ^ cookie).wrapping_mul(31) as u8).collect();
        image[offset as usize..offset as usize + len].copy_from_slice(&payload);
        bytes.extend(request(0, CMD_WRITE, cookie, offset, len as u32, &payload));
    }
    rig.wire.extend(&bytes);
    while !rig.wire.is_empty() {
        rig.receive_bytes_max = 1 + rng.below(300_000) as usize;
        rig.settle();
    }
    let replies = got(&rig.take_out());
    assert_eq!(replies, (0..120).map(ok).collect::<Vec<_>>());
    rig.client(&request(FLAG_DF, CMD_READ, 200, 0, 8 << 20, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Data { cookie: 200, done: true, offset: 0, bytes: image }]);
}

#[test]
fn largest_write_passes_larger_one_is_drained_and_huge_one_disconnects() {
    let mut rig = Rig::new(ram(), NbdConfig::default()).enter(true);
    let payload = vec![9u8; 33 << 20];
    rig.client(&request(0, CMD_WRITE, 1, 0, 32 << 20, &payload[..32 << 20]));
    rig.client(&request(0, CMD_WRITE, 2, 0, 33 << 20, &payload));
    rig.client(&request(0, CMD_READ, 3, 0, 33 << 20, &[]));
    rig.client(&request(0, CMD_FLUSH, 4, 0, 0, &[]));
    let want = [ok(1), Got::Simple { cookie: 2, error: 22 }, Got::Error { cookie: 3, error: 22 }, ok(4)];
    assert_eq!(got(&rig.take_out()), want);
    rig.client(&request(0, CMD_WRITE, 5, 0, 65 << 20, &[]));
    assert!(rig.closed && rig.out.is_empty());
    assert_eq!(rig.server.stats().violations, 1);
}

#[test]
fn a_connection_over_its_limits_is_not_received_from() {
    let config = NbdConfig { requests_max: 4, ..NbdConfig::default() };
    let mut rig = Rig::new(Scripted::new(usize::MAX), config).enter(true);
    let reads: Vec<u8> = (0..1000).flat_map(|c| request(0, CMD_READ, c, 0, 4096, &[])).collect();
    rig.receive_bytes_max = 280;
    rig.client(&reads);
    assert_eq!(rig.device.requests.len(), 4);
    assert!(rig.wire.len() >= reads.len() - 280 && rig.receive.is_none());
    rig.sends_complete = false;
    // A reply releases nothing until it was sent.
    let (_, token) = rig.device.requests.pop_front().unwrap();
    rig.device.done.push(Completion { token, result: Ok(Answer::Data(vec![IoBuf::zeros(4096)])) });
    rig.turn(Vec::new());
    rig.settle();
    assert_eq!(rig.device.requests.len(), 3);
    rig.sends_complete = true;
    rig.settle();
    assert_eq!(rig.device.requests.len(), 4);
    while let Some((_, token)) = rig.device.requests.pop_front() {
        rig.device.done.push(Completion { token, result: Err(Errno::Damaged) });
        rig.turn(Vec::new());
        rig.settle();
    }
    assert_eq!((rig.server.stats().requests, rig.server.stats().errors), (1000, 999));
}

#[test]
fn bytes_in_flight_are_limited_and_one_large_request_passes_alone() {
    let config = NbdConfig { bytes_max: 1 << 20, ..NbdConfig::default() };
    let mut rig = Rig::new(Scripted::new(usize::MAX), config).enter(true);
    for cookie in 0..4 {
        rig.client(&request(0, CMD_READ, cookie, 0, 600 << 10, &[]));
    }
    rig.client(&request(0, CMD_READ, 4, 0, 32 << 20, &[]));
    let mut most = 0;
    while let Some((request, token)) = rig.device.requests.pop_front() {
        most = most.max(rig.device.requests.len() + 1);
        // Zeros longer than the shared buffer are not the shared ones.
        let len = request.held_bytes();
        let pieces = (0..len).step_by(200 << 10).map(|at| IoBuf::zeros((len - at).min(200 << 10) as usize)).collect();
        rig.device.done.push(Completion { token, result: Ok(Answer::Data(pieces)) });
        rig.turn(Vec::new());
        rig.settle();
    }
    assert_eq!((most, rig.server.stats().requests), (1, 5));
    let holes = got(&rig.take_out());
    assert_eq!(holes.last(), Some(&Got::Hole { cookie: 4, done: true, offset: 0, len: 32 << 20 }));
}

#[test]
fn a_busy_device_holds_requests_back_in_order() {
    let mut rig = Rig::new(Scripted::new(2), NbdConfig::default()).enter(true);
    let all: Vec<u8> = (0..10).flat_map(|c| request(0, CMD_WRITE, c, c * 512, 512, &[c as u8; 512])).collect();
    rig.client(&all);
    let mut offsets = Vec::new();
    while let Some((request, token)) = rig.device.requests.pop_front() {
        offsets.push(request.span().unwrap().0 / 512);
        rig.device.done.push(Completion { token, result: Ok(Answer::Done) });
        rig.turn(Vec::new());
        rig.settle();
    }
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
    assert_eq!(got(&rig.take_out()), (0..10).map(ok).collect::<Vec<_>>());
}

#[test]
fn known_zeros_go_as_holes_unless_the_client_wants_one_piece() {
    let mut rig = Rig::new(Scripted::new(9), NbdConfig::default()).enter(true);
    let pieces = || {
        let data = IoBuf::copy_of(&[1; 512]);
        vec![IoBuf::zeros(4096), IoBuf::zeros(8192), data.clone(), IoBuf::zeros(512), data, IoBuf::zeros(4096)]
    };
    rig.client(&request(0, CMD_READ, 1, 4096, 17920, &[]));
    rig.client(&request(FLAG_DF, CMD_READ, 2, 4096, 17920, &[]));
    // The requests complete in the other order: replies carry cookies.
    for (_, token) in std::mem::take(&mut rig.device.requests).into_iter().rev() {
        rig.device.done.push(Completion { token, result: Ok(Answer::Data(pieces())) });
    }
    rig.turn(Vec::new());
    let middle = [[1u8; 512], [0; 512], [1; 512]].concat();
    let whole = [&[0; 12288], &middle[..], &[0; 4096]].concat();
    let want = [
        Got::Data { cookie: 2, done: true, offset: 4096, bytes: whole },
        Got::Hole { cookie: 1, done: false, offset: 4096, len: 12288 },
        Got::Data { cookie: 1, done: false, offset: 16384, bytes: middle },
        Got::Hole { cookie: 1, done: true, offset: 17920, len: 4096 },
    ];
    assert_eq!(got(&rig.take_out()), want);
}

#[test]
fn errors_of_the_device_reach_the_client_as_the_protocols_words() {
    let mut rig = Rig::new(Scripted::new(9), NbdConfig::default()).enter(true);
    for (errno, want) in [(Errno::NoSpace, 28), (Errno::Fenced, 5), (Errno::Shutdown, 108), (Errno::Damaged, 5)] {
        rig.client(&request(0, CMD_WRITE, 1, 0, 512, &[0; 512]));
        rig.client(&request(0, CMD_READ, 2, 0, 512, &[]));
        for (_, token) in std::mem::take(&mut rig.device.requests) {
            rig.device.done.push(Completion { token, result: Err(errno) });
        }
        rig.turn(Vec::new());
        rig.settle();
        let want = [Got::Simple { cookie: 1, error: want }, Got::Error { cookie: 2, error: want }];
        assert_eq!(got(&rig.take_out()), want);
    }
}

#[test]
fn a_client_that_leaves_gets_its_last_replies() {
    let mut rig = Rig::new(Scripted::new(9), NbdConfig::default()).enter(true);
    rig.client(&request(0, CMD_WRITE, 1, 0, 512, &[0; 512]));
    rig.client(&request(0, CMD_DISC, 0, 0, 0, &[]));
    assert!(!rig.closed);
    let (_, token) = rig.device.requests.pop_front().unwrap();
    rig.device.done.push(Completion { token, result: Ok(Answer::Done) });
    rig.turn(Vec::new());
    rig.settle();
    assert!(rig.closed);
    assert_eq!(got(&rig.out), [ok(1)]);
}

#[test]
fn the_end_of_a_request_of_a_lost_client_is_dropped() {
    let mut rig = Rig::new(Scripted::new(9), NbdConfig::default()).enter(true);
    rig.client(&request(0, CMD_WRITE, 1, 0, 512, &[0; 512]));
    let (token, bufs, _) = rig.receive.take().unwrap();
    rig.event(Event::Received { token, conn: CONN, bufs, result: Err(NetError::Lost) });
    assert!(rig.closed);
    let (_, token) = rig.device.requests.pop_front().unwrap();
    rig.device.done.push(Completion { token, result: Ok(Answer::Done) });
    rig.turn(Vec::new());
    assert!(rig.out.is_empty());
    // A new client in the same slot is a different connection.
    rig.closed = false;
    rig.event(Event::Accepted { listener: LISTENER, conn: CONN, peer: NetAddr::Unnamed });
    rig.event(Event::Sent { token: Token::new(OWNER, 1, 0), conn: CONN, result: Err(NetError::Lost) });
    assert!(!rig.closed);
}

#[test]
fn a_client_that_never_speaks_is_hung_up_on() {
    let mut rig = Rig::new(ram(), NbdConfig::default());
    let deadline = rig.server.next_deadline();
    assert_eq!(deadline, Time(1) + Duration::from_secs(30));
    rig.client(&[0, 0, 0]);
    rig.now = deadline;
    rig.turn(Vec::new());
    assert!(rig.closed);
    assert_eq!(rig.server.next_deadline(), Time::NEVER);
}

#[test]
fn more_clients_than_allowed_are_turned_away() {
    let mut rig = Rig::new(ram(), NbdConfig { connections_max: 1, ..NbdConfig::default() });
    let mut ops = Vec::new();
    let other = ConnId { slot: 2, generation: 8 };
    let event = Event::Accepted { listener: LISTENER, conn: other, peer: NetAddr::Unnamed };
    rig.server.handle_event(rig.now, event, &mut rig.device, &mut ops);
    assert!(matches!(ops[..], [Op::Close { conn }] if conn == other));
    assert_eq!(rig.server.stats().turned_away, 1);
}

#[test]
fn a_hundred_clients_are_served_at_once() {
    let mut rig = Rig::new(ram(), NbdConfig::default());
    let mut ops = Vec::new();
    for slot in 2..101 {
        let conn = ConnId { slot, generation: 8 };
        let event = Event::Accepted { listener: LISTENER, conn, peer: NetAddr::Unnamed };
        rig.server.handle_event(rig.now, event, &mut rig.device, &mut ops);
    }
    assert_eq!((rig.server.connection_count(), rig.server.stats().turned_away), (100, 0));
}

#[test]
fn a_read_only_device_is_told_and_kept() {
    let mut rig = Rig::new(ReadOnly::new(ram()), NbdConfig::default()).enter(true);
    rig.client(&request(0, CMD_WRITE, 1, 0, 512, &[0; 512]));
    rig.client(&request(0, CMD_TRIM, 2, 0, 512, &[]));
    assert_eq!(got(&rig.take_out()), [Got::Simple { cookie: 1, error: 1 }, Got::Simple { cookie: 2, error: 1 }]);
}

#[test]
fn no_garbage_panics_the_door_or_makes_it_hold_more_than_its_limits() {
    let mut rng = Rng::new(7);
    let good = session();
    let mut served = 0;
    for _ in 0..1500 {
        let mut bytes = good.clone();
        for _ in 0..rng.below(6) {
            let at = if rng.chance(1, 2) { rng.below(200) } else { rng.below(bytes.len() as u64) };
            bytes[at as usize] = rng.next_u64() as u8;
        }
        if rng.chance(1, 4) {
            let from = rng.below(bytes.len() as u64) as usize;
            bytes[from..].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        }
        bytes.truncate(1 + rng.below(bytes.len() as u64) as usize);
        let mut rig = Rig::new(ram(), NbdConfig::default());
        rig.receive_bytes_max = 1 + rng.below(2000) as usize;
        rig.client(&bytes);
        served += rig.server.stats().requests;
        assert!(rig.out.len() < 1 << 20);
    }
    assert!(served > 500, "some of it must get through: {served}");
}
