//! Adapter between the loop and the crate `recovery`: facts, messages and results go in, actions are carried out.
//!
//! Input: replicas whose log lacks payloads or has begun again, bad blocks, reads that met them, followers behind the log, and messages of
//! peers. Output: messages, and payloads, blocks and contents for the engine.
//!
//! Invariant: a replica under payload repair has no group before all its payloads are durable. A peer's message counts only
//! between members of one PG, each at its own place (R4).

use crate::node::{Osd, ReadOwner, Touch};
use crate::pgs::{Pgs, Slot, State};
use bus::{Bus, LinkId};
use engine::Engine;
use group::Group;
use group::descriptor::Command;
use group::pairs::Pairs;
use recovery::{
    ANY_REPLICA, Action, BlockKey, Follow, Host, Lead, Named, Part, PayloadRepairs, Recovery, Staged, answer_fetch,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::control::{LostExtent, PgReport};
use types::map::Member;
use types::store::{ChunkDelta, DecisionState, Entry, Failure, Recovered, ReplicaIdentity};
use types::tree::Tree;
use types::{BlockPlace, ChunkKey, Errno, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Term, Time, VolumeChunk};
use wire::{Lack, MendBody, MendMsg, Message, RepairBody, RepairMsg, StreamAbort, StreamBody, StreamMsg};

/// Bytes that wait on a connection, from which queries of that peer are dropped: it will ask again.
const ANSWERS_MAX: usize = 4 << 20;
/// Log pressure from which streams are slowed down.
const PRESSURE_SLOW: f32 = 0.9;

/// The OSD at this moment, as `recovery` sees it.
pub(crate) struct Here<'a> {
    pub(crate) now: Time,
    osd: OsdId,
    pub(crate) pgs: &'a mut Pgs,
    bus: &'a Bus,
    pub(crate) engine: &'a mut Engine,
    pairs: &'a Pairs,
    fill_decision_max: usize,
    pub(crate) actions: Vec<Action>,
}

impl Here<'_> {
    fn slot(&self, replica: ReplicaId) -> Option<&Slot> {
        Some(self.pgs.get(self.pgs.by_replica(replica)?))
    }

    fn group(&self, replica: ReplicaId) -> Option<&Group> {
        self.slot(replica)?.group()
    }
}

