//! The C library as a C program uses it: its header, its example, and its functions against a real cluster.
//!
//! One cluster of processes serves all steps, in order. It is removed when the test ends, however it ends.

mod abi;
mod c;
mod misuse;
mod model;
mod programs;
mod stuck;

use c::Handle;
use std::os::fd::RawFd;
use testkit::cluster::{Cluster, Shape};

/// Length of the volumes of these tests.
const LEN: u64 = 256 << 20;

fn cluster() -> Cluster {
    let shape = Shape { pgs: 4, device_bytes: 2 << 30, log_bytes: 64 << 20, ..Shape::default() };
    let cluster = Cluster::up(programs::scratch(), "capi", shape).expect("a cluster");
    for name in ["example", "model", "stuck"] {
        cluster.volume(name, LEN).expect("a volume");
    }
    cluster
}

#[test]
fn a_cluster_of_processes_serves_programs_of_the_c_library() {
    let cluster = cluster();
    let meta = cluster.basalt.metas()[0].to_string();
    the_example_runs(&meta);
    let handle = c::connect(&meta, 10_000, 0).expect("a metadata server");
    one_writer_and_its_preemption(handle);
    a_descriptor_tells_of_events(handle);
    misuse::calls_with_an_open_volume(handle);
    model::threads_against_a_model(handle);
    stuck::a_close_ends_requests_that_are_stuck(&cluster, handle, &meta);
    assert_eq!(c::disconnect(handle), 0, "{}", c::last_error());
    assert_eq!(c::disconnect(handle), -libc::EBADF);
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

fn the_example_runs(meta: &str) {
    let source = programs::folder().join("../../examples/example.c");
    let out = programs::run_linked("example", &source, &[meta, "main/example"]);
    let (text, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{error}");
    assert!(
        text.starts_with("main/example has 268435456 bytes\n") && text.ends_with("the bytes are equal\n"),
        "{text}"
    );
    let out = programs::run_linked("example", &source, &[meta, "main/missing"]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.starts_with("basalt_open: BSLT-2011: "), "{error}");
}

fn one_writer_and_its_preemption(handle: Handle) {
    let first = c::open(handle, "main/example", 0).expect("a volume");
    let (result, text) = c::open(handle, "main/example", 0).expect_err("one writer");
    assert!(result == -libc::EBUSY && text.contains("BSLT-2020") && text.contains("libbasalt on "), "{text}");
    let reader = c::open(handle, "main/example", basalt::abi::OPEN_RDONLY).expect("a reader");
    assert_eq!((c::info(first).read_only, c::info(reader).read_only), (0, 1));
    let mut block = [0; 4096];
    assert_eq!(c::pwrite(first, &[5; 4096], 8192), 0);
    assert_eq!(c::pread(reader, &mut block, 8192), 0);
    assert_eq!(block, [5; 4096]);
    assert_eq!(c::pwrite(reader, &block, 0), -libc::EROFS);
    let second = c::open(handle, "main/example", basalt::abi::OPEN_STEAL).expect("taken over");
    assert_eq!(c::pwrite(second, &[6; 4096], 8192), 0);
    assert_eq!(c::pwrite(first, &[7; 4096], 8192), -libc::ESTALE);
    assert!(c::last_error().starts_with("BSLT-5002: main/example: "), "{}", c::last_error());
    assert_eq!((c::pread(second, &mut block, 8192), block), (0, [6; 4096]));
    assert_eq!(c::flush(second), 0);
    for volume in [first, reader, second] {
        assert_eq!(c::close(volume), 0, "{}", c::last_error());
        assert_eq!(c::close(volume), -libc::EBADF);
    }
}

#[allow(unsafe_code)]
fn is_readable(fd: RawFd, wait_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, wait_ms) == 1 }
}

fn a_descriptor_tells_of_events(handle: Handle) {
    let (volume, queue) = (c::open(handle, "main/example", 0).expect("a volume"), c::queue(4));
    let fd = basalt::calls::queue::basalt_queue_fd(queue.to());
    assert!(fd >= 0 && !is_readable(fd, 0));
    let (mut first, mut second) = ([0; 512], [0; 512]);
    assert_eq!(c::read(volume, queue, 8192, &mut first, 100, 1), 0);
    assert!(is_readable(fd, 10_000));
    assert_eq!(c::read(volume, queue, 8192, &mut second, 0, 2), 0);
    let mut taken = c::wait(queue, 2, 4, Some(10_000)).expect("two");
    taken.sort_unstable();
    assert_eq!(taken, [(1, 0), (2, 0)]);
    assert_eq!((first, second), ([6; 512], [6; 512]));
    assert!(!is_readable(fd, 0));
    assert_eq!(c::wait(queue, 1, 4, Some(1)), Ok(Vec::new()), "a timeout");
    assert_eq!((c::destroy(queue), c::destroy(queue), c::close(volume)), (0, -libc::EBADF, 0));
}
