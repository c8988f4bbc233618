//! Bytes that rot: in blocks, in pages, in the space accounting.

use super::rig::{Plan, Rig, START, chunk, state};
use crate::home::{Home, HomeLimits};
use crate::home_api::{HomeEvent, HomeReadError, HomeRegion, HomeTokens};
use types::{ReplicaId, SectorRange, Time};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// Creates two replicas with two chunks each and decision states.
fn two_replicas() -> Rig {
    let mut rig = Rig::new(1, 16 << 20, HomeLimits { slot_count: Some(128), ..HomeLimits::default() });
    let plan = (1..3).fold(Plan::states(&[1, 2], 3), |plan, r| {
        plan.put(r, chunk(1, 0), [0, 1, 1030], 10 + r).put(r, chunk(1, 1), 5..40, 20 + r)
    });
    rig.round(plan);
    rig
}

#[test]
fn a_rotten_block_is_named_and_its_neighbours_are_served() {
    let mut rig = two_replicas();
    let (au, n) = rig.home.chunk(R1, chunk(1, 0)).unwrap().place_of(1);
    rig.disk.flip((START + rig.home.geometry.block_offset(au, n) + 777) as usize);
    let whole = rig.read(R1, chunk(1, 0), SectorRange::new(0, 16));
    assert_eq!(whole, Err(HomeReadError::Damaged { blocks: vec![(chunk(1, 0), 1)] }));
    assert_eq!(rig.read(R1, chunk(1, 0), SectorRange::new(15, 1)), whole, "the whole block is judged");
    assert!(rig.read(R1, chunk(1, 0), SectorRange::new(0, 8)).is_ok());
    rig.check_base(|key| *key == (R1, chunk(1, 0), 1));
    rig.round(Plan::states(&[1], 4).put(1, chunk(1, 0), [1], 99));
    rig.check_base(|_| false);
}

#[test]
fn lost_write_of_a_block_that_ends_in_its_own_crc_is_noticed() {
    let mut rig = two_replicas();
    let (au, n) = rig.home.chunk(R1, chunk(1, 0)).unwrap().place_of(1);
    let at = (START + rig.home.geometry.block_offset(au, n)) as usize;
    let block = |rig: &Rig| rig.disk.bytes()[at..at + 4096].to_vec();
    let old = block(&rig);
    rig.round(Plan::states(&[1], 4).put(1, chunk(1, 0), [1], 99));
    let new = block(&rig);
    assert_eq!(types::crc32c(&old[..4092]).to_le_bytes(), old[4092..], "as ext4 stores extent blocks");
    assert!(old != new && types::crc32c(&old) == types::crc32c(&new), "CRC32C cannot tell them apart");
    rig.disk.put(at, &old);
    let read = rig.read(R1, chunk(1, 0), SectorRange::new(0, 16));
    assert_eq!(read, Err(HomeReadError::Damaged { blocks: vec![(chunk(1, 0), 1)] }));
    rig.check_base(|key| *key == (R1, chunk(1, 0), 1));
    // The bytes of another place are no good either.
    rig.disk.put(at, &new);
    rig.check_base(|_| false);
    let (au, n) = rig.home.chunk(R1, chunk(1, 0)).unwrap().place_of(0);
    rig.disk.put((START + rig.home.geometry.block_offset(au, n)) as usize, &new);
    rig.check_base(|key| *key == (R1, chunk(1, 0), 0));
}

#[test]
fn unreadable_sector_fails_its_read_and_unreadable_page_its_replica() {
    let mut rig = two_replicas();
    let (au, n) = rig.home.chunk(R1, chunk(1, 0)).unwrap().place_of(1);
    rig.disk.unreadable = Some((START + rig.home.geometry.block_offset(au, n) + 512) as usize);
    let source = env::DiskError::Io(5);
    let whole = rig.read(R1, chunk(1, 0), SectorRange::new(0, 16));
    assert_eq!(whole, Err(HomeReadError::Disk { chunk: chunk(1, 0), range: SectorRange::new(0, 16), source }));
    rig.check_base(|(replica, place, block)| (*replica, *place) == (R1, chunk(1, 0)) && *block < 2);
    let slot = rig.home.chunk(R1, chunk(1, 1)).unwrap().pages[0].unwrap().slot;
    rig.disk.unreadable = Some(rig.home.slot_offset(slot) as usize);
    let (_, damaged) = rig.mount();
    assert!(matches!(&damaged[..], [(R1, why)] if why.contains("map page of g1/1")), "{damaged:?}");
    rig.disk.unreadable = None;
    assert!(rig.mount().1.is_empty(), "nothing was lost, and nothing was written over");
    rig.check_base(|_| false);
}

