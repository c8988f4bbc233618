//! Connections: order, cuts, ends of processes, and the ping-pong.

use super::*;
use env::{ConnId, NetAddr, NetError};

fn addr() -> NetAddr {
    NetAddr::Tcp("10.0.0.9:7400".parse().unwrap())
}

fn send(conn: ConnId, buf: IoBuf) -> Op {
    Op::Send { token: TOKEN, conn, bufs: vec![buf], quiet: false }
}

fn recv(conn: ConnId, len: usize, min: usize) -> Op {
    Op::Recv { token: TOKEN, conn, bufs: vec![IoBufMut::new(len)], min }
}

/// Creates two nodes and a connection: (dialler, its end, acceptor, its end).
fn pair(seed: u64) -> (Host, ConnId, Host, ConnId) {
    let world = World::new(seed);
    let (a, b) = (Host::new(&world, "a"), Host::new(&world, "b"));
    join(a, b)
}

fn join(mut a: Host, mut b: Host) -> (Host, ConnId, Host, ConnId) {
    b.env.listen(&addr()).unwrap();
    let event = a.one(Op::Connect { token: TOKEN, addr: addr() });
    let Event::Connected { token: TOKEN, result: Ok(near) } = event else { panic!("{event:?}") };
    let event = b.wait();
    let Event::Accepted { conn: far, peer: NetAddr::Tcp(_), .. } = event else { panic!("{event:?}") };
    (a, near, b, far)
}

fn received(event: Event) -> Result<Vec<u8>, NetError> {
    match event {
        Event::Received { bufs, result, .. } => result.map(|n| {
            let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
            all[..n].to_vec()
        }),
        other => panic!("{other:?}"),
    }
}

