//! The real world: one io_uring, driven by the loop that owns it.
//!
//! It takes the operations of a turn and returns every completion. A turn enters the kernel once, to submit and to
//! wait; only a submission queue that is too small adds entries. Invariant: the kernel never gets memory or a
//! descriptor that may go away. Flights own buffers; connections are closed after their last flight; dropping
//! [`RealEnv`] cancels, waits for every flight and only then frees. `unsafe` of this crate is in this folder alone.
//!
//! It uses io_uring's own types and no runtime: the loop needs all completions of a turn at once, and the whole system
//! is measured by its CPU per round (design §8).
#![allow(unsafe_code)]

mod disk;
pub mod embed;
mod flight;
mod net;
mod poll;
mod probe;
mod ring;
mod sys;
#[cfg(test)]
mod tests;

use crate::op::{
    ConnId, DiskError, DiskId, DiskInfo, DiskSpec, EnvError, Event, ListenerId, NetAddr, NetError, Op, Token,
};
use crate::world::{Env, Waker};
use disk::Disk;
use flight::{
    Body, Cursor, Flight, Spares, Step, connect_error, disk_error, split_user_data, stream_error, tag, user_data,
};
use io_uring::{cqueue, opcode, types as uring};
use net::{Conns, Listener};
use poll::BusyPoll;
use ring::{Cqe, Ring, Wait};
use slab::Slab;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
pub use sys::{become_io_flusher, raise_file_limit};
use types::rng::Rng;
use types::{IoBuf, IoBufMut, Time};

/// Pause of a listener after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Longest wait for resources of a process that has exited. After a `kill -9` the kernel finishes the ring's
/// operations, and keeps files, locks and listening sockets until then: a successor that starts at once has to wait for
/// that.
const PREDECESSOR_WAIT_MAX: Duration = Duration::from_secs(3);
const PREDECESSOR_LOOK: Duration = Duration::from_millis(50);

/// Number of no turn.
const NEVER_QUIET: u64 = 0;

/// Retries `attempt` until it succeeds, fails for another reason than `is_held`, or has waited long enough.
#[allow(clippy::disallowed_methods, reason = "at start there is no loop yet to wait in, and no event to wait for")]
fn after_predecessor<T>(
    attempt: impl Fn() -> Result<T, EnvError>,
    is_held: impl Fn(&EnvError) -> bool,
) -> Result<T, EnvError> {
    let until = Instant::now() + PREDECESSOR_WAIT_MAX;
    loop {
        match attempt() {
            Err(e) if is_held(&e) && Instant::now() < until => std::thread::sleep(PREDECESSOR_LOOK),
            result => return result,
        }
    }
}

/// Settings of a [`RealEnv`].
#[derive(Clone, Copy, Debug)]
pub struct RealConfig {
    /// Entries of the submission queue: about the operations of one busy turn. More operations work too, at the price
    /// of another kernel entry. A power of two, 8 to 32768. Default 256.
    pub ring_entries: u32,
    /// Longest time for which a turn looks for completions before it sleeps. Each look enters the kernel, and the thread uses its core
    /// meanwhile. A thread whose waits are longer than that does not look. Default zero: it sleeps at once.
    pub busy_poll: Duration,
}

impl Default for RealConfig {
    fn default() -> RealConfig {
        RealConfig { ring_entries: 256, busy_poll: Duration::ZERO }
    }
}

/// The real form of [`Env`]. It is used and dropped on the thread that created it.
pub struct RealEnv {
    ring: Ring,
    poll: BusyPoll,
    flights: Slab<Flight>,
    next_generation: u32,
    spares: Spares,
    disks: Vec<Disk>,
    conns: Conns,
    listeners: Vec<Listener>,
    wake: Arc<WakeFd>,
    /// Target of the ring's read of the eventfd; boxed, because the kernel writes there.
    wake_count: Box<u64>,
    wake_armed: bool,
    /// Number of the present turn, from 1.
    turn: u64,
    /// Events of the present turn that do not end it.
    quiet: usize,
    /// Events that need no kernel: refusals.
    ready: Vec<Event>,
    cqes: Vec<Cqe>,
    rng: Rng,
    /// The env is being dropped: nothing is submitted again.
    ending: bool,
}

/// The eventfd behind every [`Waker`]; wakers keep it longer than the env.
struct WakeFd {
    fd: OwnedFd,
    /// A wake is in progress: later ones need no system call.
    pending: AtomicBool,
}

