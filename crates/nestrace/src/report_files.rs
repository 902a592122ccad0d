//! `nestrace analyze --report FILE --plots DIR`: the same result as a page and as pictures.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use nestrace_analyzer::Analysis;
use nestrace_report::{
    html,
    plots::{self, Frame, csv, png, svg},
};

use crate::{
    cli::AnalyzeArgs,
    exit::{FAILURE, Failure},
    page_file::{self, cannot, not_ours, put},
};

/// Says that the pictures in a folder are ours.
const MARK: &str = ".nestrace-plots";

/// Fails before a long recording is read, not after.
pub fn check(args: &AnalyzeArgs) -> Result<(), Failure> {
    if let Some(file) = &args.report {
        page_file::check(file, args.force)?;
    }
    if let Some(folder) = args.plots.as_ref().filter(|_| !args.force)
        && !may_fill(folder)
    {
        return Err(not_ours(
            folder,
            "is not empty and holds no plots of nestrace",
        ));
    }
    Ok(())
}

fn may_fill(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none() || folder.join(MARK).exists(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Writes what was asked for.
pub fn write(args: &AnalyzeArgs, analysis: &Analysis) -> Result<(), Failure> {
    if let Some(file) = &args.report {
        let page = html::render(analysis).map_err(|error| Failure::caused(FAILURE, &error))?;
        put(file, page.as_bytes())?;
    }
    if let Some(folder) = &args.plots {
        let failed = |error| cannot(folder, &error);
        fs::create_dir_all(folder).map_err(failed)?;
        put(&folder.join(MARK), b"")?;
        for plot in plots::all(analysis) {
            let pictures = || Ok((svg(&plot, &Frame::FILE)?, png(&plot, &Frame::FILE)?));
            let (svg, png) =
                pictures().map_err(|error: plots::DrawError| Failure::caused(FAILURE, &error))?;
            let name = |ending: &str| folder.join(format!("{}.{ending}", plot.id));
            put(&name("svg"), svg.as_bytes())?;
            put(&name("png"), &png)?;
            put(&name("csv"), csv(&plot).as_bytes())?;
        }
    }
    Ok(())
}
