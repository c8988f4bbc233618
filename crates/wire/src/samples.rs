//! Messages drawn from a seed: every kind, every option, lengths from zero to the limit. Tests and fuzzing use them;
//! shipped programs are built without this module.

use crate::*;
use bytes::Bytes;
use types::limits::PART_MAX;
use types::rng::Rng;
use types::store::Crcs;
use types::{
    ChunkKey, ClusterId, CrcList, Entry, EntryKind, Epoch, Errno, GenerationId, Incarnation, Index, IoBuf, IoBufMut,
    OsdId, PgId, PoolId, ReplicaId, SectorRange, SessionId, SnapshotId, Term, VolumeChunk, VolumeId,
};

/// Draws a number: mostly small, sometimes of the whole width, so that both lengths of zeros and all ones occur.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.below(1000),
        _ => rng.next_u64(),
    }
}

fn pg(rng: &mut Rng) -> PgId {
    PgId { pool: PoolId(number(rng) as u32), n: number(rng) as u32 }
}

fn chunk(rng: &mut Rng) -> VolumeChunk {
    VolumeChunk { volume: VolumeId(number(rng)), index: number(rng) as u32 }
}

fn key(rng: &mut Rng) -> ChunkKey {
    ChunkKey { generation: GenerationId(number(rng)), index: number(rng) as u32 }
}

