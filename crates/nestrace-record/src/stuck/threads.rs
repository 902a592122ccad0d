//! A process' threads, as `/proc/PID/task` shows them.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;
use std::fs;
use std::io;

use nestrace_probes::proc_file;
use nestrace_stuck::facts::{ProcessFacts, ThreadFacts};

/// Threads of one process that are looked at. A guest with 500 processors and as many workers has 1,500.
const MAX_THREADS: usize = 4096;

/// A thread at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// `S`, `D`, `T`, …
    pub state: char,
    /// Run time and number of times that it was given a processor: equal in two samples where it did not run.
    pub ran: String,
    /// Flags of the kernel (`PF_*`).
    pub flags: u64,
}

/// The threads of a process by their ids, and how many there are.
///
/// # Errors
///
/// Where they cannot be listed: no such process.
pub fn all(pid: u32) -> io::Result<(BTreeMap<u32, Thread>, u64)> {
    let mut threads = BTreeMap::new();
    let mut n = 0u64;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        n = n.saturating_add(1);
        let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if threads.len() < MAX_THREADS
            && let Some(thread) = read(&format!("/proc/{pid}/task/{tid}"))
        {
            threads.insert(tid, thread);
        }
    }
    Ok((threads, n))
}

/// A thread, or the first one of a process, by its folder.
#[must_use]
pub fn read(folder: &str) -> Option<Thread> {
    let stat = proc_file::read(format!("{folder}/stat"), proc_file::MAX_STAT).ok()?;
    let mut thread = parse_stat(&stat.text())?;
    // Without it (a kernel without CONFIG_SCHED_INFO) there are user and system time, in ticks.
    if let Ok(ran) = proc_file::read(format!("{folder}/schedstat"), proc_file::MAX_STAT) {
        thread.ran = ran.text();
    }
    Some(thread)
}

/// Name, state, flags and times in the text of `stat`.
#[must_use]
pub fn parse_stat(stat: &str) -> Option<Thread> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Fields 9, 14 and 15 of proc(5); the state is field 3.
    let flags = fields.nth(5)?.parse().ok()?;
    let user = fields.nth(4)?;
    let system = fields.next()?;
    Some(Thread {
        name: name.to_owned(),
        state,
        ran: format!("{user} {system}"),
        flags,
    })
}

/// Number and first argument of the system call that a thread is in.
///
/// # Errors
///
/// `PermissionDenied` for a process of another user.
pub fn system_call(folder: &str) -> io::Result<Option<(libc::c_long, u64)>> {
    let text = proc_file::read(format!("{folder}/syscall"), proc_file::MAX_STAT)?.text();
    Ok(parse_system_call(&text))
}

/// `17 0x9 …`; nothing of `running` and of `-1 …`, a thread that waits outside of a call.
#[must_use]
pub fn parse_system_call(text: &str) -> Option<(libc::c_long, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok().filter(|n| *n >= 0)?;
    let first = words.next()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(first, 16).ok()?))
}

/// Calls that read, write or sync a file, which their first argument is.
const OF_FILES: &[(libc::c_long, &str)] = &[
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_pread64, "pread"),
    (libc::SYS_pwrite64, "pwrite"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_preadv2, "preadv2"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_sync_file_range, "sync_file_range"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_copy_file_range, "copy_file_range"),
    (libc::SYS_lseek, "lseek"),
    (libc::SYS_fstat, "fstat"),
    (libc::SYS_fstatfs, "fstatfs"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_close, "close"),
];
/// Others that a blocked QEMU is found in.
const OTHERS: &[(libc::c_long, &str)] = &[
    (libc::SYS_io_submit, "io_submit"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_newfstatat, "newfstatat"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_exit_group, "exit_group"),
];

/// A call's name, and whether its first argument is a descriptor.
#[must_use]
pub fn name_of_call(number: libc::c_long) -> (String, bool) {
    let find = |all: &[(libc::c_long, &str)]| {
        let mut all = all.iter();
        let found = all.find(|(known, _)| *known == number)?;
        Some(found.1.to_owned())
    };
    match (find(OF_FILES), find(OTHERS)) {
        (Some(name), _) => (name, true),
        (None, Some(name)) => (name, false),
        (None, None) => (format!("system call {number}"), false),
    }
}

