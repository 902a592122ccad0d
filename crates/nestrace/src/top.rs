//! `nestrace top`: what disks and devices do now, on a screen with keys, as tables one after the other, or as lines of JSON.

mod answer;
mod screen;
mod terminal;

use std::time::Duration;

use nestrace_bundle::open_files;
use nestrace_probes::ProbeError;
use nestrace_record::guest::Selection;
use nestrace_record::live::{Live, LiveError, Options};
use nestrace_sums::interval::Interval;
use nestrace_sums::rows::rows;
use nestrace_sums::snapshot::Snapshot;
use nestrace_sums::text::{Statistic, tables};
use nestrace_trace::printable;
use tokio::time::{self, Instant, MissedTickBehavior, interval, interval_at};

use crate::cli::TopArgs;
use crate::exit::{DONE, FAILURE, Failure, INPUT, MISSING, print, say};
use crate::guests;
use crate::stop::Stop;

/// Of a table.
const COLUMNS: usize = 80;
/// How often guests and devices are looked for, between two lines.
const LOOK: Duration = Duration::from_millis(200);
/// Files for a thousand guests: of each its process, its memory, the links of its probes, its agent's socket.
const MAX_OPEN: usize = 8192;

/// Lets the files of many guests be open at once: systemd and shells allow 1,024 by themselves, which 150 guests need.
pub fn allow_files() {
    if let Err(error) = open_files::allow(MAX_OPEN) {
        say(format_args!("note: {error}: too few for many guests"));
    }
}

/// Shows until Ctrl-C, or so many intervals.
pub fn run(args: &TopArgs) -> Result<u8, Failure> {
    let options = options(&args.guest, &args.device);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = Stop::listen()?;
        allow_files();
        let live = Live::start(options).map_err(|error| failure(&error))?;
        // A number of tables is for reading them afterwards.
        if !args.batch && args.count.is_none() && terminal::is_there() {
            return screen::show(live, args, stop).await;
        }
        show(live, args, stop).await
    })
}

/// What is to be followed.
pub fn options(guests: &[String], devices: &[String]) -> Options {
    Options {
        guests: match guests {
            [] => Selection::All,
            names => Selection::Named(names.to_vec()),
        },
        devices: devices.to_vec(),
    }
}

async fn show(mut live: Live, args: &TopArgs, mut stop: Stop) -> Result<u8, Failure> {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = ticks(Duration::from_secs_f64(args.interval));
    let mut left = args.count;
    let mut before = live.snapshot();
    say(format_args!("live: {} guests", live.n_guests()));
    loop {
        tokio::select! {
            biased;
            _ = stop.next() => return Ok(DONE),
            _ = lines.tick() => {
                let now = live.snapshot();
                let text = match args.batch {
                    true => line(&before, &now)?,
                    false => table(&before, &now, args.p99),
                };
                print(&text)?;
                before = now;
                left = left.map(|n| n - 1);
                if left == Some(0) {
                    return Ok(DONE);
                }
            }
            _ = looks.tick() => live.look().map_err(|error| failure(&error))?,
        }
        for note in live.notes() {
            say(format_args!("note: {note}"));
        }
    }
}

/// The ends of intervals; the first one begins now.
fn ticks(period: Duration) -> time::Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// An interval as JSON.
fn line(before: &Snapshot, now: &Snapshot) -> Result<String, Failure> {
    let line = serde_json::to_string(&Interval::between(before, now));
    let line = line.map_err(|error| Failure::caused(FAILURE, &error))?;
    Ok(format!("{line}\n"))
}

/// An interval as a table, after the one before it.
fn table(before: &Snapshot, now: &Snapshot, p99: bool) -> String {
    let since = now.since(before);
    let interval_ns = now.at_unix_ns.saturating_sub(before.at_unix_ns);
    let (mut disks, mut devices) = rows(&since, interval_ns);
    for row in disks.iter_mut().chain(&mut devices) {
        row.subject.guest = printable(&row.subject.guest);
        row.subject.name = printable(&row.subject.name);
    }
    let (statistic, word) = match p99 {
        true => (Statistic::P99, "p99"),
        false => (Statistic::Mean, "mean"),
    };
    let lost = match since.n_lost() {
        0 => String::new(),
        lost => format!("; {lost} requests could not be summed"),
    };
    let time = chrono::Local::now().format("%H:%M:%S");
    let tables = tables(&disks, &devices, statistic, COLUMNS);
    format!("\n{time}, latencies: {word} of reads and writes{lost}\n{tables}")
}

/// Why there are no sums.
pub fn failure(error: &LiveError) -> Failure {
    match error {
        LiveError::Probe(ProbeError::NoPrivilege) => {
            Failure::new(MISSING, "live figures need root (CAP_BPF and CAP_PERFMON)")
                .hint("run it with sudo; nestrace doctor shows what this user may do")
        }
        LiveError::Probe(error) => {
            Failure::caused(MISSING, error).hint("nestrace doctor shows what this kernel allows")
        }
        LiveError::Discover(error) => guests::failure(error),
        LiveError::UnknownDevice(_) => Failure::caused(INPUT, error)
            .hint("--device takes a block device of the host, such as sda or /dev/sda"),
        _ => Failure::caused(FAILURE, error),
    }
}
