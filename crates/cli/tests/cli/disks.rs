//! The tools for the device of a stopped OSD, on the devices of a cluster that was written and stopped.

use crate::bytes;
use crate::dev::{DISKS, Dev, Ran};
use crate::golden;
use layout::superblock::Superblock;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

const CHUNK: usize = 16 << 20;
/// Longest time until the PGs are whole again.
const HEALED_MAX: Duration = Duration::from_secs(90);

/// The volume that was written: one segment, and so one PG.
struct Written {
    bytes: Vec<u8>,
    /// Its id.
    volume: String,
    pg: String,
    /// OSDs of the PG.
    osds: Vec<u64>,
}

fn device(dev: &Dev, osd: u64) -> String {
    dev.dir().join(format!("osd.{osd}/device")).to_string_lossy().into_owned()
}

fn pgs(dev: &Dev) -> Vec<Value> {
    dev.json(&["pg", "ls"])["pgs"].as_array().expect("a list").clone()
}

fn osds_of(pg: &Value) -> Vec<u64> {
    pg["members"].as_array().expect("a list").iter().map(|m| m["osd"].as_u64().expect("a number")).collect()
}

fn is_whole(dev: &Dev) -> bool {
    pgs(dev).iter().all(|pg| pg["state"] == serde_json::json!(["active"]) && pg["change"].is_null())
}

fn changed(dev: &Dev, osd: u64) -> SystemTime {
    std::fs::metadata(device(dev, osd)).and_then(|meta| meta.modified()).expect("it is there")
}

