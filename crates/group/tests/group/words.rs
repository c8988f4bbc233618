//! Plain words for the steps of a group; `script` makes its traces of them.

use crate::rig::Step;
use group::Action;
use group::descriptor::Command;
use types::Entry;
use types::cut::{CutEnd, CutRefusal, CutStep, SnapshotAnswer};
use types::store::{Effect, Persist};
use types::tree::Change;
use wire::{Message, RaftKind, RaftMsg, Reject, Reply, ReplyBody};

/// Tells a step, as the rest of a sentence that begins with the replica.
pub fn told(step: Step) -> String {
    match step {
        Step::Hears(from, message) => format!("receives from {from}: {}", named(&message).0),
        Step::Misses(from, message) => format!("misses from {from}: {}", named(&message).0),
        Step::Renews(leader) => format!("renews its promise to {leader} and acknowledges it"),
        Step::Durable(index) => format!("has written to disk; its log is durable up to entry {}", index.0),
        Step::Commits(index) => format!("has commit index {}", index.0),
        Step::Does(action) => done(action),
    }
}

fn done(action: Action) -> String {
    match action {
        Action::Send { to, message } => {
            let (name, details) = named(&message);
            format!("sends to {}: {name}{details}", to.0)
        }
        Action::Persist(persist) => format!("gives its disk: {}", persisted(&persist)),
        Action::Apply { index, effect, .. } => format!("applies entry {}: {}", index.0, effected(effect)),
        Action::Tree { index, changes, .. } if changes.is_empty() => {
            format!("applies entry {}: other generations, no effect on data", index.0)
        }
        Action::Tree { index, changes, .. } => {
            let changes: Vec<String> = changes.iter().map(changed).collect();
            format!("applies entry {}: other generations, {}", index.0, changes.join(", "))
        }
        Action::Snapshots(SnapshotAnswer::Cut { cut, result }) => format!("tells meta: {cut} {}", step(result)),
        Action::Snapshots(SnapshotAnswer::Removed { snapshot, result, .. }) => match result {
            Ok(()) => format!("tells meta: {snapshot} is gone"),
            Err(why) => format!("tells meta: {snapshot} stays, {why}"),
        },
        Action::Snapshots(SnapshotAnswer::Flatten { .. } | SnapshotAnswer::Found { .. }) => {
            unreachable!("the OSD answers")
        }
        Action::Snapshots(SnapshotAnswer::Wiped { chunk, result: Ok(()), .. }) => {
            format!("tells meta: chunk {chunk} is wiped behind the end")
        }
        Action::Snapshots(SnapshotAnswer::Wiped { chunk, result: Err(why), .. }) => {
            format!("tells meta: chunk {chunk} is not wiped, {why}")
        }
        Action::Filled { fill, ok: true } => format!("has copied a part of place {fill}"),
        Action::Filled { fill, ok: false } => format!("has not copied a part of place {fill}"),
        Action::Read { read, .. } | Action::Extents { read, .. } => format!("asks its engine: read {read}"),
        Action::Reply { reply, .. } => answered(&reply),
        Action::Attached { order, result: Ok(()) } => format!("tells meta: attach record {order} is committed"),
        Action::Attached { order, result: Err(_) } => format!("tells meta: attach record {order} is refused"),
        Action::BadPeer { osd, .. } => format!("closes its connection to {}", osd.0),
        Action::BadOrigin { .. } => "closes the connection of a client".to_owned(),
        Action::NeedsStream { to } => format!("asks for a stream to {}", to.0),
        Action::Quarantined(reason) => format!("is quarantined: {reason}"),
        Action::BecameLeader => "becomes leader".to_owned(),
        Action::Serves => "serves: an entry of its own term is applied".to_owned(),
        Action::LostLeadership => "leads no longer".to_owned(),
        Action::MembersChanged => "has other members".to_owned(),
        Action::Yielded { to, .. } => format!("yields to {}, which a client reaches", to.0),
    }
}

fn changed(change: &Change) -> String {
    match change {
        Change::Discard(id) => format!("{id} is discarded"),
        Change::Merge { from, into, .. } => format!("{from} merges into {into}"),
        Change::Shorten { generation, from_chunk } => format!("{generation} ends before chunk {from_chunk}"),
    }
}

fn step(result: Result<CutStep, CutRefusal>) -> String {
    match result {
        Ok(CutStep::Snapped) => "is begun".to_owned(),
        Ok(CutStep::Released) => "is released".to_owned(),
        Ok(CutStep::Lapsed) => "is not here".to_owned(),
        Ok(CutStep::Aborted) => "is given up".to_owned(),
        Err(refusal) => format!("is refused, {refusal}"),
    }
}

fn answered(reply: &Reply) -> String {
    let result = match &reply.result {
        Ok(ReplyBody::Done) => "done".to_owned(),
        Ok(_) => "here are the bytes".to_owned(),
        Err(Reject::NotLeader { hint: Some(osd) }) => format!("not the leader, ask {}", osd.0),
        Err(Reject::NotLeader { hint: None }) => "not the leader".to_owned(),
        Err(Reject::NotReady) => "not ready, ask again".to_owned(),
        Err(Reject::Busy) => "busy, ask again".to_owned(),
        Err(Reject::Throttled { wait_us }) => format!("throttled for {wait_us} us"),
        Err(Reject::NoSuchPg) => "no such PG".to_owned(),
        Err(Reject::Failed(errno)) => {
            let words = errno.to_string();
            format!("failed, {}", words.split(':').next().unwrap_or_default())
        }
    };
    format!("answers request {}: {result}", reply.id)
}

