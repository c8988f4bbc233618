//! What is made of the members' answers about one lost payload.

use super::*;
use types::map::Member;
use types::store::{DecisionState, HardState};
use types::{Epoch, PoolId, Term};

/// A replica 1 of `members` that lacks the payload of entry 5.
fn repair(members: u64, commit: u64) -> Repair {
    let member = |n| Member { replica: ReplicaId(n), osd: OsdId(n as u32) };
    let identity = ReplicaIdentity {
        pg: PgId { pool: PoolId(1), n: 0 },
        replica: ReplicaId(1),
        lineage: 1,
        conf_epoch: Epoch(1),
        members: (1..=members).map(member).collect(),
    };
    let crcs = Crcs { start: 0, values: vec![types::crc32c(&[7; 512])] };
    let checkpoint =
        DecisionState { replica: ReplicaId(1), index: Index(0), term: Term(0), bytes: bytes::Bytes::new() };
    let all = types::map::Membership::fresh(Epoch(1), &identity.members);
    Repair::new(
        Recovered {
            identity,
            hard_state: HardState { term: Term(2), vote: None, commit: Index(commit) },
            checkpoint,
            before: (Index(0), Term(0)),
            entries: Vec::new(),
            lost: vec![Lost { index: Index(5), term: Term(2), len_bytes: 512, crcs }],
            in_doubt: false,
            damage: None,
        },
        &all,
        1,
    )
}

/// Members 2 and on are asked and say this.
fn answer(missing: &mut Missing, said: &[Lack]) {
    for (from, why) in (2..).map(ReplicaId).zip(said) {
        missing.asked = Some((from, Time(1)));
        assert!(missing.take_lack(from, missing.round, *why));
    }
}

fn check(members: u64, commit: u64, said: &[Lack], want: Verdict) {
    let mut repair = repair(members, commit);
    let missing = repair.missing.get_mut(&Index(5)).expect("it is missing");
    answer(missing, said);
    assert_eq!(missing.judge(members as usize, Index(commit)), want, "{members} members, commit {commit}, {said:?}");
}

#[test]
fn an_entry_that_a_majority_may_hold_is_never_given_up() {
    use Lack::{Freed, Lost, Other, Unsure};
    // Whoever has not answered may have it.
    check(3, 4, &[], Verdict::Ask);
    check(3, 4, &[Lost], Verdict::Ask);
    check(3, 4, &[Other], Verdict::Ask);
    check(5, 4, &[Other, Other, Other], Verdict::Ask);
    // All have answered: a majority that holds it may have acknowledged it.
    check(3, 4, &[Lost, Other], Verdict::Inconsistent);
    check(3, 4, &[Lost, Lost], Verdict::Inconsistent);
    check(5, 4, &[Lost, Lost, Other, Other], Verdict::Inconsistent);
    check(2, 4, &[Lost], Verdict::Inconsistent);
    check(1, 4, &[], Verdict::Inconsistent);
    // It is known to be committed: who says otherwise does not matter.
    check(3, 5, &[Other, Other], Verdict::Inconsistent);
    // A minority holds it, and nobody can bring it to more.
    check(3, 4, &[Other, Other], Verdict::Void);
    check(2, 4, &[Other], Verdict::Void);
    check(5, 4, &[Lost, Other, Other, Other], Verdict::Void);
    // Who cannot tell may have been one of a majority, and has it no more.
    check(3, 4, &[Unsure, Other], Verdict::Inconsistent);
    check(3, 4, &[Unsure], Verdict::Ask);
    check(5, 4, &[Unsure, Other, Other, Other], Verdict::Ask);
    check(5, 5, &[Unsure, Other, Other, Other], Verdict::Inconsistent);
    // It is applied somewhere: that member's home has its effect.
    check(3, 5, &[Freed], Verdict::Behind);
    check(3, 4, &[Lost, Freed], Verdict::Behind);
}

