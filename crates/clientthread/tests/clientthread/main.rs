//! Handles with a cluster of processes: the example, and handles that are dropped.

use clientthread::{Access, Cluster, Queue, STOP_MAX, Settings};
use device::Request;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::clock;
use testkit::cluster::{self, Shape};
use types::IoBuf;
use types::codes;

/// Longest wait for a close in the background. The lease of a client that died would last for 10 s.
const CLOSE_MAX: Duration = Duration::from_secs(6);

#[test]
fn a_cluster_of_processes_serves_programs_with_threads() {
    let shape = Shape { pgs: 4, device_bytes: 1 << 30, log_bytes: 64 << 20, ..Shape::default() };
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let processes = cluster::Cluster::up(base, "clientthread", shape).expect("a cluster");
    processes.volume("dropped", 64 << 20).expect("a volume");
    processes.volume("given-up", 64 << 20).expect("a volume");
    let meta = processes.basalt.metas()[0].to_string();
    the_example_runs(&meta);
    dropped_handles_are_closed(&meta);
    assert!(processes.panics().is_empty(), "{:?}", processes.panics());
}

fn the_example_runs(meta: &str) {
    let here = std::env::current_exe().expect("a path");
    let built = here.parent().and_then(Path::parent).expect("a folder of the profile").join("examples/threads");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["examples", "src"].map(|folder| std::fs::read_dir(package.join(folder)).expect("a folder"));
    let files = sources.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let newest = files.map(|file| changed(&file)).max().expect("a source");
    assert!(changed(&built) >= newest, "{built:?} is missing or stale: `cargo test -p clientthread` builds it");
    let out = Command::new("timeout").arg("60").arg(built).arg(meta).output().expect("it runs");
    let (text, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{error}");
    let lines = ["main/threads has 67108864 bytes", "256 blocks are written", "the snapshot has 1, the volume 0"];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

/// Counts the I/O threads of this process.
fn io_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.trim() == "basalt-io").count()
}

fn dropped_handles_are_closed(meta: &str) {
    let connect = || Cluster::<u64>::connect(Settings::new(vec![meta.to_owned()])).expect("a metadata server");
    let cluster = connect();
    let volume = cluster.open("main/dropped", Access::Write).expect("a volume");
    volume.call(Request::Write { offset: 0, buf: IoBuf::copy_of(&[9; 512]), fua: false }).expect("written");
    // An open whose program does not wait for it ends in the same way as a volume that is dropped.
    drop(cluster.begin_open("main/dropped", Access::Read).expect("it is sent"));
    drop((cluster, volume));
    let (other, begun) = (connect(), clock::now());
    let again = loop {
        match other.open("main/dropped", Access::Write) {
            Ok(volume) => break volume,
            Err(held) => assert!(held.code == codes::VOLUME_HELD && begun.elapsed() < CLOSE_MAX, "{held}"),
        }
    };
    assert_eq!(again.call(Request::Read { offset: 0, len: 512 }).expect("read")[0][..], [9; 512]);
    assert_eq!(other.stop().expect_err("a volume is open").errno, libc::EBUSY);
    again.close().expect("closed");
    assert_eq!(again.close().expect_err("twice").errno, libc::EBADF);
    other.stop().expect("idle");
    other.join();
    assert_eq!(other.begin_stop().wait(), Ok(()), "it has ended");
    a_stop_closes_what_is_left(&connect(), &connect());
    while io_threads() > 0 {
        assert!(begun.elapsed() < 2 * CLOSE_MAX, "the thread of the first handle goes on");
        clock::pause(Duration::from_millis(10));
    }
}

/// Stops a handle with a volume that is open, one that was dropped, and an open that was given up.
fn a_stop_closes_what_is_left(cluster: &Cluster, other: &Cluster) {
    let volume = cluster.open("main/dropped", Access::Write).expect("a volume");
    drop(cluster.open("main/dropped", Access::Read).expect("a reader"));
    drop(cluster.begin_open("main/given-up", Access::Write).expect("it is sent"));
    let queue = Queue::new(2).expect("a queue");
    volume.submit(&queue, 7, Request::Flush).expect("room");
    let stop = cluster.begin_stop();
    assert_eq!(volume.submit(&queue, 8, Request::Flush).expect_err("it stops").errno, libc::ESHUTDOWN);
    assert_eq!(cluster.open("main/dropped", Access::Read).expect_err("it stops").errno, libc::ESHUTDOWN);
    assert_eq!(stop.wait_for(STOP_MAX), Some(Ok(())));
    cluster.join();
    assert_eq!(queue.take(1, 1, None).expect("a completion").len(), 1);
    assert_eq!(volume.close().expect_err("the thread has ended").errno, libc::ESHUTDOWN);
    // Leases would last for 10 s.
    for name in ["main/dropped", "main/given-up"] {
        other.open(name, Access::Write).expect("no holder").close().expect("closed");
    }
    other.stop().expect("idle");
    other.join();
}
