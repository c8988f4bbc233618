//! `basalt disk`: tools for the device of a stopped OSD.
//!
//! They mount the store with the engine's own code, so they show what the OSD would find, and the commands that only read
//! keep the writes of that mount in memory.
//!
//! Invariant: a device is written by `disk rm --yes` alone.

mod cat;
mod check;
mod cp;
mod device;
mod dump;
mod info;
mod ls;
mod rm;
mod space;
#[cfg(test)]
mod tests;
mod view;

use crate::disk_args::Disk;
use crate::errors::Exit;
use anyhow::Result;

/// Runs a command.
pub fn run(command: Disk, as_json: bool) -> Result<Exit> {
    match command {
        Disk::Info(args) => info::run(&args, as_json).map(|()| Exit::Done),
        Disk::Ls(args) => ls::run(&args, as_json).map(|()| Exit::Done),
        Disk::Cat(args) => cat::run(&args, as_json),
        Disk::Cp(args) => cp::run(&args, as_json),
        Disk::Check(args) => check::run(&args, as_json),
        Disk::DumpLog(args) => dump::run(&args, as_json).map(|()| Exit::Done),
        Disk::Usage(args) => space::run(&args, as_json).map(|()| Exit::Done),
        Disk::Rm(args) => rm::run(&args, as_json).map(|()| Exit::Done),
    }
}
