//! The budget for lying disks: the OSDs that may lose bytes that they have acknowledged and flushed.
//!
//! Bit rot, phantom and misdirected writes, wiped disks and failed writes take back what a disk acknowledged. They hit
//! OSDs of one fixed set only. No PG has more than a minority of its replicas there, so no byte may be lost and no
//! reader may see wrong bytes. Some runs go beyond the budget on purpose: then data may be refused or unavailable, and
//! still never wrong. The laws of replicas hold beyond the budget as well, unless a lie may leave no trace.
//!
//! Invariant: an OSD outside the set never loses a flushed byte.

use super::Class;
use std::collections::{BTreeMap, BTreeSet};
use types::ReplicaId;
use types::rng::Rng;

/// Whether everything is whole at rest after such a lie. A poisoned store that was confirmed has lost nothing (ADR
/// 0006). A log that rotted is repaired (ADR 0004), and so is home (ADR 0005). A failed replica is replaced (ADR 0017).
fn is_mended(class: Class) -> bool {
    matches!(
        class,
        Class::WriteError
            | Class::FlushError
            | Class::FlushFailsInRound
            | Class::FullDisk
            | Class::FailedReplicas
            | Class::OlderDevices
            | Class::BitRotLog
            | Class::ReadError
            | Class::MisdirectedRead
            | Class::BitRotTables
            | Class::BitRotData
            | Class::BitRotSuper
            | Class::PhantomWrite
            | Class::MisdirectedWrite
            | Class::UnreadableSectors
            | Class::UnreadableTail
            | Class::RottenRun
            | Class::DisjointBlocks
            | Class::DisjointEntries
    )
}

/// Whether such a lie may leave no trace: an OSD serves without something that it has acknowledged, and no checksum
/// tells. A device that rots, fails a read or comes back empty shows that, and its replicas fail (R4, R11); where rot
/// takes the end of a log, the device counts as lost. A device that went back in time is found by others (R17).
fn is_silent(class: Class) -> bool {
    matches!(class, Class::PhantomWrite | Class::MisdirectedWrite | Class::OlderDevices)
}

/// The OSDs that may lie in this run, and their lies so far.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    liars: BTreeSet<usize>,
    /// Number of OSDs that may lie so that every PG keeps a majority.
    minority: usize,
    /// More than a minority may lie.
    beyond: bool,
    /// Lies of each OSD.
    told: BTreeMap<usize, BTreeSet<Class>>,
    /// Disks that have lost flushed bytes without a trace: they never come back under their names (R4).
    lost: BTreeSet<usize>,
    /// Disks that came back empty, and the highest replica id that was given by then.
    wiped: BTreeMap<usize, ReplicaId>,
}

impl Budget {
    /// Draws the budget of a run in which every PG has `replicas` members among `osds` OSDs.
    pub fn draw(osds: usize, replicas: usize, rng: &mut Rng) -> Budget {
        let beyond = replicas >= 3 && rng.chance(1, 12);
        // A liar counts in every PG, because a PG may have any members.
        let minority = replicas.saturating_sub(1) / 2;
        let count = if beyond { rng.between(minority as u64 + 1, osds as u64) as usize } else { minority };
        let mut all: Vec<usize> = (0..osds).collect();
        let liars = (0..count).map(|_| all.remove(rng.below(all.len() as u64) as usize)).collect();
        Budget { liars, minority, beyond, ..Budget::default() }
    }

