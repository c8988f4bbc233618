//! Arguments of `basalt snapshot`.

use crate::completion;
use crate::volume_args::Texts;
use clap::{Subcommand, ValueEnum};

/// Whether a snapshot is protected.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protect {
    On,
    Off,
}

#[derive(Subcommand, Debug)]
pub enum Snapshot {
    /// Make a snapshot of a volume, or of several at one point in time; clients go on
    #[command(after_help = "Examples:\n  basalt snapshot create main/db@before-upgrade\n  \
        basalt snapshot create main/db@nightly main/log@nightly --label keep=7d")]
    Create {
        /// POOL/VOLUME@SNAPSHOT; with several, all are of one point in time
        #[arg(required = true, add = completion::volumes())]
        names: Vec<String>,
        #[command(flatten)]
        texts: Texts,
    },
    /// List snapshots
    #[command(
        visible_alias = "list",
        after_help = "Examples:\n  basalt snapshot ls main/db\n  basalt snapshot ls main"
    )]
    Ls {
        /// POOL/VOLUME or POOL [default: all]
        #[arg(add = completion::volumes())]
        of: Option<String>,
        /// Count the space of each, and what its deletion would free
        #[arg(long)]
        usage: bool,
    },
    /// One snapshot: size, time, protection, description, labels
    Info {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        name: String,
    },
    /// Give a snapshot another name
    #[command(visible_alias = "mv", after_help = "Example:\n  basalt snapshot rename main/db@nightly monday")]
    Rename {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        name: String,
        /// The new name, without the volume or with the same one
        new: String,
    },
    /// Change the protection, the description and the labels of a snapshot
    #[command(after_help = "Examples:\n  basalt snapshot set main/db@monday --protect on\n  \
        basalt snapshot set main/db@monday --label keep=30d --remove-label old")]
    Set {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        name: String,
        /// A protected snapshot cannot be deleted, and its volume neither
        #[arg(long, value_name = "on|off")]
        protect: Option<Protect>,
        #[command(flatten)]
        texts: Texts,
        /// Remove the label with this key; repeat for several
        #[arg(long = "remove-label", value_name = "KEY")]
        removed: Vec<String>,
    },
    /// Give a volume the contents of its snapshot again; what was written since is lost
    #[command(after_help = "Example:\n  basalt snapshot rollback main/db@before-upgrade")]
    Rollback {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        name: String,
        /// Even while a client has the volume open; its later writes are refused
        #[arg(long)]
        force: bool,
    },
    /// Delete a snapshot; its space comes back in the background
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// POOL/VOLUME@SNAPSHOT
        #[arg(add = completion::snapshots())]
        name: String,
        /// Although it has clones; these keep their contents
        #[arg(long)]
        detach: bool,
    },
}
