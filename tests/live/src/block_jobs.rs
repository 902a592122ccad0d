//! Jobs of QEMU's block layer beside a guest's load: what each copied is apart from the guest's own I/O, and so are the
//! guest's waits for it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::HostFsKind;
use serde_json::{Value, json};
use xtask::case::{Case, Report};

use crate::Scenario;
use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::ground_truth;
use crate::measure::{Measured, Watched};
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{boot_with, device_in_guest, measure};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "block-jobs",
    about: "mirrors, streams and commits: what they copied is apart from the guest's I/O, and so are the waits for them",
    run,
    alone: false,
};

/// qcow2's own choice.
const CLUSTER: u64 = 64 << 10;
/// What a mirror's target takes in a second where the guest's writes go to it.
const TARGET_BYTES: u64 = 96 << 10;
/// What a job copies in a second.
const SPEED: u64 = 8 << 20;
/// The guest's writes to each disk, one by one.
const WRITES: u64 = 128;
/// What QEMU may take to end a job, and the load to run.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk, and the job that QEMU does on it.
struct Disk {
    id: &'static str,
    /// Makes its files, in their folder.
    files: &'static str,
    /// Its own file, and format.
    image: (&'static str, &'static str),
    /// QMP's command, and its arguments beside the job's id and the disk.
    command: &'static str,
    arguments: fn() -> Value,
    /// `kind` in the answer.
    kind: &'static str,
    /// The guest's writes go to the target too, and wait for it.
    blocks: bool,
}

const DISKS: [Disk; 4] = [
    Disk {
        id: "followed",
        files: "head -c 24M /dev/urandom > followed.raw; truncate -s 24M followed.target",
        image: ("followed.raw", "raw"),
        command: "blockdev-mirror",
        arguments: || json!({ "target": "followed-target", "sync": "full", "speed": SPEED }),
        kind: "mirror",
        blocks: false,
    },
    Disk {
        id: "mirrored",
        files: "head -c 24M /dev/urandom > mirrored.raw; truncate -s 24M mirrored.target",
        image: ("mirrored.raw", "raw"),
        command: "blockdev-mirror",
        arguments: || {
            json!({
                "target": "mirrored-target", "sync": "none", "copy-mode": "write-blocking",
            })
        },
        kind: "mirror",
        blocks: true,
    },
    Disk {
        id: "streamed",
        files: "head -c 24M /dev/urandom > streamed.base; qemu-img create -q -f qcow2 -b streamed.base -F raw streamed.qcow2",
        image: ("streamed.qcow2", "qcow2"),
        command: "block-stream",
        arguments: || json!({ "speed": SPEED }),
        kind: "stream",
        blocks: false,
    },
    Disk {
        id: "committed",
        files: "head -c 24M /dev/urandom > committed.base; qemu-img create -q -f qcow2 -b committed.base -F raw committed.qcow2; \
            qemu-io -c 'write -P 7 0 12M' committed.qcow2 > committed.log",
        image: ("committed.qcow2", "qcow2"),
        command: "block-commit",
        arguments: || json!({ "speed": SPEED }),
        kind: "commit",
        blocks: false,
    },
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let mut extra_arguments = Vec::new();
    for disk in &DISKS {
        let make = Tool::new("sh").args(["-c", disk.files]);
        make.current_dir(host.path()).run()?;
        extra_arguments.extend(arguments_of(disk, &host));
    }
    let guest = boot_with(ctx, "block-jobs", |spec| GuestSpec {
        modules: vec!["virtio_blk".to_owned()],
        extra_arguments,
        ..spec
    })?;
    add_targets(&guest, &host)?;
    guest.start_agent("--backend ebpf")?;
    let watched: Vec<Watched<'_>> = DISKS
        .iter()
        .map(|disk| Watched {
            guest: &guest,
            disk: disk.id,
            host: &host,
        })
        .collect();
    let measured = measure(ctx, &watched, || {
        for disk in &DISKS {
            let mut arguments = (disk.arguments)();
            (arguments["device"], arguments["job-id"]) = (node(disk).into(), job(disk).into());
            guest.qmp(disk.command, arguments)?;
        }
        let loads = DISKS.iter().map(|disk| {
            let device = device_in_guest(&guest, disk.id)?;
            let pause = if disk.blocks { "0" } else { "20ms" };
            anyhow::Ok(format!(
                "fio --name={} --filename=/dev/{device} --direct=1 --output=/dev/null --ioengine=psync \
                 --rw=randwrite --bs=4k --size=24m --number_ios={WRITES} --thinktime={pause}",
                disk.id
            ))
        });
        let loads = loads.collect::<anyhow::Result<Vec<_>>>()?;
        guest.run_ok(&format!("{}; wait", loads.join(" & ")), PATIENCE)?;
        settle(&guest)
    })?;
    end_mirrors(&guest)?;
    for (disk, counts) in DISKS.iter().zip(&measured.truth) {
        report.case(&format!("block-jobs/{}", disk.id), |case| {
            copied(case, disk, &measured, counts)
        })?;
    }
    report.case("block-jobs/whole", |case| {
        measured.is_whole(case)?;
        ground_truth::nothing_lost(case, &measured.analysis)
    })?;
    ctx.discard(&measured.bundle);
    Ok(())
}

