//! Hostile bytes of a peer: they end its own connection and have no other effect.

use super::make;
use super::net::{Net, addr, client, config, osd};
use crate::BusEvent;
use std::collections::VecDeque;
use std::time::Duration;
use types::rng::Rng;
use types::{OsdId, crc32c};
use wire::{HEADER_LEN, Header, Message, Refuse};

/// Splits a run of bytes into frames.
pub fn frames(bytes: &VecDeque<u8>) -> Vec<(Header, Vec<u8>)> {
    let bytes: Vec<u8> = bytes.iter().copied().collect();
    let mut rest = &bytes[..];
    let mut all = Vec::new();
    while let Some((header, tail)) = rest.split_first_chunk::<HEADER_LEN>() {
        let header = Header::decode(header).expect("a good header");
        all.push((header, tail[..header.head_len()].to_vec()));
        rest = &tail[header.head_len() + header.payload_len()..];
    }
    all
}

/// Returns the one frame that was sent to a node without a bus: a refusal.
pub fn refusal(net: &Net, end: usize) -> Refuse {
    let frames = frames(&net.ends[end].arrived);
    assert_eq!(frames.len(), 1, "one frame");
    wire::decode_refuse(&frames[0].0, &frames[0].1).expect("a refusal")
}

/// Makes an OSD, and a greeted client that the test plays by hand.
fn greeted() -> (Net, usize, usize) {
    let mut net = Net::new(3);
    let server = net.add(config(osd(1)), Some(addr(1)));
    let end = net.intrude(addr(1));
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(client(8)), Some(OsdId(1)))));
    net.run();
    assert!(matches!(net.said(server)[..], [BusEvent::Up { .. }]));
    (net, server, end)
}

fn batch(messages: &[Message]) -> Vec<u8> {
    let mut bufs = Vec::new();
    wire::encode_batch(1, messages, &mut bufs);
    bufs.iter().flat_map(|b| b.iter().copied()).collect()
}

/// Asserts that the link was closed for a reason with these words.
fn is_closed(net: &mut Net, server: usize, end: usize, words: &str) {
    net.run();
    assert!(net.ends[end ^ 1].closed, "still open");
    let said = net.said(server);
    let Some(BusEvent::Down { reason, .. }) = said.last() else { panic!("{said:?}") };
    assert!(reason.contains(words), "{reason}");
    assert_eq!(net.bus(server).conns.len(), 0);
    assert_eq!(net.bus(server).next_deadline(), types::Time::NEVER, "a timer outlived its connection");
}

#[test]
fn garbage_instead_of_a_hello_closes_that_connection_alone() {
    let (mut net, server, end) = greeted();
    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nUser-Agent: something-long\r\n\r\n"[..], &[0; 64], &[0xff; 64]]
    {
        let stranger = net.intrude(addr(1));
        net.write(stranger, garbage);
        net.run();
        assert!(net.ends[stranger ^ 1].closed);
    }
    assert_eq!(net.said(server), []);
    assert!(!net.ends[end ^ 1].closed);
    assert_eq!(net.bus(server).stats().bad_peers, 3);
}

#[test]
fn a_stranger_that_says_nothing_is_closed_after_the_hello_deadline() {
    let mut net = Net::new(1);
    let server = net.add(config(osd(1)), Some(addr(1)));
    let silent = net.intrude(addr(1));
    let slow = net.intrude(addr(1));
    net.write(slow, &wire::encode_hello(&crate::greet::hello(&config(client(8)), None))[..70]);
    net.pass(Duration::from_millis(1999));
    assert!(!net.ends[silent ^ 1].closed && !net.ends[slow ^ 1].closed);
    net.pass(Duration::from_millis(2));
    assert!(net.ends[silent ^ 1].closed && net.ends[slow ^ 1].closed);
    assert_eq!(net.bus(server).conns.len(), 0);
}

