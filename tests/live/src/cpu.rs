//! Where the processor was: what the threads of a QEMU waited for one is what the kernel's own count says, the rules about
//! processors fire where they are short, and are silent where they are not.

use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, ensure};
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::qemu_package;
use nestrace_rig::recorder::{self, Recorder};
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::{Case, Report};

use super::Scenario;
use super::busy::{BusyLoop, pin};
use super::context::LiveContext;
use super::stage::{manifest, monotonic_ns};
use super::with_agents::recording::{boot_with, wait_live};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "cpu",
    about: "when threads that carry I/O have a processor, against the kernel's count",
    run,
    // The rules are about how busy the machine is.
    alone: true,
};

const DISK: &str = "disk-a";
/// How long the threads are watched.
const WATCHED: Duration = Duration::from_secs(4);
/// How far our count may be off the kernel's: 0.2 to 4.1 % were measured. A thread counts as waiting from its waking, for the
/// kernel from the moment at which the other processor has queued it.
const EXACT: f64 = 0.06;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    if ctx.wants("cpu/shared") {
        report.case("cpu/shared", |case| shared(ctx, case))?;
    }
    if ctx.wants("cpu/saturated") {
        report.case("cpu/saturated", |case| saturated(ctx, case))?;
    }
    Ok(())
}

/// A guest with one virtual processor, and a disk that an iothread serves.
fn guest(ctx: &LiveContext, host: &HostFs) -> anyhow::Result<Guest> {
    let image = ctx
        .disk(host, DISK, DiskStack::RAW, 64 << 20, "full")?
        .image;
    let mut extra_arguments = in_one_thread(&image.display().to_string());
    extra_arguments.extend(words(&["-smp", "1"]));
    let guest = boot_with(ctx, "cpu", |spec| GuestSpec {
        modules: vec!["virtio_blk".to_owned()],
        extra_arguments,
        ..spec
    })?;
    guest.start_agent("--backend ebpf")?;
    Ok(guest)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn node(image: &str) -> String {
    format!(
        r#"{{"driver":"raw","node-name":"disk-a-format","file":{{"driver":"file","filename":"{image}","aio":"native","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#
    )
}

/// virtio-blk that an iothread serves, with two queues.
fn in_one_thread(image: &str) -> Vec<String> {
    words(&[
        "-object",
        "iothread,id=io0",
        "-blockdev",
        &node(image),
        "-device",
        r#"{"driver":"virtio-blk-pci","id":"disk-a","serial":"disk-a","drive":"disk-a-format","num-queues":2,"iothread":"io0"}"#,
    ])
}

/// What the kernel says of each thread: time on a processor and time that it waited for one, nanoseconds.
fn schedstat(pid: u32) -> anyhow::Result<Vec<(u64, u64, u64)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let tid: u64 = entry.file_name().to_string_lossy().parse()?;
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else {
            continue;
        };
        let numbers: Vec<u64> = text
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect();
        if let [running, waiting, ..] = numbers[..] {
            all.push((tid, running, waiting));
        }
    }
    Ok(all)
}

/// A recording of a load, with the kernel's count over the middle of it.
struct Watch {
    bundle: std::path::PathBuf,
    /// When the middle begins and ends, on the host's clock.
    times_ns: (u64, u64),
    before: Vec<(u64, u64, u64)>,
    after: Vec<(u64, u64, u64)>,
}

fn watch(
    ctx: &LiveContext,
    guest: &Guest,
    name: &str,
    (disk, load): (&str, &str),
) -> anyhow::Result<Watch> {
    let bundle = ctx.bundle(name);
    let output = bundle.display().to_string();
    let mut recorder = Recorder::start(
        &ctx.nestrace,
        &["--guest", guest.name(), "-o", &output, "--force"],
        false,
    )?;
    wait_live(&mut recorder, &[guest.name()])?;
    let device = guest.device_of(disk)?;
    let load = load.replace("$DEV", &device);
    let running = guest.start(&load, Duration::from_secs(60))?;
    thread::sleep(Duration::from_secs(1));
    let (begin, before) = (monotonic_ns()?, schedstat(guest.pid())?);
    thread::sleep(WATCHED);
    let (end, after) = (monotonic_ns()?, schedstat(guest.pid())?);
    running.wait()?;
    recorder.stop(Signal::SIGINT, Duration::from_secs(20))?;
    Ok(Watch {
        bundle,
        times_ns: (begin, end),
        before,
        after,
    })
}