impl RealEnv {
    /// # Errors
    /// [`EnvError::NoIoUring`] when the kernel or its policy refuses.
    pub fn new(config: RealConfig) -> Result<RealEnv, EnvError> {
        let ring = Ring::new(config.ring_entries.clamp(8, 32768))?;
        let seed = sys::random_bytes().map(u64::from_ne_bytes).map_err(EnvError::Random)?;
        let fd = sys::eventfd().map_err(EnvError::Ring)?;
        Ok(RealEnv {
            ring,
            poll: BusyPoll::new(config.busy_poll),
            flights: Slab::with_capacity(config.ring_entries as usize),
            next_generation: 0,
            spares: Spares::default(),
            disks: Vec::new(),
            conns: Conns::default(),
            listeners: Vec::new(),
            wake: Arc::new(WakeFd { fd, pending: AtomicBool::new(false) }),
            wake_count: Box::new(0),
            wake_armed: false,
            turn: NEVER_QUIET,
            quiet: 0,
            ready: Vec::new(),
            cqes: Vec::new(),
            rng: Rng::new(seed),
            ending: false,
        })
    }

    /// Takes over a connected socket, which is closed like any other connection.
    pub fn adopt(&mut self, socket: impl Into<OwnedFd>) -> ConnId {
        self.conns.add(socket.into())
    }

    /// Begins one operation: it goes to the ring, or straight to `ready` when it is refused.
    fn start(&mut self, op: Op) -> Result<(), EnvError> {
        match op {
            Op::DiskRead { token, disk, offset, buf } => match self.disk_at(disk, offset, buf.len() as u64, false) {
                Ok(fd) if !buf.is_empty() => self.fly(fd, Body::Read { token, offset, buf, done: 0 }).map(drop),
                result => self.refuse(Event::DiskRead { token, buf, result: result.map(drop) }),
            },
            Op::DiskWrite { token, disk, offset, bufs, flush } => {
                let cursor = Cursor::new(&bufs);
                let len = bufs.iter().map(|b| b.len() as u64).sum();
                match self.disk_at(disk, offset, len, true) {
                    Ok(fd) if len > 0 || flush => {
                        self.fly(fd, Body::Write { token, offset, bufs, cursor, flush }).map(drop)
                    }
                    result => self.refuse(Event::DiskWrite { token, result: result.map(drop) }),
                }
            }
            Op::DiskFlush { token, disk } => match self.disk_at(disk, 0, 0, true) {
                Ok(fd) => self.fly(fd, Body::Flush { token }).map(drop),
                Err(e) => self.refuse(Event::DiskFlush { token, result: Err(e) }),
            },
            Op::DiskDiscard { token, disk, offset, len_bytes } => match self.disk_at(disk, offset, len_bytes, true) {
                Ok(fd) if len_bytes > 0 => self.fly(fd, Body::Discard { token, offset, len_bytes }).map(drop),
                result => self.refuse(Event::DiskDiscard { token, result: result.map(drop) }),
            },
            Op::Connect { token, addr } => self.connect(token, &addr),
            Op::Recv { token, conn, bufs, min } => self.receive(token, conn, bufs, min),
            Op::Send { token, conn, bufs, quiet } => self.send(token, conn, bufs, quiet),
            Op::Close { conn } => self.close(conn),
        }
    }

    fn refuse(&mut self, event: Event) -> Result<(), EnvError> {
        self.ready.push(event);
        Ok(())
    }

    /// Returns the disk's descriptor, if the range lies on the disk.
    fn disk_at(&self, disk: DiskId, offset: u64, len: u64, write: bool) -> Result<i32, DiskError> {
        let disk = &self.disks[disk.0 as usize];
        if write && disk.read_only {
            return Err(DiskError::Io(libc::EROFS));
        }
        match offset.checked_add(len) {
            Some(end) if end <= disk.size_bytes => Ok(disk.file.as_raw_fd()),
            _ => Err(DiskError::OutOfRange { offset, len }),
        }
    }

    /// Puts an operation into the slab and into the ring.
    fn fly(&mut self, fd: i32, body: Body) -> Result<usize, EnvError> {
        self.next_generation = self.next_generation.wrapping_add(1) & 0xff_ffff;
        let key = self.flights.insert(Flight::new(self.next_generation, fd, body));
        self.flights[key].submit(key, &mut self.ring, &mut self.spares)?;
        Ok(key)
    }

