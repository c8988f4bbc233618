//! Between mount and service: the OSD asks meta whether its device is the current one (R17, ADR 0012).
//!
//! The loop comes in with the replicas of the mount and with what meta says; the replicas go on to their groups when meta has
//! let the OSD in, or when no meta has said anything for `OsdConfig::let_in_wait`.
//!
//! Invariant: before that no group exists, so the OSD neither votes nor acknowledges nor serves. An OSD that is on hold goes on only
//! when meta says so.

use crate::node::{Osd, OsdError, Phase};
use env::{Env, ListenerId};
use std::time::Duration;
use types::Time;
use types::control::{DevicePosition, OsdDown, refusal};
use types::store::Recovered;
use types::{PgId, ReplicaId};

/// How long a newcomer waits for the process that meta believes alive: longer than meta takes to call it down, and the
/// carrier's pause between two streams.
const RIVAL_WAIT: Duration = Duration::from_secs(12);

/// What waits to be let in.
pub(crate) struct Waiting {
    replicas: Vec<Recovered>,
    listener: ListenerId,
    /// The OSD goes on by itself then, or gives way to its rival.
    until: Time,
    /// Meta says that another process serves this OSD.
    rival: Option<String>,
}

/// How meta has taken this process.
#[derive(Default)]
pub(crate) struct LetIn {
    pub waiting: Option<Waiting>,
    /// Meta has welcomed this process once.
    pub welcomed: bool,
    /// Meta says that its records went back in time, and whether this OSD is held for that.
    behind: Option<bool>,
}

impl LetIn {
    pub fn next_deadline(&self) -> Time {
        self.waiting.as_ref().map_or(Time::NEVER, |waiting| waiting.until)
    }
}

impl Osd {
    /// R17: how far the life of this device has come.
    pub(crate) fn position(&self) -> DevicePosition {
        let (mount, log_seq, durable_seq) = self.engine.position();
        let (restored, let_in) = (self.config.engine.after_restore, self.let_in.welcomed);
        DevicePosition { mount, log_seq, durable_seq, restored, let_in }
    }

    /// Replicas that this device holds, running or waiting.
    pub(crate) fn replicas(&self) -> Vec<(PgId, ReplicaId)> {
        let waiting = self.let_in.waiting.iter().flat_map(|w| w.replicas.iter().map(|r| &r.identity));
        self.pgs.iter().map(|slot| &slot.identity).chain(waiting).map(|i| (i.pg, i.replica)).collect()
    }

    /// R11: the mount record is durable. The port is bound, so that an address that is taken ends the start here.
    pub(crate) fn mounted(&mut self, replicas: Vec<Recovered>, env: &mut dyn Env) -> Result<(), OsdError> {
        let (listener, addr) = env.listen(&self.config.listen)?;
        self.listening = Some(addr);
        self.recall_watermarks();
        if self.config.engine.after_restore {
            self.forget_watermarks();
        }
        let until = self.now + self.config.let_in_wait;
        self.let_in.waiting = Some(Waiting { replicas, listener, until, rival: None });
        if self.config.let_in_wait.is_zero() {
            self.serve();
        }
        Ok(())
    }

    /// Groups exist and the door opens from here on.
    fn serve(&mut self) {
        let Some(Waiting { replicas, listener, .. }) = self.let_in.waiting.take() else { return };
        for recovered in replicas {
            self.add_recovered(recovered);
        }
        self.share_log();
        self.recall_addresses();
        self.bus.listen(listener);
        let listen = self.listening.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(osd = %self.config.osd, listen, pgs = self.pgs.len(), "serving");
        self.phase = Phase::Running;
        self.meta.report_soon(self.now);
    }

    /// No meta has let the OSD in in time: the OSD goes on by itself, unless meta has said that another process serves it.
    pub(crate) fn step_let_in(&mut self) {
        if self.let_in.next_deadline() > self.now {
            return;
        }
        let waiting = self.let_in.waiting.as_mut().expect("it has a deadline");
        if let Some(reason) = waiting.rival.take() {
            return self.refused(refusal::OSD_OTHER_LIFE, reason);
        }
        tracing::warn!(osd = %self.config.osd,
            "no metadata server has confirmed that the device is the current one: this OSD serves without that check");
        self.serve();
    }

    /// Whether what meta says is worked on now. Before the OSD is let in, only the answer to its hello is; and a restored
    /// device says hello when the doubt of its replicas is durable.
    pub(crate) fn hears(&self, down: &OsdDown) -> bool {
        match (&self.phase, &self.let_in.waiting) {
            (Phase::Mounting, None) => false,
            (Phase::Mounting, Some(_)) => match down {
                OsdDown::Connected => !self.config.engine.after_restore || self.engine.is_log_quiet(),
                _ => true,
            },
            _ => true,
        }
    }

    /// Meta has let this process in.
    pub(crate) fn welcomed(&mut self) {
        if !std::mem::replace(&mut self.let_in.welcomed, true) && self.config.engine.after_restore {
            self.engine.erase_behind_mark();
            self.begin_to_remember();
        }
        self.let_in.behind = None;
        self.serve();
    }

    /// Whether a refusal is waited out: the process that meta believes alive may have lost its machine. An OSD that serves
    /// already does not wait, because two processes must not serve.
    pub(crate) fn waits_for_rival(&mut self, code: u32, reason: &str) -> bool {
        let waiting = self.let_in.waiting.as_mut().filter(|_| code == refusal::OSD_OTHER_LIFE);
        let Some(waiting) = waiting else { return false };
        if waiting.rival.is_none() {
            tracing::warn!(code, reason, "waiting for the other process to end");
            waiting.until = self.now + RIVAL_WAIT;
        }
        waiting.rival = Some(reason.to_owned());
        true
    }

    /// The records of meta went back in time (R17). They cannot tell an older device from the current one, because both may have
    /// gone back together. An OSD that serves goes on; an OSD that starts waits for the recovery.
    ///
    /// With `hold` other OSDs remember more than this device. Without it they do not, and the OSD goes on as without a metadata
    /// server.
    pub(crate) fn store_is_behind(&mut self, reason: &str, hold: bool) {
        let (now, patience) = (self.now, self.config.let_in_wait);
        let next = match &mut self.let_in.waiting {
            Some(waiting) if hold => {
                (waiting.until, waiting.rival) = (Time::NEVER, None);
                "this OSD waits until the records are recovered, then it serves"
            }
            Some(waiting) => {
                (waiting.until, waiting.rival) = (waiting.until.min(now + patience), None);
                "this OSD remembers as much as the others and goes on"
            }
            None => "the PGs here go on without the metadata server",
        };
        if self.let_in.behind.replace(hold) != Some(hold) {
            tracing::warn!(code = refusal::STORE_BEHIND, reason, "{next}");
        }
    }
}
