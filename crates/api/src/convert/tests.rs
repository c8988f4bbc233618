//! Values survive the conversion to protobuf and back; malformed messages are errors.

use super::*;
use prost::Message;
use types::WhenFull;
use types::control::{Base, LimitsPart};
use types::cut::{Cut, CutEnd, CutItem, CutRefusal, CutStep, SnapshotAnswer, SnapshotOrder};
use types::faults::{Fault, FaultEffect, ToldFault};
use types::map::{ForceMembers, MemberChange, Membership};
use types::rng::Rng;
use types::writers::{Writer, Writers};
use types::{CutId, GenerationId, QosLimits, RateLimit, SnapshotId};

fn hello() -> OsdHello {
    OsdHello {
        cluster: ClusterId([3; 16]),
        osd: OsdId(4),
        uuid: OsdUuid([5; 16]),
        incarnation: Incarnation(6),
        addr: "[::1]:7400".parse().expect("an address"),
        http: Some("127.0.0.1:7401".parse().expect("an address")),
        capacity_bytes: 1 << 40,
        host: Some("h".into()),
        rack: None,
        zone: Some("z".into()),
        version: "1.2.3".into(),
        replicas: vec![(PgId { pool: PoolId(1), n: 2 }, ReplicaId(u64::MAX))],
        seen: Watermarks {
            revision: 1,
            next_osd: 2,
            next_pool: 3,
            next_replica: 4,
            next_volume: 5,
            next_session: 6,
            map_epoch: 7,
        },
        device: DevicePosition { mount: 7, log_seq: 8, durable_seq: 9, restored: true, let_in: true, behind: true },
    }
}

fn map() -> PgMap {
    let members =
        vec![Member { replica: ReplicaId(8), osd: OsdId(1) }, Member { replica: ReplicaId(9), osd: OsdId(2) }];
    PgMap { pg: PgId { pool: PoolId(1), n: 0 }, conf_epoch: Epoch(1), members }
}

/// Each answer about snapshots.
fn snapshot_answers() -> impl Iterator<Item = SnapshotAnswer> {
    let steps = [CutStep::Snapped, CutStep::Released, CutStep::Lapsed, CutStep::Aborted];
    let hints = [None, Some(OsdId(3))].map(|hint| CutRefusal::NotLeader { hint });
    let refusals = [CutRefusal::Busy, CutRefusal::Open, CutRefusal::Stale, CutRefusal::TooMany, CutRefusal::Invalid];
    let later = [CutRefusal::LaterLength { len_epoch: 7, chunk_count: 9 }];
    let refusals: Vec<CutRefusal> = hints.into_iter().chain(refusals).chain(later).collect();
    let of_cut = |result| SnapshotAnswer::Cut { cut: CutId(9), result };
    let removed = |result| SnapshotAnswer::Removed { volume: VolumeId(4), snapshot: SnapshotId(9), result };
    let cuts = steps.map(Ok).into_iter().chain(refusals.clone().into_iter().map(Err)).map(of_cut);
    cuts.chain([removed(Ok(()))]).chain(refusals.into_iter().map(move |refusal| removed(Err(refusal))))
}

/// Each order about snapshots.
fn snapshot_orders() -> impl Iterator<Item = SnapshotOrder> {
    let items: std::sync::Arc<[CutItem]> =
        [(4, 9), (5, 10)].map(|(volume, to)| CutItem { volume: VolumeId(volume), to: GenerationId(to) }).into();
    let cut = Cut { id: CutId(9), created_ms: 7, items: items.clone() };
    let ends = [CutEnd::Release, CutEnd::TimedOut, CutEnd::Abort];
    let release = ends.map(|end| SnapshotOrder::Release { cut: CutId(9), end, items: items.clone() });
    let remove = SnapshotOrder::Remove { volume: VolumeId(4), snapshot: SnapshotId(9) };
    [SnapshotOrder::Cut(cut), remove].into_iter().chain(release)
}

