//! Stored state of groups and of meta: decision state, command bytes, meta's records.
//!
//! Properties: decision state and command bytes have exactly one encoding. Records that load, stored again, load as the
//! same.

use crate::source::Source;
use crate::{Verdict, meter};
use control::{
    ChangeReason, ChangeRecord, ClusterRecord, CountersRecord, CutRecord, CutState, FaultRecord, Faults, Held, Holder,
    Holding, OsdRecord, PgRecord, PoolQuota, PoolRecord, PoolState, Record, Records, Resize, Rollback, SegmentRecord,
    SnapshotRecord, SnapshotState, StoredItem, VolumeRecord, VolumeState,
};
use group::decision::{Attached, Decision, Writing};
use group::descriptor::{Command, Stamp, payload_len};
use group::window::Window;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::control::{Attach, Base};
use types::cut::{Cut, CutEnd, CutItem};
use types::faults::{Fault, FaultEffect};
use types::limits::PART_MAX;
use types::map::Member;
use types::rng::Rng;
use types::tree::{Role, Tree};
use types::writers::{Writer, Writers};
use types::{
    ClusterId, CutId, Epoch, GenerationId, Incarnation, OsdId, OsdUuid, PgId, PoolId, QosLimits, RateLimit, ReplicaId,
    SectorRange, SegmentIndex, SessionId, SnapshotId, Stripe, VolumeChunk, VolumeId,
};
use types::{Compression, WhenFull};

/// Memory of a tree for each byte of it: a node of three bytes is one of 72 bytes in a map.
const NODE_FACTOR: u64 = 128;

/// Decodes a decision state and then decides some commands on it.
pub fn decision(data: &[u8]) -> Verdict {
    let Ok(mut decision) = meter::bounded(data.len(), NODE_FACTOR, 4096, || Decision::decode(data)) else {
        return Verdict::Refused;
    };
    assert!(decision.encode()[..] == *data, "a second spelling of {decision:?}");
    // A peer or an earlier process stored this state, so deciding on it must not panic either.
    let some: Vec<VolumeId> = decision.volumes.keys().copied().take(3).collect();
    for volume in some {
        let held = decision.volumes[&volume].clone();
        for Writing { writer, window } in held.writers {
            for seq in [0, window.watermark, u64::MAX] {
                let stamp = Stamp { session: writer.session, epoch: writer.epoch, seq, watermark: seq };
                decision.decide(&Command::Skip { volume, stamp });
            }
        }
        let order = decision.order.saturating_add(1);
        let (session, epoch) = (SessionId(1), Epoch(1));
        decision.decide(&Command::Attach(Box::new(Attach {
            order,
            volume,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 1,
            len_epoch: 0,
            head: GenerationId(0),
            base: None,
        })));
    }
    let again = Decision::decode(&decision.encode());
    assert!(again.as_ref() == Ok(&decision), "decided states are stored and read again");
    Verdict::Taken
}

pub fn decision_seed(rng: &mut Rng) -> Vec<u8> {
    let members: Vec<Member> =
        (1..=rng.between(1, 5)).map(|n| Member { replica: ReplicaId(n * 3), osd: OsdId(n as u32) }).collect();
    let mut decision = Decision::fresh(Epoch(1), &members);
    decision.order = rng.below(100);
    for n in 0..rng.below(5) {
        let window =
            |rng: &mut Rng| Window { watermark: rng.below(1000), bits: std::array::from_fn(|_| rng.next_u64()) };
        let (volume, first) = (VolumeId(n * 5 + 1), GenerationId(n * 5 + 1));
        // Another generation than the volume's first: no command of today makes one, and it is stored all the same.
        let head = GenerationId(first.0 + rng.below(5));
        let last = GenerationId(head.0 + rng.below(3));
        let (epoch, count) = (Epoch(n + 9), rng.below(4));
        let writer = |w: u64| Writer { epoch: Epoch(n + 9 - count + w), session: SessionId(n * 9 + w + 1) };
        let last_open = u64::from(rng.chance(2, 3));
        let writers = (0..count).map(|w| Writing { writer: writer(w + last_open), window: window(rng) }).collect();
        Arc::make_mut(&mut decision.tree).begin(volume, head, None).expect("its number is its own");
        decision.volumes.insert(volume, Attached { writers, epoch, chunk_count: 64, len_epoch: 0, head, first, last });
    }
    decision.encode().to_vec()
}

