//! Reads that block repair waits for, and reads of clients that wait for block repair.
//!
//! Input: reads that met bad blocks, queries of peers, and results of reads. Output: reads, answers to peers, and the end of
//! each read that waits.
//!
//! Invariant: an answer to a peer bears the applied indexes at the begin and at the end of its read. A block of the base of a
//! replica that is being filled bears index 0: the peer knows it by its checksum, or not at all.

use super::{Bad, BlockKey, BlockRepairs, Named, READING_BLOCKS_MAX, READINGS_MAX, WINDOW_BLOCKS, blocks_of};
use crate::host::{Action, Host, Read, ReadResult};
use std::time::Duration;
use types::store::{ReadData, ReadError};
use types::{BLOCK, ChunkKey, CrcList, Index, IoBuf, OsdId, ReplicaId, SectorRange, Time, block_hash, crc32c};
use wire::{MendBody, MendMsg, Message};

/// How long a client's read waits for its block before the PG is handed over.
const READ_WAIT: Duration = Duration::from_millis(500);
/// How long a client's read waits for its block in all.
const READ_MAX: Duration = Duration::from_secs(30);

/// A client's read that met a bad block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRead {
    pub replica: ReplicaId,
    /// The group's number of the read.
    pub read: u64,
    pub chunk: ChunkKey,
    pub range: SectorRange,
}

pub(super) struct Held {
    read: HeldRead,
    since: Time,
    pub until: Time,
}

/// A read of bad blocks once more here, or a read for a peer.
pub(super) enum Reading {
    /// The first block, and the number of blocks.
    Again(BlockKey, u16),
    /// `low`: the index that was applied when the read began; `None`: a read of the base of a replica that is being filled.
    For { osd: OsdId, query: MendMsg, low: Option<Index> },
    /// A read of which the result is not wanted any more.
    Ended,
}

impl Reading {
    /// Returns the number of its blocks, or an upper bound.
    fn blocks(&self) -> usize {
        usize::from(match self {
            Reading::Again(_, count) => *count,
            Reading::For { query, .. } => query.count,
            Reading::Ended => WINDOW_BLOCKS,
        })
    }
}

impl BlockRepairs {
    /// The earlier group of this replica has ended. The reads that it held are dropped. Reads for peers get no answer: they
    /// began at an index of the earlier contents.
    pub fn detach(&mut self, replica: ReplicaId) {
        self.held.retain(|held| held.read.replica != replica);
        for (_, reading) in &mut self.readings {
            if matches!(reading, Reading::For { query, .. } if query.to == replica) {
                *reading = Reading::Ended;
            }
        }
    }

    /// Whether the window of this first block is being read once more.
    pub(super) fn reads_window(&self, first: BlockKey) -> bool {
        let reads = |reading: &Reading| matches!(reading, Reading::Again(key, WINDOW_BLOCKS) if *key == first);
        self.readings.iter().any(|(_, reading)| reads(reading))
    }

    /// Counts the queries since the start.
    pub fn queries_for_tools(&self) -> u64 {
        self.next_id
    }

    /// Makes this OSD too busy to read blocks for peers.
    pub fn busy_for_tools(&mut self) {
        (0..READINGS_MAX).for_each(|_| _ = self.readings.insert(Reading::Ended));
    }

    /// Holds a client's read that met a bad block, or fails it when no member has a good copy.
    pub fn hold_read(&mut self, host: &mut impl Host, read: HeldRead) {
        let (is_bad, is_lost) = self.state_of(host, read);
        // None is under repair: there is no member to query.
        if is_lost || !is_bad {
            return self.fail_read(host, read, is_lost);
        }
        let (since, until) = (host.now(), host.now() + READ_WAIT);
        self.held.push(Held { read, since, until });
    }

    /// Returns the bad blocks without which the read has no answer: those of its chunk, and those of other generations that it shows.
    fn bad_of(&self, host: &impl Host, HeldRead { replica, chunk, range, .. }: HeldRead) -> Vec<&Bad> {
        let of = |chunk| blocks_of(range).filter_map(move |block| self.bad.get_key_value(&(replica, chunk, block)));
        let older = host.older_of(replica, chunk).into_iter().flat_map(of);
        let shown = older.filter(|(key, _)| host.shows_block(chunk, **key));
        of(chunk).chain(shown).map(|(_, bad)| bad).collect()
    }

