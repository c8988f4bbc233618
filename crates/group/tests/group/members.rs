//! Changes of the members (ADR 0016): one replica leaves, another one comes, and leaders die at every step of that.

use super::rig::{PG, Rig, ms, recovered};
use group::{Group, GroupConfig};
use types::map::{Member, MemberChange};
use types::store::{DecisionState, HardState, Recovered, ReplicaIdentity};
use types::{Epoch, OsdId, ReplicaId};
use wire::ReplyBody;

const NEW: Member = Member { replica: ReplicaId(24), osd: OsdId(4) };

/// Replica 24 on OSD 4 takes the place of replica 2.
const REPLACE: MemberChange =
    MemberChange { expected: Epoch(1), add: Some(NEW), remove: Some(ReplicaId(2)), cancel: false };

fn voters(rig: &Rig, osd: u32) -> Vec<u64> {
    rig.groups[&osd].members().voters.iter().map(|m| m.replica.0).collect()
}

/// Whether the replacement has ended, as this OSD knows.
fn is_done(rig: &Rig, osd: u32) -> bool {
    let members = rig.groups[&osd].members();
    voters(rig, osd) == [1, 3, 24] && !members.is_joint() && !members.left
}

fn order(rig: &mut Rig, leader: u32, change: MemberChange) {
    rig.call(leader, |g, _, _| g.handle_change(change));
    rig.pump();
}

/// Makes the new replica from the state of `leader`, as a stream does, and reports its position to the leader.
fn install(rig: &mut Rig, leader: u32) {
    let (osd, from) = (NEW.osd.0, &rig.groups[&leader]);
    let (state, term) = (from.decision(), from.term());
    let identity = ReplicaIdentity { replica: NEW.replica, ..from.identity().clone() };
    let (index, before) = (state.index, (state.index, state.term));
    let recovered = Recovered {
        identity,
        hard_state: HardState { term, vote: None, commit: index },
        checkpoint: DecisionState { replica: NEW.replica, ..state },
        before,
        entries: Vec::new(),
        lost: Vec::new(),
        failure: None,
        fills: false,
    };
    let group = Group::new(GroupConfig::new(NEW.osd), recovered, rig.at(), u64::from(osd)).expect("a streamed replica");
    rig.groups.insert(osd, group);
    rig.call(leader, |g, now, actions| g.handle_follower_stands(now, NEW.osd, term, index, actions));
    rig.pump();
}

/// Lets the leader renew its lease until `so` holds.
fn renew_until(rig: &mut Rig, leader: u32, so: impl Fn(&Rig) -> bool) {
    for _ in 0..200 {
        if so(rig) {
            return;
        }
        rig.advance(5);
        rig.list(leader);
    }
    panic!("the change does not go on: {:?}", rig.groups[&leader].members());
}

/// Returns the OSD that leads, once one does.
fn leader(rig: &mut Rig) -> u32 {
    for _ in 0..20_000 {
        let leads = rig.groups.iter().filter(|(_, g)| g.is_leader()).max_by_key(|(_, g)| g.term()).map(|(osd, _)| *osd);
        if let Some(osd) = leads {
            return osd;
        }
        rig.advance(1);
    }
    panic!("nobody leads");
}

/// Repeats the order to whichever replica leads, until `so` holds.
fn repeat_until(rig: &mut Rig, change: MemberChange, so: impl Fn(&Rig) -> bool) {
    for _ in 0..400 {
        if so(rig) {
            return;
        }
        rig.advance(5);
        let osd = leader(rig);
        rig.list(osd);
        order(rig, osd, change);
    }
    panic!("the change does not end");
}

#[test]
fn replica_is_replaced_while_writes_go_on() {
    let mut rig = Rig::led(3, true);
    let mut seq = 0;
    let mut write = |rig: &mut Rig| {
        let id = rig.write(1, seq);
        seq += 1;
        rig.pump();
        assert_eq!(rig.answer(id), Some(Ok(ReplyBody::Done)));
    };
    write(&mut rig);
    order(&mut rig, 1, REPLACE);
    assert_eq!(rig.groups[&1].members().learners, [NEW]);
    write(&mut rig);
    for _ in 0..4 {
        rig.advance(5);
        rig.list(1);
    }
    assert_eq!(voters(&rig, 1), [1, 2, 3], "a learner that has nothing is not promoted");
    install(&mut rig, 1);
    write(&mut rig);
    renew_until(&mut rig, 1, |rig| is_done(rig, 1));
    write(&mut rig);
    rig.list(1);
    for osd in [1, 3, 4] {
        assert_eq!((voters(&rig, osd), rig.groups[&osd].members().epoch), (vec![1, 3, 24], Epoch(5)), "osd.{osd}");
    }
    // The removed replica is out of reach of every renewal, and its elections disturb no other.
    let term = rig.groups[&1].term();
    for _ in 0..400 {
        rig.advance(5);
        rig.list(1);
    }
    assert!(rig.groups[&1].is_leader() && rig.groups[&1].term() == term);
    rig.crash(1);
    let next = leader(&mut rig);
    assert!([3, 4].contains(&next), "osd.{next} is no voter");
}

