//! gRPC inputs of meta, from their protobuf bytes to the plan: administrators, clients, OSDs.
//!
//! Input: a byte for the state, then messages, each as kind, length (two bytes), protobuf. Properties: nothing panics;
//! conversion there and back gives the same value; every transaction matches the stored versions. The store, loaded
//! again, equals the records of `Control`, and every question gets at most one answer.

use crate::source::Source;
use crate::store::sample_records;
use crate::{Verdict, meter};
use api::pb;
use control::admin::{
    AdminAsk, CutAsk, OsdRegister, PgForce, PgMove, PoolCreate, PoolSet, Resizing, SnapshotChange, VolumeClone,
    VolumeRemove,
};
use control::{ClientReq, Control, ControlAction, ControlConfig, Now, Records, StoredItem, StreamId, Token, Txn};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp};
use types::rng::Rng;
use types::{OsdId, OsdUuid, PgId, Time};

const KINDS: u64 = 16;

/// A meta whose store is a map.
struct Meta {
    control: Control,
    store: BTreeMap<String, (Vec<u8>, u64)>,
    now: Now,
    token: u64,
    open: BTreeSet<Token>,
}

impl Meta {
    fn commit(&mut self, txn: &Txn) {
        for check in &txn.checks {
            let version = self.store.get(&check.key).map_or(0, |(_, version)| *version);
            assert_eq!(version, check.version, "{} was not written since", check.key);
        }
        for (key, value) in &txn.puts {
            let version = self.store.get(key).map_or(0, |(_, version)| *version);
            self.store.insert(key.clone(), (value.clone(), version + 1));
        }
        txn.deletes.iter().for_each(|key| drop(self.store.remove(key)));
    }

    /// Polls until no further action follows.
    fn settle(&mut self) {
        for _ in 0..200 {
            let mut out = Vec::new();
            self.control.poll(self.now, &mut out);
            let mut moved = !out.is_empty();
            while !out.is_empty() {
                for action in std::mem::take(&mut out) {
                    match action {
                        ControlAction::Commit(txn) => {
                            self.commit(&txn);
                            self.control.handle_committed(&mut out);
                        }
                        ControlAction::Answer { token, answer } => {
                            assert!(self.open.remove(&token), "two answers to one question");
                            let carried = pb::ClientAskReply::from(answer.clone());
                            assert!(ClientAnswer::try_from(carried).as_ref() == Ok(&answer));
                        }
                        ControlAction::AdminAnswer { token, .. } => {
                            assert!(self.open.remove(&token), "two answers to one question");
                        }
                        ControlAction::ToOsd { stream, down } => {
                            let carried = api::convert::osd_down(down.clone()).expect("it travels");
                            assert!(OsdDown::try_from(carried).as_ref() == Ok(&down));
                            if let OsdDown::Remember(told) = down {
                                self.control.handle_osd(self.now, stream, OsdUp::Remembers(told));
                            }
                        }
                        ControlAction::CloseOsd { .. } | ControlAction::Event(_) => {}
                    }
                }
            }
            moved |= self.control.next_deadline(self.now) <= self.now.mono;
            if !moved {
                return;
            }
        }
        panic!("meta does not come to rest");
    }

    fn question(&mut self) -> Token {
        self.token += 1;
        self.open.insert(Token(self.token));
        Token(self.token)
    }

    fn admin(&mut self, ask: AdminAsk) {
        let token = self.question();
        self.control.handle_admin(token, ask);
    }

    fn client(&mut self, bytes: &[u8]) -> Option<()> {
        let request = decoded::<pb::ClientAskRequest>(bytes)?;
        let (client, id) = (request.client, request.id);
        let ask = ClientAsk::try_from(request.ask?).ok()?;
        let again = api::convert::client_ask(client, id, ask.clone());
        assert!(again.ask.and_then(|a| ClientAsk::try_from(a).ok()) == Some(ask.clone()));
        let token = self.question();
        self.control.handle_client(ClientReq { token, client, id, address: "10.0.0.9:1".into(), ask });
        Some(())
    }

    fn osd(&mut self, stream: u64, bytes: &[u8]) -> Option<()> {
        let up = OsdUp::try_from(decoded::<pb::OsdUp>(bytes)?).ok()?;
        assert!(OsdUp::try_from(pb::OsdUp::from(up.clone())).as_ref() == Ok(&up));
        self.control.handle_osd(self.now, StreamId(stream), up);
        Some(())
    }