    /// Returns whether a block of the read is known to be bad, and whether one has no good copy on any member.
    fn state_of(&self, host: &impl Host, read: HeldRead) -> (bool, bool) {
        let bad = self.bad_of(host, read);
        (!bad.is_empty(), bad.iter().any(|bad| bad.named == Named::Everywhere))
    }

    /// The PG goes to a member whose copy of these blocks may be good, if there is one.
    fn hand_over(&self, host: &impl Host, read: HeldRead) -> Action {
        let (replica, bad) = (read.replica, self.bad_of(host, read));
        let lost_on = bad.iter().flat_map(|bad| bad.query.answers.iter().filter(|(_, unable)| unable.is_bad));
        Action::HandOver { replica, avoid: lost_on.map(|(peer, _)| peer.osd).collect() }
    }

    /// `lost`: no other member can answer it either.
    fn fail_read(&self, host: &mut impl Host, read: HeldRead, lost: bool) {
        if !lost {
            let action = self.hand_over(host, read);
            host.act(action);
        }
        host.act(Action::FailRead { replica: read.replica, read: read.read });
    }

    /// Reads whose blocks are whole again, and those that have waited enough.
    pub(super) fn release_held(&mut self, host: &mut impl Host) {
        let now = host.now();
        for mut held in std::mem::take(&mut self.held) {
            let (is_bad, is_lost) = self.state_of(host, held.read);
            // The read was refused when that leadership ended.
            if !host.is_reading(held.read.replica, held.read.read) {
                continue;
            }
            if is_lost || now >= held.since + READ_MAX {
                self.fail_read(host, held.read, is_lost);
            } else if !is_bad {
                host.act(Action::StartRead(held.read));
            } else {
                if now >= held.until {
                    // The next leader answers it. While no member can lead, it waits on.
                    let action = self.hand_over(host, held.read);
                    host.act(action);
                    held.until = now + READ_WAIT;
                }
                self.held.push(held);
            }
        }
    }

    /// Whether one more read may begin.
    fn has_room_to_read(&self) -> bool {
        let blocks: usize = self.readings.iter().map(|(_, reading)| reading.blocks()).sum();
        self.readings.len() < READINGS_MAX && blocks < READING_BLOCKS_MAX
    }

    /// Reads bad blocks once more, or a bad block with its neighbours.
    pub(super) fn read_again(&mut self, host: &mut impl Host, first: BlockKey, count: u16) {
        if self.has_room_to_read() {
            let (replica, chunk, block) = first;
            let read = Read::Block(self.readings.insert(Reading::Again(first, count)));
            host.act(Action::Read { read, replica, chunk, range: SectorRange::of_blocks(block, count) });
        }
    }

    /// Handles a member's query.
    pub fn handle_query(&mut self, host: &mut impl Host, osd: OsdId, mut query: MendMsg) {
        let part = host.part(query.to).filter(|part| {
            // A replica of an ended timeline may name indexes of other entries (ADR 0020).
            let asks = part.members.admits(query.from) && part.members.osd_of(query.from).is_none_or(|of| of == osd);
            asks && part.pg == query.pg && part.runs
        });
        let Some(_) = part else { return host.act(answer(osd, &query, MendBody::NoPart)) };
        let (chunk, count, range) = (query.chunk, query.count, SectorRange::of_blocks(query.block, query.count));
        let key = (query.to, chunk, query.block);
        if let MendBody::Ask { older, .. } = &mut query.body {
            // It is a part of the frame, which must not wait for the read.
            let older = std::mem::replace(older, IoBuf::EMPTY);
            if let Some(made) = make(host, &query, &older) {
                return host.act(answer(osd, &query, made));
            }
        }
        let low = host.reads_as_of(key, count);
        let is_open = low.is_some() && host.is_open(key, count);
        if (low.is_none() || is_open) && count > 1 {
            // Some of these blocks may be known as of an index, and others not.
            return host.act(answer(osd, &query, MendBody::Damaged));
        }
        if is_open || !self.has_room_to_read() {
            return host.act(answer(osd, &query, MendBody::NotNow));
        }
        let Some(replica) = low.map(|_| query.to).or_else(|| host.base_for(query.to)) else {
            let body = of_base(host, &query, IoBuf::zeros(BLOCK as usize));
            return host.act(answer(osd, &query, body));
        };
        let key = self.readings.insert(Reading::For { osd, query, low });
        let read = if low.is_some() { Read::Block(key) } else { Read::BaseBlock(key) };
        host.act(Action::Read { read, replica, chunk, range });
    }

