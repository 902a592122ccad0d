//! The rule about a guest's QEMU whose event loops the kernel counts as waits for I/O.
//!
//! QEMU 10.2 and later wait for events in io_uring, and a kernel that counts a wait in `io_uring_enter` as one for I/O (since 6.5,
//! while anything is in flight, and a wait for a descriptor is) sees an idle iothread as one that waits for a disk.

use nestrace_trace::manifest::{Guest, Manifest};

use super::{Case, Judgement, threshold};
use crate::measure::clues::DiskClues;
use crate::result::analysis::{Analysis, Evidence, Pressure};
use crate::result::units::{percent, share};

/// Iothreads that are named.
const MAX_NAMED: usize = 4;

/// Threads of a guest's QEMU wait for I/O although none is in flight.
pub(super) fn pressure_without_io(
    analysis: &Analysis,
    manifest: &Manifest,
    guest: &Guest,
    clues: &[DiskClues],
) -> Judgement {
    let rings = guest.event_rings.unwrap_or(0);
    // What a flight recorder keeps is not what the pressure was counted over.
    if rings == 0 || manifest.flight.is_some() {
        return Ok(None);
    }
    let of = |name: Option<&str>| {
        let mut all = analysis.pressure.iter();
        all.find(|it| it.guest.as_deref() == name)
    };
    let busy = in_flight(analysis, guest, clues);
    let unexplained = |it: &Pressure| {
        let waiting = share(it.some_ns, it.duration_ns);
        let much = waiting - busy >= threshold::PRESSURE && busy <= waiting / 2.0;
        much.then_some(waiting)
    };
    let Some(own) = of(Some(&guest.name)) else {
        return match of(None).and_then(unexplained) {
            Some(_) => Err(
                "QEMU has no cgroup (version 2) of its own, so its part of the host's I/O pressure is unknown",
            ),
            None => Ok(None),
        };
    };
    let Some(waiting) = unexplained(own) else {
        return Ok(None);
    };
    if own.other_processes != Some(0) {
        return Err("other processes in QEMU's cgroup may be what waits for I/O");
    }
    if analysis.trace.lost > 0 {
        return Err("events were lost");
    }
    let cgroup = own.cgroup.as_deref().unwrap_or_default();
    let iothreads = guest.threads.iter().filter_map(|it| it.iothread.as_deref());
    // The monitor's own waits in glib's loop, without a ring.
    let iothreads = iothreads.filter(|name| *name != "mon_iothread");
    let iothreads: Vec<&str> = iothreads.take(MAX_NAMED).collect();
    let who = match iothreads.as_slice() {
        [] => String::from("QEMU's event loop waits"),
        [one] => format!("QEMU's iothread {one} waits"),
        several => format!("QEMU's iothreads {} wait", several.join(", ")),
    };
    let mut evidence: std::collections::BTreeMap<&'static str, Evidence> = [
        ("pressure_share", Evidence::from(waiting)),
        ("full_share", share(own.full_ns, own.duration_ns).into()),
        ("io_in_flight_share", busy.into()),
        ("event_rings", u64::from(rings).into()),
        ("cgroup", cgroup.into()),
        ("qemu_version", guest.qemu_version.as_str().into()),
    ]
    .into();
    if let Some(host) = of(None) {
        let waiting = share(host.some_ns, host.duration_ns);
        evidence.insert("host_pressure_share", waiting.into());
    }
    Case {
        title: format!(
            "the I/O pressure of {} comes from QEMU's event loops, not from a slow disk",
            percent(waiting)
        ),
        explanation: format!(
            "The kernel counts I/O pressure in QEMU's cgroup {cgroup} for {} of the time. I/O of the guest is in flight for {} of \
             the time. {who} for events in io_uring, and the kernel counts that as a wait for I/O, also while nothing is to be \
             done. The same time is in /proc/pressure/io and in iowait of the host's processors.",
            percent(waiting),
            percent(busy)
        ),
        advice: vec![String::from(
            "Nothing is slow. Leave this cgroup out of alarms on I/O pressure and on iowait, and watch the latency of its requests \
             instead. QEMU waits without io_uring where `kernel.io_uring_disabled` forbids it. Risk: `aio=io_uring` then fails.",
        )],
        evidence,
        share: waiting,
        information: true,
    }
    .fires()
}

/// Part of the recording in which the guest had I/O in flight in QEMU or on the host. Disks that have some at the same time
/// count each, so that it is rather too much.
fn in_flight(analysis: &Analysis, guest: &Guest, clues: &[DiskClues]) -> f64 {
    let own = clues.iter().filter(|it| it.guest == guest.name);
    let ns: u64 = own.map(|it| it.qemu_ns.max(it.file_ns)).sum();
    share(ns, analysis.trace.duration_ns).min(1.0)
}
