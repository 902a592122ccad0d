//! Recordings that cannot begin: the exit code of the contract, one clear line, a hint, and nothing
//! left behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::external_tool::find_program;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::{Ended, LIVE, Stage};

/// Refused with this code; stderr begins with `nestrace: `, names every one of `words` and, if there
/// has to be one, gives a hint. No bundle is left.
fn refused(case: &mut Case, ended: &Ended, code: i32, words: &[&str]) {
    let stderr = &ended.end.stderr;
    case.holds(
        &format!("exit code {code}"),
        ended.end.status.code() == Some(code),
        &format!("{}: {stderr}", ended.end.status),
    );
    let first = stderr.lines().next().unwrap_or_default();
    case.holds(
        "the first line says who",
        first.starts_with("nestrace: "),
        stderr,
    );
    for word in words {
        case.holds(
            &format!("stderr names {word}"),
            stderr.contains(word),
            stderr,
        );
    }
    let hinted = stderr.lines().any(|line| line.starts_with("hint: "));
    case.holds("there is a hint", hinted, stderr);
    case.figure(format!("{first:?}"));
}

/// Neither a bundle nor an unfinished one.
pub fn nothing_left(case: &mut Case, ended: &Ended) {
    let folder = ended
        .bundle
        .parent()
        .and_then(|folder| fs::read_dir(folder).ok());
    let name = ended
        .bundle
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let left: Vec<String> = folder
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|entry| entry.contains(&name))
        .collect();
    case.holds("no bundle is left", left.is_empty(), &left.join(" "));
}

/// As a user without privileges.
pub fn not_root(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for nobody")?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
    // The build's own folder may be closed to others.
    let program = folder.path().join("nestrace");
    fs::copy(&stage.ctx.nestrace, &program).context("copy nestrace")?;
    let through = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let mut command = Command::new(through[0]);
    let bundle = folder.path().join("nobody.nest");
    command
        .args(&through[1..])
        .arg(&program)
        .args(["record", "--guest", stage.guest.name(), "-o"])
        .arg(&bundle);
    let mut recorder = nestrace_rig::recorder::Recorder::spawn(command, false)?;
    let end = recorder.wait(LIVE)?;
    let ended = Ended { end, bundle };
    refused(case, &ended, 4, &["root", "sudo"]);
    nothing_left(case, &ended);
    Ok(())
}

/// A guest that does not run: those that do are named.
pub fn unknown_guest(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let bundle = stage.ctx.bundle("unknown");
    let path = bundle.to_str().context("name the recording")?;
    let args = ["record", "--guest", "no-such-guest", "-o", path];
    let mut command = Command::new(&stage.ctx.nestrace);
    command.args(args);
    let end = nestrace_rig::recorder::Recorder::spawn(command, false)?.wait(LIVE)?;
    let ended = Ended { end, bundle };
    refused(case, &ended, 3, &["no-such-guest", stage.guest.name()]);
    nothing_left(case, &ended);
    Ok(())
}

/// A QEMU without any disk, and one whose only disk is nowhere on this host.
pub fn guest_without_disks(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let null = [
        "-blockdev",
        "null-co,node-name=null",
        "-device",
        "virtio-blk-pci,drive=null,id=nothing",
    ];
    let kinds: [(&[&str], &[&str]); 2] = [
        (&[], &["has no disks"]),
        (&null, &["no disk that can be followed", "nothing"]),
    ];
    for (disks, words) in kinds {
        let name = stage.ctx.guest_name("diskless");
        let qemu = Diskless::start(&name, disks)?;
        let bundle = stage.ctx.bundle("diskless");
        let mut command = Command::new(&stage.ctx.nestrace);
        command
            .args(["record", "--guest", &name, "-o"])
            .arg(&bundle);
        let end = nestrace_rig::recorder::Recorder::spawn(command, false)?.wait(LIVE)?;
        drop(qemu);
        let ended = Ended { end, bundle };
        refused(case, &ended, 3, words);
        nothing_left(case, &ended);
    }
    Ok(())
}

/// A QEMU that has not begun to run; killed when dropped.
struct Diskless(Child);

