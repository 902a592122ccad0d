//! What a run takes place on, and whether it will do.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nestrace_report::lab::Machine;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::has_kvm;
use nix::sys::statvfs::statvfs;

use super::guest_data::Wanted;
use super::stage::Guests;
use super::{LabError, own_guest};
use crate::plan::{Estimate, Plan};

/// Describes the machine, itself a guest or not; of guests that are booted the accelerator is known once one runs.
pub(super) fn describe(guests: &Guests, is_guest: bool) -> Result<Machine, LabError> {
    let first_line = |program: &str| {
        let text = Tool::new(program)
            .arg("--version")
            .run()
            .unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (guest_kernel, fio, accelerator) = match guests {
        Guests::Booted(parts) => {
            let accelerator = if has_kvm() { "" } else { "tcg" };
            (parts.kernel.release.clone(), first_line("fio"), accelerator)
        }
        Guests::Own(own) => own_guest::about(own)?,
    };
    Ok(Machine {
        host_kernel: release.trim().to_owned(),
        host_is_guest: is_guest,
        guest_kernel,
        qemu: first_line("qemu-system-x86_64"),
        fio,
        nestrace: env!("CARGO_PKG_VERSION").to_owned(),
        accelerator: accelerator.to_owned(),
        processors: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: memory("MemTotal:"),
    })
}

/// What of a machine bears on the figures, and is another than before: its name, and the word of each. What one of the
/// two does not say is not compared.
pub(super) fn difference(before: &Machine, now: &Machine) -> Option<(&'static str, [String; 2])> {
    let words = |machine: &Machine| {
        let processors = match machine.processors {
            0 => String::new(),
            n => n.to_string(),
        };
        [
            ("kernel", machine.host_kernel.clone()),
            ("guests' kernel", machine.guest_kernel.clone()),
            ("QEMU", machine.qemu.clone()),
            ("fio", machine.fio.clone()),
            ("number of processors", processors),
            ("accelerator", machine.accelerator.clone()),
        ]
    };
    let both = words(before).into_iter().zip(words(now));
    let mut both = both.map(|((what, before), (_, now))| (what, [before, now]));
    both.find(|(_, [before, now])| before != now && !before.is_empty() && !now.is_empty())
}

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Memory that guests can have, bytes.
    pub(super) memory_bytes: u64,
    /// Space where devices, images and results lie, bytes.
    pub(super) disk_bytes: u64,
}

/// What is left for a run in `folder`.
pub(super) fn room(folder: &Path) -> Room {
    Room {
        memory_bytes: memory("MemAvailable:"),
        // A file system in memory without a limit has no blocks.
        disk_bytes: statvfs(folder)
            .ok()
            .filter(|about| about.blocks() > 0)
            .map_or(u64::MAX, |about| {
                about.blocks_available() * about.fragment_size()
            }),
    }
}

/// `cache_bytes` are those that come to lie beside devices and images.
fn check_room(
    estimate: &Estimate,
    cache_bytes: u64,
    room: &Room,
    folder: &Path,
) -> Result<(), LabError> {
    if room.memory_bytes < estimate.memory_bytes {
        return Err(LabError::NoMemory {
            needed_mib: estimate.memory_bytes.div_ceil(MIB),
            available_mib: room.memory_bytes / MIB,
        });
    }
    let needed = estimate.work_bytes + estimate.result_bytes + cache_bytes;
    if room.disk_bytes < needed {
        return Err(LabError::NoSpace {
            folder: folder.to_owned(),
            needed_mib: needed.div_ceil(MIB),
            available_mib: room.disk_bytes / MIB,
        });
    }
    Ok(())
}

/// Refuses where disk or memory will not do for a run in `work`, with what it still wants in the cache, which may lie on
/// the same file system.
pub(super) fn check_rooms(
    estimate: &Estimate,
    work: &Path,
    wanted: Option<&Wanted>,
) -> Result<(), LabError> {
    let mut beside = 0;
    if let Some(wanted) = wanted {
        let (cache, bytes) = (wanted.cache(), wanted.missing_bytes());
        if is_one_file_system(work, cache) {
            beside = bytes;
        } else {
            check_cache_room(bytes, &room(cache), cache)?;
        }
    }
    check_room(estimate, beside, &room(work), work)
}

fn is_one_file_system(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|about| about.dev()).ok();
    device(one).is_some_and(|number| device(other) == Some(number))
}

fn check_cache_room(needed: u64, room: &Room, folder: &Path) -> Result<(), LabError> {
    if room.disk_bytes < needed {
        return Err(LabError::NoCacheSpace {
            folder: folder.to_owned(),
            needed_mib: needed.div_ceil(MIB),
            available_mib: room.disk_bytes / MIB,
        });
    }
    Ok(())
}

