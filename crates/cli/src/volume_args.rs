//! Arguments of `basalt volume` and `basalt trash`.

use crate::completion;
use crate::faults::Fault;
use crate::limit_args::Limits;
use clap::{Args, Subcommand};
use control::admin::VolumeText;
use types::qos::QosChange;
use types::{SessionId, WhenFull};

/// Stripe layout of a new volume.
#[derive(Args, Debug, Clone, Copy)]
pub struct Stripes {
    /// Bytes that lie in one PG before the next bytes lie in another: a power of two, 4KiB to 16MiB [default: 1MiB divided by the
    /// stripe count]
    #[arg(long, value_name = "SIZE", requires = "stripe_count", value_parser = crate::stripes::unit)]
    stripe_unit: Option<u64>,
    /// PGs over which each segment of the volume is striped: a power of two, 1 to 64 [default: 1, not striped]
    #[arg(long, value_name = "COUNT", value_parser = crate::stripes::count)]
    stripe_count: Option<u32>,
}

impl Stripes {
    /// Returns the layout.
    pub fn layout(self) -> types::Stripe {
        crate::stripes::layout(self.stripe_unit, self.stripe_count)
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "write a label as KEY=VALUE".to_owned())
}

/// A label that listed volumes have: a key, and a value if one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Which {
    key: String,
    value: Option<String>,
}

impl Which {
    /// Whether a volume has it.
    pub fn fits(&self, labels: &std::collections::BTreeMap<String, String>) -> bool {
        labels.get(&self.key).is_some_and(|is| self.value.as_ref().is_none_or(|value| value == is))
    }
}

fn which(text: &str) -> Result<Which, String> {
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
    if key.is_empty() { Err("write KEY or KEY=VALUE".to_owned()) } else { Ok(Which { key: key.to_owned(), value }) }
}

/// Description and labels.
#[derive(Args, Debug, Clone, Default)]
pub struct Texts {
    /// Free text, at most 512 bytes
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    description: Option<String>,
    /// A label, as KEY=VALUE; repeat for several
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl Texts {
    /// Returns the change, with the keys of labels that go and the change of limits.
    pub fn change(&self, removed_labels: &[String], limits: QosChange) -> VolumeText {
        VolumeText {
            description: self.description.clone(),
            labels: self.labels.iter().cloned().collect(),
            removed_labels: removed_labels.to_vec(),
            limits,
            when_full: None,
            multi_writer: None,
        }
    }
}

/// Policies of a volume.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct Policies {
    /// Writes while the pool has no space left: `wait` lets them wait until there is some, `error` fails them at once, `client` leaves
    /// it to the client, which waits 20 s unless a program says otherwise [default: client]
    #[arg(long, value_name = "POLICY")]
    when_full: Option<WhenFull>,
    /// Let several clients write at a time, as cluster file systems need it; it changes only while no client has the volume open for
    /// writing [default: off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on", value_parser = on_off)]
    multi_writer: Option<bool>,
}

impl Policies {
    /// Returns a change with these policies.
    pub fn of(self, change: VolumeText) -> VolumeText {
        VolumeText { when_full: self.when_full, multi_writer: self.multi_writer, ..change }
    }
}

