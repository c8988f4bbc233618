//! The leader's OSD: opens a stream when raft finds a follower behind the log, reads, cuts, sends.

use super::StreamRead;
use super::plan::{self, Content};
use super::sender::{MESSAGE_COST, Phase, Sender};
use crate::node::{Osd, ReadOwner};
use crate::pgs::State;
use crate::tuning::StreamTuning;
use bus::LinkId;
use engine::{ReadData, ReadError};
use types::planted::{Bug, on};
use types::{Index, OsdId, PgId, SectorRange};
use wire::{StreamAbort, StreamBody, StreamMsg};

/// Log pressure from which streams are slowed down.
const PRESSURE_SLOW: f32 = 0.9;
/// Rounds at whose end the follower's log had no room for what they show: the next one is the last.
const SHORT_ROUNDS_MAX: u32 = 2;

impl Osd {
    /// Notes that raft has found the follower on `to` behind the log. Repeated while that lasts.
    pub(crate) fn needs_stream(&mut self, slot: usize, to: OsdId) {
        let pg = self.pgs.get(slot).identity.pg;
        if !self.streams.senders.iter().any(|s| s.pg == pg) {
            self.streams.waiting.insert((pg, to), self.now);
        }
    }

    /// Begins streams to waiting followers, up to the limit. PGs that cannot commit go first, then those with the
    /// least to send: so the number of PGs that a further failure would stop falls as fast as it can.
    pub(super) fn begin_streams(&mut self) {
        let now = self.now;
        let StreamTuning { asked_max, senders_max, .. } = self.streams.tuning;
        self.streams.waiting.retain(|_, asked| now < *asked + asked_max);
        while self.streams.senders.len() < senders_max {
            let Some((_, _, pg, to)) = self.most_wanted() else { return };
            self.streams.waiting.remove(&(pg, to));
            self.begin_stream(pg, to);
        }
    }

    /// Chooses the next stream: (the PG commits without it, chunks, PG, follower's OSD), the smallest first.
    fn most_wanted(&self) -> Option<(bool, usize, PgId, OsdId)> {
        let wanted = self.streams.waiting.keys().filter_map(|(pg, to)| {
            let rests = self.streams.resting.get(&(*pg, *to)).is_some_and(|(until, _)| self.now < *until);
            let busy = self.streams.senders.iter().any(|s| s.pg == *pg);
            let slot = self.pgs.get(self.pgs.by_pg(*pg).filter(|_| !rests && !busy)?);
            let State::Running(group) = &slot.state else { return None };
            let group = Some(group).filter(|group| group.is_whole())?;
            let follower = group.peer_on(*to)?;
            let chunks = self.engine.chunks(slot.identity.replica).len();
            Some((!group.stands_still_without(self.now, follower), chunks, *pg, *to))
        });
        wanted.min()
    }

    fn begin_stream(&mut self, pg: PgId, to: OsdId) {
        let (Some(slot), Some(link)) = (self.pgs.by_pg(pg), self.bus.link_to(to)) else { return };
        let Some(group) = self.pgs.group(slot) else { return };
        let Some(follower) = group.peer_on(to).filter(|_| group.is_leader() && group.is_whole()) else { return };
        let (replica, term) = (group.identity().replica, group.term());
        let id = self.streams.next_id;
        self.streams.next_id = id.wrapping_add(1);
        let sender = Sender::new(id, pg, (replica, slot, term), (to, follower, link), self.now);
        tracing::info!(%pg, %to, "backfill started: the log is trimmed past the position of this follower");
        self.streams.senders.push(sender);
        self.send_stream(link, pg, (replica, follower), id, StreamBody::Open);
    }

    fn sender(&mut self, id: u64) -> Option<&mut Sender> {
        self.streams.senders.iter_mut().find(|s| s.id == id)
    }

    fn remove_sender(&mut self, id: u64) -> Option<Sender> {
        let at = self.streams.senders.iter().position(|s| s.id == id)?;
        let gone = self.streams.senders.remove(at);
        self.streams.sent_bytes += gone.sent_bytes;
        self.streams.equal_bytes += gone.equal_bytes;
        // The room of a follower that the PG still needs is to last for the next stream, too.
        self.streams.paced.push((gone.slot, gone.replica, gone.follower));
        Some(gone)
    }

