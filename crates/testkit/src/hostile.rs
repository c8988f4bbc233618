//! Hostile bytes for every port: noise, cut frames, frames that announce too much, wrong greetings.
//!
//! Invariant: all of it is drawn from a seed, bounded in count and length, and sent over loopback only.

use crate::clock;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use types::crc32c;
use types::rng::Rng;
use types::{ClusterId, Incarnation, OsdId};
use wire::{HEADER_LEN, Hello, Peer};

/// A description, and the bytes.
pub type Case = (String, Vec<u8>);

const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Largest part of an answer that is kept.
const ANSWER_MAX: usize = 64 << 10;

/// End of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The peer closed the connection after these bytes of answer.
    Closed(Vec<u8>),
    /// The connection was still open when patience ended.
    Open(Vec<u8>),
    /// No process accepted the connection.
    Refused,
}

impl End {
    /// Returns the bytes of the answer.
    pub fn answer(&self) -> &[u8] {
        match self {
            End::Closed(bytes) | End::Open(bytes) => bytes,
            End::Refused => &[],
        }
    }
}

/// Sends `bytes` and reads the answer, until its end or until patience ends.
pub fn send(addr: SocketAddr, bytes: &[u8], patience: Duration) -> End {
    let Ok(mut stream) = TcpStream::connect_timeout(&addr, CONNECT_MAX) else { return End::Refused };
    let _ = stream.set_read_timeout(Some(patience));
    let _ = stream.set_write_timeout(Some(patience));
    let mut answer = Vec::new();
    // The write fails if the peer closes early; the read below reports such an end.
    let _ = stream.write_all(bytes);
    let (start, mut buf) = (clock::now(), [0u8; 4096]);
    while start.elapsed() < patience && answer.len() < ANSWER_MAX {
        match stream.read(&mut buf) {
            Ok(0) => return End::Closed(answer),
            Ok(n) => answer.extend_from_slice(&buf[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(_) => return End::Closed(answer),
        }
    }
    End::Open(answer)
}

/// Returns `len` bytes of noise.
pub fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes());
    words.take(len).collect()
}

/// Returns a greeting of a client of `cluster` that speaks versions `version_min` to `version_max`.
pub fn hello(cluster: ClusterId, version_min: u16, version_max: u16) -> Vec<u8> {
    let incarnation = Incarnation(0x7e57);
    let hello = Hello {
        version_min,
        version_max,
        cluster,
        peer: Peer::Client(incarnation),
        incarnation,
        expects: None::<OsdId>,
        features: 0,
        credit_ops: 1024,
        credit_bytes: 64 << 20,
    };
    wire::encode_hello(&hello).to_vec()
}

/// Returns a frame header with a good checksum and arbitrary lengths.
pub fn header(version: u16, kind: u8, head_len: u32, payload_len: u32, records: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; HEADER_LEN];
    bytes[..4].copy_from_slice(b"BSLT");
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    bytes[6] = kind;
    bytes[8..12].copy_from_slice(&head_len.to_le_bytes());
    bytes[12..16].copy_from_slice(&payload_len.to_le_bytes());
    bytes[16..20].copy_from_slice(&records.to_le_bytes());
    seal(&mut bytes);
    bytes
}

