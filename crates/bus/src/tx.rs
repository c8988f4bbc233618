//! The sending side of a connection: messages wait in three queues until the turn ends, then one frame is
//! filled from them.
//!
//! *Urgent* messages are small, and peers wait for them: votes, acknowledgements, heartbeats, lease renewals, their
//! acknowledgements and releases, pings, reads, and replies and block repair without payload. *Bulk* messages are appends,
//! snapshots, writes (with zeroes and skips, so that a session's sequence numbers stay nearly in order), and replies and
//! block repair with payload. *Background* messages are streams and log repair: they take the space that is left in a frame.
//! Each queue is first in, first out.
//!
//! Raft tolerates this order. Between two replicas only appends (and the snapshot between them) must stay in order, and
//! those share a queue. A message that overtakes them says nothing that an append behind it could contradict. The commit of
//! a heartbeat or lease renewal is min(match, commit), so it never goes beyond the receiver's acknowledgements. An
//! acknowledgement or a vote concerns the other direction's log or none. A TimeoutNow is sent only to a replica that has
//! acknowledged everything. And raft was made for networks that reorder. Lease renewals, their acknowledgements and
//! releases keep their order among themselves, so no renewal that was sent before a release arrives after it (R3).

use crate::credit::Credit;
use std::collections::VecDeque;
use types::limits::{FRAME_PAYLOAD_MAX, FRAME_RECORDS_MAX};
use wire::{HEAD_LEN_MAX, Message, RaftKind, RequestBody};

struct Queued {
    head_len: usize,
    payload_len: usize,
    message: Message,
}

#[derive(Default)]
pub struct Tx {
    urgent: VecDeque<Queued>,
    bulk: VecDeque<Queued>,
    background: VecDeque<Queued>,
    bytes: usize,
    /// Number of queued requests, and their cost.
    requests: usize,
    requests_cost: usize,
    /// A send is in flight.
    pub sending: bool,
    /// The link is on the list of the turn's end.
    pub listed: bool,
}

fn is_urgent(message: &Message, payload_len: usize) -> bool {
    match message {
        Message::LeaseRenewal(_) | Message::LeaseAck(_) | Message::LeaseRelease(_) => true,
        Message::PassedOn(_) | Message::Used(_) | Message::Ping { .. } => true,
        Message::Raft(msg) => msg.kind != RaftKind::Append && msg.entries.is_empty(),
        Message::Reply(_) => payload_len == 0,
        Message::Request(r) => {
            !matches!(r.body, RequestBody::Write { .. } | RequestBody::Zero { .. } | RequestBody::Skip { .. })
        }
        Message::Mend(_) => payload_len == 0,
        Message::Stream(_) | Message::Repair(_) => false,
    }
}

impl Tx {
    /// # Panics
    /// When the message does not fit into a frame: its sender did not split it.
    pub fn push(&mut self, message: Message) {
        let (head_len, payload_len) = (message.head_len(), message.payload_len());
        assert!(
            head_len <= HEAD_LEN_MAX && payload_len <= FRAME_PAYLOAD_MAX,
            "a message of {head_len} + {payload_len} B fits into no frame"
        );
        self.bytes += head_len + payload_len;
        if let Message::Request(request) = &message {
            self.requests += 1;
            self.requests_cost += request.body.cost();
        }
        let queue = match &message {
            Message::Stream(_) | Message::Repair(_) => &mut self.background,
            message if is_urgent(message, payload_len) => &mut self.urgent,
            _ => &mut self.bulk,
        };
        queue.push_back(Queued { head_len, payload_len, message });
    }

    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.bulk.is_empty() && self.background.is_empty()
    }

    /// Counts the messages that wait.
    pub fn len(&self) -> usize {
        self.urgent.len() + self.bulk.len() + self.background.len()
    }

    /// Returns the bytes that wait, heads and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the link's credit covers one more request beside those that wait.
    pub fn admits(&self, credit: &Credit, cost: usize) -> bool {
        credit.admits(self.requests, self.requests_cost, cost)
    }

    /// Moves the messages that fit into one frame to `frame`. A request without credit waits, and so do the messages
    /// behind it in its queue.
    ///
    /// # Panics
    /// When a reply answers no request in flight, or a request's id is in flight already.
    pub fn fill(&mut self, frame: &mut Vec<Message>, mut credit: Option<&mut Credit>) {
        assert!(frame.is_empty() && !self.sending, "one frame at a time");
        let mut head_room = HEAD_LEN_MAX;
        let mut payload_room = FRAME_PAYLOAD_MAX;
        for queue in [&mut self.urgent, &mut self.bulk, &mut self.background] {
            while let Some(front) = queue.front() {
                let fits = front.head_len <= head_room && front.payload_len <= payload_room;
                if !fits || frame.len() == FRAME_RECORDS_MAX {
                    break;
                }
                match (&front.message, credit.as_deref_mut()) {
                    (Message::Request(request), Some(credit)) => {
                        let cost = request.body.cost();
                        if !credit.admits(0, 0, cost) {
                            break;
                        }
                        credit.take(request.id, cost).expect("request ids are unique on a link");
                        self.requests -= 1;
                        self.requests_cost -= cost;
                    }
                    (Message::Reply(reply), Some(credit)) => {
                        credit.give(reply.id).expect("a request is answered once");
                    }
                    _ => {}
                }
                let taken = queue.pop_front().expect("it was in front");
                head_room -= taken.head_len;
                payload_room -= taken.payload_len;
                self.bytes -= taken.head_len + taken.payload_len;
                frame.push(taken.message);
            }
        }
    }
}
