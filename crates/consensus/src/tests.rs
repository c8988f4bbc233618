//! Tests of the code around raft: messages that are refused, messages that are split, and waits for the disk.

use crate::{Config, Follower, Ignored, Node, Ready, Role, Start, StartError, StepError, Violation};
use bytes::Bytes;
use types::map::{Member, Membership};
use types::store::{Crcs, HardState};
use types::{Entry, EntryKind, Epoch, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, Term};
use wire::{RaftKind, RaftMsg};

const PG: PgId = PgId { pool: PoolId(1), n: 1 };

/// Reads the payload length from a test descriptor, which holds it in decimal.
fn payload_len(descriptor: &[u8]) -> u64 {
    std::str::from_utf8(descriptor).ok().and_then(|s| s.parse().ok()).unwrap_or(0)
}

fn entry(index: u64, term: u64) -> Entry {
    sized(index, term, 512)
}

fn sized(index: u64, term: u64, len: u64) -> Entry {
    Entry {
        term: Term(term),
        index: Index(index),
        kind: EntryKind::Normal,
        descriptor: Bytes::from(len.to_string()),
        payload: IoBuf::EMPTY,
        crcs: Crcs::default(),
    }
}

fn members(voters: &[u64]) -> Membership {
    let member = |id: &u64| Member { replica: ReplicaId(*id), osd: OsdId(*id as u32) };
    Membership::fresh(Epoch(1), &voters.iter().map(member).collect::<Vec<_>>())
}

fn hard(term: u64, commit: u64) -> HardState {
    HardState { term: Term(term), vote: None, commit: Index(commit) }
}

fn try_node(
    id: u64,
    hard_state: HardState,
    applied: (u64, u64),
    before: (u64, u64),
    entries: &[Entry],
) -> Result<Node, StartError> {
    let config = Config { pg: PG, id: ReplicaId(id), payload_len };
    let pair = |(index, term)| (Index(index), Term(term));
    let members = members(&[1, 2, 3]);
    Node::new(config, &Start { hard_state, members: &members, applied: pair(applied), before: pair(before), entries })
}

/// Makes replica 1 of three: entries 1..=5 of terms 1 1 2 2 3, the first three committed, at term 3.
fn follower() -> Node {
    let entries: Vec<Entry> = [1, 1, 2, 2, 3].iter().zip(1..).map(|(term, index)| entry(index, *term)).collect();
    try_node(1, hard(3, 3), (0, 0), (0, 0), &entries).expect("a sound disk")
}

fn msg(kind: RaftKind, term: u64) -> RaftMsg {
    RaftMsg {
        pg: PG,
        from: ReplicaId(2),
        to: ReplicaId(1),
        term: Term(term),
        kind,
        log_term: Term(0),
        index: Index(0),
        commit: Index(0),
        commit_term: Term(0),
        reject: false,
        reject_hint: Index(0),
        context: Bytes::new(),
        entries: Vec::new(),
    }
}

fn append(term: u64, prev: (u64, u64), entries: Vec<Entry>) -> RaftMsg {
    RaftMsg { index: Index(prev.0), log_term: Term(prev.1), entries, ..msg(RaftKind::Append, term) }
}

fn drain(node: &mut Node) -> Ready {
    let mut ready = Ready::default();
    node.ready(&mut ready);
    if let Some(last) = ready.committed.last() {
        node.applied_to(last.index);
    }
    ready
}

/// Makes every pending batch durable, until none is left.
fn settle(node: &mut Node) -> Vec<RaftMsg> {
    let mut messages = Vec::new();
    while node.has_ready() {
        let ready = drain(node);
        messages.extend(ready.messages);
        if let Some(persist) = ready.persists.last() {
            node.persisted(persist.ticket);
        }
    }
    messages
}

/// Makes replica 1 of three the leader of term 4, with its empty entry at 6.
fn leader() -> Node {
    let mut node = follower();
    settle(&mut node);
    assert!(node.campaign());
    settle(&mut node);
    node.step(&msg(RaftKind::PreVoteResponse, 4)).expect("a grant that was asked for");
    settle(&mut node);
    node.step(&msg(RaftKind::VoteResponse, 4)).expect("a vote that was asked for");
    settle(&mut node);
    assert_eq!((node.role(), node.term(), node.last_index()), (Role::Leader, Term(4), Index(6)));
    node
}

fn check(node: &mut Node, what: &str, msg: &RaftMsg, want: Result<(), StepError>) {
    assert_eq!(node.step(msg), want, "{what}");
    // Raft goes on working afterwards, whatever the verdict.
    settle(node);
}

