//! The table of local replicas: their slots, the slots touched in this turn, and the next deadline.
//!
//! Invariant: of a PG's replicas here only the newest one, with the highest id, has a group: an older one has failed, and gives
//! peers what it can read until it is removed. A slot's live deadline in the heap (the one for which it is armed) is never
//! later than its group's. Other deadlines are stale and are dropped when they come up.

use group::Group;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use types::control::PgReport;
use types::map::{Member, Membership};
use types::store::{Failure, ReplicaIdentity};
use types::{OsdId, PgId, ReplicaId, Time};

/// State of the replica in a slot.
pub enum State {
    Running(Box<Group>),
    /// Its create record is not durable yet.
    Creating,
    /// Its log begins at another index (R16): the old group is paused until that is durable or refused.
    Paused(Box<Group>),
    /// R11: its log lacks payloads, which [`crate::recover`] fetches. It neither votes nor serves until then.
    Repairing,
    /// R4, R5, R11: it neither votes, acknowledges nor serves, and is reported ([`crate::failure`]).
    Failed(Failure),
}

/// One local replica.
pub struct Slot {
    pub identity: ReplicaIdentity,
    /// Members at the applied index of the group; without a group, at the end of the log.
    pub members: Membership,
    pub state: State,
    /// Time at which a group of this replica ended, because the replica failed.
    pub group_ended_at: Time,
    /// Last report to meta; `None` after a new stream.
    pub reported: Option<PgReport>,
    touched: bool,
    armed: Time,
}

impl Slot {
    /// Whether `osd` holds a member of the PG.
    pub fn has_member_on(&self, osd: OsdId) -> bool {
        self.members.iter().any(|m| m.osd == osd)
    }

    /// Iterates over the other members. Of two on one OSD only the newest: the other one has failed.
    pub fn others(&self) -> impl Iterator<Item = Member> + '_ {
        let is_newest = |m: &Member| !self.members.iter().any(|n| n.osd == m.osd && n.replica > m.replica);
        self.members.iter().filter(move |m| m.replica != self.identity.replica && is_newest(m))
    }

    /// Returns the running group.
    pub fn group(&self) -> Option<&Group> {
        if let State::Running(group) = &self.state { Some(group) } else { None }
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Whether an order for a newer replica of the PG ends this one: it is no voter, or it was reported as failed before its OSD
    /// started again, and its log lacks payloads now.
    pub fn yields(&self) -> bool {
        match &self.state {
            State::Repairing => true,
            State::Running(group) => !group.members().is_voter(self.identity.replica),
            State::Failed(_) | State::Creating | State::Paused(_) => false,
        }
    }
}

/// All local replicas.
#[derive(Default)]
pub struct Pgs {
    slots: Slab<Slot>,
    by_pg: BTreeMap<(PgId, ReplicaId), usize>,
    /// The newest replica of each PG: every message looks it up.
    newest: BTreeMap<PgId, usize>,
    by_replica: BTreeMap<ReplicaId, usize>,
    touched: Vec<usize>,
    /// Memory for the next list of touched slots.
    spare: Vec<usize>,
    deadlines: BinaryHeap<Reverse<(Time, usize)>>,
    seed: u64,
}

impl Pgs {
    pub fn new(seed: u64) -> Pgs {
        Pgs { seed, ..Pgs::default() }
    }

