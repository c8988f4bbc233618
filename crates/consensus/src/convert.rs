//! Conversion between raft's protobuf values and this project's. Protobuf bytes exist nowhere: these are plain structs.

use crate::{MSG_ENTRIES_MAX, MSG_PAYLOAD_MAX};
use bytes::Bytes;
use raft::eraftpb::{self, ConfChangeTransition, MessageType};
use types::map::{Member, MembersStep, Membership};
use types::planted::{Bug, on};
use types::store::{Crcs, HardState};
use types::{Entry, EntryKind, Index, IoBuf, PgId, ReplicaId, Term};
use wire::{RaftKind, RaftMsg};

/// Returns raft's name for a kind that crosses the wire.
pub(crate) fn kind_to_raft(kind: RaftKind) -> MessageType {
    match kind {
        RaftKind::Append => MessageType::MsgAppend,
        RaftKind::AppendResponse => MessageType::MsgAppendResponse,
        RaftKind::Vote => MessageType::MsgRequestVote,
        RaftKind::VoteResponse => MessageType::MsgRequestVoteResponse,
        RaftKind::PreVote => MessageType::MsgRequestPreVote,
        RaftKind::PreVoteResponse => MessageType::MsgRequestPreVoteResponse,
        RaftKind::Heartbeat => MessageType::MsgHeartbeat,
        RaftKind::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
        RaftKind::TimeoutNow => MessageType::MsgTimeoutNow,
    }
}

/// Returns the wire's name for a message that raft sends.
///
/// # Panics
/// For kinds that only a snapshot, a forwarded read or a forwarded proposal would bring: none of these is used.
fn kind_from_raft(kind: MessageType) -> RaftKind {
    match kind {
        MessageType::MsgAppend => RaftKind::Append,
        MessageType::MsgAppendResponse => RaftKind::AppendResponse,
        MessageType::MsgRequestVote => RaftKind::Vote,
        MessageType::MsgRequestVoteResponse => RaftKind::VoteResponse,
        MessageType::MsgRequestPreVote => RaftKind::PreVote,
        MessageType::MsgRequestPreVoteResponse => RaftKind::PreVoteResponse,
        MessageType::MsgHeartbeat => RaftKind::Heartbeat,
        MessageType::MsgHeartbeatResponse => RaftKind::HeartbeatResponse,
        MessageType::MsgTimeoutNow => RaftKind::TimeoutNow,
        other => panic!("raft sends a {other:?}, which was not requested"),
    }
}

/// Returns raft's form of the members.
pub(crate) fn members_to_raft(members: &Membership) -> eraftpb::ConfState {
    let ids = |set: &[Member]| set.iter().map(|m| m.replica.0).collect();
    eraftpb::ConfState {
        voters: ids(&members.voters),
        voters_outgoing: ids(&members.outgoing),
        learners: ids(&members.learners),
        ..eraftpb::ConfState::default()
    }
}

/// Returns raft's form of a step from the members `before`: changes to apply one after the other.
pub(crate) fn step_to_raft(step: MembersStep, before: &Membership) -> Vec<eraftpb::ConfChangeV2> {
    use eraftpb::ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    let one =
        |change_type, id: ReplicaId| eraftpb::ConfChangeSingle { change_type, node_id: id.0, ..Default::default() };
    let change = |transition, changes: Vec<eraftpb::ConfChangeSingle>| eraftpb::ConfChangeV2 {
        transition,
        changes: changes.into(),
        ..Default::default()
    };
    // An empty list ends a joint phase.
    let leave = || change(ConfChangeTransition::Auto, Vec::new());
    match step {
        MembersStep::AddLearner(member) => {
            vec![change(ConfChangeTransition::Auto, vec![one(AddLearnerNode, member.replica)])]
        }
        MembersStep::Abort if before.learners.is_empty() => Vec::new(),
        MembersStep::Abort => {
            let gone = before.learners.iter().map(|m| one(RemoveNode, m.replica)).collect();
            vec![change(ConfChangeTransition::Auto, gone)]
        }
        MembersStep::Enter { add, remove } => {
            let add = add.map(|id| one(AddNode, id));
            let remove = remove.map(|id| one(RemoveNode, id));
            vec![change(ConfChangeTransition::Explicit, add.into_iter().chain(remove).collect())]
        }
        MembersStep::Leave => vec![leave()],
        MembersStep::Done => Vec::new(),
        MembersStep::Force { keep, .. } => {
            let add = before.voters.iter().all(|m| m.replica != keep.replica).then(|| one(AddNode, keep.replica));
            let others = before.voters.iter().chain(&before.learners).filter(|m| m.replica != keep.replica);
            let singles: Vec<_> = add.into_iter().chain(others.map(|m| one(RemoveNode, m.replica))).collect();
            let first = before.is_joint().then(leave);
            let forced = (!singles.is_empty()).then(|| [change(ConfChangeTransition::Explicit, singles), leave()]);
            first.into_iter().chain(forced.into_iter().flatten()).collect()
        }
    }
}

