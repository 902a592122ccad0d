//! One combination of the axes: a nested stack with everything that can be turned on it.

use std::borrow::Cow;
use std::fmt;

use nestrace_rig::stack::{
    Aio, Bus, CacheMode, DiskStack, GuestFsKind, HostFsKind, ImageFormat, UnknownValue,
};

use super::axes::{Axis, DEFAULT, GuestFs, Host, HostDisk, Placement, Preallocation, Scheduler};

/// One value of each axis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Combination {
    /// File system in the guest.
    pub guest_fs: GuestFs,
    /// What lies below.
    pub host: Host,
    /// Format, cache mode, submission and bus.
    pub disk: DiskStack,
    /// qemu-img's preallocation.
    pub preallocation: Preallocation,
    /// How the image lies.
    pub placement: Placement,
    /// The guest's scheduler.
    pub guest_scheduler: Scheduler,
    /// The host's scheduler.
    pub host_scheduler: Scheduler,
    /// Options of the guest's mount, comma-separated.
    pub guest_mount_options: String,
    /// Options of the host's mount, comma-separated.
    pub host_mount_options: String,
    /// The guest's read-ahead, KiB; `None` for what the kernel chose.
    pub guest_read_ahead_kib: Option<u32>,
    /// The host's read-ahead, KiB; `None` for what the kernel chose.
    pub host_read_ahead_kib: Option<u32>,
    /// What all of it lies on.
    pub host_disk: HostDisk,
    /// Which of several equal ones, from 1; each has devices of its own.
    pub copy: u32,
}

impl Default for Combination {
    /// What an axis that a plan does not name is: ext4 in a raw image on ext4, past the page cache.
    fn default() -> Self {
        Self {
            guest_fs: GuestFs::Fs(GuestFsKind::Ext4),
            host: Host::Fs(HostFsKind::Ext4),
            disk: DiskStack::RAW,
            preallocation: Preallocation::Off,
            placement: Placement::Sparse,
            guest_scheduler: Scheduler::Default,
            host_scheduler: Scheduler::Default,
            guest_mount_options: String::new(),
            host_mount_options: String::new(),
            guest_read_ahead_kib: None,
            host_read_ahead_kib: None,
            host_disk: HostDisk::LoopFile,
            copy: 1,
        }
    }
}

impl Combination {
    /// Sets the value of an axis.
    ///
    /// # Errors
    /// The axis has no such value.
    pub fn set(&mut self, axis: Axis, word: &str) -> Result<(), UnknownValue> {
        match axis {
            Axis::GuestFs => self.guest_fs = word.parse()?,
            Axis::HostFs => self.host = word.parse()?,
            Axis::Format => self.disk.format = word.parse::<ImageFormat>()?,
            Axis::Cache => self.disk.cache = word.parse::<CacheMode>()?,
            Axis::Aio => self.disk.aio = word.parse::<Aio>()?,
            Axis::Bus => self.disk.bus = word.parse::<Bus>()?,
            Axis::Preallocation => self.preallocation = word.parse()?,
            Axis::Placement => self.placement = word.parse()?,
            Axis::GuestScheduler => self.guest_scheduler = word.parse()?,
            Axis::HostScheduler => self.host_scheduler = word.parse()?,
            Axis::GuestMountOptions => self.guest_mount_options = options(word)?,
            Axis::HostMountOptions => self.host_mount_options = options(word)?,
            Axis::GuestReadAhead => self.guest_read_ahead_kib = kib(word)?,
            Axis::HostReadAhead => self.host_read_ahead_kib = kib(word)?,
            Axis::HostDisk => self.host_disk = word.parse()?,
            Axis::Copy => self.copy = copy(word)?,
        }
        Ok(())
    }