    /// Ends a stream at the leader. `tell`: the follower does not know yet.
    pub(crate) fn drop_sender(&mut self, id: u64, reason: StreamAbort, tell: bool) {
        let Some(gone) = self.remove_sender(id) else { return };
        if tell {
            let ids = (gone.replica, gone.follower);
            self.send_stream(gone.link, gone.pg, ids, id, StreamBody::Abort(reason));
        }
        let now = self.now;
        if let Some(group) = self.pgs.group_of(gone.slot, gone.replica) {
            // Its log may begin yet: what it has said of its contents before does not count.
            group.note_filling(now, gone.follower);
        }
        let key = (gone.pg, gone.to);
        let times = self.streams.resting.get(&key).map_or(0, |(_, times)| *times);
        let StreamTuning { rest_min, rest_max, .. } = self.streams.tuning;
        let rest = match reason {
            StreamAbort::Needless | StreamAbort::Busy => rest_min,
            _ => (rest_min * 2u32.saturating_pow(times.min(20))).min(rest_max),
        };
        if reason != StreamAbort::Needless {
            self.streams.failed += 1;
            tracing::info!(pg = %gone.pg, to = %gone.to, ?reason, rest_ms = rest.as_millis() as u64,
                "backfill ended early");
        }
        self.streams.resting.insert(key, (self.now + rest, times + 1));
        // Older failures are forgotten.
        self.streams.resting.retain(|_, (until, _)| now < *until + rest_max);
    }

    /// Handles a message of the follower.
    pub(crate) fn follower_says(&mut self, link: LinkId, from: OsdId, msg: StreamMsg) {
        let now = self.now;
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
        let Some(sender) = self.streams.senders.iter_mut().find(|s| s.id == msg.stream && s.link == link) else {
            return;
        };
        sender.heard_at = now;
        match msg.body {
            StreamBody::Accept { commit, compare, fills_from, .. } if sender.phase == Phase::Opening => {
                self.accepted(msg.stream, commit, compare, fills_from);
            }
            StreamBody::Filling { .. } => {
                let slot = sender.slot;
                sender.is_beginning = false;
                let follower = sender.follower;
                if let Some(group) = self.pgs.group(slot) {
                    group.note_filling(now, follower);
                }
            }
            StreamBody::Ack { seq } => {
                if !sender.acked(now, seq) {
                    self.drop_sender(msg.stream, StreamAbort::Failed, false);
                    self.bus.disconnect(link, "acknowledged what was never sent");
                    return;
                }
                self.pump(msg.stream);
            }
            StreamBody::Wants { seq, blocks } => {
                let free = sender.is_free();
                match sender.wanted(seq, blocks) {
                    // The follower copies the other blocks of these AUs.
                    Some(written) if !free => self.streams.budget.tokens -= written as i64,
                    Some(_) => {}
                    None => {
                        self.drop_sender(msg.stream, StreamAbort::Failed, false);
                        self.bus.disconnect(link, "asked for blocks of which no digest was sent");
                    }
                }
            }
            StreamBody::Done { commit, .. } => {
                let done = self.remove_sender(msg.stream).expect("it was just there");
                self.streams.paced.retain(|(_, replica, _)| *replica != done.replica);
                if let Some(group) = self.pgs.group_of(done.slot, done.replica) {
                    group.set_pace(None);
                    self.pgs.touch(done.slot);
                }
                let (rounds, mib, equal_mib) = (done.plan.rounds, done.sent_bytes >> 20, done.equal_bytes >> 20);
                tracing::info!(pg = %done.pg, to = %done.to, commit = commit.0, rounds, mib, equal_mib, "backfill completed");
                self.streams.done += 1;
                self.streams.resting.remove(&(done.pg, done.to));
            }
            _ => self.drop_sender(msg.stream, StreamAbort::Failed, true),
        }
    }

