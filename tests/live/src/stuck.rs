//! Stalls made for real: `nestrace stuck` names the holder of each, and calls nothing stuck while a busy guest is well.

pub(crate) mod stalls;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec, RunningCommand};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::recorder;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack, HostFsKind};
use serde_json::{Value, json};
use xtask::case::{Case, Report};

use super::Scenario;
use super::block_device::{NBD, NbdServer};
use super::context::LiveContext;
use super::fixtures::limits::Limits;
use stalls::{Frozen, FrozenCgroup, Stopped, Traced, Withheld};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "stuck",
    about: "stalls made for real: each is named with what holds it, and a busy guest has none",
    run,
    alone: false,
};

/// From the start of the command to its answer. Two of them lie between its samples.
const NAMED: Duration = Duration::from_secs(3);
/// What a machine that is busy with other tests may take more.
const BUSY: Duration = Duration::from_secs(3);
/// How long the stall has lasted before it is looked at.
const LASTS: Duration = Duration::from_millis(1500);
/// Longer than two looks on a busy machine. A stall interrupts it.
const LOAD_SECONDS: u32 = 9;
/// Writes with which a load has begun.
const BEGUN: u64 = 2;
/// For a load, with the stall that interrupts it.
const PATIENCE: Duration = Duration::from_secs(60);

const RING: &str = "ring";
const POOL: &str = "pool";
const NATIVE: &str = "native";
const FULL: &str = "full";
const SLOW: &str = "slow";
const WITHHELD: &str = "withheld";
/// Requests a second of [`SLOW`].
const SLOW_IOPS: u64 = 1;

/// A guest with a disk for each stall.
struct Stage<'a> {
    ctx: &'a LiveContext,
    guest: Guest,
    host: HostFs,
    _small: HostFs,
    withheld: Withheld,
    server: NbdServer,
    limits: Limits,
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let stage = Stage::set(ctx)?;
    type Body = fn(&Stage<'_>, &mut Case) -> anyhow::Result<()>;
    let cases: [(&str, Body); 13] = [
        ("healthy", healthy),
        ("frozen-io_uring", |stage, case| frozen(stage, case, RING)),
        ("frozen-threads", |stage, case| frozen(stage, case, POOL)),
        ("frozen-native", |stage, case| frozen(stage, case, NATIVE)),
        ("nbd-server-stopped", nbd_server),
        ("device-withholds", withheld),
        ("throttle", throttle),
        ("cgroup-limit", cgroup_limit),
        ("paused", paused),
        ("qemu-stopped", qemu_stopped),
        ("vcpu-traced", vcpu_traced),
        ("cgroup-frozen", cgroup_frozen),
        ("disk-full", disk_full),
    ];
    for (name, body) in cases {
        let name = format!("stuck/{name}");
        if ctx.wants(&name) {
            report.case(&name, |case| body(&stage, case))?;
        }
    }
    Ok(())
}

impl<'a> Stage<'a> {
    fn set(ctx: &'a LiveContext) -> anyhow::Result<Self> {
        // Its processes are gone when it is dropped: it was made before them.
        let limits = Limits::create()?;
        let host = ctx.host_fs(HostFsKind::Ext4, true, "")?;
        let small = HostFs::create(&HostFsSpec {
            size_bytes: 16 << 20,
            ..HostFsSpec::new(HostFsKind::Ext4)
        })?;
        let withheld = Withheld::create()?;
        let server = NbdServer::start()?;
        let direct = |aio| DiskStack {
            cache: CacheMode::None,
            aio,
            ..DiskStack::RAW
        };
        let mut full = ctx.disk(&small, FULL, direct(Aio::Threads), 64 << 20, "off")?;
        full.drive_options = "werror=stop".to_owned();
        let mut slow = ctx.disk(&host, SLOW, direct(Aio::IoUring), 64 << 20, "full")?;
        slow.drive_options = format!("throttling.iops-total={SLOW_IOPS}");
        let disks = vec![
            ctx.disk(&host, RING, direct(Aio::IoUring), 64 << 20, "full")?,
            ctx.disk(&host, POOL, direct(Aio::Threads), 64 << 20, "full")?,
            ctx.disk(&host, NATIVE, direct(Aio::Native), 64 << 20, "full")?,
            full,
            slow,
            DiskSpec::new(WITHHELD, withheld.device(), direct(Aio::IoUring)),
        ];
        let guest = Guest::boot(GuestSpec {
            disks,
            extra_arguments: server.disk_arguments(),
            ..ctx.guest_spec(&ctx.guest_name("stuck"))
        })?;
        ctx.progress.say("the guest is up");
        Ok(Self {
            ctx,
            guest,
            host,
            _small: small,
            withheld,
            server,
            limits,
        })
    }

