//! Chooses replicas that move: away from OSDs that are to be empty, and from OSDs that carry more than their share.
//!
//! The result is a plan. The caller decides how much of it begins now, and plans again when something has changed.

use crate::Domain;
use crate::pgs::{Osd, milli, mix};
use std::collections::{BTreeMap, BTreeSet};
use types::planted::{Bug, on};
use types::{OsdId, PgId};

/// Replicas by which two OSDs of mean weight may differ.
const SLACK: u64 = 2;
/// An OSD may carry one in so many replicas more than another one: moving them would cost more than it gains.
const SLACK_SHARE: u64 = 20;

/// An OSD that replicas are on, or may come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// It takes new replicas when it is usable.
    pub osd: Osd,
    /// Its replicas have to leave.
    pub leaves: bool,
    /// Whether it serves: replicas that are dead leave first.
    pub live: bool,
    /// The OSD whose replicas come here, also while this OSD does not run yet. No other replica comes here meanwhile.
    pub takes_over: Option<OsdId>,
}

/// The members of a PG after all changes that have begun. `fixed`: it counts, and none of its replicas moves now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPg {
    pub pg: PgId,
    pub members: Vec<OsdId>,
    /// OSDs with older contents of the PG: a replica that comes there is sent only what differs.
    pub kept_on: Vec<OsdId>,
    pub fixed: bool,
}

/// One replica that moves; `to` is `None` while no OSD can take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaMove {
    pub pg: PgId,
    pub from: OsdId,
    pub to: Option<OsdId>,
}

/// An OSD while a plan is made.
struct Seat<'a> {
    place: &'a Place,
    domain: usize,
    weight: u64,
    replicas: u64,
}

/// The OSDs of one pool while a plan is made.
struct Seats<'a> {
    of: BTreeMap<OsdId, Seat<'a>>,
    /// OSD → the one that takes it over.
    successors: BTreeMap<OsdId, OsdId>,
    mean_weight: u64,
}

impl<'a> Seats<'a> {
    fn new(places: &'a [Place], domain: Domain, pgs: &[PlacedPg]) -> Seats<'a> {
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut of = BTreeMap::new();
        for place in places {
            let count = names.len();
            let domain = *names.entry(place.osd.domain(domain)).or_insert(count);
            let weight = u64::from(place.osd.weight);
            of.insert(place.osd.id, Seat { place, domain, weight, replicas: 0 });
        }
        for osd in pgs.iter().flat_map(|pg| &pg.members) {
            if let Some(seat) = of.get_mut(osd) {
                seat.replicas += 1;
            }
        }
        let successors = places.iter().filter_map(|p| Some((p.takes_over?, p.osd.id))).collect();
        let stay = of.values().filter(|seat| seat.may_stay());
        let (weight, count) = stay.fold((0, 0), |(weight, count), seat| (weight + seat.weight, count + 1));
        Seats { of, successors, mean_weight: (weight / u64::max(count, 1)).max(1) }
    }

    fn load(&self, seat: &Seat<'_>) -> u64 {
        milli(seat.replicas, seat.weight, self.mean_weight)
    }

    /// Whether the OSD may hold the PG in the place of the replica on `from`.
    fn fits(&self, osd: OsdId, pg: &PlacedPg, from: OsdId) -> bool {
        let Some(seat) = self.of.get(&osd) else { return false };
        let clashes = |other: &OsdId| self.of.get(other).is_some_and(|there| there.domain == seat.domain);
        !pg.members.contains(&osd) && !pg.members.iter().filter(|other| **other != from).any(clashes)
    }

    /// Returns the least loaded OSD that can take the replica of a PG that is on `from`, or the one that takes `from` over.
    fn target(&self, pg: &PlacedPg, from: OsdId) -> Option<OsdId> {
        if let Some(successor) = self.successors.get(&from).filter(|osd| self.fits(**osd, pg, from)) {
            return Some(*successor);
        }
        let takers = self.of.iter().filter(|(_, seat)| seat.takes() && seat.place.takes_over.is_none());
        let free = takers.filter(|(osd, _)| self.fits(**osd, pg, from));
        free.min_by_key(|(osd, seat)| (self.load(seat), mix(pg.pg, **osd))).map(|(osd, _)| *osd)
    }

    fn shift(&mut self, from: OsdId, to: OsdId) {
        if let Some(seat) = self.of.get_mut(&from) {
            seat.replicas = seat.replicas.saturating_sub(1);
        }
        if let Some(seat) = self.of.get_mut(&to) {
            seat.replicas += 1;
        }
    }
}

impl Seat<'_> {
    fn may_stay(&self) -> bool {
        (!self.place.leaves || on(Bug::MovesToLeaving)) && self.weight > 0
    }

