//! Digests of the deltas of a replica's chunks at one applied index, which `pg verify` compares. A block that is open counts as zeros where
//! no bytes of an older generation show: a mark may hide nothing on one replica, and be gone on another.
//!
//! Input: queries of a tool, applied indexes, results of reads. Output: reads, and one answer to each query. A query waits until its
//! replica has applied exactly the requested index. Then all reads of the chunk are issued in that very turn, so they show one
//! applied state.
//!
//! Invariant: a digest changes nothing. Running and waiting queries have limits, and waiting ones a deadline. A read that a destage
//! round sent to a second look may show a later index: then the tool gets no digest and asks again.

use crate::host::{Action, Host, Read, ReadResult};
use crate::stream::Blocks;
use slab::Slab;
use types::hash::plain_hash;
use types::limits::PART_MAX;
use types::store::{ChunkDelta, ReadData, ReadError};
use types::units::{BLOCK, SECTOR, SECTORS_PER_CHUNK};
use types::{ChunkKey, Index, ReplicaId, SectorRange, Time, crc32c};

/// Parts of a chunk, and values of a digest.
pub const PARTS: usize = (SECTORS_PER_CHUNK as u64 * SECTOR / PART_MAX) as usize;

const PART_SECTORS: u32 = (PART_MAX / SECTOR) as u32;
/// Value of a part of which all blocks show older generations.
const OLDER: u32 = 1;
const PART_BLOCKS: usize = (PART_MAX / BLOCK) as usize;

/// A query for the digest of a chunk at exactly this applied index.
#[derive(Clone, Debug)]
pub struct DigestQuery {
    /// The answer bears it.
    pub id: u64,
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub at: Index,
    /// End of the wait for the index.
    pub until: Time,
    /// Not the bytes count, but the table that says which blocks hold data. No byte is read.
    pub of_table: bool,
}

/// The answer to a [`DigestQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestAnswer {
    /// One value for each part: 0 when it is all zeros, or holds no data; 1 when all of it is an older generation's.
    Digest { at: Index, parts: Vec<u32> },
    /// The requested index has passed: `applied` is the present one.
    Passed { applied: Index },
    /// The index was not applied in time.
    Late { applied: Index },
    /// The PG does not have the generation at this index. The blocks of a removed one may belong to another, and a member may have merged
    /// them or not, so their digest would compare nothing.
    Ended { at: Index },
    /// The reads may show more than one applied state, or as many queries run as may.
    Busy,
    /// The replica cannot be read.
    Unreadable { reason: String },
    /// Bytes of these parts cannot be read or fail their checksums; each with the cause.
    Damaged { at: Index, parts: Vec<(usize, String)> },
}

struct Running {
    id: u64,
    at: Index,
    parts: Vec<u32>,
    left: usize,
    /// [`Host::reads_looked_up_again`] when the reads were issued.
    looks: u64,
    failure: Option<String>,
    damaged: Vec<(usize, String)>,
    /// The chunk's own blocks, where another generation may show.
    own: Option<Box<Blocks>>,
}

/// All digests of one OSD.
#[derive(Default)]
pub struct Digests {
    /// Most that run at once, and most that wait.
    limits: (usize, usize),
    waiting: Vec<DigestQuery>,
    running: Slab<Running>,
}

impl Digests {
    pub fn new(running_max: usize, waiting_max: usize) -> Digests {
        Digests { limits: (running_max, waiting_max), ..Digests::default() }
    }

    pub fn next_deadline(&self) -> Time {
        self.waiting.iter().map(|w| w.until).min().unwrap_or(Time::NEVER)
    }

