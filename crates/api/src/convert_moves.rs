//! Moves of replicas, forced recoveries and settings of `control` to and from protobuf.

use crate::convert::{Malformed, log_end_in, log_end_out, pg};
use crate::pb;
use control::admin::{ForceMemberView, ForceView, Moves, OsdSet, PgForce, PlannedMove};
use control::settings::SettingView;
use types::{OsdId, ReplicaId};

pub(crate) fn moves_out(m: Moves) -> pb::Moves {
    let Moves { running, waiting, unplaced, blocked, left_bytes, eta_ms } = m;
    pb::Moves { running, waiting, unplaced, blocked, left_bytes, eta_ms }
}

pub(crate) fn moves_in(m: pb::Moves) -> Moves {
    let pb::Moves { running, waiting, unplaced, blocked, left_bytes, eta_ms } = m;
    Moves { running, waiting, unplaced, blocked, left_bytes, eta_ms }
}

impl From<OsdSet> for pb::OsdSetRequest {
    fn from(ask: OsdSet) -> Self {
        let osds = ask.osds.iter().map(|osd| osd.0).collect();
        let OsdSet { is_in, drain, device_class, dry_run, .. } = ask;
        pb::OsdSetRequest { osds, is_in, drain, device_class, dry_run }
    }
}

impl From<pb::OsdSetRequest> for OsdSet {
    fn from(r: pb::OsdSetRequest) -> Self {
        let osds = r.osds.into_iter().map(OsdId).collect();
        OsdSet { osds, is_in: r.is_in, drain: r.drain, device_class: r.device_class, dry_run: r.dry_run }
    }
}

impl From<PlannedMove> for pb::PlannedMove {
    fn from(m: PlannedMove) -> Self {
        pb::PlannedMove { pg: Some(m.pg.into()), from: m.from.0, to: m.to.map(|to| to.0), bytes: m.bytes }
    }
}

impl TryFrom<pb::PlannedMove> for PlannedMove {
    type Error = Malformed;

    fn try_from(m: pb::PlannedMove) -> Result<Self, Malformed> {
        Ok(PlannedMove { pg: pg(m.pg)?, from: OsdId(m.from), to: m.to.map(OsdId), bytes: m.bytes })
    }
}

impl From<SettingView> for pb::Setting {
    fn from(s: SettingView) -> Self {
        let SettingView { name, value, default, is_set, what } = s;
        pb::Setting { name, value, default, is_set, what }
    }
}

impl From<pb::Setting> for SettingView {
    fn from(s: pb::Setting) -> Self {
        let pb::Setting { name, value, default, is_set, what } = s;
        SettingView { name, value, default, is_set, what }
    }
}

impl From<PgForce> for pb::PgForceRequest {
    fn from(ask: PgForce) -> Self {
        let PgForce { pg, osd, dry_run, accept_loss } = ask;
        pb::PgForceRequest { pg: Some(pg.into()), osd: osd.map(|osd| osd.0), dry_run, accept_loss }
    }
}

impl TryFrom<pb::PgForceRequest> for PgForce {
    type Error = Malformed;

    fn try_from(r: pb::PgForceRequest) -> Result<Self, Malformed> {
        let (osd, dry_run, accept_loss) = (r.osd.map(OsdId), r.dry_run, r.accept_loss);
        Ok(PgForce { pg: pg(r.pg)?, osd, dry_run, accept_loss })
    }
}

impl From<ForceView> for pb::PgForceReply {
    fn from(v: ForceView) -> Self {
        let member = |m: ForceMemberView| pb::PgForceMember {
            osd: m.osd.0,
            replica: m.replica.0,
            up: m.up,
            state: m.state,
            end: m.end.map(log_end_out),
        };
        pb::PgForceReply {
            pg: Some(v.pg.into()),
            keep: v.keep.0,
            lossless: v.lossless,
            members: v.members.into_iter().map(member).collect(),
            volume_count: v.volume_count,
            volumes: v.volumes,
            sessions: v.sessions,
            ordered: v.ordered,
        }
    }
}

impl TryFrom<pb::PgForceReply> for ForceView {
    type Error = Malformed;

    fn try_from(v: pb::PgForceReply) -> Result<Self, Malformed> {
        let member = |m: pb::PgForceMember| ForceMemberView {
            osd: OsdId(m.osd),
            replica: ReplicaId(m.replica),
            up: m.up,
            state: m.state,
            end: m.end.map(log_end_in),
        };
        Ok(ForceView {
            pg: pg(v.pg)?,
            keep: OsdId(v.keep),
            lossless: v.lossless,
            members: v.members.into_iter().map(member).collect(),
            volume_count: v.volume_count,
            volumes: v.volumes,
            sessions: v.sessions,
            ordered: v.ordered,
        })
    }
}
