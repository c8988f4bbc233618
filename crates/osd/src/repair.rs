//! Repair of a replica's log from its peers (R11, ADR 0004).
//!
//! The loop comes in with replicas whose log lacks payloads, with peers' messages, and with peers' own
//! questions; questions and answers go out, and payloads into the engine. A group is made when all are back.
//!
//! Invariant: a replica that is being repaired says nothing as a raft member; what it takes matches the checksums of
//! its own record, so that no majority of damaged copies can win; what nobody has is named, never made up.

use crate::node::Osd;
use crate::pgs::State;
use bus::LinkId;
use engine::Holding;
use group::descriptor::Command;
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::{LOST_REPORTED_MAX, LostExtent, PgReport};
use types::store::{Crcs, HardState, Lost, Recovered, ReplicaIdentity};
use types::{Index, IoBuf, OsdId, PgId, ReplicaId, Time};
use wire::{Lack, Message, RepairBody, RepairMsg};

/// Payloads that one replica has asked for and not got yet.
const ASKED_MAX: usize = 4;
/// A question that is not answered within this time is put to the next member.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Between two looks at a replica that waits for peers, or for one that changes its mind.
const AGAIN: Duration = Duration::from_secs(2);
/// Bytes that wait on a connection, from which questions of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;

/// What a payload that is missing still needs.
#[derive(Debug)]
struct Missing {
    lost: Lost,
    /// Who has said that it cannot help, and why.
    said: BTreeMap<ReplicaId, Lack>,
    /// Whom it was asked of last, and until when that counts.
    asked: Option<(ReplicaId, Time)>,
}

/// What is to be done about a missing payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Some member may still have it.
    Ask,
    /// All who could have it said no, and it may be acknowledged.
    Inconsistent,
    /// It is applied elsewhere, and no log has it any more.
    Behind,
    /// No majority holds the entry, so that it is not committed and cannot be any more.
    Void,
}

/// One replica that is being repaired.
struct Repair {
    /// What its group will be made of.
    recovered: Recovered,
    missing: BTreeMap<Index, Missing>,
    next_at: Time,
    /// Extents of entries of which no member has a good copy.
    inconsistent: Vec<LostExtent>,
    behind: bool,
}

/// All repairs of one OSD.
#[derive(Default)]
pub(crate) struct Repairs {
    by_replica: BTreeMap<ReplicaId, Repair>,
    /// Replicas that were made whole since the start.
    pub done: u64,
}

impl Repair {
    fn new(recovered: Recovered) -> Repair {
        let missing = |lost: &Lost| Missing { lost: lost.clone(), said: BTreeMap::new(), asked: None };
        Repair {
            missing: recovered.lost.iter().map(|lost| (lost.index, missing(lost))).collect(),
            recovered,
            next_at: Time::ZERO,
            inconsistent: Vec::new(),
            behind: false,
        }
    }

