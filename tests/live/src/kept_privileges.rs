//! What a recorder may still do once it has given up its rights.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::{Recording, Stage};

/// CAP_BPF, which kernels before 5.19 ask for.
const KEPT: u64 = 1 << 39;

/// No thread of the recorder is root or has more than it needs.
pub fn has_nothing(case: &mut Case, recorder: u32) -> anyhow::Result<()> {
    let tasks = format!("/proc/{recorder}/task");
    let deadline = Instant::now() + Duration::from_secs(2);
    while !statuses(Path::new(&tasks))?
        .iter()
        .all(|status| value(status, "Seccomp") == Some("2"))
        && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(10));
    }
    for status in statuses(Path::new(&tasks))? {
        let ids = value(&status, "Uid").context("find the user")?;
        let is_root = ids.split_ascii_whitespace().any(|id| id == "0");
        case.holds("no id of it is root's", !is_root, ids);
        case.equal("groups", value(&status, "Groups").unwrap_or_default(), "");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"] {
            let text = value(&status, set).context("find a set of capabilities")?;
            let bits = u64::from_str_radix(text, 16)?;
            case.holds(
                &format!("{set} within what is kept"),
                bits & !KEPT == 0,
                text,
            );
        }
        case.equal(
            "Seccomp",
            value(&status, "Seccomp").unwrap_or_default(),
            "2",
        );
        case.figure(format!(
            "CapEff {}",
            value(&status, "CapEff").unwrap_or_default()
        ));
    }
    Ok(())
}

/// The recording is whole, and nothing could not be given up.
pub fn ends_without_notice(
    stage: &Stage<'_>,
    case: &mut Case,
    recording: Recording,
) -> anyhow::Result<()> {
    thread::sleep(Duration::from_millis(600));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    case.holds(
        "all could be given up",
        !ended.end.stderr.contains("going on with all privileges"),
        &ended.end.stderr,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

fn statuses(tasks: &Path) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for task in fs::read_dir(tasks).context("list the recorder's threads")? {
        all.push(fs::read_to_string(task?.path().join("status"))?);
    }
    Ok(all)
}

fn value<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.strip_prefix(key)?.strip_prefix(':');
    status.lines().find_map(line).map(str::trim)
}
