//! Values of `control::admin` to and from protobuf.

use crate::convert::{Malformed, addr, need, pg, stripe_in, stripe_out, uuid};
use crate::convert_qos::{change_in, change_out, limits_in, limits_out};
use crate::{convert_faults, convert_health, convert_moves, pb};
use control::admin::{
    FlattenView, HolderView, OsdView, PgChangeView, PgMemberView, PgView, PoolSet, PoolView, QuotaChange, Status,
    TrashView, VolumeText, VolumeView, WriterName,
};
use types::{ClusterId, Compression, Epoch, OsdId, OsdUuid, PoolId, ReplicaId, SessionId, VolumeId, WhenFull};

impl From<Status> for pb::StatusReply {
    fn from(s: Status) -> Self {
        pb::StatusReply {
            cluster: s.cluster.0.to_vec(),
            health: s.health,
            problems: s.problems,
            map_epoch: s.map_epoch.0,
            osds: s.osds,
            osds_up: s.osds_up,
            osds_in: s.osds_in,
            pools: s.pools,
            volumes: s.volumes,
            segments: s.segments,
            pgs: s.pgs,
            pgs_active: s.pgs_active,
            pgs_degraded: s.pgs_degraded,
            pgs_down: s.pgs_down,
            capacity_bytes: s.capacity_bytes,
            used_bytes: s.used_bytes,
            free_bytes: s.free_bytes,
            leading_since_ms: s.leading_since_ms,
            checks: s.checks.into_iter().map(convert_health::check_out).collect(),
            osds_new: s.osds_new,
            pgs_waiting: s.pgs_waiting,
            recovery: Some(convert_health::progress_out(s.recovery)),
            io: Some(convert_health::rates_out(s.io)),
            moves: Some(convert_moves::moves_out(s.moves)),
            version: s.version,
        }
    }
}

impl TryFrom<pb::StatusReply> for Status {
    type Error = Malformed;

    fn try_from(s: pb::StatusReply) -> Result<Self, Malformed> {
        Ok(Status {
            cluster: ClusterId(uuid(&s.cluster, "cluster")?),
            health: s.health,
            problems: s.problems,
            map_epoch: Epoch(s.map_epoch),
            osds: s.osds,
            osds_up: s.osds_up,
            osds_in: s.osds_in,
            pools: s.pools,
            volumes: s.volumes,
            segments: s.segments,
            pgs: s.pgs,
            pgs_active: s.pgs_active,
            pgs_degraded: s.pgs_degraded,
            pgs_down: s.pgs_down,
            capacity_bytes: s.capacity_bytes,
            used_bytes: s.used_bytes,
            free_bytes: s.free_bytes,
            leading_since_ms: s.leading_since_ms,
            checks: s.checks.into_iter().map(convert_health::check_in).collect::<Result<_, _>>()?,
            osds_new: s.osds_new,
            pgs_waiting: s.pgs_waiting,
            recovery: s.recovery.map(convert_health::progress_in).unwrap_or_default(),
            io: s.io.map(convert_health::rates_in).unwrap_or_default(),
            moves: s.moves.map(convert_moves::moves_in).unwrap_or_default(),
            version: s.version,
        })
    }
}

impl From<OsdView> for pb::OsdView {
    fn from(o: OsdView) -> Self {
        pb::OsdView {
            osd: o.osd.0,
            uuid: o.uuid.0.to_vec(),
            live: o.live,
            is_in: o.is_in,
            drain: o.drain,
            full: o.full,
            poisoned: o.poisoned,
            addr: o.addr.map(|a| a.to_string()),
            http: o.http.map(|a| a.to_string()),
            host: o.host,
            rack: o.rack,
            zone: o.zone,
            weight: o.weight,
            capacity_bytes: o.capacity_bytes,
            used_bytes: o.used_bytes,
            free_bytes: o.free_bytes,
            pgs: o.pgs,
            leads: o.leads,
            heard_ms_ago: o.heard_ms_ago,
            version: o.version,
            auto_out: o.auto_out,
            replaces: o.replaces.map(|osd| osd.0),
            device_class: o.device_class,
        }
    }
}

