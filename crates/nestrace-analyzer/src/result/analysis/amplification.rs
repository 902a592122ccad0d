//! How much more each layer does than the one above it asked for.

use serde::Serialize;

use crate::result::read_write::ReadWrite;
use crate::result::series::Series;
use crate::result::sums::LayerSums;

/// What the guest asked of one disk, and what became of it layer by layer. `None`: not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Amplification {
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// Bytes that the guest's block layer read and wrote.
    pub guest_bytes: Option<u64>,
    /// The same as QEMU accounts them, for the whole recording: the guest may have been recorded for a part
    /// of it only. The layers below are to be held against this.
    pub qemu_bytes: Option<u64>,
    /// Bytes of QEMU's file I/O on the disk's images.
    pub image_bytes: Option<u64>,
    /// Bytes of the host's bios for the disk, at the first block device under its images: the sum of
    /// [`Self::by_class`].
    pub host_bytes: Option<u64>,
    /// Bytes of the requests that these bios became, mirrors counted each.
    pub device_bytes: Option<u64>,
    /// Reads of these bytes.
    pub read: LayerBytes,
    /// Writes of these bytes.
    pub write: LayerBytes,
    /// Flushes by layer.
    pub flushes: LayerFlushes,
    /// [`Self::host_bytes`] by what they are for.
    pub by_class: ClassBytes,
    /// Other disks whose images lie on the same file systems. Journal and metadata of a file system are
    /// divided among them as their written bytes are.
    pub shared_with: u64,
    /// [`Self::by_class`] by direction, for the findings.
    #[serde(skip)]
    pub(crate) classes: Option<Classes>,
    /// Bytes read ahead that QEMU did not come for.
    #[serde(skip)]
    pub(crate) readahead_unused: Option<u64>,
    /// The same by time, for comparisons.
    #[serde(skip)]
    pub series: Series<LayerSums>,
}

/// Bytes of one direction by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LayerBytes {
    /// The guest's block layer.
    pub guest: Option<u64>,
    /// QEMU's accounting.
    pub qemu: Option<u64>,
    /// QEMU's file I/O.
    pub image: Option<u64>,
    /// The host's bios.
    pub host: Option<u64>,
    /// The host's requests.
    pub device: Option<u64>,
}

/// Flushes by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LayerFlushes {
    /// Flush requests that the guest issued to the disk.
    pub guest: Option<u64>,
    /// Flushes that QEMU accounted.
    pub qemu: Option<u64>,
    /// `fsync` and `fdatasync` of QEMU on the images, and writes that sync by themselves (RWF_DSYNC).
    pub host: Option<u64>,
    /// Flush requests issued to the devices under the images, whoever caused them.
    pub device: Option<u64>,
}

/// Bytes on the host by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ClassBytes {
    /// The guest's data.
    pub data: Option<u64>,
    /// The image's own tables; `None` where the image's map is not known.
    pub image_metadata: Option<u64>,
    /// Journal or log of the host's file system.
    pub host_journal: Option<u64>,
    /// Other metadata of the host's file system.
    pub host_metadata: Option<u64>,
    /// Read ahead of what was asked for.
    pub readahead: Option<u64>,
}

/// Bytes on the host by what they are for: what was read says nothing of what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes {
    /// The guest's data.
    pub data: ReadWrite,
    /// The image's own tables; `None` where the image's map is not known.
    pub image_metadata: Option<ReadWrite>,
    /// Journal or log of the host's file system.
    pub host_journal: ReadWrite,
    /// Other metadata of the host's file system.
    pub host_metadata: ReadWrite,
}