fn ups() -> Vec<OsdUp> {
    let pg = PgId { pool: PoolId(2), n: 31 };
    let member = |n: u32| Member { replica: ReplicaId(n.into()), osd: OsdId(n) };
    let members = Membership {
        epoch: Epoch(4),
        base: Epoch(1),
        voters: vec![member(1), member(4)],
        outgoing: vec![member(1), member(2)],
        learners: vec![member(5)],
        left: true,
        floor: ReplicaId(3),
    };
    let lead = LeadReport { active: true, members, followers_in_sync: 2, ..LeadReport::default() };
    let chunk = types::VolumeChunk { volume: VolumeId(4), index: 5 };
    let lost = vec![LostExtent { chunk, offset_bytes: 4096, len_bytes: 512 }];
    let (term, applied, repairing) = (Term(2), Index(3), true);
    let report = |leading: Option<LeadReport>| {
        let (replica, lost) = (ReplicaId(1), lost.clone());
        let unread = lost.clone();
        let hears = leading.is_none().then_some(OsdId(3));
        let end = leading.is_none().then_some((term, applied));
        let quarantined = true;
        let floor = ReplicaId(3);
        PgReport { pg, replica, term, applied, end, floor, quarantined, repairing, lost, unread, hears, leading }
    };
    let beat = OsdHeartbeat {
        used_bytes: 1,
        free_bytes: 2,
        full: true,
        destage_stuck: Some("pg 1.3 stays".into()),
        slow_device: Some("device /dev/sdb: reads take 50.0 ms".into()),
        poisoned: Some("why".into()),
        pgs: vec![report(Some(lead)), report(None)],
        unreachable: vec![OsdId(7)],
        io: types::control::IoTotals { reads: 3, read_bytes: 4096, writes: 5, write_bytes: 6 },
        recovery: types::control::RecoveryTotals { streams: 1, done_bytes: 2, left_bytes: 3 },
        log_seq: 9,
    };
    let attached = |result| OsdUp::Attached { pg, order: 9, result };
    vec![
        OsdUp::Hello(hello()),
        OsdUp::Heartbeat(beat),
        OsdUp::Remembers(hello().seen),
        attached(Ok(())),
        attached(Err(AttachRefusal::NotLeader { hint: None })),
        attached(Err(AttachRefusal::NotLeader { hint: Some(OsdId(3)) })),
        attached(Err(AttachRefusal::StaleOrder { last: 12 })),
        attached(Err(AttachRefusal::Busy)),
    ]
    .into_iter()
    .chain(snapshot_answers().map(|answer| OsdUp::Snapshots { pg, answer }))
    .collect()
}

fn downs() -> Vec<OsdDown> {
    let osds = vec![OsdAddr { osd: OsdId(1), addr: "10.0.0.1:7400".parse().expect("an address") }];
    let pg = PgId { pool: PoolId(1), n: 1 };
    let (volume, session) = (VolumeId(1), SessionId(0));
    let snapshots = snapshot_orders().map(|order| OsdDown::Snapshots { pg, order });
    let others = vec![
        OsdDown::Welcome { map_epoch: Epoch(4), osds: osds.clone() },
        OsdDown::ReplicaFloor(ReplicaId(77)),
        OsdDown::Osds { map_epoch: Epoch(5), osds },
        OsdDown::EnsureReplica { created: map(), replica: ReplicaId(9) },
        OsdDown::ChangeMembers {
            pg,
            change: MemberChange {
                expected: Epoch(3),
                add: Some(Member { replica: ReplicaId(9), osd: OsdId(4) }),
                remove: Some(ReplicaId(8)),
                cancel: false,
            },
        },
        OsdDown::Peers(vec![OsdId(2), OsdId(7)]),
        OsdDown::ChangeMembers {
            pg,
            change: MemberChange { expected: Epoch(3), add: None, remove: None, cancel: true },
        },
        OsdDown::ForceMembers {
            pg,
            force: ForceMembers {
                keep: Member { replica: ReplicaId(9), osd: OsdId(4) },
                floor: ReplicaId(30),
                fence: true,
                epoch: Epoch(7),
                end: (Term(3), Index(5)),
            },
        },
        OsdDown::DropReplica { pg, replica: ReplicaId(8), keep: true },
        OsdDown::Attach {
            pg,
            attach: Attach {
                order: 1,
                volume,
                writers: Writers::one(session, Epoch(2)),
                epoch: Epoch(2),
                chunk_count: 3,
                len_epoch: 4,
                head: GenerationId(9),
                base: Some(Base { volume, snapshot: SnapshotId(8), to: GenerationId(9) }),
            },
        },
        OsdDown::Attach {
            pg,
            attach: Attach {
                order: 2,
                volume,
                writers: Writers::one(session, Epoch(2))
                    .with(Writer { epoch: Epoch(4), session: SessionId(9) })
                    .expect("it is newer"),
                epoch: Epoch(5),
                chunk_count: 3,
                len_epoch: 4,
                head: GenerationId(9),
                base: None,
            },
        },
        OsdDown::Limits {
            part: LimitsPart { begins: true, goes_on: false, ends: true },
            volumes: vec![(volume, limits()), (VolumeId(9), QosLimits::NONE)],
        },
        OsdDown::TransferLeader { pg, to: OsdId(2) },
        OsdDown::Remember(hello().seen),
        OsdDown::Behind { reason: "why".into(), hold: true },
        OsdDown::FailReplicas { reason: "it is older".into(), mount: 7 },
        OsdDown::Refused { code: 2024, reason: "no".into() },
    ];
    others.into_iter().chain(snapshots).collect()
}

