//! The replica's word on the network, read by a parser of its own (`docs/formats.md`): the messages of raft, the leader's
//! renewals, and the messages of a stream that acknowledge.
//!
//! Input: the bytes of one send between two OSDs, which is one frame. Output: [`Message`]s. Invariant: the parser shares no
//! code with `wire` and `bus`. It panics when the bytes of an OSD are not as the page says.

use types::IoBuf;

const FRAME: usize = 64;
const RECORD: usize = 8;
const RAFT: usize = 80;
const ENTRY: usize = 32;
const RENEWAL: usize = 24;
const RENEWAL_ITEM: usize = 48;
const BATCH_FRAME: u8 = 3;

/// Kinds of records.
mod record {
    pub const RAFT: u8 = 32;
    pub const RENEWAL: u8 = 48;
    pub const STREAM: u8 = 64;
}

/// Kinds of raft messages.
pub mod raft {
    pub const APPEND: u8 = 1;
    pub const APPEND_RESPONSE: u8 = 2;
    pub const VOTE: u8 = 3;
    pub const VOTE_RESPONSE: u8 = 4;
    pub const PRE_VOTE: u8 = 5;
    pub const PRE_VOTE_RESPONSE: u8 = 6;
}

/// Bodies of stream messages whose commit index the leader takes for an acknowledgement.
const STREAM_ACCEPT: u8 = 2;
const STREAM_DONE: u8 = 7;
const STREAM_FILLING: u8 = 12;

/// A message that says something of its sender's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Raft(Raft),
    /// `from` leads in this term.
    Leads {
        from: u64,
        term: u64,
    },
    /// `from` durably holds all committed entries up to `index`.
    Holds {
        from: u64,
        index: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raft {
    pub pg: u64,
    pub from: u64,
    pub to: u64,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub kind: u8,
    pub rejects: bool,
    /// Index and term of each entry.
    pub entries: Vec<(u64, u64)>,
}

/// Returns the messages of a frame.
///
/// # Panics
/// When the bytes are no frame.
pub fn messages(bufs: &[IoBuf]) -> Vec<Message> {
    let first = bufs.first().expect("a send has bytes");
    assert!(first.starts_with(b"BSLT"), "a send begins with a frame");
    if first[6] != BATCH_FRAME {
        return Vec::new();
    }
    let (head_len, count) = (u32_at(first, 8), u32_at(first, 16));
    let mut rest = &first[FRAME..FRAME + head_len];
    let mut all = Vec::new();
    for _ in 0..count {
        let (kind, len) = (rest[0], u32_at(rest, 4));
        let body = &rest[RECORD..RECORD + len];
        match kind {
            record::RAFT => all.push(Message::Raft(raft_message(body))),
            record::RENEWAL => all.extend(renewals(body)),
            record::STREAM if matches!(body[72], STREAM_ACCEPT | STREAM_DONE | STREAM_FILLING) => {
                all.push(Message::Holds { from: u64_at(body, 8), index: u64_at(body, 40) });
            }
            _ => {}
        }
        rest = &rest[RECORD + len..];
    }
    assert!(rest.is_empty(), "a frame has its records and nothing else");
    all
}

fn raft_message(body: &[u8]) -> Raft {
    let count = u32_at(body, 76);
    let mut at = RAFT + usize::from(body[74]);
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let entry = &body[at..];
        let (payload, start) = (u32_at(entry, 16), u32_at(entry, 20));
        let descriptor = usize::from(u16::from_le_bytes([entry[24], entry[25]]));
        entries.push((u64_at(entry, 8), u64_at(entry, 0)));
        at += ENTRY + descriptor + 4 * fragments(start, payload / 512);
    }
    assert_eq!(at, body.len(), "a message has its entries and nothing else");
    Raft {
        pg: u64_at(body, 0),
        from: u64_at(body, 8),
        to: u64_at(body, 16),
        term: u64_at(body, 24),
        log_term: u64_at(body, 32),
        index: u64_at(body, 40),
        kind: body[72],
        rejects: body[73] & 1 != 0,
        entries,
    }
}

fn renewals(body: &[u8]) -> impl Iterator<Item = Message> {
    let items = body[RENEWAL..].chunks_exact(RENEWAL_ITEM);
    assert!(items.remainder().is_empty(), "a renewal has its items and nothing else");
    items.flat_map(|item| {
        let (from, term, complete) = (u64_at(item, 8), u64_at(item, 24), u64_at(item, 40));
        let holds = (complete > 0).then_some(Message::Holds { from, index: complete });
        [Message::Leads { from, term }].into_iter().chain(holds)
    })
}

/// Counts the aligned blocks of eight sectors that a range touches.
fn fragments(start: usize, sectors: usize) -> usize {
    if sectors == 0 { 0 } else { (start + sectors).div_ceil(8) - start / 8 }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::store::Crcs;
    use types::{Entry, EntryKind, Index, PgId, PoolId, ReplicaId, Term};
    use wire::{LeaseRenewal, RaftKind, RaftMsg, RenewalItem, StreamBody, StreamMsg};

    #[test]
    fn messages_are_read_as_they_were_sent() {
        let pg = PgId { pool: PoolId(1), n: 7 };
        let (from, to, term) = (ReplicaId(3), ReplicaId(4), Term(9));
        let entry = |index, start, sectors: usize| Entry {
            term: Term(8),
            index: Index(index),
            kind: EntryKind::Normal,
            descriptor: vec![1; 56].into(),
            payload: IoBuf::zeros(512 * sectors),
            crcs: Crcs { start, values: types::CrcList::from_elem(5, fragments(start as usize, sectors)) },
        };
        let append = RaftMsg {
            pg,
            from,
            to,
            term,
            kind: RaftKind::Append,
            log_term: Term(8),
            index: Index(20),
            commit: Index(19),
            commit_term: Term(8),
            reject: false,
            reject_hint: Index(0),
            context: vec![1, 2, 3].into(),
            entries: vec![entry(21, 7, 2), entry(22, 8, 8), entry(23, 0, 0)],
        };
        let reject = RaftMsg { kind: RaftKind::AppendResponse, reject: true, entries: Vec::new(), ..append.clone() };
        let item = RenewalItem { pg, from, to, term, commit: Index(2), complete: Index(2) };
        let renewal = LeaseRenewal { sent_at: 1, full: true, spent_aus: 2, items: vec![item] };
        let done = StreamBody::Done { term, commit: Index(44) };
        let stream = |body| wire::Message::Stream(StreamMsg { pg, from, to, stream: 6, body });
        let sent = [
            wire::Message::Raft(append),
            wire::Message::Raft(reject),
            wire::Message::LeaseRenewal(renewal),
            stream(StreamBody::Open { needed: false }),
            stream(done),
        ];
        let mut bufs = Vec::new();
        wire::encode_batch(1, &sent, &mut bufs);
        let read = messages(&bufs);
        let [Message::Raft(append), Message::Raft(reject), leads, complete, holds] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!(append.entries, [(21, 8), (22, 8), (23, 8)]);
        let ids = (append.from, append.to, append.term, append.log_term, append.index);
        assert_eq!((ids, append.kind, append.rejects), ((3, 4, 9, 8, 20), raft::APPEND, false));
        assert_eq!((reject.kind, reject.rejects, reject.pg), (raft::APPEND_RESPONSE, true, append.pg));
        assert_eq!(*leads, Message::Leads { from: 3, term: 9 });
        assert_eq!(*complete, Message::Holds { from: 3, index: 2 });
        assert_eq!(*holds, Message::Holds { from: 3, index: 44 });
    }
}
