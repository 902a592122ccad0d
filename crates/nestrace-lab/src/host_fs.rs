//! A host file system on a loop device over a sparse file, removed with its owner.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::external_tool::{Tool, ToolError};
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
    #[error("make a {kind} file system on a loop device")]
    Tool {
        /// Which file system.
        kind: HostFsKind,
        /// What the program said.
        source: ToolError,
    },
}

/// What to make.
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
    /// Whether the backing file is written in full first, so that nothing beneath the loop device has to
    /// be allocated later.
    pub is_filled: bool,
    /// Logical blocks of the loop device, bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// Whether there is a second loop device between the file system's and the file, which a cgroup can
    /// make slow: then the time of requests is the upper device's, as of a slow disk.
    pub layered: bool,
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
        }
    }
}

/// A mounted file system; dropping it unmounts it, detaches the loop device and removes the file.
#[derive(Debug)]
pub struct HostFs {
    kind: HostFsKind,
    // In this order: unmount, detach, remove.
    mount: Mounted,
    device: LoopDevice,
    beneath: Option<LoopDevice>,
    folder: TempDir,
    direct_io: bool,
}

impl HostFs {
    /// Makes and mounts it. Needs root.
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
        let folder = tempfile::Builder::new()
            .prefix("nestrace-host-")
            .tempdir_in(&spec.backing_folder)
            .map_err(failed)?;
        let backing = folder.path().join(BACKING);
        File::create(&backing)
            .and_then(|file| file.set_len(spec.size_bytes))
            .map_err(failed)?;
        if spec.is_filled {
            fill(&backing, spec.size_bytes).map_err(tool)?;
        }
        let (beneath, device) = attach(spec, &backing).map_err(tool)?;
        make_fs(spec.kind, &device.path()).map_err(tool)?;
        let point = folder.path().join("mnt");
        std::fs::create_dir(&point).map_err(failed)?;
        let mount = Mounted::mount(spec, &device.path(), &point).map_err(tool)?;
        // QEMU may run as another user (libvirt's).
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).map_err(failed)?;
        Ok(Self {
            kind: spec.kind,
            mount,
            device,
            beneath,
            folder,
            direct_io: spec.direct_io,
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

    /// The kernel's name of the loop device: `loop3`.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The kernel's name of the second loop device, if there is one.
    #[must_use]
    pub fn device_beneath(&self) -> Option<&str> {
        self.beneath.as_ref().map(LoopDevice::name)
    }

    /// The file under the loop device.
    #[must_use]
    pub fn backing_file(&self) -> PathBuf {
        self.folder.path().join(BACKING)
    }

    /// Whether the loop device reads and writes its file with O_DIRECT.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct_io
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

/// The device beneath, if there is to be one, and the file system's own.
fn attach(
    spec: &HostFsSpec,
    backing: &Path,
) -> Result<(Option<LoopDevice>, LoopDevice), ToolError> {
    let sectors = spec.sector_bytes;
    if !spec.layered {
        let device = LoopDevice::with_sectors(backing, spec.direct_io, sectors)?;
        return Ok((None, device));
    }
    let beneath = LoopDevice::with_sectors(backing, spec.direct_io, sectors)?;
    // With O_DIRECT, so that nothing is kept between the two.
    let device = LoopDevice::with_sectors(&beneath.path(), true, sectors)?;
    Ok((Some(beneath), device))
}

/// Writes a file of zeros in full and waits until it is on the disk.
pub(crate) fn fill(file: &Path, size_bytes: u64) -> Result<(), ToolError> {
    const BLOCK: u64 = 1 << 20;
    Tool::new("dd")
        .args(["if=/dev/zero", "bs=1M", "conv=fsync,notrunc", "status=none"])
        .arg(format!("count={}", size_bytes.div_ceil(BLOCK)))
        .arg(format!("of={}", file.display()))
        .run()?;
    Ok(())
}

/// An attached loop device; dropping it detaches it.
#[derive(Debug)]
pub struct LoopDevice {
    name: String,
}

impl LoopDevice {
    /// Attaches the first free loop device to `file`.
    ///
    /// # Errors
    /// losetup is missing or refused.
    pub fn attach(file: &Path, direct_io: bool) -> Result<Self, ToolError> {
        Self::with_sectors(file, direct_io, 512)
    }

    /// The same with logical blocks of `sector_bytes`.
    ///
    /// # Errors
    /// losetup is missing or refused.
    pub fn with_sectors(
        file: &Path,
        direct_io: bool,
        sector_bytes: u32,
    ) -> Result<Self, ToolError> {
        let direct = if direct_io { "on" } else { "off" };
        // `--find` with the file asks LOOP_CTL_GET_FREE and retries when another one was faster.
        let mut tool = Tool::new("losetup")
            .args(["--find", "--show"])
            .arg(format!("--direct-io={direct}"));
        if sector_bytes != 512 {
            tool = tool.arg(format!("--sector-size={sector_bytes}"));
        }
        let path = tool.arg(file).run()?;
        Ok(Self {
            name: path.trim().trim_start_matches("/dev/").to_owned(),
        })
    }

    /// The kernel's name: `loop3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = Tool::new("losetup")
            .arg("--detach")
            .arg(self.path())
            .for_clean_up()
            .run()
        {
            eprintln!("nestrace-lab: {error}");
        }
    }
}

/// A mount; dropping it unmounts it.
#[derive(Debug)]
struct Mounted {
    point: PathBuf,
}

impl Mounted {
    fn mount(spec: &HostFsSpec, device: &Path, point: &Path) -> Result<Self, ToolError> {
        let mut tool = Tool::new("mount").args(["-t", spec.kind.word()]);
        if !spec.mount_options.is_empty() {
            tool = tool.args(["-o", &spec.mount_options]);
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

fn make_fs(kind: HostFsKind, device: &Path) -> Result<(), ToolError> {
    // Nothing may be initialised lazily: its I/O would fall into a recording.
    let tool = match kind {
        HostFsKind::Ext2 | HostFsKind::Ext3 | HostFsKind::Ext4 => Tool::new("mke2fs")
            .args(["-q", "-F", "-t", kind.word()])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]),
        HostFsKind::Xfs => Tool::new("mkfs.xfs").args(["-q", "-f", "-K"]),
        HostFsKind::Btrfs => Tool::new("mkfs.btrfs").args(["-q", "-f", "-K"]),
    };
    tool.arg(device).run()?;
    Ok(())
}
