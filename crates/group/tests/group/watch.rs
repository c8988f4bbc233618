//! Observers outside the system: they check what must never happen (design §7), from the actions of groups and the answers
//! to clients. A failed check panics, and the seed is printed.

use std::collections::{BTreeMap, BTreeSet};
use types::store::Effect;
use types::{Index, Term, VolumeChunk};

/// Returns the session of a value. Values are (counter << 8 | session): they grow with time, and name their writer.
pub fn session_of(value: u64) -> u64 {
    value & 0xff
}

pub type Sector = (VolumeChunk, u32);

/// Knowledge of one snapshot.
pub struct Snapshot {
    /// Values acknowledged or read before its cut was ordered, and issued before it was released.
    pub floors: BTreeMap<Sector, u64>,
    ceilings: BTreeMap<Sector, u64>,
    /// The values that were read first.
    values: BTreeMap<Sector, u64>,
    /// Its removal has been ordered.
    pub dying: bool,
}

#[derive(Default)]
pub struct Watch {
    leaders: BTreeMap<Term, u32>,
    applied: BTreeMap<Index, (Term, Effect)>,
    /// Newest value acknowledged or read, per sector; and newest ever issued.
    floor: BTreeMap<Sector, u64>,
    issued: BTreeMap<Sector, u64>,
    /// Value of earlier sessions that the first read after a session's open returned.
    frozen: BTreeMap<(u64, Sector), u64>,
    landed: BTreeSet<(u64, u64)>,
    /// The cut that is open as of the last index.
    open: Option<Index>,
    /// Snapshots that are ready, or being removed.
    snapshots: BTreeMap<u64, Snapshot>,
    pub acknowledged: u64,
    pub snapshot_reads: u64,
    pub reads: u64,
    pub elections: u64,
}

impl Watch {
    pub fn leads(&mut self, term: Term, node: u32) {
        self.elections += 1;
        let other = self.leaders.insert(term, node);
        assert!(other.is_none_or(|other| other == node), "{term} has two leaders, {other:?} and {node}");
    }

    /// Checks that every replica, in every run, applies the same entry with the same effect at an index.
    pub fn applies(&mut self, node: u32, index: Index, term: Term, effect: Effect, write: Option<(u64, u64)>) {
        match self.applied.insert(index, (term, effect)) {
            Some(before) => assert_eq!(before, (term, effect), "node {node} differs from others at {index}"),
            None => {
                if effect != Effect::None {
                    assert_eq!(self.open, None, "R14: a change took effect at {index}, and a cut is open");
                }
                if let Some((session, seq)) = write.filter(|_| effect != Effect::None) {
                    assert!(self.landed.insert((session, seq)), "write {session}/{seq} landed twice");
                }
            }
        }
    }

    /// Notes whether a cut is open behind this index.
    pub fn cut_open(&mut self, index: Index, open: bool) {
        if self.applied.last_key_value().is_some_and(|(last, _)| *last == index) {
            self.open = open.then_some(index);
        }
    }

    /// Returns all values that were acknowledged or read.
    pub fn floors(&self) -> BTreeMap<Sector, u64> {
        self.floor.clone()
    }

    /// A snapshot is ready; `floors`: when its cut was ordered.
    pub fn snapshot_ready(&mut self, id: u64, floors: BTreeMap<Sector, u64>) {
        let ceilings = self.issued.clone();
        self.snapshots.insert(id, Snapshot { floors, ceilings, values: BTreeMap::new(), dying: false });
    }

    pub fn snapshots(&self) -> impl Iterator<Item = (u64, &Snapshot)> {
        self.snapshots.iter().map(|(id, snapshot)| (*id, snapshot))
    }

    pub fn snapshot_dies(&mut self, id: u64) {
        self.snapshots.get_mut(&id).expect("it is ready").dying = true;
    }

    pub fn snapshot_gone(&mut self, id: u64) {
        self.snapshots.remove(&id);
    }

    /// Whether reads of the snapshot may find it gone.
    pub fn may_be_gone(&self, id: u64) -> bool {
        self.snapshots.get(&id).is_none_or(|snapshot| snapshot.dying)
    }

    /// Checks a read of a snapshot.
    pub fn reads_snapshot(&mut self, id: u64, sector: Sector, value: u64) {
        let Some(snapshot) = self.snapshots.get_mut(&id) else { return };
        self.snapshot_reads += 1;
        let of = |values: &BTreeMap<Sector, u64>| values.get(&sector).copied().unwrap_or(0);
        let (floor, ceiling) = (of(&snapshot.floors), of(&snapshot.ceilings));
        assert!(value >= floor, "{sector:?} of snapshot {id}: {value:#x}, but {floor:#x} was there before the cut");
        assert!(value <= ceiling, "{sector:?} of snapshot {id}: {value:#x} was written behind the cut");
        let first = *snapshot.values.entry(sector).or_insert(value);
        assert_eq!(first, value, "{sector:?} of snapshot {id} has changed");
    }

    pub fn issues(&mut self, sector: Sector, value: u64) {
        self.issued.insert(sector, value);
    }

    pub fn acknowledges(&mut self, sectors: impl Iterator<Item = Sector>, value: u64) {
        self.acknowledged += 1;
        for sector in sectors {
            let floor = self.floor.entry(sector).or_default();
            *floor = value.max(*floor);
        }
    }

    pub fn floor(&self, sector: Sector) -> u64 {
        self.floor.get(&sector).copied().unwrap_or(0)
    }

    /// Checks a read that began when the floor was `floor` and the newest open was `session`'s.
    pub fn reads(&mut self, sector: Sector, floor: u64, session: u64, value: u64) {
        self.reads += 1;
        let issued = self.issued.get(&sector).copied().unwrap_or(0);
        assert!(value >= floor, "{sector:?}: read {value:#x}, but {floor:#x} was acknowledged before");
        assert!(value <= issued, "{sector:?}: read {value:#x}, which was never written");
        if session_of(value) < session {
            let first = *self.frozen.entry((session, sector)).or_insert(value);
            assert_eq!(first, value, "{sector:?}: an old session's write landed after {session} had opened");
        }
        let known = self.floor.entry(sector).or_default();
        *known = value.max(*known);
    }

    pub fn last_index(&self) -> Index {
        self.applied.last_key_value().map_or(Index(0), |(index, _)| *index)
    }
}