/// Sets the checksum of a header.
fn seal(header: &mut [u8]) {
    let crc = crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the cases for an OSD's data port.
pub fn data_port(rng: &mut Rng, cluster: ClusterId) -> Vec<Case> {
    let good = hello(cluster, 1, 1);
    let mut all: Vec<Case> = vec![
        ("noise".into(), noise(rng, 4096)),
        ("64 KiB of noise".into(), noise(rng, 64 << 10)),
        ("zeros".into(), vec![0; 8192]),
        ("an HTTP request".into(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("a greeting with a head of 4 GiB".into(), header(0, 1, u32::MAX, 0, 1)),
        ("a greeting with a payload of 4 GiB".into(), header(0, 1, 64, u32::MAX - 511, 1)),
        ("a batch before the greeting".into(), header(1, 3, 64, 1 << 20, 1)),
        ("a greeting of no cluster".into(), hello(ClusterId([0xee; 16]), 1, 1)),
        ("a greeting of version 900".into(), hello(cluster, 900, 901)),
        ("a greeting of no version".into(), hello(cluster, 5, 2)),
    ];
    for _ in 0..8 {
        let cut = 1 + rng.below(good.len() as u64 - 1) as usize;
        all.push((format!("a greeting cut at {cut}"), good[..cut].to_vec()));
        let mut bent = good.clone();
        let at = rng.below(bent.len() as u64) as usize;
        bent[at] ^= 1 << rng.below(8);
        all.push((format!("a greeting with a bit flipped in byte {at}"), bent));
    }
    // A batch of any kind follows a good greeting.
    let batches = [
        ("noise", noise(rng, 16 << 10)),
        ("a batch with a head of 4 GiB", header(1, 3, u32::MAX, 0, 1)),
        ("a batch with a payload of 1 GiB", header(1, 3, 64, 1 << 30, 1)),
        ("a batch of 4 G records", header(1, 3, 4096, 0, u32::MAX)),
        ("a batch of version 7", header(7, 3, 64, 0, 1)),
        ("a batch of an unknown kind", header(1, 99, 64, 0, 1)),
        ("a second greeting", good.clone()),
    ];
    all.extend(
        batches.into_iter().map(|(what, bytes)| (format!("a greeting, then {what}"), [&good[..], &bytes].concat())),
    );
    for round in 0..16 {
        // A head with a good checksum and noise inside, which the decoder of records must refuse.
        let head = noise(rng, 64 + rng.clone().below(2000) as usize);
        let mut head_frame = header(1, 3, head.len() as u32, 0, 1 + round % 4);
        head_frame[20..24].copy_from_slice(&crc32c(&head).to_le_bytes());
        seal(&mut head_frame);
        all.push((format!("a greeting, then records of noise {round}"), [&good[..], &head_frame, &head].concat()));
    }
    all
}

/// Returns the cases for the port of an NBD server.
pub fn nbd_port(rng: &mut Rng) -> Vec<Case> {
    let flags = 3u32.to_be_bytes();
    let option = |code: u32, len: u32| [&flags[..], b"IHAVEOPT", &code.to_be_bytes(), &len.to_be_bytes()].concat();
    let request = |magic: u32, kind: u16, offset: u64, len: u32| {
        let (magic, kind) = (magic.to_be_bytes(), kind.to_be_bytes());
        [&magic[..], &[0, 0], &kind, &[7; 8], &offset.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    const MAGIC: u32 = 0x2560_9513;
    // EXPORT_NAME with the empty name: then requests may follow.
    let open = option(1, 0);
    let then = |what: &str, bytes: Vec<u8>| (format!("an open export, then {what}"), [&open[..], &bytes].concat());
    let mut all: Vec<Case> = vec![
        ("noise".into(), noise(rng, 4096)),
        ("unknown client flags".into(), [0xff; 4].to_vec()),
        ("an option of 4 GiB".into(), option(7, u32::MAX)),
        ("an unknown option".into(), option(0xdead, 0)),
        ("an option without its magic".into(), [&flags[..], &[0; 16]].concat()),
        ("an export name of 1 MiB".into(), [option(1, 1 << 20), noise(rng, 1 << 20)].concat()),
        ("a go with lengths that do not fit".into(), [option(7, 6), vec![0xff; 6]].concat()),
        then("a request with a wrong magic", request(0x1234_5678, 0, 0, 4096)),
        then("a read of 4 GiB", request(MAGIC, 0, 0, u32::MAX)),
        then("a write of 4 GiB", request(MAGIC, 1, 0, u32::MAX)),
        then("a read beyond the end", request(MAGIC, 0, u64::MAX - 4096, 8192)),
        then("an unknown command", request(MAGIC, 77, 0, 0)),
        then("half a write", [request(MAGIC, 1, 0, 1 << 20), vec![0; 4096]].concat()),
        then("noise", noise(rng, 8192)),
    ];
    for _ in 0..8 {
        let len = 4 + rng.below(200) as usize;
        all.push((format!("{len} bytes of options of noise"), [&flags[..], b"IHAVEOPT", &noise(rng, len)].concat()));
    }
    all
}

/// Returns the cases for a gRPC or HTTP port.
pub fn http_port(rng: &mut Rng) -> Vec<Case> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // Frame header of HTTP/2: 24 bits of length, kind, flags, stream.
    let frame = |len: u32, kind: u8, stream: u32| [&len.to_be_bytes()[1..], &[kind, 0], &stream.to_be_bytes()].concat();
    let two = |what: &str, bytes: Vec<u8>| (format!("HTTP/2, then {what}"), [PREFACE, &bytes].concat());
    vec![
        ("noise".into(), noise(rng, 4096)),
        ("64 KiB of noise".into(), noise(rng, 64 << 10)),
        ("a header of 1 MiB".into(), [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 1 << 20]].concat()),
        ("10000 headers".into(), [b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(10_000)].concat()),
        ("a body of 16 EiB".into(), b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n".to_vec()),
        ("half a request".into(), b"GET /metr".to_vec()),
        two("noise", noise(rng, 4096)),
        two("a frame of 16 MiB", [frame(0x00ff_ffff, 0, 1), vec![0; 4096]].concat()),
        two("headers of noise", [frame(0, 4, 0), frame(200, 1, 1), noise(rng, 200)].concat()),
        two("half a frame", frame(4096, 1, 1)),
    ]
}