impl TryFrom<pb::OsdView> for OsdView {
    type Error = Malformed;

    fn try_from(o: pb::OsdView) -> Result<Self, Malformed> {
        Ok(OsdView {
            osd: OsdId(o.osd),
            uuid: OsdUuid(uuid(&o.uuid, "uuid")?),
            live: o.live,
            is_in: o.is_in,
            drain: o.drain,
            full: o.full,
            poisoned: o.poisoned,
            addr: o.addr.map(|a| addr(&a, "addr")).transpose()?,
            http: o.http.map(|a| addr(&a, "http")).transpose()?,
            host: o.host,
            rack: o.rack,
            zone: o.zone,
            weight: o.weight,
            capacity_bytes: o.capacity_bytes,
            used_bytes: o.used_bytes,
            free_bytes: o.free_bytes,
            pgs: o.pgs,
            leads: o.leads,
            heard_ms_ago: o.heard_ms_ago,
            version: o.version,
            auto_out: o.auto_out,
            replaces: o.replaces.map(OsdId),
            device_class: o.device_class,
        })
    }
}

impl TryFrom<pb::PoolSetRequest> for PoolSet {
    type Error = Malformed;

    fn try_from(r: pb::PoolSetRequest) -> Result<Self, Malformed> {
        let quota = QuotaChange {
            bytes: r.quota_bytes,
            volumes: r.quota_volumes,
            overcommit_percent: r.quota_overcommit_percent,
        };
        let (limits, device_class) = (change_in(r.limits)?, r.device_class);
        let backup_compression = r.backup_compression.map(|name| compression_in(&name)).transpose()?;
        Ok(PoolSet { name: r.name, limits, quota, device_class, backup_compression })
    }
}

fn compression_in(name: &str) -> Result<Compression, Malformed> {
    name.parse().map_err(|_| Malformed::Range("backup_compression"))
}

impl From<PoolView> for pb::PoolView {
    fn from(p: PoolView) -> Self {
        pb::PoolView {
            pool: p.pool.0,
            name: p.name,
            replicas: p.replicas,
            domain: p.domain,
            pg_count: p.pg_count,
            state: p.state,
            volumes: p.volumes,
            segments: p.segments,
            trashed: p.trashed,
            limits: limits_out(&p.limits),
            provisioned_bytes: p.provisioned_bytes,
            quota_bytes: p.quota_bytes,
            quota_volumes: p.quota_volumes,
            device_class: p.device_class,
            quota_overcommit_percent: p.quota_overcommit_percent,
            overcommit_percent: p.overcommit_percent,
            available_bytes: p.available_bytes,
            backup_compression: p.backup_compression.name().to_owned(),
        }
    }
}

impl TryFrom<pb::PoolView> for PoolView {
    type Error = Malformed;

    fn try_from(p: pb::PoolView) -> Result<Self, Malformed> {
        Ok(PoolView {
            pool: PoolId(p.pool),
            name: p.name,
            replicas: p.replicas,
            domain: p.domain,
            pg_count: p.pg_count,
            state: p.state,
            volumes: p.volumes,
            segments: p.segments,
            trashed: p.trashed,
            limits: limits_in(p.limits)?,
            provisioned_bytes: p.provisioned_bytes,
            quota_bytes: p.quota_bytes,
            quota_volumes: p.quota_volumes,
            device_class: p.device_class,
            quota_overcommit_percent: p.quota_overcommit_percent,
            overcommit_percent: p.overcommit_percent,
            available_bytes: p.available_bytes,
            backup_compression: compression_in(&p.backup_compression)?,
        })
    }
}

impl From<PgView> for pb::PgView {
    fn from(p: PgView) -> Self {
        let member = |m: PgMemberView| pb::PgMemberView {
            osd: m.osd.0,
            replica: m.replica.0,
            up: m.up,
            quarantined: m.quarantined,
            repairing: m.repairing,
            term: m.term,
            applied: m.applied,
        };
        let change = |c: PgChangeView| pb::PgChange {
            from: c.from.0,
            to: c.to.0,
            step: c.step,
            queued: c.queued,
            reason: c.reason,
        };
        pb::PgView {
            pg: Some(p.pg.into()),
            state: p.state,
            leader: p.leader.map(|osd| osd.0),
            members: p.members.into_iter().map(member).collect(),
            conf_epoch: p.conf_epoch.0,
            segments: p.segments,
            lost: p.lost,
            change: p.change.map(change),
        }
    }
}

