//! `cargo xtask bench fleet`: time and memory of `nestrace fleet report` over many recordings, beside Spark.
//!
//! The recordings of the repository's fixtures are exported once, and their files copied under the names of as many hosts
//! as are asked for. Each figure is written down when it is there: a run that was ended goes on where it stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use nestrace_rig::interrupt;
use serde::{Deserialize, Serialize};
use xtask::cargo_build::{self, Profile, cargo, workspace};
use xtask::progress::Progress;

use super::{machine, watched};

const SPARK: &str = include_str!("fleet_cost/spark.py");
const MANIFEST: &str = "crates/nestrace-fleet/Cargo.toml";
/// What the report reads.
const TABLES: [&str; 3] = ["disks", "findings", "topology"];
/// Says what a folder is.
const MARK: &str = "_nestrace.json";

/// Options of `bench fleet`.
#[derive(clap::Args)]
pub struct FleetCostArgs {
    /// Recordings of each data set
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    recordings: Vec<usize>,
    /// Folder for the data sets (50 KB a recording, one at a time) and the figures, which a further run continues
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/tmp/nestrace-bench-fleet"
    )]
    folder: PathBuf,
    /// Exports with this nestrace instead of building one
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
    /// Measures this nestrace-fleet instead of building one for release
    #[arg(long, value_name = "PROGRAM")]
    fleet: Option<PathBuf>,
    /// A Python that has pyspark: measures Spark, too
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

/// A figure.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Figure {
    recordings: usize,
    engine: String,
    /// Of the tables' files.
    data_bytes: u64,
    files: usize,
    seconds: f64,
    peak_bytes: u64,
}

/// Measures, and prints Markdown.
pub fn run(args: &FleetCostArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start();
    fs::create_dir_all(&args.folder).context("make the folder")?;
    let figures_file = args.folder.join("figures.jsonl");
    let real = args.folder.join("real");
    if !real.join(MARK).is_file() {
        progress.say("exporting the recordings of the fixtures");
        export(args, &real)?;
    }
    let fleet = match &args.fleet {
        Some(program) => program.clone(),
        None => build()?,
    };
    let mut engines = vec!["nestrace fleet report"];
    engines.extend(args.python.as_ref().map(|_| "Spark"));
    for recordings in &args.recordings {
        let known = figures(&figures_file)?;
        let is_known = |engine: &&&str| {
            known
                .iter()
                .any(|it| it.recordings == *recordings && it.engine == **engine)
        };
        if engines.iter().filter(is_known).count() == engines.len() {
            continue;
        }
        progress.say(&format!("copying {recordings} recordings"));
        let set = args.folder.join(format!("set-{recordings}"));
        let (files, data_bytes) = multiply(&real, &set, *recordings)?;
        for engine in engines.iter().filter(|engine| !is_known(engine)) {
            progress.say(&format!("{engine}: {recordings} recordings"));
            let (seconds, peak_bytes) = match (*engine, &args.python) {
                ("Spark", Some(python)) => spark(python, &set)?,
                _ => report(&fleet, &set)?,
            };
            let figure = Figure {
                recordings: *recordings,
                engine: (*engine).to_owned(),
                data_bytes,
                files,
                seconds,
                peak_bytes,
            };
            let mut file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&figures_file)?;
            writeln!(file, "{}", serde_json::to_string(&figure)?)?;
        }
        fs::remove_dir_all(&set).context("remove the data set")?;
    }
    print(&figures(&figures_file)?);
    Ok(ExitCode::SUCCESS)
}

/// For release, in a folder of its own.
fn build() -> anyhow::Result<PathBuf> {
    let target = workspace().join("target/fleet");
    let status = cargo()
        .args([
            "build",
            "--release",
            "--locked",
            "--manifest-path",
            MANIFEST,
            "--target-dir",
        ])
        .arg(&target)
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "build nestrace-fleet");
    Ok(target.join("release/nestrace-fleet"))
}

