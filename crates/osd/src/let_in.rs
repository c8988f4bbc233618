//! Between mount and service: the OSD asks meta whether its device is the current one (R17, ADR 0012).
//!
//! Input: the replicas of the mount, and the messages of meta. The replicas get their groups when meta has
//! let the OSD in, or when no meta has answered for `OsdTuning::let_in_wait`.
//!
//! Invariant: before that no group exists, so the OSD neither votes nor acknowledges nor serves. An OSD on hold goes on only
//! when meta says so.

use crate::node::{Osd, OsdError, Phase};
use env::{Env, ListenerId};
use types::Time;
use types::codes;
use types::control::{DevicePosition, OsdDown};
use types::planted::{Bug, on};
use types::store::Recovered;
use types::{PgId, ReplicaId};

/// An OSD that waits to be let in.
pub(crate) struct Waiting {
    replicas: Vec<Recovered>,
    listener: ListenerId,
    /// End of the wait: the OSD then goes on by itself, or ends in favour of its rival.
    until: Time,
    /// Reason from meta, when another process serves this OSD.
    rival: Option<String>,
}

/// How a process starts again on an older copy; the mark is written before (R17, ADR 0012).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// With [`OsdConfig::behind`](crate::OsdConfig::behind): it waits for its PGs to be served without it.
    Marked,
    /// With [`engine::EngineConfig::after_restore`]: all replicas fail. The mount number is above this one.
    Restored { mount_above: u64 },
}

/// The life of this process: its start, meta's admission of it, and its planned stop.
#[derive(Default)]
pub(crate) struct Service {
    /// The first turn has begun the mount.
    pub started: bool,
    pub waiting: Option<Waiting>,
    /// Address of the listener, once it is bound.
    pub listening: Option<env::NetAddr>,
    /// Begin of service.
    pub served_at: Time,
    /// True once meta has welcomed this process.
    pub welcomed: bool,
    /// Set when the records of meta went back in time; true when this OSD is on hold for that.
    behind: Option<bool>,
    /// Meta has ordered that all replicas fail, which the next start does, and that its mount number is above this one.
    restores: Option<u64>,
    /// Reason of the wait of an older copy that was last logged.
    told: Option<String>,
    /// Latest end of a planned stop that is under way.
    pub stop_by: Option<Time>,
}

impl Service {
    pub fn next_deadline(&self) -> Time {
        self.waiting.as_ref().map_or(Time::NEVER, |waiting| waiting.until)
    }
}

impl Osd {
    /// Returns the position of this device in its own history (R17).
    pub(crate) fn position(&self) -> DevicePosition {
        let (mount, log_seq, durable_seq) = self.engine.position();
        let (restored, let_in) = (self.config.engine.after_restore, self.service.welcomed);
        DevicePosition { mount, log_seq, durable_seq, restored, behind: self.is_marked(), let_in }
    }

    /// Returns the replicas that this device holds, running or waiting.
    pub(crate) fn replicas(&self) -> Vec<(PgId, ReplicaId)> {
        let waiting = self.service.waiting.iter().flat_map(|w| w.replicas.iter().map(|r| &r.identity));
        self.pgs.iter().map(|slot| &slot.identity).chain(waiting).map(|i| (i.pg, i.replica)).collect()
    }

    /// Begins the wait once the mount record is durable (R11). The port is bound first, so that a taken
    /// address ends the start here.
    pub(crate) fn mounted(&mut self, replicas: Vec<Recovered>, env: &mut dyn Env) -> Result<(), OsdError> {
        let (listener, addr) = env.listen(&self.config.listen)?;
        self.service.listening = Some(addr);
        self.recall_watermarks();
        if self.config.engine.after_restore {
            self.forget_watermarks();
        }
        let until = if self.is_marked() { Time::NEVER } else { self.now + self.config.tuning.let_in_wait };
        self.service.waiting = Some(Waiting { replicas, listener, until, rival: None });
        if self.config.tuning.let_in_wait.is_zero() && !self.is_marked() {
            self.serve();
        }
        Ok(())
    }

    /// Whether this process runs on an older copy whose replicas have not failed yet.
    fn is_marked(&self) -> bool {
        self.config.behind && !self.config.engine.after_restore && !on(Bug::MarkForgotten)
    }

    /// Starts service: makes the groups and opens the listener.
    fn serve(&mut self) {
        let Some(Waiting { mut replicas, listener, .. }) = self.service.waiting.take() else { return };
        // The newest replica of a PG comes before older ones, which have failed.
        replicas.sort_by_key(|recovered| std::cmp::Reverse(recovered.identity.replica));
        replicas.into_iter().for_each(|recovered| self.add_recovered(recovered));
        self.share_log();
        self.recall_addresses();
        self.bus.listen(listener);
        let listen = self.listening().map(ToString::to_string).unwrap_or_default();
        tracing::info!(osd = %self.config.osd, listen, pgs = self.pgs.len(), "serving");
        (self.phase, self.service.served_at) = (Phase::Running, self.now);
        self.meta.report_soon(self.now);
    }

