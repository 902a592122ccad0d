//! A shell inside each of nestrace's processes while it records: gdb stands for a memory error, and calls what an attacker
//! would call. Then what the process can do is what the kernel says, and not what our filter's table says.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::{packages, recorder};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use xtask::case::Case;

use super::processes::{Hostile, Programs, USER};
use crate::stage::{Recording, Stage};

/// `EPERM`, and what Landlock says.
const EPERM: i64 = 1;
const EACCES: i64 = 13;

/// What is called, and with which errors it may fail.
type Attempt = (&'static str, &'static str, &'static [i64]);

/// What no process of a running recording can do.
const NOBODY_CAN: &[Attempt] = &[
    ("setuid", "105, 0", &[EPERM]),
    ("setresuid", "117, 0, 0, 0", &[EPERM]),
    ("setfsuid", "122, 0", &[EPERM]),
    ("capset", "126, 0, 0", &[EPERM]),
    (
        "write-etc",
        "2, \"/etc/nestrace-proof\", 0101, 0644",
        &[EPERM, EACCES],
    ),
    // Where everybody may make files.
    (
        "write-tmp",
        "2, \"/tmp/nestrace-proof\", 0101, 0644",
        &[EPERM, EACCES],
    ),
    (
        "write-memory-of-1",
        "2, \"/proc/1/mem\", 2",
        &[EPERM, EACCES],
    ),
    ("execve", "59, \"/bin/true\", 0, 0", &[EPERM]),
    ("fork", "57", &[EPERM]),
    ("ptrace", "101, 16, 1, 0, 0", &[EPERM]),
    ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0", &[EPERM]),
    ("kill", "62, 1, 0", &[EPERM]),
    ("internet-socket", "41, 2, 1, 0", &[EPERM]),
    ("io_uring", "425, 4, $rsp - 4096", &[EPERM]),
    ("memfd_create", "319, \"x\", 0", &[EPERM]),
    ("load-probe", "321, 5, $rsp - 4096, 128", &[EPERM]),
    (
        "code-in-memory",
        "10, (long)$rsp & ~4095L, 4096, 7",
        &[EPERM],
    ),
    ("user-namespace", "272, 0x10000000", &[EPERM]),
    ("chmod", "90, \"/etc\", 0777", &[EPERM]),
    ("mount", "165, 0, 0, 0, 0, 0", &[EPERM]),
];

/// The finder has to read what others may not.
const ONLY_THE_FINDER_CAN: &[Attempt] =
    &[("read-shadow", "2, \"/etc/shadow\", 0", &[EPERM, EACCES])];

/// The keeper connects to agents, the asker to monitors; the others have no socket but those they were given.
const ONLY_CONNECTING_HELPERS_CAN: &[Attempt] = &[
    ("unix-socket", "41, 1, 1, 0", &[EPERM]),
    ("connect", "42, -1, 0, 0", &[EPERM]),
];

/// What the watcher and the reader cannot do: they open nothing, though the watcher keeps `CAP_DAC_READ_SEARCH`.
const WITHOUT_OPENING: &[Attempt] = &[
    ("read-passwd", "2, \"/etc/passwd\", 0", &[EPERM]),
    ("read-memory-of-1", "2, \"/proc/1/mem\", 0", &[EPERM]),
    ("place", "2, \"/etc/passwd\", 010000000", &[EPERM]),
];

/// Called from root's shell.
pub fn of_root(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let bundle = stage.ctx.bundle("privileges");
    processes(stage, case, &[], &bundle)?;
    owned(case, &bundle, (0, 0))?;
    stage.ctx.discard(&bundle);
    Ok(())
}

/// The same under sudo.
pub fn of_sudo(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("make a user's folder")?;
    std::os::unix::fs::chown(home.path(), Some(USER), Some(USER))?;
    let user = [format!("SUDO_UID={USER}"), format!("SUDO_GID={USER}")];
    let through = ["env", user[0].as_str(), user[1].as_str()];
    let bundle = home.path().join("mine.nest");
    processes(stage, case, &through, &bundle)?;
    owned(case, &bundle, (USER, USER))?;
    Ok(())
}

fn processes(
    stage: &Stage<'_>,
    case: &mut Case,
    through: &[&str],
    bundle: &Path,
) -> anyhow::Result<()> {
    packages::install_programs(&[("gdb", "gdb")], |line| stage.ctx.progress.say(line))?;
    stage.load()?;
    let mut recording = stage.start(through, bundle, &[])?;
    recording.recorder.wait_live(crate::stage::LIVE)?;
    let recorder = recording.recorder.pid();
    filtered(recorder)?;
    // That a call can succeed at all: a file of the bundle may be made and removed.
    let inside = format!("{}/proof.arrows", bundle.display());
    let made = called(recorder, &[&format!("2, \"{inside}\", 0101, 0600")])?;
    case.holds(
        "the recorder writes its bundle",
        made[0].0 >= 0,
        &format!("{made:?}"),
    );
    fs::remove_file(&inside).context("remove the proof")?;
    refused(
        case,
        "recorder",
        recorder,
        &[NOBODY_CAN, ONLY_THE_FINDER_CAN, ONLY_CONNECTING_HELPERS_CAN],
    )?;
    let helpers = helpers_of(recorder)?;
    for who in ["keeper", "asker"] {
        let connects = helper(&helpers, who)?;
        refused(case, who, connects, &[NOBODY_CAN, ONLY_THE_FINDER_CAN])?;
    }
    for who in ["reader", "watcher"] {
        let attempts = [
            NOBODY_CAN,
            ONLY_THE_FINDER_CAN,
            ONLY_CONNECTING_HELPERS_CAN,
            WITHOUT_OPENING,
        ];
        refused(case, who, helper(&helpers, who)?, &attempts)?;
    }
    for proof in ["/etc/nestrace-proof", "/tmp/nestrace-proof"] {
        case.holds("no proof was left", !Path::new(proof).exists(), proof);
    }
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    gone(case, &helpers)
}

/// The finder, stopped while it waits for a monitor that says nothing.
pub fn finder(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    packages::install_programs(&[("gdb", "gdb")], |line| stage.ctx.progress.say(line))?;
    let programs = Programs::folder()?;
    let program = programs.compile("qemu-system-x86_64", SILENT, &[])?;
    let folder = programs.path("run");
    fs::create_dir(&folder).context("make the monitor's folder")?;
    std::os::unix::fs::chown(&folder, Some(USER), Some(USER))?;
    let monitor = folder.join("monitor");
    let option = format!("unix:{},server=on,wait=off", monitor.display());
    let words = ["-machine", "q35", "-name", "silent", "-qmp", &option];
    let hostile = Hostile::start(&program, &words)?;
    hostile.wait_until("it listens", |_| monitor.exists())?;
    let command = Command::new(&stage.ctx.nestrace)
        .arg("guests")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start nestrace guests")?;
    let finder = finder_of(command.id())?;
    // It asks the monitor by now.
    thread::sleep(Duration::from_millis(50));
    kill(finder, Signal::SIGSTOP)?;
    let status = fs::read_to_string(format!("/proc/{finder}/status")).context("read its status")?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_root = |ids: &str| ids.split_ascii_whitespace().any(|id| id == "0");
    case.holds(
        "it is not root's",
        ids.is_some_and(|ids| !is_root(ids)),
        &format!("{ids:?}"),
    );
    refused(
        case,
        "finder",
        finder,
        &[NOBODY_CAN, ONLY_CONNECTING_HELPERS_CAN],
    )?;
    kill(finder, Signal::SIGCONT)?;
    let output = command.wait_with_output().context("wait for guests")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    case.holds("exit code 0", output.status.code() == Some(0), &said);
    // While it was stopped, its looks ran out of time.
    let said = recorder::nestrace(&stage.ctx.nestrace, &["guests"])?.stdout;
    case.holds(
        "the honest guest is listed",
        said.contains(stage.guest.name()),
        &said,
    );
    case.holds("the silent one too", said.contains("silent"), &said);
    Ok(())
}

/// Listens where its argument says, and says nothing.
const SILENT: &str = r#"
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_un address = { AF_UNIX };
    strcpy(address.sun_path, strchr(argv[argc - 1], ':') + 1);
    *strchr(address.sun_path, ',') = 0;
    int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bind(socket_fd, (struct sockaddr *)&address, sizeof address);
    listen(socket_fd, 1);
    for (;;) pause();
}
"#;