#[test]
fn a_rotten_page_damages_its_replica_for_good_and_no_other() {
    let home = &two_replicas().home;
    let replica = &home.replicas[&R1];
    let held = home.chunk(R1, chunk(1, 0)).unwrap();
    let pages = [
        ("map page", held.pages[0].unwrap().slot),
        ("CRC page 1", held.pages[2].unwrap().slot),
        ("directory page", replica.directory[0].ptr.unwrap().slot),
        ("decision page 1", replica.decision.pages[1].slot),
    ];
    for (name, slot) in pages {
        let mut rig = two_replicas();
        let slots = rig.home.free_slots();
        rig.disk.flip((rig.home.slot_offset(slot) + 100) as usize);
        for life in 0..2 {
            let (states, damaged) = rig.mount();
            assert!(matches!(&damaged[..], [(R1, why)] if why.contains(name)), "{name}, life {life}: {damaged:?}");
            assert!(states.iter().any(|s| s.decision.replica == R2));
            assert_eq!(states.iter().any(|s| *s == state(R1, 3)), !name.starts_with("decision"));
            rig.home.audit().unwrap();
            let answer = rig.read(R1, chunk(1, 1), SectorRange::new(40, 8));
            assert!(matches!(answer, Err(HomeReadError::Damaged { .. })), "{answer:?}");
            rig.base.retain(|(replica, _, _), _| *replica == R2);
            rig.check_base(|_| false);
            // A round serves the other replica; the damaged one keeps its state of the checkpoint.
            let plan = Plan::states(&[1, 2], 5 + life * 2).put(1, chunk(1, 0), [0], 77).put(2, chunk(1, 0), [9], 78);
            rig.round(plan);
            rig.home.audit().unwrap();
            rig.base.retain(|(replica, _, _), _| *replica == R2);
            rig.check_base(|_| false);
        }
        rig.round(Plan { destroyed: vec![R1], ..Plan::default() });
        rig.home.audit().unwrap();
        assert!(rig.mount().1.is_empty(), "{name}: the damage went with its replica");
        assert!(rig.home.free_slots() > slots);
        rig.check_base(|_| false);
    }
}

#[test]
fn space_of_a_damaged_replica_is_free_once_no_checkpoint_names_it() {
    let mut rig = two_replicas();
    let (slots, bytes) = (rig.home.free_slots(), rig.home.free_bytes());
    let held = rig.home.chunk(R1, chunk(1, 0)).unwrap().pages[0].unwrap().slot;
    rig.disk.flip((rig.home.slot_offset(held) + 100) as usize);
    assert_eq!(rig.mount().1.len(), 1);
    rig.base.retain(|(replica, _, _), _| *replica == R2);
    rig.home.empty(R1);
    rig.home.audit().unwrap();
    assert!(rig.home.pending_free_bytes() > 0, "the last checkpoint still names it");
    rig.round(Plan::states(&[2], 5).put(2, chunk(1, 0), [9], 78));
    rig.home.audit().unwrap();
    assert_eq!(rig.home.pending_free_bytes(), 0);
    assert!(rig.home.free_slots() > slots && rig.home.free_bytes() > bytes);
    let (states, damaged) = rig.mount();
    assert!(damaged.is_empty() && states.iter().all(|s| s.decision.replica == R2), "{damaged:?}");
    rig.check_base(|_| false);
}

#[test]
fn an_au_or_slot_with_two_owners_damages_both_and_is_not_reused() {
    for what in ["AU", "slot"] {
        let mut rig = two_replicas();
        let theirs = rig.home.chunk(R2, chunk(1, 1)).unwrap();
        let (au, page) = (theirs.map[1].au, theirs.pages[1]);
        let mine = &mut rig.home.replicas.get_mut(&R1).unwrap().chunks;
        let changed = mine.change(chunk(1, 1), |mine| match what {
            "AU" => mine.map[1].au = au,
            _ => mine.pages[1] = page,
        });
        changed.unwrap();
        // The next round makes the false map durable, without looking at the numbers in it.
        rig.round(Plan::states(&[1], 5).put(1, chunk(1, 1), [2500], 50));
        let why = rig.home.audit().unwrap_err();
        assert!(why.contains(what) && why.contains("held by"), "{why}");
        let (_, damaged) = rig.mount();
        if what == "AU" {
            let named: Vec<ReplicaId> = damaged.iter().map(|(r, _)| *r).collect();
            assert_eq!(named, [R1, R2], "{damaged:?}");
            assert!(damaged.iter().all(|(_, why)| why.contains("two owners")));
            rig.home.audit().unwrap();
            rig.base.clear();
            rig.round(Plan { destroyed: vec![R1], ..Plan::default() });
            rig.home.audit().unwrap();
            assert!(!rig.home.aus.is_free(au), "the other may still need it");
        } else {
            // The CRC names its owner, so the page does not verify for the other replica.
            assert!(matches!(&damaged[..], [(R1, why), (R2, _)] if why.contains("CRC page")), "{damaged:?}");
        }
    }
}

#[test]
fn a_checkpoint_that_is_not_ours_is_refused_without_a_panic() {
    let rig = two_replicas();
    let records = rig.records.clone().unwrap();
    let fail = |len_bytes: u64, records: Vec<bytes::Bytes>| {
        let region = HomeRegion { start: START, len_bytes };
        let mut home = Home::new(rig.disk.info.clone(), region, HomeTokens { owner: 9 }, rig.limits);
        let (mut ops, mut out) = (Vec::new(), Vec::new());
        home.start_mount(Time::ZERO, Some(records), &mut ops, &mut out);
        match &out[..] {
            [HomeEvent::MountFailed { reason }] => reason.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(fail(16 << 20, vec![]).contains("missing"));
    assert!(fail(16 << 20, vec![records[0].slice(..60)]).contains("checksum"));
    assert!(fail(8 << 20, records).contains("bytes"));
}

#[test]
fn audit_reports_nothing_while_a_mount_claims_its_checkpoints_space() {
    let mut rig = two_replicas();
    rig.events.clear();
    rig.home = Home::new(rig.disk.info.clone(), rig.region, HomeTokens { owner: 9 }, rig.limits);
    rig.home.audit().expect("nothing is mounted");
    rig.home.start_mount(Time::ZERO, rig.records.clone(), &mut rig.ops, &mut rig.events);
    let mut steps = 0;
    while !matches!(rig.events.last(), Some(HomeEvent::Mounted { .. })) {
        rig.home.audit().expect("the mount is not over");
        rig.step();
        steps += 1;
    }
    assert!(steps > 4, "{steps} steps");
    rig.home.audit().expect("the books balance");
}
