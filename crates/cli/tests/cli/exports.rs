//! Exports: addresses that cannot be used, signals, and the release of the volume.

use crate::dev::Dev;
use crate::errors::exported;
use crate::golden::ready_line;
use std::process::{Child, Command};

/// Whether the volume has no living holder, as meta sees it.
fn is_free(dev: &Dev, volume: &str) -> bool {
    dev.json(&["volume", "info", volume])["holder"].is_null()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

pub fn host_names_do_where_addresses_do(dev: &Dev) {
    let port = dev.meta.rsplit(':').next().expect("a port");
    let meta = format!("localhost:{port}");
    assert_eq!(dev.run(&["--meta", &meta, "volume", "ls"]).code, 0);
    let all = ["0.0.0.0:0", "[::]:0"];
    for listen in all {
        dev.run(&["meta", "--dir", &dev.file("all"), "--listen", listen]).says("BSLT-1013", "--advertise HOST:");
        let osd = ["osd", "run", "--device", "/nonexistent", "--listen", listen];
        dev.run(&osd).says("BSLT-1013", "--advertise HOST:");
        dev.run(&[&osd[..], &["--advertise", listen]].concat()).says("BSLT-1013", "--advertise HOST:");
    }
    let nowhere = ["osd", "run", "--device", "/nonexistent", "--listen", "nowhere.invalid:7410"];
    dev.run(&nowhere).says("BSLT-4006", "getent ahosts nowhere.invalid");
    dev.run(&["nbd", "main/demo", "--listen", "nowhere.invalid:1"]).says("BSLT-4006", "getent ahosts");
}

pub fn an_address_that_cannot_be_used_leaves_the_volume_alone(dev: &Dev) {
    assert_eq!(dev.run(&["volume", "create", "main/export", "64MiB"]).code, 0);
    let (file, long) = (dev.file("a-file"), dev.file(&"x".repeat(120)));
    std::fs::write(&file, "no socket").expect("a file");
    let folder = dev.file("a-file/x.sock");
    let missing = dev.file("missing/x.sock");
    let bad: [(&[&str], &str); 6] = [
        (&["--socket", &missing], "mkdir -p"),
        (&["--socket", &file], "it is not a socket"),
        (&["--socket", &folder], ""),
        (&["--socket", &long], "107 bytes"),
        (&["--listen", &dev.meta], "ss -ltnp"),
        (&["--listen", "192.0.2.1:10809"], "ip -brief address"),
    ];
    for (place, next) in bad {
        let ran = dev.run(&[&["nbd", "main/export"], place].concat());
        ran.says("BSLT-6001", next);
        let info = dev.json(&["volume", "info", "main/export"]);
        assert!(info["holder"].is_null() && info["epoch"] == 0, "it was never opened: {info}");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("it stays"), "no socket");
}

/// A device that cannot be served leaves the volume alone, too. `make guest-nbd` has a kernel that can.
pub fn a_device_that_cannot_be_served_leaves_the_volume_alone(dev: &Dev) {
    assert_eq!(dev.run(&["volume", "create", "main/device", "64MiB"]).code, 0);
    dev.run(&["nbd", "main/device", "--device", "/dev/sda"]).says_usage("BSLT-1001", "--help");
    if std::path::Path::new("/sys/module/nbd").exists() {
        return;
    }
    dev.run(&["nbd", "main/device", "--device", "auto"]).says("BSLT-6005", "modprobe nbd");
    let info = dev.json(&["volume", "info", "main/device"]);
    assert!(info["holder"].is_null() && info["epoch"] == 0, "it was never opened: {info}");
}

pub fn an_export_says_where_it_is_and_a_signal_frees_its_volume(dev: &Dev) {
    let args = ["meta", "--dir", &dev.file("ready"), "--listen", "127.0.0.1:0", "--json"];
    let mut meta = dev.spawn_piped(&args);
    assert_ne!(ready_line("meta.run", &mut meta)["listen"], "127.0.0.1:0");
    signal(&meta, "TERM");
    assert_eq!(meta.wait().expect("it ends").code(), Some(0));
    let socket = dev.file("signals.sock");
    for name in ["INT", "TERM"] {
        let mut export = dev.spawn_piped(&["nbd", "main/export", "--socket", &socket, "--json"]);
        let told = ready_line("nbd", &mut export);
        assert_eq!(told["uri"], format!("nbd+unix:///main/export?socket={socket}"));
        assert!(exported(&socket) && !is_free(dev, "main/export"));
        let holder = dev.json(&["volume", "info", "main/export"])["holder"]["name"].to_string();
        assert!(holder.starts_with("\"nbd on ") && holder.ends_with(&format!(" pid {}\"", export.id())), "{holder}");
        // Without a terminal SIGHUP does not end it.
        signal(&export, "HUP");
        signal(&export, name);
        assert_eq!(export.wait().expect("it ends").code(), Some(0), "SIG{name}");
        assert!(is_free(dev, "main/export"), "after SIG{name}");
    }
}

#[allow(clippy::disallowed_methods, reason = "the test waits for other processes")]
pub fn the_hold_of_a_killed_export_ends_soon(dev: &Dev) {
    let socket = dev.file("killed.sock");
    let mut export = dev.spawn(&["nbd", "main/export", "--socket", &socket]);
    dev.wait("the export", || exported(&socket));
    export.kill().expect("it is ours");
    export.wait().expect("it ends");
    let begun = std::time::Instant::now();
    let mut next = dev.spawn(&["nbd", "main/export", "--socket", &socket]);
    dev.wait("the next export", || exported(&socket));
    let took = begun.elapsed();
    assert!(took.as_millis() < 6_000, "it waits for the end of its predecessor's lease, which is cut short: {took:?}");
    signal(&next, "TERM");
    assert_eq!(next.wait().expect("it ends").code(), Some(0));
}