impl Watch {
    /// Our count of the middle against the kernel's.
    fn compare(&self, ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
        let start_ns = manifest(&self.bundle)?.start_mono_ns;
        let since = |at_ns: u64| format!("{:.6}", at_ns.saturating_sub(start_ns) as f64 / 1e9);
        let (from, to) = (since(self.times_ns.0), since(self.times_ns.1));
        let bundle = self.bundle.to_str().context("name the bundle")?;
        let args = [
            "analyze", bundle, "--format", "json", "--from", &from, "--to", &to,
        ];
        let end = recorder::nestrace(&ctx.nestrace, &args)?;
        ensure!(end.code == Some(0), "analyze {bundle}: {}", end.stderr);
        let analysis: Value = serde_json::from_str(&end.stdout)?;
        let threads = analysis
            .pointer("/qemu_threads/0/threads")
            .and_then(Value::as_array)
            .context("find qemu_threads[]")?;
        let (mut ours, mut kernels) = ([0, 0], [0, 0]);
        for thread in threads {
            let tid = thread["tid"].as_u64().context("find tid")?;
            let of = |all: &[(u64, u64, u64)]| all.iter().find(|it| it.0 == tid).copied();
            let (Some(before), Some(after)) = (of(&self.before), of(&self.after)) else {
                continue;
            };
            let known = |what: &str| {
                thread
                    .pointer(&format!("/cpu/{what}"))
                    .and_then(Value::as_u64)
            };
            ours[0] += known("running").context("find cpu.running")?;
            ours[1] += known("runnable").context("find cpu.runnable")?;
            kernels[0] += after.1 - before.1;
            kernels[1] += after.2 - before.2;
        }
        let names = ["running", "waiting for a processor"];
        for ((name, ours), kernels) in names.iter().zip(ours).zip(kernels) {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let (ours, kernels) = (seconds(ours), seconds(kernels));
            let off = (ours - kernels).abs() / kernels;
            case.holds(
                &format!(
                    "QEMU's threads {name}: {ours:.3} s, by the kernel's count {kernels:.3} s"
                ),
                off <= EXACT,
                &format!("{:.1} % off", off * 100.0),
            );
        }
        Ok(())
    }

    fn fired(&self, ctx: &LiveContext, rule: &str) -> anyhow::Result<Option<Value>> {
        let analysis = recorder::analyze(&ctx.nestrace, &self.bundle)?;
        let findings = analysis["findings"].as_array().context("find findings[]")?;
        Ok(findings
            .iter()
            .find(|finding| finding["id"] == rule)
            .cloned())
    }
}

/// One request after the other.
const LONE: &str = "fio --name=load --filename=$DEV --direct=1 --ioengine=psync --bs=4k --size=64m --rw=randread \
                    --time_based --runtime=6 --output=/dev/null";

fn shared(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let guest = guest(ctx, &host)?;
    let alone = watch(ctx, &guest, "cpu-alone.nest", (DISK, LONE))?;
    pin(guest.pid(), "0")?;
    let busy = BusyLoop::on(0)?;
    let shared = watch(ctx, &guest, "cpu-shared.nest", (DISK, LONE))?;
    drop(busy);
    shared.compare(ctx, case)?;
    let starved = shared.fired(ctx, "cpu-starved")?;
    let said = starved.as_ref().map_or_else(String::new, Value::to_string);
    case.holds(
        "cpu-starved fires beside a busy loop",
        starved.is_some(),
        &said,
    );
    let instead = starved
        .as_ref()
        .and_then(|it| it["evidence"]["ran_instead"].as_str());
    let names_it = instead.is_some_and(|names| names.split(", ").any(|name| name == "sh"));
    case.holds("it names the loop", names_it, &said);
    let silent = alone.fired(ctx, "cpu-starved")?;
    let said = silent.as_ref().map_or_else(String::new, Value::to_string);
    case.holds("it is silent alone", silent.is_none(), &said);
    ctx.discard(&shared.bundle);
    ctx.discard(&alone.bundle);
    Ok(())
}