    fn connect(&mut self, token: Token, addr: &NetAddr) -> Result<(), EnvError> {
        let prepared = flight_socket(addr);
        match prepared {
            Ok((socket, addr)) => self.fly(socket.as_raw_fd(), Body::Connect { token, socket, addr }).map(drop),
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::EINVAL);
                self.refuse(Event::Connected { token, result: Err(NetError::Unreachable(errno)) })
            }
        }
    }

    fn receive(&mut self, token: Token, conn: ConnId, bufs: Vec<IoBufMut>, min: usize) -> Result<(), EnvError> {
        let Some(open) = self.conns.open(conn) else {
            return self.refuse(Event::Received { token, conn, bufs, result: Err(NetError::Closed) });
        };
        assert!(open.recv.is_none(), "two receives on {conn:?}");
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        assert!(min > 0 && min <= room, "a receive of at least {min} B into {room} B");
        let fd = open.fd();
        let cursor = Cursor::new(&bufs);
        let key = self.fly(fd, Body::Recv { token, conn, bufs, cursor, got: 0, min })?;
        self.conns.open(conn).expect("it was open").recv = Some(key);
        Ok(())
    }

    fn send(&mut self, token: Token, conn: ConnId, bufs: Vec<IoBuf>, quiet: bool) -> Result<(), EnvError> {
        let Some(open) = self.conns.open(conn) else {
            return self.refuse(Event::Sent { token, conn, result: Err(NetError::Closed) });
        };
        assert!(open.send.is_none(), "two sends on {conn:?}");
        assert!(bufs.iter().any(|b| !b.is_empty()), "an empty send on {conn:?}");
        let fd = open.fd();
        let cursor = Cursor::new(&bufs);
        let quiet_in = if quiet { self.turn } else { NEVER_QUIET };
        let key = self.fly(fd, Body::Send { token, conn, bufs, cursor, quiet_in })?;
        self.conns.open(conn).expect("it was open").send = Some(key);
        Ok(())
    }

    fn close(&mut self, id: ConnId) -> Result<(), EnvError> {
        let Some(conn) = self.conns.open(id) else { return Ok(()) };
        conn.closing = true;
        let flights = [conn.recv, conn.send];
        for key in flights.into_iter().flatten() {
            self.cancel(key)?;
        }
        self.conns.reap(id);
        Ok(())
    }

    fn cancel(&mut self, key: usize) -> Result<(), EnvError> {
        let target = user_data(tag::OP, self.flights[key].generation, key);
        self.cancel_entry(target)
    }

    fn cancel_entry(&mut self, target: u64) -> Result<(), EnvError> {
        self.ring.push(&opcode::AsyncCancel::new(target).build().user_data(user_data(tag::CANCEL, 0, 0)))
    }

    /// Puts the standing operations (eventfd, accepts) back into the ring.
    fn arm(&mut self, now: impl Fn() -> Time) -> Result<(), EnvError> {
        if !self.wake_armed {
            let to = (&raw mut *self.wake_count).cast::<u8>();
            let entry = opcode::Read::new(uring::Fd(self.wake.fd.as_raw_fd()), to, 8).build();
            self.ring.push(&entry.user_data(user_data(tag::WAKE, 0, 0)))?;
            self.wake_armed = true;
        }
        for listener in self.listeners.iter_mut().filter(|l| !l.armed) {
            if listener.retry_at > Time::ZERO && listener.retry_at > now() {
                continue;
            }
            let fd = uring::Fd(listener.fd());
            let entry = if listener.multishot {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
            } else {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
            };
            self.ring.push(&entry.user_data(user_data(tag::ACCEPT, 0, listener.id.0 as usize)))?;
            listener.armed = true;
        }
        Ok(())
    }

    /// Returns how long the next kernel entry may wait. `deadline` is the caller's.
    fn wait_for(&self, deadline: Time) -> Wait {
        let retry = self.listeners.iter().filter(|l| !l.armed).map(|l| l.retry_at).min();
        let until = retry.map_or(deadline, |retry| retry.min(deadline));
        if until == Time::NEVER {
            return Wait::Forever;
        }
        match until.since(sys::boot_time()) {
            Duration::ZERO => Wait::No,
            left => Wait::AtMost(left),
        }
    }

    /// Submits and waits as `wait` says. A wait begins with polling while that pays.
    fn enter(&mut self, wait: Wait) -> Result<(), EnvError> {
        let most = match wait {
            Wait::No => return self.ring.enter(Wait::No),
            Wait::AtMost(left) => left,
            Wait::Forever => Duration::MAX,
        };
        if !self.poll.is_on() {
            return self.ring.enter(wait);
        }
        let since = sys::boot_time();
        let window = self.poll.window().min(most);
        let mut waited = Duration::ZERO;
        while waited < window {
            self.ring.enter(Wait::No)?;
            waited = sys::boot_time().since(since);
            if self.ring.has_completions() {
                self.poll.note(waited);
                return Ok(());
            }
        }
        let left = most.saturating_sub(waited);
        self.ring.enter(if matches!(wait, Wait::Forever) { wait } else { Wait::AtMost(left) })?;
        self.poll.note(sys::boot_time().since(since));
        Ok(())
    }

    /// Takes all completions and turns them into events, or submits their operations again.
    fn reap(&mut self, events: &mut Vec<Event>) -> Result<(), EnvError> {
        let mut cqes = std::mem::take(&mut self.cqes);
        self.ring.drain(&mut cqes);
        for cqe in cqes.drain(..) {
            let (tag, generation, key) = split_user_data(cqe.user_data);
            match tag {
                tag::OP | tag::SYNC => self.landed(tag, generation, key, cqe.result, events)?,
                tag::WAKE => {
                    self.wake_armed = false;
                    // The flag is cleared before the loop examines its queues, so that a later wake is not lost.
                    self.wake.pending.store(false, Ordering::SeqCst);
                    if cqe.result > 0 {
                        events.push(Event::Woken);
                    }
                }
                tag::ACCEPT => self.accepted(key, cqe, events),
                tag::CANCEL => {}
                other => panic!("a completion with the unknown tag {other}"),
            }
        }
        self.cqes = cqes;
        Ok(())
    }

    fn landed(
        &mut self,
        tag: u8,
        generation: u32,
        key: usize,
        result: i32,
        events: &mut Vec<Event>,
    ) -> Result<(), EnvError> {
        let flight = self.flights.get_mut(key).expect("a completion belongs to a flight");
        assert_eq!(flight.generation, generation, "a completion belongs to this flight, not to an earlier one");
        let Some(step) = flight.absorb(tag, result) else { return Ok(()) };
        let given_up = self.ending
            || match &flight.body {
                Body::Recv { conn, .. } | Body::Send { conn, .. } => self.conns.open(*conn).is_none(),
                _ => false,
            };
        match step {
            Step::Again if !given_up => flight.submit(key, &mut self.ring, &mut self.spares),
            step => {
                let errno = if let Step::Done(errno) = step { errno } else { libc::ECANCELED };
                let flight = self.flights.remove(key);
                self.spares.give(flight.vectors);
                let event = self.conclude(key, flight.body, errno);
                events.push(event);
                Ok(())
            }
        }
    }

    /// Returns the event of an operation that has ended.
    fn conclude(&mut self, key: usize, body: Body, errno: i32) -> Event {
        match body {
            Body::Read { token, buf, .. } => Event::DiskRead { token, buf, result: disk_error(errno) },
            Body::Write { token, .. } => Event::DiskWrite { token, result: disk_error(errno) },
            Body::Flush { token } => Event::DiskFlush { token, result: disk_error(errno) },
            Body::Discard { token, .. } => Event::DiskDiscard { token, result: disk_error(errno) },
            Body::Connect { token, socket, .. } => {
                let result = connect_error(errno).map(|()| self.conns.add(socket));
                Event::Connected { token, result }
            }
            Body::Recv { token, conn, bufs, got, .. } => {
                let closing = self.conns.landed(conn, key);
                let result = if closing { Err(NetError::Closed) } else { stream_error(errno).map(|()| got) };
                Event::Received { token, conn, bufs, result }
            }
            Body::Send { token, conn, quiet_in, .. } => {
                let closing = self.conns.landed(conn, key);
                let result = if closing { Err(NetError::Closed) } else { stream_error(errno) };
                self.quiet += usize::from(quiet_in == self.turn && result.is_ok());
                Event::Sent { token, conn, result }
            }
        }
    }

    fn accepted(&mut self, index: usize, cqe: Cqe, events: &mut Vec<Event>) {
        let listener = &mut self.listeners[index];
        listener.armed = cqueue::more(cqe.flags);
        listener.retry_at = Time::ZERO;
        if cqe.result < 0 {
            match -cqe.result {
                libc::EINVAL if listener.multishot => listener.multishot = false,
                libc::ECONNABORTED | libc::EINTR | libc::EAGAIN => {}
                _ => listener.retry_at = sys::boot_time() + ACCEPT_REST,
            }
            return;
        }
        // SAFETY: an accept's result is a fresh descriptor without another owner.
        let fd = unsafe { sys::adopt(cqe.result) };
        if let Some((fd, peer)) = listener.greet(fd)
            && !self.ending
        {
            let listener = listener.id;
            let conn = self.conns.add(fd);
            events.push(Event::Accepted { listener, conn, peer });
        }
    }
}

