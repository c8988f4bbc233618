//! Arguments of `basalt backup`.

use crate::completion;
use crate::errors::UserError;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use types::{Compression, codes};

/// Environment variable that names a repository.
const REPO_VARIABLE: &str = "BASALT_BACKUP_REPO";

/// The repository of a command.
#[derive(Args, Debug, Clone)]
pub struct Repo {
    /// Where the backups are: a directory, or s3://BUCKET/PREFIX; AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
    /// AWS_REGION name server and credentials [default: BASALT_BACKUP_REPO]
    #[arg(long, value_name = "URL")]
    pub repo: Option<String>,
}

impl Repo {
    /// Returns the address.
    ///
    /// # Errors
    /// BSLT-1001: there is none.
    pub fn address(&self) -> Result<String, UserError> {
        let named = self.repo.clone().or_else(|| std::env::var(REPO_VARIABLE).ok()).filter(|named| !named.is_empty());
        let next = "give --repo /srv/backups or --repo s3://BUCKET/PREFIX";
        named.ok_or_else(|| UserError::new(codes::BAD_USAGE, "no place for backups is named", next))
    }
}

#[derive(Subcommand, Debug)]
pub enum Backup {
    /// Save a volume, or what has changed since its last backup; an interrupted backup goes on
    #[command(after_help = "Examples:\n  basalt backup create main/vm1 --repo /srv/backups\n  \
        basalt backup create main/vm1@monday --repo s3://backups/cluster1")]
    Create(Create),
    /// List backups
    #[command(visible_alias = "list", after_help = "Example:\n  basalt backup ls --repo /srv/backups")]
    Ls {
        /// POOL/VOLUME as it was called [default: all]
        #[arg(add = completion::saved())]
        volume: Option<String>,
        #[command(flatten)]
        repo: Repo,
    },
    /// Make a volume with the contents of a backup; an interrupted restore goes on
    #[command(after_help = "Examples:\n  basalt backup restore main/vm1 main/vm1-old --repo /srv/backups\n  \
        basalt backup restore main/vm1 main/vm1 --id 20261127T020000Z-41 --repo s3://backups/cluster1")]
    Restore(Restore),
    /// Read backups and check every byte: exit code 3 when something is damaged or missing
    #[command(after_help = "Examples:\n  basalt backup verify --repo /srv/backups\n  \
        basalt backup verify main/vm1 --repo s3://backups/cluster1")]
    Verify {
        /// POOL/VOLUME as it was called [default: all]
        #[arg(add = completion::saved())]
        volume: Option<String>,
        /// Only this backup
        #[arg(long, requires = "volume", add = completion::backups())]
        id: Option<String>,
        #[command(flatten)]
        repo: Repo,
    },
    /// Delete backups that no rule keeps, and the data that no backup needs any more
    #[command(
        after_help = "Examples:\n  basalt backup prune main/vm1 --keep-daily 7 --keep-weekly 5 --repo /srv/backups\n  \
        basalt backup prune main/vm1 --keep-last 3 --dry-run --repo s3://backups/cluster1"
    )]
    Prune(Prune),
    /// Write a snapshot, or its difference from an older one, as a stream to a file or a pipe
    #[command(after_help = "Examples:\n  basalt backup export main/vm1@monday -o vm1.basalt\n  \
        basalt backup export main/vm1@tuesday --since monday | ssh backup1 basalt backup import main/vm1")]
    Export(Export),
    /// Make a volume with the contents of a stream, or bring one up to date with an increment
    #[command(after_help = "Examples:\n  basalt backup import -i vm1.basalt main/vm1-copy\n  \
        ssh host1 basalt backup export main/vm1@monday | basalt backup import main/vm1")]
    Import(Import),
}

#[derive(Args, Debug)]
pub struct Create {
    /// POOL/VOLUME, of which a snapshot is made and kept until the next backup; or POOL/VOLUME@SNAPSHOT
    #[arg(add = completion::contents())]
    pub name: String,
    /// Read everything, also what an older backup has; a snapshot that has a backup is not saved again
    #[arg(long)]
    pub full: bool,
    /// Compression of the data [default: that of the pool, which `basalt pool set --backup-compression` changes]
    #[arg(long, value_name = "none|zstd")]
    pub compress: Option<Compression>,
    #[command(flatten)]
    pub repo: Repo,
}

#[derive(Args, Debug)]
pub struct Restore {
    /// POOL/VOLUME as it was called
    #[arg(add = completion::saved())]
    pub volume: String,
    /// POOL/VOLUME of the new volume
    pub new: String,
    /// Id of the backup, as `basalt backup ls` shows it [default: the last one]
    #[arg(long, add = completion::backups())]
    pub id: Option<String>,
    #[command(flatten)]
    pub repo: Repo,
}

#[derive(Args, Debug)]
pub struct Export {
    /// POOL/VOLUME@SNAPSHOT
    #[arg(add = completion::snapshots())]
    pub name: String,
    /// Only what has changed since this older snapshot
    #[arg(long, value_name = "SNAPSHOT", add = completion::older())]
    pub since: Option<String>,
    /// File of the stream; - is standard output [default: -]
    #[arg(short, long, value_name = "FILE|-")]
    pub output: Option<PathBuf>,
    /// Compression of the data [default: that of the pool, which `basalt pool set --backup-compression` changes]
    #[arg(long, value_name = "none|zstd")]
    pub compress: Option<Compression>,
}

#[derive(Args, Debug)]
pub struct Import {
    /// POOL/VOLUME of the new volume; of an increment, the volume that goes on with it
    #[arg(add = completion::volumes())]
    pub volume: String,
    /// File of the stream; - is standard input [default: -]
    #[arg(short, long, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Prune {
    /// POOL/VOLUME as it was called
    #[arg(add = completion::saved())]
    pub volume: String,
    /// Keep so many of the last backups
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_last: u32,
    /// Keep the last backup of each of so many days (UTC) that have one
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_daily: u32,
    /// The same of weeks
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_weekly: u32,
    /// The same of months
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_monthly: u32,
    /// Leave data that was written later than this long ago: a backup that is being made may need it
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = crate::duration::parse)]
    pub grace: Duration,
    /// Give interrupted backups of the volume up: their data is deleted, too
    #[arg(long)]
    pub drop_drafts: bool,
    /// Only say what would be deleted
    #[arg(long, conflicts_with = "drop_drafts")]
    pub dry_run: bool,
    #[command(flatten)]
    pub repo: Repo,
}
