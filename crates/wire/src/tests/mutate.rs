//! Decoding of damaged frames. A peer's bytes may be anything: decoding returns messages or an error, and a frame
//! that it accepts is spelled as this program would spell it.

use super::{Frame, make};
use crate::*;
use types::rng::Rng;
use types::{IoBuf, crc32c};

const CASES: u64 = 100_000;

/// Damages `bytes` at random.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.between(1, 3) {
        let at = if bytes.is_empty() { 0 } else { rng.below(bytes.len() as u64) as usize };
        match rng.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            _ if bytes.is_empty() => {}
            2 => bytes[at] ^= 1 << rng.below(8),
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            4 => bytes[at..].iter_mut().take(8).for_each(|b| *b = 0xff),
            _ => bytes[at..].iter_mut().take(4).for_each(|b| *b = rng.next_u64() as u8),
        }
    }
}

/// Recomputes the checksums, so that damage reaches the records behind them.
fn reseal(frame: &mut Frame) {
    let head_len = frame.head.len() as u32;
    frame.header[8..12].copy_from_slice(&head_len.to_le_bytes());
    frame.header[12..16].copy_from_slice(&(frame.payload.len() as u32).to_le_bytes());
    frame.header[20..24].copy_from_slice(&crc32c(&frame.head).to_le_bytes());
    let crc = crc32c(&frame.header[..60]);
    frame.header[60..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn damaged_records_are_an_error_or_another_frame_that_we_could_have_sent() {
    let mut rng = Rng::new(11);
    let (mut accepted, mut refused) = (0, 0);
    while accepted + refused < CASES {
        let messages: Vec<_> = (0..rng.between(1, 3)).map(|_| make::message(&mut rng)).collect();
        if messages.iter().map(Message::payload_len).sum::<usize>() > 32 << 10 {
            continue;
        }
        let whole = Frame::of(&messages);
        for _ in 0..50 {
            let mut frame = Frame { header: whole.header, head: whole.head.clone(), payload: whole.payload.clone() };
            damage(&mut rng, &mut frame.head);
            if rng.chance(1, 8) {
                damage(&mut rng, &mut frame.payload);
            }
            if rng.chance(1, 8) {
                frame.header[16..20].copy_from_slice(&(rng.below(6) as u32).to_le_bytes());
            }
            reseal(&mut frame);
            match frame.decode() {
                Ok(messages) => {
                    let again = Frame::of(&messages);
                    assert!(again.head == frame.head && again.header == frame.header, "two spellings of {messages:?}");
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(accepted > CASES / 100 && refused > CASES / 10, "{accepted} accepted, {refused} refused: a blunt test");
}

#[test]
fn a_flipped_bit_anywhere_before_the_payload_is_found() {
    let mut rng = Rng::new(12);
    for _ in 0..30 {
        let mut frame = Frame::of(&[make::message(&mut rng), make::write(&mut rng, 512)]);
        for bit in 0..(HEADER_LEN + frame.head.len()) * 8 {
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            let flip = |frame: &mut Frame| match at.checked_sub(HEADER_LEN) {
                None => frame.header[at] ^= mask,
                Some(at) => frame.head[at] ^= mask,
            };
            flip(&mut frame);
            assert!(frame.decode().is_err(), "bit {bit} of a frame was flipped");
            flip(&mut frame);
        }
    }
}

#[test]
fn garbage_headers_announce_nothing_beyond_the_limits() {
    let mut rng = Rng::new(13);
    let good = Frame::of(&[make::write(&mut rng, 512)]).header;
    let mut accepted = 0;
    for case in 0..CASES {
        let mut bytes = good;
        for _ in 0..rng.between(1, 4) {
            bytes[rng.between(4, 59) as usize] = rng.next_u64() as u8;
        }
        if case % 2 == 0 {
            bytes[24..60].fill(0);
            bytes[4..8].copy_from_slice(&good[4..8]);
        }
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::decode(&bytes) {
            accepted += 1;
            assert!(HEADER_LEN + header.head_len() + header.payload_len() <= types::limits::FRAME_LEN_MAX);
            assert!(header.record_count() <= types::limits::FRAME_RECORDS_MAX && header.head_len() > 0);
        }
    }
    assert!(accepted > 100, "{accepted} headers accepted: a blunt test");
}

#[test]
fn damaged_greetings_are_an_error_or_a_greeting() {
    let mut rng = Rng::new(14);
    for case in 0..CASES / 5 {
        let refuse = Refuse { code: rng.next_u64() as u32, reason: "clüster".into() };
        let hello = case % 2 == 0;
        let bytes = if hello { encode_hello(&make::hello(&mut rng)) } else { encode_refuse(&refuse) };
        let mut head = bytes[HEADER_LEN..].to_vec();
        damage(&mut rng, &mut head);
        if head.is_empty() {
            continue;
        }
        let kind = if hello { FrameKind::Hello } else { FrameKind::Refuse };
        let header = frame::Header::new(kind, VERSION_GREETING, 1, 0, &head);
        match hello {
            true => drop(decode_hello(&header, &head)),
            false => {
                if let Ok(got) = decode_refuse(&header, &head) {
                    assert!(got.reason.len() <= REASON_MAX);
                }
            }
        }
    }
}

#[test]
fn a_count_without_its_bytes_allocates_nothing() {
    // A lease release of 2^32 - 1 PGs in sixteen bytes: 32 GiB if it were believed.
    let mut frame = Frame::of(&[Message::LeaseRelease(Vec::new())]);
    frame.head[8..12].fill(0xff);
    reseal(&mut frame);
    assert_eq!(frame.decode(), Err(WireError::Truncated("lease release")));
}

#[test]
fn a_batch_is_taken_whole_or_not_at_all() {
    let mut frame = Frame::of(&[Message::LeaseRelease(Vec::new()), Message::LeaseRelease(Vec::new())]);
    frame.head[16] = 200;
    reseal(&mut frame);
    let header = Header::decode(&frame.header).unwrap();
    let mut out = vec![Message::LeaseRelease(Vec::new())];
    assert_eq!(decode_batch(&header, &frame.head, IoBuf::EMPTY, &mut out), Err(WireError::RecordKind(200)));
    assert_eq!(out.len(), 1);
}

#[test]
fn unknown_kinds_and_versions_are_named() {
    let good = Frame::of(&[Message::LeaseRelease(Vec::new())]);
    let mut strange = Frame { header: good.header, head: good.head.clone(), payload: Vec::new() };
    strange.header[6] = 9;
    reseal(&mut strange);
    assert_eq!(strange.decode(), Err(WireError::FrameKind(9)));
    let mut greeting = Frame { header: good.header, head: good.head, payload: Vec::new() };
    greeting.header[4] = 0;
    reseal(&mut greeting);
    assert_eq!(greeting.decode(), Err(WireError::Version(0)));
    let http = b"GET / HTTP/1.1\r\nHost: basalt.invalid\r\nUser-Agent: a  browser\r\n\r\n";
    assert_eq!(Header::decode(http), Err(WireError::Magic(*b"GET ")));
}

/// Decodes an answer of a block repair with the given fields, over as many checksums and bytes as they ask for.
fn mend_of(body: u8, (block, count): (u32, u32), (crcs, payload_len): (usize, u32)) -> Result<Vec<Message>, WireError> {
    let mut rng = Rng::new(13);
    let ask = loop {
        let msg = make::mend(&mut rng);
        if matches!(&msg.body, MendBody::Ask { older, .. } if older.is_empty()) {
            break msg;
        }
    };
    let mut frame = Frame::of(&[Message::Mend(ask)]);
    frame.head.extend(std::iter::repeat_n(7, 4 * crcs));
    let len = frame.head.len() as u32 - 8;
    // Behind the record's header of 8 bytes, which holds its length at 4.
    for (at, value) in [(4, len), (8 + 60, block), (8 + 64, count), (8 + 68, payload_len)] {
        frame.head[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    frame.head[8 + 72] = body;
    frame.payload = vec![1; payload_len as usize];
    reseal(&mut frame);
    frame.decode()
}

#[test]
fn run_of_a_block_repair_ends_in_its_chunk_and_has_one_checksum_a_block() {
    use crate::record::mend_body::{ASK, BLOCKS, DAMAGED};
    let no_bytes = (0, 0);
    for (body, run, bytes) in [
        (ASK, (0, 128), no_bytes),
        (ASK, (3968, 128), no_bytes),
        (DAMAGED, (4095, 1), no_bytes),
        (BLOCKS, (0, 128), no_bytes),
        (BLOCKS, (4094, 2), (2, 8192)),
        (BLOCKS, (0, 128), (128, 512 << 10)),
    ] {
        let decoded = mend_of(body, run, bytes).unwrap_or_else(|e| panic!("body {body}, {run:?}, {bytes:?}: {e}"));
        let [Message::Mend(msg)] = &decoded[..] else { panic!("{decoded:?}") };
        assert_eq!((u32::from(msg.block), u32::from(msg.count)), run);
    }
    for (body, run, bytes) in [
        (ASK, (0, 0), no_bytes),
        (ASK, (0, 129), no_bytes),
        (ASK, (4095, 2), no_bytes),
        (ASK, (4096, 1), no_bytes),
        (ASK, (u32::MAX, 1), no_bytes),
        (ASK, (0, u32::MAX), no_bytes),
        (ASK, (0, 2), (2, 8192)),
        (DAMAGED, (0, 2), (2, 0)),
        (BLOCKS, (0, 2), (1, 4096)),
        (BLOCKS, (0, 2), (1, 8192)),
        (BLOCKS, (0, 2), (2, 4096)),
        (BLOCKS, (0, 2), (3, 8192)),
        (BLOCKS, (0, 2), (2, 0)),
        (BLOCKS, (0, 129), (129, 516 << 10)),
    ] {
        assert!(mend_of(body, run, bytes).is_err(), "body {body}, {run:?}, {bytes:?}");
    }
}
