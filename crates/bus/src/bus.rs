//! The bus itself: the calls of its loop. Events are handled in `events`, dialling in `dial`.

use crate::config::{BusConfig, BusEvent, BusStats, LinkId};
use crate::conn::{Conn, Conns, LinkError, Phase, token};
use crate::credit::Credit;
use crate::dial::Route;
use crate::greet::Agreed;
use env::{Event, ListenerId, Op, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use types::rng::Rng;
use types::{IoBuf, OsdId, Time};
use wire::{Message, Peer};

/// Work that is due at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The phase of a connection ends.
    Conn(LinkId),
    Redial(OsdId),
}

/// All connections of one process.
pub struct Bus {
    pub(crate) config: BusConfig,
    pub(crate) rng: Rng,
    /// Time of the last call that passed one.
    pub(crate) now: Time,
    pub(crate) conns: Conns,
    pub(crate) listeners: Vec<ListenerId>,
    /// Accepted connections, and those of them that have not greeted (oldest first).
    pub(crate) accepted: usize,
    pub(crate) strangers: BTreeSet<LinkId>,
    pub(crate) routes: BTreeMap<OsdId, Route>,
    /// The link of every greeted peer.
    pub(crate) peers: BTreeMap<Peer, LinkId>,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    /// Links with something to send and no send in flight.
    pub(crate) ready: Vec<LinkId>,
    /// Operations that were made by calls without a list for them; the next call with a list takes them.
    pub(crate) ops: Vec<Op>,
    pub(crate) out: Vec<BusEvent>,
    /// Scratch space: the messages of one frame.
    pub(crate) frame: Vec<Message>,
    pub(crate) stats: BusStats,
}

impl Bus {
    /// `seed` feeds the jitter of redials.
    ///
    /// # Panics
    /// When the configuration has a fault; the message names all.
    pub fn new(config: BusConfig, seed: u64) -> Bus {
        config.validate().unwrap_or_else(|faults| panic!("{faults}"));
        Bus {
            config,
            rng: Rng::new(seed),
            now: Time::ZERO,
            conns: Conns::default(),
            listeners: Vec::new(),
            accepted: 0,
            strangers: BTreeSet::new(),
            routes: BTreeMap::new(),
            peers: BTreeMap::new(),
            timers: BTreeSet::new(),
            ready: Vec::new(),
            ops: Vec::new(),
            out: Vec::new(),
            frame: Vec::new(),
            stats: BusStats::default(),
        }
    }

    /// Accepts peers on this listener of the env.
    pub fn listen(&mut self, listener: ListenerId) {
        self.listeners.push(listener);
    }

    /// Whether `event` belongs to [`Bus::handle_event`] of this bus.
    pub fn owns(&self, event: &Event) -> bool {
        match event {
            Event::Accepted { listener, .. } => self.listeners.contains(listener),
            Event::Connected { token, .. } | Event::Received { token, .. } | Event::Sent { token, .. } => {
                token.owner == self.config.owner
            }
            _ => false,
        }
    }

    /// Sets the address of an OSD. A changed address drops the connection (or the dial) to the old one and dials the new one,
    /// if the OSD is wanted.
    pub fn set_osd_addr(&mut self, osd: OsdId, addr: SocketAddr) {
        self.route_to(osd, addr);
    }

    /// Keeps a connection to this OSD: dials now, and again whenever it is lost. An OSD does not dial
    /// one of higher id: that one dials.
    pub fn want(&mut self, now: Time, osd: OsdId, ops: &mut Vec<Op>) {
        self.now = now;
        self.keep(osd);
        ops.append(&mut self.ops);
    }

    /// Stops dialling this OSD, and closes the link to it, whichever end dialled it.
    pub fn unwant(&mut self, osd: OsdId, ops: &mut Vec<Op>) {
        self.forget(osd);
        ops.append(&mut self.ops);
    }

    /// Returns the link to this OSD, if there is one.
    pub fn link_to(&self, osd: OsdId) -> Option<LinkId> {
        self.peers.get(&Peer::Osd(osd)).copied()
    }

    /// Returns the time when bytes last arrived from this OSD; `None` when there is no link.
    pub fn heard(&self, osd: OsdId) -> Option<Time> {
        self.conns.get(self.link_to(osd)?).map(|conn| conn.heard)
    }

    /// Returns the peer at the other end; `None` when the link is gone.
    pub fn peer_of(&self, link: LinkId) -> Option<Peer> {
        Some(self.agreed(link)?.peer)
    }

    fn agreed(&self, link: LinkId) -> Option<&Agreed> {
        match &self.conns.get(link)?.phase {
            Phase::Up { agreed, .. } => Some(agreed),
            _ => None,
        }
    }

