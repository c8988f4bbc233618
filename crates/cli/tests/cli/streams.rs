//! Backup streams through files and pipes: whole, incremental, damaged, interrupted.

use crate::dev::{Dev, Ran};
use crate::snapshots::{read, write};
use std::os::unix::fs::PermissionsExt;

/// Pipes an export into an import.
fn piped(dev: &Dev, export: &[&str], import: &[&str]) -> Ran {
    let mut from = dev.spawn_piped(&[&["backup", "export"][..], export].concat());
    let stdout = from.stdout.take().expect("a pipe");
    let imported = dev.run_from(stdout, &[&["backup", "import"][..], import].concat());
    assert!(from.wait().expect("it ends").success(), "{export:?}");
    imported
}

/// Writes a part of a file, or the file with a changed byte, to another one.
fn damaged(dev: &Dev, file: &str, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = std::fs::read(file).expect("the stream");
    change(&mut bytes);
    let path = dev.file(name);
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

/// Checks that an import found its stream damaged, and says what becomes of the volume.
fn breaks_off(ran: &Ran) {
    let is_said = ["has a part of the contents", "BSLT-7007", "import the same stream again, and it goes on"];
    assert!(ran.code == 1 && is_said.iter().all(|part| ran.err.contains(part)), "{ran:?}");
}

/// Returns the number of snapshots of `main/to` that say how far an import came, and how far the last one did.
fn noted(dev: &Dev) -> (usize, u64) {
    let told = dev.json(&["snapshot", "ls", "main/to"]);
    let all: Vec<&str> = told["snapshots"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|snapshot| snapshot["state"] != "deleting")
        .filter_map(|snapshot| snapshot["labels"]["restoring"].as_str())
        .collect();
    let done = all.last().and_then(|label| label.rsplit_once('+')?.1.parse().ok());
    (all.len(), done.unwrap_or(0))
}

/// Cuts a file as an export leaves it that was killed, flips a byte behind the cut, and repeats the export.
fn export_goes_on(dev: &Dev, file: &str, export: &[&str]) {
    let whole = std::fs::read(file).expect("the stream");
    let part = damaged(dev, file, "again.stream.part", |bytes| {
        bytes.truncate(bytes.len() - 90);
        *bytes.last_mut().expect("it is longer") ^= 1;
    });
    let again = part.trim_end_matches(".part");
    let command = [&["backup", "export"][..], export, &["-o", again]].concat();
    // Another command that writes the file has a lock on it.
    let held = std::fs::File::open(&part).expect("it is there");
    held.lock().expect("nobody else has it");
    dev.run(&command).says("BSLT-1006", "wait until it has ended");
    drop(held);
    let told = dev.json(&command);
    assert!(told["resumed_at_bytes"] == (800u64 << 20) + 65536, "{told}");
    assert!(std::fs::read(again).expect("the stream") == whole && !std::path::Path::new(&part).exists());
}

pub fn streams_carry_volumes_and_their_changes(dev: &Dev) {
    let run = |words: &[&str]| dev.run(&[&["backup"][..], words].concat());
    let made = |words: &[&str]| assert_eq!(dev.run(words).code, 0, "{words:?}");
    made(&["volume", "create", "main/from", "1500MiB", "--label", "tier=front"]);
    write(dev, "main/from", 0..6, 1);
    made(&["snapshot", "create", "main/from@monday"]);
    let file = dev.file("monday.stream");
    let told = dev.json(&["backup", "export", "main/from@monday", "-o", &file]);
    assert_eq!((told["data_bytes"].as_u64(), told["zero_bytes"].as_u64()), (Some(6 * 65536), Some(0)), "{told}");
    let found = std::fs::metadata(&file).expect("the stream");
    assert_eq!((found.permissions().mode() & 0o777, Some(found.len())), (0o600, told["written_bytes"].as_u64()));
    export_goes_on(dev, &file, &["main/from@monday"]);
    let mixed = run(&["export", "main/from@monday", "--json"]);
    assert!(mixed.code == 2 && mixed.out.contains("give -o FILE"), "{mixed:?}");
    run(&["export", "main/from", "-o", &file]).says_usage("BSLT-1001", "basalt snapshot create");

    // A stream that is cut leaves a volume that says so, and that the whole stream completes.
    let cut = damaged(dev, &file, "cut.stream", |bytes| bytes.truncate(bytes.len() - 90));
    breaks_off(&run(&["import", "-i", &cut, "main/to"]));
    let labels = dev.json(&["volume", "info", "main/to"])["labels"].clone();
    assert!(labels["restoring"].is_string() && labels["tier"].is_null(), "{labels}");
    let (notes, done) = noted(dev);
    assert_eq!((notes, done), (1, (800 << 20) + 65536), "five of six frames were whole");
    // Another client may have written meanwhile, also to what the import has passed.
    write(dev, "main/to", 7..8, 9);
    write(dev, "main/to", 0..1, 9);
    let went_on = dev.json(&["backup", "import", "-i", &file, "main/to"]);
    assert_eq!((went_on["resumed_at_bytes"].as_u64(), noted(dev).0), (Some(done), 0), "{went_on}");
    assert_eq!(read(dev, "main/to"), [1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(dev.json(&["volume", "info", "main/to"])["labels"], serde_json::json!({ "tier": "front" }));
    run(&["import", "-i", &file, "main/to"]).says("BSLT-2013", "choose another name");
    let flipped = damaged(dev, &file, "flipped.stream", |bytes| bytes[600] ^= 1);
    breaks_off(&run(&["import", "-i", &flipped, "main/flipped"]));

    increments(dev, &file);
    for name in ["main/from", "main/to", "main/flipped"] {
        made(&["volume", "rm", name, "--now", "--snapshots"]);
    }
}

/// Brings `main/to` up to date with what has changed in `main/from`.
fn increments(dev: &Dev, monday: &str) {
    let run = |words: &[&str]| dev.run(&[&["backup"][..], words].concat());
    let made = |words: &[&str]| assert_eq!(dev.run(words).code, 0, "{words:?}");
    write(dev, "main/from", 2..4, 2);
    write(dev, "main/from", 5..6, 0);
    made(&["volume", "resize", "main/from", "1600MiB"]);
    made(&["snapshot", "create", "main/from@tuesday"]);
    let since = ["main/from@tuesday", "--since", "monday"];
    let piped_in = piped(dev, &since, &["main/to", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&piped_in.out).unwrap_or_default();
    let expected = (Some(2 * 65536), Some(65536), Some(1600 << 20));
    let found = ["data_bytes", "zero_bytes", "len_bytes"].map(|field| told[field].as_u64());
    assert_eq!((found[0], found[1], found[2]), expected, "{piped_in:?}");
    assert_eq!(told["snapshot"], "main/to@tuesday");
    assert_eq!(read(dev, "main/to"), [1, 1, 2, 2, 1, 0, 0, 0]);
    assert_eq!(read(dev, "main/to@monday"), [1, 1, 1, 1, 1, 1, 0, 0]);
    let file = dev.file("tuesday.stream");
    made(&[&["backup", "export"][..], &since, &["-o", &file]].concat());
    run(&["import", "-i", &file, "main/to"]).says("BSLT-7008", "begins with that snapshot");
    run(&["export", "main/from@monday", "--since", "tuesday"]).says_usage("BSLT-1001", "basalt snapshot ls");

    // Contents that are not those of the base are refused, and nothing is written.
    write(dev, "main/from", 0..1, 3);
    made(&["volume", "resize", "main/from", "1500MiB", "--shrink"]);
    made(&["snapshot", "create", "main/from@wednesday"]);
    let file = dev.file("wednesday.stream");
    made(&["backup", "export", "main/from@wednesday", "--since", "main/from@tuesday", "-o", &file]);
    write(dev, "main/to", 7..8, 9);
    run(&["import", "-i", &file, "main/to"]).says("BSLT-7008", "basalt snapshot rollback main/to@tuesday");
    assert_eq!(read(dev, "main/to"), [1, 1, 2, 2, 1, 0, 0, 9]);
    run(&["import", "-i", &file, "main/from"]).says("BSLT-7008", "without --since");
    made(&["snapshot", "rollback", "main/to@tuesday"]);
    made(&["volume", "set", "main/to", "--multi-writer"]);
    run(&["import", "-i", &file, "main/to"]).says("BSLT-2055", "basalt volume set main/to --multi-writer=off");
    made(&["volume", "set", "main/to", "--multi-writer=off"]);
    let cut = damaged(dev, &file, "cut.stream", |bytes| bytes.truncate(bytes.len() - 1));
    breaks_off(&run(&["import", "-i", &cut, "main/to"]));
    run(&["export", "main/to@tuesday", "-o", &dev.file("no")]).says("BSLT-2055", "--remove-label restoring");
    run(&["import", "-i", monday, "main/to"]).says("BSLT-2013", "choose another name");
    write(dev, "main/to", 6..7, 9);
    let note = format!("main/to@restoring-{}", noted(dev).1);
    run(&["export", &note, "-o", &dev.file("no")]).says("BSLT-2055", "basalt");
    let went_on = dev.json(&["backup", "import", "-i", &file, "main/to"]);
    assert_eq!((went_on["resumed_at_bytes"].as_u64(), noted(dev).0), (Some(65536), 0), "{went_on}");
    assert_eq!(read(dev, "main/to"), [3, 1, 2, 2, 1, 0, 0, 0]);
    let len = |name: &str| dev.json(&["snapshot", "info", name])["len_bytes"].as_u64();
    assert_eq!(["main/to@tuesday", "main/to@wednesday"].map(len), [1600, 1500].map(|mib| Some(mib << 20)));
    assert_eq!(dev.json(&["volume", "info", "main/to"])["labels"], serde_json::json!({ "tier": "front" }));
}
