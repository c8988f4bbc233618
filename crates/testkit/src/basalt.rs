//! The `basalt` binary as an administrator uses it: commands, their JSON, their refusals.

use crate::clock;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Exit code of `pg verify` when some replicas could not be queried, and the longest time for which that may go on.
const INCOMPLETE: i32 = 3;
const ASK_MAX: Duration = Duration::from_secs(60);
/// A command that takes longer is killed.
const COMMAND_MAX: &str = "120";

/// Returns the binary beside this one. A test runs in the folder `deps` below it.
pub fn binary() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("a program lies in a folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let path = folder.join("basalt");
    if !path.is_file() {
        bail!("{} is missing: cargo build --package cli", path.display());
    }
    Ok(path)
}

/// Returns the same program built with failpoints, which `scripts/failpoints` puts beside it.
///
/// # Errors
/// The program is not there, or is older than the plain build.
pub fn binary_with_failpoints() -> Result<PathBuf> {
    let plain = binary()?;
    let path = plain.with_file_name("basalt-failpoints");
    let made = |path: &PathBuf| std::fs::metadata(path)?.modified();
    let Ok(at) = made(&path) else { bail!("no {}: scripts/failpoints builds it", path.display()) };
    if at < made(&plain)? {
        bail!("{} is older than the plain build: scripts/failpoints builds it again", path.display());
    }
    Ok(path)
}

/// Commands to the cluster of these metas.
#[derive(Clone, Debug)]
pub struct Basalt {
    binary: PathBuf,
    metas: Vec<SocketAddr>,
}

impl Basalt {
    pub fn new(metas: &[SocketAddr]) -> Result<Basalt> {
        Ok(Basalt { binary: binary()?, metas: metas.to_vec() })
    }

    pub fn metas(&self) -> &[SocketAddr] {
        &self.metas
    }

    /// Returns `--meta` with all addresses.
    pub fn meta_flag(&self) -> String {
        let all: Vec<String> = self.metas.iter().map(SocketAddr::to_string).collect();
        format!("--meta={}", all.join(","))
    }

    /// Runs a command, and returns its output whether or not it succeeds.
    pub fn output(&self, args: &[&str]) -> Result<Output> {
        self.output_with(&[], args)
    }

    /// Does the same with variables in the environment.
    pub fn output_with(&self, env: &[(&str, String)], args: &[&str]) -> Result<Output> {
        Command::new("timeout")
            .envs(env.iter().map(|(name, value)| (name, value)))
            .args(["-s", "KILL", COMMAND_MAX])
            .arg(&self.binary)
            .arg(self.meta_flag())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("basalt {}", args.join(" ")))
    }

    /// Runs a command that must succeed.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        Self::text_of(args, self.output(args)?)
    }

    fn text_of(args: &[&str], out: Output) -> Result<String> {
        if !out.status.success() {
            let (text, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            bail!("`basalt {}` failed ({}): {}{}", args.join(" "), out.status, text.trim(), error.trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Runs a command that must be refused, and returns its output.
    pub fn refusal(&self, args: &[&str]) -> Result<String> {
        let out = self.output(args)?;
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        match out.status.code() {
            Some(1) => Ok(text),
            code => bail!("`basalt {}` should be refused, but ended with {code:?}: {text}", args.join(" ")),
        }
    }

    /// Runs a command that must succeed, and reads its JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(&[args, &["--json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("`basalt {}` printed {text}", args.join(" ")))
    }

    /// Returns all PGs.
    pub fn pgs(&self) -> Result<Vec<Value>> {
        let list = self.json(&["pg", "ls"])?;
        Ok(list["pgs"].as_array().context("pgs")?.clone())
    }

    /// Waits until every PG serves with all its replicas in step. Returns how long that took.
    pub fn wait_healthy(&self, max: Duration) -> Result<Duration> {
        let mut last = String::new();
        let healthy = |pg: &Value| {
            let members = pg["members"].as_array().map_or(&[][..], Vec::as_slice);
            let up = members.iter().all(|m| m["up"] == true && m["quarantined"] == false);
            up && pg["state"] == serde_json::json!(["active"]) && pg["change"].is_null()
        };
        let waited = clock::wait_until("all PGs to be active and whole", max, || {
            let pgs = match self.pgs() {
                Ok(pgs) => pgs,
                Err(e) => {
                    last = format!("{e:#}");
                    return Ok(false);
                }
            };
            let sick: Vec<String> =
                pgs.iter().filter(|pg| !healthy(pg)).map(|pg| format!("{} {}", pg["pg"], pg["state"])).collect();
            last = sick.join(", ");
            let calm = !pgs.is_empty() && sick.is_empty() && self.moves_nothing(&mut last);
            if !calm {
                clock::pause(Duration::from_millis(50));
            }
            Ok(calm)
        });
        waited.with_context(|| format!("not healthy: {last}"))
    }

    /// Returns the OSDs that hold PGs with segments, ascending.
    pub fn data_osds(&self) -> Result<Vec<u32>> {
        let pgs = self.pgs()?;
        let used = pgs.iter().filter(|pg| pg["segments"].as_u64().unwrap_or(0) > 0);
        let members = used.filter_map(|pg| pg["members"].as_array()).flatten().filter_map(|m| m["osd"].as_u64());
        let osds: BTreeSet<u32> = members.filter_map(|osd| u32::try_from(osd).ok()).collect();
        Ok(osds.into_iter().collect())
    }

    /// Whether no replica moves to another OSD, nor waits to. The exit code also tells of other things, as an OSD that never
    /// started.
    fn moves_nothing(&self, last: &mut String) -> bool {
        let status = self.output(&["status", "--json"]).map(|out| serde_json::from_slice::<Value>(&out.stdout));
        let moves = status.ok().and_then(Result::ok).map(|status| status["moves"].clone()).unwrap_or_default();
        *last = format!("moves: {moves}");
        moves["running"] == 0 && moves["waiting"] == 0
    }

    /// Returns the leaders of the PGs that hold segments.
    pub fn data_leaders(&self) -> Result<Vec<u64>> {
        let pgs = self.pgs()?;
        let used = pgs.iter().filter(|pg| pg["segments"].as_u64().unwrap_or(0) > 0);
        Ok(used.filter_map(|pg| pg["leader"].as_u64()).collect())
    }

    /// Compares all replicas block by block. An OSD that was started a moment ago may still be reading its log, while
    /// meta has not heard yet that it was away. The command is then repeated.
    ///
    /// # Errors
    /// The replicas differ, or some cannot be asked within [`ASK_MAX`].
    pub fn verify_deep(&self) -> Result<String> {
        let (since, args) = (clock::now(), ["pg", "verify", "--deep"]);
        loop {
            let out = self.output(&args)?;
            if out.status.code() != Some(INCOMPLETE) || since.elapsed() > ASK_MAX {
                return Ok(Self::text_of(&args, out)?.lines().last().unwrap_or("").to_owned());
            }
            clock::pause(Duration::from_millis(500));
        }
    }
}
