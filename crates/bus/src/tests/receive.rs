//! Frames from a stream of bytes that arrives in pieces.

use super::make;
use crate::rx::Rx;
use types::IoBufMut;
use types::rng::Rng;
use wire::VERSION_MAX;

/// Encodes a frame; each payload is a number of blocks.
fn frame(payloads: &[usize]) -> Vec<u8> {
    let messages: Vec<_> = match payloads {
        [] => vec![make::vote(7)],
        _ => (1..).zip(payloads).map(|(n, blocks)| make::append(n, blocks * 4096)).collect(),
    };
    let mut bufs = Vec::new();
    wire::encode_batch(VERSION_MAX, &messages, &mut bufs);
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}

/// A receiver and the stream that it reads.
struct Line {
    rx: Rx,
    asked: (Vec<IoBufMut>, usize),
    stream: Vec<u8>,
    at: usize,
    receives: usize,
    /// Header, head block and payload block of each frame.
    frames: Vec<Vec<u8>>,
}

impl Line {
    fn new(stream: Vec<u8>) -> Line {
        let mut rx = Rx::default();
        let asked = rx.next(false);
        Line { rx, asked, stream, at: 0, receives: 0, frames: Vec::new() }
    }

    /// Performs the receive in flight with the bytes before `arrived`, if they are enough for it.
    fn receive(&mut self, arrived: usize) -> bool {
        let (bufs, min) = &mut self.asked;
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        let len = room.min(arrived - self.at);
        if len < *min {
            return false;
        }
        let mut from = &self.stream[self.at..self.at + len];
        for buf in bufs.iter_mut() {
            let n = buf.len().min(from.len());
            buf[..n].copy_from_slice(&from[..n]);
            from = &from[n..];
        }
        self.at += len;
        self.receives += 1;
        self.rx.received(std::mem::take(bufs), len);
        while let Some(frame) = self.rx.frame(false).expect("a valid frame") {
            let header = (frame.header.head_len(), frame.header.payload_len());
            assert_eq!(header, (frame.head.len(), frame.payload.len()));
            assert!(frame.payload.is_empty() || frame.payload.is_aligned(4096), "a log write needs it aligned");
            let start = self.frames.iter().map(Vec::len).sum::<usize>();
            let mut bytes = self.stream[start..start + wire::HEADER_LEN].to_vec();
            bytes.extend_from_slice(&frame.head);
            bytes.extend_from_slice(&frame.payload);
            self.frames.push(bytes);
        }
        self.asked = self.rx.next(false);
        true
    }
}

#[test]
fn frames_come_whole_however_their_bytes_arrive() {
    let mut rng = Rng::new(3);
    for _ in 0..300 {
        let sizes: Vec<Vec<usize>> = (0..rng.between(1, 12))
            .map(|_| match rng.below(8) {
                0..=2 => vec![],
                3..=5 => vec![1; rng.between(1, 6) as usize],
                6 => vec![rng.between(1, 20) as usize],
                _ => vec![rng.between(1, 128) as usize; 2],
            })
            .collect();
        let sent: Vec<Vec<u8>> = sizes.iter().map(|payloads| frame(payloads)).collect();
        let mut line = Line::new(sent.concat());
        let mut arrived = 0;
        while arrived < line.stream.len() {
            let most = [1, 70, 5_000, 40_000, 2_000_000][rng.below(5) as usize];
            arrived = (arrived + rng.between(1, most) as usize).min(line.stream.len());
            while line.receive(arrived) {}
        }
        assert!(line.frames == sent, "{} of {} frames: {sizes:?}", line.frames.len(), sent.len());
    }
}

#[test]
fn frames_that_are_there_cost_one_receive_each_at_most() {
    let one_by_one = |sizes: &[usize]| {
        let sent = [frame(sizes), frame(sizes), frame(sizes)];
        let mut line = Line::new(sent.concat());
        let mut arrived = 0;
        for (n, frame) in (1..).zip(&sent) {
            arrived += frame.len();
            while line.receive(arrived) {}
            assert_eq!(line.frames.len(), n);
        }
        line.receives
    };
    assert_eq!(one_by_one(&[]), 3, "a vote");
    assert_eq!(one_by_one(&[1; 6]), 3, "six small writes");
    assert_eq!(one_by_one(&[64, 64]), 6, "a large one: its header, then its blocks");
    let mut line = Line::new((0..50).flat_map(|_| frame(&[])).collect());
    while line.receive(line.stream.len()) {}
    assert_eq!((line.frames.len(), line.receives), (50, 1), "all of them fit what one receive takes along");
}

#[test]
fn block_counts_as_copied_when_it_came_behind_its_header() {
    let copied = |frame: Vec<u8>, arrivals: &[usize]| {
        let mut line = Line::new(frame);
        for arrived in arrivals.iter().copied().chain([line.stream.len()]) {
            while line.receive(arrived) {}
        }
        assert_eq!(line.frames.len(), 1);
        line.rx.take_copied() as usize
    };
    let small = frame(&[1]);
    let blocks = small.len() - wire::HEADER_LEN;
    assert_eq!(copied(small.clone(), &[]), blocks);
    assert_eq!(copied(small, &[wire::HEADER_LEN]), 0, "the header came alone");
    let ahead = 32 << 10;
    assert_eq!(copied(frame(&[64]), &[]), ahead, "the rest goes to its place");
}

#[test]
fn a_receive_from_a_stranger_takes_no_more_than_its_greeting() {
    let room = |bufs: &[IoBufMut]| bufs.iter().map(|buf| buf.len()).sum::<usize>();
    let mut rx = Rx::default();
    let (mut bufs, min) = rx.next(true);
    assert_eq!((room(&bufs), min), (wire::HEADER_LEN, wire::HEADER_LEN));
    let refuse = wire::encode_refuse(&wire::Refuse { code: 1, reason: "later".to_owned() });
    bufs[0].copy_from_slice(&refuse[..min]);
    rx.received(bufs, min);
    assert!(rx.frame(true).expect("a header").is_none());
    let (bufs, min) = rx.next(true);
    assert_eq!((min, room(&bufs)), (refuse.len() - wire::HEADER_LEN, refuse.len()), "its block and one more header");
}