fn limits() -> QosLimits {
    let iops = Some(RateLimit { rate: 500, burst: 700, burst_seconds: 3 });
    QosLimits { iops, ..QosLimits::NONE }
}

fn faults() -> Vec<ToldFault> {
    let fault = Fault { effect: FaultEffect::Latency(500), percent: 10, reads: true, writes: false };
    vec![ToldFault { id: 3, fault, left_ms: 60_000 }]
}

fn answers() -> Vec<ClientAnswer> {
    let pg = PgId { pool: PoolId(1), n: 0 };
    let osds = vec![OsdAddr { osd: OsdId(1), addr: "10.0.0.1:7400".parse().expect("an address") }];
    let view = MapView { pgs: vec![map()], leaders: vec![(pg, OsdId(1))], osds };
    let segments = vec![
        SegmentPlace { segment: SegmentIndex(0), pgs: vec![pg] },
        SegmentPlace { segment: SegmentIndex(1), pgs: Vec::new() },
        SegmentPlace { segment: SegmentIndex(2), pgs: vec![pg, PgId { n: 7, ..pg }] },
    ];
    let stripe = Stripe::new(65536, 2).expect("a layout");
    let opened = Opened {
        snapshot: None,
        cluster: ClusterId([1; 16]),
        volume: VolumeId(1),
        session: SessionId(2),
        epoch: Epoch(3),
        len_epoch: 0,
        len_bytes: 1 << 20,
        stripe,
        limits: limits(),
        faults: faults(),
        when_full: types::WhenFull::Wait,
        multi_writer: false,
        write: true,
        segments: segments[1..].to_vec(),
        view: view.clone(),
    };
    let whole = Opened { stripe: Stripe::NONE, segments: segments[..2].to_vec(), ..opened.clone() };
    let refusal = Refusal { code: 2020, message: "held".into() };
    vec![
        ClientAnswer::Opened(whole),
        ClientAnswer::Opened(opened),
        ClientAnswer::Segments { segments, pending: vec![SegmentIndex(2)], view: view.clone() },
        ClientAnswer::Refreshed(view),
        ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 0,
            limits: QosLimits::NONE,
            faults: Vec::new(),
            when_full: WhenFull::Client,
        },
        ClientAnswer::Alive {
            len_epoch: 0,
            len_bytes: 5 << 20,
            limits: limits(),
            faults: faults(),
            when_full: types::WhenFull::Error,
        },
        ClientAnswer::Closed,
        ClientAnswer::Refused(refusal),
    ]
}

fn asks() -> Vec<ClientAsk> {
    let (volume, session) = (VolumeId(1), SessionId(2));
    let segments = vec![SegmentIndex(0), SegmentIndex(65_535)];
    vec![
        ClientAsk::Open { name: "p/v".into(), write: true, steal: true, holder: "me".into() },
        ClientAsk::Segments { volume, session, epoch: Epoch(3), segments, allocate: true },
        ClientAsk::Refresh { pgs: vec![PgId { pool: PoolId(1), n: 0 }] },
        ClientAsk::Keepalive { volume, session, unreached: vec![OsdId(2), OsdId(5)], len_epoch: 0, len_bytes: 0 },
        ClientAsk::Close { volume, session },
    ]
}

