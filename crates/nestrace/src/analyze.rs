//! `nestrace analyze`.

use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::{manifest::State, order::TimeOrdered};

use crate::{
    bundle,
    cli::{AnalyzeArgs, FormatArg},
    exit::{DONE, Failure, LOST, print},
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
    diagnostics.extend(bundle.host.diagnostics().iter().map(|diagnostic| diagnostic.message.clone()));
    if late > 0 {
        diagnostics.push(format!("{late} events are out of order"));
    }
    for diagnostic in &diagnostics {
        eprintln!("note: {diagnostic}");
    }
    let text = match args.format {
        FormatArg::Text => nestrace_report::text::render(&analysis, &Default::default()),
        FormatArg::Json => nestrace_report::json::render(&analysis),
    };
    print(&text)?;
    let lost = analysis.trace.lost > 0;
    Ok(if args.strict && lost { LOST } else { DONE })
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
