//! HTTP/JSON on a unix socket: `curl --unix-socket /run/ostler/ostler.sock http://ostler/v1/status`.
//!
//! | path | what |
//! |---|---|
//! | `GET /v1/status` | the steward in short |
//! | `GET /v1/plan` | the plan in force, and since when |
//! | `GET /v1/explain[?at=TIME]` | the plan's reasons, now or at a recorded time |
//! | `GET /v1/snapshot` | what was seen last |
//! | `GET /v1/facts`, `GET /v1/intent` | what the host is; what is wanted |
//! | `POST /v1/reload` | reads the configuration again |
//! | `GET /metrics` | for Prometheus |
//!
//! It runs on a thread of its own with a single-threaded runtime, reads the [`View`](crate::steward::view::View) of the last period, and can't hold the control
//! loop up: a reload is a request in a queue that the loop looks at between periods. Who may ask is in [`peer`].

pub mod client;
pub mod metrics;
pub mod peer;

use std::io::Write as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ostler_model::config::ApiConfig;
use ostler_record::{Reader, Wall};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;
use tracing::warn;

use crate::output::parse_time;
use crate::steward::view::{Explained, Shared};
use peer::{Allowed, Peer, PeerListener};

/// How long a request for a reload waits for the loop, which may be in the middle of a period.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests to the loop that may wait.
pub const CONTROL_QUEUE: usize = 4;

/// What the API asks of the loop.
#[derive(Debug)]
pub enum Control {
    /// Read the configuration again; the answer is what is wrong with it.
    Reload(oneshot::Sender<Result<(), String>>),
}

/// A way to ask the loop.
#[derive(Debug)]
pub struct Controller {
    /// The queue.
    pub queue: SyncSender<Control>,
    /// What wakes the loop to look at it.
    pub waker: StdStream,
}

struct Context {
    shared: Arc<Shared>,
    record: Option<PathBuf>,
    controller: Controller,
    allowed: Allowed,
    metrics: Option<metrics::Metrics>,
}

/// The API's thread. Dropping it ends the API and removes the socket.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: peer::Socket,
}

impl Server {
    /// Binds the socket and starts the thread.
    pub fn start(
        config: &ApiConfig,
        shared: Arc<Shared>,
        record: Option<PathBuf>,
        controller: Controller,
    ) -> anyhow::Result<Server> {
        let allowed = Allowed::from_config(config)?;
        let (listener, socket) = peer::bind(Path::new(&config.socket), &allowed)?;
        let metrics = config
            .metrics
            .then(|| metrics::Metrics::new(Arc::clone(&shared)));
        let context = Arc::new(Context {
            shared,
            record,
            controller,
            allowed,
            metrics,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(2)
            .build()
            .context("could not start the API's runtime")?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let listener = match PeerListener::new(listener) {
                        Ok(listener) => listener,
                        Err(error) => {
                            warn!("the API can't listen: {error}");
                            return;
                        }
                    };
                    let service = router(context).into_make_service_with_connect_info::<Peer>();
                    tokio::select! {
                        // Connections left open must not keep the steward from ending.
                        _ = stopped => {}
                        served = async { axum::serve(listener, service).await } => {
                            if let Err(error) = served {
                                warn!("the API ended: {error}");
                            }
                        }
                    }
                });
                // A blocked reader of the record must not keep the steward from ending either.
                runtime.shutdown_timeout(Duration::from_millis(200));
            })
            .context("could not start the API's thread")?;
        Ok(Server {
            stop: Some(stop),
            thread: Some(thread),
            socket,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.socket.remove();
    }
}

fn router(context: Arc<Context>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/plan", get(plan))
        .route("/v1/explain", get(explain))
        .route("/v1/snapshot", get(snapshot))
        .route("/v1/facts", get(facts))
        .route("/v1/intent", get(intent))
        .route("/v1/reload", post(reload))
        .route("/metrics", get(metrics_text))
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(&context), admit))
        .with_state(context)
}

/// An error as JSON, with what to do.
fn refuse(status: StatusCode, error: impl Into<String>) -> Response {
    (status, Json(json!({ "error": error.into() }))).into_response()
}

