//! `basalt nbd`: client and NBD server in one loop, on one thread.

use crate::address::Address;
use crate::args::NbdArgs;
use crate::errors::{UserError, ended, fenced};
use crate::output;
use crate::role::env_error;
use crate::role::nbd_metrics::{self, Endpoint};
use crate::role::session::{Open, Session};
use anyhow::Result;
use env::{Env, NetAddr};
use nbd::{NbdConfig, NbdServer};
use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use types::{Errno, codes};

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
    let mut prepared = Session::prepare(metas, "nbd")?;
    let addr = match (&args.socket, &args.listen) {
        (Some(path), _) => NetAddr::Unix(path.clone()),
        (None, Some(listen)) => NetAddr::Tcp(listen.resolve()?),
        (None, None) => NetAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))),
    };
    prepared.full_wait = FULL_WAIT;
    prepared.on_unavailable = args.on_unavailable;
    let (listener, bound) = prepared.env.listen(&addr).map_err(env_error)?;
    let runtime = prepared.runtime.handle().clone();
    let mut session = prepared.open(Open { name: &args.volume, write: !args.only_reads(), steal: args.steal })?;
    let mut server = NbdServer::new(OWNER_NBD, NbdConfig { export: args.volume.clone(), ..NbdConfig::default() });
    server.listen(listener);
    let mut metrics = http.map(|http| Endpoint::serve(&runtime, &mut server, http, &args.volume));
    exported(args, &bound, session.info.len_bytes, as_json)?;
    let served = serve(&mut session, &mut server, metrics.as_mut());
    server.close_all(&mut session.turns.ops);
    let closed = session.close();
    served.and(closed)
}

/// Reports where clients connect: a log line, a sentence at a terminal, and one line of JSON for programs.
fn exported(args: &NbdArgs, bound: &NetAddr, bytes: u64, as_json: bool) -> Result<()> {
    let uri = uri(&args.volume, bound);
    tracing::info!(volume = args.volume, at = %bound, bytes, read_only = args.only_reads(), on_unavailable = %args.on_unavailable, "exported");
    if as_json {
        let body = serde_json::json!({
            "volume": args.volume,
            "uri": uri,
            "len_bytes": bytes,
            "read_only": args.only_reads(),
            "pid": std::process::id(),
        });
        return output::ready("nbd", body);
    }
    if std::io::stdout().is_terminal() {
        out!("exported {}: connect with {uri}", args.volume);
    }
    // A program waits for this line; the process goes on.
    Ok(std::io::stdout().flush()?)
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

fn serve(session: &mut Session, server: &mut NbdServer, mut metrics: Option<&mut Endpoint>) -> Result<()> {
    let mut done = Vec::new();
    while !session.interrupted() {
        let now = session.begin();
        let mut events = std::mem::take(&mut session.turns.events);
        let mut ops = std::mem::take(&mut session.turns.ops);
        let device = session.device();
        device.completions(&mut done);
        server.handle_completions(&mut done);
        for event in events.drain(..) {
            server.handle_event(now, event, device, &mut ops);
        }
        server.end_turn(now, device, &mut ops);
        (session.turns.events, session.turns.ops) = (events, ops);
        if let Some(errno) = session.failure() {
            // The session is over: the server closes, so that clients notice at once.
            let name = &session.info.name;
            return Err(match errno {
                Errno::Fenced if session.info.shared => fenced(name).into(),
                errno => ended(name, errno).into(),
            });
        }
        let mut deadline = server.next_deadline();
        if let Some(metrics) = &mut metrics {
            deadline = deadline.min(metrics.end_turn(now, session, server));
        }
        session.finish(deadline)?;
    }
    Ok(())
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