impl Diskless {
    fn start(name: &str, disks: &[&str]) -> anyhow::Result<Self> {
        let qemu = find_program("qemu-system-x86_64").context("find QEMU")?;
        let child = Command::new(qemu)
            .args([
                "-name",
                name,
                "-machine",
                "pc",
                "-nodefaults",
                "-display",
                "none",
                "-S",
            ])
            .args(disks)
            .stdin(Stdio::null())
            .spawn()
            .context("start QEMU")?;
        let mut diskless = Self(child);
        // It is a guest as soon as it has become QEMU.
        let comm = format!("/proc/{}/comm", diskless.0.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(&comm).is_ok_and(|comm| comm.starts_with("qemu")) {
            if diskless.0.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("start a QEMU without disks");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(diskless)
    }
}

impl Drop for Diskless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bundle that is there is replaced by `--force` only, and a folder that is no bundle never.
pub fn output_exists(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let old = stage.record(&["--duration", "0.3"])?.wait(LIVE)?;
    stage.analysis(&old.bundle)?;
    let before = fs::read(old.bundle.join("manifest.json"))?;
    let again = stage.start(&[], &old.bundle, &[])?.wait(LIVE)?;
    refused(case, &again, 2, &["exists", "--force"]);
    let after = fs::read(old.bundle.join("manifest.json"))?;
    case.holds(
        "the old bundle is untouched",
        before == after,
        "its manifest changed",
    );
    let forced = stage
        .start(&[], &old.bundle, &["--force", "--duration", "0.3"])?
        .wait(LIVE)?;
    stage.ended_well(case, &forced, "duration")?;
    let replaced = fs::read(old.bundle.join("manifest.json"))?;
    case.holds(
        "--force replaces it",
        replaced != before,
        "it is the old one",
    );
    fs::write(old.bundle.join("precious"), "data")?;
    let spared = stage.start(&[], &old.bundle, &["--force"])?.wait(LIVE)?;
    case.holds(
        "--force spares a folder with other files",
        spared.end.status.code() == Some(2) && old.bundle.join("precious").exists(),
        &spared.end.stderr,
    );
    fs::remove_dir_all(&old.bundle)?;
    Ok(())
}

/// In mounts of its own, with an empty folder over each of these.
fn without<'a>(folders: &str, script: &'a mut String) -> [&'a str; 6] {
    *script = format!(
        "for folder in {folders}; do mount -t tmpfs none $folder || exit 99; done; exec \"$@\""
    );
    ["unshare", "--mount", "sh", "-c", script, "sh"]
}

/// A kernel without BTF.
pub fn no_btf(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let mut script = String::new();
    let through = without("/sys/kernel/btf", &mut script);
    let bundle = stage.ctx.bundle("no-btf");
    let ended = stage.start(&through, &bundle, &[])?.wait(LIVE)?;
    refused(case, &ended, 4, &["/sys/kernel/btf", "doctor"]);
    case.equal("lines on stderr", ended.end.stderr.lines().count(), 2);
    nothing_left(case, &ended);
    Ok(())
}

/// Neither tracefs nor debugfs: nothing is missing.
pub fn no_tracefs(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let usual = stage.record(&[])?.stop(Signal::SIGINT)?;
    let mut script = String::new();
    let through = without("/sys/kernel/tracing /sys/kernel/debug", &mut script);
    let recording = stage.record_through(&through, &[])?;
    thread::sleep(Duration::from_millis(400));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let probes = crate::stage::manifest(&ended.bundle)?.probes.len();
    let expected = crate::stage::manifest(&usual.bundle)?.probes.len();
    case.equal("probes, as with tracefs", probes, expected);
    stage.ctx.discard(&usual.bundle);
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A PID namespace of its own, as in a container: guests are refused before they are looked for, devices are not.
pub fn own_pid_namespace(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    const THROUGH: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];
    let bundle = stage.ctx.bundle("pid-namespace");
    let ended = stage.start(&THROUGH, &bundle, &[])?.wait(LIVE)?;
    refused(case, &ended, 4, &["PID namespace", "--pid=host"]);
    case.equal("lines on stderr", ended.end.stderr.lines().count(), 2);
    nothing_left(case, &ended);
    stage.load()?;
    let mut command = Command::new(THROUGH[0]);
    command
        .args(&THROUGH[1..])
        .arg(&stage.ctx.nestrace)
        .args(["record", "--device", stage.host.device(), "-o"])
        .arg(&bundle)
        .args(["--duration", "0.3"]);
    let end = nestrace_rig::recorder::Recorder::spawn(command, false)?.wait(LIVE)?;
    let ended = Ended { end, bundle };
    stage.ended_well(case, &ended, "duration")?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// `-- COMMAND` with a command that is not there.
pub fn command_not_found(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let bundle = stage.ctx.bundle("no-command");
    let more = ["--", "/nonexistent/command"];
    let ended = stage.start(&[], &bundle, &more)?.wait(LIVE)?;
    refused(case, &ended, 3, &["/nonexistent/command"]);
    nothing_left(case, &ended);
    // One that is there and still does not start is found out when everything is live.
    let bundle = stage.ctx.bundle("no-program");
    let ended = stage
        .start(&[], &bundle, &["--", "/etc/hostname"])?
        .wait(LIVE)?;
    let stderr = &ended.end.stderr;
    let told = stderr
        .lines()
        .any(|line| line.starts_with("nestrace: ") && line.contains("/etc/hostname"));
    case.holds(
        "exit code 3, with a line that names the command",
        ended.end.status.code() == Some(3) && told,
        &format!("{}: {stderr}", ended.end.status),
    );
    nothing_left(case, &ended);
    Ok(())
}
