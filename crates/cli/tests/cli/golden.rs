//! The JSON of every command: schema, fields and their kinds, compared with the files in `tests/golden`.
//!
//! `UPDATE_GOLDEN=1 cargo test -p cli` rewrites them. Fields may be added; changing one is a change of the schema.

use crate::dev::Dev;
use serde_json::{Map, Value};
use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

/// Fields of what the kernel tells of a device, which depends on the machine, and of service times, which depend on the moment.
const OF_THE_MACHINE: [&str; 15] = [
    "atomic_write_max_bytes",
    "atomic_write_min_bytes",
    "block_device",
    "discard_granularity_bytes",
    "discard_max_bytes",
    "file_atomic_write_max_bytes",
    "file_atomic_write_min_bytes",
    "file_system",
    "logical_block_bytes",
    "physical_block_bytes",
    "rotational",
    "service",
    "slow",
    "write_cache",
    "write_zeroes_max_bytes",
];

/// Replaces values by the names of their kinds; the first element of a list represents all.
fn mask(value: &Value) -> Value {
    let word = |word: &str| Value::String(word.to_owned());
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => word("bool"),
        Value::Number(_) => word("number"),
        Value::String(_) => word("string"),
        Value::Array(items) => Value::Array(items.first().map(mask).into_iter().collect()),
        Value::Object(fields) => {
            let masked = fields.iter().map(|(key, value)| match (key.as_str(), value) {
                ("schema", schema) => (key.clone(), schema.clone()),
                (name, _) if OF_THE_MACHINE.contains(&name) => (key.clone(), word("of the machine")),
                (_, value) => (key.clone(), mask(value)),
            });
            Value::Object(masked.collect::<Map<_, _>>())
        }
    }
}