    /// Converts a message about one volume or the trash; its first byte says which one it is.
    fn change(bytes: &[u8]) -> Option<AdminAsk> {
        let (kind, bytes) = bytes.split_first()?;
        Some(match kind % 16 {
            0 => AdminAsk::VolumeInfo { name: decoded::<pb::VolumeInfoRequest>(bytes)?.name },
            1 => {
                let r = decoded::<pb::VolumeRenameRequest>(bytes)?;
                AdminAsk::VolumeRename { name: r.name, new: r.new }
            }
            2 => {
                let r = decoded::<pb::VolumeSetRequest>(bytes)?;
                AdminAsk::VolumeSet { name: r.name, text: api::text_in(r.text).ok()? }
            }
            3 => {
                let r = decoded::<pb::VolumeResizeRequest>(bytes)?;
                let (len_bytes, shrink) = (r.len_bytes, r.shrink);
                let to = Resizing { len_bytes, shrink, discard: r.discard, force: r.force };
                AdminAsk::VolumeResize { name: r.name, to }
            }
            4 => AdminAsk::TrashList { pool: decoded::<pb::TrashListRequest>(bytes)?.pool },
            5 => {
                let r = decoded::<pb::TrashRestoreRequest>(bytes)?;
                AdminAsk::TrashRestore { which: r.which, name: r.name }
            }
            6 => {
                let r = decoded::<pb::SnapshotCreateRequest>(bytes)?;
                let text = api::text_in(r.text).ok()?;
                AdminAsk::SnapshotCreate(CutAsk { names: r.names, text, by: String::new() })
            }
            7 => {
                let r = decoded::<pb::SnapshotSetRequest>(bytes)?;
                let text = api::text_in(r.text).ok()?;
                let change = SnapshotChange { protect: r.protect, name: r.new_name, text };
                AdminAsk::SnapshotSet { name: r.name, change }
            }
            8 => {
                let r = decoded::<pb::SnapshotRemoveRequest>(bytes)?;
                AdminAsk::SnapshotRemove { name: r.name, detach: r.detach }
            }
            11 => {
                let r = decoded::<pb::VolumeCloneRequest>(bytes)?;
                AdminAsk::VolumeClone(VolumeClone {
                    snapshot: r.snapshot,
                    name: r.name,
                    text: api::text_in(r.text).ok()?,
                })
            }
            12 => {
                let r = decoded::<pb::VolumeFlattenRequest>(bytes)?;
                AdminAsk::VolumeFlatten { name: r.name, cancel: r.cancel }
            }
            14 => {
                let (name, fault) = api::fault_add_in(decoded(bytes)?).ok()?;
                AdminAsk::VolumeFaultAdd { name, fault }
            }
            15 => {
                let r = decoded::<pb::VolumeFaultRemoveRequest>(bytes)?;
                AdminAsk::VolumeFaultRemove { name: r.name, id: r.id }
            }
            10 => {
                let r = decoded::<pb::SnapshotRollbackRequest>(bytes)?;
                AdminAsk::SnapshotRollback { name: r.name, force: r.force }
            }
            9 => AdminAsk::SnapshotList { of: decoded::<pb::SnapshotListRequest>(bytes)?.of },
            _ => AdminAsk::TrashPurge { which: decoded::<pb::TrashPurgeRequest>(bytes)?.which },
        })
    }

