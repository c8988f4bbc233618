//! OSDs that do not answer: a timeout of requests, and a close while requests are in flight.

use crate::c::{self, Handle};
use std::time::Duration;
use testkit::clock;
use testkit::cluster::Cluster;

const REQUESTS: usize = 12;
/// The header promises 5 s; the machine may be busy.
const CLOSE_MAX: Duration = Duration::from_secs(8);

fn signal(cluster: &Cluster, name: &str) {
    for osd in cluster.osds.values() {
        osd.signal(name).expect("a running OSD");
    }
}

/// Stops all OSDs, and closes a volume with requests in flight. Another handle has a timeout.
pub fn a_close_ends_requests_that_are_stuck(cluster: &Cluster, handle: Handle, meta: &str) {
    let (volume, queue) = (c::open(handle, "main/stuck", 0).expect("a volume"), c::queue(64));
    let impatient = c::connect(meta, 10_000, 700).expect("a metadata server");
    let reader = c::open(impatient, "main/stuck", basalt::abi::OPEN_RDONLY).expect("a reader");
    let mut block = [0; 4096];
    assert_eq!((c::pwrite(volume, &[1; 4096], 0), c::pread(reader, &mut block, 0)), (0, 0));
    signal(cluster, "STOP");
    let begun = clock::now();
    assert_eq!(c::pread(reader, &mut block, 0), -libc::ETIMEDOUT);
    assert!(begun.elapsed() < CLOSE_MAX, "{:?}", begun.elapsed());
    let mut buffers = vec![[0xee_u8; 4096]; REQUESTS];
    for (user, buffer) in buffers.iter_mut().enumerate() {
        let offset = user as u64 * 4096;
        let started = match user % 2 {
            0 => c::write(volume, queue, offset, &[2; 4096], 512, user),
            _ => c::read(volume, queue, offset, buffer, 512, user),
        };
        assert_eq!(started, 0, "{}", c::last_error());
    }
    assert_eq!(c::destroy(queue), -libc::EBUSY, "requests are in flight");
    let begun = clock::now();
    assert_eq!(c::close(volume), 0, "{}", c::last_error());
    assert!(begun.elapsed() < CLOSE_MAX, "{:?}", begun.elapsed());
    let taken = c::wait(queue, 0, 64, None).expect("events");
    assert_eq!(taken.len(), REQUESTS, "a close leaves no request behind");
    assert!(taken.iter().all(|(_, result)| *result == -libc::ESHUTDOWN), "{taken:?}");
    assert!(buffers.iter().flatten().all(|byte| *byte == 0xee), "a read that failed writes nothing");
    signal(cluster, "CONT");
    assert_eq!((c::close(reader), c::disconnect(impatient), c::destroy(queue)), (0, 0, 0));
    cluster.basalt.wait_healthy(Duration::from_secs(60)).expect("the OSDs go on");
    let again = c::open(handle, "main/stuck", 0).expect("the hold was given up");
    assert_eq!(c::pread(again, &mut block, 0), 0, "{}", c::last_error());
    assert!([[1; 4096], [2; 4096]].contains(&block), "the write was not acknowledged: it is there or not, and whole");
    assert_eq!(c::close(again), 0);
}
