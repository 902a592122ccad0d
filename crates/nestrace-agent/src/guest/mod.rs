//! What the guest has: machine, disks, mounts; and what the agent needs mounted.

pub mod disks;
pub mod filesystems;
pub mod memory;
pub mod mounts;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use nestrace_probes::clock;
use nestrace_trace::manifest::{GuestDisk, GuestMount, Machine};
use nestrace_wire::{AgentHello, VERSION};
use nix::unistd::{SysconfVar, sysconf};

/// The facts of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Disks to record.
    pub disks: Vec<GuestDisk>,
    /// File systems on them.
    pub mounts: Vec<GuestMount>,
    /// Disks that were asked for and are not there.
    pub missing: Vec<String>,
}

impl Facts {
    /// Looks at sysfs and mountinfo. `names`: the disks to record; all of them if empty.
    #[must_use]
    pub fn gather(names: &[String]) -> Self {
        Self::default().again(names)
    }

    /// Looks again, without asking the disks themselves anything.
    #[must_use]
    pub fn again(&self, names: &[String]) -> Self {
        let (disks, missing) = disks::find(names, &self.disks);
        let mounts = mounts::on(&disks);
        Self {
            disks,
            mounts,
            missing,
        }
    }

    /// Device numbers of the disks.
    pub fn devices(&self) -> BTreeSet<u32> {
        self.disks.iter().map(|disk| disk.dev).collect()
    }

    /// Device numbers of the mounted file systems.
    pub fn mounted(&self) -> BTreeSet<u32> {
        self.mounts.iter().map(|mount| mount.dev).collect()
    }

    /// As the first message of a session says it.
    #[must_use]
    pub fn hello(&self, session: u64, backend: &str, reason: &str) -> AgentHello {
        AgentHello {
            protocol: VERSION,
            session,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: backend.to_owned(),
            backend_reason: reason.to_owned(),
            machine: machine(),
            memory: memory::now(),
            unix_ns: clock::realtime_ns(),
            mono_ns: clock::monotonic_ns(),
            disks: self.disks.clone(),
            mounts: self.mounts.clone(),
            missing: self.missing.clone(),
            held_mono_ns: 0,
            clock_correction_ppm: None,
        }
    }
}

/// What tells cheaply whether the facts may have changed: reading them all takes dozens of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    disks: BTreeMap<OsString, u64>,
    mounts: Vec<u8>,
}

impl Surroundings {
    /// Names and sequence numbers of the block devices, and the table of mounts.
    #[must_use]
    pub fn now() -> Self {
        let entries = std::fs::read_dir(disks::BLOCK).into_iter().flatten();
        Self {
            disks: entries
                .flatten()
                .map(|entry| (entry.file_name(), disks::diskseq(&entry.path())))
                .collect(),
            mounts: std::fs::read("/proc/1/mountinfo").unwrap_or_default(),
        }
    }
}

/// This machine.
fn machine() -> Machine {
    let name = nix::sys::utsname::uname().ok();
    let text =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let number = |of| sysconf(of).ok().flatten().map_or(0, i64::unsigned_abs);
    Machine {
        hostname: text(name.as_ref().map(|n| n.nodename())),
        kernel: text(name.as_ref().map(|n| n.release())),
        arch: text(name.as_ref().map(|n| n.machine())),
        cpus: u32::try_from(number(SysconfVar::_NPROCESSORS_ONLN)).unwrap_or(0),
        page_size: number(SysconfVar::PAGE_SIZE),
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}
