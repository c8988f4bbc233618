//! Shell completion with live names: volumes, snapshots, clients, pools, PGs, OSDs and codes come from the cluster that the words name,
//! backups from the repository.
//!
//! `basalt completion SHELL` prints a script; on each TAB the script runs this program again with `BASALT_COMPLETE=SHELL`.
//! Invariants: no hidden command or flag is offered; a cluster or a repository that does not answer within [`ANSWER_MAX`] gives no names,
//! and no message.

use crate::admin::Admin;
use crate::args::{Cli, Common};
use crate::output;
use anyhow::Context;
use clap::{Command, CommandFactory, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::time::Duration;
use types::codes::{CODES, label};

/// The variable by which the script calls this program.
const VAR: &str = "BASALT_COMPLETE";
/// Longest wait of a TAB for names.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Most names that are offered.
const NAMES_MAX: usize = 1000;

/// Prints the script.
pub fn script(shell: clap_complete::Shell) {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&shell.to_string()) else { unreachable!("{shell} is a shell of the parser") };
    if let Err(error) = shell.write_registration(VAR, "basalt", "basalt", "basalt", &mut script) {
        unreachable!("memory takes the script: {error}");
    }
    out!("{}", String::from_utf8_lossy(&script).trim_end());
}

/// Answers the script, when the script started this program.
pub fn answer() -> bool {
    let Some(shell) = crate::args::env(VAR) else { return false };
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&shell) else { return false };
    let mut candidates = Vec::new();
    // A completion that fails offers nothing.
    if shell.write_complete(&mut command(), words, std::env::current_dir().ok().as_deref(), &mut candidates).is_ok() {
        output::bytes(&candidates);
    }
    true
}

/// Returns the command line without hidden commands and flags.
fn command() -> Command {
    visible(&Cli::command())
}

fn visible(from: &Command) -> Command {
    let about = from.get_about().cloned().unwrap_or_default();
    let made = Command::new(from.get_name().to_owned()).about(about).disable_help_subcommand(true);
    // An alias is accepted before the cursor, but never offered in place of its verb.
    let made = made.aliases(from.get_all_aliases().map(str::to_owned).collect::<Vec<_>>());
    let made = made.args(from.get_arguments().filter(|arg| !arg.is_hide_set()).cloned());
    made.subcommands(from.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible))
}

/// The values of `--meta` and `--cluster` among the words before the cursor.
#[derive(Parser, Debug)]
#[command(ignore_errors = true, disable_help_flag = true)]
struct Meant {
    #[command(flatten)]
    common: Common,
    #[arg(trailing_var_arg = true)]
    rest: Vec<OsString>,
}

/// Returns the flags of the words, wherever they stand: a positional word would end the parse.
fn meant(words: impl IntoIterator<Item = String>) -> Option<Common> {
    let mut kept = vec![String::from("basalt")];
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let flag = ["--meta", "--cluster"].into_iter().find(|flag| word == *flag);
        if flag.is_some() {
            let value = words.next()?;
            kept.extend([word, value]);
        } else if word.starts_with("--meta=") || word.starts_with("--cluster=") {
            kept.push(word);
        }
    }
    Meant::try_parse_from(kept).ok().map(|meant| meant.common)
}

fn ask(names: impl FnOnce(&Admin) -> anyhow::Result<Vec<String>>) -> Vec<String> {
    let words = std::env::args().skip_while(|word| word != "--").skip(2);
    let asked = || {
        let common = meant(words)?;
        let admin = Admin::connect_within(&crate::metas(&common).ok()?, ANSWER_MAX).ok()?;
        names(&admin).ok()
    };
    asked().unwrap_or_default()
}

