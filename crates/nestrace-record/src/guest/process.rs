//! QEMU processes, as `/proc` shows them: who runs, with which arguments, and which files are open.
//!
//! Everything here may vanish between two reads; a process that does is left out, silently where it
//! was never listed. What an ordinary user may not see is said in [`Census::hidden`].

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::executable;
use crate::topology::image_file::{FileIdentity, identity};
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

/// What a look through `/proc` found.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// QEMU processes by pid.
    pub processes: Vec<Process>,
    /// QEMU processes (by their arguments) whose details this user may not read.
    pub hidden: Vec<u32>,
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
        stat_of(self.pid)
            .is_some_and(|(state, start)| !matches!(state, 'Z' | 'X') && start == self.start_ticks)
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
    let mut census = Census::default();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        if let Some((process, hidden)) = identify(pid, false) {
            if hidden {
                census.hidden.push(pid);
            }
            census.processes.push(process);
        }
    }
    census.processes.sort_by_key(|p| p.pid);
    census.hidden.sort_unstable();
    Ok(census)
}

/// The process `pid` if it is QEMU, and whether its details are hidden from this user. With `asked`,
/// its executable is looked into whatever its name and arguments are.
#[must_use]
pub fn identify(pid: u32, asked: bool) -> Option<(Process, bool)> {
    let argv = argv_of(pid)?;
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
        let is_qemu = executable::is_qemu_name(base_name(program))
            || namespace::open_regular(pid, Path::new(program))
                .is_ok_and(executable::has_qemu_symbols);
        return is_qemu.then(|| (process(argv, base_name(program)), false));
    }
    // The link `/proc/PID/exe` opens the file itself, wherever it is and whether or not it has a name.
    let is_qemu = (asked || executable::may_be_qemu(&argv))
        && File::open(&exe).is_ok_and(executable::has_qemu_symbols);
    is_qemu.then(|| (process(&argv, name), false))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The arguments; `None` for kernel threads, zombies and processes that are gone.
fn argv_of(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() {
        return None;
    }
    Some(
        bytes
            .split(|b| *b == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
    )
}

/// State and start time from `/proc/PID/stat`. The name in parentheses may hold anything.
fn stat_of(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&stat))
}

fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of proc(5); the state is field 3.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// An open regular file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenFile {
    /// The descriptor.
    pub fd: u32,
    /// Where the link points, without the mark of a deleted file.
    pub path: String,
    /// The file has no name any more.
    pub deleted: bool,
    /// Which file it is.
    pub identity: FileIdentity,
    /// A block device.
    pub is_block_device: bool,
    /// Open with O_DIRECT.
    pub direct: bool,
    /// QEMU's image locks are on it: it is a block node's file.
    pub image_locked: bool,
    /// Open for writing.
    pub writable: bool,
    /// `mnt_id` of `fdinfo`: the mount it was opened through.
    pub mount_id: Option<u64>,
}

/// The open files of a process, as far as they matter here.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles {
    /// Regular files and block devices.
    pub files: Vec<OpenFile>,
    /// Sockets: descriptor → inode.
    pub sockets: BTreeMap<u32, u64>,
    /// A virtual machine of KVM is open.
    pub kvm: bool,
}

/// Reads `/proc/PID/fd` and `fdinfo`. Descriptors that are closed meanwhile are left out.
///
/// # Errors
///
/// Where the directory cannot be listed: no such process, or no permission.
pub fn open_files(pid: u32) -> io::Result<OpenFiles> {
    let mut open = OpenFiles::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let Some(fd) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(link) = fs::read_link(entry.path()) else {
            continue;
        };
        let link = link.to_string_lossy().into_owned();
        if let Some(inode) = link
            .strip_prefix("socket:[")
            .and_then(|l| l.strip_suffix(']'))
        {
            open.sockets
                .extend(inode.parse().ok().map(|inode| (fd, inode)));
        } else if link == "anon_inode:kvm-vm" {
            open.kvm = true;
        } else if link.starts_with('/') {
            open.files.extend(open_file(pid, fd, &link));
        }
    }
    open.files.sort_by_key(|f| f.fd);
    Ok(open)
}

