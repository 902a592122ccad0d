//! What a thread can no longer do, each tried by a thread of the test.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::process::Command;

use nix::fcntl::{AT_FDCWD, OFlag, open, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

use super::*;

/// Enters the sandbox in a thread and tries something there.
fn within<R: Send + 'static>(sandbox: &Sandbox, attempt: impl FnOnce() -> R + Send + 'static) -> R {
    let sandbox = sandbox.clone();
    let thread = thread::spawn(move || {
        sandbox.enter().unwrap();
        attempt()
    });
    thread.join().unwrap()
}

fn is_root() -> bool {
    let is_root = Uid::effective().is_root();
    if !is_root {
        eprintln!("skipped: only root can become another user");
    }
    is_root
}

fn opened(path: &str, flags: OFlag) -> Result<(), i32> {
    let done = open(path, flags | OFlag::O_CLOEXEC, Mode::S_IRUSR);
    done.map(drop).map_err(|error| error as i32)
}

/// A system call that takes numbers, or pointers to nothing.
fn called(number: libc::c_long, args: [libc::c_long; 3]) -> Result<(), i32> {
    // SAFETY: no call in these tests gets an address that something lies at.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2]) };
    match io::Error::last_os_error().raw_os_error() {
        Some(error) if result < 0 => Err(error),
        _ => Ok(()),
    }
}

#[test]
fn a_recorder_is_its_user_and_has_its_folder() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let user = User::of_its_own().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(user.uid), Some(user.gid)).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(
        outside.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let held = File::open(folder.path()).unwrap();
    let sandbox = Sandbox::new(Role::Recorder, Some(user), &[]).unwrap();
    let sandbox = sandbox
        .with_folders(&[held.as_fd()], &["/proc/stat"])
        .unwrap();
    let (inside, beside) = (folder.path().join("file"), outside.path().join("file"));
    within(&sandbox, move || {
        assert_eq!(Uid::current().as_raw(), user.uid);
        fs::write(&inside, "x").unwrap();
        assert_eq!(fs::read(&inside).unwrap(), b"x");
        // As a bundle's files are: glibc's own `rename` and `unlink` are other system calls.
        let renamed = inside.with_extension("too");
        renameat(AT_FDCWD, &inside, AT_FDCWD, &renamed).unwrap();
        unlinkat(AT_FDCWD, &renamed, UnlinkatFlags::NoRemoveDir).unwrap();
        assert!(fs::read("/etc/shadow").is_err());
        // Where file permissions allow it, Landlock forbids it.
        if landlock::version().is_some() {
            assert_eq!(opened("/etc/passwd", OFlag::O_RDONLY), Err(libc::EACCES));
            assert!(fs::write(&beside, "x").is_err());
            assert!(fs::read("/proc/stat").is_ok());
        }
        for (name, number, args) in [
            ("setuid", libc::SYS_setuid, [0, 0, 0]),
            ("setresuid", libc::SYS_setresuid, [0, 0, 0]),
            ("setfsuid", libc::SYS_setfsuid, [0, 0, 0]),
            (
                "ptrace",
                libc::SYS_ptrace,
                [libc::PTRACE_ATTACH.into(), 1, 0],
            ),
            (
                "socket",
                libc::SYS_socket,
                [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0],
            ),
            ("connect", libc::SYS_connect, [-1, 0, 0]),
            ("io_uring_setup", libc::SYS_io_uring_setup, [4, 0, 0]),
            ("memfd_create", libc::SYS_memfd_create, [0, 0, 0]),
            ("kill", libc::SYS_kill, [1, 0, 0]),
            ("BPF_PROG_LOAD", libc::SYS_bpf, [5, 0, 0]),
            ("unshare", libc::SYS_unshare, [0x1000_0000, 0, 0]),
            ("mount", libc::SYS_mount, [0, 0, 0]),
            ("execve", libc::SYS_execve, [0, 0, 0]),
            ("perf_event_open", libc::SYS_perf_event_open, [0, 0, 0]),
            ("chmod", libc::SYS_fchmod, [0, 0o777, 0]),
        ] {
            assert_eq!(called(number, args), Err(libc::EPERM), "{name}");
        }
        assert!(Command::new("/bin/true").status().is_err());
        // Threads it may have.
        assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
    });
}

#[test]
fn what_becomes_code_is_refused() {
    let sandbox = Sandbox::new(Role::Recorder, None, &[]).unwrap();
    let refused = within(&sandbox, || {
        // SAFETY: where it is granted, it is unused memory.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        memory == libc::MAP_FAILED
    });
    assert!(refused);
}

#[test]
fn a_watcher_opens_nothing() {
    let sandbox = Sandbox::new(Role::Watcher, None, &[]).unwrap();
    within(&sandbox, || {
        assert!(fs::metadata("/proc/self/exe").is_ok());
        for path in ["/proc/self/status", "/etc/passwd"] {
            assert_eq!(opened(path, OFlag::O_RDONLY), Err(libc::EPERM), "{path}");
        }
        assert_eq!(called(libc::SYS_openat2, [0, 0, 0]), Err(libc::EPERM));
        assert_eq!(
            called(libc::SYS_process_vm_readv, [1, 0, 0]),
            Err(libc::EPERM)
        );
        assert_eq!(called(libc::SYS_pidfd_getfd, [0, 0, 0]), Err(libc::EPERM));
        assert_eq!(called(libc::SYS_socket, [1, 1, 0]), Err(libc::EPERM));
    });
}

#[test]
fn a_keeper_opens_places_and_folders_only() {
    let sandbox = Sandbox::new(Role::Keeper, None, &[]).unwrap();
    within(&sandbox, || {
        assert_eq!(opened("/etc/passwd", OFlag::O_PATH), Ok(()));
        assert_eq!(opened("/etc", OFlag::O_RDONLY | OFlag::O_DIRECTORY), Ok(()));
        for flags in [
            OFlag::O_RDONLY,
            OFlag::O_WRONLY,
            OFlag::O_RDWR | OFlag::O_TMPFILE,
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CREAT,
        ] {
            assert_eq!(opened("/etc/passwd", flags), Err(libc::EPERM), "{flags:?}");
        }
        let inet = [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0];
        assert_eq!(called(libc::SYS_socket, inet), Err(libc::EPERM));
        assert_eq!(called(libc::SYS_setuid, [0, 0, 0]), Err(libc::EPERM));
        assert_eq!(called(libc::SYS_fchmod, [0, 0, 0]), Err(libc::EPERM));
    });
}

#[test]
fn threads_that_have_given_up_nothing_are_counted() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let waiting = thread::spawn(move || receiver.recv());
    assert!(n_free_threads() > 0);
    drop(sender);
    assert!(waiting.join().unwrap().is_err());
}
