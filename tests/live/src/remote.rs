//! Images on servers that the host's kernel reaches over a network: NFS, SMB and iSCSI. A guest of Debian's kernel plays
//! the host and the servers; `tc netem` delays what goes over its loopback interface. What that adds is at the server, and
//! the kernel's own counts of calls (`mountstats`, `/proc/fs/cifs/Stats`) say the same. No guest runs in the QEMU there.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::{kernel_image, packages, recorder};
use serde_json::Value;
use xtask::case::{Case, Report};

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::kernels::machine::{Machine, Role};
use crate::{Scenario, ground_truth, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "remote",
    about: "images on NFS, SMB and iSCSI: what a network's delay adds is at the server",
    run,
    alone: false,
};

/// Kernels of hosts. Before 6.10 the SMB client has structures of its own, since then netfs'.
const SERIES: [&str; 3] = ["6.1", "6.12", "7.3"];
const SCRIPTS: [(&str, &str); 3] = [
    ("setup.sh", include_str!("remote/setup.sh")),
    ("smb.sh", include_str!("remote/smb.sh")),
    ("images.sh", include_str!("remote/images.sh")),
];
/// Those that a kernel does not have are a part of it.
const MODULES: [&str; 16] = [
    "nfsd",
    "nfsv4",
    "cifs",
    // What its client asks the kernel's crypto for.
    "md5",
    "cmac",
    "ecb",
    "sha512_generic",
    "ghash-generic",
    "gcm",
    "ccm",
    "ctr",
    "nls_utf8",
    "sch_netem",
    "crc32c_generic",
    "iscsi_tcp",
    "iscsi_target_mod",
];
/// This machine's QEMU and Samba are used in the guest.
const ARGUMENTS: [&str; 2] = [
    "-virtfs",
    "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
];
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
    let programs = [
        ("iscsistart", "open-iscsi"),
        ("tc", "iproute2"),
        ("smbd", "samba"),
    ];
    packages::install_programs(&programs, |line| ctx.progress.say(line))?;
    for series in SERIES {
        let cases = ["nfs", "smb", "iscsi"].map(|what| format!("remote/{series}/{what}"));
        if cases.iter().any(|case| ctx.wants(case)) {
            run_on(ctx, report, series)?;
        }
    }
    Ok(())
}

