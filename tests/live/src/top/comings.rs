//! Guests and disks that come and go while `nestrace top --batch` runs.

use std::thread;

use nestrace_rig::disk_image;
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack};
use serde_json::{Value, json};
use xtask::case::Case;

use super::{INTERVAL, LiveContext, MIB, PATIENCE, Top, load, sum};

/// A disk that is plugged in while it runs is summed, and gone when it is pulled out.
pub fn plugged(
    ctx: &LiveContext,
    case: &mut Case,
    guest: &Guest,
    host: &HostFs,
) -> anyhow::Result<()> {
    let top = Top::start(ctx, "plugged", &["--guest", guest.name()])?;
    let id = "plugged";
    let image = host.path().join("plugged.raw");
    disk_image::create(&image, DiskStack::RAW.format, 32 * MIB, "full")?;
    let drive = format!(
        "drive_add 0 if=none,id={id},file={},format=raw,cache=none,aio=io_uring",
        image.display()
    );
    guest.qmp("human-monitor-command", json!({ "command-line": drive }))?;
    guest.qmp(
        "device_add",
        json!({ "driver": "virtio-blk-pci", "drive": id, "id": id, "serial": id }),
    )?;
    let has_row = |line: &Value| {
        let rows = line["disks"].as_array().into_iter().flatten();
        rows.filter(|row| row["disk"] == id).count() > 0
    };
    case.holds("its row comes", top.wait_until(has_row)?, "no row");
    let device = guest.run_ok(
        &format!(
            "for i in $(seq 50); do for d in /sys/block/*; do [ \"$(cat $d/serial 2>/dev/null)\" = {id} ] && \
             echo /dev/${{d##*/}} && exit 0; done; sleep 0.1; done; exit 1"
        ),
        PATIENCE,
    )?;
    // The kernel's own reads of it are in the rows.
    thread::sleep(2 * INTERVAL);
    let before = guest.disk_stats(id)?;
    let seen_before = sum(&top.lines()?, "disks", &[("disk", id)], "/n");
    guest.run_ok(&load(device.stdout.trim()), PATIENCE)?;
    let truth = guest.disk_stats(id)?.since(&before);
    thread::sleep(2 * INTERVAL);
    let lines = top.lines()?;
    let seen = sum(&lines, "disks", &[("disk", id)], "/n") - seen_before;
    case.figure(format!("{seen} requests"));
    case.equal(
        "its requests",
        seen,
        truth.reads + truth.writes + truth.flushes,
    );
    guest.qmp("device_del", json!({ "id": id }))?;
    case.holds(
        "its row goes",
        top.wait_until(|line| !has_row(line))?,
        "it stays",
    );
    top.stop(case)?;
    Ok(())
}

/// Guests that start and end while it runs.
pub fn comings(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let top = Top::start(ctx, "comings", &[])?;
    let name = ctx.guest_name("comer");
    let stack = DiskStack {
        cache: CacheMode::None,
        aio: Aio::IoUring,
        ..DiskStack::RAW
    };
    let disk = ctx.disk(host, "comer", stack, 32 * MIB, "full")?;
    let mut guest = ctx.boot(&name, vec![disk])?;
    let of_guest = |line: &Value| {
        sum(
            std::slice::from_ref(line),
            "disks",
            &[("guest", &name)],
            "/n",
        )
    };
    let has_row = |line: &Value| {
        let rows = line["disks"].as_array().into_iter().flatten();
        rows.filter(|row| row["guest"] == name).count() > 0
    };
    case.holds("its rows come", top.wait_until(has_row)?, "no row");
    let before = guest.disk_stats("comer")?;
    thread::sleep(2 * INTERVAL);
    let seen_before: u64 = top.lines()?.iter().map(of_guest).sum();
    guest.run_ok(&load(&guest.device_of("comer")?), PATIENCE)?;
    let truth = guest.disk_stats("comer")?.since(&before);
    thread::sleep(2 * INTERVAL);
    let seen: u64 = top.lines()?.iter().map(of_guest).sum::<u64>() - seen_before;
    case.equal(
        "its requests",
        seen,
        truth.reads + truth.writes + truth.flushes,
    );
    guest.kill();
    case.holds(
        "its rows go",
        top.wait_until(|line| !has_row(line))?,
        "they stay",
    );
    top.stop(case)?;
    Ok(())
}
