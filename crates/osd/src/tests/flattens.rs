//! Flattens: the leader copies, and all members have the same afterwards, whatever each has at home.

use super::digests::ask;
use super::rig::{LONG, Rig, ms, pg};
use super::snapshots::{HEAD, SNAPSHOT, VOLUME, cut, digests, key, order};
use crate::{ToolAnswer, ToolAsk};
use types::control::{Attach, Base, OsdDown};
use types::cut::SnapshotOrder;
use types::writers::Writers;
use types::{Epoch, GenerationId, ReplicaId, SectorRange, SessionId, VolumeId};

const CLONE: VolumeId = VolumeId(13);

/// Three replicas of a volume that stands on a removed snapshot, which its clone needs, too.
fn on_a_removed_snapshot(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    rig.write(pg(0), 0, 0, 64);
    cut(&mut rig);
    let head = GenerationId::first_of(CLONE);
    let base = Some(Base { volume: VOLUME, snapshot: SNAPSHOT, to: head });
    let (session, epoch) = (SessionId(0), Epoch(1));
    let attach = Attach {
        order: 50,
        volume: CLONE,
        writers: Writers::one(session, epoch),
        epoch,
        chunk_count: 64,
        len_epoch: 0,
        head,
        base,
    };
    rig.tell(0, OsdDown::Attach { pg: pg(0), attach });
    order(&mut rig, SnapshotOrder::Remove { volume: VOLUME, snapshot: SNAPSHOT });
    rig
}

fn is_flat(rig: &mut Rig, i: usize, head: GenerationId) -> bool {
    let tree = rig.osd(i).engine.tree(ReplicaId(i as u64 + 1)).expect("a replica");
    tree.get(head).expect("the head of a volume").parent.is_none()
}

/// Repeats the order, as meta does, until the leader says that the head stands on nothing.
fn flatten(rig: &mut Rig, volume: VolumeId, head: GenerationId) {
    for _ in 0..50 {
        let order = SnapshotOrder::Flatten { volume };
        rig.tell(0, OsdDown::Snapshots { pg: pg(0), order });
        rig.run(ms(500));
        if is_flat(rig, 0, head) {
            return;
        }
    }
    panic!("the flatten of {volume} does not end");
}

/// A round of the leader completes a block of which the head has a part. A member that was away takes the part and the detachment from the
/// log, and completes nothing.
#[test]
fn member_that_has_a_block_in_part_shows_all_of_it_after_the_flatten() {
    let mut rig = on_a_removed_snapshot(31);
    rig.run(ms(12_000));
    rig.kill(2);
    rig.submit_sectors(pg(0), 0, SectorRange::new(3, 2));
    // The round comes when the PG was idle for some time.
    rig.run(ms(12_000));
    flatten(&mut rig, VOLUME, HEAD);
    flatten(&mut rig, CLONE, GenerationId::first_of(CLONE));
    rig.start(2);
    rig.until(LONG, "all have it", |rig| rig.is_whole(pg(0)));
    rig.run(ms(50));
    assert!(!rig.is_streamed(pg(0)), "the log was enough");
    for (volume, head) in [(VOLUME, HEAD), (CLONE, GenerationId::first_of(CLONE))] {
        assert!(rig.all().all(|i| is_flat(&mut rig, i, head)), "{volume}");
        let ToolAnswer::Pg { report, .. } = ask(&mut rig, 0, ToolAsk::Pg { pg: pg(0) }) else { panic!("no page") };
        let all = digests(&mut rig, key(head.0, 0), report.applied);
        let first = &all[0];
        assert!(matches!(first, ToolAnswer::Digest { .. }) && all.iter().all(|one| one == first), "{volume}: {all:?}");
    }
}

/// Each block that the parent has is the head's own on each member, and nothing of the parent is left when both volumes are flat.
#[test]
fn parent_that_no_volume_shows_leaves_the_members() {
    let mut rig = on_a_removed_snapshot(32);
    flatten(&mut rig, CLONE, GenerationId::first_of(CLONE));
    rig.run(ms(20_000));
    for i in 0..3 {
        let held = rig.osd(i).engine.chunks_for_tools(ReplicaId(i as u64 + 1));
        let mut of: Vec<_> = held.iter().map(|held| held.chunk).collect();
        of.sort_unstable();
        assert_eq!(
            of,
            [key(12, 0), key(13, 0)],
            "OSD {i}: the removed snapshot has one child left, and is merged into it"
        );
    }
}
