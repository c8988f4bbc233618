//! Events: what happened in the cluster, and when.
//!
//! An event is a record. It is written in the transaction of the change that it reports. The newest [`EVENTS_MAX`] are kept:
//! each new one takes the place of the oldest.

use crate::records::{Record, Records, Write};
use serde::{Deserialize, Serialize};
use types::limits::clip;

/// Events that are kept.
pub const EVENTS_MAX: u64 = 10_000;
/// Most events of one answer.
pub const EVENTS_PER_ANSWER_MAX: usize = 1000;
/// Most bytes of the text, the subject and the origin of an event.
pub const EVENT_TEXT_MAX: usize = 400;

/// Importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Info,
    Warning,
}

impl Level {
    /// Returns the word of JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
        }
    }
}

/// One event of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with each event of the cluster.
    pub seq: u64,
    /// Milliseconds of the Unix clock.
    pub at_ms: u64,
    /// One of [`KINDS`].
    pub kind: String,
    pub level: Level,
    /// `osd.3`, `pg 1.1f`, `pool main`, `volume main/vm1`, `meta`, `cluster`.
    pub subject: String,
    /// Name and address of the client that caused the event; empty when no client did.
    pub by: String,
    pub text: String,
}

/// A kind of event, for the manual.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub what: &'static str,
}

const fn kind(name: &'static str, what: &'static str) -> Kind {
    Kind { name, what }
}

/// Every kind of event. Names are never reused.
pub const KINDS: &[Kind] = &[
    kind("meta.leads", "a metadata server took the leadership"),
    kind("meta.recovered", "an administrator recovered records that went back in time"),
    kind("health.changed", "the health of the cluster changed"),
    kind("health.muted", "an administrator muted a health check"),
    kind("health.unmuted", "a health check is no longer muted: by command, or its time is over"),
    kind("pg.move", "an administrator asked for the move of a replica to another OSD"),
    kind("pg.move_cancelled", "an administrator gave up the moves of a PG"),
    kind("pg.replica_failed", "a replica has lost part of its past and is replaced by a new one"),
    kind(
        "pg.moved",
        "the move or replacement of a replica is done; moves that the cluster plans by itself have no event each",
    ),
    kind("pg.not_moved", "a move was given up: the members of the PG are as before"),
    kind(
        "pg.force_recover",
        "a PG without a majority is to go on from one replica: by command, or by itself when one of its two replicas has failed",
    ),
    kind("pg.forced", "a PG goes on from one replica after a forced recovery"),
    kind(
        "pg.force_cancelled",
        "a forced recovery was given up: the PG has a leader again, or its replica has lost a part of its log",
    ),
    kind("osd.added", "a device was registered as an OSD"),
    kind("osd.set", "an administrator changed whether an OSD is in or drained, or replaced it"),
    kind("osd.out", "an OSD was down for too long: it is out, and its replicas move to other OSDs"),
    kind("osd.in", "an OSD that was out because it was down is back, and in"),
    kind("osd.emptied", "an OSD that is out, drained or replaced holds no replica any more"),
    kind("config.set", "an administrator changed a setting of the cluster"),
    kind("osd.up", "an OSD reports, for the first time or again"),
    kind("osd.down", "an OSD has been silent for 6 s"),
    kind("osd.moved", "an OSD reports from another host, rack or zone than was registered"),
    kind("osd.removed", "an OSD that held no PG was removed, by an administrator or because another one took it over"),
    kind("osd.device_older", "the device of an OSD is older than its last report: its replicas fail, or wait to fail"),
    kind("osd.restarted", "an OSD came back as a new process before it was called down"),
    kind("osd.stopped", "the store of an OSD stopped after a failed write or flush"),
    kind("osd.serves", "the store of an OSD that had stopped serves again"),
    kind("osd.full", "an OSD has no space for new data"),
    kind("osd.full_over", "an OSD that was full has space again"),
    kind("osd.nearfull", "an OSD is filled to 85 % or more"),
    kind("osd.nearfull_over", "an OSD that was nearly full has space again"),
    kind("osd.slow_device", "a device of an OSD takes twice its normal service time or more"),
    kind("osd.slow_device_over", "the devices of an OSD are as fast as before"),
    kind("pg.state", "one PG, or several PGs of a pool, changed their state"),
    kind("pg.leader", "one PG, or several PGs of a pool, changed their leader"),
    kind("pool.created", "an administrator created a pool"),
    kind("pool.renamed", "an administrator gave a pool another name"),
    kind("pool.changed", "an administrator changed the limits of the volumes of a pool, or its quota"),
    kind("pool.removed", "an administrator removed a pool"),
    kind("volume.created", "an administrator created a volume"),
    kind("volume.removed", "an administrator removed a volume without the trash: its data is deleted"),
    kind("volume.renamed", "an administrator gave a volume another name"),
    kind("volume.changed", "an administrator changed the description, the labels or the limits of a volume"),
    kind(
        "volume.rolled_back",
        "a volume has the contents of one of its snapshots again: an administrator asked for it",
    ),
    kind(
        "volume.flatten_began",
        "a clone gets copies of all that it shows of its parent: an administrator asked for it",
    ),
    kind("volume.flatten_cancelled", "an administrator stopped the flatten of a clone: it keeps its parent"),
    kind("volume.flattened", "a clone has copies of all that it showed of its parent, and needs it no longer"),
    kind("volume.fault_added", "an administrator rehearses a fault on a volume: its requests are late, fail, or wait"),
    kind("volume.fault_removed", "an administrator ended a rehearsed fault of a volume"),
    kind("volume.fault_ended", "the time of a rehearsed fault of a volume is over"),
    kind("volume.resized", "a volume has another length: an administrator asked for it, and its PGs have taken it"),
    kind("volume.shrink_began", "a volume gets shorter: an administrator asked for it"),
    kind(
        "volume.shrink_cancelled",
        "an administrator took a shrink back before it had any effect: the volume keeps its length",
    ),
    kind(
        "volume.shrink_refused",
        "a shrink ended without effect: the volume has data behind the new end, or a PG has a later length than \
         records that were restored, which counts from then on",
    ),
    kind("volume.trashed", "an administrator removed a volume: its data is kept in the trash"),
    kind("volume.restored", "an administrator took a volume out of the trash"),
    kind("volume.purged", "the data of a volume in the trash is deleted: by command, or its time is over"),
    kind("snapshot.created", "an administrator made snapshots of one volume, or of several at one point in time"),
    kind("snapshot.failed", "snapshots were asked for and given up: a PG did not take them in time"),
    kind(
        "snapshot.changed",
        "an administrator changed the name, the protection, the description or the labels of a snapshot",
    ),
    kind("snapshot.removed", "an administrator deleted a snapshot"),
    kind("volume.attached", "a client opened a volume for writing"),
    kind("volume.stolen", "a client force-attached a volume that another client had open"),
    kind("volume.fenced", "a command has fenced clients of a volume"),
    kind("volume.detached", "a client closed a volume"),
];