/// Decodes a tree, and removes what may be removed.
pub fn tree(data: &[u8]) -> Verdict {
    let result = meter::bounded(data.len(), NODE_FACTOR, 4096, || Tree::decode(data));
    if let Ok(tree) = &result {
        let spelled = |tree: &Tree| {
            let mut bytes = bytes::BytesMut::new();
            tree.encode(&mut bytes);
            bytes
        };
        assert!(spelled(tree)[..] == *data, "a second spelling of {tree:?}");
        // A peer stored this tree: changes of it must not panic, and must keep its laws.
        let ids: Vec<GenerationId> = tree.iter().map(|(id, _)| id).collect();
        let mut changed = tree.clone();
        for id in ids.into_iter().take(16) {
            let _ = (changed.detach(id), changed.shorten(id, 1), changed.remove(id));
            assert!(Tree::decode(&spelled(&changed)).as_ref() == Ok(&changed), "{id} left {changed:?}");
        }
    }
    Verdict::of(&result)
}

pub fn tree_seed(rng: &mut Rng) -> Vec<u8> {
    let mut tree = Tree::default();
    for n in 1..=rng.between(1, 12) {
        let (id, volume) = (GenerationId(n * 3), VolumeId(n));
        let some = tree.iter().map(|(id, node)| (id, node.role)).nth(rng.below(n) as usize);
        let _ = match (rng.below(6), some) {
            (0..4, Some((from, Role::Head(volume)))) => tree.branch(volume, from, id, n as u32, n * 100),
            (0..4, Some((from, _))) => tree.begin(volume, id, Some(from)),
            (4, Some((id, Role::Head(_)))) => tree.shorten(id, n as u32),
            (4, Some((id, _))) => tree.remove(id).map(drop),
            _ => tree.begin(volume, id, None),
        };
    }
    let mut bytes = bytes::BytesMut::new();
    tree.encode(&mut bytes);
    bytes.to_vec()
}

/// Decodes command bytes.
pub fn descriptor(data: &[u8]) -> Verdict {
    // The volumes of a cut are a list, and then a shared one with two counters. Besides, only an attach record is on the heap.
    let record = size_of::<Attach>() as u64;
    let result = meter::bounded(data.len(), 2, record.max(16), || Command::decode(data));
    let len = payload_len(data);
    assert!(len <= PART_MAX && len.is_multiple_of(512));
    if let Ok(command) = &result {
        let mut again = bytes::BytesMut::new();
        command.encode(&mut again);
        assert!(again[..] == *data, "a second spelling of {command:?}");
    }
    Verdict::of(&result)
}

fn some_writers(rng: &mut Rng) -> Writers {
    let first = rng.between(3, 9);
    let all = (first..=9).map(|n| Writer { epoch: Epoch(n), session: SessionId(n * 2) });
    all.fold(Writers::NONE, |list, writer| list.with(writer).unwrap_or(list))
}

pub fn descriptor_seed(rng: &mut Rng) -> Vec<u8> {
    let stamp = Stamp { session: SessionId(5), epoch: Epoch(6), seq: rng.below(300), watermark: rng.below(50) };
    let chunk = VolumeChunk { volume: VolumeId(2), index: rng.below(100) as u32 };
    let range = SectorRange::new(rng.below(32) as u32 * 1024, rng.between(1, 1024) as u32);
    let items: Arc<[CutItem]> =
        (1..=1 + rng.below(3)).map(|n| CutItem { volume: VolumeId(n), to: GenerationId(100 + n) }).collect();
    let command = match rng.below(8) {
        5 => Command::Snap(Cut { id: CutId(101), created_ms: rng.below(9), items }),
        6 => Command::Release { cut: CutId(101), end: CutEnd::Release, items },
        7 => Command::Remove { volume: VolumeId(2), snapshot: SnapshotId(101) },
        0 => Command::Zero { chunk, range, stamp },
        1 => Command::Skip { volume: chunk.volume, stamp },
        2 => Command::Attach(Box::new(Attach {
            order: rng.below(9),
            volume: chunk.volume,
            writers: some_writers(rng),
            epoch: Epoch(9),
            chunk_count: 5,
            len_epoch: rng.below(2) as u32,
            head: GenerationId(7),
            base: rng.chance(1, 2).then_some(Base {
                volume: chunk.volume,
                snapshot: SnapshotId(6),
                to: GenerationId(7),
            }),
        })),
        _ => Command::Write { chunk, range, stamp },
    };
    let mut out = bytes::BytesMut::new();
    command.encode(&mut out);
    out.to_vec()
}

/// Loads a metadata store. Input: lines of `key value`, in the form of an operator's dump.
pub fn records(data: &[u8]) -> Verdict {
    let items = items(data);
    let held: usize = items.iter().map(|i| i.key.len() + i.value.len()).sum();
    let result = meter::bounded(held, 400, 16 << 10, || Records::load(items));
    if let Ok(records) = &result {
        let again = Records::load(stored(records)).expect("what was loaded can be stored");
        assert!(all(&again) == all(records), "stored and loaded again, it is another cluster");
    }
    Verdict::of(&result)
}

