//! The command line. Every flag has a unit and a default, and the help of a command that takes more than a name has an example.

use crate::address::Address;
pub use crate::backup::args::Backup;
use crate::completion;
pub use crate::disk_args::Disk;
use crate::errors::UserError;
pub use crate::osd_args::{Config, Osd, OsdFlag, OsdFormat, OsdIntent, OsdReplace, OsdRun, osd_number};
use crate::ring_args::RingArgs;
pub use crate::snapshot_args::{Protect, Snapshot};
pub use crate::volume_args::{Trash, Volume};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use types::codes;

/// Replicated block storage: one binary for every role and every command.
#[derive(Parser, Debug)]
#[command(name = "basalt", bin_name = "basalt", version = crate::version::LONG, propagate_version = true)]
#[command(after_help = "Examples:
  basalt dev up                      a cluster of processes on this machine, ready in seconds
  basalt volume create main/vm1 10GiB
  basalt nbd main/vm1 --socket /tmp/vm1.sock
  basalt explain 2020                what an error code means")]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every command takes.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Global options")]
pub struct Common {
    /// Metadata servers to connect to, as HOST:PORT; repeat for several [env: BASALT_META] [default: those of the dev cluster]
    #[arg(long, global = true, value_name = "ADDR", value_delimiter = ',')]
    meta: Vec<Address>,
    /// The dev cluster to use when --meta is not given [env: BASALT_CLUSTER] [default: default]
    #[arg(long, global = true, value_name = "NAME", value_parser = cluster_name)]
    cluster: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// An environment variable. An empty one is unset.
pub fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.trim().is_empty())
}

/// The name of a dev cluster: also the name of a folder.
fn cluster_name(text: &str) -> Result<String, String> {
    match control::names::is_valid(text) {
        true => Ok(text.to_owned()),
        false => Err("use a-z, 0-9 and . _ - (not first), at most 63 characters".to_owned()),
    }
}

impl Common {
    /// Returns the metas that `--meta` names, or else `BASALT_META`. The variable is read here and not by the parser: a wrong
    /// value must fail only the commands that need it.
    ///
    /// # Errors
    /// BSLT-1001 when `BASALT_META` is no list of addresses.
    pub fn metas(&self) -> Result<Vec<Address>, UserError> {
        if !self.meta.is_empty() {
            return Ok(self.meta.clone());
        }
        let text = env("BASALT_META").unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let wrong = |word: &str| {
            let what = format!("BASALT_META holds `{word}`, which is not the address of a metadata server");
            UserError::new(codes::BAD_USAGE, what, "export BASALT_META=HOST:PORT, or unset BASALT_META")
        };
        words.map(|word| word.parse().map_err(|_| wrong(word))).collect()
    }

    /// Returns `--cluster` or `--meta` as a printed command has to repeat them; the environment applies to that command, too.
    pub fn repeated(&self) -> String {
        let metas = self.meta.iter().map(|addr| format!(" --meta {addr}"));
        match &self.cluster {
            _ if !self.meta.is_empty() => metas.collect(),
            Some(name) if *name != DEFAULT_CLUSTER || env("BASALT_CLUSTER").is_some() => format!(" --cluster {name}"),
            _ => String::new(),
        }
    }

    /// Returns the dev cluster that `--cluster` names, or else `BASALT_CLUSTER`, or else `default`.
    ///
    /// # Errors
    /// BSLT-1001 when `BASALT_CLUSTER` is no name.
    pub fn cluster(&self) -> Result<String, UserError> {
        let named = self.cluster.clone().or_else(|| env("BASALT_CLUSTER"));
        let name = named.unwrap_or_else(|| DEFAULT_CLUSTER.to_owned());
        cluster_name(&name).map_err(|why| {
            let what = format!("BASALT_CLUSTER holds `{name}`, which is not a valid name: {why}");
            UserError::new(codes::BAD_USAGE, what, "unset BASALT_CLUSTER")
        })
    }
}

