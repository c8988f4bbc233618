//! Commands on volumes that cannot be done as things stand: each says why, and what does.

use crate::dev::{Dev, NAMES};

pub fn volumes_refuse_what_cannot_be_done(dev: &Dev) {
    let done = |args: &[&str]| {
        let ran = dev.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    };
    done(&["volume", "create", "main/base", "64MiB"]);
    done(&["snapshot", "create", "main/base@one"]);
    dev.run(&["bench", "main/base@one", "--op", "randwrite", "--seconds", "1"]).says("BSLT-2014", "");
    dev.run(&["volume", "flatten", "main/base"]).says("BSLT-2063", "");
    dev.run(&["volume", "clone", "main/none@one", "main/kid"]).says("BSLT-2011", "volume ls");
    dev.run(&["volume", "clone", "main/base@none", "main/kid"]).says("BSLT-2050", "snapshot ls");

    done(&["volume", "clone", "main/base@one", "main/kid"]);
    dev.run(&["snapshot", "rm", "main/base@one"]).says("BSLT-2057", "--detach");
    dev.run(&["volume", "rm", "main/base", "--now", "--snapshots"]).says("BSLT-2057", "--detach");
    done(&["volume", "flatten", "main/kid"]);
    done(&["snapshot", "rm", "main/base@one"]);

    dev.run(&["trash", "restore", "main/never"]).says("BSLT-2060", "trash ls");
    for _ in 0..2 {
        done(&["volume", "create", "main/twice", "64MiB"]);
        done(&["volume", "rm", "main/twice"]);
    }
    dev.run(&["trash", "restore", "main/twice"]).says("BSLT-2061", "trash ls");
    done(&["trash", "purge", "--all"]);

    dev.run(&["volume", "set", "main/base", "--iops", "9"]).says("BSLT-2070", "");
    done(&["pool", "set", "main", "--quota-volumes", "1"]);
    dev.run(&["volume", "create", "main/more", "64MiB"]).says("BSLT-2072", "pool set");
    done(&["pool", "set", "main", "--quota-volumes", "0"]);
    for volume in ["main/kid", "main/base"] {
        done(&["volume", "rm", volume, "--now", "--snapshots"]);
    }
}

/// Commands of one volume; `V` stands for its name.
const OF_A_VOLUME: [&str; 13] = [
    "volume info V",
    "volume du V",
    "volume diff V",
    "volume set V --description x",
    "volume rename V main/other",
    "volume resize V 2GiB",
    "volume flatten V",
    "volume fault ls V",
    "volume fault add V --latency 1ms --for 1m",
    "volume rm V",
    "snapshot create V@s",
    "bench V --op read --seconds 1",
    "nbd V --socket /tmp/basalt-never.sock",
];
/// Commands of one snapshot.
const OF_A_SNAPSHOT: [&str; 6] = [
    "snapshot info V",
    "snapshot rename V other",
    "snapshot set V --protect on",
    "snapshot rollback V",
    "snapshot rm V",
    "volume clone V main/other",
];

/// Runs each command with this name, and checks that it is refused with the code and a next step.
fn refuse(dev: &Dev, commands: &[&str], name: &str, code: &str) {
    for command in commands {
        let args: Vec<String> = command.split(' ').map(|word| word.replace('V', name)).collect();
        let ran = dev.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!([1, 2].contains(&ran.code) && ran.err.contains(code), "{args:?}: {ran:?}");
        match ran.code {
            2 => ran.says_usage(code, ""),
            _ => ran.says(code, ""),
        }
    }
}

#[test]
fn names_and_sizes_that_cannot_be_are_refused_by_every_command() {
    let dev = &Dev::up_as(NAMES, &["--device-size", "1GiB"]);
    refuse(dev, &OF_A_VOLUME, "main/none", "BSLT-2011");
    refuse(dev, &OF_A_VOLUME, "none/none", "BSLT-2010");
    let long = format!("main/{}", "x".repeat(300));
    for illegal in ["none", "main/", "/none", "main/a/b", "main/ä", long.as_str()] {
        refuse(dev, &OF_A_VOLUME, illegal, "BSLT-2014");
    }
    refuse(dev, &OF_A_SNAPSHOT, "main/none@one", "BSLT-2011");
    assert_eq!(dev.run(&["volume", "create", "main/here", "64MiB"]).code, 0);
    refuse(dev, &OF_A_SNAPSHOT, "main/here@none", "BSLT-2050");
    for illegal in ["main/here@", "main/here@a@b", "main/here@a/b", "@one"] {
        refuse(dev, &OF_A_SNAPSHOT, illegal, "BSLT-2014");
    }
    for size in ["0", "1", "4095", "1MiB1", "-1GiB", "99999999TiB", "1e3", ""] {
        for command in ["create main/sized", "resize main/here"] {
            let args: Vec<&str> = ["volume"].into_iter().chain(command.split(' ')).chain([size]).collect();
            let ran = dev.run(&args);
            assert!([1, 2].contains(&ran.code) && ran.err.contains("next: "), "{args:?}: {ran:?}");
        }
    }
    let known = dev.json(&["volume", "info", "main/here"]);
    assert_eq!(known["len_bytes"], 64 << 20, "{known}");
    dev.run(&["volume", "info", "main/sized"]).says("BSLT-2011", "volume ls");
    assert_eq!(dev.run(&["volume", "rm", "main/here", "--now"]).code, 0);
}
