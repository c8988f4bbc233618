//! Links that break, come back, move and are replaced.

use super::make;
use super::net::{Net, addr, client, config, osd};
use crate::{BusEvent, LinkId};
use std::time::Duration;
use types::{Incarnation, OsdId, Time};
use wire::Peer;

fn downs(net: &mut Net, node: usize) -> Vec<(LinkId, String)> {
    let of = |event| match event {
        BusEvent::Down { link, reason, .. } => Some((link, reason)),
        _ => None,
    };
    net.said(node).into_iter().filter_map(of).collect()
}

#[test]
fn a_lost_link_is_told_and_dialled_again_under_another_id() {
    let (mut net, one, two) = Net::pair();
    let (old_one, old_two) = (net.link(one, 2), net.link(two, 1));
    let end = net.end_of(two);
    net.cut(end);
    net.run();
    assert_eq!(downs(&mut net, one), [(old_one, "closed by the other side".into())]);
    assert_eq!(downs(&mut net, two), [(old_two, "closed by the other side".into())]);
    assert!(net.bus(two).link_to(OsdId(1)).is_none());
    assert!(!net.send(two, old_two, make::renewal(1)), "a dead link took a message");
    net.pass(Duration::from_millis(20));
    let (new_one, new_two) = (net.link(one, 2), net.link(two, 1));
    assert!(new_one > old_one && new_two > old_two);
    assert!(net.send(two, new_two, make::renewal(1)));
    net.clear();
    net.run();
    assert_eq!(make::names(&net.messages(one)), ["LeaseRenewal 1"]);
}

#[test]
fn waits_between_dials_double_to_one_second_with_jitter() {
    let mut net = Net::new(1);
    let two = net.add(config(osd(2)), None);
    net.want(two, 1, addr(1)); // no node listens there
    net.pass(Duration::from_secs(20));
    let at: Vec<Time> = net.dials.iter().map(|(at, _)| *at).collect();
    let waits: Vec<u64> = at.windows(2).map(|w| w[1].since(w[0]).as_micros() as u64).collect();
    for (i, wait) in waits.iter().enumerate() {
        let base = (20_000u64 << i.min(10)).min(1_000_000);
        assert!((base / 2..=base).contains(wait), "wait {i} is {wait} µs, not in {}..={base}", base / 2);
    }
    assert!(waits.len() >= 20 && waits[8..].windows(2).any(|w| w[0] != w[1]), "{waits:?}");
    let said = net.said(two);
    assert_eq!(said.len(), at.len(), "every failed dial is told");
    assert!(
        matches!(&said[0], BusEvent::Unreachable { osd: OsdId(1), reason } if reason.contains("127.0.0.1:1: refused")),
        "{:?}",
        said[0]
    );
}

#[test]
fn link_that_came_up_resets_the_redial_wait() {
    let mut net = Net::new(1);
    let two = net.add(config(osd(2)), None);
    net.want(two, 1, addr(1));
    net.pass(Duration::from_secs(5));
    let one = net.add(config(osd(1)), Some(addr(1)));
    net.pass(Duration::from_secs(1));
    let end = net.end_of(one);
    let lost_at = net.now;
    net.cut(end);
    net.pass(Duration::from_millis(20));
    let (dialled_at, _) = *net.dials.last().unwrap();
    assert!(dialled_at > lost_at && dialled_at.since(lost_at) <= Duration::from_millis(20));
}

#[test]
fn an_unanswered_dial_is_given_up_and_its_late_answer_is_closed() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(osd(2)), None);
    net.black_holes.push(addr(1));
    net.want(two, 1, addr(1));
    net.pass(Duration::from_millis(1010));
    assert!(matches!(&net.said(two)[..], [BusEvent::Unreachable { reason, .. }] if reason.contains("not answered")));
    net.black_holes.clear();
    net.pass(Duration::from_millis(20));
    let link = net.link(two, 1);
    net.answer_lost_dial();
    net.run();
    assert_eq!(net.link(two, 1), link, "a late answer replaced a good link");
    let late = net.ends.len() - 2;
    assert!(net.ends[late].closed, "a late connection leaked");
    assert_eq!((net.bus(one).conns.len(), net.bus(two).conns.len()), (1, 1));
}

