//! Errors at a terminal: each is one sentence with a code, and the next command.

use crate::dev::{Dev, free_ports};
use std::io::{BufRead, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Errors about records of meta.
pub fn records(dev: &Dev) {
    dev.run(&["volume", "info", "main/nope"]).says("BSLT-2011", "basalt volume ls");
    dev.run(&["nbd", "main/nope", "--socket", &dev.file("x.sock")]).says("BSLT-2011", "basalt volume ls");
    dev.run(&["bench", "main/nope"]).says("BSLT-2011", "basalt volume ls");
    dev.run(&["volume", "create", "nopool/x", "1GiB"]).says("BSLT-2010", "basalt pool ls");
    dev.run(&["volume", "create", "main/demo", "1GiB"]).says("BSLT-2013", "another name");
    dev.run(&["volume", "create", "x", "1GiB"]).says("BSLT-2014", "pool/volume");
    dev.run(&["volume", "create", "main/small", "512"]).says("BSLT-2015", "1MiB");
    dev.run(&["volume", "create", "main/wide", "1GiB", "--stripe-count", "64"]).says("BSLT-2049", "basalt pool ls");
    let huge = dev.run(&["volume", "create", "main/huge", "70000TiB"]);
    assert!(huge.err.contains("a volume of 70000TiB cannot be created"), "{huge:?}");
    dev.run(&["pool", "create", "four", "--replicas", "4"]).says("BSLT-2016", "1, 2, 3 or 5");
    dev.run(&["pool", "create", "five", "--replicas", "5", "--domain", "osd"]).says("BSLT-2017", "basalt osd ls");
    dev.run(&["pool", "rm", "main"]).says("BSLT-2018", "basalt volume rm");
    dev.run(&["pg", "verify", "9.1"]).says_usage("BSLT-1001", "basalt pg ls");
    dev.run(&["dev", "kill", "9"]).says("BSLT-1007", "basalt dev status");
    dev.run(&["dev", "destroy"]).says_usage("BSLT-1001", "--yes");
}

/// Errors about unsuitable devices and taken ports.
pub fn devices(dev: &Dev) {
    let file = |name: &str, bytes: u64, first: &[u8]| {
        let path = dev.file(name);
        std::fs::write(&path, first).expect("a file");
        std::fs::File::options().write(true).open(&path).expect("a file").set_len(bytes).expect("sparse");
        path
    };
    let format = |device: &str| dev.run(&["osd", "format", "--device", device, "--log-size", "64MiB"]);
    let serve = |device: &str, listen: &str| dev.run(&["osd", "run", "--device", device, "--listen", listen]);
    let blank = file("blank", 1 << 30, b"");
    serve(&blank, "127.0.0.1:0").says("BSLT-3004", "basalt osd format");
    let foreign = file("foreign", 1 << 30, b"a file system of somebody");
    format(&foreign).says("BSLT-3003", "--force");
    assert!(format(&foreign).err.contains("carries other data in its first MiB"));
    let last = file("last", 1 << 30, b"");
    let end = std::fs::File::options().write(true).open(&last).expect("a file");
    end.write_all_at(b"a file system of somebody", (1 << 30) - 512).expect("it is ours");
    let refused = format(&last);
    refused.says("BSLT-3003", "--force");
    assert!(refused.err.contains("carries other data in its last MiB"), "{refused:?}");
    let stranger = a_device_of_another_cluster(&file("stranger", 1 << 30, b""));
    let refused = format(&stranger);
    refused.says("BSLT-3005", "--force");
    let whose = format!("{stranger} holds osd.1 of another cluster, 5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a");
    assert!(refused.err.contains(&whose), "{refused:?}");
    of_another_version(&stranger, &file("older", 1 << 30, b""), layout::superblock::FORMAT_VERSION - 1);
    let refused = serve(&dev.file("older"), "127.0.0.1:0");
    refused.says("BSLT-3008", "--force");
    assert!(refused.err.contains("an older build") && !refused.err.contains("damaged"), "{refused:?}");
    let refused = serve(&stranger, "127.0.0.1:0");
    refused.says("BSLT-2026", "give it the metas of its own");
    format(&file("small", 20 << 20, b"")).says("BSLT-3006", "larger device");
    let osds = dev.json(&["osd", "ls"])["osds"].as_array().expect("a list").len();
    assert_eq!(osds, 4, "three of the cluster and one that was formatted: a refused device leaves no OSD behind");
    format("/nonexistent/device").says("BSLT-1006", "ls -l");
    dev.run(&["osd", "format", "--device", "/nonexistent/device", "--size", "1GiB"]).says("BSLT-1006", "ls -ld /");
    let other = dev.run(&["osd", "format", "--device", &blank, "--size", "2GiB"]);
    assert!(other.err.contains("has 1 GiB, and --size says 2 GiB"), "{other:?}");
    if std::path::Path::new("/dev/shm").is_dir() {
        let path = format!("/dev/shm/basalt-cli.{}", std::process::id());
        std::fs::File::create(&path).and_then(|f| f.set_len(1 << 30)).expect("a file on tmpfs");
        let refused = format(&path);
        std::fs::remove_file(&path).expect("it is ours");
        refused.says("BSLT-3001", "ext4");
    }
    let used = dev.dir().join("osd.1/device").to_string_lossy().into_owned();
    serve(&used, "127.0.0.1:0").says("BSLT-3002", "fuser");
    let formatted = dev.file("device");
    serve(&formatted, &dev.meta).says("BSLT-6001", "another address");
    dev.run(&["meta", "--dir", &dev.file("meta"), "--listen", &dev.meta]).says("BSLT-1006", "--listen");
    dev.run(&["nbd", "main/demo", "--read-only", "--listen", &dev.meta]).says("BSLT-6001", "another address");
}

fn a_device_of_another_cluster(path: &str) -> String {
    let (cluster, osd, uuid) = (types::ClusterId([0x5a; 16]), types::OsdId(1), types::OsdUuid([7; 16]));
    let params = engine::FormatParams {
        cluster,
        osd,
        uuid,
        log_bytes: 64 << 20,
        segment_bytes: 0,
        force: false,
        prezero: false,
        unix_s: 0,
        part: engine::DevicePart::Whole,
    };
    let (_, writes) = engine::format_image(1 << 30, &params, engine::SaltKey::new([1; 16])).expect("it fits");
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    for (offset, page) in writes {
        file.write_all_at(&page, offset).expect("it is ours");
    }
    path.to_owned()
}

/// Copies a device as a build with this format version would have written it.
fn of_another_version(from: &str, to: &str, format_version: u32) {
    let device = std::fs::File::open(from).expect("it is ours");
    let len = device.metadata().expect("it is ours").len();
    let file = std::fs::File::options().write(true).open(to).expect("a file");
    for offset in layout::superblock::Superblock::offsets(len) {
        let mut page = [0; layout::superblock::SUPERBLOCK_LEN];
        device.read_exact_at(&mut page, offset).expect("a superblock");
        let superblock = layout::superblock::Superblock::decode(&page).expect("it is whole");
        let other = layout::superblock::Superblock { format_version, ..superblock };
        file.write_all_at(&other.encode(), offset).expect("it is ours");
    }
}

/// Whether the server at the socket greets: it does so once its volume is open, and listens before.
pub fn exported(socket: &str) -> bool {
    let greeting = || -> std::io::Result<[u8; 8]> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut word = [0; 8];
        stream.read_exact(&mut word)?;
        Ok(word)
    };
    greeting().is_ok_and(|word| &word == b"NBDMAGIC")
}

