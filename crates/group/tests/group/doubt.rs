//! A replica that may lack what it acknowledged (ADR 0007).

use crate::rig::*;
use group::{Action, Group, GroupConfig};
use types::store::HardState;
use types::{Index, OsdId, ReplicaId, Term};
use wire::{RaftKind, RaftMsg};

/// A led rig with ten entries or so, whose third replica comes back with nothing, and in doubt, so many terms later.
fn forgetful(burnt: u64) -> (Rig, (Term, Index)) {
    let mut rig = Rig::led(3, true);
    for seq in 0..10 {
        rig.write(1, seq);
        rig.pump();
    }
    let (term, reach) = rig.groups[&1].standing();
    let mut recovered = recovered(3, 3);
    recovered.hard_state = HardState { term: Term(term.0 + burnt), vote: Some(ReplicaId(3)), commit: Index(0) };
    let mut third = Group::new(GroupConfig::new(OsdId(3)), recovered, rig.at(), 7).expect("it follows");
    third.set_doubt(reach);
    rig.deaf = [3].into();
    rig.groups.insert(3, third);
    (rig, reach)
}

fn pre_vote(rig: &mut Rig, term: Term, (log_term, index): (Term, Index)) -> bool {
    rig.sent.clear();
    let msg = RaftMsg { log_term, index, ..raft_msg(RaftKind::PreVote, 2, 3, term.0) };
    rig.call(3, |g, now, actions| g.handle_raft(now, OsdId(2), msg, actions));
    rig.pump();
    rig.sent.iter().any(|m| m.from == ReplicaId(3) && m.kind == RaftKind::PreVoteResponse && !m.reject)
}

#[test]
fn a_replica_in_doubt_stands_for_nothing_and_votes_for_nobody_who_may_lack_what_it_lost() {
    let (mut rig, reach) = forgetful(3);
    rig.groups.remove(&1);
    rig.groups.remove(&2);
    rig.sent.clear();
    rig.advance(5000);
    assert!(rig.sent.iter().all(|m| m.from != ReplicaId(3)), "it does not campaign, however long it is alone");
    let later = Term(reach.0.0 + 4);
    assert!(!pre_vote(&mut rig, later, (reach.0, Index(reach.1.0 - 1))), "a log that ends before");
    assert!(!pre_vote(&mut rig, Term(reach.0.0 + 3), reach), "a term in which its vote may be given");
    assert!(pre_vote(&mut rig, later, reach), "whoever reaches as far as anybody did");
}

#[test]
fn a_lease_renewal_of_what_was_matched_once_commits_nothing_at_a_replica_in_doubt() {
    let (mut rig, _) = forgetful(0);
    let now = rig.at();
    let (item, _) = rig.groups[&1].renewal_item_for(now, OsdId(3)).expect("it leads");
    assert!(item.commit > Index(5), "the leader knows what it had");
    let renewed = rig.call(3, |g, now, actions| g.handle_renewal_item(now, OsdId(1), item, true, actions));
    assert!(renewed, "it follows");
    assert_eq!(rig.groups[&3].commit(), Index(0));
    assert!(!rig.seen.iter().any(|(_, action)| matches!(action, Action::Quarantined(_))));
}

#[test]
fn a_leader_forgets_what_was_matched_and_the_doubt_ends_where_its_log_ended() {
    let (mut rig, reach) = forgetful(0);
    rig.call(1, |g, _, _| g.handle_follower_lost(OsdId(3), Index(0)));
    let now = rig.at();
    let (item, _) = rig.groups[&1].renewal_item_for(now, OsdId(3)).expect("it leads");
    assert_eq!(item.commit, Index(0), "nothing that it once acknowledged counts");
    rig.deaf.clear();
    for _ in 0..20 {
        rig.list(1);
        rig.advance(5);
    }
    let over = rig.seen.iter().filter(|(osd, action)| (*osd, action) == (3, &Action::DoubtOver)).count();
    assert_eq!(over, 1);
    assert!(!rig.groups[&3].is_in_doubt() && rig.groups[&3].last_index() >= reach.1);
    rig.list(1);
    assert_eq!(rig.groups[&3].commit(), rig.groups[&1].commit(), "it is a member like all");
}

#[test]
fn a_leader_stands_at_what_is_durable_or_committed_and_not_at_what_may_go_with_it() {
    let mut rig = Rig::led(3, true);
    let before = rig.groups[&1].standing();
    rig.hold_disks = true;
    rig.write(1, 1);
    rig.pump();
    assert_eq!(rig.groups[&1].standing(), before, "no disk has it");
    // Two of three have it: it is committed, whatever becomes of the leader, whose own disk is slow.
    let (own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut rig.held).into_iter().partition(|(osd, _)| *osd == 1);
    rig.held = own;
    for (osd, ticket) in others {
        rig.call(osd, |g, now, actions| g.handle_persisted(now, ticket, actions));
    }
    rig.pump();
    let (term, (_, last)) = before;
    assert_eq!(rig.groups[&1].standing(), (term, (term, Index(last.0 + 1))));
    assert_eq!(rig.groups[&1].durable_end(), last);
}