    /// Begins the rounds. The follower goes on with its log if it has one that this leader's continues; if not, it begins one at
    /// the applied index.
    fn accepted(&mut self, id: u64, commit: Index, compare: bool, fills_from: Index) {
        let now = self.now;
        let Some((replica, slot, follower)) = self.sender(id).map(|s| (s.replica, s.slot, s.follower)) else { return };
        let first = self.engine.first_index(replica);
        let Some(group) = self.pgs.group(slot) else { return };
        let (resident, applied) = (group.first_index(), group.applied());
        // Its log may reach further than the commit index that it knows.
        let behind = group.is_behind_log(follower, first);
        let goes_on = Index(commit.0.saturating_add(1)) >= first.max(resident) || !behind;
        if goes_on && fills_from == Index(0) {
            return self.drop_sender(id, StreamAbort::Needless, true);
        }
        let goes_on = goes_on && fills_from <= applied;
        let state = if goes_on { None } else { group.fill_state(now, follower) };
        let state = state.filter(|state| state.bytes.len() <= engine::FILL_DECISION_MAX);
        let chunks = self.engine.chunks(replica);
        let sender = self.sender(id).expect("it was just there");
        sender.fills_from = goes_on.then_some(fills_from);
        state.iter().for_each(|state| sender.push_fill(state));
        sender.begin(chunks, compare, applied);
    }

    pub(super) fn step_senders(&mut self) {
        let slow = self.engine.pressure().max() >= PRESSURE_SLOW;
        self.streams.budget.fill(self.now, slow);
        for id in self.streams.senders.iter().map(|s| s.id).collect::<Vec<_>>() {
            if let Some(reason) = self.sender_ends(id) {
                self.drop_sender(id, reason, true);
                continue;
            }
            self.judge_urgency(id);
            self.pace_writes(id);
            self.read_round(id);
            self.end_round(id);
            self.begin_again(id);
            self.pump(id);
        }
    }

    /// Returns the reason why this stream cannot go on, if there is one.
    fn sender_ends(&mut self, id: u64) -> Option<StreamAbort> {
        let (now, tuning) = (self.now, self.streams.tuning);
        let sender = self.sender(id)?;
        let (slot, replica, term, follower) = (sender.slot, sender.replica, sender.term, sender.follower);
        let answer_max = if sender.phase == Phase::Ending { tuning.install_max } else { tuning.answer_max };
        let late = sender.waits() && now >= sender.heard_at + answer_max;
        if !sender.waits() {
            sender.heard_at = now;
        }
        let here = self.pgs.by_replica(replica) == Some(slot);
        let is_member = here && self.pgs.get(slot).members.osd_of(follower).is_some();
        let leads =
            is_member && self.pgs.group(slot).is_some_and(|g| g.is_leader() && g.is_whole() && g.term() == term);
        match (leads, late) {
            (false, _) => Some(StreamAbort::NotLeader),
            (true, true) => Some(StreamAbort::Failed),
            (true, false) => None,
        }
    }

    /// Notes whether the PG cannot commit without this stream's follower.
    fn judge_urgency(&mut self, id: u64) {
        let now = self.now;
        let Some((slot, follower)) = self.sender(id).map(|s| (s.slot, s.follower)) else { return };
        let urgent = self.pgs.group(slot).is_some_and(|group| group.stands_still_without(now, follower));
        if let Some(sender) = self.sender(id) {
            sender.urgent = urgent;
        }
    }

    /// Sets how much the PG may propose, while it needs a follower whose log nothing frees.
    fn pace_writes(&mut self, id: u64) {
        let Some(sender) = self.streams.senders.iter_mut().find(|s| s.id == id) else { return };
        let Some(group) = self.pgs.group_of(sender.slot, sender.replica) else { return };
        let room = group.fill_room(sender.follower).filter(|_| sender.urgent && sender.fills());
        let before = group.pace();
        let (done, left) = (sender.read_cost, sender.left_cost());
        // A follower whose room is not known yet keeps the pace that was set for an earlier stream.
        let unknown = before.filter(|_| sender.urgent && sender.phase != Phase::Ending);
        let pace = room.map_or(unknown, |(room, _)| Some(sender.pace.next(before, room, done, left)));
        group.set_pace(pace);
        if pace != before {
            self.pgs.touch(sender.slot);
        }
    }

