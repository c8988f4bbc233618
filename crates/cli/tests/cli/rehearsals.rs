//! Rehearsed faults of a volume that is exported: its clients meet them, commands show them, and they end.

use crate::dev::Dev;
use crate::outages::{end, export, request, said};

const VOLUME: &str = "main/rehearsed";

pub fn rehearsed_faults_reach_the_clients_of_an_export_and_end(dev: &Dev) {
    assert_eq!(dev.run(&["volume", "create", VOLUME, "64MiB"]).code, 0);
    let socket = dev.file("rehearsed.sock");
    let export = export(dev, VOLUME, &socket, &[]);
    let write = || said(request(&socket, "write -P 7 0 4k"));
    let read = || said(request(&socket, "read 0 4k"));
    assert!(write().contains("wrote 4096/4096"));
    for wrong in [
        &["--for", "1m"][..],
        &["--error", "--pause", "--for", "1m"],
        &["--error"],
        &["--pause", "--pct", "5", "--for", "1m"],
        &["--latency", "2h", "--for", "1m"],
    ] {
        dev.run(&[&["volume", "fault", "add", VOLUME], wrong].concat()).says_usage("BSLT-1001", "--help");
    }
    let add = |flags: &[&str]| dev.run(&[&["volume", "fault", "add", VOLUME], flags].concat());
    add(&["--error", "--for", "2d"]).says("BSLT-2080", "24h");
    let added = add(&["--error", "--writes", "--for", "10m"]);
    assert!(added.code == 0 && added.out.contains("fault 1, an error for all writes, until "), "{added:?}");
    dev.wait("the export to hear of it", || write().contains("Input/output error"));
    assert!(read().contains("read 4096/4096"), "reads are not meant");
    let (status, health) = (dev.run(&["status"]), dev.run(&["health", "detail"]));
    assert!(status.code == 3 && status.out.contains("VOLUME_FAULTS"), "{status:?}");
    assert!(health.out.contains(VOLUME) && health.out.contains("volume fault ls"), "{health:?}");
    let (info, all) = (dev.run(&["volume", "info", VOLUME]), dev.run(&["volume", "fault", "ls"]));
    assert!(info.out.contains("fault      1: an error for all writes, ends in 9 m"), "{info:?}");
    assert!(all.out.contains(VOLUME) && all.out.contains("basalt"), "who asked for it: {all:?}");
    dev.run(&["volume", "fault", "rm", VOLUME, "9"]).says("BSLT-2081", "basalt volume fault ls");
    let removed = dev.run(&["volume", "fault", "rm", VOLUME, "1"]);
    assert!(removed.code == 0 && removed.out.contains("removed fault 1"), "{removed:?}");
    dev.wait("the export to hear of its end", || write().contains("wrote 4096/4096"));
    // A pause that ends by itself.
    assert_eq!(add(&["--pause", "--for", "6s"]).code, 0);
    dev.wait("the pause to be over everywhere", || {
        read().contains("read 4096/4096") && dev.json(&["volume", "info", VOLUME])["faults"] == serde_json::json!([])
    });
    let events = dev.run(&["events", "--since", "10m"]).out;
    for kind in ["volume.fault_added", "volume.fault_removed", "volume.fault_ended"] {
        assert!(events.contains(kind), "no {kind} in {events}");
    }
    end(export);
    assert_eq!(dev.run(&["volume", "rm", VOLUME, "--now"]).code, 0);
    dev.wait("the check to end", || !dev.run(&["health", "detail"]).out.contains("VOLUME_FAULTS"));
}
