//! The claims of replicas that really ran, each with an artificial violation.

use super::*;
use crate::cluster::DEVICE;
use crate::options::Options;
use crate::overrides::Overrides;
use crate::run::Run;
use std::time::Duration;
use types::rng::Rng;

const WORK: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(5);
const EARLY: Duration = Duration::from_millis(50);

fn worked() -> Run {
    worked_with(LATE)
}

/// Runs three OSDs for a while, without faults. A destage begins so long after the one before.
fn worked_with(round_idle: Duration) -> Run {
    let mut rng = Rng::new(5);
    let mut options = Options::draw(&mut rng);
    (options.osds, options.replicas, options.drift) = (3, 3, false);
    options.engine.round_idle = round_idle;
    let mut run = Run::new(5, options, rng, false, &Overrides::default());
    assert!(run.set_up().is_ok(), "nothing is broken");
    run.cluster.begin(&run.volumes, WORK, &mut run.rng);
    let until = run.cluster.world.now() + WORK;
    while run.cluster.world.now() < until {
        assert!(run.step(until).is_ok(), "nothing is broken");
    }
    run
}

/// Lets the claims look at the device of the first OSD. Returns the violation that they find.
fn verdict(run: &Run, look: impl FnOnce(&mut Claims, NodeId, Durable<'_>)) -> Option<String> {
    let node = run.cluster.osd_node(0);
    let mut claims = run.cluster.claims.borrow_mut();
    run.cluster.world.durable(node, DEVICE, |durable| look(&mut claims, node, durable));
    claims.failure.take()
}

/// Returns an acknowledgement of a follower on the first OSD, up to the end of its durable log.
fn acknowledgement(run: &Run) -> Raft {
    let mut found = None;
    assert_eq!(verdict(run, |_, _, durable| found = Some(read(durable))), None);
    let contents = found.expect("it was read");
    let claims = run.cluster.claims.borrow();
    let device = &claims.devices[&run.cluster.osd_node(0)];
    let acks = device.claims.iter().filter(|(id, claim)| claim.last.0 == contents.replicas[id].term);
    let last = acks.filter_map(|(id, claim)| Some((*id, claim, *contents.replicas[id].log.last_key_value()?.0)));
    let (from, claim, index) = last.max_by_key(|(.., index)| *index).expect("some replica follows");
    let (kind, rejects, entries) = (raft::APPEND_RESPONSE, false, Vec::new());
    Raft { pg: claim.pg, from, to: 0, term: claim.term, log_term: 0, index, kind, rejects, entries }
}

#[test]
fn reader_finds_the_log_that_every_group_has() {
    let (mut entries, mut checkpoints) = (0, 0);
    for run in [EARLY, LATE].map(worked_with) {
        for (i, (_, osd)) in run.cluster.running().enumerate() {
            let contents = run.cluster.world.durable(run.cluster.osd_node(i), DEVICE, read);
            for group in osd.groups_for_tools() {
                let r = &contents.replicas[&group.identity().replica.0];
                assert_eq!(r.term, group.term().0, "{}", group.identity().pg);
                assert!(!r.is_marked && r.checkpoint <= group.applied().0);
                checkpoints += u64::from(r.checkpoint > 0);
                for index in r.checkpoint + 1..=group.durable_end().0 {
                    let term = group.term_at(types::Index(index)).expect("the log has it");
                    assert_eq!(r.log.get(&index), Some(&term.0), "entry {index} of {}", group.identity().pg);
                    entries += 1;
                }
            }
        }
    }
    assert!(entries > 0 && checkpoints > 0, "{entries} entries, {checkpoints} checkpoints");
}

#[test]
fn claim_that_the_device_holds_passes() {
    let run = worked();
    let ack = acknowledgement(&run);
    assert!(run.cluster.claims.borrow().checked() > 100, "much was said");
    let said = verdict(&run, |claims, node, durable| claims.hear(node, &Message::Raft(ack), durable));
    assert_eq!(said, None);
    assert_eq!(run.cluster.claims_stand(), Ok(()));
}

#[test]
fn claim_that_the_device_does_not_hold_is_found() {
    let run = worked();
    let ack = acknowledgement(&run);
    let (from, index, term) = (ack.from, ack.index, ack.term);
    let vote = Raft { kind: raft::VOTE_RESPONSE, to: 99, index: 0, ..ack.clone() };
    for (message, says) in [
        (Message::Raft(Raft { index: index + 1, ..ack.clone() }), "durably holds"),
        (Message::Raft(Raft { term: term + 1, ..ack.clone() }), "durably holds"),
        (Message::Raft(Raft { from: 77, ..ack.clone() }), "does not know it"),
        (Message::Raft(Raft { term: term + 1, ..vote.clone() }), "with vote Some(99)"),
        (Message::Leads { from, term: term + 1 }, "leads in"),
        (Message::Holds { from, index: index + 1 }, "says that it holds"),
    ] {
        let said = verdict(&run, |claims, node, durable| claims.hear(node, &message, durable));
        assert!(said.as_ref().is_some_and(|said| said.contains(says)), "{message:?}: {said:?}");
    }
}

#[test]
fn second_vote_in_one_term_is_found_on_a_lying_device_too() {
    let run = worked();
    let ack = acknowledgement(&run);
    let vote = |to| Message::Raft(Raft { kind: raft::VOTE_RESPONSE, to, index: 0, term: 999, ..ack.clone() });
    let said = verdict(&run, |claims, node, durable| {
        claims.lied(node, true);
        claims.hear(node, &vote(98), durable);
        assert_eq!(claims.failure, None, "the device has lied");
        claims.hear(node, &vote(99), durable);
    });
    assert!(said.is_some_and(|said| said.contains("has voted for r98")));
}

#[test]
fn lost_acknowledged_entry_is_found_unless_a_later_leader_replaced_it() {
    let run = worked();
    let ack = acknowledgement(&run);
    let (index, term) = (ack.index + 1, ack.term);
    let examine = |claims: &mut Claims, node, durable: Durable<'_>| claims.examine(node, &[], durable);
    let forget = |claims: &mut Claims, node: NodeId| {
        let claim = claims.devices.get_mut(&node).expect("it was added").claims.get_mut(&ack.from).expect("it spoke");
        claim.acked.insert(index, (term, term));
    };
    let said = verdict(&run, |claims, node, durable| {
        forget(claims, node);
        examine(claims, node, durable);
    });
    assert!(said.is_some_and(|said| said.contains("has acknowledged")));
    let replaced = Raft { kind: raft::APPEND, from: ack.to, to: ack.from, term: term + 1, ..ack.clone() };
    let said = verdict(&run, |claims, node, durable| {
        claims.note_append(&Raft { entries: vec![(index, term + 1)], ..replaced });
        examine(claims, node, durable);
    });
    assert_eq!(said, None);
}

#[test]
fn process_that_takes_a_missing_entry_for_durable_is_found() {
    let run = worked();
    let ack = acknowledgement(&run);
    for (index, is_right) in [(ack.index, true), (ack.index + 1, false)] {
        let believed = Believed { replica: ack.from, index, term: None };
        let said = verdict(&run, |claims, node, durable| claims.examine(node, &[believed], durable));
        assert_eq!(said.is_none(), is_right, "{said:?}");
    }
}

#[test]
fn replica_whose_log_is_gone_is_found() {
    let run = worked();
    let image = run.cluster.image(0);
    let (mut page, mut count) = ([0; PAGE], 0);
    for at in image.stored_pages(1 << 20, image.size_bytes() - (1 << 20)) {
        image.read(at, &mut page);
        if page.starts_with(b"BSLTBTCH") {
            image.flip_bit(at + 60, 1);
            count += 1;
        }
    }
    assert!(count > 0, "a log has batches");
    let said = verdict(&run, |claims, node, durable| claims.examine(node, &[], durable));
    assert!(said.is_some_and(|said| said.contains("is forgotten")));
}
