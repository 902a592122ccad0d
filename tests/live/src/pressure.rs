//! I/O pressure that QEMU's event loops make while nothing is to be done, and pressure of a slow disk.

use std::time::Duration;
use std::{fs, thread};

use anyhow::Context;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::qemu_package;
use nestrace_rig::recorder::{self, Recorder};
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::case::{Case, Report};

use crate::Scenario;
use crate::analysis::{entry, number};
use crate::cgroup::Cgroup;
use crate::context::LiveContext;
use crate::fixtures::limits::Limits;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "pressure",
    about: "I/O pressure of a QEMU 11 that idles is called so; that of a slow disk and an older QEMU's is not",
    run,
    alone: false,
};

const DISK: &str = "disk-a";
const RULE: &str = "pressure-without-io";
/// How long it is recorded.
const WATCHED: Duration = Duration::from_secs(4);
/// Requests a second of the slow disk.
const SLOW: u32 = 40;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    if fs::read("/proc/pressure/io").is_err() {
        println!("  pressure: skipped, for this kernel counts no pressure (boot it with psi=1)");
        return Ok(());
    }
    if ctx.wants("pressure/idle") {
        report.case("pressure/idle", |case| idle(ctx, case))?;
    }
    Ok(())
}

/// A guest in a cgroup of its own, with a disk that an iothread serves.
struct Stage {
    guest: Guest,
    limits: Limits,
    cgroup: Cgroup,
    device: String,
    _host: nestrace_rig::host_fs::HostFs,
}

impl Stage {
    fn boot(ctx: &LiveContext, spec: GuestSpec) -> anyhow::Result<Self> {
        let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
        let image = ctx
            .disk(&host, DISK, DiskStack::RAW, 64 << 20, "full")?
            .image;
        let node = format!(
            r#"{{"driver":"raw","node-name":"disk-a-format","file":{{"driver":"file","filename":"{}","aio":"native","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#,
            image.display()
        );
        let device = r#"{"driver":"virtio-blk-pci","id":"disk-a","serial":"disk-a","drive":"disk-a-format","iothread":"io0"}"#;
        let arguments = [
            "-object",
            "iothread,id=io0",
            "-blockdev",
            &node,
            "-device",
            device,
        ];
        let (limits, cgroup) = (Limits::create()?, Cgroup::of_version_2()?);
        let guest = Guest::boot(GuestSpec {
            modules: vec!["virtio_blk".to_owned()],
            extra_arguments: arguments.map(str::to_owned).into(),
            ..spec
        })?;
        limits.hold(guest.pid())?;
        cgroup.hold(guest.pid())?;
        Ok(Self {
            guest,
            limits,
            cgroup,
            device: host.device().to_owned(),
            _host: host,
        })
    }

    /// The kernel's sum, microseconds.
    fn waited_us(&self) -> anyhow::Result<u64> {
        let text = self.cgroup.read("io.pressure")?;
        let total = text
            .lines()
            .next()
            .and_then(|some| some.split("total=").nth(1));
        Ok(total.context("find total=")?.parse()?)
    }

    /// The analysis of a recording, and which part of its time the kernel counted as waits for I/O.
    fn watch(&self, ctx: &LiveContext, name: &str) -> anyhow::Result<(Value, f64)> {
        let bundle = ctx.bundle(name);
        let output = bundle.display().to_string();
        let guest = self.guest.name();
        let args = ["--guest", guest, "--agent", "off", "-o", &output, "--force"];
        let mut recorder = Recorder::start(&ctx.nestrace, &args, false)?;
        recorder.wait_live(Duration::from_secs(20))?;
        let (begin, before) = (crate::stage::monotonic_ns()?, self.waited_us()?);
        thread::sleep(WATCHED);
        let (end, after) = (crate::stage::monotonic_ns()?, self.waited_us()?);
        recorder.stop(Signal::SIGINT, Duration::from_secs(20))?;
        let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
        let waited = (after - before) as f64 * 1e3 / (end - begin) as f64;
        ctx.discard(&bundle);
        Ok((analysis, waited))
    }

