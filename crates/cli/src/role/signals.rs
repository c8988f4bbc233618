//! Effects of signals on a role.
//!
//! SIGTERM and SIGINT ask it to end in order; a second SIGINT ends it at once. SIGHUP asks the same of a role that was
//! started at a terminal, because the terminal is going away. Without a terminal SIGHUP only writes a log line: there is no
//! file to reopen. Under `nohup` SIGHUP stays ignored. SIGUSR1 sets the log level to `debug`, SIGUSR2 back to its value at
//! the start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of a process that a second SIGINT ended: 128 and the signal's number, as in shells.
const INTERRUPTED: i32 = 130;

/// The signals that a role handles.
pub struct Signals {
    term: Signal,
    int: Signal,
    louder: Signal,
    quieter: Signal,
    /// `None`: SIGHUP is ignored, as it was when this process was started.
    hangup: Option<Signal>,
    at_terminal: bool,
}

impl Signals {
    /// Takes the signals over; inside a runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn watch() -> std::io::Result<Signals> {
        let read = |what: &str| std::fs::read_to_string(format!("/proc/self/{what}")).unwrap_or_default();
        let hangup = match ignores_hangup(&read("status")) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        let at_terminal = has_terminal(&read("stat"));
        let (term, int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (louder, quieter) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        Ok(Signals { term, int, louder, quieter, hangup, at_terminal })
    }

    /// Waits for the next signal that asks this role to end, and returns its name.
    pub async fn end(&mut self) -> &'static str {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.term.recv() => return "SIGTERM",
                _ = self.int.recv() => return "SIGINT",
                _ = self.louder.recv() => crate::logging::set_debug(true),
                _ = self.quieter.recv() => crate::logging::set_debug(false),
                _ = hangup => {
                    if self.at_terminal {
                        return "SIGHUP";
                    }
                    tracing::info!("SIGHUP is ignored: this process has no terminal and no file to reopen");
                }
            }
        }
    }
}

/// Whether `/proc/PID/status` says that SIGHUP is ignored.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Whether `/proc/PID/stat` names a controlling terminal.
fn has_terminal(stat: &str) -> bool {
    // The name of the program, in brackets, may hold any character; `tty_nr` is the fifth field after it.
    let behind = stat.rsplit(") ").next().unwrap_or_default();
    behind.split_whitespace().nth(4).is_some_and(|tty| tty != "0")
}

/// Whether the process is asked to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Default)]
struct Asked {
    is_set: AtomicBool,
    /// The waker belongs to the loop that runs now.
    waker: Mutex<Option<env::Waker>>,
}

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Names the loop that is to end. It looks at [`Stop::is_set`] before it waits.
    pub fn wakes(&self, waker: env::Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Asks the process to end, and wakes its loop.
    pub(super) fn set(&self) {
        self.0.is_set.store(true, Ordering::Relaxed);
        if let Some(waker) = &*self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    /// Sets the flag at the first signal that asks for the end, and wakes the loop.
    pub fn on_signal(runtime: &Runtime) -> Stop {
        let stop = Stop::default();
        let ours = stop.clone();
        let _inside = runtime.enter();
        // Signals are taken over before the role does anything that they must not interrupt.
        let mut signals = match Signals::watch() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::warn!(%error, "signals cannot be watched");
                return stop;
            }
        };
        runtime.spawn(async move {
            let name = signals.end().await;
            tracing::info!(signal = name, "ending");
            ours.set();
            while signals.end().await != "SIGINT" {}
            std::process::exit(INTERRUPTED);
        });
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::{Stop, has_terminal, ignores_hangup};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_request_to_end_wakes_the_loop_that_runs_now() {
        let stop = Stop::default();
        let woken = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        for woken in woken.clone() {
            stop.wakes(env::Waker::new(move || woken.store(true, Ordering::Relaxed)));
        }
        stop.set();
        assert!(stop.is_set());
        assert_eq!(woken.map(|woken| woken.load(Ordering::Relaxed)), [false, true]);
    }

    #[test]
    fn hangup_is_ignored_when_its_bit_is_set() {
        let status = |mask: &str| format!("Name:\tbasalt\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }

    #[test]
    fn the_terminal_is_the_fifth_field_behind_the_name() {
        assert!(has_terminal("7 (a) b 1) S 1 7 7 34816 7 4194304"));
        assert!(!has_terminal("7 (basalt) S 1 7 7 0 -1 4194304"));
        assert!(!has_terminal(""));
    }
}
