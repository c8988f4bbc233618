//! Damage that stays (R11, R15): sectors that cannot be read until they are written again, runs of pages, a stripe of a
//! device, and all members of a PG that are damaged at once, each at other places.
//!
//! Damage of one OSD counts against the budget. In [`Class::DisjointBlocks`] and [`Class::DisjointEntries`] every block and
//! every entry keeps good copies, so all of it must heal, although no member is whole.

use super::aimed_logs::ms;
use super::aimed_members::{draw_whole, is_whole};
use super::{Class, Strike};
use crate::cluster::Region;
use crate::stamp;
use simenv::DiskImage;
use types::units::{BLOCK, SECTOR, SECTORS_PER_BLOCK};

/// Longest run of neighbouring pages that fail together.
const RUN_PAGES_MAX: u64 = 64;
/// A stripe is one part in so many of the device.
const STRIPES: u64 = 16;
/// One of so many last batches of a log is hit.
const LAST_BATCHES: u64 = 3;
const SECTORS: u64 = SECTORS_PER_BLOCK as u64;

/// Whether the bytes of a place are changed, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Rot,
    Unreadable,
}

impl Damage {
    /// Damages one sector.
    fn strike(self, image: &DiskImage, at: u64, byte: u64, bit: u64) {
        match self {
            Damage::Rot => image.flip_bit(at + byte, bit as u8),
            Damage::Unreadable => image.make_unreadable(at, SECTOR),
        }
    }
}

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    match class {
        Class::UnreadableTail => unreadable_tail(s),
        Class::UnreadableSectors => one_device(s, class, Damage::Unreadable),
        Class::RottenRun => one_device(s, class, Damage::Rot),
        Class::DisjointBlocks => disjoint_blocks(s),
        Class::DisjointEntries => disjoint_entries(s),
        other => unreachable!("{other:?} leaves no damage"),
    }
}

/// Damages a part of one device: a sector, neighbouring pages, or the home pages of a stripe.
fn one_device(s: &mut Strike<'_>, class: Class, damage: Damage) -> bool {
    let Some(i) = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.is_lost(*i)) else { return false };
    let region = [Region::Log, Region::Tables, Region::Data, Region::Data, Region::Superblock][s.rng.below(5) as usize];
    let pages = s.cluster.region(i, region, s.rng);
    if pages.is_empty() {
        return false;
    }
    let nth = s.rng.below(pages.len() as u64) as usize;
    let end = match (region, s.rng.below(8)) {
        (Region::Superblock, _) | (_, 0..=2) => pages[nth] + BLOCK,
        // A log that lost a stripe has lost its replicas, and no other device may have lost its own.
        (Region::Data, 7) => pages[nth] + s.cluster.options.device_bytes / STRIPES,
        _ => pages[nth] + s.rng.between(1, RUN_PAGES_MAX) * BLOCK,
    };
    let whole = end > pages[nth] + BLOCK || s.rng.chance(1, 2);
    let image = s.cluster.image(i);
    for page in pages[nth..].iter().take_while(|page| **page < end) {
        let first = if whole { 0 } else { s.rng.below(SECTORS) };
        for sector in if whole { 0..SECTORS } else { first..first + 1 } {
            damage.strike(&image, page + sector * SECTOR, s.rng.below(SECTOR), s.rng.below(8));
        }
    }
    s.cluster.budget.note(i, class);
    if region == Region::Superblock && s.cluster.lacks_superblock(i) {
        s.cluster.budget.lose(i);
    }
    true
}

/// Stops an OSD, and makes a page of one of the last batches of its log unreadable. The batch may have been acknowledged, and
/// no later one says that it was durable.
fn unreadable_tail(s: &mut Strike<'_>) -> bool {
    let Some(i) = s.cluster.budget.pick(s.rng).filter(|i| !s.cluster.budget.is_lost(*i)) else { return false };
    let power = s.rng.chance(1, 2);
    s.cluster.stop_osd(i, power);
    let image = s.cluster.image(i);
    let mut batches = crate::rot::batches(&image);
    batches.sort_by_key(|(_, header)| std::cmp::Reverse(header.seq));
    let nth = s.rng.below(LAST_BATCHES) as usize;
    if let Some((at, header)) = batches.get(nth) {
        let page = if s.rng.chance(1, 2) { 0 } else { s.rng.below(header.len_bytes() / BLOCK) };
        image.make_unreadable(at + page * BLOCK + s.rng.below(SECTORS) * SECTOR, SECTOR);
        s.cluster.budget.note(i, Class::UnreadableTail);
    }
    start_soon(s, i);
    true
}

/// Damages every member of a PG, each at other blocks of home. In some strikes they lose their power as well.
fn disjoint_blocks(s: &mut Strike<'_>) -> bool {
    let Some(members) = whole_members(s) else { return false };
    let cut = s.rng.chance(1, 3);
    let damage = [Damage::Rot, Damage::Unreadable][s.rng.below(2) as usize];
    let one_in = [1, 4, 20][s.rng.below(3) as usize];
    for i in members {
        s.cluster.budget.note_aimed(i, Class::DisjointBlocks);
        if cut {
            s.cluster.stop_osd(i, true);
        }
        damage_blocks(s, i, damage, one_in);
        start_soon(s, i);
    }
    true
}

/// Cuts the power of every member of a PG, and damages payloads in the log of each, of other entries than in the others. The
/// loss of an entry that a peer's log has dropped is another case: no log has it.
fn disjoint_entries(s: &mut Strike<'_>) -> bool {
    let Some(members) = whole_members(s) else { return false };
    let count = s.cluster.options.osds as u64;
    members.iter().for_each(|i| s.cluster.stop_osd(*i, true));
    for i in members {
        s.cluster.budget.note_aimed(i, Class::DisjointEntries);
        s.cluster.rot_payloads(i, |_, index| index.0 % count == i as u64);
        start_soon(s, i);
    }
    true
}

/// Returns the members of a PG when those of every PG are whole: the damage hits all replicas of an OSD, and one that has failed
/// before and waits for its replacement is no good copy.
fn whole_members(s: &mut Strike<'_>) -> Option<Vec<usize>> {
    let (pg, _) = draw_whole(s)?;
    let records = s.cluster.meta.records()?;
    let all_whole = records.pgs.values().all(|record| is_whole(s.cluster, record) == Some(true));
    let record = records.pgs.get(&pg).filter(|_| all_whole)?;
    Some(record.members.iter().map(|member| member.osd.0 as usize - 1).collect())
}

fn start_soon(s: &mut Strike<'_>, i: usize) {
    let away = ms(s, 1, 300);
    s.after(away, move |s| s.cluster.start_osd(i));
}

/// Damages some of the blocks in the home of the i-th OSD whose turn it is: no other OSD damages its copy of such a
/// block.
fn damage_blocks(s: &mut Strike<'_>, i: usize, damage: Damage, one_in: u64) {
    let (image, count) = (s.cluster.image(i), s.cluster.options.osds as u64);
    for page in s.cluster.region(i, Region::Data, s.rng) {
        let mut bytes = [0; BLOCK as usize];
        image.read(page, &mut bytes);
        let mut stamps = bytes.chunks_exact(SECTOR as usize).filter_map(stamp::peek);
        let its_turn = stamps.next().is_some_and(|(volume, sector, _)| (volume + sector / SECTORS) % count == i as u64);
        if its_turn && s.rng.chance(1, one_in) {
            let at = page + s.rng.below(SECTORS) * SECTOR;
            damage.strike(&image, at, s.rng.below(SECTOR), s.rng.below(8));
        }
    }
}
