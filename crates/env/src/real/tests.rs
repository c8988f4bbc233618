//! The real form against real files and loopback sockets.

use super::*;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(10);
const TOKEN: Token = Token::new(1, 2, 3);

struct Rig {
    env: RealEnv,
    ops: Vec<Op>,
    events: Vec<Event>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with_entries(64)
    }

    fn with_entries(ring_entries: u32) -> Rig {
        Rig::with(RealConfig { ring_entries, ..RealConfig::default() })
    }

    fn with(config: RealConfig) -> Rig {
        let env = RealEnv::new(config).expect("io_uring works here");
        Rig { env, ops: Vec::new(), events: Vec::new() }
    }

    /// Submits `ops` and turns until `count` events are there; returns them.
    fn run(&mut self, ops: impl IntoIterator<Item = Op>, count: usize) -> Vec<Event> {
        self.ops.extend(ops);
        let deadline = self.env.now() + PATIENCE;
        while self.events.len() < count {
            self.env.turn(&mut self.ops, &mut self.events, deadline).expect("the ring works");
            assert!(self.env.now() < deadline, "{} of {count} events came: {:?}", self.events.len(), self.events);
        }
        std::mem::take(&mut self.events)
    }

    fn one(&mut self, op: Op) -> Event {
        let mut events = self.run([op], 1);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Runs a turn that may return no event.
    fn nudge(&mut self) {
        self.env.turn(&mut self.ops, &mut self.events, Time::ZERO).expect("the ring works");
    }

    /// Creates a connection to a std stream: (ours, theirs).
    fn pair(&mut self) -> (ConnId, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = NetAddr::Tcp(listener.local_addr().unwrap());
        let event = self.one(Op::Connect { token: TOKEN, addr });
        let Event::Connected { token: TOKEN, result: Ok(conn) } = event else { panic!("{event:?}") };
        (conn, listener.accept().unwrap().0)
    }
}

