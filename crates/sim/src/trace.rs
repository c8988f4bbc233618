//! Readable logs of a run: each line carries the world's time and its node.
//!
//! Invariant: logging only listens; a run with logs and one without have equal trace hashes.

use std::cell::Cell;
use std::fmt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use types::Time;

/// Node that writes a log line.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    Sim,
    Osd(u32),
    Client,
}

thread_local! {
    static NOW: Cell<(Time, Speaker)> = const { Cell::new((Time::ZERO, Speaker::Sim)) };
}

/// Marks the following log lines as this node's, at this time.
pub fn at(now: Time, speaker: Speaker) {
    NOW.with(|cell| cell.set((now, speaker)));
}

struct Moment;

impl FormatTime for Moment {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        let (now, speaker) = NOW.with(Cell::get);
        write!(w, "{now:?} ")?;
        match speaker {
            Speaker::Sim => w.write_str("sim   "),
            Speaker::Osd(n) => write!(w, "osd.{n} "),
            Speaker::Client => w.write_str("client"),
        }
    }
}

/// Prints logs to standard error; `BASALT_LOG` chooses which.
pub fn on() {
    let filter = EnvFilter::try_from_env("BASALT_LOG").unwrap_or_else(|_| EnvFilter::new("debug"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(Moment)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}
