//! A store that has lost records of its log.

use super::rig::{Rig, ms, pg};
use crate::Phase;
use types::control::OsdDown;
use types::map::{Member, PgMap};
use types::{Epoch, OsdId, ReplicaId};

#[test]
fn no_replica_is_made_on_a_store_whose_log_has_lost_records() {
    let mut rig = Rig::new(12, [16; 3]);
    rig.make_pgs(1);
    rig.lead_all(0, 1);
    (0..20).for_each(|n| rig.write(pg(0), 0, n, 8));
    rig.run(ms(200));
    rig.kill(2);
    // Headers and payloads of some batches in the middle.
    let log = 1 << 20;
    rig.spoil(2, log + (64 << 10)..log + (128 << 10));
    rig.start(2);
    rig.until(ms(5000), "it serves what it can", |rig| *rig.osd(2).phase() == Phase::Running);
    let member = |i: u64| Member { replica: ReplicaId(100 + i), osd: OsdId(i as u32 + 1) };
    let map = PgMap { pg: pg(7), lineage: 1, conf_epoch: Epoch(1), members: (0..3).map(member).collect() };
    (0..3).for_each(|i| rig.tell(i, OsdDown::EnsurePg(map.clone())));
    rig.run(ms(500));
    let holds = |rig: &mut Rig, i| rig.osd(i).reports_for_tools().iter().any(|r| r.pg == pg(7));
    assert_eq!([0, 1, 2].map(|i| holds(&mut rig, i)), [true, true, false]);
}