/// The finder of this process, once it has its filter.
fn finder_of(pid: u32) -> anyhow::Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let helpers = helpers_of(pid).unwrap_or_default();
        let is_filtered = |finder: &u32| {
            let status = fs::read_to_string(format!("/proc/{finder}/status"));
            status.is_ok_and(|status| status.contains("Seccomp:\t2"))
        };
        let found = helper(&helpers, "finder").ok().filter(is_filtered);
        if let Some(finder) = found {
            return Ok(finder);
        }
        ensure!(Instant::now() < deadline, "see the finder");
        thread::sleep(Duration::from_millis(1));
    }
}

fn kill(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?);
    nix::sys::signal::kill(pid, signal).context("send a signal")
}

/// A recorder that is killed leaves no process, and its bundle is root's again.
pub fn killed(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    let recorder = recording.recorder.pid();
    filtered(recorder)?;
    // The launcher ends where there is no command, right after the message that everything is live.
    let deadline = Instant::now() + Duration::from_secs(3);
    while helper(&helpers_of(recorder)?, "launcher").is_ok() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let helpers = helpers_of(recorder)?;
    case.equal("helpers", helpers.len(), 4);
    let lent = owner(&recording.bundle)?;
    case.holds(
        "the bundle is no real user's while it is written",
        lent.0 >= 0x7000_0000,
        &format!("{lent:?}"),
    );
    let Recording { recorder, bundle } = recording;
    // How it ended is not asked: it was killed.
    let _ = recorder.stop(Signal::SIGKILL, Duration::from_secs(5))?;
    gone(case, &helpers)?;
    for entry in fs::read_dir(&bundle).context("list the bundle")? {
        let path = entry?.path();
        owned(case, &path, (0, 0))?;
    }
    owned(case, &bundle, (0, 0))?;
    stage.ctx.discard(&bundle);
    Ok(())
}

