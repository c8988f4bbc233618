//! Adapter between the loop and the crate `recovery`: facts and results go in, actions are carried out.
//!
//! Input: replicas whose log lacks payloads, and messages of peers. Output: messages, and payloads for the engine.
//!
//! Invariant: a replica under payload repair has no group before all its payloads are durable. A peer's message counts only
//! between members of one PG of one lineage, each at its own place (R4).

use crate::node::Osd;
use crate::pgs::State;
use bus::{Bus, LinkId};
use engine::Engine;
use group::descriptor::Command;
use group::pairs::Pairs;
use recovery::{Action, PayloadRepairs, View, answer_fetch};
use std::collections::BTreeMap;
use types::control::{LostExtent, PgReport};
use types::store::{Entry, Failure, Recovered, ReplicaIdentity};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time};
use wire::{Message, RepairBody, RepairMsg};

/// Bytes that wait on a connection, from which queries of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;

/// What the OSD knows at this moment.
struct Facts<'a> {
    now: Time,
    bus: &'a Bus,
    engine: &'a Engine,
    pairs: &'a Pairs,
}

impl View for Facts<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn reaches(&self, osd: OsdId) -> bool {
        self.bus.link_to(osd).is_some()
    }

    fn is_led(&self, pg: PgId) -> bool {
        self.pairs.has_heard_any_leader(self.now, pg)
    }

    fn can_refill(&self) -> bool {
        self.engine.can_refill()
    }
}

/// Returns the data of a write.
fn extent_of(entry: &Entry) -> Option<(Index, LostExtent)> {
    let Ok(Command::Write { chunk, range, .. }) = Command::decode(&entry.descriptor) else { return None };
    let offset_bytes = range.start * types::SECTOR as u32;
    Some((entry.index, LostExtent { chunk, offset_bytes, len_bytes: range.len_bytes() as u32 }))
}

impl Osd {
    /// Returns the replicas under payload repair, with the extents of which no member has a good copy.
    pub fn repairing(&self) -> Vec<(PgId, Vec<LostExtent>)> {
        self.payloads.iter().map(|(recovered, lost)| (recovered.identity.pg, lost.to_vec())).collect()
    }

    /// Returns (entries brought back, replicas repaired) since the start.
    pub fn repaired(&self) -> (u64, u64) {
        (self.engine.stats().refilled_entries, self.payloads.done)
    }

    /// Begins the repair of a replica that came back from the device with a log that lacks payloads.
    pub(crate) fn begin_repair(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let (pg, replica, lost) = (identity.pg, identity.replica, recovered.lost.len());
        tracing::warn!(%pg, replica = replica.0, lost, "payloads of log entries are damaged: fetching them from peers");
        let members = group::members_in(&recovered);
        let extents: BTreeMap<Index, LostExtent> = recovered.entries.iter().filter_map(extent_of).collect();
        self.payloads.begin(recovered, members.clone(), &extents, self.config.osd);
        self.pgs.insert(identity, members, State::Repairing);
    }

    /// Lets `recovery` do its part, and carries out its actions.
    fn recover(&mut self, step: impl FnOnce(&mut PayloadRepairs, &Facts<'_>, &mut Vec<Action>)) {
        let facts = Facts { now: self.now, bus: &self.bus, engine: &self.engine, pairs: &self.pairs };
        let mut actions = Vec::new();
        step(&mut self.payloads, &facts, &mut actions);
        actions.into_iter().for_each(|action| self.perform_recovery(action));
    }

    fn perform_recovery(&mut self, action: Action) {
        match action {
            Action::Send { to, message } => self.send_to(to, message),
            Action::BadPeer { osd } => self.bad_peer(osd, "a payload for a repair fails its checksum"),
            Action::Refill { replica, index, term, payload } => {
                let taken = self.engine.refill(replica, index, term, payload);
                assert!(taken || self.engine.failure(replica).is_some(), "{replica} lacks the payload of entry {index}");
            }
            Action::FailBefore { replica, from, reason } => {
                self.engine.fail_before(replica, from, reason.clone());
                self.replica_failed(replica, Failure { reason, is_past: true });
            }
            Action::Report => self.meta.report_soon(self.now),
        }
    }

    pub(crate) fn step_repairs(&mut self) {
        if self.payloads.next_deadline() <= self.now {
            self.recover(|payloads, facts, actions| payloads.step(facts, actions));
        }
    }

    /// Fails a replica that does not get its missing payloads. Its log before the first of them is its past.
    pub(crate) fn fail_without(&mut self, replica: ReplicaId, why: &str) {
        self.recover(|payloads, _, actions| payloads.fail(replica, why, actions));
    }

    /// Lets a replica take part again: every payload is back and durable.
    pub(crate) fn replica_refilled(&mut self, replica: ReplicaId) {
        let Some(recovered) = self.payloads.finish(replica) else { return };
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        let first = self.engine.first_index(replica);
        if let Some(group) = self.pgs.group(slot) {
            group.set_first_index(first);
        }
        self.pgs.touch(slot);
        self.meta.report_soon(self.now);
    }

    fn send_to(&mut self, osd: OsdId, message: Message) {
        if let Some(link) = self.bus.link_to(osd) {
            self.bus.send(link, message);
        }
    }

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
            RepairBody::Fetch { index, term } => {
                let body = self.answer_for(slot, (index, term));
                self.send_to(from, Message::Repair(RepairMsg { from: msg.to, to: msg.from, body, ..msg }));
            }
            _ => self.recover(|payloads, facts, actions| payloads.handle_answer(facts, from, msg, actions)),
        }
    }

    fn answer_for(&self, slot: usize, (index, term): (Index, Term)) -> RepairBody {
        let held = self.pgs.get(slot);
        let is_sound = matches!(held.state, State::Running(_) | State::Installing(_) | State::Repairing);
        let applied = match &held.state {
            State::Running(group) => Some(group.applied()),
            _ => None,
        };
        let holding = self.engine.holding(held.identity.replica, index, term);
        answer_fetch((index, term), holding, is_sound, applied)
    }
}

/// Returns the report of a replica under payload repair.
pub(crate) fn report_of_repair(payloads: &PayloadRepairs, identity: &ReplicaIdentity) -> PgReport {
    let repair = payloads.get(identity.replica);
    PgReport {
        pg: identity.pg,
        replica: identity.replica,
        term: repair.map_or(Term(0), |(recovered, _)| recovered.hard_state.term),
        applied: repair.map_or(Index(0), |(recovered, _)| recovered.checkpoint.index),
        end: None,
        quarantined: false,
        repairing: true,
        lost: repair.map_or(Vec::new(), |(_, lost)| lost.to_vec()),
        unread: Vec::new(),
        hears: None,
        leading: None,
    }
}
