//! What recording costs a guest: its own IOPS with and without nestrace.

mod calls;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::recorder::Recorder;
use nestrace_rig::stack::{DiskStack, HostFsKind, Stack};
use nestrace_rig::{disk_image, initramfs, interrupt, kernel_image};
use nix::sys::signal::Signal;
use xtask::progress::Progress;

use super::RecordCostArgs;
use super::figures::Spread;
use super::load;
use super::trace_size::{self, TraceSize};

const DISK: &str = "disk-a";
const LIVE: Duration = Duration::from_secs(20);
/// Levels of detail, without a recording first.
const DETAILS: [Option<&str>; 3] = [None, Some("full"), Some("light")];

/// Boots a guest, alternates, and gives a table.
pub fn run(args: &RecordCostArgs, nestrace: &Path, progress: &Progress) -> anyhow::Result<String> {
    progress.say("booting a guest");
    let host = HostFs::create(&HostFsSpec {
        backing_folder: "/dev/shm".into(),
        ..HostFsSpec::new(HostFsKind::Xfs)
    })?;
    let stack = Stack {
        host_fs: host.kind(),
        disk: DiskStack::default(),
    };
    let guest = boot(&host, stack.disk)?;
    let calls = calls::run(&guest, nestrace, args.rounds, progress)?;
    let mut results: [Vec<GuestPhase>; DETAILS.len()] = Default::default();
    for round in 0..args.rounds {
        for (detail, results) in DETAILS.iter().zip(&mut results) {
            interrupt::check()?;
            let measured = phase(&guest, nestrace, *detail, args.seconds)?;
            progress.say(&format!(
                "guest, round {}: {:.2} k IOPS, {}",
                round + 1,
                measured.iops / 1e3,
                detail.unwrap_or("untraced")
            ));
            results.push(measured);
        }
    }
    Ok(table(&results, &stack.to_string()) + &calls)
}

/// A guest with one disk on this file system.
pub fn boot(host: &HostFs, stack: DiskStack) -> anyhow::Result<Guest> {
    let kernel = kernel_image::obtain("6.1")?;
    let initramfs = initramfs::obtain(&kernel)?;
    let image = host.path().join(format!("disk.{}", stack.format));
    disk_image::create(&image, stack.format, 512 << 20, "full")?;
    let name = format!("nestrace-bench-{}", std::process::id());
    let mut spec = GuestSpec::new(&name, &kernel, &initramfs);
    spec.disks = vec![DiskSpec::new(DISK, image, stack)];
    Ok(Guest::boot(spec)?)
}

/// One run of fio in the guest.
#[derive(Clone, Copy, Debug)]
struct GuestPhase {
    /// Reads per second, by the guest's fio.
    iops: f64,
    /// Reads that QEMU counted.
    reads: u64,
    /// What nestrace left.
    trace: TraceSize,
}

fn phase(
    guest: &Guest,
    nestrace: &Path,
    detail: Option<&str>,
    seconds: u32,
) -> anyhow::Result<GuestPhase> {
    let folder = tempfile::Builder::new()
        .prefix("nestrace-bench-")
        .tempdir_in("/dev/shm")
        .context("make a folder for the trace")?;
    let bundle = folder.path().join("trace.nest");
    let bundle = bundle.to_str().context("name the recording")?;
    let recorder = match detail {
        None => None,
        Some(detail) => {
            let args = ["--guest", guest.name(), "--detail", detail, "-o", bundle];
            let mut recorder = Recorder::start(nestrace, &args, false)?;
            recorder.wait_live(LIVE)?;
            Some(recorder)
        }
    };
    let script = format!(
        "fio --name=read --filename={} --rw=randread --bs=4k --ioengine=libaio --direct=1 --iodepth=32 \
         --randrepeat=0 --time_based --runtime={seconds} --ramp_time=1s --output-format=json",
        guest.device_of(DISK)?
    );
    let limit = Duration::from_secs(u64::from(seconds) + 60);
    let before = guest.disk_stats(DISK)?.reads;
    let output = guest.run_ok(&script, limit)?;
    let reads = guest.disk_stats(DISK)?.reads - before;
    let mut trace = TraceSize::default();
    if let Some(recorder) = recorder {
        let end = recorder.stop(Signal::SIGINT, Duration::from_secs(20))?;
        if !end.status.success() {
            bail!("record the guest: {}", end.stderr);
        }
        trace = trace_size::of_bundle(Path::new(bundle))?;
    }
    Ok(GuestPhase {
        iops: load::read_report(&output.stdout)?.iops,
        reads,
        trace,
    })
}

fn table(results: &[Vec<GuestPhase>; DETAILS.len()], stack: &str) -> String {
    let mut text = format!(
        "\n### guest: 4 KiB random reads at depth 32 in a guest, {stack}, loop device over memory\n\n\
         | recorder | guest IOPS | IOPS lost | events/read | lost | bytes/event |\n|---|---|---|---|---|---|\n"
    );
    let [untraced, traced @ ..] = results;
    if let Some(spread) = Spread::of(untraced.iter().map(|phase| phase.iops)) {
        text += &format!("| untraced | {:.2} k | | | | |\n", spread.median / 1e3);
    }
    for (detail, phases) in DETAILS.iter().flatten().zip(traced) {
        let lost = phases
            .iter()
            .zip(untraced)
            .map(|(with, without)| 1.0 - with.iops / without.iops);
        let iops = Spread::of(phases.iter().map(|phase| phase.iops));
        let Some((iops, lost)) = iops.zip(Spread::of(lost)) else {
            continue;
        };
        let sum = |part: fn(&GuestPhase) -> u64| phases.iter().map(part).sum::<u64>();
        let events = sum(|phase| phase.trace.events) as f64;
        text += &format!(
            "| nestrace {detail} | {:.2} k | **{:.1} %** ({:.1} … {:.1}) | {:.1} | {} | {:.1} |\n",
            iops.median / 1e3,
            lost.median * 100.0,
            lost.min * 100.0,
            lost.max * 100.0,
            events / sum(|phase| phase.reads) as f64,
            sum(|phase| phase.trace.lost),
            sum(|phase| phase.trace.bytes) as f64 / events
        );
    }
    text
}