fn run_on(ctx: &LiveContext, report: &mut Report, series: &str) -> anyhow::Result<()> {
    let kernel = kernel_image::obtain(series)?;
    let mut modules = Vec::new();
    for module in MODULES {
        if kernel.has_module(module)? {
            modules.push(module);
        }
    }
    let role = Role {
        series,
        disks: &[],
        scripts: &SCRIPTS,
        programs: &["tc", "iscsistart"],
        modules: &modules,
        extra_arguments: &ARGUMENTS,
    };
    let machine = Machine::boot(ctx, &role)?;
    machine.run_script("images.sh", PATIENCE)?;
    let folder = machine.fetch(ctx, "/tmp/recorded.tar")?;
    let bundle = folder.join("images.nest");
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    for client in [NFS, SMB] {
        report.case(&format!("remote/{series}/{}", client.name), |case| {
            ground_truth::nothing_lost(case, &analysis)?;
            let topology = topology::recorded(&bundle)?;
            for speed in ["fast", "slow"] {
                is_at(
                    case,
                    &topology,
                    &analysis,
                    &client.disk(speed),
                    client.server,
                )?;
            }
            files(case, &analysis, &folder, &client)
        })?;
    }
    report.case(&format!("remote/{series}/iscsi"), |case| {
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

/// A client of files that the kernel has.
struct Client {
    /// The case's name, and how its disks' names begin.
    name: &'static str,
    /// Protocol, address, and the folder there.
    server: (&'static str, &'static str, &'static str),
    /// The kernel's counts: how the copies are named, and how they are read.
    counts: &'static str,
    read: fn(&str) -> anyhow::Result<[Counted; 2]>,
    /// How far the sum of its times may be from the kernel's: at each look, and of each call.
    resolution_ns: [u64; 2],
    /// The disk whose flush the server is asked for.
    flushed: Option<&'static str>,
}

const NFS: Client = Client {
    name: "nfs",
    server: ("nfs", "127.0.0.1", "/images"),
    counts: "mountstats",
    read: mountstats,
    // Whole milliseconds of all calls, rounded down at each look.
    resolution_ns: [1_000_000, 0],
    flushed: None,
};

const SMB: Client = Client {
    name: "smb",
    server: ("cifs", "127.0.0.1", "images"),
    counts: "smb-stats",
    read: smb_stats,
    // Jiffies, from the moment that the message was made.
    resolution_ns: [0, JIFFY_NS],
    flushed: Some("native"),
};

/// Of Debian's kernel (CONFIG_HZ=250).
const JIFFY_NS: u64 = 4_000_000;

impl Client {
    fn disk(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }
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
        "iscsi" => device?["server"].to_string(),
        _ => recorded["mount"]["source"].to_string(),
    };
    let is_there = place.contains(address) && place.contains(name);
    case.holds(&format!("{disk}: in the topology"), is_there, &place);
    Ok(())
}

/// Every read and write of QEMU is one call to the server, and the delay is all in the time at the server.
fn files(case: &mut Case, analysis: &Value, folder: &Path, client: &Client) -> anyhow::Result<()> {
    let counted = |moment: &str| {
        let path = folder.join(format!("{}-{moment}", client.counts));
        let text = std::fs::read_to_string(&path);
        (client.read)(&text.with_context(|| format!("read {}", path.display()))?)
    };
    let (before, fast) = (counted("before")?, counted("fast")?);
    let (later, slow) = (counted("async")?, counted("slow")?);
    for (speed, from, to) in [("fast", &before, &fast), ("slow", &later, &slow)] {
        let disk = client.disk(speed);
        let image = entry(analysis, "images", &[("disk", &disk)])?;
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
            let at_server = number(rpcs, &format!("/at_server_ns/{op}/sum"))?;
            let kernels = to[place].took_ns - from[place].took_ns;
            let shown = format!("{at_server} ns, the kernel counts {kernels} ns");
            let [of_look, of_call] = client.resolution_ns;
            let is_same = at_server.abs_diff(kernels) <= of_look + of_call * CALLS;
            case.holds(&name("time at the server"), is_same, &shown);
            case.figure(format!("{disk} {op}: {shown}"));
        }
    }
    for name in ["fast", "slow", "native", "io_uring"] {
        let flushes = u64::from(client.flushed == Some(name));
        all_linked(case, analysis, &client.disk(name), flushes)?;
    }
    for op in ["read", "write"] {
        let least = |speed: &str, times: &str| {
            let disk = client.disk(speed);
            let image = entry(analysis, "images", &[("disk", &disk)])?;
            number(image, &format!("/{times}/{op}/min"))
        };
        let added = |times: &str| -> anyhow::Result<u64> {
            let (without, with) = (least("fast", times)?, least("slow", times)?);
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
fn all_linked(case: &mut Case, analysis: &Value, disk: &str, flushes: u64) -> anyhow::Result<()> {
    let image = entry(analysis, "images", &[("disk", disk)])?;
    let rpcs = &image["rpcs"];
    let linked = number(rpcs, "/linked")?;
    case.equal(
        &format!("{disk}: calls in a file I/O"),
        linked,
        2 * CALLS + flushes,
    );
    let commits = number(rpcs, "/commits")?;
    case.equal(&format!("{disk}: commits"), commits, flushes);
    for op in ["read", "write"] {
        let least = |times: &str| number(image, &format!("/{times}/{op}/min"));
        let (file_io, call) = (least("file_io/latency_ns")?, least("rpcs/latency_ns")?);
        let at_server = least("rpcs/at_server_ns")?;
        let shown = format!("{op}: {at_server} ns of {call} ns of {file_io} ns");
        let is_within = at_server <= call && call <= file_io;
        case.holds(
            &format!("{disk}: the shortest call lies within"),
            is_within,
            &shown,
        );
    }
    Ok(())
}

/// The least of 40 times without the delay may be longer than it could be, too: by 0.8 ms beside other guests.
fn is_delay(added_ns: u64) -> bool {
    (DELAY_NS - SLACK_NS / 2..DELAY_NS + SLACK_NS).contains(&added_ns)
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
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    calls: u64,
    took_ns: u64,
}

/// Reads and writes of the mount, from a copy of `/proc/self/mountstats`.
fn mountstats(text: &str) -> anyhow::Result<[Counted; 2]> {
    let (_, of_mount) = text
        .split_once("mounted on /mnt/images")
        .context("find the mount")?;
    // Each of these calls may have been of any of its kinds.
    let counted = |ops: &[&str]| {
        let mut sum = Counted::default();
        for line in of_mount.lines().map(str::trim) {
            let of_op = line.split_once(": ").filter(|(op, _)| ops.contains(op));
            let Some((_, counts)) = of_op else { continue };
            let numbers = numbers(counts)?;
            // Operations, transmissions, timeouts, bytes sent and received; milliseconds queued, and until the reply.
            let (&calls, &round_trips_ms) =
                numbers.first().zip(numbers.get(6)).context("7 counts")?;
            sum.calls += calls;
            sum.took_ns += round_trips_ms * 1_000_000;
        }
        anyhow::Ok(sum)
    };
    Ok([counted(&["READ", "READ_PLUS"])?, counted(&["WRITE"])?])
}

/// Reads and writes of the only server, from a copy of `/proc/fs/cifs/Stats`.
fn smb_stats(text: &str) -> anyhow::Result<[Counted; 2]> {
    let (_, of_commands) = text.split_once("SMB3 CMD").context("find the commands")?;
    let counted = |command: u64| {
        // Its number, how many there were, and jiffies: of all, of the fastest, of the slowest.
        let mut lines = of_commands.lines().filter_map(|line| numbers(line).ok());
        let found = lines.find(|numbers| numbers.len() == 5 && numbers.first() == Some(&command));
        let found = found.with_context(|| format!("find the counts of command {command}"))?;
        let (&calls, &jiffies) = found.get(1).zip(found.get(2)).context("5 counts")?;
        anyhow::Ok(Counted {
            calls,
            took_ns: jiffies * JIFFY_NS,
        })
    };
    const READ: u64 = 8;
    const WRITE: u64 = 9;
    Ok([counted(READ)?, counted(WRITE)?])
}

fn numbers(line: &str) -> Result<Vec<u64>, std::num::ParseIntError> {
    line.split_whitespace().map(str::parse).collect()
}
