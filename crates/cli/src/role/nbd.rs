//! `basalt nbd`: client and NBD server in one loop, on one thread. With `--device` the kernel is a client of that server.

use crate::address::Address;
use crate::args::NbdArgs;
use crate::device_arg::Wanted;
use crate::errors::{UserError, ended, fenced};
use crate::output;
use crate::role::env_error;
use crate::role::nbd_device::{self, BACKEND, Device, TakesOver, Turn};
use crate::role::nbd_metrics::{self, Endpoint};
use crate::role::session::{Open, Session};
use anyhow::Result;
use device::Completion;
use env::{Env, ListenerId, NetAddr};
use nbd::kernel::{Kernel, KernelDevice};
use nbd::{NbdConfig, NbdServer};
use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use types::{Errno, Time, codes};

const OWNER_NBD: u8 = 3;
/// The port that IANA gave to NBD.
const PORT: u16 = 10809;
/// Time that a write waits in a full pool before its client gets ENOSPC. It is enough to free space, and shorter than
/// the patience of guests (Linux: 30 s for SCSI, 120 s for a hung task).
const FULL_WAIT: Duration = Duration::from_secs(20);

/// Exports a volume until asked to end. The address is bound first: one that cannot be used leaves the volume alone.
pub fn run(args: &NbdArgs, metas: &[Address], as_json: bool) -> Result<()> {
    if args.steal && args.only_reads() {
        let next = "leave --steal out";
        return Err(
            UserError::new(codes::BAD_USAGE, "a client that only reads takes the volume from no other", next).into()
        );
    }
    let http = args.http.as_ref().map(|http| nbd_metrics::listen(http.resolve()?)).transpose()?;
    let kernel = args.device.map(|wanted| anyhow::Ok((wanted, nbd_device::link(wanted)?))).transpose()?;
    let mut prepared = Session::prepare(metas, "nbd", args.ring)?;
    let addr = match (&args.socket, &args.listen) {
        (Some(path), _) => Some(NetAddr::Unix(path.clone())),
        (None, Some(listen)) => Some(NetAddr::Tcp(listen.resolve()?)),
        (None, None) if kernel.is_some() => None,
        (None, None) => Some(NetAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))),
    };
    prepared.full_wait = FULL_WAIT;
    prepared.on_unavailable = args.on_unavailable;
    if kernel.is_some() && nbd_device::some_wait() {
        // An open that is given up may count as one between the process that left the device and the next.
        prepared.open_max = nbd_device::FOREVER;
    }
    let listening = addr.map(|addr| prepared.env.listen(&addr).map_err(env_error)).transpose()?;
    let runtime = prepared.runtime.handle().clone();
    let session = prepared.open(Open { name: &args.volume, write: !args.only_reads(), steal: args.steal })?;
    let mut server = NbdServer::new(OWNER_NBD, NbdConfig { export: args.volume.clone(), ..NbdConfig::default() });
    let metrics = http.map(|http| Endpoint::serve(&runtime, &mut server, http, &args.volume));
    let device = kernel.map(|(wanted, kernel)| connect(kernel, wanted, args, &session)).transpose()?;
    let mut export = Export { args, as_json, listening, session, server, metrics, device, is_begun: false };
    let served = export.serve();
    export.server.close_all(&mut export.session.turns.ops);
    // The device of the next process is this one's, and so is the hold, until its lease ends.
    let keeps = export.device.as_ref().is_some_and(Device::is_kept);
    let closed = if keeps { export.session.keep() } else { export.session.close() };
    served.and(closed)
}

/// Begins to connect the kernel's device. Its name in the kernel says which volume it shows, whatever the volume is called.
fn connect(kernel: Kernel, wanted: Wanted, args: &NbdArgs, session: &Session) -> Result<Device> {
    let client = &session.turns.client;
    let stats = client.stats();
    // An export has one volume.
    let Some(volume) = stats.volumes.first() else { unreachable!("the session has a volume") };
    let cluster = client.cluster().map(|cluster| cluster.to_string()).unwrap_or_default();
    let mode = match (volume.snapshot, args.only_reads()) {
        (Some(snapshot), _) => format!(", snapshot {}", snapshot.0),
        (None, true) => ", read-only".to_owned(),
        (None, false) => String::new(),
    };
    let takes_over = match (args.only_reads(), is_shared(args, session)) {
        (true, _) => TakesOver::Always,
        (false, true) => TakesOver::Never,
        (false, false) => TakesOver::After(volume.epoch),
    };
    let device = KernelDevice {
        backend: format!("{BACKEND}{cluster} volume {}{mode}", volume.volume.0),
        len_bytes: session.info.len_bytes,
        read_only: args.only_reads(),
        dead_wait: if takes_over == TakesOver::Never {
            Duration::ZERO
        } else {
            nbd_device::dead_wait(args.on_unavailable)
        },
    };
    Ok(Device::connect(kernel, wanted, device, takes_over, session.turns.env.waker())?)
}

/// Whether others write to the volume beside this export.
fn is_shared(args: &NbdArgs, session: &Session) -> bool {
    session.info.shared && !args.only_reads()
}

/// An export that is being served.
struct Export<'a> {
    args: &'a NbdArgs,
    as_json: bool,
    /// The listener of clients and its address, if there is one.
    listening: Option<(ListenerId, NetAddr)>,
    session: Session,
    server: NbdServer,
    metrics: Option<Endpoint>,
    device: Option<Device>,
    /// Whether clients are served. Until then what they send waits.
    is_begun: bool,
}

