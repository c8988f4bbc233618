//! One end of a simulated connection, and the movement of bytes from one end to the other.
//!
//! Each end owns its outgoing queue of segments, whose arrival times never fall (FIFO), and the bytes that have arrived
//! for it. Invariant: `unread` of an end is exactly the bytes that it sent and that its peer's process has not
//! received. Bytes reach the peer in the order in which they were sent, or not at all.

use crate::net::NetDue;
use crate::state::{Due, Power, State};
use crate::watch::Durable;
use crate::world::NodeId;
use env::{ConnId, Event, NetError, Token};
use std::collections::VecDeque;
use std::time::Duration;
use types::{IoBuf, IoBufMut, Time};

/// Longest time after which a machine notices that its peer forgot a connection.
const PROBE: Duration = Duration::from_secs(1);
/// Longest wait of a retransmission after a cut has healed.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// Shorter pieces of a frame do not count as payload.
const PAYLOAD_MIN: usize = 512;

enum Load {
    Bytes(Vec<IoBuf>),
    /// The sender closed in good order.
    Fin,
    /// The sender's machine refuses more.
    Reset,
}

struct Segment {
    arrives: Time,
    load: Load,
}

struct Receive {
    token: Token,
    bufs: Vec<IoBufMut>,
    min: usize,
}

pub(crate) struct End {
    pub node: NodeId,
    life: u32,
    pub peer_node: NodeId,
    peer: u32,
    outgoing: VecDeque<Segment>,
    last_arrival: Time,
    unread: usize,
    /// The send in flight, and the turn that its success does not end.
    sending: Option<(Token, Option<u64>)>,
    inbox: VecDeque<IoBuf>,
    inbox_len: usize,
    receiving: Option<Receive>,
    /// The connection is over for this end: no bytes come in or go out.
    ended: bool,
    /// The process has closed the end; bytes that it sent before still travel.
    closed: bool,
}

impl End {
    pub fn new(node: NodeId, life: u32, peer_node: NodeId, peer: u32) -> End {
        End {
            node,
            life,
            peer_node,
            peer,
            outgoing: VecDeque::new(),
            last_arrival: Time::ZERO,
            unread: 0,
            sending: None,
            inbox: VecDeque::new(),
            inbox_len: 0,
            receiving: None,
            ended: false,
            closed: false,
        }
    }

    /// Moves as many bytes as fit from the inbox to the front of `bufs`.
    fn take(&mut self, bufs: &mut [IoBufMut]) -> usize {
        let mut total = 0;
        for buf in bufs {
            let mut at = 0;
            while at < buf.len() {
                let Some(front) = self.inbox.front_mut() else { break };
                let n = front.len().min(buf.len() - at);
                buf[at..at + n].copy_from_slice(&front[..n]);
                *front = front.slice(n..front.len());
                if front.is_empty() {
                    self.inbox.pop_front();
                }
                at += n;
            }
            total += at;
            if at < buf.len() {
                break;
            }
        }
        self.inbox_len -= total;
        total
    }
}

/// Splits `bufs` behind the first `n` bytes.
pub(crate) fn split(bufs: Vec<IoBuf>, mut n: usize) -> (Vec<IoBuf>, Vec<IoBuf>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for buf in bufs {
        let cut = n.min(buf.len());
        n -= cut;
        if cut > 0 {
            head.push(buf.slice(0..cut));
        }
        if cut < buf.len() {
            tail.push(buf.slice(cut..buf.len()));
        }
    }
    (head, tail)
}

