//! QEMU processes, as `/proc` shows them: who runs, and with which arguments.
//!
//! Everything here may vanish between two reads; a process that does is left out, silently where it
//! was never listed. What an ordinary user may not see is said in [`Census::hidden`].

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use nestrace_probes::proc_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::executable;
use super::program::Program;
use crate::side_by_side::side_by_side;
use crate::topology::namespace;

/// One running QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id in the recorder's PID namespace.
    pub pid: u32,
    /// The arguments, the program first (without the dynamic loader, where that runs it).
    pub argv: Vec<String>,
    /// Base name of the executable.
    pub executable: String,
    /// Start time in clock ticks since boot: pid and start time together are unique.
    pub start_ticks: u64,
}

/// Threads of one process that are listed.
const MAX_THREADS: usize = 4096;

/// The threads that a process has now; none of one that is gone.
pub(crate) fn thread_ids(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let names = entries.into_iter().flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ids = names.filter_map(|name| name.parse().ok());
    ids.take(MAX_THREADS).collect()
}

/// What a look through `/proc` found.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// QEMU processes by pid.
    pub processes: Vec<Process>,
    /// QEMU processes (by their arguments) whose details this user may not read.
    pub hidden: Vec<u32>,
    /// Processes that were left out, and why.
    pub left_out: Vec<(u32, String)>,
}

/// What a look at one process found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A QEMU; whether its details are hidden from this user.
    Qemu(Process, bool),
    /// Not a QEMU, or gone.
    Other,
    /// Perhaps a QEMU, but it cannot be looked at.
    LeftOut(String),
}

/// Threads that look at processes.
const LOOKING: usize = 8;
/// How long a look at one process may take: reading its arguments waits for its memory map's lock.
const MAX_LOOK: Duration = Duration::from_millis(300);
/// Arguments of one process.
const MAX_ARGUMENTS: usize = 16_384;
/// Command lines of this size are kept whatever the others have.
const SMALL_CMDLINE: usize = 64 << 10;
/// Bytes of all larger command lines together.
const LARGE_CMDLINES: usize = 8 << 20;
/// Programs of other names that are searched for QEMU's functions in one look at the machine.
const MAX_SEARCHED_PROGRAMS: usize = 64;

/// What all looks at processes together may still read.
struct Budget {
    cmdline_bytes: AtomicUsize,
    programs: AtomicUsize,
}

impl Budget {
    const fn new() -> Self {
        Self {
            cmdline_bytes: AtomicUsize::new(LARGE_CMDLINES),
            programs: AtomicUsize::new(MAX_SEARCHED_PROGRAMS),
        }
    }

    fn take(from: &AtomicUsize, n: usize) -> bool {
        let left = |left: usize| left.checked_sub(n);
        from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
            .is_ok()
    }
}

impl Process {
    /// `/proc/PID/NAME`.
    #[must_use]
    pub fn proc_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// Whether it still runs: same pid, same start.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.start_ticks)
    }

    /// A path as QEMU used it, made absolute: relative ones count from its working directory.
    #[must_use]
    pub fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let link = |name| fs::read_link(self.proc_path(name)).unwrap_or_default();
        let (cwd, root) = (link("cwd"), link("root"));
        // Both links are seen from our root; inside a chroot the path begins below its root.
        let cwd = cwd.strip_prefix(&root).unwrap_or(&cwd);
        Path::new("/")
            .join(cwd)
            .join(path)
            .to_string_lossy()
            .into_owned()
    }
}

/// Looks through `/proc` for QEMU. Fails only where `/proc` itself cannot be listed.
///
/// # Errors
///
/// Whatever reading the directory `/proc` gives.
pub fn census() -> io::Result<Census> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let budget = Budget::new();
    let found = side_by_side(pids.clone(), LOOKING, MAX_LOOK, move |pid| {
        look_at(*pid, false, &budget)
    });
    let mut census = Census::default();
    for (pid, found) in pids.into_iter().zip(found) {
        census.add(pid, found.unwrap_or_else(no_answer));
    }
    Ok(census)
}