    /// The word of an axis.
    #[must_use]
    pub fn word(&self, axis: Axis) -> Cow<'_, str> {
        let number = |kib: Option<u32>| match kib {
            Some(kib) => Cow::Owned(kib.to_string()),
            None => Cow::Borrowed(DEFAULT),
        };
        match axis {
            Axis::GuestFs => self.guest_fs.word().into(),
            Axis::HostFs => self.host.word().into(),
            Axis::Format => self.disk.format.word().into(),
            Axis::Cache => self.disk.cache.word().into(),
            Axis::Aio => self.disk.aio.word().into(),
            Axis::Bus => self.disk.bus.word().into(),
            Axis::Preallocation => self.preallocation.word().into(),
            Axis::Placement => self.placement.word().into(),
            Axis::GuestScheduler => self.guest_scheduler.word().into(),
            Axis::HostScheduler => self.host_scheduler.word().into(),
            Axis::GuestMountOptions => self.guest_mount_options.as_str().into(),
            Axis::HostMountOptions => self.host_mount_options.as_str().into(),
            Axis::GuestReadAhead => number(self.guest_read_ahead_kib),
            Axis::HostReadAhead => number(self.host_read_ahead_kib),
            Axis::HostDisk => self.host_disk.word().into(),
            Axis::Copy => self.copy.to_string().into(),
        }
    }

    /// Whether the guest's disk is the bare block device.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.host == Host::Bare
    }

    /// Whether the guest has no disk, but a folder of the host's.
    #[must_use]
    pub fn is_passed_through(&self) -> bool {
        self.guest_fs == GuestFs::PassThrough
    }

    /// The same without an image: what it is compared with. Axes of the image and of the host's file
    /// system are at their defaults there. A folder of the host's is compared with the guest's own file system of
    /// that kind: both are one file system on a device.
    #[must_use]
    pub fn baseline(&self) -> Self {
        let mut disk = self.disk;
        disk.format = ImageFormat::Raw;
        let (guest_fs, guest_mount_options) = match (self.guest_fs, self.host) {
            // Its mount options are 9p's, the host's are that file system's.
            (GuestFs::PassThrough, Host::Fs(kind)) => {
                let same = kind.word().parse().unwrap_or(self.guest_fs);
                (same, &self.host_mount_options)
            }
            _ => (self.guest_fs, &self.guest_mount_options),
        };
        Self {
            guest_fs,
            guest_mount_options: guest_mount_options.clone(),
            host: Host::Bare,
            disk,
            preallocation: Preallocation::Off,
            placement: Placement::Sparse,
            host_mount_options: String::new(),
            ..self.clone()
        }
    }

    /// Everything that makes the guest's disk what it is: combinations that agree in it share a disk.
    #[must_use]
    pub fn disk_key(&self) -> Self {
        let guest_fs = if self.is_passed_through() {
            self.guest_fs
        } else {
            Self::default().guest_fs
        };
        // What is set of its queue stays set: other settings are another disk.
        Self {
            guest_fs,
            guest_mount_options: String::new(),
            ..self.clone()
        }
    }

    /// Everything that makes the device under the images what it is: disks that agree in it share a
    /// file system. Bare devices are never shared, their disks are the devices.
    #[must_use]
    pub fn base_key(&self) -> Self {
        if self.is_bare() {
            return self.disk_key();
        }
        Self {
            guest_fs: Self::default().guest_fs,
            guest_scheduler: Scheduler::Default,
            guest_read_ahead_kib: None,
            disk: DiskStack::RAW,
            preallocation: Preallocation::Off,
            placement: Placement::Sparse,
            ..self.disk_key()
        }
    }

    /// Whether the image is made anew, as far as its blocks are allocated, by a discard.
    #[must_use]
    pub fn is_thin(&self) -> bool {
        !self.is_bare()
            && !self.is_passed_through()
            && self.preallocation == Preallocation::Off
            && self.placement == Placement::Sparse
    }

    /// btrfs has a `backing_dev_info` of its own (`open_ctree` in `fs/btrfs/disk-io.c`), of 4 MiB at least.
    fn has_btrfs_with_read_ahead(&self) -> bool {
        let guest = self.guest_fs == GuestFs::Fs(GuestFsKind::Btrfs);
        let host = self.host == Host::Fs(HostFsKind::Btrfs);
        (guest && self.guest_read_ahead_kib.is_some())
            || (host && self.host_read_ahead_kib.is_some())
    }

    /// Whether the first who writes to the image finds it otherwise than the next: its blocks have a place, and no
    /// discard takes back what was written to them: jfs and reiserfs punch no holes. btrfs moves what is written again,
    /// wherever it was put at first.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        if self.is_bare() || self.is_passed_through() {
            return false;
        }
        if self.is_thin() {
            return [HostFsKind::Jfs, HostFsKind::Reiserfs]
                .map(Host::Fs)
                .contains(&self.host);
        }
        let is_written = [Preallocation::Off, Preallocation::Full].contains(&self.preallocation)
            || self.placement != Placement::Sparse;
        !is_written || self.host == Host::Fs(HostFsKind::Btrfs)
    }

    /// Whether its host's btrfs may need room for all of the image twice: an extent that was written once is kept whole as long
    /// as a part of it was not written again.
    #[must_use]
    pub fn is_copied_whole(&self) -> bool {
        self.host == Host::Fs(HostFsKind::Btrfs) && !self.is_thin() && !self.is_passed_through()
    }

    /// The largest image that its host file system has room for in a file. ext2 and ext3 count a file's 512-byte blocks in
    /// 32 bits, its own tables too (`ext3_max_size` in fs/ext3/super.c, with blocks of 4 KiB); a qcow2 file is as large as
    /// what was written to it, unless its blocks have a place before.
    #[must_use]
    pub fn largest_image_bytes(&self) -> u64 {
        const OF_EXT3: u64 = 2_194_719_883_264;
        let is_whole =
            self.disk.format == ImageFormat::Raw || self.preallocation != Preallocation::Off;
        let is_old = [HostFsKind::Ext2, HostFsKind::Ext3]
            .map(Host::Fs)
            .contains(&self.host);
        if is_old && is_whole && !self.is_passed_through() {
            OF_EXT3
        } else {
            u64::MAX
        }
    }

    /// Why it cannot be, if it cannot.
    #[must_use]
    pub fn objection(&self) -> Option<&'static str> {
        let is_raw = self.disk.format == ImageFormat::Raw;
        if let Some(objection) = self.disk.objection() {
            return Some(objection);
        }
        if self.has_btrfs_with_read_ahead() {
            return Some("btrfs sets its own read-ahead and ignores the device's setting");
        }
        if self.is_passed_through() {
            return self.objection_to_pass_through();
        }
        if is_raw && self.preallocation == Preallocation::Metadata {
            return Some("a raw image has no metadata to preallocate");
        }
        if !is_raw && self.placement != Placement::Sparse {
            return Some("placement is for raw images: qcow2 allocates its clusters by itself");
        }
        if self.preallocation != Preallocation::Off && self.placement != Placement::Sparse {
            return Some("preallocation and placement exclude each other");
        }
        None
    }
}