    /// Lifts the pace of PGs that no longer need the follower whose stream has ended early.
    pub(super) fn lift_paces(&mut self) {
        let now = self.now;
        let held = std::mem::take(&mut self.streams.paced);
        for (slot, replica, follower) in held {
            let has_sender = self.streams.senders.iter().any(|s| s.replica == replica);
            let Some(group) = self.pgs.group_of(slot, replica).filter(|_| !has_sender) else { continue };
            if group.stands_still_without(now, follower) && !group.has_contents(now, follower) {
                self.streams.paced.push((slot, replica, follower));
                continue;
            }
            group.set_pace(None);
            self.pgs.touch(slot);
        }
    }

    /// Issues further reads, as far as window and budget allow.
    fn read_round(&mut self, id: u64) {
        loop {
            let Some(at) = self.streams.senders.iter().position(|s| s.id == id) else { return };
            let (engine, sender) = (&self.engine, &mut self.streams.senders[at]);
            let (free, paid) = (sender.is_free(), self.streams.budget.tokens > 0);
            if !sender.tracks() || !sender.has_room() || !(paid || free) {
                return;
            }
            let replica = sender.replica;
            let Some(part) = sender.plan.next(|chunk| engine.extents(replica, chunk, SectorRange::CHUNK)) else {
                return;
            };
            // A stream that does not converge gets more: each round beyond the second halves the price.
            let ease = sender.plan.rounds.saturating_sub(2).min(4);
            let cost = plan::cost(part.content, part.range.len_bytes() as u64);
            sender.read_cost += cost;
            // One that a PG needs, and that counts, gets four times the rate: its log needs the device, too.
            let ease = ease + if sender.urgent { 2 } else { 0 };
            if !free {
                self.streams.budget.tokens -= ((cost + MESSAGE_COST as u64) >> ease) as i64;
            }
            self.read_part(id, part);
        }
    }

    fn read_part(&mut self, id: u64, part: super::plan::Part) {
        let sender = self.sender(id).expect("the caller has seen it");
        let zeros = part.content == Content::Zeros;
        if zeros && on(Bug::StreamWithoutDeletions) {
            return;
        }
        if zeros {
            return sender.push_blocks(part.chunk, part.range, None);
        }
        sender.reads += 1;
        sender.reading_bytes += part.range.len_bytes();
        let replica = sender.replica;
        let compare = part.content == Content::Digests;
        let key = self.streams.reads.insert(StreamRead { sender: id, chunk: part.chunk, range: part.range, compare });
        self.read_for(ReadOwner::Stream(key), replica, part.chunk, part.range);
    }

    /// Takes the finished read of [`StreamRead`] `key`.
    pub(crate) fn stream_read_done(&mut self, key: usize, result: Result<ReadData, ReadError>) {
        let Some(read) = self.streams.reads.try_remove(key) else { return };
        let Some(sender) = self.sender(read.sender) else { return };
        sender.reads -= 1;
        sender.reading_bytes -= read.range.len_bytes();
        match result {
            // Blocks without a digest are dropped at the follower.
            Ok(ReadData::Zeros) if read.compare => {}
            Ok(ReadData::Bytes { payload, .. }) if read.compare => {
                sender.push_digests(read.chunk, read.range.start, super::compare::digests(sender.id, &payload));
            }
            Ok(ReadData::Zeros) => sender.push_blocks(read.chunk, read.range, None),
            Ok(ReadData::Bytes { crcs, payload }) => {
                sender.push_blocks(read.chunk, read.range, Some((payload, crcs)));
            }
            // The blocks are being repaired: a later round reads them again.
            Err(ReadError::BadBlocks { .. }) if sender.tracks() => sender.plan.owe(read.chunk, read.range),
            Err(error) => {
                tracing::warn!(%error, "backfill cannot read from the device");
                return self.drop_sender(read.sender, StreamAbort::Failed, true);
            }
        }
        self.pump(read.sender);
    }

