//! Which of a guest's disks are known already, when the guest lists them again: after a resize, or when one was
//! plugged in. A device number can be used again, by the same disk or by another.

use nestrace_trace::manifest::GuestDisk;

/// [`nestrace_trace::manifest::Notice::what`] of the lines that [`merge_disks`] returns.
pub const DISK_REPLACED: &str = "disk_replaced";

/// What a disk is to the one that had its device number before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// That one.
    Same,
    /// Another one.
    Other,
    /// One that was plugged in and looks like it.
    Unclear,
}

/// When a guest was looked at, on its `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Until then the last list of disks was right.
    pub held_ns: u64,
    /// From then on the new list is right.
    pub now_ns: u64,
}

/// Takes over a guest's list of its disks, by device number. A disk that is gone stays in the list, because its events
/// name it, with the time until which it was surely there. A resized disk keeps its first size, because QEMU's disk is
/// known by that size too. Another disk under the same number is a new entry. Returns a line for each such disk.
pub fn merge_disks(known: &mut Vec<GuestDisk>, new: Vec<GuestDisk>, look: Look) -> Vec<String> {
    let mut told = Vec::new();
    // 0 would say that it was never gone.
    let until_ns = look.held_ns.clamp(1, look.now_ns.max(1));
    for gone in known.iter_mut().filter(|disk| disk.until_mono_ns == 0) {
        if !new.iter().any(|disk| disk.dev == gone.dev) {
            gone.until_mono_ns = until_ns;
        }
    }
    for disk in new {
        let before = known.iter_mut().rfind(|known| known.dev == disk.dev);
        let Some(before) = before else {
            known.push(disk);
            continue;
        };
        let again = again(before, &disk);
        let name = &disk.name;
        match again {
            Again::Same => {}
            Again::Other => told.push(format!(
                "the device number of {} now belongs to another disk: it is {name} from {:.3} s of the guest's clock on, and counted separately",
                before.name,
                look.now_ns as f64 / 1e9
            )),
            Again::Unclear => told.push(format!(
                "{name} was unplugged, and it or a disk like it was plugged in: without a serial number they cannot be distinguished, so both are counted as one"
            )),
        }
        if again == Again::Other {
            if before.until_mono_ns == 0 {
                before.until_mono_ns = until_ns;
            }
            known.push(GuestDisk {
                since_mono_ns: look.now_ns,
                ..disk
            });
        } else {
            *before = GuestDisk {
                size: before.size,
                since_mono_ns: before.since_mono_ns,
                ..disk
            };
        }
    }
    told
}