impl Combination {
    fn objection_to_pass_through(&self) -> Option<&'static str> {
        let usual = Self::default();
        if self.is_bare() {
            return Some("9p needs a folder of a host file system, and a bare device has none");
        }
        if self.disk != usual.disk
            || self.preallocation != usual.preallocation
            || self.placement != usual.placement
        {
            return Some(
                "9p has no image: it works only with raw, none, native and virtio (in an [[include]] of its own)",
            );
        }
        let has_queue = self.guest_scheduler != usual.guest_scheduler
            || self.guest_read_ahead_kib != usual.guest_read_ahead_kib;
        has_queue.then_some("9p has no disk in the guest, so it has no scheduler and no read-ahead")
    }
}

impl fmt::Display for Combination {
    /// `ext4 on xfs (qcow2, none, native, virtio)`, and what is not at its default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskStack {
            format,
            cache,
            aio,
            bus,
            ..
        } = self.disk;
        write!(f, "{} on {} (", self.guest_fs, self.host.word())?;
        if !self.is_bare() {
            write!(f, "{format}, ")?;
        }
        write!(f, "{cache}, {aio}, {bus}")?;
        let usual = Self::default();
        for axis in Axis::ALL.iter().skip(6) {
            let word = self.word(*axis);
            if word != usual.word(*axis) {
                write!(f, ", {axis} {word}")?;
            }
        }
        write!(f, ")")
    }
}

/// Mount options: words that neither a shell nor `mount -o` takes for something else.
fn options(word: &str) -> Result<String, UnknownValue> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-=,.:".contains(c);
    if word.chars().all(is_plain) {
        return Ok(word.to_owned());
    }
    Err(UnknownValue {
        axis: "mount options",
        word: word.to_owned(),
        expected: vec!["words with commas between them, such as noatime,nodiratime"],
    })
}

fn copy(word: &str) -> Result<u32, UnknownValue> {
    let number = word.parse().ok().filter(|copy| (1..=100).contains(copy));
    number.ok_or_else(|| UnknownValue {
        axis: "a copy",
        word: word.to_owned(),
        expected: vec!["numbers from 1 to 100"],
    })
}

fn kib(word: &str) -> Result<Option<u32>, UnknownValue> {
    if word == DEFAULT {
        return Ok(None);
    }
    let number = word.parse().ok().filter(|kib| *kib <= 1 << 20);
    number.map(Some).ok_or_else(|| UnknownValue {
        axis: "a read-ahead",
        word: word.to_owned(),
        expected: vec![DEFAULT, "KiB from 0 to 1048576"],
    })
}

#[cfg(test)]
mod tests {
    use super::super::axes::PASS_THROUGH;
    use super::*;

