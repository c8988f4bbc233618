//! Payload repair: lost payloads of a replica's log come back from its peers (R11, ADR 0004).
//!
//! The loop comes in with replicas whose log lacks payloads, with peers' messages, and with peers' own
//! questions; questions and answers go out, and payloads into the engine. A group is made when all are back.
//!
//! Invariant: a replica under repair has no group. It takes a payload only when the checksums of its own record match, so no
//! majority of damaged copies can win. A payload that no member has is named, never made up: the replica waits for it as long as
//! its entry may be committed and no member has freed the entry. Otherwise the replica fails, and keeps its log before the entry.

mod missing;

use crate::node::Osd;
use crate::pgs::State;
use bus::LinkId;
use engine::Holding;
use group::descriptor::Command;
use missing::{Missing, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::{LOST_REPORTED_MAX, LostExtent, PgReport};
use types::map::{Member, Membership};
use types::store::{Crcs, Failure, Lost, Recovered, ReplicaIdentity};
use types::{Index, IoBuf, OsdId, PgId, ReplicaId, Term, Time};
use wire::{Lack, Message, RepairBody, RepairMsg};

/// Payloads that one replica has asked for and not got yet.
const ASKED_MAX: usize = 4;
/// A question that is not answered within this time is put to the next member.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Between two reviews of all payloads that a replica lacks.
const AGAIN: Duration = Duration::from_secs(2);
/// Bytes that wait on a connection, from which questions of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;

/// One replica that is being repaired.
struct Repair {
    /// The state that its group will start from.
    recovered: Recovered,
    /// Members at the end of its log, and those on other OSDs.
    members: Membership,
    others: Vec<Member>,
    missing: BTreeMap<Index, Missing>,
    /// Entries whose questions are on their way.
    waiting: Vec<Index>,
    /// The next question is about the first askable entry from here on: questions without an answer must not keep others back.
    cursor: Index,
    next_at: Time,
    /// The next look then judges all entries.
    review_at: Time,
    /// Extents of entries of which no member has a good copy.
    inconsistent: Vec<LostExtent>,
}

/// Outcome of one look at a repair.
#[derive(Default)]
struct Look {
    /// Entry, and the member to ask for it.
    questions: Vec<(Index, Term, Member)>,
    /// An entry whose payload no member gives any more.
    given_up: Option<Index>,
}

/// All repairs of one OSD.
#[derive(Default)]
pub(crate) struct Repairs {
    by_replica: BTreeMap<ReplicaId, Repair>,
    /// Replicas that were repaired since the start.
    pub done: u64,
}

impl Repair {
    fn new(recovered: Recovered, members: Membership, osd: OsdId) -> Repair {
        let me = recovered.identity.replica;
        Repair {
            missing: recovered.lost.iter().map(|lost| (lost.index, Missing::new(lost.clone()))).collect(),
            recovered,
            others: members.iter().filter(|m| m.replica != me && m.osd != osd).collect(),
            members,
            waiting: Vec::new(),
            cursor: Index(0),
            next_at: Time::ZERO,
            review_at: Time::ZERO,
            inconsistent: Vec::new(),
        }
    }

    /// Judges missing payloads, and chooses which member is asked for which. Between two reviews it goes no further than it finds
    /// questions to ask.
    fn look(&mut self, now: Time, is_led: bool, reaches: impl Fn(OsdId) -> bool) -> Look {
        let (others, commit) = (&self.others[..], self.recovered.hard_state.commit);
        let (rest, is_review) = (missing::rest(self.missing.len()), now >= self.review_at);
        let missing = &mut self.missing;
        self.waiting.retain(|index| missing.get(index).is_some_and(|missing| missing.waits(now)));
        let (mut look, mut at) = (Look::default(), self.cursor);
        for _ in 0..missing.len() {
            if self.waiting.len() >= ASKED_MAX && !is_review {
                break;
            }
            let next = missing.range(at..).chain(missing.range(..)).next().map(|(index, _)| *index);
            let index = next.expect("the map is not empty");
            at = Index(index.0 + 1);
            let entry = missing.get_mut(&index).expect("it was just found");
            match entry.step(now, (rest, is_led), (&self.members, others), commit) {
                Verdict::Ask if entry.waits(now) || self.waiting.len() >= ASKED_MAX => {}
                Verdict::Ask => {
                    let Some(to) = entry.next_to_ask(others, &reaches) else { continue };
                    entry.asked = Some((to.replica, now + ANSWER_MAX));
                    look.questions.push((index, entry.lost.term, to));
                    self.waiting.push(index);
                    self.cursor = at;
                }
                Verdict::Inconsistent => {}
                Verdict::GivenUp => look.given_up = Some(index),
            }
        }
        if is_review {
            self.review_at = now + AGAIN;
            let inconsistent = self.missing.iter().filter(|(_, missing)| missing.is_inconsistent());
            let extents = inconsistent.take(LOST_REPORTED_MAX).filter_map(|(index, _)| self.extent(*index));
            self.inconsistent = extents.collect();
        }
        self.next_at = if self.waiting.is_empty() { self.review_at } else { self.review_at.min(now + ANSWER_MAX) };
        look
    }

    fn extent(&self, index: Index) -> Option<LostExtent> {
        let entry = self.recovered.entries.iter().find(|entry| entry.index == index)?;
        match Command::decode(&entry.descriptor) {
            Ok(Command::Write { chunk, range, .. }) => {
                let offset_bytes = range.start * types::SECTOR as u32;
                Some(LostExtent { chunk, offset_bytes, len_bytes: range.len_bytes() as u32 })
            }
            _ => None,
        }
    }
}

impl Repairs {
    pub fn len(&self) -> usize {
        self.by_replica.len()
    }

    pub fn inconsistent(&self) -> usize {
        self.by_replica.values().filter(|r| !r.inconsistent.is_empty()).count()
    }

    pub fn next_deadline(&self) -> Time {
        self.by_replica.values().map(|r| r.next_at).min().unwrap_or(Time::NEVER)
    }

    /// A peer came up: it may know more.
    pub fn hurry(&mut self) {
        self.by_replica.values_mut().for_each(|repair| repair.next_at = Time::ZERO);
    }

    pub fn forget(&mut self, replica: ReplicaId) {
        self.by_replica.remove(&replica);
    }

    pub fn clear(&mut self) {
        self.by_replica.clear();
    }

    /// Returns the first entry whose payload is missing.
    pub fn first_missing(&self, replica: ReplicaId) -> Option<Index> {
        self.by_replica.get(&replica)?.missing.keys().next().copied()
    }

    /// Returns the last entry before those whose payload is missing.
    pub fn end_before_missing(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        let Recovered { entries, before, .. } = &self.by_replica.get(&replica)?.recovered;
        let first = self.first_missing(replica);
        let last = entries.iter().rev().find(|entry| first.is_none_or(|first| entry.index < first));
        Some(last.map_or((before.1, before.0), |entry| (entry.term, entry.index)))
    }

    pub fn report(&self, identity: &ReplicaIdentity) -> PgReport {
        let repair = self.by_replica.get(&identity.replica);
        PgReport {
            pg: identity.pg,
            replica: identity.replica,
            term: repair.map_or(Term(0), |r| r.recovered.hard_state.term),
            applied: repair.map_or(Index(0), |r| r.recovered.checkpoint.index),
            end: None,
            quarantined: false,
            repairing: true,
            lost: repair.map_or(Vec::new(), |r| r.inconsistent.clone()),
            unread: Vec::new(),
            hears: None,
            leading: None,
        }
    }
}

impl Osd {
    /// Returns the replicas under payload repair, with the extents of which no member has a good copy.
    pub fn repairing(&self) -> Vec<(PgId, Vec<LostExtent>)> {
        self.repairs.by_replica.values().map(|r| (r.recovered.identity.pg, r.inconsistent.clone())).collect()
    }

    /// Returns (entries brought back, replicas repaired) since the start.
    pub fn repaired(&self) -> (u64, u64) {
        (self.engine.stats().refilled_entries, self.repairs.done)
    }

    /// A replica came back from the device with a log that lacks payloads.
    pub(crate) fn begin_repair(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let (pg, replica, lost) = (identity.pg, identity.replica, recovered.lost.len());
        tracing::warn!(%pg, replica = replica.0, lost, "payloads of log entries are damaged: fetching them from peers");
        let members = group::members_in(&recovered);
        self.repairs.by_replica.insert(replica, Repair::new(recovered, members.clone(), self.config.osd));
        self.pgs.insert(identity, members, State::Repairing);
    }

    /// Asks for payloads that are missing, and judges those that no member has.
    pub(crate) fn step_repairs(&mut self) {
        if self.repairs.next_deadline() > self.now {
            return;
        }
        for replica in self.repairs.by_replica.keys().copied().collect::<Vec<_>>() {
            if self.repairs.by_replica[&replica].next_at <= self.now {
                self.step_repair(replica);
            }
        }
    }

    fn step_repair(&mut self, replica: ReplicaId) {
        let (now, bus) = (self.now, &self.bus);
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let was = repair.inconsistent.clone();
        let is_led = self.pairs.has_heard_any_leader(now, repair.recovered.identity.pg);
        let look = repair.look(now, is_led, |osd| bus.link_to(osd).is_some());
        let identity = repair.recovered.identity.clone();
        if was != repair.inconsistent {
            let extents = repair.inconsistent.iter().map(LostExtent::to_string).collect::<Vec<_>>().join(", ");
            tracing::error!(pg = %identity.pg, replica = replica.0, extents,
                "inconsistent: no member has a good copy of damaged log entries");
            self.meta.report_soon(now);
        }
        for (index, term, to) in look.questions {
            self.send_repair(to.osd, &identity, to.replica, RepairBody::Fetch { index, term });
        }
        if let Some(index) = look.given_up {
            self.fail_without(replica, &format!("no member gives the payload of entry {index} any more"));
        }
    }

    /// Fails a replica that does not get its missing payloads. Its log before the first of them is its past.
    pub(crate) fn fail_without(&mut self, replica: ReplicaId, why: &str) {
        let Some(first) = self.repairs.first_missing(replica) else { return };
        let reason = format!("the payload of log entry {first} is lost: {why}");
        self.engine.fail_before(replica, first, reason.clone());
        self.replica_failed(replica, Failure { reason, is_past: true });
    }

    /// Every payload is back and durable: the replica takes part again.
    pub(crate) fn replica_refilled(&mut self, replica: ReplicaId) {
        let Some(mut repair) = self.repairs.by_replica.remove(&replica) else { return };
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        assert!(repair.missing.is_empty(), "{replica} is whole and lacks payloads");
        repair.recovered.lost.clear();
        self.repairs.done += 1;
        tracing::info!(pg = %repair.recovered.identity.pg, replica = replica.0, "the log of a replica is repaired");
        let state = self.start_group(repair.recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        let first = self.engine.first_index(replica);
        if let Some(group) = self.pgs.group(slot) {
            group.set_first_index(first);
        }
        self.pgs.touch(slot);
        self.meta.report_soon(self.now);
    }

    fn send_repair(&mut self, osd: OsdId, identity: &ReplicaIdentity, to: ReplicaId, body: RepairBody) {
        let (pg, from) = (identity.pg, identity.replica);
        if let Some(link) = self.bus.link_to(osd) {
            self.bus.send(link, Message::Repair(RepairMsg { pg, from, to, body }));
        }
    }

    /// R4: only between members of one PG, each at its own place.
    pub(crate) fn handle_repair(&mut self, link: LinkId, from: OsdId, msg: RepairMsg) {
        // A replica that has failed gives what it can read, beside the one that replaces it.
        let Some(slot) = self.pgs.by_replica(msg.to) else { return };
        let held = self.pgs.get(slot);
        let ours = held.identity.pg == msg.pg;
        // A new member may ask one that does not know it yet. Only members that this one knows answer.
        let theirs = match held.members.osd_of(msg.from) {
            Some(osd) => osd == from,
            None => matches!(msg.body, RepairBody::Fetch { .. }) && held.members.admits(msg.from),
        };
        if !ours || !theirs || from == self.config.osd {
            return;
        }
        match msg.body {
            RepairBody::Fetch { .. } if self.bus.queued_bytes(link) > ANSWERS_MAX => {}
            RepairBody::Fetch { index, term } => self.answer_fetch(slot, from, msg.from, (index, term)),
            RepairBody::Payload { index, term, start, crcs, payload } => {
                let crcs = Crcs { start, values: crcs };
                let lost = Lost { index, term, len_bytes: payload.len() as u32, crcs };
                if !lost.is(&payload) {
                    tracing::warn!(%from, "closing the connection of a peer that sent bad bytes");
                    return self.bus.disconnect(link, "a payload for a repair fails its checksum");
                }
                self.take_payload(msg.to, msg.from, (index, term), payload);
            }
            RepairBody::Lack { index, term, why } => self.take_lack(&msg, (index, term), why),
        }
    }

    fn answer_fetch(&mut self, slot: usize, from: OsdId, asker: ReplicaId, (index, term): (Index, Term)) {
        let held = self.pgs.get(slot);
        let (identity, replica) = (held.identity.clone(), held.identity.replica);
        let lack = |why| RepairBody::Lack { index, term, why };
        let is_sound = matches!(held.state, State::Running(_) | State::Paused(_) | State::Repairing);
        let has_applied = matches!(&held.state, State::Running(group) if group.applied() >= index);
        let body = match self.engine.holding(replica, index, term) {
            Holding::Payload(payload, crcs) => {
                RepairBody::Payload { index, term, start: crcs.start, crcs: crcs.values, payload }
            }
            Holding::Lost if is_sound => lack(Lack::Lost),
            // Another entry is committed at this index, so the one that is asked for never was.
            Holding::Other if has_applied => lack(Lack::Freed),
            Holding::Other if is_sound => lack(Lack::Other),
            Holding::Freed if is_sound => lack(Lack::Freed),
            _ => lack(Lack::Unsure),
        };
        self.send_repair(from, &identity, asker, body);
    }

    /// Takes a peer's payload when it is what the replica's own record says.
    fn take_payload(&mut self, replica: ReplicaId, from: ReplicaId, (index, term): (Index, Term), payload: IoBuf) {
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if term != missing.lost.term || missing.asked.is_none_or(|(asked, _)| asked != from) {
            return;
        }
        if !self.engine.can_refill() {
            missing.asked = None; // it is asked for again
        } else if self.engine.refill(replica, index, term, payload) {
            repair.missing.remove(&index);
            repair.next_at = self.now;
        } else {
            repair.next_at = self.now;
            tracing::error!(replica = replica.0, %from, index = index.0,
                "a peer has other bytes under the same index and term");
            // It holds the entry, and no copy of the payload that could be taken.
            missing.take_lack(self.now, from, term, Lack::Lost);
        }
    }

    fn take_lack(&mut self, msg: &RepairMsg, (index, term): (Index, Term), why: Lack) {
        let Some(repair) = self.repairs.by_replica.get_mut(&msg.to) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if missing.take_lack(self.now, msg.from, term, why) {
            repair.next_at = self.now;
        }
    }
}

#[cfg(test)]
mod tests;