fn no_answer() -> Found {
    Found::LeftOut(format!(
        "has arguments that cannot be read within {} ms (its memory map is locked); left out",
        MAX_LOOK.as_millis()
    ))
}

impl Census {
    /// Adds what a look at a process found.
    pub fn add(&mut self, pid: u32, found: Found) {
        match found {
            Found::Qemu(process, is_hidden) => {
                self.processes.push(process);
                self.hidden.extend(is_hidden.then_some(pid));
            }
            Found::LeftOut(why) => self.left_out.push((pid, why)),
            Found::Other => {}
        }
    }
}

/// A look at the process `pid` that was asked for by its number: its executable is looked into whatever its name and
/// arguments are.
#[must_use]
pub fn identify(pid: u32) -> Found {
    let found = side_by_side(vec![pid], 1, MAX_LOOK, |pid| {
        look_at(*pid, true, &Budget::new())
    });
    found.into_iter().flatten().next().unwrap_or_else(no_answer)
}

fn look_at(pid: u32, asked: bool, budget: &Budget) -> Found {
    match arguments_of(pid, budget) {
        Arguments::None => Found::Other,
        Arguments::TooMany(why) if asked || has_qemu_name(pid) => Found::LeftOut(why),
        Arguments::TooMany(_) => Found::Other,
        Arguments::Words(argv) => match qemu_of(pid, argv, asked, budget) {
            Some((process, is_hidden)) => Found::Qemu(process, is_hidden),
            None => Found::Other,
        },
    }
}

/// Whether the program that a process runs is called as QEMU is.
pub(crate) fn has_qemu_name(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|link| executable::is_qemu_name(base_name(&link.to_string_lossy())))
}

/// The process `pid` if it is QEMU, and whether its details are hidden from this user.
fn qemu_of(pid: u32, argv: Vec<String>, asked: bool, budget: &Budget) -> Option<(Process, bool)> {
    let (state, start_ticks) = stat_of(pid)?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let exe = format!("/proc/{pid}/exe");
    let process = |argv: &[String], executable: &str| Process {
        pid,
        argv: argv.to_vec(),
        executable: executable.to_owned(),
        start_ticks,
    };
    let link = match fs::read_link(&exe) {
        Ok(link) => link.to_string_lossy().into_owned(),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let name = base_name(argv.first()?);
            return executable::is_qemu_name(name).then(|| (process(&argv, name), true));
        }
        Err(_) => return None,
    };
    let name = base_name(link.strip_suffix(" (deleted)").unwrap_or(&link));
    if executable::is_qemu_name(name) {
        return Some((process(&argv, name), false));
    }
    if executable::is_loader(name) {
        let argv = executable::behind_loader(&argv);
        let program = argv.first()?;
        let process = process(argv, base_name(program));
        let is_qemu = executable::is_qemu_name(&process.executable)
            || namespace::open_regular(pid, Path::new(&process.absolute(program)))
                .is_ok_and(|program| executable::is_emulator(&program));
        return is_qemu.then_some((process, false));
    }
    // The link `/proc/PID/exe` opens the file itself, wherever it is and whether or not it has a name.
    let is_qemu = (asked || executable::may_be_qemu(&argv))
        && Budget::take(&budget.programs, 1)
        && Program::open(pid, start_ticks)
            .is_ok_and(|program| executable::is_emulator(program.file()));
    is_qemu.then(|| (process(&argv, name), false))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A process' command line.
#[derive(Debug, PartialEq, Eq)]
enum Arguments {
    /// Of kernel threads, zombies and processes that are gone.
    None,
    Words(Vec<String>),
    /// More than a QEMU has.
    TooMany(String),
}

