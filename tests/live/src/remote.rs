//! Images on servers that the host's kernel reaches over a network: NFS and iSCSI. A guest of Debian's kernel plays
//! the host and both servers; `tc netem` delays what goes over its loopback interface. What that adds is at the server, and
//! the kernel's own counts of calls (`mountstats`) say the same. No guest runs in the QEMU there.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::{packages, recorder};
use serde_json::Value;
use xtask::case::{Case, Report};

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::kernels::machine::{Machine, Role};
use crate::{Scenario, ground_truth, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "remote",
    about: "images on NFS and iSCSI: what a network's delay adds is at the server",
    run,
    alone: false,
};

const ROLE: Role<'_> = Role {
    series: "6.1",
    disks: &[],
    scripts: &[
        ("setup.sh", include_str!("remote/setup.sh")),
        ("images.sh", include_str!("remote/images.sh")),
    ],
    programs: &["tc", "iscsistart"],
    modules: &[
        "nfsd",
        "nfsv4",
        "sch_netem",
        "crc32c_generic",
        "iscsi_tcp",
        "iscsi_target_mod",
    ],
    // This machine's QEMU is used in the guest.
    extra_arguments: &[
        "-virtfs",
        "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
    ],
};
/// QEMU and its libraries are read over 9p by a translated guest.
const PATIENCE: Duration = Duration::from_secs(200);
/// What `images.sh` does on each disk: as many reads and writes.
const CALLS: u64 = 40;
const BYTES: u64 = CALLS * (16 << 10);
/// What netem adds to a request and to its answer.
const DELAY_NS: u64 = 10_000_000;
/// How much more a translated guest with two processors may add by itself.
const SLACK_NS: u64 = 3_000_000;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let programs = [("iscsistart", "open-iscsi"), ("tc", "iproute2")];
    packages::install_programs(&programs, |line| ctx.progress.say(line))?;
    let machine = Machine::boot(ctx, &ROLE)?;
    machine.run_script("images.sh", PATIENCE)?;
    let folder = machine.fetch(ctx, "/tmp/recorded.tar")?;
    let bundle = folder.join("images.nest");
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    report.case("remote/nfs", |case| {
        ground_truth::nothing_lost(case, &analysis)?;
        let server = ("nfs", "127.0.0.1", "/images");
        for disk in ["nfs-fast", "nfs-slow"] {
            is_at(case, &topology::recorded(&bundle)?, &analysis, disk, server)?;
        }
        nfs(case, &analysis, &folder)
    })?;
    report.case("remote/iscsi", |case| {
        let target = "iqn.2026-01.org.nestrace:disks";
        for disk in ["iscsi-fast", "iscsi-slow"] {
            let server = ("iscsi", "127.0.0.1:3260", target);
            is_at(case, &topology::recorded(&bundle)?, &analysis, disk, server)?;
        }
        iscsi(case, &machine, &analysis)
    })?;
    ctx.discard(&folder);
    Ok(())
}

/// The server is known by name, in the topology and in the analysis.
fn is_at(
    case: &mut Case,
    topology: &Value,
    analysis: &Value,
    disk: &str,
    (protocol, address, name): (&str, &str, &str),
) -> anyhow::Result<()> {
    let image = entry(analysis, "images", &[("disk", disk)])?;
    let server = &image["servers"][0];
    let is_named =
        server["protocol"] == protocol && server["address"] == address && server["name"] == name;
    case.holds(
        &format!("{disk}: its server"),
        is_named,
        &server.to_string(),
    );
    let recorded = &topology::disk(topology, "inner", disk)?["images"][0];
    let device = recorded["devices"][0].as_str().unwrap_or_default();
    let device = entry(topology, "devices", &[("name", device)]);
    let place = match protocol {
        "nfs" => recorded["mount"]["source"].to_string(),
        _ => device?["server"].to_string(),
    };
    let is_there = place.contains(address) && place.contains(name);
    case.holds(&format!("{disk}: in the topology"), is_there, &place);
    Ok(())
}

