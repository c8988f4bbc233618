//! Read-repair (R15, ADR 0005): blocks of home that cannot be read are asked of the PG's other replicas.
//!
//! The loop comes in with bad blocks that the engine has found, with messages, and once a turn. A block is asked
//! of one member after the other, as of what is applied here at that moment; the engine takes the answer only
//! while it is exact. Reads of clients that met a bad block wait a moment for it, then the PG is handed over.
//!
//! Invariant: what waits has limits and deadlines. A replica that cannot do without a block that nobody gives in time
//! begins anew (ADR 0009); a block that is bad on every member, or on every one that is here, is named, never guessed.

use crate::node::{GroupRead, Osd, ReadOwner};
use crate::pgs::State;
use bus::LinkId;
use engine::{ReadData, ReadError};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::{LOST_REPORTED_MAX, LostExtent};
use types::planted::{Bug, on};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Errno, Index, IoBuf, OsdId, PgId, ReplicaId, SectorRange, Time, crc32c};
use wire::{MendBody, MendMsg, Message};

/// Bad blocks of one OSD that are asked for; with more its device is beyond repair by blocks.
const BLOCKS_MAX: usize = 4096;
/// Questions on their way at once.
const ASKED_MAX: usize = 32;
/// Blocks that are read at once, for peers and once more here.
const READINGS_MAX: usize = 64;
/// Pause after "not now": doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A question without an answer goes to the next member after this long.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How long a client's read waits for its block before the PG is handed over.
const READ_WAIT: Duration = Duration::from_millis(500);
/// After this long without the block, a replica that needs it cannot go on: it begins anew.
const MEND_MAX: Duration = Duration::from_secs(30);
/// The same while the log is full: nothing is appended then, and who has applied more cannot say what the block was here.
const MEND_FULL_MAX: Duration = Duration::from_secs(5);
/// Members behind the first one of the PG wait so much longer, each: of several that cannot go on the first begins anew alone,
/// and the others hear that it has no part.
const TURN: Duration = Duration::from_secs(2);

type BlockKey = (ReplicaId, ChunkKey, u16);

/// A bad block of a local replica.
struct Bad {
    reason: String,
    /// The replica cannot go on without the block.
    needed: bool,
    /// When it was found, or somebody was away or had no part in the PG that may have it.
    since: Time,
    next_at: Time,
    tries: u32,
    asked: Option<Asked>,
    /// Members whose copy is bad, too.
    lost_on: BTreeSet<OsdId>,
    /// Members that have no part in the PG, by their last answers.
    idle: BTreeSet<OsdId>,
    named: Named,
}

/// What is said of a bad block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// Somebody may give it.
    No,
    /// It is bad on every member that is here and has a part in the PG; another may have it.
    Here,
    /// It is bad on every member.
    Everywhere,
}

impl Bad {
    /// No member can give it.
    fn is_lost(&self) -> bool {
        self.named == Named::Everywhere
    }
}

struct Asked {
    id: u64,
    osd: OsdId,
    at: Index,
}

/// A client's read that met a bad block.
struct Held {
    read: GroupRead,
    chunk: ChunkKey,
    range: SectorRange,
    since: Time,
    until: Time,
}

/// A block that is read once more here, or for a peer.
enum Reading {
    Again(BlockKey),
    For(Answer),
}

/// A block that is read for a peer.
struct Answer {
    link: LinkId,
    question: MendMsg,
    at: Index,
    expected: Option<u32>,
}

/// All mends of one OSD.
#[derive(Default)]
pub(crate) struct Mends {
    bad: BTreeMap<BlockKey, Bad>,
    held: Vec<Held>,
    readings: Slab<Reading>,
    next_id: u64,
}

impl Mends {
    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.bad.clear();
        self.held.clear();
        self.readings.clear();
    }

    /// Reads that its earlier group held are nobody's.
    pub fn detach(&mut self, replica: ReplicaId) {
        self.held.retain(|held| held.read.replica != replica);
    }

    /// What is said so of this replica's blocks, as far as a report names it.
    pub fn named(&self, replica: ReplicaId, named: Named) -> Vec<LostExtent> {
        let all = self.bad.iter().filter(|((id, ..), bad)| *id == replica && bad.named == named);
        all.take(LOST_REPORTED_MAX).map(|((_, chunk, block), _)| extent(*chunk, *block)).collect()
    }

    pub fn bad_count(&self) -> u64 {
        self.bad.len() as u64
    }

    pub fn next_deadline(&self) -> Time {
        let bad = self.bad.values().map(|b| b.next_at);
        bad.chain(self.held.iter().map(|h| h.until)).min().unwrap_or(Time::NEVER)
    }
}

