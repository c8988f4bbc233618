//! The rows of the suite: what is measured, in which layout, and beside which yardstick.

use std::fmt;

/// Number of PGs that a spread volume uses, and of volumes in [`Layout::Volumes`].
pub const SPREAD: u32 = 16;

/// Placement of the measured data. The data is 1 GiB in each but [`Layout::Nbd`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Layout {
    /// One segment of one volume.
    OnePg,
    /// One volume over 16 PGs that one OSD leads.
    OneLeader,
    /// One volume over 16 PGs with leaders on all OSDs.
    Spread,
    /// One volume of one segment, striped over 16 PGs in units of 64 KiB.
    Striped,
    /// [`Layout::Spread`] in a volume that has 100 snapshots; 0.1 % of its blocks were written between each two of them.
    Snapshots,
    /// 16 volumes of one segment each with leaders on all OSDs; each has a client process of its own.
    Volumes,
    /// [`Layout::Spread`] beside a client that writes large requests to another volume. Only the small requests are counted.
    Beside,
    /// One volume of 4 GiB, all of it used, behind an NBD server, driven by fio.
    Nbd,
}

impl Layout {
    pub fn word(self) -> &'static str {
        match self {
            Layout::OnePg => "one-pg",
            Layout::OneLeader => "one-leader",
            Layout::Spread => "spread",
            Layout::Striped => "striped",
            Layout::Snapshots => "snapshots",
            Layout::Volumes => "volumes",
            Layout::Beside => "beside",
            Layout::Nbd => "nbd",
        }
    }
}

/// An I/O pattern.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    RandWrite,
    RandRead,
    /// 70 % random reads, 30 % random writes.
    Mixed,
    Write,
    Read,
}

/// Share of reads in [`Op::Mixed`], in percent.
pub const MIXED_READS: u32 = 70;

impl Op {
    pub fn word(self) -> &'static str {
        match self {
            Op::RandWrite => "randwrite",
            Op::RandRead => "randread",
            Op::Mixed => "randrw",
            Op::Write => "write",
            Op::Read => "read",
        }
    }

    pub fn writes(self) -> bool {
        matches!(self, Op::RandWrite | Op::Mixed | Op::Write)
    }
}

/// Least cost that a row is compared with, measured on the same machine in the same round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Yardstick {
    /// `basalt bench floor` at this depth, with so many leaders.
    Floor { depth: u32, leaders: u32 },
    /// fio on a file of the disk that holds the devices.
    Raw { op: Op, block: u32, depth: u32 },
    /// Round trips of small messages over loopback TCP, one after the other.
    Loopback,
    /// fio writes small requests with a flush each, one after the other, beside another fio that writes large ones to the same disk.
    Beside,
}

impl fmt::Display for Yardstick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Yardstick::Floor { depth, leaders: 1 } => write!(f, "floor/d{depth}"),
            Yardstick::Floor { depth, leaders } => write!(f, "floor-{leaders}-leaders/d{depth}"),
            Yardstick::Raw { op, block, depth } => write!(f, "raw/{}-{}/d{depth}", op.word(), kib(*block)),
            Yardstick::Loopback => f.write_str("loopback/d1"),
            Yardstick::Beside => f.write_str("raw-beside/randwrite-4k/d1"),
        }
    }
}

/// Rows that share a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Small requests, and no destage round in the run.
    Burst,
    /// The same through NBD. On one cluster with the others the data is more than the cache of some disks holds, and reads meet that.
    Nbd,
    /// Large requests. On the devices of a burst, which are nearly full, they would go through the log (ADR 0030).
    Large,
    /// Small requests until the log has wrapped several times.
    Sustained,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Burst, Phase::Nbd, Phase::Large, Phase::Sustained];
}

/// One row. The depth is that of the whole layout: 16 volumes share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub layout: Layout,
    pub op: Op,
    pub block: u32,
    pub depth: u32,
    /// Whether it runs until the log has wrapped several times, on a small log.
    pub sustained: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { layout, op, block, depth, sustained } = self;
        let tail = if *sustained { "/sustained" } else { "" };
        write!(f, "{}/{}-{}/d{depth}{tail}", layout.word(), op.word(), kib(*block))
    }
}

pub fn kib(block: u32) -> String {
    format!("{}k", block >> 10)
}

/// Whether the text chooses this name: it is a part of the name that no digit follows.
pub fn chooses(text: &str, name: &str) -> bool {
    let whole = |at: usize| !name[at + text.len()..].starts_with(|c: char| c.is_ascii_digit());
    name.match_indices(text).any(|(at, _)| whole(at))
}