/// What the job copied is what QEMU says; the guest's own I/O is what QMP counts, and is followed whole beside it.
fn copied(
    case: &mut Case,
    disk: &Disk,
    measured: &Measured<DiskCounts>,
    counts: &DiskCounts,
) -> anyhow::Result<()> {
    let keys = [("disk", disk.id)];
    let job = entry(&measured.analysis, "jobs", &keys)?;
    let shown = job.to_string();
    case.equal(
        "its kind",
        job["kind"].as_str().unwrap_or_default(),
        disk.kind,
    );
    let (copies, bytes) = (number(job, "/copies/n")?, number(job, "/copies/bytes")?);
    case.figure(format!("{copies} copies, {bytes} bytes"));
    let done = number(job, "/done_bytes")?;
    match (disk.kind, disk.blocks) {
        // It ends by itself, and leaves out the clusters that the guest has written before.
        ("stream", _) => {
            let most = number(job, "/total_bytes")?;
            let is_whole = bytes <= most && bytes + WRITES * CLUSTER >= most;
            let shown = format!("{bytes} of {most} bytes");
            case.holds("bytes that it copied", is_whole, &shown);
        }
        // QEMU counts what the guest wrote to both.
        (_, true) => case.equal("bytes that it copied", bytes + WRITES * 4096, done),
        _ => case.equal("bytes that it copied", bytes, done),
    }
    let host = &counts.host.disk;
    case.equal("the guest's writes", host.writes, WRITES);
    let chains = entry(&measured.analysis, "chains", &keys)?;
    case.equal(
        "linked",
        number(chains, "/linked")?,
        host.reads + host.writes + host.flushes,
    );
    let residual = chains["residual_share"].as_f64().unwrap_or(1.0);
    case.holds(
        "nothing is left over",
        residual < 0.0005,
        &residual.to_string(),
    );
    let waited = number(job, "/guest_waits/n")?;
    if !disk.blocks {
        // A stream holds writes to what it copies at that moment.
        let none = disk.kind == "stream" || waited == 0;
        case.holds("no write waits for it", none, &shown);
        return Ok(());
    }
    case.equal("writes that waited", waited, WRITES);
    // A throttle lets a tenth of a second's worth through at once, and what was saved up meanwhile.
    let least = (WRITES as f64 * 4096.0 / TARGET_BYTES as f64 - 0.1) * 1e9;
    let waits = number(job, "/guest_waits/latency_ns/sum")? as f64;
    let is_as_long = waits > 0.6 * least;
    case.holds(
        "the waits",
        is_as_long,
        &format!("{waits} ns, at least {least}"),
    );
    let wait = entry(&chains["by_op"], "write", &[("name", "qemu_job")])?;
    case.equal("the segment's writes", number(wait, "/n")?, WRITES);
    let keys = [("id", "backup-holds-writes"), ("disk", disk.id)];
    let finding = entry(&measured.analysis, "findings", &keys)?;
    let title = finding["title"].as_str().unwrap_or_default();
    case.figure(title.to_owned());
    case.holds(
        "the finding names the mirror",
        title.contains("mirror"),
        title,
    );
    Ok(())
}

fn node(disk: &Disk) -> String {
    format!("{}-node", disk.id)
}

fn job(disk: &Disk) -> String {
    format!("{}-job", disk.id)
}

fn arguments_of(disk: &Disk, host: &HostFs) -> Vec<String> {
    let (image, format) = disk.image;
    let file = |name: &str| json!({ "driver": "file", "filename": host.path().join(name), "cache": { "direct": true } });
    let mut node_of = json!({ "driver": format, "node-name": node(disk), "file": file(image) });
    if format == "qcow2" {
        node_of["backing"] = json!({ "driver": "raw", "file": file(&format!("{}.base", disk.id)) });
    }
    let device = format!("virtio-blk-pci,id={0},serial={0},drive={0}-node", disk.id);
    [
        "-blockdev".to_owned(),
        node_of.to_string(),
        "-device".to_owned(),
        device,
    ]
    .to_vec()
}

/// The mirrors' targets, the one that the guest waits for behind a throttle.
fn add_targets(guest: &Guest, host: &HostFs) -> anyhow::Result<()> {
    let limits = json!({ "bps-write": TARGET_BYTES });
    guest.qmp(
        "object-add",
        json!({ "qom-type": "throttle-group", "id": "slow", "limits": limits }),
    )?;
    for disk in DISKS.iter().filter(|disk| disk.kind == "mirror") {
        let name = format!("{}.target", disk.id);
        let file = json!({ "driver": "file", "filename": host.path().join(name), "cache": { "direct": true } });
        let file = match disk.blocks {
            true => json!({ "driver": "throttle", "throttle-group": "slow", "file": file }),
            false => file,
        };
        let target =
            json!({ "driver": "raw", "node-name": format!("{}-target", disk.id), "file": file });
        guest.qmp("blockdev-add", target)?;
    }
    Ok(())
}

/// Waits until the jobs have copied what they have to.
fn settle(guest: &Guest) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let jobs = guest.qmp("query-block-jobs", json!({}))?;
        let jobs = jobs.as_array().context("list the jobs")?;
        // A job that is ready goes on with what the guest has written meanwhile.
        let has_all = |job: &Value| job["ready"] == true && job["offset"] == job["len"];
        if jobs.iter().all(has_all) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "see the jobs end: {jobs:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn end_mirrors(guest: &Guest) -> anyhow::Result<()> {
    for job in guest
        .qmp("query-block-jobs", json!({}))?
        .as_array()
        .into_iter()
        .flatten()
    {
        guest.qmp(
            "block-job-cancel",
            json!({ "device": job["device"], "force": true }),
        )?;
    }
    Ok(())
}
