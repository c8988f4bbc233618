//! The command line of `basalt disk`: tools for the device of a stopped OSD.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use types::{PgId, ReplicaId, SnapshotId, VolumeId};

#[derive(Subcommand, Debug)]
pub enum Disk {
    /// Superblock, log and contents of a device
    #[command(after_help = "Example:\n  basalt disk info /dev/nvme0n1")]
    Info(DiskDevice),
    /// List the replicas on a device, and their chunks
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  basalt disk ls /dev/nvme0n1\n  basalt disk ls /dev/nvme0n1 --pg 1.1f --chunks"
    )]
    Ls(DiskLs),
    /// Print the bytes of a chunk, verified: exit code 3 when --force wrote zeros for a bad block
    #[command(after_help = "Examples:
  basalt disk cat /dev/nvme0n1 --pg 1.1f --volume 3 --chunk 0 > chunk
  basalt disk cat /dev/nvme0n1 --pg 1.1f --volume 3 --chunk 0 --offset 1MiB --len 4KiB | xxd
  basalt disk cat /dev/nvme0n1 --pg 1.1f --volume 3 --chunk 0 --snapshot 12 > chunk")]
    Cat(DiskCat),
    /// Copy a chunk, or all chunks of a volume that the device holds, to a sparse file
    #[command(after_help = "Examples:
  basalt disk cp /dev/nvme0n1 --pg 1.1f --volume 3 --chunk 0 /srv/chunk
  basalt disk cp /dev/nvme0n1 --volume 3 /srv/vm1.raw")]
    Cp(DiskCp),
    /// Check everything on a device: exit code 0 clean, 3 damage was found
    #[command(after_help = "Examples:\n  basalt disk check /dev/nvme0n1\n  basalt disk check /dev/nvme0n1 --data")]
    Check(DiskCheck),
    /// Print the batches and records of the log, one a line
    #[command(
        name = "dump-log",
        after_help = "Examples:\n  basalt disk dump-log /dev/nvme0n1 --limit 20\n  \
            basalt disk dump-log /dev/nvme0n1 --from 5000 --json | jq .kind"
    )]
    DumpLog(DiskDumpLog),
    /// Space of a device by owner
    #[command(after_help = "Example:\n  basalt disk usage /dev/nvme0n1")]
    Usage(DiskDevice),
    /// Remove one replica from the device of a stopped OSD, for good
    #[command(after_help = "Examples:
  basalt disk rm /dev/nvme0n1 --pg 1.1f --replica 7            says what would happen
  basalt disk rm /dev/nvme0n1 --pg 1.1f --replica 7 --replace --yes
  basalt disk rm /dev/nvme0n1 --pg 1.1f --replica 7 --yes")]
    Rm(DiskRm),
}

#[derive(Args, Debug, Clone)]
pub struct DiskDevice {
    /// The device of a stopped OSD: a block device or a file
    pub device: PathBuf,
    /// The device of its log, if the OSD was formatted with one
    #[arg(long, value_name = "PATH")]
    pub log_device: Option<PathBuf>,
}

/// How much of the log counts.
#[derive(Args, Debug, Clone, Copy)]
pub struct LogEnd {
    /// Take entries of the log, too, that this device does not know to be committed
    #[arg(long)]
    pub uncommitted: bool,
}

#[derive(Args, Debug)]
pub struct DiskLs {
    #[command(flatten)]
    pub store: DiskDevice,
    /// Only replicas of this PG, as POOL.HEX
    #[arg(long, value_name = "PG")]
    pub pg: Option<PgId>,
    /// Only replicas with chunks of this volume or of its snapshots, and only these chunks; `basalt volume info` prints the id
    #[arg(long, value_name = "ID", value_parser = volume_id)]
    pub volume: Option<VolumeId>,
    /// List the chunks of each replica, too
    #[arg(long)]
    pub chunks: bool,
    #[command(flatten)]
    pub end: LogEnd,
}