pub(crate) fn entry_to_raft(index: u64, term: u64, data: Bytes) -> eraftpb::Entry {
    eraftpb::Entry { index, term, data, ..Default::default() }
}

pub(crate) fn entry_from_raft(entry: eraftpb::Entry) -> Entry {
    Entry {
        term: Term(entry.term),
        index: Index(entry.index),
        kind: EntryKind::Normal,
        descriptor: entry.data,
        payload: IoBuf::EMPTY,
        crcs: Crcs::default(),
    }
}

/// Converts a checked message for raft. The payload of its entries stays with the caller.
pub(crate) fn message_to_raft(msg: &RaftMsg, kind: MessageType) -> eraftpb::Message {
    let entries: Vec<eraftpb::Entry> =
        msg.entries.iter().map(|e| entry_to_raft(e.index.0, e.term.0, e.descriptor.clone())).collect();
    eraftpb::Message {
        msg_type: kind,
        from: msg.from.0,
        to: msg.to.0,
        term: msg.term.0,
        log_term: msg.log_term.0,
        index: msg.index.0,
        commit: msg.commit.0,
        commit_term: msg.commit_term.0,
        reject: msg.reject,
        reject_hint: msg.reject_hint.0,
        context: msg.context.clone(),
        entries: entries.into(),
        ..Default::default()
    }
}

/// Converts a message of raft into one or more messages of the wire. An append is split where its payload would not fit in a
/// frame, because raft joins messages of one turn without knowing of payload.
pub(crate) fn message_from_raft(
    pg: PgId,
    mut msg: eraftpb::Message,
    payload_len: fn(&[u8]) -> u64,
    out: &mut Vec<RaftMsg>,
) {
    let mut head = RaftMsg {
        pg,
        from: ReplicaId(msg.from),
        to: ReplicaId(msg.to),
        term: Term(msg.term),
        kind: kind_from_raft(msg.msg_type),
        log_term: Term(msg.log_term),
        index: Index(msg.index),
        commit: Index(msg.commit),
        commit_term: Term(msg.commit_term),
        reject: msg.reject,
        reject_hint: Index(msg.reject_hint + u64::from(msg.reject && on(Bug::ConflictHintOff))),
        context: std::mem::take(&mut msg.context),
        entries: Vec::new(),
    };
    let entries = msg.take_entries().into_vec();
    let mut part = Vec::with_capacity(entries.len().min(MSG_ENTRIES_MAX));
    let mut payload = 0;
    for entry in entries {
        let len = payload_len(&entry.data);
        if !part.is_empty() && (payload + len > MSG_PAYLOAD_MAX || part.len() == MSG_ENTRIES_MAX) {
            let last: &Entry = part.last().expect("it is not empty");
            let next = RaftMsg { index: last.index, log_term: last.term, entries: Vec::new(), ..head.clone() };
            head.entries = std::mem::take(&mut part);
            out.push(std::mem::replace(&mut head, next));
            payload = 0;
        }
        payload += len;
        part.push(entry_from_raft(entry));
    }
    head.entries = part;
    out.push(head);
}

pub(crate) fn hard_state_to_raft(state: &HardState) -> eraftpb::HardState {
    let vote = state.vote.map_or(0, |id| id.0);
    eraftpb::HardState { term: state.term.0, vote, commit: state.commit.0, ..Default::default() }
}

pub(crate) fn hard_state_from_raft(state: &eraftpb::HardState) -> HardState {
    HardState {
        term: Term(state.term),
        vote: (state.vote != 0).then_some(ReplicaId(state.vote)),
        commit: Index(state.commit),
    }
}