    fn takes(&self) -> bool {
        self.place.osd.usable && self.may_stay()
    }
}

fn swap(members: &mut [OsdId], from: OsdId, to: OsdId) {
    members.iter_mut().filter(|osd| **osd == from).for_each(|osd| *osd = to);
}

/// Plans the moves of all replicas that have to leave their OSDs, in the order of `pgs`, and takes them over into `pgs`. A PG of
/// which two replicas leave has one move: that of a dead replica, if there is one.
pub fn leaving_moves(places: &[Place], domain: Domain, pgs: &mut [PlacedPg]) -> Vec<ReplicaMove> {
    let mut seats = Seats::new(places, domain, pgs);
    let mut moves = Vec::new();
    for pg in pgs.iter_mut() {
        let leaves = |osd: &&OsdId| seats.of.get(osd).is_some_and(|seat| seat.place.leaves);
        let leaving: Vec<OsdId> = pg.members.iter().filter(leaves).copied().collect();
        let is_live = |osd: OsdId| seats.of.get(&osd).is_some_and(|seat| seat.place.live);
        let choice = leaving.iter().map(|from| (*from, seats.target(pg, *from)));
        let choice = choice.min_by_key(|(from, to)| (to.is_none(), is_live(*from)));
        let Some((from, to)) = choice else { continue };
        if let Some(to) = to.filter(|_| !pg.fixed) {
            seats.shift(from, to);
            swap(&mut pg.members, from, to);
            pg.fixed = true;
        }
        moves.push(ReplicaMove { pg: pg.pg, from, to });
    }
    moves
}

/// Plans at most `moves_max` moves from the OSDs that carry most to those that carry least, until their loads differ little. No PG
/// has more than one move.
pub fn balancing_moves(places: &[Place], domain: Domain, pgs: &mut [PlacedPg], moves_max: usize) -> Vec<ReplicaMove> {
    let mut seats = Seats::new(places, domain, pgs);
    // PGs by member; a PG that has moved is fixed, and is skipped.
    let mut on_osd: BTreeMap<OsdId, Vec<usize>> = BTreeMap::new();
    for (at, pg) in pgs.iter().enumerate().filter(|(_, pg)| !pg.fixed) {
        pg.members.iter().for_each(|osd| on_osd.entry(*osd).or_default().push(at));
    }
    // No PG is added to an OSD that could leave it again, so a pair without a movable PG stays without one.
    let mut barren = BTreeSet::new();
    let mut moves = Vec::new();
    while moves.len() < moves_max {
        let Some((at, from, to)) = best_balance(&seats, pgs, &on_osd, &mut barren) else { break };
        let Some(pg) = pgs.get_mut(at) else { break };
        seats.shift(from, to);
        swap(&mut pg.members, from, to);
        pg.fixed = true;
        moves.push(ReplicaMove { pg: pg.pg, from, to: Some(to) });
    }
    moves
}

