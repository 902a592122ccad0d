//! `cargo xtask bench analyze`: how fast a capture of blktrace is analysed, beside `blkparse -d` and
//! btt, and how much memory that takes, for captures of growing length.
//!
//! A real capture is repeated: the same records again and again, each time later. The sums of both
//! must be the same.

mod calls;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use nestrace_rig::{interrupt, packages};
use xtask::cargo_build::{self, Profile, workspace};
use xtask::progress::Progress;

use super::watched::{self, Took};
use super::{machine, processor};
use crate::long_capture::ShortCapture;

/// Base name of the capture that is repeated.
pub const CAPTURE: &str = "fixtures/blktrace/ext4-mail-none-scsi/gt";
/// A page that is larger does not open at once.
const LARGEST_PAGE: u64 = 5_000_000;
/// btt gives seconds with nine digits, and means of floating-point sums.
const ROUNDING_S: f64 = 2e-9;

/// Events of the long recording with calls.
const CALL_EVENTS: u64 = 4_000_000;

/// Options of `bench analyze`.
#[derive(clap::Args)]
pub struct AnalyzeSpeedArgs {
    /// Base name of another capture to repeat
    #[arg(long, value_name = "BASENAME")]
    capture: Option<PathBuf>,
    /// Lengths of the captures, in millions of records
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100])]
    millions: Vec<u64>,
    /// Where they are made: 100 million records and their dump take 11 GB
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    folder: PathBuf,
    /// Also measures this recording of a guest with calls, beside itself without them
    #[arg(long, value_name = "BUNDLE")]
    recording: Option<PathBuf>,
    /// Measures this nestrace instead of building one for release
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
}

