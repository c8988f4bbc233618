//! A whole device with damage that its checksums do not show: scan, replay, checkpoint, creation of the groups.
//!
//! A device is made once, by an engine with some history: entries, a checkpoint, a replaced tail, a tombstone. Input:
//! changes. Each change is a position in the used part of the device, a few bytes, and whether the checksums around
//! them are corrected. Properties: the mount ends, with replicas or with a reason; its entries are contiguous and
//! verified; a group starts from it or refuses; nothing panics.

use crate::source::Source;
use crate::store_model::{Pages, told};
use crate::{Verdict, log};
use engine::testing::{DISK_LEN, IDS, chunks};
use engine::{Engine, EngineConfig, EngineEvent};
use env::{DiskSpec, Env};
use group::{Group, GroupConfig};
use layout::log::{BATCH_ALIGN, FIXED_LEN};
use simenv::World;
use std::sync::OnceLock;
use types::rng::Rng;
use types::store::Recovered;
use types::{SectorRange, Time, crc32c};

const DEVICE: &str = "device";
/// Most steps of the world before a mount must have ended.
const STEPS_MAX: usize = 4000;

/// Returns the device after that history: the pages that are not zero.
fn story() -> &'static Pages {
    static STORY: OnceLock<Pages> = OnceLock::new();
    STORY.get_or_init(told)
}

/// Returns a position, often in a fixed header or in the records after it.
fn place(source: &mut Source<'_>) -> (usize, usize) {
    let story = story();
    let page = source.below(story.len() as u32) as usize;
    let at = match source.below(4) {
        0 => source.below(FIXED_LEN as u32),
        1 => FIXED_LEN as u32 + source.below(512),
        2 => FIXED_LEN as u32 + source.below(3000),
        _ => source.below(4096),
    };
    (page, at as usize)
}

/// Applies the changes to a copy of the pages.
fn changed(source: &mut Source<'_>) -> Vec<(u64, Vec<u8>)> {
    let mut pages = story().clone();
    while !source.is_empty() {
        let (page, at) = place(source);
        let how = source.byte();
        let (offset, bytes) = &mut pages[page];
        let width = [1, 2, 4, 8][usize::from(how & 3)];
        let value = match how >> 2 & 3 {
            0 => u64::MAX,
            1 => u64::from(source.byte()),
            2 => source.u64(),
            _ => u64::from(bytes[at]) ^ 1 << (how & 7),
        };
        for (n, byte) in bytes.iter_mut().skip(at).take(width).enumerate() {
            *byte = (value >> (8 * n)) as u8;
        }
        if how & 0xe0 != 0 {
            mend(*offset, bytes);
        }
    }
    pages
}

/// Corrects the checksums if the page begins a batch whose records and copy lie in it, or the checksum of a superblock.
fn mend(offset: u64, page: &mut [u8]) {
    if page.starts_with(b"BSLTBTCH") {
        let len = u32::from_le_bytes([page[20], page[21], page[22], page[23]]) as usize;
        if let Some(records) = page.get(FIXED_LEN..FIXED_LEN.saturating_add(len)) {
            let crc = crc32c(records);
            page[28..32].copy_from_slice(&crc.to_le_bytes());
        }
        let copy_len = u32::from_le_bytes([page[96], page[97], page[98], page[99]]) as usize;
        let copy_at = FIXED_LEN.saturating_add(len);
        if let Some(copy) = page.get_mut(copy_at..copy_at.saturating_add(copy_len)).filter(|c| c.len() >= FIXED_LEN) {
            let crc = crc32c(&copy[FIXED_LEN..]);
            copy[28..32].copy_from_slice(&crc.to_le_bytes());
            log::seal(copy, &log::LOG);
            let crc = crc32c(copy);
            page[100..104].copy_from_slice(&crc.to_le_bytes());
        }
        log::seal(page, &log::LOG);
    } else if page.starts_with(b"BSLTSUPR") {
        let mut whole = page.to_vec();
        crate::home::superblock_fix(&mut whole);
        page.copy_from_slice(&whole);
    }
    assert!(offset.is_multiple_of(BATCH_ALIGN as u64));
}

