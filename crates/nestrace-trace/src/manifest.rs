//! `manifest.json`: what was recorded, on what, with which probes, and what was lost.
//!
//! It is written when recording begins and again when it ends (and whenever something that
//! matters changes), always as a whole file renamed into place.
//!
//! Its types get fields with new releases: build one from its `default()`, and set fields. (The feature
//! `literals` is for nestrace's own crates, which are released together with this one.)

use serde::{Deserialize, Serialize};

mod addresses;
mod flight;
mod guest_disk;
mod limits;
mod pressure;
mod read;
mod served;
mod server;
mod topology;

pub use addresses::Addresses;
pub use flight::{Flight, FlightCause, FlightReading};
pub use limits::{Job, Limit, LimitPlace, Limited};
pub use pressure::{IoPressure, PressureTotals};
pub use read::{MAX_JOBS_OF_GUEST, MAX_LIMITS, MAX_MANIFEST_BYTES, ManifestError};
pub use server::Server;
pub use topology::{
    Backend, Device, Disk, Guest, Image, Mount, QemuThread, REMOTE_CLIENTS, Relation, Topology,
};

/// Major version of the format. A newer one is refused.
pub const FORMAT_MAJOR: u32 = 1;
/// Minor version: columns, kinds and keys were added.
pub const FORMAT_MINOR: u32 = 0;
/// No kernel bends its clock by more, parts per million: a tick is at most a tenth longer or shorter, and the
/// multiplier of a clock source moves by 11 % at most.
pub const MAX_CLOCK_CORRECTION_PPM: u32 = 110_000;

/// Files that are named of one guest.
pub const MAX_FILES: usize = 16_384;
/// A path that Linux takes is shorter.
pub const MAX_PATH_BYTES: usize = 4096;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Manifest {
    /// Version of the format.
    pub format: Format,
    /// Version of the nestrace that wrote it.
    pub tool_version: String,
    /// Whether the recording was closed.
    pub state: State,
    /// `CLOCK_REALTIME` at the start, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// `CLOCK_MONOTONIC` at the same instant; events count from the same zero.
    pub start_mono_ns: u64,
    /// `CLOCK_MONOTONIC` at which the last source had been live for the first time.
    pub live_mono_ns: u64,
    /// `CLOCK_MONOTONIC` at the end; 0 while recording or after a crash.
    pub end_mono_ns: u64,
    /// Why it ended.
    pub end_reason: String,
    /// `full`, `io` or `light`.
    pub detail: String,
    /// The recording machine.
    pub host: Machine,
    /// The most that NTP bent the host's `CLOCK_MONOTONIC` while recording, parts per million: against
    /// `CLOCK_MONOTONIC_RAW`, with what the measurement leaves open. `None` where it was not measured.
    pub host_clock_correction_ppm: Option<u32>,
    /// Guests, disks, images, devices.
    pub topology: Topology,
    /// One entry a stream file.
    pub streams: Vec<Stream>,
    /// What each guest stream's agent (or imported capture) said of its guest; one entry for each guest stream.
    pub guest_sides: Vec<GuestSide>,
    /// Probes that were attached.
    pub probes: Vec<Probe>,
    /// Probes that could not be attached, and what is missing without them.
    pub refused: Vec<Refused>,
    /// Events that were dropped, by source; sources without loss are listed with 0.
    pub losses: Vec<Loss>,
    /// What happened while recording that a reader should know (a guest exited, the disk was full, …).
    pub notices: Vec<Notice>,
    /// Why a flight recorder wrote it; `None` of any other recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flight: Option<Flight>,
}

impl Manifest {
    /// Whether the disk filled up that a side was recorded to: the host's (`None`) has all streams, one inside a guest that
    /// guest's own. Whoever recorded has then closed the bundle and counted what could not be written: that the
    /// stream breaks off is no more than that.
    #[must_use]
    pub fn disk_was_full(&self, guest: Option<&str>) -> bool {
        let has_side = |of: Option<&str>| of.is_none() || of == guest;
        let of_side = |loss: &&Loss| has_side(loss.guest.as_deref()) && loss.events > 0;
        let mut losses = self.losses.iter().filter(of_side);
        losses.any(|loss| loss.source == "disk_full")
    }
}

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Format {
    /// Readers refuse a major that is newer than theirs.
    pub major: u32,
    /// Readers accept any minor.
    pub minor: u32,
}