pub fn second_opener_is_told_the_holder_and_may_steal_the_volume(dev: &Dev) {
    let (first, second) = (dev.file("first.sock"), dev.file("second.sock"));
    assert_eq!(dev.run(&["volume", "create", "main/held", "64MiB"]).code, 0);
    let mut holder = dev.spawn(&["nbd", "main/held", "--socket", &first]);
    dev.wait("the first export", || exported(&first));
    let refused = dev.run(&["nbd", "main/held", "--socket", &second]);
    refused.says("BSLT-2020", "--steal");
    let removed = dev.run(&["volume", "rm", "main/held"]);
    removed.says("BSLT-2020", "give --force");
    assert!(!removed.err.contains("--steal"), "it has no such flag: {removed:?}");
    let measured = dev.run(&["bench", "main/held", "--op", "randread"]);
    assert_eq!(measured.code, 0, "reads need no holder: {measured:?}");
    let measured = dev.run(&["bench", "main/held", "--op", "randwrite"]);
    measured.says("BSLT-2020", "volume create main/bench");
    assert!(!measured.err.contains("--steal"), "{measured:?}");
    for part in [&format!("pid {}", holder.id()), "127.0.0.1:", "since "] {
        assert!(refused.err.contains(part), "holder, address and age: {refused:?}");
    }
    let mut stealer = dev.spawn(&["nbd", "main/held", "--socket", &second, "--steal"]);
    dev.wait("the stealing export", || exported(&second));
    dev.wait("the end of the fenced holder", || holder.try_wait().is_ok_and(|ended| ended.is_some()));
    let mut said = String::new();
    holder.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(said.contains("\"code\":\"BSLT-5002\"") && said.contains("\"next\":"), "{said}");
    assert_eq!(holder.wait().expect("it ended").code(), Some(1));
    stealer.kill().expect("it is ours");
    stealer.wait().expect("it ends");
}