impl TryFrom<pb::PgView> for PgView {
    type Error = Malformed;

    fn try_from(p: pb::PgView) -> Result<Self, Malformed> {
        let member = |m: pb::PgMemberView| PgMemberView {
            osd: OsdId(m.osd),
            replica: ReplicaId(m.replica),
            up: m.up,
            quarantined: m.quarantined,
            repairing: m.repairing,
            term: m.term,
            applied: m.applied,
        };
        let change = |c: pb::PgChange| PgChangeView {
            from: OsdId(c.from),
            to: OsdId(c.to),
            step: c.step,
            queued: c.queued,
            reason: c.reason,
        };
        Ok(PgView {
            pg: pg(p.pg)?,
            state: p.state,
            leader: p.leader.map(OsdId),
            members: p.members.into_iter().map(member).collect(),
            conf_epoch: Epoch(p.conf_epoch),
            segments: p.segments,
            lost: p.lost,
            change: p.change.map(change),
        })
    }
}

impl From<VolumeView> for pb::VolumeView {
    fn from(v: VolumeView) -> Self {
        pb::VolumeView {
            volume: v.volume.0,
            name: v.name,
            len_bytes: v.len_bytes,
            allocated_bytes: v.allocated_bytes,
            state: v.state,
            epoch: v.epoch.0,
            session: v.session.0,
            holder: v.holder.map(holder_out),
            writers: v.writers.into_iter().map(holder_out).collect(),
            being_fenced: v.being_fenced.into_iter().map(holder_out).collect(),
            multi_writer: v.multi_writer,
            created_ms: v.created_ms,
            stripe: v.stripe.and_then(stripe_out),
            description: v.description,
            labels: v.labels.into_iter().collect(),
            resize_bytes: v.resize_bytes,
            shrink_step: v.shrink_step,
            limits: limits_out(&v.limits),
            limits_of: v.limits_of,
            when_full: v.when_full.name().to_owned(),
            snapshots: v.snapshots,
            rollback_to: v.rollback_to,
            parent: v.parent,
            depth: v.depth,
            clones: v.clones,
            flatten: v.flatten.map(flatten_out),
            faults: v.faults.into_iter().map(convert_faults::view_out).collect(),
        }
    }
}

/// Returns the request of a fence.
pub(crate) fn fence_out(name: String, which: WriterName) -> pb::VolumeFenceRequest {
    match which {
        WriterName::Session(session) => {
            pb::VolumeFenceRequest { name, client: String::new(), session: Some(session.0) }
        }
        WriterName::Client(client) => pb::VolumeFenceRequest { name, client, session: None },
    }
}

/// Returns the writers that a request to fence names.
pub fn writer_name_in(request: &pb::VolumeFenceRequest) -> WriterName {
    let client = || WriterName::Client(request.client.clone());
    request.session.map_or_else(client, |session| WriterName::Session(SessionId(session)))
}

fn holder_out(v: HolderView) -> pb::HolderView {
    let HolderView { session, name, address, since_ms, alive } = v;
    pb::HolderView { session: session.0, name, address, since_ms, alive }
}

fn holder_in(v: pb::HolderView) -> HolderView {
    let pb::HolderView { session, name, address, since_ms, alive } = v;
    HolderView { session: SessionId(session), name, address, since_ms, alive }
}

fn flatten_out(v: FlattenView) -> pb::FlattenView {
    let FlattenView { since_ms, by, percent, pgs, flat_pgs } = v;
    pb::FlattenView { since_ms, by, percent, pgs, flat_pgs }
}

fn flatten_in(v: pb::FlattenView) -> FlattenView {
    let pb::FlattenView { since_ms, by, percent, pgs, flat_pgs } = v;
    FlattenView { since_ms, by, percent, pgs, flat_pgs }
}

