//! Answers of honest peers, and the changes that make an answer a lie.
//!
//! The two peers hold one log between them, as if both had acknowledged all of it. Invariant: an unaltered answer is
//! one that a real member could give.

use super::{CHUNK, PEERS, PG};
use crate::source::Source;
use bytes::BytesMut;
use engine::testing::IDS;
use group::descriptor::{Command, Stamp};
use std::collections::BTreeMap;
use types::control::Attach;
use types::store::Crcs;
use types::writers::Writers;
use types::{
    CrcList, Entry, EntryKind, Epoch, GenerationId, Index, IoBuf, ReplicaId, SectorRange, SessionId, Term, VolumeId,
    crc32c,
};
use wire::{
    Lack, LeaseAck, MEND_BLOCKS_MAX, MendBody, MendMsg, Message, RaftKind, RaftMsg, RepairBody, RepairMsg, StreamBody,
    StreamMsg,
};

/// Bound of the peers' log; they add no entries beyond it.
const ENTRIES_MAX: u64 = 200;

#[derive(Default)]
pub struct Peers {
    pub term: Term,
    log: BTreeMap<Index, Entry>,
    commit: Index,
}

fn head(from: ReplicaId, term: Term, kind: RaftKind) -> RaftMsg {
    RaftMsg {
        pg: PG,
        from,
        to: ReplicaId(IDS.1.0.into()),
        term,
        kind,
        log_term: Term(0),
        index: Index(0),
        commit: Index(0),
        commit_term: Term(0),
        reject: false,
        reject_hint: Index(0),
        context: bytes::Bytes::new(),
        entries: Vec::new(),
    }
}

impl Peers {
    pub fn last(&self) -> Index {
        self.log.last_key_value().map_or(Index(0), |(index, _)| *index)
    }

    fn term_at(&self, index: Index) -> Term {
        self.log.get(&index).map_or(Term(0), |entry| entry.term)
    }

    /// Returns the payload of an entry, or the answer that it is not available.
    pub fn payload_of(&self, index: Index, term: Term) -> RepairBody {
        match self.log.get(&index).filter(|e| e.term == term && !e.payload.is_empty()) {
            Some(e) => RepairBody::Payload {
                index,
                term,
                start: e.crcs.start,
                crcs: e.crcs.values.clone(),
                payload: e.payload.clone(),
            },
            None => RepairBody::Lack { index, term, why: Lack::Other },
        }
    }

