//! Moves of replicas and settings of `control` to and from protobuf.

use crate::convert::{Malformed, pg};
use crate::pb;
use control::admin::{Moves, OsdSet, PlannedMove};
use control::settings::SettingView;
use types::OsdId;

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
        pb::OsdSetRequest { osds, is_in: ask.is_in, drain: ask.drain, dry_run: ask.dry_run }
    }
}

impl From<pb::OsdSetRequest> for OsdSet {
    fn from(r: pb::OsdSetRequest) -> Self {
        let osds = r.osds.into_iter().map(OsdId).collect();
        OsdSet { osds, is_in: r.is_in, drain: r.drain, dry_run: r.dry_run }
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
