//! A host file system on a loop device over a sparse file, on a modelled disk, or on a device that the user named;
//! removed with its owner.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::external_tool::{Tool, ToolError};
use crate::host_device::{HostDevice, LoopFile};
use crate::loop_device::fill;
use crate::modelled_disk::{ModelledDisk, ModelledDiskError, ModelledDiskSpec};
use crate::named_device::NamedDevice;
use crate::stack::HostFsKind;

/// Name of the file under the loop device, in a folder of its own.
const BACKING: &str = "backing";

/// A host file system could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostFsError {
    /// The backing file or mount point.
    #[error("make the backing file in {folder}")]
    Backing {
        /// Where.
        folder: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// losetup, mkfs or mount failed.
    #[error("make a {kind} file system on a block device")]
    Tool {
        /// Which file system.
        kind: HostFsKind,
        /// What the program said.
        source: ToolError,
    },
    /// The modelled disk below it.
    #[error(transparent)]
    Modelled(#[from] ModelledDiskError),
}

/// What to make on a loop device.
#[derive(Clone, Debug)]
pub struct HostFsSpec {
    /// Which file system.
    pub kind: HostFsKind,
    /// Size of the sparse backing file, bytes.
    pub size_bytes: u64,
    /// Whether the loop device reads and writes its file with O_DIRECT (not on tmpfs).
    pub direct_io: bool,
    /// Folder of the backing file: a disk's, or a tmpfs such as `/dev/shm`.
    pub backing_folder: PathBuf,
    /// Mount options, comma-separated; may be empty.
    pub mount_options: String,
    /// Whether the backing file is written in full first, so that nothing below the loop device has to
    /// be allocated later.
    pub is_filled: bool,
    /// Logical blocks of the loop device, bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// Whether there is a second loop device between the file system's and the file, which a cgroup can
    /// make slow: then the time of requests is the upper device's, as of a slow disk.
    pub layered: bool,
    /// The disk that the loop device is, in place of a file: then `direct_io`, `is_filled`, `sector_bytes` and
    /// `layered` say nothing.
    pub modelled: Option<ModelledDiskSpec>,
}

impl HostFsSpec {
    /// A file system of 2 GiB over a file in the temporary folder.
    #[must_use]
    pub fn new(kind: HostFsKind) -> Self {
        Self {
            kind,
            size_bytes: 2 << 30,
            direct_io: false,
            backing_folder: std::env::temp_dir(),
            mount_options: String::new(),
            is_filled: false,
            sector_bytes: 512,
            layered: false,
            modelled: None,
        }
    }
}

/// A mounted file system; dropping it unmounts it, detaches the loop device and removes the file. A device
/// that the user named stays as it is.
#[derive(Debug)]
pub struct HostFs {
    kind: HostFsKind,
    // In this order: unmount, detach, remove.
    mount: Mounted,
    device: HostDevice,
    _folder: TempDir,
}

impl HostFs {
    /// Makes and mounts it on a loop device. Needs root.
    ///
    /// # Errors
    /// No space, no loop device, or mkfs or mount refused.
    pub fn create(spec: &HostFsSpec) -> Result<Self, HostFsError> {
        let failed = |source| HostFsError::Backing {
            folder: spec.backing_folder.clone(),
            source,
        };
        let tool = |source| HostFsError::Tool {
            kind: spec.kind,
            source,
        };
        let folder = folder_in(&spec.backing_folder).map_err(failed)?;
        if let Some(modelled) = &spec.modelled {
            let disk = ModelledDisk::start(modelled, spec.size_bytes, folder.path())?;
            // mkfs is no part of what is measured.
            disk.pace(false)?;
            let device = HostDevice::Modelled(disk);
            let fs = Self::on(device, None, spec.kind, &spec.mount_options, folder)?;
            if let Some(disk) = fs.modelled() {
                disk.pace(true)?;
            }
            return Ok(fs);
        }
        let backing = folder.path().join(BACKING);
        File::create(&backing)
            .and_then(|file| file.set_len(spec.size_bytes))
            .map_err(failed)?;
        if spec.is_filled {
            fill(&backing, spec.size_bytes).map_err(tool)?;
        }
        let (direct_io, sectors) = (spec.direct_io, spec.sector_bytes);
        let device = LoopFile::attach(&backing, direct_io, sectors, spec.layered).map_err(tool)?;
        let device = HostDevice::LoopFile(device);
        Self::on(device, None, spec.kind, &spec.mount_options, folder)
    }

    /// Makes and mounts it on a device that the user named, in its first `size_bytes`, so that it is alike
    /// on partitions of every size. The mount point lies in `folder`. Needs root.
    ///
    /// # Errors
    /// The folder cannot be used, or mkfs or mount refused.
    pub fn create_on(
        device: Arc<NamedDevice>,
        kind: HostFsKind,
        size_bytes: u64,
        mount_options: &str,
        folder: &Path,
    ) -> Result<Self, HostFsError> {
        let own = folder_in(folder).map_err(|source| HostFsError::Backing {
            folder: folder.to_owned(),
            source,
        })?;
        let device = HostDevice::Named(device);
        Self::on(device, Some(size_bytes), kind, mount_options, own)
    }

    fn on(
        device: HostDevice,
        size_bytes: Option<u64>,
        kind: HostFsKind,
        mount_options: &str,
        folder: TempDir,
    ) -> Result<Self, HostFsError> {
        let failed = |source| HostFsError::Backing {
            folder: folder.path().to_owned(),
            source,
        };
        let tool = |source| HostFsError::Tool { kind, source };
        make_fs(kind, &device.path(), size_bytes).map_err(tool)?;
        let point = folder.path().join("mnt");
        std::fs::create_dir(&point).map_err(failed)?;
        let mount = Mounted::mount(kind, mount_options, &device.path(), &point).map_err(tool)?;
        // QEMU may run as another user (libvirt's).
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).map_err(failed)?;
        Ok(Self {
            kind,
            mount,
            device,
            _folder: folder,
        })
    }

    /// Which file system it is.
    #[must_use]
    pub fn kind(&self) -> HostFsKind {
        self.kind
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount.point
    }

    /// The kernel's name of the device: `loop3`.
    #[must_use]
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// The kernel's name of the second loop device, if there is one.
    #[must_use]
    pub fn device_beneath(&self) -> Option<&str> {
        self.device.name_beneath()
    }

    /// The modelled disk that it lies on, if it lies on one.
    #[must_use]
    pub fn modelled(&self) -> Option<&ModelledDisk> {
        self.device.modelled()
    }

    /// The file under the loop device.
    #[must_use]
    pub fn backing_file(&self) -> Option<&Path> {
        self.device.backing_file()
    }

    /// Whether a loop device reads and writes its file with O_DIRECT.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    /// Writes back everything of this file system and waits for it.
    ///
    /// # Errors
    /// The folder cannot be opened, or writing back failed.
    pub fn sync(&self) -> io::Result<()> {
        let folder = File::open(&self.mount.point)?;
        nix::unistd::syncfs(folder).map_err(io::Error::from)
    }
}

