//! Chooses the PGs for a new segment.
//!
//! Segments of one volume stay with one leading OSD while it leads less than its fair share. An I/O batch of a client then
//! goes to one OSD, which costs a third of the rounds of a spread layout. A striped volume asks for the opposite: the columns
//! of a segment go to different leaders, because its requests are to be served in parallel.

use std::collections::BTreeMap;
use types::units::CHUNKS_PER_SEGMENT;
use types::{OsdId, PgId};

/// A PG that could take a segment or a column of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgChoice {
    pub pg: PgId,
    /// Current leader, or the preferred one when the PG has none.
    pub leader: OsdId,
    /// Whether the PG serves and has space; others are taken only when there are too few such PGs.
    pub good: bool,
    /// Chunks of allocated segments of all volumes in it.
    pub chunks: u32,
    /// Chunks of allocated segments of the requesting volume in it.
    pub chunks_of_volume: u32,
}

/// An OSD is never above its fair load with fewer led segments than this: small clusters keep a volume together.
pub const SEGMENTS_TOGETHER_MIN: u64 = 8;

/// Chooses a PG for one more segment of a volume; `None` when there is no PG.
///
/// The OSD that leads most of the volume's chunks is kept while the number of chunks that it leads is below its fair
/// load (5/4 of the average, at least [`SEGMENTS_TOGETHER_MIN`] segments). Otherwise the OSD that leads fewest is chosen. Of that
/// OSD's PGs the least loaded one is chosen; ties go to the lowest id.
pub fn choose_pg(pgs: &[PgChoice]) -> Option<PgId> {
    let any_good = pgs.iter().any(|pg| pg.good);
    let choices = || pgs.iter().filter(move |pg| pg.good || !any_good);
    let mut led: BTreeMap<OsdId, (u64, u64)> = BTreeMap::new();
    for pg in choices() {
        let (all, own) = led.entry(pg.leader).or_default();
        *all += u64::from(pg.chunks);
        *own += u64::from(pg.chunks_of_volume);
    }
    let total: u64 = led.values().map(|(all, _)| all).sum();
    let together_min = SEGMENTS_TOGETHER_MIN * u64::from(CHUNKS_PER_SEGMENT);
    let fair = (total * 5).div_ceil(4 * led.len().max(1) as u64).max(together_min);
    let home = led
        .iter()
        .filter(|(_, (_, own))| *own > 0)
        .max_by_key(|(osd, (_, own))| (*own, std::cmp::Reverse(**osd)))
        .filter(|(_, (all, _))| *all < fair);
    let least = || led.iter().min_by_key(|(osd, (all, _))| (*all, **osd));
    let (leader, _) = home.or_else(least)?;
    let pick = choices().filter(|pg| pg.leader == *leader).min_by_key(|pg| (pg.chunks, pg.pg));
    assert!(pick.is_some(), "{leader} leads no PG although it was counted");
    pick.map(|pg| pg.pg)
}