#[test]
fn impossible_leader_message_is_a_violation_and_never_a_panic() {
    let from3 = |m: RaftMsg| RaftMsg { from: ReplicaId(3), ..m };
    let violations: Vec<(&str, RaftMsg, Violation)> = vec![
        ("term 0", msg(RaftKind::Vote, 0), Violation::Term(Term(0))),
        ("huge term", msg(RaftKind::Heartbeat, u64::MAX), Violation::Term(Term(u64::MAX))),
        ("huge index", append(3, (u64::MAX, 3), vec![]), Violation::OutOfRange),
        (
            "entries in a heartbeat",
            RaftMsg { entries: vec![entry(6, 3)], ..msg(RaftKind::Heartbeat, 3) },
            Violation::Excess(RaftKind::Heartbeat),
        ),
        (
            "a long context",
            RaftMsg { context: Bytes::from(vec![0; 65]), ..msg(RaftKind::Heartbeat, 3) },
            Violation::Excess(RaftKind::Heartbeat),
        ),
        (
            "commit beyond the log",
            RaftMsg { commit: Index(6), ..msg(RaftKind::Heartbeat, 3) },
            Violation::Commit { commit: Index(6), last: Index(5) },
        ),
        (
            "the same at a later term",
            RaftMsg { commit: Index(6), ..msg(RaftKind::Heartbeat, 9) },
            Violation::Commit { commit: Index(6), last: Index(5) },
        ),
        ("a position without a term", append(3, (100, 0), vec![entry(101, 3)]), Violation::HalfPosition(Index(100))),
        ("a term without a position", append(3, (0, 2), vec![]), Violation::HalfPosition(Index(0))),
        ("a gap", append(3, (5, 3), vec![entry(7, 3)]), Violation::Gap { expected: Index(6), found: Index(7) }),
        (
            "falling terms",
            append(3, (5, 3), vec![entry(6, 2)]),
            Violation::TermFalls { index: Index(6), term: Term(2), before: Term(3) },
        ),
        (
            "an entry of the future",
            append(3, (5, 3), vec![entry(6, 4)]),
            Violation::TermAhead { message: Term(3), entry: Term(4) },
        ),
        (
            "a conflict below commit",
            append(3, (1, 1), vec![entry(2, 1), entry(3, 3)]),
            Violation::Conflict { index: Index(3), ours: Term(2), theirs: Term(3) },
        ),
        (
            "a conflict at commit",
            append(4, (3, 3), vec![]),
            Violation::Conflict { index: Index(3), ours: Term(2), theirs: Term(3) },
        ),
        (
            "a long descriptor",
            append(3, (5, 3), vec![Entry { descriptor: Bytes::from(vec![b'0'; 1025]), ..entry(6, 3) }]),
            Violation::BadEntry(Index(6)),
        ),
        (
            "a configuration change",
            append(3, (5, 3), vec![Entry { kind: EntryKind::ConfChangeV2, ..entry(6, 3) }]),
            Violation::BadEntry(Index(6)),
        ),
        (
            "a log ahead of its candidate",
            RaftMsg { log_term: Term(7), ..msg(RaftKind::Vote, 7) },
            Violation::TermAhead { message: Term(7), entry: Term(7) },
        ),
    ];
    for (what, message, want) in violations {
        check(&mut follower(), what, &message, Err(want.into()));
    }
    let mut node = follower();
    check(&mut node, "the leader", &append(3, (5, 3), vec![]), Ok(()));
    let two = Violation::TwoLeaders { term: Term(3), first: ReplicaId(2), second: ReplicaId(3) };
    check(&mut node, "a second leader", &from3(append(3, (5, 3), vec![])), Err(two.into()));
}

#[test]
fn impossible_follower_answer_is_a_violation_and_never_a_panic() {
    let response =
        |index, commit| RaftMsg { index: Index(index), commit: Index(commit), ..msg(RaftKind::AppendResponse, 4) };
    let beyond = |index| Err(Violation::Acknowledged { index: Index(index), last: Index(6) }.into());
    let two = Violation::TwoLeaders { term: Term(4), first: ReplicaId(1), second: ReplicaId(2) };
    for (what, message, want) in [
        ("beyond the log", response(7, 0), beyond(7)),
        ("a commit beyond the log", response(6, 7), beyond(7)),
        ("a hint beyond the probe", RaftMsg { reject: true, reject_hint: Index(6), ..response(5, 0) }, beyond(5)),
        (
            "a commit in a heartbeat's answer",
            RaftMsg { commit: Index(7), ..msg(RaftKind::HeartbeatResponse, 4) },
            beyond(7),
        ),
        ("another leader of our term", append(4, (5, 3), vec![]), Err(two.into())),
    ] {
        check(&mut leader(), what, &message, want);
    }
    check(&mut leader(), "an honest one", &response(6, 3), Ok(()));
}