/// A listing repeats until it is interrupted; when its first look fails, the command does.
pub fn a_listing_is_shown_again_and_again(dev: &Dev) {
    let mut watch = dev.spawn_piped(&["osd", "ls", "--watch", "1", "--json"]);
    let lines = std::io::BufReader::new(watch.stdout.take().expect("piped")).lines();
    let shown = lines.map_while(Result::ok).filter(|line| line.contains("basalt.osd.ls/1")).take(3).count();
    assert_eq!(shown, 3);
    watch.kill().expect("it still runs");
    watch.wait().expect("it ends");
    dev.run(&["--meta", "127.0.0.1:1", "osd", "ls", "--watch"]).says("BSLT-2001", "a meta runs");
}

pub fn up_again_changes_nothing(dev: &Dev) {
    let pids = || {
        let status = dev.json(&["dev", "status"]);
        let daemons = status["daemons"].as_array().expect("a list").clone();
        daemons.into_iter().map(|d| (d["name"].to_string(), d["pid"].to_string())).collect::<Vec<_>>()
    };
    let before = pids();
    assert_eq!(dev.run(&["dev", "up", "--export", "main/demo"]).code, 0);
    assert_eq!(pids(), before);
    assert!(before.iter().all(|(_, pid)| pid != "null"), "{before:?}");
    for (name, pid) in before {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let session = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(3)).expect("a session");
        assert_eq!(session, pid, "{name} has a session of its own, so the end of a terminal is not its end");
    }
    let osd = |n: usize| dev.json(&["dev", "status"])["daemons"][n]["pid"].to_string();
    let first = osd(1);
    assert_eq!(dev.run(&["dev", "start", "1"]).code, 0);
    assert_eq!(osd(1), first, "it runs");
    assert_eq!(dev.run(&["dev", "start", "1", "--after-poison"]).code, 0);
    assert!(osd(1) != first && osd(1) != "null", "a stopped store needs a new process");
    dev.wait("all replicas", || is_whole(dev));
}

fn is_whole(dev: &Dev) -> bool {
    let status = dev.json(&["status"]);
    status["pgs_active"] == status["pgs"] && status["pgs_degraded"] == 0
}

pub fn bench_writes_over_no_data_unasked(dev: &Dev) {
    assert_eq!(dev.run(&["volume", "create", "main/over", "64MiB"]).code, 0);
    let bench = |more: &[&str]| dev.run(&[&["bench", "main/over", "--seconds", "1", "--depth", "4"], more].concat());
    assert_eq!(bench(&["--op", "randwrite"]).code, 0, "an empty volume may be written to");
    let refused = bench(&["--op", "randwrite"]);
    refused.says("BSLT-5008", "--overwrite");
    let holder = dev.json(&["volume", "info", "main/over"])["holder"]["alive"].as_bool();
    assert_ne!(holder, Some(true), "a refusal leaves no holder behind");
    let ran = bench(&[]);
    assert!(ran.code == 0 && ran.out.starts_with("read"), "the default only reads: {ran:?}");
    let bounded = dev.json(&["bench", "main/over", "--seconds", "100", "--ops", "200"]);
    assert_eq!(bounded["report"]["reads"]["ops"], 200, "{bounded}");
    let ran = bench(&["--op", "write", "--overwrite"]);
    assert!(ran.code == 0 && ran.out.contains("was overwritten"), "{ran:?}");
    let mut long = dev.spawn(&["bench", "main/over", "--op", "randwrite", "--overwrite", "--seconds", "100", "--json"]);
    let held = || dev.json(&["volume", "info", "main/over"])["holder"]["alive"].as_bool() == Some(true);
    // The client learns of its hold a moment after meta has recorded it.
    dev.wait("the run to begin", || held() && held() && held());
    let pid = long.id().to_string();
    dev.wait("the run to end after SIGINT", || {
        let _ = std::process::Command::new("kill").args(["-INT", &pid]).stderr(std::process::Stdio::null()).status();
        long.try_wait().is_ok_and(|ended| ended.is_some())
    });
    assert_eq!(long.wait().expect("it ended").code(), Some(130));
    let again = bench(&["--op", "randwrite", "--overwrite"]);
    assert_eq!(again.code, 0, "an interrupted run leaves no holder behind: {again:?}");
    assert_eq!(dev.run(&["volume", "rm", "main/over", "--now"]).code, 0);
}

