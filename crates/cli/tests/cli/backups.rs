//! Backups of a volume in a directory: what has changed since the last one, restored, checked, deleted by rules.

use crate::completion;
use crate::dev::{Dev, Ran};
use crate::snapshots::{read, write};
use std::path::{Path, PathBuf};

/// Returns the files below a directory, ascending.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory).expect("it can be read");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
    found.sort();
}

pub fn backups_save_what_has_changed_and_come_back_checked(dev: &Dev) {
    let repo = dev.file("repository");
    let backup = |words: &[&str]| dev.run(&[&["backup"][..], words, &["--repo", &repo]].concat());
    let settings = ["--label", "tier=front", "--iops", "90000", "--burst-iops", "95000", "--when-full", "wait"];
    assert_eq!(dev.run(&[&["volume", "create", "main/saved", "1500MiB"], &settings[..]].concat()).code, 0);
    backup(&["ls"]).says("BSLT-7001", "basalt backup create");
    write(dev, "main/saved", 0..6, 1);
    let create = ["backup", "create", "main/saved", "--repo", &repo];
    let first = dev.json(&create);
    assert_eq!(
        (&first["parent"], first["read_bytes"].as_u64()),
        (&serde_json::Value::Null, Some(6 * 65536)),
        "{first}"
    );
    write(dev, "main/saved", 2..4, 2);
    let second = dev.json(&create);
    assert_eq!((&second["parent"], second["read_bytes"].as_u64()), (&first["id"], Some(2 * 65536)), "{second}");
    assert_eq!(dev.json(&create)["read_bytes"], 0, "nothing has changed");
    let used = dev.json(&["volume", "du", "main/saved"]);
    assert_eq!((used["allocated_bytes"].as_u64(), used["shared_bytes"].as_u64()), (Some(6 * 65536), Some(6 * 65536)));
    assert_eq!(used["snapshots"].as_array().map(Vec::len), Some(1), "the snapshot of the last backup stays: {used}");

    let id = first["id"].as_str().expect("an id");
    completion::offers(dev, &format!("backup verify --repo {repo} main/"), "main/saved");
    completion::offers(dev, &format!("backup restore --repo {repo} main/saved main/first --id "), id);
    assert_eq!(backup(&["restore", "main/saved", "main/first", "--id", id]).code, 0);
    assert_eq!(backup(&["restore", "main/saved", "main/last"]).code, 0);
    assert_eq!(read(dev, "main/first"), [1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(read(dev, "main/last"), [1, 1, 2, 2, 1, 1, 0, 0]);
    let restored = dev.json(&["volume", "info", "main/last"]);
    assert_eq!(restored["labels"], serde_json::json!({ "tier": "front" }));
    let saved = dev.json(&["volume", "info", "main/saved"]);
    for setting in ["limits", "limits_of", "when_full"] {
        assert_eq!(restored[setting], saved[setting], "{setting}");
    }
    assert_eq!((&saved["limits_of"], &saved["when_full"]), (&"volume".into(), &"wait".into()), "{saved}");
    backup(&["restore", "main/saved", "main/last"]).says("BSLT-2013", "choose another name");
    backup(&["restore", "main/none", "main/x"]).says("BSLT-7003", "basalt backup ls");

    assert_eq!(backup(&["verify"]).code, 0);
    let mut objects = Vec::new();
    files(&Path::new(&repo).join("objects"), &mut objects);
    let old = std::fs::read(&objects[0]).expect("an object");
    let mut bad = old.clone();
    bad[20] ^= 1;
    std::fs::write(&objects[0], bad).expect("it can be written");
    let verified = backup(&["verify"]);
    assert!(verified.code == 3 && verified.out.contains("BSLT-7002"), "{verified:?}");
    std::fs::write(&objects[0], old).expect("it can be written");

    damaged_record_hides_no_other_one(&backup, &repo, &second);
    lost_marker_costs_no_backup(&backup, &repo);
    backup(&["create", "main/saved@none", "--repo", &dev.file("other")]);
    assert!(!Path::new(&dev.file("other")).exists(), "a snapshot that does not exist makes no repository");

    let unruled = backup(&["prune", "main/saved"]);
    assert!(unruled.code == 2 && unruled.err.contains("--keep-last"), "{unruled:?}");
    let pruned = backup(&["prune", "main/saved", "--keep-last", "1", "--grace", "0s"]);
    assert_eq!(pruned.code, 0, "{pruned:?}");
    assert_eq!(backup(&["verify"]).code, 0);
    assert_eq!(dev.run(&["volume", "rm", "main/last", "--now"]).code, 0);
    assert_eq!(backup(&["restore", "main/saved", "main/last"]).code, 0);
    assert_eq!(read(dev, "main/last"), [1, 1, 2, 2, 1, 1, 0, 0]);

    full_repository_gets_no_snapshots(dev, &repo);
    volume_with_all_labels_comes_back(dev, &repo);
    restore_that_failed_goes_on(dev);
    pool_says_whether_backups_are_compressed(dev, &repo);
    interrupted_backup_does_not_stand_for_the_present(dev, &repo);

    // After a rollback no snapshot can be compared with: everything is read.
    assert_eq!(dev.run(&["snapshot", "create", "main/saved@here"]).code, 0);
    write(dev, "main/saved", 7..8, 9);
    assert_eq!(dev.json(&create)["read_bytes"], 65536);
    assert_eq!(dev.run(&["snapshot", "rollback", "main/saved@here"]).code, 0);
    assert_eq!(dev.json(&create)["read_bytes"], 6 * 65536);
    for name in ["main/first", "main/last", "main/saved"] {
        assert_eq!(dev.run(&["volume", "rm", name, "--now", "--snapshots"]).code, 0);
    }
}

/// A backup that was interrupted is ended first. Then the volume is saved as it is now.
fn interrupted_backup_does_not_stand_for_the_present(dev: &Dev, repo: &str) {
    assert_eq!(dev.run(&["volume", "create", "main/cut", "1500MiB"]).code, 0);
    write(dev, "main/cut", 0..2, 1);
    let create = ["backup", "create", "main/cut", "--repo", repo];
    let (objects, away) = (Path::new(repo).join("objects"), Path::new(repo).join("away"));
    std::fs::rename(&objects, &away).expect("it is there");
    std::fs::write(&objects, "").expect("it can be written");
    let failed = dev.run(&create);
    assert!(failed.code == 1 && failed.err.contains("the same command goes on"), "{failed:?}");
    std::fs::remove_file(&objects).expect("it is there");
    std::fs::rename(&away, &objects).expect("it is there");
    write(dev, "main/cut", 1..3, 2);
    let made = dev.json(&create);
    let listed = dev.json(&["backup", "ls", "main/cut", "--repo", repo])["backups"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!((&made["parent"], made["read_bytes"].as_u64()), (&listed[0]["id"], Some(2 * 65536)), "{made}");
    for (n, expected) in [(0, [1, 1, 0, 0, 0, 0, 0, 0]), (1, [1, 2, 2, 0, 0, 0, 0, 0])] {
        let (new, id) = (format!("main/cut-{n}"), listed[n]["id"].as_str().expect("an id").to_owned());
        let restore = ["backup", "restore", "main/cut", &new, "--id", &id, "--repo", repo];
        assert_eq!(dev.run(&restore).code, 0);
        assert_eq!(read(dev, &new), expected);
        assert_eq!(dev.run(&["volume", "rm", &new, "--now"]).code, 0);
    }
    assert_eq!(dev.run(&["volume", "rm", "main/cut", "--now", "--snapshots"]).code, 0);
}

/// A record that cannot be read is named by each command; the other backups can be used.
fn damaged_record_hides_no_other_one(backup: &dyn Fn(&[&str]) -> Ran, repo: &str, record: &serde_json::Value) {
    let id = record["id"].as_str().expect("an id");
    let file = Path::new(repo).join(format!("backups/main/saved/{id}.json"));
    let whole = std::fs::read(&file).expect("a record");
    std::fs::write(&file, &whole[..100]).expect("it can be written");
    let listed: serde_json::Value = serde_json::from_str(&backup(&["ls", "--json"]).out).expect("JSON");
    assert!(listed["unreadable"][0].as_str().is_some_and(|what| what.contains(id)), "{listed}");
    backup(&["restore", "main/saved", "main/x", "--id", id]).says("BSLT-7002", "basalt backup verify");
    let pruned = backup(&["prune", "main/saved", "--keep-last", "1", "--dry-run"]);
    let is_said = ["1 backups would go, 1 stay", id, "BSLT-7002", "basalt backup verify"];
    assert!(pruned.code == 3 && is_said.iter().all(|part| pruned.out.contains(part)), "{pruned:?}");
    std::fs::write(&file, whole).expect("it can be written");
}

/// Backups can be listed and checked without the marker of their repository.
fn lost_marker_costs_no_backup(backup: &dyn Fn(&[&str]) -> Ran, repo: &str) {
    let marker = Path::new(repo).join("basalt-backup.json");
    let whole = std::fs::read(&marker).expect("the marker");
    std::fs::remove_file(&marker).expect("it is there");
    let listed = backup(&["ls"]);
    let is_said = listed.out.contains("main/saved") && listed.err.contains("basalt-backup.json is missing");
    assert!(listed.code == 0 && is_said, "{listed:?}");
    assert_eq!(backup(&["verify"]).code, 3);
    backup(&["prune", "main/saved", "--keep-last", "1"]).says("BSLT-7002", "basalt backup create");
    std::fs::write(&marker, whole).expect("it can be written");
}

/// A repository that takes no byte more leaves no snapshot behind, however often it is tried.
fn full_repository_gets_no_snapshots(dev: &Dev, repo: &str) {
    // One that is deleted is listed until its space is given back.
    let is_kept = |snapshot: &&serde_json::Value| snapshot["state"] == "ready";
    let listed = || dev.json(&["snapshot", "ls", "main/saved"])["snapshots"].as_array().cloned().expect("a list");
    let snapshots = || listed().iter().filter(is_kept).count();
    let before = snapshots();
    for _ in 0..2 {
        // No file may have a byte, and the signal for that is ignored: each write fails, as on a full disk.
        let script = ["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""];
        let failed = dev.run_by("bash", &script, &["backup", "create", "main/saved", "--repo", repo]);
        failed.says("BSLT-7001", "Check --repo");
    }
    assert_eq!(snapshots(), before);
}

/// The second segment cannot be read at first. The first one is not written again, and a later backup does not count.
fn restore_that_failed_goes_on(dev: &Dev) {
    let repo = dev.file("cut");
    let backup = |words: &[&str]| dev.run(&[&["backup"][..], words, &["--repo", &repo]].concat());
    assert_eq!(dev.run(&["volume", "create", "main/cut", "1500MiB", "--label", "tier=back"]).code, 0);
    write(dev, "main/cut", 0..2, 3);
    assert_eq!(backup(&["create", "main/cut"]).code, 0);
    let mut before = Vec::new();
    files(&Path::new(&repo).join("objects"), &mut before);
    write(dev, "main/cut", 7..8, 4);
    let saved = dev.json(&["backup", "create", "main/cut", "--repo", &repo]);
    let mut objects = Vec::new();
    files(&Path::new(&repo).join("objects"), &mut objects);
    objects.retain(|object| !before.contains(object));
    let whole: Vec<Vec<u8>> = objects.iter().map(|object| std::fs::read(object).expect("an object")).collect();
    let piece = (0..objects.len()).max_by_key(|n| whole[*n].len()).expect("it has saved something");
    std::fs::write(&objects[piece], &whole[piece][..10]).expect("it can be written");

    let failed = backup(&["restore", "main/cut", "main/cut2"]);
    assert!(failed.code != 0 && failed.err.contains("the same command goes on"), "{failed:?}");
    let label = dev.json(&["volume", "info", "main/cut2"])["labels"]["restoring"].clone();
    let key = ["cluster", "volume", "snapshot", "created_ms"].map(|key| saved[key].to_string().replace('"', ""));
    assert_eq!(label, key.join("."));
    let notes = || {
        let kept = |snapshot: &serde_json::Value| snapshot["state"] != "deleting";
        let listed = dev.json(&["snapshot", "ls", "main/cut2"])["snapshots"].as_array().cloned().expect("a list");
        listed.into_iter().filter(kept).map(|note| note["labels"]["restoring"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(notes(), [format!("{}+{}", key.join("."), 1 << 30)]);
    let first = backup(&["ls", "--json"]).out;
    let first: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    let first = first["backups"][0]["id"].as_str().expect("an id");
    backup(&["restore", "main/cut", "main/cut2", "--id", first]).says("BSLT-2055", "basalt volume rm main/cut2 --now");
    std::fs::write(&objects[piece], &whole[piece]).expect("it can be written");
    // Writes of another client from in between are lost, whether the restore has passed their place or not.
    write(dev, "main/cut2", 1..2, 77);
    write(dev, "main/cut2", 3..4, 77);
    write(dev, "main/cut", 0..1, 5);
    assert_eq!(backup(&["create", "main/cut"]).code, 0);
    let restored = backup(&["restore", "main/cut", "main/cut2"]);
    assert!(restored.code == 0 && restored.err.contains("going on behind 1 GiB"), "{restored:?}");
    assert_eq!((read(dev, "main/cut2"), notes().len()), (vec![3, 3, 0, 0, 0, 0, 0, 4], 0));
    assert_eq!(dev.json(&["volume", "info", "main/cut2"])["labels"], serde_json::json!({ "tier": "back" }));
    backup(&["restore", "main/cut", "main/cut2"]).says("BSLT-2013", "choose another name");
    for name in ["main/cut", "main/cut2"] {
        assert_eq!(dev.run(&["volume", "rm", name, "--now", "--snapshots"]).code, 0);
    }
}

fn volume_with_all_labels_comes_back(dev: &Dev, repo: &str) {
    let labels: Vec<String> = (0..32).map(|n| format!("k{n}=v")).collect();
    let labels: Vec<&str> = labels.iter().flat_map(|label| ["--label", label]).collect();
    assert_eq!(dev.run(&[&["volume", "create", "main/labels", "1MiB"][..], &labels].concat()).code, 0);
    assert_eq!(dev.run(&["backup", "create", "main/labels", "--repo", repo]).code, 0);
    let restored = dev.run(&["backup", "restore", "main/labels", "main/labels2", "--repo", repo]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let labels = dev.json(&["volume", "info", "main/labels2"])["labels"].clone();
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(32), "{labels}");
    assert!(labels["restoring"].is_null());
    for name in ["main/labels", "main/labels2"] {
        assert_eq!(dev.run(&["volume", "rm", name, "--now", "--snapshots"]).code, 0);
    }
}

/// Each write of the test is one repeated byte: compressed it takes next to nothing.
fn pool_says_whether_backups_are_compressed(dev: &Dev, repo: &str) {
    assert_eq!(dev.run(&["volume", "create", "main/packed", "1500MiB"]).code, 0);
    write(dev, "main/packed", 0..4, 201);
    let full = ["backup", "create", "main/packed", "--full", "--repo", repo];
    let stored = |words: &[&str], byte| {
        // Data of an older backup is not stored again, however that one was compressed.
        write(dev, "main/packed", 0..4, byte);
        dev.json(&[&full[..], words].concat())["written_bytes"].as_u64().expect("a number")
    };
    assert!(stored(&[], 202) < 65536);
    assert_eq!(dev.run(&["pool", "set", "main", "--backup-compression", "none"]).code, 0);
    assert!(stored(&[], 203) >= 4 * 65536);
    assert!(stored(&["--compress", "zstd"], 204) < 65536, "the command counts more than the pool");
    assert_eq!(dev.json(&["pool", "set", "main", "--backup-compression", "zstd"])["backup_compression"], "zstd");
    let refused = dev.run(&["pool", "set", "main", "--backup-compression", "gzip"]);
    assert!(refused.code == 2 && refused.err.contains("neither none nor zstd"), "{refused:?}");
    assert_eq!(dev.run(&["volume", "rm", "main/packed", "--now", "--snapshots"]).code, 0);
}