/// Chooses a PG for each column of a segment that has none yet: `columns` holds the PGs that are fixed. The result has a PG
/// for each column, and no PG twice but for fixed ones; `None` when there are too few PGs.
///
/// Each column goes to a leader that leads fewest columns of this segment, among these to the one that leads fewest chunks, and
/// there to the least loaded PG; ties go to the lowest id.
pub fn choose_columns(pgs: &[PgChoice], columns: &[Option<PgId>]) -> Option<Vec<PgId>> {
    let mut led: BTreeMap<OsdId, (u32, u64)> = BTreeMap::new();
    let mut left: Vec<PgChoice> = Vec::with_capacity(pgs.len());
    for pg in pgs {
        let (of_segment, all) = led.entry(pg.leader).or_default();
        *all += u64::from(pg.chunks);
        match columns.contains(&Some(pg.pg)) {
            true => *of_segment += 1,
            false => left.push(*pg),
        }
    }
    let mut chosen = Vec::with_capacity(columns.len());
    for column in columns {
        if let Some(fixed) = column {
            chosen.push(*fixed);
            continue;
        }
        let best = left.iter().enumerate().min_by_key(|(_, pg)| {
            let (of_segment, all) = led[&pg.leader];
            (!pg.good, of_segment, all, pg.leader, pg.chunks, pg.pg)
        });
        let pick = left.swap_remove(best?.0);
        led.entry(pick.leader).or_default().0 += 1;
        chosen.push(pick.pg);
    }
    Some(chosen)
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
                good: true,
                chunks: 0,
                chunks_of_volume: 0,
            })
            .collect()
    }

    fn add(pgs: &mut [PgChoice]) -> OsdId {
        let pg = choose_pg(pgs).expect("there are PGs");
        let slot = pgs.iter_mut().find(|p| p.pg == pg).expect("chosen from these");
        slot.chunks += CHUNKS_PER_SEGMENT;
        slot.chunks_of_volume += CHUNKS_PER_SEGMENT;
        slot.leader
    }

    #[test]
    fn segments_of_a_small_volume_share_one_leader() {
        let mut pgs = cluster(12, 3);
        let leaders: Vec<_> = (0..8).map(|_| add(&mut pgs)).collect();
        assert!(leaders.iter().all(|l| *l == leaders[0]), "{leaders:?}");
        assert!(
            pgs.iter().all(|p| p.chunks <= 2 * CHUNKS_PER_SEGMENT),
            "the PGs of one leader share the load: {pgs:?}"
        );
    }

    #[test]
    fn a_large_volume_spreads_over_all_leaders() {
        let mut pgs = cluster(12, 3);
        for _ in 0..300 {
            add(&mut pgs);
        }
        let mut led = BTreeMap::<OsdId, u32>::new();
        for p in &pgs {
            *led.entry(p.leader).or_default() += p.chunks;
        }
        let (min, max) = (led.values().min().copied().unwrap_or(0), led.values().max().copied().unwrap_or(0));
        assert!(max * 4 <= min * 6, "{led:?}");
    }

    #[test]
    fn many_small_volumes_start_at_different_leaders() {
        let mut pgs = cluster(12, 3);
        let mut led = BTreeMap::<OsdId, u32>::new();
        for _ in 0..30 {
            pgs.iter_mut().for_each(|p| p.chunks_of_volume = 0);
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

    #[test]
    fn columns_lie_in_distinct_pgs_under_different_leaders() {
        let mut pgs = cluster(12, 3);
        let leader = |pgs: &[PgChoice], pg: PgId| pgs.iter().find(|p| p.pg == pg).expect("one of these").leader;
        for _ in 0..9 {
            let columns = choose_columns(&pgs, &[None; 4]).expect("enough PGs");
            let mut led = BTreeMap::<OsdId, u32>::new();
            columns.iter().for_each(|pg| *led.entry(leader(&pgs, *pg)).or_default() += 1);
            assert!(led.len() == 3 && led.values().all(|n| *n <= 2), "{columns:?}");
            for pg in &mut pgs {
                let count = columns.iter().filter(|column| **column == pg.pg).count() as u32;
                assert!(count <= 1, "{columns:?}");
                pg.chunks += count * CHUNKS_PER_SEGMENT / 4;
            }
        }
        let (min, max) = (pgs.iter().map(|p| p.chunks).min(), pgs.iter().map(|p| p.chunks).max());
        assert_eq!((min, max), (Some(48), Some(48)), "nine segments of four columns over twelve PGs");
    }

    #[test]
    fn columns_go_to_pgs_that_serve_first_and_beside_fixed_ones() {
        let mut pgs = cluster(4, 2);
        pgs[0].good = false;
        let some = |n: usize| Some(pgs[n].pg);
        let three = choose_columns(&pgs, &[None, some(1), None]).expect("enough PGs");
        assert_eq!(three, [pgs[2].pg, pgs[1].pg, pgs[3].pg]);
        let four = choose_columns(&pgs, &[None; 4]).expect("enough PGs");
        assert_eq!(four.last(), Some(&pgs[0].pg), "the PG that does not serve comes last");
        assert_eq!(choose_columns(&pgs, &[None; 5]), None);
    }

    #[test]
    fn whole_segment_avoids_pgs_that_do_not_serve() {
        let mut pgs = cluster(2, 2);
        pgs[0].good = false;
        assert_eq!(choose_pg(&pgs), Some(pgs[1].pg));
        pgs[1].good = false;
        assert_eq!(choose_pg(&pgs), Some(pgs[0].pg), "without a better one");
    }
}
