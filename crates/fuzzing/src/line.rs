//! A fake peer's ends of connections in the simulated world: dialled or accepted, greeted, with received messages
//! decoded.
//!
//! Targets pass bytes to send and take received messages. Invariant: the queue of received messages is bounded, and
//! this side never fails by itself. A frame that it cannot decode is a failure of the tested process.

use env::{ConnId, Env, Event, ListenerId, NetAddr, Op, Token};
use simenv::SimEnv;
use std::collections::VecDeque;
use types::{IoBuf, IoBufMut, Time};
use wire::{FrameKind, HEADER_LEN, Header, Message};

/// Most received messages that wait for an answer; the oldest are dropped.
const HEARD_MAX: usize = 64;
/// Values of a token's `owner` field: kind of the operation that ended.
const TALK: u8 = 1;
const LISTEN: u8 = 2;

/// A single connection.
#[derive(Default)]
struct Line {
    conn: Option<ConnId>,
    busy: bool,
    header: Option<Header>,
}

/// All connections of the fake peer, by number.
pub struct Lines {
    env: SimEnv,
    lines: Vec<Line>,
    ops: Vec<Op>,
    serial: u32,
    /// Number of hellos received.
    pub greeted: u64,
    /// Received messages with their connection, oldest first.
    pub heard: VecDeque<(usize, Message)>,
    /// Connections that a listener accepted. The target decides which connection number each gets.
    pub accepted: Vec<(ListenerId, ConnId)>,
}

impl Lines {
    pub fn new(env: SimEnv, count: usize) -> Lines {
        let lines = (0..count).map(|_| Line::default()).collect();
        let (heard, accepted) = (VecDeque::new(), Vec::new());
        Lines { env, lines, ops: Vec::new(), serial: 0, greeted: 0, heard, accepted }
    }

    pub fn listen(&mut self, addr: &NetAddr) -> ListenerId {
        self.env.listen(addr).expect("the address is free").0
    }

    /// Returns whether a connect or a send is in flight.
    pub fn is_busy(&self, which: usize) -> bool {
        self.lines[which].busy
    }

    fn token(&mut self, owner: u8, which: usize) -> Token {
        self.serial += 1;
        Token::new(owner, self.serial, which as u32)
    }

    /// Returns a serial that grows with every operation, so that no two connections share one.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    pub fn hang_up(&mut self, which: usize) {
        let old = std::mem::take(&mut self.lines[which]);
        self.ops.extend(old.conn.map(|conn| Op::Close { conn }));
    }

    pub fn dial(&mut self, which: usize, addr: NetAddr) {
        self.hang_up(which);
        let token = self.token(TALK, which);
        self.ops.push(Op::Connect { token, addr });
        self.lines[which].busy = true;
    }

    /// Makes `conn` the connection with this number.
    pub fn adopt(&mut self, which: usize, conn: ConnId) {
        self.hang_up(which);
        self.lines[which].conn = Some(conn);
        self.hear_more(which);
    }

    /// Sends bytes. Returns false if nothing was sent, because the connection is down or busy.
    pub fn send(&mut self, which: usize, bytes: &[u8]) -> bool {
        let line = &self.lines[which];
        let Some(conn) = line.conn.filter(|_| !line.busy && !bytes.is_empty()) else { return false };
        let token = self.token(TALK, which);
        self.ops.push(Op::Send { token, conn, bufs: vec![IoBuf::copy_of(bytes)], quiet: false });
        self.lines[which].busy = true;
        true
    }

    fn hear_more(&mut self, which: usize) {
        let Some(conn) = self.lines[which].conn else { return };
        let bufs = match self.lines[which].header {
            None => vec![IoBufMut::new(HEADER_LEN)],
            Some(header) => {
                let lens = [header.head_len(), header.payload_len()];
                lens.into_iter().filter(|len| *len > 0).map(IoBufMut::new).collect()
            }
        };
        let min = bufs.iter().map(|b| b.len()).sum();
        let token = self.token(LISTEN, which);
        self.ops.push(Op::Recv { token, conn, bufs, min });
    }

    /// Runs one turn of the fake peer.
    pub fn turn(&mut self) {
        let mut events = Vec::new();
        self.env.turn(&mut self.ops, &mut events, Time::NEVER).expect("a simulated ring does not fail");
        for event in events {
            self.take(event);
        }
        if !self.ops.is_empty() {
            self.env.turn(&mut self.ops, &mut Vec::new(), Time::NEVER).expect("a simulated ring does not fail");
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Accepted { listener, conn, .. } => self.accepted.push((listener, conn)),
            Event::Connected { token, result } => {
                let which = token.key as usize;
                self.lines[which].busy = false;
                self.lines[which].conn = result.ok();
                self.hear_more(which);
            }
            Event::Sent { token, conn, result } => {
                let line = &mut self.lines[token.key as usize];
                if line.conn == Some(conn) {
                    line.busy = false;
                    line.conn = line.conn.filter(|_| result.is_ok());
                }
            }
            Event::Received { token, conn, bufs, result } => {
                let which = token.key as usize;
                if self.lines[which].conn != Some(conn) {
                    return;
                }
                match result {
                    Ok(_) => self.received(which, bufs),
                    Err(_) => self.lines[which].conn = None,
                }
            }
            _ => {}
        }
    }

    fn received(&mut self, which: usize, bufs: Vec<IoBufMut>) {
        let mut bufs = bufs.into_iter().map(IoBufMut::freeze);
        let first = bufs.next().expect("it was asked for");
        let header = match self.lines[which].header.take() {
            None => {
                let header = Header::decode(first.first_chunk().expect("a whole header"));
                let header = header.expect("the real one sends sound headers");
                if header.head_len() + header.payload_len() > 0 {
                    self.lines[which].header = Some(header);
                    return self.hear_more(which);
                }
                header
            }
            Some(header) => {
                self.frame(which, &header, &first, bufs.next().unwrap_or(IoBuf::EMPTY));
                return self.hear_more(which);
            }
        };
        self.frame(which, &header, &[], IoBuf::EMPTY);
        self.hear_more(which);
    }

    fn frame(&mut self, which: usize, header: &Header, head: &[u8], payload: IoBuf) {
        match header.kind() {
            FrameKind::Hello => self.greeted += 1,
            FrameKind::Refuse => {}
            FrameKind::Batch => {
                let mut messages = Vec::new();
                wire::decode_batch(header, head, payload, &mut messages).expect("the real one sends sound frames");
                self.heard.extend(messages.into_iter().map(|m| (which, m)));
                while self.heard.len() > HEARD_MAX {
                    self.heard.pop_front();
                }
            }
        }
    }
}
