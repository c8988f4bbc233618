//! Meta of a storm: it cuts the volume, gives some cuts up, and removes snapshots, through faults and leaders that change.

use crate::client::CHUNK;
use crate::rig::{MS, Rig};
use crate::watch::Sector;
use crate::world::{Event, World};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::cut::{Cut, CutEnd, CutItem, CutRefusal, CutStep, SnapshotAnswer, SnapshotOrder};
use types::{CutId, GenerationId, SnapshotId};
use wire::{Reject, ReplyBody};

/// Most snapshots at a time.
const SNAPSHOTS_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Begins,
    Releases,
    Aborts,
}

/// A cut under way.
struct Run {
    id: u64,
    stage: Stage,
    since: u64,
    floors: BTreeMap<Sector, u64>,
}

/// The cuts of a storm.
pub struct Cuts {
    run: Option<Run>,
    dying: Option<u64>,
    next: u64,
    /// Cuts that were released, that were given up, and snapshots that were removed.
    pub counts: [u64; 3],
}

impl Cuts {
    pub fn new() -> Cuts {
        Cuts { run: None, dying: None, next: CHUNK.volume.0 + 1, counts: [0; 3] }
    }

    pub fn is_idle(&self) -> bool {
        self.run.is_none() && self.dying.is_none()
    }
}

fn items(id: u64) -> Arc<[CutItem]> {
    [CutItem { volume: CHUNK.volume, to: GenerationId(id) }].into()
}

/// Gives an order to a node that leads, if any does.
fn order(world: &mut World, order: SnapshotOrder) {
    let Some(leader) = world.leader() else { return };
    let life = world.nodes[&leader].life();
    world.turn(leader, life, |group, _, now, actions| group.handle_snapshot_order(now, order, actions));
}

pub fn tick(world: &mut World) {
    let pace = world.rng.between(MS, 30 * MS);
    world.at(world.now + pace, Event::Cuts);
    begin_some(world);
    let (quiet, now) = (world.quiet, world.now);
    if let Some(run) = &mut world.cuts.run {
        let late = run.stage == Stage::Begins && now > run.since + 100 * MS;
        if (late || quiet) && run.stage == Stage::Begins || world.rng.chance(1, 40) {
            run.stage = Stage::Aborts;
        }
        let (id, stage) = (run.id, run.stage);
        let (cut, items) = (CutId(id), items(id));
        let what = match stage {
            Stage::Begins => SnapshotOrder::Cut(Cut { id: cut, created_ms: id, items }),
            Stage::Releases => SnapshotOrder::Release { cut, end: CutEnd::Release, items },
            Stage::Aborts => SnapshotOrder::Release { cut, end: CutEnd::Abort, items },
        };
        order(world, what);
    }
    if let Some(id) = world.cuts.dying {
        order(world, SnapshotOrder::Remove { volume: CHUNK.volume, snapshot: SnapshotId(id) });
    }
}

fn begin_some(world: &mut World) {
    let ids: Vec<u64> = world.watch.snapshots().map(|(id, _)| id).collect();
    if world.quiet || world.session_count() == 0 {
        return;
    }
    if world.cuts.run.is_none() && ids.len() < SNAPSHOTS_MAX && world.rng.chance(1, 5) {
        let (id, floors) = (world.cuts.next, world.watch.floors());
        world.cuts.next += 1;
        world.cuts.run = Some(Run { id, stage: Stage::Begins, since: world.now, floors });
    }
    if world.cuts.dying.is_none() && !ids.is_empty() && world.rng.chance(1, 10) {
        let id = ids[world.rng.below(ids.len() as u64) as usize];
        world.watch.snapshot_dies(id);
        world.cuts.dying = Some(id);
    }
}

pub fn answered(world: &mut World, answer: SnapshotAnswer) {
    let (cut, result) = match answer {
        SnapshotAnswer::Cut { cut, result } => (cut, result),
        SnapshotAnswer::Removed { snapshot, result, .. } => return removed(world, snapshot, result),
        SnapshotAnswer::Flatten { .. } | SnapshotAnswer::Found { .. } => unreachable!("the OSD answers"),
        SnapshotAnswer::Wiped { result, .. } => return crate::shrinks::wiped(world, result),
    };
    let Some(run) = world.cuts.run.as_mut().filter(|run| run.id == cut.0) else { return };
    match (result, run.stage) {
        (Ok(CutStep::Snapped), Stage::Begins) => run.stage = Stage::Releases,
        (Ok(CutStep::Released), Stage::Releases) => {
            let run = world.cuts.run.take().expect("it is some");
            world.watch.snapshot_ready(run.id, run.floors);
            world.cuts.counts[0] += 1;
        }
        (Ok(CutStep::Aborted), Stage::Aborts) => {
            world.cuts.run = None;
            world.cuts.counts[1] += 1;
        }
        (Ok(CutStep::Lapsed) | Err(CutRefusal::Stale | CutRefusal::Open | CutRefusal::TooMany), _) => {
            run.stage = Stage::Aborts;
        }
        // Answers to orders of an earlier stage, and leaders that could not propose.
        _ => {}
    }
}

fn removed(world: &mut World, snapshot: SnapshotId, result: Result<(), CutRefusal>) {
    if world.cuts.dying == Some(snapshot.0) && result.is_ok() {
        world.cuts.dying = None;
        world.watch.snapshot_gone(snapshot.0);
        world.cuts.counts[2] += 1;
    }
}

/// Gives an order about cut 10 to replica 1 of a rig.
fn rig_order(rig: &mut Rig, end: Option<CutEnd>) {
    let (cut, items) = (CutId(10), items(10));
    let what = match end {
        None => SnapshotOrder::Cut(Cut { id: cut, created_ms: 0, items }),
        Some(end) => SnapshotOrder::Release { cut, end, items },
    };
    rig.call(1, |group, now, actions| group.handle_snapshot_order(now, what, actions));
}

#[test]
fn write_that_waits_when_a_cut_begins_comes_again_and_is_held() {
    let mut rig = Rig::led(3, true);
    rig.groups.get_mut(&1).expect("it leads").set_pressure(false, true);
    let waits = rig.write(1, 0);
    rig.pump();
    assert_eq!(rig.answer(waits), None);
    rig_order(&mut rig, None);
    assert_eq!(rig.answer(waits), Some(Err(Reject::Busy)), "its space was counted for the head before the cut (R13)");
    rig.groups.get_mut(&1).expect("it leads").set_pressure(false, false);
    let held = rig.write(1, 0);
    rig.pump();
    assert_eq!((rig.answer(held), rig.landed(1)), (None, 0), "the cut is open");
    rig_order(&mut rig, Some(CutEnd::Release));
    rig.pump();
    assert_eq!((rig.answer(held), rig.landed(1)), (Some(Ok(ReplyBody::Done)), 1));
}

#[test]
fn held_writes_leave_half_of_the_queue_to_other_volumes() {
    let mut rig = Rig::led(3, true);
    rig_order(&mut rig, None);
    rig.pump();
    let many: Vec<u64> = (0..3000).map(|seq| rig.write(1, seq)).collect();
    let refused = many.iter().filter(|id| rig.answer(**id) == Some(Err(Reject::Busy))).count();
    assert_eq!(refused, many.len() - 1024);
    rig_order(&mut rig, Some(CutEnd::Abort));
    rig.pump();
    let answered = many.iter().filter(|id| rig.answer(**id).is_some()).count();
    assert_eq!(answered, many.len(), "each request has its answer");
}
