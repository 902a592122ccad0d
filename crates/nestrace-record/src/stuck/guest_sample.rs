//! A guest at one moment, and what two moments say.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use nestrace_probes::refusal::with_causes;
use nestrace_stuck::facts::{DiskFacts, GuestFacts, RingFacts, ThreadFacts};
use nestrace_trace::manifest::{Device, Guest};

use super::rings::{self, Ring};
use super::threads::{self, Thread};
use super::{limits, monitor, servers};
use crate::cgroup::Hierarchies;
use crate::guest::process::Process;
use crate::guest::qmp::now::{self, Now};

/// Waiting threads of one guest that are kept, blocked ones first.
const MAX_WAITING: usize = 256;

/// A guest that is looked at.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As the topology has it; of one that could not be examined, names alone.
    pub(super) guest: Guest,
    /// With the process id it says which process it is.
    pub(super) start_ticks: u64,
}

impl Target {
    fn is_alive(&self) -> bool {
        let process = Process {
            pid: self.guest.pid,
            start_ticks: self.start_ticks,
            ..Process::default()
        };
        process.is_alive()
    }
}

/// What was seen at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestSample {
    is_hidden: bool,
    threads: BTreeMap<u32, Thread>,
    n_threads: u64,
    rings: Vec<Ring>,
    monitor: Option<Result<Now, String>>,
}

impl GuestSample {
    /// `None` where the process is gone.
    pub(super) fn take(target: &Target) -> Option<Self> {
        let pid = target.guest.pid;
        let (threads, n_threads) = threads::all(pid).ok()?;
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        let is_hidden = files.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        let rings = rings::all(pid);
        let path = target.guest.qmp.as_deref();
        let monitor = path.map(|path| {
            now::now(pid, path).map_err(|error| format!("failed to {}", with_causes(&error)))
        });
        target.is_alive().then_some(Self {
            is_hidden,
            threads,
            n_threads,
            rings,
            monitor,
        })
    }

    fn answer(&self) -> Option<&Now> {
        self.monitor.as_ref()?.as_ref().ok()
    }
}

/// Takes the second sample and compares. `None` where the process is gone.
pub(super) fn facts(
    target: &Target,
    before: &GuestSample,
    hierarchies: &Hierarchies,
    devices: &[Device],
) -> Option<GuestFacts> {
    let pid = target.guest.pid;
    let now = GuestSample::take(target)?;
    let mut disks = monitor::disks(&target.guest.disks, before.answer(), now.answer());
    for disk in &mut disks {
        if let Some(remote) = &mut disk.remote {
            remote.stopped_server = servers::stopped(&servers::address(&remote.address), pid);
        }
    }
    let mut threads = waiting(pid, before, &now);
    let answer = now.answer().or(before.answer());
    for thread in &mut threads {
        thread.role = role(thread, answer);
    }
    for thread in &mut threads {
        thread.disk = disk_of(thread, &disks);
    }
    // Where QEMU sleeps in a file that is none of its images, it is no I/O of a disk.
    threads.retain(|thread| thread.state != "S" || thread.disk.is_some());
    let is_stopped = |sample: &GuestSample| {
        let first = sample.threads.get(&pid);
        first.is_some_and(|thread| thread.state == 'T')
    };
    Some(GuestFacts {
        name: target.guest.name.clone(),
        uuid: target.guest.uuid.clone(),
        pid,
        is_hidden: now.is_hidden,
        run_state: now.answer().and_then(|answer| answer.run_state.clone()),
        monitor_silence: now.monitor.as_ref().and_then(|m| m.as_ref().err().cloned()),
        is_stopped: is_stopped(before) && is_stopped(&now),
        cgroup: limits::of_cgroups(hierarchies, pid, devices),
        rings: busy(rings::facts(&before.rings, &now.rings)),
        jobs: monitor::jobs(now.answer()),
        disks,
        threads,
        n_threads: now.n_threads,
    })
}

/// Instances with I/O.
fn busy(mut rings: Vec<RingFacts>) -> Vec<RingFacts> {
    rings.retain(|ring| ring.in_flight > 0 || ring.completed > 0);
    rings
}

/// Threads that did not run between the samples.
fn waiting(pid: u32, before: &GuestSample, now: &GuestSample) -> Vec<ThreadFacts> {
    let both = now.threads.iter().filter_map(|(&tid, thread)| {
        let before = before.threads.get(&tid)?;
        threads::facts(pid, tid, before, thread)
    });
    let mut all: Vec<ThreadFacts> = both.collect();
    all.sort_by_key(|thread| thread.state != "D");
    all.truncate(MAX_WAITING);
    all
}

fn role(thread: &ThreadFacts, answer: Option<&Now>) -> String {
    let tid = thread.tid;
    let processor = answer.and_then(|now| now.processors.iter().find(|it| it.thread_id == tid));
    let iothread = answer.and_then(|now| now.iothreads.iter().find(|it| it.thread_id == tid));
    match (processor, iothread) {
        (Some(processor), _) => format!("vcpu {}", processor.cpu_index),
        (None, Some(iothread)) => format!("iothread {}", iothread.id),
        (None, None) if tid == thread.pid => "main".to_owned(),
        (None, None) => String::new(),
    }
}

/// The disk whose image a thread's file is. The path may be seen from another root.
fn disk_of(thread: &ThreadFacts, disks: &[DiskFacts]) -> Option<String> {
    let file = thread.file.as_deref()?;
    let has = |disk: &&DiskFacts, test: &dyn Fn(&str) -> bool| {
        disk.images.iter().any(|image| test(&image.path))
    };
    let same = disks.iter().find(|disk| has(disk, &|path| path == file));
    let seen_from_elsewhere = || {
        let mut ends = disks
            .iter()
            .filter(|disk| has(disk, &|path| path.starts_with('/') && file.ends_with(path)));
        let only = ends.next()?;
        ends.next().is_none().then_some(only)
    };
    same.or_else(seen_from_elsewhere)
        .map(|disk| disk.name.clone())
}

#[cfg(test)]
mod tests {
    use nestrace_stuck::facts::ImageFacts;

    use super::*;

    #[test]
    fn the_disk_of_a_file() {
        let disk = |name: &str, path: &str| DiskFacts {
            name: name.to_owned(),
            images: vec![ImageFacts {
                path: path.to_owned(),
                ..ImageFacts::default()
            }],
            ..DiskFacts::default()
        };
        let disks = [disk("a", "/img/a.raw"), disk("b", "/img/b.raw")];
        let of = |file: &str| {
            let thread = ThreadFacts {
                file: Some(file.to_owned()),
                ..ThreadFacts::default()
            };
            disk_of(&thread, &disks)
        };
        assert_eq!(of("/img/b.raw").as_deref(), Some("b"));
        assert_eq!(of("/container/img/a.raw").as_deref(), Some("a"));
        assert_eq!(of("/img/c.raw"), None);
    }
}