    /// Writes on a disk for so many seconds; they have begun.
    fn load(&self, disk: &str, seconds: u32) -> anyhow::Result<RunningCommand<'_>> {
        let device = self.guest.device_of(disk)?;
        let before = self.guest.disk_stats(disk)?;
        let line = format!(
            "fio --name=load --filename={device} --direct=1 --ioengine=libaio --iodepth=4 --bs=4k --rw=randwrite \
             --time_based --runtime={seconds} --size=32m"
        );
        let running = self.guest.start(&line, PATIENCE)?;
        let deadline = Instant::now() + PATIENCE;
        while self.guest.disk_stats(disk)?.since(&before).writes < BEGUN {
            anyhow::ensure!(Instant::now() < deadline, "see the load on {disk} begin");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// What the command says of the guest.
    fn look(&self, case: &mut Case) -> anyhow::Result<Value> {
        let begin = Instant::now();
        let arguments = ["stuck", "--json", "--guest", self.guest.name()];
        let end = recorder::nestrace(&self.ctx.nestrace, &arguments)?;
        let took = begin.elapsed();
        case.holds("exit code", end.code == Some(0), &end.stderr);
        case.holds(
            "it answers in time",
            took < NAMED + BUSY,
            &format!("{took:.1?}"),
        );
        let answer: Value = serde_json::from_str(&end.stdout).context("read the answer")?;
        case.holds(
            "its schema",
            answer["schema"] == "nestrace-stuck/1",
            &answer["schema"].to_string(),
        );
        let guest = answer["guests"][0].clone();
        let sentence = guest["sentence"].as_str().unwrap_or_default();
        case.figure(format!("{:.1} s: {sentence}", took.as_secs_f64()));
        Ok(guest)
    }

    /// The same, where this is stuck: a kind of holder and, where it is given, its name.
    fn expect(&self, case: &mut Case, expected: &Expected<'_>) -> anyhow::Result<()> {
        thread::sleep(LASTS);
        let guest = self.look(case)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let shown = shown(&guest);
        case.holds("verdict", guest["verdict"] == expected.verdict, &shown);
        let holder = &guest["holder"];
        case.holds("kind of holder", holder["kind"] == expected.kind, &shown);
        if let Some(name) = expected.name {
            case.holds("its name", text(&holder["name"]) == name, &shown);
        }
        if let Some(pid) = expected.pid {
            case.holds("its process", holder["pid"] == pid, &shown);
        }
        if let Some(disk) = expected.disk {
            case.holds("the disk", guest["disk"] == disk, &shown);
        }
        if expected.is_since_known {
            // Since before the look began, and not for longer than the stall lasts.
            let ns = guest["since_ns"].as_u64().unwrap_or(0);
            let least = Duration::from_secs(2);
            let since = Duration::from_nanos(ns);
            case.holds(
                "since when",
                since >= least && since < Duration::from_secs(12),
                &format!("{since:.2?}"),
            );
        }
        Ok(())
    }
}

/// Of an answer, what a failed check needs.
fn shown(guest: &Value) -> String {
    let of = |key: &str| guest[key].to_string();
    let disks = guest["disks"].as_array().into_iter().flatten();
    let busy = disks.filter(|disk| disk["in_flight"] != 0);
    let busy: Vec<String> = busy
        .map(|disk| {
            format!(
                "{}: {} → {}",
                disk["name"], disk["in_flight_before"], disk["in_flight"]
            )
        })
        .collect();
    format!(
        "{} {} {} {busy:?} {}",
        of("verdict"),
        of("sentence"),
        of("holder"),
        of("threads")
    )
}

/// What has to be said of a stall.
#[derive(Default)]
struct Expected<'a> {
    verdict: &'a str,
    kind: &'a str,
    name: Option<&'a str>,
    pid: Option<u32>,
    disk: Option<&'a str>,
    is_since_known: bool,
}

/// Several looks while each way of doing I/O is under load.
fn healthy(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let guest = stage.look(case)?;
    case.holds("at rest", guest["verdict"] == "idle", &shown(&guest));
    for disk in [RING, POOL, NATIVE, NBD] {
        let running = stage.load(disk, LOAD_SECONDS)?;
        for _ in 0..2 {
            let guest = stage.look(case)?;
            case.holds(
                &format!("{disk} works"),
                guest["verdict"] == "working" && guest["holder"].is_null(),
                &shown(&guest),
            );
        }
        running.wait()?;
    }
    Ok(())
}

