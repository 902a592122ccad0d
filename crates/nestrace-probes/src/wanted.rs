//! What the probes are to look at, and the object with what depends on it.

use std::collections::BTreeSet;

use aya::{Ebpf, EbpfLoader};
use nestrace_abi::{
    layout::{BY_MOUNT, DONE_SLOTS, JIFFY_NS},
    maps::{DONE, DONE_COUNTS, IN_FLIGHT_BY_MOUNT},
};

use crate::{ProbeError, globals::Globals, load_error, rings::n_cpus, sums};

/// Room in a map that the probes do not use.
const UNUSED_MAP_ENTRIES: u32 = 1;

/// What the probes are to look at.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Device numbers (`MAJOR << 20 | MINOR`) of disks and partitions.
    pub devices: BTreeSet<u32>,
    /// Processes, each with its guest's index.
    pub processes: Vec<(u32, u32)>,
    /// Image files (and loop backing files): inode and device of the super block.
    pub inodes: BTreeSet<(u64, u32)>,
    /// A guest's way to choose file I/O, in place of `processes` and `inodes`.
    pub mounts: Option<Mounts>,
    /// Bytes of one processor's ring; a power of two, at least one page.
    pub ring_bytes: u32,
    /// Places of a processor, a power of two, for whole requests of light detail:
    /// [`Probes::done_mut`](crate::load::Probes::done_mut) finds them there. With 0 they come through the rings, as they must
    /// where tracepoints may be preempted.
    pub done_slots: u32,
    /// Slots for the sums of disks, devices and images: the probes sum then instead of sending anything
    /// ([`Probes::sums`](crate::load::Probes::sums)). Plan with [`Detail::Sums`](nestrace_kernel::plan::Detail::Sums). 0: they do not.
    pub sum_slots: u32,
    /// With [`Self::sum_slots`], in a guest: a request's latency is from its start to C, not from D, and what QEMU does is not
    /// summed.
    pub sum_from_start: bool,
}

/// File I/O of every process on regular files of these super blocks, whatever the process: plain `read`
/// and `write` included. Plan with [`nestrace_kernel::plan::Wanted::mounts`].
///
/// ```
/// use nestrace_probes::load::{Mounts, Wanted};
/// let wanted = Wanted {
///     devices: [(254 << 20)].into(),
///     mounts: Some(Mounts {
///         devices: [(254 << 20) | 1].into(),
///         except: vec![std::process::id()],
///     }),
///     ring_bytes: 1 << 20,
///     ..Wanted::default()
/// };
/// assert!(wanted.processes.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    /// Device numbers (`MAJOR << 20 | MINOR`) of super blocks, as `/proc/self/mountinfo` shows them: those of
    /// btrfs are not what `stat` shows of a file.
    pub devices: BTreeSet<u32>,
    /// Processes that are left out: who writes the recording itself must be.
    pub except: Vec<u32>,
}

/// The object with this kernel's globals, and room in its maps for what is wanted; no program is loaded yet.
pub(super) fn load_with(
    object: &[u8],
    globals: &Globals,
    wanted: &Wanted,
) -> Result<Ebpf, ProbeError> {
    let mut loader = EbpfLoader::new();
    let by_mount = u8::from(wanted.mounts.is_some());
    let summing = sums::summing(wanted.sum_slots, wanted.sum_from_start);
    loader.override_global(BY_MOUNT, &by_mount, true);
    loader.override_global(DONE_SLOTS, &wanted.done_slots, true);
    let n_done = n_cpus().saturating_mul(wanted.done_slots);
    loader.map_max_entries(DONE, n_done.max(UNUSED_MAP_ENTRIES));
    loader.map_max_entries(DONE_COUNTS, n_cpus());
    sums::size_maps(&mut loader, &summing, wanted.sum_slots);
    if wanted.mounts.is_none() {
        for name in IN_FLIGHT_BY_MOUNT {
            loader.map_max_entries(name, UNUSED_MAP_ENTRIES);
        }
    }
    for (name, value) in &globals.fields {
        loader.override_global(name, value, false);
    }
    for (name, value) in &globals.addresses {
        loader.override_global(name, value, false);
    }
    loader.override_global(JIFFY_NS, &globals.jiffy_ns, false);
    for (name, value) in &globals.constants {
        loader.override_global(name, value, false);
    }
    loader.load(object).map_err(load_error)
}
