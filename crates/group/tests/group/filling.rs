//! Replicas whose contents a stream has still to bring: they vote and acknowledge, and do not serve (R16).

use crate::rig::{Rig, raft_msg, recovered};
use group::{Action, Group, GroupConfig};
use types::store::Recovered;
use types::{Index, OsdId, ReplicaId};
use wire::{Message, RaftKind, Reject, ReplyBody};

const DONE: Option<Result<ReplyBody, Reject>> = Some(Ok(ReplyBody::Done));

/// Makes three replicas of which the first leads and the third lacks contents.
fn third_fills() -> Rig {
    let mut rig = Rig::new(3, true);
    let lacks = Recovered { fills: true, ..recovered(3, 3) };
    let third = Group::new(GroupConfig::new(OsdId(3)), lacks, rig.at(), 3).expect("a fresh replica");
    rig.groups.insert(3, third);
    rig.advance(150);
    assert!(rig.groups[&1].is_leader());
    rig.list(1);
    rig.attach(1, 1, 1);
    rig
}

#[test]
fn a_leader_without_contents_hands_over() {
    let mut rig = third_fills();
    let streams = rig.seen.iter().filter(|(_, action)| matches!(action, Action::NeedsStream { to: OsdId(3) }));
    assert!(streams.count() > 0, "its acknowledgement says that it lacks contents");
    rig.deaf = [2].into();
    let write = rig.write(1, 0);
    rig.pump();
    assert_eq!(rig.answer(write), DONE, "it counts for the majority");
    rig.deaf = [].into();
    rig.crash(1);
    // The second replica lacks the write, so the third one wins, as soon as the second one asks for its vote.
    let took = (1..3000).find(|_| {
        rig.advance(1);
        rig.groups[&3].is_elected()
    });
    assert!(took.is_some_and(|ms| ms < 200) && !rig.groups[&3].serves(), "elected after {took:?} ms");
    let refused = rig.write(3, 1);
    rig.pump();
    assert_ne!(rig.answer(refused), DONE);
    rig.list(3);
    rig.advance(20);
    assert!(rig.groups[&2].is_leader() && rig.groups[&2].serves(), "it has the write from the third one");
    let again = rig.write(2, 1);
    rig.pump();
    assert_eq!(rig.answer(again), DONE);
    assert_eq!(rig.groups[&2].members().voters.len(), 3);
}

#[test]
fn a_voter_is_filled_only_beside_a_majority_with_contents() {
    let mut rig = Rig::led(3, true);
    let now = rig.at();
    let fill = |rig: &mut Rig, id: u64| rig.call(1, |g, now, _| g.fill_state(now, ReplicaId(id), None));
    assert!(fill(&mut rig, 3).is_some(), "the first two have everything");
    assert!(fill(&mut rig, 2).is_none(), "the third one may have given up its contents");
    assert!(rig.at() == now && fill(&mut rig, 2).is_none());
    rig.list(1);
    assert!(fill(&mut rig, 2).is_none(), "the renewal did not leave behind the beginning");
    rig.advance(1);
    rig.list(1);
    assert!(fill(&mut rig, 2).is_some(), "the third one has said that it has contents");
}

/// Makes three replicas whose first leader has died; the second one leads, and has dropped entries that the third one lacks.
/// `between` runs before the election.
fn second_leads(between: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = Rig::led(3, true);
    rig.deaf = [3].into();
    for seq in 0..5 {
        rig.write(1, seq);
        rig.pump();
    }
    rig.advance(1);
    rig.list(1);
    rig.groups.get_mut(&2).expect("it runs").set_first_index(Index(6));
    rig.crash(1);
    rig.deaf.clear();
    between(&mut rig);
    let elected = (0..3000).any(|_| {
        rig.advance(1);
        rig.groups[&2].is_leader()
    });
    rig.advance(1);
    rig.list(2);
    assert!(elected && !rig.groups[&2].serves(), "it commits nothing without the third one");
    assert!(rig.seen.iter().any(|(_, a)| *a == Action::NeedsStream { to: OsdId(3) }));
    rig
}

#[test]
fn the_leader_of_the_term_before_counts_as_complete() {
    let may_fill = |rig: &Rig, end| rig.groups[&2].may_fill(rig.at(), ReplicaId(3), Some(Index(end)));
    let returns = |rig: &mut Rig| rig.call(2, |g, now, actions| g.handle_link(now, OsdId(1), true, actions));
    let mut rig = second_leads(|_| {});
    assert!(may_fill(&rig, 7), "the first one has said that it has everything up to entry 7");
    assert!(!may_fill(&rig, 8), "it is unknown whether the first one has entry 8");
    returns(&mut rig);
    assert!(!may_fill(&rig, 7), "it is back, and has not said what it has");
    assert!(!may_fill(&second_leads(returns), 7), "it came back before the election");
    let mut rig = second_leads(|_| {});
    rig.call(2, |g, now, _| g.note_filling(now, ReplicaId(1)));
    assert!(!may_fill(&rig, 7), "its own log may begin");
    let rig = second_leads(|rig| {
        let term = rig.groups[&2].term().0 + 1;
        rig.deliver(3, 2, Message::Raft(raft_msg(RaftKind::AppendResponse, 3, 2, term)));
    });
    assert!(!may_fill(&rig, 0), "another leader may have begun the log of the first one");
}

/// A new leader does not know yet that its PG needs a follower with little room: it paces writes until it knows whose contents are
/// complete.
#[test]
fn a_leader_proposes_little_before_it_knows_whose_contents_are_complete() {
    let mut rig = Rig::led(3, true);
    rig.crash(1);
    let elected = (0..3000).any(|_| {
        rig.advance(1);
        rig.groups[&2].serves()
    });
    assert!(elected && rig.groups[&2].pace().is_none(), "nobody has set a pace");
    let write = |rig: &mut Rig, seq: u64| rig.write_zeros(2, seq, 1000);
    let first = write(&mut rig, 0);
    assert_eq!(rig.answer(first), DONE);
    let second = write(&mut rig, 1);
    assert_eq!(rig.answer(second), None, "it is admitted and not proposed");
    rig.advance(1);
    rig.list(2);
    rig.pump();
    assert_eq!(rig.answer(second), DONE, "the third one has said that it has its contents");
    let (third, fourth) = (write(&mut rig, 2), write(&mut rig, 3));
    assert_eq!((rig.answer(third), rig.answer(fourth)), (DONE, DONE));
    rig.call(2, |g, _, _| g.set_pace(Some(600 << 10)));
    let (fifth, sixth) = (write(&mut rig, 4), write(&mut rig, 5));
    assert_eq!((rig.answer(fifth), rig.answer(sixth)), (DONE, None), "a pace was set");
    rig.call(2, |g, _, _| g.set_pace(None));
    rig.pump();
    assert_eq!(rig.answer(sixth), DONE);
}
