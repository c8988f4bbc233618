//! Unsolicited messages of peers, clients and meta to the OSD, mostly with values near the true ones.

use super::answers::{Peers, equal_blocks, run_near};
use super::{CHUNK, CLIENT, PEERS, PG};
use crate::source::Source;
use engine::testing::IDS;
use types::control::{Attach, Base, LimitsPart, OsdDown};
use types::cut::{Cut, CutEnd, CutItem, SnapshotOrder, Tail};
use types::map::{ForceMembers, Member, OsdAddr, PgMap};
use types::rng::Rng;
use types::writers::Writers;
use types::{
    CutId, Epoch, GenerationId, Index, IoBuf, OsdId, PgId, PoolId, QosLimits, RateLimit, ReplicaId, SectorRange,
    SessionId, SnapshotId, Term, VolumeId,
};
use wire::{
    Lack, LeaseAck, LeaseRenewal, MendBody, MendMsg, Message, PassedOn, RaftKind, RaftMsg, RenewalItem, RepairBody,
    RepairMsg, Request, RequestBody, StreamAbort, StreamBody, StreamMsg, Used, samples,
};

/// Returns a message, mostly about the existing PG.
pub fn message(source: &mut Source<'_>, peers: &Peers, which: usize) -> Message {
    let pg = if source.byte() < 245 { PG } else { PgId { pool: PoolId(source.u32()), n: source.u32() } };
    let from = ReplicaId(source.number(PEERS.get(which).copied().unwrap_or(PEERS[0]).into()));
    let to = ReplicaId(source.number(IDS.1.0.into()));
    let (term, index) = (Term(source.number(peers.term.0)), Index(source.number(peers.last().0)));
    if which == CLIENT && source.byte() < 220 {
        return Message::Request(request(source, pg));
    }
    match source.below(17) {
        0..=2 => raft(source, pg, (from, to), term, index),
        3 => Message::LeaseRenewal(LeaseRenewal {
            sent_at: source.number(1),
            full: source.flag(),
            spent_aus: source.number(1),
            items: (0..source.below(4))
                .map(|_| RenewalItem { pg, from, to, term, commit: index, complete: index })
                .collect(),
        }),
        4 => Message::LeaseAck(LeaseAck {
            sent_at: source.number(1),
            granted_aus: source.number(100),
            device_full: source.flag(),
            log_share_mib: source.byte(),
            pace: u16::from(source.byte()) << 8,
            renewed: (0..source.below(4)).map(|_| (pg, term, source.contents())).collect(),
        }),
        5 => Message::LeaseRelease((0..source.below(4)).map(|_| pg).collect()),
        6 | 7 => Message::Stream(StreamMsg { pg, from, to, stream: source.number(1), body: stream(source) }),
        8 => Message::Request(request(source, pg)),
        9 | 10 => {
            let body = repair(source, peers, term, index);
            Message::Repair(RepairMsg { pg, from, to, body })
        }
        13 => {
            let (volume, session) = (VolumeId(source.number(CHUNK.volume.0)), SessionId(source.number(1)));
            Message::PassedOn(PassedOn { pg, from, to, term, volume, session, epoch: Epoch(source.number(1)) })
        }
        15 => {
            let volume = VolumeId(source.number(CHUNK.volume.0));
            let (read_bytes, write_bytes) = (source.number(1), source.number(u64::MAX));
            let (read_ops, write_ops) = (u32::from(source.byte()), source.number(1) as u32);
            Message::Used(vec![Used { volume, read_bytes, write_bytes, read_ops, write_ops }])
        }
        14 => Message::Ping { answer: source.flag() },
        11 | 12 => {
            let (id, (block, count)) = (source.number(1), run_near(source, 1));
            Message::Mend(MendMsg {
                pg,
                from,
                to,
                id,
                chunk: CHUNK.in_first(),
                block,
                count,
                body: mend(source, index, count),
            })
        }
        _ => samples::message(&mut Rng::new(source.u16().into())),
    }
}

fn raft(source: &mut Source<'_>, pg: PgId, (from, to): (ReplicaId, ReplicaId), term: Term, index: Index) -> Message {
    let drawn = samples::raft(&mut Rng::new(source.u16().into()));
    let mut entries = drawn.entries.clone();
    let head = RaftMsg {
        pg,
        from,
        to,
        term,
        kind: samples::RAFT_KINDS[source.below(9) as usize],
        index,
        log_term: Term(source.number(index.0.min(1))),
        commit: Index(source.number(0)),
        ..drawn
    };
    if head.kind != RaftKind::Append && source.byte() < 230 {
        entries.clear();
    }
    for (n, entry) in entries.iter_mut().enumerate() {
        (entry.index, entry.term) = (Index(index.0.wrapping_add(1 + n as u64)), term);
        entry.kind = types::EntryKind::Normal;
        // Empty entries are sound.
        if source.byte() < 200 {
            (entry.descriptor, entry.payload, entry.crcs) = Default::default();
        }
    }
    Message::Raft(RaftMsg { entries, ..head })
}

