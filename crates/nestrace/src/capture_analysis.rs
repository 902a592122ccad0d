//! `nestrace analyze` of blktrace's output: one machine's block layer, whoever's it was.

use std::{io, path::Path, thread};

use nestrace_analyzer::{Analysis, Analyzer, Identified, Options};
use nestrace_trace::{
    Manifest,
    blktrace::Outline,
    manifest::{State, Stream},
};

use crate::{
    analyze::nanoseconds,
    blktrace_files,
    cli::AnalyzeArgs,
    exit::{Failure, INPUT, USAGE, say},
    read_ahead::{ReadAhead, read_ahead},
};

/// Reads a capture once.
pub fn run(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    check_options(args)?;
    let mut files = blktrace_files::open(&args.input)?;
    let mut ordered = files.events();
    let (mut analyzer, first_ns) = thread::scope(|scope| -> io::Result<_> {
        let events = read_ahead(scope, Identified::new(ordered.by_ref()))?;
        Ok(analyze(args, events))
    })?;
    let late = ordered.late();
    if late > 0 {
        say(format_args!("note: {late} events are out of order"));
    }
    let outline = files.capture.outline().clone();
    if outline.n_events == 0 {
        return Err(files.no_events());
    }
    analyzer.damaged(None, files.damage());
    let mut analysis = analyzer.finish();
    if let Some((clock_ns, unix_ns)) = outline.wall_clock {
        let since_ns = i128::from(first_ns) - i128::from(clock_ns);
        analysis.trace.start_unix_ns = u64::try_from(i128::from(unix_ns) + since_ns).ok();
    }
    files.say_damage();
    if let Some(device) = &args.device
        && analysis.devices.is_empty()
    {
        return Err(no_device(&args.input, device, &outline));
    }
    Ok(analysis)
}

/// The device that was asked for is not in the capture; what is.
pub fn no_device(input: &Path, device: &str, outline: &Outline) -> Failure {
    let known = outline.devices.iter();
    let known: Vec<String> = known
        .map(|dev| format!("{}:{}", dev >> 20, dev & 0xf_ffff))
        .collect();
    Failure::new(INPUT, format!("{}: no device {device}", input.display()))
        .hint(format!("the capture has: {}", known.join(", ")))
}

/// Takes every event; the time of the first of I/O.
fn analyze(args: &AnalyzeArgs, mut events: ReadAhead) -> (Analyzer, u64) {
    // Times count from the first event of I/O: the names before it are older.
    let mut names = Vec::new();
    let first = loop {
        match events.next() {
            Some(name) if name.kind == THREAD => names.push(name),
            first => break first,
        }
    };
    let first_ns = first.map_or(0, |event| event.ts_ns);
    let path = args.input.display().to_string();
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
        device: args.device.as_deref().map(with_colon),
        from_ns: args.from.map(nanoseconds),
        to_ns: args.to.map(nanoseconds),
        ..Options::default()
    };
    let mut analyzer = Analyzer::new(&manifest, options);
    let names_and_first = names.iter().chain(&first);
    names_and_first.for_each(|event| analyzer.push(event));
    for batch in events.batches() {
        batch.iter().for_each(|event| analyzer.push(event));
    }
    (analyzer, first_ns)
}

const THREAD: u8 = nestrace_trace::Kind::Thread as u8;

/// What needs a guest and its host.
fn check_options(args: &AnalyzeArgs) -> Result<(), Failure> {
    for (name, given) in [
        ("--guest", args.guest.is_some()),
        ("--io", args.io.is_some()),
        ("--slowest", args.slowest.is_some()),
    ] {
        if given && args.input.exists() {
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

/// blkparse writes device numbers with a comma.
pub fn with_colon(device: &str) -> String {
    match device.split_once(',') {
        Some((major, minor)) => format!("{}:{}", major.trim(), minor.trim()),
        None => device.to_owned(),
    }
}