    /// Returns a block with all entries up to `applied` applied.
    fn block(&self, block: u16, applied: Index) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let first = u32::from(block) * 8;
        for entry in self.log.range(..=applied).map(|(_, e)| e) {
            let Ok(command) = Command::decode(&entry.descriptor) else { continue };
            let (range, write) = match command {
                Command::Write { chunk: CHUNK, range, .. } => (range, true),
                Command::Zero { chunk: CHUNK, range, .. } => (range, false),
                _ => continue,
            };
            for sector in (first..first + 8).filter(|s| (range.start..range.end()).contains(s)) {
                let to = &mut bytes[(sector - first) as usize * 512..][..512];
                match write {
                    true => to.copy_from_slice(&entry.payload[(sector - range.start) as usize * 512..][..512]),
                    false => to.fill(0),
                }
            }
        }
        bytes
    }

    /// Stores the entries that the OSD replicates, and acknowledges them.
    fn take_append(&mut self, msg: RaftMsg) -> RaftMsg {
        let mut answer = head(msg.to, msg.term, RaftKind::AppendResponse);
        let last = Index(msg.index.0 + msg.entries.len() as u64);
        for entry in msg.entries {
            if self.term_at(entry.index) != entry.term {
                let _ = self.log.split_off(&entry.index);
            }
            self.log.insert(entry.index, entry);
        }
        self.commit = self.commit.max(msg.commit.min(self.last()));
        (answer.index, answer.commit) = (last, self.commit);
        answer
    }

    fn raft(&mut self, msg: RaftMsg) -> Option<RaftMsg> {
        self.term = self.term.max(msg.term);
        let kind = match msg.kind {
            RaftKind::Append => return Some(self.take_append(msg)),
            RaftKind::PreVote => RaftKind::PreVoteResponse,
            RaftKind::Vote => RaftKind::VoteResponse,
            RaftKind::Heartbeat => RaftKind::HeartbeatResponse,
            _ => return None,
        };
        Some(RaftMsg { context: msg.context, ..head(msg.to, msg.term, kind) })
    }

    /// Returns the honest answer of the addressed peer, if the message has one.
    pub fn answer(&mut self, heard: Message) -> Option<Message> {
        Some(match heard {
            Message::Raft(msg) => Message::Raft(self.raft(msg)?),
            Message::LeaseRenewal(renewal) => Message::LeaseAck(LeaseAck {
                sent_at: renewal.sent_at,
                granted_aus: 1000,
                device_full: false,
                log_share_mib: 4,
                pace: 0,
                renewed: renewal.items.iter().map(|item| (item.pg, item.term, wire::Contents::Whole)).collect(),
            }),
            Message::Repair(RepairMsg { pg, from, to, body }) => {
                let body = match body {
                    RepairBody::Fetch { index, term } => self.payload_of(index, term),
                    _ => return None,
                };
                Message::Repair(RepairMsg { pg, from: to, to: from, body })
            }
            Message::Mend(MendMsg { pg, from, to, id, chunk, block, count, body: MendBody::Ask { .. } }) => {
                let (low, high) = (self.commit, self.commit);
                let blocks: Vec<_> = (block..block + count).map(|block| self.block(block, high)).collect();
                let (crcs, bytes) = (blocks.iter().map(|bytes| crc32c(bytes)).collect(), blocks.concat());
                let body = MendBody::Blocks { low, high, crcs, payload: IoBuf::copy_of(&bytes) };
                Message::Mend(MendMsg { pg, from: to, to: from, id, chunk, block, count, body })
            }
            Message::Stream(StreamMsg { pg, from, to, stream, body }) => {
                let body = match body {
                    StreamBody::Open { .. } => StreamBody::Accept {
                        term: self.term,
                        commit: Index(0),
                        end: Index(0),
                        compare: stream % 2 == 0,
                        fills_from: Index(0),
                    },
                    StreamBody::Digests { seq, .. } => StreamBody::Wants { seq, blocks: u128::MAX >> (stream % 128) },
                    StreamBody::Blocks { seq, .. } | StreamBody::Decision { seq, .. } => StreamBody::Ack { seq },
                    StreamBody::Fill { index, term, .. } => StreamBody::Filling { term, commit: index },
                    StreamBody::End { index, term, .. } => StreamBody::Done { term, commit: index },
                    _ => return None,
                };
                Message::Stream(StreamMsg { pg, from: to, to: from, stream, body })
            }
            _ => return None,
        })
    }

    /// Makes the first peer the leader and returns its next append.
    pub fn lead(&mut self, source: &mut Source<'_>) -> Message {
        let renewed = source.byte() < 40 || self.term == Term(0);
        if renewed {
            self.term = Term(self.term.0.saturating_add(1).min(1 << 40));
        }
        // Mostly the newest entries, and sometimes entries that were sent before.
        let back = if source.byte() > 200 { u64::from(source.byte()) } else { 0 };
        let before = Index(self.last().0.saturating_sub(back));
        for _ in 0..source.below(4) {
            self.make(source);
        }
        self.commit = Index(self.commit.0.max(self.last().0.saturating_sub(u64::from(source.below(3)))));
        let mut msg = head(ReplicaId(PEERS[0].into()), self.term, RaftKind::Append);
        (msg.index, msg.log_term) = (before, self.term_at(before));
        msg.entries = self.log.range(Index(before.0 + 1)..).map(|(_, e)| e.clone()).take(16).collect();
        (msg.commit, msg.commit_term) = (self.commit, self.term_at(self.commit));
        Message::Raft(msg)
    }

    fn make(&mut self, source: &mut Source<'_>) {
        let index = Index(self.last().0 + 1);
        if index.0 > ENTRIES_MAX {
            return;
        }
        let stamp = Stamp { session: SessionId(1), epoch: Epoch(1), seq: index.0, watermark: 0 };
        let range = SectorRange::new(source.below(40), 1 + source.below(16));
        let mut payload = IoBuf::EMPTY;
        let command = match source.below(6) {
            // A replica applies no write before the volume is attached, so the first entry attaches it.
            _ if index.0 == 1 => Command::Attach(Box::new(Attach {
                order: 1,
                volume: VolumeId(1),
                writers: Writers::one(SessionId(1), Epoch(1)),
                epoch: Epoch(1),
                chunk_count: 4,
                len_epoch: 0,
                head: GenerationId(1),
                base: None,
            })),
            0 => Command::Empty,
            1 => Command::Zero { chunk: CHUNK, range, stamp },
            _ => {
                payload = IoBuf::copy_of(&vec![index.0 as u8; range.len_bytes()]);
                Command::Write { chunk: CHUNK, range, stamp }
            }
        };
        let mut descriptor = BytesMut::new();
        command.encode(&mut descriptor);
        let crcs = match payload.is_empty() {
            true => Crcs::default(),
            false => Crcs { start: range.start, values: range.fragment_crcs(&payload) },
        };
        let (term, kind, descriptor) = (self.term, EntryKind::Normal, descriptor.freeze());
        self.log.insert(index, Entry { term, index, kind, descriptor, payload, crcs });
    }
}

