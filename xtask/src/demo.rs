//! `cargo xtask demo`: from nothing to an analysis of a real nested stack, in one command.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_modelled_disk::lateness::GOAL_NS;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec, kernel_has};
use nestrace_rig::modelled_disk::{self, ModelledDiskSpec};
use nestrace_rig::recorder::Recorder;
use nestrace_rig::stack::{
    Aio, Bus, CacheMode, DiskStack, GuestFsKind, HostFsKind, ImageFormat, Stack,
};
use nestrace_rig::{disk_image, initramfs, interrupt, kernel_image, packages, root};
use nix::sys::signal::Signal;
use xtask::cargo_build::{self, Profile};
use xtask::guest_programs;
use xtask::progress::Progress;

const DISK: &str = "disk-a";

/// Options of `demo`.
#[derive(clap::Args)]
pub struct DemoArgs {
    /// File system in the guest: ext2, ext3, ext4, xfs, jfs, reiserfs, btrfs
    #[arg(long, default_value_t = GuestFsKind::Ext4)]
    guest_fs: GuestFsKind,
    /// File system on the host, under the image: ext4, xfs, btrfs, ext3, ext2
    #[arg(long, default_value_t = HostFsKind::Xfs)]
    host_fs: HostFsKind,
    /// Format of the image: raw, qcow2
    #[arg(long, default_value_t = ImageFormat::Qcow2)]
    format: ImageFormat,
    /// QEMU's cache mode: none, writeback, writethrough, directsync, unsafe
    #[arg(long, default_value_t = CacheMode::None)]
    cache: CacheMode,
    /// How QEMU submits: threads, native, io_uring
    #[arg(long, default_value_t = Aio::IoUring)]
    aio: Aio,
    /// The guest's bus: virtio, virtio-scsi, ide
    #[arg(long, default_value_t = Bus::Virtio)]
    bus: Bus,
    /// Give the disk an iothread of its own
    #[arg(long)]
    iothread: bool,
    /// qemu-img's preallocation: off, metadata, falloc, full
    #[arg(long, default_value = "off")]
    preallocation: String,
    /// Seconds of work in the guest
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// fio's options of the workload
    #[arg(long, default_value = "--rw=randrw --bs=8k --ioengine=psync --fsync=8")]
    fio: String,
    /// Modelled disk under the host's file system: hdd-7200, hdd-5400, hdd-sw-raid10, sata-ssd, nvme, or a TOML file
    #[arg(long, value_name = "MODEL")]
    disk: Option<String>,
    /// Record the host's side alone: no agent in the guest
    #[arg(long)]
    no_agent: bool,
    /// Debian kernel series of the guest
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Folder that keeps the recording
    #[arg(short, long, default_value = "target/demo")]
    output: PathBuf,
}

impl DemoArgs {
    fn stack(&self) -> Stack {
        let Self {
            format,
            cache,
            aio,
            bus,
            iothread,
            ..
        } = *self;
        Stack {
            host_fs: self.host_fs,
            disk: DiskStack {
                format,
                cache,
                aio,
                bus,
                iothread,
            },
        }
    }
}

/// Runs the demo.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let stack = args.stack();
    if let Some(objection) = stack.disk.objection() {
        bail!("build the stack {stack}: {objection}");
    }
    if !kernel_has(stack.host_fs) {
        bail!(
            "build the stack {stack}: this machine's kernel has no {}",
            stack.host_fs
        );
    }
    let progress = Progress::start();
    packages::install(|line| progress.say(line))?;
    root::require()?;
    // In the profile of the tests: a release build takes several times as long.
    progress.say("building nestrace");
    let nestrace = cargo_build::build_without_parquet()?;
    let modelled = match &args.disk {
        Some(model) => {
            // Before anything is made.
            modelled_disk::parameters(model)?;
            progress.say("building what serves the modelled disk");
            let program = cargo_build::build(modelled_disk::PROGRAM, Profile::Dev)?;
            Some(ModelledDiskSpec::new(program, model))
        }
        None => None,
    };
    let agent = if args.no_agent {
        None
    } else {
        progress.say("building the agent for the guest");
        Some(guest_programs::agent()?)
    };
    std::fs::create_dir_all(&args.output)
        .with_context(|| format!("make the folder {}", args.output.display()))?;
    let bundle = args.output.join("demo.nest");

    // Dropped in the reverse order: the guest goes first, then its file system.
    let host = make_host(args, modelled, &progress)?;
    let guest = boot(args, &host, agent, &progress)?;
    record(args, (&guest, &host), &nestrace, &bundle, &progress)?;
    drop(guest);
    drop(host);
    progress.say("the guest and its file system are gone; the analysis:");
    print_analysis(&nestrace, &bundle)?;
    eprintln!();
    eprintln!("The recording is in {}", bundle.display());
    eprintln!("The program is      {}", nestrace.display());
    eprintln!("See it again with   nestrace analyze {}", bundle.display());
    Ok(ExitCode::SUCCESS)
}

