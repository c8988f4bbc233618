//! Verdicts on the members' answers about lost payloads.

use super::*;
use std::time::Duration;
use types::store::{DecisionState, HardState};
use types::{Epoch, PgId, PoolId};

const LOST: Index = Index(5);

/// Replica 1 of `members` on OSD 1, which lacks the payloads of some entries from 5 on.
fn repair(members: u64, commit: u64, lost: u64) -> Repair {
    let identity = ReplicaIdentity {
        pg: PgId { pool: PoolId(1), n: 0 },
        replica: ReplicaId(1),
        conf_epoch: Epoch(1),
        members: (1..=members).map(member).collect(),
    };
    let crcs = Crcs { start: 0, values: vec![types::crc32c(&[7; 512])].into() };
    let checkpoint =
        DecisionState { replica: ReplicaId(1), index: Index(0), term: Term(0), bytes: bytes::Bytes::new() };
    let all = Membership::fresh(Epoch(1), &identity.members);
    let lost = (0..lost).map(|n| Lost { index: Index(LOST.0 + n), term: Term(2), len_bytes: 512, crcs: crcs.clone() });
    Repair::new(
        RepairTuning::default(),
        Recovered {
            identity,
            hard_state: HardState { term: Term(2), vote: None, commit: Index(commit) },
            checkpoint,
            before: (Index(0), Term(0)),
            entries: Vec::new(),
            lost: lost.collect(),
            failure: None,
            fills: false,
        },
        all,
        &BTreeMap::new(),
        OsdId(1),
    )
}

fn member(n: u64) -> Member {
    Member { replica: ReplicaId(n), osd: OsdId(n as u32) }
}

fn at_s(s: u64) -> Time {
    Time(s * 1_000_000_000)
}

/// Members 2 and on are asked and give these answers.
fn answer(missing: &mut Missing, said: &[Lack]) {
    for (from, why) in (2..).map(member).zip(said) {
        missing.query.ask(at_s(0), from);
        missing.take_lack(at_s(0), from, *why);
    }
}

fn verdict(repair: &Repair, now: Time) -> Verdict {
    let commit = repair.recovered.hard_state.commit;
    repair.missing[&LOST].judge(now, Some(repair.tuning.freed_wait), (&repair.members, &repair.others, &[]), commit)
}

fn check(members: u64, commit: u64, said: &[Lack], want: Verdict) {
    let mut repair = repair(members, commit, 1);
    answer(repair.missing.get_mut(&LOST).expect("it is missing"), said);
    assert_eq!(verdict(&repair, at_s(1)), want, "{members} members, commit {commit}, {said:?}");
}

#[test]
fn entry_that_a_majority_may_hold_is_given_up_only_when_a_member_freed_it() {
    use Lack::{Freed, Lost, Other, Unsure};
    // A member that has not answered may have it.
    check(3, 4, &[], Verdict::Ask);
    check(3, 4, &[Lost], Verdict::Ask);
    check(3, 4, &[Other], Verdict::Ask);
    check(3, 5, &[Freed], Verdict::Ask);
    check(5, 4, &[Other, Other, Other], Verdict::Ask);
    // All have answered: a majority that holds it may have acknowledged it.
    check(3, 4, &[Lost, Other], Verdict::Inconsistent);
    check(3, 4, &[Lost, Lost], Verdict::Inconsistent);
    check(5, 4, &[Lost, Lost, Other, Other], Verdict::Inconsistent);
    check(2, 4, &[Lost], Verdict::Inconsistent);
    check(1, 4, &[], Verdict::Inconsistent);
    // It is known to be committed, whatever the others say.
    check(3, 5, &[Other, Other], Verdict::Inconsistent);
    // A minority holds it.
    check(3, 4, &[Other, Other], Verdict::GivenUp);
    check(2, 4, &[Other], Verdict::GivenUp);
    check(5, 4, &[Lost, Other, Other, Other], Verdict::GivenUp);
    check(5, 4, &[Unsure, Other, Other, Other], Verdict::GivenUp);
    // A member that has failed may have been one of a majority.
    check(3, 4, &[Unsure, Other], Verdict::Inconsistent);
    check(3, 4, &[Unsure], Verdict::Ask);
    check(2, 4, &[Unsure], Verdict::Inconsistent);
    check(5, 5, &[Unsure, Other, Other, Other], Verdict::Inconsistent);
    // It is applied elsewhere: the home of that member has its effect.
    check(3, 5, &[Freed, Other], Verdict::GivenUp);
    check(3, 4, &[Lost, Freed], Verdict::GivenUp);
}

#[test]
fn joint_phase_counts_a_majority_of_either_set() {
    use Lack::{Lost, Other};
    for (said, want) in [
        ([Lost, Other, Other], Verdict::Inconsistent),
        ([Other, Other, Lost], Verdict::Inconsistent),
        ([Other, Other, Other], Verdict::GivenUp),
    ] {
        let mut repair = repair(4, 4, 1);
        let all: Vec<Member> = repair.members.iter().collect();
        // Replicas 1, 2, 3 before, and 1, 3, 4 after.
        repair.members.outgoing = all[..3].to_vec();
        repair.members.voters = [all[0], all[2], all[3]].to_vec();
        answer(repair.missing.get_mut(&LOST).expect("it is missing"), &said);
        assert_eq!(verdict(&repair, at_s(1)), want, "{said:?}");
    }
}