/// Makes a payload of `len` bytes with the number of this draw in each sector.
pub fn payload(rng: &mut Rng, len: usize) -> IoBuf {
    let mut buf = IoBufMut::zeroed(len);
    for sector in buf.chunks_mut(512) {
        sector[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    buf.freeze()
}

/// Draws a range of at most `sectors_max` sectors that crosses no border of a part.
fn range(rng: &mut Rng, sectors_max: u64) -> SectorRange {
    let part = PART_MAX / 512;
    let count = rng.between(1, sectors_max.min(part));
    let start = rng.below(types::CHUNK / PART_MAX) * part + rng.below(part - count + 1);
    SectorRange::new(start as u32, count as u32)
}

/// Draws a length limit: usually a few blocks, so that frames stay small; sometimes a whole part.
fn sectors_max(rng: &mut Rng) -> u64 {
    if rng.chance(1, 20) { PART_MAX / 512 } else { 20 }
}

fn crcs(rng: &mut Rng, count: usize) -> CrcList {
    (0..count).map(|_| rng.next_u64() as u32).collect()
}

/// Makes a write request with a payload of `len` bytes.
pub fn write(rng: &mut Rng, len: usize) -> Message {
    let range = SectorRange::new(0, (len / 512) as u32);
    let body = RequestBody::Write {
        chunk: chunk(rng),
        range,
        seq: number(rng),
        watermark: number(rng),
        crcs: crcs(rng, range.fragment_count()),
        payload: payload(rng, len),
    };
    Message::Request(request(rng, body))
}

fn request(rng: &mut Rng, body: RequestBody) -> Request {
    Request { id: number(rng), pg: pg(rng), session: SessionId(number(rng)), epoch: Epoch(number(rng)), body }
}

/// Every second read is of a snapshot.
fn snapshot(seq: u64) -> Option<SnapshotId> {
    (seq % 2 == 1).then_some(SnapshotId(seq))
}

pub fn request_body(rng: &mut Rng, kind: u64) -> RequestBody {
    let (chunk, seq, watermark) = (chunk(rng), number(rng), number(rng));
    let max = sectors_max(rng);
    match kind {
        0 => {
            let range = range(rng, max);
            let payload = payload(rng, range.len_bytes());
            RequestBody::Write { chunk, range, seq, watermark, crcs: crcs(rng, range.fragment_count()), payload }
        }
        1 => RequestBody::Zero { chunk, range: SectorRange::CHUNK, seq, watermark },
        2 => RequestBody::Skip { volume: VolumeId(number(rng)), seq, watermark },
        3 => RequestBody::Read { chunk, range: range(rng, 1024), snapshot: snapshot(seq) },
        4 => {
            RequestBody::Extents { chunk, range: range(rng, 1024), snapshot: snapshot(seq), since: snapshot(watermark) }
        }
        5 => RequestBody::Unreached { volume: VolumeId(number(rng)), leader: OsdId(number(rng) as u32) },
        _ => RequestBody::FenceCheck { volume: VolumeId(number(rng)) },
    }
}

pub fn reply(rng: &mut Rng, kind: u64) -> Reply {
    let result = match kind {
        0 => Ok(ReplyBody::Done),
        1 => {
            let max = sectors_max(rng);
            let range = range(rng, max);
            let payload = payload(rng, range.len_bytes());
            Ok(ReplyBody::Data { crcs: crcs(rng, range.fragment_count()), payload })
        }
        2 => Ok(ReplyBody::Data { crcs: CrcList::new(), payload: IoBuf::EMPTY }),
        3 => {
            let count = rng.below(40);
            Ok(ReplyBody::Extents(
                (0..count).map(|_| Extent { sectors: number(rng) as u32, data: rng.chance(1, 2) }).collect(),
            ))
        }
        4 => Err(Reject::NotLeader { hint: rng.chance(1, 2).then(|| OsdId(rng.between(1, u32::MAX.into()) as u32)) }),
        5 => Err(Reject::NotReady),
        6 => Err(Reject::NoSuchPg),
        7 => Err(Reject::Busy),
        8 => Err(Reject::Throttled { wait_us: number(rng) as u32 }),
        _ => Err(Reject::Failed(Errno::from_u8(rng.between(1, 8) as u8).expect("a known errno"))),
    };
    Reply { id: number(rng), result }
}

fn entry(rng: &mut Rng) -> Entry {
    let (payload, crcs) = match rng.below(3) {
        0 => (IoBuf::EMPTY, Crcs::default()),
        _ => {
            let range = range(rng, 20);
            let payload = payload(rng, range.len_bytes());
            (payload, Crcs { start: range.start, values: crcs(rng, range.fragment_count()) })
        }
    };
    let kinds = [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2];
    let len = rng.below(200) as usize;
    Entry {
        term: Term(number(rng)),
        index: Index(number(rng)),
        kind: kinds[rng.below(3) as usize],
        descriptor: Bytes::from(vec![rng.next_u64() as u8; len]),
        payload,
        crcs,
    }
}

/// All kinds of raft message; numbers as on the wire.
pub const RAFT_KINDS: [RaftKind; 9] = [
    RaftKind::Append,
    RaftKind::AppendResponse,
    RaftKind::Vote,
    RaftKind::VoteResponse,
    RaftKind::PreVote,
    RaftKind::PreVoteResponse,
    RaftKind::Heartbeat,
    RaftKind::HeartbeatResponse,
    RaftKind::TimeoutNow,
];

pub fn raft(rng: &mut Rng) -> RaftMsg {
    let context_len = if rng.chance(1, 2) { 0 } else { rng.below(65) as usize };
    let entry_count = rng.below(8);
    RaftMsg {
        pg: pg(rng),
        from: ReplicaId(number(rng)),
        to: ReplicaId(number(rng)),
        term: Term(number(rng)),
        kind: RAFT_KINDS[rng.below(9) as usize],
        log_term: Term(number(rng)),
        index: Index(number(rng)),
        commit: Index(number(rng)),
        commit_term: Term(number(rng)),
        reject: rng.chance(1, 2),
        reject_hint: Index(number(rng)),
        context: Bytes::from(vec![7; context_len]),
        entries: (0..entry_count).map(|_| entry(rng)).collect(),
    }
}

pub fn stream(rng: &mut Rng) -> StreamMsg {
    let (seq, term, commit) = (number(rng), Term(number(rng)), Index(number(rng)));
    let body = match rng.below(11) {
        0 => StreamBody::Open { needed: rng.chance(1, 2) },
        1 => {
            let commit = Index(commit.0 >> 1);
            let end = Index(commit.0 + rng.below(1 << 32));
            StreamBody::Accept { term, commit, end, compare: rng.chance(1, 2), fills_from: Index(number(rng)) }
        }
        8 => {
            let digests = Bytes::from(vec![rng.next_u64() as u8; DIGEST_LEN * rng.between(1, 128) as usize]);
            StreamBody::Digests { seq, chunk: key(rng), start: 1024 * rng.below(32) as u32, digests }
        }
        9 => StreamBody::Wants { seq, blocks: u128::from(number(rng)) << 64 | u128::from(number(rng)) },
        2 => {
            let max = sectors_max(rng);
            let range = range(rng, max);
            let payload = payload(rng, range.len_bytes());
            StreamBody::Blocks { seq, chunk: key(rng), range, crcs: crcs(rng, range.fragment_count()), payload }
        }
        3 => {
            let range = SectorRange::CHUNK;
            StreamBody::Blocks { seq, chunk: key(rng), range, crcs: CrcList::new(), payload: IoBuf::EMPTY }
        }
        4 => {
            let len = if rng.chance(1, 10) { STREAM_PIECE_MAX } else { rng.below(300) as usize };
            StreamBody::Decision { seq, bytes: Bytes::from(vec![rng.next_u64() as u8; len]) }
        }
        5 if rng.chance(1, 2) => StreamBody::Fill { seq, index: commit, term },
        5 => StreamBody::End { seq, index: commit, term },
        6 => StreamBody::Ack { seq },
        7 if rng.chance(1, 2) => StreamBody::Filling { term, commit },
        7 => StreamBody::Done { term, commit },
        _ => StreamBody::Abort(StreamAbort::from_u8(rng.between(1, 5) as u8).expect("a known reason")),
    };
    let (from, to) = (ReplicaId(number(rng)), ReplicaId(number(rng)));
    StreamMsg { pg: pg(rng), from, to, stream: number(rng), body }
}

pub fn repair(rng: &mut Rng) -> RepairMsg {
    let (index, term) = (Index(number(rng)), Term(number(rng)));
    let body = match rng.below(3) {
        0 => RepairBody::Fetch { index, term },
        1 => {
            let max = sectors_max(rng);
            let range = range(rng, max);
            let (crcs, payload) = (crcs(rng, range.fragment_count()), payload(rng, range.len_bytes()));
            RepairBody::Payload { index, term, start: range.start, crcs, payload }
        }
        _ => RepairBody::Lack { index, term, why: Lack::from_u8(rng.between(1, 5) as u8).expect("a known reason") },
    };
    let (from, to) = (ReplicaId(number(rng)), ReplicaId(number(rng)));
    RepairMsg { pg: pg(rng), from, to, body }
}

pub fn mend(rng: &mut Rng) -> MendMsg {
    let most = if rng.chance(1, 10) { MEND_BLOCKS_MAX } else { 4 };
    let count = rng.between(1, most.into()) as usize;
    let block = rng.below(4097 - count as u64) as u16;
    let body = match rng.below(6) {
        0 => {
            let blocks = usize::from(count == 1 && rng.chance(1, 2));
            MendBody::Ask { hash: number(rng) as u32, older: payload(rng, blocks * 4096) }
        }
        1 | 2 => {
            let low = number(rng);
            let high = Index(low.saturating_add(number(rng)));
            let blocks = if rng.chance(1, 2) { count } else { 0 };
            MendBody::Blocks { low: Index(low), high, crcs: crcs(rng, blocks), payload: payload(rng, blocks * 4096) }
        }
        3 => MendBody::NotNow,
        4 => MendBody::NoPart,
        _ => MendBody::Damaged,
    };
    let (from, to, id) = (ReplicaId(number(rng)), ReplicaId(number(rng)), number(rng));
    MendMsg { pg: pg(rng), from, to, id, chunk: key(rng), block, count: count as u16, body }
}

fn used(rng: &mut Rng) -> Used {
    Used {
        volume: VolumeId(number(rng)),
        read_bytes: number(rng),
        write_bytes: number(rng),
        read_ops: number(rng) as u32,
        write_ops: number(rng) as u32,
    }
}

fn passed_on(rng: &mut Rng) -> PassedOn {
    PassedOn {
        pg: pg(rng),
        from: ReplicaId(number(rng)),
        to: ReplicaId(number(rng)),
        term: Term(number(rng)),
        volume: VolumeId(number(rng)),
        session: SessionId(number(rng)),
        epoch: Epoch(number(rng)),
    }
}

pub fn message(rng: &mut Rng) -> Message {
    match rng.below(12) {
        11 => Message::Used((0..rng.below(30)).map(|_| used(rng)).collect()),
        9 => Message::Ping { answer: rng.chance(1, 2) },
        10 => Message::PassedOn(passed_on(rng)),
        7 => Message::Repair(repair(rng)),
        8 => Message::Mend(mend(rng)),
        6 => Message::Stream(stream(rng)),
        0 => {
            let kind = rng.below(7);
            let body = request_body(rng, kind);
            Message::Request(request(rng, body))
        }
        1 => {
            let kind = rng.below(8);
            Message::Reply(reply(rng, kind))
        }
        2 => Message::Raft(raft(rng)),
        3 => Message::LeaseRenewal(LeaseRenewal {
            sent_at: number(rng),
            full: rng.chance(1, 2),
            spent_aus: number(rng),
            items: (0..rng.below(30))
                .map(|_| RenewalItem {
                    pg: pg(rng),
                    from: ReplicaId(number(rng)),
                    to: ReplicaId(number(rng)),
                    term: Term(number(rng)),
                    commit: Index(number(rng)),
                    complete: Index(number(rng)),
                })
                .collect(),
        }),
        4 => Message::LeaseAck(LeaseAck {
            sent_at: number(rng),
            granted_aus: number(rng),
            device_full: rng.chance(1, 2),
            log_share_mib: rng.below(256) as u8,
            pace: rng.below(1 << 16) as u16,
            renewed: (0..rng.below(30)).map(|_| (pg(rng), Term(number(rng)), contents(rng))).collect(),
        }),
        _ => Message::LeaseRelease((0..rng.below(30)).map(|_| pg(rng)).collect()),
    }
}

fn contents(rng: &mut Rng) -> Contents {
    match rng.chance(1, 2) {
        true => Contents::Whole,
        false => Contents::Filling { room_kib: number(rng) as u32, is_short: rng.chance(1, 2) },
    }
}

pub fn hello(rng: &mut Rng) -> Hello {
    let osd = |rng: &mut Rng| OsdId(rng.between(1, u32::MAX.into()) as u32);
    Hello {
        version_min: number(rng) as u16,
        version_max: number(rng) as u16,
        cluster: ClusterId((u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())).to_le_bytes()),
        peer: if rng.chance(1, 2) { Peer::Osd(osd(rng)) } else { Peer::Client(Incarnation(number(rng))) },
        incarnation: Incarnation(number(rng)),
        expects: rng.chance(1, 2).then(|| osd(rng)),
        features: number(rng),
        credit_ops: number(rng) as u32,
        credit_bytes: number(rng),
    }
}
