//! What waits too long: the oldest request, and what it waits for. For those who watch a volume.

use crate::part::Place;
use crate::volume::{Kind, Volume};
use types::{OsdId, PgId, Time};

/// A request that is not answered, and how many others came before the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When the oldest came.
    pub since: Time,
    pub what: &'static str,
    /// First byte of its range; a flush has none.
    pub offset: Option<u64>,
    /// Where its oldest part belongs; `None` while meta has not said where the segment is.
    pub pg: Option<PgId>,
    /// The leader that has the part; `None` while the leader is looked for.
    pub osd: Option<OsdId>,
    /// An OSD of the PG has no space for it.
    pub full: bool,
    pub requests: usize,
}

impl Volume {
    /// The oldest request that came before `before` and is not answered.
    pub fn stall(&self, before: Time) -> Option<Stall> {
        let late = || self.requests.iter().filter(|(_, pending)| pending.since < before);
        // A flush waits for writes: one of these says more.
        let age =
            |pending: &crate::volume::Pending| (matches!(pending.kind, Kind::Flush), pending.since, pending.token);
        let (key, pending) = late().min_by_key(|(_, pending)| age(pending))?;
        let mine = self.parts.iter().map(|(_, part)| part).filter(|part| part.request == Some(key as u32));
        let part = mine.min_by_key(|part| part.life);
        let pg = part.map(|part| &self.pgs[part.pg as usize]);
        let (what, offset) = match pending.kind {
            Kind::Read(_) => ("read", Some(pending.start)),
            Kind::Write { .. } => ("write", Some(pending.start)),
            Kind::Fill | Kind::Zero => ("trim or write-zeroes", Some(pending.start)),
            Kind::Extents(_) => ("block status", Some(pending.start)),
            Kind::Flush => ("flush", None),
        };
        Some(Stall {
            since: pending.since,
            what,
            offset,
            pg: pg.map(|pg| pg.id),
            osd: pg.filter(|pg| pg.settled).map(|pg| pg.guess),
            full: part.is_some_and(|part| part.full_since.is_some()),
            requests: late().count(),
        })
    }

    /// Keeps a write back that an OSD has no space for, and tries it again at each scan; whether it does. Its place in
    /// the order of overlapping writes stays, and other I/O of its PG goes on.
    pub(crate) fn waits_for_space(&mut self, now: Time, key: u32) -> bool {
        let part = &mut self.parts[key as usize];
        let since = *part.full_since.get_or_insert(now);
        // One that nobody waits for any more is given up at once.
        if part.request.is_none() || now >= since + self.config.full_wait {
            return false;
        }
        if part.place == Place::Out && !part.has_copies() {
            part.place = Place::Held;
            self.pgs[part.pg as usize].out -= 1;
        }
        true
    }
}
