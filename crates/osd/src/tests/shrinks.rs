//! Shrinks: all members lose what is behind the end, also one that is away, and what comes back later reads as zeros.

use super::digests::ask;
use super::rig::{EPOCH, LONG, Rig, SESSION, ms, pg};
use super::snapshots::{HEAD, SNAPSHOT, VOLUME, cut, digests, key, order};
use crate::{ToolAnswer, ToolAsk};
use types::control::{Attach, OsdDown, OsdUp};
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder, Tail, TailStep};
use types::tree::Role;
use types::writers::Writers;
use types::{ChunkKey, GenerationId, ReplicaId, SectorRange};

/// Commits an attach record with another length.
fn attach(rig: &mut Rig, order: u64, len_epoch: u32, chunk_count: u32) {
    let leader = rig.leader(pg(0));
    let (volume, head) = (VOLUME, GenerationId::first_of(VOLUME));
    let attach = Attach {
        order,
        volume,
        writers: Writers::one(SESSION, EPOCH),
        epoch: EPOCH,
        chunk_count,
        len_epoch,
        head,
        base: None,
    };
    rig.tell(leader, OsdDown::Attach { pg: pg(0), attach });
    rig.run(ms(200));
}

/// Gives an order to the leader; returns its answer.
fn answer(rig: &mut Rig, order: SnapshotOrder) -> SnapshotAnswer {
    let leader = rig.leader(pg(0));
    rig.tell(leader, OsdDown::Connected);
    rig.run(ms(1));
    drop(rig.osd(leader).take_reports());
    rig.tell(leader, OsdDown::Snapshots { pg: pg(0), order });
    rig.run(ms(200));
    let reports = rig.osd(leader).take_reports();
    let mut answers = reports.into_iter().filter_map(|up| match up {
        OsdUp::Snapshots { answer, .. } => Some(answer),
        _ => None,
    });
    answers.next_back().expect("an answer")
}

/// Repeats the search, as meta does, while the leader of an idle PG has no lease.
fn find(rig: &mut Rig, from_chunk: u32, part: Option<(u32, SectorRange)>) -> Result<TailStep, CutRefusal> {
    let tail = Tail { from_chunk, parts: part.into_iter().collect() };
    for _ in 0..20 {
        match answer(rig, SnapshotOrder::Find { volume: VOLUME, len_epoch: 9, tail: tail.clone() }) {
            SnapshotAnswer::Found { result: Err(CutRefusal::Busy), .. } => {}
            SnapshotAnswer::Found { result, .. } => return result,
            other => panic!("{other:?}"),
        }
    }
    Err(CutRefusal::Busy)
}

/// Whether a member shows data in these sectors of a chunk.
fn shows(rig: &mut Rig, i: usize, chunk: ChunkKey, range: SectorRange) -> bool {
    let replica = ReplicaId(i as u64 + 1);
    rig.osd(i).engine.extents(replica, chunk, range).iter().any(|(_, data)| *data)
}

#[test]
fn data_behind_a_new_end_is_found_wherever_it_comes_from() {
    let mut rig = Rig::new(41, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 5, 10, 4);
    assert_eq!(find(&mut rig, 5, None), Ok(TailStep::Data { chunk: 5 }));
    assert_eq!(find(&mut rig, 6, None), Ok(TailStep::Empty));
    assert_eq!(find(&mut rig, 6, Some((5, SectorRange::new(14 * 8, 8)))), Ok(TailStep::Empty));
    assert_eq!(find(&mut rig, 6, Some((5, SectorRange::new(12 * 8, 800)))), Ok(TailStep::Data { chunk: 5 }));
    // At home, and below a snapshot.
    rig.run(ms(12_000));
    cut(&mut rig);
    assert_eq!(find(&mut rig, 3, None), Ok(TailStep::Data { chunk: 5 }));
    let follower = (rig.leader(pg(0)) + 1) % 3;
    let tail = Tail { from_chunk: 3, parts: Vec::new().into() };
    rig.osd(follower).take_reports();
    rig.tell(
        follower,
        OsdDown::Snapshots { pg: pg(0), order: SnapshotOrder::Find { volume: VOLUME, len_epoch: 9, tail } },
    );
    rig.run(ms(20));
    let refused = |up: &OsdUp| {
        matches!(
            up,
            OsdUp::Snapshots { answer: SnapshotAnswer::Found { result: Err(CutRefusal::NotLeader { .. }), .. }, .. }
        )
    };
    assert!(rig.osd(follower).take_reports().iter().any(refused));
}

