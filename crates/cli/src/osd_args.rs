//! The command line of `basalt osd` and `basalt config`.

use crate::address::Address;
use crate::args::WatchArgs;
use crate::completion;
use crate::ring_args::RingArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use types::limits::LOCATION_LEN_MAX;

#[derive(Subcommand, Debug)]
pub enum Osd {
    /// Prepare a device for this cluster; it gets a new OSD id
    #[command(after_help = "Example:\n  basalt osd format --device /dev/nvme0n1 --meta 10.0.0.1:7300")]
    Format(OsdFormat),
    /// Remove an OSD that never started, or that is down and holds no PG
    #[command(visible_aliases = ["remove", "delete"], after_help = "Example:\n  basalt osd rm 7")]
    Rm {
        /// Its number, as `basalt osd ls` prints it
        #[arg(value_parser = osd_number, value_name = "OSD")]
        osd: u32,
    },
    /// Move the replicas of OSDs to other OSDs, as after a failure; an OSD that is out holds no data
    #[command(after_help = "Examples:\n  basalt osd out 7 --dry-run\n  basalt osd out 7 8 --wait")]
    Out(OsdIntent),
    /// End what `out` and `drain` began: OSDs take replicas again, and get their share
    #[command(after_help = "Example:\n  basalt osd in 7")]
    In(OsdIntent),
    /// Empty OSDs that are to be removed; they serve until their last replica has moved
    #[command(after_help = "Example:\n  basalt osd drain 7 --wait && basalt osd rm 7")]
    Drain(OsdIntent),
    /// Prepare a device that takes over all replicas of an OSD, which is removed when it is empty and down
    #[command(after_help = "Examples:\n  basalt osd replace 7 --device /dev/nvme1n1 --dry-run\n  \
        basalt osd replace 7 --device /dev/nvme1n1 --meta 10.0.0.1:7300")]
    Replace(OsdReplace),
    /// Set the device class of OSDs, as hdd or ssd; replicas of pools that ask for another one leave them
    #[command(after_help = "Example:\n  basalt osd set-class nvme 7 8 --dry-run")]
    SetClass {
        /// The class: a name of your choice
        #[arg(value_name = "CLASS", add = completion::classes())]
        class: String,
        #[command(flatten)]
        osds: OsdIntent,
    },
    /// Set a flag of the cluster: noout, norebalance
    #[command(after_help = "Example:\n  basalt osd set noout")]
    Set {
        /// noout: an OSD that is down stays in; norebalance: no replica moves only to balance the load
        flag: OsdFlag,
    },
    /// Unset a flag of the cluster
    #[command(after_help = "Example:\n  basalt osd unset noout")]
    Unset {
        /// noout, norebalance
        flag: OsdFlag,
    },
    /// Serve a formatted device
    #[command(
        after_help = "Example:\n  basalt osd run --device /dev/nvme0n1 --listen 10.0.0.1:7410 --meta 10.0.0.1:7300"
    )]
    Run(OsdRun),
    /// Show the devices of a running OSD, and what they can do
    #[command(after_help = "Example:\n  basalt osd info 7")]
    Info {
        /// Its number, as `basalt osd ls` prints it
        #[arg(value_parser = osd_number, value_name = "OSD", add = completion::osds())]
        osd: u32,
    },
    /// List OSDs with state, failure domains and use
    #[command(visible_alias = "list")]
    Ls(WatchArgs),
}

/// `7` or `osd.7`.
pub fn osd_number(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("osd.").unwrap_or(text);
    digits.parse().map_err(|_| format!("`{text}` is not the number of an OSD; write 7 or osd.7"))
}

/// The name of a host, a rack or a zone.
fn location(text: &str) -> Result<String, String> {
    match text.len() <= LOCATION_LEN_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!("{} bytes; at most {LOCATION_LEN_MAX} are kept", text.len())),
    }
}

