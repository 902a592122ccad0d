//! HTTP: one page, for a few clients at a time. A slow one is cut off.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::accept::Format;
use super::listener::{Connection, Listener};
use super::{Scrape, scrape};

/// Connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// Scrapes that wait for the text, those of clients that were cut off among them.
pub const MAX_SCRAPES: usize = 4 * MAX_CONNECTIONS;
/// A connection gets no further request after so long.
const MAX_LIFE: Duration = Duration::from_secs(30);
/// How long the last answer may take then.
const MAX_END: Duration = Duration::from_secs(5);
/// How long a request's head may take, and how long a connection may rest between two.
const MAX_HEAD: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How long is waited when the system gives no further descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// What a browser shows at `/`.
const ABOUT: &str = "nestrace serve: /metrics has the figures, for Prometheus.\n";

/// Answers until the program ends. Where all places are taken, the client that has been there longest makes room, so one that sends
/// nothing or never reads does not hold up the others.
pub async fn serve(listener: &Listener, scrapes: SyncSender<Scrape>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok(connection) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let task = tokio::spawn(answer(connection, scrapes.clone()));
        open.push_back(task.abort_handle());
    }
}

/// A connection, until its client leaves or it has lasted too long.
async fn answer(connection: Box<dyn Connection>, scrapes: SyncSender<Scrape>) {
    let service = service_fn(move |request| {
        let scrapes = scrapes.clone();
        async move { Ok::<_, Infallible>(page(&request, &scrapes).await) }
    });
    // What is no HTTP is answered or cut off by hyper.
    let mut answers = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(MAX_HEAD)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(connection), service)
    );
    if timeout(MAX_LIFE, answers.as_mut()).await.is_err() {
        // An answer that has begun is still given.
        answers.as_mut().graceful_shutdown();
        let _ = timeout(MAX_END, answers).await;
    }
}

async fn page(request: &Request<Incoming>, scrapes: &SyncSender<Scrape>) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => {
            let accepted = request.headers().get_all(ACCEPT).iter();
            let format = Format::accepted(accepted.filter_map(|value| value.to_str().ok()));
            let Some(figures) = scrape(scrapes, format).await else {
                return plain(StatusCode::SERVICE_UNAVAILABLE, "the sums cannot be read\n");
            };
            let mut response = Response::new(Full::new(figures));
            let headers = response.headers_mut();
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static(format.content_type()),
            );
            headers.insert(VARY, HeaderValue::from_static("accept"));
            response
        }
        "/" => plain(StatusCode::OK, ABOUT),
        _ => plain(StatusCode::NOT_FOUND, "see /metrics\n"),
    }
}
