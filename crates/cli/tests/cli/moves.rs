//! Replicas that move: by hand, away from OSDs that are drained or lost, and to a device that takes the place of another one.

use crate::dev::{Dev, MOVES};
use layout::intent::{INTENT_AT, Intent};
use layout::superblock::{DeviceIds, SUPERBLOCK_LEN, Superblock};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

/// Longest time for all moves of a test.
const MOVED_MAX: Duration = Duration::from_secs(120);

fn pgs(dev: &Dev) -> Vec<Value> {
    dev.json(&["pg", "ls"])["pgs"].as_array().expect("a list").clone()
}

fn osds_of(pg: &Value) -> Vec<u64> {
    pg["members"].as_array().expect("a list").iter().map(|m| m["osd"].as_u64().expect("a number")).collect()
}

/// The OSD of four that holds no replica of the PG.
fn free_of(pg: &Value) -> u64 {
    (1..=4).find(|osd| !osds_of(pg).contains(osd)).expect("one of four is free")
}

fn qemu_io(dev: &Dev, what: &str) {
    let uri = format!("nbd+unix:///main/demo?socket={}", dev.run(&["dev", "socket", "main/demo"]).out.trim());
    let out = Command::new("timeout").args(["60", "qemu-io", "-f", "raw", "-c", what, &uri]).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && !said.contains("failed"), "{what}: {said}");
}

