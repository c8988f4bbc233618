//! The metrics of an export at `--http`: its NBD server, its client, its process. The client's sampled writes as well.

use crate::errors::UserError;
use crate::role::session::Session;
use crate::role::{http, process};
use env::Env;
use nbd::{ClientMetrics, NbdMetrics, NbdServer};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use telemetry::Registry;
use tokio::runtime::Handle;
use types::Time;
use types::codes;

/// Interval at which the client's figures are updated.
const CLIENT_EVERY: Duration = Duration::from_secs(1);

/// A listening socket and its address.
pub type Listening = (TcpListener, SocketAddr);

/// Listens before the volume is opened: a taken address must not take the volume from its holder.
///
/// # Errors
/// BSLT-1006 when the address cannot be used.
pub fn listen(addr: SocketAddr) -> Result<Listening, UserError> {
    let taken = || {
        UserError::new(codes::FILE_UNUSABLE, format!("cannot listen on {addr} for HTTP"), "choose another --http ADDR")
    };
    http::bind(addr).ok_or_else(taken)
}

/// The metrics of one export.
pub struct Endpoint {
    client: ClientMetrics,
    ops: http::OpsPage,
    publish_at: Time,
}

impl Endpoint {
    /// Serves the metrics; the series of the volume carry its name.
    pub fn serve(runtime: &Handle, server: &mut NbdServer, (listener, bound): Listening, volume: &str) -> Endpoint {
        let process = process::registry("nbd");
        let own = Registry::with_labels(vec![("volume", volume.to_owned())]);
        server.count_into(NbdMetrics::new(&own));
        let client = ClientMetrics::new(&own);
        let ops = http::OpsPage::default();
        http::serve_client(runtime, listener, bound, (vec![process, own], ops.clone()));
        tracing::info!(at = %bound, "metrics are served");
        Endpoint { client, ops, publish_at: Time::ZERO }
    }

    /// Counts the turn that began at `now` and ends with this call. Returns when the next update is
    /// due.
    pub fn end_turn(&mut self, now: Time, session: &Session, server: &mut NbdServer) -> Time {
        server.count(if server.has_replies() { session.turns.env.now() } else { now });
        if now >= self.publish_at {
            self.publish_at = now + CLIENT_EVERY;
            self.publish(session);
        }
        self.publish_at
    }

    /// Updates the client's counters and its sampled writes.
    fn publish(&self, session: &Session) {
        // The loop does not wait for a reader of the page.
        if let Ok(mut ops) = self.ops.try_lock() {
            *ops = session.turns.client.ops();
        }
        let (metrics, stats) = (&self.client, session.turns.client.stats());
        // An export has one volume.
        let volume = stats.volumes.first();
        metrics
            .unavailable_pgs
            .set(volume.map_or(0, |volume| i64::try_from(volume.unavailable_pgs).unwrap_or(i64::MAX)));
        let volume = volume.map(|volume| volume.stats).unwrap_or_default();
        for (counter, total) in [
            (&metrics.connects, stats.bus.links_up),
            (&metrics.disconnects, stats.bus.links_down),
            (&metrics.sends, volume.sends),
            (&metrics.resends, volume.repeats),
            (&metrics.searches, volume.searches),
            (&metrics.bad_reads, volume.bad_reads),
            (&metrics.unavailable_requests, volume.unavailable),
            (&metrics.rehearsed_requests, volume.rehearsed),
            (&metrics.bytes_in, stats.bus.bytes_in),
            (&metrics.bytes_out, stats.bus.bytes_out),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }
}