    /// Converts a message and hands it to the control logic as `meta::admin` does, field by field.
    fn take(&mut self, kind: u64, bytes: &[u8]) -> Option<()> {
        let ask = match kind {
            0 => AdminAsk::Status,
            1 => {
                let r = decoded::<pb::OsdRegisterRequest>(bytes)?;
                let uuid = OsdUuid(r.uuid.as_slice().try_into().ok()?);
                let (host, rack, zone, capacity_bytes) = (r.host, r.rack, r.zone, r.capacity_bytes);
                let (osd, replaces, device_class) = (r.osd.map(OsdId), r.replaces.map(OsdId), r.device_class);
                let ask = OsdRegister { osd, uuid, host, rack, zone, capacity_bytes, device_class, replaces };
                AdminAsk::OsdRegister(ask)
            }
            2 => AdminAsk::OsdSet(decoded::<pb::OsdSetRequest>(bytes)?.into()),
            3 => {
                let r = decoded::<pb::PoolCreateRequest>(bytes)?;
                let pb::PoolCreateRequest { name, replicas, domain, pg_count, device_class, .. } = r;
                AdminAsk::PoolCreate(PoolCreate { name, replicas, domain, pg_count, force: false, device_class })
            }
            4 => match bytes.split_first()? {
                (0, bytes) => {
                    let r = decoded::<pb::PoolSetRequest>(bytes)?;
                    AdminAsk::PoolSet(PoolSet::try_from(r).ok()?)
                }
                (1, bytes) => {
                    let r = decoded::<pb::PoolRenameRequest>(bytes)?;
                    AdminAsk::PoolRename { name: r.name, new: r.new }
                }
                (_, bytes) => AdminAsk::PoolRemove { name: decoded::<pb::PoolRemoveRequest>(bytes)?.name },
            },
            5 => AdminAsk::PgList { pool: decoded::<pb::PgListRequest>(bytes)?.pool },
            6 => {
                let r = decoded::<pb::VolumeCreateRequest>(bytes)?;
                let stripe = api::stripe_in(r.stripe).ok()?;
                AdminAsk::VolumeCreate {
                    name: r.name,
                    len_bytes: r.len_bytes,
                    stripe,
                    text: api::text_in(r.text).ok()?,
                }
            }
            7 => Meta::change(bytes)?,
            8 => {
                let r = decoded::<pb::VolumeRemoveRequest>(bytes)?;
                let (name, force, now, snapshots, detach) = (r.name, r.force, r.now, r.snapshots, r.detach);
                AdminAsk::VolumeRemove(VolumeRemove { name, force, now, snapshots, detach })
            }
            9 => AdminAsk::VolumeList { pool: decoded::<pb::VolumeListRequest>(bytes)?.pool },
            10 | 11 => return self.client(bytes),
            12 | 13 => return self.osd(kind % 2, bytes),
            15 => AdminAsk::PgForce(PgForce::try_from(decoded::<pb::PgForceRequest>(bytes)?).ok()?),
            _ => {
                let r = decoded::<pb::PgMoveRequest>(bytes)?;
                let pg = PgId::from(r.pg?);
                let ask = PgMove { pg, from: OsdId(r.from), to: OsdId(r.to), dry_run: r.dry_run };
                if r.to == 0 { AdminAsk::PgMoveCancel { pg } } else { AdminAsk::PgMove(ask) }
            }
        };
        self.admin(ask);
        Some(())
    }
}

/// Decodes a message within a memory bound. A field of one byte may become a struct in a list.
fn decoded<T: Message + Default>(bytes: &[u8]) -> Option<T> {
    meter::bounded(bytes.len(), 256, 4096, || T::decode(bytes).ok())
}

/// Runs the target described at the head of this file.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let item = |r: control::Record| (r.key().to_string(), (r.encode(), 1));
    let store: BTreeMap<String, (Vec<u8>, u64)> = sample_records(&mut source).into_iter().map(item).collect();
    let now = Now { mono: Time(1_000_000_000), wall_ms: 1_700_000_000_000 };
    let control = Control::new(ControlConfig::default(), load(&store), now);
    let mut meta = Meta { control, store, now, token: 0, open: BTreeSet::new() };
    let mut taken = false;
    while !source.is_empty() {
        let (kind, len) = (source.byte(), source.u16());
        let bytes = source.bytes(len.into());
        // The high bits advance the time. The bit below them makes the message wait for the next one.
        meta.now.mono = meta.now.mono + Duration::from_millis(u64::from(kind >> 5) * 300);
        taken |= meta.take(u64::from(kind & 31) % KINDS, bytes).is_some();
        if kind & 16 == 0 {
            meta.settle();
        }
    }
    meta.settle();
    assert_eq!(keys(&load(&meta.store)), keys(meta.control.records()), "the store and the records in memory differ");
    if taken { Verdict::Taken } else { Verdict::Refused }
}