/// A file under the target directory (a disk file system, not tmpfs), removed at the end.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, len: u64) -> TempFile {
        let dir = std::env::current_exe().unwrap().parent().unwrap().join("env-tests");
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{name}.{}", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(len).unwrap();
        TempFile(path)
    }

    fn spec(&self) -> DiskSpec {
        DiskSpec { path: self.0.clone(), assume_plp: false, read_only: false }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn filled(byte: u8, len: usize) -> IoBuf {
    let mut buf = IoBufMut::new(len);
    buf.fill(byte);
    buf.freeze()
}

fn write(disk: DiskId, offset: u64, bufs: Vec<IoBuf>, flush: bool) -> Op {
    Op::DiskWrite { token: TOKEN, disk, offset, bufs, flush }
}

fn read(rig: &mut Rig, disk: DiskId, offset: u64, len: usize) -> IoBufMut {
    match rig.one(Op::DiskRead { token: TOKEN, disk, offset, buf: IoBufMut::new(len) }) {
        Event::DiskRead { token: TOKEN, buf, result: Ok(()) } => buf,
        other => panic!("{other:?}"),
    }
}

fn assert_written(event: &Event) {
    assert!(matches!(event, Event::DiskWrite { token: TOKEN, result: Ok(()) }), "{event:?}");
}

fn recv(conn: ConnId, lens: &[usize], min: usize) -> Op {
    Op::Recv { token: TOKEN, conn, bufs: lens.iter().map(|l| IoBufMut::new(*l)).collect(), min }
}

#[test]
fn polling_turn_looks_again_and_again_until_its_deadline_or_an_event() {
    let mut rig = Rig::with(RealConfig { busy_poll: PATIENCE, ..RealConfig::default() });
    let turn = |rig: &mut Rig, most: Duration| {
        let (before, since) = (rig.env.kernel_entries(), rig.env.now());
        rig.env.turn(&mut rig.ops, &mut rig.events, since + most).expect("the ring works");
        (rig.env.kernel_entries() - before, rig.env.now().since(since))
    };
    let pause = Duration::from_millis(20);
    let (entries, waited) = turn(&mut rig, pause);
    assert!(entries <= 2 && waited >= pause, "it has not learned yet: {entries} in {waited:?}");
    let (entries, waited) = turn(&mut rig, pause);
    assert!(entries > 2 && waited >= pause, "{entries} in {waited:?}");
    assert!(rig.events.is_empty());
    let (conn, mut peer) = rig.pair();
    rig.ops.push(recv(conn, &[1], 1));
    let sender = std::thread::spawn(move || peer.write_all(b"x").map(|()| peer));
    let (_, waited) = turn(&mut rig, PATIENCE);
    assert!(matches!(rig.events[..], [Event::Received { result: Ok(1), .. }]), "{:?} after {waited:?}", rig.events);
    sender.join().unwrap().unwrap();
}

#[test]
fn soft_limit_of_files_becomes_the_hard_one() {
    let limit = super::raise_file_limit().expect("a process may do that");
    assert!(limit >= 256 && super::raise_file_limit().expect("again") == limit);
}

#[test]
fn what_was_written_is_read_back_with_and_without_flush() {
    let file = TempFile::new("round-trip", 1 << 20);
    let mut rig = Rig::new();
    let info = rig.env.open_disk(&file.spec()).unwrap();
    assert_eq!((info.kind, info.size_bytes), (crate::DiskKind::File, 1 << 20));
    assert!((512..=4096).contains(&info.align_bytes), "{info:?}");
    for (i, flush) in [false, true].into_iter().enumerate() {
        let byte = i as u8 + 1;
        let bufs = vec![filled(byte, 4096), filled(byte + 10, 8192), filled(byte + 20, 4096)];
        assert_written(&rig.one(write(info.id, 65536, bufs, flush)));
        let back = read(&mut rig, info.id, 65536, 16384);
        let want = [[byte; 4096].as_slice(), &[byte + 10; 8192], &[byte + 20; 4096]].concat();
        assert!(*back == *want, "flush {flush}");
    }
    assert_written(&rig.one(write(info.id, 0, vec![filled(9, 4096)], true)));
    assert_eq!(read(&mut rig, info.id, 0, 4096)[4095], 9);
    let event = rig.one(Op::DiskFlush { token: TOKEN, disk: info.id });
    assert!(matches!(event, Event::DiskFlush { token: TOKEN, result: Ok(()) }), "{event:?}");
}

#[test]
fn a_write_of_more_parts_than_the_kernel_takes_lands_whole() {
    let file = TempFile::new("many-parts", 16 << 20);
    let mut rig = Rig::new();
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    let bufs: Vec<IoBuf> = (0..2500u32).map(|i| filled(i as u8, 4096)).collect();
    assert_written(&rig.one(write(disk, 4096, bufs, true)));
    for i in [0u64, 1023, 1024, 2047, 2048, 2499] {
        let back = read(&mut rig, disk, 4096 + i * 4096, 4096);
        assert!(back.iter().all(|b| *b == i as u8), "part {i}");
    }
}

#[test]
fn operations_beyond_the_queue_complete_and_linked_flushes_stay_linked() {
    let file = TempFile::new("overflow", 1 << 20);
    let mut rig = Rig::with_entries(8);
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    let ops = (0..100u64).map(|i| write(disk, i * 4096, vec![filled(i as u8, 4096)], i % 3 != 0));
    let events = rig.run(ops.collect::<Vec<_>>(), 100);
    events.iter().for_each(assert_written);
    for i in 0..100u64 {
        assert_eq!(read(&mut rig, disk, i * 4096, 4096)[0], i as u8);
    }
    assert!(rig.env.flights.is_empty());
}

#[test]
fn a_turn_enters_the_kernel_once_however_many_operations_it_has() {
    let file = TempFile::new("one-enter", 1 << 20);
    let mut rig = Rig::with_entries(256);
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    for round in 1..=20u64 {
        rig.ops.extend((0..50u64).map(|i| write(disk, i * 4096, vec![filled(1, 4096)], true)));
        let before = rig.env.kernel_entries();
        rig.nudge();
        assert_eq!(rig.env.kernel_entries(), before + 1);
        rig.run([], 50);
        assert!(rig.env.kernel_entries() <= round * 51, "each further entry brought an event");
        rig.events.clear();
    }
}

#[test]
fn a_flushed_write_that_fails_says_so_once_and_the_ring_goes_on() {
    let file = TempFile::new("refused-write", 1 << 20);
    let mut rig = Rig::new();
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    // 100 is no multiple of any sector, so direct I/O refuses it.
    match rig.one(write(disk, 100, vec![filled(1, 4096)], true)) {
        Event::DiskWrite { token: TOKEN, result } => assert_eq!(result, Err(DiskError::Io(libc::EINVAL))),
        other => panic!("{other:?}"),
    }
    assert_written(&rig.one(write(disk, 0, vec![filled(1, 4096), filled(2, 4096)], true)));
    (0..5).for_each(|_| rig.nudge());
    assert!(rig.events.is_empty() && rig.env.flights.is_empty());
}

#[test]
fn a_short_write_cancels_its_linked_flush_and_is_the_only_one_to_speak() {
    // A nonblocking socket takes a part of a large write: the only way to force a short write.
    use std::os::unix::net::UnixStream;
    let file = TempFile::new("short", 4096);
    let file = std::fs::File::open(&file.0).unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let buf = filled(1, 8 << 20);
    let mut ring = Ring::new(8).unwrap();
    assert!(ring.quiet_links(), "this kernel can skip completions");
    let write = opcode::Write::new(uring::Fd(near.as_raw_fd()), buf.as_ptr(), buf.len() as u32).build();
    let flags = io_uring::squeue::Flags::IO_LINK | io_uring::squeue::Flags::SKIP_SUCCESS;
    let sync = opcode::Fsync::new(uring::Fd(file.as_raw_fd())).build();
    ring.push_pair(&[write.flags(flags).user_data(1), sync.user_data(2)]).unwrap();
    let mut cqes = Vec::new();
    for _ in 0..10 {
        ring.enter(Wait::AtMost(Duration::from_millis(10))).unwrap();
        ring.drain(&mut cqes);
    }
    let told: Vec<(u64, i32)> = cqes.iter().map(|c| (c.user_data, c.result)).collect();
    assert!(matches!(told[..], [(1, n)] if 0 < n && n < 8 << 20), "{told:?}");
}

#[test]
fn operations_past_the_end_are_refused_before_the_kernel_sees_them() {
    let file = TempFile::new("range", 8192);
    let mut rig = Rig::new();
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    let want = DiskError::OutOfRange { offset: 8192, len: 4096 };
    match rig.one(Op::DiskRead { token: TOKEN, disk, offset: 8192, buf: IoBufMut::new(4096) }) {
        Event::DiskRead { result, .. } => assert_eq!(result, Err(want.clone())),
        other => panic!("{other:?}"),
    }
    match rig.one(write(disk, 8192, vec![filled(1, 4096)], true)) {
        Event::DiskWrite { result, .. } => assert_eq!(result, Err(want)),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), 8192, "the file has not grown");
}

