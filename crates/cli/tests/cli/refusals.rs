//! Commands on volumes that cannot be done as things stand: each says why, and what does.

use crate::dev::Dev;

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