fn load(store: &BTreeMap<String, (Vec<u8>, u64)>) -> Records {
    let item = |(key, (value, version)): (&String, &(Vec<u8>, u64))| StoredItem {
        key: key.clone(),
        value: value.clone(),
        version: *version,
    };
    Records::load(store.iter().map(item)).expect("what meta stores, meta can load")
}

/// Returns a text that differs for different records.
fn keys(records: &Records) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        records.counters,
        records.osds,
        records.pools,
        records.pgs,
        records.volumes,
        records.segments,
        records.snapshots,
        records.cuts
    )
}

pub fn seed(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![rng.next_u64() as u8];
    for _ in 0..rng.between(1, 6) {
        let kind = rng.below(KINDS);
        let bytes = message(rng, kind);
        out.push(kind as u8 | (rng.below(8) as u8) << 5);
        out.extend((bytes.len() as u16).to_le_bytes());
        out.extend(bytes);
    }
    out
}

fn name(rng: &mut Rng) -> String {
    ["p/v1", "p/v2", "p/new", "p", "q", "q/v", "", "p/"][rng.below(8) as usize].to_owned()
}

fn which(rng: &mut Rng) -> String {
    if rng.chance(1, 2) { name(rng) } else { rng.below(5).to_string() }
}

fn snapshot(rng: &mut Rng) -> String {
    format!("{}@{}", name(rng), ["s", "t", "", "S"][rng.below(4) as usize])
}

fn some_text(rng: &mut Rng) -> Option<pb::VolumeText> {
    let label =
        |rng: &mut Rng| (["a", "b/c", "-", ""][rng.below(4) as usize].to_owned(), "x".repeat(rng.below(200) as usize));
    rng.chance(1, 2).then(|| pb::VolumeText {
        description: rng.chance(1, 2).then(|| "d".repeat(rng.below(600) as usize)),
        labels: (0..rng.below(3)).map(|_| label(rng)).collect(),
        removed_labels: (0..rng.below(2)).map(|_| label(rng).0).collect(),
        limits: some_limits(rng),
        when_full: rng.chance(1, 3).then(|| ["wait", "error", "", "later"][rng.below(4) as usize].to_owned()),
        multi_writer: rng.chance(1, 3).then(|| rng.chance(1, 2)),
    })
}

fn some_limits(rng: &mut Rng) -> Option<pb::QosChange> {
    let number = |rng: &mut Rng| [0, 9, 500, 1 << 20, 1 << 41, u64::MAX][rng.below(6) as usize];
    let rate = |rng: &mut Rng| pb::RateChange {
        kind: rng.below(7) as i32,
        rate: rng.chance(2, 3).then(|| number(rng)),
        burst: rng.chance(1, 2).then(|| number(rng)),
        burst_seconds: rng.chance(1, 2).then(|| number(rng) as u32),
    };
    let rates = (0..rng.below(3)).map(|_| rate(rng)).collect();
    rng.chance(1, 2).then(|| pb::QosChange { base: rng.below(4) as i32, rates })
}

fn device_class(rng: &mut Rng) -> Option<String> {
    rng.chance(1, 3).then(|| ["ssd", "any", "", "A"][rng.below(4) as usize].to_owned())
}

/// Returns a change or the removal of a pool; its first byte says which one it is.
fn pool_message(rng: &mut Rng) -> Vec<u8> {
    let (kind, bytes) = match rng.below(3) {
        0 => {
            let (limits, quota_volumes) = (some_limits(rng), rng.chance(1, 2).then(|| rng.below(3)));
            let quota_bytes = rng.chance(1, 2).then(|| [0, 5 << 30, u64::MAX][rng.below(3) as usize]);
            let quota_overcommit_percent = rng.chance(1, 3).then(|| rng.below(300));
            let (name, device_class) = (name(rng), device_class(rng));
            let quotas =
                pb::PoolSetRequest { quota_bytes, quota_volumes, quota_overcommit_percent, ..Default::default() };
            let backup_compression =
                rng.chance(1, 3).then(|| ["none", "zstd", "", "gzip"][rng.below(4) as usize].into());
            (0, pb::PoolSetRequest { name, limits, device_class, backup_compression, ..quotas }.encode_to_vec())
        }
        1 => (1, pb::PoolRenameRequest { name: name(rng), new: name(rng) }.encode_to_vec()),
        _ => (2, pb::PoolRemoveRequest { name: name(rng) }.encode_to_vec()),
    };
    [&[kind][..], &bytes].concat()
}