#[test]
fn members_are_asked_in_turn_and_those_that_said_no_are_left_out() {
    let mut repair = repair(3, 5);
    let ask = |repair: &mut Repair| {
        let others = repair.others.clone();
        let (to, osd) = repair.missing[&Index(5)].next_to_ask(&others, |_| true)?;
        assert_eq!(u64::from(osd.0), to.0);
        repair.missing.get_mut(&Index(5)).expect("it is missing").asked = Some((to, Time(1)));
        Some(to.0)
    };
    assert_eq!([ask(&mut repair), ask(&mut repair), ask(&mut repair)], [Some(2), Some(3), Some(2)]);
    repair.missing.get_mut(&Index(5)).expect("it is missing").said.insert(ReplicaId(2), Lack::Lost);
    assert_eq!([ask(&mut repair), ask(&mut repair)], [Some(3), Some(3)]);
    let missing = &repair.missing[&Index(5)];
    assert_eq!(missing.next_to_ask(&repair.others.clone(), |osd| osd != OsdId(3)), None, "nobody else is reached");
}

/// One step at `at` seconds, in a PG of five that knows commit 4; the next round is one more.
fn step(missing: &mut Missing, at: u64) -> Verdict {
    let next = missing.round + 1;
    missing.step(Time(at * 1_000_000_000), missing::rest(1), (5, Index(4)), || next)
}

#[test]
fn an_entry_is_given_up_when_all_have_been_asked_again_after_all_have_answered() {
    use Lack::{Lost, Other};
    let mut repair = repair(5, 4);
    let missing = repair.missing.get_mut(&Index(5)).expect("it is missing");
    answer(missing, &[Other, Other, Other, Lost]);
    assert_eq!(step(missing, 1), Verdict::Ask, "whoever said no first may have got it before the last one did");
    // What was asked in the first round counts no more.
    missing.asked = Some((ReplicaId(2), Time(1)));
    assert!(!missing.take_lack(ReplicaId(2), 1, Other));
    answer(missing, &[Other, Other, Other, Lost]);
    assert_eq!(step(missing, 1), Verdict::Void);
}

#[test]
fn who_had_no_copy_is_asked_again_while_an_entry_is_inconsistent() {
    use Lack::{Lost, Other};
    let mut repair = repair(5, 4);
    let missing = repair.missing.get_mut(&Index(5)).expect("it is missing");
    answer(missing, &[Lost, Lost, Other, Other]);
    assert_eq!((step(missing, 1), missing.is_inconsistent()), (Verdict::Ask, false));
    answer(missing, &[Lost, Lost, Other, Other]);
    assert_eq!((step(missing, 1), missing.is_inconsistent()), (Verdict::Inconsistent, true));
    assert_eq!(step(missing, 2), Verdict::Inconsistent);
    assert_eq!(step(missing, 3), Verdict::Ask, "somebody may have been given it since");
    assert!(missing.is_inconsistent() && missing.said.is_empty());
    assert!(missing::rest(100_000) >= Duration::from_secs(1000), "a log full of them costs no more than a few");
}

#[test]
fn an_entry_of_which_peers_hold_other_bytes_is_inconsistent_and_not_asked_for_for_ever() {
    let mut repair = repair(3, 4);
    let missing = repair.missing.get_mut(&Index(5)).expect("it is missing");
    for _ in 0..2 {
        assert_eq!(missing.judge(3, Index(4)), Verdict::Ask);
        for from in [2, 3].map(ReplicaId) {
            missing.asked = Some((from, Time(1)));
            missing.take_other_bytes(from, missing.round);
            assert_eq!(missing.asked, None);
        }
        let next = missing.round + 1;
        missing.step(Time(1), missing::rest(1), (3, Index(4)), || next);
    }
    assert!(missing.is_inconsistent());
    missing.asked = Some((ReplicaId(2), Time(1)));
    missing.take_other_bytes(ReplicaId(2), 1);
    assert!(missing.asked.is_none() && missing.said.len() == 2, "an answer of an earlier round counts no more");
}