#[test]
fn late_message_of_a_correct_peer_is_ignored() {
    for (what, message, want) in [
        ("to a former life", RaftMsg { to: ReplicaId(9), ..msg(RaftKind::Vote, 9) }, Ignored::NotForUs),
        (
            "from a removed replica",
            RaftMsg { from: ReplicaId(9), ..msg(RaftKind::AppendResponse, 3) },
            Ignored::Stranger,
        ),
        ("from ourselves", RaftMsg { from: ReplicaId(1), ..msg(RaftKind::Vote, 9) }, Ignored::Stranger),
        ("a vote that was not requested", msg(RaftKind::VoteResponse, 3), Ignored::NotAsked),
        ("a vote of a later term", msg(RaftKind::VoteResponse, 4), Ignored::NotAsked),
        ("an order to campaign from no leader", msg(RaftKind::TimeoutNow, 3), Ignored::NotTheLeader),
    ] {
        check(&mut follower(), what, &message, Err(want.into()));
    }
}

#[test]
fn order_to_campaign_at_the_highest_term_is_ignored() {
    let top = crate::NUMBER_MAX;
    let mut node = follower();
    node.step(&append(top, (5, 3), vec![])).expect("a term that a peer may name");
    assert_eq!(node.term(), Term(top));
    check(
        &mut node,
        "the next term would be out of range",
        &msg(RaftKind::TimeoutNow, top),
        Err(Ignored::NotTheLeader.into()),
    );
    assert!(!node.campaign() && node.term() == Term(top));
}

#[test]
fn a_vote_does_not_count_before_its_request_has_left() {
    let mut node = follower();
    node.step(&append(3, (5, 3), vec![entry(6, 3)])).expect("an honest append");
    let appended = drain(&mut node);
    assert!(node.campaign());
    let asked = drain(&mut node);
    assert!(asked.messages.is_empty(), "a pre-vote waits for the entry before it");
    check(&mut node, "a grant", &msg(RaftKind::PreVoteResponse, 4), Ok(()));
    // Raft would assert that its log is durable if this vote counted.
    assert_eq!(node.step(&msg(RaftKind::VoteResponse, 4)), Ok(()), "settle made everything durable");
    assert_eq!(node.role(), Role::Leader);
    assert_eq!(appended.persists.len(), 1);

    let mut node = follower();
    assert!(!node.campaign(), "committed entries are not applied yet");
    settle(&mut node);
    assert!(node.campaign());
    settle(&mut node);
    node.step(&msg(RaftKind::PreVoteResponse, 4)).expect("a grant");
    let ready = drain(&mut node);
    assert!(ready.messages.is_empty() && ready.persists.len() == 1, "the term is not durable yet");
    assert_eq!(node.step(&msg(RaftKind::VoteResponse, 4)), Err(Ignored::NotAsked.into()));
    node.persisted(ready.persists[0].ticket);
    assert_eq!(drain(&mut node).messages.len(), 2, "now the requests leave");
    assert_eq!(node.step(&msg(RaftKind::VoteResponse, 4)), Ok(()));
    assert_eq!(node.role(), Role::Leader);
}