/// Returns a socket and the address that it will connect to.
fn flight_socket(addr: &NetAddr) -> io::Result<(OwnedFd, Box<sys::SockAddr>)> {
    let sock = Box::new(sys::SockAddr::new(addr)?);
    let socket = sys::stream_socket(addr, false)?;
    if matches!(addr, NetAddr::Tcp(_)) {
        sys::tune_tcp(&socket)?;
    }
    Ok((socket, sock))
}

impl Env for RealEnv {
    fn now(&self) -> Time {
        sys::boot_time()
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn secret(&mut self) -> Result<[u8; 16], EnvError> {
        sys::random_bytes().map_err(EnvError::Random)
    }

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, deadline: Time) -> Result<(), EnvError> {
        (self.turn, self.quiet) = (self.turn + 1, 0);
        for op in ops.drain(..) {
            self.start(op)?;
        }
        let before = events.len();
        loop {
            events.append(&mut self.ready);
            self.arm(sys::boot_time)?;
            let wait = if events.len() > before + self.quiet { Wait::No } else { self.wait_for(deadline) };
            self.enter(wait)?;
            self.reap(events)?;
            if events.len() > before + self.quiet || (deadline != Time::NEVER && sys::boot_time() >= deadline) {
                return Ok(());
            }
        }
    }

