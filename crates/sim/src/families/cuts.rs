//! Shrinks of the volumes of a family: one gets shorter and then as long as before, while its machine works or between two lives.
//!
//! For the history of the volume that is a write of zeros behind the nearer end: submitted with the first command, and done when the volume
//! is long again. It belongs to no session, so no fence ends it. Requests behind the nearer end may fail meanwhile.
//!
//! Invariant: at most one goes on. No snapshot is made, and nothing is turned back, meanwhile.

use super::{ASK_AGAIN, Families, Stage};
use crate::check::linear::Linear;
use crate::cluster::Cluster;
use control::admin::{AdminAsk, Resizing};
use std::collections::BTreeSet;
use std::ops::Range;
use types::rng::Rng;
use types::units::{CHUNK, SEGMENT};
use types::{SECTOR, Stripe, Time, VolumeId};

/// Sectors that one noted write of zeros has at most.
const PIECE: u64 = 128;

/// A shrink that goes on.
pub(super) struct Cutting {
    pub volume: VolumeId,
    name: String,
    history: u64,
    /// The nearer end, and the one that comes back.
    pub end: u64,
    len_bytes: u64,
    /// Stamps of the pieces that are noted are above this one.
    stamp: u64,
    covered: BTreeSet<u64>,
    asked_at: Time,
    /// The first command does not delete data.
    careful: bool,
    /// It was shorter; now it gets longer.
    is_cut: bool,
}

impl Cutting {
    /// Notes that the sectors of these ranges that lie behind the end become zeros.
    pub fn cover(&mut self, now: Time, areas: Vec<Range<u64>>, linear: &mut Linear) {
        let (end, len) = (self.end / SECTOR, self.len_bytes / SECTOR);
        for area in areas.into_iter().filter(|area| area.end > end) {
            for piece in area.start / PIECE..area.end.div_ceil(PIECE) {
                let sectors = (piece * PIECE).max(end)..((piece + 1) * PIECE).min(len);
                if sectors.start < sectors.end && self.covered.insert(piece) {
                    linear.write_started(self.history, sectors, self.stamp | (piece + 1), true, now.0);
                }
            }
        }
    }

    fn pieces(&self) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let (end, len) = (self.end / SECTOR, self.len_bytes / SECTOR);
        let piece = move |n: &u64| ((n * PIECE).max(end)..((n + 1) * PIECE).min(len), self.stamp | (n + 1));
        self.covered.iter().map(piece)
    }
}

/// Returns the layout of a new volume: some are striped, where the pool has PGs enough.
pub(super) fn some_stripe(rng: Option<&mut Rng>, cluster: &Cluster) -> Stripe {
    let pgs = cluster.meta.records().and_then(|records| records.pools.values().next()).map_or(0, |pool| pool.pg_count);
    match rng {
        Some(rng) => match rng.chance(1, 3) && pgs >= 2 {
            true => Stripe::new(65536, 2).expect("a layout"),
            false => Stripe::NONE,
        },
        None => Stripe::NONE,
    }
}

impl Families {
    /// Begins to make a volume shorter; false when it cannot be made shorter now.
    pub(super) fn begin_cut(&mut self, now: Time, line: usize, cluster: &mut Cluster) -> bool {
        let line = &self.lines[line];
        let Some(records) = cluster.meta.records() else { return false };
        let Some(known) = records.volumes.get(&line.volume) else { return false };
        let is_busy = known.flatten.is_some() || records.cut_of(line.volume).is_some();
        if is_busy || line.shots.iter().any(|shot| !shot.is_ready()) {
            return false;
        }
        let (volume, name, len_bytes, history) = (line.volume, line.name.clone(), line.len_bytes, line.history.key);
        let places =
            [CHUNK - (16 << 10), CHUNK, CHUNK + 4096, 2 * CHUNK + 512, SEGMENT - 4096, SEGMENT, len_bytes - (32 << 10)];
        let end = places[self.rng.below(places.len() as u64) as usize].min(len_bytes - SECTOR);
        let (stamp, careful) = ((self.fresh() << 8 | self.machine as u64) << 40, self.rng.chance(1, 3));
        let covered = BTreeSet::new();
        let (asked_at, is_cut) = (Time::ZERO, false);
        let mut cut = Cutting { volume, name, history, end, len_bytes, stamp, covered, asked_at, careful, is_cut };
        let strips = cluster.linear.strips_of(history).into_iter().map(|(first, count)| first..first + count);
        cut.cover(now, strips.collect(), &mut cluster.linear);
        let areas = cluster.client(self.machine).workload.as_mut().map_or_else(Vec::new, |work| {
            work.be_cut(end);
            work.areas()
        });
        cut.cover(now, areas, &mut cluster.linear);
        tracing::info!(%volume, end, careful, "a volume gets shorter");
        self.cut = Some(cut);
        true
    }

    /// Has the volume made shorter, and then longer.
    pub(super) fn go_on_cutting(&mut self, now: Time, cluster: &mut Cluster) {
        let Some(mut cut) = self.cut.take() else { return };
        cut.pieces().for_each(|(_, stamp)| cluster.linear.keep(cut.history, stamp));
        let known = cluster.meta.records().and_then(|records| records.volumes.get(&cut.volume));
        let state = known.map(|known| (known.len_bytes, known.resize.is_none()));
        let ask = now >= cut.asked_at + ASK_AGAIN;
        match state {
            Some((len, true)) if len == cut.end => cut.is_cut = true,
            Some((len, true)) if len == cut.len_bytes && cut.is_cut => {
                cut.pieces()
                    .for_each(|(sectors, stamp)| cluster.linear.write_ended(cut.history, sectors, stamp, now.0));
                self.counts.shrinks += 1;
                tracing::info!(volume = %cut.volume, "a volume has its length again");
                return;
            }
            _ => {}
        }
        if matches!(state, Some((_, true))) && ask {
            cut.asked_at = now;
            let to = match cut.is_cut {
                true => Resizing::to(cut.len_bytes),
                false => {
                    let force = !self.closing && self.rng.chance(1, 8);
                    Resizing { len_bytes: cut.end, shrink: true, discard: !cut.careful, force }
                }
            };
            if to.force {
                self.lose_volume(cut.volume, cluster);
            }
            tracing::info!(volume = %cut.volume, ?to, "its length is ordered");
            cut.careful = false;
            cluster.admin(AdminAsk::VolumeResize { name: cut.name.clone(), to });
        }
        self.cut = Some(cut);
    }

    /// The machine may lose the volume from now on: it has not confirmed the shorter length.
    fn lose_volume(&mut self, volume: VolumeId, cluster: &mut Cluster) {
        let Stage::Living { line, .. } = self.stage else { return };
        if self.lines[line].volume != volume {
            return;
        }
        let client = cluster.client(self.machine);
        if client.is_open() {
            client.workload.iter_mut().for_each(|work| work.be_surprised());
            return client.preempted();
        }
        // Its open is on the way, and may be answered with the longer length.
        client.hang_up();
        client.workload = None;
        self.go_to(Stage::Choosing);
    }

    /// Waits for the end of a shrink, or begins a life beside it.
    pub(super) fn choose_beside_cut(&mut self, now: Time, cluster: &mut Cluster) {
        if !self.closing && self.rng.chance(1, 4) {
            let line = self.rng.below(self.lines.len() as u64) as usize;
            self.begin_life(now, line, cluster);
        }
    }
}
