//! `nestrace analyze`.

use std::io::{self, IsTerminal};

use nestrace_analyzer::{Analysis, Analyzer, Options, analysis::SourceLoss};
use nestrace_report::{
    json,
    text::{TextOptions, render},
};
use nestrace_trace::{
    Diagnostic, DiagnosticKind, TimeOrdered,
    manifest::{State, Topology},
};

use crate::{
    bundle,
    cli::{AnalyzeArgs, FormatArg},
    exit::{DONE, Failure, INPUT, LOST, print, say},
};

/// Reads a bundle once and prints what it says.
pub fn run(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    check_names(args, &bundle.manifest.topology)?;
    let options = Options {
        path: args.input.display().to_string(),
        truncated: bundle.manifest.state == State::Recording,
        guest: args.guest.clone(),
        device: args.device.clone(),
        from_ns: args.from.map(nanoseconds),
        to_ns: args.to.map(nanoseconds),
    };
    let mut analyzer = Analyzer::new(&bundle.manifest, options);
    let mut ordered = TimeOrdered::new(bundle.host.events());
    for event in ordered.by_ref() {
        analyzer.push(&event);
    }
    let late = ordered.late();
    let mut analysis = analyzer.finish();
    note_damage(&mut analysis, bundle.host.diagnostics());
    for diagnostic in &bundle.diagnostics {
        say(format_args!("note: {diagnostic}"));
    }
    for diagnostic in bundle.host.diagnostics() {
        say(format_args!("note: {diagnostic}"));
    }
    if late > 0 {
        say(format_args!("note: {late} events are out of order"));
    }
    let text = match args.format {
        FormatArg::Text => render(&analysis, &text_options()),
        FormatArg::Json => json::render(&analysis),
    };
    print(&text)?;
    Ok(if args.strict && lost_any(&analysis) {
        LOST
    } else {
        DONE
    })
}

/// A filter that names nothing in the recording is a mistake, not an empty result.
fn check_names(args: &AnalyzeArgs, topology: &Topology) -> Result<(), Failure> {
    let guests: Vec<&str> = topology
        .guests
        .iter()
        .map(|guest| guest.name.as_str())
        .collect();
    let devices: Vec<&str> = topology
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    for (what, wanted, known) in [
        ("guest", &args.guest, guests),
        ("device", &args.device, devices),
    ] {
        if let Some(name) = wanted
            // Without a manifest nothing has a name.
            && !known.is_empty()
            && !known.contains(&name.as_str())
        {
            return Err(
                Failure::new(INPUT, format!("{}: no {what} {name}", args.input.display()))
                    .hint(format!("the recording has: {}", known.join(", "))),
            );
        }
    }
    Ok(())
}

/// What the reader found damaged or cut belongs beside the numbers, like any other loss.
fn note_damage(analysis: &mut Analysis, diagnostics: &[Diagnostic]) {
    // A recorder that ran out of space has closed the bundle and counted what it could not finish.
    if analysis
        .trace
        .losses
        .iter()
        .any(|loss| loss.source == "disk_full")
    {
        return;
    }
    let rows: u64 = diagnostics
        .iter()
        .filter_map(|diagnostic| diagnostic.rows_lost)
        .sum();
    if rows > 0 {
        analysis.trace.lost += rows;
        analysis.trace.losses.push(SourceLoss {
            source: "damaged".to_owned(),
            guest: None,
            events: rows,
        });
    }
    analysis.trace.truncated |= diagnostics.iter().any(|diagnostic| {
        matches!(
            diagnostic.kind,
            DiagnosticKind::Truncated
                | DiagnosticKind::NotClosed
                | DiagnosticKind::Unreadable
                | DiagnosticKind::BatchDamaged
        )
    });
}

/// Whether anything is missing: counted by the kernel, or found missing by what should have followed.
fn lost_any(analysis: &Analysis) -> bool {
    analysis.trace.losses.iter().any(|loss| loss.events > 0)
        || analysis.trace.lost > 0
        || analysis.devices.iter().any(|device| {
            device
                .check
                .as_ref()
                .is_some_and(|check| check.completions_missed > 0)
        })
}

/// 80 columns; bold headings on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
fn text_options() -> TextOptions {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    TextOptions {
        colour,
        ..TextOptions::default()
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