impl Host for Here<'_> {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

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

    fn part(&self, replica: ReplicaId) -> Option<Part> {
        let slot = self.slot(replica)?;
        let others = slot.others().filter(|m| m.osd != self.osd).collect();
        let (pg, members) = (slot.identity.pg, slot.members.clone());
        Some(Part { pg, members, others, runs: slot.group().is_some() })
    }

    fn needs_block(&self, (replica, chunk, block): BlockKey) -> bool {
        self.engine.needs_mend(replica, chunk, block)
    }

    fn delays_destage(&self, (replica, chunk, block): BlockKey) -> bool {
        self.engine.delays_destage(replica, chunk, block)
    }

    fn reads_as_of(&self, (replica, chunk, block): BlockKey, count: u16) -> Option<Index> {
        self.engine.reads_as_of(replica, chunk, SectorRange::of_blocks(block, count))
    }

    fn hash_of(&self, (replica, chunk, block): BlockKey) -> Option<u32> {
        self.engine.home_hash(replica, chunk, block)
    }

    fn over_older(&self, (replica, chunk, block): BlockKey, older: &IoBuf) -> Option<IoBuf> {
        self.engine.over_older(replica, chunk, block, older)
    }

    fn is_reading(&self, replica: ReplicaId, read: u64) -> bool {
        self.group(replica).is_some_and(|group| group.is_reading(read))
    }

    fn is_log_full(&self) -> bool {
        self.engine.pressure().log >= 1.0
    }

    fn is_pressed(&self) -> bool {
        self.engine.pressure().max() >= PRESSURE_SLOW
    }

    fn log_wait(&self) -> Duration {
        self.engine.log_wait()
    }

    fn pair_with(&self, pg: PgId, osd: OsdId) -> Option<(ReplicaId, ReplicaId)> {
        let group = self.pgs.get(self.pgs.by_pg(pg)?).group().filter(|group| group.is_whole())?;
        Some((group.identity().replica, group.peer_on(osd)?))
    }

    fn lead(&self, replica: ReplicaId, follower: ReplicaId) -> Option<Lead> {
        let slot = self.slot(replica).filter(|slot| slot.members.osd_of(follower).is_some())?;
        let group = slot.group().filter(|group| group.is_leader() && group.is_whole())?;
        let first = self.engine.first_index(replica);
        Some(Lead {
            term: group.term(),
            applied: group.applied(),
            first: first.max(group.first_index()),
            is_behind: group.is_behind_log(follower, first),
            matched: group.matched(follower),
            needs_follower: group.stands_still_without(self.now, follower),
            may_fill: group.may_fill(self.now, follower, Some(Index(0))),
            has_contents: group.has_contents(self.now, follower),
            room: group.fill_room(follower),
            pace: group.pace(),
            has_bad_blocks: self.engine.has_bad_blocks(replica),
        })
    }

    fn decision(&self, replica: ReplicaId) -> Option<DecisionState> {
        self.group(replica).map(Group::decision)
    }

    fn fill_state(&mut self, replica: ReplicaId, follower: ReplicaId, end: Option<Index>) -> Option<DecisionState> {
        let group = self.pgs.group(self.pgs.by_replica(replica)?)?;
        group.fill_state(self.now, follower, end).filter(|state| state.bytes.len() <= self.fill_decision_max)
    }

    fn chunks(&self, replica: ReplicaId) -> Vec<ChunkKey> {
        self.engine.chunks(replica)
    }

    fn delta(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkDelta {
        self.engine.delta(replica, chunk)
    }

    fn tree(&self, replica: ReplicaId) -> Option<Arc<Tree>> {
        self.engine.tree(replica)
    }

    fn has_tree_since(&self, replica: ReplicaId, index: Index) -> bool {
        self.engine.has_tree_since(replica, index)
    }

    fn is_open(&self, (replica, chunk, block): BlockKey, count: u16) -> bool {
        self.engine.is_open(replica, chunk, SectorRange::of_blocks(block, count))
    }

    fn owner_of(&self, replica: ReplicaId, chunk: ChunkKey) -> ChunkKey {
        self.engine.owner_of(replica, chunk)
    }

    fn volume_chunk(&self, replica: ReplicaId, chunk: ChunkKey) -> VolumeChunk {
        self.engine.volume_chunk(replica, chunk)
    }

    fn place_of(&self, (replica, chunk, block): BlockKey) -> BlockPlace {
        self.engine.place_of(replica, chunk, block)
    }

    fn older_of(&self, replica: ReplicaId, chunk: ChunkKey) -> Vec<ChunkKey> {
        self.engine.older_of(replica, chunk)
    }

    fn shows_block(&self, chunk: ChunkKey, (replica, other, block): BlockKey) -> bool {
        self.engine.shows_block(replica, chunk, (other, block))
    }

    fn reads_looked_up_again(&self) -> u64 {
        self.engine.reads_looked_up_again()
    }

    fn follow(&self, replica: ReplicaId) -> Option<Follow> {
        let slot = self.slot(replica)?;
        let (group, is_paused) = match &slot.state {
            State::Running(group) => (group, false),
            State::Paused(group) => (group, true),
            _ => return None,
        };
        Some(Follow {
            pg: slot.identity.pg,
            term: group.term(),
            commit: group.durable_commit(),
            applied: group.applied(),
            end: group.last_index(),
            is_elected: group.is_elected(),
            leads: group.is_leader(),
            is_paused,
            fills_from: self.engine.fills_from(replica),
        })
    }

    fn base_for(&self, replica: ReplicaId) -> Option<ReplicaId> {
        self.engine.base_for(replica)
    }

    fn is_member(&self, replica: ReplicaId, peer: Member) -> bool {
        self.group(replica).is_some_and(|group| group.is_member_on(peer.osd, peer.replica))
    }

    fn can_start_from(&self, replica: ReplicaId, bytes: &[u8]) -> bool {
        self.group(replica).is_some_and(|group| group.can_start_from(bytes))
    }

    fn keeps(&self, replica: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.engine.keeps(replica, chunk, au)
    }

    fn keep(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.engine.keep(replica, base, chunk, au)
    }

    fn release(&mut self, replica: ReplicaId, base: ReplicaId, chunk: ChunkKey, au: u32) -> bool {
        self.engine.release(replica, base, chunk, au)
    }

    fn unkeep(&mut self, replica: ReplicaId, chunk: ChunkKey, au: u32) {
        self.engine.unkeep(replica, chunk, au);
    }

    fn stage(&mut self, token: u64, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, data: Staged) -> bool {
        self.engine.stage(token, replica, chunk, range, data)
    }

    fn stages_marks(&self, replica: ReplicaId, chunk: ChunkKey) -> bool {
        self.engine.stages_marks(replica, chunk)
    }

    fn stage_as_of(&mut self, replica: ReplicaId, decision: &[u8]) -> bool {
        self.engine.stage_as_of(replica, decision)
    }

    fn unstage(&mut self, replica: ReplicaId) {
        self.engine.unstage(replica);
    }
}