/// Returns the volume that the words name.
fn volume_of_words() -> anyhow::Result<String> {
    let (mut words, repo) = (std::env::args().skip_while(|word| word != "--").skip(2), after("--repo"));
    let is_name = |word: &String| word.contains('/') && !word.starts_with('-') && Some(word) != repo.as_ref();
    let named = words.find(is_name).context("no volume is named")?;
    Ok(named.split_once('@').map_or_else(|| named.clone(), |(volume, _)| volume.to_owned()))
}

/// Returns the host in a client's name, `nbd on HOST pid N`; another name as it is.
fn host_of(name: &str) -> String {
    let host = name.split_once(" on ").and_then(|(_, rest)| rest.split_once(" pid "));
    host.map_or(name, |(host, _)| host).to_owned()
}

fn offer(current: &OsStr, names: Vec<String>) -> Vec<CompletionCandidate> {
    let start = current.to_string_lossy().to_lowercase();
    let fitting = names.into_iter().filter(|name| name.to_lowercase().starts_with(&start));
    fitting.take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

macro_rules! completers {
    ($($(#[$doc:meta])* $name:ident: $admin:ident => $names:expr;)+) => {$(
        $(#[$doc])*
        pub fn $name() -> ArgValueCompleter {
            ArgValueCompleter::new(|current: &OsStr| offer(current, ask(|$admin| Ok($names))))
        }
    )+};
}

completers! {
    /// `POOL/VOLUME` of every volume.
    volumes: admin => admin.volumes(None)?.into_iter().map(|v| v.name).collect();
    /// `POOL/VOLUME@SNAPSHOT` of every snapshot.
    snapshots: admin => admin.snapshots("")?.into_iter().map(|s| s.name).collect();
    /// Both of them.
    contents: admin => {
        let snapshots = admin.snapshots("")?.into_iter().map(|s| s.name);
        admin.volumes(None)?.into_iter().map(|v| v.name).chain(snapshots).collect()
    };
    /// The snapshots of the volume that the words name, without its name.
    older: admin => {
        let own = |name: String| name.split_once('@').map(|(_, own)| own.to_owned());
        admin.snapshots(&volume_of_words()?)?.into_iter().filter_map(|s| own(s.name)).collect()
    };
    /// Hosts and addresses of the clients that write to the volume that the words name.
    clients: admin => {
        let writers = admin.volume_info(&volume_of_words()?)?.writers;
        writers.into_iter().flat_map(|writer| [host_of(&writer.name), writer.address]).collect()
    };
    /// Rehearsed faults of the volume that the words name.
    faults: admin => admin.volume_info(&volume_of_words()?)?.faults.into_iter().map(|f| f.id.to_string()).collect();
    /// Names and ids of volumes in the trash.
    trash: admin => admin.trash(None)?.into_iter().flat_map(|v| [v.name, v.volume.0.to_string()]).collect();
    /// Names that events have: volumes, pools, OSDs and PGs.
    objects: admin => {
        let volumes = admin.volumes(None)?.into_iter().map(|v| v.name);
        let pools = admin.pools()?.into_iter().map(|p| p.name);
        let osds = admin.osds()?.into_iter().map(|o| o.osd.to_string());
        volumes.chain(pools).chain(osds).chain(admin.pgs(None)?.into_iter().map(|pg| pg.pg.to_string())).collect()
    };
    /// Pools.
    pools: admin => admin.pools()?.into_iter().map(|p| p.name).collect();
    /// PGs.
    pgs: admin => admin.pgs(None)?.into_iter().map(|pg| pg.pg.to_string()).collect();
    /// Device classes of OSDs and pools.
    classes: admin => {
        let osds = admin.osds()?.into_iter().filter_map(|o| o.device_class);
        let named: BTreeSet<String> = admin.pools()?.into_iter().filter_map(|p| p.device_class).chain(osds).collect();
        named.into_iter().collect()
    };
    /// Numbers of the OSDs.
    osds: admin => admin.osds()?.into_iter().map(|o| o.osd.0.to_string()).collect();
}

/// Offers the names of the settings of a cluster.
pub fn settings() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        offer(current, control::settings::SETTINGS.iter().map(|setting| setting.name.to_owned()).collect())
    })
}

