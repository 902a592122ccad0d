//! Limits of three kinds, named to the digit with where they are set; and a backup that the guest's writes wait for.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::{DiskSpec, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::recorder;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack, HostFsKind};
use serde_json::Value;
use xtask::case::{Case, Report};

use crate::Scenario;
use crate::analysis::{entry, number};
use crate::backup::{Backup, SPEED};
use crate::block_device::NbdServer;
use crate::context::LiveContext;
use crate::fixtures::limits::Limits;
use crate::ground_truth;
use crate::measure::{Measured, Watched};
use crate::stage::manifest;
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{boot_with, measure};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "jobs",
    about: "limits of QEMU and of cgroups are named with their value, and waits for a backup are called so",
    run,
    alone: false,
};

const TUNED: &str = "tuned";
const GROUPED: &str = "grouped";
const CAPPED: &str = "capped";
const SAVED: &str = "saved";
const DISKS: [&str; 4] = [TUNED, GROUPED, CAPPED, SAVED];
/// Values that nothing has by chance.
const TUNED_IOPS: u64 = 211;
const GROUPED_BYTES: u64 = 1_048_583;
const CAPPED_IOPS: u32 = 223;
const GROUP: &str = "gold";
const DISK_BYTES: u64 = 64 << 20;
/// Writes of the guest, each into a cluster of its own that is not copied yet.
const WRITES: u64 = 96;
/// What the backup's target takes.
const TARGET_BYTES: u64 = 4 << 20;
const CLUSTER: u64 = 64 << 10;
/// Disks on servers: one that answers at once, and one that takes its time.
const AT_ONCE: &str = "server-fast";
const DELAYED: &str = "server-slow";
const DELAY: Duration = Duration::from_millis(5);
const READS: u64 = 150;
const PATIENCE: Duration = Duration::from_secs(60);

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    // Its processes are gone when it is dropped: it was made before them.
    let limits = Limits::create()?;
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let capped = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let stack = DiskStack {
        cache: CacheMode::None,
        aio: Aio::IoUring,
        ..DiskStack::RAW
    };
    let disk = |host: &HostFs, id: &str, options: String| {
        let disk = ctx.disk(host, id, stack, DISK_BYTES, "full")?;
        anyhow::Ok(DiskSpec {
            drive_options: options,
            ..disk
        })
    };
    let disks = vec![
        disk(&host, TUNED, format!("throttling.iops-total={TUNED_IOPS}"))?,
        disk(
            &host,
            GROUPED,
            format!("throttling.bps-write={GROUPED_BYTES},throttling.group={GROUP}"),
        )?,
        disk(&capped, CAPPED, String::new())?,
        disk(&host, SAVED, String::new())?,
    ];
    let servers = [
        (NbdServer::delayed(Duration::ZERO)?, AT_ONCE),
        (NbdServer::delayed(DELAY)?, DELAYED),
    ];
    let arguments = servers
        .iter()
        .flat_map(|(server, id)| server.arguments_of(id));
    let guest = boot_with(ctx, "jobs", |spec| GuestSpec {
        disks,
        extra_arguments: arguments.collect(),
        ..spec
    })?;
    limits.hold(guest.pid())?;
    limits.bound(capped.device(), Some(CAPPED_IOPS))?;
    guest.start_agent("")?;
    let hosts = [&host, &host, &capped, &host];
    let watched: Vec<Watched<'_>> = DISKS
        .iter()
        .zip(hosts)
        .map(|(disk, host)| Watched {
            guest: &guest,
            disk,
            host,
        })
        .collect();
    let listed = std::cell::RefCell::new(Value::Null);
    let measured = measure(ctx, &watched, || {
        let fio = |disk: &str, options: &str| {
            let device = guest.device_of(disk)?;
            let name = format!("--name={disk} --filename={device} --direct=1 --output=/dev/null");
            anyhow::Ok(format!("fio {name} {options}"))
        };
        let paced = "--ioengine=libaio --iodepth=16 --rw=randwrite --time_based --runtime=3";
        let loads = [
            fio(TUNED, &format!("{paced} --bs=4k"))?,
            fio(GROUPED, &format!("{paced} --bs=16k"))?,
            fio(CAPPED, &format!("{paced} --bs=4k"))?,
        ];
        guest.run_ok(&format!("{}; wait", loads.join(" & ")), PATIENCE)?;
        let backup = Backup::start(&guest, SAVED, DISK_BYTES, host.path(), TARGET_BYTES)?;
        listed.replace(guests(ctx, guest.name())?);
        // Each cluster once, and then each again, when it was copied.
        let hops = CLUSTER / 1024 - 4;
        let hop = format!(
            "--ioengine=psync --rw=write:{hops}k --bs=4k --offset=16m --size=32m --number_ios={WRITES}"
        );
        for _ in 0..2 {
            guest.run_ok(&fio(SAVED, &hop)?, PATIENCE)?;
        }
        backup.end()?;
        let one_by_one = format!("--ioengine=psync --rw=randread --bs=4k --number_ios={READS}");
        for disk in [AT_ONCE, DELAYED] {
            guest.run_ok(&fio(disk, &format!("{one_by_one} --size=32m"))?, PATIENCE)?;
        }
        Ok(())
    })?;
    let of = |disk: &str| Of {
        measured: &measured,
        disk: disk.to_owned(),
    };
    report.case("jobs/limits", |case| {
        measured.is_whole(case)?;
        let device = capped.device();
        let tuned = (TUNED_IOPS, "iotune", "requests a second");
        limit(case, &of(TUNED), "qemu", tuned)?;
        let grouped = (
            GROUPED_BYTES,
            "throttle group gold",
            "bytes written a second",
        );
        limit(case, &of(GROUPED), "qemu", grouped)?;
        let place = format!("for {device}");
        let capped = (u64::from(CAPPED_IOPS), place.as_str(), "writes a second");
        limit(case, &of(CAPPED), "kernel", capped)?;
        let saved = of(SAVED).verdict()?;
        let none = saved["limit_is_the_bottleneck"].is_null();
        case.holds(
            "the disk without a limit has none",
            none,
            &saved.to_string(),
        );
        Ok(())
    })?;
    report.case("jobs/backup", |case| {
        backup(case, &of(SAVED))?;
        let shown = listed.borrow().to_string();
        let guest = &listed.borrow()["guests"][0];
        let job = &guest["jobs"][0];
        case.holds(
            "the job is listed",
            job["disk"] == SAVED && job["kind"] == "backup",
            &shown,
        );
        case.holds("its bandwidth", job["speed"] == SPEED, &shown);
        let tuned = &guest["disks"][0]["limits"][0];
        let is_set = tuned["value"] == TUNED_IOPS && tuned["set_with"] == "iotune";
        case.holds("the limit is listed", is_set, &shown);
        let manifest = manifest(&measured.bundle)?;
        let known = manifest.topology.guests.first().context("find the guest")?;
        let at_end: Vec<_> = known
            .disks
            .iter()
            .map(|it| it.limits_at_end.as_ref())
            .collect();
        let same = known
            .disks
            .iter()
            .all(|disk| disk.limits_at_end.as_ref() == Some(&disk.limits));
        case.holds(
            "QEMU was asked at the end too",
            same,
            &format!("{at_end:?}"),
        );
        let cgroups = known.limits_at_end.as_ref() == Some(&known.limits);
        case.holds(
            "and the cgroups",
            cgroups && !known.limits.is_empty(),
            &format!("{:?}", known.limits),
        );
        Ok(())
    })?;
    report.case("jobs/remote", |case| {
        remote(case, &of(AT_ONCE), &of(DELAYED))
    })?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// What the server's delay adds is in the segment of the server.
