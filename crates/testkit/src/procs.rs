//! One process of a scenario: it is started, signalled, watched, and started again. It dies with this process.

use crate::clock;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How the process is started, again and again.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Its standard error, and its output unless that is piped.
    pub log: PathBuf,
}

/// A process, running or not.
#[derive(Debug)]
pub struct Proc {
    pub spec: Spec,
    /// Additional environment variables, from the next start on.
    pub env: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl Proc {
    pub fn new(spec: Spec) -> Proc {
        Proc { spec, env: Vec::new(), child: None }
    }

    /// Starts the process; it is not necessarily ready.
    pub fn start(&mut self) -> Result<()> {
        self.spawn(false).map(|_| ())
    }

    /// Starts the process like [`Proc::start`], and returns its standard output.
    pub fn start_piped(&mut self) -> Result<ChildStdout> {
        self.spawn(true)?.context("the output was piped")
    }

    fn spawn(&mut self, piped: bool) -> Result<Option<ChildStdout>> {
        assert!(self.child.is_none(), "{} runs already", self.spec.name);
        let log = File::options().create(true).append(true).open(&self.spec.log)?;
        let out = if piped { Stdio::piped() } else { log.try_clone()?.into() };
        // `setpriv` becomes the program: same pid, but it gets SIGKILL when this process ends, however it ends.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.spec.program)
            .args(&self.spec.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", self.spec.name))?;
        let out = child.stdout.take();
        self.child = Some(child);
        Ok(out)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether the process runs; one that ended by itself is still to be [`Proc::reap`]ed.
    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends `kill -9`, and waits for the end. Nothing happens when the process does not run.
    pub fn kill(&mut self) {
        self.kill_async();
        self.reap();
    }

    /// Sends `kill -9`, and does not wait.
    pub fn kill_async(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    /// Waits for the end.
    pub fn reap(&mut self) -> Option<ExitStatus> {
        self.child.take().and_then(|mut child| child.wait().ok())
    }

    /// Waits until the process ends by itself.
    ///
    /// # Errors
    /// The process takes longer; then it is killed.
    pub fn finish(&mut self, max: Duration) -> Result<ExitStatus> {
        let name = self.spec.name.clone();
        let waited = clock::wait_until(&format!("the end of {name}"), max, || Ok(!self.is_alive()));
        if let Err(e) = waited {
            self.kill();
            return Err(e);
        }
        self.reap().with_context(|| format!("{name} was not running"))
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) -> Result<()> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.spec.name))?;
        let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?;
        if !status.success() {
            bail!("kill -{name} {} ({pid}) failed", self.spec.name);
        }
        Ok(())
    }

    /// Returns resident bytes, and their peak.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.spec.name))?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
        };
        Ok((field("VmRSS:").context("VmRSS")?, field("VmHWM:").context("VmHWM")?))
    }

    /// Returns the last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.spec.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Fails with the end of its log when the process does not run although it should.
    pub fn must_live(&mut self) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        let status = self.reap();
        bail!("{} ended ({status:?}); its log ends with:\n{}", self.spec.name, self.log_tail(8))
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill();
    }
}
