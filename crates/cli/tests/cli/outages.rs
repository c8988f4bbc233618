//! Exports while their storage is unavailable: each does what it was told, and serves again when the storage is back.

use crate::dev::Dev;
use crate::errors::exported;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a request of an NBD client.
pub fn request(socket: &str, what: &str) -> Child {
    let uri = format!("nbd+unix:///?socket={socket}");
    let args = ["-s", "KILL", "120", "qemu-io", "-t", "unsafe", "-f", "raw", "-c", what, &uri];
    // An export that refuses writes takes a client that only reads.
    let reads = if what.starts_with("read") { &["-r"][..] } else { &[] };
    Command::new("timeout")
        .args(args)
        .args(reads)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout runs")
}

/// Returns the output of a client, when it has ended.
pub fn said(client: Child) -> String {
    let out = client.wait_with_output().expect("it ends");
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// An export, which ends with its owner.
pub struct Export(Child);

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an export of a volume, and waits for it.
pub fn export(dev: &Dev, volume: &str, socket: &str, flags: &[&str]) -> Export {
    let export = Export(dev.spawn(&[&["nbd", volume, "--socket", socket], flags].concat()));
    dev.wait("an export", || exported(socket));
    export
}

fn signal(process: u64, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Ends an export, which releases its volume.
pub fn end(mut export: Export) {
    signal(export.0.id().into(), "TERM");
    assert!(export.0.wait().expect("it ends").success());
}

/// Daemons of a cluster, stopped until this is dropped: their connections stay, and no byte comes.
pub struct Stopped(Vec<u64>);

impl Stopped {
    /// Stops the daemons whose names begin so.
    pub fn named(dev: &Dev, prefix: &str) -> Stopped {
        let status = dev.json(&["dev", "status"]);
        let daemons = status["daemons"].as_array().expect("a list");
        let is_named =
            |daemon: &&serde_json::Value| daemon["name"].as_str().is_some_and(|name| name.starts_with(prefix));
        let found: Vec<u64> = daemons.iter().filter(is_named).map(|it| it["pid"].as_u64().expect("it runs")).collect();
        assert!(!found.is_empty(), "{prefix}: {status}");
        found.iter().for_each(|process| signal(*process, "STOP"));
        Stopped(found)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| signal(*process, "CONT"));
    }
}

#[allow(clippy::disallowed_methods, reason = "the test measures how long requests take")]
pub fn exports_do_in_an_outage_what_they_were_told(dev: &Dev) {
    dev.run(&["nbd", "main/demo", "--on-unavailable", "panic"]).says_usage("BSLT-1001", "--help");
    let (mine, frozen) = (dev.file("outage.sock"), dev.file("frozen.sock"));
    for (policy, least, most) in [("error", 0, 20), ("wait=8s", 7, 25)] {
        let volume = format!("main/outage-{}", &policy[..4]);
        assert_eq!(dev.run(&["volume", "create", &volume, "64MiB"]).code, 0);
        let fails = export(dev, &volume, &mine, &["--on-unavailable", policy]);
        let waits = export(dev, &volume, &frozen, &["--read-only"]);
        assert!(said(request(&mine, "write -P 7 0 4k")).contains("wrote 4096/4096"));
        assert!(said(request(&frozen, "read -P 7 0 4k")).contains("read 4096/4096"));
        let stopped = Stopped::named(dev, "osd.");
        let mut read = request(&frozen, "read -P 7 0 4k");
        let begun = Instant::now();
        let lost = said(request(&mine, "write -P 8 4k 4k"));
        let took = begun.elapsed();
        assert!(lost.contains("Input/output error"), "{policy}: {lost}");
        assert!((Duration::from_secs(least)..Duration::from_secs(most)).contains(&took), "{policy}: {took:?}");
        let lost = said(request(&mine, "read 0 4k"));
        assert!(lost.contains("Input/output error"), "{policy}: reads alike: {lost}");
        if read.try_wait().expect("it is ours").is_some() {
            panic!("a frozen export fails nothing: {}", said(read));
        }
        drop(stopped);
        assert!(said(read).contains("read 4096/4096"), "the frozen read goes on");
        dev.wait("the export to serve again, without a new open", || {
            said(request(&mine, "write -P 9 0 4k")).contains("wrote 4096/4096")
        });
        assert!(said(request(&mine, "read -P 9 0 4k")).contains("read 4096/4096"));
        end(waits);
        end(fails);
        assert_eq!(dev.run(&["volume", "rm", &volume, "--now"]).code, 0);
    }
    // An earlier test has left a check that is none of these.
    dev.wait_for("PGs that are whole", Duration::from_secs(60), || {
        let told = dev.run(&["health", "detail"]).out;
        !told.contains("PG_") && !told.contains("OSD_DOWN")
    });
}
