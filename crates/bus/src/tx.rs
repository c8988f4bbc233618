//! The sending side of a connection: messages wait in three queues until the turn ends, then one frame is
//! filled from them.
//!
//! *Urgent* is what others wait for and what costs little: votes, acknowledgements, heartbeats, listings
//! and their echoes, goodbyes, reads, replies without payload. *Bulk* is appends, snapshots, writes (with
//! zeroes and skips, so that a session's sequence numbers stay nearly in order) and replies with payload.
//! *Background* is streams: they take what room a frame has left. Each queue is first in, first out.
//!
//! Why raft tolerates that: what must stay in order between two replicas are appends (and the snapshot
//! between them), and those share a queue. What overtakes them says nothing that an append behind it
//! could contradict: a heartbeat's or listing's commit is min(match, commit), so it never reaches past
//! what the receiver has acknowledged; an acknowledgement or a vote concerns the other direction's log or
//! none; a TimeoutNow is sent only to a replica that has acknowledged everything; and a network that
//! reorders is what raft was made for. Listings, echoes and goodbyes keep their order among themselves,
//! so no renewal that was sent before a goodbye arrives after it (R3).

use crate::credit::{Credit, request_cost};
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
    /// Requests among the queued, and their cost.
    requests: usize,
    requests_cost: usize,
    /// A send is in flight.
    pub sending: bool,
    /// The loop's end of turn will look here.
    pub listed: bool,
}

fn is_urgent(message: &Message, payload_len: usize) -> bool {
    match message {
        Message::Listing(_) | Message::ListingEcho(_) | Message::Goodbye(_) => true,
        Message::PassedOn(_) | Message::Ping { .. } => true,
        Message::Raft(msg) => !matches!(msg.kind, RaftKind::Append | RaftKind::Snapshot) && msg.entries.is_empty(),
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
    /// When the message does not fit into a frame: whoever made it did not cut it.
    pub fn push(&mut self, message: Message) {
        let (head_len, payload_len) = (message.head_len(), message.payload_len());
        assert!(
            head_len <= HEAD_LEN_MAX && payload_len <= FRAME_PAYLOAD_MAX,
            "a message of {head_len} + {payload_len} B fits into no frame"
        );
        self.bytes += head_len + payload_len;
        if let Message::Request(request) = &message {
            self.requests += 1;
            self.requests_cost += request_cost(request);
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

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.urgent.len() + self.bulk.len() + self.background.len()
    }

    /// Bytes that wait, heads and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the link's credit has room for one more request beside those that wait.
    pub fn admits(&self, credit: &Credit, cost: usize) -> bool {
        credit.admits(self.requests, self.requests_cost, cost)
    }

    /// Moves what fits into one frame to `frame`. A request for which there is no credit waits, and
    /// those behind it in its queue.
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
                        let cost = request_cost(request);
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
