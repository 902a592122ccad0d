//! Which processes are guests, and what they are called.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::TOOLS;
use crate::rig::{QEMU, Qemu, Running, directory, disk, guest, ready, sparse};
use nestrace_record::guest::{DiscoverError, Selection, discover};

#[test]
fn names_uuids_and_pids() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let unique = format!("nt-{}", std::process::id());
    let twin = format!("{unique}-twin");
    let uuid = format!("c7a5fdbd-edaf-9455-926a-{:012x}", std::process::id());
    let one = Qemu::start(dir.path(), &["-name", &unique, "-uuid", &uuid]);
    let twins = [
        Qemu::start(dir.path(), &["-name", &twin]),
        Qemu::start(dir.path(), &["-name", &twin]),
    ];
    let pids = |names: &[&str]| {
        let selection = Selection::Named(names.iter().map(|n| (*n).to_owned()).collect());
        discover(&selection).map(|d| d.topology.guests.iter().map(|g| g.pid).collect::<Vec<_>>())
    };
    assert_eq!(pids(&[&unique]).expect("by name"), [one.pid]);
    assert_eq!(pids(&[&uuid.to_uppercase()]).expect("by UUID"), [one.pid]);
    assert_eq!(
        pids(&[&format!("pid:{}", twins[1].pid), &unique]).expect("in order"),
        [twins[1].pid, one.pid]
    );
    match pids(&["no-such-guest"]) {
        Err(DiscoverError::UnknownGuest { running, .. }) => {
            assert!(running.contains(&unique), "{running:?}")
        }
        other => panic!("{other:?}"),
    }
    match pids(&[&twin]) {
        Err(DiscoverError::AmbiguousGuest { pids, .. }) => {
            // The kernel's numbers begin again at some time.
            let mut twins = [twins[0].pid, twins[1].pid];
            twins.sort_unstable();
            assert_eq!(pids, twins)
        }
        other => panic!("{other:?}"),
    }
    let own = std::process::id();
    assert!(matches!(
        pids(&[&format!("pid:{own}")]),
        Err(DiscoverError::UnknownGuest { .. })
    ));
    let everything = discover(&Selection::All).expect("all");
    assert!(
        everything
            .topology
            .guests
            .iter()
            .any(|g| g.pid == one.pid && g.disks.is_empty())
    );
}

#[test]
fn qemu_under_other_names() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let copy = dir.path().join("my-vmm");
    // By another process: a fork of a test beside would keep open what this one writes, and the kernel starts no such program.
    let copied = Command::new("cp").arg(QEMU).arg(&copy).status();
    assert!(copied.expect("cp starts").success());
    let name = |suffix: &str| format!("nt-{}-{suffix}", std::process::id());
    let (renamed, loaded) = (name("renamed"), name("loaded"));
    let copy = copy.to_str().expect("UTF-8");
    let by_copy = Qemu::start_with(
        &[copy],
        dir.path(),
        &[
            "-L",
            "/usr/share/qemu",
            "-L",
            "/usr/share/seabios",
            "-name",
            &renamed,
        ],
    );
    fs::remove_file(copy).expect("delete the executable");
    let by_loader = Qemu::start_with(
        &["/lib64/ld-linux-x86-64.so.2", QEMU],
        dir.path(),
        &[
            "-name",
            &loaded,
            "-L",
            "/usr/share/qemu",
            "-L",
            "/usr/share/seabios",
        ],
    );
    let found = discover(&Selection::All).expect("all");
    for (qemu, executable, name) in [
        (&by_copy, "my-vmm", &renamed),
        (&by_loader, "qemu-system-x86_64", &loaded),
    ] {
        let guest = found
            .topology
            .guests
            .iter()
            .find(|g| g.pid == qemu.pid)
            .unwrap_or_else(|| panic!("{name}: {found:#?}"));
        assert_eq!(
            (guest.name.as_str(), guest.executable.as_str()),
            (name.as_str(), executable)
        );
        assert!(guest.qemu_version.contains('.'), "{guest:?}");
    }
}

#[test]
fn guests_that_come_and_go() {
    if !ready(TOOLS) {
        return;
    }
    let churn = thread::spawn(|| {
        for _ in 0..12 {
            let child = Command::new(QEMU)
                .args(["-S", "-display", "none", "-machine", "q35,accel=tcg"])
                .spawn();
            let running = Running(child.expect("QEMU starts"));
            thread::sleep(Duration::from_millis(30));
            drop(running);
        }
    });
    while !churn.is_finished() {
        discover(&Selection::All).expect("whoever vanishes is left out");
    }
    churn.join().expect("the guests came and went");
}

#[test]
fn an_ordinary_user_is_told_what_is_hidden() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let image = dir.path().join("disk.img");
    sparse(&image, 4);
    let unique = format!("nt-{}-hidden", std::process::id());
    let drive = format!("file={},format=raw,if=virtio,id=d", image.display());
    let qemu = Qemu::start(dir.path(), &["-name", &unique, "-drive", &drive]);
    let found = thread::spawn(move || {
        // SAFETY: the system call itself (not glibc's wrapper) changes this thread alone, which does
        // nothing afterwards but look around.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(result, 0);
        discover(&Selection::Named(vec![unique]))
    })
    .join()
    .expect("no panic")
    .expect("it is listed");
    assert_eq!(guest(&found).pid, qemu.pid);
    assert_eq!(guest(&found).sources, ["command line"]);
    assert!(
        found
            .diagnostics
            .iter()
            .any(|d| d.message.contains("run as root")),
        "{:?}",
        found.diagnostics
    );
    let hidden = disk(&found, "d");
    assert!(hidden.not_followed.is_some() || !hidden.images.is_empty());
}
