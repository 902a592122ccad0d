//! The guest's whole user space: busybox, a few programs with their libraries, and modules.
//!
//! Built once for each kernel and kept in the cache under a key made of everything that goes in
//! (path, length and modification time of each file, and the text of the scripts).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::cache_dir::{self, CacheError, Key};
use crate::cpio_archive::CpioArchive;
use crate::external_tool::{Tool, ToolError, find_program};
use crate::kernel_image::KernelImage;
use crate::kernel_modules::{KernelModules, NoSuchModule};

/// The guest's first process: mounts, loads modules, obeys the command channel.
const INIT: &str = include_str!("guest_init.sh");

/// Programs that are copied from this machine, as far as it has them: not every release has those of every file
/// system, and who needs one looks for its package.
const PROGRAMS: [&str; 23] = [
    "fio",
    "blktrace",
    "blkparse",
    "mke2fs",
    "e2fsck",
    "tune2fs",
    "mkfs.xfs",
    "xfs_repair",
    "mkfs.jfs",
    "jfs_fsck",
    "mkreiserfs",
    "reiserfsck",
    "mkfs.btrfs",
    "btrfs",
    "mkfs.f2fs",
    "fsck.f2fs",
    "fstrim",
    "chattr",
    "filefrag",
    "xfs_io",
    "losetup",
    "mount",
    "taskset",
];

/// Modules that a guest can load, each with its dependencies. Those that one kernel
/// series lacks (reiserfs in newer ones) are left out there.
const MODULES: [&str; 33] = [
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_scsi",
    "virtio_rng",
    "sd_mod",
    "ata_piix",
    "ahci",
    "nvme",
    "ext4",
    "xfs",
    "jfs",
    "reiserfs",
    "btrfs",
    "f2fs",
    "loop",
    "9pnet_virtio",
    "9p",
    "dm_mod",
    "dm_flakey",
    "dm_delay",
    "null_blk",
    "scsi_debug",
    "bfq",
    "mq_deadline",
    "kyber_iosched",
    "raid0",
    "raid1",
    "md_mod",
    "brd",
    "overlay",
    "virtio_net",
    "vsock_loopback",
];

/// An initramfs could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitramfsError {
    /// A program that goes in is not on this machine.
    #[error("find the program {0} for the guest")]
    NoProgram(String),
    /// A file cannot be read or written.
    #[error("copy {path} into the initramfs")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// `ldd` or `xz` failed.
    #[error("prepare {path} for the initramfs")]
    Tool {
        /// Which file.
        path: PathBuf,
        /// What the program said.
        source: ToolError,
    },
    /// A module that every guest needs is missing.
    #[error(transparent)]
    Module(#[from] NoSuchModule),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A built initramfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initramfs {
    /// The cpio archive.
    pub path: PathBuf,
}

/// What goes in: place in the guest → file of this machine.
#[derive(Debug, Default)]
struct Contents {
    files: BTreeMap<String, PathBuf>,
    texts: BTreeMap<String, (u32, String)>,
    links: BTreeMap<String, String>,
}

/// The initramfs for a kernel, from the cache or built.
///
/// # Errors
/// A program or module is missing, or a file cannot be read or written.
pub fn obtain(kernel: &KernelImage) -> Result<Initramfs, InitramfsError> {
    let contents = gather(kernel)?;
    let name = contents.name(&kernel.release)?;
    let folder = cache_dir::entry(&cache_dir::root()?, &name, |folder| {
        contents.write(&folder.join("initramfs.cpio"))
    })?;
    Ok(Initramfs {
        path: folder.join("initramfs.cpio"),
    })
}

/// Bytes of an initramfs, at most.
pub const MAX_BYTES: u64 = 128 << 20;

/// Whether a cache has one for a kernel. Of other programs it may be another one.
pub fn is_cached(root: &Path, release: &str) -> bool {
    let begin = format!("initramfs-{release}-");
    let mut entries = root.read_dir().into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with(&begin))
}

fn gather(kernel: &KernelImage) -> Result<Contents, InitramfsError> {
    let mut contents = Contents::default();
    contents.text("/init", 0o755, INIT.to_owned());
    add_busybox(&mut contents)?;
    add_programs(&mut contents)?;
    add_modules(&mut contents, kernel)?;
    Ok(contents)
}

fn add_busybox(contents: &mut Contents) -> Result<(), InitramfsError> {
    let busybox = program("busybox")?;
    let applets =
        Tool::new("busybox")
            .arg("--list")
            .run()
            .map_err(|source| InitramfsError::Tool {
                path: busybox.clone(),
                source,
            })?;
    contents.files.insert("/bin/busybox".to_owned(), busybox);
    for applet in applets
        .lines()
        .filter(|applet| !["busybox", "init"].contains(applet))
    {
        contents
            .links
            .insert(format!("/bin/{applet}"), "busybox".to_owned());
    }
    Ok(())
}

fn add_programs(contents: &mut Contents) -> Result<(), InitramfsError> {
    let mut libraries = BTreeSet::new();
    for (name, path) in PROGRAMS
        .iter()
        .filter_map(|name| Some((name, find_program(name)?)))
    {
        libraries.extend(libraries_of(&path)?);
        contents.files.insert(format!("/usr/bin/{name}"), path);
    }
    for kind in ["ext2", "ext3", "ext4"] {
        contents
            .links
            .insert(format!("/usr/bin/mkfs.{kind}"), "mke2fs".to_owned());
    }
    for library in libraries {
        contents
            .files
            .insert(library.to_string_lossy().into_owned(), library);
    }
    let config = Path::new("/etc/mke2fs.conf");
    if config.exists() {
        contents
            .files
            .insert("/etc/mke2fs.conf".to_owned(), config.to_owned());
    }
    Ok(())
}

