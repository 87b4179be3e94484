//! Asks a running steward over its socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;

/// The longest answer that is taken.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// No steward answers on the socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "no steward answers on {socket}: start one with `ostler run`, or name its socket with --socket"
)]
pub struct NotRunning {
    socket: String,
    #[source]
    source: std::io::Error,
}

/// Asks once.
pub fn ask(socket: &Path, method: Method, path: &str) -> anyhow::Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("could not start a runtime to ask the steward with")?;
    runtime.block_on(async {
        tokio::time::timeout(TIMEOUT, exchange(socket, method, path))
            .await
            .map_err(|_| {
                anyhow!(
                    "the steward on {} has not answered {path} in {} s",
                    socket.display(),
                    TIMEOUT.as_secs()
                )
            })?
    })
}

async fn exchange(socket: &Path, method: Method, path: &str) -> anyhow::Result<Answer> {
    let stream = match tokio::net::UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(error).with_context(|| {
                format!(
                    "you may not use {}: ask as root, or be named in [api] group or uids",
                    socket.display()
                )
            });
        }
        Err(source) => {
            return Err(NotRunning {
                socket: socket.display().to_string(),
                source,
            }
            .into());
        }
    };
    let what = || {
        format!(
            "could not ask the steward on {} for {path}",
            socket.display()
        )
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .with_context(what)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::HOST, "ostler")
        .body(Empty::<Bytes>::new())
        .with_context(what)?;
    // The connection is driven beside the exchange; why it broke is told by the exchange, which breaks with it.
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await.with_context(what)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| anyhow!("the answer to {path} broke off: {error}"))?
        .to_bytes();
    driver.abort();
    Ok(Answer { status, body })
}

/// Asks for JSON; an answer that is an error becomes one.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    let answer = ask(socket, Method::GET, path)?;
    if !answer.status.is_success() {
        return Err(anyhow!(error_of(&answer)));
    }
    serde_json::from_slice(&answer.body).with_context(|| {
        format!("the steward's answer to {path} is not understood: is it of another version?")
    })
}

/// What an answer says went wrong.
pub fn error_of(answer: &Answer) -> String {
    serde_json::from_slice::<serde_json::Value>(&answer.body)
        .ok()
        .and_then(|body| Some(body.get("error")?.as_str()?.to_owned()))
        .unwrap_or_else(|| format!("the steward answered {}", answer.status))
}

/// A text as a part of a query.
pub fn escape(text: &str) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