fn open_file(pid: u32, fd: u32, link: &str) -> Option<OpenFile> {
    let about = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let is_block_device = about.mode() & libc::S_IFMT == libc::S_IFBLK;
    if !about.is_file() && !is_block_device {
        return None;
    }
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let (flags, mount_id) = parse_fdinfo(&info);
    Some(OpenFile {
        fd,
        path: link.strip_suffix(" (deleted)").unwrap_or(link).to_owned(),
        deleted: about.nlink() == 0,
        identity: identity(&about),
        is_block_device,
        image_locked: has_image_locks(&info),
        writable: flags & 0o3 != 0,
        direct: flags & u64::from(libc::O_DIRECT.cast_unsigned()) != 0,
        mount_id,
    })
}

/// `flags` (octal) and `mnt_id` of an `fdinfo` file.
fn parse_fdinfo(text: &str) -> (u64, Option<u64>) {
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    let flags = field("flags:")
        .and_then(|v| u64::from_str_radix(v, 8).ok())
        .unwrap_or(0);
    (flags, field("mnt_id:").and_then(|v| v.parse().ok()))
}

/// QEMU locks single bytes of an image: 100 and up for what it does, 200 and up for what it allows
/// others to do (`RAW_LOCK_PERM_BASE` and `RAW_LOCK_SHARED_BASE`, since 2.10), with locks that belong to the open file.
fn has_image_locks(info: &str) -> bool {
    info.lines()
        .filter_map(|line| line.strip_prefix("lock:"))
        .any(|lock| {
            let mut fields = lock.split_whitespace().rev();
            let (end, start) = (fields.next(), fields.next());
            let image_byte = |field: Option<&str>| {
                field
                    .and_then(|f| f.parse::<u64>().ok())
                    .is_some_and(|byte| (100..300).contains(&byte))
            };
            lock.contains("OFDLCK") && image_byte(start) && image_byte(end)
        })
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
    fn fdinfo_files() {
        assert_eq!(
            parse_fdinfo("pos:\t0\nflags:\t02140002\nmnt_id:\t27\nino:\t5\n"),
            (0o2_140_002, Some(27))
        );
        assert_eq!(parse_fdinfo(""), (0, None));
        assert_eq!(parse_fdinfo("flags:\t9\nmnt_id:\tx\n"), (0, None));
    }

    #[test]
    fn image_locks() {
        assert!(has_image_locks(
            "flags:\t02\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9977970 100 101\n"
        ));
        assert!(!has_image_locks(
            "lock:\t1: POSIX  ADVISORY  WRITE 3015 00:27:33 100 100\n"
        ));
        assert!(!has_image_locks(
            "lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9977970 0 EOF\n"
        ));
        assert!(!has_image_locks("flags:\t02\n"));
    }

    #[test]
    fn this_process_is_not_qemu() {
        assert_eq!(identify(std::process::id(), true), None);
        assert!(identify(u32::MAX, true).is_none());
    }

    #[test]
    fn a_loader_that_is_given_a_fifo_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a directory");
        let (loader, fifo) = (folder.path().join("ld-linux-x"), folder.path().join("fifo"));
        // By a process of its own: nobody else has the program open for writing then.
        let copied = Command::new("cp").arg("/bin/cat").arg(&loader).status();
        assert!(copied.expect("it runs").success());
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
        let mut waiting = Command::new(&loader).arg(&fifo).spawn().expect("it runs");
        let pid = waiting.id();
        let (told, answer) = mpsc::channel();
        std::thread::spawn(move || told.send(identify(pid, true)));
        let found = answer.recv_timeout(Duration::from_secs(10));
        waiting.kill().expect("it still runs");
        waiting.wait().expect("it ends");
        assert_eq!(found, Ok(None));
    }

    #[test]
    fn open_files_of_this_process() {
        let file = tempfile::tempfile().expect("a temporary file");
        let inode = file.metadata().expect("stat").ino();
        let open = open_files(std::process::id()).expect("own files are listed");
        let found = open
            .files
            .iter()
            .find(|f| f.identity.1 == inode)
            .expect("the file is listed");
        assert!(found.deleted && !found.direct && found.mount_id.is_some());
    }
}
