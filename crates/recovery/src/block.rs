//! Block repair (R15, ADR 0022): blocks of home that cannot be read are repaired with copies of the PG's other replicas.
//!
//! Input: bad blocks that the engine has found, messages, results of reads, and one step a turn. Output: queries of one member
//! after the other, and copies for the engine, which judges them by the indexes that they bear. One query covers a run of
//! adjacent blocks. A copy that is ahead of the applied index waits until that index has come. Reads of clients that met a bad
//! block wait for it, then the PG is handed over.
//!
//! Invariant: all that waits has limits and deadlines. A block that is bad on every member, or on every member that is
//! up, is named, never guessed. A replica fails (ADR 0023) only when its bad block keeps a full log from being freed.

mod reads;
mod table;

use crate::host::{Action, Host, Part};
use crate::query::Query;
use crate::tuning::RepairTuning;
pub use reads::HeldRead;
use reads::{Held, Reading};
use slab::Slab;
use std::collections::BTreeSet;
use table::BadBlocks;
use types::control::{LOST_REPORTED_MAX, LostExtent};
use types::map::Member;
use types::store::{BlockCopy, MendRefusal};
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, GenerationId, Index, IoBuf, OsdId, ReplicaId, SectorRange, Time, VolumeChunk};
use wire::{MEND_BLOCKS_MAX, MendBody, MendMsg, Message};

/// Blocks of the queries on their way, from which no further query is sent. All of their copies may reach the log at once.
const ASKED_BLOCKS_MAX: usize = 256;
/// Reads at once, for peers and once more here.
const READINGS_MAX: usize = 64;
/// Blocks of these reads, from which no further read begins.
const READING_BLOCKS_MAX: usize = 1024;
/// Blocks that are read together when the first bad one of them is found: an aligned part of a chunk. A query of a run stays in it.
const WINDOW_BLOCKS: u16 = MEND_BLOCKS_MAX;

/// A block: its replica, its chunk, and its number in the chunk.
pub type BlockKey = (ReplicaId, ChunkKey, u16);

/// A bad block of a local replica.
struct Bad {
    reason: String,
    /// Time since when all members are up and take part, or have reported their copies as bad.
    since: Time,
    next_at: Time,
    tries: u32,
    query: Query<Unable>,
    /// Number of the query on its way, which all blocks of a run share.
    id: u64,
    /// The chunk that it names: members merge dissolved generations at different times, so a block is asked for as one of its heir.
    asked_as: ChunkKey,
    /// A member's copy, which holds entries that are not applied here yet.
    copy: Option<(Member, BlockCopy)>,
    /// A member's copy of an earlier index: the log of another one may make it whole.
    older: Option<IoBuf>,
    /// The query on its way, or the last one, brings an older copy along.
    brings_older: bool,
    named: Named,
}

/// Reasons why a member does not give a block, by its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unable {
    /// Its copy is bad, too.
    is_bad: bool,
    /// Its copy of a run with this block is bad somewhere: it is asked for each block alone from then on.
    is_bad_in_run: bool,
    /// It has no part, or lacks the contents at the checkpoint index, by its last answer of them.
    lacks: bool,
}

/// Members of which no good copy is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// None: a member may have a good copy.
    No,
    /// It is bad on every member that is up and has the contents of the PG; another may have it.
    Here,
    /// It is bad on every member.
    Everywhere,
}

/// All block repairs of one OSD.
#[derive(Default)]
pub struct BlockRepairs {
    tuning: RepairTuning,
    bad: BadBlocks,
    /// Blocks whose copy is ahead of what is applied here.
    ahead: BTreeSet<BlockKey>,
    held: Vec<Held>,
    readings: Slab<Reading>,
    next_id: u64,
    /// Time since when the log holds proposals back.
    full_since: Option<Time>,
}

/// Whether a PG of which `idle` members have no part goes on when one more fails: the others are a majority. A PG of two goes
/// on from the other one, by a forced recovery without loss.
fn can_lack_one_more(members: usize, idle: usize) -> bool {
    idle == 0 || members - 1 - idle > members / 2
}