/// Returns a command about a volume or a snapshot; its first byte says which one it is.
fn change_message(rng: &mut Rng) -> Vec<u8> {
    let kind = rng.below(16) as u8;
    let len_bytes = [0, 512, 5 << 30, 64 << 40, u64::MAX][rng.below(5) as usize];
    let bytes = match kind {
        0 => pb::VolumeInfoRequest { name: name(rng) }.encode_to_vec(),
        1 => pb::VolumeRenameRequest { name: name(rng), new: name(rng) }.encode_to_vec(),
        2 => pb::VolumeSetRequest { name: name(rng), text: some_text(rng) }.encode_to_vec(),
        3 => pb::VolumeResizeRequest {
            name: name(rng),
            len_bytes,
            shrink: rng.chance(1, 2),
            discard: rng.chance(1, 2),
            force: rng.chance(1, 4),
        }
        .encode_to_vec(),
        4 => pb::TrashListRequest { pool: name(rng) }.encode_to_vec(),
        5 => pb::TrashRestoreRequest { which: which(rng), name: rng.chance(1, 2).then(|| name(rng)) }.encode_to_vec(),
        6 => {
            let names = (0..rng.below(4)).map(|_| snapshot(rng)).collect();
            pb::SnapshotCreateRequest { names, text: some_text(rng) }.encode_to_vec()
        }
        7 => {
            let protect = rng.chance(1, 2).then(|| rng.chance(1, 2));
            let new_name = rng.chance(1, 2).then(|| snapshot(rng));
            pb::SnapshotSetRequest { name: snapshot(rng), protect, new_name, text: some_text(rng) }.encode_to_vec()
        }
        8 => pb::SnapshotRemoveRequest { name: snapshot(rng), detach: rng.chance(1, 2) }.encode_to_vec(),
        11 => pb::VolumeCloneRequest { snapshot: snapshot(rng), name: name(rng), text: some_text(rng) }.encode_to_vec(),
        12 => pb::VolumeFlattenRequest { name: name(rng), cancel: rng.chance(1, 2) }.encode_to_vec(),
        14 => {
            let effect =
                [pb::fault::Effect::LatencyMs(rng.below(99_999) as u32), pb::fault::Effect::Pause(pb::Empty {})];
            let effect = Some(effect[rng.below(2) as usize]);
            let (percent, reads, writes) =
                ([0, 10, 100, 300][rng.below(4) as usize], rng.chance(1, 2), rng.chance(1, 2));
            let fault = Some(pb::Fault { effect, percent, reads, writes });
            let for_ms = [0, 5_000, 86_400_000, u64::MAX][rng.below(4) as usize];
            pb::VolumeFaultAddRequest { name: name(rng), fault, for_ms }.encode_to_vec()
        }
        15 => {
            let id = rng.chance(1, 2).then(|| rng.below(4) as u32);
            pb::VolumeFaultRemoveRequest { name: name(rng), id }.encode_to_vec()
        }
        10 => pb::SnapshotRollbackRequest { name: snapshot(rng), force: rng.chance(1, 2) }.encode_to_vec(),
        9 => pb::SnapshotListRequest { of: snapshot(rng) }.encode_to_vec(),
        _ => pb::TrashPurgeRequest { which: which(rng) }.encode_to_vec(),
    };
    [&[kind], &bytes[..]].concat()
}