fn remote(case: &mut Case, at_once: &Of<'_>, delayed: &Of<'_>) -> anyhow::Result<()> {
    let p50 = |case: &mut Case, of: &Of<'_>| {
        let keys = [("disk", of.disk.as_str())];
        let chains = entry(&of.measured.analysis, "chains", &keys)?;
        let remote = entry(&chains["by_op"], "read", &[("name", "remote")])?;
        let linked = number(chains, "/linked")?;
        let is_all = linked >= READS && remote["n"] == linked;
        case.holds(
            &format!("{}: each read", of.disk),
            is_all,
            &remote.to_string(),
        );
        let residual = chains["residual_share"].as_f64().unwrap_or(1.0);
        case.holds(
            "nothing is left over",
            residual < 0.0005,
            &residual.to_string(),
        );
        number(remote, "/p50_ns")
    };
    let (without, with) = (p50(case, at_once)?, p50(case, delayed)?);
    let added = with as f64 - without as f64;
    let shown = format!("{without} ns, with the delay {with} ns");
    case.figure(shown.clone());
    let delay = DELAY.as_nanos() as f64;
    // QEMU's timers are never early.
    let is_delay = added > 0.9 * delay && added < 1.3 * delay;
    case.holds("the delay is all in it", is_delay, &shown);
    let manifest = manifest(&delayed.measured.bundle)?;
    let mut disks = manifest
        .topology
        .guests
        .iter()
        .flat_map(|guest| &guest.disks);
    let disk = disks
        .find(|disk| disk.name == DELAYED)
        .context("find the disk")?;
    let place = disk.not_followed.clone().unwrap_or_default();
    case.holds("the server's name", place.contains("nbd.sock"), &place);
    Ok(())
}

/// What `nestrace guests` lists.
fn guests(ctx: &LiveContext, guest: &str) -> anyhow::Result<Value> {
    let end = recorder::nestrace(&ctx.nestrace, &["guests", "--json", "--guest", guest])?;
    serde_json::from_str(&end.stdout).context("read the list of guests")
}

/// A disk in the recording.
struct Of<'a> {
    measured: &'a Measured<DiskCounts>,
    disk: String,
}

