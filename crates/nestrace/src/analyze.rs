//! `nestrace analyze`.

use std::{
    io::{self, IsTerminal},
    path::Path,
    thread,
};

use nestrace_analyzer::{
    Analysis, Analyzer, GuestEvents, Options, StoryChoice, incomplete::is_incomplete, units,
};
use nestrace_report::{
    json,
    text::{TextOptions, render},
};
use nestrace_trace::{Damage, Diagnostic, Manifest, TimeOrdered, manifest::State};

use crate::{
    blktrace_files, btt,
    bundle::{self, Bundle},
    capture_analysis,
    cli::{AnalyzeArgs, FormatArg},
    damage_notes::say_stream,
    device_number,
    exit::{DONE, Failure, INPUT, LOST, USAGE, note, print},
    newest_recordings, output_place,
    read_ahead::{each, read_ahead},
    report_files,
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
        _ => show(args, &analysis(args)?),
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
        return Err(Failure::new(USAGE, message).hint("give each a file of its own"));
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
    if args.input().is_dir() {
        of_bundle(args)
    } else {
        capture_analysis::run(args)
    }
}

/// Whether an input is there and begins as one does.
pub fn can_be_opened(input: &Path) -> Result<(), Failure> {
    if input.is_dir() {
        bundle::open(input).map(drop)
    } else {
        blktrace_files::open(input).map(drop)
    }
}

fn of_bundle(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    let mut bundle = bundle::open(args.input())?;
    check_guest(args, &bundle.manifest)?;
    check_device(args, &bundle.manifest)?;
    check_from(args, &bundle.manifest)?;
    let options = Options {
        path: args.input().display().to_string(),
        truncated: bundle.manifest.state != State::Complete,
        guest: args.guest.clone(),
        device: args
            .device
            .as_deref()
            .map(|wanted| device_number::normal(wanted).into_owned()),
        from_ns: args.from.map(nanoseconds),
        to_ns: args.to.map(nanoseconds),
        story: story(args),
        image_maps: std::mem::take(&mut bundle.image_maps),
    };
    let mut analyzer = Analyzer::new(&bundle.manifest, options);
    read(&mut bundle, &mut analyzer)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    note_damage(&mut analyzer, None, bundle.host.diagnostics());
    for guest in &bundle.guests {
        let side = bundle.manifest.guest_sides.get(guest.side);
        let name = side.map(|side| side.guest.as_str());
        note_damage(&mut analyzer, name, guest.stream.diagnostics());
    }
    for (guest, rows_lost) in bundle.left_out() {
        let left_out = Damage {
            rows_lost,
            cut: false,
        };
        analyzer.damaged(Some(&guest), left_out);
    }
    for stream in std::mem::take(&mut bundle.unread) {
        analyzer.unread(stream);
    }
    let analysis = analyzer.finish();
    check_number(args, &bundle.manifest, &analysis)?;
    check_stories(args, &analysis)?;
    Ok(analysis)
}

/// Prints the result; the exit code.
fn show(args: &AnalyzeArgs, analysis: &Analysis) -> Result<u8, Failure> {
    report_files::write(args, analysis)?;
    let text = match args.format {
        FormatArg::Json => json::render(analysis),
        _ => render(analysis, &text_options()),
    };
    print(&text)?;
    Ok(if args.strict && is_incomplete(analysis) {
        LOST
    } else {
        DONE
    })
}

/// Every event of every stream, in the order of time; each stream is read by a thread of its own.
fn read(bundle: &mut Bundle, analyzer: &mut Analyzer) -> Result<(), Failure> {
    let mut host = TimeOrdered::new(bundle.host.events());
    let mut ordered: Vec<_> = bundle
        .guests
        .iter_mut()
        .map(|guest| (guest.side, TimeOrdered::new(guest.stream.events())))
        .collect();
    thread::scope(|scope| -> io::Result<()> {
        let host = read_ahead(scope, each(host.by_ref()))?;
        let mut guests = Vec::new();
        for (side, events) in &mut ordered {
            guests.push((*side, read_ahead(scope, each(events.by_ref()))?));
        }
        let guests = guests
            .iter_mut()
            .map(|(side, events)| GuestEvents {
                side: *side,
                events,
            })
            .collect();
        analyzer.push_streams(host, guests);
        Ok(())
    })?;
    let late = host.late() + ordered.iter().map(|(_, events)| events.late()).sum::<u64>();
    if late > 0 {
        note(format_args!("{late} events are out of order"));
    }
    Ok(())
}

fn story(args: &AnalyzeArgs) -> Option<StoryChoice> {
    let slowest = args.slowest.map(StoryChoice::Slowest);
    args.io.map(StoryChoice::Io).or(slowest)
}

