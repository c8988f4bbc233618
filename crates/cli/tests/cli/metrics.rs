//! The metrics of every daemon, and the alert rules, as Prometheus and its checker read them.
//!
//! `promtool` (Debian's package `prometheus` has it; `scripts/setup` fetches it) is used where it is installed.

use crate::dev::{self, Dev};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs promtool over `input`; without it the test prints so and continues.
fn promtool(args: &[&str], input: &str) {
    // `scripts/setup` puts it here, which is not in every PATH.
    let fetched = std::path::Path::new("/usr/local/bin/promtool");
    let mut command = Command::new(if fetched.exists() { fetched } else { std::path::Path::new("promtool") });
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return eprintln!("promtool {args:?} is skipped: {error}"),
    };
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("promtool reads");
    let done = child.wait_with_output().expect("promtool ends");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "promtool {args:?}: {out}{err}\n{input}");
}

/// Returns head and body of a page.
pub fn get(addr: SocketAddr, path: &str, accept: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {addr}\r\naccept: {accept}\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let (head, body) = page.split_once("\r\n\r\n").unwrap_or((&page, ""));
    Ok((head.to_owned(), body.to_owned()))
}

/// Returns the value of the only series whose name and labels begin so.
fn value(page: &str, series: &str) -> f64 {
    let mut lines = page.lines().filter(|line| line.starts_with(series));
    let line = lines.next().unwrap_or_else(|| panic!("{series} is not in {page}"));
    line.rsplit(' ').next().and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// Checks a daemon's page in both formats, and returns it.
fn page(addr: SocketAddr) -> String {
    let (head, body) = get(addr, "/metrics", "*/*").unwrap_or_else(|e| panic!("{addr}: {e}"));
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    promtool(&["check", "metrics"], &body);
    let (head, open) =
        get(addr, "/metrics", "application/openmetrics-text;version=1.0.0").expect("it answered just now");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert!(value(&body, "basalt_build_info{version=") > 0.5);
    assert!(value(&body, "process_resident_memory_bytes") > 1e6);
    body
}

pub fn every_daemon_serves_metrics_that_promtool_accepts(dev: &Dev) {
    let status = dev.json(&["dev", "status"]);
    let daemons = status["daemons"].as_array().expect("daemons");
    let (mut reads, mut read_seconds, mut osds) = (0.0, 0.0, 0);
    dev.run(&["volume", "create", "main/metrics", "64MiB"]);
    let bench = dev.run(&["bench", "main/metrics", "--seconds", "1", "--depth", "4", "--op", "randrw"]);
    assert_eq!(bench.code, 0, "{bench:?}");
    for daemon in daemons {
        let name = daemon["name"].as_str().expect("a name");
        if name.starts_with("nbd") {
            continue;
        }
        let mut addr: SocketAddr = daemon["address"].as_str().and_then(|a| a.parse().ok()).expect("an address");
        addr.set_port(addr.port() + 1);
        let page = page(addr);
        if name.starts_with("meta") {
            assert!(value(&page, "basalt_meta_leading") > 0.5);
            assert!(value(&page, "basalt_cluster_osds_up") > 2.5);
            assert!(value(&page, "basalt_cluster_pool_available_bytes{") > 1e6);
            continue;
        }
        osds += 1;
        reads += value(&page, "basalt_osd_read_seconds_count");
        read_seconds += value(&page, "basalt_osd_read_seconds_sum");
        let number = name.trim_start_matches("osd.");
        assert!(value(&page, &format!("basalt_osd_info{{osd=\"{number}\"")) > 0.5);
    }
    assert_eq!(osds, 3);
    assert!(reads > 10.0 && read_seconds / reads > 1e-6, "{reads} reads took {read_seconds} s: no read takes no time");
    an_export_serves_metrics_too(dev);
    dev.run(&["volume", "rm", "main/metrics", "--now"]);
}

pub fn every_daemon_tells_its_version_and_top_sees_the_io(dev: &Dev) {
    let version = dev.run(&["--version"]).out.trim().trim_start_matches("basalt ").to_owned();
    assert!(version.contains(" ("), "{version} names its commit");
    let status = dev.json(&["status"]);
    assert_eq!(status["version"], version.as_str(), "the meta's");
    assert_eq!(status["versions"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status["versions"][0]["daemons"].as_array().map(Vec::len), Some(4), "{status}");
    let osds = dev.json(&["osd", "ls"]);
    // An OSD that was formatted and never started has no version.
    let started = osds["osds"].as_array().expect("OSDs").iter().filter(|osd| osd["live"] == "up");
    assert_eq!(started.filter(|osd| osd["version"] == version.as_str()).count(), 3, "{osds}");
    dev.run(&["volume", "create", "main/top", "64MiB"]);
    let mut bench = dev.spawn(&["bench", "main/top", "--seconds", "4", "--depth", "4", "--op", "randwrite"]);
    let busy = |of: &serde_json::Value| {
        of["write"]["iops"].as_f64().is_some_and(|n| n > 1.0) && of["write"]["latency_us"].is_f64()
    };
    dev.wait("I/O in top", || {
        let top = dev.json(&["top"]);
        let rows = |list: &str| top[list].as_array().expect("rows").clone();
        let volume = rows("volumes").into_iter().find(|row| row["name"] == "main/top");
        volume.is_some_and(|row| busy(&row)) && rows("osds").iter().any(busy)
    });
    let table = dev.run(&["top", "--once"]).out;
    assert!(table.contains("osd.1") && table.contains("main/top") && table.contains("READ/S"), "{table}");
    let _ = bench.wait();
    dev.run(&["volume", "rm", "main/top", "--now"]);
}

fn an_export_serves_metrics_too(dev: &Dev) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let socket = dev.file("metrics.sock");
    let mut export = dev.spawn(&["nbd", "main/metrics", "--socket", &socket, "--http", &free.to_string()]);
    dev.wait("the export's metrics", || get(free, "/metrics", "*/*").is_ok());
    let page = page(free);
    assert!(value(&page, "basalt_nbd_requests{volume=\"main/metrics\"}") < 0.5);
    value(&page, "basalt_nbd_read_seconds_bucket{");
    value(&page, "basalt_client_connects_total{volume=\"main/metrics\"}");
    // SIGTERM, so that the volume is released.
    let ended = Command::new("kill").arg(export.id().to_string()).status();
    assert!(ended.is_ok_and(|status| status.success()));
    let _ = export.wait();
}

#[test]
fn alert_rules_name_declared_metrics_and_pass_promtool() {
    let home = dev::home("rules");
    let ran = dev::run(home.path(), "none", &["explain", "metrics", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let declared: BTreeSet<&str> =
        rows["metrics"].as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prometheus-alerts.yml");
    let rules = std::fs::read_to_string(&path).expect("the rules");
    let exprs = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let mut found = 0;
    for word in exprs.flat_map(|expr| expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')) {
        if word.starts_with("basalt_") {
            found += 1;
            assert!(declared.contains(word.trim_end_matches("_bucket")), "{word} is no metric");
        }
    }
    assert!(found >= 10, "only {found} metrics are named");
    promtool(&["check", "rules", &path.to_string_lossy()], "");
}