impl Default for Format {
    fn default() -> Self {
        Self {
            major: FORMAT_MAJOR,
            minor: FORMAT_MINOR,
        }
    }
}

/// Whether a recording was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Still running, or the recorder was killed.
    #[default]
    Recording,
    /// Closed by the recorder, for whatever reason.
    Complete,
    /// Closed by `nestrace repair`.
    Repaired,
}

/// A machine: the host, or a guest as its agent describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Machine {
    /// `uname -n`.
    pub hostname: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub arch: String,
    /// Processors online.
    pub cpus: u32,
    /// Bytes of a page.
    pub page_size: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// One stream file of the bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Stream {
    /// File name within the bundle.
    pub file: String,
    /// `host` or `guest`.
    pub side: String,
    /// Guest's name for a guest stream.
    pub guest: Option<String>,
    /// `ebpf` or `blktrace`.
    pub backend: String,
    /// `uname -r` of the machine.
    pub kernel: String,
    /// Whether its addresses are those of the machine.
    pub addresses: Addresses,
}

impl Stream {
    /// A stream of the host or of a guest.
    #[must_use]
    pub fn new(
        file: impl Into<String>,
        side: impl Into<String>,
        backend: impl Into<String>,
    ) -> Self {
        Self {
            file: file.into(),
            side: side.into(),
            backend: backend.into(),
            ..Self::default()
        }
    }
}

/// What stands in place of an agent's version at a capture that `nestrace import` took in.
pub const IMPORTED: &str = "imported";

/// A guest as seen from inside, for one stream: a reboot begins another. All `*_mono_ns` here are
/// the *guest's* `CLOCK_MONOTONIC` unless the name says host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct GuestSide {
    /// Name in [`Topology::guests`].
    pub guest: String,
    /// [`Stream::file`].
    pub file: String,
    /// `ebpf` or `blktrace`.
    pub backend: String,
    /// Why this backend, in words.
    pub backend_reason: String,
    /// Version of the agent, or [`IMPORTED`].
    pub agent_version: String,
    /// The guest.
    pub machine: Machine,
    /// Guest's `CLOCK_REALTIME` at `start_mono_ns`, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// Guest's `CLOCK_MONOTONIC` at its start.
    pub start_mono_ns: u64,
    /// When its probes were live.
    pub live_mono_ns: u64,
    /// Its last word; 0 if it never said that it ended.
    pub end_mono_ns: u64,
    /// Its memory when this began.
    pub memory: GuestMemory,
    /// Disks of the guest.
    pub disks: Vec<GuestDisk>,
    /// Mounted file systems on those disks.
    pub mounts: Vec<GuestMount>,
    /// Probes that the agent attached.
    pub probes: Vec<Probe>,
    /// Probes that it could not attach, and what is missing without them.
    pub probes_refused: Vec<Refused>,
    /// Round trips over the agent's port: an estimate of the clock that does not rest on I/O.
    pub clock_samples: Vec<ClockSample>,
    /// [`Manifest::host_clock_correction_ppm`] of the guest's clock; `None` of an agent that does not measure it.
    pub clock_correction_ppm: Option<u32>,
    /// When the guest was not recorded, in the *host's* `CLOCK_MONOTONIC`. A gap stands with the side that is live at its
    /// end, so it may begin in the time of the side before or in that of none; one that lasts to the end of the recording
    /// stands with the last side.
    pub gaps: Vec<Gap>,
    /// What the recorder refused of the agent's stream, and how often.
    pub refused: Vec<RefusedInput>,
    /// Names of files with recorded I/O, as far as they are known; each once, in the order of device and inode.
    pub files: Vec<GuestFile>,
}

/// A guest's memory at one moment, as its page cache is concerned. 0: the agent is an older one, or the kernel does not
/// say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct GuestMemory {
    /// `MemTotal` of `/proc/meminfo`, bytes.
    pub total_bytes: u64,
    /// `MemAvailable`, bytes: what is free, and what the kernel can take from its caches.
    pub available_bytes: u64,
    /// `nr_dirty_threshold` of `/proc/vmstat`, in bytes: so much may be dirty. It follows from `vm.dirty_bytes` or
    /// `vm.dirty_ratio`.
    pub dirty_limit_bytes: u64,
    /// `nr_dirty_background_threshold`, in bytes: from here on the kernel writes back by itself.
    pub dirty_background_bytes: u64,
}

