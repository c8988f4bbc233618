//! A pool without space: the errors that its users get, and its recovery when space is freed.

use crate::dev::{Dev, SMALL};
use crate::golden;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than a write waits for space before its client gets ENOSPC.
const TOLD_MAX: Duration = Duration::from_secs(45);
/// Segments of the volume that is written while an OSD is full. The first eight lie in PGs of one leader, the rest in
/// others.
const SEGMENTS: u64 = 24;
/// MiB that each of its segments gets then. A full OSD may take the last 128 AUs (8 MiB) that it keeps to grant, and grants
/// that come back; its five PGs or more get several times as much.
const EACH_MIB: u64 = 4;

/// Starts a request of an NBD client. It flushes before it ends, which waits for no other write.
fn request(uri: &str, what: &str) -> Child {
    let args = ["-s", "KILL", "120", "qemu-io", "-t", "unsafe", "-f", "raw", "-c", what, uri];
    Command::new("timeout").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("timeout runs")
}

/// Returns the output of a client that ended.
fn said(client: Child) -> String {
    let out = client.wait_with_output().expect("it ends");
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn uri(dev: &Dev, volume: &str) -> String {
    format!("nbd+unix:///{volume}?socket={}", dev.run(&["dev", "socket", volume]).out.trim())
}

fn is_full(dev: &Dev) -> bool {
    dev.json(&["osd", "ls"])["osds"].as_array().expect("a list").iter().any(|osd| osd["full"] == true)
}

/// Writes to a new volume of one segment until its OSD is full.
#[allow(clippy::disallowed_methods, reason = "the test measures how long a command takes")]
fn fill(dev: &Dev, volume: &str) {
    assert_eq!(dev.run(&["volume", "create", volume, "1GiB"]).code, 0);
    let begun = Instant::now();
    dev.run(&["bench", volume, "--op", "write", "--block", "1MiB", "--depth", "8", "--seconds", "300"])
        .says("BSLT-5003", "basalt osd ls");
    assert!(begun.elapsed() < Duration::from_secs(200), "it ends when the pool is full, not when its time is over");
    dev.wait("meta to hear that an OSD is full", || is_full(dev));
}

/// Writes to a PG on the full OSD and to PGs beside it, through one export. Returns a segment of the full one.
fn only_pgs_of_the_full_osd_wait(dev: &Dev) -> u64 {
    let to = uri(dev, "one/v");
    // The offset lies behind the allocated space.
    let write = |segment: u64| {
        let at = segment * 1024 + 64;
        request(&to, &format!("write -P 7 {at}M {EACH_MIB}M"))
    };
    let mut clients: Vec<Child> = (0..SEGMENTS).map(write).collect();
    let ended = |client: &mut Child| client.try_wait().expect("it is ours").is_some();
    // Writes beside the full OSD, and the flushes after them, end before the first one on it fails. No OSD has more than 10
    // of the segments.
    let mut waiting = Vec::new();
    dev.wait_for("half of the writes to end", TOLD_MAX, || {
        waiting = clients.iter_mut().map(|client| !ended(client)).collect();
        waiting.iter().filter(|waits| !**waits).count() as u64 >= SEGMENTS / 2
    });
    if !waiting.contains(&true) {
        let told: Vec<String> = clients.into_iter().map(said).collect();
        panic!("no write to the full OSD waits: {told:#?}\n{}", dev.run(&["osd", "ls"]).out);
    }
    let mut log = String::new();
    dev.wait("the log of the export to name the full pool", || {
        log = std::fs::read_to_string(dev.dir().join("logs/nbd.one~v.txt")).unwrap_or_default();
        log.contains("BSLT-5003")
    });
    assert!(log.contains("writes wait: no space left in the pool"), "{log}");
    waiting = clients.iter_mut().map(|client| !ended(client)).collect();
    assert!(waiting.contains(&true), "the writes to the full OSD still wait: {log}");
    let segment = waiting.iter().position(|waits| *waits).expect("one waits");
    let read = said(request(&to, &format!("read {segment}G 4k")));
    assert!(read.contains("read 4096/4096"), "reads of a full PG go on: {read}");
    dev.wait_for("an answer to each write", TOLD_MAX, || clients.iter_mut().all(ended));
    let mut refused = None;
    for (segment, (client, waited)) in clients.into_iter().zip(waiting).enumerate() {
        let told = said(client);
        match told.contains(&format!("wrote {0}/{0}", EACH_MIB << 20)) {
            true => {}
            false if waited && told.contains("No space left on device") => refused = Some(segment as u64),
            false => panic!("waited: {waited}, and was told {told}\n{}", dev.run(&["osd", "ls"]).out),
        }
    }
    refused.expect("a write was told that its PG is full")
}

/// Time in which the export hears of another policy, and a write that waits for nothing fails.
const AT_ONCE: Duration = Duration::from_secs(8);
/// Longer than a write waits whose volume leaves that to the client.
const LONG: Duration = Duration::from_secs(30);

/// Returns a write that waits for space.
#[allow(clippy::disallowed_methods, reason = "the test measures how long writes wait")]
fn a_policy_says_what_a_write_to_a_full_pool_does(dev: &Dev, segment: u64) -> Child {
    let to = uri(dev, "one/v");
    let write = || request(&to, &format!("write -P 7 {}M {EACH_MIB}M", segment * 1024 + 128));
    assert_eq!(dev.run(&["volume", "set", "one/v", "--when-full", "error"]).code, 0);
    dev.wait_for("a write that fails at once", TOLD_MAX, || {
        let begun = Instant::now();
        let told = said(write());
        assert!(told.contains("No space left on device"), "{told}");
        begun.elapsed() < AT_ONCE
    });
    assert_eq!(dev.run(&["volume", "set", "one/v", "--when-full", "wait"]).code, 0);
    std::thread::sleep(AT_ONCE);
    let mut waits = write();
    std::thread::sleep(LONG);
    if waits.try_wait().expect("it is ours").is_some() {
        panic!("it waits until there is space: {}", said(waits));
    }
    waits
}

/// Snapshots and clones take no space; what is written to a clone does.
fn snapshots_and_clones_are_made_in_a_full_pool(dev: &Dev) {
    let done = |args: &[&str]| {
        let ran = dev.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    };
    done(&["snapshot", "create", "one/fill@full"]);
    done(&["volume", "clone", "one/fill@full", "one/kid"]);
    let write = ["bench", "one/kid", "--op", "write", "--block", "1MiB", "--seconds", "300", "--overwrite"];
    dev.run(&write).says("BSLT-5003", "basalt osd ls");
    done(&["volume", "rm", "one/kid", "--now"]);
    done(&["snapshot", "rm", "one/fill@full"]);
}

#[test]
fn a_full_pool_is_called_full_and_serves_again_when_space_is_freed() {
    let dev = Dev::up_as(SMALL, &["--device-size", "384MiB"]);
    let pool = ["pool", "create", "one", "--replicas", "1", "--pgs", "16", "--domain", "osd"];
    assert_eq!(dev.run(&pool).code, 0);
    assert_eq!(dev.run(&["dev", "up", "--export", "one/v", "--size", &format!("{SEGMENTS}GiB")]).code, 0);
    // A new segment avoids full OSDs: these segments have their PGs before one is full.
    let allocated = (0..SEGMENTS).map(|segment| request(&uri(&dev, "one/v"), &format!("write {segment}G 4k")));
    for told in allocated.collect::<Vec<_>>().into_iter().map(said) {
        assert!(told.contains("wrote 4096/4096"), "{told}");
    }
    fill(&dev, "one/fill");
    let status = dev.run(&["status"]);
    assert!(status.code == 4 && status.out.contains("OSD_FULL"), "{status:?}");
    assert_eq!(dev.run(&["volume", "create", "main/other", "1GiB"]).code, 0);
    let three = dev.run(&["bench", "main/other", "--op", "write", "--block", "1MiB", "--seconds", "300"]);
    three.says("BSLT-5003", "basalt osd ls");
    let segment = only_pgs_of_the_full_osd_wait(&dev);
    let waits = a_policy_says_what_a_write_to_a_full_pool_does(&dev, segment);
    snapshots_and_clones_are_made_in_a_full_pool(&dev);

    assert_eq!(dev.run(&["volume", "rm", "one/fill", "--now"]).code, 0, "the reserve serves deletes");
    assert_eq!(dev.run(&["volume", "rm", "main/other", "--now"]).code, 0);
    dev.wait("space after volumes were deleted", || !is_full(&dev));
    let written = said(waits);
    assert!(
        written.contains(&format!("wrote {0}/{0}", EACH_MIB << 20)),
        "a write that waited got its space: {written}"
    );

    fill(&dev, "one/again");
    assert_eq!(dev.run(&["dev", "up", "--export", "one/again"]).code, 0);
    let to = uri(&dev, "one/again");
    let trimmed = said(request(&to, "discard 0 64M"));
    assert!(trimmed.contains("discard 67108864/67108864"), "the reserve serves trims: {trimmed}");
    let written = said(request(&to, "write -P 7 0 1M"));
    assert!(written.contains("wrote 1048576/1048576"), "trimmed space is there again: {written}");
    golden::matches("dev.destroy", &dev.json(&["dev", "destroy", "--yes"]));
}
