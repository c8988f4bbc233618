//! The log shared between PGs (R9): the payload that one PG may hold uncommitted here and at its other members.
//!
//! Input: the size of the log, the number of PGs, and the shares that other OSDs report. Output: limits for the groups.
//!
//! Invariant: all PGs of an OSD together hold at most a quarter of its log uncommitted, unless the least share is more.

use crate::node::Osd;
use std::collections::BTreeMap;
use types::OsdId;
use types::limits::INFLIGHT_PAYLOAD_MAX;

/// Bytes that one PG may hold uncommitted, here and on other OSDs.
pub(crate) struct LogShares {
    min: u64,
    own: u64,
    /// Shares that other OSDs last reported.
    by_osd: BTreeMap<OsdId, u64>,
}

impl LogShares {
    pub fn new(min: u64) -> LogShares {
        LogShares { min, own: 0, by_osd: BTreeMap::new() }
    }

    /// Divides a quarter of the log between the PGs. True when the share has changed.
    fn divide(&mut self, log_bytes: u64, pgs: usize) -> bool {
        let share = log_bytes / 4 / (pgs as u64).max(1);
        let own = share.clamp(self.min, INFLIGHT_PAYLOAD_MAX as u64);
        std::mem::replace(&mut self.own, own) != own
    }

    pub fn own(&self) -> u64 {
        self.own.max(self.min)
    }

    /// Returns the own share in whole MiB, as acknowledgements of renewals report it.
    pub fn mib(&self) -> u8 {
        u8::try_from(self.own >> 20).unwrap_or(u8::MAX)
    }

    /// Notes another OSD's share. True when it has changed.
    fn hear(&mut self, osd: OsdId, mib: u8) -> bool {
        let bytes = u64::from(mib) << 20;
        mib != 0 && self.by_osd.insert(osd, bytes) != Some(bytes)
    }

    /// Returns the least share of these OSDs: a follower without space for an entry drops it, and gets it again only much later.
    fn least(&self, osds: impl Iterator<Item = OsdId>) -> u64 {
        osds.filter_map(|osd| self.by_osd.get(&osd).copied()).min().unwrap_or(self.own())
    }
}

impl Osd {
    /// Divides the log between the PGs that are here now.
    pub(crate) fn share_log(&mut self) {
        if self.log_shares.divide(self.engine.log_bytes(), self.pgs.len()) {
            self.pgs.keys().into_iter().for_each(|key| self.tell_log_share(key));
        }
    }

    /// Notes another OSD's share, for the PGs that have a member there.
    pub(crate) fn hear_log_share(&mut self, osd: OsdId, mib: u8) {
        if !self.log_shares.hear(osd, mib) {
            return;
        }
        for key in self.pgs.keys() {
            if self.pgs.get(key).has_member_on(osd) {
                self.tell_log_share(key);
            }
        }
    }

    pub(crate) fn tell_log_share(&mut self, key: usize) {
        let own = self.log_shares.own();
        let least = self.log_shares.least(self.pgs.get(key).others().map(|m| m.osd));
        if let Some(group) = self.pgs.group(key) {
            group.set_uncommitted_max(own, least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_part_of_a_quarter_and_the_least_one_counts() {
        let mut shares = LogShares::new(1 << 20);
        assert!(shares.divide(64 << 20, 4) && !shares.divide(64 << 20, 4));
        assert_eq!((shares.own(), shares.mib()), (4 << 20, 4));
        assert!(shares.divide(64 << 20, 1000));
        assert_eq!(shares.own(), 1 << 20, "a PG has the least share");
        assert!(shares.divide(64 << 20, 4) && shares.hear(OsdId(2), 2) && !shares.hear(OsdId(2), 2));
        assert!(!shares.hear(OsdId(3), 0), "it has said nothing");
        let least = |osds: &[u32]| shares.least(osds.iter().map(|n| OsdId(*n)));
        assert_eq!([least(&[]), least(&[3]), least(&[2, 3])], [4 << 20, 4 << 20, 2 << 20]);
    }
}