/// What a thread that did not run between two samples does. `None` where it ran, or is not of interest: asleep for
/// anything but a file.
#[must_use]
pub fn facts(pid: u32, tid: u32, before: &Thread, now: &Thread) -> Option<ThreadFacts> {
    if before.ran != now.ran || before.state != now.state {
        return None;
    }
    let folder = format!("/proc/{pid}/task/{tid}");
    let mut thread = ThreadFacts {
        pid,
        tid,
        name: now.name.clone(),
        state: now.state.to_string(),
        ..ThreadFacts::default()
    };
    if let Ok(Some((number, first))) = system_call(&folder) {
        let (name, is_of_file) = name_of_call(number);
        thread.system_call = Some(name);
        if is_of_file {
            // Reading a link looks at no file system.
            let link = fs::read_link(format!("/proc/{pid}/fd/{first}"));
            thread.file = link.ok().and_then(|link| {
                let link = link.to_string_lossy().into_owned();
                let link = link.strip_suffix(" (deleted)").unwrap_or(&link);
                link.starts_with('/').then(|| link.to_owned())
            });
        }
    }
    let is_of_interest = match now.state {
        'D' | 'T' | 't' => true,
        // A wait that a signal may end, as FUSE has them: of QEMU's files only, not of terminals and of /dev/kvm.
        'S' => {
            thread.system_call.as_deref() != Some("ioctl")
                && thread
                    .file
                    .as_deref()
                    .is_some_and(|f| !f.starts_with("/dev/"))
        }
        _ => false,
    };
    if !is_of_interest {
        return None;
    }
    thread.wait_channel = wait_channel(&folder);
    thread.tracer = (now.state == 't').then(|| tracer(&folder)).flatten();
    Some(thread)
}

/// The kernel function that a thread waits in.
#[must_use]
pub fn wait_channel(folder: &str) -> Option<String> {
    let text = proc_file::read(format!("{folder}/wchan"), proc_file::MAX_STAT).ok()?;
    let text = text.text();
    let text = text.trim();
    // Without the right, or of a thread that runs.
    (!text.is_empty() && text != "0").then(|| text.to_owned())
}

/// The process that traces a thread.
fn tracer(folder: &str) -> Option<ProcessFacts> {
    let status = proc_file::read(format!("{folder}/status"), proc_file::MAX_STAT).ok()?;
    let pid = parse_tracer(&status.text())?;
    process(pid)
}

/// `TracerPid:` of `status`; 0 is none.
fn parse_tracer(status: &str) -> Option<u32> {
    let pid = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid != 0)
}

/// A process by its number.
#[must_use]
pub fn process(pid: u32) -> Option<ProcessFacts> {
    let first = read(&format!("/proc/{pid}"))?;
    Some(ProcessFacts {
        pid,
        name: first.name,
        state: first.state.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        let tail = "D 2 0 0 0 -1 69238880 5 6 7 8 120 340 0 0 20 0 1 0 4711 0";
        let thread = parse_stat(&format!("12 (jbd2/a) b-8) {tail}")).unwrap();
        assert_eq!((thread.name.as_str(), thread.state), ("jbd2/a) b-8", 'D'));
        assert_eq!((thread.flags, thread.ran.as_str()), (69_238_880, "120 340"));
        assert_eq!(parse_stat("12 (qemu"), None);
        assert_eq!(parse_stat("12 (qemu) D 1 2"), None);
    }

    #[test]
    fn calls() {
        assert_eq!(parse_system_call("18 0xb 0x7f 0x1000"), Some((18, 11)));
        assert_eq!(parse_system_call("running\n"), None);
        assert_eq!(parse_system_call("-1 0x7ffc 0x7f"), None);
        assert_eq!(parse_system_call(""), None);
        assert_eq!(
            name_of_call(libc::SYS_pwrite64),
            ("pwrite".to_owned(), true)
        );
        assert_eq!(name_of_call(9999), ("system call 9999".to_owned(), false));
    }

    #[test]
    fn tracers() {
        assert_eq!(parse_tracer("Name:\tq\nTracerPid:\t0\n"), None);
        assert_eq!(parse_tracer("Name:\tq\nTracerPid:\t417\n"), Some(417));
    }

    #[test]
    fn own_threads() {
        let (threads, n) = all(std::process::id()).unwrap();
        assert!(n >= 1 && !threads.is_empty());
        assert!(threads.values().any(|thread| thread.state == 'R'));
    }
}
