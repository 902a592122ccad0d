//! `cargo xtask bench link`: how fast a recording of host and guest is linked, and how much memory
//! that takes, for recordings of growing length.
//!
//! A guest with an agent is recorded for some seconds; `repeated` makes long recordings of that one.
//! `nestrace analyze` then reads each, as a user would run it. Every repetition has to be linked as
//! completely as the original was.

pub mod repeated;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::recorder::Recorder;
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nestrace_rig::{disk_image, initramfs, interrupt, kernel_image, root};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::cargo_build::{self, Profile};
use xtask::guest_programs;
use xtask::progress::Progress;

use super::machine;
use super::watched::{self, Took};
use repeated::Original;

const DISK: &str = "disk-a";
const LIVE: Duration = Duration::from_secs(30);

/// Options of `bench link`.
#[derive(clap::Args)]
pub struct LinkSpeedArgs {
    /// Repeats this recording of a guest with its agent instead of making one
    #[arg(long, value_name = "BUNDLE")]
    recording: Option<PathBuf>,
    /// Lengths of the recordings, in millions of events
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100])]
    millions: Vec<u64>,
    /// Where the recordings are made: 100 million events take about 1 GB
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    folder: PathBuf,
    /// Puts this static agent into the guest instead of building one
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
    /// Measures this nestrace instead of building one for release
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
}

/// Makes the recordings, reads each, and prints Markdown.
pub fn run(args: &LinkSpeedArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::start();
    let nestrace = match &args.nestrace {
        Some(program) => program.clone(),
        None => cargo_build::build("nestrace", Profile::Release)?,
    };
    println!("Machine: {}.", machine::describe());
    let folder = tempfile::Builder::new()
        .prefix("nestrace-bench-")
        .tempdir_in(&args.folder)
        .with_context(|| format!("make a folder in {}", args.folder.display()))?;
    let recording = match &args.recording {
        Some(bundle) => bundle.clone(),
        None => record(
            args,
            &nestrace,
            &folder.path().join("original.nest"),
            &progress,
        )?,
    };
    let original = Original::read(&recording)?;
    let once = read(&nestrace, &recording)?;
    progress.say(&format!(
        "the original: {} events, {} of {} guest bios linked",
        original.events(),
        once.linked,
        once.bios
    ));
    ensure!(once.linked > 0, "link the original recording");
    print!("{HEAD}");
    for millions in &args.millions {
        interrupt::check()?;
        let bundle = folder.path().join(format!("{millions}.nest"));
        let repetitions = original.write_repeated(&bundle, millions * 1_000_000)?;
        progress.say(&format!(
            "{millions} million events, {repetitions} repetitions"
        ));
        let reading = read(&nestrace, &bundle)?;
        println!("{}", row(&reading));
        ensure!(
            reading.bios == once.bios * repetitions,
            "count the guest's bios: {} of {repetitions} × {}",
            reading.bios,
            once.bios
        );
        // A chain at the seam of two repetitions may be given up.
        ensure!(
            reading.linked + repetitions * (once.bios - once.linked) + reading.bios / 1000
                >= reading.bios,
            "link every repetition as the original: {} of {}",
            reading.linked,
            reading.bios
        );
        std::fs::remove_dir_all(&bundle).context("remove a recording")?;
    }
    Ok(ExitCode::SUCCESS)
}

const HEAD: &str = "
### link: `nestrace analyze` on a recording of host and guest

| events | guest requests | bios linked | seconds | CPU s | guest requests/s | events/s | memory |
|---|---|---|---|---|---|---|---|
";

/// What `nestrace analyze` made of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Events of all streams.
    pub events: u64,
    requests: u64,
    /// Of the guest.
    pub bios: u64,
    linked: u64,
    /// Calls of the guest's programs that have ended.
    pub calls: u64,
    /// By nestrace.
    pub took: Took,
}

