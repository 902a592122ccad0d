//! File I/O of a traced process on another kernel: system calls, native aio and io_uring, each as often
//! as the process did it, and the direct I/O's bios by their control blocks.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use nestrace_rig::recorder;
use nestrace_trace::flags::{OWNER_DIRECT, op};
use nestrace_trace::{Event, Kind};
use xtask::case::Case;

use super::machine::Machine;
use super::probes;
use super::recording::{read_manifest, stats};
use crate::context::LiveContext;
use crate::direct_io_link::{FileId, host_events};
use crate::ground_truth;

/// Each job of `file_io.sh` goes over 1 MiB in 4 KiB.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
const PATIENCE: Duration = Duration::from_secs(120);

/// Full detail: every call with its file, and every bio of the file with its control block.
pub fn full(case: &mut Case, ctx: &LiveContext, machine: &Machine) -> anyhow::Result<()> {
    let (folder, _) = record(ctx, machine, "full")?;
    let bundle = folder.join("full.nest");
    probes::attached(case, &read_manifest(&bundle)?, &machine.series);
    let events = host_events(&bundle)?;
    let file = machine.file("image")?;
    calls(case, &events, file);
    named_bytes(case, &events, file, Kind::AioSubmit);
    named_bytes(case, &events, file, Kind::UringSubmit);
    let bios: Vec<&Event> = bios(&events, file).collect();
    let linked = bios
        .iter()
        .filter(|bio| bio.sub == OWNER_DIRECT && bio.iocb != 0)
        .count();
    case.equal(
        "direct I/O: bios of the file with a control block",
        linked,
        bios.len(),
    );
    case.equal(
        "direct I/O: bytes at Q",
        bios.iter().map(|bio| bio.bytes).sum(),
        4 * BLOCKS * BLOCK,
    );
    case.figure(format!(
        "{} events, {linked} bios linked by control block",
        events.len()
    ));
    ctx.discard(&folder);
    Ok(())
}

/// Light detail: the same calls, and the kernel's counts of the device.
pub fn light(case: &mut Case, ctx: &LiveContext, machine: &Machine) -> anyhow::Result<()> {
    let (folder, said) = record(ctx, machine, "light")?;
    let bundle = folder.join("light.nest");
    calls(case, &host_events(&bundle)?, machine.file("image")?);
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    ground_truth::nothing_lost(case, &analysis)?;
    light_counts(case, &analysis, machine, &said)?;
    ctx.discard(&folder);
    Ok(())
}

/// Light detail has no bios and no merges, but every completed request.
fn light_counts(
    case: &mut Case,
    analysis: &serde_json::Value,
    machine: &Machine,
    said: &str,
) -> anyhow::Result<()> {
    use crate::analysis::{entry, number};
    let name = &machine.device("second")?.kernel_name;
    let all = stats(said)?;
    let stat = all.get(name).copied().unwrap_or_default();
    let device = entry(analysis, "devices", &[("side", "host"), ("name", name)])?;
    let count = |key: &str| number(device, key);
    case.equal(
        "light: completed + flushes against reads + writes + discards of stat",
        count("/counts/completed")? + count("/counts/flushes")?,
        stat.operations(),
    );
    case.equal(
        "light: device_flushes",
        count("/counts/device_flushes")?,
        stat.flushes,
    );
    case.equal(
        "light: bytes.read",
        count("/bytes/read")?,
        stat.read_sectors * 512,
    );
    case.equal(
        "light: bytes.write",
        count("/bytes/write")?,
        stat.write_sectors * 512,
    );
    case.figure(format!(
        "{} requests, {} flushes",
        stat.operations(),
        stat.flushes
    ));
    Ok(())
}

/// The folder with the recording, and what the script said.
fn record(ctx: &LiveContext, machine: &Machine, detail: &str) -> anyhow::Result<(PathBuf, String)> {
    let said = machine.run_script(&format!("file_io.sh {detail}"), PATIENCE)?;
    Ok((machine.fetch(ctx, "/tmp/recorded.tar")?, said))
}

