//! `nestrace compare`.

use std::path::Path;

use nestrace_analyzer::{Analysis, compare, incomplete::is_incomplete};
use nestrace_report::{html, json, text};

use crate::{
    analyze,
    cli::{AnalyzeArgs, CompareArgs, CompareFormat},
    exit::{DONE, FAILURE, Failure, LOST, print},
    newest_recordings, output_place, page_file,
};

/// Reads both recordings, one after the other, and prints what differs.
pub fn run(args: &CompareArgs) -> Result<u8, Failure> {
    output_place::check_all([args.report.as_ref()])?;
    if let Some(file) = &args.report {
        page_file::check(file, args.force)?;
    }
    let (a, b) = match (&args.a, &args.b) {
        (Some(a), Some(b)) => (a.clone(), b.clone()),
        _ => newest_recordings::two_newest()?,
    };
    // Before anything long is done, and before anything else is said.
    for (which, input) in [("A", &a), ("B", &b)] {
        analyze::can_be_opened(input).map_err(|failure| failure.of(which))?;
    }
    let a = read("A", &a)?;
    let b = read("B", &b)?;
    let comparison = compare::compare(&a, &b);
    if let Some(file) = &args.report {
        let page = html::compare::render(&comparison, &a, &b)
            .map_err(|error| Failure::caused(FAILURE, &error))?;
        page_file::put(file, page.as_bytes())?;
    }
    print(&match args.format {
        CompareFormat::Json => json::render_comparison(&comparison),
        CompareFormat::Text => text::compare::render(&comparison, &analyze::text_options()),
    })?;
    let lost = is_incomplete(&a) || is_incomplete(&b);
    Ok(if args.strict && lost { LOST } else { DONE })
}

/// What is wrong with an input says which of the two it is.
fn read(which: &str, input: &Path) -> Result<Analysis, Failure> {
    analyze::analysis(&AnalyzeArgs::of(input.to_owned())).map_err(|failure| failure.of(which))
}
