//! What QMP said twice, as facts of disks.

use nestrace_stuck::facts::{DiskCounts, DiskFacts, JobFacts};
use nestrace_trace::manifest::Disk;

use super::{images, limits, servers};
use crate::guest::qmp::disk_row::{is_of, is_row_of};
use crate::guest::qmp::now::{BlockNow, CountsNow, Now, QueuesNow};

/// The disks of a guest: as the topology has them, with what QMP said at both samples.
#[must_use]
pub fn disks(known: &[Disk], before: Option<&Now>, now: Option<&Now>) -> Vec<DiskFacts> {
    let n_on_scsi = known.iter().filter(|disk| is_on_scsi(disk)).count();
    let of = |disk: &Disk| {
        let row = now.and_then(|now| row_of(disk, &now.blocks));
        let medium = row.and_then(|row| row.info.inserted.as_ref());
        let limits = now.zip(row).map(|(now, row)| now.set.limits_of(&row.info));
        let counts = |now: Option<&Now>| {
            let rows = &now?.stats;
            let own = rows.iter().find(|row| {
                is_of(
                    disk,
                    row.device.as_deref(),
                    row.qdev.as_deref(),
                    row.node_name.as_deref(),
                )
            });
            own.map(|row| row.stats)
        };
        let (counted, counts) = (counts(before), counts(now));
        let in_flight = |now: Option<&Now>| in_flight(disk, row, &now?.queues);
        DiskFacts {
            name: disk.name.clone(),
            aio: disk.aio.clone(),
            io_status: row.and_then(|row| row.io_status.clone()),
            in_flight_before: in_flight(before),
            in_flight: in_flight(now),
            is_shared_queue: is_on_scsi(disk) && n_on_scsi > 1,
            completed: counted.zip(counts).map(|(a, b)| completed(&a, &b)),
            idle_ns: counts.and_then(|counts| counts.idle_time_ns),
            limits: limits::of_disk(&limits.unwrap_or_default()),
            images: disk.images.iter().map(images::facts).collect(),
            remote: medium.and_then(|medium| servers::remote(&medium.file)),
        }
    };
    known.iter().map(of).collect()
}

fn is_on_scsi(disk: &Disk) -> bool {
    disk.bus == "virtio-scsi"
}

fn row_of<'a>(disk: &Disk, rows: &'a [BlockNow]) -> Option<&'a BlockNow> {
    rows.iter().find(|row| is_row_of(disk, &row.info))
}

/// Requests that the disk's device has taken and not completed; those of a controller, where there is only one.
fn in_flight(disk: &Disk, row: Option<&BlockNow>, queues: &[QueuesNow]) -> Option<u64> {
    if is_on_scsi(disk) {
        let mut controllers = queues.iter().filter(|queues| queues.kind == "virtio-scsi");
        let only = controllers.next()?;
        return controllers.next().is_none().then_some(only.in_flight);
    }
    let qdev = row.and_then(|row| row.info.qdev.as_deref());
    let own = |queues: &&QueuesNow| {
        let is_same = qdev == Some(queues.path.as_str());
        is_same || (disk.qdev.is_some() && is_of(disk, None, Some(&queues.path), None))
    };
    let mut devices = queues.iter().filter(|queues| queues.kind == "virtio-blk");
    devices.find(own).map(|queues| queues.in_flight)
}

fn completed(before: &CountsNow, now: &CountsNow) -> DiskCounts {
    let sum = |parts: &[fn(&CountsNow) -> u64]| {
        let of = |counts: &CountsNow| {
            let parts = parts.iter().map(|part| part(counts));
            parts.fold(0u64, u64::saturating_add)
        };
        of(now).saturating_sub(of(before))
    };
    DiskCounts {
        reads: sum(&[|c| c.rd_operations, |c| c.failed_rd_operations]),
        writes: sum(&[|c| c.wr_operations, |c| c.failed_wr_operations]),
        others: sum(&[|c| c.flush_operations, |c| c.unmap_operations]),
        bytes_rd: sum(&[|c| c.rd_bytes]),
        bytes_wr: sum(&[|c| c.wr_bytes]),
        time_ns: sum(&[
            |c| c.rd_total_time_ns,
            |c| c.wr_total_time_ns,
            |c| c.flush_total_time_ns,
            |c| c.unmap_total_time_ns,
        ]),
    }
}

/// Jobs that have not ended.
#[must_use]
pub fn jobs(now: Option<&Now>) -> Vec<JobFacts> {
    let jobs = now.into_iter().flat_map(|now| now.set.jobs(&[], 0));
    let running = jobs.filter(|job| !job.has_ended());
    let facts = running.map(|job| JobFacts {
        id: job.id,
        kind: job.kind,
        status: job.status,
    });
    facts.collect()
}

#[cfg(test)]
mod tests {
    use crate::guest::qmp::now::StatsNow;

    use super::*;

    fn now(reads: u64, in_flight: u64) -> Now {
        let path = "/machine/peripheral/d0/virtio-backend".to_owned();
        Now {
            stats: vec![StatsNow {
                qdev: Some(path.clone()),
                stats: CountsNow {
                    rd_operations: reads,
                    rd_total_time_ns: reads * 1000,
                    ..CountsNow::default()
                },
                ..StatsNow::default()
            }],
            queues: vec![QueuesNow {
                kind: "virtio-blk".to_owned(),
                path,
                in_flight,
            }],
            ..Now::default()
        }
    }

    #[test]
    fn rows_belong_to_the_device_with_the_id() {
        let disk = |qdev: &str| Disk {
            name: "drive".to_owned(),
            qdev: Some(qdev.to_owned()),
            ..Disk::default()
        };
        let known = [disk("d0"), disk("d1")];
        let disks = disks(&known, Some(&now(10, 3)), Some(&now(14, 2)));
        assert_eq!(
            (disks[0].in_flight_before, disks[0].in_flight),
            (Some(3), Some(2))
        );
        let completed = disks[0].completed.unwrap();
        assert_eq!((completed.reads, completed.time_ns), (4, 4000));
        assert_eq!((disks[1].in_flight, disks[1].completed), (None, None));
    }
}
