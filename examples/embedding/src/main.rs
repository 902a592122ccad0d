//! `p99-check CAPTURE MILLISECONDS`: reads what blktrace recorded and says for each disk whether 99 % of its I/O was done in
//! that time, in the manner of a monitoring system's plug-ins: a line each, exit 0 (kept), 2 (not kept), 3 (unknown). With
//! `--json` the whole analysis goes to stdout instead, in the stable form of nestrace's `docs/json.md`.

use std::fs::File;
use std::process::ExitCode;

use nestrace_analyzer::{Analysis, Analyzer, Identified, Options, units};
use nestrace_trace::blktrace::{Capture, Reader};
use nestrace_trace::manifest::Stream;
use nestrace_trace::{Kind, Manifest};

const NOT_KEPT: u8 = 2;
const UNKNOWN: u8 = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [capture, "--json"] => analyze(capture).and_then(|analysis| {
            println!("{}", serde_json::to_string(&analysis)?);
            Ok(ExitCode::SUCCESS)
        }),
        [capture, limit] => limit
            .parse()
            .map_err(Failure::from)
            .and_then(|limit: f64| Ok(check(&analyze(capture)?, (limit * 1e6) as u64))),
        _ => Err("usage: p99-check CAPTURE MILLISECONDS|--json".into()),
    };
    result.unwrap_or_else(|failure| {
        println!("UNKNOWN {failure}");
        ExitCode::from(UNKNOWN)
    })
}

/// The files `NAME.blktrace.0`, … The libraries take bytes: which files they come from is this program's business.
fn analyze(name: &str) -> Result<Analysis, Failure> {
    let mut readers = Vec::new();
    while let Ok(file) = File::open(format!("{name}.blktrace.{}", readers.len())) {
        readers.push(Reader::new(file)?);
    }
    if readers.is_empty() {
        return Err(format!("{name}.blktrace.0 is not there").into());
    }
    let mut capture = Capture::new(readers);
    // blktrace's events name no object: what belongs together is told by place and time.
    let mut events = Identified::new(&mut capture).peekable();
    let mut names = Vec::new();
    while let Some(name) = events.next_if(|event| event.kind == Kind::Thread as u8) {
        names.push(name);
    }
    let manifest = Manifest {
        start_mono_ns: events.peek().map_or(0, |event| event.ts_ns),
        streams: vec![Stream {
            side: "host".to_owned(),
            backend: "blktrace".to_owned(),
            ..Stream::default()
        }],
        ..Manifest::default()
    };
    Ok(Analyzer::analyze(
        &manifest,
        Options::default(),
        names.into_iter().chain(events),
    ))
}

fn check(analysis: &Analysis, limit_ns: u64) -> ExitCode {
    let mut exit = ExitCode::from(UNKNOWN);
    let mut all_kept = true;
    for device in &analysis.devices {
        // Not known (`None`) is not the same as 0.
        let Some(p99_ns) = device.latency_ns.all.q2c.and_then(|dist| dist.p99) else {
            continue;
        };
        let kept = p99_ns <= limit_ns;
        all_kept &= kept;
        exit = if all_kept {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(NOT_KEPT)
        };
        println!(
            "{} {}: 99 % within {}, limit {}",
            if kept { "OK" } else { "CRITICAL" },
            device.name,
            units::time(p99_ns),
            units::time(limit_ns),
        );
    }
    exit
}