fn total(bufs: &[IoBuf]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

impl State {
    /// Returns the end, if it belongs to this node and to the connection's process, and is not closed.
    fn open_end(&mut self, node: NodeId, conn: ConnId) -> Option<&mut End> {
        let end = self.net.ends.get_mut(&conn.slot)?;
        (end.node == node && end.life == conn.generation && !end.closed).then_some(end)
    }

    pub fn submit_recv(&mut self, node: NodeId, token: Token, conn: ConnId, bufs: Vec<IoBufMut>, min: usize) {
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        assert!(min > 0 && min <= room, "a receive of at least {min} B into {room} B");
        let Some(end) = self.open_end(node, conn) else {
            let life = self.node(node).life;
            return self.deliver(node, life, Event::Received { token, conn, bufs, result: Err(NetError::Closed) });
        };
        assert!(end.receiving.is_none(), "two receives on {conn:?}");
        end.receiving = Some(Receive { token, bufs, min });
        let answerable = end.ended || end.inbox_len >= min;
        if answerable {
            self.schedule(Duration::from_micros(1), Due::Net(NetDue::Receive { end: conn.slot }));
        }
    }

    /// Completes the receive of an end if there are enough bytes, or never will be.
    pub fn try_receive(&mut self, slot: u32) {
        let Some(end) = self.net.ends.get_mut(&slot) else { return };
        let Some(mut receive) = end.receiving.take() else { return };
        let conn = ConnId { slot, generation: end.life };
        let (node, life, peer) = (end.node, end.life, end.peer);
        let result = if end.inbox_len >= receive.min {
            Ok(end.take(&mut receive.bufs))
        } else if end.ended {
            Err(NetError::Lost)
        } else {
            end.receiving = Some(receive);
            return;
        };
        if let (Ok(n), Some(sender)) = (&result, self.net.ends.get_mut(&peer)) {
            sender.unread -= n;
            if sender.sending.is_some() {
                let (from, to) = (node, sender.node);
                let (delay, _) = self.net.delay(from, to);
                self.schedule(delay, Due::Net(NetDue::Sent { end: peer }));
            }
        }
        self.deliver(node, life, Event::Received { token: receive.token, conn, bufs: receive.bufs, result });
    }

    pub fn submit_send(&mut self, node: NodeId, token: Token, conn: ConnId, bufs: Vec<IoBuf>, quiet: bool) {
        let life = self.node(node).life;
        let quiet_in = quiet.then_some(self.node(node).turns);
        let bytes = total(&bufs);
        assert!(bytes > 0, "an empty send on {conn:?}");
        let Some(end) = self.open_end(node, conn) else {
            return self.deliver(node, life, Event::Sent { token, conn, result: Err(NetError::Closed) });
        };
        assert!(end.sending.is_none(), "two sends on {conn:?}");
        end.sending = Some((token, quiet_in));
        let ended = end.ended;
        let peer = end.peer_node;
        if !ended {
            end.unread += bytes;
            for watch in &self.net_watches {
                let durable = self.nodes[node.0 as usize].disks.first().map(Durable);
                watch.borrow_mut().sent(node, peer, &bufs, durable);
            }
            self.dispatch(conn.slot, bufs, bytes);
        }
        let delay = self.net.jitter(Duration::from_micros(20));
        self.schedule(delay, Due::Net(NetDue::Sent { end: conn.slot }));
        if !ended && self.net.rng.chance(self.net.config.reset_ppm.into(), 1_000_000) {
            self.reset(conn.slot);
        }
    }

    /// Sends bytes on their way, in one piece or several.
    fn dispatch(&mut self, slot: u32, mut bufs: Vec<IoBuf>, mut bytes: usize) {
        while bytes > 1 && self.net.rng.chance(self.net.config.split_ppm.into(), 1_000_000) {
            let cut = self.net.rng.between(1, bytes as u64 - 1) as usize;
            let (head, tail) = split(bufs, cut);
            self.enqueue(slot, Load::Bytes(head));
            (bufs, bytes) = (tail, bytes - cut);
        }
        self.enqueue(slot, Load::Bytes(bufs));
    }

    fn enqueue(&mut self, slot: u32, load: Load) {
        let Some(end) = self.net.ends.get(&slot) else { return };
        let (from, to) = (end.node, end.peer_node);
        let (delay, lost) = self.net.delay(from, to);
        self.counts.losses += u64::from(lost);
        let load = self.garble(from, to, load);
        let end = self.net.ends.get_mut(&slot).expect("looked up above");
        let arrives = (self.now + delay).max(end.last_arrival);
        end.last_arrival = arrives;
        end.outgoing.push_back(Segment { arrives, load });
        self.schedule_at(arrives, Due::Net(NetDue::Segment { from: slot }));
    }

    /// Flips a bit of bytes on their way, when that was ordered, or by chance.
    fn garble(&mut self, from: NodeId, to: NodeId, load: Load) -> Load {
        let Load::Bytes(mut bufs) = load else { return load };
        let longest = (0..bufs.len()).max_by_key(|i| bufs[*i].len()).filter(|i| bufs[*i].len() >= PAYLOAD_MIN);
        if let Some(longest) = longest
            && self.net.garble_payload.remove(&(from, to))
        {
            self.flip_bit(&mut bufs[longest]);
            return Load::Bytes(bufs);
        }
        let ordered = self.net.garble.remove(&(from, to));
        if !ordered && !self.net.rng.chance(self.net.config.corrupt_ppm.into(), 1_000_000) {
            return Load::Bytes(bufs);
        }
        let at = self.net.rng.below(bufs.len() as u64) as usize;
        self.flip_bit(&mut bufs[at]);
        Load::Bytes(bufs)
    }

    fn flip_bit(&mut self, buf: &mut IoBuf) {
        let mut copy = IoBufMut::new(buf.len());
        copy.copy_from_slice(buf);
        let byte = self.net.rng.below(copy.len() as u64) as usize;
        copy[byte] ^= 1 << self.net.rng.below(8);
        *buf = copy.freeze();
        self.counts.garbled += 1;
    }

    /// Ends the connections of `a` with `b` at `a`; `b` learns of it only when it sends.
    pub fn forget(&mut self, a: NodeId, b: NodeId) {
        for slot in self.ends_between(a, b) {
            if self.net.ends.get(&slot).is_some_and(|end| end.node == a && !end.ended) {
                self.counts.half_open += 1;
                self.lose(slot);
            }
        }
    }

    /// Completes a send when the window allows it.
    pub fn try_sent(&mut self, slot: u32) {
        let window = self.net.config.window_bytes;
        let Some(end) = self.net.ends.get_mut(&slot) else { return };
        if end.unread > window && !end.ended {
            return;
        }
        let Some((token, quiet_in)) = end.sending.take() else { return };
        let (node, life, ended) = (end.node, end.life, end.ended);
        let (result, quiet_in) = if ended { (Err(NetError::Lost), None) } else { (Ok(()), quiet_in) };
        let event = Event::Sent { token, conn: ConnId { slot, generation: life }, result };
        self.deliver_sent(node, life, event, quiet_in);
    }

    /// Delivers all segments of an end that have arrived.
    pub fn segments_due(&mut self, from: u32) {
        loop {
            let Some(end) = self.net.ends.get_mut(&from) else { return };
            let (node, peer, peer_node) = (end.node, end.peer, end.peer_node);
            let arrived = end.outgoing.front().is_some_and(|s| s.arrives <= self.now);
            if !arrived || self.net.is_cut(node, peer_node) {
                return;
            }
            if self.node(peer_node).power == Power::Off {
                // The peer's machine is off: the bytes wait for an acknowledgement that never comes.
                self.net.ends.get_mut(&from).expect("looked up above").outgoing.clear();
                return self.retire(from);
            }
            let end = self.net.ends.get_mut(&from).expect("looked up above");
            let segment = end.outgoing.pop_front().expect("it has arrived");
            self.arrive(from, peer, segment.load);
            self.retire(from);
        }
    }

    fn arrive(&mut self, from: u32, to: u32, load: Load) {
        let receiver = self.net.ends.get_mut(&to).filter(|e| !e.ended && !e.closed);
        match (receiver, load) {
            (Some(end), Load::Bytes(bufs)) => {
                end.inbox_len += total(&bufs);
                end.inbox.extend(bufs);
                self.try_receive(to);
            }
            (Some(_), Load::Fin | Load::Reset) => self.lose(to),
            (None, Load::Bytes(_)) => {
                // The machine is up and does not know the connection: it answers with a reset.
                let delay = self.net.jitter(Duration::from_micros(200));
                self.schedule(delay, Due::Net(NetDue::Lost { end: from }));
            }
            (None, Load::Fin | Load::Reset) => {}
        }
    }

    /// Removes a closed end without segments on the way.
    fn retire(&mut self, slot: u32) {
        if self.net.ends.get(&slot).is_some_and(|e| e.closed && e.outgoing.is_empty()) {
            self.net.ends.remove(&slot);
        }
    }

    /// Ends the connection for this end: waiting operations fail, later ones too.
    pub fn lose(&mut self, slot: u32) {
        let Some(end) = self.net.ends.get_mut(&slot) else { return };
        end.ended = true;
        end.outgoing.clear();
        self.try_receive(slot);
        self.try_sent(slot);
        self.retire(slot);
    }

    pub fn submit_close(&mut self, node: NodeId, conn: ConnId) {
        let Some(end) = self.open_end(node, conn) else { return };
        end.closed = true;
        let unread = end.inbox_len > 0;
        let (life, ended, receive, sending) = (end.life, end.ended, end.receiving.take(), end.sending.take());
        if let Some(Receive { token, bufs, .. }) = receive {
            self.deliver(node, life, Event::Received { token, conn, bufs, result: Err(NetError::Closed) });
        }
        if let Some((token, _)) = sending {
            self.deliver(node, life, Event::Sent { token, conn, result: Err(NetError::Closed) });
        }
        if !ended {
            // Closing with unread bytes resets the connection.
            self.enqueue(conn.slot, if unread { Load::Reset } else { Load::Fin });
        }
        self.retire(conn.slot);
    }

    /// Breaks a connection for both ends; bytes on the way are lost.
    pub fn reset(&mut self, slot: u32) {
        let Some(end) = self.net.ends.get(&slot) else { return };
        self.counts.resets += 1;
        for end in [slot, end.peer] {
            let delay = self.net.jitter(Duration::from_micros(200));
            self.schedule(delay, Due::Net(NetDue::Lost { end }));
        }
    }

    /// Drops an end whose dialler gave up; its peer learns of it by a reset.
    pub fn abandon(&mut self, slot: u32) {
        let Some(end) = self.net.ends.remove(&slot) else { return };
        self.schedule(PROBE, Due::Net(NetDue::Lost { end: end.peer }));
    }

    /// Continues after a cut: held bytes are sent again; an end whose peer has forgotten the connection learns of that.
    pub fn resume(&mut self, slot: u32) {
        let wait = self.net.jitter(RETRANSMIT);
        let probe = self.net.jitter(PROBE);
        let now = self.now;
        let Some(end) = self.net.ends.get_mut(&slot) else { return };
        let peer = end.peer;
        for segment in &mut end.outgoing {
            segment.arrives = segment.arrives.max(now + wait);
        }
        if let Some(last) = end.outgoing.back() {
            let arrives: Vec<Time> = end.outgoing.iter().map(|s| s.arrives).collect();
            end.last_arrival = end.last_arrival.max(last.arrives);
            for at in arrives {
                self.schedule_at(at, Due::Net(NetDue::Segment { from: slot }));
            }
        }
        if self.net.ends.get(&peer).is_none_or(|p| p.ended) {
            self.schedule(probe, Due::Net(NetDue::Lost { end: slot }));
        }
    }

    /// Ends the connections of a process that has ended: its machine closes them, or is silent.
    pub fn end_connections(&mut self, node: NodeId, silent: bool) {
        let own: Vec<u32> =
            self.net.ends.iter().filter(|(_, e)| e.node == node && !e.closed).map(|(s, _)| *s).collect();
        for slot in own {
            let keep = self.net.rng.chance(1, 2);
            let end = self.net.ends.get_mut(&slot).expect("listed above");
            (end.closed, end.receiving, end.sending) = (true, None, None);
            let (peer, ended, sent) = (end.peer, end.ended, end.outgoing.len() as u64);
            if silent || !keep {
                // Only bytes that have left the machine arrive.
                let kept = self.net.rng.between(0, sent) as usize;
                let end = self.net.ends.get_mut(&slot).expect("listed above");
                end.outgoing.truncate(kept);
            }
            if silent {
                let patience = self.net.patience();
                self.schedule(patience, Due::Net(NetDue::Lost { end: peer }));
            } else if !ended {
                self.enqueue(slot, if keep { Load::Fin } else { Load::Reset });
            }
            self.retire(slot);
        }
    }

    /// Lets a node's machine answer again: peers with a connection to an earlier process learn soon that it is lost.
    pub fn answer_again(&mut self, node: NodeId) {
        let ends = &self.net.ends;
        let gone = |e: &&End| e.peer_node == node && ends.get(&e.peer).is_none_or(|p| p.closed);
        let orphans: Vec<u32> = ends.iter().filter(|(_, e)| gone(e)).map(|(slot, _)| *slot).collect();
        for end in orphans {
            let probe = self.net.jitter(PROBE);
            self.schedule(probe, Due::Net(NetDue::Lost { end }));
        }
    }
}
