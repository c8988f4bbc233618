//! `basalt volume flatten`: orders the copies into a clone, and waits for their end.

use crate::admin::Admin;
use crate::output::{self, json};
use anyhow::{Result, bail};
use control::admin::VolumeView;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::to_value;
use std::time::Duration;

/// Interval between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Percent between two lines of progress.
const TOLD_EVERY: u32 = 10;

/// Begins, stops or awaits the flatten of a volume.
#[allow(clippy::disallowed_methods, reason = "a command that follows waits between two looks")]
pub fn run(admin: &Admin, name: &str, (cancel, no_wait): (bool, bool), as_json: bool) -> Result<()> {
    let mut volume = admin.flatten_volume(name, cancel)?;
    let bar = bar(as_json || cancel || no_wait);
    let mut told = 0;
    while !cancel && !no_wait && volume.parent.is_some() {
        let Some(flatten) = &volume.flatten else {
            bail!("the flatten of volume {name} was stopped meanwhile: it keeps its parent");
        };
        let message = format!("{} of {} PGs done", flatten.flat_pgs, flatten.pgs);
        // Without a terminal a line for each tenth takes the place of the bar.
        if bar.is_hidden() && !as_json && flatten.percent >= told + TOLD_EVERY {
            told = flatten.percent;
            output::remark(&format!("{told} % copied, {message}"));
        }
        bar.set_position(flatten.percent.into());
        bar.set_message(message);
        std::thread::sleep(LOOK_EVERY);
        volume = admin.volume_info(name)?;
    }
    bar.finish_and_clear();
    if as_json {
        return json("volume.flatten", to_value(&volume)?);
    }
    match (cancel, &volume.parent) {
        (true, Some(parent)) => out!("volume {name} keeps its parent {parent}; PGs that are done stay so"),
        (false, Some(parent)) => {
            out!("volume {name} gets copies of what it shows of {parent}: basalt volume info {name}");
        }
        (_, None) => out!("volume {name} needs no parent"),
    }
    Ok(())
}

/// A bar for the percentage that is copied.
fn bar(is_hidden: bool) -> ProgressBar {
    if is_hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} % copied, {msg}");
    ProgressBar::new(100).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Returns the progress for the page of a volume.
pub fn progress(volume: &VolumeView) -> String {
    let of = |flatten: &control::admin::FlattenView| {
        format!(", being flattened: {} %, {} of {} PGs done", flatten.percent, flatten.flat_pgs, flatten.pgs)
    };
    volume.flatten.as_ref().map(of).unwrap_or_default()
}