    /// Ends the wait when no meta has let the OSD in in time: it goes on by itself, unless another process serves it.
    pub(crate) fn step_let_in(&mut self) {
        if self.service.next_deadline() > self.now {
            return;
        }
        let waiting = self.service.waiting.as_mut().expect("it has a deadline");
        if let Some(reason) = waiting.rival.take() {
            return self.refused(codes::OSD_OTHER_LIFE, reason);
        }
        tracing::warn!(osd = %self.config.osd,
            "no metadata server has confirmed that the device is the current one: this OSD serves without that check");
        self.serve();
    }

    /// Whether a message of meta is handled now. A mounting OSD handles none before its mount is complete. A restored
    /// device sends its hello only when it is durable that its replicas have failed.
    pub(crate) fn hears(&self, down: &OsdDown) -> bool {
        match (&self.phase, &self.service.waiting) {
            (Phase::Mounting, None) => false,
            (Phase::Mounting, Some(_)) => match down {
                OsdDown::Connected => !self.config.engine.after_restore || self.engine.is_log_quiet(),
                _ => true,
            },
            _ => true,
        }
    }

    /// Starts service: meta has let this process in.
    pub(crate) fn welcomed(&mut self) {
        if !std::mem::replace(&mut self.service.welcomed, true) && self.config.engine.after_restore {
            self.engine.erase_behind_mark();
            self.begin_to_remember();
        }
        self.service.behind = None;
        self.serve();
    }

    /// Whether this OSD asks again after a refusal as an older copy, on each new stream. A marked device waits until its PGs are
    /// served without it. A device whose replicas have failed has no new ones before it was let in, and goes on until it gets a new
    /// mount number. Any other device gets the mark first, which takes another start.
    pub(crate) fn asks_again_as_older(&mut self, code: u32, reason: &str) -> bool {
        let marked = self.is_marked();
        let has_failed = self.config.engine.after_restore && !self.service.welcomed;
        let waiting = self.service.waiting.as_mut();
        let asks_again = has_failed || marked && waiting.is_some();
        if code != codes::DEVICE_BEHIND || !asks_again {
            return false;
        }
        if let Some(waiting) = waiting {
            // A rival that it may have met is gone.
            waiting.rival = None;
            waiting.until = if marked { Time::NEVER } else { waiting.until };
        }
        if self.service.told.as_deref() != Some(reason) {
            tracing::warn!(code, reason, "waiting: the device is an older copy");
            self.service.told = Some(reason.to_owned());
        }
        true
    }

    /// Fails all replicas: meta has found that the device is an older copy, and its PGs are served without it. The mark comes
    /// first, and the next start of this process, which is due at once, fails them.
    pub(crate) fn fail_replicas(&mut self, reason: String, mount: u64) {
        tracing::warn!(reason, "the device is an older copy: all its replicas fail, to be replaced by new ones");
        self.service.restores = Some(mount);
        self.refused(codes::DEVICE_BEHIND, reason);
    }

    /// Returns why meta does not let this older copy in, while it waits (BSLT-2041).
    pub fn waits_because(&self) -> Option<&str> {
        self.service.waiting.as_ref().and(self.service.told.as_deref())
    }

    /// Returns how the process is to start again on its device, once meta has found that it is an older copy.
    pub fn starts_again(&self) -> Option<Restart> {
        let behind = self.refusal().is_some_and(|(code, _)| code == codes::DEVICE_BEHIND);
        behind.then_some(self.service.restores.map_or(Restart::Marked, |mount_above| Restart::Restored { mount_above }))
    }

    /// Whether this OSD waits after a refusal: the process that meta believes alive may have lost its machine. An OSD that serves
    /// already does not wait, because two processes must not serve.
    pub(crate) fn waits_for_rival(&mut self, code: u32, reason: &str) -> bool {
        let waiting = self.service.waiting.as_mut().filter(|_| code == codes::OSD_OTHER_LIFE);
        let Some(waiting) = waiting else { return false };
        if waiting.rival.is_none() {
            tracing::warn!(code, reason, "waiting for the other process to end");
            waiting.until = self.now + self.config.tuning.rival_wait;
        }
        waiting.rival = Some(reason.to_owned());
        true
    }

    /// Handles records of meta that went back in time (R17). They cannot tell an older device from the current one, because both
    /// may have gone back together. An OSD that serves goes on; an OSD that starts waits for the recovery.
    ///
    /// With `hold` other OSDs remember more than this device. Without it they do not, and the OSD goes on as without a metadata
    /// server.
    pub(crate) fn store_is_behind(&mut self, reason: &str, hold: bool) {
        let (now, patience) = (self.now, self.config.tuning.let_in_wait);
        let marked = self.is_marked();
        let next = match &mut self.service.waiting {
            Some(_) if marked => "this OSD is an older copy, and waits",
            Some(waiting) if hold => {
                (waiting.until, waiting.rival) = (Time::NEVER, None);
                "this OSD serves after the recovery of the records"
            }
            Some(waiting) => {
                (waiting.until, waiting.rival) = (waiting.until.min(now + patience), None);
                "this OSD has recorded as much as the other OSDs and goes on"
            }
            None => "the PGs of this OSD go on without the metadata server",
        };
        if self.service.behind.replace(hold) != Some(hold) {
            tracing::warn!(code = codes::STORE_BEHIND, reason, "{next}");
        }
    }
}
