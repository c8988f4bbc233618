//! Adapter between the loop and the crate `recovery`: facts and results go in, actions are carried out.
//!
//! Input: replicas whose log lacks payloads, bad blocks, reads that met them, and messages of peers. Output: messages, and
//! payloads and copies for the engine.
//!
//! Invariant: a replica under payload repair has no group before all its payloads are durable. A peer's message counts only
//! between members of one PG, each at its own place (R4).

use crate::node::{Osd, ReadOwner};
use crate::pgs::{Pgs, Slot, State};
use bus::{Bus, LinkId};
use engine::{Engine, ReadData, ReadError};
use group::descriptor::Command;
use group::pairs::Pairs;
use recovery::{ANY_REPLICA, Action, BlockKey, BlockRepairs, Named, Part, PayloadRepairs, View, answer_fetch};
use std::collections::BTreeMap;
use types::control::{LostExtent, PgReport};
use types::store::{Entry, Failure, Recovered, ReplicaIdentity};
use types::{ChunkKey, Errno, Index, OsdId, PgId, ReplicaId, Term, Time};
use wire::{Lack, MendBody, MendMsg, Message, RepairBody, RepairMsg};

/// Bytes that wait on a connection, from which queries of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;

/// All repairs of one OSD.
#[derive(Default)]
pub(crate) struct Repairs {
    pub payloads: PayloadRepairs,
    pub blocks: BlockRepairs,
}

impl Repairs {
    pub fn next_deadline(&self) -> Time {
        self.payloads.next_deadline().min(self.blocks.next_deadline())
    }

    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.payloads.clear();
        self.blocks.clear();
    }
}

