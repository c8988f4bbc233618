//! A metadata store that went back in time (R17), with real processes.

use crate::bytes;
use crate::dev::{Dev, free_ports};
use crate::golden;
use std::os::unix::fs::MetadataExt;

const MIB: usize = 1 << 20;

/// Creates a volume of 64 MiB and fills all of it.
fn filled(dev: &Dev, volume: &str) {
    assert_eq!(dev.run(&["volume", "create", volume, "64MiB"]).code, 0);
    write(dev, volume, "64MiB");
}

fn write(dev: &Dev, volume: &str, span: &str) {
    let args = ["bench", volume, "--op", "write", "--block", "256KiB", "--seconds", "1", "--span", span];
    let ran = dev.run(&args);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Stops the cluster, puts a copy of the records in place of the present ones, and starts it.
fn put_back(dev: &Dev, copy: &str) {
    assert_eq!(dev.run(&["dev", "down"]).code, 0);
    std::fs::copy(copy, dev.dir().join("meta.0/meta.redb")).expect("the copy is put back");
    up_behind(dev);
}

/// Starts the cluster on records that are behind, and waits until a recovery can read every PG.
fn up_behind(dev: &Dev) {
    let up = dev.run(&["dev", "up"]);
    up.says("BSLT-2030", "basalt meta recover --dry-run");
    assert!(!up.out.contains("ready"), "{up:?}");
    dev.wait("what all OSDs remember", || {
        let shown = dev.json(&["meta", "recover", "--dry-run"]);
        shown["osds"].as_array().expect("a list").iter().filter(|osd| osd["heard"] == true).count() == 3
    });
    dev.wait_for("a leader in every PG", std::time::Duration::from_secs(60), || {
        let shown = dev.json(&["meta", "recover", "--dry-run"]);
        shown["unread_pgs"].as_array().is_some_and(Vec::is_empty)
    });
}

pub fn an_older_copy_of_the_metadata_store_is_refused_until_it_is_recovered(dev: &Dev) {
    let (copy, backup) = (dev.file("copy.redb"), dev.file("backup.jsonl"));
    let _held = free_ports();
    golden::matches("dev.down", &dev.json(&["dev", "down"]));
    std::fs::copy(dev.dir().join("meta.0/meta.redb"), &copy).expect("a copy of the records");
    assert_eq!(dev.run(&["dev", "up"]).code, 0);
    assert_eq!(dev.json(&["meta", "recover", "--dry-run"])["standing"], "sound");
    ["main/back1", "main/back2", "main/back3"].iter().for_each(|volume| filled(dev, volume));
    golden::matches("meta.backup", &dev.json(&["meta", "backup", &backup]));
    let last = dev.json(&["volume", "info", "main/back3"])["volume"].as_u64().expect("an id");

    put_back(dev, &copy);
    for change in
        [&["volume", "create", "main/back4", "64MiB"][..], &["volume", "rm", "main/demo"], &["pool", "create", "x"]]
    {
        dev.run(change).says("BSLT-2030", "basalt meta recover --dry-run");
    }
    let status = dev.run(&["status"]);
    assert!(matches!(status.code, 3 | 4) && status.out.contains("META_BEHIND"), "{status:?}");
    let log = std::fs::read_to_string(dev.dir().join("meta.0/log.txt")).expect("a log");
    assert!(log.contains("the metadata store went back in time: nothing is changed"), "{log}");
    let shown = dev.json(&["meta", "recover", "--dry-run"]);
    assert!(!shown["moved"].as_bool().expect("a word") && shown["standing"] == "behind", "{shown}");
    assert!(shown["records"]["next_volume"].as_u64() < shown["highest"]["next_volume"].as_u64(), "{shown}");

    let moved = dev.json(&["meta", "recover"]);
    assert!(moved["moved"].as_bool().expect("a word"), "{moved}");
    assert_eq!(dev.run(&["volume", "create", "main/back4", "64MiB"]).code, 0);
    let id = dev.json(&["volume", "info", "main/back4"])["volume"].as_u64().expect("an id");
    assert!(id > last, "{id} after {last}");
    write(dev, "main/back4", "1MiB");
    let bytes = bytes::of(dev, "main/back4");
    assert_eq!(bytes.len(), 64 * MIB);
    assert!(bytes[MIB..].iter().all(|byte| *byte == 0), "bytes of another volume are in a new one");

    // A backup is put back only where no meta runs, and changes nothing before its recovery.
    let dir = dev.dir().join("meta.0").to_string_lossy().into_owned();
    let restore = ["meta", "restore", &backup, "--dir", &dir, "--force"];
    dev.run(&restore).says("BSLT-2005", "stop all metas");
    assert_eq!(dev.run(&["dev", "down"]).code, 0);
    dev.run(&restore[..5]).says("BSLT-2005", "--force");
    // A store that root restores for a meta of another user belongs to that user.
    let owner = |path: &str| std::fs::metadata(path).map(|m| (m.uid(), m.gid())).expect("it is there");
    let is_root = owner(&dir) == (0, 0) && std::os::unix::fs::chown(&dir, Some(4242), Some(4243)).is_ok();
    golden::matches("meta.restore", &dev.json(&restore));
    assert_eq!(owner(&format!("{dir}/meta.redb")), owner(&dir));
    if is_root {
        std::os::unix::fs::chown(&dir, Some(0), Some(0)).expect("given back");
    }
    up_behind(dev);
    dev.run(&["volume", "create", "main/back5", "64MiB"]).says("BSLT-2030", "basalt meta recover");
    assert_eq!(dev.run(&["meta", "recover"]).code, 0);
    assert_eq!(dev.run(&["volume", "create", "main/back5", "64MiB"]).code, 0);
    assert_eq!(dev.json(&["volume", "info", "main/back3"])["volume"].as_u64(), Some(last));
    a_volume_removed_since_the_backup_is_named(dev);
}

fn a_volume_removed_since_the_backup_is_named(dev: &Dev) {
    let backup = &dev.file("later.jsonl");
    let segments = || dev.json(&["status"])["segments"].as_u64().expect("a number");
    assert_eq!(dev.run(&["meta", "backup", backup]).code, 0);
    let before = segments();
    assert_eq!(dev.run(&["volume", "rm", "main/back2", "--now"]).code, 0);
    // 100 MiB end within the seventh chunk.
    assert_eq!(dev.run(&["volume", "resize", "main/back3", "100MiB"]).code, 0);
    dev.wait("the data to be removed", || segments() < before);
    assert_eq!(dev.run(&["dev", "down"]).code, 0);
    let dir = dev.dir().join("meta.0").to_string_lossy().into_owned();
    assert_eq!(dev.run(&["meta", "restore", backup, "--dir", &dir, "--force"]).code, 0);
    up_behind(dev);
    let shown = dev.json(&["meta", "recover", "--dry-run"]);
    let named: Vec<_> = shown["emptied_volumes"].as_array().expect("a list").iter().map(|v| &v["name"]).collect();
    assert_eq!(named, ["main/back2"], "{shown}");
    let longer = &shown["longer_volumes"][0];
    assert!(longer["name"] == "main/back3" && longer["len_bytes"] == 64 * MIB && longer["found_bytes"] == 112 * MIB);
    let told = dev.run(&["meta", "recover"]);
    assert_eq!(dev.json(&["volume", "info", "main/back3"])["len_bytes"], 112 * MIB);
    assert!(told.out.contains("were resized after this copy"), "{told:?}");
    assert!(told.out.contains("they read as zeros") && told.out.contains("main/back2 (volume "), "{told:?}");
}