/// Every way of file I/O has been seen as often as it was used, from its begin to its end.
fn calls(case: &mut Case, events: &[Event], file: &FileId) {
    let n = |kind: Kind, operation: u8| {
        let fits = |event: &&Event| {
            event.kind() == Some(kind) && event.sub == operation && file.owns(event)
        };
        events.iter().filter(fits).count() as u64
    };
    case.equal("pwrite64", n(Kind::SyscallEnter, op::WRITE), BLOCKS);
    case.equal("preadv2", n(Kind::SyscallEnter, op::READ), BLOCKS);
    let syncs = n(Kind::SyscallEnter, op::FDATASYNC);
    case.holds("fdatasync", syncs >= BLOCKS / 32 - 1, &syncs.to_string());
    case.equal(
        "aio: writes submitted",
        n(Kind::AioSubmit, op::WRITE),
        BLOCKS,
    );
    case.equal(
        "io_uring: writes submitted",
        n(Kind::UringSubmit, op::WRITE),
        BLOCKS,
    );
    let syncs = n(Kind::UringSubmit, op::FSYNC);
    case.holds(
        "io_uring: syncs submitted",
        syncs >= BLOCKS / 64 - 1,
        &syncs.to_string(),
    );
    returns(case, events, file);
    uring_ends(case, events);
}

/// Each system call on the file returns on its thread, with all of its bytes.
fn returns(case: &mut Case, events: &[Event], file: &FileId) {
    let mut open: HashMap<u32, u64> = HashMap::new();
    let (mut whole, mut other) = (0_u64, 0_u64);
    for event in events {
        match event.kind() {
            Some(Kind::SyscallEnter)
                if file.owns(event) && [op::READ, op::WRITE].contains(&event.sub) =>
            {
                open.insert(event.tid, event.bytes);
            }
            Some(Kind::SyscallExit) => match open.remove(&event.tid) {
                Some(bytes) if bytes == event.offset => whole += 1,
                Some(_) => other += 1,
                None => {}
            },
            _ => {}
        }
    }
    case.equal(
        "system calls that returned all of their bytes",
        whole,
        2 * BLOCKS,
    );
    case.equal(
        "system calls that returned something else, or did not",
        other + open.len() as u64,
        0,
    );
}

/// Each io_uring request that was submitted is completed, once.
fn uring_ends(case: &mut Case, events: &[Event]) {
    let mut in_flight: BTreeSet<u64> = BTreeSet::new();
    let mut stray = 0_u64;
    for event in events {
        match event.kind() {
            Some(Kind::UringSubmit) => stray += u64::from(!in_flight.insert(event.object)),
            Some(Kind::UringComplete) => stray += u64::from(!in_flight.remove(&event.object)),
            _ => {}
        }
    }
    case.equal(
        "io_uring: submissions without an end, or ends without a submission",
        stray + in_flight.len() as u64,
        0,
    );
}

/// The bytes that were written through io_uring, or by native aio, reach Q under the name of a request
/// or control block that was submitted before.
fn named_bytes(case: &mut Case, events: &[Event], file: &FileId, kind: Kind) {
    let mut submitted: BTreeSet<u64> = BTreeSet::new();
    let mut bytes = 0;
    for event in events.iter().filter(|event| file.owns(event)) {
        if event.kind() == Some(kind) && event.sub == op::WRITE {
            submitted.insert(event.object);
        } else if event.kind() == Some(Kind::Queue) && submitted.contains(&event.origin) {
            bytes += event.bytes;
        }
    }
    case.equal(
        &format!(
            "{}: bytes at Q under the name of what was submitted",
            kind.name()
        ),
        bytes,
        BLOCKS * BLOCK,
    );
}

fn bios<'a>(events: &'a [Event], file: &'a FileId) -> impl Iterator<Item = &'a Event> {
    let is_ours = move |event: &&Event| {
        event.kind() == Some(Kind::Queue) && event.bytes > 0 && file.owns(event)
    };
    events.iter().filter(is_ours)
}