    fn open_disk(&mut self, spec: &DiskSpec) -> Result<DiskInfo, EnvError> {
        let id = DiskId(u32::try_from(self.disks.len()).expect("fewer than 2^32 disks"));
        let (disk, info) = disk::open(spec, id)?;
        self.disks.push(disk);
        Ok(info)
    }

    fn listen(&mut self, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        let id = ListenerId(u32::try_from(self.listeners.len()).expect("fewer than 2^32 listeners"));
        let (listener, real) = net::listen(addr, id)?;
        self.listeners.push(listener);
        Ok((id, real))
    }

    fn kernel_entries(&self) -> u64 {
        self.ring.entries
    }

    fn waker(&self) -> Waker {
        let wake = Arc::clone(&self.wake);
        Waker::new(move || {
            if !wake.pending.swap(true, Ordering::SeqCst) {
                sys::eventfd_signal(&wake.fd);
            }
        })
    }
}

impl RealEnv {
    /// Cancels operations that wait for peers, and waits for all others.
    fn wind_down(&mut self) -> Result<(), EnvError> {
        self.ending = true;
        let network: Vec<usize> = self.flights.iter().filter(|(_, f)| f.is_network()).map(|(key, _)| key).collect();
        for key in network {
            self.cancel(key)?;
        }
        if self.wake_armed {
            self.cancel_entry(user_data(tag::WAKE, 0, 0))?;
        }
        for index in 0..self.listeners.len() {
            if self.listeners[index].armed {
                self.cancel_entry(user_data(tag::ACCEPT, 0, index))?;
            }
        }
        let mut dropped = Vec::new();
        while !self.flights.is_empty() || self.wake_armed || self.listeners.iter().any(|l| l.armed) {
            self.ring.enter(Wait::Forever)?;
            self.reap(&mut dropped)?;
            dropped.clear();
        }
        Ok(())
    }
}

impl Drop for RealEnv {
    fn drop(&mut self) {
        if self.wind_down().is_err() {
            // The ring is broken, so memory that the kernel may still write to is unknown: leak all of it.
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(std::mem::take(&mut self.wake_count));
            std::mem::forget(std::mem::take(&mut self.conns));
        }
    }
}