fn add_modules(contents: &mut Contents, kernel: &KernelImage) -> Result<(), InitramfsError> {
    let failed = |source| InitramfsError::File {
        path: kernel.modules.clone(),
        source,
    };
    let modules = KernelModules::read(&kernel.modules).map_err(failed)?;
    for name in ["virtio_pci", "virtio_console"] {
        modules.load_order(name)?;
    }
    for name in MODULES {
        let Ok(files) = modules.load_order(name) else {
            continue;
        };
        let mut order = String::new();
        for file in files {
            let place = format!("/lib/modules/{}", file.trim_end_matches(".xz"));
            order.push_str(&place);
            order.push('\n');
            contents.files.insert(place, kernel.modules.join(file));
        }
        contents.text(&format!("/lib/load/{name}"), 0o644, order);
    }
    Ok(())
}

fn program(name: &str) -> Result<PathBuf, InitramfsError> {
    find_program(name).ok_or_else(|| InitramfsError::NoProgram(name.to_owned()))
}

/// Shared libraries and the loader, as `ldd` names them.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, InitramfsError> {
    let listing = Tool::new("ldd")
        .arg(program)
        .run()
        .map_err(|source| InitramfsError::Tool {
            path: program.to_owned(),
            source,
        })?;
    let path = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    Ok(listing.lines().filter_map(path).collect())
}

/// Shared libraries of a program that may have none.
pub fn libraries_of_any(program: &Path) -> Vec<PathBuf> {
    libraries_of(program).unwrap_or_default()
}

/// The same as a guest's own files: the place there, which is that on this machine, and the file.
#[must_use]
pub fn libraries_in_place(program: &Path) -> Vec<(String, PathBuf)> {
    let libraries = libraries_of_any(program).into_iter();
    libraries
        .map(|library| (library.to_string_lossy().into_owned(), library))
        .collect()
}

impl Contents {
    fn text(&mut self, place: &str, mode: u32, text: String) {
        self.texts.insert(place.to_owned(), (mode, text));
    }

    /// The entry's name in the cache.
    fn name(&self, release: &str) -> Result<String, CacheError> {
        let mut key = Key::default();
        key.add(&(&self.texts, &self.links));
        for (place, path) in &self.files {
            key.add_file(&(place, path), path)?;
        }
        Ok(key.name(&format!("initramfs-{release}")))
    }

    fn write(&self, path: &Path) -> Result<(), InitramfsError> {
        let failed = |source| InitramfsError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::create(path).map_err(failed)?;
        let mut archive = CpioArchive::new(BufWriter::with_capacity(1 << 20, file));
        for folder in self.folders() {
            archive.folder(&folder).map_err(failed)?;
        }
        for (place, source_path) in &self.files {
            let mode = if place.ends_with(".ko") { 0o644 } else { 0o755 };
            archive
                .file(place, mode, &read_plain(source_path)?)
                .map_err(failed)?;
        }
        for (place, (mode, text)) in &self.texts {
            archive
                .file(place, *mode, text.as_bytes())
                .map_err(failed)?;
        }
        for (place, target) in &self.links {
            archive.symlink(place, target).map_err(failed)?;
        }
        archive.finish().map_err(failed)?;
        Ok(())
    }

    /// Every parent folder, outer ones first.
    fn folders(&self) -> BTreeSet<String> {
        let mut folders: BTreeSet<String> =
            ["/dev", "/proc", "/sys", "/tmp", "/run", "/mnt", "/root"]
                .map(str::to_owned)
                .into();
        let places = self
            .files
            .keys()
            .chain(self.texts.keys())
            .chain(self.links.keys());
        for place in places {
            let parents = Path::new(place).ancestors().skip(1);
            folders.extend(
                parents
                    .map(|parent| parent.to_string_lossy().into_owned())
                    .filter(|p| p != "/"),
            );
        }
        folders
    }
}

/// A file's bytes; modules that the package compressed are unpacked here, not under TCG.
fn read_plain(path: &Path) -> Result<Vec<u8>, InitramfsError> {
    let failed = |source| InitramfsError::File {
        path: path.to_owned(),
        source,
    };
    if path.extension().is_none_or(|extension| extension != "xz") {
        return std::fs::read(path).map_err(failed);
    }
    let folder = tempfile::tempdir().map_err(failed)?;
    let copy = folder.path().join("module.ko.xz");
    std::fs::copy(path, &copy).map_err(failed)?;
    Tool::new("xz")
        .arg("-d")
        .arg(&copy)
        .run()
        .map_err(|source| InitramfsError::Tool {
            path: path.to_owned(),
            source,
        })?;
    std::fs::read(folder.path().join("module.ko")).map_err(failed)
}

/// Writes a small archive with more files for one guest; the kernel unpacks it after the first.
///
/// `files`: place in the guest and file of this machine; all become executable.
///
/// # Errors
/// A file cannot be read, or the archive not written.
pub fn write_overlay(path: &Path, files: &[(String, PathBuf)]) -> Result<(), InitramfsError> {
    let mut contents = Contents::default();
    contents.files.extend(files.iter().cloned());
    contents.write(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::GuestFsKind;

    #[test]
    fn every_check_of_a_file_system_is_in_the_guest() {
        for kind in GuestFsKind::ALL {
            let command = kind.fsck_command("", "/dev/vda");
            let program = command.split(' ').next().unwrap_or_default();
            assert!(PROGRAMS.contains(&program), "{kind}: {program}");
        }
    }
}
