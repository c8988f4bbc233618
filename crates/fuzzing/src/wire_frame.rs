//! Frames of the data plane, each a whole frame as it is received over a connection: hello, refusal, or batch.
//!
//! A batch carries requests, replies, raft messages, lease renewals and their acknowledgements, lease releases, and
//! parts of streams. Input: header, head block, payload block. Properties: an accepted frame has exactly one encoding,
//! and allocations are bounded by the bytes of the frame.

use crate::{Verdict, meter};
use types::rng::Rng;
use types::{IoBuf, crc32c};
use wire::{FrameKind, HEADER_LEN, Header, Message, VERSION_MAX, WireError, samples};

/// Allocation factor. A message is a few hundred bytes in memory and may be sixteen on the wire; a vector may double.
const FACTOR: u64 = 96;
/// Fixed allowance: the shared copy of a head block for all command bytes, and an error's text.
const EXTRA: u64 = 32 << 10;
/// Length of a record header: four bytes, then the length of the record in four bytes.
const RECORD: usize = 8;

/// Decodes one frame.
pub fn run(data: &[u8]) -> Verdict {
    let Some((first, rest)) = data.split_first_chunk::<HEADER_LEN>() else { return Verdict::Refused };
    let Ok(header) = Header::decode(first) else { return Verdict::Refused };
    let Some((head, payload)) = rest.split_at_checked(header.head_len()) else { return Verdict::Refused };
    match header.kind() {
        FrameKind::Hello => hello(&header, head),
        FrameKind::Refuse => refuse(&header, head),
        FrameKind::Batch => batch(&header, head, payload),
    }
}

fn batch(header: &Header, head: &[u8], payload: &[u8]) -> Verdict {
    let payload = IoBuf::copy_of(payload);
    let mut out = vec![Message::LeaseRelease(Vec::new())];
    let result =
        meter::bounded(head.len(), FACTOR, EXTRA, || wire::decode_batch(header, head, payload.clone(), &mut out));
    if result.is_err() {
        assert_eq!(out.len(), 1, "a batch is taken whole or not at all");
        return Verdict::Refused;
    }
    let messages = out.split_off(1);
    assert_eq!(messages.len(), header.record_count());
    let mut bufs = Vec::new();
    wire::encode_batch(header.version(), &messages, &mut bufs);
    let (first, payloads) = bufs.split_first().expect("a frame has a head");
    assert!(first[HEADER_LEN..] == *head, "a second spelling of {messages:?}");
    assert!(Header::decode(first.first_chunk().expect("a header")) == Ok(*header));
    let again: Vec<u8> = payloads.iter().flat_map(|b| b.iter().copied()).collect();
    assert!(again == payload[..], "the payload block is cut otherwise");
    Verdict::Taken
}

fn hello(header: &Header, head: &[u8]) -> Verdict {
    let result = meter::bounded(head.len(), 1, 4096, || wire::decode_hello(header, head));
    if let Ok(hello) = &result {
        // A later version may append fields, so only the value is compared.
        assert!(decode(&wire::encode_hello(hello), wire::decode_hello) == Ok(hello.clone()));
    }
    Verdict::of(&result)
}

fn refuse(header: &Header, head: &[u8]) -> Verdict {
    let result = meter::bounded(head.len(), 2, 4096, || wire::decode_refuse(header, head));
    if let Ok(refuse) = &result {
        assert!(refuse.reason.len() <= wire::REASON_MAX);
        assert!(decode(&wire::encode_refuse(refuse), wire::decode_refuse) == Ok(refuse.clone()));
    }
    Verdict::of(&result)
}

fn decode<T>(frame: &[u8], with: impl Fn(&Header, &[u8]) -> Result<T, WireError>) -> Result<T, WireError> {
    let (first, head) = frame.split_first_chunk().expect("a header");
    with(&Header::decode(first)?, head)
}

/// Returns one frame: a hello, a refusal, or a batch of one to three messages.
pub fn seed(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        0 => wire::encode_hello(&samples::hello(rng)).to_vec(),
        1 => wire::encode_refuse(&wire::Refuse { code: rng.next_u64() as u32, reason: "clüster".into() }).to_vec(),
        _ => {
            let mut messages: Vec<Message> = (0..rng.between(1, 3)).map(|_| samples::message(rng)).collect();
            messages.retain(|m| m.payload_len() <= 8 << 10);
            if messages.is_empty() {
                messages.push(Message::LeaseRelease(Vec::new()));
            }
            frame(&messages)
        }
    }
}

/// Returns the bytes of one batch frame.
pub fn frame(messages: &[Message]) -> Vec<u8> {
    let mut bufs = Vec::new();
    wire::encode_batch(VERSION_MAX, messages, &mut bufs);
    bufs.iter().flat_map(|b| b.iter().copied()).collect()
}

/// Corrects lengths, counts and checksums.
#[allow(clippy::ptr_arg)] // one type for all targets, and some change the length
pub fn fix(data: &mut Vec<u8>) {
    if data.len() <= HEADER_LEN {
        return;
    }
    let rest = data.len() - HEADER_LEN;
    data[..4].copy_from_slice(b"BSLT");
    data[7] = 0;
    data[24..60].fill(0);
    let announced = u32::from_le_bytes([data[12], data[13], data[14], data[15]]) as usize / 512 * 512;
    let payload = match data[6] {
        3 if announced < rest => announced,
        _ => 0,
    };
    let head_end = data.len() - payload;
    let count = if data[6] == 3 { walk(&mut data[HEADER_LEN..head_end]) } else { 1 };
    data[8..12].copy_from_slice(&((rest - payload) as u32).to_le_bytes());
    data[12..16].copy_from_slice(&(payload as u32).to_le_bytes());
    data[16..20].copy_from_slice(&count.to_le_bytes());
    let head_crc = crc32c(&data[HEADER_LEN..head_end]);
    data[20..24].copy_from_slice(&head_crc.to_le_bytes());
    let crc = crc32c(&data[..60]);
    data[60..64].copy_from_slice(&crc.to_le_bytes());
}

/// Counts the records of a head block and cuts the last one to the bytes that are left.
fn walk(head: &mut [u8]) -> u32 {
    let (mut at, mut count) = (0, 0);
    while at + RECORD <= head.len() {
        let len = u32::from_le_bytes([head[at + 4], head[at + 5], head[at + 6], head[at + 7]]) as usize;
        let left = head.len() - at - RECORD;
        if len > left {
            head[at + 4..at + 8].copy_from_slice(&(left as u32).to_le_bytes());
        }
        at += RECORD + len.min(left);
        count += 1;
    }
    count
}