impl Of<'_> {
    fn verdict(&self) -> anyhow::Result<Value> {
        let disks = &self.measured.analysis["verdict"];
        Ok(entry(disks, "disks", &[("disk", &self.disk)])?.clone())
    }

    /// QMP's own counts.
    fn truth(&self) -> anyhow::Result<&DiskCounts> {
        let place = DISKS.iter().position(|disk| *disk == self.disk);
        let truth = place.and_then(|place| self.measured.truth.get(place));
        truth.context("find the disk's counts")
    }

    /// The guest's requests are those that QMP counts.
    fn counts(&self, case: &mut Case) -> anyhow::Result<()> {
        let truth = &self.truth()?.host.disk;
        let qemu = entry(&self.measured.analysis, "qemu", &[("disk", &self.disk)])?;
        let keys = [
            ("reads", truth.reads),
            ("writes", truth.writes),
            ("flushes", truth.flushes),
        ];
        for (key, expected) in keys {
            let found = number(qemu, &format!("/{key}"))?;
            let shown = format!("{found}, QMP counts {expected}");
            case.holds(
                &format!("{} of {}", key, self.disk),
                found == expected,
                &shown,
            );
        }
        Ok(())
    }
}

/// The limit that a disk is at: its value, where it is set, what it bounds.
fn limit(
    case: &mut Case,
    of: &Of<'_>,
    held_by: &str,
    (value, place, bounds): (u64, &str, &str),
) -> anyhow::Result<()> {
    of.counts(case)?;
    let verdict = of.verdict()?;
    let found = &verdict["limit_is_the_bottleneck"];
    let shown = found.to_string();
    let text = |key: &str| found[key].as_str().unwrap_or_default();
    let name = &of.disk;
    case.holds(
        &format!("{name}: who holds"),
        found["held_by"] == held_by,
        &shown,
    );
    case.holds(
        &format!("{name}: the value"),
        found["value"] == value,
        &shown,
    );
    let words = format!("{value} {bounds}");
    case.holds(&format!("{name}: in words"), text("limit") == words, &shown);
    let is_there = text("set_in").contains(place);
    case.holds(&format!("{name}: where it is set"), is_there, &shown);
    let keys = [("id", "host-throttled"), ("disk", name.as_str())];
    let finding = entry(&of.measured.analysis, "findings", &keys)?;
    let title = finding["title"].as_str().unwrap_or_default();
    case.figure(format!("{name}: {title}"));
    case.holds(
        &format!("{name}: the finding says it"),
        title.contains(&words),
        title,
    );
    Ok(())
}

/// The guest's writes wait for the backup, each once.
fn backup(case: &mut Case, of: &Of<'_>) -> anyhow::Result<()> {
    ground_truth::nothing_lost(case, &of.measured.analysis)?;
    of.counts(case)?;
    let analysis = &of.measured.analysis;
    let writes = of.truth()?.host.disk.writes;
    case.holds(
        "the load wrote as planned",
        writes == 2 * WRITES,
        &writes.to_string(),
    );
    let job = entry(analysis, "jobs", &[("disk", &of.disk)])?;
    let shown = job.to_string();
    case.holds("its kind", job["kind"] == "backup", &shown);
    case.holds("its bandwidth", job["speed"] == SPEED, &shown);
    let target = job["target"].as_str().unwrap_or_default();
    case.holds("its target", target.ends_with("saved.backup"), &shown);
    let waited = number(job, "/guest_waits/n")?;
    case.holds(
        "each first write waited, no second one",
        waited == WRITES,
        &shown,
    );
    let (copies, bytes) = (number(job, "/copies/n")?, number(job, "/copies/bytes")?);
    // QEMU's own count of what it copied, by itself and for the guest.
    case.holds("its bytes", job["done_bytes"] == bytes, &shown);
    let of_guest = WRITES * CLUSTER;
    case.holds("its copies", copies >= WRITES && bytes >= of_guest, &shown);
    let chains = entry(analysis, "chains", &[("disk", &of.disk)])?;
    let wait = entry(&chains["by_op"], "write", &[("name", "qemu_job")])?;
    case.holds(
        "the segment's chains",
        wait["n"] == WRITES,
        &wait.to_string(),
    );
    let share = wait["share"].as_f64().unwrap_or(0.0);
    case.holds("its share", share > 0.5, &wait.to_string());
    let residual = chains["residual_share"].as_f64().unwrap_or(1.0);
    case.holds(
        "nothing is left over",
        residual < 0.0005,
        &residual.to_string(),
    );
    // A target that takes so much a second takes so long for all of them, but for what QEMU lets through at once: a tenth of
    // a second's worth, and what it has saved up meanwhile.
    let least = (of_guest as f64 / TARGET_BYTES as f64 - 0.1) * 1e9;
    let waits = number(job, "/guest_waits/latency_ns/sum")? as f64;
    let is_as_long = waits > 0.75 * least;
    case.holds(
        "the waits",
        is_as_long,
        &format!("{waits} ns, at least {least}"),
    );
    let keys = [("id", "backup-holds-writes"), ("disk", of.disk.as_str())];
    let finding = entry(analysis, "findings", &keys)?;
    case.figure(finding["title"].as_str().unwrap_or_default().to_owned());
    case.figure(format!(
        "{copies} copies, {bytes} bytes, waits of {:.2} s",
        waits / 1e9
    ));
    Ok(())
}