/// Returns the data of a write.
fn extent_of(entry: &Entry) -> Option<(Index, LostExtent)> {
    let (chunk, range) = Command::decode(&entry.descriptor).ok()?.payload()?;
    let offset_bytes = range.start * types::SECTOR as u32;
    Some((entry.index, LostExtent { chunk, offset_bytes, len_bytes: range.len_bytes() as u32 }))
}

impl Osd {
    /// Returns the replicas under payload repair, with the extents of which no member has a good copy.
    pub fn repairing(&self) -> Vec<(PgId, Vec<LostExtent>)> {
        self.recovery.payloads.iter().map(|(recovered, lost)| (recovered.identity.pg, lost.to_vec())).collect()
    }

    /// Returns (entries brought back, replicas repaired) since the start.
    pub fn repaired(&self) -> (u64, u64) {
        (self.engine.stats().refilled_entries, self.recovery.payloads.done)
    }

    /// Begins the repair of a replica that came back from the device with a log that lacks payloads.
    pub(crate) fn begin_repair(&mut self, recovered: Recovered) {
        let identity = recovered.identity.clone();
        let (pg, replica, lost) = (identity.pg, identity.replica, recovered.lost.len());
        tracing::warn!(%pg, replica = replica.0, lost, "payloads of log entries are damaged: fetching them from peers");
        let members = group::members_in(&recovered);
        let extents: BTreeMap<Index, LostExtent> = recovered.entries.iter().filter_map(extent_of).collect();
        self.recovery.payloads.begin(recovered, members.clone(), &extents, self.config.osd);
        self.pgs.insert(identity, members, State::Repairing);
    }

    /// Blocks of local replicas that cannot be read now: the PG, the chunk, the block's number in it, and whether
    /// no member of the PG can read it.
    pub fn bad_blocks(&self) -> Vec<(PgId, ChunkKey, u16, bool)> {
        let pg_of = |replica| self.pgs.by_replica(replica).map(|key| self.pgs.get(key).identity.pg);
        let bad = self.recovery.blocks.iter();
        bad.filter_map(|((r, chunk, block), named)| Some((pg_of(r)?, chunk, block, named == Named::Everywhere)))
            .collect()
    }

