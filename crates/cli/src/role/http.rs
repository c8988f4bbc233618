//! The HTTP endpoint of a data-plane process: metrics and liveness.

use axum::Router;
use axum::routing::get;
use std::net::SocketAddr;
use telemetry::Registry;
use tokio::runtime::Runtime;

/// Serves `/metrics` and `/healthz` until the process ends. A port that is taken costs the endpoint, not the daemon.
pub fn serve(runtime: &Runtime, addr: SocketAddr, registry: Registry) {
    runtime.spawn(async move {
        let metrics = get(move || async move {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(axum::http::header::CONTENT_TYPE, kind)], registry.render())
        });
        let app = Router::new().route("/metrics", metrics).route("/healthz", get(|| async { "ok\n" }));
        match tokio::net::TcpListener::bind(addr).await {
            Ok(listener) => {
                if let Err(error) = axum::serve(listener, app).await {
                    tracing::warn!(%addr, %error, "the metrics endpoint stopped");
                }
            }
            Err(error) => tracing::warn!(%addr, %error, "no metrics endpoint"),
        }
    });
}