fn row(reading: &Reading) -> String {
    let Reading {
        events,
        requests,
        bios,
        linked,
        took,
        ..
    } = *reading;
    let Took {
        seconds,
        busy_s,
        peak_bytes,
    } = took;
    format!(
        "| {:.2} M | {:.2} M | {:.3} % | {seconds:.1} | {busy_s:.1} | **{:.0} k** | {:.2} M | {:.0} MiB |",
        events as f64 / 1e6,
        requests as f64 / 1e6,
        linked as f64 * 100.0 / bios as f64,
        requests as f64 / seconds / 1e3,
        events as f64 / seconds / 1e6,
        peak_bytes as f64 / f64::from(1 << 20),
    )
}

/// Runs `nestrace analyze`.
pub fn read(nestrace: &Path, bundle: &Path) -> anyhow::Result<Reading> {
    let output = tempfile::NamedTempFile::new().context("keep the analysis")?;
    let took = watched::run(
        Command::new(nestrace)
            .arg("analyze")
            .arg(bundle)
            .args(["--format", "json"])
            .stdin(Stdio::null())
            .stdout(output.reopen().context("keep the analysis")?),
    )?;
    let file = File::open(output.path()).context("read the analysis")?;
    let analysis: Value = serde_json::from_reader(file).context("read the analysis")?;
    let chains = analysis["chains"].as_array().context("find chains[]")?;
    let rows = analysis["calls"].as_array().into_iter().flatten();
    let sum = |key: &str| chains.iter().filter_map(|chain| chain[key].as_u64()).sum();
    Ok(Reading {
        events: analysis["trace"]["events"].as_u64().unwrap_or(0),
        requests: sum("guest_requests"),
        bios: sum("guest_bios"),
        linked: sum("linked"),
        calls: rows.filter_map(|row| row["n"].as_u64()).sum(),
        took,
    })
}

/// Records a guest and its agent during random reads and writes at depth 16.
fn record(
    args: &LinkSpeedArgs,
    nestrace: &Path,
    bundle: &Path,
    progress: &Progress,
) -> anyhow::Result<PathBuf> {
    root::require()?;
    let agent = match &args.agent {
        Some(program) => program.clone(),
        None => guest_programs::agent()?,
    };
    progress.say("booting a guest");
    let host = HostFs::create(&HostFsSpec {
        backing_folder: "/dev/shm".into(),
        ..HostFsSpec::new(HostFsKind::Xfs)
    })?;
    let guest = boot(&host, agent)?;
    guest.start_agent("")?;
    let path = bundle.to_str().context("name the recording")?;
    let mut recorder = Recorder::start(nestrace, &["--guest", guest.name(), "-o", path], false)?;
    recorder.wait_live(LIVE)?;
    recorder.wait_for_line(&[guest.name(), "agent", "live"], LIVE)?;
    let device = guest.device_of(DISK)?;
    let load = format!(
        "fio --name=mixed --filename={device} --rw=randrw --bs=4k --ioengine=libaio --direct=1 \
         --iodepth=16 --fsync=64 --randrepeat=0 --time_based --runtime=5; sleep 0.5"
    );
    guest.run_ok(&load, Duration::from_secs(60))?;
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(30))?;
    ensure!(end.status.success(), "record the guest: {}", end.stderr);
    Ok(bundle.to_owned())
}

fn boot(host: &HostFs, agent: PathBuf) -> anyhow::Result<Guest> {
    let kernel = kernel_image::obtain("6.1")?;
    let initramfs = initramfs::obtain(&kernel)?;
    let stack = DiskStack::default();
    let image = host.path().join(format!("disk.{}", stack.format));
    disk_image::create(&image, stack.format, 512 << 20, "full")?;
    let name = format!("nestrace-bench-{}", std::process::id());
    let mut spec = GuestSpec::new(&name, &kernel, &initramfs);
    spec.disks = vec![DiskSpec::new(DISK, image, stack)];
    spec.agent = Some(agent);
    spec.memory_mib = 1024;
    Ok(Guest::boot(spec)?)
}
