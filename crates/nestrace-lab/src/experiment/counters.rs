//! What a kernel counts by itself: `/proc/stat`, `/proc/vmstat` and a disk's `stat`, of the host or of a
//! guest.

use nestrace_report::lab::Counters;

/// Counts at one time, as texts of the kernel's files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Ticks: user, nice, system, idle, iowait, irq, softirq.
    cpu: [u64; 7],
    switches: u64,
    paged_in_kib: u64,
    paged_out_kib: u64,
    /// The first 17 fields of the disk's `stat`.
    disk: [u64; 17],
    /// Seconds since the boot.
    pub(super) uptime_s: f64,
}

/// Bytes of a sector of `stat`.
const SECTOR: u64 = 512;

/// Shell that prints what [`Snapshot::parse`] reads, of the disk `$name`.
pub(super) const SHELL: &str = "grep -E '^(cpu |ctxt )' /proc/stat; grep '^pgpg' /proc/vmstat; \
     echo uptime $(cat /proc/uptime); echo disk $(cat /sys/block/$name/stat)";

impl Snapshot {
    /// Reads the lines that it knows; others are passed over.
    pub(super) fn parse(text: &str) -> Self {
        let mut snapshot = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let first = line.split_whitespace().nth(1);
            let number = || first.and_then(|word| word.parse().ok()).unwrap_or(0);
            let fill = |fields: &mut [u64]| {
                for (field, word) in fields.iter_mut().zip(words) {
                    *field = word.parse().unwrap_or(0);
                }
            };
            match name {
                "cpu" => fill(&mut snapshot.cpu),
                "disk" => fill(&mut snapshot.disk),
                "ctxt" => snapshot.switches = number(),
                "pgpgin" => snapshot.paged_in_kib = number(),
                "pgpgout" => snapshot.paged_out_kib = number(),
                "uptime" => {
                    snapshot.uptime_s = first.and_then(|word| word.parse().ok()).unwrap_or(0.0);
                }
                _ => {}
            }
        }
        snapshot
    }

    /// This machine's, of a device (`loop0`, `sdb1`).
    pub(super) fn of_host(device: &str) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let disk = read(&format!("/sys/class/block/{device}/stat"));
        let text = format!(
            "{}\n{}\nuptime {}\ndisk {disk}",
            read("/proc/stat"),
            read("/proc/vmstat"),
            read("/proc/uptime")
        );
        Self::parse(&text)
    }

    /// What happened since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Counters {
        let cpu: Vec<u64> = self
            .cpu
            .iter()
            .zip(&earlier.cpu)
            .map(|(now, before)| now.saturating_sub(*before))
            .collect();
        let ticks: u64 = cpu.iter().sum();
        let share = |places: &[usize]| {
            let part: u64 = places.iter().filter_map(|place| cpu.get(*place)).sum();
            part as f64 / ticks.max(1) as f64
        };
        let disk = |field: usize| {
            let of = |snapshot: &Self| snapshot.disk.get(field).copied().unwrap_or(0);
            of(self).saturating_sub(of(earlier))
        };
        let seconds = (self.uptime_s - earlier.uptime_s).max(0.001);
        let elapsed_ms = seconds * 1e3;
        Counters {
            seconds: Some(seconds),
            cpu_user: share(&[0, 1]),
            cpu_system: share(&[2, 5, 6]),
            cpu_iowait: share(&[4]),
            context_switches: self.switches.saturating_sub(earlier.switches),
            paged_in_kib: self.paged_in_kib.saturating_sub(earlier.paged_in_kib),
            paged_out_kib: self.paged_out_kib.saturating_sub(earlier.paged_out_kib),
            disk_reads: disk(0),
            disk_writes: disk(4),
            disk_read_bytes: disk(2) * SECTOR,
            disk_write_bytes: disk(6) * SECTOR,
            disk_flushes: disk(15),
            disk_utilisation: (disk(9) as f64 / elapsed_ms).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_counts_between_two_times() {
        let before = Snapshot::parse(
            "cpu  10 0 10 80 0 0 0 0\nctxt 5\nuptime 1.00 2.00\ndisk 1 0 8 0 1 0 8 0 0 0 0 0 0 0 0 0 0",
        );
        let after = Snapshot::parse(
            "cpu  20 10 20 110 30 5 5 0\nctxt 105\npgpgin 4\npgpgout 8\nuptime 3.00 5.00\n\
             disk 11 0 28 0 5 0 108 0 0 1000 0 0 0 0 0 7 0\nother 1",
        );
        let counters = after.since(&before);
        assert_eq!((counters.cpu_user, counters.cpu_system), (0.2, 0.2));
        assert_eq!(counters.cpu_iowait, 0.3);
        assert_eq!(counters.context_switches, 100);
        assert_eq!((counters.disk_reads, counters.disk_writes), (10, 4));
        assert_eq!(counters.disk_write_bytes, 100 * 512);
        assert_eq!((counters.disk_flushes, counters.disk_utilisation), (7, 0.5));
        assert_eq!(counters.seconds, Some(2.0));
        assert_eq!((counters.paged_in_kib, counters.paged_out_kib), (4, 8));
        assert_eq!(before.since(&after).context_switches, 0);
    }
}
