//! The leader's side: a stream begins when raft finds a follower behind the log; then rounds of reads and messages, and the end.

use super::budget::Budget;
use super::compare::{digests, digests_of_own, runs_of};
use super::pace::Pace;
use super::plan::{self, Content, Part};
use super::sender::{MESSAGE_COST, Phase, Sender};
use super::{PartRead, Streams};
use crate::host::{Action, Host, Lead, Read, ReadResult};
use crate::tuning::StreamTuning;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use types::planted::{Bug, on};
use types::store::{ReadData, ReadError};
use types::tree::Tree;
use types::{Index, IoBuf, OsdId, PgId, ReplicaId, Time};
use wire::{StreamAbort, StreamBody, StreamMsg};

/// Rounds at whose end the follower's log had no room for what they show: the next one is the last.
const SHORT_ROUNDS_MAX: u32 = 2;
/// Interval between looks for PGs that need a stream beyond the ordinary limit.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A stream that has read nothing for this long reads one part, whatever is left of the budget: streams before it may use all of it.
const STARVED: Duration = Duration::from_secs(1);

/// The log, or a follower that stores contents, waits for its device when that takes so long.
pub(crate) const LOG_WAIT_MAX: Duration = Duration::from_millis(30);
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(100);

/// A stream that may begin.
struct Wanted {
    pg: PgId,
    to: OsdId,
    /// The replica here, and the follower.
    pair: (ReplicaId, ReplicaId),
    lead: Lead,
    chunks: usize,
    /// The last stream has ended early: the next one does not begin yet.
    rests: bool,
}

impl Streams {
    /// Notes that raft has found the follower on `to` behind the log. Repeated while that lasts.
    pub fn want(&mut self, now: Time, pg: PgId, to: OsdId) {
        if !self.senders.iter().any(|s| s.pg == pg) {
            self.waiting.insert((pg, to), now);
        }
    }

    /// Begins streams to waiting followers, up to the limit. PGs that cannot commit go first, then those with the least to send: so
    /// the number of PGs that a further failure would stop falls as fast as it can. A PG that cannot commit waits for no other
    /// one's stream when its follower counts as soon as its log has begun (R16). Contents that have to come first keep the limit: more
    /// streams at once would bring each of these PGs back later.
    pub(super) fn begin_streams(&mut self, host: &mut impl Host) {
        let now = host.now();
        let StreamTuning { asked_max, senders_max, needed_max, .. } = self.tuning;
        self.waiting.retain(|_, asked| now < *asked + asked_max);
        let is_full = self.senders.len() >= senders_max;
        if self.senders.len() >= senders_max.max(needed_max) || is_full && now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let mut wanted = self.wanted(host, is_full);
        wanted.sort_by_key(|wanted| (!wanted.lead.needs_follower, wanted.chunks));
        for Wanted { pg, to, pair: (replica, follower), lead, rests, .. } in wanted {
            self.pace_at_once(host, (replica, follower), &lead);
            let limit = if lead.counts_at_once() { senders_max.max(needed_max) } else { senders_max };
            if rests || self.senders.len() >= limit || self.senders.iter().any(|s| s.pg == pg) {
                continue;
            }
            self.waiting.remove(&(pg, to));
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            let sender = Sender::new(id, pg, (replica, lead.term), (to, follower), now);
            tracing::info!(%pg, %to, "backfill started: the log is trimmed past the position of this follower");
            host.act(sender.message(StreamBody::Open { needed: lead.needs_follower }));
            if self.senders.is_empty() {
                self.budget.begin(now);
            }
            self.senders.push(sender);
        }
    }

    /// Sets the pace of a PG that needs a follower whose log has begun, for example under another leader. Until the stream gets on, the
    /// room there is all that the PG may write.
    fn pace_at_once(&mut self, host: &mut impl Host, (replica, follower): (ReplicaId, ReplicaId), lead: &Lead) {
        if let (true, None, Some((room, _))) = (lead.needs_follower, lead.pace, lead.room) {
            tracing::debug!(
                replica = replica.0,
                room,
                "the PG needs a follower whose log nothing frees: its writes have a pace"
            );
            host.act(Action::SetPace { replica, pace: Some(Pace::at_once(room)) });
            self.paced.push((replica, follower));
        }
    }