fn check(failures: &mut Vec<String>, name: &str, got: &Value) {
    let schema = format!("basalt.{name}/1");
    if got["schema"] != Value::String(schema.clone()) {
        failures.push(format!("{name}: schema {} is not {schema}", got["schema"]));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.json"));
    let text = format!("{}\n", serde_json::to_string_pretty(&mask(got)).expect("JSON prints"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    if golden != text {
        failures.push(format!("{name}: {got}\nis\n{text}but {} is\n{golden}", path.display()));
    }
}

/// Compares one output with its golden file.
pub fn matches(name: &str, got: &Value) {
    let mut failures = Vec::new();
    check(&mut failures, name, got);
    assert!(failures.is_empty(), "{}\n(UPDATE_GOLDEN=1 rewrites the files)", failures.join("\n"));
}

/// Reads the line of JSON that a ready daemon prints, and compares it with its golden file.
pub fn ready_line(name: &str, daemon: &mut std::process::Child) -> Value {
    let mut line = String::new();
    let stdout = daemon.stdout.as_mut().expect("piped");
    std::io::BufReader::new(stdout).read_line(&mut line).expect("text");
    let told = serde_json::from_str(&line).unwrap_or_else(|e| panic!("one line of JSON: {e}: {line}"));
    let mut failures = Vec::new();
    check(&mut failures, name, &told);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(told["pid"], daemon.id());
    told
}

/// Returns the first event that a command that follows prints.
fn first_event(dev: &Dev) -> Value {
    let mut follows = dev.spawn_piped(&["events", "--follow", "--since", "1h", "--json"]);
    let mut line = String::new();
    let stdout = follows.stdout.as_mut().expect("piped");
    std::io::BufReader::new(stdout).read_line(&mut line).expect("text");
    follows.kill().and_then(|()| follows.wait()).expect("it ends");
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("one line of JSON: {e}: {line}"))
}

pub fn every_json_output_has_its_schema_and_its_fields(dev: &Dev) {
    let mut failures = Vec::new();
    let mut golden = |name: &str, args: &[&str]| check(&mut failures, name, &dev.json(args));
    golden("dev.up", &["dev", "up", "--export", "main/demo"]);
    golden("dev.status", &["dev", "status"]);
    golden("dev.socket", &["dev", "socket", "main/demo"]);
    golden("dev.kill", &["dev", "kill", "3"]);
    golden("dev.start", &["dev", "start", "3"]);
    golden("dev.stop", &["dev", "stop", "3"]);
    dev.wait("a check that holds", || dev.run(&["health"]).code == 3);
    golden("health", &["health"]);
    golden("dev.start", &["dev", "start", "3"]);
    dev.wait("a healthy cluster", || dev.run(&["status"]).code == 0);
    golden("pool.create", &["pool", "create", "two", "--replicas", "2", "--pgs", "4", "--domain", "osd"]);
    golden("pool.ls", &["pool", "ls"]);
    golden("pool.set", &["pool", "set", "two", "--iops", "500", "--burst-iops", "700", "--quota-volumes", "9"]);
    golden("pool.info", &["pool", "info", "two"]);
    golden("pool.rename", &["pool", "rename", "two", "pair"]);
    golden("pool.rm", &["pool", "rm", "pair"]);
    let stripes = ["--stripe-unit", "64KiB", "--stripe-count", "4"];
    golden("volume.create", &[&["volume", "create", "main/bench", "64MiB"][..], &stripes].concat());
    let bench = ["bench", "main/bench", "--seconds", "1", "--depth", "4", "--op", "randrw", "--verify"];
    golden("bench", &bench);
    golden("bench.floor", &["bench", "floor", "--seconds", "1", "--depths", "4", "--modes", "noflush"]);
    golden("volume.ls", &["volume", "ls", "--pool", "main"]);
    golden("volume.info", &["volume", "info", "main/demo"]);
    golden("explain.volume", &["explain", "volume", "main/demo", "--for", "0s"]);
    golden("volume.rename", &["volume", "rename", "main/bench", "longer"]);
    let set = ["--description", "a disk", "--iops", "500", "--burst-iops", "700", "--burst-seconds", "5"];
    golden("volume.set", &[&["volume", "set", "main/longer"][..], &set].concat());
    golden("volume.resize", &["volume", "resize", "main/longer", "80MiB"]);
    golden(
        "volume.fault.add",
        &["volume", "fault", "add", "main/longer", "--latency", "20ms", "--pct", "10", "--for", "1m"],
    );
    golden("volume.fault.ls", &["volume", "fault", "ls"]);
    golden("volume.fault.rm", &["volume", "fault", "rm", "main/longer", "--all"]);
    golden("snapshot.create", &["snapshot", "create", "main/longer@one", "main/demo@one", "--description", "a test"]);
    golden("snapshot.ls", &["snapshot", "ls"]);
    golden("snapshot.info", &["snapshot", "info", "main/longer@one"]);
    golden("snapshot.rename", &["snapshot", "rename", "main/longer@one", "two"]);
    golden("snapshot.set", &["snapshot", "set", "main/longer@two", "--protect", "off"]);
    golden("snapshot.rollback", &["snapshot", "rollback", "main/longer@two"]);
    golden("volume.du", &["volume", "du", "main/demo"]);
    let repo = dev.file("backups");
    let of = ["main/demo", "--repo", &repo];
    golden("backup.create", &[&["backup", "create"][..], &of].concat());
    golden("backup.ls", &["backup", "ls", "--repo", &repo]);
    golden("backup.verify", &["backup", "verify", "--repo", &repo]);
    golden("backup.restore", &["backup", "restore", "main/demo", "main/again", "--repo", &repo]);
    golden("backup.prune", &[&["backup", "prune"][..], &of, &["--keep-last", "1", "--dry-run"]].concat());
    assert_eq!(dev.run(&["volume", "rm", "main/again", "--now"]).code, 0);
    let stream = dev.file("one.stream");
    golden("backup.export", &["backup", "export", "main/demo@one", "-o", &stream]);
    golden("backup.import", &["backup", "import", "-i", &stream, "main/again"]);
    assert_eq!(dev.run(&["volume", "rm", "main/again", "--now", "--snapshots"]).code, 0);
    // The snapshot of the last backup stays.
    for snapshot in dev.json(&["snapshot", "ls", "main/demo", "--usage"])["snapshots"].as_array().expect("a list") {
        let name = snapshot["name"].as_str().expect("a name");
        if name.contains("@backup-") {
            assert!(snapshot["frees_bytes"].is_number(), "{snapshot}");
            assert_eq!(dev.run(&["snapshot", "rm", name]).code, 0);
        }
    }
    golden("volume.clone", &["volume", "clone", "main/longer@two", "main/copy"]);
    golden("volume.flatten", &["volume", "flatten", "main/copy"]);
    assert_eq!(dev.run(&["volume", "rm", "main/copy", "--now"]).code, 0);
    golden("snapshot.rm", &["snapshot", "rm", "main/longer@two"]);
    assert_eq!(dev.run(&["snapshot", "rm", "main/demo@one"]).code, 0);
    golden("volume.rm", &["volume", "rm", "main/longer"]);
    golden("trash.ls", &["trash", "ls"]);
    golden("trash.restore", &["trash", "restore", "main/longer"]);
    assert_eq!(dev.run(&["volume", "rm", "main/longer"]).code, 0);
    golden("trash.purge", &["trash", "purge", "--all"]);
    // The removal of a pool is a check until the last OSD has completed it.
    dev.wait_for("a cluster without checks", Duration::from_secs(60), || {
        dev.json(&["status"])["checks"].as_array().is_some_and(Vec::is_empty)
    });
    golden("status", &["status"]);
    golden("top", &["top"]);
    golden("osd.ls", &["osd", "ls"]);
    golden("osd.info", &["osd", "info", "1"]);
    golden("health.mute", &["health", "mute", "OSD_DOWN", "--for", "10m"]);
    golden("health.unmute", &["health", "unmute", "OSD_DOWN"]);
    golden("events", &["events", "--since", "1h"]);
    check(&mut failures, "event", &first_event(dev));
    let mut golden = |name: &str, args: &[&str]| check(&mut failures, name, &dev.json(args));
    golden("meta.ls", &["meta", "ls"]);
    golden("meta.recover", &["meta", "recover", "--dry-run"]);
    golden("pg.ls", &["pg", "ls"]);
    golden("pg.move", &["pg", "move", "1.0", "--cancel"]);
    golden("config.ls", &["config", "ls"]);
    golden("config.set", &["config", "set", "osd_out_after", "30m"]);
    golden("config.reset", &["config", "reset", "osd_out_after"]);
    golden("osd.set", &["osd", "set", "noout"]);
    golden("osd.unset", &["osd", "unset", "noout"]);
    golden("osd.out", &["osd", "out", "2", "--dry-run"]);
    golden("osd.drain", &["osd", "drain", "2", "--dry-run"]);
    golden("osd.set-class", &["osd", "set-class", "ssd", "1", "--dry-run"]);
    golden("osd.in", &["osd", "in", "1", "2", "3", "--wait"]);
    golden("pg.verify", &["pg", "verify", "--deep"]);
    golden("explain", &["explain", "3003"]);
    golden("explain.check", &["explain", "osd_down"]);
    golden("explain.list", &["explain"]);
    golden("explain.metric", &["explain", "basalt_osd_writes_total"]);
    golden("explain.metrics", &["explain", "metrics"]);
    golden("version", &["version"]);
    golden("error", &["volume", "info", "main/nope"]);
    let device = dev.file("device");
    let format = |device: &str| {
        ["osd", "format", "--device", device, "--size", "512MiB", "--log-size", "64MiB"].map(str::to_owned)
    };
    golden("osd.format", &format(&device).each_ref().map(String::as_str));
    let new = dev.file("new");
    let replace = ["osd", "replace", "2", "--device", &new, "--size", "512MiB", "--log-size", "64MiB"];
    golden("osd.replace.plan", &[&replace[..], &["--dry-run"]].concat());
    assert!(!Path::new(&new).exists(), "a dry run leaves no file");
    golden("osd.replace", &replace);
    assert_eq!(dev.run(&["osd", "in", "2"]).code, 0);
    let new = dev.json(&["osd", "ls"])["osds"].as_array().and_then(|all| all.last().cloned()).expect("the new one");
    assert_eq!((new["replaces"].as_u64(), dev.run(&["osd", "rm", &new["osd"].to_string()]).code), (None, 0));
    let gone = dev.json(&format(&dev.file("gone")).each_ref().map(String::as_str))["osd"].to_string();
    golden("osd.rm", &["osd", "rm", &gone]);
    assert!(failures.is_empty(), "{}\n(UPDATE_GOLDEN=1 rewrites the files)", failures.join("\n"));
}
