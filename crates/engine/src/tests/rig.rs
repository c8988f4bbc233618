//! A [`Harness`] on a [`Disk`]: turns, restarts, and the judgement of what failed.

use super::disk::Disk;
use crate::testing::{DISK_LEN, FailedRead, Harness, SECTORS, chunks, params};
use crate::{EngineConfig, FormatParams, ReadError, Superblock, format_device};
use env::{DiskInfo, DiskKind};
use std::time::Duration;
use types::rng::Rng;
use types::store::Effect;
use types::units::SECTORS_PER_AU;
use types::{ChunkKey, ReplicaId, SectorRange, Time};

pub(super) type Rig = Harness<Disk>;

/// Formats the two devices; returns their superblocks, that of the log first.
pub(super) fn format_pair(disk: &mut Disk) -> Vec<Superblock> {
    let disks = disk.disks();
    let format = |(info, part)| {
        let format = FormatParams { part, ..params() };
        format_device(disk, info, &format, &mut |_, _| {}).expect("an empty device formats")
    };
    disks.each().into_iter().map(format).collect()
}

/// Replicas from this id on have a peer elsewhere.
const FIRST_WITH_PEER: u64 = 100;

impl Harness<Disk> {
    pub fn new(seed: u64, volatile: bool, config: EngineConfig) -> Rig {
        Rig::on(Disk::new(DISK_LEN, seed, volatile), params(), config)
    }

    /// Does the same with segments of this length, and a home with room for payloads. Segments of 2 MiB are longer than the longest
    /// batch in the log; those of 8 MiB leave room for batches that place as much as they may.
    pub fn with_long_segments(seed: u64, volatile: bool, segment_bytes: u64, config: EngineConfig) -> Rig {
        let log_bytes = 16 * segment_bytes;
        let format = FormatParams { segment_bytes, log_bytes, ..params() };
        Rig::on(Disk::new(DISK_LEN + (16 << 20) + 2 * log_bytes, seed, volatile), format, config)
    }

    /// Does the same on a file whose home has holes: what is written there needs a flush.
    pub fn on_file(seed: u64, config: EngineConfig) -> Rig {
        let mut disk = Disk::new(DISK_LEN, seed, false);
        disk.info.kind = DiskKind::File;
        let mut rig = Rig::on(disk, params(), config);
        rig.disk.sparse_from = Some(rig.superblock.home_start as usize);
        rig
    }

    /// Does the same with a device for the log and one for home, which has a kind, a cache and an alignment of its own.
    pub fn apart(seed: u64, (log_volatile, home_volatile, kind): (bool, bool, DiskKind), config: EngineConfig) -> Rig {
        let log = params().log_bytes + (2 << 20);
        let mut disk = Disk::new(log + DISK_LEN - params().log_bytes, seed, log_volatile);
        disk.home_from = Some(log as usize);
        let info = disk.info.clone();
        disk.home = Some(DiskInfo { kind, volatile_cache: home_volatile, align_bytes: 4096, ..info });
        disk.sparse_from = disk.home_from.filter(|_| kind == DiskKind::File);
        let superblocks: Vec<Superblock> = format_pair(&mut disk);
        let disks = disk.disks();
        let mut rig = Harness::mount(disk, disks, superblocks[0], config, Time(1_000_000));
        rig.settle();
        rig
    }

    fn on(mut disk: Disk, format: FormatParams, config: EngineConfig) -> Rig {
        let info = disk.info.clone();
        let superblock = format_device(&mut disk, &info, &format, &mut |_, _| {}).expect("an empty disk formats");
        let mut rig = Harness::mount(disk, info, superblock, config, Time(1_000_000));
        rig.settle();
        rig
    }

    /// Choices of the test, apart from those of the disk.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.disk.choices
    }

    /// Starts a new process on the same disk.
    pub fn restart(&mut self) {
        let disks = self.disk.disks();
        self.boot(disks);
        self.settle();
    }

    /// Does the same, and checks the state that comes back.
    pub fn restart_and_check(&mut self) {
        self.restart();
        assert_eq!(self.seen.mount_failed, None);
        let recovered = std::mem::take(&mut self.seen.recovered);
        assert_eq!(recovered.len(), self.models.len(), "every replica comes back");
        self.engine.audit().expect("the books balance");
        for found in recovered {
            assert_eq!(found.failure, None);
            assert_eq!(found.lost, [], "an honest disk loses no payload");
            self.check_recovered(found, false);
        }
        self.check_all_sectors();
    }

    pub fn check_all_sectors(&mut self) {
        self.models.keys().copied().collect::<Vec<_>>().into_iter().for_each(|replica| self.read_all(replica));
        self.settle();
        assert!(self.is_answered(), "every read is answered");
    }

    pub fn create(&mut self, id: u64) {
        self.create_replica(ReplicaId(id), u32::from(id >= FIRST_WITH_PEER));
        self.settle();
    }

    /// Runs one turn of the loop, then up to `completions` of the disk.
    pub fn turn(&mut self, completions: u64) {
        self.now = self.now + Duration::from_micros(self.rng().between(1, 2000));
        if self.engine.wants_round(self.now) {
            self.round();
        }
        self.end_turn();
        self.disk.submit(&mut self.ops);
        for _ in 0..completions {
            let Some(event) = self.disk.step() else { break };
            self.handle_event(event);
            self.disk.submit(&mut self.ops);
        }
        self.judge();
    }

    /// Runs turns until nothing moves.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..20_000 {
            let writes = self.disk.writes;
            self.turn(16);
            let rests = self.disk.is_idle() && self.ops.is_empty() && self.disk.writes == writes;
            quiet = if rests && self.engine.next_deadline() > self.now { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    fn judge(&mut self) {
        assert_eq!(self.seen.unstaged, [], "staged blocks were lost");
        for FailedRead { asked, error, damaged } in std::mem::take(&mut self.seen.failed_reads) {
            let told = self.seen.bad.iter().any(|bad| (bad.replica, bad.chunk) == (asked.replica, asked.chunk));
            let excused = damaged || told && matches!(error, ReadError::BadBlocks { .. });
            assert!(excused, "{asked:?}: {error}");
        }
    }

    /// Returns the places of bad blocks of home that the engine has reported.
    pub fn bad_blocks(&self) -> Vec<(ReplicaId, ChunkKey, SectorRange)> {
        self.seen.bad.iter().map(|bad| (bad.replica, bad.chunk, bad.range)).collect()
    }

    /// Returns a random effect that fits the tested chunks.
    pub fn effect(&mut self) -> Effect {
        let is_large = self.config.redirect_min.is_some() && self.rng().chance(1, 4);
        let rng = self.rng();
        let chunk = chunks()[rng.below(4) as usize];
        if is_large {
            let au = rng.below(u64::from(SECTORS / SECTORS_PER_AU)) as u32;
            let count = rng.between(1, u64::from(SECTORS / SECTORS_PER_AU - au)) as u32;
            return Effect::Write { chunk, range: SectorRange::new(au * SECTORS_PER_AU, count * SECTORS_PER_AU) };
        }
        let start = rng.below(u64::from(SECTORS)) as u32;
        let range = match rng.below(3) {
            0 => SectorRange::new(start / 8 * 8, 8),
            _ => SectorRange::new(start, rng.between(1, u64::from(SECTORS - start).min(40)) as u32),
        };
        match rng.below(40) {
            0 => Effect::None,
            1..=5 => Effect::Zero { chunk, range },
            6 => Effect::Unmap { generation: chunk.generation, from_chunk: rng.below(3) as u32 },
            _ => Effect::Write { chunk, range },
        }
    }
}
