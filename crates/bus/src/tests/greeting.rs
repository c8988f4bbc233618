//! Hellos: which peers may connect, and the refusals that the others get.

use super::net::{Net, addr, client, config, osd};
use crate::BusEvent;
use std::time::Duration;
use types::{ClusterId, Incarnation, OsdId};
use wire::Peer;

/// Returns the reasons of a node's unreachable events.
fn reasons(net: &mut Net, node: usize) -> Vec<String> {
    let of = |event| match event {
        BusEvent::Unreachable { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    net.said(node).into_iter().map(of).collect()
}

#[test]
fn the_osd_with_the_higher_id_dials_and_both_come_up() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(osd(2)), Some(addr(2)));
    net.want(one, 2, addr(2));
    net.pass(Duration::from_secs(3));
    assert!(net.dials.is_empty(), "the lower id dialled");
    net.want(two, 1, addr(1));
    net.run();
    let up = |net: &mut Net, node, id: u32| {
        let link = net.link(node, id);
        let incarnation = Incarnation(100 + u64::from(id));
        assert_eq!(net.said(node), [BusEvent::Up { link, peer: Peer::Osd(OsdId(id)), incarnation }]);
    };
    up(&mut net, one, 2);
    up(&mut net, two, 1);
    net.pass(Duration::from_secs(2));
    assert_eq!(net.dials.len(), 1, "a link that is up was dialled again");
    assert_eq!(net.said(one), []);
}

#[test]
fn a_dial_by_the_lower_id_is_refused() {
    let mut net = Net::new(1);
    net.add(config(osd(5)), Some(addr(5)));
    let end = net.intrude(addr(5));
    let hello = crate::greet::hello(&config(osd(4)), Some(OsdId(5)));
    net.write(end, &wire::encode_hello(&hello));
    net.run();
    let refuse = super::hostile::refusal(&net, end);
    assert_eq!(refuse.code, 4003);
    assert!(refuse.reason.contains("osd.4 has dialled osd.5"), "{}", refuse.reason);
}

#[test]
fn a_foreign_cluster_is_refused_and_told_so() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let mut foreign = osd(2);
    foreign.cluster = ClusterId([2; 16]);
    let two = net.add(config(foreign), None);
    net.want(two, 1, addr(1));
    net.run();
    let why = reasons(&mut net, two);
    assert_eq!(why.len(), 1);
    assert!(why[0].contains("BSLT-4001") && why[0].contains("02020202") && why[0].contains("01010101"), "{why:?}");
    assert_eq!(net.said(one), []);
    assert_eq!(net.bus(one).stats().refused, 1);
}

#[test]
fn a_refusal_for_the_version_names_both_ranges() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let mut newer = config(osd(2));
    (newer.version_min, newer.version_max) = (7, 9);
    let two = net.add(newer, None);
    net.want(two, 1, addr(1));
    net.run();
    let why = reasons(&mut net, two);
    assert!(why[0].contains("BSLT-4002") && why[0].contains("1..=1") && why[0].contains("7..=9"), "{why:?}");
    assert_eq!(net.said(one), []);
}

#[test]
fn neighbours_in_version_talk_in_the_highest_that_both_speak() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let mut newer = config(osd(2));
    (newer.version_min, newer.version_max) = (1, 2);
    let two = net.add(newer, None);
    net.want(two, 1, addr(1));
    net.run();
    net.clear();
    let link = net.link(two, 1);
    assert!(net.send(two, link, super::make::renewal(4)));
    net.run();
    assert_eq!(super::make::names(&net.messages(one)), ["LeaseRenewal 4"]);
}

#[test]
fn peer_that_is_not_the_dialled_osd_refuses() {
    let mut net = Net::new(1);
    net.add(config(osd(1)), Some(addr(1)));
    let two = net.add(config(client(9)), None);
    net.want(two, 3, addr(1)); // osd.3 was there once
    net.run();
    let why = reasons(&mut net, two);
    assert!(why[0].contains("BSLT-4003") && why[0].contains("osd.3") && why[0].contains("osd.1"), "{why:?}");
}

#[test]
fn the_dialling_side_judges_the_answer_and_tells_the_other() {
    let mut net = Net::new(1);
    let wrong = net.impostor(addr(1));
    let two = net.add(config(osd(2)), None);
    net.want(two, 1, addr(1));
    net.run();
    let end = net.end_of(wrong);
    let hello = crate::greet::hello(&config(osd(7)), None);
    net.write(end, &wire::encode_hello(&hello));
    net.run();
    let why = reasons(&mut net, two);
    assert!(why[0].contains("osd.1 was expected, osd.7 is at this address"), "{why:?}");
    let sent = super::hostile::frames(&net.ends[end].arrived);
    assert_eq!(sent.len(), 2, "a hello, then the refusal");
    assert_eq!(wire::decode_refuse(&sent[1].0, &sent[1].1).unwrap().code, 4003);
}

#[test]
fn a_refusal_is_not_destroyed_by_closing_before_it_was_read() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let end = net.intrude(addr(1));
    let mut foreign = osd(2);
    foreign.cluster = ClusterId([2; 16]);
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(foreign), None)));
    net.write(end, &[7; 10_000]); // unread bytes would turn a close into a reset
    net.run();
    assert!(!net.ends[end ^ 1].closed, "closed before the other side could read why");
    assert!(net.ends[end ^ 1].arrived.is_empty(), "bytes left unread");
    assert_eq!(super::hostile::refusal(&net, end).code, 4001);
    net.close(end);
    net.run();
    assert!(net.ends[end ^ 1].closed);
    assert_eq!(net.bus(one).conns.len(), 0);
}

#[test]
fn a_refused_peer_that_never_closes_is_closed_soon() {
    let mut net = Net::new(1);
    let one = net.add(config(osd(1)), Some(addr(1)));
    let end = net.intrude(addr(1));
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(osd(1)), None)));
    net.pass(Duration::from_millis(499));
    assert!(!net.ends[end ^ 1].closed);
    net.pass(Duration::from_millis(2));
    assert!(net.ends[end ^ 1].closed);
    assert_eq!(net.bus(one).conns.len(), 0);
}

#[test]
fn a_client_is_served_by_an_osd_and_never_by_a_client() {
    let mut net = Net::new(1);
    let server = net.add(config(client(1)), Some(addr(1)));
    let user = net.add(config(client(2)), None);
    net.want(user, 1, addr(1));
    net.run();
    assert!(reasons(&mut net, user)[0].contains("BSLT-4003"));
    assert_eq!(net.said(server), []);
}