/// Offers the names of health checks.
pub fn checks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        offer(current, control::health::RULES.iter().map(|rule| rule.code.to_owned()).collect())
    })
}

/// Offers volumes of which the repository that the words name has backups. Those may be the only ones left.
pub fn saved() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| offer(current, crate::backup::saved(after("--repo"), ANSWER_MAX)))
}

/// Offers the ids of the backups of the volume that the words name.
pub fn backups() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let of_volume = |volume: String| crate::backup::ids(after("--repo"), &volume, ANSWER_MAX);
        offer(current, volume_of_words().map(of_volume).unwrap_or_default())
    })
}

/// Returns the value of a flag among the words.
fn after(flag: &str) -> Option<String> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(2).collect();
    let own = format!("{flag}=");
    let behind = words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1).cloned());
    behind.or_else(|| words.iter().find_map(|word| word.strip_prefix(&own).map(str::to_owned)))
}

/// Offers codes, with their titles, and the two lists.
pub fn codes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let start = current.to_string_lossy().to_uppercase();
        let number = start.trim_start_matches("BSLT-").to_owned();
        let codes = CODES.iter().filter_map(|row| {
            let text = if start.starts_with(|c: char| c.is_ascii_digit()) {
                format!("{:04}", row.number)
            } else {
                label(row.number)
            };
            let fits = text.starts_with(&start) || format!("{:04}", row.number).starts_with(&number);
            fits.then(|| CompletionCandidate::new(text).help(Some(row.title.into())))
        });
        let lists = ["list", "metrics"].into_iter().filter(|word| word.to_uppercase().starts_with(&start));
        lists.map(CompletionCandidate::new).chain(codes).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let last = words.len() - 1;
        let candidates = clap_complete::engine::complete(&mut command(), words, last, None).expect("it completes");
        candidates.into_iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn nothing_hidden_is_offered() {
        for line in [
            "basalt bench floor",
            "basalt bench floor-",
            "basalt meta --dev",
            "basalt osd run --dev-",
            "basalt osd rew",
        ] {
            let words = offered(line);
            let hidden = ["floor-node", "--dev-mark", "reweight"];
            assert!(words.iter().all(|word| !hidden.contains(&word.as_str())), "{line}: {words:?}");
        }
        for (line, verb, alias) in
            [("basalt vo", "volume", "vol"), ("basalt osd ", "ls", "list"), ("basalt volume r", "rm", "remove")]
        {
            let words = offered(line);
            assert!(words.iter().any(|w| w == verb) && words.iter().all(|w| w != alias), "{line}: {words:?}");
        }
        assert!(offered("basalt vol cre").contains(&"create".to_owned()), "behind an alias, too");
        assert!(offered("basalt volume ").contains(&"create".to_owned()));
        assert!(offered("basalt osd run --d").contains(&"--device".to_owned()));
    }

    #[test]
    fn codes_are_offered_as_they_are_begun() {
        assert_eq!(offered("basalt explain 202").first().map(String::as_str), Some("2020"));
        assert!(offered("basalt explain bslt-30").contains(&"BSLT-3001".to_owned()));
        assert!(offered("basalt explain ").contains(&"metrics".to_owned()));
    }

    #[test]
    fn the_cluster_that_the_words_name_is_the_one_that_is_asked() {
        let of = |line: &str| meant(line.split(' ').map(str::to_owned)).expect("flags");
        assert_eq!(of("volume info --cluster other").cluster().expect("a name"), "other");
        let metas = of("--meta=127.0.0.1:7 volume rm --force ").metas().expect("addresses");
        assert_eq!(metas, ["127.0.0.1:7".parse().expect("an address")]);
        assert!(meant(["--meta".to_owned()]).is_none(), "its value is not typed yet");
    }
}
