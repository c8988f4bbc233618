//! Forced recovery (ADR 0020): one replica goes on alone, and the members of before have no part any more.

use super::rig::{CHUNK, PG, Rig, Step, fresh, raft_msg};
use group::descriptor::Command;
use group::{Action, Group, GroupConfig};
use types::map::{ForceMembers, Member, MemberChange, MembersStep, Membership};
use types::store::{Crcs, HardState, Recovered};
use types::{Entry, EntryKind, Epoch, Errno, Index, IoBuf, OsdId, ReplicaId, Term};
use wire::{RaftKind, Reject, ReplyBody};

const KEPT: Member = Member { replica: ReplicaId(3), osd: OsdId(3) };
const FORCE: ForceMembers =
    ForceMembers { keep: KEPT, floor: ReplicaId(100), fence: true, epoch: Epoch(1000), end: (Term(0), Index(0)) };

fn force(rig: &mut Rig, order: ForceMembers) -> bool {
    rig.call(order.keep.osd.0, |g, now, _| g.handle_force(now, order))
}

fn done(rig: &mut Rig, id: u64) {
    rig.pump();
    assert_eq!(rig.answer(id), Some(Ok(ReplyBody::Done)));
}

/// Three replicas of which the third one lacks the last write; the two others are gone for good, `with` both.
fn lost_majority() -> Rig {
    let mut rig = Rig::led(3, true);
    let first = rig.write(1, 0);
    done(&mut rig, first);
    rig.list(1);
    rig.cut.insert((1, 3));
    let second = rig.write(1, 1);
    done(&mut rig, second);
    rig.crash(1);
    rig.crash(2);
    rig.cut.clear();
    rig.advance(3000);
    assert!(!rig.groups[&3].is_leader(), "one of three elects no leader");
    rig
}

fn alone() -> Membership {
    Membership { floor: FORCE.floor, ..Membership::fresh(FORCE.epoch, &[KEPT]) }
}

/// Returns a replica as a restart finds it, from all that its group has made durable.
fn restarted(rig: &Rig, osd: u32) -> Recovered {
    let (identity, checkpoint) = fresh(PG, osd, 3, 0);
    let (mut hard_state, mut entries) = (HardState::default(), Vec::<Entry>::new());
    for (_, by, step) in &rig.steps {
        let Step::Does(Action::Persist(persist)) = step else { continue };
        if *by != osd {
            continue;
        }
        hard_state = persist.hard_state.unwrap_or(hard_state);
        if let Some(first) = persist.entries.first() {
            entries.retain(|entry| entry.index < first.index);
            entries.extend(persist.entries.iter().cloned());
        }
    }
    let before = (Index(0), Term(0));
    Recovered { identity, hard_state, checkpoint, before, entries, lost: Vec::new(), failure: None, fills: false }
}

#[test]
fn the_kept_replica_serves_alone_with_all_that_its_log_has() {
    let mut rig = lost_majority();
    let term = rig.groups[&3].term();
    assert!(force(&mut rig, FORCE));
    assert!(!force(&mut rig, FORCE), "the order is repeated before the step is applied");
    rig.advance(1500);
    let group = &rig.groups[&3];
    assert!(group.is_leader() && group.serves() && group.term() > term);
    assert_eq!(*group.members(), alone());
    assert!(!force(&mut rig, FORCE), "it is done");
    assert_eq!(rig.landed(3), 1, "the first write was in its log");
    let read = rig.read(3);
    rig.pump();
    let engine_read = rig.engine_reads(3)[0];
    rig.finish_read(3, engine_read);
    assert!(matches!(rig.answer(read), Some(Ok(ReplyBody::Data { .. }))));
}

/// The order for the second one of two replicas, of which the first one is gone.
const UNFENCED: ForceMembers =
    ForceMembers { keep: Member { replica: ReplicaId(2), osd: OsdId(2) }, fence: false, ..FORCE };

