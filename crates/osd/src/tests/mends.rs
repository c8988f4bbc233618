//! Blocks of home that cannot be read, and how they become whole again.

use super::rig::{LONG, Rig, ms, pg};
use crate::{ToolAnswer, ToolAsk};
use std::time::Duration;
use types::{ChunkKey, VolumeId};

const CHUNK: ChunkKey = ChunkKey { volume: VolumeId(1), index: 0 };

fn digest(rig: &mut Rig, i: usize) -> ToolAnswer {
    let report = rig.osd(i).reports_for_tools().remove(0);
    rig.osd(i).ask_tool(7, ToolAsk::Digest { pg: pg(0), chunk: CHUNK, at: report.applied });
    rig.turn(i);
    let mut answers = Vec::new();
    rig.until(LONG, "an answer", |rig| {
        answers.append(&mut rig.osd(i).take_tool_answers());
        !answers.is_empty()
    });
    answers.remove(0).1
}

#[test]
fn a_device_that_fails_one_read_needs_nobody_to_mend_the_block() {
    let mut rig = Rig::new(11, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 8);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    // It goes home, so that a digest reads the device.
    rig.run(Duration::from_secs(15));
    let before = digest(&mut rig, 2);
    assert!(matches!(before, ToolAnswer::Digest { .. }), "{before:?}");
    (0..2).for_each(|i| rig.kill(i));
    rig.fail_reads(2, true);
    assert_ne!(digest(&mut rig, 2), before, "it cannot be read");
    assert!(!rig.osd(2).bad_blocks().is_empty());
    rig.fail_reads(2, false);
    rig.until(ms(1000), "it is read again", |rig| rig.osd(2).bad_blocks().is_empty());
    assert_eq!(digest(&mut rig, 2), before);
}
