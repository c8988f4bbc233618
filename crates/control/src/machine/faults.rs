//! Rehearsed faults: commands of administrators, their end, and what clients are told.

use super::{Control, Now};
use crate::admin::{AdminAnswer, FaultAdd, FaultView};
use crate::events::Note;
use crate::plan;
use crate::records::{FaultRecord, VolumeRecord};
use std::time::Duration;
use types::VolumeId;
use types::control::Refusal;
use types::faults::{FaultEffect, ToldFault};

/// Interval of the search for faults whose time is over. Clients end them by themselves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Control {
    pub(super) fn add_fault(&mut self, now: Now, name: &str, ask: &FaultAdd) -> Result<AdminAnswer, Refusal> {
        let (writes, (volume, id)) = plan::fault_add(&self.records, name, ask, &self.asker, now.wall_ms)?;
        self.write(writes);
        let added = self.records.volumes[&volume].faults.list.iter().find(|fault| fault.id == id);
        let text = format!("volume {name}: {}", added.map(plan::ordered_words).unwrap_or_default());
        self.note(now, Note::warning("volume.fault_added", format!("volume {name}"), text));
        self.faults_at = now.mono;
        Ok(self.volume_answer(now.mono, volume))
    }

    pub(super) fn remove_faults(&mut self, now: Now, name: &str, id: Option<u32>) -> Result<AdminAnswer, Refusal> {
        let (writes, (volume, gone)) = plan::fault_remove(&self.records, name, id)?;
        self.write(writes);
        for fault in gone {
            let text = format!("volume {name}: {} is removed", plan::ordered_words(&fault));
            self.note(now, Note::info("volume.fault_removed", format!("volume {name}"), text));
        }
        Ok(self.volume_answer(now.mono, volume))
    }

    /// Removes the faults whose time is over.
    pub(super) fn expire_faults(&mut self, now: Now) {
        if now.mono < self.faults_at || self.batch.is_full() {
            return;
        }
        self.faults_at = now.mono + LOOK_EVERY;
        let with_faults = self.records.volumes.values().filter(|volume| !volume.faults.list.is_empty());
        for volume in with_faults.cloned().collect::<Vec<VolumeRecord>>() {
            let (writes, gone) = plan::fault_expire(&volume, now.wall_ms);
            if gone.is_empty() {
                continue;
            }
            if self.batch.is_full() {
                // The rest follows in the next turn.
                self.faults_at = now.mono;
                return;
            }
            self.write(writes);
            let name = self.records.full_name(&volume);
            for fault in gone {
                let text = format!("volume {name}: {} has ended; {} asked for it", words(&fault), asker(&fault));
                self.note(now, Note::info("volume.fault_ended", format!("volume {name}"), text));
            }
        }
    }

    /// Returns the faults that clients of a volume are told.
    pub(super) fn faults_told(&self, now: Now, volume: VolumeId) -> Vec<ToldFault> {
        let volume = self.records.volumes.get(&volume);
        volume.map(|volume| plan::faults_told(volume, now.wall_ms)).unwrap_or_default()
    }

    /// Returns each volume with faults, for the health checks: its name and a sentence.
    pub(super) fn rehearsals(&self) -> Vec<(String, String)> {
        let with_faults = self.records.volumes.values().filter(|volume| !volume.faults.list.is_empty());
        let line = |volume: &VolumeRecord| {
            let name = self.records.full_name(volume);
            let faults: Vec<String> = volume.faults.list.iter().map(words).collect();
            let text = format!("volume {name} has rehearsed faults: {}", faults.join("; "));
            (name, text)
        };
        with_faults.map(line).collect()
    }
}

fn words(fault: &FaultRecord) -> String {
    plan::ordered_words(fault)
}

fn asker(fault: &FaultRecord) -> &str {
    if fault.by.is_empty() { "an unknown client" } else { &fault.by }
}

/// Returns the faults of a volume for display.
pub(super) fn fault_views(volume: &VolumeRecord) -> Vec<FaultView> {
    let view = |record: &FaultRecord| FaultView {
        id: record.id,
        kind: record.fault.effect.name().to_owned(),
        latency_ms: match record.fault.effect {
            FaultEffect::Latency(ms) => Some(ms),
            FaultEffect::Error | FaultEffect::Pause => None,
        },
        percent: u32::from(record.fault.percent),
        reads: record.fault.reads,
        writes: record.fault.writes,
        since_ms: record.since_ms,
        until_ms: record.until_ms,
        by: record.by.clone(),
    };
    volume.faults.list.iter().map(view).collect()
}
