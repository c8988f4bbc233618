//! Repairs by the other replicas of a PG: payload repair and block repair; and the revival of failed replicas.
//!
//! The rig calls these functions with the damage that a mount or a read found. The model stands for every peer.
//! Properties: wrong bytes are refused, and the right ones are taken. Repaired data is complete after the next mount. A
//! repaired replica is held to the same model as one that was never damaged.

use super::rig::{Damage, Rig};
use engine::testing::{Model, SECTORS};
use types::store::{BlockCopy, MendRefusal, Recovered};
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, Index, IoBuf, ReplicaId, SectorRange, crc32c};

/// Counts of the peers' repairs in one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Help {
    pub blocks_mended: u64,
    pub replicas_refilled: u64,
    pub tails_cut: u64,
    pub replicas_revived: u64,
}

impl Rig {
    /// Repairs bad blocks of home to their contents at the applied index. Returns false if those contents are not
    /// known.
    pub(super) fn mend(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> bool {
        (range.start / SECTORS_PER_BLOCK..range.end().div_ceil(SECTORS_PER_BLOCK))
            .all(|block| self.mend_block(replica, chunk, block as u16))
    }

    fn mend_block(&mut self, replica: ReplicaId, chunk: ChunkKey, block: u16) -> bool {
        let Some(model) = self.harness.models.get(&replica).filter(|m| !m.damaged) else { return false };
        let at = Index(model.applied);
        // The block needs no repair any more.
        if !self.harness.engine.needs_mend(replica, chunk, block) {
            self.harness.engine.forget_bad(replica, chunk, block);
            return true;
        }
        let range = SectorRange::of_blocks(block, 1);
        if self.harness.engine.reads_as_of(replica, chunk, range) != Some(at) {
            return false;
        }
        let bytes = match range.end() <= SECTORS {
            true => model.expected(chunk, range),
            false => vec![0; range.len_bytes()],
        };
        let copy = |low: Index, high: Index, bytes: &[u8]| BlockCopy {
            low,
            high,
            data: Some((IoBuf::copy_of(bytes), crc32c(bytes))),
        };
        let engine = &mut self.harness.engine;
        let mut later = bytes.clone();
        later[0] ^= 1;
        let late = engine.mend(replica, chunk, block, &copy(at, Index(at.0 + 1), &later));
        assert_eq!(late, Err(MendRefusal::Ahead), "{replica} {chunk} block {block}: the copy of a later index");
        match engine.mend(replica, chunk, block, &copy(at, at, &bytes)) {
            Ok(()) => {}
            Err(MendRefusal::Differs) => {
                // The disk may have lost a durable tail, so home may be an older one.
                assert!(self.doubtful, "{replica} {chunk} block {block}: home's checksum is of other bytes");
                return false;
            }
            Err(why) => panic!("{replica} {chunk} block {block}: the right bytes are refused: {why}"),
        }
        self.help.blocks_mended += 1;
        true
    }

    /// Repairs the payloads that the log of a replica has lost, and then creates its group. Half of the replicas fail at an
    /// uncommitted entry instead, as if no other member ever had it.
    pub(super) fn refill(&mut self, model: Model, mut found: Recovered, damage: Damage) {
        let id = found.identity.replica;
        for lost in std::mem::take(&mut found.lost) {
            if id.0.is_multiple_of(2) && lost.index > found.hard_state.commit {
                self.harness.engine.fail_before(id, lost.index, "no other member has it".to_owned());
                self.help.tails_cut += 1;
                self.settle();
                return self.revive(model, damage);
            }
            let genuine = model.entry_of(lost.index.0, lost.term).expect("a lost entry was appended once");
            assert!(lost.is(&genuine.payload), "{id}: the record of entry {} names other bytes", lost.index);
            if !self.harness.engine.can_refill() {
                self.dying.insert(id);
                return;
            }
            self.harness.refill(id, &genuine);
            let entry = found.entries.iter_mut().find(|e| e.index == lost.index).expect("its record is there");
            assert_eq!((entry.term, &entry.descriptor), (genuine.term, &genuine.descriptor));
            *entry = genuine;
        }
        self.settle();
        if !self.refilled.remove(&id) {
            assert!(self.harness.poisoned || self.spoilt.contains(&id), "{id} has all payloads and is not whole");
            self.dying.insert(id);
            return;
        }
        self.help.replicas_refilled += 1;
        self.harness.models.insert(id, model);
        self.check_recovered(found, damage);
    }

    /// Lets a forced recovery go on from the past of a failed replica.
    pub(super) fn revive(&mut self, model: Model, mut damage: Damage) {
        let id = model.replica;
        let Some(found) = self.harness.engine.revive(id) else {
            self.dying.insert(id);
            return;
        };
        self.harness.models.insert(id, model);
        // The entries behind its past are given up, and blocks that an interrupted round wrote for them cannot be read.
        (damage.tail_in_doubt, self.doubtful) = (true, true);
        self.check_recovered(found, damage);
        self.harness.append_and_revive(id);
        self.help.replicas_revived += 1;
        self.settle();
    }
}
