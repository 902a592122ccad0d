//! Requests that fail, are late, are withheld or torn on command, as a reader and a writer of the block device see them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_modelled_disk::request::Operation;
use nestrace_modelled_disk::troubles::{Trouble, TroubleKind};
use nestrace_rig::modelled_disk::ModelledDisk;
use nix::fcntl::OFlag;
use xtask::case::Case;

use super::super::context::LiveContext;

const BLOCK: usize = 4096;
const DELAY_MS: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory at whole pages, as O_DIRECT wants it.
#[repr(align(4096))]
struct Page([u8; BLOCK]);

pub fn check(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let disk = super::disk(ctx, "sata-ssd", 256 << 20)?;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(disk.path())
        .context("open the disk")?;
    failing(case, &disk, &device)?;
    delaying(case, &disk, &device)?;
    tearing(case, &disk, &device)?;
    withholding(case, &disk, &device)
}

fn read(device: &File, block: u64) -> io::Result<Page> {
    let mut page = Page([0; BLOCK]);
    device.read_exact_at(&mut page.0, block * BLOCK as u64)?;
    Ok(page)
}

fn write(device: &File, block: u64, byte: u8) -> io::Result<()> {
    device.write_all_at(&Page([byte; BLOCK]).0, block * BLOCK as u64)
}

fn is_eio<T>(result: &io::Result<T>) -> bool {
    let error = result.as_ref().err();
    error.and_then(io::Error::raw_os_error) == Some(nix::errno::Errno::EIO as i32)
}

/// One read of one block fails; others, and writes, do not.
fn failing(case: &mut Case, disk: &ModelledDisk, device: &File) -> anyhow::Result<()> {
    write(device, 3, 7).context("write")?;
    disk.trouble(Trouble {
        first_byte: 3 * BLOCK as u64,
        end_byte: 4 * BLOCK as u64,
        count: Some(1),
        ..Trouble::of(TroubleKind::Fail, Some(Operation::Read))
    })?;
    case.holds(
        "fail: another block is read",
        read(device, 4).is_ok(),
        "it is not",
    );
    case.holds("fail: the block is not", is_eio(&read(device, 3)), "no EIO");
    let again = read(device, 3);
    let is_whole = again.is_ok_and(|page| page.0 == [7; BLOCK]);
    case.holds("fail: the next read is good", is_whole, "it is not");
    disk.trouble(Trouble::of(TroubleKind::Fail, Some(Operation::Flush)))?;
    case.holds("fail: a flush", is_eio(&device.sync_all()), "no EIO");
    disk.heal()?;
    case.holds(
        "fail: a flush after healing",
        device.sync_all().is_ok(),
        "EIO",
    );
    Ok(())
}

fn delaying(case: &mut Case, disk: &ModelledDisk, device: &File) -> anyhow::Result<()> {
    disk.trouble(Trouble {
        count: Some(1),
        ..Trouble::of(TroubleKind::DelayMs(DELAY_MS), Some(Operation::Read))
    })?;
    let mut times = Vec::new();
    for block in 0..2 {
        let begun = Instant::now();
        read(device, block).context("read")?;
        times.push(begun.elapsed().as_millis() as u64);
    }
    let figures = format!("{times:?} ms");
    let is_late = times[0] >= DELAY_MS && times[1] < DELAY_MS / 2;
    case.holds("delay: one read", is_late, &figures);
    Ok(())
}

/// A torn write fails, and leaves its first half.
fn tearing(case: &mut Case, disk: &ModelledDisk, device: &File) -> anyhow::Result<()> {
    write(device, 9, 1).context("write")?;
    disk.trouble(Trouble {
        count: Some(1),
        ..Trouble::of(TroubleKind::Tear, Some(Operation::Write))
    })?;
    case.holds("tear: the write", is_eio(&write(device, 9, 2)), "no EIO");
    let page = read(device, 9).context("read")?;
    let (new, old) = page.0.split_at(BLOCK / 2);
    let is_torn = new.iter().all(|byte| *byte == 2) && old.iter().all(|byte| *byte == 1);
    case.holds("tear: half of it is there", is_torn, "it is not");
    Ok(())
}

/// A withheld read comes back when the disk is healed, and others do not wait for it.
fn withholding(case: &mut Case, disk: &ModelledDisk, device: &File) -> anyhow::Result<()> {
    disk.trouble(Trouble {
        count: Some(1),
        ..Trouble::of(TroubleKind::Withhold, Some(Operation::Read))
    })?;
    let own = device.try_clone().context("open the disk again")?;
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let _ = sender.send(read(&own, 3).map(|page| page.0[0]));
    });
    let is_withheld = receiver.recv_timeout(Duration::from_millis(500)).is_err();
    case.holds("withhold: the read does not return", is_withheld, "it did");
    case.equal("withhold: in flight", disk.report(false)?.in_flight, 1);
    case.holds(
        "withhold: another read",
        read(device, 4).is_ok(),
        "it fails",
    );
    disk.heal()?;
    let answer = receiver.recv_timeout(PATIENCE);
    let is_back = matches!(answer, Ok(Ok(7)));
    case.holds("withhold: it returns after healing", is_back, "it does not");
    let _ = reader.join();
    Ok(())
}