    /// Ends a round that was read: another round follows, or the end.
    fn end_round(&mut self, id: u64) {
        let (now, StreamTuning { mend_max, catch_up_max, .. }) = (self.now, self.streams.tuning);
        let Some(sender) = self.sender(id).filter(|s| s.is_round_read()) else { return };
        let (replica, slot, follower) = (sender.replica, sender.slot, sender.follower);
        let mending = self.engine.has_bad_blocks(replica);
        let Some(group) = self.pgs.group(slot) else { return };
        let (applied, term) = (group.applied(), group.term());
        let matched = |index| group.has_matched(follower, index);
        let sender = self.streams.senders.iter_mut().find(|s| s.id == id).expect("it was just there");
        if mending {
            // One round has found all bad blocks, and their repair is under way.
            // A stream that waits too long makes room for others.
            let since = *sender.mends_since.get_or_insert(now);
            if now >= since + mend_max {
                tracing::warn!(
                    replica = replica.0,
                    "backfill stopped: damaged blocks of this replica were not repaired in time"
                );
                self.drop_sender(id, StreamAbort::Failed, true);
            }
            return;
        }
        if sender.is_beginning {
            return;
        }
        let owes = sender.mends_since.take().is_some() || sender.plan.owes();
        if sender.fills_from.is_none() && !owes && applied == sender.round_start {
            return sender.push_exact_end(&group.decision());
        }
        if owes || !sender.may_end() {
            sender.next_round(applied);
            return self.read_round(id);
        }
        if sender.catches_up.is_none() {
            (sender.catches_up, sender.begins_again_at) = (Some(applied), now + catch_up_max);
        }
        let shown = sender.catches_up.expect("set above");
        if matched(shown) {
            sender.push_end(shown, term);
        }
    }

    /// Has the log of a follower begin, when that was not possible before; or at a later index: its next entry is no longer in the log
    /// here, half of its log's share is used up, or it lacks entries that the round shows. A later round brings what has changed.
    /// A log that has room is what the PG goes on with when it comes to need the follower.
    fn begin_again(&mut self, id: u64) {
        let (now, catch_up_max) = (self.now, self.streams.tuning.catch_up_max);
        let streams = &mut self.streams.senders;
        let Some(sender) = streams.iter_mut().find(|s| s.id == id && s.tracks() && !s.is_beginning) else { return };
        let (replica, slot, follower) = (sender.replica, sender.slot, sender.follower);
        let (waits, at) = (sender.catches_up.is_some(), sender.begins_again_at);
        let is_late = sender.fills_from.is_none();
        let first = self.engine.first_index(replica);
        let Some(group) = self.pgs.group(slot) else { return };
        let term = group.term();
        let is_short = now >= sender.short_from && group.fill_room(follower).is_some_and(|(_, is_short)| is_short);
        let due = match waits {
            true => now >= at,
            false => is_late || is_short && sender.mends_since.is_none() || group.is_behind_log(follower, first),
        };
        if !due {
            return;
        }
        if let Some(shown) = sender.catches_up.filter(|_| sender.short_rounds == SHORT_ROUNDS_MAX) {
            // More rounds would not end otherwise: the end lifts the share.
            return sender.push_end(shown, term);
        }
        let state = group.fill_state(now, follower).filter(|state| state.bytes.len() <= engine::FILL_DECISION_MAX);
        let sender = self.sender(id).expect("it was just there");
        match state {
            Some(state) => {
                tracing::debug!(
                    replica = replica.0,
                    index = state.index.0,
                    "the follower's log begins at a later index"
                );
                sender.push_fill(&state);
                sender.short_from = now + catch_up_max / 4;
                sender.short_rounds += u32::from(waits);
                if sender.is_round_read() {
                    sender.next_round(state.index);
                }
            }
            None => {
                // The PG needs the follower, which takes all entries once it has the end.
                if let Some(shown) = sender.catches_up {
                    sender.push_end(shown, term);
                }
            }
        }
    }

    fn pump(&mut self, id: u64) {
        while let Some(sender) = self.sender(id) {
            let (link, pg, ids) = (sender.link, sender.pg, (sender.replica, sender.follower));
            let Some(body) = sender.next_message() else { return };
            self.send_stream(link, pg, ids, id, body);
        }
    }
}