/// Returns a PG, by its place in `pgs`, with the OSD that one of its replicas leaves and the one that takes it.
fn best_balance(
    seats: &Seats<'_>,
    pgs: &[PlacedPg],
    on_osd: &BTreeMap<OsdId, Vec<usize>>,
    barren: &mut BTreeSet<(OsdId, OsdId)>,
) -> Option<(usize, OsdId, OsdId)> {
    let stay = seats.of.iter().filter(|(_, seat)| seat.may_stay() && seat.place.takes_over.is_none());
    let mut loaded: Vec<(u64, OsdId)> = stay.map(|(osd, seat)| (seats.load(seat), *osd)).collect();
    loaded.sort_unstable();
    let takes = |osd: &OsdId| seats.of.get(osd).is_some_and(Seat::takes);
    let load_with_one = |osd: &OsdId| {
        seats.of.get(osd).map_or(u64::MAX, |seat| milli(seat.replicas + 1, seat.weight, seats.mean_weight))
    };
    for (high, from) in loaded.iter().rev() {
        for (low, to) in loaded.iter().filter(|(_, to)| takes(to)) {
            if *high <= low + SLACK * 1000 || high - low <= high / SLACK_SHARE {
                break;
            }
            if barren.contains(&(*from, *to)) || load_with_one(to) >= *high {
                continue;
            }
            let here = on_osd.get(from).into_iter().flatten().copied();
            let is_movable = |at: &usize| pgs.get(*at).is_some_and(|pg| !pg.fixed && seats.fits(*to, pg, *from));
            // Different pairs take different PGs, so that sets mix.
            let order = |at: &usize| pgs.get(*at).map(|pg| (!pg.kept_on.contains(to), mix(pg.pg, *to)));
            let found = here.filter(is_movable).min_by_key(order);
            match found {
                Some(at) => return Some((at, *from, *to)),
                None => drop(barren.insert((*from, *to))),
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, WEIGHT_ONE, place_pgs};
    use types::PoolId;

    fn osd(n: u32, host: u32) -> Osd {
        let (rack, zone) = (String::new(), String::new());
        Osd { id: OsdId(n), host: format!("h{host}"), rack, zone, weight: WEIGHT_ONE, usable: true }
    }

    /// So many OSDs on each host.
    fn hosts(counts: &[u32]) -> Vec<Place> {
        let on = counts.iter().zip(1..).flat_map(|(count, host)| (0..*count).map(move |_| host));
        let place = |(host, n)| Place { osd: osd(n, host), leaves: false, live: true, takes_over: None };
        on.zip(1..).map(place).collect()
    }

    fn pool(places: &[Place], domain: Domain, replicas: usize, count: u32) -> Vec<PlacedPg> {
        let ids: Vec<PgId> = (0..count).map(|n| PgId { pool: PoolId(1), n }).collect();
        let osds: Vec<Osd> = places.iter().map(|p| p.osd.clone()).collect();
        let sets = place_pgs(&osds, Policy { replicas, domain }, &[], &ids).expect("it fits");
        ids.into_iter()
            .zip(sets)
            .map(|(pg, members)| PlacedPg { pg, members, kept_on: Vec::new(), fixed: false })
            .collect()
    }

    fn counts(pgs: &[PlacedPg]) -> BTreeMap<OsdId, u64> {
        let mut counts = BTreeMap::new();
        pgs.iter().flat_map(|pg| &pg.members).for_each(|osd| *counts.entry(*osd).or_default() += 1);
        counts
    }

    fn check_domains(places: &[Place], domain: Domain, pgs: &[PlacedPg]) {
        for pg in pgs {
            let of = |osd: &OsdId| places.iter().find(|p| p.osd.id == *osd).expect("known").osd.domain(domain);
            let mut names: Vec<String> = pg.members.iter().map(of).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), pg.members.len(), "{pg:?}");
        }
    }

    /// Plans until nothing moves; returns the number of moves.
    fn settle(places: &[Place], domain: Domain, pgs: &mut [PlacedPg]) -> usize {
        let mut moved = 0;
        for _ in 0..1000 {
            let mut moves = leaving_moves(places, domain, pgs);
            moves.retain(|m| m.to.is_some());
            moves.extend(balancing_moves(places, domain, pgs, 8));
            check_domains(places, domain, pgs);
            if moves.is_empty() {
                return moved;
            }
            moved += moves.len();
            pgs.iter_mut().for_each(|pg| pg.fixed = false);
        }
        panic!("the moves do not end");
    }

    #[test]
    fn new_pools_are_balanced_already() {
        let shapes: [(&[u32], Domain); 6] = [
            (&[1, 1, 1], Domain::Host),
            (&[1; 7], Domain::Host),
            (&[4, 4, 4], Domain::Host),
            (&[10, 10, 1], Domain::Osd),
            (&[3, 3, 3, 3, 3], Domain::Osd),
            (&[1; 16], Domain::Osd),
        ];
        for (shape, domain) in shapes {
            for count in [1, 32, 100, 256] {
                let places = hosts(shape);
                let mut pgs = pool(&places, domain, 3, count);
                assert_eq!(settle(&places, domain, &mut pgs), 0, "{shape:?} {domain:?} {count}");
            }
        }
    }

    #[test]
    fn a_leaving_osd_is_emptied_with_one_move_for_each_of_its_replicas() {
        for (shape, domain) in [(&[1u32; 4][..], Domain::Host), (&[2, 2, 2, 2], Domain::Host), (&[1; 12], Domain::Osd)]
        {
            let mut places = hosts(shape);
            let mut pgs = pool(&places, domain, 3, 96);
            let held = counts(&pgs)[&OsdId(2)];
            places[1].leaves = true;
            let moved = settle(&places, domain, &mut pgs) as u64;
            let after = counts(&pgs);
            assert!(!after.contains_key(&OsdId(2)));
            assert!(moved >= held && moved <= held + held / 4, "{moved} moves for {held} replicas, {shape:?}");
            let (most, least) = (after.values().max().expect("some"), after.values().min().expect("some"));
            assert!(most - least <= 4, "{after:?}");
        }
    }

    #[test]
    fn a_new_osd_gets_its_share_and_nothing_else_moves() {
        let mut places = hosts(&[1; 4]);
        let mut pgs = pool(&places, Domain::Host, 3, 96);
        places.push(Place { osd: osd(5, 5), leaves: false, live: true, takes_over: None });
        let moved = settle(&places, Domain::Host, &mut pgs) as u64;
        let after = counts(&pgs);
        let fair = 96 * 3 / 5;
        assert!(after[&OsdId(5)] + 4 >= fair && moved == after[&OsdId(5)], "{moved} moves: {after:?}");
    }

    #[test]
    fn an_osd_that_returns_gets_the_pgs_of_which_it_has_contents() {
        let mut places = hosts(&[1; 5]);
        let mut pgs = pool(&places, Domain::Host, 3, 96);
        places[1].leaves = true;
        let had: BTreeSet<PgId> = pgs.iter().filter(|pg| pg.members.contains(&OsdId(2))).map(|pg| pg.pg).collect();
        settle(&places, Domain::Host, &mut pgs);
        places[1].leaves = false;
        for pg in pgs.iter_mut().filter(|pg| had.contains(&pg.pg)) {
            pg.kept_on.push(OsdId(2));
        }
        let moved = settle(&places, Domain::Host, &mut pgs);
        let has = pgs.iter().filter(|pg| pg.members.contains(&OsdId(2)));
        let (again, other): (Vec<_>, Vec<_>) = has.partition(|pg| had.contains(&pg.pg));
        assert!(moved > 50 && other.len() * 20 <= again.len(), "{} come back, {} others", again.len(), other.len());
    }

    #[test]
    fn a_replica_without_a_place_to_go_to_stays_and_is_named() {
        let mut places = hosts(&[1, 1, 1]);
        let mut pgs = pool(&places, Domain::Host, 3, 8);
        places[0].leaves = true;
        let moves = leaving_moves(&places, Domain::Host, &mut pgs);
        assert!(moves.len() == 8 && moves.iter().all(|m| m.from == OsdId(1) && m.to.is_none()), "{moves:?}");
        // Another OSD of the same host takes them all.
        places.push(Place { osd: osd(4, 1), leaves: false, live: true, takes_over: None });
        assert_eq!(settle(&places, Domain::Host, &mut pgs), 8);
        assert_eq!(counts(&pgs)[&OsdId(4)], 8);
    }

    #[test]
    fn a_successor_takes_everything_and_nobody_else_does() {
        let mut places = hosts(&[1; 6]);
        let mut pgs = pool(&places, Domain::Osd, 3, 64);
        let held = counts(&pgs)[&OsdId(3)];
        places[2].leaves = true;
        places.push(Place {
            osd: Osd { usable: false, ..osd(7, 3) },
            leaves: false,
            live: true,
            takes_over: Some(OsdId(3)),
        });
        let moves = leaving_moves(&places, Domain::Osd, &mut pgs.clone());
        assert!(moves.iter().all(|m| m.to == Some(OsdId(7))), "they wait for it: {moves:?}");
        places[6].osd.usable = true;
        let moves = leaving_moves(&places, Domain::Osd, &mut pgs);
        assert!(moves.len() as u64 == held && moves.iter().all(|m| m.to == Some(OsdId(7))), "{moves:?}");
        assert_eq!(settle(&places, Domain::Osd, &mut pgs), 0);
    }

    #[test]
    fn weights_are_respected_and_a_fixed_pg_stays() {
        let mut places = hosts(&[1; 5]);
        let mut pgs = pool(&places[..4], Domain::Osd, 3, 80);
        places[4].osd.weight = 500;
        pgs.iter_mut().for_each(|pg| pg.fixed = true);
        assert_eq!(balancing_moves(&places, Domain::Osd, &mut pgs, 99), []);
        pgs.iter_mut().for_each(|pg| pg.fixed = false);
        settle(&places, Domain::Osd, &mut pgs);
        let after = counts(&pgs);
        assert!((22..=29).contains(&after[&OsdId(5)]), "a share of about 27 of 240: {after:?}");
    }

    #[test]
    fn a_pg_that_its_successor_cannot_take_goes_elsewhere() {
        let mut places = hosts(&[1; 5]);
        let mut pgs = pool(&places, Domain::Host, 3, 40);
        places[2].leaves = true;
        places.push(Place { osd: osd(6, 1), leaves: false, live: true, takes_over: Some(OsdId(3)) });
        let clashes: Vec<PgId> = pgs.iter().filter(|pg| pg.members.contains(&OsdId(1))).map(|pg| pg.pg).collect();
        let moves = leaving_moves(&places, Domain::Host, &mut pgs);
        assert!(
            moves.iter().all(|m| m.to.is_some() && (m.to == Some(OsdId(6))) != clashes.contains(&m.pg)),
            "{moves:?}"
        );
        assert!(moves.iter().any(|m| m.to == Some(OsdId(6))) && moves.iter().any(|m| m.to != Some(OsdId(6))));
        check_domains(&places, Domain::Host, &pgs);
    }

    #[test]
    fn a_dead_replica_leaves_before_a_live_one() {
        let mut places = hosts(&[1; 5]);
        let mut pgs = pool(&places, Domain::Osd, 3, 30);
        (places[0].leaves, places[1].leaves, places[1].live) = (true, true, false);
        let both: Vec<PgId> =
            pgs.iter().filter(|pg| [1, 2].iter().all(|n| pg.members.contains(&OsdId(*n)))).map(|pg| pg.pg).collect();
        let moves = leaving_moves(&places, Domain::Osd, &mut pgs);
        let of_both: Vec<&ReplicaMove> = moves.iter().filter(|m| both.contains(&m.pg)).collect();
        assert!(!of_both.is_empty() && of_both.iter().all(|m| m.from == OsdId(2)), "{of_both:?}");
    }

    #[test]
    fn an_osd_that_takes_no_replica_any_more_still_gives_some() {
        let mut places = hosts(&[1; 4]);
        let mut pgs = pool(&places, Domain::Osd, 3, 96);
        places.iter_mut().for_each(|place| place.osd.usable = false);
        places.push(Place { osd: osd(5, 5), leaves: false, live: true, takes_over: None });
        settle(&places, Domain::Osd, &mut pgs);
        assert!(counts(&pgs)[&OsdId(5)] >= 53, "{:?}", counts(&pgs));
    }

    #[test]
    fn loads_that_no_move_can_even_out_move_nothing() {
        let mut places = hosts(&[3, 3, 12]);
        let mut pgs = pool(&places, Domain::Host, 3, 64);
        assert_eq!(settle(&places, Domain::Host, &mut pgs), 0);
        // An OSD of little weight: one replica more is above all others.
        places = hosts(&[1; 5]);
        places[4].osd.weight = 50;
        let mut pgs = pool(&places, Domain::Osd, 3, 32);
        settle(&places, Domain::Osd, &mut pgs);
        assert_eq!(settle(&places, Domain::Osd, &mut pgs), 0);
    }
}