/// Mounts a device with these pages and returns the replicas found, or `None` if the mount failed.
fn mount(pages: &[(u64, Vec<u8>)], seed: u64) -> (World, Box<dyn Env>, Engine, Option<Vec<Recovered>>) {
    let world = World::new(seed);
    let node = world.add_node("osd");
    world.create_disk(node, DEVICE, DISK_LEN, true);
    let image = world.disk_image(node, DEVICE);
    pages.iter().for_each(|(at, bytes)| image.write(*at, bytes));
    let mut env = world.env(node);
    let spec = DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false };
    let disk = env.open_disk(&spec).expect("it was just made");
    let mut engine = Engine::new(EngineConfig::default(), disk, IDS);
    let (mut ops, mut events, mut out) = (Vec::new(), Vec::new(), Vec::new());
    engine.start(env.now(), &mut ops);
    for _ in 0..STEPS_MAX {
        env.turn(&mut ops, &mut events, Time::NEVER).expect("a simulated ring does not fail");
        for event in events.drain(..) {
            engine.handle_event(env.now(), event, &mut ops, &mut out);
        }
        engine.end_turn(env.now(), &mut ops, &mut out);
        for event in out.drain(..) {
            match event {
                EngineEvent::Mounted(found) => return (world, Box::new(env), engine, Some(found)),
                EngineEvent::MountFailed(_) => return (world, Box::new(env), engine, None),
                _ => {}
            }
        }
        if ops.is_empty() {
            let next = world.next_event_time().expect("a mount waits for something");
            world.advance_to(next);
        }
    }
    panic!("a mount does not end");
}

/// Runs the target described at the head of this file. First byte: order of completions.
pub fn run(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let seed = source.byte();
    let pages = changed(&mut source);
    let (_world, env, mut engine, found) = mount(&pages, seed.into());
    let Some(found) = found else { return Verdict::Refused };
    for recovered in found {
        check(&recovered);
        let replica = recovered.identity.replica;
        let osd = recovered.identity.members.first().map_or(IDS.1, |m| m.osd);
        let now = env.now();
        // A replica with lost payload gets no group before the payload is restored.
        if recovered.lost.is_empty()
            && let Ok(mut group) = Group::new(GroupConfig::new(osd), recovered, now, 1)
        {
            let mut actions = Vec::new();
            group.poll(now, &mut actions);
            assert!(group.applied() <= group.commit());
        }
        let mut out = Vec::new();
        for chunk in chunks() {
            engine.read(1, replica, chunk, SectorRange::new(0, 64), &mut out);
        }
    }
    Verdict::Taken
}

/// Asserts the properties that a group relies on.
fn check(found: &Recovered) {
    if found.failure.is_some() {
        return;
    }
    let k = found.checkpoint.index;
    let last = found.before.0.0.saturating_add(found.entries.len() as u64).max(k.0);
    assert!(found.before.0 <= k && k <= found.hard_state.commit && found.hard_state.commit.0 <= last);
    let mut before = found.before;
    for entry in &found.entries {
        assert!(entry.index.0 == before.0.0 + 1 && entry.term >= before.1, "{:?} after {before:?}", entry.index);
        before = (entry.index, entry.term);
        if let Some(count) = u32::try_from(entry.payload.len() / 512).ok().filter(|n| *n > 0) {
            let range = SectorRange::checked(entry.crcs.start, count).expect("a payload lies in a chunk");
            assert!(range.verify(&entry.payload, &entry.crcs.values), "an unverified payload");
        }
    }
}

/// Returns a few random bytes, which make no change or a few.
pub fn seed(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(40);
    (0..=len).map(|_| rng.next_u64() as u8).collect()
}