#[test]
fn contradictory_recovered_state_is_refused() {
    let good = [entry(1, 1), entry(2, 1), entry(3, 2)];
    let order = |applied, commit| StartError::Order {
        first: Index(1),
        last: Index(3),
        applied: Index(applied),
        commit: Index(commit),
    };
    for (what, node, want) in [
        ("commit beyond the log", try_node(1, hard(2, 4), (0, 0), (0, 0), &good), order(0, 4)),
        ("checkpoint beyond commit", try_node(1, hard(2, 1), (2, 1), (0, 0), &good), order(2, 1)),
        (
            "checkpoint of another term",
            try_node(1, hard(2, 3), (3, 1), (0, 0), &good),
            StartError::TermDiffers { index: Index(3), checkpoint: Term(1), log: Term(2) },
        ),
        (
            "a gap",
            try_node(1, hard(2, 1), (0, 0), (0, 0), &[entry(1, 1), entry(3, 1)]),
            StartError::Gap { expected: Index(2), found: Index(3) },
        ),
        (
            "falling terms",
            try_node(1, hard(2, 1), (0, 0), (0, 0), &[entry(1, 2), entry(2, 1)]),
            StartError::TermFalls { index: Index(2), term: Term(1), before: Term(2) },
        ),
        (
            "an entry of the future",
            try_node(1, hard(1, 1), (0, 0), (0, 0), &good),
            StartError::TermAhead { index: Index(3), term: Term(2), current: Term(1) },
        ),
        (
            "a log that begins above the checkpoint",
            try_node(1, hard(2, 5), (3, 1), (4, 2), &[entry(5, 2)]),
            StartError::Order { first: Index(5), last: Index(5), applied: Index(3), commit: Index(5) },
        ),
        (
            "a vote for replica 0",
            try_node(
                1,
                HardState { vote: Some(ReplicaId(0)), ..hard(2, 1) },
                (0, 0),
                (0, 0),
                &[entry(1, 1), entry(2, 2)],
            ),
            StartError::OutOfRange,
        ),
        ("a start without a term", try_node(1, hard(2, 5), (4, 0), (4, 0), &[entry(5, 2)]), StartError::OutOfRange),
    ] {
        assert_eq!(node.err(), Some(want), "{what}");
    }
    assert!(try_node(1, hard(2, 3), (2, 1), (1, 1), &good[1..]).is_ok());
}

#[test]
fn no_append_carries_more_payload_than_a_frame() {
    let mut node = leader();
    node.step(&RaftMsg { index: Index(6), ..msg(RaftKind::AppendResponse, 4) }).expect("an honest answer");
    settle(&mut node);
    // Three turns' proposals of 600 KiB each, joined by raft into one message.
    let descriptors = || ["307200", "307200"].into_iter().map(|len| Bytes::from_static(len.as_bytes()));
    for _ in 0..3 {
        node.propose(descriptors()).expect("a leader takes proposals");
    }
    let ready = drain(&mut node);
    let to2: Vec<&RaftMsg> = ready.messages.iter().filter(|m| m.to == ReplicaId(2)).collect();
    let mut index = 6;
    for message in &to2 {
        let payload: u64 = message.entries.iter().map(|e| payload_len(&e.descriptor)).sum();
        assert!(payload <= crate::MSG_PAYLOAD_MAX && !message.entries.is_empty());
        assert_eq!(message.index, Index(index), "each part follows the one before");
        index += message.entries.len() as u64;
    }
    assert_eq!((index, to2.len()), (12, 2));
}

#[test]
fn lagging_follower_gets_one_frame_at_a_time_and_a_stream_below_the_log() {
    let entries: Vec<Entry> = (1..=40).map(|i| sized(i, 1, 100 << 10)).collect();
    let mut node = try_node(1, hard(1, 40), (40, 1), (0, 0), &entries).expect("a sound disk");
    node.campaign();
    settle(&mut node);
    node.step(&msg(RaftKind::PreVoteResponse, 2)).expect("a grant");
    settle(&mut node);
    node.step(&msg(RaftKind::VoteResponse, 2)).expect("a vote");
    settle(&mut node);
    let behind = |hint| RaftMsg {
        index: Index(40),
        reject: true,
        reject_hint: Index(hint),
        log_term: Term(u64::from(hint > 0)),
        ..msg(RaftKind::AppendResponse, 2)
    };
    node.step(&behind(0)).expect("an honest answer");
    let sent = settle(&mut node);
    let payload: u64 = sent[0].entries.iter().map(|e| payload_len(&e.descriptor)).sum();
    assert!(sent.len() == 1 && sent[0].index == Index(0) && payload <= crate::MSG_PAYLOAD_MAX && payload > 900 << 10);

    node.compact(Index(20));
    assert_eq!(
        (node.first_index(), node.term_at(Index(19)), node.term_at(Index(18))),
        (Index(20), Some(Term(1)), None)
    );
    let from3 = |m: RaftMsg| RaftMsg { from: ReplicaId(3), ..m };
    node.step(&from3(behind(5))).expect("an honest answer");
    let mut ready = Ready::default();
    node.ready(&mut ready);
    assert_eq!(ready.behind, [ReplicaId(3)]);
    // After a stream, or a late rejection: the leader probes the follower from the end of the log.
    node.step(&from3(msg(RaftKind::HeartbeatResponse, 2))).expect("an honest answer");
    let probes: Vec<RaftMsg> = settle(&mut node).into_iter().filter(|m| m.to == ReplicaId(3)).collect();
    assert_eq!(probes.iter().map(|m| m.index).collect::<Vec<_>>(), [Index(41)]);
    node.step(&from3(RaftMsg { index: Index(41), ..msg(RaftKind::AppendResponse, 2) })).expect("an honest answer");
    assert!(node.follower(ReplicaId(3)).expect("a member").streaming);
    node.compact(Index(100));
    assert_eq!(node.first_index(), Index(41), "never above what is applied");
}