fn items(data: &[u8]) -> Vec<StoredItem> {
    let line = |line: &[u8]| {
        let cut = line.iter().position(|b| *b == b' ')?;
        let key = String::from_utf8_lossy(&line[..cut]).into_owned();
        Some(StoredItem { key, value: line[cut + 1..].to_vec(), version: 1 })
    };
    data.split(|b| *b == b'\n').filter_map(line).collect()
}

fn all(records: &Records) -> Vec<Record> {
    let mut all: Vec<Record> = records.cluster.iter().cloned().map(Record::Cluster).collect();
    all.push(Record::Counters(records.counters.clone()));
    all.extend(records.osds.values().cloned().map(Record::Osd));
    all.extend(records.pools.values().cloned().map(Record::Pool));
    all.extend(records.pgs.values().cloned().map(Record::Pg));
    all.extend(records.volumes.values().cloned().map(Record::Volume));
    all.extend(records.segments.values().cloned().map(Record::Segment));
    all
}

fn stored(records: &Records) -> Vec<StoredItem> {
    let item = |r: Record| StoredItem { key: r.key().to_string(), value: r.encode(), version: 1 };
    all(records).into_iter().map(item).collect()
}

fn sample_osd(n: u32) -> OsdRecord {
    OsdRecord {
        id: OsdId(n),
        uuid: OsdUuid([n as u8; 16]),
        host: format!("host{n}"),
        rack: String::new(),
        zone: String::new(),
        capacity_bytes: 1 << 40,
        weight: 1000,
        is_in: true,
        drain: false,
        addr: Some(([127, 0, 0, 1], 7400 + n as u16).into()),
        http: None,
        incarnation: Incarnation(u64::from(n)),
        poisoned: None,
        created_ms: 5,
        elector: false,
        mount: 3,
        log_seq: 9,
        judged_at: 0,
        auto_out: n == 2,
        down_since_ms: (n == 2).then_some(8),
        replaces: (n == 3).then_some(OsdId(2)),
        device_class: (n == 1).then(|| "ssd".to_owned()),
    }
}

/// Returns a record of a volume; the second one is in a recovery, and is being resized.
fn sample_volume(n: u64, holder: Option<Holder>) -> VolumeRecord {
    let of = |holder| Holding { session: SessionId(n), epoch: Epoch(1), holder };
    let held = match n {
        1 => Held::Exclusive { session: SessionId(if holder.is_some() { n } else { 0 }), holder },
        _ => Held::Shared { writers: holder.into_iter().map(of).collect() },
    };
    VolumeRecord {
        id: VolumeId(n),
        pool: PoolId(1),
        name: format!("v{n}"),
        len_bytes: 3 << 30,
        epoch: Epoch(2),
        held,
        leaving: Vec::new(),
        fenced: Vec::new(),
        settled: n == 1,
        state: VolumeState::Ready,
        created_ms: 7,
        recovering: n == 2,
        stripe: if n == 1 { Stripe::NONE } else { Stripe::new(65536, 2).expect("a layout") },
        description: if n == 1 { "a disk".to_owned() } else { String::new() },
        labels: (1..n).map(|n| (format!("k{n}"), "v".to_owned())).collect(),
        resize: (n == 2).then(|| Resize { len_bytes: 5 << 30, since_ms: 8, by: String::new(), shrink: None }),
        len_epoch: n as u32 - 1,
        trash: None,
        newest: GenerationId(if n == 1 { 3 } else { 4 }),
        limits: (n == 1).then(some_limits),
        clone_of: (n == 2).then_some(Base { volume: VolumeId(1), snapshot: SnapshotId(3), to: GenerationId(4) }),
        depth: 0,
        cloning: false,
        flatten: (n == 2).then(|| control::Flatten { since_ms: 8, by: String::new() }),
        faults: if n == 2 { some_faults() } else { Faults::default() },
        when_full: if n == 1 { WhenFull::Client } else { WhenFull::Error },
        rollback: (n == 2).then(|| Rollback {
            snapshot: SnapshotId(3),
            to: GenerationId(4),
            since_ms: 8,
            by: String::new(),
        }),
    }
}

fn some_faults() -> Faults {
    let fault = Fault { effect: FaultEffect::Latency(500), percent: 10, reads: true, writes: false };
    Faults { last: 4, list: vec![FaultRecord { id: 4, fault, since_ms: 8, until_ms: 9_008, by: "ann".to_owned() }] }
}