    fn others(&self) -> impl Iterator<Item = (ReplicaId, OsdId)> + '_ {
        let me = self.recovered.identity.replica;
        self.recovered.identity.members.iter().map(|m| (m.replica, m.osd)).filter(move |(id, _)| *id != me)
    }

    fn judge(&self, missing: &Missing) -> Verdict {
        let count = self.recovered.identity.members.len();
        let said = |why: Lack| missing.said.values().filter(|lack| **lack == why).count();
        if said(Lack::Freed) > 0 {
            return Verdict::Behind;
        }
        let holders = 1 + said(Lack::Lost);
        if holders + said(Lack::Other) < count {
            return Verdict::Ask;
        }
        let known = missing.lost.index <= self.recovered.hard_state.commit;
        match known || 2 * holders > count {
            true => Verdict::Inconsistent,
            false => Verdict::Void,
        }
    }

    /// The member to ask next: each in turn that has not said no.
    fn next_to_ask(&self, missing: &Missing, reaches: impl Fn(OsdId) -> bool) -> Option<(ReplicaId, OsdId)> {
        let may = |(id, osd): &(ReplicaId, OsdId)| !missing.said.contains_key(id) && reaches(*osd);
        let after = missing.asked.map_or(ReplicaId(0), |(last, _)| last);
        let mut able: Vec<(ReplicaId, OsdId)> = self.others().filter(may).collect();
        able.sort_unstable();
        able.iter().find(|(id, _)| *id > after).or(able.first()).copied()
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

    /// What the group of a replica under repair will be made of.
    pub fn recovered(&self, replica: ReplicaId) -> Option<&Recovered> {
        self.by_replica.get(&replica).map(|repair| &repair.recovered)
    }

    pub fn report(&self, identity: &ReplicaIdentity) -> PgReport {
        let repair = self.by_replica.get(&identity.replica);
        PgReport {
            pg: identity.pg,
            replica: identity.replica,
            term: repair.map_or(types::Term(0), |r| r.recovered.hard_state.term),
            applied: repair.map_or(Index(0), |r| r.recovered.checkpoint.index),
            quarantined: false,
            repairing: true,
            lost: repair.map_or(Vec::new(), |r| r.inconsistent.clone()),
            lost_from: None,
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
        tracing::warn!(%pg, %replica, lost, "payloads of log entries are damaged: they are fetched from peers");
        self.repairs.by_replica.insert(replica, Repair::new(recovered));
        self.pgs.insert(identity, State::Repairing);
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
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let was = (repair.inconsistent.clone(), repair.behind);
        repair.inconsistent.clear();
        (repair.behind, repair.next_at) = (false, now + AGAIN);
        let mut questions = Vec::new();
        let mut asked = 0;
        let mut void = None;
        let mut behind = None;
        for (index, missing) in &repair.missing {
            let waits = missing.asked.is_some_and(|(_, until)| now < until);
            match repair.judge(missing) {
                _ if waits => asked += 1,
                Verdict::Ask if asked < ASKED_MAX => {
                    let Some(to) = repair.next_to_ask(missing, |osd| bus.link_to(osd).is_some()) else { continue };
                    questions.push((*index, missing.lost.term, to));
                    asked += 1;
                }
                Verdict::Ask => {}
                Verdict::Void => {
                    void = Some(*index);
                    break;
                }
                Verdict::Behind => {
                    repair.behind = true;
                    if repair.missing.first_key_value().is_some_and(|(first, _)| first == index) {
                        behind = Some(*index);
                        break;
                    }
                }
                Verdict::Inconsistent if repair.inconsistent.len() < LOST_REPORTED_MAX => {
                    let extent = repair.extent(*index);
                    repair.inconsistent.extend(extent);
                }
                Verdict::Inconsistent => {}
            }
        }
        if asked > 0 {
            repair.next_at = now + ANSWER_MAX;
        }
        for (index, _, (to, _)) in &questions {
            repair.missing.get_mut(index).expect("listed above").asked = Some((*to, now + ANSWER_MAX));
        }
        let identity = repair.recovered.identity.clone();
        if was != (repair.inconsistent.clone(), repair.behind) {
            let (pg, lost, behind) = (identity.pg, &repair.inconsistent, repair.behind);
            let extents = lost.iter().map(LostExtent::to_string).collect::<Vec<_>>().join(", ");
            tracing::error!(%pg, %replica, extents, behind, "no good copy of damaged log entries is in any log");
            self.meta.report_soon(now);
        }
        for (index, term, (to, osd)) in questions {
            self.send_repair(osd, &identity, to, RepairBody::Fetch { index, term });
        }
        if let Some(from) = void {
            self.cut_void(replica, from);
        }
        if let Some(from) = behind {
            // It is committed, and in no log any more: what it did is at home elsewhere, and is streamed (R12).
            self.engine.cut_back(replica, from);
        }
    }

    /// Entry `from` and what follows it is not committed, and no majority will ever hold it.
    fn cut_void(&mut self, replica: ReplicaId, from: Index) {
        let repair = self.repairs.by_replica.get_mut(&replica).expect("it was just judged");
        tracing::info!(%replica, %from, "a damaged tail of the log is nobody else's: it is cut");
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
        self.begin_doubt(recovered);
    }

    /// Every payload is back and durable, or not needed: the replica takes part again.
    pub(crate) fn replica_refilled(&mut self, replica: ReplicaId) {
        let Some(mut repair) = self.repairs.by_replica.remove(&replica) else { return };
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        assert!(repair.missing.is_empty(), "{replica} is whole and lacks payloads");
        repair.recovered.lost.clear();
        self.repairs.done += 1;
        tracing::info!(pg = %repair.recovered.identity.pg, %replica, "the log is repaired");
        let state = self.start_group(repair.recovered);
        self.pgs.get_mut(slot).state = state;
        let first = self.engine.first_index(replica);
        if let Some(group) = self.pgs.group(slot) {
            group.set_first_index(first);
        }
        self.pgs.touch(slot);
        self.meta.report_soon(self.now);
    }

    pub(crate) fn send_repair(&mut self, osd: OsdId, identity: &ReplicaIdentity, to: ReplicaId, body: RepairBody) {
        let (pg, from, lineage) = (identity.pg, identity.replica, identity.lineage);
        if let Some(link) = self.bus.link_to(osd) {
            self.bus.send(link, Message::Repair(RepairMsg { pg, from, to, lineage, body }));
        }
    }

    /// R4: only between members of one PG of one lineage, each at its own place.
    pub(crate) fn handle_repair(&mut self, link: LinkId, from: OsdId, msg: RepairMsg) {
        let Some(slot) = self.pgs.by_pg(msg.pg) else { return };
        let identity = &self.pgs.get(slot).identity;
        let ours = identity.replica == msg.to && identity.lineage == msg.lineage;
        let theirs = identity.members.iter().any(|m| (m.osd, m.replica) == (from, msg.from));
        if !ours || !theirs || from == self.config.osd {
            return;
        }
        match msg.body {
            RepairBody::Fetch { .. } if self.bus.queued_bytes(link) > ANSWERS_MAX => {}
            RepairBody::Fetch { index, term } => self.answer_fetch(slot, from, msg.from, (index, term)),
            RepairBody::Payload { index, start, crcs, payload, .. } => {
                let crcs = Crcs { start, values: crcs };
                let lost = Lost { index, term: types::Term(0), len_bytes: payload.len() as u32, crcs };
                if !lost.is(&payload) {
                    tracing::warn!(%from, "closing the connection of a peer that sent bad bytes");
                    return self.bus.disconnect(link, "a payload for a repair fails its checksum");
                }
                self.take_payload(msg.to, msg.from, index, payload);
            }
            RepairBody::Doubt { index, term } => self.answer_doubt(slot, from, msg.from, (term, index)),
            RepairBody::Standing { index, term, current } => self.take_standing(link, &msg, current, (term, index)),
            RepairBody::Lack { .. } if self.doubts.is_asking(msg.to) => self.take_unsure(msg.to, msg.from),
            RepairBody::Lack { index, why, .. } => self.take_lack(msg.to, msg.from, index, why),
        }
    }

    fn answer_fetch(&mut self, slot: usize, from: OsdId, asker: ReplicaId, (index, term): (Index, types::Term)) {
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
        self.send_repair(from, &identity, asker, body);
    }

    /// A peer's payload: taken when it is what the replica's own record says.
    fn take_payload(&mut self, replica: ReplicaId, from: ReplicaId, index: Index, payload: IoBuf) {
        let now = self.now;
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if missing.asked.take_if(|(asked, _)| *asked == from).is_none() {
            return;
        }
        if !self.engine.can_refill() {
            return; // it is asked for again
        }
        if !self.engine.refill(replica, index, missing.lost.term, payload) {
            tracing::error!(%replica, %from, %index, "a peer holds other bytes under the same index and term");
            return;
        }
        repair.missing.remove(&index);
        repair.next_at = now;
    }

    fn take_lack(&mut self, replica: ReplicaId, from: ReplicaId, index: Index, why: Lack) {
        let now = self.now;
        let Some(repair) = self.repairs.by_replica.get_mut(&replica) else { return };
        let Some(missing) = repair.missing.get_mut(&index) else { return };
        if missing.asked.is_none_or(|(asked, _)| asked != from) {
            return;
        }
        if why != Lack::Unsure {
            missing.said.insert(from, why);
            missing.asked = None;
            repair.next_at = now;
        }
    }
}

#[cfg(test)]
mod tests;
