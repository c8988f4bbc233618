//! Chooses leader transfers, so that every OSD leads its share of the PGs.
//!
//! Input: every PG with a leader, and the members that could lead it now. Output: transfers, those that gain most first.
//!
//! Invariant: each transfer lowers (the squares of the counts per pool, the squares of the counts of all pools, the PGs
//! away from their preferred member), compared in this order. So a series of transfers ends, and none is ever undone by the next.

use std::collections::BTreeMap;
use types::{OsdId, PgId};

/// A PG with a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedPg {
    pub pg: PgId,
    pub leader: OsdId,
    /// The member that placement chose to lead it.
    pub preferred: OsdId,
    /// Members that could take the lead now. A PG without targets counts as led and is not transferred.
    pub targets: Vec<OsdId>,
}

/// The PG, its leader, and the OSD that should lead it.
pub type LeaderMove = (PgId, OsdId, OsdId);

#[derive(Default)]
struct Counts {
    all: BTreeMap<OsdId, i64>,
    pool: BTreeMap<(u32, OsdId), i64>,
}

impl Counts {
    fn add(&mut self, pg: PgId, osd: OsdId, by: i64) {
        *self.all.entry(osd).or_default() += by;
        *self.pool.entry((pg.pool.0, osd)).or_default() += by;
    }

    /// Returns the gain of a transfer; `None` when it gains nothing.
    fn gain(&self, pg: &LedPg, to: OsdId) -> Option<(i64, i64, bool)> {
        let all = |osd: OsdId| self.all.get(&osd).copied().unwrap_or(0);
        let pool = |osd: OsdId| self.pool.get(&(pg.pg.pool.0, osd)).copied().unwrap_or(0);
        let (in_pool, in_all) = (pool(pg.leader) - pool(to), all(pg.leader) - all(to));
        let home = to == pg.preferred;
        let gains = in_pool >= 2 || in_pool == 1 && (in_all >= 2 || in_all == 1 && home);
        gains.then_some((in_pool, in_all, home))
    }
}

/// Returns at most `moves_max` transfers, those that gain most first. The list is empty when the leaders are balanced as far as
/// the members of the PGs allow by single transfers.
pub fn leader_moves(pgs: &[LedPg], moves_max: usize) -> Vec<LeaderMove> {
    let mut counts = Counts::default();
    pgs.iter().for_each(|pg| counts.add(pg.pg, pg.leader, 1));
    let mut open: Vec<&LedPg> = pgs.iter().filter(|pg| !pg.targets.is_empty()).collect();
    let mut moves = Vec::new();
    while moves.len() < moves_max {
        let choices = open.iter().enumerate().flat_map(|(at, pg)| {
            let gains = pg.targets.iter().filter(|to| **to != pg.leader);
            gains.filter_map(|to| counts.gain(pg, *to).map(|gain| (gain, at, *to))).collect::<Vec<_>>()
        });
        let best = choices.max_by_key(|(gain, at, to)| (*gain, std::cmp::Reverse(*at), std::cmp::Reverse(*to)));
        let Some((_, at, to)) = best else { break };
        let pg = open.remove(at);
        counts.add(pg.pg, pg.leader, -1);
        counts.add(pg.pg, to, 1);
        moves.push((pg.pg, pg.leader, to));
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Osd, Policy, WEIGHT_ONE, place_pgs};
    use types::PoolId;

    fn osds(count: u32) -> Vec<Osd> {
        let osd = |n: u32| Osd {
            id: OsdId(n),
            host: format!("h{n}"),
            rack: String::new(),
            zone: String::new(),
            weight: WEIGHT_ONE,
            usable: true,
        };
        (1..=count).map(osd).collect()
    }

    fn pool(id: u32, pgs: u32, osd_count: u32, replicas: usize) -> Vec<(PgId, Vec<OsdId>)> {
        let ids: Vec<PgId> = (0..pgs).map(|n| PgId { pool: PoolId(id), n }).collect();
        let policy = Policy { replicas, domain: Domain::Osd };
        let sets = place_pgs(&osds(osd_count), policy, &[], &ids).expect("it fits");
        ids.into_iter().zip(sets).collect()
    }

    /// Runs rounds until no transfer is left; returns the leaders' counts and the number of transfers.
    fn settle(sets: &[(PgId, Vec<OsdId>)], mut leads: BTreeMap<PgId, OsdId>) -> (BTreeMap<OsdId, u32>, usize) {
        let mut transfers = 0;
        for _ in 0..1000 {
            let led = |(pg, set): &(PgId, Vec<OsdId>)| LedPg {
                pg: *pg,
                leader: leads[pg],
                preferred: set[0],
                targets: set.clone(),
            };
            let moves = leader_moves(&sets.iter().map(led).collect::<Vec<_>>(), 4);
            if moves.is_empty() {
                let mut counts = BTreeMap::new();
                leads.values().for_each(|osd| *counts.entry(*osd).or_default() += 1);
                return (counts, transfers);
            }
            transfers += moves.len();
            for (pg, from, to) in moves {
                assert_eq!(leads.insert(pg, to), Some(from));
            }
        }
        panic!("the transfers do not end");
    }

    #[test]
    fn leaders_that_gathered_on_one_osd_are_spread_and_then_stay() {
        for (osd_count, replicas, pg_count) in [(3, 3, 32), (6, 3, 64), (5, 2, 100), (12, 3, 256), (5, 5, 50)] {
            let sets = pool(1, pg_count, osd_count, replicas);
            let lowest = sets.iter().map(|(pg, set)| (*pg, *set.iter().min().expect("members"))).collect();
            let (counts, transfers) = settle(&sets, lowest);
            let fair = f64::from(pg_count) / f64::from(osd_count);
            for n in 1..=osd_count {
                let led = f64::from(counts.get(&OsdId(n)).copied().unwrap_or(0));
                assert!((led - fair).abs() <= (fair * 0.2).max(1.0), "{osd_count} OSDs: osd.{n} leads {led} of {fair}");
            }
            assert!(transfers <= 2 * pg_count as usize, "{transfers} transfers for {pg_count} PGs");
        }
    }

    #[test]
    fn many_small_pools_are_spread_among_all_osds_too() {
        let sets: Vec<_> = (1..=30).flat_map(|id| pool(id, 1, 3, 3)).collect();
        let (counts, _) = settle(&sets, sets.iter().map(|(pg, _)| (*pg, OsdId(1))).collect());
        assert!(counts.values().all(|led| (9..=11).contains(led)), "{counts:?}");
    }

    #[test]
    fn balanced_placement_moves_no_leader() {
        let sets = pool(1, 33, 3, 3);
        let placed: BTreeMap<PgId, OsdId> = sets.iter().map(|(pg, set)| (*pg, set[0])).collect();
        assert_eq!(settle(&sets, placed).1, 0);
    }

    #[test]
    fn a_pg_without_targets_counts_and_stays() {
        let stuck = |n: u32, targets: Vec<OsdId>| LedPg {
            pg: PgId { pool: PoolId(1), n },
            leader: OsdId(1),
            preferred: OsdId(1),
            targets,
        };
        let pgs = [stuck(0, Vec::new()), stuck(1, Vec::new()), stuck(2, vec![OsdId(2)]), stuck(3, vec![OsdId(1)])];
        assert_eq!(leader_moves(&pgs, 9), [(PgId { pool: PoolId(1), n: 2 }, OsdId(1), OsdId(2))]);
    }
}
