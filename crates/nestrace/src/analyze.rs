//! `nestrace analyze`.

use std::{
    io::{self, IsTerminal},
    path::Path,
};

use nestrace_analyzer::{Analysis, incomplete::is_incomplete};
use nestrace_report::{
    json,
    text::{TextOptions, render},
};

use crate::{
    analysis_options::{check_options, is_for_pictures, options},
    btt, bundle, capture,
    cli::{AnalyzeArgs, FormatArg},
    exit::{DONE, Failure, LOST, USAGE, noted, print},
    newest_recordings, output_place, report_files,
};

/// Reads a bundle, or a capture of blktrace, once and prints what it says.
pub fn run(mut args: AnalyzeArgs) -> Result<u8, Failure> {
    check_usage(&args)?;
    if args.input.is_none() {
        args.input = Some(newest_recordings::newest()?);
    }
    let args = &args;
    output_place::check_all([&args.report, &args.per_io, &args.iostat].map(Option::as_ref))?;
    report_files::check(args)?;
    let is_bundle = args.input().is_dir();
    match args.format {
        FormatArg::Btt if is_bundle => btt::of_bundle(args),
        FormatArg::Btt => btt::of_capture(args),
        _ => show(args, analysis(args)?),
    }
}

/// Options that the format does not have, and a stretch of time that is none, are mistakes.
fn check_usage(args: &AnalyzeArgs) -> Result<(), Failure> {
    let is_btt = args.format == FormatArg::Btt;
    let page = args.report.is_some() || args.plots.is_some();
    let story = args.io.is_some() || args.slowest.is_some();
    let listing = args.per_io.is_some() || args.iostat.is_some();
    for (options, given, of_btt) in [
        ("--report and --plots", page, false),
        ("--io and --slowest", story, false),
        ("--per-io and --iostat", listing, true),
    ] {
        if given && is_btt != of_btt {
            let which = if of_btt { "only" } else { "not" };
            let message = format!("{options} are {which} for --format btt");
            return Err(Failure::new(USAGE, message));
        }
    }
    if let (Some(per_io), Some(iostat)) = (&args.per_io, &args.iostat)
        && output_place::is_same(per_io, iostat)
    {
        let message = format!("--per-io and --iostat both name {}", iostat.display());
        return Err(Failure::new(USAGE, message).hint("give each its own file"));
    }
    let from = args.from.unwrap_or(0.0);
    if let Some(to) = args.to
        && to <= from
    {
        return Err(
            Failure::new(USAGE, format!("--to {to} is not after --from {from}"))
                .hint("both count seconds from the start of the recording"),
        );
    }
    Ok(())
}

/// What a bundle, or a capture of blktrace, says.
pub fn analysis(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    if !args.input().is_dir()
        && let Err(failure) = check_options(args)
    {
        // What is no recording at all is the first thing to say.
        can_be_opened(args.input())?;
        return Err(failure);
    }
    let analysis = nestrace_bundle::analyze_noting(args.input(), &options(args), &mut noted)?;
    Ok(analysis)
}

/// Whether an input is there and begins as one does.
pub fn can_be_opened(input: &Path) -> Result<(), Failure> {
    if input.is_dir() {
        bundle::open(input)?;
    } else {
        capture::open(input, &mut noted)?;
    }
    Ok(())
}

/// Prints the result; the exit code.
fn show(args: &AnalyzeArgs, mut analysis: Analysis) -> Result<u8, Failure> {
    report_files::write(args, &analysis)?;
    if is_for_pictures(args) {
        analysis.stories.clear();
        analysis.call_stories.clear();
    }
    let text = match args.format {
        FormatArg::Json => json::render(&analysis),
        _ => render(&analysis, &text_options()),
    };
    print(&text)?;
    Ok(if args.strict && is_incomplete(&analysis) {
        LOST
    } else {
        DONE
    })
}

/// 80 columns; bold headings on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn text_options() -> TextOptions {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut options = TextOptions::default();
    options.colour = colour;
    options
}
