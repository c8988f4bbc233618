//! Commands whose metadata server, or whose leaders, are silent in the middle: each says so, and nothing is left half done.

use crate::dev::{DEATHS, Dev, Ran};
use crate::outages::{self, Stopped};
use std::time::{Duration, Instant};

/// Longest time until a command gives up a metadata server that is silent.
const TOLD_MAX: Duration = Duration::from_secs(30);

/// Commands that read or change volumes. `kept` has the snapshot `one`.
const COMMANDS: [&str; 12] = [
    "status",
    "volume ls",
    "volume create main/new 64MiB",
    "volume resize main/kept 128MiB",
    "volume set main/kept --description told",
    "volume clone main/kept@one main/kid",
    "volume rm main/gone",
    "snapshot create main/kept@two",
    "snapshot rename main/kept@one first",
    "volume fault ls main/kept",
    "pool set main --quota-volumes 90",
    "bench main/kept --op read --seconds 1",
];

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

fn done(dev: &Dev, command: &str) {
    let ran = dev.run(&words(command));
    assert_eq!(ran.code, 0, "{command}: {ran:?}");
}

fn has_snapshot(dev: &Dev, name: &str) -> bool {
    let (known, name) = (dev.json(&["snapshot", "ls", "main/kept"]), format!("main/kept@{name}"));
    known["snapshots"].as_array().expect("a list").iter().any(|snapshot| snapshot["name"] == name.as_str())
}

#[allow(clippy::disallowed_methods, reason = "the test measures how long commands take")]
fn a_silent_meta_is_named_and_what_was_asked_happened_wholly_or_not(dev: &Dev) {
    let socket = dev.file("deaths.sock");
    let export = outages::export(dev, "main/served", &socket, &[]);
    let stopped = Stopped::named(dev, "meta.");
    std::thread::scope(|scope| {
        for command in COMMANDS {
            scope.spawn(move || {
                let begun = Instant::now();
                dev.run(&words(command)).says("BSLT-2001", "");
                assert!(begun.elapsed() < TOLD_MAX, "{command}: {:?}", begun.elapsed());
            });
        }
    });
    let write = outages::request(&socket, "write -P 7 0 4k");
    assert!(outages::said(write).contains("wrote 4096/4096"), "I/O needs no metadata server");
    drop(stopped);
    dev.wait("the metadata server", || dev.run(&["volume", "ls"]).code == 0);
    outages::end(export);

    // A request that lay on the connection may have been carried out.
    if has_snapshot(dev, "first") {
        assert!(!has_snapshot(dev, "one"), "it has one name");
        done(dev, "snapshot rename main/kept@first one");
    }
    let repeats = |command: &str, is_there: &str| {
        let Ran { code, err, .. } = dev.run(&words(command));
        assert!(code == 0 || err.starts_with(&format!("basalt: {is_there}: ")), "{command}: {err}");
    };
    repeats("volume create main/new 64MiB", "BSLT-2013");
    repeats("volume clone main/kept@one main/kid", "BSLT-2013");
    repeats("snapshot create main/kept@two", "BSLT-2051");
    repeats("volume rm main/gone", "BSLT-2011");
    done(dev, "volume resize main/kept 128MiB");
    for volume in ["main/new", "main/kid"] {
        done(dev, &format!("bench {volume} --op randwrite --overwrite --seconds 1"));
    }
    assert!(has_snapshot(dev, "one") && has_snapshot(dev, "two"));
    done(dev, "snapshot rm main/kept@two");
    done(dev, "volume rm main/new --now");
    done(dev, "volume rm main/kid --now");
    done(dev, "pool set main --quota-volumes 0");
}

/// One OSD after the other is silent, and one of them leads the PG.
fn a_silent_leader_ends_no_command(dev: &Dev) {
    for osd in ["osd.1", "osd.2", "osd.3"] {
        dev.wait_for("all OSDs", Duration::from_secs(60), || dev.run(&["status"]).code == 0);
        let stopped = Stopped::named(dev, osd);
        dev.wait("a snapshot by the next leaders", || {
            let tried = dev.run(&["snapshot", "create", "main/kept@three"]);
            if tried.code != 0 {
                tried.says("BSLT-2054", "try again");
                assert!(!has_snapshot(dev, "three"), "it was given up in all PGs");
            }
            tried.code == 0
        });
        done(dev, "volume clone main/kept@three main/kid");
        done(dev, "bench main/kid --op randwrite --overwrite --seconds 1");
        done(dev, "volume flatten main/kid");
        done(dev, "snapshot rm main/kept@three");
        done(dev, "volume resize main/kid 32MiB --shrink --discard-data");
        done(dev, "volume rm main/kid --now");
        drop(stopped);
    }
}

/// Without two of three OSDs no change is sure, and no PG has a leader.
fn silent_osds_are_said_and_leave_nothing_half_done(dev: &Dev) {
    let stopped = Stopped::named(dev, "osd.");
    let commands = [
        "snapshot create main/kept@lost",
        "volume clone main/kept@one main/kid",
        "volume create main/new 64MiB",
        "bench main/kept --op read --seconds 1",
    ];
    std::thread::scope(|scope| {
        for command in commands {
            scope.spawn(move || {
                let ran = dev.run(&words(command));
                let says = |code: &&str| ran.err.starts_with(&format!("basalt: {code}: "));
                // The step in which a command waits decides.
                let code = ["BSLT-2054", "BSLT-2055", "BSLT-5007"].into_iter().find(says);
                ran.says(code.unwrap_or("BSLT-2031"), "basalt");
            });
        }
    });
    drop(stopped);
    dev.wait_for("a snapshot", Duration::from_secs(60), || {
        dev.run(&["snapshot", "create", "main/kept@found"]).code == 0
    });
    for name in ["main/kid", "main/new"] {
        // A clone that has begun is completed, or it is gone.
        let (bench, mut is_there) = (format!("bench {name} --op randwrite --overwrite --seconds 1"), true);
        dev.wait("a volume that is whole or not there", || {
            let ran = dev.run(&words(&bench));
            is_there = !ran.err.starts_with("basalt: BSLT-2011: ");
            ran.code == 0 || !is_there
        });
        if is_there {
            done(dev, &format!("volume rm {name} --now"));
        }
    }
    if has_snapshot(dev, "lost") {
        done(dev, "bench main/kept@lost --op read --seconds 1");
    }
    for snapshot in ["lost", "found", "one"].into_iter().filter(|name| has_snapshot(dev, name)) {
        done(dev, &format!("snapshot rm main/kept@{snapshot}"));
    }
    done(dev, "volume rm main/kept --now");
}

#[test]
fn commands_outlive_silent_metas_and_leaders_or_say_what_is_silent() {
    let dev = &Dev::up_as(DEATHS, &["--device-size", "1GiB"]);
    for volume in ["main/kept", "main/gone", "main/served"] {
        done(dev, &format!("volume create {volume} 64MiB"));
        done(dev, &format!("bench {volume} --op randwrite --seconds 1"));
    }
    done(dev, "snapshot create main/kept@one");
    a_silent_meta_is_named_and_what_was_asked_happened_wholly_or_not(dev);
    a_silent_leader_ends_no_command(dev);
    silent_osds_are_said_and_leave_nothing_half_done(dev);
}