fn arguments_of(pid: u32, budget: &Budget) -> Arguments {
    let Ok(line) = proc_file::read(format!("/proc/{pid}/cmdline"), proc_file::MAX_CMDLINE) else {
        return Arguments::None;
    };
    if line.is_cut {
        return Arguments::TooMany(format!(
            "has more than {} KiB of arguments; left out",
            proc_file::MAX_CMDLINE >> 10
        ));
    }
    let bytes = line.bytes.strip_suffix(b"\0").unwrap_or(&line.bytes);
    if bytes.is_empty() {
        return Arguments::None;
    }
    if bytes.iter().filter(|byte| **byte == 0).count() >= MAX_ARGUMENTS {
        return Arguments::TooMany(format!("has more than {MAX_ARGUMENTS} arguments; left out"));
    }
    if bytes.len() > SMALL_CMDLINE && !Budget::take(&budget.cmdline_bytes, bytes.len()) {
        return Arguments::TooMany(format!(
            "has {} KiB of arguments, and those of such processes together have more than {} MiB; left out",
            bytes.len() >> 10,
            LARGE_CMDLINES >> 20
        ));
    }
    let words = bytes.split(|byte| *byte == 0);
    Arguments::Words(
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
    )
}

/// The user as whom a process runs (its effective id). The owner of `/proc/PID` would be root's for a process that hides
/// from debuggers.
#[must_use]
pub fn user_of(pid: u32) -> Option<u32> {
    let status = proc_file::read(format!("/proc/{pid}/status"), proc_file::MAX_STAT).ok()?;
    parse_user(&status.text())
}

/// The second number of `Uid:`. The name above it, which the process chose, has no line of its own in it.
fn parse_user(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    numbers.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// When a process started, in clock ticks since boot; `None` where it is gone, or has ended.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    let (state, start_ticks) = stat_of(pid)?;
    (!matches!(state, 'Z' | 'X')).then_some(start_ticks)
}

/// State and start time from `/proc/PID/stat`. The name in parentheses may hold anything.
fn stat_of(pid: u32) -> Option<(char, u64)> {
    let stat = proc_file::read(format!("/proc/{pid}/stat"), proc_file::MAX_STAT).ok()?;
    parse_stat(&stat.text())
}

/// State and start time, in the text of `/proc/PID/stat`.
#[must_use]
pub fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of proc(5); the state is field 3.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn stat_lines() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(&format!("12 (qemu) {tail}")), Some(('S', 4711)));
        assert_eq!(parse_stat(&format!("12 (a) b) {tail}")), Some(('S', 4711)));
        assert_eq!(parse_stat("12 (qemu"), None);
        assert_eq!(parse_stat("12 (qemu) Z 1"), None);
    }

    #[test]
    fn users() {
        let status = "Name:\tUid:\\n0\nUmask:\t0022\nUid:\t1000\t65534\t0\t0\nGid:\t1\t2\t3\t4\n";
        assert_eq!(parse_user(status), Some(65534));
        assert_eq!(parse_user("Uid:\t1000\n"), None);
        assert_eq!(
            user_of(std::process::id()),
            Some(nix::unistd::geteuid().as_raw())
        );
    }

    #[test]
    fn this_process_is_not_qemu() {
        assert_eq!(identify(std::process::id()), Found::Other);
        assert_eq!(identify(u32::MAX), Found::Other);
    }

    #[test]
    fn a_loader_that_is_given_a_fifo_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a directory");
        let (loader, fifo) = (folder.path().join("ld-linux-x"), folder.path().join("fifo"));
        // By a process of its own: no other process has the program open for writing then.
        let copied = Command::new("cp").arg("/bin/cat").arg(&loader).status();
        assert!(copied.expect("it runs").success());
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
        let mut waiting = Command::new(&loader).arg(&fifo).spawn().expect("it runs");
        let pid = waiting.id();
        let (told, answer) = mpsc::channel();
        std::thread::spawn(move || told.send(identify(pid)));
        let found = answer.recv_timeout(Duration::from_secs(10));
        waiting.kill().expect("it still runs");
        waiting.wait().expect("it ends");
        assert_eq!(found, Ok(Found::Other));
    }
}