#[test]
fn discarded_space_reads_as_zeros_in_a_file() {
    let file = TempFile::new("discard", 1 << 20);
    let mut rig = Rig::new();
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    assert_written(&rig.one(write(disk, 0, vec![filled(7, 131_072)], true)));
    let event = rig.one(Op::DiskDiscard { token: TOKEN, disk, offset: 65536, len_bytes: 65536 });
    assert!(matches!(event, Event::DiskDiscard { token: TOKEN, result: Ok(()) }), "{event:?}");
    let back = read(&mut rig, disk, 0, 131_072);
    assert!(back[..65536].iter().all(|b| *b == 7) && back[65536..].iter().all(|b| *b == 0));
}

#[test]
fn a_second_opener_is_told_of_the_lock_until_the_first_is_gone() {
    let file = TempFile::new("lock", 8192);
    let mut first = Rig::new();
    first.env.open_disk(&file.spec()).unwrap();
    let mut second = Rig::new();
    let refusal = second.env.open_disk(&file.spec());
    assert!(matches!(refusal, Err(EnvError::Locked { .. })), "{refusal:?}");
    drop(first);
    second.env.open_disk(&file.spec()).unwrap();
}

#[test]
fn an_address_is_waited_for_until_its_last_holder_is_gone() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = NetAddr::Tcp(holder.local_addr().unwrap());
    let mut rig = Rig::new();
    let refusal = rig.env.listen(&addr);
    assert!(matches!(refusal, Err(EnvError::Listen { .. })), "{refusal:?}");
    // The address is held on for a while, as by the ring of a killed process.
    let (_kept, never) = std::sync::mpsc::channel::<()>();
    let holding = std::thread::spawn(move || {
        never.recv_timeout(std::time::Duration::from_millis(300)).unwrap_err();
        drop(holder);
    });
    assert_eq!(rig.env.listen(&addr).unwrap().1, addr);
    holding.join().unwrap();
}