fn verified(dev: &Dev) {
    let ran = dev.run(&["pg", "verify", "--deep"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

fn is_whole(dev: &Dev) -> bool {
    pgs(dev).iter().all(|pg| pg["state"] == serde_json::json!(["active"]) && pg["change"].is_null())
}

#[test]
fn replicas_move_under_load_and_away_from_lost_osds() {
    let up = ["--osds", "4", "--device-size", "1GiB", "--export", "main/demo", "--size", "64MiB"];
    let dev = Dev::up_as(MOVES, &up);
    qemu_io(&dev, "write -P 77 0 32M");
    assert_eq!(dev.run(&["osd", "set", "norebalance"]).code, 0);
    a_replica_moves_while_its_pg_is_written(&dev);
    moves_that_cannot_be_are_refused(&dev);
    an_osd_is_drained_and_comes_back(&dev);
    an_osd_that_is_lost_goes_out_by_itself(&dev);
    a_new_device_takes_the_place_of_a_lost_one(&dev);
}

fn a_replica_moves_while_its_pg_is_written(dev: &Dev) {
    let pg = pgs(dev).into_iter().find(|pg| pg["segments"] != 0).expect("one is written");
    let (name, to) = (pg["pg"].as_str().expect("a name").to_owned(), free_of(&pg).to_string());
    assert_eq!(dev.run(&["volume", "create", "main/load", "8GiB"]).code, 0);
    let mut load =
        dev.spawn(&["bench", "main/load", "--op", "write", "--seconds", "8", "--depth", "4", "--span", "96MiB"]);
    // Each member in turn, the leader among them.
    let mut free = to;
    for from in osds_of(&pg) {
        let from = from.to_string();
        let ran = dev.run(&["pg", "move", &name, "--from", &from, "--to", &free, "--wait"]);
        assert!(ran.code == 0 && ran.out.contains(&format!("pg {name} is on ")), "{ran:?}");
        free = from;
    }
    assert!(load.wait().expect("it ends").success(), "the load saw no error");
    let moved = pgs(dev).into_iter().find(|pg| pg["pg"] == name.as_str()).expect("it is there");
    assert!(moved["conf_epoch"] == 13 && moved["change"].is_null(), "{moved}");
    verified(dev);
    let events = dev.json(&["events"]);
    let done = events["events"].as_array().expect("a list").iter().filter(|e| e["kind"] == "pg.moved").count();
    assert_eq!(done, 3, "{events}");
}

fn moves_that_cannot_be_are_refused(dev: &Dev) {
    let pg = pgs(dev).remove(0);
    let name = pg["pg"].as_str().expect("a name");
    let (held, free) = (osds_of(&pg)[0].to_string(), free_of(&pg).to_string());
    dev.run(&["pg", "move", "9.9", "--from", "1", "--to", "2"]).says("BSLT-2044", "pg ls");
    dev.run(&["pg", "move", name, "--from", &free, "--to", &free]).says("BSLT-2045", "pg ls");
    dev.run(&["pg", "move", name, "--from", &held, "--to", "99"]).says("BSLT-2024", "osd ls");
    dev.run(&["pg", "move", name]).says_usage("BSLT-1001", "--help");
    let plan = |from: &str, to: &str| dev.run(&["pg", "move", name, "--from", from, "--to", to, "--dry-run"]);
    plan(&held, &held).says("BSLT-2045", "pg ls");
    let planned = plan(&held, &free);
    assert!(planned.code == 0 && planned.out.starts_with("nothing was changed; with the command"), "{planned:?}");
    let json = dev.json(&["pg", "move", name, "--from", &held, "--to", &free, "--dry-run"]);
    assert!(json["schema"] == "basalt.pg.move.plan/1" && json["change"].is_null(), "{json}");
    assert!(json["moves"][0]["to"].as_u64() == free.parse().ok() && json["moves"][0]["bytes"].is_u64(), "{json}");
    let json = dev.json(&["pg", "move", name, "--cancel"]);
    assert!(json["schema"] == "basalt.pg.move/1" && json["change"].is_null() && json["move"].is_null(), "{json}");
}

fn osd_of(dev: &Dev, osd: u64) -> Option<Value> {
    let osds = dev.json(&["osd", "ls"])["osds"].as_array().expect("a list").clone();
    osds.into_iter().find(|o| o["osd"] == osd)
}

fn held(dev: &Dev, osd: u64) -> usize {
    pgs(dev).iter().filter(|pg| osds_of(pg).contains(&osd)).count()
}

/// Reads and writes with stamps that are checked, without an error, until `done` returns.
fn under_load(dev: &Dev, what: &str, seconds: &str, done: impl FnOnce()) {
    let volume = format!("main/{what}");
    assert_eq!(dev.run(&["volume", "create", &volume, "96MiB"]).code, 0);
    let op = ["bench", &volume, "--op", "randrw", "--verify", "--depth", "4", "--json", "--seconds", seconds];
    let load = dev.spawn_piped(&op);
    done();
    let ended = load.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{what}: the load saw an error: {text}");
    let told: Value = serde_json::from_str(&text).expect("JSON");
    println!("{what}: the longest gap between two answers was {} us", told["report"]["longest_gap_us"]);
}

fn an_osd_is_drained_and_comes_back(dev: &Dev) {
    let before = held(dev, 3);
    let dry = dev.json(&["osd", "drain", "3", "--dry-run"]);
    assert_eq!(dry["moves"].as_array().expect("a list").len(), before, "{dry}");
    assert!(dry["moves"][0]["to"].is_number() && held(dev, 3) == before);
    dev.run(&["osd", "drain", "9"]).says("BSLT-2024", "osd ls");
    under_load(dev, "drain", "6", || {
        let ran = dev.run(&["osd", "drain", "3", "--wait"]);
        assert!(ran.code == 0 && ran.out.contains("osd.3 is being drained: "), "{ran:?}");
    });
    assert_eq!(held(dev, 3), 0);
    dev.run(&["osd", "rm", "3"]).says("BSLT-2042", "osd drain");
    let stuck = dev.run(&["osd", "out", "4", "--wait"]);
    stuck.says("BSLT-2017", "add an OSD");
    assert_eq!(dev.run(&["osd", "unset", "norebalance"]).code, 0);
    let ran = dev.run(&["osd", "in", "3", "4", "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(held(dev, 3) + 3 >= before, "{} of {before}", held(dev, 3));
    verified(dev);
}

fn an_osd_that_is_lost_goes_out_by_itself(dev: &Dev) {
    dev.run(&["config", "set", "osd_out_after", "1s"]).says("BSLT-2046", "config ls");
    assert_eq!(dev.run(&["config", "set", "osd_out_after", "10s"]).code, 0);
    under_load(dev, "lost", "20", || {
        assert_eq!(dev.run(&["dev", "kill", "2"]).code, 0);
        std::fs::remove_file(dev.dir().join("osd.2/device")).expect("it is ours");
        dev.wait_for("the lost OSD to be out and empty", MOVED_MAX, || {
            held(dev, 2) == 0 && osd_of(dev, 2).is_some_and(|osd| osd["auto_out"] == true)
        });
    });
    dev.wait_for("the PGs to be whole on three OSDs", MOVED_MAX, || is_whole(dev));
    let removed = dev.run(&["osd", "rm", "2"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    verified(dev);
}

fn a_new_device_takes_the_place_of_a_lost_one(dev: &Dev) {
    let before = held(dev, 1);
    let (device, log) = (dev.file("new"), dev.file("new-log"));
    let replace = ["osd", "replace", "1", "--device", &device, "--size", "1GiB", "--log-size", "64MiB"];
    let replace = [&replace[..], &["--log-device", &log]].concat();
    under_load(dev, "replaced", "15", || {
        assert_eq!(dev.run(&["dev", "kill", "1"]).code, 0);
        std::fs::remove_file(dev.dir().join("osd.1/device")).expect("it is ours");
        let ran = dev.run(&replace);
        assert!(ran.code == 0 && ran.out.contains("the replicas of osd.1 move to it"), "{ran:?}");
        assert!(ran.out.contains(&format!("--log-device {log} --listen")), "{ran:?}");
    });
    let again = dev.file("again");
    let again = ["osd", "replace", "1", "--device", &again, "--size", "1GiB", "--log-size", "64MiB"];
    dev.run(&again).says("BSLT-2047", "osd ls");
    let new = osd_of(dev, 5).expect("it is registered");
    assert!(new["replaces"] == 1 && new["host"] == osd_of(dev, 1).expect("it is known")["host"], "{new}");
    let run = ["osd", "run", "--device", &device, "--log-device", &log, "--listen", "127.0.0.1:0"];
    let mut process = dev.spawn(&run);
    dev.wait_for("osd.5 to take over", MOVED_MAX, || osd_of(dev, 1).is_none() && is_whole(dev));
    assert_eq!(held(dev, 5), before);
    verified(dev);
    qemu_io(dev, "read -P 77 0 32M");
    process.kill().expect("it is ours");
    process.wait().expect("it ends");
    the_two_devices_of_an_osd_are_named_together(dev, &device, &log);
    let mut process = dev.spawn(&run);
    dev.wait_for("osd.5 to be back", MOVED_MAX, || is_whole(dev));
    verified(dev);
    process.kill().expect("it is ours");
    process.wait().expect("it ends");
}

fn the_two_devices_of_an_osd_are_named_together(dev: &Dev, device: &str, log: &str) {
    let run = |flags: &[&str]| dev.run(&[&["osd", "run", "--listen", "127.0.0.1:0"][..], flags].concat());
    run(&["--device", device]).says("BSLT-3015", "--log-device");
    run(&["--device", log]).says("BSLT-3015", "its home with --device");
    run(&["--device", log, "--log-device", device]).says("BSLT-3015", "--log-device");
    let whole = dev.dir().join("osd.3/device").to_string_lossy().into_owned();
    run(&["--device", &whole, "--log-device", log]).says("BSLT-3002", "");
    dev.run(&["disk", "ls", device]).says("BSLT-3015", "--log-device");
    let of = [device, "--log-device", log];
    let info = dev.json(&[&["disk", "info"][..], &of].concat());
    assert_eq!((info["log_device"].as_str(), info["log"]["segments"].as_u64()), (Some(log), Some(16)), "{info}");
    let checked = dev.run(&[&["disk", "check", "--data"][..], &of].concat());
    assert_eq!(checked.code, 0, "{checked:?}");
    // A format that was interrupted before its registration goes on with both devices alone.
    let file = std::fs::File::options().read(true).write(true).open(device).expect("it is there");
    let mut page = vec![0; SUPERBLOCK_LEN];
    file.read_exact_at(&mut page, 0).expect("a superblock");
    let DeviceIds { cluster, osd, uuid } = Superblock::decode(&page).expect("a superblock").ids();
    file.write_all_at(&Intent { cluster, osd, uuid }.encode(), INTENT_AT).expect("written");
    dev.run(&["osd", "format", "--device", device]).says("BSLT-3015", "--log-device");
    let whole = dev.run(&["osd", "format", "--device", device, "--log-device", log]);
    assert!(whole.code == 0 && whole.out.contains("its log of 64 MiB"), "{whole:?}");
    // A log that is in use is no empty device.
    let other = dev.file("other");
    let format = ["osd", "format", "--device", &other, "--size", "512MiB", "--log-device", log];
    dev.run(&[&format[..], &["--force"]].concat()).says("BSLT-3003", "");
    assert!(!std::path::Path::new(&other).exists(), "nothing was made");
}
