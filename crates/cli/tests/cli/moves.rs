//! Replicas that move: under load, and away from an OSD that is lost.

use crate::dev::{Dev, MOVES};
use serde_json::Value;
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
fn replicas_move_under_load_and_away_from_a_lost_osd() {
    let up = ["--osds", "4", "--device-size", "1GiB", "--export", "main/demo", "--size", "64MiB"];
    let dev = Dev::up_as(MOVES, &up);
    qemu_io(&dev, "write -P 77 0 32M");
    a_replica_moves_while_its_pg_is_written(&dev);
    moves_that_cannot_be_are_refused(&dev);
    a_lost_osd_is_emptied_and_removed(&dev);
    qemu_io(&dev, "read -P 77 0 32M");
}

fn a_replica_moves_while_its_pg_is_written(dev: &Dev) {
    let pg = pgs(dev).into_iter().find(|pg| pg["segments"] != 0).expect("one is written");
    let (name, to) = (pg["pg"].as_str().expect("a name").to_owned(), free_of(&pg).to_string());
    assert_eq!(dev.run(&["volume", "create", "main/load", "8GiB"]).code, 0);
    let mut load = dev.spawn(&["bench", "main/load", "--op", "write", "--seconds", "8", "--depth", "4"]);
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
    let json = dev.json(&["pg", "move", name, "--cancel"]);
    assert!(json["schema"] == "basalt.pg.move/1" && json["change"].is_null() && json["move"].is_null(), "{json}");
}

fn a_lost_osd_is_emptied_and_removed(dev: &Dev) {
    assert_eq!(dev.run(&["dev", "kill", "2"]).code, 0);
    dev.wait("meta to call it down", || dev.json(&["osd", "ls"])["osds"][1]["live"] == "down");
    dev.run(&["osd", "rm", "2"]).says("BSLT-2042", "pg move");
    for pg in pgs(dev).iter().filter(|pg| osds_of(pg).contains(&2)) {
        let (name, to) = (pg["pg"].as_str().expect("a name"), free_of(pg).to_string());
        let ran = dev.run(&["pg", "move", name, "--from", "2", "--to", &to]);
        assert!(ran.code == 0 && ran.out.contains("moves from osd.2 to"), "{ran:?}");
    }
    dev.wait_for("the PGs to be whole on three OSDs", MOVED_MAX, || is_whole(dev));
    assert!(pgs(dev).iter().all(|pg| !osds_of(pg).contains(&2)));
    let removed = dev.run(&["osd", "rm", "2"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    verified(dev);
}
