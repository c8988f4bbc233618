//! The only place here that reads clocks and sleeps: tests of processes have real time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant, SystemTime};

/// Time between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Returns the present time.
#[allow(clippy::disallowed_methods, reason = "what is measured here happens in other processes")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the milliseconds of the wall clock, as `fio` writes them.
#[allow(clippy::disallowed_methods, reason = "compared with the stamps of another program")]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Lets so much time go by; the load goes on meanwhile.
#[allow(clippy::disallowed_methods, reason = "the length of a pause is part of a scenario")]
pub fn pause(d: Duration) {
    std::thread::sleep(d);
}

/// Waits until `done`, and returns how long that took.
///
/// # Errors
/// The condition is not met after `max`, or `done` fails.
pub fn wait_until(what: &str, max: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let start = now();
    loop {
        if done()? {
            return Ok(start.elapsed());
        }
        if start.elapsed() > max {
            bail!("waited {} s in vain for {what}", max.as_secs());
        }
        pause(LOOK);
    }
}
