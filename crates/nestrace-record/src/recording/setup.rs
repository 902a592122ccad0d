//! What is known before the first event: filters for the probes, the manifest's beginning.

use nestrace_abi::Source;
use nestrace_probes::{
    clock,
    load::{Probes, Wanted, n_cpus},
};
use nestrace_trace::{
    Manifest,
    bundle::HOST_STREAM,
    manifest::{Addresses, Loss, Machine, State, Stream},
};

use super::Options;

/// Room for all rings together, and for one.
const RINGS_BYTES: u32 = 32 << 20;
const MAX_RING_BYTES: u32 = 16 << 20;
const MIN_RING_BYTES: u32 = 512 << 10;

/// Filters for the probes, from what was found.
pub(super) fn wanted(options: &Options) -> Wanted {
    let topology = &options.topology;
    let images = topology
        .guests
        .iter()
        .flat_map(|guest| &guest.disks)
        .flat_map(|disk| &disk.images);
    let loop_files = topology
        .devices
        .iter()
        .filter_map(|device| device.loop_file.as_ref());
    Wanted {
        devices: topology.devices.iter().map(|device| device.dev).collect(),
        processes: topology
            .guests
            .iter()
            .zip(0u32..)
            .map(|(guest, index)| (guest.pid, index))
            .collect(),
        inodes: images
            .chain(loop_files)
            .flat_map(|image| std::iter::once((image.inode, image.dev)).chain(image.opened))
            .collect(),
        mounts: None,
        ring_bytes: options.ring_bytes.unwrap_or_else(default_ring_bytes),
        done_slots: 0,
        sum_slots: 0,
        sum_from_start: false,
    }
}

/// A power of two that lets all rings together stay within [`RINGS_BYTES`].
fn default_ring_bytes() -> u32 {
    let share = (RINGS_BYTES / n_cpus().max(1)).clamp(MIN_RING_BYTES, MAX_RING_BYTES);
    1 << share.ilog2()
}

pub(super) fn manifest(options: &Options, probes: &Probes) -> Manifest {
    let host = this_machine();
    let mut manifest = Manifest::default();
    manifest.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    manifest.state = State::Recording;
    manifest.start_unix_ns = clock::realtime_ns();
    manifest.start_mono_ns = clock::monotonic_ns();
    manifest.detail = options.detail.name().to_owned();
    manifest.streams = vec![Stream {
        file: HOST_STREAM.to_owned(),
        side: "host".to_owned(),
        guest: None,
        backend: "ebpf".to_owned(),
        kernel: host.kernel.clone(),
        addresses: Addresses::Shifted,
    }];
    manifest.host = host;
    manifest.topology = options.topology.clone();
    manifest.probes = probes.attached.clone();
    manifest.refused = probes.refused.clone();
    manifest.losses = Source::ALL
        .iter()
        .map(|source| Loss {
            source: source.name().to_owned(),
            guest: None,
            events: 0,
        })
        .collect();
    manifest
}

/// The machine that this runs on.
#[must_use]
pub fn this_machine() -> Machine {
    let name = nix::sys::utsname::uname().ok();
    let text =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    Machine {
        hostname: text(name.as_ref().map(|n| n.nodename())),
        kernel: text(name.as_ref().map(|n| n.release())),
        arch: text(name.as_ref().map(|n| n.machine())),
        cpus: std::thread::available_parallelism()
            .map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
        page_size: 4096,
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}