/// Writes at random to the first bytes of the volume.
fn write(dev: &Dev, span: &str) {
    let bench =
        ["bench", "main/data", "--op", "randwrite", "--overwrite", "--depth", "8", "--seconds", "3", "--verify"];
    let ran = dev.run(&[&bench[..], &["--span", span]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn stopped_devices_show_the_data_and_lose_one_replica_that_heals() {
    let dev = Dev::up_as(DISKS, &["--osds", "4", "--device-size", "512MiB"]);
    assert_eq!(dev.run(&["volume", "create", "main/data", "48MiB"]).code, 0);
    write(&dev, "48MiB");
    dev.wait_for("destage rounds", Duration::from_secs(30), || {
        let gauge = |osd: &Value| osd["used_bytes"].as_u64().is_some_and(|used| used > 24 << 20);
        dev.json(&["osd", "ls"])["osds"]
            .as_array()
            .is_some_and(|osds| osds.iter().filter(|osd| gauge(osd)).count() >= 3)
    });
    // The log alone holds what is written last: most of the first chunk, and nothing of the others.
    write(&dev, "16MiB");
    let volume = dev.json(&["volume", "info", "main/data"])["volume"].to_string();
    let pg = pgs(&dev).into_iter().find(|pg| pg["segments"] != 0).expect("one is written");
    let (osds, pg) = (osds_of(&pg), pg["pg"].as_str().expect("a name").to_owned());
    let written = Written { bytes: bytes::of(&dev, "main/data"), volume, pg, osds };
    dev.run(&["disk", "info", &device(&dev, 1)]).says("BSLT-3002", "stop its OSD first");
    assert_eq!(dev.run(&["dev", "down"]).code, 0);
    let before: Vec<SystemTime> = (1..=4).map(|osd| changed(&dev, osd)).collect();
    chunks_are_those_of_the_volume(&dev, &written);
    every_output_has_its_schema(&dev, &written);
    wrong_questions_are_refused(&dev, &written);
    assert_eq!(before, (1..=4).map(|osd| changed(&dev, osd)).collect::<Vec<_>>(), "nothing was written");
    bad_block_is_named_and_is_zeros_by_force(&dev, &written);
    flipped_bytes_are_found_and_never_end_in_a_panic(&dev, written.osds[0]);
    replicas_that_are_removed_come_back_by_the_cluster(&dev, &written);
}

fn chunks_are_those_of_the_volume(dev: &Dev, written: &Written) {
    let mut seen = BTreeSet::new();
    for osd in written.osds.iter().copied() {
        let (device, file) = (device(dev, osd), dev.file(&format!("copy.{osd}")));
        let ran = dev.run(&["disk", "check", &device, "--data"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let list = ["disk", "ls", &device, "--volume", &written.volume, "--chunks", "--uncommitted"];
        let listed = dev.json(&list);
        let ran = dev.run(&["disk", "cp", &device, "--volume", &written.volume, "--uncommitted", &file]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let copy = std::fs::read(&file).expect("it was made");
        assert_eq!(copy.len(), written.bytes.len(), "48 MiB are three chunks");
        for replica in listed["replicas"].as_array().expect("a list") {
            for held in replica["chunk_list"].as_array().expect("a list") {
                let chunk = held["chunk"].as_u64().expect("a number");
                let place = chunk as usize * CHUNK..(chunk as usize + 1) * CHUNK;
                assert!(copy[place.clone()] == written.bytes[place], "chunk {chunk} of osd.{osd}");
                let pg = replica["pg"].as_str().expect("a name");
                cat_prints(dev, (&device, pg), chunk, written);
                seen.insert(chunk);
            }
        }
    }
    assert_eq!(seen.len(), 3, "every chunk was on some device");
    let other = (1..=4).find(|osd| !written.osds.contains(osd)).expect("one of four");
    let (device, file) = (device(dev, other), dev.file("copy.other"));
    dev.run(&["disk", "cp", &device, "--volume", &written.volume, &file]).says("BSLT-3014", "disk usage");
}

fn cat_prints(dev: &Dev, (device, pg): (&str, &str), chunk: u64, written: &Written) {
    let (offset, len) = (5_000_017, 70_003);
    let at = chunk as usize * CHUNK + offset;
    let file = dev.file("part");
    let args = [
        "disk",
        "cat",
        device,
        "--pg",
        pg,
        "--volume",
        &written.volume,
        "--chunk",
        &chunk.to_string(),
        "--offset",
        &offset.to_string(),
        "--len",
        &len.to_string(),
        "--uncommitted",
    ];
    let ran = dev.run_into(File::create(&file).expect("a file"), &args);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(std::fs::read(&file).expect("it was made") == written.bytes[at..at + len], "chunk {chunk} of {device}");
}

fn every_output_has_its_schema(dev: &Dev, written: &Written) {
    let device = device(dev, written.osds[0]);
    let listed = dev.json(&["disk", "ls", &device, "--volume", &written.volume, "--chunks"]);
    golden::matches("disk.ls", &listed);
    golden::matches("disk.info", &dev.json(&["disk", "info", &device]));
    golden::matches("disk.usage", &dev.json(&["disk", "usage", &device]));
    let checked = dev.json(&["disk", "check", &device]);
    assert_eq!((&checked["clean"], &checked["damage_count"]), (&true.into(), &0.into()), "{checked}");
    golden::matches("disk.check", &checked);
    let file = dev.file("golden");
    golden::matches("disk.cp", &dev.json(&["disk", "cp", &device, "--volume", &written.volume, &file]));
    let dump = dev.run(&["disk", "dump-log", &device, "--json"]);
    let lines: Vec<Value> = dump.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let append = lines.iter().find(|line| line["kind"] == "append").expect("the log holds an entry");
    golden::matches("disk.log", append);
    assert!(lines.iter().all(|line| line["state"] == "good"), "a clean log");
    let batches: Vec<u64> = lines.iter().filter(|l| l["kind"] == "batch").filter_map(|l| l["seq"].as_u64()).collect();
    assert!(batches.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{batches:?}");
    let from = batches[batches.len() / 2].to_string();
    let some = dev.run(&["disk", "dump-log", &device, "--from", &from, "--limit", "2"]);
    assert_eq!(some.out.lines().filter(|line| line.contains(" batch ")).count(), 2, "{some:?}");
    for verb in ["info", "ls", "usage", "check"] {
        let ran = dev.run(&["disk", verb, &device]);
        assert!(ran.code == 0 && ran.out.lines().count() > 3, "{ran:?}");
    }
}

fn wrong_questions_are_refused(dev: &Dev, written: &Written) {
    let device = device(dev, written.osds[0]);
    let cat = |pg: &str, more: &[&str]| {
        dev.run(&[&["disk", "cat", &device, "--pg", pg, "--volume", &written.volume, "--chunk", "0"], more].concat())
    };
    cat("9.9", &[]).says("BSLT-3014", "disk ls");
    let pg = &written.pg;
    cat(pg, &["--replica", "99999"]).says("BSLT-3014", "disk ls");
    cat(pg, &["--offset", "16MiB", "--len", "1"]).says_usage("BSLT-1001", "disk cat --help");
    cat(pg, &["--volume", "x"]).says_usage("BSLT-1001", "disk cat --help");
    dev.run(&["disk", "cp", &device, "--volume", "777", &dev.file("none")]).says("BSLT-3014", "disk usage");
    dev.run(&["disk", "cp", &device, "--volume", &written.volume, &dev.file("golden")]).says("BSLT-1006", "ls -ld");
    dev.run(&["disk", "rm", &device, "--pg", pg, "--replica", "99999", "--yes"]).says("BSLT-3014", "disk ls");
    dev.run(&["disk", "info", "/nonexistent"]).says("BSLT-1006", "ls -l");
}

/// Flips bytes in pages all over a device, one at a time, and checks the device each time.
fn flipped_bytes_are_found_and_never_end_in_a_panic(dev: &Dev, osd: u64) {
    let path = device(dev, osd);
    let file = File::options().read(true).write(true).open(&path).expect("it is ours");
    let bytes = std::fs::read(&path).expect("it is there");
    let used: Vec<usize> =
        (0..bytes.len() / 4096).filter(|n| bytes[n * 4096..][..4096].iter().any(|byte| *byte != 0)).collect();
    let begins = |magic: &[u8]| used.iter().copied().filter(|n| bytes[n * 4096..].starts_with(magic)).take(2).collect();
    let mut pages: Vec<usize> =
        [&b"BMAP"[..], b"BDIR", b"BSLTBTCH", b"BSLTSUPR"].iter().flat_map(|m| -> Vec<usize> { begins(m) }).collect();
    assert!(pages.len() >= 6, "pages of each kind are there: {pages:?}");
    pages.extend(used.iter().step_by(used.len() / 8 + 1));
    let mut found = 0;
    for (nth, page) in pages.iter().enumerate() {
        let at = page * 4096 + [13, 70, 200, 1000][nth % 4];
        file.write_all_at(&[bytes[at] ^ 0x24], at as u64).expect("written");
        let ran = dev.run(&["disk", "check", &path, "--data"]);
        file.write_all_at(&[bytes[at]], at as u64).expect("written");
        assert!([0, 1, 3].contains(&ran.code) && !ran.err.contains("panicked"), "byte {at}: {ran:?}");
        found += usize::from(ran.code != 0);
    }
    assert!(found >= 6, "{found} of {} flips were found", pages.len());
    assert_eq!(dev.run(&["disk", "check", &path, "--data"]).code, 0, "all is as it was");
}

/// Flips a byte of a block at home: `cat` names the block, and writes zeros for it on demand.
fn bad_block_is_named_and_is_zeros_by_force(dev: &Dev, written: &Written) {
    let path = device(dev, written.osds[0]);
    let file = File::options().read(true).write(true).open(&path).expect("it is ours");
    let bytes = std::fs::read(&path).expect("it is there");
    let home = Superblock::decode(&bytes).expect("a superblock").home_start as usize;
    let blocks: BTreeMap<&[u8], usize> = written.bytes.chunks(4096).zip(0..).collect();
    let candidates = bytes[home..].chunks_exact(4096).zip(0..).filter(|(page, _)| page.iter().any(|byte| *byte != 0));
    let candidates = candidates.filter_map(|(page, nth)| Some((home + nth * 4096, *blocks.get(page)?)));
    // The log writes blocks of the first chunk again: their bytes at home do not matter.
    for (at, block) in candidates.filter(|(_, block)| *block >= CHUNK / 4096).take(40) {
        let (chunk, offset) = ((block * 4096 / CHUNK).to_string(), (block * 4096 % CHUNK).to_string());
        let place = ["--chunk", &chunk, "--offset", &offset, "--len", "4KiB"];
        let cat = ["disk", "cat", &path, "--pg", &written.pg, "--volume", &written.volume];
        file.write_all_at(&[bytes[at + 9] ^ 1], at as u64 + 9).expect("written");
        let plain = dev.run(&[&cat[..], &place].concat());
        let out = dev.file("bad");
        let forced = [&cat[..], &place, &["--force"]].concat();
        let forced = dev.run_into(File::create(&out).expect("a file"), &forced);
        let checked = dev.run(&["disk", "check", &path, "--data"]);
        file.write_all_at(&[bytes[at + 9]], at as u64 + 9).expect("written");
        if plain.code == 0 {
            continue;
        }
        let name =
            format!("block {} (offset {offset}) of chunk v{}/{chunk}", block * 4096 % CHUNK / 4096, written.volume);
        assert!(plain.code == 1 && plain.err.contains("BSLT-3011") && plain.err.contains(&name), "{name}: {plain:?}");
        assert!(forced.code == 3 && forced.err.contains(&name), "{forced:?}");
        assert_eq!(std::fs::read(&out).expect("it was made"), [0; 4096]);
        assert!(checked.code == 3 && checked.out.contains("blocks: block "), "{checked:?}");
        return;
    }
    panic!("every block of home that was tried is in the log, too");
}

/// Returns a replica of this OSD, of this PG or of any other one: its PG and its id.
fn replica_on(dev: &Dev, osd: u64, is_meant: impl Fn(&str) -> bool) -> (String, String) {
    let listed = dev.json(&["disk", "ls", &device(dev, osd)]);
    let replicas = listed["replicas"].as_array().expect("a list").clone();
    let pg_of = |replica: &Value| replica["pg"].as_str().expect("a name").to_owned();
    let found = replicas.iter().find(|replica| is_meant(&pg_of(replica))).expect("it is there");
    (pg_of(found), found["replica"].to_string())
}

/// Removes a replica of a stopped OSD, with these flags.
fn rm(dev: &Dev, osd: u64, (pg, id): (&str, &str), flags: &[&str]) -> Ran {
    dev.run(&[&["disk", "rm", &device(dev, osd), "--pg", pg, "--replica", id], flags].concat())
}

fn replicas_that_are_removed_come_back_by_the_cluster(dev: &Dev, written: &Written) {
    let (first, second) = (written.osds[0], written.osds[1]);
    let (failed_pg, failed) = replica_on(dev, first, |pg| pg == written.pg);
    let (gone_pg, gone) = replica_on(dev, second, |pg| pg != written.pg);
    let before = changed(dev, second);
    let asked = rm(dev, second, (&gone_pg, &gone), &[]);
    asked.says_usage("BSLT-1001", "--yes");
    assert!(asked.err.contains("pg move") && changed(dev, second) == before, "{asked:?}");
    let done = rm(dev, first, (&failed_pg, &failed), &["--replace", "--yes"]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = rm(dev, second, (&gone_pg, &gone), &["--yes", "--json"]);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    golden::matches("disk.rm", &json);
    assert_eq!((&json["replaced"], &json["space_released"]), (&false.into(), &true.into()), "{json}");
    rm(dev, second, (&gone_pg, &gone), &["--yes"]).says("BSLT-3014", "disk ls");
    assert_eq!(dev.run(&["disk", "check", &device(dev, second), "--data"]).code, 0, "the device is clean");
    assert_eq!(dev.run(&["dev", "up"]).code, 0);
    let of = |pg: &str| pgs(dev).into_iter().find(|view| view["pg"] == pg).expect("it is there");
    let has = |pg: &str, id: &str| {
        of(pg)["members"].as_array().expect("a list").iter().any(|m| m["replica"].as_u64() == id.parse().ok())
    };
    dev.wait_for("a new replica in place of the failed one", HEALED_MAX, || !has(&failed_pg, &failed));
    dev.wait_for("all PGs but one to be whole", HEALED_MAX, || {
        let is_active = |pg: &Value| pg["state"] == serde_json::json!(["active"]);
        pgs(dev).iter().all(|pg| pg["pg"] == gone_pg.as_str() || is_active(pg))
    });
    assert!(has(&gone_pg, &gone) && !is_whole(dev), "meta replaces no replica that was removed: {}", of(&gone_pg));
    let free = (1..=4).find(|osd| !osds_of(&of(&gone_pg)).contains(osd)).expect("one of four is free").to_string();
    let moved = dev.run(&["pg", "move", &gone_pg, "--from", &second.to_string(), "--to", &free, "--wait"]);
    assert_eq!(moved.code, 0, "{moved:?}");
    dev.wait_for("all PGs to be whole", HEALED_MAX, || is_whole(dev));
    assert_eq!(dev.run(&["pg", "verify", "--deep"]).code, 0);
    assert!(bytes::of(dev, "main/data") == written.bytes, "the data is what it was");
}