#[test]
fn a_file_system_without_direct_io_or_a_missing_file_is_named() {
    let mut rig = Rig::new();
    let missing = DiskSpec { path: "/nonexistent/device".into(), assume_plp: false, read_only: false };
    assert!(matches!(rig.env.open_disk(&missing), Err(EnvError::Open { .. })));
    // tmpfs takes O_DIRECT on newer kernels, without effect.
    let shm = PathBuf::from(format!("/dev/shm/basalt-env.{}", std::process::id()));
    if std::fs::write(&shm, [0; 8192]).is_ok() {
        let refusal = rig.env.open_disk(&DiskSpec { path: shm.clone(), assume_plp: true, read_only: false });
        std::fs::remove_file(&shm).unwrap();
        assert!(matches!(refusal, Err(EnvError::NoDirectIo { .. })), "{refusal:?}");
    }
    // A file in procfs is a regular file that refuses O_DIRECT.
    let proc = DiskSpec { path: "/proc/self/cmdline".into(), assume_plp: false, read_only: true };
    let refusal = rig.env.open_disk(&proc);
    assert!(matches!(refusal, Err(EnvError::NoDirectIo { .. })), "{refusal:?}");
}

#[test]
fn an_assumed_plp_overrides_the_cache_that_the_device_tells_of() {
    let file = TempFile::new("plp", 8192);
    let spec = DiskSpec { assume_plp: true, ..file.spec() };
    assert!(!Rig::new().env.open_disk(&spec).unwrap().volatile_cache);
}

#[test]
fn a_receive_completes_at_its_minimum_and_not_before() {
    let mut rig = Rig::new();
    let (conn, mut peer) = rig.pair();
    rig.ops.push(recv(conn, &[10, 20, 30], 15));
    peer.write_all(&[1; 10]).unwrap();
    peer.flush().unwrap();
    for _ in 0..20 {
        rig.nudge();
    }
    assert!(rig.events.is_empty(), "10 of 15 bytes: {:?}", rig.events);
    peer.write_all(&[2; 12]).unwrap();
    let mut events = rig.run([], 1);
    let Some(Event::Received { token: TOKEN, bufs, result: Ok(n), .. }) = events.pop() else { panic!("{events:?}") };
    assert!((15..=22).contains(&n), "{n}");
    let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).take(n).collect();
    assert_eq!(all, [[1u8; 10].as_slice(), &[2; 12]].concat()[..n]);
}

#[test]
fn large_sends_and_receives_arrive_whole_between_two_envs() {
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let (_, addr) = b.env.listen(&NetAddr::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let Event::Connected { result: Ok(out), .. } = a.one(Op::Connect { token: TOKEN, addr }) else { panic!() };
    let mut accepted = b.run([], 1);
    let Some(Event::Accepted { conn: inn, peer: NetAddr::Tcp(_), .. }) = accepted.pop() else { panic!() };
    const PARTS: usize = 3000;
    let bufs: Vec<IoBuf> = (0..PARTS).map(|i| filled(i as u8, 4096)).collect();
    a.ops.push(Op::Send { token: TOKEN, conn: out, bufs, quiet: false });
    b.ops.push(recv(inn, &[1 << 20, PARTS * 4096 - (1 << 20)], PARTS * 4096));
    while a.events.is_empty() || b.events.is_empty() {
        a.nudge();
        b.nudge();
    }
    assert!(matches!(a.events[0], Event::Sent { token: TOKEN, result: Ok(()), .. }), "{:?}", a.events);
    let Some(Event::Received { bufs, result: Ok(n), .. }) = b.events.pop() else { panic!() };
    assert_eq!(n, PARTS * 4096);
    let all = [&*bufs[0], &*bufs[1]].concat();
    assert!((0..PARTS).all(|i| all[i * 4096..(i + 1) * 4096].iter().all(|b| *b == i as u8)));
}

#[test]
fn closing_ends_a_waiting_receive_with_closed_and_gives_its_buffers_back() {
    let mut rig = Rig::new();
    let (conn, mut peer) = rig.pair();
    rig.ops.push(recv(conn, &[100], 1));
    rig.nudge();
    assert!(rig.events.is_empty());
    let event = rig.one(Op::Close { conn });
    let Event::Received { bufs, result, .. } = event else { panic!("{event:?}") };
    assert_eq!((bufs.len(), result), (1, Err(NetError::Closed)));
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "the peer sees the end");
    let late = rig.one(recv(conn, &[100], 1));
    assert!(matches!(late, Event::Received { result: Err(NetError::Closed), .. }), "{late:?}");
    let late = rig.one(Op::Send { token: TOKEN, conn, bufs: vec![filled(1, 8)], quiet: false });
    assert!(matches!(late, Event::Sent { result: Err(NetError::Closed), .. }), "{late:?}");
}