/// Whether a PG of which `idle` members have no part goes on when another one begins anew: a majority must tell that one how
/// far it is, or all others must (ADR 0007).
fn can_lack_one_more(members: usize, idle: usize) -> bool {
    idle == 0 || members - 1 - idle > members / 2
}

fn extent(chunk: ChunkKey, block: u16) -> LostExtent {
    let len_bytes = types::BLOCK as u32;
    LostExtent { chunk, offset_bytes: u32::from(block) * len_bytes, len_bytes }
}

fn blocks_of(range: SectorRange) -> std::ops::Range<u16> {
    (range.start / SECTORS_PER_BLOCK) as u16..range.end().div_ceil(SECTORS_PER_BLOCK) as u16
}

impl Osd {
    /// Blocks of local replicas that cannot be read now: the PG, the chunk, the block's number in it, and whether
    /// no member of the PG can read it.
    pub fn bad_blocks(&self) -> Vec<(PgId, ChunkKey, u16, bool)> {
        let pg_of = |replica| self.pgs.by_replica(replica).map(|key| self.pgs.get(key).identity.pg);
        let bad = self.mends.bad.iter();
        bad.filter_map(|((replica, chunk, block), b)| Some((pg_of(*replica)?, *chunk, *block, b.is_lost()))).collect()
    }

    /// The engine cannot read these blocks of home.
    pub(crate) fn blocks_are_bad(
        &mut self,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        reason: String,
        needed: bool,
    ) {
        let Some(slot) = self.pgs.by_replica(replica) else { return };
        let alone = self.peers_of(slot).is_empty();
        if alone || self.mends.bad.len() >= BLOCKS_MAX {
            if needed {
                self.engine.mark_damaged(replica, reason);
            }
            return;
        }
        let now = self.now;
        for block in blocks_of(range) {
            let bad = self.mends.bad.entry((replica, chunk, block)).or_insert_with(|| {
                tracing::warn!(replica = replica.0, %chunk, block, reason,
                    "a block is damaged: fetching it from the other replicas");
                let (lost_on, idle) = (BTreeSet::new(), BTreeSet::new());
                let (reason, named) = (reason.clone(), Named::No);
                Bad { reason, needed, since: now, next_at: now, tries: 0, asked: None, lost_on, idle, named }
            });
            bad.needed |= needed;
        }
    }

    fn peers_of(&self, slot: usize) -> Vec<OsdId> {
        self.pgs.get(slot).others().map(|m| m.osd).filter(|osd| *osd != self.config.osd).collect()
    }

    /// A client's read met a bad block: it waits for it, or fails when nobody can mend it.
    pub(crate) fn hold_read(&mut self, read: GroupRead, chunk: ChunkKey, range: SectorRange) {
        let lost = |key: &BlockKey| self.mends.bad.get(key).map(Bad::is_lost);
        let states: Vec<Option<bool>> = blocks_of(range).map(|b| lost(&(read.replica, chunk, b))).collect();
        // None is being mended: there is nobody to ask.
        let lost = states.contains(&Some(true));
        if lost || states.iter().all(Option::is_none) {
            return self.fail_read((read, chunk, range), lost);
        }
        let (since, until) = (self.now, self.now + READ_WAIT);
        self.mends.held.push(Held { read, chunk, range, since, until });
    }

    /// The PG goes to a member whose copy of these blocks may be good, if there is one.
    fn hand_over_unread(&mut self, read: &GroupRead, chunk: ChunkKey, range: SectorRange) {
        let bad = |b: u16| self.mends.bad.get(&(read.replica, chunk, b));
        let may_have_it = |osd: OsdId| !blocks_of(range).filter_map(bad).any(|bad| bad.lost_on.contains(&osd));
        let Some(to) = self.successor_among(read.slot, may_have_it) else { return };
        self.with_slot(read.slot, true, |group, now, actions| {
            if group.may_hand_over() {
                group.handle_transfer(now, to, actions);
            }
        });
    }

    /// `lost`: no other member can answer it either.
    fn fail_read(&mut self, (read, chunk, range): (GroupRead, ChunkKey, SectorRange), lost: bool) {
        if self.pgs.by_replica(read.replica) == Some(read.slot) {
            if !lost {
                self.hand_over_unread(&read, chunk, range);
            }
            self.with_slot(read.slot, true, |group, now, actions| {
                group.handle_read_done(now, read.read, Err(Errno::Damaged), actions);
            });
        }
    }

