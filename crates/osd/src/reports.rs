//! Reports of this OSD to meta and to the metrics endpoint.

use crate::fullness::Level;
use crate::node::{Osd, Phase};
use crate::pgs::State;
use crate::recover::report_of_repair;
use recovery::Named;
use types::control::{IoTotals, OsdHeartbeat, OsdHello, OsdUp, PgReport};
use types::limits::{POISON_REASON_LEN_MAX, clip};

impl Osd {
    pub(crate) fn hello(&self) -> OsdHello {
        let stats = self.engine.stats();
        let addr = match (self.config.advertise, self.listening()) {
            (Some(addr), _) => addr,
            (None, Some(env::NetAddr::Tcp(addr))) => *addr,
            _ => match &self.config.listen {
                env::NetAddr::Tcp(addr) => *addr,
                other => unreachable!("an OSD listens on TCP, not on {other}"),
            },
        };
        OsdHello {
            cluster: self.config.cluster,
            osd: self.config.osd,
            uuid: self.config.uuid,
            incarnation: self.config.incarnation,
            addr,
            http: self.config.http,
            capacity_bytes: stats.home.capacity_bytes,
            host: self.config.host.clone(),
            rack: self.config.rack.clone(),
            zone: self.config.zone.clone(),
            version: self.config.version.clone(),
            seen: self.meta.kept,
            replicas: self.replicas(),
            device: self.position(),
        }
    }

    pub(crate) fn report_if_due(&mut self) {
        if self.meta.next_report() > self.now {
            return;
        }
        self.publish();
        self.stats.counting.drop_idle(self.now);
        let stats = self.engine.stats().home;
        let pgs = self.changed_reports();
        let moving = pgs.iter().any(|pg| pg.leading.as_ref().is_some_and(|lead| lead.recovering));
        let tuning = &self.config.tuning;
        self.meta.reported(self.now, if moving { tuning.heartbeat_recovering } else { tuning.heartbeat });
        self.meta.outbox.push(OsdUp::Heartbeat(OsdHeartbeat {
            used_bytes: stats.used_bytes,
            free_bytes: stats.free_bytes,
            full: self.space.fullness.level() == Level::Full,
            poisoned: self.meta.poisoned.clone(),
            destage_stuck: self.engine.destage_stuck().map(|r| clip(r, POISON_REASON_LEN_MAX).to_owned()),
            slow_device: self.devices.slow().map(|why| clip(&why, POISON_REASON_LEN_MAX).to_owned()),
            pgs,
            unreachable: self.meta.unreachable.keys().copied().collect(),
            io: IoTotals {
                reads: self.stats.metrics.reads.get(),
                read_bytes: self.stats.metrics.read_bytes.get(),
                writes: self.stats.metrics.writes.get(),
                write_bytes: self.stats.metrics.write_bytes.get(),
            },
            recovery: self.recovery.streams.totals(),
            log_seq: self.engine.position().2,
        }));
        self.say_kept_again();
    }

    /// Returns the reports that differ from the last ones to meta. Progress alone (the applied index) is reported
    /// only once a heartbeat, and so is part of the comparison.
    pub(crate) fn changed_reports(&mut self) -> Vec<PgReport> {
        let mut changed = Vec::new();
        let engine = &self.engine;
        let volume_chunk = |replica, chunk| engine.volume_chunk(replica, chunk);
        for key in self.pgs.keys() {
            let end = self.end_without_group(key);
            let slot = self.pgs.get_mut(key);
            let floor = slot.members.floor;
            let report = match &slot.state {
                State::Running(group) => {
                    let [unread, lost] = [Named::Here, Named::Everywhere]
                        .map(|n| self.recovery.blocks.named(slot.identity.replica, n, volume_chunk));
                    PgReport { lost, unread, ..group.report(self.now) }
                }
                State::Creating | State::Paused(_) => continue,
                State::Failed(_) => PgReport {
                    pg: slot.identity.pg,
                    replica: slot.identity.replica,
                    end,
                    floor,
                    quarantined: true,
                    ..PgReport::default()
                },
                State::Repairing => {
                    PgReport { end, floor, ..report_of_repair(&self.recovery.payloads, &slot.identity) }
                }
            };
            if slot.reported.as_ref() != Some(&report) {
                slot.reported = Some(report.clone());
                changed.push(report);
            }
        }
        changed
    }

    /// Updates the metrics from the counters of the engine, the bus and the groups.
    pub fn publish(&mut self) {
        let stats = self.engine.stats();
        let bus = self.bus.stats();
        let (pgs, leading, failed) = self.census();
        let m = &self.stats.metrics;
        for (counter, total) in [
            (&m.kernel_entries, self.stats.kernel_entries),
            (&m.copied_bytes, stats.copied_bytes + bus.copied_bytes),
            (&m.log_batches, stats.batches),
            (&m.log_bytes, stats.log_bytes),
            (&m.log_records, stats.records),
            (&m.flushes, stats.flushes),
            (&m.device_read_bytes, stats.device_read_bytes),
            (&m.device_written_bytes, stats.device_written_bytes),
            (&m.repaired_entries, stats.refilled_entries),
            (&m.repaired_replicas, self.recovery.payloads.done),
            (&m.frames_in, bus.frames_in),
            (&m.frames_out, bus.frames_out),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        for (gauge, value) in [
            (&m.requests, self.inflight.len() as u64),
            (&m.requests_waiting, self.shares.waiting() as u64),
            (&m.pgs, pgs as u64),
            (&m.pgs_leading, leading as u64),
            (&m.pgs_quarantined, failed as u64),
            (&m.pgs_repairing, self.recovery.payloads.iter().count() as u64),
            (&m.pgs_inconsistent, self.recovery.payloads.iter().filter(|(_, lost)| !lost.is_empty()).count() as u64),
            (&m.blocks_bad, self.recovery.blocks.iter().len() as u64),
            (&m.pace_bytes_per_second, self.own_pace().unwrap_or(0)),
            (&m.log_segments_used, u64::from(stats.segments_in_use)),
            (&m.log_segments, u64::from(stats.segments)),
            (&m.overlay_bytes, stats.overlay_bytes),
            (&m.destage_stuck, u64::from(self.engine.destage_stuck().is_some())),
            (&m.full, u64::from(self.space.fullness.level() == Level::Full)),
            (&m.near_full, u64::from(self.space.fullness.level() != Level::Fine)),
            (&m.pending_free_bytes, stats.home.pending_free_bytes),
            (&m.free_bytes, stats.home.free_bytes),
            (&m.capacity_bytes, stats.home.capacity_bytes),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Returns the failed replicas, each with the cause.
    pub fn quarantined(&self) -> Vec<(types::PgId, String)> {
        let failed = |slot: &crate::pgs::Slot| match &slot.state {
            State::Failed(failure) => Some((slot.identity.pg, failure.reason.clone())),
            _ => None,
        };
        self.pgs.iter().filter_map(failed).collect()
    }

    /// Returns the durable records of the log that this process found missing when it started.
    pub fn lost_records(&self) -> Option<&str> {
        self.engine.lost_records()
    }

    /// Returns the reason why it stopped, if it did.
    pub fn stopped(&self) -> Option<&str> {
        match &self.phase {
            Phase::Stopped(reason) => Some(reason),
            _ => None,
        }
    }
}
