//! Requests that the device has: a slab whose tokens distinguish successive uses of a slot.

use crate::proto::{Command, Header};
use types::Time;

/// The connection and the request that a completion answers.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Slot and generation of the connection; it may be gone by now.
    pub key: u32,
    pub generation: u32,
    pub header: Header,
    pub command: Command,
    /// Time at which the request was complete.
    pub since: Time,
}

/// Requests in flight, by device token.
#[derive(Default)]
pub struct PendingTable {
    slots: Vec<(u32, Option<Pending>)>,
    free: Vec<u32>,
}

impl PendingTable {
    /// Keeps `pending` and returns the token for the device.
    pub fn insert(&mut self, pending: Pending) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, slot) = &mut self.slots[index as usize];
        assert!(slot.is_none(), "slot {index} is free");
        *generation = generation.wrapping_add(1);
        *slot = Some(pending);
        u64::from(*generation) << 32 | u64::from(index)
    }

    /// Returns since when each request is in flight.
    pub fn ages(&self) -> impl Iterator<Item = Time> {
        self.slots.iter().filter_map(|(_, slot)| slot.as_ref().map(|pending| pending.since))
    }

    /// Removes a request; `None` when the token belongs to no request in flight.
    pub fn remove(&mut self, token: u64) -> Option<Pending> {
        let index = token as u32;
        let (generation, slot) = self.slots.get_mut(index as usize)?;
        if u64::from(*generation) != token >> 32 {
            return None;
        }
        let pending = slot.take()?;
        self.free.push(index);
        Some(pending)
    }
}
