//! The HTTP endpoint of an OSD: metrics, liveness, and the requests of tools.
//!
//! `/metrics` has the metrics, `/ops` the stations of sampled writes, `/devices` the devices. `/healthz` answers 200 while the event loop
//! answers, and 503 once the store stopped. `/pg/PG` has the state of the replica, the chunks of its volumes, and those of each generation
//! that it holds. `/pg/PG/usage?volume=V&from=INDEX` has the space of a volume in some of its chunks, and where to go on. `/pg/PG/digest?generation=G&chunk=C&at=INDEX[&table=true]` has a chunk at exactly one applied index.

use crate::device_info::Running;
use crate::role::tools::Counter;
use axum::Json;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use osd::{DeviceReport, ToolAnswer, ToolAsk};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telemetry::ops::OpReport;
use telemetry::{Format, Registry};
use tokio::runtime::Handle;
use types::limits::SAMPLE_EVERY;
use types::tree::Role;
use types::{ChunkKey, GenerationId, Index, OsdUuid, PgId, VolumeId};

#[derive(Clone)]
struct Pages {
    registry: Registry,
    tools: Counter,
    /// An address may be another OSD's by now: answers about PGs name the one that gives them.
    osd: OsdUuid,
}

/// Listens, and returns the bound address. A taken port costs the endpoint, not the daemon.
pub fn bind(addr: SocketAddr) -> Option<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    });
    listener
        .inspect_err(|error| tracing::warn!(%addr, %error, "no HTTP endpoint: neither metrics nor `pg verify`"))
        .ok()
}

/// Serves until the process ends.
pub fn serve(
    runtime: &Handle,
    listener: TcpListener,
    addr: SocketAddr,
    (registry, tools, osd): (Registry, Counter, OsdUuid),
) {
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/ops", get(ops))
        .route("/devices", get(devices))
        .route("/pg/{pg}", get(pg))
        .route("/pg/{pg}/digest", get(digest))
        .route("/pg/{pg}/usage", get(usage))
        .with_state(Pages { registry, tools, osd });
    run(runtime, listener, addr, app);
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    metrics_page(&[&pages.registry], &headers)
}

fn metrics_page(registries: &[&Registry], headers: &HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let format = Format::of_accept(accept);
    ([(header::CONTENT_TYPE, format.content_type())], telemetry::render(registries, format)).into_response()
}

/// Sampled writes as a client's loop has last published them.
pub type OpsPage = Arc<Mutex<Vec<OpReport>>>;

/// Serves `/metrics`, `/ops` and `/healthz` of a client.
pub fn serve_client(
    runtime: &Handle,
    listener: TcpListener,
    addr: SocketAddr,
    (registries, ops): (Vec<Registry>, OpsPage),
) {
    let metrics = |State(registries): State<Vec<Registry>>, headers: HeaderMap| async move {
        metrics_page(&registries.iter().collect::<Vec<_>>(), &headers)
    };
    let page = || async move { ops_page(&ops.lock().unwrap_or_else(PoisonError::into_inner)) };
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/ops", get(page))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(registries);
    run(runtime, listener, addr, app);
}

fn ops_page(ops: &[OpReport]) -> Response {
    let body = json!({ "schema": "basalt.ops/1", "sample_every": SAMPLE_EVERY, "ops": ops });
    Json(body).into_response()
}

async fn ops(State(pages): State<Pages>) -> Response {
    answered(pages.osd, pages.tools.ask(ToolAsk::Ops).await)
}

async fn devices(State(pages): State<Pages>) -> Response {
    answered(pages.osd, pages.tools.ask(ToolAsk::Devices).await)
}

fn run(runtime: &Handle, listener: TcpListener, addr: SocketAddr, app: Router) {
    runtime.spawn(async move {
        let served = async { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await };
        if let Err(error) = served.await {
            tracing::warn!(%addr, %error, "the HTTP endpoint stopped");
        }
    });
}

/// Longest time that a health check waits for the event loop.
const HEALTH_WAIT: Duration = Duration::from_secs(5);

async fn healthz(State(pages): State<Pages>) -> Response {
    let asked = tokio::time::timeout(HEALTH_WAIT, pages.tools.ask(ToolAsk::Health)).await;
    let failure = match asked {
        Ok(ToolAnswer::Healthy) => return "ok\n".into_response(),
        Ok(ToolAnswer::Stopped { reason }) => format!("the store stopped: {reason}\n"),
        Ok(ToolAnswer::Unreadable { reason }) => format!("{reason}\n"),
        Ok(_) => "too many queries wait for the event loop\n".to_owned(),
        Err(_) => format!("the event loop has not answered for {} s\n", HEALTH_WAIT.as_secs()),
    };
    (StatusCode::SERVICE_UNAVAILABLE, failure).into_response()
}

async fn pg(State(pages): State<Pages>, Path(pg): Path<String>) -> Response {
    match pg.parse() {
        Ok(pg) => answered(pages.osd, pages.tools.ask(ToolAsk::Pg { pg }).await),
        Err(error) => bad_pg(&error),
    }
}

#[derive(Deserialize)]
struct DigestOf {
    generation: u64,
    chunk: u32,
    at: u64,
    #[serde(default)]
    table: bool,
}

