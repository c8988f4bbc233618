//! Properties of placement, over many clusters drawn from a seed.

use super::*;
use types::PoolId;
use types::rng::Rng;

fn osds(hosts: u32, per_host: u32) -> Vec<Osd> {
    (0..hosts * per_host)
        .map(|i| Osd {
            id: OsdId(i + 1),
            host: format!("h{}", i / per_host),
            rack: format!("r{}", i / per_host / 2),
            zone: "z".into(),
            weight: WEIGHT_ONE,
            usable: true,
        })
        .collect()
}

fn ids(pool: u32, from: u32, count: u32) -> Vec<PgId> {
    (from..from + count).map(|n| PgId { pool: PoolId(pool), n }).collect()
}

fn spread(counts: impl Iterator<Item = u32> + Clone) -> u32 {
    counts.clone().max().unwrap_or(0) - counts.min().unwrap_or(0)
}

#[test]
fn members_never_share_a_domain_and_counts_stay_within_two() {
    let mut rng = Rng::new(7);
    for case in 0..400 {
        let (hosts, per_host) = (rng.between(1, 8) as u32, rng.between(1, 4) as u32);
        let all = osds(hosts, per_host);
        let domain = [Domain::Osd, Domain::Host][rng.below(2) as usize];
        let replicas = [1, 2, 3, 5][rng.below(4) as usize];
        let policy = Policy { replicas, domain };
        let have = if domain == Domain::Osd { hosts * per_host } else { hosts } as usize;
        let pgs = ids(case, 0, rng.between(1, 128) as u32);
        let sets = match place_pgs(&all, policy, &[], &pgs) {
            Ok(sets) => sets,
            Err(e) => {
                assert_eq!(e, Refusal::Domains { replicas, domain, have });
                assert!(have < replicas);
                continue;
            }
        };
        assert!(have >= replicas);
        for set in &sets {
            let names: BTreeSet<String> = set.iter().map(|id| all[id.0 as usize - 1].domain(domain)).collect();
            assert_eq!(names.len(), replicas, "{set:?}");
        }
        let loads = loads_of(sets.iter().map(Vec::as_slice));
        let load = |o: &Osd| loads.get(&o.id).copied().unwrap_or_default();
        let what = format!("{hosts} hosts x {per_host}, {policy:?}, {} PGs: {loads:?}", pgs.len());
        assert!(spread(all.iter().map(|o| load(o).replicas)) <= 2, "replicas: {what}");
        assert!(spread(all.iter().map(|o| load(o).leaders)) <= 2, "leaders: {what}");
    }
}

#[test]
fn a_pool_made_in_steps_is_as_balanced_as_one_made_at_once() {
    let all = osds(6, 1);
    let policy = Policy { replicas: 3, domain: Domain::Host };
    let mut sets = Vec::new();
    for step in 0..8 {
        sets.extend(place_pgs(&all, policy, &sets.clone(), &ids(1, step * 8, 8)).expect("six hosts"));
    }
    let loads = loads_of(sets.iter().map(Vec::as_slice));
    assert_eq!(loads.len(), 6);
    assert!(spread(loads.values().map(|l| l.replicas)) <= 2, "{loads:?}");
    let widths = scatter_width(sets.iter().map(Vec::as_slice));
    assert!(widths.values().all(|w| *w == 5), "every OSD shares PGs with every other: {widths:?}");
}

#[test]
fn an_osd_of_twice_the_weight_takes_about_twice_the_replicas() {
    let mut all = osds(6, 1);
    all[0].weight = 2 * WEIGHT_ONE;
    let sets = place_pgs(&all, Policy { replicas: 2, domain: Domain::Osd }, &[], &ids(1, 0, 140)).expect("fits");
    let loads = loads_of(sets.iter().map(Vec::as_slice));
    assert!((76..=84).contains(&loads[&OsdId(1)].replicas), "{loads:?}");
}

#[test]
fn osds_that_are_down_out_or_weightless_get_nothing() {
    let mut all = osds(5, 1);
    all[1].usable = false;
    all[3].weight = 0;
    let sets = place_pgs(&all, Policy { replicas: 3, domain: Domain::Host }, &[], &ids(1, 0, 20)).expect("three left");
    assert!(sets.iter().flatten().all(|o| ![OsdId(2), OsdId(4)].contains(o)), "{sets:?}");
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    let all = osds(2, 3);
    let refusal =
        place_pgs(&all, Policy { replicas: 3, domain: Domain::Host }, &[], &ids(1, 0, 4)).expect_err("2 hosts");
    assert_eq!(refusal.to_string(), "3 replicas need 3 different hosts with an OSD that is up and in; there are 2");
    let refusal = place_pgs(&all, Policy { replicas: 4, domain: Domain::Osd }, &[], &ids(1, 0, 4)).expect_err("four");
    assert_eq!(refusal, Refusal::Replicas { replicas: 4 });
}

#[test]
fn hosts_of_one_name_in_two_racks_are_two_domains() {
    let mut all = osds(2, 1);
    all[1].host = all[0].host.clone();
    all[1].rack = "elsewhere".into();
    assert!(place_pgs(&all, Policy { replicas: 2, domain: Domain::Host }, &[], &ids(1, 0, 1)).is_ok());
}

#[test]
fn equal_input_gives_equal_output() {
    let all = osds(5, 2);
    let policy = Policy { replicas: 3, domain: Domain::Host };
    let a = place_pgs(&all, policy, &[], &ids(3, 0, 64));
    assert_eq!(a, place_pgs(&all, policy, &[], &ids(3, 0, 64)));
}