#[test]
fn dials_that_the_kernel_never_answers_are_bounded() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(osd(2)), None);
    net.black_holes.push(addr(1));
    net.want(two, 1, addr(1));
    net.pass(Duration::from_secs(100));
    assert_eq!(net.lost_dials.len(), 8);
    assert_eq!(net.bus(two).conns.len(), 8);
    net.black_holes.clear();
    net.answer_lost_dial();
    net.pass(Duration::from_secs(1));
    assert!(net.bus(two).link_to(OsdId(1)).is_some(), "it never dialled again");
    while !net.lost_dials.is_empty() {
        net.answer_lost_dial();
    }
    net.pass(Duration::from_secs(3));
    assert_eq!((net.bus(one).conns.len(), net.bus(two).conns.len()), (1, 1));
}

#[test]
fn an_acceptor_that_says_nothing_is_given_up_after_the_hello_deadline() {
    let mut net = Net::new(1);
    let mute = net.impostor(addr(1));
    let two = net.add(config(osd(2)), None);
    net.want(two, 1, addr(1));
    net.pass(Duration::from_millis(2001));
    assert!(matches!(&net.said(two)[..], [BusEvent::Unreachable { reason, .. }] if reason.contains("no hello")));
    let end = net.end_of(mute);
    assert!(net.ends[end ^ 1].closed);
}

#[test]
fn a_changed_address_moves_the_link() {
    let (mut net, one, two) = Net::pair();
    let old = net.link(two, 1);
    net.listen(one, addr(11));
    net.unlisten(addr(1));
    net.bus(two).set_osd_addr(OsdId(1), addr(11));
    assert_eq!(net.bus(two).next_deadline(), Time::ZERO, "what was decided must leave at once");
    net.run();
    assert_eq!(net.dials.last().unwrap().1, addr(11));
    assert!(net.link(two, 1) > old);
    assert_eq!(downs(&mut net, two), [(old, "its address has changed".into())]);
    let same = net.link(two, 1);
    net.bus(two).set_osd_addr(OsdId(1), addr(11));
    net.run();
    assert_eq!(net.link(two, 1), same, "the same address again changes nothing");
}

#[test]
fn address_that_arrives_after_the_request_is_dialled() {
    let mut net = Net::new(1);
    net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(osd(2)), None);
    net.call(two, |bus, now, ops, _| bus.want(now, OsdId(1), ops));
    net.pass(Duration::from_secs(1));
    assert!(net.dials.is_empty());
    net.bus(two).set_osd_addr(OsdId(1), addr(1));
    net.run();
    assert!(net.bus(two).link_to(OsdId(1)).is_some());
}

#[test]
fn unwanted_link_is_closed_and_not_redialled() {
    let (mut net, one, two) = Net::pair();
    net.call(two, |bus, _, ops, _| bus.unwant(OsdId(1), ops));
    net.pass(Duration::from_secs(5));
    assert_eq!(net.dials.len(), 1);
    assert_eq!(downs(&mut net, two).len(), 1);
    assert_eq!(downs(&mut net, one).len(), 1);
    // The OSD is unwanted while the dial is under way: the dialled connection is closed.
    net.want(two, 1, addr(1));
    net.call(two, |bus, _, ops, _| bus.unwant(OsdId(1), ops));
    net.pass(Duration::from_secs(5));
    assert_eq!((net.bus(one).conns.len(), net.bus(two).conns.len()), (0, 0));
}

