//! HTTP pages for monitoring: `/metrics`, `/healthz`, `/status`.

use crate::Role;
use crate::owner::{Answered, Input};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use control::admin::{AdminAnswer, AdminAsk};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

#[derive(Clone)]
pub(crate) struct Pages {
    pub registry: telemetry::Registry,
    /// The figures of the cluster, which only the leader knows.
    pub cluster: telemetry::Registry,
    pub inbox: mpsc::Sender<Input>,
    pub role: watch::Receiver<Role>,
}

/// Serves until stopped.
pub(crate) async fn serve(listener: TcpListener, pages: Pages, mut stopped: watch::Receiver<bool>) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .with_state(pages);
    let shutdown = async move {
        crate::owner::stop_asked(&mut stopped).await;
    };
    if let Err(e) = axum::serve(listener, router).with_graceful_shutdown(shutdown).await {
        tracing::error!(%e, "the HTTP server ended");
    }
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let format = telemetry::Format::of_accept(accept);
    let leads = *pages.role.borrow() == Role::Leading;
    let both = [&pages.registry, &pages.cluster];
    let text = telemetry::render(if leads { &both } else { &both[..1] }, format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

/// Answers 200 while this meta leads or knows the leader.
async fn healthz(State(pages): State<Pages>) -> Response {
    let role = pages.role.borrow().clone();
    match role {
        Role::Leading => (StatusCode::OK, "leading\n".to_string()),
        Role::Following { leader: Some(leader), .. } => (StatusCode::OK, format!("following {leader}\n")),
        Role::Following { leader: None, .. } => (StatusCode::SERVICE_UNAVAILABLE, "no leader\n".to_string()),
    }
    .into_response()
}

async fn status(State(pages): State<Pages>) -> Response {
    let (answer, answered) = oneshot::channel();
    let sent = pages.inbox.send(Input::Admin { by: String::new(), ask: AdminAsk::Status, answer }).await.is_ok();
    match answered.await {
        Ok(Answered::Answer(Ok(AdminAnswer::Status(status)))) if sent => {
            let mut page = serde_json::json!({ "schema": "basalt.status/1" });
            if let (Some(page), Ok(serde_json::Value::Object(fields))) =
                (page.as_object_mut(), serde_json::to_value(&status))
            {
                page.extend(fields);
            }
            ([(header::CONTENT_TYPE, "application/json")], page.to_string()).into_response()
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "this meta does not lead\n").into_response(),
    }
}