pub fn exports_come_back_and_share_no_socket(dev: &Dev) {
    assert_eq!(dev.run(&["pool", "create", "main-a", "--pgs", "4", "--domain", "osd"]).code, 0);
    dev.wait("the pool", || is_whole(dev));
    let up = |more: &[&str]| dev.run(&[&["dev", "up"], more].concat());
    assert_eq!(up(&["--export", "main-a/b", "--size", "8MiB"]).code, 0);
    assert_eq!(up(&["--export", "main/a-b", "--size", "8MiB"]).code, 0);
    let socket = |volume: &str| dev.run(&["dev", "socket", volume]).out.trim().to_owned();
    let (first, second) = (socket("main-a/b"), socket("main/a-b"));
    assert!(first != second && exported(&first) && exported(&second), "{first} {second}");
    dev.run(&["dev", "socket", "main/nope"]).says("BSLT-1014", "dev up --export main/nope");
    up(&["--osds", "5"]).says_usage("BSLT-1001", "--cluster");
    up(&["--device-size", "2GiB"]).says_usage("BSLT-1001", "--cluster");
    up(&["--export", "main/a-b", "--size", "9MiB"]).says_usage("BSLT-1001", "dev up");
    let held = free_ports();
    assert_eq!(dev.run(&["dev", "down"]).code, 0);
    dev.run(&["status"]).says("BSLT-2001", "basalt dev up");
    let taken = std::net::TcpListener::bind(&dev.meta).expect("the port of a stopped meta");
    let refused = up(&[]);
    refused.says("BSLT-1005", "ss -ltnp");
    assert!(refused.err.contains("meta.0"), "{refused:?}");
    drop(taken);
    let ran = up(&[]);
    assert!(ran.code == 0 && !ran.out.contains("volume create"), "{ran:?}");
    drop(held);
    assert!(exported(&first) && exported(&second), "exports are restarted");
    for volume in ["main-a/b", "main/a-b"] {
        let removed = dev.run(&["volume", "rm", volume, "--force", "--now"]);
        assert_eq!(removed.code, 0, "{removed:?}");
    }
    dev.wait("all replicas", || is_whole(dev));
}

/// Returns the leaders of all PGs of the pool, as meta sees them.
fn leaders(dev: &Dev) -> Vec<u64> {
    let pgs = dev.json(&["pg", "ls", "--pool", "main"]);
    pgs["pgs"].as_array().expect("a list").iter().filter_map(|pg| pg["leader"].as_u64()).collect()
}

pub fn a_gentle_stop_hands_leaders_over(dev: &Dev) {
    dev.wait("osd.1 to lead something", || leaders(dev).contains(&1));
    let log = dev.dir().join("osd.1/log.txt");
    assert_eq!(dev.run(&["dev", "stop", "1"]).code, 0);
    let text = std::fs::read_to_string(log).expect("a log");
    let handed = text.lines().rfind(|line| line.contains("transferring the leadership")).expect("it says so");
    assert!(!handed.contains("\"pgs\":0"), "{handed}");
    dev.wait("other leaders", || {
        let now = leaders(dev);
        now.len() == 32 && !now.contains(&1)
    });
}