#[test]
fn step_under_other_members_has_no_effect_and_an_order_is_done_once() {
    let mut rig = Rig::led(3, true);
    order(&mut rig, 1, REPLACE);
    install(&mut rig, 1);
    renew_until(&mut rig, 1, |rig| is_done(rig, 1));
    let before = rig.groups[&1].members().clone();
    for _ in 0..3 {
        order(&mut rig, 1, REPLACE);
        rig.advance(5);
        rig.list(1);
    }
    assert_eq!(*rig.groups[&1].members(), before, "a repeated order changes nothing");
}

#[test]
fn cancelled_change_gives_up_the_learner_and_voids_late_orders() {
    let cancel = MemberChange { cancel: true, ..REPLACE };
    let other = Member { replica: ReplicaId(25), osd: OsdId(5) };
    for learner_came in [true, false] {
        let mut rig = Rig::led(3, true);
        if learner_came {
            order(&mut rig, 1, REPLACE);
            // An order of the same change cannot name another replica.
            order(&mut rig, 1, MemberChange { add: Some(other), ..REPLACE });
            assert_eq!(rig.groups[&1].members().learners, [NEW]);
        }
        order(&mut rig, 1, cancel);
        let epoch = Epoch(2 + u64::from(learner_came));
        for late in [REPLACE, cancel] {
            order(&mut rig, 1, late);
            let members = rig.groups[&1].members();
            assert!(members.is_settled() && members.epoch == epoch, "{late:?}: {members:?}");
            assert_eq!(voters(&rig, 1), [1, 2, 3]);
        }
        order(&mut rig, 1, MemberChange { expected: epoch, add: Some(other), ..REPLACE });
        assert_eq!(rig.groups[&1].members().learners, [other]);
    }
}

#[test]
fn order_that_does_not_fit_proposes_nothing() {
    let mut rig = Rig::led(3, true);
    let last = rig.groups[&1].last_index();
    let bad = [
        MemberChange { add: None, remove: Some(ReplicaId(9)), ..REPLACE },
        MemberChange { add: None, remove: None, ..REPLACE },
        MemberChange { add: Some(Member { replica: ReplicaId(3), osd: OsdId(3) }), ..REPLACE },
        MemberChange { expected: Epoch(2), ..REPLACE },
        MemberChange { expected: Epoch(0), cancel: true, ..REPLACE },
    ];
    for change in bad {
        order(&mut rig, 1, change);
        assert_eq!(rig.groups[&1].last_index(), last, "{change:?}");
    }
}

#[test]
fn leader_that_is_to_leave_transfers_leadership_first() {
    let mut rig = Rig::led(3, true);
    let change = MemberChange { remove: Some(ReplicaId(1)), ..REPLACE };
    order(&mut rig, 1, change);
    install(&mut rig, 1);
    repeat_until(&mut rig, change, |rig| rig.groups[&2].members().osd_of(ReplicaId(1)).is_none());
    let osd = leader(&mut rig);
    assert_ne!(osd, 1);
    assert_eq!((voters(&rig, osd), rig.groups[&osd].members().is_joint()), (vec![2, 3, 24], false));
}

/// Runs a replacement, and stops its leader after `tickets` completions of disks. Returns false when the change had ended.
fn leader_dies(seed_ms: u64, tickets: usize) -> bool {
    let mut rig = Rig::led(3, true);
    rig.advance(seed_ms);
    rig.list(1);
    let acknowledged = rig.write(1, 0);
    rig.pump();
    rig.call(1, |g, _, _| g.handle_change(REPLACE));
    rig.hold_disks = true;
    let (mut left, mut installed) = (tickets, false);
    let mut ended = false;
    for _ in 0..400 {
        rig.pump();
        if left == 0 {
            break;
        }
        if let Some((osd, ticket)) = (!rig.held.is_empty()).then(|| rig.held.remove(0)) {
            rig.complete(osd, ticket);
            left -= 1;
            continue;
        }
        if !installed && rig.groups[&1].members().learners == [NEW] {
            install(&mut rig, 1);
            installed = true;
            continue;
        }
        ended = is_done(&rig, 1);
        if ended {
            break;
        }
        rig.now += 5;
        rig.list(1);
    }
    rig.crash(1);
    rig.hold_disks = false;
    for (osd, ticket) in std::mem::take(&mut rig.held) {
        rig.complete(osd, ticket);
    }
    // Meta repeats its order to each new leader; a joint phase ends without one.
    for _ in 0..2000 {
        rig.advance(5);
        let Some(osd) =
            rig.groups.iter().filter(|(_, g)| g.is_leader()).max_by_key(|(_, g)| g.term()).map(|(osd, _)| *osd)
        else {
            continue;
        };
        rig.list(osd);
        order(&mut rig, osd, REPLACE);
        if rig.groups[&osd].members().learners == [NEW] && !rig.groups.contains_key(&4) {
            install(&mut rig, osd);
        }
        if is_done(&rig, osd) {
            let landed = rig.groups.keys().filter(|osd| rig.landed(**osd) > 0).count();
            assert!(landed > 0 && rig.answer(acknowledged) == Some(Ok(ReplyBody::Done)));
            return !ended;
        }
    }
    panic!(
        "after {tickets} writes: {:?}",
        rig.groups.iter().map(|(osd, g)| (*osd, g.members().clone())).collect::<Vec<_>>()
    );
}