fn again(before: &GuestDisk, disk: &GuestDisk) -> Again {
    let same_serial = before.serial == disk.serial;
    let same_name = before.name == disk.name;
    let never_gone = match (before.diskseq, disk.diskseq) {
        // Nothing tells that it was gone.
        (0, _) | (_, 0) => same_serial && same_name && before.sysfs_path == disk.sysfs_path,
        (before, now) => before == now,
    };
    if never_gone || same_serial && !disk.serial.is_empty() {
        Again::Same
    } else if same_serial && same_name && before.size == disk.size {
        Again::Unclear
    } else {
        Again::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size, serial number, sequence number.
    type Facts = (u64, &'static str, u64);

    fn vda((size, serial, diskseq): Facts) -> GuestDisk {
        GuestDisk {
            name: "vda".to_owned(),
            dev: 254 << 20,
            size,
            serial: serial.to_owned(),
            diskseq,
            sysfs_path: "/sys/devices/pci0000:00/0000:00:04.0/virtio1/block/vda".to_owned(),
            ..GuestDisk::default()
        }
    }

    fn look(now_ns: u64) -> Look {
        Look {
            held_ns: now_ns - 1,
            now_ns,
        }
    }

    /// What is known of vda after the guest listed it so often, each with its time; and the number of lines.
    fn told(all: &[Facts]) -> (Vec<(u64, String, u64)>, usize) {
        let (mut known, mut n_lines) = (Vec::new(), 0);
        for (mono_ns, facts) in (100..).zip(all) {
            n_lines += merge_disks(&mut known, vec![vda(*facts)], look(mono_ns)).len();
        }
        // Each but the last was there when it was looked at before another one was.
        for pair in known.windows(2) {
            assert_eq!(pair[0].until_mono_ns, pair[1].since_mono_ns - 1);
        }
        assert_eq!(known.last().map(|disk| disk.until_mono_ns), Some(0));
        let known = known.into_iter();
        let known = known.map(|disk| (disk.size, disk.serial, disk.since_mono_ns));
        (known.collect(), n_lines)
    }

    fn check(all: &[Facts], expected: &[Facts], n_lines: usize) {
        let expected = expected
            .iter()
            .map(|(size, serial, since_ns)| (*size, (*serial).to_owned(), *since_ns));
        assert_eq!(told(all), (expected.collect(), n_lines), "{all:?}");
    }

    #[test]
    fn a_resized_disk_keeps_the_size_that_it_had() {
        check(&[(10, "", 7), (20, "", 7), (30, "", 7)], &[(10, "", 0)], 0);
        check(&[(10, "a", 0), (20, "a", 0)], &[(10, "a", 0)], 0);
        check(&[(10, "", 0), (20, "", 0)], &[(10, "", 0)], 0);
    }

    #[test]
    fn a_disk_that_comes_back_is_the_same() {
        check(&[(10, "a", 7), (10, "a", 8)], &[(10, "a", 0)], 0);
        check(&[(10, "a", 7), (20, "a", 8)], &[(10, "a", 0)], 0);
    }

    #[test]
    fn another_disk_under_the_number_is_one_of_its_own() {
        let serials = [(10, "a", 7), (10, "b", 8), (10, "b", 8)];
        check(&serials, &[(10, "a", 0), (10, "b", 101)], 1);
        check(
            &[(10, "", 7), (20, "", 8), (30, "", 8)],
            &[(10, "", 0), (20, "", 101)],
            1,
        );
        check(
            &[(10, "a", 0), (10, "b", 0)],
            &[(10, "a", 0), (10, "b", 101)],
            1,
        );
        check(
            &[(10, "a", 7), (10, "b", 8), (10, "a", 9)],
            &[(10, "a", 0), (10, "b", 101), (10, "a", 102)],
            2,
        );
        let mut known = vec![vda((10, "", 7))];
        let renamed = GuestDisk {
            name: "nvme1n1".to_owned(),
            ..vda((10, "", 8))
        };
        assert_eq!(merge_disks(&mut known, vec![renamed], look(5)).len(), 1);
        assert_eq!(known.len(), 2);
    }

    #[test]
    fn what_nothing_tells_apart_is_said_once() {
        check(&[(10, "", 7), (10, "", 8), (10, "", 8)], &[(10, "", 0)], 1);
        let mut known = vec![vda((10, "", 0))];
        let moved = GuestDisk {
            sysfs_path: "/sys/devices/pci0000:00/0000:00:09.0/virtio1/block/vda".to_owned(),
            ..vda((10, "", 0))
        };
        assert_eq!(
            merge_disks(&mut known, vec![moved.clone()], look(5)).len(),
            1
        );
        assert_eq!(known.first(), Some(&moved));
        assert_eq!(
            merge_disks(&mut known, vec![moved], look(6)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_disk_that_is_gone_stays_beside_the_others() {
        let disk = |dev, until_mono_ns| GuestDisk {
            dev,
            until_mono_ns,
            ..GuestDisk::default()
        };
        let mut known = vec![disk(1, 0), disk(2, 0)];
        let mut says = |disks: &[u32], now_ns| {
            let disks = disks.iter().map(|dev| disk(*dev, 0)).collect();
            assert!(merge_disks(&mut known, disks, look(now_ns)).is_empty());
            let known = known.iter();
            let known = known.map(|disk| (disk.dev, disk.until_mono_ns));
            known.collect::<Vec<_>>()
        };
        assert_eq!(says(&[3, 1], 5), [(1, 0), (2, 4), (3, 0)]);
        assert_eq!(says(&[1], 9), [(1, 0), (2, 4), (3, 8)]);
        // It came back.
        assert_eq!(says(&[1, 2], 20), [(1, 0), (2, 0), (3, 8)]);
    }

    #[test]
    fn another_one_that_comes_after_a_while_leaves_the_first_its_last_look() {
        let mut known = vec![vda((10, "a", 7))];
        for (disks, now_ns) in [(vec![], 20), (vec![], 30), (vec![vda((10, "b", 8))], 40)] {
            merge_disks(&mut known, disks, look(now_ns));
        }
        let times = known.iter();
        let times = times.map(|disk| (disk.since_mono_ns, disk.until_mono_ns));
        assert_eq!(times.collect::<Vec<_>>(), [(0, 19), (40, 0)]);
    }
}
