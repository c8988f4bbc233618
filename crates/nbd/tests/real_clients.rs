//! Real NBD clients against the server over the real env and a device in memory: nbdinfo, nbdcopy, nbdsh,
//! qemu-img, qemu-io, fio. A tool that is not installed is skipped, reported and counted.
//!
//! `BASALT_NBD_SERVE=seconds cargo test -p nbd --test real_clients -- --nocapture serve` keeps a server
//! running for clients by hand and prints its URI.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of processes against the real clock")]

use device::{BlockDevice, Ram};
use env::{Env, Event, NetAddr, real::RealConfig, real::RealEnv};
use nbd::{NbdConfig, NbdServer};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::Time;

const OWNER: u8 = 4;
const DEVICE_LEN: u64 = 256 << 20;
static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// A server on a thread of its own.
struct Served {
    dir: PathBuf,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    waker: env::Waker,
    thread: Option<JoinHandle<nbd::NbdStats>>,
}

impl Served {
    fn start(name: &str) -> Served {
        let dir = std::env::temp_dir().join(format!("basalt-nbd-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary folder");
        let socket = dir.join("nbd.sock");
        let stop = Arc::new(AtomicBool::new(false));
        let (started, start) = std::sync::mpsc::channel();
        let (at, stopped) = (socket.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut env = RealEnv::new(RealConfig::default()).expect("io_uring");
            let mut server = NbdServer::new(OWNER, NbdConfig::default());
            let (listener, _) = env.listen(&NetAddr::Unix(at)).expect("listen");
            server.listen(listener);
            started.send(env.waker()).expect("the test waits");
            serve(&mut env, &mut server, &stopped);
            server.stats()
        });
        let waker = start.recv().expect("the server started");
        Served { dir, socket, stop, waker, thread: Some(thread) }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn stop(mut self) -> nbd::NbdStats {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        let stats = self.thread.take().expect("stopped once").join().expect("the server did not panic");
        std::fs::remove_dir_all(&self.dir).expect("remove the temporary folder");
        stats
    }
}

/// Runs the loop of a process with nothing but the server.
fn serve(env: &mut RealEnv, server: &mut NbdServer, stop: &AtomicBool) {
    let mut ram = Ram::new("pool/volume", DEVICE_LEN);
    let (mut ops, mut events, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let deadline = server.next_deadline().min(ram.next_deadline());
        env.turn(&mut ops, &mut events, deadline).expect("the ring turns");
        let now: Time = env.now();
        for event in events.drain(..) {
            if !matches!(event, Event::Woken) {
                server.handle_event(now, event, &mut ram, &mut ops);
            }
        }
        ram.completions(&mut completions);
        server.handle_completions(&mut completions);
        server.end_turn(now, &mut ram, &mut ops);
    }
}

fn installed(tool: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(tool).exists()));
    if !found {
        skip(&format!("{tool} is not installed"));
    }
    found
}

/// Prints that a test was skipped, and counts it.
fn skip(why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::SeqCst) + 1;
    println!("skipped: {why} (skip {count} of this run)");
}

/// Runs a client to its end, with a time limit, and returns its output.
fn run(tool: &str, args: &[&str]) -> Output {
    let begun = Instant::now();
    let output = Command::new("timeout").arg("20").arg(tool).args(args).output().expect("timeout(1) is there");
    println!("{:>6} ms  {tool} {}", begun.elapsed().as_millis(), args.join(" "));
    output
}

fn succeed(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Creates a file with data, holes and data, of `len` bytes.
fn image(path: &str, len: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).expect("create");
    file.set_len(len).expect("size");
    for (offset, seed) in [(0, 1u8), (len / 3 / 4096 * 4096, 2), (len - 300_000, 3)] {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
        file.write_all_at(&bytes, offset).expect("write");
    }
}

#[test]
fn nbdinfo_sees_the_export_and_its_holes() {
    if !installed("nbdinfo") {
        return;
    }
    let served = Served::start("info");
    let text = succeed("nbdinfo", &[&served.uri("pool/volume")]);
    for line in [
        "export-size: 268435456",
        "base:allocation",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
        "can_multi_conn: true",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_fast_zero: true",
        "can_df: true",
        "is_read_only: false",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(succeed("nbdinfo", &["--list", &served.uri("")]).contains("export=\"pool/volume\""));
    assert_eq!(succeed("nbdinfo", &["--size", &served.uri("")]).trim(), "268435456");
    let map = succeed("nbdinfo", &["--map", &served.uri("")]);
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "268435456", "3", "hole,zero"], "{map}");
    let refused = run("nbdinfo", &[&served.uri("other/one")]);
    assert!(!refused.status.success());
    served.stop();
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    if !installed("nbdcopy") {
        return;
    }
    let served = Served::start("copy");
    let (from, back) = (served.file("from"), served.file("back"));
    image(&from, DEVICE_LEN);
    succeed("nbdcopy", &["--flush", &from, &served.uri("")]);
    succeed("nbdcopy", &[&served.uri("pool/volume"), &back]);
    assert!(std::fs::read(&from).expect("read") == std::fs::read(&back).expect("read"), "the copy differs");
    let stats = served.stop();
    assert_eq!((stats.errors, stats.violations), (0, 0), "{stats:?}");
    assert!(stats.accepted > 2, "nbdcopy uses several connections: {stats:?}");
}