#[test]
fn a_peer_that_goes_away_is_a_lost_connection() {
    let mut rig = Rig::new();
    for reset in [false, true] {
        let (conn, mut peer) = rig.pair();
        if reset {
            // Closing with unread bytes in the queue sends a reset.
            rig.one(Op::Send { token: TOKEN, conn, bufs: vec![filled(1, 8)], quiet: false });
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 1);
        }
        drop(peer);
        let event = rig.one(recv(conn, &[100], 50));
        let want = if reset { NetError::Broken(libc::ECONNRESET) } else { NetError::Lost };
        assert!(matches!(&event, Event::Received { result: Err(e), .. } if *e == want), "reset {reset}: {event:?}");
    }
}

#[test]
fn a_refused_connect_says_so() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let event = Rig::new().one(Op::Connect { token: TOKEN, addr: NetAddr::Tcp(port) });
    assert!(matches!(event, Event::Connected { result: Err(NetError::Refused), .. }), "{event:?}");
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_served_one_is_not() {
    let file = TempFile::new("s", 0);
    std::fs::remove_file(&file.0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&file.0).unwrap());
    let addr = NetAddr::Unix(file.0.clone());
    let mut server = Rig::new();
    server.env.listen(&addr).unwrap();
    assert!(matches!(Rig::new().env.listen(&addr), Err(EnvError::Listen { .. })));
    let mut client = Rig::new();
    let event = client.one(Op::Connect { token: TOKEN, addr: addr.clone() });
    let Event::Connected { result: Ok(conn), .. } = event else { panic!("{event:?}") };
    client.ops.push(Op::Send { token: TOKEN, conn, bufs: vec![filled(5, 100)], quiet: false });
    client.nudge();
    // The second listener has connected to the served socket, too: more than one connection may be accepted.
    let mut received = None;
    while received.is_none() {
        let mut events = server.run([], 1);
        for event in events.drain(..) {
            match event {
                Event::Accepted { conn, peer: NetAddr::Unnamed, .. } => server.ops.push(recv(conn, &[100], 100)),
                Event::Received { result: Ok(n), bufs, .. } => received = Some((n, bufs[0][99])),
                Event::Received { conn, .. } => server.ops.push(Op::Close { conn }),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(received, Some((100, 5)));
    drop(server);
    assert!(!file.0.exists(), "the listener takes its socket file along");
}

#[test]
fn wakes_from_another_thread_coalesce_and_none_is_lost() {
    let mut rig = Rig::new();
    let waker = rig.env.waker();
    for _ in 0..50 {
        let remote = waker.clone();
        let thread = std::thread::spawn(move || (0..10).for_each(|_| remote.wake()));
        let events = rig.run([], 1);
        assert!(events.iter().all(|e| matches!(e, Event::Woken)), "{events:?}");
        thread.join().unwrap();
        rig.nudge();
        assert!(rig.events.len() <= 1, "wakes coalesce: {:?}", rig.events);
        rig.nudge();
        rig.nudge();
        rig.events.clear();
    }
}

#[test]
fn a_turn_ends_at_its_deadline_and_a_past_deadline_does_not_wait() {
    let mut rig = Rig::new();
    let start = rig.env.now();
    rig.env.turn(&mut rig.ops, &mut rig.events, start + Duration::from_millis(20)).unwrap();
    assert!(rig.events.is_empty());
    assert!(rig.env.now().since(start) >= Duration::from_millis(20));
    let start = rig.env.now();
    (0..100).for_each(|_| rig.nudge());
    assert!(rig.env.now().since(start) < PATIENCE);
}

#[test]
fn a_quiet_send_ends_a_later_turn_and_never_its_own() {
    let mut rig = Rig::new();
    let (conn, mut theirs) = rig.pair();
    let start = rig.env.now();
    rig.ops.push(Op::Send { token: TOKEN, conn, bufs: vec![filled(1, 8)], quiet: true });
    rig.env.turn(&mut rig.ops, &mut rig.events, start + Duration::from_millis(20)).unwrap();
    assert!(rig.env.now().since(start) >= Duration::from_millis(20));
    assert!(matches!(rig.events[..], [Event::Sent { result: Ok(()), .. }]), "{:?}", rig.events);
    rig.events.clear();
    // This one waits for its reader; other events end its turn.
    rig.ops.push(Op::Send { token: TOKEN, conn, bufs: vec![filled(2, 64 << 20)], quiet: true });
    rig.nudge();
    assert!(rig.events.is_empty());
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 8 + (64 << 20)];
        theirs.read_exact(&mut all).unwrap();
        theirs
    });
    rig.env.turn(&mut rig.ops, &mut rig.events, start + PATIENCE).unwrap();
    assert!(matches!(rig.events[..], [Event::Sent { result: Ok(()), .. }]), "{:?}", rig.events);
    drop(reader.join().unwrap());
}