    /// Returns the streams that may begin, now or after a rest; `is_full`: only those that count at once.
    fn wanted(&self, host: &mut impl Host, is_full: bool) -> Vec<Wanted> {
        let is_due = |key: &&(PgId, OsdId)| host.reaches(key.1) && !self.senders.iter().any(|s| s.pg == key.0);
        let wanted = self.waiting.keys().filter(is_due).filter_map(|(pg, to)| {
            let rests = self.resting.get(&(*pg, *to)).is_some_and(|(until, _)| host.now() < *until);
            let pair = host.pair_with(*pg, *to)?;
            let lead = host.lead(pair.0, pair.1).filter(|lead| !is_full || lead.counts_at_once())?;
            Some(Wanted { pg: *pg, to: *to, pair, lead, chunks: host.chunks(pair.0).len(), rests })
        });
        wanted.collect()
    }

    fn remove_sender(&mut self, id: u64) -> Option<Sender> {
        let at = self.senders.iter().position(|s| s.id == id)?;
        let gone = self.senders.remove(at);
        self.sent_bytes += gone.sent_bytes;
        self.equal_bytes += gone.equal_bytes;
        // The room of a follower that the PG still needs is to last for the next stream, too.
        self.paced.push((gone.replica, gone.follower));
        Some(gone)
    }

    /// Ends a stream at the leader. `tell`: the follower does not know yet.
    pub(super) fn drop_sender(&mut self, host: &mut impl Host, id: u64, (reason, tell): (StreamAbort, bool)) {
        let now = host.now();
        let Some(gone) = self.remove_sender(id) else { return };
        if tell {
            host.act(gone.message(StreamBody::Abort(reason)));
        }
        // Its log may begin yet: what it has said of its contents before does not count.
        host.act(Action::NoteFilling { replica: gone.replica, follower: gone.follower });
        let key = (gone.pg, gone.to);
        let times = self.resting.get(&key).map_or(0, |(_, times)| *times);
        let StreamTuning { rest_min, rest_max, .. } = self.tuning;
        // A follower that has other streams may say so many times, and leaders change for other reasons: that is no failure.
        let (rest, times) = match reason {
            StreamAbort::Needless | StreamAbort::Busy | StreamAbort::NotLeader => (rest_min, times),
            _ => ((rest_min * 2u32.saturating_pow(times.min(20))).min(rest_max), times + 1),
        };
        if reason != StreamAbort::Needless {
            self.failed += 1;
            tracing::info!(pg = %gone.pg, to = %gone.to, ?reason, rest_ms = rest.as_millis() as u64,
                "backfill ended early");
        }
        self.resting.insert(key, (now + rest, times));
        // Older failures are forgotten.
        self.resting.retain(|_, (until, _)| now < *until + rest_max);
    }

    /// Handles a message of the follower.
    pub(super) fn handle_follower(&mut self, host: &mut impl Host, from: OsdId, msg: StreamMsg) {
        let (now, id) = (host.now(), msg.stream);
        let Some(sender) = self.senders.iter_mut().find(|s| s.id == id && s.to == from) else { return };
        sender.heard_at = now;
        let wrong = match msg.body {
            StreamBody::Accept { term, commit, end, compare, fills_from } if sender.phase == Phase::Opening => {
                // An older leader may still add entries in an earlier term.
                let end = Some(end).filter(|_| term == sender.term);
                if !sender.accepted(host, (commit, end), compare, fills_from) {
                    self.drop_sender(host, id, (StreamAbort::Needless, true));
                }
                return;
            }
            StreamBody::Filling { .. } => {
                sender.is_beginning = false;
                return host.act(Action::NoteFilling { replica: sender.replica, follower: sender.follower });
            }
            StreamBody::Ack { seq } if sender.acked(now, seq) => return sender.pump(host),
            StreamBody::Ack { .. } => "acknowledged what was never sent",
            StreamBody::Wants { seq, blocks } => match sender.wanted(seq, blocks) {
                // The follower copies the other blocks of these AUs.
                Some(written) => {
                    let price = sender.pays(written);
                    return self.budget.tokens -= price;
                }
                None => "asked for blocks of which no digest was sent",
            },
            StreamBody::Done { commit, .. } => return self.is_done(host, id, commit),
            _ => return self.drop_sender(host, id, (StreamAbort::Failed, true)),
        };
        self.drop_sender(host, id, (StreamAbort::Failed, false));
        host.act(Action::BadPeer { osd: from, reason: wrong.to_owned() });
    }

