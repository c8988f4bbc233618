//! Apply: committed entries take effect, in order, each once; their waiters are answered in the same turn.
//!
//! `group` passes in the output of raft. Invariant: effects are decided here and nowhere else, from
//! decision state alone (R1). The waiters of a term are a queue in index order, so the front is
//! always the next to be answered.

use crate::admit::{Waiter, reply};
use crate::decision::{Decided, Decision, Outcome};
use crate::descriptor::Command;
use crate::fills::filled;
use crate::peers::Strangers;
use crate::{Action, Group};
use consensus::{Committed, Ready};
use types::control::AttachRefusal;
use types::cut::{CutRefusal, SnapshotAnswer};
use types::{EntryKind, Errno, OsdId, Time};
use wire::{Message, RaftKind, RaftMsg, Reject, ReplyBody};

impl Group {
    /// Performs the output of one drain of raft.
    pub(crate) fn perform(&mut self, now: Time, ready: &mut Ready, actions: &mut Vec<Action>) {
        for mut persist in ready.persists.drain(..) {
            for entry in &mut persist.entries {
                if crate::descriptor::payload_len(&entry.descriptor) > 0 {
                    self.pending_payloads.fill(entry);
                }
            }
            actions.push(Action::Persist(persist));
        }
        for msg in ready.messages.drain(..) {
            let to = receiver(&self.decision, &self.strangers, &msg);
            actions.extend(to.map(|to| Action::Send { to, message: Message::Raft(msg) }));
        }
        for replica in ready.behind.drain(..) {
            if let Some(to) = self.osd_of(replica) {
                actions.push(Action::NeedsStream { to });
            }
        }
        for state in ready.read_states.drain(..) {
            self.reads.confirmed(state.context, state.index);
        }
        for committed in ready.committed.drain(..) {
            if self.quarantine.is_none() {
                self.apply(now, &committed, actions);
            }
        }
    }

    /// Sends what has waited for this follower's disk: acknowledgements need no [`Group::poll`].
    pub(crate) fn send_released(&mut self, actions: &mut Vec<Action>) {
        if self.quarantine.is_some() || !self.follows() {
            return;
        }
        for msg in self.node.released() {
            let to = receiver(&self.decision, &self.strangers, &msg);
            actions.extend(to.map(|to| Action::Send { to, message: Message::Raft(msg) }));
        }
    }

    fn apply(&mut self, now: Time, committed: &Committed, actions: &mut Vec<Action>) {
        assert_eq!(committed.index.0, self.node.applied().0 + 1, "entries are applied in order");
        assert_eq!(committed.kind, EntryKind::Normal, "no configuration change is stepped");
        let command = match Command::decode(&committed.descriptor) {
            Ok(command) => command,
            // A later version proposed it: skipping it would make this replica differ from the others.
            Err(error) => return self.quarantined(format!("committed {}: {error}", committed.index), actions),
        };
        let before = matches!(command, Command::Members { .. }).then(|| self.decision.members.clone());
        let Decided { outcome, changes } = self.decision.decide(&command);
        self.applied_term = committed.term;
        self.node.applied_to(committed.index);
        if let (Command::Members { step, .. }, Outcome::Members, Some(before)) = (&command, outcome, before) {
            self.members_changed(*step, &before, now);
            actions.push(Action::MembersChanged);
        }
        let (replica, index) = (self.identity.replica, committed.index);
        actions.push(match changes {
            Some(changes) => Action::Tree { replica, index, tree: self.decision.tree.clone(), changes },
            None => Action::Apply { replica, index, effect: outcome.effect() },
        });
        if let Command::Snap(cut) = &command {
            self.holds.snapped(cut.id);
        }
        if self.current().is_some_and(|leading| leading.term_start_index == index) {
            actions.push(Action::Serves);
        }
        if self.waiting.front().is_some_and(|(waits_for, _)| *waits_for == index) {
            let (_, waiter) = self.waiting.pop_front().expect("it has a front");
            answer(waiter, outcome, actions);
        }
        assert!(self.waiting.front().is_none_or(|(waits_for, _)| *waits_for > index), "a waiter was passed over");
    }

    /// Keeps descriptors bounded even when the engine's log holds more small entries than memory should.
    pub(crate) fn compact_resident(&mut self) {
        let excess = self.node.resident().saturating_sub(self.config.limits.resident_entries_max) as u64;
        if excess > 0 {
            self.node.compact(types::Index(self.node.first_index().0 + excess));
        }
    }
}

/// Returns the OSD to which a message goes; `None`: it is not sent.
fn receiver(decision: &Decision, strangers: &Strangers, msg: &RaftMsg) -> Option<OsdId> {
    // The acknowledgement of a lease renewal stands for the answer to a bare heartbeat.
    let acknowledged = msg.kind == RaftKind::HeartbeatResponse && msg.context.is_empty();
    let to = decision.members.osd_of(msg.to).or_else(|| strangers.osd_of(msg.to));
    to.filter(|_| !acknowledged)
}

fn answer(waiter: Waiter, outcome: Outcome, actions: &mut Vec<Action>) {
    match waiter {
        Waiter::Request { origin, id } => {
            let result = match outcome {
                Outcome::Done(_) => Ok(ReplyBody::Done),
                Outcome::Refused(errno) => Err(Reject::Failed(errno)),
                other => panic!("{other:?} answers no request"),
            };
            reply(origin, id, result, actions);
        }
        Waiter::Attach { order } => {
            let result = match outcome {
                Outcome::Done(_) => Ok(()),
                Outcome::StaleOrder { last } => Err(AttachRefusal::StaleOrder { last }),
                Outcome::Refused(Errno::Gone) => Err(AttachRefusal::NoBase),
                Outcome::TooMany | Outcome::Refused(_) => Err(AttachRefusal::Busy),
                other => panic!("{other:?} answers no attach"),
            };
            actions.push(Action::Attached { order, result });
        }
        Waiter::Cut { cut } => {
            let result = match outcome {
                Outcome::Cut(step) => Ok(step),
                Outcome::NoCut(refusal) => Err(refusal),
                other => panic!("{other:?} answers no order of a cut"),
            };
            actions.push(Action::Snapshots(SnapshotAnswer::Cut { cut, result }));
        }
        Waiter::Remove { volume, snapshot } => {
            let result = match outcome {
                Outcome::Removed => Ok(()),
                Outcome::NoCut(refusal) => Err(refusal),
                other => panic!("{other:?} answers no removal"),
            };
            actions.push(Action::Snapshots(SnapshotAnswer::Removed { volume, snapshot, result }));
        }
        Waiter::Fill { fill } => filled(fill, matches!(outcome, Outcome::Done(_)), actions),
        Waiter::Detach => {}
        Waiter::Wipe { .. } => {
            let done = matches!(outcome, Outcome::Done(_));
            waiter.wiped(if done { Ok(()) } else { Err(CutRefusal::Stale) }, actions);
        }
    }
}
