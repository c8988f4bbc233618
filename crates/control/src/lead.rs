//! [`Leader`]: the election of a metadata server, and the order of its calls to the store.
//!
//! A server campaigns, loads the records, and leads with a [`Control`] until a call fails. Input: the time, and the answer to
//! each call. Output: one [`Step`] at a time. Its owner makes the call, performs the action, or waits.
//!
//! Invariant: one call is under way at a time, and no action that follows it leaves before its answer. A call without an answer
//! ends the leadership. A leader plans nothing when the store last confirmed its election more than `BELIEVE` ago: a
//! stopped process does not notice the end of its lease.

use crate::batch::Txn;
use crate::config::ControlConfig;
use crate::machine::{Control, ControlAction, Now};
use crate::records::{LoadError, Records, StoredItem, new_cluster};
use std::collections::VecDeque;
use std::time::Duration;
use types::planted::{Bug, on};
use types::{ClusterId, Time};

/// Interval at which a follower checks whether there is a leader.
pub const CAMPAIGN_EVERY: Duration = Duration::from_millis(400);
/// Longest pause between two calls to a store that does not answer.
const CAMPAIGN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pause between two confirmations of an election.
pub const KEEP_EVERY: Duration = Duration::from_millis(800);
/// A leader whose election was not confirmed for this long has it confirmed before it plans anything: another server may lead by
/// now. The time is below the lease of the election, by a margin for clocks of different speed.
const BELIEVE: Duration = Duration::from_secs(2);

/// A call to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Try to be elected. [`Answer::Won`] or [`Answer::Lost`].
    Campaign,
    /// Read all records. [`Answer::Items`].
    Load,
    /// Commit all of it, durably, under this election. [`Answer::Done`].
    Commit(Txn),
    /// Extend the lease of the election. [`Answer::Done`].
    Keep,
    /// Give the election up, as far as possible. Any answer.
    Resign,
}

/// Answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Won,
    /// Another server leads, at this address if known.
    Lost {
        leader: Option<String>,
    },
    Items(Vec<StoredItem>),
    Done,
    /// The call was refused, or there is no answer: it may have taken effect, or may still do so.
    Failed,
}

/// The next thing to do for the owner of a [`Leader`].
#[allow(clippy::large_enum_variant)] // short-lived, and moved once
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this call, then pass its answer to [`Leader::handle_answer`].
    Call(Call),
    /// The server leads from now on.
    Leads,
    /// Perform this action, which is no commit.
    Act(ControlAction),
    /// The leadership is over: end all streams, and drop all requests unanswered. They may have been done or not.
    Ended,
    /// Wait for an input, at most until then (monotonic clock).
    Wait(Time),
}

enum Phase {
    Standby { until: Time },
    Calling(Called),
    Elected,
    Empty,
    Begins,
    Leading,
    Ended,
    Resigns,
}

/// The call under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Called {
    Campaign,
    Load,
    NewCluster,
    Commit,
    Keep,
    Resign,
}

/// One metadata server as a candidate, a leader and a follower.
pub struct Leader {
    config: ControlConfig,
    /// Address of this server for peers; empty in a test that names none.
    address: String,
    /// Version of the program, for display only.
    version: String,
    /// Id of the cluster that this server creates in an empty store.
    fresh: ClusterId,
    /// Whether the store ends an election that is not kept.
    leased: bool,
    phase: Phase,
    control: Option<Control>,
    queue: VecDeque<ControlAction>,
    /// Time of the plan that the queued actions come from.
    planned_at: Time,
    /// When the election is to be confirmed next.
    keep_at: Time,
    /// When the call under way was made.
    asked: Time,
    /// Pause after a campaign that failed.
    outage: Option<Duration>,
}

impl Leader {
    /// Returns a server that campaigns at once. `leased`: the store ends an election that is not kept.
    pub fn new(config: ControlConfig, address: &str, fresh: ClusterId, leased: bool) -> Leader {
        Leader {
            config,
            address: address.to_owned(),
            version: String::new(),
            fresh,
            leased,
            phase: Phase::Standby { until: Time::ZERO },
            control: None,
            queue: VecDeque::new(),
            planned_at: Time::ZERO,
            keep_at: Time::ZERO,
            asked: Time::ZERO,
            outage: None,
        }
    }

    /// Sets the version of the program.
    pub fn set_version(&mut self, version: &str) {
        version.clone_into(&mut self.version);
    }

    /// Returns the decisions of this server while it leads.
    pub fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    /// Returns the decisions of this server while it leads, for inputs.
    pub fn control_mut(&mut self) -> Option<&mut Control> {
        self.control.as_mut()
    }

    /// Whether a call is under way.
    pub fn is_calling(&self) -> bool {
        matches!(self.phase, Phase::Calling(_))
    }

    /// Returns the time of the plan that the last action came from (monotonic clock).
    pub fn planned_at(&self) -> Time {
        self.planned_at
    }