/// Tries each and wants it refused.
fn refused(case: &mut Case, who: &str, pid: u32, attempts: &[&[Attempt]]) -> anyhow::Result<()> {
    let attempts: Vec<&Attempt> = attempts.iter().copied().flatten().collect();
    let calls: Vec<&str> = attempts.iter().map(|(_, call, _)| *call).collect();
    let results = called(pid, &calls)?;
    for ((what, _, errors), (result, error)) in attempts.iter().zip(&results) {
        case.holds(
            &format!("{who}: {what} is refused"),
            *result == -1 && errors.contains(error),
            &format!("{result}, error {error}"),
        );
    }
    case.figure(format!("{who}: {} attempts refused", results.len()));
    Ok(())
}

/// Registers that a system call takes its arguments from, and those that it changes.
const ARGUMENTS: [&str; 6] = ["rdi", "rsi", "rdx", "r10", "r8", "r9"];
const CHANGED: [&str; 5] = ["rax", "rcx", "r11", "rip", "orig_rax"];
/// Below the stack's red zone: where a call's strings lie.
const STRINGS: usize = 8192;

/// What each call in the process gave, and `errno`. A call is its number and its arguments, as gdb reads them.
///
/// gdb sets one register after the other and steps over an instruction of the libc. It does not call a function: gdb 13 then
/// writes all registers back, which the kernel refuses where the processor has AMX.
fn called(pid: u32, calls: &[&str]) -> anyhow::Result<Vec<(i64, i64)>> {
    let mut lines: Vec<String> = [
        "set confirm off",
        "set language c",
        // The other threads stay where they are.
        "set scheduler-locking on",
        "handle SIGSTOP nostop noprint nopass",
        "find /b (char*)&syscall, +64, (char)0x0f, (char)0x05",
        "set $instruction = (long)$_",
    ]
    .map(str::to_owned)
    .to_vec();
    let registers = || ARGUMENTS.iter().chain(&CHANGED);
    lines.extend(registers().map(|name| format!("set $old_{name} = ${name}")));
    for call in calls {
        let mut words = call.split(", ");
        let number = words.next().context("read a call's number")?;
        for (place, register) in ARGUMENTS.iter().enumerate() {
            let word = words.next().unwrap_or("0");
            let value = if word.starts_with('"') {
                let at = format!("($rsp - {})", STRINGS + place * 512);
                let length = word.len() - 1;
                lines.push(format!("set var *(char(*)[{length}]){at} = {word}"));
                at
            } else {
                word.to_owned()
            };
            lines.push(format!("set ${register} = (long)({value})"));
        }
        lines.extend([
            format!("set $rax = {number}"),
            "set $orig_rax = -1".to_owned(),
            "set $rip = $instruction".to_owned(),
            "stepi".to_owned(),
            "printf \"called %ld\\n\", $rax".to_owned(),
        ]);
    }
    lines.extend(registers().map(|name| format!("set ${name} = $old_{name}")));
    let mut command = Command::new("gdb");
    command
        .args(["-q", "-nx", "-batch", "-p", &pid.to_string()])
        .env("DEBUGINFOD_URLS", "");
    for line in &lines {
        command.args(["-ex", line]);
    }
    let output = command.output().context("start gdb")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = said.lines().filter_map(|line| line.strip_prefix("called "));
    let numbers = numbers.filter_map(|number| number.trim().parse::<i64>().ok());
    let results: Vec<(i64, i64)> = numbers
        .map(|number| match number < 0 {
            true => (-1, -number),
            false => (number, 0),
        })
        .collect();
    ensure!(
        results.len() == calls.len(),
        "call {calls:?} in {pid}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(results)
}

/// Waits until each thread has its filter: that is right after the message that everything is live.
pub(super) fn filtered(pid: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("list the threads")?;
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let mut all = tasks.flatten().filter_map(status);
        if all.all(|status| status.lines().any(|line| line == "Seccomp:\t2")) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "see the recorder give up");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The recorder's children and how they were called.
pub(super) fn children_of(pid: u32) -> anyhow::Result<Vec<(u32, String)>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.context("list the recorder's children")?;
    let mut found = Vec::new();
    for child in children.split_ascii_whitespace() {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        found.push((child.parse()?, words));
    }
    Ok(found)
}

pub(super) fn helpers_of(pid: u32) -> anyhow::Result<Vec<(u32, String)>> {
    let mut children = children_of(pid)?;
    children.retain(|(_, words)| words.contains("--as-role"));
    Ok(children)
}

pub(super) fn helper(helpers: &[(u32, String)], word: &str) -> anyhow::Result<u32> {
    let found = helpers.iter().find(|(_, words)| words.contains(word));
    Ok(found.with_context(|| format!("find the {word}"))?.0)
}

fn gone(case: &mut Case, helpers: &[(u32, String)]) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    for (pid, words) in helpers {
        let runs = || {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|now| now.replace('\0', " ") == *words)
        };
        while runs() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        case.holds("the helper has ended", !runs(), words);
    }
    Ok(())
}

fn owned(case: &mut Case, path: &Path, by: (u32, u32)) -> anyhow::Result<()> {
    let found = owner(path)?;
    case.holds(
        &format!("{} belongs to {by:?}", path.display()),
        found == by,
        &format!("{found:?}"),
    );
    Ok(())
}

fn owner(path: &Path) -> anyhow::Result<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
    Ok((meta.uid(), meta.gid()))
}
