//! Zero marks: blocks that read as zeros and hide the parent.

use super::rig::{Plan, Rig, chunk, state};
use crate::home::HomeLimits;
use crate::home_api::{At, Piece};
use types::{AU, GenerationId, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const MIB: u64 = 1 << 20;

fn rig() -> Rig {
    Rig::new(1, 24 * MIB, HomeLimits { slot_count: Some(512), ..HomeLimits::default() })
}

/// Puts blocks of the chunk with a parent.
fn put(index: u64, blocks: std::ops::Range<u16>, stamp: u64) -> Plan {
    let mut plan = Plan::states(&[1], index).put(1, chunk(2, 0), blocks, stamp);
    plan.marks.insert(GenerationId(2));
    plan
}

fn at(rig: &Rig, blocks: std::ops::Range<u16>) -> Vec<At> {
    let range = |block: u16| SectorRange::new(u32::from(block) * 8, 8);
    blocks.flat_map(|block| rig.home.at(R1, chunk(2, 0), range(block))).map(|(_, at)| at).collect()
}

fn used_aus(rig: &Rig) -> u32 {
    rig.home.space_use().expect("it is mounted").data_aus
}

#[test]
fn mark_hides_and_needs_no_au() {
    let mut rig = rig();
    rig.round(put(1, 3..5, 0));
    assert_eq!(at(&rig, 2..6), [At::Open, At::Zeros, At::Zeros, At::Open]);
    assert_eq!((used_aus(&rig), rig.home.chunks(R1).count()), (0, 1), "a chunk without an AU");
    assert_eq!(rig.read(R1, chunk(2, 0), SectorRange::new(0, 64)), Ok(vec![(SectorRange::new(0, 64), Piece::Zeros)]));
    rig.round(put(2, 4..6, 9));
    assert_eq!(at(&rig, 2..7), [At::Open, At::Zeros, At::Data, At::Data, At::Open], "data replaces a mark");
    assert_eq!(used_aus(&rig), 1);
    rig.round(put(3, 4..6, 0));
    assert_eq!(at(&rig, 2..7), [At::Open, At::Zeros, At::Zeros, At::Zeros, At::Open], "the mark outlives the AU");
    assert_eq!(used_aus(&rig), 0);
    rig.check_base(|_| false);
    rig.home.audit().unwrap();
    // The parent is gone: what is zeroed now needs no mark.
    let mut flat = put(4, 3..6, 0);
    flat.marks.clear();
    rig.round(flat);
    assert_eq!((at(&rig, 2..6), rig.home.chunks(R1).count()), (vec![At::Open; 4], 0), "nothing is left");
    rig.home.audit().unwrap();
}

#[test]
fn chunk_of_marks_alone_survives_a_mount() {
    let mut rig = rig();
    rig.round(put(1, 100..200, 0));
    let slots = rig.home.space_use().expect("it is mounted");
    assert_eq!((slots.map_slots, slots.crc_slots, slots.data_aus), (1, 0, 0), "a map page, and no page of checksums");
    rig.disk.power_cut();
    let (states, damaged) = rig.mount();
    assert_eq!((states.len(), damaged), (1, vec![]));
    rig.check_base(|_| false);
    assert_eq!(at(&rig, 99..101), [At::Open, At::Zeros]);
    rig.home.audit().unwrap();
    let mut cut = Plan::states(&[1], 2);
    cut.unmaps.push(crate::home_api::Unmap { replica: R1, generation: GenerationId(2), from_chunk: 0 });
    rig.round(cut);
    assert_eq!((rig.home.chunks(R1).count(), at(&rig, 100..101)), (0, vec![At::Open]));
    rig.home.audit().unwrap();
    let free = rig.home.space_use().expect("it is mounted").free_aus;
    assert_eq!(u64::from(free) * AU, rig.home.stats().capacity_bytes / AU * AU, "no AU is lost");
}

#[test]
fn discard_without_a_parent_leaves_no_mark() {
    let mut rig = rig();
    let plain = |index, blocks, stamp| Plan::states(&[1], index).put(1, chunk(1, 0), blocks, stamp);
    rig.round(plain(1, 0..4, 0));
    assert_eq!(rig.home.chunks(R1).count(), 0, "zeros over nothing are nothing");
    rig.round(plain(2, 0..4, 5));
    rig.round(plain(3, 1..2, 0));
    let found = rig.home.at(R1, chunk(1, 0), SectorRange::new(0, 24));
    let range = |start| SectorRange::new(start, 8);
    assert_eq!(found, [(range(0), At::Data), (range(8), At::Open), (range(16), At::Data)]);
    rig.home.audit().unwrap();
}

#[test]
fn dissolved_list_is_as_of_the_checkpoint() {
    let mut rig = rig();
    let mut lens = std::collections::BTreeSet::new();
    for index in 18..32 {
        rig.round(put(index, 0..1, index));
        rig.disk.power_cut();
        let (states, damaged) = rig.mount();
        let want = state(R1, index);
        lens.insert(want.dissolved.len());
        assert_eq!((&states[..], damaged), (&[want][..], vec![]), "round {index}");
        rig.home.audit().unwrap();
    }
    assert_eq!(lens.len(), 2, "lists of two pages come and go");
}

#[test]
fn lost_dissolved_page_damages_its_replica_for_good() {
    let mut rig = rig();
    rig.round(put(21, 0..1, 5));
    let slot = rig.home.replicas[&R1].dissolved.pages[1].slot;
    rig.disk.flip((rig.home.slot_offset(slot) + 100) as usize);
    for life in 0..2 {
        let (states, damaged) = rig.mount();
        assert!(matches!(&damaged[..], [(R1, why)] if why.contains("dissolved page 1")), "{life}: {damaged:?}");
        assert!(states.is_empty(), "a replica without its list is not what it was");
        rig.home.audit().unwrap();
    }
}