fn make_host(
    args: &DemoArgs,
    modelled: Option<ModelledDiskSpec>,
    progress: &Progress,
) -> anyhow::Result<HostFs> {
    let on = match &modelled {
        Some(disk) => format!("the modelled disk {}", disk.model),
        None => String::from("a loop device"),
    };
    progress.say(&format!("making a {} file system on {on}", args.host_fs));
    let spec = HostFsSpec {
        size_bytes: 3 << 30,
        direct_io: true,
        modelled,
        ..HostFsSpec::new(args.host_fs)
    };
    // A temporary folder on tmpfs knows no O_DIRECT.
    let host = HostFs::create(&spec).or_else(|_| {
        HostFs::create(&HostFsSpec {
            direct_io: false,
            ..spec.clone()
        })
    })?;
    progress.say(&format!(
        "{} is on {}",
        host.path().display(),
        host.device()
    ));
    Ok(host)
}

fn boot(
    args: &DemoArgs,
    host: &HostFs,
    agent: Option<PathBuf>,
    progress: &Progress,
) -> anyhow::Result<Guest> {
    progress.say(&format!(
        "getting the Debian kernel {} for the guest",
        args.kernel
    ));
    let kernel = kernel_image::obtain(&args.kernel)?;
    let initramfs = initramfs::obtain(&kernel)?;
    let stack = args.stack();
    let image = host.path().join(format!("disk.{}", stack.disk.format));
    disk_image::create(&image, stack.disk.format, 1 << 30, &args.preallocation)?;
    let name = format!("nestrace-demo-{}", std::process::id());
    let mut spec = GuestSpec::new(&name, &kernel, &initramfs);
    spec.disks = vec![DiskSpec::new(DISK, image, stack.disk)];
    spec.agent = agent;
    progress.say(&format!(
        "booting the guest {name} ({} on {stack})",
        args.guest_fs
    ));
    let guest = Guest::boot(spec)?;
    progress.say(&format!("making {} in the guest", args.guest_fs));
    guest.make_fs(DISK, args.guest_fs)?;
    guest.mount(DISK, args.guest_fs, "/mnt/demo", "")?;
    if !args.no_agent {
        progress.say("starting nestrace-agent in the guest");
        guest.start_agent("")?;
    }
    Ok(guest)
}

fn record(
    args: &DemoArgs,
    (guest, host): (&Guest, &HostFs),
    nestrace: &Path,
    bundle: &Path,
    progress: &Progress,
) -> anyhow::Result<()> {
    let path = bundle.to_str().context("name the recording")?;
    progress.say(&format!(
        "nestrace record --guest {} -o {path}",
        guest.name()
    ));
    let mut recorder = Recorder::start(
        nestrace,
        &["--guest", guest.name(), "-o", path, "--force"],
        true,
    )?;
    recorder.wait_live(Duration::from_secs(20))?;
    if !args.no_agent {
        recorder.wait_for_line(&[guest.name(), "agent", "live"], Duration::from_secs(20))?;
    }
    progress.say(&format!(
        "the guest works for {} s: fio {}",
        args.seconds, args.fio
    ));
    let script = format!(
        "fio --name=demo --directory=/mnt/demo --size=64m --time_based --runtime={} {} && sync",
        args.seconds, args.fio
    );
    let limit = Duration::from_secs(u64::from(args.seconds) + 60);
    if let Some(disk) = host.modelled() {
        disk.report(true)?;
    }
    let running = guest.start(&script, limit)?;
    let end = Instant::now() + Duration::from_secs(u64::from(args.seconds));
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        thread::sleep(left.min(Duration::from_millis(200)));
        interrupt::check()?;
    }
    let output = running.wait()?;
    if output.status != 0 {
        bail!("run fio in the guest: {}", output.stderr);
    }
    if let Some(disk) = host.modelled() {
        let late = disk.report(true)?;
        progress.say(&format!(
            "the modelled disk: {} of {} completions more than {} µs after the model's, 99 % within {} µs",
            late.late,
            late.n,
            GOAL_NS / 1000,
            late.p99_ns / 1000
        ));
    }
    progress.say("stopping the recording");
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(20))?;
    if !end.status.success() {
        bail!("record the guest: {}", end.status);
    }
    Ok(())
}

fn print_analysis(nestrace: &Path, bundle: &Path) -> anyhow::Result<()> {
    let status = Command::new(nestrace)
        .arg("analyze")
        .arg(bundle)
        .status()
        .with_context(|| format!("start {}", nestrace.display()))?;
    if !status.success() {
        bail!("analyze {}: {status}", bundle.display());
    }
    Ok(())
}
