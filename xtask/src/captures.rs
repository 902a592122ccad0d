//! `cargo xtask captures`: what the real blktrace records in a guest, and what btt says of it.
//!
//! One capture for each scheduler, and one for each way of I/O that btt errs at. They are kept in
//! `fixtures/blktrace`; a test of the report's crate holds every figure of btt against ours, and
//! `docs/btt.md` says why where they differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack};
use nestrace_rig::{disk_image, initramfs, kernel_image, packages};
use xtask::cargo_build::workspace;
use xtask::folder_size;
use xtask::progress::Progress;

/// btt takes virtio's number for a device mapper's, so the disk is a SCSI one.
const STACK: DiskStack = DiskStack {
    bus: Bus::VirtioScsi,
    cache: CacheMode::Writeback,
    aio: Aio::Threads,
    ..DiskStack::RAW
};
const DISK_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const SCRIPT: &str = include_str!("captures/capture.sh");
/// Of one capture.
const LARGEST: u64 = 512 << 10;

/// Options of `captures`.
#[derive(clap::Args)]
pub struct CapturesArgs {
    /// Only this capture; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Folder for the captures
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A capture and how it is made.
struct Recipe {
    name: &'static str,
    scheduler: &'static str,
    /// Largest request, KiB.
    max_sectors_kb: u32,
    /// fio's options.
    load: &'static [&'static str],
}

const MIXED: &[&str] = &[
    "--rw=randrw",
    "--bsrange=4k-32k",
    "--ioengine=libaio",
    "--iodepth=8",
    "--number_ios=300",
    "--fsync=50",
];

const RECIPES: [Recipe; 6] = [
    of_scheduler("none"),
    of_scheduler("mq-deadline"),
    of_scheduler("kyber"),
    of_scheduler("bfq"),
    Recipe {
        name: "split",
        scheduler: "mq-deadline",
        max_sectors_kb: 64,
        load: &[
            "--rw=randwrite",
            "--bsrange=4k-256k",
            "--ioengine=libaio",
            "--iodepth=4",
            "--number_ios=100",
        ],
    },
    Recipe {
        name: "storm",
        scheduler: "mq-deadline",
        max_sectors_kb: 1280,
        load: &[
            "--rw=randwrite",
            "--norandommap",
            "--bs=4k",
            "--size=8k",
            "--ioengine=libaio",
            "--iodepth=8",
            "--io_size=1200k",
        ],
    },
];

/// Reads and writes of several sizes.
const fn of_scheduler(scheduler: &'static str) -> Recipe {
    Recipe {
        name: scheduler,
        scheduler,
        max_sectors_kb: 1280,
        load: MIXED,
    }
}

/// Makes the captures.
pub fn run(args: &CapturesArgs) -> anyhow::Result<ExitCode> {
    for name in &args.only {
        let known = RECIPES.iter().any(|recipe| recipe.name == name);
        ensure!(known, "find a capture called {name}");
    }
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| workspace().join("fixtures/blktrace/schedulers"));
    let progress = Progress::start();
    packages::install(|line| progress.say(line))?;
    let folder = tempfile::Builder::new()
        .prefix("nestrace-captures-")
        .tempdir()
        .context("make a folder for the guest's disk")?;
    let guest = boot(folder.path())?;
    let wanted =
        |recipe: &&Recipe| args.only.is_empty() || args.only.iter().any(|name| recipe.name == name);
    for recipe in RECIPES.iter().filter(wanted) {
        let place = out.join(recipe.name);
        capture(&guest, recipe, folder.path(), &place)
            .with_context(|| format!("capture {}", recipe.name))?;
        progress.say(&format!("{} is made", place.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn boot(folder: &Path) -> anyhow::Result<Guest> {
    let kernel = kernel_image::obtain("6.1")?;
    let initramfs = initramfs::obtain(&kernel)?;
    let image = folder.join("disk");
    disk_image::create(&image, STACK.format, DISK_BYTES, "off")?;
    let name = format!("nestrace-captures-{}", std::process::id());
    let mut spec = GuestSpec::new(name, &kernel, &initramfs);
    spec.disks = vec![DiskSpec::new("traced", image, STACK)];
    let modules = ["bfq", "mq_deadline", "kyber_iosched"];
    spec.modules.extend(modules.map(str::to_owned));
    Ok(Guest::boot(spec)?)
}

/// One capture with what btt says beside it, in the place of an older one.
fn capture(guest: &Guest, recipe: &Recipe, folder: &Path, place: &Path) -> anyhow::Result<()> {
    let unfinished = place.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).with_context(|| format!("make {}", unfinished.display()))?;
    let archive = folder.join("capture.tar");
    trace(guest, recipe, &archive)?;
    Tool::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&unfinished)
        .run()?;
    let said = ask_btt(&unfinished, folder)?;
    fs::write(unfinished.join("btt.txt"), said).context("write what btt said")?;
    let bytes = folder_size::bytes(&unfinished)?;
    ensure!(bytes <= LARGEST, "keep it small: {bytes} bytes");
    if place.exists() {
        fs::remove_dir_all(place).context("remove the older capture")?;
    }
    fs::rename(&unfinished, place).context("put the capture in its place")
}

/// blktrace's files of a recipe's load, as an archive.
fn trace(guest: &Guest, recipe: &Recipe, archive: &Path) -> anyhow::Result<()> {
    let device = guest.device_of("traced")?;
    let settings = format!(
        "device={} scheduler={} max_sectors_kb={} load='{}'\n",
        device.trim_start_matches("/dev/"),
        recipe.scheduler,
        recipe.max_sectors_kb,
        recipe.load.join(" "),
    );
    guest.run_ok(&(settings + SCRIPT), PATIENCE)?;
    Ok(guest.get_file("/tmp/capture.tar", archive)?)
}

/// What btt says of the capture in a folder; blkparse's dump goes to another one.
fn ask_btt(capture: &Path, folder: &Path) -> anyhow::Result<String> {
    let dump = folder.join("gt.bin");
    Tool::new("blkparse")
        .args(["-q", "-O", "-i", "gt", "-d"])
        .arg(&dump)
        .current_dir(capture)
        .run()?;
    let btt = Tool::new("btt").args(["-A", "-i"]).arg(&dump);
    Ok(btt.current_dir(folder).run()?)
}