/// Makes the captures, has both read each, and prints Markdown.
pub fn run(args: &AnalyzeSpeedArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start();
    packages::install(|line| progress.say(line))?;
    let nestrace = match &args.nestrace {
        // It is started in another folder.
        Some(program) => std::path::absolute(program).context("find nestrace")?,
        None => cargo_build::build("nestrace", Profile::Release)?,
    };
    let basename = match &args.capture {
        Some(capture) => capture.clone(),
        None => workspace().join(CAPTURE),
    };
    println!("Machine: {}.", machine::describe());
    let original = ShortCapture::read(&basename)?;
    print!("{HEAD}");
    for millions in &args.millions {
        interrupt::check()?;
        let folder = tempfile::Builder::new()
            .prefix("nestrace-bench-")
            .tempdir_in(&args.folder)
            .with_context(|| format!("make a folder in {}", args.folder.display()))?;
        let records = original.write_repeated(folder.path(), NAME, millions * 1_000_000)?;
        progress.say(&format!("{records} records in {}", folder.path().display()));
        println!("{}", measure(&nestrace, folder.path(), records)?);
    }
    if let Some(recording) = &args.recording {
        let text = calls::run(&nestrace, recording, CALL_EVENTS, &args.folder, &progress)?;
        print!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

const HEAD: &str = "
### analyze: `nestrace analyze --format btt`, and `blkparse -d` with btt, on the same capture

| records | nestrace s | on one processor: CPU s | records per CPU second | memory | blkparse + btt s | CPU s | memory | ratio on one processor | with all | report | report's memory |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn measure(nestrace: &Path, folder: &Path, records: u64) -> anyhow::Result<String> {
    let (ours, theirs) = (folder.join("nestrace.txt"), folder.join("btt.txt"));
    let ours_took = analyze(nestrace, folder, &ours)?;
    let on_one = processor::on_one(|| analyze(nestrace, folder, &ours))?;
    let theirs_took = processor::on_one(|| peer(folder, &theirs))?;
    ensure_equal(&parts(&ours)?, &parts(&theirs)?)?;
    let page = folder.join("report.html");
    let page_took = watched::run(
        Command::new(nestrace)
            .args(["analyze", NAME, "--format", "json", "--report"])
            .arg(&page)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )?;
    let page_bytes = std::fs::metadata(&page)
        .context("look at the report")?
        .len();
    ensure!(
        page_bytes <= LARGEST_PAGE,
        "write a report of at most {LARGEST_PAGE} bytes: it has {page_bytes}"
    );
    Ok(row(
        records,
        (&ours_took, &on_one),
        &theirs_took,
        (page_bytes, &page_took),
    ))
}

fn analyze(nestrace: &Path, folder: &Path, output: &Path) -> anyhow::Result<Took> {
    watched::run(
        Command::new(nestrace)
            .args(["analyze", NAME, "--format", "btt"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(output)?),
    )
}

/// Base name of the repeated capture.
const NAME: &str = "long";

fn peer(folder: &Path, output: &Path) -> anyhow::Result<Took> {
    let parsed = watched::run(
        Command::new("blkparse")
            .args(["-i", NAME, "-d", "dump", "-O"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )?;
    let analysed = watched::run(
        Command::new("btt")
            .args(["-i", "dump"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(output)?),
    )?;
    std::fs::remove_file(folder.join("dump")).context("remove the dump")?;
    Ok(parsed.then(analysed))
}

fn row(records: u64, ours: (&Took, &Took), theirs: &Took, page: (u64, &Took)) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (with_all, on_one) = ours;
    format!(
        "| {:.1} M | {:.1} | {:.2} | **{:.2} M** | {:.0} MiB | {:.1} | {:.1} | {:.0} MiB | **{:.1}** | **{:.1}** | {:.2} MB | {:.0} MiB |",
        records as f64 / 1e6,
        with_all.seconds,
        on_one.busy_s,
        records as f64 / on_one.busy_s / 1e6,
        mib(with_all.peak_bytes.max(on_one.peak_bytes)),
        theirs.seconds,
        theirs.busy_s,
        mib(theirs.peak_bytes),
        theirs.busy_s / on_one.busy_s,
        theirs.seconds / with_all.seconds,
        page.0 as f64 / 1e6,
        mib(page.1.peak_bytes),
    )
}

/// btt's parts over all devices: mean in seconds and number.
type Parts = BTreeMap<String, (f64, u64)>;

fn parts(path: &Path) -> anyhow::Result<Parts> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let found = parse_parts(&text);
    ensure!(!found.is_empty(), "find the parts in {}", path.display());
    Ok(found)
}

fn parse_parts(text: &str) -> Parts {
    let rows = text
        .lines()
        .skip_while(|line| !line.contains(" All Devices "))
        .skip(1)
        .take_while(|line| !line.starts_with("===="));
    rows.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [part, _, mean, _, n] = words[..] else {
            return None;
        };
        Some((part.to_owned(), (mean.parse().ok()?, n.parse().ok()?)))
    })
    .collect()
}

/// The parts that every request has; `docs/btt.md` says where the others differ, and why.
fn ensure_equal(ours: &Parts, theirs: &Parts) -> anyhow::Result<()> {
    for part in ["Q2Q", "D2C", "Q2C"] {
        let (Some(ours), Some(theirs)) = (ours.get(part), theirs.get(part)) else {
            anyhow::bail!("find {part} in both: {ours:?}, {theirs:?}");
        };
        ensure!(
            ours.1 == theirs.1 && (ours.0 - theirs.0).abs() <= ROUNDING_S,
            "have the same {part} as btt: mean and number are {ours:?}, btt's {theirs:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_devices_are_found() {
        let text = "\
==================== All Devices ====================

            ALL           MIN           AVG           MAX           N
--------------- ------------- ------------- ------------- -----------

Q2Q               0.000002810   0.001600000   0.124207180        3768
D2C               0.000190960   0.000310000   0.005377570        3771

==================== Device Overhead ====================
Q2C               1 2 3 4
";
        let parts = parse_parts(text);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts["Q2Q"], (0.0016, 3768));
        let mut other = parts.clone();
        other.insert("Q2C".to_owned(), (0.0, 1));
        assert!(ensure_equal(&other, &other).is_ok());
        let mut wrong = other.clone();
        wrong.insert("D2C".to_owned(), (0.00031, 3770));
        assert!(ensure_equal(&other, &wrong).is_err());
    }
}