/// An event that has no number and no time yet.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub kind: &'static str,
    pub level: Level,
    pub subject: String,
    pub by: String,
    pub text: String,
    /// Time of the event, where that was before the event is recorded.
    pub at_ms: Option<u64>,
}

impl Note {
    pub fn info(kind: &'static str, subject: impl ToString, text: impl Into<String>) -> Note {
        Note {
            kind,
            level: Level::Info,
            subject: subject.to_string(),
            by: String::new(),
            text: text.into(),
            at_ms: None,
        }
    }

    pub fn warning(kind: &'static str, subject: impl ToString, text: impl Into<String>) -> Note {
        Note { level: Level::Warning, ..Note::info(kind, subject, text) }
    }

    /// Returns the event with its number and time.
    ///
    /// # Panics
    /// When the kind is not one of [`KINDS`].
    pub fn record(self, records: &Records, now_ms: u64) -> Event {
        assert!(KINDS.iter().any(|k| k.name == self.kind), "{} is no kind of event", self.kind);
        let cut = |text: &str| clip(text, EVENT_TEXT_MAX).to_owned();
        Event {
            seq: records.last_event() + 1,
            at_ms: self.at_ms.unwrap_or(now_ms),
            kind: self.kind.to_owned(),
            level: self.level,
            subject: cut(&self.subject),
            by: cut(&self.by),
            text: cut(&self.text),
        }
    }
}

/// Returns a size in words, for the text of an event.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(shift, name)| {
            let tenths = (u128::from(bytes) * 10) >> shift;
            match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                part => format!("{}.{part} {name}", tenths / 10),
            }
        },
    )
}

impl Event {
    /// Returns its place in the ring: that of the event that is [`EVENTS_MAX`] older.
    pub fn slot(&self) -> u32 {
        u32::try_from(self.seq % EVENTS_MAX).expect("the ring is small")
    }

    pub(crate) fn write(&self) -> Write {
        Write::Put(Record::Event(self.clone()))
    }
}
