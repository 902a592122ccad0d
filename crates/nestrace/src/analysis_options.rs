//! What the arguments of `nestrace analyze` mean for the analysis.

use nestrace_analyzer::StoryChoice;
use nestrace_bundle::Options;

use crate::{
    cli::AnalyzeArgs,
    exit::{Failure, USAGE},
};

/// The slowest calls and bios that a report shows.
const PICTURED: usize = 5;

/// The part of a recording that the arguments choose.
pub fn options(args: &AnalyzeArgs) -> Options {
    let slowest = args.slowest.map(StoryChoice::Slowest);
    let mut options = Options::default();
    options.guest.clone_from(&args.guest);
    options.device.clone_from(&args.device);
    (options.from, options.to) = (args.from, args.to);
    match args.calls {
        true => options.call_story = slowest,
        false => options.story = args.io.map(StoryChoice::Io).or(slowest),
    }
    if let Some(call) = args.call {
        options.call_story = Some(StoryChoice::Io(call));
    }
    if is_for_pictures(args) {
        options.pictured = Some(PICTURED);
    }
    options
}

/// Whether calls and bios are traced only for the pictures of a report: the text and the JSON do not show them.
pub fn is_for_pictures(args: &AnalyzeArgs) -> bool {
    let is_chosen = args.slowest.is_some() || args.io.is_some() || args.call.is_some();
    !is_chosen && (args.report.is_some() || args.plots.is_some())
}

/// Refuses the options that need a guest and its host: a capture has one machine.
pub fn check_options(args: &AnalyzeArgs) -> Result<(), Failure> {
    for (name, given) in [
        ("--guest", args.guest.is_some()),
        ("--io", args.io.is_some()),
        ("--slowest", args.slowest.is_some()),
        ("--call", args.call.is_some()),
    ] {
        if given {
            return Err(Failure::new(
                USAGE,
                format!("{name} works with bundles only: a capture of blktrace holds one machine"),
            )
            .hint(
                "nestrace import blktrace --guest-of HOST.nest joins it to its host's recording",
            ));
        }
    }
    Ok(())
}