async fn digest(State(pages): State<Pages>, Path(pg): Path<String>, Query(of): Query<DigestOf>) -> Response {
    let pg: PgId = match pg.parse() {
        Ok(pg) => pg,
        Err(error) => return bad_pg(&error),
    };
    let (chunk, at) = (ChunkKey { generation: GenerationId(of.generation), index: of.chunk }, Index(of.at));
    let ask = match of.table {
        true => ToolAsk::Table { pg, chunk, at },
        false => ToolAsk::Digest { pg, chunk, at },
    };
    answered(pages.osd, pages.tools.ask(ask).await)
}

#[derive(Deserialize)]
struct UsageOf {
    volume: u64,
    #[serde(default)]
    from: u32,
}

async fn usage(State(pages): State<Pages>, Path(pg): Path<String>, Query(of): Query<UsageOf>) -> Response {
    match pg.parse() {
        Ok(pg) => {
            let ask = ToolAsk::Usage { pg, volume: VolumeId(of.volume), from: of.from };
            answered(pages.osd, pages.tools.ask(ask).await)
        }
        Err(error) => bad_pg(&error),
    }
}

fn bad_pg(error: &types::ids::BadPgId) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error.to_string() }))).into_response()
}

fn answered(osd: OsdUuid, answer: ToolAnswer) -> Response {
    match answer {
        ToolAnswer::Healthy => "ok\n".into_response(),
        ToolAnswer::Stopped { reason } => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": reason }))).into_response()
        }
        ToolAnswer::Ops(ops) => ops_page(&ops),
        ToolAnswer::Devices(devices) => devices_page(osd, &devices),
        ToolAnswer::Pg { report, chunks, held, attached, snapshots } => Json(json!({
            "schema": "basalt.osd.pg/1",
            "osd": osd.to_string(),
            "pg": report.pg,
            "replica": report.replica,
            "term": report.term,
            "applied": report.applied,
            "leading": report.leading.is_some_and(|lead| lead.active),
            "attached": attached.iter().map(|a| (a.volume.0, a.epoch.0)).collect::<Vec<_>>(),
            "attached_chunks": attached.iter().map(|a| a.chunk_count).collect::<Vec<_>>(),
            "attached_len_epochs": attached.iter().map(|a| a.len_epoch).collect::<Vec<_>>(),
            "attached_heads": attached.iter().map(|a| (a.first, a.last)).collect::<Vec<_>>(),
            "snapshots": snapshots.iter().map(|s| (s.volume, s.snapshot, s.created_ms, s.chunk_count)).collect::<Vec<_>>(),
            "chunks": chunks.iter().map(|c| (c.volume.0, c.index)).collect::<Vec<_>>(),
            "generations": generations(&held),
            "held": held.iter().map(|(c, _)| (c.generation.0, c.index)).collect::<Vec<_>>(),
        }))
        .into_response(),
        ToolAnswer::Usage { leading, usage, next } => Json(json!({
            "schema": "basalt.osd.usage/1",
            "osd": osd.to_string(),
            "leading": leading,
            "next": next,
            "usage": usage,
        }))
        .into_response(),
        ToolAnswer::Digest { at, parts } => {
            Json(json!({ "schema": "basalt.osd.digest/1", "at": at, "parts": parts })).into_response()
        }
        ToolAnswer::Passed { applied } => {
            let body = json!({ "error": "a higher index is already applied", "applied": applied });
            (StatusCode::CONFLICT, Json(body)).into_response()
        }
        ToolAnswer::Late { applied } => {
            let body = json!({ "error": "the index was not applied in time", "applied": applied });
            (StatusCode::GATEWAY_TIMEOUT, Json(body)).into_response()
        }
        ToolAnswer::Ended { at } => {
            let body = json!({ "error": "the PG does not have this generation at this index", "at": at });
            (StatusCode::GONE, Json(body)).into_response()
        }
        ToolAnswer::Busy => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": "busy; try again" }))).into_response()
        }
        ToolAnswer::NoReplica => {
            let body = json!({ "error": "this OSD has no replica of this PG", "osd": osd.to_string() });
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
        ToolAnswer::Unreadable { reason } => {
            (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "error": reason }))).into_response()
        }
        ToolAnswer::Quarantined { reason } => {
            let body = json!({ "error": reason, "quarantined": true });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
        }
        ToolAnswer::Damaged { at, parts } => {
            let body = json!({ "error": "some parts are damaged", "at": at, "damaged": parts });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
        }
    }
}

fn devices_page(osd: OsdUuid, devices: &[DeviceReport]) -> Response {
    let devices: Vec<Running> = devices.iter().map(Running::new).collect();
    Json(json!({ "schema": "basalt.osd.devices/1", "osd": osd.to_string(), "devices": devices })).into_response()
}

/// Returns each generation of these chunks with its volume and its role.
fn generations(held: &[(ChunkKey, Role)]) -> Vec<Value> {
    let roles: BTreeMap<GenerationId, Role> = held.iter().map(|(chunk, role)| (chunk.generation, *role)).collect();
    let row = |(id, role): (GenerationId, Role)| json!([id, role.volume(), role.to_string()]);
    roles.into_iter().map(row).collect()
}
