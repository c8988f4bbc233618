//! Repair of a replica's log from its peers (R11, ADR 0004).
//!
//! The loop comes in with replicas whose log lacks payloads, with peers' messages, and with peers' own
//! questions; questions and answers go out, and payloads into the engine. A group is made when all are back.
//!
//! Invariant: a replica that is being repaired says nothing as a raft member; what it takes matches the checksums of
//! its own record, so that no majority of damaged copies can win; what nobody has is named, never made up.

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
use types::map::Membership;
use types::store::{Crcs, HardState, Lost, Recovered, ReplicaIdentity};
use types::{Index, IoBuf, OsdId, PgId, ReplicaId, Term, Time};
use wire::{Lack, Message, RepairBody, RepairMsg};

/// Payloads that one replica has asked for and not got yet.
const ASKED_MAX: usize = 4;
/// A question that is not answered within this time is put to the next member.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Between two looks at a replica that waits for peers, or for one that changes its mind.
const AGAIN: Duration = Duration::from_secs(2);
/// Bytes that wait on a connection, from which questions of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;

/// One replica that is being repaired.
struct Repair {
    /// What its group will be made of.
    recovered: Recovered,
    others: Vec<(ReplicaId, OsdId)>,
    has_changed_members: bool,
    missing: BTreeMap<Index, Missing>,
    next_at: Time,
    /// Extents of entries of which no member has a good copy.
    inconsistent: Vec<LostExtent>,
    behind: bool,
}

/// What one look at a repair comes to.
#[derive(Default)]
struct Look {
    /// Entry, round, and whom to ask.
    questions: Vec<(Index, Term, u32, (ReplicaId, OsdId))>,
    /// From here on nothing is committed, and nothing will be.
    void: Option<Index>,
    /// The first entry that is missing: it is at home elsewhere.
    behind: Option<Index>,
}

/// All repairs of one OSD.
#[derive(Default)]
pub(crate) struct Repairs {
    by_replica: BTreeMap<ReplicaId, Repair>,
    /// Rounds of questions since the start, of repairs and of doubts.
    rounds: u32,
    /// Replicas that were made whole since the start.
    pub done: u64,
}

impl Repair {
    fn new(recovered: Recovered, members: &Membership, round: u32) -> Repair {
        let me = recovered.identity.replica;
        let others = members.iter().filter(|m| m.replica != me).map(|m| (m.replica, m.osd)).collect();
        let missing = |lost: &Lost| Missing::new(lost.clone(), round);
        Repair {
            missing: recovered.lost.iter().map(|lost| (lost.index, missing(lost))).collect(),
            has_changed_members: recovered.identity.has_other_members(members),
            recovered,
            others,
            next_at: Time::ZERO,
            inconsistent: Vec::new(),
            behind: false,
        }
    }

    /// Judges what is missing, and chooses whom to ask for what.
    fn look(&mut self, now: Time, mut next_round: impl FnMut() -> u32, reaches: impl Fn(OsdId) -> bool) -> Look {
        let (others, commit) = (&self.others, self.recovered.hard_state.commit);
        let rest = missing::rest(self.missing.len());
        let (mut look, mut asked, mut inconsistent) = (Look::default(), 0, Vec::new());
        (self.behind, self.next_at) = (false, now + AGAIN);
        let mut first = true;
        for (index, missing) in &mut self.missing {
            let is_first = std::mem::take(&mut first);
            if missing.asked.is_some_and(|(_, until)| now < until) {
                asked += 1;
            } else {
                match missing.step(now, rest, (others.len() + 1, commit), &mut next_round) {
                    Verdict::Ask if asked < ASKED_MAX => {
                        let to = missing.next_to_ask(others, &reaches);
                        look.questions.extend(to.map(|to| (*index, missing.lost.term, missing.round, to)));
                        missing.asked = to.map(|(to, _)| (to, now + ANSWER_MAX)).or(missing.asked);
                        asked += usize::from(to.is_some());
                    }
                    Verdict::Ask | Verdict::Inconsistent => {}
                    Verdict::Void => {
                        look.void = Some(*index);
                        break;
                    }
                    Verdict::Behind => {
                        self.behind = true;
                        if is_first {
                            look.behind = Some(*index);
                            break;
                        }
                    }
                }
            }
            if missing.is_inconsistent() && inconsistent.len() < LOST_REPORTED_MAX {
                inconsistent.push(*index);
            }
        }
        if asked > 0 {
            self.next_at = now + ANSWER_MAX;
        }
        self.inconsistent = inconsistent.into_iter().filter_map(|index| self.extent(index)).collect();
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

    /// The number of a new round of questions. No other of this process has it.
    pub fn next_round(&mut self) -> u32 {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds
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

    /// What the group of a replica under repair will be made of.
    pub fn recovered(&self, replica: ReplicaId) -> Option<&Recovered> {
        self.by_replica.get(&replica).map(|repair| &repair.recovered)
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
            lost_from: None,
            hears: None,
            leading: None,
        }
    }
}

impl Osd {
    /// Replicas whose log is being repaired here, with the extents of which nobody has a good copy.
    pub fn repairing(&self) -> Vec<(PgId, Vec<LostExtent>)> {
        let all = self.repairs.by_replica.values();
        let lost = all.map(|r| (r.recovered.identity.pg, r.inconsistent.clone()));
        lost.chain(self.doubts.pgs().map(|pg| (pg, Vec::new()))).collect()
    }