fn extent(chunk: VolumeChunk, block: u16) -> LostExtent {
    let len_bytes = BLOCK as u32;
    LostExtent { chunk, offset_bytes: u32::from(block) * len_bytes, len_bytes }
}

/// Returns the first block of the window of a block.
fn window_of((replica, chunk, block): BlockKey) -> BlockKey {
    (replica, chunk, block / WINDOW_BLOCKS * WINDOW_BLOCKS)
}

/// Copies one block out of a run: the overlay keeps it for long, and must not keep the whole run for it.
fn copy_of_block(run: &IoBuf, nth: usize) -> IoBuf {
    let at = nth * BLOCK as usize;
    IoBuf::copy_of(&run[at..at + BLOCK as usize])
}

fn blocks_of(range: SectorRange) -> std::ops::Range<u16> {
    (range.start / SECTORS_PER_BLOCK) as u16..range.end().div_ceil(SECTORS_PER_BLOCK) as u16
}

impl Bad {
    fn new(now: Time, chunk: ChunkKey, reason: String, tries: u32, named: Named) -> Bad {
        Bad {
            asked_as: chunk,
            reason,
            since: now,
            next_at: now,
            tries,
            query: Query::default(),
            id: 0,
            copy: None,
            older: None,
            brings_older: false,
            named,
        }
    }

    fn is_bad_on(&self, peer: Member) -> bool {
        self.query.answers.get(&peer).is_some_and(|unable| unable.is_bad)
    }

    /// Whether the member may lack what this replica has: while that is so, this one may be the last that has it.
    fn lacks_contents(&self, peer: Member) -> bool {
        self.query.answers.get(&peer).is_some_and(|unable| unable.lacks)
    }

    /// Whether a query is on its way, or a copy waits.
    fn is_asked(&self) -> bool {
        self.id != 0
    }

    fn is_due(&self, now: Time) -> bool {
        self.next_at <= now
    }

    /// Returns the next of these members to be asked; `None`: a pass begins, at home.
    fn next_of(&self, reached: &[Member]) -> Option<Member> {
        self.query.next(reached.iter().copied()).filter(|_| self.tries > 0)
    }

    /// Whether this member is the next one, and may give the block as a part of a run.
    fn joins_run_of(&self, to: Member, reached: &[Member]) -> bool {
        let is_refused = self.query.answers.get(&to).is_some_and(|unable| unable.is_bad_in_run);
        self.next_of(reached) == Some(to) && !is_refused && self.older_for(to).is_none()
    }

    /// Returns the older copy that a query of this member brings along: the member has not given the block as it is.
    fn older_for(&self, to: Member) -> Option<&IoBuf> {
        self.older.as_ref().filter(|_| self.query.answers.contains_key(&to))
    }

    /// Ends the present query. The next one waits.
    fn pause(&mut self, now: Time, tuning: &RepairTuning) {
        let RepairTuning { block_pause_min, block_pause_max, .. } = *tuning;
        (self.id, self.copy) = (0, None);
        self.next_at = now + (block_pause_min * (1 << self.tries.min(6))).min(block_pause_max);
    }
}

