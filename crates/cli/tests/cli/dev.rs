//! A dev cluster for a test, and the commands that run against it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BASALT: &str = env!("CARGO_BIN_EXE_basalt");
const NAME: &str = "clitest";
/// The cluster of the tests of a full pool: its devices are small.
pub const SMALL: &str = "clismall";
/// The cluster of the tests of moves: it has an OSD more than replicas.
pub const MOVES: &str = "climoves";
/// The cluster of the test of the tools for devices.
pub const DISKS: &str = "clidisks";
/// The cluster of the test of PGs that lose their majority.
pub const FORCED: &str = "cliforced";

/// The cluster of the test of commands whose servers are silent.
pub const DEATHS: &str = "clideaths";

/// The cluster of the test of names and sizes that cannot be.
pub const NAMES: &str = "clinames";

/// A folder that is removed with its owner. It is not on tmpfs: devices are opened O_DIRECT.
pub struct Home(PathBuf);

impl Home {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn home(what: &str) -> Home {
    let base = std::env::var("SMOKE_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
    let path = Path::new(&base).join(format!("basalt-cli.{what}.{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a folder for the test");
    Home(path)
}

/// Keeps the clusters of other tests from taking ports: those of a stopped cluster are free.
pub fn free_ports() -> MutexGuard<'static, ()> {
    static PORTS: Mutex<()> = Mutex::new(());
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The last line of a log in JSON.
    fn fatal(&self) -> Option<serde_json::Value> {
        serde_json::from_str(self.err.lines().last()?).ok()
    }

    /// Checks for an error with this code and this advice, without internals of the program.
    pub fn says(&self, code: &str, next: &str) {
        assert_eq!(self.code, 1, "{self:?}");
        self.advises(code, next);
    }

    /// Checks for the same after a wrong command line.
    pub fn says_usage(&self, code: &str, next: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        self.advises(code, next);
    }

    fn advises(&self, code: &str, next: &str) {
        if let Some(line) = self.fatal() {
            // A daemon's last error is the last line of its log.
            assert_eq!((&line["level"], &line["fields"]["code"]), (&"ERROR".into(), &code.into()), "{self:?}");
            assert!(!line["fields"]["message"].as_str().expect("text").is_empty(), "{self:?}");
            let advice = line["fields"]["next"].as_str().unwrap_or("").replace(BASALT, "basalt");
            let advice = plain(&advice);
            return assert!(advice.contains(next), "no `{next}` in {self:?}");
        }
        assert!(self.err.starts_with(&format!("basalt: {code}: ")), "{self:?}");
        // Printed commands name this binary and the cluster; the expectations of the tests name neither.
        let err = plain(&self.err.replace(BASALT, "basalt"));
        let advice = err.split_once("next: ").map_or("", |(_, advice)| advice);
        assert!(!advice.trim().is_empty() && advice.contains(next), "no `{next}` in {self:?}");
        for noise in ["panicked", "backtrace", "Error {", "unwrap"] {
            assert!(!self.err.contains(noise) && !self.out.contains(noise), "{self:?}");
        }
    }
}

/// Returns a printed text without the clusters of these tests.
fn plain(text: &str) -> String {
    [NAME, SMALL, MOVES, FORCED, DISKS, DEATHS, NAMES, "none"]
        .iter()
        .fold(text.to_owned(), |text, name| text.replace(&format!(" --cluster {name}"), ""))
}

fn command(home: &Path, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(BASALT);
    command.env("XDG_STATE_HOME", home).env_remove("RUST_BACKTRACE");
    command.env_remove("BASALT_META").env_remove("BASALT_CLUSTER");
    // Daemons keep the level of the command that starts them; the logs of other commands do not matter
    // here.
    let level = if args.first() == Some(&"dev") { "info" } else { "error" };
    command.env("BASALT_LOG", level).args(["--cluster", name]).args(args).stdin(Stdio::null());
    command
}

pub fn run(home: &Path, name: &str, args: &[&str]) -> Ran {
    ran(command(home, name, args))
}

/// Runs a command with these environment variables, too, and without `--cluster`.
pub fn run_env(home: &Path, vars: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = Command::new(BASALT);
    command
        .env("XDG_STATE_HOME", home)
        .env_remove("BASALT_META")
        .env_remove("BASALT_CLUSTER")
        .env_remove("RUST_BACKTRACE");
    command.envs(vars.iter().copied()).args(args).stdin(Stdio::null());
    ran(command)
}

/// Starts a daemon at log level `info` whose standard error is `stderr`; its standard output is kept.
pub fn spawn_logging_to(home: &Path, stderr: impl Into<Stdio>, args: &[&str]) -> Child {
    let mut command = command(home, "none", args);
    command.env("BASALT_LOG", "info").stdout(Stdio::piped()).stderr(stderr).spawn().expect("basalt starts")
}

/// Runs a command whose standard output is `stdout`.
pub fn run_into(home: &Path, stdout: impl Into<Stdio>, args: &[&str]) -> Ran {
    let mut command = command(home, "none", args);
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().expect("basalt starts");
    finished(child.wait_with_output().expect("it ends"))
}

fn ran(mut command: Command) -> Ran {
    finished(command.output().expect("basalt runs"))
}

fn finished(output: std::process::Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// A running cluster with an exported volume `main/demo`.
pub struct Dev {
    home: Home,
    name: &'static str,
    pub meta: String,
}

impl Dev {
    pub fn up() -> Dev {
        Dev::up_as(NAME, &["--device-size", "1GiB", "--export", "main/demo", "--size", "64MiB"])
    }

    pub fn up_as(name: &'static str, args: &[&str]) -> Dev {
        let mut dev = Dev { home: home(name), name, meta: String::new() };
        let _held = free_ports();
        let ran = dev.run(&[&["dev", "up", "--json"], args].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        let up: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
        dev.meta = up["meta"].as_str().expect("an address").to_owned();
        dev
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        run(self.home.path(), self.name, args)
    }

    /// Runs a command whose standard output is `stdout`.
    pub fn run_into(&self, stdout: impl Into<Stdio>, args: &[&str]) -> Ran {
        run_into(self.home.path(), stdout, args)
    }

    /// Runs a command by another program, whose arguments it follows.
    pub fn run_by(&self, program: &str, before: &[&str], args: &[&str]) -> Ran {
        let of = command(self.home.path(), self.name, args);
        let mut command = Command::new(program);
        command.args(before).arg(of.get_program()).args(of.get_args()).stdin(Stdio::null());
        for (name, value) in of.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        ran(command)
    }

    /// Runs a script in which `$0 "$@"` is this program for this cluster.
    pub fn run_shell(&self, script: &str) -> Ran {
        let mut shell = Command::new("bash");
        shell.env("XDG_STATE_HOME", self.home.path()).env("BASALT_CLUSTER", self.name).env("BASALT_LOG", "error");
        shell.env_remove("BASALT_META").args(["-o", "pipefail", "-c", script, BASALT]).stdin(Stdio::null());
        ran(shell)
    }

    /// Runs a command whose standard input is `stdin`.
    pub fn run_from(&self, stdin: impl Into<Stdio>, args: &[&str]) -> Ran {
        let mut command = command(self.home.path(), self.name, args);
        command.stdin(stdin);
        ran(command)
    }

    pub fn run_env(&self, vars: &[(&str, &str)], args: &[&str]) -> Ran {
        run_env(self.home.path(), vars, args)
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let ran = self.run(&[args, &["--json"]].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {ran:?}"))
    }

    /// Starts a command that keeps running; its standard error is kept.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = command(self.home.path(), self.name, args);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("basalt starts")
    }

    /// Starts a command as [`Dev::spawn`] does; its standard output is kept.
    pub fn spawn_piped(&self, args: &[&str]) -> Child {
        let mut command = command(self.home.path(), self.name, args);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("basalt starts")
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("basalt/dev").join(self.name)
    }

    /// A file beside the cluster.
    pub fn file(&self, name: &str) -> String {
        self.home.path().join(name).to_string_lossy().into_owned()
    }

    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        wait(what, WAIT_MAX, &mut done);
    }

    /// Waits for a condition that takes longer.
    pub fn wait_for(&self, what: &str, max: Duration, mut done: impl FnMut() -> bool) {
        wait(what, max, &mut done);
    }
}

/// Longest time that the tests wait for a condition.
const WAIT_MAX: Duration = Duration::from_secs(20);

#[allow(clippy::disallowed_methods, reason = "the test waits for other processes, with a deadline")]
fn wait(what: &str, max: Duration, done: &mut impl FnMut() -> bool) {
    let end = Instant::now() + max;
    while !done() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.run(&["dev", "status"]).out.lines().map(|line| eprintln!("{line}")).count();
        }
        if !self.dir().exists() {
            return;
        }
        let gone = self.run(&["dev", "destroy", "--yes"]);
        if gone.code != 0 {
            eprintln!("the cluster is still there: {gone:?}");
        }
    }
}