    /// (entries brought back, replicas made whole) since the start.
    pub fn repaired(&self) -> (u64, u64) {
        (self.engine.stats().refilled_entries, self.repairs.done + self.doubts.done)
    }

    /// A replica came back from the device with a log that lacks payloads.
    pub(crate) fn begin_repair(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let (pg, replica, lost) = (identity.pg, identity.replica, recovered.lost.len());
        tracing::warn!(%pg, replica = replica.0, lost, "payloads of log entries are damaged: fetching them from peers");
        let round = self.repairs.next_round();
        let members = group::members_in(&recovered);
        self.repairs.by_replica.insert(replica, Repair::new(recovered, &members, round));
        self.pgs.insert(identity, members, State::Repairing);
    }

    /// Asks for what is missing, and judges what nobody has.
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
        let Repairs { by_replica, rounds, .. } = &mut self.repairs;
        let Some(repair) = by_replica.get_mut(&replica) else { return };
        let was = (repair.inconsistent.clone(), repair.behind);
        let next_round = || {
            *rounds = rounds.wrapping_add(1);
            *rounds
        };
        let look = repair.look(now, next_round, |osd| bus.link_to(osd).is_some());
        let (identity, changed) = (repair.recovered.identity.clone(), repair.has_changed_members);
        if was != (repair.inconsistent.clone(), repair.behind) {
            let (pg, lost, behind) = (identity.pg, &repair.inconsistent, repair.behind);
            let extents = lost.iter().map(LostExtent::to_string).collect::<Vec<_>>().join(", ");
            tracing::error!(%pg, replica = replica.0, extents, behind,
                "no peer has a good copy of damaged log entries");
            self.meta.report_soon(now);
        }
        for (index, term, round, (to, osd)) in look.questions {
            self.send_repair(osd, &identity, to, round, RepairBody::Fetch { index, term });
        }
        match look.void {
            // The members that count for this entry may be others than those of today.
            Some(from) if changed => {
                self.quarantine_replica(replica, format!("the payload of entry {from} is lost, and no peer has it"));
            }
            Some(from) => self.cut_void(replica, from),
            None => {}
        }
        if let Some(from) = look.behind {
            // It is committed, and in no log any more: what it did is at home elsewhere, and is streamed (R12).
            self.engine.cut_back(replica, from);
        }
    }

    /// Entry `from` and what follows it is not committed, and no majority will ever hold it.
    fn cut_void(&mut self, replica: ReplicaId, from: Index) {
        let repair = self.repairs.by_replica.get_mut(&replica).expect("it was just judged");
        tracing::info!(replica = replica.0, %from, "truncated a damaged, uncommitted tail of the log that no peer has");
        repair.recovered.entries.retain(|entry| entry.index < from);
        let _ = repair.missing.split_off(&from);
        self.engine.cut_lost(replica, from);
    }

    /// Of the log of a replica that is being repaired, or waits in doubt, stands what comes before `from`: it follows from
    /// there as one that may lack what it acknowledged. What it was told before is asked anew: a leader must know.
    pub(crate) fn log_cut_back(&mut self, replica: ReplicaId, hard_state: HardState, from: Index) {
        let repaired = self.repairs.by_replica.remove(&replica).map(|repair| repair.recovered);
        let Some(mut recovered) = repaired.or_else(|| self.doubts.stop_asking(replica)) else { return };
        recovered.entries.retain(|entry| entry.index < from);
        recovered.lost.clear();
        recovered.hard_state = hard_state;
        recovered.in_doubt = true;
        self.begin_doubt(recovered, None);
    }

