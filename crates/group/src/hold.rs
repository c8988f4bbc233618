//! Holds: between the `Snap` and the `Release` of a cut the leader proposes no change of its volumes (R14).
//!
//! Meta orders the begin and the end from the leader of each PG. All PGs have committed their `Snap` before the first
//! one goes on, so no change behind a snapshot in one PG was visible before the snapshot in another. Reads go on.
//!
//! Invariant: a leader holds the volumes of each open cut from its first served turn, whichever leader has begun the cut. It holds for
//! `GroupLimits::hold_max` at most: then it proposes to give the cut up. The entries decide the outcome.

use crate::admit::Waiter;
use crate::descriptor::Command;
use crate::{Action, Group};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::control::CHUNKS_KEPT;
use types::cut::{Cut, CutEnd, CutItem, CutRefusal, CutStep, SnapshotAnswer, SnapshotOrder, TAIL_PARTS_MAX, are_items};
use types::planted::{Bug, on};
use types::{CutId, GenerationId, Time, VolumeChunk, VolumeId};

/// One hold of this leader.
#[derive(Debug)]
struct Hold {
    since: Time,
    /// The volumes, until the `Snap` of this leader is applied. Then decision state names them.
    begins: Option<Arc<[CutItem]>>,
    /// This leader has proposed to give the cut up.
    timed_out: bool,
}

/// The holds of a leader.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<CutId, Hold>);

impl Holds {
    /// Notes that the `Snap` of a cut is applied, or will not be proposed.
    pub fn snapped(&mut self, cut: CutId) {
        if let Some(hold) = self.0.get_mut(&cut) {
            hold.begins = None;
        }
    }