impl BlockRepairs {
    pub fn new(tuning: RepairTuning) -> BlockRepairs {
        BlockRepairs { tuning, ..BlockRepairs::default() }
    }

    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.bad.edit().clear();
        self.ahead.clear();
        self.held.clear();
        self.readings.clear();
    }

    /// The members of this replica's PG have changed: a query of the earlier ones does not count.
    pub fn ask_again(&mut self, replica: ReplicaId) {
        let first = (replica, ChunkKey { generation: GenerationId(0), index: 0 }, 0);
        for (_, bad) in self.bad.edit().range_mut(first..).take_while(|((id, ..), _)| *id == replica) {
            (bad.id, bad.copy, bad.next_at) = (0, None, Time::ZERO);
        }
    }

    /// Returns the blocks of this replica that are named so, as far as a report lists them, each as one of the chunk that `of` returns.
    pub fn named(
        &self,
        replica: ReplicaId,
        named: Named,
        of: impl Fn(ReplicaId, ChunkKey) -> VolumeChunk,
    ) -> Vec<LostExtent> {
        let all = self.bad.iter().filter(|((id, ..), bad)| *id == replica && bad.named == named);
        all.take(LOST_REPORTED_MAX).map(|((_, chunk, block), _)| extent(of(replica, *chunk), *block)).collect()
    }

    /// Iterates over the bad blocks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (BlockKey, Named)> {
        self.bad.iter().map(|(key, bad)| (*key, bad.named))
    }

    pub fn next_deadline(&self) -> Time {
        self.held.iter().map(|h| h.until).fold(self.bad.next_at(), Time::min)
    }

    /// Notes blocks of home that the engine cannot read. `needed`: a round, or a client's read, waits for them.
    pub fn blocks_are_bad(
        &mut self,
        host: &mut impl Host,
        (replica, chunk, range): (ReplicaId, ChunkKey, SectorRange),
        reason: &str,
        needed: bool,
    ) {
        let Some(part) = host.part(replica) else { return };
        // The only member keeps its other blocks: this one is lost until a write covers it.
        let is_alone = part.others.is_empty();
        if is_alone && !needed {
            return;
        }
        for block in blocks_of(range) {
            let key = (replica, chunk, block);
            if self.bad.contains_key(&key) {
                continue;
            }
            if !self.has_room(host) {
                host.act(Action::ForgetBlock(key));
                continue;
            }
            tracing::warn!(replica = replica.0, %chunk, block, reason, is_alone,
                "a block is damaged: fetching it from the other replicas, if there are any");
            let named = if is_alone { Named::Everywhere } else { Named::No };
            // The first bad block had its neighbours read with it, or has: it may have been forgotten meanwhile.
            let is_read = self.run_mut(window_of(key), WINDOW_BLOCKS).any(|(_, bad)| bad.tries > 0);
            let is_read = is_read || self.reads_window(window_of(key));
            self.bad.edit().insert(key, Bad::new(host.now(), chunk, reason.to_owned(), is_read.into(), named));
        }
    }

    /// Iterates over the bad ones among so many blocks from the first one on.
    fn run_mut(&mut self, first: BlockKey, count: u16) -> impl Iterator<Item = (&BlockKey, &mut Bad)> {
        let (replica, chunk, block) = first;
        self.bad.edit().range_mut(first..(replica, chunk, block + count))
    }

    /// Makes room for one more bad block. A block that delays no destage round is forgotten first: the next read finds it.
    fn has_room(&mut self, host: &mut impl Host) -> bool {
        if self.bad.len() < self.tuning.bad_blocks_max {
            return true;
        }
        let Some(key) = self.bad.keys().find(|key| !host.delays_destage(**key)).copied() else { return false };
        self.forget(host, key);
        true
    }

    fn forget(&mut self, host: &mut impl Host, key: BlockKey) {
        self.bad.edit().remove(&key);
        host.act(Action::ForgetBlock(key));
    }

    /// Offers the copies whose entries are applied now to the engine.
    pub fn offer_copies(&mut self, host: &mut impl Host) {
        self.ahead.retain(|key| {
            let Some((_, copy)) = self.bad.get(key).and_then(|bad| bad.copy.as_ref()) else { return false };
            let is_applied = host.reads_as_of(*key, 1) >= Some(copy.high);
            if is_applied {
                host.act(Action::Mend { key: *key, copy: copy.clone() });
            }
            !is_applied
        });
    }

    /// Does one step of every repair that is due.
    pub fn step(&mut self, host: &mut impl Host) {
        if self.bad.is_empty() && self.held.is_empty() {
            return;
        }
        let now = host.now();
        self.full_since = host.is_log_full().then(|| self.full_since.unwrap_or(now));
        let due = self.bad.due(now);
        if due.is_empty() {
            return self.release_held(host);
        }
        let due: Vec<BlockKey> = due.into_iter().filter(|key| self.begin_step(host, *key)).collect();
        let asked: Vec<u64> = self.bad.values().filter(|b| b.is_asked()).map(|b| b.id).collect();
        let mut asked = (asked.iter().collect::<BTreeSet<_>>().len(), asked.len());
        for key in due {
            // A block before it may have taken it along.
            if self.bad.get(&key).is_some_and(|bad| bad.is_due(now)) {
                self.step_run(host, key, &mut asked);
            }
        }
        self.release_held(host);
    }

    /// Ends the query of a block that is due. False: the block is needed no more, or its replica has failed.
    fn begin_step(&mut self, host: &mut impl Host, key: BlockKey) -> bool {
        let bad = self.bad.edit().get_mut(&key).expect("it was just listed");
        (bad.id, bad.copy) = (0, None);
        let part = host.part(key.0).filter(|part| part.runs && host.needs_block(key));
        let Some(part) = part else {
            // Overwritten, truncated, streamed, or the replica takes no part any more.
            self.forget(host, key);
            return false;
        };
        !self.gives_up(host, key, &part)
    }

    /// Queries the next member for a run of blocks that are due. `asked`: the queries on their way, and their blocks.
    fn step_run(&mut self, host: &mut impl Host, key: BlockKey, asked: &mut (usize, usize)) {
        let (replica, chunk, block) = key;
        let now = host.now();
        let Some(part) = host.part(replica) else { return };
        let reached: Vec<Member> = part.others.iter().copied().filter(|peer| host.reaches(peer.osd)).collect();
        let Some(to) = self.bad[&key].next_of(&reached) else {
            return self.look_at_home(host, key, reached.is_empty());
        };
        // Copies are logged at once, even into the last segments. These stay free for blocks without which the log is never freed.
        let fits = |key| self.full_since.is_none() || host.delays_destage(key);
        if asked.0 >= self.tuning.block_queries_max || asked.1 >= ASKED_BLOCKS_MAX || !fits(key) {
            self.bad.edit().get_mut(&key).expect("the caller found it").next_at = now + self.tuning.block_pause_min;
            return;
        }
        let joins = |key| {
            let bad = self.bad.get(&key).filter(|bad| bad.is_due(now) && fits(key));
            bad.is_some_and(|bad| bad.joins_run_of(to, &reached))
        };
        let window_end = window_of(key).2 + WINDOW_BLOCKS;
        let count = (block..window_end).take_while(|block| joins((replica, chunk, *block))).count().max(1) as u16;
        self.next_id += 1;
        let id = self.next_id;
        let older = self.bad[&key].older_for(to).cloned();
        let asked_as = host.owner_of(replica, chunk);
        for (_, bad) in self.run_mut(key, count) {
            bad.tries += 1;
            (bad.id, bad.asked_as) = (id, asked_as);
            bad.brings_older = older.is_some();
            bad.query.ask(now, to);
            bad.next_at = now + crate::query::ANSWER_MAX;
        }
        *asked = (asked.0 + 1, asked.1 + usize::from(count));
        let body = MendBody::Ask { hash: host.hash_of(key).unwrap_or(0), older: older.unwrap_or_default() };
        let pg = part.pg;
        let query = MendMsg { pg, from: replica, to: to.replica, id, chunk: asked_as, block, count, body };
        host.act(Action::Send { to: to.osd, message: Message::Mend(query) });
    }

    /// Begins a pass at home: a device may fail a read once, and a read may have gone astray. The first bad block has its
    /// neighbours read with it, since damage is rarely alone.
    fn look_at_home(&mut self, host: &mut impl Host, key: BlockKey, is_cut_off: bool) {
        let (now, tuning) = (host.now(), self.tuning);
        let (first, count) = match self.bad[&key].tries {
            0 => (window_of(key), WINDOW_BLOCKS),
            _ => (key, 1),
        };
        for (_, bad) in self.run_mut(first, count) {
            bad.tries += 1;
            bad.query.rewind();
            match is_cut_off {
                false => bad.next_at = now + tuning.block_pause_min,
                true => bad.pause(now, &tuning),
            }
        }
        self.read_again(host, first, count);
    }

    /// Fails a replica whose bad block has kept the log full for too long, although no voter is missing: a full log stops
    /// every PG of the OSD. A block that is bad on all members fails none of them, since that would bring no copy. True when the
    /// replica has failed.
    fn gives_up(&mut self, host: &mut impl Host, key: BlockKey, part: &Part) -> bool {
        let (now, replica) = (host.now(), key.0);
        let voters = || part.members.voters.iter().copied().filter(|m| m.replica != replica);
        let bad = self.bad.edit().get_mut(&key).expect("the caller found it");
        let all_here = voters().all(|peer| host.reaches(peer.osd));
        let idle = voters().filter(|peer| bad.lacks_contents(*peer)).count();
        let mut others = part.others.iter();
        if bad.named == Named::Here && others.all(|peer| host.reaches(peer.osd) && !bad.lacks_contents(*peer)) {
            bad.named = Named::No;
        }
        let is_last = voters().count() == 0 || !can_lack_one_more(voters().count() + 1, idle);
        if !all_here || bad.named != Named::No || is_last {
            // An absent member may have it: the others may be the last that serve, and none of them is given up.
            bad.since = now;
            return false;
        }
        let turn = part.others.iter().filter(|m| m.replica < replica).count() as u32;
        let full_since = self.full_since.map(|since| since.max(bad.since));
        let too_long =
            full_since.is_some_and(|since| now >= since + self.tuning.full_max + self.tuning.full_turn * turn);
        if !too_long || !host.delays_destage(key) {
            return false;
        }
        let reason = format!("the log was full because of a block that could not be repaired: {}", bad.reason);
        self.forget(host, key);
        host.act(Action::Fail { replica, reason });
        true
    }

    /// Handles a member's answer to a query.
    pub fn handle_answer(&mut self, host: &mut impl Host, osd: OsdId, msg: MendMsg) {
        let from = Member { replica: msg.from, osd };
        if let Some(chunk) = self.asked_chunk(&msg) {
            for block in msg.block..msg.block + msg.count {
                self.take_answer(host, (msg.to, chunk, block), from, &msg);
            }
        }
        self.release_held(host);
    }

    /// Returns the chunk of whose blocks this is an answer. The query may have named it as one of its heir.
    fn asked_chunk(&self, msg: &MendMsg) -> Option<ChunkKey> {
        let is_asked = |bad: &Bad| bad.id == msg.id && msg.id != 0 && bad.asked_as == msg.chunk;
        let blocks = || msg.block..msg.block + msg.count;
        let mut own = blocks().filter_map(|block| self.bad.get(&(msg.to, msg.chunk, block)));
        if own.any(is_asked) {
            return Some(msg.chunk);
        }
        let others = self.bad.iter().filter(|((replica, _, block), _)| *replica == msg.to && blocks().contains(block));
        others.filter(|(_, bad)| is_asked(bad)).map(|((_, chunk, _), _)| *chunk).next()
    }

    /// Takes the part of an answer that belongs to this block.
    fn take_answer(&mut self, host: &mut impl Host, key: BlockKey, from: Member, msg: &MendMsg) {
        let Some(bad) = self.bad.edit().get_mut(&key).filter(|bad| bad.id == msg.id && msg.id != 0) else { return };
        if !bad.query.close(from) {
            return;
        }
        let unable = bad.query.answers.entry(from).or_default();
        // A busy member says nothing of its contents.
        unable.lacks = match msg.body {
            MendBody::NoPart => true,
            MendBody::NotNow => unable.lacks,
            _ => false,
        };
        match &msg.body {
            MendBody::Ask { .. } => unreachable!("the caller saw an answer"),
            MendBody::Blocks { low, high, crcs, payload } => {
                // Its device failed once, or its copy was repaired since. A copy of an unknown index is not judged yet.
                if *high > Index(0) && std::mem::take(&mut unable.is_bad) {
                    bad.named = Named::No;
                }
                let nth = usize::from(key.2 - msg.block);
                let data = crcs.get(nth).map(|crc| (copy_of_block(payload, nth), *crc));
                let copy = BlockCopy { low: *low, high: *high, data };
                bad.copy = Some((from, copy.clone()));
                host.act(Action::Mend { key, copy });
            }
            MendBody::NotNow => bad.pause(host.now(), &self.tuning),
            MendBody::NoPart => {
                bad.pause(host.now(), &self.tuning);
                self.name_if_lost(host, key);
            }
            // No try: it happens once for each member, and the next one may have the run.
            MendBody::Damaged if msg.count > 1 => {
                unable.is_bad_in_run = true;
                (bad.id, bad.next_at, bad.tries) = (0, host.now(), bad.tries - 1);
            }
            MendBody::Damaged => self.is_bad_on(host, key, from),
        }
    }

    /// Handles the engine's verdict on a copy that it was given.
    pub fn handle_mended(&mut self, host: &mut impl Host, key: BlockKey, verdict: Result<(), MendRefusal>) {
        let (replica, chunk, block) = key;
        let Some(bad) = self.bad.edit().get_mut(&key) else { return };
        let Some(by) = bad.copy.as_ref().map(|(by, _)| *by) else { return };
        match verdict {
            Ok(()) => {
                tracing::info!(replica = replica.0, %chunk, block, by = %by.osd, "a damaged block is repaired");
                self.bad.edit().remove(&key);
            }
            // It is taken when its entries are applied here, unless it is dropped before.
            Err(MendRefusal::Ahead) => drop(self.ahead.insert(key)),
            Err(MendRefusal::NotNeeded) => self.forget(host, key),
            Err(MendRefusal::Behind) => {
                let copy = bad.copy.as_ref().and_then(|(_, copy)| copy.data.as_ref()).map(|(bytes, _)| bytes.clone());
                bad.older = copy.or_else(|| Some(IoBuf::zeros(BLOCK as usize)));
                bad.query.answers.entry(by).or_default().lacks = true;
                let is_unknown = bad.copy.take().is_some_and(|(_, copy)| copy.high == Index(0));
                match is_unknown && bad.brings_older {
                    // It is being filled, perhaps from here, and its log does not make the block of an older copy.
                    true => self.is_bad_on(host, key, by),
                    false => {
                        let is_asked_again = bad.brings_older;
                        bad.pause(host.now(), &self.tuning);
                        // Still behind: perhaps only a stream from here brings it further, which waits for this block.
                        if is_asked_again {
                            self.name_if_lost(host, key);
                        }
                    }
                }
            }
            Err(MendRefusal::Bytes) => bad.pause(host.now(), &self.tuning),
            Err(MendRefusal::Differs) => {
                tracing::error!(replica = replica.0, %chunk, block, by = %by.osd,
                    "the block differs from the copy of another replica at the same log index");
                self.is_bad_on(host, key, by);
            }
        }
        self.release_held(host);
    }

    fn is_bad_on(&mut self, host: &mut impl Host, key: BlockKey, peer: Member) {
        let bad = self.bad.edit().get_mut(&key).expect("the caller found it");
        bad.query.answers.entry(peer).or_default().is_bad = true;
        bad.pause(host.now(), &self.tuning);
        self.name_if_lost(host, key);
    }

    /// Names a block of which no member has a good copy, or none that is up. The queries go on, since a write of the whole
    /// block repairs it, too.
    fn name_if_lost(&mut self, host: &mut impl Host, key: BlockKey) {
        let (Some(part), Some(bad)) = (host.part(key.0), self.bad.edit().get_mut(&key)) else { return };
        let others: Vec<Member> = part.others.iter().copied().filter(|peer| !bad.is_bad_on(*peer)).collect();
        let named = match &others[..] {
            [] => Named::Everywhere,
            others if others.iter().all(|peer| !host.reaches(peer.osd) || bad.lacks_contents(*peer)) => Named::Here,
            _ => return,
        };
        if bad.named == named {
            return;
        }
        bad.named = named;
        let (pg, lost) = (part.pg, extent(host.volume_chunk(key.0, key.1), key.2));
        match named {
            Named::Here => {
                tracing::error!(%pg, %lost, away = ?others, "no replica that is up has a good copy of this block")
            }
            _ => tracing::error!(%pg, %lost, "inconsistent: no replica has a good copy of this block"),
        }
        host.act(Action::Report);
    }
}

#[cfg(test)]
mod tests {
    use super::can_lack_one_more;

    #[test]
    fn member_fails_beside_one_without_a_part_only_while_a_majority_is_left() {
        for (members, idle, can) in
            [(2, 0, true), (2, 1, false), (3, 0, true), (3, 1, false), (4, 1, false), (5, 1, true), (5, 2, false)]
        {
            assert_eq!(can_lack_one_more(members, idle), can, "{idle} of {members} have no part");
        }
    }
}
