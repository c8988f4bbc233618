//! The server: connections, requests in flight, and per turn at most one receive and one send for each
//! connection.
//!
//! Input: `env` events of this server, completions of the device. Output: `env` operations and device
//! requests. A turn is: events, completions, then [`NbdServer::end_turn`], which sends all replies of the
//! turn in one vectored send for each connection and receives again.
//!
//! Invariant: a connection over its limits, or a device that is busy, stops the *receiving*. The client's
//! bytes then wait in its own socket, not in this process's memory.

mod conn;
mod failures;
mod outbox;
mod pending;
#[cfg(test)]
mod tests;

use crate::metrics::{Answered, Counting, NbdMetrics, SLOW};
use crate::proto::{Command, Export, Header, NbdError, reply};
use conn::{Conn, Step};
use device::{Answer, BlockDevice, Busy, Completion, EXTENTS_LEN_MAX, Request};
use env::{ConnId, Event, ListenerId, NetAddr, NetError, Op, Token};
use failures::Failures;
use pending::{Pending, PendingTable};
use std::time::Duration;
use types::{Errno, Time};

/// Settings of one server. `Default` has production values for all but the name.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The export's name, `pool/volume`; the empty name works too. Empty: the device's own name.
    pub export: String,
    /// One line that clients may show. May be empty.
    pub description: String,
    /// Most clients; a further one is disconnected at once. Default 128.
    pub connections_max: usize,
    /// Most requests in flight of one connection, until their replies are sent. Default 256, at least 1.
    pub requests_max: u32,
    /// Most bytes of reads and writes in flight of one connection, until their replies are sent. A larger
    /// request passes alone. Default 32 MiB: all connections together hold 4 GiB at most.
    pub bytes_max: u64,
    /// Time in which a client must leave the handshake; then it is disconnected. Default 30 s.
    pub handshake_timeout: Duration,
}