    /// Returns the next thing to do. Call it after inputs, after [`Leader::handle_answer`], and when a wait is over, until it
    /// returns a call or a wait.
    ///
    /// # Panics
    /// When a call is under way.
    pub fn step(&mut self, now: Now) -> Step {
        match self.phase {
            Phase::Calling(_) => panic!("a call to the store is under way"),
            Phase::Standby { until } if now.mono < until => Step::Wait(until),
            Phase::Standby { .. } => self.call(now, Called::Campaign, Call::Campaign),
            Phase::Elected => self.call(now, Called::Load, Call::Load),
            Phase::Empty => {
                let txn = new_cluster(self.fresh, now.wall_ms);
                self.call(now, Called::NewCluster, Call::Commit(txn))
            }
            Phase::Begins => {
                self.phase = Phase::Leading;
                Step::Leads
            }
            Phase::Leading => self.lead(now),
            Phase::Ended => {
                (self.control, self.phase) = (None, Phase::Resigns);
                self.queue.clear();
                Step::Ended
            }
            Phase::Resigns => self.call(now, Called::Resign, Call::Resign),
        }
    }

    fn call(&mut self, now: Now, called: Called, call: Call) -> Step {
        (self.phase, self.asked) = (Phase::Calling(called), now.mono);
        Step::Call(call)
    }

    fn lead(&mut self, now: Now) -> Step {
        let keep_at = self.keep_at;
        if self.queue.is_empty() {
            if now.mono >= keep_at && !on(Bug::LeaseUnchecked) {
                return self.call(now, Called::Keep, Call::Keep);
            }
            let mut out = Vec::new();
            self.planned_at = now.mono;
            self.leading().poll(now, &mut out);
            self.queue = out.into();
        }
        match self.queue.pop_front() {
            Some(ControlAction::Commit(txn)) => self.call(now, Called::Commit, Call::Commit(txn)),
            Some(action) => Step::Act(action),
            None if now.mono >= keep_at => self.call(now, Called::Keep, Call::Keep),
            None => Step::Wait(self.leading().next_deadline(now).min(keep_at)),
        }
    }

    fn leading(&mut self) -> &mut Control {
        self.control.as_mut().expect("a leader has decisions to make")
    }

    /// Takes the answer to the call under way.
    ///
    /// # Errors
    /// The stored records cannot be used. No later leadership of this program can use them either.
    ///
    /// # Panics
    /// When no call is under way, or the answer is one to another call.
    pub fn handle_answer(&mut self, now: Now, answer: Answer) -> Result<(), LoadError> {
        let Phase::Calling(called) = self.phase else { panic!("an answer to no call") };
        self.phase = match (called, answer) {
            (Called::Campaign, Answer::Won) => {
                self.outage = None;
                self.confirmed(now.mono);
                Phase::Elected
            }
            (Called::Campaign, Answer::Lost { .. }) => {
                self.outage = None;
                Phase::Standby { until: now.mono + CAMPAIGN_EVERY }
            }
            (Called::Campaign, Answer::Failed) => {
                let pause = self.outage.map_or(CAMPAIGN_EVERY, |pause| (pause * 2).min(CAMPAIGN_PAUSE_MAX));
                self.outage = Some(pause);
                Phase::Standby { until: now.mono + pause }
            }
            (Called::Load, Answer::Items(items)) if items.is_empty() => Phase::Empty,
            (Called::Load, Answer::Items(items)) => {
                self.begin(now, Records::load(items)?);
                Phase::Begins
            }
            (Called::NewCluster, Answer::Done) => Phase::Elected,
            (Called::Commit, answer)
                if answer == Answer::Done || answer == Answer::Failed && on(Bug::LostCommitBelieved) =>
            {
                let mut out = Vec::new();
                self.leading().handle_committed(&mut out);
                self.queue.extend(out);
                Phase::Leading
            }
            (Called::Commit, Answer::Failed) if on(Bug::LostCommitRefused) => Phase::Elected,
            (Called::Keep, Answer::Done) => {
                self.confirmed(now.mono);
                Phase::Leading
            }
            (Called::Resign, _) => Phase::Standby { until: now.mono + CAMPAIGN_EVERY },
            (_, Answer::Failed) => Phase::Ended,
            (_, answer) => panic!("{answer:?} answers another call"),
        };
        Ok(())
    }

    /// Takes the confirmation of the election by the call under way: it holds as of the moment at which the call was made.
    fn confirmed(&mut self, now: Time) {
        self.keep_at = if self.leased { (now + KEEP_EVERY).min(self.asked + BELIEVE) } else { Time::NEVER };
    }

    fn begin(&mut self, now: Now, records: Records) {
        let mut control = Control::new(self.config, records, now);
        if !self.address.is_empty() {
            control.lead_as(&self.address);
        }
        control.set_version(&self.version);
        self.queue.clear();
        self.control = Some(control);
    }
}

#[cfg(test)]
mod tests;