    /// Whether no query waits. The hot path asks this before anything else.
    pub fn none_waits(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a query. False: as many run or wait as may.
    pub fn ask(&mut self, query: DigestQuery) -> bool {
        let is_free = self.running.len() < self.limits.0 && self.waiting.len() < self.limits.1;
        self.waiting.extend(is_free.then_some(query));
        is_free
    }

    /// Once a turn: gives up queries that waited too long, and starts those that are already at their index.
    pub fn step(&mut self, host: &mut impl Host) {
        let mut n = 0;
        while n < self.waiting.len() {
            let DigestQuery { replica, at, until, .. } = self.waiting[n];
            let answer = match host.follow(replica).filter(|group| !group.is_paused).map(|group| group.applied) {
                Some(applied) if applied > at => DigestAnswer::Passed { applied },
                Some(applied) if applied == at => {
                    self.start(host, n);
                    continue;
                }
                Some(applied) if until <= host.now() => DigestAnswer::Late { applied },
                Some(_) => {
                    n += 1;
                    continue;
                }
                None => DigestAnswer::Unreadable { reason: "the replica was removed during the query".to_owned() },
            };
            host.act(Action::AnswerTool { id: self.waiting.swap_remove(n).id, answer });
        }
    }

    /// Starts the queries about exactly this state: the engine has just applied `index`.
    pub fn handle_applied(&mut self, host: &mut impl Host, replica: ReplicaId, index: Index) {
        while let Some(n) = self.waiting.iter().position(|w| w.replica == replica && w.at == index) {
            self.start(host, n);
        }
    }

    fn start(&mut self, host: &mut impl Host, n: usize) {
        let DigestQuery { id, replica, chunk, at, of_table, .. } = self.waiting.swap_remove(n);
        // Several may have waited for the same index.
        if self.running.len() >= self.limits.0 {
            return host.act(Action::AnswerTool { id, answer: DigestAnswer::Busy });
        }
        if host.tree(replica).is_some_and(|tree| tree.get(chunk.generation).is_none()) {
            return host.act(Action::AnswerTool { id, answer: DigestAnswer::Ended { at } });
        }
        if of_table {
            let parts = table(&host.delta(replica, chunk));
            return host.act(Action::AnswerTool { id, answer: DigestAnswer::Digest { at, parts } });
        }
        let looks = host.reads_looked_up_again();
        let (parts, damaged) = (vec![0; PARTS], Vec::new());
        let delta = host.delta(replica, chunk);
        let own = delta.is_deep.then(|| Box::new(Blocks::own(&delta)));
        let key = self.running.insert(Running { id, at, parts, left: PARTS, looks, failure: None, damaged, own });
        for part in 0..PARTS {
            let range = SectorRange::new(part as u32 * PART_SECTORS, PART_SECTORS);
            host.act(Action::Read { read: Read::Digest { key, part }, replica, chunk, range });
        }
    }

    /// Takes the finished read of a part.
    pub fn handle_read(&mut self, host: &mut impl Host, (key, part): (usize, usize), result: ReadResult) {
        // A poisoned store has answered already.
        let Some(run) = self.running.get_mut(key) else { return };
        match result {
            Ok(ReadData::Bytes { payload, .. }) => {
                let own = run.own.as_ref().map_or(u128::MAX, |own| own.window(part * PART_BLOCKS));
                run.parts[part] = digest_of_own(&payload, own);
            }
            Ok(ReadData::Zeros) => run.parts[part] = 0,
            Err(error @ (ReadError::Damaged { .. } | ReadError::BadBlocks { .. })) => {
                run.damaged.push((part, error.to_string()))
            }
            Err(error) => run.failure = Some(error.to_string()),
        }
        run.left -= 1;
        if run.left > 0 {
            return;
        }
        let mut run = self.running.remove(key);
        let answer = match run.failure {
            Some(reason) => DigestAnswer::Unreadable { reason },
            None if !run.damaged.is_empty() => {
                run.damaged.sort_unstable();
                DigestAnswer::Damaged { at: run.at, parts: run.damaged }
            }
            None if run.looks != host.reads_looked_up_again() => DigestAnswer::Busy,
            None => DigestAnswer::Digest { at: run.at, parts: run.parts },
        };
        host.act(Action::AnswerTool { id: run.id, answer });
    }

    /// Ends all queries: the store is poisoned.
    pub fn fail(&mut self, host: &mut impl Host, reason: &str) {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|w| w.id);
        for id in waiting.chain(std::mem::take(&mut self.running).into_iter().map(|(_, run)| run.id)) {
            host.act(Action::AnswerTool { id, answer: DigestAnswer::Unreadable { reason: reason.to_owned() } });
        }
    }
}

