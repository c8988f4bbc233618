//! Values of `types::control` to and from protobuf. Incoming values are checked.

use crate::convert_admin::when_full_in;
use crate::convert_faults::{told_in, told_out};
use crate::convert_members::{change_in, change_out, force_in, force_out, membership_in, membership_out};
use crate::convert_qos::{limits_in, limits_out, volume_limits_in, volume_limits_out};
use crate::pb;
use std::net::SocketAddr;
use types::control::{
    Attach, AttachRefusal, Base, ClientAnswer, ClientAsk, DevicePosition, LOST_REPORTED_MAX, LeadReport, LostExtent,
    MapView, Opened, OsdDown, OsdHeartbeat, OsdHello, OsdUp, PgReport, Refusal, SegmentPlace, UNREACHED_MAX,
    Watermarks,
};
use types::limits::{POISON_REASON_LEN_MAX, REPLICAS_MAX, VOLUME_LEN_MAX, clip};
use types::map::{Member, OsdAddr, PgMap};
use types::stripe::{self, BadStripe, Stripe};
use types::writers::{Writer, Writers};
use types::{
    ClusterId, Epoch, GenerationId, Incarnation, Index, OsdId, OsdUuid, PgId, PoolId, ReplicaId, SegmentIndex,
    SessionId, SnapshotId, Term, VolumeId,
};