/// Returns the least cost of such requests.
pub fn yardstick(op: Op, block: u32, depth: u32) -> Yardstick {
    match op {
        Op::RandWrite => Yardstick::Floor { depth, leaders: 1 },
        _ => Yardstick::Raw { op, block, depth },
    }
}

impl Row {
    /// Whether the text chooses this row. Sustained rows take long, so they must be meant.
    pub fn is_meant(&self, text: &str) -> bool {
        chooses(text, &self.to_string()) && (!self.sustained || text.contains("sustained"))
    }

    pub fn phase(&self) -> Phase {
        match self.sustained {
            true => Phase::Sustained,
            false if self.block >= LARGE => Phase::Large,
            false if self.layout == Layout::Nbd => Phase::Nbd,
            false => Phase::Burst,
        }
    }

    pub fn yardstick(&self) -> Yardstick {
        yardstick(self.op, self.block, self.depth)
    }

    /// Returns what the least cost of the row's own shape is made of, where that differs from the yardstick: a floor with leaders on all
    /// OSDs, for single reads the way over loopback in addition to the raw read, and beside large writes what the disk alone takes then.
    pub fn shape_yardstick(&self) -> Option<Yardstick> {
        match self.op {
            _ if self.layout == Layout::Beside => Some(Yardstick::Beside),
            _ if self.layout != Layout::Spread || self.sustained => None,
            Op::RandWrite => Some(Yardstick::Floor { depth: self.depth, leaders: 3 }),
            Op::RandRead if self.depth == 1 => Some(Yardstick::Loopback),
            _ => None,
        }
    }
}

pub const SMALL: u32 = 4 << 10;
pub const LARGE: u32 = 512 << 10;
/// Depth of the rows with large requests.
pub const LARGE_DEPTH: u32 = 16;

/// Returns all rows; those with the same yardstick stand side by side.
pub fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |layouts: &[Layout], op: Op, block: u32, depth: u32| {
        rows.extend(layouts.iter().map(|layout| Row { layout: *layout, op, block, depth, sustained: false }));
    };
    use Layout::{Beside, Nbd, OneLeader, OnePg, Snapshots, Spread, Striped, Volumes};
    add(&[OnePg, Spread, Nbd, Beside], Op::RandWrite, SMALL, 1);
    add(&[OnePg, OneLeader, Spread, Snapshots, Volumes, Nbd], Op::RandWrite, SMALL, 32);
    add(&[OnePg, Spread, Volumes, Nbd], Op::RandWrite, SMALL, 128);
    add(&[Spread, Nbd], Op::RandRead, SMALL, 1);
    add(&[OnePg, Spread, Snapshots, Volumes, Nbd], Op::RandRead, SMALL, 32);
    add(&[Spread, Nbd], Op::RandRead, SMALL, 128);
    add(&[Spread, Nbd], Op::Mixed, SMALL, 32);
    add(&[OnePg, Spread, Striped, Nbd], Op::Write, LARGE, LARGE_DEPTH);
    add(&[OnePg, Spread, Striped, Nbd], Op::Read, LARGE, LARGE_DEPTH);
    let long = |layout| Row { layout, op: Op::RandWrite, block: SMALL, depth: 32, sustained: true };
    rows.extend([OnePg, Spread, Snapshots].map(long));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_text_chooses_rows_by_whole_numbers() {
        let chosen = |text: &str| all().iter().filter(|row| row.is_meant(text)).count();
        assert_eq!(chosen("spread/randwrite-4k/d1"), 1);
        assert_eq!(chosen("spread/randwrite-4k"), 3);
        assert_eq!((chosen("one-pg/randwrite-4k/d32/sustained"), chosen("sustained")), (1, 3));
        assert_eq!(chosen("nothing"), 0);
    }

    #[test]
    fn names_are_unique_and_rows_of_one_yardstick_adjoin() {
        let rows = all();
        let names: BTreeSet<String> = rows.iter().map(Row::to_string).collect();
        assert_eq!(names.len(), rows.len());
        assert!(names.contains("spread/randwrite-4k/d32") && names.contains("nbd/write-512k/d16"));
        let mut yardsticks: Vec<Yardstick> = rows.iter().filter(|row| !row.sustained).map(Row::yardstick).collect();
        yardsticks.dedup();
        let kinds: BTreeSet<Yardstick> = yardsticks.iter().copied().collect();
        assert_eq!(kinds.len(), yardsticks.len(), "a yardstick is measured once a round");
        assert_eq!(yardsticks[0].to_string(), "floor/d1");
        let large = |of: Phase| rows.iter().filter(|row| row.phase() == of && row.block == LARGE).count();
        assert_eq!(Phase::ALL.map(large), [0, 0, 8, 0]);
    }
}