#[test]
fn a_full_house_keeps_its_links_and_drops_the_oldest_stranger() {
    let mut net = Net::new(1);
    let mut small = config(osd(1));
    small.tuning.max_links = 2;
    let server = net.add(small, Some(addr(1)));
    let user = net.add(config(client(5)), None);
    net.want(user, 1, addr(1));
    net.run();
    let first = net.intrude(addr(1));
    net.run();
    let second = net.intrude(addr(1));
    net.run();
    assert!(net.ends[first ^ 1].closed && !net.ends[second ^ 1].closed);
    net.write(second, &wire::encode_hello(&crate::greet::hello(&config(client(6)), None)));
    net.run();
    let third = net.intrude(addr(1));
    net.run();
    assert!(net.ends[third ^ 1].closed, "a third link in a house of two");
    assert!(!net.ends[second ^ 1].closed);
    assert!(net.bus(user).link_to(OsdId(1)).is_some());
    assert_eq!(net.bus(server).conns.len(), 2);
}

#[test]
fn a_frame_with_a_bad_head_closes_the_link() {
    let (mut net, server, end) = greeted();
    let mut bytes = batch(&[Message::Request(make::write(1, 4096))]);
    bytes[HEADER_LEN + 9] ^= 1;
    net.write(end, &bytes);
    is_closed(&mut net, server, end, "the head block fails its checksum");
}

#[test]
fn an_oversized_frame_closes_the_link_before_anything_is_allocated() {
    let (mut net, server, end) = greeted();
    let mut bytes = batch(&[Message::Request(make::write(1, 4096))]);
    bytes[12..16].copy_from_slice(&(1u32 << 30).to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    net.write(end, &bytes);
    is_closed(&mut net, server, end, "out of bounds");
}

#[test]
fn a_second_hello_on_a_link_closes_it() {
    let (mut net, server, end) = greeted();
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(client(8)), None)));
    is_closed(&mut net, server, end, "broken protocol");
}

#[test]
fn a_client_that_speaks_raft_is_closed() {
    let (mut net, server, end) = greeted();
    net.write(end, &batch(&[Message::Request(make::write(1, 512)), make::vote(1)]));
    is_closed(&mut net, server, end, "may not send");
}

#[test]
fn a_batch_before_the_hello_closes_the_connection() {
    let mut net = Net::new(1);
    let server = net.add(config(osd(1)), Some(addr(1)));
    let end = net.intrude(addr(1));
    net.write(end, &batch(&[make::vote(1)]));
    net.run();
    assert!(net.ends[end ^ 1].closed);
    assert_eq!(net.said(server), []);
}

#[test]
fn a_frame_in_a_version_that_was_not_agreed_on_closes_the_link() {
    let (mut net, server, end) = greeted();
    let mut bufs = Vec::new();
    wire::encode_batch(2, &[Message::Request(make::read(1, 512))], &mut bufs);
    net.write(end, &bufs[0]);
    is_closed(&mut net, server, end, "version 2");
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_frame_takes_only_its_link_along() {
    let (mut net, server, end) = greeted();
    let bytes = batch(&[Message::Request(make::write(1, 4096))]);
    net.write(end, &bytes[..bytes.len() - 1]);
    net.run();
    assert_eq!(net.said(server), []);
    net.close(end);
    is_closed(&mut net, server, end, "closed by the other side");
}

#[test]
fn damaged_streams_end_in_messages_or_in_the_end_of_the_link() {
    let mut rng = Rng::new(77);
    let (mut closed, mut alive) = (0, 0);
    for _ in 0..400 {
        let (mut net, server, end) = greeted();
        let mut bytes = Vec::new();
        for id in 0..3 {
            bytes.extend(batch(&[Message::Request(make::write(id, 512)), Message::Request(make::read(id + 10, 512))]));
        }
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        net.write(end, &bytes);
        net.run();
        let got = net.said(server).iter().filter(|e| matches!(e, BusEvent::Message { .. })).count();
        match net.ends[end ^ 1].closed {
            true => closed += 1,
            false => {
                // The payload's own checksums find damage in a payload; otherwise the rest of the frame is awaited.
                assert_eq!(got, 6);
                alive += 1;
            }
        }
    }
    assert!(closed > 50 && alive > 50, "{closed} closed, {alive} alive: a blunt test");
}
