//! `p99-check RECORDING MILLISECONDS`: reads a bundle or what blktrace recorded and says for each disk whether 99 % of its I/O was done in
//! that time, in the manner of a monitoring system's plug-ins: a line each, exit 0 (kept), 2 (not kept), 3 (unknown). With
//! `--json` the whole analysis goes to stdout instead, in the stable form of nestrace's `docs/json.md`.

use std::process::ExitCode;

use nestrace_analyzer::{Analysis, units};
use nestrace_bundle::{Options, analyze};

const NOT_KEPT: u8 = 2;
const UNKNOWN: u8 = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [recording, "--json"] => json(recording),
        [recording, limit] => kept(recording, limit),
        _ => Err("usage: p99-check RECORDING MILLISECONDS|--json".into()),
    };
    result.unwrap_or_else(|failure| {
        println!("UNKNOWN {failure}");
        ExitCode::from(UNKNOWN)
    })
}

fn json(recording: &str) -> Result<ExitCode, Failure> {
    let analysis = analyze(recording, &Options::default())?;
    println!("{}", serde_json::to_string(&analysis)?);
    Ok(ExitCode::SUCCESS)
}

fn kept(recording: &str, limit_ms: &str) -> Result<ExitCode, Failure> {
    let limit_ns = (limit_ms.parse::<f64>()? * 1e6) as u64;
    let analysis = analyze(recording, &Options::default())?;
    Ok(check(&analysis, limit_ns))
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
