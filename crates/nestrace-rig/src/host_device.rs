//! What a host file system, or a guest's bare disk, lies on: a loop device over a file of the lab's, a modelled disk, or
//! a device that the user named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::external_tool::ToolError;
use crate::loop_device::LoopDevice;
use crate::modelled_disk::ModelledDisk;
use crate::named_device::NamedDevice;

/// A block device to put something on.
#[derive(Debug)]
pub enum HostDevice {
    /// A loop device over a file.
    LoopFile(LoopFile),
    /// A modelled disk.
    Modelled(ModelledDisk),
    /// A device that the user named.
    Named(Arc<NamedDevice>),
}

/// A loop device over a file, which its owner removes after it.
#[derive(Debug)]
pub struct LoopFile {
    // The upper one is detached first.
    device: LoopDevice,
    beneath: Option<LoopDevice>,
    backing: PathBuf,
    direct_io: bool,
}

impl LoopFile {
    /// Attaches a loop device to `backing`, with blocks of `sector_bytes`; `layered`, two of them, one over
    /// the other. With `direct_io` the file is read and written with O_DIRECT.
    ///
    /// # Errors
    /// losetup is missing or refused.
    pub fn attach(
        backing: &Path,
        direct_io: bool,
        sector_bytes: u32,
        layered: bool,
    ) -> Result<Self, ToolError> {
        let lower = LoopDevice::with_sectors(backing, direct_io, sector_bytes)?;
        let (device, beneath) = if layered {
            // With O_DIRECT, so that nothing is kept between the two.
            let upper = LoopDevice::with_sectors(&lower.path(), true, sector_bytes)?;
            (upper, Some(lower))
        } else {
            (lower, None)
        };
        Ok(Self {
            device,
            beneath,
            backing: backing.to_owned(),
            direct_io,
        })
    }
}

impl HostDevice {
    /// The kernel's name: `loop3`, `sdb1`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::LoopFile(file) => file.device.name(),
            Self::Modelled(disk) => disk.name(),
            Self::Named(device) => device.name(),
        }
    }

    /// The node to open: `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::LoopFile(file) => file.device.path(),
            Self::Modelled(disk) => disk.path(),
            Self::Named(device) => device.node().to_owned(),
        }
    }

    /// The kernel's name of the second loop device, if there is one.
    #[must_use]
    pub fn name_beneath(&self) -> Option<&str> {
        match self {
            Self::LoopFile(file) => file.beneath.as_ref().map(LoopDevice::name),
            Self::Modelled(_) | Self::Named(_) => None,
        }
    }

    /// The file under the loop device.
    #[must_use]
    pub fn backing_file(&self) -> Option<&Path> {
        match self {
            Self::LoopFile(file) => Some(&file.backing),
            Self::Modelled(_) | Self::Named(_) => None,
        }
    }

    /// Whether a loop device reads and writes its file with O_DIRECT.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match self {
            Self::LoopFile(file) => file.direct_io,
            Self::Modelled(_) => true,
            Self::Named(_) => false,
        }
    }

    /// The modelled disk, if it is one.
    #[must_use]
    pub fn modelled(&self) -> Option<&ModelledDisk> {
        match self {
            Self::Modelled(disk) => Some(disk),
            Self::LoopFile(_) | Self::Named(_) => None,
        }
    }
}
