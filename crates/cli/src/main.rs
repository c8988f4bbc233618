//! `basalt`: every role and every command in one binary.
//!
//! Ring 4. It parses, composes and prints; what happens is in the rooms. Exit codes: 0 done, 1 failed,
//! 2 usage, 3 done but degraded.

#[macro_use]
mod output;

mod admin;
mod args;
mod bench_cmd;
mod dev;
#[cfg(test)]
mod docs;
mod errors;
mod explain;
mod role;
mod show;
mod size;
mod verify;

use admin::Admin;
use anyhow::Result;
use args::{Cli, Command, Common, Osd, Pg};
use clap::Parser;
use errors::{Exit, UserError};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { Exit::Done as u8 });
        }
    };
    logging();
    #[cfg(feature = "failpoints")]
    if let Err(why) = arm_failpoint() {
        report(&why, cli.common.json);
        return ExitCode::from(Exit::Usage as u8);
    }
    let as_json = cli.common.json;
    match run(cli) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            report(&error, as_json);
            ExitCode::from(Exit::Failed as u8)
        }
    }
}

fn report(error: &anyhow::Error, as_json: bool) {
    let code = error.downcast_ref::<UserError>().map_or(9001, |e| e.code);
    if as_json {
        let next = error.downcast_ref::<UserError>().map_or("", |e| e.next.as_str());
        let what = error.downcast_ref::<UserError>().map_or_else(|| format!("{error:#}"), |e| e.what.clone());
        let body = serde_json::json!({ "code": code, "error": what, "next": next });
        if output::json("error", body).is_ok() {
            return;
        }
    }
    // Standard error may be closed; there is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "basalt: {error:#}");
}

/// `BASALT_LOG` sets the level; text on a terminal, JSON lines otherwise.
fn logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BASALT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().init();
    }
}

/// Arms the failpoint that `BASALT_FAILPOINT` names.
#[cfg(feature = "failpoints")]
fn arm_failpoint() -> Result<()> {
    let Ok(text) = std::env::var("BASALT_FAILPOINT") else { return Ok(()) };
    let (point, nth) = types::failpoint::parse(&text).map_err(|why| anyhow::anyhow!("BASALT_FAILPOINT: {why}"))?;
    types::failpoint::arm(point, nth);
    tracing::warn!(point = text, "this process will end itself at a failpoint");
    Ok(())
}

fn run(cli: Cli) -> Result<Exit> {
    let common = cli.common;
    match cli.command {
        Command::Dev(command) => dev::run(command, &common.cluster, common.json).map(|()| Exit::Done),
        Command::Meta(args) => role::meta::run(args).map(|()| Exit::Done),
        Command::Osd(Osd::Format { device, size, log_size, force }) => {
            let place = role::osd::Place::default();
            let format =
                role::osd::Format { device, size, log_size, force, metas: metas(&common)?, quiet: common.json, place };
            let formatted = role::osd::format(&format)?;
            role::osd::show(&formatted, common.json).map(|()| Exit::Done)
        }
        Command::Osd(Osd::Run(args)) => role::osd::run(&args, &metas(&common)?).map(|()| Exit::Done),
        Command::Nbd(args) => role::nbd::run(&args, &metas(&common)?).map(|()| Exit::Done),
        Command::Osd(Osd::Ls) => show::osds(&connect(&common)?, common.json).map(|()| Exit::Done),
        Command::Status => show::status(&connect(&common)?, common.json),
        Command::Pg(Pg::Verify { pgs, deep: _, tables }) => verify::run(&connect(&common)?, &pgs, tables, common.json),
        Command::Pg(command) => show::pgs(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Pool(command) => show::pool(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Volume(command) => show::volume(&connect(&common)?, &command, common.json).map(|()| Exit::Done),
        Command::Bench(args) => {
            let pids = dev::pids(&common.cluster);
            bench_cmd::run(args, || metas(&common), &pids, common.json).map(|()| Exit::Done)
        }
        Command::Explain { code } => explain::run(&code, common.json),
        Command::Completion { shell } => {
            explain::completion(shell);
            Ok(Exit::Done)
        }
    }
}

/// The metas to ask: those given, or the dev cluster's.
fn metas(common: &Common) -> Result<Vec<SocketAddr>> {
    if !common.meta.is_empty() {
        return Ok(common.meta.clone());
    }
    match dev::Cluster::open(&common.cluster)? {
        Some(cluster) => Ok((0..cluster.record.metas).map(|i| cluster.meta_addr(i)).collect()),
        None => Err(UserError::new(
            1002,
            format!("no --meta was given and there is no dev cluster named {}", common.cluster),
            "basalt dev up",
        )
        .into()),
    }
}

fn connect(common: &Common) -> Result<Admin> {
    Admin::connect(&metas(common)?)
}