#[test]
fn dropping_the_env_with_operations_in_flight_ends_them_first() {
    let file = TempFile::new("drop", 4 << 20);
    let mut rig = Rig::with_entries(8);
    let disk = rig.env.open_disk(&file.spec()).unwrap().id;
    rig.env.listen(&NetAddr::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let (conn, mut peer) = rig.pair();
    let waker = rig.env.waker();
    rig.ops.push(recv(conn, &[1 << 20], 1 << 20));
    rig.ops.push(Op::Send { token: TOKEN, conn, bufs: vec![filled(1, 64 << 20)], quiet: false });
    rig.ops.extend((0..50u64).map(|i| write(disk, i * 4096, vec![filled(3, 4096)], true)));
    rig.nudge();
    drop(rig);
    waker.wake();
    let mut sink = vec![0; 1 << 20];
    while peer.read(&mut sink).is_ok_and(|n| n > 0) {}
    let bytes = std::fs::read(&file.0).unwrap();
    assert!(bytes[..50 * 4096].iter().all(|b| *b == 3), "writes in flight were waited for");
}

#[test]
fn environments_differ_in_their_dice() {
    let (mut a, mut b) = (Rig::new(), Rig::new());
    let draw = |rig: &mut Rig| (0..4).map(|_| rig.env.random()).collect::<Vec<_>>();
    assert_ne!(draw(&mut a), draw(&mut b));
    let secrets = [a.env.secret().unwrap(), a.env.secret().unwrap(), b.env.secret().unwrap()];
    assert!(secrets[0] != secrets[1] && secrets[1] != secrets[2] && secrets[0] != secrets[2]);
    // Neither half repeats what the generator gives.
    let halves = secrets.map(|secret| u64::from_ne_bytes(*secret.first_chunk().unwrap()));
    assert!(draw(&mut a).iter().all(|bits| !halves.contains(bits)));
}

#[test]
fn an_opener_waits_for_a_predecessor_that_is_just_going() {
    let file = TempFile::new("going", 8192);
    let mut first = Rig::new();
    first.env.open_disk(&file.spec()).unwrap();
    let spec = file.spec();
    let opener = std::thread::spawn(move || Rig::new().env.open_disk(&spec).map(|_| ()));
    // The opener meets the lock in this time; a slow one finds it free.
    let (_never, quiet) = std::sync::mpsc::channel::<()>();
    assert!(quiet.recv_timeout(std::time::Duration::from_millis(100)).is_err());
    drop(first);
    opener.join().unwrap().unwrap();
}

#[test]
fn file_says_what_is_of_its_file_system_and_what_of_its_device() {
    let file = TempFile::new("capabilities", 1 << 20);
    let spec = file.spec();
    let info = Rig::new().env.open_disk(&spec).unwrap();
    assert_eq!(info.path, spec.path);
    assert!(info.capabilities.file_system.is_some(), "{info:?}");
    let Some(name) = info.capabilities.block_device else { return };
    // A partition has no queue of its own.
    let queue = std::path::Path::new("/sys/class/block").join(&name).join("queue/rotational");
    if let Ok(told) = std::fs::read_to_string(queue) {
        assert_eq!(info.capabilities.is_rotational, Some(told.trim() == "1"), "{name}");
    }
}
