//! The Debian packages that guests and host file systems need.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::external_tool::{Tool, ToolError, find_program};

/// Programs that the rig runs, and the package that has each.
const RUN: [(&str, &str); 3] = [
    ("qemu-img", "qemu-utils"),
    ("losetup", "mount"),
    ("fstrim", "util-linux"),
];
/// Those that guests are made of and booted with.
const BOOT: [(&str, &str); 8] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("fio", "fio"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("ldd", "libc-bin"),
    ("dpkg-deb", "dpkg"),
    ("apt-get", "apt"),
];
/// Those that make a file system, by its name.
const FILE_SYSTEMS: [(&str, &str, &str); 8] = [
    ("xfs", "mkfs.xfs", "xfsprogs"),
    ("btrfs", "mkfs.btrfs", "btrfs-progs"),
    ("ext2", "mke2fs", "e2fsprogs"),
    ("ext3", "mke2fs", "e2fsprogs"),
    ("ext4", "mke2fs", "e2fsprogs"),
    ("jfs", "mkfs.jfs", "jfsutils"),
    ("reiserfs", "mkreiserfs", "reiserfsprogs"),
    ("f2fs", "mkfs.f2fs", "f2fs-tools"),
];
/// Those that only tests use.
const TEST: [(&str, &str); 7] = [
    ("blktrace", "blktrace"),
    ("strace", "strace"),
    ("mariadbd", "mariadb-server-core"),
    ("my_print_defaults", "mariadb-client-core"),
    ("sysbench", "sysbench"),
    ("systemctl", "systemd"),
    ("udevadm", "udev"),
];

/// Why the packages are not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackagesError {
    /// They are missing and this user may not install them: exit code 4.
    #[error("find the programs of the Debian packages {}; install them with: {}", packages.join(" "), install_line(packages))]
    Missing {
        /// Names of the packages.
        packages: Vec<String>,
    },
    /// apt failed.
    #[error("install {}", packages.join(" "))]
    Install {
        /// Names of the packages.
        packages: Vec<String>,
        /// What apt said.
        source: ToolError,
    },
}

fn is_here(program: &str) -> bool {
    find_program(program).is_some()
}

/// Packages whose program is not on this machine, of all that guests, file systems and tests need.
#[must_use]
pub fn missing() -> Vec<String> {
    missing_of(&all_needed(), is_here)
}

fn all_needed() -> Vec<(&'static str, &'static str)> {
    let all = FILE_SYSTEMS.map(|(name, ..)| name);
    [needed(&all, true), TEST.to_vec()].concat()
}

/// The same of what these file systems need, and, if guests are booted, these.
pub fn missing_for(file_systems: &[&str], boots: bool) -> Vec<String> {
    missing_of(&needed(file_systems, boots), is_here)
}

fn needed(file_systems: &[&str], boots: bool) -> Vec<(&'static str, &'static str)> {
    let own = FILE_SYSTEMS.iter();
    let own = own.filter(|(name, ..)| file_systems.contains(name));
    let own = own.map(|(_, program, package)| (*program, *package));
    let boot = BOOT.iter().filter(|_| boots).copied();
    RUN.into_iter().chain(boot).chain(own).collect()
}

/// Packages of the programs that are not there, each once.
pub fn missing_of(programs: &[(&str, &str)], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut packages: Vec<String> = Vec::new();
    for (program, package) in programs {
        if !is_there(program) && !packages.iter().any(|known| known == package) {
            packages.push((*package).to_owned());
        }
    }
    packages
}

/// What is to be installed now; nothing where all is there.
///
/// # Errors
/// [`PackagesError::Missing`] where something is missing that may not be installed.
pub fn to_install(missing: Vec<String>, may_install: bool) -> Result<Vec<String>, PackagesError> {
    if missing.is_empty() || may_install {
        return Ok(missing);
    }
    Err(PackagesError::Missing { packages: missing })
}