    /// Returns an OSD that may lie.
    pub fn pick(&self, rng: &mut Rng) -> Option<usize> {
        let all: Vec<usize> = self.liars.iter().copied().collect();
        (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize])
    }

    /// Notes that OSD `i` has lost something.
    ///
    /// # Panics
    /// When the OSD may not lie.
    pub fn note(&mut self, i: usize, what: Class) {
        assert!(self.liars.contains(&i), "OSD {i} is not allowed to lie");
        self.told.entry(i).or_default().insert(what);
    }

    /// Notes that a schedule of its own has made OSD `i` lose something, and permits it.
    pub fn note_aimed(&mut self, i: usize, what: Class) {
        self.liars.insert(i);
        self.note(i, what);
    }

    /// Whether OSD `i` has lied: its replicas may be damaged, and it may refuse to serve.
    pub fn has_lied(&self, i: usize) -> bool {
        self.told.contains_key(&i)
    }

    /// Whether OSD `i` has only failed writes or flushes, and reported it. Such an OSD keeps every byte that it
    /// acknowledged (R15, ADR 0006).
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

    /// Whether OSD `i` has lied, and peers can repair all of it.
    pub fn has_mendable_lies_only(&self, i: usize) -> bool {
        self.has_lied(i) && !self.may_lack(i)
    }

    /// Notes that the disk of OSD `i` is lost.
    pub fn lose(&mut self, i: usize) {
        assert!(self.liars.contains(&i), "OSD {i} is not allowed to lose its disk");
        self.lost.insert(i);
    }

    /// Whether the disk of OSD `i` may have lost flushed bytes at the end of its log.
    pub fn may_lose_tail(&self, i: usize) -> bool {
        let may = |class: &Class| {
            matches!(class, Class::BitRotLog | Class::RottenRun | Class::PhantomWrite | Class::MisdirectedWrite)
        };
        self.told.get(&i).is_some_and(|told| told.iter().any(may))
    }

    /// Whether a mount of OSD `i` may miss the end of its log and know it: a page that cannot be read is no torn tail (R11).
    pub fn may_hide_tail(&self, i: usize) -> bool {
        let hides = |class: &Class| matches!(class, Class::UnreadableSectors | Class::UnreadableTail);
        self.told.get(&i).is_some_and(|told| told.iter().any(hides))
    }

    /// Whether damage was done that stays until it is written over.
    pub fn has_stayed(&self) -> bool {
        let stays = |class: &Class| {
            matches!(class, Class::UnreadableSectors | Class::UnreadableTail | Class::RottenRun | Class::DisjointBlocks)
        };
        self.told.values().flatten().any(stays)
    }

    /// Whether OSD `i` must not start again.
    pub fn is_lost(&self, i: usize) -> bool {
        self.lost.contains(&i)
    }

    /// Whether OSD `i` never answers again: its disk is lost, or was wiped.
    pub fn never_returns(&self, i: usize) -> bool {
        self.is_lost(i) || self.wiped.contains_key(&i)
    }

    /// Notes that OSD `i` comes back with an empty disk, when `last` was the last replica id.
    pub fn wiped(&mut self, i: usize, last: ReplicaId) {
        self.wiped.insert(i, last);
    }

    /// Whether OSD `i` has forgotten that this replica existed. Then the replica may never serve again (R4).
    pub fn has_forgotten(&self, i: usize, replica: ReplicaId) -> bool {
        self.wiped.get(&i).is_some_and(|last| replica <= *last)
    }

    /// Whether so many OSDs have lied that requests may fail and PGs may stay down.
    pub fn is_spent(&self) -> bool {
        self.beyond && self.told.len() > self.minority
    }

    /// Whether an acknowledged entry or a promise may be gone from a majority without a trace. Otherwise the laws of
    /// Raft, of decisions and of stores hold, also when the budget is spent: replicas that know of their loss have failed.
    pub fn is_blind(&self) -> bool {
        self.is_spent() && self.told.values().flatten().any(|class| is_silent(*class))
    }

    /// Describes the lies, for a failure's text.
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

    #[test]
    fn only_a_silent_lie_beyond_the_budget_ends_the_laws() {
        let liars = BTreeSet::from([0, 1]);
        let mut budget = Budget { liars, minority: 1, beyond: true, ..Budget::default() };
        budget.note(0, Class::PhantomWrite);
        assert!(!budget.is_spent() && !budget.is_blind(), "a majority has not lied");
        budget.note(1, Class::BitRotLog);
        assert!(budget.is_spent() && budget.is_blind());
        budget.told = BTreeMap::from([0, 1].map(|i| (i, BTreeSet::from([Class::BitRotLog, Class::Wipe]))));
        assert!(budget.is_spent() && !budget.is_blind(), "every replica knows of its loss");
    }
}
