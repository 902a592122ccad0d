//! I/O pressure, from the sums of a recording's begin and end.

use nestrace_trace::manifest::{IoPressure, Topology};

use crate::result::analysis::Pressure;

/// The host's, then that of each guest that is asked for.
pub(super) fn of(topology: &Topology, takes_guest: impl Fn(&str) -> bool) -> Vec<Pressure> {
    let host = topology.io_pressure.as_ref().map(|it| pressure(None, it));
    let guests = topology.guests.iter();
    let guests = guests.filter(|guest| takes_guest(&guest.name));
    let of_guests = guests.filter_map(|guest| {
        let name = Some(guest.name.clone());
        Some(pressure(name, guest.io_pressure.as_ref()?))
    });
    host.into_iter().chain(of_guests).collect()
}

fn pressure(guest: Option<String>, counted: &IoPressure) -> Pressure {
    let (begin, end) = (counted.at_begin, counted.at_end);
    let ns = |begin: u64, end: u64| end.saturating_sub(begin).saturating_mul(1000);
    Pressure {
        guest,
        cgroup: counted.cgroup.clone(),
        other_processes: counted.other_processes,
        duration_ns: end.mono_ns.saturating_sub(begin.mono_ns),
        some_ns: ns(begin.some_us, end.some_us),
        full_ns: ns(begin.full_us, end.full_us),
    }
}
