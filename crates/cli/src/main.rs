//! `basalt`: every role and every command in one binary.
//!
//! Ring 4. It parses, composes and prints; the other crates do the work. The manual page lists the exit codes.

#[macro_use]
mod output;

mod address;
mod admin;
mod args;
mod backup;
mod bench_cmd;
mod bench_engine;
mod bench_trace;
mod completion;
mod dev;
mod device_arg;
mod device_info;
mod diff;
mod disk;
mod disk_args;
#[cfg(test)]
mod docs;
mod du;
mod duration;
mod errors;
mod explain;
mod faults;
mod flatten;
mod health;
mod hint;
mod limit_args;
mod logging;
mod metas;
mod missing;
mod osd_args;
mod osd_intent;
mod pg_force;
mod pg_move;
mod records;
mod recovery;
mod resize;
mod ring_args;
mod role;
mod settings;
mod show;
mod size;
mod snapshot_args;
mod snapshots;
mod stripes;
mod top;
mod unavailable_arg;
mod usage;
mod verify;
mod version;
mod volume_args;
mod volumes;
mod watch;

use address::Address;
use admin::Admin;
use anyhow::Result;
use args::{Cli, Command, Common, MetaCommand, MetaSub, Osd, Pg};
use errors::{Exit, UserError};
use osd_intent::Intent;
use std::process::ExitCode;
use types::codes;

#[global_allocator]
static ALLOCATOR: bench::allocations::Counted = bench::allocations::Counted;

fn main() -> ExitCode {
    let exit = if completion::answer() { Exit::Done } else { start() };
    output::flush();
    ExitCode::from(exit as u8)
}

fn start() -> Exit {
    let cli = match usage::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(unusable) => return usage::show(unusable, usage::wants_json(std::env::args_os())),
    };
    hint::remember(&cli.common);
    let as_json = cli.common.json;
    let is_daemon = match &cli.command {
        Command::Meta(meta) => meta.sub.is_none(),
        command => matches!(command, Command::Osd(Osd::Run(_)) | Command::Nbd(_)),
    };
    // Commands that explain errors and need no log must not fail for a wrong BASALT_LOG.
    let needs_log = !matches!(cli.command, Command::Explain(_) | Command::Completion { .. } | Command::Version);
    // A tool of a device reports what the mount finds itself; a backup shows its progress.
    let is_quiet = matches!(cli.command, Command::Disk(_) | Command::Backup(_)) && args::env("BASALT_LOG").is_none();
    if is_daemon {
        // Under the old limit it has room for fewer connections.
        let _ = env::real::raise_file_limit();
    }
    let ran = match if is_quiet { Ok(()) } else { logging::start() } {
        Err(error) if needs_log => Err(error.into()),
        _ => {
            let common = cli.common.clone();
            run(cli).map_err(|error| errors::advise_down(error, || dev_is_down(&common)))
        }
    };
    ran.unwrap_or_else(|error| report(error, as_json, is_daemon))
}

/// Prints the error; returns the exit code. An error without a code is a fault of this program. Where a daemon's log is
/// JSON, its last error is a log line, too: a log shipper would lose plain text.
fn report(error: anyhow::Error, as_json: bool, is_daemon: bool) -> Exit {
    let error = error.downcast::<UserError>().unwrap_or_else(|error| {
        UserError::new(codes::BUG, format!("{error:#}"), "please report it with the command and the logs")
    });
    let error = UserError { next: hint::paste(&error.next), ..error };
    let exit = error.exit();
    let is_logged = is_daemon && logging::is_json();
    if is_logged {
        let code = codes::label(error.code);
        tracing::error!(code, next = error.next, "{}", error.what);
    }
    if (!as_json || output::error(&error).is_err()) && !is_logged {
        output::complain(&error.to_string());
    }
    exit
}

/// Arms the failpoint that `BASALT_FAILPOINT` names.
#[cfg(feature = "failpoints")]
fn arm_failpoint() -> Result<()> {
    let Some(text) = args::env("BASALT_FAILPOINT") else { return Ok(()) };
    let wrong = |why| UserError::new(codes::BAD_USAGE, format!("BASALT_FAILPOINT: {why}"), "BASALT_FAILPOINT=NAME:N");
    let (point, nth) = types::failpoint::parse(&text).map_err(wrong)?;
    types::failpoint::arm(point, nth);
    tracing::warn!(point = text, "this process will end itself at a failpoint");
    Ok(())
}