/// Every read and write of QEMU is one call to the server, and the delay is all in the time at the server.
fn nfs(case: &mut Case, analysis: &Value, folder: &Path) -> anyhow::Result<()> {
    let counted = |name: &str| mountstats(&folder.join(format!("mountstats-{name}")));
    let (before, fast, later, slow) = (
        counted("before")?,
        counted("fast")?,
        counted("async")?,
        counted("slow")?,
    );
    for (disk, from, to) in [("nfs-fast", &before, &fast), ("nfs-slow", &later, &slow)] {
        let image = entry(analysis, "images", &[("disk", disk)])?;
        let rpcs = &image["rpcs"];
        for (place, op) in ["read", "write"].into_iter().enumerate() {
            let name = |what: &str| format!("{disk}: {what} of {op}s");
            let calls = number(rpcs, &format!("/{op}s"))?;
            case.equal(&name("calls"), calls, CALLS);
            case.equal(
                &name("calls that the kernel counts"),
                to[place].calls - from[place].calls,
                CALLS,
            );
            case.equal(
                &name("bytes"),
                number(rpcs, &format!("/bytes/{op}"))?,
                BYTES,
            );
            // The kernel counts whole milliseconds of all calls, rounded down at each look.
            let at_server = number(rpcs, &format!("/at_server_ns/{op}/sum"))?;
            let kernels = to[place].round_trips_ms - from[place].round_trips_ms;
            let shown = format!("{at_server} ns, the kernel counts {kernels} ms");
            let is_same = at_server.abs_diff(kernels * 1_000_000) <= 1_000_000;
            case.holds(&name("time at the server"), is_same, &shown);
            case.figure(format!("{disk} {op}: {shown}"));
        }
    }
    for disk in ["nfs-fast", "nfs-slow", "nfs-native", "nfs-io_uring"] {
        all_linked(case, analysis, disk)?;
    }
    for op in ["read", "write"] {
        let least = |disk: &str, times: &str| {
            let image = entry(analysis, "images", &[("disk", disk)])?;
            number(image, &format!("/{times}/{op}/min"))
        };
        let added = |times: &str| -> anyhow::Result<u64> {
            let (without, with) = (least("nfs-fast", times)?, least("nfs-slow", times)?);
            Ok(with.saturating_sub(without))
        };
        let at_server = added("rpcs/at_server_ns")?;
        let shown = format!("{op}: {at_server} ns added");
        case.holds("the delay is at the server", is_delay(at_server), &shown);
        let whole = added("file_io/latency_ns")?;
        let shown = format!("{shown} at the server, {whole} ns to QEMU's call");
        case.holds("and nowhere else", is_delay(whole), &shown);
        case.figure(shown);
    }
    Ok(())
}

/// Each call is that of a file I/O, which it is a part of.
fn all_linked(case: &mut Case, analysis: &Value, disk: &str) -> anyhow::Result<()> {
    let image = entry(analysis, "images", &[("disk", disk)])?;
    let rpcs = &image["rpcs"];
    let linked = number(rpcs, "/linked")?;
    case.equal(&format!("{disk}: calls in a file I/O"), linked, 2 * CALLS);
    let commits = number(rpcs, "/commits")?;
    case.equal(&format!("{disk}: commits"), commits, 0);
    for op in ["read", "write"] {
        let least = |times: &str| number(image, &format!("/{times}/{op}/min"));
        let (file_io, call) = (least("file_io/latency_ns")?, least("rpcs/latency_ns")?);
        let at_server = least("rpcs/at_server_ns")?;
        let shown = format!("{op}: {at_server} ns of {call} ns of {file_io} ns");
        let is_within = at_server < call && call <= file_io;
        case.holds(
            &format!("{disk}: the shortest call lies within"),
            is_within,
            &shown,
        );
    }
    Ok(())
}

fn is_delay(added_ns: u64) -> bool {
    (DELAY_NS..DELAY_NS + SLACK_NS).contains(&added_ns)
}

/// D to C of the device is the time at the server: the delay is all in it.
fn iscsi(case: &mut Case, machine: &Machine, analysis: &Value) -> anyhow::Result<()> {
    for op in ["read", "write"] {
        let least = |disk: &str| {
            let name = &machine.device(disk)?.kernel_name;
            let device = entry(analysis, "devices", &[("name", name)])?;
            number(device, &format!("/latency_ns/by_op/{op}/d2c/min"))
        };
        let added = least("iscsi-slow")?.saturating_sub(least("iscsi-fast")?);
        let shown = format!("{op}: {added} ns added");
        case.holds("the delay is at the server", is_delay(added), &shown);
        case.figure(shown);
    }
    Ok(())
}

/// What the kernel counted for one kind of call.
#[derive(Clone, Copy, Debug)]
struct Counted {
    calls: u64,
    round_trips_ms: u64,
}

/// Reads and writes of the mount, from a copy of `/proc/self/mountstats`.
fn mountstats(path: &Path) -> anyhow::Result<[Counted; 2]> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let (_, of_mount) = text
        .split_once("mounted on /mnt/images")
        .context("find the mount")?;
    let counted = |op: &str| {
        let mut lines = of_mount.lines().map(str::trim);
        let line = lines.find_map(|line| line.strip_prefix(op)?.strip_prefix(": "));
        let line = line.with_context(|| format!("find the counts of {op}"))?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        // Operations, transmissions, timeouts, bytes sent and received; milliseconds queued, and until the reply.
        let (&calls, &round_trips_ms) = numbers.first().zip(numbers.get(6)).context("7 counts")?;
        anyhow::Ok(Counted {
            calls,
            round_trips_ms,
        })
    };
    Ok([counted("READ")?, counted("WRITE")?])
}