fn message(rng: &mut Rng, kind: u64) -> Vec<u8> {
    match kind {
        1 => pb::OsdRegisterRequest {
            osd: rng.chance(1, 2).then(|| rng.below(6) as u32),
            uuid: vec![rng.below(5) as u8; 16],
            host: "h".into(),
            rack: "r".into(),
            zone: String::new(),
            capacity_bytes: rng.next_u64(),
            replaces: rng.chance(1, 3).then(|| rng.below(6) as u32),
            device_class: device_class(rng),
        }
        .encode_to_vec(),
        2 => pb::OsdSetRequest {
            osds: (0..rng.below(4)).map(|_| rng.below(5) as u32).collect(),
            is_in: Some(rng.chance(1, 2)),
            drain: rng.chance(1, 3).then(|| rng.chance(1, 2)),
            dry_run: rng.chance(1, 3),
            device_class: device_class(rng),
        }
        .encode_to_vec(),
        3 => pb::PoolCreateRequest {
            name: name(rng),
            replicas: rng.below(6) as u32,
            domain: ["osd", "host", "rack", "moon"][rng.below(4) as usize].into(),
            pg_count: [0, 1, 8, 100_000, u32::MAX][rng.below(5) as usize],
            device_class: device_class(rng),
            force: rng.chance(1, 2),
        }
        .encode_to_vec(),
        4 => pool_message(rng),
        5 => pb::PgListRequest { pool: name(rng) }.encode_to_vec(),
        6 => {
            let len_bytes = [0, 512, 1 << 30, 64 << 40, u64::MAX][rng.below(5) as usize];
            pb::VolumeCreateRequest { name: name(rng), len_bytes, stripe: some_stripe(rng), text: some_text(rng) }
                .encode_to_vec()
        }
        7 => change_message(rng),
        8 => {
            let (force, now, snapshots) = (rng.chance(1, 2), rng.chance(1, 2), rng.chance(1, 2));
            pb::VolumeRemoveRequest { name: name(rng), force, now, snapshots, detach: rng.chance(1, 2) }.encode_to_vec()
        }
        9 => pb::VolumeListRequest { pool: name(rng) }.encode_to_vec(),
        10 | 11 => client(rng).encode_to_vec(),
        12 | 13 => osd(rng, kind % 2).encode_to_vec(),
        14 => {
            let pg = Some(pb::PgId { pool: 1, n: rng.below(3) as u32 });
            pb::PgMoveRequest { pg, from: rng.below(5) as u32, to: rng.below(6) as u32, dry_run: rng.chance(1, 2) }
                .encode_to_vec()
        }
        15 => {
            let (pg, osd) = (Some(pb::PgId { pool: 1, n: rng.below(3) as u32 }), Some(rng.below(5) as u32));
            pb::PgForceRequest { pg, osd, dry_run: rng.chance(1, 2), accept_loss: rng.chance(1, 2) }.encode_to_vec()
        }
        _ => Vec::new(),
    }
}

fn some_stripe(rng: &mut Rng) -> Option<pb::Stripe> {
    let (unit_bytes, count) =
        ([0, 4096, 65536, u64::MAX][rng.below(4) as usize], [1, 2, 3, u32::MAX][rng.below(4) as usize]);
    rng.chance(1, 2).then_some(pb::Stripe { unit_bytes, count })
}

fn client(rng: &mut Rng) -> pb::ClientAskRequest {
    use pb::client_ask_request::Ask;
    let (volume, session) = (rng.between(1, 3), rng.below(4));
    let ask = match rng.below(5) {
        0 => Ask::Open(pb::OpenAsk {
            name: name(rng),
            write: rng.chance(2, 3),
            steal: rng.chance(1, 3),
            holder: "me".into(),
        }),
        1 => Ask::Segments(pb::SegmentsAsk {
            volume,
            session,
            epoch: rng.below(5),
            segments: (0..rng.below(40)).map(|n| n as u32 % 5).collect(),
            allocate: rng.chance(1, 2),
        }),
        2 => {
            Ask::Refresh(pb::RefreshAsk { pgs: (0..rng.below(9)).map(|n| pb::PgId { pool: 1, n: n as u32 }).collect() })
        }
        3 => Ask::Keepalive(pb::HoldAsk { volume, session, unreached: vec![1, 2], len_epoch: 1, len_bytes: 1 << 30 }),
        _ => Ask::Close(pb::HoldAsk { volume, session, ..pb::HoldAsk::default() }),
    };
    pb::ClientAskRequest { client: rng.below(3), id: rng.below(4), ask: Some(ask) }
}

fn members(rng: &mut Rng) -> pb::Membership {
    let mut some = |from: u64| -> Vec<pb::Member> {
        (0..rng.between(from, 4))
            .map(|_| pb::Member { replica: rng.between(1, 9), osd: rng.between(1, 6) as u32 })
            .collect()
    };
    let (voters, outgoing, learners) = (some(1), some(0), some(0));
    let settled = rng.chance(2, 3);
    let (outgoing, learners) = if settled { (Vec::new(), Vec::new()) } else { (outgoing, learners) };
    pb::Membership {
        epoch: rng.between(1, 9),
        base: 1,
        voters,
        outgoing,
        learners,
        left: rng.chance(1, 9),
        floor: rng.below(4),
    }
}

