//! `basalt volume resize`: gives a volume another length. A shrink may wait for the client of the volume, so the command says what it waits for.

use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::json;
use crate::size::show;
use anyhow::Result;
use control::admin::{Resizing, VolumeView};
use serde_json::to_value;
use std::time::{Duration, Instant};
use types::codes;

/// Time for which the command waits for a shrink. It goes on without the command.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Resizes a volume.
pub fn run(admin: &Admin, name: &str, to: Resizing, as_json: bool) -> Result<()> {
    let tell = |step: &str| {
        if !as_json {
            out!("{step}");
        }
    };
    let volume = apply(admin, name, to, tell)?;
    if as_json {
        return json("volume.resize", to_value(&volume)?);
    }
    let client = match volume.writers.len() {
        1 if !to.shrink => "; its client learns it within a few seconds",
        2.. if !to.shrink => "; its clients learn it within a few seconds",
        _ => "",
    };
    out!("volume {name}: {}{client}", show(volume.len_bytes));
    Ok(())
}

/// Gives a volume another length, and waits for a shrink. `tell` learns each step that the shrink waits for.
#[allow(clippy::disallowed_methods, reason = "a command that waits ends by the clock of its user")]
pub fn apply(admin: &Admin, name: &str, to: Resizing, tell: impl Fn(&str)) -> Result<VolumeView> {
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        let error = match admin.resize_volume(name, to) {
            Ok(volume) => return Ok(volume),
            Err(error) => error,
        };
        let refusal = error.downcast_ref::<UserError>().filter(|error| to.shrink && error.code == codes::VOLUME_BUSY);
        let Some(refusal) = refusal.filter(|_| begun.elapsed() < WAIT_MAX) else { return Err(error) };
        // Another change of the volume is no step of this one.
        if admin.volume_info(name)?.resize_bytes != Some(to.len_bytes) {
            return Err(error);
        }
        if said != refusal.what {
            said.clone_from(&refusal.what);
            tell(&said);
        }
    }
}

/// Returns the words for a step of a shrink, for the page of a volume.
pub fn step(step: &str) -> &'static str {
    match step {
        "client" => " (waits for its client)",
        "search" => " (searched for data behind the new end)",
        "chunks" => " (its PGs take the new size)",
        "wipe" => " (zeroed behind the new end)",
        _ => "",
    }
}
