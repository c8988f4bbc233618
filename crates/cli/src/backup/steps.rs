//! The pace of a restore or an import: steps until the end, a failure or SIGINT, and notes of how far it came.

use super::failed;
use anyhow::Result;
use backup::{Progress, Steps};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time after which the volume says again how far the work has come: what a crash of this process costs, with a step.
const NOTE_EVERY: Duration = Duration::from_secs(120);

#[allow(clippy::disallowed_methods, reason = "a command's own pace")]
fn now() -> Instant {
    Instant::now()
}

/// Takes SIGINT from here on.
pub fn interrupts(runtime: &Runtime) -> Result<Signal> {
    let _in_runtime = runtime.enter();
    Ok(signal(SignalKind::interrupt())?)
}

/// Runs work until it ends or a signal has come since [`interrupts`]; `None`: that came first.
pub fn until<T>(runtime: &Runtime, interrupts: &mut Signal, work: impl Future<Output = T>) -> Option<T> {
    runtime.block_on(async {
        tokio::select! {
            done = work => Some(done),
            Some(()) = interrupts.recv() => None,
        }
    })
}

/// Does all steps. `None`: SIGINT ended it before. `note` learns how far the volume is, now and then, and when not all is done; it is not
/// told the same twice.
pub fn all<S: Steps>(
    runtime: &Runtime,
    steps: &mut S,
    tell: &(dyn Fn(Progress) + Sync),
    mut note: impl FnMut(u64),
) -> Result<Option<S::End>> {
    let mut interrupts = interrupts(runtime)?;
    let (mut noted, mut noted_at) = (steps.done(), now());
    let ended = loop {
        match until(runtime, &mut interrupts, steps.step(tell)) {
            None => break Ok(None),
            Some(Err(error)) => break Err(failed(error)),
            Some(Ok(Some(end))) => return Ok(Some(end)),
            Some(Ok(None)) if noted_at.elapsed() < NOTE_EVERY => {}
            Some(Ok(None)) if steps.done() == noted => {}
            Some(Ok(None)) => {
                (noted, noted_at) = (steps.done(), now());
                note(noted);
            }
        }
    };
    if steps.done() > noted {
        note(steps.done());
    }
    ended
}
