//! PGs that lose their majority for good, and go on from one replica by command.

use crate::dev::{Dev, FORCED};
use crate::golden;
use serde_json::Value;
use std::time::Duration;

/// Longest time for the PGs to be whole again.
const WHOLE_MAX: Duration = Duration::from_secs(120);

fn pgs(dev: &Dev) -> Vec<Value> {
    dev.json(&["pg", "ls"])["pgs"].as_array().expect("a list").clone()
}

fn count(dev: &Dev, word: &str) -> usize {
    pgs(dev).iter().filter(|pg| pg["state"].as_array().expect("a list").iter().any(|state| state == word)).count()
}

#[test]
fn lost_majority_goes_on_from_one_replica_and_becomes_whole() {
    let dev = Dev::up_as(FORCED, &["--osds", "5", "--device-size", "4GiB"]);
    assert_eq!(dev.run(&["volume", "create", "main/v", "16GiB"]).code, 0);
    let filled =
        dev.run(&["bench", "main/v", "--op", "randwrite", "--seconds", "1", "--depth", "2", "--span", "16GiB"]);
    assert_eq!(filled.code, 0, "{filled:?}");
    let serving = pgs(&dev)[0]["pg"].as_str().expect("a name").to_owned();
    dev.run(&["pg", "force-recover", &serving]).says("BSLT-2048", "--dry-run");
    dev.run(&["pg", "force-recover", "9.9"]).says("BSLT-2044", "pg ls");
    for osd in ["1", "2"] {
        assert_eq!(dev.run(&["dev", "kill", osd]).code, 0);
        std::fs::remove_file(dev.dir().join(format!("osd.{osd}/device"))).expect("it is ours");
    }
    let is_down = |osd: &Value| osd["live"] == "down";
    dev.wait_for("both OSDs to be down", WHOLE_MAX, || {
        let osds = dev.json(&["osd", "ls"]);
        osds["osds"].as_array().expect("a list").iter().filter(|osd| is_down(osd)).count() == 2
    });
    dev.wait_for("their PGs to be down", WHOLE_MAX, || count(&dev, "down") > 0 && count(&dev, "waiting") == 0);
    let down = count(&dev, "down");
    let dry = dev.json(&["pg", "force-recover", "--all", "--dry-run"]);
    golden::matches("pg.force-recover", &dry);
    let views = dry["pgs"].as_array().expect("a list");
    assert_eq!((views.len(), count(&dev, "down")), (down, down), "{dry}");
    let loses = |view: &&Value| view["lossless"] == false;
    assert!(views.iter().any(|view| view["ordered"] == false && view["volumes"][0] == "main/v"), "{dry}");
    assert!(views.iter().filter(loses).all(|view| view["volume_count"] == 1), "{dry}");
    let lossy = views.iter().filter(loses).count();
    assert!(lossy > 0, "{dry}");
    // Without consent only the PGs that cannot lose anything go on.
    dev.run(&["pg", "force-recover", "--all"]).says("BSLT-2048", "--accept-data-loss");
    dev.wait_for("the others to serve", WHOLE_MAX, || count(&dev, "down") == lossy);
    let ran = dev.run(&["pg", "force-recover", "--all", "--accept-data-loss"]);
    assert!(ran.code == 0 && ran.out.contains("ACKNOWLEDGED WRITES MAY BE LOST"), "{ran:?}");
    assert_eq!((count(&dev, "down"), count(&dev, "active")), (0, pgs(&dev).len()));
    assert!(count(&dev, "degraded") >= down, "their other replicas are missing");
    let load =
        ["bench", "main/v", "--op", "randwrite", "--seconds", "1", "--depth", "1", "--span", "16GiB", "--overwrite"];
    let written = dev.run(&load);
    assert_eq!(written.code, 0, "{written:?}");
    let out = dev.run(&["osd", "out", "1", "2", "--wait"]);
    assert_eq!(out.code, 0, "{out:?}");
    let is_whole = |dev: &Dev| pgs(dev).iter().all(|pg| pg["state"] == serde_json::json!(["active"]));
    dev.wait_for("all PGs to be whole on three OSDs", WHOLE_MAX, || is_whole(&dev));
    assert!(pgs(&dev).iter().all(|pg| pg["members"].as_array().expect("a list").len() == 3));
    let equal = dev.run(&["pg", "verify", "--deep"]);
    assert_eq!(equal.code, 0, "{equal:?}");
    let events = dev.json(&["events"]);
    let forced = events["events"].as_array().expect("a list").iter().filter(|e| e["kind"] == "pg.forced").count();
    assert_eq!(forced, down, "{events}");
    assert!(["1", "2"].iter().all(|osd| dev.run(&["osd", "rm", osd]).code == 0));
}
