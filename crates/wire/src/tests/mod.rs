//! Tests of the codec: round trips, damaged frames, and golden bytes.

mod formats;
mod golden;
mod mutate;

use crate::samples as make;
use crate::*;
use types::limits::{FRAME_PAYLOAD_MAX, PART_MAX};
use types::rng::Rng;
use types::{IoBuf, IoBufMut};

/// A frame as a receiver holds it.
struct Frame {
    header: [u8; HEADER_LEN],
    head: Vec<u8>,
    payload: Vec<u8>,
}

impl Frame {
    fn of(messages: &[Message]) -> Frame {
        let mut bufs = Vec::new();
        encode_batch(VERSION_MAX, messages, &mut bufs);
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let header = *bytes.first_chunk::<HEADER_LEN>().expect("a frame has a header");
        let parsed = Header::decode(&header).expect("our own header");
        let (head, payload) = bytes[HEADER_LEN..].split_at(parsed.head_len());
        assert_eq!(payload.len(), parsed.payload_len());
        Frame { header, head: head.to_vec(), payload: payload.to_vec() }
    }

    fn decode(&self) -> Result<Vec<Message>, WireError> {
        let header = Header::decode(&self.header)?;
        let mut out = Vec::new();
        decode_batch(&header, &self.head, IoBuf::copy_of(&self.payload), &mut out)?;
        Ok(out)
    }
}

#[test]
fn every_message_survives_a_round_trip() {
    let mut rng = Rng::new(1);
    for round in 0..2000 {
        let mut messages = Vec::new();
        let mut room = FRAME_PAYLOAD_MAX;
        for _ in 0..rng.between(1, 12) {
            let message = make::message(&mut rng);
            if message.payload_len() <= room {
                room -= message.payload_len();
                messages.push(message);
            }
        }
        if messages.is_empty() {
            continue;
        }
        assert_eq!(Frame::of(&messages).decode().as_ref(), Ok(&messages), "round {round}");
    }
}

#[test]
fn the_announced_lengths_of_a_message_are_its_lengths() {
    let mut rng = Rng::new(2);
    for _ in 0..1000 {
        let message = make::message(&mut rng);
        let frame = Frame::of(std::slice::from_ref(&message));
        assert_eq!((frame.head.len(), frame.payload.len()), (message.head_len(), message.payload_len()));
    }
}

#[test]
fn sending_gathers_payloads_without_copying_them() {
    let write = make::write(&mut Rng::new(3), 4096);
    let Message::Request(Request { body: RequestBody::Write { payload, .. }, .. }) = &write else { unreachable!() };
    let at = payload.as_ptr();
    let mut bufs = Vec::new();
    encode_batch(VERSION_MAX, std::slice::from_ref(&write), &mut bufs);
    assert_eq!(bufs.len(), 2);
    assert_eq!(bufs[1].as_ptr(), at);
}

#[test]
fn received_payloads_are_slices_of_the_payload_block_on_sector_borders() {
    let mut rng = Rng::new(4);
    let messages = [make::write(&mut rng, 512), make::write(&mut rng, 4096), make::write(&mut rng, 1536)];
    let frame = Frame::of(&messages);
    let header = Header::decode(&frame.header).unwrap();
    let mut block = IoBufMut::new(header.payload_len());
    block.copy_from_slice(&frame.payload);
    let block = block.freeze();
    let mut out = Vec::new();
    decode_batch(&header, &frame.head, block.clone(), &mut out).unwrap();
    let mut at = 0;
    for message in &out {
        let Message::Request(Request { body: RequestBody::Write { payload, .. }, .. }) = message else {
            unreachable!()
        };
        assert_eq!(payload.as_ptr() as usize, block.as_ptr() as usize + at);
        assert!(payload.is_aligned(512));
        at += payload.len();
    }
    assert_eq!(at, block.len());
}

#[test]
fn a_full_payload_block_fits_and_one_sector_more_does_not() {
    let mut rng = Rng::new(5);
    let half = make::write(&mut rng, PART_MAX as usize);
    assert_eq!(Frame::of(&[half.clone(), half.clone()]).decode().unwrap().len(), 2);
    let more = make::write(&mut rng, 512);
    let result = std::panic::catch_unwind(|| Frame::of(&[half.clone(), half, more]));
    assert!(result.is_err(), "a frame of our own went beyond the limit");
}

#[test]
fn hellos_and_refusals_survive_a_round_trip() {
    let mut rng = Rng::new(6);
    for _ in 0..500 {
        let hello = make::hello(&mut rng);
        let bytes = encode_hello(&hello);
        let (header, head) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
        assert_eq!(decode_hello(&Header::decode(header).unwrap(), head), Ok(hello));
    }
    let refuse = Refuse { code: 4002, reason: "versions 3..4 there, 1..2 here".into() };
    let bytes = encode_refuse(&refuse);
    let (header, head) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    assert_eq!(decode_refuse(&Header::decode(header).unwrap(), head), Ok(refuse));
}

#[test]
fn a_hello_of_a_later_version_is_read_up_to_what_is_known() {
    let hello = make::hello(&mut Rng::new(7));
    let ours = encode_hello(&hello);
    let mut head = ours[HEADER_LEN..].to_vec();
    head.extend_from_slice(b"what version nine adds");
    let header = frame::Header::new(FrameKind::Hello, VERSION_GREETING, 1, 0, &head);
    assert_eq!(decode_hello(&Header::decode(&header.to_bytes()).unwrap(), &head), Ok(hello));
}

#[test]
fn refusal_reason_is_truncated_at_a_character() {
    let refuse = Refuse { code: 1, reason: "ä".repeat(REASON_MAX) };
    let bytes = encode_refuse(&refuse);
    let (header, head) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    let got = decode_refuse(&Header::decode(header).unwrap(), head).unwrap();
    assert_eq!(got.reason, "ä".repeat(REASON_MAX / 2));
}
