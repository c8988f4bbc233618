//! The budget for lying disks: which OSDs may lose what they have acknowledged and flushed.
//!
//! Bit rot, phantom and misdirected writes, wiped disks and failed writes take back what a disk promised.
//! They hit OSDs of one fixed set only, chosen so that no PG has more than a minority of its replicas there:
//! then nothing may be lost and nobody may see wrong bytes. Some runs go beyond it on purpose: then data may
//! be refused or unavailable, and still never wrong.
//!
//! Invariant: an OSD outside the set never loses a flushed byte.

use super::Class;
use std::collections::{BTreeMap, BTreeSet};
use types::ReplicaId;
use types::rng::Rng;

/// Whether everything is back at rest after such a lie: a store that was poisoned and vouched for has lost nothing
/// (ADR 0006), a log that rotted is whole again (ADR 0004, 0007), so is home (ADR 0005, 0009).
fn is_mended(class: Class) -> bool {
    matches!(
        class,
        Class::WriteError
            | Class::FlushError
            | Class::FlushFailsInRound
            | Class::FullDisk
            | Class::BitRotLog
            | Class::ReadError
            | Class::MisdirectedRead
            | Class::BitRotTables
            | Class::BitRotData
            | Class::BitRotSuper
            | Class::PhantomWrite
            | Class::MisdirectedWrite
    )
}

/// Which OSDs may lie in this run, and which have.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    liars: BTreeSet<usize>,
    /// More than a minority may lie.
    beyond: bool,
    /// What each has done.
    told: BTreeMap<usize, BTreeSet<Class>>,
    /// Disks that have lost flushed bytes without a trace: they never come back under their names (R4).
    lost: BTreeSet<usize>,
    /// Disks that came back empty, and the highest replica id that was given by then.
    wiped: BTreeMap<usize, ReplicaId>,
}

impl Budget {
    /// Every PG of the run has `replicas` members among `osds` OSDs.
    pub fn draw(osds: usize, replicas: usize, rng: &mut Rng) -> Budget {
        let beyond = replicas >= 3 && rng.chance(1, 12);
        // Whoever is a liar counts in every PG: PGs may have any members.
        let minority = replicas.saturating_sub(1) / 2;
        let count = if beyond { rng.between(minority as u64 + 1, osds as u64) as usize } else { minority };
        let mut all: Vec<usize> = (0..osds).collect();
        let liars = (0..count).map(|_| all.remove(rng.below(all.len() as u64) as usize)).collect();
        Budget { liars, beyond, ..Budget::default() }
    }

    /// One that may lie.
    pub fn pick(&self, rng: &mut Rng) -> Option<usize> {
        let all: Vec<usize> = self.liars.iter().copied().collect();
        (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize])
    }

    /// OSD `i` has lost something.
    ///
    /// # Panics
    /// When it may not.
    pub fn note(&mut self, i: usize, what: Class) {
        assert!(self.liars.contains(&i), "OSD {i} is not allowed to lie");
        self.told.entry(i).or_default().insert(what);
    }

    /// A schedule of its own has made OSD `i` lose something; it may.
    pub fn note_aimed(&mut self, i: usize, what: Class) {
        self.liars.insert(i);
        self.note(i, what);
    }

    /// Whether OSD `i` has lied: its replicas may be damaged, and it may refuse to serve.
    pub fn has_lied(&self, i: usize) -> bool {
        self.told.contains_key(&i)
    }

    /// Whether all that OSD `i` did was to fail writes or flushes and to say so: whoever heard it has lost nothing (R15,
    /// ADR 0006).
    pub fn has_failed_openly_only(&self, i: usize) -> bool {
        let open = |class: &Class| {
            matches!(class, Class::WriteError | Class::FlushError | Class::FlushFailsInRound | Class::FullDisk)
        };
        !self.is_lost(i) && self.told.get(&i).is_some_and(|told| told.iter().all(open))
    }

    /// Whether OSD `i` may have lost something for good.
    pub fn may_lack(&self, i: usize) -> bool {
        self.is_lost(i) || self.told.get(&i).is_some_and(|told| !told.iter().all(|class| is_mended(*class)))
    }

    /// Whether OSD `i` has lied, and in no way that its peers cannot make good.
    pub fn has_mendable_lies_only(&self, i: usize) -> bool {
        self.has_lied(i) && !self.may_lack(i)
    }

    /// The disk of OSD `i` is lost.
    pub fn lose(&mut self, i: usize) {
        assert!(self.liars.contains(&i), "OSD {i} is not allowed to lose its disk");
        self.lost.insert(i);
    }

    /// Whether the disk of OSD `i` may have lost flushed bytes of its log's end.
    pub fn may_lose_tail(&self, i: usize) -> bool {
        let may = |class: &Class| matches!(class, Class::BitRotLog | Class::PhantomWrite | Class::MisdirectedWrite);
        self.told.get(&i).is_some_and(|told| told.iter().any(may))
    }

    /// Whether OSD `i` must not start again.
    pub fn is_lost(&self, i: usize) -> bool {
        self.lost.contains(&i)
    }

    /// Whether OSD `i` answers nobody any more: its disk is lost, or was wiped.
    pub fn never_returns(&self, i: usize) -> bool {
        self.is_lost(i) || self.wiped.contains_key(&i)
    }

    /// OSD `i` comes back with nothing of what it held, when `last` was the last replica id.
    pub fn wiped(&mut self, i: usize, last: ReplicaId) {
        self.wiped.insert(i, last);
    }

    /// Whether OSD `i` has forgotten that this replica ever was: then it may never serve again (R4).
    pub fn has_forgotten(&self, i: usize, replica: ReplicaId) -> bool {
        self.wiped.get(&i).is_some_and(|last| replica <= *last)
    }

    /// Whether so many have lied that requests may fail and PGs may stay down.
    pub fn is_spent(&self) -> bool {
        self.beyond && !self.told.is_empty()
    }

    /// For a failure's text.
    pub fn describe(&self) -> String {
        let beyond = if self.beyond { ", beyond the budget" } else { "" };
        format!("lies: {:?}, lost: {:?}{beyond}", self.told, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_the_budget_only_a_minority_lies() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            for (osds, replicas, most) in [(3, 3, 1), (5, 5, 2), (3, 2, 0), (3, 1, 0), (4, 3, 1)] {
                let budget = Budget::draw(osds, replicas, &mut rng);
                assert!(budget.beyond && replicas >= 3 || budget.liars.len() == most, "{budget:?}");
                assert!(!budget.beyond || budget.liars.len() > most, "{budget:?}");
            }
        }
    }
}
