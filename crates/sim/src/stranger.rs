//! A stranger: a process that speaks to an OSD's port and is no part of the cluster.
//!
//! Input: the nonsense to speak. Output: a connection, its bytes, and silence. Invariant: it never sends a valid
//! greeting of this cluster.

use env::{ConnId, Env, Event, NetAddr, Op, Token};
use simenv::{NodeId, SimEnv, World};
use std::net::SocketAddr;
use types::rng::Rng;
use types::{IoBuf, IoBufMut, Time};

/// Number of scripts that a stranger can follow.
pub const SCRIPTS: u64 = 4;
const TOKEN: Token = Token::new(0, 0, 0);
/// Number of connections that a stranger keeps open, silent or with half a message.
const CONNS_MAX: usize = 16;

/// The machine of all strangers.
pub struct Stranger {
    pub node: NodeId,
    env: SimEnv,
    /// Bytes for the connections that are being made, in order of their dials.
    to_say: Vec<Vec<u8>>,
    conns: Vec<ConnId>,
    ops: Vec<Op>,
    events: Vec<Event>,
}

impl Stranger {
    pub fn new(world: &World) -> Stranger {
        let node = world.add_node("stranger");
        let (env, to_say) = (world.env(node), Vec::new());
        Stranger { node, env, to_say, conns: Vec::new(), ops: Vec::new(), events: Vec::new() }
    }

    /// Dials, and sends its bytes when it is connected.
    pub fn speak(&mut self, addr: SocketAddr, script: u64, seed: u64) {
        self.to_say.push(words(script, &mut Rng::new(seed)));
        let key = u32::try_from(self.to_say.len() - 1).expect("few dials");
        self.ops.push(Op::Connect { token: Token::new(0, 0, key), addr: NetAddr::Tcp(addr) });
        self.turn();
    }

    /// Handles the events that came, and goes on.
    pub fn turn(&mut self) {
        loop {
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                self.handle(event);
            }
            self.env.turn(&mut self.ops, &mut self.events, Time::NEVER).expect("the simulated world does not fail");
            if self.events.is_empty() {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected { token, result: Ok(conn) } => {
                let words = std::mem::take(&mut self.to_say[token.key as usize]);
                if !words.is_empty() {
                    self.ops.push(Op::Send { token: TOKEN, conn, bufs: vec![IoBuf::copy_of(&words)], quiet: false });
                }
                self.ops.push(Op::Recv { token: TOKEN, conn, bufs: vec![IoBufMut::new(4096)], min: 1 });
                self.conns.push(conn);
                if self.conns.len() > CONNS_MAX {
                    self.ops.push(Op::Close { conn: self.conns.remove(0) });
                }
            }
            Event::Received { conn, bufs, result: Ok(_), .. } => {
                self.ops.push(Op::Recv { token: TOKEN, conn, bufs, min: 1 });
            }
            _ => {}
        }
    }
}

/// Returns silence, noise, a frame that claims to be larger than any may be, or the beginning of one.
fn words(script: u64, rng: &mut Rng) -> Vec<u8> {
    let noise = |rng: &mut Rng, n: u64| (0..n).map(|_| rng.next_u64() as u8).collect::<Vec<u8>>();
    match script {
        0 => Vec::new(),
        1 => {
            let n = rng.between(1, 20_000);
            noise(rng, n)
        }
        2 => frame_that_claims(u32::MAX, u32::MAX, rng.chance(1, 2)),
        _ => {
            let mut frame = frame_that_claims(0, 1 << 20, true);
            frame.truncate(rng.between(1, frame.len() as u64) as usize);
            frame
        }
    }
}

/// Returns a frame header with a good CRC that announces these lengths; its magic is right or wrong.
fn frame_that_claims(head_len: u32, payload_len: u32, known: bool) -> Vec<u8> {
    let mut bytes = vec![0; wire::HEADER_LEN];
    bytes[..4].copy_from_slice(if known { b"BSLT" } else { b"TLSB" });
    // Version 1, message type of a batch.
    bytes[4..8].copy_from_slice(&[1, 0, 3, 0]);
    bytes[8..12].copy_from_slice(&head_len.to_le_bytes());
    bytes[12..16].copy_from_slice(&payload_len.to_le_bytes());
    let end = bytes.len() - 4;
    let crc = types::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    bytes
}