impl Default for NbdConfig {
    fn default() -> NbdConfig {
        NbdConfig {
            export: String::new(),
            description: String::new(),
            connections_max: 128,
            requests_max: 256,
            bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(30),
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NbdStats {
    pub accepted: u64,
    /// Clients that were disconnected because `connections_max` was reached.
    pub turned_away: u64,
    /// Clients that were disconnected for malformed bytes, or for silence.
    pub violations: u64,
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Longest range that is looked at for a request that wants only the first extent.
const EXTENTS_ONE_LEN_MAX: u64 = 64 << 20;
/// Most extents in one reply; the protocol lets the client ask again for the rest.
const EXTENTS_MAX: usize = 1024;

const _: () = assert!(crate::proto::REQUEST_LEN_MAX as u64 == device::REQUEST_LEN_MAX);

/// All NBD clients of one device.
pub struct NbdServer {
    owner: u8,
    config: NbdConfig,
    listeners: Vec<ListenerId>,
    conns: Vec<Option<Conn>>,
    generation: u32,
    pending: PendingTable,
    /// A request that the busy device refused: it is submitted first, and until then no other request is
    /// taken.
    held: Option<(Request, u64)>,
    stats: NbdStats,
    counting: Counting,
    failures: Failures,
}

impl NbdServer {
    /// Returns a server whose operations carry `owner` in their tokens.
    ///
    /// # Panics
    /// When a limit in `config` is zero.
    pub fn new(owner: u8, config: NbdConfig) -> NbdServer {
        assert!(config.requests_max > 0 && config.connections_max > 0 && config.bytes_max > 0, "{config:?}");
        NbdServer {
            owner,
            config,
            listeners: Vec::new(),
            conns: Vec::new(),
            generation: 0,
            pending: PendingTable::default(),
            held: None,
            counting: Counting::default(),
            stats: NbdStats::default(),
            failures: Failures::default(),
        }
    }

    /// Counts into `metrics` from now on; the owner then calls [`NbdServer::count`] at the end of each turn.
    pub fn count_into(&mut self, metrics: NbdMetrics) {
        self.counting.set(metrics);
    }

    /// Whether this turn has replies, so that [`NbdServer::count`] needs the clock.
    pub fn has_replies(&self) -> bool {
        self.counting.has_replies()
    }

    /// Counts the replies of the turn that ends at `now`.
    pub fn count(&mut self, now: Time) {
        self.counting.end_turn(now);
        let connections = self.connection_count();
        let Some(metrics) = self.counting.look(now) else { return };
        let (mut requests, mut slow) = (0, 0);
        for since in self.pending.ages() {
            requests += 1;
            slow += i64::from(now.since(since) > SLOW);
        }
        metrics.requests.set(requests);
        metrics.requests_slow.set(slow);
        metrics.connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
        for (counter, total) in [
            (&metrics.accepted, self.stats.accepted),
            (&metrics.turned_away, self.stats.turned_away),
            (&metrics.violations, self.stats.violations),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// Accepts NBD clients on the connections of `listener`.
    pub fn listen(&mut self, listener: ListenerId) {
        self.listeners.push(listener);
    }

    /// Whether connections of `listener` belong to this server.
    pub fn owns(&self, listener: ListenerId) -> bool {
        self.listeners.contains(&listener)
    }

    pub fn stats(&self) -> NbdStats {
        self.stats
    }

    pub fn connection_count(&self) -> usize {
        self.conns.iter().flatten().count()
    }

    /// Handles an event of this server, or an accepted connection of its listeners; others are ignored.
    pub fn handle_event(&mut self, now: Time, event: Event, device: &mut dyn BlockDevice, ops: &mut Vec<Op>) {
        match event {
            Event::Accepted { listener, conn, peer } if self.owns(listener) => {
                self.accept(now, conn, &peer, device, ops);
            }
            Event::Received { token, conn, bufs, result } if token.owner == self.owner => {
                if !self.is_live(token, conn) {
                    return;
                }
                match result {
                    Ok(count) => {
                        self.conn_mut(token.key).received(bufs, count);
                        self.advance(now, token.key, device, ops);
                    }
                    Err(error) => self.lost(token.key, &error, ops),
                }
            }
            Event::Sent { token, conn, result } if token.owner == self.owner => {
                if !self.is_live(token, conn) {
                    return;
                }
                match result {
                    Ok(()) => self.conn_mut(token.key).sent(),
                    Err(error) => self.lost(token.key, &error, ops),
                }
            }
            _ => {}
        }
    }

    /// Takes completions of the device. The server owns all tokens of the device.
    pub fn handle_completions(&mut self, completions: &mut Vec<Completion>) {
        for completion in completions.drain(..) {
            let Some(pending) = self.pending.remove(completion.token) else {
                panic!("the device completed {:#x}, which is not in flight", completion.token);
            };
            self.complete(&pending, completion.result);
        }
    }

    /// Ends the turn: takes waiting requests, sends the replies, receives again, closes finished
    /// connections.
    pub fn end_turn(&mut self, now: Time, device: &mut dyn BlockDevice, ops: &mut Vec<Op>) {
        if let Some((request, token)) = self.held.take() {
            self.submit(now, request, token, device);
        }
        self.failures.tell(now, &self.config.export);
        for key in 0..self.conns.len() as u32 {
            if self.conns[key as usize].as_ref().is_some_and(Conn::is_paused) {
                self.advance(now, key, device, ops);
            }
            let Some(conn) = self.conns[key as usize].as_mut() else { continue };
            if now >= conn.deadline() {
                tracing::warn!(conn = ?conn.id, "NBD client did not finish its handshake in time");
                self.stats.violations += 1;
                self.close(key, ops);
                continue;
            }
            let token = Token::new(self.owner, conn.generation, key);
            conn.start_send(token, ops);
            if conn.is_over() {
                self.close(key, ops);
            } else {
                conn.start_receive(token, ops);
            }
        }
    }

    /// Returns when the next turn is due at the latest: for a handshake that takes too long, and for a line of the log.
    pub fn next_deadline(&self) -> Time {
        self.conns.iter().flatten().map(Conn::deadline).fold(self.failures.deadline(), Time::min)
    }

    /// Disconnects every client. Requests in flight continue in the device; their completions are dropped.
    pub fn close_all(&mut self, ops: &mut Vec<Op>) {
        for key in 0..self.conns.len() as u32 {
            if self.conns[key as usize].is_some() {
                self.close(key, ops);
            }
        }
    }

    fn is_live(&self, token: Token, id: ConnId) -> bool {
        let conn = self.conns.get(token.key as usize).and_then(Option::as_ref);
        conn.is_some_and(|conn| conn.generation == token.generation && conn.id == id)
    }

    fn conn_mut(&mut self, key: u32) -> &mut Conn {
        self.conns[key as usize].as_mut().expect("the caller has seen that it is live")
    }

    fn accept(&mut self, now: Time, id: ConnId, peer: &NetAddr, device: &dyn BlockDevice, ops: &mut Vec<Op>) {
        if self.connection_count() >= self.config.connections_max {
            tracing::warn!(%peer, max = self.config.connections_max, "NBD client refused: too many connections");
            self.stats.turned_away += 1;
            ops.push(Op::Close { conn: id });
            return;
        }
        tracing::info!(%peer, conn = ?id, "NBD client connected");
        self.stats.accepted += 1;
        let (export, deadline) = (self.export(device), now + self.config.handshake_timeout);
        let generation = self.next_generation();
        self.keep(Conn::new(id, generation, export, deadline));
    }

    /// Serves a connection to the kernel's client, which knows the export already: see [`crate::kernel`].
    pub fn attach(&mut self, id: ConnId, device: &dyn BlockDevice) {
        self.stats.accepted += 1;
        let (export, generation) = (self.export(device), self.next_generation());
        self.keep(Conn::negotiated(id, generation, export));
    }

    /// Returns when the oldest unanswered request came.
    pub fn oldest_request(&self) -> Option<Time> {
        self.pending.ages().min()
    }

    /// Whether a connection is open.
    pub fn is_connected(&self, id: ConnId) -> bool {
        self.conns.iter().flatten().any(|conn| conn.id == id)
    }

    /// Changes the length of the export on one connection, whose client hears of it in another way.
    pub fn resize(&mut self, id: ConnId, len_bytes: u64) {
        self.conns.iter_mut().flatten().filter(|conn| conn.id == id).for_each(|conn| conn.resize(len_bytes));
    }

    fn export(&self, device: &dyn BlockDevice) -> Export {
        let info = device.info();
        let name = if self.config.export.is_empty() { &info.name } else { &self.config.export };
        Export {
            name: name.clone(),
            description: self.config.description.clone(),
            len_bytes: info.len_bytes,
            read_only: info.read_only,
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn keep(&mut self, conn: Conn) {
        match self.conns.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(conn),
            None => self.conns.push(Some(conn)),
        }
    }

    fn lost(&mut self, key: u32, error: &NetError, ops: &mut Vec<Op>) {
        tracing::info!(conn = ?self.conn_mut(key).id, %error, "NBD client disconnected");
        self.close(key, ops);
    }

    fn close(&mut self, key: u32, ops: &mut Vec<Op>) {
        let conn = self.conns[key as usize].take().expect("closed once");
        ops.push(Op::Close { conn: conn.id });
    }

    /// Takes as many requests of the connection's bytes as limits and device allow.
    fn advance(&mut self, now: Time, key: u32, device: &mut dyn BlockDevice, ops: &mut Vec<Op>) {
        loop {
            let busy = self.held.is_some();
            let config = &self.config;
            let conn = self.conns[key as usize].as_mut().expect("the caller has seen that it is live");
            match conn.step(config, busy) {
                Ok(Step::Wait) => return,
                Ok(Step::Refused { header, error }) => {
                    self.stats.requests += 1;
                    self.counting.refused();
                    self.failures.note(&header, &format_args!("refused: {error:?}"));
                    self.refuse(key, &header, error, "");
                }
                Ok(Step::Request { header, command, request }) => {
                    self.stats.requests += 1;
                    let generation = self.conn_mut(key).generation;
                    let token = self.pending.insert(Pending { key, generation, header, command, since: now });
                    self.submit(now, request, token, device);
                }
                Err(error) => {
                    tracing::warn!(conn = ?conn.id, %error, "NBD client broke the protocol");
                    self.stats.violations += 1;
                    return self.close(key, ops);
                }
            }
        }
    }

    fn submit(&mut self, now: Time, request: Request, token: u64, device: &mut dyn BlockDevice) {
        if let Err(Busy(request)) = device.submit(now, request, token) {
            assert!(self.held.is_none(), "no request is taken up while one is held");
            self.held = Some((request, token));
        }
    }

    fn refuse(&mut self, key: u32, header: &Header, error: NbdError, text: &str) {
        self.stats.errors += 1;
        let conn = self.conn_mut(key);
        conn.outbox.finish(header);
        if conn.answers_in_chunks(header) {
            reply::error(&mut conn.outbox.head, header.cookie, error, text);
        } else {
            reply::simple(&mut conn.outbox.head, header.cookie, Some(error));
        }
    }

    fn complete(&mut self, pending: &Pending, result: Result<Answer, Errno>) {
        let slot = self.conns.get_mut(pending.key as usize).and_then(Option::as_mut);
        let Some(conn) = slot.filter(|conn| conn.generation == pending.generation) else { return };
        let header = &pending.header;
        let (command, since, ok) = (pending.command, pending.since, result.is_ok());
        self.counting.answered(Answered { command, header: *header, since, ok });
        match (pending.command, result) {
            (_, Err(errno)) => {
                if errno != Errno::Shutdown {
                    self.failures.note(header, &errno);
                }
                return self.refuse(pending.key, header, errno.into(), &errno.to_string());
            }
            (Command::Read { whole }, Ok(Answer::Data(pieces))) => {
                self.stats.read_bytes += u64::from(header.len);
                if conn.session().structured {
                    conn.outbox.read_chunks(header, pieces, whole);
                } else {
                    conn.outbox.read_simple(header, pieces);
                }
            }
            (Command::BlockStatus { one }, Ok(Answer::Extents(extents))) => {
                let extents = clip_extents(&extents, header.len, if one { 1 } else { EXTENTS_MAX });
                reply::block_status(&mut conn.outbox.head, header.cookie, &extents);
            }
            (Command::Read { .. } | Command::BlockStatus { .. }, Ok(answer)) => {
                panic!("the device answered {:?} with {answer:?}", pending.command)
            }
            (command, Ok(_)) => {
                if matches!(command, Command::Write { .. }) {
                    self.stats.written_bytes += u64::from(header.len);
                }
                reply::simple(&mut conn.outbox.head, header.cookie, None);
            }
        }
        conn.outbox.finish(header);
    }
}

/// Returns the first `count_max` extents, none past `len`: a reply never covers more than was requested.
fn clip_extents(extents: &[(u64, bool)], len: u32, count_max: usize) -> Vec<(u32, bool)> {
    let mut left = len;
    let mut out = Vec::with_capacity(extents.len().min(count_max));
    for (extent, data) in extents.iter().take(count_max) {
        let now = u32::try_from(*extent).unwrap_or(u32::MAX).min(left);
        if now == 0 {
            break;
        }
        out.push((now, *data));
        left -= now;
    }
    assert!(!out.is_empty(), "the device described nothing of {len} bytes");
    out
}
