//! Health checks, events and rates to and from protobuf.

use crate::convert::Malformed;
use crate::pb;
use control::admin::{EventsPage, IoRates, Recovery};
use control::events::{Event, Level};
use control::health::{Check, Severity};
use types::control::{IoTotals, RecoveryTotals};

/// Makes two conversions, one in each direction, for each value whose fields have the same names and kinds
/// in protobuf.
macro_rules! mirrored {
    ($($there:ident, $back:ident: $name:ident { $($field:ident),+ };)+) => {$(
        pub(crate) fn $there(value: $name) -> pb::$name {
            let $name { $($field),+ } = value;
            pb::$name { $($field),+ }
        }

        pub(crate) fn $back(value: pb::$name) -> $name {
            let pb::$name { $($field),+ } = value;
            $name { $($field),+ }
        }
    )+};
}

mirrored! {
    io_out, io_in: IoTotals { reads, read_bytes, writes, write_bytes };
    recovery_out, recovery_in: RecoveryTotals { streams, done_bytes, left_bytes };
    progress_out, progress_in: Recovery { pgs, streams, left_bytes, bytes_per_s, eta_ms };
    rates_out, rates_in: IoRates { reads_per_s, read_bytes_per_s, writes_per_s, write_bytes_per_s };
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