fn range(source: &mut Source<'_>) -> SectorRange {
    SectorRange::new(source.below(64) / 8 * 8, 8 * (1 + source.below(4)))
}

fn stream(source: &mut Source<'_>) -> StreamBody {
    let (seq, index, term) = (source.number(1), Index(source.number(5)), Term(source.number(1)));
    match source.below(11) {
        0 | 1 => StreamBody::Open { needed: source.flag() },
        2 => StreamBody::Accept {
            term,
            commit: index,
            end: index,
            compare: source.flag(),
            fills_from: Index(source.number(0)),
        },
        9 => {
            let digests = vec![source.byte(); 16 * (1 + source.below(128) as usize)].into();
            StreamBody::Digests { seq, chunk: CHUNK.in_first(), start: source.below(64) * 512, digests }
        }
        10 => StreamBody::Wants { seq, blocks: u128::from(source.byte()) << source.below(120) },
        3 | 4 => {
            let range = range(source);
            let payload = IoBuf::copy_of(&vec![source.byte(); range.len_bytes()]);
            let mut crcs = range.fragment_crcs(&payload);
            crcs[0] ^= u32::from(source.byte() > 240);
            StreamBody::Blocks { seq, chunk: CHUNK.in_first(), range, crcs, payload }
        }
        5 => {
            let bytes = match source.flag() {
                true => crate::store::decision_seed(&mut Rng::new(source.byte().into())).into(),
                false => bytes::Bytes::copy_from_slice(source.bytes(40)),
            };
            StreamBody::Decision { seq, bytes }
        }
        6 if source.flag() => StreamBody::Fill { seq, index, term },
        6 => StreamBody::End { seq, index, term },
        7 => match source.flag() {
            true => StreamBody::Ack { seq },
            false => StreamBody::Done { term, commit: index },
        },
        _ => StreamBody::Abort(StreamAbort::from_u8(1 + source.below(5) as u8).expect("five reasons")),
    }
}

fn repair(source: &mut Source<'_>, peers: &Peers, term: Term, index: Index) -> RepairBody {
    match source.below(4) {
        0 => RepairBody::Fetch { index, term },
        1 | 2 => {
            let mut body = peers.payload_of(index, term);
            if let RepairBody::Payload { crcs, .. } = &mut body
                && source.byte() > 220
            {
                crcs.iter_mut().for_each(|crc| *crc ^= 1);
            }
            body
        }
        _ => RepairBody::Lack { index, term, why: Lack::from_u8(1 + source.below(5) as u8).expect("five reasons") },
    }
}

fn mend(source: &mut Source<'_>, index: Index, count: u16) -> MendBody {
    match source.below(6) {
        0 => {
            let older = if count == 1 && source.byte() > 127 { equal_blocks(source.byte(), 1).1 } else { IoBuf::EMPTY };
            MendBody::Ask { hash: u32::from(source.byte()), older }
        }
        1 | 2 => {
            let (mut crcs, payload) = equal_blocks(source.byte(), count);
            let high = Index(index.0.saturating_add(source.number(0)));
            *crcs.last_mut().expect("a run has a block") ^= u32::from(source.byte() > 220);
            MendBody::Blocks { low: index, high, crcs, payload }
        }
        3 => MendBody::NotNow,
        4 => MendBody::NoPart,
        _ => MendBody::Damaged,
    }
}

fn request(source: &mut Source<'_>, pg: PgId) -> Request {
    let range = range(source);
    let (seq, watermark) = (source.number(1), source.number(0));
    let body = match source.below(8) {
        0 => RequestBody::Read { chunk: CHUNK, range, snapshot: snapshot(source) },
        1 => RequestBody::Extents { chunk: CHUNK, range, snapshot: snapshot(source), since: snapshot(source) },
        2 => RequestBody::Zero { chunk: CHUNK, range, seq, watermark },
        3 => RequestBody::Skip { volume: CHUNK.volume, seq, watermark },
        5 => {
            let volume = VolumeId(source.number(CHUNK.volume.0));
            RequestBody::Unreached { volume, leader: OsdId(source.below(4)) }
        }
        4 => RequestBody::FenceCheck { volume: VolumeId(source.number(CHUNK.volume.0)) },
        _ => {
            let payload = IoBuf::copy_of(&vec![7; range.len_bytes()]);
            RequestBody::Write { chunk: CHUNK, range, seq, watermark, crcs: range.fragment_crcs(&payload), payload }
        }
    };
    let (session, epoch) = (SessionId(source.number(1)), Epoch(source.number(1)));
    Request { id: source.number(1), pg, session, epoch, body }
}

/// Returns no snapshot mostly, or one that may exist.
pub fn snapshot(source: &mut Source<'_>) -> Option<SnapshotId> {
    (source.below(4) == 0).then(|| SnapshotId(source.below(7).into()))
}

/// Returns a volume with limits: mostly the one that peers use.
fn limited(source: &mut Source<'_>) -> (VolumeId, QosLimits) {
    let rate = [1, 500, 1 << 40, u64::MAX][source.below(4) as usize];
    let limit = RateLimit { rate, burst: source.number(rate), burst_seconds: source.number(1) as u32 };
    let iops = source.flag().then_some(limit);
    (VolumeId(source.number(CHUNK.volume.0)), QosLimits { iops, bandwidth: Some(limit), ..QosLimits::NONE })
}

