//! Moves what is unfinished: pools being made or unmade, attaches, volumes being erased, leaders that are
//! not where they should be. Every step fits the turn's transaction; the rest waits for the next turn.

use super::{Control, Now};
use crate::plan;
use crate::records::{PoolState, VolumeState};
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::OsdDown;
use types::{OsdId, PgId, Time, VolumeId};

/// A pool whose PGs cannot be placed now is tried again after this.
const POOLS_EVERY: Duration = Duration::from_secs(1);
/// How often leaders are looked at.
pub(super) const LEADERS_EVERY: Duration = Duration::from_secs(5);
/// A leader is moved only from a PG that has been whole under it for this long.
const LEADER_STEADY: Duration = Duration::from_secs(15);
/// Leaders that are moved in one round.
const TRANSFERS_PER_ROUND: usize = 2;

impl Control {
    pub(super) fn upkeep(&mut self, now: Now) {
        self.move_pools(now.mono);
        self.drive_attaches(now);
        self.settle_volumes();
        self.ensure_members(now.mono);
        self.move_leaders(now.mono);
    }

    fn move_pools(&mut self, now: Time) {
        if self.pools_at > now || self.batch.is_full() {
            return;
        }
        let unfinished = self.records.pools.values().find(|p| p.state != PoolState::Ready).cloned();
        let Some(pool) = unfinished else {
            self.pools_at = Time::NEVER;
            return;
        };
        match pool.state {
            PoolState::Ready => unreachable!("only unfinished pools are moved"),
            PoolState::Creating => {
                let up = |osd: OsdId| self.is_up(now, osd);
                match plan::make_pgs(&self.records, &pool, &up) {
                    Ok((writes, pgs)) => {
                        self.write(writes);
                        self.expect_members(&pgs);
                    }
                    // Too few OSDs by now: the pool stays in creation, and status says so.
                    Err(_) => self.pools_at = now + POOLS_EVERY,
                }
            }
            PoolState::Deleting => {
                let (writes, gone) = plan::unmake_pgs(&self.records, &pool);
                self.write(writes);
                self.forget_members(&gone);
            }
        }
    }

    /// Volumes whose attach record is in all their PGs: they are settled, or erased.
    fn settle_volumes(&mut self) {
        let volumes: Vec<VolumeId> = self.unsettled.iter().copied().collect();
        for id in volumes {
            if self.batch.is_full() {
                return;
            }
            if self.attaching.is_busy(id) {
                continue;
            }
            let Some(volume) = self.records.volumes.get(&id).cloned() else {
                self.unsettled.remove(&id);
                continue;
            };
            match volume.state {
                VolumeState::Ready => {
                    if !volume.settled {
                        self.write(vec![plan::settle(&volume)]);
                    }
                    self.unsettled.remove(&id);
                }
                VolumeState::Deleting => {
                    let (writes, done) = plan::erase(&self.records, &volume);
                    self.write(writes);
                    if done {
                        self.unsettled.remove(&id);
                    }
                }
            }
        }
    }

    /// Hands leadership back to the preferred member, when it is in sync and everything is calm.
    fn move_leaders(&mut self, now: Time) {
        if self.leaders_at > now {
            return;
        }
        self.leaders_at = now + LEADERS_EVERY;
        let mut led: BTreeMap<OsdId, u32> = BTreeMap::new();
        for lead in self.leads.values() {
            *led.entry(lead.osd).or_default() += 1;
        }
        let mut moves: Vec<(PgId, OsdId, OsdId)> = Vec::new();
        for (pg, lead) in &self.leads {
            let Some(record) = self.records.pgs.get(pg) else { continue };
            let Some(first) = record.members.first().map(|m| m.osd) else { continue };
            let whole = usize::from(lead.report.followers_in_sync) + 1 == record.members.len();
            let calm = lead.report.active && !lead.report.recovering && now.since(lead.since) >= LEADER_STEADY;
            let fewer = led.get(&first).copied().unwrap_or(0) < led.get(&lead.osd).copied().unwrap_or(0);
            if lead.osd != first && whole && calm && fewer && self.is_up(now, first) {
                moves.push((*pg, lead.osd, first));
            }
        }
        for (pg, from, to) in moves.into_iter().take(TRANSFERS_PER_ROUND) {
            if let Some(stream) = self.osds.get(&from).and_then(|live| live.stream) {
                self.say(stream, OsdDown::TransferLeader { pg, to });
            }
        }
    }
}
