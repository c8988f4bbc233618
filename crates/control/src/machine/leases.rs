//! Leases: which writers of volumes count as alive.
//!
//! A writer renews its lease with its keepalives. The end of a lease stops no I/O (R6): it lets others open the volume, and the attach record
//! of such an open fences the writer. Nothing of this is in the records: another leader of meta gives each writer a whole lease.

use super::Control;
use crate::records::{Holder, VolumeRecord};
use std::collections::BTreeMap;
use std::time::Duration;
use types::control::{HOLDER_LEASE_MS, HOLDER_RETURN_MS};
use types::{OsdId, SessionId, Time, VolumeId};

/// Knowledge of a writer beside its record.
#[derive(Default)]
pub(super) struct Lease {
    /// It counts as alive until then.
    until: Time,
    /// The address from which it renewed last, while that connection lives.
    from: Option<String>,
    /// OSDs that it cannot reach, as its last keepalive said.
    pub unreached: Vec<OsdId>,
}

/// The leases of all writers.
#[derive(Default)]
pub(super) struct Leases(BTreeMap<(VolumeId, SessionId), Lease>);

impl Leases {
    /// Renews the lease of a writer; `from`: it did so itself, from this address.
    pub fn renew(&mut self, now: Time, of: (VolumeId, SessionId), from: Option<String>) -> &mut Lease {
        let lease = self.0.entry(of).or_default();
        lease.until = now + Duration::from_millis(HOLDER_LEASE_MS);
        if from.is_some() {
            lease.from = from;
        }
        lease
    }

    /// Returns the time left; `None`: the writer does not count as alive.
    pub fn left(&self, now: Time, volume: VolumeId, session: SessionId) -> Option<Duration> {
        self.0.get(&(volume, session)).filter(|lease| now < lease.until).map(|lease| lease.until.since(now))
    }

    /// Drops the leases of a volume's sessions that its record does not name any more.
    fn keep_only(&mut self, volume: VolumeId, stays: impl Fn(SessionId) -> bool) {
        let all = (volume, SessionId(0))..=(volume, SessionId(u64::MAX));
        let gone: Vec<_> = self.0.range(all).map(|(of, _)| *of).filter(|(_, session)| !stays(*session)).collect();
        gone.iter().for_each(|of| drop(self.0.remove(of)));
    }

    /// Takes the end of a client's connection. A writer that renewed over it is dead, or has lost its path to this
    /// meta. A living one returns with its next keepalive, so its lease need not last longer than that. The data is
    /// safe in both cases: another writer comes only behind a fence.
    pub fn take_client_gone(&mut self, now: Time, address: &str) {
        let soon = now + Duration::from_millis(HOLDER_RETURN_MS);
        for lease in self.0.values_mut().filter(|lease| lease.from.as_deref() == Some(address)) {
            lease.from = None;
            lease.until = lease.until.min(soon);
        }
    }

    /// Returns the OSDs that some writers cannot reach.
    pub fn unreached(&self) -> impl Iterator<Item = (VolumeId, SessionId, &[OsdId])> {
        let some = self.0.iter().filter(|(_, lease)| !lease.unreached.is_empty());
        some.map(|((volume, session), lease)| (*volume, *session, &lease.unreached[..]))
    }
}

impl Control {
    /// Returns the living writers of a volume, each with the time left of its lease.
    pub(super) fn living<'a>(
        &'a self,
        now: Time,
        volume: &'a VolumeRecord,
    ) -> impl Iterator<Item = (SessionId, &'a Holder, Duration)> {
        let left = move |session| self.leases.left(now, volume.id, session);
        volume.holders().filter_map(move |(of, holder)| left(of.session).map(|left| (of.session, holder, left)))
    }

    /// Returns the time after which no writer of the volume counts as alive, unless one renews; `None`: none does now.
    pub(super) fn lease_left(&self, now: Time, volume: VolumeId) -> Option<Duration> {
        self.records.volumes.get(&volume).and_then(|volume| self.living(now, volume).map(|(.., left)| left).max())
    }

    /// Drops the leases of sessions that do not hold the volume any more.
    pub(super) fn forget_leases(&mut self, volume: VolumeId) {
        let record = self.records.volumes.get(&volume);
        self.leases.keep_only(volume, |session| record.is_some_and(|record| record.holder_of(session).is_some()));
    }
}