    /// Queues a message, which leaves at the end of a turn. Urgent messages leave first (see `tx` for the order
    /// that is kept). False: the link is gone and the message is lost. A link whose queue would go beyond
    /// `queue_bytes_max` or `queue_messages_max` is closed now; then `Down` follows.
    ///
    /// # Panics
    /// When no frame can hold the message, or this process may not send it to such a peer.
    pub fn send(&mut self, link: LinkId, message: Message) -> bool {
        let Some(conn) = self.conns.get_mut(link) else { return false };
        let Phase::Up { agreed, .. } = &conn.phase else { return false };
        assert!(may_send(self.config.identity.peer, agreed.peer, &message), "not a message for {:?}", agreed.peer);
        conn.tx.push(message);
        let (bytes, messages) = (conn.tx.bytes(), conn.tx.len());
        if bytes > self.config.tuning.queue_bytes_max || messages > self.config.tuning.queue_messages_max {
            self.end(link, LinkError::Overflow { bytes, messages });
            return false;
        }
        self.make_ready(link);
        true
    }

    /// Puts the link on the list of the turn's end, unless a send is in flight or no message waits.
    pub(crate) fn make_ready(&mut self, link: LinkId) {
        let Some(conn) = self.conns.get_mut(link) else { return };
        if !conn.tx.listed && !conn.tx.sending && !conn.tx.is_empty() {
            conn.tx.listed = true;
            self.ready.push(link);
        }
    }

    /// Client side: whether a request may leave now that brings (write) or asks for (read) this much payload.
    /// Requests in flight and queued ones count. A request that is sent without credit is not lost: it
    /// waits in the queue until replies return credit. False on a link that is gone or not to an OSD.
    pub fn has_credit(&self, link: LinkId, payload_len: usize) -> bool {
        match self.conns.get(link).map(|conn| (&conn.phase, &conn.tx)) {
            Some((Phase::Up { credit: Some(credit), .. }, tx)) => tx.admits(credit, payload_len),
            _ => false,
        }
    }

    /// Returns the bytes that wait for the link, heads and payloads; zero when it is gone.
    pub fn queued_bytes(&self, link: LinkId) -> usize {
        self.conns.get(link).map_or(0, |conn| conn.tx.bytes())
    }

    /// Handles an event that [`Bus::owns`] claims.
    ///
    /// # Panics
    /// When the event belongs to another owner.
    pub fn handle_event(&mut self, now: Time, event: Event, ops: &mut Vec<Op>, out: &mut Vec<BusEvent>) {
        assert!(self.owns(&event), "an event of another owner: {event:?}");
        self.now = now;
        out.append(&mut self.out);
        self.take_event(event, out);
        out.append(&mut self.out);
        ops.append(&mut self.ops);
    }

    /// Sends one frame on every link that has a message to send and no send in flight. A frame has at most 1 MiB of
    /// payload; further messages wait for the turn in which that send completes.
    pub fn end_turn(&mut self, now: Time, ops: &mut Vec<Op>) {
        self.now = now;
        let mut ready = std::mem::take(&mut self.ready);
        for link in ready.drain(..) {
            self.send_frame(link);
        }
        self.ready = ready;
        ops.append(&mut self.ops);
    }

    fn send_frame(&mut self, link: LinkId) {
        let Some(conn) = self.conns.get_mut(link) else { return };
        conn.tx.listed = false;
        let Phase::Up { agreed, credit } = &mut conn.phase else { return };
        if conn.tx.sending {
            return;
        }
        let idle = credit.as_ref().is_some_and(Credit::is_idle);
        conn.tx.fill(&mut self.frame, credit.as_mut());
        if self.frame.is_empty() {
            return; // Requests that wait for credit: a reply makes the link ready again.
        }
        let asks = idle && !credit.as_ref().is_some_and(Credit::is_idle);
        if asks {
            conn.asked = self.now;
        }
        let unwatched = asks && conn.deadline == Time::NEVER;
        let mut bufs = Vec::with_capacity(1 + self.frame.len());
        wire::encode_batch(agreed.version, &self.frame, &mut bufs);
        self.stats.frames_out += 1;
        self.stats.messages_out += self.frame.len() as u64;
        self.frame.clear();
        // Nothing waits for its end but the messages that did not fit.
        let quiet = self.conns.get(link).is_some_and(|conn| conn.tx.is_empty());
        self.submit(link, bufs, quiet);
        if unwatched {
            self.judge_silence(link);
        }
    }

    /// Submits the one send of a connection to the env. `quiet`: the end of the turn comes next, and nothing waits for
    /// the end of the send.
    pub(crate) fn submit(&mut self, link: LinkId, bufs: Vec<IoBuf>, quiet: bool) {
        let token = self.token(link);
        let conn = self.conns.get_mut(link).expect("a sending link exists");
        assert!(!conn.tx.sending, "one send in flight a connection");
        conn.tx.sending = true;
        self.stats.bytes_out += bufs.iter().map(|b| b.len() as u64).sum::<u64>();
        let conn = conn.net.expect("a connection that sends is connected");
        self.ops.push(Op::Send { token, conn, bufs, quiet });
    }