    /// One step of every repair that is due.
    pub(crate) fn step_mends(&mut self) {
        if self.mends.bad.is_empty() && self.mends.held.is_empty() {
            return;
        }
        let now = self.now;
        let mut asked = self.mends.bad.values().filter(|b| b.asked.is_some()).count();
        let due: Vec<BlockKey> = self.mends.bad.iter().filter(|(_, b)| b.next_at <= now).map(|(k, _)| *k).collect();
        for key in due {
            let bad = self.mends.bad.get_mut(&key).expect("it was just listed");
            asked -= usize::from(bad.asked.take().is_some());
            if asked >= ASKED_MAX {
                bad.next_at = now + PAUSE_MIN;
                continue;
            }
            self.step_mend(key);
            asked += usize::from(self.mends.bad.get(&key).is_some_and(|b| b.asked.is_some()));
        }
        self.release_held();
    }

    /// Asks the next member, unless the block needs it no more or has waited too long.
    fn step_mend(&mut self, key: BlockKey) {
        let (replica, chunk, block) = key;
        let slot = self.pgs.by_replica(replica);
        let running = slot.is_some_and(|slot| matches!(self.pgs.get(slot).state, State::Running(_)));
        let ask = if running { self.engine.mend_ask(replica, chunk, block) } else { None };
        let (Some(slot), Some(ask)) = (slot, ask) else {
            // Written anew, cut off, streamed anew, or the replica takes no part any more.
            self.engine.note_readable(replica, chunk, block);
            self.mends.bad.remove(&key);
            return;
        };
        let identity = self.pgs.get(slot).identity.clone();
        let peers = self.peers_of(slot);
        let all_here = peers.iter().all(|osd| self.bus.link_to(*osd).is_some());
        let bad = self.mends.bad.get_mut(&key).expect("the caller found it");
        let idle = peers.iter().filter(|osd| bad.idle.contains(osd)).count();
        if all_here && idle == 0 && bad.named == Named::Here {
            bad.named = Named::No;
        }
        if !all_here || bad.named == Named::Here || !can_lack_one_more(peers.len() + 1, idle) {
            // Who is away may have it: the others may be the last that serve, and none of them is given up.
            bad.since = self.now;
        }
        let wait = if self.engine.is_log_full() { MEND_FULL_MAX } else { MEND_MAX };
        let turn = self.pgs.get(slot).others().filter(|m| m.replica < replica).count() as u32;
        let wait = wait + TURN * turn;
        if bad.needed && !bad.is_lost() && all_here && self.now >= bad.since + wait {
            let reason = bad.reason.clone();
            bad.next_at = self.now + PAUSE_MIN;
            self.begin_anew(replica, &reason);
            return;
        }
        if self.now >= bad.since + MEND_MAX && bad.needed && bad.is_lost() && ask.expected.is_none() {
            let reason = bad.reason.clone();
            self.mends.bad.remove(&key);
            return self.engine.mark_damaged(replica, reason);
        }
        let turn = bad.tries as usize % (peers.len() + 1);
        bad.tries += 1;
        // A device may fail a read once, and a read may have gone astray: every round begins at home.
        let Some(osd) = turn.checked_sub(1).map(|nth| peers[nth]) else {
            bad.next_at = self.now + PAUSE_MIN;
            if self.mends.readings.len() < READINGS_MAX {
                self.read_block(key, Reading::Again(key));
            }
            return;
        };
        bad.next_at = self.now + ANSWER_MAX;
        let to = self.pgs.get(slot).others().find(|m| m.osd == osd).expect("it is a member").replica;
        let Some(link) = self.bus.link_to(osd) else {
            bad.next_at = self.now + PAUSE_MIN;
            return;
        };
        self.mends.next_id += 1;
        let id = self.mends.next_id;
        bad.asked = Some(Asked { id, osd, at: ask.applied });
        let body = MendBody::Ask { applied: ask.applied, crc: ask.expected };
        let (pg, lineage) = (identity.pg, identity.lineage);
        self.bus.send(link, Message::Mend(MendMsg { pg, from: replica, to, lineage, id, chunk, block, body }));
    }

