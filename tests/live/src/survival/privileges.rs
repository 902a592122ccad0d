//! What the recorder keeps, and whom the bundle belongs to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::kept_privileges::{ends_without_notice, has_nothing};
use crate::stage::Stage;

/// A user that is not root.
const USER: u32 = 65534;

/// No thread is root or has a capability of root's, for good, and each has a system-call filter.
pub fn given_up(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    has_nothing(case, recording.recorder.pid())?;
    ends_without_notice(stage, case, recording)
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
    recording.recorder.wait_live(crate::stage::LIVE)?;
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