    fn is_done(&mut self, host: &mut impl Host, id: u64, commit: Index) {
        let done = self.remove_sender(id).expect("the caller has seen it");
        self.paced.retain(|(replica, _)| *replica != done.replica);
        host.act(Action::SetPace { replica: done.replica, pace: None });
        let (rounds, mib, equal_mib) = (done.plan.rounds, done.sent_bytes >> 20, done.equal_bytes >> 20);
        tracing::info!(pg = %done.pg, to = %done.to, commit = commit.0, rounds, mib, equal_mib, "backfill completed");
        self.done += 1;
        self.resting.remove(&(done.pg, done.to));
    }

    pub(super) fn step_senders(&mut self, host: &mut impl Host) {
        let now = host.now();
        let waits =
            host.log_wait() >= LOG_WAIT_MAX || self.senders.iter().any(|s| s.answer_wait(now) >= ANSWER_WAIT_MAX);
        self.budget.fill(now, waits, host.is_pressed());
        for id in self.senders.iter().map(|s| s.id).collect::<Vec<_>>() {
            let sender = self.senders.iter_mut().find(|s| s.id == id).expect("it was just listed");
            if let Err(reason) = sender.step(host, &self.tuning, &mut self.budget) {
                self.drop_sender(host, id, (reason, true));
            }
        }
    }

    /// Lifts the pace of PGs that no longer need the follower whose stream has ended early.
    pub fn lift_paces(&mut self, host: &mut impl Host) {
        let senders = &self.senders;
        self.paced.retain(|(replica, follower)| {
            if senders.iter().any(|s| s.replica == *replica) {
                return false;
            }
            let is_needed = |lead: Lead| lead.needs_follower && !lead.has_contents;
            let keeps = host.lead(*replica, *follower).is_some_and(is_needed);
            if !keeps {
                host.act(Action::SetPace { replica: *replica, pace: None });
            }
            keeps
        });
    }

    /// Takes contents that were read for a follower.
    pub fn handle_part(&mut self, host: &mut impl Host, read: &PartRead, result: ReadResult) {
        let Some(sender) = self.senders.iter_mut().find(|s| s.id == read.stream) else { return };
        sender.reads -= 1;
        sender.reading_bytes -= read.range.len_bytes();
        match result {
            // Its blocks are sent as those of its heir.
            _ if sender.plan.has_ended(read.chunk.generation) => {}
            // Blocks without a digest are dropped at the follower.
            Ok(ReadData::Zeros) if read.compare && read.own.is_none() => {}
            Ok(data) if read.compare => {
                let payload = match data {
                    ReadData::Zeros => IoBuf::zeros(read.range.len_bytes()),
                    ReadData::Bytes { payload, .. } => payload,
                };
                let digests = match read.own {
                    Some(own) => digests_of_own(sender.id, &payload, own),
                    None => digests(sender.id, &payload),
                };
                sender.push_digests(read.to, read.range.start, digests);
            }
            Ok(ReadData::Zeros) => sender.push_blocks(read.to, read.range, None),
            Ok(ReadData::Bytes { crcs, payload }) => sender.push_blocks(read.to, read.range, Some((payload, crcs))),
            // The blocks are being repaired: a later round reads them again.
            Err(ReadError::BadBlocks { .. }) if sender.tracks() => {
                let runs = read.own.map_or_else(|| vec![read.range], |own| runs_of(read.range.start, own));
                runs.into_iter().for_each(|run| sender.plan.owe(read.chunk, run));
            }
            Err(error) => {
                tracing::warn!(%error, "backfill cannot read from the device");
                return self.drop_sender(host, read.stream, (StreamAbort::Failed, true));
            }
        }
        sender.pump(host);
    }
}

impl Sender {
    /// Returns a message to the follower.
    fn message(&self, body: StreamBody) -> Action {
        super::message(self.to, (self.pg, self.replica, self.follower, self.id), body)
    }

    fn pump(&mut self, host: &mut impl Host) {
        while let Some(body) = self.next_message(host.now()) {
            host.act(self.message(body));
        }
    }

    /// Begins the rounds. The follower goes on with its log if it has one that this leader's continues; if not, it begins one at
    /// the applied index. False: the follower needs no stream.
    fn accepted(
        &mut self,
        host: &mut impl Host,
        (commit, end): (Index, Option<Index>),
        compare: bool,
        fills_from: Index,
    ) -> bool {
        let lead = host.lead(self.replica, self.follower).filter(|lead| lead.term == self.term);
        let Some(lead) = lead else { return true };
        // Its log may reach further than the commit index that it knows.
        let goes_on = Index(commit.0.saturating_add(1)) >= lead.first || !lead.is_behind;
        if goes_on && fills_from == Index(0) {
            return false;
        }
        // Blocks of a generation that has been merged since are not those of any generation at its beginning.
        let goes_on = goes_on && fills_from <= lead.applied && host.has_tree_since(self.replica, fills_from);
        self.fills_from = goes_on.then_some(fills_from);
        // A log does not begin at an earlier index than it did.
        let begins = !goes_on && fills_from <= lead.applied;
        let state = if begins { host.fill_state(self.replica, self.follower, end) } else { None };
        state.iter().for_each(|state| self.push_fill(state));
        self.begin(host.chunks(self.replica), compare, lead.applied);
        self.begin_at(host, state.map(|state| state.bytes));
        true
    }