    #[test]
    fn every_axis_takes_its_own_word_back() {
        let mut other = Combination {
            guest_mount_options: String::from("noatime"),
            host_read_ahead_kib: Some(512),
            host_disk: HostDisk::Modelled(String::from("nvme")),
            copy: 2,
            ..Combination::default()
        };
        other.host = Host::Bare;
        let mut copy = Combination::default();
        for &axis in Axis::ALL {
            copy.set(axis, &other.word(axis)).unwrap();
        }
        assert_eq!(copy, other);
    }

    #[test]
    fn what_cannot_be_has_a_reason() {
        let set = |words: &[(Axis, &str)]| {
            let mut combination = Combination::default();
            for (axis, word) in words {
                combination.set(*axis, word).unwrap();
            }
            combination.objection()
        };
        use Axis::{Cache, Format, Placement, Preallocation};
        assert_eq!(set(&[]), None);
        assert!(set(&[(Cache, "writeback")]).unwrap().contains("native"));
        assert!(set(&[(Preallocation, "metadata")]).is_some());
        assert!(set(&[(Preallocation, "metadata"), (Format, "qcow2")]).is_none());
        assert!(set(&[(Placement, "fragmented"), (Format, "qcow2")]).is_some());
        assert!(set(&[(Placement, "fragmented"), (Preallocation, "full")]).is_some());
    }

    #[test]
    fn a_baseline_keeps_what_is_not_the_images() {
        let mut combination = Combination::default();
        combination.set(Axis::Format, "qcow2").unwrap();
        combination.set(Axis::Bus, "ide").unwrap();
        combination.set(Axis::GuestFs, "xfs").unwrap();
        combination.set(Axis::HostMountOptions, "noatime").unwrap();
        let baseline = combination.baseline();
        assert_eq!(baseline.to_string(), "xfs on bd (none, native, ide)");
        assert_eq!(baseline.baseline(), baseline);
    }

    #[test]
    fn a_folder_of_the_hosts_is_compared_with_one_file_system_on_a_device() {
        let set = |words: &[(Axis, &str)]| {
            let mut combination = Combination::default();
            combination.set(Axis::GuestFs, PASS_THROUGH).unwrap();
            combination.set(Axis::HostFs, "xfs").unwrap();
            for (axis, word) in words {
                combination.set(*axis, word).unwrap();
            }
            combination
        };
        let passed = set(&[]);
        assert_eq!(passed.objection(), None);
        assert_eq!(
            passed.baseline().to_string(),
            "xfs on bd (none, native, virtio)"
        );
        let with_options = set(&[
            (Axis::GuestMountOptions, "cache=loose"),
            (Axis::HostMountOptions, "noatime"),
        ]);
        assert_eq!(with_options.baseline().guest_mount_options, "noatime");
        // It lies beside images on the same file system, and is no image.
        let mut image = passed.clone();
        image.set(Axis::GuestFs, "btrfs").unwrap();
        assert_eq!(passed.base_key(), image.base_key());
        assert_ne!(passed.disk_key(), image.disk_key());
        for wrong in [
            (Axis::HostFs, "bd"),
            (Axis::Format, "qcow2"),
            (Axis::Bus, "ide"),
            (Axis::Placement, "fragmented"),
            (Axis::GuestScheduler, "bfq"),
            (Axis::GuestReadAhead, "64"),
        ] {
            assert!(set(&[wrong]).objection().is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn each_modelled_disk_is_a_device_of_its_own() {
        let mut modelled = Combination::default();
        modelled.set(Axis::HostDisk, "hdd-7200").unwrap();
        assert_ne!(modelled.base_key(), Combination::default().base_key());
        assert_eq!(modelled.baseline().host_disk, modelled.host_disk);
        assert!(modelled.set(Axis::HostDisk, "hdd-7201").is_err());
    }

    #[test]
    fn options_for_a_shell_are_refused() {
        let mut combination = Combination::default();
        assert!(
            combination
                .set(Axis::GuestMountOptions, "rw; reboot")
                .is_err()
        );
    }

    #[test]
    fn a_sparse_image_is_used_up_where_no_hole_can_be_punched() {
        for (host, placement, is_used_up) in [
            ("jfs", "sparse", true),
            ("reiserfs", "sparse", true),
            ("reiserfs", "preallocated", false),
            ("ext3", "sparse", false),
            ("bd", "sparse", false),
        ] {
            let mut combination = Combination::default();
            combination.set(Axis::HostFs, host).unwrap();
            combination.set(Axis::Placement, placement).unwrap();
            assert_eq!(combination.is_used_up(), is_used_up, "{host} {placement}");
        }
    }
}
