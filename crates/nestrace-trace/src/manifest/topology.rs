//! Guests, their disks, the files that hold them, and the devices below.

use serde::{Deserialize, Serialize};

use super::{IoPressure, Job, Limit, Server};

/// Guests and the devices below them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Topology {
    /// Guests that are recorded (or, for `nestrace guests`, all that run).
    pub guests: Vec<Guest>,
    /// Every block device that a guest's images lie on, and those below.
    pub devices: Vec<Device>,
    /// I/O pressure of the whole host; `None` where its kernel does not count it.
    pub io_pressure: Option<IoPressure>,
}

/// One running QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Guest {
    /// `-name` (libvirt's domain name), or `pid:N` where it has none.
    pub name: String,
    /// `-uuid`, where given.
    pub uuid: Option<String>,
    /// Process id of QEMU on the host.
    pub pid: u32,
    /// `qemu-system-x86_64`.
    pub executable: String,
    /// Version as QMP gives it, or as the binary's name or `--version` tells; empty if unknown.
    pub qemu_version: String,
    /// `kvm`, `tcg` or empty.
    pub accel: String,
    /// Where the facts about the disks come from: `qmp`, `command line`, `proc`.
    pub sources: Vec<String>,
    /// Path of the QMP socket that was free, if any.
    pub qmp: Option<String>,
    /// Host side of the agent's channel `org.nestrace.agent.0`, if there is one.
    pub agent: Option<String>,
    /// Address of the guest's vsock device, if it has one.
    pub vsock_cid: Option<u32>,
    /// The disks, in the order of the command line.
    pub disks: Vec<Disk>,
    /// QEMU's BlockBackends that were identified: address (as in QEMU events) and disk.
    pub backends: Vec<Backend>,
    /// Limits of the cgroups that QEMU is in, when it was found.
    pub limits: Vec<Limit>,
    /// The same at the end; `None` where that was not looked at.
    pub limits_at_end: Option<Vec<Limit>>,
    /// QEMU's jobs that were seen, each once: QMP is asked when the guest is found, once a second, and at the end.
    pub jobs: Vec<Job>,
    /// QEMU's threads when it was looked at.
    pub threads: Vec<QemuThread>,
    /// I/O pressure of QEMU's own cgroup; `None` where it has none of version 2 below the root, or the kernel does not count it.
    pub io_pressure: Option<IoPressure>,
    /// How many of QEMU's io_uring instances it waits for events with (`PollList` of their `fdinfo`) when it was looked at; `None`
    /// where its descriptors cannot be listed.
    pub event_rings: Option<u32>,
}

impl Guest {
    /// The host's thread of each virtual processor, by its number; 0 where one is not known.
    #[must_use]
    pub fn vcpus(&self) -> Vec<u32> {
        let known = || {
            self.threads
                .iter()
                .filter_map(|thread| Some((thread.vcpu?, thread.tid)))
        };
        let n = known().map(|(number, _)| number.saturating_add(1)).max();
        let mut tids = vec![0; n.unwrap_or(0).min(MAX_VCPUS) as usize];
        for (number, tid) in known() {
            if let Some(of_vcpu) = tids.get_mut(number as usize) {
                *of_vcpu = tid;
            }
        }
        tids
    }
}

/// QEMU has no machine with more.
const MAX_VCPUS: u32 = 1 << 13;

/// A thread of QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct QemuThread {
    /// Its number on the host.
    pub tid: u32,
    /// Its name in `/proc`.
    pub name: String,
    /// Which virtual processor it is, if it is one.
    pub vcpu: Option<u32>,
    /// The id of its iothread, if it is one.
    pub iothread: Option<String>,
}

/// Which disk a BlockBackend of QEMU belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Backend {
    /// Address of the BlockBackend in QEMU.
    pub address: u64,
    /// Index into [`Guest::disks`].
    pub disk: u32,
    /// How it was proved: `drive name`, `node name`, `node name below a filter`, `file name`, `only disk`.
    pub proof: String,
}

/// One disk of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Disk {
    /// What a person calls it: the drive's or device's id, else its node name, else `disk0`.
    pub name: String,
    /// `-device` id (qdev), if any.
    pub qdev: Option<String>,
    /// Block node at the top of the disk.
    pub node: Option<String>,
    /// `virtio-blk`, `virtio-scsi`, `ide`, `nvme`, `usb`, `floppy`, …
    pub bus: String,
    /// `raw`, `qcow2`, …
    pub format: String,
    /// Cache mode as it works: `none`, `writeback`, `writethrough`, `directsync`, `unsafe`.
    pub cache: Option<String>,
    /// `threads`, `native`, `io_uring`.
    pub aio: Option<String>,
    /// The iothread that serves it.
    pub iothread: Option<String>,
    /// How many queues its device has (of virtio-scsi: for requests), if it is known.
    pub queues: Option<u32>,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// Serial number that the guest is shown (`serial=`), if one is given.
    pub serial: Option<String>,
    /// Bytes that the guest sees; 0 if unknown.
    pub virtual_size: u64,
    /// Why its I/O cannot be followed on this host (rbd, nbd, vhost-user, vfio); `None` if it can.
    pub not_followed: Option<String>,
    /// The image and what belongs to it (backing files, data files, extents), the image itself first. Empty when it is not a
    /// file or device here.
    pub images: Vec<Image>,
    /// QEMU's own limits of the disk when it was found; empty too where QMP was not asked.
    pub limits: Vec<Limit>,
    /// The same at the end; `None` where QMP was not asked.
    pub limits_at_end: Option<Vec<Limit>>,
}

/// QEMU's own clients of servers.
pub const REMOTE_CLIENTS: [&str; 8] = [
    "nbd", "rbd", "iscsi", "gluster", "ssh", "http", "https", "nfs",
];

