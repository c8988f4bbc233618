//! Chooses sets of OSDs for the PGs of a pool.
//!
//! PGs are placed one by one, and so are the members of each. A member comes from the least loaded domain, and is the least
//! loaded OSD in it. Loads within one PG of the least count as equal; among equals the OSD that shares fewest PGs with the
//! members chosen so far wins. So counts stay within two of each other while sets mix (a wide scatter heals fast).

use std::collections::{BTreeMap, BTreeSet};
use types::limits::REPLICAS_MAX;
use types::{OsdId, PgId};

/// Failure domain that two members of a PG must not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    Osd,
    Host,
    Rack,
    Zone,
}

impl Domain {
    /// Name of the domain in commands and records.
    pub fn name(self) -> &'static str {
        match self {
            Domain::Osd => "osd",
            Domain::Host => "host",
            Domain::Rack => "rack",
            Domain::Zone => "zone",
        }
    }

    /// Parses a domain's name; `None` for any other text.
    pub fn from_name(name: &str) -> Option<Domain> {
        [Domain::Osd, Domain::Host, Domain::Rack, Domain::Zone].into_iter().find(|d| d.name() == name)
    }
}

/// Weight of an ordinary OSD.
pub const WEIGHT_ONE: u32 = 1000;

/// An OSD on which replicas can be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Osd {
    pub id: OsdId,
    pub host: String,
    pub rack: String,
    pub zone: String,
    /// Share of data relative to [`WEIGHT_ONE`]; an OSD of weight zero takes none.
    pub weight: u32,
    /// True when the OSD is both up and in.
    pub usable: bool,
}

impl Osd {
    /// Returns the domain of this OSD as a path, so that two racks of one name in two zones differ.
    pub fn domain(&self, domain: Domain) -> String {
        match domain {
            Domain::Osd => self.id.to_string(),
            Domain::Host => format!("{}/{}/{}", self.zone, self.rack, self.host),
            Domain::Rack => format!("{}/{}", self.zone, self.rack),
            Domain::Zone => self.zone.clone(),
        }
    }
}

/// Placement policy of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub replicas: usize,
    pub domain: Domain,
}

/// Load that an OSD carries already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Load {
    pub replicas: u32,
    /// PGs that prefer it as leader.
    pub leaders: u32,
}

/// Reason why a pool cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{replicas} replicas are not supported; use 1, 2, 3 or 5")]
    Replicas { replicas: usize },
    #[error("{replicas} replicas need {replicas} different {}s with an OSD that is up and in; there {} {have}", domain.name(), if *have == 1 { "is" } else { "are" })]
    Domains { replicas: usize, domain: Domain, have: usize },
}

/// Counts the loads of the OSDs in existing sets; the first member of a set is its leader.
pub fn loads_of<'a>(sets: impl Iterator<Item = &'a [OsdId]>) -> BTreeMap<OsdId, Load> {
    let mut loads: BTreeMap<OsdId, Load> = BTreeMap::new();
    for set in sets {
        for (at, osd) in set.iter().enumerate() {
            let load = loads.entry(*osd).or_default();
            load.replicas += 1;
            load.leaders += u32::from(at == 0);
        }
    }
    loads
}

/// Counts for each OSD how many other OSDs share a PG with it.
pub fn scatter_width<'a>(sets: impl Iterator<Item = &'a [OsdId]>) -> BTreeMap<OsdId, usize> {
    let mut peers: BTreeMap<OsdId, BTreeSet<OsdId>> = BTreeMap::new();
    for set in sets {
        for osd in set {
            peers.entry(*osd).or_default().extend(set.iter().filter(|o| *o != osd));
        }
    }
    peers.into_iter().map(|(osd, peers)| (osd, peers.len())).collect()
}

/// Chooses the members of each of `pgs`, preferred leader first. `existing` are the pool's sets so far
/// (pools are balanced one by one); a pool may be made in several calls.
///
/// # Errors
/// When the policy cannot be met; no PG is placed then.
pub fn place_pgs(
    osds: &[Osd],
    policy: Policy,
    existing: &[Vec<OsdId>],
    pgs: &[PgId],
) -> Result<Vec<Vec<OsdId>>, Refusal> {
    if ![1, 2, 3, 5].contains(&policy.replicas) {
        return Err(Refusal::Replicas { replicas: policy.replicas });
    }
    assert!(policy.replicas <= REPLICAS_MAX, "the supported counts fit a PG");
    let mut board = Board::new(osds, policy.domain, existing);
    let have = board.domains.len();
    if have < policy.replicas {
        return Err(Refusal::Domains { replicas: policy.replicas, domain: policy.domain, have });
    }
    let mut sets: Vec<Vec<usize>> = pgs.iter().map(|pg| board.place(*pg, policy.replicas)).collect();
    board.even_leaders(&mut sets);
    Ok(sets.iter().map(|set| set.iter().map(|slot| board.slots[*slot].id).collect()).collect())
}

struct Slot {
    id: OsdId,
    domain: usize,
    weight: u64,
    load: Load,
}

struct Board {
    slots: Vec<Slot>,
    /// Per domain: total weight and replicas.
    domains: Vec<(u64, u64)>,
    mean_weight: u64,
    together: BTreeMap<(OsdId, OsdId), u32>,
}

/// Load in thousandths of a PG of an OSD of mean weight.
pub(crate) fn milli(count: u64, weight: u64, mean: u64) -> u64 {
    count * 1000 * mean / weight
}