/// Facts of the OSD at this moment.
pub(crate) struct Facts<'a> {
    now: Time,
    osd: OsdId,
    pgs: &'a Pgs,
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

    fn part(&self, replica: ReplicaId) -> Option<Part<'_>> {
        let slot = self.pgs.get(self.pgs.by_replica(replica)?);
        let others = slot.others().filter(|m| m.osd != self.osd).collect();
        let runs = matches!(slot.state, State::Running(_));
        Some(Part { identity: &slot.identity, members: &slot.members, others, runs })
    }

    fn needs_block(&self, (replica, chunk, block): BlockKey) -> bool {
        self.engine.needs_mend(replica, chunk, block)
    }

    fn delays_destage(&self, (replica, chunk, block): BlockKey) -> bool {
        self.engine.delays_destage(replica, chunk, block)
    }

    fn reads_as_of(&self, replica: ReplicaId) -> Option<Index> {
        self.engine.reads_as_of(replica)
    }

    fn is_reading(&self, replica: ReplicaId, read: u64) -> bool {
        let slot = self.pgs.by_replica(replica).map(|slot| self.pgs.get(slot));
        matches!(slot.map(|slot| &slot.state), Some(State::Running(group)) if group.is_reading(read))
    }

    fn is_log_full(&self) -> bool {
        let pressure = self.engine.pressure();
        pressure.log.max(pressure.overlay) >= 1.0
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
        self.repairs.payloads.iter().map(|(recovered, lost)| (recovered.identity.pg, lost.to_vec())).collect()
    }

    /// Returns (entries brought back, replicas repaired) since the start.
    pub fn repaired(&self) -> (u64, u64) {
        (self.engine.stats().refilled_entries, self.repairs.payloads.done)
    }

    /// Begins the repair of a replica that came back from the device with a log that lacks payloads.
    pub(crate) fn begin_repair(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let (pg, replica, lost) = (identity.pg, identity.replica, recovered.lost.len());
        tracing::warn!(%pg, replica = replica.0, lost, "payloads of log entries are damaged: fetching them from peers");
        let members = group::members_in(&recovered);
        let extents: BTreeMap<Index, LostExtent> = recovered.entries.iter().filter_map(extent_of).collect();
        self.repairs.payloads.begin(recovered, members.clone(), &extents, self.config.osd);
        self.pgs.insert(identity, members, State::Repairing);
    }

    /// Blocks of local replicas that cannot be read now: the PG, the chunk, the block's number in it, and whether
    /// no member of the PG can read it.
    pub fn bad_blocks(&self) -> Vec<(PgId, ChunkKey, u16, bool)> {
        let pg_of = |replica| self.pgs.by_replica(replica).map(|key| self.pgs.get(key).identity.pg);
        let bad = self.repairs.blocks.iter();
        bad.filter_map(|((r, chunk, block), named)| Some((pg_of(r)?, chunk, block, named == Named::Everywhere)))
            .collect()
    }

    /// Lets `recovery` take one step, and carries out its actions.
    pub(crate) fn recover(&mut self, step: impl FnOnce(&mut Repairs, &Facts<'_>, &mut Vec<Action>)) {
        let (now, osd) = (self.now, self.config.osd);
        let facts = Facts { now, osd, pgs: &self.pgs, bus: &self.bus, engine: &self.engine, pairs: &self.pairs };
        let mut actions = Vec::new();
        step(&mut self.repairs, &facts, &mut actions);
        actions.into_iter().for_each(|action| self.perform_recovery(action));
    }

    fn perform_recovery(&mut self, action: Action) {
        match action {
            Action::Send { to, message } => self.send_to(to, message),
            Action::BadPeer { osd } => self.bad_peer(osd, "a payload for a repair fails its checksum"),
            Action::Refill { replica, index, term, payload } => {
                let taken = self.engine.refill(replica, index, term, payload);
                assert!(
                    taken || self.engine.failure(replica).is_some(),
                    "{replica} lacks the payload of entry {index}"
                );
            }
            Action::FailBefore { replica, from, reason } => {
                self.engine.fail_before(replica, from, reason.clone());
                self.replica_failed(replica, Failure { reason, is_past: true });
            }
            Action::Fail { replica, reason } => self.fail_replica(replica, reason),
            Action::Read { key, replica, chunk, range } => {
                self.read_for(ReadOwner::Block(key), replica, chunk, range);
            }
            Action::Mend { key, copy } => {
                let verdict = self.engine.mend(key.0, key.1, key.2, &copy);
                self.stats.metrics.blocks_mended.inc_by(u64::from(verdict.is_ok()));
                self.recover(|repairs, facts, actions| repairs.blocks.handle_mended(facts, key, verdict, actions));
            }
            Action::ForgetBlock((replica, chunk, block)) => self.engine.forget_bad(replica, chunk, block),
            Action::StartRead(held) => {
                if let Some(slot) = self.pgs.by_replica(held.replica) {
                    self.start_read(slot, held.read, held.chunk, held.range);
                }
            }
            Action::FailRead { replica, read } => self.with_replica(replica, |group, now, actions| {
                group.handle_read_done(now, read, Err(Errno::Damaged), actions);
            }),
            Action::HandOver { replica, avoid } => {
                let to = |slot| self.successor_among(slot, |osd| !avoid.contains(&osd));
                let Some(to) = self.pgs.by_replica(replica).and_then(to) else { return };
                self.with_replica(replica, |group, now, actions| {
                    if group.may_hand_over() {
                        group.handle_transfer(now, to, actions);
                    }
                });
            }
            Action::Report => self.meta.report_soon(self.now),
        }
    }

    fn with_replica(&mut self, replica: ReplicaId, f: impl FnOnce(&mut group::Group, Time, &mut Vec<group::Action>)) {
        if let Some(slot) = self.pgs.by_replica(replica) {
            self.with_slot(slot, true, f);
        }
    }

    /// Does one step of all repairs that are due.
    pub(crate) fn step_repairs(&mut self) {
        self.recover(|repairs, facts, actions| repairs.payloads.step(facts, actions));
        self.recover(|repairs, _, actions| repairs.blocks.offer_copies(actions));
        self.recover(|repairs, facts, actions| repairs.blocks.step(facts, actions));
    }

    /// Fails a replica that does not get its missing payloads. Its log before the first of them is its past.
    pub(crate) fn fail_without(&mut self, replica: ReplicaId, why: &str) {
        self.recover(|repairs, _, actions| repairs.payloads.fail(replica, why, actions));
    }

    /// Lets a replica take part again: every payload is back and durable.
    pub(crate) fn replica_refilled(&mut self, replica: ReplicaId) {
        let Some(recovered) = self.repairs.payloads.finish(replica) else { return };
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
        match msg.body {
            RepairBody::Fetch { .. } if self.bus.queued_bytes(link) > ANSWERS_MAX => {}
            RepairBody::Fetch { index, term } => {
                if let Some(body) = self.answer_for(from, &msg, (index, term)) {
                    self.send_to(from, Message::Repair(RepairMsg { from: msg.to, to: msg.from, body, ..msg }));
                }
            }
            _ => self.recover(|repairs, facts, actions| repairs.payloads.handle_answer(facts, from, msg, actions)),
        }
    }

    pub(crate) fn handle_mend(&mut self, from: OsdId, msg: MendMsg) {
        self.recover(|repairs, facts, actions| match msg.body {
            MendBody::Ask => repairs.blocks.handle_query(facts, from, msg, actions),
            _ => repairs.blocks.handle_answer(facts, from, msg, actions),
        });
    }

    pub(crate) fn mend_read_done(&mut self, key: usize, result: Result<ReadData, ReadError>) {
        self.recover(|repairs, facts, actions| repairs.blocks.handle_read(facts, key, result, actions));
    }

    /// Returns the answer to a query. A replica that has failed gives what it can read, beside the one that replaces it.
    fn answer_for(&self, from: OsdId, msg: &RepairMsg, (index, term): (Index, Term)) -> Option<RepairBody> {
        let is_any = msg.to == ANY_REPLICA;
        let slot = if is_any { self.pgs.by_pg(msg.pg) } else { self.pgs.by_replica(msg.to) };
        let is_its = |slot: &&Slot| {
            let Slot { identity, members, .. } = slot;
            let asks = match members.osd_of(msg.from) {
                Some(osd) => osd == from,
                // A new member may ask one that does not know it yet.
                None => !is_any && members.admits(msg.from),
            };
            asks && from != self.config.osd && identity.pg == msg.pg
        };
        let Some(held) = slot.map(|slot| self.pgs.get(slot)).filter(is_its) else {
            let is_gone = is_any || self.engine.is_gone(msg.to);
            return is_gone.then_some(RepairBody::Lack { index, term, why: Lack::Gone });
        };
        let is_sound = matches!(held.state, State::Running(_) | State::Paused(_) | State::Repairing);
        let applied = match &held.state {
            State::Running(group) => Some(group.applied()),
            _ => None,
        };
        let holding = self.engine.holding(held.identity.replica, index, term);
        Some(answer_fetch((index, term), holding, is_sound, applied))
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
