//! Performs the actions of a group, in the order in which the group gave them.

use crate::node::{GroupRead, Osd, ReadOwner, Touch};
use engine::{ReadData, ReadError};
use group::Action;
use types::planted::{Bug, on};
use types::{ChunkKey, Errno, GenerationId, Index, OsdId, ReplicaId, SectorRange};
use wire::{Extent, Message, RaftKind, ReplyBody};

impl Osd {
    /// Performs and empties `actions` of the group in `slot`.
    pub(crate) fn perform(&mut self, slot: usize, actions: &mut Vec<Action>) {
        if actions.is_empty() {
            return;
        }
        let replica = self.pgs.get(slot).identity.replica;
        for action in actions.drain(..) {
            match action {
                Action::Send { to, message } => self.send_peer(slot, to, message),
                Action::Persist(persist) => {
                    self.stats.traced.appended(self.pgs.get(slot).identity.pg, &persist, self.now);
                    self.engine.append(persist);
                }
                Action::Apply { index, effect, .. } => {
                    self.stats.traced.applied(replica, index, self.now);
                    self.engine.apply(replica, index, effect);
                    self.recovery.streams.applied(replica, &effect);
                    self.tell_digests(replica, index);
                }
                Action::Tree { index, tree, changes, .. } => {
                    self.engine.set_tree(replica, index, tree, &changes);
                    self.recover(|r, here| r.streams.tree_changed(here, replica, &changes));
                    self.tell_digests(replica, index);
                }
                Action::Filled { fill, ok } => self.filled(replica, fill, ok),
                Action::Snapshots(answer) => self.snapshots_answered(slot, answer),
                Action::Read { read, origin, chunk, range } => {
                    if let Some(op) = self.inflight.sampled(origin) {
                        self.stats.traced.read_begun(op, replica, read, self.now);
                    }
                    self.start_read(slot, read, chunk, range);
                }
                Action::Extents { read, chunk, range, since } => self.answer_extents(slot, read, (chunk, range), since),
                Action::Reply { origin, reply } => self.reply(origin, reply),
                Action::Attached { order, result } => self.attached(slot, order, result),
                Action::BadPeer { osd, reason } => self.bad_peer(osd, &reason),
                Action::BadOrigin { origin, reason } => self.bad_origin(origin, &reason),
                // Meta learns of a leader when it serves: otherwise the PG would be reported as down until
                // the next heartbeat.
                Action::BecameLeader => self.log_leadership(slot, "elected"),
                Action::Serves => {
                    self.log_leadership(slot, "serving");
                    self.meta.report_soon(self.now);
                }
                Action::LostLeadership => {
                    self.log_leadership(slot, "no longer the leader");
                    self.meta.report_soon(self.now);
                }
                Action::MembersChanged => self.members_changed(slot),
                Action::Yielded { to, volume } => {
                    let pg = self.pgs.get(slot).identity.pg;
                    tracing::warn!(%pg, %volume, %to,
                        "transferring the leadership of a PG: a client cannot reach this OSD");
                }
                Action::NeedsStream { to } => {
                    tracing::debug!(replica = replica.0, %to, "the log is trimmed past the position of a follower");
                    self.recovery.streams.want(self.now, self.pgs.get(slot).identity.pg, to);
                }
                // A violation stops one PG, never the OSD (R5).
                Action::Quarantined(reason) => return self.fail_replica(replica, reason),
            }
        }
    }

    fn log_leadership(&mut self, slot: usize, what: &'static str) {
        let slot = self.pgs.get(slot);
        let term = slot.group().map_or(0, |group| group.term().0);
        tracing::debug!(pg = %slot.identity.pg, term, "{what}");
    }

    pub(crate) fn send_peer(&mut self, slot: usize, to: OsdId, mut message: Message) {
        let Some(link) = self.bus.link_to(to) else { return };
        if let Message::Raft(raft) = &mut message
            && raft.kind == RaftKind::Append
        {
            let replica = self.pgs.get(slot).identity.replica;
            for entry in &mut raft.entries {
                if group::descriptor::payload_len(&entry.descriptor) == 0 {
                    continue;
                }
                let Some((payload, crcs)) = self.engine.payload(replica, entry.index, entry.term) else {
                    self.unreadable(slot, to);
                    return;
                };
                entry.payload = payload;
                entry.crcs = crcs;
            }
        }
        self.bus.send(link, message);
    }

    /// Handles an unreadable payload (design §3.4): the message is dropped, and raft learns that the peer was not reached.
    fn unreadable(&mut self, slot: usize, to: OsdId) {
        if let Some(group) = self.pgs.group(slot) {
            group.handle_unreadable(self.now, to);
            self.pgs.touch(slot);
        }
    }

    pub(crate) fn start_read(&mut self, slot: usize, read: u64, chunk: ChunkKey, range: SectorRange) {
        let replica = self.pgs.get(slot).identity.replica;
        let owner = ReadOwner::Group(GroupRead { replica, slot, read });
        self.read_for(owner, replica, chunk, range);
    }

    fn tell_digests(&mut self, replica: ReplicaId, index: Index) {
        if !self.recovery.digests.none_waits() {
            self.recover(|r, here| r.digests.handle_applied(here, replica, index));
        }
    }

    /// Starts a read of the engine; [`Osd::read_done`] gives the result to the owner.
    pub(crate) fn read_for(&mut self, owner: ReadOwner, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let is_base = matches!(owner, ReadOwner::Recovery(recovery::Read::Base(_) | recovery::Read::BaseBlock(_)));
        let token = self.reads.insert(owner) as u64;
        let read = if is_base { engine::Engine::read_base } else { engine::Engine::read };
        read(&mut self.engine, token, replica, chunk, range, &mut self.turn.engine_events);
    }