const VCPUS: u32 = 8;
const MANY: &str = "fio --name=load --filename=$DEV --direct=1 --ioengine=libaio --iodepth=64 --bs=256k --rw=randread \
                    --time_based --runtime=6 --output=/dev/null";

/// An encrypted disk with a queue for each virtual processor. Its cipher has no instructions of the processor, so the thread
/// that serves the queues has much to do. qemu-img measures the hash, which has to take longer than the kernel's tick.
fn encrypted(host: &HostFs, disk: &str, served_by: &str) -> anyhow::Result<Vec<String>> {
    let image = host.path().join(disk);
    let place = image.to_str().context("name the image")?;
    Tool::new("qemu-img")
        .args([
            "create",
            "-q",
            "-f",
            "luks",
            "--object",
            "secret,id=key,data=key",
            "-o",
        ])
        .args([
            "key-secret=key,cipher-alg=serpent-256,hash-alg=sha512,iter-time=10,preallocation=full",
            place,
            "64M",
        ])
        .run()?;
    Ok(words(&[
        "-blockdev",
        &format!(
            r#"{{"driver":"luks","key-secret":"key","node-name":"{disk}-format","file":{{"driver":"file","filename":"{place}","aio":"native","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#
        ),
        "-device",
        &format!(
            r#"{{"driver":"virtio-blk-pci","id":"{disk}","serial":"{disk}","drive":"{disk}-format","num-queues":{VCPUS},{served_by}}}"#
        ),
    ]))
}

/// One iothread for eight queues has no more to give; with two for the queues of the other disk the rule is silent.
fn saturated(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let mut extra_arguments = words(&["-object", "secret,id=key,data=key"]);
    for iothread in ["io0", "io1", "io2"] {
        extra_arguments.extend(words(&["-object", &format!("iothread,id={iothread}")]));
    }
    let mapped = r#""iothread-vq-mapping":[{"iothread":"io1"},{"iothread":"io2"}]"#;
    for (disk, served_by) in [("one", r#""iothread":"io0""#), ("two", mapped)] {
        extra_arguments.extend(encrypted(&host, disk, served_by)?);
    }
    let qemu = qemu_package::obtain_root("trixie", "trixie-backports")?;
    let guest = boot_with(ctx, "cpu", |spec| GuestSpec {
        modules: vec!["virtio_blk".to_owned()],
        extra_arguments,
        vcpus: VCPUS,
        qemu,
        ..spec
    })?;
    guest.start_agent("--backend ebpf")?;
    for (disk, fires) in [("one", true), ("two", false)] {
        let seen = watch(ctx, &guest, &format!("cpu-{disk}.nest"), (disk, MANY))?;
        let finding = seen.fired(ctx, "iothread-saturated")?;
        let said = finding.as_ref().map_or_else(String::new, Value::to_string);
        case.equal(
            &format!("{disk}: iothread-saturated"),
            finding.is_some(),
            fires,
        );
        if let Some(finding) = &finding {
            case.figure(finding["title"].as_str().unwrap_or_default().to_owned());
            let evidence = &finding["evidence"];
            case.holds("the thread's name", evidence["thread"] == "io0", &said);
            case.holds("its queues", evidence["queues"] == VCPUS, &said);
            let advice = finding["advice"].to_string();
            case.holds(
                "what to type",
                advice.contains("iothread-vq-mapping"),
                &advice,
            );
        } else if fires {
            let analysis = recorder::analyze(&ctx.nestrace, &seen.bundle)?;
            case.figure(analysis["qemu_threads"].to_string());
        }
        ctx.discard(&seen.bundle);
    }
    Ok(())
}