impl TryFrom<pb::VolumeView> for VolumeView {
    type Error = Malformed;

    fn try_from(v: pb::VolumeView) -> Result<Self, Malformed> {
        let stripe = stripe_in(v.stripe).map_err(|_| Malformed::Range("stripe"))?;
        Ok(VolumeView {
            volume: VolumeId(v.volume),
            name: v.name,
            len_bytes: v.len_bytes,
            allocated_bytes: v.allocated_bytes,
            state: v.state,
            epoch: Epoch(v.epoch),
            session: SessionId(v.session),
            holder: v.holder.map(holder_in),
            writers: v.writers.into_iter().map(holder_in).collect(),
            being_fenced: v.being_fenced.into_iter().map(holder_in).collect(),
            multi_writer: v.multi_writer,
            created_ms: v.created_ms,
            stripe: stripe.is_striped().then_some(stripe),
            description: v.description,
            labels: v.labels.into_iter().collect(),
            resize_bytes: v.resize_bytes,
            shrink_step: v.shrink_step,
            limits: limits_in(v.limits)?,
            limits_of: v.limits_of,
            when_full: when_full_in(&v.when_full)?,
            snapshots: v.snapshots,
            rollback_to: v.rollback_to,
            parent: v.parent,
            depth: v.depth,
            clones: v.clones,
            flatten: v.flatten.map(flatten_in),
            faults: v.faults.into_iter().map(convert_faults::view_in).collect(),
        })
    }
}

pub(crate) fn volume(reply: pb::VolumeReply) -> Result<VolumeView, Malformed> {
    need(reply.volume, "volume")?.try_into()
}

/// Returns the message of a change of description, labels and limits.
pub(crate) fn text_out(text: VolumeText) -> pb::VolumeText {
    let VolumeText { description, labels, removed_labels, limits, when_full, multi_writer } = text;
    let (limits, when_full) = (change_out(limits), when_full.map(|policy| policy.name().to_owned()));
    let labels = labels.into_iter().collect();
    pb::VolumeText { description, labels, removed_labels, limits, when_full, multi_writer }
}

/// Returns the policy for a full pool of this name; without one the client decides.
pub(crate) fn when_full_in(name: &str) -> Result<WhenFull, Malformed> {
    if name.is_empty() { Ok(WhenFull::Client) } else { name.parse().map_err(|_| Malformed::Range("when_full")) }
}

/// Returns the change of description, labels and limits in a message; without one there is none.
///
/// # Errors
/// When the change of limits is malformed, or the policy for a full pool is none.
pub fn text_in(text: Option<pb::VolumeText>) -> Result<VolumeText, Malformed> {
    let pb::VolumeText { description, labels, removed_labels, limits, when_full, multi_writer } =
        text.unwrap_or_default();
    let (labels, limits) = (labels.into_iter().collect(), change_in(limits)?);
    let when_full = when_full.map(|name| when_full_in(&name)).transpose()?;
    Ok(VolumeText { description, labels, removed_labels, limits, when_full, multi_writer })
}

impl From<TrashView> for pb::TrashView {
    fn from(t: TrashView) -> Self {
        pb::TrashView {
            volume: t.volume.0,
            name: t.name,
            len_bytes: t.len_bytes,
            allocated_bytes: t.allocated_bytes,
            state: t.state,
            since_ms: t.since_ms,
            until_ms: t.until_ms,
            expired: t.expired,
            by: t.by,
            description: t.description,
            labels: t.labels.into_iter().collect(),
        }
    }
}

impl From<pb::TrashView> for TrashView {
    fn from(t: pb::TrashView) -> Self {
        TrashView {
            volume: VolumeId(t.volume),
            name: t.name,
            len_bytes: t.len_bytes,
            allocated_bytes: t.allocated_bytes,
            state: t.state,
            since_ms: t.since_ms,
            until_ms: t.until_ms,
            expired: t.expired,
            by: t.by,
            description: t.description,
            labels: t.labels.into_iter().collect(),
        }
    }
}
