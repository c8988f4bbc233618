//! `basalt nbd`: client and NBD door in one loop, on one thread.

use crate::args::NbdArgs;
use crate::errors::UserError;
use crate::role::session::Session;
use crate::role::{Stop, env_error};
use anyhow::Result;
use env::{Env, NetAddr};
use nbd::{NbdConfig, NbdServer};
use std::net::{Ipv4Addr, SocketAddr};
use types::Errno;

const ROOM_NBD: u8 = 3;
/// The port that IANA gave to NBD.
const PORT: u16 = 10809;

/// Exports a volume until asked to end.
pub fn run(args: &NbdArgs, metas: &[SocketAddr]) -> Result<()> {
    let mut session = Session::open(metas, &args.volume, !args.read_only, args.steal)?;
    let addr = match (&args.socket, args.listen) {
        (Some(path), _) => NetAddr::Unix(path.clone()),
        (None, listen) => NetAddr::Tcp(listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))),
    };
    let mut server = NbdServer::new(ROOM_NBD, NbdConfig { export: args.volume.clone(), ..NbdConfig::default() });
    let (listener, bound) = session.env.listen(&addr).map_err(env_error)?;
    server.listen(listener);
    let stop = Stop::on_signal(&session.runtime, session.env.waker());
    tracing::info!(volume = args.volume, at = %bound, bytes = session.info.len_bytes, "exported");
    let served = serve(&mut session, &mut server, &stop);
    server.close_all(&mut session.ops);
    session.close()?;
    served
}

fn serve(session: &mut Session, server: &mut NbdServer, stop: &Stop) -> Result<()> {
    let mut done = Vec::new();
    while !stop.is_set() {
        let now = session.begin();
        let mut events = std::mem::take(&mut session.events);
        let mut ops = std::mem::take(&mut session.ops);
        let device = session.device();
        device.completions(&mut done);
        server.handle_completions(&mut done);
        for event in events.drain(..) {
            server.handle_event(now, event, device, &mut ops);
        }
        server.end_turn(now, device, &mut ops);
        (session.events, session.ops) = (events, ops);
        if let Some(errno) = session.failure() {
            return Err(failed(errno));
        }
        session.finish(server.next_deadline())?;
    }
    Ok(())
}

/// The session is over: the door closes, so that clients notice at once.
fn failed(errno: Errno) -> anyhow::Error {
    match errno {
        Errno::Fenced => UserError::new(
            5002,
            "the volume was opened elsewhere with --steal",
            "basalt volume ls   # shows who holds it now",
        ),
        other => UserError::new(5004, other.to_string(), "basalt status"),
    }
    .into()
}
