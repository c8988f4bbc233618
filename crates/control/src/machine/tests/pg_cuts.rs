//! A model of snapshots in PGs: cuts that begin, end and lapse as `group::Decision` decides them. It watches that no PG goes on before
//! all have their snapshots.

use super::*;
use types::control::{Attach, Base};
use types::cut::{Cut, CutEnd, CutItem, CutRefusal, CutStep, FlattenStep, SnapshotAnswer, SnapshotOrder};
use types::{CutId, GenerationId, SnapshotId};

/// Longest hold of a leader.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// Orders of a flatten until it is done.
const COPYING: u32 = 3;

#[derive(Default)]
struct Pg {
    open: BTreeMap<CutId, (Time, Vec<CutItem>)>,
    snapshots: BTreeSet<(VolumeId, SnapshotId)>,
    /// All that it has ever had.
    had: BTreeSet<(VolumeId, SnapshotId)>,
    /// Volumes with the head with which they came, and the highest number that an order has named.
    volumes: BTreeMap<VolumeId, (GenerationId, GenerationId)>,
    /// Snapshots on which heads of volumes were put, in order.
    bases: BTreeMap<VolumeId, Vec<Base>>,
    /// Times that a flatten of a volume was ordered: the first ones are answered while it copies.
    flattened: BTreeMap<VolumeId, u32>,
}

impl Pg {
    /// Whether the volume is not here, or came after the snapshot.
    fn needs_none(&self, item: &CutItem) -> bool {
        self.volumes.get(&item.volume).is_none_or(|(first, _)| *first >= item.to)
    }
}

/// Volumes with their first and last generations, and snapshots.
type Contents = (BTreeMap<VolumeId, (GenerationId, GenerationId)>, BTreeSet<(VolumeId, SnapshotId)>);

/// The PGs of a world.
#[derive(Default)]
pub struct CutPgs {
    pgs: BTreeMap<PgId, Pg>,
    pub cuts: usize,
    pub lapsed: usize,
    pub flatten_orders: usize,
}

impl CutPgs {
    /// Takes an attach record: the volume comes to the PG, or goes with its snapshots.
    pub fn attached(&mut self, pg: PgId, attach: &Attach) {
        let Attach { volume, head, chunk_count, base, .. } = *attach;
        let is_new = !self.pgs.get(&pg).is_some_and(|pg| pg.volumes.contains_key(&volume));
        let held = self.pgs.values().flat_map(|pg| pg.open.values()).any(|(_, items)| has(items, volume));
        assert!(!is_new || chunk_count == 0 || !held, "{volume} comes to {pg} during a cut of it");
        let named = self.pgs.values().filter_map(|pg| pg.volumes.get(&volume)).map(|(_, last)| *last).max();
        let pg = self.pgs.entry(pg).or_default();
        if chunk_count == 0 {
            pg.volumes.remove(&volume);
            pg.snapshots.retain(|(of, _)| *of != volume);
            pg.bases.remove(&volume);
            return;
        }
        if is_new {
            assert!(named.is_none_or(|last| head >= last), "{volume} comes with {head}, below {named:?}");
            pg.volumes.insert(volume, (head, head));
            pg.bases.entry(volume).or_default().extend(base);
        } else if let Some(base) = base.filter(|base| base.volume == volume && base.to > pg.volumes[&volume].1) {
            assert!(!held, "{volume} turns back during a cut of it");
            let item = CutItem { volume, to: GenerationId(base.snapshot.0) };
            assert!(pg.needs_none(&item) || pg.snapshots.contains(&(volume, base.snapshot)), "{base:?} is gone");
            pg.volumes.get_mut(&volume).expect("it is here").1 = head;
            pg.bases.entry(volume).or_default().push(base);
        }
    }

    /// Whether the PG has the snapshot on which a head is to stand, or needs none.
    pub fn has_base(&self, pg: PgId, attach: &Attach) -> bool {
        let Some(base) = attach.base else { return true };
        let known = self.pgs.get(&pg).and_then(|pg| pg.volumes.get(&attach.volume));
        let is_put = known.is_none_or(|(_, last)| base.volume == attach.volume && base.to > *last);
        !is_put || self.has(pg, base.volume, base.snapshot)
    }

    /// Takes a volume from a PG, as if it had never been there.
    pub fn forget(&mut self, pg: PgId, volume: VolumeId) {
        let pg = self.pgs.get_mut(&pg).expect("it is known");
        pg.volumes.remove(&volume);
        pg.bases.remove(&volume);
        pg.flattened.remove(&volume);
    }

    /// Whether a volume needs its parent no longer in a PG.
    pub fn is_flat(&self, pg: PgId, volume: VolumeId) -> bool {
        self.pgs.get(&pg).and_then(|pg| pg.flattened.get(&volume)).is_some_and(|orders| *orders >= COPYING)
    }

    fn flatten(&mut self, at: PgId, volume: VolumeId) -> Result<FlattenStep, CutRefusal> {
        self.flatten_orders += 1;
        let pg = self.pgs.entry(at).or_default();
        if !pg.volumes.contains_key(&volume) {
            return Err(CutRefusal::Absent);
        }
        let orders = pg.flattened.entry(volume).or_default();
        *orders += 1;
        Ok(if *orders >= COPYING { FlattenStep::Flat } else { FlattenStep::Copying { done: *orders, chunks: COPYING } })
    }

    /// Returns the snapshots on which heads of a volume were put in a PG, in order.
    pub fn bases(&self, pg: PgId, volume: VolumeId) -> Vec<Base> {
        self.pgs.get(&pg).and_then(|pg| pg.bases.get(&volume)).cloned().unwrap_or_default()
    }

