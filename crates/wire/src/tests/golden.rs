//! Test of the bytes of version 1 in `testdata/golden.txt`. When this test fails the format has
//! changed: that needs a new version, not a new file.

use super::Frame;
use crate::*;
use bytes::Bytes;
use std::fmt::Write;
use types::store::Crcs;
use types::{
    ClusterId, Entry, EntryKind, Epoch, Errno, Incarnation, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange,
    SessionId, Term, VolumeChunk, VolumeId,
};

const PG: PgId = PgId { pool: PoolId(3), n: 0x1f };
const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(0x0102_0304_0506_0708), index: 0x1112_1314 };

fn requests() -> Vec<(&'static str, Message)> {
    let range = SectorRange { start: 7, count: 2 };
    let (seq, watermark) = (0x21, 0x20);
    let payload = IoBuf::copy_of(&[0xab; 1024]);
    let request =
        |body| Message::Request(Request { id: 0x0a, pg: PG, session: SessionId(0x0b), epoch: Epoch(0x0c), body });
    let crcs = vec![0x3132_3334, 0x4142_4344];
    vec![
        ("write", request(RequestBody::Write { chunk: CHUNK, range, seq, watermark, crcs: crcs.into(), payload })),
        ("zero", request(RequestBody::Zero { chunk: CHUNK, range, seq, watermark })),
        ("skip", request(RequestBody::Skip { volume: CHUNK.volume, seq, watermark })),
        ("read", request(RequestBody::Read { chunk: CHUNK, range, snapshot: None })),
        ("extents", request(RequestBody::Extents { chunk: CHUNK, range, snapshot: None, since: None })),
        ("fence check", request(RequestBody::FenceCheck { volume: CHUNK.volume })),
        ("unreached", request(RequestBody::Unreached { volume: CHUNK.volume, leader: OsdId(3) })),
    ]
}

fn replies() -> Vec<(&'static str, Message)> {
    let reply = |result| Message::Reply(Reply { id: 0x0a, result });
    let payload = IoBuf::copy_of(&[0xcd; 512]);
    let extents = vec![Extent { sectors: 8, data: true }, Extent { sectors: 16, data: false }];
    vec![
        ("reply done", reply(Ok(ReplyBody::Done))),
        ("reply data", reply(Ok(ReplyBody::Data { crcs: vec![0x5152_5354].into(), payload }))),
        ("reply zeros", reply(Ok(ReplyBody::Data { crcs: types::CrcList::new(), payload: IoBuf::EMPTY }))),
        ("reply extents", reply(Ok(ReplyBody::Extents(extents)))),
        ("reply not leader", reply(Err(Reject::NotLeader { hint: Some(OsdId(2)) }))),
        ("reply not ready", reply(Err(Reject::NotReady))),
        ("reply busy", reply(Err(Reject::Busy))),
        ("reply throttled", reply(Err(Reject::Throttled { wait_us: 0x0102_0304 }))),
        ("reply no such pg", reply(Err(Reject::NoSuchPg))),
        ("reply failed", reply(Err(Reject::Failed(Errno::NoSpace)))),
    ]
}

fn raft() -> RaftMsg {
    let entry = Entry {
        term: Term(0x61),
        index: Index(0x62),
        kind: EntryKind::ConfChangeV2,
        descriptor: Bytes::from_static(b"descriptor"),
        payload: IoBuf::copy_of(&[0xef; 1024]),
        crcs: Crcs { start: 7, values: vec![0x6162_6364, 0x6566_6768].into() },
    };
    RaftMsg {
        pg: PG,
        from: ReplicaId(0x71),
        to: ReplicaId(0x72),
        term: Term(0x73),
        kind: RaftKind::Append,
        log_term: Term(0x74),
        index: Index(0x75),
        commit: Index(0x76),
        commit_term: Term(0x77),
        reject: true,
        reject_hint: Index(0x78),
        context: Bytes::from_static(b"ctx"),
        entries: vec![entry],
    }
}

fn passed_on() -> PassedOn {
    PassedOn {
        pg: PG,
        from: ReplicaId(0x71),
        to: ReplicaId(0x72),
        term: Term(0x73),
        volume: CHUNK.volume,
        session: SessionId(0x0b),
        epoch: Epoch(0x0c),
    }
}

fn messages() -> Vec<(&'static str, Message)> {
    let item = RenewalItem {
        pg: PG,
        from: ReplicaId(0x91),
        to: ReplicaId(0x92),
        term: Term(0x93),
        commit: Index(0x94),
        complete: Index(0x95),
    };
    let mut all = requests();
    all.extend(replies());
    all.push(("raft", Message::Raft(raft())));
    let renewal = LeaseRenewal { sent_at: 0xa1, full: true, spent_aus: 0xa3, items: vec![item] };
    all.push(("lease renewal", Message::LeaseRenewal(renewal)));
    let renewed = vec![(PG, Term(0xa2), Contents::Filling { room_kib: 0xa6, is_short: true })];
    let ack =
        LeaseAck { sent_at: 0xa1, granted_aus: 0xa4, device_full: true, log_share_mib: 0xa5, pace: 0xa6a7, renewed };
    all.push(("lease ack", Message::LeaseAck(ack)));
    all.push(("lease release", Message::LeaseRelease(vec![PG])));
    all.push(("passed on", Message::PassedOn(passed_on())));
    let (read_bytes, write_bytes, read_ops, write_ops) = (0xe1, 0xe2, 0xe3, 0xe4);
    let used = Used { volume: CHUNK.volume, read_bytes, write_bytes, read_ops, write_ops };
    all.push(("used", Message::Used(vec![used])));
    all.push(("ping", Message::Ping { answer: false }));
    all.push(("ping's answer", Message::Ping { answer: true }));
    all.extend(streams());
    all.extend(repairs());
    all.extend(mends());
    all
}

