//! System calls that std does not offer, each wrapped so that its callers are safe code.

use crate::op::NetAddr;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use types::{IoBufMut, Time};

/// A number of `linux/prctl.h`, since 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// A dead peer is given up after this long without an acknowledgement.
const USER_TIMEOUT_MS: i32 = 5_000;
/// Keepalive: seconds of silence, seconds between probes, probes.
const KEEPALIVE_IDLE_S: i32 = 5;
const KEEPALIVE_INTERVAL_S: i32 = 1;
const KEEPALIVE_PROBES: i32 = 3;
/// Repetitions of a SYN: a silent host is given up after about 3 s.
const SYN_RETRIES: i32 = 1;

/// Converts the result of a call that returns -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn boot_time() -> Time {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec to write to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut ts) };
    assert_eq!(result, 0, "CLOCK_BOOTTIME exists since Linux 2.6.39");
    Time(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// Returns `N` random bytes from the kernel.
pub(super) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "longer requests may be cut short") };
    let mut bytes = [0u8; N];
    // SAFETY: the buffer is N bytes long; requests up to 256 bytes are never cut short once the kernel's generator is seeded.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if got == N as isize { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// Lets this process have as many open files as it may: its soft limit becomes the hard one. A daemon has a descriptor for each connection,
/// and the usual soft limit of 1,024 is for programs that use `select`. Returns the limit.
///
/// # Errors
/// The kernel refuses; the limit is as before.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit to read from.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Tells the kernel that this thread, and each that it starts from now on, serves a block device: memory that it needs is never made free by
/// writing to a device, which may be that one. Needs `CAP_SYS_RESOURCE`.
///
/// # Errors
/// The kernel refuses.
pub fn become_io_flusher() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) }).map(drop)
}

pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the call just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an eventfd.
pub(super) fn eventfd_signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes. It can only fail by blocking at 2^64 - 2, which coalescing excludes.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes the file's lock, or reports that another holder has it (`WouldBlock`).
pub(super) fn lock(file: &File, shared: bool) -> io::Result<()> {
    let how = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: no memory is passed.
    check(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) }).map(drop)
}

/// Returns the size of an open block device in bytes.
pub(super) fn block_device_len(file: &File) -> io::Result<u64> {
    // _IOR(0x12, 114, size_t), which libc lacks.
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut len = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut len) })?;
    Ok(len)
}

/// Returns the logical sector size of an open block device in bytes.
pub(super) fn block_device_sector(file: &File) -> io::Result<u32> {
    let mut len: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET as _, &raw mut len) })?;
    Ok(len as u32)
}

/// Returns the (memory, offset) alignment of direct I/O according to the file system. `None` when it reports none;
/// zeros when direct I/O is impossible.
pub(super) fn direct_io_align(file: &File) -> Option<(u32, u32)> {
    stat(file, libc::STATX_DIOALIGN).map(|stat| (stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Returns the shortest and the longest write that is never torn. `None` when the kernel does not tell; zeros when there is none.
pub(super) fn atomic_write_units(file: &File) -> Option<(u32, u32)> {
    stat(file, libc::STATX_WRITE_ATOMIC).map(|stat| (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max))
}

/// Returns the properties of an open file, if the kernel tells what `mask` asks for.
fn stat(file: &File, mask: libc::c_uint) -> Option<libc::statx> {
    // SAFETY: all-zero bytes are a valid statx.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, AT_EMPTY_PATH means the descriptor itself, `stat` is writable.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &raw mut stat) };
    (result == 0 && stat.stx_mask & mask != 0).then_some(stat)
}

/// Whether the file lives in memory only. Newer kernels let tmpfs accept O_DIRECT, which makes nothing durable.
pub(super) fn is_in_memory(file: &File) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable and of the type that the call fills.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) })?;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    Ok([libc::TMPFS_MAGIC as u32, RAMFS_MAGIC].contains(&(stat.f_type as u32)))
}

/// Reads synchronously, for probing at open.
pub(super) fn read_at(file: &File, buf: &mut IoBufMut, offset: u64) -> io::Result<usize> {
    // SAFETY: the buffer is ours, writable and as long as said.
    let got = unsafe { libc::pread(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset as libc::off_t) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Returns a stream socket for `addr`.
pub(super) fn stream_socket(addr: &NetAddr, nonblocking: bool) -> io::Result<OwnedFd> {
    let family = match addr {
        NetAddr::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        NetAddr::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
        NetAddr::Unix(_) => libc::AF_UNIX,
        NetAddr::Unnamed => return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
    };
    let nonblock = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | nonblock, 0) })?;
    // SAFETY: the call just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes ownership of a descriptor that the ring returned.
///
/// # Safety
/// `fd` is open and has no other owner.
pub(super) unsafe fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: promised by the caller.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Sets the options of every TCP connection: no delay, and a dead peer is noticed within seconds.
pub(super) fn tune_tcp(fd: &OwnedFd) -> io::Result<()> {
    for (level, name, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, USER_TIMEOUT_MS),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, SYN_RETRIES),
    ] {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `value` is one readable int, as `len` says.
        check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })?;
    }
    Ok(())
}

/// An address in the kernel's form.
pub(super) struct SockAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl SockAddr {
    pub fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub fn len(&self) -> libc::socklen_t {
        self.len
    }

    pub fn new(addr: &NetAddr) -> io::Result<SockAddr> {
        match addr {
            NetAddr::Tcp(SocketAddr::V4(v4)) => Ok(SockAddr::of(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            })),
            NetAddr::Tcp(SocketAddr::V6(v6)) => Ok(SockAddr::of(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            })),
            NetAddr::Unix(path) => SockAddr::unix(path),
            NetAddr::Unnamed => Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        }
    }

    fn unix(path: &Path) -> io::Result<SockAddr> {
        let bytes = path.as_os_str().as_bytes();
        let mut un = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        // One byte is reserved for the closing zero.
        if bytes.is_empty() || bytes.len() >= un.sun_path.len() || bytes.contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in un.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(SockAddr::of(un))
    }

    fn of<T: Copy>(inner: T) -> SockAddr {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: all-zero bytes are a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: `T` is one of the sockaddr structures, not larger than the storage (asserted above), and
        // the storage is aligned for all of them.
        unsafe { (&raw mut storage).cast::<T>().write(inner) };
        SockAddr { storage, len: size_of::<T>() as libc::socklen_t }
    }
}

/// Whether a process accepts connections at this Unix path now.
pub(super) fn somebody_listens(path: &Path) -> io::Result<bool> {
    let addr = NetAddr::Unix(path.to_owned());
    let fd = stream_socket(&addr, true)?;
    let sock = SockAddr::new(&addr)?;
    // SAFETY: `sock` holds a valid address of the length that it tells.
    match check(unsafe { libc::connect(fd.as_raw_fd(), sock.as_ptr(), sock.len()) }) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(false),
        // A full backlog (EAGAIN), a wrong type or a lack of permission mean another owner, so the path must not be
        // removed.
        Err(_) => Ok(true),
    }
}