/// Returns an order about snapshots of the volume that peers use, sound or not.
pub fn snapshot_order(source: &mut Source<'_>) -> SnapshotOrder {
    let to = 1 + u64::from(source.below(6));
    let volume = VolumeId(source.number(CHUNK.volume.0));
    let items: std::sync::Arc<[CutItem]> = [CutItem { volume, to: GenerationId(to) }].into();
    let cut = CutId(to);
    match source.below(5) {
        0 => SnapshotOrder::Cut(Cut { id: cut, created_ms: source.number(1), items }),
        1 => SnapshotOrder::Remove { volume, snapshot: SnapshotId(to) },
        2 => SnapshotOrder::Flatten { volume },
        4 if source.below(3) > 0 => {
            let (len_epoch, chunk, range) = (source.below(3), source.below(3), SectorRange::new(source.below(40), 8));
            let tail = Tail { from_chunk: chunk, parts: [(chunk, range)].into() };
            match source.flag() {
                true => SnapshotOrder::Wipe { volume, len_epoch, chunk, range },
                false => SnapshotOrder::Find { volume, len_epoch, tail },
            }
        }
        n => {
            let end = if n == 3 { CutEnd::Release } else { CutEnd::Abort };
            SnapshotOrder::Release { cut, end, items }
        }
    }
}

/// Returns an order of meta, sound or not.
pub fn order(source: &mut Source<'_>) -> OsdDown {
    let me = IDS.1;
    let pg = PgId { pool: PoolId(1), n: source.number(1) as u32 };
    let addr = |source: &mut Source<'_>| OsdAddr {
        osd: OsdId(source.number(5) as u32),
        addr: ([10, 0, 0, source.byte()], source.u16()).into(),
    };
    let addrs = |source: &mut Source<'_>| (0..source.below(3)).map(|_| addr(source)).collect();
    match source.below(13) {
        12 => OsdDown::Snapshots { pg, order: snapshot_order(source) },
        10 | 11 => OsdDown::Limits {
            part: LimitsPart { begins: source.flag(), goes_on: source.flag(), ends: source.flag() },
            volumes: (0..source.below(3)).map(|_| limited(source)).collect(),
        },
        9 => OsdDown::ReplicaFloor(ReplicaId(source.number(me.0.into()))),
        0 => OsdDown::Welcome { map_epoch: Epoch(source.number(1)), osds: addrs(source) },
        1 => OsdDown::Osds { map_epoch: Epoch(source.number(1)), osds: addrs(source) },
        2..=4 => {
            let mut members = vec![Member { replica: ReplicaId(source.number(me.0.into())), osd: me }];
            members.extend((0..source.below(12)).map(|n| {
                let osd = OsdId(source.number(u64::from(4 + n)) as u32);
                Member { replica: ReplicaId(source.number(osd.0.into())), osd }
            }));
            let replica = if source.below(4) == 0 { ReplicaId(source.number(2)) } else { members[0].replica };
            let conf_epoch = Epoch(source.number(1));
            OsdDown::EnsureReplica { created: PgMap { pg, conf_epoch, members }, replica }
        }
        5 => OsdDown::DropReplica { pg, replica: ReplicaId(source.number(me.0.into())), keep: source.flag() },
        6 => {
            let (order, volume, session) = (source.number(1), VolumeId(source.number(1)), SessionId(source.number(1)));
            let (epoch, chunk_count) = (Epoch(source.number(1)), source.number(4) as u32);
            let head = GenerationId(source.number(1));
            let on = source.flag().then(|| (VolumeId(source.number(1)), SnapshotId(source.number(1))));
            let base = on.map(|(volume, snapshot)| Base { volume, snapshot, to: head });
            OsdDown::Attach {
                pg,
                attach: Attach {
                    order,
                    volume,
                    writers: Writers::one(session, epoch),
                    epoch,
                    chunk_count,
                    head,
                    base,
                    len_epoch: source.below(2),
                },
            }
        }
        7 => OsdDown::TransferLeader { pg, to: OsdId(source.number(5) as u32) },
        8 => {
            let keep = Member { replica: ReplicaId(source.number(me.0.into())), osd: me };
            let (floor, epoch) = (ReplicaId(source.number(1 << 20)), Epoch(source.number(1)));
            let (fence, end) = (source.flag(), (Term(source.below(3).into()), Index(source.below(6).into())));
            OsdDown::ForceMembers { pg, force: ForceMembers { keep, floor, fence, epoch, end } }
        }
        _ if source.byte() > 250 => match source.flag() {
            true => OsdDown::FailReplicas { reason: "it is older".into(), mount: source.u64() },
            false => OsdDown::Refused { code: source.u32(), reason: "no".into() },
        },
        _ => OsdDown::TransferLeader { pg, to: OsdId(PEERS[0]) },
    }
}