    /// Lets `recovery` take one step, and carries out its actions.
    pub(crate) fn recover(&mut self, step: impl FnOnce(&mut Recovery, &mut Here<'_>)) {
        let (now, osd) = (self.now, self.config.osd);
        let (pgs, engine) = (&mut self.pgs, &mut self.engine);
        let fill_decision_max = self.config.tuning.streams.fill_decision_max;
        let (bus, pairs, actions) = (&self.bus, &self.pairs, Vec::new());
        let mut here = Here { now, osd, pgs, bus, engine, pairs, fill_decision_max, actions };
        step(&mut self.recovery, &mut here);
        here.actions.into_iter().for_each(|action| self.perform_recovery(action));
    }

    fn perform_recovery(&mut self, action: Action) {
        match action {
            Action::Send { to, message } => self.send_to(to, message),
            Action::BadPeer { osd, reason } => self.bad_peer(osd, &reason),
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
            Action::Read { read, replica, chunk, range } => {
                self.read_for(ReadOwner::Recovery(read), replica, chunk, range);
            }
            Action::Mend { key, copy } => {
                let verdict = self.engine.mend(key.0, key.1, key.2, &copy);
                self.stats.metrics.blocks_mended.inc_by(u64::from(verdict.is_ok()));
                self.recover(|r, here| r.blocks.handle_mended(here, key, verdict));
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
            Action::SetPace { replica, pace } => {
                self.with_replica(replica, |group, _, _| group.set_pace(pace));
            }
            Action::NoteFilling { replica, follower } => {
                let group = self.pgs.by_replica(replica).and_then(|slot| self.pgs.group(slot));
                group.into_iter().for_each(|group| group.note_filling(self.now, follower));
            }
            Action::AnswerTool { id, answer } => self.tools.answers.push((id, answer.into())),
            Action::ProposeFill { replica, fill, chunk, parts } => self.propose_fill((replica, fill), chunk, parts),
            Action::Detach { replica, volume, head } => {
                self.with_replica(replica, |group, _, _| group.detach(volume, head));
            }
            Action::Install { replica } => self.engine.install(replica),
            Action::InstallAsOf(state) => {
                self.pause(state.replica);
                self.engine.install_as_of(state);
            }
            Action::Fill(state) => {
                self.pause(state.replica);
                self.engine.fill(state);
            }
        }
    }

    fn pause(&mut self, replica: ReplicaId) {
        self.pgs.pause(self.pgs.by_replica(replica).expect("its log is to begin again"));
    }

    pub(crate) fn with_replica(
        &mut self,
        replica: ReplicaId,
        f: impl FnOnce(&mut group::Group, Time, &mut Vec<group::Action>),
    ) {
        if let Some(slot) = self.pgs.by_replica(replica) {
            self.with_slot(slot, Touch::Always, f);
        }
    }

    /// Does one step of all recovery. The caller ensures that every effect that groups have applied is in the overlay.
    pub(crate) fn step_recovery(&mut self) {
        self.recover(|r, here| r.digests.step(here));
        if !self.recovery.flattens.is_idle() {
            self.recover(|r, here| r.flattens.step(here));
        }
        self.recover(|r, here| r.streams.lift_paces(here));
        self.recover(|r, here| r.streams.step(here));
        self.recover(|r, here| r.payloads.step(here));
        self.recover(|r, here| r.blocks.offer_copies(here));
        self.recover(|r, here| r.blocks.step(here));
    }

    /// Fails a replica that does not get its missing payloads. Its log before the first of them is its past.
    pub(crate) fn fail_without(&mut self, replica: ReplicaId, why: &str) {
        self.recover(|r, here| r.payloads.fail(here, replica, why));
    }

    /// Lets a replica take part again: every payload is back and durable.
    pub(crate) fn replica_refilled(&mut self, replica: ReplicaId) {
        let Some(recovered) = self.recovery.payloads.finish(replica) else { return };
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
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
            _ => self.recover(|r, here| r.payloads.handle_answer(here, from, msg)),
        }
    }

    pub(crate) fn handle_mend(&mut self, link: LinkId, from: OsdId, msg: MendMsg) {
        let is_query = matches!(msg.body, MendBody::Ask { .. });
        if is_query && self.bus.queued_bytes(link) > ANSWERS_MAX {
            return;
        }
        self.recover(|r, here| match is_query {
            true => r.blocks.handle_query(here, from, msg),
            false => r.blocks.handle_answer(here, from, msg),
        });
    }

    /// Counts the streams since the start: (brought a follower back, failed).
    pub fn streams_sent(&self) -> (u64, u64) {
        (self.recovery.streams.done, self.recovery.streams.failed)
    }

    /// Counts the streams that this OSD sends at this moment.
    pub fn streams_running(&self) -> usize {
        self.recovery.streams.running()
    }

    /// Sets the bytes a second that streams may read here; for tests and tools.
    pub fn set_stream_rate(&mut self, bytes_per_s: u64) {
        self.recovery.streams.set_rate(bytes_per_s);
    }

    pub(crate) fn handle_stream(&mut self, from: OsdId, msg: StreamMsg) {
        if let StreamBody::Accept { term, commit, .. }
        | StreamBody::Filling { term, commit }
        | StreamBody::Done { term, commit } = msg.body
        {
            // The follower's commit index counts whether or not this OSD sends the stream.
            self.with_pg(msg.pg, |group, now, actions| {
                // A failed replica may have sent it, before its successor was made on the same OSD.
                if group.peer_on(from) == Some(msg.from) {
                    group.handle_follower_stands(now, from, term, commit, actions);
                }
            });
        }
        self.recover(|r, here| r.streams.handle_message(here, from, msg));
    }

    /// Starts a new group for the replica: its log begins at another index, durably, and it counts from there on.
    pub(crate) fn log_begun(&mut self, recovered: Recovered) {
        let (replica, commit, fills) = (recovered.identity.replica, recovered.checkpoint.index, recovered.fills);
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        if !matches!(self.pgs.get(slot).state, State::Paused(_)) {
            return;
        }
        let state = self.start_group(recovered);
        self.pgs.set_state(slot, state);
        self.members_changed(slot);
        self.pgs.touch(slot);
        if !fills {
            return self.stream_installed(replica);
        }
        let Some(stands) = self.pgs.group(slot).map(|group| (group.term(), commit)) else { return };
        tracing::debug!(
            replica = replica.0,
            commit = stands.1.0,
            "the log has begun at an applied index of the leader"
        );
        self.recover(|r, here| r.streams.handle_begun(here, replica, stands));
    }

    /// Notes that the replica has all contents, durably.
    pub(crate) fn stream_installed(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let Some(group) = self.pgs.group(slot) else { return };
        group.contents_installed();
        let (pg, term, commit) = (group.identity().pg, group.term(), group.durable_commit());
        self.pgs.touch(slot);
        tracing::info!(%pg, replica = replica.0, commit = commit.0, "backfill of this replica completed");
        self.recover(|r, here| r.streams.handle_installed(here, replica, (term, commit)));
    }

    /// Resumes the old group: its log cannot begin there, or there is no space, or kept contents have changed.
    pub(crate) fn stream_refused(&mut self, replica: ReplicaId, reason: StreamAbort) {
        if let Some(slot) = self.pgs.by_replica(replica) {
            self.pgs.resume(slot);
            self.recover(|r, here| r.streams.handle_refused(here, replica, reason));
        }
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
    let (pg, replica) = (identity.pg, identity.replica);
    let bare = PgReport { pg, replica, repairing: true, ..PgReport::default() };
    let Some((recovered, lost)) = payloads.get(replica) else { return bare };
    let (term, applied) = (recovered.hard_state.term, recovered.checkpoint.index);
    PgReport { term, applied, lost: lost.to_vec(), ..bare }
}
