//! From facts to a sentence for each guest.
//!
//! A guest is *stuck* where I/O of it waited through the whole time between the samples and none of that disk completed, or
//! where something that lets no I/O through is proven: a suspended device, a frozen file system, a stopped process. I/O that
//! goes on, however slowly, is never called stuck.

mod chain;
mod holder;
mod limit;
mod process;
mod sentence;
mod waiting;

use serde::Serialize;

use crate::facts::{DeviceFacts, Facts, GuestFacts, HostFacts};
use chain::Chain;
use waiting::Waiting;

/// Name and version of the JSON.
pub const SCHEMA: &str = "nestrace-stuck/1";

/// The answer: a sentence for each guest, and the facts behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Answer {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// When the second sample was taken: nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Time between the two samples, in nanoseconds.
    pub interval_ns: u64,
    /// The guests.
    pub guests: Vec<GuestAnswer>,
    /// Block devices below the guests' images.
    pub devices: Vec<DeviceFacts>,
    /// What belongs to no guest.
    pub host: HostFacts,
    /// What could not be seen, and why.
    pub notes: Vec<String>,
}

/// What is said of a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GuestAnswer {
    /// In a word.
    pub verdict: Verdict,
    /// For a person, and for a ticket.
    pub sentence: String,
    /// The disk that the sentence is about, where it is one.
    pub disk: Option<String>,
    /// What holds the I/O.
    pub holder: Option<Holder>,
    /// Since when it waits, in nanoseconds before the second sample; it may be longer.
    pub since_ns: Option<u64>,
    /// What else is wrong, less important.
    pub also: Vec<String>,
    /// The facts.
    #[serde(flatten)]
    pub facts: GuestFacts,
}

/// How a guest's I/O is, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// I/O waits, and none of it completes.
    Stuck,
    /// The guest does not run, by QEMU's own word.
    Paused,
    /// A limit that somebody has set holds it back; it goes on at that rate.
    Limited,
    /// Nothing is stuck.
    Working,
    /// Nothing is in flight.
    Idle,
    /// It could not be seen.
    #[default]
    Unknown,
}

/// What holds I/O back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// What it is.
    pub kind: HolderKind,
    /// Its name: a device, a mount point, a process, a cgroup, a kernel function.
    pub name: String,
    /// Its process, where it is one.
    pub pid: Option<u32>,
}

/// Kinds of holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HolderKind {
    /// A signal has stopped QEMU.
    Signal,
    /// A debugger or another tracer has stopped a thread of QEMU.
    Tracer,
    /// A cgroup is frozen.
    CgroupFreezer,
    /// The guest was paused through QEMU's monitor, or waits for a start or a migration.
    RunState,
    /// QEMU has stopped the guest after an error of its disk.
    IoError,
    /// A server of this host or another one: NBD, NFS, SMB, Ceph.
    Server,
    /// A FUSE file system's process.
    Fuse,
    /// A file system is frozen.
    FrozenFileSystem,
    /// A device is suspended, or its driver lets nothing through.
    SuspendedDevice,
    /// A device has requests in flight and completes none.
    Device,
    /// The journal of a file system.
    Journal,
    /// The host makes writers wait for write-back.
    DirtyThrottle,
    /// QEMU's throttle.
    QemuLimit,
    /// A limit of a cgroup.
    CgroupLimit,
    /// Something else in the kernel: the function is named.
    KernelFunction,
    /// Nothing outside of QEMU is in flight.
    #[default]
    Qemu,
}

/// One thing that is wrong with a guest.
#[derive(Clone, Debug, Default, PartialEq)]
struct Trouble {
    verdict: Verdict,
    sentence: String,
    disk: Option<String>,
    holder: Option<Holder>,
    since_ns: Option<u64>,
}

/// Says of each guest what holds its I/O.
#[must_use]
pub fn judge(facts: Facts) -> Answer {
    let Facts {
        taken_unix_ns,
        interval_ns,
        guests,
        devices,
        host,
        notes,
    } = facts;
    let scene = Scene {
        interval_ns,
        devices: &devices,
        host: &host,
    };
    let guests = guests
        .into_iter()
        .map(|guest| answer(&scene, guest))
        .collect();
    Answer {
        schema: SCHEMA,
        taken_unix_ns,
        interval_ns,
        guests,
        devices,
        host,
        notes,
    }
}

/// What all guests share.
struct Scene<'a> {
    interval_ns: u64,
    devices: &'a [DeviceFacts],
    host: &'a HostFacts,
}

fn answer(scene: &Scene<'_>, guest: GuestFacts) -> GuestAnswer {
    let mut troubles: Vec<Trouble> = process::troubles(&guest);
    // Neither a process that is stopped as a whole says anything of its disks, nor a guest after an error of one.
    if troubles.is_empty() {
        troubles.extend(process::run_state(&guest));
        if guest.run_state.as_deref() != Some("io-error") {
            troubles.extend(disks(scene, &guest));
        }
    }
    // The order within a verdict is that of finding.
    troubles.sort_by_key(|trouble| trouble.verdict);
    if troubles.is_empty() {
        troubles.push(sentence::at_rest(scene, &guest));
    }
    let mut troubles = troubles.into_iter();
    let first = troubles.next().unwrap_or_default();
    GuestAnswer {
        verdict: first.verdict,
        sentence: first.sentence,
        disk: first.disk,
        holder: first.holder,
        since_ns: first.since_ns,
        also: troubles.map(|trouble| trouble.sentence).collect(),
        facts: guest,
    }
}

/// What each disk waits for; and blocked threads that belong to no disk.
fn disks(scene: &Scene<'_>, guest: &GuestFacts) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    let mut explained = Vec::new();
    for disk in &guest.disks {
        let waiting = Waiting::of_disk(scene.interval_ns, guest, disk);
        let chain = Chain::below(scene.devices, &disk.images);
        explained.extend(waiting.threads.iter().map(|thread| thread.tid));
        let found = holder::of_disk(scene, guest, disk, &waiting, &chain);
        troubles.extend(found.map(|held| sentence::held(&guest.name, Some(disk), &waiting, held)));
    }
    let rest = Waiting::of_rest(scene.interval_ns, guest, &explained);
    let found = holder::of_rest(scene, guest, &rest);
    troubles.extend(found.map(|held| sentence::held(&guest.name, None, &rest, held)));
    troubles
}

#[cfg(test)]
mod tests;