#[test]
fn every_control_value_survives_the_wire() {
    for up in ups() {
        let bytes = pb::OsdUp::from(up.clone()).encode_to_vec();
        assert_eq!(OsdUp::try_from(pb::OsdUp::decode(&bytes[..]).expect("decodes")), Ok(up));
    }
    for down in downs() {
        let bytes = osd_down(down.clone()).expect("it travels").encode_to_vec();
        assert_eq!(OsdDown::try_from(pb::OsdDown::decode(&bytes[..]).expect("decodes")), Ok(down));
    }
    for answer in answers() {
        let bytes = pb::ClientAskReply::from(answer.clone()).encode_to_vec();
        assert_eq!(ClientAnswer::try_from(pb::ClientAskReply::decode(&bytes[..]).expect("decodes")), Ok(answer));
    }
    for ask in asks() {
        let request = client_ask(1, 2, ask.clone());
        let request = pb::ClientAskRequest::decode(&request.encode_to_vec()[..]).expect("decodes");
        assert_eq!((request.client, request.id), (1, 2));
        assert_eq!(ClientAsk::try_from(request.ask.expect("an ask")), Ok(ask));
    }
    assert!(osd_down(OsdDown::Connected).is_none());
}

#[test]
fn malformed_messages_are_errors() {
    assert_eq!(OsdUp::try_from(pb::OsdUp { body: None }), Err(Malformed::Missing("body")));
    let with = |change: &dyn Fn(&mut pb::OsdHello)| {
        let mut hello = pb::OsdHello::from(hello());
        change(&mut hello);
        OsdHello::try_from(hello)
    };
    assert_eq!(with(&|h| h.uuid.truncate(15)), Err(Malformed::Uuid("uuid")));
    assert_eq!(with(&|h| h.cluster.clear()), Err(Malformed::Uuid("cluster")));
    assert_eq!(with(&|h| h.addr = "nowhere".into()), Err(Malformed::Addr("addr", "nowhere".into())));
    assert_eq!(with(&|h| h.replicas[0].pg = None), Err(Malformed::Missing("pg")));
    let mut wide = pb::PgMap::from(&map());
    wide.members = vec![wide.members[0]; 11];
    assert_eq!(PgMap::try_from(wide), Err(Malformed::Range("members")));
    let force = pb::ForceMembers {
        pg: Some(pb::PgId::default()),
        keep: Some(pb::Member { replica: 9, osd: 4 }),
        floor: 30,
        ..pb::ForceMembers::default()
    };
    assert_eq!(crate::convert_members::force_in(force), Err(Malformed::Missing("end")));
    let report = pb::PgReport {
        pg: Some(pb::PgId::default()),
        leading: Some(pb::LeadReport { followers_in_sync: 256, ..pb::LeadReport::default() }),
        ..pb::PgReport::default()
    };
    let beat = pb::OsdHeartbeat { pgs: vec![report], ..pb::OsdHeartbeat::default() };
    assert_eq!(OsdHeartbeat::try_from(beat), Err(Malformed::Range("followers_in_sync")));
}

#[test]
fn flipped_bits_and_torn_messages_never_panic() {
    let mut rng = Rng::new(11);
    let mut understood = 0;
    for round in 0..4000 {
        let mut bytes = pb::OsdUp::from(ups()[round % ups().len()].clone()).encode_to_vec();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        bytes.truncate(rng.between(1, bytes.len() as u64) as usize);
        understood += usize::from(pb::OsdUp::decode(&bytes[..]).is_ok_and(|up| OsdUp::try_from(up).is_ok()));
    }
    assert!(understood < 4000, "most of it is nonsense, and none of it is a panic");
}