/// A bio that is not there is a mistake, and the error says which are. That there are several of a number, or
/// that none took long, is said.
fn check_stories(args: &AnalyzeArgs, analysis: &Analysis) -> Result<(), Failure> {
    let stories = &analysis.stories;
    if stories.len() > 1 && args.io.is_some() {
        note(format_args!(
            "each disk has a bio of that number; choose one with --guest and --device"
        ));
    }
    if !stories.is_empty() || story(args).is_none() {
        return Ok(());
    }
    let disks: Vec<String> = analysis
        .chains
        .iter()
        .map(|chains| {
            let disk = format!("{} of {}", chains.guest_device, chains.guest);
            match chains.guest_bios {
                0 => format!("{disk} has none"),
                1 => format!("{disk} has bio 1 only"),
                n => format!("{disk} has bios 1 to {n}"),
            }
        })
        .collect();
    let known = if disks.is_empty() {
        "nothing was recorded inside a guest".to_owned()
    } else {
        disks.join(", ")
    };
    let Some(io) = args.io else {
        note(format_args!("no bio to tell of: {known}"));
        return Ok(());
    };
    let path = args.input().display();
    let there = |bios: u64| io <= bios;
    if analysis.chains.iter().any(|it| there(it.guest_bios)) {
        // Only one that the guest's block layer gave back before it was a request is counted and has no story.
        let message = format!("{path}: bio {io} was given back at once, and queued again later");
        return Err(Failure::new(INPUT, message).hint("its data is in one of the next"));
    }
    let failure = Failure::new(INPUT, format!("{path}: no bio {io}: {known}"));
    Err(match args.from.is_some() || args.to.is_some() {
        true => failure.hint("with --from and --to, bios are counted from --from on"),
        false => failure,
    })
}

/// A guest that is not in the recording is a mistake, not an empty result.
pub fn check_guest(args: &AnalyzeArgs, manifest: &Manifest) -> Result<(), Failure> {
    let guests = manifest.topology.guests.iter().map(|guest| &guest.name);
    let sides = manifest.guest_sides.iter().map(|side| &side.guest);
    let known = bundle::each_once(guests.chain(sides));
    match &args.guest {
        Some(name) if !known.contains(&name.as_str()) => {
            Err(no(args, "guest", name).hint(bundle::known_names(manifest, &known)))
        }
        _ => Ok(()),
    }
}

/// So is a device. One that goes by its number may be in the streams all the same.
pub fn check_device(args: &AnalyzeArgs, manifest: &Manifest) -> Result<(), Failure> {
    let topology = &manifest.topology;
    let of_host = topology.devices.iter().map(|device| &device.name);
    let of_guests = manifest.guest_sides.iter().flat_map(|side| &side.disks);
    let disks = topology.guests.iter().flat_map(|guest| &guest.disks);
    let known = bundle::each_once(
        of_host
            .chain(of_guests.map(|disk| &disk.name))
            .chain(disks.map(|disk| &disk.name)),
    );
    match &args.device {
        Some(name) if !known.contains(&name.as_str()) && device_number::parse(name).is_none() => {
            Err(no(args, "device", name).hint(bundle::known_names(manifest, &known)))
        }
        _ => Ok(()),
    }
}

/// A number that neither the manifest nor an event has.
fn check_number(
    args: &AnalyzeArgs,
    manifest: &Manifest,
    analysis: &Analysis,
) -> Result<(), Failure> {
    let Some(wanted) = args.device.as_ref().filter(|_| analysis.devices.is_empty()) else {
        return Ok(());
    };
    let of_guests = manifest.guest_sides.iter().flat_map(|side| &side.disks);
    let of_host = manifest.topology.devices.iter().map(|device| device.dev);
    let mut known = of_host.chain(of_guests.map(|disk| disk.dev));
    match device_number::parse(wanted) {
        Some(dev) if !known.any(|it| it == dev) => Err(no(args, "device", wanted)
            .hint("without --device, nestrace analyze shows which there are")),
        _ => Ok(()),
    }
}

fn no(args: &AnalyzeArgs, what: &str, name: &str) -> Failure {
    Failure::new(
        INPUT,
        format!("{}: no {what} {name}", args.input().display()),
    )
}

/// So is a stretch that begins when the recording is over. One that was not closed does not say how long it is.
pub fn check_from(args: &AnalyzeArgs, manifest: &Manifest) -> Result<(), Failure> {
    let duration_ns = manifest.end_mono_ns.saturating_sub(manifest.start_mono_ns);
    let closed = manifest.state == State::Complete && duration_ns > 0;
    match args.from {
        Some(from) if closed && nanoseconds(from) >= duration_ns => {
            Err(after_end(args.input(), from, duration_ns))
        }
        _ => Ok(()),
    }
}

/// A stretch that begins when a recording is over.
pub fn after_end(input: &Path, from: f64, lasts_ns: u64) -> Failure {
    let (input, lasts) = (input.display(), units::time(lasts_ns));
    Failure::new(
        INPUT,
        format!("{input}: --from {from} is after its end: it lasts {lasts}"),
    )
}

/// What the reader found damaged or cut belongs beside the numbers, like any other loss.
fn note_damage(analyzer: &mut Analyzer, guest: Option<&str>, diagnostics: &[Diagnostic]) {
    say_stream(guest, diagnostics);
    analyzer.damaged(guest, Damage::of(diagnostics));
}

/// 80 columns; bold headings on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn text_options() -> TextOptions {
    let colour = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    TextOptions {
        colour,
        ..TextOptions::default()
    }
}

pub fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
