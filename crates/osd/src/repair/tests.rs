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
    Repair::new(Recovered {
        identity,
        hard_state: HardState { term: Term(2), vote: None, commit: Index(commit) },
        checkpoint,
        before: (Index(0), Term(0)),
        entries: Vec::new(),
        lost: vec![Lost { index: Index(5), term: Term(2), len_bytes: 512, crcs }],
        in_doubt: false,
        damage: None,
    })
}

fn check(members: u64, commit: u64, said: &[Lack], want: Verdict) {
    let mut repair = repair(members, commit);
    let answers = (2..).map(ReplicaId).zip(said.iter().copied()).collect();
    repair.missing.get_mut(&Index(5)).expect("it is missing").said = answers;
    assert_eq!(repair.judge(&repair.missing[&Index(5)]), want, "{members} members, commit {commit}, {said:?}");
}

#[test]
fn an_entry_that_a_majority_may_hold_is_never_given_up() {
    use Lack::{Freed, Lost, Other};
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
    // It is applied somewhere: that member's home has its effect.
    check(3, 5, &[Freed], Verdict::Behind);
    check(3, 4, &[Lost, Freed], Verdict::Behind);
}

#[test]
fn members_are_asked_in_turn_and_those_that_said_no_are_left_out() {
    let mut repair = repair(3, 5);
    let ask = |repair: &mut Repair| {
        let missing = &repair.missing[&Index(5)];
        let (to, osd) = repair.next_to_ask(missing, |_| true)?;
        assert_eq!(u64::from(osd.0), to.0);
        repair.missing.get_mut(&Index(5)).expect("it is missing").asked = Some((to, Time(1)));
        Some(to.0)
    };
    assert_eq!([ask(&mut repair), ask(&mut repair), ask(&mut repair)], [Some(2), Some(3), Some(2)]);
    repair.missing.get_mut(&Index(5)).expect("it is missing").said.insert(ReplicaId(2), Lack::Lost);
    assert_eq!([ask(&mut repair), ask(&mut repair)], [Some(3), Some(3)]);
    let missing = &repair.missing[&Index(5)];
    assert_eq!(repair.next_to_ask(missing, |osd| osd != OsdId(3)), None, "nobody else is reached");
}