fn export(args: &FleetCostArgs, set: &Path) -> anyhow::Result<()> {
    let nestrace = match &args.nestrace {
        Some(program) => program.clone(),
        None => cargo_build::build("nestrace", Profile::Dev)?,
    };
    for entry in fs::read_dir(workspace().join("fixtures/findings"))? {
        let recording = entry?.path();
        if recording.extension().is_none_or(|it| it != "nest") {
            continue;
        }
        interrupt::check()?;
        let output = Command::new(&nestrace)
            .args(["export", "--format", "parquet"])
            .arg(&recording)
            .arg("-o")
            .arg(set)
            .output()
            .context("start nestrace export")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "export {}: {said}",
            recording.display()
        );
    }
    Ok(())
}

/// Copies the files of real recordings under the names of other hosts. How many files there are, and their bytes.
fn multiply(real: &Path, set: &Path, recordings: usize) -> anyhow::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for table in TABLES {
        let sources = sources(&real.join(table))?;
        for nth in 0..recordings {
            if nth % 1024 == 0 {
                interrupt::check()?;
            }
            let (day, file) = sources
                .get(nth % sources.len())
                .context("find a recording")?;
            let folder = set.join(table).join(format!("host=h{nth:06}")).join(day);
            fs::create_dir_all(&folder)?;
            let name = file.file_name().context("name a file")?;
            bytes += fs::copy(file, folder.join(name))?;
            files += 1;
        }
    }
    fs::copy(real.join(MARK), set.join(MARK))?;
    Ok((files, bytes))
}

/// The folders of days and the files of a table, in the order of the recordings' names.
fn sources(table: &Path) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    let mut files = Vec::new();
    for host in fs::read_dir(table)? {
        for day in fs::read_dir(host?.path())? {
            let day = day?;
            for file in fs::read_dir(day.path())? {
                files.push((PathBuf::from(day.file_name()), file?.path()));
            }
        }
    }
    files.sort_by(|a, b| a.1.file_name().cmp(&b.1.file_name()));
    Ok(files)
}

fn report(fleet: &Path, set: &Path) -> anyhow::Result<(f64, u64)> {
    let mut command = Command::new(fleet);
    command.arg("report").arg(set).args(["--format", "json"]);
    let took = watched::run(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
    Ok((took.seconds, took.peak_bytes))
}

/// What `spark.py` prints.
#[derive(Deserialize)]
struct Spark {
    seconds: f64,
    peak_bytes: u64,
}

fn spark(python: &Path, set: &Path) -> anyhow::Result<(f64, u64)> {
    let output = Command::new(python)
        .args(["-c", SPARK])
        .arg(workspace().join("sql"))
        .arg(set)
        .output()
        .context("start python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ask Spark: {said}");
    let took: Spark = serde_json::from_slice(&output.stdout).context("read what Spark took")?;
    Ok((took.seconds, took.peak_bytes))
}

/// What earlier runs wrote down.
fn figures(file: &Path) -> anyhow::Result<Vec<Figure>> {
    let Ok(file) = File::open(file) else {
        return Ok(Vec::new());
    };
    let lines = BufReader::new(file).lines();
    lines
        .map(|line| serde_json::from_str(&line?).context("read a figure"))
        .collect()
}

fn print(figures: &[Figure]) {
    println!("Machine: {}.\n", machine::describe());
    println!(
        "| recordings | files | bytes | engine | seconds | µs a recording | memory |\n|---|---|---|---|---|---|---|"
    );
    for figure in figures {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "| {} | {} | {:.0} MiB | {} | {:.1} | {:.0} | {:.0} MiB |",
            figure.recordings,
            figure.files,
            mebibytes(figure.data_bytes),
            figure.engine,
            figure.seconds,
            figure.seconds * 1e6 / figure.recordings as f64,
            mebibytes(figure.peak_bytes)
        );
    }
}
