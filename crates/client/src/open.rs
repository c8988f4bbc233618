//! One open volume as a block device, and the steps of its closing.

use crate::meta::AskId;
use crate::outage::{Change, Outage};
use device::{BlockDevice, Busy, Completion, DeviceInfo, Request};
use types::faults::ToldFault;
use types::{Epoch, Errno, SessionId, SnapshotId, Time, VolumeId, codes};
use volume::{OnUnavailable, Volume, VolumeStats};

/// Names an open volume of a [`crate::Client`]; never used again after it is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeKey {
    pub(crate) slot: u16,
    pub(crate) life: u32,
}

/// Stage of a volume between open and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// The volume takes no more requests; it waits for those in flight, then tells meta.
    Closing,
    /// Meta is being told.
    Parting {
        tries: u32,
        /// Time of the next attempt, unless a request is pending.
        at: Time,
    },
}

/// Status of an open volume, as a status page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// `pool/volume`.
    pub name: String,
    /// Id of the volume.
    pub volume: VolumeId,
    /// The snapshot that is open in its place.
    pub snapshot: Option<SnapshotId>,
    /// The session under which it is open.
    pub session: SessionId,
    /// The epoch of that session. Each open for writing raises it by one, and so does all else that ends a session but its lease.
    pub epoch: Epoch,
    /// Its present length.
    pub len_bytes: u64,
    /// Reason why no request succeeds any more.
    pub failed: Option<Errno>,
    /// Number of its PGs that are unavailable: no OSD executes their requests.
    pub unavailable_pgs: usize,
    /// Counts since its open.
    pub stats: VolumeStats,
}

pub(crate) struct OpenVolume {
    pub key: VolumeKey,
    pub info: DeviceInfo,
    pub volume: Volume,
    pub stage: Stage,
    pub done: Vec<Completion>,
    pub keepalive_at: Time,
    /// The pending keepalive, and the time when it was sent.
    pub keepalive: Option<(AskId, Time)>,
    /// The owner was told that the volume has failed.
    pub failure_told: bool,
    pub(crate) outage: Outage,
}

impl OpenVolume {
    pub fn report(&self) -> VolumeReport {
        VolumeReport {
            name: self.info.name.clone(),
            volume: self.volume.id(),
            snapshot: self.volume.snapshot(),
            session: self.volume.session(),
            epoch: self.volume.epoch(),
            len_bytes: self.volume.len_bytes(),
            failed: self.volume.failed(),
            unavailable_pgs: self.volume.unavailable_pgs(),
            stats: self.volume.stats(),
        }
    }

    /// Takes the rehearsed faults that meta told.
    pub fn set_faults(&mut self, now: Time, told: &[ToldFault]) {
        if self.volume.set_faults(now, told) {
            let faults: Vec<&ToldFault> = self.volume.faults().collect();
            tracing::warn!(volume = self.info.name, ?faults, "other faults are rehearsed on the volume");
        }
    }

    /// Logs the begin and the end of an outage whose requests fail, also of a rehearsed one. One whose requests wait shows in late
    /// requests alone.
    pub fn note_outage(&mut self, now: Time) {
        let (pgs, rehearsed) = (self.volume.unavailable_pgs(), self.volume.is_paused());
        let policy = self.volume.on_unavailable();
        let is_out = policy != OnUnavailable::Freeze && (pgs > 0 || rehearsed);
        match self.outage.turn(now, is_out, self.volume.stats().unavailable) {
            Some(Change::Begun) => {
                let code = codes::label(codes::REQUESTS_NOT_ANSWERED);
                let volume = &self.info.name;
                tracing::warn!(code, volume, pgs, rehearsed, %policy, "the storage is unavailable: requests fail");
            }
            Some(Change::Ended { after, requests }) => {
                let (volume, outage_s) = (&self.info.name, after.as_secs());
                tracing::info!(volume, outage_s, requests, "the storage is available again");
            }
            None => {}
        }
    }

    /// True when no request is in flight and the owner has taken every completion.
    pub fn is_quiet(&self) -> bool {
        self.volume.is_idle() && self.done.is_empty()
    }

    /// Whether this client holds the volume for writing, as far as it knows.
    pub fn holds(&self) -> bool {
        self.volume.writable() && self.volume.failed().is_none()
    }
}

impl BlockDevice for OpenVolume {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy> {
        if self.stage != Stage::Open {
            self.done.push(Completion { token, result: Err(Errno::Shutdown) });
            return Ok(());
        }
        self.volume.submit(now, request, token)
    }

    fn completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
        self.volume.completions(out);
    }

    fn next_deadline(&self) -> Time {
        if self.done.is_empty() { self.volume.next_deadline() } else { Time::ZERO }
    }
}