/// Draws a run of blocks in a chunk, mostly near this block.
pub fn run_near(source: &mut Source<'_>, block: u16) -> (u16, u16) {
    let count = [1, 2, 5, MEND_BLOCKS_MAX][source.below(4) as usize];
    ((source.number(block.into()) % u64::from(4097 - count)) as u16, count)
}

/// Returns blocks of one value, each with its checksum.
pub fn equal_blocks(value: u8, count: u16) -> (CrcList, IoBuf) {
    let crc = crc32c(&[value; 4096]);
    (CrcList::from_elem(crc, count.into()), IoBuf::copy_of(&vec![value; usize::from(count) * 4096]))
}

/// Alters one field of an honest answer.
pub fn twist(source: &mut Source<'_>, message: &mut Message) {
    match message {
        Message::Raft(msg) => match source.below(6) {
            0 => msg.term = Term(source.number(msg.term.0)),
            1 => msg.index = Index(source.number(msg.index.0)),
            2 => msg.reject = !msg.reject,
            3 => msg.commit = Index(source.number(msg.commit.0)),
            4 => msg.from = ReplicaId(source.number(msg.from.0)),
            _ => msg.reject_hint = Index(source.number(msg.index.0)),
        },
        Message::LeaseAck(ack) => match source.below(3) {
            0 => ack.sent_at = source.number(ack.sent_at),
            1 => ack.granted_aus = source.number(ack.granted_aus),
            _ => (ack.device_full, ack.log_share_mib) = (source.flag(), source.byte()),
        },
        Message::Repair(msg) => twist_repair(source, &mut msg.body),
        Message::Mend(msg) => match source.below(6) {
            0 => msg.body = MendBody::NotNow,
            4 => msg.body = MendBody::NoPart,
            1 => msg.body = MendBody::Damaged,
            2 => msg.block = source.number(msg.block.into()) as u16 % (4097 - msg.count),
            5 => {
                // Another number of blocks than was asked for.
                (msg.block, msg.count) = run_near(source, msg.block);
                msg.body =
                    MendBody::Blocks { low: Index(1), high: Index(1), crcs: CrcList::new(), payload: IoBuf::EMPTY };
            }
            _ => {
                let low = Index(source.number(1));
                let high = Index(low.0.saturating_add(source.number(0)));
                let (crcs, payload) = equal_blocks(source.byte(), msg.count);
                msg.body = MendBody::Blocks { low, high, crcs, payload };
            }
        },
        Message::Stream(msg) => match &mut msg.body {
            StreamBody::Ack { seq } => *seq = source.number(*seq),
            StreamBody::Wants { seq, .. } => *seq = source.number(*seq),
            StreamBody::Accept { term, commit, end, .. } => {
                (*term, *commit) = (Term(source.number(term.0)), Index(source.number(commit.0)));
                *end = Index(commit.0.saturating_add(source.below(4).into()));
            }
            StreamBody::Filling { term, commit } | StreamBody::Done { term, commit } => {
                (*term, *commit) = (Term(source.number(term.0)), Index(source.number(commit.0)));
            }
            _ => msg.stream = source.number(msg.stream),
        },
        _ => {}
    }
}

fn twist_repair(source: &mut Source<'_>, body: &mut RepairBody) {
    match body {
        RepairBody::Payload { index, payload, crcs, start, .. } => match source.below(3) {
            0 => *index = Index(source.number(index.0)),
            1 => {
                // The number of checksums goes by the place.
                let at = source.number((*start).into()) as u32 % 32_768;
                if let Some(range) = SectorRange::checked(at, (payload.len() / 512) as u32) {
                    (*start, *crcs) = (at, range.fragment_crcs(payload));
                }
            }
            _ => {
                // The bytes differ, and their checksums are right.
                let other = IoBuf::copy_of(&vec![source.byte(); payload.len()]);
                let range = SectorRange::checked(*start, (payload.len() / 512) as u32);
                if let Some(range) = range {
                    (*crcs, *payload) = (range.fragment_crcs(&other), other);
                }
            }
        },
        RepairBody::Lack { why, .. } => *why = Lack::from_u8(1 + source.below(5) as u8).expect("five reasons"),
        _ => {}
    }
}
