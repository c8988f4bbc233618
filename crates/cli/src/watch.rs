//! `--watch`: a listing that is shown again and again until the command is interrupted.

use crate::args::WatchArgs;
use crate::errors::Exit;
use crate::output;
use anyhow::Result;
use std::io::IsTerminal;
use std::time::Duration;

/// To the first cell of the terminal, and nothing left on it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows once, or every so many seconds. The first failure ends the command; a later one is said, and the next look may
/// succeed again.
///
/// # Errors
/// What the first look fails with.
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