fn some_limits() -> QosLimits {
    let iops = Some(RateLimit { rate: 500, burst: 700, burst_seconds: 3 });
    QosLimits { iops, ..QosLimits::NONE }
}

/// Returns the records of a small cluster: three OSDs, a pool, two volumes.
pub fn sample_records(source: &mut Source<'_>) -> Vec<Record> {
    let pool = PoolRecord {
        id: PoolId(1),
        name: "p".into(),
        replicas: 3,
        domain: "osd".into(),
        pg_count: 2,
        pgs_made: 2,
        state: PoolState::Ready,
        created_ms: 6,
        limits: some_limits(),
        quota: PoolQuota { bytes: Some(7 << 40), volumes: source.flag().then_some(8), overcommit_percent: Some(300) },
        device_class: source.flag().then(|| "ssd".to_owned()),
        backup_compression: if source.flag() { Compression::None } else { Compression::Zstd },
    };
    let member = |n: u32, k: u32| Member { replica: ReplicaId(u64::from(n * 3 + k)), osd: OsdId(k) };
    let pg = |n: u32| PgId { pool: PoolId(1), n };
    let change = source.flag().then(|| ChangeRecord {
        id: 1,
        expected: Epoch(1),
        add: member(7, 4),
        remove: ReplicaId(3),
        from: OsdId(3),
        to: OsdId(4),
        cancel: false,
        since_ms: 7,
        reason: ChangeReason::Leaving,
    });
    let pg_record = |n: u32| {
        let members: Vec<Member> = (1..=3).map(|k| member(n, k)).collect();
        let created = if change.is_some() { members.clone() } else { Vec::new() };
        let (change, queue) = (change.clone(), vec![(OsdId(2), OsdId(5))]);
        PgRecord { order: 4, changes: 1, created, change, queue, ..PgRecord::new(pg(n), members) }
    };
    let holder =
        source.flag().then(|| Holder { name: "vm".into(), address: "10.0.0.9".into(), since_ms: 9, client: 1, ask: 1 });
    let volume = |n: u64| sample_volume(n, holder.clone());
    let segment = |n: u32| SegmentRecord::new(VolumeId(1), SegmentIndex(n), &[pg(n % 2)], n == 1);
    let columns = SegmentRecord::new(VolumeId(2), SegmentIndex(0), &[pg(0), pg(1)], true);
    let counters = CountersRecord {
        next_osd: 4,
        next_pool: 2,
        next_replica: 10,
        next_volume: 5,
        next_session: 3,
        map_epoch: Epoch(3),
        revision: 9,
        ..CountersRecord::default()
    };
    let mut all = vec![
        Record::Cluster(ClusterRecord { id: ClusterId([7; 16]), created_ms: 1 }),
        Record::Counters(counters),
        Record::Pool(pool),
    ];
    all.extend((1..=3).map(sample_osd).map(Record::Osd));
    all.extend((0..2).map(pg_record).map(Record::Pg));
    all.extend((1..=2).map(volume).map(Record::Volume));
    all.extend((0..2).map(segment).map(Record::Segment));
    all.push(Record::Segment(columns));
    // A snapshot of the first volume, and one of the second whose cut goes on.
    let cut = CutId(4);
    let items = vec![CutItem { volume: VolumeId(2), to: GenerationId(4) }];
    all.push(Record::Snapshot(sample_snapshot(1, 3, SnapshotState::Ready)));
    all.push(Record::Snapshot(sample_snapshot(2, 4, SnapshotState::Cutting)));
    all.push(Record::Cut(CutRecord { id: cut, items, since_ms: 9, state: CutState::Holding }));
    all
}

fn sample_snapshot(volume: u64, snapshot: u64, state: SnapshotState) -> SnapshotRecord {
    SnapshotRecord {
        volume: VolumeId(volume),
        snapshot: SnapshotId(snapshot),
        name: "s".into(),
        len_bytes: 3 << 30,
        created_ms: 8,
        state,
        cut: CutId(snapshot),
        protected: volume == 1,
        by: String::new(),
        description: String::new(),
        labels: BTreeMap::new(),
    }
}

pub fn records_seed(rng: &mut Rng) -> Vec<u8> {
    let choice = [rng.next_u64() as u8];
    let mut all = sample_records(&mut Source::new(&choice));
    // Only a few records are kept, so that a mutation is likely to hit one that matters.
    let keep = rng.between(2, all.len() as u64) as usize;
    while all.len() > keep {
        let at = rng.between(1, all.len() as u64 - 1) as usize;
        all.remove(at);
    }
    let line = |r: &Record| [r.key().to_string().as_bytes(), b" ", &r.encode(), b"\n"].concat();
    all.iter().flat_map(line).collect()
}