    /// Returns the time at which [`Bus::handle_deadline`] is due: at once when operations or events wait to be taken.
    pub fn next_deadline(&self) -> Time {
        if !self.ops.is_empty() || !self.out.is_empty() {
            return Time::ZERO;
        }
        self.timers.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Ends connections that have waited too long, and dials again.
    pub fn handle_deadline(&mut self, now: Time, ops: &mut Vec<Op>, out: &mut Vec<BusEvent>) {
        self.now = now;
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Conn(link) => self.phase_over(link, at),
                Timer::Redial(osd) => self.redial(osd, at),
            }
        }
        out.append(&mut self.out);
        ops.append(&mut self.ops);
    }

    /// Handles the end of a connection's phase: it has lasted as long as it may.
    fn phase_over(&mut self, link: LinkId, at: Time) {
        let conn = self.conns.get(link).expect("a timer goes with its connection");
        assert_eq!(conn.deadline, at, "a connection has one timer");
        match conn.phase {
            Phase::Dialing { .. } => self.end(link, LinkError::DialTimeout),
            Phase::Greeting | Phase::Refusing { .. } => self.end(link, LinkError::HelloTimeout),
            Phase::Up { .. } => self.judge_silence(link),
            Phase::Abandoned { .. } => unreachable!("this phase has no end"),
        }
    }

    /// Returns the bytes that wait on each connection.
    pub fn queued(&self) -> impl Iterator<Item = usize> {
        self.conns.iter().map(|conn| conn.tx.bytes())
    }

    pub fn stats(&self) -> BusStats {
        self.stats
    }

    pub(crate) fn token(&self, link: LinkId) -> Token {
        token(self.config.owner, link)
    }

    /// Moves the end of a connection's phase; with `Time::NEVER` the phase has no end.
    pub(crate) fn set_deadline(&mut self, link: LinkId, at: Time) {
        let Some(conn) = self.conns.get_mut(link) else { return };
        self.timers.remove(&(conn.deadline, Timer::Conn(link)));
        conn.deadline = at;
        if at != Time::NEVER {
            self.timers.insert((at, Timer::Conn(link)));
        }
    }

    /// Ends a connection in any phase, tells the loop what was lost, and schedules the next dial of a wanted OSD.
    pub(crate) fn end(&mut self, link: LinkId, why: LinkError) {
        self.set_deadline(link, Time::NEVER);
        let Some(conn) = self.conns.get_mut(link) else { return };
        self.stats.bad_peers += u64::from(why.is_peers_fault());
        let dialled = conn.dialled.take();
        if let (Some(osd), LinkError::Silent(max)) = (dialled, &why) {
            self.be_patient(osd, *max);
        }
        let conn = self.conns.get_mut(link).expect("it was there");
        if let Phase::Dialing { osd } = conn.phase {
            conn.phase = Phase::Abandoned { osd }; // the slot stays until the env has answered
        } else {
            let conn = self.conns.remove(link).expect("it was there");
            self.close(link, &conn);
            if let Phase::Up { agreed, .. } = conn.phase {
                self.stats.links_down += 1;
                if self.peers.get(&agreed.peer) == Some(&link) {
                    self.peers.remove(&agreed.peer);
                }
                self.out.push(BusEvent::Down { link, peer: agreed.peer, reason: why.to_string() });
                dialled.iter().for_each(|osd| self.lost_route(*osd, &why, false));
                return;
            }
        }
        dialled.iter().for_each(|osd| self.lost_route(*osd, &why, true));
    }

    /// Closes the socket of an ended connection and updates the counts of accepted ones.
    fn close(&mut self, link: LinkId, conn: &Conn) {
        if let Some(net) = conn.net {
            self.ops.push(Op::Close { conn: net });
        }
        if conn.accepted {
            self.accepted -= 1;
            self.strangers.remove(&link);
        }
    }
}

/// Whether a process may send such a message to such a peer; the receiver checks with the same table.
pub(crate) fn may_send(from: Peer, to: Peer, message: &Message) -> bool {
    match (from, to) {
        (Peer::Client(_), _) => matches!(message, Message::Request(_) | Message::Ping { answer: false }),
        (Peer::Osd(_), Peer::Client(_)) => matches!(message, Message::Reply(_) | Message::Ping { answer: true }),
        (Peer::Osd(_), Peer::Osd(_)) => {
            !matches!(message, Message::Request(_) | Message::Reply(_) | Message::Ping { .. })
        }
    }
}

/// Makes the credit account of a new link: a client keeps the credit that the OSD granted, an OSD the credit that it grants.
pub(crate) fn credit_of(config: &BusConfig, agreed: &Agreed) -> Option<Credit> {
    match (config.identity.peer, agreed.peer) {
        (Peer::Osd(_), Peer::Osd(_)) => None,
        (Peer::Osd(_), Peer::Client(_)) => Some(Credit::new(config.tuning.credit_ops, config.tuning.credit_bytes)),
        (Peer::Client(_), _) => Some(Credit::new(agreed.credit_ops, agreed.credit_bytes)),
    }
}