    /// Reads whose blocks are whole again, and those that have waited enough.
    fn release_held(&mut self) {
        for held in std::mem::take(&mut self.mends.held) {
            let Held { read, chunk, range, since, until } = held;
            let replica = read.replica;
            let bad = || blocks_of(range).filter_map(|b| self.mends.bad.get(&(replica, chunk, b)));
            let (waits, lost) = (bad().next().is_some(), bad().any(Bad::is_lost));
            let ours = self.pgs.by_replica(replica) == Some(read.slot);
            // It was refused when that leadership ended.
            if ours && !self.pgs.group(read.slot).is_some_and(|group| group.is_reading(read.read)) {
                continue;
            }
            if lost || !ours || self.now >= since + MEND_MAX {
                self.fail_read((read, chunk, range), lost);
            } else if !waits {
                self.start_read(read.slot, read.read, chunk, range);
            } else if self.now >= until {
                // Whoever takes over answers it. While nobody can, it waits on.
                self.hand_over_unread(&read, chunk, range);
                let until = self.now + READ_WAIT;
                self.mends.held.push(Held { read, chunk, range, since, until });
            } else {
                self.mends.held.push(Held { read, chunk, range, since, until });
            }
        }
    }

    pub(crate) fn handle_mend(&mut self, link: LinkId, from: OsdId, msg: MendMsg) {
        match msg.body {
            MendBody::Ask { applied, crc } => self.peer_asks(link, from, msg, applied, crc),
            MendBody::Block { .. } | MendBody::NotNow | MendBody::Damaged | MendBody::NoPart => {
                self.peer_answers(from, msg)
            }
        }
    }

    fn peer_asks(&mut self, link: LinkId, from: OsdId, question: MendMsg, at: Index, expected: Option<u32>) {
        let slot = self.pgs.by_pg(question.pg).filter(|slot| {
            let slot = self.pgs.get(*slot);
            let id = &slot.identity;
            let asks = slot.members.osd_of(question.from).is_none_or(|osd| osd == from);
            let ours = id.replica == question.to && id.lineage == question.lineage;
            asks && ours && matches!(slot.state, State::Running(_))
        });
        let replica = question.to;
        // R15: only who has applied as much as the one who asks may say what the block is.
        let exact = slot.is_some_and(|slot| self.pgs.group(slot).is_some_and(|group| group.applied() >= at))
            && self.engine.is_exact(replica, question.chunk, question.block, at);
        let able = (exact || self.is_behind(&question, at) && on(Bug::RepairFromBehind))
            && self.mends.readings.len() < READINGS_MAX;
        if !able {
            let has_part = slot.is_some_and(|slot| self.pgs.group(slot).is_some_and(|group| !group.is_in_doubt()));
            let body = if has_part { MendBody::NotNow } else { MendBody::NoPart };
            return self.answer_mend(link, &question, body);
        }
        let key = (replica, question.chunk, question.block);
        self.read_block(key, Reading::For(Answer { link, question, at, expected }));
    }

    /// Whether the replica that is asked runs, and has applied less than the one that asks.
    fn is_behind(&mut self, question: &MendMsg, at: Index) -> bool {
        let slot = self.pgs.by_replica(question.to);
        slot.is_some_and(|slot| self.pgs.group(slot).is_some_and(|group| group.applied() < at))
    }

