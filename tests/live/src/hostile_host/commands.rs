//! `-- COMMAND` of a recorder that has no privileges any more.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::recorder;
use xtask::case::Case;

use super::privileges::{children_of, filtered, helper, helpers_of};
use crate::stage::Stage;

/// A command that outlives the recorder's privileges ends with the recording: the recorder may not end root's processes any
/// more.
pub fn ends(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&["--duration", "4", "--", "sleep", "300"])?;
    filtered(recording.recorder.pid())?;
    let launcher = helper(&helpers_of(recording.recorder.pid())?, "launcher")?;
    let command = command_of(launcher)?;
    let ended = recording.wait(Duration::from_secs(20))?;
    stage.ended_well(case, &ended, "duration")?;
    case.holds(
        "the command is gone",
        !Path::new(&format!("/proc/{command}")).exists(),
        "it runs",
    );
    case.holds(
        "nothing is said of it",
        !ended.end.stderr.contains("still runs"),
        &ended.end.stderr,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The launcher's child, which starts after the recorder has said that it is live.
fn command_of(launcher: u32) -> anyhow::Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        if let Some((command, _)) = children_of(launcher)?.first() {
            return Ok(*command);
        }
        ensure!(Instant::now() < deadline, "find the command");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The command runs as whoever called the recorder, with its terminal and folder, and when it starts the recorder has no privileges
/// any more.
pub fn begins(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let words = [
        "--",
        "sh",
        "-c",
        "set -e; exec >&2; \
         recorder=$(awk '/^PPid:/{print $2}' /proc/$PPID/status); \
         echo filters=$(cat /proc/$recorder/task/*/status | awk '/^Seccomp:/{print $2}' | sort -u); \
         echo uid=$(id -u) capabilities=$(awk '/^CapEff:/{print $2}' /proc/self/status) folder=$PWD; \
         exit 7",
    ];
    let recording = stage.record(&words)?;
    let ended = recording.wait(Duration::from_secs(20))?;
    let said = &ended.end.stderr;
    case.holds(
        "the recorder has its filter",
        said.contains("filters=2\n"),
        said,
    );
    let own = fs::read_to_string("/proc/self/status").context("read the own status")?;
    let own = own.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let folder = std::env::current_dir().context("ask for the folder")?;
    let expected = format!(
        "uid=0 capabilities={} folder={}\n",
        own.unwrap_or_default().trim(),
        folder.display()
    );
    case.holds("it has what the caller has", said.contains(&expected), said);
    case.holds(
        "its exit status is said",
        ended.end.stderr.contains("command ended (exit status: 7)"),
        &ended.end.stderr,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A command that the system refuses to run, though it is there: the older bundle is whole, and nothing else is left.
pub fn refused(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let program = folder.path().join("no-interpreter");
    fs::write(&program, "#!/nothing/there\n").context("write the program")?;
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .context("make it executable")?;
    let bundle = folder.path().join("older.nest");
    let place = bundle.to_str().context("a plain path")?;
    let guest = stage.guest.name();
    let once = ["record", "--guest", guest, "--duration", "0.3", "-o", place];
    let first = recorder::nestrace(&stage.ctx.nestrace, &once)?;
    case.equal("exit code of the first", first.code.unwrap_or(-1), 0);
    let manifest = fs::read(bundle.join("manifest.json")).context("read the first manifest")?;
    let program = program.to_str().context("a plain path")?;
    let again = [
        "record", "--guest", guest, "-o", place, "--force", "--", program,
    ];
    let second = recorder::nestrace(&stage.ctx.nestrace, &again)?;
    case.equal("exit code of the second", second.code.unwrap_or(-1), 3);
    case.holds(
        "it says what could not be started",
        second.stderr.contains(&format!("cannot start {program}")),
        &second.stderr,
    );
    let now = fs::read(bundle.join("manifest.json")).context("read the manifest again")?;
    case.holds(
        "the first bundle is there",
        now == manifest,
        "it has changed",
    );
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .context("list the folder")?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    case.holds("and nothing else", names.len() == 2, &format!("{names:?}"));
    Ok(())
}
