//! Order of messages: which leave first, how many, and in which order they arrive.

use super::make;
use super::net::{Net, addr, config, osd};
use types::limits::FRAME_PAYLOAD_MAX;
use types::rng::Rng;
use wire::{Message, RaftKind};

#[test]
fn urgent_messages_overtake_bulk_and_each_keeps_its_order() {
    let (mut net, one, two) = Net::pair();
    let link = net.link(two, 1);
    let heartbeat = |i| make::raft(RaftKind::Heartbeat, i, Vec::new());
    for i in 1..4 {
        net.send(two, link, make::append(i, 4096));
        net.send(two, link, make::vote(i));
        net.send(two, link, make::raft(RaftKind::Append, 10 + i, Vec::new())); // an empty append is an append
        net.send(two, link, heartbeat(i));
        net.send(two, link, make::renewal(i));
    }
    net.send(two, link, Message::LeaseRelease(Vec::new()));
    net.run();
    let got = make::names(&net.messages(one));
    let urgent = |i| [format!("Vote {i}"), format!("Heartbeat {i}"), format!("LeaseRenewal {i}")];
    let mut want: Vec<String> = (1..4).flat_map(urgent).collect();
    want.push("LeaseRelease 0".into());
    want.extend((1..4).flat_map(|i| [format!("Append {}", i - 1), format!("Append {}", 10 + i)]));
    assert_eq!(got, want);
}

#[test]
fn a_turn_sends_one_frame_with_at_most_a_mebibyte_of_payload() {
    let (mut net, one, two) = Net::pair();
    let link = net.link(two, 1);
    for i in 0..7 {
        net.send(two, link, make::append(i + 1, 384 << 10));
    }
    net.send(two, link, make::vote(1));
    let before = net.bus(two).stats();
    net.nodes[two].frames_per_turn_max = 0;
    net.run();
    assert_eq!(net.nodes[two].frames_per_turn_max, 1);
    let after = net.bus(two).stats();
    assert_eq!(after.frames_out - before.frames_out, 4, "two payloads of 384 KiB a frame");
    assert_eq!(after.messages_out - before.messages_out, 8);
    let bytes = after.bytes_out - before.bytes_out;
    assert!(bytes > 7 * (384 << 10) && bytes < 7 * (384 << 10) + 8192, "{bytes}");
    let got = net.messages(one);
    assert_eq!(make::name(&got[0]), "Vote 1");
    assert_eq!(got.len(), 8);
    let there = net.bus(one).stats();
    assert_eq!((there.bytes_in, there.messages_in), (after.bytes_out, after.messages_out));
}

#[test]
fn the_next_frame_waits_for_the_send_before_it() {
    let (mut net, one, two) = Net::pair();
    let link = net.link(two, 1);
    net.hold_sends = true;
    net.send(two, link, make::renewal(1));
    net.run();
    for i in 2..5 {
        net.send(two, link, make::renewal(i));
        net.run();
    }
    assert_eq!(net.messages(one).len(), 1);
    assert!(net.bus(two).queued_bytes(link) > 0);
    net.hold_sends = false;
    net.run();
    assert_eq!(make::names(&net.messages(one)), ["LeaseRenewal 2", "LeaseRenewal 3", "LeaseRenewal 4"]);
    assert_eq!(net.bus(two).stats().frames_out, 2, "what had waited did not leave together");
}

#[test]
fn messages_of_any_size_cross_streams_that_are_cut_anywhere() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(seed);
        let one = net.add(config(osd(1)), Some(addr(1)));
        let two = net.add(config(osd(2)), None);
        net.want(two, 1, addr(1));
        net.run();
        net.clear();
        let (to_one, to_two) = (net.link(two, 1), net.link(one, 2));
        let (mut sent, mut back) = (0, 0);
        let (mut got_one, mut got_two) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            for _ in 0..rng.below(4) {
                sent += 1;
                net.send(two, to_one, make::append(sent, 512 * rng.below(40) as usize + 512));
                back += 1;
                net.send(one, to_two, make::append(back, 512));
            }
            net.hold_sends = rng.chance(1, 2);
            net.run();
            got_one.extend(net.messages(one));
            got_two.extend(net.messages(two));
        }
        net.hold_sends = false;
        net.run();
        got_one.extend(net.messages(one));
        got_two.extend(net.messages(two));
        let want = |n| (0..n).map(|i| format!("Append {i}")).collect::<Vec<_>>();
        assert_eq!(make::names(&got_one), want(sent), "seed {seed}");
        assert_eq!(make::names(&got_two), want(back), "seed {seed}");
        for message in &got_one {
            let Message::Raft(m) = message else { unreachable!() };
            assert!(m.entries.iter().all(|e| e.payload.is_aligned(512)));
        }
    }
}

#[test]
fn received_payloads_are_one_aligned_block() {
    let (mut net, one, two) = Net::pair();
    let link = net.link(two, 1);
    net.send(two, link, make::append(1, 4096));
    net.send(two, link, make::append(2, FRAME_PAYLOAD_MAX / 2));
    net.run();
    let got = net.messages(one);
    let payload = |m: &Message| match m {
        Message::Raft(m) => m.entries[0].payload.clone(),
        other => panic!("{other:?}"),
    };
    let (first, second) = (payload(&got[0]), payload(&got[1]));
    assert!(first.is_aligned(4096));
    assert_eq!(second.as_ptr() as usize, first.as_ptr() as usize + 4096, "payloads were copied apart");
}