#[test]
fn only_replica_of_a_pg_is_replaced() {
    let mut rig = Rig::led(1, true);
    let change = MemberChange { remove: Some(ReplicaId(1)), ..REPLACE };
    order(&mut rig, 1, change);
    install(&mut rig, 1);
    repeat_until(&mut rig, change, |rig| rig.groups[&4].members().is_settled() && voters(rig, 4) == [24]);
    assert_eq!((leader(&mut rig), voters(&rig, 4)), (4, vec![24]));
    for seq in 0..4 {
        let write = rig.write_zeros(4, seq, 1000);
        assert_eq!(rig.answer(write), Some(Ok(ReplyBody::Done)), "write {seq}: there is no other replica to wait for");
    }
}

#[test]
fn joint_phase_waits_for_majorities_that_are_heard() {
    let mut rig = Rig::led(3, true);
    order(&mut rig, 1, REPLACE);
    install(&mut rig, 1);
    // The newcomer matched all, and then its process ended.
    rig.crash(4);
    for _ in 0..600 {
        rig.advance(5);
        rig.list(1);
        order(&mut rig, 1, REPLACE);
    }
    assert_eq!((rig.groups[&1].members().learners.len(), voters(&rig, 1)), (1, vec![1, 2, 3]));
}

#[test]
fn leader_that_dies_at_any_step_leaves_the_old_or_the_new_members() {
    for ms in [0, 3] {
        let runs = (0..).take_while(|tickets| leader_dies(ms, *tickets)).count();
        assert!(runs > 10, "{runs} steps");
    }
}

#[test]
fn step_in_the_log_proves_the_step_before_it_committed() {
    // The commit index on disk is older than the entries: a restart must not act on members that are gone.
    let mut rig = Rig::new(3, true);
    rig.advance(150);
    rig.list(1);
    rig.attach(1, 1, 1);
    order(&mut rig, 1, REPLACE);
    install(&mut rig, 1);
    renew_until(&mut rig, 1, |rig| is_done(rig, 1));
    let entries: Vec<types::Entry> = rig.sent.iter().flat_map(|msg| msg.entries.clone()).collect();
    let mut log: Vec<types::Entry> = Vec::new();
    for entry in entries {
        if log.iter().all(|known| known.index != entry.index) {
            log.push(entry);
        }
    }
    log.sort_by_key(|entry| entry.index);
    let mut recovered = super::rig::recovered(2, 3);
    recovered.hard_state = HardState { term: rig.groups[&1].term(), vote: None, commit: types::Index(0) };
    recovered.entries = log;
    let mut group = Group::new(GroupConfig::new(OsdId(2)), recovered, ms(0), 2).expect("a sound log");
    assert_eq!(group.identity().pg, PG);
    group.poll(ms(0), &mut Vec::new());
    assert!(group.members().left && !group.members().is_joint(), "`Done` proves `Leave`: {:?}", group.members());
}

#[test]
fn only_voter_names_its_term_to_a_learner_when_its_device_holds_it() {
    let mut rig = Rig::led(1, true);
    order(&mut rig, 1, MemberChange { remove: Some(ReplicaId(1)), ..REPLACE });
    assert_eq!((voters(&rig, 1), rig.groups[&1].members().learners.len()), (vec![1], 1));
    let (state, term) = (rig.groups[&1].decision(), rig.groups[&1].term());
    rig.crash(1);
    let hard_state = HardState { term, vote: Some(ReplicaId(1)), commit: state.index };
    let recovered = Recovered { hard_state, before: (state.index, state.term), checkpoint: state, ..recovered(1, 1) };
    rig.groups.insert(1, Group::new(GroupConfig::new(OsdId(1)), recovered, rig.at(), 1).expect("its own state"));
    rig.hold_disks = true;
    rig.advance(2000);
    assert!(rig.groups[&1].is_leader() && rig.groups[&1].term() > term && !rig.held.is_empty());
    assert_eq!(rig.groups[&1].renewal_item_for(rig.at(), NEW.osd), None);
    rig.hold_disks = false;
    rig.pump();
    assert!(rig.groups[&1].renewal_item_for(rig.at(), NEW.osd).is_some());
}
