//! The rings that carry records to user space, and the counters of records that found no room.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP,
    btf_maps::{Array, ArrayOfMaps, HashMap, PerCpuArray, RingBuf},
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_map,
};
use nestrace_abi::{
    Kind, OwnedRecord, Owner, Record, Source,
    maps::FirstDevices,
};

use crate::layout::ALL_DEVICES;

/// One ring per processor; the collector creates them with the size that it wants.
#[btf_map]
static RINGS: ArrayOfMaps<RingBuf<OwnedRecord, 4096>, 512> = ArrayOfMaps::new();

#[btf_map]
static DROPS: PerCpuArray<u64, 8> = PerCpuArray::new();

#[btf_map]
static DEVICES: HashMap<u32, u32, 1024> = HashMap::new();

/// A look at it costs a fraction of one into [`DEVICES`], and every event of a recorded disk takes one.
#[btf_map]
static FIRST_DEVICES: Array<FirstDevices, 1> = Array::new();

#[btf_map]
static PROCESSES: HashMap<u32, u32, 1024> = HashMap::new();

/// The number of the recording while events are wanted, else 0: the collector attaches first and opens the
/// gate when everything is in place, and closes it before the last drain.
#[btf_map]
static GATE: Array<u32, 1> = Array::new();

/// Whether the collector wants events now.
#[inline(always)]
pub fn open() -> bool {
    recording() != 0
}

/// The number of the recording, 0 while there is none. What the probes remember bears it, because they may
/// stay loaded from one recording to the next.
#[inline(always)]
pub fn recording() -> u32 {
    GATE.get(0).copied().unwrap_or_default()
}

/// Whether block events of this disk are wanted.
#[inline(always)]
pub fn wants_device(dev: u32) -> bool {
    if ALL_DEVICES.load() != 0 {
        return true;
    }
    if dev != 0 && FIRST_DEVICES.get(0).is_some_and(|first| first.contains(&dev)) {
        return true;
    }
    // SAFETY: the value is read at once; the map is only changed by the collector.
    unsafe { DEVICES.get(&dev) }.is_some()
}

/// What the collector gave a disk in the map of wanted ones.
#[inline(always)]
pub fn value_of_device(dev: u32) -> Option<u32> {
    // SAFETY: as above.
    unsafe { DEVICES.get(&dev) }.copied()
}

/// The guest that the current process belongs to, if it is traced.
#[inline(always)]
pub fn current_guest() -> Option<u32> {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: as above.
    unsafe { PROCESSES.get(&tgid) }.copied()
}

/// A record of this kind with time, processor and thread filled in.
#[inline(always)]
pub fn stamp(kind: Kind) -> Record {
    Record {
        // SAFETY: no preconditions.
        ts_ns: unsafe { bpf_ktime_get_ns() },
        kind: kind as u8,
        sub: 0,
        // SAFETY: no preconditions.
        cpu: unsafe { bpf_get_smp_processor_id() } as u16,
        tid: bpf_get_current_pid_tgid() as u32,
        ..Record::default()
    }
}

/// Sends a plain record.
#[inline(always)]
pub fn send(record: Record, source: Source) {
    send_as(record, record.cpu, source);
}

/// Sends a record together with its owner.
#[inline(always)]
pub fn send_owned(record: Record, owner: Owner, source: Source) {
    send_as(OwnedRecord { record, owner }, record.cpu, source);
}

#[inline(always)]
fn send_as<T: Copy + 'static>(value: T, cpu: u16, source: Source) {
    if let Some(ring) = RINGS.get(u32::from(cpu))
        && let Some(mut entry) = ring.reserve_untyped::<T>(0)
    {
        entry.write(value);
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
        return;
    }
    count_drop(source);
}

/// Counts one record of `source` that could not be delivered.
#[inline(always)]
pub fn count_drop(source: Source) {
    if let Some(count) = DROPS.get_ptr_mut(source as u32) {
        // SAFETY: the slot is valid for the program's run. Atomic, because a probe of a block event can
        // interrupt one of a system call on the same processor.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(count, 1) };
    }
}
