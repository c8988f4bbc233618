//! Runs many seeds on several cores. A panic of a run is a failure like any other.

use crate::overrides::Overrides;
use crate::run::{Report, run_with};
use crate::summary::Sum;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    /// Place and text of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A set of seeds, and how to run them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Seeds that run before the others.
    pub known: Vec<u64>,
    pub first: u64,
    /// Number of seeds; without effect when `time` is set.
    pub seeds: u64,
    pub time: Option<Duration>,
    /// Seeds that run at a time, each on its own core.
    pub jobs: usize,
    /// The batch goes on after a failure.
    pub keep_going: bool,
    pub overrides: Overrides,
}

/// Returns the real time, which is no part of any run.
#[allow(clippy::disallowed_methods)]
pub fn clock() -> Instant {
    Instant::now()
}

/// Keeps panics for the report from now on, and does not print them.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let text = info.payload_as_str().unwrap_or("no words");
        PANIC.with_borrow_mut(|kept| *kept = format!("panic at {place}: {text}"));
    }));
}

/// Runs one seed; a panic is a failure like any other.
pub fn guarded(seed: u64, overrides: &Overrides) -> Report {
    catch_unwind(AssertUnwindSafe(|| run_with(seed, overrides))).unwrap_or_else(|_| {
        let failure = PANIC.with_borrow_mut(std::mem::take);
        let failure = if failure.is_empty() { "panic".to_owned() } else { failure };
        let tunables = crate::tuned::draw(seed, overrides).1;
        Report { failure: Some(failure), tunables, ..Report::default() }
    })
}

impl Batch {
    /// Runs the seeds. Seeds that were begun are ended, so the seeds that ran are contiguous from the first on.
    ///
    /// # Panics
    /// When a thread's own code panics.
    pub fn run(&self) -> Sum {
        let began = clock();
        let known = self.known.len() as u64;
        let (next, stop, sum) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Sum::default()));
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                if self.time.is_some_and(|limit| began.elapsed() >= limit) {
                    break;
                }
                let n = next.fetch_add(1, Ordering::Relaxed);
                if self.time.is_none() && n >= known + self.seeds {
                    break;
                }
                let seed = self.known.get(n as usize).copied().unwrap_or_else(|| self.first + (n - known));
                let report = guarded(seed, &self.overrides);
                if report.failure.is_some() && !self.keep_going {
                    stop.store(true, Ordering::Relaxed);
                }
                sum.lock().expect("no thread panics while it holds the sum").add(seed, report);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(work);
            }
        });
        let mut sum = sum.into_inner().expect("all threads are done");
        sum.took = began.elapsed();
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_a_whole_stretch() {
        let overrides = Overrides { until: Some(0.0), ..Overrides::default() };
        let batch = Batch { known: vec![79], first: 5, seeds: 3, time: None, jobs: 2, keep_going: true, overrides };
        let sum = batch.run();
        assert_eq!((sum.seeds, sum.failures.len()), (4, 0));
        assert_eq!(sum.last_seed, 79);
    }
}
