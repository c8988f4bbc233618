//! Health checks, events and rates to and from protobuf.

use crate::convert::Malformed;
use crate::pb;
use control::admin::{EventsPage, IoRates, Recovery};
use control::events::{Event, Level};
use control::health::{Check, Severity};
use types::control::{IoTotals, RecoveryTotals};

pub(crate) fn io_out(io: IoTotals) -> pb::IoTotals {
    let IoTotals { reads, read_bytes, writes, write_bytes } = io;
    pb::IoTotals { reads, read_bytes, writes, write_bytes }
}

pub(crate) fn io_in(io: pb::IoTotals) -> IoTotals {
    let pb::IoTotals { reads, read_bytes, writes, write_bytes } = io;
    IoTotals { reads, read_bytes, writes, write_bytes }
}

pub(crate) fn recovery_out(recovery: RecoveryTotals) -> pb::RecoveryTotals {
    let RecoveryTotals { streams, done_bytes, left_bytes } = recovery;
    pb::RecoveryTotals { streams, done_bytes, left_bytes }
}

pub(crate) fn recovery_in(recovery: pb::RecoveryTotals) -> RecoveryTotals {
    let pb::RecoveryTotals { streams, done_bytes, left_bytes } = recovery;
    RecoveryTotals { streams, done_bytes, left_bytes }
}

pub(crate) fn progress_out(r: Recovery) -> pb::Recovery {
    let Recovery { pgs, streams, left_bytes, bytes_per_s, eta_ms } = r;
    pb::Recovery { pgs, streams, left_bytes, bytes_per_s, eta_ms }
}

pub(crate) fn progress_in(r: pb::Recovery) -> Recovery {
    let pb::Recovery { pgs, streams, left_bytes, bytes_per_s, eta_ms } = r;
    Recovery { pgs, streams, left_bytes, bytes_per_s, eta_ms }
}

pub(crate) fn rates_out(io: IoRates) -> pb::IoRates {
    let IoRates { reads_per_s, read_bytes_per_s, writes_per_s, write_bytes_per_s } = io;
    pb::IoRates { reads_per_s, read_bytes_per_s, writes_per_s, write_bytes_per_s }
}

pub(crate) fn rates_in(io: pb::IoRates) -> IoRates {
    let pb::IoRates { reads_per_s, read_bytes_per_s, writes_per_s, write_bytes_per_s } = io;
    IoRates { reads_per_s, read_bytes_per_s, writes_per_s, write_bytes_per_s }
}

pub(crate) fn check_out(c: Check) -> pb::HealthCheck {
    pb::HealthCheck {
        code: c.code,
        severity: c.severity.name().to_owned(),
        count: c.count,
        summary: c.summary,
        entities: c.entities,
        details: c.details,
        since_ms: c.since_ms,
        muted: c.muted,
        muted_until_ms: c.muted_until_ms,
        next: c.next,
    }
}

pub(crate) fn check_in(c: pb::HealthCheck) -> Result<Check, Malformed> {
    let known = [Severity::Ok, Severity::Warning, Severity::Error].into_iter().find(|s| s.name() == c.severity);
    Ok(Check {
        code: c.code,
        severity: known.ok_or(Malformed::Range("severity"))?,
        count: c.count,
        summary: c.summary,
        entities: c.entities,
        details: c.details,
        since_ms: c.since_ms,
        muted: c.muted,
        muted_until_ms: c.muted_until_ms,
        next: c.next,
    })
}

impl From<EventsPage> for pb::EventsReply {
    fn from(page: EventsPage) -> Self {
        let event = |e: Event| pb::Event {
            seq: e.seq,
            at_ms: e.at_ms,
            kind: e.kind,
            level: e.level.name().to_owned(),
            subject: e.subject,
            by: e.by,
            text: e.text,
        };
        pb::EventsReply { events: page.events.into_iter().map(event).collect(), last: page.last }
    }
}

impl TryFrom<pb::EventsReply> for EventsPage {
    type Error = Malformed;

    fn try_from(reply: pb::EventsReply) -> Result<Self, Malformed> {
        let event = |e: pb::Event| {
            let level = [Level::Info, Level::Warning].into_iter().find(|level| level.name() == e.level);
            Ok(Event {
                seq: e.seq,
                at_ms: e.at_ms,
                kind: e.kind,
                level: level.ok_or(Malformed::Range("level"))?,
                subject: e.subject,
                by: e.by,
                text: e.text,
            })
        };
        let events = reply.events.into_iter().map(event).collect::<Result<_, Malformed>>()?;
        Ok(EventsPage { events, last: reply.last })
    }
}
