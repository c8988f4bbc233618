//! Profile of a run: samples of all stacks, and instructions for each request, by `perf`.

use super::rows::Row;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Samples a second and core: no multiple of a timer's rate.
const SAMPLES_PER_S: &str = "499";

/// Two `perf` processes beside a run.
pub struct Profile {
    samples: Child,
    counts: Child,
    counts_file: PathBuf,
}

impl Profile {
    /// Samples this machine for the time of the run, into files of `dir` that are named after the row.
    ///
    /// # Errors
    /// There is no `perf`.
    pub fn begin(dir: &Path, row: &Row, seconds: u64) -> Result<Profile> {
        let name = row.to_string().replace('/', "-");
        let (file, counts_file) = (dir.join(format!("{name}.perf")), dir.join(format!("{name}.stat")));
        let (file, seconds) = (file.display().to_string(), seconds.to_string());
        let sampling = ["record", "--quiet", "-a", "-F", SAMPLES_PER_S, "--call-graph", "dwarf,8192", "-o", &file];
        let samples = perf(&[&sampling[..], &["--", "sleep", &seconds]].concat())?;
        let to = counts_file.display().to_string();
        let counting = ["stat", "-a", "-x", ",", "-e", "instructions", "-o", &to, "--", "sleep", &seconds];
        Ok(Profile { samples, counts: perf(&counting)?, counts_file })
    }

    /// Waits for the files; returns the instructions of all processes. `None`: this machine does not count them.
    ///
    /// # Errors
    /// `perf` fails: it needs root, or `kernel.perf_event_paranoid` of -1.
    pub fn end(mut self) -> Result<Option<f64>> {
        let status = self.samples.wait()?;
        ensure!(status.success(), "perf record failed: it needs root, or the setting kernel.perf_event_paranoid=-1");
        self.counts.wait()?;
        Ok(instructions(&std::fs::read_to_string(&self.counts_file).unwrap_or_default()))
    }
}

fn perf(args: &[&str]) -> Result<Child> {
    let mut command = Command::new("perf");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("perf is missing: apt-get install linux-perf")
}

/// Reads the count from the output of `perf stat -x ,`.
fn instructions(text: &str) -> Option<f64> {
    let line =
        text.lines().find(|line| line.split(',').nth(2).is_some_and(|event| event.starts_with("instructions")))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::instructions;

    #[test]
    fn instructions_are_read_where_the_machine_counts_them() {
        let counted = "# started on Thu\n\n184467440,,instructions,4000000,100.00,1.2,insn per cycle\n";
        assert_eq!(instructions(counted), Some(184_467_440.0));
        assert_eq!(instructions("12,,instructions:u,4,100.00,,\n"), Some(12.0));
        assert_eq!(instructions("<not supported>,,instructions,0,100.00,,\n"), None);
        assert_eq!(instructions(""), None);
    }
}