impl Board {
    fn new(osds: &[Osd], domain: Domain, existing: &[Vec<OsdId>]) -> Board {
        let loads = loads_of(existing.iter().map(Vec::as_slice));
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut domains: Vec<(u64, u64)> = Vec::new();
        let mut slots = Vec::new();
        for osd in osds.iter().filter(|o| o.usable && o.weight > 0) {
            let at = *names.entry(osd.domain(domain)).or_insert_with(|| {
                domains.push((0, 0));
                domains.len() - 1
            });
            let load = loads.get(&osd.id).copied().unwrap_or_default();
            let weight = u64::from(osd.weight);
            domains[at].0 += weight;
            domains[at].1 += u64::from(load.replicas);
            slots.push(Slot { id: osd.id, domain: at, weight, load });
        }
        let total: u64 = slots.iter().map(|s| s.weight).sum();
        let mean_weight = (total / slots.len().max(1) as u64).max(1);
        let mut board = Board { slots, domains, mean_weight, together: BTreeMap::new() };
        existing.iter().for_each(|set| board.count_pairs(set));
        board
    }

    fn count_pairs(&mut self, set: &[OsdId]) {
        for a in set {
            for b in set.iter().filter(|b| *b != a) {
                *self.together.entry((*a, *b)).or_default() += 1;
            }
        }
    }

    fn place(&mut self, pg: PgId, replicas: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::with_capacity(replicas);
        for _ in 0..replicas {
            let next = self.next_member(pg, &chosen);
            chosen.push(next);
        }
        for slot in &chosen {
            self.slots[*slot].load.replicas += 1;
            let domain = self.slots[*slot].domain;
            self.domains[domain].1 += 1;
        }
        let domains: BTreeSet<usize> = chosen.iter().map(|s| self.slots[*s].domain).collect();
        assert_eq!(domains.len(), replicas, "{pg}: two members in one domain");
        let leader = self.pick_leader(pg, &chosen);
        chosen.swap(0, leader);
        self.slots[chosen[0]].load.leaders += 1;
        let set: Vec<OsdId> = chosen.iter().map(|s| self.slots[*s].id).collect();
        self.count_pairs(&set);
        chosen
    }

    /// Returns the best free OSD. A domain's load is its replica count over its weight. Domains within one PG of the least
    /// loaded one are equal, and each of them offers only its least loaded OSD.
    fn next_member(&self, pg: PgId, chosen: &[usize]) -> usize {
        let taken = |domain: usize| chosen.iter().any(|c| self.slots[*c].domain == domain);
        let load = |s: &Slot| milli(u64::from(s.load.replicas), s.weight, self.mean_weight);
        let mut best_of: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, s)| !taken(s.domain)) {
            let held = best_of.entry(slot.domain).or_insert(at);
            if (load(slot), mix(pg, slot.id)) < (load(&self.slots[*held]), mix(pg, self.slots[*held].id)) {
                *held = at;
            }
        }
        let domain_load = |d: usize| milli(self.domains[d].1, self.domains[d].0, self.mean_weight);
        let least = best_of.keys().map(|d| domain_load(*d)).min().unwrap_or(0);
        let pick = best_of.iter().min_by_key(|(domain, at)| {
            let slot = &self.slots[**at];
            let over = (domain_load(**domain)).saturating_sub(least);
            let beyond = if over > 1000 { over } else { 0 };
            let shared: u32 =
                chosen.iter().filter_map(|c| self.together.get(&(self.slots[*c].id, slot.id))).copied().sum();
            (beyond, shared, over, self.leader_load(slot), mix(pg, slot.id))
        });
        *pick.expect("domains were counted before").1
    }

    fn leader_load(&self, slot: &Slot) -> u64 {
        milli(u64::from(slot.load.leaders), slot.weight, self.mean_weight)
    }

    fn pick_leader(&self, pg: PgId, chosen: &[usize]) -> usize {
        (0..chosen.len())
            .min_by_key(|at| {
                let slot = &self.slots[chosen[*at]];
                (self.leader_load(slot), mix(pg, slot.id))
            })
            .expect("a PG has members")
    }

    /// Moves leadership inside the new sets from OSDs that lead more to members that lead at least two fewer, until no such
    /// pair is left. Each step lowers the sum of squares, so the loop ends.
    fn even_leaders(&mut self, sets: &mut [Vec<usize>]) {
        let mut moved = true;
        while moved {
            moved = false;
            for set in sets.iter_mut() {
                let now = set[0];
                let least = (1..set.len()).min_by_key(|at| (self.leader_load(&self.slots[set[*at]]), *at));
                let Some(at) = least else { continue };
                let one = |slot: &Slot| milli(1, slot.weight, self.mean_weight);
                let to = &self.slots[set[at]];
                if self.leader_load(to) + one(to) < self.leader_load(&self.slots[now]) {
                    self.slots[now].load.leaders -= 1;
                    self.slots[set[at]].load.leaders += 1;
                    set.swap(0, at);
                    moved = true;
                }
            }
        }
    }
}

/// A tie-breaker that differs from PG to PG.
pub(crate) fn mix(pg: PgId, osd: OsdId) -> u64 {
    let seed = (u64::from(pg.pool.0) << 40) ^ (u64::from(pg.n) << 16) ^ u64::from(osd.0);
    types::rng::Rng::new(seed).next_u64()
}

#[cfg(test)]
mod tests;