#[test]
fn matched_follower_stays_in_sync_when_its_connection_is_lost() {
    let mut node = leader();
    node.step(&RaftMsg { index: Index(6), ..msg(RaftKind::AppendResponse, 4) }).expect("an honest answer");
    settle(&mut node);
    let of2 = |node: &Node| node.follower(ReplicaId(2)).expect("a member");
    assert_eq!(of2(&node), Follower { matched: Index(6), streaming: true });
    node.report_unreachable(ReplicaId(2));
    assert_eq!(of2(&node), Follower { matched: Index(6), streaming: true });
    node.propose([Bytes::from_static(b"x")].into_iter()).expect("a leader proposes");
    assert!(!of2(&node).streaming, "it has to show that it still follows");
}

#[test]
fn batches_overlap_and_answers_keep_their_order() {
    let mut node = follower();
    let mut tickets = Vec::new();
    for n in 0..3 {
        node.step(&append(3, (5 + n, 3), vec![entry(6 + n, 3)])).expect("an honest append");
        let ready = drain(&mut node);
        assert!(ready.messages.is_empty(), "nothing is acknowledged before it is durable");
        tickets.push(ready.persists[0].ticket);
    }
    node.persisted(tickets[1]);
    let indexes: Vec<Index> = drain(&mut node).messages.iter().map(|m| m.index).collect();
    assert_eq!(indexes, [Index(6), Index(7)]);
    node.persisted(tickets[2]);
    assert_eq!(drain(&mut node).messages[0].index, Index(8));
}

#[test]
fn a_single_voter_leads_and_commits_when_its_own_disk_has_it() {
    let config = Config { pg: PG, id: ReplicaId(1), payload_len };
    let zero = (Index(0), Term(0));
    let alone = members(&[1]);
    let start = Start { hard_state: hard(0, 0), members: &alone, applied: zero, before: zero, entries: &[] };
    let mut node = Node::new(config, &start).expect("a fresh replica");
    assert!(node.campaign());
    let ready = drain(&mut node);
    assert_eq!((node.role(), ready.committed.len()), (Role::Leader, 0));
    node.persisted(ready.persists[0].ticket);
    assert_eq!(drain(&mut node).committed.len(), 1);
    node.propose([Bytes::from_static(b"512")].into_iter()).expect("a leader takes proposals");
    let ready = drain(&mut node);
    assert!(ready.committed.is_empty());
    node.persisted(ready.persists[0].ticket);
    assert_eq!(drain(&mut node).committed[0].index, Index(2));
    node.read_index(7);
    assert_eq!(drain(&mut node).read_states[0].context, 7);
}

#[test]
fn entries_joined_to_a_waiting_empty_append_keep_their_own_head() {
    let mut node = leader();
    node.step(&RaftMsg { index: Index(5), ..msg(RaftKind::AppendResponse, 4) }).expect("it holds term 3");
    settle(&mut node);
    // The follower's next index is 7 by now: the append that the heartbeat's answer triggers has no entries.
    node.step(&msg(RaftKind::HeartbeatResponse, 4)).expect("an honest answer");
    // Before it leaves, the follower rejects entry 6.
    let lost = RaftMsg { index: Index(6), reject: true, reject_hint: Index(5), ..msg(RaftKind::AppendResponse, 4) };
    node.step(&lost).expect("an honest answer");
    let sent = settle(&mut node);
    let appends: Vec<_> = sent.iter().filter(|m| m.kind == RaftKind::Append && m.to == ReplicaId(2)).collect();
    assert_eq!(appends.len(), 1, "raft joined the two");
    let (head, entries) = (appends[0], &appends[0].entries);
    assert_eq!((head.index, head.log_term), (Index(5), Term(3)), "the entry before the first");
    assert_eq!(entries.iter().map(|e| e.index.0).collect::<Vec<_>>(), [6]);
}