/// Refuses where a guest's initramfs with its programs and trees of files, which is there until it has booted, will not
/// find room.
pub(super) fn check_temporary_room(
    plan: &Plan,
    room: &Room,
    folder: &Path,
) -> Result<(), LabError> {
    // What is added to it is there by itself and in the whole.
    let needed = BOOT_BYTES + 2 * plan.archive_bytes();
    if room.disk_bytes < needed {
        return Err(LabError::NoTemporarySpace {
            folder: folder.to_owned(),
            needed_mib: needed.div_ceil(MIB),
            available_mib: room.disk_bytes / MIB,
        });
    }
    Ok(())
}

/// The initramfs has some 110 MiB, agent and sysbench some ten.
const BOOT_BYTES: u64 = 256 * MIB;
const MIB: u64 = 1 << 20;

/// A row of `/proc/meminfo`, bytes.
fn memory(row: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(row));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_temporary_folder_is_refused_before_a_guest_boots() {
        let room = |disk_bytes| Room {
            memory_bytes: 0,
            disk_bytes,
        };
        let folder = Path::new("/tmp");
        // The archive of 4,000 files has some 66 MiB.
        for (workload, trees, said) in [
            ("randread", 0, "/tmp: 256 MiB are needed, 255 MiB are free"),
            (
                "unpack-tree",
                2 * 4_000 * (17 << 10),
                "/tmp: 389 MiB are needed, 388 MiB are free",
            ),
        ] {
            let text = format!("name = 'p'\n[[workload]]\nname = '{workload}'\n");
            let plan = Plan::read(&text).unwrap();
            let needed = BOOT_BYTES + trees;
            check_temporary_room(&plan, &room(needed), folder).unwrap();
            let error = check_temporary_room(&plan, &room(needed - 1), folder).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn a_byte_too_little_is_refused_with_what_is_needed() {
        let plan = Plan::read("name = 'p'\n[[workload]]\nname = 'randwrite'\n").unwrap();
        let estimate = plan.estimate();
        let needed = estimate.work_bytes + estimate.result_bytes;
        let enough = Room {
            memory_bytes: estimate.memory_bytes,
            disk_bytes: needed,
        };
        let folder = Path::new("/results");
        check_room(&estimate, 0, &enough, folder).unwrap();
        let beside = check_room(&estimate, 1, &enough, folder).unwrap_err();
        assert!(matches!(beside, LabError::NoSpace { .. }), "{beside}");
        let disk = Room {
            disk_bytes: needed - 1,
            ..enough
        };
        let error = check_room(&estimate, 0, &disk, folder).unwrap_err();
        let LabError::NoSpace {
            needed_mib,
            available_mib,
            ..
        } = error
        else {
            panic!("{error}");
        };
        // In whole MiB it is still seen that it does not fit.
        assert!(needed_mib > available_mib, "{needed_mib} {available_mib}");
        let memory = Room {
            memory_bytes: estimate.memory_bytes - 1,
            ..enough
        };
        let error = check_room(&estimate, 0, &memory, folder).unwrap_err();
        assert!(matches!(error, LabError::NoMemory { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("1024 MiB of memory are needed, 1023 MiB"),
            "{text}"
        );
    }

    #[test]
    fn a_cache_on_another_disk_is_looked_at_by_itself() {
        let room = Room {
            memory_bytes: 0,
            disk_bytes: 2 * MIB - 1,
        };
        let folder = Path::new("/cache");
        check_cache_room(2 * MIB - 1, &room, folder).unwrap();
        let error = check_cache_room(2 * MIB, &room, folder).unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with("/cache: 2 MiB are needed, 1 MiB are free"),
            "{text}"
        );
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("cache");
        std::fs::create_dir(&inside).unwrap();
        assert!(is_one_file_system(root.path(), &inside));
        assert!(!is_one_file_system(root.path(), Path::new("/proc")));
    }

    #[test]
    fn another_kernel_is_another_machine() {
        let before = Machine {
            host_kernel: String::from("6.1"),
            qemu: String::from("QEMU 7.2"),
            processors: 2,
            memory_bytes: 1 << 30,
            ..Machine::default()
        };
        let same = Machine {
            fio: String::from("fio-3.33"),
            memory_bytes: 2 << 30,
            ..before.clone()
        };
        assert_eq!(difference(&before, &same), None);
        let kernel = Machine {
            host_kernel: String::from("6.12"),
            ..before.clone()
        };
        let told = ["6.1", "6.12"].map(str::to_owned);
        assert_eq!(difference(&before, &kernel), Some(("kernel", told)));
        let larger = Machine {
            processors: 4,
            ..before.clone()
        };
        let told = ["2", "4"].map(str::to_owned);
        assert_eq!(
            difference(&before, &larger),
            Some(("number of processors", told))
        );
    }

    #[test]
    fn recordings_that_are_there_need_no_room_again() {
        let plan = Plan::read("name = 'p'\n[[workload]]\nname = 'randwrite'\n").unwrap();
        let fresh = plan.estimate();
        let rest = fresh.without_recordings(&plan, 1);
        assert_eq!(rest.result_bytes * 2, fresh.result_bytes);
        assert_eq!(rest.work_bytes, fresh.work_bytes);
        assert_eq!(fresh.without_recordings(&plan, 99).result_bytes, 0);
    }
}