#[derive(Args, Debug)]
pub struct DiskCat {
    #[command(flatten)]
    pub store: DiskDevice,
    /// The PG, as POOL.HEX
    #[arg(long, value_name = "PG")]
    pub pg: PgId,
    /// Id of the volume
    #[arg(long, value_name = "ID", value_parser = volume_id)]
    pub volume: VolumeId,
    /// Index of the chunk of 16 MiB in the volume, from 0
    #[arg(long, value_name = "N")]
    pub chunk: u32,
    /// Number of a snapshot, as `basalt disk ls --chunks` prints it [default: the volume itself]
    #[arg(long, value_name = "N", value_parser = snapshot_id)]
    pub snapshot: Option<SnapshotId>,
    /// First byte in the chunk
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = crate::size::parse)]
    pub offset: u64,
    /// Number of bytes [default: to the end of the chunk]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub len: Option<u64>,
    #[command(flatten)]
    pub source: Source,
}

/// The replica that bytes are taken from.
#[derive(Args, Debug, Clone, Copy)]
pub struct Source {
    /// Id of the replica [default: the newest one of the PG that has not failed]
    #[arg(long, value_name = "ID", value_parser = replica_id)]
    pub replica: Option<ReplicaId>,
    /// Write zeros for a bad block and go on; take what home holds of a failed replica
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub end: LogEnd,
}

#[derive(Args, Debug)]
pub struct DiskCp {
    #[command(flatten)]
    pub store: DiskDevice,
    /// The new file
    pub file: PathBuf,
    /// Id of the volume
    #[arg(long, value_name = "ID", value_parser = volume_id)]
    pub volume: VolumeId,
    /// Only chunks of this PG, as POOL.HEX
    #[arg(long, value_name = "PG")]
    pub pg: Option<PgId>,
    /// Only this chunk, at the begin of the file [default: all chunks, at their offsets in the volume]
    #[arg(long, value_name = "N", requires = "pg")]
    pub chunk: Option<u32>,
    /// Number of a snapshot, as `basalt disk ls --chunks` prints it [default: the volume itself]
    #[arg(long, value_name = "N", value_parser = snapshot_id)]
    pub snapshot: Option<SnapshotId>,
    /// Stripe unit of the volume, if it is striped: `basalt volume info` prints it
    #[arg(long, value_name = "SIZE", value_parser = crate::stripes::unit, conflicts_with = "chunk")]
    pub stripe_unit: Option<u64>,
    /// Stripe count of the volume
    #[arg(long, value_name = "N", value_parser = crate::stripes::count, conflicts_with = "chunk")]
    pub stripe_count: Option<u32>,
    #[command(flatten)]
    pub source: Source,
}

#[derive(Args, Debug)]
pub struct DiskCheck {
    #[command(flatten)]
    pub store: DiskDevice,
    /// Read and verify every block, too
    #[arg(long)]
    pub data: bool,
}

#[derive(Args, Debug)]
pub struct DiskDumpLog {
    #[command(flatten)]
    pub store: DiskDevice,
    /// First batch [default: the oldest one]
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    pub from: u64,
    /// Most batches [default: all]
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

#[derive(Args, Debug)]
pub struct DiskRm {
    #[command(flatten)]
    pub store: DiskDevice,
    /// The PG, as POOL.HEX
    #[arg(long, value_name = "PG")]
    pub pg: PgId,
    /// Id of the replica, as `basalt disk ls` prints it
    #[arg(long, value_name = "ID", value_parser = replica_id)]
    pub replica: ReplicaId,
    /// Mark it as failed instead: the cluster replaces it on this OSD under a new id, by itself
    #[arg(long)]
    pub replace: bool,
    /// Do it; without this flag nothing is changed
    #[arg(long)]
    pub yes: bool,
}

/// `7` or `r7`.
fn replica_id(text: &str) -> Result<ReplicaId, String> {
    let digits = text.strip_prefix('r').unwrap_or(text);
    digits.parse().map(ReplicaId).map_err(|_| format!("`{text}` is not the id of a replica; write 7 or r7"))
}

/// `12` or `snap12`.
fn snapshot_id(text: &str) -> Result<SnapshotId, String> {
    let digits = text.strip_prefix("snap").unwrap_or(text);
    digits.parse().map(SnapshotId).map_err(|_| format!("`{text}` is not the number of a snapshot; write 12 or snap12"))
}

/// `3` or `v3`.
fn volume_id(text: &str) -> Result<VolumeId, String> {
    let digits = text.strip_prefix('v').unwrap_or(text);
    digits.parse().map(VolumeId).map_err(|_| format!("`{text}` is not the id of a volume; write 3 or v3"))
}
