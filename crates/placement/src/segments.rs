//! Chooses the PG for a new segment.
//!
//! Segments of one volume stay with one leading OSD while it leads less than its fair share. An I/O batch of a client then
//! goes to one OSD, which costs a third of the rounds of a spread layout.

use std::collections::BTreeMap;
use types::{OsdId, PgId};

/// A PG that could take a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgChoice {
    pub pg: PgId,
    /// Current leader, or the preferred one when the PG has none.
    pub leader: OsdId,
    /// Segments of all volumes in it.
    pub segments: u32,
    /// Segments of the requesting volume in it.
    pub segments_of_volume: u32,
}

/// An OSD is never above its fair load with fewer led segments than this: small clusters keep a volume together.
pub const SEGMENTS_TOGETHER_MIN: u64 = 8;

/// Chooses a PG for one more segment of a volume; `None` when there is no PG.
///
/// The OSD that leads most of the volume's segments is kept while the number of segments that it leads is below its fair
/// load (5/4 of the average, at least [`SEGMENTS_TOGETHER_MIN`]). Otherwise the OSD that leads fewest is chosen. Of that
/// OSD's PGs the least loaded one is chosen; ties go to the lowest id.
pub fn choose_pg(pgs: &[PgChoice]) -> Option<PgId> {
    let mut led: BTreeMap<OsdId, (u64, u64)> = BTreeMap::new();
    for pg in pgs {
        let (all, own) = led.entry(pg.leader).or_default();
        *all += u64::from(pg.segments);
        *own += u64::from(pg.segments_of_volume);
    }
    let total: u64 = led.values().map(|(all, _)| all).sum();
    let fair = (total * 5).div_ceil(4 * led.len().max(1) as u64).max(SEGMENTS_TOGETHER_MIN);
    let home = led
        .iter()
        .filter(|(_, (_, own))| *own > 0)
        .max_by_key(|(osd, (_, own))| (*own, std::cmp::Reverse(**osd)))
        .filter(|(_, (all, _))| *all < fair);
    let least = || led.iter().min_by_key(|(osd, (all, _))| (*all, **osd));
    let (leader, _) = home.or_else(least)?;
    let pick = pgs.iter().filter(|pg| pg.leader == *leader).min_by_key(|pg| (pg.segments, pg.pg));
    assert!(pick.is_some(), "{leader} leads no PG although it was counted");
    pick.map(|pg| pg.pg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    fn cluster(pg_count: u32, osds: u32) -> Vec<PgChoice> {
        (0..pg_count)
            .map(|n| PgChoice {
                pg: PgId { pool: PoolId(1), n },
                leader: OsdId(1 + n % osds),
                segments: 0,
                segments_of_volume: 0,
            })
            .collect()
    }

    fn add(pgs: &mut [PgChoice]) -> OsdId {
        let pg = choose_pg(pgs).expect("there are PGs");
        let slot = pgs.iter_mut().find(|p| p.pg == pg).expect("chosen from these");
        slot.segments += 1;
        slot.segments_of_volume += 1;
        slot.leader
    }

    #[test]
    fn segments_of_a_small_volume_share_one_leader() {
        let mut pgs = cluster(12, 3);
        let leaders: Vec<_> = (0..8).map(|_| add(&mut pgs)).collect();
        assert!(leaders.iter().all(|l| *l == leaders[0]), "{leaders:?}");
        assert!(pgs.iter().all(|p| p.segments <= 2), "the PGs of one leader share the load: {pgs:?}");
    }

    #[test]
    fn a_large_volume_spreads_over_all_leaders() {
        let mut pgs = cluster(12, 3);
        for _ in 0..300 {
            add(&mut pgs);
        }
        let mut led = BTreeMap::<OsdId, u32>::new();
        for p in &pgs {
            *led.entry(p.leader).or_default() += p.segments;
        }
        let (min, max) = (led.values().min().copied().unwrap_or(0), led.values().max().copied().unwrap_or(0));
        assert!(max * 4 <= min * 6, "{led:?}");
    }

    #[test]
    fn many_small_volumes_start_at_different_leaders() {
        let mut pgs = cluster(12, 3);
        let mut led = BTreeMap::<OsdId, u32>::new();
        for _ in 0..30 {
            pgs.iter_mut().for_each(|p| p.segments_of_volume = 0);
            for _ in 0..4 {
                *led.entry(add(&mut pgs)).or_default() += 1;
            }
        }
        assert!(led.values().all(|n| (32..=48).contains(n)), "{led:?}");
    }

    #[test]
    fn no_pg_means_no_choice() {
        assert_eq!(choose_pg(&[]), None);
    }
}
