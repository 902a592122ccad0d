//! The recorder's lists of system calls with other C libraries than this machine's, and a kernel without Landlock.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::{packages, qemu_package};

use super::privileges::filtered;
use super::processes::Programs;
use crate::kept_privileges::{ends_without_notice, has_nothing};
use crate::stage::{LIVE, Stage};
use nestrace_rig::recorder;
use xtask::cargo_build::{self, cargo};
use xtask::case::Case;

const MUSL: &str = "x86_64-unknown-linux-musl";
const EXAMPLE: &str = "record_guest";

/// The recorder with the C library of Debian 13, in a root of that system.
pub fn newer_libc(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let launcher = qemu_package::obtain_root("trixie", "trixie-backports")?;
    let root = launcher.parent().context("find the root's folder")?;
    let root = root.to_str().context("a plain path")?;
    let through = ["sh", "-c", qemu_package::ENTER_ROOT, "sh", root];
    let libc = Command::new(through[0])
        .args(&through[1..])
        .args(["/lib64/ld-linux-x86-64.so.2", "--version"])
        .output()
        .context("ask for the C library's version")?;
    let libc = String::from_utf8_lossy(&libc.stdout).into_owned();
    let version = libc.lines().next().unwrap_or_default().to_owned();
    case.holds("it is another one", version.contains("2.41"), &version);
    case.figure(version);
    records(stage, case, &through)
}

/// The kernel says that it has no Landlock: what else is given up, is.
pub fn without_landlock(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let programs = Programs::folder()?;
    let wrapper = programs.compile("without-landlock", WITHOUT_LANDLOCK, &[])?;
    let wrapper = wrapper.to_str().context("a plain path")?;
    records(stage, case, &[wrapper])
}

fn records(stage: &Stage<'_>, case: &mut Case, through: &[&str]) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record_through(through, &[])?;
    has_nothing(case, recording.recorder.pid())?;
    ends_without_notice(stage, case, recording)
}

/// The recorder linked with musl, which makes other system calls of the same functions.
pub fn musl(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let program = built_with_musl(stage)?;
    stage.load()?;
    let bundle = stage.ctx.bundle("musl");
    let mut recorder = Command::new(program)
        .arg(stage.guest.name())
        .arg(&bundle)
        .arg("3")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the recorder")?;
    let deadline = std::time::Instant::now() + LIVE;
    while !bundle.join("manifest.json").exists() {
        ensure!(std::time::Instant::now() < deadline, "see the bundle");
        std::thread::sleep(Duration::from_millis(10));
    }
    filtered(recorder.id())?;
    has_nothing(case, recorder.id())?;
    let status = recorder.wait().context("wait for the recorder")?;
    case.holds("it ends well", status.success(), &status.to_string());
    let manifest = fs::read_to_string(bundle.join("manifest.json")).context("read the manifest")?;
    for bad in [
        "\"privileges\"",
        "Operation not permitted",
        "losses_unknown",
    ] {
        case.holds(
            &format!("no notice of {bad}"),
            !manifest.contains(bad),
            &manifest,
        );
    }
    let analysis = recorder::analyze(&stage.ctx.nestrace, &bundle)?;
    case.holds(
        "it is whole",
        analysis["incomplete"].as_array().is_none_or(Vec::is_empty),
        &analysis["incomplete"].to_string(),
    );
    stage.ctx.discard(&bundle);
    Ok(())
}

/// Not optimised: it is compiled for this one run.
fn built_with_musl(stage: &Stage<'_>) -> anyhow::Result<std::path::PathBuf> {
    packages::install_programs(&[("musl-gcc", "musl-tools")], |line| {
        stage.ctx.progress.say(line);
    })?;
    let added = Command::new("rustup")
        .args(["target", "add", MUSL])
        .stderr(Stdio::null())
        .status()
        .context("start rustup")?;
    ensure!(added.success(), "get Rust's library for {MUSL}");
    let mut command = cargo();
    command
        .args(["build", "--locked", "--target", MUSL])
        .args(["--package", "nestrace-record", "--example", EXAMPLE])
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo_build::executable(command, EXAMPLE)
}

const WITHOUT_LANDLOCK: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 444, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 446, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof program / sizeof *program, program };
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 1;
    execv(argv[1], argv + 1);
    return 2;
}
"#;