impl Export<'_> {
    /// Answers requests until asked to end, or until the volume or the kernel's device is gone.
    fn serve(&mut self) -> Result<()> {
        if self.device.is_none() {
            self.begin()?;
        }
        let mut done = Vec::new();
        let mut failed = None;
        loop {
            let now = self.session.begin();
            if self.is_begun {
                self.answer(now, &mut done);
            }
            failed = failed.or_else(|| self.failure());
            let ends = failed.is_some() || self.session.interrupted();
            if !self.device_turn(now, ends, failed.is_some())? {
                return failed.map_or(Ok(()), Err);
            }
            let mut deadline = self.server.next_deadline();
            if let Some(device) = &self.device {
                deadline = deadline.min(device.deadline());
            }
            if let Some(metrics) = &mut self.metrics {
                deadline = deadline.min(metrics.end_turn(now, &self.session, &mut self.server));
            }
            self.session.finish(deadline)?;
        }
    }

    /// Takes completions and requests of a turn.
    fn answer(&mut self, now: Time, done: &mut Vec<Completion>) {
        let (session, server) = (&mut self.session, &mut self.server);
        let mut events = std::mem::take(&mut session.turns.events);
        let mut ops = std::mem::take(&mut session.turns.ops);
        let device = session.device();
        device.completions(done);
        server.handle_completions(done);
        for event in events.drain(..) {
            server.handle_event(now, event, device, &mut ops);
        }
        server.end_turn(now, device, &mut ops);
        (session.turns.events, session.turns.ops) = (events, ops);
    }

    /// Returns why no request succeeds any more. Then the server closes, so that clients notice at once.
    fn failure(&mut self) -> Option<anyhow::Error> {
        let name = &self.session.info.name.clone();
        self.session.failure().map(|errno| match errno {
            Errno::Fenced if self.session.info.shared || self.device.is_some() => fenced(name).into(),
            errno => ended(name, errno).into(),
        })
    }

    /// Returns whether the export goes on.
    fn device_turn(&mut self, now: Time, ends: bool, failed: bool) -> Result<bool> {
        let Some(device) = &mut self.device else { return Ok(!ends) };
        if ends {
            device.leave(now, failed || is_shared(self.args, &self.session));
        }
        match device.turn(now, &mut self.server, self.session.device().info().len_bytes)? {
            Turn::Quiet => {}
            Turn::Over => return Ok(false),
            Turn::Attached(ours) => {
                let conn = self.session.turns.env.adopt(ours);
                self.server.attach(conn, self.session.device());
                device.serve(conn);
                // It is received from at the end of the next turn.
                self.session.turns.env.waker().wake();
                self.begin()?;
            }
        }
        Ok(true)
    }

    /// Accepts clients, and says so. Not before the device is connected: what the kernel sends for a dead process is older than all that they write.
    fn begin(&mut self) -> Result<()> {
        self.is_begun = true;
        if let Some((listener, _)) = self.listening {
            self.server.listen(listener);
        }
        self.tell()
    }

    /// Reports where clients connect: a log line, a sentence at a terminal, and one line of JSON for programs.
    fn tell(&self) -> Result<()> {
        let (volume, bytes) = (&self.args.volume, self.session.info.len_bytes);
        let uri = self.listening.as_ref().map(|(_, bound)| uri(volume, bound));
        let device = self.device.as_ref().map(Device::path);
        let (read_only, on_unavailable) = (self.args.only_reads(), self.args.on_unavailable);
        tracing::info!(volume, at = uri, device, bytes, read_only, %on_unavailable, "exported");
        if self.as_json {
            let body = serde_json::json!({
                "volume": volume,
                "uri": uri,
                "device": device,
                "len_bytes": bytes,
                "read_only": read_only,
                "pid": std::process::id(),
            });
            return output::ready("nbd", body);
        }
        if std::io::stdout().is_terminal() {
            let places: Vec<&str> = device.into_iter().chain(uri.as_deref()).collect();
            out!("exported {volume}: connect with {}", places.join(" or "));
        }
        // A program waits for this line; the process goes on.
        Ok(std::io::stdout().flush()?)
    }
}

/// Returns the NBD URI of an export (RFC 3986: bytes that are neither unreserved nor `/` are escaped).
fn uri(volume: &str, bound: &NetAddr) -> String {
    match bound {
        NetAddr::Unix(path) => format!("nbd+unix:///{volume}?socket={}", escaped(path.as_os_str().as_bytes())),
        other => format!("nbd://{other}/{volume}"),
    }
}

fn escaped(bytes: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    bytes.iter().map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::uri;
    use env::NetAddr;

    #[test]
    fn a_uri_names_the_socket_with_what_is_special_escaped() {
        let unix = |path: &str| uri("main/vm1", &NetAddr::Unix(path.into()));
        assert_eq!(unix("/run/vm1.sock"), "nbd+unix:///main/vm1?socket=/run/vm1.sock");
        assert_eq!(unix("/run/a b&c.sock"), "nbd+unix:///main/vm1?socket=/run/a%20b%26c.sock");
        let tcp = NetAddr::Tcp("[::1]:10809".parse().expect("an address"));
        assert_eq!(uri("main/vm1", &tcp), "nbd://[::1]:10809/main/vm1");
    }
}
