//! A client's report that it cannot reach the leader: reports that move leadership, and reports that do not.

use crate::rig::{CHUNK, PG, Rig};
use types::{Epoch, OsdId, ReplicaId, SessionId, Term, VolumeId};
use wire::{PassedOn, ReplyBody, RequestBody};

fn report(leader: u32) -> RequestBody {
    RequestBody::Unreached { volume: CHUNK.volume, leader: OsdId(leader) }
}

fn leader(rig: &Rig) -> Vec<u32> {
    rig.groups.iter().filter(|(_, g)| g.is_leader()).map(|(osd, _)| *osd).collect()
}

/// Returns the message that the replica on osd.3 forwards when the attached client reports osd.1.
fn word_of_3(rig: &Rig) -> PassedOn {
    let (session, epoch, volume, term) = (SessionId(1), Epoch(1), CHUNK.volume, rig.groups[&1].term());
    PassedOn { pg: PG, from: ReplicaId(3), to: ReplicaId(1), term, volume, session, epoch }
}

/// Sends lease renewals of the present leader, for this number of milliseconds.
fn reign(rig: &mut Rig, millis: u64) {
    for _ in 0..millis / 20 {
        rig.advance(20);
        leader(rig).into_iter().for_each(|osd| drop(rig.list(osd)));
    }
}

#[test]
fn unreached_report_moves_leadership_to_its_follower_within_a_turn() {
    let mut rig = Rig::led(3, true);
    reign(&mut rig, 100);
    let id = rig.request(3, report(1));
    rig.pump();
    assert_eq!(rig.answer(id), Some(Ok(ReplyBody::Done)));
    assert_eq!(leader(&rig), [3]);
    let write = rig.write(3, 1);
    rig.pump();
    assert_eq!(rig.answer(write), Some(Ok(ReplyBody::Done)));
    // R7: the copy that the old leader refused lands once.
    let again = rig.write(3, 1);
    rig.pump();
    assert_eq!((rig.answer(again), rig.landed(3)), (Some(Ok(ReplyBody::Done)), 1));
}

#[test]
fn unreached_report_with_a_foreign_session_or_leader_moves_nothing() {
    let mut rig = Rig::led(3, true);
    reign(&mut rig, 100);
    // Reports about a replica that does not lead, and to the leader itself.
    for (osd, about) in [(3, 2), (2, 3), (1, 1), (1, 2)] {
        rig.request(osd, report(about));
        reign(&mut rig, 60);
    }
    // Reports from another session, another epoch, about another volume; and the same, forged by a member.
    for (volume, session, epoch) in [(CHUNK.volume.0, 2, 1), (CHUNK.volume.0, 1, 2), (99, 1, 1), (CHUNK.volume.0, 0, 1)]
    {
        let (session, epoch, volume) = (SessionId(session), Epoch(epoch), VolumeId(volume));
        let term = rig.groups[&1].term();
        let (from, to) = (ReplicaId(3), ReplicaId(1));
        for (term, from) in [(term, from), (Term(term.0 - 1), from), (term, ReplicaId(2)), (term, ReplicaId(9))] {
            let right = (session, epoch, volume) == (SessionId(1), Epoch(1), CHUNK.volume);
            assert!(!right, "these are all wrong");
            let msg = PassedOn { pg: PG, from, to, term, volume, session, epoch };
            rig.call(1, |g, now, actions| g.handle_passed_on(now, OsdId(3), &msg, actions));
        }
    }
    // The right session, in another term or from another OSD than the replica's.
    let (session, epoch, volume) = (SessionId(1), Epoch(1), CHUNK.volume);
    let term = rig.groups[&1].term();
    for (term, from) in [(Term(term.0 - 1), 3), (Term(term.0 + 1), 3), (term, 2), (term, 1)] {
        let msg = PassedOn { pg: PG, from: ReplicaId(from), to: ReplicaId(1), term, volume, session, epoch };
        rig.call(1, |g, now, actions| g.handle_passed_on(now, OsdId(3), &msg, actions));
    }
    rig.pump();
    assert_eq!((leader(&rig), rig.groups[&1].term()), (vec![1], term));
}