async fn admit(
    State(context): State<Arc<Context>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if context.allowed.admits(&peer) {
        return next.run(request).await;
    }
    let who = peer.uid.map_or_else(
        || "a user that can't be told".to_owned(),
        |uid| format!("user {uid}"),
    );
    refuse(
        StatusCode::FORBIDDEN,
        format!("{who} may not use this socket: ask as root, or be named in [api] group or uids"),
    )
}

async fn not_found() -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        "no such path; there are /v1/status, /v1/plan, /v1/explain, /v1/snapshot, /v1/facts, /v1/intent, /v1/reload and /metrics",
    )
}

fn nothing_yet() -> Response {
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        "no period has passed yet: ask again in a moment",
    )
}

async fn status(State(context): State<Arc<Context>>) -> Response {
    Json(context.shared.get().status()).into_response()
}

async fn plan(State(context): State<Arc<Context>>) -> Response {
    let view = context.shared.get();
    match &view.last {
        Some(last) => Json(json!({
            "plan": &*last.plan,
            "wall": last.wall,
            "adopted": last.adopted,
            "violations": last.violations,
            "acting": view.acting,
            "changed": view.last_change.as_ref().map(|change| change.wall),
            "outcome": last.outcome,
        }))
        .into_response(),
        None => nothing_yet(),
    }
}

#[derive(Deserialize)]
struct ExplainQuery {
    at: Option<String>,
}

async fn explain(
    State(context): State<Arc<Context>>,
    Query(query): Query<ExplainQuery>,
) -> Response {
    let Some(at) = query.at else {
        return match &context.shared.get().last {
            Some(last) => Json(Explained::from(&**last)).into_response(),
            None => nothing_yet(),
        };
    };
    let at = match parse_time(&at, Wall::from(SystemTime::now())) {
        Ok(at) => at,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let Some(path) = context.record.clone() else {
        return refuse(
            StatusCode::NOT_FOUND,
            "nothing is recorded: set [record] enabled = true",
        );
    };
    // SQLite blocks: off the runtime's thread with it.
    let found = tokio::task::spawn_blocking(move || Reader::open(&path)?.at(at)).await;
    match found {
        Ok(Ok(Some(period))) => Json(Explained::from(&period)).into_response(),
        Ok(Ok(None)) => refuse(
            StatusCode::NOT_FOUND,
            format!(
                "the record does not reach back to {}",
                crate::output::time(at)
            ),
        ),
        Ok(Err(error)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn snapshot(State(context): State<Arc<Context>>) -> Response {
    match &context.shared.get().last {
        Some(last) => Json(&*last.snapshot).into_response(),
        None => nothing_yet(),
    }
}

async fn facts(State(context): State<Arc<Context>>) -> Response {
    Json(&*context.shared.get().facts).into_response()
}

async fn intent(State(context): State<Arc<Context>>) -> Response {
    Json(&*context.shared.get().intent).into_response()
}

async fn reload(State(context): State<Arc<Context>>) -> Response {
    let (answer, answered) = oneshot::channel();
    if context
        .controller
        .queue
        .try_send(Control::Reload(answer))
        .is_err()
    {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "other requests are waiting: ask again in a moment",
        );
    }
    // A full pipe is as good as a byte: the loop wakes either way.
    let _ = (&context.controller.waker).write(&[1]);
    match tokio::time::timeout(RELOAD_TIMEOUT, answered).await {
        Ok(Ok(Ok(()))) => Json(json!({ "reloaded": true })).into_response(),
        Ok(Ok(Err(why))) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            Json(json!({ "reloaded": false, "error": why })),
        )
            .into_response(),
        Ok(Err(_)) => refuse(StatusCode::SERVICE_UNAVAILABLE, "the steward is ending"),
        Err(_) => refuse(
            StatusCode::GATEWAY_TIMEOUT,
            "the steward has not come to it yet; /v1/status tells what is in force",
        ),
    }
}

async fn metrics_text(State(context): State<Arc<Context>>) -> Response {
    let Some(metrics) = &context.metrics else {
        return refuse(StatusCode::NOT_FOUND, "off: set [metrics] enabled = true");
    };
    match metrics.encode() {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