    /// Notes the tree of the contents: that behind which the follower's log begins, or that of this round. `begun`: the decision state there,
    /// if it is not that of the present tree.
    fn begin_at(&mut self, host: &mut impl Host, begun: Option<Bytes>) {
        let tree = match begun {
            Some(bytes) => Tree::of_decision(&bytes).ok().map(Arc::new),
            None => host.tree(self.replica),
        };
        let are_first = |tree: &Arc<Tree>| tree.iter().all(|(id, node)| node.family == id);
        let come_first = self.fills_from.is_none();
        // Contents that come first are of generations that the follower may not know.
        let needs_tree = come_first && !tree.as_ref().is_some_and(are_first);
        self.tree = if needs_tree { host.decision(self.replica) } else { None };
        let replica = self.replica;
        self.plan.begin_at(tree, come_first, |chunk| host.delta(replica, chunk));
    }

    /// Begins the next round, with what has changed.
    fn begin_round(&mut self, host: &mut impl Host, applied: Index) {
        self.next_round(applied);
        if self.fills_from.is_none() {
            self.begin_at(host, None);
        }
    }

    /// Does one step. Returns the reason why this stream cannot go on, if there is one.
    fn step(&mut self, host: &mut impl Host, tuning: &StreamTuning, budget: &mut Budget) -> Result<(), StreamAbort> {
        let now = host.now();
        let answer_max = if self.phase == Phase::Ending { tuning.install_max } else { tuning.answer_max };
        let is_late = self.waits() && now >= self.heard_at + answer_max;
        if !self.waits() {
            self.heard_at = now;
        }
        let lead = host.lead(self.replica, self.follower).filter(|lead| lead.term == self.term);
        let lead = lead.ok_or(StreamAbort::NotLeader)?;
        // Entries that the end shows have left the log here before the follower had them: another stream brings them.
        let lacks = self.phase == Phase::Ending && self.catches_up.is_some_and(|shown| lead.matched < Some(shown));
        if is_late || lacks && lead.is_behind {
            return Err(StreamAbort::Failed);
        }
        self.urgent = lead.needs_follower;
        self.pace_writes(host, &lead);
        self.read_round(host, budget);
        if self.end_round(now, tuning, &lead, host)? {
            self.begin_round(host, lead.applied);
            self.read_round(host, budget);
        }
        self.begin_again(now, tuning, &lead, host);
        self.pump(host);
        Ok(())
    }

    /// Sets how much the PG may propose, while it needs a follower whose log nothing frees.
    fn pace_writes(&mut self, host: &mut impl Host, lead: &Lead) {
        // A follower whose room is not known yet keeps the pace that was set for an earlier stream.
        let unknown = lead.pace.filter(|_| self.urgent && self.phase != Phase::Ending);
        let room = lead.room.filter(|_| self.urgent && self.fills());
        let now = host.now();
        let mut next = if room.is_some() { std::mem::take(&mut self.pace) } else { Pace::default() };
        let pace = room
            .map_or(unknown, |(room, _)| Some(next.next(now, lead.pace, room, self.read_cost, || self.left_cost())));
        self.pace = next;
        if pace.is_some() != lead.pace.is_some() {
            tracing::debug!(pg = %self.pg, ?pace, room = ?lead.room, "the pace of writes begins or ends");
        }
        if pace != lead.pace {
            host.act(Action::SetPace { replica: self.replica, pace });
        }
    }

    /// Issues further reads, as far as window and budget allow.
    fn read_round(&mut self, host: &mut impl Host, budget: &mut Budget) {
        let (is_free, now) = (self.is_free(), host.now());
        while self.tracks() && self.has_room() && (is_free || budget.tokens > 0 || now >= self.read_at + STARVED) {
            self.read_at = now;
            let Some(part) = self.plan.next(|chunk| host.delta(self.replica, chunk)) else { return };
            let cost = plan::cost(part.content, part.range.len_bytes() as u64);
            budget.tokens -= self.pays(cost + MESSAGE_COST as u64);
            self.read_part(host, part);
        }
    }