/// The dev cluster of a command that names none.
pub const DEFAULT_CLUSTER: &str = "default";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// A cluster of separate processes on this machine: no root, no etcd
    #[command(subcommand)]
    Dev(Dev),
    /// Run a metadata server; ls, and recover, backup, restore of the records
    Meta(Box<MetaCommand>),
    /// Storage daemons: format, run, ls, rm; out, in, drain, replace; flags of the cluster
    #[command(subcommand)]
    Osd(Osd),
    /// Tools for the device of a stopped OSD: info, ls, cat, cp, check, dump-log, usage, rm
    #[command(subcommand)]
    Disk(Box<Disk>),
    /// Export a volume over NBD
    Nbd(NbdArgs),
    /// Health, daemons, PGs and capacity at a glance: exit code 0 ok, 3 degraded, 4 down
    #[command(after_help = "Examples:\n  basalt status\n  basalt status --watch")]
    Status(WatchArgs),
    /// Health checks: what is wrong, since when; exit code 0 ok, 3 degraded, 4 down
    #[command(
        after_help = "Examples:\n  basalt health\n  basalt health detail\n  basalt health mute OSD_DOWN --for 1h"
    )]
    Health {
        #[command(subcommand)]
        command: Option<Health>,
    },
    /// Events: OSDs, PGs, leaders, volumes, pools, and the clients that opened or took a volume
    #[command(
        after_help = "Examples:\n  basalt events --since 1h\n  basalt events --of main/vm1 --since 7d\n  basalt events --follow --json"
    )]
    Events {
        /// Only events at most so old, as 90s, 10m, 1h, 2d [default: 1d]
        #[arg(long, value_name = "TIME", default_value = "1d", hide_default_value = true, value_parser = crate::duration::parse)]
        since: std::time::Duration,
        /// Only events that name this: POOL/VOLUME (with its snapshots), a pool, osd.N, a PG
        #[arg(long, value_name = "NAME", add = completion::objects())]
        of: Option<String>,
        /// Go on printing as events come; under --json one object a line
        #[arg(long)]
        follow: bool,
    },
    /// IOPS, bandwidth, latency and space of each OSD and volume, refreshed until q is pressed
    #[command(after_help = "Examples:\n  basalt top\n  basalt top --once")]
    Top(TopArgs),
    /// Settings of the cluster: ls, set, reset
    #[command(subcommand)]
    Config(Config),
    /// Placement groups: ls, move, verify
    #[command(subcommand)]
    Pg(Pg),
    /// Pools: create, ls, info, set, rename, rm
    #[command(subcommand)]
    Pool(Pool),
    /// Volumes: create, clone, flatten, ls, info, du, diff, rename, set, resize, fence, fault, rm
    #[command(subcommand, visible_alias = "vol")]
    Volume(Volume),
    /// Snapshots of volumes: create, ls, info, rename, set, rollback, rm
    #[command(subcommand, visible_alias = "snap")]
    Snapshot(Snapshot),
    /// Backups of volumes in a directory or an S3 bucket: create, ls, restore, verify, prune; streams: export, import
    #[command(subcommand)]
    Backup(Box<Backup>),
    /// Removed volumes whose data is still kept: ls, restore, purge
    #[command(subcommand)]
    Trash(Trash),
    /// Measure a volume, or the baseline of this machine
    Bench(BenchArgs),
    /// Explain an error code, a health check or a metric, and what to do about it; or where the time of a volume's requests goes
    #[command(after_help = "Examples:
  basalt explain BSLT-2020
  basalt explain OSD_DOWN
  basalt explain metrics
  basalt explain volume main/vm1")]
    Explain(ExplainArgs),
    /// Print a completion script
    #[command(after_help = "Example:\n  basalt completion bash > /etc/bash_completion.d/basalt")]
    Completion {
        /// The shell that the script is for
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

#[derive(Subcommand, Debug)]
pub enum Dev {
    /// Start the cluster, making it first if it is not there
    #[command(after_help = "Example:\n  basalt dev up --osds 3 --export main/demo")]
    Up {
        /// OSDs of a new cluster, 1 to 16 [default: 3]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
        osds: Option<u32>,
        /// Size of each OSD's device in a new cluster, a sparse file [default: 4GiB]
        #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
        device_size: Option<u64>,
        /// Create this volume if it is not there, and export it over NBD, now and at every later `dev up`
        #[arg(long, value_name = "POOL/VOLUME", add = completion::volumes())]
        export: Option<String>,
        /// Size of the exported volume when it is created [default: 1GiB]
        #[arg(long, value_name = "SIZE", value_parser = crate::size::parse, requires = "export")]
        size: Option<u64>,
    },
    /// Which processes run, and where they listen
    Status,
    /// Print the socket of an exported volume
    Socket {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        volume: String,
    },
    /// kill -9 one OSD
    Kill {
        /// Number of the OSD, from 1
        #[arg(value_parser = osd_number, value_name = "OSD", add = completion::osds())]
        osd: u32,
    },
    /// Stop one OSD after it has transferred its leadership
    Stop {
        /// Number of the OSD, from 1
        #[arg(value_parser = osd_number, value_name = "OSD", add = completion::osds())]
        osd: u32,
    },
    /// Start one OSD again
    Start {
        /// Number of the OSD, from 1
        #[arg(value_parser = osd_number, value_name = "OSD", add = completion::osds())]
        osd: u32,
        /// Its device has been checked since a failed write or flush stopped it
        #[arg(long)]
        after_poison: bool,
    },
    /// Stop everything; data stays
    Down,
    /// Stop everything and delete all data
    Destroy {
        /// Delete without asking; needed where there is no terminal to ask on
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// A code of an error, the code of a health check, the name of a metric, `metrics`, `volume`, or `list` [default: list]
    #[arg(add = completion::codes(), value_name = "CODE")]
    pub word: Option<String>,
    /// After `volume`: POOL/VOLUME
    #[arg(value_name = "VOLUME", add = completion::volumes())]
    pub volume: Option<String>,
    /// How long to watch the requests of the volume, as 5s, 1m [default: 5s]
    #[arg(long = "for", value_name = "TIME", default_value = "5s", hide_default_value = true, value_parser = crate::duration::parse)]
    pub time: std::time::Duration,
}

#[derive(Subcommand, Debug)]
pub enum Health {
    /// The same, with the OSDs, PGs and pools of each check, and what to do
    Detail,
    /// A check is still shown and no longer counts for the health and the exit code
    #[command(after_help = "Example:\n  basalt health mute OSD_DOWN --for 1h")]
    Mute {
        /// Code of the check, for example OSD_DOWN
        #[arg(add = completion::checks())]
        code: String,
        /// For so long, as 90s, 10m, 1h, 2d [default: until it is unmuted]
        #[arg(long = "for", value_name = "TIME", value_parser = crate::duration::parse)]
        time: Option<std::time::Duration>,
    },
    /// A muted check counts again
    Unmute {
        /// Code of the check, for example OSD_DOWN
        #[arg(add = completion::checks())]
        code: String,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  basalt meta --dir /var/lib/basalt/meta --listen 10.0.0.1:7300
  basalt meta ls
  basalt meta backup /backup/meta.jsonl
  basalt meta restore /backup/meta.jsonl --dir /var/lib/basalt/meta
  basalt meta recover --dry-run")]
pub struct MetaCommand {
    #[command(subcommand)]
    pub sub: Option<MetaSub>,
    #[command(flatten)]
    pub run: MetaArgs,
}

#[derive(Subcommand, Debug)]
pub enum MetaSub {
    /// List metadata servers: address, state, uptime, version; exit code 3 when one does not answer, 4 when none leads
    #[command(visible_alias = "list", after_help = "Example:\n  basalt --meta meta1:7300,meta2:7300 meta ls")]
    Ls,
    /// After the metadata store went back in time: show what is missing, move every watermark above those recorded on OSDs
    #[command(after_help = "Example:\n  basalt meta recover --dry-run")]
    Recover {
        /// Show only; change nothing
        #[arg(long)]
        dry_run: bool,
        /// OSDs that are lost for good: a majority of the others is enough
        #[arg(long, value_parser = osd_number, value_name = "N,...", value_delimiter = ',')]
        without: Vec<u32>,
        /// Also when the contents of some PGs cannot be read: what was allocated there since the copy reads as zeros then
        #[arg(long)]
        force: bool,
    },
    /// Write all records of the leading meta to a file
    #[command(after_help = "Example:\n  basalt meta backup /backup/meta.jsonl")]
    Backup {
        /// The file; one that is there is replaced when the new one is whole
        file: PathBuf,
    },
    /// Put a backup into a store that no meta uses; a meta then changes nothing before `basalt meta recover`
    #[command(after_help = "Example:\n  basalt meta restore /backup/meta.jsonl --dir /var/lib/basalt/meta")]
    Restore {
        /// A file that `basalt meta backup` wrote
        file: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
        /// Replace the records that the store holds
        #[arg(long)]
        force: bool,
    },
}

/// Where the records are.
#[derive(Args, Debug, Clone, Default)]
pub struct StoreArgs {
    /// Where the records are kept (redb), unless --etcd is given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the records in etcd at these URLs: several metas may run, one leads
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Keys in etcd begin with this: one for each cluster that shares an etcd
    #[arg(long, value_name = "PREFIX", default_value = "/basalt", requires = "etcd")]
    pub etcd_prefix: String,
    /// Certificates (PEM) that etcd's own is checked against, for https URLs
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate (PEM) of this client
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// Private key (PEM) of this client
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with the password of the user of etcd, on its first line
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct MetaArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// gRPC address, as HOST:PORT; 0.0.0.0 and [::] need --advertise
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7300")]
    pub listen: Address,
    /// The address that others connect to, as HOST:PORT, when it is not --listen (NAT, a proxy) [default: --listen]
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<Address>,
    /// HTTP address for metrics, as HOST:PORT [default: gRPC port + 1]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    #[arg(long, hide = true)]
    pub dev_mark: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  basalt nbd main/vm1 --socket /run/vm1.sock
  qemu-img info 'nbd+unix:///main/vm1?socket=/run/vm1.sock'")]
pub struct NbdArgs {
    /// POOL/VOLUME, or POOL/VOLUME@SNAPSHOT, which is read-only
    #[arg(add = completion::contents())]
    pub volume: String,
    /// Unix socket to listen on
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// TCP address to listen on, as HOST:PORT [default: 127.0.0.1:10809 without --socket and --device]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<Address>,
    /// Linux device to serve, as /dev/nbdN, or `auto` for a free one; it follows the size of the volume
    #[arg(long, value_name = "DEVICE", value_parser = crate::device_arg::parse)]
    pub device: Option<crate::device_arg::Wanted>,
    /// HTTP address of this export's /metrics, /ops and /healthz, as HOST:PORT [default: none]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// Refuse writes; does not take the volume from its writer
    #[arg(long)]
    pub read_only: bool,
    /// Force-attach: take the volume from the client that has it open, whose writes are rejected from then on
    #[arg(long)]
    pub steal: bool,
    /// Requests while no replica answers: `freeze` lets them wait as long as it takes, `wait=TIME` (30s unless given) fails each
    /// after that time, `error` fails them once nothing has been served for 5 s
    #[arg(long, value_name = "POLICY", default_value = "freeze", value_parser = crate::unavailable_arg::parse)]
    pub on_unavailable: client::OnUnavailable,
    #[command(flatten)]
    pub ring: RingArgs,
    #[arg(long, hide = true)]
    pub dev_mark: Option<String>,
}

impl NbdArgs {
    /// Whether the export refuses writes: by request, or because it is one of a snapshot.
    pub fn only_reads(&self) -> bool {
        self.read_only || self.volume.contains('@')
    }
}

#[derive(Args, Debug, Clone, Copy)]
pub struct WatchArgs {
    /// Show it again every SECONDS, 2 unless given, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
}

#[derive(Args, Debug)]
pub struct TopArgs {
    /// Print one sample as a table and end; so it is without a terminal, too
    #[arg(long)]
    pub once: bool,
    /// Seconds between two samples
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}

#[derive(Subcommand, Debug)]
pub enum Pg {
    /// List PGs with leader, members and state
    #[command(visible_alias = "list")]
    Ls {
        /// Only this pool
        #[arg(long, value_name = "NAME", add = completion::pools())]
        pool: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Move a replica of a PG to another OSD, while the PG serves
    #[command(after_help = "Examples:\n  basalt pg move 1.1f --from 2 --to 4 --wait\n  basalt pg move 1.1f --cancel")]
    Move {
        /// The PG, as POOL.HEX
        #[arg(add = completion::pgs())]
        pg: types::PgId,
        /// The OSD that holds the replica
        #[arg(long, value_parser = osd_number, value_name = "OSD", required_unless_present = "cancel")]
        from: Option<u32>,
        /// The OSD that gets it
        #[arg(long, value_parser = osd_number, value_name = "OSD", required_unless_present = "cancel")]
        to: Option<u32>,
        /// Give up the moves of this PG; one that is nearly done ends as ordered
        #[arg(long, conflicts_with_all = ["from", "to"])]
        cancel: bool,
        /// Show what would move, or why it cannot; change nothing
        #[arg(long, conflicts_with_all = ["cancel", "wait"])]
        dry_run: bool,
        /// Return when the moves of this PG have ended
        #[arg(long)]
        wait: bool,
    },
    /// Let PGs that have lost their majority for good go on from one replica each
    #[command(
        name = "force-recover",
        after_help = "Examples:\n  basalt pg force-recover 1.1f --dry-run\n  basalt pg force-recover --all --accept-data-loss"
    )]
    ForceRecover {
        /// The PGs, as POOL.HEX
        #[arg(add = completion::pgs(), required_unless_present = "all")]
        pgs: Vec<types::PgId>,
        /// All PGs that are down
        #[arg(long, conflicts_with = "pgs")]
        all: bool,
        /// Keep the replica on this OSD [default: the one with the furthest log]
        #[arg(long, value_parser = osd_number, value_name = "OSD")]
        osd: Option<u32>,
        /// Change nothing: say what each member has, and what would be lost
        #[arg(long)]
        dry_run: bool,
        /// Go on although acknowledged writes may be lost
        #[arg(long)]
        accept_data_loss: bool,
    },
    /// Compare the replicas of PGs: exit code 0 equal, 1 different, 3 not all could be queried
    #[command(after_help = "Examples:\n  basalt pg verify --deep\n  basalt pg verify 1.1f 1.3 --tables")]
    Verify {
        /// Only these PGs, as POOL.HEX [default: all]
        #[arg(add = completion::pgs())]
        pgs: Vec<types::PgId>,
        /// Read and compare every block at one log index [default]
        #[arg(long, conflicts_with = "tables")]
        deep: bool,
        /// Compare only which blocks hold data; reads no block
        #[arg(long)]
        tables: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Domain {
    Osd,
    Host,
    Rack,
    Zone,
}

#[derive(Subcommand, Debug)]
pub enum Pool {
    /// Create a pool
    #[command(after_help = "Example:\n  basalt pool create fast --replicas 3 --pgs 64 --domain host")]
    Create {
        /// Its name
        name: String,
        /// 1, 2, 3 or 5
        #[arg(long, default_value_t = 3, value_name = "N")]
        replicas: u32,
        /// Placement groups, 1 to 4096
        #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
        pgs: u32,
        /// Replicas of a PG never share one of these
        #[arg(long, value_enum, default_value_t = Domain::Host)]
        domain: Domain,
        /// On OSDs of this device class alone, as hdd or ssd; `basalt osd ls` shows theirs [default: any]
        #[arg(long, value_name = "CLASS", add = completion::classes())]
        device_class: Option<String>,
        /// Also with more than 400 PGs an OSD
        #[arg(long)]
        force: bool,
    },
    /// List pools
    #[command(visible_alias = "list")]
    Ls,
    /// Remove an empty pool
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// The pool
        #[arg(add = completion::pools())]
        name: String,
    },
    /// Give a pool another name
    #[command(visible_alias = "mv", after_help = "Example:\n  basalt pool rename main fast")]
    Rename {
        /// The pool
        #[arg(add = completion::pools())]
        name: String,
        /// Its new name
        new: String,
    },
    /// Change the quota of a pool, its device class, the compression of backups, and the limits of volumes that have none of their own
    #[command(after_help = "Examples:
  basalt pool set main --quota-bytes 10TiB --quota-volumes 500
  basalt pool set main --quota-overcommit 300
  basalt pool set main --device-class nvme
  basalt pool set main --backup-compression none
  basalt pool set main --iops 5000 --bandwidth 200MiB/s")]
    Set {
        /// The pool
        #[arg(add = completion::pools())]
        name: String,
        /// Most that its volumes may have together, as 10TiB, with those in the trash; 0: no such quota
        #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
        quota_bytes: Option<u64>,
        /// Most volumes, with those in the trash; 0: no such quota
        #[arg(long, value_name = "N")]
        quota_volumes: Option<u64>,
        /// Most that its volumes may take on any OSD together with those of other pools, in percent of what the OSD has; 0: no such quota
        #[arg(long, value_name = "PERCENT")]
        quota_overcommit: Option<u64>,
        /// Its replicas move to OSDs of this device class; `any`: it does not matter
        #[arg(long, value_name = "CLASS", add = completion::classes())]
        device_class: Option<String>,
        /// Compression of backups of its volumes that are made without --compress
        #[arg(long, value_name = "none|zstd")]
        backup_compression: Option<types::Compression>,
        #[command(flatten)]
        limits: Box<crate::limit_args::Limits>,
    },
    /// One pool: id, state, replicas, PGs, volumes
    Info {
        /// The pool
        #[arg(add = completion::pools())]
        name: String,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  basalt bench main/demo                              random reads: nothing is written
  basalt volume create main/bench 1GiB
  basalt bench main/bench --op randwrite --depth 32 --seconds 10
  basalt bench main/bench --op randwrite --trace --overwrite
  basalt bench floor --depths 1,8,32,128 --leaders 1,3
  basalt bench engine --check")]
pub struct BenchArgs {
    #[command(subcommand)]
    pub floor: Option<BenchSub>,
    #[command(flatten)]
    pub load: LoadArgs,
}

#[derive(Args, Debug)]
pub struct LoadArgs {
    /// POOL/VOLUME
    #[arg(add = completion::volumes())]
    pub volume: Option<String>,
    /// I/O pattern; the default writes nothing
    #[arg(long, value_enum, default_value_t = LoadOp::Randread)]
    pub op: LoadOp,
    /// Reads among the requests of randrw, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,
    /// Write to a volume that holds data: what the pattern hits is lost
    #[arg(long)]
    pub overwrite: bool,
    /// Requests in flight
    #[arg(long, default_value_t = 32)]
    pub depth: usize,
    /// Bytes of a request
    #[arg(long, default_value = "4KiB", value_parser = crate::size::parse)]
    pub block: u64,
    /// Duration; SIGINT ends earlier, with the figures so far
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Requests after which it ends, if that is earlier
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,
    /// First bytes of the volume that are used [default: all]
    #[arg(long, value_parser = crate::size::parse)]
    pub span: Option<u64>,
    /// Offsets of the equal pieces that --span is cut into, ascending [default: one piece, at 0]
    #[arg(long, value_delimiter = ',', value_name = "OFFSET", value_parser = crate::size::parse, requires = "span")]
    pub pieces: Vec<u64>,
    /// Write stamps and check every read against them
    #[arg(long)]
    pub verify: bool,
    /// Show where one sampled write spent its time, in this process, at the leader and at a follower
    #[arg(long)]
    pub trace: bool,
    /// Force-attach: take the volume from the client that has it open
    #[arg(long)]
    pub steal: bool,
    /// Seed of the random offsets
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub ring: RingArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum LoadOp {
    Randwrite,
    Randread,
    Write,
    Read,
    Randrw,
}

#[derive(Args, Debug)]
pub struct BenchEngine {
    /// Folder for the files `basalt-bench.*`, about 10 GiB, 16 with --seconds 15 [default: a temporary one]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Duration of each burst and of its yardstick, 1 to 15; a sustained row takes 4 times as long
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=15))]
    pub seconds: u64,
    /// Rounds; the result of a row is its run with the median share
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub repeats: u64,
    /// Smallest payload that is written once, as of `osd run --redirect-min`; 0: none
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = crate::size::parse)]
    pub redirect_min: u64,
    /// noflush, flush, or both
    #[arg(long, value_delimiter = ',', default_value = "flush")]
    pub modes: Vec<String>,
    /// Only rows whose names contain one of these texts; sustained rows by `sustained` [default: all]
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub rows: Vec<String>,
    /// Exit code 1 when a row is below its target
    #[arg(long)]
    pub check: bool,
}

#[derive(Subcommand, Debug)]
pub enum BenchSub {
    /// Baseline: the least cost of a 3-replica write on this machine, same bytes and same flushes
    Floor {
        /// Folder for the three log files [default: a temporary one]
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Duration of each row
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Writes in flight
        #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
        depths: Vec<usize>,
        /// Servers that lead: 1, as for a volume in one PG, to 3, as for one over many PGs
        #[arg(long, value_delimiter = ',', default_value = "1")]
        leaders: Vec<u32>,
        /// noflush, flush, or both
        #[arg(long, value_delimiter = ',', default_value = "noflush,flush")]
        modes: Vec<String>,
    },
    /// One replica without network and Raft, beside raw writes to a file of the same disk
    Engine(BenchEngine),
    #[command(hide = true)]
    FloorNode { args: Vec<String> },
}
