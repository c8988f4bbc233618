//! Credit of a client, and the end of a client's link that takes more.

use super::make;
use super::net::{Net, addr, client, config, osd};
use crate::{BusEvent, LinkId};
use types::OsdId;
use types::limits::{CREDIT_BYTES_MAX, CREDIT_OPS_MAX, PART_MAX};
use wire::{Message, Peer};

/// The OSD's link to the client.
fn to_user(net: &mut Net, server: usize) -> LinkId {
    let peer = Peer::Client(types::Incarnation(5));
    *net.bus(server).peers.get(&peer).expect("a link")
}

fn ids(messages: Vec<Message>) -> Vec<u64> {
    let id = |message| match message {
        Message::Request(r) => r.id,
        Message::Reply(r) => r.id,
        other => panic!("{other:?}"),
    };
    messages.into_iter().map(id).collect()
}

#[test]
fn requests_beyond_the_operations_of_the_credit_wait_for_replies() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let link = net.link(user, 1);
    let all = u64::from(CREDIT_OPS_MAX);
    for id in 0..all {
        assert!(net.bus(user).has_credit(link, 512));
        assert!(net.send(user, link, Message::Request(make::write(id, 512))));
    }
    assert!(!net.bus(user).has_credit(link, 0), "queued requests count");
    net.send(user, link, Message::Request(make::write(all, 512)));
    net.send(user, link, Message::Request(make::write(all + 1, 512)));
    net.run();
    assert_eq!(ids(net.messages(server)), (0..all).collect::<Vec<_>>());
    let back = to_user(&mut net, server);
    net.send(server, back, make::done(17));
    net.run();
    assert_eq!(ids(net.messages(user)), [17]);
    assert_eq!(ids(net.messages(server)), [all]);
    assert!(!net.bus(user).has_credit(link, 0));
    net.send(server, back, make::done(18));
    net.send(server, back, make::done(19));
    net.run();
    assert_eq!(ids(net.messages(server)), [all + 1]);
    assert!(net.bus(user).has_credit(link, 0));
}

#[test]
fn reads_take_credit_for_what_they_ask_for() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let link = net.link(user, 1);
    let part = PART_MAX as usize;
    let fit = CREDIT_BYTES_MAX / PART_MAX;
    for id in 0..fit + 3 {
        let request = make::read(id, part);
        assert_eq!(net.bus(user).has_credit(link, request.body.cost()), id < fit);
        net.send(user, link, Message::Request(request));
    }
    net.run();
    assert_eq!(net.messages(server).len() as u64, fit);
    // All replies of a full credit fit into the queue of the link.
    let back = to_user(&mut net, server);
    for id in 0..fit {
        assert!(net.send(server, back, make::data(id, part)));
    }
    net.run();
    assert_eq!(net.messages(user).len() as u64, fit);
    assert_eq!(net.messages(server).len(), 3);
}

#[test]
fn a_client_that_exceeds_its_credit_is_closed() {
    let mut tight = config(osd(1));
    tight.tuning.credit_ops = 4;
    let mut net = Net::new(1);
    let server = net.add(tight, Some(addr(1)));
    let end = net.intrude(addr(1));
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(client(8)), Some(OsdId(1)))));
    net.run();
    net.clear();
    let requests: Vec<Message> = (0..5).map(|id| Message::Request(make::write(id, 512))).collect();
    let mut bufs = Vec::new();
    wire::encode_batch(1, &requests, &mut bufs);
    bufs.iter().for_each(|b| net.write(end, b));
    net.run();
    let said = net.said(server);
    assert_eq!(said.len(), 5, "four requests and the end");
    let Some(BusEvent::Down { reason, .. }) = said.last() else { panic!("{said:?}") };
    assert!(reason.contains("4 operations"), "{reason}");
    assert!(net.ends[end ^ 1].closed);
}

#[test]
fn a_request_id_that_is_in_flight_already_closes_the_link() {
    let mut net = Net::new(1);
    let server = net.add(config(osd(1)), Some(addr(1)));
    let end = net.intrude(addr(1));
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(client(8)), None)));
    let mut bufs = Vec::new();
    let twice = [Message::Request(make::read(7, 512)), Message::Request(make::read(7, 512))];
    wire::encode_batch(1, &twice, &mut bufs);
    net.write(end, &bufs[0]);
    net.run();
    let said = net.said(server);
    let Some(BusEvent::Down { reason, .. }) = said.last() else { panic!("{said:?}") };
    assert!(reason.contains("request 7 is in flight already"), "{reason}");
}

#[test]
fn reply_without_a_request_closes_the_link_to_the_osd() {
    let mut net = Net::new(1);
    let fake = net.impostor(addr(1));
    let user = net.add(config(client(5)), None);
    net.want(user, 1, addr(1));
    net.run();
    let end = net.end_of(fake);
    net.write(end, &wire::encode_hello(&crate::greet::hello(&config(osd(1)), None)));
    let mut bufs = Vec::new();
    wire::encode_batch(1, &[make::done(3)], &mut bufs);
    net.write(end, &bufs[0]);
    net.run();
    let said = net.said(user);
    assert!(matches!(&said[1], BusEvent::Down { reason, .. } if reason.contains("reply to request 3")), "{said:?}");
}

#[test]
fn credit_too_small_for_any_request_is_refused() {
    let mut stingy = config(osd(1));
    stingy.tuning.credit_bytes = PART_MAX - 1;
    let mut net = Net::new(1);
    let fake = net.impostor(addr(1));
    let user = net.add(config(client(5)), None);
    net.want(user, 1, addr(1));
    net.run();
    let end = net.end_of(fake);
    net.write(end, &wire::encode_hello(&crate::greet::hello(&stingy, None)));
    net.run();
    let said = net.said(user);
    assert!(matches!(&said[..], [BusEvent::Unreachable { reason, .. }] if reason.contains("lets no request through")));
}

#[test]
fn reads_overtake_writes_and_writes_keep_their_order() {
    let (mut net, server, user) = Net::served(config(osd(1)));
    let link = net.link(user, 1);
    for id in 0..4 {
        net.send(user, link, Message::Request(make::write(id, 512 << 10)));
    }
    net.send(user, link, Message::Request(make::read(9, 512)));
    net.run();
    assert_eq!(ids(net.messages(server)), [9, 0, 1, 2, 3]);
}