    /// Every payload is back and durable, or not needed: the replica takes part again.
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

    pub(crate) fn send_repair(
        &mut self,
        osd: OsdId,
        identity: &ReplicaIdentity,
        to: ReplicaId,
        round: u32,
        body: RepairBody,
    ) {
        let (pg, from, lineage) = (identity.pg, identity.replica, identity.lineage);
        if let Some(link) = self.bus.link_to(osd) {
            self.bus.send(link, Message::Repair(RepairMsg { pg, from, to, lineage, round, body }));
        }
    }

    /// R4: only between members of one PG of one lineage, each at its own place.
    pub(crate) fn handle_repair(&mut self, link: LinkId, from: OsdId, msg: RepairMsg) {
        // A replica that has failed gives what it can read, beside the one that replaces it.
        let Some(slot) = self.pgs.by_replica(msg.to) else { return };
        let held = self.pgs.get(slot);
        let ours = (held.identity.pg, held.identity.lineage) == (msg.pg, msg.lineage);
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
            RepairBody::Fetch { index, term } => self.answer_fetch(slot, from, (msg.from, msg.round), (index, term)),
            RepairBody::Payload { index, start, crcs, payload, .. } => {
                let crcs = Crcs { start, values: crcs };
                let lost = Lost { index, term: Term(0), len_bytes: payload.len() as u32, crcs };
                if !lost.is(&payload) {
                    tracing::warn!(%from, "closing the connection of a peer that sent bad bytes");
                    return self.bus.disconnect(link, "a payload for a repair fails its checksum");
                }
                self.take_payload(msg.to, msg.from, msg.round, index, payload);
            }
            RepairBody::Doubt { index, term } => self.answer_doubt(slot, from, (msg.from, msg.round), (term, index)),
            RepairBody::Standing { index, term, current } => self.take_standing(link, &msg, current, (term, index)),
            RepairBody::Lack { .. } if self.doubts.is_asking(msg.to) => self.take_unsure(msg.to, msg.from, msg.round),
            RepairBody::Lack { index, why, .. } => self.take_lack(&msg, index, why),
        }
    }

    fn answer_fetch(&mut self, slot: usize, from: OsdId, asked: (ReplicaId, u32), (index, term): (Index, Term)) {
        let held = self.pgs.get(slot);
        let (identity, replica) = (held.identity.clone(), held.identity.replica);
        let lack = |why| RepairBody::Lack { index, term, why };
        let sound = matches!(held.state, State::Running(_) | State::Installing(_) | State::Repairing);
        let body = match self.engine.holding(replica, index, term) {
            Holding::Payload(payload, crcs) => {
                RepairBody::Payload { index, term, start: crcs.start, crcs: crcs.values, payload }
            }
            Holding::Lost if sound => lack(Lack::Lost),
            Holding::Other if sound => lack(Lack::Other),
            Holding::Freed if sound => lack(Lack::Freed),
            _ => lack(Lack::Unsure),
        };
        self.send_repair(from, &identity, asked.0, asked.1, body);
    }

    /// A peer's payload: taken when it is what the replica's own record says.
    fn take_payload(&mut self, replica: ReplicaId, from: ReplicaId, round: u32, index: Index, payload: IoBuf) {
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if missing.asked.is_none_or(|(asked, _)| asked != from) {
            return;
        }
        if !self.engine.can_refill() {
            missing.asked = None; // it is asked for again
        } else if self.engine.refill(replica, index, missing.lost.term, payload) {
            repair.missing.remove(&index);
            repair.next_at = self.now;
        } else {
            tracing::error!(replica = replica.0, %from, index = index.0,
                "a peer has other bytes under the same index and term");
            repair.next_at = self.now;
            missing.take_other_bytes(from, round);
        }
    }

    fn take_lack(&mut self, msg: &RepairMsg, index: Index, why: Lack) {
        let Some(repair) = self.repairs.by_replica.get_mut(&msg.to) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if missing.take_lack(msg.from, msg.round, why) && why != Lack::Unsure {
            repair.next_at = self.now;
        }
    }
}

#[cfg(test)]
mod tests;
