//! What the recorder keeps, and whom the bundle belongs to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::stage::{Recording, Stage};

/// CAP_BPF, which kernels before 5.19 ask for.
const KEPT: u64 = 1 << 39;
/// A user that is not root.
const USER: u32 = 65534;

/// No thread is root or has a capability of root's, for good, and each has a system-call filter.
pub fn given_up(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    has_nothing(case, recording.recorder.pid())?;
    ends_without_notice(stage, case, recording)
}

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

/// A bundle made under sudo, in a folder that only its user may use, belongs to that user: while it
/// is written, and when it is closed.
pub fn bundle_of_the_user(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let home = tempfile::tempdir().context("make a user's folder")?;
    std::os::unix::fs::chown(home.path(), Some(USER), Some(USER))?;
    let user = [format!("SUDO_UID={USER}"), format!("SUDO_GID={USER}")];
    let through = ["env", user[0].as_str(), user[1].as_str()];
    let bundle = home.path().join("mine.nest");
    let mut recording = stage.start(&through, &bundle, &[])?;
    recording.recorder.wait_live(super::stage::LIVE)?;
    thread::sleep(Duration::from_millis(900));
    belongs(case, "while recording", &bundle)?;
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let names = belongs(case, "when closed", &bundle)?;
    case.holds(
        "the manifest's second copy is gone",
        names.len() == 3,
        &names.join(" "),
    );
    case.figure(names.join(" "));
    Ok(())
}

fn belongs(case: &mut Case, when: &str, bundle: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut paths = vec![bundle.to_owned()];
    for entry in fs::read_dir(bundle).context("list the bundle")? {
        let entry = entry?;
        names.push(entry.file_name().to_string_lossy().into_owned());
        paths.push(entry.path());
    }
    for path in paths {
        let meta = fs::metadata(&path)?;
        case.holds(
            &format!("{} belongs to the user {when}", path.display()),
            (meta.uid(), meta.gid()) == (USER, USER),
            &format!("{}:{}", meta.uid(), meta.gid()),
        );
    }
    names.sort();
    Ok(names)
}