/// Returns the answer of a PG about a snapshot.
fn snapshots(rng: &mut Rng) -> pb::SnapshotAnswer {
    use pb::snapshot_answer::{Order, Result};
    let (order, result) = match rng.chance(2, 3) {
        true => (Order::Cut(rng.between(3, 7)), Result::Step(rng.below(4) as i32)),
        false => {
            let name = pb::SnapshotName { volume: rng.between(1, 2), snapshot: rng.between(3, 5) };
            (Order::Removed(name), Result::Done(pb::Empty {}))
        }
    };
    let refused = rng.chance(1, 4).then(|| Result::Refused(rng.below(6) as i32));
    let pg = Some(pb::PgId { pool: 1, n: rng.below(3) as u32 });
    pb::SnapshotAnswer { pg, order: Some(order), result: Some(refused.unwrap_or(result)) }
}

fn osd(rng: &mut Rng, stream: u64) -> pb::OsdUp {
    use pb::osd_up::Body;
    let pg = |n: u64| Some(pb::PgId { pool: 1, n: n as u32 });
    let members = rng.chance(1, 2).then(|| members(rng));
    let lead = pb::LeadReport { active: true, followers_in_sync: 2, members, ..pb::LeadReport::default() };
    let report = |n: u64| pb::PgReport {
        pg: pg(n),
        replica: n * 3 + stream + 1,
        term: 2,
        applied: 9,
        end: (n != 2).then_some(pb::LogEnd { term: 2, index: 9 + stream }),
        floor: stream % 4,
        quarantined: n == 3,
        repairing: n == 2,
        lost: Vec::new(),
        unread: Vec::new(),
        hears: (n > 1).then_some(n as u32 % 3 + 1),
        leading: (n < 2).then(|| lead.clone()),
    };
    let body = match rng.below(5) {
        3 => Body::Snapshots(snapshots(rng)),
        0 | 1 => Body::Hello(pb::OsdHello {
            cluster: vec![7; 16],
            osd: stream as u32 + 1,
            uuid: vec![stream as u8 + 1; 16],
            incarnation: rng.below(4),
            addr: "127.0.0.1:7401".into(),
            http: None,
            capacity_bytes: 1 << 40,
            host: Some("host1".into()),
            rack: None,
            zone: Some(String::new()),
            version: "1.2.3".into(),
            replicas: vec![pb::PgReplica { pg: pg(0), replica: 1 }],
            seen: rng.chance(1, 8).then(|| pb::Watermarks { revision: rng.below(12), ..pb::Watermarks::default() }),
            device: rng.chance(1, 2).then(|| pb::DevicePosition {
                mount: rng.below(4),
                log_seq: rng.below(9),
                durable_seq: rng.below(9),
                restored: rng.chance(1, 4),
                let_in: rng.chance(1, 4),
                behind: rng.chance(1, 8),
            }),
        }),
        2 => Body::Heartbeat(pb::OsdHeartbeat {
            destage_stuck: rng.chance(1, 4).then(|| name(rng)),
            slow_device: rng.chance(1, 4).then(|| name(rng)),
            used_bytes: 5,
            free_bytes: rng.next_u64(),
            full: rng.chance(1, 4),
            poisoned: rng.chance(1, 8).then(|| "EIO".to_owned()),
            pgs: (0..rng.below(4)).map(report).collect(),
            unreachable: vec![3],
            io: Some(pb::IoTotals { reads: rng.next_u64(), ..pb::IoTotals::default() }),
            recovery: None,
            log_seq: rng.below(9),
        }),
        _ => Body::Attached(pb::Attached {
            pg: pg(rng.below(3)),
            order: rng.below(8),
            result: Some(match rng.below(4) {
                0 => pb::attached::Result::StaleOrder(rng.next_u64()),
                1 => pb::attached::Result::Busy(pb::Empty {}),
                _ => pb::attached::Result::Done(pb::Empty {}),
            }),
        }),
    };
    pb::OsdUp { body: Some(body) }
}
