//! I/O pressure (PSI) of the host and of each guest's cgroup, from a recording's begin to its end.

use std::fs::File;
use std::path::Path;

use nestrace_probes::{clock, proc_file};
use nestrace_trace::manifest::{IoPressure, PressureTotals, Topology};

use crate::cgroup::{self, Hierarchies};

/// `cgroup.procs` of a cgroup with thousands of processes.
const MAX_PROCS: usize = 64 << 10;

/// Files that are read at the begin and again at the end, when nothing can be opened any more.
#[derive(Debug, Default)]
pub(crate) struct PressureFiles {
    host: Option<Pressure>,
    /// By guest.
    guests: Vec<Option<Pressure>>,
}

/// One of them, and what it said at the begin.
#[derive(Debug)]
struct Pressure {
    file: File,
    cgroup: Option<String>,
    other_processes: Option<u32>,
    at_begin: PressureTotals,
}

impl PressureFiles {
    /// Opens and reads them: the host's, and those of the first so many guests.
    pub(crate) fn open(hierarchies: &Hierarchies, topology: &Topology, max_guests: usize) -> Self {
        let guests = topology.guests.iter().take(max_guests).map(|guest| {
            let (name, folder) = hierarchies.whole(guest.pid)?;
            let procs = proc_file::read(folder.join("cgroup.procs"), MAX_PROCS).ok();
            Some(Pressure {
                cgroup: Some(name),
                other_processes: procs.map(|procs| others(&procs.text(), guest.pid)),
                ..Pressure::open(&folder.join("io.pressure"))?
            })
        });
        Self {
            host: Pressure::open(Path::new("/proc/pressure/io")),
            guests: guests.collect(),
        }
    }

    /// Reads them again, and notes begin and end.
    pub(crate) fn note(&self, topology: &mut Topology) {
        topology.io_pressure = self.host.as_ref().and_then(Pressure::until_now);
        for (guest, pressure) in topology.guests.iter_mut().zip(&self.guests) {
            guest.io_pressure = pressure.as_ref().and_then(Pressure::until_now);
        }
    }
}

impl Pressure {
    /// `None` where the kernel does not count it: it can be opened then, but not read.
    fn open(path: &Path) -> Option<Self> {
        let file = cgroup::open(path).ok()?;
        Some(Self {
            at_begin: totals(&file)?,
            file,
            cgroup: None,
            other_processes: None,
        })
    }

    fn until_now(&self) -> Option<IoPressure> {
        Some(IoPressure {
            cgroup: self.cgroup.clone(),
            other_processes: self.other_processes,
            at_begin: self.at_begin,
            at_end: totals(&self.file)?,
        })
    }
}

fn totals(file: &File) -> Option<PressureTotals> {
    parse(&cgroup::text_of(file), clock::monotonic_ns())
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=21809`, and `full` in the same way.
fn parse(text: &str, mono_ns: u64) -> Option<PressureTotals> {
    let total = |kind: &str| -> Option<u64> {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let (_, sums) = lines.find(|(first, _)| *first == kind)?;
        let mut sums = sums.split_ascii_whitespace();
        sums.find_map(|sum| sum.strip_prefix("total="))?
            .parse()
            .ok()
    };
    Some(PressureTotals {
        mono_ns,
        some_us: total("some")?,
        full_us: total("full")?,
    })
}

/// Processes in `cgroup.procs` beside this one.
fn others(procs: &str, pid: u32) -> u32 {
    let pid = pid.to_string();
    let others = procs.lines().filter(|line| line.trim() != pid);
    u32::try_from(others.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_both_kinds() {
        let text = "some avg10=0.48 avg60=0.12 avg300=0.02 total=72149\n\
                    full avg10=0.48 avg60=0.12 avg300=0.02 total=70748\n";
        let totals = parse(text, 5).unwrap();
        assert_eq!(
            (totals.mono_ns, totals.some_us, totals.full_us),
            (5, 72_149, 70_748)
        );
        for nonsense in ["", "some total=1\n", "some total=x\nfull total=1\n"] {
            assert_eq!(parse(nonsense, 5), None, "{nonsense}");
        }
    }

    #[test]
    fn processes_beside_qemu() {
        assert_eq!(others("12\n", 12), 0);
        assert_eq!(others("12\n13\n120\n", 12), 2);
    }
}
