//! Reports of a leader from which this volume hears nothing, and which other members still follow.
//!
//! A member that a search asks answers "not here, ask osd.N". When osd.N is the OSD that fell silent, the path between
//! this client and osd.N is broken, and the path between the two members is not. The volume then reports this to the member.
//! The member forwards the report, and the leader transfers leadership to it (ADR 0014). The search goes on meanwhile.
//!
//! Invariant: a leader is reported only while no byte came from its OSD for `VolumeTuning::silent`, pings included: a leader that
//! is slow is not unreached. The pause between two reports of one PG doubles.

use crate::ids::PartId;
use crate::limits::REPORT_KEY;
use crate::volume::{Admit, Carrier, Volume};
use types::{OsdId, Time};
use wire::{Request, RequestBody};

/// One PG's knowledge of a leader that it may have to report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The leader that a member named last, and the member.
    pub named: Option<(OsdId, OsdId)>,
    /// Earliest time of the next report.
    next_at: Time,
    /// Number of reports in this search.
    count: u32,
}

impl Report {
    /// Resets the report at the end of a search.
    pub fn settled(&mut self) {
        (self.named, self.count) = (None, 0);
    }
}

impl Volume {
    /// Whether `osd` has had a request of this volume for so long that an answer to it, or to a ping, is due.
    fn waits_for(&self, osd: OsdId, now: Time) -> bool {
        let silent = self.config.tuning.silent;
        self.parts.iter().any(|(_, part)| part.copy_at(osd).is_some_and(|copy| now >= copy.sent_at + silent))
    }

    /// Reports a silent leader to the member that named it, when a report is due.
    pub(crate) fn report_unreached(&mut self, slot: u32, now: Time, carrier: &mut dyn Carrier) {
        let (pg, tuning) = (&mut self.pgs[slot as usize], self.config.tuning);
        let Some((leader, member)) = pg.report.named.take() else { return };
        if pg.settled || now < pg.report.next_at {
            return;
        }
        let unheard = match carrier.heard(leader) {
            // Without requests in flight no bytes are expected.
            Some(at) => now >= at + tuning.silent && self.waits_for(leader, now),
            None => now >= pg.search_since + tuning.silent,
        };
        let pg = &mut self.pgs[slot as usize];
        if !unheard || carrier.admit(member, 0) != Admit::Go {
            return;
        }
        pg.report.next_at = now + tuning.report_pause * (1 << pg.report.count.min(tuning.report_pause_doublings));
        pg.report.count += 1;
        let pg = pg.id;
        self.serial += 1;
        // No part has this key: the search finds out whatever the answer could tell.
        let id = PartId { space: self.config.space, serial: self.serial, key: REPORT_KEY };
        let body = RequestBody::Unreached { volume: self.id, leader };
        self.stats.reports += 1;
        carrier.send(member, Request { id: id.pack(), pg, session: self.session, epoch: self.epoch, body });
    }
}