    /// Returns the seed of this replica's group.
    pub fn seed_of(&self, replica: ReplicaId) -> u64 {
        self.seed ^ replica.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Adds a replica.
    ///
    /// # Panics
    /// When another replica of its PG here has not failed.
    pub fn insert(&mut self, identity: ReplicaIdentity, members: Membership, state: State) -> usize {
        let (pg, replica) = (identity.pg, identity.replica);
        assert!(self.is_newest(pg, replica) || matches!(state, State::Failed(_)), "{pg} has two replicas on one OSD");
        let (group_ended_at, reported, touched, armed) = (Time::ZERO, None, false, Time::NEVER);
        let key = self.slots.insert(Slot { identity, members, state, group_ended_at, reported, touched, armed });
        self.by_pg.insert((pg, replica), key);
        self.find_newest(pg);
        self.by_replica.insert(replica, key);
        self.touch(key);
        key
    }

    /// Removes a replica, if it is here.
    pub fn remove(&mut self, replica: ReplicaId) -> Option<Slot> {
        let key = self.by_replica.remove(&replica)?;
        let slot = self.slots.remove(key);
        self.by_pg.remove(&(slot.identity.pg, replica));
        self.find_newest(slot.identity.pg);
        self.touched.retain(|k| *k != key);
        Some(slot)
    }

    fn find_newest(&mut self, pg: PgId) {
        let newest = self.of_pg(pg).next_back().map(|(_, key)| *key);
        match newest {
            Some(key) => self.newest.insert(pg, key),
            None => self.newest.remove(&pg),
        };
    }

    /// Whether a replica with this id may have a group: all others of its PG here are older, and have failed.
    pub fn is_newest(&self, pg: PgId, replica: ReplicaId) -> bool {
        let mut others = self.of_pg(pg).filter(|((_, id), _)| *id != replica);
        others.all(|((_, id), key)| *id < replica && matches!(self.slots[*key].state, State::Failed(_)))
    }

    fn of_pg(&self, pg: PgId) -> impl DoubleEndedIterator<Item = (&(PgId, ReplicaId), &usize)> {
        self.by_pg.range((pg, ReplicaId(0))..=(pg, ReplicaId(u64::MAX)))
    }

    /// Drops all groups: the store is poisoned.
    pub fn clear(&mut self) {
        *self = Pgs::new(self.seed);
    }

    /// Returns the slot of the PG's newest replica here.
    pub fn by_pg(&self, pg: PgId) -> Option<usize> {
        self.newest.get(&pg).copied()
    }

    pub fn by_replica(&self, replica: ReplicaId) -> Option<usize> {
        self.by_replica.get(&replica).copied()
    }

    pub fn get(&self, key: usize) -> &Slot {
        &self.slots[key]
    }

    pub fn get_mut(&mut self, key: usize) -> &mut Slot {
        &mut self.slots[key]
    }

    /// Returns the running group in a slot; `None` in every other state, and when the slot is empty.
    pub fn group(&mut self, key: usize) -> Option<&mut Group> {
        match self.slots.get_mut(key).map(|slot| &mut slot.state) {
            Some(State::Running(group)) => Some(group),
            _ => None,
        }
    }

    /// Whether a slot holds a group, running or paused.
    pub fn has_group(&self, key: usize) -> bool {
        matches!(self.slots[key].state, State::Running(_) | State::Paused(_))
    }

    /// Gives a slot its new group, or another state.
    pub fn set_state(&mut self, key: usize, state: State) {
        self.slots[key].state = state;
        self.refresh_members(key);
    }

    /// Takes over the members of the running group.
    pub fn refresh_members(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        if let State::Running(group) = &slot.state {
            slot.members.clone_from(group.members());
        }
    }

    /// Pauses the running group in a slot, until its log begins at another index.
    ///
    /// # Panics
    /// When none runs there.
    pub fn pause(&mut self, key: usize) {
        let state = &mut self.slots[key].state;
        *state = match std::mem::replace(state, State::Creating) {
            State::Running(group) => State::Paused(group),
            _ => panic!("only a running group is paused"),
        };
    }

    /// Resumes the paused group, if there is one.
    pub fn resume(&mut self, key: usize) {
        let state = &mut self.slots[key].state;
        *state = match std::mem::replace(state, State::Creating) {
            State::Paused(group) => State::Running(group),
            other => other,
        };
        self.touch(key);
    }

    /// Returns the paused group.
    pub fn paused(&mut self, key: usize) -> Option<&mut Group> {
        match self.slots.get_mut(key).map(|slot| &mut slot.state) {
            Some(State::Paused(group)) => Some(group),
            _ => None,
        }
    }

    /// Returns the group in a slot, whether it runs or is paused.
    pub fn group_or_paused(&mut self, key: usize) -> Option<&mut Group> {
        match self.slots.get_mut(key).map(|slot| &mut slot.state) {
            Some(State::Running(group) | State::Paused(group)) => Some(group),
            _ => None,
        }
    }

    /// Iterates over all running groups, in a fixed order.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.iter().filter_map(Slot::group)
    }

    /// Returns the keys of all slots, in a fixed order.
    pub fn keys(&self) -> Vec<usize> {
        self.by_pg.values().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.by_pg.values().map(|key| &self.slots[*key])
    }

    pub fn len(&self) -> usize {
        self.by_pg.len()
    }

    /// Marks the slot's group for a poll at the end of this turn.
    pub fn touch(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        if !slot.touched {
            slot.touched = true;
            self.touched.push(key);
        }
    }

    /// Takes the touched slots, in the order of touching.
    pub fn take_touched(&mut self) -> Vec<usize> {
        let touched = std::mem::replace(&mut self.touched, std::mem::take(&mut self.spare));
        touched.iter().for_each(|key| self.slots[*key].touched = false);
        touched
    }

    /// Takes back the memory of a list of touched slots.
    pub fn reuse(&mut self, mut touched: Vec<usize>) {
        touched.clear();
        self.spare = touched;
    }

    pub fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Notes the group's next deadline after a poll.
    pub fn arm(&mut self, key: usize) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let State::Running(group) = &slot.state else { return };
        let at = group.next_deadline();
        if at < slot.armed {
            slot.armed = at;
            self.deadlines.push(Reverse((at, key)));
        }
    }

    /// Touches every slot whose deadline has come.
    pub fn touch_due(&mut self, now: Time) {
        while let Some(Reverse((at, key))) = self.deadlines.peek().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop();
            // A stale deadline: the slot was armed for another moment since, or belongs to another replica.
            if let Some(slot) = self.slots.get_mut(key).filter(|slot| slot.armed == at) {
                slot.armed = Time::NEVER;
                self.touch(key);
            }
        }
    }

    pub fn next_deadline(&self) -> Time {
        self.deadlines.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Epoch, PoolId};

    #[test]
    fn deadline_replaced_by_an_earlier_one_touches_no_slot() {
        let pg = PgId { pool: PoolId(1), n: 0 };
        let identity = ReplicaIdentity { pg, replica: ReplicaId(1), conf_epoch: Epoch(1), members: Vec::new() };
        let mut pgs = Pgs::default();
        let key = pgs.insert(identity, Membership::default(), State::Creating);
        pgs.take_touched();
        for at in [30, 20, 10] {
            pgs.slots[key].armed = Time(at);
            pgs.deadlines.push(Reverse((Time(at), key)));
        }
        pgs.touch_due(Time(10));
        assert!(pgs.has_touched(), "its deadline has come");
        assert_eq!(pgs.take_touched(), [key]);
        pgs.slots[key].armed = Time(40);
        pgs.deadlines.push(Reverse((Time(40), key)));
        pgs.touch_due(Time(30));
        assert!(!pgs.has_touched() && pgs.deadlines.len() == 1, "20 and 30 were replaced by 10");
        pgs.touch_due(Time(40));
        assert!(pgs.has_touched());
    }
}
