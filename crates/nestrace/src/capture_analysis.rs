//! `nestrace analyze` of blktrace's output: one machine's block layer, whoever's it was.

use std::{io, path::Path, thread};

use nestrace_analyzer::{Analysis, Analyzer, Options};
use nestrace_trace::{
    Manifest,
    blktrace::Outline,
    manifest::{State, Stream},
};

use crate::{
    analyze::{after_end, nanoseconds},
    blktrace_files,
    cli::AnalyzeArgs,
    device_number,
    exit::{Failure, INPUT, USAGE, note},
    read_ahead::{ReadAhead, read_ahead},
};

/// Reads a capture once.
pub fn run(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    let mut files = blktrace_files::open(args.input())?;
    check_options(args)?;
    let mut ordered = files.events();
    let (mut analyzer, first_ns) = thread::scope(|scope| -> io::Result<_> {
        let events = read_ahead(scope, ordered.identified())?;
        Ok(analyze(args, events))
    })?;
    let late = ordered.late();
    if late > 0 {
        note(format_args!("{late} events are out of order"));
    }
    let outline = files.capture.outline().clone();
    if outline.n_events == 0 {
        return Err(files.no_events());
    }
    analyzer.damaged(None, files.damage());
    analyzer.left_out(outline.ignored);
    let mut analysis = analyzer.finish();
    if let Some((clock_ns, unix_ns)) = outline.wall_clock {
        let since_ns = i128::from(first_ns) - i128::from(clock_ns);
        analysis.trace.start_unix_ns = u64::try_from(i128::from(unix_ns) + since_ns).ok();
    }
    files.say_damage();
    if analysis.devices.is_empty() {
        check_from(args, &outline)?;
        if let Some(device) = &args.device {
            return Err(no_device(args.input(), device, &outline));
        }
    }
    Ok(analysis)
}

/// Where nothing is left of a capture: a stretch that begins when it is over is a mistake.
pub fn check_from(args: &AnalyzeArgs, outline: &Outline) -> Result<(), Failure> {
    let first_ns = outline.first_ns.unwrap_or(outline.last_ns);
    let lasts_ns = outline.last_ns.saturating_sub(first_ns);
    match args.from {
        Some(from) if nanoseconds(from) > lasts_ns => Err(after_end(args.input(), from, lasts_ns)),
        _ => Ok(()),
    }
}

/// The device that was asked for is not in the capture; what is.
pub fn no_device(input: &Path, device: &str, outline: &Outline) -> Failure {
    let known = outline.devices.iter();
    let known: Vec<String> = known.map(|dev| device_number::text(*dev)).collect();
    Failure::new(INPUT, format!("{}: no device {device}", input.display()))
        .hint(format!("the capture has: {}", known.join(", ")))
}

/// Takes every event; the time of the first of I/O.
fn analyze(args: &AnalyzeArgs, mut events: ReadAhead<'_>) -> (Analyzer, u64) {
    // Times count from the first event of I/O: the names before it are older.
    let mut names = Vec::new();
    let first = loop {
        match events.next() {
            Some(name) if name.kind == THREAD => names.push(name),
            first => break first,
        }
    };
    let first_ns = first.map_or(0, |event| event.ts_ns);
    let path = args.input().display().to_string();
    let manifest = Manifest {
        state: State::Complete,
        detail: "full".to_owned(),
        start_mono_ns: first_ns,
        streams: vec![Stream {
            file: path.clone(),
            side: "host".to_owned(),
            backend: "blktrace".to_owned(),
            ..Stream::default()
        }],
        ..Manifest::default()
    };
    let options = Options {
        path,
        device: args
            .device
            .as_deref()
            .map(|wanted| device_number::normal(wanted).into_owned()),
        from_ns: args.from.map(nanoseconds),
        to_ns: args.to.map(nanoseconds),
        ..Options::default()
    };
    let mut analyzer = Analyzer::new(&manifest, options);
    let names_and_first = names.iter().chain(&first);
    names_and_first.for_each(|event| analyzer.push(event));
    while let Some(batch) = events.next_batch() {
        batch.iter().for_each(|event| analyzer.push(event));
    }
    (analyzer, first_ns)
}

const THREAD: u8 = nestrace_trace::Kind::Thread as u8;

/// What needs a guest and its host.
pub fn check_options(args: &AnalyzeArgs) -> Result<(), Failure> {
    for (name, given) in [
        ("--guest", args.guest.is_some()),
        ("--io", args.io.is_some()),
        ("--slowest", args.slowest.is_some()),
    ] {
        if given {
            return Err(Failure::new(
                USAGE,
                format!("{name} is for bundles: a capture of blktrace knows one machine only"),
            )
            .hint(
                "nestrace import blktrace --guest-of HOST.nest joins it to its host's recording",
            ));
        }
    }
    Ok(())
}