/// One member is away during the shrink, and takes it from the log. The snapshot keeps what the head loses.
#[test]
fn shorter_volume_that_grows_again_shows_zeros_on_every_member() {
    let mut rig = Rig::new(42, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    for chunk in [1, 2, 3] {
        rig.write(pg(0), chunk, 0, 128);
    }
    cut(&mut rig);
    rig.write(pg(0), 2, 64, 8);
    rig.write(pg(0), 3, 0, 8);
    rig.run(ms(12_000));
    rig.kill(2);
    // The volume ends in chunk 1, behind its block 64.
    attach(&mut rig, 50, 2, 2);
    let range = SectorRange::new(64 * 8, 32768 - 64 * 8);
    let wipe = |len_epoch| SnapshotOrder::Wipe { volume: VOLUME, len_epoch, chunk: 1, range };
    let result = |answer| match answer {
        SnapshotAnswer::Wiped { result, .. } => result,
        other => panic!("{other:?}"),
    };
    assert_eq!(result(answer(&mut rig, wipe(3))), Err(CutRefusal::Absent), "the PG has not this length yet");
    assert_eq!(result(answer(&mut rig, wipe(2))), Ok(()));
    attach(&mut rig, 51, 3, 64);
    assert_eq!(
        result(answer(&mut rig, wipe(2))),
        Err(CutRefusal::LaterLength { len_epoch: 3, chunk_count: 64 }),
        "a late order zeroes nothing"
    );
    rig.run(ms(12_000));
    rig.start(2);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(12_000));
    let at = match ask(&mut rig, 0, ToolAsk::Pg { pg: pg(0) }) {
        ToolAnswer::Pg { report, held, .. } => {
            assert!(held.iter().all(|(chunk, role)| *role != Role::Head(VOLUME) || chunk.index < 2), "{held:?}");
            report.applied
        }
        other => panic!("{other:?}"),
    };
    for i in rig.all() {
        for index in [2, 3] {
            assert!(!shows(&mut rig, i, key(HEAD.0, index), SectorRange::CHUNK), "OSD {i} shows chunk {index}");
            assert!(shows(&mut rig, i, key(1, index), SectorRange::CHUNK), "OSD {i} lost chunk {index} of {SNAPSHOT}");
        }
        assert!(shows(&mut rig, i, key(HEAD.0, 1), SectorRange::new(0, 64 * 8)), "what is before the end stays");
        assert!(!shows(&mut rig, i, key(HEAD.0, 1), range));
    }
    for chunk in [key(1, 1), key(1, 3), key(HEAD.0, 1)] {
        let all = digests(&mut rig, chunk, at);
        assert!(
            matches!(all[0], ToolAnswer::Digest { .. }) && all.iter().all(|one| *one == all[0]),
            "{chunk}: {all:?}"
        );
    }
    // A write to a chunk that came back is there.
    rig.skip_to(pg(0), 40);
    rig.write(pg(0), 3, 4, 1);
    rig.run(ms(200));
    assert!(shows(&mut rig, 0, key(HEAD.0, 3), SectorRange::new(32, 8)));
    order(&mut rig, SnapshotOrder::Remove { volume: VOLUME, snapshot: SNAPSHOT });
    rig.run(ms(20_000));
    for i in rig.all() {
        assert!(!shows(&mut rig, i, key(HEAD.0, 2), SectorRange::CHUNK), "OSD {i}: the merge brings nothing back");
        assert!(shows(&mut rig, i, key(HEAD.0, 3), SectorRange::new(32, 8)));
        assert!(shows(&mut rig, i, key(HEAD.0, 1), SectorRange::new(0, 64 * 8)));
        assert!(!shows(&mut rig, i, key(HEAD.0, 1), range));
    }
}