/// A malformed message, with its fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is not an address: {1:?}")]
    Addr(&'static str, String),
    #[error("{0} is not a uuid")]
    Uuid(&'static str),
    #[error("{0} is out of range")]
    Range(&'static str),
}

pub(crate) fn need<T>(value: Option<T>, what: &'static str) -> Result<T, Malformed> {
    value.ok_or(Malformed::Missing(what))
}

pub(crate) fn addr(text: &str, what: &'static str) -> Result<SocketAddr, Malformed> {
    text.parse().map_err(|_| Malformed::Addr(what, text.chars().take(64).collect()))
}

pub(crate) fn uuid(bytes: &[u8], what: &'static str) -> Result<[u8; 16], Malformed> {
    bytes.try_into().map_err(|_| Malformed::Uuid(what))
}

/// Returns an OSD id. Ids begin at 1: zero names no OSD, and a peer cannot have it.
pub(crate) fn osd(value: u32, what: &'static str) -> Result<OsdId, Malformed> {
    if value == 0 { Err(Malformed::Range(what)) } else { Ok(OsdId(value)) }
}

fn small(value: u32, what: &'static str) -> Result<u8, Malformed> {
    u8::try_from(value).map_err(|_| Malformed::Range(what))
}

impl From<PgId> for pb::PgId {
    fn from(pg: PgId) -> Self {
        pb::PgId { pool: pg.pool.0, n: pg.n }
    }
}

impl From<pb::PgId> for PgId {
    fn from(pg: pb::PgId) -> Self {
        PgId { pool: PoolId(pg.pool), n: pg.n }
    }
}

pub(crate) fn pg(value: Option<pb::PgId>) -> Result<PgId, Malformed> {
    need(value, "pg").map(PgId::from)
}

impl From<&PgMap> for pb::PgMap {
    fn from(map: &PgMap) -> Self {
        let member = |m: &Member| pb::Member { replica: m.replica.0, osd: m.osd.0 };
        pb::PgMap {
            pg: Some(map.pg.into()),
            conf_epoch: map.conf_epoch.0,
            members: map.members.iter().map(member).collect(),
        }
    }
}

impl TryFrom<pb::PgMap> for PgMap {
    type Error = Malformed;

    fn try_from(map: pb::PgMap) -> Result<Self, Malformed> {
        // A membership change may hold the old and the new set together.
        if map.members.is_empty() || map.members.len() > 2 * REPLICAS_MAX {
            return Err(Malformed::Range("members"));
        }
        let member = |m: &pb::Member| Member { replica: ReplicaId(m.replica), osd: OsdId(m.osd) };
        let members: Vec<Member> = map.members.iter().map(member).collect();
        let twice = |(n, m): (usize, &Member)| members[..n].iter().any(|o| o.replica == m.replica || o.osd == m.osd);
        let nobody = members.iter().any(|m| m.replica.0 == 0 || m.osd.0 == 0);
        if members.iter().enumerate().any(twice) || nobody {
            return Err(Malformed::Range("members"));
        }
        Ok(PgMap { pg: pg(map.pg)?, conf_epoch: Epoch(map.conf_epoch), members })
    }
}

fn addrs_to(osds: &[OsdAddr]) -> Vec<pb::OsdAddr> {
    osds.iter().map(|a| pb::OsdAddr { osd: a.osd.0, addr: a.addr.to_string() }).collect()
}

fn addrs_from(osds: Vec<pb::OsdAddr>) -> Result<Vec<OsdAddr>, Malformed> {
    osds.into_iter().map(|a| Ok(OsdAddr { osd: osd(a.osd, "osd")?, addr: addr(&a.addr, "addr")? })).collect()
}

fn maps_from(pgs: Vec<pb::PgMap>) -> Result<Vec<PgMap>, Malformed> {
    pgs.into_iter().map(PgMap::try_from).collect()
}

// ---- OSD stream ----

impl From<OsdUp> for pb::OsdUp {
    fn from(up: OsdUp) -> Self {
        let body = match up {
            OsdUp::Hello(hello) => pb::osd_up::Body::Hello(hello.into()),
            OsdUp::Heartbeat(heartbeat) => pb::osd_up::Body::Heartbeat(heartbeat.into()),
            OsdUp::Remembers(seen) => pb::osd_up::Body::Remembers(watermarks_out(seen)),
            OsdUp::Attached { pg, order, result } => {
                use pb::attached::Result as R;
                let result = match result {
                    Ok(()) => R::Done(pb::Empty {}),
                    Err(AttachRefusal::NotLeader { hint }) => {
                        R::NotLeader(pb::NotLeading { hint: hint.map(|osd| osd.0) })
                    }
                    Err(AttachRefusal::StaleOrder { last }) => R::StaleOrder(last),
                    Err(AttachRefusal::Busy) => R::Busy(pb::Empty {}),
                    Err(AttachRefusal::NoBase) => R::NoBase(pb::Empty {}),
                };
                pb::osd_up::Body::Attached(pb::Attached { pg: Some(pg.into()), order, result: Some(result) })
            }
            OsdUp::Snapshots { pg, answer } => {
                pb::osd_up::Body::Snapshots(crate::convert_snapshots::answer_out(pg, answer))
            }
        };
        pb::OsdUp { body: Some(body) }
    }
}

impl TryFrom<pb::OsdUp> for OsdUp {
    type Error = Malformed;

    fn try_from(up: pb::OsdUp) -> Result<Self, Malformed> {
        Ok(match need(up.body, "body")? {
            pb::osd_up::Body::Hello(hello) => OsdUp::Hello(hello.try_into()?),
            pb::osd_up::Body::Heartbeat(heartbeat) => OsdUp::Heartbeat(heartbeat.try_into()?),
            pb::osd_up::Body::Remembers(seen) => OsdUp::Remembers(watermarks_in(seen)),
            pb::osd_up::Body::Attached(attached) => {
                use pb::attached::Result as R;
                let result = match need(attached.result, "result")? {
                    R::Done(_) => Ok(()),
                    R::NotLeader(not) => {
                        let hint = not.hint.map(|hint| osd(hint, "hint")).transpose()?;
                        Err(AttachRefusal::NotLeader { hint })
                    }
                    R::StaleOrder(last) => Err(AttachRefusal::StaleOrder { last }),
                    R::Busy(_) => Err(AttachRefusal::Busy),
                    R::NoBase(_) => Err(AttachRefusal::NoBase),
                };
                OsdUp::Attached { pg: pg(attached.pg)?, order: attached.order, result }
            }
            pb::osd_up::Body::Snapshots(answer) => {
                let (pg, answer) = crate::convert_snapshots::answer_in(answer)?;
                OsdUp::Snapshots { pg, answer }
            }
        })
    }
}

impl From<OsdHello> for pb::OsdHello {
    fn from(hello: OsdHello) -> Self {
        let replica = |(pg, replica): &(PgId, ReplicaId)| pb::PgReplica { pg: Some((*pg).into()), replica: replica.0 };
        pb::OsdHello {
            cluster: hello.cluster.0.to_vec(),
            osd: hello.osd.0,
            uuid: hello.uuid.0.to_vec(),
            incarnation: hello.incarnation.0,
            addr: hello.addr.to_string(),
            http: hello.http.map(|a| a.to_string()),
            capacity_bytes: hello.capacity_bytes,
            host: hello.host,
            rack: hello.rack,
            zone: hello.zone,
            version: hello.version,
            replicas: hello.replicas.iter().map(replica).collect(),
            seen: Some(watermarks_out(hello.seen)),
            device: Some(pb::DevicePosition {
                mount: hello.device.mount,
                log_seq: hello.device.log_seq,
                durable_seq: hello.device.durable_seq,
                restored: hello.device.restored,
                let_in: hello.device.let_in,
                behind: hello.device.behind,
            }),
        }
    }
}

impl TryFrom<pb::OsdHello> for OsdHello {
    type Error = Malformed;

    fn try_from(hello: pb::OsdHello) -> Result<Self, Malformed> {
        let replica = |r: pb::PgReplica| Ok((pg(r.pg)?, ReplicaId(r.replica)));
        Ok(OsdHello {
            cluster: ClusterId(uuid(&hello.cluster, "cluster")?),
            osd: osd(hello.osd, "osd")?,
            uuid: OsdUuid(uuid(&hello.uuid, "uuid")?),
            incarnation: Incarnation(hello.incarnation),
            addr: addr(&hello.addr, "addr")?,
            http: hello.http.map(|a| addr(&a, "http")).transpose()?,
            capacity_bytes: hello.capacity_bytes,
            host: hello.host,
            rack: hello.rack,
            zone: hello.zone,
            version: hello.version,
            replicas: hello.replicas.into_iter().map(replica).collect::<Result<_, Malformed>>()?,
            seen: hello.seen.map(watermarks_in).unwrap_or_default(),
            device: hello.device.map_or_else(DevicePosition::default, |d| DevicePosition {
                mount: d.mount,
                log_seq: d.log_seq,
                durable_seq: d.durable_seq,
                restored: d.restored,
                let_in: d.let_in,
                behind: d.behind,
            }),
        })
    }
}

pub(crate) fn watermarks_out(w: Watermarks) -> pb::Watermarks {
    pb::Watermarks {
        revision: w.revision,
        next_osd: w.next_osd,
        next_pool: w.next_pool,
        next_replica: w.next_replica,
        next_volume: w.next_volume,
        next_session: w.next_session,
        map_epoch: w.map_epoch,
    }
}

pub(crate) fn watermarks_in(w: pb::Watermarks) -> Watermarks {
    Watermarks {
        revision: w.revision,
        next_osd: w.next_osd,
        next_pool: w.next_pool,
        next_replica: w.next_replica,
        next_volume: w.next_volume,
        next_session: w.next_session,
        map_epoch: w.map_epoch,
    }
}

pub(crate) fn lost_out(l: LostExtent) -> pb::LostExtent {
    let (chunk, offset_bytes, len_bytes) = (l.chunk.index, l.offset_bytes, l.len_bytes);
    pb::LostExtent { volume: l.chunk.volume.0, chunk, offset_bytes, len_bytes }
}

pub(crate) fn lost_in(l: pb::LostExtent) -> LostExtent {
    let chunk = types::VolumeChunk { volume: types::VolumeId(l.volume), index: l.chunk };
    LostExtent { chunk, offset_bytes: l.offset_bytes, len_bytes: l.len_bytes }
}

impl From<OsdHeartbeat> for pb::OsdHeartbeat {
    fn from(beat: OsdHeartbeat) -> Self {
        let lead = |l: LeadReport| pb::LeadReport {
            active: l.active,
            followers_in_sync: l.followers_in_sync.into(),
            followers_behind: l.followers_behind.into(),
            followers_silent: l.followers_silent.into(),
            recovering: l.recovering,
            members: Some(membership_out(l.members)),
        };
        let report = |r: PgReport| pb::PgReport {
            pg: Some(r.pg.into()),
            replica: r.replica.0,
            term: r.term.0,
            applied: r.applied.0,
            end: r.end.map(log_end_out),
            floor: r.floor.0,
            quarantined: r.quarantined,
            repairing: r.repairing,
            lost: r.lost.into_iter().map(lost_out).collect(),
            unread: r.unread.into_iter().map(lost_out).collect(),
            hears: r.hears.map(|osd| osd.0),
            leading: r.leading.map(lead),
        };
        pb::OsdHeartbeat {
            used_bytes: beat.used_bytes,
            free_bytes: beat.free_bytes,
            full: beat.full,
            poisoned: beat.poisoned,
            destage_stuck: beat.destage_stuck,
            slow_device: beat.slow_device,
            pgs: beat.pgs.into_iter().map(report).collect(),
            unreachable: beat.unreachable.iter().map(|osd| osd.0).collect(),
            io: Some(crate::convert_health::io_out(beat.io)),
            recovery: Some(crate::convert_health::recovery_out(beat.recovery)),
            log_seq: beat.log_seq,
        }
    }
}

impl TryFrom<pb::OsdHeartbeat> for OsdHeartbeat {
    type Error = Malformed;

    fn try_from(beat: pb::OsdHeartbeat) -> Result<Self, Malformed> {
        let lead = |l: pb::LeadReport| {
            Ok(LeadReport {
                active: l.active,
                followers_in_sync: small(l.followers_in_sync, "followers_in_sync")?,
                followers_behind: small(l.followers_behind, "followers_behind")?,
                followers_silent: small(l.followers_silent, "followers_silent")?,
                recovering: l.recovering,
                members: l.members.map(membership_in).transpose()?.unwrap_or_default(),
            })
        };
        let report = |r: pb::PgReport| {
            Ok(PgReport {
                pg: pg(r.pg)?,
                replica: ReplicaId(r.replica),
                term: Term(r.term),
                applied: Index(r.applied),
                end: r.end.map(log_end_in),
                floor: ReplicaId(r.floor),
                quarantined: r.quarantined,
                repairing: r.repairing,
                lost: r.lost.into_iter().take(LOST_REPORTED_MAX).map(lost_in).collect(),
                unread: r.unread.into_iter().take(LOST_REPORTED_MAX).map(lost_in).collect(),
                hears: r.hears.map(|id| osd(id, "hears")).transpose()?,
                leading: r.leading.map(lead).transpose()?,
            })
        };
        Ok(OsdHeartbeat {
            used_bytes: beat.used_bytes,
            free_bytes: beat.free_bytes,
            full: beat.full,
            poisoned: beat.poisoned.map(|reason| clip(&reason, POISON_REASON_LEN_MAX).to_owned()),
            destage_stuck: beat.destage_stuck.map(|reason| clip(&reason, POISON_REASON_LEN_MAX).to_owned()),
            slow_device: beat.slow_device.map(|reason| clip(&reason, POISON_REASON_LEN_MAX).to_owned()),
            pgs: beat.pgs.into_iter().map(report).collect::<Result<_, Malformed>>()?,
            unreachable: beat.unreachable.into_iter().map(|id| osd(id, "unreachable")).collect::<Result<_, _>>()?,
            io: beat.io.map(crate::convert_health::io_in).unwrap_or_default(),
            recovery: beat.recovery.map(crate::convert_health::recovery_in).unwrap_or_default(),
            log_seq: beat.log_seq,
        })
    }
}

pub(crate) fn log_end_out((term, index): (Term, Index)) -> pb::LogEnd {
    pb::LogEnd { term: term.0, index: index.0 }
}

pub(crate) fn log_end_in(end: pb::LogEnd) -> (Term, Index) {
    (Term(end.term), Index(end.index))
}

/// Returns the message; `None` for one that is never sent ([`OsdDown::Connected`]).
pub fn osd_down(down: OsdDown) -> Option<pb::OsdDown> {
    use pb::osd_down::Body;
    let map = |map_epoch: Epoch, osds: &[OsdAddr]| pb::OsdMap { map_epoch: map_epoch.0, osds: addrs_to(osds) };
    let body = match down {
        OsdDown::Connected => return None,
        OsdDown::Welcome { map_epoch, osds } => Body::Welcome(map(map_epoch, &osds)),
        OsdDown::Osds { map_epoch, osds } => Body::Osds(map(map_epoch, &osds)),
        OsdDown::EnsureReplica { created, replica } => {
            Body::EnsureReplica(pb::EnsureReplica { created: Some((&created).into()), replica: replica.0 })
        }
        OsdDown::Peers(osds) => Body::Peers(pb::Peers { osds: osds.iter().map(|osd| osd.0).collect() }),
        OsdDown::ChangeMembers { pg, change } => Body::ChangeMembers(change_out(pg, change)),
        OsdDown::ForceMembers { pg, force } => Body::ForceMembers(force_out(pg, force)),
        OsdDown::DropReplica { pg, replica, keep } => {
            Body::DropReplica(pb::DropReplica { pg: Some(pg.into()), replica: replica.0, keep })
        }
        OsdDown::ReplicaFloor(floor) => Body::ReplicaFloor(floor.0),
        OsdDown::Attach { pg, attach } => Body::Attach(pb::AttachPg {
            pg: Some(pg.into()),
            order: attach.order,
            volume: attach.volume.0,
            session: attach.only_session().unwrap_or_default().0,
            writers: writers_out(&attach),
            epoch: attach.epoch.0,
            chunk_count: attach.chunk_count,
            len_epoch: attach.len_epoch,
            head: attach.head.0,
            base: attach.base.map(|base| pb::Base { volume: base.volume.0, snapshot: base.snapshot.0, to: base.to.0 }),
        }),
        OsdDown::Snapshots { pg, order } => Body::Snapshots(crate::convert_snapshots::order_out(pg, order)),
        OsdDown::Limits { part, volumes } => Body::Limits(volume_limits_out(part, &volumes)),
        OsdDown::TransferLeader { pg, to } => {
            Body::TransferLeader(pb::TransferLeader { pg: Some(pg.into()), to: to.0 })
        }
        OsdDown::Remember(told) => Body::Remember(watermarks_out(told)),
        OsdDown::Behind { reason, hold } => Body::Behind(pb::Behind { reason, hold }),
        OsdDown::FailReplicas { reason, mount } => Body::FailReplicas(pb::FailReplicas { reason, mount }),
        OsdDown::Refused { code, reason } => Body::Refused(pb::Refused { code, reason }),
    };
    Some(pb::OsdDown { body: Some(body) })
}

fn base_in(base: pb::Base) -> Base {
    let (volume, snapshot, to) = (VolumeId(base.volume), SnapshotId(base.snapshot), GenerationId(base.to));
    Base { volume, snapshot, to }
}

/// Returns the writers of a record that `session` alone does not tell.
fn writers_out(attach: &Attach) -> Vec<pb::Writer> {
    let writer = |writer: &Writer| pb::Writer { epoch: writer.epoch.0, session: writer.session.0 };
    match attach.only_session() {
        Some(_) => Vec::new(),
        None => attach.writers.as_slice().iter().map(writer).collect(),
    }
}

fn writers_in(writers: &[pb::Writer], only: SessionId, newest: Epoch) -> Result<Writers, Malformed> {
    if writers.is_empty() {
        return Ok(Writers::one(only, newest));
    }
    let writer = |writer: &pb::Writer| Writer { epoch: Epoch(writer.epoch), session: SessionId(writer.session) };
    let list = Writers::of(writers.iter().map(writer), newest).filter(|_| only == SessionId(0));
    list.ok_or(Malformed::Range("writers"))
}

impl TryFrom<pb::OsdDown> for OsdDown {
    type Error = Malformed;

    fn try_from(down: pb::OsdDown) -> Result<Self, Malformed> {
        use pb::osd_down::Body;
        Ok(match need(down.body, "body")? {
            Body::Welcome(m) => OsdDown::Welcome { map_epoch: Epoch(m.map_epoch), osds: addrs_from(m.osds)? },
            Body::Osds(m) => OsdDown::Osds { map_epoch: Epoch(m.map_epoch), osds: addrs_from(m.osds)? },
            Body::EnsureReplica(e) => {
                let created = need(e.created, "created")?.try_into()?;
                let replica = Some(e.replica).filter(|id| *id != 0).ok_or(Malformed::Range("replica"))?;
                OsdDown::EnsureReplica { created, replica: ReplicaId(replica) }
            }
            Body::Peers(p) => OsdDown::Peers(p.osds.into_iter().map(|id| osd(id, "osd")).collect::<Result<_, _>>()?),
            Body::ChangeMembers(change) => {
                let (pg, change) = change_in(change)?;
                OsdDown::ChangeMembers { pg, change }
            }
            Body::ForceMembers(force) => {
                let (pg, force) = force_in(force)?;
                OsdDown::ForceMembers { pg, force }
            }
            Body::DropReplica(r) => OsdDown::DropReplica { pg: pg(r.pg)?, replica: ReplicaId(r.replica), keep: r.keep },
            Body::ReplicaFloor(floor) => OsdDown::ReplicaFloor(ReplicaId(floor)),
            Body::Attach(a) => {
                let attach = Attach {
                    order: a.order,
                    volume: VolumeId(a.volume),
                    writers: writers_in(&a.writers, SessionId(a.session), Epoch(a.epoch))?,
                    epoch: Epoch(a.epoch),
                    chunk_count: a.chunk_count,
                    len_epoch: a.len_epoch,
                    head: GenerationId(a.head),
                    base: a.base.map(base_in),
                };
                OsdDown::Attach { pg: pg(a.pg)?, attach }
            }
            Body::Snapshots(order) => {
                let (pg, order) = crate::convert_snapshots::order_in(order)?;
                OsdDown::Snapshots { pg, order }
            }
            Body::Limits(limits) => {
                let (part, volumes) = volume_limits_in(limits)?;
                OsdDown::Limits { part, volumes }
            }
            Body::TransferLeader(t) => OsdDown::TransferLeader { pg: pg(t.pg)?, to: osd(t.to, "to")? },
            Body::Remember(told) => OsdDown::Remember(watermarks_in(told)),
            Body::Behind(b) => OsdDown::Behind { reason: b.reason, hold: b.hold },
            Body::FailReplicas(order) => OsdDown::FailReplicas { reason: order.reason, mount: order.mount },
            Body::Refused(r) => OsdDown::Refused { code: r.code, reason: r.reason },
        })
    }
}

// ---- client ----

/// Returns a request with the name that identifies it.
pub fn client_ask(client: u64, id: u64, ask: ClientAsk) -> pb::ClientAskRequest {
    use pb::client_ask_request::Ask;
    let ask = match ask {
        ClientAsk::Open { name, write, steal, holder } => Ask::Open(pb::OpenAsk { name, write, steal, holder }),
        ClientAsk::Segments { volume, session, epoch, segments, allocate } => Ask::Segments(pb::SegmentsAsk {
            volume: volume.0,
            session: session.0,
            epoch: epoch.0,
            segments: segments.iter().map(|s| s.0).collect(),
            allocate,
        }),
        ClientAsk::Refresh { pgs } => Ask::Refresh(pb::RefreshAsk { pgs: pgs.into_iter().map(Into::into).collect() }),
        ClientAsk::Keepalive { volume, session, unreached, len_epoch, len_bytes } => Ask::Keepalive(pb::HoldAsk {
            volume: volume.0,
            session: session.0,
            unreached: unreached.iter().map(|osd| osd.0).collect(),
            len_epoch,
            len_bytes,
        }),
        ClientAsk::Close { volume, session } => {
            Ask::Close(pb::HoldAsk { volume: volume.0, session: session.0, ..pb::HoldAsk::default() })
        }
    };
    pb::ClientAskRequest { client, id, ask: Some(ask) }
}

impl TryFrom<pb::client_ask_request::Ask> for ClientAsk {
    type Error = Malformed;

    fn try_from(ask: pb::client_ask_request::Ask) -> Result<Self, Malformed> {
        use pb::client_ask_request::Ask;
        Ok(match ask {
            Ask::Open(o) => ClientAsk::Open { name: o.name, write: o.write, steal: o.steal, holder: o.holder },
            Ask::Segments(s) => ClientAsk::Segments {
                volume: VolumeId(s.volume),
                session: SessionId(s.session),
                epoch: Epoch(s.epoch),
                segments: s.segments.into_iter().map(SegmentIndex).collect(),
                allocate: s.allocate,
            },
            Ask::Refresh(r) => ClientAsk::Refresh { pgs: r.pgs.into_iter().map(PgId::from).collect() },
            Ask::Keepalive(h) => ClientAsk::Keepalive {
                volume: VolumeId(h.volume),
                session: SessionId(h.session),
                unreached: h
                    .unreached
                    .into_iter()
                    .take(UNREACHED_MAX)
                    .map(|id| osd(id, "unreached"))
                    .collect::<Result<_, _>>()?,
                len_epoch: h.len_epoch,
                len_bytes: h.len_bytes,
            },
            Ask::Close(h) => ClientAsk::Close { volume: VolumeId(h.volume), session: SessionId(h.session) },
        })
    }
}

/// Checks the length of a volume: the client keeps a slot for each segment, so it must not trust any
/// length.
fn volume_len(len_bytes: u64) -> Result<u64, Malformed> {
    let sound = (1..=VOLUME_LEN_MAX).contains(&len_bytes) && len_bytes.is_multiple_of(types::SECTOR);
    if sound { Ok(len_bytes) } else { Err(Malformed::Range("len_bytes")) }
}

fn places_to(segments: &[SegmentPlace]) -> Vec<pb::SegmentPlace> {
    let place = |s: &SegmentPlace| pb::SegmentPlace {
        segment: s.segment.0,
        pg: s.pgs.first().map(|pg| (*pg).into()),
        more_pgs: s.pgs.iter().skip(1).map(|pg| pg.n).collect(),
    };
    segments.iter().map(place).collect()
}

fn places_from(segments: &[pb::SegmentPlace]) -> Result<Vec<SegmentPlace>, Malformed> {
    let place = |s: &pb::SegmentPlace| {
        let mut pgs = Vec::with_capacity(1 + s.more_pgs.len());
        if let Some(first) = s.pg.map(PgId::from) {
            pgs.push(first);
            pgs.extend(s.more_pgs.iter().map(|n| PgId { n: *n, ..first }));
        }
        let sound = s.more_pgs.len() < stripe::COUNT_MAX as usize && (s.pg.is_some() || s.more_pgs.is_empty());
        if sound {
            Ok(SegmentPlace { segment: SegmentIndex(s.segment), pgs })
        } else {
            Err(Malformed::Range("more_pgs"))
        }
    };
    segments.iter().map(place).collect()
}

/// Returns the message of a stripe layout; none without stripes.
pub(crate) fn stripe_out(stripe: Stripe) -> Option<pb::Stripe> {
    stripe.is_striped().then(|| pb::Stripe { unit_bytes: stripe.unit_bytes(), count: stripe.count() })
}

/// Returns the stripe layout in a message.
///
/// # Errors
/// A layout that no volume can have.
pub fn stripe_in(stripe: Option<pb::Stripe>) -> Result<Stripe, BadStripe> {
    stripe.map_or(Ok(Stripe::NONE), |stripe| Stripe::new(stripe.unit_bytes, stripe.count))
}

impl From<&MapView> for pb::MapView {
    fn from(view: &MapView) -> Self {
        let leader = |(pg, osd): &(PgId, OsdId)| pb::PgLeader { pg: Some((*pg).into()), osd: osd.0 };
        pb::MapView {
            pgs: view.pgs.iter().map(Into::into).collect(),
            leaders: view.leaders.iter().map(leader).collect(),
            osds: addrs_to(&view.osds),
        }
    }
}

impl TryFrom<pb::MapView> for MapView {
    type Error = Malformed;

    fn try_from(view: pb::MapView) -> Result<Self, Malformed> {
        let leader = |l: pb::PgLeader| Ok((pg(l.pg)?, osd(l.osd, "leader")?));
        Ok(MapView {
            pgs: maps_from(view.pgs)?,
            leaders: view.leaders.into_iter().map(leader).collect::<Result<_, Malformed>>()?,
            osds: addrs_from(view.osds)?,
        })
    }
}

impl From<ClientAnswer> for pb::ClientAskReply {
    fn from(answer: ClientAnswer) -> Self {
        use pb::client_ask_reply::Answer;
        let answer = match answer {
            ClientAnswer::Opened(o) => Answer::Opened(pb::Opened {
                cluster: o.cluster.0.to_vec(),
                volume: o.volume.0,
                session: o.session.0,
                epoch: o.epoch.0,
                len_epoch: o.len_epoch,
                len_bytes: o.len_bytes,
                write: o.write,
                segments: places_to(&o.segments),
                view: Some((&o.view).into()),
                stripe: stripe_out(o.stripe),
                limits: limits_out(&o.limits),
                snapshot: o.snapshot.map(|snapshot| snapshot.0),
                faults: told_out(&o.faults),
                when_full: o.when_full.name().to_owned(),
                multi_writer: o.multi_writer,
            }),
            ClientAnswer::Segments { segments, pending, view } => Answer::Segments(pb::Segments {
                segments: places_to(&segments),
                view: Some((&view).into()),
                pending: pending.iter().map(|segment| segment.0).collect(),
            }),
            ClientAnswer::Refreshed(view) => Answer::Refreshed((&view).into()),
            ClientAnswer::Alive { len_epoch, len_bytes, limits, faults, when_full } => {
                let (limits, faults) = (limits_out(&limits), told_out(&faults));
                let when_full = when_full.name().to_owned();
                Answer::Alive(pb::Alive { len_epoch, len_bytes, limits, faults, when_full })
            }
            ClientAnswer::Closed => Answer::Closed(pb::Empty {}),
            ClientAnswer::Refused(r) => Answer::Refused(pb::Refused { code: r.code, reason: r.message }),
        };
        pb::ClientAskReply { answer: Some(answer) }
    }
}

fn opened_from(o: pb::Opened) -> Result<Opened, Malformed> {
    let stripe = stripe_in(o.stripe).map_err(|_| Malformed::Range("stripe"))?;
    let segments = places_from(&o.segments)?;
    let fits = |place: &SegmentPlace| place.pgs.is_empty() || place.pgs.len() == stripe.count() as usize;
    if !segments.iter().all(fits) {
        return Err(Malformed::Range("more_pgs"));
    }
    if o.snapshot.is_some_and(|snapshot| snapshot == 0 || o.write) {
        return Err(Malformed::Range("snapshot"));
    }
    Ok(Opened {
        cluster: ClusterId(uuid(&o.cluster, "cluster")?),
        volume: VolumeId(o.volume),
        session: SessionId(o.session),
        epoch: Epoch(o.epoch),
        len_epoch: o.len_epoch,
        len_bytes: volume_len(o.len_bytes)?,
        stripe,
        limits: limits_in(o.limits)?,
        faults: told_in(o.faults)?,
        when_full: when_full_in(&o.when_full)?,
        multi_writer: o.multi_writer,
        snapshot: o.snapshot.map(SnapshotId),
        write: o.write,
        segments,
        view: need(o.view, "view")?.try_into()?,
    })
}

impl TryFrom<pb::ClientAskReply> for ClientAnswer {
    type Error = Malformed;

    fn try_from(reply: pb::ClientAskReply) -> Result<Self, Malformed> {
        use pb::client_ask_reply::Answer;
        Ok(match need(reply.answer, "answer")? {
            Answer::Opened(o) => ClientAnswer::Opened(opened_from(o)?),
            Answer::Segments(s) => ClientAnswer::Segments {
                segments: places_from(&s.segments)?,
                pending: s.pending.iter().copied().map(SegmentIndex).collect(),
                view: need(s.view, "view")?.try_into()?,
            },
            Answer::Refreshed(view) => ClientAnswer::Refreshed(view.try_into()?),
            Answer::Alive(alive) => {
                let len_bytes = if alive.len_bytes == 0 { 0 } else { volume_len(alive.len_bytes)? };
                let (limits, faults) = (limits_in(alive.limits)?, told_in(alive.faults)?);
                let when_full = when_full_in(&alive.when_full)?;
                ClientAnswer::Alive { len_epoch: alive.len_epoch, len_bytes, limits, faults, when_full }
            }
            Answer::Closed(_) => ClientAnswer::Closed,
            Answer::Refused(r) => ClientAnswer::Refused(Refusal { code: r.code, message: r.reason }),
        })
    }
}

#[cfg(test)]
mod tests;