#[derive(Args, Debug)]
pub struct OsdFormat {
    /// A block device, or a file (made with --size if it is not there)
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Size of a new file
    #[arg(long, value_parser = crate::size::parse)]
    pub size: Option<u64>,
    /// A faster device for the log alone, which `osd run` needs, too; with --size a file is made
    #[arg(long, value_name = "PATH")]
    pub log_device: Option<PathBuf>,
    /// Size of the log [default: 1 % of the device, from 1 GiB to 4 GiB, at most an eighth of the device and of the memory; with
    /// --log-device all of it, at most 4 GiB and an eighth of the memory]
    #[arg(long, value_parser = crate::size::parse)]
    pub log_size: Option<u64>,
    /// Overwrite what is on the device; an OSD only with --erase-osd
    #[arg(long)]
    pub force: bool,
    /// With --force: the uuid of the OSD that is erased; once for each, if the log device is of another one. An OSD that holds PGs is never erased
    #[arg(long, value_name = "UUID", requires = "force")]
    pub erase_osd: Vec<String>,
    /// Device class, for pools that ask for one [default: hdd or ssd, if the device is a disk and the kernel tells; else none]
    #[arg(long, value_name = "CLASS", add = completion::classes())]
    pub device_class: Option<String>,
    /// Failure domain: the machine [default: its host name]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub host: Option<String>,
    /// Failure domain: the rack [default: default]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub rack: Option<String>,
    /// Failure domain: the zone [default: default]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub zone: Option<String>,
}

#[derive(Args, Debug)]
pub struct OsdReplace {
    /// The OSD that is lost, or is to go
    #[arg(value_parser = osd_number, value_name = "OSD", add = completion::osds())]
    pub osd: u32,
    #[command(flatten)]
    pub format: OsdFormat,
    /// Show what would move, and check the device; change nothing
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// Return when the new OSD, which has to be started meanwhile, holds all replicas
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub struct OsdIntent {
    /// Their numbers, as `basalt osd ls` prints them
    #[arg(value_parser = osd_number, value_name = "OSD", required = true, num_args = 1..=32, add = completion::osds())]
    pub osds: Vec<u32>,
    /// Show what would move; change nothing
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// Return when the replicas have moved
    #[arg(long)]
    pub wait: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum OsdFlag {
    Noout,
    Norebalance,
}

#[derive(Subcommand, Debug)]
pub enum Config {
    /// List the settings with their values
    #[command(visible_alias = "list")]
    Ls,
    /// Change a setting, at once and without a restart
    #[command(after_help = "Example:\n  basalt config set osd_out_after 30m")]
    Set {
        /// Its name, as `basalt config ls` prints it
        #[arg(add = completion::settings())]
        name: String,
        /// Its value
        value: String,
    },
    /// Give a setting its default
    #[command(after_help = "Example:\n  basalt config reset osd_out_after")]
    Reset {
        /// Its name, as `basalt config ls` prints it
        #[arg(add = completion::settings())]
        name: String,
    },
}

/// Kind of the device of home.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum HomeClass {
    Auto,
    Hdd,
    Ssd,
}

#[derive(Args, Debug)]
pub struct OsdRun {
    /// The formatted device
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// The device of its log, if the OSD was formatted with one
    #[arg(long, value_name = "PATH")]
    pub log_device: Option<PathBuf>,
    /// Where peers and clients connect, as HOST:PORT; 0.0.0.0 and [::] need --advertise
    #[arg(long, value_name = "ADDR")]
    pub listen: Address,
    /// The address that peers and clients connect to, as HOST:PORT; a name is resolved again and again [default: --listen]
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<Address>,
    /// HTTP address for metrics, as HOST:PORT [default: data port + 1]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// Failure domain: the machine [default: as registered]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub host: Option<String>,
    /// Failure domain: the rack [default: as registered]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub rack: Option<String>,
    /// Failure domain: the zone [default: as registered]
    #[arg(long, value_name = "NAME", value_parser = location)]
    pub zone: Option<String>,
    /// The device keeps its write cache on power loss: flush nothing. If that is not true, data is lost
    #[arg(long)]
    pub assume_plp: bool,
    /// The device has been checked since a failed write or flush stopped this OSD: serve it again
    #[arg(long)]
    pub after_poison: bool,
    /// The device was restored from an older copy (BSLT-2041): its replicas fail, also while their PGs are not served without them
    #[arg(long)]
    pub after_restore: bool,
    /// Confirm every read with a majority instead of the lease (for hosts whose clocks may stop)
    #[arg(long)]
    pub no_lease_reads: bool,
    /// Requests of whole 64 KiB units, from this length on, are written once, past the log; 0: none [default: 64KiB on a block device, 0 on a file]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse, conflicts_with = "log_device")]
    pub redirect_min: Option<u64>,
    /// Class of home: `hdd` writes it in one direction and at its own pace, behind a log device; `auto` asks the kernel whether it rotates
    #[arg(long, value_enum, default_value_t = HomeClass::Auto, value_name = "CLASS")]
    pub home_class: HomeClass,
    #[command(flatten)]
    pub ring: RingArgs,
    #[arg(long, hide = true)]
    pub dev_mark: Option<String>,
}