fn run(cli: Cli) -> Result<Exit> {
    #[cfg(feature = "failpoints")]
    arm_failpoint()?;
    let common = cli.common;
    match cli.command {
        Command::Disk(command) => disk::run(*command, common.json),
        Command::Dev(command) => dev::run(command, &common.cluster()?, common.json).map(|()| Exit::Done),
        Command::Meta(command) => meta(*command, &common),
        Command::Osd(command) => osd(command, &common),
        Command::Config(command) => settings::run(&connect(&common)?, &command, common.json),
        Command::Nbd(args) => role::nbd::run(&args, &metas(&common)?, common.json).map(|()| Exit::Done),
        Command::Status(args) => {
            let metas = metas(&common)?;
            let admin = Admin::connect(&metas)?;
            watch::run(&args, || health::status(&admin, &metas, common.json))
        }
        Command::Health { command } => health::health(&connect(&common)?, command.as_ref(), common.json),
        Command::Events { since, of, follow } => {
            let which = (since, of.as_deref());
            health::events(&connect(&common)?, which, follow, common.json).map(|()| Exit::Done)
        }
        Command::Top(args) => top::run(&connect(&common)?, &args, common.json).map(|()| Exit::Done),
        Command::Pg(Pg::Verify { pgs, deep: _, tables }) => verify::run(&connect(&common)?, &pgs, tables, common.json),
        Command::Pg(Pg::Move { pg, from, to, cancel: _, dry_run, wait }) => {
            let ends = from.zip(to).map(|(from, to)| (types::OsdId(from), types::OsdId(to)));
            let admin = connect(&common)?;
            let done = match ends.filter(|_| dry_run) {
                Some(ends) => pg_move::plan(&admin, pg, ends, common.json),
                None => pg_move::run(&admin, pg, ends, wait, common.json),
            };
            done.map(|()| Exit::Done)
        }
        Command::Pg(Pg::ForceRecover { pgs, all, osd, dry_run, accept_data_loss }) => {
            let osd = osd.map(types::OsdId);
            let ask = pg_force::Ask { pgs, all, osd, dry_run, accept_loss: accept_data_loss };
            pg_force::run(&connect(&common)?, &ask, common.json)
        }
        Command::Pg(Pg::Ls { pool, watch }) => {
            let admin = connect(&common)?;
            watch::run(&watch, || show::pgs(&admin, pool.as_deref(), common.json).map(|()| Exit::Done))
        }
        Command::Pool(command) => show::pool(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Volume(command) => volumes::volume(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Snapshot(command) => snapshots::snapshot(&connect(&common)?, &command, common.json),
        Command::Backup(command) => backup(&command, &common),
        Command::Trash(command) => volumes::trash(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Bench(args) => {
            let pids = common.cluster().map(|name| dev::pids(&name)).unwrap_or_default();
            bench_cmd::run(args, || metas(&common), &pids, common.json)
        }
        Command::Explain(args) => explain::run(&args, || connect(&common), common.json),
        Command::Completion { shell } => {
            completion::script(shell);
            Ok(Exit::Done)
        }
        Command::Version => explain::version(common.json).map(|()| Exit::Done),
    }
}

/// Runs `basalt osd ...`.
fn osd(command: Osd, common: &Common) -> Result<Exit> {
    match command {
        Osd::Format(args) => osd_intent::format(args, &metas(common)?, common.json),
        Osd::Replace(args) => osd_intent::replace(args, &metas(common)?, common.json),
        Osd::Out(args) => osd_intent::run(&connect(common)?, &Intent::Out, &args, common.json),
        Osd::In(args) => osd_intent::run(&connect(common)?, &Intent::In, &args, common.json),
        Osd::SetClass { class, osds } => osd_intent::run(&connect(common)?, &Intent::Class(class), &osds, common.json),
        Osd::Drain(args) => osd_intent::run(&connect(common)?, &Intent::Drain, &args, common.json),
        Osd::Set { flag } => settings::flag(&connect(common)?, flag, true, common.json),
        Osd::Unset { flag } => settings::flag(&connect(common)?, flag, false, common.json),
        Osd::Run(args) => role::osd::run(&args, &metas(common)?, common.json).map(|()| Exit::Done),
        Osd::Rm { osd } => show::remove_osd(&connect(common)?, osd, common.json).map(|()| Exit::Done),
        Osd::Info { osd } => device_info::osd(&connect(common)?, osd, common.json).map(|()| Exit::Done),
        Osd::Ls(args) => {
            let admin = connect(common)?;
            watch::run(&args, || show::osds(&admin, common.json).map(|()| Exit::Done))
        }
    }
}

fn backup(command: &args::Backup, common: &Common) -> Result<Exit> {
    let named = || Ok(metas(common)?.iter().map(Address::to_string).collect());
    backup::run(command, || connect(common), named, common.json)
}

fn meta(MetaCommand { sub, run }: MetaCommand, common: &Common) -> Result<Exit> {
    let Some(sub) = sub else { return role::meta::run(&run, common.json).map(|()| Exit::Done) };
    match sub {
        MetaSub::Ls => metas::list(&metas(common)?, common.json),
        MetaSub::Recover { dry_run, without, force } => {
            let without: Vec<_> = without.into_iter().map(types::OsdId).collect();
            recovery::recover(&connect(common)?, dry_run, &without, force, common.json)
        }
        MetaSub::Backup { file } => records::backup(&connect(common)?, &file, common.json).map(|()| Exit::Done),
        MetaSub::Restore { file, store, force } => {
            records::restore(&file, &store, force, common.json).map(|()| Exit::Done)
        }
    }
}

/// Returns the advice for a command that asked the metas of a dev cluster that does not run.
fn dev_is_down(common: &Common) -> Option<String> {
    if !common.metas().is_ok_and(|named| named.is_empty()) {
        return None;
    }
    let name = common.cluster().ok()?;
    dev::is_down(&name)
        .then(|| format!("basalt dev up   # the metadata server of dev cluster {name} is down; its data is there"))
}

/// Returns the metas to ask: those given, or the dev cluster's.
fn metas(common: &Common) -> Result<Vec<Address>> {
    let named = common.metas()?;
    if !named.is_empty() {
        return Ok(named);
    }
    let name = common.cluster()?;
    match dev::Cluster::open(&name)? {
        Some(cluster) => Ok((0..cluster.record.metas).map(|i| cluster.meta_addr(i).into()).collect()),
        None => Err(dev::missing(&name, "no --meta was given and ").into()),
    }
}

fn connect(common: &Common) -> Result<Admin> {
    Admin::connect(&metas(common)?)
}
