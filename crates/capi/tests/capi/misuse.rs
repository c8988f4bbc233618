//! Calls that break the rules of the header: each is refused, and nothing happens.

use crate::c::{self, Handle};
use basalt::abi::{BasaltCluster, OPEN_RDONLY, OPEN_STEAL, QUEUE_DEPTH_MAX};
use basalt::calls::{aio, cluster, queue, volume};
use std::time::Duration;

/// Longer than a refusal takes on a busy machine.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn a_cluster_that_does_not_answer_is_told_within_the_timeout() {
    let begun = testkit::clock::now();
    let (result, text) = c::connect("127.0.0.1:1", 1500, 0).expect_err("no server");
    assert!(result == -libc::EHOSTUNREACH && text.starts_with("BSLT-2001: "), "{result}: {text}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let (result, text) = c::connect("here", 1500, 0).expect_err("no address");
    assert!(result == -libc::EINVAL && text.contains("`here`") && text.contains("HOST:PORT"), "{text}");
}

#[test]
#[allow(unsafe_code)]
fn null_pointers_and_closed_handles_are_refused() {
    let (null, closed) = (Handle(0), Handle(usize::MAX));
    let mut cluster: *mut BasaltCluster = std::ptr::null_mut();
    // SAFETY: null pointers are what the calls have to notice.
    unsafe {
        assert_eq!(cluster::basalt_connect(std::ptr::null(), std::ptr::null_mut()), -libc::EINVAL);
        let short = 8_usize;
        assert_eq!(cluster::basalt_connect((&raw const short).cast(), &mut cluster), -libc::EINVAL);
        assert_eq!(queue::basalt_queue_create(1, std::ptr::null_mut()), -libc::EINVAL);
        assert_eq!(queue::basalt_queue_create(0, &mut std::ptr::null_mut()), -libc::EINVAL);
        assert_eq!(queue::basalt_queue_create(QUEUE_DEPTH_MAX + 1, &mut std::ptr::null_mut()), -libc::EINVAL);
        assert_eq!(volume::basalt_open(cluster, std::ptr::null(), 0, &mut std::ptr::null_mut()), -libc::EINVAL);
        assert_eq!(volume::basalt_volume_info(null.to(), std::ptr::null_mut()), -libc::EINVAL);
        let wait = queue::basalt_queue_wait(null.to(), std::ptr::null_mut(), 0, 1, std::ptr::null());
        assert_eq!(wait, -libc::EINVAL);
        let readv = aio::basalt_aio_readv(null.to(), null.to(), 0, std::ptr::null(), 1, 0, std::ptr::null_mut());
        assert_eq!(readv, -libc::EINVAL);
    }
    assert!(c::last_error().contains("null pointer"), "{}", c::last_error());
    for (handle, errno) in [(null, libc::EINVAL), (closed, libc::EBADF)] {
        assert_eq!(c::disconnect(handle), -errno);
        assert_eq!(c::close(handle), -errno);
        assert_eq!(c::destroy(handle), -errno);
        assert_eq!(c::flush(handle), -errno);
        assert_eq!(c::wait(handle, 0, 1, None), Err(-errno));
        assert_eq!(queue::basalt_queue_fd(handle.to()), -errno);
        assert_eq!(c::open(handle, "main/x", 0).expect_err("no cluster").0, -errno);
    }
}

#[test]
#[allow(unsafe_code)]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    // Forks are noticed from the first connect on, whether or not that succeeds.
    c::connect("127.0.0.1:1", 1, 0).expect_err("no server");
    let queue = c::queue(1);
    // SAFETY: the child calls the library, which returns before any lock, and ends.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let refused = queue::basalt_queue_fd(queue.to()) == -libc::ENOTSUP;
            libc::_exit(i32::from(!refused));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert_eq!(c::destroy(queue), 0, "{}", c::last_error());
}

/// Wrong requests to an open volume.
pub fn calls_with_an_open_volume(cluster: Handle) {
    for (name, flags) in [("main/example", 4), ("main/example", OPEN_RDONLY | OPEN_STEAL), ("nopool", 0), ("Main/X", 0)]
    {
        let (result, text) = c::open(cluster, name, flags).expect_err("wrong");
        assert!(result == -libc::EINVAL && text.starts_with("BSLT-"), "{name} {flags}: {result} {text}");
    }
    let (volume, queue) = (c::open(cluster, "main/example", 0).expect("a volume"), c::queue(2));
    assert_eq!(c::disconnect(cluster), -libc::EBUSY, "a volume is open");
    assert_eq!(c::info(volume).length_bytes, crate::LEN);
    let mut block = vec![0; 4096];
    for (offset, len) in
        [(1, 512), (0, 511), (0, 0), (crate::LEN, 512), (crate::LEN - 512, 1024), (u64::MAX - 511, 512)]
    {
        let buffer = &mut block[..len];
        assert_eq!(c::pread(volume, buffer, offset), -libc::EINVAL, "{offset}+{len}");
        assert_eq!(c::write(volume, queue, offset, buffer, 7, 0), -libc::EINVAL, "{offset}+{len}");
        assert_eq!(c::discard(volume, queue, offset, len as u64, 0), -libc::EINVAL, "{offset}+{len}");
    }
    assert_eq!(c::pread(volume, &mut vec![0; (32 << 20) + 512], 0), -libc::EINVAL, "too long");
    assert_eq!(c::write_zeroes(volume, queue, (0, 4096), 2, 0), -libc::EINVAL, "an unknown flag");
    // A handle of another kind.
    assert_eq!(c::write(queue, queue, 0, &block, 7, 0), -libc::EBADF);
    assert_eq!(c::write(volume, cluster, 0, &block, 7, 0), -libc::EBADF);
    assert_eq!(c::wait(queue, 0, 2, None), Ok(Vec::new()), "no refused request has an event");
    assert_eq!((c::destroy(queue), c::close(volume)), (0, 0));
    assert_eq!(c::pread(volume, &mut block, 0), -libc::EBADF);
}
