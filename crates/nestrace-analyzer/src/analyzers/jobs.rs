//! QEMU's jobs, with what the recording shows of them.

use nestrace_trace::manifest;

use crate::Analyzer;
use crate::link::served::disk_of_job;
use crate::result::analysis::Job;

/// QEMU's jobs of the guests that are selected.
pub(super) fn jobs(analyzer: &Analyzer) -> Vec<Job> {
    let guests = analyzer.manifest.topology.guests.iter();
    let guests = guests.filter(|guest| analyzer.options.takes_guest(&guest.name));
    let all = guests.flat_map(|guest| guest.jobs.iter().map(move |job| (guest, job)));
    all.map(|(guest, job)| described(analyzer, guest, job))
        .collect()
}

fn described(analyzer: &Analyzer, guest: &manifest::Guest, job: &manifest::Job) -> Job {
    let disk = disk_of_job(guest, job);
    let of_disk = guest.jobs.iter();
    let of_disk = of_disk.filter(|it| disk_of_job(guest, it) == disk);
    let mut disks = analyzer.images.disks.iter();
    let number = disks.position(|it| it.guest_name == guest.name && Some(it.name.as_str()) == disk);
    let half = number
        .filter(|_| of_disk.count() == 1)
        .and_then(|number| analyzer.host.as_ref()?.job_of(u32::try_from(number).ok()?));
    let after_start = |mono_ns: u64| mono_ns.saturating_sub(analyzer.start_ns());
    Job {
        guest: guest.name.clone(),
        disk: disk.map(str::to_owned),
        id: job.id.clone(),
        kind: job.kind.clone(),
        target: job.target.clone(),
        status: job.status.clone(),
        speed: job.speed,
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        first_seen_ns: after_start(job.first_seen_mono_ns),
        last_seen_ns: after_start(job.last_seen_mono_ns),
        copies: half.as_ref().map(|half| half.copies),
        guest_waits: half.as_ref().map(|half| half.waits),
    }
}
