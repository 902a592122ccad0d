//! `--max-size`, and the recorder's memory.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_trace::bundle::HOST_STREAM;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::{Stage, has_notice, manifest};

/// Bytes of the stream that are asked for.
const MAX_SIZE: u64 = 512 << 10;
/// A batch more is no surprise: a quarter of a second's events.
const ONE_BATCH: u64 = 1 << 20;
/// The aim.
const MAX_MEMORY_KIB: u64 = 150 << 10;

/// The recording ends by itself at its size.
pub fn max_size(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&["--max-size", "512K"])?;
    let ended = recording.wait(Duration::from_secs(60))?;
    stage.ended_well(case, &ended, "max_size")?;
    let bytes = std::fs::metadata(ended.bundle.join(HOST_STREAM))?.len();
    case.holds(
        "the stream has about that size",
        (MAX_SIZE..MAX_SIZE + ONE_BATCH).contains(&bytes),
        &format!("{bytes} bytes"),
    );
    let notices = manifest(&ended.bundle)?;
    case.holds(
        "nothing was lost",
        !has_notice(&notices, "disk_full"),
        &ended.end.stderr,
    );
    case.figure(format!("{bytes} bytes of {MAX_SIZE}"));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The most that the recorder ever had in memory, from its start to its end under load.
pub fn memory(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_secs(3));
    let status = std::fs::read_to_string(format!("/proc/{}/status", recording.recorder.pid()))
        .context("read the recorder's status")?;
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let kib: u64 = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmHWM:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .context("find VmHWM in the recorder's status")?;
    case.holds("VmHWM", kib <= MAX_MEMORY_KIB, &format!("{kib} KiB"));
    case.figure(format!("VmHWM {} MiB", kib >> 10));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}