/// osd.1 is down; without osd.2 no PG has a majority.
fn bench_and_open_end_without_a_majority(dev: &Dev) {
    for volume in ["main/hung", "main/late"] {
        assert_eq!(dev.run(&["volume", "create", volume, "64MiB"]).code, 0);
        let write = ["bench", volume, "--op", "randwrite", "--seconds", "1"];
        assert_eq!(dev.run(&write).code, 0, "a segment is allocated");
    }
    let bench = ["bench", "main/hung", "--op", "randwrite", "--overwrite", "--seconds", "8", "--json"];
    let mut bench = dev.spawn_piped(&bench);
    let top = || dev.json(&["top"])["osds"].as_array().expect("a list").clone();
    dev.wait("the run to write", || top().iter().any(|osd| osd["write"]["iops"].as_f64() > Some(0.0)));
    assert_eq!(dev.run(&["dev", "kill", "2"]).code, 0);
    let late = dev.run(&["nbd", "main/late", "--socket", &dev.file("late.sock")]);
    late.says("BSLT-5007", "basalt health detail");
    assert!(late.err.contains("the metadata server answers"), "{late:?}");
    dev.wait_for("the end of the run", Duration::from_secs(60), || bench.try_wait().expect("it is ours").is_some());
    let mut said = String::new();
    bench.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(bench.wait().expect("it ended").code(), Some(1), "{said}");
    assert!(said.contains("basalt.bench/1") && said.contains("\"code\": \"BSLT-5007\""), "{said}");
    assert_eq!(dev.run(&["dev", "start", "2"]).code, 0);
    // Two of three OSDs must remember a change.
    dev.wait("osd.2", || dev.run(&["health"]).code == 3);
    for volume in ["main/hung", "main/late"] {
        assert_eq!(dev.run(&["volume", "rm", volume, "--force", "--now"]).code, 0);
    }
}

/// osd.1 is still down from the previous step.
pub fn degraded_has_an_exit_code_of_its_own(dev: &Dev) {
    let degraded = || dev.json(&["status"])["pgs_degraded"].as_u64().expect("a number");
    dev.wait("meta to notice", || degraded() > 0);
    assert_eq!(dev.run(&["status"]).code, 3);
    dev.wait("osd.1 to be down", || dev.run(&["health"]).out.contains("OSD_DOWN"));
    let (health, detail) = (dev.run(&["health"]), dev.run(&["health", "detail"]));
    assert_eq!((health.code, detail.code), (3, 3), "{health:?} {detail:?}");
    assert!(health.out.contains("PG_DEGRADED") && health.out.contains(" PGs are degraded (for "), "{health:?}");
    assert!(dev.run(&["health", "detail"]).out.contains("    osd.1 on dev1 is down"), "{detail:?}");
    assert!(!detail.out.contains("OSD_UNREACHABLE"), "a dead OSD is no matter of the network: {detail:?}");
    for code in ["OSD_DOWN", "PG_DEGRADED"] {
        assert_eq!(dev.run(&["health", "mute", code]).code, 0);
    }
    let muted = dev.run(&["status"]);
    assert!(muted.code == 0 && muted.out.contains(", muted)"), "{muted:?}");
    for code in ["OSD_DOWN", "PG_DEGRADED"] {
        assert_eq!(dev.run(&["health", "unmute", code]).code, 0);
    }
    dev.run(&["health", "mute", "OSD_DWON"]).says("BSLT-2040", "OSD_DOWN");
    let events = dev.run(&["events", "--since", "10m"]).out;
    for part in
        ["osd.1 on dev1", "health.muted", "volume.stolen", "force-attached volume main/held and fenced", "pg.state"]
    {
        assert!(events.contains(part), "no {part} in {events}");
    }
    let verify = dev.run(&["pg", "verify", "--tables"]);
    assert_eq!(verify.code, 3, "{verify:?}");
    let (verdict, rest) = verify.out.split_once('\n').expect("lines");
    assert!(verdict.contains("no block was read") && verdict.contains("could not be queried"), "{verify:?}");
    let of_osd = rest.lines().filter(|line| line.starts_with("osd.1 was not compared in ")).count();
    assert_eq!((of_osd, rest.lines().count()), (1, 1), "one cause, one line: {verify:?}");
    bench_and_open_end_without_a_majority(dev);
    assert_eq!(dev.run(&["dev", "start", "1"]).code, 0);
    dev.wait("all replicas", || degraded() == 0);
    // A replica that lacks trimmed entries is not degraded before its leader has found that out.
    dev.wait("all replicas to be compared", || {
        let verify = dev.run(&["pg", "verify", "--deep"]);
        assert_ne!(verify.code, 1, "replicas differ: {verify:?}");
        verify.code == 0
    });
}