/// A disk as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct GuestDisk {
    /// `vda`.
    pub name: String,
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// Bytes, as they were first recorded: QEMU's disks are those of the recording's beginning too.
    pub size: u64,
    /// Serial number, or empty.
    pub serial: String,
    /// `/sys/block/NAME/diskseq`, which no other disk of this boot has; 0 before Linux 5.15.
    pub diskseq: u64,
    /// From when on its device number is surely this disk's, after another one had it; 0 for the first.
    pub since_mono_ns: u64,
    /// Until when its device number is surely this disk's, if it was gone later: the agent's last look at it. 0: it was
    /// never gone, or (beside another one that has the number later) it was not recorded. From here to the next one's
    /// [`Self::since_mono_ns`] the number may have been of either.
    pub until_mono_ns: u64,
    /// Model, or empty.
    pub model: String,
    /// `/sys/block/NAME`, resolved: says bus and slot.
    pub sysfs_path: String,
    /// Kernel driver: `virtio_blk`, `sd`.
    pub driver: String,
    /// Active scheduler.
    pub scheduler: String,
    /// `queue/nr_requests`.
    pub nr_requests: u32,
    /// `queue/read_ahead_kb`.
    pub read_ahead_kb: u32,
    /// `queue/max_sectors_kb`.
    pub max_sectors_kb: u32,
    /// `queue/write_cache`.
    pub write_cache: String,
    /// `queue/rotational`.
    pub rotational: bool,
    /// `queue/logical_block_size`, bytes.
    pub logical_block_size: u32,
}

/// A file system that the guest has mounted from one of its disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct GuestMount {
    /// Disk's name (not the partition's).
    pub disk: String,
    /// Device number of the mounted file system.
    pub dev: u32,
    /// `ext4`, …
    pub fs_type: String,
    /// Mount point in the guest. Never used as a path on the host.
    pub mount_point: String,
    /// Mount options.
    pub options: String,
}

/// A file of a guest that had I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct GuestFile {
    /// [`GuestMount::dev`] of its file system.
    pub dev: u32,
    /// Inode number.
    pub inode: u64,
    /// Its name from the guest's root, at most [`MAX_PATH_BYTES`]. Never used as a path on the host.
    pub path: String,
}

/// One round trip over the agent's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct ClockSample {
    /// Host's `CLOCK_MONOTONIC` before the question was sent.
    pub host_sent_ns: u64,
    /// Guest's `CLOCK_MONOTONIC` when it answered.
    pub guest_ns: u64,
    /// Host's `CLOCK_MONOTONIC` when the answer was there.
    pub host_received_ns: u64,
}

/// A time without a recording of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Gap {
    /// Host's `CLOCK_MONOTONIC`.
    pub from_host_ns: u64,
    /// Host's `CLOCK_MONOTONIC`.
    pub to_host_ns: u64,
    /// Why, in words.
    pub reason: String,
}

/// Input of an agent that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct RefusedInput {
    /// What was wrong with it.
    pub reason: String,
    /// How often.
    pub times: u64,
}

/// An attached probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Probe {
    /// Tracepoint, or function of QEMU.
    pub name: String,
    /// A [`nestrace_abi::Source`] name.
    pub source: String,
    /// `tp_btf`, `raw_tp`, `uprobe`, `usdt`.
    pub how: String,
    /// Guest's name where it is a probe of one QEMU.
    pub guest: Option<String>,
}

/// A probe that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Refused {
    /// Tracepoint, or function of QEMU.
    pub name: String,
    /// A [`nestrace_abi::Source`] name.
    pub source: String,
    /// Why, in words.
    pub reason: String,
    /// What the user loses.
    pub cost: String,
    /// Guest's name where it is a probe of one QEMU.
    pub guest: Option<String>,
}

/// Events of one source that found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Loss {
    /// A [`nestrace_abi::Source`] name, or what else was lost (`disk_full`, `guest_stream`).
    pub source: String,
    /// Stream's guest, `None` for the host.
    pub guest: Option<String>,
    /// How many.
    pub events: u64,
}

/// Something that happened while recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Notice {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub mono_ns: u64,
    /// Short stable word: `guest_exited`, `disk_full`, `disk_removed`, `disk_replaced`, `file_opened`, `out_of_order`, …
    pub what: String,
    /// For a person.
    pub message: String,
}

impl Notice {
    /// A notice without a time.
    #[must_use]
    pub fn new(what: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            message: message.into(),
            ..Self::default()
        }
    }
}