impl Drop for HostFs {
    fn drop(&mut self) {
        if let Some(disk) = self.modelled() {
            // What is withheld would hold up the unmounting, and a slow disk would draw it out.
            let _ = disk.heal();
            let _ = disk.pace(false);
        }
    }
}

fn folder_in(folder: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("nestrace-host-")
        .tempdir_in(folder)
}

/// Whether the running kernel has a file system, or a module of it.
#[must_use]
pub fn kernel_has(kind: HostFsKind) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = |line: &str| line.split_whitespace().next_back() == Some(kind.word());
    known.lines().any(is_known) || {
        let modprobe = Tool::new("modprobe").args(["-n", "-q", kind.word()]);
        modprobe.run().is_ok()
    }
}

/// A mount; dropping it unmounts it.
#[derive(Debug)]
struct Mounted {
    point: PathBuf,
}

impl Mounted {
    fn mount(
        kind: HostFsKind,
        options: &str,
        device: &Path,
        point: &Path,
    ) -> Result<Self, ToolError> {
        let mut tool = Tool::new("mount").args(["-t", kind.word()]);
        if !options.is_empty() {
            tool = tool.args(["-o", options]);
        }
        tool.arg(device).arg(point).run()?;
        Ok(Self {
            point: point.to_owned(),
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A killed QEMU's last I/O may keep it busy for a moment.
        for _ in 0..50 {
            if umount2(&self.point, MntFlags::empty()).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        if let Err(error) = umount2(&self.point, MntFlags::MNT_DETACH) {
            eprintln!(
                "nestrace-lab: failed to unmount {}: {error}",
                self.point.display()
            );
        }
    }
}

/// Makes a file system on all of a device, or on its first `size_bytes`.
fn make_fs(kind: HostFsKind, device: &Path, size_bytes: Option<u64>) -> Result<(), ToolError> {
    mkfs(kind, device, size_bytes).run()?;
    Ok(())
}

fn mkfs(kind: HostFsKind, device: &Path, size_bytes: Option<u64>) -> Tool {
    // Whole MiB are whole blocks of every file system.
    let bytes = size_bytes.map(|bytes| bytes >> 20 << 20);
    // Nothing may be initialised lazily: its I/O would fall into a recording.
    match kind {
        HostFsKind::Ext2 | HostFsKind::Ext3 | HostFsKind::Ext4 => Tool::new("mke2fs")
            .args(["-q", "-F", "-t", kind.word()])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
            .arg(device)
            .args(bytes.map(|bytes| format!("{}K", bytes >> 10))),
        HostFsKind::Xfs => Tool::new("mkfs.xfs")
            .args(["-q", "-f", "-K"])
            .args(bytes.map(|bytes| format!("-dsize={bytes}")))
            .arg(device),
        HostFsKind::Btrfs => Tool::new("mkfs.btrfs")
            .args(["-q", "-f", "-K"])
            .args(bytes.map(|bytes| format!("--byte-count={bytes}")))
            .arg(device),
        // Their sizes are in blocks of 4 KiB.
        HostFsKind::Jfs => Tool::new("mkfs.jfs")
            .arg("-q")
            .arg(device)
            .args(bytes.map(|bytes| (bytes >> 12).to_string())),
        HostFsKind::Reiserfs => Tool::new("mkreiserfs")
            .args(["-q", "-f", "-f", "-b", "4096"])
            .arg(device)
            .args(bytes.map(|bytes| (bytes >> 12).to_string())),
    }
}
