//! `--watch`: repeats a listing until the command is interrupted.

use crate::args::WatchArgs;
use crate::errors::Exit;
use crate::output;
use anyhow::Result;
use std::io::IsTerminal;
use std::time::Duration;

/// Moves the cursor to the first cell and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the listing once, or every `watch` seconds. A failure of the first listing ends the command. A later one is
/// printed, and the next listing may succeed again.
///
/// # Errors
/// The error of the first listing.
pub fn run(args: &WatchArgs, mut show: impl FnMut() -> Result<Exit>) -> Result<Exit> {
    let Some(seconds) = args.watch else { return show() };
    let clear = || {
        if std::io::stdout().is_terminal() {
            output::bytes(CLEAR.as_bytes());
        }
    };
    clear();
    show()?;
    loop {
        output::flush();
        pause(Duration::from_secs(seconds));
        clear();
        if let Err(error) = show() {
            output::complain(&format!("{error:#}"));
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a command that watches waits between two looks")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