fn effected(effect: Effect) -> String {
    match effect {
        Effect::None => "no effect on data".to_owned(),
        Effect::Write { chunk, range } => format!("writes sectors {range} of chunk {chunk}"),
        Effect::Zero { chunk, range } => format!("zeroes sectors {range} of chunk {chunk}"),
        Effect::Unmap { generation, from_chunk } => format!("unmaps {generation} from chunk {from_chunk} on"),
    }
}

fn persisted(persist: &Persist) -> String {
    let state = persist.hard_state.map(|state| {
        let vote = state.vote.map_or("no vote".to_owned(), |replica| format!("vote for {}", replica.0));
        format!("term {}, {vote}, commit {}", state.term.0, state.commit.0)
    });
    state.into_iter().chain(persist.entries.iter().map(entry)).collect::<Vec<String>>().join("; ")
}

fn entry(entry: &Entry) -> String {
    let what = match Command::decode(&entry.descriptor).expect("a command") {
        Command::Empty => "empty".to_owned(),
        Command::Write { stamp, .. } => format!("write {} of session {}", stamp.seq, stamp.session.0),
        Command::Zero { stamp, .. } => format!("zeroes {} of session {}", stamp.seq, stamp.session.0),
        Command::Skip { stamp, .. } => format!("skip of {} of session {}", stamp.seq, stamp.session.0),
        Command::Members { expected, step } => format!("members, epoch {}: {step:?}", expected.0),
        Command::Snap(cut) => format!("snap of {}", cut.id),
        Command::Release { cut, end: CutEnd::Release, .. } => format!("release of {cut}"),
        Command::Release { cut, end: CutEnd::TimedOut, .. } => format!("end of {cut}, which lasts too long"),
        Command::Release { cut, end: CutEnd::Abort, .. } => format!("abort of {cut}"),
        Command::Fill { head, range, .. } => format!("copy of sectors {range} into {head}"),
        Command::Detach { head, .. } => format!("detachment of {head}"),
        Command::Wipe { chunk, range, .. } => format!("wipe of sectors {range} of {chunk}"),
        Command::Remove { snapshot, .. } => format!("removal of {snapshot}"),
        Command::Attach(attach) => {
            let sessions: Vec<String> = attach.writers.as_slice().iter().map(|w| w.session.0.to_string()).collect();
            let sessions = if sessions.is_empty() { "0".to_owned() } else { sessions.join(", ") };
            format!("attach record of session {sessions}, epoch {}", attach.epoch.0)
        }
    };
    let payload = if entry.payload.is_empty() { "" } else { ", with payload" };
    format!("entry {} (term {}, {what}{payload})", entry.index.0, entry.term.0)
}

/// Returns the name of a message, and its details for the line of its sender.
fn named(message: &Message) -> (&'static str, String) {
    match message {
        Message::Raft(msg) => {
            let (name, details) = raft(msg);
            (name, format!(" in term {}{details}", msg.term.0))
        }
        Message::LeaseRelease(_) => ("lease release", String::new()),
        _ => ("another message", String::new()),
    }
}

fn raft(msg: &RaftMsg) -> (&'static str, String) {
    let (index, end) = (msg.index.0, format!(", its log ends with entry {} of term {}", msg.index.0, msg.log_term.0));
    let asks = !msg.context.is_empty();
    match (msg.kind, msg.reject) {
        (RaftKind::Append, _) => {
            let entries: Vec<String> = msg.entries.iter().map(entry).collect();
            let what = if entries.is_empty() { "no entry".to_owned() } else { entries.join("; ") };
            ("append", format!(" behind entry {index} (term {}), commit {}: {what}", msg.log_term.0, msg.commit.0))
        }
        (RaftKind::AppendResponse, false) => ("acknowledgement", format!(" up to entry {index}")),
        (RaftKind::AppendResponse, true) => ("rejection", format!(" of entry {index}, hint {}", msg.reject_hint.0)),
        (RaftKind::PreVote, _) => ("pre-vote request", end),
        (RaftKind::PreVoteResponse, false) => ("pre-vote", String::new()),
        (RaftKind::PreVoteResponse, true) => ("pre-vote refusal", String::new()),
        (RaftKind::Vote, _) => ("vote request", end),
        (RaftKind::VoteResponse, false) => ("vote", String::new()),
        (RaftKind::VoteResponse, true) => ("vote refusal", String::new()),
        (RaftKind::Heartbeat, _) => (if asks { "read-index query" } else { "heartbeat" }, String::new()),
        (RaftKind::HeartbeatResponse, _) => {
            (if asks { "read-index answer" } else { "heartbeat answer" }, String::new())
        }
        (RaftKind::TimeoutNow, _) => ("order to campaign at once", String::new()),
    }
}
