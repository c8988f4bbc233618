//! [`Aim`]: the way of an order to the leader of a PG, which changes while the order is under way.

use super::{Control, StreamId};
use std::time::Duration;
use types::map::Member;
use types::{OsdId, PgId, Time};

/// Where an order goes next, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Aim {
    hint: Option<OsdId>,
    tries: usize,
    pub at: Time,
}

impl Aim {
    /// Makes the order due at once: the PG has a new leader, and what was sent to the old one is sent again.
    pub fn again(&mut self) {
        (self.at, self.hint) = (Time::ZERO, None);
    }

    /// Notes that the order was sent, or that no member of the PG has a stream. The next try comes after the first or the second pause.
    pub fn sent(&mut self, now: Time, sent: bool, (resend, retry): (Duration, Duration)) {
        self.at = now + if sent { resend } else { retry };
        self.tries += usize::from(sent);
    }

    /// Notes that an OSD does not lead the PG. An OSD that it names is tried at once, unless two name each other.
    pub fn not_leader(&mut self, now: Time, from: OsdId, hint: Option<OsdId>, retry: Duration) {
        self.hint = hint.filter(|h| *h != from);
        self.tries += 1;
        self.at = if self.hint.is_some() && !self.tries.is_multiple_of(8) { now } else { now + retry };
    }
}

impl Control {
    /// Returns the stream of the OSD to try: the named one, else the leader, else one member after another.
    pub(super) fn target(&self, pg: PgId, aim: &Aim) -> Option<StreamId> {
        let members: Vec<Member> = self.records.pgs.get(&pg)?.everyone().collect();
        let stream = |osd: OsdId| self.osds.get(&osd).and_then(|live| live.stream);
        let hint = aim.hint.filter(|h| members.iter().any(|m| m.osd == *h)).and_then(stream);
        let lead = self.leads.get(&pg).filter(|_| aim.tries % 4 != 3).and_then(|lead| stream(lead.osd));
        let any = || {
            let turn = (0..members.len()).map(|i| members[(aim.tries + i) % members.len()].osd);
            turn.into_iter().find_map(stream)
        };
        hint.or(lead).or_else(any)
    }
}
