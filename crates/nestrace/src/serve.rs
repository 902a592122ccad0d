//! `nestrace serve`: the figures of `nestrace top` for Prometheus.
//!
//! A thread holds the sums and makes the text, or the protobuf for those who ask for it, at most once a second each;
//! connections wait for it. What a client sends is bounded in size and time, and so is how many there are.

mod accept;
mod http;
mod listener;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nestrace_record::live::{Live, LiveError};
use nestrace_sums::{metrics, protobuf};
use tokio::sync::oneshot;

use crate::cli::ServeArgs;
use crate::exit::{DONE, FAILURE, Failure, say};
use crate::stop::Stop;
use crate::top;

use accept::Format;
use listener::Listener;

/// How often guests and devices are looked for.
const LOOK: Duration = Duration::from_millis(200);
/// A text serves all scrapes for so long.
const FRESH: Duration = Duration::from_secs(1);

/// A scrape that waits for the figures in a format.
pub struct Scrape {
    format: Format,
    answer: oneshot::Sender<Bytes>,
}

/// What was made last in a format, and when.
type Made = Option<(Instant, Bytes)>;

/// Serves until a signal.
pub fn run(args: &ServeArgs) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut stop = Stop::listen()?;
        // Before the probes are attached: an address that is taken costs nothing then.
        let listener = Listener::bind(&args.listen)?;
        let (scrapes, waiting) = sync_channel(http::MAX_SCRAPES);
        let options = top::options(&args.guest, &[]);
        top::allow_files();
        let (started, start) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        // The thread has the sums from the start: they stay in it.
        thread::Builder::new()
            .name("nestrace-sums".to_owned())
            .spawn(move || {
                let end = Live::start(options).and_then(|live| {
                    let _ = started.send(live.n_guests());
                    sums(live, &waiting)
                });
                let _ = ended.send(end);
            })?;
        // Without a start there is an end.
        if let Ok(n_guests) = start.await {
            say(format_args!("live: {n_guests} guests"));
            say(format_args!("serving {}", listener.address()));
        }
        tokio::select! {
            _ = stop.next() => Ok(DONE),
            () = http::serve(&listener, scrapes) => Ok(DONE),
            end = end => Err(match end {
                Ok(Err(error)) => top::failure(&error),
                _ => Failure::new(FAILURE, "the sums cannot be read any more"),
            }),
        }
    })
}

/// Holds the sums and answers scrapes, until there can be none any more.
fn sums(mut live: Live, waiting: &Receiver<Scrape>) -> Result<(), LiveError> {
    let (mut text, mut protobuf): (Made, Made) = (None, None);
    let mut next_look = Instant::now();
    loop {
        if Instant::now() >= next_look {
            live.look()?;
            for note in live.notes() {
                say(format_args!("note: {note}"));
            }
            next_look = Instant::now() + LOOK;
        }
        let scrape = match waiting.recv_timeout(next_look.saturating_duration_since(Instant::now()))
        {
            Ok(scrape) => scrape,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let last = match scrape.format {
            Format::Text => &mut text,
            Format::Protobuf => &mut protobuf,
        };
        let fresh = last.take().filter(|(made, _)| made.elapsed() < FRESH);
        let (made, bytes) = fresh.unwrap_or_else(|| {
            let snapshot = live.snapshot();
            let bytes = match scrape.format {
                Format::Text => Bytes::from(metrics::open_metrics(&snapshot)),
                Format::Protobuf => Bytes::from(protobuf::delimited(&snapshot)),
            };
            (Instant::now(), bytes)
        });
        // A client that has gone gets nothing.
        let _ = scrape.answer.send(bytes.clone());
        *last = Some((made, bytes));
    }
}

/// Asks for the figures in a format.
pub async fn scrape(scrapes: &SyncSender<Scrape>, format: Format) -> Option<Bytes> {
    let (answer, figures) = oneshot::channel();
    scrapes.try_send(Scrape { format, answer }).ok()?;
    figures.await.ok()
}
