//! Snapshots of volumes in use: names, protection, deletion, and volumes that go with theirs.

use crate::bytes;
use crate::dev::Dev;

const PIECE: usize = 64 << 10;
/// Distance of the pieces that are written: they lie in two segments.
const STEP: usize = 200 << 20;

/// Writes some pieces of a volume, each filled with the byte.
pub fn write(dev: &Dev, name: &str, pieces: std::ops::Range<usize>, byte: u8) {
    bytes::exported_with(dev, name, &[], |nbd| {
        pieces.into_iter().try_for_each(|n| nbd.write(n * STEP, &vec![byte; PIECE]))
    });
}

/// Returns the byte of each piece of a volume or a snapshot.
pub fn read(dev: &Dev, name: &str) -> Vec<u8> {
    bytes::exported(dev, name, |nbd| {
        let piece = |n: usize| {
            let mut seen = vec![0; PIECE];
            nbd.read(n * STEP, &mut seen)?;
            assert!(seen.iter().all(|byte| *byte == seen[0]), "piece {n} of {name} is mixed");
            Ok(seen[0])
        };
        (0..8).map(piece).collect()
    })
}

/// Returns offset and length of the extents that a command lists, and whether they are zeros.
fn extents(dev: &Dev, args: &[&str]) -> Vec<(usize, usize, bool)> {
    let ran = dev.run(&[args, &["--json"]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let extent = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        crate::golden::matches("extent", &line);
        let number = |name: &str| line[name].as_u64().expect("a number") as usize;
        (number("offset"), number("len"), line["zero"] == true)
    };
    ran.out.lines().map(extent).collect()
}

pub fn snapshots_are_made_in_use_named_protected_and_deleted(dev: &Dev) {
    for name in ["main/db", "main/log"] {
        assert_eq!(dev.run(&["volume", "create", name, "1500MiB"]).code, 0);
    }
    write(dev, "main/db", 0..4, 1);
    write(dev, "main/log", 0..8, 1);
    let made = dev.json(&["snapshot", "create", "main/db@one", "main/log@one", "--label", "keep=7d"]);
    let made = made["snapshots"].as_array().expect("a list");
    assert!(made.len() == 2 && made.iter().all(|s| s["state"] == "ready" && s["labels"]["keep"] == "7d"), "{made:?}");
    assert_eq!(made[0]["cut"], made[1]["cut"]);
    write(dev, "main/db", 2..7, 2);
    assert_eq!(read(dev, "main/db@one"), [1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(read(dev, "main/db"), [1, 1, 2, 2, 2, 2, 2, 0]);
    assert_eq!(dev.json(&["snapshot", "create", "main/db@two"])["snapshots"][0]["state"], "ready");
    let changed = extents(dev, &["volume", "diff", "main/db@two", "--since", "one"]);
    assert_eq!(changed, (2..7).map(|n| (n * STEP, PIECE, false)).collect::<Vec<_>>());
    assert_eq!(extents(dev, &["volume", "diff", "main/db@one"]).len(), 4);
    for args in [["volume", "diff", "main/db@one", "--since=two"], ["snapshot", "create", "main/db@x", "main/db@y"]] {
        let ran = dev.run(&args);
        assert!(ran.code == 2 && ran.err.contains("BSLT-1001"), "{ran:?}");
    }
    write(dev, "main/db", 3..8, 3);
    dev.run(&["snapshot", "create", "main/db@one"]).says("BSLT-2051", "choose another name");
    dev.run(&["snapshot", "create", "main/none@one"]).says("BSLT-2011", "");
    dev.run(&["snapshot", "create", "main/db"]).says("BSLT-2014", "");
    dev.run(&["snapshot", "info", "main/db@none"]).says("BSLT-2050", "basalt snapshot ls");
    dev.run(&["snapshot", "info", "main/db"]).says("BSLT-2014", "");
    assert_eq!(dev.json(&["snapshot", "rename", "main/db@one", "first"])["name"], "main/db@first");
    assert_eq!(dev.json(&["snapshot", "set", "main/db@first", "--protect", "on"])["protected"], true);
    dev.run(&["snapshot", "rm", "main/db@first"]).says("BSLT-2052", "--protect off");
    dev.run(&["volume", "rm", "main/db"]).says("BSLT-2052", "");
    dev.run(&["volume", "rm", "main/log", "--now"]).says("BSLT-2053", "--snapshots");
    assert_eq!(dev.run(&["snapshot", "set", "main/db@first", "--protect", "off"]).code, 0);
    assert_eq!(dev.json(&["volume", "info", "main/db"])["snapshots"], 2);
    let verified = dev.run(&["pg", "verify", "--deep"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    // Each OSD starts from its device.
    for osd in ["1", "2", "3"] {
        assert!(dev.run(&["dev", "kill", osd]).code == 0 && dev.run(&["dev", "start", osd]).code == 0, "osd.{osd}");
    }
    assert_eq!(read(dev, "main/db@first"), [1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(read(dev, "main/db@two"), [1, 1, 2, 2, 2, 2, 2, 0]);
    assert_eq!(dev.run(&["snapshot", "rm", "main/db@first"]).code, 0);
    assert_eq!(read(dev, "main/db@two"), [1, 1, 2, 2, 2, 2, 2, 0]);
    assert_eq!(read(dev, "main/db"), [1, 1, 2, 3, 3, 3, 3, 3]);
    let left = dev.json(&["snapshot", "ls", "main"]);
    assert_eq!(left["snapshots"].as_array().expect("a list").len(), 2, "{left}");
    assert_eq!(dev.json(&["volume", "rm", "main/log", "--now", "--snapshots"])["trashed"], false);
    assert_eq!(dev.run(&["snapshot", "rm", "main/db@two"]).code, 0);
    assert!(dev.json(&["snapshot", "ls"])["snapshots"].as_array().is_some_and(Vec::is_empty));
    assert_eq!(read(dev, "main/db"), [1, 1, 2, 3, 3, 3, 3, 3]);
    let verified = dev.run(&["pg", "verify", "--deep"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert_eq!(dev.json(&["volume", "rm", "main/db", "--now"])["trashed"], false);
    let events = dev.json(&["events", "--since", "1h"]);
    for kind in ["snapshot.created", "snapshot.changed", "snapshot.removed"] {
        let all = events["events"].as_array().expect("a list");
        let event = all.iter().find(|event| event["kind"] == kind).unwrap_or_else(|| panic!("no {kind}: {events}"));
        assert!(event["by"].to_string().contains("basalt on "), "{event}");
    }
}
