//! What administrators ask.

use super::clients::WaitFor;
use super::{Control, Now, Token};
use crate::admin::{AdminAnswer, AdminAsk};
use crate::plan;
use types::OsdId;
use types::control::Refusal;

impl Control {
    pub(super) fn take_admin(&mut self, now: Now, token: Token, ask: AdminAsk) {
        match self.plan_admin(now, token, ask) {
            Ok(Some(answer)) => self.answer_admin(token, Ok(answer)),
            Ok(None) => {}
            Err(refusal) => self.answer_admin(token, Err(refusal)),
        }
    }

    /// `None`: the answer waits.
    fn plan_admin(&mut self, now: Now, token: Token, ask: AdminAsk) -> Result<Option<AdminAnswer>, Refusal> {
        match ask {
            AdminAsk::Status => return Ok(Some(AdminAnswer::Status(self.status(now)))),
            AdminAsk::OsdList => return Ok(Some(AdminAnswer::Osds(self.osd_views(now.mono)))),
            AdminAsk::PoolList => {
                let pools = self.records.pools.values().map(|p| self.pool_view(p)).collect();
                return Ok(Some(AdminAnswer::Pools(pools)));
            }
            AdminAsk::PgList { pool } => return Ok(Some(AdminAnswer::Pgs(self.pg_views(now.mono, &pool)?))),
            AdminAsk::VolumeList { pool } => {
                return Ok(Some(AdminAnswer::Volumes(self.volume_views(now.mono, &pool)?)));
            }
            AdminAsk::VolumeInfo { name } => {
                let volume = self.records.volume(&name)?;
                return Ok(Some(AdminAnswer::Volume(self.volume_view(now.mono, volume))));
            }
            AdminAsk::OsdRegister(ask) => {
                let (writes, osd) = plan::osd_register(&self.records, &ask, now.wall_ms)?;
                self.write(writes);
                self.osds.entry(osd).or_default();
                return Ok(Some(AdminAnswer::OsdRegistered { cluster: self.records.cluster_id(), osd }));
            }
            AdminAsk::OsdSet { osd, is_in, drain } => {
                let (writes, ()) = plan::osd_set(&self.records, osd, is_in, drain)?;
                self.write(writes);
                return Ok(Some(AdminAnswer::Done));
            }
            AdminAsk::VolumeCreate { name, len_bytes } => {
                let (writes, id) = plan::volume_create(&self.records, &name, len_bytes, now.wall_ms)?;
                self.write(writes);
                let volume = self.records.volumes.get(&id).expect("it was just written");
                return Ok(Some(AdminAnswer::Volume(self.volume_view(now.mono, volume))));
            }
            AdminAsk::PoolCreate(ask) => {
                let up = |osd: OsdId| self.is_up(now.mono, osd);
                let (writes, (pool, warning)) = plan::pool_create(&self.records, &ask, &up, now.wall_ms)?;
                self.write(writes);
                self.pools_at = types::Time::ZERO;
                self.wait(token, WaitFor::PoolReady { pool, warning });
            }
            AdminAsk::PoolRemove { name } => {
                let (writes, pool) = plan::pool_remove(&self.records, &name)?;
                self.write(writes);
                self.pools_at = types::Time::ZERO;
                self.wait(token, WaitFor::PoolGone { pool });
            }
            AdminAsk::VolumeRemove { name, force } => {
                let lease = self.records.volume(&name).ok().and_then(|v| self.lease_left(now.mono, v.id));
                let (writes, volume) = plan::volume_remove(&self.records, &name, force, lease, now.wall_ms)?;
                if !writes.is_empty() {
                    self.write(writes);
                    self.leases.remove(&volume);
                    self.lease_from.remove(&volume);
                    self.attach_everywhere(volume);
                }
                self.wait(token, WaitFor::VolumeGone { volume });
            }
        }
        Ok(None)
    }
}