fn streams() -> Vec<(&'static str, Message)> {
    let stream =
        |body| Message::Stream(StreamMsg { pg: PG, from: ReplicaId(0x71), to: ReplicaId(0x72), stream: 0xc0, body });
    let (seq, term, commit) = (0xc1, Term(0xc2), Index(0xc3));
    let blocks = |range, crcs, payload| StreamBody::Blocks { seq, chunk: CHUNK.in_first(), range, crcs, payload };
    let one = SectorRange { start: 8, count: 8 };
    let digests = Bytes::from_static(&[0xca; 32]);
    vec![
        ("stream open", stream(StreamBody::Open { needed: false })),
        ("stream open, needed", stream(StreamBody::Open { needed: true })),
        (
            "stream accept",
            stream(StreamBody::Accept { term, commit, end: Index(commit.0 + 2), compare: false, fills_from: Index(0) }),
        ),
        (
            "stream accept, older contents",
            stream(StreamBody::Accept {
                term,
                commit,
                end: Index(commit.0 + 2),
                compare: true,
                fills_from: Index(0xca),
            }),
        ),
        ("stream digests", stream(StreamBody::Digests { seq, chunk: CHUNK.in_first(), start: 1024, digests })),
        ("stream wants", stream(StreamBody::Wants { seq, blocks: 0xc8 << 64 | 0xc9 })),
        ("stream blocks", stream(blocks(one, vec![0xc4c5_c6c7].into(), IoBuf::copy_of(&[0x5a; 4096])))),
        ("stream zeros", stream(blocks(SectorRange::CHUNK, types::CrcList::new(), IoBuf::EMPTY))),
        ("stream decision", stream(StreamBody::Decision { seq, bytes: Bytes::from_static(b"decision") })),
        ("stream fill", stream(StreamBody::Fill { seq, index: commit, term })),
        ("stream filling", stream(StreamBody::Filling { term, commit })),
        ("stream end", stream(StreamBody::End { seq, index: commit, term })),
        ("stream ack", stream(StreamBody::Ack { seq })),
        ("stream done", stream(StreamBody::Done { term, commit })),
        ("stream abort", stream(StreamBody::Abort(StreamAbort::Full))),
    ]
}

fn repairs() -> Vec<(&'static str, Message)> {
    let (from, to) = (ReplicaId(0x71), ReplicaId(0x72));
    let repair = |body| Message::Repair(RepairMsg { pg: PG, from, to, body });
    let (index, term) = (Index(0xd1), Term(0xd2));
    let (crcs, payload) = (vec![0xd3d4_d5d6], IoBuf::copy_of(&[0xa5; 512]));
    vec![
        ("repair fetch", repair(RepairBody::Fetch { index, term })),
        ("repair payload", repair(RepairBody::Payload { index, term, start: 9, crcs: crcs.into(), payload })),
        ("repair lack", repair(RepairBody::Lack { index, term, why: Lack::Freed })),
    ]
}

fn mends() -> Vec<(&'static str, Message)> {
    let mend = |body| {
        let (from, to, id) = (ReplicaId(0x71), ReplicaId(0x72), 0xd1);
        Message::Mend(MendMsg { pg: PG, from, to, id, chunk: CHUNK.in_first(), block: 4094, count: 2, body })
    };
    let (low, high) = (Index(0xd2), Index(0xd7));
    let (crcs, payload) = (vec![0xd3d4_d5d6, 0xd8d9_dadb], IoBuf::copy_of(&[0x5a; 8192]));
    vec![
        ("mend ask", mend(MendBody::Ask { hash: 0xdfde_dddc, older: IoBuf::EMPTY })),
        ("mend blocks", mend(MendBody::Blocks { low, high, crcs: crcs.into(), payload })),
        ("mend zeros", mend(MendBody::Blocks { low, high, crcs: types::CrcList::new(), payload: IoBuf::EMPTY })),
        ("mend not now", mend(MendBody::NotNow)),
        ("mend damaged", mend(MendBody::Damaged)),
        ("mend no part", mend(MendBody::NoPart)),
    ]
}

fn line(text: &mut String, name: &str, bytes: &[u8]) {
    write!(text, "{name}:").unwrap();
    for word in bytes.chunks(4) {
        text.push(' ');
        word.iter().for_each(|b| write!(text, "{b:02x}").unwrap());
    }
    text.push('\n');
}

#[test]
fn bytes_of_version_1_never_change() {
    let mut text = String::new();
    for (name, message) in messages() {
        let frame = Frame::of(std::slice::from_ref(&message));
        line(&mut text, &format!("{name}, header"), &frame.header);
        line(&mut text, &format!("{name}, head"), &frame.head);
    }
    let hello = Hello {
        version_min: 1,
        version_max: 2,
        cluster: ClusterId(*b"0123456789abcdef"),
        peer: Peer::Osd(OsdId(3)),
        incarnation: Incarnation(0xb1),
        expects: Some(OsdId(4)),
        features: 0xb2,
        credit_ops: 1024,
        credit_bytes: 64 << 20,
    };
    line(&mut text, "hello", &encode_hello(&hello));
    line(&mut text, "refuse", &encode_refuse(&Refuse { code: 4001, reason: "wrong cluster".into() }));
    let golden = include_str!("../../testdata/golden.txt");
    assert!(text == golden, "the format changed; it is now:\n{text}");
}

#[test]
fn raft_kind_numbers_never_change() {
    let numbers: Vec<u8> = super::make::RAFT_KINDS.iter().map(|k| *k as u8).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 10]);
}
