//! What is set, what QEMU does by itself and how long threads wait for I/O while guests are recorded: limits and pressure at the
//! end, jobs that come and go.

use nestrace_trace::manifest::{Job, MAX_JOBS_OF_GUEST, Topology};

use super::open_manifest::OpenManifest;
use crate::cgroup::{Hierarchies, LimitFiles};
use crate::io_pressure::PressureFiles;
use crate::roles::asker::{Asker, Seen};

/// Guests whose limit files are kept open; a guest of libvirt's has about twelve such files.
const MAX_GUESTS_WITH_FILES: usize = 64;

/// The guests' monitors and cgroups.
pub(super) struct LimitsAndJobs {
    asker: Asker,
    /// By guest.
    files: Vec<LimitFiles>,
    pressure: PressureFiles,
}

impl LimitsAndJobs {
    /// Those of the topology; opens what cannot be opened later.
    pub(super) fn new(topology: &Topology, asker: Asker) -> Self {
        let hierarchies = Hierarchies::read();
        let guests = topology.guests.iter().take(MAX_GUESTS_WITH_FILES);
        let files = guests.map(|guest| LimitFiles::open(&hierarchies, guest.pid));
        Self {
            asker,
            files: files.collect(),
            pressure: PressureFiles::open(&hierarchies, topology, MAX_GUESTS_WITH_FILES),
        }
    }

    /// Takes the jobs that were seen.
    pub(super) fn look(&mut self, manifest: &mut OpenManifest) {
        match self.asker.seen() {
            Ok(all) => all.into_iter().for_each(|seen| take(seen, manifest)),
            Err(error) => note_gone(&error, manifest),
        }
    }

    /// Takes what there is at the end.
    pub(super) fn look_last(&mut self, manifest: &mut OpenManifest) {
        match self.asker.last() {
            Ok(all) => all.into_iter().for_each(|seen| take(seen, manifest)),
            Err(error) => note_gone(&error, manifest),
        }
        let topology = &mut manifest.value.topology;
        for (guest, files) in topology.guests.iter_mut().zip(&self.files) {
            guest.limits_at_end = Some(files.read(&topology.devices));
        }
        self.pressure.note(topology);
    }
}

fn note_gone(error: &std::io::Error, manifest: &mut OpenManifest) {
    let message = format!("QEMU's jobs are not noticed any more: the asker has failed ({error})");
    manifest.notice("asker_gone", &message);
}

fn take(seen: Seen, manifest: &mut OpenManifest) {
    let Some(guest) = manifest.value.topology.guests.get_mut(seen.guest) else {
        return;
    };
    for (disk, limits) in seen.limits {
        if let Some(disk) = guest.disks.get_mut(disk) {
            disk.limits_at_end = Some(limits);
        }
    }
    for job in seen.jobs {
        take_job(job, &mut guest.jobs);
    }
    manifest.changed = true;
    if let Some(silence) = seen.silence {
        let message = format!(
            "the monitor of guest {} does not answer, so its jobs may not be noticed: {silence}",
            guest.name
        );
        manifest.notice("monitor_silent", &message);
    }
}

/// A job is known by its id, and one that has ended is not the next one of that id.
fn take_job(job: Job, known: &mut Vec<Job>) {
    let is_same = |it: &&mut Job| it.id == job.id && it.kind == job.kind && !it.has_ended();
    if let Some(same) = known.iter_mut().find(is_same) {
        same.status = job.status;
        same.speed = job.speed.or(same.speed);
        same.done_bytes = job.done_bytes;
        same.total_bytes = job.total_bytes;
        same.last_seen_mono_ns = job.last_seen_mono_ns;
    } else if known.len() < MAX_JOBS_OF_GUEST && !is_repeated_end(&job, known) {
        known.push(job);
    }
}

/// A job that has ended is listed until somebody dismisses it.
fn is_repeated_end(job: &Job, known: &[Job]) -> bool {
    job.has_ended()
        && known
            .iter()
            .any(|it| it.id == job.id && it.kind == job.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_one_from_its_begin_to_its_end() {
        let job = |status: &str, at_ns: u64| Job {
            id: "j".to_owned(),
            kind: "backup".to_owned(),
            status: status.to_owned(),
            first_seen_mono_ns: at_ns,
            last_seen_mono_ns: at_ns,
            ..Job::default()
        };
        let mut known = Vec::new();
        for (status, at_ns) in [
            ("running", 1),
            ("running", 2),
            ("concluded", 3),
            ("concluded", 4),
        ] {
            take_job(job(status, at_ns), &mut known);
        }
        take_job(job("running", 5), &mut known);
        let times = known
            .iter()
            .map(|it| (it.first_seen_mono_ns, it.last_seen_mono_ns));
        assert_eq!(times.collect::<Vec<_>>(), [(1, 3), (5, 5)]);
    }
}