    /// Notes that the order to give the cut up will not be proposed.
    pub fn not_timed_out(&mut self, cut: CutId) {
        if let Some(hold) = self.0.get_mut(&cut) {
            hold.timed_out = false;
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn begins(&self, volume: VolumeId) -> bool {
        let mut begun = self.0.values().filter_map(|hold| hold.begins.as_ref());
        begun.any(|items| items.iter().any(|item| item.volume == volume))
    }

    /// Returns the end of the first hold that this leader has not given up.
    pub fn next_end(&self, hold_max: std::time::Duration) -> Time {
        let ends = self.0.values().filter(|hold| !hold.timed_out).map(|hold| hold.since + hold_max);
        ends.fold(Time::NEVER, Time::min)
    }
}

impl Group {
    /// Whether the changes of this volume are held.
    pub fn is_held(&self, volume: VolumeId) -> bool {
        (!self.decision.cuts.is_empty() || !self.holds.0.is_empty())
            && (self.decision.holds(volume) && !on(Bug::HoldEndsWithSnap) || self.holds.begins(volume))
    }

    /// Handles an order of meta about snapshots. It is answered by [`Action::Snapshots`]; a repeated `Cut` may be answered once.
    pub fn handle_snapshot_order(&mut self, now: Time, order: SnapshotOrder, actions: &mut Vec<Action>) {
        let answer = match &order {
            SnapshotOrder::Cut(cut) if self.holds.0.get(&cut.id).is_some_and(|hold| hold.begins.is_some()) => return,
            SnapshotOrder::Cut(cut) if self.serves() && self.decision.cuts.contains_key(&cut.id) => {
                Some(SnapshotAnswer::Cut { cut: cut.id, result: Ok(CutStep::Snapped) })
            }
            _ => self.order_refusal(&order).map(|refusal| order.refuse(refusal)),
        };
        if let Some(answer) = answer {
            return actions.push(Action::Snapshots(answer));
        }
        match order {
            SnapshotOrder::Cut(cut) => {
                let hold = Hold { since: now, begins: Some(cut.items.clone()), timed_out: false };
                let waiter = Waiter::Cut { cut: cut.id };
                self.holds.0.insert(cut.id, hold);
                // Their space was counted for the head that they would have gone to (R13): they come again, and are held.
                self.fills.forget(|volume| cut.items.iter().any(|item| item.volume == volume));
                let waiters = self.queue.take_writes(|volume| cut.items.iter().any(|item| item.volume == volume));
                waiters.into_iter().for_each(|waiter| waiter.busy(actions));
                self.queue.push_order(Command::Snap(cut), waiter);
            }
            SnapshotOrder::Release { cut, end, items } => {
                self.push_once(Command::Release { cut, end, items }, Waiter::Cut { cut });
            }
            // The loop gives it to `recovery`, which has the copies made: a group by itself copies nothing.
            SnapshotOrder::Flatten { .. } | SnapshotOrder::Find { .. } => {
                actions.push(Action::Snapshots(order.refuse(CutRefusal::Busy)));
            }
            SnapshotOrder::Wipe { volume, len_epoch, chunk, .. } if on(Bug::TailNotWiped) => {
                actions.push(Action::Snapshots(SnapshotAnswer::Wiped { volume, len_epoch, chunk, result: Ok(()) }));
            }
            SnapshotOrder::Wipe { volume, len_epoch, chunk: index, range } => {
                let command = Command::Wipe { chunk: VolumeChunk { volume, index }, range, len_epoch };
                if !self.queue.has_wipe(&command) {
                    self.queue.push_wipe(command, Waiter::Wipe { volume, len_epoch, chunk: index });
                }
            }
            SnapshotOrder::Remove { volume, snapshot } => {
                self.push_once(Command::Remove { volume, snapshot }, Waiter::Remove { volume, snapshot });
            }
        }
    }

    /// Returns the head of a volume in which to look for data behind its new end.
    ///
    /// # Errors
    /// This replica does not lead for certain, or is busy; the PG does not have the volume, or knows a later length of it.
    pub fn head_with_tail(&mut self, now: Time, order: &SnapshotOrder) -> Result<GenerationId, CutRefusal> {
        let SnapshotOrder::Find { volume, len_epoch, .. } = order else { return Err(CutRefusal::Invalid) };
        if let Some(refusal) = self.order_refusal(order) {
            return Err(refusal);
        }
        // Without a proof another leader may have applied a later write.
        if !self.may_search(now, *volume, *len_epoch) {
            return Err(CutRefusal::Busy);
        }
        self.decision.volumes.get(volume).map(|attached| attached.head).ok_or(CutRefusal::Absent)
    }

    /// Why an order of a shrink cannot be carried out. A place is wiped under the epoch of the length alone.
    fn shrink_refusal(&self, volume: VolumeId, len_epoch: u32, wipes: bool) -> Option<CutRefusal> {
        let Some(attached) = self.decision.volumes.get(&volume) else { return Some(CutRefusal::Absent) };
        match attached.len_epoch.cmp(&len_epoch) {
            _ if self.is_held(volume) => Some(CutRefusal::Open),
            // During a recovery of the records no length of the volume is known.
            _ if attached.chunk_count == CHUNKS_KEPT => Some(CutRefusal::Busy),
            Ordering::Greater => {
                let (len_epoch, chunk_count) = (attached.len_epoch, attached.chunk_count);
                Some(CutRefusal::LaterLength { len_epoch, chunk_count })
            }
            // It does not have the volume at this length.
            Ordering::Less if wipes => Some(CutRefusal::Absent),
            _ if wipes && self.queue.is_full(0, &self.config.limits) => Some(CutRefusal::Busy),
            _ => None,
        }
    }

    fn push_once(&mut self, command: Command, waiter: Waiter) {
        if !self.queue.has_order(&command) {
            self.queue.push_order(command, waiter);
        }
    }

    /// Why an order of meta cannot be proposed now.
    fn order_refusal(&self, order: &SnapshotOrder) -> Option<CutRefusal> {
        if !self.is_leader() || self.transfer.is_some() {
            return Some(CutRefusal::NotLeader { hint: self.hint() });
        }
        if !self.serves() || self.orders_are_full() {
            return Some(CutRefusal::Busy);
        }
        match order {
            // The store may wait for merges: a removal makes another one.
            SnapshotOrder::Remove { .. } => self.blocked.then_some(CutRefusal::Busy),
            SnapshotOrder::Cut(Cut { items, .. }) | SnapshotOrder::Release { items, .. } if !are_items(items) => {
                Some(CutRefusal::Invalid)
            }
            SnapshotOrder::Release { .. } | SnapshotOrder::Flatten { .. } => None,
            SnapshotOrder::Find { tail, .. } if tail.from_chunk == 0 || tail.parts.len() > TAIL_PARTS_MAX => {
                Some(CutRefusal::Invalid)
            }
            SnapshotOrder::Find { volume, len_epoch, .. } => self.shrink_refusal(*volume, *len_epoch, false),
            SnapshotOrder::Wipe { volume, len_epoch, .. } => self.shrink_refusal(*volume, *len_epoch, true),
            SnapshotOrder::Cut(cut) => {
                cut.items.iter().any(|item| self.is_held(item.volume)).then_some(CutRefusal::Open)
            }
        }
    }

    fn release_held(&mut self) -> bool {
        let mut queue = std::mem::take(&mut self.queue);
        let some = queue.release(|volume| self.is_held(volume));
        self.queue = queue;
        some
    }

    /// Begins and ends holds as decision state says, and gives up those that last too long. True when there is more to propose.
    pub(crate) fn poll_holds(&mut self, now: Time) -> bool {
        if self.decision.cuts.is_empty() && self.holds.0.is_empty() && !self.queue.holds_some() {
            return false;
        }
        if !self.serves() {
            return false;
        }
        for cut in self.decision.cuts.keys() {
            self.holds.0.entry(*cut).or_insert(Hold { since: now, begins: None, timed_out: false });
        }
        let cuts = &self.decision.cuts;
        self.holds.0.retain(|cut, hold| hold.begins.is_some() || cuts.contains_key(cut));
        let hold_max = self.config.limits.hold_max;
        let mut more = false;
        let due = self.holds.0.iter().filter(|(_, hold)| !hold.timed_out && now >= hold.since + hold_max);
        for cut in due.map(|(cut, _)| *cut).collect::<Vec<_>>() {
            if self.orders_are_full() {
                break;
            }
            let hold = self.holds.0.get_mut(&cut).expect("it was found above");
            hold.timed_out = true;
            let open = self.decision.cuts.get(&cut).map(|open| open.iter().map(|open| open.item).collect());
            let items = open.or(hold.begins.clone()).expect("it is open, or begins");
            let command = Command::Release { cut, end: CutEnd::TimedOut, items };
            self.queue.push_order(command, Waiter::Cut { cut });
            more = true;
        }
        more | (self.queue.holds_some() && self.release_held())
    }
}
