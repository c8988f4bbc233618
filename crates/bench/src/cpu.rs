//! CPU time and page faults of processes, from `/proc/PID/stat`.
//!
//! The source is not `getrusage`, because the processes are not our children when a running cluster is measured. The
//! clock ticks 100 times a second, so windows shorter than a second say little.
#![allow(unsafe_code)]

use serde::Serialize;

/// CPU time that one process has used since it started, and its page faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuSample {
    pub pid: u32,
    /// The process's own name (`comm`), at most 15 bytes.
    pub name: String,
    pub user_us: u64,
    pub system_us: u64,
    /// Page faults that needed no device.
    pub minor_faults: u64,
}

impl CpuSample {
    pub fn total_us(&self) -> u64 {
        self.user_us + self.system_us
    }
}

/// Why a process could not be sampled.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("process {pid}: {source}")]
    Read { pid: u32, source: std::io::Error },
    #[error("/proc/{pid}/stat has an unknown form")]
    Form { pid: u32 },
}

/// Samples each process once, in the order given.
///
/// # Errors
/// A process is gone.
pub fn sample(pids: &[u32]) -> Result<Vec<CpuSample>, CpuError> {
    pids.iter()
        .map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_err(|source| CpuError::Read { pid: *pid, source })?;
            parse(*pid, &text, ticks_per_s()).ok_or(CpuError::Form { pid: *pid })
        })
        .collect()
}

/// Returns the CPU time between two samples of the same processes, in the order of `after`. A process that is not in
/// `before` counts from its start.
pub fn between(before: &[CpuSample], after: &[CpuSample]) -> Vec<CpuSample> {
    after
        .iter()
        .map(|sample| {
            let was = before.iter().find(|was| was.pid == sample.pid);
            let since = |count: fn(&CpuSample) -> u64| count(sample).saturating_sub(was.map_or(0, count));
            CpuSample {
                user_us: since(|s| s.user_us),
                system_us: since(|s| s.system_us),
                minor_faults: since(|s| s.minor_faults),
                ..sample.clone()
            }
        })
        .collect()
}

fn ticks_per_s() -> u64 {
    // SAFETY: sysconf has no preconditions; it reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// Parses one line. The name stands in parentheses and may hold any byte, so the fields are counted from the last one.
fn parse(pid: u32, text: &str, ticks_per_s: u64) -> Option<CpuSample> {
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().take(13).collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let us = |at: usize| Some(number(at)? * 1_000_000 / ticks_per_s);
    Some(CpuSample { pid, name, user_us: us(11)?, system_us: us(12)?, minor_faults: number(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let text = "42 (a) (b c) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 1 0 99";
        let want =
            CpuSample { pid: 42, name: "a) (b c".into(), user_us: 1_500_000, system_us: 250_000, minor_faults: 7 };
        assert_eq!(parse(42, text, 100), Some(want));
        assert_eq!(parse(42, "42 (x) S 1", 100), None);
    }

    #[test]
    fn the_difference_is_by_process() {
        let sample = |pid, user_us| CpuSample { pid, name: "x".into(), user_us, system_us: 5, minor_faults: 2 };
        let used = between(&[sample(2, 10), sample(1, 7)], &[sample(1, 20), sample(3, 4)]);
        assert_eq!(used.iter().map(CpuSample::total_us).collect::<Vec<_>>(), [13, 9]);
    }

    #[test]
    fn our_own_time_can_be_read_and_a_missing_process_is_named() {
        let own = sample(&[std::process::id()]).expect("we are there");
        assert_eq!(own[0].pid, std::process::id());
        let error = sample(&[u32::MAX]).expect_err("no such process");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