    /// Counts work of this cost. Returns its price in the budget.
    fn pays(&mut self, cost: u64) -> i64 {
        self.read_cost += cost;
        if self.is_free() {
            return 0;
        }
        // A stream that does not converge gets more: each round beyond the second halves the price.
        (cost >> self.plan.rounds.saturating_sub(2).min(4)) as i64
    }

    fn read_part(&mut self, host: &mut impl Host, Part { chunk, to, range, content, own }: Part) {
        match content {
            Content::Zeros if on(Bug::StreamWithoutDeletions) => return,
            Content::Zeros => return self.push_blocks(to, range, None),
            Content::Data | Content::Digests => {}
        }
        self.reads += 1;
        self.reading_bytes += range.len_bytes();
        let read = PartRead { stream: self.id, chunk, to, range, compare: content == Content::Digests, own };
        host.act(Action::Read { read: Read::Part(read), replica: self.replica, chunk, range });
    }

    /// Ends a round that was read, unless it waits. True: another round follows.
    fn end_round(
        &mut self,
        now: Time,
        tuning: &StreamTuning,
        lead: &Lead,
        host: &mut impl Host,
    ) -> Result<bool, StreamAbort> {
        if !self.is_round_read() {
            return Ok(false);
        }
        if lead.has_bad_blocks {
            // One round has found all bad blocks, and their repair is under way.
            // A stream that waits too long makes room for others.
            let since = *self.mends_since.get_or_insert(now);
            if now >= since + tuning.mend_max {
                tracing::warn!(
                    replica = self.replica.0,
                    "backfill stopped: damaged blocks of this replica were not repaired in time"
                );
                return Err(StreamAbort::Failed);
            }
            return Ok(false);
        }
        if self.is_beginning {
            return Ok(false);
        }
        let owes = self.mends_since.take().is_some() || self.plan.owes();
        if self.fills_from.is_none() && !owes && lead.applied == self.round_start {
            host.decision(self.replica).iter().for_each(|state| self.push_exact_end(state));
            return Ok(false);
        }
        if owes || !self.may_end() {
            return Ok(true);
        }
        if self.catches_up.is_none() {
            (self.catches_up, self.begins_again_at) = (Some(lead.applied), now + tuning.catch_up_max);
        }
        if let Some(shown) = self.catches_up.filter(|shown| lead.matched >= Some(*shown)) {
            self.push_end(shown, lead.term);
        }
        Ok(false)
    }

    /// Has the log of a follower begin, when that was not possible before; or at a later index: its next entry is no longer in the log
    /// here, half of its log's share is used up, or it lacks entries that the round shows. A later round brings what has changed.
    /// A log that has room is what the PG goes on with when it comes to need the follower.
    fn begin_again(&mut self, now: Time, tuning: &StreamTuning, lead: &Lead, host: &mut impl Host) {
        if !self.tracks() || self.is_beginning {
            return;
        }
        let waits = self.catches_up.is_some();
        let is_short = now >= self.short_from && lead.room.is_some_and(|(_, is_short)| is_short);
        let is_due = match waits {
            true => now >= self.begins_again_at || lead.is_behind,
            false => self.fills_from.is_none() || is_short && self.mends_since.is_none() || lead.is_behind,
        };
        if !is_due {
            return;
        }
        // More rounds would not end otherwise: the end lifts the share.
        let is_last = waits && !lead.is_behind && self.short_rounds == SHORT_ROUNDS_MAX;
        let state = if is_last { None } else { host.fill_state(self.replica, self.follower, None) };
        match (state, self.catches_up) {
            (Some(state), _) => {
                tracing::debug!(
                    replica = self.replica.0,
                    index = state.index.0,
                    "the follower's log begins at a later index"
                );
                self.push_fill(&state);
                self.begin_at(host, Some(state.bytes.clone()));
                self.short_from = now + tuning.catch_up_max / 4;
                self.short_rounds += u32::from(waits && !lead.is_behind);
                if self.is_round_read() {
                    self.begin_round(host, state.index);
                }
            }
            // No log brings it what the round shows: it gets the contents exactly at an index.
            (None, Some(_)) if lead.is_behind => {
                self.fills_from = None;
                self.begin_round(host, lead.applied);
            }
            // The PG needs the follower, which takes all entries once it has the end.
            (None, Some(shown)) => self.push_end(shown, lead.term),
            (None, None) => {}
        }
    }
}
