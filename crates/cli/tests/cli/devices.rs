//! The life cycle of an OSD and its device: formatted once, copied, restored, removed.

use crate::bytes;
use crate::dev::Dev;
use layout::intent::{INTENT_AT, INTENT_LEN, Intent};
use layout::superblock::{DeviceIds, MARGIN, SUPERBLOCK_LEN, Superblock};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn osd_field(dev: &Dev, osd: u64, field: &str) -> String {
    let osds = dev.json(&["osd", "ls"]);
    let found = osds["osds"].as_array().expect("a list").iter().find(|o| o["osd"] == osd).cloned();
    found.unwrap_or_else(|| panic!("osd.{osd} is in {osds}"))[field].as_str().expect("a string").to_owned()
}

/// Whether every PG has all its replicas. OSDs that were formatted and never started may exist, too.
fn whole(dev: &Dev) -> bool {
    let pgs = dev.json(&["pg", "ls"]);
    pgs["pgs"].as_array().expect("a list").iter().all(|pg| pg["state"] == serde_json::json!(["active"]))
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("--sparse=always").args([from, to]).status().expect("cp runs");
    assert!(done.success());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn damage_superblocks(device: &str) {
    let file = std::fs::File::options().write(true).open(device).expect("it was made");
    let len = file.metadata().expect("it is there").len();
    for at in Superblock::offsets(len) {
        file.write_all_at(b"?", at + 100).expect("written");
    }
}

/// A format was interrupted after its last superblock: the next one only registers. A starting OSD completes the
/// format.
fn a_whole_device_is_registered_again_and_never_written_again(
    dev: &Dev,
    device: &str,
    id: u64,
    uuid: &str,
    format: &dyn Fn() -> crate::dev::Ran,
) {
    let file = std::fs::File::options().read(true).write(true).open(device).expect("it was made");
    let mut page = vec![0; SUPERBLOCK_LEN];
    file.read_exact_at(&mut page, 0).expect("a superblock");
    let DeviceIds { cluster, osd, uuid: made } = Superblock::decode(&page).expect("a superblock").ids();
    assert_eq!((u64::from(osd.0), made.to_string()), (id, uuid.to_owned()));
    let intent = Intent { cluster, osd, uuid: made }.encode();
    let last_page_of_the_log = MARGIN + (64 << 20) - SUPERBLOCK_LEN as u64;
    let is_begun = || {
        let mut page = vec![0; INTENT_LEN];
        file.read_exact_at(&mut page, INTENT_AT).expect("a page");
        Intent::decode(&page).is_some()
    };
    file.write_all_at(&intent, INTENT_AT).expect("written");
    file.write_all_at(b"an entry", last_page_of_the_log).expect("written");
    assert_eq!(format().code, 0);
    let mut entry = *b"........";
    file.read_exact_at(&mut entry, last_page_of_the_log).expect("read");
    assert_eq!((&entry, is_begun()), (b"an entry", false));
    assert_eq!(dev.json(&["osd", "ls"])["osds"].as_array().expect("a list").last().expect("it")["osd"], id);
    file.write_all_at(&[0; 8], last_page_of_the_log).expect("written");
    // The OSD starts although no meta answers.
    file.write_all_at(&intent, INTENT_AT).expect("written");
    let nowhere = ["--meta", "127.0.0.1:1", "osd", "run", "--device", device, "--listen", "127.0.0.1:0"];
    let mut alone = dev.spawn(&nowhere);
    dev.wait("the end of the format", || !is_begun());
    alone.kill().expect("it is ours");
    alone.wait().expect("it ends");
}

pub fn an_osd_is_never_erased_by_mistake(dev: &Dev) {
    let device = dev.file("life");
    let format = |more: &[&str]| {
        let args = ["osd", "format", "--device", &device, "--size", "512MiB", "--log-size", "64MiB"];
        dev.run(&[&args[..], more].concat())
    };
    assert_eq!(format(&[]).code, 0);
    assert_eq!(mode(Path::new(&device)), 0o600);
    let osds = || dev.json(&["osd", "ls"])["osds"].as_array().expect("a list").clone();
    let made = osds().last().expect("the new one").clone();
    let (id, uuid) = (made["osd"].as_u64().expect("a number"), made["uuid"].as_str().expect("a string").to_owned());
    assert_eq!(made["live"], "new");
    a_whole_device_is_registered_again_and_never_written_again(dev, &device, id, &uuid, &|| format(&[]));
    for more in [&[][..], &["--force"], &["--force", "--erase-osd", "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a"]] {
        let refused = format(more);
        refused.says("BSLT-3003", "basalt explain 3003");
        assert!(refused.err.contains(&format!("holds osd.{id} of this cluster")), "{refused:?}");
        assert!(!refused.err.contains("--force"), "nothing to paste: {refused:?}");
    }
    damage_superblocks(&device);
    for more in [&[][..], &["--force"]] {
        let refused = format(more);
        refused.says("BSLT-3003", "basalt explain 3003");
        assert!(refused.err.contains("its superblocks are damaged"), "{refused:?}");
    }
    assert_eq!(format(&["--force", "--erase-osd", &uuid]).code, 0);
    assert_eq!(dev.run(&["osd", "rm", &id.to_string()]).code, 0, "it never started");
    dev.run(&["osd", "rm", &id.to_string()]).says("BSLT-2024", "");
    let refused = dev.run(&["osd", "rm", "osd.1"]);
    refused.says("BSLT-2042", "osd drain");
    assert!(refused.err.contains("osd.1 holds"), "{refused:?}");
    let last = osds().last().expect("the second format").clone();
    assert_eq!(last["osd"].as_u64(), Some(id + 1), "an id is never used twice");
    assert_eq!(dev.run(&["osd", "rm", &format!("osd.{}", id + 1)]).code, 0);
    // No command erases an OSD with PGs.
    assert_eq!(dev.run(&["dev", "stop", "1"]).code, 0);
    let serving = dev.dir().join("osd.1/device").to_string_lossy().into_owned();
    let uuid = osd_field(dev, 1, "uuid");
    let refused = dev.run(&["osd", "format", "--device", &serving, "--force", "--erase-osd", &uuid]);
    refused.says("BSLT-3003", "PGs is never erased");
    assert_eq!(dev.run(&["dev", "start", "1"]).code, 0);
    assert_eq!(mode(&dev.dir().join("osd.1/device")), 0o600);
    assert_eq!(mode(&dev.dir().join("meta.0/meta.redb")), 0o600);
    assert_eq!((mode(&dev.dir().join("osd.1")), mode(&dev.dir().join("meta.0"))), (0o700, 0o700));
    let device = dev.file("tiny");
    let tiny = dev.run(&["osd", "format", "--device", &device, "--size", "512MiB", "--log-size", "1KiB"]);
    tiny.says("BSLT-3006", "use --log-size 16MiB or more");
    dev.wait("a healthy cluster", || whole(dev));
}

pub fn a_copy_of_a_running_device_is_refused_and_an_older_one_comes_back_by_its_peers(dev: &Dev) {
    let device = dev.dir().join("osd.2/device");
    let twin = dev.file("twin");
    copy(&device, Path::new(&twin));
    let addr = osd_field(dev, 2, "addr");
    let refused = dev.run(&["osd", "run", "--device", &twin, "--listen", "127.0.0.1:0"]);
    let told = |ran: &crate::dev::Ran, code: &str, what: &str| {
        assert!(ran.code == 1 && ran.err.contains(code) && ran.err.contains(what), "{ran:?}");
        assert!(!ran.err.contains("osd format"), "{ran:?}");
    };
    told(&refused, "BSLT-2025", "another process serves osd.2 from");
    assert_eq!((osd_field(dev, 2, "live"), osd_field(dev, 2, "addr")), ("up".to_owned(), addr.clone()));
    std::fs::remove_file(&twin).expect("it is ours");
    // The device goes back in time while its OSD is stopped.
    let write = |volume: &str| {
        assert_eq!(dev.run(&["volume", "create", volume, "64MiB"]).code, 0);
        assert_eq!(dev.run(&["bench", volume, "--op", "randwrite", "--seconds", "1"]).code, 0);
    };
    write("main/before");
    assert_eq!(dev.run(&["dev", "stop", "2"]).code, 0);
    let older = dev.file("older");
    copy(&device, Path::new(&older));
    assert_eq!(dev.run(&["dev", "start", "2"]).code, 0);
    write("main/after");
    let volumes = ["main/before", "main/after"];
    let written = volumes.map(|volume| bytes::of(dev, volume));
    assert!(written.iter().all(|bytes| bytes.iter().any(|byte| *byte != 0)), "there is something to lose");
    assert_eq!(dev.run(&["dev", "stop", "2"]).code, 0);
    std::fs::rename(&older, &device).expect("it is ours");
    dev.wait("the word of leaders that it is gone", || !whole(dev));
    assert_eq!(dev.run(&["dev", "start", "2"]).code, 0);
    dev.wait_for("new replicas in the places of those that have failed", Duration::from_secs(90), || whole(dev));
    let events = dev.run(&["events"]);
    assert!(events.out.contains("the device of osd.2 is older than its last report"), "{events:?}");
    // An ordinary start follows.
    assert_eq!(dev.run(&["dev", "stop", "2"]).code, 0);
    assert_eq!(dev.run(&["dev", "start", "2"]).code, 0);
    dev.wait("a healthy cluster", || whole(dev));
    dev.wait("a comparison of all replicas", || {
        let verified = dev.run(&["pg", "verify", "--deep"]);
        assert_ne!(verified.code, 1, "replicas differ: {verified:?}");
        verified.code == 0
    });
    for (volume, written) in volumes.into_iter().zip(written) {
        assert!(bytes::of(dev, volume) == written, "{volume} is not what was acknowledged");
        assert_eq!(dev.run(&["volume", "rm", volume, "--now"]).code, 0);
    }
}