#[test]
fn one_of_two_goes_on_alone_without_a_fence_and_so_do_its_sessions() {
    let mut rig = Rig::led(2, true);
    let first = rig.write(1, 0);
    done(&mut rig, first);
    rig.crash(1);
    rig.advance(3000);
    assert!(force(&mut rig, UNFENCED));
    rig.advance(1500);
    // A write that it had applied is a duplicate, and the others are new.
    let ids = [0, 1, 2].map(|seq| rig.write(2, seq));
    rig.pump();
    assert!(ids.iter().all(|id| rig.answer(*id) == Some(Ok(ReplyBody::Done))));
    assert_eq!(rig.landed(2), 3);
}

#[test]
fn order_without_a_fence_is_void_where_others_may_have_committed_alone() {
    let mut rig = lost_majority();
    assert!(!force(&mut rig, ForceMembers { fence: false, ..FORCE }), "two of three may have");
    // A change that removes the replica is in its log: once in a joint phase, and once only as an entry.
    let new = Member { replica: ReplicaId(24), osd: OsdId(4) };
    for removed in [1, 2] {
        for steps in 0..6 {
            let mut rig = Rig::led(2, true);
            let remove = Some(ReplicaId(removed));
            let change = MemberChange { expected: Epoch(1), add: Some(new), remove, cancel: false };
            rig.call(1, |g, _, _| g.handle_change(change));
            for _ in 0..steps {
                rig.pump();
                rig.list(1);
            }
            rig.crash(1);
            rig.advance(3000);
            let members = rig.groups[&2].members().clone();
            let only_two = |set: &[Member]| set.iter().all(|m| m.osd != OsdId(4)) || removed == 1;
            let stays = only_two(&members.voters) && only_two(&members.outgoing) && members.is_voter(ReplicaId(2));
            assert_eq!(force(&mut rig, UNFENCED), stays, "{removed} leaves, {steps} steps: {members:?}");
        }
    }
}

#[test]
fn a_restart_right_after_the_step_is_durable_finds_it_committed() {
    let mut rig = lost_majority();
    assert!(force(&mut rig, FORCE));
    rig.hold_disks = true;
    rig.pump();
    let recovered = restarted(&rig, 3);
    let last = recovered.entries.last().expect("the step");
    assert_eq!(recovered.hard_state.commit, last.index, "entry and commit index are durable together");
    assert_eq!((recovered.hard_state.term, recovered.hard_state.vote), (last.term, Some(KEPT.replica)));
    assert_eq!(*rig.groups[&3].members(), Membership::fresh(Epoch(1), &fresh(PG, 3, 3, 0).0.members), "not applied");
    let now = rig.at();
    rig.groups.insert(3, Group::new(GroupConfig::new(OsdId(3)), recovered, now, 3).expect("a sound log"));
    (rig.hold_disks, rig.held) = (false, Vec::new());
    rig.advance(1500);
    assert!(rig.groups[&3].serves() && *rig.groups[&3].members() == alone());
}

#[test]
fn members_of_before_that_come_back_are_not_heard() {
    for applied in [false, true] {
        let mut rig = lost_majority();
        assert!(force(&mut rig, FORCE));
        rig.hold_disks = !applied;
        rig.advance(if applied { 1500 } else { 10 });
        let before = (rig.groups[&3].term(), rig.groups[&3].last_index());
        for (kind, entries) in
            [(RaftKind::Vote, 0), (RaftKind::PreVote, 0), (RaftKind::Append, 1), (RaftKind::Heartbeat, 0)]
        {
            let mut msg = raft_msg(kind, 1, 3, 90);
            msg.index = rig.groups[&3].last_index();
            msg.entries = (0..entries)
                .map(|_| Entry {
                    index: Index(msg.index.0 + 1),
                    term: Term(90),
                    kind: EntryKind::Normal,
                    descriptor: Default::default(),
                    payload: IoBuf::EMPTY,
                    crcs: Crcs::default(),
                })
                .collect();
            rig.call(3, |g, now, actions| g.handle_raft(now, OsdId(1), msg, actions));
            rig.pump();
        }
        assert_eq!((rig.groups[&3].term(), rig.groups[&3].last_index()), before, "applied: {applied}");
        rig.hold_disks = false;
        rig.advance(1500);
        assert!(rig.groups[&3].serves() && *rig.groups[&3].members() == alone());
    }
}