#[test]
fn freed_entry_waits_half_a_minute_for_members_that_are_silent() {
    let mut repair = repair(3, 5, 1);
    answer(repair.missing.get_mut(&LOST).expect("it is missing"), &[Lack::Freed]);
    assert_eq!([29, 30].map(|s| verdict(&repair, at_s(s))), [Verdict::Ask, Verdict::GivenUp]);
}

#[test]
fn members_are_asked_in_turn_and_those_that_have_answered_are_left_out() {
    let mut repair = repair(3, 5, 1);
    let ask = |repair: &mut Repair| {
        let missing = repair.missing.get_mut(&LOST).expect("it is missing");
        let to = missing.next_to_ask(&repair.others, &[], |_| true)?;
        missing.query.ask(at_s(0), to);
        Some(to.osd.0)
    };
    assert_eq!([ask(&mut repair), ask(&mut repair), ask(&mut repair)], [Some(2), Some(3), Some(2)]);
    repair.missing.get_mut(&LOST).expect("it is missing").query.answers.insert(member(2), Lack::Lost);
    assert_eq!([ask(&mut repair), ask(&mut repair)], [Some(3), Some(3)]);
    let missing = &repair.missing[&LOST];
    assert_eq!(missing.next_to_ask(&repair.others, &[], |osd| osd != OsdId(3)), None, "no other one is reached");
}

#[test]
fn successor_on_the_same_osd_is_not_asked() {
    let mut repair = repair(3, 5, 1);
    let successor = Member { replica: ReplicaId(9), osd: OsdId(1) };
    repair.members.learners.push(successor);
    let repair = Repair::new(repair.tuning, repair.recovered, repair.members, &BTreeMap::new(), OsdId(1));
    assert!(!repair.others.contains(&successor) && repair.others.len() == 2);
}

#[test]
fn members_are_asked_again_while_an_entry_is_inconsistent() {
    use Lack::{Lost, Other};
    let mut repair = repair(5, 4, 1);
    let tuning = repair.tuning;
    let waits = (missing::rest(&tuning, 1), Some(tuning.freed_wait));
    let Repair { members, others, missing, .. } = &mut repair;
    let missing = missing.get_mut(&LOST).expect("it is missing");
    let step = |s, missing: &mut Missing| missing.step(at_s(s), waits, (members, others, &[]), Index(4));
    answer(missing, &[Lost, Lost, Other, Other]);
    assert_eq!((step(1, missing), missing.is_inconsistent()), (Verdict::Inconsistent, true));
    assert_eq!(step(2, missing), Verdict::Inconsistent);
    assert_eq!(step(3, missing), Verdict::Ask, "a member may have been given it since");
    assert!(missing.is_inconsistent() && missing.query.answers.is_empty());
    let rest = missing::rest(&tuning, 100_000);
    assert!(rest >= Duration::from_secs(1000), "a log full of them costs no more than a few");
}

#[test]
fn only_answers_to_the_last_query_count() {
    let mut repair = repair(3, 4, 1);
    let counts = |repair: &mut Repair, from, term| repair.asked_of(member(from), (LOST, Term(term))).is_some();
    assert!(!counts(&mut repair, 2, 2), "it was not asked");
    repair.missing.get_mut(&LOST).expect("it is missing").query.ask(at_s(0), member(2));
    assert!(!counts(&mut repair, 3, 2), "another one was asked");
    assert!(!counts(&mut repair, 2, 1), "another entry was asked for");
    let elsewhere = Member { osd: OsdId(3), ..member(2) };
    assert!(repair.asked_of(elsewhere, (LOST, Term(2))).is_none(), "it is on another OSD");
    assert!(counts(&mut repair, 2, 2));
    repair.missing.get_mut(&LOST).expect("it is missing").take_lack(at_s(0), member(2), Lack::Other);
    assert!(!counts(&mut repair, 2, 2), "it has answered");
}

/// Entries, by the replicas that one look asks.
fn asked(repair: &mut Repair, s: u64) -> Vec<(u64, u64)> {
    let look = repair.look(at_s(s), true, &[], |osd| osd != OsdId(3));
    assert_eq!(look.given_up, None);
    look.queries.iter().map(|(index, _, to)| (index.0, to.replica.0)).collect()
}

#[test]
fn queries_without_an_answer_keep_no_other_entry_back() {
    let mut repair = repair(3, 4, 6);
    assert_eq!(asked(&mut repair, 1), [(5, 2), (6, 2), (7, 2), (8, 2)]);
    assert_eq!(asked(&mut repair, 1), [], "four at a time");
    assert_eq!(asked(&mut repair, 2), [(9, 2), (10, 2), (5, 2), (6, 2)]);
    repair.missing.remove(&Index(9));
    assert_eq!(asked(&mut repair, 2), [(7, 2)], "an answer makes room");
}

#[test]
fn entry_behind_one_that_waits_is_judged() {
    let mut repair = repair(3, 4, 2);
    let behind = repair.missing.get_mut(&Index(6)).expect("it is missing");
    answer(behind, &[Lack::Other, Lack::Other]);
    let look = repair.look(at_s(1), true, &[], |osd| osd != OsdId(3));
    assert_eq!((look.given_up, look.queries.len()), (Some(Index(6)), 1));
}
