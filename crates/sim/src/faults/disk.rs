//! Faults of disks: a disk is slow, stands still, fails, or lies.
//!
//! Faults that take back acknowledged bytes strike only where the budget allows it. A failed write or flush poisons the
//! store (R15): its mount is refused until an operator confirms the device (ADR 0006).

use super::{Class, Strike};
use crate::cluster::Region;

pub fn strike(class: Class, s: &mut Strike<'_>) -> bool {
    if matches!(class, Class::SlowDisk | Class::StuckDisk) {
        let i = s.osd();
        if class == Class::SlowDisk {
            let factor = s.rng.between(5, 200) as u32;
            s.cluster.disk_faults(i, |f| f.slow = factor);
            s.mend(10, 2000, move |s| s.cluster.disk_faults(i, |f| f.slow = 1));
        } else {
            s.cluster.disk_faults(i, |f| f.stuck = true);
            s.mend(20, 8000, move |s| s.cluster.disk_faults(i, |f| f.stuck = false));
        }
        return true;
    }
    let Some(i) = s.cluster.budget.pick(s.rng) else { return false };
    if s.cluster.budget.is_lost(i) {
        return false;
    }
    // The fault strikes soon, or in the middle of something that is far away.
    let far = [3, 30, 300][s.rng.below(3) as usize];
    let nth = Some(s.rng.below(far));
    match class {
        Class::BitRotLog => return rot(s, i, Region::Log),
        Class::BitRotTables => return rot(s, i, Region::Tables),
        Class::BitRotData => return rot(s, i, Region::Data),
        Class::BitRotSuper => return rot(s, i, Region::Superblock),
        Class::PhantomWrite => s.cluster.disk_faults(i, |f| f.phantom_write = nth),
        Class::MisdirectedWrite => s.cluster.disk_faults(i, |f| f.misdirect_write = nth),
        Class::MisdirectedRead => s.cluster.disk_faults(i, |f| f.misdirect_read = nth),
        Class::ReadError => {
            let often = s.rng.chance(1, 2);
            s.cluster.disk_faults(i, |f| {
                f.fail_read = nth;
                f.read_error_ppm = if often { 20_000 } else { 0 };
            });
            s.mend(50, 3000, move |s| s.cluster.disk_faults(i, |f| (f.fail_read, f.read_error_ppm) = (None, 0)));
        }
        Class::WriteError | Class::FlushError | Class::FullDisk => {
            s.cluster.disk_faults(i, |f| match class {
                Class::WriteError => f.fail_write = nth,
                Class::FlushError => f.fail_flush = nth,
                _ => f.full = true,
            });
            s.mend(50, 3000, move |s| {
                s.cluster.disk_faults(i, |f| (f.fail_write, f.fail_flush, f.full) = (None, None, false));
                // An operator handles a poisoned store: it starts again, after it was refused and confirmed.
                s.cluster.stop_osd(i, false);
                s.cluster.start_osd(i);
            });
        }
        other => unreachable!("{other:?} is no fault of a disk"),
    }
    s.cluster.budget.note(i, class);
    true
}

/// Damages a few bits or a whole sector of stored pages.
fn rot(s: &mut Strike<'_>, i: usize, region: Region) -> bool {
    let image = s.cluster.image(i);
    let pages = s.cluster.region(i, region, s.rng);
    if pages.is_empty() {
        return false;
    }
    for _ in 0..s.rng.between(1, 3) {
        let page = pages[s.rng.below(pages.len() as u64) as usize];
        if s.rng.chance(1, 4) {
            let bytes: Vec<u8> = (0..64).flat_map(|_| s.rng.next_u64().to_le_bytes()).collect();
            image.write(page + 512 * s.rng.below(8), &bytes);
        } else {
            image.flip_bit(page + s.rng.below(4096), s.rng.below(8) as u8);
        }
    }
    let class = match region {
        Region::Log => Class::BitRotLog,
        Region::Tables => Class::BitRotTables,
        Region::Data => Class::BitRotData,
        Region::Superblock => Class::BitRotSuper,
    };
    s.cluster.budget.note(i, class);
    if region == Region::Superblock && s.cluster.lacks_superblock(i) {
        // Without a superblock the layout is unknown: the device is lost.
        s.cluster.budget.lose(i);
    }
    true
}