    /// Gives up the cuts that are held for too long.
    pub fn lapse(&mut self, now: Time) {
        for pg in self.pgs.values_mut() {
            let over = pg.open.extract_if(.., |_, (since, _)| now.since(*since) >= HOLD_MAX);
            let over: Vec<_> = over.flat_map(|(_, (_, items))| items).collect();
            self.lapsed += over.len();
            for item in over {
                pg.snapshots.remove(&(item.volume, item.snapshot()));
            }
        }
    }

    /// Carries out an order.
    pub fn take(&mut self, now: Time, at: PgId, order: &SnapshotOrder) -> SnapshotAnswer {
        match order {
            SnapshotOrder::Cut(cut) => SnapshotAnswer::Cut { cut: cut.id, result: self.snap(now, at, cut) },
            SnapshotOrder::Release { cut, end, items } => {
                SnapshotAnswer::Cut { cut: *cut, result: Ok(self.release(at, *cut, *end, items)) }
            }
            SnapshotOrder::Flatten { volume } => {
                SnapshotAnswer::Flatten { volume: *volume, result: self.flatten(at, *volume) }
            }
            SnapshotOrder::Remove { volume, snapshot } => {
                self.pgs.entry(at).or_default().snapshots.remove(&(*volume, *snapshot));
                SnapshotAnswer::Removed { volume: *volume, snapshot: *snapshot, result: Ok(()) }
            }
            SnapshotOrder::Find { .. } | SnapshotOrder::Wipe { .. } => unreachable!("the world answers them"),
        }
    }

    fn snap(&mut self, now: Time, at: PgId, cut: &Cut) -> Result<CutStep, CutRefusal> {
        let pg = self.pgs.entry(at).or_default();
        let here: Vec<CutItem> =
            cut.items.iter().copied().filter(|item| pg.volumes.contains_key(&item.volume)).collect();
        if pg.open.contains_key(&cut.id) {
            return Ok(CutStep::Snapped);
        }
        if here.iter().any(|item| item.to <= pg.volumes[&item.volume].1) {
            return Err(CutRefusal::Stale);
        }
        if here.iter().any(|item| pg.open.values().any(|(_, items)| has(items, item.volume))) {
            return Err(CutRefusal::Open);
        }
        for item in &here {
            pg.volumes.get_mut(&item.volume).expect("it is here").1 = item.to;
            pg.snapshots.insert((item.volume, item.snapshot()));
            pg.had.insert((item.volume, item.snapshot()));
        }
        if !here.is_empty() {
            pg.open.insert(cut.id, (now, here));
            self.cuts += 1;
        }
        Ok(CutStep::Snapped)
    }

    fn release(&mut self, at: PgId, cut: CutId, end: CutEnd, items: &[CutItem]) -> CutStep {
        let pg = self.pgs.entry(at).or_default();
        let open = pg.open.remove(&cut);
        let stands = |item: &CutItem| {
            !pg.volumes.contains_key(&item.volume) || pg.snapshots.contains(&(item.volume, item.snapshot()))
        };
        match end {
            CutEnd::Release | CutEnd::TimedOut if open.is_none() => {
                if items.iter().all(stands) {
                    CutStep::Released
                } else {
                    CutStep::Lapsed
                }
            }
            CutEnd::TimedOut => {
                if let Some((_, items)) = open {
                    items.iter().for_each(|item| assert!(pg.snapshots.remove(&(item.volume, item.snapshot()))));
                }
                CutStep::Lapsed
            }
            CutEnd::Release => {
                for (id, pg) in &self.pgs {
                    let had = |item: &CutItem| pg.had.contains(&(item.volume, item.snapshot())) || pg.needs_none(item);
                    let missing = items.iter().find(|item| !had(item));
                    assert!(missing.is_none(), "{at} goes on before {id} has {missing:?}");
                }
                CutStep::Released
            }
            CutEnd::Abort => {
                let pg = self.pgs.get_mut(&at).expect("just made");
                for item in items {
                    if let Some((_, last)) = pg.volumes.get_mut(&item.volume) {
                        *last = item.to.max(*last);
                    }
                    pg.snapshots.remove(&(item.volume, item.snapshot()));
                }
                CutStep::Aborted
            }
        }
    }

    /// Whether a PG has a snapshot. One to which the volume came later needs none.
    pub fn has(&self, pg: PgId, volume: VolumeId, snapshot: SnapshotId) -> bool {
        let item = CutItem { volume, to: GenerationId(snapshot.0) };
        self.pgs.get(&pg).is_none_or(|pg| pg.needs_none(&item) || pg.snapshots.contains(&(volume, snapshot)))
    }

    /// Returns all snapshots that a PG has, and whether a cut is open.
    pub fn all(&self) -> (BTreeSet<(VolumeId, SnapshotId)>, bool) {
        let all = self.pgs.values().flat_map(|pg| pg.snapshots.iter().copied()).collect();
        (all, self.pgs.values().any(|pg| !pg.open.is_empty()))
    }

    /// Returns the volumes of a PG with their first and last generations, and its snapshots.
    pub fn contents(&self, pg: PgId) -> Contents {
        self.pgs.get(&pg).map_or_else(Default::default, |pg| (pg.volumes.clone(), pg.snapshots.clone()))
    }

    pub fn pgs(&self) -> impl Iterator<Item = PgId> {
        self.pgs.keys().copied()
    }
}

fn has(items: &[CutItem], volume: VolumeId) -> bool {
    items.iter().any(|item| item.volume == volume)
}
