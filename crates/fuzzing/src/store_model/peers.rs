//! What the other replicas of a PG would do for the engine: give payloads and blocks back, and end a doubt.
//!
//! The rig comes in with what a mount or a read found damaged. The model stands for every peer: it knows all bytes.
//! Laws: wrong bytes are refused, the right ones are taken; what was given back is all there after the next mount; a
//! replica that was repaired is held to the same model as one that was never damaged.

use super::SECTORS;
use super::model::Model;
use super::rig::{Damage, Rig};
use types::store::{HardState, Recovered};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, crc32c};

/// What peers have done in one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Help {
    pub blocks_mended: u64,
    pub replicas_refilled: u64,
    pub tails_cut: u64,
    pub doubts_ended: u64,
}

/// Bytes that nobody ever wrote.
fn wrong(len: usize) -> IoBuf {
    IoBuf::copy_of(&vec![0xa5; len])
}

impl Rig {
    /// Gives back bad blocks of home, as of what is applied. False: it cannot be said now what they were.
    pub(super) fn mend(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> bool {
        (range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK))
            .all(|block| self.mend_block(replica, chunk, block as u16))
    }

    fn mend_block(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> bool {
        let Some(model) = self.models.get(&replica).filter(|m| !m.damaged) else { return false };
        let at = Index(model.applied);
        // No copy of it is needed any more.
        let Some(ask) = self.engine.mend_ask(replica, chunk, block) else { return true };
        if ask.applied != at {
            return false;
        }
        let range = SectorRange::new(u32::from(block) * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
        let bytes = match range.end() <= SECTORS {
            true => model.expected(chunk, range),
            false => vec![0; range.len_bytes()],
        };
        let crc = crc32c(&bytes);
        if let Some(expected) = ask.expected {
            if expected != crc {
                // A tail that was taken back may have brought an older home back.
                assert!(self.doubtful, "{replica} {chunk} block {block}: home's checksum is of other bytes");
                return false;
            }
            let wrong = wrong(range.len_bytes());
            let crc = crc32c(&wrong);
            assert!(!self.engine.mend(replica, chunk, block, at, Some((wrong, crc))), "wrong bytes are taken");
        }
        let taken = self.engine.mend(replica, chunk, block, at, Some((IoBuf::copy_of(&bytes), crc)));
        assert!(taken, "{replica} {chunk} block {block}: the right bytes are refused");
        self.help.blocks_mended += 1;
        true
    }

    /// Brings back what the log has lost of a replica, then its group is made. What is not committed may be cut off
    /// instead, as when no other member ever had it.
    pub(super) fn refill(&mut self, model: Model, mut found: Recovered, mut damage: Damage) {
        let id = found.identity.replica;
        for lost in std::mem::take(&mut found.lost) {
            if id.0.is_multiple_of(2) && lost.index > found.hard_state.commit {
                self.engine.cut_lost(id, lost.index);
                found.entries.retain(|entry| entry.index < lost.index);
                damage.tail_in_doubt = true;
                self.help.tails_cut += 1;
                break;
            }
            let genuine = model.entry_of(lost.index.0, lost.term).expect("a lost entry was appended once");
            assert!(lost.is(&genuine.payload), "{id}: the record of entry {} names other bytes", lost.index);
            if !self.engine.can_refill() {
                self.dying.insert(id);
                return;
            }
            let wrong = wrong(genuine.payload.len());
            assert!(!self.engine.refill(id, lost.index, lost.term, wrong), "wrong bytes are taken");
            let taken = self.engine.refill(id, lost.index, lost.term, genuine.payload.clone());
            assert!(taken, "{id}: the right payload of entry {} is refused", lost.index);
            let entry = found.entries.iter_mut().find(|e| e.index == lost.index).expect("its record is there");
            assert_eq!((entry.term, &entry.descriptor), (genuine.term, &genuine.descriptor));
            *entry = genuine;
        }
        self.settle();
        if !self.refilled.remove(&id) {
            assert!(self.poisoned || self.spoilt.contains(&id), "{id} has all payloads and is not whole");
            self.dying.insert(id);
            return;
        }
        self.help.replicas_refilled += 1;
        self.models.insert(id, model);
        self.check_recovered(found, damage);
    }

    /// All members have said how far they are: the replica follows from what it has left, and catches up.
    pub(super) fn end_doubt(&mut self, model: Model, mut found: Recovered, mut damage: Damage) {
        let id = found.identity.replica;
        // Without a home it begins as it was born: only a stream could bring it back.
        if found.checkpoint.bytes.is_empty() || !self.engine.may_follow_in_doubt(id) {
            self.dying.insert(id);
            return;
        }
        let term = found.hard_state.term.max(model.term);
        let hard_state = HardState { term, vote: None, commit: found.hard_state.commit };
        self.engine.follow_in_doubt(id, hard_state);
        found.hard_state = hard_state;
        self.settle();
        if self.poisoned || self.spoilt.contains(&id) {
            self.dying.insert(id);
            return;
        }
        self.models.insert(id, model);
        // What its log has lost is the leader's to send again.
        damage.tail_in_doubt = true;
        self.check_recovered(found, damage);
        self.engine.doubt_over(id);
        self.help.doubts_ended += 1;
        self.settle();
    }
}
