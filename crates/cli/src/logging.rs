//! Logging of every role: text on a terminal, JSON lines otherwise.
//!
//! The level of a running daemon changes with a signal: [`set_debug`].
//!
//! Invariant: a log that cannot be written (a full disk under it, a closed pipe) loses lines and ends no daemon.
//!
//! `BASALT_LOG` is a comma list of `LEVEL` and `TARGET=LEVEL`. A text that is neither is refused. Tracing would take it
//! for a target and turn all other logging off.

use crate::errors::UserError;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;
use types::codes;

/// The filter without `BASALT_LOG`. The lines of the transport crates at `debug` are frames, not events.
const DEFAULT: &str = "info,h2=info,hyper=info,hyper_util=info,tower=info,tonic=info,rustls=info";

const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

/// Starts logging to standard error.
///
/// # Errors
/// BSLT-1001 when `BASALT_LOG` is no filter.
pub fn start() -> Result<(), UserError> {
    let filter = filter(crate::args::env("BASALT_LOG").as_deref().unwrap_or(""))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // tracing reports a failed write with eprintln!, which panics when standard error is what failed.
    let builder = builder.log_internal_errors(false);
    let reload: Reload = if std::io::stderr().is_terminal() {
        let builder = builder.with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| handle.reload(filter).is_ok())
    } else {
        let builder = builder.json().with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| handle.reload(filter).is_ok())
    };
    // Logging starts once.
    let _ = RELOAD.set(reload);
    Ok(())
}

type Reload = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Sets the log level to `debug`, or back to the value of `BASALT_LOG`.
pub fn set_debug(debug: bool) {
    let text = crate::args::env("BASALT_LOG").unwrap_or_default();
    let wanted = if debug { "debug" } else { text.as_str() };
    // The value was parsed successfully at the start.
    let (Some(reload), Ok(filter)) = (RELOAD.get(), filter(wanted)) else { return };
    if reload(filter) {
        tracing::info!(level = if wanted.is_empty() { "info" } else { wanted }, "the log level is changed by a signal");
    }
}

/// Whether log lines are JSON, so that a daemon's last error must be a JSON line, too.
pub fn is_json() -> bool {
    !std::io::stderr().is_terminal() && tracing::enabled!(tracing::Level::ERROR)
}

fn filter(text: &str) -> Result<EnvFilter, UserError> {
    let wrong = |part: &str| {
        let what = format!("BASALT_LOG: `{part}` is neither a level ({}) nor TARGET=LEVEL", LEVELS.join(", "));
        UserError::new(codes::BAD_USAGE, what, "BASALT_LOG=info, or BASALT_LOG=info,osd=debug")
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    for part in &parts {
        let level = part.rsplit_once('=').map_or(*part, |(_, level)| level);
        if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(wrong(part));
        }
    }
    let all = [&[DEFAULT], parts.as_slice()].concat().join(",");
    EnvFilter::builder().parse(all).map_err(|_| wrong(text))
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_filter_is_levels_and_targets_with_levels_and_nothing_else() {
        for good in ["", "debug", "WARN", "osd=trace", "info,osd=debug,group=trace", " info , osd=debug ", "off"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["bogus", "osd", "osd=bogus", "debug,verbose", "=", "info=,"] {
            let error = filter(bad).expect_err(bad);
            assert!(error.code == 1001 && error.what.starts_with("BASALT_LOG: "), "{bad}: {error}");
        }
    }

    #[test]
    fn debug_leaves_the_carriers_at_info_and_a_named_one_as_told() {
        let text = filter("debug").expect("a filter").to_string();
        assert!(text.contains("h2=info") && text.contains("debug") && !text.contains(",info,"), "{text}");
        let text = filter("debug,h2=trace").expect("a filter").to_string();
        assert!(text.contains("h2=trace") && !text.contains("h2=info"), "{text}");
    }
}