    pub(crate) fn read_done(&mut self, token: u64, result: Result<ReadData, ReadError>) {
        // A poisoned store has forgotten its reads.
        match self.reads.try_remove(token as usize) {
            Some(ReadOwner::Group(read)) => self.group_read_done(read, result),
            Some(ReadOwner::Tool) => self.tools.reads.push(result),
            Some(ReadOwner::Recovery(read)) => {
                self.recover(|r, here| r.handle_read(here, read, result));
            }
            Some(ReadOwner::Ended) | None => {}
        }
    }

    fn group_read_done(&mut self, read: GroupRead, result: Result<ReadData, ReadError>) {
        // The slot may hold another replica by now.
        if self.pgs.by_replica(read.replica) != Some(read.slot) {
            return;
        }
        if let Err(ReadError::BadBlocks { chunk, range, .. }) = result {
            let held = recovery::HeldRead { replica: read.replica, read: read.read, chunk, range };
            return self.recover(|r, here| r.blocks.hold_read(here, held));
        }
        self.stats.traced.read_done(read.replica, read.read, self.now);
        let result = match result {
            Ok(ReadData::Zeros) => Ok(ReplyBody::Data { crcs: types::CrcList::new(), payload: types::IoBuf::EMPTY }),
            Ok(ReadData::Bytes { crcs, payload }) => Ok(ReplyBody::Data { crcs, payload }),
            Err(error) => {
                tracing::error!(replica = read.replica.0, %error, "read failed");
                Err(Errno::Damaged)
            }
        };
        self.with_slot(read.slot, Touch::IfWanted, |group, now, actions| {
            group.handle_read_done(now, read.read, result, actions);
        });
    }

    /// The reads of an ended group of this replica lose their owner.
    pub(crate) fn detach_reads(&mut self, replica: ReplicaId) {
        let is_its = |owner: &ReadOwner| matches!(owner, ReadOwner::Group(read) if read.replica == replica);
        for (_, owner) in self.reads.iter_mut().filter(|(_, owner)| is_its(owner)) {
            *owner = ReadOwner::Ended;
        }
        self.recovery.blocks.detach(replica);
    }

    fn answer_extents(
        &mut self,
        slot: usize,
        read: u64,
        (chunk, range): (ChunkKey, SectorRange),
        since: Option<GenerationId>,
    ) {
        let replica = self.pgs.get(slot).identity.replica;
        let runs = match since {
            None => self.engine.extents(replica, chunk, range),
            Some(since) => self.engine.changed(replica, chunk, since, range),
        };
        let body = ReplyBody::Extents(runs.into_iter().map(|(sectors, data)| Extent { sectors, data }).collect());
        let mut actions = Vec::new();
        if let Some(group) = self.pgs.group(slot) {
            group.handle_read_done(self.now, read, Ok(body), &mut actions);
            self.pgs.touch(slot);
        }
        self.perform(slot, &mut actions);
    }

    pub(crate) fn bad_peer(&mut self, osd: OsdId, reason: &str) {
        tracing::warn!(%osd, reason, "closing the connection of a peer that sent bad bytes");
        if let Some(link) = self.bus.link_to(osd) {
            self.bus.disconnect(link, reason);
        }
    }

    /// Updates a group after the engine has freed payloads: it must not promise them any more.
    pub(crate) fn log_freed(&mut self, replica: ReplicaId) {
        let Some(key) = self.pgs.by_replica(replica) else { return };
        let first = self.engine.first_index(replica);
        if let Some(group) = self.pgs.group_or_paused(key) {
            group.set_first_index(first);
        }
    }

    /// Takes over the members that a step, or a new group, has brought.
    pub(crate) fn members_changed(&mut self, slot: usize) {
        self.pgs.refresh_members(slot);
        self.recovery.blocks.ask_again(self.pgs.get(slot).identity.replica);
        let osds: Vec<OsdId> = self.pgs.get(slot).others().map(|m| m.osd).collect();
        osds.into_iter().for_each(|osd| self.want_peer(osd));
        self.tell_log_share(slot);
        self.meta.report_soon(self.now);
    }

    /// Handles a poisoned store (R15): the OSD acknowledges no request any more, reports to meta, and closes its connections.
    pub(crate) fn poisoned(&mut self, reason: String) {
        tracing::error!(
            reason,
            "the store has failed: this OSD stops serving until an administrator has checked its device"
        );
        self.meta.poisoned(self.now, reason.clone());
        self.stop_serving(reason);
    }

    /// Ends service: from now on this OSD neither votes nor acknowledges nor answers, and its connections are closed.
    pub(crate) fn stop_serving(&mut self, reason: String) {
        self.pgs.clear();
        self.reads.clear();
        self.recover(|r, here| r.clear(here, &reason));
        self.bus.disconnect_all(&reason);
        self.service.waiting = None;
        self.phase = crate::node::Phase::Stopped(reason);
    }

    /// Tells the groups of the fill level of the log and the device.
    pub(crate) fn apply_pressure(&mut self) {
        if self.phase != crate::node::Phase::Running {
            return;
        }
        let space = self.engine.space();
        let short = self.space.observe(self.now, space.available_aus, space.releasing);
        self.engine.want_space(short);
        self.look_at_fullness();
        let mut now = (space.refused, self.engine.pressure().max() >= 1.0);
        if on(Bug::LeaderlessStopsOsd) {
            now.1 |= self.pgs.keys().into_iter().any(|key| self.pgs.group(key).is_some_and(|g| g.leader().is_none()));
        }
        if now == self.space.fullness.told {
            return;
        }
        self.space.fullness.told = now;
        for key in self.pgs.keys() {
            if let Some(group) = self.pgs.group(key) {
                group.set_pressure(now.0, now.1);
                self.pgs.touch(key);
            }
        }
    }
}
