//! Exports while their storage is unavailable: each does what it was told, and serves again when the storage is back.

use crate::dev::Dev;
use crate::errors::exported;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a request of an NBD client.
pub fn request(socket: &str, what: &str) -> Child {
    let uri = format!("nbd+unix:///?socket={socket}");
    let args = ["-s", "KILL", "120", "qemu-io", "-t", "unsafe", "-f", "raw", "-c", what, &uri];
    Command::new("timeout").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("timeout runs")
}

/// Returns the output of a client, when it has ended.
pub fn said(client: Child) -> String {
    let out = client.wait_with_output().expect("it ends");
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Starts an export of a volume, and waits for it.
pub fn export(dev: &Dev, volume: &str, socket: &str, flags: &[&str]) -> Child {
    let child = dev.spawn(&[&["nbd", volume, "--socket", socket], flags].concat());
    dev.wait("an export", || exported(socket));
    child
}

/// Ends an export, which releases its volume.
pub fn end(mut export: Child) {
    let sent = Command::new("kill").args(["-TERM", &export.id().to_string()]).status();
    assert!(sent.expect("kill runs").success() && export.wait().expect("it ends").success());
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
        (1..=3).for_each(|osd| assert_eq!(dev.run(&["dev", "kill", &osd.to_string()]).code, 0));
        let mut read = request(&frozen, "read -P 7 0 4k");
        let begun = Instant::now();
        let lost = said(request(&mine, "write -P 8 4k 4k"));
        let took = begun.elapsed();
        assert!(lost.contains("Input/output error"), "{policy}: {lost}");
        assert!((Duration::from_secs(least)..Duration::from_secs(most)).contains(&took), "{policy}: {took:?}");
        let lost = said(request(&mine, "read 0 4k"));
        assert!(lost.contains("Input/output error"), "{policy}: reads alike: {lost}");
        assert!(read.try_wait().expect("it is ours").is_none(), "a frozen export fails nothing");
        (1..=3).for_each(|osd| assert_eq!(dev.run(&["dev", "start", &osd.to_string()]).code, 0));
        assert!(said(read).contains("read 4096/4096"), "the frozen read goes on");
        dev.wait("the export to serve again, without a new open", || {
            said(request(&mine, "write -P 9 0 4k")).contains("wrote 4096/4096")
        });
        assert!(said(request(&mine, "read -P 9 0 4k")).contains("read 4096/4096"));
        end(waits);
        end(fails);
        assert_eq!(dev.run(&["volume", "rm", &volume, "--now"]).code, 0);
    }
    dev.wait_for("a cluster that is well", Duration::from_secs(60), || dev.run(&["status"]).code == 0);
}