#[test]
fn stripe_layout_and_columns_outside_their_limits_are_refused() {
    let opened = |stripe: Option<pb::Stripe>, place: pb::SegmentPlace| {
        let ClientAnswer::Opened(opened) = answers().remove(0) else { unreachable!("the first one") };
        let pb::ClientAskReply { answer } = ClientAnswer::Opened(opened).into();
        let Some(pb::client_ask_reply::Answer::Opened(mut opened)) = answer else { unreachable!("as it went in") };
        (opened.stripe, opened.segments) = (stripe, vec![place]);
        ClientAnswer::try_from(pb::ClientAskReply { answer: Some(pb::client_ask_reply::Answer::Opened(opened)) })
    };
    let place = |pg, more: usize| pb::SegmentPlace { segment: 0, pg, more_pgs: vec![3; more] };
    let first = Some(pb::PgId { pool: 1, n: 0 });
    let stripe = |unit_bytes, count| Some(pb::Stripe { unit_bytes, count });
    assert!(opened(stripe(4096, 64), place(first, 63)).is_ok());
    assert_eq!(opened(stripe(4095, 64), place(first, 63)), Err(Malformed::Range("stripe")));
    assert_eq!(opened(stripe(4096, 3), place(first, 2)), Err(Malformed::Range("stripe")));
    assert_eq!(opened(stripe(4096, 64), place(first, 64)), Err(Malformed::Range("more_pgs")));
    assert_eq!(opened(stripe(4096, 64), place(first, 62)), Err(Malformed::Range("more_pgs")), "a column has no PG");
    assert_eq!(opened(stripe(4096, 64), place(None, 1)), Err(Malformed::Range("more_pgs")));
}

#[test]
fn widest_volume_of_the_greatest_length_fits_into_a_message() {
    let places = 0..u32::try_from(VOLUME_LEN_MAX / types::SEGMENT).expect("65536");
    let pgs: Vec<PgId> = (0..64).map(|n| PgId { pool: PoolId(1000), n: 16_000 + n }).collect();
    let segments = places.map(|n| SegmentPlace { segment: SegmentIndex(n), pgs: pgs.clone() }).collect();
    let answer = ClientAnswer::Segments { segments, pending: Vec::new(), view: MapView::default() };
    let len = pb::ClientAskReply::from(answer).encoded_len();
    assert!(len < crate::MESSAGE_LEN_MAX * 3 / 4, "{len}");
}

#[test]
fn a_volume_of_an_impossible_length_is_not_opened() {
    let opened = |len_bytes| {
        let cluster = ClusterId([1; 16]);
        let (volume, session, epoch) = (VolumeId(1), SessionId(1), Epoch(1));
        let (stripe, segments, view) = (Stripe::NONE, Vec::new(), MapView::default());
        let limits = limits();
        let opened = Opened {
            cluster,
            volume,
            snapshot: None,
            session,
            epoch,
            len_epoch: 0,
            len_bytes,
            stripe,
            limits,
            faults: Vec::new(),
            when_full: types::WhenFull::Wait,
            multi_writer: false,
            write: true,
            segments,
            view,
        };
        ClientAnswer::try_from(pb::ClientAskReply::from(ClientAnswer::Opened(opened)))
    };
    for len_bytes in [512, 1 << 30, VOLUME_LEN_MAX] {
        assert!(opened(len_bytes).is_ok(), "{len_bytes}");
    }
    for len_bytes in [0, 511, (1 << 30) + 1, VOLUME_LEN_MAX + 512, u64::MAX] {
        assert_eq!(opened(len_bytes), Err(Malformed::Range("len_bytes")), "{len_bytes}");
    }
}

#[test]
fn pg_with_duplicate_or_zero_replica_or_osd_ids_is_malformed() {
    let read = |members: &[(u64, u32)]| {
        let member = |(replica, osd): &(u64, u32)| Member { replica: ReplicaId(*replica), osd: OsdId(*osd) };
        PgMap::try_from(pb::PgMap::from(&PgMap { members: members.iter().map(member).collect(), ..map() }))
    };
    assert!(read(&[(1, 1), (2, 2), (3, 3)]).is_ok());
    for members in [&[(1, 1), (1, 2)][..], &[(1, 1), (2, 1)], &[(0, 1), (1, 2)], &[(1, 0), (2, 1)]] {
        assert_eq!(read(members), Err(Malformed::Range("members")), "{members:?}");
    }
}

#[test]
fn the_reason_of_a_poison_is_cut_and_the_report_is_not_refused() {
    let beat = OsdHeartbeat { poisoned: Some("ü".repeat(5000)), ..OsdHeartbeat::default() };
    let carried = pb::OsdHeartbeat::from(beat);
    let reason = OsdHeartbeat::try_from(carried).expect("it is taken").poisoned.expect("it is poisoned");
    assert!(reason.len() == POISON_REASON_LEN_MAX && reason.starts_with("üü"), "{} bytes", reason.len());
}