fn sent(event: &Event) -> &Result<(), NetError> {
    match event {
        Event::Sent { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

/// Lets two nodes exchange a counter `rounds` times; returns the world's trace and time afterwards.
fn ping_pong(seed: u64, rounds: u64) -> (u64, Time) {
    let (mut a, near, mut b, far) = pair(seed);
    a.world.net(|c| (c.loss_ppm, c.split_ppm) = (50_000, 300_000));
    a.turn([send(near, IoBuf::copy_of(&0u64.to_le_bytes())), recv(near, 8, 8)]);
    b.turn([recv(far, 8, 8)]);
    let mut last = 0;
    while last < rounds {
        let Some(next) = a.world.next_event_time() else { panic!("the ball is lost at {last}") };
        a.world.advance_to(next);
        for (host, conn) in [(&mut a, near), (&mut b, far)] {
            host.turn([]);
            for event in std::mem::take(&mut host.events) {
                if matches!(event, Event::Sent { .. }) {
                    assert_eq!(sent(&event), &Ok(()));
                    continue;
                }
                let ball = u64::from_le_bytes(received(event).unwrap().try_into().unwrap());
                assert_eq!(ball, last, "the ball counts the throws");
                last += 1;
                // The answer may overtake the completion of the node's own last send, which is awaited first.
                host.pass(Duration::from_micros(20));
                host.events.clear();
                host.turn([send(conn, IoBuf::copy_of(&last.to_le_bytes())), recv(conn, 8, 8)]);
            }
        }
    }
    (a.world.trace_hash(), a.world.now())
}

#[test]
fn a_ping_pong_is_equal_under_one_seed_and_differs_under_another() {
    let first = ping_pong(7, 300);
    assert_eq!(first, ping_pong(7, 300));
    let other = ping_pong(8, 300);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
}

#[test]
fn bytes_arrive_in_order_whatever_is_lost_or_split() {
    let (mut a, near, mut b, far) = pair(11);
    a.world.net(|c| (c.loss_ppm, c.split_ppm) = (200_000, 700_000));
    let all: Vec<u8> = (0..60_000u32).map(|i| (i % 251) as u8).collect();
    let mut got = Vec::new();
    b.turn([recv(far, 5000, 1)]);
    for piece in all.chunks(997) {
        assert_eq!(sent(&a.one(send(near, IoBuf::copy_of(piece)))), &Ok(()));
    }
    while got.len() < all.len() {
        got.extend(received(b.wait()).unwrap());
        b.turn([recv(far, 5000, 1)]);
    }
    assert_eq!(got, all);
    assert!(a.world.fault_counts().losses > 0);
}

#[test]
fn a_quiet_send_makes_no_turn_unless_one_has_passed() {
    let (mut a, near, _b, _) = pair(13);
    let quiet = || Op::Send { token: TOKEN, conn: near, bufs: vec![IoBuf::copy_of(&[1])], quiet: true };
    a.turn([quiet()]);
    pass(&a.world, Duration::from_millis(1));
    assert!(!a.world.has_events(a.node));
    a.turn([]);
    assert_eq!(sent(&a.events.remove(0)), &Ok(()));
    a.turn([quiet()]);
    a.turn([]);
    pass(&a.world, Duration::from_millis(1));
    assert!(a.events.is_empty() && a.world.has_events(a.node));
}

#[test]
fn a_receive_waits_for_its_minimum() {
    let (mut a, near, mut b, far) = pair(12);
    b.turn([recv(far, 100, 15)]);
    a.one(send(near, filled(1, 10)));
    b.pass(SECOND);
    assert!(b.events.is_empty());
    a.one(send(near, filled(2, 10)));
    assert_eq!(received(b.wait()).unwrap(), [[1; 10], [2; 10]].concat());
}

#[test]
fn a_send_waits_for_the_window_and_not_for_ever() {
    let (mut a, near, mut b, far) = pair(13);
    let window = 512 << 10;
    assert_eq!(sent(&a.one(send(near, filled(1, window)))), &Ok(()));
    a.turn([send(near, filled(1, 1))]);
    a.pass(SECOND);
    assert!(a.events.is_empty(), "no receive is in flight: {:?}", a.events);
    assert_eq!(received(b.one(recv(far, 4096, 4096))).unwrap().len(), 4096);
    assert_eq!(sent(&a.wait()), &Ok(()));
}

#[test]
fn close_ends_own_receive_as_closed_and_the_peers_as_lost_after_all_bytes() {
    let (mut a, near, mut b, far) = pair(14);
    a.turn([recv(near, 10, 10)]);
    a.turn([send(near, filled(3, 7)), Op::Close { conn: near }]);
    let ends: Vec<Event> = vec![a.wait(), a.wait()];
    assert!(ends.iter().any(|e| matches!(e, Event::Received { result: Err(NetError::Closed), .. })), "{ends:?}");
    assert!(ends.iter().any(|e| matches!(e, Event::Sent { result: Err(NetError::Closed), .. })), "{ends:?}");
    assert_eq!(received(b.one(recv(far, 10, 1))).unwrap(), [3; 7]);
    assert_eq!(received(b.one(recv(far, 10, 1))), Err(NetError::Lost));
    assert_eq!(sent(&b.one(send(far, filled(1, 1)))), &Err(NetError::Lost));
    assert_eq!(received(a.one(recv(near, 10, 1))), Err(NetError::Closed));
}

#[test]
fn a_partition_holds_bytes_until_it_heals() {
    let (mut a, near, mut b, far) = pair(15);
    b.turn([recv(far, 10, 10)]);
    a.turn([recv(near, 10, 10)]);
    a.world.partition(a.node, b.node, Cut::Both);
    a.turn([send(near, filled(1, 10))]);
    b.turn([send(far, filled(2, 10))]);
    a.pass(2 * SECOND);
    b.turn([]);
    let only_sent = |events: &[Event]| events.iter().all(|e| matches!(e, Event::Sent { result: Ok(()), .. }));
    assert!(only_sent(&a.events) && only_sent(&b.events), "{:?} {:?}", a.events, b.events);
    a.world.heal_all();
    a.pass(SECOND);
    b.turn([]);
    assert_eq!(received(a.events.pop().unwrap()).unwrap(), [2; 10]);
    assert_eq!(received(b.events.pop().unwrap()).unwrap(), [1; 10]);
}

#[test]
fn a_one_way_cut_lets_the_other_direction_pass() {
    let (mut a, near, mut b, far) = pair(16);
    a.turn([recv(near, 10, 10)]);
    b.turn([recv(far, 10, 10)]);
    a.world.partition(a.node, b.node, Cut::OneWay);
    a.turn([send(near, filled(1, 10))]);
    b.turn([send(far, filled(2, 10))]);
    a.pass(2 * SECOND);
    b.turn([]);
    assert_eq!(received(a.events.pop().unwrap()).unwrap(), [2; 10]);
    assert!(matches!(b.events[..], [Event::Sent { result: Ok(()), .. }]), "{:?}", b.events);
}

#[test]
fn a_long_partition_loses_the_connection_at_both_ends_and_dials_time_out() {
    let (mut a, near, mut b, far) = pair(17);
    a.turn([recv(near, 10, 10)]);
    b.turn([recv(far, 10, 10)]);
    a.world.partition(a.node, b.node, Cut::Both);
    let start = a.world.now();
    let event = a.one(Op::Connect { token: TOKEN, addr: addr() });
    assert!(matches!(event, Event::Connected { result: Err(NetError::TimedOut), .. }), "{event:?}");
    assert!(a.world.now().since(start) >= 3 * SECOND);
    assert_eq!(received(a.wait()), Err(NetError::Lost));
    assert_eq!(received(b.wait()), Err(NetError::Lost));
    let waited = a.world.now().since(start);
    assert!((5 * SECOND..9 * SECOND).contains(&waited), "{waited:?}");
    a.world.heal_all();
    let event = a.one(Op::Connect { token: TOKEN, addr: addr() });
    assert!(matches!(event, Event::Connected { result: Ok(_), .. }), "{event:?}");
}

#[test]
fn a_crashed_peer_is_noticed_at_once_and_a_dark_one_only_by_its_silence() {
    for power in [false, true] {
        let (mut a, near, b, _) = pair(18);
        a.turn([recv(near, 10, 10)]);
        let start = a.world.now();
        if power {
            b.world.power_cut(b.node)
        } else {
            b.world.crash(b.node)
        }
        assert_eq!(received(a.wait()), Err(NetError::Lost));
        let waited = a.world.now().since(start);
        assert_eq!(waited >= 5 * SECOND, power, "{waited:?}");
        let event = a.one(Op::Connect { token: TOKEN, addr: addr() });
        let want = if power { NetError::TimedOut } else { NetError::Refused };
        assert!(matches!(event, Event::Connected { result: Err(e), .. } if e == want));
    }
}

#[test]
fn a_dark_peer_that_starts_again_is_noticed_sooner() {
    let (mut a, near, b, _) = pair(19);
    a.turn([recv(near, 10, 10)]);
    let start = a.world.now();
    b.world.power_cut(b.node);
    a.pass(SECOND);
    assert!(a.events.is_empty(), "so far only silence: {:?}", a.events);
    let again = Host::boot(&a.world, b.node);
    assert_eq!(received(a.wait()), Err(NetError::Lost));
    assert!(a.world.now().since(start) < 3 * SECOND);
    let (_, anew, ..) = join(a, again);
    assert_ne!(near, anew);
}

#[test]
fn unknown_name_refuses_and_a_taken_one_is_not_given_twice() {
    let world = World::new(20);
    let (mut a, mut b) = (Host::new(&world, "a"), Host::new(&world, "b"));
    let event = a.one(Op::Connect { token: TOKEN, addr: addr() });
    assert!(matches!(event, Event::Connected { result: Err(NetError::Refused), .. }), "{event:?}");
    a.env.listen(&addr()).unwrap();
    assert!(matches!(b.env.listen(&addr()), Err(env::EnvError::Listen { .. })));
    let (_, real) = b.env.listen(&NetAddr::Tcp("10.0.0.1:0".parse().unwrap())).unwrap();
    assert!(matches!(real, NetAddr::Tcp(t) if t.port() != 0));
    drop(a);
    b.env.listen(&addr()).expect("the name is free after its holder's end");
}

#[test]
fn a_unix_path_belongs_to_its_node() {
    let world = World::new(21);
    let (mut a, mut b) = (Host::new(&world, "a"), Host::new(&world, "b"));
    let path = NetAddr::Unix("/run/s".into());
    a.env.listen(&path).unwrap();
    let event = b.one(Op::Connect { token: TOKEN, addr: path.clone() });
    assert!(matches!(event, Event::Connected { result: Err(NetError::Refused), .. }), "{event:?}");
    a.turn([Op::Connect { token: TOKEN, addr: path }]);
    let events = [a.wait(), a.wait()];
    assert!(events.iter().any(|e| matches!(e, Event::Accepted { peer: NetAddr::Unnamed, .. })), "{events:?}");
    assert!(events.iter().any(|e| matches!(e, Event::Connected { result: Ok(_), .. })), "{events:?}");
}

#[test]
fn a_reset_loses_the_connection_at_both_ends() {
    let (mut a, near, mut b, far) = pair(22);
    b.turn([recv(far, 10, 10)]);
    a.turn([recv(near, 10, 10)]);
    a.world.reset_conns(a.node, b.node);
    assert_eq!(received(a.wait()), Err(NetError::Lost));
    assert_eq!(received(b.wait()), Err(NetError::Lost));
    a.turn([Op::Close { conn: near }]);
    b.turn([Op::Close { conn: far }]);
    a.pass(SECOND);
    assert!(a.world.state_for_tests().net.ends.is_empty(), "nothing is kept of a closed connection");
}

#[test]
fn a_garbled_segment_has_one_other_bit_and_keeps_its_length() {
    let (mut a, near, mut b, far) = pair(5);
    a.world.garble(a.node, b.node);
    a.turn([send(near, filled(7, 4096))]);
    let got = received(b.one(recv(far, 4096, 4096))).unwrap();
    let bits: u32 = got.iter().map(|byte| (byte ^ 7).count_ones()).sum();
    assert_eq!((got.len(), bits), (4096, 1));
    a.wait();
    a.turn([send(near, filled(7, 64))]);
    assert_eq!(received(b.one(recv(far, 64, 64))).unwrap(), vec![7; 64], "once for each order");
}

#[test]
fn a_forgotten_connection_is_lost_to_its_other_end_only_when_that_sends() {
    let (mut a, near, mut b, far) = pair(6);
    b.world.forget_conns(b.node, a.node);
    assert_eq!(received(b.one(recv(far, 8, 8))), Err(NetError::Lost));
    a.turn([recv(near, 8, 8)]);
    a.pass(60 * SECOND);
    assert!(a.events.is_empty(), "it was not told");
    a.turn([send(near, filled(1, 8))]);
    a.pass(SECOND);
    assert!(a.events.iter().any(|e| matches!(e, Event::Received { result: Err(NetError::Lost), .. })));
}
