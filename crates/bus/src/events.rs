//! Events of the env: connections, bytes and ends; and the exchange of hellos.
//!
//! The side that has dialled sends its hello first; the other checks it and answers with its own hello or
//! with a refusal. A link is up for the accepting side when it has sent its hello, for the dialling side
//! when it has read the answer.

use crate::bus::{Bus, credit_of, may_send};
use crate::config::{BusEvent, LinkId};
use crate::conn::{Conn, LinkError, Phase};
use crate::greet::{self, Agreed, GreetError};
use crate::rx::Frame;
use env::{ConnId, Event, NetError, Op};
use types::{IoBufMut, Time};
use wire::{FrameKind, Message};

/// Buffer for bytes that a refused peer still sends.
const DISCARD_LEN: usize = 4096;

impl Bus {
    pub(crate) fn take_event(&mut self, event: Event, out: &mut Vec<BusEvent>) {
        match event {
            Event::Accepted { conn, .. } => self.accepted(conn),
            Event::Connected { token, result } => {
                let link = self.conns.find(token).expect("a dial's slot waits for its answer");
                self.connected(link, result);
            }
            Event::Received { token, bufs, result, .. } => {
                // A connection that this bus closed gives its buffers back: they are dropped here.
                let Some(link) = self.conns.find(token) else { return };
                match result {
                    Ok(len) => self.received(link, bufs, len, out),
                    Err(e) => self.end(link, LinkError::Net(e)),
                }
            }
            Event::Sent { token, result, .. } => {
                let Some(link) = self.conns.find(token) else { return };
                match result {
                    Ok(()) => self.sent(link),
                    Err(e) => self.end(link, LinkError::Net(e)),
                }
            }
            other => unreachable!("not ours: {other:?}"),
        }
    }

    /// Takes an accepted connection. When all are taken, the oldest one without a hello is evicted; links stay.
    fn accepted(&mut self, net: ConnId) {
        if self.accepted >= self.config.tuning.max_links {
            self.stats.refused += 1;
            let Some(oldest) = self.strangers.first().copied() else {
                return self.ops.push(Op::Close { conn: net });
            };
            self.end(oldest, LinkError::Evicted);
        }
        let link = self.conns.insert(Conn::new(Some(net), None, Phase::Greeting));
        self.accepted += 1;
        self.strangers.insert(link);
        self.set_deadline(link, self.now + self.config.tuning.hello_timeout);
        self.receive(link);
    }

    fn connected(&mut self, link: LinkId, result: Result<ConnId, NetError>) {
        let conn = self.conns.get_mut(link).expect("it was found");
        let (Phase::Dialing { osd } | Phase::Abandoned { osd }) = conn.phase else {
            unreachable!("a dial is answered once");
        };
        let waited_for = matches!(conn.phase, Phase::Dialing { .. });
        self.dial_answered(osd);
        match result {
            Ok(net) if waited_for => {
                let conn = self.conns.get_mut(link).expect("it was found");
                conn.net = Some(net);
                conn.phase = Phase::Greeting;
                self.set_deadline(link, self.now + self.config.tuning.hello_timeout);
                let hello = wire::encode_hello(&greet::hello(&self.config, Some(osd)));
                self.submit(link, vec![hello], false);
                self.receive(link);
            }
            Err(e) if waited_for => {
                // The dial is over: the env owes no answer for which the slot would have to wait.
                self.end(link, LinkError::Net(e));
                self.conns.remove(link);
            }
            late => {
                self.ops.extend(late.ok().map(|conn| Op::Close { conn }));
                self.conns.remove(link);
            }
        }
    }

    /// Submits the next receive.
    fn receive(&mut self, link: LinkId) {
        let token = self.token(link);
        let conn = self.conns.get_mut(link).expect("a receiving link exists");
        let (bufs, min) = match conn.phase {
            Phase::Refusing { .. } => (vec![IoBufMut::new(DISCARD_LEN)], 1),
            _ => conn.rx.next(!matches!(conn.phase, Phase::Up { .. })),
        };
        let conn = conn.net.expect("a connection that receives is connected");
        self.ops.push(Op::Recv { token, conn, bufs, min });
    }

    fn received(&mut self, link: LinkId, bufs: Vec<IoBufMut>, len: usize, out: &mut Vec<BusEvent>) {
        let conn = self.conns.get_mut(link).expect("it was found");
        self.stats.bytes_in += len as u64;
        conn.heard = self.now;
        let result = match &conn.phase {
            Phase::Refusing { .. } => Ok(()),
            Phase::Dialing { .. } | Phase::Abandoned { .. } => unreachable!("nothing is received before a connection"),
            Phase::Greeting | Phase::Up { .. } => {
                conn.rx.received(bufs, len);
                self.take_frames(link, out)
            }
        };
        match result {
            Ok(()) if self.conns.get(link).is_some() => self.receive(link),
            Ok(()) => {}
            Err(e) => self.end(link, e),
        }
    }

    /// Takes all complete frames.
    fn take_frames(&mut self, link: LinkId, out: &mut Vec<BusEvent>) -> Result<(), LinkError> {
        while let Some(conn) = self.conns.get_mut(link) {
            let greeting = match conn.phase {
                Phase::Up { .. } => false,
                Phase::Greeting => true,
                // The peer was refused: what else it has sent is void.
                _ => return Ok(()),
            };
            let frame = conn.rx.frame(greeting)?;
            self.stats.copied_bytes += conn.rx.take_copied();
            let Some(frame) = frame else { return Ok(()) };
            self.take_frame(link, frame, out)?;
        }
        Ok(())
    }