fn session(text: &str) -> Result<SessionId, String> {
    let number = text.strip_prefix('s').unwrap_or(text).parse();
    number.map(SessionId).map_err(|_| "write the number that `basalt volume info` shows".to_owned())
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[derive(Subcommand, Debug)]
pub enum Volume {
    /// Create a volume; space is taken when it is written
    #[command(after_help = "Examples:\n  basalt volume create main/vm1 10GiB\n  \
        basalt volume create main/db 100GiB --stripe-unit 64KiB --stripe-count 4\n  \
        basalt volume create main/web 20GiB --description 'web server' --label tier=front\n  \
        basalt volume create main/gfs 50GiB --multi-writer")]
    Create {
        /// POOL/VOLUME
        name: String,
        /// 1MiB to 64TiB
        #[arg(value_parser = crate::size::parse)]
        size: u64,
        #[command(flatten)]
        stripes: Stripes,
        #[command(flatten)]
        texts: Texts,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        policies: Policies,
    },
    /// Create a volume with the contents of a snapshot, at once: both share the space until one is written
    #[command(after_help = "Example:\n  basalt volume clone main/golden@v3 main/vm7")]
    Clone {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        snapshot: String,
        /// POOL/VOLUME of the new volume, in the same pool
        name: String,
        #[command(flatten)]
        texts: Texts,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        policies: Policies,
    },
    /// Copy into a clone all that it shows of its parent, in the background, so that it needs the parent no longer
    #[command(after_help = "Example:\n  basalt volume flatten main/vm7")]
    Flatten {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// Stop it; PGs that are done stay so
        #[arg(long)]
        cancel: bool,
        /// Do not wait for its end: `basalt volume info` shows the progress
        #[arg(long, conflicts_with = "cancel")]
        no_wait: bool,
    },
    /// Rehearse storage trouble on a volume: late requests, errors, a pause
    #[command(subcommand)]
    Fault(Fault),
    /// List volumes
    #[command(visible_alias = "list")]
    Ls {
        /// Only this pool
        #[arg(long, value_name = "NAME", add = completion::pools())]
        pool: Option<String>,
        /// Only volumes with this label, as KEY or KEY=VALUE; repeat for several
        #[arg(long = "label", value_name = "KEY[=VALUE]", value_parser = which)]
        labels: Vec<Which>,
    },
    /// One volume: size, segments, client, description, labels
    Info {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
    },
    /// The space that a volume and its snapshots take
    #[command(visible_alias = "usage", after_help = "Example:\n  basalt volume du main/vm1")]
    Du {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
    },
    /// List the extents with data, or those that changed since a snapshot, for backup tools
    #[command(
        after_help = "Examples:\n  basalt volume diff main/vm1@new --since old --json\n  basalt volume diff main/vm1@new"
    )]
    Diff(crate::diff::DiffArgs),
    /// Take a volume from one of its clients: none of its writes takes effect any more when the command returns
    #[command(
        after_help = "Examples:\n  basalt volume fence main/gfs node3\n  basalt volume fence main/gfs --session 17"
    )]
    Fence {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// The clients, as `basalt volume info` shows them: their host, their address, or a whole name
        #[arg(required_unless_present = "session", add = completion::clients())]
        client: Option<String>,
        /// One client, by the number of its session
        #[arg(long, value_name = "N", conflicts_with = "client", value_parser = session)]
        session: Option<SessionId>,
    },
    /// Give a volume another name in its pool, also while it is open
    #[command(visible_alias = "mv", after_help = "Example:\n  basalt volume rename main/vm1 web")]
    Rename {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// The new name, without the pool or with the same one
        new: String,
    },
    /// Change the description, the labels, the limits and the policies of a volume, also while it is open
    #[command(after_help = "Examples:\n  \
        basalt volume set main/vm1 --description 'web server' --label tier=front --remove-label old\n  \
        basalt volume set main/vm1 --iops 500 --burst-iops 2000 --burst-seconds 30 --bandwidth 100MiB/s\n  \
        basalt volume set main/vm1 --pool-limits")]
    Set {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        #[command(flatten)]
        texts: Texts,
        /// Remove the label with this key; repeat for several
        #[arg(long = "remove-label", value_name = "KEY")]
        removed: Vec<String>,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        policies: Policies,
        /// Give up the limits of the volume: those of its pool are in force
        #[arg(long, conflicts_with = "no_limit")]
        pool_limits: bool,
    },
    /// Make a volume longer or, with --shrink, shorter; also while it is open
    #[command(
        after_help = "Examples:\n  basalt volume resize main/vm1 20GiB\n  basalt volume resize main/vm1 10GiB --shrink"
    )]
    Resize {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// The new size, up to 64TiB; the present one ends a shrink that waits for its client
        #[arg(value_parser = crate::size::parse)]
        size: u64,
        /// Make it shorter: what lies behind the new end goes
        #[arg(long)]
        shrink: bool,
        /// With --shrink: even when the volume has data behind the new end
        #[arg(long, requires = "shrink")]
        discard_data: bool,
        /// With --shrink: take the volume from a client that does not confirm the new size
        #[arg(long, requires = "shrink")]
        force: bool,
    },
    /// Move a volume to the trash; its data is deleted after the time that `basalt config ls` shows as trash_retention
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// Even while a client has it open
        #[arg(long)]
        force: bool,
        /// Delete its data at once, without the trash
        #[arg(long)]
        now: bool,
        /// With --now: delete its snapshots, too
        #[arg(long, requires = "now")]
        snapshots: bool,
        /// With --now: delete it although it has clones; these keep their contents
        #[arg(long, requires = "now")]
        detach: bool,
    },
}

#[derive(Subcommand, Debug)]
pub enum Trash {
    /// List removed volumes whose data is still kept
    #[command(visible_alias = "list", after_help = "Example:\n  basalt trash ls --pool main")]
    Ls {
        /// Only this pool
        #[arg(long, value_name = "NAME", add = completion::pools())]
        pool: Option<String>,
    },
    /// Give a removed volume back to its pool
    #[command(after_help = "Examples:\n  basalt trash restore main/vm1\n  basalt trash restore 12 --name vm1-old")]
    Restore {
        /// POOL/VOLUME as it was called, or its id
        #[arg(add = completion::trash())]
        which: String,
        /// A new name [default: the one that it had]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Delete the data of removed volumes at once
    #[command(after_help = "Examples:\n  basalt trash purge main/vm1\n  basalt trash purge --all --pool main")]
    Purge {
        /// POOL/VOLUME as it was called, or its id
        #[arg(add = completion::trash(), required_unless_present_any = ["all", "expired"])]
        which: Option<String>,
        /// All removed volumes
        #[arg(long, conflicts_with_all = ["which", "expired"])]
        all: bool,
        /// All whose time is over
        #[arg(long, conflicts_with = "which")]
        expired: bool,
        /// With --all and --expired: only this pool
        #[arg(long, value_name = "NAME", add = completion::pools(), conflicts_with = "which")]
        pool: Option<String>,
    },
}
