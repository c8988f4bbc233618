//! Messages for the tests of this crate.

use bytes::Bytes;
use types::store::Crcs;
use types::{
    Entry, EntryKind, Epoch, Index, IoBuf, PgId, ReplicaId, SectorRange, SessionId, Term, VolumeChunk, VolumeId,
};
use wire::{LeaseRenewal, Message, RaftKind, RaftMsg, Reply, ReplyBody, Request, RequestBody};

const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(1), index: 0 };

pub fn raft(kind: RaftKind, index: u64, entries: Vec<Entry>) -> Message {
    Message::Raft(RaftMsg {
        pg: PgId::default(),
        from: ReplicaId(1),
        to: ReplicaId(2),
        term: Term(1),
        kind,
        log_term: Term(1),
        index: Index(index),
        commit: Index(0),
        commit_term: Term(0),
        reject: false,
        reject_hint: Index(0),
        context: Bytes::new(),
        entries,
    })
}

/// Makes an append of one entry with `len` bytes of payload.
pub fn append(index: u64, len: usize) -> Message {
    let range = SectorRange::new(0, (len / 512) as u32);
    let payload = IoBuf::zeros(len);
    let entry = Entry {
        term: Term(1),
        index: Index(index),
        kind: EntryKind::Normal,
        descriptor: Bytes::from_static(b"write"),
        crcs: Crcs { start: 0, values: range.fragment_crcs(&payload) },
        payload,
    };
    raft(RaftKind::Append, index - 1, vec![entry])
}

pub fn vote(index: u64) -> Message {
    raft(RaftKind::Vote, index, Vec::new())
}

pub fn renewal(sent_at: u64) -> Message {
    Message::LeaseRenewal(LeaseRenewal { sent_at, full: false, spent_aus: 0, items: Vec::new() })
}

fn request(id: u64, body: RequestBody) -> Request {
    Request { id, pg: PgId::default(), session: SessionId(1), epoch: Epoch(1), body }
}

pub fn write(id: u64, len: usize) -> Request {
    let range = SectorRange::new(0, (len / 512) as u32);
    let payload = IoBuf::zeros(len);
    let crcs = range.fragment_crcs(&payload);
    request(id, RequestBody::Write { chunk: CHUNK, range, seq: id, watermark: 0, crcs, payload })
}

pub fn read(id: u64, len: usize) -> Request {
    request(id, RequestBody::Read { chunk: CHUNK, range: SectorRange::new(0, (len / 512) as u32), snapshot: None })
}

pub fn done(id: u64) -> Message {
    Message::Reply(Reply { id, result: Ok(ReplyBody::Done) })
}

pub fn data(id: u64, len: usize) -> Message {
    let payload = IoBuf::zeros(len);
    let crcs = SectorRange::new(0, (len / 512) as u32).fragment_crcs(&payload);
    Message::Reply(Reply { id, result: Ok(ReplyBody::Data { crcs, payload }) })
}

/// Returns a message's kind and number, by which tests compare messages.
pub fn name(message: &Message) -> String {
    match message {
        Message::Raft(m) => format!("{:?} {}", m.kind, m.index.0),
        Message::LeaseRenewal(l) => format!("LeaseRenewal {}", l.sent_at),
        Message::Request(r) => format!("Request {}", r.id),
        Message::Reply(r) => format!("Reply {}", r.id),
        Message::LeaseAck(e) => format!("LeaseAck {}", e.sent_at),
        Message::Used(used) => format!("Used {}", used.len()),
        Message::PassedOn(msg) => format!("PassedOn {}", msg.term.0),
        Message::Ping { answer } => format!("Ping {answer}"),
        Message::LeaseRelease(pgs) => format!("LeaseRelease {}", pgs.len()),
        Message::Stream(msg) => format!("Stream {}", msg.stream),
        Message::Repair(msg) => format!("Repair {}", msg.from.0),
        Message::Mend(msg) => format!("Mend {}", msg.id),
    }
}

pub fn names(messages: &[Message]) -> Vec<String> {
    messages.iter().map(name).collect()
}
