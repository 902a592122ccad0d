//! How a disk ends: killed under load, and with its owner. Nothing hangs, nothing is left.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::modelled_disk::{ModelledDisk, ModelledDiskSpec};
use nestrace_rig::stack::HostFsKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::case::Case;

use super::super::context::LiveContext;

const PATIENCE: Duration = Duration::from_secs(10);

/// What a disk made, to see that it is gone.
struct Traces {
    folder: PathBuf,
    device: String,
    process: u32,
}

impl Traces {
    fn of(disk: &ModelledDisk) -> Self {
        Self {
            folder: disk.folder().to_owned(),
            device: disk.name().to_owned(),
            process: disk.process_id(),
        }
    }

    fn are_there(&self, case: &mut Case) {
        case.holds("before: mount", self.is_mounted(), "there is none");
        case.holds("before: loop device", self.is_attached(), "there is none");
    }

    fn are_gone(&self, case: &mut Case) {
        case.holds("after: mount", !self.is_mounted(), "it is left");
        case.holds("after: loop device", !self.is_attached(), "it is left");
        case.holds("after: folder", !self.folder.exists(), "it is left");
        let process = PathBuf::from(format!("/proc/{}", self.process));
        case.holds("after: process", !process.exists(), "it is left");
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.contains(&*self.folder.to_string_lossy())
    }

    fn is_attached(&self) -> bool {
        let file = format!("/sys/block/{}/loop/backing_file", self.device);
        let file = std::fs::read_to_string(file).unwrap_or_default();
        Path::new(file.trim()).starts_with(&self.folder)
    }
}

/// `kill -9` while fio has requests in flight: they fail, and so does the next read.
pub fn killed(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let disk = super::disk(ctx, "hdd-7200", 1 << 30)?;
    let traces = Traces::of(&disk);
    traces.are_there(case);
    let mut load = Command::new("fio")
        .args([
            "--name=x",
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=32",
            "--ioengine=libaio",
        ])
        .args(["--direct=1", "--time_based", "--runtime=60"])
        .arg(format!("--filename={}", disk.path().display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start fio")?;
    let end = Instant::now() + PATIENCE;
    while disk.report(false)?.in_flight < 16 && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    let in_flight = disk.report(false)?.in_flight;
    case.holds(
        "in flight when it is killed",
        in_flight >= 16,
        &in_flight.to_string(),
    );
    let process = Pid::from_raw(i32::try_from(disk.process_id())?);
    kill(process, Signal::SIGKILL).context("kill the program")?;
    let killed = Instant::now();
    let status = loop {
        match load.try_wait().context("wait for fio")? {
            Some(status) => break Some(status),
            None if killed.elapsed() > PATIENCE => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        load.kill().context("kill fio")?;
    }
    case.holds("fio ends", status.is_some(), "it hangs");
    case.holds(
        "fio fails",
        status.is_some_and(|it| !it.success()),
        "it does not",
    );
    case.figure(format!(
        "fio failed {} ms after",
        killed.elapsed().as_millis()
    ));
    let read = std::fs::File::open(disk.path())
        .and_then(|mut device| std::io::Read::read(&mut device, &mut [0; 4096]));
    case.holds("the next read fails", read.is_err(), "it does not");
    let begun = Instant::now();
    drop(disk);
    case.holds(
        "removing it",
        begun.elapsed() < PATIENCE,
        "it takes too long",
    );
    traces.are_gone(case);
    Ok(())
}

/// A file system on a disk that is dropped as it should be, and on disks with a killed program. The loop device goes with
/// a program that is asked to end, also where nothing else detaches it.
pub fn file_system(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let spec = HostFsSpec {
        size_bytes: 512 << 20,
        modelled: Some(ModelledDiskSpec::new(ctx.disk_program(), "hdd-7200")),
        ..HostFsSpec::new(HostFsKind::Ext4)
    };
    for signal in [None, Some(Signal::SIGKILL), Some(Signal::SIGTERM)] {
        let host = HostFs::create(&spec)?;
        let disk = host.modelled().context("find the modelled disk")?;
        let traces = Traces::of(disk);
        traces.are_there(case);
        let file = host.path().join("file");
        std::fs::write(&file, vec![1; 1 << 20]).context("write a file")?;
        if let Some(signal) = signal {
            let process = Pid::from_raw(i32::try_from(disk.process_id())?);
            kill(process, signal).context("end the program")?;
            let synced = host.sync();
            case.holds("a sync fails", synced.is_err(), "it does not");
        } else {
            host.sync().context("sync")?;
        }
        let begun = Instant::now();
        drop(host);
        let took = begun.elapsed();
        case.holds("removing it", took < PATIENCE, &format!("{took:?}"));
        traces.are_gone(case);
    }
    Ok(())
}