    fn read_block(&mut self, (replica, chunk, block): BlockKey, reading: Reading) {
        let key = self.mends.readings.insert(reading);
        let range = SectorRange::new(u32::from(block) * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
        self.read_for(ReadOwner::Block(key), replica, chunk, range);
    }

    pub(crate) fn mend_read_done(&mut self, key: usize, result: Result<ReadData, ReadError>) {
        match self.mends.readings.try_remove(key) {
            None => {}
            Some(Reading::For(answer)) => self.answer_read_done(answer, result),
            Some(Reading::Again(key)) if result.is_ok() => {
                let (replica, chunk, block) = key;
                tracing::info!(replica = replica.0, %chunk, block, "a bad block can be read again");
                self.engine.note_readable(replica, chunk, block);
                self.mends.bad.remove(&key);
                self.release_held();
            }
            // A question to the next member is due anyway.
            Some(Reading::Again(_)) => {}
        }
    }

    /// A block was read for a peer. It may have been looked up again meanwhile, so it is judged again.
    fn answer_read_done(&mut self, answer: Answer, result: Result<ReadData, ReadError>) {
        let Answer { link, question, at, expected } = answer;
        let exact = self.engine.is_exact(question.to, question.chunk, question.block, at)
            || self.is_behind(&question, at) && on(Bug::RepairFromBehind);
        let body = match result {
            Err(ReadError::BadBlocks { .. } | ReadError::Damaged { .. }) => MendBody::Damaged,
            Err(_) => MendBody::NotNow,
            Ok(_) if !exact => MendBody::NotNow,
            Ok(ReadData::Zeros) => {
                MendBody::Block { crc: crc32c(&IoBuf::zeros(types::BLOCK as usize)), payload: IoBuf::EMPTY }
            }
            Ok(ReadData::Bytes { crcs, payload }) => MendBody::Block { crc: crcs[0], payload },
        };
        let body = match body {
            MendBody::Block { crc, .. } if expected.is_some_and(|expected| expected != crc) => {
                tracing::error!(pg = %question.pg, chunk = %question.chunk, block = question.block, index = at.0,
                    "the block differs from the copy of another replica at the same log index");
                MendBody::Damaged
            }
            body => body,
        };
        self.answer_mend(link, &question, body);
    }

    fn answer_mend(&mut self, link: LinkId, q: &MendMsg, body: MendBody) {
        let (from, to) = (q.to, q.from);
        let answer = MendMsg { pg: q.pg, from, to, lineage: q.lineage, id: q.id, chunk: q.chunk, block: q.block, body };
        self.bus.send(link, Message::Mend(answer));
    }

    fn peer_answers(&mut self, from: OsdId, msg: MendMsg) {
        let key = (msg.to, msg.chunk, msg.block);
        let Some(bad) = self.mends.bad.get_mut(&key) else { return };
        let Some(asked) = bad.asked.take_if(|asked| asked.id == msg.id && asked.osd == from) else { return };
        match msg.body {
            MendBody::NoPart => _ = bad.idle.insert(from),
            _ => _ = bad.idle.remove(&from),
        }
        match msg.body {
            MendBody::Ask { .. } => unreachable!("the caller saw an answer"),
            MendBody::Block { crc, payload } => {
                let sound = payload.is_empty() || crc32c(&payload) == crc;
                let data = (!payload.is_empty()).then_some((payload, crc));
                if sound && self.engine.mend(msg.to, msg.chunk, msg.block, asked.at, data) {
                    tracing::info!(pg = %msg.pg, chunk = %msg.chunk, block = msg.block, by = %from,
                        "a damaged block is repaired");
                    self.metrics.blocks_mended.inc();
                    self.mends.bad.remove(&key);
                } else {
                    self.pause(key);
                }
            }
            MendBody::NotNow => self.pause(key),
            MendBody::NoPart => {
                self.pause(key);
                self.name_if_lost(msg.pg, key);
            }
            MendBody::Damaged => {
                bad.lost_on.insert(from);
                self.pause(key);
                self.name_if_lost(msg.pg, key);
            }
        }
        self.release_held();
    }

    fn pause(&mut self, key: BlockKey) {
        let now = self.now;
        if let Some(bad) = self.mends.bad.get_mut(&key) {
            bad.next_at = now + (PAUSE_MIN * (1 << bad.tries.min(6))).min(PAUSE_MAX);
        }
    }

    /// No member has a good copy, or none that is here: it is said, and asked for on and on, because a write mends it, too.
    fn name_if_lost(&mut self, pg: PgId, key: BlockKey) {
        let Some(slot) = self.pgs.by_replica(key.0) else { return };
        let peers = self.peers_of(slot);
        let Some(bad) = self.mends.bad.get_mut(&key) else { return };
        let others: Vec<OsdId> = peers.into_iter().filter(|osd| !bad.lost_on.contains(osd)).collect();
        let named = match &others[..] {
            [] => Named::Everywhere,
            others if others.iter().all(|osd| self.bus.link_to(*osd).is_none() || bad.idle.contains(osd)) => {
                Named::Here
            }
            _ => return,
        };
        if bad.named == named {
            return;
        }
        bad.named = named;
        let lost = extent(key.1, key.2);
        match named {
            Named::Here => {
                tracing::error!(%pg, %lost, away = ?others, "no replica that is up has a good copy of this block")
            }
            _ => tracing::error!(%pg, %lost, "inconsistent: no replica has a good copy of this block"),
        }
        self.meta.report_soon(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::can_lack_one_more;

    #[test]
    fn a_member_begins_anew_beside_one_that_has_no_part_only_while_a_majority_is_left() {
        for (members, idle, can) in
            [(2, 0, true), (2, 1, false), (3, 0, true), (3, 1, false), (4, 1, false), (5, 1, true), (5, 2, false)]
        {
            assert_eq!(can_lack_one_more(members, idle), can, "{idle} of {members} have no part");
        }
    }
}
