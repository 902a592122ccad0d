//! `nestrace analyze --report FILE --plots DIR`: the same result as a page and as pictures.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nestrace_analyzer::Analysis;
use nestrace_report::{
    html,
    plots::{self, Frame, csv, png, svg},
};

use crate::{
    cli::AnalyzeArgs,
    exit::{FAILURE, Failure, USAGE},
    input_file, output_place,
};

/// Says that the pictures in a folder are ours.
const MARK: &str = ".nestrace-plots";

/// Fails before a long recording is read, not after.
pub fn check(args: &AnalyzeArgs) -> Result<(), Failure> {
    if let Some(file) = &args.report {
        check_page(file, args.force)?;
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

/// A page that is not ours is replaced by force only. No force makes a file of a FIFO: to open one waits until
/// somebody else does, maybe for ever.
pub fn check_page(file: &Path, force: bool) -> Result<(), Failure> {
    if output_place::is_fifo(file) {
        let message = format!("{} is a FIFO, not a file", file.display());
        return Err(Failure::new(USAGE, message).hint("choose another name"));
    }
    if force || may_replace(file) {
        return Ok(());
    }
    Err(not_ours(file, "exists and is not a report of nestrace"))
}

fn not_ours(path: &Path, what: &str) -> Failure {
    Failure::new(USAGE, format!("{} {what}", path.display()))
        .hint("choose another name, or replace it with --force")
}

/// Nothing is there, nothing is in it, or it is an older report. A device (/dev/null) has nothing in it, and to
/// read from one, a terminal say, waits.
fn may_replace(file: &Path) -> bool {
    if fs::metadata(file).is_ok_and(|there| there.file_type().is_char_device()) {
        return true;
    }
    let mut head = [0; 512];
    match input_file::open(file).and_then(|mut file| file.read(&mut head)) {
        Ok(n) => n == 0 || String::from_utf8_lossy(&head[..n]).contains(html::GENERATOR),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
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

/// Writes a file.
pub fn put(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes).map_err(|error| cannot(file, &error))
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILURE, format!("write {}: {error}", path.display()))
}
