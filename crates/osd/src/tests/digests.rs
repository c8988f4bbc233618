//! Answers to `pg verify`: each shows one applied state, at exactly one index.

use super::rig::{LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use types::tree::Role;
use types::{ChunkKey, GenerationId, Index};

const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 0 };

/// Asks OSD `i` and returns its answer.
pub(super) fn ask(rig: &mut Rig, i: usize, ask: ToolAsk) -> ToolAnswer {
    rig.osd(i).ask_tool(7, ask);
    rig.turn(i);
    let mut answers = Vec::new();
    rig.until(LONG, "an answer", |rig| {
        answers.append(&mut rig.osd(i).take_tool_answers());
        !answers.is_empty()
    });
    assert_eq!((answers.len(), answers[0].0), (1, 7), "one answer, under the number of its question");
    answers.remove(0).1
}

fn applied(rig: &mut Rig, i: usize) -> Index {
    match ask(rig, i, ToolAsk::Pg { pg: pg(0) }) {
        ToolAnswer::Pg { report, chunks, held, attached, snapshots: _ } => {
            assert_eq!(attached.iter().map(|attached| attached.volume).collect::<Vec<_>>(), [CHUNK.of_first().volume]);
            assert_eq!(chunks, [CHUNK.of_first()], "it holds one chunk");
            assert_eq!(held, [(CHUNK, Role::Head(CHUNK.of_first().volume))]);
            report.applied
        }
        other => panic!("{other:?}"),
    }
}

fn written() -> Rig {
    let mut rig = Rig::new(9, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 128);
    rig.write(pg(0), 0, 256, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig
}

#[test]
fn replicas_at_one_index_have_equal_digests_and_zeros_have_none() {
    let mut rig = written();
    let at = applied(&mut rig, 0);
    for make in
        [|at| ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at }, |at| ToolAsk::Table { pg: pg(0), chunk: CHUNK, at }]
    {
        let all: Vec<ToolAnswer> = (0..3).map(|i| ask(&mut rig, i, make(at))).collect();
        let ToolAnswer::Digest { at: cut, parts } = &all[0] else { panic!("{:?}", all[0]) };
        assert_eq!((*cut, parts.len()), (at, crate::PARTS));
        let holds: Vec<bool> = parts.iter().take(4).map(|part| *part != 0).collect();
        assert_eq!(holds, [true, false, true, false], "parts of 128 blocks");
        assert!(all.iter().all(|answer| *answer == all[0]), "{all:?}");
    }
}

#[test]
fn a_block_that_differs_makes_another_digest() {
    let mut rig = written();
    let digest = |rig: &mut Rig, i| {
        let at = applied(rig, i);
        ask(rig, i, ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at })
    };
    let ToolAnswer::Digest { parts: before, .. } = digest(&mut rig, 1) else { panic!("it can be read") };
    rig.write(pg(0), 0, 257, 1);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    let ToolAnswer::Digest { parts: after, .. } = digest(&mut rig, 1) else { panic!("it can be read") };
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
}

#[test]
fn an_index_that_has_passed_or_does_not_come_is_said_to_be_so() {
    let mut rig = written();
    let at = applied(&mut rig, 1);
    let digest = |index| ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at: Index(index) };
    assert_eq!(ask(&mut rig, 1, digest(at.0 - 1)), ToolAnswer::Passed { applied: at });
    let begun = rig.world.now();
    assert_eq!(ask(&mut rig, 1, digest(at.0 + 1)), ToolAnswer::Late { applied: at });
    assert!(rig.world.now() >= begun + ms(5000), "it is given time");
    // A digest of a future index is computed the moment it is applied, although more entries follow at once.
    rig.osd(1).ask_tool(8, digest(at.0 + 1));
    (0..3).for_each(|n| rig.write(pg(0), 0, 300 + n, 1));
    let mut answers = Vec::new();
    rig.until(LONG, "an answer", |rig| {
        answers.append(&mut rig.osd(1).take_tool_answers());
        !answers.is_empty()
    });
    assert!(matches!(answers[0], (8, ToolAnswer::Digest { at: cut, .. }) if cut.0 == at.0 + 1), "{answers:?}");
    assert_eq!(ask(&mut rig, 1, ToolAsk::Pg { pg: pg(9) }), ToolAnswer::NoReplica);
}

#[test]
fn digests_of_one_index_keep_to_the_limit_of_those_that_run() {
    let mut rig = written();
    let at = Index(applied(&mut rig, 1).0 + 1);
    let max = crate::OsdTuning::default().digests_max;
    (0..max as u64 + 3).for_each(|id| rig.osd(1).ask_tool(id, ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at }));
    rig.write(pg(0), 0, 300, 1);
    let mut answers = Vec::new();
    rig.until(LONG, "all answers", |rig| {
        answers.append(&mut rig.osd(1).take_tool_answers());
        answers.len() == max + 3
    });
    assert_eq!(answers.iter().filter(|(_, answer)| *answer == ToolAnswer::Busy).count(), 3, "{answers:?}");
}

#[test]
fn digest_queries_beyond_the_limit_are_answered_busy() {
    let mut rig = written();
    let at = Index(applied(&mut rig, 1).0 + 50);
    for id in 0..crate::OsdTuning::default().digests_waiting_max as u64 + 3 {
        rig.osd(1).ask_tool(id, ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at });
    }
    let answers = rig.osd(1).take_tool_answers();
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [16, 17, 18]);
    assert!(answers.iter().all(|(_, answer)| *answer == ToolAnswer::Busy));
    rig.osd(1).stop_serving("the store failed".to_owned());
    let failed = rig.osd(1).take_tool_answers();
    assert_eq!(
        failed.len(),
        crate::OsdTuning::default().digests_waiting_max,
        "no question waits for a store that has stopped"
    );
}