#[test]
fn a_session_ends_where_writes_may_be_lost() {
    let mut rig = lost_majority();
    assert!(force(&mut rig, ForceMembers { fence: true, ..FORCE }));
    rig.advance(1500);
    let fenced = rig.write(3, 5);
    rig.pump();
    assert_eq!(rig.answer(fenced), Some(Err(Reject::Failed(Errno::Fenced))));
    rig.attach(3, 9, 7);
    let body = super::rig::write(0);
    let id = rig.request_of(7, 3, body);
    done(&mut rig, id);
    assert_eq!(rig.groups[&3].decides().volumes[&CHUNK.volume].chunk_count, 4);
}

#[test]
fn a_pg_with_a_leader_is_not_forced() {
    let mut rig = Rig::led(3, true);
    rig.list(1);
    assert!(!force(&mut rig, FORCE), "it hears a leader");
    let first = ForceMembers { keep: Member { replica: ReplicaId(1), osd: OsdId(1) }, ..FORCE };
    assert!(!force(&mut rig, first), "it leads with a majority");
    let mut rig = lost_majority();
    let other = ForceMembers { keep: Member { replica: ReplicaId(9), osd: OsdId(3) }, ..FORCE };
    assert!(!force(&mut rig, other), "another replica is meant");
}

#[test]
fn a_change_that_was_under_way_ends_and_a_new_member_joins_later() {
    let new = Member { replica: ReplicaId(24), osd: OsdId(4) };
    let change = |expected, add, remove| MemberChange { expected, add, remove, cancel: false };
    for steps in 0..4 {
        let mut rig = Rig::led(3, true);
        rig.call(1, |g, _, _| g.handle_change(change(Epoch(1), Some(new), Some(ReplicaId(2)))));
        // The steps reach the log of the kept replica, and it learns of no commit of the last ones.
        for _ in 0..steps {
            rig.pump();
            rig.list(1);
        }
        let members = rig.groups[&3].members().clone();
        rig.crash(1);
        rig.crash(2);
        rig.advance(3000);
        assert!(force(&mut rig, FORCE), "{members:?}");
        rig.advance(1500);
        assert_eq!(*rig.groups[&3].members(), alone(), "forced out of {members:?}");
        let later = Member { replica: ReplicaId(101), osd: OsdId(1) };
        rig.call(3, |g, _, _| g.handle_change(change(FORCE.epoch, Some(later), None)));
        rig.pump();
        assert_eq!(rig.groups[&3].members().learners, [later]);
    }
}

/// The OSD revives a failed replica for the order: its group is new, and applied nothing.
fn revived(rig: &mut Rig) {
    let recovered = restarted(rig, 3);
    let now = rig.at();
    rig.groups.insert(3, Group::new(GroupConfig::new(OsdId(3)), recovered, now, 3).expect("a sound log"));
}

#[test]
fn new_group_takes_the_order_at_once_and_speaks_with_no_other_replica() {
    let mut rig = lost_majority();
    revived(&mut rig);
    assert!(rig.groups[&3].next_deadline() > rig.at(), "it is silent for one promise");
    assert!(force(&mut rig, FORCE));
    rig.sent.clear();
    rig.hold_disks = true;
    for kind in [RaftKind::PreVote, RaftKind::Vote, RaftKind::Append, RaftKind::TimeoutNow] {
        let msg = raft_msg(kind, 1, 3, 90);
        rig.call(3, |g, now, actions| g.handle_raft(now, OsdId(1), msg, actions));
        rig.advance(500);
    }
    assert!(rig.sent.iter().all(|m| m.from != KEPT.replica), "the step is not durable: {:?}", rig.sent);
    (rig.hold_disks, rig.held) = (false, Vec::new());
    rig.seen.clear();
    revived(&mut rig);
    rig.advance(1500);
    assert!(rig.groups[&3].serves() && *rig.groups[&3].members() == alone());
    assert_eq!(rig.landed(3), 1, "all of its log is committed");
}