/// Computes for each part the CRC of the numbers of the blocks that hold data; 0 when none does. Blocks count as wholes, because
/// one replica may have destaged a block that another still holds by sectors.
fn table(delta: &ChunkDelta) -> Vec<u32> {
    let held = Blocks::held(delta);
    let of_part = |part: usize| {
        let blocks = (part * PART_BLOCKS..(part + 1) * PART_BLOCKS).filter(|block| held.contains(*block));
        let bytes: Vec<u8> = blocks.flat_map(|block| (block as u32).to_le_bytes()).collect();
        if bytes.is_empty() { 0 } else { crc32c(&bytes).max(1) }
    };
    (0..PARTS).map(of_part).collect()
}

/// Computes the digest of a part of which some blocks are a chunk's own; bit 0 is the first. The bytes of the others are an older
/// generation's: that they show counts, and not what they are. 1 stands for a part that shows nothing else.
fn digest_of_own(bytes: &[u8], own: u128) -> u32 {
    let shows = |(n, block): (usize, &[u8])| own >> n & 1 == 0 && block.iter().any(|b| *b != 0);
    let blocks = || bytes.chunks(BLOCK as usize).enumerate();
    let older = blocks().filter(|block| shows(*block)).fold(0u128, |bits, (n, _)| bits | 1 << n);
    if older == 0 {
        return digest(bytes);
    }
    let mut own = Vec::with_capacity(bytes.len() + size_of::<u128>());
    blocks().filter(|(n, _)| older >> n & 1 == 0).for_each(|(_, block)| own.extend_from_slice(block));
    if own.is_empty() {
        return OLDER;
    }
    own.extend_from_slice(&older.to_le_bytes());
    (plain_hash(&own) as u32).max(OLDER + 1)
}

/// Computes the digest of a part's bytes, the low 32 bits of xxh3-64; 0 stands for a part that is all zeros, however it is stored.
fn digest(bytes: &[u8]) -> u32 {
    if bytes.iter().all(|b| *b == 0) { 0 } else { (plain_hash(bytes) as u32).max(1) }
}

const _: () = assert!(PARTS * PART_SECTORS as usize == SECTORS_PER_CHUNK as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn part(stamps: [u8; PART_BLOCKS]) -> Vec<u8> {
        stamps.iter().flat_map(|stamp| [*stamp; BLOCK as usize]).collect()
    }

    #[test]
    fn older_blocks_count_as_shown_and_marks_over_nothing_as_zeros() {
        let mut stamps = [3; PART_BLOCKS];
        (stamps[1], stamps[2]) = (7, 0);
        let all = u128::MAX;
        let bytes = part(stamps);
        assert_eq!(digest_of_own(&bytes, all), digest(&bytes));
        assert_eq!(digest_of_own(&bytes, all ^ 1 << 2), digest(&bytes), "an open block over nothing is zeros");
        let shown = digest_of_own(&bytes, all ^ 1 << 1);
        assert_ne!(shown, digest(&bytes), "own bytes that are equal to the parent's are not open");
        stamps[1] = 8;
        assert_eq!(digest_of_own(&part(stamps), all ^ 1 << 1), shown, "the parent's bytes do not count");
        stamps[1] = 0;
        assert_ne!(digest_of_own(&part(stamps), all), shown, "a mark hides them");
        assert_eq!(digest_of_own(&part([3; PART_BLOCKS]), 0), OLDER);
        assert_eq!(digest_of_own(&part([0; PART_BLOCKS]), 0), 0);
    }
}
