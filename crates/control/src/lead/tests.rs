//! Orders of store calls: a meta that leads, and one that waits to.

use super::*;
use crate::admin::AdminAsk;
use crate::machine::Token;

fn at(ms: u64) -> Now {
    Now { mono: Time::ZERO + Duration::from_millis(ms), wall_ms: ms }
}

fn items() -> Vec<StoredItem> {
    let item = |(key, value)| StoredItem { key, value, version: 1 };
    new_cluster(ClusterId([7; 16]), 1).puts.into_iter().map(item).collect()
}

fn answer(leader: &mut Leader, ms: u64, answer: Answer) {
    leader.handle_answer(at(ms), answer).expect("sound records");
}

/// Returns a server that was elected at this time and has said so in its first transaction.
fn elected(leased: bool, ms: u64) -> Leader {
    let mut leader = Leader::new(ControlConfig::default(), "a:1", ClusterId([1; 16]), leased);
    assert_eq!(leader.step(at(ms)), Step::Call(Call::Campaign));
    answer(&mut leader, ms, Answer::Won);
    assert_eq!(leader.step(at(ms)), Step::Call(Call::Load));
    answer(&mut leader, ms, Answer::Items(items()));
    assert_eq!(leader.step(at(ms)), Step::Leads);
    leader
}

/// Steps until a call or a wait; returns it, and the answers to administrators before it.
fn settle(leader: &mut Leader, ms: u64) -> (Step, Vec<Token>) {
    let mut told = Vec::new();
    loop {
        match leader.step(at(ms)) {
            Step::Act(ControlAction::AdminAnswer { token, .. }) => told.push(token),
            Step::Act(_) => {}
            step => return (step, told),
        }
    }
}

/// Answers every call as a store that is sound, until the server waits.
fn rest(leader: &mut Leader, ms: u64) -> Vec<Token> {
    let mut all = Vec::new();
    loop {
        let (step, told) = settle(leader, ms);
        all.extend(told);
        match step {
            Step::Call(Call::Commit(_) | Call::Keep) => answer(leader, ms, Answer::Done),
            Step::Wait(_) => return all,
            step => panic!("{step:?}"),
        }
    }
}

fn ask_status(leader: &mut Leader, token: u64) {
    leader.control_mut().expect("it leads").handle_admin(Token(token), AdminAsk::Status);
}

#[test]
fn empty_store_gets_one_new_cluster_and_is_loaded_again() {
    let mut leader = Leader::new(ControlConfig::default(), "a:1", ClusterId([7; 16]), true);
    assert_eq!(leader.step(at(1)), Step::Call(Call::Campaign));
    answer(&mut leader, 1, Answer::Won);
    assert_eq!(leader.step(at(1)), Step::Call(Call::Load));
    answer(&mut leader, 1, Answer::Items(Vec::new()));
    assert_eq!(leader.step(at(1)), Step::Call(Call::Commit(new_cluster(ClusterId([7; 16]), 1))));
    answer(&mut leader, 1, Answer::Done);
    assert_eq!(leader.step(at(1)), Step::Call(Call::Load));
    answer(&mut leader, 1, Answer::Items(items()));
    assert_eq!(leader.step(at(1)), Step::Leads);
}

#[test]
fn leader_that_was_stopped_has_its_election_confirmed_before_it_plans() {
    let mut leader = elected(true, 100);
    rest(&mut leader, 100);
    ask_status(&mut leader, 1);
    assert_eq!(rest(&mut leader, 200), [Token(1)]);
    // The process is stopped for minutes, and finds a request.
    ask_status(&mut leader, 2);
    assert_eq!(settle(&mut leader, 90_000), (Step::Call(Call::Keep), vec![]));
    answer(&mut leader, 90_000, Answer::Failed);
    assert_eq!(settle(&mut leader, 90_000), (Step::Ended, vec![]), "its answer may be old");
    assert!(leader.control().is_none());
    assert_eq!(leader.step(at(90_000)), Step::Call(Call::Resign));
    answer(&mut leader, 90_001, Answer::Failed);
    assert_eq!(leader.step(at(90_001)), Step::Wait(at(90_401).mono));
    assert_eq!(leader.step(at(90_401)), Step::Call(Call::Campaign));
}

#[test]
fn confirmation_counts_from_the_call_and_not_from_its_answer() {
    let mut leader = elected(true, 100);
    rest(&mut leader, 100);
    assert_eq!(settle(&mut leader, 900).0, Step::Call(Call::Keep));
    // A slow store leaves some time for plans between two confirmations.
    answer(&mut leader, 2500, Answer::Done);
    ask_status(&mut leader, 1);
    assert_eq!(rest(&mut leader, 2899), [Token(1)]);
    assert_eq!(settle(&mut leader, 2900).0, Step::Call(Call::Keep), "the last one holds as of 900");
    // The process was stopped while the answer waited for it.
    answer(&mut leader, 60_000, Answer::Done);
    ask_status(&mut leader, 2);
    assert_eq!(settle(&mut leader, 60_000), (Step::Call(Call::Keep), vec![]));
}

#[test]
fn commit_without_an_answer_ends_the_leadership_and_releases_nothing() {
    let mut leader = elected(true, 100);
    assert!(matches!(settle(&mut leader, 100), (Step::Call(Call::Commit(_)), told) if told.is_empty()));
    ask_status(&mut leader, 1);
    answer(&mut leader, 2100, Answer::Failed);
    assert_eq!(settle(&mut leader, 2100), (Step::Ended, vec![]));
    assert_eq!(leader.step(at(2100)), Step::Call(Call::Resign));
}

#[test]
fn store_without_leases_is_asked_for_no_confirmation() {
    let mut leader = elected(false, 100);
    rest(&mut leader, 100);
    ask_status(&mut leader, 1);
    let (step, told) = settle(&mut leader, 90_000);
    assert!(told == [Token(1)] || matches!(step, Step::Call(Call::Commit(_))), "{step:?}");
}

#[test]
fn pauses_grow_while_the_store_does_not_answer() {
    let mut leader = Leader::new(ControlConfig::default(), "a:1", ClusterId([1; 16]), true);
    let mut pauses = Vec::new();
    let mut now = 0;
    for _ in 0..6 {
        assert_eq!(leader.step(at(now)), Step::Call(Call::Campaign));
        answer(&mut leader, now, Answer::Failed);
        let Step::Wait(until) = leader.step(at(now)) else { panic!("it waits") };
        pauses.push(until.since(at(now).mono).as_millis());
        now += u64::try_from(until.since(at(now).mono).as_millis()).expect("short");
    }
    assert_eq!(pauses, [400, 800, 1600, 3200, 5000, 5000]);
}
