//! One combination of the axes: a nested stack with everything that can be turned on it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::stack::{
    Aio, Bus, CacheMode, DiskStack, GuestFsKind, HostFsKind, ImageFormat, UnknownValue, axis,
};

axis!(
    /// The axes of a plan.
    Axis, "an axis", {
        /// File system in the guest.
        GuestFs = "guest_fs",
        /// File system under the image, or `bd`.
        HostFs = "host_fs",
        /// Format of the image.
        Format = "format",
        /// QEMU's cache mode.
        Cache = "cache",
        /// How QEMU submits.
        Aio = "aio",
        /// The guest's bus.
        Bus = "bus",
        /// qemu-img's preallocation.
        Preallocation = "preallocation",
        /// How the image lies on the host's file system.
        Placement = "placement",
        /// The guest's I/O scheduler.
        GuestScheduler = "guest_scheduler",
        /// The host's I/O scheduler.
        HostScheduler = "host_scheduler",
        /// Options of the guest's mount.
        GuestMountOptions = "guest_mount_options",
        /// Options of the host's mount.
        HostMountOptions = "host_mount_options",
        /// The guest's read-ahead, KiB.
        GuestReadAhead = "guest_read_ahead_kib",
        /// The host's read-ahead, KiB.
        HostReadAhead = "host_read_ahead_kib",
    }
);

axis!(
    /// qemu-img's preallocation.
    Preallocation, "a preallocation", {
        /// Nothing is allocated.
        Off = "off",
        /// Tables of a qcow2 image.
        Metadata = "metadata",
        /// Space by fallocate.
        Falloc = "falloc",
        /// Space by writing.
        Full = "full",
    }
);

axis!(
    /// How a raw image lies on the host's file system before each run.
    Placement, "a placement", {
        /// Nothing is allocated.
        Sparse = "sparse",
        /// Written once from start to end.
        Preallocated = "preallocated",
        /// Written once in pieces of 64 KiB in a random order, with another file's between them.
        Fragmented = "fragmented",
    }
);

axis!(
    /// An I/O scheduler.
    Scheduler, "a scheduler", {
        /// What the kernel chose.
        Default = "default",
        /// None.
        None = "none",
        /// mq-deadline.
        MqDeadline = "mq-deadline",
        /// BFQ.
        Bfq = "bfq",
        /// Kyber.
        Kyber = "kyber",
    }
);

/// What lies under the image, or in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The bare block device: the guest's disk is the device itself.
    Bare,
    /// A file system with the image on it.
    Fs(HostFsKind),
}

/// The word for the bare block device.
pub const BARE: &str = "bd";

impl Host {
    /// The word of a plan.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bare => BARE,
            Self::Fs(kind) => kind.word(),
        }
    }

    /// Every word.
    #[must_use]
    pub fn words() -> Vec<&'static str> {
        let kinds = HostFsKind::ALL.iter().map(|kind| kind.word());
        kinds.chain([BARE]).collect()
    }
}

impl FromStr for Host {
    type Err = UnknownValue;

    fn from_str(word: &str) -> Result<Self, UnknownValue> {
        if word == BARE {
            return Ok(Self::Bare);
        }
        word.parse().map(Self::Fs).map_err(|_| UnknownValue {
            axis: "what lies beneath on the host",
            word: word.to_owned(),
            expected: Self::words(),
        })
    }
}

/// One value of each axis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Combination {
    /// File system in the guest.
    pub guest_fs: GuestFsKind,
    /// What lies beneath.
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
}

impl Default for Combination {
    /// What an axis that a plan does not name is: ext4 in a raw image on ext4, past the page cache.
    fn default() -> Self {
        Self {
            guest_fs: GuestFsKind::Ext4,
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
        }
    }
}

/// The kernel's default, where an axis is a number.
const DEFAULT: &str = "default";

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
        }
    }

    /// Whether the guest's disk is the bare block device.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.host == Host::Bare
    }

    /// The same without an image: what it is compared with. Axes of the image and of the host's file
    /// system are at their defaults there.
    #[must_use]
    pub fn baseline(&self) -> Self {
        let mut disk = self.disk;
        disk.format = ImageFormat::Raw;
        Self {
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
        Self {
            guest_fs: GuestFsKind::Ext4,
            guest_scheduler: Scheduler::Default,
            guest_mount_options: String::new(),
            guest_read_ahead_kib: None,
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
            && self.preallocation == Preallocation::Off
            && self.placement == Placement::Sparse
    }

    /// Why it cannot be, if it cannot.
    #[must_use]
    pub fn objection(&self) -> Option<&'static str> {
        let is_raw = self.disk.format == ImageFormat::Raw;
        if let Some(objection) = self.disk.objection() {
            return Some(objection);
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
    use super::*;

    #[test]
    fn every_axis_takes_its_own_word_back() {
        let mut other = Combination {
            guest_mount_options: String::from("noatime"),
            host_read_ahead_kib: Some(512),
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
    fn options_for_a_shell_are_refused() {
        let mut combination = Combination::default();
        assert!(
            combination
                .set(Axis::GuestMountOptions, "rw; reboot")
                .is_err()
        );
    }
}