#[test]
fn silent_follower_gets_no_leadership_transfer() {
    for deaf in [true, false] {
        let mut rig = Rig::led(3, true);
        if deaf {
            rig.deaf = [3].into();
        }
        reign(&mut rig, 1200);
        let msg = word_of_3(&rig);
        rig.call(1, |g, now, actions| g.handle_passed_on(now, OsdId(3), &msg, actions));
        assert_eq!(rig.groups[&1].may_hand_over(), deaf, "only the ack refuses: it serves on, and its lease is whole");
    }
}

#[test]
fn failed_transfer_neither_blocks_nor_hastens_the_next() {
    for by_word in [true, false] {
        let mut rig = Rig::led(3, true);
        reign(&mut rig, 3000);
        rig.deaf = [3].into();
        let msg = word_of_3(&rig);
        rig.call(1, |g, now, actions| match by_word {
            true => g.handle_passed_on(now, OsdId(3), &msg, actions),
            false => g.handle_transfer(now, OsdId(3), actions),
        });
        assert!(!rig.groups[&1].may_hand_over(), "it hands over");
        // The message to the successor is lost, and the other follower sends nothing.
        for _ in 0..1400 {
            rig.now += 1;
            rig.call(1, |g, now, actions| g.poll(now, actions));
            if rig.groups[&1].renewal_item_for(rig.at(), OsdId(2)).is_some() || !rig.groups[&1].is_leader() {
                break;
            }
        }
        rig.deaf.clear();
        rig.list(1);
        rig.request(3, report(1));
        rig.pump();
        if by_word {
            assert_eq!(leader(&rig), [1], "the attempt is not repeated as fast as it fails");
            reign(&mut rig, 1000);
            rig.request(3, report(1));
            rig.pump();
        }
        assert_eq!(leader(&rig), [3]);
    }
}

#[test]
fn two_clients_with_opposite_cuts_move_a_pg_ever_more_rarely() {
    let mut rig = Rig::led(3, true);
    reign(&mut rig, 100);
    let mut moves = Vec::new();
    // One client reaches osd.1 alone, the other osd.3 alone; both report ten times a second for a minute.
    for _ in 0..600 {
        let led = leader(&rig);
        for (osd, about) in [(1, 3), (3, 1)] {
            rig.request(osd, report(about));
        }
        rig.pump();
        if leader(&rig) != led {
            moves.push(rig.now);
        }
        reign(&mut rig, 100);
    }
    let early = moves.iter().filter(|at| **at < 10_000).count();
    let late = moves.iter().filter(|at| **at > 30_000).count();
    assert!((3..=8).contains(&early) && late <= 3, "moved at {moves:?}");
}

#[test]
fn moves_long_ago_do_not_delay_the_next_one() {
    let mut rig = Rig::led(3, true);
    reign(&mut rig, 100);
    for n in 0..4 {
        rig.request(3, report(1));
        rig.pump();
        assert_eq!(leader(&rig), [3], "move {n}");
        // Meta brings it back, and it stays for a while.
        rig.call(3, |g, now, actions| g.handle_transfer(now, OsdId(1), actions));
        rig.pump();
        assert_eq!(leader(&rig), [1]);
        reign(&mut rig, 9000);
    }
    // Two moves in a row are no accident: the second one waits.
    for led in [3, 1, 3] {
        if leader(&rig) == [3] {
            rig.call(3, |g, now, actions| g.handle_transfer(now, OsdId(1), actions));
            rig.pump();
        }
        reign(&mut rig, 300);
        rig.request(3, report(1));
        rig.pump();
        assert_eq!(leader(&rig), [led]);
        reign(&mut rig, 1000);
    }
}
