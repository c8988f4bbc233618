//! I/O limits on their way to OSDs.
//!
//! Each OSD has the limits of all limited volumes, because any of them may lead a PG of any volume the next moment. A stream begins
//! with the list of all, and changes follow. A volume without limits is in no message but the one that says so.

use super::{Control, StreamId};
use crate::records::{Key, Record, VolumeRecord, Write};
use types::control::{LIMITS_PER_MESSAGE, LimitsPart, OsdDown};
use types::planted::{Bug, on};
use types::{QosLimits, VolumeId};

impl Control {
    /// Returns the limits of the I/O of a volume.
    pub(super) fn limits_told(&self, volume: VolumeId) -> QosLimits {
        self.records.volumes.get(&volume).map_or(QosLimits::NONE, |volume| self.records.limits_of(volume))
    }

    /// Notes the volumes whose limits a write changes; the records are still as before it.
    pub(super) fn note_limits(&mut self, write: &Write) {
        match write {
            Write::Put(Record::Volume(volume)) => {
                if self.records.limits_of(volume) != self.limits_told(volume.id) {
                    self.limits_due.insert(volume.id);
                }
            }
            Write::Put(Record::Pool(pool)) => {
                if self.records.pools.get(&pool.id).is_some_and(|before| before.limits != pool.limits) {
                    let follows = |volume: &&VolumeRecord| volume.limits.is_none();
                    let volumes = self.records.volumes_of(pool.id).filter(follows).map(|volume| volume.id);
                    self.limits_due.extend(volumes);
                }
            }
            Write::Delete(Key::Volume(volume)) if !self.limits_told(*volume).is_none() => {
                self.limits_due.insert(*volume);
            }
            Write::Put(_) | Write::Delete(_) => {}
        }
    }

    /// Tells all OSDs the limits that have changed. The messages leave when the change is committed.
    pub(super) fn say_limit_changes(&mut self) {
        if self.limits_due.is_empty() {
            return;
        }
        let due = std::mem::take(&mut self.limits_due);
        if on(Bug::LimitChangesUntold) {
            return;
        }
        let volumes: Vec<(VolumeId, QosLimits)> =
            due.into_iter().map(|volume| (volume, self.limits_told(volume))).collect();
        let streams: Vec<StreamId> = self.osds.values().filter_map(|live| live.stream).collect();
        for stream in streams {
            for volumes in volumes.chunks(LIMITS_PER_MESSAGE) {
                self.say(stream, OsdDown::Limits { part: LimitsPart::default(), volumes: volumes.to_vec() });
            }
        }
    }

    /// Tells an OSD the limits of all limited volumes.
    pub(super) fn say_all_limits(&mut self, stream: StreamId) {
        let all = self.records.volumes.values().map(|volume| (volume.id, self.records.limits_of(volume)));
        let all: Vec<(VolumeId, QosLimits)> = all.filter(|(_, limits)| !limits.is_none()).collect();
        let mut parts = all.chunks(LIMITS_PER_MESSAGE).map(<[_]>::to_vec).collect::<Vec<_>>();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let last = parts.len() - 1;
        for (at, volumes) in parts.into_iter().enumerate() {
            let part = LimitsPart { begins: at == 0, goes_on: at > 0, ends: at == last };
            self.say(stream, OsdDown::Limits { part, volumes });
        }
    }
}
