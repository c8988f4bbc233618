//! Advances unfinished work: pools being made or unmade, cuts, attaches, volumes and snapshots being erased. Every step fits the turn's transaction;
//! the rest waits for the next turn.

use super::{Control, Now};
use crate::plan;
use crate::records::{PoolState, VolumeRecord, VolumeState};
use types::{OsdId, Time, VolumeId};

impl Control {
    pub(super) fn upkeep(&mut self, now: Now) {
        self.admit_elector();
        self.record_floors();
        self.move_pools(now.mono);
        self.drive_cuts(now);
        self.drive_attaches(now);
        self.drive_removals(now.mono);
        self.drive_flattens(now);
        self.drive_shrinks(now);
        self.settle_volumes(now);
        self.expire_trash(now);
        self.expire_faults(now);
        self.replace_failed(now);
        self.rebalance(now);
        self.drive_changes(now);
        self.ensure_members(now.mono);
        self.say_floors();
        self.move_leaders(now);
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
                        self.expect_members(now, &pgs);
                    }
                    // Too few OSDs are left: the pool stays in creation, and the status reports it.
                    Err(_) => self.pools_at = now + self.config.pools_every,
                }
            }
            PoolState::Deleting => {
                let (writes, gone) = plan::unmake_pgs(&self.records, &pool);
                self.write(writes);
                self.forget_members(&gone);
            }
        }
    }

    /// Gives a clone more of its segments, and then has all PGs begin it. Whether both are done.
    fn is_cloned(&mut self, clone: &VolumeRecord) -> bool {
        if !plan::knows_parent(&self.records, clone) {
            return false;
        }
        let writes = plan::clone_step(&self.records, clone);
        let lacks_some = !writes.is_empty();
        if lacks_some {
            self.write(writes);
            self.begun_clones.remove(&clone.id);
        } else if self.begun_clones.insert(clone.id) {
            self.attach_everywhere(clone.id);
        } else {
            self.begun_clones.remove(&clone.id);
            return true;
        }
        false
    }

    fn is_to_be_wiped(&mut self, now: Time, volume: &VolumeRecord) -> bool {
        !volume.recovering && plan::wiped_end(volume).is_some() && !self.is_wiped(now, volume)
    }

    /// Settles or erases the volumes whose attach record is in all their PGs.
    fn settle_volumes(&mut self, now: Now) {
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
                VolumeState::Ready | VolumeState::Trashed if volume.cloning && !self.is_cloned(&volume) => {}
                VolumeState::Ready | VolumeState::Trashed if self.is_to_be_wiped(now.mono, &volume) => {}
                VolumeState::Ready | VolumeState::Trashed => {
                    if !volume.settled || volume.changes_contents() && !volume.recovering {
                        self.settle_volume(now, &volume);
                    }
                    self.unsettled.remove(&id);
                }
                VolumeState::Deleting => {
                    let (writes, done) = plan::erase(&self.records, &volume);
                    self.write(writes);
                    if done {
                        self.lengthened.remove(&id);
                        self.shrinks.forget(id);
                        self.begun_clones.remove(&id);
                        self.unsettled.remove(&id);
                    }
                }
            }
        }
    }
}