    fn take_frame(&mut self, link: LinkId, frame: Frame, out: &mut Vec<BusEvent>) -> Result<(), LinkError> {
        self.stats.frames_in += 1;
        let conn = self.conns.get(link).expect("it was found");
        match (frame.header.kind(), &conn.phase) {
            (FrameKind::Refuse, _) => {
                let refuse = wire::decode_refuse(&frame.header, &frame.head)?;
                Err(LinkError::RefusedThere(refuse))
            }
            (FrameKind::Hello, Phase::Greeting) => self.greeted(link, &frame),
            (FrameKind::Batch, Phase::Up { .. }) => self.take_batch(link, frame, out),
            _ => Err(LinkError::Role),
        }
    }

    fn take_batch(&mut self, link: LinkId, frame: Frame, out: &mut Vec<BusEvent>) -> Result<(), LinkError> {
        let me = self.config.identity.peer;
        let conn = self.conns.get_mut(link).expect("it was found");
        let Phase::Up { agreed, credit } = &mut conn.phase else { unreachable!("only links take batches") };
        if frame.header.version() != agreed.version {
            return Err(wire::WireError::Version(frame.header.version()).into());
        }
        let mut messages = std::mem::take(&mut self.frame);
        let mut result =
            wire::decode_batch(&frame.header, &frame.head, frame.payload, &mut messages).map_err(LinkError::from);
        self.stats.messages_in += messages.len() as u64;
        let (mut credit_came, mut pings) = (false, 0);
        for message in messages.drain(..) {
            result = match (&message, credit.as_mut()) {
                _ if !may_send(agreed.peer, me, &message) => Err(LinkError::Role),
                (Message::Request(request), Some(credit)) => {
                    credit.take(request.id, request.body.cost()).map_err(LinkError::from)
                }
                (Message::Reply(reply), Some(credit)) => {
                    credit_came = true;
                    credit.give(reply.id).map_err(LinkError::from)
                }
                _ => Ok(()),
            };
            if result.is_err() {
                break;
            }
            if let Message::Ping { answer } = &message {
                pings += u32::from(!answer);
                continue;
            }
            out.push(BusEvent::Message { link, message });
        }
        self.frame = messages;
        if credit_came {
            self.make_ready(link);
        }
        // One answer serves all pings of a frame.
        if pings > 0 && result.is_ok() {
            self.send(link, Message::Ping { answer: true });
        }
        result
    }

    /// Handles the other side's hello.
    fn greeted(&mut self, link: LinkId, frame: &Frame) -> Result<(), LinkError> {
        let hello = wire::decode_hello(&frame.header, &frame.head)?;
        let dialled = self.conns.get(link).expect("it was found").dialled;
        match greet::judge(&self.config, &hello, dialled) {
            Ok(agreed) => self.come_up(link, agreed),
            Err(e) => self.refuse(link, e),
        }
        Ok(())
    }

    fn come_up(&mut self, link: LinkId, agreed: Agreed) {
        if let Some(older) = self.peers.get(&agreed.peer).copied() {
            self.end(older, LinkError::Replaced);
        }
        self.strangers.remove(&link);
        self.set_deadline(link, Time::NEVER);
        let credit = credit_of(&self.config, &agreed);
        let conn = self.conns.get_mut(link).expect("it was found");
        conn.phase = Phase::Up { agreed, credit };
        conn.heard = self.now;
        match conn.dialled {
            Some(osd) => self.route_is_up(osd),
            None => {
                let hello = wire::encode_hello(&greet::hello(&self.config, None));
                self.submit(link, vec![hello], false);
            }
        }
        self.peers.insert(agreed.peer, link);
        self.judge_silence(link);
        self.stats.links_up += 1;
        self.out.push(BusEvent::Up { link, peer: agreed.peer, incarnation: agreed.incarnation });
    }

    /// Sends the reason of a refusal to the other side, and leaves it time to read it.
    fn refuse(&mut self, link: LinkId, why: GreetError) {
        self.stats.refused += 1;
        let conn = self.conns.get_mut(link).expect("it was found");
        let dialled = conn.dialled.take();
        let refuse = why.refuse();
        if conn.tx.sending {
            conn.phase = Phase::Refusing { say: Some(refuse) }; // after our hello
        } else {
            conn.phase = Phase::Refusing { say: None };
            self.submit(link, vec![wire::encode_refuse(&refuse)], false);
        }
        self.set_deadline(link, self.now + self.config.tuning.linger);
        if let Some(osd) = dialled {
            self.lost_route(osd, &LinkError::RefusedHere(why), true);
        }
    }

    fn sent(&mut self, link: LinkId) {
        let conn = self.conns.get_mut(link).expect("it was found");
        assert!(conn.tx.sending, "a send completes once");
        conn.tx.sending = false;
        match &mut conn.phase {
            Phase::Refusing { say } => {
                let refusal = say.take().map(|refuse| wire::encode_refuse(&refuse));
                refusal.into_iter().for_each(|bytes| self.submit(link, vec![bytes], false));
            }
            _ => self.make_ready(link),
        }
    }
}