#[test]
fn new_group_takes_a_later_order_over_a_step_that_it_has_not_applied() {
    let mut rig = lost_majority();
    assert!(force(&mut rig, FORCE));
    rig.pump();
    revived(&mut rig);
    assert!(!force(&mut rig, FORCE), "its log has this step");
    let later = ForceMembers { floor: ReplicaId(200), epoch: Epoch(2000), ..FORCE };
    assert!(force(&mut rig, later));
    rig.advance(1500);
    let members = Membership { floor: later.floor, ..Membership::fresh(later.epoch, &[KEPT]) };
    assert!(rig.groups[&3].serves() && *rig.groups[&3].members() == members, "{:?}", rig.groups[&3].members());
}

#[test]
fn new_group_is_kept_when_its_log_makes_it_a_voter() {
    let new = Member { replica: ReplicaId(24), osd: OsdId(4) };
    let step = |step, at: usize, expected| {
        let mut descriptor = bytes::BytesMut::new();
        Command::Members { expected: Epoch(expected), step }.encode(&mut descriptor);
        let (index, kind) = (Index(at as u64), EntryKind::Normal);
        Entry {
            index,
            term: Term(1),
            kind,
            descriptor: descriptor.freeze(),
            payload: IoBuf::EMPTY,
            crcs: Crcs::default(),
        }
    };
    let steps = [MembersStep::AddLearner(new), MembersStep::Enter { add: Some(new.replica), remove: None }];
    for (count, voter) in [(1, false), (2, true)] {
        let entries: Vec<Entry> = (1..=count).map(|n| step(steps[n - 1], n, n as u64)).collect();
        // A new replica begins with the members at creation, and is none of them.
        let (mut identity, mut checkpoint) = fresh(PG, 3, 3, 0);
        (identity.replica, checkpoint.replica) = (new.replica, new.replica);
        let hard_state = HardState { term: Term(1), vote: None, commit: Index(0) };
        let before = (Index(0), Term(0));
        let recovered = Recovered {
            identity,
            hard_state,
            checkpoint,
            before,
            entries,
            lost: Vec::new(),
            failure: None,
            fills: false,
        };
        let mut rig = Rig::new(0, true);
        rig.advance(1000);
        let now = rig.at();
        rig.groups.insert(4, Group::new(GroupConfig::new(new.osd), recovered, now, 4).expect("a sound log"));
        assert_eq!(force(&mut rig, ForceMembers { keep: new, ..FORCE }), voter, "{count} steps");
        rig.advance(1500);
        let alone = Membership { floor: FORCE.floor, ..Membership::fresh(FORCE.epoch, &[new]) };
        assert_eq!(*rig.groups[&4].members() == alone && rig.groups[&4].serves(), voter, "{count} steps");
    }
}

#[test]
fn log_that_ends_below_the_order_is_not_kept() {
    let mut rig = lost_majority();
    let (term, index) = rig.groups[&3].report(rig.at()).end.expect("it is whole");
    for end in [(term, Index(index.0 + 1)), (Term(term.0 + 1), Index(1))] {
        assert!(!force(&mut rig, ForceMembers { end, ..FORCE }), "it may have lost something since: {end:?}");
    }
    let order = ForceMembers { end: (term, index), ..FORCE };
    assert!(force(&mut rig, order));
    // The process dies before the step is durable, and once it is: the order is as good as before.
    revived(&mut rig);
    assert_eq!(rig.groups[&3].durable_end(), index);
    assert!(force(&mut rig, order));
    rig.pump();
    revived(&mut rig);
    assert!(
        force(&mut rig, ForceMembers { floor: ReplicaId(200), epoch: Epoch(2000), ..order }),
        "the step moved its end"
    );
    rig.advance(1500);
    assert!(rig.groups[&3].serves());
}

#[test]
fn report_names_no_end_while_a_forced_step_is_not_applied() {
    let mut rig = lost_majority();
    let report = |rig: &Rig| {
        let report = rig.groups[&3].report(rig.at());
        (report.end, report.floor)
    };
    let (end, floor) = report(&rig);
    assert!(end.is_some() && floor == ReplicaId(0));
    assert!(force(&mut rig, FORCE));
    assert_eq!(report(&rig), (None, ReplicaId(0)), "the floor does not tell of the step yet");
    rig.advance(1500);
    assert!(report(&rig).0 > end && report(&rig).1 == FORCE.floor);
}