#[test]
fn new_link_of_a_peer_replaces_its_older_one() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(osd(2)), None);
    net.want(two, 1, addr(1));
    net.run();
    net.clear();
    let old = net.link(one, 2);
    // Another incarnation of osd.2 connects, while the connection of the dead one still looks alive.
    let mut reborn = osd(2);
    reborn.incarnation = Incarnation(999);
    let reborn = net.add(config(reborn), None);
    net.nodes[two].bus = None;
    net.want(reborn, 1, addr(1));
    net.run();
    let new = net.link(one, 2);
    let said = net.said(one);
    let peer = Peer::Osd(OsdId(2));
    let reason = "replaced by a newer connection of the same peer".to_string();
    assert_eq!(
        said,
        [BusEvent::Down { link: old, peer, reason }, BusEvent::Up { link: new, peer, incarnation: Incarnation(999) }]
    );
    assert_eq!(net.bus(one).conns.len(), 1);
}

#[test]
fn a_queue_beyond_its_limit_closes_the_link() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let mut small = config(osd(2));
    small.tuning.queue_bytes_max = 64 << 20;
    small.tuning.queue_messages_max = 100;
    small.tuning.credit_ops = 100;
    let two = net.add(small, None);
    net.want(two, 1, addr(1));
    net.run();
    net.clear();
    let link = net.link(two, 1);
    for i in 0..100 {
        assert!(net.send(two, link, make::renewal(i)));
    }
    assert!(!net.send(two, link, make::renewal(100)));
    assert_eq!(net.bus(two).next_deadline(), Time::ZERO);
    net.run();
    assert!(downs(&mut net, two)[0].1.contains("101 messages"));
    assert_eq!(net.messages_before_down(one), 0);
    net.pass(Duration::from_millis(20));
    let link = net.link(two, 1);
    let mut sent = 0;
    while net.send(two, link, make::append(sent + 1, 512 << 10)) {
        sent += 1;
    }
    assert_eq!(sent, 100, "64 MiB hold 127 payloads of 512 KiB, but only 100 messages are allowed");
}

#[test]
fn queued_bytes_bound_the_queue_too() {
    let (mut net, _, two) = Net::pair();
    let link = net.link(two, 1);
    let mut sent = 0;
    while net.send(two, link, make::append(sent + 1, 512 << 10)) {
        sent += 1;
        assert!(net.bus(two).queued_bytes(link) <= 80 << 20);
    }
    assert!((155..160).contains(&sent), "{sent} × 512 KiB in 80 MiB");
    assert_eq!(net.bus(two).queued_bytes(link), 0);
}

#[test]
fn equal_seeds_dial_at_equal_times() {
    let dials = || {
        let mut net = Net::new(1);
        let two = net.add(config(client(2)), None);
        net.want(two, 1, addr(1));
        net.pass(Duration::from_secs(10));
        net.dials
    };
    assert_eq!(dials(), dials());
}

impl Net {
    /// Counts the messages that reached a node, among its other events.
    fn messages_before_down(&mut self, node: usize) -> usize {
        self.said(node).iter().filter(|e| matches!(e, BusEvent::Message { .. })).count()
    }
}

#[test]
fn link_ended_by_its_user_goes_down_and_the_peer_may_connect_again() {
    let (mut net, one, two) = Net::pair();
    let link = net.link(one, 2);
    net.bus(one).disconnect(link, "a payload fails its checksums");
    assert!(net.bus(one).link_to(OsdId(2)).is_none());
    assert_eq!(net.bus(one).next_deadline(), Time::ZERO, "what was decided must leave at once");
    net.run();
    assert_eq!(downs(&mut net, one), [(link, "a payload fails its checksums".into())]);
    assert_eq!(downs(&mut net, two).len(), 1);
    net.bus(one).disconnect(link, "again");
    net.pass(Duration::from_millis(20));
    let again = net.link(one, 2);
    assert!(again > link);
    net.bus(one).disconnect_all("stopping");
    assert!(net.bus(one).link_to(OsdId(2)).is_none());
}
