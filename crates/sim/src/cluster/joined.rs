//! OSDs that join a running cluster, each in the place of another one (`osd replace`, ADR 0018).
//!
//! Invariant: OSDs join one after the other, so the n-th machine has the n-th id.

use super::{Cluster, OsdNode};
use control::admin::{AdminAsk, OsdRegister};
use types::OsdId;

impl Cluster {
    /// Adds a machine with an empty device, which no cluster knows yet. Returns its number.
    pub fn add_osd(&mut self) -> usize {
        let i = self.osds.len();
        let mut rng = self.rng.fork();
        self.osds.push(OsdNode::new(&self.world, i as u32 + 1, &self.options, &mut rng));
        self.watch_log(i);
        i
    }

    /// Registers the i-th OSD, which is to take over another one. Meta may die before it commits that.
    pub fn register_in_place_of(&mut self, i: usize, old: OsdId) {
        let (id, uuid) = (self.osds[i].id, self.osds[i].uuid);
        let (host, capacity_bytes) = (format!("host{}", id.0), self.options.device_bytes);
        let (rack, zone) = (String::new(), String::new());
        let ask =
            OsdRegister { osd: None, uuid, host, rack, zone, capacity_bytes, device_class: None, replaces: Some(old) };
        self.admin(AdminAsk::OsdRegister(ask));
    }

    /// Whether meta has recorded the i-th OSD.
    ///
    /// # Panics
    /// When it was given another id than the next one.
    pub fn is_registered(&self, i: usize) -> bool {
        let uuid = self.osds[i].uuid;
        let found = self.meta.records().and_then(|records| records.osds.values().find(|osd| osd.uuid == uuid));
        found.is_some_and(|osd| {
            assert_eq!(osd.id, self.osds[i].id, "ids are given out in the order of the requests");
            true
        })
    }

    /// Formats the registered device of the i-th OSD, and starts it. From now on the other one must become empty.
    pub fn start_in_place_of(&mut self, i: usize, old: OsdId) {
        self.format_device(i);
        self.replaced.insert(old);
        self.start_osd(i);
    }

    /// Whether no PG has a member on an OSD that another one has taken over.
    pub fn replaced_are_empty(&self) -> bool {
        let stays = |osd: OsdId| self.replaced.contains(&osd);
        self.meta.records().is_some_and(|r| r.pgs.values().all(|pg| pg.everyone().all(|m| !stays(m.osd))))
    }
}
