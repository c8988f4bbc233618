//! Volumes that get another name, labels, a longer length under an open client, and come back from the trash.

use crate::bytes::{self, Nbd};
use crate::dev::Dev;
use std::process::Command;

const MIB: usize = 1 << 20;
/// A place behind the old end, in the second segment.
const FAR: usize = 1100 * MIB;

pub fn volumes_are_renamed_labelled_resized_in_use_and_taken_back(dev: &Dev) {
    let create = ["volume", "create", "main/ops", "64MiB", "--description", "for a test"];
    let made = dev.json(&[&create[..], &["--label", "tier=front", "--label", "owner=ops"]].concat());
    assert!(made["description"] == "for a test" && made["labels"]["tier"] == "front", "{made}");
    let names = |label: &str| {
        let listed = dev.json(&["volume", "ls", "--label", label]);
        listed["volumes"].as_array().expect("a list").iter().map(|v| v["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!((names("tier=front"), names("tier=back").len()), (vec!["\"main/ops\"".to_owned()], 0));
    let set = dev.json(&["volume", "set", "main/ops", "--label", "tier=back", "--remove-label", "owner"]);
    assert_eq!(set["labels"], serde_json::json!({ "tier": "back" }));
    assert_eq!(set["when_full"], "client");
    assert_eq!(dev.json(&["volume", "set", "main/ops", "--when-full", "error"])["when_full"], "error");
    dev.run(&["volume", "set", "main/ops", "--when-full", "later"]).says_usage("BSLT-1001", "");
    dev.run(&["volume", "set", "main/ops", "--label", "a b=c"]).says("BSLT-2062", "at most 512 bytes");
    dev.run(&["volume", "set", "main/ops", "--label", "novalue"]).says_usage("BSLT-1001", "");

    let socket = dev.file("ops.sock");
    let mut export = dev.spawn(&["nbd", "main/ops", "--socket", &socket]);
    let mut old = None;
    dev.wait("the export", || {
        old = Nbd::connect(&socket, "main/ops").ok();
        old.is_some()
    });
    let mut old = old.expect("just connected");
    let block = vec![7; 4096];
    old.write(0, &block).expect("written");
    dev.run(&["volume", "rename", "main/ops", "demo"]).says("BSLT-2013", "choose another name");
    assert_eq!(dev.json(&["volume", "rename", "main/ops", "ops2"])["name"], "main/ops2");
    dev.run(&["volume", "info", "main/ops"]).says("BSLT-2011", "");
    assert_eq!(dev.json(&["volume", "resize", "main/ops2", "1200MiB"])["len_bytes"], 1200 * MIB);
    dev.run(&["volume", "resize", "main/ops2", "64MiB"]).says("BSLT-2059", "--shrink");
    let mut new = None;
    dev.wait("the new size in a new connection", || {
        new = Nbd::connect(&socket, "main/ops").ok().filter(|nbd| nbd.len_bytes == 1200 * MIB);
        new.is_some()
    });
    let mut new = new.expect("just connected");
    new.write(FAR, &block).expect("the session of before takes writes behind the old end");
    let mut seen = vec![0; 4096];
    assert_eq!(old.len_bytes, 64 * MIB);
    old.read(0, &mut seen).expect("the old connection goes on");
    assert_eq!(seen, block);
    let shrink = ["volume", "resize", "main/ops2", "64MiB", "--shrink"];
    dev.run(&shrink).says("BSLT-2065", "--discard-data");
    assert_eq!(dev.json(&["volume", "info", "main/ops2"])["len_bytes"], 1200 * MIB, "it keeps its size");

    dev.run(&["volume", "rm", "main/ops2"]).says("BSLT-2020", "--force");
    assert!(Command::new("kill").arg(export.id().to_string()).status().expect("kill runs").success());
    export.wait().expect("it ends");
    let id = dev.json(&["volume", "info", "main/ops2"])["volume"].to_string();
    assert_eq!(dev.json(&["volume", "rm", "main/ops2"])["trashed"], true);
    dev.run(&["volume", "info", "main/ops2"]).says("BSLT-2011", "");
    assert_eq!(dev.run(&["volume", "create", "main/ops2", "64MiB"]).code, 0, "the name is free");
    let shorter = dev.json(&["volume", "resize", "main/ops2", "32MiB", "--shrink"]);
    assert_eq!((&shorter["len_bytes"], &shorter["shrink_step"]), (&(32 * MIB).into(), &serde_json::Value::Null));
    dev.run(&["trash", "restore", "main/ops2"]).says("BSLT-2013", "--name");
    let back = dev.json(&["trash", "restore", &id, "--name", "ops3"]);
    assert!(back["name"] == "main/ops3" && back["labels"]["tier"] == "back", "{back}");
    let read = |nbd: &mut Nbd, at| {
        let mut seen = vec![0; 4096];
        nbd.read(at, &mut seen).map(|()| seen)
    };
    let (first, far) = bytes::exported(dev, "main/ops3", |nbd| Ok((read(nbd, 0)?, read(nbd, FAR)?)));
    assert!(first == block && far == block, "its data came back with it");
    for volume in ["main/ops2", "main/ops3"] {
        assert_eq!(dev.json(&["volume", "rm", volume, "--now"])["trashed"], false);
    }
    assert!(dev.json(&["trash", "ls"])["volumes"].as_array().is_some_and(Vec::is_empty));
    let events = dev.json(&["events", "--since", "1h"]);
    for kind in ["volume.renamed", "volume.resized", "volume.trashed", "volume.restored"] {
        let of_kind =
            |event: &&serde_json::Value| event["kind"] == kind && event["text"].to_string().contains("main/ops");
        let event = events["events"].as_array().expect("a list").iter().find(of_kind);
        let by = event.unwrap_or_else(|| panic!("no {kind}: {events}"))["by"].to_string();
        assert!(by.contains("basalt on ") && by.contains(" at 127.0.0.1:"), "{kind} by {by}");
    }
}