/// The exact line that installs packages.
#[must_use]
pub fn install_line(packages: &[String]) -> String {
    format!(
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

/// Makes sure that every package is there; installs what is missing when this is root.
///
/// `progress` hears what is about to be installed.
///
/// # Errors
/// [`PackagesError::Missing`] for an ordinary user or a machine without apt, else apt's failure.
pub fn install(progress: impl Fn(&str)) -> Result<(), PackagesError> {
    install_programs(&all_needed(), progress)
}

/// The same for programs that the caller names, each with its package.
///
/// # Errors
/// As [`install`].
pub fn install_programs(
    programs: &[(&str, &str)],
    progress: impl Fn(&str),
) -> Result<(), PackagesError> {
    install_named(missing_of(programs, is_here), progress)
}

/// The same for packages by name, by what dpkg says is installed: libraries have no program of their own, and a program
/// may move from one package to another.
///
/// # Errors
/// As [`install`].
pub fn install_packages(names: &[&str], progress: impl Fn(&str)) -> Result<(), PackagesError> {
    install_named(not_installed(names, &dpkg_status(names)), progress)
}

/// A line `name status` for each package that dpkg has heard of; nothing without dpkg.
fn dpkg_status(names: &[&str]) -> String {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\\n"])
        .args(names)
        .output();
    // It fails where one is unknown, and yet tells of the others.
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn not_installed(names: &[&str], status: &str) -> Vec<String> {
    let is_there = |name: &&str| {
        let installed = format!("{name} installed");
        status.lines().any(|line| line == installed)
    };
    let missing = names.iter().filter(|name| !is_there(name));
    missing.map(|name| (*name).to_owned()).collect()
}

/// Installs packages that are missing, if there are any, when this is root.
///
/// # Errors
/// As [`install`].
pub fn install_named(packages: Vec<String>, progress: impl Fn(&str)) -> Result<(), PackagesError> {
    if packages.is_empty() {
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() || find_program("apt-get").is_none() {
        return Err(PackagesError::Missing { packages });
    }
    progress(&format!("installing {}", packages.join(" ")));
    match apt_install(&packages) {
        Ok(()) => Ok(()),
        Err(source) => Err(PackagesError::Install { packages, source }),
    }
}

fn apt_install(packages: &[String]) -> Result<(), ToolError> {
    let _turn = turn();
    read_lists()?;
    Tool::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args([
            "install",
            "-q",
            "-y",
            "--no-install-recommends",
            "-o",
            "DPkg::Lock::Timeout=120",
        ])
        .args(packages)
        .run()?;
    Ok(())
}

/// Reads apt's lists anew, as root; another apt that runs is waited for.
///
/// # Errors
/// apt failed.
pub fn update_lists() -> Result<(), ToolError> {
    let _turn = turn();
    read_lists()
}

/// One apt at a time in this process: it waits for dpkg's lock, but not for that of its lists.
fn turn() -> MutexGuard<'static, ()> {
    static APT: Mutex<()> = Mutex::new(());
    APT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_lists() -> Result<(), ToolError> {
    Tool::new("apt-get")
        .args(["update", "-q", "-o", "DPkg::Lock::Timeout=120"])
        .run()?;
    Ok(())
}

/// Whether apt has package lists at all (a fresh container image has none).
#[must_use]
pub fn has_lists() -> bool {
    Path::new("/var/lib/apt/lists")
        .read_dir()
        .is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_once_and_only_installed_when_told_to() {
        let all = needed(&["xfs", "btrfs", "ext4", "jfs"], true);
        let has_all = missing_of(&all, |_| true);
        assert!(has_all.is_empty());
        assert!(to_install(has_all, false).unwrap().is_empty());
        let bare = missing_of(&all, |program| !program.starts_with("mkfs."));
        assert_eq!(bare, ["xfsprogs", "btrfs-progs", "jfsutils"]);
        assert_eq!(to_install(bare.clone(), true).unwrap(), bare);
        let error = to_install(bare, false).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with(" xfsprogs btrfs-progs jfsutils"),
            "{error}"
        );
        let two = [("dd", "coreutils"), ("cp", "coreutils")];
        assert_eq!(missing_of(&two, |_| false), ["coreutils"]);
    }

    #[test]
    fn a_file_system_that_nobody_asks_for_needs_no_package() {
        let packages = |needed: Vec<(&str, &str)>| missing_of(&needed, |_| false);
        let few = packages(needed(&["ext4", "ext3"], false));
        assert_eq!(few, ["qemu-utils", "mount", "util-linux", "e2fsprogs"]);
        let jfs = packages(needed(&["jfs"], true));
        assert!(jfs.contains(&String::from("jfsutils")) && jfs.contains(&String::from("fio")));
        assert!(!jfs.contains(&String::from("reiserfsprogs")), "{jfs:?}");
    }

    #[test]
    fn a_package_counts_once_dpkg_has_it_whole() {
        let status = "llvm-22 installed\nlibz3-dev config-files\nzlib1g-dev half-installed\n";
        let names = ["llvm-22", "llvm-22-dev", "libz3-dev", "zlib1g-dev"];
        let missing = not_installed(&names, status);
        assert_eq!(missing, ["llvm-22-dev", "libz3-dev", "zlib1g-dev"]);
        // The real database: it holds dpkg itself.
        let real = dpkg_status(&["dpkg", "no-such-package"]);
        assert_eq!(
            not_installed(&["dpkg", "no-such-package"], &real),
            ["no-such-package"]
        );
    }

    #[test]
    fn the_error_has_the_line_to_type() {
        let error = PackagesError::Missing {
            packages: vec!["fio".into(), "xfsprogs".into()],
        };
        assert_eq!(
            error.to_string(),
            "find the programs of the Debian packages fio xfsprogs; install them with: \
             sudo apt-get update && sudo apt-get install -y --no-install-recommends fio xfsprogs"
        );
    }
}
