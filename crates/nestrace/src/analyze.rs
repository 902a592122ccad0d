//! `nestrace analyze`.

use std::io::{self, IsTerminal};

use nestrace_analyzer::{Analysis, Analyzer, Options};
use nestrace_report::{
    json,
    text::{TextOptions, render},
};
use nestrace_trace::{manifest::State, order::TimeOrdered};

use crate::{
    bundle,
    cli::{AnalyzeArgs, FormatArg},
    exit::{DONE, Failure, LOST, print, say},
};

/// Reads a bundle once and prints what it says.
pub fn run(args: &AnalyzeArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
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
    let analysis = analyzer.finish();
    let mut diagnostics = bundle.diagnostics;
    diagnostics.extend(
        bundle
            .host
            .diagnostics()
            .iter()
            .map(|diagnostic| diagnostic.message.clone()),
    );
    if late > 0 {
        diagnostics.push(format!("{late} events are out of order"));
    }
    for diagnostic in &diagnostics {
        say(format_args!("note: {diagnostic}"));
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

/// Whether anything is missing: counted by the kernel, or found missing by what should have followed.
fn lost_any(analysis: &Analysis) -> bool {
    analysis.trace.lost > 0
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