#[test]
fn qemu_converts_compares_and_verifies_patterns() {
    if !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let served = Served::start("qemu");
    let (from, uri) = (served.file("from.raw"), served.uri("pool/volume"));
    image(&from, DEVICE_LEN);
    assert!(succeed("qemu-img", &["info", "-f", "raw", &uri]).contains("256 MiB"));
    succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &from, &uri]);
    assert!(succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", &from, &uri]).contains("identical"));
    assert!(succeed("qemu-img", &["map", "-f", "raw", "--output=json", &uri]).contains("\"data\": true"));
    let text = succeed(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-t",
            "none",
            "-c",
            "write -P 7 1M 3M",
            "-c",
            "write -f -P 8 2M 512",
            "-c",
            "read -P 7 1M 1M",
            "-c",
            "read -P 8 2M 512",
            "-c",
            "write -z 1M 64k",
            "-c",
            "read -P 0 1M 64k",
            "-c",
            "discard 4M 1M",
            "-c",
            "aio_write -P 9 5M 32M",
            "-c",
            "aio_flush",
            "-c",
            "read -P 9 36M 1M",
            "-c",
            "flush",
            &uri,
        ],
    );
    assert!(!text.contains("failed"), "{text}");
    let stats = served.stop();
    assert_eq!((stats.errors, stats.violations), (0, 0), "{stats:?}");
}

#[test]
fn fio_verifies_its_checksums() {
    if !installed("fio") {
        return;
    }
    let served = Served::start("fio");
    let uri = format!("--uri={}", served.uri(""));
    let output = run(
        "fio",
        &[
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--iodepth=32",
            "--size=64m",
            "--io_size=32m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--randseed=3",
            "--direct=1",
        ],
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("engine nbd not loadable") {
        skip("this fio has no nbd engine");
    } else {
        assert!(output.status.success() && text.contains("err= 0"), "{text}");
    }
    let stats = served.stop();
    assert_eq!((stats.errors, stats.violations), (0, 0), "{stats:?}");
}

/// Requests that a correct client never sends, and their expected errors.
const ILLEGAL: &str = r#"
import errno, nbd, sys
uri = sys.argv[1]
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.set_strict_mode(0)
h.connect_uri(uri)
size = h.get_size()
def fails(want, f, *args):
    try:
        f(*args)
    except nbd.Error as e:
        assert e.errnum == want, (f, args, e.errnum, want)
    else:
        raise AssertionError((f, args, "passed"))
extents = lambda *_: 0
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.EINVAL, h.pread, 100, 0)
fails(errno.EINVAL, h.pread, 512, 1)
fails(errno.EINVAL, h.pread, 40 << 20, 0)
fails(errno.ENOSPC, h.pwrite, b"x" * 1024, size - 512)
fails(errno.EINVAL, h.pwrite, b"x" * 100, 0)
fails(errno.EINVAL, h.pwrite, b"x" * (40 << 20), 0)
fails(errno.EINVAL, h.pwrite, b"x" * 512, 0, nbd.CMD_FLAG_DF)
fails(errno.EINVAL, h.trim, 1024, size - 512)
fails(errno.ENOSPC, h.zero, 1024, size - 512)
fails(errno.EINVAL, h.cache, 512, 0)
fails(errno.EINVAL, h.block_status, 1024, size - 512, extents)
h.pwrite(b"ok" * 256, 0, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(512, 0) == b"ok" * 256
h.trim(size, 0)
assert h.pread(512, 0) == bytes(512)
h.shutdown()
print("all refused, none lost")
"#;

#[test]
fn libnbd_gets_the_protocols_errors_for_illegal_requests() {
    // If it is installed, it must work: only its absence is a reason to skip (`make test` installs it).
    if !Path::new("/usr/lib/python3/dist-packages/nbd.py").exists() {
        skip("python3-libnbd is not installed");
        return;
    }
    let served = Served::start("illegal");
    let text = succeed("/usr/bin/python3", &["-c", ILLEGAL, &served.uri("")]);
    assert_eq!(text.trim(), "all refused, none lost");
    let stats = served.stop();
    assert_eq!((stats.errors, stats.violations), (12, 0), "{stats:?}");
}

/// Starts and stops a server; with the variable set it keeps serving clients by hand.
#[test]
fn serve_comes_up_and_goes_down() {
    let served = Served::start("serve");
    if let Some(secs) = std::env::var("BASALT_NBD_SERVE").ok().and_then(|s| s.parse().ok()) {
        println!("{}", served.uri("pool/volume"));
        std::thread::sleep(Duration::from_secs(secs));
    }
    assert_eq!(served.stop().violations, 0);
}