/// fsfreeze of the image's file system.
fn frozen(stage: &Stage<'_>, case: &mut Case, disk: &str) -> anyhow::Result<()> {
    let running = stage.load(disk, LOAD_SECONDS)?;
    let frozen = Frozen::freeze(stage.host.path())?;
    let mount = stage.host.path().display().to_string();
    let expected = Expected {
        verdict: "stuck",
        kind: "frozen_file_system",
        name: Some(&mount),
        is_since_known: true,
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    drop(frozen);
    running.wait()?;
    looked
}

/// QEMU's own NBD client, and a stopped qemu-nbd.
fn nbd_server(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let running = stage.load(NBD, LOAD_SECONDS)?;
    let stopped = Stopped::stop(stage.server.pid())?;
    let expected = Expected {
        verdict: "stuck",
        kind: "server",
        name: Some("qemu-nbd"),
        pid: Some(stage.server.pid()),
        disk: Some(NBD),
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    drop(stopped);
    running.wait()?;
    looked
}

/// A device that completes nothing.
fn withheld(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let running = stage.load(WITHHELD, LOAD_SECONDS)?;
    let stopped = Stopped::stop(stage.withheld.pid())?;
    let expected = Expected {
        verdict: "stuck",
        kind: "device",
        name: Some(stage.withheld.name()),
        disk: Some(WITHHELD),
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    drop(stopped);
    running.wait()?;
    looked
}

/// QEMU's throttle.
fn throttle(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let running = stage.load(SLOW, LOAD_SECONDS)?;
    let expected = Expected {
        verdict: "limited",
        kind: "qemu_limit",
        disk: Some(SLOW),
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    running.wait()?;
    looked
}

/// A cgroup's limit on the device below.
fn cgroup_limit(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.limits.hold(stage.guest.pid())?;
    stage.limits.bound(stage.host.device(), Some(2))?;
    let running = stage.load(RING, LOAD_SECONDS)?;
    let expected = Expected {
        verdict: "limited",
        kind: "cgroup_limit",
        disk: Some(RING),
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    stage.limits.bound(stage.host.device(), None)?;
    running.wait()?;
    looked
}

/// QMP's stop.
fn paused(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.guest.qmp("stop", json!({}))?;
    let expected = Expected {
        verdict: "paused",
        kind: "run_state",
        name: Some("paused"),
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    stage.guest.qmp("cont", json!({}))?;
    looked
}

/// SIGSTOP to QEMU.
fn qemu_stopped(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let pid = stage.guest.pid();
    let stopped = Stopped::stop(pid)?;
    let expected = Expected {
        verdict: "stuck",
        kind: "signal",
        pid: Some(pid),
        is_since_known: true,
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    drop(stopped);
    looked
}

/// One thread of QEMU's, a virtual processor, stopped by a process that traces it.
fn vcpu_traced(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let processors = stage.guest.qmp("query-cpus-fast", json!({}))?;
    let tid = processors[0]["thread-id"].as_u64();
    let traced = Traced::stop(u32::try_from(tid.context("find a processor's thread")?)?)?;
    let expected = Expected {
        verdict: "stuck",
        kind: "tracer",
        pid: Some(traced.tracer()),
        is_since_known: true,
        ..Expected::default()
    };
    let looked = stage.expect(case, &expected);
    drop(traced);
    looked
}

/// QEMU's cgroup, frozen.
fn cgroup_frozen(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    for root in FrozenCgroup::roots() {
        let frozen = FrozenCgroup::freeze(Path::new(root), stage.guest.pid())?;
        let name = frozen.name();
        let expected = Expected {
            verdict: "stuck",
            kind: "cgroup_freezer",
            name: Some(&name),
            ..Expected::default()
        };
        let looked = stage.expect(case, &expected);
        drop(frozen);
        looked?;
    }
    Ok(())
}

/// No space is left for the image, and QEMU stops the guest.
fn disk_full(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let device = stage.guest.device_of(FULL)?;
    let line = format!("dd if=/dev/zero of={device} bs=1M count=48 oflag=direct 2> /dev/null");
    // It never ends: the guest is stopped, and ends with the scenario.
    let _running = stage.guest.start(&line, PATIENCE)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while stage.guest.qmp("query-status", json!({}))?["status"] != "io-error" {
        anyhow::ensure!(Instant::now() < deadline, "see QEMU stop the guest");
        thread::sleep(Duration::from_millis(100));
    }
    let expected = Expected {
        verdict: "stuck",
        kind: "io_error",
        name: Some("nospace"),
        disk: Some(FULL),
        ..Expected::default()
    };
    stage.expect(case, &expected)
}