impl Disk {
    /// QEMU's client that reaches the disk's data on a server: [`Self::not_followed`] begins with its name.
    #[must_use]
    pub fn remote_client(&self) -> Option<&'static str> {
        let (driver, _) = self.not_followed.as_deref()?.split_once(':')?;
        REMOTE_CLIENTS.into_iter().find(|client| *client == driver)
    }
}

impl Disk {
    /// What each of [`Self::images`] is to another one; `None` of the disk's own image. In recordings that do not say, each
    /// image is the backing file of the one before it, and so is one that names no image before it.
    #[must_use]
    pub fn relations(&self) -> Vec<Option<Relation>> {
        let relation = |(index, image): (u32, &Image)| {
            let before = index.checked_sub(1)?;
            let told = image.relation.filter(|relation| relation.of() < index);
            Some(told.unwrap_or(Relation::BackingOf(before)))
        };
        (0u32..).zip(&self.images).map(relation).collect()
    }
}

/// What an image is to another one, by the index of that in [`Disk::images`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Relation {
    /// Holds what that image does not have itself.
    BackingOf(u32),
    /// Holds that image's data: qcow2's external data file.
    DataFileOf(u32),
    /// Holds a part of that image's data: an extent of vmdk.
    ExtentOf(u32),
    /// Holds the same data as that image: a child of quorum or blkverify.
    MemberOf(u32),
}

impl Relation {
    /// The other image.
    #[must_use]
    pub const fn of(self) -> u32 {
        match self {
            Self::BackingOf(of)
            | Self::DataFileOf(of)
            | Self::ExtentOf(of)
            | Self::MemberOf(of) => of,
        }
    }
}

/// A file (or block device) that holds a disk's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Image {
    /// Path in QEMU's own mount namespace.
    pub path: String,
    /// `raw`, `qcow2`, …
    pub format: String,
    /// What it is to another image of the disk; `None` of the disk's own, and in older recordings ([`Disk::relations`]).
    pub relation: Option<Relation>,
    /// Where in the file the image begins, in bytes: raw's `offset`, a flat extent's offset.
    pub start: u64,
    /// Where on the guest's disk the image begins, in bytes: of vmdk's extents; negative where QEMU shows the guest a later
    /// part only (raw's `offset` over another format).
    pub disk_offset: i64,
    /// Inode number; for a block device that of the device's own inode in bdev (0 if unknown).
    pub inode: u64,
    /// Device number (`MAJOR << 20 | MINOR`) of the super block as the *kernel* has it in
    /// `inode->i_sb->s_dev` (which `stat` does not show on btrfs); for a block device, the device itself.
    pub dev: u32,
    /// Inode and device of the file as QEMU has it open, where another one holds the data: on overlayfs.
    pub opened: Option<(u64, u32)>,
    /// Whether `path` is a block device.
    pub is_block_device: bool,
    /// Whether the file was open with O_DIRECT.
    pub direct: Option<bool>,
    /// Apparent size in bytes.
    pub size: u64,
    /// Allocated bytes (`st_blocks` × 512).
    pub allocated: u64,
    /// Whether btrfs writes over the file in place (`chattr +C`, or made under the mount option nodatacow); `None` on other
    /// file systems, where it could not be asked, and in older recordings.
    pub nocow: Option<bool>,
    /// The file system it lies on; `None` for a block device.
    pub mount: Option<Mount>,
    /// Names of the block devices right under the file system (several under btrfs), or the device itself.
    pub devices: Vec<String>,
}

/// A host file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Mount {
    /// `ext4`, `xfs`, … ; ext3 and ext2 are distinguished from ext4 by their features where they can be.
    pub fs_type: String,
    /// Mount point in QEMU's namespace.
    pub mount_point: String,
    /// Source as mountinfo has it.
    pub source: String,
    /// Mount and super block options.
    pub options: String,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Device {
    /// Kernel name: `loop0`, `vda`, `dm-0`.
    pub name: String,
    /// Device number, `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// `disk`, `partition`, `loop`, `dm`, `md`, `bcache`.
    pub kind: String,
    /// What dm or md make of the devices below: dm's targets (`linear`, `striped`, `thin`, `thin-pool`, `crypt`, `cache`,
    /// `mirror`, `delay`, …; several are joined by `+`), md's level (`raid1`); empty of others and where it is not known.
    pub driver: String,
    /// Options of dm's targets that matter for speed, as the table has them (crypt: `no_write_workqueue`, …).
    pub driver_options: Vec<String>,
    /// What a person calls a dm device: its name in `/dev/mapper`; empty of others.
    pub mapped_name: String,
    /// Names of the devices below (a partition's disk, dm and md members, under a loop device's file).
    pub beneath: Vec<String>,
    /// A loop device's backing file.
    pub loop_file: Option<Image>,
    /// The server that a device on a network has its data from (NBD, iSCSI, RBD, NVMe over fabrics).
    pub server: Option<Server>,
    /// Active scheduler, or empty.
    pub scheduler: String,
    /// `queue/nr_requests`.
    pub nr_requests: u32,
    /// `queue/read_ahead_kb`.
    pub read_ahead_kb: u32,
    /// `queue/write_cache`.
    pub write_cache: String,
    /// `queue/rotational`.
    pub rotational: bool,
    /// Size in bytes.
    pub size: u64,
    /// Where a partition begins on its disk, in bytes; 0 for other devices and where it is not known.
    pub start: u64,
}

impl Device {
    /// The driver that makes it, or its kind where that is not known.
    #[must_use]
    pub fn made_by(&self) -> &str {
        if self.driver.is_empty() {
            &self.kind
        } else {
            &self.driver
        }
    }
}