    /// The share that the analysis says.
    fn counted(&self, analysis: &Value) -> anyhow::Result<f64> {
        let own = entry(analysis, "pressure", &[("guest", self.guest.name())])?;
        let [waited, all] = [number(own, "/some_ns")?, number(own, "/duration_ns")?];
        Ok(waited as f64 / all as f64)
    }
}

fn fired(analysis: &Value) -> Option<&Value> {
    let mut findings = analysis["findings"].as_array()?.iter();
    findings.find(|finding| finding["id"] == RULE)
}

fn idle(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let newer = qemu_package::obtain_root("trixie", "trixie-backports")?;
    let spec = GuestSpec {
        qemu: newer,
        ..ctx.guest_spec(&ctx.guest_name("pressure"))
    };
    let stage = Stage::boot(ctx, spec)?;
    let (analysis, waited) = stage.watch(ctx, "pressure-idle.nest")?;
    let counted = stage.counted(&analysis)?;
    case.figure(format!(
        "QEMU 11 that idles: pressure for {:.1} % of the time, {:.1} % in the recording",
        waited * 100.0,
        counted * 100.0
    ));
    case.holds(
        "the kernel counts pressure",
        waited > 0.5,
        &waited.to_string(),
    );
    let is_same = (waited - counted).abs() < 0.1;
    case.holds("the recording has it", is_same, &counted.to_string());
    let finding = fired(&analysis);
    let said = analysis["findings"].to_string() + &analysis["findings_unjudged"].to_string();
    case.holds("it is called so", finding.is_some(), &said);
    let Some(finding) = finding else {
        return Ok(());
    };
    case.figure(finding["title"].as_str().unwrap_or_default().to_owned());
    let folder = stage.cgroup.folder().display().to_string();
    let cgroup = finding["evidence"]["cgroup"].as_str().unwrap_or_default();
    let is_it = cgroup.len() > 1 && folder.ends_with(cgroup);
    case.holds("its cgroup", is_it, &finding.to_string());
    let text = finding["explanation"].as_str().unwrap_or_default();
    case.holds("the iothread's name", text.contains("iothread io0"), text);

    // The same QEMU waits for a disk that is slow.
    stage.limits.bound(&stage.device, Some(SLOW))?;
    let device = stage.guest.device_of(DISK)?;
    let load = format!(
        "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth=4 --bs=4k --rw=randread \
         --time_based --runtime=12 --output=/dev/null"
    );
    let running = stage.guest.start(&load, Duration::from_secs(60))?;
    thread::sleep(Duration::from_secs(1));
    let (analysis, waited) = stage.watch(ctx, "pressure-slow.nest")?;
    running.wait()?;
    case.figure(format!("with a slow disk for {:.1} %", waited * 100.0));
    case.holds("there is pressure too", waited > 0.5, &waited.to_string());
    silent(case, "a slow disk", &analysis);
    drop(stage);

    let older = Stage::boot(ctx, ctx.guest_spec(&ctx.guest_name("older")))?;
    let (analysis, waited) = older.watch(ctx, "pressure-older.nest")?;
    case.figure(format!("QEMU 7.2 that idles for {:.1} %", waited * 100.0));
    case.holds(
        "an older QEMU makes none",
        waited < 0.1,
        &waited.to_string(),
    );
    silent(case, "an older QEMU", &analysis);
    Ok(())
}

fn silent(case: &mut Case, what: &str, analysis: &Value) {
    let finding = fired(analysis);
    let said = finding.map_or_else(String::new, Value::to_string);
    case.holds(
        &format!("{what}: the rule is silent"),
        finding.is_none(),
        &said,
    );
    let unjudged = analysis["findings_unjudged"].as_array();
    let unjudged = unjudged.into_iter().flatten();
    let n = unjudged.filter(|rule| rule["id"] == RULE).count();
    case.equal(&format!("{what}: and could judge"), n, 0);
}