    /// Handles the result of a read.
    pub fn handle_read(&mut self, host: &mut impl Host, key: usize, result: ReadResult) {
        match self.readings.try_remove(key) {
            None | Some(Reading::Ended) => {}
            Some(Reading::For { osd, query, low }) => {
                let body = body_of(host, &query, low, result);
                host.act(answer(osd, &query, body));
            }
            Some(Reading::Again(first, count)) if result.is_ok() => {
                let whole: Vec<BlockKey> = self.run_mut(first, count).map(|(key, _)| *key).collect();
                for key in whole {
                    let (replica, chunk, block) = key;
                    tracing::info!(replica = replica.0, %chunk, block, "a bad block can be read again");
                    self.forget(host, key);
                }
                self.release_held(host);
            }
            Some(Reading::Again(first, count)) => {
                // All bad blocks of the window are known now, and one query covers those that are adjacent. After a later
                // look, a query of the next member is due anyway.
                let now = host.now();
                let looked_at = self.run_mut(first, count).filter(|(_, bad)| bad.tries == 1);
                looked_at.for_each(|(_, bad)| bad.next_at = now);
            }
        }
    }
}

/// Returns the answer with blocks that were read for a peer. The read began at the applied index `low` and may have been looked up
/// at a later one.
fn body_of(host: &mut impl Host, query: &MendMsg, low: Option<Index>, result: ReadResult) -> MendBody {
    if !host.part(query.to).is_some_and(|part| part.members.admits(query.from)) {
        return MendBody::NotNow;
    }
    let Some(low) = low else {
        return match result {
            Ok(ReadData::Bytes { payload, .. }) => of_base(host, query, payload),
            Ok(ReadData::Zeros) | Err(_) => of_base(host, query, IoBuf::zeros(BLOCK as usize)),
        };
    };
    let key = (query.to, query.chunk, query.block);
    // A merge during the read makes of the block one of an heir.
    let is_told = |high: &Index| *high >= low && !host.is_open(key, query.count);
    let high = host.reads_as_of(key, query.count).filter(is_told);
    match (result, high) {
        (Err(ReadError::BadBlocks { .. } | ReadError::Damaged { .. }), _) => MendBody::Damaged,
        (Err(_), _) | (Ok(_), None) => MendBody::NotNow,
        (Ok(ReadData::Zeros), Some(high)) => {
            MendBody::Blocks { low, high, crcs: CrcList::new(), payload: IoBuf::EMPTY }
        }
        (Ok(ReadData::Bytes { crcs, payload }), Some(high)) => MendBody::Blocks { low, high, crcs, payload },
    }
}

/// Returns the answer of a replica that is being filled: the block of its base, or the one that its log makes of it. Where the base has
/// nothing to read, zeros stand for it.
fn of_base(host: &impl Host, query: &MendMsg, base: IoBuf) -> MendBody {
    make(host, query, &base).unwrap_or_else(|| of_unknown_index(base))
}

fn of_unknown_index(block: IoBuf) -> MendBody {
    MendBody::Blocks { low: Index(0), high: Index(0), crcs: CrcList::from_elem(crc32c(&block), 1), payload: block }
}

/// Returns the answer with the block that the log of a replica that is being filled makes of an older copy, if it has the checksum
/// which the peer wants.
fn make(host: &impl Host, query: &MendMsg, older: &IoBuf) -> Option<MendBody> {
    let MendBody::Ask { hash, .. } = query.body else { return None };
    let key = (query.to, query.chunk, query.block);
    let made = host.over_older(key, older)?;
    (block_hash(host.place_of(key), &made) == hash).then(|| of_unknown_index(made))
}

fn answer(osd: OsdId, q: &MendMsg, body: MendBody) -> Action {
    let (from, to) = (q.to, q.from);
    let answer = MendMsg { pg: q.pg, from, to, id: q.id, chunk: q.chunk, block: q.block, count: q.count, body };
    Action::Send { to: osd, message: Message::Mend(answer) }
}
