//! Debts: AUs that heirs of dissolved generations may take without a grant (R13).
//!
//! A write to a position at which a dissolved generation has an AU needs no grant, because members merge at different times. Until the
//! merge, this device may still need an AU for it. So each position at which a dissolved generation has an AU and its heir has none
//! counts against the space that is granted.
//!
//! Invariant: the counts equal a recount of the maps, whenever no chunk is being staged. Without dissolved generations nothing is kept.

use super::Home;
use std::collections::BTreeMap;
use types::{ChunkKey, GenerationId, ReplicaId};

/// The debts of all replicas.
#[derive(Default)]
pub(super) struct Debts {
    replicas: BTreeMap<ReplicaId, Debt>,
    total: u64,
}

/// The debts of a replica.
#[derive(Default)]
struct Debt {
    /// The heir of each dissolved generation.
    heirs: BTreeMap<GenerationId, GenerationId>,
    /// AUs by index of the chunk, heir and dissolved generation: one entry a chunk of a dissolved generation.
    aus: BTreeMap<(u32, GenerationId, GenerationId), u64>,
}

impl Debts {
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn forget(&mut self, replica: ReplicaId) {
        if let Some(gone) = self.replicas.remove(&replica) {
            self.total -= gone.aus.values().sum::<u64>();
        }
    }

    fn set(&mut self, replica: ReplicaId, at: (u32, GenerationId, GenerationId), aus: Option<u64>) {
        let Some(debt) = self.replicas.get_mut(&replica) else { return };
        let before = match aus {
            Some(aus) => debt.aus.insert(at, aus),
            None => debt.aus.remove(&at),
        };
        self.total = self.total + aus.unwrap_or(0) - before.unwrap_or(0);
    }
}

impl Home {
    /// Says which generations of the replica are dissolved, each with its heir.
    pub fn set_heirs(&mut self, replica: ReplicaId, heirs: BTreeMap<GenerationId, GenerationId>) {
        if heirs.is_empty() {
            return self.debts.forget(replica);
        }
        let before = std::mem::take(&mut self.debts.replicas.entry(replica).or_default().heirs);
        for (gone, heir) in before.iter().filter(|(id, heir)| heirs.get(id) != Some(heir)) {
            let indexes: Vec<u32> = self.chunks_of(replica, *gone, 0).map(|chunk| chunk.index).collect();
            indexes.into_iter().for_each(|index| self.debts.set(replica, (index, *heir, *gone), None));
        }
        for (id, heir) in heirs.iter().filter(|(id, heir)| before.get(id) != Some(heir)) {
            let indexes: Vec<u32> = self.chunks_of(replica, *id, 0).map(|chunk| chunk.index).collect();
            indexes.into_iter().for_each(|index| self.count_debt(replica, (index, *heir, *id)));
        }
        self.debts.replicas.get_mut(&replica).expect("made above").heirs = heirs;
    }

    /// Counts again what the chunk owes, or what is owed for it.
    pub(super) fn count_debts(&mut self, replica: ReplicaId, key: ChunkKey) {
        let Some(debt) = self.debts.replicas.get(&replica) else { return };
        let (index, id) = (key.index, key.generation);
        if let Some(heir) = debt.heirs.get(&id).copied() {
            return self.count_debt(replica, (index, heir, id));
        }
        let of = (index, id, GenerationId(0))..=(index, id, GenerationId(u64::MAX));
        let owed: Vec<_> = debt.aus.range(of).map(|(at, _)| *at).collect();
        owed.into_iter().for_each(|at| self.count_debt(replica, at));
    }

    fn count_debt(&mut self, replica: ReplicaId, at: (u32, GenerationId, GenerationId)) {
        let aus = self.debt_of(replica, at);
        self.debts.set(replica, at, aus);
    }

    /// Returns the positions at which the dissolved generation has an AU and its heir has none; `None` without its chunk.
    fn debt_of(&self, replica: ReplicaId, (index, heir, id): (u32, GenerationId, GenerationId)) -> Option<u64> {
        let key = |generation| ChunkKey { generation, index };
        let (older, newer) = (self.chunk(replica, key(id))?, self.chunk(replica, key(heir)));
        let owes = |(at, slot): (usize, &layout::home::MapSlot)| {
            slot.valid != 0 && newer.is_none_or(|chunk| chunk.map[at].valid == 0)
        };
        Some(older.map.iter().enumerate().filter(|slot| owes(*slot)).count() as u64)
    }

    /// Checks the counts.
    pub(super) fn audit_debts(&self) -> Result<(), String> {
        let mut total = 0;
        for (replica, debt) in &self.debts.replicas {
            let mut want = BTreeMap::new();
            for (id, heir) in &debt.heirs {
                let all = self.chunks_of(*replica, *id, 0).map(|chunk| (chunk.index, *heir, *id));
                want.extend(all.map(|at| (at, self.debt_of(*replica, at).expect("it was listed"))));
            }
            if want != debt.aus {
                return Err(format!("{replica} owes {want:?}, and {:?} is counted", debt.aus));
            }
            total += want.values().sum::<u64>();
        }
        if total != self.debts.total {
            return Err(format!("{total} AUs are owed, and {} are counted", self.debts.total));
        }
        Ok(())
    }
}
