//! R17, devices that are older than their last report: when their replicas fail (ADR 0012).
//!
//! Input: Hellos that [`plan::osd_hello`] refused with BSLT-2041. Output: the order to fail all replicas, or a refusal with what the
//! OSD waits for; the OSD asks again.
//!
//! Invariant: the order takes no PG down. Only a device whose replicas have failed already gets it without that condition.

use super::{Control, ControlAction, Now, Standing, StreamId};
use crate::events::Note;
use crate::plan;
use crate::records::PgRecord;
use types::control::{OsdDown, OsdHello, Refusal};
use types::{OsdId, PgId, Time};

impl Control {
    /// Handles a device that is older than its last report. Its replicas have failed (R4). They are told so once that takes
    /// no PG down: a mistake here, or many devices that go back at once, must not fail the last good copies. So the OSD first
    /// waits for as long as a dead leader may count as up, and asks again.
    pub(super) fn take_older_device(&mut self, now: Now, stream: StreamId, hello: &OsdHello, refusal: Refusal) {
        let osd = hello.osd;
        self.drop_leads(now.mono, osd);
        let known = self.records.osds.get(&osd);
        // A run that was accepted before may have new replicas.
        let is_new_run = known.is_none_or(|known| known.incarnation != hello.incarnation);
        // The old device itself may come back, and start more often than its copy did.
        let mount = known.map_or(0, |known| known.mount.saturating_add(plan::MOUNT_LEAP));
        let waits = match self.standing() {
            // Such a device only waits for the order to take a new mount number.
            Standing::Sound if hello.device.restored && is_new_run => None,
            Standing::Sound => self.waits_for(now.mono, osd),
            standing => Some(waits_for_records(osd, standing)),
        };
        let what = waits.as_deref().unwrap_or("its replicas fail, and are replaced by new ones");
        let entity = format!("{osd} is older{}", if waits.is_none() { ", and fails" } else { "" });
        if self.standing() == Standing::Sound && self.watch.take(now.mono, &entity) {
            let text = format!("the device of {osd} is older than its last report: {what}");
            self.note(now, Note::warning("osd.device_older", osd, text));
        }
        if waits.is_some() {
            let message = format!("{}; {what}", refusal.message);
            return self.refuse_osd(stream, Refusal { message, ..refusal });
        }
        self.say(stream, OsdDown::FailReplicas { reason: refusal.message, mount });
        self.held.push(ControlAction::CloseOsd { stream });
    }

    /// Takes note that an OSD on an older device leads no PG: other members elect a leader.
    fn drop_leads(&mut self, now: Time, osd: OsdId) {
        let led: Vec<PgId> = self.leads.extract_if(.., |_, lead| lead.osd == osd).map(|(pg, _)| pg).collect();
        self.unled.extend(led.into_iter().map(|pg| (pg, now)));
    }

    /// Returns what an OSD on an older device waits for; `None` when its replicas may fail. While a PG changes its leader, the
    /// wait goes on, but does not end. An order that came too late for an earlier process begins the wait again, and so does a PG
    /// that was not served meanwhile.
    fn waits_for(&mut self, now: Time, osd: OsdId) -> Option<String> {
        let held = self.records.pgs.values().filter(|record| record.everyone().any(|m| m.osd == osd));
        let unserved: Vec<PgId> =
            held.filter(|record| !self.is_served_without(now, record, osd)).map(|record| record.pg).collect();
        let elect = unserved.iter().all(|pg| self.elects(now, *pg));
        let down_after = self.config.down_after;
        let asked = &mut self.osds.entry(osd).or_default().asked_as_older;
        let since = asked.filter(|(_, last)| *last + down_after >= now).map(|(since, _)| since);
        let since = if unserved.is_empty() { since.or(Some(now)) } else { since.filter(|_| elect) };
        *asked = since.map(|since| (since, now));
        match unserved.first() {
            None if since.is_some_and(|since| now.since(since) >= down_after) => None,
            None => Some("its replicas fail when its PGs stay served without it".to_owned()),
            Some(pg) => Some(format!(
                "its replicas fail when its PGs are served without it ({} are not, PG {pg} is one)",
                unserved.len()
            )),
        }
    }

    /// Whether a PG loses nothing when the replica on this OSD fails: another OSD leads it, as its present process reports, or it
    /// is a PG of two whose other replica goes on alone without a loss.
    fn is_served_without(&self, now: Time, record: &PgRecord, osd: OsdId) -> bool {
        let lead = self.leads.get(&record.pg).filter(|lead| lead.osd != osd && lead.report.active);
        lead.is_some_and(|lead| self.is_up(now, lead.osd) && self.is_heard(lead.osd))
            || self.goes_on_without(now, record, osd)
    }
}

/// Returns what an OSD on an older device waits for while the records are not trusted. Its own memory does not count.
fn waits_for_records(osd: OsdId, standing: Standing) -> String {
    let OsdId(number) = osd;
    match standing {
        Standing::Behind => "its replicas do not fail before `basalt meta recover`".to_owned(),
        Standing::Waiting | Standing::Sound => format!(
            "its replicas fail when a majority of the OSDs confirms the records; this OSD does not count for it: when too few \
             others are left, `basalt meta recover --without {number}`"
        ),
    }
}
